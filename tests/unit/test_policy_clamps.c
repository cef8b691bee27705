/* SPDX-License-Identifier: Apache-2.0 */
/* Policy: what an admitted run really gets. */
#include "tests/unit/policy_util.h"

/* ---- clamps ---------------------------------------------------------------------------------- */

struct want {
	double cpu;
	int64_t memory_mb, pids, nofile, workspace_cap_mb, timeout_sec;
};

static void clamped(const char *const *overrides, const char *trust, double cpu, int64_t memory,
		    int64_t pids, int64_t timeout, struct want want)
{
	struct trial t;

	begin(&t, overrides, EVERYTHING, NULL, trust, "deny_all");
	t.spec->cpu = cpu;
	t.spec->memory_mb = memory;
	t.spec->pids = pids;
	t.spec->timeout_sec = timeout;
	admitted(&t);
	assert_true(t.eff.cpu == want.cpu);
	assert_int_equal(t.eff.memory_mb, want.memory_mb);
	assert_int_equal(t.eff.pids, want.pids);
	assert_int_equal(t.eff.nofile, want.nofile);
	assert_int_equal(t.eff.workspace_cap_mb, want.workspace_cap_mb);
	assert_int_equal(t.eff.timeout_sec, want.timeout_sec);
	assert_true(t.spec->cpu == want.cpu);
	assert_int_equal(t.spec->memory_mb, want.memory_mb);
	assert_int_equal(t.spec->pids, want.pids);
	assert_int_equal(t.spec->timeout_sec, want.timeout_sec);
	end(&t);
}

static void clamp__untrusted_gets_the_tier(void **state)
{
	static const struct want all = { 1.0, 1024, 64, 256, 64, 60 };

	(void)state;
	clamped(NULL, "untrusted", -1, -1, -1, -1, all);
	clamped(NULL, "untrusted", 64, 999999, 100000, 3600, all);
	clamped(NULL, "untrusted", 1, 1024, 64, 60, all);
}

static void clamp__standard_gets_the_tier(void **state)
{
	static const struct want all = { 4.0, 8192, 256, 1024, 256, 300 };

	(void)state;
	clamped(NULL, "standard", -1, -1, -1, -1, all);
	clamped(NULL, NULL, 64, 999999, 100000, 3600, all);
}

static void clamp__trusted_is_held_by_the_general_limits(void **state)
{
	static const struct want all = { 4.0, 8192, 256, 1024, 256, 600 };

	(void)state;
	clamped(NULL, "trusted", 64, 999999, 100000, 3600, all);
	clamped(NULL, "trusted", -1, -1, -1, 600, all);
}

static void clamp__raised_general_limits_let_the_tiers_show(void **state)
{
	static const char *const overrides[] = {
		"max_cpu=64",		"max_mem_mb=1000000",	  "pids_limit=100000",
		"ulimit_nofile=100000", "workspace_cap_mb=10000", NULL,
	};

	(void)state;
	clamped(overrides, "trusted", -1, -1, -1, 3600,
		(struct want){ 8.0, 16384, 512, 4096, 512, 600 });
	clamped(overrides, "standard", -1, -1, -1, 3600,
		(struct want){ 4.0, 8192, 256, 1024, 256, 300 });
	clamped(overrides, "untrusted", -1, -1, -1, 3600,
		(struct want){ 1.0, 1024, 64, 256, 64, 60 });
}

static void clamp__lower_general_limits_win(void **state)
{
	static const char *const overrides[] = {
		"max_cpu=0.5",	    "max_mem_mb=128",	  "pids_limit=10",
		"ulimit_nofile=32", "workspace_cap_mb=8", NULL,
	};

	(void)state;
	clamped(overrides, "untrusted", -1, -1, -1, -1, (struct want){ 0.5, 128, 10, 32, 8, 60 });
	clamped(overrides, "trusted", 8, 4096, 500, 5, (struct want){ 0.5, 128, 10, 32, 8, 5 });
}

static void clamp__less_is_never_raised(void **state)
{
	(void)state;
	clamped(NULL, "standard", 0.25, 64, 1, 1, (struct want){ 0.25, 64, 1, 1024, 256, 1 });
}

