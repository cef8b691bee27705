/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names in a workspace: looked up, made, moved and removed. Each of these is one system call on the
 * backing directory with one name below a held descriptor. What is made belongs on the disk to whom
 * the workspace belongs there, so that the sandbox can use it, with the mode that was asked for but
 * for set-id bits.
 */
#include "fsd/work_i.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"

enum { MODE_BITS = 0777 | S_ISVTX };

/* Two threads may be at it: an entry that the caller did not live to get is not counted. */
static void reply_entry(struct fsd *f, fuse_req_t req, int r, const struct fuse_entry_param *e)
{
	if (r < 0)
		fuse_reply_err(req, -r);
	else if (fuse_reply_entry(req, e) != 0)
		work_forget(f, e->ino, 1);
}

void work_lookup(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name)
{
	work_autopin struct work_node *dir = NULL;
	struct fuse_entry_param e = { 0 };
	int r;

	if (is_kicker(f, req)) {
		work_told_lookup(f, req, parent, name);
		return;
	}
	r = work_pin(f, parent, &dir);
	if (r == 0)
		r = work_look_up(dir, name, &e);
	if (r == -ENOENT && dir && work_absent_time(dir->work) > 0) {
		e = (struct fuse_entry_param){ .entry_timeout = work_absent_time(dir->work) };
		fuse_reply_entry(req, &e);
		return;
	}
	reply_entry(f, req, r, &e);
}

/* ---- making ---------------------------------------------------------------------------------- */

/* Gives what was made its owner and its mode. fd is of the file, or O_PATH. */
static int own(const struct work_node *dir, int fd, mode_t mode)
{
	const struct work *w = dir->work;

	if (geteuid() == 0 && (w->disk_uid != 0 || w->disk_gid != 0) &&
	    fchownat(fd, "", w->disk_uid, w->disk_gid, AT_EMPTY_PATH) < 0)
		return -errno;
	/* The mask of this process let the owner's bits pass. */
	if ((mode & MODE_BITS & ~0700u) && chmod(work_path(fd).s, mode & MODE_BITS) < 0)
		return -errno;
	return 0;
}

/* What has just been made under this name. */
static int made(struct work_node *dir, const char *name, mode_t mode, bool link,
		struct fuse_entry_param *ret)
{
	int fd = sbx_open_beneath(dir->fd, name, O_PATH | O_NOFOLLOW, 0);
	int r = fd < 0 ? fd : own(dir, fd, link ? 0 : mode);

	if (r < 0) {
		sbx_closep(&fd);
		return r;
	}
	r = work_enter(dir, name, fd, ret);
	if (r == 0)
		work_watch_entry(ret, false);
	return r;
}

void work_mkdir(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	work_autopin struct work_node *dir = NULL;
	struct fuse_entry_param e;
	int r;

	if (is_kicker(f, req)) {
		work_told_made(f, req, parent, name);
		return;
	}
	r = work_pin(f, parent, &dir);
	if (r == 0 && mkdirat(dir->fd, name, mode & 0777) < 0)
		r = -errno;
	if (r == 0)
		r = made(dir, name, mode, false, &e);
	reply_entry(f, req, r, &e);
}

void work_mknod(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	work_autopin struct work_node *dir = NULL;
	struct fuse_entry_param e;
	int r;

	if (is_kicker(f, req)) {
		work_told_made(f, req, parent, name);
		return;
	}
	r = S_ISREG(mode) || S_ISFIFO(mode) || S_ISSOCK(mode) ? work_pin(f, parent, &dir) : -EPERM;
	if (r == 0 && mknodat(dir->fd, name, mode & (S_IFMT | 0777), 0) < 0)
		r = -errno;
	if (r == 0)
		r = made(dir, name, mode, false, &e);
	reply_entry(f, req, r, &e);
}

void work_symlink(struct fsd *f, fuse_req_t req, const char *target, fuse_ino_t parent,
		  const char *name)
{
	work_autopin struct work_node *dir = NULL;
	struct fuse_entry_param e;
	int r;

	if (is_kicker(f, req)) {
		work_told_made(f, req, parent, name);
		return;
	}
	r = work_pin(f, parent, &dir);
	if (r == 0 && symlinkat(target, dir->fd, name) < 0)
		r = -errno;
	if (r == 0)
		r = made(dir, name, 0, true, &e);
	reply_entry(f, req, r, &e);
}

void work_link(struct fsd *f, fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name)
{
	work_autopin struct work_node *dir = NULL, *n = NULL;
	struct fuse_entry_param e;
	int r = work_pin(f, parent, &dir);

	if (r == 0)
		r = work_pin(f, ino, &n);
	if (r == 0 && n->work != dir->work)
		r = -EXDEV;
	if (r == 0) {
		work_keep(n);
		if (linkat(AT_FDCWD, work_path(n->fd).s, dir->fd, name, AT_SYMLINK_FOLLOW) < 0)
			r = -errno;
	}
	if (r == 0)
		r = work_child(dir, name, &e);
	reply_entry(f, req, r, &e);
}

