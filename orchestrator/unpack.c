/* SPDX-License-Identifier: Apache-2.0 */
/* An archive into a staging directory: whole files appear there, nothing else does. */
#include "orchestrator/unpack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { ENTRIES_MAX = 100000 };

static const char spare_name[] = "entry";

/* One level further; a directory that is new gets its mode and owner. */
static int enter(int at, const char *name, mode_t mode, const struct orch_owner *owner)
{
	bool made = mkdirat(at, name, 0700) == 0;
	int fd;

	if (!made && errno != EEXIST)
		return -errno;
	fd = sbx_open_beneath(at, name, made ? O_RDONLY | O_DIRECTORY : O_PATH | O_DIRECTORY, 0);
	if (fd >= 0 && made &&
	    (fchmod(fd, mode) < 0 ||
	     (owner->uid != (uid_t)-1 && fchown(fd, owner->uid, owner->gid) < 0))) {
		int err = errno;

		sbx_closep(&fd);
		return -err;
	}
	return fd;
}

int orch_unpack_parent(int dir, const char *path, mode_t mode, const struct orch_owner *owner,
		       const char **ret_name)
{
	sbx_autoclose int at = sbx_open_beneath(dir, ".", O_PATH | O_DIRECTORY, 0);
	const char *slash;

	if (at < 0)
		return at;
	while ((slash = strchr(path, '/'))) {
		char name[SBX_NAME_MAX + 1];
		size_t n = (size_t)(slash - path);
		int next;

		if (n > SBX_NAME_MAX)
			return -ENAMETOOLONG;
		memcpy(name, path, n);
		name[n] = '\0';
		next = enter(at, name, mode, owner);
		if (next < 0)
			return next;
		sbx_closep(&at);
		at = next;
		path = slash + 1;
	}
	*ret_name = path;
	return sbx_steal_fd(&at);
}

/* ---- entries --------------------------------------------------------------------------------- */

static void skip(const struct orch_unpack *u, const char *name, const char *reason)
{
	if (u->skipped)
		u->skipped(u->ctx, name, reason);
}

static int over(const struct orch_archive *a, struct sbx_error *e)
{
	return sbx_fail(e, SBX_E_WORKSPACE_CAP, "an archive %s", orch_archive_complaint(a));
}

/* Errors that are this entry's alone: something else has its name, or the name of its directory. */
static const char *in_the_way(int err)
{
	switch (err) {
	case EISDIR:
	case ENOTEMPTY:
	case EEXIST:
		return "is a directory already";
	case ENOTDIR:
	case ELOOP:
		return "is below something that is no directory";
	default:
		return NULL;
	}
}

static int settle(const struct orch_unpack *u, const char *name, int err, struct sbx_error *e)
{
	const char *why = in_the_way(err);

	if (!why)
		return sbx_fail_errno(e, SBX_E_INTERNAL, err, "cannot unpack an archive");
	skip(u, name, why);
	return 0;
}

/* The size of what has the name, 0 for nothing. A directory is a negative errno. */
static int64_t old_size(int at, const char *name, bool *ret_file)
{
	struct stat st;

	*ret_file = false;
	if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (S_ISDIR(st.st_mode))
		return -EISDIR;
	*ret_file = S_ISREG(st.st_mode);
	return *ret_file ? st.st_size : 0;
}

static int put_dir(struct orch_unpack *u, const struct orch_archive_entry *en, struct sbx_error *e)
{
	const struct orch_owner owner = { u->uid, u->gid };
	const char *name;
	sbx_autoclose int at = -1, fd = -1;

	if (!en->path[0])
		return 0;
	at = orch_unpack_parent(u->dir, en->path, 0755, &owner, &name);
	if (at >= 0)
		fd = enter(at, name, en->mode | 0700, &owner);
	return fd < 0 ? settle(u, en->name, at < 0 ? -at : -fd, e) : 0;
}

/* What is in the spare directory takes its name. */
static int take_name(struct orch_unpack *u, const struct orch_archive_entry *en, int64_t bytes,
		     bool file, struct sbx_error *e)
{
	const struct orch_owner owner = { u->uid, u->gid };
	const char *name;
	sbx_autoclose int at = orch_unpack_parent(u->dir, en->path, 0755, &owner, &name);
	bool replaces = false;
	int64_t old = at < 0 ? at : old_size(at, name, &replaces);

	if (old < 0)
		return settle(u, en->name, (int)-old, e);
	if (renameat(u->spare, spare_name, at, name) < 0)
		return settle(u, en->name, errno, e);
	u->bytes += bytes - old;
	u->files += file - replaces;
	return 0;
}

