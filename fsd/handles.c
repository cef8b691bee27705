/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Open files. The kernel says when one is closed, but for those that are still open when the mount
 * goes: so there is a list of all, and who stops closes them.
 */
#include "fsd/fsd_i.h"

static void remove_handle(struct fsd *f, struct handle *h)
{
	pthread_mutex_lock(&f->handles_lock);
	*h->at = h->next;
	if (h->next)
		h->next->at = h->at;
	pthread_mutex_unlock(&f->handles_lock);
}

void handle_opened(struct fsd *f, fuse_req_t req, struct fuse_file_info *fi, struct handle *h)
{
	fi->fh = (uintptr_t)h;
	pthread_mutex_lock(&f->handles_lock);
	h->next = f->handles;
	h->at = &f->handles;
	if (h->next)
		h->next->at = &h->next;
	f->handles = h;
	pthread_mutex_unlock(&f->handles_lock);
	/* A caller who has been interrupted never got it, and will never close it. */
	if (fuse_reply_open(req, fi) != 0)
		handle_close(f, h);
}

void handle_close(struct fsd *f, struct handle *h)
{
	remove_handle(f, h);
	switch (h->kind) {
	case H_TEXT:
		parking_drop_text(f->parking, (struct text_handle *)h);
		text_free((struct text_handle *)h);
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
	}
}

void handle_close_all(struct fsd *f)
{
	while (f->handles)
		handle_close(f, f->handles);
}
