/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections. Bytes go on as they come; what one end does not take is kept, one chunk at the most,
 * and until it has gone nothing more is read from the other end. An end of file is passed on by
 * itself, a reset as a reset.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "runtimes/net/relay_i.h"

enum {
	/* What the kernel may hold for us in each direction of each end; it doubles what it is
	 * told. Loopback has packets of 64 KiB, of which too few stall a connection. Who opens
	 * many gets less for each of them: 300 MiB with all RELAY_TCP_MAX, where it would be 1 GiB.
	 */
	BUFFER = 512 << 10,
	BUFFER_OF_MANY = 128 << 10,
	MANY = 16,
	SYN_RETRIES = 4, /* half a minute for a target that does not answer */
	PAUSE_US = 1000000,
};

struct end {
	struct relay_source source; /* first */
	struct relay_tcp *of;
	int fd;		  /* owned */
	uint32_t watched; /* for what */
	bool ended;	  /* no more comes from it */
	bool told;	  /* it has been told that no more comes */
	uint8_t *kept;	  /* owned; what it has not taken yet; NULL: nothing */
	size_t kept_at, kept_len;
};

struct relay_tcp {
	struct end inner, outer; /* towards the sandbox, towards the target */
	struct net_end target;
	bool connecting;
	struct relay_tcp *next, **link; /* relay.tcp; *link is this */
};

struct listener {
	struct relay_source source; /* first */
	int fd;			    /* borrowed */
	uint32_t watched;
};

static struct listener listeners[2];
static uint8_t chunk[RELAY_CHUNK];

/* ---- ending ---------------------------------------------------------------------------------- */

