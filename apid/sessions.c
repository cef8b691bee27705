/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: make, look at, delete. */
#include <string.h>

#include "apid/apid_i.h"
#include "base/clock.h"
#include "base/id.h"
#include "base/json.h"

int session_find(struct req *q, struct store_session *ret, struct sbx_error *e)
{
	if (!sbx_id_valid(q->param[0]))
		return sbx_fail(e, SBX_E_SESSION_NOT_FOUND, "no session '%.60s'", q->param[0]);
	return orch_session_get(q->a->orch, &q->who, q->param[0], ret, e);
}

static enum MHD_Result reply_session(struct req *q, const struct store_session *s)
{
	sbx_autobuf b = SBX_BUF_INIT(API_REPLY_MAX);

	orch_view_session(q->a->orch, s, &b);
	return reply_json(q, MHD_HTTP_OK, &b, NULL);
}

/* A session of which nothing is said has the defaults: the body may be missing. */
enum MHD_Result session_post(struct req *q)
{
	struct orch_request rq = {
		.text = q->body.data ? q->body.data : "",
		.len = q->body.len,
		.refuse_unknown = !orch_settings(q->a->orch)->api_unknown_fields,
		.idempotency_key = req_header(q, "Idempotency-Key"),
	};
	struct orch_session_made made = { .row = 0 };
	sbx_autoerror e = SBX_ERROR_INIT;
	store_autosession s = { 0 };

	if (orch_session_create(q->a->orch, &q->who, &rq, NULL, &made, &e) < 0 ||
	    orch_session_get(q->a->orch, &q->who, made.id, &s, &e) < 0)
		return reply_error(q, &e);
	return reply_session(q, &s);
}

enum MHD_Result session_get(struct req *q)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	store_autosession s = { 0 };

	if (session_find(q, &s, &e) < 0)
		return reply_error(q, &e);
	return reply_session(q, &s);
}

static int wrong(struct sbx_error *e, const char *what)
{
	(void)sbx_fail(e, SBX_E_INVALID_SPEC, "expires_in_sec: %s", what);
	return sbx_error_details(e, "{\"field\":\"expires_in_sec\"}");
}

static int read_seconds(const struct req *q, int64_t *ret, struct sbx_error *e)
{
	sbx_autojson *doc = NULL;
	struct json_object *v = NULL;
	int rc = sbx_json_parse_object(q->body.data ? q->body.data : "", q->body.len, &doc, e);

	if (rc < 0)
		return rc;
	if (!json_object_object_get_ex(doc, "expires_in_sec", &v))
		return wrong(e, "is missing");
	if (!json_object_is_type(v, json_type_int))
		return wrong(e, "must be a whole number of seconds");
	*ret = json_object_get_int64(v);
	return 0;
}

enum MHD_Result session_patch(struct req *q)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	store_autosession s = { 0 }, now = { 0 };
	int64_t seconds = 0;

	if (session_find(q, &s, &e) < 0 || read_seconds(q, &seconds, &e) < 0 ||
	    orch_session_extend(q->a->orch, &q->who, s.id, seconds, &e) < 0 ||
	    session_find(q, &now, &e) < 0)
		return reply_error(q, &e);
	return reply_session(q, &now);
}

enum MHD_Result sessions_get(struct req *q)
{
	sbx_autobuf out = SBX_BUF_INIT(API_REPLY_MAX);
	sbx_autoerror e = SBX_ERROR_INIT;
	struct orch_sessions_query query = { .cursor = req_query(q, "cursor") };
	enum MHD_Result refused;

	if (!req_query_int(q, "limit", 50, 1, 1000, &query.limit, &refused))
		return refused;
	return reply_view(q, orch_view_sessions(q->a->orch, &q->who, &query, &out, &e), &out, &e);
}

/* ---- its end --------------------------------------------------------------------------------- */

enum { LATE_SEC = 30 }; /* beyond the time that the orchestrator gives its runs */

/* What such a request has to remember. */
struct farewell {
	char id[37];
	int64_t row, until_us;
	int rc; /* of orch_session_destroy, and its error and answer */
	struct sbx_error why;
	enum orch_ending how;
};

static void farewell_free(void *farewell)
{
	struct farewell *f = farewell;

	sbx_error_clear(&f->why);
	free(f);
}

/* It waits for nobody; but its files may be many. */
static void destroy(struct req *q)
{
	struct farewell *f = q->state;

	sbx_error_clear(&f->why);
	f->rc = orch_session_destroy(q->a->orch, &q->who, f->id, &f->how, &f->why);
}

static enum MHD_Result gone(struct req *q)
{
	sbx_autobuf b = SBX_BUF_INIT(64);

	sbx_buf_puts(&b, "{\"ok\":true}\n");
	return reply_json(q, MHD_HTTP_OK, &b, NULL);
}

static enum MHD_Result not_yet(struct req *q)
{
	sbx_autoerror e = SBX_ERROR_INIT;

	(void)sbx_fail(&e, SBX_E_INTERRUPTED, "the session is still ending; ask again");
	return reply_error(q, &e);
}

/* After each thing that may have brought its end. */
static enum MHD_Result look(struct req *q, struct farewell *f)
{
	bool first = q->continued == WAIT_WORKED;
	sbx_autoerror e = SBX_ERROR_INIT;
	int rc = f->rc;

	if (!first)
		rc = orch_session_ending(q->a->orch, f->id, &f->how, &e);
	if (!first && rc < 0 && e.code == SBX_E_SESSION_NOT_FOUND)
		return gone(q);
	if (rc < 0)
		return reply_error(q, first ? &f->why : &e);
	if (f->how == ORCH_GONE)
		return gone(q);
	if (f->how == ORCH_STAYS) /* said so by the first call, which has no error for it */
		return orch_session_ending(q->a->orch, f->id, &f->how, &e) < 0 ? reply_error(q, &e)
									       : not_yet(q);
	if (q->continued == WAIT_TIME || q->continued == WAIT_GONE ||
	    !waiting_add_session(q, f->id, f->row, f->until_us))
		return not_yet(q);
	return MHD_YES;
}

enum MHD_Result session_delete(struct req *q)
{
	const struct orch_settings *st = orch_settings(q->a->orch);
	sbx_autoerror e = SBX_ERROR_INIT;
	store_autosession s = { 0 };
	struct farewell *f = q->state;

	if (q->continued)
		return look(q, f);
	if (session_find(q, &s, &e) < 0)
		return reply_error(q, &e);
	f = calloc(1, sizeof(*f));
	if (!f) {
		(void)sbx_fail(&e, SBX_E_NO_MEMORY, "no memory");
		return reply_error(q, &e);
	}
	q->state = f;
	q->free_state = farewell_free;
	memcpy(f->id, s.id, strlen(s.id) + 1);
	f->row = s.row;
	f->until_us =
		sbx_boot_us() + (st->session_delete_drain_timeout_sec + LATE_SEC) * SBX_SECOND_US;
	f->rc = sbx_fail(&f->why, SBX_E_INTERRUPTED, "the service stops; nothing was done");
	return worker_add(q, f->id, WORK_GIVES, destroy, &e) ? MHD_YES : reply_error(q, &e);
}
