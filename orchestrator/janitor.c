/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Housekeeping: artifacts and keys beyond their time, directories of runs that no row knows, files
 * of dead runners, old changes and audit rows. Every step is bounded, so that a round never holds
 * the dispatcher long; one door at a time does it (a lock file), since the work is the state's and
 * not the door's.
 */
#include "orchestrator/session_i.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/crash.h"
#include "base/fs.h"
#include "base/log.h"

enum {
	JANITOR_BATCH = 256, /* rows or runs looked after in one round */
	JANITOR_AUDIT_DAYS = 90,
};

int janitor_drop_artifacts(struct orch *o, const char *id, struct sbx_error *e)
{
	sbx_autoclose int dir = store_run_dir(o->store, id, false, NULL);
	store_autotx struct store_tx *tx = NULL;
	store_autorun r = { 0 };
	int rc;

	/* The files first: after a crash in between the rows are still due, and the next round goes
	 * on; the other order would leave files that nothing ever looks at again. */
	if (dir >= 0)
		(void)sbx_remove_tree(dir, "artifacts");
	crash_point("door_janitor_removed");
	rc = store_begin(o->store, &tx, e);
	if (rc == 0)
		rc = store_tx_run_get(tx, id, &r, e);
	if (rc == 0)
		rc = store_tx_artifacts_drop(tx, id, e);
	if (rc == 0)
		rc = store_tx_counter_add(tx, ORCH_COUNT_REMOVED_RUNS, 1, e);
	if (rc == 0)
		rc = store_tx_counter_add(tx, ORCH_COUNT_REMOVED_FILES, r.artifact_count, e);
	if (rc == 0)
		rc = store_tx_counter_add(tx, ORCH_COUNT_REMOVED_BYTES, r.artifact_bytes, e);
	return rc < 0 ? rc : store_commit(sbx_steal(&tx), true, e);
}

static int expire_artifacts(struct orch *o, bool *more, struct sbx_error *e)
{
	int64_t hours = orch_settings(o)->artifact_ttl_hours;
	char *ids[JANITOR_BATCH] = { NULL };
	int n = store_artifacts_due(o->store, sbx_now_us() - hours * 3600 * SBX_SECOND_US, ids,
				    SBX_COUNT(ids), e);
	int rc = n < 0 ? n : 0;

	*more |= n == JANITOR_BATCH;

	for (int i = 0; i < n; i++) {
		if (rc == 0)
			rc = janitor_drop_artifacts(o, ids[i], e);
		free(ids[i]);
	}
	return rc;
}

/* The rows first: readers then see all of it or nothing, and a directory without a row is swept up
 * at the next start. */
static int retire_run(struct orch *o, const char *id, struct sbx_error *e)
{
	store_autotx struct store_tx *tx = NULL;
	bool done = false;
	int rc = store_begin(o->store, &tx, e);

	if (rc == 0)
		rc = store_tx_run_remove(tx, id, &done, e);
	if (rc == 0)
		rc = store_commit(sbx_steal(&tx), true, e);
	crash_point("door_run_retired");
	return rc < 0 || !done ? rc : store_run_dir_remove(o->store, id, e);
}

static int retire_runs(struct orch *o, bool *more, struct sbx_error *e)
{
	int64_t hours = orch_settings(o)->run_retention_hours;
	char *ids[JANITOR_BATCH] = { NULL };
	int n = 0, rc = 0;

	if (hours > 0)
		n = store_runs_old(o->store, sbx_now_us() - hours * 3600 * SBX_SECOND_US,
				   &o->retired_row, ids, SBX_COUNT(ids), e);
	*more |= hours > 0 && o->retired_row;
	rc = n < 0 ? n : 0;
	for (int i = 0; i < n; i++) {
		if (rc == 0)
			rc = retire_run(o, ids[i], e);
		free(ids[i]);
	}
	return rc;
}

/* looked: artifacts were looked for in this round. */
static int prune(struct orch *o, bool looked, bool *more, struct sbx_error *e)
{
	const struct orch_settings *st = orch_settings(o);
	store_autotx struct store_tx *tx = NULL;
	int64_t now = sbx_now_us(), gone = 0;
	int rc = store_begin(o->store, &tx, e);

	if (rc == 0)
		rc = store_tx_idem_prune(tx, now - st->idempotency_ttl_sec * SBX_SECOND_US,
					 JANITOR_BATCH, &gone, e);
	if (rc == 0)
		rc = store_tx_changes_prune(tx, st->events_keep, e);
	if (rc == 0)
		rc = store_tx_audit_prune(tx, now - JANITOR_AUDIT_DAYS * 86400 * SBX_SECOND_US,
					  JANITOR_BATCH, e);
	if (rc == 0)
		rc = store_tx_counter_add(tx, ORCH_COUNT_CYCLES, 1, e);
	if (rc == 0 && looked)
		rc = store_tx_counter_add(tx, ORCH_COUNT_JANITOR, 1, e);
	*more |= gone == JANITOR_BATCH;
	crash_point("door_janitor_pruned");
	return rc < 0 ? rc : store_commit(sbx_steal(&tx), false, e);
}

