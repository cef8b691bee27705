/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes of a workspace's files: what is shown of the backing file, and how they are changed.
 */
#include "fsd/work_i.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

#include "base/fs.h"

struct work_path work_path(int fd)
{
	struct work_path p;

	(void)snprintf(p.s, sizeof(p.s), "/proc/self/fd/%d", fd);
	return p;
}

/* ---- what is shown --------------------------------------------------------------------------- */

static void to_timespec(const struct statx_timestamp *from, struct timespec *to)
{
	to->tv_sec = from->tv_sec;
	to->tv_nsec = from->tv_nsec;
}

int work_statx(int fd, struct stat *st, struct work_identity *ret)
{
	struct statx sx;

	if (statx(fd, "", AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME,
		  &sx) < 0)
		return -errno;
	memset(st, 0, sizeof(*st));
	st->st_dev = makedev(sx.stx_dev_major, sx.stx_dev_minor);
	st->st_ino = sx.stx_ino;
	st->st_mode = sx.stx_mode;
	st->st_nlink = sx.stx_nlink;
	st->st_uid = sx.stx_uid;
	st->st_gid = sx.stx_gid;
	st->st_rdev = makedev(sx.stx_rdev_major, sx.stx_rdev_minor);
	st->st_size = (off_t)sx.stx_size;
	st->st_blocks = (blkcnt_t)sx.stx_blocks;
	st->st_blksize = sx.stx_blksize;
	to_timespec(&sx.stx_atime, &st->st_atim);
	to_timespec(&sx.stx_mtime, &st->st_mtim);
	to_timespec(&sx.stx_ctime, &st->st_ctim);
	memset(ret, 0, sizeof(*ret)); /* it is compared as a whole, too */
	ret->dev = st->st_dev;
	ret->ino = st->st_ino;
	ret->type = st->st_mode & S_IFMT;
	if (sx.stx_mask & STATX_BTIME)
		to_timespec(&sx.stx_btime, &ret->born);
	return 0;
}

static int link_text(struct work_node *n, struct sbx_buf *out)
{
	char raw[SBX_PATH_MAX + 1];
	ssize_t len = readlinkat(n->fd, "", raw, sizeof(raw) - 1);

	if (len < 0)
		return -errno;
	raw[len] = '\0';
	work_target(raw, work_depth(n), out);
	return sbx_buf_failed(out) ? -ENAMETOOLONG : 0;
}

uint64_t work_number(dev_t dev, ino_t ino)
{
	return INO_WORK | (((uint64_t)ino ^ (uint64_t)dev << 44) & (INO_WORK - 1));
}

int work_present(struct work_node *n, struct stat *st)
{
	sbx_autobuf text = SBX_BUF_INIT(SBX_PATH_MAX);
	int r = 0;

	st->st_ino = work_number(st->st_dev, st->st_ino);
	st->st_mode &= ~(mode_t)(S_ISUID | S_ISGID);
	st->st_uid = n->work->uid;
	st->st_gid = n->work->gid;
	if (S_ISLNK(st->st_mode)) {
		r = link_text(n, &text);
		st->st_size = (off_t)text.len;
	}
	return r == -ENAMETOOLONG ? 0 : r;
}

double work_attr_time(const struct work *w)
{
	return atomic_load(&w->busy) ? 0 : FSD_FOREVER;
}

double work_entry_time(const struct work *w)
{
	if (atomic_load(&w->busy))
		return 0;
	return w->f->epochs ? FSD_FOREVER : 1.0;
}

double work_absent_time(const struct work *w)
{
	return atomic_load(&w->busy) || !w->f->epochs ? 0 : FSD_FOREVER;
}

static int attr_of(struct work_node *n, struct stat *st)
{
	struct work_identity is;
	int r = work_statx(n->fd, st, &is);

	return r < 0 ? r : work_present(n, st);
}

/* The root keeps the number of its place in the tree, and is its owner's and the administrators'.
 */
int work_root_attr(struct fsd *f, fuse_ino_t ino, struct stat *st, double *timeout)
{
	work_autopin struct work_node *n = NULL;
	int r = work_root(f, ino_row(ino), true, &n);

	if (r == 0)
		r = attr_of(n, st);
	if (r < 0)
		return r;
	work_watch(n, false);
	st->st_ino = ino;
	st->st_mode = S_IFDIR | ms_node(ino_node(ino))->mode;
	acl_mode(f, st);
	*timeout = work_attr_time(n->work);
	return 0;
}

static void reply_attr(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct work_node *n)
{
	double timeout = work_attr_time(n->work);
	struct stat st;
	int r = ino & INO_WORK ? attr_of(n, &st) : work_root_attr(f, ino, &st, &timeout);

	if (r < 0)
		fuse_reply_err(req, -r);
	else
		fuse_reply_attr(req, &st, timeout);
}

void work_getattr(struct fsd *f, fuse_req_t req, fuse_ino_t ino)
{
	work_autopin struct work_node *n = NULL;
	int r;

	if ((ino & INO_WORK) && is_kicker(f, req)) {
		work_told_attr(f, req, ino);
		return;
	}
	r = work_pin(f, ino, &n);
	if (r < 0)
		fuse_reply_err(req, -r);
	else
		reply_attr(f, req, ino, n);
}

