/* SPDX-License-Identifier: Apache-2.0 */
/* Which inode a look-up of runs/new gets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/clock.h"
#include "fsd/fsd_i.h"

enum { USER = 1000, OTHER = 1001 };

static struct fsd f;

static int begin(void **state)
{
	(void)state;
	memset(&f, 0, sizeof(f));
	pthread_mutex_init(&f.shares_lock, NULL);
	f.writers = writers_start(&f, NULL);
	assert_non_null(f.writers);
	return 0;
}

static int end(void **state)
{
	(void)state;
	writers_stop(f.writers);
	writers_free(f.writers);
	pthread_mutex_destroy(&f.shares_lock);
	return 0;
}

/* As if that much time went by. */
static void later(int64_t us)
{
	f.shares[0].first_us -= us;
}

static void open_and_close(int64_t serial)
{
	serial_opened(&f, 0, serial);
	serial_closed(&f, 0, serial);
}

static void one_after_the_other_keep_it(void **state)
{
	int64_t first = serial_take(&f, 0, USER);

	(void)state;
	for (int i = 0; i < 20; i++) {
		open_and_close(first);
		assert_int_equal(serial_take(&f, 0, USER), first);
	}
}

static void who_comes_while_it_is_open_gets_another(void **state)
{
	int64_t first = serial_take(&f, 0, USER);

	(void)state;
	later(SBX_SECOND_US);
	assert_int_not_equal(serial_take(&f, 0, USER), first);
}

static void a_crowd_shares_by_eight(void **state)
{
	int64_t last = 0;
	int kinds = 0;

	(void)state;
	for (int i = 0; i < 80; i++) {
		int64_t one = serial_take(&f, 0, USER);

		f.shares[0].first_us = INT64_MAX / 2; /* however slow this machine is */
		kinds += one != last;
		last = one;
	}
	assert_int_equal(kinds, 10);
}

/* As long as one of them has it open, who comes later gets another. */
static void what_was_shared_is_given_again_when_all_have_closed_it(void **state)
{
	int64_t first = serial_take(&f, 0, USER), other;

	(void)state;
	f.shares[0].first_us = INT64_MAX / 2;
	assert_int_equal(serial_take(&f, 0, USER), first);
	serial_opened(&f, 0, first);
	open_and_close(first);
	later(INT64_MAX / 2);
	other = serial_take(&f, 0, USER);
	assert_int_not_equal(other, first);
	serial_closed(&f, 0, first);
	later(SBX_SECOND_US);
	assert_int_not_equal(serial_take(&f, 0, USER), first);

	other = serial_take(&f, 0, USER);
	f.shares[0].first_us = INT64_MAX / 2;
	assert_int_equal(serial_take(&f, 0, USER), other);
	open_and_close(other);
	serial_opened(&f, 0, other); /* the second one comes when the first has left */
	later(INT64_MAX / 2);
	assert_int_not_equal(serial_take(&f, 0, USER), other);
}

/* The kernel asks a second time when it finds another than it knew. */
static void asked_twice_and_opened_once_is_kept(void **state)
{
	int64_t first = serial_take(&f, 0, USER);

	(void)state;
	f.shares[0].first_us = INT64_MAX / 2;
	assert_int_equal(serial_take(&f, 0, USER), first);
	open_and_close(first);
	later(INT64_MAX / 2);
	assert_int_equal(serial_take(&f, 0, USER), first);
}

/* Look-ups alone, as stat() makes them, leave nothing behind that matters. */
static void what_nobody_opens_is_forgotten(void **state)
{
	int64_t first = serial_take(&f, 0, USER), next;

	(void)state;
	later(SBX_SECOND_US);
	next = serial_take(&f, 0, USER);
	assert_int_not_equal(next, first);
	open_and_close(next);
	later(SBX_SECOND_US);
	assert_int_equal(serial_take(&f, 0, USER), next);
}

static void a_crowd_that_leaves_at_once_is_no_larger(void **state)
{
	int64_t first = serial_take(&f, 0, USER), last = first;
	int n = 0;

	(void)state;
	for (; n < 20 && last == first; n++) {
		f.shares[0].first_us = INT64_MAX / 2;
		open_and_close(first);
		serial_opened(&f, 0, first);
		last = serial_take(&f, 0, USER);
	}
	assert_int_equal(n, 8);
}

static void check_has_its_own(void **state)
{
	int64_t first = serial_take(&f, 0, USER);

	(void)state;
	f.shares[0].first_us = INT64_MAX / 2;
	assert_int_not_equal(serial_take(&f, 1, USER), first);
}

/* Who writes holds the inode for as long as he likes. */
static void users_share_nothing(void **state)
{
	int64_t first = serial_take(&f, 0, USER), other;

	(void)state;
	f.shares[0].first_us = INT64_MAX / 2;
	other = serial_take(&f, 0, OTHER);
	assert_int_not_equal(other, first);
	/* Whoever closes one may have it open a second time. */
	open_and_close(other);
	assert_int_not_equal(serial_take(&f, 0, USER), other);
}

static void nobody_shares_while_a_write_waits_for_long(void **state)
{
	struct act a = { .what = ACT_WRITE };
	int64_t first;

	(void)state;
	assert_true(writers_here(f.writers, &a));
	first = serial_take(&f, 0, USER);
	f.shares[0].first_us = INT64_MAX / 2;
	assert_int_equal(serial_take(&f, 0, USER), first);
	a.since_us -= SBX_SECOND_US;
	assert_int_not_equal(serial_take(&f, 0, USER), first);
	writers_done(f.writers, &a);
	f.shares[0].first_us = INT64_MAX / 2;
	first = serial_take(&f, 0, USER);
	assert_int_equal(serial_take(&f, 0, USER), first);
}

static void takes_its_time(struct act a)
{
	int64_t first;

	assert_true(writers_here(f.writers, &a));
	a.since_us -= SBX_SECOND_US;
	first = serial_take(&f, 0, USER);
	f.shares[0].first_us = INT64_MAX / 2;
	assert_int_equal(serial_take(&f, 0, USER), first);
	writers_done(f.writers, &a);
}

static void some_may_take_their_time(void **state)
{
	struct job j = { .name = "" };

	(void)state;
	takes_its_time((struct act){ .job = &j });
	takes_its_time((struct act){ .what = ACT_WRITE, .slow = true });
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(one_after_the_other_keep_it, begin, end),
		cmocka_unit_test_setup_teardown(who_comes_while_it_is_open_gets_another, begin,
						end),
		cmocka_unit_test_setup_teardown(a_crowd_shares_by_eight, begin, end),
		cmocka_unit_test_setup_teardown(
			what_was_shared_is_given_again_when_all_have_closed_it, begin, end),
		cmocka_unit_test_setup_teardown(asked_twice_and_opened_once_is_kept, begin, end),
		cmocka_unit_test_setup_teardown(what_nobody_opens_is_forgotten, begin, end),
		cmocka_unit_test_setup_teardown(a_crowd_that_leaves_at_once_is_no_larger, begin,
						end),
		cmocka_unit_test_setup_teardown(check_has_its_own, begin, end),
		cmocka_unit_test_setup_teardown(users_share_nothing, begin, end),
		cmocka_unit_test_setup_teardown(nobody_shares_while_a_write_waits_for_long, begin,
						end),
		cmocka_unit_test_setup_teardown(some_may_take_their_time, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
