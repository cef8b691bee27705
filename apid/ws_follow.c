/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The runs that are followed: one reader and one watch for each, however many sockets. Output is
 * announced by the run's directory (its index grows), the beginning and the end by the feed of the
 * store, which also makes up for a directory that appears late.
 */
#include "apid/ws_i.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>

#include "base/clock.h"
#include "base/log.h"

enum { CHANGES_BATCH = 64, FRAME_LIMIT = LOG_FRAME_MAX * 6 + 1024 };

static struct ws_follow **row_bucket(struct ws *w, int64_t row)
{
	return &w->by_row[(uint64_t)row % WS_BUCKETS];
}

static struct ws_follow *find_row(struct ws *w, int64_t row)
{
	struct ws_follow *f = *row_bucket(w, row);

	while (f && f->row != row)
		f = f->next_row;
	return f;
}

static struct ws_follow *find_wd(struct ws *w, int wd)
{
	struct ws_follow *f = w->by_wd[(unsigned)wd % WS_BUCKETS];

	while (f && f->wd != wd)
		f = f->next_wd;
	return f;
}

/* ---- watches --------------------------------------------------------------------------------- */

static void watched(struct ws_follow *f, int wd)
{
	struct ws_follow **bucket = &f->w->by_wd[(unsigned)wd % WS_BUCKETS];

	f->wd = wd;
	f->next_wd = *bucket;
	*bucket = f;
}

/* 0, or the error. */
static int watch_dir(struct ws_follow *f)
{
	char path[PATH_MAX];
	int wd;

	(void)snprintf(path, sizeof(path), "%s/runs/%s", store_dir(f->w->a->store), f->id);
	wd = inotify_add_watch(f->w->logs, path, IN_MODIFY | IN_CREATE | IN_ONLYDIR);
	if (wd < 0)
		return errno;
	watched(f, wd);
	f->w->n_unwatched--;
	return 0;
}

static int watch_parent(struct ws *w)
{
	char path[PATH_MAX];

	if (w->parent_wd >= 0)
		return 0;
	(void)snprintf(path, sizeof(path), "%s/runs", store_dir(w->a->store));
	w->parent_wd = inotify_add_watch(w->logs, path, IN_CREATE | IN_ONLYDIR);
	return w->parent_wd < 0 ? errno : 0;
}

static void unwatch_parent(struct ws *w)
{
	if (w->n_unwatched == 0 && w->parent_wd >= 0) {
		(void)inotify_rm_watch(w->logs, w->parent_wd);
		w->parent_wd = -1;
	}
}

/* A run that has put nothing out has no directory; then its birth is waited for. If the kernel has
 * no watch for either, which is the one case without an event, it is looked at each second. */
static void watch_run(struct ws_follow *f)
{
	struct ws *w = f->w;
	int err = watch_dir(f);
	bool was_blind = f->blind;

	if (err == ENOENT && w->parent_wd < 0) {
		err = watch_parent(w);
		err = err ? err : watch_dir(f); /* born in between? */
	}
	f->blind = err && err != ENOENT;
	if (f->blind)
		w->again_us = w->now_us + SBX_SECOND_US;
	if (f->blind && !was_blind)
		sbx_log(SBX_LOG_WARNING, "cannot watch a log run=%s error=\"%s\"", f->id,
			strerror(err));
	unwatch_parent(w);
}

static void unwatch_run(struct ws_follow *f)
{
	struct ws_follow **at;

	if (f->wd < 0) {
		f->w->n_unwatched--;
		unwatch_parent(f->w);
		return;
	}
	at = &f->w->by_wd[(unsigned)f->wd % WS_BUCKETS];
	while (*at != f)
		at = &(*at)->next_wd;
	*at = f->next_wd;
	(void)inotify_rm_watch(f->w->logs, f->wd);
}

/* ---- joining and leaving --------------------------------------------------------------------- */

static void destroy(struct ws_follow *f)
{
	log_reader_close(f->log);
	free(f);
}

