/* SPDX-License-Identifier: Apache-2.0 */
/* mountspec: what a session document may say, what is made of it, and what its runs take over. */
#include "session_spec_test.h"

/* ---- what it may say ------------------------------------------------------------------------- */

/* Documents, and a part of what ms_session_json makes of them. */
static const struct {
	const char *text;
	const char *part;
} good[] = {
	{ "", "{\"spec_version\":\"1.0\"," DEFAULTS "}" },
	{ "{}", "{\"spec_version\":\"1.0\"," DEFAULTS "}" },
	{ "\xef\xbb\xbf {}\n", "{\"spec_version\":\"1.0\"," DEFAULTS "}" },
	{ "{\"spec_version\":\"\"}", "{\"spec_version\":\"1.0\"," },
	{ "{\"spec_version\":\"1.1\"}", "{\"spec_version\":\"1.1\"," },
	{ "{\"runtime\":\"namespace\"}", "\"runtime\":\"namespace\"," },
	{ "{\"base_image\":\"python:3.11-slim\"}", "\"base_image\":\"python:3.11-slim\"," },
	{ "{\"base_image\":\" \\t\"}", "{\"spec_version\":\"1.0\"," DEFAULTS "}" },
	{ "{\"cpu_limit\":0.001}", "\"cpu_limit\":0.001," },
	{ "{\"cpu_limit\":2}", "\"cpu_limit\":2.0," },
	{ "{\"cpu_limit\":1024}", "\"cpu_limit\":1024.0," },
	{ "{\"memory_mb\":64}", "\"memory_mb\":64," },
	{ "{\"memory_mb\":16777216}", "\"memory_mb\":16777216," },
	{ "{\"memory_mb\":1e3}", "\"memory_mb\":1000," },
	{ "{\"pids\":1}", "\"pids\":1," },
	{ "{\"pids\":1000000}", "\"pids\":1000000," },
	{ "{\"timeout_sec\":1}", "\"timeout_sec\":1," },
	{ "{\"timeout_sec\":3600}", "\"timeout_sec\":3600," },
	{ "{\"timeout_sec\":300}", "\"timeout_sec\":300," },
	{ "{\"timeout_sec\":null}", "{\"spec_version\":\"1.0\",\"network_policy\":" },
	{ "{\"network_policy\":\"allowlist\"}", "\"network_policy\":\"allowlist\"" },
	{ "{\"network_policy\":null}", "\"network_policy\":\"deny_all\"" },
	/* Which words there are is for the policy to say. */
	{ "{\"network_policy\":\"other\"}", "\"network_policy\":\"other\"" },
	{ "{\"env\":{\"EQ\":\"a=b\",\"E\":\"\"}}", "\"env\":{\"EQ\":\"a=b\",\"E\":\"\"}" },
	{ "{\"env\":{}}", "{\"spec_version\":\"1.0\"," DEFAULTS "}" },
	{ "{\"labels\":{\"ci\":\"17\"}}", "\"labels\":{\"ci\":\"17\"}" },
	{ "{\"trust_level\":\"trusted\"}", "\"trust_level\":\"trusted\"" },
	{ "{\"trust_level\":null}", "\"trust_level\":\"standard\"" },
	{ "{\"persona_id\":\"\"}", "\"persona_id\":\"\"" },
	{ "{\"name\":\"my work\"}", "\"name\":\"my work\"" },
	{ "{\"name\":\" \"}", "\"trust_level\":\"standard\",\"concurrent\"" },
	{ "{\"idempotency_key\":\"k\"}", "\"idempotency_key\":\"k\"" },
	{ "{\"concurrent\":true}", "\"concurrent\":true}" },
	{ "{\"concurrent\":null}", "\"concurrent\":false}" },
};

static void session__accepts_and_reads_back(void **state)
{
	(void)state;
	for (size_t i = 0; i < SBX_COUNT(good); i++) {
		ms_autorun struct ms_run_spec *s = session_of(good[i].text);
		sbx_autofree char *text = ms_session_json(s);

		if (!text || !strstr(text, good[i].part))
			fail_msg("row %zu: %s", i, text);
		assert_session_round_trip(s);
	}
}

