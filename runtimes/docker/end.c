/* SPDX-License-Identifier: Apache-2.0 */
/* Runner: how a container comes to its end, by itself or by us. */
#include "runtimes/docker/dk_i.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>

#include <json-c/json.h>

#include "base/auto.h"

enum { GIVEN_UP_MS = 1000 }; /* the longest that its removal may take */

/* What the groups say now: they may be gone when the end is known. */
void dk_look(struct dk_sandbox *sb)
{
	struct cg_usage u = { 0 };
	bool oom = false, pids = false;

	if (cg_watch_usage(&sb->watch, &u)) {
		sb->end.cpu_us = u.cpu_us;
		sb->end.peak_bytes = u.peak_bytes;
	}
	if (cg_watch_events(&sb->watch, &oom, &pids)) {
		sb->end.oom |= oom;
		sb->end.pids_hit |= pids;
	}
}

/* ---- killing --------------------------------------------------------------------------------- */

/* Past process 1, which the kernel lets nothing survive. Where that is not for us to do, process 1
 * does it, and by its own end when we close the socket. What is frozen is thawed first: in a group
 * of version 1 nothing dies before. */
static void strike(struct dk_sandbox *sb)
{
	struct dk_msg m = { .op = DK_SIGNAL, .scope = true, .sig = SIGKILL };

	(void)cg_watch_thaw(&sb->watch);
	if (syscall(SYS_pidfd_send_signal, sb->pidfd, SIGKILL, NULL, 0) < 0)
		(void)dk_tell(sb, &m);
}

/* The engine may do what an ordinary user may not: a container that was paused goes on to die. */
static void ask_to_kill(struct dk_sandbox *sb)
{
	strike(sb);
	if (dk_engine_fd() >= 0)
		(void)dk_container_post(sb, "kill", NULL, DK_SMALL_MS, NULL, NULL);
}

/* It has been killed and can execute nothing any more: it will die when whoever holds it lets go.
 * Its removal is asked for and left to the sweep: the runner is soon free. */
static void give_up(struct dk_sandbox *sb)
{
	sb->remove_ms = GIVEN_UP_MS;
	dk_look(sb);
	sb->end.status = SIGKILL;
	sb->given_up = true;
}

/* What is done when it has not died so long after the step before. */
static const struct {
	int ms;
	void (*step)(struct dk_sandbox *sb);
} patience[] = {
	{ 1000, ask_to_kill },
	{ 4000, strike },
	{ 5000, give_up },
};

static void wait_for_step(struct dk_sandbox *sb)
{
	int ms = patience[sb->tries].ms;
	struct itimerspec its = { .it_value = { ms / 1000, ms % 1000 * 1000000L } };

	(void)timerfd_settime(sb->clock, 0, &its, NULL);
}

void dk_kill(struct dk_sandbox *sb)
{
	struct epoll_event ev = { .events = EPOLLIN };

	dk_look(sb);
	sb->killed = true;
	strike(sb);
	if (sb->clock >= 0)
		return;
	sb->clock = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	ev.data.fd = sb->clock;
	if (sb->clock >= 0 && epoll_ctl(sb->exit, EPOLL_CTL_ADD, sb->clock, &ev) == 0)
		wait_for_step(sb);
}

/* True: that was the last of it. */
static bool try_again(struct dk_sandbox *sb)
{
	uint64_t n;

	if (sb->clock < 0 || read(sb->clock, &n, sizeof(n)) != (ssize_t)sizeof(n) ||
	    sb->tries >= SBX_COUNT(patience))
		return sb->given_up;
	patience[sb->tries++].step(sb);
	if (sb->tries < SBX_COUNT(patience))
		wait_for_step(sb);
	return sb->given_up;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Process 1 is gone without a word, and so are the groups: was it for memory? The engine knows.
 * The answer is waited for by the descriptor that the runner polls. */
static bool ask_engine(struct dk_sandbox *sb)
{
	char name[DK_NAME_MAX], path[DK_NAME_MAX + 64];
	struct dk_ask ask = { .method = DK_GET, .path = path, .limit_ms = DK_SMALL_MS };
	struct epoll_event ev = { .events = EPOLLIN };

	if (dk_container_name(sb->host, sb->place.name, name, NULL) < 0)
		return false;
	(void)snprintf(path, sizeof(path), "/containers/%s/json", name);
	sb->asked = dk_engine_fd() >= 0 && dk_post(sb->host, &ask, NULL) == 0;
	ev.data.fd = dk_engine_fd();
	return sb->asked && epoll_ctl(sb->exit, EPOLL_CTL_ADD, dk_engine_fd(), &ev) == 0;
}

/* True: the engine has said it, or never will. */
static bool engine_told(struct dk_sandbox *sb)
{
	dk_autoanswer a = DK_ANSWER_INIT;
	struct json_object *o, *state = NULL, *oom = NULL;
	int fd = dk_engine_fd(), r = dk_take(&a, NULL);

	if (r == 0)
		return false;
	if (fd >= 0 && dk_engine_fd() == fd)
		(void)epoll_ctl(sb->exit, EPOLL_CTL_DEL, fd, NULL);
	o = r > 0 && a.status == 200 ? dk_answer_json(&a) : NULL;
	if (json_object_object_get_ex(o, "State", &state) &&
	    json_object_object_get_ex(state, "OOMKilled", &oom))
		sb->end.oom |= json_object_get_boolean(oom);
	json_object_put(o);
	return true;
}

/* Has the end come by the death of process 1? */
static bool died(struct dk_sandbox *sb)
{
	struct pollfd p = { .fd = sb->pidfd, .events = POLLIN };
	bool oom, pids;

	if (sb->asked)
		return engine_told(sb);
	dk_look(sb);
	/* Its sockets close before the kernel has ended the others. */
	if (poll(&p, 1, 0) <= 0)
		return false;
	(void)epoll_ctl(sb->exit, EPOLL_CTL_DEL, sb->pidfd, NULL);
	sb->end.lost = !sb->killed;
	sb->end.status = SIGKILL;
	if (sb->end.lost && !cg_watch_events(&sb->watch, &oom, &pids))
		return !ask_engine(sb);
	return true;
}

static bool ended(struct dk_sandbox *sb)
{
	struct dk_msg m;
	ssize_t n;

	if (try_again(sb))
		return true;
	n = sb->asked ? 0 : recv(sb->sock, &m, sizeof(m), MSG_DONTWAIT);

	if (n == (ssize_t)sizeof(m) && m.op == DK_END) {
		sb->end.status = m.err;
		dk_look(sb);
		return true;
	}
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	/* Only the pidfd tells from now on. */
	(void)epoll_ctl(sb->exit, EPOLL_CTL_DEL, sb->sock, NULL);
	return died(sb);
}

bool dk_reap(struct rt_sandbox *s, struct rt_exit *out)
{
	struct dk_sandbox *sb = (struct dk_sandbox *)s;
	struct rt_exit *x = &sb->end;

	if (!sb->over) {
		if (!sb->started || !ended(sb))
			return false;
		sb->over = true;
		x->killed_by_us =
			sb->killed || (!x->lost && WIFSIGNALED(x->status) &&
				       (sb->signals & UINT64_C(1) << (WTERMSIG(x->status) - 1)));
		x->has_egress = sb->egress;
		if (sb->egress) {
			egress_count(sb->egress, &x->egress);
			x->egress_list = egress_list(sb->egress);
		}
	}
	*out = *x;
	return true;
}
