/* SPDX-License-Identifier: Apache-2.0 */
/* sandboxfs: the mount. This file is about the process: command line, background, mounting,
 * signals, threads, and a clean way out. */
#include "fsd/fsd_i.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crash.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/process.h"
#include "fsd/options.h"

static int ready_pipe = -1; /* towards the waiting parent */

struct server {
	struct fsd fsd;
	pthread_t threads[FSD_THREADS];
	size_t n_threads;
	int ended; /* eventfd: a server thread saw the end of the session */
	int ready; /* eventfd: the kernel has answered, so the mount works */
	bool mounted;
	bool passes; /* the kernel reads files by itself */
};

/* ---- server threads -------------------------------------------------------------------------- */

static void *serve_requests(void *arg)
{
	struct server *s = arg;
	struct fuse_buf buf = { .mem = NULL };
	uint64_t one = 1;

	while (!fuse_session_exited(s->fsd.se)) {
		int n = fuse_session_receive_buf(s->fsd.se, &buf);

		if (n == -EINTR || n == -EAGAIN)
			continue;
		if (n <= 0)
			break;
		fuse_session_process_buf(s->fsd.se, &buf);
	}
	free(buf.mem);
	fuse_session_exit(s->fsd.se);
	if (write(s->ended, &one, sizeof(one)) < 0)
		sbx_log(SBX_LOG_ERROR, "cannot tell the main thread");
	return NULL;
}

static void nothing(int sig)
{
	(void)sig;
}

/* Each before those that use it: the feed hands news to the kicker, a handler gives the feed logs
 * to watch. */
static int start_threads(struct server *s, struct sbx_error *e)
{
	struct fsd *f = &s->fsd;

	if (orch_settings(f->orch)->inotify && !(f->kicker = kicker_start(f, e)))
		return -(int)e->code;
	f->feed = feed_start(f, e);
	if (!f->feed || !(f->writers = writers_start(f, e)) || work_start(f->work, e) < 0)
		return -(int)e->code;
	for (; s->n_threads < FSD_THREADS; s->n_threads++) {
		int r = pthread_create(&s->threads[s->n_threads], NULL, serve_requests, s);

		if (r != 0)
			return sbx_fail_errno(e, SBX_E_INTERNAL, r, "cannot start a thread");
	}
	return 0;
}

/* A thread may be between its look at the flag and its read: the signal is sent until it has gone.
 */
static void stop_threads(struct server *s)
{
	fuse_session_exit(s->fsd.se);
	for (size_t i = 0; i < s->n_threads; i++) {
		struct timespec ts;

		do {
			(void)pthread_kill(s->threads[i], SIGUSR1);
			(void)clock_gettime(CLOCK_REALTIME, &ts);
			ts.tv_nsec += 5000000;
			if (ts.tv_nsec >= 1000000000) {
				ts.tv_sec++;
				ts.tv_nsec -= 1000000000;
			}
		} while (pthread_timedjoin_np(s->threads[i], NULL, &ts) == ETIMEDOUT);
	}
	s->n_threads = 0;
}

/* ---- mounting -------------------------------------------------------------------------------- */

/* From here on nobody reads our standard error: lines go to a file in the state directory. */
static void leave_terminal(const struct fsd_options *o)
{
	sbx_autofree char *path = NULL;
	int null = open("/dev/null", O_RDWR | O_CLOEXEC), log = -1;

	if (asprintf(&path, "%s/sandboxfs.log", o->state) > 0)
		log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (null >= 0) {
		(void)dup2(null, 0);
		(void)dup2(null, 1);
		(void)dup2(log >= 0 ? log : null, 2);
	}
	sbx_closep(&null);
	sbx_closep(&log);
}

static void ready(void *ctx)
{
	const struct server *s = ctx;
	uint64_t one = 1;

	if (write(s->ready, &one, sizeof(one)) < 0)
		sbx_log(SBX_LOG_ERROR, "cannot tell the main thread");
}

static int wait_until_ready(struct server *s, struct sbx_error *e)
{
	struct pollfd p[2] = { { .fd = s->ready, .events = POLLIN },
			       { .fd = s->ended, .events = POLLIN } };

	while (poll(p, 2, -1) < 0)
		if (errno != EINTR)
			return sbx_fail_errno(e, SBX_E_INTERNAL, errno,
					      "cannot wait for the mount");
	return p[0].revents ? 0
			    : sbx_fail(e, SBX_E_INTERNAL, "the mount ended before it was ready");
}