static void session__all_members(void **state)
{
	ms_autorun struct ms_run_spec *s = session_of(all_fields);
	sbx_autofree char *text = ms_session_json(s);

	(void)state;
	assert_string_equal(text, all_fields);
	assert_true(s->cpu > 1.49 && s->cpu < 1.51);
	assert_int_equal(s->memory_mb, 128);
	assert_int_equal(s->pids, 9);
	assert_int_equal(s->timeout_sec, 8);
	assert_int_equal(s->n_env, 2);
	assert_string_equal(s->labels[0].value, "v");
	assert_string_equal(s->idempotency_key, "x");
	assert_true(s->concurrent);
	for (size_t f = 1; f < MS_S__COUNT; f++)
		assert_int_equal(s->present >> f & 1, 1);
	assert_int_equal(s->null, 0);
	assert_session_round_trip(s);
}

static void session__members_of_runs_are_empty(void **state)
{
	ms_autorun struct ms_run_spec *s = session_of("{}");

	(void)state;
	assert_int_equal(s->present, 0);
	assert_null(s->session_id);
	assert_null(s->base_image);
	assert_null(s->command);
	assert_int_equal(s->n_command, 0);
	assert_null(s->cwd);
	assert_null(s->lifetime);
	assert_null(s->files);
	assert_null(s->stdin_data);
	assert_int_equal(s->startup_timeout_sec, -1);
	assert_int_equal(s->stdin_max_bytes, -1);
	assert_int_equal(s->resume_from_seq, -1);
	assert_int_equal(s->memory_mb, -1);
	assert_int_equal(s->pids, -1);
	assert_true(s->cpu < 0);
	assert_false(s->concurrent);
	assert_false(s->interactive);
}

/* Of each field: null is taken, means the default (but of timeout_sec), and is known as null. */
static void session__null_of_every_field(void **state)
{
	sbx_autofree char *defaults = NULL;
	ms_autorun struct ms_run_spec *none = session_of("{}");

	(void)state;
	defaults = ms_session_json(none);
	for (size_t f = 1; f < MS_S__COUNT; f++) {
		const char *name = ms_session_field_info((enum ms_session_field)f)->name;
		ms_autorun struct ms_run_spec *s = NULL;
		sbx_autofree char *text = NULL;
		char doc[128];

		(void)snprintf(doc, sizeof(doc), "{\"%s\":null}", name);
		s = session_of(doc);
		assert_int_equal(s->present, UINT64_C(1) << f);
		assert_int_equal(s->null, UINT64_C(1) << f);
		text = ms_session_json(s);
		if (f == MS_S_TIMEOUT)
			assert_int_equal(s->timeout_sec, -1);
		else
			assert_string_equal(text, defaults);
		assert_session_round_trip(s);
	}
}

/* ---- what it may not say --------------------------------------------------------------------- */

