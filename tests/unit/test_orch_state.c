/* SPDX-License-Identifier: Apache-2.0 */
/* Documents about the service: health, operator status, a workspace, runtimes, metrics. */
#include "views_house.h"

/* ---- health, operator status, workspace ------------------------------------------------------ */

static void health__members(void **state)
{
	struct house *h = *state;
	sbx_autojson *o = VIEW(orch_view_health(&h->o, out, e));
	sbx_autojson *p = VIEW(orch_view_health_public(&h->o, out, e));

	keys_are(p, "ok store redis timings time");
	keys_are_documented(p, "Health");
	keys_are(o, "ok store redis timings time uptime_sec version queue execution "
		    "watching");
	IS(o, "ok", "true");
	IS(o, "store", "{\"mode\":\"sqlite\",\"healthy\":true}");
	IS(o, "redis", "{\"enabled\":false,\"channel\":null,\"connected\":false}");
	keys_are(at(o, "timings"), "store_ms");
	IS(o, "watching", "{\"healthy\":true}");
}

#define WATCHING(h, text)                                                                          \
	do {                                                                                       \
		sbx_autojson *health = VIEW(orch_view_health(&(h)->o, out, e));                    \
		IS(health, "watching", text);                                                      \
		IS(health, "ok", "true");                                                          \
	} while (0)

/* What mounts say, and what counts of it. */
static void health__watching(void **state)
{
	struct house *h = *state;
	int64_t now = sbx_now_us();

	assert_int_equal(orch_watching_say(&h->o, NULL, NULL), 0);
	WATCHING(h, "{\"healthy\":true}");
	assert_int_equal(orch_watching_say(
				 &h->o, &(const struct orch_watching){ .unavailable = true }, NULL),
			 0);
	WATCHING(h, "{\"healthy\":false,\"reasons\":[\"workspaces_not_watched\"]}");
	assert_int_equal(orch_watching_say(&h->o,
					   &(const struct orch_watching){ .unwatched_us = now,
									  .lost_us = now },
					   NULL),
			 0);
	WATCHING(h, "{\"healthy\":false,\"reasons\":[\"directories_not_watched\","
		    "\"events_lost\"]}");
	/* Long ago is over. */
	assert_int_equal(orch_watching_say(&h->o,
					   &(const struct orch_watching){
						   .unwatched_us = now - 601 * SBX_SECOND_US,
						   .lost_us = now },
					   NULL),
			 0);
	WATCHING(h, "{\"healthy\":false,\"reasons\":[\"events_lost\"]}");
	assert_int_equal(orch_watching_say(&h->o, NULL, NULL), 0);
	WATCHING(h, "{\"healthy\":true}");
}

static void shared(struct house *h, const char *text)
{
	struct store_tx *tx = NULL;

	assert_int_equal(store_begin(h->o.store, &tx, NULL), 0);
	assert_int_equal(store_tx_meta_set(tx, "watching", text, NULL), 0);
	assert_int_equal(store_commit(tx, false, NULL), 0);
}

/* Another mount's word counts while it lives, and what cannot be read is nothing. */
static const struct orch_watching off = { .unavailable = true };

/* Whatever it was called, and wherever it was: a process that is over says nothing. */
static void health__watching_of_others(void **state)
{
	struct house *h = *state;
	struct orch other = { .store = h->o.store };
	sbx_autofree char *owner = orch_owner_new(), *text = NULL;

	assert_int_equal(orch_watching_say(&other, &off, NULL), 0);
	WATCHING(h, "{\"healthy\":false,\"reasons\":[\"workspaces_not_watched\"]}");
	watching_end(&other);
	WATCHING(h, "{\"healthy\":true}");
	assert_true(asprintf(&text, "{\"elsewhere/%s/1/1/0\":{\"off\":true},\"%s\":{\"off\":true}}",
			     sbx_boot_id(), owner) > 0);
	shared(h, text);
	WATCHING(h, "{\"healthy\":true}");
	shared(h, "[1]");
	WATCHING(h, "{\"healthy\":true}");
}

/* Among as many as there may be, each can still say something else. */
static void health__watching_of_many(void **state)
{
	enum { MANY = 64 };
	struct house *h = *state;
	struct orch others[MANY];

	for (size_t i = 0; i < MANY; i++) {
		others[i] = (struct orch){ .store = h->o.store };
		assert_int_equal(orch_watching_say(&others[i], &off, NULL), 0);
	}
	for (size_t i = 0; i < MANY - 1; i++)
		assert_int_equal(orch_watching_say(&others[i], NULL, NULL), 0);
	for (size_t i = 0; i < MANY - 1; i++)
		assert_int_equal(orch_watching_say(&others[i],
						   &(const struct orch_watching){ .lost_us = 1 },
						   NULL),
				 0);
	assert_int_equal(orch_watching_say(&others[MANY - 1], &off, NULL), 0);
	WATCHING(h, "{\"healthy\":false,\"reasons\":[\"workspaces_not_watched\"]}");
	for (size_t i = 0; i < MANY; i++)
		watching_end(&others[i]);
	/* Those who are over take nobody's place. */
	assert_int_equal(orch_watching_say(&h->o, &off, NULL), 0);
	WATCHING(h, "{\"healthy\":false,\"reasons\":[\"workspaces_not_watched\"]}");
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

/* ---- metrics --------------------------------------------------------------------------------- */

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

int main(void)
{
	const struct CMUnitTest tests[] = {
		VIEW_TEST(health__members),
		VIEW_TEST(health__watching),
		VIEW_TEST(health__watching_of_others),
		VIEW_TEST(health__watching_of_many),
		VIEW_TEST(operator__shape_and_judgement),
		VIEW_TEST(workspace__ones_own_runs_and_a_verdict),
		VIEW_TEST(runtimes__as_documented),
		VIEW_TEST(metrics__count_runs),
		VIEW_TEST(metrics__are_in_format),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
