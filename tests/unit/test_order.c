/* SPDX-License-Identifier: Apache-2.0 */
/* What a door says to a runner, there and back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/auto.h"
#include "orchestrator/order.h"

#define ID "01a22a3c-9b5a-736c-b780-e23f207144cf"

static char user[] = "ann", door[] = "fs", version[] = "1.0", runtime[] = "namespace";
static char hash[] = "abc", trust[] = "standard", network[] = "deny_all";

static struct orch_order full(const char *spec)
{
	struct orch_order o = {
		.id = ID,
		.generation = 7,
		.spec = spec,
		.run = { .user = user,
			 .door = door,
			 .spec_version = version,
			 .runtime = runtime,
			 .policy_hash = hash,
			 .trust_level = trust,
			 .network_policy = network,
			 .started_us = 1234567 },
	};

	return o;
}

/* What arrives: the bytes of a packet and a NUL behind them. */
static bool pass(const struct orch_order *o, char msg[ORCH_ORDER_MAX + 1], struct orch_order *ret)
{
	sbx_autobuf b = SBX_BUF_INIT(ORCH_ORDER_MAX);

	orch_order_write(o, &b);
	assert_false(sbx_buf_failed(&b));
	memcpy(msg, b.data, b.len);
	msg[b.len] = '\0';
	return orch_order_read(msg, b.len, ret);
}

static void order__arrives_as_it_was_sent(void **state)
{
	struct orch_order o = full("{\"command\":[\"true\"]}"), got = { .id = "" };
	char msg[ORCH_ORDER_MAX + 1] = "";

	(void)state;
	assert_true(pass(&o, msg, &got));
	assert_string_equal(got.id, ID);
	assert_int_equal(got.generation, 7);
	assert_string_equal(got.spec, "{\"command\":[\"true\"]}");
	assert_string_equal(got.run.id, ID);
	assert_string_equal(got.run.user, "ann");
	assert_string_equal(got.run.door, "fs");
	assert_string_equal(got.run.spec_version, "1.0");
	assert_string_equal(got.run.runtime, "namespace");
	assert_string_equal(got.run.policy_hash, "abc");
	assert_string_equal(got.run.trust_level, "standard");
	assert_string_equal(got.run.network_policy, "deny_all");
	assert_int_equal(got.run.started_us, 1234567);
	assert_int_equal(got.run.generation, 7);
	assert_int_equal(got.run.phase, STORE_STARTING);
	assert_int_equal(got.run.cancel, STORE_CANCEL_NONE);
}

static void order__without_a_row_says_only_which(void **state)
{
	struct orch_order o = { .id = ID, .generation = 2 }, got = { .id = "" };
	char msg[ORCH_ORDER_MAX + 1] = "";

	(void)state;
	assert_true(pass(&o, msg, &got));
	assert_string_equal(got.id, ID);
	assert_int_equal(got.generation, 2);
	assert_null(got.spec);
	assert_null(got.run.id);
}

/* The runner reads the store then. */
static void order__leaves_out_what_is_too_long(void **state)
{
	char spec[ORCH_ORDER_MAX + 1] = "", msg[ORCH_ORDER_MAX + 1] = "";
	struct orch_order o = full(spec), got = { .id = "" };
	size_t longest = 0;

	(void)state;
	for (size_t n = ORCH_ORDER_MAX - 200; n <= ORCH_ORDER_MAX; n++) {
		memset(spec, 'x', n);
		spec[n] = '\0';
		assert_true(pass(&o, msg, &got));
		assert_string_equal(got.id, ID);
		if (got.spec) {
			assert_string_equal(got.spec, spec);
			longest = n;
		}
	}
	assert_in_range(longest, ORCH_ORDER_MAX - 200, ORCH_ORDER_MAX - 1);
}

static void order__needs_the_whole_row(void **state)
{
	struct orch_order o = full("{}"), got = { .id = "" };
	char msg[ORCH_ORDER_MAX + 1] = "";

	(void)state;
	o.run.policy_hash = NULL;
	assert_true(pass(&o, msg, &got));
	assert_null(got.spec);
}

static void order__that_is_none_is_refused(void **state)
{
	static const char *const bad[] = { "", "run", "run " ID, "run " ID " x 1",
					   "walk " ID " 1 1" };
	struct orch_order got = { .id = "" };

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(bad); i++) {
		char msg[64] = "";

		(void)snprintf(msg, sizeof(msg), "%s", bad[i]);
		assert_false(orch_order_read(msg, strlen(msg), &got));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(order__arrives_as_it_was_sent),
		cmocka_unit_test(order__without_a_row_says_only_which),
		cmocka_unit_test(order__leaves_out_what_is_too_long),
		cmocka_unit_test(order__needs_the_whole_row),
		cmocka_unit_test(order__that_is_none_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
