/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sandbox-runner: started by a door with a socket as descriptor 3. It prepares an empty sandbox,
 * says "ready OWNER", waits for "run ID GENERATION", supervises that run, and begins again. When
 * the door is gone an idle runner ends; a busy one finishes first.
 *
 * sandbox-runner --preflight tries every runtime and prints what it found as JSON.
 */
#include "runtimes/runner/runner_i.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sysexits.h>

#include "base/clock.h"
#include "base/crash.h"
#include "base/log.h"

enum {
	DOOR_FD = 3,
	/* More than one run takes and gives back, or each would fault the same pages in again. */
	TRIM_BYTES = 256 << 10,
};

#define SWEEP_SOON_US (3 * SBX_SECOND_US)

struct args {
	const char *state, *config, *mountpoint;
	const char **overrides;
	size_t n_overrides;
	bool preflight;
};

static int parse_args(int argc, char **argv, struct args *a)
{
	static const struct option longs[] = {
		{ "state", required_argument, NULL, 's' },
		{ "config", required_argument, NULL, 'c' },
		{ "mountpoint", required_argument, NULL, 'm' },
		{ "preflight", no_argument, NULL, 'p' },
		{ "version", no_argument, NULL, 'V' },
		{ NULL, 0, NULL, 0 },
	};
	int c;

	a->overrides = calloc((size_t)argc + 1, sizeof(*a->overrides));
	if (!a->overrides)
		return EX_OSERR;
	while ((c = getopt_long(argc, argv, "o:", longs, NULL)) != -1) {
		switch (c) {
		case 's':
			a->state = optarg;
			break;
		case 'c':
			a->config = optarg;
			break;
		case 'm':
			a->mountpoint = optarg;
			break;
		case 'o':
			a->overrides[a->n_overrides++] = optarg;
			break;
		case 'p':
			a->preflight = true;
			break;
		case 'V':
			printf("sandbox-runner %s\n", SBX_VERSION);
			exit(EX_OK);
		default:
			return EX_USAGE;
		}
	}
	if (!a->state || optind != argc) {
		fprintf(stderr, "sandbox-runner is started by sandboxfs and sandbox-apid; see "
				"sandboxfs --help\n");
		return EX_USAGE;
	}
	return EX_OK;
}

static void fill_host(struct runner *r, const struct args *a)
{
	const struct orch_settings *s = r->settings;

	r->docker = (struct rt_docker){
		.host = s->docker_host,
		.seccomp = s->docker_seccomp,
		.apparmor = s->docker_apparmor_profile,
		.default_image = s->docker_default_image,
		.uid = (uint32_t)s->docker_default_uid,
		.gid = (uint32_t)s->docker_default_gid,
		.nproc = s->ulimit_nproc,
		.pull = s->docker_pull,
		.pull_timeout_sec = s->docker_pull_timeout_sec,
		.warm = s->docker_warm,
	};
	r->host = (struct rt_host){
		.state_dir = a->state,
		.mountpoint = a->mountpoint,
		.uid_base = (uint32_t)r->settings->uid_base,
		.uid_range = (uint32_t)r->settings->uid_range,
		.cgroup_root = r->settings->cgroup_root,
		.landlock = r->settings->landlock,
		.egress = r->settings->egress_enforcement &&
			  r->settings->egress_granular_enforcement && r->settings->egress_allowlist,
		.worktree = {
			.allowed_dirs = r->settings->worktree_allowed_dirs,
			.env = r->settings->worktree_env,
			.depth = r->settings->worktree_depth,
			.dirty_is_head = strcmp(r->settings->worktree_dirty, "head") == 0,
			.deny_all = r->settings->worktree_deny_all,
		},
		.docker = &r->docker,
	};
	if (s->docker_warm && strcmp(s->default_runtime, "docker") == 0) {
		plan_expect(r, &r->last_limits);
		r->host.expected = &r->last_limits;
	}
}

/* What dead runners left behind. A new runner mostly takes the place of one. */
static void sweep(struct runner *r)
{
	const struct rt_known *k;
	const struct rt_driver *d;

	for (size_t i = 0; (k = rt_known_at(i)); i++) {
		d = rt_driver_find(k->name);
		if (d)
			d->sweep(&r->host);
	}
}

static int64_t until_time(void *ctx, bool counts)
{
	const int64_t *at = ctx;

	(void)counts;
	return sbx_boot_us() < *at ? *at : RT_GIVE_UP;
}

/* The door waits for all that follows; what is left of this is for the next one. */
static void sweep_soon(struct runner *r)
{
	int64_t at = sbx_boot_us() + SWEEP_SOON_US;
	const struct rt_waiting waiting = { .bell = -1, .turn = until_time, .ctx = &at };

	r->host.waiting = &waiting;
	sweep(r);
	r->host.waiting = NULL;
}

