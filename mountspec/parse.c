/* SPDX-License-Identifier: Apache-2.0 */
/* From a JSON object to the struct, one function for each type of the table. */
#include "mountspec/spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

/* Our own store may keep more than a document: a script is base64 there, and inherited values
 * have come in. */
enum { STORED_MAX = 8 * MS_DOC_MAX };

struct parser {
	const struct ms_doc *doc;
	const struct ms_options *opts;
	struct ms_run_spec *spec;
	struct sbx_error *e;
};

static const char *type_name(struct json_object *o)
{
	static const char *const names[] = {
		[json_type_null] = "null",	  [json_type_boolean] = "a boolean",
		[json_type_double] = "a number",  [json_type_int] = "a number",
		[json_type_object] = "an object", [json_type_array] = "an array",
		[json_type_string] = "a string",
	};

	return names[json_object_get_type(o)];
}

/* Only the type is named, because the value may be a secret or very long. */
static int wrong_type(struct parser *p, const char *field, struct json_object *o,
		      const char *allowed)
{
	return ms_refuse(p->e, &(struct ms_refusal){
				       .field = field, .found = type_name(o), .allowed = allowed });
}

static int wrong_row_type(struct parser *p, const struct ms_row *row, struct json_object *o)
{
	char wanted[MS_WHERE];

	return wrong_type(p, row->info.name, o, ms_wanted(wanted, row));
}

static int too_many(struct parser *p, const struct ms_row *row, size_t n)
{
	char found[MS_WHERE], allowed[MS_WHERE];

	(void)snprintf(found, sizeof(found), "%zu entries", n);
	(void)snprintf(allowed, sizeof(allowed), "up to %zu entries", row->info.entries);
	return ms_refuse(p->e, &(struct ms_refusal){ .field = row->info.name,
						     .found = found,
						     .allowed = allowed });
}

/* What the kernel limits is a matter of size, the rest is a matter of form. */
static int too_long(struct parser *p, const struct ms_row *row, const char *field, size_t n)
{
	char found[MS_WHERE], allowed[MS_WHERE];
	enum sbx_code code =
		row->info.bytes == MS_ARG_MAX - 1 ? SBX_E_SPEC_TOO_LARGE : SBX_E_INVALID_SPEC;

	(void)snprintf(found, sizeof(found), "%zu bytes", n);
	(void)snprintf(allowed, sizeof(allowed), "up to %zu bytes", row->info.bytes);
	return ms_refuse(
		p->e, &(struct ms_refusal){
			      .code = code, .field = field, .found = found, .allowed = allowed });
}

/* A copy of the string o, which is called `field` in messages. */
static int take_string(struct parser *p, const struct ms_row *row, const char *field,
		       struct json_object *o, char **ret)
{
	size_t n;

	if (!json_object_is_type(o, json_type_string))
		return wrong_type(p, field, o, "a string");
	n = (size_t)json_object_get_string_len(o);
	if (n > row->info.bytes && !p->opts->stored)
		return too_long(p, row, field, n);
	*ret = strdup(json_object_get_string(o));
	return *ret ? 0 : ms_no_memory(p->e);
}

static int set_string(struct parser *p, const struct ms_row *row, struct json_object *o)
{
	char *value = NULL, **to = ms_string_of(p->spec, row);
	int rc = take_string(p, row, row->info.name, o, &value);

	if (rc < 0)
		return rc;
	free(*to);
	*to = value;
	return 0;
}

static int set_enum(struct parser *p, const struct ms_row *row, struct json_object *o)
{
	char found[MS_SHOWN], allowed[MS_WHERE];

	if (!json_object_is_type(o, json_type_string))
		return wrong_row_type(p, row, o);
	if (!p->opts->stored && !ms_is_choice(row->info.choices, json_object_get_string(o)))
		return ms_refuse(p->e, &(struct ms_refusal){
					       .field = row->info.name,
					       .found = ms_quote(found, json_object_get_string(o)),
					       .allowed = ms_allowed(allowed, row) });
	return set_string(p, row, o);
}