static const struct {
	const char *text;
	enum sbx_code code;
	const char *says;
} bad[] = {
	/* form */
	{ "[]", SBX_E_INVALID_SPEC, "the document: is not a JSON object" },
	{ " ", SBX_E_INVALID_SPEC, "the document: is empty" },
	{ "{} x", SBX_E_INVALID_SPEC, "has text after the object" },
	{ "{\"name\":\"a\",\"name\":\"a\"}", SBX_E_INVALID_SPEC, "name: is given twice" },
	{ "{\"name\":\"a\\u0000\"}", SBX_E_INVALID_SPEC, "name: contains a NUL byte" },

	/* names: those of this document, not those of a run */
	{ "{\"cpu_limt\":1}", SBX_E_INVALID_SPEC,
	  "unknown field 'cpu_limt'; did you mean 'cpu_limit'?" },
	{ "{\"timeuot_sec\":1}", SBX_E_INVALID_SPEC,
	  "unknown field 'timeuot_sec'; did you mean 'timeout_sec'?" },
	{ "{\"resources\":{\"cpu\":1}}", SBX_E_INVALID_SPEC,
	  "unknown field 'resources'; allowed: spec_version, runtime, base_image, cpu_limit, " },
	{ "{\"cpu\":1}", SBX_E_INVALID_SPEC, "unknown field 'cpu'" },
	{ "{\"resources.cpu\":1}", SBX_E_INVALID_SPEC, "unknown field 'resources.cpu'" },
	{ "{\"command\":[\"x\"]}", SBX_E_INVALID_SPEC, "unknown field 'command'" },
	{ "{\"session_id\":\"s\"}", SBX_E_INVALID_SPEC, "unknown field 'session_id'" },
	{ "{\"lifetime\":\"handle\"}", SBX_E_INVALID_SPEC, "unknown field 'lifetime'" },

	/* numbers */
	{ "{\"cpu_limit\":0}", SBX_E_INVALID_SPEC,
	  "cpu_limit: found 0, allowed more than 0, up to 1024" },
	{ "{\"cpu_limit\":-1}", SBX_E_INVALID_SPEC, "cpu_limit: found -1, allowed more than 0" },
	{ "{\"cpu_limit\":1024.5}", SBX_E_INVALID_SPEC, "cpu_limit: found 1024.5" },
	{ "{\"memory_mb\":63}", SBX_E_INVALID_SPEC, "memory_mb: found 63, allowed 64 to 16777216" },
	{ "{\"memory_mb\":16777217}", SBX_E_INVALID_SPEC, "memory_mb: found 16777217" },
	{ "{\"memory_mb\":64.5}", SBX_E_INVALID_SPEC,
	  "memory_mb: found 64.5, allowed a whole number" },
	{ "{\"pids\":0}", SBX_E_INVALID_SPEC, "pids: found 0, allowed 1 to 1000000" },
	{ "{\"pids\":1000001}", SBX_E_INVALID_SPEC, "pids: found 1000001" },
	{ "{\"timeout_sec\":0}", SBX_E_INVALID_SPEC, "timeout_sec: found 0, allowed 1 to 3600" },
	{ "{\"timeout_sec\":-1}", SBX_E_INVALID_SPEC, "timeout_sec: found -1" },
	{ "{\"timeout_sec\":3601}", SBX_E_INVALID_SPEC, "timeout_sec: found 3601" },

	/* words */
	{ "{\"runtime\":\"podman\"}", SBX_E_INVALID_SPEC,
	  "runtime: found 'podman', allowed one of namespace, docker, " },
	{ "{\"runtime\":\"\"}", SBX_E_INVALID_SPEC, "runtime: found ''" },
	{ "{\"trust_level\":\"root\"}", SBX_E_INVALID_SPEC,
	  "trust_level: found 'root', allowed one of trusted, standard, untrusted" },
	{ "{\"spec_version\":\"2.0\"}", SBX_E_INVALID_SPEC_VERSION,
	  "spec_version: found '2.0', allowed \"1.0\",\"1.1\"" },

	/* rules of one field */
	{ "{\"env\":{\"\":\"v\"}}", SBX_E_INVALID_SPEC, "env: has an entry with an empty name" },
	{ "{\"env\":{\"A=B\":\"v\"}}", SBX_E_INVALID_SPEC, "env.A=B: has a '=' in its name" },
	{ "{\"env\":{\"X\":5}}", SBX_E_INVALID_SPEC, "env.X: found a number, allowed a string" },
	{ "{\"labels\":{\"k\":\"a\\tb\"}}", SBX_E_INVALID_SPEC,
	  "labels.k: has a control character" },
	{ "{\"labels\":{\"k\":null}}", SBX_E_INVALID_SPEC, "labels.k: found null" },
	{ "{\"labels\":{\"\":\"v\"}}", SBX_E_INVALID_SPEC, "labels: has an entry with an empty" },
	{ "{\"name\":\"a\\nb\"}", SBX_E_INVALID_SPEC, "name: has a control character" },
	{ "{\"idempotency_key\":\" \"}", SBX_E_INVALID_SPEC, "idempotency_key: is empty" },
};

