/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses, and which of them lead where no sandbox should get. Pure. */
#include "runtimes/net/targets.h"

#include <arpa/inet.h>
#include <string.h>

#include "base/auto.h"

bool net_addr_parse(const char *text, struct net_addr *ret)
{
	memset(ret, 0, sizeof(*ret));
	if (inet_pton(AF_INET, text, ret->b) == 1)
		return true;
	ret->v6 = true;
	return inet_pton(AF_INET6, text, ret->b) == 1;
}

char *net_addr_print(const struct net_addr *a, char out[NET_ADDR_TEXT])
{
	if (!inet_ntop(a->v6 ? AF_INET6 : AF_INET, a->b, out, NET_ADDR_TEXT))
		out[0] = '\0';
	return out;
}

int net_addr_compare(const struct net_addr *a, const struct net_addr *b)
{
	if (a->v6 != b->v6)
		return a->v6 ? 1 : -1;
	return memcmp(a->b, b->b, sizeof(a->b));
}

/* ---- what is refused ------------------------------------------------------------------------- */

struct special {
	uint8_t b[16];
	int prefix;
	const char *problem;
	bool never; /* nor when it is named */
};

/* The metadata services that are not link-local are those of Alibaba, Azure and Oracle. */
static const struct special special4[] = {
	{ { 0 }, 8, "is the host itself", true },
	{ { 127 }, 8, "is a loopback address", true },
	{ { 169, 254, 169, 254 }, 32, "is a metadata service", false },
	{ { 169, 254 }, 16, "is link-local", false },
	{ { 100, 100, 100, 200 }, 32, "is a metadata service", false },
	{ { 168, 63, 129, 16 }, 32, "is a metadata service", false },
	{ { 192, 0, 0, 192 }, 32, "is a metadata service", false },
	{ { 224 }, 4, "is a multicast address", true },
	{ { 240 }, 4, "is reserved or a broadcast", true },
};

static const struct special special6[] = {
	{ { 0 }, 96, "is loopback, or IPv4 in a form of IPv6", true },
	{ { [10] = 0xff, [11] = 0xff }, 96, "is IPv4 in a form of IPv6", true },
	{ { [8] = 0xff, [9] = 0xff }, 96, "is IPv4 in a form of IPv6", true },
	{ { 0x00, 0x64, 0xff, 0x9b, 0x00, 0x01 }, 48, "is IPv4 in a form of IPv6", true },
	{ { 0x20, 0x01 }, 32, "is IPv4 in a form of IPv6", true }, /* Teredo */
	{ { 0xfd, 0x00, 0x0e, 0xc2, [14] = 0x02, [15] = 0x54 },
	  128,
	  "is a metadata service",
	  false },
	{ { 0xfe, 0x80 }, 10, "is link-local", false },
	{ { 0xfe, 0xc0 }, 10, "is site-local", false },
	{ { 0xff }, 8, "is a multicast address", true },
};

/* Addresses of IPv6 that a network may turn into the IPv4 address in them. */
static const struct {
	uint8_t b[12];
	size_t len, at; /* bytes of the prefix; where the IPv4 address is */
} embeddings[] = {
	{ { 0x00, 0x64, 0xff, 0x9b }, 12, 12 }, /* NAT64 */
	{ { 0x20, 0x02 }, 2, 2 },		/* 6to4 */
};

static bool begins_with(const uint8_t *b, const uint8_t *prefix, int bits)
{
	size_t whole = (size_t)bits / 8;
	int rest = bits % 8;

	if (memcmp(b, prefix, whole) != 0)
		return false;
	return rest == 0 || ((b[whole] ^ prefix[whole]) >> (8 - rest)) == 0;
}

static const char *look_up(const struct special *table, size_t n, const uint8_t *b, bool *ret_never)
{
	for (size_t i = 0; i < n; i++) {
		if (!begins_with(b, table[i].b, table[i].prefix))
			continue;
		if (ret_never)
			*ret_never = table[i].never;
		return table[i].problem;
	}
	return NULL;
}

const char *net_addr_problem(const struct net_addr *a, bool *ret_never)
{
	const char *problem;

	if (ret_never)
		*ret_never = false;
	if (!a->v6)
		return look_up(special4, SBX_COUNT(special4), a->b, ret_never);
	problem = look_up(special6, SBX_COUNT(special6), a->b, ret_never);
	for (size_t i = 0; i < SBX_COUNT(embeddings) && !problem; i++)
		if (memcmp(a->b, embeddings[i].b, embeddings[i].len) == 0)
			problem = look_up(special4, SBX_COUNT(special4), a->b + embeddings[i].at,
					  ret_never);
	return problem;
}
