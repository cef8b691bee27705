/* SPDX-License-Identifier: Apache-2.0 */
/* Lists, page by page: a user's own runs; and for administrators everybody's runs, the keys that
 * are remembered, what users have used, the queue. Both doors show these bytes. */
#include "orchestrator/orch_i.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"

enum { PAGE_MAX = 1000 };

/* A filter that is set. */
static const char *given(const char *text)
{
	return text && *text ? text : NULL;
}

static int check_limit(int64_t limit, struct sbx_error *e)
{
	char found[24];

	if (limit >= 1 && limit <= PAGE_MAX)
		return 0;
	(void)snprintf(found, sizeof(found), "%lld", (long long)limit);
	return orch_view_refuse("limit", found, "1 to 1000", e);
}

/* Items of one page. One more than the page is asked for, to know whether it is the last. */
struct items {
	struct sbx_buf *out;
	enum orch_form form;
	int64_t limit, n; /* n counts the one that is too much */
	char last[37];	  /* id of the last run shown */
};

/* May another one be shown? Writes what stands between two of them. */
static bool next_item(struct items *l)
{
	if (l->n++ == l->limit)
		return false;
	sbx_buf_puts(l->out, l->n > 1 ? ",\n" : "\n");
	return !sbx_buf_failed(l->out);
}

static bool add_run(void *ctx, const struct store_run *r)
{
	struct items *l = ctx;

	if (!next_item(l))
		return false;
	(void)snprintf(l->last, sizeof(l->last), "%s", r->id);
	orch_run_object(r, l->form, NULL, l->out);
	return !sbx_buf_failed(l->out);
}

/* ---- a user's own ---------------------------------------------------------------------------- */

/* The id of the last run of the page before: it names a place that stays, and tells nothing. */
static int find_cursor(struct orch *o, const struct orch_principal *p, const char *cursor,
		       int64_t *ret_row, struct sbx_error *e)
{
	struct store_run_key key;
	int rc = store_run_key(o->store, cursor, p->user, &key, e);

	if (rc == -SBX_E_RUN_NOT_FOUND)
		return orch_view_refuse("cursor", cursor, "the next_cursor of an earlier page", e);
	*ret_row = rc == 0 ? key.row : 0;
	return rc;
}

static int own_filter(struct orch *o, const struct orch_principal *p,
		      const struct orch_runs_query *q, struct store_run_filter *ret,
		      struct sbx_error *e)
{
	*ret = (struct store_run_filter){ .user = p->user,
					  .session_id = given(q->session_id),
					  .label = given(q->label),
					  .limit = q->limit + 1 };
	if (check_limit(q->limit, e) < 0)
		return -SBX_E_INVALID_ARGUMENT;
	if (given(q->phase) && !(ret->phase = store_phase_find(q->phase)))
		return orch_view_refuse(
			"phase", q->phase,
			"queued, starting, running, completed, failed, killed, timed_out", e);
	if (ret->label && (ret->label[0] == '=' || !strchr(ret->label, '=')))
		return orch_view_refuse("label", ret->label, "NAME=VALUE", e);
	return given(q->cursor) ? find_cursor(o, p, q->cursor, &ret->before_row, e) : 0;
}

int orch_view_runs(struct orch *o, const struct orch_principal *p, const struct orch_runs_query *q,
		   struct sbx_buf *out, struct sbx_error *e)
{
	struct items l = { .out = out, .form = ORCH_FORM_STATUS, .limit = q->limit };
	struct store_run_filter f;
	int rc = own_filter(o, p, q, &f, e);

	if (rc < 0)
		return rc;
	sbx_buf_puts(out, "{\"items\":[");
	rc = store_run_list(o->store, &f, add_run, &l, e);
	sbx_buf_puts(out, "],\"next_cursor\":");
	sbx_buf_json_strz(out, l.n > l.limit ? l.last : NULL);
	sbx_buf_puts(out, "}\n");
	return orch_view_done(rc, out, e);
}

/* ---- pages of administrators ----------------------------------------------------------------- */

/* The reference names next_offset twice in a list of runs, and once in the others. */
enum envelope { ENVELOPE_RUNS = 1, ENVELOPE_OTHER };

static void add_next(struct sbx_buf *out, const char *name, int64_t next)
{
	if (next)
		sbx_buf_printf(out, ",\"%s\":%lld", name, (long long)next);
	else
		sbx_buf_printf(out, ",\"%s\":null", name);
}

