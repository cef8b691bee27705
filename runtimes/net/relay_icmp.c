/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Echoes. A request of the sandbox, heard by a tap, goes out with a number of ours; a reply that
 * has this number, comes from there and repeats what was sent goes in with the sandbox's number. So
 * what comes in was the sandbox's own. Nothing else of ICMP goes either way.
 *
 * Their places are a ring: with the oldest one younger than a second nothing is sent, and an older
 * one goes, whether a reply has come or not, or targets that never reply would keep others waiting.
 * That bounds what is under way, what goes out in a second, and what has to be remembered, without
 * a timer.
 */
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "runtimes/net/echo.h"
#include "runtimes/net/netlink.h"
#include "runtimes/net/relay_i.h"

#define BUSY_US SBX_SECOND_US	     /* so long a place is not taken again */
#define LATE_US (10 * SBX_SECOND_US) /* so long a reply is taken, if the place is not */

struct place {
	bool waiting;
	uint16_t number; /* outside */
	uint16_t id, seq;
	struct net_addr target;
	size_t len;
	uint8_t data[NET_ECHO_DATA_MAX];
	int64_t sent_us; /* 0: never */
};

/* One family. */
struct way {
	struct relay_source tap_source, outlet_source;
	uint32_t tap_watched, outlet_watched;
	int tap, back; /* borrowed */
	struct net_outlet outlet;
	struct net_addr self; /* the sandbox */
};

/* Numbers begin again, and their places with them. */
_Static_assert(65536 % RELAY_ECHOES_MAX == 0, "a ring of numbers");

struct relay_echoes {
	struct way ways[2];
	uint16_t next; /* number */
	struct place places[RELAY_ECHOES_MAX];
};

static uint8_t packet[NET_ECHO_PACKET_MAX + 1], message[NET_ECHO_MESSAGE_MAX];

/* ---- out ------------------------------------------------------------------------------------- */

static bool send_out(const struct way *w, const struct place *p)
{
	const struct net_echo out = {
		.id = w->outlet.id, .seq = p->number, .data = p->data, .len = p->len
	};
	const struct net_end to = { .addr = p->target };
	size_t len = net_echo_write(&out, p->target.v6, false, message);
	struct sockaddr_storage sa;
	socklen_t sa_len = net_to_sockaddr(&to, &sa);

	return sendto(w->outlet.fd, message, len, MSG_NOSIGNAL, (struct sockaddr *)&sa, sa_len) ==
	       (ssize_t)len;
}

static bool is_awaited(const struct place *p, int64_t now)
{
	return p->waiting && now - p->sent_us <= LATE_US;
}

static void request(struct relay *r, const struct way *w, const struct net_echo *echo)
{
	struct place *p = &r->echoes->places[r->echoes->next % RELAY_ECHOES_MAX];
	const struct net_end to = { .addr = echo->to }; /* no port: only targets without one */
	int64_t now = sbx_boot_us();

	if (p->sent_us && now - p->sent_us < BUSY_US) {
		r->counters->refused_busy++;
		return;
	}
	if (net_addr_compare(&echo->from, &w->self) != 0) {
		r->counters->refused_addresses++;
		return;
	}
	if (!net_relay_admits(r, &to))
		return;
	if (is_awaited(p, now))
		r->counters->refused_busy++;
	p->number = r->echoes->next++;
	p->id = echo->id;
	p->seq = echo->seq;
	p->target = echo->to;
	p->len = echo->len;
	if (echo->len)
		memcpy(p->data, echo->data, echo->len);
	p->sent_us = now;
	p->waiting = send_out(w, p);
	if (!p->waiting) {
		r->counters->refused_busy++;
		return;
	}
	r->counters->echoes++;
	r->counters->bytes_sent += p->len;
}

static void tap_ready(struct relay_source *s, uint32_t events)
{
	struct way *w = (struct way *)s;
	struct relay *r = &net_relay;

	(void)events;
	for (int i = 0; i < RELAY_TURNS; i++) {
		ssize_t n = recv(w->tap, packet, sizeof(packet), MSG_TRUNC);
		struct net_echo echo;

		if (n < 0)
			return;
		/* The rules know a request; this is one in fragments, or one that is too long. */
		if ((size_t)n > sizeof(packet) || !net_echo_read_packet(packet, (size_t)n, &echo))
			r->counters->refused_busy++;
		else
			request(r, w, &echo);
	}
}

/* ---- in -------------------------------------------------------------------------------------- */

