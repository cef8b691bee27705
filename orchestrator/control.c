/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Acting on a run: cancel, signals, stdin. Cancel is an intent in the row; signals, end of input
 * and stdin bytes are appended to files of the run, so that they are in order, survive every
 * process, and any door can send them. Then the doorbell (store_run_ring) makes the runner look.
 */
#include "orchestrator/orch_i.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/crash.h"
#include "base/fs.h"
#include "base/id.h"

enum {
	CTL_MAX = 64 << 10,	/* bytes of signals and the like that one run may be sent */
	NOTICES_MAX = 32 << 10, /* ... of ctl, behind which notices of cuts are left out */
};

int orch_run_get(struct orch *o, const struct orch_principal *p, const char *id,
		 struct store_run *ret, struct sbx_error *e)
{
	int rc = sbx_id_valid(id) ? store_run_get(o->store, id, ret, e) : -SBX_E_RUN_NOT_FOUND;

	if (rc == 0 && !p->admin && strcmp(ret->user, p->user) != 0) {
		store_run_clear(ret);
		rc = -SBX_E_RUN_NOT_FOUND;
	}
	/* One text for unknown and foreign, so that it tells nothing. */
	return rc == -SBX_E_RUN_NOT_FOUND ? sbx_fail(e, SBX_E_RUN_NOT_FOUND, "no run '%.64s'", id)
					  : rc;
}

/* The end of a run that nobody had claimed yet. */
static int end_queued(struct store_tx *tx, const struct store_run *r, bool *done,
		      struct sbx_error *e)
{
	struct store_transition t = { .id = r->id,
				      .from = STORE_MASK(STORE_QUEUED),
				      .generation = r->generation,
				      .to = STORE_KILLED,
				      .reason = "canceled_by_user",
				      .message = "canceled_by_user",
				      .finished_us = sbx_now_us() };

	return store_tx_run_transition(tx, &t, done, e);
}

int orch_run_cancel(struct orch *o, const struct orch_principal *p, const char *id,
		    enum store_cancel how, bool *ret_done, struct sbx_error *e)
{
	store_autorun r = { 0 };
	store_autotx struct store_tx *tx = NULL;
	struct store_audit audit = { .at_us = sbx_now_us(),
				     .user = p->user,
				     .door = p->door,
				     .action = how == STORE_CANCEL_KILL ? "kill" : "cancel",
				     .resource = id,
				     .result = "accepted" };
	bool ended = false;
	int rc = orch_run_get(o, p, id, &r, e);

	*ret_done = false;
	if (rc < 0)
		return rc;
	store_run_clear(&r);
	rc = store_begin(o->store, &tx, e);
	if (rc == 0)
		rc = store_tx_run_get(tx, id, &r, e);
	if (rc == 0 && r.phase == STORE_QUEUED) {
		rc = end_queued(tx, &r, &ended, e);
		*ret_done = ended;
	} else if (rc == 0) {
		rc = store_tx_run_cancel(tx, id, how, ret_done, e);
	}
	if (rc == 0 && *ret_done)
		rc = store_tx_audit(tx, &audit, e);
	if (rc < 0)
		return rc;
	crash_point("door_cancel_marked");
	rc = store_commit(sbx_steal(&tx), *ret_done, e);
	crash_point("door_cancel_committed");
	if (rc < 0 || !*ret_done)
		return rc;
	if (!ended)
		(void)store_run_ring(o->store, id);
	return 0;
}

/* ---- ctl ------------------------------------------------------------------------------------- */

static const struct {
	const char *name;
	int sig;
} signals[] = {
	{ "HUP", SIGHUP },     { "INT", SIGINT },   { "QUIT", SIGQUIT }, { "ILL", SIGILL },
	{ "TRAP", SIGTRAP },   { "ABRT", SIGABRT }, { "BUS", SIGBUS },	 { "FPE", SIGFPE },
	{ "KILL", SIGKILL },   { "USR1", SIGUSR1 }, { "SEGV", SIGSEGV }, { "USR2", SIGUSR2 },
	{ "PIPE", SIGPIPE },   { "ALRM", SIGALRM }, { "TERM", SIGTERM }, { "CHLD", SIGCHLD },
	{ "CONT", SIGCONT },   { "STOP", SIGSTOP }, { "TSTP", SIGTSTP }, { "TTIN", SIGTTIN },
	{ "TTOU", SIGTTOU },   { "URG", SIGURG },   { "XCPU", SIGXCPU }, { "XFSZ", SIGXFSZ },
	{ "WINCH", SIGWINCH },
};

