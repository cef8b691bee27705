/* SPDX-License-Identifier: Apache-2.0 */
/* Idempotency keys, and the small key-value state of the orchestrator. */
#include <stdlib.h>
#include <string.h>

#include "store/store_i.h"

int store_tx_meta_get(struct store_tx *tx, const char *key, char **ret, struct sbx_error *e)
{
	store_autoquery q = { NULL, NULL };
	int r;

	*ret = NULL;
	r = store_tx_first(tx, SQL_META_GET, STORE_ARGS(store_text(key)), &q, e);
	if (r <= 0)
		return r;
	*ret = store_col_dup(&q, 0);
	return *ret ? 0 : sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a value");
}

int store_meta_get(struct store *s, const char *key, char **ret, struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	int r = store_reader_get(s, &rd, e);

	*ret = NULL;
	if (r == 0)
		r = store_first(rd.c, SQL_META_GET, STORE_ARGS(store_text(key)), &q, e);
	if (r <= 0)
		return r;
	*ret = store_col_dup(&q, 0);
	return *ret ? 0 : sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a value");
}

int store_tx_meta_set(struct store_tx *tx, const char *key, const char *value, struct sbx_error *e)
{
	return store_tx_run(tx, SQL_META_SET, STORE_ARGS(store_text(key), store_text(value)), e);
}

void store_idem_clear(struct store_idem *i)
{
	if (!i)
		return;
	free(i->fingerprint);
	free(i->object_id);
	memset(i, 0, sizeof(*i));
}

static int load(struct store_query *q, struct store_idem *ret, struct sbx_error *e)
{
	struct store_idem i = {
		.fingerprint = store_col_dup(q, 0),
		.object_id = store_col_dup(q, 1),
		.created_us = store_col_int(q, 2),
	};

	if (!i.fingerprint || !i.object_id) {
		store_idem_clear(&i);
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for an idempotency key");
	}
	*ret = i;
	return 0;
}

int store_tx_idem_put(struct store_tx *tx, const char *endpoint, const char *user, const char *key,
		      const char *fingerprint, const char *object_id, int64_t now_us,
		      int64_t not_before_us, bool *ret_fresh, struct store_idem *ret_prior,
		      struct sbx_error *e)
{
	store_autoquery q = { NULL, NULL };
	int r;

	/* One statement: inserts, or takes over a row that is too old, or gives no row. */
	r = store_tx_first(tx, SQL_IDEM_PUT,
			   STORE_ARGS(store_text(endpoint), store_text(user), store_text(key),
				      store_text(fingerprint), store_text(object_id),
				      store_int(now_us), store_int(not_before_us)),
			   &q, e);
	if (r < 0)
		return r;
	*ret_fresh = r == 1;
	if (r == 1)
		return 0;
	r = store_tx_first(tx, SQL_IDEM_GET,
			   STORE_ARGS(store_text(endpoint), store_text(user), store_text(key),
				      store_int(not_before_us)),
			   &q, e);
	if (r < 0)
		return r;
	if (r == 0)
		return sbx_fail(e, SBX_E_INTERNAL, "an idempotency key was there and is not");
	return load(&q, ret_prior, e);
}

int store_idem_get(struct store *s, const char *endpoint, const char *user, const char *key,
		   int64_t not_before_us, bool *ret_found, struct store_idem *ret,
		   struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	int r = store_reader_get(s, &rd, e);

	*ret_found = false;
	if (r == 0)
		r = store_first(rd.c, SQL_IDEM_GET,
				STORE_ARGS(store_text(endpoint), store_text(user), store_text(key),
					   store_int(not_before_us)),
				&q, e);
	if (r <= 0)
		return r;
	*ret_found = true;
	return load(&q, ret, e);
}

int store_tx_idem_prune(struct store_tx *tx, int64_t not_before_us, int64_t max, int64_t *ret_gone,
			struct sbx_error *e)
{
	store_autoquery q = { NULL, NULL };
	int r;

	*ret_gone = 0;
	r = store_tx_first(tx, SQL_IDEM_PRUNE, STORE_ARGS(store_int(not_before_us), store_int(max)),
			   &q, e);
	while (r == 1) {
		++*ret_gone;
		r = store_next(&q, e);
	}
	if (r < 0)
		tx->failed = true;
	return r;
}
