/* SPDX-License-Identifier: Apache-2.0 */
/* Runs: start, look at, wait for, cancel. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "apid/apid_i.h"
#include "base/clock.h"
#include "base/id.h"
#include "base/log.h"

#define WAIT_FOR_EVER (INT64_C(86400) * SBX_SECOND_US)

/* What a request that waits has to remember. */
struct waits {
	char id[37];
	int64_t row, until_us;
	bool posted; /* the answer names the stream */
	int64_t from_seq;
	int rc; /* of a submission that the workers do, and its error */
	struct sbx_error why;
};

/* ---- one run as an answer -------------------------------------------------------------------- */

/* Anything that an answer shows changes changed_us or the phase's generation. */
static void make_etag(const struct store_run *r, char out[API_ETAG])
{
	(void)snprintf(out, API_ETAG, "\"%llx-%llx-%x\"", (unsigned long long)r->changed_us,
		       (unsigned long long)r->generation, (unsigned)r->phase);
}

/* The document under its validator, or 304 for whoever has it already. */
static enum MHD_Result reply_status(struct req *q, const char etag[API_ETAG], struct sbx_buf *b)
{
	const char *headers[] = { MHD_HTTP_HEADER_ETAG, etag, MHD_HTTP_HEADER_CACHE_CONTROL,
				  "private, no-cache", NULL };
	const char *have = req_header(q, MHD_HTTP_HEADER_IF_NONE_MATCH);
	bool posts = strcmp(q->method, MHD_HTTP_METHOD_POST) == 0; /* which knows no conditions */
	bool same = have && !posts && (strcmp(have, "*") == 0 || strstr(have, etag));

	return reply_json(q, same ? MHD_HTTP_NOT_MODIFIED : MHD_HTTP_OK, b, headers);
}

/* The answer to a POST names the stream. */
static enum MHD_Result reply_run(struct req *q, const struct store_run *r, const struct waits *w)
{
	sbx_autofree char *stream = w->posted ? stream_url(q->a, r->id, w->from_seq) : NULL;
	sbx_autobuf b = SBX_BUF_INIT(1 << 20);
	char etag[API_ETAG];

	make_etag(r, etag);
	orch_view_status(q->a->orch, r, stream, &b);
	if (!w->posted)
		finished_put(q->a->finished, r, etag, &b);
	return reply_status(q, etag, &b);
}

