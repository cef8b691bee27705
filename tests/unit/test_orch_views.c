/* SPDX-License-Identifier: Apache-2.0 */
/* orchestrator/: the documents that both doors show, member by member. */
#include "policy_util.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/id.h"
#include "orchestrator/orch_i.h"

/* ---- a house without runners ---- */

struct house {
	char dir[64];
	struct orch o;
	struct orch_config config;
};

static int build(void **state)
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

static int clear(void **state)
{
	struct house *h = *state;

	store_close(h->o.store);
	(void)orch_settings_free(h->config.settings);
	(void)orch_preflights_free(h->config.preflights);
	(void)sbx_remove_tree(AT_FDCWD, h->dir);
	free(h);
	return 0;
}

static void reread(struct house *h, const char *const *overrides, const char *records)
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

static void add(struct house *h, const struct wish *w, char id[37])
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

/* ---- looking into documents ---- */

static struct json_object *at(struct json_object *o, const char *path)
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
static void keys_are(struct json_object *o, const char *names)
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
static void keys_are_documented(struct json_object *o, const char *schema)
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

/* ---- a user's own runs ---- */

static void runs__pages_of_ones_own(void **state)
{
	struct house *h = *state;
	struct orch_runs_query q = { .limit = 2 };
	char id[5][37];

	for (int i = 0; i < 5; i++)
		add(h,
		    &(struct wish){ .user = i == 3 ? "bob" : "alice", .labels = "{\"n\":\"1\"}" },
		    id[i]);
	for (int page = 0; page < 2; page++) {
		sbx_autojson *o = VIEW(orch_view_runs(&h->o, &alice, &q, out, e));
		static char cursor[37];

		keys_are(o, "items next_cursor");
		keys_are(at(o, "items.0"), status_keys);
		keys_are_documented(at(o, "items.0"), "Run");
		assert_int_equal(json_object_array_length(at(o, "items")), 2);
		assert_string_equal(json_object_get_string(at(o, "items.0.id")), id[page ? 1 : 4]);
		if (page)
			IS(o, "next_cursor", "null");
		else
			(void)snprintf(cursor, sizeof(cursor), "%s",
				       json_object_get_string(at(o, "next_cursor")));
		q.cursor = cursor;
	}
	{
		/* An administrator sees here what is their own, and everybody's under /admin. */
		const struct orch_principal root = { .user = "root", .admin = true, .door = "fs" };
		sbx_autojson *o = VIEW(orch_view_runs(
			&h->o, &root, &(struct orch_runs_query){ .limit = 5 }, out, e));

		IS(o, "items", "[]");
	}
	{
		const struct orch_runs_query by = { .limit = 5,
						    .label = "n=1",
						    .phase = "queued",
						    .cursor = "",
						    .session_id = "" };
		sbx_autojson *o = VIEW(orch_view_runs(&h->o, &alice, &by, out, e));

		assert_int_equal(json_object_array_length(at(o, "items")), 4);
	}
	REFUSED("cursor",
		orch_view_runs(&h->o, &alice,
			       &(struct orch_runs_query){ .limit = 1, .cursor = id[3] }, out, e));
	REFUSED("limit",
		orch_view_runs(&h->o, &alice, &(struct orch_runs_query){ .limit = 1001 }, out, e));
	REFUSED("limit",
		orch_view_runs(&h->o, &alice, &(struct orch_runs_query){ .limit = 0 }, out, e));
	REFUSED("phase",
		orch_view_runs(&h->o, &alice,
			       &(struct orch_runs_query){ .limit = 1, .phase = "done" }, out, e));
	REFUSED("label",
		orch_view_runs(&h->o, &alice, &(struct orch_runs_query){ .limit = 1, .label = "n" },
			       out, e));
}

/* ---- administrators ---- */

static const char admin_item_keys[] =
	"id user_id spec_version runtime runtime_version base_image image_digest policy_hash phase "
	"status_reason_code status_reason_details exit_code started_at finished_at message "
	"session_id persona_id workspace_id workspace_group_id scope_snapshot_id created_at "
	"trust_level network_policy name labels interactive claim_generation";

