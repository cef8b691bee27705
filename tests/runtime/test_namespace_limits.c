/* SPDX-License-Identifier: Apache-2.0 */
/* The namespace driver on this kernel: limits, signals, and what does not want to die. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/fs.h"
#include "runtimes/cgroup.h"
#include "tests/runtime/ns_test.h"

static bool have_groups; /* memory and pids of a whole tree can be limited here */

static void need_groups(void)
{
	if (!have_groups)
		skip();
}

/* ---- memory, processes, processor ------------------------------------------------------------ */

static void memory__kill_of_a_child_is_seen(void **state)
{
	struct job j = { .argv = { "sh", "-c", "./probe eat 200; echo rc=$?; exit 0" },
			 .probe = true,
			 .limits = { .memory_bytes = 64 << 20, .strict = true } };
	struct job plain = shell("kill -9 $$");
	struct live l;

	(void)state;
	need_groups();
	job_run(&j, &l);
	assert_string_equal(l.out, "rc=137\n");
	assert_int_equal(job_status(&l), 0);
	assert_true(l.x.oom);
	assert_in_range(l.x.peak_bytes, 32 << 20, 64 << 20);
	job_run(&plain, &l);
	assert_int_equal(l.x.status, SIGKILL);
	assert_false(l.x.oom);
}

static void memory__counts_files_in_tmp(void **state)
{
	struct job j = shell("head -c 100M /dev/zero > /dev/shm/x; echo rc=$?");
	struct live l;

	(void)state;
	need_groups();
	j.limits = (struct rt_limits){ .memory_bytes = 32 << 20, .tmp_bytes = 200 << 20 };
	job_run(&j, &l);
	assert_true(l.x.oom);
}

static void processes__are_counted_without_init(void **state)
{
	struct job j = probe("forks", "100");
	struct live l;

	(void)state;
	j.limits.pids = 20;
	job_run(&j, &l);
	assert_int_equal(job_status(&l), 0);
	assert_string_equal(l.out, "19\n"); /* and the one that forks */
	if (have_groups)
		assert_true(l.x.pids_hit);
	j.argv[2] = "19";
	job_run(&j, &l);
	assert_string_equal(l.out, "19\n");
	assert_false(l.x.pids_hit);
}

static void fork_bomb__ends_with_the_sandbox(void **state)
{
	struct job j = shell("echo up; f() { f | f & f; }; f");
	struct live l;

	(void)state;
	j.limits.pids = 64;
	job_start(&j, &l);
	job_wait_output(&l, "up\n");
	assert_int_equal(rt_namespace.signal(l.sb, RT_SIGNAL_ALL, SIGKILL), 0);
	job_end(&l);
	assert_true(l.x.killed_by_us);
	assert_false(l.x.lost);
	assert_int_equal(l.x.status, SIGKILL);
	job_free(&l);
}

static void orphans__are_reaped(void **state)
{
	/* 200 of them with room for 48 at a time: none may stay, as a zombie or otherwise. */
	struct job j = shell("i=0; while [ $i -lt 200 ]; do sh -c 'true & exit 0' || exit 9; "
			     "i=$((i+1)); done; "
			     "while [ \"$(ls -d /proc/[0-9]* | wc -l)\" -gt 4 ]; do :; done; "
			     "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l");
	struct live l;

	(void)state;
	j.limits.pids = 48;
	job_run(&j, &l);
	assert_string_equal(l.out, "0\n");
	assert_int_equal(job_status(&l), 0);
}

static void processor__time_is_counted_and_shared(void **state)
{
	struct job j = shell("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done");
	int64_t from;
	struct live l;
	uint64_t wall;

	(void)state;
	job_run(&j, &l);
	assert_in_range(l.x.cpu_us, 5000, 60000000);
	need_groups();
	j.limits.cpu = 0.2;
	job_start(&j, &l);
	from = sbx_boot_us();
	job_end(&l);
	wall = (uint64_t)(sbx_boot_us() - from);
	assert_true(l.x.cpu_us < wall); /* it had to wait for its share */
	job_free(&l);
}

static void open_files__are_limited(void **state)
{
	struct job j = shell("ulimit -n; ulimit -Hn; ulimit -c");
	struct live l;

	(void)state;
	j.limits.nofile = 77;
	job_run(&j, &l);
	assert_string_equal(l.out, "77\n77\n0\n");
}

static void usage__grows_while_the_command_works(void **state)
{
	struct job j = shell("echo up; while :; do :; done");
	uint64_t cpu = 0, peak = 0;
	int64_t deadline = sbx_boot_us() + TEST_SECONDS * SBX_SECOND_US;
	struct live l;

	(void)state;
	job_start(&j, &l);
	job_wait_output(&l, "up\n");
	while (cpu < 50000 && sbx_boot_us() < deadline)
		rt_namespace.usage(l.sb, &cpu, &peak);
	assert_true(cpu >= 50000);
	job_free(&l);
}

/* ---- disk ------------------------------------------------------------------------------------ */

