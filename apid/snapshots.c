/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots of sessions, and clones. All of it reads or writes whole trees, so the workers do it.
 */
#include <stdio.h>
#include <string.h>

#include "apid/apid_i.h"
#include "base/json.h"
#include "base/log.h"

/* One such operation: what it is given, and what has come of it. */
struct errand {
	void (*work)(struct req *q, struct errand *r);
	const char *failed; /* what a client hears when the fault is not its own; NULL: the error */
	const char *type;   /* of the answer; NULL: JSON */
	char *word;	    /* owned; the one member that a document may have, NULL: none */
	char session_id[37];
	int rc;
	struct sbx_error why;
	struct sbx_buf out;
};

static void errand_free(void *errand)
{
	struct errand *r = errand;

	free(r->word);
	sbx_error_clear(&r->why);
	sbx_buf_free(&r->out);
	free(r);
}

static void run_errand(struct req *q)
{
	struct errand *r = q->state;

	sbx_error_clear(&r->why);
	r->work(q, r);
}

/* What broke inside is for the log. */
static enum MHD_Result reply_failed(struct req *q, const struct errand *r)
{
	char detail[64];

	sbx_log(SBX_LOG_ERROR, "%s session=%s id=%s error=\"%s\"", r->failed, r->session_id, q->id,
		r->why.message);
	(void)snprintf(detail, sizeof(detail), "\"%s\"", r->failed);
	return reply_refusal(q, MHD_HTTP_INTERNAL_SERVER_ERROR, sbx_code_name(SBX_E_INTERNAL),
			     r->failed, detail, NULL);
}

static enum MHD_Result report(struct req *q, struct errand *r)
{
	bool inside = r->why.code == SBX_E_INTERNAL || r->why.code == SBX_E_STORE_UNAVAILABLE;

	if (r->rc == 0 && r->type)
		return reply_text(q, MHD_HTTP_OK, r->type, &r->out, NULL);
	if (r->rc == 0)
		return reply_json(q, MHD_HTTP_OK, &r->out, NULL);
	return inside && r->failed ? reply_failed(q, r) : reply_error(q, &r->why);
}

/* NULL: the refusal is queued. */
static struct errand *prepare(struct req *q, void (*work)(struct req *q, struct errand *r),
			      enum MHD_Result *ret_answer)
{
	struct errand *r = calloc(1, sizeof(*r));
	sbx_autoerror e = SBX_ERROR_INIT;
	store_autosession s = { 0 };

	q->state = r;
	q->free_state = errand_free;
	if (!r) {
		q->free_state = NULL;
		(void)sbx_fail(&e, SBX_E_NO_MEMORY, "no memory");
	} else if (session_find(q, &s, &e) == 0) {
		r->work = work;
		r->out = (struct sbx_buf)SBX_BUF_INIT(API_REPLY_MAX);
		memcpy(r->session_id, s.id, strlen(s.id) + 1);
		r->rc = sbx_fail(&r->why, SBX_E_INTERRUPTED, "the service stops; nothing was done");
		return r;
	}
	*ret_answer = reply_error(q, &e);
	return NULL;
}

static enum MHD_Result send_away(struct req *q, struct errand *r)
{
	sbx_autoerror e = SBX_ERROR_INIT;

	return worker_add(q, r->session_id, WORK_LOCKS, run_errand, &e) ? MHD_YES
									: reply_error(q, &e);
}

/* ---- documents with one member, a text ------------------------------------------------------- */

static int wrong(struct sbx_error *e, const char *member, const char *what)
{
	(void)sbx_fail(e, SBX_E_INVALID_SPEC, "%s: %s", member, what);
	return sbx_error_details(e, "{\"field\":\"%s\"}", member);
}

/* *ret: malloc'd, NULL when the document says nothing of it. */
static int read_word(const struct req *q, const char *member, bool required, char **ret,
		     struct sbx_error *e)
{
	sbx_autojson *doc = NULL;
	struct json_object *v = NULL;
	int rc = 0;

	if (q->body.len)
		rc = sbx_json_parse_object(q->body.data, q->body.len, &doc, e);
	if (rc < 0)
		return rc;
	if (doc)
		(void)json_object_object_get_ex(doc, member, &v);
	if (!v)
		return required ? wrong(e, member, "is missing") : 0;
	if (!json_object_is_type(v, json_type_string))
		return wrong(e, member, "must be a string");
	*ret = strdup(json_object_get_string(v));
	return *ret ? 0 : sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
}

