/* SPDX-License-Identifier: Apache-2.0 */
/* Imported images as directories: how one comes in whole, is named, listed, and goes. */
#include "orchestrator/images_i.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/fs.h"
#include "base/id.h"
#include "orchestrator/image.h"
#include "orchestrator/unpack.h"

enum {
	ENTRIES_MAX = 1000000,
	RATIO_MAX = 200, /* of what is unpacked to the file; real images have 2 to 20 */
	NAME_LEN_MAX = 128,
};
#define BYTES_MAX   (64LL << 30)
#define BYTES_FLOOR (1LL << 30) /* a ratio says nothing about small files */

static const char work_prefix[] = ".import-";

/* ---- the directory of images ----------------------------------------------------------------- */

/* Under its lock. */
struct images {
	int dir, lock;
};

static void images_close(struct images *im)
{
	sbx_closep(&im->dir);
	sbx_closep(&im->lock);
}
#define AUTO_IMAGES __attribute__((cleanup(images_close))) struct images

static int broken(int err, struct sbx_error *e)
{
	return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, err, "cannot use the image directory");
}

/* "sha256:..." as the name of a directory. */
static void dir_name(const char *digest, char ret[ORCH_IMAGE_DIGEST])
{
	memcpy(ret, digest, ORCH_IMAGE_DIGEST);
	ret[6] = '-';
}

/* Where a name leads. False: it is no name of an imported image. */
static bool read_name(int dir, const char *name, char ret[ORCH_IMAGE_DIGEST])
{
	char target[ORCH_IMAGE_DIGEST];
	ssize_t n = readlinkat(dir, name, target, sizeof(target));

	if (n != ORCH_IMAGE_DIGEST - 1)
		return false;
	target[n] = '\0';
	return orch_image_digest(target, ret);
}

/* ---- names ----------------------------------------------------------------------------------- */

static int check_name(int dir, const char *name, struct sbx_error *e)
{
	char digest[ORCH_IMAGE_DIGEST];
	struct stat st;
	size_t n = 0;

	while (isalnum((unsigned char)name[n]) || (n > 0 && name[n] && strchr("._:@+-", name[n])))
		n++;
	if (n == 0 || name[n] || n > NAME_LEN_MAX || strcmp(name, "host") == 0 ||
	    strcmp(name, "host-local") == 0 || strncmp(name, "sha256", 6) == 0)
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT,
				"name of an image: found '%.200s', allowed letters, digits and "
				"._:@+- up to %d, but for host, host-local and sha256...",
				name, NAME_LEN_MAX);
	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && !read_name(dir, name, digest))
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT,
				"'%s' is a directory that was not imported; remove it first", name);
	return 0;
}

/* From one moment to the next, also for a name that was another image's. */
static int set_name(int dir, const char *name, const char *digest, struct sbx_error *e)
{
	char target[ORCH_IMAGE_DIGEST], spare[32];

	dir_name(digest, target);
	(void)snprintf(spare, sizeof(spare), "%sname", work_prefix);
	(void)unlinkat(dir, spare, 0);
	if (symlinkat(target, dir, spare) < 0 || renameat(dir, spare, dir, name) < 0 ||
	    fsync(dir) < 0)
		return broken(errno, e);
	return 0;
}

/* ---- what nobody names ----------------------------------------------------------------------- */

static bool is_named(int dir, const char *digest)
{
	int own = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = own >= 0 ? fdopendir(own) : NULL;
	const struct dirent *de;
	bool found = !d; /* fail closed: it stays */
	char other[ORCH_IMAGE_DIGEST];

	if (!d)
		sbx_closep(&own);
	while (!found && (de = readdir(d)))
		found = read_name(dir, de->d_name, other) && strcmp(other, digest) == 0;
	if (d)
		(void)closedir(d);
	return found;
}

/* The image goes unless it has a name or a run. False: a run has it. */
static bool drop_unnamed(int dir, const char *digest)
{
	char name[ORCH_IMAGE_DIGEST], spare[32];
	sbx_autoclose int fd = -1;

	if (is_named(dir, digest))
		return true;
	dir_name(digest, name);
	fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return true;
	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		return false;
	/* Out of the way at once: a run never sees half of an image. */
	(void)snprintf(spare, sizeof(spare), "%sgone", work_prefix);
	if (renameat(dir, name, dir, spare) == 0)
		(void)sbx_remove_tree(dir, spare);
	return true;
}

/* What an import has left that was killed, and images that had a run when they lost their name. */
static void sweep(int dir)
{
	int own = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = own >= 0 ? fdopendir(own) : NULL;
	const struct dirent *de;
	char digest[ORCH_IMAGE_DIGEST];

	if (!d) {
		sbx_closep(&own);
		return;
	}
	while ((de = readdir(d))) {
		if (strncmp(de->d_name, work_prefix, sizeof(work_prefix) - 1) == 0)
			(void)sbx_remove_tree(dir, de->d_name);
		else if (orch_image_digest(de->d_name, digest))
			(void)drop_unnamed(dir, digest);
	}
	(void)closedir(d);
}

static int images_open(const struct orch_settings *st, const char *state_dir, struct images *ret,
		       struct sbx_error *e)
{
	sbx_autofree char *path = orch_image_dir(st, state_dir);
	int r;

