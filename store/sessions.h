/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions, and the rows of their snapshots. A session is a workspace, the values that its runs
 * inherit, and a time to live; what a snapshot holds is in snap.h. Rows exist as long as the thing
 * does: what is destroyed leaves no row.
 *
 * Threads and errors as in store.h.
 */
#ifndef SBX_STORE_SESSIONS_H
#define SBX_STORE_SESSIONS_H

#include "store/store.h"

/* Strings are owned, NULL for SQL NULL. Times: microseconds UTC, 0 when not set. */
struct store_session {
	int64_t row;   /* grows with every session, never used again */
	char *id;      /* UUID text */
	char *user;    /* owner */
	int64_t uid;   /* owner of its files on the mount, -1 when the user has none */
	char *door;    /* that made it */
	char *name;    /* the client's own; need not be unique */
	char *entry;   /* its name in the mount's sessions/: unique for the user; NULL: its id */
	char *spec;    /* the effective session spec as JSON text (ms_session_json) */
	char *runtime; /* of the spec, for lists; NULL: the default at the time of a run */
	char *policy_hash;
	char *cloned_from;   /* id; NULL: none */
	char *unsynced_boot; /* sbx_boot_id() when its workspace was copied; NULL: that is known to
				be on the disk, and durably so */
#define STORE_SYNCED ""	     /* as unsynced_boot: it is on the disk, this may not be */
	int64_t created_us;
	int64_t expires_us; /* 0: never */
	int64_t changed_us; /* last change of the row */
	int64_t ending_us;  /* it is being destroyed, and that is given up then; 0: it is not */
#define STORE_ENDING_FINAL INT64_MAX	   /* as ending_us: it is never given up */
#define STORE_ENDING_LOST  (INT64_MAX - 1) /* nor is this; runs may be left */
	bool concurrent;		   /* several runs at a time may write to the workspace */
};
void store_session_clear(struct store_session *s); /* frees the strings, zeroes the struct */
#define store_autosession __attribute__((cleanup(store_session_clear))) struct store_session

/* Inserts s (row and changed_us are set); change "session" "new". entry must not be another live
 * session's of this user: *ret_taken. */
int store_tx_session_insert(struct store_tx *tx, struct store_session *s, bool *ret_taken,
			    struct sbx_error *e);
/* SESSION_NOT_FOUND. */
int store_tx_session_get(struct store_tx *tx, const char *id, struct store_session *ret,
			 struct sbx_error *e);
int store_session_get(struct store *s, const char *id, struct store_session *ret,
		      struct sbx_error *e);
int store_session_get_row(struct store *s, int64_t row, struct store_session *ret,
			  struct sbx_error *e);
/* By its name in the mount. */
int store_session_get_entry(struct store *s, const char *user, const char *entry,
			    struct store_session *ret, struct sbx_error *e);
/* Up to max sessions with row > after, in order; user NULL: everybody's. Returns the number; the
 * caller clears each. */
int store_session_list(struct store *s, const char *user, int64_t after, struct store_session *ret,
		       size_t max, struct sbx_error *e);
/* Of the user, with row < before, newest first. */
int store_session_list_before(struct store *s, const char *user, int64_t before,
			      struct store_session *ret, size_t max, struct sbx_error *e);
/* New values of expires_us and ending_us; change "session" "status". SESSION_NOT_FOUND. */
int store_tx_session_times(struct store_tx *tx, const char *id, int64_t expires_us,
			   int64_t ending_us, struct sbx_error *e);
/* The row and its snapshots' rows; change "session" "gone". */
int store_tx_session_drop(struct store_tx *tx, const char *id, struct sbx_error *e);
/* Runs of the session that have not ended; active: only those that start or run. */
int store_tx_session_runs(struct store_tx *tx, const char *id, bool active, int64_t *ret,
			  struct sbx_error *e);
int store_session_runs(struct store *s, const char *id, bool active, int64_t *ret,
		       struct sbx_error *e);
/* Ids (malloc'd) of runs that have not ended and that nobody has cancelled, up to max. Returns the
 * number. */
int store_session_uncancelled(struct store *s, const char *id, char **ret_ids, size_t max,
			      struct sbx_error *e);
/* Up to max of those that have ending_us and come behind *after (NULL: from the first), or that
 * have expires_us and not ending_us, the earliest first. Returns the number; the caller clears
 * each. */
