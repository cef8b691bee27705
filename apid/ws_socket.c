/* SPDX-License-Identifier: Apache-2.0 */
/* One socket: its place in the log, what it is sent and when, how it ends. */
#include "apid/ws_i.h"

#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <linux/sockios.h>

#include "base/clock.h"
#include "base/log.h"

enum {
	PIECES = 4,		  /* sends in one turn, so that others get theirs */
	CONTROL_LIMIT = 64 << 10, /* answers to what is read at once fit by far */
	CLOSE_PATIENCE_SEC = 2,	  /* for the close frame to leave and the peer to end */
	SILENCE_SEC = 30,	  /* without a byte of a message that has begun */
	LOOK_SEC = 10,		  /* at most between two looks at the clock of a socket */
	READ_SIZE = 16 << 10,
};

void ws_frame_put(struct sbx_buf *out, unsigned opcode, const void *data, size_t len)
{
	unsigned char head[10] = { (unsigned char)(0x80 | opcode) };
	size_t n = 2;

	if (len < 126) {
		head[1] = (unsigned char)len;
	} else if (len <= 0xffff) {
		head[1] = 126;
		head[2] = (unsigned char)(len >> 8);
		head[3] = (unsigned char)len;
		n = 4;
	} else {
		head[1] = 127;
		for (int i = 0; i < 8; i++)
			head[2 + i] = (unsigned char)((uint64_t)len >> (8 * (7 - i)));
		n = 10;
	}
	sbx_buf_add(out, head, n);
	sbx_buf_add(out, data, len);
}

/* ---- sending --------------------------------------------------------------------------------- */

static bool has_frames(const struct ws_socket *s)
{
	/* Behind the close frame there is none, before it the rest of one. */
	return s->follow && (s->off > 0 || (!s->closing && s->seq <= s->follow->frames));
}

static bool has_control(const struct ws_socket *s)
{
	return s->control_off < s->control.len;
}

/* What goes next: control frames between two others, or the rest of the one that has begun. */
static int next_piece(struct ws_socket *s, const char **data, size_t *len, bool *control)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	size_t one = 0;

	*len = 0;
	*control = s->tls_begun ? s->tls_control : has_control(s) && s->off == 0;
	if (*control) {
		*data = s->control.data + s->control_off;
		*len = s->control.len - s->control_off;
		return 0;
	}
	if (!s->tls_begun && !has_frames(s))
		return 0;
	if (ws_window_get(s->follow, s->seq, s->off, data, len, &one, &e) < 0) {
		sbx_log(SBX_LOG_ERROR, "cannot stream a log run=%s seq=%llu error=\"%s\"",
			s->follow->id, (unsigned long long)s->seq, e.message);
		return -1;
	}
	if ((has_control(s) || s->closing) && *len > one)
		*len = one;
	return 0;
}

/* A record of TLS may have been begun from a window that is no more, so what is there now is gone
 * through in steps. */
static bool advance(struct ws_socket *s, size_t n)
{
	const char *data;
	size_t len, one;

	while (n > 0) {
		if (s->tls && ws_window_get(s->follow, s->seq, s->off, &data, &len, &one, NULL) < 0)
			return false;
		len = s->tls && len < n ? len : n;
		ws_window_advance(s->follow, &s->seq, &s->off, len);
		n -= len;
	}
	return true;
}

static bool sent(struct ws_socket *s, size_t n, bool control)
{
	s->moved_us = s->w->now_us;
	if (!control)
		return advance(s, n);
	s->control_off += n;
	if (s->control_off == s->control.len) {
		sbx_buf_free(&s->control);
		s->control = (struct sbx_buf)SBX_BUF_INIT(CONTROL_LIMIT);
		s->control_off = 0;
	}
	return true;
}

enum progress {
	SENT_ALL = 1,
	SENT_PART, /* more when the peer has room */
	SENT_BROKEN,
	SENT_NO_LOG /* the log cannot be read on */
};