	if (!path)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	r = sbx_mkdirs(path, 0700);
	ret->dir = r < 0 ? r : open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (ret->dir < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, r < 0 ? -r : errno,
				      "cannot open the image directory '%s'", path);
	ret->lock = openat(ret->dir, ".lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (ret->lock < 0)
		return broken(errno, e);
	while (flock(ret->lock, LOCK_EX) < 0)
		if (errno != EINTR)
			return broken(errno, e);
	sweep(ret->dir);
	return 0;
}

/* ---- importing ------------------------------------------------------------------------------- */

struct import {
	const struct images *im;
	int fd;	  /* of the file; a regular one */
	int work; /* a directory of our own */
	char work_name[32];
	int root; /* in it, what becomes the image */
	struct image_budget budget;
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
		return broken(errno, e);
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
				 .max_bytes = i->budget.bytes };
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
	return rc < 0 ? rc : image_layer_apply(fd, i->root, l->diff_id, first, &i->budget, e);
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
		return broken(r < 0 ? -r : (int)-n, e);
	}
	return to;
}

/* Complete and on the disk, it gets its name. */
static int publish(struct import *i, const char *digest, struct sbx_error *e)
{
	char name[ORCH_IMAGE_DIGEST];

	dir_name(digest, name);
	if (syncfs(i->root) < 0)
		return broken(errno, e);
	/* One of this digest has the same in it, and runs may use it. */
	if (renameat(i->work, "root", i->im->dir, name) < 0 && errno != EEXIST &&
	    errno != ENOTEMPTY)
		return broken(errno, e);
	return fsync(i->im->dir) < 0 ? broken(errno, e) : 0;
}

static int import(struct import *i, int file, char digest[ORCH_IMAGE_DIGEST], struct sbx_error *e)
{
	sbx_autoclose int spooled = -1;
	struct stat st;
	bool bundle = false;
	int rc;

	(void)snprintf(i->work_name, sizeof(i->work_name), "%swork", work_prefix);
	i->work = make_dir(i->im->dir, i->work_name, e);
	i->root = i->work < 0 ? i->work : make_dir(i->work, "root", e);
	if (i->root < 0)
		return i->root;
	if (fstat(file, &st) < 0)
		return broken(errno, e);
	if (!S_ISREG(st.st_mode)) {
		spooled = spool(i, file, e);
		if (spooled < 0)
			return spooled;
		if (fstat(spooled, &st) < 0)
			return broken(errno, e);
	}
	i->fd = spooled >= 0 ? spooled : file;
	i->budget = (struct image_budget){ ENTRIES_MAX, BYTES_MAX };
	if (st.st_size < (BYTES_MAX - BYTES_FLOOR) / RATIO_MAX)
		i->budget.bytes = BYTES_FLOOR + RATIO_MAX * st.st_size;
	rc = looks_like_bundle(i->fd, &i->budget, &bundle, e);
	if (rc == 0 && bundle)
		return import_bundle(i, digest, e);
	if (rc == 0)
		rc = image_digest_of(i->fd, digest, e);
	return rc < 0 ? rc : image_layer_apply(i->fd, i->root, NULL, true, &i->budget, e);
}

int orch_image_import(const struct orch_settings *st, const char *state_dir, int fd,
		      const char *name, char digest[ORCH_IMAGE_DIGEST], struct sbx_error *e)
{
	AUTO_IMAGES im = { -1, -1 };
	AUTO_IMPORT i = { .im = &im, .work = -1, .root = -1 };
	char old[ORCH_IMAGE_DIGEST] = "";
	int rc = images_open(st, state_dir, &im, e);

	if (rc == 0)
		rc = check_name(im.dir, name, e);
	if (rc == 0)
		rc = import(&i, fd, digest, e);
	if (rc == 0)
		rc = publish(&i, digest, e);
	if (rc < 0)
		return rc;
	(void)read_name(im.dir, name, old);
	rc = set_name(im.dir, name, digest, e);
	if (rc == 0 && old[0])
		(void)drop_unnamed(im.dir, old);
	return rc;
}

/* ---- listing and removing -------------------------------------------------------------------- */

int orch_image_list(const struct orch_settings *st, const char *state_dir, struct sbx_buf *out,
		    struct sbx_error *e)
{
	sbx_autofree char *path = orch_image_dir(st, state_dir);
	sbx_autoclose int dir = path ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	char **names = NULL;
	int n = path ? orch_image_names(path, &names) : -1;

	if (!path || n < 0)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	for (int i = 0; i < n; i++) {
		char digest[ORCH_IMAGE_DIGEST] = "-";

		if (!read_name(dir, names[i], digest))
			memcpy(digest, "-", 2);
		sbx_buf_printf(out, "%s\t%s\n", names[i], digest);
	}
	orch_image_names_free(names, n);
	return 0;
}

int orch_image_remove(const struct orch_settings *st, const char *state_dir, const char *name,
		      struct sbx_error *e)
{
	AUTO_IMAGES im = { -1, -1 };
	char digest[ORCH_IMAGE_DIGEST];
	int rc = images_open(st, state_dir, &im, e);

	if (rc < 0)
		return rc;
	if (sbx_path_problem(name, strlen(name)) || strchr(name, '/') ||
	    !read_name(im.dir, name, digest))
		return sbx_fail(e, SBX_E_IMAGE_NOT_FOUND, "no imported image '%.200s'", name);
	if (unlinkat(im.dir, name, 0) < 0)
		return broken(errno, e);
	if (drop_unnamed(im.dir, digest))
		return fsync(im.dir) < 0 ? broken(errno, e) : 0;
	rc = set_name(im.dir, name, digest, e);
	return rc < 0 ? rc
		      : sbx_fail(e, SBX_E_INVALID_ARGUMENT,
				 "image '%.200s' is used by a run; try again when it has ended",
				 name);
}
