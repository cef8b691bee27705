/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of ICMP echo. */
#include "runtimes/net/echo.h"

#include <string.h>

enum {
	HEAD = 8, /* of a message */
	HEAD_V4 = 20,
	HEAD_V6 = 40,
	ICMP = 1,
	ICMPV6 = 58,
	FRAGMENT = 0x3fff, /* more of them, or not the first one */
};

/* The types of a message; the code of both is 0. */
static uint8_t type_of(bool v6, bool reply)
{
	static const uint8_t types[2][2] = { { 8, 0 }, { 128, 129 } };

	return types[v6][reply];
}

static unsigned get16(const uint8_t *p)
{
	return (unsigned)p[0] << 8 | p[1];
}

static void put16(uint8_t *p, unsigned n)
{
	p[0] = (uint8_t)(n >> 8);
	p[1] = (uint8_t)n;
}

/* ---- checksums (RFC 1071) -------------------------------------------------------------------- */

static uint32_t add(uint32_t sum, const uint8_t *p, size_t len)
{
	for (size_t i = 0; i + 1 < len; i += 2)
		sum += get16(p + i);
	return len % 2 ? sum + ((unsigned)p[len - 1] << 8) : sum;
}

/* 0 for what has a right checksum in it. */
static unsigned finish(uint32_t sum)
{
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return ~sum & 0xffff;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* `sum` is that of what a checksum covers besides the message. */
static bool read_message(const uint8_t *m, size_t len, uint8_t type, const uint32_t *sum,
			 struct net_echo *ret)
{
	if (len < HEAD || len > NET_ECHO_MESSAGE_MAX || m[0] != type || m[1] != 0)
		return false;
	if (sum && finish(add(*sum, m, len)) != 0)
		return false;
	ret->id = (uint16_t)get16(m + 4);
	ret->seq = (uint16_t)get16(m + 6);
	ret->data = m + HEAD;
	ret->len = len - HEAD;
	return true;
}

static bool read_v4(const uint8_t *p, size_t len, struct net_echo *ret)
{
	const uint32_t sum = 0;

	if (len < HEAD_V4 || p[0] != (4 << 4 | HEAD_V4 / 4) || get16(p + 2) != len ||
	    (get16(p + 6) & FRAGMENT) || p[9] != ICMP)
		return false;
	memcpy(ret->from.b, p + 12, 4);
	memcpy(ret->to.b, p + 16, 4);
	return read_message(p + HEAD_V4, len - HEAD_V4, type_of(false, false), &sum, ret);
}

static bool read_v6(const uint8_t *p, size_t len, struct net_echo *ret)
{
	uint32_t sum;

	if (len < HEAD_V6 || get16(p + 4) != len - HEAD_V6 || p[6] != ICMPV6)
		return false;
	ret->from.v6 = ret->to.v6 = true;
	memcpy(ret->from.b, p + 8, 16);
	memcpy(ret->to.b, p + 24, 16);
	sum = add((uint32_t)(len - HEAD_V6) + ICMPV6, p + 8, 32);
	return read_message(p + HEAD_V6, len - HEAD_V6, type_of(true, false), &sum, ret);
}

bool net_echo_read_packet(const uint8_t *packet, size_t len, struct net_echo *ret)
{
	memset(ret, 0, sizeof(*ret));
	if (len == 0)
		return false;
	return packet[0] >> 4 == 6 ? read_v6(packet, len, ret) : read_v4(packet, len, ret);
}

bool net_echo_read_reply(const uint8_t *message, size_t len, bool v6, bool head,
			 struct net_echo *ret)
{
	const uint32_t sum = 0;
	size_t skip = head && len ? (size_t)(message[0] & 15) * 4 : 0;

	memset(ret, 0, sizeof(*ret));
	return skip <= len &&
	       read_message(message + skip, len - skip, type_of(v6, true), v6 ? NULL : &sum, ret);
}

/* ---- writing --------------------------------------------------------------------------------- */

size_t net_echo_write(const struct net_echo *echo, bool v6, bool reply,
		      uint8_t out[NET_ECHO_MESSAGE_MAX])
{
	size_t len = HEAD + echo->len;

	memset(out, 0, HEAD);
	out[0] = type_of(v6, reply);
	put16(out + 4, echo->id);
	put16(out + 6, echo->seq);
	if (echo->len)
		memcpy(out + HEAD, echo->data, echo->len);
	if (!v6)
		put16(out + 2, finish(add(0, out, len)));
	return len;
}
