/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Taking a snapshot. Contents and manifest are written under temporary names and synced; then they
 * get their names, and the directories are synced. A crash before the end leaves files that nobody
 * knows, for snap_collect.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/crash.h"
#include "base/fs.h"
#include "store/snap_i.h"

enum { READS_MAX = 3 }; /* of a file that changes while it is read */

static bool same_times(const struct stat *a, const struct stat *b)
{
	return a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
	       a->st_mtim.tv_nsec == b->st_mtim.tv_nsec && a->st_ctim.tv_sec == b->st_ctim.tv_sec &&
	       a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

/* The record says how the file was before it was read: if it changed meanwhile, the next snapshot
 * sees that it is another. */
void snap_describe(struct snap_record *rec, const struct stat *st)
{
	rec->mtime_sec = st->st_mtim.tv_sec;
	rec->mtime_nsec = (uint32_t)st->st_mtim.tv_nsec;
	rec->ctime_sec = st->st_ctim.tv_sec;
	rec->ctime_nsec = (uint32_t)st->st_ctim.tv_nsec;
	rec->mode = st->st_mode & (S_IFMT | SNAP_MODE_MASK);
	rec->ino = st->st_ino;
	rec->dev = st->st_dev;
}

static int64_t room_left(const struct snap_walk *w)
{
	return w->limits.bytes > 0 ? w->limits.bytes - w->sums.bytes : INT64_MAX;
}

static int take_file(struct snap_walk *w, int dirfd, const char *name, struct snap_record *rec,
		     bool *ret_gone, struct sbx_error *e)
{
	sbx_autoclose int fd = snap_walk_open(dirfd, name);
	struct stat before, after;
	int r = 0;

	if (fd == -ENOENT) {
		*ret_gone = true;
		return 0;
	}
	if (fd < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, -fd,
				      "cannot open '%s' of the tree", name);
	for (int i = 0; i < READS_MAX; i++) {
		if (fstat(fd, &before) < 0)
			return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno,
					      "cannot look at '%s' of the tree", name);
		r = snap_objects_put(w->ctx, fd, room_left(w), rec->hash, &rec->size, e);
		if (r < 0 || fstat(fd, &after) < 0 || same_times(&before, &after))
			break;
	}
	if (r == 0)
		r = snap_xattrs_read(w->now, fd, &rec->xattrs, &rec->xattrs_len, e);
	snap_describe(rec, &before);
	return r < 0 ? sbx_error_wrap(e, r, "'%s' of the tree", name) : 0;
}

static const struct snap_walk_ops taking = { .file = take_file };
static const struct snap_walk_ops counting = { .file = NULL };

/* The earlier snapshot, when there is a whole one: without it all is read. */
static int open_previous(struct store *s, const char *id, struct snap **ret, struct sbx_error *e)
{
	sbx_autoerror why = SBX_ERROR_INIT;
	int r = id ? snap_open(s, id, ret, &why) : 0;

	if (r == -SBX_E_NO_MEMORY)
		return sbx_fail(e, SBX_E_NO_MEMORY, "%s", why.message);
	return 0;
}

/* Walked already: everything to the disk and to its name. */
static int keep(struct snap_walk *w, struct snap_objects *o, int dir, const char *id,
		struct sbx_error *e)
{
	sbx_autoclose int fd = -1;
	char name[64];
	int r;

	(void)snprintf(name, sizeof(name), "new-%s", o->token);
	fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0400);
	if (fd < 0)
		return snap_storage(e, errno, "make a manifest");
	r = snap_write(w->now, fd, w->sums.digest, e);
	if (r == 0)
		r = snap_objects_sync(o, fd, e);
	if (r == 0)
		r = snap_objects_name(o, e);
	if (r == 0 && renameat2(dir, name, dir, id, RENAME_NOREPLACE) < 0) {
		r = errno == EEXIST
			    ? sbx_fail(e, SBX_E_ENTRY_EXISTS, "there is a snapshot '%s'", id)
			    : snap_storage(e, errno, "name a manifest");
	}
	if (r < 0) {
		(void)unlinkat(dir, name, 0);
		return r;
	}
	crash_point("snap_named");
	r = snap_objects_settle(o, dir, e);
	if (r < 0)
		(void)unlinkat(dir, id, 0);
	crash_point("snap_settled");
	return r;
}

