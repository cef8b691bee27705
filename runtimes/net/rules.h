/* SPDX-License-Identifier: Apache-2.0 */
/* The packet filter of a sandbox's network namespace (nf_tables). */
#ifndef SBX_RUNTIMES_NET_RULES_H
#define SBX_RUNTIMES_NET_RULES_H

#include "base/auto.h"
#include "runtimes/net/targets.h"

/* The ports that what is let through is handed to, on loopback. */
struct net_ports {
	uint16_t tcp4, udp4, tcp6, udp6; /* the latter 0: there is no IPv6 */
	bool echo4, echo6;		 /* there is a tap for echoes */
};

/* The mark of echo requests that are let through to the taps. */
enum { NET_ECHO_MARK = 0x5b5346 };

/* Packets that were not let through. */
struct net_dropped {
	uint64_t tcp, udp, icmp, other;
};

struct net_rules;
/* Puts the rules into the caller's network namespace; nothing is let through yet. The object speaks
 * to that namespace wherever it is used. */
int net_rules_new(const struct net_ports *ports, struct net_rules **ret, struct sbx_error *e);
/* The rules stay. NULL is fine. */
struct net_rules *net_rules_free(struct net_rules *r);
SBX_DEFINE_AUTO(struct net_rules, net_rules_free)

/* Lets exactly these (merged) through, from one moment to the next. */
int net_rules_set(struct net_rules *r, const struct net_range *ranges, size_t n,
		  struct sbx_error *e);
int net_rules_count(struct net_rules *r, struct net_dropped *ret, struct sbx_error *e);

#endif
