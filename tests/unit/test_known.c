/* SPDX-License-Identifier: Apache-2.0 */
/* What is known about every runtime: postures and reasons against the published tables. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "runtimes/runtimes.h"

/* ---- postures -------------------------------------------------------------------------------- */

static const char *const order[] = { "namespace", "docker",   "firecracker", "lima",	"qemu",
				     "vz_linux",  "vz_macos", "seatbelt",    "worktree" };

static void known__lists_every_runtime_in_order(void **state)
{
	(void)state;
	for (size_t i = 0; i < SBX_COUNT(order); i++) {
		assert_non_null(rt_known_at(i));
		assert_string_equal(rt_known_at(i)->name, order[i]);
		assert_ptr_equal(rt_known_find(order[i]), rt_known_at(i));
	}
	assert_null(rt_known_at(SBX_COUNT(order)));
	assert_null(rt_known_at(SIZE_MAX));
}

static void known__finds_nothing_else(void **state)
{
	(void)state;
	assert_null(rt_known_find(NULL));
	assert_null(rt_known_find(""));
	assert_null(rt_known_find("Docker"));
	assert_null(rt_known_find("dock"));
}

static void known__rows_are_complete(void **state)
{
	(void)state;
	for (size_t i = 0; rt_known_at(i); i++) {
		const struct rt_known *k = rt_known_at(i);

		assert_true(strlen(k->notes) > 20 && k->notes[strlen(k->notes) - 1] == '.');
		assert_true(*k->default_images && !strstr(k->default_images, "  "));
		assert_true(k->implementation && k->deny_all.state && k->allowlist.state);
		assert_true(k->session_support && k->session_recovery && k->session_repair);
	}
}

static void known__isolation_is_the_published_table(void **state)
{
	static const struct {
		const char *name, *boundary;
		bool vm_grade, untrusted;
	} rows[] = {
		{ "namespace", "container", false, true },
		{ "docker", "container", false, true },
		{ "firecracker", "vm_grade", true, true },
		{ "lima", "vm_grade", true, true },
		{ "qemu", "vm_grade", true, true },
		{ "vz_linux", "vm_grade", true, true },
		{ "vz_macos", "vm_grade_scaffold", false, false },
		{ "seatbelt", "host_local", false, false },
		{ "worktree", "host_local", false, false },
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		const struct rt_known *k = rt_known_find(rows[i].name);

		assert_string_equal(k->boundary_class, rows[i].boundary);
		assert_int_equal(k->vm_grade, rows[i].vm_grade);
		assert_int_equal(k->untrusted_eligible, rows[i].untrusted);
	}
}

static void posture_is(const struct rt_policy_posture *p, const char *text)
{
	char found[96];

	(void)snprintf(found, sizeof(found), "%s %s %s", rt_support_name(p->state),
		       p->strict ? "strict" : "no", p->readiness_source);
	assert_string_equal(found, text);
}

static void known__network_is_the_published_table(void **state)
{
	static const struct {
		const char *name, *deny_all, *allowlist;
	} rows[] = {
		{ "namespace", "supported strict runtime_preflight",
		  "host_gated strict runtime_preflight" },
		{ "docker", "supported strict config", "host_gated strict config" },
		{ "firecracker", "host_gated strict runtime_preflight",
		  "scaffold no runtime_preflight" },
		{ "lima", "host_gated strict runtime_preflight", "unsupported no not_applicable" },
		{ "qemu", "host_gated strict runtime_preflight", "unsupported no not_applicable" },
		{ "vz_linux", "host_gated strict runtime_preflight",
		  "unsupported no not_applicable" },
		{ "vz_macos", "scaffold no runtime_preflight", "unsupported no not_applicable" },
		{ "seatbelt", "unsupported no not_applicable", "unsupported no not_applicable" },
		{ "worktree", "unsupported no not_applicable", "unsupported no not_applicable" },
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		posture_is(&rt_known_find(rows[i].name)->deny_all, rows[i].deny_all);
		posture_is(&rt_known_find(rows[i].name)->allowlist, rows[i].allowlist);
	}
}

static void known__sessions_are_the_published_table(void **state)
{
	static const struct {
		const char *name, *text;
	} rows[] = {
		{ "namespace", "supported workspace_only 0 unsupported unsupported" },
		{ "docker", "supported workspace_only 0 unsupported unsupported" },
		{ "firecracker", "scaffold scaffold 0 unsupported unsupported" },
		{ "lima", "scaffold scaffold 0 unsupported unsupported" },
		{ "qemu", "scaffold scaffold 0 unsupported unsupported" },
		{ "vz_linux", "host_gated warm_vm 1 host_gated host_gated" },
		{ "vz_macos", "scaffold scaffold 0 scaffold scaffold" },
		{ "seatbelt", "scaffold workspace_only 0 unsupported unsupported" },
		{ "worktree", "scaffold workspace_only 0 unsupported unsupported" },
	};
	char found[128];

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		const struct rt_known *k = rt_known_find(rows[i].name);

		(void)snprintf(found, sizeof(found), "%s %s %d %s %s",
			       rt_support_name(k->session_support), k->session_reuse,
			       k->session_live_check, rt_support_name(k->session_recovery),
			       rt_support_name(k->session_repair));
		assert_string_equal(found, rows[i].text);
	}
}

