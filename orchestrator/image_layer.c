/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layers of an image, one over the other. Links of lower layers are followed on the way to an
 * entry, as a container engine does it, and the kernel keeps the way inside the root
 * (RESOLVE_IN_ROOT). What has the entry's own name is never followed but replaced.
 */
#include "orchestrator/images_i.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/fs.h"
#include "orchestrator/unpack.h"

static const char whiteout[] = ".wh.", opaque[] = ".wh..wh..opq";

struct layer {
	int root; /* borrowed */
	struct orch_archive *ar;
	struct image_budget *budget;
	bool hides; /* the pass in which whiteouts are applied; else what is brought */
};

static int broken(int err, const char *path, struct sbx_error *e)
{
	return sbx_fail_errno(e, SBX_E_INVALID_ARGUMENT, err, "cannot unpack '%.200s'", path);
}

/* ---- inside the root ------------------------------------------------------------------------- */

static int open_inside(int root, const char *path)
{
	struct open_how how = {
		.flags = (uint64_t)(unsigned)(O_PATH | O_DIRECTORY | O_CLOEXEC),
		.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV,
	};
	long fd;

	do {
		fd = syscall(SYS_openat2, root, *path ? path : ".", &how, sizeof(how));
	} while (fd < 0 && (errno == EINTR || errno == EAGAIN));
	return fd < 0 ? -errno : (int)fd;
}

static int make_dir(int at, const char *name)
{
	if (mkdirat(at, name, 0755) < 0)
		return -errno;
	return fchmodat(at, name, 0755, 0) < 0 ? -errno : 0; /* whatever the umask */
}

/* The directory with the first n bytes of path as its name; make: it is made when it is missing. */
static int open_prefix(int root, const char *path, size_t n, bool make)
{
	char prefix[SBX_PATH_MAX + 1], *slash;
	sbx_autoclose int up = -1;
	int fd, r;

	memcpy(prefix, path, n);
	prefix[n] = '\0';
	fd = open_inside(root, prefix);
	if (fd != -ENOENT || !make)
		return fd;
	slash = strrchr(prefix, '/');
	up = open_prefix(root, path, slash ? (size_t)(slash - prefix) : 0, true);
	if (up < 0)
		return sbx_steal_fd(&up);
	r = make_dir(up, slash ? slash + 1 : prefix); /* EEXIST: a link to nowhere */
	return r < 0 ? r : open_inside(root, prefix);
}

/* The directory that holds the path; *ret_name is the last part of it. */
static int open_parent(int root, const char *path, bool make, const char **ret_name)
{
	const char *slash = strrchr(path, '/');

	*ret_name = slash ? slash + 1 : path;
	return open_prefix(root, path, slash ? (size_t)(slash - path) : 0, make);
}

/* ---- whiteouts ------------------------------------------------------------------------------- */

static int clear_dir(int at)
{
	int own = openat(at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = own >= 0 ? fdopendir(own) : NULL;
	const struct dirent *de;
	int r = 0;

	if (!d) {
		r = -errno;
		sbx_closep(&own);
		return r;
	}
	while (r == 0 && (de = readdir(d)))
		if (strcmp(de->d_name, ".") != 0 && strcmp(de->d_name, "..") != 0)
			r = sbx_remove_tree(at, de->d_name);
	(void)closedir(d);
	return r;
}

static int hide(const struct layer *l, const struct orch_archive_entry *en, struct sbx_error *e)
{
	const char *name;
	sbx_autoclose int at = open_parent(l->root, en->path, false, &name);
	int r;

	if (at == -ENOENT || at == -ENOTDIR)
		return 0; /* there is nothing to hide */
	if (at < 0)
		return broken(-at, en->path, e);
	if (strcmp(name, opaque) == 0) {
		r = clear_dir(at);
		return r < 0 ? broken(-r, en->path, e) : 0;
	}
	name += sizeof(whiteout) - 1;
	if (strncmp(name, whiteout, sizeof(whiteout) - 1) == 0)
		return 0; /* bookkeeping of aufs */
	if (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "'%.200s' hides no name", en->path);
	r = sbx_remove_tree(at, name);
	return r < 0 ? broken(-r, en->path, e) : 0;
}

static bool is_whiteout(const char *path)
{
	const char *slash = strrchr(path, '/');

	return strncmp(slash ? slash + 1 : path, whiteout, sizeof(whiteout) - 1) == 0;
}

/* ---- what a layer brings --------------------------------------------------------------------- */

static int put_dir(int at, const char *name)
{
	struct stat st;

	if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
		if (S_ISDIR(st.st_mode))
			return 0;
		if (unlinkat(at, name, 0) < 0)
			return -errno;
	}
	return make_dir(at, name);
}

/* A step of the archive as an error; 0 for OK. */
static int step_error(const struct layer *l, int step, const char *path, struct sbx_error *e)
{
	if (step < 0 || step == ORCH_ARCHIVE_OK || step == ORCH_ARCHIVE_END)
		return step < 0 ? step : 0;
	return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "the archive %s%s%.200s%s",
			orch_archive_complaint(l->ar), *path ? " (at '" : "", path,
			*path ? "')" : "");
}

static int put_file(struct layer *l, int at, const char *name, const struct orch_archive_entry *en,
		    struct sbx_error *e)
{
	const struct timespec times[2] = { { .tv_nsec = UTIME_NOW }, en->mtime };
	sbx_autoclose int fd = -1;
	int64_t bytes = 0;
	int rc;

