/* SPDX-License-Identifier: Apache-2.0 */
/* Lists, page by page: runs by number and by start, idempotency keys, what users have used. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "store/store_i.h"

static int check_limit(int64_t limit, struct sbx_error *e)
{
	if (limit < 1 || limit > STORE_LIST_MAX)
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "limit is %lld; 1 to %d is allowed",
				(long long)limit, STORE_LIST_MAX);
	return 0;
}

/* ---- runs, newest first ---------------------------------------------------------------------- */

/*
 * The statement whose index leads: what names few runs comes first. Filters that are combined
 * walk the runs of the leading one, so a list by session and phase looks at that session's
 * runs only. SQL__COUNT: no index would lead.
 */
static enum sql_id leading(const struct store_run_filter *f)
{
	if ((f->label || f->workspace_id) && !f->user)
		return SQL__COUNT;
	if (f->session_id)
		return SQL_LIST_SESSION;
	if (f->persona_id)
		return SQL_LIST_PERSONA;
	if (f->workspace_id)
		return SQL_LIST_WORKSPACE;
	if (f->phase && !store_phase_terminal(f->phase))
		return SQL_LIST_LIVE;
	if (f->phase)
		return f->user ? SQL_LIST_OWNER_DONE : SQL__COUNT;
	return f->user ? SQL_LIST_OWNER : SQL_LIST_ALL;
}

static int start_list(struct store_conn *c, const struct store_run_filter *f, enum sql_id id,
		      struct store_query *q, struct sbx_error *e)
{
	struct sql_value before = store_int(f->before_row > 0 ? f->before_row : INT64_MAX);

	if (f->label)
		return store_start(c, SQL_LIST_LABEL,
				   STORE_ARGS(before, store_text(f->user),
					      store_int(store_number(f->label)),
					      store_text(f->session_id), store_text(f->persona_id),
					      store_text(f->workspace_id), store_int(f->phase),
					      store_int(f->limit)),
				   q, e);
	return store_start(c, id,
			   STORE_ARGS(before, store_text(f->user), store_text(f->session_id),
				      store_text(f->persona_id), store_text(f->workspace_id),
				      store_int(f->phase), store_int(f->limit)),
			   q, e);
}

int store_run_list(struct store *s, const struct store_run_filter *f,
		   bool (*each)(void *ctx, const struct store_run *r), void *ctx,
		   struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	enum sql_id id = leading(f);
	bool more = true;
	int r = check_limit(f->limit, e);

	if (r < 0)
		return r;
	if (id == SQL__COUNT)
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT,
				"a list by %s alone is not served; name a user",
				f->label	  ? "label"
				: f->workspace_id ? "workspace"
						  : "phase");
	r = store_reader_get(s, &rd, e);
	if (r == 0)
		r = start_list(rd.c, f, id, &q, e);
	while (r == 0 && more && (r = store_next(&q, e)) == 1) {
		store_autorun run = { .row = 0 };

		r = store_run_load(&q, &run, e);
		if (r == 0)
			more = each(ctx, &run);
	}
	return r < 0 ? r : 0;
}

/* One number by a statement that counts. */
static int count(struct store *s, enum sql_id id, const struct sql_value *args, size_t n,
		 int64_t *ret, struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	int r = store_read(s, id, args, n, &rd, &q, e);

	if (r < 0)
		return r;
	*ret = r ? store_col_int(&q, 0) : 0;
	return 0;
}

int store_workspace_count(struct store *s, const char *workspace_id, const char *user, int64_t *ret,
			  struct sbx_error *e)
{
	return count(s, SQL_WORKSPACE_COUNT, STORE_ARGS(store_text(workspace_id), store_text(user)),
		     ret, e);
}

static int each_label(struct store_tx *tx, enum sql_id id, int64_t row, const char *owner,
		      struct json_object *labels, struct sbx_error *e)
{
	json_object_object_foreach(labels, name, value)
	{
		sbx_autobuf text = SBX_BUF_INIT(1 << 20);
		int r;

		sbx_buf_printf(&text, "%s=%s", name, json_object_get_string(value));
		if (sbx_buf_failed(&text))
			return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a label");
		r = store_tx_run(tx, id,
				 STORE_ARGS(store_text(owner), store_text(text.data),
					    store_int(row), store_int(store_number(text.data))),
				 e);
		if (r < 0)
			return r;
	}
	return 0;
}