static void tell_parent(void)
{
	if (ready_pipe < 0)
		return; /* in the foreground nobody waits */
	if (write(ready_pipe, "1", 1) != 1)
		sbx_log(SBX_LOG_WARNING, "the starting process is gone");
	sbx_closep(&ready_pipe);
}

static int make_session(struct server *s, const struct fsd_options *o, struct sbx_error *e)
{
	struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
	sbx_autofree char *opts = NULL;
	struct fsd *f = &s->fsd;
	int r;

	/* nosuid,nodev are the kernel's default for FUSE and said all the same. Permissions are the
	 * kernel's to check when others may come in; alone, the owner needs no check, and our own
	 * kicks (kick.c) would fail one. */
	f->enforce = o->allow_other || geteuid() == 0;
	r = asprintf(&opts, "fsname=sandboxfs,subtype=sandboxfs,nosuid,nodev%s%s%s",
		     f->enforce ? ",default_permissions" : "", o->fuse_opts ? "," : "",
		     o->fuse_opts ? o->fuse_opts : "");
	if (r < 0 || fuse_opt_add_arg(&args, "sandboxfs") < 0 ||
	    fuse_opt_add_arg(&args, "-o") < 0 || fuse_opt_add_arg(&args, opts) < 0 ||
	    (o->debug && fuse_opt_add_arg(&args, "-d") < 0)) {
		fuse_opt_free_args(&args);
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	}
	f->se = fuse_session_new(&args, &fsd_ops, sizeof(fsd_ops), f);
	fuse_opt_free_args(&args);
	if (!f->se)
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "libfuse refuses the mount options");
	if (fuse_session_mount(f->se, o->mountpoint) != 0)
		return sbx_fail(
			e, SBX_E_INTERNAL,
			"cannot mount on '%s': is /dev/fuse there, may this user mount, and "
			"is user_allow_other in /etc/fuse.conf for -o allow_other?",
			o->mountpoint);
	s->mounted = true;
	return fsd_wire_up(f) == 0 ? 0 : sbx_fail(e, SBX_E_INTERNAL, "libfuse refuses its input");
}

static int start(struct server *s, const struct fsd_options *o, struct sbx_error *e)
{
	struct orch_options oo = { .state_dir = o->state,
				   .config_path = o->config,
				   .overrides = (const char *const *)o->overrides,
				   .n_overrides = o->n_overrides,
				   .runner = getenv("SANDBOXFS_RUNNER"),
				   .mountpoint = o->mountpoint,
				   .door = "fs",
				   .workers = o->workers };
	struct fsd *f = &s->fsd;
	struct store_run_key newest;
	int rc;

	pthread_mutex_init(&f->handles_lock, NULL);
	pthread_mutex_init(&f->shares_lock, NULL);
	rc = orch_open(&oo, &f->orch, e);
	if (rc == 0)
		rc = orch_sessions_recover(f->orch, e);
	if (rc < 0)
		return rc;
	f->store = orch_store(f->orch);
	f->mountpoint = o->mountpoint;
	f->uid = getuid();
	f->started_us = sbx_now_us();
	f->n_admins = orch_admin_uids(f->orch, f->admins);
	f->on_ready = ready;
	f->on_ready_ctx = s;
	f->results = results_new();
	f->real = real_new();
	f->parking = parking_new(f);
	f->work = work_open(f);
	f->shots = shot_open();
	f->passes = pass_new();
	f->comings = coming_all_new();
	f->failures = failures_new();
	if (!f->passes || !f->comings || !f->failures || !f->results || !f->real || !f->parking ||
	    !f->work || !f->shots)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	if (!orch_settings(f->orch)->inotify)
		f->announced_row = INT64_MAX;
	else if (store_run_latest(f->store, NULL, &newest, NULL) == 0)
		f->announced_row = newest.row;
	rc = make_session(s, o, e);
	if (rc == 0)
		rc = start_threads(s, e);
	if (rc == 0)
		rc = wait_until_ready(s, e);
	if (rc == 0) {
		s->passes = pass_start(f);
		kicker_serving(f->kicker);
	}
	/* Before there are runners: they inherit standard error and may live longer than we do, and
	 * whoever reads the other end of it would wait for them. */
	if (rc == 0 && ready_pipe >= 0)
		leave_terminal(o);
	return rc == 0 ? orch_start(f->orch, e) : rc;
}

