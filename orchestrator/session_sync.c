/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A clone is answered when its workspace is copied; the disk follows. Until then its row carries
 * the boot in which it was made (unsynced_boot), and the keeper takes that away behind a sync. A
 * door that starts in another boot and still finds it cannot know what of the copy is on the disk:
 * the session goes as a whole, and nobody ever sees a part of it. What promises to last (a
 * snapshot, a restore, an upload, an fsync through the mount) brings that about first.
 *
 * A mark is taken away in two steps, since others see a commit before it is on the disk: the first
 * says STORE_SYNCED and is durable, the second needs not be. Who finds none can rely on that.
 */
#include "orchestrator/session_i.h"

#include <string.h>

#include "base/clock.h"
#include "base/crash.h"
#include "base/log.h"

enum { BATCH = 64 }; /* sessions that are looked at in one go */

static void clear(struct store_session *list, int n)
{
	for (int i = 0; i < n; i++)
		store_session_clear(&list[i]);
}

/* ---- what is lost ---------------------------------------------------------------------------- */

/* It ends now, whatever runs there are in it; unless another door has seen it on the disk. */
static int lose(struct orch *o, const struct store_session *s, const char *why, struct sbx_error *e)
{
	store_autotx struct store_tx *tx = NULL;
	store_autosession now = { 0 };
	int rc = store_begin(o->store, &tx, e);

	if (rc == 0)
		rc = store_tx_session_get(tx, s->id, &now, e);
	if (rc == -SBX_E_SESSION_NOT_FOUND) { /* so it has ended */
		sbx_error_clear(e);
		return 0;
	}
	if (rc < 0 || now.ending_us >= STORE_ENDING_LOST || !now.unsynced_boot ||
	    strcmp(now.unsynced_boot, s->unsynced_boot) != 0)
		return rc;
	rc = store_tx_session_times(tx, s->id, now.expires_us, STORE_ENDING_LOST, e);
	if (rc == 0)
		rc = store_commit(sbx_steal(&tx), true, e);
	if (rc < 0)
		return rc;
	atomic_store(&o->sessions_ending, true);
	sbx_log(SBX_LOG_ERROR,
		"a copied workspace is lost, its session ends session=%s cloned_from=%s "
		"reason=\"%s\"",
		s->id, s->cloned_from ? s->cloned_from : "-", why);
	return 0;
}

int orch_sessions_recover(struct orch *o, struct sbx_error *e)
{
	struct store_session list[BATCH];
	int n, rc;

	do { /* who is lost is not in the list any more */
		n = store_session_torn(o->store, sbx_boot_id(), list, BATCH, e);
		rc = n < 0 ? n : 0;
		for (int i = 0; i < n && rc == 0; i++)
			rc = lose(o, &list[i], "the machine stopped before it was on the disk", e);
		clear(list, n);
	} while (rc == 0 && n == BATCH);
	return rc;
}

/* ---- what is synced -------------------------------------------------------------------------- */

static int set_marks(struct orch *o, const struct store_session *list, int n, const char *mark,
		     bool durable, struct sbx_error *e)
{
	store_autotx struct store_tx *tx = NULL;
	int rc = store_begin(o->store, &tx, e);

	for (int i = 0; i < n && rc == 0; i++)
		rc = store_tx_session_mark(tx, list[i].id, mark, e);
	return rc < 0 ? rc : store_commit(sbx_steal(&tx), durable, e);
}

static int note_synced(struct orch *o, const struct store_session *list, int n, struct sbx_error *e)
{
	int rc = n ? set_marks(o, list, n, STORE_SYNCED, true, e) : 0;

	crash_point("door_clone_marked");
	return rc < 0 || !n ? rc : set_marks(o, list, n, NULL, false, e);
}

/* The kernel tells of a failure once, and not of which file: so all copies that were begun before
 * are lost, also those that are not finished yet. */
static int lose_failed(struct orch *o, struct store_session *list, int *n, struct sbx_error *e)
{
	int rc = 0, kept = 0;

	for (int i = 0; i < *n; i++) {
		struct store_session s = list[i];

		if (s.created_us > o->sync_failed_us ||
		    strcmp(s.unsynced_boot, STORE_SYNCED) == 0) {
			list[kept++] = s;
			continue;
		}
		if (rc == 0)
			rc = lose(o, &s, "it could not be written to the disk", e);
		store_session_clear(&s);
	}
	*n = kept;
	return rc;
}

/* The number of those that were looked at. */
static int settle_batch(struct orch *o, struct sbx_error *e)
{
	struct store_session list[BATCH];
	int all = store_session_unsynced(o->store, sbx_boot_id(), list, BATCH, e), n = all;
	int synced, rc;

	if (all <= 0)
		return all;
	synced = store_sync_files(o->store, e);
	crash_point("door_clone_synced");
	if (synced < 0)
		o->sync_failed_us = sbx_now_us();
	rc = lose_failed(o, list, &n, synced < 0 ? NULL : e);
	if (rc == 0 && synced == 0)
		rc = note_synced(o, list, n, e);
	clear(list, n);
	return synced < 0 ? synced : rc < 0 ? rc : all;
}

int session_settle_all(struct orch *o, struct sbx_error *e)
{
	int n;

	/* Of two that share the store's descriptor only one would hear of a failure; and the second
	 * mostly finds that all is done. */
	pthread_mutex_lock(&o->settle_lock);
	do {
		n = settle_batch(o, e);
	} while (n == BATCH);
	pthread_mutex_unlock(&o->settle_lock);
	return n < 0 ? n : 0;
}

int session_may_go(struct orch *o, bool wait, bool *ret, struct sbx_error *e)
{
	struct store_session one[1] = { 0 };
	int n = 0;

	if (wait)
		n = session_settle_all(o, e);
	else
		n = store_session_unsynced(o->store, sbx_boot_id(), one, 1, e);
	*ret = n == 0;
	store_session_clear(one);
	return n < 0 ? n : 0;
}

static int is_lost(const struct store_session *s, struct sbx_error *e)
{
	return s->ending_us >= STORE_ENDING_LOST && s->unsynced_boot && *s->unsynced_boot
		       ? sbx_fail(e, SBX_E_STORE_UNAVAILABLE,
				  "session %s ends, and its workspace is not on the disk", s->id)
		       : 0;
}

int orch_session_settle(struct orch *o, const char *id, struct sbx_error *e)
{
	store_autosession s = { 0 }, after = { 0 };
	int rc = store_session_get(o->store, id, &s, e);

	if (rc == -SBX_E_SESSION_NOT_FOUND) { /* then nothing in it has to last */
		sbx_error_clear(e);
		return 0;
	}
	if (rc < 0 || !s.unsynced_boot)
		return rc;
	rc = is_lost(&s, e);
	if (rc == 0)
		rc = session_settle_all(o, e);
	/* While it waited, others may have seen the disk fail. */
	if (rc == 0)
		rc = store_session_get(o->store, id, &after, e);
	if (rc == 0)
		rc = is_lost(&after, e);
	if (rc < 0)
		session_keeper_poke(o);
	return rc;
}
