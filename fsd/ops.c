/* SPDX-License-Identifier: Apache-2.0 */
/* The requests of the kernel, each sent to the file that knows the kind of node. Every handler
 * answers exactly once, or parks. */
#include "fsd/fsd_i.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <poll.h>
#include <sys/statvfs.h>

static struct fsd *self(fuse_req_t req)
{
	return fuse_req_userdata(req);
}

static void op_init(void *userdata, struct fuse_conn_info *conn)
{
	struct fsd *f = userdata;

	/* Requests are small but for a large spec: reading them into memory is simplest, while
	 * answers are spliced from the file. */
	conn->want &= ~(unsigned)FUSE_CAP_SPLICE_READ;
	conn->want |= conn->capable & (FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE |
				       FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO |
				       FUSE_CAP_PARALLEL_DIROPS | FUSE_CAP_ATOMIC_O_TRUNC |
				       FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_CACHE_SYMLINKS);
	conn->want &= ~(unsigned)(FUSE_CAP_WRITEBACK_CACHE | FUSE_CAP_CACHE_SYMLINKS);
	f->acl = f->enforce && f->n_admins > 0 && (conn->capable & FUSE_CAP_POSIX_ACL);
	if (f->acl)
		conn->want |= FUSE_CAP_POSIX_ACL;
	if (conn->max_write > 128 << 10)
		conn->max_write = 128 << 10;
	if (f->on_ready)
		f->on_ready(f->on_ready_ctx);
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	if (strlen(name) > NAME_MAX) /* the kernel passes up to 1024 */
		fuse_reply_err(req, ENAMETOOLONG);
	else if (!is_real_dir(parent))
		dir_lookup(self(req), req, parent, name);
	else if (is_kicker(self(req), req))
		fuse_reply_err(req, ENOENT); /* so that its mkdir or mknod reaches us */
	else
		real_lookup(self(req), req, parent, name);
}

static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup)
{
	if (ino & INO_REAL)
		real_forget(self(req), ino, nlookup);
	fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
	for (size_t i = 0; i < count; i++)
		if (forgets[i].ino & INO_REAL)
			real_forget(self(req), forgets[i].ino, forgets[i].nlookup);
	fuse_reply_none(req);
}

static void reply_attr(fuse_req_t req, fuse_ino_t ino)
{
	struct stat st;
	double timeout;
	int r = node_attr(self(req), req, ino, &st, &timeout);

	if (r < 0)
		fuse_reply_err(req, -r);
	else
		fuse_reply_attr(req, &st, timeout);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)fi;
	reply_attr(req, ino);
}

/* Truncating a node that acts on writes means nothing and must succeed, or `>` would not. */
static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
		       struct fuse_file_info *fi)
{
	const struct ms_node *n = ino & INO_REAL ? NULL : ms_node(ino_node(ino));
	bool harmless =
		!(to_set & ~(FUSE_SET_ATTR_SIZE | FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW |
			     FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_ATIME_NOW | FUSE_SET_ATTR_CTIME));

	(void)attr;
	(void)fi;
	if (n && harmless && (n->verb != MS_W_NONE || is_kicker(self(req), req)))
		reply_attr(req, ino);
	else
		fuse_reply_err(req, EPERM);
}

static void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	struct fsd *f = self(req);
	sbx_autobuf out = SBX_BUF_INIT(4096);
	struct run_ref run;
	int r = 0;

	if (ino_of_run(ino))
		r = run_by_row(f, req, ino_row(ino), &run);
	if (r == 0)
		r = render(f, req, ino, ino_of_run(ino) ? &run : NULL, &out);
	if (r < 0)
		fuse_reply_err(req, -r);
	else
		fuse_reply_readlink(req, out.data ? out.data : "");
}

static void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	struct fsd *f = self(req);
	struct fuse_entry_param entry;
	struct run_ref run;
	int r;

	(void)mode;
	if (is_kicker(f, req) && is_real_dir(parent)) {
		real_lookup(f, req, parent, name);
		return;
	}
	if (!is_kicker(f, req) || ino_node(parent) != MS_N_RUNS) {
		fuse_reply_err(req, EPERM);
		return;
	}
	/* The run exists; from here on the kernel knows it. */
	r = run_by_name(f, req, name, &run);
	if (r == 0)
		r = dir_run_entry(f, req, &run, &entry);
	entry.entry_timeout = FSD_FOREVER;
	if (r < 0)
		fuse_reply_err(req, -r);
	else
		fuse_reply_entry(req, &entry);
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	static void (*const openers[])(struct fsd *, fuse_req_t, fuse_ino_t, const struct run_ref *,
				       struct fuse_file_info *) = {
		[MS_K_FILE] = text_open,
		[MS_K_LOG] = log_open,
		[MS_K_STREAM] = stream_open,
		[MS_K_CONTROL] = control_open,
	};
	struct fsd *f = self(req);
	const struct ms_node *n;
	struct run_ref run;
	bool of_run;
	int r = 0;

	if (ino & INO_REAL) {
		real_open(f, req, ino, fi);
		return;
	}
	n = ms_node(ino_node(ino));
	of_run = ino_of_run(ino);
	if (of_run)
		r = run_by_row(f, req, ino_row(ino), &run);
	if (r == 0 && (!n || n->kind >= SBX_COUNT(openers) || !openers[n->kind]))
		r = -EISDIR;
	if (r < 0)
		fuse_reply_err(req, -r);
	else
		openers[n->kind](f, req, ino, of_run ? &run : NULL, fi);
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi)
{
	struct handle *h = handle_of(fi);

	(void)ino;
	switch (h->kind) {
	case H_TEXT:
		text_read(req, (struct text_handle *)h, size, off);
		break;
	case H_LOG:
		log_read(req, (struct log_handle *)h, size, off);
		break;
	case H_CONTROL:
		control_read(self(req), req, fi, size);
		break;
	case H_STREAM:
		stream_read(self(req), req, fi, size);
		break;
	case H_REAL_FILE:
		real_read(req, fi, size, off);
		break;
	case H_REAL_DIR:
		fuse_reply_err(req, EISDIR);
		break;
	}
}

