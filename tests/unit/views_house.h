/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of documents share: a house without runners, and looks into documents. */
#ifndef SBX_TESTS_UNIT_VIEWS_HOUSE_H
#define SBX_TESTS_UNIT_VIEWS_HOUSE_H

#include "policy_util.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/id.h"
#include "orchestrator/orch_i.h"

/* ---- a house without runners ----------------------------------------------------------------- */

struct house {
	char dir[64];
	struct orch o;
	struct orch_config config;
};

static inline int build(void **state)
{
	struct house *h = calloc(1, sizeof(*h));
	sbx_autoerror e = SBX_ERROR_INIT;

	if (!h || clean_environment(NULL) < 0)
		return -1;
	(void)snprintf(h->dir, sizeof(h->dir), "/tmp/sbx-views-XXXXXX");
	if (!mkdtemp(h->dir))
		return -1;
	if (store_open(h->dir, NULL, &h->o.store, &e) < 0)
		return -1;
	h->config.settings = settings(NULL);
	h->config.preflights = preflights("{" NAMESPACE "}");
	atomic_store(&h->o.config, &h->config);
	h->o.workers = 2;
	h->o.opened_us = sbx_now_us();
	*state = h;
	return 0;
}

static inline int clear(void **state)
{
	struct house *h = *state;

	watching_end(&h->o);
	store_close(h->o.store);
	(void)orch_settings_free(h->config.settings);
	(void)orch_preflights_free(h->config.preflights);
	(void)sbx_remove_tree(AT_FDCWD, h->dir);
	free(h);
	return 0;
}

static inline void reread(struct house *h, const char *const *overrides, const char *records)
{
	(void)orch_settings_free(h->config.settings);
	(void)orch_preflights_free(h->config.preflights);
	h->config.settings = settings(overrides);
	h->config.preflights = preflights(records);
}

/* What a new run is. */
struct wish {
	const char *user, *workspace, *image, *labels;
	int64_t started_us; /* 0: stays queued */
	enum store_phase to;
	const char *reason;
};

static inline void add(struct house *h, const struct wish *w, char id[37])
{
	struct store_tx *tx = NULL;
	struct store_transition t = { .from = STORE_MASK_LIVE,
				      .generation = -1,
				      .to = w->to,
				      .reason = w->reason,
				      .started_us = w->started_us,
				      .finished_us = w->started_us + SBX_SECOND_US };
	store_autorun r = { 0 };
	bool done = false;

	sbx_id_new(id);
	r.id = strdup(id);
	r.user = strdup(w->user);
	r.door = strdup("api");
	r.runtime = strdup("namespace");
	r.phase = STORE_QUEUED;
	r.workspace_id = dup_or_null(w->workspace);
	r.image_digest = dup_or_null(w->image);
	r.labels = dup_or_null(w->labels);
	assert_int_equal(store_begin(h->o.store, &tx, NULL), 0);
	assert_int_equal(store_tx_run_insert(tx, &r, "{}", NULL), 0);
	t.id = id;
	if (w->started_us)
		assert_int_equal(store_tx_run_transition(tx, &t, &done, NULL), 0);
	assert_int_equal(store_commit(tx, false, NULL), 0);
}

/* ---- looking into documents ------------------------------------------------------------------ */

static inline struct json_object *at(struct json_object *o, const char *path)
{
	sbx_autofree char *copy = strdup(path);
	char *rest = copy, *name;

	assert_non_null(copy);
	while ((name = strsep(&rest, "."))) {
		struct json_object *v = NULL;

		if (json_object_is_type(o, json_type_array))
			v = json_object_array_get_idx(o, (size_t)atoi(name));
		else if (!json_object_object_get_ex(o, name, &v))
			fail_msg("no member '%s' of '%s'", name, path);
		o = v;
	}
	return o;
}

#define IS(o, path, text)                                                                          \
	assert_string_equal(                                                                       \
		json_object_to_json_string_ext(                                                    \
			at(o, path), JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE),     \
		text)

/* Exactly these members, in whatever order; names are separated by a space. */
static inline void keys_are(struct json_object *o, const char *names)
{
	size_t n = 0;

	for (const char *p = names; *p; n++) {
		size_t len = strcspn(p, " ");
		char name[64];

		(void)snprintf(name, sizeof(name), "%.*s", (int)len, p);
		if (!json_object_object_get_ex(o, name, NULL))
			fail_msg("no member '%s' in %s", name, json_object_to_json_string(o));
		p += len + (p[len] == ' ');
	}
	if ((size_t)json_object_object_length(o) != n)
		fail_msg("%d members instead of %zu in %s", json_object_object_length(o), n,
			 json_object_to_json_string(o));
}

/* Those that schemas.def promises for an answer of this name. */
static inline void keys_are_documented(struct json_object *o, const char *schema)
{
	static const struct {
		const char *schema, *member;
	} rows[] = {
#define X(schema, member, type, doc) { schema, member },
#include "apid/schemas.def"
#undef X
	};
	char names[4096] = "";
	size_t n = 0;

	for (size_t i = 0; i < SBX_COUNT(rows); i++)
		if (strcmp(rows[i].schema, schema) == 0)
			n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%s", n ? " " : "",
					      rows[i].member);
	assert_true(n > 0);
	keys_are(o, names);
}

/* The document of a view, or the test fails. */
#define VIEW(call)                                                                                 \
	({                                                                                         \
		struct sbx_buf out_buf = SBX_BUF_INIT(1 << 20), *out = &out_buf;                   \
		sbx_autoerror view_e = SBX_ERROR_INIT;                                             \
		struct sbx_error *e = &view_e;                                                     \
		struct json_object *doc = NULL;                                                    \
		if ((call) < 0 || sbx_json_parse_object(out->data, out->len, &doc, e) < 0)         \
			fail_msg("%s: %s", #call, view_e.message);                                 \
		assert_int_equal(out->data[out->len - 1], '\n');                                   \
		sbx_buf_free(out);                                                                 \
		doc;                                                                               \
	})

#define REFUSED(field, call)                                                                       \
	do {                                                                                       \
		sbx_autobuf out_buf = SBX_BUF_INIT(1 << 20);                                       \
		struct sbx_buf *out = &out_buf;                                                    \
		sbx_autoerror view_e = SBX_ERROR_INIT;                                             \
		struct sbx_error *e = &view_e;                                                     \
		assert_int_equal(call, -SBX_E_INVALID_ARGUMENT);                                   \
		assert_non_null(strstr(view_e.details, "\"field\":\"" field "\""));                \
	} while (0)

static const char status_keys[] =
	"id spec_version runtime runtime_version base_image image_digest policy_hash phase "
	"status_reason_code status_reason_details exit_code started_at finished_at message "
	"resource_usage estimated_start_time log_stream_url session_id persona_id workspace_id "
	"workspace_group_id scope_snapshot_id created_at trust_level network_policy user name "
	"labels interactive claim_generation";

#define T0 (INT64_C(1769860800) * SBX_SECOND_US) /* 2026-01-31T12:00:00Z */

static const struct orch_principal alice = { .user = "alice", .uid = 1, .door = "api" };

#define VIEW_TEST(name) cmocka_unit_test_setup_teardown(name, build, clear)

#endif
