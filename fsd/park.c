/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads that wait. A request is parked in a table and holds no thread; the feed thread answers it
 * when there is something, an interrupt answers it with EINTR.
 *
 * A parked request is in exactly one of three states, under `lock`: PARKING while its handler is
 * still setting it up, PARKED, and gone. Whoever takes it out of the table answers it, so each is
 * answered once. Nothing is asked of the store or sent to the kernel while the lock is held.
 */
#include "fsd/park_i.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"

struct waiter {
	struct waiter *req_next, **req_at; /* chain of its request's bucket */
	struct waiter *row_next, **row_at; /* chain of its row's bucket */
	fuse_req_t req;
	size_t size;
	struct stream_handle *h;
	bool parking;	  /* its handler is not done yet */
	bool interrupted; /* while parking */
	bool ready;	  /* while parking */
};

struct parking *parking_new(struct fsd *f)
{
	struct parking *p = calloc(1, sizeof(*p));

	if (p) {
		p->f = f;
		pthread_mutex_init(&p->lock, NULL);
	}
	return p;
}

static size_t req_bucket(fuse_req_t req)
{
	return ((uintptr_t)req >> 6) % PARK_BUCKETS;
}

static size_t row_bucket(int64_t row)
{
	return (size_t)row % PARK_BUCKETS;
}

/* Both under the lock. */
static void put(struct parking *p, struct waiter *w)
{
	w->req_at = &p->by_req[req_bucket(w->req)];
	w->row_at = &p->by_row[row_bucket(w->h->h.row)];
	w->req_next = *w->req_at;
	w->row_next = *w->row_at;
	if (w->req_next)
		w->req_next->req_at = &w->req_next;
	if (w->row_next)
		w->row_next->row_at = &w->row_next;
	*w->req_at = *w->row_at = w;
}

static void take(struct waiter *w)
{
	*w->req_at = w->req_next;
	*w->row_at = w->row_next;
	if (w->req_next)
		w->req_next->req_at = w->req_at;
	if (w->row_next)
		w->row_next->row_at = w->row_at;
}

void parking_end(struct parking *p)
{
	for (size_t i = 0; p && i < PARK_BUCKETS; i++) {
		struct waiter *w;

		while ((w = p->by_req[i])) {
			take(w);
			fuse_reply_err(w->req, ENOTCONN);
			free(w);
		}
	}
}

void parking_free(struct parking *p)
{
	if (!p)
		return;
	pthread_mutex_destroy(&p->lock);
	free(p);
}

/* ---- what a read gives now ------------------------------------------------------------------- */

/* GOT_ERROR: what there is could not be told, which is not the same as the end. */
enum got { GOT_NOTHING, GOT_DATA, GOT_END, GOT_ERROR };

static enum got wait_now(struct fsd *f, struct stream_handle *h, struct sbx_buf *out)
{
	store_autorun r = { 0 };

	if (h->answer_len == 0) {
		int rc = store_run_get_row(f->store, h->h.row, &r, NULL);

		if (rc < 0)
			return rc == -SBX_E_RUN_NOT_FOUND ? GOT_END : GOT_ERROR;
		if (!store_phase_terminal(r.phase))
			return GOT_NOTHING;
		if (r.has_exit_code)
			(void)snprintf(h->answer, sizeof(h->answer), "%d\n", r.exit_code);
		else
			(void)snprintf(h->answer, sizeof(h->answer), "%s\n",
				       store_phase_name(r.phase));
		h->answer_len = strlen(h->answer);
	}
	if (h->answer_off >= h->answer_len)
		return GOT_END;
	sbx_buf_puts(out, h->answer + h->answer_off);
	return GOT_DATA;
}

static enum got stream_now(struct stream_handle *h, size_t size, struct sbx_buf *out)
{
	char *room;
	ssize_t n;

	if (log_reader_refresh(h->log, NULL) < 0)
		return GOT_ERROR;
	room = sbx_buf_reserve(out, size);
	if (!room)
		return GOT_ERROR;
	n = log_reader_read(h->log, LOG_VIEW_NDJSON, h->at, room, size, NULL);
	if (n > 0) {
		out->len += (size_t)n;
		return GOT_DATA;
	}
	if (n < 0)
		return GOT_ERROR;
	return log_reader_ended(h->log) ? GOT_END : GOT_NOTHING;
}

