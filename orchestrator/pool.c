/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runner processes. Each is a sandbox-runner with a socket to this door; it prepares an empty
 * sandbox, says so, and waits to be given a run. When the run is over it prepares the next one. A
 * runner lives in a session of its own and does not need us: when the socket closes, an idle one
 * ends and a busy one finishes its run first.
 *
 * orchestrator/order.h has what they say; each side sees the other's death as end of file.
 *
 * Threads: the list and the states are under `lock`. Runners are added and removed by the
 * dispatcher thread only; other threads take idle ones, assign them and give them back.
 */
#include "orchestrator/orch_i.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child.h"
#include "base/crash.h"
#include "base/clock.h"
#include "base/log.h"

enum runner_state {
	RUNNER_STARTING,
	RUNNER_IDLE,
	RUNNER_TAKEN, /* some thread is about to assign it or give it back */
	RUNNER_BUSY,
	RUNNER_LEAVING, /* told to end */
};

struct pool_runner {
	struct pool_runner *next;
	enum runner_state state;
	bool dead; /* seen to have ended, not yet removed */
	pid_t pid;
	int fd;				  /* SOCK_SEQPACKET, non-blocking, owned */
	const struct orch_config *config; /* that it was started with */
	char owner[192];
	char run_id[37]; /* while BUSY */
	int64_t generation;
};

struct pool {
	struct orch *o;
	int epoll; /* owned */
	pthread_mutex_t lock;
	struct pool_runner *runners; /* owns */
	int failures;		     /* runners in a row that died before they were ready */
	int64_t failed_us;	     /* when the last of them was started, boot clock */
	int64_t dismiss_at_us;	     /* when some of the idle may go; INT64_MAX: none */
	int64_t calm_since_us;	     /* since then nothing waits and more than the reserve idle */
	int64_t ready_us;	     /* when a runner has become idle last, boot clock */
	int64_t grow_at_us;  /* when another is to be started unless one becomes idle; INT64_MAX */
	int64_t busy_enough; /* runners that short runs keep all processors busy with */
};

enum { POOL_MAX_FAILURES = 8 };

#define POOL_LINGER_US (60 * SBX_SECOND_US)
#define POOL_RETRY_US  (10 * SBX_SECOND_US)
/* A runner that becomes idle within this time will take what waits sooner than a new one could. */
#define POOL_TURN_US (SBX_SECOND_US / 20)

struct pool *pool_new(struct orch *o, struct sbx_error *e)
{
	struct pool *p = calloc(1, sizeof(*p));

	if (!p) {
		sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the runners");
		return NULL;
	}
	p->o = o;
	p->dismiss_at_us = p->grow_at_us = INT64_MAX;
	p->busy_enough = 2 * sysconf(_SC_NPROCESSORS_ONLN);
	p->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (p->epoll < 0) {
		sbx_fail_errno(e, SBX_E_INTERNAL, errno, "cannot make an epoll descriptor");
		free(p);
		return NULL;
	}
	pthread_mutex_init(&p->lock, NULL);
	return p;
}

static void runner_free(struct pool_runner *r)
{
	sbx_closep(&r->fd);
	free(r);
}

struct pool *pool_free(struct pool *p)
{
	struct pool_runner *r;

	if (!p)
		return NULL;
	while ((r = p->runners)) {
		p->runners = r->next;
		runner_free(r); /* the closed socket tells it */
	}
	sbx_closep(&p->epoll);
	pthread_mutex_destroy(&p->lock);
	free(p);
	return NULL;
}

int pool_epoll_fd(const struct pool *p)
{
	return p->epoll;
}

const char *pool_owner(const struct pool_runner *r)
{
	return r->owner;
}

struct pool_runner *pool_take(struct pool *p)
{
	struct pool_runner *r;

	pthread_mutex_lock(&p->lock);
	for (r = p->runners; r; r = r->next) {
		if (r->state == RUNNER_IDLE && !r->dead) {
			r->state = RUNNER_TAKEN;
			break;
		}
	}
	pthread_mutex_unlock(&p->lock);
	return r;
}

void pool_give_back(struct pool *p, struct pool_runner *r)
{
	bool dead;

	pthread_mutex_lock(&p->lock);
	r->state = RUNNER_IDLE;
	dead = r->dead;
	pthread_mutex_unlock(&p->lock);
	if (dead)
		dispatch_wake(p->o);
}