static int find(struct req *q, const char *id, struct store_run *ret, struct sbx_error *e)
{
	if (!sbx_id_valid(id))
		return sbx_fail(e, SBX_E_RUN_NOT_FOUND, "no run '%.60s'", id);
	return orch_run_get(q->a->orch, &q->who, id, ret, e);
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* "wait=N" among the preferences (RFC 7240); NULL when there is none. */
static const char *preferred_wait(const char *prefer)
{
	while (prefer && *prefer) {
		prefer += strspn(prefer, " \t,;");
		if (strncasecmp(prefer, "wait", 4) == 0) {
			prefer += 4 + strspn(prefer + 4, " \t");
			if (*prefer == '=')
				return prefer + 1 + strspn(prefer + 1, " \t\"");
		}
		prefer += strcspn(prefer, ",;");
	}
	return NULL;
}

/* How long to wait, in microseconds; 0: not at all. False: the refusal is queued. */
static bool wished_wait(struct req *q, int64_t *ret, enum MHD_Result *answer)
{
	const struct orch_settings *s = orch_settings(q->a->orch);
	const char *prefer = preferred_wait(req_header(q, "Prefer"));
	bool posts = strcmp(q->method, MHD_HTTP_METHOD_POST) == 0;
	int64_t seconds = -1;

	if (!req_query_int(q, "wait", -1, 0, 86400, &seconds, answer))
		return false;
	/* A preference that is no number is ignored (RFC 7240, section 2). */
	if (seconds < 0 && prefer && *prefer >= '0' && *prefer <= '9')
		seconds = strtoll(prefer, NULL, 10);
	if (seconds > s->api_wait_max_sec)
		seconds = s->api_wait_max_sec;
	*ret = seconds > 0 ? seconds * SBX_SECOND_US : 0;
	/* As the reference does it unless it runs in the background; a queue that nobody serves is
	 * not waited for. */
	if (seconds < 0 && posts && !s->background_execution && s->enable_execution)
		*ret = WAIT_FOR_EVER;
	return true;
}

/* Called first, and again each time that the wait is over. */
static enum MHD_Result wait_or_answer(struct req *q, const struct waits *w)
{
	sbx_autobuf known = SBX_BUF_INIT(1 << 20);
	sbx_autoerror e = SBX_ERROR_INIT;
	store_autorun r = { 0 };
	char etag[API_ETAG];
	struct waits *kept;
	int rc;

	if (!w->posted && finished_get(q->a, w->id, &q->who, etag, &known))
		return reply_status(q, etag, &known);
	rc = find(q, w->id, &r, &e);
	if (rc < 0)
		return reply_error(q, &e);
	if (store_phase_terminal(r.phase) || w->until_us <= sbx_boot_us() ||
	    q->continued == WAIT_TIME || q->continued == WAIT_GONE)
		return reply_run(q, &r, w);
	if (!q->state) {
		kept = malloc(sizeof(*kept));
		if (!kept)
			return reply_run(q, &r, w);
		*kept = *w;
		q->state = kept;
		q->free_state = free;
		sbx_buf_free(&q->body); /* it may be long, and so may the wait */
	}
	return waiting_add(q, w->id, r.row, w->until_us) ? MHD_YES : reply_run(q, &r, w);
}

/* ---- handlers -------------------------------------------------------------------------------- */

static struct orch_request request_of(struct req *q)
{
	return (struct orch_request){
		.text = q->body.data ? q->body.data : "",
		.len = q->body.len,
		.refuse_unknown = !orch_settings(q->a->orch)->api_unknown_fields,
		.idempotency_key = req_header(q, "Idempotency-Key"),
	};
}

static int submit(struct req *q, struct waits *w, bool may_wait, struct sbx_error *e)
{
	struct orch_request rq = request_of(q);
	struct orch_submitted sub = { .row = 0 };
	int rc;

	rq.may_wait = may_wait;
	rc = orch_submit(q->a->orch, &q->who, &rq, &sub, e);
	memcpy(w->id, sub.id, sizeof(w->id));
	w->row = sub.row;
	w->from_seq = sub.resume_from_seq;
	return rc;
}

static void submit_by_worker(struct req *q)
{
	struct waits *w = q->state;

	sbx_error_clear(&w->why);
	w->rc = submit(q, w, true, &w->why);
}

static void waits_free(void *waits)
{
	struct waits *w = waits;

	sbx_error_clear(&w->why);
	free(w);
}

/* Does the document name a session? Then it waits until nobody copies or exchanges that workspace.
 * A look is enough: who hides the name in escapes is taken for one who has one. *ret: which, as far
 * as it can be seen. */
static bool names_session(const struct req *q, char ret[SBX_ID_LEN + 1])
{
	static const char key[] = "\"session_id\"";
	const char *at = q->body.data ? q->body.data : "", *end = at + q->body.len;

	ret[0] = '\0';
	while ((at = memmem(at, (size_t)(end - at), key, sizeof(key) - 1))) {
		at += sizeof(key) - 1;
		at += strspn(at, " \t\r\n:");
		if (strncmp(at, "null", 4) == 0)
			continue;
		(void)snprintf(ret, SBX_ID_LEN + 1, "%.36s", at + (*at == '"'));
		if (!sbx_id_valid(ret))
			ret[0] = '\0';
		return true;
	}
	return q->body.len && memmem(q->body.data, q->body.len, "\\u", 2);
}

static enum MHD_Result send_away(struct req *q, const struct waits *w, const char *session_id)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	struct waits *kept = malloc(sizeof(*kept));

	if (!kept) {
		(void)sbx_fail(&e, SBX_E_NO_MEMORY, "no memory");
		return reply_error(q, &e);
	}
	*kept = *w;
	kept->rc = sbx_fail(&kept->why, SBX_E_INTERRUPTED, "the service stops; nothing was done");
	q->state = kept;
	q->free_state = waits_free;
	return worker_add(q, session_id, WORK_LOCKS, submit_by_worker, &e) ? MHD_YES
									   : reply_error(q, &e);
}

