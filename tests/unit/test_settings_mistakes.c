/* SPDX-License-Identifier: Apache-2.0 */
/* Every kind of mistake in a setting, and what the message says about it. */
#include "tests/unit/settings_util.h"

/* Loading must fail; the message names the file and line, and holds `part`. */
static void refused(const char *text, int line, const char *part)
{
	struct orch_settings *s = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;
	char where[64];

	assert_int_equal(load(text, NULL, &s, &e), -SBX_E_INVALID_CONFIG);
	assert_null(s);
	(void)snprintf(where, sizeof(where), "%s:%d: ", conf, line);
	if (strncmp(e.message, where, strlen(where)) != 0)
		fail_msg("wanted \"%s...\", got \"%s\"", where, e.message);
	if (!strstr(e.message, part))
		fail_msg("wanted \"%s\" in \"%s\"", part, e.message);
}

static void refused_override(const char *override, const char *part)
{
	struct orch_settings *s = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;

	assert_int_equal(load("", override, &s, &e), -SBX_E_INVALID_CONFIG);
	if (strncmp(e.message, "command line", 12) != 0 || !strstr(e.message, part))
		fail_msg("wanted \"%s\", got \"%s\"", part, e.message);
}

/* By what is asked of the settings as a whole. */
static void refused_together(const char *override, const char *part)
{
	struct orch_settings *s = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;

	assert_int_equal(load("", override, &s, &e), -SBX_E_INVALID_CONFIG);
	if (!strstr(e.message, part))
		fail_msg("wanted \"%s\", got \"%s\"", part, e.message);
}

/* ---- mistakes in the file -------------------------------------------------------------------- */

static void mistakes__unknown_key_names_the_nearest(void **state)
{
	(void)state;
	refused("[sandbox]\nqueue_max_lenght = 5\n", 2, "did you mean 'queue_max_length'?");
	refused("[sandbox]\n\nSANDBOX_QUEUE_TTL_SEC = 5\n", 3, "did you mean 'queue_ttl_sec'?");
	refused("[sandbox]\nMAX_CPU = 5\n", 2, "did you mean 'max_cpu'?");
	refused("[sandbox]\nzzzzzzzzzzzzzzzzzzzzz = 5\n", 2, "--print-config");
}

static void mistakes__unknown_section(void **state)
{
	(void)state;
	refused("[sandboxes]\nmax_cpu = 5\n", 2, "section 'sandboxes'");
	refused("max_cpu = 5\n", 1, "settings are in [sandbox]");
}

static void mistakes__key_given_twice(void **state)
{
	(void)state;
	refused("[sandbox]\nmax_cpu = 1\n[Sandbox]\nmax_cpu = 2\n", 4, "already set in line 2");
	refused("[sandbox]\nadmins = a\nmax_cpu = 2\nadmins = b\n", 4, "already set in line 2");
}

static void mistakes__line_that_is_nothing(void **state)
{
	(void)state;
	refused("[sandbox]\nmax_cpu = 1\nhello world\n", 3, "neither a comment");
	refused("[sandbox]\nhello\nmax_cpu = zero\n", 2, "neither a comment");
	refused("[sandbox\nmax_cpu = 1\n", 1, "neither a comment");
}

static void mistakes__indented_line_after_a_single_value(void **state)
{
	(void)state;
	refused("[sandbox]\nmax_cpu = 1\n  queue_ttl_sec = 5\n", 3, "left edge");
}

static void mistakes__line_too_long(void **state)
{
	char text[400];

	(void)state;
	memset(text, 'a', sizeof(text));
	memcpy(text, "[sandbox]\nadmins = ", 19);
	text[sizeof(text) - 1] = '\0';
	refused(text, 2, "longer than");
}

static void mistakes__file_with_nul_or_too_large(void **state)
{
	struct orch_settings *s = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;
	int fd = open(conf, O_WRONLY | O_TRUNC | O_CLOEXEC);

	(void)state;
	assert_int_equal(sbx_write_all(fd, "[sandbox]\n\0", 11), 0);
	assert_int_equal(orch_settings_load(conf, NULL, 0, &s, &e), -SBX_E_INVALID_CONFIG);
	assert_non_null(strstr(e.message, "NUL"));
	assert_int_equal(ftruncate(fd, (1 << 20) + 1), 0);
	assert_int_equal(orch_settings_load(conf, NULL, 0, &s, &e), -SBX_E_INVALID_CONFIG);
	assert_non_null(strstr(e.message, "1 MiB"));
	(void)close(fd);
}

