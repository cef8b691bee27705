/* SPDX-License-Identifier: Apache-2.0 */
#include "base/id.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"

void sbx_random(void *out, size_t len)
{
	uint8_t *p = out;

	while (len) {
		ssize_t n = getrandom(p, len, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			abort();
		p += n;
		len -= (size_t)n;
	}
}

void sbx_id_new(char out[SBX_ID_LEN + 1])
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static uint64_t last; /* under lock: milliseconds << 12 | sub-millisecond count */
	uint8_t r[8];
	uint64_t now, ms;
	unsigned sub;

	sbx_random(r, sizeof(r));
	/* RFC 9562 6.2 method 3: the 12 bits of rand_a carry the fraction of the millisecond. */
	now = (uint64_t)sbx_now_us();
	now = (now / 1000) << 12 | (now % 1000) * 4096 / 1000;
	pthread_mutex_lock(&lock);
	if (now <= last)
		now = last + 1;
	last = now;
	pthread_mutex_unlock(&lock);
	ms = now >> 12;
	sub = (unsigned)(now & 0xfff);
	(void)snprintf(out, SBX_ID_LEN + 1, "%08x-%04x-7%03x-%02x%02x-%02x%02x%02x%02x%02x%02x",
		       (unsigned)(ms >> 16), (unsigned)(ms & 0xffff), sub, 0x80 | (r[0] & 0x3f),
		       r[1], r[2], r[3], r[4], r[5], r[6], r[7]);
}

bool sbx_id_valid(const char *s)
{
	if (strlen(s) != SBX_ID_LEN)
		return false;
	for (int i = 0; i < SBX_ID_LEN; i++) {
		bool dash = i == 8 || i == 13 || i == 18 || i == 23;

		if (dash ? s[i] != '-' : !strchr("0123456789abcdef", s[i]))
			return false;
	}
	return true;
}
