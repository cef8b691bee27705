/* SPDX-License-Identifier: Apache-2.0 */
/* mountspec: a script in place of a document. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "spec_test.h"

static void script__splits_as_the_kernel_does(void **state)
{
	static const struct {
		const char *text, *interpreter, *argument;
	} rows[] = {
		{ "#!/bin/sh\necho hi\n", "/bin/sh", NULL },
		{ "#!/bin/sh", "/bin/sh", NULL },
		{ "#! /bin/sh -e\n", "/bin/sh", "-e" },
		{ "#!\t/bin/sh\t-e \t\nx", "/bin/sh", "-e" },
		{ "#!/usr/bin/env python3 -u  x \n", "/usr/bin/env", "python3 -u  x" },
		{ "#!sh\n", "sh", NULL },
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		sbx_autoerror e = SBX_ERROR_INIT;
		ms_autorun struct ms_run_spec *s = NULL;
		size_t n = rows[i].argument ? 3 : 2;

		if (ms_run_from_script(rows[i].text, strlen(rows[i].text), &mount, &s, &e) < 0)
			fail_msg("row %zu: %s", i, e.message);
		assert_int_equal(s->n_command, n);
		assert_string_equal(s->command[0], rows[i].interpreter);
		if (rows[i].argument)
			assert_string_equal(s->command[1], rows[i].argument);
		assert_string_equal(s->command[n - 1], "script");
		assert_null(s->command[n]);
		assert_int_equal(s->n_files, 1);
		assert_string_equal(s->files[0].path, "script");
		assert_int_equal(s->files[0].len, strlen(rows[i].text));
		assert_memory_equal(s->files[0].data, rows[i].text, s->files[0].len);
		assert_string_equal(s->base_image, "host");
		assert_int_equal(s->timeout_sec, 300);
		assert_round_trip(s);
	}
}

static void script__refuses(void **state)
{
	static const struct {
		const char *text;
		size_t len;
		const char *says;
	} rows[] = {
		{ "", 0, "does not begin with #!" },
		{ "#", 1, "does not begin with #!" },
		{ "echo\n", 5, "does not begin with #!" },
		{ "#!", 2, "names no program after '#!'" },
		{ "#!\n", 3, "names no program after '#!'" },
		{ "#! \t \nx", 7, "names no program after '#!'" },
		{ "#!/bin/sh\r\necho\r\n", 17, "ends with a carriage return" },
		{ "#!/bin/s\0h\n", 11, "contains a NUL byte" },
		{ "#!/bin/sh \xff\n", 12, "is not valid UTF-8" },
	};
	sbx_autofree char *many = large("#!", MS_ARG_MAX, "x", "\n");
	sbx_autofree char *huge = large("#!/bin/sh\n", MS_DOC_MAX, "x", "");
	struct ms_run_spec *s = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		assert_int_equal(ms_run_from_script(rows[i].text, rows[i].len, &mount, &s, &e),
				 -SBX_E_INVALID_SPEC);
		assert_null(s);
		if (!strstr(e.message, rows[i].says) || !strstr(e.message, "command"))
			fail_msg("row %zu: %s", i, e.message);
	}
	assert_int_equal(ms_run_from_script(many, strlen(many), &mount, &s, &e),
			 -SBX_E_SPEC_TOO_LARGE);
	assert_int_equal(ms_run_from_script(huge, strlen(huge), &mount, &s, &e),
			 -SBX_E_SPEC_TOO_LARGE);
	assert_int_equal(ms_run_from_script("#!/bin/sh\n", 10, &api, &s, &e), -SBX_E_INVALID_SPEC);
	assert_non_null(strstr(e.message, "base_image: is missing"));
}

static void script__any_bytes_below_the_first_line(void **state)
{
	static const char text[] = "#!/bin/sh\nexit 0\n\0\xff\xfe";
	ms_autorun struct ms_run_spec *s = NULL;

	(void)state;
	assert_int_equal(ms_run_from_script(text, sizeof(text) - 1, &mount, &s, NULL), 0);
	assert_memory_equal(s->files[0].data, text, sizeof(text) - 1);
	assert_round_trip(s);
}

static void script__largest_reads_back(void **state)
{
	sbx_autofree char *text = large("#!/bin/sh\n", MS_DOC_MAX - 10, "x", "");
	ms_autorun struct ms_run_spec *s = NULL;

	(void)state;
	assert_int_equal(ms_run_from_script(text, strlen(text), &mount, &s, NULL), 0);
	assert_round_trip(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(script__splits_as_the_kernel_does),
		cmocka_unit_test(script__refuses),
		cmocka_unit_test(script__any_bytes_below_the_first_line),
		cmocka_unit_test(script__largest_reads_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
