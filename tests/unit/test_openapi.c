/* SPDX-License-Identifier: Apache-2.0 */
/* apid/openapi.c: the description is JSON, names each route and each field, and refers to nothing
 * that is not there. Whether it is OpenAPI is for a validator of others to say: test_openapi.py
 * runs this program with --print. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "apid/apid_i.h"
#include "base/json.h"
#include "mountspec/mountspec.h"

static struct json_object *make(void)
{
	sbx_autobuf out = SBX_BUF_INIT(4 << 20);
	sbx_autoerror e = SBX_ERROR_INIT;
	struct json_object *o = NULL;

	openapi_make(&out);
	assert_false(sbx_buf_failed(&out));
	if (sbx_json_parse_object(out.data, out.len, &o, &e) < 0)
		fail_msg("%s", e.message);
	return o;
}

/* Borrowed; fails when a name is missing. */
static struct json_object *at(struct json_object *o, const char *name)
{
	struct json_object *v = NULL;

	if (!json_object_object_get_ex(o, name, &v))
		fail_msg("no member '%s'", name);
	return v;
}

static void openapi__has_every_route(void **state)
{
	static const struct {
		const char *method, *path, *answer;
	} rows[] = {
#define X(method, path, access, handle, tag, body, answer, summary) { method, path, answer },
#include "apid/routes.def"
#undef X
	};
	sbx_autojson *doc = make();
	struct json_object *paths = at(doc, "paths"),
			   *schemas = at(at(doc, "components"), "schemas");

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		char path[256], method[8], *dots;

		(void)snprintf(path, sizeof(path), "%s%s", rows[i].path[1] == '/' ? "" : API_BASE,
			       rows[i].path + (rows[i].path[1] == '/'));
		if ((dots = strstr(path, "...")))
			memmove(dots, dots + 3, strlen(dots + 3) + 1);
		(void)snprintf(method, sizeof(method), "%s",
			       strcmp(rows[i].method, "GET") == 0    ? "get"
			       : strcmp(rows[i].method, "POST") == 0 ? "post"
								     : "delete");
		(void)at(at(at(paths, path), method), "operationId");
		if (rows[i].answer)
			(void)at(schemas, rows[i].answer);
	}
}

static void openapi__has_every_field_of_a_spec(void **state)
{
	sbx_autojson *doc = make();
	struct json_object *spec = at(at(at(doc, "components"), "schemas"), "RunSpec");

	(void)state;
	for (int i = MS_F_NONE + 1; i < MS_F__COUNT; i++) {
		const struct ms_field_info *f = ms_field_info((enum ms_field)i);
		struct json_object *where = at(spec, "properties");
		const char *dot = strchr(f->name, '.');
		char group[64];

		if (dot) {
			(void)snprintf(group, sizeof(group), "%.*s", (int)(dot - f->name), f->name);
			where = at(at(where, group), "properties");
		}
		(void)at(at(where, dot ? dot + 1 : f->name), "type");
	}
	assert_string_equal(
		json_object_to_json_string_ext(at(spec, "required"), JSON_C_TO_STRING_PLAIN),
		"[\"command\"]");
}

/* Each "#/a/b/c" anywhere leads to something; ids of operations are all different. */
static void follow(struct json_object *root, struct json_object *o, struct json_object *ids)
{
	if (json_object_is_type(o, json_type_array)) {
		for (size_t i = 0; i < json_object_array_length(o); i++)
			follow(root, json_object_array_get_idx(o, i), ids);
		return;
	}
	if (!json_object_is_type(o, json_type_object))
		return;
	json_object_object_foreach(o, name, value)
	{
		if (strcmp(name, "$ref") == 0) {
			char text[256], *rest = text, *part;
			struct json_object *there = root;

			(void)snprintf(text, sizeof(text), "%s", json_object_get_string(value));
			assert_int_equal(strncmp(text, "#/", 2), 0);
			rest += 2;
			while ((part = strsep(&rest, "/")))
				there = at(there, part);
		} else if (strcmp(name, "operationId") == 0) {
			const char *id = json_object_get_string(value);

			assert_false(json_object_object_get_ex(ids, id, NULL));
			json_object_object_add(ids, id, NULL);
		} else {
			follow(root, value, ids);
		}
	}
}

static void openapi__refers_to_what_is_there(void **state)
{
	sbx_autojson *doc = make();
	sbx_autojson *ids = json_object_new_object();

	(void)state;
	follow(doc, doc, ids);
	assert_true(json_object_object_length(ids) > 10);
}

/* A row of params.def whose handler has no route would be lost in silence. */
static void openapi__params_belong_to_routes(void **state)
{
	static const char *const used[] = {
#define X(handle, ...) #handle,
#include "apid/params.def"
#undef X
	};
	static const char *const handlers[] = {
#define X(method, path, access, handle, ...) #handle,
#include "apid/routes.def"
#undef X
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(used); i++) {
		size_t j = 0;

		while (j < SBX_COUNT(handlers) && strcmp(used[i], handlers[j]) != 0)
			j++;
		if (j == SBX_COUNT(handlers))
			fail_msg("no route has the handler %s", used[i]);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(openapi__has_every_route),
		cmocka_unit_test(openapi__has_every_field_of_a_spec),
		cmocka_unit_test(openapi__refers_to_what_is_there),
		cmocka_unit_test(openapi__params_belong_to_routes),
	};

	if (argc == 2 && strcmp(argv[1], "--print") == 0) {
		sbx_autobuf out = SBX_BUF_INIT(4 << 20);

		openapi_make(&out);
		return out.data && fputs(out.data, stdout) >= 0 ? 0 : 1;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