static void event_line(const struct store_change *c, struct sbx_buf *out)
{
	char when[SBX_TIME_TEXT];

	sbx_buf_printf(out, "{\"seq\":%" PRId64 ",\"ts\":\"%s\",\"kind\":\"%s\",\"id\":\"%s\",",
		       c->seq, sbx_time_format(c->at_us, when), c->kind, c->id);
	sbx_buf_printf(out, "\"what\":\"%s\",\"phase\":", c->what);
	sbx_buf_json_strz(out, c->phase[0] ? c->phase : NULL);
	sbx_buf_puts(out, ",\"user\":");
	sbx_buf_json_strz(out, c->user);
	sbx_buf_puts(out, "}\n");
}

static enum got events_now(struct fsd *f, struct stream_handle *h, size_t size, struct sbx_buf *out)
{
	uint64_t mine = store_user_hash(h->who.user);
	struct store_change c[PARK_BATCH];

	if (h->rest.len > h->rest_off) { /* the end of a line that did not fit */
		sbx_buf_add(out, h->rest.data + h->rest_off, h->rest.len - h->rest_off);
		return GOT_DATA;
	}
	sbx_buf_free(&h->rest);
	h->rest_off = 0;
	while (out->len < size) {
		bool gap = false;
		int n = store_changes(f->store, h->at, c, PARK_BATCH, &gap, NULL);

		if (n < 0)
			return GOT_ERROR;
		if (gap && n > 0)
			sbx_buf_printf(out,
				       "{\"gap\":true,\"after\":%" PRId64 ",\"lowest\":%" PRId64
				       "}\n",
				       h->at, c[0].seq);
		for (int i = 0; i < n; i++) {
			h->at = c[i].seq;
			if (h->who.admin || c[i].user_hash == mine)
				event_line(&c[i], out);
		}
		if (n < PARK_BATCH)
			break;
	}
	return out->len ? GOT_DATA : GOT_NOTHING;
}

/* Fills out with at most size bytes and moves the cursor. Under h->lock. */
static enum got read_now(struct fsd *f, struct stream_handle *h, size_t size, struct sbx_buf *out)
{
	enum got g;

	switch (h->view) {
	case MS_V_WAIT:
		g = wait_now(f, h, out);
		if (out->len > size)
			out->len = size;
		h->answer_off += out->len;
		return g;
	case MS_V_STREAM:
		g = stream_now(h, size, out);
		h->at += (int64_t)out->len;
		return g;
	default:
		g = events_now(f, h, size, out);
		if (out->len > size) {
			struct sbx_buf rest = SBX_BUF_INIT(1 << 20);

			sbx_buf_add(&rest, out->data + size, out->len - size);
			out->len = size;
			sbx_buf_free(&h->rest);
			h->rest = rest;
			h->rest_off = 0;
		} else if (h->rest_off < h->rest.len) {
			h->rest_off += out->len;
		}
		return g;
	}
}

static enum got look(struct fsd *f, struct stream_handle *h, size_t size, struct sbx_buf *out)
{
	enum got g;

	pthread_mutex_lock(&h->lock);
	g = read_now(f, h, size, out);
	pthread_mutex_unlock(&h->lock);
	return g;
}

/* ---- parking --------------------------------------------------------------------------------- */

static void interrupted(fuse_req_t req, void *data)
{
	struct parking *p = data;
	struct waiter *w;

	pthread_mutex_lock(&p->lock);
	for (w = p->by_req[req_bucket(req)]; w && w->req != req;)
		w = w->req_next;
	if (w && w->parking) {
		w->interrupted = true; /* its handler will see it */
		w = NULL;
	} else if (w) {
		take(w);
	}
	pthread_mutex_unlock(&p->lock);
	if (w) {
		fuse_reply_err(w->req, EINTR);
		free(w);
	}
}

static void reply(fuse_req_t req, enum got g, const struct sbx_buf *out)
{
	if (g == GOT_ERROR)
		fuse_reply_err(req, EIO);
	else
		fuse_reply_buf(req, out->data, g == GOT_DATA ? out->len : 0);
}

enum parked { PARK_WAITS, PARK_AGAIN, PARK_INTERRUPTED, PARK_ANSWER };

/* Ends one look of a handler at its state, which gave g. */
static enum parked settle(struct parking *p, struct waiter *w, enum got g)
{
	enum parked what = PARK_WAITS;

