/* SPDX-License-Identifier: Apache-2.0 */
/* runtimes/net: what names are pinned to, and messages of the domain name system. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/auto.h"
#include "base/clock.h"
#include "runtimes/net/dns.h"
#include "runtimes/net/pins.h"

#define NOW (1000 * SBX_SECOND_US)

static struct net_pins *pins(const char *tokens, const char *operator)
{
	struct net_tokens t = { .n = 0 }, o = { .n = 0 };
	sbx_autoerror e = SBX_ERROR_INIT;
	struct net_pins *p;

	assert_int_equal(net_tokens_add_list(tokens, "t", SBX_E_INVALID_SPEC, &t, &e), 0);
	assert_int_equal(net_tokens_add_list(operator, "o", SBX_E_INVALID_SPEC, &o, &e), 0);
	assert_int_equal(net_pins_new(&t, &o, &p, &e), 0);
	return p;
}

/* "192.0.2.1 2001:db8::1" as an answer. */
static struct net_answer answer(const char *addrs, uint32_t ttl)
{
	struct net_answer a = { .ttl = ttl };
	char copy[512], *rest = copy, *word;

	(void)snprintf(copy, sizeof(copy), "%s", addrs);
	while ((word = strsep(&rest, " ")))
		if (*word)
			assert_true(net_addr_parse(word, &a.addr[a.n++]));
	return a;
}

/* As the tables of the reference's examples have it: every name of the table, or nothing. */
static void resolve_all(struct net_pins *p, const char *const table[][2], size_t n)
{
	for (size_t i = 0; i < p->n; i++)
		for (size_t j = 0; j < n; j++)
			if (strcmp(p->pin[i].name, table[j][0]) == 0) {
				struct net_answer a = answer(table[j][1], 60);

				net_pins_set(p, &p->pin[i], &a, NOW);
			}
}

static const char *const example[][2] = {
	{ "example.com", "1.1.1.1 1.1.1.2" },
	{ "www.example.com", "1.1.1.3" },
	{ "api.example.com", "1.1.1.4" },
	{ "other.com", "2.2.2.2" },
};

static void targets__are_the_list_expanded(void **state)
{
	SBX_AUTO(net_pins_freep)
	struct net_pins *p = pins("10.0.0.0/8,8.8.8.8,example.com,*.example.com,other.com", "");
	sbx_autobuf out = SBX_BUF_INIT(4096);

	(void)state;
	resolve_all(p, example, SBX_COUNT(example));
	net_pins_targets(p, &out);
	assert_string_equal(out.data,
			    "[\"1.1.1.1/32\",\"1.1.1.2/32\",\"1.1.1.3/32\",\"1.1.1.4/32\","
			    "\"10.0.0.0/8\",\"2.2.2.2/32\",\"8.8.8.8/32\"]");
}

static void targets__of_ipv6_have_their_own_length(void **state)
{
	SBX_AUTO(net_pins_freep)
	struct net_pins *p = pins("2001:db8::7,a.org,[2001:db8::7]:80", "");
	static const char *const table[][2] = { { "a.org", "2001:db8::8" } };
	sbx_autobuf out = SBX_BUF_INIT(4096);

	(void)state;
	resolve_all(p, table, 1);
	net_pins_targets(p, &out);
	assert_string_equal(out.data, "[\"2001:db8::7/128\",\"2001:db8::8/128\"]");
}

static void map__has_an_entry_for_each_token(void **state)
{
	SBX_AUTO(net_pins_freep)
	struct net_pins *p = pins("10.0.0.0/8,8.8.8.8,*.example.com,other.com:443,other.com:80,"
				  "gone.org,example.com",
				  "");
	sbx_autobuf out = SBX_BUF_INIT(4096);

	(void)state;
	resolve_all(p, example, SBX_COUNT(example));
	net_pins_map(p, &out);
	assert_string_equal(out.data,
			    "{\"10.0.0.0/8\":[],\"8.8.8.8\":[\"8.8.8.8\"],\"example.com\":["
			    "\"1.1.1.1\",\"1.1.1.2\",\"1.1.1.3\",\"1.1.1.4\"],"
			    "\"other.com\":[\"2.2.2.2\"],\"gone.org\":[]}");
}

static bool allows(const struct net_pins *p, const char *addr, uint16_t port)
{
	struct net_addr a;

	assert_true(net_addr_parse(addr, &a));
	return net_pins_allow(p, &a, port);
}

