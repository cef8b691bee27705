/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flows of UDP: what one port of the sandbox has with one target. Its first datagrams come to a
 * listener. The gate then makes a socket inside that is the target towards this port, and
 * everything else goes through that one; answers wait for it in the socket outside.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "runtimes/net/relay_i.h"

#define IDLE_US	 (60 * SBX_SECOND_US)
#define YOUNG_US (5 * SBX_SECOND_US) /* a flow this long silent makes room for a new one */

struct half {
	struct relay_source source; /* first */
	struct relay_flow *of;
	int fd; /* owned */
	uint32_t watched;
};

struct relay_flow {
	bool used;
	uint64_t id; /* the number of the place, and how often it was taken */
	struct net_end sandbox, target;
	struct half inner, outer; /* the inner one comes later */
	int64_t last_us;
};

struct listener {
	struct relay_source source; /* first */
	int fd;			    /* borrowed */
	uint32_t watched;
};

static struct listener listeners[2];
static uint8_t datagram[RELAY_CHUNK];

/* ---- ending ---------------------------------------------------------------------------------- */

static void finish(struct relay *r, struct relay_flow *f)
{
	struct half *halves[] = { &f->inner, &f->outer };

	r->rules_dirty =
		r->rules_dirty || !net_pins_allow(r->pins, &f->target.addr, f->target.port);
	for (size_t i = 0; i < SBX_COUNT(halves); i++) {
		if (halves[i]->fd >= 0)
			net_relay_watch(r, &halves[i]->source, halves[i]->fd, &halves[i]->watched,
					0);
		sbx_closep(&halves[i]->fd);
	}
	f->used = false;
	r->changed = true;
	net_relay_rules(r);
}

/* ---- moving ---------------------------------------------------------------------------------- */

/* A datagram that the other end does not take now is lost, as datagrams are. */
static void move(struct half *from, struct half *to, uint64_t *bytes)
{
	from->of->last_us = sbx_boot_us();
	for (int i = 0; i < RELAY_TURNS; i++) {
		ssize_t n = recv(from->fd, datagram, sizeof(datagram), 0);

		if (n < 0 && errno != ECONNREFUSED)
			return;
		if (n >= 0 && send(to->fd, datagram, (size_t)n, MSG_NOSIGNAL) == n)
			*bytes += (uint64_t)n;
	}
}

static void inner_ready(struct relay_source *s, uint32_t events)
{
	struct half *h = (struct half *)s;

	(void)events;
	move(h, &h->of->outer, &net_relay.counters->bytes_sent);
}

static void outer_ready(struct relay_source *s, uint32_t events)
{
	struct half *h = (struct half *)s;

	(void)events;
	move(h, &h->of->inner, &net_relay.counters->bytes_received);
}

/* ---- beginning ------------------------------------------------------------------------------- */

static bool same(const struct net_end *a, const struct net_end *b)
{
	return a->port == b->port && net_addr_compare(&a->addr, &b->addr) == 0;
}

static struct relay_flow *find(struct relay *r, const struct net_end *sandbox,
			       const struct net_end *target)
{
	for (size_t i = 0; i < RELAY_FLOWS_MAX; i++) {
		struct relay_flow *f = &r->flows[i];

		if (f->used && same(&f->sandbox, sandbox) && same(&f->target, target))
			return f;
	}
	return NULL;
}

/* A free place, or that of the flow that was silent for the longest time, if that is long. */
static struct relay_flow *find_place(struct relay *r)
{
	struct relay_flow *oldest = NULL;

	for (size_t i = 0; i < RELAY_FLOWS_MAX; i++) {
		struct relay_flow *f = &r->flows[i];

		if (!f->used)
			return f;
		if (!oldest || f->last_us < oldest->last_us)
			oldest = f;
	}
	if (sbx_boot_us() - oldest->last_us < YOUNG_US)
		return NULL;
	finish(r, oldest);
	return oldest;
}

static bool order_inner(struct relay *r, const struct relay_flow *f)
{
	const struct gate_order order = {
		.op = GATE_FLOW, .id = f->id, .inside = f->sandbox, .outside = f->target
	};

	return send(r->c->gate, &order, sizeof(order), MSG_NOSIGNAL | MSG_DONTWAIT) ==
	       (ssize_t)sizeof(order);
}

