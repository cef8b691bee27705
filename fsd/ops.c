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
	conn->want |=
		conn->capable &
		(FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE | FUSE_CAP_READDIRPLUS |
		 FUSE_CAP_READDIRPLUS_AUTO | FUSE_CAP_PARALLEL_DIROPS | FUSE_CAP_ATOMIC_O_TRUNC |
		 FUSE_CAP_HANDLE_KILLPRIV | FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_CACHE_SYMLINKS);
	conn->want &= ~(unsigned)(FUSE_CAP_WRITEBACK_CACHE | FUSE_CAP_CACHE_SYMLINKS);
	pass_init(conn);
	f->epochs = conn->proto_minor >= 44;
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
	else if (is_work(parent))
		work_lookup(self(req), req, parent, name);
	else if (is_shot(parent))
		shot_lookup(self(req), req, parent, name);
	else if (!is_real_dir(parent))
		dir_lookup(self(req), req, parent, name);
	else if (is_kicker(self(req), req))
		fuse_reply_err(req, ENOENT); /* so that its mkdir or mknod reaches us */
	else
		real_lookup(self(req), req, parent, name);
}

static void forget(struct fsd *f, fuse_ino_t ino, uint64_t nlookup)
{
	if (ino & INO_REAL)
		real_forget(f, ino, nlookup);
	else if (ino & INO_WORK)
		work_forget(f, ino, nlookup);
	else
		by_forget(f, ino, nlookup);
}

static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup)
{
	forget(self(req), ino, nlookup);
	fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
	for (size_t i = 0; i < count; i++)
		forget(self(req), forgets[i].ino, forgets[i].nlookup);
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
	if (is_work(ino))
		work_getattr(self(req), req, ino);
	else
		reply_attr(req, ino);
}

/* Truncating a node that acts on writes means nothing and must succeed, or `>` would not. */
static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
		       struct fuse_file_info *fi)
{
	const struct ms_node *n =
		ino & (INO_REAL | INO_WORK | INO_SHOT) ? NULL : ms_node(ino_node(ino));
	bool harmless =
		!(to_set & ~(FUSE_SET_ATTR_SIZE | FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW |
			     FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_ATIME_NOW | FUSE_SET_ATTR_CTIME |
			     FUSE_SET_ATTR_KILL_SUID));

	if (is_work(ino))
		work_setattr(self(req), req, ino, attr, to_set, fi);
	else if (n && is_coming_node(ino_node(ino)))
		coming_setattr(self(req), req, ino, attr, to_set);
	else if (n && harmless && (n->verb != MS_W_NONE || is_kicker(self(req), req)))
		reply_attr(req, ino);
	else
		fuse_reply_err(req, EPERM);
}

static void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	struct fsd *f = self(req);
	sbx_autobuf out = SBX_BUF_INIT(4096);
	struct session_ref session;
	struct run_ref run;
	int r = 0;

	if (is_work(ino)) {
		work_readlink(f, req, ino);
		return;
	}
	if (is_shot(ino)) {
		shot_readlink(f, req, ino);
		return;
	}
	if (is_session_node(ino_node(ino)))
		r = session_of(f, req, ino, &session);
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

	if (is_work(parent)) {
		work_mkdir(f, req, parent, name, mode);
		return;
	}
	if (session_makes(parent)) {
		session_mkdir(f, req, parent, name);
		return;
	}
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
	struct session_ref session;
	struct run_ref run;
	bool of_run;
	int r = 0;

	if (ino & INO_REAL) {
		real_open(f, req, ino, fi);
		return;
	}
	if (is_work(ino)) {
		work_file_open(f, req, ino, fi);
		return;
	}
	if (is_shot(ino)) {
		shot_file_open(f, req, ino, fi);
		return;
	}
	n = ms_node(ino_node(ino));
	of_run = ino_of_run(ino);
	if (is_session_node(ino_node(ino)))
		r = session_of(f, req, ino, &session);
	if (of_run)
		r = run_by_row(f, req, ino_row(ino), &run);
	if (r == 0 && (!n || n->kind >= SBX_COUNT(openers) || !openers[n->kind]))
		r = -EISDIR;
	if (r < 0)
		fuse_reply_err(req, -r);
	else if (n->view == MS_V_SHOT_TAR)
		shot_tar_open(f, req, ino, fi);
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
	case H_WORK_FILE:
		work_read(req, fi, size, off);
		break;
	case H_TAR:
		shot_tar_read(req, fi, size, off);
		break;
	case H_COMING: /* it is for writing */
		fuse_reply_err(req, EACCES);
		break;
	case H_REAL_DIR:
	case H_WORK_DIR:
		fuse_reply_err(req, EISDIR);
		break;
	}
}