static bool in_ranges(const struct net_pins *p, const char *addr, uint16_t port)
{
	struct net_ranges r = { .n = 0 };
	struct net_addr a;
	bool found = false;

	assert_true(net_addr_parse(addr, &a));
	assert_true(net_pins_ranges(p, &r));
	for (size_t i = 0; i < r.n; i++)
		found = found || ((!r.all[i].port || r.all[i].port == port) &&
				  net_addr_compare(&r.all[i].lo, &a) <= 0 &&
				  net_addr_compare(&a, &r.all[i].hi) <= 0);
	net_ranges_clear(&r);
	return found;
}

static void allow__is_by_token_and_port(void **state)
{
	SBX_AUTO(net_pins_freep)
	struct net_pins *p = pins("10.0.0.0/8,example.com:443,*.other.com", "");
	static const struct {
		const char *addr;
		uint16_t port;
		bool good;
	} rows[] = {
		{ "10.255.0.1", 1, true },
		{ "11.0.0.1", 1, false },
		{ "1.1.1.1", 443, true },
		{ "1.1.1.1", 80, false },
		{ "1.1.1.2", 443, true },
		{ "1.1.1.3", 443, false },
		{ "2.2.2.2", 5000, true },
		{ "::a00:1", 1, false },
		{ "2.2.2.3", 5000, false },
		/* What has no port: every port must be allowed. */
		{ "10.255.0.1", 0, true },
		{ "1.1.1.1", 0, false },
		{ "2.2.2.2", 0, true },
	};

	(void)state;
	resolve_all(p, example, SBX_COUNT(example));
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		assert_int_equal(allows(p, rows[i].addr, rows[i].port), rows[i].good);
		/* The rules say the same. */
		assert_int_equal(in_ranges(p, rows[i].addr, rows[i].port), rows[i].good);
	}
}

static void any_port__is_a_token_without_one(void **state)
{
	static const struct {
		const char *tokens;
		bool any;
	} rows[] = {
		{ "192.0.2.1", true },
		{ "192.0.2.1:80,[2001:db8::1]:80,a.org:80,*.a.org:80", false },
		{ "192.0.2.1:80,*.a.org", true },
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		SBX_AUTO(net_pins_freep) struct net_pins *p = pins(rows[i].tokens, "");

		assert_int_equal(net_pins_any_port(p), rows[i].any);
	}
}

static void literal__only_when_the_operator_names_it(void **state)
{
	static const struct {
		const char *text;
		int port;
		bool literal;
	} rows[] = {
		{ "169.254.1.1", 80, true },   { "169.254.1.1", 443, false },
		{ "169.254.1.1", 0, false },   { "169.254.1.1", -1, true },
		{ "169.254.1.2", 80, false },  { "169.254.1.2", -1, false },
		{ "169.254.1.3", 443, true },  { "169.254.1.3", 0, true },
		{ "169.254.1.3", -1, true },   { "169.254.1.4", 80, true },
		{ "169.254.1.4", 8080, true }, { "169.254.1.4", 443, false },
		{ "169.254.1.4", 0, false },
	};
	SBX_AUTO(net_pins_freep)
	struct net_pins *p =
		pins("169.254.0.0/16", "169.254.0.0/16,169.254.1.1:80,169.254.1.3,169.254.1.4:80,"
				       "169.254.1.4:8080");

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		struct net_addr a;

		assert_true(net_addr_parse(rows[i].text, &a));
		assert_int_equal(net_pins_literal(p, &a, rows[i].port), rows[i].literal);
	}
}

static void pins__are_replaced_and_change_counts(void **state)
{
	SBX_AUTO(net_pins_freep) struct net_pins *p = pins("a.org", "");
	struct net_pin *pin = net_pins_find(p, "a.org");
	struct net_answer first = answer("192.0.2.1 192.0.2.2", 0),
			  again = answer("192.0.2.2 192.0.2.1", 100000),
			  other = answer("192.0.2.3", 30);
	uint64_t change;

	(void)state;
	assert_true(pin && pin->needed && !pin->answer.n);
	net_pins_set(p, pin, &first, NOW);
	assert_int_equal(pin->due_us, NOW + NET_TTL_LEAST * SBX_SECOND_US);
	change = p->change;
	net_pins_set(p, pin, &again, NOW);
	assert_int_equal(p->change, change);
	assert_int_equal(pin->due_us, NOW + NET_TTL_MOST * SBX_SECOND_US);
	net_pins_set(p, pin, &other, NOW);
	assert_int_equal(p->change, change + 1);
	assert_int_equal(pin->change, change + 1);
	assert_false(allows(p, "192.0.2.1", 80));
	assert_true(allows(p, "192.0.2.3", 80));
}

