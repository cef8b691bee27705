/* SPDX-License-Identifier: Apache-2.0 */
/* What the files about sessions share with submit.c and with each other. */
#ifndef SBX_ORCHESTRATOR_SESSION_I_H
#define SBX_ORCHESTRATOR_SESSION_I_H

#include "orchestrator/orch_i.h"
#include "orchestrator/sessions.h"

enum {
	SESSION_LOCK_MS = 60000, /* whoever has the lock copies a workspace at most */
	/* For a thread that others' requests need, too: whoever looks whether it is alone has the
	 * lock for a moment, and for whoever copies nobody waits. */
	SESSION_LOCK_SHORT_MS = 100,
};

/* The session when p may use it: not foreign, not beyond its time, not being destroyed. */
int session_usable(struct orch *o, const struct orch_principal *p, const char *id,
		   struct store_session *ret, struct sbx_error *e);
/* The lock of the workspace's shape; a descriptor to close. SESSION_NOT_FOUND when the session has
 * gone meanwhile, SESSION_ACTIVE_RUNS when it is not to be had in time. */
int session_lock(struct orch *o, const char *id, bool exclusive, int wait_ms, struct sbx_error *e);
/* SESSION_ACTIVE_RUNS with the reference's details. */
int session_has_runs(const char *id, int64_t n, struct sbx_error *e);
/* What makes the creation of a session repeatable. */
struct session_key {
	const char *text; /* borrowed; NULL: nothing does */
	char print[65];	  /* of the document */
	bool taken;	  /* by an earlier session: */
	struct store_idem prior;
};
/* Fills *s (strings owned) and makes its directory with an empty workspace, then the row. entry is
 * the name that it must have in the mount; NULL: s->name if it may and can be one. key may be NULL;
 * when it turns out to be taken, nothing is made. */
int session_put(struct orch *o, struct store_session *s, const char *entry, bool keep_workspace,
		struct session_key *key, struct sbx_error *e);
/* Who is to own what is made in the workspace; -1: whoever makes it. */
uid_t session_owner(const struct store_session *s);
/* The text can be a name in the mount's sessions/ or snapshots/. */
bool session_entry_fits(const char *name);
int64_t session_expiry(struct orch *o); /* of a session that is made or used now; 0: never */

/* ---- snapshot.c ------------------------------------------------------------------------------ */

/* Could a snapshot have this name? NULL is fine. INVALID_ARGUMENT. */
int snapshot_name_check(const char *name, struct sbx_error *e);
/* The tree as a snapshot of the session, whose lock the caller has. previous: as snap_take. */
int snapshot_keep(struct orch *o, const char *session_id, const char *name, int tree,
		  const char *previous, struct store_snapshot *ret, struct sbx_error *e);
/* Removes the content that no snapshot holds any more. 1: not now, somebody takes a snapshot. */
int snapshot_collect(struct orch *o, struct sbx_error *e);
/* The files of the session's workspace are others now. */
int session_files_changed(struct orch *o, const struct store_session *s, struct sbx_error *e);

/* ---- session_sync.c -------------------------------------------------------------------------- */

/* Brings all clones of this boot to the disk, and says so in their rows. STORE_UNAVAILABLE: the
 * disk failed, and those that were not there yet end, the rest of them at the next call. Threads
 * wait for each other. */
int session_settle_all(struct orch *o, struct sbx_error *e);
/* May files of a session be removed? A clone that is on its way to the disk may be of them, and all
 * that is to be left. wait: until it has come there. */
int session_may_go(struct orch *o, bool wait, bool *ret, struct sbx_error *e);

/* ---- session_end.c --------------------------------------------------------------------------- */

/* Removes what a crash left: directories without a row, and what stands beside a workspace. */
void session_tidy(struct orch *o);

/* The thread that ends sessions: those beyond their time, and those that are being destroyed. */
int session_keeper_start(struct orch *o, struct sbx_error *e);
void session_keeper_stop(struct orch *o);
/* Something happened to runs, or a session is to be destroyed; cheap when nothing is ending. */
void session_keeper_poke(struct orch *o);

#endif
