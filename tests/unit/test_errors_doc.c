/* SPDX-License-Identifier: Apache-2.0 */
/* docs/errors.md says what the table of errors says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdlib.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/error.h"
#include "base/fs.h"

static const struct {
	const char *name;
	int http;
	const char *sys, *doc;
} rows[] = {
#define X(sym, wire, http_, sys_, doc_) { wire, http_, #sys_, doc_ },
#include "base/errors.def"
#undef X
};

static void doc__has_every_error_and_no_other(void **state)
{
	sbx_autofree char *doc = NULL;
	sbx_autoclose int dir = -1;
	const char *root = getenv("SBX_SOURCE_ROOT");
	size_t n = 0;

	(void)state;
	assert_non_null(root);
	dir = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
	assert_true(dir >= 0);
	assert_int_equal(sbx_read_file(dir, "docs/errors.md", 1 << 20, &doc, NULL), 0);
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		sbx_autobuf line = SBX_BUF_INIT(4096);

		sbx_buf_printf(&line, "\n| `%s` | %d | %s | %s |\n", rows[i].name, rows[i].http,
			       rows[i].sys, rows[i].doc);
		if (!strstr(doc, line.data))
			fail_msg("docs/errors.md lacks this line:%s", line.data);
	}
	for (const char *p = doc; (p = strstr(p, "\n| `")) != NULL; p++)
		n++;
	assert_int_equal(n, SBX_COUNT(rows));
}

/* Whoever has a name can ask for the rest, and no two errors look the same outside. */
static void table__is_sound(void **state)
{
	(void)state;
	assert_int_equal(SBX_COUNT(rows), SBX_E__COUNT - 1);
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		enum sbx_code code = sbx_code_find(rows[i].name);

		assert_int_equal(code, i + 1);
		assert_int_equal(sbx_code_http(code), rows[i].http);
		assert_true(sbx_code_http(code) >= 400 && sbx_code_http(code) < 600);
		assert_true(sbx_code_errno(code) > 0);
		assert_string_equal(sbx_code_doc(code), rows[i].doc);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(doc__has_every_error_and_no_other),
		cmocka_unit_test(table__is_sound),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
