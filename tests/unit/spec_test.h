/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of run documents share. Include after cmocka.h. */
#ifndef SBX_TESTS_UNIT_SPEC_TEST_H
#define SBX_TESTS_UNIT_SPEC_TEST_H

#include <stdio.h>
#include <stdlib.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/json.h"
#include "mountspec/mountspec.h"

/* The options of the two doors, and of the store. */
static const __attribute__((unused)) struct ms_options mount = { .refuse_unknown = true,
								 .default_image = "host" };
static const __attribute__((unused)) struct ms_options api = { .refuse_unknown = false };
static const __attribute__((unused)) struct ms_options stored = { .stored = true };

#define CMD		     "\"command\":[\"true\"]"
#define FILE1(path, content) "{" CMD ",\"files\":[{\"path\":" path ",\"content_b64\":" content "}]}"
#define FILE_B(path)                                                                               \
	"{" CMD ",\"files\":[{\"path\":\"a\",\"content_b64\":\"\"},{\"path\":\"" path              \
	"\",\"content_b64\":\"\"}]}"
#define WITH(member) "{" CMD "," member "}"
#define X16(s)	     s s s s s s s s s s s s s s s s
#define X256(s)	     X16(X16(s))

/* What ms_run_json says, read back and said again. */
static inline void assert_round_trip(const struct ms_run_spec *s)
{
	sbx_autofree char *text = ms_run_json(s), *again = NULL, *canonical = NULL, *same = NULL;
	ms_autorun struct ms_run_spec *back = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;

	assert_non_null(text);
	if (ms_run_parse(text, strlen(text), &stored, &back, &e) < 0)
		fail_msg("%s: %s", e.message, text);
	again = ms_run_json(back);
	assert_string_equal(text, again);
	canonical = ms_run_canonical(s);
	same = ms_run_canonical(back);
	assert_non_null(canonical);
	assert_string_equal(canonical, same);
	assert_int_equal(back->timeout_sec, s->timeout_sec);
	assert_true(back->cpu <= s->cpu && back->cpu >= s->cpu);
	assert_int_equal(back->n_command, s->n_command);
	assert_null(back->command ? back->command[back->n_command] : NULL);
	assert_int_equal(back->stdin_len, s->stdin_len);
	assert_int_equal(back->stdin_data != NULL, s->stdin_data != NULL);
}

/* head, n times fill, tail; the caller frees it. */
static inline char *large(const char *head, size_t n, const char *fill, const char *tail)
{
	struct sbx_buf b = SBX_BUF_INIT(64 << 20);

	sbx_buf_puts(&b, head);
	for (size_t i = 0; i < n; i++)
		sbx_buf_puts(&b, fill);
	sbx_buf_puts(&b, tail);
	return sbx_buf_steal(&b);
}

#endif
