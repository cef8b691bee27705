/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Durable state: the tables, the feed of changes, and the files beside them. The store
 * knows no policy, no HTTP and no FUSE; it offers rows, and transactions in which the
 * orchestrator composes its operations.
 *
 * Threads: a struct store may be used by any number of threads. Reads take a connection
 * from a small pool. There is one write connection; store_begin() waits for it and the
 * transaction belongs to the thread that began it. Never do other I/O inside one. A callback
 * (each) runs while a reader is borrowed, so it must not call the store.
 *
 * Errors: SBX_E_STORE_UNAVAILABLE when SQLite fails (busy for longer than 10 s included),
 * SBX_E_STORAGE_FULL when the disk is full, SBX_E_NO_MEMORY; others are named per function.
 */
#ifndef SBX_STORE_STORE_H
#define SBX_STORE_STORE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/auto.h"
#include "base/error.h"

struct store;
struct store_tx;

/* ---- opening --------------------------------------------------------------------------------- */

struct store_options {
	int readers;   /* read connections at most; 0 means 4. A runner passes 1 */
	bool existing; /* fail when there is no database yet (a runner never makes one) */
};

/* dir is made (0700... its parents too) when it is missing. Runs forward migrations; a database
 * newer than this program is SBX_E_STORE_UNAVAILABLE with a message that says so. */
int store_open(const char *dir, const struct store_options *opts, struct store **ret,
	       struct sbx_error *e);
struct store *store_close(struct store *s); /* NULL is fine; returns NULL */
SBX_DEFINE_AUTO(struct store, store_close)
#define store_auto SBX_AUTO(store_closep)

int store_dir_fd(const struct store *s);      /* borrowed O_PATH-like directory fd */
const char *store_dir(const struct store *s); /* borrowed absolute path */
/* False once a sync of the disk has failed: what is committed since is visible and may be lost, so
 * new work must be refused until the service is restarted. */
bool store_healthy(struct store *s);
/* The file system of the state directory: what was written before is on the disk when it returns.
 * It hears of every failure since the last time, whoever else did: the descriptor is kept
 * (syncfs(2) tells each of them once). STORE_UNAVAILABLE. */
int store_sync_files(struct store *s, struct sbx_error *e);
/* SQLite's own check of the whole file: 0, or STORE_UNAVAILABLE with its first complaint. */
int store_integrity(struct store *s, struct sbx_error *e);
/* The file <dir>/<name> locked exclusively (flock) without waiting: an fd to keep, or a negative
 * errno (-EWOULDBLOCK: somebody has it). For work that only one door should do, as the janitor. */
int store_lock(struct store *s, const char *name);

/* ---- transactions ---------------------------------------------------------------------------- */

/* BEGIN IMMEDIATE. *ret must be ended by store_commit or store_rollback. */
int store_begin(struct store *s, struct store_tx **ret, struct sbx_error *e);
/* While *flag is true, store_begin of the calling thread does not wait for the right to write: it
 * ends with SBX_E_INTERRUPTED and has done nothing. NULL: it always waits. Whoever sets a flag for
 * another thread calls store_look_again. */
void store_give_up_when(const _Atomic(bool) *flag);
void store_look_again(struct store *s);
/*
 * Commits and frees tx, also on failure (then nothing was written). With durable, returns
 * only when the write-ahead log is on the disk; the sync happens after the write lock is
 * released and concurrent callers share one. When store_tx_change() was used the feed is
 * touched after that.
 *
 * A sync that fails is the one failure after which the change stands: it can be seen, but whether
 * it survives a power cut is not known. From then on every durable commit of this process fails,
 * until the store is opened again.
 */
int store_commit(struct store_tx *tx, bool durable, struct sbx_error *e);
/* As store_commit(tx, false) but leaves sync and feed to a later store_settle(), so that a caller
 * can hand out work in between. *ret_ticket must go to store_settle exactly once. */
