/* SPDX-License-Identifier: Apache-2.0 */
/*
 * /openapi.json (OpenAPI 3.1), made from the tables that the code itself runs by: routes.def,
 * mountspec/fields.def and base/errors.def; and from schemas.def and params.def, which
 * describe what the orchestrator and the handlers do and are held to it by tests.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "apid/apid_i.h"
#include "mountspec/mountspec.h"

enum { PATH_MAX_BYTES = 256 };

/* ---- types ----------------------------------------------------------------------------------- */

static void add_named(struct sbx_buf *out, const char *name, size_t len, bool nullable)
{
	static const struct {
		const char *name, *type, *format;
	} plain[] = {
		{ "string", "string", NULL },	  { "integer", "integer", NULL },
		{ "number", "number", NULL },	  { "boolean", "boolean", NULL },
		{ "object", "object", NULL },	  { "time", "string", "date-time" },
		{ "binary", "string", "binary" },
	};

	for (size_t i = 0; i < SBX_COUNT(plain); i++) {
		if (strlen(plain[i].name) != len || memcmp(plain[i].name, name, len) != 0)
			continue;
		sbx_buf_printf(out, nullable ? "\"type\":[\"%s\",\"null\"]" : "\"type\":\"%s\"",
			       plain[i].type);
		if (plain[i].format)
			sbx_buf_printf(out, ",\"format\":\"%s\"", plain[i].format);
		return;
	}
	sbx_buf_printf(out, "\"$ref\":\"#/components/schemas/%.*s\"", (int)len, name);
}

/* The members of a schema for a type of schemas.def. */
static void add_type(struct sbx_buf *out, const char *type)
{
	size_t len = strlen(type);
	bool list = type[0] == '[', map = type[0] == '{';

	if (list || map) {
		sbx_buf_puts(out, list ? "\"type\":\"array\",\"items\":{"
				       : "\"type\":\"object\",\"additionalProperties\":{");
		add_named(out, type + 1, len - 2, false);
		sbx_buf_puts(out, "}");
	} else if (type[len - 1] == '?') {
		add_named(out, type, len - 1, true);
	} else {
		add_named(out, type, len, false);
	}
}

void openapi_doc(struct sbx_buf *out, const char *doc)
{
	if (!*doc)
		return;
	sbx_buf_puts(out, ",\"description\":");
	sbx_buf_json_strz(out, doc);
}

/* ---- schemas of answers ---------------------------------------------------------------------- */

static const struct schema_row {
	const char *schema, *member, *type, *doc;
} schema_rows[] = {
#define X(schema, member, type, doc) { schema, member, type, doc },
#include "apid/schemas.def"
#undef X
};

static bool same_schema(size_t i, size_t j)
{
	return j < SBX_COUNT(schema_rows) &&
	       strcmp(schema_rows[i].schema, schema_rows[j].schema) == 0;
}

/* All members of an answer are there, but a verdict has either these or those; what is asked may
 * leave out what may be null. */
static bool is_required(const struct schema_row *row, bool first)
{
	size_t n = strlen(row->schema);

	if (strcmp(row->schema, "Verdict") == 0)
		return first;
	if (n > 4 && strcmp(row->schema + n - 4, "Spec") == 0)
		return row->type[strlen(row->type) - 1] != '?';
	return true;
}

/* Rows i and after, as long as they belong together. Returns the first that does not. */
static size_t add_schema(struct sbx_buf *out, size_t i)
{
	const char *name = schema_rows[i].schema;
	bool more = !*schema_rows[i].member;
	size_t first = i + more, end = first, shown = 0;

	sbx_buf_printf(out, ",\"%s\":{", name);
	if (more)
		sbx_buf_printf(out, "\"allOf\":[{\"$ref\":\"#/components/schemas/%s\"},{",
			       schema_rows[i].type);
	sbx_buf_puts(out, "\"type\":\"object\",\"properties\":{");
	for (; end == first || same_schema(first, end); end++) {
		sbx_buf_printf(out, "%s\"%s\":{", end == first ? "" : ",", schema_rows[end].member);
		add_type(out, schema_rows[end].type);
		openapi_doc(out, schema_rows[end].doc);
		sbx_buf_puts(out, "}");
	}
	sbx_buf_puts(out, "},\"required\":[");
	for (i = first; i < end; i++)
		if (is_required(&schema_rows[i], i == first))
			sbx_buf_printf(out, "%s\"%s\"", shown++ ? "," : "", schema_rows[i].member);
	sbx_buf_puts(out, more ? "]}]}" : "]}");
	return end;
}