int store_session_ending(struct store *s, const struct store_session *after,
			 struct store_session *ret, size_t max, struct sbx_error *e);
int store_session_expiring(struct store *s, struct store_session *ret, size_t max,
			   struct sbx_error *e);
/* Up to max of those with unsynced_boot: of this boot or STORE_SYNCED; of another. Not those that
 * are STORE_ENDING_LOST or FINAL. Returns the number; the caller clears each. */
int store_session_unsynced(struct store *s, const char *boot, struct store_session *ret, size_t max,
			   struct sbx_error *e);
int store_session_torn(struct store *s, const char *boot, struct store_session *ret, size_t max,
		       struct sbx_error *e);
/* A new value of unsynced_boot, unless it is STORE_ENDING_LOST or FINAL; nobody is told, since
 * nobody can see it. */
int store_tx_session_mark(struct store_tx *tx, const char *id, const char *unsynced_boot,
			  struct sbx_error *e);

/* ---- snapshots ------------------------------------------------------------------------------- */

struct store_snapshot {
	int64_t row;
	char *id;   /* UUID text */
	char *name; /* of the mount's snapshots/: unique in the session; NULL: its id */
	char *session_id;
	int64_t created_us;
	int64_t bytes; /* of all files in it */
	int64_t files; /* entries of any kind */
	char *digest;  /* "sha256:...", of the manifest */
};
void store_snapshot_clear(struct store_snapshot *s);
#define store_autosnapshot __attribute__((cleanup(store_snapshot_clear))) struct store_snapshot

/* Inserts; change "snapshot" "new" with the row of the snapshot and its id. */
int store_tx_snapshot_insert(struct store_tx *tx, struct store_snapshot *s, bool *ret_taken,
			     struct sbx_error *e);
/* By id or by name. SNAPSHOT_NOT_FOUND. */
int store_snapshot_get(struct store *s, const char *session_id, const char *id_or_name,
		       struct store_snapshot *ret, struct sbx_error *e);
int store_snapshot_get_row(struct store *s, int64_t row, struct store_snapshot *ret,
			   struct sbx_error *e);
/* Up to max of the session with row > after in order of row. Returns the number. */
int store_snapshot_list(struct store *s, const char *session_id, int64_t after,
			struct store_snapshot *ret, size_t max, struct sbx_error *e);
/* *ret_done false: there was none. Change "snapshot" "gone". */
int store_tx_snapshot_drop(struct store_tx *tx, const char *id, bool *ret_done,
			   struct sbx_error *e);
int store_tx_snapshot_totals(struct store_tx *tx, const char *session_id, int64_t *ret_n,
			     int64_t *ret_bytes, struct sbx_error *e);
/* Is there a row with this id, in whatever session? */
int store_snapshot_known(struct store *s, const char *id, bool *ret, struct sbx_error *e);

/* ---- files of a session ---------------------------------------------------------------------- */

/* <dir>/sessions/<id>/, made 0700 with an empty workspace/ when create is set. A directory
 * descriptor, or SESSION_NOT_FOUND. */
int store_session_dir(struct store *s, const char *id, bool create, struct sbx_error *e);
/* The workspace in that directory, for reading: a descriptor or a negative errno. Its owner may
 * have taken his own rights away, where the sandbox's user is the service's. */
int store_session_workspace(int dir);
/* Takes the directory out of the way (a rename into <dir>/trash/), and the lock file with it. */
int store_session_dir_remove(struct store *s, const char *id, struct sbx_error *e);
/* Removes what is in <dir>/trash/, which may take long; once *stop is true (NULL: never) the rest
 * stays for the next time, which is no failure. */
int store_trash_empty(struct store *s, const _Atomic(bool) *stop, struct sbx_error *e);
/* Walks the ids of all sessions that have a directory or a lock's file, for the janitor. */
int store_session_dirs(struct store *s, bool (*each)(void *ctx, const char *id), void *ctx,
		       struct sbx_error *e);
/*
 * The lock of a workspace's shape, between all processes: shared for whoever adds to it (a run that
 * is submitted, an upload), exclusive for whoever reads or replaces it as a whole (snapshot,
 * restore, clone, destroy). It is a file of <dir>/sessions/<id>.lock, outside the directory. Waits
 * at most wait_ms. A descriptor to close, or -EWOULDBLOCK, or another negative errno.
 */
int store_session_lock(struct store *s, const char *id, bool exclusive, int wait_ms);

#endif