static void mistakes__numbers(void **state)
{
	static const char *const ints[] = { "",	   "x",	   "1x",
					    "1.5", "0x10", "1 2",
					    "--1", "1e3",  "99999999999999999999" };
	static const char *const numbers[] = { "", "nan", "inf", "0x1p3", "1,5", "4 cores" };
	char text[128];

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(ints); i++) {
		(void)snprintf(text, sizeof(text), "[sandbox]\nqueue_ttl_sec = %s\n", ints[i]);
		refused(text, 2, "not a whole number from 1 to 2592000");
	}
	for (size_t i = 0; i < SBX_COUNT(numbers); i++) {
		(void)snprintf(text, sizeof(text), "[sandbox]\nmax_cpu = %s\n", numbers[i]);
		refused(text, 2, "not a number from 0.01 to 4096");
	}
}

static void mistakes__out_of_range(void **state)
{
	(void)state;
	refused("[sandbox]\nqueue_ttl_sec = 0\n", 2, "allowed are 1 to 2592000");
	refused("[sandbox]\nqueue_ttl_sec = -5\n", 2, "allowed are 1 to 2592000");
	refused("[sandbox]\nmax_cpu = 0\n", 2, "allowed are 0.01 to 4096");
	refused("[sandbox]\nmax_cpu = 5000\n", 2, "allowed are 0.01 to 4096");
}

static void mistakes__bounds_of_every_number_hold(void **state)
{
	char text[160];

	(void)state;
	for (size_t i = 0; orch_setting_at(i); i++) {
		const struct orch_setting_info *row = orch_setting_at(i);

		if (row->type != ORCH_SET_INT)
			continue;
		(void)snprintf(text, sizeof(text), "[sandbox]\n%s = %.0f\n", row->key,
			       row->max + 1);
		refused(text, 2, "out of range");
		(void)snprintf(text, sizeof(text), "[sandbox]\n%s = %.0f\n", row->key,
			       row->min - 1);
		refused(text, 2, "out of range");
	}
}

static void mistakes__words(void **state)
{
	(void)state;
	refused("[sandbox]\nstore_backend = memory\n", 2, "supported ones: sqlite");
	refused("[sandbox]\ndefault_runtime = dokcer\n", 2, "namespace docker");
	refused("[sandbox]\ndefault_runtime =\n", 2, "supported ones");
	refused("[sandbox]\ninotify = maybe\n", 2, "neither true");
	refused("[sandbox]\nlog_level = loud\n", 2, "error warning info debug");
	refused("[sandbox]\ntier_standard_network_policy = allow_all\n", 2, "deny_all allowlist");
}

static void mistakes__texts(void **state)
{
	(void)state;
	refused("[sandbox]\nstate_dir = var/lib\n", 2, "not an absolute path");
	refused("[sandbox]\ndocker_host = tcp://127.0.0.1:2375\n", 2, "behind unix://");
	refused("[sandbox]\ndocker_host = unix://run/docker.sock\n", 2, "behind unix://");
	refused("[sandbox]\ndocker_host = "
		"/0123456789012345678901234567890123456789012345678901234567"
		"89012345678901234567890123456789012345678901234567\n",
		2, "longer than 107 bytes");
	refused("[sandbox]\ndocker_host =\n", 2, "must not be empty");
	refused("[sandbox]\ndocker_default_uid = 0\n", 2, "out of range");
	refused("[sandbox]\ndefault_image = a\001b\n", 2, "control character");
	refused("[sandbox]\ndefault_image = a\xff\n", 2, "not UTF-8");
	refused("[sandbox]\ndefault_image =\n", 2, "must not be empty");
	refused("[sandbox]\nsupported_spec_versions = 1.0,2.0\n", 2, "1.0 1.1");
	refused("[sandbox]\nsupported_spec_versions = ,\n", 2, "must not be empty");
}

