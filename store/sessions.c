/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of sessions and of their snapshots. */
#include "store/sessions.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/id.h"
#include "store/store_i.h"

/* ---- a session's row ------------------------------------------------------------------------- */

#define X(member, column) offsetof(struct store_session, member),
static const size_t texts[] = { STORE_SESSION_TEXTS(X) };
static const size_t numbers[] = { STORE_SESSION_NUMBERS(X) };
#undef X

static char **text_of(struct store_session *s, size_t i)
{
	return (char **)(void *)((char *)s + texts[i]);
}

static int64_t *number_of(struct store_session *s, size_t i)
{
	return (int64_t *)(void *)((char *)s + numbers[i]);
}

void store_session_clear(struct store_session *s)
{
	if (!s)
		return;
	for (size_t i = 0; i < SBX_COUNT(texts); i++)
		free(*text_of(s, i));
	memset(s, 0, sizeof(*s));
}

static int load(struct store_query *q, struct store_session *ret, struct sbx_error *e)
{
	struct store_session s = { .row = store_col_int(q, 0) };
	int col = 1;

	for (size_t i = 0; i < SBX_COUNT(texts); i++, col++) {
		*text_of(&s, i) = store_col_dup(q, col);
		if (!*text_of(&s, i) && store_col_text(q, col)) {
			store_session_clear(&s);
			return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a session");
		}
	}
	for (size_t i = 0; i < SBX_COUNT(numbers); i++, col++)
		*number_of(&s, i) = store_col_int(q, col);
	s.concurrent = store_col_int(q, col) != 0;
	*ret = s;
	return 0;
}

static int no_session(struct sbx_error *e)
{
	return sbx_fail(e, SBX_E_SESSION_NOT_FOUND, "no such session");
}

int store_tx_session_insert(struct store_tx *tx, struct store_session *s, bool *ret_taken,
			    struct sbx_error *e)
{
	struct sql_value args[SBX_COUNT(texts) + SBX_COUNT(numbers) + 1];
	store_autoquery q = { NULL, NULL };
	size_t n = 0;
	int r;

	if (!s->id || !sbx_id_valid(s->id) || !s->user || !s->user[0])
		return sbx_fail(e, SBX_E_INTERNAL, "a session without id or user");
	s->changed_us = s->created_us;
	for (size_t i = 0; i < SBX_COUNT(texts); i++)
		args[n++] = store_text(*text_of(s, i));
	for (size_t i = 0; i < SBX_COUNT(numbers); i++)
		args[n++] = store_int(*number_of(s, i));
	args[n++] = store_int(s->concurrent);
	r = store_tx_first(tx, SQL_SESSION_INSERT, args, n, &q, e);
	if (r < 0)
		return r;
	*ret_taken = r == 0;
	if (r == 0)
		return 0;
	s->row = store_col_int(&q, 0);
	return store_tx_change(tx, "session", s->row, s->id, "new", "", s->user, e);
}

int store_tx_session_get(struct store_tx *tx, const char *id, struct store_session *ret,
			 struct sbx_error *e)
{
	store_autoquery q = { NULL, NULL };
	int r = store_tx_first(tx, SQL_SESSION_GET, STORE_ARGS(store_text(id)), &q, e);

	return r < 0 ? r : r == 0 ? no_session(e) : load(&q, ret, e);
}

static int read_one(struct store *s, enum sql_id id, const struct sql_value *args, size_t n,
		    struct store_session *ret, struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	int r = store_read(s, id, args, n, &rd, &q, e);

	return r < 0 ? r : r == 0 ? no_session(e) : load(&q, ret, e);
}

int store_session_get(struct store *s, const char *id, struct store_session *ret,
		      struct sbx_error *e)
{
	return read_one(s, SQL_SESSION_GET, STORE_ARGS(store_text(id)), ret, e);
}

