/* SPDX-License-Identifier: Apache-2.0 */
/* From the struct back to JSON: what spec.json shows, and what idempotency compares. */
#include "mountspec/spec.h"

#include <inttypes.h>
#include <string.h>

#include "base/json.h"

/* Twelve times a document: base64 of a script, and every byte of a string as \u00xx. */
enum { RENDER_MAX = 12 * MS_DOC_MAX };

bool ms_is_set(const struct ms_doc *doc, struct ms_run_spec *s, const struct ms_row *row)
{
	switch (row->info.type) {
	case MS_STRING:
	case MS_ENUM:
		return *ms_string_of(s, row) != NULL;
	case MS_INT:
		return *ms_int_of(s, row) != -1;
	case MS_NUMBER:
		return *ms_number_of(s, row) >= 0;
	case MS_BOOL:
		return true;
	case MS_STRINGS:
	case MS_STRMAP:
	case MS_FILES:
		return *ms_count_of(s, row) > 0;
	case MS_BYTES:
		return *ms_bytes_of(s, row) != NULL;
	case MS_GROUP:
		break;
	}
	for (size_t i = 1; i < doc->n; i++)
		if (ms_leaf(row, &doc->rows[i]) && ms_is_set(doc, s, &doc->rows[i]))
			return true;
	return false;
}

static void put_string(struct sbx_buf *b, struct ms_run_spec *s, const struct ms_row *row)
{
	sbx_buf_json_strz(b, *ms_string_of(s, row));
}

static void put_int(struct sbx_buf *b, struct ms_run_spec *s, const struct ms_row *row)
{
	sbx_buf_printf(b, "%" PRId64, *ms_int_of(s, row));
}

static void put_number(struct sbx_buf *b, struct ms_run_spec *s, const struct ms_row *row)
{
	sbx_json_double(b, *ms_number_of(s, row));
}

static void put_bool(struct sbx_buf *b, struct ms_run_spec *s, const struct ms_row *row)
{
	sbx_buf_puts(b, *ms_bool_of(s, row) ? "true" : "false");
}

static void put_strings(struct sbx_buf *b, struct ms_run_spec *s, const struct ms_row *row)
{
	char **list = *ms_strings_of(s, row);

	for (size_t i = 0; i < *ms_count_of(s, row); i++) {
		sbx_buf_puts(b, i ? "," : "[");
		sbx_buf_json_strz(b, list[i]);
	}
	sbx_buf_puts(b, "]");
}

static void put_pairs(struct sbx_buf *b, struct ms_run_spec *s, const struct ms_row *row)
{
	const struct ms_pair *list = *ms_pairs_of(s, row);

	for (size_t i = 0; i < *ms_count_of(s, row); i++) {
		sbx_buf_puts(b, i ? "," : "{");
		sbx_buf_json_strz(b, list[i].key);
		sbx_buf_puts(b, ":");
		sbx_buf_json_strz(b, list[i].value);
	}
	sbx_buf_puts(b, "}");
}

static void put_base64(struct sbx_buf *b, const uint8_t *data, size_t len)
{
	sbx_buf_puts(b, "\"");
	sbx_buf_base64(b, data, len);
	sbx_buf_puts(b, "\"");
}

static void put_files(struct sbx_buf *b, struct ms_run_spec *s, const struct ms_row *row)
{
	const struct ms_file *list = *ms_files_of(s, row);

	for (size_t i = 0; i < *ms_count_of(s, row); i++) {
		sbx_buf_puts(b, i ? ",{\"path\":" : "[{\"path\":");
		sbx_buf_json_strz(b, list[i].path);
		sbx_buf_puts(b, ",\"content_b64\":");
		put_base64(b, list[i].data, list[i].len);
		sbx_buf_puts(b, "}");
	}
	sbx_buf_puts(b, "]");
}

static void put_bytes(struct sbx_buf *b, struct ms_run_spec *s, const struct ms_row *row)
{
	put_base64(b, *ms_bytes_of(s, row), *ms_count_of(s, row));
}

static void put_members(struct sbx_buf *b, const struct ms_doc *doc, struct ms_run_spec *s,
			const struct ms_row *parent, const struct ms_row *without);

static void (*const puts_by_type[])(struct sbx_buf *b, struct ms_run_spec *s,
				    const struct ms_row *row) = {
	[MS_STRING] = put_string, [MS_ENUM] = put_string, [MS_INT] = put_int,
	[MS_NUMBER] = put_number, [MS_BOOL] = put_bool,	  [MS_STRINGS] = put_strings,
	[MS_STRMAP] = put_pairs,  [MS_FILES] = put_files, [MS_BYTES] = put_bytes,
};

static void put_value(struct sbx_buf *b, const struct ms_doc *doc, struct ms_run_spec *s,
		      const struct ms_row *row)
{
	if (row->info.type == MS_GROUP)
		put_members(b, doc, s, row, NULL);
	else
		puts_by_type[row->info.type](b, s, row);
}

static void put_members(struct sbx_buf *b, const struct ms_doc *doc, struct ms_run_spec *s,
			const struct ms_row *parent, const struct ms_row *without)
{
	const char *comma = "", *leaf;

	sbx_buf_puts(b, "{");
	for (size_t i = 1; i < doc->n; i++) {
		const struct ms_row *row = &doc->rows[i];

		leaf = ms_leaf(parent, row);
		if (!leaf || row == without || !ms_is_set(doc, s, row))
			continue;
		sbx_buf_printf(b, "%s\"%s\":", comma, leaf);
		put_value(b, doc, s, row);
		comma = ",";
	}
	sbx_buf_puts(b, "}");
}

static char *render(const struct ms_doc *doc, const struct ms_run_spec *s,
		    const struct ms_row *without, size_t *ret_len)
{
	struct sbx_buf b = SBX_BUF_INIT(RENDER_MAX);
	struct ms_run_spec view = *s; /* the accessors give writable members; nothing is written */

	put_members(&b, doc, &view, NULL, without);
	if (ret_len)
		*ret_len = b.len;
	return sbx_buf_steal(&b);
}

static char *canonical(const struct ms_doc *doc, const struct ms_run_spec *s)
{
	size_t len;
	sbx_autofree char *text = render(doc, s, doc->key, &len);
	sbx_autojson *o = NULL;

	if (!text || sbx_json_parse_object(text, len, &o, NULL) < 0)
		return NULL;
	return sbx_json_canonical(o);
}

char *ms_run_json(const struct ms_run_spec *s)
{
	return render(&ms_run_doc, s, NULL, NULL);
}

char *ms_run_canonical(const struct ms_run_spec *s)
{
	return canonical(&ms_run_doc, s);
}

char *ms_session_json(const struct ms_run_spec *s)
{
	return render(&ms_session_doc, s, NULL, NULL);
}

char *ms_session_canonical(const struct ms_run_spec *s)
{
	return canonical(&ms_session_doc, s);
}
