/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One run, from its claim to its recorded end. The order of the steps is the promise:
 *
 * - the mark: from here on the command may have executed, so nobody executes it again
 * - driver->start: it executes
 * - phase running, unless it is over at once
 * - exit, pipes drained: everything that was printed is in the log
 * - artifacts copied, synced
 * - phase terminal, in one transaction with artifacts, usage and audit: followers end
 * - store_settle: durable, and announced
 */
#include "runtimes/runner/job_i.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/timerfd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/crash.h"
#include "store/snap.h"

enum {
	READ_CHUNK = 64 << 10,
	READS_A_TURN = 16,
	RECORD_SECONDS = 300, /* for a store that cannot be written */
	FIRST_OUTPUT_MS = 1,  /* the last of a command is often its output */
};

/* A command that is over sooner goes from starting to its end in one step: nobody could have seen
 * it run, and a transaction of its own would take longer than the command. */
#define ANNOUNCE_US (10 * INT64_C(1000))

static void job_clear(struct job *j)
{
	store_run_clear(&j->read);
	ms_run_free(j->spec);
	plan_clear(&j->plan);
	log_writer_close(j->log);
	feeder_close(&j->feeder);
	sbx_closep(&j->fds.out);
	sbx_closep(&j->fds.err);
	sbx_closep(&j->fds.in);
	sbx_closep(&j->fds.exit);
	sbx_closep(&j->fds.workspace);
}

/* ---- output ---------------------------------------------------------------------------------- */

static void log_failed(struct job *j, const struct sbx_error *e)
{
	if (!j->log_broken)
		sbx_log(SBX_LOG_ERROR, "cannot write the log run=%s error=\"%s\"", j->run.id,
			e->message);
	j->log_broken = true;
	j->end.log_full_disk = true;
}

/* Takes what the pipe holds, at most a few chunks, so that neither stream starves the other nor
 * the timers. Returns false at end of file. */
static bool drain_stream(struct job *j, int fd, enum log_type stream, bool all)
{
	static char buf[READ_CHUNK];

	for (int turn = 0; all || turn < READS_A_TURN; turn++) {
		sbx_autoerror e = SBX_ERROR_INIT;
		ssize_t n = read(fd, buf, sizeof(buf));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return true; /* EAGAIN: no more for now */
		if (n == 0)
			return false;
		if (!j->log_broken && log_writer_put(j->log, stream, buf, (size_t)n, &e) < 0)
			log_failed(j, &e);
		if ((size_t)n < sizeof(buf) && !all)
			return true;
	}
	return true;
}

static void announce_running(struct job *j)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	int rc;

	j->announce_us = INT64_MAX;
	rc = orch_phase_running(j->r->store, j->run.id, j->generation, j->started_wall_us, &e);
	if (rc == -SBX_E_CLAIM_LOST) {
		j->lost_claim = true;
		job_kill(j);
	} else if (rc < 0) { /* the command runs; its end will be recorded all the same */
		sbx_log(SBX_LOG_WARNING, "cannot record the phase run=%s error=\"%s\"", j->run.id,
			e.message);
	}
}

static bool ends_at_once(const struct job *j)
{
	struct pollfd p = { .fd = j->fds.exit, .events = POLLIN };

	return poll(&p, 1, FIRST_OUTPUT_MS) > 0;
}

static void stream_event(struct job *j, int *fd, enum log_type stream, uint32_t events)
{
	/* Whoever sees output of a run sees it running, or soon ended. */
	if ((events & EPOLLIN) && j->announce_us != INT64_MAX && !ends_at_once(j))
		announce_running(j);
	if (*fd >= 0 && !drain_stream(j, *fd, stream, false))
		sbx_closep(fd); /* epoll forgets it */
}

/* ---- the loop -------------------------------------------------------------------------------- */

enum source { SRC_OUT = 1, SRC_ERR, SRC_IN, SRC_EXIT, SRC_TIMER, SRC_BELL };

static void watch_fd(struct job *j, int fd, uint32_t events, enum source src)
{
	struct epoll_event ev = { .events = events, .data.u32 = src };

	if (fd >= 0 && epoll_ctl(j->r->epoll, EPOLL_CTL_ADD, fd, &ev) < 0 && errno == EEXIST)
		(void)epoll_ctl(j->r->epoll, EPOLL_CTL_MOD, fd, &ev);
}