int store_session_get_row(struct store *s, int64_t row, struct store_session *ret,
			  struct sbx_error *e)
{
	return read_one(s, SQL_SESSION_GET_ROW, STORE_ARGS(store_int(row)), ret, e);
}

int store_session_get_entry(struct store *s, const char *user, const char *entry,
			    struct store_session *ret, struct sbx_error *e)
{
	return read_one(s, SQL_SESSION_GET_ENTRY, STORE_ARGS(store_text(user), store_text(entry)),
			ret, e);
}

static int list(struct store *s, enum sql_id id, const struct sql_value *args, size_t n_args,
		struct store_session *ret, struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	int n = 0, r = store_reader_get(s, &rd, e);

	if (r == 0)
		r = store_first(rd.c, id, args, n_args, &q, e);
	while (r == 1) {
		r = load(&q, &ret[n], e);
		if (r < 0)
			break;
		n++;
		r = store_next(&q, e);
	}
	while (r < 0 && n > 0)
		store_session_clear(&ret[--n]);
	return r < 0 ? r : n;
}

int store_session_list(struct store *s, const char *user, int64_t after, struct store_session *ret,
		       size_t max, struct sbx_error *e)
{
	if (!user)
		return list(s, SQL_SESSION_LIST,
			    STORE_ARGS(store_int(after), store_int((int64_t)max)), ret, e);
	return list(s, SQL_SESSION_LIST_OWNER,
		    STORE_ARGS(store_text(user), store_int(after), store_int((int64_t)max)), ret,
		    e);
}

int store_session_list_before(struct store *s, const char *user, int64_t before,
			      struct store_session *ret, size_t max, struct sbx_error *e)
{
	return list(s, SQL_SESSION_LIST_BEFORE,
		    STORE_ARGS(store_text(user), store_int(before), store_int((int64_t)max)), ret,
		    e);
}

int store_tx_session_times(struct store_tx *tx, const char *id, int64_t expires_us,
			   int64_t ending_us, struct sbx_error *e)
{
	store_autoquery q = { NULL, NULL };
	int r = store_tx_first(tx, SQL_SESSION_TIMES,
			       STORE_ARGS(store_int(expires_us), store_int(ending_us),
					  store_int(sbx_now_us()), store_text(id)),
			       &q, e);

	if (r <= 0)
		return r < 0 ? r : no_session(e);
	return store_tx_change(tx, "session", store_col_int(&q, 0), id, "status", "",
			       store_col_text(&q, 1), e);
}

int store_tx_session_drop(struct store_tx *tx, const char *id, struct sbx_error *e)
{
	store_autoquery q = { NULL, NULL };
	int r = store_tx_run(tx, SQL_SNAPSHOTS_DROP, STORE_ARGS(store_text(id)), e);

	if (r == 0)
		r = store_tx_first(tx, SQL_SESSION_DROP, STORE_ARGS(store_text(id)), &q, e);
	if (r <= 0)
		return r < 0 ? r : no_session(e);
	return store_tx_change(tx, "session", store_col_int(&q, 0), id, "gone", "",
			       store_col_text(&q, 1), e);
}

int store_tx_session_runs(struct store_tx *tx, const char *id, bool active, int64_t *ret,
			  struct sbx_error *e)
{
	return store_tx_number(tx, active ? SQL_SESSION_RUNS_ACTIVE : SQL_SESSION_RUNS,
			       STORE_ARGS(store_text(id)), ret, e);
}

int store_session_runs(struct store *s, const char *id, bool active, int64_t *ret,
		       struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	int r = store_reader_get(s, &rd, e);

	*ret = 0;
	if (r == 0)
		r = store_first(rd.c, active ? SQL_SESSION_RUNS_ACTIVE : SQL_SESSION_RUNS,
				STORE_ARGS(store_text(id)), &q, e);
	if (r == 1)
		*ret = store_col_int(&q, 0);
	return r < 0 ? r : 0;
}

