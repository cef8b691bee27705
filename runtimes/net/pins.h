/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which addresses an allowlist stands for now: its networks, and of its names what they resolved to
 * last. Pure: who resolves, and when it is, comes from outside; times are of the boot clock.
 */
#ifndef SBX_RUNTIMES_NET_PINS_H
#define SBX_RUNTIMES_NET_PINS_H

#include "base/auto.h"
#include "runtimes/net/targets.h"

enum {
	NET_ANSWERS_MAX = 16, /* addresses of one name; more are left out */
	NET_PINS_MAX = 512,   /* names */
	NET_ADDRS_MAX = 512,  /* addresses of all names together */
	/* A name is resolved again when its answer is no longer valid, but not more often than the
	 * one and not more seldom than the other; and an answer that cannot be renewed holds for
	 * the third. All in seconds. */
	NET_TTL_LEAST = 1,
	NET_TTL_MOST = 300,
	NET_STALE_MOST = 300,
	NET_AGAIN_GONE = 60,  /* when a name that does not exist is looked for again */
	NET_AGAIN_SILENT = 5, /* and one about which nobody has answered */
};

/* What one look-up said. */
struct net_answer {
	struct net_addr addr[NET_ANSWERS_MAX];
	size_t n;
	uint32_t ttl; /* seconds */
};

struct net_pin {
	char name[NET_NAME_MAX + 1];
	struct net_answer answer;
	int64_t due_us;	  /* when to resolve it again */
	int64_t until_us; /* when the addresses go, if that keeps failing */
	int64_t used_us;  /* when somebody last asked for it; only counts when it is on demand */
	bool needed;	  /* without it a run does not begin */
	bool on_demand;	  /* not known at the start: below a wildcard, and asked for */
	bool busy;	  /* being resolved */
	bool no_reply;	  /* the last look-up got none */
	uint64_t change;  /* the change of the table that gave it these addresses */
};

struct net_pins {
	struct net_tokens tokens;   /* what is let through */
	struct net_tokens operator; /* what the operator lets through */
	struct net_pin *pin;	    /* owned; NET_PINS_MAX of them; one without a name is free */
	size_t n;		    /* behind these all are free */
	uint64_t change;	    /* grows with every change of addresses */
};

/* Takes both lists over. Names that the tokens have are in the table afterwards, without addresses:
 * a wildcard stands for its base name and, as is the custom, www and api below it. */
int net_pins_new(struct net_tokens *tokens, struct net_tokens *operator, struct net_pins ** ret,
		 struct sbx_error *e);
struct net_pins *net_pins_free(struct net_pins *p); /* NULL is fine */
SBX_DEFINE_AUTO(struct net_pins, net_pins_free)

/* NULL: not in the table. */
struct net_pin *net_pins_find(const struct net_pins *p, const char *name);
/* Is this name among the allowed ones, in the table or not? */
bool net_pins_has_name(const struct net_pins *p, const char *name);
/* A new one, on demand; takes the place of the one that was unused for the longest time when the
 * table is full. NULL: there is no room. */
struct net_pin *net_pins_add(struct net_pins *p, const char *name, int64_t now_us);
/* Replaces what the name resolved to. Less fits in than was given when the table is full. */
void net_pins_set(struct net_pins *p, struct net_pin *pin, const struct net_answer *answer,
		  int64_t now_us);
/* The look-up failed: nobody answered (gone is false), or the name is gone. */
void net_pins_failed(struct net_pins *p, struct net_pin *pin, bool gone, int64_t now_us);
/* Forgets a name that is on demand and not busy. */
void net_pins_drop(struct net_pins *p, struct net_pin *pin);
/* The first that has to be resolved again and is not being resolved; NULL: none at all. */
struct net_pin *net_pins_due(const struct net_pins *p);

/* May something be sent there, as far as the list goes? Port 0 is for what has none: it needs a
 * token without one. */
bool net_pins_allow(const struct net_pins *p, const struct net_addr *a, uint16_t port);
/* Has the list a token without a port? */
bool net_pins_any_port(const struct net_pins *p);
/* Does the operator name this very address, with this port or without one? Port 0 as above; -1:
 * with whatever port. */
bool net_pins_literal(const struct net_pins *p, const struct net_addr *a, int port);
/* All that may be sent to, merged. false: no memory. */
bool net_pins_ranges(const struct net_pins *p, struct net_ranges *ret);

/* The allowlist expanded to targets: networks and addresses as ADDRESS/LENGTH, each once, sorted as
 * texts, as a JSON array. */
void net_pins_targets(const struct net_pins *p, struct sbx_buf *out);
/* {"token or base name":["address",...]}: an address stands for itself, a network for nothing, and
 * a wildcard has all addresses of the names below it. */
void net_pins_map(const struct net_pins *p, struct sbx_buf *out);

#endif
