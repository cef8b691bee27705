/* SPDX-License-Identifier: Apache-2.0 */
/* mountspec: what a session document may say, what is made of it, and what its runs take over. */
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

static struct ms_run_spec *session_of(const char *text)
{
	struct ms_run_spec *s = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;

	if (ms_session_parse(text, strlen(text), &mount, &s, &e) < 0)
		fail_msg("%s: %s", text, e.message);
	return s;
}

/* What ms_session_json says, read back and said again. */
static void assert_session_round_trip(const struct ms_run_spec *s)
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

/* ---- what a run takes over ------------------------------------------------------------------- */

/* Every inherited field: its name in both documents, members of both, and what a null leaves in the
 * run's JSON ("": nothing of this field). */
static const struct {
	const char *run_name, *session_name;
	const char *run, *run_null, *session;
	const char *shown, *shown_null, *shown_session;
} inherited[] = {
	{ "runtime", "runtime", "\"runtime\":\"docker\"", "\"runtime\":null",
	  "\"runtime\":\"qemu\"", "\"runtime\":\"docker\"", "", "\"runtime\":\"qemu\"" },
	{ "base_image", "base_image", NULL, "\"base_image\":null", "\"base_image\":\"img\"", NULL,
	  "", "\"base_image\":\"img\"" },
	{ "env", "env", "\"env\":{\"R\":\"1\"}", "\"env\":null", "\"env\":{\"S\":\"1\",\"T\":\"\"}",
	  "\"env\":{\"R\":\"1\"}", "", "\"env\":{\"S\":\"1\",\"T\":\"\"}" },
	{ "timeout_sec", "timeout_sec", "\"timeout_sec\":7", "\"timeout_sec\":null",
	  "\"timeout_sec\":9", "\"timeout_sec\":7", "\"timeout_sec\":300", "\"timeout_sec\":9" },
	{ "resources.cpu", "cpu_limit", "\"resources\":{\"cpu\":1.5}",
	  "\"resources\":{\"cpu\":null}", "\"cpu_limit\":2.5", "\"cpu\":1.5", "", "\"cpu\":2.5" },
	{ "resources.memory_mb", "memory_mb", "\"resources\":{\"memory_mb\":100}",
	  "\"resources\":{\"memory_mb\":null}", "\"memory_mb\":200", "\"memory_mb\":100", "",
	  "\"memory_mb\":200" },
	{ "resources.pids", "pids", "\"resources\":{\"pids\":10}", "\"resources\":{\"pids\":null}",
	  "\"pids\":20", "\"pids\":10", "", "\"pids\":20" },
	{ "network_policy", "network_policy", "\"network_policy\":\"allowlist\"",
	  "\"network_policy\":null", "\"network_policy\":\"deny_all\"",
	  "\"network_policy\":\"allowlist\"", "", "\"network_policy\":\"deny_all\"" },
	{ "trust_level", "trust_level", "\"trust_level\":\"trusted\"", "\"trust_level\":null",
	  "\"trust_level\":\"untrusted\"", "\"trust_level\":\"trusted\"",
	  "\"trust_level\":\"standard\"", "\"trust_level\":\"untrusted\"" },
	{ "persona_id", "persona_id", "\"persona_id\":\"r\"", "\"persona_id\":null",
	  "\"persona_id\":\"s\"", "\"persona_id\":\"r\"", "", "\"persona_id\":\"s\"" },
	{ "workspace_id", "workspace_id", "\"workspace_id\":\"r\"", "\"workspace_id\":null",
	  "\"workspace_id\":\"s\"", "\"workspace_id\":\"r\"", "", "\"workspace_id\":\"s\"" },
	{ "workspace_group_id", "workspace_group_id", "\"workspace_group_id\":\"r\"",
	  "\"workspace_group_id\":null", "\"workspace_group_id\":\"s\"",
	  "\"workspace_group_id\":\"r\"", "", "\"workspace_group_id\":\"s\"" },
	{ "scope_snapshot_id", "scope_snapshot_id", "\"scope_snapshot_id\":\"r\"",
	  "\"scope_snapshot_id\":null", "\"scope_snapshot_id\":\"s\"",
	  "\"scope_snapshot_id\":\"r\"", "", "\"scope_snapshot_id\":\"s\"" },
};

