/* SPDX-License-Identifier: Apache-2.0 */
/* Looking up names, many at a time, by the host's resolver or the operator's (c-ares). */
#ifndef SBX_RUNTIMES_NET_RESOLVE_H
#define SBX_RUNTIMES_NET_RESOLVE_H

#include "base/auto.h"
#include "runtimes/net/pins.h"

enum net_found {
	NET_FOUND = 1,
	NET_NO_NAME, /* there is no such name, or it has no address */
	NET_NO_REPLY,
};

/* answer is valid during the call, and not NULL with NET_FOUND. */
typedef void net_found_fn(void *ctx, enum net_found found, const struct net_answer *answer);

struct net_resolver;
/* servers: comma separated ADDR[:PORT], [v6]:PORT; NULL: those of the host. INVALID_CONFIG. */
int net_resolver_new(const char *servers, struct net_resolver **ret, struct sbx_error *e);
/* What is under way is given up without a word. NULL is fine. */
struct net_resolver *net_resolver_free(struct net_resolver *r);
SBX_DEFINE_AUTO(struct net_resolver, net_resolver_free)

/* Calls fn once, maybe at once, always within half a minute if work is called as it should be. */
void net_resolver_ask(struct net_resolver *r, const char *name, net_found_fn *fn, void *ctx);
/* Readable when there is work. Borrowed. */
int net_resolver_fd(const struct net_resolver *r);
/* In how many milliseconds there is work even so; -1: never. */
int net_resolver_wait_ms(struct net_resolver *r);
void net_resolver_work(struct net_resolver *r);
/* Works until every question is answered or the time is over; then the rest is answered NO_REPLY.
 * Meanwhile wanted, which may be NULL, is called once a second or more often. False: it said no. */
bool net_resolver_finish(struct net_resolver *r, int64_t until_us, bool (*wanted)(void *ctx),
			 void *wanted_ctx);

#endif
