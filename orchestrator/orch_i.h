/* SPDX-License-Identifier: Apache-2.0 */
/* Private to orchestrator/, divided by source file. */
#ifndef SBX_ORCHESTRATOR_ORCH_I_H
#define SBX_ORCHESTRATOR_ORCH_I_H

#include <pthread.h>
#include <stdatomic.h>

#include "mountspec/mountspec.h"
#include "orchestrator/orchestrator.h"
#include "orchestrator/order.h"
#include "orchestrator/phase.h"
#include "orchestrator/policy.h"
#include "orchestrator/taxonomy.h"

struct pool;

/* ---- open.c ---------------------------------------------------------------------------------- */

/* One reading of the configuration. Old ones are kept until orch_close, so that what other threads
 * have borrowed stays valid; a reload is a human's act, so the list stays short. */
struct orch_config {
	struct orch_settings *settings; /* owned */
	/* Owned. A door that only submits takes over what the executing one found later. */
	_Atomic(struct orch_preflights *) preflights;
	char policy_hash[17];
	/* The file that the settings are from as it was then, in memory and sealed: what runners
	 * read, so that who edits the file harms only a reload. Owned. */
	int file;
	struct orch_config *older; /* owned */
};

enum { ORCH_RUNTIMES_MAX = 16 }; /* rows of runtimes/known.def, at most */

/* Since this process began; the rest of the metrics comes from the store. By runtime in the order
 * of rt_known_at. */
struct orch_counts {
	atomic_llong refused, replayed;
	atomic_llong queue_full[STORE_SCOPE__COUNT][ORCH_RUNTIMES_MAX];
	struct orch_waits {
		atomic_llong n, sum_us, bucket[STORE_BUCKETS]; /* at most store_bucket_us[i] */
	} waits[ORCH_RUNTIMES_MAX];
};

struct orch {
	struct store *store;
	char *state_dir, *config_path, *runner, *mountpoint; /* owned; NULL where not given */
	char **overrides;
	size_t n_overrides;
	const char *door;
	int workers; /* -1: setting max_concurrent_runs */
	int64_t opened_us;

	_Atomic(struct orch_config *) config;
	pthread_mutex_t reload_lock;

	_Atomic(struct pool *) pool; /* NULL until orch_start: a door answers before */
	pthread_t dispatcher, janitor;
	bool dispatching, cleaning;
	struct dispatch_loop {
		int epoll, feed, timer; /* owned */
	} loop;
	pthread_mutex_t janitor_lock;
	pthread_cond_t janitor_wake; /* CLOCK_MONOTONIC */
	int wake_fd;		     /* eventfd: something for the dispatcher to look at */
	pthread_t keeper;
	atomic_bool keeping;	     /* set by who starts it, read by whoever pokes */
	int keeper_fd;		     /* eventfd: something for the keeper of sessions */
	pthread_mutex_t settle_lock; /* who brings clones to the disk; held while that lasts */
	int64_t sync_failed_us;	     /* under it: when the disk failed last; 0: never */
	atomic_bool sessions_ending; /* so every end of a run is news for it */
	atomic_bool garbage;	     /* snapshots were dropped: their objects may be nobody's now */
	atomic_bool stop;
	int helpers_over;      /* eventfd: processes that a door waits for are to end */
	int64_t reconciled_us; /* janitor: boot clock; 0: not yet */
	int64_t told_seq;      /* janitor: last change that it has seen */
	int64_t retired_row;   /* janitor: up to there runs were looked at; 0: begin anew */
	char *watching_name;   /* owned; watching.c: who says it. NULL: nothing was said yet */
	int watching_lock;     /* owned, when there is a name: says that we live */

	struct orch_counts counts;
};

static inline struct orch_config *orch_config(struct orch *o)
{
	return atomic_load(&o->config);
}

/* ---- findings.c ------------------------------------------------------------------------------ */

