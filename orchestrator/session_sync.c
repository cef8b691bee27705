/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A clone is answered when its workspace is copied; the disk follows. Until then its row carries
 * the boot in which it was made (unsynced_boot), and the keeper takes that away behind a sync. A
 * door that starts in another boot and still finds it cannot know what of the copy is on the disk:
 * the session goes as a whole, and nobody ever sees a part of it. What promises to last (a
 * snapshot, a restore, an upload, an fsync through the mount) brings that about first.
 */
#include "orchestrator/session_i.h"

#include "base/clock.h"
#include "base/crash.h"
#include "base/log.h"

enum { BATCH = 64 }; /* sessions that are looked at in one go */

static void clear(struct store_session *list, int n)
{
	for (int i = 0; i < n; i++)
		store_session_clear(&list[i]);
}

/* It ends now, whatever runs there are in it. */
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
	if (rc < 0 || now.ending_us >= STORE_ENDING_LOST)
		return rc;
	rc = store_tx_session_times(tx, s->id, now.expires_us, STORE_ENDING_LOST, e);
	if (rc == 0)
		rc = store_commit(sbx_steal(&tx), true, e);
	if (rc == 0)
		sbx_log(SBX_LOG_ERROR,
			"a copied workspace is lost, its session ends session=%s "
			"cloned_from=%s reason=\"%s\"",
			s->id, s->cloned_from ? s->cloned_from : "-", why);
	return rc;
}

static int lose_all(struct orch *o, const struct store_session *list, int n, const char *why,
		    struct sbx_error *e)
{
	int rc = 0;

	for (int i = 0; i < n && rc == 0; i++)
		rc = lose(o, &list[i], why, e);
	atomic_store(&o->sessions_ending, true);
	return rc;
}

int session_lose_torn(struct orch *o, struct sbx_error *e)
{
	struct store_session list[BATCH];
	int n, rc;

	do {
		n = store_session_torn(o->store, sbx_boot_id(), list, BATCH, e);
		rc = n < 0 ? n
			   : lose_all(o, list, n, "the machine stopped before it was on the disk",
				      e);
		clear(list, n);
	} while (rc == 0 && n == BATCH);
	return rc;
}

static int note_synced(struct orch *o, const struct store_session *list, int n, struct sbx_error *e)
{
	store_autotx struct store_tx *tx = NULL;
	int rc = store_begin(o->store, &tx, e);

	for (int i = 0; i < n && rc == 0; i++)
		rc = store_tx_session_synced(tx, list[i].id, e);
	return rc < 0 ? rc : store_commit(sbx_steal(&tx), true, e);
}

int orch_session_settle(struct orch *o, struct sbx_error *e)
{
	struct store_session list[BATCH];
	int n, rc;

	do {
		n = store_session_unsynced(o->store, sbx_boot_id(), list, BATCH, e);
		if (n <= 0)
			return n;
		rc = store_sessions_sync(o->store, e);
		crash_point("door_clone_synced");
		/* The kernel says it once, and of no file in particular: another try would only
		 * seem to succeed. */
		if (rc < 0)
			(void)lose_all(o, list, n, "it could not be written to the disk", NULL);
		else
			rc = note_synced(o, list, n, e);
		clear(list, n);
	} while (rc == 0 && n == BATCH);
	return rc;
}