/* libfuse then unmounts nothing, whatever is at the path by now, and only frees what it keeps. */
static bool is_disconnected(struct fuse_session *se)
{
	struct pollfd p = { .fd = se ? fuse_session_fd(se) : -1, .events = POLLIN };

	return poll(&p, 1, 0) == 1 && (p.revents & POLLERR);
}

/* The feed first, which tells the kicker; then the kicker, which uses the mount; then the servers;
 * then the writers and the reads that are parked; then the open files. */
static void stop(struct server *s)
{
	struct fsd *f = &s->fsd;

	feed_stop(f->feed);
	work_stop(f->work);
	kicker_stop(f->kicker);
	if (f->se)
		stop_threads(s);
	orch_stop_helpers(f->orch);
	writers_stop(f->writers);
	parking_end(f->parking);
	/* Runs that are bound to one of them end here: nobody can close it any more. */
	handle_close_all(f);
	work_free(f->work);
	shot_free(f->shots);
	pass_free(f->passes);
	failures_free(f->failures);
	coming_all_free(f->comings);
	writers_free(f->writers);
	feed_free(f->feed);
	parking_free(f->parking);
	free(f->holders);
	pthread_mutex_destroy(&f->handles_lock);
	pthread_mutex_destroy(&f->shares_lock);
	if (s->mounted || is_disconnected(f->se))
		fuse_session_unmount(f->se);
	if (s->mounted) /* after an abort libfuse takes it for unmounted */
		fsd_repair_mount(f->mountpoint);
	if (f->se)
		fuse_session_destroy(f->se);
	orch_close(f->orch);
	results_free(f->results);
	real_free(f->real);
}

/* ---- the main thread: signals ---------------------------------------------------------------- */

static void reload(struct fsd *f)
{
	sbx_autoerror e = SBX_ERROR_INIT;

	if (orch_reload(f->orch, &e) < 0)
		sbx_log(SBX_LOG_ERROR, "configuration not reloaded error=\"%s\"", e.message);
	else
		sbx_log(SBX_LOG_INFO, "configuration reloaded");
	work_new_epoch(f); /* it may say what a name stands for */
}

static void wait_for_end(struct server *s, int signals)
{
	struct pollfd p[3] = { { .fd = signals, .events = POLLIN },
			       { .fd = s->ended, .events = POLLIN },
			       { .fd = kicker_mounts_fd(s->fsd.kicker), .events = POLLPRI } };

	for (;;) {
		struct signalfd_siginfo si;

		if (poll(p, SBX_COUNT(p), -1) < 0 && errno != EINTR)
			return;
		if (p[1].revents)
			return;
		if (p[2].revents && !kicker_mounts_changed(s->fsd.kicker)) {
			/* Somebody unmounted us; what is there from now on is not ours to unmount.
			 */
			p[2].fd = -1;
			s->mounted = false;
		}
		if (!(p[0].revents & POLLIN) || read(signals, &si, sizeof(si)) != sizeof(si))
			continue;
		if (si.ssi_signo != SIGHUP)
			return;
		reload(&s->fsd);
	}
}

static int serve(const struct fsd_options *o, struct sbx_error *e)
{
	struct server s = { .ended = eventfd(0, EFD_CLOEXEC), .ready = eventfd(0, EFD_CLOEXEC) };
	struct sigaction sa = { .sa_handler = nothing };
	sbx_autoclose int signals = -1;
	int rc;

	signals = sbx_process_signals();
	(void)sigaction(SIGUSR1, &sa, NULL); /* no SA_RESTART: it ends a read */
	rc = start(&s, o, e);
	if (rc == 0) {
		sbx_log(SBX_LOG_INFO, "mounted mountpoint=%s state=%s passthrough=%s",
			o->mountpoint, o->state, s.passes ? "yes" : "no");
		tell_parent();
		sbx_process_ready();
		wait_for_end(&s, signals);
		sbx_process_stopping();
	}
	stop(&s);
	sbx_closep(&s.ended);
	sbx_closep(&s.ready);
	return rc;
}

