/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Open files and directories of a workspace. Bytes go between the backing file and the kernel's
 * pages; locks, mappings and the position of a descriptor are the kernel's own business. An open
 * file keeps its node's descriptor, so that it can be asked about after its name is gone.
 */
#include "fsd/work_i.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"

struct work_handle {
	struct handle h;
	struct work_node *n;  /* pinned */
	int fd;		      /* owned unless dir has it */
	int flags;	      /* of the open */
	DIR *dir;	      /* owned */
	pthread_mutex_t lock; /* the position of dir */
	off_t at;	      /* where dir is */
};

static struct work_handle *work_handle(const struct fuse_file_info *fi)
{
	return (struct work_handle *)handle_of(fi);
}

int work_handle_fd(const struct handle *h)
{
	const struct work_handle *w = (const struct work_handle *)h;

	return h->kind == H_WORK_FILE && (w->flags & O_ACCMODE) != O_RDONLY ? w->fd : -1;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* May the kernel go on with the pages that it has? Only when it began to read after the last moment
 * at which others could have written. */
static bool keep_pages(struct work_node *n)
{
	struct work *w = n->work;
	struct work_table *t = w->f->work;
	uint64_t now = atomic_load(&w->busy) ? 0 : atomic_load(&w->epoch);
	bool keep;

	pthread_mutex_lock(&t->lock);
	keep = now && n->pages == now;
	n->pages = now;
	pthread_mutex_unlock(&t->lock);
	return keep;
}

int work_opened(struct fsd *f, fuse_req_t req, struct work_node *n, int fd,
		struct fuse_file_info *fi)
{
	struct work_handle *h = calloc(1, sizeof(*h));
	int passing = 0;

	if (!h) {
		sbx_closep(&fd);
		return -ENOMEM;
	}
	work_pin_more(n);
	h->n = n;
	h->fd = fd;
	h->h.kind = S_ISDIR(n->is.type) ? H_WORK_DIR : H_WORK_FILE;
	h->flags = fi->flags;
	pthread_mutex_init(&h->lock, NULL);
	if (h->h.kind == H_WORK_DIR && !(h->dir = fdopendir(fd))) {
		work_release(&h->h, false);
		return -ENOMEM;
	}
	h->h.ino = work_ino(n);
	fi->noflush = 1; /* there is nothing that only a close could tell */
	if (h->h.kind == H_WORK_FILE)
		passing = pass_open(f, h->h.ino, fd, fi);
	h->h.in_pass = h->h.kind == H_WORK_FILE && passing >= 0;
	if (passing <= 0)
		fi->keep_cache = keep_pages(n);
	return handle_add(f, req, fi, &h->h) ? 0 : -EMFILE;
}

static int open_node(struct work_node *n, int flags)
{
	struct stat st = { 0 };
	int fd;

	/* The kernel opens everything else by itself. */
	if (!S_ISREG(n->is.type) && !S_ISDIR(n->is.type))
		return -ENXIO;
	if ((flags & O_TRUNC) && fstat(n->fd, &st) < 0)
		return -errno;
	fd = open(work_path(n->fd).s, (flags & (O_ACCMODE | O_APPEND | O_TRUNC | O_DIRECTORY)) |
					      O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return -errno;
	work_give(n, st.st_size);
	return fd;
}

static void reply_open(struct fsd *f, fuse_req_t req, fuse_ino_t ino, int flags,
		       struct fuse_file_info *fi)
{
	work_autopin struct work_node *n = NULL;
	int fd, r = work_pin(f, ino, &n);

	if (r == 0) {
		fd = open_node(n, flags);
		r = fd < 0 ? fd : work_opened(f, req, n, fd, fi);
	}
	if (r < 0)
		fuse_reply_err(req, -r);
	else if (fuse_reply_open(req, fi) != 0)
		handle_close(f, handle_of(fi));
}

void work_file_open(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	if (is_kicker(f, req))
		work_told_open(f, req, ino, fi);
	else
		reply_open(f, req, ino, fi->flags & ~O_DIRECTORY, fi);
}

void work_dir_open(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	fi->cache_readdir = 1;
	reply_open(f, req, ino, O_RDONLY | O_DIRECTORY, fi);
}

/* What was mapped to be written, and passed through, has changed behind the kernel's pages. */
void work_release(struct handle *base, bool passed)
{
	struct work_handle *h = (struct work_handle *)base;

	if (passed && (h->flags & O_ACCMODE) != O_RDONLY)
		work_take_back(h->n->work);
	if (h->dir)
		closedir(h->dir);
	else
		sbx_closep(&h->fd);
	work_unpin(h->n);
	pthread_mutex_destroy(&h->lock);
	free(h);
}

/* ---- files ----------------------------------------------------------------------------------- */

void work_read(fuse_req_t req, struct fuse_file_info *fi, size_t size, off_t off)
{
	struct work_handle *h = work_handle(fi);
	struct fuse_bufvec v = FUSE_BUFVEC_INIT(size);

	v.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK;
	v.buf[0].fd = h->fd;
	v.buf[0].pos = off;
	fuse_reply_data(req, &v, FUSE_BUF_SPLICE_MOVE);
}

/* Puts on the account what a write of len bytes at off makes the file grow by. -errno, or the
 * growth. */
static int64_t take_growth(struct work_handle *h, off_t off, size_t len)
{
	struct stat st;
	int64_t growth;

	if (fstat(h->fd, &st) < 0)
		return -errno;
	growth = (h->flags & O_APPEND ? st.st_size : off) + (int64_t)len - st.st_size;
	if (growth < 0)
		growth = 0;
	return work_take(h->n, growth) ? growth : -ENOSPC;
}

/* Of size bytes only n came: what is missing did not make it grow. */
static void give_rest(struct work_handle *h, int64_t growth, size_t size, ssize_t n)
{
	int64_t missing = (int64_t)size - n;

	work_give(h->n, growth < missing ? growth : missing);
}

void work_write(fuse_req_t req, struct fuse_file_info *fi, const char *data, size_t size, off_t off)
{
	struct work_handle *h = work_handle(fi);
	int64_t growth = take_growth(h, off, size);
	ssize_t n;

	if (growth < 0) {
		fuse_reply_err(req, (int)-growth);
		return;
	}
	n = pwrite(h->fd, data, size, off);
	if (n < 0) {
		int err = errno;

		work_give(h->n, growth);
		fuse_reply_err(req, err);
		return;
	}
	give_rest(h, growth, size, n);
	fuse_reply_write(req, (size_t)n);
}

static int sync_now(struct fsd *f, struct job *j)
{
	if ((j->datasync ? fdatasync(j->fd) : fsync(j->fd)) < 0)
		return -errno;
	return session_settle(f, j); /* what is in a clone lasts only when all of it does */
}

static void synced(struct fsd *f, struct job *j, int r)
{
	(void)f;
	fuse_reply_err(j->req, -r);
}

/* A disk takes its time, and a server thread has none. */
void work_fsync(struct fsd *f, fuse_req_t req, struct fuse_file_info *fi, bool datasync)
{
	struct work_handle *h = work_handle(fi);
	struct job j = { .req = req,
			 .perform = sync_now,
			 .answer = synced,
			 .fd = h->dir ? dirfd(h->dir) : h->fd,
			 .datasync = datasync };

	memcpy(j.id, h->n->work->id, sizeof(j.id));
	writers_give_job(f->writers, &j);
}

void work_lseek(fuse_req_t req, struct fuse_file_info *fi, off_t off, int whence)
{
	off_t at = lseek(work_handle(fi)->fd, off, whence);

	if (at < 0)
		fuse_reply_err(req, errno);
	else
		fuse_reply_lseek(req, at);
}

/* Space beyond the end that no size tells of could not be counted. */
void work_fallocate(fuse_req_t req, struct fuse_file_info *fi, int mode, off_t off, off_t len)
{
	struct work_handle *h = work_handle(fi);
	bool hole = mode & FALLOC_FL_PUNCH_HOLE;
	int64_t growth = hole ? 0 : take_growth(h, off, (size_t)len);
	int err = 0;

	if (growth < 0)
		err = (int)-growth;
	else if (growth > 0 && (mode & FALLOC_FL_KEEP_SIZE))
		err = EOPNOTSUPP;
	else if (fallocate(h->fd, mode, off, len) < 0)
		err = errno;
	if (err && growth > 0)
		work_give(h->n, growth);
	fuse_reply_err(req, err);
}

void work_copy_range(fuse_req_t req, struct fuse_file_info *from, off_t off_in,
		     struct fuse_file_info *to, off_t off_out, size_t len)
{
	struct work_handle *a = work_handle(from), *b = work_handle(to);
	int64_t growth;
	ssize_t n = 0;
	int err = 0;

	if (a->h.kind != H_WORK_FILE || b->h.kind != H_WORK_FILE) {
		fuse_reply_err(req, EXDEV);
		return;
	}
	growth = take_growth(b, off_out, len);
	if (growth >= 0) {
		n = copy_file_range(a->fd, &off_in, b->fd, &off_out, len, 0);
		err = n < 0 ? errno : 0;
		give_rest(b, growth, len, n < 0 ? 0 : n);
	}
	if (growth < 0 || err)
		fuse_reply_err(req, growth < 0 ? (int)-growth : err);
	else
		fuse_reply_write(req, (size_t)n);
}

/* ---- directories ----------------------------------------------------------------------------- */

static bool is_dot(const char *name)
{
	return name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2]));
}

