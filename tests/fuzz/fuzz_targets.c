/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arbitrary bytes as a token of an allowlist and as a question to the sandbox's resolver: never a
 * crash; a token that is taken covers itself and has no bits beyond its prefix; a name is in normal
 * form; an answer fits and is one.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/auto.h"
#include "runtimes/net/dns.h"
#include "runtimes/net/pins.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	(void)fprintf(stderr, "fuzz_targets: broken: %s\n", what);
	abort();
}

static void try_token(const uint8_t *data, size_t size)
{
	struct net_ranges r = { .n = 0 };
	char again[NET_NAME_MAX + 1];
	struct net_token t;

	if (net_token_parse((const char *)data, size, &t))
		return;
	must(net_token_covers(&t, &t), "a token covers itself");
	if (t.kind == NET_NETWORK) {
		must(net_token_has_addr(&t, &t.addr), "a network has its address");
		must(net_ranges_add_token(&r, &t), "memory");
		must(net_addr_compare(&r.all[0].lo, &r.all[0].hi) <= 0, "a range goes up");
		must(net_token_has_addr(&t, &r.all[0].hi), "to the end of the network");
		net_ranges_clear(&r);
		return;
	}
	must(net_name_normal(t.name, strlen(t.name), again) && strcmp(t.name, again) == 0,
	     "a name is in normal form");
	must(net_token_has_name(&t, t.name), "a token has its name");
}

static void try_message(const uint8_t *data, size_t size)
{
	static const struct net_addr addrs[] = { { .b = { 192, 0, 2, 1 } },
						 { .b = { 0x20, 1 }, .v6 = true } };
	uint8_t out[NET_DNS_UDP_MAX];
	char again[NET_NAME_MAX + 1];
	struct net_query q;
	int code = net_dns_read(data, size, &q);
	size_t n;

	if (code < 0)
		return;
	must(q.head_len >= 12 && q.head_len <= size && q.head_len <= sizeof(q.head), "the head");
	if (code == NET_NOERROR)
		must(net_name_normal(q.name, strlen(q.name), again) && strcmp(q.name, again) == 0,
		     "a name is in normal form");
	n = net_dns_write(&q, (enum net_rcode)code, addrs, SBX_COUNT(addrs), 60, out, sizeof(out));
	must(n >= q.head_len && n <= sizeof(out), "an answer fits");
	must((out[2] & 0x80) && memcmp(out, data, 2) == 0, "an answer is one");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	try_token(data, size);
	try_message(data, size);
	return 0;
}
