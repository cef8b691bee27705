/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sandbox-runner: one process that supervises one run at a time and then takes the next. It is
 * single-threaded: everything here belongs to its one event loop.
 */
#ifndef SBX_RUNTIMES_RUNNER_I_H
#define SBX_RUNTIMES_RUNNER_I_H

#include "mountspec/mountspec.h"
#include "orchestrator/order.h"
#include "orchestrator/phase.h"
#include "orchestrator/settings.h"
#include "runtimes/runtimes.h"
#include "store/log.h"
#include "store/store.h"

/* Sandboxes of the default runtime beyond the one in hand. */
struct stock {
	struct rt_sandbox *ready[256], *used[256]; /* owned; used: to be destroyed */
	size_t n, n_used;
	size_t wanted;	 /* that shall be ready */
	size_t row;	 /* orders since the last time that there was nothing to do */
	int64_t last_us; /* when the last run ended, boot clock */
};

/* What lives as long as the process. */
struct runner {
	struct orch_settings *settings; /* owned */
	struct store *store;		/* owned */
	struct rt_host host;		/* borrows from settings, argv, docker and last_limits */
	struct rt_docker docker;	/* borrows from settings */
	struct rt_limits last_limits;	/* of the last plan: the next one mostly has the same */
	char *owner;			/* owned: the name of our claims */
	int door;			/* socket to the door, -1 once it is gone */
	int epoll;			/* owned */
	int timer;			/* owned timerfd, CLOCK_BOOTTIME */
	int bell;			/* owned FIFO: somebody has something for our run */
	int mark;			/* owned: which run we began to execute last */
	const struct rt_driver *driver; /* of the warm sandbox */
	void (*tick)(void *ctx); /* during long steps: keeps the claim up; NULL between runs */
	void *tick_ctx;
	struct rt_sandbox *sandbox; /* owned; prepared ahead, or NULL */
	struct stock stock;
};

/* ---- stock.c: sandboxes made ahead ----------------------------------------------------------- */

/* r->sandbox becomes one that is ready, or stays NULL. */
void stock_take(struct runner *r);
/* The run in r->sandbox, if there is one, is over. */
void stock_used(struct runner *r);
/* Makes what is wanted and takes down what is not, until that is done or an order waits. Returns
 * when to look again, boot clock: 0 at once, for an order waits; INT64_MAX: not before one does. */
int64_t stock_tend(struct runner *r);
/* Tends the stock until an order, or the end of the door, is there or is all that is to wait for.
 */
void stock_wait(struct runner *r);
/* While a run goes on, since that time: takes down one sandbox that was used, as soon as the run is
 * too long for a burst. Returns when to call again, all boot clock; INT64_MAX: none is left. */
int64_t stock_shed(struct runner *r, int64_t since_us);
void stock_clear(struct runner *r);

/* ---- plan.c: spec -> plan -------------------------------------------------------------------- */

/* Owns what a rt_plan borrows. */
struct plan_store {
	struct rt_plan plan;
	char **envp;
	struct rt_file *files;
	struct egress_config egress;
	char *cwd;
	char *image;
	char image_digest[72]; /* "": it was not imported */
	int image_held;	       /* so that it stays; -1: none */
	int workspace;	       /* of the session; -1: none */
};
void plan_clear(struct plan_store *p);
/* The limits of a run that asks for nothing. */
void plan_expect(const struct runner *r, struct rt_limits *ret);
int plan_make(const struct runner *r, const struct store_run *run, const struct ms_run_spec *spec,
	      struct plan_store *ret, struct sbx_error *e);

/* ---- collect.c: artifacts -------------------------------------------------------------------- */

struct collected {
	struct store_artifact *list; /* owned, with the paths */
	size_t n, size;
	int64_t bytes;
	/* The reference's counters. */
	int64_t limit_file, limit_total;
	int64_t skip_file_limit, skip_total_limit, skip_symlink, skip_invalid, skip_read_error;
	bool ran; /* there were patterns, so the counters are shown */
};
void collected_clear(struct collected *c);
/* Copies what matches from the workspace into runs/ID/artifacts. Only a failure of our own disk
 * is an error: what the sandbox left unreadable or odd is skipped and counted. */
int collect_artifacts(const struct runner *r, const struct store_run *run,
		      const struct ms_run_spec *spec, int workspace, struct collected *ret,
		      struct sbx_error *e);
/* The matcher: '*' and '?' cross slashes, "**" + '/' also matches no folder, [a-z] [!a], '\'
 * quotes. */
bool glob_match(const char *pattern, const char *path);

/* ---- stdin.c: input of the command ----------------------------------------------------------- */

struct feeder {
	int fd;		      /* write end, -1 once closed; owned */
	int spool;	      /* the file `stdin` of an interactive run, -1 */
	int64_t given;	      /* bytes of the spool already written */
	const uint8_t *first; /* stdin_b64: goes in before the spool; borrowed */
	size_t first_len, first_off;
	bool interactive, eof;
	int64_t bps; /* -1: no limit */
	int64_t tokens, tokens_at_us;
	int64_t idle_us, last_us; /* idle limit (-1: none) and the last input, boot clock */
};
void feeder_init(struct feeder *f, const struct ms_run_spec *spec, int fd);
void feeder_close(struct feeder *f);
/* Writes what can be written. *ret_want_out: there is more once the pipe has room. Returns the boot
 * time at which to call again (rate or idle limit), INT64_MAX for never. */
int64_t feeder_pump(struct feeder *f, struct store *s, const char *run_id, bool *ret_want_out,
		    bool *ret_idle);

/* ---- outcome.c: what the end is called ------------------------------------------------------- */

struct ending {
	struct rt_exit exit;
	bool timed_out, startup_timed_out, cancelled, log_full_disk;
	enum store_cancel how;
	bool workspace_full;
	int64_t wall_us;
};
/* Fills out; usage and message point into the buffers given. */
void outcome_make(const struct ms_run_spec *spec, const struct rt_plan *plan,
		  const struct ending *end, const struct log_writer *log,
		  const struct collected *arts, struct sbx_buf *usage, char message[256],
		  struct orch_outcome *out);

/* ---- job.c: one run from claim to end -------------------------------------------------------- */

/* Runs it. The sandbox that was warm is used up. Returns after the end is recorded, or when the
 * claim was lost. False: the run could not be read, or its end not be written, which is for
 * somebody else to do, who is told by the end of this process. */
bool job_run(struct runner *r, const struct orch_order *order);

#endif