/* A run in a session, with one more member (NULL: none), after ms_run_inherit. The session is freed
 * before the run is looked at. */
static struct ms_run_spec *run_in(const char *session_text, const char *member)
{
	ms_autorun struct ms_run_spec *session = session_of(session_text);
	struct ms_run_spec *run = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;
	char doc[256];

	(void)snprintf(doc, sizeof(doc), "{" CMD ",\"session_id\":\"s\"%s%s}", member ? "," : "",
		       member ? member : "");
	if (ms_run_parse(doc, strlen(doc), &mount, &run, &e) < 0)
		fail_msg("%s: %s", doc, e.message);
	assert_int_equal(ms_run_inherit(run, session, &e), 0);
	return run;
}

static char *json_in(const char *session_text, const char *member)
{
	ms_autorun struct ms_run_spec *run = run_in(session_text, member);

	assert_round_trip(run);
	return ms_run_json(run);
}

/* Has the JSON this member, and no other of the field's name? "" is: not even the name. */
static void assert_shows(const char *json, const char *name, const char *member)
{
	const char *dot = strrchr(name, '.');
	char key[64];
	const char *at;

	(void)snprintf(key, sizeof(key), "\"%s\":", dot ? dot + 1 : name);
	at = strstr(json, key);
	if (*member == '\0' ? at != NULL : at == NULL || at != strstr(json, member))
		fail_msg("%s: %s, wanted \"%s\"", name, json, member);
}

static void inherit__absent_null_and_given(void **state)
{
	(void)state;
	for (size_t i = 0; i < SBX_COUNT(inherited); i++) {
		sbx_autofree char *absent = NULL, *null = NULL, *given = NULL;
		char session[256];

		(void)snprintf(session, sizeof(session), "{%s}", inherited[i].session);
		absent = json_in(session, NULL);
		assert_shows(absent, inherited[i].run_name, inherited[i].shown_session);
		null = json_in(session, inherited[i].run_null);
		assert_shows(null, inherited[i].run_name, inherited[i].shown_null);
		/* An image and a session_id in one document are refused. */
		if (!inherited[i].run)
			continue;
		given = json_in(session, inherited[i].run);
		assert_shows(given, inherited[i].run_name, inherited[i].shown);
	}
}

static const struct ms_field_info *find(const char *name, bool session)
{
	const struct ms_field_info *f;

	for (size_t i = 1; i < (session ? (size_t)MS_S__COUNT : (size_t)MS_F__COUNT); i++) {
		f = session ? ms_session_field_info((enum ms_session_field)i)
			    : ms_field_info((enum ms_field)i);
		if (strcmp(f->name, name) == 0)
			return f;
	}
	fail_msg("no field %s", name);
	return NULL;
}

/* Both tables say "inherited" of the same fields, which are those of the test above, and allow the
 * same values. */
static void inherit__tables_agree(void **state)
{
	size_t of_runs = 0, of_sessions = 0;

	(void)state;
	for (size_t i = 1; i < MS_F__COUNT; i++)
		of_runs += ms_field_info((enum ms_field)i)->inherit;
	for (size_t i = 1; i < MS_S__COUNT; i++)
		of_sessions += ms_session_field_info((enum ms_session_field)i)->inherit;
	assert_int_equal(of_runs, SBX_COUNT(inherited));
	assert_int_equal(of_sessions, SBX_COUNT(inherited));
	for (size_t i = 0; i < SBX_COUNT(inherited); i++) {
		const struct ms_field_info *r = find(inherited[i].run_name, false);
		const struct ms_field_info *s = find(inherited[i].session_name, true);

		assert_true(r->inherit && s->inherit);
		assert_int_equal(r->type, s->type);
		assert_true(r->min <= s->min && r->min >= s->min);
		assert_true(r->max <= s->max && r->max >= s->max);
		assert_int_equal(r->bytes, s->bytes);
		assert_int_equal(r->entries, s->entries);
		assert_string_equal(r->unit, s->unit);
		assert_string_equal(r->choices, s->choices);
	}
}

