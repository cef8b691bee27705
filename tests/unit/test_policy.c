/* SPDX-License-Identifier: Apache-2.0 */
/* Policy: what is admitted, what is refused, in which order and with which details. */
#include "tests/unit/policy_util.h"

/* 503 with exactly the members of the contract. `reasons` is JSON. */
static void unavailable(const char *records, const char *runtime, const char *reasons)
{
	struct trial t;
	char message[128], name[64];

	begin(&t, NULL, records, runtime, NULL, NULL);
	apply(&t);
	assert_int_equal(t.rc, -SBX_E_RUNTIME_UNAVAILABLE);
	assert_int_equal(sbx_code_http(t.e.code), 503);
	runtime = runtime ? runtime : "namespace";
	(void)snprintf(message, sizeof(message), "Requested runtime '%s' is unavailable", runtime);
	assert_string_equal(t.e.message, message);
	(void)snprintf(name, sizeof(name), "\"%s\"", runtime);
	assert_string_equal(detail(&t, "runtime"), name);
	assert_string_equal(detail(&t, "available"), "false");
	assert_string_equal(detail(&t, "suggested"), "[]");
	assert_string_equal(detail(&t, "reasons"), reasons);
	assert_int_equal(json_object_object_length(t.details), 4);
	end(&t);
}

/* 422 with exactly the members of the contract. */
static void unsupported(const char *records, const char *runtime, const char *trust,
			const char *network, const char *requirement, const char *reason)
{
	struct trial t;
	char text[256];

	begin(&t, NULL, records, runtime, trust, network);
	apply(&t);
	if (t.rc != -SBX_E_POLICY_UNSUPPORTED)
		fail_msg("%s %s %s: wanted %s, got %d %s", runtime, trust ? trust : "",
			 network ? network : "", requirement, t.rc, t.e.message);
	assert_int_equal(sbx_code_http(t.e.code), 422);
	(void)snprintf(text, sizeof(text), "Runtime '%s' does not satisfy requirement '%s'",
		       runtime, requirement);
	assert_string_equal(t.e.message, text);
	(void)snprintf(text, sizeof(text), "\"%s\"", runtime);
	assert_string_equal(detail(&t, "runtime"), text);
	(void)snprintf(text, sizeof(text), "\"%s\"", requirement);
	assert_string_equal(detail(&t, "requirement"), text);
	(void)snprintf(text, sizeof(text), "[\"%s\"]", reason);
	assert_string_equal(detail(&t, "reasons"), text);
	assert_int_equal(json_object_object_length(t.details), 3);
	end(&t);
}

/* ---- choice of runtime ----------------------------------------------------------------------- */

static void runtime__default_is_the_setting(void **state)
{
	static const char *const overrides[] = { "default_runtime=docker", NULL };
	struct trial t;

	(void)state;
	begin(&t, NULL, EVERYTHING, NULL, NULL, NULL);
	admitted(&t);
	assert_string_equal(t.eff.runtime, "namespace");
	assert_string_equal(t.spec->runtime, "namespace");
	end(&t);
	begin(&t, overrides, EVERYTHING, NULL, NULL, NULL);
	admitted(&t);
	assert_string_equal(t.eff.runtime, "docker");
	end(&t);
}

static void runtime__the_default_is_never_replaced(void **state)
{
	static const char *const overrides[] = { "default_runtime=lima", NULL };
	struct trial t;

	(void)state;
	begin(&t, overrides, "{" NAMESPACE ",\"lima\":" DOWN("limactl_missing") "}", NULL, NULL,
	      NULL);
	apply(&t);
	assert_int_equal(t.rc, -SBX_E_RUNTIME_UNAVAILABLE);
	assert_string_equal(detail(&t, "runtime"), "\"lima\"");
	assert_null(t.spec->runtime);
	end(&t);
}

static void runtime__unavailable_tells_its_reasons(void **state)
{
	(void)state;
	unavailable("{\"docker\":" DOWN("docker_unavailable") "}", "docker",
		    "[\"docker_unavailable\"]");
	unavailable("{" NAMESPACE ",\"seatbelt\":" RECORD("false",
							  "\"macos_required\","
							  "\"sandbox_exec_missing\"",
							  "false", "false", "\"trusted\"", "") "}",
		    "seatbelt", "[\"macos_required\",\"sandbox_exec_missing\"]");
}

