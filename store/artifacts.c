/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of artifacts, what each user has stored, and the audit trail. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "store/store_i.h"

int store_usage_add(struct store_tx *tx, const char *owner, int64_t runs, int64_t log_bytes,
		    int64_t artifact_bytes, struct sbx_error *e)
{
	return store_tx_run(tx, SQL_USAGE_ADD,
			    STORE_ARGS(store_text(owner), store_int(runs), store_int(log_bytes),
				       store_int(artifact_bytes)),
			    e);
}

static int sum(struct store_tx *tx, const char *run_id, int64_t *ret_count, int64_t *ret_bytes,
	       struct sbx_error *e)
{
	store_autoquery q = { NULL, NULL };
	int r = store_tx_first(tx, SQL_ARTIFACT_SUM, STORE_ARGS(store_text(run_id)), &q, e);

	if (r < 0)
		return r;
	*ret_count = store_col_int(&q, 0);
	*ret_bytes = store_col_int(&q, 1);
	return 0;
}

/* The feed says so, and what the owner has stored. Columns of q: rid, owner, phase. */
static int tell(struct store_tx *tx, struct store_query *q, const char *run_id, int64_t more_bytes,
		struct sbx_error *e)
{
	sbx_autofree char *owner = store_col_dup(q, 1);
	int64_t row = store_col_int(q, 0);
	enum store_phase phase = (enum store_phase)store_col_int(q, 2);

	int r;

	store_query_done(q);
	if (!owner)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a user name");
	r = store_tx_run_changed(tx, row, run_id, "artifacts", phase, owner, e);
	return r < 0 || !more_bytes ? r : store_usage_add(tx, owner, 0, 0, more_bytes, e);
}

/* After rows of artifacts have changed: counted anew, so that a path that is registered twice is
 * one artifact. */
static int settle(struct store_tx *tx, const char *run_id, int64_t before, struct sbx_error *e)
{
	store_autoquery q = { NULL, NULL };
	int64_t count, after;
	int r = sum(tx, run_id, &count, &after, e);

	if (r == 0)
		r = store_tx_first(tx, SQL_ARTIFACTS_SET,
				   STORE_ARGS(store_int(count), store_int(after),
					      store_int(sbx_now_us()), store_text(run_id)),
				   &q, e);
	if (r < 0)
		return r;
	if (r == 0) {
		tx->failed = true; /* rows of artifacts without a run must not be committed */
		return sbx_fail(e, SBX_E_RUN_NOT_FOUND, "no run '%s'", run_id);
	}
	return tell(tx, &q, run_id, after - before, e);
}

int store_tx_artifacts_add(struct store_tx *tx, const char *run_id,
			   const struct store_artifact *list, size_t n, struct sbx_error *e)
{
	int64_t count, before;
	int r = sum(tx, run_id, &count, &before, e);

	for (size_t i = 0; r == 0 && i < n; i++)
		r = store_tx_run(tx, SQL_ARTIFACT_PUT,
				 STORE_ARGS(store_text(run_id),
					    store_bytes(list[i].path, strlen(list[i].path)),
					    store_int(list[i].size)),
				 e);
	return r < 0 ? r : settle(tx, run_id, before, e);
}

int store_tx_artifacts_drop(struct store_tx *tx, const char *run_id, struct sbx_error *e)
{
	store_autoquery q = { NULL, NULL };
	int64_t count = 0, bytes = 0;
	int r = sum(tx, run_id, &count, &bytes, e);

	if (r == 0)
		r = store_tx_run(tx, SQL_ARTIFACT_DROP, STORE_ARGS(store_text(run_id)), e);
	if (r == 0)
		r = store_tx_first(tx, SQL_ARTIFACTS_GONE,
				   STORE_ARGS(store_int(sbx_now_us()), store_text(run_id)), &q, e);
	if (r < 0)
		return r;
	if (r == 0)
		return sbx_fail(e, SBX_E_RUN_NOT_FOUND, "no run '%s'", run_id);
	return tell(tx, &q, run_id, -bytes, e);
}

int store_artifact_list(struct store *s, const char *run_id,
			bool (*each)(void *ctx, const struct store_artifact *a), void *ctx,
			struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	int r = store_read(s, SQL_ARTIFACT_LIST, STORE_ARGS(store_text(run_id)), &rd, &q, e);

	while (r == 1) {
		size_t len = 0;
		const void *bytes = s->sql->column_bytes(q.st, 0, &len);
		sbx_autofree char *path = strndup(bytes ? bytes : "", len);
		struct store_artifact a = { .path = path, .size = store_col_int(&q, 1) };

		if (!path)
			return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a path");
		if (!each(ctx, &a))
			return 0;
		r = store_next(&q, e);
	}
	return r;
}

