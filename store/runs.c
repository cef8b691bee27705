/* SPDX-License-Identifier: Apache-2.0 */
/* Writing rows of runs: insert, the compare-and-set of phases, leases, cancel. Reading: reads.c. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/id.h"
#include "store/store_i.h"

static const char *const phase_names[STORE_PHASE__COUNT] = {
	[STORE_QUEUED] = "queued",	 [STORE_STARTING] = "starting", [STORE_RUNNING] = "running",
	[STORE_COMPLETED] = "completed", [STORE_FAILED] = "failed",	[STORE_KILLED] = "killed",
	[STORE_TIMED_OUT] = "timed_out",
};

const char *store_phase_name(enum store_phase p)
{
	return p > 0 && p < STORE_PHASE__COUNT ? phase_names[p] : "unknown";
}

enum store_phase store_phase_find(const char *name)
{
	for (int p = STORE_QUEUED; p < STORE_PHASE__COUNT; p++)
		if (strcmp(phase_names[p], name) == 0)
			return (enum store_phase)p;
	return (enum store_phase)0;
}

/* ---- a row and its struct: one table for both ways ------------------------------------------- */

enum column_type { COL_TEXT = 1, COL_INT64, COL_INT, COL_BOOL, COL_PHASE, COL_CANCEL };

static const struct {
	enum column_type type;
	size_t at;
} columns[] = {
#define X(type, member, column) { COL_##type, offsetof(struct store_run, member) },
	STORE_RUN_COLUMNS(X)
#undef X
};
enum { COLUMNS = SBX_COUNT(columns) };

/* Every member is read and written through its own type. */
static void *member(struct store_run *r, size_t i)
{
	return (char *)r + columns[i].at;
}

static int64_t get_number(struct store_run *r, size_t i)
{
	void *p = member(r, i);

	switch (columns[i].type) {
	case COL_INT64:
		return *(int64_t *)p;
	case COL_INT:
		return *(int *)p;
	case COL_BOOL:
		return *(bool *)p;
	case COL_PHASE:
		return *(enum store_phase *)p;
	default:
		return *(enum store_cancel *)p;
	}
}

static void set_number(struct store_run *r, size_t i, int64_t n)
{
	void *p = member(r, i);

	switch (columns[i].type) {
	case COL_INT64:
		*(int64_t *)p = n;
		break;
	case COL_INT:
		*(int *)p = (int)n;
		break;
	case COL_BOOL:
		*(bool *)p = n != 0;
		break;
	case COL_PHASE:
		*(enum store_phase *)p = (enum store_phase)n;
		break;
	default:
		*(enum store_cancel *)p = (enum store_cancel)n;
		break;
	}
}

void store_run_clear(struct store_run *r)
{
	if (!r)
		return;
	for (size_t i = 0; i < COLUMNS; i++)
		if (columns[i].type == COL_TEXT)
			free(*(char **)member(r, i));
	memset(r, 0, sizeof(*r));
}

int store_run_load(struct store_query *q, struct store_run *ret, struct sbx_error *e)
{
	struct store_run r = { .row = store_col_int(q, 0) };

	for (size_t i = 0; i < COLUMNS; i++) {
		int col = (int)i + 1;
		const char *text;

		if (columns[i].type != COL_TEXT) {
			set_number(&r, i, store_col_int(q, col));
			continue;
		}
		text = store_col_text(q, col);
		if (!text)
			continue;
		*(char **)member(&r, i) = strdup(text);
		if (!*(char **)member(&r, i)) {
			store_run_clear(&r);
			return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a row of runs");
		}
	}
	*ret = r;
	return 0;
}

/* ---- insert ---------------------------------------------------------------------------------- */

static const char *insert_problem(const struct store_run *r)
{
	if (!r->id || !sbx_id_valid(r->id))
		return "id is not a UUID";
	if (!r->user || !r->user[0])
		return "user is missing";
	if (!r->door)
		return "door is missing";
	if (r->phase >= STORE_PHASE__COUNT || store_phase_terminal(r->phase))
		return "phase is not one that a new run can have";
	if (r->finished_us)
		return "finished_us is set";
	if (r->claim_owner && !r->claim_boot)
		return "claim_owner is set without claim_boot";
	return NULL;
}

static int insert_row(struct store_tx *tx, struct store_run *r, struct sbx_error *e)
{
	struct sql_value args[COLUMNS + 1];

	/* A run whose time in the queue does not end has no boot to compare, and no row in
	 * the index of those that do. */
	args[0] = store_text(r->queue_expires_us ? sbx_boot_id() : NULL);
	for (size_t i = 0; i < COLUMNS; i++)
		args[i + 1] = columns[i].type == COL_TEXT ? store_text(*(char **)member(r, i))
							  : store_int(get_number(r, i));
	return store_tx_number(tx, SQL_RUN_INSERT, args, SBX_COUNT(args), &r->row, e);
}