int store_session_ending(struct store *s, const struct store_session *after,
			 struct store_session *ret, size_t max, struct sbx_error *e)
{
	return list(s, SQL_SESSION_ENDING,
		    STORE_ARGS(store_int(after ? after->ending_us : 0),
			       store_int(after ? after->row : 0), store_int((int64_t)max)),
		    ret, e);
}

int store_session_expiring(struct store *s, struct store_session *ret, size_t max,
			   struct sbx_error *e)
{
	return list(s, SQL_SESSION_EXPIRES, STORE_ARGS(store_int((int64_t)max)), ret, e);
}

/* Of those that end they leave out whoever cannot be saved. */
static int list_unsynced(struct store *s, enum sql_id id, const char *boot,
			 struct store_session *ret, size_t max, struct sbx_error *e)
{
	const struct sql_value args[] = { store_text(boot), store_int(STORE_ENDING_LOST),
					  store_int((int64_t)max) };

	return list(s, id, args, SBX_COUNT(args), ret, e);
}

int store_session_unsynced(struct store *s, const char *boot, struct store_session *ret, size_t max,
			   struct sbx_error *e)
{
	return list_unsynced(s, SQL_SESSION_UNSYNCED, boot, ret, max, e);
}

int store_session_torn(struct store *s, const char *boot, struct store_session *ret, size_t max,
		       struct sbx_error *e)
{
	return list_unsynced(s, SQL_SESSION_TORN, boot, ret, max, e);
}

int store_tx_session_mark(struct store_tx *tx, const char *id, const char *unsynced_boot,
			  struct sbx_error *e)
{
	return store_tx_run(
		tx, SQL_SESSION_MARK,
		STORE_ARGS(store_text(unsynced_boot), store_text(id), store_int(STORE_ENDING_LOST)),
		e);
}

int store_session_uncancelled(struct store *s, const char *id, char **ret_ids, size_t max,
			      struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	size_t n = 0;
	int r = store_read(s, SQL_SESSION_UNCANCELLED, STORE_ARGS(store_text(id)), &rd, &q, e);

	while (r == 1 && n < max) {
		ret_ids[n] = store_col_dup(&q, 0);
		if (!ret_ids[n])
			r = sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a list of runs");
		else
			r = store_next(&q, e);
		n += r >= 0;
	}
	while (r < 0 && n > 0)
		free(ret_ids[--n]);
	return r < 0 ? r : (int)n;
}

/* ---- snapshots ------------------------------------------------------------------------------- */

void store_snapshot_clear(struct store_snapshot *s)
{
	if (!s)
		return;
	free(s->id);
	free(s->name);
	free(s->session_id);
	free(s->digest);
	memset(s, 0, sizeof(*s));
}

static int load_snapshot(struct store_query *q, struct store_snapshot *ret, struct sbx_error *e)
{
	struct store_snapshot s = {
		.row = store_col_int(q, 0),
		.id = store_col_dup(q, 1),
		.name = store_col_dup(q, 2),
		.session_id = store_col_dup(q, 3),
		.digest = store_col_dup(q, 4),
		.created_us = store_col_int(q, 5),
		.bytes = store_col_int(q, 6),
		.files = store_col_int(q, 7),
	};

	if (!s.id || !s.session_id || !s.digest || (!s.name && store_col_text(q, 2))) {
		store_snapshot_clear(&s);
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a snapshot");
	}
	*ret = s;
	return 0;
}

static int no_snapshot(struct sbx_error *e)
{
	return sbx_fail(e, SBX_E_SNAPSHOT_NOT_FOUND, "no such snapshot");
}

int store_tx_snapshot_insert(struct store_tx *tx, struct store_snapshot *s, bool *ret_taken,
			     struct sbx_error *e)
{
	store_autosession owner = { 0 };
	store_autoquery q = { NULL, NULL };
	int r = store_tx_session_get(tx, s->session_id, &owner, e);

