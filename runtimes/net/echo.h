/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ICMP echo, over IPv4 and IPv6: the one thing of ICMP that leaves a sandbox, and the one that
 * comes back. Pure: bytes to a struct, and a struct to bytes.
 */
#ifndef SBX_RUNTIMES_NET_ECHO_H
#define SBX_RUNTIMES_NET_ECHO_H

#include "runtimes/net/targets.h"

enum {
	NET_ECHO_DATA_MAX = 1472, /* what a packet of IPv4 takes on an Ethernet */
	NET_ECHO_MESSAGE_MAX = 8 + NET_ECHO_DATA_MAX,
	NET_ECHO_PACKET_MAX = 60 + NET_ECHO_MESSAGE_MAX, /* with the longest head of IPv4 */
};

struct net_echo {
	struct net_addr from, to; /* of packets, not of messages */
	uint16_t id, seq;
	const uint8_t *data; /* borrowed from where it was read */
	size_t len;
};

/* A packet that is an echo request, whole, and nothing besides: not a fragment, without options and
 * further heads, with a right checksum, and not too long. False: it is not. */
bool net_echo_read_packet(const uint8_t *packet, size_t len, struct net_echo *ret);
/* An echo reply as a socket gives it: a message, which over IPv4 may have its head of IP in front.
 * The kernel has looked at checksums of IPv6. */
bool net_echo_read_reply(const uint8_t *message, size_t len, bool v6, bool head,
			 struct net_echo *ret);
/* A message, whose length is returned. The kernel fills in checksums of IPv6. len is at most
 * NET_ECHO_DATA_MAX. */
size_t net_echo_write(const struct net_echo *echo, bool v6, bool reply,
		      uint8_t out[NET_ECHO_MESSAGE_MAX]);

#endif
