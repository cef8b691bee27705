/* SPDX-License-Identifier: Apache-2.0 */
/* runtimes/net: messages of ICMP echo. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/auto.h"
#include "runtimes/net/echo.h"

/* From 198.18.0.1 to 192.0.2.7: number 0x1234, sequence 5, "abc". Checksums are another
 * program's, not of what is tested. */
static const uint8_t v4[] = { 0x45, 0, 0, 31, 0, 9, 0x40, 0,	64,   1,    0, 0, 198, 18,  0,	1,
			      192,  0, 2, 7,  8, 0, 0x21, 0x64, 0x12, 0x34, 0, 5, 'a', 'b', 'c' };
/* From 2001:db8::1 to 2001:db8::7: number 0x1234, sequence 5, "abcd". */
static const uint8_t v6[] = {
	0x60, 0, 0, 0, 0,   12, 58,   64,   0x20, 1,	0x0d, 0xb8, 0,	 0,   0,   0,  0, 0,
	0,    0, 0, 0, 0,   1,	0x20, 1,    0x0d, 0xb8, 0,    0,    0,	 0,   0,   0,  0, 0,
	0,    0, 0, 7, 128, 0,	0x4d, 0x3f, 0x12, 0x34, 0,    5,    'a', 'b', 'c', 'd'
};

static void read_packet__takes_a_request(void **state)
{
	struct net_echo echo;
	char text[NET_ADDR_TEXT];

	(void)state;
	assert_true(net_echo_read_packet(v4, sizeof(v4), &echo));
	assert_string_equal(net_addr_print(&echo.from, text), "198.18.0.1");
	assert_string_equal(net_addr_print(&echo.to, text), "192.0.2.7");
	assert_int_equal(echo.id, 0x1234);
	assert_int_equal(echo.seq, 5);
	assert_int_equal(echo.len, 3);
	assert_memory_equal(echo.data, "abc", 3);

	assert_true(net_echo_read_packet(v6, sizeof(v6), &echo));
	assert_string_equal(net_addr_print(&echo.from, text), "2001:db8::1");
	assert_string_equal(net_addr_print(&echo.to, text), "2001:db8::7");
	assert_int_equal(echo.id, 0x1234);
	assert_int_equal(echo.seq, 5);
	assert_int_equal(echo.len, 4);
	assert_memory_equal(echo.data, "abcd", 4);
}

/* In memory that ends where it ends. */
static bool read_copy(const uint8_t *p, size_t len)
{
	uint8_t *copy = malloc(len + !len);
	struct net_echo echo;
	bool taken;

	assert_non_null(copy);
	memcpy(copy, p, len);
	taken = net_echo_read_packet(copy, len, &echo);
	free(copy);
	return taken;
}

static void read_packet__takes_nothing_shorter(void **state)
{
	/* A head, and half a message with a right checksum. */
	static const uint8_t half[] = { 8, 0, 0xf7, 0xff };
	uint8_t p[sizeof(v4)];

	(void)state;
	assert_true(read_copy(v4, sizeof(v4)));
	for (size_t len = 0; len < sizeof(v4); len++)
		assert_false(read_copy(v4, len));
	for (size_t len = 0; len < sizeof(v6); len++)
		assert_false(read_copy(v6, len));
	/* Nor where the packet itself says that it is. */
	memcpy(p, v4, sizeof(p));
	for (unsigned len = 0; len < sizeof(v4); len++) {
		p[3] = (uint8_t)len;
		assert_false(read_copy(p, len));
	}
	p[3] = 20 + sizeof(half);
	memcpy(p + 20, half, sizeof(half));
	assert_false(read_copy(p, 20 + sizeof(half)));
}

/* The checksum is made right again after the word at `at` was another one (RFC 1624). */
static void correct(uint8_t *p, size_t sum, size_t at, const uint8_t *before)
{
	uint32_t n = ~((unsigned)p[sum] << 8 | p[sum + 1]) & 0xffff;

	at -= at % 2;
	n += ~((unsigned)before[at] << 8 | before[at + 1]) & 0xffff;
	n += (unsigned)p[at] << 8 | p[at + 1];
	while (n >> 16)
		n = (n & 0xffff) + (n >> 16);
	p[sum] = (uint8_t)(~n >> 8);
	p[sum + 1] = (uint8_t)~n;
}

/* One byte that is another makes something else of it, though the checksum be right; but where that
 * is what is tried. */