static void runtime__another_that_works_is_named(void **state)
{
	static const struct {
		const char *records, *runtime, *suggested;
	} rows[] = {
		{ "{\"docker\":" READY ",\"firecracker\":" DOWN("firecracker_unavailable") "}",
		  "firecracker", "[\"docker\"]" },
		{ "{\"firecracker\":" READY ",\"docker\":" DOWN("docker_unavailable") "}", "docker",
		  "[\"firecracker\"]" },
		{ "{\"docker\":" DOWN("docker_unavailable") "}", "firecracker", "[]" },
		{ "{\"docker\":" READY "}", "lima", "[]" },
	};
	struct trial t;

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		begin(&t, NULL, rows[i].records, rows[i].runtime, NULL, NULL);
		apply(&t);
		assert_int_equal(t.rc, -SBX_E_RUNTIME_UNAVAILABLE);
		assert_string_equal(detail(&t, "suggested"), rows[i].suggested);
		end(&t);
	}
}

static void runtime__without_a_record_is_unavailable(void **state)
{
	(void)state;
	unavailable("{" NAMESPACE "}", "docker", "[\"preflight_missing\"]");
	unavailable("{}", NULL, "[\"preflight_missing\"]");
	unavailable(NULL, NULL, "[\"preflight_missing\"]");
}

static void runtime__a_foreign_reason_is_not_repeated(void **state)
{
	(void)state;
	unavailable("{\"docker\":" DOWN("whatever") "}", "docker", "[\"unknown\"]");
}

static void runtime__unknown_name_is_a_mistake_of_the_document(void **state)
{
	struct trial t;

	(void)state;
	begin(&t, NULL, EVERYTHING, "podman", NULL, NULL);
	apply(&t);
	assert_int_equal(t.rc, -SBX_E_INVALID_SPEC);
	assert_non_null(strstr(t.e.message, "\"podman\""));
	assert_non_null(strstr(t.e.message, "namespace, docker"));
	end(&t);
}

/* ---- trust ----------------------------------------------------------------------------------- */

static void trust__untrusted_needs_more_than_the_host(void **state)
{
	(void)state;
	unsupported(EVERYTHING, "worktree", "untrusted", NULL, "untrusted_requires_vm_runtime",
		    "trust_level_requires_vm_runtime");
	unsupported(EVERYTHING, "seatbelt", "untrusted", "deny_all",
		    "untrusted_requires_vm_runtime", "trust_level_requires_vm_runtime");
}

static void trust__untrusted_on_the_host_is_refused_without_any_record(void **state)
{
	(void)state;
	unsupported("{}", "worktree", "untrusted", NULL, "untrusted_requires_vm_runtime",
		    "trust_level_requires_vm_runtime");
	unsupported("{\"seatbelt\":" DOWN("macos_required") "}", "seatbelt", "untrusted", NULL,
		    "untrusted_requires_vm_runtime", "trust_level_requires_vm_runtime");
}

static void trust__levels_that_the_preflight_lacks(void **state)
{
#define ONLY(level) "{\"namespace\":" RECORD("true", "", "true", "true", level, "") "}"
	(void)state;
	unsupported(ONLY("\"trusted\",\"standard\""), "namespace", "untrusted", NULL,
		    "trust_level:untrusted", "trust_level_not_supported");
	unsupported(ONLY("\"untrusted\""), "namespace", NULL, NULL, "trust_level:standard",
		    "trust_level_not_supported");
	unsupported(ONLY("\"untrusted\""), "namespace", "trusted", "deny_all",
		    "trust_level:trusted", "trust_level_not_supported");
	unsupported(ONLY(""), "namespace", "standard", NULL, "trust_level:standard",
		    "trust_level_not_supported");
#undef ONLY
}

static void trust__seatbelt_standard_has_its_own_words(void **state)
{
	(void)state;
	unsupported(EVERYTHING, "seatbelt", "standard", NULL, "standard_not_enabled",
		    "seatbelt_standard_disabled");
}