struct store_ticket {
	uint64_t wal_mark; /* position in the order of commits of this process */
	bool touched;	   /* changes were appended */
};
int store_commit_early(struct store_tx *tx, struct store_ticket *ret_ticket, struct sbx_error *e);
int store_settle(struct store *s, struct store_ticket ticket, struct sbx_error *e);
void store_rollback(struct store_tx *tx); /* NULL is fine */
static inline void store_rollbackp(struct store_tx **tx)
{
	store_rollback(*tx);
}
#define store_autotx SBX_AUTO(store_rollbackp) /* set the variable to NULL after a commit */

/* ---- runs ------------------------------------------------------------------------------------ */

enum store_phase {
	STORE_QUEUED = 1,
	STORE_STARTING,
	STORE_RUNNING,
	STORE_COMPLETED,
	STORE_FAILED,
	STORE_KILLED,
	STORE_TIMED_OUT,
	STORE_PHASE__COUNT,
};
#define STORE_MASK(phase) (1u << (phase))
#define STORE_MASK_LIVE                                                                            \
	(STORE_MASK(STORE_QUEUED) | STORE_MASK(STORE_STARTING) | STORE_MASK(STORE_RUNNING))

const char *store_phase_name(enum store_phase p);    /* "queued", ... */
enum store_phase store_phase_find(const char *name); /* 0: no such phase */
static inline bool store_phase_terminal(enum store_phase p)
{
	return p >= STORE_COMPLETED;
}

enum store_cancel { STORE_CANCEL_NONE, STORE_CANCEL_TERM, STORE_CANCEL_KILL };

/* One row of runs. Every char * is owned, NULL for SQL NULL. All times are microseconds UTC,
 * 0 when not set, but for claim_expires_us. */
struct store_run {
	int64_t row; /* rowid: grows with every run, never used again */
	char *id;    /* UUID text */
	char *user;  /* the owner's user name, on both doors */
	int64_t uid; /* uid that owns the run's files on the mount, -1 when the user has none */
	char *door;  /* "fs", "api" or "local" */
	enum store_phase phase;
	char *reason;  /* taxonomy code stored at the transition */
	char *message; /* fixed code or one sentence for people */
	char *spec_version, *runtime, *runtime_version, *base_image, *image_digest, *policy_hash;
	char *trust_level, *network_policy;
	char *session_id, *persona_id, *workspace_id, *workspace_group_id, *scope_snapshot_id;
	char *name;	  /* the client's own name for it */
	char *labels;	  /* JSON object of strings */
	bool interactive; /* takes stdin */
	int64_t generation;
	char *claim_owner;	  /* host/boot-id/pid/random of the claimant */
	char *claim_boot;	  /* boot id that claim_expires_us is counted in */
	int64_t claim_expires_us; /* CLOCK_BOOTTIME */
	enum store_cancel cancel;
	int64_t created_us, started_us, finished_us;
	int64_t queue_expires_us;   /* CLOCK_BOOTTIME of queue_boot */
	int64_t estimated_start_us; /* at submission */
	int64_t changed_us;	    /* last change of the row: mtime of the run's nodes */
	bool has_exit_code;
	int exit_code;
	char *usage; /* JSON object of integers, see the reference's resource_usage */
	char *idempotency_key;
	int64_t log_bytes, artifact_bytes, artifact_count;
	bool artifacts_gone;				/* removed by their time to live */
	int64_t reserved_memory_mb, reserved_cpu_milli; /* of the host, while it is active */
};
void store_run_clear(struct store_run *r); /* frees the strings, zeroes the struct */
#define store_autorun __attribute__((cleanup(store_run_clear))) struct store_run

/* Inserts r (row and changed_us are set) with the text of its effective spec. */
int store_tx_run_insert(struct store_tx *tx, struct store_run *r, const char *spec,
			struct sbx_error *e);
/* RUN_NOT_FOUND. */
int store_tx_run_get(struct store_tx *tx, const char *id, struct store_run *ret,
		     struct sbx_error *e);

