/* SPDX-License-Identifier: Apache-2.0 */
/* docs/spec.md says what the tables of fields say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>

#include "base/fs.h"
#include "spec_test.h"

static void add_choices(struct sbx_buf *b, const char *choices)
{
	for (const char *p = choices; *p; p++) {
		if (p == choices)
			sbx_buf_puts(b, "`");
		if (*p == ' ')
			sbx_buf_puts(b, "` `");
		else
			sbx_buf_add(b, p, 1);
	}
	sbx_buf_puts(b, "`");
}

static void add_bounds(struct sbx_buf *b, const struct ms_field_info *f)
{
	if (f->type == MS_ENUM)
		add_choices(b, f->choices);
	else if (f->type == MS_NUMBER)
		sbx_buf_printf(b, "more than %.0f, up to %.0f", f->min, f->max);
	else if (f->type == MS_INT && f->max >= 0x1p63)
		sbx_buf_printf(b, "%.0f or more", f->min);
	else if (f->type == MS_INT)
		sbx_buf_printf(b, "%.0f to %.0f", f->min, f->max);
	if (f->unit[0])
		sbx_buf_printf(b, " %s", f->unit);
	if (f->entries)
		sbx_buf_printf(b, "up to %zu entries", f->entries);
	if (f->bytes && f->type != MS_ENUM)
		sbx_buf_printf(b, "%s%sup to %zu bytes", f->entries ? ", " : "",
			       f->type == MS_FILES    ? "path "
			       : f->type == MS_STRING ? ""
						      : "each ",
			       f->bytes);
}

static void doc_row(struct sbx_buf *b, const struct ms_field_info *f)
{
	static const char *const types[] = {
		[MS_STRING] = "string",	    [MS_ENUM] = "word",	   [MS_INT] = "whole number",
		[MS_NUMBER] = "number",	    [MS_BOOL] = "boolean", [MS_STRINGS] = "strings",
		[MS_STRMAP] = "string map", [MS_FILES] = "files",  [MS_BYTES] = "base64",
		[MS_GROUP] = "object",
	};

	sbx_buf_printf(b, "| `%s` | %s | ", f->name, types[f->type]);
	add_bounds(b, f);
	sbx_buf_printf(b, " | `%s` | %s | %s | %s |\n", f->def, f->since, f->inherit ? "yes" : "no",
		       f->doc);
}

static const struct ms_field_info *run_info(size_t i)
{
	return ms_field_info((enum ms_field)i);
}

static const struct ms_field_info *session_info(size_t i)
{
	return ms_session_field_info((enum ms_session_field)i);
}

/* The tables, and the section of the page that each fills. */
static const struct {
	const struct ms_field_info *(*info)(size_t i);
	size_t n;
	const char *heading;
} kinds[] = {
	{ run_info, MS_F__COUNT, "\n## Fields\n" },
	{ session_info, MS_S__COUNT, "\n## Fields of a session\n" },
};

/* The text of a section; the caller frees it. */
static char *section(const char *doc, const char *heading)
{
	const char *start = strstr(doc, heading), *end;

	assert_non_null(start);
	start += strlen(heading);
	end = strstr(start, "\n## ");
	return end ? strndup(start, (size_t)(end - start)) : strdup(start);
}

static void doc__has_every_field_and_no_other(void **state)
{
	sbx_autofree char *doc = NULL;
	const char *root = getenv("SBX_SOURCE_ROOT");
	int dir;

	(void)state;
	assert_non_null(root);
	dir = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
	assert_true(dir >= 0);
	assert_int_equal(sbx_read_file(dir, "docs/spec.md", 1 << 20, &doc, NULL), 0);
	(void)close(dir);
	for (size_t k = 0; k < SBX_COUNT(kinds); k++) {
		sbx_autofree char *text = section(doc, kinds[k].heading);
		size_t rows = 0;

		for (size_t i = 1; i < kinds[k].n; i++) {
			sbx_autobuf row = SBX_BUF_INIT(4096);

			doc_row(&row, kinds[k].info(i));
			if (!strstr(text, row.data))
				fail_msg("docs/spec.md lacks this line under%s%s", kinds[k].heading,
					 row.data);
		}
		for (const char *p = text; (p = strstr(p, "\n| `")) != NULL; p++)
			rows++;
		assert_int_equal(rows, kinds[k].n - 1);
		assert_null(kinds[k].info(0));
		assert_null(kinds[k].info(kinds[k].n));
	}
}

/* The tables themselves: every row can be documented, read and given its default. */
static void table__is_sound(void **state)
{
	(void)state;
	for (size_t k = 0; k < SBX_COUNT(kinds); k++) {
		for (size_t i = 1; i < kinds[k].n; i++) {
			const struct ms_field_info *f = kinds[k].info(i);

			assert_true(f->name[0] && f->doc[0] && f->since[0]);
			assert_true(f->type >= MS_STRING && f->type <= MS_GROUP);
			assert_int_equal(f->choices[0] != '\0', f->type == MS_ENUM);
			if (f->type == MS_INT || f->type == MS_NUMBER)
				assert_true(f->min < f->max);
			for (size_t j = 1; j < i; j++)
				assert_string_not_equal(f->name, kinds[k].info(j)->name);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(doc__has_every_field_and_no_other),
		cmocka_unit_test(table__is_sound),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
