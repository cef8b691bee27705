/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules as a text, which libnftables gives to the kernel as one transaction. Packets of the
 * sandbox leave it through `out` and come back in through `in`, since the only device is loopback:
 * what `out` has not refused, `in` hands to the sockets of the relay. When nobody listens there, it
 * is dropped.
 */
#include "runtimes/net/rules.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/netlink.h>
#include <nftables/libnftables.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/auto.h"
#include "runtimes/net/netlink.h"

#define TABLE "inet egress"

enum { TEXT_MAX = 1 << 20 };

struct net_rules {
	struct nft_ctx *nft;
	bool v6;
};

static const char beginning[] =
	"table " TABLE " {\n"
	" set any4 { type ipv4_addr; flags interval; }\n"
	" set any6 { type ipv6_addr; flags interval; }\n"
	" set port4 { type ipv4_addr . inet_service; flags interval; }\n"
	" set port6 { type ipv6_addr . inet_service; flags interval; }\n"
	" counter n_tcp { }\n"
	" counter n_udp { }\n"
	" counter n_icmp { }\n"
	" counter n_other { }\n"
	" chain out {\n"
	"  type filter hook output priority filter; policy drop;\n"
	/* Whoever made the namespace may have put another device into it. */
	"  oifname != \"lo\" counter name n_other drop\n"
	/* The sandbox with itself, and what is sent back to it. */
	"  ip daddr { 127.0.0.0/8, " NET_SELF4 " } accept\n"
	"  ip6 daddr { ::1, " NET_SELF6 " } accept\n"
	"  meta l4proto { tcp, udp } ip daddr @any4 accept\n"
	"  meta l4proto { tcp, udp } ip6 daddr @any6 accept\n"
	"  meta l4proto { tcp, udp } ip daddr . th dport @port4 accept\n"
	"  meta l4proto { tcp, udp } ip6 daddr . th dport @port6 accept\n"
	/* A refusal that is told ends a connect(2) at once. */
	"  meta l4proto tcp counter name n_tcp reject with tcp reset\n"
	"  meta l4proto udp counter name n_udp reject with icmpx admin-prohibited\n";

/* In between, what add_echo adds for each family. */

static const char ending[] = "  meta l4proto { icmp, icmpv6 } counter name n_icmp drop\n"
			     "  counter name n_other drop\n"
			     " }\n"
			     " chain in {\n"
			     "  type filter hook prerouting priority mangle; policy drop;\n"
			     "  iifname != \"lo\" drop\n"
			     "  ip daddr { 127.0.0.0/8, " NET_SELF4 " } accept\n"
			     "  ip6 daddr { ::1, " NET_SELF6 " } accept\n";

static int no_memory(struct sbx_error *e)
{
	return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the rules of the network");
}

static int run(struct net_rules *r, const char *text, struct sbx_error *e)
{
	const char *said;

	if (nft_run_cmd_from_buffer(r->nft, text) == 0)
		return 0;
	said = nft_ctx_get_error_buffer(r->nft);
	return sbx_fail(e, SBX_E_RUNTIME_ERROR,
			"network_policy allowlist cannot be enforced: cannot set the rules "
			"of the network: %.*s",
			said ? (int)strcspn(said, "\n") : 0, said ? said : "");
}

static void add_hand_over(struct sbx_buf *b, const char *family, const char *ip, const char *proto,
			  const char *to, uint16_t port)
{
	sbx_buf_printf(b, "  meta nfproto %s meta l4proto %s tproxy %s to %s:%u accept\n", family,
		       proto, ip, to, port);
}

/* Echo requests to a target of the list that has no port, from the sandbox's own address and
 * without options, go on, and end: `in` has no rule for them, so that the kernel, for which every
 * address is its own, does not reply to them. The taps have them before that. */
static void add_echo(struct sbx_buf *b, bool v6)
{
	sbx_buf_printf(b,
		       v6 ? "  ip6 nexthdr icmpv6 icmpv6 type echo-request icmpv6 code 0 "
			    "ip6 saddr " NET_SELF6 " ip6 daddr @any6 meta mark set 0x%x accept\n"
			  : "  ip hdrlength 5 ip protocol icmp icmp type echo-request icmp code 0 "
			    "ip saddr " NET_SELF4 " ip daddr @any4 meta mark set 0x%x accept\n",
		       NET_ECHO_MARK);
}