/* Asks the runtimes, with the configuration c. NULL with *e, or what stands for no answer. */
struct orch_preflights *findings_try(struct orch *o, const struct orch_config *c,
				     struct sbx_error *e);
/* After a start and a reload: tells the doors that only submit, or listens to the one that
 * executes. */
void findings_share(struct orch *o);
/* The dispatcher was woken: is there something new? */
void findings_follow(struct orch *o);

/* ---- watching.c ------------------------------------------------------------------------------ */

/* ,"watching":{...} for health: what all mounts of this state that live have said. */
void watching_view(struct orch *o, struct sbx_buf *out);
void watching_end(struct orch *o); /* of this process, which says nothing any more */

/* ---- admit.c --------------------------------------------------------------------------------- */

/* Runs this door may execute at once. */
int64_t orch_slots(struct orch *o);

/* ---- admit.c --------------------------------------------------------------------------------- */

/* Is there a slot, and is every cap of this run's scopes kept? The caller holds the
 * transaction in which it will claim. *ret false is not an error. */
int admit_allowed(struct orch *o, struct store_tx *tx, const struct store_run *r, bool *ret,
		  struct sbx_error *e);
/* A run that was claimed for a runner. */
struct admitted {
	const char *owner; /* in: the name of the runner's claims */
	char id[37];
	int64_t generation;
};
/* Claims the next queued runs, round-robin over users, for as many of the n owners as there are
 * runs that may start now: the first *ret_n of the list. In one transaction, so all of them or
 * none. */
int admit_next(struct orch *o, struct admitted *list, size_t n, size_t *ret_n, struct sbx_error *e);
/* What a spec reserves of the host while it is active: what it asked for explicitly. */
void admit_reservation(const struct ms_run_spec *spec, int64_t *memory_mb, int64_t *cpu_milli);
/* The word for the limit of this scope in a refusal. Static. */
const char *admit_full_reason(enum store_scope scope);
/* QUEUE_FULL with its details, when a limit on waiting runs is reached. */
int admit_queue_limits(struct orch *o, struct store_tx *tx, const struct store_run *r,
		       int64_t *ret_queued, struct sbx_error *e);

/* ---- pool.c: runner processes ---------------------------------------------------------------- */

struct pool_runner;
struct pool *pool_new(struct orch *o, struct sbx_error *e);
struct pool *pool_free(struct pool *p); /* idle runners end; busy ones go on alone */
/* An idle, prepared runner for the caller alone, or NULL. */
struct pool_runner *pool_take(struct pool *p);
const char *pool_owner(const struct pool_runner *r);
void pool_give_back(struct pool *p, struct pool_runner *r);
/* Hands it a claimed run. A runner that is gone is found by the dispatcher. */
void pool_assign(struct pool *p, struct pool_runner *r, const struct orch_order *order);
/* Dispatcher thread only: */
int pool_epoll_fd(const struct pool *p);
/* Reads what runners said; returns true when one became idle or a slot may be free. */
bool pool_events(struct pool *p);
/* When it wants to be resized again without being told; INT64_MAX: never. */
int64_t pool_next_us(const struct pool *p);
/* Starts or dismisses runners: enough for `queued` waiting runs, never above the slots. */
void pool_resize(struct pool *p, int64_t queued);

/* ---- dispatch.c ------------------------------------------------------------------------------ */

int dispatch_start(struct orch *o, struct sbx_error *e);
void dispatch_stop(struct orch *o);
/* A thread of the orchestrator's: signals are for the door's own. An errno. */
int dispatch_start_thread(pthread_t *ret, void *(*run)(void *), struct orch *o);
void dispatch_wake(struct orch *o);
/* A runner of ours died with this run. */
void dispatch_lost(struct orch *o, const char *id, int64_t generation);

/* ---- bound.c: runs that end with a handle ---------------------------------------------------- */

