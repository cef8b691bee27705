/* SPDX-License-Identifier: Apache-2.0 */
/* What a run takes over from the spec of its session. */
#include "session_spec_test.h"

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
		cmocka_unit_test(inherit__absent_null_and_given),
		cmocka_unit_test(inherit__tables_agree),
		cmocka_unit_test(inherit__all_and_nothing_else),
		cmocka_unit_test(inherit__group_counts_by_member),
		cmocka_unit_test(inherit__the_sessions_nothing),
		cmocka_unit_test(inherit__again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
