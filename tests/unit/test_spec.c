/* SPDX-License-Identifier: Apache-2.0 */
/* mountspec: what a run document may say, and what is made of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "spec_test.h"

/* Documents that run, and a member of the spec that is made (as ms_run_json shows it). */
static const struct {
	const char *text;
	const char *member;
} good[] = {
	{ "{" CMD "}", "\"timeout_sec\":300" },
	{ "{" CMD "}", "\"spec_version\":\"1.0\"" },
	{ "{" CMD "}", "\"trust_level\":\"standard\"" },
	{ "{" CMD "}", "\"lifetime\":\"detached\"" },
	{ "{" CMD "}", "\"base_image\":\"host\"" },
	{ "\xef\xbb\xbf{" CMD "}\n", "\"command\":[\"true\"]" },
	{ WITH("\"session_id\":\"s1\""), "\"session_id\":\"s1\"" },
	{ WITH("\"session_id\":\" \",\"base_image\":\"i\""), "\"base_image\":\"i\"" },
	{ WITH("\"session_id\":\"s\",\"base_image\":\"\""), "\"session_id\":\"s\"" },
	{ WITH("\"spec_version\":\"\""), "\"spec_version\":\"1.0\"" },
	{ WITH("\"spec_version\":\"1.1\""), "\"spec_version\":\"1.1\"" },
	{ WITH("\"timeout_sec\":null"), "\"timeout_sec\":300" },
	{ WITH("\"timeout_sec\":1"), "\"timeout_sec\":1" },
	{ WITH("\"timeout_sec\":3600"), "\"timeout_sec\":3600" },
	{ WITH("\"timeout_sec\":1e3"), "\"timeout_sec\":1000" },
	{ WITH("\"timeout_sec\":60.0"), "\"timeout_sec\":60," },
	{ WITH("\"startup_timeout_sec\":600"), "\"startup_timeout_sec\":600" },
	{ WITH("\"resources\":{\"cpu\":0.25}"), "\"resources\":{\"cpu\":0.25}" },
	{ WITH("\"resources\":{\"cpu\":2,\"memory_mb\":64,\"pids\":1}"),
	  "\"resources\":{\"cpu\":2.0,\"memory_mb\":64,\"pids\":1}" },
	{ WITH("\"resources\":{\"cpu\":null},\"env\":null"),
	  "\"timeout_sec\":300,\"interactive\"" },
	{ WITH("\"stdin_max_bytes\":9223372036854775807"),
	  "\"stdin_max_bytes\":9223372036854775807" },
	{ WITH("\"stdin_bps\":0,\"interactive\":true"), "\"interactive\":true,\"stdin_bps\":0" },
	{ WITH("\"stdin_b64\":\"\""), "\"stdin_b64\":\"\"" },
	{ WITH("\"stdin_b64\":\"QQ\""), "\"stdin_b64\":\"QQ==\"" },
	{ WITH("\"network_policy\":\"allowlist\",\"network_allowlist\":[\"*.a.org\"]"),
	  "\"network_policy\":\"allowlist\",\"network_allowlist\":[\"*.a.org\"]" },
	/* Which words there are is for the policy to say. */
	{ WITH("\"network_policy\":\" Allow_ALL\""), "\"network_policy\":\" Allow_ALL\"" },
	{ WITH("\"runtime\":\"vz_macos\""), "\"runtime\":\"vz_macos\"" },
	{ WITH("\"cwd\":\"a/b\""), "\"cwd\":\"a/b\"" },
	{ WITH("\"cwd\":\"/tmp/..x\""), "\"cwd\":\"/tmp/..x\"" },
	{ WITH("\"capture_patterns\":[\"**/*.txt\",\"./d\",\"n\\\\*\",\"a..b\"]"),
	  "\"capture_patterns\":[\"**/*.txt\",\"./d\",\"n\\\\*\",\"a..b\"]" },
	{ WITH("\"env\":{\"ML\":\"l1\\nl2\\n\",\"EQ\":\"a=b==c\",\"EMPTY\":\"\",\"SP\":\"  x \"}"),
	  "\"env\":{\"ML\":\"l1\\nl2\\n\",\"EQ\":\"a=b==c\",\"EMPTY\":\"\",\"SP\":\"  x \"}" },
	{ WITH("\"labels\":{\"ci\":\"17\"},\"name\":\"build 17\""),
	  "\"name\":\"build 17\",\"labels\":{\"ci\":\"17\"}" },
	{ WITH("\"idempotency_key\":\"k\""), "\"idempotency_key\":\"k\"" },
	{ WITH("\"lifetime\":\"handle\""), "\"lifetime\":\"handle\"" },
	{ FILE1("\"-rf\"", "\"\""), "{\"path\":\"-rf\",\"content_b64\":\"\"}" },
	{ FILE1("\"new\\nline\"", "\"QQ\""), "{\"path\":\"new\\nline\",\"content_b64\":\"QQ==\"}" },
	{ FILE1("\"" X16("0123456789abcde") "fedcba987654321\"", "\"\""), "fedcba987654321\"" },
	{ WITH("\"files\":[{\"path\":\"caf\xc3\xa9\",\"content_b64\":\"\"},{\"path\":"
	       "\"cafe\xcc\x81\",\"content_b64\":\"\"}]"),
	  "\"caf\xc3\xa9\"" },
	{ FILE_B("a b"), "\"a b\"" },
	{ FILE_B("b/" X16("n/") X16("n/") "x"), "\"a\"" },
};