static void known__implementation_and_images(void **state)
{
	static const struct {
		const char *name, *state, *images;
	} rows[] = {
		{ "namespace", "supported", "host" },
		{ "docker", "supported", "python:3.11-slim node:20-alpine" },
		{ "firecracker", "host_gated", "python:3.11-slim node:20-alpine" },
		{ "lima", "host_gated", "ubuntu:24.04" },
		{ "qemu", "host_gated", "ubuntu:24.04" },
		{ "vz_linux", "host_gated", "ubuntu-24.04" },
		{ "vz_macos", "scaffold", "macos-15" },
		{ "seatbelt", "host_gated", "host-local" },
		{ "worktree", "supported", "host-local" },
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		const struct rt_known *k = rt_known_find(rows[i].name);

		assert_string_equal(rt_support_name(k->implementation), rows[i].state);
		assert_string_equal(k->default_images, rows[i].images);
	}
}

static void known__only_strict_policies_have_a_source_to_ask(void **state)
{
	(void)state;
	for (size_t i = 0; rt_known_at(i); i++) {
		const struct rt_policy_posture *p[] = { &rt_known_at(i)->deny_all,
							&rt_known_at(i)->allowlist };

		for (size_t j = 0; j < SBX_COUNT(p); j++) {
			if (p[j]->state == RT_UNSUPPORTED)
				assert_string_equal(p[j]->readiness_source, "not_applicable");
			if (p[j]->strict)
				assert_string_not_equal(p[j]->readiness_source, "not_applicable");
		}
	}
}

static void support__every_state_has_its_name(void **state)
{
	(void)state;
	assert_string_equal(rt_support_name(RT_SUPPORTED), "supported");
	assert_string_equal(rt_support_name(RT_UNSUPPORTED), "unsupported");
	assert_string_equal(rt_support_name(RT_SCAFFOLD), "scaffold");
	assert_string_equal(rt_support_name(RT_HOST_GATED), "host_gated");
	assert_string_equal(rt_support_name(RT_NOT_APPLICABLE), "not_applicable");
	assert_string_equal(rt_support_name(0), "unsupported");
}

/* ---- reasons --------------------------------------------------------------------------------- */

static void reasons__every_literal_has_its_code(void **state)
{
	static const struct {
		const char *code, *raw;
	} rows[] = {
		{ "runtime_unavailable",
		  "docker_unavailable firecracker_unavailable seatbelt_unavailable "
		  "vz_linux_unavailable vz_macos_unavailable worktree_unavailable "
		  "namespace_unavailable preflight_missing preflight_timed_out" },
		{ "unsupported_os", "macos_required unsupported_platform" },
		{ "unsupported_arch", "apple_silicon_required" },
		{ "helper_unavailable", "macos_virtualization_helper_unavailable" },
		{ "helper_protocol_mismatch", "macos_virtualization_helper_protocol_mismatch "
					      "macos_virtualization_helper_empty_response "
					      "macos_virtualization_helper_invalid_json" },
		{ "helper_missing", "macos_helper_missing macos_helper_not_executable "
				    "macos_helper_path_missing macos_helper_path_unconfigured" },
		{ "template_missing",
		  "macos_template_missing template_missing vz_linux_template_missing" },
		{ "template_unconfigured", "template_unconfigured" },
		{ "network_policy_unsupported",
		  "strict_allowlist_not_supported strict_deny_all_not_supported "
		  "unsupported_network_policy" },
		{ "trust_policy_denied", "seatbelt_standard_disabled trust_level_not_supported "
					 "trust_level_requires_vm_runtime" },
		{ "host_prerequisite_missing",
		  "/dev/kvm_missing firecracker_binary_missing git_too_old_or_missing "
		  "limactl_missing sandbox_exec_missing unshare_required_on_linux "
		  "virtiofsd_missing user_namespaces_unavailable mount_namespaces_unavailable "
		  "seccomp_unavailable cgroup_unavailable qemu_missing" },
		{ "host_permission_denied", "permission_denied_host_enforcement" },
		{ "feature_not_implemented", "real_execution_not_implemented" },
		{ "image_store_unavailable",
		  "image_store_root_missing image_store_root_not_directory" },
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		sbx_autofree char *copy = strdup(rows[i].raw);
		char *rest = copy, *raw;

		while ((raw = strsep(&rest, " ")))
			if (strcmp(rt_reason_normalize(raw), rows[i].code) != 0)
				fail_msg("%s: wanted %s, got %s", raw, rows[i].code,
					 rt_reason_normalize(raw));
	}
}

