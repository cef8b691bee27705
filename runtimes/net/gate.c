/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate: a process in the sandbox's network namespace that owns its rules, and makes the sockets
 * in there. It believes the relay, which could send anywhere by itself, and never speaks to the
 * sandbox.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fs.h"
#include "runtimes/net/egress_i.h"
#include "runtimes/net/netlink.h"
#include "runtimes/net/rules.h"

enum { BACKLOG = 128, GID_MAP_MAX = 340 * 33 + 1 /* lines of so many bytes */ };

static const uint32_t rights = CAP_TO_MASK(CAP_NET_ADMIN) | CAP_TO_MASK(CAP_NET_BIND_SERVICE);
/* To make sockets for echoes, and no longer. */
static const uint32_t rights_at_first = CAP_TO_MASK(CAP_NET_RAW);

/* ---- sockets --------------------------------------------------------------------------------- */

/* Addresses that are not this machine's may be taken, and where a packet was sent is told. */
static int make_transparent(int fd, bool v6, bool udp)
{
	const int on = 1;
	int level = v6 ? SOL_IPV6 : SOL_IP;

	if (setsockopt(fd, level, v6 ? IPV6_TRANSPARENT : IP_TRANSPARENT, &on, sizeof(on)) < 0)
		return -errno;
	if (v6 && setsockopt(fd, level, IPV6_V6ONLY, &on, sizeof(on)) < 0)
		return -errno;
	if (udp && setsockopt(fd, level, v6 ? IPV6_RECVORIGDSTADDR : IP_RECVORIGDSTADDR, &on,
			      sizeof(on)) < 0)
		return -errno;
	return 0;
}

struct socket_kind {
	const char *address;
	uint16_t port; /* 0: any */
	bool v6, udp, transparent;
};

static const struct socket_kind kinds[] = {
	[NET_TCP4] = { "127.0.0.1", 0, .transparent = true },
	[NET_UDP4] = { "127.0.0.1", 0, .udp = true, .transparent = true },
	[NET_TCP6] = { "::1", 0, .v6 = true, .transparent = true },
	[NET_UDP6] = { "::1", 0, .v6 = true, .udp = true, .transparent = true },
	[NET_DNS_UDP] = { EGRESS_DNS_ADDRESS, EGRESS_DNS_PORT, .udp = true },
	[NET_DNS_TCP] = { EGRESS_DNS_ADDRESS, EGRESS_DNS_PORT, .udp = false },
};

static int make_socket(const struct socket_kind *k, int *ret)
{
	int type = (k->udp ? SOCK_DGRAM : SOCK_STREAM) | SOCK_NONBLOCK | SOCK_CLOEXEC;
	sbx_autoclose int fd = socket(k->v6 ? AF_INET6 : AF_INET, type, 0);
	struct net_end end = { .port = k->port };
	struct sockaddr_storage sa;
	socklen_t len;
	int r = 0;

	if (fd < 0)
		return -errno;
	(void)net_addr_parse(k->address, &end.addr);
	len = net_to_sockaddr(&end, &sa);
	if (k->transparent)
		r = make_transparent(fd, k->v6, k->udp);
	if (r == 0 &&
	    (bind(fd, (struct sockaddr *)&sa, len) < 0 || (!k->udp && listen(fd, BACKLOG) < 0)))
		r = -errno;
	if (r == 0)
		*ret = sbx_steal_fd(&fd);
	return r;
}

static uint16_t port_of(int fd)
{
	struct sockaddr_storage sa;
	socklen_t len = sizeof(sa);
	struct net_end end;

	if (fd < 0 || getsockname(fd, (struct sockaddr *)&sa, &len) < 0 ||
	    !net_from_sockaddr(&sa, &end))
		return 0;
	return end.port;
}

/* A socket that is the far end of a flow, towards the sandbox. */
static int make_flow(const struct net_end *inside, const struct net_end *outside, int *ret)
{
	sbx_autoclose int fd = socket(outside->addr.v6 ? AF_INET6 : AF_INET,
				      SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	struct sockaddr_storage sa;
	const int on = 1;
	socklen_t len;
	int r;

	if (fd < 0)
		return -errno;
	r = make_transparent(fd, outside->addr.v6, false);
	if (r < 0)
		return r;
	/* One target may have flows to several ports of the sandbox. */
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0)
		return -errno;
	len = net_to_sockaddr(outside, &sa);
	if (bind(fd, (struct sockaddr *)&sa, len) < 0)
		return -errno;
	len = net_to_sockaddr(inside, &sa);
	if (connect(fd, (struct sockaddr *)&sa, len) < 0)
		return -errno;
	*ret = sbx_steal_fd(&fd);
	return 0;
}

