/* SPDX-License-Identifier: Apache-2.0 */
/* What directories are made of: runs without their strings, by number and by what they have, and
 * the labels and users by which they are told apart. */
#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>

#include "store/store_i.h"

static int missing(struct sbx_error *e)
{
	return sbx_fail(e, SBX_E_RUN_NOT_FOUND, "no such run");
}

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
	int r = store_read(s, SQL_KEY_GET, STORE_ARGS(store_text(id)), &rd, &q, e);

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
	int r = store_read(s, SQL_KEY_GET_ROW, STORE_ARGS(store_int(row)), &rd, &q, e);

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
	int r = store_read(s, user ? SQL_KEY_LATEST_OWNER : SQL_KEY_LATEST, &owner, user ? 1 : 0,
			   &rd, &q, e);

	if (r < 0)
		return r;
	if (r == 0)
		return missing(e);
	load_key(&q, ret);
	return 0;
}

static int load_keys(struct store *s, enum sql_id id, const struct sql_value *args, size_t n_args,
		     struct store_run_key *ret, size_t max, struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	size_t n = 0;
	int r = store_reader_get(s, &rd, e);

	if (r == 0)
		r = store_start(rd.c, id, args, n_args, &q, e);
	while (r == 0 && n < max && (r = store_next(&q, e)) == 1) {
		load_key(&q, &ret[n++]);
		r = 0;
	}
	return r < 0 ? r : (int)n;
}

int store_run_keys(struct store *s, const char *user, int64_t after, struct store_run_key *ret,
		   size_t max, struct sbx_error *e)
{
	struct sql_value limit = store_int((int64_t)max);

	if (user)
		return load_keys(s, SQL_KEYS_OWNER,
				 STORE_ARGS(store_int(after), store_text(user), limit), ret, max,
				 e);
	return load_keys(s, SQL_KEYS, STORE_ARGS(store_int(after), limit), ret, max, e);
}

/* ---- by what they have ----------------------------------------------------------------------- */

int store_run_keys_by(struct store *s, const struct store_keys_by *by, struct store_run_key *ret,
		      size_t max, struct sbx_error *e)
{
	struct sql_value value = store_text(by->session_id);
	enum sql_id id = SQL_KEYS_SESSION;

	if (by->phase) {
		value = store_int(by->phase);
		id = store_phase_terminal(by->phase)
			     ? (by->user ? SQL_KEYS_DONE_OWNER : SQL_KEYS_DONE)
			     : (by->user ? SQL_KEYS_LIVE_OWNER : SQL_KEYS_LIVE);
	} else if (by->label) {
		value = store_int(by->label);
		id = by->user ? SQL_KEYS_LABEL_OWNER : SQL_KEYS_LABEL;
	} else if (!by->session_id) {
		return store_run_keys(s, by->user, by->after, ret, max, e);
	}
	return load_keys(s, id,
			 STORE_ARGS(store_int(by->after), value, store_text(by->user),
				    store_int((int64_t)max)),
			 ret, max, e);
}

/* ---- labels and users ------------------------------------------------------------------------ */

/* 53 bits of a digest: nobody finds two labels with one number, or one with the number of yours. */
int64_t store_number(const char *text)
{
	unsigned char md[SHA256_DIGEST_LENGTH];
	uint64_t n = 0;

	(void)SHA256((const unsigned char *)text, strlen(text), md);
	for (int i = 0; i < 8; i++)
		n = n << 8 | md[i];
	n >>= 64 - 53;
	return n ? (int64_t)n : 1;
}

/* The index is entered anew for each, so that the runs that share one are not walked. */
static int walk(struct store *s, enum sql_id id, const char *user, size_t n_args, int64_t after,
		bool (*each)(void *ctx, int64_t number, const char *name), void *ctx,
		struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	struct sql_value args[] = { store_int(after), store_text(user) };
	int r = store_read(s, id, args, n_args, &rd, &q, e);

	while (r == 1) {
		args[0] = store_int(store_col_int(&q, 0));
		if (!each(ctx, args[0].n, store_col_text(&q, 1)))
			return 0;
		r = store_first(rd.c, id, args, n_args, &q, e);
	}
	return r;
}

int store_labels(struct store *s, const char *user, int64_t after,
		 bool (*each)(void *ctx, int64_t number, const char *label), void *ctx,
		 struct sbx_error *e)
{
	return walk(s, user ? SQL_LABEL_NEXT_OWNER : SQL_LABEL_NEXT, user, 2, after, each, ctx, e);
}

int store_users(struct store *s, int64_t after,
		bool (*each)(void *ctx, int64_t number, const char *user), void *ctx,
		struct sbx_error *e)
{
	return walk(s, SQL_USER_NEXT, NULL, 1, after, each, ctx, e);
}

static int no_user(struct sbx_error *e)
{
	return sbx_fail(e, SBX_E_NOT_FOUND, "no user of this name has runs");
}

int store_user_find(struct store *s, const char *user, int64_t *ret_number, struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	int r = store_read(s, SQL_USER_FIND, STORE_ARGS(store_text(user)), &rd, &q, e);

	if (r <= 0)
		return r < 0 ? r : no_user(e);
	*ret_number = store_col_int(&q, 0);
	return 0;
}

int store_user_get(struct store *s, int64_t number, char **ret, struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	int r = store_read(s, SQL_USER_GET, STORE_ARGS(store_int(number)), &rd, &q, e);

	if (r <= 0)
		return r < 0 ? r : no_user(e);
	*ret = store_col_dup(&q, 1);
	return *ret ? 0 : sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a user name");
}
