/* SPDX-License-Identifier: Apache-2.0 */
/* How a driver waits: for its own descriptors, for a time, and for whoever may want it to stop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "runtimes/waiting_i.h"

struct turns {
	int n;		  /* how often it was asked */
	int give_up_at;	  /* the turn that says so; 0: none */
	int64_t every_us; /* when it wants to be asked again; 0: never */
	bool counts;	  /* what it was told last */
	int bell;	  /* read end, which it empties */
};

static int64_t turn(void *ctx, bool counts)
{
	struct turns *t = ctx;
	char c;

	t->counts = counts;
	if (t->n++ && t->bell >= 0)
		assert_int_equal(read(t->bell, &c, 1), 1);
	if (t->n == t->give_up_at)
		return RT_GIVE_UP;
	return t->every_us ? sbx_boot_us() + t->every_us : INT64_MAX;
}

static void ring(int fd)
{
	assert_int_equal(write(fd, "x", 1), 1);
}

static void wait__a_descriptor_is_ready(void **state)
{
	struct turns t = { .bell = -1 };
	struct rt_waiting w = { .bell = -1, .turn = turn, .ctx = &t };
	struct pollfd p[2];
	int a[2], b[2];

	(void)state;
	assert_int_equal(pipe(a) | pipe(b), 0);
	ring(b[1]);
	p[0] = (struct pollfd){ .fd = a[0], .events = POLLIN };
	p[1] = (struct pollfd){ .fd = b[0], .events = POLLIN };
	assert_int_equal(rt_wait(&w, p, 2, INT64_MAX, true), 1);
	assert_true(!p[0].revents && p[1].revents & POLLIN);
	assert_int_equal(t.n, 1);
	assert_true(t.counts);
	assert_int_equal(rt_wait(NULL, p, 2, INT64_MAX, true), 1);
	for (int i = 0; i < 2; i++)
		(void)close(a[i]), (void)close(b[i]);
}

static void wait__the_time_comes(void **state)
{
	struct turns t = { .bell = -1 };
	struct rt_waiting w = { .bell = -1, .turn = turn, .ctx = &t };
	struct pollfd p = { .fd = -1 };
	int64_t until = sbx_boot_us() + 20000;

	(void)state;
	assert_int_equal(rt_wait(&w, &p, 1, until, false), 0);
	assert_true(sbx_boot_us() >= until);
	assert_false(t.counts);
	assert_int_equal(rt_wait(NULL, &p, 1, sbx_boot_us() - 1, false), 0);
}

static void wait__asks_again_when_it_was_told_to(void **state)
{
	struct turns t = { .bell = -1, .every_us = 3000, .give_up_at = 4 };
	struct rt_waiting w = { .bell = -1, .turn = turn, .ctx = &t };
	struct pollfd p = { .fd = -1 };

	(void)state;
	assert_int_equal(rt_wait(&w, &p, 1, INT64_MAX, true), -SBX_E_INTERRUPTED);
	assert_int_equal(t.n, 4);
}

static void wait__the_bell_is_heard(void **state)
{
	struct turns t = { .give_up_at = 3 };
	struct rt_waiting w = { .turn = turn, .ctx = &t };
	struct pollfd p = { .fd = -1 };
	int bell[2];

	(void)state;
	assert_int_equal(pipe(bell), 0);
	t.bell = w.bell = bell[0];
	ring(bell[1]);
	ring(bell[1]);
	assert_int_equal(rt_wait(&w, &p, 1, INT64_MAX, true), -SBX_E_INTERRUPTED);
	assert_int_equal(t.n, 3);
	(void)close(bell[0]);
	(void)close(bell[1]);
}

static void wait__given_up_before_it_began(void **state)
{
	struct turns t = { .bell = -1, .give_up_at = 1 };
	struct rt_waiting w = { .bell = -1, .turn = turn, .ctx = &t };
	struct pollfd p = { .events = POLLIN };
	int a[2];

	(void)state;
	assert_int_equal(pipe(a), 0);
	ring(a[1]);
	p.fd = a[0];
	assert_int_equal(rt_wait(&w, &p, 1, INT64_MAX, true), -SBX_E_INTERRUPTED);
	(void)close(a[0]);
	(void)close(a[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(wait__a_descriptor_is_ready),
		cmocka_unit_test(wait__the_time_comes),
		cmocka_unit_test(wait__asks_again_when_it_was_told_to),
		cmocka_unit_test(wait__the_bell_is_heard),
		cmocka_unit_test(wait__given_up_before_it_began),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
