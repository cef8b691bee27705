/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The relay: whatever a sandbox may send ends here, in sockets that stand in the sandbox's network
 * namespace, and goes on from sockets of this process, which stand outside. It has no rights, and
 * asks the list itself, as if there were no rules in front of it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "runtimes/net/netlink.h"
#include "runtimes/net/relay_i.h"

enum {
	EVENTS = 32,
	LOOK_UPS_MAX = 32, /* at a time */
};

struct relay net_relay;
static size_t look_ups;

void net_relay_watch(struct relay *r, struct relay_source *s, int fd, uint32_t *was,
		     uint32_t events)
{
	struct epoll_event ev = { .events = events, .data.ptr = s };

	if (events == *was)
		return;
	/* Not watched for anything, an end that has hung up would wake us for ever. */
	(void)epoll_ctl(r->epoll,
			!events ? EPOLL_CTL_DEL
			: *was	? EPOLL_CTL_MOD
				: EPOLL_CTL_ADD,
			fd, &ev);
	*was = events;
}

static void count_refusal(uint64_t *counter)
{
	(*counter)++;
}

bool net_relay_admits(struct relay *r, const struct net_end *to)
{
	if (net_pins_allow(r->pins, &to->addr, to->port) &&
	    !net_screen(r->pins, r->route, &to->addr, to->port))
		return true;
	count_refusal(&r->counters->refused_addresses);
	return false;
}

/* ---- rules ----------------------------------------------------------------------------------- */

static struct {
	struct gate_order head;
	struct net_range ranges[EGRESS_RANGES_MAX];
} order;

static _Noreturn void give_up(const char *why)
{
	sbx_log(SBX_LOG_ERROR, "egress relay ends reason=\"%s\"", why);
	_exit(1);
}