static int bad_number(struct parser *p, const struct ms_row *row, struct json_object *o,
		      bool out_of_range)
{
	char found[MS_SHOWN], allowed[MS_WHERE];

	(void)snprintf(found, sizeof(found), "%.40s", json_object_get_string(o));
	return ms_refuse(p->e,
			 &(struct ms_refusal){ .field = row->info.name,
					       .found = found,
					       .allowed = out_of_range ? ms_allowed(allowed, row)
								       : ms_wanted(allowed, row) });
}

/* 1e3 is a whole number too. */
static int set_int(struct parser *p, const struct ms_row *row, struct json_object *o)
{
	const struct ms_field_info *f = &row->info;
	double real;
	int64_t v;

	if (json_object_is_type(o, json_type_int)) {
		v = json_object_get_int64(o);
	} else if (json_object_is_type(o, json_type_double)) {
		real = json_object_get_double(o);
		if (real < -0x1p63 || real >= 0x1p63)
			return bad_number(p, row, o, true);
		v = (int64_t)real;
		if ((double)v != real)
			return bad_number(p, row, o, false);
	} else {
		return wrong_row_type(p, row, o);
	}
	if (!p->opts->stored && (v < (int64_t)f->min || (f->max < 0x1p63 && v > (int64_t)f->max)))
		return bad_number(p, row, o, true);
	*ms_int_of(p->spec, row) = v;
	return 0;
}

static int set_number(struct parser *p, const struct ms_row *row, struct json_object *o)
{
	double v;

	if (!json_object_is_type(o, json_type_int) && !json_object_is_type(o, json_type_double))
		return wrong_row_type(p, row, o);
	v = json_object_get_double(o);
	if (!p->opts->stored && !(v > row->info.min && v <= row->info.max))
		return bad_number(p, row, o, true);
	*ms_number_of(p->spec, row) = v;
	return 0;
}

static int set_bool(struct parser *p, const struct ms_row *row, struct json_object *o)
{
	if (!json_object_is_type(o, json_type_boolean))
		return wrong_row_type(p, row, o);
	*ms_bool_of(p->spec, row) = json_object_get_boolean(o);
	return 0;
}

/* Checks type and length of a list; 0 also when it is empty, which *ret_n says. */
static int list_size(struct parser *p, const struct ms_row *row, struct json_object *o,
		     size_t *ret_n)
{
	bool map = row->info.type == MS_STRMAP;

	if (!json_object_is_type(o, map ? json_type_object : json_type_array))
		return wrong_row_type(p, row, o);
	*ret_n = map ? (size_t)json_object_object_length(o) : json_object_array_length(o);
	if (row->info.entries && *ret_n > row->info.entries && !p->opts->stored)
		return too_many(p, row, *ret_n);
	return 0;
}

static int set_strings(struct parser *p, const struct ms_row *row, struct json_object *o)
{
	char where[MS_WHERE], ***to = ms_strings_of(p->spec, row);
	size_t n, *count = ms_count_of(p->spec, row);
	int rc = list_size(p, row, o, &n);

	if (rc < 0 || n == 0)
		return rc;
	*to = calloc(n + 1, sizeof(**to));
	if (!*to)
		return ms_no_memory(p->e);
	for (size_t i = 0; i < n && rc == 0; i++) {
		rc = take_string(p, row, ms_item_path(where, row, i, NULL),
				 json_object_array_get_idx(o, i), &(*to)[i]);
		if (rc == 0)
			(*count)++;
	}
	return rc;
}

