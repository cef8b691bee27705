/* SPDX-License-Identifier: Apache-2.0 */
/* One poll for what a driver waits for and for whoever may want it to stop. */
#include "runtimes/waiting_i.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/clock.h"

static int64_t take_turn(const struct rt_waiting *w, bool counts)
{
	return w ? w->turn(w->ctx, counts) : INT64_MAX;
}

/* Milliseconds from now until then, rounded up. */
static int left_ms(int64_t until_us)
{
	int64_t left = until_us - sbx_boot_us();

	if (left <= 0)
		return 0;
	return left > INT64_C(1000000) * 1000 ? 1000000 : (int)((left + 999) / 1000);
}

int rt_wait(const struct rt_waiting *w, struct pollfd *p, size_t n, int64_t until_us, bool counts)
{
	struct pollfd all[RT_WAIT_FDS + 1];
	int64_t next = take_turn(w, counts);

	assert(n <= RT_WAIT_FDS);
	memcpy(all, p, n * sizeof(*p));
	all[n] = (struct pollfd){ .fd = w ? w->bell : -1, .events = POLLIN };
	for (;;) {
		int found;

		if (next == RT_GIVE_UP)
			return -SBX_E_INTERRUPTED;
		found = poll(all, n + 1, left_ms(next < until_us ? next : until_us));
		if (found < 0 && errno != EINTR)
			return -SBX_E_INTERNAL;
		if (found > 0 && all[n].revents) {
			next = take_turn(w, counts);
			if (next == RT_GIVE_UP)
				return -SBX_E_INTERRUPTED;
			found--;
		}
		if (found > 0) {
			memcpy(p, all, n * sizeof(*p));
			return found;
		}
		if (sbx_boot_us() >= until_us)
			return 0;
		if (sbx_boot_us() >= next)
			next = take_turn(w, counts);
	}
}