	if (r == 0)
		r = store_tx_first(tx, SQL_SNAPSHOT_INSERT,
				   STORE_ARGS(store_text(s->id), store_text(s->name),
					      store_text(s->session_id), store_text(s->digest),
					      store_int(s->created_us), store_int(s->bytes),
					      store_int(s->files)),
				   &q, e);
	if (r < 0)
		return r;
	*ret_taken = r == 0;
	if (r == 0)
		return 0;
	s->row = store_col_int(&q, 0);
	return store_tx_change(tx, "snapshot", s->row, s->id, "new", "", owner.user, e);
}

static int read_snapshot(struct store *s, enum sql_id id, const struct sql_value *args, size_t n,
			 struct store_snapshot *ret, struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	int r = store_read(s, id, args, n, &rd, &q, e);

	return r < 0 ? r : r == 0 ? no_snapshot(e) : load_snapshot(&q, ret, e);
}

int store_snapshot_get(struct store *s, const char *session_id, const char *id_or_name,
		       struct store_snapshot *ret, struct sbx_error *e)
{
	const struct sql_value args[] = { store_text(id_or_name), store_text(session_id) };
	int r = read_snapshot(s, SQL_SNAPSHOT_GET, args, 2, ret, e);

	if (r != -SBX_E_SNAPSHOT_NOT_FOUND)
		return r;
	sbx_error_clear(e);
	return read_snapshot(s, SQL_SNAPSHOT_GET_NAME, args, 2, ret, e);
}

int store_snapshot_get_row(struct store *s, int64_t row, struct store_snapshot *ret,
			   struct sbx_error *e)
{
	return read_snapshot(s, SQL_SNAPSHOT_GET_ROW, STORE_ARGS(store_int(row)), ret, e);
}

int store_snapshot_list(struct store *s, const char *session_id, int64_t after,
			struct store_snapshot *ret, size_t max, struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	int n = 0, r = store_reader_get(s, &rd, e);

	if (r == 0)
		r = store_first(rd.c, SQL_SNAPSHOT_LIST,
				STORE_ARGS(store_text(session_id), store_int(after),
					   store_int((int64_t)max)),
				&q, e);
	while (r == 1) {
		r = load_snapshot(&q, &ret[n], e);
		if (r < 0)
			break;
		n++;
		r = store_next(&q, e);
	}
	while (r < 0 && n > 0)
		store_snapshot_clear(&ret[--n]);
	return r < 0 ? r : n;
}

int store_tx_snapshot_drop(struct store_tx *tx, const char *id, bool *ret_done, struct sbx_error *e)
{
	store_autosession owner = { 0 };
	store_autoquery q = { NULL, NULL };
	sbx_autofree char *session_id = NULL;
	int64_t row;
	int r = store_tx_first(tx, SQL_SNAPSHOT_DROP, STORE_ARGS(store_text(id)), &q, e);

	*ret_done = r == 1;
	if (r <= 0)
		return r;
	row = store_col_int(&q, 0);
	session_id = store_col_dup(&q, 1);
	store_query_done(&q);
	r = session_id ? store_tx_session_get(tx, session_id, &owner, e)
		       : sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a snapshot");
	return r < 0 ? r : store_tx_change(tx, "snapshot", row, id, "gone", "", owner.user, e);
}

int store_tx_snapshot_totals(struct store_tx *tx, const char *session_id, int64_t *ret_n,
			     int64_t *ret_bytes, struct sbx_error *e)
{
	store_autoquery q = { NULL, NULL };
	int r = store_tx_first(tx, SQL_SNAPSHOT_TOTALS, STORE_ARGS(store_text(session_id)), &q, e);

	if (r < 0)
		return r;
	*ret_n = store_col_int(&q, 0);
	*ret_bytes = store_col_int(&q, 1);
	return 0;
}

int store_snapshot_known(struct store *s, const char *id, bool *ret, struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	int r = store_read(s, SQL_SNAPSHOT_KNOWN, STORE_ARGS(store_text(id)), &rd, &q, e);

	*ret = r == 1;
	return r < 0 ? r : 0;
}