static void session__refuses(void **state)
{
	(void)state;
	for (size_t i = 0; i < SBX_COUNT(bad); i++) {
		sbx_autoerror e = SBX_ERROR_INIT;
		struct ms_run_spec *s = NULL;
		int rc = ms_session_parse(bad[i].text, strlen(bad[i].text), &mount, &s, &e);

		if (rc != -(int)bad[i].code || s || !strstr(e.message, bad[i].says))
			fail_msg("row %zu: %d %s", i, rc, e.message);
	}
}

/* Of each field: every type of JSON that it does not have is refused by the field's name. */
static void session__wrong_types_of_every_field(void **state)
{
	static const struct {
		const char *text;
		const char *called;
		unsigned fits; /* 1 << enum ms_type */
	} values[] = {
		{ "true", "a boolean", 1u << MS_BOOL },
		{ "64", "a number", 1u << MS_INT | 1u << MS_NUMBER },
		{ "\"docker\"", "a string", 1u << MS_STRING | 1u << MS_ENUM },
		{ "[]", "an array", 0 },
		{ "{}", "an object", 1u << MS_STRMAP },
	};

	(void)state;
	for (size_t f = 1; f < MS_S__COUNT; f++) {
		const struct ms_field_info *info = ms_session_field_info((enum ms_session_field)f);

		for (size_t v = 0; v < SBX_COUNT(values); v++) {
			sbx_autoerror e = SBX_ERROR_INIT;
			struct ms_run_spec *s = NULL;
			char doc[128], says[128];

			if (values[v].fits >> info->type & 1)
				continue;
			(void)snprintf(doc, sizeof(doc), "{\"%s\":%s}", info->name, values[v].text);
			(void)snprintf(says, sizeof(says), "%s: found %s, allowed ", info->name,
				       values[v].called);
			assert_int_equal(ms_session_parse(doc, strlen(doc), &api, &s, &e),
					 -SBX_E_INVALID_SPEC);
			assert_null(s);
			assert_ptr_equal(strstr(e.message, says), e.message);
			(void)snprintf(says, sizeof(says), "{\"field\":\"%s\"", info->name);
			assert_ptr_equal(strstr(e.details, says), e.details);
		}
	}
}

/* Of each field with a limit of length: what is one byte longer is refused. */
static void session__lengths_of_every_field(void **state)
{
	(void)state;
	for (size_t f = 1; f < MS_S__COUNT; f++) {
		const struct ms_field_info *info = ms_session_field_info((enum ms_session_field)f);

		for (size_t over = 0; info->type == MS_STRING && over < 2; over++) {
			sbx_autoerror e = SBX_ERROR_INIT;
			ms_autorun struct ms_run_spec *s = NULL;
			sbx_autofree char *doc = NULL;
			char head[64];
			int want = over ? -SBX_E_INVALID_SPEC : 0;

			if (f == MS_S_SPEC_VERSION && !over)
				want = -SBX_E_INVALID_SPEC_VERSION;
			(void)snprintf(head, sizeof(head), "{\"%s\":\"", info->name);
			doc = large(head, info->bytes + over, "a", "\"}");
			assert_int_equal(ms_session_parse(doc, strlen(doc), &mount, &s, &e), want);
		}
	}
}

static void session__sizes(void **state)
{
	sbx_autofree char *env = large("{\"env\":{\"A\":\"", MS_ARG_MAX - 2, "x", "\"}}");
	sbx_autofree char *doc = large("{\"name\":\"n\"", MS_DOC_MAX, " ", "}");
	sbx_autoerror e = SBX_ERROR_INIT;
	struct ms_run_spec *s = NULL;

	(void)state;
	assert_int_equal(ms_session_parse(env, strlen(env), &mount, &s, &e), -SBX_E_SPEC_TOO_LARGE);
	assert_non_null(strstr(e.message, "env.A: "));
	assert_null(strstr(e.message, "xx"));
	assert_int_equal(ms_session_parse(doc, strlen(doc), &mount, &s, NULL),
			 -SBX_E_SPEC_TOO_LARGE);
}

