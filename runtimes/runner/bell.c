/* SPDX-License-Identifier: Apache-2.0 */
/* What reaches a run while it executes: cancels, signals and the end of input, by the doorbell; and
 * time. */
#include "runtimes/runner/job_i.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "store/snap.h"

/* ---- stopping -------------------------------------------------------------------------------- */

void job_kill(struct job *j)
{
	j->kill_us = INT64_MAX;
	if (!j->r->sandbox) /* it is not made yet */
		return;
	(void)j->r->driver->signal(j->r->sandbox, RT_SIGNAL_ALL, SIGKILL);
}

void job_stop(struct job *j, bool at_once)
{
	int64_t grace = j->r->settings->cancel_grace_seconds * SBX_SECOND_US;

	j->deadline_us = INT64_MAX;
	if (at_once || grace <= 0) {
		job_kill(j);
		return;
	}
	if (j->kill_us != INT64_MAX)
		return;
	j->kill_us = sbx_boot_us() + grace;
	(void)j->r->driver->signal(j->r->sandbox, RT_SIGNAL_ALL, SIGTERM);
	/* A stopped process cannot die of TERM. */
	(void)j->r->driver->signal(j->r->sandbox, RT_SIGNAL_ALL, SIGCONT);
}

/* ---- the doorbell: cancel, signals, end of input --------------------------------------------- */

/* A door has cut input. */
static void note_cut(struct job *j, const char *reason)
{
	static const char *const reasons[] = { "stdin_frame_cap", "stdin_rate", "stdin_cap" };

	for (size_t i = 0; i < SBX_COUNT(reasons); i++)
		if (strcmp(reason, reasons[i]) == 0 && !j->log_broken)
			(void)log_writer_truncated(j->log, reasons[i], NULL);
}

/* False: not yet, there is no command that could take it. */
static bool obey(struct job *j, const char *line)
{
	static const char cut[] = "truncated ";
	int sig;

	if (strcmp(line, "eof") == 0)
		j->feeder.eof = true;
	if (strncmp(line, cut, sizeof(cut) - 1) == 0) {
		if (j->executing)
			note_cut(j, line + sizeof(cut) - 1);
		return j->executing;
	}
	if (sscanf(line, "signal %d", &sig) != 1)
		return true;
	if (j->executing)
		(void)j->r->driver->signal(j->r->sandbox, RT_SIGNAL_COMMAND, sig);
	return j->executing;
}

void job_ctl(struct job *j)
{
	sbx_autoclose int dir = store_run_dir(j->r->store, j->run.id, false, NULL);
	sbx_autoclose int fd = dir < 0 ? -1 : sbx_open_beneath(dir, "ctl", O_RDONLY, 0);
	char buf[4096], *line, *end;
	ssize_t n;

	if (fd < 0)
		return;
	while ((n = pread(fd, buf, sizeof(buf) - 1, j->ctl_off)) > 0) {
		buf[n] = '\0';
		for (line = buf; (end = strchr(line, '\n')); line = end + 1) {
			*end = '\0';
			if (!obey(j, line))
				return;
			j->ctl_off += end + 1 - line;
		}
		if (line == buf)
			break; /* half a line: its writer will ring again */
	}
}

static void read_cancel(struct job *j)
{
	store_autorun now = { 0 };

	if (store_run_get(j->r->store, j->run.id, &now, NULL) < 0)
		return;
	if (now.generation != j->generation || store_phase_terminal(now.phase)) {
		j->lost_claim = true;
		job_kill(j);
		return;
	}
	if (now.cancel > j->end.how) {
		j->end.how = now.cancel;
		j->end.cancelled = true;
		if (j->executing)
			job_stop(j, now.cancel == STORE_CANCEL_KILL);
	}
}

bool job_rang(const struct job *j)
{
	char buf[4096];
	bool rang = false;

	while (read(j->r->bell, buf, sizeof(buf)) > 0)
		rang = true;
	return rang;
}

void job_bell(struct job *j)
{
	if (!job_rang(j))
		return;
	job_ctl(j);
	read_cancel(j);
}

#define MEASURE_EVERY_US (SBX_SECOND_US / 2)

/* ---- time ------------------------------------------------------------------------------------ */

void job_renew(struct job *j, int64_t now)
{
	int64_t lease = j->r->settings->run_claim_lease_sec * SBX_SECOND_US;
	sbx_autoerror e = SBX_ERROR_INIT;
	int rc = orch_phase_renew(j->r->store, j->run.id, j->generation, lease, &e);

	j->renew_us = now + lease / 3;
	if (rc == -SBX_E_CLAIM_LOST) {
		sbx_log(SBX_LOG_WARNING, "claim lost, killing the sandbox run=%s", j->run.id);
		j->lost_claim = true;
		job_kill(j);
	} else if (rc == 0) {
		read_cancel(j); /* the door that wrote it may have died before it could ring */
	} else {
		/* Tried again soon: the lease still has two thirds. */
		j->renew_us = now + SBX_SECOND_US;
		sbx_log(SBX_LOG_WARNING, "cannot renew the lease run=%s error=\"%s\"", j->run.id,
			e.message);
	}
}

/* The workspace of a session is a directory of the host's disk, which has no size of its own. What
 * was written too much between two looks stays, but nothing more comes. A look at a large tree
 * takes a twentieth of the time at most. */
static void measure(struct job *j, int64_t now)
{
	const struct rt_limits *l = &j->plan.plan.limits;
	struct snap_sums sums = { 0 };
	int64_t took, rest = MEASURE_EVERY_US;

	if (snap_measure(j->plan.workspace, &sums, NULL) == 0 &&
	    (sums.bytes > l->workspace_bytes || sums.entries > l->workspace_inodes)) {
		j->end.workspace_full = true;
		job_kill(j);
	}
	took = sbx_boot_us() - now;
	if (took * 20 > rest)
		rest = took * 20;
	j->measure_us = now + rest;
}

void job_timers(struct job *j)
{
	int64_t now = sbx_boot_us();

	if (now >= j->kill_us)
		job_kill(j);
	if (now >= j->deadline_us) {
		j->end.timed_out = !j->end.cancelled;
		job_stop(j, false);
	}
	if (now >= j->renew_us)
		job_renew(j, now);
	if (now >= j->measure_us)
		measure(j, now);
}
