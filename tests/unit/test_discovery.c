/* SPDX-License-Identifier: Apache-2.0 */
/* What clients and operators are told about the runtimes. */
#include "tests/unit/policy_util.h"

/* ---- discovery ------------------------------------------------------------------------------- */

static struct json_object *parsed(const struct sbx_buf *text)
{
	struct json_object *o;

	assert_false(sbx_buf_failed(text));
	assert_int_equal(text->data[text->len - 1], '\n');
	o = json_tokener_parse(text->data);
	assert_non_null(o);
	return o;
}

static struct json_object *row_of(const char *const *overrides, const char *records,
				  const char *runtime)
{
	SBX_AUTO(orch_settings_freep) struct orch_settings *s = settings(overrides);
	struct orch_preflights *p = preflights(records);
	sbx_autobuf text = SBX_BUF_INIT(64 << 10);

	assert_int_equal(orch_discovery_row(s, p, runtime, &text, NULL), 0);
	(void)orch_preflights_free(p);
	return parsed(&text);
}

static void member_is(struct json_object *o, const char *name, const char *json)
{
	struct json_object *m = NULL;
	const char *text;

	assert_true(json_object_object_get_ex(o, name, &m));
	text = json_object_to_json_string_ext(m, JSON_C_TO_STRING_PLAIN |
							 JSON_C_TO_STRING_NOSLASHESCAPE);
	if (strcmp(text, json) != 0)
		fail_msg("%s: wanted %s, got %s", name, json, text);
}

static void keys_are(struct json_object *o, const char *const *keys, size_t n)
{
	assert_int_equal(json_object_object_length(o), n);
	for (size_t i = 0; i < n; i++)
		if (!json_object_object_get_ex(o, keys[i], NULL))
			fail_msg("no %s", keys[i]);
}

static void discovery__rows_have_exactly_the_documented_members(void **state)
{
	static const char *const keys[] = {
		"name",
		"implementation_state",
		"available",
		"reasons",
		"normalized_reasons",
		"normalized_reason_details",
		"supported_trust_levels",
		"strict_deny_all_supported",
		"strict_allowlist_supported",
		"enforcement_ready",
		"host",
		"boundary_class",
		"vm_grade_isolation",
		"untrusted_eligible",
		"isolation_warnings",
		"network_policy_contract",
		"session_contract",
		"default_images",
		"max_cpu",
		"max_mem_mb",
		"max_upload_mb",
		"max_log_bytes",
		"max_artifact_file_bytes",
		"max_artifact_total_bytes",
		"queue_max_length",
		"queue_ttl_sec",
		"workspace_cap_mb",
		"artifact_ttl_hours",
		"supported_spec_versions",
		"interactive_supported",
		"egress_allowlist_supported",
		"store_mode",
		"notes",
	};

	(void)state;
	for (size_t i = 0; rt_known_at(i); i++) {
		sbx_autojson *o = row_of(NULL, "{" NAMESPACE "}", rt_known_at(i)->name);

		keys_are(o, keys, SBX_COUNT(keys));
	}
}

static void discovery__lists_all_in_order(void **state)
{
	SBX_AUTO(orch_settings_freep) struct orch_settings *s = settings(NULL);
	struct orch_preflights *p = preflights(EVERYTHING);
	sbx_autobuf text = SBX_BUF_INIT(256 << 10);
	sbx_autojson *o = NULL;
	struct json_object *rows;
	size_t i = 0;

	(void)state;
	assert_int_equal(orch_discovery(s, p, &text, NULL), 0);
	o = parsed(&text);
	assert_int_equal(json_object_object_length(o), 1);
	rows = json_object_object_get(o, "runtimes");
	for (; rt_known_at(i); i++)
		assert_string_equal(json_object_get_string(json_object_object_get(
					    json_object_array_get_idx(rows, i), "name")),
				    rt_known_at(i)->name);
	assert_int_equal(json_object_array_length(rows), i);
	(void)orch_preflights_free(p);
}

