/* SPDX-License-Identifier: Apache-2.0 */
/* Private to relay*.c: one process, one thread, one loop. */
#ifndef SBX_RUNTIMES_NET_RELAY_I_H
#define SBX_RUNTIMES_NET_RELAY_I_H

#include "runtimes/net/egress_i.h"

enum {
	RELAY_TCP_MAX = 256,   /* connections of one sandbox at a time */
	RELAY_FLOWS_MAX = 256, /* and flows of UDP */
	RELAY_ECHOES_MAX = 64, /* and echoes, and these at most in a second */
	RELAY_CHUNK = 64 << 10,
	RELAY_TURNS = 16, /* what one source may do before others have theirs */
};

/* Something that is watched; part of what it is about. */
struct relay_source {
	void (*ready)(struct relay_source *s, uint32_t events);
};

struct relay_tcp;
struct relay_flow;
struct relay_echoes;
struct relay_names;

struct relay {
	const struct relay_config *c;
	struct net_pins *pins;
	struct net_resolver *resolver; /* owned */
	int epoll, route;	       /* owned */
	struct egress_counters *counters;
	bool changed; /* something that may be among the events in hand is no longer there */

	bool rules_busy;     /* the gate has an order about them */
	bool rules_dirty;    /* apart from the pins */
	uint64_t rules_at;   /* the change of the pins that the order is about, or was */
	uint64_t rules_done; /* the one that the rules are up to */

	struct relay_tcp *tcp; /* owned; all connections */
	size_t n_tcp;
	int64_t accept_us;	     /* when to accept again after the host had no room; 0: now */
	struct relay_flow *flows;    /* owned; RELAY_FLOWS_MAX places */
	struct relay_echoes *echoes; /* owned */
	struct relay_names *names;   /* owned */
};

/* relay.c */

extern struct relay net_relay; /* the one of this process */
/* Watches fd for EPOLLIN, EPOLLOUT; 0: not at all. `was` is what it is watched for. */
void net_relay_watch(struct relay *r, struct relay_source *s, int fd, uint32_t *was,
		     uint32_t events);
/* May the sandbox send there? Counts it when not. */
bool net_relay_admits(struct relay *r, const struct net_end *to);
/* The gate shall have the rules that follow from pins and from what is under way. */
void net_relay_rules(struct relay *r);
/* Are there fewer look-ups under way than there may be? */
bool net_relay_may_look_up(void);
/* Begins to look up a name that is in the table. */
void net_relay_look_up(struct relay *r, struct net_pin *pin);

/* relay_tcp.c */

bool net_tcp_begin(struct relay *r, int listener4, int listener6);
/* What connections need of the rules although the list no longer has it. */
bool net_tcp_ranges(const struct relay *r, struct net_ranges *ret);
/* When net_tcp_timers has something to do; INT64_MAX: never. */
int64_t net_tcp_next_us(const struct relay *r);
void net_tcp_timers(struct relay *r, int64_t now_us);

/* relay_udp.c */

bool net_udp_begin(struct relay *r, int listener4, int listener6);
bool net_udp_ranges(const struct relay *r, struct net_ranges *ret);
/* The gate's answer to an order about a flow. Takes fd over. */
void net_udp_made(struct relay *r, uint64_t id, int fd);
int64_t net_udp_next_us(const struct relay *r);
void net_udp_timers(struct relay *r, int64_t now_us);

/* relay_icmp.c */

bool net_icmp_begin(struct relay *r);

/* relay_names.c */

bool net_names_begin(struct relay *r, int udp, int tcp);
/* Something has been looked up, or the rules have changed: who waited for that gets an answer. */
void net_names_news(struct relay *r);
int64_t net_names_next_us(const struct relay *r);
void net_names_timers(struct relay *r, int64_t now_us);

#endif