static void clamp__zero_is_no_way_around_a_limit(void **state)
{
	(void)state;
	clamped(NULL, "untrusted", 0, 0, 0, 0, (struct want){ 1.0, 1024, 64, 256, 64, 60 });
}

static void clamp__time_without_a_wish_is_the_default(void **state)
{
	static const char *const overrides[] = { "default_exec_timeout_sec=45", NULL };

	(void)state;
	clamped(overrides, "standard", -1, -1, -1, -1,
		(struct want){ 4.0, 8192, 256, 1024, 256, 45 });
}

static void clamp__tiers_follow_their_settings(void **state)
{
	static const char *const overrides[] = {
		"tier_untrusted_max_cpu=0.5",
		"tier_untrusted_max_mem_mb=256",
		"tier_untrusted_timeout_sec=9",
		"tier_untrusted_pids_limit=7",
		"tier_untrusted_ulimit_nofile=99",
		"tier_untrusted_workspace_cap_mb=3",
		NULL,
	};

	(void)state;
	clamped(overrides, "untrusted", -1, -1, -1, -1, (struct want){ 0.5, 256, 7, 99, 3, 9 });
	clamped(overrides, "standard", -1, -1, -1, -1,
		(struct want){ 4.0, 8192, 256, 1024, 256, 300 });
}

static void clamp__startup_time_is_the_document_or_the_setting(void **state)
{
	struct trial t;

	(void)state;
	begin(&t, NULL, EVERYTHING, NULL, NULL, NULL);
	admitted(&t);
	assert_int_equal(t.eff.startup_timeout_sec, 20);
	assert_int_equal(t.spec->startup_timeout_sec, 20);
	end(&t);
	begin(&t, NULL, EVERYTHING, NULL, NULL, NULL);
	t.spec->startup_timeout_sec = 3;
	admitted(&t);
	assert_int_equal(t.eff.startup_timeout_sec, 3);
	end(&t);
}

static void strict__untrusted_always_needs_limits_for_the_tree(void **state)
{
	struct trial t;

	(void)state;
	begin(&t, NULL, "{" NAMESPACE "}", NULL, "untrusted", NULL);
	admitted(&t);
	assert_true(t.eff.strict_limits);
	end(&t);
}

static void strict__others_where_there_are_cgroups(void **state)
{
	static const char *const levels[] = { "trusted", "standard" };
	struct trial t;

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(levels); i++) {
		begin(&t, NULL, "{" NAMESPACE "}", NULL, levels[i], "deny_all");
		admitted(&t);
		assert_false(t.eff.strict_limits);
		end(&t);
		begin(&t, NULL, "{" WITH_CGROUP "}", NULL, levels[i], "deny_all");
		admitted(&t);
		assert_true(t.eff.strict_limits);
		end(&t);
	}
}

static void image__is_the_document_or_the_default(void **state)
{
	struct trial t;

	(void)state;
	begin(&t, NULL, EVERYTHING, NULL, NULL, NULL);
	admitted(&t);
	assert_string_equal(t.eff.base_image, "host");
	end(&t);
	begin(&t, NULL, EVERYTHING, NULL, NULL, NULL);
	t.spec->base_image = strdup("python:3.11-slim");
	admitted(&t);
	assert_string_equal(t.eff.base_image, "python:3.11-slim");
	end(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(clamp__untrusted_gets_the_tier),
		cmocka_unit_test(clamp__standard_gets_the_tier),
		cmocka_unit_test(clamp__trusted_is_held_by_the_general_limits),
		cmocka_unit_test(clamp__raised_general_limits_let_the_tiers_show),
		cmocka_unit_test(clamp__lower_general_limits_win),
		cmocka_unit_test(clamp__less_is_never_raised),
		cmocka_unit_test(clamp__zero_is_no_way_around_a_limit),
		cmocka_unit_test(clamp__time_without_a_wish_is_the_default),
		cmocka_unit_test(clamp__tiers_follow_their_settings),
		cmocka_unit_test(clamp__startup_time_is_the_document_or_the_setting),
		cmocka_unit_test(strict__untrusted_always_needs_limits_for_the_tree),
		cmocka_unit_test(strict__others_where_there_are_cgroups),
		cmocka_unit_test(image__is_the_document_or_the_default),
	};

	return cmocka_run_group_tests(tests, clean_environment, NULL);
}
