/* SPDX-License-Identifier: Apache-2.0 */
/* How an image comes in from a file: whole, or not at all. */
#include "orchestrator/images_i.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/clock.h"
#include "base/crash.h"
#include "base/fs.h"
#include "orchestrator/unpack.h"

enum {
	ENTRIES_MAX = 1000000,
	RATIO_MAX = 200, /* of what is unpacked to the file; real images have 2 to 20 */
};
#define BYTES_MAX   (64LL << 30)
#define BYTES_FLOOR (1LL << 30) /* a ratio says nothing about small files */

/* ---- importing ------------------------------------------------------------------------------- */

struct import {
	const struct images *im;
	int fd;	  /* of the file; a regular one */
	int work; /* a directory of our own */
	char work_name[32];
	int root; /* in it, what becomes the image */
	struct image_budget budget, left;
	int64_t file_bytes, layers;
};

static void import_end(struct import *i)
{
	sbx_closep(&i->root);
	sbx_closep(&i->work);
	if (i->work_name[0])
		(void)sbx_remove_tree(i->im->dir, i->work_name);
}
#define AUTO_IMPORT __attribute__((cleanup(import_end))) struct import

static int make_dir(int at, const char *name, struct sbx_error *e)
{
	int fd = -1;

	if (mkdirat(at, name, 0755) < 0 || fchmodat(at, name, 0755, 0) < 0 ||
	    (fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) < 0)
		return image_dir_broken(errno, e);
	return fd;
}

/* Is there a file that describes the others? What has the directories of a system is a root,
 * whatever else it has. */
static int looks_like_bundle(int fd, const struct image_budget *b, bool *ret, struct sbx_error *e)
{
	static const char *const of_roots[] = { "bin", "etc", "lib", "sbin", "usr", "opt", "var" };
	static const char *const of_bundles[] = { "manifest.json", "index.json" };
	const struct orch_archive_options opts = {
		.kind = ORCH_ARCHIVE_TAR,
		.limits = { .entries = b->entries, .bytes = b->bytes + BYTES_FLOOR },
		.rooted = true,
	};
	SBX_AUTO(orch_archive_closep) struct orch_archive *ar = NULL;
	struct orch_archive_entry en;
	int r = orch_archive_open(fd, &opts, &ar, e);

	*ret = false;
	if (r < 0)
		return r;
	while ((r = orch_archive_next(ar, &en, e)) == ORCH_ARCHIVE_OK) {
		size_t n = en.path ? strcspn(en.path, "/") : 0;

		for (size_t i = 0; i < SBX_COUNT(of_roots); i++)
			if (strlen(of_roots[i]) == n && strncmp(en.path, of_roots[i], n) == 0) {
				*ret = false;
				return 0;
			}
		for (size_t i = 0; i < SBX_COUNT(of_bundles); i++)
			*ret = *ret || (en.path && strcmp(en.path, of_bundles[i]) == 0);
	}
	if (r > 0)
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "the file %s",
				orch_archive_complaint(ar));
	return r;
}

static void note_broken(void *ctx, const char *name, const char *reason)
{
	bool *broken_off = ctx;

	(void)reason;
	*broken_off = *broken_off || !*name;
}

static int unpack_bundle(struct import *i, int dir, struct sbx_error *e)
{
	bool broken_off = false;
	struct orch_unpack u = { .dir = dir,
				 .uid = (uid_t)-1,
				 .gid = (gid_t)-1,
				 .symlinks = true,
				 .skipped = note_broken,
				 .ctx = &broken_off,
				 .max_bytes = i->left.bytes };
	sbx_autoclose int spare = make_dir(i->work, "spare", e);
	int rc;

	if (spare < 0)
		return spare;
	u.spare = spare;
	rc = orch_unpack(i->fd, ORCH_ARCHIVE_TAR, &u, e);
	if (rc == -SBX_E_WORKSPACE_CAP || (rc == 0 && broken_off))
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT,
				broken_off ? "the file is cut off or damaged"
					   : "the file has too much in it");
	return rc;
}

static int apply_layer(struct import *i, int dir, const struct image_bundle_layer *l, bool first,
		       struct sbx_error *e)
{
	sbx_autoclose int fd = image_bundle_open(dir, l->path, e);
	char found[ORCH_IMAGE_DIGEST];
	int rc = fd < 0 ? fd : 0;

	if (rc == 0 && l->digest[0]) {
		rc = image_digest_of(fd, found, e);
		if (rc == 0 && strcmp(found, l->digest) != 0)
			return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "a layer should be %s and is %s",
					l->digest, found);
	}
	return rc < 0 ? rc : image_layer_apply(fd, i->root, l->diff_id, first, &i->left, e);
}

static int import_bundle(struct import *i, char digest[ORCH_IMAGE_DIGEST], struct sbx_error *e)
{
	__attribute__((cleanup(image_bundle_clear))) struct image_bundle b = { .n_layers = 0 };
	sbx_autoclose int dir = make_dir(i->work, "bundle", e);
	int rc = dir < 0 ? dir : unpack_bundle(i, dir, e);

	if (rc == 0)
		rc = image_bundle_read(dir, &b, e);
	for (size_t n = 0; rc == 0 && n < b.n_layers; n++) {
		rc = apply_layer(i, dir, &b.layers[n], n == 0, e);
		if (rc < 0)
			return sbx_error_wrap(e, rc, "layer %zu of %zu", n + 1, b.n_layers);
	}
	i->layers = (int64_t)b.n_layers;
	memcpy(digest, b.digest, ORCH_IMAGE_DIGEST);
	return rc;
}

