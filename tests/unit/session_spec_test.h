/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of session documents share. */
#ifndef SBX_TESTS_UNIT_SESSION_SPEC_TEST_H
#define SBX_TESTS_UNIT_SESSION_SPEC_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "spec_test.h"

#define DEFAULTS                                                                                   \
	"\"timeout_sec\":300,\"network_policy\":\"deny_all\",\"trust_level\":\"standard\","        \
	"\"concurrent\":false"

static const char all_fields[] =
	"{\"spec_version\":\"1.1\",\"runtime\":\"docker\",\"base_image\":\"i\",\"cpu_limit\":1.5,"
	"\"memory_mb\":128,\"pids\":9,\"timeout_sec\":8,\"network_policy\":\"allowlist\","
	"\"env\":{\"A\":\"1\",\"B\":\"\"},\"labels\":{\"k\":\"v\"},\"trust_level\":\"untrusted\","
	"\"persona_id\":\"p\",\"workspace_id\":\"w\",\"workspace_group_id\":\"g\","
	"\"scope_snapshot_id\":\"c\",\"name\":\"n\",\"idempotency_key\":\"x\",\"concurrent\":true}";

static inline struct ms_run_spec *session_of(const char *text)
{
	struct ms_run_spec *s = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;

	if (ms_session_parse(text, strlen(text), &mount, &s, &e) < 0)
		fail_msg("%s: %s", text, e.message);
	return s;
}

/* What ms_session_json says, read back and said again. */
static inline void assert_session_round_trip(const struct ms_run_spec *s)
{
	sbx_autofree char *text = ms_session_json(s), *again = NULL, *canonical = NULL,
			  *same = NULL;
	ms_autorun struct ms_run_spec *back = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;

	assert_non_null(text);
	if (ms_session_parse(text, strlen(text), &stored, &back, &e) < 0)
		fail_msg("%s: %s", e.message, text);
	again = ms_session_json(back);
	assert_string_equal(text, again);
	canonical = ms_session_canonical(s);
	same = ms_session_canonical(back);
	assert_non_null(canonical);
	assert_string_equal(canonical, same);
	assert_int_equal(back->timeout_sec, s->timeout_sec);
	assert_int_equal(back->concurrent, s->concurrent);
}

#endif