static void op_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off,
		     struct fuse_file_info *fi)
{
	struct handle *h = handle_of(fi);

	(void)ino;
	if (h->kind == H_CONTROL)
		control_write(self(req), req, fi, buf, size, off);
	else if (h->kind == H_STREAM)
		stream_write(self(req), req, fi, buf, size);
	else
		fuse_reply_err(req, EACCES);
}

static void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	if (handle_of(fi)->kind == H_CONTROL)
		control_flush(self(req), req, fi);
	else
		fuse_reply_err(req, 0);
}

static void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	(void)ino;
	(void)datasync;
	(void)fi;
	fuse_reply_err(req, 0); /* what a write accepted is durable already */
}

static void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	handle_close(self(req), handle_of(fi));
	fuse_reply_err(req, 0);
}

static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	if (is_real_dir(ino)) {
		real_opendir(self(req), req, ino, fi);
		return;
	}
	fi->fh = 0; /* stateless: offsets are cookies */
	fuse_reply_open(req, fi);
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		       struct fuse_file_info *fi)
{
	if (is_real_dir(ino))
		real_readdir(req, fi, size, off, false);
	else
		dir_read(self(req), req, ino, size, off, false);
}

static void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
			   struct fuse_file_info *fi)
{
	if (is_real_dir(ino))
		real_readdir(req, fi, size, off, true);
	else
		dir_read(self(req), req, ino, size, off, true);
}

static void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	if (is_real_dir(ino) && fi->fh)
		handle_close(self(req), handle_of(fi));
	fuse_reply_err(req, 0);
}

static void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct fsd *f = self(req);
	struct statvfs v;

	(void)ino;
	if (fstatvfs(store_dir_fd(f->store), &v) < 0)
		fuse_reply_err(req, errno);
	else
		fuse_reply_statfs(req, &v);
}

static void op_poll(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi,
		    struct fuse_pollhandle *ph)
{
	struct handle *h = handle_of(fi);

	(void)ino;
	if (h->kind == H_STREAM) {
		stream_poll(self(req), req, fi, ph);
	} else if (h->kind == H_TEXT) {
		status_poll(self(req), req, (struct text_handle *)h, ph);
	} else {
		if (ph)
			fuse_pollhandle_destroy(ph);
		fuse_reply_poll(req, POLLIN | POLLOUT);
	}
}

static void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence,
		     struct fuse_file_info *fi)
{
	struct stat st;
	double timeout;
	int r;

	if (handle_of(fi)->kind == H_REAL_FILE) {
		real_lseek(req, fi, off, whence);
		return;
	}
	/* No holes: data until the end. */
	r = node_attr(self(req), req, ino, &st, &timeout);
	if (r == 0 && handle_of(fi)->kind == H_TEXT)
		st.st_size = (off_t)((struct text_handle *)handle_of(fi))->len;
	if (r < 0)
		fuse_reply_err(req, -r);
	else if (off < 0 || off >= st.st_size)
		fuse_reply_err(req, ENXIO);
	else
		fuse_reply_lseek(req, whence == SEEK_HOLE ? st.st_size : off);
}

static void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	acl_getxattr(self(req), req, ino, name, size);
}

/* The tree is not for making or removing things: EPERM, and never ENOSYS, so that tools say it
 * well. */
static void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
	(void)mode, (void)rdev;
	if (is_kicker(self(req), req) && is_real_dir(parent))
		real_lookup(self(req), req, parent, name);
	else
		fuse_reply_err(req, EPERM);
}

static void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	(void)parent, (void)name;
	fuse_reply_err(req, EPERM);
}

static void op_symlink(fuse_req_t req, const char *link, fuse_ino_t parent, const char *name)
{
	(void)link, (void)parent, (void)name;
	fuse_reply_err(req, EPERM);
}

static void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t newparent,
		      const char *newname, unsigned flags)
{
	(void)parent, (void)name, (void)newparent, (void)newname, (void)flags;
	fuse_reply_err(req, EPERM);
}

static void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t newparent, const char *newname)
{
	(void)ino, (void)newparent, (void)newname;
	fuse_reply_err(req, EPERM);
}

static void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
		      struct fuse_file_info *fi)
{
	(void)parent, (void)name, (void)mode, (void)fi;
	fuse_reply_err(req, EPERM);
}

const struct fuse_lowlevel_ops fsd_ops = {
	.init = op_init,
	.lookup = op_lookup,
	.forget = op_forget,
	.forget_multi = op_forget_multi,
	.getattr = op_getattr,
	.setattr = op_setattr,
	.readlink = op_readlink,
	.mknod = op_mknod,
	.mkdir = op_mkdir,
	.unlink = op_unlink,
	.rmdir = op_unlink,
	.symlink = op_symlink,
	.rename = op_rename,
	.link = op_link,
	.create = op_create,
	.open = op_open,
	.read = op_read,
	.write = op_write,
	.flush = op_flush,
	.fsync = op_fsync,
	.release = op_release,
	.opendir = op_opendir,
	.readdir = op_readdir,
	.readdirplus = op_readdirplus,
	.releasedir = op_releasedir,
	.statfs = op_statfs,
	.getxattr = op_getxattr,
	.poll = op_poll,
	.lseek = op_lseek,
};
