/* SPDX-License-Identifier: Apache-2.0 */
/* store/runners.c: the bell and the mark of a runner. */
#include "store_fixture.h"

#include <poll.h>

static bool rings(int fd, int ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, ms) == 1;
}

#define OWNER "host/01890a5d-ac96-774b-bcce-b302099a8057/17/4711/0badcafe"

static bool count_runners(void *ctx, const char *owner)
{
	assert_string_equal(owner, OWNER);
	++*(int *)ctx;
	return true;
}

static void runner__hears_what_is_rung_for_its_run(void **state)
{
	struct fixture *f = *state;
	struct store_transition t = { .from = STORE_MASK_LIVE,
				      .generation = -1,
				      .to = STORE_STARTING,
				      .claim_owner = OWNER,
				      .claim_boot = "b",
				      .claim_expires_us = 1 };
	sbx_autoclose int bell = -1, mark = -1;
	char id[37], buf[16];

	submit(f->s, "alice", id);
	assert_int_equal(store_run_ring(f->s, id), -SBX_E_RUN_NOT_FOUND); /* not claimed */
	t.id = id;
	assert_true(move(f->s, &t));
	assert_int_equal(store_run_ring(f->s, id), -SBX_E_RUN_NOT_FOUND); /* no files */
	OK(store_runner_open(f->s, OWNER, &bell, &mark, e));
	assert_false(rings(bell, 0));
	for (int i = 0; i < 2; i++)
		assert_int_equal(store_run_ring(f->s, id), 0);
	assert_true(rings(bell, 5000));
	assert_int_equal(read(bell, buf, sizeof(buf)), 2);
	/* Nobody reads it, and nobody waits. */
	for (int i = 0; i < 70000; i++)
		assert_int_equal(store_runner_ring(f->s, OWNER), 0);
	sbx_closep(&bell);
	assert_int_equal(store_run_ring(f->s, id), -SBX_E_RUN_NOT_FOUND); /* it is dead */
}

static void runner__leaves_a_mark(void **state)
{
	struct fixture *f = *state;
	struct store_mark m = { .generation = 7, .started_us = 8 }, got;
	sbx_autoclose int bell = -1, mark = -1;
	int n = 0;

	OK(store_runner_open(f->s, OWNER, &bell, &mark, e));
	FAILS(STORE_UNAVAILABLE, store_runner_open(f->s, OWNER, &bell, &mark, e));
	OK(store_mark_read(f->s, OWNER, &got, e));
	assert_string_equal(got.run_id, "");
	for (int i = 0; i < 2; i++) {
		sbx_id_new(m.run_id);
		OK(store_mark_write(mark, &m, e));
		OK(store_mark_read(f->s, OWNER, &got, e));
		assert_memory_equal(&got, &m, sizeof(m));
	}
	OK(store_runners(f->s, count_runners, &n, e));
	assert_int_equal(n, 1);
	store_runner_remove(f->s, OWNER);
	OK(store_runners(f->s, count_runners, &n, e));
	assert_int_equal(n, 1);
	OK(store_mark_read(f->s, OWNER, &got, e));
	assert_string_equal(got.run_id, "");
	FAILS(INVALID_ARGUMENT, store_mark_read(f->s, "../x", &got, e));
	FAILS(INVALID_ARGUMENT, store_mark_read(f->s, "", &got, e));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		STORE_TEST(runner__hears_what_is_rung_for_its_run),
		STORE_TEST(runner__leaves_a_mark),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
