/* SPDX-License-Identifier: Apache-2.0 */
/* Sandboxes made ahead: how many are kept, and that none is left behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/clock.h"
#include "runtimes/runner/runner_i.h"

enum { SPARES = 3 };

static struct runner r;
static int far_end; /* of the door */

static void setting(const char *spares)
{
	const char *overrides[] = { spares };

	orch_settings_free(r.settings);
	assert_int_equal(orch_settings_load("/dev/null", overrides, 1, &r.settings, NULL), 0);
}

static int begin(void **state)
{
	int pair[2];

	(void)state;
	memset(&r, 0, sizeof(r));
	setting("spare_sandboxes=3");
	r.host = (struct rt_host){ .uid_base = 1u << 20, .uid_range = 1u << 16, .landlock = true };
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	r.door = pair[0];
	far_end = pair[1];
	return 0;
}

/* Processes that this one has started. */
static int children(void)
{
	char path[64], text[4096] = "";
	int n = 0;
	FILE *f;

	(void)snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
	f = fopen(path, "re");
	assert_non_null(f);
	if (fgets(text, sizeof(text), f))
		for (const char *p = text; (p = strchr(p, ' ')); p++)
			n++;
	(void)fclose(f);
	return n;
}

static int end(void **state)
{
	(void)state;
	stock_clear(&r);
	assert_int_equal(children(), 0);
	close(r.door);
	close(far_end);
	orch_settings_free(r.settings);
	return 0;
}

/* In r.sandbox, as a run of that script. */
static void run(const char *script)
{
	const char *argv[] = { "sh", "-c", script, NULL };
	const char *envp[] = { "PATH=/usr/bin:/bin", NULL };
	const struct rt_driver *d = r.driver;
	struct rt_fds fds = { -1, -1, -1, -1, -1 };
	struct rt_plan p = {
		.run_id = "test",
		.cwd = "/workspace",
		.limits = { 256 << 20, 64, 256, 64 << 20, 4096, 16 << 20, 4, false },
		.network = RT_NET_DENY_ALL,
		.workspace_fd = -1,
	};
	struct pollfd over = { .events = POLLIN };
	struct rt_exit x = { 0 };
	int64_t until = sbx_boot_us() + 20 * SBX_SECOND_US;

	memcpy(&p.argv, &(const char **){ argv }, sizeof(p.argv));
	memcpy(&p.envp, &(const char **){ envp }, sizeof(p.envp));
	assert_int_equal(d->prepare(r.sandbox, &p, NULL), 0);
	assert_int_equal(d->start(r.sandbox, &fds, NULL), 0);
	over.fd = fds.exit;
	do {
		assert_true(sbx_boot_us() < until);
		(void)poll(&over, 1, 1000);
	} while (!d->reap(r.sandbox, &x));
	assert_int_equal(x.status, 0);
	close(fds.out);
	close(fds.err);
	close(fds.exit);
	close(fds.workspace);
}

/* n runs, each ordered before the one before it was over. */
static void row(size_t n)
{
	char c = 'x';

	for (size_t i = 0; i < n; i++)
		assert_int_equal(send(far_end, &c, 1, 0), 1);
	for (size_t i = 0; i < n; i++) {
		stock_take(&r);
		assert_non_null(r.sandbox);
		stock_wait(&r);
		assert_int_equal(recv(r.door, &c, 1, 0), 1);
		stock_used(&r);
	}
	stock_take(&r);
}

static void one_is_enough_for_one_after_the_other(void **state)
{
	(void)state;
	for (int i = 0; i < 4; i++) {
		row(1);
		assert_int_equal(stock_tend(&r), INT64_MAX);
		assert_int_equal(r.stock.n, 0);
		assert_int_equal(children(), 1);
	}
}

static void a_row_leaves_half_as_many_again(void **state)
{
	(void)state;
	row(3);
	assert_true(stock_tend(&r) > sbx_boot_us());
	assert_int_equal(r.stock.n, 3);
	assert_int_equal(children(), 4); /* nothing of those that were used up */
	/* They are there for the next row, which needs none to be made. */
	row(3);
	assert_int_equal(r.stock.n_used, 3);
	assert_int_equal(r.stock.n, 0);
	(void)stock_tend(&r);
	assert_int_equal(r.stock.n_used, 0);
	assert_int_equal(r.stock.n, 3);
	assert_int_equal(children(), 4);
}