static void workspace__has_a_size_and_a_number_of_files(void **state)
{
	struct job j = shell("head -c 2000000000 /dev/zero > big; echo rc=$?; stat -c %s big; "
			     "rm big; truncate -s 1G hole && echo hole; rm hole; i=0; "
			     "while [ $i -lt 300 ] && true > n$i; do i=$((i+1)); done 2>/dev/null; "
			     "echo n=$i");
	struct live l;

	(void)state;
	j.limits = (struct rt_limits){ .workspace_bytes = 1 << 20, .workspace_inodes = 100 };
	job_run(&j, &l);
	assert_string_equal(l.out, "rc=1\n1048576\nhole\nn=100\n");
}

static void files__that_do_not_fit_are_refused(void **state)
{
	sbx_autofree char *data = calloc(1, 3 << 20);
	struct rt_file file = { "big", data, 3 << 20, 0644 };
	struct rt_file many[3] = { { "a/b/c", "", 0, 0644 },
				   { "d", "", 0, 0644 },
				   { "e", "", 0, 0644 } };
	struct job j = { .argv = { "true" }, .files = &file, .n_files = 1 };
	sbx_autoerror e = SBX_ERROR_INIT;
	struct live l;

	(void)state;
	j.limits.workspace_bytes = 2 << 20;
	assert_int_equal(job_refused(&j, &e), -SBX_E_WORKSPACE_CAP);
	assert_non_null(strstr(e.message, "'big'"));
	j.limits.workspace_bytes = 4 << 20;
	job_run(&j, &l);
	assert_int_equal(job_status(&l), 0);
	j.files = many;
	j.n_files = 3;
	j.limits.workspace_inodes = 4;
	assert_int_equal(job_refused(&j, &e), -SBX_E_WORKSPACE_CAP);
}

static void files__outside_the_workspace_are_refused(void **state)
{
	static const char *const paths[] = { "../x", "/x", "a//b", "", "a/./b" };

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(paths); i++) {
		struct rt_file file = { paths[i], "x", 1, 0644 };
		struct job j = { .argv = { "true" }, .files = &file, .n_files = 1 };

		assert_int_equal(job_refused(&j, NULL), -SBX_E_RUNTIME_ERROR);
	}
}

/* ---- made ahead ------------------------------------------------------------------------------ */

/* What is not expected holds as well as what is. */
static void limits__are_the_plans_whatever_was_expected(void **state)
{
	struct rt_limits expected = { .memory_bytes = 64 << 20,
				      .pids = 8,
				      .workspace_bytes = 1 << 20,
				      .workspace_inodes = 100,
				      .tmp_bytes = 1 << 20,
				      .cpu = 1 };
	struct job same = shell("stat -f -c '%b %S %c' /workspace; stat -f -c '%b' /tmp");
	struct job other = same, inside = same;
	struct live l;

	(void)state;
	same.limits = expected;
	other.limits = (struct rt_limits){ .memory_bytes = 128 << 20,
					   .workspace_bytes = 2 << 20,
					   .workspace_inodes = 200,
					   .tmp_bytes = 4 << 20 };
	inside.limits = expected;
	inside.cwd = "/workspace/a/b";
	inside.argv[2] = "pwd; stat -f -c '%b' /workspace";
	test_host.expected = &expected;
	for (int i = 0; i < 2; i++) {
		job_run(&same, &l);
		assert_string_equal(l.out, "256 4096 101\n256\n");
		job_run(&other, &l);
		assert_string_equal(l.out, "512 4096 201\n1024\n");
		job_run(&inside, &l);
		assert_string_equal(l.out, "/workspace/a/b\n256\n");
	}
	test_host.expected = NULL;
}

/* Nothing can be made within these: only a plan that asks for them fails. */
static void limits__that_nothing_fits_into_do_no_harm_ahead(void **state)
{
	const struct rt_limits expected = { .memory_bytes = 4096, .pids = 1 };
	struct job j = shell("echo ok");
	struct live l;

	(void)state;
	test_host.expected = &expected;
	job_run(&j, &l);
	assert_string_equal(l.out, "ok\n");
	test_host.expected = NULL;
}

/* ---- signals --------------------------------------------------------------------------------- */

static void signal__reaches_the_commands_group(void **state)
{
	struct job j =
		shell("trap 'echo term; exit 5' TERM; echo up; while :; do sleep 0.05; done");
	struct live l;

	(void)state;
	job_start(&j, &l);
	job_wait_output(&l, "up\n");
	assert_int_equal(rt_namespace.signal(l.sb, RT_SIGNAL_COMMAND, SIGTERM), 0);
	job_end(&l);
	assert_string_equal(l.out, "up\nterm\n");
	assert_int_equal(job_status(&l), 5);
	assert_false(l.x.killed_by_us);
	assert_int_equal(rt_namespace.signal(l.sb, RT_SIGNAL_COMMAND, SIGTERM), -ESRCH);
	job_free(&l);
}