static struct relay_flow *begin(struct relay *r, const struct net_end *sandbox,
				const struct net_end *target)
{
	struct relay_flow *f;
	struct sockaddr_storage sa;
	socklen_t len = net_to_sockaddr(target, &sa);
	uint64_t id;

	if (!net_relay_admits(r, target))
		return NULL;
	f = find_place(r);
	if (!f) {
		r->counters->refused_busy++;
		return NULL;
	}
	id = f->id + RELAY_FLOWS_MAX;
	*f = (struct relay_flow){ .used = true, .id = id, .sandbox = *sandbox, .target = *target };
	f->inner = (struct half){ .source = { inner_ready }, .of = f, .fd = -1 };
	f->outer = (struct half){ .source = { outer_ready }, .of = f };
	f->last_us = sbx_boot_us();
	f->outer.fd = socket(sa.ss_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (f->outer.fd < 0 || connect(f->outer.fd, (struct sockaddr *)&sa, len) < 0 ||
	    !order_inner(r, f)) {
		r->counters->refused_busy++;
		finish(r, f);
		return NULL;
	}
	r->counters->flows++;
	return f;
}

void net_udp_made(struct relay *r, uint64_t id, int fd)
{
	struct relay_flow *f = &r->flows[id % RELAY_FLOWS_MAX];

	if (!f->used || f->id != id) { /* it has ended meanwhile */
		sbx_closep(&fd);
		return;
	}
	if (fd < 0) {
		finish(r, f);
		return;
	}
	f->inner.fd = fd;
	net_relay_watch(r, &f->inner.source, fd, &f->inner.watched, EPOLLIN);
	net_relay_watch(r, &f->outer.source, f->outer.fd, &f->outer.watched, EPOLLIN);
}

/* Where the datagram was sent to, which is not where it has arrived. */
static bool read_target(struct msghdr *msg, struct net_end *ret)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		struct sockaddr_storage sa = { 0 };
		size_t len = c->cmsg_len - CMSG_LEN(0);

		if (!(c->cmsg_level == SOL_IP && c->cmsg_type == IP_ORIGDSTADDR) &&
		    !(c->cmsg_level == SOL_IPV6 && c->cmsg_type == IPV6_ORIGDSTADDR))
			continue;
		memcpy(&sa, CMSG_DATA(c), len < sizeof(sa) ? len : sizeof(sa));
		return net_from_sockaddr(&sa, ret);
	}
	return false;
}

static void incoming(struct relay_source *s, uint32_t events)
{
	struct listener *l = (struct listener *)s;
	struct relay *r = &net_relay;

	(void)events;
	for (int i = 0; i < RELAY_TURNS; i++) {
		union {
			struct cmsghdr head;
			char space[256];
		} control;
		struct iovec iov = { datagram, sizeof(datagram) };
		struct sockaddr_storage from;
		struct msghdr msg = { .msg_name = &from,
				      .msg_namelen = sizeof(from),
				      .msg_iov = &iov,
				      .msg_iovlen = 1,
				      .msg_control = control.space,
				      .msg_controllen = sizeof(control.space) };
		ssize_t n = recvmsg(l->fd, &msg, 0);
		struct net_end sandbox, target;
		struct relay_flow *f;

		if (n < 0)
			return;
		if (!net_from_sockaddr(&from, &sandbox) || !read_target(&msg, &target))
			continue;
		f = find(r, &sandbox, &target);
		if (!f)
			f = begin(r, &sandbox, &target);
		if (!f)
			continue;
		f->last_us = sbx_boot_us();
		if (send(f->outer.fd, datagram, (size_t)n, MSG_NOSIGNAL) == n)
			r->counters->bytes_sent += (uint64_t)n;
	}
}

bool net_udp_begin(struct relay *r, int listener4, int listener6)
{
	r->flows = calloc(RELAY_FLOWS_MAX, sizeof(*r->flows));
	if (!r->flows)
		return false;
	for (size_t i = 0; i < RELAY_FLOWS_MAX; i++)
		r->flows[i].id = i;
	listeners[0] = (struct listener){ .source = { incoming }, .fd = listener4 };
	listeners[1] = (struct listener){ .source = { incoming }, .fd = listener6 };
	for (size_t i = 0; i < SBX_COUNT(listeners); i++)
		if (listeners[i].fd >= 0)
			net_relay_watch(r, &listeners[i].source, listeners[i].fd,
					&listeners[i].watched, EPOLLIN);
	return true;
}

bool net_udp_ranges(const struct relay *r, struct net_ranges *ret)
{
	bool good = true;

	for (size_t i = 0; i < RELAY_FLOWS_MAX && good; i++) {
		const struct relay_flow *f = &r->flows[i];
		const struct net_range one = { f->target.addr, f->target.addr, f->target.port };

		if (f->used && !net_pins_allow(r->pins, &f->target.addr, f->target.port))
			good = net_ranges_add(ret, &one);
	}
	return good;
}

int64_t net_udp_next_us(const struct relay *r)
{
	int64_t first = INT64_MAX;

	for (size_t i = 0; i < RELAY_FLOWS_MAX; i++)
		if (r->flows[i].used && r->flows[i].last_us + IDLE_US < first)
			first = r->flows[i].last_us + IDLE_US;
	return first;
}

void net_udp_timers(struct relay *r, int64_t now_us)
{
	for (size_t i = 0; i < RELAY_FLOWS_MAX; i++)
		if (r->flows[i].used && now_us - r->flows[i].last_us >= IDLE_US)
			finish(r, &r->flows[i]);
}