/* NULL: nothing was asked that this could be the reply to. */
static struct place *find(struct relay *r, const struct net_addr *from, const struct net_echo *echo)
{
	struct place *p = &r->echoes->places[echo->seq % RELAY_ECHOES_MAX];

	if (!is_awaited(p, sbx_boot_us()) || p->number != echo->seq ||
	    net_addr_compare(&p->target, from) != 0 || p->len != echo->len ||
	    (p->len && memcmp(p->data, echo->data, p->len) != 0))
		return NULL;
	return p;
}

/* With the target's address as its own. */
static bool send_back(const struct way *w, const struct place *p)
{
	union {
		struct cmsghdr head;
		char space[CMSG_SPACE(sizeof(struct in6_pktinfo))];
	} control = { .space = { 0 } };
	const struct net_echo back = { .id = p->id, .seq = p->seq, .data = p->data, .len = p->len };
	const struct net_end to = { .addr = w->self };
	struct in6_pktinfo from6 = { .ipi6_ifindex = 0 };
	struct in_pktinfo from4 = { .ipi_ifindex = 0 };
	bool v6 = p->target.v6;
	size_t size = v6 ? sizeof(from6) : sizeof(from4);
	struct sockaddr_storage sa;
	struct iovec iov = { message, net_echo_write(&back, v6, true, message) };
	struct msghdr msg = { .msg_name = &sa,
			      .msg_namelen = net_to_sockaddr(&to, &sa),
			      .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control.space,
			      .msg_controllen = CMSG_SPACE(size) };

	memcpy(&from6.ipi6_addr, p->target.b, sizeof(from6.ipi6_addr));
	memcpy(&from4.ipi_spec_dst, p->target.b, sizeof(from4.ipi_spec_dst));
	control.head.cmsg_level = v6 ? SOL_IPV6 : SOL_IP;
	control.head.cmsg_type = v6 ? IPV6_PKTINFO : IP_PKTINFO;
	control.head.cmsg_len = CMSG_LEN(size);
	memcpy(CMSG_DATA(&control.head), v6 ? (void *)&from6 : (void *)&from4, size);
	return sendmsg(w->back, &msg, MSG_NOSIGNAL) == (ssize_t)iov.iov_len;
}

static void outlet_ready(struct relay_source *s, uint32_t events)
{
	struct way *w = (struct way *)((char *)s - offsetof(struct way, outlet_source));
	struct relay *r = &net_relay;
	bool v6 = w->self.v6;

	(void)events;
	for (int i = 0; i < RELAY_TURNS; i++) {
		struct sockaddr_storage sa;
		socklen_t sa_len = sizeof(sa);
		ssize_t n = recvfrom(w->outlet.fd, packet, sizeof(packet), MSG_TRUNC,
				     (struct sockaddr *)&sa, &sa_len);
		struct net_echo echo;
		struct net_end from;
		struct place *p;

		if (n < 0)
			return;
		if ((size_t)n > sizeof(packet) || !net_from_sockaddr(&sa, &from) ||
		    !net_echo_read_reply(packet, (size_t)n, v6, w->outlet.raw && !v6, &echo))
			continue;
		p = find(r, &from.addr, &echo);
		if (!p)
			continue;
		p->waiting = false;
		if (!send_back(w, p))
			continue;
		r->counters->echo_replies++;
		r->counters->bytes_received += p->len;
	}
}

/* ---- the whole ------------------------------------------------------------------------------- */

bool net_icmp_begin(struct relay *r)
{
	static const char *const selves[] = { NET_SELF4, NET_SELF6 };
	const int *s = r->c->sockets;
	const int taps[] = { s[NET_TAP4], s[NET_TAP6] }, backs[] = { s[NET_BACK4], s[NET_BACK6] };

	r->echoes = calloc(1, sizeof(*r->echoes));
	for (size_t i = 0; r->echoes && i < SBX_COUNT(r->echoes->ways); i++) {
		struct way *w = &r->echoes->ways[i];

		*w = (struct way){ .tap_source = { tap_ready },
				   .outlet_source = { outlet_ready },
				   .tap = taps[i],
				   .back = backs[i],
				   .outlet = r->c->outlets[i] };
		(void)net_addr_parse(selves[i], &w->self);
		if (w->tap < 0 || w->back < 0 || w->outlet.fd < 0)
			continue;
		net_relay_watch(r, &w->tap_source, w->tap, &w->tap_watched, EPOLLIN);
		net_relay_watch(r, &w->outlet_source, w->outlet.fd, &w->outlet_watched, EPOLLIN);
	}
	return r->echoes != NULL;
}