int store_tx_run_insert(struct store_tx *tx, struct store_run *r, const char *spec,
			struct sbx_error *e)
{
	const char *problem = insert_problem(r);
	int rc;

	if (problem)
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "cannot insert a run: its %s", problem);
	if (r->phase == 0)
		r->phase = STORE_QUEUED;
	r->changed_us = sbx_now_us();
	if (r->created_us == 0)
		r->created_us = r->changed_us;
	rc = insert_row(tx, r, e);
	if (rc == 0)
		rc = store_tx_run(tx, SQL_SPEC_INSERT,
				  STORE_ARGS(store_int(r->row), store_text(spec)), e);
	if (rc == 0)
		rc = store_tx_run(
			tx, SQL_PHASE_ADD,
			STORE_ARGS(store_int(r->phase), store_text(r->runtime ? r->runtime : "")),
			e);
	if (rc == 0)
		rc = store_labels_add(tx, r->row, r->user, r->labels, e);
	if (rc == 0)
		rc = store_usage_add(tx, r->user, 1, r->log_bytes, 0, e);
	if (rc == 0)
		rc = store_tx_run_changed(tx, r->row, r->id, "new", r->phase, r->user, e);
	return rc;
}

int store_tx_run_get(struct store_tx *tx, const char *id, struct store_run *ret,
		     struct sbx_error *e)
{
	store_autoquery q = { NULL, NULL };
	int r = store_tx_first(tx, SQL_RUN_GET, STORE_ARGS(store_text(id)), &q, e);

	if (r < 0)
		return r;
	if (r == 0)
		return sbx_fail(e, SBX_E_RUN_NOT_FOUND, "no run '%s'", id);
	return store_run_load(&q, ret, e);
}

/* ---- the compare-and-set --------------------------------------------------------------------- */

/* What the row is before the transition. */
struct before {
	int64_t row, generation, log_bytes, started_us;
	enum store_phase phase;
	char *owner, *runtime;
};

static void before_clear(struct before *b)
{
	free(b->owner);
	free(b->runtime);
}

static int read_before(struct store_tx *tx, const char *id, struct before *b, bool *ret_found,
		       struct sbx_error *e)
{
	store_autoquery q = { NULL, NULL };
	int r = store_tx_first(tx, SQL_CAS_READ, STORE_ARGS(store_text(id)), &q, e);

	if (r < 0)
		return r;
	*ret_found = r == 1;
	if (r == 0)
		return 0;
	b->row = store_col_int(&q, 0);
	b->owner = store_col_dup(&q, 1);
	b->phase = (enum store_phase)store_col_int(&q, 2);
	b->generation = store_col_int(&q, 3);
	b->log_bytes = store_col_int(&q, 4);
	b->runtime = store_col_dup(&q, 5);
	b->started_us = store_col_int(&q, 6);
	return b->owner && b->runtime ? 0
				      : sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a row of runs");
}

static const char *transition_problem(const struct store_transition *t)
{
	if (t->to < STORE_QUEUED || t->to >= STORE_PHASE__COUNT)
		return "it leads to no phase";
	if (t->requeue && t->to != STORE_QUEUED)
		return "requeue leads to queued only";
	if (t->claim_owner && (t->requeue || store_phase_terminal(t->to)))
		return "a claim of a run that is not to be executed";
	if (t->claim_owner && !t->claim_boot)
		return "claim_owner is set without claim_boot";
	return NULL;
}

static int write_after(struct store_tx *tx, const struct store_transition *t,
		       const struct before *b, bool *ret_done, struct sbx_error *e)
{
	bool end = store_phase_terminal(t->to);
	int64_t now = sbx_now_us();
	int64_t started = t->requeue ? 0 : t->started_us ? t->started_us : -1;
	int64_t finished = !end ? -1 : t->finished_us > 0 ? t->finished_us : now;
	store_autoquery q = { NULL, NULL };
	int r;

	r = store_tx_first(
		tx, SQL_CAS_WRITE,
		STORE_ARGS(store_int(t->to), store_text(t->reason), store_text(t->message),
			   store_text(t->usage), store_text(t->runtime_version),
			   store_text(t->image_digest), store_int(started), store_int(finished),
			   store_int(t->has_exit_code), store_int(t->exit_code),
			   store_int(t->log_bytes), store_int(t->artifact_bytes),
			   store_int(t->artifact_count), store_int(t->claim_owner ? 1 : 0),
			   /* the claim is written when it is set and when it is cleared */
			   store_int(t->claim_owner || t->requeue || end),
			   store_text(t->claim_owner),
			   store_text(t->claim_owner ? t->claim_boot : NULL),
			   store_int(t->claim_owner ? t->claim_expires_us : 0),
			   store_int(t->requeue ? t->queue_expires_us : 0),
			   store_text(sbx_boot_id()), store_int(now), store_int(b->row),
			   store_int(b->phase), store_int(b->generation)),
		&q, e);
	*ret_done = r == 1;
	return r < 0 ? r : 0;
}