static void discovery__available_row(void **state)
{
	sbx_autojson *o = row_of(NULL, "{" WITH_CGROUP "}", "namespace");

	(void)state;
	member_is(o, "available", "true");
	member_is(o, "implementation_state", "\"supported\"");
	member_is(o, "reasons", "[]");
	member_is(o, "normalized_reasons", "[]");
	member_is(o, "normalized_reason_details", "[]");
	member_is(o, "supported_trust_levels", "[\"trusted\",\"standard\",\"untrusted\"]");
	member_is(o, "strict_deny_all_supported", "true");
	member_is(o, "strict_allowlist_supported", "false");
	member_is(o, "egress_allowlist_supported", "false");
	member_is(o, "enforcement_ready", "{\"deny_all\":true,\"allowlist\":false}");
	member_is(o, "host", "{\"limits\":\"cgroup\"}");
	member_is(o, "default_images", "[\"host\"]");
	member_is(o, "store_mode", "\"sqlite\"");
}

static void discovery__limits_are_the_settings(void **state)
{
	static const char *const overrides[] = { "max_cpu=2.5",
						 "max_mem_mb=100",
						 "queue_ttl_sec=9",
						 "max_log_bytes=5",
						 "supported_spec_versions=1.1",
						 NULL };
	sbx_autojson *o = row_of(overrides, "{}", "docker");

	(void)state;
	member_is(o, "max_cpu", "2.5");
	member_is(o, "max_mem_mb", "100");
	member_is(o, "max_upload_mb", "64");
	member_is(o, "max_log_bytes", "5");
	member_is(o, "max_artifact_file_bytes", "67108864");
	member_is(o, "max_artifact_total_bytes", "268435456");
	member_is(o, "queue_max_length", "100");
	member_is(o, "queue_ttl_sec", "9");
	member_is(o, "workspace_cap_mb", "256");
	member_is(o, "artifact_ttl_hours", "24");
	member_is(o, "supported_spec_versions", "[\"1.1\"]");
}

static void discovery__whole_cpus_are_written_as_a_fraction(void **state)
{
	sbx_autojson *o = row_of(NULL, "{}", "docker");

	(void)state;
	member_is(o, "max_cpu", "4.0");
}

static void discovery__vz_linux_logs_end_at_the_helper_limit(void **state)
{
	static const char *const overrides[] = { "max_log_bytes=1000000000", NULL };
	sbx_autojson *vz = row_of(overrides, "{}", "vz_linux");
	sbx_autojson *docker = row_of(overrides, "{}", "docker");

	(void)state;
	member_is(vz, "max_log_bytes", "268435456");
	member_is(docker, "max_log_bytes", "1000000000");
}

static void discovery__reasons_are_explained_once_each(void **state)
{
	sbx_autojson *o = row_of(NULL,
				 "{\"vz_linux\":" RECORD("false",
							 "\"macos_virtualization_helper_invalid_"
							 "json\",\"macos_virtualization_helper_"
							 "empty_response\",\"limactl_missing\"",
							 "true", "true", ALL_LEVELS, "") "}",
				 "vz_linux");

	(void)state;
	member_is(o, "available", "false");
	member_is(o, "reasons",
		  "[\"macos_virtualization_helper_invalid_json\","
		  "\"macos_virtualization_helper_empty_response\",\"limactl_missing\"]");
	member_is(o, "normalized_reasons",
		  "[\"helper_protocol_mismatch\",\"host_prerequisite_missing\"]");
	member_is(o, "normalized_reason_details",
		  "[{\"code\":\"helper_protocol_mismatch\",\"category\":\"helper\","
		  "\"severity\":\"error\",\"availability_blocking\":true,"
		  "\"operator_action\":\"check_helper\",\"user_message_key\":"
		  "\"sandbox.runtime.reason.helper_protocol_mismatch\"},"
		  "{\"code\":\"host_prerequisite_missing\",\"category\":\"host\","
		  "\"severity\":\"error\",\"availability_blocking\":true,"
		  "\"operator_action\":\"prepare_host\",\"user_message_key\":"
		  "\"sandbox.runtime.reason.host_prerequisite_missing\"}]");
	/* Unavailable is not ready, whatever the record claims. */
	member_is(o, "enforcement_ready", "{\"deny_all\":false,\"allowlist\":false}");
	member_is(o, "strict_deny_all_supported", "false");
}

