/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's side: list and names first, then the two processes, and their end. */
#include "runtimes/net/egress.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "runtimes/net/egress_i.h"
#include "runtimes/net/netlink.h"

enum {
	RESOLVE_SECONDS = 8,
	ENTER_SECONDS = 10,
	COUNT_SECONDS = 2,
	TEXT_MAX = 256 << 10,
};

struct egress {
	struct net_pins *pins; /* owned */
	char *dns;	       /* owned; NULL: the host's */
	char *list;	       /* owned */
	uint32_t uid_base, uid_range;
	struct egress_counters *shared; /* owned: a page that both processes write to */
	pid_t gate, relay;		/* 0: none */
	int gate_sock, relay_sock;	/* owned; the caller's ends */
};

struct egress *egress_close(struct egress *x)
{
	pid_t pids[2];

	if (!x)
		return NULL;
	pids[0] = x->relay;
	pids[1] = x->gate;
	for (size_t i = 0; i < SBX_COUNT(pids); i++)
		if (pids[i] > 0) {
			(void)kill(pids[i], SIGKILL);
			while (waitpid(pids[i], NULL, 0) < 0 && errno == EINTR)
				;
		}
	sbx_closep(&x->gate_sock);
	sbx_closep(&x->relay_sock);
	if (x->shared)
		(void)munmap(x->shared, sizeof(*x->shared));
	(void)net_pins_free(x->pins);
	free(x->dns);
	free(x->list);
	free(x);
	return NULL;
}

/* ---- the list -------------------------------------------------------------------------------- */

static int read_lists(const struct egress_config *c, struct net_tokens *wanted,
		      struct net_tokens *allowed, struct sbx_error *e)
{
	size_t at;
	int rc = net_tokens_add_list(c->operator_list, "egress_allowlist", SBX_E_INVALID_CONFIG,
				     allowed, e);

	if (rc == 0 && c->n_tokens)
		rc = net_tokens_add(c->tokens, c->n_tokens, "network_allowlist", SBX_E_INVALID_SPEC,
				    wanted, e);
	else if (rc == 0)
		rc = net_tokens_add_list(c->operator_list, "egress_allowlist", SBX_E_INVALID_CONFIG,
					 wanted, e);
	if (rc < 0)
		return rc;
	if (!allowed->n)
		return sbx_fail(e, SBX_E_POLICY_UNSUPPORTED,
				"network_policy allowlist is not available: egress_allowlist is "
				"empty");
	at = net_tokens_uncovered(allowed, wanted);
	if (at < wanted->n)
		return sbx_fail(e, SBX_E_POLICY_UNSUPPORTED,
				"network_allowlist: \"%.200s\" is not within egress_allowlist",
				c->n_tokens ? c->tokens[at] : "?");
	return 0;
}

/* ---- names ----------------------------------------------------------------------------------- */

struct look_up {
	struct egress *x;
	struct net_pin *pin;
	int route;
	enum net_found found;
	const char *why; /* what was wrong with the addresses; a literal */
};

static void found(void *ctx, enum net_found result, const struct net_answer *answer)
{
	struct look_up *l = ctx;
	struct net_answer copy;

	l->found = result;
	if (result == NET_FOUND) {
		copy = *answer;
		net_screen_answer(l->x->pins, l->route, &copy, &l->why);
		net_pins_set(l->x->pins, l->pin, &copy, sbx_boot_us());
	} else {
		net_pins_failed(l->x->pins, l->pin, result == NET_NO_NAME, sbx_boot_us());
	}
}

static int check_needed(const struct look_up *l, size_t n, struct sbx_error *e)
{
	for (size_t i = 0; i < n; i++) {
		const struct net_pin *pin = l[i].pin;

		if (!pin->needed || pin->answer.n)
			continue;
		return sbx_fail(e, SBX_E_POLICY_UNSUPPORTED,
				"the name \"%.200s\" of the allowlist %s%s", pin->name,
				l[i].found == NET_FOUND ? "resolves to an address that "
							: "does not resolve",
				l[i].found == NET_NO_NAME ? ": there is no address of that name"
				: l[i].found == NET_FOUND ? (l[i].why ? l[i].why : "has no room")
							  : ": no name server has answered");
	}
	return 0;
}

static int resolve(struct egress *x, const struct egress_config *c, struct sbx_error *e)
{
	SBX_AUTO(net_resolver_freep) struct net_resolver *resolver = NULL;
	sbx_autoclose int route = net_route_open();
	size_t n = x->pins->n;
	sbx_autofree struct look_up *l = calloc(n + 1, sizeof(*l));
	int rc;

	if (!l || route < 0)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory to resolve names");
	rc = net_resolver_new(x->dns, &resolver, e);
	if (rc < 0)
		return rc;
	for (size_t i = 0; i < n; i++) {
		l[i] = (struct look_up){ .x = x, .pin = &x->pins->pin[i], .route = route };
		net_resolver_ask(resolver, l[i].pin->name, found, &l[i]);
	}
	if (!net_resolver_finish(resolver, sbx_boot_us() + RESOLVE_SECONDS * SBX_SECOND_US,
				 c->wanted, c->wanted_ctx))
		return sbx_fail(e, SBX_E_POLICY_UNSUPPORTED, "the run is not wanted any more");
	return check_needed(l, n, e);
}