static int take_locked(struct store *s, int tree, const char *id, struct snap_walk *w,
		       struct snap_objects *o, struct sbx_error *e)
{
	sbx_autoclose int dir = snap_dir(s, SNAP_DIR_MANIFESTS, true);
	int r;

	if (dir < 0)
		return snap_storage(e, -dir, "open the directory of snapshots");
	r = snap_objects_init(o, s, false, e);
	if (r == 0)
		r = snap_walk(w, tree, e);
	if (r == 0)
		r = keep(w, o, dir, id, e);
	w->sums.new_bytes = o->new_bytes;
	return r;
}

int snap_take(struct store *s, int tree, const char *id, const char *previous,
	      const struct snap_limits *limits, struct snap_sums *ret, struct sbx_error *e)
{
	struct snap_objects objects = { .dir = -1 };
	struct snap_walk w = { .ops = &taking, .ctx = &objects };
	snap_auto struct snap *before = NULL;
	sbx_autoclose int lock = -1;
	int r;

	if (!id || !sbx_id_valid(id))
		return sbx_fail(e, SBX_E_SNAPSHOT_NOT_FOUND, "no such snapshot");
	if (limits)
		w.limits = *limits;
	/* Under the lock before the previous is opened: what it names stays. */
	lock = snap_lock(s, LOCK_SH);
	if (lock < 0)
		return snap_storage(e, -lock, "lock the objects");
	r = open_previous(s, previous, &before, e);
	w.before = before;
	if (r == 0)
		r = take_locked(s, tree, id, &w, &objects, e);
	if (r == 0)
		*ret = w.sums;
	snap_objects_fini(&objects);
	snap_walk_fini(&w);
	return r;
}

int snap_measure(int tree, struct snap_sums *ret, struct sbx_error *e)
{
	struct snap_walk w = { .ops = &counting, .count_only = true };
	int r = snap_walk(&w, tree, e);

	*ret = w.sums;
	snap_walk_fini(&w);
	return r;
}

int snap_of_tree(struct store *s, int tree, const char *previous, struct snap **ret,
		 struct sbx_error *e)
{
	struct snap_objects objects;
	struct snap_walk w = { .ops = &taking, .ctx = &objects };
	snap_auto struct snap *before = NULL;
	int r = open_previous(s, previous, &before, e);

	if (r < 0)
		return r;
	w.before = before;
	r = snap_objects_init(&objects, s, true, e);
	if (r == 0)
		r = snap_walk(&w, tree, e);
	if (r == 0)
		*ret = sbx_steal(&w.now);
	snap_walk_fini(&w);
	snap_objects_fini(&objects);
	return r;
}

void snap_drop(struct store *s, const char *id)
{
	sbx_autoclose int dir = snap_dir(s, SNAP_DIR_MANIFESTS, false);

	if (dir >= 0 && id && sbx_id_valid(id))
		(void)unlinkat(dir, id, 0);
}

/* Nobody can write to it, and all have it. */
static int empty_file(void)
{
	sbx_autoclose int fd = memfd_create("empty", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0 ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE))
		return -errno;
	return sbx_steal_fd(&fd);
}

int snap_content(struct store *s, const struct snap_entry *entry)
{
	sbx_autoclose int fd = -1;
	char hex[65], path[80];
	struct stat st;

	if (!S_ISREG(entry->mode))
		return -EINVAL;
	if (entry->size == 0)
		return empty_file();
	snap_hash_hex(entry->hash, hex);
	(void)snprintf(path, sizeof(path), "objects/%.2s/%s", hex, hex + 2);
	fd = sbx_open_beneath(store_dir_fd(s), path, O_RDONLY, 0);
	if (fd < 0)
		return fd;
	if (fstat(fd, &st) < 0)
		return -errno;
	return S_ISREG(st.st_mode) && st.st_size == entry->size ? sbx_steal_fd(&fd) : -EIO;
}
