/* SPDX-License-Identifier: Apache-2.0 */
/* The documents that one may write, for /openapi.json: from the tables of mountspec. */
#include <string.h>

#include "apid/apid_i.h"
#include "mountspec/mountspec.h"

static void add_choices(struct sbx_buf *out, const char *choices)
{
	size_t n;

	sbx_buf_puts(out, ",\"enum\":[");
	for (; *choices; choices += n + (choices[n] == ' ')) {
		n = strcspn(choices, " ");
		sbx_buf_json_str(out, choices, n);
		sbx_buf_puts(out, ",");
	}
	sbx_buf_puts(out, "null]");
}

static void add_bounds(struct sbx_buf *out, const struct ms_field_info *f)
{
	bool number = f->type == MS_NUMBER;

	sbx_buf_printf(out, ",\"%s\":%.0f", number ? "exclusiveMinimum" : "minimum", f->min);
	if (f->max < 0x1p62)
		sbx_buf_printf(out, ",\"maximum\":%.0f", f->max);
}

/* One string of a field: its limit counts bytes, which is at least as many characters. */
static void add_string(struct sbx_buf *out, const struct ms_field_info *f)
{
	sbx_buf_puts(out, "{\"type\":\"string\"");
	if (f->bytes)
		sbx_buf_printf(out, ",\"maxLength\":%zu", f->bytes);
	sbx_buf_puts(out, "}");
}

static void add_list(struct sbx_buf *out, const struct ms_field_info *f)
{
	if (f->type == MS_STRMAP) {
		sbx_buf_puts(out, "\"type\":[\"object\",\"null\"],\"additionalProperties\":");
		add_string(out, f);
		if (f->entries)
			sbx_buf_printf(out, ",\"maxProperties\":%zu", f->entries);
		return;
	}
	sbx_buf_puts(out, "\"type\":[\"array\",\"null\"],\"items\":");
	if (f->type == MS_FILES)
		sbx_buf_puts(
			out,
			"{\"type\":\"object\",\"required\":[\"path\",\"content_b64\"],"
			"\"properties\":{\"path\":{\"type\":\"string\",\"description\":\"below "
			"the workspace\"},\"content_b64\":{\"type\":\"string\","
			"\"contentEncoding\":\"base64\"}}}");
	else
		add_string(out, f);
	if (f->entries)
		sbx_buf_printf(out, ",\"maxItems\":%zu", f->entries);
}

static void add_field_type(struct sbx_buf *out, const struct ms_field_info *f)
{
	switch (f->type) {
	case MS_STRING:
		sbx_buf_puts(out, "\"type\":[\"string\",\"null\"]");
		if (f->bytes)
			sbx_buf_printf(out, ",\"maxLength\":%zu", f->bytes);
		break;
	case MS_ENUM:
		sbx_buf_puts(out, "\"type\":[\"string\",\"null\"]");
		add_choices(out, f->choices);
		break;
	case MS_INT:
	case MS_NUMBER:
		sbx_buf_printf(out, "\"type\":[\"%s\",\"null\"]",
			       f->type == MS_INT ? "integer" : "number");
		add_bounds(out, f);
		break;
	case MS_BOOL:
		sbx_buf_puts(out, "\"type\":[\"boolean\",\"null\"]");
		break;
	case MS_BYTES:
		sbx_buf_puts(out, "\"type\":[\"string\",\"null\"],\"contentEncoding\":\"base64\"");
		break;
	default:
		add_list(out, f);
		break;
	}
}

/* One of the two tables of fields. */
typedef const struct ms_field_info *field_at(int i);

static const struct ms_field_info *run_field(int i)
{
	return ms_field_info((enum ms_field)i);
}

static const struct ms_field_info *session_field(int i)
{
	return ms_session_field_info((enum ms_session_field)i);
}

static void add_fields(struct sbx_buf *out, field_at *at, const char *group);

static void add_field(struct sbx_buf *out, field_at *at, const struct ms_field_info *f,
		      const char *leaf)
{
	sbx_autobuf doc = SBX_BUF_INIT(4096);

	sbx_buf_json_strz(out, leaf);
	sbx_buf_puts(out, ":{");
	if (f->type == MS_GROUP) {
		sbx_buf_puts(out, "\"type\":[\"object\",\"null\"],\"properties\":{");
		add_fields(out, at, f->name);
		sbx_buf_puts(out, "}");
	} else {
		add_field_type(out, f);
	}
	if (strcmp(f->def, "null") != 0)
		sbx_buf_printf(out, ",\"default\":%s", f->def);
	sbx_buf_printf(&doc, "%s%s%s%s", f->doc, *f->unit ? " (" : "", f->unit,
		       *f->unit ? ")" : "");
	if (strcmp(f->since, "1.0") != 0)
		sbx_buf_printf(&doc, ". %s%s",
			       f->since[0] == '+' ? "Not in the reference" : "Since spec_version ",
			       f->since[0] == '+' ? "" : f->since);
	openapi_doc(out, doc.data ? doc.data : f->doc);
	sbx_buf_puts(out, "}");
}

/* The fields directly below this group; NULL: those of the document. */
static void add_fields(struct sbx_buf *out, field_at *at, const char *group)
{
	size_t n = group ? strlen(group) : 0, shown = 0;
	const struct ms_field_info *f;

	for (int i = 1; (f = at(i)); i++) {
		const char *dot = strchr(f->name, '.');
		bool inside = dot && group && (size_t)(dot - f->name) == n &&
			      strncmp(f->name, group, n) == 0;

		if (group ? !inside : dot != NULL)
			continue;
		sbx_buf_puts(out, shown++ ? "," : "");
		add_field(out, at, f, inside ? dot + 1 : f->name);
	}
}

void openapi_specs(struct sbx_buf *out)
{
	sbx_buf_puts(
		out,
		"\"RunSpec\":{\"type\":\"object\",\"description\":\"docs/spec.md. null is as if "
		"the member were absent. Exactly one of base_image and session_id must "
		"be there.\",\"required\":[\"command\"],\"properties\":{");
	add_fields(out, run_field, NULL);
	sbx_buf_puts(out, "}},\"SessionSpec\":{\"type\":\"object\",\"description\":"
			  "\"docs/spec.md. Runs of the session take over what their own documents "
			  "leave out.\",\"properties\":{");
	add_fields(out, session_field, NULL);
	sbx_buf_puts(out, "}}");
}
