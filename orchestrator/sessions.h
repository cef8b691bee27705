/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions: work that lasts longer than one command. What a door may do with them. A part of
 * orchestrator.h; the same rules hold. SESSION_NOT_FOUND for a foreign, unknown or expired session
 * in all of these.
 */
#ifndef SBX_ORCHESTRATOR_SESSIONS_H
#define SBX_ORCHESTRATOR_SESSIONS_H

#include "orchestrator/orchestrator.h"
#include "store/sessions.h"
#include "store/snap.h"

struct orch_session_made {
	char id[37];
	int64_t row;
	bool replayed; /* an idempotency key named an earlier session */
};
/* From a document; text "" or "{}" is a session with the defaults. entry: the name that it shall
 * have in the mount (a mkdir), NULL: the document's name when it fits. ENTRY_EXISTS (errno EEXIST)
 * when entry is taken; INVALID_*, POLICY_UNSUPPORTED, RUNTIME_UNAVAILABLE, IDEMPOTENCY_CONFLICT, as
 * for a run. */
int orch_session_create(struct orch *o, const struct orch_principal *p,
			const struct orch_request *rq, const char *entry,
			struct orch_session_made *ret, struct sbx_error *e);
int orch_session_get(struct orch *o, const struct orch_principal *p, const char *id,
		     struct store_session *ret, struct sbx_error *e);
/* Lives for `seconds` from now; 0: for ever, where the host sets no limit. INVALID_ARGUMENT. */
int orch_session_extend(struct orch *o, const struct orch_principal *p, const char *id,
			int64_t seconds, struct sbx_error *e);

/* Its runs are cancelled, and when they are gone so is the session, with its workspace, its
 * snapshots and the artifacts of its runs; rows of runs stay. Runs that do not end within
 * session_delete_drain_timeout_sec save it. Never waits: */
enum orch_ending {
	ORCH_GONE,   /* it is no more */
	ORCH_ENDING, /* runs are still ending: a change of kind "session" or "run" tells when to
			look again */
	ORCH_STAYS,  /* the time was over, it is as it was: SESSION_DRAIN_TIMEOUT */
};
int orch_session_destroy(struct orch *o, const struct orch_principal *p, const char *id,
			 enum orch_ending *ret, struct sbx_error *e);
/* How that goes on, for whoever asked. With ORCH_STAYS the error is SESSION_DRAIN_TIMEOUT with the
 * reference's details (error, active_runs, session_id). */
int orch_session_ending(struct orch *o, const char *id, enum orch_ending *ret, struct sbx_error *e);

/* The document of POST and GET /sessions/ID and of status.json. */
void orch_view_session(struct orch *o, const struct store_session *s, struct sbx_buf *out);
/* spec.json: the effective spec. */
void orch_view_session_spec(const struct store_session *s, struct sbx_buf *out);
struct orch_sessions_query {
	int64_t limit; /* 1..1000 */
	const char *cursor;
};
/* {"items":[...],"next_cursor":...} of the caller's own, newest first. */
int orch_view_sessions(struct orch *o, const struct orch_principal *p,
		       const struct orch_sessions_query *q, struct sbx_buf *out,
		       struct sbx_error *e);

/* ---- the workspace --------------------------------------------------------------------------- */

/* The directory, O_PATH. The caller has looked at the session. */
int orch_workspace_dir(struct orch *o, const char *id, struct sbx_error *e);
/* Bytes that the workspace may have in all (the cap of its trust level). */
int64_t orch_workspace_cap(struct orch *o, const struct store_session *s);
/* Is a run of the session starting or running? Then others write to the workspace, too. */
int orch_workspace_busy(struct orch *o, const char *id, bool *ret, struct sbx_error *e);

/* ---- snapshots ------------------------------------------------------------------------------- */

/* All of these wait for the disk, and some of them long: a door calls them where that may be.
 * SESSION_ACTIVE_RUNS (details: error, active_runs, session_id) while a run of it has not ended,
 * WORKSPACE_CAP when it cannot fit: nothing is evicted for what does not fit anyway. name: NULL, or
 * the name that it shall have in the mount (ENTRY_EXISTS). */
int orch_snapshot_take(struct orch *o, const struct orch_principal *p, const char *session_id,
		       const char *name, struct store_snapshot *ret, struct sbx_error *e);
/* *ret_done false: there is no such snapshot. */
int orch_snapshot_drop(struct orch *o, const struct orch_principal *p, const char *session_id,
		       const char *snapshot_id, bool *ret_done, struct sbx_error *e);
/* The whole workspace is exchanged for the snapshot's tree at one moment. SNAPSHOT_NOT_FOUND. */
int orch_snapshot_restore(struct orch *o, const struct orch_principal *p, const char *session_id,
			  const char *snapshot_id, struct sbx_error *e);
/* A new session of the source's owner, with its values and a copy of its workspace. name may be
 * NULL. The copy is not on the disk yet: the keeper sees to that next, and should the machine stop
 * before, the new session goes as a whole at the next start. */
int orch_session_clone(struct orch *o, const struct orch_principal *p, const char *session_id,
		       const char *name, struct orch_session_made *ret, struct sbx_error *e);
/* Returns when the session, if it is a clone, is on the disk as a whole. Before an answer that
 * promises that something in it will last. STORE_UNAVAILABLE: the disk failed, and it ends. */
int orch_session_settle(struct orch *o, const char *id, struct sbx_error *e);
/* Ends the clones that another boot of the machine left half on the disk. For a door that starts,
 * before it lets anybody in. */
int orch_sessions_recover(struct orch *o, struct sbx_error *e);
/* {"items":[{snapshot_id,session_id,name,created_at,size_bytes,...}]}, newest first. */
int orch_view_snapshots(struct orch *o, const struct orch_principal *p, const char *session_id,
			struct sbx_buf *out, struct sbx_error *e);
void orch_view_snapshot(const struct store_snapshot *s, struct sbx_buf *out);
/* The snapshot as a tar, to be read from wherever, and its row. */
int orch_snapshot_tar(struct orch *o, const struct orch_principal *p, const char *session_id,
		      const char *snapshot_id, struct store_snapshot *ret,
		      struct snap_tar **ret_tar, struct sbx_error *e);
/* Taking one in: an empty file without a name for its bytes (a descriptor), of which there may be
 * so many; then the snapshot, which waits for the disk, long. name as in orch_snapshot_take.
 * INVALID_ARGUMENT says what is wrong with the tar; WORKSPACE_CAP; STORAGE_FULL; INTERRUPTED. */
int64_t orch_snapshot_file_max(struct orch *o);
int orch_snapshot_stage(struct orch *o, const struct orch_principal *p, const char *session_id,
			const char *name, struct sbx_error *e);
int orch_snapshot_import(struct orch *o, const struct orch_principal *p, const char *session_id,
			 const char *name, int fd, struct store_snapshot *ret, struct sbx_error *e);
/* One JSON object a line, {"path","change","size_before","size_after"}: from `from` to `to`, each
 * the id or name of a snapshot, or "workspace". */
int orch_view_diff(struct orch *o, const struct orch_principal *p, const char *session_id,
		   const char *from, const char *to, struct sbx_buf *out, struct sbx_error *e);

#endif
