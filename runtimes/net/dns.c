/* SPDX-License-Identifier: Apache-2.0 */
/* Reading questions and writing answers. */
#include "runtimes/net/dns.h"

#include <string.h>

#include "base/auto.h"

enum { HEADER = 12, CLASS_INTERNET = 1, TYPE_ANY = 255 };
/* Bits of the second and third byte of the header behind the number. */
enum { IS_ANSWER = 0x80, OPCODE = 0x78, CUT = 0x02, WANTED = 0x01, AVAILABLE = 0x80 };

static uint16_t get16(const uint8_t *p)
{
	return (uint16_t)(p[0] << 8 | p[1]);
}

static void put16(uint8_t *p, uint16_t n)
{
	p[0] = (uint8_t)(n >> 8);
	p[1] = (uint8_t)n;
}

/* The labels from `at` on as text with dots; the offset behind them, or 0. Names in questions are
 * not compressed. */
static size_t read_name(const uint8_t *msg, size_t len, size_t at, char *out, size_t *ret_len)
{
	size_t n = 0;

	while (at < len && msg[at]) {
		size_t label = msg[at];

		if (label > 63 || at + 1 + label > len || n + label + 1 > NET_NAME_MAX + 1)
			return 0;
		memcpy(out + n, msg + at + 1, label);
		/* A dot within a label would make it two. */
		if (memchr(msg + at + 1, '.', label) || memchr(msg + at + 1, '\0', label))
			return 0;
		n += label;
		out[n++] = '.';
		at += 1 + label;
	}
	*ret_len = n;
	return at < len ? at + 1 : 0;
}

int net_dns_read(const uint8_t *msg, size_t len, struct net_query *q)
{
	char text[NET_NAME_MAX + 2];
	size_t end, text_len = 0;

	memset(q, 0, sizeof(*q));
	if (len < HEADER || (msg[2] & IS_ANSWER))
		return -1;
	q->head_len = HEADER;
	memcpy(q->head, msg, HEADER);
	if (msg[2] & OPCODE)
		return NET_NOTIMP;
	if (get16(msg + 4) != 1)
		return NET_FORMERR;
	end = read_name(msg, len, HEADER, text, &text_len);
	if (end == 0 || end + 4 > len)
		return NET_FORMERR;
	q->head_len = end + 4;
	memcpy(q->head, msg, q->head_len);
	q->type = get16(msg + end);
	if (get16(msg + end + 2) != CLASS_INTERNET)
		return NET_REFUSED;
	/* Not a name that a host can have: no list has it. */
	return net_name_normal(text, text_len, q->name) ? NET_NOERROR : NET_NXDOMAIN;
}

static bool asks_for(const struct net_query *q, const struct net_addr *a)
{
	return q->type == TYPE_ANY || q->type == (a->v6 ? NET_DNS_AAAA : NET_DNS_A);
}

/* One record, its name being that of the question; its length. */
static size_t put_record(uint8_t *out, const struct net_addr *a, uint32_t ttl)
{
	size_t size = a->v6 ? 16 : 4;

	put16(out, 0xc000 | HEADER);
	put16(out + 2, a->v6 ? NET_DNS_AAAA : NET_DNS_A);
	put16(out + 4, CLASS_INTERNET);
	put16(out + 6, (uint16_t)(ttl >> 16));
	put16(out + 8, (uint16_t)ttl);
	put16(out + 10, (uint16_t)size);
	memcpy(out + 12, a->b, size);
	return 12 + size;
}

size_t net_dns_write(const struct net_query *q, enum net_rcode code, const struct net_addr *addrs,
		     size_t n, uint32_t ttl, uint8_t *out, size_t max)
{
	uint16_t records = 0;
	size_t len = q->head_len;

	memcpy(out, q->head, q->head_len);
	out[2] = (uint8_t)(IS_ANSWER | (q->head[2] & (OPCODE | WANTED)));
	out[3] = (uint8_t)(AVAILABLE | code);
	put16(out + 4, q->head_len > HEADER);
	memset(out + 6, 0, 6);
	for (size_t i = 0; code == NET_NOERROR && i < n; i++) {
		if (!asks_for(q, &addrs[i]))
			continue;
		if (len + 12 + sizeof(addrs[i].b) > max) {
			out[2] |= CUT;
			break;
		}
		len += put_record(out + len, &addrs[i], ttl);
		records++;
	}
	put16(out + 6, records);
	return len;
}