static void add_envelope(struct sbx_buf *out, enum envelope kind, const struct orch_page *page,
			 int64_t total, const struct items *l, const struct sbx_buf *items)
{
	bool more = l->n > l->limit;
	int64_t next = more ? page->offset + page->limit : 0, seen = page->offset + l->n;
	sbx_autobuf head = SBX_BUF_INIT(512);

	/* Rows may have come between the count and the list. */
	if (l->n > 0 && total < seen)
		total = seen;
	sbx_buf_printf(&head, "\"total\":%lld,\"limit\":%lld,\"offset\":%lld,\"has_more\":%s",
		       (long long)total, (long long)page->limit, (long long)page->offset,
		       more ? "true" : "false");
	out->failed |= head.failed || items->failed;
	if (out->failed)
		return;
	sbx_buf_printf(out, "{%s", head.data);
	if (kind == ENVELOPE_RUNS)
		add_next(out, "next_offset", next);
	sbx_buf_printf(out, ",\"pagination\":{\"mode\":\"offset\",%s", head.data);
	add_next(out, "next_offset", next);
	sbx_buf_puts(out, "},\"items\":[");
	sbx_buf_add(out, items->data, items->len);
	sbx_buf_puts(out, "]}\n");
}

static int time_filter(const char *name, const char *text, int64_t *ret_us, struct sbx_error *e)
{
	if (given(text) && sbx_time_parse(text, ret_us) < 0)
		return orch_view_refuse(name, text, "a time as 2026-01-31T12:00:00Z", e);
	return 0;
}

/* *ret_none: nothing can match. */
static int started_filter(const struct orch_admin_runs *q, struct store_started *ret,
			  bool *ret_none, struct sbx_error *e)
{
	int rc = check_limit(q->page.limit, e);

	*ret = (struct store_started){ .user = given(q->user_id),
				       .workspace_id = given(q->workspace_id),
				       .workspace_group_id = given(q->workspace_group_id),
				       .scope_snapshot_id = given(q->scope_snapshot_id),
				       .image_digest = given(q->image_digest),
				       .phase = given(q->phase) ? store_phase_find(q->phase) : 0,
				       .ascending = q->page.ascending,
				       .offset = q->page.offset,
				       .limit = q->page.limit + 1 };
	*ret_none = given(q->phase) && !ret->phase;
	if (rc == 0)
		rc = time_filter("started_at_from", q->started_from, &ret->from_us, e);
	return rc < 0 ? rc : time_filter("started_at_to", q->started_to, &ret->to_us, e);
}

int orch_view_admin_runs(struct orch *o, const struct orch_admin_runs *q, struct sbx_buf *out,
			 struct sbx_error *e)
{
	sbx_autobuf items = SBX_BUF_INIT(out->limit);
	struct items l = { .out = &items, .form = ORCH_FORM_ADMIN_ITEM, .limit = q->page.limit };
	struct store_started f;
	int64_t total = 0;
	bool none = false;
	int rc = started_filter(q, &f, &none, e);

	if (rc == 0 && !none)
		rc = store_started_count(o->store, &f, &total, e);
	if (rc == 0 && !none)
		rc = store_started_list(o->store, &f, add_run, &l, e);
	if (rc == 0)
		add_envelope(out, ENVELOPE_RUNS, &q->page, total, &l, &items);
	return orch_view_done(rc, out, e);
}

int orch_view_admin_run(struct orch *o, const char *id, struct sbx_buf *out, struct sbx_error *e)
{
	store_autorun r = { 0 };
	int rc = store_run_get(o->store, id, &r, e);

	if (rc < 0)
		return rc;
	orch_run_object(&r, ORCH_FORM_ADMIN_RUN, NULL, out);
	sbx_buf_puts(out, "\n");
	return orch_view_done(0, out, e);
}

static bool add_key(void *ctx, const struct store_idem_row *r)
{
	struct items *l = ctx;
	char when[SBX_TIME_TEXT];
	const struct {
		const char *name, *value;
	} members[] = {
		{ "{\"endpoint\":", r->endpoint },
		{ ",\"user_id\":", r->user },
		{ ",\"key\":", r->key },
		{ ",\"fingerprint\":", r->fingerprint },
		{ ",\"object_id\":", r->object_id },
		{ ",\"created_at\":", sbx_time_format(r->created_us, when) },
	};

	if (!next_item(l))
		return false;
	for (size_t i = 0; i < SBX_COUNT(members); i++) {
		sbx_buf_puts(l->out, members[i].name);
		sbx_buf_json_strz(l->out, members[i].value);
	}
	sbx_buf_puts(l->out, "}");
	return !sbx_buf_failed(l->out);
}

