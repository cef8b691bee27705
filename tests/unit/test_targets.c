/* SPDX-License-Identifier: Apache-2.0 */
/* runtimes/net: tokens of an allowlist, addresses, ranges. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/auto.h"
#include "runtimes/net/targets.h"

/* A token in one form: what was understood. */
static char *show(const struct net_token *t, char out[400])
{
	char text[NET_ADDR_TEXT];
	int n;

	if (t->kind == NET_NETWORK)
		n = snprintf(out, 400, "%s/%d", net_addr_print(&t->addr, text), t->prefix);
	else
		n = snprintf(out, 400, "%s%s", t->kind == NET_BELOW ? "below " : "name ", t->name);
	if (t->port)
		(void)snprintf(out + n, 400 - (size_t)n, " port %u", t->port);
	return out;
}

static void parse__understands(void **state)
{
	static const char *const rows[][2] = {
		{ "10.0.0.0/8", "10.0.0.0/8" },
		{ "0.0.0.0/0", "0.0.0.0/0" },
		{ "192.0.2.7", "192.0.2.7/32" },
		{ "  192.0.2.7\t", "192.0.2.7/32" },
		{ "192.0.2.7:443", "192.0.2.7/32 port 443" },
		{ "192.0.2.7/32", "192.0.2.7/32" },
		{ "2001:DB8::7", "2001:db8::7/128" },
		{ "2001:db8::/32", "2001:db8::/32" },
		{ "[2001:db8::7]", "2001:db8::7/128" },
		{ "[2001:db8::7]:65535", "2001:db8::7/128 port 65535" },
		{ "::/0", "::/0" },
		{ "Example.ORG", "name example.org" },
		{ "example.org...", "name example.org" },
		{ "example.org:1", "name example.org port 1" },
		{ "*.example.org", "below example.org" },
		{ ".example.org", "below example.org" },
		{ "*.example.org:443", "below example.org port 443" },
		{ "http://example.org", "name example.org" },
		{ "HTTPS://Example.org:8443/a?b#c", "name example.org port 8443" },
		{ "https://192.0.2.7/x", "192.0.2.7/32" },
		{ "https://[2001:db8::7]:8443/x", "2001:db8::7/128 port 8443" },
		{ "example.org/path:80", "name example.org" },
		{ "http://*.example.org/", "below example.org" },
		{ "_dmarc.x-1.example", "name _dmarc.x-1.example" },
		{ "localhost", "name localhost" },
	};
	struct net_token t;
	char text[400];

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		assert_null(net_token_parse(rows[i][0], strlen(rows[i][0]), &t));
		assert_string_equal(show(&t, text), rows[i][1]);
	}
}

static void parse__refuses(void **state)
{
	static const char *const rows[][2] = {
		{ "", "empty" },
		{ " \t ", "empty" },
		{ "10.0.0.1/8", "bits beyond" },
		{ "2001:db8::1/32", "bits beyond" },
		{ "10.0.0.0/33", "prefix length" },
		{ "10.0.0.0/", "prefix length" },
		{ "10.0.0.0/-1", "prefix length" },
		{ "10.0.0.0/8x", "prefix length" },
		{ "10.0.0.0/8:443", "prefix length" },
		{ "2001:db8::/129", "prefix length" },
		{ "192.0.2.7:0", "port" },
		{ "192.0.2.7:65536", "port" },
		{ "192.0.2.7:", "port" },
		{ "example.org:http", "port" },
		{ "example.org:+80", "port" },
		{ "[2001:db8::7", "bracket" },
		{ "[2001:db8::7]x", "bracket" },
		{ "[2001:db8::7]:x", "port" },
		{ "[192.0.2.7]:80", "no IPv6 address" },
		{ "::ffff:192.0.2.7", "write it as IPv4" },
		{ "[::ffff:192.0.2.7]:80", "write it as IPv4" },
		{ "::ffff:0:0/96", "write it as IPv4" },
		{ "fe80::1%eth0", "port" },
		{ "192.0.2", "neither" },
		{ "127.1", "neither" },
		{ "0x7f.1", "neither" },
		{ "1.2.3.0x4", "neither" },
		{ "256.1.1.1", "neither" },
		{ "0177.0.0.1", "neither" },
		{ "*", "neither" },
		{ "*.", "neither" },
		{ ".", "neither" },
		{ "a.*.org", "neither" },
		{ "**.example.org", "neither" },
		{ "*example.org", "neither" },
		{ "a..b", "neither" },
		{ "-a.org", "neither" },
		{ "a-.org", "neither" },
		{ "a b.org", "neither" },
		{ "user@example.org", "neither" },
		{ "ftp://example.org", "port" },
		{ "http://", "neither" },
		{ "\xc3\xa4.org", "neither" },
	};
	char long_label[80], long_name[300], longer[1100];
	struct net_token t;

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		const char *problem = net_token_parse(rows[i][0], strlen(rows[i][0]), &t);

		if (!problem || !strstr(problem, rows[i][1]))
			fail_msg("'%s': %s", rows[i][0], problem ? problem : "taken");
	}
	memset(long_label, 'a', 64);
	memcpy(long_label + 64, ".org", 5);
	assert_non_null(net_token_parse(long_label, strlen(long_label), &t));
	assert_null(net_token_parse(long_label + 1, strlen(long_label) - 1, &t));
	for (size_t i = 0; i < sizeof(long_name); i++)
		long_name[i] = i % 2 ? '.' : 'a';
	assert_null(net_token_parse(long_name, NET_NAME_MAX, &t));
	assert_non_null(net_token_parse(long_name, NET_NAME_MAX + 2, &t));
	memset(longer, 'a', sizeof(longer));
	assert_string_equal(net_token_parse(longer, sizeof(longer), &t),
			    "is longer than 1024 bytes");
	assert_string_equal(net_token_parse("a\0b", 3, &t), "has a NUL byte");
}