static enum progress send_pieces(struct ws_socket *s)
{
	for (int i = 0; i < PIECES; i++) {
		const char *data;
		size_t len;
		bool control;
		ssize_t n;

		if (next_piece(s, &data, &len, &control) < 0)
			return SENT_NO_LOG;
		if (len == 0)
			return SENT_ALL;
		s->tls_control = control;
		n = ws_wire_send(s, data, len);
		if (n < 0)
			return SENT_BROKEN;
		if (n == 0)
			return SENT_PART;
		if (!sent(s, (size_t)n, control))
			return SENT_BROKEN;
		if ((size_t)n < len && !s->tls)
			return SENT_PART;
	}
	return has_frames(s) || has_control(s) ? SENT_PART : SENT_ALL;
}

static bool has_early(const struct ws_socket *s)
{
	return s->early_off < s->early_len;
}

static bool wants_in(const struct ws_socket *s)
{
	return s->shut || (!s->closing && s->control.len - s->control_off < WS_CONTROL_MAX);
}

void ws_socket_pump(struct ws_socket *s)
{
	enum progress got;

	if (s->dead || s->shut)
		return;
	got = send_pieces(s);
	if (got == SENT_BROKEN || (got == SENT_NO_LOG && (s->closing || s->off > 0))) {
		ws_socket_drop(s);
		return;
	}
	if (got == SENT_NO_LOG) {
		ws_socket_close(s, WS_INTERNAL, "the log cannot be read");
		return;
	}
	if (got == SENT_ALL && !s->closing && s->follow->ended && s->seq > s->follow->frames) {
		ws_socket_close(s, WS_NORMAL, NULL);
		return;
	}
	if (got == SENT_ALL)
		s->moved_us = s->w->now_us;
	if (got == SENT_ALL && s->closing) {
		/* The peer sees the end at once, and what it still sends is read away, since
		 * closing on unread bytes could cost it the close frame. */
		s->shut = true;
		ws_wire_shut(s);
		ws_follow_leave(s);
	}
	ws_wire_watch(s, wants_in(s), got != SENT_ALL || has_early(s));
}

/* ---- ending ---------------------------------------------------------------------------------- */

static void leave_line(struct ws_socket *s)
{
	struct ws *w = s->w;

	if (s->closing) {
		TAILQ_REMOVE(&w->closing, s, line);
		return;
	}
	TAILQ_REMOVE(&w->open, s, line);
	if (!s->follow)
		return; /* was refused */
	w->n_open--;
	s->follow->open--;
	atomic_fetch_add(&w->closed, 1);
}

void ws_socket_drop(struct ws_socket *s)
{
	if (s->dead)
		return;
	leave_line(s);
	ws_follow_leave(s);
	s->dead = true;
	ws_wire_close(s);
	TAILQ_INSERT_TAIL(&s->w->dead, s, line);
}

void ws_socket_closing(struct ws_socket *s)
{
	if (s->dead || s->closing)
		return;
	leave_line(s);
	s->closing = true;
	s->deaf |= has_early(s); /* which nobody needs any more, and frames begin there */
	s->early_off = s->early_len;
	s->due_us = s->w->now_us + CLOSE_PATIENCE_SEC * SBX_SECOND_US;
	TAILQ_INSERT_TAIL(&s->w->closing, s, line);
	ws_socket_pump(s);
}

void ws_socket_close(struct ws_socket *s, int code, const char *text)
{
	char body[125] = { (char)(code >> 8), (char)code };
	int n = 2;

	if (s->dead || s->closing)
		return;
	if (text)
		n += snprintf(body + 2, sizeof(body) - 2, "%s", text);
	ws_frame_put(&s->control, 0x8, body, n < (int)sizeof(body) ? (size_t)n : sizeof(body) - 1);
	ws_socket_closing(s);
}

/* ---- receiving ------------------------------------------------------------------------------- */

static void read_early(struct ws_socket *s)
{
	if (wants_in(s))
		s->early_off += ws_receive(s, s->early + s->early_off, s->early_len - s->early_off);
}

