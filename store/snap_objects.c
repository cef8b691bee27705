/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contents, each under the name of its SHA-256. A new one is written as new-<snapshot>-<number>,
 * and gets its name when it and the manifest are on the disk. An object is hashed as it is stored,
 * so a file that is being written gives some content, and never a wrong hash.
 */
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/crash.h"
#include "base/fs.h"
#include "store/snap_i.h"

enum {
	SYNC_EACH_MAX = 16, /* as many files are synced one by one; more by a sync of the disk */
	ZEROS = 64 << 10,
};

static const char *const dir_names[] = {
	[SNAP_DIR_OBJECTS] = "objects",
	[SNAP_DIR_MANIFESTS] = "snapshots",
};

int snap_dir(struct store *s, enum snap_dirs which, bool create)
{
	int fd = sbx_open_beneath(store_dir_fd(s), dir_names[which], O_RDONLY | O_DIRECTORY, 0);
	sbx_autoclose int state = -1;

	if (fd != -ENOENT || !create)
		return fd;
	if (mkdirat(store_dir_fd(s), dir_names[which], 0700) < 0 && errno != EEXIST)
		return -errno;
	state = openat(store_dir_fd(s), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (state < 0 || fsync(state) < 0)
		return -errno;
	return sbx_open_beneath(store_dir_fd(s), dir_names[which], O_RDONLY | O_DIRECTORY, 0);
}

int snap_lock(struct store *s, int how)
{
	sbx_autoclose int fd = openat(store_dir_fd(s), "objects.lock",
				      O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

	if (fd < 0)
		return -errno;
	while (flock(fd, how) < 0)
		if (errno != EINTR)
			return -errno;
	return sbx_steal_fd(&fd);
}

int snap_hold(struct store *s)
{
	return snap_lock(s, LOCK_SH);
}

int snap_storage(struct sbx_error *e, int err, const char *what)
{
	return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, err, "cannot %s", what);
}

static void temporary_name(const struct snap_objects *o, uint32_t i, char out[64])
{
	(void)snprintf(out, 64, "new-%s-%u", o->token, i);
}

static void object_name(const uint8_t hash[SNAP_HASH_LEN], char out[67])
{
	char hex[65];

	snap_hash_hex(hash, hex);
	(void)snprintf(out, 67, "%.2s/%s", hex, hex + 2);
}

int snap_objects_init(struct snap_objects *o, struct store *s, bool hash_only, struct sbx_error *e)
{
	*o = (struct snap_objects){ .s = s, .dir = -1, .hash_only = hash_only };
	sbx_id_new(o->token);
	o->digest = EVP_MD_CTX_new();
	o->kind = EVP_MD_fetch(NULL, "SHA256", NULL);
	o->buffer = malloc(SNAP_COPY_BUFFER);
	if (!o->digest || !o->kind || !o->buffer)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a snapshot");
	if (hash_only)
		return 0;
	o->dir = snap_dir(s, SNAP_DIR_OBJECTS, true);
	return o->dir < 0 ? snap_storage(e, -o->dir, "open the directory of objects") : 0;
}

void snap_objects_fini(struct snap_objects *o)
{
	char name[64];

	for (uint32_t i = 0; o->dir >= 0 && i < o->n; i++) {
		if (o->fresh[i].named)
			continue;
		temporary_name(o, i, name);
		(void)unlinkat(o->dir, name, 0);
	}
	sbx_closep(&o->dir);
	snap_table_fini(&o->known);
	free(o->fresh);
	free(o->buffer);
	EVP_MD_CTX_free(o->digest);
	EVP_MD_free(o->kind);
	*o = (struct snap_objects){ .dir = -1 };
}

/* ---- reading and writing one ----------------------------------------------------------------- */

/* A file on its way into an object. out is -1 when only its hash is wanted. */
struct intake {
	struct snap_objects *o;
	int in, out;
	int64_t done, max;
};

static int take_zeros(struct intake *t, int64_t n)
{
	static const char zeros[ZEROS];

	t->done += n;
	while (n > 0) {
		size_t part = n < ZEROS ? (size_t)n : ZEROS;

		if (EVP_DigestUpdate(t->o->digest, zeros, part) != 1)
			return -ENOMEM;
		n -= (int64_t)part;
	}
	return 0;
}

static int take_bytes(struct intake *t, size_t n)
{
	int64_t at = t->done;

	t->done += (int64_t)n;
	if (EVP_DigestUpdate(t->o->digest, t->o->buffer, n) != 1)
		return -ENOMEM;
	return t->out < 0 ? 0 : sbx_pwrite_all(t->out, t->o->buffer, n, at);
}

/* From t->done over a hole, which is not read, to the next data: *ret_end is where that ends, or
 * t->done when there is no more. */
static int skip_hole(struct intake *t, int64_t *ret_end)
{
	off_t data = lseek(t->in, t->done, SEEK_DATA), hole = INT64_MAX;
	struct stat st;
	int r;

	if (data >= 0) {
		hole = lseek(t->in, data, SEEK_HOLE);
	} else if (errno == ENXIO) {
		if (fstat(t->in, &st) < 0)
			return -errno;
		data = hole = st.st_size > t->done ? st.st_size : t->done;
	} else {
		data = t->done; /* this file system does not know */
	}
	if (data > t->max)
		return -EFBIG;
	r = data > t->done ? take_zeros(t, data - t->done) : 0;
	*ret_end = hole > data ? hole : data;
	return r;
}

/* What fits into the buffer of the data up to end. 0: that was the end of the file. */
static ssize_t take_part(struct intake *t, int64_t end)
{
	int64_t left = end - t->done;
	ssize_t n;
	int r;

	do {
		n = pread(t->in, t->o->buffer,
			  left < SNAP_COPY_BUFFER ? (size_t)left : SNAP_COPY_BUFFER, t->done);
	} while (n < 0 && errno == EINTR);
	if (n <= 0)
		return n < 0 ? -errno : 0;
	if (n > t->max - t->done)
		return -EFBIG;
	r = take_bytes(t, (size_t)n);
	return r < 0 ? r : n;
}

/* -EFBIG: more than max. */
static int take_all(struct intake *t)
{
	int64_t end = 0;
	ssize_t n = 1;

	while (n > 0) {
		int r = skip_hole(t, &end);

		if (r < 0)
			return r;
		n = end > t->done;
		while (n > 0 && t->done < end)
			n = take_part(t, end);
	}
	if (n == 0 && t->out >= 0 && ftruncate(t->out, t->done) < 0)
		return -errno;
	return (int)n;
}

static int begin(struct snap_objects *o)
{
	return EVP_DigestInit_ex(o->digest, o->kind, NULL) == 1 ? 0 : -ENOMEM;
}

static int finish(struct snap_objects *o, uint8_t hash[SNAP_HASH_LEN])
{
	return EVP_DigestFinal_ex(o->digest, hash, NULL) == 1 ? 0 : -ENOMEM;
}

/* ---- keeping one ----------------------------------------------------------------------------- */

/* 1: this hash is to be written. */
static int is_wanted(struct snap_objects *o, const uint8_t hash[SNAP_HASH_LEN], int64_t size)
{
	char name[67];
	struct stat st;
	int r;

	if (o->hash_only || size == 0)
		return 0;
	r = snap_table_add(&o->known, hash, o->n, NULL);
	if (r <= 0)
		return r;
	object_name(hash, name);
	o->touched[hash[0] / 64] |= 1ull << (hash[0] % 64);
	/* One of another size is not what it says, and is replaced. */
	if (fstatat(o->dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
	    st.st_size == size)
		return 0;
	return 1;
}

static int add_fresh(struct snap_objects *o)
{
	if (o->n == o->size) {
		uint32_t size = o->size ? 2 * o->size : 64;
		struct snap_object *p = reallocarray(o->fresh, size, sizeof(*p));

		if (!p)
			return -ENOMEM;
		o->fresh = p;
		o->size = size;
	}
	o->fresh[o->n] = (struct snap_object){ .named = false };
	return 0;
}

static int create(struct snap_objects *o)
{
	char name[64];
	int fd, r = add_fresh(o);

	if (r < 0)
		return r;
	temporary_name(o, o->n, name);
	fd = openat(o->dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0400);
	return fd < 0 ? -errno : fd;
}

static void discard(struct snap_objects *o)
{
	char name[64];

	temporary_name(o, o->n, name);
	(void)unlinkat(o->dir, name, 0);
}

static void accept(struct snap_objects *o, const uint8_t hash[SNAP_HASH_LEN], int64_t size)
{
	memcpy(o->fresh[o->n].hash, hash, SNAP_HASH_LEN);
	o->n++;
	o->new_bytes += size;
}

/* What fits into the buffer is hashed first, and written only when nobody has it. */
static int put_small(struct snap_objects *o, size_t size, uint8_t hash[SNAP_HASH_LEN])
{
	sbx_autoclose int out = -1;
	int r = begin(o);

	if (r == 0 && EVP_DigestUpdate(o->digest, o->buffer, size) != 1)
		r = -ENOMEM;
	if (r == 0)
		r = finish(o, hash);
	if (r == 0)
		r = is_wanted(o, hash, (int64_t)size);
	if (r <= 0)
		return r;
	out = create(o);
	r = out < 0 ? out : sbx_write_all(out, o->buffer, size);
	if (r == 0)
		accept(o, hash, (int64_t)size);
	else if (out >= 0)
		discard(o);
	return r;
}

static int put_large(struct snap_objects *o, int fd, int64_t max, uint8_t hash[SNAP_HASH_LEN],
		     int64_t *ret_size)
{
	sbx_autoclose int out = o->hash_only ? -1 : create(o);
	struct intake t = { .o = o, .in = fd, .out = out, .max = max };
	int r = out < 0 && !o->hash_only ? out : begin(o);

	if (r == 0)
		r = take_all(&t);
	if (r == 0)
		r = finish(o, hash);
	if (r == 0)
		r = is_wanted(o, hash, t.done);
	*ret_size = t.done;
	if (r == 1)
		accept(o, hash, t.done);
	else if (out >= 0)
		discard(o);
	return r < 0 ? r : 0;
}

int snap_objects_put(struct snap_objects *o, int fd, int64_t max, uint8_t hash[SNAP_HASH_LEN],
		     int64_t *ret_size, struct sbx_error *e)
{
	ssize_t n;
	int r;

	if (lseek(fd, 0, SEEK_SET) < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno, "cannot read it");
	n = sbx_read_full(fd, o->buffer, SNAP_COPY_BUFFER);
	if (n < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, (int)-n, "cannot read it");
	*ret_size = n;
	if (n > max)
		r = -EFBIG;
	else if (n < SNAP_COPY_BUFFER)
		r = put_small(o, (size_t)n, hash);
	else
		r = put_large(o, fd, max, hash, ret_size);
	if (r == -EFBIG)
		return sbx_fail(e, SBX_E_WORKSPACE_CAP,
				"the files have more bytes than are allowed");
	return r < 0 ? snap_storage(e, -r, "keep its content") : 0;
}

/* ---- to the disk, and to their names --------------------------------------------------------- */

int snap_objects_sync(struct snap_objects *o, int manifest, struct sbx_error *e)
{
	crash_point("snap_written");
	if (o->n > SYNC_EACH_MAX) {
		if (syncfs(o->dir) < 0)
			return snap_storage(e, errno, "sync the objects of a snapshot");
		return fsync(manifest) < 0 ? snap_storage(e, errno, "sync a manifest") : 0;
	}
	for (uint32_t i = 0; i < o->n; i++) {
		sbx_autoclose int fd = -1;
		char name[64];

		temporary_name(o, i, name);
		fd = openat(o->dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
		if (fd < 0 || fsync(fd) < 0)
			return snap_storage(e, errno, "sync an object");
	}
	return fsync(manifest) < 0 ? snap_storage(e, errno, "sync a manifest") : 0;
}

int snap_objects_name(struct snap_objects *o, struct sbx_error *e)
{
	crash_point("snap_synced");
	for (uint32_t i = 0; i < o->n; i++) {
		char from[64], to[67], parent[3];

		temporary_name(o, i, from);
		object_name(o->fresh[i].hash, to);
		(void)snprintf(parent, sizeof(parent), "%.2s", to);
		/* Whoever else had the same content just now had the same bytes. */
		if (renameat(o->dir, from, o->dir, to) < 0) {
			if (errno != ENOENT ||
			    (mkdirat(o->dir, parent, 0700) < 0 && errno != EEXIST) ||
			    renameat(o->dir, from, o->dir, to) < 0)
				return snap_storage(e, errno, "name an object");
		}
		o->fresh[i].named = true;
	}
	crash_point("snap_objects_named");
	return 0;
}

static int sync_directory(int dir, const char *name)
{
	sbx_autoclose int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd < 0 || fsync(fd) < 0 ? -errno : 0;
}

int snap_objects_settle(struct snap_objects *o, int manifests, struct sbx_error *e)
{
	int n = 0, r = 0;

	for (int i = 0; i < 4; i++)
		n += __builtin_popcountll(o->touched[i]);
	if (n > SYNC_EACH_MAX)
		return syncfs(o->dir) < 0 ? snap_storage(e, errno, "sync the objects") : 0;
	/* Also those that were there: another snapshot that made them may not be that far. */
	for (unsigned i = 0; r == 0 && i < 256; i++) {
		char name[3];

		if (!(o->touched[i / 64] >> (i % 64) & 1))
			continue;
		(void)snprintf(name, sizeof(name), "%02x", i);
		r = sync_directory(o->dir, name);
	}
	if (r == 0)
		r = sync_directory(o->dir, ".");
	if (r == 0 && fsync(manifests) < 0)
		r = -errno;
	return r < 0 ? snap_storage(e, -r, "sync the directories of a snapshot") : 0;
}
