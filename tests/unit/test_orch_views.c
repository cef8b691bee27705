/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of runs, keys and usage, as both doors show them. */
#include "views_house.h"

/* ---- a user's own runs ----------------------------------------------------------------------- */

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

/* ---- administrators -------------------------------------------------------------------------- */

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

int main(void)
{
	const struct CMUnitTest tests[] = {
		VIEW_TEST(runs__pages_of_ones_own),
		VIEW_TEST(admin_runs__the_envelope_and_the_filters),
		VIEW_TEST(admin_usage__by_user),
		VIEW_TEST(admin_keys__those_that_are_remembered),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
