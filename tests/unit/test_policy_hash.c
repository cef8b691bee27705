/* SPDX-License-Identifier: Apache-2.0 */
/* The hash of the configuration, and preflight records as policy reads them. */
#include "tests/unit/policy_util.h"

/* ---- records --------------------------------------------------------------------------------- */

static void records__broken_text_is_refused(void **state)
{
	static const char *const rows[] = {
		"",
		"null",
		"[]",
		"{",
		"{} x",
		"{\"docker\":1}",
		"{\"docker\":{}}",
		"{\"docker\":{\"available\":true}}",
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		struct orch_preflights *p = NULL;
		sbx_autoerror e = SBX_ERROR_INIT;

		assert_int_equal(orch_preflights_parse(rows[i], &p, &e), -SBX_E_RUNTIME_ERROR);
		assert_null(p);
		assert_true(strlen(e.message) > 10);
	}
}

static void records__are_found_by_name(void **state)
{
	struct orch_preflights *p = preflights("{" WITH_CGROUP ",\"made_up\":7}\n");

	(void)state;
	assert_non_null(orch_preflight(p, "namespace"));
	assert_int_equal(orch_preflight(p, "namespace")->n_reasons, 0);
	assert_null(orch_preflight(p, "docker"));
	assert_null(orch_preflight(p, "made_up"));
	assert_null(orch_preflight(NULL, "namespace"));
	assert_null(orch_preflights_free(p));
	assert_null(orch_preflights_free(NULL));
}

static void records__of_the_probes_are_understood(void **state)
{
	static const struct rt_host host = { .state_dir = "/tmp" };
	struct orch_preflights *p;
	sbx_autobuf text = SBX_BUF_INIT(64 << 10);

	(void)state;
	sbx_buf_puts(&text, "{");
	for (size_t i = 0; rt_known_at(i); i++) {
		struct rt_preflight record = { .n_reasons = 0 };

		if (rt_driver_find(rt_known_at(i)->name))
			record.deny_all_ready = record.trusted = true;
		else
			rt_preflight(rt_known_at(i)->name, &host, &record);
		sbx_buf_printf(&text, "%s\"%s\":", i ? "," : "", rt_known_at(i)->name);
		rt_preflight_json(&record, &text);
		rt_preflight_clear(&record);
	}
	sbx_buf_puts(&text, "}");
	p = preflights(text.data);
	for (size_t i = 0; rt_known_at(i); i++)
		assert_int_equal(orch_preflight(p, rt_known_at(i)->name)->n_reasons == 0,
				 rt_driver_find(rt_known_at(i)->name) != NULL);
	(void)orch_preflights_free(p);
}

/* ---- hash ------------------------------------------------------------------------------------ */

static void hash_is(const char *const *overrides, const char *wanted)
{
	SBX_AUTO(orch_settings_freep) struct orch_settings *s = settings(overrides);
	char hash[17];

	orch_policy_hash(s, hash);
	assert_string_equal(hash, wanted);
}

static void hash__is_the_reference_with_version_1_0(void **state)
{
	static const char *const overrides[] = { "default_runtime=docker",
						 "supported_spec_versions=1.0", NULL };

	(void)state;
	hash_is(overrides, "c3b65e57d5744281");
}

static void hash__is_the_reference_with_both_versions(void **state)
{
	static const char *const overrides[] = { "default_runtime=docker",
						 "supported_spec_versions=1.0,1.1", NULL };

	(void)state;
	hash_is(overrides, "0a21b4b1bba54141");
}

static void hash__order_of_the_versions_does_not_matter(void **state)
{
	static const char *const overrides[] = { "default_runtime=docker",
						 "supported_spec_versions=1.1, 1.0", NULL };

	(void)state;
	hash_is(overrides, "0a21b4b1bba54141");
}

static void hash__changes_with_each_of_its_settings(void **state)
{
	static const char *const rows[] = {
		"",
		"default_runtime=docker",
		"network_default=allowlist",
		"egress_enforcement=true",
		"egress_allowlist=10.0.0.0/8",
		"egress_allowlist=10.0.0.0/8,example.com",
		"artifact_ttl_hours=25",
		"max_upload_mb=65",
		"max_log_bytes=1",
		"max_artifact_file_bytes=1",
		"max_artifact_total_bytes=1",
		"pids_limit=255",
		"max_cpu=4.5",
		"max_mem_mb=8193",
		"workspace_cap_mb=255",
		"supported_spec_versions=1.0",
		"ulimit_nofile=1023",
		"ulimit_nproc=511",
		"docker_seccomp=/profile.json",
		"docker_apparmor_profile=sandbox",
	};
	char hashes[SBX_COUNT(rows)][17];

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		const char *const overrides[] = { rows[i], NULL };
		SBX_AUTO(orch_settings_freep)
		struct orch_settings *s = settings(*rows[i] ? overrides : NULL);

		orch_policy_hash(s, hashes[i]);
		assert_int_equal(strspn(hashes[i], "0123456789abcdef"), 16);
		for (size_t j = 0; j < i; j++)
			assert_string_not_equal(hashes[i], hashes[j]);
	}
}

static void hash__leaves_out_what_is_no_policy(void **state)
{
	static const char *const rows[] = { "warm_runners=3", "queue_ttl_sec=9",
					    "tier_untrusted_max_cpu=0.5", "log_level=debug" };
	SBX_AUTO(orch_settings_freep) struct orch_settings *base = settings(NULL);
	char wanted[17];

	(void)state;
	orch_policy_hash(base, wanted);
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		const char *const overrides[] = { rows[i], NULL };

		hash_is(overrides, wanted);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(records__broken_text_is_refused),
		cmocka_unit_test(records__are_found_by_name),
		cmocka_unit_test(records__of_the_probes_are_understood),
		cmocka_unit_test(hash__is_the_reference_with_version_1_0),
		cmocka_unit_test(hash__is_the_reference_with_both_versions),
		cmocka_unit_test(hash__order_of_the_versions_does_not_matter),
		cmocka_unit_test(hash__changes_with_each_of_its_settings),
		cmocka_unit_test(hash__leaves_out_what_is_no_policy),
	};

	return cmocka_run_group_tests(tests, clean_environment, NULL);
}
