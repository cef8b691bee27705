/* SPDX-License-Identifier: Apache-2.0 */
/* What the row of a run says of its log: when the command began, and how it ended. */
#include <string.h>

#include "store/log_i.h"
#include "store/store_i.h"

static void copy(char to[LOG_TEXT], const char *from)
{
	if (from)
		memcpy(to, from, strnlen(from, LOG_TEXT - 1));
}

int log_facts_get(struct store *s, const char *run_id, struct log_facts *ret, struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	enum store_phase phase;
	int r = store_reader_get(s, &rd, e);

	if (r == 0)
		r = store_first(rd.c, SQL_LOG_FACTS, STORE_ARGS(store_text(run_id)), &q, e);
	if (r < 0)
		return r;
	if (r == 0)
		return sbx_fail(e, SBX_E_RUN_NOT_FOUND, "no such run");
	memset(ret, 0, sizeof(*ret));
	phase = (enum store_phase)store_col_int(&q, 0);
	ret->ended = store_phase_terminal(phase);
	/* While it is starting the row has the time of the claim there. */
	if (phase == STORE_RUNNING || ret->ended)
		ret->started_us = store_col_int(&q, 1);
	ret->finished_us = store_col_int(&q, 2);
	ret->has_exit_code = store_col_int(&q, 3) != 0;
	ret->exit_code = (int)store_col_int(&q, 4);
	copy(ret->runtime, store_col_text(&q, 5));
	copy(ret->reason, store_col_text(&q, 6));
	return 0;
}
