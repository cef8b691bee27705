/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arbitrary bytes as a packet of the sandbox's and as what a socket outside has received: never a
 * crash; what is taken lies within what was given and within its bounds, and is read again as the
 * same when it is written.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtimes/net/echo.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	(void)fprintf(stderr, "fuzz_echo: broken: %s\n", what);
	abort();
}

static void check(const struct net_echo *echo, bool v6, const uint8_t *data, size_t size)
{
	uint8_t out[NET_ECHO_MESSAGE_MAX];
	struct net_echo again;
	size_t len;

	must(echo->len <= NET_ECHO_DATA_MAX, "not too long");
	must(echo->data >= data && echo->data + echo->len == data + size, "all that was left");
	len = net_echo_write(echo, v6, true, out);
	must(len == 8 + echo->len, "the length of a message");
	must(net_echo_read_reply(out, len, v6, false, &again), "what was written is a reply");
	must(again.id == echo->id && again.seq == echo->seq && again.len == echo->len &&
		     (!echo->len || memcmp(again.data, echo->data, echo->len) == 0),
	     "and the same");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct net_echo echo;

	if (net_echo_read_packet(data, size, &echo)) {
		must(echo.from.v6 == echo.to.v6, "one family");
		check(&echo, echo.to.v6, data, size);
	}
	for (int i = 0; i < 3; i++)
		if (net_echo_read_reply(data, size, i == 2, i == 1, &echo))
			check(&echo, i == 2, data, size);
	return 0;
}