static void pins__outlive_silence_for_a_while(void **state)
{
	SBX_AUTO(net_pins_freep) struct net_pins *p = pins("a.org", "");
	struct net_pin *pin = net_pins_find(p, "a.org");
	struct net_answer a = answer("192.0.2.1", 10);
	int64_t end = NOW + (10 + NET_STALE_MOST) * SBX_SECOND_US;

	(void)state;
	net_pins_set(p, pin, &a, NOW);
	net_pins_failed(p, pin, false, end - 1);
	assert_true(allows(p, "192.0.2.1", 80) && pin->no_reply);
	net_pins_failed(p, pin, false, end);
	assert_false(allows(p, "192.0.2.1", 80));
	net_pins_set(p, pin, &a, end);
	net_pins_failed(p, pin, true, end + 1);
	assert_false(allows(p, "192.0.2.1", 80) || pin->no_reply);
}

static void pins__on_demand_make_room(void **state)
{
	SBX_AUTO(net_pins_freep) struct net_pins *p = pins("*.a.org", "");
	struct net_answer a = answer("192.0.2.1", 10);
	struct net_pin *pin;
	char name[64];

	(void)state;
	assert_int_equal(p->n, 3);
	assert_true(net_pins_find(p, "www.a.org") && !net_pins_find(p, "www.a.org")->needed);
	assert_true(net_pins_has_name(p, "x.y.a.org") && !net_pins_has_name(p, "xa.org"));
	for (int i = 3; i < NET_PINS_MAX; i++) {
		(void)snprintf(name, sizeof(name), "n%d.a.org", i);
		pin = net_pins_add(p, name, NOW + i);
		assert_non_null(pin);
		net_pins_set(p, pin, &a, NOW);
	}
	/* The table is full of addresses, too. */
	pin = net_pins_add(p, "new.a.org", NOW + 1000000);
	assert_non_null(pin);
	assert_null(net_pins_find(p, "n3.a.org"));
	assert_non_null(net_pins_find(p, "n4.a.org"));
	net_pins_drop(p, net_pins_find(p, "n4.a.org"));
	assert_ptr_not_equal(net_pins_add(p, "newer.a.org", NOW), net_pins_find(p, "n5.a.org"));
	assert_non_null(net_pins_find(p, "n5.a.org"));
}

static void pins__have_room_for_so_many_addresses(void **state)
{
	SBX_AUTO(net_pins_freep) struct net_pins *p = pins("*.a.org", "");
	struct net_answer a = { .ttl = 10 };
	size_t total = 0;
	char name[64];

	(void)state;
	for (int i = 0; i < 100; i++) {
		struct net_pin *pin;

		(void)snprintf(name, sizeof(name), "n%d.a.org", i);
		pin = net_pins_add(p, name, NOW);
		a.n = NET_ANSWERS_MAX;
		for (size_t j = 0; j < a.n; j++)
			a.addr[j] = (struct net_addr){ .b = { 10, 0, (uint8_t)i, (uint8_t)j } };
		net_pins_set(p, pin, &a, NOW);
		total += pin->answer.n;
	}
	assert_int_equal(total, NET_ADDRS_MAX);
}

/* ---- messages -------------------------------------------------------------------------------- */

static size_t make_query(uint8_t *out, const char *name, uint16_t type)
{
	static const uint8_t head[12] = { 0xab, 0xcd, 0x01, 0x20, 0, 1, 0, 0, 0, 0, 0, 1 };
	size_t at = sizeof(head);

	memcpy(out, head, sizeof(head));
	while (*name) {
		size_t n = strcspn(name, ".");

		out[at++] = (uint8_t)n;
		memcpy(out + at, name, n);
		at += n;
		name += n + (name[n] == '.');
	}
	out[at++] = 0;
	out[at++] = (uint8_t)(type >> 8);
	out[at++] = (uint8_t)type;
	out[at++] = 0;
	out[at++] = 1;
	return at;
}