static int with_labels(struct store_tx *tx, enum sql_id id, int64_t row, const char *owner,
		       const char *labels, struct sbx_error *e)
{
	sbx_autojson *o = NULL;
	int r;

	if (!labels || strcmp(labels, "{}") == 0)
		return 0;
	r = sbx_json_parse_object(labels, strlen(labels), &o, e);
	return r < 0 ? r : each_label(tx, id, row, owner, o, e);
}

int store_labels_add(struct store_tx *tx, int64_t row, const char *owner, const char *labels,
		     struct sbx_error *e)
{
	return with_labels(tx, SQL_LABEL_ADD, row, owner, labels, e);
}

int store_labels_remove(struct store_tx *tx, int64_t row, const char *owner, const char *labels,
			struct sbx_error *e)
{
	return with_labels(tx, SQL_LABEL_REMOVE, row, owner, labels, e);
}

/* ---- runs by their start --------------------------------------------------------------------- */

/* As leading(), with the three statements of each index beside each other. */
static enum sql_id started_leading(const struct store_started *f)
{
	if (f->scope_snapshot_id)
		return SQL_STARTED_SCOPE_DESC;
	if (f->workspace_id)
		return SQL_STARTED_WORKSPACE_DESC;
	if (f->workspace_group_id)
		return SQL_STARTED_GROUP_DESC;
	if (f->image_digest)
		return SQL_STARTED_IMAGE_DESC;
	return f->user ? SQL_STARTED_OWNER_DESC : SQL_STARTED_ALL_DESC;
}

enum { STARTED_ASC = 1, STARTED_COUNT_OF, STARTED_FILTERS = 8 };
_Static_assert(SQL_STARTED_ALL_ASC == SQL_STARTED_ALL_DESC + STARTED_ASC, "the order of a row");
_Static_assert(SQL_STARTED_ALL_COUNT == SQL_STARTED_ALL_DESC + STARTED_COUNT_OF,
	       "the order of a row");

static void started_args(const struct store_started *f, struct sql_value args[STARTED_FILTERS + 2])
{
	/* An end alone leaves out what has not started, whose time is 0. */
	args[0] = store_int(f->from_us ? f->from_us : f->to_us ? 1 : 0);
	args[1] = store_int(f->to_us ? f->to_us : INT64_MAX);
	args[2] = store_int(f->phase);
	args[3] = store_text(f->user);
	args[4] = store_text(f->workspace_id);
	args[5] = store_text(f->workspace_group_id);
	args[6] = store_text(f->scope_snapshot_id);
	args[7] = store_text(f->image_digest);
	args[8] = store_int(f->limit);
	args[9] = store_int(f->offset);
}

static int started_rows(struct store_conn *c, const struct store_started *f, int64_t *rows,
			size_t *n, struct sbx_error *e)
{
	struct sql_value args[STARTED_FILTERS + 2];
	store_autoquery q = { NULL, NULL };
	int r;

	started_args(f, args);
	r = store_start(c, started_leading(f) + (f->ascending ? STARTED_ASC : 0), args,
			SBX_COUNT(args), &q, e);
	while (r == 0 && *n < (size_t)f->limit && (r = store_next(&q, e)) == 1) {
		rows[(*n)++] = store_col_int(&q, 0);
		r = 0;
	}
	return r < 0 ? r : 0;
}

/* The page is chosen by numbers alone, so that skipping an offset reads indices and not rows. */
int store_started_list(struct store *s, const struct store_started *f,
		       bool (*each)(void *ctx, const struct store_run *r), void *ctx,
		       struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	int64_t rows[STORE_LIST_MAX];
	size_t n = 0;
	bool more = true;
	int r = check_limit(f->limit, e);

	if (r == 0)
		r = store_reader_get(s, &rd, e);
	if (r == 0)
		r = started_rows(rd.c, f, rows, &n, e);
	for (size_t i = 0; r == 0 && more && i < n; i++) {
		store_autorun run = { .row = 0 };

		r = store_first(rd.c, SQL_RUN_GET_ROW, STORE_ARGS(store_int(rows[i])), &q, e);
		if (r <= 0)
			continue; /* rows are never removed; 0 cannot be */
		r = store_run_load(&q, &run, e);
		if (r == 0)
			more = each(ctx, &run);
	}
	return r;
}

int store_started_count(struct store *s, const struct store_started *f, int64_t *ret,
			struct sbx_error *e)
{
	struct sql_value args[STARTED_FILTERS + 2];
	int64_t phases[STORE_PHASE__COUNT];
	bool narrow = f->workspace_id || f->workspace_group_id || f->scope_snapshot_id ||
		      f->image_digest || f->from_us || f->to_us;
	int r;