/* The feed is only listened to while somebody follows a run. */
static int listen_feed(struct ws *w, bool on, struct sbx_error *e)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.ptr = &w->feed };

	if (on) {
		int rc = store_changes_last(w->a->store, &w->feed_seq, e);

		if (rc < 0)
			return rc;
	}
	if (epoll_ctl(w->epoll, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, w->feed, &ev) < 0 && on)
		return sbx_fail_errno(e, SBX_E_INTERNAL, errno, "cannot follow the feed");
	return 0;
}

static void release(struct ws_follow *f)
{
	struct ws *w = f->w;
	struct ws_follow **at = row_bucket(w, f->row);

	if (--f->users > 0)
		return;
	while (*at != f)
		at = &(*at)->next_row;
	*at = f->next_row;
	unwatch_run(f);
	ws_window_forget(w, f);
	destroy(f);
	if (--w->n_follows == 0)
		(void)listen_feed(w, false, NULL);
}

static int begin(struct ws *w, const struct ws_offer *o, struct ws_follow **ret,
		 struct sbx_error *e)
{
	struct ws_follow *f = calloc(1, sizeof(*f)), **bucket = row_bucket(w, o->row);
	int rc = 0;

	if (!f)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory to follow a run");
	f->w = w;
	f->row = o->row;
	f->who = o->who;
	memcpy(f->id, o->run, sizeof(f->id));
	f->wd = -1;
	TAILQ_INIT(&f->sockets);
	/* Everything that announces comes before the look. */
	if (w->n_follows == 0)
		rc = listen_feed(w, true, e);
	if (rc < 0) {
		destroy(f);
		return rc;
	}
	w->n_follows++;
	w->n_unwatched++;
	f->users = 1;
	f->next_row = *bucket;
	*bucket = f;
	watch_run(f);
	rc = log_reader_open(w->a->store, f->id, &f->log, e);
	if (rc < 0) {
		release(f);
		return rc;
	}
	f->frames = log_reader_frames(f->log);
	f->ended = log_reader_ended(f->log);
	*ret = f;
	return 0;
}

int ws_follow_join(struct ws_socket *s, const struct ws_offer *offer, struct sbx_error *e)
{
	struct ws_follow *f = find_row(s->w, offer->row);
	int rc;

	if (f) {
		f->users++;
	} else {
		rc = begin(s->w, offer, &f, e);
		if (rc < 0)
			return rc;
	}
	TAILQ_INSERT_TAIL(&f->sockets, s, peers);
	s->follow = f;
	return 0;
}

void ws_follow_leave(struct ws_socket *s)
{
	struct ws_follow *f = s->follow;

	if (!f)
		return;
	s->follow = NULL;
	TAILQ_REMOVE(&f->sockets, s, peers);
	release(f);
}

size_t ws_follow_count(struct ws *w, int64_t row)
{
	const struct ws_follow *f = find_row(w, row);

	return f ? f->open : 0;
}

/* ---- looking --------------------------------------------------------------------------------- */

/* A log that was begun anew has nothing of the old one. */
static void begun_anew(struct ws_follow *f)
{
	struct ws_socket *s;

	ws_window_forget(f->w, f);
	for (s = TAILQ_FIRST(&f->sockets); s; s = TAILQ_NEXT(s, peers))
		if (s->off == 0 && s->seq > f->frames + 1)
			s->seq = f->frames + 1;
}

/* Each of them may go meanwhile, and with the last one the run. */
static void each_socket(struct ws_follow *f, void (*what)(struct ws_socket *s))
{
	struct ws_socket *s, *next;

	f->users++;
	for (s = TAILQ_FIRST(&f->sockets); s; s = next) {
		next = TAILQ_NEXT(s, peers);
		what(s);
	}
	release(f);
}

static void removed(struct ws_socket *s)
{
	ws_socket_close(s, WS_NOT_FOUND, "the run was removed");
}