static void run__accepts_and_reads_back(void **state)
{
	(void)state;
	for (size_t i = 0; i < SBX_COUNT(good); i++) {
		sbx_autoerror e = SBX_ERROR_INIT;
		ms_autorun struct ms_run_spec *s = NULL;
		sbx_autofree char *text = NULL;

		if (ms_run_parse(good[i].text, strlen(good[i].text), &mount, &s, &e) < 0)
			fail_msg("row %zu: %s", i, e.message);
		text = ms_run_json(s);
		if (!text || !strstr(text, good[i].member))
			fail_msg("row %zu: %s", i, text);
		assert_round_trip(s);
	}
}

static void run__all_members(void **state)
{
	static const char text[] =
		"{\"spec_version\":\"1.1\",\"runtime\":\"docker\",\"base_image\":\"i\","
		"\"command\":[\"a\",\"\",\"\\u00e9\"],\"env\":{\"A\":\"1\",\"B\":\"\"},\"cwd\":"
		"\"d\","
		"\"startup_timeout_sec\":7,\"timeout_sec\":8,\"resources\":{\"cpu\":1.5,"
		"\"memory_mb\":128,\"pids\":9},\"network_policy\":\"allowlist\","
		"\"network_allowlist\":[\"h\"],\"files\":[{\"path\":\"f\",\"content_b64\":\"AAE=\"}"
		"],"
		"\"capture_patterns\":[\"*\"],\"interactive\":true,\"stdin_max_bytes\":10,"
		"\"stdin_max_frame_bytes\":11,\"stdin_bps\":12,\"stdin_idle_timeout_sec\":13,"
		"\"stdin_b64\":\"AP8=\",\"resume_from_seq\":14,\"trust_level\":\"untrusted\","
		"\"persona_id\":\"p\",\"workspace_id\":\"w\",\"workspace_group_id\":\"g\","
		"\"scope_snapshot_id\":\"c\",\"name\":\"n\",\"labels\":{\"k\":\"v\"},"
		"\"idempotency_key\":\"x\",\"lifetime\":\"handle\"}";
	ms_autorun struct ms_run_spec *s = NULL;
	sbx_autofree char *json = NULL;

	(void)state;
	assert_int_equal(ms_run_parse(text, strlen(text), &mount, &s, NULL), 0);
	assert_int_equal(s->n_command, 3);
	assert_string_equal(s->command[2], "\xc3\xa9");
	assert_null(s->command[3]);
	assert_int_equal(s->n_env, 2);
	assert_string_equal(s->env[1].key, "B");
	assert_string_equal(s->env[1].value, "");
	assert_int_equal(s->startup_timeout_sec, 7);
	assert_true(s->cpu > 1.49 && s->cpu < 1.51);
	assert_int_equal(s->memory_mb, 128);
	assert_int_equal(s->pids, 9);
	assert_int_equal(s->files[0].len, 2);
	assert_memory_equal(s->files[0].data, "\x00\x01", 2);
	assert_int_equal(s->stdin_len, 2);
	assert_memory_equal(s->stdin_data, "\x00\xff", 2);
	assert_int_equal(s->stdin_idle_timeout_sec, 13);
	assert_int_equal(s->resume_from_seq, 14);
	assert_string_equal(s->workspace_group_id, "g");
	assert_string_equal(s->labels[0].value, "v");
	/* Table order, so the same text with base64 padded. */
	json = ms_run_json(s);
	assert_string_equal(json,
			    "{\"spec_version\":\"1.1\",\"runtime\":\"docker\",\"base_image\":"
			    "\"i\",\"command\":[\"a\",\"\",\"\xc3\xa9\"],\"env\":{\"A\":\"1\","
			    "\"B\":\"\"},\"cwd\":\"d\",\"startup_timeout_sec\":7,"
			    "\"timeout_sec\":8,\"resources\":{\"cpu\":1.5,\"memory_mb\":128,"
			    "\"pids\":9},\"network_policy\":\"allowlist\",\"network_allowlist\":"
			    "[\"h\"],\"files\":[{\"path\":\"f\",\"content_b64\":\"AAE=\"}],"
			    "\"capture_patterns\":[\"*\"],\"interactive\":true,"
			    "\"stdin_max_bytes\":10,\"stdin_max_frame_bytes\":11,\"stdin_bps\":12,"
			    "\"stdin_idle_timeout_sec\":13,\"stdin_b64\":\"AP8=\","
			    "\"resume_from_seq\":14,\"trust_level\":\"untrusted\",\"persona_id\":"
			    "\"p\",\"workspace_id\":\"w\",\"workspace_group_id\":\"g\","
			    "\"scope_snapshot_id\":\"c\",\"name\":\"n\",\"labels\":{\"k\":\"v\"},"
			    "\"idempotency_key\":\"x\",\"lifetime\":\"handle\"}");
	/* Every field of the table but session_id is in the document. */
	for (size_t f = 1; f < MS_F__COUNT; f++)
		assert_int_equal(s->present >> f & 1, f != MS_F_SESSION_ID);
	assert_round_trip(s);
}