/* "TERM", "SIGTERM", "15"; 0 when it is none. */
static int signal_number(const char *name)
{
	char *end;
	long n = strtol(name, &end, 10);

	if (end != name && *end == '\0')
		return n > 0 && n < NSIG ? (int)n : 0;
	if (strncmp(name, "SIG", 3) == 0)
		name += 3;
	for (size_t i = 0; i < SBX_COUNT(signals); i++)
		if (strcmp(signals[i].name, name) == 0)
			return signals[i].sig;
	return 0;
}

/* Takes the lock of a file of the run, which all writers on every door keep its limit by, and tells
 * its size. It is given back when the file is closed. */
static int lock_file(int fd, const char *file, int64_t *ret_size, struct sbx_error *e)
{
	struct stat st;

	if (flock(fd, LOCK_EX) < 0 || fstat(fd, &st) < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno,
				      "cannot lock %s of the run", file);
	*ret_size = st.st_size;
	return 0;
}

/* Behind its `size` bytes, all or nothing. */
static int append(int fd, const char *file, int64_t size, const void *data, size_t len,
		  struct sbx_error *e)
{
	ssize_t n = write(fd, data, len);

	if (n >= 0 && (size_t)n == len)
		return 0;
	if (n > 0 && ftruncate(fd, size) < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno, "cannot undo a part of %s",
				      file);
	return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, n < 0 ? errno : ENOSPC, "cannot write %s",
			      file);
}

static int open_file(int dir, const char *file, int *ret, struct sbx_error *e)
{
	*ret = sbx_open_beneath(dir, file, O_WRONLY | O_APPEND | O_CREAT, 0600);
	if (*ret >= 0)
		return 0;
	return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, -*ret, "cannot open %s of the run", file);
}

/* Appends to a file of the run, up to max bytes of file, WORKSPACE_CAP above them. */
static int put(int dir, const char *file, const void *data, size_t len, int64_t max,
	       struct sbx_error *e)
{
	sbx_autoclose int fd = -1;
	int64_t size;
	int rc = open_file(dir, file, &fd, e);

	if (rc == 0)
		rc = lock_file(fd, file, &size, e);
	if (rc < 0)
		return rc;
	if ((uint64_t)size + len > (uint64_t)max)
		return sbx_fail(e, SBX_E_WORKSPACE_CAP,
				"%s: %lld bytes were given already, the limit is %lld", file,
				(long long)size, (long long)max);
	return append(fd, file, size, data, len, e);
}

/* Appends for the runner and rings. */
static int tell_runner(struct orch *o, const char *id, const char *file, const void *data,
		       size_t len, int64_t max, struct sbx_error *e)
{
	sbx_autoclose int dir = store_run_dir(o->store, id, true, e);
	int rc = dir < 0 ? dir : put(dir, file, data, len, max, e);

	crash_point("door_told_runner");
	if (rc == 0)
		(void)store_run_ring(o->store, id);
	return rc;
}

static int ctl_signal(struct orch *o, const struct store_run *r, const char *name,
		      struct sbx_error *e)
{
	int sig = signal_number(name);
	char line[32];

	if (!sig)
		return sbx_fail(
			e, SBX_E_INVALID_ARGUMENT,
			"signal: found '%.32s', allowed a name like TERM or a number from 1 "
			"to %d",
			name, NSIG - 1);
	(void)snprintf(line, sizeof(line), "signal %d\n", sig);
	return tell_runner(o, r->id, "ctl", line, strlen(line), CTL_MAX, e);
}

int orch_run_ctl(struct orch *o, const struct orch_principal *p, const char *id, const char *text,
		 size_t len, struct sbx_error *e)
{
	store_autorun r = { 0 };
	char word[32] = "", arg[32] = "", rest[2] = "", line[128];
	bool done;
	int rc = orch_run_get(o, p, id, &r, e);

	if (rc < 0)
		return rc;
	if (len >= sizeof(line) || memchr(text, '\0', len))
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT,
				"ctl: allowed cancel, kill, signal NAME or eof");
	memcpy(line, text, len);
	line[len] = '\0';
	if (sscanf(line, "%31s %31s %1s", word, arg, rest) < 1 || rest[0])
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT,
				"ctl: found '%.64s', allowed cancel, kill, signal NAME or eof",
				line);
	if (strcmp(word, "cancel") == 0 && !*arg)
		return orch_run_cancel(o, p, id, STORE_CANCEL_TERM, &done, e);
	if (strcmp(word, "kill") == 0 && !*arg)
		return orch_run_cancel(o, p, id, STORE_CANCEL_KILL, &done, e);
	if (strcmp(word, "signal") != 0 && !(strcmp(word, "eof") == 0 && !*arg))
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT,
				"ctl: found '%.31s', allowed cancel, kill, signal NAME or eof",
				word);
	if (store_phase_terminal(r.phase))
		return sbx_fail(e, SBX_E_RUN_ENDED, "run %s has ended", r.id);
	if (strcmp(word, "signal") == 0)
		return ctl_signal(o, &r, arg, e);
	if (!r.interactive)
		return sbx_fail(e, SBX_E_NOT_INTERACTIVE,
				"run %s takes no input; start it with \"interactive\":true", r.id);
	return tell_runner(o, r.id, "ctl", "eof\n", 4, CTL_MAX, e);
}