static int make_list(struct egress *x, struct sbx_error *e)
{
	sbx_autobuf b = SBX_BUF_INIT(TEXT_MAX);

	sbx_buf_puts(&b, "{\"targets\":");
	net_pins_targets(x->pins, &b);
	sbx_buf_puts(&b, ",\"pins\":");
	net_pins_map(x->pins, &b);
	sbx_buf_puts(&b, "}");
	x->list = sbx_buf_steal(&b);
	return x->list ? 0 : sbx_fail(e, SBX_E_NO_MEMORY, "no memory for an allowlist");
}

int egress_open(const struct egress_config *c, struct egress **ret, struct sbx_error *e)
{
	SBX_AUTO(egress_closep) struct egress *x = calloc(1, sizeof(*x));
	struct net_tokens wanted = { .n = 0 }, allowed = { .n = 0 };
	int rc;

	if (!x)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for an allowlist");
	x->gate_sock = x->relay_sock = -1;
	x->uid_base = c->uid_base;
	x->uid_range = c->uid_range;
	rc = read_lists(c, &wanted, &allowed, e);
	if (rc == 0)
		rc = net_pins_new(&wanted, &allowed, &x->pins, e);
	net_tokens_clear(&wanted);
	net_tokens_clear(&allowed);
	if (rc < 0)
		return rc;
	if (c->dns && *c->dns) {
		x->dns = strdup(c->dns);
		if (!x->dns)
			return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for an allowlist");
	}
	rc = x->pins->n ? resolve(x, c, e) : 0;
	if (rc == 0)
		rc = make_list(x, e);
	if (rc < 0)
		return rc;
	*ret = sbx_steal(&x);
	return 0;
}

/* ---- the processes --------------------------------------------------------------------------- */

/* Both ends of everything. */
struct ends {
	int gate[2], relay[2], between[2]; /* [0] is the caller's; of the last, the gate's */
	int sockets[NET_SOCKET__COUNT];	   /* from the gate, for the relay */
	struct net_outlet outlets[2];	   /* for the relay */
};

static void endsp(struct ends *d)
{
	int *all = d->gate;

	for (size_t i = 0; i < offsetof(struct ends, outlets) / sizeof(int); i++)
		sbx_closep(&all[i]);
	for (size_t i = 0; i < SBX_COUNT(d->outlets); i++)
		sbx_closep(&d->outlets[i].fd);
}

static int make_ends(struct ends *d, struct sbx_error *e)
{
	const struct timeval limit = { .tv_sec = ENTER_SECONDS };
	int type = SOCK_SEQPACKET | SOCK_CLOEXEC;

	memset(d, -1, sizeof(*d));
	for (size_t i = 0; i < SBX_COUNT(d->outlets); i++)
		d->outlets[i] = (struct net_outlet){ .fd = -1 };
	if (socketpair(AF_UNIX, type, 0, d->gate) < 0 ||
	    socketpair(AF_UNIX, type, 0, d->relay) < 0 ||
	    socketpair(AF_UNIX, type, 0, d->between) < 0 ||
	    setsockopt(d->gate[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) < 0 ||
	    setsockopt(d->relay[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) < 0)
		return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, errno, "cannot make a socket");
	return 0;
}

/* Echoes are of no use to a list that has ports only. Without a way out, ICMP stays shut. */
static void open_outlets(const struct egress *x, struct ends *d)
{
	for (size_t i = 0; net_pins_any_port(x->pins) && i < SBX_COUNT(d->outlets); i++)
		d->outlets[i] = net_echo_outside(i == 1);
}

/* A user as whom nothing else runs: the number of a process is unique among the living. */
static uid_t uid_here(const struct egress *x)
{
	return geteuid() == 0 && x->uid_range ? x->uid_base + (uid_t)getpid() % x->uid_range : 0;
}

static int start_gate(struct egress *x, const struct ends *d, const struct net_ranges *ranges,
		      int netns, int userns, struct sbx_error *e)
{
	struct gate_config c = { .netns = netns,
				 .userns = userns,
				 .caller = d->gate[1],
				 .relay = d->between[0],
				 .echo4 = d->outlets[0].fd >= 0,
				 .echo6 = d->outlets[1].fd >= 0,
				 .ranges = ranges,
				 .shared = x->shared };
	int keep[] = { netns, userns, c.caller, c.relay };
	pid_t pid = net_fork(keep, SBX_COUNT(keep), "egress-gate");

	if (pid == 0) {
		/* Within the sandbox's own user namespace there are no such users. */
		c.uid = userns < 0 ? uid_here(x) : 0;
		net_gate_main(&c);
	}
	if (pid < 0)
		return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, -pid, "cannot fork");
	x->gate = pid;
	return 0;
}

