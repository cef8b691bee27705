/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every operation that a door offers. A door makes a principal, calls a function here and
 * translates what comes back; it decides nothing.
 *
 * Threads: all functions may be called from any thread unless it says otherwise. None waits for a
 * sandbox. Errors are named in base/errors.def; those that a caller must tell apart are listed.
 */
#ifndef SBX_ORCHESTRATOR_ORCHESTRATOR_H
#define SBX_ORCHESTRATOR_ORCHESTRATOR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/error.h"
#include "orchestrator/settings.h"
#include "store/store.h"

struct orch;

/* Who asks. Made by the door, never by the client. */
struct orch_principal {
	char user[64];	  /* login name; the same person has the same name on both doors */
	int64_t uid;	  /* owner of the run's nodes on the mount; -1 when there is none */
	bool admin;	  /* sees everybody's */
	const char *door; /* "fs", "api", "local"; a static string */
};
/* The principal of a local uid: its login name ("uid:N" when it has none), admin when it is 0 or
 * named in the setting `admins`. Cached. */
void orch_principal_uid(struct orch *o, uid_t uid, const char *door, struct orch_principal *ret);
/* The uids of those whom the setting names now, as far as they have one; their number. */
enum { ORCH_ADMINS_MAX = 64 };
size_t orch_admin_uids(struct orch *o, uid_t ret[ORCH_ADMINS_MAX]);

/* ---- life of the orchestrator ---------------------------------------------------------------- */

struct orch_options {
	const char *state_dir;	 /* absolute */
	const char *config_path; /* as given on the command line; NULL: the default one */
	const char *const *overrides;
	size_t n_overrides;
	const char *runner; /* path of sandbox-runner; NULL: beside this program, else libexec */
	const char *mountpoint; /* must not be seen in sandboxes; NULL: none */
	const char *door;	/* name in log lines and the audit */
	int workers; /* runs at once by this door; 0: submit and show only; -1: settings */
};

/* The state directory that the settings name, else the usual one of root or of this user; malloc'd.
 * INVALID_CONFIG. */
int orch_state_dir(const char *config, const char *const *overrides, size_t n_overrides, char **ret,
		   struct sbx_error *e);
/* Opens the store, reads settings, tries the runtimes (a few tens of milliseconds). Takes no
 * ownership of opts' strings. */
int orch_open(const struct orch_options *opts, struct orch **ret, struct sbx_error *e);
/* Starts the dispatcher and the warm runners. After the process has forked for the last time. */
int orch_start(struct orch *o, struct sbx_error *e);
/* Stops the threads. Runs that execute go on; idle runners end. NULL is fine; returns NULL. */
struct orch *orch_close(struct orch *o);
SBX_DEFINE_AUTO(struct orch, orch_close)
/* A door is about to stop: processes that unpack for it are ended, and whoever waits for one goes
 * on. */
void orch_stop_helpers(struct orch *o);
/* Reads the configuration again; on failure the old one stays. */
int orch_reload(struct orch *o, struct sbx_error *e);
/* Borrowed; stays valid until orch_close, also across a reload. */
const struct orch_settings *orch_settings(struct orch *o);
struct store *orch_store(struct orch *o); /* borrowed; for feed, logs and artifacts only */

/* ---- runs ------------------------------------------------------------------------------------ */

struct orch_request {
	const char *text; /* the document, or a script that begins with #! where allowed */
	size_t len;
	bool script_allowed;
	bool refuse_unknown;
	bool default_image; /* base_image may be left out */
	bool may_wait; /* up to a minute, for whoever copies or exchanges the session's workspace;
			  else that is SESSION_ACTIVE_RUNS after a moment */
	const char *idempotency_key; /* from a header; NULL: the document's own, if any */
	const char
		*session_id; /* of the run, from where it was submitted; NULL: the document's own */
};
struct orch_submitted {
	char id[37];
	int64_t row;
	enum store_phase phase;
	bool replayed; /* an idempotency key named an earlier run */
	bool bound;    /* "lifetime":"handle": the door cancels it when its handle closes */
	int64_t resume_from_seq;
};
/* Durable when it returns. INVALID_*, POLICY_UNSUPPORTED, RUNTIME_UNAVAILABLE, QUEUE_FULL,
 * IDEMPOTENCY_CONFLICT, SPEC_TOO_LARGE, STORAGE_FULL, STORE_UNAVAILABLE. */
int orch_submit(struct orch *o, const struct orch_principal *p, const struct orch_request *rq,
		struct orch_submitted *ret, struct sbx_error *e);
/* The verdict on a document as one JSON object and a newline: {"accepted":true,...effective
 * values, clamps...} or {"accepted":false,"error":{...}}. Writes nothing anywhere. */
int orch_check(struct orch *o, const struct orch_principal *p, const struct orch_request *rq,
	       struct sbx_buf *out, struct sbx_error *e);

/* RUN_NOT_FOUND for a foreign or unknown run in all of these. */
int orch_run_get(struct orch *o, const struct orch_principal *p, const char *id,
		 struct store_run *ret, struct sbx_error *e);
/* *ret_done false: it had ended already. */
int orch_run_cancel(struct orch *o, const struct orch_principal *p, const char *id,
		    enum store_cancel how, bool *ret_done, struct sbx_error *e);
/* The handle that a run was bound to has closed: the run is killed. */
int orch_run_unbind(struct orch *o, const struct orch_principal *p, const char *id,
		    struct sbx_error *e);
/* One command: cancel | kill | signal NAME | eof. INVALID_ARGUMENT, RUN_ENDED, NOT_INTERACTIVE. */
int orch_run_ctl(struct orch *o, const struct orch_principal *p, const char *id, const char *text,
		 size_t len, struct sbx_error *e);