/*
 * The compare-and-set that every phase change goes through. Writes only if the row is in one of
 * `from` and, unless generation is negative, has exactly that generation; else *ret_done is false
 * and nothing changed. A terminal phase in `from` counts for nothing: finished runs never change.
 * Appends to the feed. Terminal phases clear the claim and set finished_us. Members that are
 * NULL or 0 (or has_exit_code false) leave the column as it is.
 */
struct store_transition {
	const char *id;
	unsigned from; /* STORE_MASK bits */
	int64_t generation;
	enum store_phase to;
	const char *reason, *message, *usage, *runtime_version, *image_digest;
	int64_t started_us, finished_us;
	bool has_exit_code;
	int exit_code;
	int64_t log_bytes, artifact_bytes, artifact_count;
	/* With claim_owner the transition also claims: generation += 1, lease until expires. */
	const char *claim_owner, *claim_boot;
	int64_t claim_expires_us;
	bool requeue;		  /* clears claim and started_us (to must be STORE_QUEUED) */
	int64_t queue_expires_us; /* with requeue: the end of its time in the queue, of this boot; 0
				     keeps the one it had, and the boot it was counted in */
};
int store_tx_run_transition(struct store_tx *tx, const struct store_transition *t, bool *ret_done,
			    struct sbx_error *e);
/* Lease until expires for the holder of this generation. CLAIM_LOST when it is stale, the run is
 * terminal, or it is not claimed. */
int store_tx_run_renew(struct store_tx *tx, const char *id, int64_t generation, int64_t expires_us,
		       struct sbx_error *e);
/* Raises the cancel intent of a run that is not terminal; *ret_done false when it is. Feed. */
int store_tx_run_cancel(struct store_tx *tx, const char *id, enum store_cancel how, bool *ret_done,
			struct sbx_error *e);

/* Runs in a scope: queued ones, or active ones (starting and running). */
enum store_scope {
	STORE_SCOPE_ALL,
	STORE_SCOPE_USER,
	STORE_SCOPE_PERSONA,
	STORE_SCOPE_WORKSPACE,
	STORE_SCOPE_GROUP,
	STORE_SCOPE__COUNT,
};
int store_tx_count(struct store_tx *tx, bool active, enum store_scope scope, const char *key,
		   int64_t *ret, struct sbx_error *e);
/* Sums over active runs of the memory (MiB) and CPU (thousandths) their rows reserve. */
int store_tx_reserved(struct store_tx *tx, int64_t *ret_memory_mb, int64_t *ret_cpu_milli,
		      struct sbx_error *e);
int store_tx_set_reserved(struct store_tx *tx, const char *id, int64_t memory_mb, int64_t cpu_milli,
			  struct sbx_error *e);

/*
 * The queue. next_user: the first user after `after` (bytewise, wrapping round once is up to the
 * caller; NULL starts at the beginning) who has a queued run; *ret NULL when there is none.
 * head: that user's oldest queued run, when `after` is 0; else the oldest with row > after whose
 * session, if it has one, lets it in now. RUN_NOT_FOUND when none. Index look-ups; behind 1000
 * runs that their sessions hold back nobody looks.
 */
int store_tx_queue_next_user(struct store_tx *tx, const char *after, char **ret,
			     struct sbx_error *e);
int store_tx_queue_head(struct store_tx *tx, const char *user, int64_t after, struct store_run *ret,
			struct sbx_error *e);
/* One queued run whose time in the queue is over: other boot id, or queue_expires_us < now.
 * RUN_NOT_FOUND when none. */
int store_tx_queue_expired(struct store_tx *tx, const char *boot, int64_t now_boot_us,
			   struct store_run *ret, struct sbx_error *e);
/* One claimed run whose lease is over: other boot id, or claim_expires_us < now. */
int store_tx_lease_expired(struct store_tx *tx, const char *boot, int64_t now_boot_us,
			   struct store_run *ret, struct sbx_error *e);
/* The next moments (boot clock) at which one of the two above would find something; INT64_MAX
 * when never. So the dispatcher sleeps exactly that long. */
int store_deadlines(struct store *s, int64_t *ret_queue_us, int64_t *ret_lease_us,
		    struct sbx_error *e);