	rc = sbx_remove_tree(at, name);
	if (rc < 0)
		return broken(-rc, en->path, e);
	fd = openat(at, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return broken(errno, en->path, e);
	rc = orch_archive_data(l->ar, fd, l->budget->bytes, &bytes, e);
	if (rc != ORCH_ARCHIVE_OK)
		return step_error(l, rc, en->path, e);
	l->budget->bytes -= bytes;
	/* The user of a sandbox is nobody that the image knows, so that everybody must be able to
	 * read it all; nobody can write. */
	if (fchmod(fd, en->mode & 0111 ? 0755 : 0644) < 0)
		return broken(errno, en->path, e);
	(void)futimens(fd, times); /* a time before all times is none of our business */
	return 0;
}

static int put_symlink(int at, const char *name, const struct orch_archive_entry *en)
{
	const struct timespec times[2] = { { .tv_nsec = UTIME_NOW }, en->mtime };
	int r = sbx_remove_tree(at, name);

	if (r < 0)
		return r;
	if (!en->link || symlinkat(en->link, at, name) < 0)
		return en->link ? -errno : -EINVAL;
	(void)utimensat(at, name, times, AT_SYMLINK_NOFOLLOW);
	return 0;
}

static int put_hardlink(const struct layer *l, int at, const char *name,
			const struct orch_archive_entry *en, struct sbx_error *e)
{
	char path[SBX_PATH_MAX + 1];
	const char *why = en->link ? orch_archive_path(en->link, true, path) : "is missing";
	const char *other = NULL;
	sbx_autoclose int from = -1;
	struct stat st, old;
	int r;

	if (why || !*path)
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "the target of hard link '%.200s' %s",
				en->path, why ? why : "is empty");
	from = open_parent(l->root, path, false, &other);
	if (from < 0 || fstatat(from, other, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT,
				"the target of hard link '%.200s' is not there", en->path);
	if (S_ISDIR(st.st_mode))
		return broken(EISDIR, en->path, e);
	if (fstatat(at, name, &old, AT_SYMLINK_NOFOLLOW) == 0 && old.st_ino == st.st_ino)
		return 0;
	r = sbx_remove_tree(at, name);
	if (r == 0 && linkat(from, other, at, name, 0) < 0)
		r = -errno;
	return r < 0 ? broken(-r, en->path, e) : 0;
}

static int bring(struct layer *l, const struct orch_archive_entry *en, struct sbx_error *e)
{
	const char *name;
	sbx_autoclose int at = -1;
	int r = 0;

	if (en->type == ORCH_ARCHIVE_OTHER)
		return 0;
	at = open_parent(l->root, en->path, true, &name);
	if (at < 0)
		return broken(-at, en->path, e);
	if (en->type == ORCH_ARCHIVE_FILE)
		return put_file(l, at, name, en, e);
	if (en->type == ORCH_ARCHIVE_HARDLINK)
		return put_hardlink(l, at, name, en, e);
	r = en->type == ORCH_ARCHIVE_DIR ? put_dir(at, name) : put_symlink(at, name, en);
	return r < 0 ? broken(-r, en->path, e) : 0;
}

/* ---- a layer --------------------------------------------------------------------------------- */

static int walk(struct layer *l, struct sbx_error *e)
{
	struct orch_archive_entry en;
	int r, rc = 0;

	while (rc == 0 && (r = orch_archive_next(l->ar, &en, e)) != ORCH_ARCHIVE_END) {
		if (r != ORCH_ARCHIVE_OK)
			return step_error(l, r, "", e);
		if (en.problem)
			return sbx_fail(e, SBX_E_INVALID_ARGUMENT,
					"a name in the archive %s: "
					"'%.200s'",
					en.problem, en.name);
		if (!*en.path)
			continue; /* the root itself */
		if (!l->hides)
			l->budget->entries--;
		if (is_whiteout(en.path))
			rc = l->hides ? hide(l, &en, e) : 0;
		else if (!l->hides)
			rc = bring(l, &en, e);
	}
	return rc;
}

static int pass(int fd, int root, bool hides, const char *diff_id, struct image_budget *budget,
		struct sbx_error *e)
{
	/* What passes by is more than what is kept: headers, padding, files of one name. */
	const struct orch_archive_options opts = {
		.kind = ORCH_ARCHIVE_TAR,
		.limits = { .entries = budget->entries, .bytes = budget->bytes + (1LL << 30) },
		.rooted = true,
		.digest = true,
	};
	SBX_AUTO(orch_archive_closep) struct orch_archive *ar = NULL;
	struct layer l = { .root = root, .budget = budget, .hides = hides };
	char found[ORCH_IMAGE_DIGEST] = "sha256:";
	int rc = orch_archive_open(fd, &opts, &ar, e);

	l.ar = ar;
	if (rc == 0)
		rc = walk(&l, e);
	if (rc < 0 || hides || !diff_id)
		return rc;
	rc = step_error(&l, orch_archive_digest(ar, found + 7, e), "", e);
	if (rc < 0)
		return rc;
	return strcmp(found, diff_id) == 0
		       ? 0
		       : sbx_fail(e, SBX_E_INVALID_ARGUMENT, "a layer should be %s and is %s",
				  diff_id, found);
}

int image_layer_apply(int fd, int root, const char *diff_id, bool first,
		      struct image_budget *budget, struct sbx_error *e)
{
	/* What a layer hides is what is below it, never what itself brings, in whatever order. */
	int rc = first ? 0 : pass(fd, root, true, NULL, budget, e);

	return rc < 0 ? rc : pass(fd, root, false, diff_id, budget, e);
}