static int fill_file(struct orch_unpack *u, struct orch_archive *a,
		     const struct orch_archive_entry *en, int64_t *ret_bytes, struct sbx_error *e)
{
	sbx_autoclose int fd =
		openat(u->spare, spare_name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	int r;

	if (fd < 0)
		return sbx_fail_errno(e, SBX_E_INTERNAL, errno, "cannot unpack an archive");
	r = orch_archive_data(a, fd, u->max_bytes - u->bytes, ret_bytes, e);
	if (r == ORCH_ARCHIVE_OK && (fchmod(fd, en->mode | 0600) < 0 ||
				     (u->uid != (uid_t)-1 && fchown(fd, u->uid, u->gid) < 0)))
		return sbx_fail_errno(e, SBX_E_INTERNAL, errno, "cannot unpack an archive");
	return r;
}

/* OK, END (the archive broke off), or an error. */
static int put_file(struct orch_unpack *u, struct orch_archive *a,
		    const struct orch_archive_entry *en, struct sbx_error *e)
{
	int64_t bytes = 0;
	int r = fill_file(u, a, en, &bytes, e);

	if (r == ORCH_ARCHIVE_OK)
		r = take_name(u, en, bytes, true, e) < 0 ? -(int)e->code : ORCH_ARCHIVE_OK;
	else if (r == ORCH_ARCHIVE_OVER)
		r = over(a, e);
	else if (r == ORCH_ARCHIVE_SPOILT || r == ORCH_ARCHIVE_BROKEN)
		skip(u, en->name, orch_archive_complaint(a));
	(void)unlinkat(u->spare, spare_name, 0);
	return r;
}

static int put_symlink(struct orch_unpack *u, const struct orch_archive_entry *en,
		       struct sbx_error *e)
{
	int r;

	if (!en->link || symlinkat(en->link, u->spare, spare_name) < 0) {
		skip(u, en->name, "is a link that cannot be made");
		return 0;
	}
	r = take_name(u, en, 0, false, e);
	(void)unlinkat(u->spare, spare_name, 0);
	return r;
}

static int put(struct orch_unpack *u, struct orch_archive *a, const struct orch_archive_entry *en,
	       struct sbx_error *e)
{
	int rc = 0;

	if (en->problem) {
		skip(u, en->name, en->problem);
		return ORCH_ARCHIVE_OK;
	}
	switch (en->type) {
	case ORCH_ARCHIVE_FILE:
		return put_file(u, a, en, e);
	case ORCH_ARCHIVE_DIR:
		rc = put_dir(u, en, e);
		break;
	case ORCH_ARCHIVE_SYMLINK:
		if (u->symlinks)
			rc = put_symlink(u, en, e);
		else
			skip(u, en->name, "is a symbolic link");
		break;
	case ORCH_ARCHIVE_HARDLINK:
		skip(u, en->name, "is a hard link");
		break;
	case ORCH_ARCHIVE_OTHER:
		skip(u, en->name, "is a device, a pipe or a socket");
		break;
	}
	return rc < 0 ? rc : ORCH_ARCHIVE_OK;
}

int orch_unpack(int fd, enum orch_archive_kind kind, struct orch_unpack *u, struct sbx_error *e)
{
	/* What may be unpacked without being kept: names twice, and what is skipped. */
	const struct orch_archive_options opts = {
		.kind = kind,
		.limits = { .entries = ENTRIES_MAX, .bytes = 2 * u->max_bytes + (64 << 20) },
	};
	SBX_AUTO(orch_archive_closep) struct orch_archive *a = NULL;
	sbx_autoerror own = SBX_ERROR_INIT;
	struct orch_archive_entry en;
	int r;

	u->bytes = u->files = 0;
	e = e ? e : &own;
	r = orch_archive_open(fd, &opts, &a, e);
	if (r < 0)
		return r;
	for (;;) {
		r = orch_archive_next(a, &en, e);
		if (r == ORCH_ARCHIVE_OK)
			r = put(u, a, &en, e);
		else if (r == ORCH_ARCHIVE_SPOILT)
			skip(u, "", orch_archive_complaint(a));
		if (r < 0 || r == ORCH_ARCHIVE_END)
			return r;
		if (r == ORCH_ARCHIVE_OVER)
			return over(a, e);
		if (r == ORCH_ARCHIVE_BROKEN) {
			skip(u, "", "corrupt archive");
			return 0;
		}
	}
}