	pthread_mutex_lock(&p->lock);
	if (g != GOT_NOTHING)
		what = PARK_ANSWER;
	else if (w->interrupted)
		what = PARK_INTERRUPTED;
	else if (w->ready)
		what = PARK_AGAIN;
	if (what == PARK_ANSWER || what == PARK_INTERRUPTED)
		take(w); /* before the answer: afterwards the kernel may use req's memory anew */
	w->ready = false;
	w->parking = what == PARK_AGAIN;
	pthread_mutex_unlock(&p->lock);
	return what;
}

/* Answers now or parks. The waiter is in the table before the state is looked at, so that a
 * change in between is not missed: it marks the waiter ready, and we look again. */
static void park(struct fsd *f, fuse_req_t req, struct stream_handle *h, size_t size)
{
	sbx_autobuf out = SBX_BUF_INIT((4 << 20) + size);
	struct waiter *w = calloc(1, sizeof(*w));
	enum parked what;
	enum got g;

	if (!w) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	*w = (struct waiter){ .req = req, .size = size, .h = h, .parking = true };
	pthread_mutex_lock(&f->parking->lock);
	put(f->parking, w);
	pthread_mutex_unlock(&f->parking->lock);
	fuse_req_interrupt_func(req, interrupted, f->parking);
	do {
		g = look(f, h, size, &out);
		what = settle(f->parking, w, g);
	} while (what == PARK_AGAIN);
	if (what == PARK_WAITS)
		return; /* w belongs to the table now */
	if (what == PARK_INTERRUPTED)
		fuse_reply_err(req, EINTR);
	else
		reply(req, g, &out);
	free(w);
}

/* Lets every waiter of this row (0: of .events) look again. */
static void wake(struct parking *p, int64_t row, enum ms_view a, enum ms_view b)
{
	struct waiter *ready = NULL, *w, *next;

	pthread_mutex_lock(&p->lock);
	for (w = p->by_row[row_bucket(row)]; w; w = next) {
		next = w->row_next;
		if (w->h->h.row != row || (w->h->view != a && w->h->view != b))
			continue;
		if (w->parking) {
			w->ready = true;
			continue;
		}
		take(w);
		w->row_next = ready;
		ready = w;
	}
	pthread_mutex_unlock(&p->lock);
	while ((w = ready)) {
		struct waiter now = *w;

		ready = w->row_next;
		free(w);
		/* Out of the table, an interrupt finds nothing: we alone answer. If it came
		 * meanwhile, libfuse calls the function again as soon as park() sets it. */
		park(p->f, now.req, now.h, now.size);
	}
}

/* ---- handlers -------------------------------------------------------------------------------- */

static int open_stream(struct fsd *f, struct stream_handle *h, struct sbx_error *e)
{
	sbx_autoclose int dir = -1;
	int rc;

	if (h->view == MS_V_EVENTS)
		return store_changes_last(f->store, &h->at, e);
	if (h->view != MS_V_STREAM)
		return 0;
	rc = log_reader_open(f->store, h->h.id, &h->log, e);
	if (rc < 0 || log_reader_ended(h->log))
		return rc;
	dir = store_run_dir(f->store, h->h.id, true, e); /* there must be one to watch */
	if (dir < 0)
		return dir;
	feed_watch_log(f->feed, h->h.row, h->h.id);
	h->watching = true;
	return 0;
}

void stream_open(struct fsd *f, fuse_req_t req, fuse_ino_t ino, const struct run_ref *run,
		 struct fuse_file_info *fi)
{
	const struct ms_node *n = ms_node(ino_node(ino));
	sbx_autoerror e = SBX_ERROR_INIT;
	struct stream_handle *h;

	if ((fi->flags & O_ACCMODE) != O_RDONLY && n->verb == MS_W_NONE) {
		fuse_reply_err(req, EACCES);
		return;
	}
	h = calloc(1, sizeof(*h));
	if (!h) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	h->h.kind = H_STREAM;
	h->h.ino = ino;
	h->h.row = run ? run->key.row : 0;
	if (run)
		memcpy(h->h.id, run->key.id, sizeof(h->h.id));
	h->view = n->view;
	h->rest = (struct sbx_buf)SBX_BUF_INIT(1 << 20);
	pthread_mutex_init(&h->lock, NULL);
	who_is(f, req, &h->who);
	pthread_mutex_lock(&f->parking->lock);
	h->next = f->parking->streams;
	if (h->next)
		h->next->prev = h;
	f->parking->streams = h;
	pthread_mutex_unlock(&f->parking->lock);
	if (open_stream(f, h, &e) < 0) {
		stream_release(f, &h->h);
		fuse_reply_err(req, fsd_errno(&e));
		return;
	}
	fi->direct_io = 1;
	fi->nonseekable = 1;
	fi->noflush = 1;
	handle_opened(f, req, fi, &h->h);
}