static void trust__none_is_standard(void **state)
{
	struct trial t;

	(void)state;
	begin(&t, NULL, EVERYTHING, NULL, NULL, NULL);
	admitted(&t);
	assert_string_equal(t.eff.trust_level, "standard");
	assert_string_equal(t.spec->trust_level, "standard");
	end(&t);
}

static void trust__unknown_level_is_a_mistake_of_the_document(void **state)
{
	struct trial t;

	(void)state;
	begin(&t, NULL, EVERYTHING, NULL, "paranoid", NULL);
	apply(&t);
	assert_int_equal(t.rc, -SBX_E_INVALID_SPEC);
	assert_non_null(strstr(t.e.message, "trusted, standard, untrusted"));
	end(&t);
}

/* ---- network --------------------------------------------------------------------------------- */

static void network__none_is_the_tier(void **state)
{
	struct trial t;
	static const char *const levels[] = { NULL, "standard", "untrusted" };
	static const char *const blank[] = { NULL, "", "  " };

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(levels); i++) {
		begin(&t, NULL, EVERYTHING, NULL, levels[i], blank[i]);
		admitted(&t);
		assert_string_equal(t.eff.network_policy, "deny_all");
		assert_string_equal(t.spec->network_policy, "deny_all");
		end(&t);
	}
}

static void network__trusted_asks_for_allowlist(void **state)
{
	struct trial t;

	(void)state;
	unsupported(EVERYTHING, "namespace", "trusted", NULL, "allowlist",
		    "strict_allowlist_not_supported");
	begin(&t, NULL, EVERYTHING, "docker", "trusted", NULL);
	admitted(&t);
	assert_string_equal(t.eff.network_policy, "allowlist");
	end(&t);
	begin(&t, NULL, EVERYTHING, "namespace", "trusted", "deny_all");
	admitted(&t);
	assert_string_equal(t.eff.network_policy, "deny_all");
	end(&t);
}

static void network__a_tier_may_leave_it_to_the_default(void **state)
{
	static const char *const overrides[] = { "tier_standard_network_policy=default",
						 "network_default=allowlist", NULL };
	struct trial t;

	(void)state;
	begin(&t, overrides, EVERYTHING, "docker", NULL, NULL);
	admitted(&t);
	assert_string_equal(t.eff.network_policy, "allowlist");
	end(&t);
}

static void network__word_is_trimmed_and_lowered(void **state)
{
	struct trial t;

	(void)state;
	begin(&t, NULL, EVERYTHING, NULL, NULL, " DeNy_AlL ");
	admitted(&t);
	assert_string_equal(t.eff.network_policy, "deny_all");
	assert_string_equal(t.spec->network_policy, "deny_all");
	end(&t);
}

static void network__other_words_are_refused(void **state)
{
	(void)state;
	unsupported(EVERYTHING, "docker", NULL, "allow_all", "allow_all",
		    "unsupported_network_policy");
	unsupported(EVERYTHING, "lima", NULL, " Allow_All\n", "allow_all",
		    "unsupported_network_policy");
	unsupported(EVERYTHING, "namespace", NULL, "deny_al", "deny_al",
		    "unsupported_network_policy");
}

static void network__a_strange_word_is_quoted_in_the_details(void **state)
{
	struct trial t;

	(void)state;
	begin(&t, NULL, EVERYTHING, NULL, NULL, "a\"b\\%s%n");
	apply(&t);
	assert_int_equal(t.rc, -SBX_E_POLICY_UNSUPPORTED);
	assert_string_equal(
		json_object_get_string(json_object_object_get(t.details, "requirement")),
		"a\"b\\%s%n");
	end(&t);
}

static void network__posture_wins_over_what_a_preflight_claims(void **state)
{
	static const char *const denied[] = { "vz_macos", "worktree" };
	static const char *const closed[] = { "namespace", "firecracker", "lima",    "qemu",
					      "vz_linux",  "vz_macos",	  "worktree" };

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(denied); i++)
		unsupported(EVERYTHING, denied[i], NULL, "deny_all", "deny_all",
			    "strict_deny_all_not_supported");
	for (size_t i = 0; i < SBX_COUNT(closed); i++)
		unsupported(EVERYTHING, closed[i], NULL, "allowlist", "allowlist",
			    "strict_allowlist_not_supported");
	unsupported(EVERYTHING, "seatbelt", "trusted", "allowlist", "allowlist",
		    "strict_allowlist_not_supported");
}