void pool_assign(struct pool *p, struct pool_runner *r, const struct orch_order *order)
{
	sbx_autobuf msg = SBX_BUF_INIT(ORCH_ORDER_MAX);
	bool dead;

	orch_order_write(order, &msg);
	pthread_mutex_lock(&p->lock);
	r->state = RUNNER_BUSY;
	(void)snprintf(r->run_id, sizeof(r->run_id), "%s", order->id);
	r->generation = order->generation;
	/* Non-blocking and at most one message is ever in flight, so this cannot wait. A dead
	 * runner is seen as end of file by the dispatcher, which then finds the run in run_id. */
	if (!sbx_buf_failed(&msg))
		(void)send(r->fd, msg.data, msg.len, MSG_NOSIGNAL | MSG_DONTWAIT);
	dead = r->dead;
	pthread_mutex_unlock(&p->lock);
	if (dead)
		dispatch_wake(p->o);
}

/* argv of a runner; the strings are borrowed, the array is the caller's. */
static char **runner_argv(const struct orch *o)
{
	size_t n = 0;
	char **argv = calloc(10 + 2 * o->n_overrides, sizeof(*argv));

	if (!argv)
		return NULL;
	argv[n++] = o->runner;
	argv[n++] = (char *)(uintptr_t) "--state";
	argv[n++] = o->state_dir;
	argv[n++] = (char *)(uintptr_t) "--config";
	argv[n++] = (char *)(uintptr_t) "/proc/self/fd/4";
	if (o->mountpoint) {
		argv[n++] = (char *)(uintptr_t) "--mountpoint";
		argv[n++] = o->mountpoint;
	}
	for (size_t i = 0; i < o->n_overrides; i++) {
		argv[n++] = (char *)(uintptr_t) "-o";
		argv[n++] = o->overrides[i];
	}
	return argv;
}

/* Starts the program with the socket as its descriptor 3 and the configuration as its descriptor 4,
 * in a session of its own. */
static int spawn(const struct orch *o, const struct orch_config *c, int fd, pid_t *ret)
{
	sbx_autofree char **argv = runner_argv(o);
	const int fds[] = { SBX_SPAWN_NULL, SBX_SPAWN_NULL, SBX_SPAWN_SAME, fd, c->file };

	return argv ? sbx_spawn(argv, fds, SBX_COUNT(fds), true, ret) : ENOMEM;
}

static void start_runner(struct pool *p)
{
	struct pool_runner *r = calloc(1, sizeof(*r));
	int pair[2] = { -1, -1 }, rc;
	struct epoll_event ev = { .events = EPOLLIN };

	if (!r)
		return;
	r->fd = -1;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
		sbx_log(SBX_LOG_ERROR, "cannot make a socket for a runner error=\"%s\"",
			strerror(errno));
		free(r);
		return;
	}
	r->fd = pair[0];
	r->config = orch_config(p->o);
	(void)fcntl(r->fd, F_SETFL, O_NONBLOCK);
	rc = spawn(p->o, r->config, pair[1], &r->pid);
	crash_point("door_runner_started");
	close(pair[1]);
	ev.data.ptr = r;
	if (rc != 0 || epoll_ctl(p->epoll, EPOLL_CTL_ADD, r->fd, &ev) < 0) {
		sbx_log(SBX_LOG_ERROR, "cannot start runner program=%s error=\"%s\"", p->o->runner,
			strerror(rc ? rc : errno));
		p->failures++;
		p->failed_us = sbx_boot_us();
		runner_free(r);
		return;
	}
	pthread_mutex_lock(&p->lock);
	r->next = p->runners;
	p->runners = r;
	pthread_mutex_unlock(&p->lock);
}

/* It closed the socket by ending, so waiting for it is short. */
static void runner_ended(struct pool *p, struct pool_runner *r)
{
	(void)epoll_ctl(p->epoll, EPOLL_CTL_DEL, r->fd, NULL);
	(void)waitpid(r->pid, NULL, 0);
	pthread_mutex_lock(&p->lock);
	r->dead = true;
	pthread_mutex_unlock(&p->lock);
}

/* Removes the dead, except one that another thread has taken: it comes back with a run or
 * without, and the thread then wakes us. */
static bool bury(struct pool *p)
{
	struct pool_runner *r, *gone = NULL;

	pthread_mutex_lock(&p->lock);
	for (struct pool_runner **at = &p->runners; (r = *at);) {
		if (!r->dead || r->state == RUNNER_TAKEN) {
			at = &r->next;
			continue;
		}
		*at = r->next;
		r->next = gone;
		gone = r;
	}
	pthread_mutex_unlock(&p->lock);
	if (!gone)
		return false;
	while ((r = gone)) {
		gone = r->next;
		if (r->state == RUNNER_STARTING) {
			p->failures++;
			p->failed_us = sbx_boot_us();
		}
		if (r->state == RUNNER_BUSY)
			dispatch_lost(p->o, r->run_id, r->generation);
		runner_free(r);
	}
	janitor_runners(p->o);
	return true;
}