static void the_setting_is_the_limit(void **state)
{
	(void)state;
	row(SPARES + 5);
	(void)stock_tend(&r);
	assert_int_equal(r.stock.n, SPARES);
	assert_int_equal(children(), SPARES + 1);
}

static void none_where_none_is_wished(void **state)
{
	(void)state;
	setting("spare_sandboxes=0");
	row(5);
	assert_int_equal(r.stock.n_used, 0);
	assert_int_equal(stock_tend(&r), INT64_MAX);
	assert_int_equal(r.stock.n, 0);
	assert_int_equal(children(), 1);
}

static void an_order_goes_first(void **state)
{
	char c = 'x';

	(void)state;
	row(3);
	assert_int_equal(send(far_end, &c, 1, 0), 1);
	assert_int_equal(stock_tend(&r), 0);
	assert_int_equal(r.stock.n, 0);
}

static void after_a_calm_they_go(void **state)
{
	(void)state;
	row(3);
	(void)stock_tend(&r);
	assert_int_equal(r.stock.n, 3);
	r.stock.last_us -= 601 * SBX_SECOND_US;
	assert_int_equal(stock_tend(&r), INT64_MAX);
	assert_int_equal(r.stock.n, 0);
	assert_int_equal(children(), 1);
}

/* What a run leaves in memory goes with its sandbox, and a row may never end. */
static void only_what_is_small_waits_to_be_taken_down(void **state)
{
	(void)state;
	stock_take(&r);
	run("echo hi > small");
	stock_used(&r);
	assert_int_equal(r.stock.n_used, 1);
	stock_take(&r);
	run("head -c 8000000 /dev/zero > large");
	stock_used(&r);
	assert_int_equal(r.stock.n_used, 1);
	assert_int_equal(children(), 1);
}

/* One at a time, between which the run is attended to; a short run is not disturbed. */
static void a_run_that_takes_longer_takes_down_what_was_used(void **state)
{
	int64_t now;

	(void)state;
	row(3);
	(void)stock_tend(&r);
	row(3);
	assert_int_equal(r.stock.n_used, 3);
	assert_int_equal(children(), 4);
	now = sbx_boot_us() + SBX_SECOND_US;
	assert_int_equal(stock_shed(&r, now), now + 100000);
	assert_int_equal(r.stock.n_used, 3);
	now -= 2 * SBX_SECOND_US;
	for (int left = 2; left >= 0; left--) {
		assert_int_equal(stock_shed(&r, now), left ? now + 100000 : INT64_MAX);
		assert_int_equal(r.stock.n_used, left);
		assert_int_equal(children(), 1 + left);
	}
	assert_int_equal(stock_shed(&r, now), INT64_MAX);
	assert_non_null(r.sandbox); /* which is the run's own */
}

static void the_end_of_the_door_ends_the_wait(void **state)
{
	char c;

	(void)state;
	row(2);
	shutdown(far_end, SHUT_WR);
	stock_wait(&r);
	assert_int_equal(recv(r.door, &c, 1, 0), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(one_is_enough_for_one_after_the_other, begin, end),
		cmocka_unit_test_setup_teardown(a_row_leaves_half_as_many_again, begin, end),
		cmocka_unit_test_setup_teardown(the_setting_is_the_limit, begin, end),
		cmocka_unit_test_setup_teardown(none_where_none_is_wished, begin, end),
		cmocka_unit_test_setup_teardown(an_order_goes_first, begin, end),
		cmocka_unit_test_setup_teardown(after_a_calm_they_go, begin, end),
		cmocka_unit_test_setup_teardown(only_what_is_small_waits_to_be_taken_down, begin,
						end),
		cmocka_unit_test_setup_teardown(a_run_that_takes_longer_takes_down_what_was_used,
						begin, end),
		cmocka_unit_test_setup_teardown(the_end_of_the_door_ends_the_wait, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