static void network__readiness_is_needed_too(void **state)
{
#define NOT_READY "{\"docker\":" RECORD("true", "", "false", "false", ALL_LEVELS, "") "}"
	(void)state;
	unsupported(NOT_READY, "docker", NULL, "deny_all", "deny_all",
		    "strict_deny_all_not_supported");
	unsupported(NOT_READY, "docker", NULL, "allowlist", "allowlist",
		    "strict_allowlist_not_supported");
#undef NOT_READY
}

static void network__host_gated_runtimes_deny_all_when_ready(void **state)
{
	static const char *const names[] = { "docker", "firecracker", "lima", "qemu", "vz_linux" };
	struct trial t;

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(names); i++) {
		begin(&t, NULL, EVERYTHING, names[i], "untrusted", NULL);
		admitted(&t);
		assert_string_equal(t.eff.runtime, names[i]);
		end(&t);
	}
}

static void network__targets_without_allowlist_are_a_mistake(void **state)
{
	char target[] = "10.0.0.0/8";
	char *targets[] = { target, NULL };
	static const char *const operator[] = { "egress_allowlist=10.0.0.0/8", NULL };
	struct trial t;

	(void)state;
	begin(&t, NULL, EVERYTHING, "docker", NULL, "deny_all");
	t.spec->network_allowlist = targets;
	t.spec->n_network_allowlist = 1;
	apply(&t);
	assert_int_equal(t.rc, -SBX_E_INVALID_SPEC);
	assert_string_equal(detail(&t, "field"), "\"network_allowlist\"");
	end(&t);
	begin(&t, operator, EVERYTHING, "docker", NULL, "allowlist");
	t.spec->network_allowlist = targets;
	t.spec->n_network_allowlist = 1;
	admitted(&t);
	end(&t);
}

/* One target of a run under an operator's list, or none. */
static void try_target(struct trial *t, const char *list, char *target)
{
	static char *targets[2];
	sbx_autofree char *override = NULL;
	const char *overrides[] = { NULL, NULL };

	assert_true(asprintf(&override, "egress_allowlist=%s", list) > 0);
	overrides[0] = override;
	targets[0] = target;
	begin(t, overrides, EVERYTHING, "docker", NULL, "allowlist");
	t->spec->network_allowlist = targets;
	t->spec->n_network_allowlist = 1;
	apply(t);
}

static void network__targets_must_be_within_the_operators(void **state)
{
	static const struct {
		const char *list, *target;
		int code; /* 0: admitted */
	} rows[] = {
		{ "10.0.0.0/8,*.example.org", "10.1.2.3:443", 0 },
		{ "10.0.0.0/8,*.example.org", "a.example.org", 0 },
		{ "10.0.0.0/8,*.example.org", "11.1.2.3", SBX_E_POLICY_UNSUPPORTED },
		{ "example.org:443", "example.org", SBX_E_POLICY_UNSUPPORTED },
		{ "example.org", "*.example.org", SBX_E_POLICY_UNSUPPORTED },
		{ "", "10.1.2.3", SBX_E_POLICY_UNSUPPORTED },
		{ "10.0.0.0/8", "10.1.2.3/8", SBX_E_INVALID_SPEC },
		{ "10.0.0.0/8", "no such thing", SBX_E_INVALID_SPEC },
	};
	struct trial t;

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		sbx_autofree char *target = strdup(rows[i].target);

		try_target(&t, rows[i].list, target);
		assert_int_equal(t.rc, -rows[i].code);
		if (t.rc)
			assert_non_null(strstr(t.e.message, target));
		if (rows[i].code == SBX_E_POLICY_UNSUPPORTED) {
			assert_string_equal(detail(&t, "requirement"), "\"network_allowlist\"");
			assert_string_equal(detail(&t, "reasons"), "[\"target_not_allowed\"]");
		}
		end(&t);
	}
}

