/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Housekeeping: artifacts and keys beyond their time, directories of runs that no row knows, old
 * changes and audit rows. Every step is bounded, so that a round never holds the dispatcher long;
 * one door at a time does it (a lock file), since the work is the state's and not the door's.
 */
#include "orchestrator/orch_i.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/clock.h"
#include "base/crash.h"
#include "base/fs.h"
#include "base/log.h"

enum {
	JANITOR_BATCH = 256, /* rows or runs looked after in one round */
	JANITOR_AUDIT_DAYS = 90,
};

static int remove_artifacts(struct orch *o, const char *id, struct sbx_error *e)
{
	sbx_autoclose int dir = store_run_dir(o->store, id, false, NULL);
	store_autotx struct store_tx *tx = NULL;
	int rc = store_begin(o->store, &tx, e);

	/* The rows first: a crash in between leaves files that nobody lists, and the next start
	 * removes them with their directory; the other order would list what is gone. */
	if (rc == 0)
		rc = store_tx_artifacts_drop(tx, id, e);
	if (rc == 0)
		rc = store_commit(sbx_steal(&tx), true, e);
	crash_point("door_janitor_dropped");
	if (rc == 0 && dir >= 0)
		(void)sbx_remove_tree(dir, "artifacts");
	return rc;
}

static int expire_artifacts(struct orch *o, struct sbx_error *e)
{
	int64_t hours = orch_settings(o)->artifact_ttl_hours;
	char *ids[JANITOR_BATCH] = { NULL };
	int n = store_artifacts_due(o->store, sbx_now_us() - hours * 3600 * SBX_SECOND_US, ids,
				    SBX_COUNT(ids), e);
	int rc = n < 0 ? n : 0;

	for (int i = 0; i < n; i++) {
		if (rc == 0)
			rc = remove_artifacts(o, ids[i], e);
		free(ids[i]);
	}
	return rc;
}

static int prune(struct orch *o, struct sbx_error *e)
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
	crash_point("door_janitor_pruned");
	return rc < 0 ? rc : store_commit(sbx_steal(&tx), false, e);
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

int64_t janitor_round(struct orch *o, bool first)
{
	const struct orch_settings *st = orch_settings(o);
	int64_t interval = st->artifact_janitor_interval_sec * SBX_SECOND_US;
	sbx_autoclose int lock = store_lock(o->store, "janitor.lock");
	sbx_autoerror e = SBX_ERROR_INIT;
	int rc = 0;

	if (interval < SBX_SECOND_US)
		interval = SBX_SECOND_US;
	if (lock < 0)
		return interval; /* the other door is at it */
	if (st->artifact_janitor_background_enabled)
		rc = expire_artifacts(o, &e);
	if (rc == 0)
		rc = prune(o, &e);
	if (first)
		(void)store_run_dirs(o->store, drop_orphan, o, NULL);
	if (rc < 0)
		sbx_log(SBX_LOG_WARNING, "housekeeping failed code=%s error=\"%s\"",
			sbx_code_name(e.code), e.message);
	return interval;
}