void net_relay_rules(struct relay *r)
{
	struct net_ranges ranges = { .n = 0 };
	size_t len;
	int err;

	if (r->rules_busy || (!r->rules_dirty && r->rules_done == r->pins->change))
		return;
	if (!net_pins_ranges(r->pins, &ranges) || !net_tcp_ranges(r, &ranges) ||
	    !net_udp_ranges(r, &ranges))
		give_up("no memory for the rules");
	net_ranges_merge(&ranges);
	if (ranges.n > EGRESS_RANGES_MAX) /* what is only still in use has to go */
		give_up("too many addresses for the rules");
	order.head = (struct gate_order){ .op = GATE_RULES, .n = (uint32_t)ranges.n };
	len = offsetof(__typeof__(order), ranges) + ranges.n * sizeof(ranges.all[0]);
	if (ranges.n)
		memcpy(order.ranges, ranges.all, ranges.n * sizeof(ranges.all[0]));
	net_ranges_clear(&ranges);
	err = send(r->c->gate, &order, len, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? errno : 0;
	if (err == EAGAIN) /* an answer of the gate, when there is room again, brings us back */
		return;
	if (err)
		give_up("the gate is gone");
	r->rules_busy = true;
	r->rules_dirty = false;
	r->rules_at = r->pins->change;
}

static void gate_said(struct relay_source *s, uint32_t events)
{
	struct relay *r = &net_relay;
	struct gate_done done;
	int fd;

	(void)s, (void)events;
	if (net_recv_fds(r->c->gate, &done, sizeof(done), &fd, 1) != (ssize_t)sizeof(done))
		give_up("the gate is gone");
	if (done.op == GATE_FLOW) {
		net_udp_made(r, done.id, fd);
	} else {
		sbx_closep(&fd);
		/* What the rules are now nobody knows. */
		if (done.err)
			give_up("the rules could not be set");
		r->rules_busy = false;
		r->rules_done = r->rules_at;
	}
	net_relay_rules(r);
	net_names_news(r);
}

/* ---- names ----------------------------------------------------------------------------------- */

static void found(void *ctx, enum net_found result, const struct net_answer *answer)
{
	struct relay *r = &net_relay;
	struct net_pin *pin = ctx;
	struct net_answer copy;
	const char *why = NULL;

	look_ups--;
	if (result == NET_FOUND) {
		copy = *answer;
		net_screen_answer(r->pins, r->route, &copy, &why);
		if (why && copy.n == 0)
			count_refusal(&r->counters->refused_addresses);
		net_pins_set(r->pins, pin, &copy, sbx_boot_us());
	} else {
		net_pins_failed(r->pins, pin, result == NET_NO_NAME, sbx_boot_us());
	}
	net_relay_rules(r);
	net_names_news(r);
}

bool net_relay_may_look_up(void)
{
	return look_ups < LOOK_UPS_MAX;
}

void net_relay_look_up(struct relay *r, struct net_pin *pin)
{
	pin->busy = true;
	look_ups++;
	net_resolver_ask(r->resolver, pin->name, found, pin);
}

/* What is due is looked up again; what nobody has asked for in a long time is forgotten. */
static void renew(struct relay *r, int64_t now)
{
	struct net_pin *pin;

	while (look_ups < LOOK_UPS_MAX && (pin = net_pins_due(r->pins)) && pin->due_us <= now) {
		if (pin->on_demand &&
		    (!pin->answer.n || now - pin->used_us > NET_STALE_MOST * SBX_SECOND_US))
			net_pins_drop(r->pins, pin);
		else
			net_relay_look_up(r, pin);
	}
	net_relay_rules(r);
}

static int64_t renew_us(const struct relay *r)
{
	const struct net_pin *pin = look_ups < LOOK_UPS_MAX ? net_pins_due(r->pins) : NULL;

	return pin ? pin->due_us : INT64_MAX;
}

static void resolver_ready(struct relay_source *s, uint32_t events)
{
	(void)s, (void)events;
	net_resolver_work(net_relay.resolver);
}

/* ---- the loop -------------------------------------------------------------------------------- */

static void caller_gone(struct relay_source *s, uint32_t events)
{
	(void)s, (void)events;
	_exit(0);
}

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int wait_ms(struct relay *r)
{
	int64_t at = least(least(renew_us(r), net_names_next_us(r)),
			   least(net_tcp_next_us(r), net_udp_next_us(r)));
	int64_t left = at == INT64_MAX ? -1 : (at - sbx_boot_us()) / 1000 + 1;
	int resolver = net_resolver_wait_ms(r->resolver);

	if (at != INT64_MAX && left < 0)
		left = 0;
	if (resolver >= 0 && (left < 0 || resolver < left))
		left = resolver;
	return (int)least(left, INT64_C(3600) * 1000);
}

static void turn(struct relay *r)
{
	struct epoll_event ev[EVENTS];
	int n = epoll_wait(r->epoll, ev, EVENTS, wait_ms(r));
	int64_t now = sbx_boot_us();

	/* What is left over comes again. */
	r->changed = false;
	for (int i = 0; i < n && !r->changed; i++) {
		struct relay_source *s = ev[i].data.ptr;

		s->ready(s, ev[i].events);
	}
	net_resolver_work(r->resolver);
	renew(r, now);
	net_tcp_timers(r, now);
	net_udp_timers(r, now);
	net_names_timers(r, now);
}

static bool begin(struct relay *r)
{
	static struct relay_source sources[] = { { caller_gone },
						 { gate_said },
						 { resolver_ready } };
	const int *s = r->c->sockets;
	const int fds[] = { r->c->caller, r->c->gate, net_resolver_fd(r->resolver) };
	uint32_t was;

	for (size_t i = 0; i < SBX_COUNT(fds); i++) {
		was = 0;
		net_relay_watch(r, &sources[i], fds[i], &was, EPOLLIN);
	}
	return net_tcp_begin(r, s[NET_TCP4], s[NET_TCP6]) &&
	       net_udp_begin(r, s[NET_UDP4], s[NET_UDP6]) && net_icmp_begin(r) &&
	       net_names_begin(r, s[NET_DNS_UDP], s[NET_DNS_TCP]);
}

_Noreturn void net_relay_main(const struct relay_config *c)
{
	struct relay *r = &net_relay;
	sbx_autoerror e = SBX_ERROR_INIT;
	int err = net_drop_rights(0, c->uid);

	if (err == 0)
		err = net_forbid_heads();
	*r = (struct relay){ .c = c, .pins = c->pins, .counters = c->shared };
	r->epoll = epoll_create1(EPOLL_CLOEXEC);
	r->route = net_route_open();
	r->rules_done = r->rules_at = c->pins->change;
	if (err == 0 && net_resolver_new(c->dns, &r->resolver, &e) < 0)
		err = -EIO;
	if (err < 0 || r->epoll < 0 || r->route < 0 || !begin(r) || send(c->caller, "", 1, 0) != 1)
		give_up("it cannot begin");
	for (;;)
		turn(r);
}