static void admin_runs__the_envelope_and_the_filters(void **state)
{
	struct house *h = *state;
	char id[4][37];
	struct orch_admin_runs q = { .page = { .limit = 1 }, .image_digest = "d1" };

	add(h, &(struct wish){ "u1", NULL, "d1", NULL, T0, STORE_COMPLETED, "completed" }, id[0]);
	add(h,
	    &(struct wish){ "u1", NULL, "d1", NULL, T0 + 100 * SBX_SECOND_US, STORE_COMPLETED,
			    "completed" },
	    id[1]);
	add(h,
	    &(struct wish){ "u2", NULL, "d2", NULL, T0 + 200 * SBX_SECOND_US, STORE_FAILED,
			    "nonzero_exit" },
	    id[2]);
	add(h, &(struct wish){ .user = "u1" }, id[3]);
	{
		sbx_autojson *o = VIEW(orch_view_admin_runs(&h->o, &q, out, e));

		keys_are_documented(o, "AdminRuns");
		keys_are(o, "total limit offset has_more next_offset pagination items");
		keys_are(at(o, "pagination"), "mode limit offset total has_more next_offset");
		IS(o, "pagination",
		   "{\"mode\":\"offset\",\"total\":2,\"limit\":1,\"offset\":0,\"has_more\":true,"
		   "\"next_offset\":1}");
		keys_are(at(o, "items.0"), admin_item_keys);
		keys_are_documented(at(o, "items.0"), "AdminRunItem");
		assert_string_equal(json_object_get_string(at(o, "items.0.id")), id[1]);
		IS(o, "items.0.status_reason_details.category", "\"success\"");
		IS(o, "items.0.user_id", "\"u1\"");
	}
	q = (struct orch_admin_runs){ .page = { .limit = 10 },
				      .started_from = "2026-01-31T12:01:00+00:00" };
	{
		sbx_autojson *o = VIEW(orch_view_admin_runs(&h->o, &q, out, e));

		IS(o, "total", "2");
		assert_string_equal(json_object_get_string(at(o, "items.0.id")), id[2]);
		IS(o, "next_offset", "null");
	}
	q = (struct orch_admin_runs){ .page = { .limit = 10 }, .user_id = "u2", .phase = "failed" };
	{
		sbx_autojson *o = VIEW(orch_view_admin_runs(&h->o, &q, out, e));

		IS(o, "total", "1");
		assert_string_equal(json_object_get_string(at(o, "items.0.id")), id[2]);
	}
	/* What has not started is the least. */
	q = (struct orch_admin_runs){ .page = { .limit = 10, .ascending = true } };
	{
		sbx_autojson *o = VIEW(orch_view_admin_runs(&h->o, &q, out, e));

		assert_string_equal(json_object_get_string(at(o, "items.0.id")), id[3]);
		IS(o, "items.0.started_at", "null");
		IS(o, "total", "4");
	}
	q.phase = "nonsense";
	{
		sbx_autojson *o = VIEW(orch_view_admin_runs(&h->o, &q, out, e));

		IS(o, "items", "[]");
		IS(o, "total", "0");
	}
	q.started_to = "now";
	REFUSED("started_at_to", orch_view_admin_runs(&h->o, &q, out, e));
	{
		sbx_autojson *o = VIEW(orch_view_admin_run(&h->o, id[2], out, e));
		char both[1024];

		(void)snprintf(both, sizeof(both), "%s resource_usage", admin_item_keys);
		keys_are(o, both);
	}
	{
		sbx_autobuf out = SBX_BUF_INIT(1000);

		assert_int_equal(orch_view_admin_run(&h->o, "nobody", &out, NULL),
				 -SBX_E_RUN_NOT_FOUND);
	}
}

