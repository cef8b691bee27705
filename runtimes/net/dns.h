/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of the domain name system, as far as a resolver of a few names needs them (RFC 1035).
 * Pure. */
#ifndef SBX_RUNTIMES_NET_DNS_H
#define SBX_RUNTIMES_NET_DNS_H

#include "runtimes/net/targets.h"

enum {
	NET_DNS_MAX = 65535,	  /* bytes of a message over TCP */
	NET_DNS_UDP_MAX = 512,	  /* of an answer over UDP */
	NET_DNS_QUERY_MAX = 1024, /* of a question that is taken */
};

enum net_rcode {
	NET_NOERROR = 0,
	NET_FORMERR = 1,
	NET_SERVFAIL = 2,
	NET_NXDOMAIN = 3,
	NET_NOTIMP = 4,
	NET_REFUSED = 5,
};

enum { NET_DNS_A = 1, NET_DNS_AAAA = 28 };

struct net_query {
	uint8_t head[12 + NET_NAME_MAX + 2 + 4]; /* header and question as they came */
	size_t head_len;
	char name[NET_NAME_MAX + 1]; /* normal form */
	uint16_t type;
};

/*
 * Reads a question. NOERROR: it is one about a name of the Internet class. Another code: what to
 * answer it with. -1: it is nothing that deserves an answer.
 */
int net_dns_read(const uint8_t *msg, size_t len, struct net_query *q);
/* Writes the answer: of the addresses those of the family that was asked for. Returns its length,
 * at most max, which is NET_DNS_UDP_MAX or more; what does not fit is cut off and marked as cut. */
size_t net_dns_write(const struct net_query *q, enum net_rcode code, const struct net_addr *addrs,
		     size_t n, uint32_t ttl, uint8_t *out, size_t max);

#endif
