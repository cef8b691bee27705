/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The resolver of the sandbox. It knows the names of the list and what they are pinned to, and
 * nothing else: no other name is ever asked for outside. A name below a wildcard is looked up when
 * it is asked for, and answered when the rules let its addresses through.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "runtimes/net/dns.h"
#include "runtimes/net/relay_i.h"

enum {
	WAITING_MAX = 64, /* questions that cannot be answered yet */
	STREAMS_MAX = 16, /* connections to the resolver */
	ANSWER_MAX = 2048,
};
#define IDLE_US	 (10 * SBX_SECOND_US)
#define PAUSE_US SBX_SECOND_US

struct stream {
	struct relay_source source; /* first */
	int fd;			    /* owned; -1: free */
	uint32_t watched;
	uint8_t in[2 + NET_DNS_QUERY_MAX]; /* a length and a question, as far as they came */
	size_t have;
	bool asked; /* its question waits for an answer */
	int64_t last_us;
};

/* A question and where it came from. */
struct waiting {
	bool used;
	struct net_query query;
	struct stream *stream; /* NULL: from `peer` over UDP */
	struct sockaddr_storage peer;
	socklen_t peer_len;
};

struct relay_names {
	struct relay_source udp_source, tcp_source;
	int udp, tcp; /* borrowed */
	uint32_t udp_watched, tcp_watched;
	int64_t accept_us; /* when to accept again; 0: now */
	struct stream streams[STREAMS_MAX];
	struct waiting waiting[WAITING_MAX];
};

static void close_stream(struct relay *r, struct stream *s)
{
	struct relay_names *names = r->names;

	net_relay_watch(r, &s->source, s->fd, &s->watched, 0);
	sbx_closep(&s->fd);
	for (size_t i = 0; i < WAITING_MAX; i++)
		if (names->waiting[i].used && names->waiting[i].stream == s)
			names->waiting[i].used = false;
	r->changed = true;
}

/* ---- answering ------------------------------------------------------------------------------- */

static void answer(struct relay *r, struct waiting *w, enum net_rcode code,
		   const struct net_pin *pin)
{
	uint8_t out[2 + ANSWER_MAX];
	int64_t ttl = pin ? (pin->due_us - sbx_boot_us()) / SBX_SECOND_US : 0;
	size_t max = w->stream ? ANSWER_MAX : NET_DNS_UDP_MAX, len;

	len = net_dns_write(&w->query, code, pin ? pin->answer.addr : NULL, pin ? pin->answer.n : 0,
			    ttl < 0 ? 0 : (uint32_t)ttl, out + 2, max);
	out[0] = (uint8_t)(len >> 8);
	out[1] = (uint8_t)len;
	if (!w->stream) {
		(void)sendto(r->names->udp, out + 2, len, MSG_DONTWAIT | MSG_NOSIGNAL,
			     (struct sockaddr *)&w->peer, w->peer_len);
		return;
	}
	w->stream->asked = false;
	w->stream->last_us = sbx_boot_us();
	/* An answer is small. Whoever does not even take that does not want it. */
	if (send(w->stream->fd, out, len + 2, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)len + 2)
		close_stream(r, w->stream);
}

static void refuse(struct relay *r, struct waiting *w, enum net_rcode code)
{
	r->counters->refused_names++;
	answer(r, w, code, NULL);
}

/* Can it be answered now? Then it is. What has changed waits until the rules say the same. */
static bool try(struct relay *r, struct waiting *w)
{
	struct net_pin *pin = net_pins_find(r->pins, w->query.name);

	if (pin && pin->busy && !pin->answer.n)
		return false;
	if (!pin || (!pin->answer.n && pin->no_reply)) {
		answer(r, w, NET_SERVFAIL, NULL);
		return true;
	}
	if (pin->change > r->rules_done)
		return false;
	answer(r, w, pin->answer.n ? NET_NOERROR : NET_NXDOMAIN, pin);
	return true;
}

void net_names_news(struct relay *r)
{
	for (size_t i = 0; i < WAITING_MAX; i++) {
		struct waiting *w = &r->names->waiting[i];

		if (w->used && try(r, w))
			w->used = false;
	}
}

static void keep(struct relay *r, const struct waiting *w)
{
	struct relay_names *names = r->names;
	struct waiting copy = *w;

	for (size_t i = 0; i < WAITING_MAX; i++) {
		if (names->waiting[i].used)
			continue;
		names->waiting[i] = copy;
		names->waiting[i].used = true;
		return;
	}
	answer(r, &copy, NET_SERVFAIL, NULL);
}