static struct net_token token(const char *text)
{
	struct net_token t;

	assert_null(net_token_parse(text, strlen(text), &t));
	return t;
}

static void covers__exactly_what_it_lets_through(void **state)
{
	static const struct {
		const char *a, *b;
		bool covers;
	} rows[] = {
		{ "10.0.0.0/8", "10.2.0.0/16", true },
		{ "10.0.0.0/8", "10.2.3.4", true },
		{ "10.0.0.0/8", "10.2.3.4:80", true },
		{ "10.0.0.0/8", "0.0.0.0/0", false },
		{ "10.0.0.0/9", "10.128.0.0/9", false },
		{ "10.0.0.0/8", "a.org", false },
		{ "0.0.0.0/0", "::/0", false },
		{ "::/0", "10.2.3.4", false },
		{ "0.0.0.0/0", "10.2.3.4", true },
		{ "10.2.3.4:80", "10.2.3.4", false },
		{ "10.2.3.4:80", "10.2.3.4:80", true },
		{ "10.2.3.4:80", "10.2.3.4:81", false },
		{ "2001:db8::/32", "[2001:db8::1]:80", true },
		{ "a.org", "a.org", true },
		{ "a.org", "A.org.:80", true },
		{ "a.org:80", "a.org", false },
		{ "a.org", "b.a.org", false },
		{ "a.org", "*.a.org", false },
		{ "*.a.org", "a.org", true },
		{ "*.a.org", "c.b.a.org", true },
		{ "*.a.org", "*.b.a.org", true },
		{ "*.b.a.org", "*.a.org", false },
		{ "*.a.org", "xa.org", false },
		{ "*.a.org", "10.2.3.4", false },
		{ ".a.org:443", "b.a.org:443", true },
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		struct net_token a = token(rows[i].a), b = token(rows[i].b);

		if (net_token_covers(&a, &b) != rows[i].covers)
			fail_msg("%s and %s", rows[i].a, rows[i].b);
	}
}

static void lists__name_the_bad_token(void **state)
{
	static const char *const texts[] = { "a.org", "10.0.0.1/8" };
	struct net_tokens t = { .n = 0 }, wanted = { .n = 0 };
	sbx_autoerror e = SBX_ERROR_INIT;
	sbx_autobuf many = SBX_BUF_INIT(1 << 16);

	(void)state;
	assert_int_equal(net_tokens_add(texts, 2, "list", SBX_E_INVALID_SPEC, &t, &e),
			 -SBX_E_INVALID_SPEC);
	assert_non_null(strstr(e.message, "\"10.0.0.1/8\""));
	net_tokens_clear(&t);
	assert_int_equal(net_tokens_add_list(NULL, "list", SBX_E_INVALID_CONFIG, &t, &e), 0);
	assert_int_equal(t.n, 0);
	assert_int_equal(
		net_tokens_add_list("a.org,,10.0.0.0/8,", "list", SBX_E_INVALID_CONFIG, &t, &e), 0);
	assert_int_equal(t.n, 2);
	assert_int_equal(
		net_tokens_add_list("10.1.1.1,b.org", "list", SBX_E_INVALID_CONFIG, &wanted, &e),
		0);
	assert_int_equal(net_tokens_uncovered(&t, &wanted), 1);
	for (int i = 0; i < NET_TOKENS_MAX; i++)
		sbx_buf_printf(&many, "n%d.org,", i);
	assert_int_equal(net_tokens_add_list(many.data, "list", SBX_E_INVALID_CONFIG, &wanted, &e),
			 -SBX_E_INVALID_CONFIG);
	assert_non_null(strstr(e.message, "more than 256"));
	net_tokens_clear(&t);
	net_tokens_clear(&wanted);
}