static void unwatch_fd(struct job *j, int fd)
{
	if (fd >= 0)
		(void)epoll_ctl(j->r->epoll, EPOLL_CTL_DEL, fd, NULL);
}

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int64_t pump_stdin(struct job *j)
{
	bool want = false, idle = false;
	int fd = j->feeder.fd;
	int64_t at = feeder_pump(&j->feeder, j->r->store, j->run.id, &want, &idle);

	if (idle && !j->log_broken)
		(void)log_writer_truncated(j->log, "stdin_idle", NULL);
	if (j->feeder.fd >= 0 && want != j->wants_out) {
		if (want)
			watch_fd(j, fd, EPOLLOUT, SRC_IN);
		else
			unwatch_fd(j, fd);
		j->wants_out = want;
	}
	return at;
}

static void arm(struct job *j, int64_t at)
{
	struct itimerspec its = { 0 };

	if (at < 1)
		at = 1;
	its.it_value.tv_sec = at / SBX_SECOND_US;
	its.it_value.tv_nsec = (at % SBX_SECOND_US) * 1000;
	(void)timerfd_settime(j->r->timer, TFD_TIMER_ABSTIME, &its, NULL);
}

static void event(struct job *j, enum source src, uint32_t events)
{
	uint64_t n;

	switch (src) {
	case SRC_OUT:
		stream_event(j, &j->fds.out, LOG_STDOUT, events);
		break;
	case SRC_ERR:
		stream_event(j, &j->fds.err, LOG_STDERR, events);
		break;
	case SRC_EXIT:
		j->reaped = j->r->driver->reap(j->r->sandbox, &j->end.exit);
		break;
	case SRC_TIMER:
		if (read(j->r->timer, &n, sizeof(n)) < 0)
			break;
		break;
	case SRC_BELL:
		job_bell(j);
		break;
	case SRC_IN:
		break; /* pumped in every turn */
	}
}

static void loop(struct job *j)
{
	struct epoll_event ev[8];

	watch_fd(j, j->fds.out, EPOLLIN, SRC_OUT);
	watch_fd(j, j->fds.err, EPOLLIN, SRC_ERR);
	watch_fd(j, j->fds.exit, EPOLLIN, SRC_EXIT);
	while (!j->reaped) {
		int64_t at = least(pump_stdin(j), stock_shed(j->r, j->started_us));
		int n;

		at = least(least(least(at, j->announce_us), j->deadline_us), j->measure_us);
		arm(j, least(at, least(j->kill_us, j->renew_us)));
		n = epoll_wait(j->r->epoll, ev, SBX_COUNT(ev), -1);
		for (int i = 0; i < n; i++)
			event(j, (enum source)ev[i].data.u32, ev[i].events);
		if (j->reaped) /* the end came first */
			break;
		job_timers(j);
		if (sbx_boot_us() >= j->announce_us)
			announce_running(j);
	}
	/* Every process is dead, so the pipes hold the rest and then end. */
	if (j->fds.out >= 0)
		(void)drain_stream(j, j->fds.out, LOG_STDOUT, true);
	if (j->fds.err >= 0)
		(void)drain_stream(j, j->fds.err, LOG_STDERR, true);
	unwatch_fd(j, j->fds.exit);
}

/* ---- begin and end --------------------------------------------------------------------------- */

static int read_row(struct job *j, const char *id, char **ret_spec, struct sbx_error *e)
{
	int rc;

	/* The bell first, then the row: a cancel in between rings again. What rang before was for
	 * the run before, or is in the row. */
	(void)job_rang(j);
	rc = store_run_get(j->r->store, id, &j->read, e);
	if (rc < 0)
		return rc;
	j->run = j->read;
	if (j->run.generation != j->generation || store_phase_terminal(j->run.phase))
		return sbx_fail(e, SBX_E_CLAIM_LOST, "run %s was taken over", id);
	return store_run_spec(j->r->store, id, ret_spec, e);
}

/* What came with the order need not be read, which would take longer than many a command; whatever
 * has happened to the run since has rung the bell, or will be noticed as a claim that was lost. */
