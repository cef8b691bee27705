/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory of each session below <dir>/sessions: `workspace`, and what is made beside it for a
 * while. The lock lies next to the directory and not in it, so that who destroys the session can
 * hold it until nothing is left.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/id.h"
#include "store/sessions.h"
#include "store/store_i.h"

enum { LOCK_LOOK_MS = 10 };

static int bad_id(struct sbx_error *e)
{
	return sbx_fail(e, SBX_E_SESSION_NOT_FOUND, "no such session");
}

/* A folder of the state directory that only sessions need. */
static int open_folder(struct store *s, const char *name, bool create)
{
	if (create && mkdirat(s->dir_fd, name, 0700) < 0 && errno != EEXIST)
		return -errno;
	return sbx_open_beneath(s->dir_fd, name, O_RDONLY | O_DIRECTORY, 0);
}

int store_session_dir(struct store *s, const char *id, bool create, struct sbx_error *e)
{
	sbx_autoclose int all = -1;
	int fd;

	if (!sbx_id_valid(id))
		return bad_id(e);
	all = open_folder(s, "sessions", create);
	if (all == -ENOENT)
		return bad_id(e);
	if (all >= 0 && create && mkdirat(all, id, 0700) < 0 && errno != EEXIST)
		return sbx_fail_errno(
			e, errno == ENOSPC ? SBX_E_STORAGE_FULL : SBX_E_STORE_UNAVAILABLE, errno,
			"cannot make the directory of session '%s'", id);
	fd = all < 0 ? all : sbx_open_beneath(all, id, O_RDONLY | O_DIRECTORY, 0);
	if (fd == -ENOENT)
		return sbx_fail(e, SBX_E_SESSION_NOT_FOUND, "session '%s' has no directory", id);
	if (fd < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, -fd,
				      "cannot open the directory of session '%s'", id);
	if (create && mkdirat(fd, "workspace", 0700) < 0 && errno != EEXIST) {
		int err = errno;

		sbx_closep(&fd);
		return sbx_fail_errno(e,
				      err == ENOSPC ? SBX_E_STORAGE_FULL : SBX_E_STORE_UNAVAILABLE,
				      err, "cannot make the workspace of session '%s'", id);
	}
	return fd;
}

int store_session_workspace(int dir)
{
	if (faccessat(dir, "workspace", R_OK | X_OK, AT_EACCESS) < 0 && errno == EACCES &&
	    fchmodat(dir, "workspace", 0700, 0) < 0)
		return -errno;
	return sbx_open_beneath(dir, "workspace", O_RDONLY | O_DIRECTORY, 0);
}

int store_session_dir_remove(struct store *s, const char *id, struct sbx_error *e)
{
	sbx_autoclose int all = -1, trash = -1;
	char name[64], lock[64];
	uint32_t random;

	if (!sbx_id_valid(id))
		return bad_id(e);
	all = open_folder(s, "sessions", false);
	if (all == -ENOENT)
		return 0;
	trash = open_folder(s, "trash", true);
	if (all < 0 || trash < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, all < 0 ? -all : -trash,
				      "cannot open the folders of sessions");
	sbx_random(&random, sizeof(random));
	(void)snprintf(name, sizeof(name), "%s-%08x", id, random);
	(void)snprintf(lock, sizeof(lock), "%s.lock", id);
	if (renameat(all, id, trash, name) < 0 && errno != ENOENT)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno,
				      "cannot take session '%s' away", id);
	(void)unlinkat(all, lock, 0);
	return 0;
}

static void close_dir(DIR **d)
{
	if (*d)
		(void)closedir(*d);
}

/* Calls each() with every name in a folder; false ends the walk. A folder that is not there is
 * empty. */
