/* SPDX-License-Identifier: Apache-2.0 */
/* The table of reason codes against the contract, and the guess for rows without one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/auto.h"
#include "base/json.h"
#include "orchestrator/taxonomy.h"

/* The contract's table, written down once more on purpose. */
static const struct orch_reason expected[] = {
	{ "queued", "lifecycle", "info", false, false, "none", NULL },
	{ "starting", "lifecycle", "info", false, false, "none", NULL },
	{ "running", "lifecycle", "info", false, false, "none", NULL },
	{ "completed", "success", "info", true, false, "none", NULL },
	{ "limits_applied", "limits", "warning", true, false, "review_limits", NULL },
	{ "nonzero_exit", "execution", "error", true, true, "review_exit_code", NULL },
	{ "policy_failed", "policy", "error", true, false, "review_policy", NULL },
	{ "runtime_unavailable", "runtime", "error", true, true, "check_runtime_readiness", NULL },
	{ "startup_timeout", "timeout", "error", true, true, "check_runtime_readiness", NULL },
	{ "execution_timeout", "timeout", "error", true, true, "retry_later", NULL },
	{ "canceled_by_user", "cancellation", "warning", true, false, "none", NULL },
	{ "killed", "cancellation", "error", true, true, "inspect_logs", NULL },
	{ "queue_ttl_expired", "lifecycle", "warning", true, true, "retry_later", NULL },
	{ "runtime_error", "execution", "error", true, true, "inspect_logs", NULL },
	{ "unknown", "unknown", "warning", false, false, "unknown", NULL },
	{ "claim_lease_expired", "runtime", "error", true, true, "inspect_logs", NULL },
	{ "runner_lost", "runtime", "error", true, true, "inspect_logs", NULL },
};

static void table__is_the_contract_in_order(void **state)
{
	(void)state;
	for (size_t i = 0; i < SBX_COUNT(expected); i++) {
		const struct orch_reason *r = orch_reason_at(i);

		assert_non_null(r);
		assert_string_equal(r->code, expected[i].code);
		assert_string_equal(r->category, expected[i].category);
		assert_string_equal(r->severity, expected[i].severity);
		assert_int_equal(r->terminal, expected[i].terminal);
		assert_int_equal(r->retryable, expected[i].retryable);
		assert_string_equal(r->operator_action, expected[i].operator_action);
	}
	assert_null(orch_reason_at(SBX_COUNT(expected)));
}

static void table__codes_are_distinct_and_found(void **state)
{
	(void)state;
	for (size_t i = 0; orch_reason_at(i); i++)
		assert_ptr_equal(orch_reason_find(orch_reason_at(i)->code), orch_reason_at(i));
}

static void table__every_code_has_a_sentence(void **state)
{
	(void)state;
	for (size_t i = 0; orch_reason_at(i); i++) {
		const char *doc = orch_reason_at(i)->doc;

		assert_true(strlen(doc) > 10);
		assert_int_equal(doc[strlen(doc) - 1], '.');
	}
}

static void find__anything_else_is_unknown(void **state)
{
	static const char *const others[] = { NULL, "", "Completed", "no_such_code" };

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(others); i++)
		assert_string_equal(orch_reason_find(others[i])->code, "unknown");
}

static void json__has_the_seven_members(void **state)
{
	(void)state;
	for (size_t i = 0; orch_reason_at(i); i++) {
		const struct orch_reason *r = orch_reason_at(i);
		sbx_autobuf out = SBX_BUF_INIT(4096);
		sbx_autojson *o = NULL;
		char key[128];

		orch_reason_json(r, &out);
		o = json_tokener_parse(out.data);
		assert_int_equal(json_object_object_length(o), 7);
#define TEXT(name) json_object_get_string(json_object_object_get(o, name))
#define BOOL(name) json_object_get_boolean(json_object_object_get(o, name))
		assert_string_equal(TEXT("code"), r->code);
		assert_string_equal(TEXT("category"), r->category);
		assert_string_equal(TEXT("severity"), r->severity);
		assert_int_equal(BOOL("terminal"), r->terminal);
		assert_int_equal(BOOL("retryable"), r->retryable);
		assert_string_equal(TEXT("operator_action"), r->operator_action);
		(void)snprintf(key, sizeof(key), "sandbox.status.%s", r->code);
		assert_string_equal(TEXT("user_message_key"), key);
	}
}

