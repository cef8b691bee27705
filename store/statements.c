/* SPDX-License-Identifier: Apache-2.0 */
/* The table of statements, and running one: prepare at first use, bind, step, reset. */
#include <string.h>

#include "store/store_i.h"

const struct sql_text store_statements[SQL__COUNT] = {
#define X(name, plan, text) [SQL_##name] = { #name, plan, text },
	STORE_STATEMENTS(X)
#undef X
};

struct sql_value store_text(const char *s)
{
	return (struct sql_value){ .kind = SQL_TEXT, .p = s, .len = s ? strlen(s) : 0 };
}

struct sql_value store_bytes(const void *p, size_t len)
{
	return (struct sql_value){ .kind = SQL_BYTES, .p = p, .len = len };
}

struct sql_value store_int(int64_t n)
{
	return (struct sql_value){ .kind = SQL_INT, .n = n };
}

void store_query_done(struct store_query *q)
{
	if (q->st)
		q->c->sql->reset(q->st);
	q->st = NULL;
}

int store_start(struct store_conn *c, enum sql_id id, const struct sql_value *args, size_t n,
		struct store_query *q, struct sbx_error *e)
{
	int r;

	store_query_done(q);
	if (!c->statements[id]) {
		r = c->sql->prepare(c->db, store_statements[id].text, &c->statements[id], e);
		if (r < 0)
			return sbx_error_wrap(e, r, "%s", store_statements[id].name);
	}
	q->c = c;
	q->st = c->statements[id];
	for (size_t i = 0; i < n; i++) {
		r = c->sql->bind(q->st, (int)i + 1, &args[i], e);
		if (r < 0)
			return r;
	}
	return 0;
}

int store_next(struct store_query *q, struct sbx_error *e)
{
	return q->c->sql->step(q->st, e);
}

int store_first(struct store_conn *c, enum sql_id id, const struct sql_value *args, size_t n,
		struct store_query *q, struct sbx_error *e)
{
	int r = store_start(c, id, args, n, q, e);

	return r < 0 ? r : store_next(q, e);
}

int64_t store_col_int(struct store_query *q, int col)
{
	return q->c->sql->column_int(q->st, col);
}

const char *store_col_text(struct store_query *q, int col)
{
	return q->c->sql->column_text(q->st, col);
}

char *store_col_dup(struct store_query *q, int col)
{
	const char *s = store_col_text(q, col);

	return s ? strdup(s) : NULL;
}

int store_tx_first(struct store_tx *tx, enum sql_id id, const struct sql_value *args, size_t n,
		   struct store_query *q, struct sbx_error *e)
{
	int r = store_first(tx->s->writer, id, args, n, q, e);

	if (r < 0)
		tx->failed = true;
	return r;
}

int store_tx_run(struct store_tx *tx, enum sql_id id, const struct sql_value *args, size_t n,
		 struct sbx_error *e)
{
	store_autoquery q = { NULL, NULL };
	int r = store_tx_first(tx, id, args, n, &q, e);

	return r < 0 ? r : 0;
}

int store_tx_number(struct store_tx *tx, enum sql_id id, const struct sql_value *args, size_t n,
		    int64_t *ret, struct sbx_error *e)
{
	store_autoquery q = { NULL, NULL };
	int r = store_tx_first(tx, id, args, n, &q, e);

	if (r < 0)
		return r;
	*ret = r ? store_col_int(&q, 0) : 0;
	return 0;
}
