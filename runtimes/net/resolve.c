/* SPDX-License-Identifier: Apache-2.0 */
/* c-ares with an epoll of its own, so that whoever uses it has one descriptor to watch. */
#include "runtimes/net/resolve.h"

#include <ares.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/time.h>

#include "base/clock.h"

enum {
	TRY_MS = 1500, /* of the first; the second takes as long again, for each server */
	TRIES = 2,
	WANTED_MS = 500,
	EVENTS = 16,
};

struct net_resolver {
	ares_channel channel;
	int epoll; /* owned */
	size_t asked;
	bool closing;
};

struct question {
	struct net_resolver *r;
	net_found_fn *fn;
	void *ctx;
};

static void socket_changed(void *ctx, ares_socket_t fd, int readable, int writable)
{
	struct net_resolver *r = ctx;
	struct epoll_event ev = { .events = (readable ? EPOLLIN : 0U) | (writable ? EPOLLOUT : 0U),
				  .data.fd = fd };

	if (!ev.events)
		(void)epoll_ctl(r->epoll, EPOLL_CTL_DEL, fd, NULL);
	else if (epoll_ctl(r->epoll, EPOLL_CTL_MOD, fd, &ev) < 0)
		(void)epoll_ctl(r->epoll, EPOLL_CTL_ADD, fd, &ev);
}

static int set_servers(struct net_resolver *r, const char *servers, struct sbx_error *e)
{
	if (!servers || !*servers)
		return 0;
	if (ares_set_servers_ports_csv(r->channel, servers) != ARES_SUCCESS)
		return sbx_fail(e, SBX_E_INVALID_CONFIG,
				"egress_dns: found \"%.100s\", allowed are addresses, each with or "
				"without a :port",
				servers);
	return 0;
}

int net_resolver_new(const char *servers, struct net_resolver **ret, struct sbx_error *e)
{
	char lookups[] = "fb"; /* files before the network */
	struct ares_options options = {
		.flags = ARES_FLAG_NOSEARCH | ARES_FLAG_NOALIASES,
		.timeout = TRY_MS,
		.tries = TRIES,
		.lookups = lookups,
		.sock_state_cb = socket_changed,
	};
	int mask = ARES_OPT_FLAGS | ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES | ARES_OPT_LOOKUPS |
		   ARES_OPT_SOCK_STATE_CB;
	static bool begun;
	SBX_AUTO(net_resolver_freep) struct net_resolver *r = calloc(1, sizeof(*r));
	int rc;

	if (!r)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a resolver");
	r->epoll = epoll_create1(EPOLL_CLOEXEC);
	options.sock_state_cb_data = r;
	if (!begun)
		begun = ares_library_init(ARES_LIB_INIT_ALL) == ARES_SUCCESS;
	if (r->epoll < 0 || !begun ||
	    ares_init_options(&r->channel, &options, mask) != ARES_SUCCESS)
		return sbx_fail(e, SBX_E_RUNTIME_ERROR, "cannot make a resolver");
	rc = set_servers(r, servers, e);
	if (rc < 0)
		return rc;
	*ret = sbx_steal(&r);
	return 0;
}

struct net_resolver *net_resolver_free(struct net_resolver *r)
{
	if (!r)
		return NULL;
	r->closing = true;
	if (r->channel)
		ares_destroy(r->channel);
	sbx_closep(&r->epoll);
	free(r);
	return NULL;
}

/* ---- asking ---------------------------------------------------------------------------------- */

static bool take(const struct sockaddr *sa, struct net_addr *ret)
{
	struct sockaddr_in6 in6;
	struct sockaddr_in in;

	memset(ret, 0, sizeof(*ret));
	ret->v6 = sa->sa_family == AF_INET6;
	if (ret->v6) {
		memcpy(&in6, sa, sizeof(in6));
		memcpy(ret->b, &in6.sin6_addr, 16);
	} else if (sa->sa_family == AF_INET) {
		memcpy(&in, sa, sizeof(in));
		memcpy(ret->b, &in.sin_addr, 4);
	}
	return ret->v6 || sa->sa_family == AF_INET;
}