/* ---- the guess ------------------------------------------------------------------------------- */

enum { NO_EXIT = -1000 };

struct guess {
	enum store_phase phase;
	const char *message;
	int exit_code; /* or NO_EXIT */
	const char *usage, *code;
};

static void check(const struct guess *rows, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const struct guess *g = &rows[i];
		const char *code =
			orch_reason_derive(g->phase, g->message, g->exit_code != NO_EXIT,
					   g->exit_code != NO_EXIT ? g->exit_code : 0, g->usage);

		if (strcmp(code, g->code) != 0)
			fail_msg("phase %d \"%s\" exit %d %s: wanted %s, got %s", (int)g->phase,
				 g->message ? g->message : "", g->exit_code,
				 g->usage ? g->usage : "", g->code, code);
		assert_string_equal(orch_reason_find(code)->code, code);
	}
}
#define CHECK(rows) check(rows, SBX_COUNT(rows))

static void derive__live_phases_are_their_own_word(void **state)
{
	static const struct guess rows[] = {
		{ STORE_QUEUED, NULL, NO_EXIT, NULL, "queued" },
		{ STORE_STARTING, "policy_failed", NO_EXIT, NULL, "starting" },
		{ STORE_RUNNING, NULL, 1, "{\"log_truncated\":1}", "running" },
	};

	(void)state;
	CHECK(rows);
}

static void derive__completed_does_not_look_at_the_exit_code(void **state)
{
	static const struct guess rows[] = {
		{ STORE_COMPLETED, NULL, 0, NULL, "completed" },
		{ STORE_COMPLETED, "timeout", 7, "{}", "completed" },
	};

	(void)state;
	CHECK(rows);
}

static void derive__every_limit_counter_counts(void **state)
{
	static const char *const counters[] = {
		"stdout_truncated",
		"stderr_truncated",
		"log_truncated",
		"guest_output_limit_exceeded",
		"artifact_files_skipped",
		"artifact_skip_file_limit",
		"artifact_skip_total_limit",
		"artifact_skip_symlink",
		"artifact_skip_invalid",
		"artifact_skip_read_error",
	};
	char usage[128];

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(counters); i++) {
		struct guess rows[] = {
			{ STORE_COMPLETED, NULL, 0, usage, "limits_applied" },
			{ STORE_FAILED, "policy_failed", 1, usage, "limits_applied" },
			{ STORE_TIMED_OUT, "execution_timeout", NO_EXIT, usage, "limits_applied" },
			{ STORE_KILLED, "killed", NO_EXIT, usage, "killed" },
		};

		(void)snprintf(usage, sizeof(usage), "{\"log_bytes\":5,\"%s\":1}", counters[i]);
		CHECK(rows);
	}
}

static void derive__other_counters_and_no_numbers_do_not_count(void **state)
{
	static const struct guess rows[] = {
		{ STORE_COMPLETED, NULL, 0, "{\"log_bytes\":5}", "completed" },
		{ STORE_COMPLETED, NULL, 0, "{\"log_limit_bytes\":5}", "completed" },
		{ STORE_COMPLETED, NULL, 0, "{\"log_truncated\":0}", "completed" },
		{ STORE_COMPLETED, NULL, 0, "{\"log_truncated\":-1}", "completed" },
		{ STORE_COMPLETED, NULL, 0, "{\"log_truncated\":\"1\"}", "completed" },
		{ STORE_COMPLETED, NULL, 0, "{\"log_truncated\":true}", "completed" },
		{ STORE_COMPLETED, NULL, 0, "{\"log_truncated\":0.5}", "limits_applied" },
		{ STORE_COMPLETED, NULL, 0, "[1]", "completed" },
		{ STORE_COMPLETED, NULL, 0, "not json", "completed" },
	};

	(void)state;
	CHECK(rows);
}