/* ---- order of the checks --------------------------------------------------------------------- */

static void order__availability_before_trust_and_network(void **state)
{
	struct trial t;

	(void)state;
	begin(&t, NULL,
	      "{\"namespace\":" RECORD("false", "\"seccomp_unavailable\"", "false", "false",
				       "\"trusted\"", "") "}",
	      NULL, "untrusted", "allow_all");
	apply(&t);
	assert_int_equal(t.rc, -SBX_E_RUNTIME_UNAVAILABLE);
	end(&t);
}

static void order__trust_before_network(void **state)
{
	(void)state;
	unsupported("{\"namespace\":" RECORD("true", "", "false", "false", "\"trusted\"", "") "}",
		    "namespace", "untrusted", "allow_all", "trust_level:untrusted",
		    "trust_level_not_supported");
}

static void order__a_refused_document_stays_as_it_was(void **state)
{
	struct trial t;

	(void)state;
	begin(&t, NULL, EVERYTHING, "docker", "untrusted", "allow_all");
	t.spec->cpu = 64;
	t.spec->timeout_sec = 3600;
	apply(&t);
	assert_int_equal(t.rc, -SBX_E_POLICY_UNSUPPORTED);
	assert_string_equal(t.spec->network_policy, "allow_all");
	assert_string_equal(t.spec->trust_level, "untrusted");
	assert_true(t.spec->cpu == 64 && t.spec->timeout_sec == 3600 && t.spec->pids == -1);
	end(&t);
}

static void order__error_may_be_null(void **state)
{
	struct trial t;

	(void)state;
	begin(&t, NULL, "{}", NULL, NULL, NULL);
	assert_int_equal(orch_policy_apply(t.s, t.p, t.spec, &t.eff, NULL),
			 -SBX_E_RUNTIME_UNAVAILABLE);
	end(&t);
	begin(&t, NULL, EVERYTHING, NULL, NULL, "x");
	assert_int_equal(orch_policy_apply(t.s, t.p, t.spec, &t.eff, NULL),
			 -SBX_E_POLICY_UNSUPPORTED);
	end(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(runtime__default_is_the_setting),
		cmocka_unit_test(runtime__the_default_is_never_replaced),
		cmocka_unit_test(runtime__unavailable_tells_its_reasons),
		cmocka_unit_test(runtime__another_that_works_is_named),
		cmocka_unit_test(runtime__without_a_record_is_unavailable),
		cmocka_unit_test(runtime__a_foreign_reason_is_not_repeated),
		cmocka_unit_test(runtime__unknown_name_is_a_mistake_of_the_document),
		cmocka_unit_test(trust__untrusted_needs_more_than_the_host),
		cmocka_unit_test(trust__untrusted_on_the_host_is_refused_without_any_record),
		cmocka_unit_test(trust__levels_that_the_preflight_lacks),
		cmocka_unit_test(trust__seatbelt_standard_has_its_own_words),
		cmocka_unit_test(trust__none_is_standard),
		cmocka_unit_test(trust__unknown_level_is_a_mistake_of_the_document),
		cmocka_unit_test(network__none_is_the_tier),
		cmocka_unit_test(network__trusted_asks_for_allowlist),
		cmocka_unit_test(network__a_tier_may_leave_it_to_the_default),
		cmocka_unit_test(network__word_is_trimmed_and_lowered),
		cmocka_unit_test(network__other_words_are_refused),
		cmocka_unit_test(network__a_strange_word_is_quoted_in_the_details),
		cmocka_unit_test(network__posture_wins_over_what_a_preflight_claims),
		cmocka_unit_test(network__readiness_is_needed_too),
		cmocka_unit_test(network__host_gated_runtimes_deny_all_when_ready),
		cmocka_unit_test(network__targets_without_allowlist_are_a_mistake),
		cmocka_unit_test(network__targets_must_be_within_the_operators),
		cmocka_unit_test(order__availability_before_trust_and_network),
		cmocka_unit_test(order__trust_before_network),
		cmocka_unit_test(order__a_refused_document_stays_as_it_was),
		cmocka_unit_test(order__error_may_be_null),
	};

	return cmocka_run_group_tests(tests, clean_environment, NULL);
}