/* The least of the times of all records, also of the names in between. */
static void read_answer(const struct ares_addrinfo *info, struct net_answer *out)
{
	int ttl = NET_TTL_MOST;

	for (const struct ares_addrinfo_cname *c = info->cnames; c; c = c->next)
		ttl = c->ttl < ttl ? c->ttl : ttl;
	for (const struct ares_addrinfo_node *n = info->nodes; n; n = n->ai_next) {
		ttl = n->ai_ttl < ttl ? n->ai_ttl : ttl;
		if (out->n < NET_ANSWERS_MAX && take(n->ai_addr, &out->addr[out->n]))
			out->n++;
	}
	out->ttl = ttl < 0 ? 0 : (uint32_t)ttl;
}

static void answered(void *ctx, int status, int timeouts, struct ares_addrinfo *info)
{
	struct question *q = ctx;
	struct net_answer answer = { .n = 0 };
	enum net_found found = NET_NO_REPLY;

	(void)timeouts;
	if (status == ARES_SUCCESS)
		read_answer(info, &answer);
	if (status == ARES_SUCCESS || status == ARES_ENOTFOUND || status == ARES_ENODATA)
		found = answer.n ? NET_FOUND : NET_NO_NAME;
	ares_freeaddrinfo(info);
	q->r->asked--;
	if (!q->r->closing)
		q->fn(q->ctx, found, found == NET_FOUND ? &answer : NULL);
	free(q);
}

void net_resolver_ask(struct net_resolver *r, const char *name, net_found_fn *fn, void *ctx)
{
	const struct ares_addrinfo_hints hints = { .ai_family = AF_UNSPEC,
						   .ai_socktype = SOCK_STREAM,
						   .ai_flags = ARES_AI_NOSORT };
	struct question *q = calloc(1, sizeof(*q));

	if (!q) {
		fn(ctx, NET_NO_REPLY, NULL);
		return;
	}
	*q = (struct question){ r, fn, ctx };
	r->asked++;
	ares_getaddrinfo(r->channel, name, NULL, &hints, answered, q);
}

int net_resolver_fd(const struct net_resolver *r)
{
	return r->epoll;
}

int net_resolver_wait_ms(struct net_resolver *r)
{
	struct timeval left, *t = r->asked ? ares_timeout(r->channel, NULL, &left) : NULL;

	return t ? (int)(t->tv_sec * 1000 + t->tv_usec / 1000 + 1) : -1;
}

/* Waits for at most so long, and works. */
static void work(struct net_resolver *r, int wait_ms)
{
	struct epoll_event ev[EVENTS];
	int n = epoll_wait(r->epoll, ev, EVENTS, wait_ms);

	for (int i = 0; i < n; i++)
		ares_process_fd(r->channel,
				ev[i].events & ~(uint32_t)EPOLLOUT ? ev[i].data.fd
								   : ARES_SOCKET_BAD,
				ev[i].events & EPOLLOUT ? ev[i].data.fd : ARES_SOCKET_BAD);
	ares_process_fd(r->channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD); /* what is late */
}

void net_resolver_work(struct net_resolver *r)
{
	work(r, 0);
}

bool net_resolver_finish(struct net_resolver *r, int64_t until_us, bool (*wanted)(void *ctx),
			 void *wanted_ctx)
{
	bool go_on = true;

	while (r->asked && go_on) {
		int64_t left_ms = (until_us - sbx_boot_us()) / 1000;
		int wait = net_resolver_wait_ms(r);

		if (left_ms <= 0)
			break;
		if (left_ms > WANTED_MS)
			left_ms = WANTED_MS;
		work(r, wait < 0 || wait > left_ms ? (int)left_ms : wait);
		go_on = !wanted || wanted(wanted_ctx);
	}
	if (r->asked)
		ares_cancel(r->channel);
	return go_on;
}