static void run__absent_members(void **state)
{
	static const char text[] = "{\"command\":[\"x\"],\"session_id\":\"s\",\"env\":null}";
	ms_autorun struct ms_run_spec *s = NULL;

	(void)state;
	assert_int_equal(ms_run_parse(text, strlen(text), &mount, &s, NULL), 0);
	assert_int_equal(s->present, UINT64_C(1) << MS_F_COMMAND | UINT64_C(1) << MS_F_SESSION_ID |
					     UINT64_C(1) << MS_F_ENV);
	assert_int_equal(s->startup_timeout_sec, -1);
	assert_int_equal(s->memory_mb, -1);
	assert_int_equal(s->stdin_bps, -1);
	assert_true(s->cpu < 0);
	assert_null(s->base_image);
	assert_null(s->runtime);
	assert_null(s->network_policy);
	assert_null(s->cwd);
	assert_null(s->stdin_data);
	assert_int_equal(s->n_env, 0);
	assert_false(s->interactive);
	assert_string_equal(s->trust_level, "standard");
	assert_string_equal(s->lifetime, "detached");
}

static void api__ignores_unknown_and_has_no_default_image(void **state)
{
	static const char unknown[] =
		"{\"command\":[\"x\"],\"base_image\":\"i\",\"port\":1,\"resources\":{\"gpu\":1},"
		"\"files\":[{\"path\":\"a\",\"content_b64\":\"\",\"mode\":1}]}";
	static const char none[] = "{\"command\":[\"x\"],\"base_image\":\" \"}";
	ms_autorun struct ms_run_spec *s = NULL, *t = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;

	(void)state;
	assert_int_equal(ms_run_parse(unknown, strlen(unknown), &api, &s, &e), 0);
	assert_int_equal(s->n_files, 1);
	assert_int_equal(ms_run_parse(none, strlen(none), &api, &t, &e), -SBX_E_INVALID_SPEC);
	assert_non_null(strstr(e.message, "base_image: is missing, and so is session_id"));
}

static void version__is_the_hosts_choice(void **state)
{
	static const char with[] = "{\"command\":[\"x\"],\"spec_version\":\"1.1\"}";
	static const char empty[] = "{\"command\":[\"x\"],\"spec_version\":\"\"}";
	struct ms_options opts = { .versions = "1.0, 3.x", .default_image = "host" };
	ms_autorun struct ms_run_spec *s = NULL, *t = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;

	(void)state;
	assert_int_equal(ms_run_parse(with, strlen(with), &opts, &s, &e),
			 -SBX_E_INVALID_SPEC_VERSION);
	assert_string_equal(e.details,
			    "{\"field\":\"spec_version\",\"supported\":[\"1.0\",\"3.x\"],"
			    "\"provided\":\"1.1\"}");
	opts.versions = "9";
	assert_int_equal(ms_run_parse(empty, strlen(empty), &opts, &t, &e), 0);
	assert_string_equal(t->spec_version, "1.0");
}

static char *canonical_of(const char *text)
{
	ms_autorun struct ms_run_spec *s = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;

	if (ms_run_parse(text, strlen(text), &mount, &s, &e) < 0)
		fail_msg("%s: %s", text, e.message);
	return ms_run_canonical(s);
}

