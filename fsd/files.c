/* SPDX-License-Identifier: Apache-2.0 */
/* Opened texts (content fixed at open) and logs (content by offset, as it is now). */
#include "fsd/fsd_i.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"

/* ---- texts ----------------------------------------------------------------------------------- */

static void handle_init(struct handle *h, enum handle_kind kind, fuse_ino_t ino,
			const struct run_ref *run)
{
	h->kind = kind;
	h->ino = ino;
	h->row = run ? run->key.row : 0;
	if (run)
		memcpy(h->id, run->key.id, sizeof(h->id));
}

/* The kicker opens `status` for writing to raise an event and changes nothing; nobody else may. */
static bool may_open(struct fsd *f, fuse_req_t req, const struct fuse_file_info *fi)
{
	return (fi->flags & O_ACCMODE) == O_RDONLY || is_kicker(f, req);
}

static void text_lives(struct fsd *f, fuse_req_t req, struct text_handle *h)
{
	h->opener = fuse_req_ctx(req)->pid;
	h->opened_us = sbx_boot_us();
	pthread_mutex_lock(&f->handles_lock);
	h->live_at = &f->live_texts;
	h->live_next = f->live_texts;
	if (h->live_next)
		h->live_next->live_at = &h->live_next;
	f->live_texts = h;
	pthread_mutex_unlock(&f->handles_lock);
}

/*
 * The kernel does not say which handle an fstat is about. Who copies (rsync, tar) opens, asks for
 * the size and reads, and must be told the size of the text that was fixed at the open, or health
 * and metrics could change in between.
 */
int64_t text_size(struct fsd *f, fuse_req_t req, fuse_ino_t ino)
{
	int64_t since = sbx_boot_us() - SBX_SECOND_US, size = -1;
	pid_t pid = fuse_req_ctx(req)->pid; /* 0: of a namespace that we do not see */

	pthread_mutex_lock(&f->handles_lock);
	for (struct text_handle *h = f->live_texts; h && h->opened_us >= since; h = h->live_next) {
		if (h->h.ino == ino && h->opener == pid && pid) {
			size = (int64_t)h->len;
			break;
		}
	}
	pthread_mutex_unlock(&f->handles_lock);
	return size;
}

void text_open(struct fsd *f, fuse_req_t req, fuse_ino_t ino, const struct run_ref *run,
	       struct fuse_file_info *fi)
{
	const struct ms_node *n = ms_node(ino_node(ino));
	struct text_handle *h;
	struct sbx_buf out = SBX_BUF_INIT(RENDER_MAX);
	int r;

	if (!may_open(f, req, fi)) {
		fuse_reply_err(req, EACCES);
		return;
	}
	h = calloc(1, sizeof(*h));
	r = h ? render(f, req, ino, run, &out) : -ENOMEM;
	if (r < 0) {
		sbx_buf_free(&out);
		free(h);
		fuse_reply_err(req, -r);
		return;
	}
	handle_init(&h->h, H_TEXT, ino, run);
	pthread_mutex_init(&h->lock, NULL);
	h->len = out.len;
	h->data = out.data;
	h->seen = run ? run->key.phase : 0;
	fi->noflush = 1;
	if (is_final(n, run)) {
		fi->keep_cache = 1;
	} else {
		fi->direct_io = 1;
		text_lives(f, req, h);
	}
	handle_opened(f, req, fi, &h->h);
}

void text_read(fuse_req_t req, struct text_handle *h, size_t size, off_t off)
{
	size_t from = (size_t)off < h->len ? (size_t)off : h->len;

	if (size > h->len - from)
		size = h->len - from;
	pthread_mutex_lock(&h->lock);
	fuse_reply_buf(req, size ? h->data + from : NULL, size);
	pthread_mutex_unlock(&h->lock);
}

void wait_for_reply(pthread_mutex_t *lock)
{
	pthread_mutex_lock(lock);
	pthread_mutex_unlock(lock);
	pthread_mutex_destroy(lock);
}