static void admin_usage__by_user(void **state)
{
	struct house *h = *state;
	const struct orch_page page = { .limit = 1, .ascending = true };
	char id[37];

	add(h, &(struct wish){ .user = "bob" }, id);
	add(h, &(struct wish){ .user = "alice" }, id);
	add(h, &(struct wish){ .user = "alice" }, id);
	{
		sbx_autojson *o = VIEW(orch_view_admin_usage(&h->o, &page, NULL, out, e));

		keys_are(o, "total limit offset has_more items pagination");
		keys_are_documented(o, "AdminUsage");
		keys_are(at(o, "items.0"), "user_id runs_count log_bytes artifact_bytes");
		IS(o, "items.0.user_id", "\"alice\"");
		IS(o, "items.0.runs_count", "2");
		IS(o, "pagination",
		   "{\"mode\":\"offset\",\"total\":2,\"limit\":1,\"offset\":0,\"has_more\":true,"
		   "\"next_offset\":1}");
	}
	{
		sbx_autojson *o = VIEW(orch_view_admin_usage(&h->o, &page, "nonexistent", out, e));

		IS(o, "total", "0");
		IS(o, "items", "[]");
	}
}

static void admin_keys__those_that_are_remembered(void **state)
{
	struct house *h = *state;
	struct orch_admin_keys q = { .page = { .limit = 10 }, .endpoint = "sessions" };
	struct store_tx *tx = NULL;
	struct store_idem prior;
	int64_t now = sbx_now_us();
	bool fresh;

	assert_int_equal(store_begin(h->o.store, &tx, NULL), 0);
	assert_int_equal(store_tx_idem_put(tx, "sessions", "u", "k1", "f", "object", now, 0, &fresh,
					   &prior, NULL),
			 0);
	/* Not swept, but beyond its time. */
	assert_int_equal(store_tx_idem_put(tx, "sessions", "u", "k0", "f", "object",
					   now - 3600 * SBX_SECOND_US, 0, &fresh, &prior, NULL),
			 0);
	assert_int_equal(store_commit(tx, false, NULL), 0);
	{
		sbx_autojson *o = VIEW(orch_view_admin_keys(&h->o, &q, out, e));

		keys_are(o, "total limit offset has_more items pagination");
		keys_are_documented(o, "AdminIdempotency");
		keys_are(at(o, "items.0"), "endpoint user_id key fingerprint object_id created_at");
		IS(o, "total", "1");
		IS(o, "items.0.key", "\"k1\"");
	}
	q.created_from = "x";
	REFUSED("created_at_from", orch_view_admin_keys(&h->o, &q, out, e));
}

/* ---- health, operator status, workspace ---- */

static void health__members(void **state)
{
	struct house *h = *state;
	sbx_autojson *o = VIEW(orch_view_health(&h->o, out, e));
	sbx_autojson *p = VIEW(orch_view_health_public(&h->o, out, e));

	keys_are(p, "ok store redis timings time");
	keys_are_documented(p, "Health");
	keys_are(o, "ok store redis timings time uptime_sec version queue execution");
	IS(o, "ok", "true");
	IS(o, "store", "{\"mode\":\"sqlite\",\"healthy\":true}");
	IS(o, "redis", "{\"enabled\":false,\"channel\":null,\"connected\":false}");
	keys_are(at(o, "timings"), "store_ms");
}

