/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Open files. The kernel says when one is closed, but for those that are still open when the mount
 * goes: so there is a list of all, and who stops closes them.
 */
#include "fsd/fsd_i.h"

#include <errno.h>

/*
 * What one user may hold open, so that nobody can use up the memory and the descriptors that all
 * share: handles, and bytes of documents that are not complete.
 */
enum { USER_HANDLES = 32768, USERS_KNOWN = 64 };
#define USER_BYTES (INT64_C(128) << 20)
#define ALL_BYTES  (INT64_C(512) << 20)

struct holder {
	uid_t uid;
	int64_t handles, bytes;
};

/* The user's account, or that of all beyond the table. Under handles_lock. */
static struct holder *holder_of(struct fsd *f, uid_t uid)
{
	struct holder *free_one = NULL;

	if (!f->holders)
		f->holders = calloc(USERS_KNOWN, sizeof(*f->holders));
	if (!f->holders)
		return NULL;
	for (size_t i = 1; i < USERS_KNOWN; i++) {
		struct holder *u = &f->holders[i];

		if (u->handles && u->uid == uid)
			return u;
		if (!u->handles && !free_one)
			free_one = u;
	}
	if (!free_one)
		return &f->holders[0];
	*free_one = (struct holder){ .uid = uid };
	return free_one;
}

bool handle_charge(struct fsd *f, struct handle *h, size_t len)
{
	bool ok;

	pthread_mutex_lock(&f->handles_lock);
	ok = h->holder && h->holder->bytes + (int64_t)len <= USER_BYTES &&
	     f->doc_bytes + (int64_t)len <= ALL_BYTES;
	if (ok) {
		h->charged += (int64_t)len;
		h->holder->bytes += (int64_t)len;
		f->doc_bytes += (int64_t)len;
	}
	pthread_mutex_unlock(&f->handles_lock);
	return ok;
}

void handle_discharge(struct fsd *f, struct handle *h)
{
	pthread_mutex_lock(&f->handles_lock);
	if (h->holder)
		h->holder->bytes -= h->charged;
	f->doc_bytes -= h->charged;
	h->charged = 0;
	pthread_mutex_unlock(&f->handles_lock);
}

static void remove_handle(struct fsd *f, struct handle *h)
{
	pthread_mutex_lock(&f->handles_lock);
	*h->at = h->next;
	if (h->next)
		h->next->at = h->at;
	if (h->holder) {
		h->holder->bytes -= h->charged;
		h->holder->handles--;
	}
	f->doc_bytes -= h->charged;
	h->charged = 0;
	h->holder = NULL;
	pthread_mutex_unlock(&f->handles_lock);
}

bool handle_add(struct fsd *f, fuse_req_t req, struct fuse_file_info *fi, struct handle *h)
{
	bool too_many;

	fi->fh = (uintptr_t)h;
	pthread_mutex_lock(&f->handles_lock);
	h->holder = holder_of(f, fuse_req_ctx(req)->uid);
	too_many = !h->holder || h->holder->handles >= USER_HANDLES;
	if (h->holder)
		h->holder->handles++;
	h->next = f->handles;
	h->at = &f->handles;
	if (h->next)
		h->next->at = &h->next;
	f->handles = h;
	pthread_mutex_unlock(&f->handles_lock);
	if (too_many)
		handle_close(f, h);
	return !too_many;
}

void handle_opened(struct fsd *f, fuse_req_t req, struct fuse_file_info *fi, struct handle *h)
{
	if (!handle_add(f, req, fi, h)) {
		fuse_reply_err(req, EMFILE);
		return;
	}
	/* A caller who has been interrupted never got it, and will never close it. */
	if (fuse_reply_open(req, fi) != 0)
		handle_close(f, h);
}

void handle_close(struct fsd *f, struct handle *h)
{
	bool passed = h->in_pass && pass_close(f, h->ino);

	remove_handle(f, h);
	switch (h->kind) {
	case H_TEXT:
		parking_drop_text(f->parking, (struct text_handle *)h);
		text_free(f, (struct text_handle *)h);
		break;
	case H_LOG:
		log_free((struct log_handle *)h);
		break;
	case H_CONTROL:
		control_release(f, h);
		break;
	case H_STREAM:
		stream_release(f, h);
		break;
	case H_REAL_FILE:
	case H_REAL_DIR:
		real_release(h);
		break;
	case H_COMING:
		coming_release(h);
		break;
	case H_TAR:
		shot_tar_release(h);
		break;
	case H_WORK_FILE:
	case H_WORK_DIR:
		work_release(h, passed);
		break;
	}
}

void handle_close_all(struct fsd *f)
{
	while (f->handles)
		handle_close(f, f->handles);
}
