/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel is asked about addresses and routes, and told of them (rtnetlink). */
#ifndef SBX_RUNTIMES_NET_NETLINK_H
#define SBX_RUNTIMES_NET_NETLINK_H

#include "runtimes/net/targets.h"

/* Where the sandbox's own packets come from. Addresses that nobody has: of the range for
 * measurements (RFC 2544), and a local one (RFC 4193). */
#define NET_SELF4 "198.18.0.1"
#define NET_SELF6 "fd5b:5346:5321::1"

/* A socket for the questions below; -1 with errno set. */
int net_route_open(void);

enum net_route {
	NET_ROUTE_NONE = 1, /* it cannot be reached from here */
	NET_ROUTE_UNICAST,
	NET_ROUTE_LOCAL, /* it is an address of this host */
	NET_ROUTE_OTHER, /* broadcast, multicast, blackhole */
};
enum net_route net_route_of(int fd, const struct net_addr *a);

/* In the caller's network namespace: loopback up, with the addresses above, and every other address
 * taken for one of this machine. *ret_v6: there is IPv6. Negative errno; *ret_step, a literal, says
 * in what. */
int net_link_prepare(bool *ret_v6, const char **ret_step);

#endif