static void reasons__prefixes_come_first(void **state)
{
	(void)state;
	assert_string_equal(rt_reason_normalize("macos_virtualization_helper_protocol_error"),
			    "helper_protocol_mismatch");
	assert_string_equal(rt_reason_normalize("image_store_unavailable: bad root"),
			    "image_store_unavailable");
	assert_string_equal(rt_reason_normalize("image_store_unavailable"),
			    "image_store_unavailable");
}

static void reasons__anything_else_is_unknown(void **state)
{
	static const char *const rows[] = { NULL,
					    "",
					    "  ",
					    "unexpected_future_reason",
					    "Docker_unavailable",
					    "linux_required",
					    "docker_unavailable_now",
					    "macos_host_required" };

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++)
		assert_string_equal(rt_reason_normalize(rows[i]), "unknown");
}

static void reasons__white_space_around_does_not_matter(void **state)
{
	(void)state;
	assert_string_equal(rt_reason_normalize(" \tlimactl_missing\n"),
			    "host_prerequisite_missing");
}

static void reasons__details_are_the_published_table(void **state)
{
	static const struct rt_reason_info rows[] = {
		{ "runtime_unavailable", "runtime", "error", "use_different_runtime" },
		{ "unsupported_os", "platform", "error", "prepare_host" },
		{ "unsupported_arch", "platform", "error", "prepare_host" },
		{ "helper_unavailable", "helper", "error", "check_helper" },
		{ "helper_protocol_mismatch", "helper", "error", "check_helper" },
		{ "helper_missing", "helper", "error", "check_helper" },
		{ "template_missing", "template", "error", "configure_template" },
		{ "template_unconfigured", "template", "error", "configure_template" },
		{ "network_policy_unsupported", "network", "error", "adjust_request_policy" },
		{ "trust_policy_denied", "policy", "error", "adjust_request_policy" },
		{ "host_prerequisite_missing", "host", "error", "prepare_host" },
		{ "host_permission_denied", "host", "error", "prepare_host" },
		{ "feature_not_implemented", "implementation", "error", "use_different_runtime" },
		{ "image_store_unavailable", "image_store", "error", "prepare_host" },
		{ "unknown", "unknown", "warning", "inspect_reasons" },
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		const struct rt_reason_info *info = rt_reason_info(rows[i].code);

		assert_string_equal(info->code, rows[i].code);
		assert_string_equal(info->category, rows[i].category);
		assert_string_equal(info->severity, rows[i].severity);
		assert_string_equal(info->operator_action, rows[i].operator_action);
	}
	assert_string_equal(rt_reason_info("no_such_code")->code, "unknown");
	assert_string_equal(rt_reason_info(NULL)->code, "unknown");
}

static const struct {
	const char *raw, *code;
} table[] = {
#define PREFIX(raw, code) { raw, code },
#define RAW(raw, code)	  { raw, code },
#include "runtimes/reasons.def"
};

static void reasons__table_is_distinct_and_leads_to_codes(void **state)
{
	(void)state;
	for (size_t i = 0; i < SBX_COUNT(table); i++) {
		assert_string_equal(rt_reason_info(table[i].code)->code, table[i].code);
		assert_string_equal(rt_reason_normalize(table[i].raw), table[i].code);
		for (size_t j = 0; j < i; j++)
			assert_string_not_equal(table[i].raw, table[j].raw);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(known__lists_every_runtime_in_order),
		cmocka_unit_test(known__finds_nothing_else),
		cmocka_unit_test(known__rows_are_complete),
		cmocka_unit_test(known__isolation_is_the_published_table),
		cmocka_unit_test(known__network_is_the_published_table),
		cmocka_unit_test(known__sessions_are_the_published_table),
		cmocka_unit_test(known__implementation_and_images),
		cmocka_unit_test(known__only_strict_policies_have_a_source_to_ask),
		cmocka_unit_test(support__every_state_has_its_name),
		cmocka_unit_test(reasons__every_literal_has_its_code),
		cmocka_unit_test(reasons__prefixes_come_first),
		cmocka_unit_test(reasons__anything_else_is_unknown),
		cmocka_unit_test(reasons__white_space_around_does_not_matter),
		cmocka_unit_test(reasons__details_are_the_published_table),
		cmocka_unit_test(reasons__table_is_distinct_and_leads_to_codes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