void stream_release(struct fsd *f, struct handle *base)
{
	struct stream_handle *h = (struct stream_handle *)base;

	pthread_mutex_lock(&f->parking->lock);
	if (h->prev)
		h->prev->next = h->next;
	else
		f->parking->streams = h->next;
	if (h->next)
		h->next->prev = h->prev;
	pthread_mutex_unlock(&f->parking->lock);
	if (h->poll)
		fuse_pollhandle_destroy(h->poll);
	if (h->watching && f->feed)
		feed_unwatch_log(f->feed, h->h.row);
	log_reader_close(h->log);
	sbx_buf_free(&h->rest);
	pthread_mutex_destroy(&h->lock);
	free(h);
}

void stream_read(struct fsd *f, fuse_req_t req, struct fuse_file_info *fi, size_t size)
{
	struct stream_handle *h = (struct stream_handle *)handle_of(fi);
	sbx_autobuf out = SBX_BUF_INIT((4 << 20) + size);
	enum got g;

	if (!(fi->flags & O_NONBLOCK)) {
		park(f, req, h, size);
		return;
	}
	g = look(f, h, size, &out);
	if (g == GOT_NOTHING)
		fuse_reply_err(req, EAGAIN);
	else
		reply(req, g, &out);
}

void stream_write(struct fsd *f, fuse_req_t req, struct fuse_file_info *fi, const char *data,
		  size_t len)
{
	struct stream_handle *h = (struct stream_handle *)handle_of(fi);
	char text[32] = "", *end;
	long long seq;

	(void)f;
	if (h->view != MS_V_EVENTS || len >= sizeof(text)) {
		fuse_reply_err(req, EINVAL);
		return;
	}
	memcpy(text, data, len);
	seq = strtoll(text, &end, 10);
	if (end == text || (*end != '\0' && *end != '\n') || seq < 0) {
		fuse_reply_err(req, EINVAL);
		return;
	}
	pthread_mutex_lock(&h->lock);
	h->at = seq;
	sbx_buf_free(&h->rest);
	h->rest_off = 0;
	pthread_mutex_unlock(&h->lock);
	fuse_reply_write(req, len);
}

/* ---- the feed thread: something happened ----------------------------------------------------- */

/* The next row of the bucket that somebody waits for; INT64_MAX: there is none. */
static int64_t next_row(struct parking *p, size_t bucket, int64_t after)
{
	int64_t row = INT64_MAX;

	pthread_mutex_lock(&p->lock);
	for (struct waiter *w = p->by_row[bucket]; w; w = w->row_next)
		if (w->h->h.row > after && w->h->h.row < row)
			row = w->h->h.row;
	pthread_mutex_unlock(&p->lock);
	return row;
}

void parking_look_all(struct parking *p)
{
	for (size_t i = 0; i < PARK_BUCKETS; i++) {
		int64_t row = -1;

		while ((row = next_row(p, i, row)) != INT64_MAX) {
			if (row)
				wake(p, row, MS_V_WAIT, MS_V_STREAM);
			else
				wake(p, 0, MS_V_EVENTS, MS_V_EVENTS);
		}
	}
}

void parking_run_changed(struct parking *p, int64_t row, bool terminal)
{
	/* The frames `start` and `end` come with the row. */
	wake(p, row, terminal ? MS_V_WAIT : MS_V_STREAM, MS_V_STREAM);
	poll_notify(p, row, MS_V_WAIT, MS_V_STREAM);
}

void parking_log_grew(struct parking *p, int64_t row)
{
	wake(p, row, MS_V_STREAM, MS_V_STREAM);
	poll_notify(p, row, MS_V_STREAM, MS_V_STREAM);
}

void parking_events(struct parking *p)
{
	wake(p, 0, MS_V_EVENTS, MS_V_EVENTS);
	poll_notify(p, 0, MS_V_EVENTS, MS_V_EVENTS);
}