static void operator__shape_and_judgement(void **state)
{
	struct house *h = *state;
	char id[37];

	{
		sbx_autojson *o = VIEW(orch_view_operator(&h->o, out, e));

		keys_are(o, "source overall_status overall_severity summary sections "
			    "recommended_actions notes");
		keys_are_documented(o, "OperatorStatus");
		IS(o, "source", "\"sandbox_operator_status\"");
		IS(o, "overall_status", "\"ready\"");
		IS(o, "overall_severity", "\"info\"");
		IS(o, "summary", "{\"runtime_total\":9,\"runtime_ready\":1,\"actions\":0}");
		IS(o, "recommended_actions", "[]");
		keys_are(at(o, "sections"),
			 "runtime_readiness macos_vz image_store reconciliation evidence "
			 "security_boundaries startup_warnings queue store");
		json_object_object_foreach(at(o, "sections"), name, s)
		{
			(void)name;
			for (const char *const *k =
				     (const char *const[]){ "status", "severity", "configured",
							    "reasons", "counts", "repair_endpoint",
							    "cleanup_plan_endpoint", NULL };
			     *k; k++)
				assert_true(json_object_object_get_ex(s, *k, NULL));
		}
		IS(o, "sections.evidence.status", "\"not_configured\"");
		IS(o, "sections.evidence.reasons", "[\"evidence_not_configured\"]");
		IS(o, "sections.macos_vz.status", "\"not_configured\"");
		IS(o, "sections.runtime_readiness.host_local_warning_runtimes",
		   "[\"seatbelt\",\"worktree\"]");
		IS(o, "sections.startup_warnings.codes", "[]");
	}
	reread(h, NULL, "{\"docker\":" DOWN("docker_unavailable") "}");
	{
		sbx_autojson *o = VIEW(orch_view_operator(&h->o, out, e));

		IS(o, "overall_status", "\"unavailable\"");
		IS(o, "overall_severity", "\"error\"");
		keys_are(at(o, "recommended_actions.0"),
			 "code severity section message endpoint dry_run_required");
		IS(o, "recommended_actions.0.section", "\"runtime_readiness\"");
	}
	/* Runtimes without a boundary that could be used, and none takes a run. */
	reread(h, NULL, EVERYTHING);
	{
		sbx_autojson *o = VIEW(orch_view_operator(&h->o, out, e));

		IS(o, "overall_status", "\"ready\"");
	}
	/* Now one does. */
	reread(h, (const char *const[]){ "worktree_deny_all=true", NULL }, EVERYTHING);
	{
		sbx_autojson *o = VIEW(orch_view_operator(&h->o, out, e));

		IS(o, "overall_status", "\"degraded\"");
		IS(o, "overall_severity", "\"warning\"");
	}
	reread(h, (const char *const[]){ "queue_max_length=1", "enable_execution=false", NULL },
	       "{" NAMESPACE "}");
	add(h, &(struct wish){ .user = "u" }, id);
	{
		sbx_autojson *o = VIEW(orch_view_operator(&h->o, out, e));

		IS(o, "overall_status", "\"degraded\"");
		IS(o, "sections.queue.counts", "{\"queued\":1,\"active\":0,\"limit\":1}");
		IS(o, "recommended_actions.0.code", "\"inspect_queue\"");
		assert_int_equal(json_object_array_length(at(o, "notes")), 1);
	}
}

static void workspace__ones_own_runs_and_a_verdict(void **state)
{
	struct house *h = *state;
	char id[3][37];

	add(h, &(struct wish){ .user = "alice", .workspace = "w a" }, id[0]);
	add(h, &(struct wish){ .user = "bob", .workspace = "w a" }, id[1]);
	add(h, &(struct wish){ .user = "alice", .workspace = "other" }, id[2]);
	{
		sbx_autojson *o = VIEW(orch_view_workspace(&h->o, &alice, "w a", 10, out, e));

		keys_are(o, "workspace_id source_label runtime admission runs links");
		keys_are_documented(o, "WorkspaceDiagnostics");
		keys_are_documented(at(o, "runs.items.0"), "WorkspaceRun");
		keys_are(
			at(o, "runs.items.0"),
			"id runtime runtime_version base_image phase status_reason_code "
			"status_reason_details exit_code started_at finished_at message session_id "
			"persona_id workspace_id workspace_group_id scope_snapshot_id created_at "
			"name labels interactive");
		IS(o, "source_label", "\"research_workspace\"");
		IS(o, "runtime",
		   "{\"state\":\"available\",\"reason_code\":null,\"message\":\"A runtime can be "
		   "used.\",\"management_surface\":\"sandbox_settings\"}");
		IS(o, "admission.state", "\"available\"");
		IS(o, "runs.total", "1");
		IS(o, "runs.has_more", "false");
		assert_string_equal(json_object_get_string(at(o, "runs.items.0.id")), id[0]);
		IS(o, "links.admin_runs", "\"/admin/monitoring?focus=sandbox&workspace_id=w%20a\"");
	}
	reread(h, (const char *const[]){ "enable_execution=false", NULL }, "{" NAMESPACE "}");
	{
		sbx_autojson *o = VIEW(orch_view_workspace(&h->o, &alice, "none", 1, out, e));

		IS(o, "runtime.state", "\"available\"");
		IS(o, "admission.reason_code", "\"sandbox_execution_disabled\"");
		IS(o, "runs.items", "[]");
	}
	reread(h, NULL, "{\"docker\":" DOWN("docker_unavailable") "}");
	{
		sbx_autojson *o = VIEW(orch_view_workspace(&h->o, &alice, "none", 1, out, e));

		IS(o, "runtime.state", "\"unavailable\"");
		IS(o, "runtime.reason_code", "\"sandbox_runtime_unavailable\"");
		IS(o, "admission.state", "\"blocked\"");
	}
	reread(h, NULL, "{}");
	{
		sbx_autojson *o = VIEW(orch_view_workspace(&h->o, &alice, "none", 1, out, e));

		IS(o, "runtime.reason_code", "\"sandbox_not_available\"");
	}
	REFUSED("limit", orch_view_workspace(&h->o, &alice, "w", 101, out, e));
}