/* Bytes for the command's stdin; all or nothing. NOT_INTERACTIVE, RUN_ENDED, WORKSPACE_CAP (its
 * total is reached), SPEC_TOO_LARGE (one frame is over stdin_max_frame_bytes). */
int orch_run_stdin(struct orch *o, const struct orch_principal *p, const char *id, const void *data,
		   size_t len, struct sbx_error *e);

/* What the input of one run is cut by; -1: no limit. */
struct orch_stdin_limits {
	int64_t total, frame, bps;
};
/* NOT_INTERACTIVE, RUN_ENDED. */
int orch_stdin_limits(struct orch *o, const struct orch_principal *p, const char *id,
		      struct orch_stdin_limits *ret, struct sbx_error *e);
/* Input that is cut where orch_run_stdin refuses: what is above the total is dropped. The caller
 * has looked at the run and has applied the other limits; reason (NULL: none) names the one that it
 * cut by. Whoever follows the log is told of a cut, before the command gets what was left. */
int orch_run_type(struct orch *o, const char *id, const struct orch_stdin_limits *limits,
		  const char *reason, const void *data, size_t len, struct sbx_error *e);

/* ---- what readable things say: the same bytes on both doors ---------------------------------- */

/* GET /runs/ID and status.json. log_stream_url is NULL except in the answer to a POST. */
void orch_view_status(struct orch *o, const struct store_run *r, const char *log_stream_url,
		      struct sbx_buf *out);
/* One sentence and a newline. */
void orch_view_why(struct orch *o, const struct store_run *r, struct sbx_buf *out);
int orch_view_spec(struct orch *o, const struct store_run *r, struct sbx_buf *out,
		   struct sbx_error *e);
/* ok, store, redis, timings of the contract, and what this door is about. */
int orch_view_health(struct orch *o, struct sbx_buf *out, struct sbx_error *e);
/* The same without what is nobody's business who has not logged in: the contract's members alone.
 */
int orch_view_health_public(struct orch *o, struct sbx_buf *out, struct sbx_error *e);
/* How well a mount watches workspaces, whose changes by others raise inotify events. Times are wall
 * clock, 0: never. */
struct orch_watching {
	bool unavailable;     /* not at all */
	int64_t unwatched_us; /* when a directory was left out last */
	int64_t lost_us;      /* when events were lost last */
};
/* health says it through all doors as long as this process lives; w NULL: there is nothing to say
 * any more. Called by one thread at a time. */
int orch_watching_say(struct orch *o, const struct orch_watching *w, struct sbx_error *e);
/* Prometheus text. */
int orch_view_metrics(struct orch *o, struct sbx_buf *out, struct sbx_error *e);
/* {"runtimes":[...]} of all; one of them (NOT_FOUND). */
int orch_view_runtimes(struct orch *o, struct sbx_buf *out, struct sbx_error *e);
int orch_view_runtime(struct orch *o, const char *name, struct sbx_buf *out, struct sbx_error *e);
/* --check: a table for people, or with json the document of orch_view_runtimes. */
int orch_view_check(struct orch *o, bool json, struct sbx_buf *out, struct sbx_error *e);

/* In all queries NULL or "" is a filter that is not set. INVALID_ARGUMENT, whose details name the
 * `field`, for what cannot be understood. */
struct orch_runs_query {
	int64_t limit;	    /* 1..1000 */
	const char *cursor; /* next_cursor of the page before */
	const char *phase, *session_id;
	const char *label; /* NAME=VALUE */
};
/* The caller's own runs, newest first, also for an administrator. */
int orch_view_runs(struct orch *o, const struct orch_principal *p, const struct orch_runs_query *q,
		   struct sbx_buf *out, struct sbx_error *e);
/* The caller's runs of a workspace (limit 1..100), and whether a new one would be let in. */
int orch_view_workspace(struct orch *o, const struct orch_principal *p, const char *workspace_id,
			int64_t limit, struct sbx_buf *out, struct sbx_error *e);

/* ---- for administrators: the door has made sure that the caller is one ----------------------- */

struct orch_page {
	int64_t limit, offset; /* limit: 1..1000, of usage as many as one likes */
	bool ascending;
};
struct orch_admin_runs {
	struct orch_page page; /* by started_at; without one comes first */
	const char *user_id, *image_digest, *workspace_id, *workspace_group_id, *scope_snapshot_id;
	const char *phase;		       /* an unknown word has no runs */
	const char *started_from, *started_to; /* times, inclusive */
};
struct orch_admin_keys {
	struct orch_page page; /* by created_at */
	const char *endpoint, *user_id, *key;
	const char *created_from, *created_to;
};
int orch_view_admin_runs(struct orch *o, const struct orch_admin_runs *q, struct sbx_buf *out,
			 struct sbx_error *e);
/* RUN_NOT_FOUND. */
int orch_view_admin_run(struct orch *o, const char *id, struct sbx_buf *out, struct sbx_error *e);
int orch_view_admin_keys(struct orch *o, const struct orch_admin_keys *q, struct sbx_buf *out,
			 struct sbx_error *e);
/* By name of the user. */
int orch_view_admin_usage(struct orch *o, const struct orch_page *page, const char *user_id,
			  struct sbx_buf *out, struct sbx_error *e);
int orch_view_queue(struct orch *o, struct sbx_buf *out, struct sbx_error *e);
int orch_view_operator(struct orch *o, struct sbx_buf *out, struct sbx_error *e);
int orch_view_diagnostics(struct orch *o, struct sbx_buf *out, struct sbx_error *e);

#endif