static void canonical__equal_and_different(void **state)
{
	static const char base[] =
		"{\"command\":[\"a\",\"\xc3\xa9\"],\"env\":{\"A\":\"1\",\"B\":\"2\"},"
		"\"resources\":{\"cpu\":2}}";
	static const struct {
		const char *text;
		bool equal;
	} rows[] = {
		{ "{\"resources\":{\"cpu\":2},\"env\":{\"B\":\"2\",\"A\":\"1\"},"
		  "\"command\":[\"a\",\"\\u00e9\"]}",
		  true },
		{ " {\n\"command\" : [ \"a\",\"\xc3\xa9\" ] , \"env\":{\"A\":\"1\",\"B\":\"2\"},"
		  "\"resources\":{\"cpu\":2e0}}",
		  true },
		{ "{\"command\":[\"a\",\"\xc3\xa9\"],\"env\":{\"A\":\"1\",\"B\":\"2\"},"
		  "\"resources\":{\"cpu\":2.0,\"memory_mb\":null},\"cwd\":null,\"timeout_sec\":"
		  "null}",
		  true },
		{ "{\"command\":[\"a\",\"\xc3\xa9\"],\"env\":{\"A\":\"1\",\"B\":\"2\"},"
		  "\"resources\":"
		  "{\"cpu\":2},\"timeout_sec\":300,\"trust_level\":\"standard\",\"interactive\":"
		  "false,"
		  "\"base_image\":\"host\",\"spec_version\":\"1.0\",\"lifetime\":\"detached\"}",
		  true },
		{ "{\"command\":[\"a\",\"\xc3\xa9\"],\"env\":{\"A\":\"1\",\"B\":\"2\"},"
		  "\"resources\":{\"cpu\":2},\"idempotency_key\":\"k1\"}",
		  true },
		{ "{\"command\":[\"\xc3\xa9\",\"a\"],\"env\":{\"A\":\"1\",\"B\":\"2\"},"
		  "\"resources\":{\"cpu\":2}}",
		  false },
		{ "{\"command\":[\"a\",\"\xc3\xa9\"],\"env\":{\"A\":\"1\",\"B\":\"3\"},"
		  "\"resources\":{\"cpu\":2}}",
		  false },
		{ "{\"command\":[\"a\",\"\xc3\xa9\"],\"env\":{\"A\":\"1\",\"B\":\"2\"},"
		  "\"resources\":{\"cpu\":2.5}}",
		  false },
		{ "{\"command\":[\"a\",\"\xc3\xa9\"],\"env\":{\"A\":\"1\",\"B\":\"2\"},"
		  "\"resources\":{\"cpu\":2},\"timeout_sec\":301}",
		  false },
	};
	sbx_autofree char *want = canonical_of(base);

	(void)state;
	assert_string_equal(want,
			    "{\"base_image\":\"host\",\"command\":[\"a\",\"\\u00e9\"],\"env\":"
			    "{\"A\":\"1\",\"B\":\"2\"},\"interactive\":false,\"lifetime\":"
			    "\"detached\",\"resources\":{\"cpu\":2.0},\"spec_version\":\"1.0\","
			    "\"timeout_sec\":300,\"trust_level\":\"standard\"}");
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		sbx_autofree char *got = canonical_of(rows[i].text);

		if ((strcmp(got, want) == 0) != rows[i].equal)
			fail_msg("row %zu: %s", i, got);
	}
}

static void stored__is_not_judged_again(void **state)
{
	static const char text[] =
		"{\"session_id\":\"s\",\"base_image\":\"i\",\"timeout_sec\":99999,\"runtime\":"
		"\"new\","
		"\"spec_version\":\"7\",\"from_the_future\":1,\"files\":[{\"path\":\"x/\","
		"\"content_b64\":\"\"}],\"resources\":{\"cpu\":0.1}}";
	static const char *const garbage[] = { "{\"files\":[1]}", "{\"command\":1}", "{", "",
					       "{\"stdin_b64\":\"?\"}" };
	ms_autorun struct ms_run_spec *s = NULL;
	struct ms_run_spec *t;

	(void)state;
	assert_int_equal(ms_run_parse(text, strlen(text), &stored, &s, NULL), 0);
	assert_int_equal(s->timeout_sec, 99999);
	assert_string_equal(s->base_image, "i");
	assert_string_equal(s->session_id, "s");
	assert_int_equal(s->n_command, 0);
	assert_null(s->trust_level);
	assert_round_trip(s);
	for (size_t i = 0; i < SBX_COUNT(garbage); i++)
		assert_int_equal(ms_run_parse(garbage[i], strlen(garbage[i]), &stored, &t, NULL),
				 -SBX_E_INVALID_SPEC);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(run__accepts_and_reads_back),
		cmocka_unit_test(run__all_members),
		cmocka_unit_test(run__absent_members),
		cmocka_unit_test(api__ignores_unknown_and_has_no_default_image),
		cmocka_unit_test(version__is_the_hosts_choice),
		cmocka_unit_test(canonical__equal_and_different),
		cmocka_unit_test(stored__is_not_judged_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