/* One message, or end of file. Returns true when the runner became idle. */
static bool runner_event(struct pool *p, struct pool_runner *r)
{
	char msg[256];
	ssize_t n = recv(r->fd, msg, sizeof(msg) - 1, MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	if (n <= 0) {
		runner_ended(p, r);
		return true;
	}
	msg[n] = '\0';
	pthread_mutex_lock(&p->lock);
	if (sscanf(msg, "ready %191s", r->owner) == 1) {
		r->state = RUNNER_IDLE;
		r->run_id[0] = '\0';
		p->failures = 0;
		p->ready_us = sbx_boot_us();
	}
	pthread_mutex_unlock(&p->lock);
	return true;
}

bool pool_events(struct pool *p)
{
	struct epoll_event ev[16];
	bool changed = false;
	int n = epoll_wait(p->epoll, ev, SBX_COUNT(ev), 0);

	for (int i = 0; i < n; i++)
		changed |= runner_event(p, ev[i].data.ptr);
	return bury(p) || changed;
}

static void count(struct pool *p, int64_t *total, int64_t *idle, int64_t *starting)
{
	*total = *idle = *starting = 0;
	pthread_mutex_lock(&p->lock);
	for (struct pool_runner *r = p->runners; r; r = r->next) {
		if (r->state == RUNNER_LEAVING)
			continue;
		(*total)++;
		*idle += r->state == RUNNER_IDLE;
		*starting += r->state == RUNNER_STARTING;
	}
	pthread_mutex_unlock(&p->lock);
}

/* Ends one idle runner by closing its socket. */
static bool dismiss_one(struct pool *p)
{
	struct pool_runner *r = pool_take(p);

	if (!r)
		return false;
	pthread_mutex_lock(&p->lock);
	r->state = RUNNER_LEAVING;
	pthread_mutex_unlock(&p->lock);
	/* Only our side: the end of its side then says that it has really gone. */
	(void)shutdown(r->fd, SHUT_WR);
	return true;
}

/* A program that dies at every start is not started in a loop, but tried again now and then. */
static bool may_start(struct pool *p)
{
	int64_t now = sbx_boot_us();

	if (p->failures < POOL_MAX_FAILURES)
		return true;
	if (now - p->failed_us < POOL_RETRY_US)
		return false;
	sbx_log(SBX_LOG_ERROR, "runners keep dying at start; trying again program=%s",
		p->o->runner);
	p->failed_us = now;
	p->failures--;
	return true;
}

/* Runners beyond the reserve that a burst left behind stay for a while: bursts come in rows. */
static void dismiss(struct pool *p, int64_t idle, int64_t warm, int64_t queued)
{
	int64_t now = sbx_boot_us();

	p->dismiss_at_us = INT64_MAX;
	if (queued > 0 || idle <= warm) {
		p->calm_since_us = now;
		return;
	}
	if (now - p->calm_since_us < POOL_LINGER_US) {
		p->dismiss_at_us = p->calm_since_us + POOL_LINGER_US;
		return;
	}
	while (idle > warm && dismiss_one(p))
		idle--;
}

/* After a reload the idle runners of the old configuration make room for new ones. */
static void dismiss_stale(struct pool *p)
{
	const struct orch_config *now = orch_config(p->o);

	pthread_mutex_lock(&p->lock);
	for (struct pool_runner *r = p->runners; r; r = r->next) {
		if (r->state == RUNNER_IDLE && r->config != now) {
			r->state = RUNNER_LEAVING;
			(void)shutdown(r->fd, SHUT_WR);
		}
	}
	pthread_mutex_unlock(&p->lock);
}

int64_t pool_next_us(const struct pool *p)
{
	if (p->failures >= POOL_MAX_FAILURES)
		return p->failed_us + POOL_RETRY_US;
	return p->grow_at_us < p->dismiss_at_us ? p->grow_at_us : p->dismiss_at_us;
}

/* Something waits and nobody is idle. Is it time for one more runner? Short runs are done sooner by
 * the runners there are than by a new one, whose start costs as much as several of them. */
static bool time_to_grow(struct pool *p, int64_t total)
{
	if (total < p->busy_enough || sbx_boot_us() >= p->ready_us + POOL_TURN_US)
		return true;
	p->grow_at_us = p->ready_us + POOL_TURN_US;
	return false;
}

void pool_resize(struct pool *p, int64_t queued)
{
	int64_t slots = orch_slots(p->o), warm = orch_settings(p->o)->warm_runners;
	int64_t total, idle, starting, missing;

	if (warm > slots)
		warm = slots;
	dismiss_stale(p);
	count(p, &total, &idle, &starting);
	if (!may_start(p))
		return;
	/* The reserve at once; above it one after the other. */
	missing = warm - total;
	p->grow_at_us = INT64_MAX;
	if (missing <= 0 && queued > 0 && idle == 0 && starting == 0 && total < slots &&
	    time_to_grow(p, total))
		missing = 1;
	for (; missing > 0; missing--)
		start_runner(p);
	dismiss(p, idle, warm, queued);
}
