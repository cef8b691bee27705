/* SPDX-License-Identifier: Apache-2.0 */
/* Images of runtimes that find them by name themselves; and which image a run gets that names none.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "mountspec/mountspec.h"
#include "orchestrator/image.h"
#include "tests/unit/policy_util.h"

static int check(const char *runtime, const char *name, struct sbx_error *e)
{
	SBX_AUTO(orch_settings_freep) struct orch_settings *s = settings(NULL);

	return orch_image_check(s, "/nonexistent", runtime, name, e);
}

static void name__could_be_an_image(void **state)
{
	static const char *const good[] = {
		"busybox",
		"python:3.11-slim",
		"registry.example.com:5000/a/b_c:V1.0",
		"127.0.0.1:5000/x",
		"a@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
		"sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
		"hosts",
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(good); i++)
		if (check("docker", good[i], NULL) != 0)
			fail_msg("'%s' was refused", good[i]);
}

static void name__could_not(void **state)
{
	static const char *const bad[] = { "",	   "host",  "host-local", "-a",	  "/a",	   "a/",
					   "a//b", "../a",  "a/../b",	  "a b",  "a\nb",  "a?b",
					   "a#b",  "a%2fb", "a&b=c",	  "a\\b", "\"a\"", ".a" };

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(bad); i++) {
		sbx_autoerror e = SBX_ERROR_INIT;

		if (check("docker", bad[i], &e) != -SBX_E_INVALID_SPEC)
			fail_msg("'%s' was taken", bad[i]);
		assert_non_null(strstr(e.message, "python:3.11-slim"));
		assert_non_null(strstr(e.details, "base_image"));
	}
}

static void name__has_a_length(void **state)
{
	char name[600];

	(void)state;
	memset(name, 'a', sizeof(name));
	name[500] = '\0';
	assert_int_equal(check("docker", name, NULL), 0);
	name[500] = 'a';
	name[501] = '\0';
	assert_int_equal(check("docker", name, NULL), -SBX_E_INVALID_SPEC);
}

static void name__is_the_other_runtimes_business(void **state)
{
	(void)state;
	assert_int_equal(check("namespace", "host", NULL), 0);
	assert_int_equal(check(NULL, "host", NULL), 0);
	assert_int_equal(check("namespace", "python:3.11-slim", NULL), -SBX_E_IMAGE_NOT_FOUND);
	assert_int_equal(check("no_such_runtime", "host", NULL), 0);
}

static void default__depends_on_the_runtime(void **state)
{
	static const char *const overrides[] = { "default_runtime=docker",
						 "docker_default_image=mine:2", NULL };
	SBX_AUTO(orch_settings_freep) struct orch_settings *s = settings(overrides);

	(void)state;
	assert_string_equal(orch_image_default(s, "namespace"), "host");
	assert_string_equal(orch_image_default(s, "docker"), "mine:2");
	assert_string_equal(orch_image_default(s, NULL), "mine:2");
	assert_string_equal(orch_image_default(s, ""), "mine:2");
}

static void default__is_filled_in_when_a_document_is_read(void **state)
{
	static const struct {
		const char *text, *image;
	} rows[] = {
		{ "{\"command\":[\"true\"]}", "host" },
		{ "{\"command\":[\"true\"],\"runtime\":\"docker\"}", "python:3.11-slim" },
		{ "{\"command\":[\"true\"],\"runtime\":\"docker\",\"base_image\":\"x\"}", "x" },
	};
	SBX_AUTO(orch_settings_freep) struct orch_settings *s = settings(NULL);
	const struct ms_options opts = { .default_image_of = orch_image_default,
					 .default_image_ctx = s };

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		ms_autorun struct ms_run_spec *spec = NULL;

		assert_int_equal(
			ms_run_parse(rows[i].text, strlen(rows[i].text), &opts, &spec, NULL), 0);
		assert_string_equal(spec->base_image, rows[i].image);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(name__could_be_an_image),
		cmocka_unit_test(name__could_not),
		cmocka_unit_test(name__has_a_length),
		cmocka_unit_test(name__is_the_other_runtimes_business),
		cmocka_unit_test(default__depends_on_the_runtime),
		cmocka_unit_test(default__is_filled_in_when_a_document_is_read),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
