/* SPDX-License-Identifier: Apache-2.0 */
/* What is counted for ever, beside the rows: ends of runs with their times, runs by runtime, and
 * counters by name. Each is a small table, so that reading them costs the same on every day. */
#include <string.h>

#include "store/store_i.h"

const int64_t store_bucket_us[STORE_BUCKETS] = {
#define X(n, us) [n] = us,
	STORE_BUCKET_LIST(X)
#undef X
};

enum { END_HEAD = 5 }; /* parameters of END_ADD before the buckets */

int store_end_add(struct store_tx *tx, const char *runtime, enum store_phase phase,
		  const char *reason, int64_t started_us, int64_t finished_us, struct sbx_error *e)
{
	bool timed = started_us > 0;
	int64_t took = timed && finished_us > started_us ? finished_us - started_us : 0;
	struct sql_value args[END_HEAD + STORE_BUCKETS] = {
		store_text(runtime), store_int(phase), store_text(reason ? reason : "unknown"),
		store_int(timed),    store_int(took),
	};

	for (size_t i = 0; i < STORE_BUCKETS; i++)
		args[END_HEAD + i] = store_int(timed && took <= store_bucket_us[i]);
	return store_tx_run(tx, SQL_END_ADD, args, SBX_COUNT(args), e);
}

int store_ends(struct store *s, bool (*each)(void *ctx, const struct store_ends *t), void *ctx,
	       struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	int r = store_read(s, SQL_ENDS, NULL, 0, &rd, &q, e);

	while (r == 1) {
		struct store_ends t = {
			.runtime = store_col_text(&q, 0),
			.phase = (enum store_phase)store_col_int(&q, 1),
			.reason = store_col_text(&q, 2),
			.runs = store_col_int(&q, 3),
			.timed = store_col_int(&q, 4),
			.sum_us = store_col_int(&q, 5),
		};

		for (int i = 0; i < STORE_BUCKETS; i++)
			t.bucket[i] = store_col_int(&q, END_HEAD + 1 + i);
		if (!each(ctx, &t))
			return 0;
		r = store_next(&q, e);
	}
	return r;
}

int store_runtime_counts(struct store *s,
			 bool (*each)(void *ctx, const char *runtime, enum store_phase phase,
				      int64_t n),
			 void *ctx, struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	int r = store_read(s, SQL_PHASE_COUNTS, NULL, 0, &rd, &q, e);

	while (r == 1) {
		if (!each(ctx, store_col_text(&q, 1), (enum store_phase)store_col_int(&q, 0),
			  store_col_int(&q, 2)))
			return 0;
		r = store_next(&q, e);
	}
	return r;
}

int store_tx_counter_add(struct store_tx *tx, const char *name, int64_t n, struct sbx_error *e)
{
	return store_tx_run(tx, SQL_COUNTER_ADD, STORE_ARGS(store_text(name), store_int(n)), e);
}

int store_counters(struct store *s, bool (*each)(void *ctx, const char *name, int64_t n), void *ctx,
		   struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	int r = store_read(s, SQL_COUNTERS, NULL, 0, &rd, &q, e);

	while (r == 1) {
		if (!each(ctx, store_col_text(&q, 0), store_col_int(&q, 1)))
			return 0;
		r = store_next(&q, e);
	}
	return r;
}
