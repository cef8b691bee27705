/* SPDX-License-Identifier: Apache-2.0 */
/* The streams thread: its loop, its beginning and its end, and what it counts. */
#include "apid/ws_i.h"

#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "base/clock.h"
#include "base/log.h"

enum { EVENTS = 256, EARLY_MAX = 64 << 10 };

static void ring(struct ws *w)
{
	uint64_t one = 1;

	if (write(w->bell, &one, sizeof(one)) < 0)
		return; /* it is full: the bell rings already */
}

/* ---- taking in ------------------------------------------------------------------------------- */

static void socket_free(struct ws_socket *s)
{
	sbx_buf_free(&s->control);
	ws_receive_free(s->in);
	free(s->offer);
	free(s);
}

void ws_adopt(struct ws *w, const struct ws_offer *offer, int fd, const char *early, size_t len,
	      struct MHD_UpgradeResponseHandle *urh)
{
	struct ws_socket *s = len <= EARLY_MAX ? calloc(1, sizeof(*s) + len) : NULL;
	struct ws_offer *o = malloc(sizeof(*o));
	bool taken = false;

	if (s && o && fcntl(fd, F_SETFL, O_NONBLOCK) == 0) {
		*o = *offer;
		s->w = w;
		s->fd = fd;
		s->wire = offer->wire;
		s->tls = offer->tls;
		s->urh = urh;
		s->offer = o;
		s->user = o->user;
		s->persona = o->persona;
		s->session = o->session;
		s->early_len = len;
		if (len)
			memcpy(s->early, early, len);
		pthread_mutex_lock(&w->lock);
		taken = !w->stopping;
		if (taken)
			TAILQ_INSERT_TAIL(&w->inbox, s, line);
		pthread_mutex_unlock(&w->lock);
	}
	if (taken) {
		ring(w);
		return;
	}
	free(s);
	free(o);
	(void)MHD_upgrade_action(urh, MHD_UPGRADE_ACTION_CLOSE);
}

static void take_in(struct ws *w)
{
	struct ws_sockets fresh = TAILQ_HEAD_INITIALIZER(fresh);
	struct ws_socket *s;
	uint64_t n;

	if (read(w->bell, &n, sizeof(n)) < 0)
		n = 0;
	pthread_mutex_lock(&w->lock);
	TAILQ_CONCAT(&fresh, &w->inbox, line);
	w->ending = w->stopping;
	pthread_mutex_unlock(&w->lock);
	while ((s = TAILQ_FIRST(&fresh))) {
		TAILQ_REMOVE(&fresh, s, line);
		ws_socket_begin(s);
	}
}

/* ---- the loop -------------------------------------------------------------------------------- */

static void close_all(struct ws *w)
{
	struct ws_socket *s;

	while ((s = TAILQ_FIRST(&w->open)))
		ws_socket_close(s, WS_GOING_AWAY, "the service stops");
}

static void bury(struct ws *w)
{
	struct ws_socket *s;

	while ((s = TAILQ_FIRST(&w->dead))) {
		TAILQ_REMOVE(&w->dead, s, line);
		socket_free(s);
	}
}

/* Milliseconds to the next thing that is due, rounded up; -1: never. */
static int pause_ms(struct ws *w)
{
	int64_t at = ws_socket_timers(w);

	if (w->again_us && w->again_us < at)
		at = w->again_us;
	if (at == INT64_MAX)
		return -1;
	return at <= w->now_us ? 0 : (int)((at - w->now_us + 999) / 1000);
}

static void handle(struct ws *w, const struct epoll_event *ev)
{
	if (ev->data.ptr == &w->bell)
		take_in(w);
	else if (ev->data.ptr == &w->logs)
		ws_follow_logs(w);
	else if (ev->data.ptr == &w->feed)
		ws_follow_changes(w);
	else
		ws_socket_event(ev->data.ptr, ev->events);
}

static void *thread(void *arg)
{
	struct ws *w = arg;

	for (;;) {
		struct epoll_event ev[EVENTS];
		int n;

		w->now_us = sbx_boot_us();
		/* Before the look at the clock: closing has a time limit, too. */
		if (w->ending)
			close_all(w);
		n = pause_ms(w);
		bury(w);
		if (w->ending && TAILQ_EMPTY(&w->closing))
			break;
		n = epoll_wait(w->epoll, ev, EVENTS, n);
		w->now_us = sbx_boot_us();
		for (int i = 0; i < n; i++)
			handle(w, &ev[i]);
		if (w->again_us && w->again_us <= w->now_us) {
			w->again_us = 0;
			ws_follow_all(w);
		}
	}
	bury(w);
	return NULL;
}

