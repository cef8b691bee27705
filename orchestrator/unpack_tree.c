/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tar that is to become a snapshot: what comes out is what went in, or nothing. No link is ever
 * followed. Directories get their modes and times last, since one of them may forbid to write into
 * it, and what is made in it changes the other.
 */
#include "orchestrator/unpack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/crash.h"

enum { PATHS_MAX = 256 << 20 }; /* bytes of the names of all directories */

struct late_dir {
	char *path; /* owned */
	size_t len, order;
	mode_t mode;
	struct timespec mtime;
};
struct tree {
	int dir;
	struct orch_archive *a;
	int64_t left;	       /* bytes */
	struct late_dir *dirs; /* owned */
	size_t n, size, paths;
};

static const struct orch_owner as_it_is = { (uid_t)-1, (gid_t)-1 };

static void tree_clear(struct tree *t)
{
	for (size_t i = 0; i < t->n; i++)
		free(t->dirs[i].path);
	free(t->dirs);
}

static int refuse(const struct orch_archive_entry *en, const char *why, struct sbx_error *e)
{
	return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "'%.200s' %s", en->name, why);
}

static int failed(const struct orch_archive_entry *en, int err, struct sbx_error *e)
{
	switch (err) {
	case ELOOP:
	case ENOTDIR:
		return refuse(en, "is below something that is no directory", e);
	case EISDIR:
	case ENOTEMPTY:
	case EEXIST:
		return refuse(en, "is a directory already", e);
	case ENAMETOOLONG:
		return refuse(en, "has a name that is too long", e);
	case ENOSPC:
	case EDQUOT:
		return sbx_fail_errno(e, SBX_E_STORAGE_FULL, err, "cannot unpack '%.200s'",
				      en->name);
	default:
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, err, "cannot unpack '%.200s'",
				      en->name);
	}
}

/* A step of the archive as an error. */
static int broken(const struct tree *t, int step, struct sbx_error *e)
{
	if (step < 0)
		return step;
	return sbx_fail(e, step == ORCH_ARCHIVE_OVER ? SBX_E_WORKSPACE_CAP : SBX_E_INVALID_ARGUMENT,
			"the archive %s", orch_archive_complaint(t->a));
}

/* ---- entries --------------------------------------------------------------------------------- */

static int set_xattrs(struct tree *t, int fd)
{
	const char *name;
	const void *value;
	size_t len;

	while (orch_archive_xattr(t->a, &name, &value, &len))
		if (strncmp(name, "user.", 5) == 0 && fsetxattr(fd, name, value, len, 0) < 0 &&
		    errno != EOPNOTSUPP)
			return -errno;
	return 0;
}

static struct late_dir *late(struct tree *t, size_t len)
{
	if (t->n == t->size) {
		size_t size = t->size ? 2 * t->size : 64;
		struct late_dir *more = realloc(t->dirs, size * sizeof(*more));

		if (!more)
			return NULL;
		t->dirs = more;
		t->size = size;
	}
	t->paths += len + 1;
	return t->paths <= PATHS_MAX ? &t->dirs[t->n] : NULL;
}

static int put_dir(struct tree *t, const struct orch_archive_entry *en, struct sbx_error *e)
{
	char path[SBX_PATH_MAX + 3];
	sbx_autoclose int fd = -1;
	const char *last;
	struct late_dir *d;
	size_t len = strlen(en->path);
	int r;

	if (!len)
		return 0; /* the root is not the archive's */
	memcpy(path, en->path, len);
	memcpy(path + len, "/.", 3);
	fd = orch_unpack_parent(t->dir, path, 0755, &as_it_is, &last);
	if (fd < 0)
		return failed(en, -fd, e);
	sbx_closep(&fd);
	fd = sbx_open_beneath(t->dir, en->path, O_RDONLY | O_DIRECTORY, 0);
	r = fd < 0 ? fd : set_xattrs(t, fd);
	if (r < 0)
		return failed(en, -r, e);
	d = late(t, len);
	if (!d || !(d->path = strdup(en->path)))
		return sbx_fail(e, SBX_E_NO_MEMORY, "the archive has too many directories");
	d->len = len;
	d->order = t->n++;
	d->mode = en->mode | (en->sticky ? S_ISVTX : 0);
	d->mtime = en->mtime;
	return 0;
}

/* What has the name gives way; a directory does not. */
static int make_way(int at, const char *name)
{
	struct stat st;

	if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (S_ISDIR(st.st_mode))
		return -EISDIR;
	return unlinkat(at, name, 0) < 0 ? -errno : 0;
}

static int put_file(struct tree *t, int at, const char *name, const struct orch_archive_entry *en,
		    struct sbx_error *e)
{
	const struct timespec times[2] = { { .tv_nsec = UTIME_NOW }, en->mtime };
	sbx_autoclose int fd =
		openat(at, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	int64_t bytes = 0;
	int r;

	if (fd < 0)
		return failed(en, errno, e);
	r = orch_archive_data(t->a, fd, t->left, &bytes, e);
	if (r != ORCH_ARCHIVE_OK)
		return broken(t, r, e);
	t->left -= bytes;
	r = set_xattrs(t, fd);
	if (r == 0 &&
	    (fchmod(fd, en->mode | (en->sticky ? S_ISVTX : 0)) < 0 || futimens(fd, times) < 0))
		r = -errno;
	return r < 0 ? failed(en, -r, e) : 0;
}

static int put_symlink(int at, const char *name, const struct orch_archive_entry *en,
		       struct sbx_error *e)
{
	const struct timespec times[2] = { { .tv_nsec = UTIME_NOW }, en->mtime };