static void readable(struct ws_socket *s)
{
	char buf[READ_SIZE];
	ssize_t n;

	/* What is not taken now stays where it is. */
	n = recv(s->fd, buf, sizeof(buf), MSG_DONTWAIT | MSG_PEEK);
	if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
		ws_socket_drop(s);
		return;
	}
	s->heard_us = s->w->now_us;
	n = n > 0 ? (ssize_t)ws_receive(s, buf, (size_t)n) : 0;
	if (n > 0 && !s->dead)
		(void)recv(s->fd, buf, (size_t)n, MSG_DONTWAIT);
	if (s->seen)
		ws_socket_drop(s);
}

/* ---- beginning ------------------------------------------------------------------------------- */

static const char *const quota_texts[WS_QUOTA__COUNT] = {
	[WS_QUOTA_TOTAL] = "total_connections_quota_exceeded",
	[WS_QUOTA_USER] = "user_connections_quota_exceeded",
	[WS_QUOTA_PERSONA] = "persona_connections_quota_exceeded",
	[WS_QUOTA_SESSION] = "session_connections_quota_exceeded",
	[WS_QUOTA_RUN] = "run_connections_quota_exceeded",
};

/* The first quota that is used up, WS_QUOTA__COUNT when there is room. */
static enum ws_quota quota_hit(const struct ws_socket *s)
{
	const struct orch_settings *set = orch_settings(s->w->a->orch);
	int64_t have[WS_QUOTA__COUNT] = { 0 };
	const int64_t most[WS_QUOTA__COUNT] = {
		[WS_QUOTA_TOTAL] = set->ws_max_connections_total,
		[WS_QUOTA_USER] = set->ws_max_connections_per_user,
		[WS_QUOTA_PERSONA] = set->ws_max_connections_per_persona,
		[WS_QUOTA_SESSION] = set->ws_max_connections_per_session,
		[WS_QUOTA_RUN] = set->ws_max_connections_per_run,
	};
	const struct ws_socket *o;

	have[WS_QUOTA_TOTAL] = (int64_t)s->w->n_open;
	have[WS_QUOTA_RUN] = (int64_t)ws_follow_count(s->w, s->offer->row);
	for (o = TAILQ_FIRST(&s->w->open); o; o = TAILQ_NEXT(o, line)) {
		if (!o->follow)
			continue;
		have[WS_QUOTA_USER] += o->user == s->user;
		have[WS_QUOTA_PERSONA] += s->persona && o->persona == s->persona;
		have[WS_QUOTA_SESSION] += s->session && o->session == s->session;
	}
	for (int q = 0; q < WS_QUOTA__COUNT; q++)
		if (most[q] > 0 && have[q] >= most[q])
			return (enum ws_quota)q;
	return WS_QUOTA__COUNT;
}

/* Between two heartbeats. All sockets have as many, so that their line is sorted; but for some
 * seconds after a reload. */
static int64_t looks_per_beat(const struct ws_socket *s)
{
	return (orch_settings(s->w->a->orch)->ws_heartbeat_sec + LOOK_SEC - 1) / LOOK_SEC;
}

static void look_later(struct ws_socket *s)
{
	int64_t beat_us = orch_settings(s->w->a->orch)->ws_heartbeat_sec * SBX_SECOND_US;

	s->due_us = s->w->now_us + beat_us / looks_per_beat(s);
	TAILQ_INSERT_TAIL(&s->w->open, s, line);
}

/* A seq above the last means: live frames only. But a run that is over always shows its end. */
static void place(struct ws_socket *s, uint64_t from_seq)
{
	const struct ws_follow *f = s->follow;
	uint64_t most = f->ended && f->frames ? f->frames : f->frames + 1;

	s->seq = from_seq < most ? from_seq : most;
}

static int join(struct ws_socket *s)
{
	sbx_autoerror e = SBX_ERROR_INIT;

	if (ws_follow_join(s, s->offer, &e) == 0)
		return 0;
	sbx_log(SBX_LOG_ERROR, "cannot follow a log run=%s error=\"%s\"", s->offer->run, e.message);
	return -1;
}