static void derive__timed_out(void **state)
{
	static const struct guess rows[] = {
		{ STORE_TIMED_OUT, "startup_timeout", NO_EXIT, NULL, "startup_timeout" },
		{ STORE_TIMED_OUT, "  Startup took too long", NO_EXIT, NULL, "startup_timeout" },
		{ STORE_TIMED_OUT, "execution_timeout", NO_EXIT, NULL, "execution_timeout" },
		{ STORE_TIMED_OUT, NULL, NO_EXIT, NULL, "execution_timeout" },
	};

	(void)state;
	CHECK(rows);
}

static void derive__killed(void **state)
{
	static const struct guess rows[] = {
		{ STORE_KILLED, "canceled_by_user", NO_EXIT, NULL, "canceled_by_user" },
		{ STORE_KILLED, "CANCELLED", NO_EXIT, NULL, "canceled_by_user" },
		{ STORE_KILLED, "oom", 137, NULL, "killed" },
		{ STORE_KILLED, NULL, NO_EXIT, NULL, "killed" },
	};

	(void)state;
	CHECK(rows);
}

static void derive__failed_by_policy(void **state)
{
	static const struct guess rows[] = {
		{ STORE_FAILED, "lima_policy_failed", NO_EXIT, NULL, "policy_failed" },
		{ STORE_FAILED, "vz_linux_policy_failed", NO_EXIT, NULL, "policy_failed" },
		{ STORE_FAILED, "vz_macos_policy_failed", NO_EXIT, NULL, "policy_failed" },
		{ STORE_FAILED, "seatbelt_policy_failed", NO_EXIT, NULL, "policy_failed" },
		{ STORE_FAILED, "worktree_policy_failed", NO_EXIT, NULL, "policy_failed" },
		{ STORE_FAILED, "any_policy_failed at once", 3, NULL, "policy_failed" },
		{ STORE_FAILED, "the network Policy has FAILED", 3, NULL, "policy_failed" },
	};

	(void)state;
	CHECK(rows);
}

static void derive__failed_by_runtime(void **state)
{
	static const struct guess rows[] = {
		{ STORE_FAILED, "runtime_unavailable", NO_EXIT, NULL, "runtime_unavailable" },
		{ STORE_FAILED, "runtime unavailable", NO_EXIT, NULL, "runtime_unavailable" },
		{ STORE_FAILED, " docker_unavailable\n", NO_EXIT, NULL, "runtime_unavailable" },
		{ STORE_FAILED, "firecracker_unavailable", NO_EXIT, NULL, "runtime_unavailable" },
		{ STORE_FAILED, "limactl_missing", NO_EXIT, NULL, "runtime_unavailable" },
		{ STORE_FAILED, "vz_linux_unavailable", NO_EXIT, NULL, "runtime_unavailable" },
		{ STORE_FAILED, "vz_macos_unavailable", NO_EXIT, NULL, "runtime_unavailable" },
		{ STORE_FAILED, "seatbelt_unavailable", NO_EXIT, NULL, "runtime_unavailable" },
		{ STORE_FAILED, "worktree_unavailable", NO_EXIT, NULL, "runtime_unavailable" },
		{ STORE_FAILED, "runtime_provisioning_step", 1, NULL, "runtime_unavailable" },
		{ STORE_FAILED, "x: runtime_unavailable", 1, NULL, "runtime_unavailable" },
		{ STORE_FAILED, "Runtime binary not found", 1, NULL, "runtime_unavailable" },
		{ STORE_FAILED, "cannot provision: kernel missing", 1, NULL,
		  "runtime_unavailable" },
	};

	(void)state;
	CHECK(rows);
}

static void derive__missing_alone_is_not_the_runtime(void **state)
{
	static const struct guess rows[] = {
		{ STORE_FAILED, "command not found in PATH: python", NO_EXIT, NULL,
		  "runtime_error" },
		{ STORE_FAILED, "artifact manifest missing", NO_EXIT, NULL, "runtime_error" },
		{ STORE_FAILED, "2026-01-31 runtime error in init", NO_EXIT, NULL,
		  "runtime_error" },
		{ STORE_FAILED, "my docker_unavailable note", NO_EXIT, NULL, "runtime_error" },
	};

	(void)state;
	CHECK(rows);
}

