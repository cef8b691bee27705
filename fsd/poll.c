/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poll on nodes that wait, and on `status`. The kernel gives a handle with which it wants to be
 * told once; it is kept at the open file, under the lock of the table of waiters, until there is
 * something.
 */
#include "fsd/park_i.h"

#include <poll.h>

/* Is there a change that this caller may see? What it may not see is passed over for good. */
static bool some_event(struct fsd *f, struct stream_handle *h)
{
	uint64_t mine = store_user_hash(h->who.user);
	struct store_change c[PARK_BATCH];
	bool gap = false;
	int n;

	if (h->rest.len > h->rest_off)
		return true;
	do {
		n = store_changes(f->store, h->at, c, PARK_BATCH, &gap, NULL);
		if (n < 0 || (n > 0 && gap))
			return true;
		for (int i = 0; i < n; i++) {
			if (h->who.admin || c[i].user_hash == mine)
				return true;
			h->at = c[i].seq;
		}
	} while (n == PARK_BATCH);
	return false;
}

static bool something(struct fsd *f, struct stream_handle *h)
{
	struct store_run_key key;

	if (h->view == MS_V_EVENTS)
		return some_event(f, h);
	if (h->view == MS_V_STREAM) {
		if (log_reader_refresh(h->log, NULL) < 0 || log_reader_ended(h->log) ||
		    log_reader_size(h->log, LOG_VIEW_NDJSON) > h->at)
			return true;
	}
	if (store_run_key_row(f->store, h->h.row, &key, NULL, NULL) < 0)
		return true;
	return h->view == MS_V_WAIT && store_phase_terminal(key.phase);
}

void stream_poll(struct fsd *f, fuse_req_t req, struct fuse_file_info *fi,
		 struct fuse_pollhandle *ph)
{
	struct stream_handle *h = (struct stream_handle *)handle_of(fi);
	struct fuse_pollhandle *old = NULL;
	unsigned events = h->view == MS_V_EVENTS ? POLLOUT : 0;

	/* Registered first, looked at after, so that no change falls between. */
	if (ph) {
		pthread_mutex_lock(&f->parking->lock);
		old = h->poll;
		h->poll = ph;
		pthread_mutex_unlock(&f->parking->lock);
	}
	if (old)
		fuse_pollhandle_destroy(old);
	pthread_mutex_lock(&h->lock);
	if (something(f, h))
		events |= POLLIN;
	pthread_mutex_unlock(&h->lock);
	fuse_reply_poll(req, events);
}

/* `status` is always readable; POLLPRI says that it changed since this handle was opened, as sysfs
 * attributes do. */
void status_poll(struct fsd *f, fuse_req_t req, struct text_handle *h, struct fuse_pollhandle *ph)
{
	struct fuse_pollhandle *old = NULL;
	struct store_run_key key;
	unsigned events = POLLIN;

	if (ph) {
		pthread_mutex_lock(&f->parking->lock);
		old = h->poll;
		h->poll = ph;
		if (!h->polled_at) {
			h->polled_at = &f->parking->polled;
			h->polled_next = *h->polled_at;
			if (h->polled_next)
				h->polled_next->polled_at = &h->polled_next;
			*h->polled_at = h;
		}
		pthread_mutex_unlock(&f->parking->lock);
	}
	if (old)
		fuse_pollhandle_destroy(old);
	if (h->h.row && store_run_key_row(f->store, h->h.row, &key, NULL, NULL) == 0 &&
	    key.phase != h->seen)
		events |= POLLPRI;
	fuse_reply_poll(req, events);
}

void parking_drop_text(struct parking *p, struct text_handle *h)
{
	pthread_mutex_lock(&p->lock);
	if (h->polled_at) {
		*h->polled_at = h->polled_next;
		if (h->polled_next)
			h->polled_next->polled_at = h->polled_at;
	}
	pthread_mutex_unlock(&p->lock);
	if (h->poll)
		fuse_pollhandle_destroy(h->poll);
}

/* Takes poll handles out under the lock, tells the kernel outside it. */
void poll_notify(struct parking *p, int64_t row, enum ms_view a, enum ms_view b)
{
	struct fuse_pollhandle *list[64];
	size_t n;

	do {
		n = 0;
		pthread_mutex_lock(&p->lock);
		for (struct stream_handle *h = p->streams; h && n < SBX_COUNT(list); h = h->next) {
			if (h->poll && h->h.row == row && (h->view == a || h->view == b)) {
				list[n++] = h->poll;
				h->poll = NULL;
			}
		}
		for (struct text_handle *h = p->polled; h && n < SBX_COUNT(list);
		     h = h->polled_next) {
			if (h->poll && row && h->h.row == row) {
				list[n++] = h->poll;
				h->poll = NULL;
			}
		}
		pthread_mutex_unlock(&p->lock);
		for (size_t i = 0; i < n; i++) {
			(void)fuse_lowlevel_notify_poll(list[i]);
			fuse_pollhandle_destroy(list[i]);
		}
	} while (n == SBX_COUNT(list));
}