static void signal__that_ends_it_is_ours(void **state)
{
	struct job j = shell("echo up; sleep 300");
	struct live l;

	(void)state;
	job_start(&j, &l);
	job_wait_output(&l, "up\n");
	assert_int_equal(rt_namespace.signal(l.sb, RT_SIGNAL_COMMAND, SIGTERM), 0);
	job_end(&l);
	assert_int_equal(l.x.status, SIGTERM);
	assert_true(l.x.killed_by_us);
	job_free(&l);
}

static void kill__takes_what_hides_from_signals(void **state)
{
	static const char *const scripts[] = {
		/* own session, double fork, TERM ignored */
		"trap '' TERM; (setsid sh -c 'sleep 300 & sleep 300' &) ; echo up; sleep 300",
		"(sleep 300 & kill -STOP $!) ; kill -STOP -1; kill -STOP $$", /* all stopped */
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(scripts); i++) {
		struct job j = shell(scripts[i]);
		struct live l;

		job_start(&j, &l);
		if (i == 0)
			job_wait_output(&l, "up\n");
		assert_int_equal(rt_namespace.signal(l.sb, RT_SIGNAL_ALL, SIGTERM), 0);
		assert_int_equal(rt_namespace.signal(l.sb, RT_SIGNAL_ALL, SIGKILL), 0);
		job_end(&l);
		assert_int_equal(l.x.status, SIGKILL);
		assert_true(l.x.killed_by_us);
		job_free(&l);
	}
}

static void kill_minus_one__hurts_only_its_own(void **state)
{
	struct job victim = shell("sleep 300"), j = probe("kill", NULL);
	struct live other, l;

	(void)state;
	job_start(&victim, &other);
	job_run(&j, &l);
	assert_int_equal(job_status(&l), 0);
	assert_false(l.x.lost);
	assert_false(rt_namespace.reap(other.sb, &other.x)); /* it goes on */
	job_free(&other);
}

static void destroy__works_in_every_state(void **state)
{
	struct job j = shell("sleep 300");
	sbx_autoerror e = SBX_ERROR_INIT;
	struct rt_sandbox *sb;
	struct live l;

	(void)state;
	rt_namespace.destroy(NULL);
	assert_int_equal(rt_namespace.create(&test_host, &sb, &e), 0);
	assert_int_equal(rt_namespace.signal(sb, RT_SIGNAL_ALL, SIGKILL), -ESRCH);
	rt_namespace.destroy(sb);
	job_start(&j, &l);
	job_free(&l);
	assert_int_equal(waitpid(-1, NULL, __WALL | WNOHANG), -1);
	assert_int_equal(errno, ECHILD);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void allowlist__is_refused(void **state)
{
	char name[] = "true";
	char *argv[] = { name, NULL };
	struct rt_plan p = {
		.argv = argv, .cwd = "/workspace", .network = RT_NET_ALLOWLIST, .workspace_fd = -1
	};
	sbx_autoerror e = SBX_ERROR_INIT;
	struct rt_sandbox *sb;

	(void)state;
	assert_int_equal(rt_namespace.create(&test_host, &sb, &e), 0);
	assert_int_equal(rt_namespace.prepare(sb, &p, &e), -SBX_E_POLICY_UNSUPPORTED);
	rt_namespace.destroy(sb);
}

static int find_groups(void **state)
{
	struct rt_preflight p;

	(void)state;
	rt_namespace.preflight(&test_host, &p);
	if (p.n_reasons)
		(void)fprintf(stderr, "cannot run here: %s\n", p.reasons[0]);
	have_groups = p.host_json && strstr(p.host_json, "\"limits\":\"cgroup\"");
	free(p.host_json);
	return p.n_reasons ? -1 : 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory__kill_of_a_child_is_seen),
		cmocka_unit_test(memory__counts_files_in_tmp),
		cmocka_unit_test(processes__are_counted_without_init),
		cmocka_unit_test(fork_bomb__ends_with_the_sandbox),
		cmocka_unit_test(orphans__are_reaped),
		cmocka_unit_test(processor__time_is_counted_and_shared),
		cmocka_unit_test(open_files__are_limited),
		cmocka_unit_test(usage__grows_while_the_command_works),
		cmocka_unit_test(workspace__has_a_size_and_a_number_of_files),
		cmocka_unit_test(files__that_do_not_fit_are_refused),
		cmocka_unit_test(files__outside_the_workspace_are_refused),
		cmocka_unit_test(limits__are_the_plans_whatever_was_expected),
		cmocka_unit_test(limits__that_nothing_fits_into_do_no_harm_ahead),
		cmocka_unit_test(signal__reaches_the_commands_group),
		cmocka_unit_test(signal__that_ends_it_is_ours),
		cmocka_unit_test(kill__takes_what_hides_from_signals),
		cmocka_unit_test(kill_minus_one__hurts_only_its_own),
		cmocka_unit_test(destroy__works_in_every_state),
		cmocka_unit_test(allowlist__is_refused),
	};

	return cmocka_run_group_tests(tests, find_groups, NULL);
}