/* Number of queued runs ahead of this row in its user's line. */
int store_queue_position(struct store *s, const char *user, int64_t row, int64_t *ret,
			 struct sbx_error *e);
int store_counts(struct store *s, int64_t *ret_queued, int64_t *ret_active, struct sbx_error *e);
/* Runs by phase: ret[STORE_PHASE__COUNT]. Kept in a small table by the transitions, so it does not
 * grow with the number of finished runs. */
int store_phase_counts(struct store *s, int64_t *ret, struct sbx_error *e);

/* Reads outside a transaction. RUN_NOT_FOUND when there is none. */
int store_run_get(struct store *s, const char *id, struct store_run *ret, struct sbx_error *e);
int store_run_get_row(struct store *s, int64_t row, struct store_run *ret, struct sbx_error *e);
/* What a directory listing and a look-up need, without strings to free. */
struct store_run_key {
	int64_t row;
	char id[37];
	int64_t uid;
	enum store_phase phase;
	int64_t created_us, changed_us;
	bool interactive, in_session, has_exit_code;
};
/* user NULL: anybody's. RUN_NOT_FOUND also for a foreign owner. */
int store_run_key(struct store *s, const char *id, const char *user, struct store_run_key *ret,
		  struct sbx_error *e);
/* By row, whoever owns it; *ret_user (malloc'd) may be NULL when not wanted. */
int store_run_key_row(struct store *s, int64_t row, struct store_run_key *ret, char **ret_user,
		      struct sbx_error *e);
/* The newest run of a user (NULL: of all). RUN_NOT_FOUND. */
int store_run_latest(struct store *s, const char *user, struct store_run_key *ret,
		     struct sbx_error *e);
/* Up to max keys with row > after in order of row; user NULL: all. Returns the number. */
int store_run_keys(struct store *s, const char *user, int64_t after, struct store_run_key *ret,
		   size_t max, struct sbx_error *e);
/* The same for runs that have one of these; none: as store_run_keys. The order is that of the index
 * that holds them, and is the same as long as a run is in it. */
struct store_keys_by {
	const char *user; /* NULL: anybody's */
	enum store_phase phase;
	const char *session_id;
	int64_t label; /* its number */
	int64_t after; /* row of the run before, 0: from the first */
};
int store_run_keys_by(struct store *s, const struct store_keys_by *by, struct store_run_key *ret,
		      size_t max, struct sbx_error *e);
/* The number of a label, which is NAME=VALUE: 1 and up, below 2^53, made of its text. */
int64_t store_number(const char *label);
/* Labels of a user's runs (NULL: of anybody's), and users that have runs: in the order of their
 * numbers, behind this one (0). each() must copy what it keeps; false ends it. */
int store_labels(struct store *s, const char *user, int64_t after,
		 bool (*each)(void *ctx, int64_t number, const char *label), void *ctx,
		 struct sbx_error *e);
int store_users(struct store *s, int64_t after,
		bool (*each)(void *ctx, int64_t number, const char *user), void *ctx,
		struct sbx_error *e);
/* A user's number never changes. NOT_FOUND: he has no runs; there is no such number. */
int store_user_find(struct store *s, const char *user, int64_t *ret_number, struct sbx_error *e);
int store_user_get(struct store *s, int64_t number, char **ret, struct sbx_error *e); /* malloc'd */
int store_run_count(struct store *s, const char *user, int64_t *ret, struct sbx_error *e);
/* The effective spec as text, malloc'd. RUN_NOT_FOUND. */
int store_run_spec(struct store *s, const char *id, char **ret, struct sbx_error *e);

enum {
	STORE_LIST_MAX = 1001
}; /* a page of a thousand, and one that tells whether it is the last */

struct store_run_filter {
	const char *user, *session_id, *persona_id;
	const char *workspace_id, *label; /* only together with user; label is NAME=VALUE */
	enum store_phase phase;		  /* 0: any; a terminal one only together with another */
	int64_t before_row;		  /* newest first, rows below this; 0: from the newest */
	int64_t limit;			  /* 1..STORE_LIST_MAX */
};
/* Calls each() for every row, newest first; it must copy what it keeps; false ends the walk.
 * INVALID_ARGUMENT for a filter that no index serves. */