static void add_schemas(struct sbx_buf *out)
{
	for (size_t i = 0; i < SBX_COUNT(schema_rows);)
		i = add_schema(out, i);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static const int statuses[] = { 400, 401, 403, 404, 409, 413, 422, 429, 500, 503, 507 };

static void add_error_responses(struct sbx_buf *out)
{
	for (size_t i = 0; i < SBX_COUNT(statuses); i++) {
		sbx_autobuf doc = SBX_BUF_INIT(16 << 10);

		for (int c = SBX_OK + 1; c < SBX_E__COUNT; c++)
			if (sbx_code_http((enum sbx_code)c) == statuses[i])
				sbx_buf_printf(&doc, "%s`%s`: %s", doc.len ? "; " : "",
					       sbx_code_name((enum sbx_code)c),
					       sbx_code_doc((enum sbx_code)c));
		sbx_buf_printf(out, "%s\"E%d\":{\"description\":", i ? "," : "", statuses[i]);
		sbx_buf_json_strz(out, doc.data ? doc.data : "an error");
		sbx_buf_puts(out, ",\"content\":{\"application/json\":{\"schema\":{\"$ref\":"
				  "\"#/components/schemas/Error\"}}}");
		if (statuses[i] == 429)
			sbx_buf_puts(out, ",\"headers\":{\"Retry-After\":{\"description\":"
					  "\"seconds\",\"schema\":{\"type\":\"integer\"}}}");
		sbx_buf_puts(out, "}");
	}
}

/* ---- routes ---------------------------------------------------------------------------------- */

static const struct open_route {
	const char *method, *path, *handler, *tag, *body, *answer, *summary;
	enum route_access access;
} routes[] = {
#define X(method, path, access, handle, tag, body, answer, summary)                                \
	{ method, path, #handle, tag, body, answer, summary, ROUTE_##access },
#include "apid/routes.def"
#undef X
};

static const struct open_param {
	const char *handler, *in, *name, *type;
	int64_t least, most;
	const char *def, *doc;
} params[] = {
#define X(handle, in, name, type, least, most, def, doc)                                           \
	{ #handle, in, name, type, least, most, def, doc },
#include "apid/params.def"
#undef X
};

/* Answers that are no schema. */
static const struct {
	const char *handler;
	int status;
	const char *media, *doc; /* media NULL: no body */
} other_answers[] = {
	{ "stream_get", 101, NULL,
	  "frames as JSON text; a refusal is a close code, see docs/api.md" },
	{ "artifact_get", 200, "application/octet-stream", "the file" },
	{ "artifact_get", 206, "application/octet-stream", "the range" },
	{ "artifact_get", 304, NULL, "it is the file of If-None-Match" },
	{ "artifact_get", 416, NULL, "no range of this file" },
	{ "metrics_get", 200, "text/plain", "Prometheus text" },
	{ "openapi_get", 200, "application/json", "an OpenAPI document" },
	{ "openapi_get", 304, NULL, "it has not changed" },
	{ "run_get", 304, NULL, "it has not changed" },
	{ "snapshot_export_get", 200, "application/x-tar", "the snapshot" },
	{ "snapshot_diff_get", 200, "application/x-ndjson",
	  "one JSON object a line: path, change, size_before, size_after" },
};

/* "{path...}" is "{path}" here. */
static void full_path(const struct open_route *r, char out[PATH_MAX_BYTES])
{
	char *dots;

	if (r->path[0] == '/' && r->path[1] == '/')
		(void)snprintf(out, PATH_MAX_BYTES, "%s", r->path + 1);
	else
		(void)snprintf(out, PATH_MAX_BYTES, "%s%s", API_BASE, r->path);
	dots = strstr(out, "...");
	if (dots)
		memmove(dots, dots + 3, strlen(dots + 3) + 1);
}

static void add_operation_id(struct sbx_buf *out, const struct open_route *r)
{
	bool gap = true;

	sbx_buf_puts(out, "\"operationId\":\"");
	for (const char *p = r->method; *p; p++)
		sbx_buf_printf(out, "%c", tolower((unsigned char)*p));
	for (const char *p = r->path; *p; p++) {
		if (isalnum((unsigned char)*p) || *p == '_') {
			sbx_buf_printf(out, "%s%c", gap ? "_" : "", *p);
			gap = false;
		} else {
			gap = true;
		}
	}
	sbx_buf_puts(out, "\"");
}

static size_t add_path_params(struct sbx_buf *out, const struct open_route *r)
{
	size_t n = 0;

	for (const char *p = strchr(r->path, '{'); p; p = strchr(p + 1, '{')) {
		size_t len = strcspn(p + 1, ".}");

		sbx_buf_printf(out,
			       "%s{\"name\":\"%.*s\",\"in\":\"path\",\"required\":true,"
			       "\"schema\":{\"type\":\"string\"}%s}",
			       n++ ? "," : "", (int)len, p + 1,
			       p[1 + len] == '.' ? ",\"description\":\"may contain slashes\"" : "");
	}
	return n;
}

static void add_param(struct sbx_buf *out, const struct open_param *p)
{
	sbx_buf_printf(out, "{\"name\":\"%s\",\"in\":\"%s\",\"description\":", p->name, p->in);
	sbx_buf_json_strz(out, p->doc);
	sbx_buf_puts(out, ",\"schema\":{");
	add_type(out, p->type);
	if (strcmp(p->type, "integer") == 0)
		sbx_buf_printf(out, ",\"minimum\":%lld,\"maximum\":%lld", (long long)p->least,
			       (long long)p->most);
	if (p->def)
		sbx_buf_printf(out, ",\"default\":%s", p->def);
	sbx_buf_puts(out, "}}");
}

/* *ret_query: there are parameters that can be wrong. */
static void add_params(struct sbx_buf *out, const struct open_route *r, bool *ret_query)
{
	size_t n;

	*ret_query = false;
	sbx_buf_puts(out, ",\"parameters\":[");
	n = add_path_params(out, r);
	for (size_t i = 0; i < SBX_COUNT(params); i++) {
		if (strcmp(params[i].handler, r->handler) != 0)
			continue;
		*ret_query |= strcmp(params[i].in, "query") == 0;
		sbx_buf_puts(out, n++ ? "," : "");
		add_param(out, &params[i]);
	}
	sbx_buf_puts(out, "]");
}

static void add_other_answers(struct sbx_buf *out, const struct open_route *r, size_t *n)
{
	for (size_t i = 0; i < SBX_COUNT(other_answers); i++) {
		if (strcmp(other_answers[i].handler, r->handler) != 0)
			continue;
		sbx_buf_printf(out, "%s\"%d\":{\"description\":\"%s\"", (*n)++ ? "," : "",
			       other_answers[i].status, other_answers[i].doc);
		if (other_answers[i].media)
			sbx_buf_printf(out, ",\"content\":{\"%s\":{\"schema\":{%s}}}",
				       other_answers[i].media,
				       strstr(other_answers[i].media, "/json")
					       ? "\"type\":\"object\""
					       : "\"type\":\"string\"");
		sbx_buf_puts(out, "}");
	}
}

static bool answers_with(const struct open_route *r, int status, bool query)
{
	switch (status) {
	case 401:
		return r->access != ROUTE_PUBLIC;
	case 403:
		return r->access == ROUTE_ADMIN;
	case 400:
		return r->body || strchr(r->path, '{');
	case 404:
		return strchr(r->path, '{') != NULL;
	case 422:
		return r->body || query;
	case 409:
	case 413:
	case 429:
	case 507:
		return r->body || strcmp(r->method, "DELETE") == 0;
	default:
		return true;
	}
}

static void add_answers(struct sbx_buf *out, const struct open_route *r, bool query)
{
	size_t n = 0;

	sbx_buf_puts(out, ",\"responses\":{");
	if (r->answer) {
		sbx_buf_puts(out, "\"200\":{\"description\":");
		sbx_buf_json_strz(out, r->summary);
		sbx_buf_printf(out,
			       ",\"content\":{\"application/json\":{\"schema\":{\"$ref\":"
			       "\"#/components/schemas/%s\"}}}}",
			       r->answer);
		n++;
	}
	add_other_answers(out, r, &n);
	for (size_t i = 0; i < SBX_COUNT(statuses); i++)
		if (answers_with(r, statuses[i], query))
			sbx_buf_printf(out, "%s\"%d\":{\"$ref\":\"#/components/responses/E%d\"}",
				       n++ ? "," : "", statuses[i], statuses[i]);
	sbx_buf_puts(out, "}");
}

static void add_body(struct sbx_buf *out, const char *body)
{
	bool optional = body[0] == '?', form = body[0] == '@';

	if (body[0] == '=') {
		sbx_buf_puts(out, ",\"requestBody\":{\"required\":true,\"content\":{"
				  "\"application/x-tar\":{\"schema\":{\"type\":\"string\","
				  "\"format\":\"binary\"}}}}");
		return;
	}
	sbx_buf_printf(out,
		       ",\"requestBody\":{\"required\":%s,\"content\":{\"%s\":{\"schema\":{"
		       "\"$ref\":\"#/components/schemas/%s\"}}}}",
		       optional ? "false" : "true",
		       form ? "multipart/form-data" : "application/json",
		       body + (optional || form));
}

static void add_operation(struct sbx_buf *out, const struct open_route *r)
{
	bool query = false;

	sbx_buf_puts(out, "\"");
	for (const char *p = r->method; *p; p++)
		sbx_buf_printf(out, "%c", tolower((unsigned char)*p));
	sbx_buf_puts(out, "\":{");
	add_operation_id(out, r);
	sbx_buf_printf(out, ",\"tags\":[\"%s\"],\"summary\":", r->tag);
	sbx_buf_json_strz(out, r->summary);
	if (r->access == ROUTE_ADMIN)
		openapi_doc(out, "For administrators.");
	if (r->access == ROUTE_PUBLIC)
		sbx_buf_puts(out, ",\"security\":[]");
	add_params(out, r, &query);
	if (r->body)
		add_body(out, r->body);
	add_answers(out, r, query);
	sbx_buf_puts(out, "}");
}

/* Has an earlier row this path? Then it has written this one, too. */
static bool is_written(size_t i)
{
	for (size_t j = 0; j < i; j++)
		if (strcmp(routes[j].path, routes[i].path) == 0)
			return true;
	return false;
}

static void add_paths(struct sbx_buf *out)
{
	size_t shown = 0;

	for (size_t i = 0; i < SBX_COUNT(routes); i++) {
		char path[PATH_MAX_BYTES];
		size_t n = 0;

		if (is_written(i))
			continue;
		full_path(&routes[i], path);
		sbx_buf_printf(out, "%s\"%s\":{", shown++ ? "," : "", path);
		for (size_t j = i; j < SBX_COUNT(routes); j++)
			if (strcmp(routes[j].path, routes[i].path) == 0) {
				sbx_buf_puts(out, n++ ? "," : "");
				add_operation(out, &routes[j]);
			}
		sbx_buf_puts(out, "}");
	}
}

static void add_tags(struct sbx_buf *out)
{
	size_t shown = 0;

	for (size_t i = 0; i < SBX_COUNT(routes); i++) {
		size_t j = 0;

		while (j < i && strcmp(routes[j].tag, routes[i].tag) != 0)
			j++;
		if (j == i)
			sbx_buf_printf(out, "%s{\"name\":\"%s\"}", shown++ ? "," : "",
				       routes[i].tag);
	}
}

void openapi_make(struct sbx_buf *out)
{
	sbx_buf_printf(
		out,
		"{\"openapi\":\"3.1.0\",\"info\":{\"title\":\"sandboxfs\",\"version\":\"%s\","
		"\"description\":\"Runs code that is not trusted. GET serves HEAD as well.\","
		"\"license\":{\"name\":\"Apache-2.0\",\"identifier\":\"Apache-2.0\"}},"
		"\"servers\":[{\"url\":\"/\"}],\"security\":[{\"key\":[]},{\"token\":[]}],"
		"\"tags\":[",
		SBX_VERSION);
	add_tags(out);
	sbx_buf_puts(out, "],\"paths\":{");
	add_paths(out);
	sbx_buf_puts(out, "},\"components\":{\"securitySchemes\":{"
			  "\"key\":{\"type\":\"apiKey\",\"in\":\"header\",\"name\":\"X-API-KEY\"},"
			  "\"token\":{\"type\":\"http\",\"scheme\":\"bearer\",\"bearerFormat\":"
			  "\"JWT\"}},\"responses\":{");
	add_error_responses(out);
	sbx_buf_puts(out, "},\"schemas\":{");
	openapi_specs(out);
	add_schemas(out);
	sbx_buf_puts(out, "}}}\n");
}