static void runtimes__as_documented(void **state)
{
	struct house *h = *state;
	sbx_autojson *o = VIEW(orch_view_runtimes(&h->o, out, e));
	sbx_autojson *d = VIEW(orch_view_diagnostics(&h->o, out, e));

	keys_are_documented(at(o, "runtimes.0"), "Runtime");
	keys_are_documented(d, "RuntimeDiagnostics");
	keys_are_documented(at(d, "runtimes.0"), "RuntimeDiagnostic");
	keys_are_documented(at(d, "startup_warning_summary"), "StartupWarnings");
}

/* ---- metrics ---- */

static int64_t sample(const char *text, const char *line)
{
	const char *p = text;

	while (p && *p) {
		if (strncmp(p, line, strlen(line)) == 0 && p[strlen(line)] == ' ')
			return strtoll(p + strlen(line), NULL, 10);
		p = strchr(p, '\n');
		p = p ? p + 1 : NULL;
	}
	fail_msg("no sample %s in\n%s", line, text);
	return -1;
}

static void metrics__count_runs(void **state)
{
	struct house *h = *state;
	sbx_autobuf out = SBX_BUF_INIT(1 << 20);
	char id[37];

	add(h, &(struct wish){ .user = "u" }, id);
	add(h, &(struct wish){ "u", NULL, NULL, NULL, T0, STORE_COMPLETED, "completed" }, id);
	add(h, &(struct wish){ "u", NULL, NULL, NULL, T0, STORE_TIMED_OUT, "execution_timeout" },
	    id);
	orch_count_full(&h->o, STORE_SCOPE_USER, "namespace");
	orch_count_wait(&h->o, "namespace", 20000);
	orch_count_wait(&h->o, "namespace", -5);
	orch_count_wait(&h->o, "what", INT64_C(7200000000));
	assert_int_equal(orch_view_metrics(&h->o, &out, NULL), 0);
	assert_int_equal(sample(out.data, "sandbox_runs_started_total{runtime=\"namespace\"}"), 3);
	assert_int_equal(sample(out.data, "sandbox_runs_started_total{runtime=\"docker\"}"), 0);
	assert_int_equal(sample(out.data, "sandbox_runs_completed_total{runtime=\"namespace\","
					  "outcome=\"success\",reason=\"completed\"}"),
			 1);
	assert_int_equal(sample(out.data, "sandbox_runs_completed_total{runtime=\"namespace\","
					  "outcome=\"timeout\",reason=\"execution_timeout\"}"),
			 1);
	assert_int_equal(sample(out.data,
				"sandbox_run_duration_seconds_bucket{runtime=\"namespace\","
				"outcome=\"success\",reason=\"completed\",le=\"0.5\"}"),
			 0);
	assert_int_equal(sample(out.data,
				"sandbox_run_duration_seconds_bucket{runtime=\"namespace\","
				"outcome=\"success\",reason=\"completed\",le=\"1\"}"),
			 1);
	assert_int_equal(sample(out.data, "sandbox_run_duration_seconds_sum{runtime=\"namespace\","
					  "outcome=\"success\",reason=\"completed\"}"),
			 1);
	assert_int_equal(
		sample(out.data,
		       "sandbox_queue_wait_seconds_bucket{runtime=\"namespace\",le=\"0.01\"}"),
		1);
	assert_int_equal(
		sample(out.data, "sandbox_queue_wait_seconds_count{runtime=\"namespace\"}"), 2);
	assert_int_equal(
		sample(out.data,
		       "sandbox_queue_wait_seconds_bucket{runtime=\"unknown\",le=\"+Inf\"}"),
		1);
	assert_int_equal(sample(out.data, "sandbox_queue_full_total{component=\"sandbox\",reason="
					  "\"user_queue_quota_exceeded\",runtime=\"namespace\"}"),
			 1);
	assert_int_equal(sample(out.data, "sandbox_queue_length"), 1);
	assert_int_equal(sample(out.data, "sandbox_artifact_janitor_removed_bytes_total{mode="
					  "\"background\"}"),
			 0);
	assert_int_equal(sample(out.data, "sandbox_store_healthy"), 1);
}