/* ---- background ------------------------------------------------------------------------------ */

/* The parent waits until the mount is ready; what the child prints until then is the user's to see.
 */
static int wait_for_child(pid_t pid, int fd)
{
	char c;
	int status;
	ssize_t n;

	do {
		n = read(fd, &c, 1);
	} while (n < 0 && errno == EINTR);
	if (n == 1)
		return EX_OK;
	if (waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status))
		return WEXITSTATUS(status);
	return EX_SOFTWARE;
}

static int mount_and_serve(const struct fsd_options *o)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	int p[2];
	pid_t pid;

	fsd_repair_mount(o->mountpoint);
	if (fsd_check_places(o, &e) < 0)
		return sbx_exit_code(-1, &e);
	if (o->foreground)
		return sbx_exit_code(serve(o, &e), &e);
	if (pipe2(p, O_CLOEXEC) < 0 || (pid = fork()) < 0) {
		perror("sandboxfs");
		return EX_OSERR;
	}
	if (pid > 0) {
		close(p[1]);
		return wait_for_child(pid, p[0]);
	}
	close(p[0]);
	ready_pipe = p[1];
	(void)setsid();
	if (chdir("/") < 0)
		return EX_OSERR;
	return sbx_exit_code(serve(o, &e), &e);
}

/* ---- the other modes ------------------------------------------------------------------------- */

static int check(const struct fsd_options *o)
{
	struct orch_options oo = { .state_dir = o->state,
				   .config_path = o->config,
				   .overrides = (const char *const *)o->overrides,
				   .n_overrides = o->n_overrides,
				   .runner = getenv("SANDBOXFS_RUNNER"),
				   .door = "local",
				   .workers = 0 };
	sbx_autoerror e = SBX_ERROR_INIT;
	sbx_autobuf out = SBX_BUF_INIT(4 << 20);
	struct orch *orch = NULL;
	int rc = orch_open(&oo, &orch, &e);

	if (rc == 0)
		rc = orch_view_check(orch, o->json, &out, &e);
	if (rc == 0)
		(void)fwrite(out.data, 1, out.len, stdout);
	orch_close(orch);
	return sbx_exit_code(rc, &e);
}

static int print_config(const struct fsd_options *o)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	sbx_autobuf out = SBX_BUF_INIT(1 << 20);
	struct orch_settings *st = NULL;
	int rc = orch_settings_load(o->config, (const char *const *)o->overrides, o->n_overrides,
				    &st, &e);

	if (rc == 0) {
		orch_settings_print(st, &out);
		(void)fwrite(out.data ? out.data : "", 1, out.len, stdout);
	}
	orch_settings_free(st);
	return sbx_exit_code(rc, &e);
}

static int run_mode(struct fsd_options *o, char **argv)
{
	sbx_autoerror e = SBX_ERROR_INIT;

	switch (o->mode) {
	case FSD_HELP:
		fputs(fsd_usage, stdout);
		return EX_OK;
	case FSD_VERSION:
		printf("sandboxfs %s (libfuse %s)\n", SBX_VERSION, fuse_pkgversion());
		return EX_OK;
	case FSD_PRINT_CONFIG:
		return print_config(o);
	case FSD_IMPORT_IMAGE:
	case FSD_REMOVE_IMAGE:
	case FSD_LIST_IMAGES:
	case FSD_UNPACK_TREE:
		return sbx_exit_code(fsd_become_images(argv, &e), &e);
	case FSD_CHECK:
	case FSD_MOUNT:
		break;
	}
	if (fsd_choose_state(o, &e) < 0)
		return sbx_exit_code(-1, &e);
	return o->mode == FSD_CHECK ? check(o) : mount_and_serve(o);
}

int main(int argc, char **argv)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	struct fsd_options o;
	int rc;

	sbx_process_init("sandboxfs");
	rc = fsd_options_parse(argc, argv, &o, &e);
	if (rc < 0) {
		(void)sbx_exit_code(rc, &e);
		fprintf(stderr, "Try: sandboxfs --help\n");
		rc = EX_USAGE;
	} else {
		rc = run_mode(&o, argv);
	}
	fsd_options_clear(&o);
	return rc;
}