static void read_packet__takes_nothing_else(void **state)
{
	static const struct {
		bool v6;
		size_t at;
		uint8_t byte;
		bool good; /* the checksum */
	} rows[] = {
		{ false, 0, 0x46, false },  /* options */
		{ false, 0, 0x44, false },  /* no whole head */
		{ false, 0, 0x55, false },  /* another version */
		{ false, 3, 32, false },    /* longer than it is */
		{ false, 6, 0x60, false },  /* more fragments */
		{ false, 7, 1, false },	    /* a later fragment */
		{ false, 9, 17, false },    /* UDP */
		{ false, 9, 58, false },    /* of the other family */
		{ false, 20, 0, true },	    /* a reply */
		{ false, 20, 13, true },    /* a timestamp */
		{ false, 20, 5, true },	    /* a redirect */
		{ false, 21, 1, true },	    /* a code */
		{ false, 22, 0x22, false }, /* a wrong checksum */
		{ false, 30, 'd', false },  /* wrong data */
		{ true, 0, 0x50, false },   /* another version */
		{ true, 5, 13, false },	    /* longer than it is */
		{ true, 6, 0, false },	    /* hop-by-hop options */
		{ true, 6, 44, false },	    /* a fragment */
		{ true, 6, 1, false },	    /* of the other family */
		{ true, 23, 2, false },	 /* from another: the checksum is of the addresses, too */
		{ true, 40, 129, true }, /* a reply */
		{ true, 40, 137, true }, /* a redirect */
		{ true, 41, 1, true },	 /* a code */
		{ true, 43, 0, false },	 /* a wrong checksum */
	};
	struct net_echo echo;

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		size_t len = rows[i].v6 ? sizeof(v6) : sizeof(v4);
		uint8_t p[sizeof(v6)];

		memcpy(p, rows[i].v6 ? v6 : v4, len);
		assert_int_not_equal(p[rows[i].at], rows[i].byte);
		p[rows[i].at] = rows[i].byte;
		if (rows[i].good)
			correct(p, rows[i].v6 ? 42 : 22, rows[i].at, rows[i].v6 ? v6 : v4);
		if (net_echo_read_packet(p, len, &echo))
			fail_msg("row %zu was taken", i);
	}
}

/* A head before a message that net_echo_write has made. */
static size_t wrap(uint8_t *p, const uint8_t *message, size_t len)
{
	memcpy(p, v4, 20);
	p[2] = (uint8_t)((20 + len) >> 8);
	p[3] = (uint8_t)(20 + len);
	memcpy(p + 20, message, len);
	return 20 + len;
}

static void read_packet__takes_so_much_and_no_more(void **state)
{
	static uint8_t data[NET_ECHO_DATA_MAX], message[NET_ECHO_MESSAGE_MAX],
		packet[NET_ECHO_PACKET_MAX + 1];
	struct net_echo out = { .id = 1, .seq = 2, .data = data, .len = sizeof(data) }, echo;
	size_t len;

	(void)state;
	len = wrap(packet, message, net_echo_write(&out, false, false, message));
	assert_true(net_echo_read_packet(packet, len, &echo));
	assert_int_equal(echo.len, NET_ECHO_DATA_MAX);
	/* One zero more does not change the checksum. */
	packet[2] = (uint8_t)((len + 1) >> 8);
	packet[3] = (uint8_t)(len + 1);
	packet[len] = 0;
	assert_false(net_echo_read_packet(packet, len + 1, &echo));
}

static void write__makes_what_is_read(void **state)
{
	static const size_t sizes[] = { 0, 1, 2, 57, NET_ECHO_DATA_MAX };
	static uint8_t data[NET_ECHO_DATA_MAX], message[20 + NET_ECHO_MESSAGE_MAX];
	struct net_echo echo;

	(void)state;
	memset(data, 0xff, sizeof(data));
	for (size_t i = 0; i < SBX_COUNT(sizes) * 4; i++) {
		struct net_echo out = {
			.id = 0xfffe, .seq = 0xff01, .data = data, .len = sizes[i / 4]
		};
		bool six = i & 1, head = i & 2;
		size_t skip = head ? 20 : 0, len;

		memcpy(message, v4, 20);
		len = net_echo_write(&out, six, true, message + skip) + skip;
		assert_true(net_echo_read_reply(message, len, six, head, &echo));
		assert_int_equal(echo.id, 0xfffe);
		assert_int_equal(echo.seq, 0xff01);
		assert_int_equal(echo.len, sizes[i / 4]);
		if (echo.len)
			assert_memory_equal(echo.data, data, echo.len);
		/* It is none of the other family, and a request is none. */
		assert_false(net_echo_read_reply(message, len, !six, head, &echo));
		len = net_echo_write(&out, six, false, message + skip) + skip;
		assert_false(net_echo_read_reply(message, len, six, head, &echo));
	}
}

static void read_reply__takes_nothing_cut(void **state)
{
	const struct net_echo out = { .id = 1, .seq = 2, .data = (const uint8_t *)"abc", .len = 3 };
	uint8_t message[20 + NET_ECHO_MESSAGE_MAX];
	struct net_echo echo;
	size_t len;

	(void)state;
	memcpy(message, v4, 20);
	len = 20 + net_echo_write(&out, false, true, message + 20);
	for (size_t n = 0; n < len; n++)
		assert_false(net_echo_read_reply(message, n, false, true, &echo));
	for (size_t n = 0; n < 8; n++)
		assert_false(net_echo_read_reply(message + 20, n, true, false, &echo));
	message[0] = 0x4f; /* a head that is longer than everything */
	assert_false(net_echo_read_reply(message, len, false, true, &echo));
	message[0] = 0x45;
	message[len - 1] ^= 1;
	assert_false(net_echo_read_reply(message, len, false, true, &echo));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(read_packet__takes_a_request),
		cmocka_unit_test(read_packet__takes_nothing_shorter),
		cmocka_unit_test(read_packet__takes_nothing_else),
		cmocka_unit_test(read_packet__takes_so_much_and_no_more),
		cmocka_unit_test(write__makes_what_is_read),
		cmocka_unit_test(read_reply__takes_nothing_cut),
	};

	return cmocka_run_group_tests_name("echo", tests, NULL, NULL);
}