int store_run_list(struct store *s, const struct store_run_filter *f,
		   bool (*each)(void *ctx, const struct store_run *r), void *ctx,
		   struct sbx_error *e);
/* How many runs of the workspace are this user's. */
int store_workspace_count(struct store *s, const char *workspace_id, const char *user, int64_t *ret,
			  struct sbx_error *e);

/* Anybody's runs by the time of their start; one that has not started comes before all others. */
struct store_started {
	const char *user, *workspace_id, *workspace_group_id, *scope_snapshot_id, *image_digest;
	enum store_phase phase; /* 0: any */
	int64_t from_us, to_us; /* of the start, inclusive; 0: open. Each leaves out what has not
				   started */
	bool ascending;
	int64_t offset, limit; /* limit: 1..STORE_LIST_MAX */
};
int store_started_list(struct store *s, const struct store_started *f,
		       bool (*each)(void *ctx, const struct store_run *r), void *ctx,
		       struct sbx_error *e);
/* How many there are in all. */
int store_started_count(struct store *s, const struct store_started *f, int64_t *ret,
			struct sbx_error *e);
/* Claimed, live runs of a claim owner prefix are found by the reaper through leases only. */

/* ---- small key-value state (round-robin position and the like) ------------------------------- */

int store_tx_meta_get(struct store_tx *tx, const char *key, char **ret, struct sbx_error *e);
int store_tx_meta_set(struct store_tx *tx, const char *key, const char *value, struct sbx_error *e);
/* *ret is malloc'd; NULL where there is no such key. */
int store_meta_get(struct store *s, const char *key, char **ret, struct sbx_error *e);
/* Rings the feed after a commit without changes, for those who read such state. */
void store_announce(struct store *s);

/* ---- idempotency ----------------------------------------------------------------------------- */

struct store_idem {
	char *fingerprint;
	char *object_id;
	int64_t created_us;
};
void store_idem_clear(struct store_idem *i);
/* Drops the key if it is older than not_before_us, then inserts it unless it exists. *ret_fresh:
 * inserted by this call; else *ret_prior tells what stands there. */
int store_tx_idem_put(struct store_tx *tx, const char *endpoint, const char *user, const char *key,
		      const char *fingerprint, const char *object_id, int64_t now_us,
		      int64_t not_before_us, bool *ret_fresh, struct store_idem *ret_prior,
		      struct sbx_error *e);
/* Look-up without a transaction: *ret_found. */
int store_idem_get(struct store *s, const char *endpoint, const char *user, const char *key,
		   int64_t not_before_us, bool *ret_found, struct store_idem *ret,
		   struct sbx_error *e);
int store_tx_idem_prune(struct store_tx *tx, int64_t not_before_us, int64_t max, int64_t *ret_gone,
			struct sbx_error *e);
struct store_idem_filter {
	const char *endpoint, *user, *key; /* NULL: any */
	int64_t from_us, to_us;		   /* of created_us, inclusive; to 0: open */
	bool ascending;
	int64_t offset, limit;
};
struct store_idem_row {
	const char *endpoint, *user, *key, *fingerprint, *object_id;
	int64_t created_us;
};
/* By the time of creation. */
int store_idem_list(struct store *s, const struct store_idem_filter *f,
		    bool (*each)(void *ctx, const struct store_idem_row *r), void *ctx,
		    struct sbx_error *e);
int store_idem_count(struct store *s, const struct store_idem_filter *f, int64_t *ret,
		     struct sbx_error *e);

/* ---- artifacts, usage, audit ----------------------------------------------------------------- */

struct store_artifact {
	const char *path; /* relative, '/' separated, bytes as the sandbox named it */
	int64_t size;
};
/* Registers the artifacts of a run and adds their bytes to the owner's usage. */
int store_tx_artifacts_add(struct store_tx *tx, const char *run_id,
			   const struct store_artifact *list, size_t n, struct sbx_error *e);