static void question(struct relay *r, struct waiting *w, const uint8_t *msg, size_t len)
{
	int code = net_dns_read(msg, len, &w->query);
	int64_t now = sbx_boot_us();
	struct net_pin *pin;

	if (code < 0) {
		if (w->stream)
			close_stream(r, w->stream);
		return;
	}
	if (code != NET_NOERROR || !net_pins_has_name(r->pins, w->query.name)) {
		refuse(r, w, code ? (enum net_rcode)code : NET_NXDOMAIN);
		return;
	}
	pin = net_pins_find(r->pins, w->query.name);
	if (!pin && net_relay_may_look_up()) {
		pin = net_pins_add(r->pins, w->query.name, now);
		if (pin)
			net_relay_look_up(r, pin);
	}
	/* A look-up may end at once, and then also change the table. */
	pin = net_pins_find(r->pins, w->query.name);
	if (pin)
		pin->used_us = now;
	if (!try(r, w))
		keep(r, w);
}

/* ---- over UDP -------------------------------------------------------------------------------- */

static void udp_ready(struct relay_source *s, uint32_t events)
{
	struct relay *r = &net_relay;
	static uint8_t msg[NET_DNS_QUERY_MAX];

	(void)s, (void)events;
	for (int i = 0; i < RELAY_TURNS; i++) {
		struct waiting w = { .peer_len = sizeof(w.peer) };
		ssize_t n = recvfrom(r->names->udp, msg, sizeof(msg), 0, (struct sockaddr *)&w.peer,
				     &w.peer_len);

		if (n < 0)
			return;
		question(r, &w, msg, (size_t)n);
	}
}

/* ---- over TCP -------------------------------------------------------------------------------- */

static void stream_ready(struct relay_source *source, uint32_t events)
{
	struct stream *s = (struct stream *)source;
	struct relay *r = &net_relay;
	struct waiting w = { .stream = s };
	size_t want = s->have < 2 ? 2 : 2 + ((size_t)s->in[0] << 8 | s->in[1]);
	ssize_t n;

	(void)events;
	/* One question at a time; the next is read when this one is answered. */
	n = s->asked || want > sizeof(s->in) ? 0 : recv(s->fd, s->in + s->have, want - s->have, 0);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		close_stream(r, s);
		return;
	}
	s->have += (size_t)n;
	s->last_us = sbx_boot_us();
	if (s->have <= 2 || s->have < 2 + ((size_t)s->in[0] << 8 | s->in[1]))
		return;
	want = s->have;
	s->have = 0;
	s->asked = true;
	question(r, &w, s->in + 2, want - 2);
}

static void tcp_ready(struct relay_source *source, uint32_t events)
{
	struct relay *r = &net_relay;
	int fd = accept4(r->names->tcp, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

	(void)events;
	if (fd < 0 && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
		/* The host has no room; it would wake us again at once. */
		net_relay_watch(r, source, r->names->tcp, &r->names->tcp_watched, 0);
		r->names->accept_us = sbx_boot_us() + PAUSE_US;
	}
	for (size_t i = 0; i < STREAMS_MAX && fd >= 0; i++) {
		struct stream *s = &r->names->streams[i];

		if (s->fd >= 0)
			continue;
		*s = (struct stream){ .source = { stream_ready },
				      .fd = sbx_steal_fd(&fd),
				      .last_us = sbx_boot_us() };
		net_relay_watch(r, &s->source, s->fd, &s->watched, EPOLLIN);
	}
	if (fd >= 0)
		r->counters->refused_busy++;
	sbx_closep(&fd);
}

/* ---- the whole ------------------------------------------------------------------------------- */

bool net_names_begin(struct relay *r, int udp, int tcp)
{
	struct relay_names *names = calloc(1, sizeof(*names));

	r->names = names;
	if (!names)
		return false;
	for (size_t i = 0; i < STREAMS_MAX; i++)
		names->streams[i].fd = -1;
	names->udp = udp;
	names->tcp = tcp;
	names->udp_source.ready = udp_ready;
	names->tcp_source.ready = tcp_ready;
	net_relay_watch(r, &names->udp_source, udp, &names->udp_watched, EPOLLIN);
	net_relay_watch(r, &names->tcp_source, tcp, &names->tcp_watched, EPOLLIN);
	return true;
}

int64_t net_names_next_us(const struct relay *r)
{
	int64_t first = r->names->accept_us ? r->names->accept_us : INT64_MAX;

	for (size_t i = 0; i < STREAMS_MAX; i++) {
		const struct stream *s = &r->names->streams[i];

		if (s->fd >= 0 && s->last_us + IDLE_US < first)
			first = s->last_us + IDLE_US;
	}
	return first;
}

void net_names_timers(struct relay *r, int64_t now_us)
{
	struct relay_names *names = r->names;

	if (names->accept_us && now_us >= names->accept_us) {
		names->accept_us = 0;
		net_relay_watch(r, &names->tcp_source, names->tcp, &names->tcp_watched, EPOLLIN);
	}
	for (size_t i = 0; i < STREAMS_MAX; i++) {
		struct stream *s = &r->names->streams[i];

		if (s->fd >= 0 && now_us - s->last_us >= IDLE_US)
			close_stream(r, s);
	}
}