static void discovery__without_a_record_says_so(void **state)
{
	sbx_autojson *o = row_of(NULL, "{}", "namespace");

	(void)state;
	member_is(o, "available", "false");
	member_is(o, "reasons", "[\"preflight_missing\"]");
	member_is(o, "normalized_reasons", "[\"runtime_unavailable\"]");
	member_is(o, "supported_trust_levels", "[]");
	member_is(o, "interactive_supported", "false");
	member_is(o, "host", "{}");
}

static void discovery__contracts_have_their_members(void **state)
{
	sbx_autojson *o = row_of(NULL, EVERYTHING, "vz_linux");

	(void)state;
	member_is(o, "network_policy_contract",
		  "{\"deny_all\":{\"support_state\":\"host_gated\",\"strict_enforcement\":true,"
		  "\"readiness_source\":\"runtime_preflight\"},"
		  "\"allowlist\":{\"support_state\":\"unsupported\",\"strict_enforcement\":false,"
		  "\"readiness_source\":\"not_applicable\"}}");
	member_is(o, "session_contract",
		  "{\"support_state\":\"host_gated\",\"reuse_model\":\"warm_vm\","
		  "\"requires_live_health_check\":true,\"recovery_state\":\"host_gated\","
		  "\"repair_state\":\"host_gated\"}");
}

static void discovery__only_host_local_runtimes_warn(void **state)
{
	(void)state;
	for (size_t i = 0; rt_known_at(i); i++) {
		const char *name = rt_known_at(i)->name;
		sbx_autojson *o = row_of(NULL, EVERYTHING, name);

		member_is(o, "isolation_warnings",
			  strcmp(name, "seatbelt") == 0 || strcmp(name, "worktree") == 0
				  ? "[\"host_local_boundary\",\"not_vm_grade_isolation\","
				    "\"not_untrusted_eligible\"]"
				  : "[]");
	}
}

static void discovery__docker_allowlist_follows_its_readiness(void **state)
{
	sbx_autojson *ready = row_of(NULL, EVERYTHING, "docker");
	sbx_autojson *closed =
		row_of(NULL, "{\"docker\":" RECORD("true", "", "true", "false", ALL_LEVELS, "") "}",
		       "docker");

	(void)state;
	member_is(ready, "strict_allowlist_supported", "true");
	member_is(ready, "egress_allowlist_supported", "true");
	member_is(closed, "strict_allowlist_supported", "false");
	member_is(closed, "egress_allowlist_supported", "false");
	member_is(closed, "strict_deny_all_supported", "true");
	assert_non_null(strstr(json_object_get_string(json_object_object_get(closed, "notes")),
			       "Granular egress allowlist"));
}

static void discovery__interactive_needs_a_driver_and_execution(void **state)
{
	static const char *const off[] = { "enable_execution=false", NULL };
	sbx_autojson *on = row_of(NULL, EVERYTHING, "namespace");
	sbx_autojson *disabled = row_of(off, EVERYTHING, "namespace");
	sbx_autojson *docker = row_of(NULL, EVERYTHING, "docker");
	sbx_autojson *lima = row_of(NULL, EVERYTHING, "lima");

	(void)state;
	member_is(on, "interactive_supported", "true");
	member_is(disabled, "interactive_supported", "false");
	member_is(docker, "interactive_supported", "true");
	member_is(lima, "interactive_supported", "false");
}

static void discovery__unknown_runtime_is_not_found(void **state)
{
	SBX_AUTO(orch_settings_freep) struct orch_settings *s = settings(NULL);
	sbx_autobuf text = SBX_BUF_INIT(1024);
	sbx_autoerror e = SBX_ERROR_INIT;

	(void)state;
	assert_int_equal(orch_discovery_row(s, NULL, "podman", &text, &e), -SBX_E_NOT_FOUND);
	assert_int_equal(text.len, 0);
}