int store_artifact_list(struct store *s, const char *run_id,
			bool (*each)(void *ctx, const struct store_artifact *a), void *ctx,
			struct sbx_error *e);
int store_usage_bytes(struct store *s, const char *user, int64_t *ret, struct sbx_error *e);
/* Per user: runs, log bytes, artifact bytes; kept by the transitions, not by scanning. */
struct store_usage {
	const char *user;
	int64_t runs, log_bytes, artifact_bytes;
};
/* In the order of names; user: that one alone. */
int store_usage_list(struct store *s, const char *user, bool descending, int64_t offset,
		     int64_t limit, bool (*each)(void *ctx, const struct store_usage *u), void *ctx,
		     struct sbx_error *e);
int store_usage_count(struct store *s, const char *user, int64_t *ret, struct sbx_error *e);
/* Terminal runs with artifacts that ended before this time, oldest first, up to max (ids are
 * malloc'd); and the removal of one run's artifact rows (bytes go off the owner's usage). */
int store_artifacts_due(struct store *s, int64_t finished_before_us, char **ret_ids, size_t max,
			struct sbx_error *e);
int store_tx_artifacts_drop(struct store_tx *tx, const char *run_id, struct sbx_error *e);
/* For whoever compares with the disk. Runs that have rows of artifacts, by id, behind this one ("":
 * from the first): as many as max (malloc'd). */
int store_artifact_runs(struct store *s, const char *after, char **ret_ids, size_t max,
			struct sbx_error *e);
/* What the rows of a run say wrongly: a size of -1 takes one away. The totals follow. */
int store_tx_artifacts_correct(struct store_tx *tx, const char *run_id,
			       const struct store_artifact *list, size_t n, struct sbx_error *e);
/* Users whose total is not what their artifacts have, as many as max (malloc'd); and the total of
 * one set right: by how many bytes it was wrong. */
int store_usage_wrong(struct store *s, char **ret_users, size_t max, struct sbx_error *e);
int store_tx_usage_correct(struct store_tx *tx, const char *user, int64_t *ret_by,
			   struct sbx_error *e);

/* ---- runs that go: retire.c ------------------------------------------------------------------ */

/* Runs that ended before this time, as many as max (malloc'd ids), in order of row. At most a
 * thousand rows are looked at, behind *after_row, which is then where to go on; 0: none is left to
 * look at, so the next look begins with the oldest. */
int store_runs_old(struct store *s, int64_t finished_before_us, int64_t *after_row, char **ret_ids,
		   size_t max, struct sbx_error *e);
/* The row, and all that hangs on it. *ret_done false: there is no such run, or it has not ended. A
 * counter of this name with the runtime behind it says how many there were. */
#define STORE_COUNT_REMOVED "runs_removed."
int store_tx_run_remove(struct store_tx *tx, const char *id, bool *ret_done, struct sbx_error *e);

struct store_audit {
	int64_t at_us;
	const char *user, *door, *action, *resource, *result, *details; /* details: JSON object */
};
int store_tx_audit(struct store_tx *tx, const struct store_audit *a, struct sbx_error *e);
int store_tx_audit_prune(struct store_tx *tx, int64_t before_us, int64_t max, struct sbx_error *e);

/* ---- what is counted for ever: tallies.c ----------------------------------------------------- */

enum { STORE_BUCKETS = 12 };
extern const int64_t store_bucket_us[STORE_BUCKETS]; /* upper bounds */

/* Runs that ended, of one runtime, in one phase, for one reason. */
struct store_ends {
	const char *runtime, *reason;
	enum store_phase phase;
	int64_t runs;
	int64_t timed, sum_us;	       /* those of them that had started, and how long they took */
	int64_t bucket[STORE_BUCKETS]; /* those that took at most store_bucket_us[i] */
};
int store_ends(struct store *s, bool (*each)(void *ctx, const struct store_ends *t), void *ctx,
	       struct sbx_error *e);
/* Runs by runtime and phase. */
int store_runtime_counts(struct store *s,
			 bool (*each)(void *ctx, const char *runtime, enum store_phase phase,
				      int64_t n),
			 void *ctx, struct sbx_error *e);
