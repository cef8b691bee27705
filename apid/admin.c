/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers for administrators: everybody's runs, keys, usage, and how the service does. The route
 * has made sure who asks. */
#include <string.h>

#include "apid/apid_i.h"

/* limit, offset and sort. False: the refusal is queued. */
static bool read_page(struct req *q, struct orch_page *ret, enum MHD_Result *ret_answer)
{
	const char *sort = req_query(q, "sort");

	ret->ascending = false;
	if (!req_query_int(q, "limit", 50, 1, 1000, &ret->limit, ret_answer) ||
	    !req_query_int(q, "offset", 0, 0, INT64_MAX / 2, &ret->offset, ret_answer))
		return false;
	if (!sort)
		return true;
	ret->ascending = strcmp(sort, "asc") == 0;
	if (ret->ascending || strcmp(sort, "desc") == 0)
		return true;
	*ret_answer = reply_invalid_query(q, "sort", "sort: allowed asc, desc");
	return false;
}

enum MHD_Result admin_runs_get(struct req *q)
{
	sbx_autobuf out = SBX_BUF_INIT(API_REPLY_MAX);
	sbx_autoerror e = SBX_ERROR_INIT;
	struct orch_admin_runs query = {
		.user_id = req_query(q, "user_id"),
		.image_digest = req_query(q, "image_digest"),
		.workspace_id = req_query(q, "workspace_id"),
		.workspace_group_id = req_query(q, "workspace_group_id"),
		.scope_snapshot_id = req_query(q, "scope_snapshot_id"),
		.phase = req_query(q, "phase"),
		.started_from = req_query(q, "started_at_from"),
		.started_to = req_query(q, "started_at_to"),
	};
	enum MHD_Result refused;

	if (!read_page(q, &query.page, &refused))
		return refused;
	return reply_view(q, orch_view_admin_runs(q->a->orch, &query, &out, &e), &out, &e);
}

enum MHD_Result admin_run_get(struct req *q)
{
	sbx_autobuf out = SBX_BUF_INIT(API_REPLY_MAX);
	sbx_autoerror e = SBX_ERROR_INIT;

	return reply_view(q, orch_view_admin_run(q->a->orch, q->param[0], &out, &e), &out, &e);
}

enum MHD_Result admin_idempotency_get(struct req *q)
{
	sbx_autobuf out = SBX_BUF_INIT(API_REPLY_MAX);
	sbx_autoerror e = SBX_ERROR_INIT;
	struct orch_admin_keys query = {
		.endpoint = req_query(q, "endpoint"),
		.user_id = req_query(q, "user_id"),
		.key = req_query(q, "key"),
		.created_from = req_query(q, "created_at_from"),
		.created_to = req_query(q, "created_at_to"),
	};
	enum MHD_Result refused;

	if (!read_page(q, &query.page, &refused))
		return refused;
	return reply_view(q, orch_view_admin_keys(q->a->orch, &query, &out, &e), &out, &e);
}

enum MHD_Result admin_usage_get(struct req *q)
{
	sbx_autobuf out = SBX_BUF_INIT(API_REPLY_MAX);
	sbx_autoerror e = SBX_ERROR_INIT;
	enum MHD_Result refused;
	struct orch_page page;

	if (!read_page(q, &page, &refused))
		return refused;
	return reply_view(
		q, orch_view_admin_usage(q->a->orch, &page, req_query(q, "user_id"), &out, &e),
		&out, &e);
}

enum MHD_Result admin_diagnostics_get(struct req *q)
{
	sbx_autobuf out = SBX_BUF_INIT(API_REPLY_MAX);
	sbx_autoerror e = SBX_ERROR_INIT;

	return reply_view(q, orch_view_diagnostics(q->a->orch, &out, &e), &out, &e);
}

enum MHD_Result admin_operator_get(struct req *q)
{
	sbx_autobuf out = SBX_BUF_INIT(API_REPLY_MAX);
	sbx_autoerror e = SBX_ERROR_INIT;

	return reply_view(q, orch_view_operator(q->a->orch, &out, &e), &out, &e);
}
