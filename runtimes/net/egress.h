/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Network policy "allowlist": what a sandbox may reach, for any driver that has the sandbox's
 * network namespace in hand. docs/network.md says how it works and what holds.
 *
 *   open    reads the list and resolves its names, before anything of the run exists
 *   enter   two processes: the gate, inside of the namespace, owns its packet filter; the relay,
 *           outside, makes every connection and answers questions about names. When enter returns,
 *           the rules stand and both are at work
 *   close   ends both. They end by themselves when the caller dies; then, and when one of them
 * dies, nothing gets out of the sandbox any more
 *
 * Nothing is changed outside of that namespace. Single-threaded callers only: enter forks.
 */
#ifndef SBX_RUNTIMES_NET_EGRESS_H
#define SBX_RUNTIMES_NET_EGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/auto.h"
#include "base/error.h"

/* All borrowed, for as long as egress_open takes. */
struct egress_config {
	const char *const *tokens; /* the run's list; none: the operator's */
	size_t n_tokens;
	const char *operator_list; /* comma separated; NULL: empty, and then nothing is allowed */
	const char *dns; /* comma separated ADDR[:PORT] to ask for names; NULL: the host's */
	uint32_t uid_base, uid_range; /* root only: whom the processes become; range 0: root */
	/* Called about once a second while names are resolved; false: nobody wants them any more.
	 * NULL is fine. */
	bool (*wanted)(void *ctx);
	void *wanted_ctx;
};

struct egress_counters {
	/* Packets of the sandbox that its rules did not let out. */
	uint64_t refused_tcp, refused_udp, refused_icmp, refused_other;
	/* By the relay: connections, flows and echoes to addresses of the host and the like, or
	 * beyond what it has room for or the host can send; questions for names that are not on the
	 * list. */
	uint64_t refused_addresses, refused_busy, refused_names;
	uint64_t connections, flows, failed_connections; /* made outside; failed ones are of TCP */
	uint64_t echoes, echo_replies;			 /* of ICMP: sent outside, given back */
	uint64_t bytes_sent, bytes_received;		 /* payload, by all of these */
	bool lost; /* a process of ours died before its time; the packets may be uncounted */
};

struct egress;

/*
 * INVALID_CONFIG: the operator's list or dns; INVALID_SPEC: the run's list. POLICY_UNSUPPORTED: the
 * operator allows nothing, or not all of what the run wants; a name does not resolve, or only to
 * addresses that are never allowed. Takes ten seconds at the most.
 */
int egress_open(const struct egress_config *c, struct egress **ret, struct sbx_error *e);
/*
 * netns is of the sandbox, userns the user namespace that owns it when the caller is not root, else
 * -1; both borrowed. The command must not have begun, nor anything in the namespace be set up but
 * the loopback device. POLICY_UNSUPPORTED with what could not be done; then nothing may begin in
 * there.
 */
int egress_enter(struct egress *x, int netns, int userns, struct sbx_error *e);
/* For drivers: whatever egress_open or egress_enter has failed with, the policy could not be
 * carried out: POLICY_UNSUPPORTED, but for NO_MEMORY. */
int egress_failed(int r, struct sbx_error *e);
/* What was let through and what not, up to now. Waits two seconds at the most. */
void egress_count(struct egress *x, struct egress_counters *ret);
/* {"targets":[...],"pins":{...}}: what the list stood for when it was opened, for the record.
 * Borrowed. */
const char *egress_list(const struct egress *x);
/* Ends the processes and waits for them. In any state; NULL is fine. */
struct egress *egress_close(struct egress *x);
SBX_DEFINE_AUTO(struct egress, egress_close)

#endif