/* A pipe cannot be read twice. */
static int spool(struct import *i, int from, struct sbx_error *e)
{
	int to = openat(i->work, ".", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
	char buf[64 << 10];
	ssize_t n = -1;
	int r = to < 0 ? -errno : 0;

	while (r == 0 && (n = sbx_read_full(from, buf, sizeof(buf))) > 0)
		r = sbx_write_all(to, buf, (size_t)n);
	if (r < 0 || n < 0) {
		sbx_closep(&to);
		return image_dir_broken(r < 0 ? -r : (int)-n, e);
	}
	return to;
}

/* What is told of it, which stands beside it: its own directory is what runs see. */
static int write_info(const struct import *i, const char *digest, struct sbx_error *e)
{
	char name[ORCH_IMAGE_DIGEST], when[SBX_TIME_TEXT];
	sbx_autobuf b = SBX_BUF_INIT(4096);
	int r;

	sbx_buf_printf(&b,
		       "{\"digest\":\"%s\",\"source\":\"%s\",\"layers\":%lld,\"size_bytes\":%lld,"
		       "\"entries\":%lld,\"file_bytes\":%lld,\"imported_at\":\"%s\"}\n",
		       digest, i->layers ? "layers" : "root", (long long)i->layers,
		       (long long)(i->budget.bytes - i->left.bytes),
		       (long long)(i->budget.entries - i->left.entries), (long long)i->file_bytes,
		       sbx_time_format(sbx_now_us(), when));
	image_info_name(digest, name);
	if (faccessat(i->im->dir, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
		return 0; /* that of the same bytes, which came before */
	r = sbx_buf_failed(&b) ? -ENOMEM : sbx_replace_file(i->work, "info", b.data, b.len, 0644);
	if (r == 0 && renameat(i->work, "info", i->im->dir, name) < 0)
		r = -errno;
	return r < 0 ? image_dir_broken(-r, e) : 0;
}

/* Complete and on the disk, it gets its name. */
static int publish(struct import *i, const char *digest, struct sbx_error *e)
{
	char name[ORCH_IMAGE_DIGEST];

	image_dir_name(digest, name);
	if (syncfs(i->root) < 0)
		return image_dir_broken(errno, e);
	/* One of this digest has the same in it, and runs may use it. */
	if (renameat(i->work, "root", i->im->dir, name) < 0 && errno != EEXIST &&
	    errno != ENOTEMPTY)
		return image_dir_broken(errno, e);
	return fsync(i->im->dir) < 0 ? image_dir_broken(errno, e) : 0;
}

static int import(struct import *i, int file, char digest[ORCH_IMAGE_DIGEST], struct sbx_error *e)
{
	sbx_autoclose int spooled = -1;
	struct stat st;
	bool bundle = false;
	int rc;

	(void)snprintf(i->work_name, sizeof(i->work_name), IMAGE_WORK "work");
	i->work = make_dir(i->im->dir, i->work_name, e);
	i->root = i->work < 0 ? i->work : make_dir(i->work, "root", e);
	if (i->root < 0)
		return i->root;
	if (fstat(file, &st) < 0)
		return image_dir_broken(errno, e);
	if (!S_ISREG(st.st_mode)) {
		spooled = spool(i, file, e);
		if (spooled < 0)
			return spooled;
		if (fstat(spooled, &st) < 0)
			return image_dir_broken(errno, e);
	}
	i->fd = spooled >= 0 ? spooled : file;
	i->budget = (struct image_budget){ ENTRIES_MAX, BYTES_MAX };
	if (st.st_size < (BYTES_MAX - BYTES_FLOOR) / RATIO_MAX)
		i->budget.bytes = BYTES_FLOOR + RATIO_MAX * st.st_size;
	i->left = i->budget;
	i->file_bytes = st.st_size;
	rc = looks_like_bundle(i->fd, &i->left, &bundle, e);
	if (rc == 0 && bundle)
		return import_bundle(i, digest, e);
	if (rc == 0)
		rc = image_digest_of(i->fd, digest, e);
	if (rc == 0)
		rc = image_layer_apply(i->fd, i->root, NULL, true, &i->left, e);
	if (rc == 0 && i->left.entries == i->budget.entries)
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "the file has nothing in it");
	return rc;
}

int orch_image_import(const struct orch_settings *st, const char *state_dir, int fd,
		      const char *name, char digest[ORCH_IMAGE_DIGEST], struct sbx_error *e)
{
	AUTO_IMAGES im = { -1, -1 };
	AUTO_IMPORT i = { .im = &im, .work = -1, .root = -1 };
	char old[ORCH_IMAGE_DIGEST] = "";
	int rc = images_open(st, state_dir, true, &im, e);

	if (rc == 0)
		rc = image_name_free(im.dir, name, e);
	if (rc == 0)
		rc = import(&i, fd, digest, e);
	crash_point("image_unpacked");
	if (rc == 0)
		rc = write_info(&i, digest, e);
	crash_point("image_described");
	if (rc == 0)
		rc = publish(&i, digest, e);
	crash_point("image_published");
	if (rc < 0)
		return rc;
	(void)image_name_read(im.dir, name, old);
	rc = image_name_set(im.dir, name, digest, e);
	crash_point("image_named");
	if (rc == 0 && old[0])
		(void)image_drop_unnamed(im.dir, old);
	return rc;
}
