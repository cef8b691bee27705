/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to runtimes/net/. Three processes:
 *   caller   forks the other two, asks the gate for its counters, reads the page that they share
 *   gate     in the sandbox's network namespace, with rights over it and no others
 *   relay    in the caller's network namespace, without any right
 * Messages are plain structs on SOCK_SEQPACKET pairs: all ends are the same program.
 */
#ifndef SBX_RUNTIMES_NET_EGRESS_I_H
#define SBX_RUNTIMES_NET_EGRESS_I_H

#include <sys/socket.h>
#include <sys/types.h>

#include "runtimes/net/egress.h"
#include "runtimes/net/pins.h"
#include "runtimes/net/resolve.h"

enum {
	EGRESS_RANGES_MAX =
		1400, /* NET_TOKENS_MAX + NET_ADDRS_MAX, and some that are still in use */
	EGRESS_DNS_PORT = 53,
};
#define EGRESS_DNS_ADDRESS "127.0.0.1"

struct net_end {
	struct net_addr addr;
	uint16_t port;
};

/* ---- process.c: becoming one of them --------------------------------------------------------- */

/* The child's process number, or a negative errno. In the child it returns 0, with every descriptor
 * closed but these (sorted by the call; -1 is ignored) and stderr, and dies with its parent. */
pid_t net_fork(int *keep, size_t n, const char *name);
/* Gives up everything but these capabilities, a mask of CAP_TO_MASK, of which there are few. uid 0:
 * stays what it is. Negative errno. */
int net_drop_rights(uint32_t capabilities, uid_t uid);
/* Those of the capabilities that the process has, and no others from here on. Negative errno. */
int net_keep_capabilities(uint32_t mask);
/* From here on heads of IP are the kernel's to write, whatever socket is at hand: setsockopt knows
 * the levels SOL_SOCKET and IPPROTO_TCP, and no others. Negative errno. */
int net_forbid_heads(void);
/* A whole message or a negative errno; up to n descriptors. */
int net_send_fds(int sock, const void *data, size_t len, const int *fds, size_t n);
socklen_t net_to_sockaddr(const struct net_end *end, struct sockaddr_storage *out);
/* False: it is of another family. */
bool net_from_sockaddr(const struct sockaddr_storage *sa, struct net_end *ret);
/* The length of the next message, 0 at the end; ret_fds[0..n) are -1 where none came. */
ssize_t net_recv_fds(int sock, void *data, size_t max, int *ret_fds, size_t n);

/* ---- gate.c ---------------------------------------------------------------------------------- */

enum net_socket {
	NET_TCP4,
	NET_UDP4,
	NET_TCP6,
	NET_UDP6,
	NET_DNS_UDP,
	NET_DNS_TCP,
	/* Echoes: as the sandbox sends them, and where the replies go. Missing where there are
	   none. */
	NET_TAP4,
	NET_TAP6,
	NET_BACK4,
	NET_BACK6,
	NET_SOCKET__COUNT,
};

struct gate_config {
	int netns, userns;
	int caller, relay; /* its ends */
	uid_t uid;
	bool echo4, echo6; /* there is a way for them outside, and the list has a target for them */
	const struct net_ranges *ranges;
	struct egress_counters *shared;
};

/* Gate to caller: first how it went, with the sockets that there are; then one for each question,
 * when the counters are in the page. */
struct gate_reply {
	int32_t code;	  /* enum sbx_code */
	uint32_t sockets; /* which of enum net_socket come along, as bits from the lowest */
	char text[400];
};

enum gate_op { GATE_RULES = 1, GATE_FLOW };

/* Relay to gate. RULES is followed by n times struct net_range. */
struct gate_order {
	uint32_t op, n;
	uint64_t id;			/* comes back with the answer */
	struct net_end inside, outside; /* FLOW: a UDP socket that is `outside` towards `inside` */
};

/* Gate to relay; with a socket when it is about a flow. */
struct gate_done {
	uint32_t op;
	int32_t err;
	uint64_t id;
};

_Noreturn void net_gate_main(const struct gate_config *c);

/* ---- echo_sockets.c: gate and caller --------------------------------------------------------- */

/* Where echoes leave this host. */
struct net_outlet {
	int fd; /* owned; -1: there is no such socket for this user */
	/* A raw socket: echoes have the number `id`, and over IPv4 replies have their head of IP.
	 * Else it is a socket for ping(8), whose number is the kernel's affair. */
	bool raw;
	uint16_t id;
};

struct net_outlet net_echo_outside(bool v6);
/* In the sandbox's network namespace, with CAP_NET_RAW and CAP_NET_ADMIN over it. False: there are
 * no such sockets here. */
bool net_echo_inside(bool v6, int *ret_tap, int *ret_back);

/* ---- relay.c --------------------------------------------------------------------------------- */

struct relay_config {
	int caller, gate; /* its ends */
	int sockets[NET_SOCKET__COUNT];
	struct net_outlet outlets[2]; /* of IPv4 and IPv6 */
	uid_t uid;
	struct net_pins *pins; /* the process's own copy */
	const char *dns;
	struct egress_counters *shared;
};

_Noreturn void net_relay_main(const struct relay_config *c);

/* ---- screen.c: caller and relay -------------------------------------------------------------- */

/* NULL when something may be sent there from this host, else why not. `route` is of net_route_open,
 * the port as for net_pins_literal; the list is not asked. */
const char *net_screen(const struct net_pins *p, int route, const struct net_addr *a, int port);
/* Takes out what net_screen refuses on every port; *ret_why, when nothing is left, is why. */
void net_screen_answer(const struct net_pins *p, int route, struct net_answer *answer,
		       const char **ret_why);

#endif