static enum MHD_Result submitted(struct req *q, const struct waits *w)
{
	sbx_buf_free(&q->body); /* it may be long, and so may the wait */
	return w->rc < 0 ? reply_error(q, &w->why) : wait_or_answer(q, w);
}

enum MHD_Result run_post(struct req *q)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	struct waits w = { .posted = true };
	enum MHD_Result answer;
	char session_id[SBX_ID_LEN + 1];
	int64_t wait = 0;

	if (q->continued == WAIT_WORKED)
		return submitted(q, q->state);
	if (q->continued)
		return wait_or_answer(q, q->state);
	if (!wished_wait(q, &wait, &answer))
		return answer;
	w.until_us = wait ? sbx_boot_us() + wait : 0;
	if (names_session(q, session_id))
		return send_away(q, &w, session_id);
	return submit(q, &w, false, &e) < 0 ? reply_error(q, &e) : wait_or_answer(q, &w);
}

enum MHD_Result run_get(struct req *q)
{
	enum MHD_Result answer;
	struct waits w = { .row = 0 };
	int64_t wait = 0;

	if (q->continued)
		return wait_or_answer(q, q->state);
	if (!wished_wait(q, &wait, &answer))
		return answer;
	(void)snprintf(w.id, sizeof(w.id), "%s", q->param[0]);
	if (strlen(q->param[0]) >= sizeof(w.id))
		w.id[0] = '\0'; /* no run has such an id */
	w.until_us = wait ? sbx_boot_us() + wait : 0;
	return wait_or_answer(q, &w);
}

enum MHD_Result run_check_post(struct req *q)
{
	struct orch_request rq = request_of(q);
	sbx_autoerror e = SBX_ERROR_INIT;
	sbx_autobuf b = SBX_BUF_INIT(1 << 20);

	if (orch_check(q->a->orch, &q->who, &rq, &b, &e) < 0)
		return reply_error(q, &e);
	return reply_json(q, MHD_HTTP_OK, &b, NULL);
}

/* What broke inside is for the log; whoever asked hears that the run may still be there. */
static enum MHD_Result cancel_failed(struct req *q, const char *id, const struct sbx_error *why)
{
	sbx_autoerror e = SBX_ERROR_INIT;

	if (why->code != SBX_E_INTERNAL)
		return reply_error(q, why);
	sbx_log(SBX_LOG_ERROR, "cancel failed run=%s error=\"%s\"", id, why->message);
	(void)sbx_fail(&e, SBX_E_CANCEL_FAILED, "Failed to cancel sandbox run");
	(void)sbx_error_details(&e, "{\"run_id\":\"%s\"}", id);
	return reply_error(q, &e);
}

enum MHD_Result run_cancel_post(struct req *q)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	sbx_autobuf b = SBX_BUF_INIT(4096);
	store_autorun r = { 0 };
	bool done = false;

	if (find(q, q->param[0], &r, &e) < 0)
		return reply_error(q, &e);
	if (orch_run_cancel(q->a->orch, &q->who, r.id, STORE_CANCEL_TERM, &done, &e) < 0)
		return cancel_failed(q, r.id, &e);
	sbx_buf_printf(&b, "{\"id\":\"%s\",\"cancelled\":%s,\"message\":\"%s\"}\n", r.id,
		       done ? "true" : "false",
		       done ? "canceled_by_user" : "not_running_or_not_found");
	return reply_json(q, MHD_HTTP_OK, &b, NULL);
}