static int walk(struct store *s, const char *folder,
		bool (*each)(void *ctx, int dir, const char *name), void *ctx, struct sbx_error *e)
{
	SBX_AUTO(close_dir) DIR *dir = NULL;
	int fd = open_folder(s, folder, false);
	struct dirent *d;

	if (fd == -ENOENT)
		return 0;
	if (fd >= 0)
		dir = fdopendir(fd);
	if (!dir)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, fd < 0 ? -fd : errno,
				      "cannot list the folder '%s'", folder);
	while (errno = 0, (d = readdir(dir)))
		if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0 &&
		    !each(ctx, dirfd(dir), d->d_name))
			return 0;
	if (errno)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno,
				      "cannot list the folder '%s'", folder);
	return 0;
}

struct emptying {
	const atomic_bool *stop;
	int failed; /* the first that did; 0 or -errno */
};

static bool remove_one(void *ctx, int dir, const char *name)
{
	struct emptying *em = ctx;
	int r = sbx_remove_tree_until(dir, name, em->stop);

	if (r == -EINTR)
		return false;
	if (r < 0 && r != -ENOENT && !em->failed)
		em->failed = r;
	return true;
}

int store_trash_empty(struct store *s, const atomic_bool *stop, struct sbx_error *e)
{
	struct emptying em = { .stop = stop };
	int r = walk(s, "trash", remove_one, &em, e);

	if (r == 0 && em.failed)
		r = sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, -em.failed,
				   "cannot remove what a session left");
	return r;
}

struct visit {
	bool (*each)(void *ctx, const char *id);
	void *ctx;
};

/* A lock's file without a directory is what a crash between the two left. */
static bool visit_one(void *ctx, int dir, const char *name)
{
	struct visit *v = ctx;
	char id[SBX_ID_LEN + 1];
	bool lock;

	if (strnlen(name, SBX_ID_LEN) < SBX_ID_LEN)
		return true;
	lock = strcmp(name + SBX_ID_LEN, ".lock") == 0;
	(void)snprintf(id, sizeof(id), "%s", name);
	if (!sbx_id_valid(id) || (!lock && name[SBX_ID_LEN]) ||
	    (lock && faccessat(dir, id, F_OK, AT_SYMLINK_NOFOLLOW) == 0))
		return true;
	return v->each(v->ctx, id);
}

int store_session_dirs(struct store *s, bool (*each)(void *ctx, const char *id), void *ctx,
		       struct sbx_error *e)
{
	struct visit v = { each, ctx };

	return walk(s, "sessions", visit_one, &v, e);
}

/* Is the file that we have locked still the one of that name? It goes with the session. */
static bool is_current(int all, const char *name, int fd)
{
	struct stat ours, now;

	return fstat(fd, &ours) == 0 && fstatat(all, name, &now, AT_SYMLINK_NOFOLLOW) == 0 &&
	       ours.st_ino == now.st_ino && ours.st_dev == now.st_dev;
}

/* flock(2) has no time limit, and a lock of another process says nothing when it is released. */
static bool wait_a_moment(int64_t until_us)
{
	const struct timespec ts = { .tv_nsec = LOCK_LOOK_MS * 1000000L };

	if (sbx_boot_us() >= until_us)
		return false;
	(void)nanosleep(&ts, NULL);
	return true;
}

int store_session_lock(struct store *s, const char *id, bool exclusive, int wait_ms)
{
	int64_t until = sbx_boot_us() + (int64_t)wait_ms * 1000;
	sbx_autoclose int all = -1, fd = -1;
	char name[64];

	if (!sbx_id_valid(id))
		return -EINVAL;
	all = open_folder(s, "sessions", true);
	if (all < 0)
		return all;
	(void)snprintf(name, sizeof(name), "%s.lock", id);
	for (;;) {
		sbx_closep(&fd);
		fd = sbx_open_beneath(all, name, O_RDWR | O_CREAT, 0600);
		if (fd < 0)
			return sbx_steal_fd(&fd);
		if (flock(fd, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) == 0) {
			if (is_current(all, name, fd))
				return sbx_steal_fd(&fd);
		} else if (errno != EWOULDBLOCK && errno != EINTR) {
			return -errno;
		} else if (!wait_a_moment(until)) {
			return -EWOULDBLOCK;
		}
	}
}
