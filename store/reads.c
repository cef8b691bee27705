/* SPDX-License-Identifier: Apache-2.0 */
/* Reading runs outside transactions: rows, specs. Lists: lists.c; for directories: keys.c */
#include <stdlib.h>
#include <string.h>

#include "store/store_i.h"

static int missing(struct sbx_error *e)
{
	return sbx_fail(e, SBX_E_RUN_NOT_FOUND, "no such run");
}

static int get_one(struct store *s, enum sql_id id, struct sql_value key, struct store_run *ret,
		   struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	int r = store_read(s, id, &key, 1, &rd, &q, e);

	if (r < 0)
		return r;
	return r ? store_run_load(&q, ret, e) : missing(e);
}

int store_run_get(struct store *s, const char *id, struct store_run *ret, struct sbx_error *e)
{
	return get_one(s, SQL_RUN_GET, store_text(id), ret, e);
}

int store_run_get_row(struct store *s, int64_t row, struct store_run *ret, struct sbx_error *e)
{
	return get_one(s, SQL_RUN_GET_ROW, store_int(row), ret, e);
}

int store_run_count(struct store *s, const char *user, int64_t *ret, struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	int64_t phases[STORE_PHASE__COUNT];
	int r;

	*ret = 0;
	if (!user) {
		r = store_phase_counts(s, phases, e);
		for (int p = STORE_QUEUED; r == 0 && p < STORE_PHASE__COUNT; p++)
			*ret += phases[p];
		return r;
	}
	r = store_reader_get(s, &rd, e);
	if (r == 0)
		r = store_first(rd.c, SQL_USAGE_GET, STORE_ARGS(store_text(user)), &q, e);
	if (r == 1)
		*ret = store_col_int(&q, 0);
	return r < 0 ? r : 0;
}

int store_run_spec(struct store *s, const char *id, char **ret, struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	int r = store_read(s, SQL_SPEC_GET, STORE_ARGS(store_text(id)), &rd, &q, e);

	if (r < 0)
		return r;
	if (r == 0)
		return missing(e);
	*ret = store_col_dup(&q, 0);
	return *ret ? 0 : sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the spec of a run");
}