static int load(struct job *j, const struct orch_order *order, struct sbx_error *e)
{
	const struct ms_options opts = { .stored = true };
	sbx_autofree char *text = NULL;
	const char *spec = order->spec;
	int rc = 0;

	j->run = order->run;
	if (!spec)
		rc = read_row(j, order->id, &text, e);
	if (rc == 0 && !spec)
		spec = text;
	if (rc == 0)
		rc = ms_run_parse(spec, strlen(spec), &opts, &j->spec, e);
	if (rc == 0)
		rc = plan_make(j->r, &j->run, j->spec, &j->plan, e);
	return rc;
}

/* A sandbox of the run's runtime: the warm one when it is of that kind. */
static int take_sandbox(struct job *j, struct sbx_error *e)
{
	const struct rt_driver *d = rt_driver_find(j->run.runtime);

	if (!d)
		return sbx_fail(e, SBX_E_RUNTIME_UNAVAILABLE, "runtime '%s' has no driver",
				j->run.runtime);
	if (j->r->sandbox && j->r->driver != d) {
		j->r->driver->destroy(j->r->sandbox);
		j->r->sandbox = NULL;
	}
	j->r->driver = d;
	return j->r->sandbox ? 0 : d->create(&j->r->host, &j->r->sandbox, e);
}

/* The files of the document go into a session's workspace, which has no size of its own. */
static int check_room(const struct job *j, struct sbx_error *e)
{
	const struct rt_plan *p = &j->plan.plan;
	struct snap_sums sums = { 0 };
	int rc;

	if (j->plan.workspace < 0 || !p->n_files)
		return 0;
	rc = snap_measure(j->plan.workspace, &sums, e);
	for (size_t i = 0; i < p->n_files; i++)
		sums.bytes += (int64_t)p->files[i].len;
	if (rc == 0 && sums.bytes > p->limits.workspace_bytes)
		rc = sbx_fail(e, SBX_E_WORKSPACE_CAP,
			      "with the files of the run the workspace would have %lld bytes, the "
			      "limit is %lld",
			      (long long)sums.bytes, (long long)p->limits.workspace_bytes);
	return rc;
}

/* From here on nobody executes the run again. */
static int leave_mark(struct job *j, struct sbx_error *e)
{
	struct store_mark m = { .generation = j->generation };

	j->started_wall_us = m.started_us = sbx_now_us();
	memcpy(m.run_id, j->run.id, strnlen(j->run.id, sizeof(m.run_id) - 1));
	return store_mark_write(j->r->mark, &m, e);
}

/* Between steps that may take long: the claim must not run out under work that goes well. */
static void tick(void *ctx)
{
	struct job *j = ctx;
	int64_t now = sbx_boot_us();

	if (now >= j->renew_us && !j->lost_claim)
		job_renew(j, now);
}

static int64_t startup_deadline(const struct job *j)
{
	return j->claimed_us + j->spec->startup_timeout_sec * SBX_SECOND_US;
}

/* Has the run ended for another reason than its own while something was waited for? */
static bool given_up(const struct job *j)
{
	return j->end.cancelled || j->end.startup_timed_out || j->lost_claim;
}

/* A driver waits (struct rt_waiting). */
static int64_t turn(void *ctx, bool counts)
{
	struct job *j = ctx;
	int64_t now = sbx_boot_us(), until;

	if (j->still)
		j->claimed_us += now - j->turned_us;
	j->turned_us = now;
	j->still = !counts;
	tick(j);
	job_bell(j);
	until = counts ? startup_deadline(j) : INT64_MAX;
	if (now >= until)
		j->end.startup_timed_out = true;
	if (given_up(j))
		return RT_GIVE_UP;
	return least(until, j->renew_us);
}

/* False when there is nothing to start any more. */
static bool may_go_on(struct job *j)
{
	tick(j);
	job_bell(j); /* what rang meanwhile */
	if (sbx_boot_us() > startup_deadline(j))
		j->end.startup_timed_out = true;
	return !given_up(j);
}

/* Does the command work in the session's own directory, and not on a copy? */
static bool works_in_session(const struct job *j)
{
	struct stat session, own;

	return j->plan.workspace >= 0 &&
	       (fstat(j->plan.workspace, &session) < 0 || fstat(j->fds.workspace, &own) < 0 ||
		(session.st_dev == own.st_dev && session.st_ino == own.st_ino));
}

