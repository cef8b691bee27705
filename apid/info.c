/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers that only show: health, runtimes, a user's runs, workspaces, metrics, this API's own
 * description. What they show is made by the orchestrator, for the mount as well. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apid/apid_i.h"
#include "base/json.h"

/* A view becomes the answer, or its refusal does: one of a query names the parameter in its
 * details. */
enum MHD_Result reply_view(struct req *q, int rc, struct sbx_buf *out, const struct sbx_error *e)
{
	sbx_autojson *details = NULL;
	struct json_object *field = NULL;

	if (rc == 0)
		return reply_json(q, MHD_HTTP_OK, out, NULL);
	if (e->code == SBX_E_INVALID_ARGUMENT && e->details)
		details = json_tokener_parse(e->details);
	if (details && json_object_object_get_ex(details, "field", &field))
		return reply_invalid_query(q, json_object_get_string(field), e->message);
	return reply_error(q, e);
}

enum MHD_Result health_get(struct req *q)
{
	sbx_autobuf out = SBX_BUF_INIT(API_REPLY_MAX);
	sbx_autoerror e = SBX_ERROR_INIT;
	bool public = q->route->access == ROUTE_PUBLIC;
	int rc = public ? orch_view_health_public(q->a->orch, &out, &e)
			: orch_view_health(q->a->orch, &out, &e);

	return reply_view(q, rc, &out, &e);
}

enum MHD_Result runtimes_get(struct req *q)
{
	sbx_autobuf out = SBX_BUF_INIT(API_REPLY_MAX);
	sbx_autoerror e = SBX_ERROR_INIT;

	return reply_view(q, orch_view_runtimes(q->a->orch, &out, &e), &out, &e);
}

enum MHD_Result runs_get(struct req *q)
{
	sbx_autobuf out = SBX_BUF_INIT(API_REPLY_MAX);
	sbx_autoerror e = SBX_ERROR_INIT;
	struct orch_runs_query query = { .cursor = req_query(q, "cursor"),
					 .phase = req_query(q, "phase"),
					 .session_id = req_query(q, "session_id"),
					 .label = req_query(q, "label") };
	enum MHD_Result refused;

	if (!req_query_int(q, "limit", 50, 1, 1000, &query.limit, &refused))
		return refused;
	return reply_view(q, orch_view_runs(q->a->orch, &q->who, &query, &out, &e), &out, &e);
}

enum MHD_Result workspace_get(struct req *q)
{
	sbx_autobuf out = SBX_BUF_INIT(API_REPLY_MAX);
	sbx_autoerror e = SBX_ERROR_INIT;
	enum MHD_Result refused;
	int64_t limit;

	if (!req_query_int(q, "limit", 10, 1, 100, &limit, &refused))
		return refused;
	return reply_view(q, orch_view_workspace(q->a->orch, &q->who, q->param[0], limit, &out, &e),
			  &out, &e);
}

/* ---- /metrics -------------------------------------------------------------------------------- */

static void add_counter(struct sbx_buf *out, const char *name, const char *help, long long n)
{
	sbx_buf_printf(out, "# HELP %s %s\n# TYPE %s counter\n%s %lld\n", name, help, name, name,
		       n);
}

enum MHD_Result metrics_get(struct req *q)
{
	sbx_autobuf out = SBX_BUF_INIT(API_REPLY_MAX);
	sbx_autoerror e = SBX_ERROR_INIT;
	struct apid *a = q->a;
	int rc = orch_view_metrics(a->orch, &out, &e);

	if (rc < 0)
		return reply_error(q, &e);
	add_counter(&out, "sandbox_http_requests_total", "Requests that came, by this process.",
		    atomic_load(&a->requests));
	add_counter(&out, "sandbox_http_connections_refused_total",
		    "Connections turned away because there were too many, by this process.",
		    atomic_load(&a->refused));
	sbx_buf_printf(&out,
		       "# HELP sandbox_http_connections Connections that are open.\n"
		       "# TYPE sandbox_http_connections gauge\nsandbox_http_connections %lld\n",
		       (long long)conns_count(a->conns));
	ws_metrics(a->ws, &out);
	return reply_text(q, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", &out, NULL);
}

/* ---- /openapi.json: the same from the first request to the last ------------------------------ */

static struct {
	char *text; /* NULL: there was no memory */
	size_t len;
	char etag[32];
} description;

static void make_description(void)
{
	struct sbx_buf out = SBX_BUF_INIT(API_REPLY_MAX);
	uint64_t hash = UINT64_C(14695981039346656037); /* FNV-1a: tells versions apart, no more */

	openapi_make(&out);
	description.len = out.len;
	description.text = sbx_buf_steal(&out);
	for (size_t i = 0; description.text && i < description.len; i++)
		hash = (hash ^ (unsigned char)description.text[i]) * UINT64_C(1099511628211);
	(void)snprintf(description.etag, sizeof(description.etag), "\"%016llx\"",
		       (unsigned long long)hash);
}

static bool has_etag(const char *list, const char *etag)
{
	return list && (strcmp(list, "*") == 0 || strstr(list, etag));
}

enum MHD_Result openapi_get(struct req *q)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const char *headers[] = { MHD_HTTP_HEADER_ETAG,
				  description.etag,
				  MHD_HTTP_HEADER_CACHE_CONTROL,
				  "no-cache",
				  MHD_HTTP_HEADER_CONTENT_TYPE,
				  "application/json",
				  NULL };
	sbx_autoerror e = SBX_ERROR_INIT;

	(void)pthread_once(&once, make_description);
	if (!description.text) {
		(void)sbx_fail(&e, SBX_E_NO_MEMORY, "no memory for the description");
		return reply_error(q, &e);
	}
	if (has_etag(req_header(q, MHD_HTTP_HEADER_IF_NONE_MATCH), description.etag))
		return reply_empty(q, MHD_HTTP_NOT_MODIFIED, headers);
	q->sent = q->head ? 0 : (int64_t)description.len;
	return reply_response(q, MHD_HTTP_OK,
			      MHD_create_response_from_buffer(description.len, description.text,
							      MHD_RESPMEM_PERSISTENT),
			      headers);
}