/* An operation whose document may have this member. */
static enum MHD_Result with_word(struct req *q, const char *member, bool required,
				 const char *failed, void (*work)(struct req *q, struct errand *r))
{
	struct errand *r = q->state;
	sbx_autoerror e = SBX_ERROR_INIT;
	enum MHD_Result answer;

	if (q->continued)
		return report(q, r);
	r = prepare(q, work, &answer);
	if (!r)
		return answer;
	r->failed = failed;
	if (read_word(q, member, required, &r->word, &e) < 0)
		return reply_error(q, &e);
	return send_away(q, r);
}

static enum MHD_Result without_word(struct req *q, void (*work)(struct req *q, struct errand *r))
{
	enum MHD_Result answer;
	struct errand *r;

	if (q->continued)
		return report(q, q->state);
	r = prepare(q, work, &answer);
	return r ? send_away(q, r) : answer;
}

/* ---- the operations -------------------------------------------------------------------------- */

static void take(struct req *q, struct errand *r)
{
	store_autosnapshot s = { 0 };

	r->rc = orch_snapshot_take(q->a->orch, &q->who, r->session_id, r->word, &s, &r->why);
	if (r->rc == 0)
		orch_view_snapshot(&s, &r->out);
}

enum MHD_Result snapshot_post(struct req *q)
{
	return with_word(q, "name", false, "Failed to create snapshot", take);
}

static void restore(struct req *q, struct errand *r)
{
	r->rc = orch_snapshot_restore(q->a->orch, &q->who, r->session_id, r->word, &r->why);
	if (r->rc < 0)
		return;
	sbx_buf_puts(&r->out, "{\"restored\":true,\"snapshot_id\":");
	sbx_buf_json_strz(&r->out, r->word);
	sbx_buf_puts(&r->out, "}\n");
}

enum MHD_Result session_restore_post(struct req *q)
{
	return with_word(q, "snapshot_id", true, "Failed to restore snapshot", restore);
}

static void clone(struct req *q, struct errand *r)
{
	struct orch_session_made made = { .row = 0 };

	r->rc = orch_session_clone(q->a->orch, &q->who, r->session_id, r->word, &made, &r->why);
	if (r->rc == 0)
		sbx_buf_printf(&r->out, "{\"session_id\":\"%s\",\"cloned_from\":\"%s\"}\n", made.id,
			       r->session_id);
}

enum MHD_Result session_clone_post(struct req *q)
{
	return with_word(q, "new_session_name", false, "Failed to clone session", clone);
}

static void list(struct req *q, struct errand *r)
{
	r->rc = orch_view_snapshots(q->a->orch, &q->who, r->session_id, &r->out, &r->why);
}

enum MHD_Result snapshots_get(struct req *q)
{
	return without_word(q, list);
}

static void drop(struct req *q, struct errand *r)
{
	bool done = false;

	r->rc = orch_snapshot_drop(q->a->orch, &q->who, r->session_id, q->param[1], &done, &r->why);
	if (r->rc < 0)
		return;
	sbx_buf_printf(&r->out, "{\"ok\":%s,\"snapshot_id\":", done ? "true" : "false");
	sbx_buf_json_strz(&r->out, q->param[1]);
	sbx_buf_puts(&r->out, "}\n");
}

enum MHD_Result snapshot_delete(struct req *q)
{
	return without_word(q, drop);
}

static void compare(struct req *q, struct errand *r)
{
	r->type = "application/x-ndjson";
	r->rc = orch_view_diff(q->a->orch, &q->who, r->session_id, q->param[1], r->word, &r->out,
			       &r->why);
}

enum MHD_Result snapshot_diff_get(struct req *q)
{
	const char *against = req_query(q, "against");
	sbx_autoerror e = SBX_ERROR_INIT;
	enum MHD_Result answer;
	struct errand *r;

	if (q->continued)
		return report(q, q->state);
	r = prepare(q, compare, &answer);
	if (!r)
		return answer;
	r->word = strdup(against && *against ? against : "workspace");
	if (!r->word) {
		(void)sbx_fail(&e, SBX_E_NO_MEMORY, "no memory");
		return reply_error(q, &e);
	}
	return send_away(q, r);
}
