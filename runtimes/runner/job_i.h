/* SPDX-License-Identifier: Apache-2.0 */
/* What job.c and bell.c share: the run in hand. */
#ifndef SBX_RUNTIMES_RUNNER_JOB_I_H
#define SBX_RUNTIMES_RUNNER_JOB_I_H

#include "runtimes/runner/runner_i.h"

struct job {
	struct runner *r;
	struct store_run run;	  /* borrows from the order, or from `read` */
	struct store_run read;	  /* owned; zero when the row came with the order */
	struct ms_run_spec *spec; /* owned */
	struct plan_store plan;	  /* owned */
	int64_t generation;
	struct log_writer *log; /* owned */
	struct rt_fds fds;	/* owned; in is moved to the feeder */
	struct feeder feeder;
	struct ending end;
	int64_t claimed_us, started_us; /* boot clock */
	int64_t turned_us;		/* the last turn of a driver that waits */
	bool still;			/* since then the startup time stands still */
	int64_t started_wall_us;
	int64_t deadline_us; /* of the execution */
	int64_t kill_us;     /* when TERM has had its grace; INT64_MAX: no TERM was sent */
	int64_t announce_us; /* when the row is to say that it is running; INT64_MAX: it does */
	int64_t renew_us;    /* next renewal of the lease */
	int64_t measure_us;  /* next look at the size of a session's workspace; INT64_MAX: never */
	int64_t ctl_off;     /* bytes of the ctl file already obeyed */
	bool executing, reaped, lost_claim, wants_out;
	bool log_broken; /* the log cannot be written any more; output is dropped */
	bool unrecorded; /* its end could not be written */
};

/* KILL to every process of the sandbox. */
void job_kill(struct job *j);
/* TERM now, KILL after the grace; or KILL now. */
void job_stop(struct job *j, bool at_once);
/* Has somebody rung since the last time? */
bool job_rang(const struct job *j);
/* Then: what is in the row and in the ctl file now. */
void job_bell(struct job *j);
/* Obeys what is new in the ctl file. */
void job_ctl(struct job *j);
/* A later lease, and a look whether it was cancelled. now: boot clock. */
void job_renew(struct job *j, int64_t now);
/* What is due: KILL after the grace, the time limit, the lease. */
void job_timers(struct job *j);

#endif
