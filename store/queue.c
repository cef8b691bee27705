/* SPDX-License-Identifier: Apache-2.0 */
/* What the dispatcher asks: counts per scope, who is next, what is overdue and when. */
#include <string.h>

#include "base/clock.h"
#include "store/store_i.h"

static const enum sql_id count_statements[STORE_SCOPE__COUNT] = {
	[STORE_SCOPE_ALL] = SQL_COUNT_ALL,	   [STORE_SCOPE_USER] = SQL_COUNT_OWNER,
	[STORE_SCOPE_PERSONA] = SQL_COUNT_PERSONA, [STORE_SCOPE_WORKSPACE] = SQL_COUNT_WORKSPACE,
	[STORE_SCOPE_GROUP] = SQL_COUNT_GROUP,
};

int store_tx_count(struct store_tx *tx, bool active, enum store_scope scope, const char *key,
		   int64_t *ret, struct sbx_error *e)
{
	const struct sql_value args[] = {
		store_int(active ? STORE_STARTING : STORE_QUEUED),
		store_int(active ? STORE_RUNNING : STORE_QUEUED),
		store_text(key),
	};

	if (scope >= STORE_SCOPE__COUNT || (scope != STORE_SCOPE_ALL && !key))
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "a count needs a scope and its key");
	return store_tx_number(tx, count_statements[scope], args, scope == STORE_SCOPE_ALL ? 2 : 3,
			       ret, e);
}

int store_tx_reserved(struct store_tx *tx, int64_t *ret_memory_mb, int64_t *ret_cpu_milli,
		      struct sbx_error *e)
{
	store_autoquery q = { NULL, NULL };
	int r = store_tx_first(tx, SQL_RESERVED, NULL, 0, &q, e);

	if (r < 0)
		return r;
	*ret_memory_mb = r ? store_col_int(&q, 0) : 0;
	*ret_cpu_milli = r ? store_col_int(&q, 1) : 0;
	return 0;
}

int store_tx_queue_next_user(struct store_tx *tx, const char *after, char **ret,
			     struct sbx_error *e)
{
	store_autoquery q = { NULL, NULL };
	int r;

	*ret = NULL;
	/* No user has an empty name, so "" stands before the first. */
	r = store_tx_first(tx, SQL_QUEUE_NEXT_USER, STORE_ARGS(store_text(after ? after : "")), &q,
			   e);
	if (r <= 0)
		return r;
	*ret = store_col_dup(&q, 0);
	return *ret ? 0 : sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a user name");
}

static int one_run(struct store_tx *tx, enum sql_id id, const struct sql_value *args, size_t n,
		   struct store_run *ret, struct sbx_error *e)
{
	store_autoquery q = { NULL, NULL };
	int r = store_tx_first(tx, id, args, n, &q, e);

	if (r < 0)
		return r;
	if (r == 0)
		return sbx_fail(e, SBX_E_RUN_NOT_FOUND, "no such run");
	return store_run_load(&q, ret, e);
}

int store_tx_queue_head(struct store_tx *tx, const char *user, int64_t after, struct store_run *ret,
			struct sbx_error *e)
{
	return one_run(tx, after ? SQL_QUEUE_NEXT : SQL_QUEUE_HEAD,
		       STORE_ARGS(store_text(user), store_int(after)), ret, e);
}

/* late is asked with the boot and the time, the other two (a boot before or behind this one in
 * the order of an index) with the boot. The first that finds a run decides. */
static int overdue(struct store_tx *tx, const enum sql_id look[3], const char *boot, int64_t now,
		   struct store_run *ret, struct sbx_error *e)
{
	const struct sql_value args[] = { store_text(boot), store_int(now) };
	int r = -SBX_E_RUN_NOT_FOUND;

	for (size_t i = 0; i < 3 && r == -SBX_E_RUN_NOT_FOUND; i++)
		r = one_run(tx, look[i], args, i == 0 ? 2 : 1, ret, e);
	if (r == 0)
		sbx_error_clear(e); /* of a look that found nothing */
	return r;
}

int store_tx_queue_expired(struct store_tx *tx, const char *boot, int64_t now_boot_us,
			   struct store_run *ret, struct sbx_error *e)
{
	static const enum sql_id look[3] = { SQL_QUEUE_LATE, SQL_QUEUE_BEFORE_BOOT,
					     SQL_QUEUE_AFTER_BOOT };

	return overdue(tx, look, boot, now_boot_us, ret, e);
}

int store_tx_lease_expired(struct store_tx *tx, const char *boot, int64_t now_boot_us,
			   struct store_run *ret, struct sbx_error *e)
{
	static const enum sql_id look[3] = { SQL_LEASE_LATE, SQL_LEASE_BEFORE_BOOT,
					     SQL_LEASE_AFTER_BOOT };

	return overdue(tx, look, boot, now_boot_us, ret, e);
}

/* Columns from `col`: the first deadline of this boot, and two marks of rows of another boot,
 * which are due now. "expires < now" becomes true one microsecond after the deadline. */
static int64_t deadline(struct store_query *q, int col)
{
	if (store_col_text(q, col + 1) || store_col_text(q, col + 2))
		return 0;
	return store_col_text(q, col) ? store_col_int(q, col) + 1 : INT64_MAX;
}

int store_deadlines(struct store *s, int64_t *ret_queue_us, int64_t *ret_lease_us,
		    struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	int r = store_read(s, SQL_DEADLINES, STORE_ARGS(store_text(sbx_boot_id())), &rd, &q, e);

	if (r < 0)
		return r;
	*ret_queue_us = deadline(&q, 0);
	*ret_lease_us = deadline(&q, 3);
	return 0;
}

int store_queue_position(struct store *s, const char *user, int64_t row, int64_t *ret,
			 struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	int r = store_read(s, SQL_QUEUE_POSITION, STORE_ARGS(store_text(user), store_int(row)), &rd,
			   &q, e);

	if (r < 0)
		return r;
	*ret = store_col_int(&q, 0);
	return 0;
}

int store_phase_counts(struct store *s, int64_t *ret, struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	int r = store_reader_get(s, &rd, e);

	memset(ret, 0, STORE_PHASE__COUNT * sizeof(*ret));
	if (r == 0)
		r = store_start(rd.c, SQL_PHASE_COUNTS, NULL, 0, &q, e);
	while (r == 0 && (r = store_next(&q, e)) == 1) {
		int64_t phase = store_col_int(&q, 0);

		if (phase > 0 && phase < STORE_PHASE__COUNT)
			ret[phase] += store_col_int(&q, 2);
		r = 0;
	}
	return r < 0 ? r : 0;
}

int store_counts(struct store *s, int64_t *ret_queued, int64_t *ret_active, struct sbx_error *e)
{
	int64_t n[STORE_PHASE__COUNT];
	int r = store_phase_counts(s, n, e);

	if (r < 0)
		return r;
	*ret_queued = n[STORE_QUEUED];
	*ret_active = n[STORE_STARTING] + n[STORE_RUNNING];
	return 0;
}