/* What the gate says first, and its sockets. */
static int await_gate(struct ends *d, struct sbx_error *e)
{
	struct gate_reply reply;
	int fds[NET_SOCKET__COUNT];
	ssize_t n = net_recv_fds(d->gate[0], &reply, sizeof(reply), fds, NET_SOCKET__COUNT);

	if (n != (ssize_t)sizeof(reply))
		return sbx_fail(e, SBX_E_POLICY_UNSUPPORTED,
				"network_policy allowlist cannot be enforced: its gate %s",
				n == -EAGAIN ? "did not answer in time" : "has died");
	reply.text[sizeof(reply.text) - 1] = '\0';
	if (reply.code)
		return sbx_fail(e, (enum sbx_code)reply.code, "%s", reply.text);
	for (size_t i = 0, from = 0; i < NET_SOCKET__COUNT; i++)
		if (reply.sockets & UINT32_C(1) << i)
			d->sockets[i] = fds[from++];
	/* Where nothing is heard inside, nothing will be sent. */
	for (size_t i = 0; i < SBX_COUNT(d->outlets); i++)
		if (d->sockets[NET_TAP4 + i] < 0)
			sbx_closep(&d->outlets[i].fd);
	return 0;
}

static int start_relay(struct egress *x, const struct ends *d, struct sbx_error *e)
{
	struct relay_config c = { .caller = d->relay[1],
				  .gate = d->between[1],
				  .pins = x->pins,
				  .dns = x->dns,
				  .shared = x->shared };
	int keep[NET_SOCKET__COUNT + 4] = { c.caller, c.gate, d->outlets[0].fd, d->outlets[1].fd };
	pid_t pid;

	memcpy(c.sockets, d->sockets, sizeof(c.sockets));
	memcpy(c.outlets, d->outlets, sizeof(c.outlets));
	memcpy(keep + 4, d->sockets, sizeof(d->sockets));
	pid = net_fork(keep, SBX_COUNT(keep), "egress-relay");
	if (pid == 0) {
		c.uid = uid_here(x);
		net_relay_main(&c);
	}
	if (pid < 0)
		return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, -pid, "cannot fork");
	x->relay = pid;
	return 0;
}

int egress_enter(struct egress *x, int netns, int userns, struct sbx_error *e)
{
	__attribute__((cleanup(endsp))) struct ends d;
	struct net_ranges ranges = { .n = 0 };
	char byte;
	int rc = make_ends(&d, e);

	if (rc < 0)
		return rc;
	x->shared = mmap(NULL, sizeof(*x->shared), PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (x->shared == MAP_FAILED)
		x->shared = NULL;
	if (!x->shared || !net_pins_ranges(x->pins, &ranges))
		rc = sbx_fail(e, SBX_E_NO_MEMORY, "no memory for an allowlist");
	else if (ranges.n > EGRESS_RANGES_MAX)
		rc = sbx_fail(e, SBX_E_POLICY_UNSUPPORTED,
			      "the allowlist stands for %zu ranges of addresses, allowed are %d",
			      ranges.n, EGRESS_RANGES_MAX);
	open_outlets(x, &d);
	if (rc == 0)
		rc = start_gate(x, &d, &ranges, netns, userns, e);
	net_ranges_clear(&ranges);
	sbx_closep(&d.gate[1]); /* or its end could not be seen */
	if (rc == 0)
		rc = await_gate(&d, e);
	if (rc == 0)
		rc = start_relay(x, &d, e);
	sbx_closep(&d.relay[1]);
	if (rc == 0 && recv(d.relay[0], &byte, 1, 0) != 1)
		rc = sbx_fail(e, SBX_E_POLICY_UNSUPPORTED,
			      "network_policy allowlist cannot be enforced: its relay has died");
	if (rc < 0)
		return rc;
	x->gate_sock = sbx_steal_fd(&d.gate[0]);
	x->relay_sock = sbx_steal_fd(&d.relay[0]);
	return 0;
}

int egress_failed(int r, struct sbx_error *e)
{
	if (r == 0 || r == -SBX_E_NO_MEMORY)
		return r;
	if (e)
		e->code = SBX_E_POLICY_UNSUPPORTED;
	return -SBX_E_POLICY_UNSUPPORTED;
}

/* ---- counters -------------------------------------------------------------------------------- */

/* A process that is there has nothing to say unasked. */
static bool is_alive(int sock)
{
	char byte;

	return recv(sock, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

static bool ask_gate(struct egress *x)
{
	const struct timeval limit = { .tv_sec = COUNT_SECONDS };
	struct gate_reply reply;

	return setsockopt(x->gate_sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0 &&
	       send(x->gate_sock, "", 1, MSG_NOSIGNAL) == 1 &&
	       net_recv_fds(x->gate_sock, &reply, sizeof(reply), NULL, 0) ==
		       (ssize_t)sizeof(reply) &&
	       reply.code == SBX_OK;
}

void egress_count(struct egress *x, struct egress_counters *ret)
{
	bool lost = x->gate_sock < 0 || !is_alive(x->relay_sock) || !ask_gate(x);

	memset(ret, 0, sizeof(*ret));
	if (x->shared)
		*ret = *x->shared;
	ret->lost = lost;
}

const char *egress_list(const struct egress *x)
{
	return x->list;
}