/* ---- setting up ------------------------------------------------------------------------------ */

static int fail(struct sbx_error *e, int err, const char *what)
{
	return sbx_fail_errno(e, SBX_E_POLICY_UNSUPPORTED, err,
			      "network_policy allowlist cannot be enforced: cannot %s", what);
}

/* An engine makes its containers without IPv6. Where there is none at all, this fails, and the
 * sandbox has none either. */
static void enable_ipv6(void)
{
	(void)sbx_write_file(AT_FDCWD, "/proc/sys/net/ipv6/conf/lo/disable_ipv6", "0");
}

/* The largest range of groups that this user namespace has; count 0: none that can be written. */
static void largest_groups(const char *map, unsigned long long *ret_first,
			   unsigned long long *ret_count)
{
	unsigned long long first, count;

	*ret_first = *ret_count = 0;
	for (const char *line = map; line && *line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (sscanf(line, "%llu %*u %llu", &first, &count) != 2 || count <= *ret_count ||
		    first > INT32_MAX)
			continue;
		*ret_first = first;
		*ret_count = count;
	}
}

/* Programs without rights ping by sockets that the kernel gives to one range of groups: all there
 * are, or the most of them. */
static void allow_ping(void)
{
	sbx_autofree char *map = NULL;
	unsigned long long first, count, last;
	char range[64];

	if (sbx_read_file(AT_FDCWD, "/proc/self/gid_map", GID_MAP_MAX, &map, NULL) < 0)
		return;
	largest_groups(map, &first, &count);
	if (count == 0)
		return;
	last = count > INT32_MAX - first ? INT32_MAX : first + count - 1;
	(void)snprintf(range, sizeof(range), "%llu %llu", first, last);
	(void)sbx_write_file(AT_FDCWD, "/proc/sys/net/ipv4/ping_group_range", range);
}

static int go_in(const struct gate_config *c, struct sbx_error *e)
{
	int r;

	if (c->userns >= 0 && setns(c->userns, CLONE_NEWUSER) < 0)
		return fail(e, errno, "enter the sandbox's user namespace");
	if (setns(c->netns, CLONE_NEWNET) < 0)
		return fail(e, errno, "enter the sandbox's network namespace");
	enable_ipv6();
	if (c->echo4 || c->echo6)
		allow_ping();
	r = net_drop_rights(rights | rights_at_first, c->uid);
	return r < 0 ? fail(e, -r, "drop rights") : 0;
}

static int make_sockets(bool v6, int fds[NET_SOCKET__COUNT], struct sbx_error *e)
{
	for (size_t i = 0; i < SBX_COUNT(kinds); i++) {
		int r = kinds[i].v6 && !v6 ? 0 : make_socket(&kinds[i], &fds[i]);

		if (r < 0)
			return fail(e, -r, "make a socket in the sandbox's network");
	}
	return 0;
}

/* Where these cannot be made, ICMP stays shut. */
static int make_echo_sockets(const struct gate_config *c, int fds[NET_SOCKET__COUNT],
			     struct net_ports *ports, struct sbx_error *e)
{
	int r;

	ports->echo4 = c->echo4 && net_echo_inside(false, &fds[NET_TAP4], &fds[NET_BACK4]);
	ports->echo6 =
		c->echo6 && ports->tcp6 && net_echo_inside(true, &fds[NET_TAP6], &fds[NET_BACK6]);
	r = net_keep_capabilities(rights);
	return r < 0 ? fail(e, -r, "drop rights") : 0;
}

static int set_up(const struct gate_config *c, int fds[NET_SOCKET__COUNT], struct net_rules **ret,
		  struct sbx_error *e)
{
	const char *step = NULL;
	struct net_ports ports;
	bool v6 = false;
	int r = go_in(c, e);

