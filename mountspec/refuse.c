/* SPDX-License-Identifier: Apache-2.0 */
/* Refusals: one shape of message and details for every rule of the documents. */
#include "mountspec/spec.h"

#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

enum { DETAILS_MAX = 64 << 10 };

int ms_no_memory(struct sbx_error *e)
{
	return sbx_fail(e, SBX_E_NO_MEMORY, "no memory to read the document");
}

static void detail(struct sbx_buf *b, const char *name, const char *value)
{
	if (!value)
		return;
	sbx_buf_printf(b, ",\"%s\":", name);
	sbx_buf_json_strz(b, value);
}

static int write_message(struct sbx_error *e, enum sbx_code code, const struct ms_refusal *why)
{
	if (why->message)
		return sbx_fail(e, code, "%s", why->message);
	if (why->problem)
		return sbx_fail(e, code, "%s: %s", why->field, why->problem);
	return sbx_fail(e, code, "%s: found %s, allowed %s", why->field, why->found, why->allowed);
}

int ms_refuse(struct sbx_error *e, const struct ms_refusal *why)
{
	sbx_autobuf b = SBX_BUF_INIT(DETAILS_MAX);
	int rc = write_message(e, why->code ? why->code : SBX_E_INVALID_SPEC, why);

	sbx_buf_puts(&b, "{\"field\":");
	sbx_buf_json_strz(&b, why->field);
	detail(&b, "found", why->found ? why->found : why->problem);
	detail(&b, "allowed", why->allowed);
	detail(&b, "did_you_mean", why->did_you_mean);
	if (why->path)
		sbx_buf_printf(&b, ",\"index\":%zu", why->index);
	detail(&b, "path", why->path);
	sbx_buf_puts(&b, "}");
	if (e && !sbx_buf_failed(&b))
		(void)sbx_error_details(e, "%s", b.data);
	return rc;
}

/* Appends what fits of s, cut between characters, with control characters shown as '?'. */
static size_t show(char *out, size_t size, const char *s)
{
	size_t len = strlen(s), n = len;

	if (n > size - 1) {
		n = size - 1 - strlen("...");
		n -= sbx_utf8_partial_tail(s, n);
	}
	for (size_t i = 0; i < n; i++)
		out[i] = (unsigned char)s[i] < 0x20 || s[i] == 0x7f ? '?' : s[i];
	if (n < len) {
		memcpy(out + n, "...", 3);
		n += 3;
	}
	out[n] = '\0';
	return n;
}

char *ms_quote(char out[MS_SHOWN], const char *s)
{
	size_t n;

	out[0] = '\'';
	n = show(out + 1, MS_SHOWN - 2, s);
	out[n + 1] = '\'';
	out[n + 2] = '\0';
	return out;
}

static const char *const type_words[] = {
	[MS_STRING] = "a string",
	[MS_ENUM] = "a string",
	[MS_INT] = "a whole number",
	[MS_NUMBER] = "a number",
	[MS_BOOL] = "true or false",
	[MS_STRINGS] = "an array of strings",
	[MS_STRMAP] = "an object whose values are strings",
	[MS_FILES] = "an array of objects with path and content_b64",
	[MS_BYTES] = "a string of base64 (RFC 4648, no white space)",
	[MS_GROUP] = "an object",
};

char *ms_allowed(char out[MS_WHERE], const struct ms_row *row)
{
	const struct ms_field_info *f = &row->info;

	if (f->type == MS_ENUM) {
		size_t n = (size_t)snprintf(out, MS_WHERE, "one of ");

		/* "a b c" becomes "a, b, c" */
		for (const char *p = f->choices; *p && n < MS_WHERE - 3; p++) {
			if (*p == ' ')
				out[n++] = ',';
			out[n++] = *p;
		}
		out[n] = '\0';
	} else if (f->type == MS_INT && f->max >= 0x1p63) {
		(void)snprintf(out, MS_WHERE, "%.0f or more", f->min);
	} else if (f->type == MS_INT) {
		(void)snprintf(out, MS_WHERE, "%.0f to %.0f", f->min, f->max);
	} else if (f->type == MS_NUMBER) {
		(void)snprintf(out, MS_WHERE, "more than %g, up to %g", f->min, f->max);
	} else {
		(void)snprintf(out, MS_WHERE, "%s", type_words[f->type]);
	}
	return out;
}

char *ms_wanted(char out[MS_WHERE], const struct ms_row *row)
{
	char range[MS_WHERE];

	if (row->info.type != MS_INT && row->info.type != MS_NUMBER)
		return ms_allowed(out, row);
	(void)snprintf(out, MS_WHERE, "%s, %.100s", type_words[row->info.type],
		       ms_allowed(range, row));
	return out;
}

char *ms_entry_path(char out[MS_WHERE], const struct ms_row *row, const char *key)
{
	size_t n = (size_t)snprintf(out, MS_WHERE, "%s.", row->info.name);

	(void)show(out + n, MS_SHOWN, key);
	return out;
}

char *ms_item_path(char out[MS_WHERE], const struct ms_row *row, size_t i, const char *member)
{
	(void)snprintf(out, MS_WHERE, "%s[%zu]%s%s", row->info.name, i, member ? "." : "",
		       member ? member : "");
	return out;
}