/* ---- beginning and end ----------------------------------------------------------------------- */

struct ws *ws_free(struct ws *w)
{
	if (!w)
		return NULL;
	sbx_closep(&w->epoll);
	sbx_closep(&w->bell);
	sbx_closep(&w->logs);
	sbx_closep(&w->feed);
	pthread_mutex_destroy(&w->lock);
	ws_window_free(w);
	sbx_buf_free(&w->frame);
	free(w);
	return NULL;
}
SBX_DEFINE_AUTO(struct ws, ws_free)

static int open_all(struct ws *w, struct sbx_error *e)
{
	struct epoll_event bell = { .events = EPOLLIN, .data.ptr = &w->bell };
	struct epoll_event logs = { .events = EPOLLIN, .data.ptr = &w->logs };
	int rc = ws_follow_open(w, e);

	if (rc < 0)
		return rc;
	w->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	w->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (w->bell < 0 || w->epoll < 0 || epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->bell, &bell) < 0 ||
	    epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->logs, &logs) < 0)
		return sbx_fail_errno(e, SBX_E_INTERNAL, errno, "cannot make the loop of streams");
	return 0;
}

int ws_start(struct apid *a, struct ws **ret, struct sbx_error *e)
{
	SBX_AUTO(ws_freep) struct ws *w = calloc(1, sizeof(*w));
	int r;

	if (!w)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for streams");
	w->a = a;
	w->epoll = w->bell = w->logs = w->feed = -1;
	pthread_mutex_init(&w->lock, NULL);
	TAILQ_INIT(&w->inbox);
	TAILQ_INIT(&w->open);
	TAILQ_INIT(&w->closing);
	TAILQ_INIT(&w->dead);
	r = open_all(w, e);
	if (r < 0)
		return r;
	r = pthread_create(&w->thread, NULL, thread, w);
	if (r != 0)
		return sbx_fail_errno(e, SBX_E_INTERNAL, r, "cannot start the streams");
	*ret = sbx_steal(&w);
	return 0;
}

void ws_end(struct ws *w)
{
	if (!w)
		return;
	pthread_mutex_lock(&w->lock);
	w->stopping = true;
	pthread_mutex_unlock(&w->lock);
	ring(w);
	pthread_join(w->thread, NULL);
}

/* ---- counts ---------------------------------------------------------------------------------- */

static void counter(struct sbx_buf *out, const char *name, const char *help)
{
	sbx_buf_printf(out, "# HELP %s %s\n# TYPE %s counter\n", name, help, name);
}

static void plain(struct sbx_buf *out, const char *name, const char *help, long long n)
{
	counter(out, name, help);
	sbx_buf_printf(out, "%s{component=\"sandbox\"} %lld\n", name, n);
}

void ws_metrics(struct ws *w, struct sbx_buf *out)
{
	static const char *const quotas[WS_QUOTA__COUNT] = { "total", "user", "persona", "session",
							     "run" };

	plain(out, "sandbox_ws_connections_opened_total", "Streams that were opened.",
	      atomic_load(&w->opened));
	plain(out, "sandbox_ws_disconnects_total", "Streams that have ended.",
	      atomic_load(&w->closed));
	plain(out, "sandbox_ws_heartbeats_sent_total", "Heartbeats on streams.",
	      atomic_load(&w->heartbeats));
	counter(out, "sandbox_ws_quota_rejections_total", "Streams that a quota refused.");
	for (int q = 0; q < WS_QUOTA__COUNT; q++)
		sbx_buf_printf(out,
			       "sandbox_ws_quota_rejections_total{component=\"sandbox\","
			       "reason=\"%s_connections_quota_exceeded\"} %lld\n",
			       quotas[q], (long long)atomic_load(&w->rejected[q]));
	counter(out, "sandbox_ws_queue_drops_total",
		"Frames that a slow reader lost: none, it is served from the log.");
	sbx_buf_puts(out, "sandbox_ws_queue_drops_total{component=\"sandbox\","
			  "reason=\"drop_oldest\"} 0\n");
}