	if (r < 0)
		return r;
	r = net_link_prepare(&v6, &step);
	if (r < 0)
		return fail(e, -r, step);
	r = make_sockets(v6, fds, e);
	if (r < 0)
		return r;
	ports = (struct net_ports){ .tcp4 = port_of(fds[NET_TCP4]),
				    .udp4 = port_of(fds[NET_UDP4]),
				    .tcp6 = port_of(fds[NET_TCP6]),
				    .udp6 = port_of(fds[NET_UDP6]) };
	r = make_echo_sockets(c, fds, &ports, e);
	if (r == 0)
		r = net_rules_new(&ports, ret, e);
	if (r == 0)
		r = net_rules_set(*ret, c->ranges->all, c->ranges->n, e);
	if (r < 0 && e->code == SBX_E_RUNTIME_ERROR)
		e->code = SBX_E_POLICY_UNSUPPORTED;
	return r;
}

static void tell_caller(const struct gate_config *c, const struct sbx_error *e, uint32_t which,
			const int *fds, size_t n)
{
	struct gate_reply reply = { .code = (int32_t)e->code, .sockets = which };

	(void)snprintf(reply.text, sizeof(reply.text), "%.399s", e->message);
	if (net_send_fds(c->caller, &reply, sizeof(reply), fds, n) < 0)
		_exit(1);
}

/* Only sockets that are there can be sent. */
static void tell_ready(const struct gate_config *c, int fds[NET_SOCKET__COUNT])
{
	const struct sbx_error fine = SBX_ERROR_INIT;
	int there[NET_SOCKET__COUNT];
	uint32_t which = 0;
	size_t n = 0;

	for (size_t i = 0; i < NET_SOCKET__COUNT; i++) {
		if (fds[i] < 0)
			continue;
		there[n++] = fds[i];
		which |= UINT32_C(1) << i;
	}
	tell_caller(c, &fine, which, there, n);
	for (size_t i = 0; i < NET_SOCKET__COUNT; i++)
		sbx_closep(&fds[i]);
}

/* ---- serving --------------------------------------------------------------------------------- */

static void count(const struct gate_config *c, struct net_rules *rules)
{
	struct net_dropped dropped = { 0 };
	sbx_autoerror e = SBX_ERROR_INIT;
	char byte;

	if (recv(c->caller, &byte, 1, 0) <= 0)
		_exit(0);
	if (net_rules_count(rules, &dropped, &e) == 0) {
		c->shared->refused_tcp = dropped.tcp;
		c->shared->refused_udp = dropped.udp;
		c->shared->refused_icmp = dropped.icmp;
		c->shared->refused_other = dropped.other;
	}
	tell_caller(c, &e, 0, NULL, 0);
}

static struct {
	struct gate_order head;
	struct net_range ranges[EGRESS_RANGES_MAX];
} order;

/* False: there is no relay any more. */
static bool obey(const struct gate_config *c, struct net_rules *rules)
{
	ssize_t n = recv(c->relay, &order, sizeof(order), 0);
	struct gate_done done = { .op = order.head.op, .id = order.head.id };
	sbx_autoclose int fd = -1;

	if (n < (ssize_t)sizeof(order.head) || order.head.n > EGRESS_RANGES_MAX ||
	    (order.head.op == GATE_RULES &&
	     (size_t)n <
		     offsetof(__typeof__(order), ranges) + order.head.n * sizeof(order.ranges[0])))
		return false;
	switch (order.head.op) {
	case GATE_RULES:
		done.err = net_rules_set(rules, order.ranges, order.head.n, NULL) < 0 ? EIO : 0;
		break;
	case GATE_FLOW:
		done.err = -make_flow(&order.head.inside, &order.head.outside, &fd);
		break;
	default:
		return false;
	}
	return net_send_fds(c->relay, &done, sizeof(done), &fd, fd >= 0) == 0;
}

_Noreturn void net_gate_main(const struct gate_config *c)
{
	int fds[NET_SOCKET__COUNT];
	struct net_rules *rules = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;
	struct pollfd p[] = { { .fd = c->caller, .events = POLLIN },
			      { .fd = c->relay, .events = POLLIN } };

	for (size_t i = 0; i < NET_SOCKET__COUNT; i++)
		fds[i] = -1;
	if (set_up(c, fds, &rules, &e) < 0) {
		tell_caller(c, &e, 0, NULL, 0);
		_exit(1);
	}
	tell_ready(c, fds);
	for (;;) {
		if (poll(p, SBX_COUNT(p), -1) < 0)
			continue;
		if (p[0].revents)
			count(c, rules);
		if (p[1].revents && !obey(c, rules))
			p[1].fd = -1;
	}
}