/* What is told of one name. 0: it is not there any more. */
static bool entry_of(struct work_handle *h, const struct dirent *d, bool plus,
		     struct fuse_entry_param *ret)
{
	memset(ret, 0, sizeof(*ret));
	if (plus && !is_dot(d->d_name))
		return work_look_up(h->n, d->d_name, ret) == 0;
	/* Node id 0: the kernel does not look at it, and nothing is counted. */
	ret->attr.st_ino = work_number(h->n->is.dev, d->d_ino);
	ret->attr.st_mode = (mode_t)d->d_type << 12;
	return true;
}

static size_t fill(fuse_req_t req, struct handle *handle, char *buf, size_t size, off_t off,
		   bool plus)
{
	struct work_handle *h = (struct work_handle *)handle;
	struct fuse_entry_param e;
	struct dirent *d;
	size_t len = 0, n;

	if (off != h->at)
		seekdir(h->dir, off);
	h->at = off;
	while ((d = readdir(h->dir))) {
		n = plus ? fuse_add_direntry_plus(req, NULL, 0, d->d_name, NULL, 0)
			 : fuse_add_direntry(req, NULL, 0, d->d_name, NULL, 0);
		if (n > size - len) {
			h->at = -1;
			break;
		}
		h->at = d->d_off;
		if (!entry_of(h, d, plus, &e))
			continue;
		len += plus ? fuse_add_direntry_plus(req, buf + len, size - len, d->d_name, &e,
						     d->d_off)
			    : fuse_add_direntry(req, buf + len, size - len, d->d_name, &e.attr,
						d->d_off);
	}
	return len;
}

void work_readdir(fuse_req_t req, struct fuse_file_info *fi, size_t size, off_t off, bool plus)
{
	struct work_handle *h = work_handle(fi);

	dir_reply(req, &h->h, &h->lock, size, off, plus, fill);
}