int net_rules_new(const struct net_ports *ports, struct net_rules **ret, struct sbx_error *e)
{
	sbx_autobuf text = SBX_BUF_INIT(TEXT_MAX);
	SBX_AUTO(net_rules_freep) struct net_rules *r = calloc(1, sizeof(*r));
	sbx_autoclose int probe = -1;
	int rc;

	if (!r)
		return no_memory(e);
	/* Where there is no packet filter, the library would end the process. */
	probe = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER);
	if (probe < 0)
		return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, errno,
				      "network_policy allowlist cannot be enforced: the packet "
				      "filter cannot be used");
	r->v6 = ports->tcp6;
	r->nft = nft_ctx_new(NFT_CTX_DEFAULT);
	if (!r->nft || nft_ctx_buffer_output(r->nft) != 0 || nft_ctx_buffer_error(r->nft) != 0)
		return no_memory(e);
	sbx_buf_puts(&text, beginning);
	if (ports->echo4)
		add_echo(&text, false);
	if (ports->echo6)
		add_echo(&text, true);
	sbx_buf_puts(&text, ending);
	add_hand_over(&text, "ipv4", "ip", "tcp", "127.0.0.1", ports->tcp4);
	add_hand_over(&text, "ipv4", "ip", "udp", "127.0.0.1", ports->udp4);
	if (r->v6) {
		add_hand_over(&text, "ipv6", "ip6", "tcp", "[::1]", ports->tcp6);
		add_hand_over(&text, "ipv6", "ip6", "udp", "[::1]", ports->udp6);
	}
	sbx_buf_puts(&text, " }\n}\n");
	if (sbx_buf_failed(&text))
		return no_memory(e);
	rc = run(r, text.data, e);
	if (rc < 0)
		return rc;
	*ret = sbx_steal(&r);
	return 0;
}

struct net_rules *net_rules_free(struct net_rules *r)
{
	if (r && r->nft)
		nft_ctx_free(r->nft);
	free(r);
	return NULL;
}

/* ---- what is let through --------------------------------------------------------------------- */

static const char *set_of(const struct net_range *range)
{
	static const char *const names[2][2] = { { "any4", "any6" }, { "port4", "port6" } };

	return names[range->port != 0][range->lo.v6];
}

static void add_element(struct sbx_buf *b, const struct net_range *range)
{
	char lo[NET_ADDR_TEXT], hi[NET_ADDR_TEXT];

	sbx_buf_printf(b, "add element " TABLE " %s { %s", set_of(range),
		       net_addr_print(&range->lo, lo));
	if (net_addr_compare(&range->lo, &range->hi) != 0)
		sbx_buf_printf(b, "-%s", net_addr_print(&range->hi, hi));
	if (range->port)
		sbx_buf_printf(b, " . %u", range->port);
	sbx_buf_puts(b, " }\n");
}

int net_rules_set(struct net_rules *r, const struct net_range *ranges, size_t n,
		  struct sbx_error *e)
{
	static const char *const sets[] = { "any4", "any6", "port4", "port6" };
	sbx_autobuf text = SBX_BUF_INIT(TEXT_MAX);

	for (size_t i = 0; i < SBX_COUNT(sets); i++)
		sbx_buf_printf(&text, "flush set " TABLE " %s\n", sets[i]);
	for (size_t i = 0; i < n; i++)
		add_element(&text, &ranges[i]);
	return sbx_buf_failed(&text) ? no_memory(e) : run(r, text.data, e);
}

/* ---- what is not ----------------------------------------------------------------------------- */

static bool read_counter(const char *text, const char *name, uint64_t *ret)
{
	char head[40];
	const char *at;

	(void)snprintf(head, sizeof(head), "counter %s {", name);
	at = strstr(text, head);
	at = at ? strstr(at, "packets ") : NULL;
	return at && sscanf(at, "packets %" SCNu64, ret) == 1;
}

int net_rules_count(struct net_rules *r, struct net_dropped *ret, struct sbx_error *e)
{
	int rc = run(r, "list counters table " TABLE, e);
	const char *text;

	if (rc < 0)
		return rc;
	text = nft_ctx_get_output_buffer(r->nft);
	if (!text || !read_counter(text, "n_tcp", &ret->tcp) ||
	    !read_counter(text, "n_udp", &ret->udp) || !read_counter(text, "n_icmp", &ret->icmp) ||
	    !read_counter(text, "n_other", &ret->other))
		return sbx_fail(e, SBX_E_RUNTIME_ERROR, "cannot read the counters of the network");
	return 0;
}