/* Opens what is new. What was there already, in spite of what the kernel knows, is looked up again
 * by the kernel: it may be anything. */
static int create(struct work_node *dir, const char *name, mode_t mode, int flags, int *ret_fd,
		  struct fuse_entry_param *ret)
{
	sbx_autoclose int fd = sbx_open_beneath(
		dir->fd, name, O_CREAT | O_EXCL | O_NOFOLLOW | (flags & (O_ACCMODE | O_APPEND)),
		mode & 0777);
	int path, r;

	if (fd < 0)
		return fd == -EEXIST && !(flags & O_EXCL) ? -ESTALE : fd;
	r = own(dir, fd, mode);
	path = r < 0 ? r : open(work_path(fd).s, O_PATH | O_CLOEXEC);
	if (path < 0)
		return r < 0 ? r : -errno;
	r = work_enter(dir, name, path, ret);
	if (r == 0)
		*ret_fd = sbx_steal_fd(&fd);
	return r;
}

void work_create(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
		 struct fuse_file_info *fi)
{
	work_autopin struct work_node *dir = NULL, *n = NULL;
	struct fuse_entry_param e;
	int fd = -1, r;

	if (is_kicker(f, req)) {
		work_told_create(f, req, parent, name, fi);
		return;
	}
	r = work_pin(f, parent, &dir);
	if (r == 0)
		r = create(dir, name, mode, fi->flags, &fd, &e);
	if (r == 0) {
		r = work_pin(f, e.ino, &n);
		if (r == 0)
			r = work_opened(f, req, n, sbx_steal_fd(&fd), fi);
		if (r < 0)
			work_forget(f, e.ino, 1);
	}
	sbx_closep(&fd);
	if (r < 0) {
		fuse_reply_err(req, -r);
	} else if (fuse_reply_create(req, &e, fi) != 0) {
		handle_close(f, handle_of(fi));
		work_forget(f, e.ino, 1);
	}
}

/* ---- removing and moving --------------------------------------------------------------------- */

static bool last_name(const struct stat *st)
{
	return S_ISDIR(st->st_mode) || st->st_nlink <= 1;
}

static void removed(struct work_node *dir, const struct work_identity *is, const struct stat *st)
{
	if (last_name(st))
		work_gone(is, dir, S_ISREG(st->st_mode) ? st->st_size : 0);
}

void work_unlink(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name, bool is_dir)
{
	work_autopin struct work_node *dir = NULL;
	struct work_identity is;
	struct stat st;
	int r;

	if (is_kicker(f, req)) { /* it is gone already */
		fuse_reply_err(req, -work_told_gone(f, parent, name));
		return;
	}
	r = work_pin(f, parent, &dir);
	if (r == 0)
		r = work_identify(dir->fd, name, &is, &st);
	if (r == 0 && unlinkat(dir->fd, name, is_dir ? AT_REMOVEDIR : 0) < 0)
		r = -errno;
	if (r == 0)
		removed(dir, &is, &st);
	fuse_reply_err(req, -r);
}

struct end {
	struct work_node *dir; /* pinned */
	const char *name;
	struct work_identity is;
	struct stat st;
	bool there;
};

static int look(struct end *at)
{
	int r = work_identify(at->dir->fd, at->name, &at->is, &at->st);

	at->there = r == 0;
	return r;
}

static int move(struct end *from, struct end *to, unsigned flags)
{
	int r = from->dir->work == to->dir->work ? look(from) : -EXDEV;

	if (r < 0)
		return r;
	r = look(to);
	if (r < 0 && r != -ENOENT)
		return r;
	if (renameat2(from->dir->fd, from->name, to->dir->fd, to->name, flags) < 0)
		return -errno;
	/* Two names of one file: nothing was done. */
	if (to->there && memcmp(&from->is, &to->is, sizeof(to->is)) == 0)
		return 0;
	if (to->there && !(flags & RENAME_EXCHANGE))
		removed(to->dir, &to->is, &to->st);
	work_moved(&from->is, from->dir, to->dir, to->name);
	if (to->there && (flags & RENAME_EXCHANGE))
		work_moved(&to->is, to->dir, from->dir, from->name);
	return 0;
}

void work_rename(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name,
		 fuse_ino_t newparent, const char *newname, unsigned flags)
{
	work_autopin struct work_node *from = NULL, *to = NULL;
	int r;

	if (is_kicker(f, req)) {
		fuse_reply_err(req, -work_told_moved(f, parent, name, newparent, newname));
		return;
	}
	r = flags & ~(unsigned)(RENAME_NOREPLACE | RENAME_EXCHANGE) ? -EINVAL
								    : work_pin(f, parent, &from);
	if (r == 0)
		r = work_pin(f, newparent, &to);
	if (r == 0) {
		struct end a = { .dir = from, .name = name }, b = { .dir = to, .name = newname };

		r = move(&a, &b, flags);
	}
	fuse_reply_err(req, -r);
}