static void discovery__a_full_buffer_is_an_error(void **state)
{
	SBX_AUTO(orch_settings_freep) struct orch_settings *s = settings(NULL);
	sbx_autobuf a = SBX_BUF_INIT(100), b = SBX_BUF_INIT(100), c = SBX_BUF_INIT(100);

	(void)state;
	assert_int_equal(orch_discovery_row(s, NULL, "docker", &a, NULL), -SBX_E_NO_MEMORY);
	assert_int_equal(orch_discovery(s, NULL, &b, NULL), -SBX_E_NO_MEMORY);
	assert_int_equal(orch_runtime_diagnostics(s, NULL, &c, NULL), -SBX_E_NO_MEMORY);
}

/* ---- diagnostics ----------------------------------------------------------------------------- */

static struct json_object *diagnostics(const char *records)
{
	SBX_AUTO(orch_settings_freep) struct orch_settings *s = settings(NULL);
	struct orch_preflights *p = preflights(records);
	sbx_autobuf text = SBX_BUF_INIT(256 << 10);

	assert_int_equal(orch_runtime_diagnostics(s, p, &text, NULL), 0);
	(void)orch_preflights_free(p);
	return parsed(&text);
}

static struct json_object *diagnostic_row(struct json_object *all, const char *name)
{
	struct json_object *rows = json_object_object_get(all, "runtimes");

	for (size_t i = 0; i < json_object_array_length(rows); i++) {
		struct json_object *o = json_object_array_get_idx(rows, i);

		if (strcmp(json_object_get_string(json_object_object_get(o, "name")), name) == 0)
			return o;
	}
	fail_msg("no row %s", name);
	return NULL;
}

#define MIXED                                                                                                       \
	"{\"docker\":" READY                                                                                        \
	",\"firecracker\":" DOWN("firecracker_unavailable") ",\"vz_linux\":" DOWN(                                  \
		"macos_"                                                                                            \
		"virtualization"                                                                                    \
		"_helper_"                                                                                          \
		"unavailable") ",\"vz_macos\":" DOWN("real_execution_not_implemented") ",\"worktr"                  \
										       "ee\""                       \
										       ":" DOWN(                    \
											       "u"                  \
											       "n"                  \
											       "s"                  \
											       "h"                  \
											       "a"                  \
											       "r"                  \
											       "e"                  \
											       "_"                  \
											       "r"                  \
											       "e"                  \
											       "q"                  \
											       "u"                  \
											       "i"                  \
											       "r"                  \
											       "e"                  \
											       "d"                  \
											       "_"                  \
											       "o"                  \
											       "n"                  \
											       "_"                  \
											       "l"                  \
											       "i"                  \
											       "n"                  \
											       "u"                  \
											       "x") ",\"seatbelt\"" \
												    ":" RECORD(     \
													    "fals"  \
													    "e",    \
													    "\"ma"  \
													    "cos_"  \
													    "requ"  \
													    "ired"  \
													    "\","   \
													    "\"ma"  \
													    "cos_"  \
													    "help"  \
													    "er_"   \
													    "miss"  \
													    "ing"   \
													    "\"",   \
													    "fals"  \
													    "e",    \
													    "fals"  \
													    "e",    \
													    "",     \
													    "") "}"