static void inherit__all_and_nothing_else(void **state)
{
	ms_autorun struct ms_run_spec *run = run_in(all_fields, NULL);
	sbx_autofree char *json = ms_run_json(run);

	(void)state;
	/* The session's version, labels, name, key and "concurrent" are its own. */
	assert_string_equal(json,
			    "{\"spec_version\":\"1.0\",\"session_id\":\"s\",\"runtime\":\"docker\","
			    "\"base_image\":\"i\",\"command\":[\"true\"],\"env\":{\"A\":\"1\","
			    "\"B\":\"\"},\"timeout_sec\":8,\"resources\":{\"cpu\":1.5,"
			    "\"memory_mb\":128,\"pids\":9},\"network_policy\":\"allowlist\","
			    "\"interactive\":false,\"trust_level\":\"untrusted\",\"persona_id\":"
			    "\"p\",\"workspace_id\":\"w\",\"workspace_group_id\":\"g\","
			    "\"scope_snapshot_id\":\"c\",\"lifetime\":\"detached\"}");
	assert_false(run->concurrent);
	assert_int_equal(run->present, UINT64_C(1) << MS_F_COMMAND | UINT64_C(1)
									     << MS_F_SESSION_ID);
}

static void inherit__group_counts_by_member(void **state)
{
	static const char session[] = "{\"cpu_limit\":2,\"memory_mb\":200,\"pids\":20}";
	static const struct {
		const char *member, *shown;
	} rows[] = {
		{ "\"resources\":{}", "{\"cpu\":2.0,\"memory_mb\":200,\"pids\":20}" },
		{ "\"resources\":null", "{\"cpu\":2.0,\"memory_mb\":200,\"pids\":20}" },
		{ "\"resources\":{\"cpu\":1}", "{\"cpu\":1.0,\"memory_mb\":200,\"pids\":20}" },
		{ "\"resources\":{\"memory_mb\":null}", "{\"cpu\":2.0,\"pids\":20}" },
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		sbx_autofree char *json = json_in(session, rows[i].member);

		if (!strstr(json, rows[i].shown))
			fail_msg("row %zu: %s", i, json);
	}
}

/* Where the session has no value the run has none either, and not the default of its own table. */
static void inherit__the_sessions_nothing(void **state)
{
	ms_autorun struct ms_run_spec *run = run_in("{\"timeout_sec\":null}", NULL);
	ms_autorun struct ms_run_spec *blank =
		run_in("{\"base_image\":\"i\"}", "\"base_image\":\"\"");

	(void)state;
	assert_int_equal(run->timeout_sec, -1);
	assert_null(run->base_image);
	assert_null(run->env);
	assert_string_equal(run->network_policy, "deny_all");
	/* A blank image is a key that was there. */
	assert_null(blank->base_image);
}

/* A second time, and from another session: nothing leaks, the last one counts. */
static void inherit__again(void **state)
{
	ms_autorun struct ms_run_spec *run = run_in(all_fields, NULL);
	ms_autorun struct ms_run_spec *other = session_of("{\"env\":{\"Z\":\"z\"}}");

	(void)state;
	assert_int_equal(ms_run_inherit(run, other, NULL), 0);
	assert_int_equal(run->n_env, 1);
	assert_string_equal(run->env[0].key, "Z");
	assert_ptr_not_equal(run->env, other->env);
	assert_null(run->persona_id);
	assert_int_equal(run->pids, -1);
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
		cmocka_unit_test(inherit__absent_null_and_given),
		cmocka_unit_test(inherit__tables_agree),
		cmocka_unit_test(inherit__all_and_nothing_else),
		cmocka_unit_test(inherit__group_counts_by_member),
		cmocka_unit_test(inherit__the_sessions_nothing),
		cmocka_unit_test(inherit__again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