/* ---- addresses ------------------------------------------------------------------------------- */

static void addresses__that_lead_astray_are_known(void **state)
{
	static const struct {
		const char *text;
		int refused; /* 2: even when it is named */
	} rows[] = {
		{ "192.0.2.1", 0 },
		{ "10.1.2.3", 0 },
		{ "8.8.8.8", 0 },
		{ "126.255.255.255", 0 },
		{ "128.0.0.0", 0 },
		{ "2001:db8::1", 0 },
		{ "fd12::1", 0 },
		{ "64:ff9b::808:808", 0 },
		{ "2002:808:808::1", 0 },
		{ "0.0.0.0", 2 },
		{ "0.1.2.3", 2 },
		{ "127.0.0.1", 2 },
		{ "127.255.255.255", 2 },
		{ "169.254.0.1", 1 },
		{ "169.254.169.254", 1 },
		{ "100.100.100.200", 1 },
		{ "168.63.129.16", 1 },
		{ "192.0.0.192", 1 },
		{ "224.0.0.1", 2 },
		{ "239.255.255.255", 2 },
		{ "240.0.0.1", 2 },
		{ "255.255.255.255", 2 },
		{ "::", 2 },
		{ "::1", 2 },
		{ "::7f00:1", 2 },
		{ "::ffff:8.8.8.8", 2 },
		{ "::ffff:127.0.0.1", 2 },
		{ "::ffff:0:127.0.0.1", 2 },
		{ "64:ff9b::127.0.0.1", 2 },
		{ "64:ff9b::169.254.169.254", 1 },
		{ "64:ff9b:1::808:808", 2 },
		{ "2002:7f00:1::", 2 },
		{ "2002:a9fe:a9fe::1", 1 },
		{ "2001::1", 2 },
		{ "fe80::1", 1 },
		{ "fec0::1", 1 },
		{ "fd00:ec2::254", 1 },
		{ "ff02::1", 2 },
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		struct net_addr a;
		bool never;

		assert_true(net_addr_parse(rows[i].text, &a));
		if ((net_addr_problem(&a, &never) != NULL) + never != rows[i].refused)
			fail_msg("%s", rows[i].text);
	}
}

/* ---- ranges ---------------------------------------------------------------------------------- */

static void ranges__join_what_overlaps_or_touches(void **state)
{
	static const char *const tokens[] = {
		"10.0.1.0/24",	"10.0.0.0/24",	 "10.0.0.7",	    "10.0.3.0/24", "10.0.0.0/24:80",
		"::/0",		"2001:db8::1",	 "0.0.0.0/1",	    "128.0.0.0/1", "10.9.9.9:80",
		"10.9.9.10:80", "10.9.9.10:443", "255.255.255.255",
	};
	static const char *const merged[] = {
		"0.0.0.0-255.255.255.255 0",
		"::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 0",
		"10.9.9.9-10.9.9.10 80",
		"10.9.9.10-10.9.9.10 443",
	};
	struct net_ranges r = { .n = 0 };

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(tokens); i++) {
		struct net_token t;

		if (net_token_parse(tokens[i], strlen(tokens[i]), &t) == NULL)
			assert_true(net_ranges_add_token(&r, &t));
	}
	net_ranges_merge(&r);
	assert_int_equal(r.n, SBX_COUNT(merged));
	for (size_t i = 0; i < r.n; i++) {
		char text[128], lo[NET_ADDR_TEXT], hi[NET_ADDR_TEXT];

		(void)snprintf(text, sizeof(text), "%s-%s %u", net_addr_print(&r.all[i].lo, lo),
			       net_addr_print(&r.all[i].hi, hi), r.all[i].port);
		assert_string_equal(text, merged[i]);
	}
	net_ranges_clear(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parse__understands),
		cmocka_unit_test(parse__refuses),
		cmocka_unit_test(covers__exactly_what_it_lets_through),
		cmocka_unit_test(lists__name_the_bad_token),
		cmocka_unit_test(addresses__that_lead_astray_are_known),
		cmocka_unit_test(ranges__join_what_overlaps_or_touches),
	};

	return cmocka_run_group_tests_name("targets", tests, NULL, NULL);
}