static void close_end(struct relay *r, struct end *e, bool reset)
{
	const struct linger at_once = { .l_onoff = 1, .l_linger = 0 };

	if (reset && e->fd >= 0)
		(void)setsockopt(e->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
	net_relay_watch(r, &e->source, e->fd, &e->watched, 0);
	sbx_closep(&e->fd);
	free(e->kept);
}

static void finish(struct relay *r, struct relay_tcp *t, bool reset)
{
	/* The rules may have held something open for this connection alone. */
	r->rules_dirty =
		r->rules_dirty || !net_pins_allow(r->pins, &t->target.addr, t->target.port);
	close_end(r, &t->inner, reset);
	close_end(r, &t->outer, reset);
	*t->link = t->next;
	if (t->next)
		t->next->link = t->link;
	free(t);
	r->n_tcp--;
	r->changed = true;
	net_relay_rules(r);
}

/* ---- moving ---------------------------------------------------------------------------------- */

/* Sends what was kept; false: the connection is broken. */
static bool flush(struct end *to)
{
	ssize_t n;

	if (!to->kept)
		return true;
	n = send(to->fd, to->kept + to->kept_at, to->kept_len - to->kept_at, MSG_NOSIGNAL);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR;
	to->kept_at += (size_t)n;
	if (to->kept_at == to->kept_len)
		free(sbx_steal(&to->kept));
	return true;
}

static bool pass_on(struct end *to, size_t len)
{
	ssize_t n = send(to->fd, chunk, len, MSG_NOSIGNAL);

	if (n < 0 && errno != EAGAIN && errno != EINTR)
		return false;
	if (n == (ssize_t)len)
		return true;
	to->kept_at = n < 0 ? 0 : (size_t)n;
	to->kept_len = len;
	to->kept = malloc(len);
	if (to->kept)
		memcpy(to->kept, chunk, len);
	return to->kept;
}

/* As much as there is, or as a turn allows; false: the connection is broken. */
static bool move(struct end *from, struct end *to, uint64_t *bytes)
{
	for (int i = 0; i < RELAY_TURNS; i++) {
		ssize_t n;

		if (!flush(to))
			return false;
		if (to->kept || from->ended)
			break;
		n = recv(from->fd, chunk, sizeof(chunk), 0);
		if (n < 0)
			return errno == EAGAIN || errno == EINTR;
		from->ended = n == 0;
		*bytes += (uint64_t)n;
		if (n > 0 && !pass_on(to, (size_t)n))
			return false;
	}
	if (from->ended && !to->kept && !to->told)
		to->told = shutdown(to->fd, SHUT_WR) == 0;
	return !from->ended || to->kept || to->told;
}

static void watch(struct relay *r, struct end *e, const struct end *other)
{
	uint32_t events = 0;

	if (!e->ended && !other->kept)
		events |= EPOLLIN;
	if (e->kept)
		events |= EPOLLOUT;
	net_relay_watch(r, &e->source, e->fd, &e->watched, events);
}

static void work(struct relay *r, struct relay_tcp *t)
{
	if (!move(&t->inner, &t->outer, &r->counters->bytes_sent) ||
	    !move(&t->outer, &t->inner, &r->counters->bytes_received)) {
		finish(r, t, true);
		return;
	}
	if (t->inner.told && t->outer.told) {
		finish(r, t, false);
		return;
	}
	watch(r, &t->inner, &t->outer);
	watch(r, &t->outer, &t->inner);
}

static void ready(struct relay_source *s, uint32_t events)
{
	struct relay_tcp *t = ((struct end *)s)->of;
	struct relay *r = &net_relay;
	socklen_t len = sizeof(int);
	int err = 0;

	(void)events;
	if (t->connecting) {
		if (getsockopt(t->outer.fd, SOL_SOCKET, SO_ERROR, &err, &len) < 0 || err) {
			r->counters->failed_connections++;
			finish(r, t, true);
			return;
		}
		t->connecting = false;
	}
	work(r, t);
}

/* ---- beginning ------------------------------------------------------------------------------- */

static void refuse(int fd)
{
	const struct linger at_once = { .l_onoff = 1, .l_linger = 0 };

	(void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
	(void)close(fd);
}

static void limit(const struct relay *r, int fd)
{
	const int size = r->n_tcp < MANY ? BUFFER : BUFFER_OF_MANY;

	(void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
	(void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
}

/* A socket on its way to the target, or -1. */
static int set_out(const struct relay *r, const struct net_end *target)
{
	const int on = 1, retries = SYN_RETRIES;
	struct sockaddr_storage sa;
	socklen_t len = net_to_sockaddr(target, &sa);
	int fd = socket(sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -1;
	limit(r, fd);
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_SYNCNT, &retries, sizeof(retries));
	(void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	if (connect(fd, (struct sockaddr *)&sa, len) < 0 && errno != EINPROGRESS)
		sbx_closep(&fd);
	return fd;
}

static void take(struct relay *r, int fd, const struct net_end *target)
{
	const int on = 1;
	struct relay_tcp *t = calloc(1, sizeof(*t));
	int out = t ? set_out(r, target) : -1;

	if (out < 0) {
		r->counters->failed_connections++;
		refuse(fd);
		free(t);
		return;
	}
	limit(r, fd);
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	t->inner = (struct end){ .source = { ready }, .of = t, .fd = fd };
	t->outer = (struct end){ .source = { ready }, .of = t, .fd = out };
	t->target = *target;
	t->connecting = true;
	t->next = r->tcp;
	t->link = &r->tcp;
	if (t->next)
		t->next->link = &t->next;
	r->tcp = t;
	r->n_tcp++;
	r->counters->connections++;
	net_relay_watch(r, &t->outer.source, out, &t->outer.watched, EPOLLOUT);
}

static void incoming(struct relay_source *s, uint32_t events)
{
	struct listener *l = (struct listener *)s;
	struct relay *r = &net_relay;

	(void)events;
	for (int i = 0; i < RELAY_TURNS; i++) {
		struct sockaddr_storage sa;
		socklen_t len = sizeof(sa);
		struct net_end target;
		int fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
			continue;
		if (fd < 0 && errno == EAGAIN)
			return;
		if (fd < 0) {
			/* It would wake us again at once. */
			net_relay_watch(r, s, l->fd, &l->watched, 0);
			r->accept_us = sbx_boot_us() + PAUSE_US;
			return;
		}
		/* Its own end has the address that the sandbox meant. */
		if (getsockname(fd, (struct sockaddr *)&sa, &len) < 0 ||
		    !net_from_sockaddr(&sa, &target) || !net_relay_admits(r, &target)) {
			refuse(fd);
		} else if (r->n_tcp == RELAY_TCP_MAX) {
			r->counters->refused_busy++;
			refuse(fd);
		} else {
			take(r, fd, &target);
		}
	}
}

static void listen_all(struct relay *r)
{
	for (size_t i = 0; i < SBX_COUNT(listeners); i++)
		if (listeners[i].fd >= 0)
			net_relay_watch(r, &listeners[i].source, listeners[i].fd,
					&listeners[i].watched, EPOLLIN);
}

bool net_tcp_begin(struct relay *r, int listener4, int listener6)
{
	listeners[0] = (struct listener){ .source = { incoming }, .fd = listener4 };
	listeners[1] = (struct listener){ .source = { incoming }, .fd = listener6 };
	listen_all(r);
	return true;
}

bool net_tcp_ranges(const struct relay *r, struct net_ranges *ret)
{
	bool good = true;

	for (const struct relay_tcp *t = r->tcp; t && good; t = t->next) {
		const struct net_range one = { t->target.addr, t->target.addr, t->target.port };

		if (!net_pins_allow(r->pins, &t->target.addr, t->target.port))
			good = net_ranges_add(ret, &one);
	}
	return good;
}

int64_t net_tcp_next_us(const struct relay *r)
{
	return r->accept_us ? r->accept_us : INT64_MAX;
}

void net_tcp_timers(struct relay *r, int64_t now_us)
{
	if (!r->accept_us || now_us < r->accept_us)
		return;
	r->accept_us = 0;
	listen_all(r);
}