static int begin(struct job *j, struct sbx_error *e)
{
	int rc;

	if (j->run.cancel != STORE_CANCEL_NONE) {
		j->end.cancelled = true;
		return 0;
	}
	rc = take_sandbox(j, e);
	tick(j);
	j->r->last_limits = j->plan.plan.limits;
	if (rc == 0)
		rc = check_room(j, e);
	if (rc == 0)
		rc = j->r->driver->prepare(j->r->sandbox, &j->plan.plan, e);
	if (rc < 0)
		return rc;
	if (!may_go_on(j))
		return 0;
	crash_point("before_mark");
	rc = leave_mark(j, e);
	crash_point("after_mark");
	if (rc == 0)
		rc = log_writer_open(j->r->store, j->run.id, j->r->settings->max_log_bytes,
				     j->started_wall_us, &j->log, e);
	if (rc == 0)
		rc = j->r->driver->start(j->r->sandbox, &j->fds, e);
	if (rc < 0)
		return rc;
	j->started_us = sbx_boot_us();
	j->executing = true;
	crash_point("executing");
	feeder_init(&j->feeder, j->spec, sbx_steal_fd(&j->fds.in));
	j->deadline_us = j->started_us + j->spec->timeout_sec * SBX_SECOND_US;
	job_ctl(j); /* signals that came before there was anybody to take them */
	j->announce_us = j->started_us + ANNOUNCE_US;
	if (works_in_session(j))
		j->measure_us = j->announce_us;
	return 0;
}

static bool is_full(int workspace)
{
	struct statvfs v;

	return workspace >= 0 && fstatvfs(workspace, &v) == 0 &&
	       (v.f_bavail == 0 || (v.f_files && v.f_favail == 0));
}

/* The log is complete and, when there is something to lose, on the disk before the end is. */
static void close_streams(struct job *j)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	int rc = 0;

	if (!j->log || j->log_broken)
		return;
	rc = log_writer_flush(j->log, LOG_STDOUT, &e);
	if (rc == 0)
		rc = log_writer_flush(j->log, LOG_STDERR, &e);
	if (rc == 0 && log_writer_bytes(j->log) > 0)
		rc = log_writer_sync(j->log, &e);
	if (rc < 0)
		log_failed(j, &e);
}

/* A store that cannot be written now, a full disk say, must not cost the outcome: it is tried again
 * for a while, with the claim kept up. The wait is for a human, so a second is fine enough. */
static int end_in_store(struct job *j, const struct orch_outcome *out, struct store_ticket *ticket,
			struct sbx_error *e)
{
	int64_t until = sbx_boot_us() + RECORD_SECONDS * SBX_SECOND_US;
	int rc, tries = 0;

	while ((rc = orch_phase_end(j->r->store, &j->run, j->generation, out, ticket, e)) < 0 &&
	       rc != -SBX_E_CLAIM_LOST && sbx_boot_us() < until) {
		if (tries++ == 0)
			sbx_log(SBX_LOG_ERROR, "end not recorded yet run=%s error=\"%s\"",
				j->run.id, e->message);
		(void)poll(NULL, 0, 1000);
		tick(j);
		sbx_error_clear(e);
	}
	return rc;
}

/* Records the end; the announcement follows the row. */
static void record(struct job *j, const struct orch_outcome *out)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	struct store_ticket ticket;
	int rc;

	crash_point("before_end");
	rc = end_in_store(j, out, &ticket, &e);
	if (rc == -SBX_E_CLAIM_LOST) {
		sbx_log(SBX_LOG_WARNING, "end not recorded: claim lost run=%s", j->run.id);
		return;
	}
	if (rc < 0) {
		/* The door ends it, as runner_lost, when this process is gone. */
		j->unrecorded = true;
		sbx_log(SBX_LOG_ERROR, "end not recorded run=%s error=\"%s\"", j->run.id,
			e.message);
		return;
	}
	crash_point("after_end");
	rc = store_settle(j->r->store, ticket, &e);
	if (rc < 0)
		sbx_log(SBX_LOG_ERROR, "end not durable run=%s error=\"%s\"", j->run.id, e.message);
	crash_point("after_settle");
}

/* What is known of where it executed, or was to. */
static void add_facts(const struct job *j, struct orch_outcome *out)
{
	struct rt_facts f = { 0 };

	if (j->r->sandbox && j->r->driver->facts)
		j->r->driver->facts(j->r->sandbox, &f);
	out->runtime_version = f.runtime_version;
	out->image_digest = j->plan.image_digest[0] ? j->plan.image_digest : f.image_digest;
}