static void dns__a_question_and_its_answer(void **state)
{
	struct net_answer a = answer("192.0.2.1 2001:db8::1 192.0.2.2", 0);
	uint8_t msg[600], out[600];
	struct net_query q;
	size_t len = make_query(msg, "WwW.Example.Org", NET_DNS_A), n;

	(void)state;
	assert_int_equal(net_dns_read(msg, len, &q), NET_NOERROR);
	assert_string_equal(q.name, "www.example.org");
	assert_int_equal(q.type, NET_DNS_A);
	n = net_dns_write(&q, NET_NOERROR, a.addr, a.n, 77, out, NET_DNS_UDP_MAX);
	assert_int_equal(n, len + 2 * 16);
	assert_memory_equal(out, "\xab\xcd\x81\x80\0\1\0\2\0\0\0\0", 12);
	assert_memory_equal(out + 12, msg + 12, len - 12); /* its letters as they were */
	assert_memory_equal(out + len, "\xc0\x0c\0\1\0\1\0\0\0\x4d\0\4\xc0\0\2\1", 16);
	(void)make_query(msg, "WwW.Example.Org", NET_DNS_AAAA);
	assert_int_equal(net_dns_read(msg, len, &q), NET_NOERROR);
	assert_int_equal(net_dns_write(&q, NET_NOERROR, a.addr, a.n, 77, out, NET_DNS_UDP_MAX),
			 len + 28);
	(void)make_query(msg, "WwW.Example.Org", 16);
	assert_int_equal(net_dns_read(msg, len, &q), NET_NOERROR);
	assert_int_equal(net_dns_write(&q, NET_NOERROR, a.addr, a.n, 77, out, NET_DNS_UDP_MAX),
			 len);
	assert_int_equal(net_dns_write(&q, NET_NXDOMAIN, a.addr, a.n, 77, out, NET_DNS_UDP_MAX),
			 len);
	assert_int_equal(out[3] & 15, NET_NXDOMAIN);
}

static void dns__what_does_not_fit_is_cut(void **state)
{
	struct net_addr many[64] = { { .v6 = true, .b = { 0x20 } } };
	uint8_t msg[600], out[4096];
	struct net_query q;
	size_t len = make_query(msg, "a.org", NET_DNS_AAAA);

	(void)state;
	for (size_t i = 1; i < SBX_COUNT(many); i++)
		many[i] = many[0];
	assert_int_equal(net_dns_read(msg, len, &q), NET_NOERROR);
	assert_true(net_dns_write(&q, NET_NOERROR, many, SBX_COUNT(many), 1, out,
				  NET_DNS_UDP_MAX) <= NET_DNS_UDP_MAX);
	assert_true(out[2] & 2);
	assert_int_equal(net_dns_write(&q, NET_NOERROR, many, SBX_COUNT(many), 1, out, sizeof(out)),
			 len + SBX_COUNT(many) * 28);
	assert_false(out[2] & 2);
}

static void dns__bad_questions(void **state)
{
	uint8_t msg[600], out[600];
	struct net_query q;
	size_t len = make_query(msg, "a.org", NET_DNS_A);

	(void)state;
	for (size_t n = 0; n < len; n++)
		assert_int_not_equal(net_dns_read(msg, n, &q), NET_NOERROR);
	assert_int_equal(net_dns_read(msg, 11, &q), -1);
	msg[2] |= 0x80;
	assert_int_equal(net_dns_read(msg, len, &q), -1);
	msg[2] = 0x28; /* an update */
	assert_int_equal(net_dns_read(msg, len, &q), NET_NOTIMP);
	msg[2] = 1;
	msg[5] = 2;
	assert_int_equal(net_dns_read(msg, len, &q), NET_FORMERR);
	assert_int_equal(net_dns_write(&q, NET_FORMERR, NULL, 0, 0, out, sizeof(out)), 12);
	msg[5] = 1;
	msg[12] = 0xc0; /* a pointer */
	assert_int_equal(net_dns_read(msg, len, &q), NET_FORMERR);
	msg[12] = 1;
	msg[13] = '.';
	assert_int_equal(net_dns_read(msg, len, &q), NET_FORMERR);
	msg[13] = 'a';
	msg[len - 1] = 3; /* of another class */
	assert_int_equal(net_dns_read(msg, len, &q), NET_REFUSED);
	len = make_query(msg, "", NET_DNS_A);
	assert_int_equal(net_dns_read(msg, len, &q), NET_NXDOMAIN);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(targets__are_the_list_expanded),
		cmocka_unit_test(targets__of_ipv6_have_their_own_length),
		cmocka_unit_test(map__has_an_entry_for_each_token),
		cmocka_unit_test(allow__is_by_token_and_port),
		cmocka_unit_test(any_port__is_a_token_without_one),
		cmocka_unit_test(literal__only_when_the_operator_names_it),
		cmocka_unit_test(pins__are_replaced_and_change_counts),
		cmocka_unit_test(pins__outlive_silence_for_a_while),
		cmocka_unit_test(pins__on_demand_make_room),
		cmocka_unit_test(pins__have_room_for_so_many_addresses),
		cmocka_unit_test(dns__a_question_and_its_answer),
		cmocka_unit_test(dns__what_does_not_fit_is_cut),
		cmocka_unit_test(dns__bad_questions),
	};

	return cmocka_run_group_tests_name("pins", tests, NULL, NULL);
}