static void look(struct ws_follow *f)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	uint64_t before = f->frames;
	int rc;

	if (f->ended)
		return;
	if (f->wd < 0) /* it may be there by now, whether we were told or not */
		watch_run(f);
	rc = log_reader_refresh(f->log, &e);
	if (rc == -SBX_E_RUN_NOT_FOUND) {
		each_socket(f, removed);
		return;
	}
	if (rc < 0) {
		sbx_log(SBX_LOG_WARNING, "cannot look at a log run=%s error=\"%s\"", f->id,
			e.message);
		f->w->again_us = f->w->now_us + SBX_SECOND_US;
		return;
	}
	f->frames = log_reader_frames(f->log);
	f->ended = log_reader_ended(f->log);
	if (f->frames < before)
		begun_anew(f);
	if (f->frames != before || f->ended)
		each_socket(f, ws_socket_pump);
}

/* The directory of a run was made. */
static void born(struct ws *w, const char *id)
{
	for (size_t i = 0; i < WS_BUCKETS && w->n_unwatched > 0; i++) {
		for (struct ws_follow *f = w->by_row[i]; f; f = f->next_row) {
			if (f->wd >= 0 || strcmp(f->id, id) != 0)
				continue;
			look(f); /* there may be output already */
			return;
		}
	}
}

void ws_follow_all(struct ws *w)
{
	for (size_t i = 0; i < WS_BUCKETS; i++) {
		struct ws_follow *f = w->by_row[i], *next;

		for (; f; f = next) {
			next = f->next_row;
			look(f);
		}
	}
}

void ws_follow_logs(struct ws *w)
{
	char buf[16 << 10] __attribute__((aligned(__alignof__(struct inotify_event))));
	const struct inotify_event *ev;
	ssize_t n = read(w->logs, buf, sizeof(buf));
	struct ws_follow *f;
	int last = -1;

	for (char *p = buf; n > 0 && p < buf + n; p += sizeof(*ev) + ev->len) {
		ev = (const struct inotify_event *)(const void *)p;
		if (ev->mask & IN_Q_OVERFLOW) {
			w->again_us = w->now_us;
		} else if (ev->len && ev->wd == w->parent_wd) {
			born(w, ev->name);
		} else if (ev->len && ev->wd != last && strcmp(ev->name, "log.idx") == 0) {
			/* Only the index: a record there means that its bytes are complete. One
			 * look serves a burst of one log. */
			last = ev->wd;
			f = find_wd(w, ev->wd);
			if (f)
				look(f);
		}
	}
}

void ws_follow_changes(struct ws *w)
{
	struct store_change c[CHANGES_BATCH];
	int n;

	store_feed_drain(w->feed);
	do {
		bool gap = false;

		n = store_changes(w->a->store, w->feed_seq, c, CHANGES_BATCH, &gap, NULL);
		if (n < 0 || gap)
			w->again_us = w->now_us + SBX_SECOND_US;
		for (int i = 0; i < n; i++) {
			struct ws_follow *f = find_row(w, c[i].row);

			w->feed_seq = c[i].seq;
			if (f && strcmp(c[i].kind, "run") == 0)
				look(f);
		}
	} while (n == CHANGES_BATCH);
}

int ws_follow_frame(struct ws_follow *f, uint64_t seq, struct sbx_buf *out, struct sbx_error *e)
{
	struct sbx_buf *frame = &f->w->frame;
	int rc;

	if (sbx_buf_failed(frame) || !frame->limit) {
		sbx_buf_free(frame);
		*frame = (struct sbx_buf)SBX_BUF_INIT(FRAME_LIMIT);
	}
	frame->len = 0;
	rc = log_reader_frame(f->log, seq, frame, e);
	if (rc == 0 && sbx_buf_failed(frame))
		rc = sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a frame");
	if (rc == 0)
		ws_frame_put(out, 0x1, frame->data, frame->len);
	return rc;
}

int ws_follow_open(struct ws *w, struct sbx_error *e)
{
	w->parent_wd = -1;
	w->logs = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	if (w->logs < 0)
		return sbx_fail_errno(e, SBX_E_INTERNAL, errno, "cannot watch logs");
	w->feed = store_feed_watch(w->a->store, e);
	return w->feed < 0 ? w->feed : 0;
}