/* Who died between a commit and its announcement told nobody. */
static int tell_again(struct orch *o, struct sbx_error *e)
{
	const struct store_ticket news = { .touched = true };
	int64_t last = 0;
	int rc = store_changes_last(o->store, &last, e);

	if (rc == 0 && last > o->told_seq) {
		rc = store_settle(o->store, news, e);
		o->told_seq = last;
	}
	return rc;
}

/* A directory without a row is what a crash between the two left behind. */
static bool drop_orphan(void *ctx, const char *id)
{
	struct orch *o = ctx;
	struct store_run_key key;

	if (store_run_key(o->store, id, NULL, &key, NULL) == -SBX_E_RUN_NOT_FOUND) {
		sbx_log(SBX_LOG_INFO, "removing a run directory without a row run=%s", id);
		(void)store_run_dir_remove(o->store, id, NULL);
	}
	return !atomic_load(&o->stop);
}

/* ---- runners that are gone ------------------------------------------------------------------- */

/* The mark of a dead runner is needed until the run that it had claimed is taken over. */
struct claims {
	struct orch *o;
	const char *owner;
	int64_t row; /* looked at last */
	bool found;
};

static bool is_claim(void *ctx, const struct store_run *r)
{
	struct claims *c = ctx;

	c->row = r->row;
	c->found = r->claim_owner && strcmp(r->claim_owner, c->owner) == 0;
	return !c->found;
}

/* Looks at every run of the phase; a failure is as good as a claim. */
static bool has_claim(struct claims *c, enum store_phase phase)
{
	struct store_run_filter f = { .phase = phase, .limit = 1000 };

	do {
		f.before_row = c->row;
		c->row = 0;
		if (store_run_list(c->o->store, &f, is_claim, c, NULL) < 0)
			return true;
	} while (!c->found && c->row);
	return c->found;
}

static bool drop_runner(void *ctx, const char *owner)
{
	struct claims c = { .o = ctx, .owner = owner };

	if (!orch_owner_alive(owner) && !has_claim(&c, STORE_STARTING) &&
	    !has_claim(&c, STORE_RUNNING))
		store_runner_remove(c.o->store, owner);
	return true;
}

void janitor_runners(struct orch *o)
{
	(void)store_runners(o->store, drop_runner, o, NULL);
}

/* In its own time. *interval: until the next round; it may be due before. */
static int reconcile(struct orch *o, int64_t *interval, struct sbx_error *e)
{
	int64_t every = orch_settings(o)->artifact_reconcile_interval_sec * SBX_SECOND_US;
	int64_t due = o->reconciled_us ? o->reconciled_us + every - sbx_boot_us() : 0;
	int rc = 0;

	if (due <= 0) {
		rc = janitor_reconcile(o, e);
		o->reconciled_us = sbx_boot_us();
		due = every;
	}
	if (*interval > due)
		*interval = due;
	return rc;
}

/* One round. Returns microseconds until the next. *first: none was done yet, by this door. */
static int64_t housekeep(struct orch *o, bool *first)
{
	const struct orch_settings *st = orch_settings(o);
	int64_t interval = st->artifact_janitor_interval_sec * SBX_SECOND_US;
	sbx_autoclose int lock = store_lock(o->store, "janitor.lock");
	sbx_autoerror e = SBX_ERROR_INIT;
	bool more = false, look = st->artifact_janitor_background_enabled || *first;
	int rc = 0;

	if (interval < SBX_SECOND_US)
		interval = SBX_SECOND_US;
	if (lock < 0)
		return interval; /* the other door is at it */
	if (look)
		rc = expire_artifacts(o, &more, &e);
	if (rc == 0)
		rc = retire_runs(o, &more, &e);
	if (rc == 0)
		rc = prune(o, look, &more, &e);
	if (rc == 0)
		rc = reconcile(o, &interval, &e);
	janitor_runners(o);
	if (*first)
		(void)store_run_dirs(o->store, drop_orphan, o, NULL);
	if (*first)
		session_tidy(o);
	*first = false;
	session_keeper_poke(o); /* what another door left in the middle */
	if (rc == 0)
		rc = tell_again(o, &e);
	if (rc < 0)
		sbx_log(SBX_LOG_WARNING, "housekeeping failed code=%s error=\"%s\"",
			sbx_code_name(e.code), e.message);
	else if (more) /* a full batch: there is more where that came from */
		interval = SBX_SECOND_US;
	return interval;
}

void janitor_wake(struct orch *o)
{
	pthread_mutex_lock(&o->janitor_lock);
	pthread_cond_signal(&o->janitor_wake);
	pthread_mutex_unlock(&o->janitor_lock);
}

void *janitor_thread(void *arg)
{
	struct orch *o = arg;
	bool first = true;

	while (!atomic_load(&o->stop)) {
		int64_t wait = housekeep(o, &first);
		struct timespec at;

		(void)clock_gettime(CLOCK_MONOTONIC, &at);
		at.tv_sec += wait / SBX_SECOND_US;
		pthread_mutex_lock(&o->janitor_lock);
		if (!atomic_load(&o->stop))
			(void)pthread_cond_timedwait(&o->janitor_wake, &o->janitor_lock, &at);
		pthread_mutex_unlock(&o->janitor_lock);
	}
	return NULL;
}
