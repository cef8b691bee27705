/* SPDX-License-Identifier: Apache-2.0 */
/* Where nothing is sent whatever a list or a name server says. */
#include <stddef.h>

#include "runtimes/net/egress_i.h"
#include "runtimes/net/netlink.h"

const char *net_screen(const struct net_pins *p, int route, const struct net_addr *a, int port)
{
	bool never, named = net_pins_literal(p, a, port);
	const char *problem = net_addr_problem(a, &never);

	if (problem && (never || !named))
		return problem;
	switch (net_route_of(route, a)) {
	case NET_ROUTE_UNICAST:
		return NULL;
	case NET_ROUTE_LOCAL:
		return named ? NULL : "is an address of the host";
	case NET_ROUTE_OTHER:
		return "is a broadcast address";
	case NET_ROUTE_NONE:
	default:
		return "cannot be reached from here";
	}
}

void net_screen_answer(const struct net_pins *p, int route, struct net_answer *answer,
		       const char **ret_why)
{
	size_t n = 0;

	for (size_t i = 0; i < answer->n; i++) {
		const char *why = net_screen(p, route, &answer->addr[i], -1);

		if (why)
			*ret_why = why;
		else
			answer->addr[n++] = answer->addr[i];
	}
	answer->n = n;
}