/* ---- stdin ----------------------------------------------------------------------------------- */

/* The document can only lower what the operator allows. */
static int limits_of(struct orch *o, const struct store_run *r, struct orch_stdin_limits *ret,
		     struct sbx_error *e)
{
	sbx_autofree char *text = NULL;
	ms_autorun struct ms_run_spec *spec = NULL;
	const struct ms_options opts = { .stored = true };
	int64_t most = orch_settings(o)->stdin_max_bytes_default;
	int rc = store_run_spec(o->store, r->id, &text, e);

	if (rc == 0)
		rc = ms_run_parse(text, strlen(text), &opts, &spec, e);
	if (rc < 0)
		return rc;
	ret->total = spec->stdin_max_bytes >= 0 && spec->stdin_max_bytes < most
			     ? spec->stdin_max_bytes
			     : most;
	ret->frame = spec->stdin_max_frame_bytes;
	ret->bps = spec->stdin_bps;
	return 0;
}

int orch_stdin_limits(struct orch *o, const struct orch_principal *p, const char *id,
		      struct orch_stdin_limits *ret, struct sbx_error *e)
{
	store_autorun r = { 0 };
	int rc = orch_run_get(o, p, id, &r, e);

	if (rc < 0)
		return rc;
	if (!r.interactive)
		return sbx_fail(e, SBX_E_NOT_INTERACTIVE,
				"run %s takes no input; start it with \"interactive\":true", r.id);
	if (store_phase_terminal(r.phase))
		return sbx_fail(e, SBX_E_RUN_ENDED, "run %s has ended", r.id);
	return limits_of(o, &r, ret, e);
}

int orch_run_stdin(struct orch *o, const struct orch_principal *p, const char *id, const void *data,
		   size_t len, struct sbx_error *e)
{
	struct orch_stdin_limits limits;
	int rc = orch_stdin_limits(o, p, id, &limits, e);

	if (rc < 0)
		return rc;
	if (limits.frame >= 0 && len > (uint64_t)limits.frame)
		return sbx_fail(e, SBX_E_SPEC_TOO_LARGE,
				"stdin: found %zu bytes at once, stdin_max_frame_bytes allows %lld",
				len, (long long)limits.frame);
	return len ? tell_runner(o, id, "stdin", data, len, limits.total, e) : 0;
}

/* A line that makes the runner, the only writer of the log, put a frame there. Those that find no
 * room are left out, so that a client cannot use up what signals need. */
static void put_notice(int dir, const char *reason)
{
	char line[64];
	int n = snprintf(line, sizeof(line), "truncated %s\n", reason);

	(void)put(dir, "ctl", line, (size_t)n, NOTICES_MAX, NULL);
}

int orch_run_type(struct orch *o, const char *id, const struct orch_stdin_limits *limits,
		  const char *reason, const void *data, size_t len, struct sbx_error *e)
{
	sbx_autoclose int dir = store_run_dir(o->store, id, true, e);
	sbx_autoclose int fd = -1;
	int64_t size, room;
	int rc = dir < 0 ? dir : open_file(dir, "stdin", &fd, e);

	if (rc == 0)
		rc = lock_file(fd, "stdin", &size, e);
	if (rc < 0)
		return rc;
	room = limits->total > size ? limits->total - size : 0;
	if (len > (uint64_t)room) {
		len = (size_t)room;
		reason = reason ? reason : "stdin_cap";
	}
	if (reason)
		put_notice(dir, reason); /* the runner reads ctl before stdin */
	rc = len ? append(fd, "stdin", size, data, len, e) : 0;
	crash_point("door_told_runner");
	if (rc == 0)
		(void)store_run_ring(o->store, id);
	return rc;
}
