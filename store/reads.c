/* SPDX-License-Identifier: Apache-2.0 */
/* Reading runs outside transactions: rows, keys for directories, specs. Lists: lists.c */
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
	int r = store_reader_get(s, &rd, e);

	if (r == 0)
		r = store_first(rd.c, id, &key, 1, &q, e);
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

/* ---- keys ------------------------------------------------------------------------------------ */

enum { KEY_OWNER = 9 }; /* the column behind those of RUN_KEY */

static void load_key(struct store_query *q, struct store_run_key *ret)
{
	const char *id = store_col_text(q, 1);

	memset(ret, 0, sizeof(*ret));
	ret->row = store_col_int(q, 0);
	if (id)
		memcpy(ret->id, id, strnlen(id, sizeof(ret->id) - 1));
	ret->uid = store_col_int(q, 2);
	ret->phase = (enum store_phase)store_col_int(q, 3);
	ret->created_us = store_col_int(q, 4);
	ret->changed_us = store_col_int(q, 5);
	ret->interactive = store_col_int(q, 6) != 0;
	ret->in_session = store_col_text(q, 7) != NULL;
	ret->has_exit_code = store_col_int(q, 8) != 0;
}

int store_run_key(struct store *s, const char *id, const char *user, struct store_run_key *ret,
		  struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	const char *owner;
	int r = store_reader_get(s, &rd, e);

	if (r == 0)
		r = store_first(rd.c, SQL_KEY_GET, STORE_ARGS(store_text(id)), &q, e);
	if (r < 0)
		return r;
	owner = r ? store_col_text(&q, KEY_OWNER) : NULL;
	if (!owner || (user && strcmp(user, owner) != 0))
		return missing(e);
	load_key(&q, ret);
	return 0;
}

int store_run_key_row(struct store *s, int64_t row, struct store_run_key *ret, char **ret_user,
		      struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	int r = store_reader_get(s, &rd, e);

	if (r == 0)
		r = store_first(rd.c, SQL_KEY_GET_ROW, STORE_ARGS(store_int(row)), &q, e);
	if (r < 0)
		return r;
	if (r == 0)
		return missing(e);
	if (ret_user) {
		*ret_user = store_col_dup(&q, KEY_OWNER);
		if (!*ret_user)
			return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a user name");
	}
	load_key(&q, ret);
	return 0;
}

int store_run_latest(struct store *s, const char *user, struct store_run_key *ret,
		     struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	struct sql_value owner = store_text(user);
	int r = store_reader_get(s, &rd, e);

	if (r == 0)
		r = store_first(rd.c, user ? SQL_KEY_LATEST_OWNER : SQL_KEY_LATEST, &owner,
				user ? 1 : 0, &q, e);
	if (r < 0)
		return r;
	if (r == 0)
		return missing(e);
	load_key(&q, ret);
	return 0;
}

int store_run_keys(struct store *s, const char *user, int64_t after, struct store_run_key *ret,
		   size_t max, struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	size_t n = 0;
	int r = store_reader_get(s, &rd, e);

	if (r == 0 && user)
		r = store_start(
			rd.c, SQL_KEYS_OWNER,
			STORE_ARGS(store_int(after), store_text(user), store_int((int64_t)max)), &q,
			e);
	else if (r == 0)
		r = store_start(rd.c, SQL_KEYS,
				STORE_ARGS(store_int(after), store_int((int64_t)max)), &q, e);
	while (r == 0 && n < max && (r = store_next(&q, e)) == 1) {
		load_key(&q, &ret[n++]);
		r = 0;
	}
	return r < 0 ? r : (int)n;
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
	int r = store_reader_get(s, &rd, e);

	if (r == 0)
		r = store_first(rd.c, SQL_SPEC_GET, STORE_ARGS(store_text(id)), &q, e);
	if (r < 0)
		return r;
	if (r == 0)
		return missing(e);
	*ret = store_col_dup(&q, 0);
	return *ret ? 0 : sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the spec of a run");
}