	if (!en->link || !*en->link)
		return refuse(en, "is a link to nothing", e);
	if (symlinkat(en->link, at, name) < 0 ||
	    utimensat(at, name, times, AT_SYMLINK_NOFOLLOW) < 0)
		return failed(en, errno, e);
	return 0;
}

/* Another name of a file that came before. */
static int put_hardlink(struct tree *t, int at, const char *name,
			const struct orch_archive_entry *en, struct sbx_error *e)
{
	char path[SBX_PATH_MAX + 1];
	const char *why = en->link ? orch_archive_path(en->link, false, path) : "is missing";
	sbx_autofree char *parent = NULL;
	sbx_autoclose int from = -1;
	const char *slash;
	struct stat st;

	if (why || !*path)
		return refuse(en, "is a hard link to a name that is not allowed", e);
	slash = strrchr(path, '/');
	parent = slash ? strndup(path, (size_t)(slash - path)) : strdup(".");
	from = parent ? sbx_open_beneath(t->dir, parent, O_PATH | O_DIRECTORY, 0) : -ENOMEM;
	slash = slash ? slash + 1 : path;
	if (from < 0 || fstatat(from, slash, &st, AT_SYMLINK_NOFOLLOW) < 0 || S_ISDIR(st.st_mode))
		return refuse(en, "is a hard link to what is not there", e);
	return linkat(from, slash, at, name, 0) < 0 ? failed(en, errno, e) : 0;
}

/* A hard link to itself would remove what it names. */
static bool is_same(const struct orch_archive_entry *en)
{
	char path[SBX_PATH_MAX + 1];

	return en->type == ORCH_ARCHIVE_HARDLINK && en->link &&
	       !orch_archive_path(en->link, false, path) && strcmp(path, en->path) == 0;
}

static int put(struct tree *t, const struct orch_archive_entry *en, struct sbx_error *e)
{
	sbx_autoclose int at = -1;
	const char *name;
	int r;

	if (en->problem)
		return refuse(en, en->problem, e);
	if (en->type == ORCH_ARCHIVE_OTHER)
		return 0;
	if (en->type == ORCH_ARCHIVE_DIR)
		return put_dir(t, en, e);
	if (is_same(en))
		return refuse(en, "is a hard link to itself", e);
	at = orch_unpack_parent(t->dir, en->path, 0755, &as_it_is, &name);
	r = at < 0 ? at : make_way(at, name);
	if (r < 0)
		return failed(en, -r, e);
	if (en->type == ORCH_ARCHIVE_FILE)
		return put_file(t, at, name, en, e);
	return en->type == ORCH_ARCHIVE_SYMLINK ? put_symlink(at, name, en, e)
						: put_hardlink(t, at, name, en, e);
}

/* ---- directories, at the end ----------------------------------------------------------------- */

/* What is below comes before what is above, and of one name the last counts. */
static int deepest_first(const void *a, const void *b)
{
	const struct late_dir *x = a, *y = b;

	if (x->len != y->len)
		return x->len > y->len ? -1 : 1;
	return x->order < y->order ? -1 : x->order > y->order;
}

static int finish(struct tree *t, struct sbx_error *e)
{
	if (t->n)
		qsort(t->dirs, t->n, sizeof(*t->dirs), deepest_first);
	for (size_t i = 0; i < t->n; i++) {
		const struct late_dir *d = &t->dirs[i];
		const struct timespec times[2] = { { .tv_nsec = UTIME_NOW }, d->mtime };
		sbx_autoclose int fd = sbx_open_beneath(t->dir, d->path, O_RDONLY | O_DIRECTORY, 0);

		if (fd < 0 || fchmod(fd, d->mode) < 0 || futimens(fd, times) < 0)
			return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, fd < 0 ? -fd : errno,
					      "cannot finish '%.200s'", d->path);
	}
	return 0;
}

int orch_unpack_tree(int fd, int dir, const struct orch_archive_limits *limits, struct sbx_error *e)
{
	const struct orch_archive_options opts = {
		.kind = ORCH_ARCHIVE_TAR,
		/* What passes by is more than what is kept: files of one name, devices. */
		.limits = { .entries = limits->entries, .bytes = 2 * limits->bytes + (64 << 20) },
	};
	SBX_AUTO(orch_archive_closep) struct orch_archive *a = NULL;
	__attribute__((cleanup(tree_clear))) struct tree t = { .dir = dir, .left = limits->bytes };
	struct orch_archive_entry en;
	sbx_autoerror own = SBX_ERROR_INIT;
	int r;

	e = e ? e : &own;
	r = orch_archive_open(fd, &opts, &a, e);
	t.a = a;
	while (r == 0) {
		r = orch_archive_next(a, &en, e);
		if (r == ORCH_ARCHIVE_END) {
			crash_point("tree_unpacked");
			return finish(&t, e);
		}
		r = r == ORCH_ARCHIVE_OK ? put(&t, &en, e) : broken(&t, r, e);
	}
	return r;
}