int store_usage_bytes(struct store *s, const char *user, int64_t *ret, struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	int r = store_read(s, SQL_USAGE_GET, STORE_ARGS(store_text(user)), &rd, &q, e);

	if (r < 0)
		return r;
	*ret = r ? store_col_int(&q, 2) : 0;
	return 0;
}

int store_texts(struct store *s, enum sql_id id, const struct sql_value *args, size_t n_args,
		char **ret, size_t max, struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	size_t n = 0;
	int r = store_read(s, id, args, n_args, &rd, &q, e);

	while (r == 1 && n < max) {
		ret[n] = store_col_dup(&q, 0);
		if (!ret[n]) {
			r = sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a list");
			break;
		}
		n++;
		r = store_next(&q, e);
	}
	if (r >= 0)
		return (int)n;
	while (n > 0)
		free(ret[--n]);
	return r;
}

int store_artifacts_due(struct store *s, int64_t finished_before_us, char **ret_ids, size_t max,
			struct sbx_error *e)
{
	return store_texts(s, SQL_ARTIFACTS_DUE,
			   STORE_ARGS(store_int(finished_before_us), store_int((int64_t)max)),
			   ret_ids, max, e);
}

/* ---- set right ------------------------------------------------------------------------------- */

int store_artifact_runs(struct store *s, const char *after, char **ret_ids, size_t max,
			struct sbx_error *e)
{
	return store_texts(s, SQL_ARTIFACT_RUNS,
			   STORE_ARGS(store_text(after), store_int((int64_t)max)), ret_ids, max, e);
}

int store_tx_artifacts_correct(struct store_tx *tx, const char *run_id,
			       const struct store_artifact *list, size_t n, struct sbx_error *e)
{
	int64_t count, before;
	int r = sum(tx, run_id, &count, &before, e);

	for (size_t i = 0; r == 0 && i < n; i++) {
		struct sql_value path = store_bytes(list[i].path, strlen(list[i].path));

		if (list[i].size < 0)
			r = store_tx_run(tx, SQL_ARTIFACT_FORGET,
					 STORE_ARGS(store_text(run_id), path), e);
		else
			r = store_tx_run(
				tx, SQL_ARTIFACT_PUT,
				STORE_ARGS(store_text(run_id), path, store_int(list[i].size)), e);
	}
	return r < 0 ? r : settle(tx, run_id, before, e);
}

int store_usage_wrong(struct store *s, char **ret_users, size_t max, struct sbx_error *e)
{
	return store_texts(s, SQL_USAGE_WRONG, STORE_ARGS(store_int((int64_t)max)), ret_users, max,
			   e);
}

int store_tx_usage_correct(struct store_tx *tx, const char *user, int64_t *ret_by,
			   struct sbx_error *e)
{
	store_autoquery q = { NULL, NULL };
	int64_t by = 0;
	int r = store_tx_first(tx, SQL_USAGE_REAL, STORE_ARGS(store_text(user)), &q, e);

	if (r == 1)
		by = store_col_int(&q, 1) - store_col_int(&q, 0);
	store_query_done(&q);
	*ret_by = by < 0 ? -by : by;
	return r < 0 || by == 0 ? (r < 0 ? r : 0) : store_usage_add(tx, user, 0, 0, by, e);
}

/* ---- audit ----------------------------------------------------------------------------------- */

int store_tx_audit(struct store_tx *tx, const struct store_audit *a, struct sbx_error *e)
{
	return store_tx_run(tx, SQL_AUDIT_ADD,
			    STORE_ARGS(store_int(a->at_us ? a->at_us : sbx_now_us()),
				       store_text(a->user), store_text(a->door),
				       store_text(a->action), store_text(a->resource),
				       store_text(a->result), store_text(a->details)),
			    e);
}

int store_tx_audit_prune(struct store_tx *tx, int64_t before_us, int64_t max, struct sbx_error *e)
{
	return store_tx_run(tx, SQL_AUDIT_PRUNE, STORE_ARGS(store_int(before_us), store_int(max)),
			    e);
}