static void mistakes__lists_and_maps(void **state)
{
	(void)state;
	refused("[sandbox]\nadmins = [\"a\", 1]\n", 2, "entry 1 is no string");
	refused("[sandbox]\nadmins = [\"a\"\n", 2, "not a JSON array");
	refused("[sandbox]\nadmins = [\"a,b\"]\n", 2, "comma");
	refused("[sandbox]\nimages = py\n", 2, "alias=target");
	refused("[sandbox]\nimages = =x\n", 2, "alias=target");
	refused("[sandbox]\nimages = py=/a, py=/b\n", 2, "given twice");
}

static void mistakes__targets(void **state)
{
	(void)state;
	refused_together("egress_allowlist=a.org,10.0.0.1/8", "\"10.0.0.1/8\", which has bits");
	refused_together("egress_allowlist=[a", "\"[a\", which has a bracket");
	refused_together("egress_dns=127.0.0.53,example.org", "allowed are addresses");
	refused_together("egress_dns=10.0.0.0/8", "allowed are addresses");
}

static void mistakes__uids_beyond_the_last(void **state)
{
	struct orch_settings *s = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;

	(void)state;
	assert_int_equal(
		load("[sandbox]\nuid_base = 4294901760\nuid_range = 65536\n", NULL, &s, &e),
		-SBX_E_INVALID_CONFIG);
	assert_non_null(strstr(e.message, "uid_range"));
	sbx_error_clear(&e);
	(void)orch_settings_free(
		load_ok("[sandbox]\nuid_base = 4294901760\nuid_range = 65535\n", NULL));
}

static void mistakes__error_may_be_null(void **state)
{
	struct orch_settings *s = NULL;

	(void)state;
	assert_int_equal(load("[sandbox]\nmax_cpu = x\n", NULL, &s, NULL), -SBX_E_INVALID_CONFIG);
	assert_int_equal(load("[sandbox]\nnope\n", NULL, &s, NULL), -SBX_E_INVALID_CONFIG);
	assert_null(s);
}

static void environment__a_bad_value_names_the_variable(void **state)
{
	struct orch_settings *s = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;

	(void)state;
	(void)setenv("SANDBOX_WARM_RUNNERS", "65", 1);
	assert_int_equal(load("", NULL, &s, &e), -SBX_E_INVALID_CONFIG);
	(void)unsetenv("SANDBOX_WARM_RUNNERS");
	assert_string_equal(e.message, "environment variable SANDBOX_WARM_RUNNERS: warm_runners = "
				       "\"65\": out of range; allowed are 0 to 64");
}

static void command_line__refuses_what_is_no_setting(void **state)
{
	(void)state;
	refused_override("warm_runner=1", "did you mean 'warm_runners'?");
	refused_override("qqqqqqqqqqqqqqqqq=1", "--print-config");
	refused_override("warm_runners", "not key=value");
	refused_override("=1", "not key=value");
	refused_override("warm_runners=many", "not a whole number");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(mistakes__unknown_key_names_the_nearest),
		cmocka_unit_test(mistakes__unknown_section),
		cmocka_unit_test(mistakes__key_given_twice),
		cmocka_unit_test(mistakes__line_that_is_nothing),
		cmocka_unit_test(mistakes__indented_line_after_a_single_value),
		cmocka_unit_test(mistakes__line_too_long),
		cmocka_unit_test(mistakes__file_with_nul_or_too_large),
		cmocka_unit_test(mistakes__numbers),
		cmocka_unit_test(mistakes__out_of_range),
		cmocka_unit_test(mistakes__bounds_of_every_number_hold),
		cmocka_unit_test(mistakes__words),
		cmocka_unit_test(mistakes__texts),
		cmocka_unit_test(mistakes__lists_and_maps),
		cmocka_unit_test(mistakes__targets),
		cmocka_unit_test(mistakes__uids_beyond_the_last),
		cmocka_unit_test(mistakes__error_may_be_null),
		cmocka_unit_test(environment__a_bad_value_names_the_variable),
		cmocka_unit_test(command_line__refuses_what_is_no_setting),
	};

	return cmocka_run_group_tests(tests, make_conf, remove_conf);
}