/* Counters by name, made when first added to. */
int store_tx_counter_add(struct store_tx *tx, const char *name, int64_t n, struct sbx_error *e);
int store_counters(struct store *s, bool (*each)(void *ctx, const char *name, int64_t n), void *ctx,
		   struct sbx_error *e);

/* ---- the feed -------------------------------------------------------------------------------- */

struct store_change {
	int64_t seq;
	int64_t at_us;
	char kind[12];	    /* "run", "session", ... */
	int64_t row;	    /* rowid of the thing */
	char id[40];	    /* its id */
	char what[16];	    /* "new", "status", "cancel", "artifacts", ... */
	char phase[12];	    /* of a run, after the change; "" otherwise */
	char user[64];	    /* owner, cut at 63 bytes for display; filter by user_hash */
	uint64_t user_hash; /* store_user_hash(owner) */
};
uint64_t store_user_hash(const char *user);

int store_tx_change(struct store_tx *tx, const char *kind, int64_t row, const char *id,
		    const char *what, const char *phase, const char *user, struct sbx_error *e);
/* Up to max changes with seq > after, in order. Returns the number. *ret_gap: changes after
 * `after` have been pruned, so the reader must look at everything again. */
int store_changes(struct store *s, int64_t after, struct store_change *ret, size_t max,
		  bool *ret_gap, struct sbx_error *e);
int store_changes_last(struct store *s, int64_t *ret, struct sbx_error *e);
/* The time of the newest change; 0 when none is left. */
int store_changes_time(struct store *s, int64_t *ret_us, struct sbx_error *e);
int store_tx_changes_prune(struct store_tx *tx, int64_t keep, struct sbx_error *e);

/*
 * A descriptor (inotify, non-blocking, CLOEXEC, the caller's) that becomes readable after commits
 * that changed something, by any process. Drain with store_feed_drain before reading changes.
 */
int store_feed_watch(struct store *s, struct sbx_error *e);
void store_feed_drain(int fd);

/* ---- files of a run -------------------------------------------------------------------------- */

/* <dir>/runs/<id>, made 0700 when create is set. A directory descriptor, or an error
 * (RUN_NOT_FOUND when it does not exist). */
int store_run_dir(struct store *s, const char *id, bool create, struct sbx_error *e);
int store_run_dir_remove(struct store *s, const char *id, struct sbx_error *e);
/* Walks the ids of all run directories, for the janitor. */
int store_run_dirs(struct store *s, bool (*each)(void *ctx, const char *id), void *ctx,
		   struct sbx_error *e);

/* ---- files of a runner ----------------------------------------------------------------------- */

/* Makes the two files of a runner, named after the owner of its claims. The bell becomes readable
 * when somebody rings; it is drained by reading. Descriptors are the caller's. */
int store_runner_open(struct store *s, const char *owner, int *ret_bell, int *ret_mark,
		      struct sbx_error *e);
void store_runner_remove(struct store *s, const char *owner);
/* Calls each() with every owner that has files; false ends the walk. */
int store_runners(struct store *s, bool (*each)(void *ctx, const char *owner), void *ctx,
		  struct sbx_error *e);

/* The last run that a runner began to execute, written right before: whoever takes a run over from
 * a runner that died reads there whether the command may have run. The files of a dead runner are
 * removed when no run is claimed by it; what was claimed for it later it never began, so without a
 * file there is no mark. */
struct store_mark {
	char run_id[37]; /* "": none yet */
	int64_t generation, started_us;
};
int store_mark_write(int mark, const struct store_mark *m, struct sbx_error *e);
int store_mark_read(struct store *s, const char *owner, struct store_mark *ret,
		    struct sbx_error *e);

/* The doorbell: tells a runner to look at the row, ctl and stdin of its run; or the runner that has
 * claimed this run. RUN_NOT_FOUND: nobody is there to hear it. */
int store_runner_ring(struct store *s, const char *owner);
int store_run_ring(struct store *s, const char *id);

#endif