	/* Two questions whose answers are kept. */
	if (!narrow && !f->user) {
		*ret = 0;
		r = store_phase_counts(s, phases, e);
		for (int p = STORE_QUEUED; r == 0 && p < STORE_PHASE__COUNT; p++)
			if (!f->phase || (int)f->phase == p)
				*ret += phases[p];
		return r;
	}
	if (!narrow && !f->phase)
		return store_run_count(s, f->user, ret, e);
	started_args(f, args);
	return count(s, started_leading(f) + STARTED_COUNT_OF, args, STARTED_FILTERS, ret, e);
}

/* ---- idempotency keys ------------------------------------------------------------------------ */

enum { IDEM_FILTERS = 5 };

static void idem_args(const struct store_idem_filter *f, struct sql_value args[IDEM_FILTERS + 2])
{
	args[0] = store_int(f->from_us);
	args[1] = store_int(f->to_us ? f->to_us : INT64_MAX);
	args[2] = store_text(f->endpoint);
	args[3] = store_text(f->user);
	args[4] = store_text(f->key);
	args[5] = store_int(f->limit);
	args[6] = store_int(f->offset);
}

int store_idem_list(struct store *s, const struct store_idem_filter *f,
		    bool (*each)(void *ctx, const struct store_idem_row *r), void *ctx,
		    struct sbx_error *e)
{
	struct sql_value args[IDEM_FILTERS + 2];
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	int r = check_limit(f->limit, e);

	idem_args(f, args);
	if (r == 0)
		r = store_reader_get(s, &rd, e);
	if (r == 0)
		r = store_first(rd.c, f->ascending ? SQL_IDEM_ASC : SQL_IDEM_DESC, args,
				SBX_COUNT(args), &q, e);
	while (r == 1) {
		const struct store_idem_row row = {
			.endpoint = store_col_text(&q, 0),
			.user = store_col_text(&q, 1),
			.key = store_col_text(&q, 2),
			.fingerprint = store_col_text(&q, 3),
			.object_id = store_col_text(&q, 4),
			.created_us = store_col_int(&q, 5),
		};

		if (!each(ctx, &row))
			return 0;
		r = store_next(&q, e);
	}
	return r;
}

int store_idem_count(struct store *s, const struct store_idem_filter *f, int64_t *ret,
		     struct sbx_error *e)
{
	struct sql_value args[IDEM_FILTERS + 2];

	idem_args(f, args);
	return count(s, SQL_IDEM_COUNT, args, IDEM_FILTERS, ret, e);
}

/* ---- usage ----------------------------------------------------------------------------------- */

static int usage_of(struct store_conn *c, const char *user, bool skipped,
		    bool (*each)(void *ctx, const struct store_usage *u), void *ctx,
		    struct sbx_error *e)
{
	store_autoquery q = { NULL, NULL };
	int r = store_first(c, SQL_USAGE_GET, STORE_ARGS(store_text(user)), &q, e);
	struct store_usage u = { .user = user };

	if (r <= 0 || skipped)
		return r < 0 ? r : 0;
	u.runs = store_col_int(&q, 0);
	u.log_bytes = store_col_int(&q, 1);
	u.artifact_bytes = store_col_int(&q, 2);
	(void)each(ctx, &u);
	return 0;
}

int store_usage_list(struct store *s, const char *user, bool descending, int64_t offset,
		     int64_t limit, bool (*each)(void *ctx, const struct store_usage *u), void *ctx,
		     struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	int r = store_reader_get(s, &rd, e);

	if (r == 0 && user)
		return usage_of(rd.c, user, offset > 0, each, ctx, e);
	if (r == 0)
		r = store_first(rd.c, descending ? SQL_USAGE_DESC : SQL_USAGE_ASC,
				STORE_ARGS(store_int(limit), store_int(offset)), &q, e);
	while (r == 1) {
		const struct store_usage u = {
			.user = store_col_text(&q, 0),
			.runs = store_col_int(&q, 1),
			.log_bytes = store_col_int(&q, 2),
			.artifact_bytes = store_col_int(&q, 3),
		};

		if (!each(ctx, &u))
			return 0;
		r = store_next(&q, e);
	}
	return r;
}

static bool one_more(void *ctx, const struct store_usage *u)
{
	(void)u;
	++*(int64_t *)ctx;
	return true;
}

int store_usage_count(struct store *s, const char *user, int64_t *ret, struct sbx_error *e)
{
	*ret = 0;
	if (user)
		return store_usage_list(s, user, false, 0, 1, one_more, ret, e);
	return count(s, SQL_USAGE_COUNT, NULL, 0, ret, e);
}