/* What is counted beside the row. */
static int count_after(struct store_tx *tx, const struct store_transition *t,
		       const struct before *b, struct sbx_error *e)
{
	int64_t finished = t->finished_us > 0 ? t->finished_us : sbx_now_us();
	int r = 0;

	if (b->phase != t->to)
		r = store_tx_run(
			tx, SQL_PHASE_MOVE,
			STORE_ARGS(store_int(t->to), store_text(b->runtime), store_int(b->phase)),
			e);
	if (r == 0 && t->log_bytes > 0 && t->log_bytes != b->log_bytes)
		r = store_usage_add(tx, b->owner, 0, t->log_bytes - b->log_bytes, 0, e);
	if (r == 0 && store_phase_terminal(t->to))
		r = store_end_add(tx, b->runtime, t->to, t->reason,
				  t->started_us ? t->started_us : b->started_us, finished, e);
	return r;
}

int store_tx_run_transition(struct store_tx *tx, const struct store_transition *t, bool *ret_done,
			    struct sbx_error *e)
{
	__attribute__((cleanup(before_clear))) struct before b = { .owner = NULL };
	const char *problem = transition_problem(t);
	bool found = false;
	int r;

	*ret_done = false;
	if (problem)
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "bad transition of a run: %s", problem);
	r = read_before(tx, t->id, &b, &found, e);
	if (r < 0 || !found)
		return r;
	/* A finished run never changes again, whatever the caller's mask says. */
	if (!(STORE_MASK(b.phase) & t->from & STORE_MASK_LIVE))
		return 0;
	if (t->generation >= 0 && t->generation != b.generation)
		return 0;
	r = write_after(tx, t, &b, ret_done, e);
	if (r < 0 || !*ret_done)
		return r;
	r = count_after(tx, t, &b, e);
	if (r == 0)
		r = store_tx_run_changed(tx, b.row, t->id, "status", t->to, b.owner, e);
	return r;
}

int store_tx_run_renew(struct store_tx *tx, const char *id, int64_t generation, int64_t expires_us,
		       struct sbx_error *e)
{
	store_autoquery q = { NULL, NULL };
	int r = store_tx_first(
		tx, SQL_RENEW,
		STORE_ARGS(store_int(expires_us), store_text(id), store_int(generation)), &q, e);

	if (r < 0)
		return r;
	if (r == 0)
		return sbx_fail(e, SBX_E_CLAIM_LOST,
				"generation %lld of the claim on run '%s' is over",
				(long long)generation, id);
	return 0;
}

int store_tx_run_cancel(struct store_tx *tx, const char *id, enum store_cancel how, bool *ret_done,
			struct sbx_error *e)
{
	__attribute__((cleanup(before_clear))) struct before b = { .owner = NULL };
	store_autoquery q = { NULL, NULL };
	bool found = false;
	int r;

	*ret_done = false;
	if (how != STORE_CANCEL_TERM && how != STORE_CANCEL_KILL)
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "a cancel is TERM or KILL");
	r = read_before(tx, id, &b, &found, e);
	if (r < 0)
		return r;
	if (!found)
		return sbx_fail(e, SBX_E_RUN_NOT_FOUND, "no run '%s'", id);
	if (store_phase_terminal(b.phase))
		return 0;
	*ret_done = true;
	r = store_tx_first(tx, SQL_CANCEL,
			   STORE_ARGS(store_int(how), store_int(sbx_now_us()), store_text(id)), &q,
			   e);
	/* No row: the same or more was asked for before, and there is nothing new to tell. */
	if (r <= 0)
		return r;
	return store_tx_run_changed(tx, b.row, id, "cancel", b.phase, b.owner, e);
}

int store_tx_set_reserved(struct store_tx *tx, const char *id, int64_t memory_mb, int64_t cpu_milli,
			  struct sbx_error *e)
{
	store_autoquery q = { NULL, NULL };
	int r = store_tx_first(
		tx, SQL_SET_RESERVED,
		STORE_ARGS(store_int(memory_mb), store_int(cpu_milli), store_text(id)), &q, e);

	if (r < 0)
		return r;
	return r ? 0 : sbx_fail(e, SBX_E_RUN_NOT_FOUND, "no run '%s'", id);
}