int bound_add(struct orch *o, const char *id, struct sbx_error *e);
void bound_drop(struct orch *o, const char *id);
/* Ends the runs whose door is dead. */
void bound_sweep(struct orch *o);

/* ---- janitor.c ------------------------------------------------------------------------------- */

/* Housekeeping until o->stop, in rounds, by the door that holds the lock. */
void *janitor_thread(void *orch);
void janitor_wake(struct orch *o);
/* The artifacts of a run: files and rows. */
int janitor_drop_artifacts(struct orch *o, const char *id, struct sbx_error *e);
/* reconcile.c: compares rows, files and totals of artifacts, and sets them right. */
int janitor_reconcile(struct orch *o, struct sbx_error *e);
/* Removes the files of runners that are gone and hold no run. */
void janitor_runners(struct orch *o);

/* ---- metrics.c ------------------------------------------------------------------------------- */

void orch_count_full(struct orch *o, enum store_scope scope, const char *runtime);
/* A run of this runtime was claimed by this process after so long in the queue. */
void orch_count_wait(struct orch *o, const char *runtime, int64_t waited_us);
/* Counters that the store keeps. */
#define ORCH_COUNT_LOG_TRUNCATED    "log_truncations"
#define ORCH_COUNT_CYCLES	    "maintenance_cycles"
#define ORCH_COUNT_JANITOR	    "artifact_janitor_runs"
#define ORCH_COUNT_REMOVED_RUNS	    "artifact_janitor_removed_runs"
#define ORCH_COUNT_REMOVED_FILES    "artifact_janitor_removed_files"
#define ORCH_COUNT_REMOVED_BYTES    "artifact_janitor_removed_bytes"
#define ORCH_COUNT_RECONCILES	    "artifact_reconcile_runs"
#define ORCH_COUNT_RECONCILED_USERS "artifact_reconcile_corrected_users"
#define ORCH_COUNT_RECONCILED_FILES "artifact_reconcile_corrected_files"
#define ORCH_COUNT_RECONCILED_BYTES "artifact_reconcile_corrected_bytes"
#define ORCH_COUNT_RECONCILE_MS	    "artifact_reconcile_ms"
#define ORCH_COUNT_UPLOAD_BYTES	    "upload_bytes"
#define ORCH_COUNT_UPLOAD_FILES	    "upload_files"

/* ---- view.c ---------------------------------------------------------------------------------- */

/* Which members of a run's document are shown. */
enum orch_form {
	ORCH_FORM_STATUS = 1,
	ORCH_FORM_ADMIN_ITEM = 2,
	ORCH_FORM_ADMIN_RUN = 4,
	ORCH_FORM_WORKSPACE = 8,
};
/* One JSON object, without a newline. */
void orch_run_object(const struct store_run *r, enum orch_form form, const char *log_stream_url,
		     struct sbx_buf *out);
/* A member behind another one: text (NULL is null), and a time (0 is null). */
void orch_text_member(struct sbx_buf *out, const char *name, const char *value);
void orch_time_member(struct sbx_buf *out, const char *name, int64_t us);
/* NO_MEMORY when the buffer has failed, else rc. */
int orch_view_done(int rc, const struct sbx_buf *out, struct sbx_error *e);
/* INVALID_ARGUMENT about one parameter: "name: found '...', allowed ...". */
int orch_view_refuse(const char *name, const char *found, const char *allowed, struct sbx_error *e);

/* ---- submit.c -------------------------------------------------------------------------------- */

/* What an idempotency key is compared by: SHA-256 of the canonical document. */
void submit_fingerprint(const char *canonical, char out[65]);
/* The key names an earlier thing ("run", "session") that was made of another document. */
int submit_conflict(const char *kind, const char *key, const struct store_idem *prior,
		    struct sbx_error *e);
/* Document or script -> spec, by the request's rules. */
int submit_parse(struct orch *o, const struct orch_request *rq, struct ms_run_spec **ret,
		 struct sbx_error *e);

#endif