void work_readlink(struct fsd *f, fuse_req_t req, fuse_ino_t ino)
{
	sbx_autobuf text = SBX_BUF_INIT(SBX_PATH_MAX);
	work_autopin struct work_node *n = NULL;
	int r = work_pin(f, ino, &n);

	if (r == 0)
		r = link_text(n, &text);
	if (r < 0)
		fuse_reply_err(req, -r);
	else
		fuse_reply_readlink(req, text.data);
}

/* ---- changing -------------------------------------------------------------------------------- */

static int set_size(struct work_node *n, int fd, off_t size)
{
	struct stat st;
	int r;

	if (!S_ISREG(n->is.type))
		return -EINVAL;
	if (fstat(n->fd, &st) < 0)
		return -errno;
	if (!work_take(n, size - st.st_size))
		return -ENOSPC;
	r = fd >= 0 ? ftruncate(fd, size) : truncate(work_path(n->fd).s, size);
	if (r < 0) {
		r = -errno;
		work_give(n, size - st.st_size);
		return r;
	}
	work_give(n, st.st_size - size);
	return 0;
}

static void one_time(const struct timespec *from, bool set, bool now, struct timespec *to)
{
	*to = *from;
	if (!set)
		to->tv_nsec = now ? UTIME_NOW : UTIME_OMIT;
}

static int set_times(struct work_node *n, int fd, const struct stat *attr, int to_set)
{
	struct timespec ts[2];

	one_time(&attr->st_atim,
		 (to_set & FUSE_SET_ATTR_ATIME) && !(to_set & FUSE_SET_ATTR_ATIME_NOW),
		 to_set & FUSE_SET_ATTR_ATIME_NOW, &ts[0]);
	one_time(&attr->st_mtim,
		 (to_set & FUSE_SET_ATTR_MTIME) && !(to_set & FUSE_SET_ATTR_MTIME_NOW),
		 to_set & FUSE_SET_ATTR_MTIME_NOW, &ts[1]);
	if (fd >= 0)
		return futimens(fd, ts) < 0 ? -errno : 0;
	return utimensat(AT_FDCWD, work_path(n->fd).s, ts, 0) < 0 ? -errno : 0;
}

static int set_mode(struct work_node *n, int fd, mode_t mode)
{
	int r = fd >= 0 ? fchmod(fd, mode) : chmod(work_path(n->fd).s, mode);

	return r < 0 ? -errno : 0;
}

static int change(struct work_node *n, int fd, const struct stat *attr, int to_set)
{
	enum {
		TIMES = FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_ATIME_NOW | FUSE_SET_ATTR_MTIME |
			FUSE_SET_ATTR_MTIME_NOW
	};
	int r = 0;

	/* Everything belongs to the user of the session, and can be given to nobody else. */
	if (((to_set & FUSE_SET_ATTR_UID) && attr->st_uid != n->work->uid) ||
	    ((to_set & FUSE_SET_ATTR_GID) && attr->st_gid != n->work->gid))
		return -EPERM;
	if (!n->parent)
		to_set &= ~FUSE_SET_ATTR_MODE; /* it is as the tree says */
	if (to_set & FUSE_SET_ATTR_MODE)
		r = set_mode(n, fd, attr->st_mode & (0777 | S_ISVTX));
	if (r == 0 && (to_set & FUSE_SET_ATTR_SIZE))
		r = set_size(n, fd, attr->st_size);
	if (r == 0 && (to_set & TIMES))
		r = set_times(n, fd, attr, to_set);
	return r;
}

void work_setattr(struct fsd *f, fuse_req_t req, fuse_ino_t ino, const struct stat *attr,
		  int to_set, struct fuse_file_info *fi)
{
	work_autopin struct work_node *n = NULL;
	int r;

	if (is_kicker(f, req)) {
		work_told_attr(f, req, ino);
		return;
	}
	r = work_pin(f, ino, &n);
	if (r == 0)
		r = change(n, fi ? work_handle_fd(handle_of(fi)) : -1, attr, to_set);
	if (r < 0)
		fuse_reply_err(req, -r);
	else
		reply_attr(f, req, ino, n);
}

void work_statfs(struct fsd *f, fuse_req_t req, fuse_ino_t ino)
{
	work_autopin struct work_node *n = NULL;
	struct statvfs v;
	int64_t left;
	int r = work_pin(f, ino, &n);

	if (r == 0 && fstatvfs(n->fd, &v) < 0)
		r = -errno;
	if (r < 0) {
		fuse_reply_err(req, -r);
		return;
	}
	if (n->work->cap > 0) {
		work_autopin struct work_node *root = NULL;

		left = n->work->cap;
		if (work_root(f, n->work->row, false, &root) == 0)
			left -= work_used(n->work, root->fd);
		left = left > 0 ? left / (int64_t)v.f_frsize : 0;
		v.f_blocks = (fsblkcnt_t)n->work->cap / v.f_frsize;
		if ((fsblkcnt_t)left < v.f_bavail)
			v.f_bavail = (fsblkcnt_t)left;
		v.f_bfree = v.f_bavail;
	}
	fuse_reply_statfs(req, &v);
}