static void op_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off,
		     struct fuse_file_info *fi)
{
	struct handle *h = handle_of(fi);

	(void)ino;
	if (h->kind == H_WORK_FILE)
		work_write(req, fi, buf, size, off);
	else if (h->kind == H_CONTROL)
		control_write(self(req), req, fi, buf, size, off);
	else if (h->kind == H_COMING)
		coming_write(self(req), req, fi, buf, size, off);
	else if (h->kind == H_STREAM)
		stream_write(self(req), req, fi, buf, size);
	else
		fuse_reply_err(req, EACCES);
}

static void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	const struct handle *h = handle_of(fi);

	(void)ino;
	/* The kicker has none, and Linux before 5.16 does not know that it need not ask. */
	if (h && h->kind == H_CONTROL)
		control_flush(self(req), req, fi);
	else if (h && h->kind == H_COMING)
		coming_flush(self(req), req, fi);
	else
		fuse_reply_err(req, 0);
}

static void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	if (is_work(ino))
		work_fsync(self(req), req, fi, datasync);
	else if (is_coming_node(ino_node(ino)) && handle_of(fi)->kind == H_COMING)
		coming_flush(self(req), req, fi);
	else if (is_session_node(ino_node(ino)))
		session_fsync(self(req), req, ino);
	else
		fuse_reply_err(req, 0); /* what a write accepted is durable already */
}

static void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	if (fi->fh)
		handle_close(self(req), handle_of(fi));
	else /* the kicker's */
		(void)pass_close(self(req), ino);
	fuse_reply_err(req, 0);
}

static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	if (is_work(ino)) {
		work_dir_open(self(req), req, ino, fi);
		return;
	}
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
	if (is_work(ino))
		work_readdir(req, fi, size, off, false);
	else if (is_shot(ino))
		shot_readdir(self(req), req, ino, size, off, false);
	else if (is_real_dir(ino))
		real_readdir(req, fi, size, off, false);
	else
		dir_read(self(req), req, ino, size, off, false);
}

static void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
			   struct fuse_file_info *fi)
{
	if (is_work(ino))
		work_readdir(req, fi, size, off, true);
	else if (is_shot(ino))
		shot_readdir(self(req), req, ino, size, off, true);
	else if (is_real_dir(ino))
		real_readdir(req, fi, size, off, true);
	else
		dir_read(self(req), req, ino, size, off, true);
}

static void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	if (fi->fh)
		handle_close(self(req), handle_of(fi));
	fuse_reply_err(req, 0);
}

static void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct fsd *f = self(req);
	struct statvfs v;

	if (is_work(ino))
		work_statfs(f, req, ino);
	else if (fstatvfs(store_dir_fd(f->store), &v) < 0)
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
	if (handle_of(fi)->kind == H_WORK_FILE) {
		work_lseek(req, fi, off, whence);
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
	if (is_work(ino) && ((ino & INO_WORK) || strncmp(name, "user.", 5) == 0))
		work_getxattr(self(req), req, ino, name, size);
	else
		acl_getxattr(self(req), req, ino, name, size);
}

