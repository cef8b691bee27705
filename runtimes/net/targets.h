/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an egress allowlist is made of: tokens, addresses, ranges. Pure: nothing here asks the
 * network or the clock. A token is one of
 *
 *   10.0.0.0/8  fd00::/8        a network; no bits beyond its prefix
 *   192.0.2.7  2001:db8::7      an address
 *   192.0.2.7:443  [2001:db8::7]:443
 *   example.org  example.org:443
 *   *.example.org  .example.org example.org itself and every name below it; with :PORT too
 *
 * Names are taken in any case, with dots at their end, and as the host of a URL of http or https.
 * Without a port every port of TCP and UDP is meant, and ICMP echo; with one, this port alone.
 */
#ifndef SBX_RUNTIMES_NET_TARGETS_H
#define SBX_RUNTIMES_NET_TARGETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

enum {
	NET_NAME_MAX = 253, /* bytes of a name, as RFC 1035 counts without the root */
	NET_TOKENS_MAX = 256,
	NET_ADDR_TEXT = 48,
};

/* ---- addresses (address.c) ------------------------------------------------------------------- */

struct net_addr {
	uint8_t b[16]; /* of IPv4 the first four, the rest 0 */
	bool v6;
};

bool net_addr_parse(const char *text, struct net_addr *ret);
/* Returns out. */
char *net_addr_print(const struct net_addr *a, char out[NET_ADDR_TEXT]);
/* By family, then by number, as qsort(3) wants it. */
int net_addr_compare(const struct net_addr *a, const struct net_addr *b);

/* Why nobody should be let there, as a short phrase: loopback, link-local, metadata services and
 * the like, and forms of IPv6 that stand for such an address of IPv4. NULL: nothing against it.
 * *ret_never, which may be NULL: not even when the operator names the address. */
const char *net_addr_problem(const struct net_addr *a, bool *ret_never);

/* ---- tokens (targets.c) ---------------------------------------------------------------------- */

enum net_token_kind {
	NET_NETWORK = 1, /* addr and prefix; an address is one with the longest prefix */
	NET_HOST,	 /* name */
	NET_BELOW,	 /* name, and every name below it */
};

struct net_token {
	enum net_token_kind kind;
	struct net_addr addr;
	int prefix;
	char name[NET_NAME_MAX + 1]; /* lower case, no dot at its end */
	uint16_t port;		     /* 0: every port */
};

struct net_tokens {
	struct net_token *all; /* owned */
	size_t n;
};
void net_tokens_clear(struct net_tokens *t);

/* NULL, or what is wrong with the text, as a phrase that follows it. */
const char *net_token_parse(const char *text, size_t len, struct net_token *ret);
/* Does `a` let through everything that `b` does? */
bool net_token_covers(const struct net_token *a, const struct net_token *b);
/* Is it about this name (lower case, no dot at its end)? */
bool net_token_has_name(const struct net_token *t, const char *name);
bool net_token_has_addr(const struct net_token *t, const struct net_addr *a);
/* Does it stand for one address? */
bool net_token_is_addr(const struct net_token *t);
/* A name in the form that tokens have: lower case, no dot at its end. False: it is none. */
bool net_name_normal(const char *text, size_t len, char out[NET_NAME_MAX + 1]);

/* Adds the texts to *ret. `code` for a text that is no token, with its place ("where[3]") and the
 * text in the message; the same for more than NET_TOKENS_MAX. */
int net_tokens_add(const char *const *texts, size_t n, const char *where, enum sbx_code code,
		   struct net_tokens *ret, struct sbx_error *e);
/* The same for a comma separated list. NULL is an empty one. */
int net_tokens_add_list(const char *commas, const char *where, enum sbx_code code,
			struct net_tokens *ret, struct sbx_error *e);
/* The index of the first token of `wanted` that no token of `allowed` covers; wanted->n: all are.
 */
size_t net_tokens_uncovered(const struct net_tokens *allowed, const struct net_tokens *wanted);

/* ---- ranges (ranges.c) ----------------------------------------------------------------------- */

struct net_range {
	struct net_addr lo, hi; /* of one family, both included */
	uint16_t port;		/* 0: every port */
};

struct net_ranges {
	struct net_range *all; /* owned */
	size_t n, size;
};
void net_ranges_clear(struct net_ranges *r);
bool net_ranges_add(struct net_ranges *r, const struct net_range *one); /* false: no memory */
bool net_ranges_add_token(struct net_ranges *r, const struct net_token *network);
/* Sorts, and joins what overlaps or touches within one family and port: what a set of the kernel's
 * packet filter can take. */
void net_ranges_merge(struct net_ranges *r);

#endif