static void derive__failed_by_time_and_queue(void **state)
{
	static const struct guess rows[] = {
		{ STORE_FAILED, "queue_ttl_expired", NO_EXIT, NULL, "queue_ttl_expired" },
		{ STORE_FAILED, "QUEUE_TTL_EXPIRED ", NO_EXIT, NULL, "queue_ttl_expired" },
		{ STORE_FAILED, "queue_ttl_expired early", NO_EXIT, NULL, "runtime_error" },
		{ STORE_FAILED, "x startup_timeout", 1, NULL, "startup_timeout" },
		{ STORE_FAILED, "x execution_timeout", 1, NULL, "execution_timeout" },
		{ STORE_FAILED, "timeout", 1, NULL, "execution_timeout" },
		{ STORE_FAILED, "timeout of something", NO_EXIT, NULL, "runtime_error" },
	};

	(void)state;
	CHECK(rows);
}

static void derive__failed_by_exit_code(void **state)
{
	static const struct guess rows[] = {
		{ STORE_FAILED, "docker_failed", 2, NULL, "nonzero_exit" },
		{ STORE_FAILED, NULL, 255, NULL, "nonzero_exit" },
		{ STORE_FAILED, NULL, 0, NULL, "runtime_error" },
		{ STORE_FAILED, NULL, NO_EXIT, NULL, "runtime_error" },
	};

	(void)state;
	CHECK(rows);
}

static void derive__order_of_the_rules(void **state)
{
	static const struct guess rows[] = {
		{ STORE_FAILED, "policy failed: runtime_unavailable", 1, NULL, "policy_failed" },
		{ STORE_FAILED, "runtime_unavailable startup_timeout", 1, NULL,
		  "runtime_unavailable" },
		{ STORE_FAILED, "startup_timeout execution_timeout", 1, NULL, "startup_timeout" },
	};

	(void)state;
	CHECK(rows);
}

static void derive__no_phase_is_unknown(void **state)
{
	static const struct guess rows[] = {
		{ 0, "completed", 0, NULL, "unknown" },
		{ STORE_PHASE__COUNT, NULL, NO_EXIT, NULL, "unknown" },
	};

	(void)state;
	CHECK(rows);
}

static void derive__a_huge_message_is_cut_off(void **state)
{
	static char message[100000];

	(void)state;
	memset(message, 'x', sizeof(message) - 1);
	memcpy(message + 50000, "policy failed", 13);
	assert_string_equal(orch_reason_derive(STORE_FAILED, message, false, 0, NULL),
			    "runtime_error");
	memset(message, ' ', sizeof(message) - 1);
	memcpy(message + 99000, "timeout", 7);
	assert_string_equal(orch_reason_derive(STORE_FAILED, message, false, 0, NULL),
			    "execution_timeout");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(table__is_the_contract_in_order),
		cmocka_unit_test(table__codes_are_distinct_and_found),
		cmocka_unit_test(table__every_code_has_a_sentence),
		cmocka_unit_test(find__anything_else_is_unknown),
		cmocka_unit_test(json__has_the_seven_members),
		cmocka_unit_test(derive__live_phases_are_their_own_word),
		cmocka_unit_test(derive__completed_does_not_look_at_the_exit_code),
		cmocka_unit_test(derive__every_limit_counter_counts),
		cmocka_unit_test(derive__other_counters_and_no_numbers_do_not_count),
		cmocka_unit_test(derive__timed_out),
		cmocka_unit_test(derive__killed),
		cmocka_unit_test(derive__failed_by_policy),
		cmocka_unit_test(derive__failed_by_runtime),
		cmocka_unit_test(derive__missing_alone_is_not_the_runtime),
		cmocka_unit_test(derive__failed_by_time_and_queue),
		cmocka_unit_test(derive__failed_by_exit_code),
		cmocka_unit_test(derive__order_of_the_rules),
		cmocka_unit_test(derive__no_phase_is_unknown),
		cmocka_unit_test(derive__a_huge_message_is_cut_off),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