static void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	if (is_work(ino))
		work_listxattr(self(req), req, ino, size);
	else if (size == 0)
		fuse_reply_xattr(req, 0);
	else
		fuse_reply_buf(req, NULL, 0);
}

static void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value,
			size_t size, int flags)
{
	if (is_work(ino))
		work_setxattr(self(req), req, ino, name, value, size, flags);
	else
		fuse_reply_err(req, EOPNOTSUPP);
}

static void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	if (is_work(ino))
		work_removexattr(self(req), req, ino, name);
	else
		fuse_reply_err(req, EOPNOTSUPP);
}

/* Outside of workspaces the tree is not for making or removing things: EPERM, and never ENOSYS, so
 * that tools say it well. */
static void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
	(void)rdev;
	if (is_work(parent))
		work_mknod(self(req), req, parent, name, mode);
	else if (is_kicker(self(req), req) && is_real_dir(parent))
		real_lookup(self(req), req, parent, name);
	else
		fuse_reply_err(req, EPERM);
}

static void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	if (is_work(parent))
		work_unlink(self(req), req, parent, name, false);
	else if (coming_may(parent))
		coming_unlink(self(req), req, parent, name);
	else
		fuse_reply_err(req, EPERM);
}

static void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	if (is_work(parent))
		work_unlink(self(req), req, parent, name, true);
	else if (session_makes(parent))
		session_rmdir(self(req), req, parent, name);
	else if (ino_node(parent) == MS_N_IMAGES)
		img_rmdir(self(req), req, name);
	else
		fuse_reply_err(req, EPERM);
}

static void op_symlink(fuse_req_t req, const char *link, fuse_ino_t parent, const char *name)
{
	if (is_work(parent))
		work_symlink(self(req), req, link, parent, name);
	else if (is_kicker(self(req), req) && ino_node(parent) == MS_N_BY_PHASE_OF)
		by_announce(self(req), req, parent, name);
	else
		fuse_reply_err(req, EPERM);
}

/* To and from a workspace things are copied, as between file systems. */
static void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t newparent,
		      const char *newname, unsigned flags)
{
	if (is_work(parent) && is_work(newparent))
		work_rename(self(req), req, parent, name, newparent, newname, flags);
	else
		fuse_reply_err(req, is_work(parent) || is_work(newparent) ? EXDEV : EPERM);
}

static void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t newparent, const char *newname)
{
	if (is_work(ino) && is_work(newparent))
		work_link(self(req), req, ino, newparent, newname);
	else
		fuse_reply_err(req, is_work(ino) || is_work(newparent) ? EXDEV : EPERM);
}

static void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
		      struct fuse_file_info *fi)
{
	if (is_work(parent))
		work_create(self(req), req, parent, name, mode, fi);
	else if (coming_may(parent))
		coming_create(self(req), req, parent, name, fi);
	else
		fuse_reply_err(req, EPERM);
}

static void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len,
			 struct fuse_file_info *fi)
{
	if (is_work(ino))
		work_fallocate(req, fi, mode, off, len);
	else
		fuse_reply_err(req, EOPNOTSUPP);
}

static void op_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in,
			       struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t off_out,
			       struct fuse_file_info *fi_out, size_t len, int flags)
{
	(void)flags;
	if (is_work(ino_in) && is_work(ino_out))
		work_copy_range(req, fi_in, off_in, fi_out, off_out, len);
	else
		fuse_reply_err(req, EXDEV);
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
	.rmdir = op_rmdir,
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
	.fsyncdir = op_fsync,
	.statfs = op_statfs,
	.getxattr = op_getxattr,
	.listxattr = op_listxattr,
	.setxattr = op_setxattr,
	.removexattr = op_removexattr,
	.poll = op_poll,
	.lseek = op_lseek,
	.fallocate = op_fallocate,
	.copy_file_range = op_copy_file_range,
};