int orch_view_admin_keys(struct orch *o, const struct orch_admin_keys *q, struct sbx_buf *out,
			 struct sbx_error *e)
{
	sbx_autobuf items = SBX_BUF_INIT(out->limit);
	struct items l = { .out = &items, .limit = q->page.limit };
	struct store_idem_filter f = { .endpoint = given(q->endpoint),
				       .user = given(q->user_id),
				       .key = given(q->key),
				       .ascending = q->page.ascending,
				       .offset = q->page.offset,
				       .limit = q->page.limit + 1 };
	int64_t total = 0;
	/* What is beyond its time counts for nothing, though it may not be swept yet. */
	int64_t horizon = sbx_now_us() - orch_settings(o)->idempotency_ttl_sec * SBX_SECOND_US;
	int rc = check_limit(q->page.limit, e);

	if (rc == 0)
		rc = time_filter("created_at_from", q->created_from, &f.from_us, e);
	if (rc == 0)
		rc = time_filter("created_at_to", q->created_to, &f.to_us, e);
	if (f.from_us < horizon)
		f.from_us = horizon;
	if (rc == 0)
		rc = store_idem_count(o->store, &f, &total, e);
	if (rc == 0)
		rc = store_idem_list(o->store, &f, add_key, &l, e);
	if (rc == 0)
		add_envelope(out, ENVELOPE_OTHER, &q->page, total, &l, &items);
	return orch_view_done(rc, out, e);
}

static bool add_usage(void *ctx, const struct store_usage *u)
{
	struct items *l = ctx;

	if (!next_item(l))
		return false;
	sbx_buf_puts(l->out, "{\"user_id\":");
	sbx_buf_json_strz(l->out, u->user);
	sbx_buf_printf(l->out, ",\"runs_count\":%lld,\"log_bytes\":%lld,\"artifact_bytes\":%lld}",
		       (long long)u->runs, (long long)u->log_bytes, (long long)u->artifact_bytes);
	return !sbx_buf_failed(l->out);
}

int orch_view_admin_usage(struct orch *o, const struct orch_page *page, const char *user_id,
			  struct sbx_buf *out, struct sbx_error *e)
{
	sbx_autobuf items = SBX_BUF_INIT(out->limit);
	struct items l = { .out = &items, .limit = page->limit };
	int64_t total = 0;
	int rc = store_usage_count(o->store, given(user_id), &total, e);

	if (rc == 0)
		rc = store_usage_list(o->store, given(user_id), !page->ascending, page->offset,
				      page->limit + 1, add_usage, &l, e);
	if (rc == 0)
		add_envelope(out, ENVELOPE_OTHER, page, total, &l, &items);
	return orch_view_done(rc, out, e);
}

/* ---- the queue ------------------------------------------------------------------------------- */

int orch_view_queue(struct orch *o, struct sbx_buf *out, struct sbx_error *e)
{
	const struct orch_settings *st = orch_settings(o);
	struct items l = { .out = out, .form = ORCH_FORM_ADMIN_ITEM, .limit = INT64_MAX };
	int64_t queued = 0, active = 0;
	int rc = store_counts(o->store, &queued, &active, e);

	sbx_buf_printf(out,
		       "{\"queued\":%lld,\"active\":%lld,\"max_concurrent_runs\":%lld,"
		       "\"queue_max_length\":%lld,\"queue_ttl_sec\":%lld,\"runs\":[",
		       (long long)queued, (long long)active, (long long)st->max_concurrent_runs,
		       (long long)st->queue_max_length, (long long)st->queue_ttl_sec);
	for (enum store_phase ph = STORE_QUEUED; rc == 0 && ph <= STORE_RUNNING; ph++) {
		const struct store_run_filter f = { .phase = ph, .limit = PAGE_MAX };

		rc = store_run_list(o->store, &f, add_run, &l, e);
	}
	sbx_buf_puts(out, "]}\n");
	return orch_view_done(rc, out, e);
}