/* Each family is announced once, before its samples, and they stand together. */
static void metrics__are_in_format(void **state)
{
	struct house *h = *state;
	sbx_autobuf out = SBX_BUF_INIT(1 << 20);
	char family[128] = "", id[37], *rest, *line;
	size_t families = 0;
	char seen[64][128];

	assert_int_equal(orch_view_metrics(&h->o, &out, NULL), 0);
	assert_int_equal(
		sample(out.data, "sandbox_queue_wait_seconds_count{runtime=\"namespace\"}"), 0);
	out.len = 0;
	add(h, &(struct wish){ "u", NULL, NULL, NULL, T0, STORE_FAILED, "odd \"\\\n reason" }, id);
	orch_count_wait(&h->o, "namespace", 1);
	assert_int_equal(orch_view_metrics(&h->o, &out, NULL), 0);
	assert_non_null(strstr(out.data, "reason=\"odd \\\"\\\\\\n reason\"} 1\n"));
	rest = out.data;
	while ((line = strsep(&rest, "\n"))) {
		if (strncmp(line, "# HELP ", 7) == 0) {
			assert_int_equal(sscanf(line, "# HELP %127s", family), 1);
			for (size_t i = 0; i < families; i++)
				assert_string_not_equal(seen[i], family);
			assert_true(families < SBX_COUNT(seen));
			(void)snprintf(seen[families++], sizeof(seen[0]), "%s", family);
		} else if (strncmp(line, "# TYPE ", 7) == 0) {
			assert_int_equal(strncmp(line + 7, family, strlen(family)), 0);
		} else if (*line) {
			assert_int_equal(strncmp(line, family, strlen(family)), 0);
			assert_non_null(strrchr(line, ' '));
		}
	}
	assert_true(families > 10);
}

#define VIEW_TEST(name) cmocka_unit_test_setup_teardown(name, build, clear)

int main(void)
{
	const struct CMUnitTest tests[] = {
		VIEW_TEST(runs__pages_of_ones_own),
		VIEW_TEST(admin_runs__the_envelope_and_the_filters),
		VIEW_TEST(admin_usage__by_user),
		VIEW_TEST(admin_keys__those_that_are_remembered),
		VIEW_TEST(health__members),
		VIEW_TEST(operator__shape_and_judgement),
		VIEW_TEST(workspace__ones_own_runs_and_a_verdict),
		VIEW_TEST(runtimes__as_documented),
		VIEW_TEST(metrics__count_runs),
		VIEW_TEST(metrics__are_in_format),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