static void finish(struct job *j)
{
	sbx_autobuf usage = SBX_BUF_INIT(16 << 10);
	__attribute__((cleanup(collected_clear))) struct collected arts = { 0 };
	sbx_autoerror e = SBX_ERROR_INIT;
	struct orch_outcome out = { 0 };
	char message[256];

	if (j->executing) {
		j->end.wall_us = sbx_boot_us() - j->started_us;
		j->end.workspace_full |= is_full(j->fds.workspace);
	}
	close_streams(j);
	crash_point("before_artifacts");
	if (j->executing && !j->end.cancelled &&
	    collect_artifacts(j->r, &j->run, j->spec, j->fds.workspace, &arts, &e) < 0) {
		sbx_log(SBX_LOG_ERROR, "artifacts incomplete run=%s error=\"%s\"", j->run.id,
			e.message);
		arts.skip_read_error++;
	}
	out.started_us = j->started_wall_us;
	add_facts(j, &out);
	out.n_patterns = j->spec->n_capture_patterns;
	out.artifact_user_max = j->r->settings->max_artifact_bytes_per_user_mb << 20;
	outcome_make(j->spec, &j->plan.plan, &j->end, j->log, &arts, &usage, message, &out);
	record(j, &out);
}

/* The sandbox could not be made. */
static void failed(struct job *j, const struct sbx_error *why)
{
	struct orch_outcome out = {
		.phase = STORE_FAILED,
		.reason = why->code == SBX_E_POLICY_UNSUPPORTED	   ? "policy_failed"
			  : why->code == SBX_E_RUNTIME_UNAVAILABLE ? "runtime_unavailable"
			  : why->code == SBX_E_WORKSPACE_CAP	   ? "limits_applied"
								   : "runtime_error",
		.message = why->message,
		.usage = "{}",
		.started_us = j->started_wall_us,
	};

	if (why->code == SBX_E_CLAIM_LOST || !j->run.id)
		return;
	add_facts(j, &out);
	sbx_log(SBX_LOG_WARNING, "run could not start run=%s code=%s error=\"%s\"", j->run.id,
		sbx_code_name(why->code), why->message);
	record(j, &out);
}

bool job_run(struct runner *r, const struct orch_order *order)
{
	struct job j = { .r = r,
			 .generation = order->generation,
			 .fds = { -1, -1, -1, -1, -1 },
			 .plan = { .workspace = -1, .image_held = -1 },
			 .feeder = { .fd = -1, .spool = -1 },
			 .claimed_us = sbx_boot_us(),
			 .deadline_us = INT64_MAX,
			 .kill_us = INT64_MAX,
			 .announce_us = INT64_MAX,
			 .measure_us = INT64_MAX };
	struct rt_waiting waiting = { .bell = r->bell, .turn = turn };
	bool known = true;
	sbx_autoerror e = SBX_ERROR_INIT;
	int rc;

	waiting.ctx = &j;
	r->host.waiting = &waiting;
	j.renew_us = j.claimed_us + r->settings->run_claim_lease_sec * SBX_SECOND_US / 3;
	r->tick = tick;
	r->tick_ctx = &j;
	crash_point("claimed");
	rc = load(&j, order, &e);
	if (rc == 0)
		rc = begin(&j, &e);
	r->host.waiting = NULL;
	if (rc < 0 && given_up(&j))
		rc = 0; /* the driver failed because it was told to */
	if (rc < 0) {
		known = j.run.id || rc == -SBX_E_CLAIM_LOST;
		failed(&j, &e);
	} else {
		watch_fd(&j, r->bell, EPOLLIN, SRC_BELL);
		watch_fd(&j, r->timer, EPOLLIN, SRC_TIMER);
		if (j.executing)
			loop(&j);
		unwatch_fd(&j, r->bell);
		unwatch_fd(&j, r->timer);
		if (!j.lost_claim)
			finish(&j);
	}
	r->tick = NULL;
	/* What was begun and has not ended must not go on until somebody has time to remove it. */
	if (!j.reaped)
		job_kill(&j);
	job_clear(&j);
	return known && !j.unrecorded;
}