static void diagnostics__document_has_its_members(void **state)
{
	static const char *const keys[] = { "source", "summary", "runtimes",
					    "startup_warning_summary" };
	static const char *const row_keys[] = {
		"name",
		"available",
		"implementation_state",
		"readiness",
		"reasons",
		"normalized_reasons",
		"normalized_reason_details",
		"boundary_class",
		"vm_grade_isolation",
		"untrusted_eligible",
		"isolation_warnings",
		"strict_deny_all_supported",
		"strict_allowlist_supported",
		"session_reuse_model",
		"requires_live_health_check",
		"repair_supported",
		"recommended_action",
	};
	sbx_autojson *o = diagnostics(MIXED);

	(void)state;
	keys_are(o, keys, SBX_COUNT(keys));
	member_is(o, "source", "\"feature_discovery\"");
	member_is(o, "startup_warning_summary",
		  "{\"present\":false,\"blocking\":false,\"codes\":[]}");
	for (size_t i = 0; rt_known_at(i); i++)
		keys_are(diagnostic_row(o, rt_known_at(i)->name), row_keys, SBX_COUNT(row_keys));
}

static void diagnostics__summary_counts(void **state)
{
	sbx_autojson *o = diagnostics(MIXED);

	(void)state;
	/* Unavailable: namespace (no record) and worktree. */
	member_is(o, "summary",
		  "{\"total\":9,\"ready\":1,\"unavailable\":2,\"host_gated\":5,\"scaffold\":1,"
		  "\"host_local_warning_runtimes\":[\"seatbelt\",\"worktree\"],"
		  "\"repair_supported_runtimes\":[\"vz_linux\"]}");
}

static void diagnostics__readiness_and_action(void **state)
{
	static const struct {
		const char *name, *readiness, *action;
	} rows[] = {
		{ "namespace", "\"unavailable\"", "\"use_different_runtime\"" },
		{ "docker", "\"ready\"", "\"none\"" },
		{ "firecracker", "\"host_gated\"", "\"use_different_runtime\"" },
		{ "vz_linux", "\"host_gated\"", "\"check_helper\"" },
		{ "vz_macos", "\"scaffold\"", "\"use_different_runtime\"" },
		{ "worktree", "\"unavailable\"", "\"prepare_host\"" },
		/* check_helper ranks before prepare_host, whatever came first. */
		{ "seatbelt", "\"host_gated\"", "\"check_helper\"" },
	};
	sbx_autojson *o = diagnostics(MIXED);

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		member_is(diagnostic_row(o, rows[i].name), "readiness", rows[i].readiness);
		member_is(diagnostic_row(o, rows[i].name), "recommended_action", rows[i].action);
	}
}

static void diagnostics__only_vz_linux_repairs(void **state)
{
	sbx_autojson *o = diagnostics(MIXED);

	(void)state;
	for (size_t i = 0; rt_known_at(i); i++) {
		const char *name = rt_known_at(i)->name;
		bool vz = strcmp(name, "vz_linux") == 0;

		member_is(diagnostic_row(o, name), "repair_supported", vz ? "true" : "false");
		member_is(diagnostic_row(o, name), "requires_live_health_check",
			  vz ? "true" : "false");
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(discovery__rows_have_exactly_the_documented_members),
		cmocka_unit_test(discovery__lists_all_in_order),
		cmocka_unit_test(discovery__available_row),
		cmocka_unit_test(discovery__limits_are_the_settings),
		cmocka_unit_test(discovery__whole_cpus_are_written_as_a_fraction),
		cmocka_unit_test(discovery__vz_linux_logs_end_at_the_helper_limit),
		cmocka_unit_test(discovery__reasons_are_explained_once_each),
		cmocka_unit_test(discovery__without_a_record_says_so),
		cmocka_unit_test(discovery__contracts_have_their_members),
		cmocka_unit_test(discovery__only_host_local_runtimes_warn),
		cmocka_unit_test(discovery__docker_allowlist_follows_its_readiness),
		cmocka_unit_test(discovery__interactive_needs_a_driver_and_execution),
		cmocka_unit_test(discovery__unknown_runtime_is_not_found),
		cmocka_unit_test(discovery__a_full_buffer_is_an_error),
		cmocka_unit_test(diagnostics__document_has_its_members),
		cmocka_unit_test(diagnostics__summary_counts),
		cmocka_unit_test(diagnostics__readiness_and_action),
		cmocka_unit_test(diagnostics__only_vz_linux_repairs),
	};

	return cmocka_run_group_tests(tests, clean_environment, NULL);
}
