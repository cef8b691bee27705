/* SPDX-License-Identifier: Apache-2.0 */
/* Runs that ended long ago go: their rows here, their files by whoever asks for it. */
#include <string.h>

#include "base/buf.h"
#include "store/store_i.h"

/* Rows are almost in the order of their time: clocks are set. So only where none of so many is old
 * enough to have ended before, none behind them is. */
enum { LOOK_ROWS = 1000 }; /* as the statement says */

int store_runs_old(struct store *s, int64_t finished_before_us, int64_t *after_row, char **ret_ids,
		   size_t max, struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	size_t n = 0, looked = 0;
	bool old = false;
	int64_t last = 0;
	int r = store_read(s, SQL_RUNS_OLD,
			   STORE_ARGS(store_int(finished_before_us), store_int(*after_row)), &rd,
			   &q, e);

	for (; r == 1 && n < max; looked++) {
		last = store_col_int(&q, 1);
		old |= store_col_int(&q, 2) < finished_before_us;
		if (store_col_int(&q, 3)) {
			ret_ids[n] = store_col_dup(&q, 0);
			if (!ret_ids[n])
				r = sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a list");
			else
				n++;
		}
		if (r == 1)
			r = store_next(&q, e);
	}
	if (r >= 0) {
		*after_row = n == max || (looked == LOOK_ROWS && old) ? last : 0;
		return (int)n;
	}
	while (n > 0)
		free(ret_ids[--n]);
	return r;
}

/* What is counted beside the row. What is counted for ever stays (tallies.c); of what counts rows,
 * one is taken, and a counter by the runtime's name keeps their sum what it was. */
static int uncount(struct store_tx *tx, const struct store_run *r, struct sbx_error *e)
{
	const char *runtime = r->runtime ? r->runtime : "";
	sbx_autobuf name = SBX_BUF_INIT(4096);
	int rc = store_tx_run(tx, SQL_PHASE_TAKE,
			      STORE_ARGS(store_int(r->phase), store_text(runtime)), e);

	sbx_buf_printf(&name, STORE_COUNT_REMOVED "%s", runtime);
	if (rc == 0 && sbx_buf_failed(&name))
		rc = sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the name of a counter");
	if (rc == 0)
		rc = store_tx_counter_add(tx, name.data, 1, e);
	return rc < 0 ? rc : store_usage_add(tx, r->user, -1, -r->log_bytes, 0, e);
}

int store_tx_run_remove(struct store_tx *tx, const char *id, bool *ret_done, struct sbx_error *e)
{
	store_autorun r = { 0 };
	int rc = store_tx_run_get(tx, id, &r, e);

	*ret_done = false;
	if (rc == -SBX_E_RUN_NOT_FOUND || (rc == 0 && !store_phase_terminal(r.phase))) {
		sbx_error_clear(e);
		return 0;
	}
	if (rc == 0 && r.artifact_count && !r.artifacts_gone)
		rc = store_tx_artifacts_drop(tx, id, e);
	if (rc == 0)
		rc = uncount(tx, &r, e);
	if (rc == 0)
		rc = store_labels_remove(tx, r.row, r.user, r.labels, e);
	if (rc == 0)
		rc = store_tx_run(tx, SQL_SPEC_REMOVE, STORE_ARGS(store_int(r.row)), e);
	if (rc == 0)
		rc = store_tx_run(tx, SQL_RUN_REMOVE, STORE_ARGS(store_text(id)), e);
	if (rc == 0)
		rc = store_tx_change(tx, "run", r.row, id, "gone", store_phase_name(r.phase),
				     r.user, e);
	*ret_done = rc == 0;
	return rc;
}