static int preflight(struct runner *r)
{
	sbx_autobuf out = SBX_BUF_INIT(256 << 10);
	const struct rt_known *k;

	sweep_soon(r);
	sbx_buf_puts(&out, "{");
	for (size_t i = 0; (k = rt_known_at(i)); i++) {
		struct rt_preflight p = { 0 };

		rt_preflight(k->name, &r->host, &p);
		sbx_buf_printf(&out, "%s\"%s\":", i ? "," : "", k->name);
		rt_preflight_json(&p, &out);
		rt_preflight_clear(&p);
	}
	sbx_buf_puts(&out, "}\n");
	if (sbx_buf_failed(&out))
		return EX_OSERR;
	return fwrite(out.data, 1, out.len, stdout) == out.len && fflush(stdout) == 0 ? EX_OK
										      : EX_IOERR;
}

static bool say_ready(struct runner *r)
{
	char msg[256];
	int n = snprintf(msg, sizeof(msg), "ready %s", r->owner);

	return send(r->door, msg, (size_t)n, MSG_NOSIGNAL) == n;
}

/* Waits for one message; *ret borrows from it until the next. False: the door is gone, or wants us
 * gone. */
static bool wait_for_run(struct runner *r, struct orch_order *ret)
{
	static char msg[ORCH_ORDER_MAX + 1];
	ssize_t n;

	do {
		n = recv(r->door, msg, sizeof(msg) - 1, 0);
	} while (n < 0 && errno == EINTR);
	if (n <= 0)
		return false;
	msg[n] = '\0';
	return orch_order_read(msg, (size_t)n, ret);
}

/* True: no run is left in our hands. */
static bool serve(struct runner *r)
{
	struct orch_order order;

	for (;;) {
		stock_take(r);
		crash_point("idle");
		if (!say_ready(r))
			return true;
		stock_wait(r);
		if (!wait_for_run(r, &order))
			return true;
		if (!job_run(r, &order))
			return false;
		if (r->last_limits.pids) /* there was a plan */
			r->host.expected = &r->last_limits;
		stock_used(r);
	}
}

static int open_all(struct runner *r, const struct args *a, struct sbx_error *e)
{
	const struct store_options so = { .readers = 1, .existing = true };
	int rc = orch_settings_load(a->config, a->overrides, a->n_overrides, &r->settings, e);

	if (rc < 0)
		return rc;
	(void)sbx_log_set_level(r->settings->log_level);
	fill_host(r, a);
	if (a->preflight)
		return 0;
	r->owner = orch_owner_new();
	r->epoll = epoll_create1(EPOLL_CLOEXEC);
	r->timer = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
	if (!r->owner || r->epoll < 0 || r->timer < 0)
		return sbx_fail_errno(e, SBX_E_INTERNAL, errno, "cannot set up the runner");
	rc = store_open(a->state, &so, &r->store, e);
	return rc < 0 ? rc : store_runner_open(r->store, r->owner, &r->bell, &r->mark, e);
}

/* A run whose end could not be written is taken over by somebody else, who reads our mark. */
static void leave(struct runner *r, bool orderly)
{
	stock_clear(r);
	if (orderly)
		store_runner_remove(r->store, r->owner);
	store_close(r->store);
	orch_settings_free(r->settings);
	free(r->owner);
	sbx_closep(&r->epoll);
	sbx_closep(&r->timer);
	sbx_closep(&r->bell);
	sbx_closep(&r->mark);
}

int main(int argc, char **argv)
{
	struct runner r = { .door = DOOR_FD, .epoll = -1, .timer = -1, .bell = -1, .mark = -1 };
	struct rlimit files;
	struct args a = { 0 };
	sbx_autoerror e = SBX_ERROR_INIT;
	bool orderly = false;
	int rc = parse_args(argc, argv, &a);

	if (rc != EX_OK)
		return rc;
	sbx_log_set_program("sandbox-runner");
	(void)signal(SIGPIPE, SIG_IGN);
	(void)umask(077);
	/* One arena and early return of memory: a runner is small and there are many. */
	(void)mallopt(M_ARENA_MAX, 1);
	(void)mallopt(M_TRIM_THRESHOLD, TRIM_BYTES);
	if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
		files.rlim_cur = files.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &files);
	}
	if (open_all(&r, &a, &e) < 0) {
		sbx_log(SBX_LOG_ERROR, "cannot start code=%s error=\"%s\"", sbx_code_name(e.code),
			e.message);
		rc = e.code == SBX_E_INVALID_CONFIG ? EX_CONFIG : EX_UNAVAILABLE;
	} else if (a.preflight) {
		rc = preflight(&r);
	} else {
		(void)fcntl(DOOR_FD, F_SETFD, FD_CLOEXEC);
		sweep(&r);
		orderly = serve(&r);
	}
	leave(&r, orderly);
	free(a.overrides);
	return rc;
}