static int set_pairs(struct parser *p, const struct ms_row *row, struct json_object *o)
{
	struct ms_pair **to = ms_pairs_of(p->spec, row), *pair;
	size_t n, *count = ms_count_of(p->spec, row);
	char where[MS_WHERE];
	int rc = list_size(p, row, o, &n);

	if (rc < 0 || n == 0)
		return rc;
	*to = calloc(n, sizeof(**to));
	if (!*to)
		return ms_no_memory(p->e);
	json_object_object_foreach(o, key, value)
	{
		(void)ms_entry_path(where, row, key);
		if (strlen(key) > row->info.bytes && !p->opts->stored)
			return too_long(p, row, where, strlen(key));
		pair = &(*to)[(*count)++];
		pair->key = strdup(key);
		if (!pair->key)
			return ms_no_memory(p->e);
		rc = take_string(p, row, where, value, &pair->value);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* Base64 that is called `field`; why is completed and reported when it is not. */
static int take_bytes(struct parser *p, struct json_object *o, struct ms_refusal why, uint8_t **ret,
		      size_t *ret_len)
{
	if (!json_object_is_type(o, json_type_string))
		return wrong_type(p, why.field, o, "a string of base64");
	if (sbx_base64_decode(json_object_get_string(o), (size_t)json_object_get_string_len(o), ret,
			      ret_len) == 0)
		return 0;
	why.problem = "is not base64";
	why.allowed = "base64 (RFC 4648) without white space, with or without padding";
	return ms_refuse(p->e, &why);
}

static int set_bytes(struct parser *p, const struct ms_row *row, struct json_object *o)
{
	return take_bytes(p, o, (struct ms_refusal){ .field = row->info.name },
			  ms_bytes_of(p->spec, row), ms_count_of(p->spec, row));
}

static int unknown_field(struct parser *p, const char *field, const char *near, const char *allowed)
{
	char shown[MS_SHOWN], guess[MS_SHOWN], message[sizeof(p->e->message)];

	if (near)
		(void)snprintf(message, sizeof(message), "unknown field %s; did you mean %s?",
			       ms_quote(shown, field), ms_quote(guess, near));
	else
		(void)snprintf(message, sizeof(message), "unknown field %s; allowed: %.400s",
			       ms_quote(shown, field), allowed);
	return ms_refuse(p->e, &(struct ms_refusal){ .field = field,
						     .found = "a field that does not exist",
						     .allowed = allowed,
						     .did_you_mean = near,
						     .message = message });
}

static int file_members(struct parser *p, const struct ms_row *row, size_t i, struct json_object *o)
{
	char full[MS_WHERE];

	json_object_object_foreach(o, key, value)
	{
		(void)value;
		if (strcmp(key, "path") == 0 || strcmp(key, "content_b64") == 0 ||
		    !p->opts->refuse_unknown)
			continue;
		(void)snprintf(full, sizeof(full), "%s[%zu].%.100s", row->info.name, i, key);
		return unknown_field(p, full, NULL, "path, content_b64");
	}
	return 0;
}

static int missing(struct parser *p, const char *field, const char *allowed)
{
	return ms_refuse(p->e, &(struct ms_refusal){ .field = field,
						     .problem = "is missing",
						     .found = "nothing",
						     .allowed = allowed });
}

static int set_file(struct parser *p, const struct ms_row *row, size_t i, struct json_object *o,
		    struct ms_file *file)
{
	struct json_object *path, *content;
	char where[MS_WHERE];
	int rc;

	if (!json_object_is_type(o, json_type_object))
		return wrong_type(p, ms_item_path(where, row, i, NULL), o,
				  "an object with path and content_b64");
	rc = file_members(p, row, i, o);
	if (rc < 0)
		return rc;
	(void)ms_item_path(where, row, i, "path");
	if (!json_object_object_get_ex(o, "path", &path))
		return missing(p, where, "a path below the workspace");
	rc = take_string(p, row, where, path, &file->path);
	if (rc < 0)
		return rc;
	(void)ms_item_path(where, row, i, "content_b64");
	if (!json_object_object_get_ex(o, "content_b64", &content))
		return missing(p, where, "a string of base64");
	return take_bytes(p, content,
			  (struct ms_refusal){ .code = SBX_E_INVALID_INLINE_FILE,
					       .field = where,
					       .path = file->path,
					       .index = i },
			  &file->data, &file->len);
}

static int set_files(struct parser *p, const struct ms_row *row, struct json_object *o)
{
	struct ms_file **to = ms_files_of(p->spec, row);
	size_t n, *count = ms_count_of(p->spec, row);
	int rc = list_size(p, row, o, &n);

	if (rc < 0 || n == 0)
		return rc;
	*to = calloc(n, sizeof(**to));
	if (!*to)
		return ms_no_memory(p->e);
	for (size_t i = 0; i < n && rc == 0; i++) {
		(*count)++;
		rc = set_file(p, row, i, json_object_array_get_idx(o, i), &(*to)[i]);
	}
	return rc;
}

static int set_members(struct parser *p, const struct ms_row *parent, struct json_object *o);

static int set_group(struct parser *p, const struct ms_row *row, struct json_object *o)
{
	if (!json_object_is_type(o, json_type_object))
		return wrong_row_type(p, row, o);
	return set_members(p, row, o);
}

static int (*const setters[])(struct parser *p, const struct ms_row *row, struct json_object *o) = {
	[MS_STRING] = set_string, [MS_ENUM] = set_enum,	  [MS_INT] = set_int,
	[MS_NUMBER] = set_number, [MS_BOOL] = set_bool,	  [MS_STRINGS] = set_strings,
	[MS_STRMAP] = set_pairs,  [MS_FILES] = set_files, [MS_BYTES] = set_bytes,
	[MS_GROUP] = set_group,
};

static int refuse_unknown(struct parser *p, const struct ms_row *parent, const char *key)
{
	sbx_autobuf allowed = SBX_BUF_INIT(8 << 10);
	char full[MS_WHERE];
	const char *leaf;

	for (size_t i = 1; i < p->doc->n; i++) {
		leaf = ms_leaf(parent, &p->doc->rows[i]);
		if (leaf)
			sbx_buf_printf(&allowed, "%s%s", allowed.len ? ", " : "", leaf);
	}
	if (sbx_buf_failed(&allowed))
		return ms_no_memory(p->e);
	return unknown_field(p, parent ? ms_entry_path(full, parent, key) : key,
			     ms_suggest(p->doc, parent, key), allowed.data);
}

static int set_members(struct parser *p, const struct ms_row *parent, struct json_object *o)
{
	const struct ms_row *row;
	int rc;

	json_object_object_foreach(o, key, value)
	{
		row = ms_find_row(p->doc, parent, key);
		if (!row) {
			if (!p->opts->refuse_unknown)
				continue;
			return refuse_unknown(p, parent, key);
		}
		p->spec->present |= row->bit;
		if (!value) { /* as if it were absent; a check may think otherwise */
			p->spec->null |= row->bit;
			continue;
		}
		rc = setters[row->info.type](p, row, value);
		if (rc < 0)
			return rc;
	}
	return 0;
}

static int parse(const struct ms_doc *doc, const char *text, size_t len,
		 const struct ms_options *opts, struct ms_run_spec **ret, struct sbx_error *e)
{
	ms_autorun struct ms_run_spec *spec = NULL;
	sbx_autojson *o = NULL;
	struct parser p = { .doc = doc, .opts = opts, .e = e };
	int rc;

	*ret = NULL;
	rc = ms_check_size(len, opts->stored ? STORED_MAX : MS_DOC_MAX, e);
	if (rc < 0)
		return rc;
	rc = sbx_json_parse_object(text, len, &o, e);
	if (rc < 0)
		return rc;
	spec = p.spec = ms_new(doc, !opts->stored);
	if (!spec)
		return ms_no_memory(e);
	rc = set_members(&p, NULL, o);
	if (rc == 0 && !opts->stored)
		rc = ms_check_all(doc, spec, opts, e);
	if (rc == 0)
		*ret = sbx_steal(&spec);
	return rc;
}

int ms_run_parse(const char *text, size_t len, const struct ms_options *opts,
		 struct ms_run_spec **ret, struct sbx_error *e)
{
	return parse(&ms_run_doc, text, len, opts, ret, e);
}

int ms_session_parse(const char *text, size_t len, const struct ms_options *opts,
		     struct ms_run_spec **ret, struct sbx_error *e)
{
	static const char nothing[] = "{}";

	if (len == 0)
		return parse(&ms_session_doc, nothing, sizeof(nothing) - 1, opts, ret, e);
	return parse(&ms_session_doc, text, len, opts, ret, e);
}