static void session__unknown_fields_are_ignored_by_the_api(void **state)
{
	static const char text[] = "{\"resources\":{\"cpu\":-1},\"command\":5,\"session_id\":[],"
				   "\"cpu\":\"x\",\"future\":null,\"memory_mb\":65}";
	ms_autorun struct ms_run_spec *s = NULL;
	sbx_autofree char *json = NULL;

	(void)state;
	assert_int_equal(ms_session_parse(text, strlen(text), &api, &s, NULL), 0);
	json = ms_session_json(s);
	assert_string_equal(json, "{\"spec_version\":\"1.0\",\"memory_mb\":65," DEFAULTS "}");
	assert_int_equal(s->present, UINT64_C(1) << MS_S_MEMORY_MB);
}

static void session__version_is_the_hosts_choice(void **state)
{
	static const char with[] = "{\"spec_version\":\"1.1\"}",
			  empty[] = "{\"spec_version\":\"\"}";
	struct ms_options opts = { .versions = "1.0, 3.x", .default_image = "host" };
	ms_autorun struct ms_run_spec *s = NULL, *t = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;

	(void)state;
	assert_int_equal(ms_session_parse(with, strlen(with), &opts, &s, &e),
			 -SBX_E_INVALID_SPEC_VERSION);
	assert_string_equal(e.details,
			    "{\"field\":\"spec_version\",\"supported\":[\"1.0\",\"3.x\"],"
			    "\"provided\":\"1.1\"}");
	opts.versions = "9";
	assert_int_equal(ms_session_parse(empty, strlen(empty), &opts, &t, &e), 0);
	assert_string_equal(t->spec_version, "1.0");
	/* The default image is for runs: a session may do without. */
	assert_null(t->base_image);
}

/* The same limit in both documents, each called by its own name. */
static void both__messages_name_the_field_of_the_document(void **state)
{
	static const struct {
		const char *run, *session, *run_says, *session_says;
	} rows[] = {
		{ WITH("\"resources\":{\"cpu\":0}"), "{\"cpu_limit\":0}", "resources.cpu: found 0",
		  "cpu_limit: found 0" },
		{ WITH("\"resources\":{\"cpu\":\"1\"}"), "{\"cpu_limit\":\"1\"}",
		  "resources.cpu: found a string", "cpu_limit: found a string" },
		{ WITH("\"resources\":{\"memory_mb\":1}"), "{\"memory_mb\":1}",
		  "resources.memory_mb: found 1", "memory_mb: found 1" },
		{ WITH("\"resources\":{\"pids\":0}"), "{\"pids\":0}", "resources.pids: found 0",
		  "pids: found 0" },
		{ WITH("\"cpu_limit\":1"), "{\"cpu\":1}", "unknown field 'cpu_limit'; ",
		  "unknown field 'cpu'; " },
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		sbx_autoerror e = SBX_ERROR_INIT, f = SBX_ERROR_INIT;
		struct ms_run_spec *s = NULL;

		assert_int_equal(ms_run_parse(rows[i].run, strlen(rows[i].run), &mount, &s, &e),
				 -SBX_E_INVALID_SPEC);
		assert_ptr_equal(strstr(e.message, rows[i].run_says), e.message);
		assert_int_equal(
			ms_session_parse(rows[i].session, strlen(rows[i].session), &mount, &s, &f),
			-SBX_E_INVALID_SPEC);
		assert_ptr_equal(strstr(f.message, rows[i].session_says), f.message);
	}
}

/* ---- canonical and stored -------------------------------------------------------------------- */