void text_free(struct fsd *f, struct text_handle *h)
{
	pthread_mutex_lock(&f->handles_lock);
	if (h->live_at) {
		*h->live_at = h->live_next;
		if (h->live_next)
			h->live_next->live_at = h->live_at;
	}
	pthread_mutex_unlock(&f->handles_lock);
	wait_for_reply(&h->lock);
	free(h->data);
	free(h);
}

/* ---- logs ------------------------------------------------------------------------------------ */

int log_view_of(const struct ms_node *n)
{
	switch (n->view) {
	case MS_V_STDOUT:
		return LOG_VIEW_STDOUT;
	case MS_V_STDERR:
		return LOG_VIEW_STDERR;
	case MS_V_NDJSON:
		return LOG_VIEW_NDJSON;
	default:
		return LOG_VIEW_ALL;
	}
}

int64_t log_size(struct fsd *f, const char *id, enum log_view view, struct timespec *changed)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	struct log_reader *log = NULL;
	int64_t size;
	struct stat st;

	if (log_reader_open(f->store, id, &log, &e) < 0)
		return -fsd_errno(&e);
	size = log_reader_size(log, view);
	if (log_reader_fd(log) >= 0 && fstat(log_reader_fd(log), &st) == 0)
		*changed = st.st_mtim;
	log_reader_close(log);
	return size;
}

void log_open(struct fsd *f, fuse_req_t req, fuse_ino_t ino, const struct run_ref *run,
	      struct fuse_file_info *fi)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	struct log_handle *h;

	if (!may_open(f, req, fi)) {
		fuse_reply_err(req, EACCES);
		return;
	}
	h = calloc(1, sizeof(*h));
	if (!h) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	handle_init(&h->h, H_LOG, ino, run);
	h->view = (enum log_view)log_view_of(ms_node(ino_node(ino)));
	pthread_mutex_init(&h->lock, NULL);
	if (log_reader_open(f->store, h->h.id, &h->log, &e) < 0) {
		log_free(h);
		fuse_reply_err(req, fsd_errno(&e));
		return;
	}
	fi->noflush = 1;
	/* A live log goes past the page cache, so that every read sees what is there now. */
	if (log_reader_ended(h->log))
		fi->keep_cache = 1;
	else
		fi->direct_io = 1;
	handle_opened(f, req, fi, &h->h);
}

/* The merged log is a plain file: its pages go to the kernel without passing through here. */
static void splice_log(fuse_req_t req, struct log_handle *h, size_t size, off_t off)
{
	struct fuse_bufvec v = FUSE_BUFVEC_INIT(size);
	int64_t end = log_reader_size(h->log, LOG_VIEW_ALL);
	int fd = log_reader_fd(h->log);

	if (fd < 0 || off >= end) {
		fuse_reply_buf(req, NULL, 0);
		return;
	}
	if ((int64_t)size > end - off)
		size = (size_t)(end - off);
	v.buf[0].size = size;
	v.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK;
	v.buf[0].fd = fd;
	v.buf[0].pos = off;
	fuse_reply_data(req, &v, FUSE_BUF_SPLICE_MOVE);
}

void log_read(fuse_req_t req, struct log_handle *h, size_t size, off_t off)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	sbx_autofree char *buf = NULL;
	ssize_t n = 0;

	pthread_mutex_lock(&h->lock);
	if (log_reader_refresh(h->log, &e) < 0) {
		n = -1;
	} else if (h->view == LOG_VIEW_ALL) {
		splice_log(req, h, size, off);
		pthread_mutex_unlock(&h->lock);
		return;
	} else {
		buf = malloc(size ? size : 1);
		if (buf)
			n = log_reader_read(h->log, h->view, off, buf, size, &e);
		else
			n = sbx_fail(&e, SBX_E_NO_MEMORY, "no memory for a read");
	}
	pthread_mutex_unlock(&h->lock);
	if (n < 0)
		fuse_reply_err(req, fsd_errno(&e));
	else
		fuse_reply_buf(req, buf, (size_t)n);
}

void log_free(struct log_handle *h)
{
	wait_for_reply(&h->lock);
	log_reader_close(h->log);
	free(h);
}