void ws_socket_begin(struct ws_socket *s)
{
	struct ws *w = s->w;
	enum ws_quota q;

	s->control = (struct sbx_buf)SBX_BUF_INIT(CONTROL_LIMIT);
	s->moved_us = s->heard_us = w->now_us;
	look_later(s);
	if (ws_wire_open(s) < 0) {
		ws_socket_drop(s);
		return;
	}
	if (s->offer->code) {
		ws_socket_close(s, s->offer->code, s->offer->text);
	} else if ((q = quota_hit(s)) != WS_QUOTA__COUNT) {
		atomic_fetch_add(&w->rejected[q], 1);
		ws_socket_close(s, WS_QUOTA, quota_texts[q]);
	} else if (join(s) < 0) {
		ws_socket_close(s, WS_INTERNAL, "the log cannot be read");
	} else {
		w->n_open++;
		s->follow->open++;
		atomic_fetch_add(&w->opened, 1);
		place(s, s->offer->from_seq);
		if (has_early(s))
			read_early(s);
		ws_socket_pump(s);
	}
	free(s->offer);
	s->offer = NULL;
}

/* ---- events ---------------------------------------------------------------------------------- */

void ws_socket_event(struct ws_socket *s, uint32_t events)
{
	if (s->dead)
		return;
	if (has_early(s))
		read_early(s);
	else if ((events & EPOLLIN) && wants_in(s))
		readable(s);
	else if (events & (EPOLLERR | EPOLLHUP))
		ws_socket_drop(s);
	ws_socket_pump(s);
}

/* ---- time ------------------------------------------------------------------------------------ */

/* Only for who has got everything: others see soon enough that the stream lives. */
static void heartbeat(struct ws_socket *s)
{
	char text[64];
	int n;

	s->looks = 0;
	if (has_frames(s) || has_control(s))
		return;
	n = snprintf(text, sizeof(text), "{\"type\":\"heartbeat\",\"seq\":%llu}",
		     (unsigned long long)(s->seq - 1));
	ws_frame_put(&s->control, 0x1, text, (size_t)n);
	atomic_fetch_add(&s->w->heartbeats, 1);
	ws_socket_pump(s);
}

static void on_time(struct ws_socket *s)
{
	int64_t now = s->w->now_us;

	if ((has_frames(s) || has_control(s)) && now - s->moved_us > WS_STALL_SEC * SBX_SECOND_US)
		ws_socket_drop(s);
	else if (s->in && now - s->heard_us > SILENCE_SEC * SBX_SECOND_US)
		ws_socket_close(s, WS_POLICY, "a message was begun and not finished");
	else if (++s->looks >= looks_per_beat(s))
		heartbeat(s);
}

/* A slow reader has the last frames still to come: closing would cost it those if it says
 * something meanwhile. */
static bool drains(const struct ws_socket *s)
{
	int left = 0;

	return s->shut && !s->w->ending &&
	       s->w->now_us - s->moved_us < WS_STALL_SEC * SBX_SECOND_US &&
	       ioctl(s->wire, SIOCOUTQ, &left) == 0 && left > 0;
}

static void lose_patience(struct ws_socket *s)
{
	if (!drains(s)) {
		ws_socket_drop(s);
		return;
	}
	TAILQ_REMOVE(&s->w->closing, s, line);
	s->due_us = s->w->now_us + CLOSE_PATIENCE_SEC * SBX_SECOND_US;
	TAILQ_INSERT_TAIL(&s->w->closing, s, line);
}

int64_t ws_socket_timers(struct ws *w)
{
	struct ws_socket *s;
	int64_t at = INT64_MAX;

	while ((s = TAILQ_FIRST(&w->closing)) && s->due_us <= w->now_us)
		lose_patience(s);
	while ((s = TAILQ_FIRST(&w->open)) && s->due_us <= w->now_us) {
		TAILQ_REMOVE(&w->open, s, line);
		look_later(s);
		on_time(s);
	}
	if ((s = TAILQ_FIRST(&w->closing)))
		at = s->due_us;
	if ((s = TAILQ_FIRST(&w->open)) && s->due_us < at)
		at = s->due_us;
	return at;
}