static void canonical__equal_and_different(void **state)
{
	static const struct {
		const char *text;
		bool equal;
	} rows[] = {
		{ "{\"env\":{\"B\":\"2\",\"A\":\"1\"},\"cpu_limit\":2}", true },
		{ " {\n\"cpu_limit\" : 2e0,\"env\":{\"A\":\"\\u0031\",\"B\":\"2\"} }", true },
		{ "{\"cpu_limit\":2.0,\"env\":{\"A\":\"1\",\"B\":\"2\"},\"timeout_sec\":300,"
		  "\"spec_version\":\"1.0\",\"network_policy\":\"deny_all\",\"concurrent\":false,"
		  "\"trust_level\":\"standard\"}",
		  true },
		{ "{\"cpu_limit\":2,\"env\":{\"A\":\"1\",\"B\":\"2\"},\"runtime\":null,"
		  "\"memory_mb\":null,\"labels\":null,\"labels2\":1,\"trust_level\":null,"
		  "\"network_policy\":null,\"spec_version\":\"\"}",
		  true },
		{ "{\"cpu_limit\":2,\"env\":{\"A\":\"1\",\"B\":\"2\"},\"idempotency_key\":\"k\"}",
		  true },
		{ "{\"cpu_limit\":2,\"env\":{\"A\":\"1\",\"B\":\"2\"},\"timeout_sec\":null}",
		  false },
		{ "{\"cpu_limit\":2.5,\"env\":{\"A\":\"1\",\"B\":\"2\"}}", false },
		{ "{\"cpu_limit\":2,\"env\":{\"A\":\"1\"}}", false },
		{ "{\"cpu_limit\":2,\"env\":{\"A\":\"1\",\"B\":\"2\"},\"concurrent\":true}",
		  false },
		{ "{\"cpu_limit\":2,\"env\":{\"A\":\"1\",\"B\":\"2\"},\"name\":\"n\"}", false },
	};
	ms_autorun struct ms_run_spec *base =
		session_of("{\"cpu_limit\":2,\"env\":{\"A\":\"1\",\"B\":\"2\"}}");
	sbx_autofree char *want = ms_session_canonical(base);

	(void)state;
	assert_string_equal(want, "{\"concurrent\":false,\"cpu_limit\":2.0,\"env\":{\"A\":\"1\","
				  "\"B\":\"2\"},\"network_policy\":\"deny_all\",\"spec_version\":"
				  "\"1.0\",\"timeout_sec\":300,\"trust_level\":\"standard\"}");
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		ms_autorun struct ms_run_spec *s = NULL;
		sbx_autofree char *got = NULL;

		assert_int_equal(
			ms_session_parse(rows[i].text, strlen(rows[i].text), &api, &s, NULL), 0);
		got = ms_session_canonical(s);
		if ((strcmp(got, want) == 0) != rows[i].equal)
			fail_msg("row %zu: %s", i, got);
	}
}

static void stored__is_not_judged_again(void **state)
{
	static const char text[] = "{\"spec_version\":\"7\",\"timeout_sec\":99999,\"runtime\":"
				   "\"new\",\"cpu_limit\":0.1,\"from_the_future\":1}";
	static const char *const garbage[] = { "{\"env\":1}", "{\"cpu_limit\":\"\"}", "{" };
	ms_autorun struct ms_run_spec *s = NULL, *none = NULL;
	struct ms_run_spec *t;

	(void)state;
	assert_int_equal(ms_session_parse(text, strlen(text), &stored, &s, NULL), 0);
	assert_int_equal(s->timeout_sec, 99999);
	assert_string_equal(s->runtime, "new");
	assert_null(s->trust_level);
	assert_null(s->network_policy);
	assert_session_round_trip(s);
	assert_int_equal(ms_session_parse(NULL, 0, &stored, &none, NULL), 0);
	assert_int_equal(none->timeout_sec, -1);
	for (size_t i = 0; i < SBX_COUNT(garbage); i++)
		assert_int_equal(
			ms_session_parse(garbage[i], strlen(garbage[i]), &stored, &t, NULL),
			-SBX_E_INVALID_SPEC);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(session__accepts_and_reads_back),
		cmocka_unit_test(session__all_members),
		cmocka_unit_test(session__members_of_runs_are_empty),
		cmocka_unit_test(session__null_of_every_field),
		cmocka_unit_test(session__refuses),
		cmocka_unit_test(session__wrong_types_of_every_field),
		cmocka_unit_test(session__lengths_of_every_field),
		cmocka_unit_test(session__sizes),
		cmocka_unit_test(session__unknown_fields_are_ignored_by_the_api),
		cmocka_unit_test(session__version_is_the_hosts_choice),
		cmocka_unit_test(both__messages_name_the_field_of_the_document),
		cmocka_unit_test(canonical__equal_and_different),
		cmocka_unit_test(stored__is_not_judged_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
