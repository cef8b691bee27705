/* SPDX-License-Identifier: Apache-2.0 */
/* Runner: the driver's operations. */
#include "runtimes/namespace/ns_i.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/auto.h"
#include "base/fs.h"
#include "runtimes/cgroup.h"

/* An unused one has half of it, and one in which a shell has run not much more. */
enum { LINGER_BYTES_MAX = 1 << 20 };

static struct ns_sandbox *of(struct rt_sandbox *sb)
{
	return (struct ns_sandbox *)sb;
}

/* ---- making ---------------------------------------------------------------------------------- */

static struct cg *groups; /* owned; open until the process ends */
static pid_t groups_of;

static void close_groups(void)
{
	cg_close(groups);
	groups = NULL;
}

struct cg *ns_groups(const struct rt_host *host, struct sbx_error *e)
{
	static bool at_exit;

	if (groups && groups_of != getpid()) /* a child after fork has other groups, or rights */
		close_groups();
	if (!groups && cg_open(host->cgroup_root, &groups, e) == 0) {
		groups_of = getpid();
		if (!at_exit)
			at_exit = atexit(close_groups) == 0;
	}
	return groups;
}

static void free_sandbox(struct ns_sandbox *sb)
{
	ns_teardown(sb);
	cg_leaf_free(sb->leaf);
	free(sb);
}

int ns_create(const struct rt_host *host, struct ns_sandbox **ret, enum ns_stage *stage,
	      struct sbx_error *e)
{
	struct cg *cg = ns_groups(host, e);
	struct ns_sandbox *sb = calloc(1, sizeof(*sb));
	int r = 0;

	*ret = NULL;
	*stage = NS_STAGE_OTHER;
	if (!sb || !cg) {
		free(sb);
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a sandbox");
	}
	sb->base.driver = &rt_namespace;
	sb->host = host;
	sb->own_ids = ns_is_root() && host->uid_range > 0;
	sb->pidfd = sb->sock = sb->command = sb->exit = sb->score = -1;
	sb->in = sb->out = sb->err = sb->workspace = sb->mnt = -1;
	sb->netns = sb->userns = -1;
	if (strcmp(cg_name(cg), "none") != 0) {
		*stage = NS_STAGE_CGROUP;
		r = cg_leaf_new(cg, &sb->leaf, e);
	}
	if (r == 0)
		r = ns_build(sb, NULL, -1, stage, e);
	if (r < 0) {
		free_sandbox(sb);
		return r;
	}
	*ret = sb;
	return 0;
}

static int create(const struct rt_host *host, struct rt_sandbox **ret, struct sbx_error *e)
{
	struct ns_sandbox *sb;
	enum ns_stage stage;
	int r = ns_create(host, &sb, &stage, e);

	/* What is expected may be more than it can be fitted to; that is for a plan to find out. */
	if (r == 0 && host->expected && ns_fit_ahead(sb, host->expected, NULL) < 0) {
		free_sandbox(sb);
		r = ns_create(host, &sb, &stage, e);
	}
	*ret = (struct rt_sandbox *)sb;
	return r;
}

static void destroy(struct rt_sandbox *s)
{
	if (s)
		free_sandbox(of(s));
}

/* ---- running --------------------------------------------------------------------------------- */

static int duplicate(int fd, struct sbx_error *e)
{
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);

	if (copy < 0)
		return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, errno,
				      "cannot duplicate a descriptor");
	return copy;
}

/* Waits until the command's end of its socket closes, which is when execve happened, or until it
 * says why not. */
static void await_exec(struct ns_sandbox *sb)
{
	struct ns_reply r;

	if (ns_recv(sb->command, &r, sizeof(r), NULL) == 0)
		sb->end.exec_errno = r.err;
	sbx_closep(&sb->command);
}

static int start(struct rt_sandbox *s, struct rt_fds *ret, struct sbx_error *e)
{
	struct ns_sandbox *sb = of(s);
	char go = 1;
	struct iovec iov = { .iov_base = &go, .iov_len = 1 };
	bool stdin_open = sb->stdin_open;

	if (!sb->prepared || sb->started)
		return sbx_fail(e, SBX_E_INTERNAL, "a sandbox was started that was not prepared");
	ret->exit = duplicate(sb->exit, e);
	if (ret->exit < 0)
		return ret->exit;
	sb->started = true;
	/* A command that has died before this is reported by reap() like any other. */
	(void)ns_send(sb->command, &iov, 1, -1);
	await_exec(sb);
	/* Not before: as long as they share memory the kernel gives both the same score. */
	if (sb->score >= 0)
		(void)sbx_write_all(sb->score, "0", 1);
	ret->out = sbx_steal_fd(&sb->out);
	ret->err = sbx_steal_fd(&sb->err);
	ret->in = stdin_open ? sbx_steal_fd(&sb->in) : -1;
	ret->workspace = sbx_steal_fd(&sb->workspace);
	sbx_closep(&sb->in);
	return 0;
}

static int send_signal(struct rt_sandbox *s, enum rt_signal_scope scope, int sig)
{
	struct ns_sandbox *sb = of(s);
	struct ns_order order = { .op = NS_OP_SIGNAL, .scope = (int32_t)scope, .sig = sig };
	struct iovec iov = { .iov_base = &order, .iov_len = sizeof(order) };
	int r;

	if (!sb->started || sb->over)
		return -ESRCH;
	if (sig < 1 || sig >= NSIG)
		return -EINVAL;
	if (sig == SIGKILL && scope == RT_SIGNAL_ALL) {
		/* Past init, which the kernel lets nothing survive. */
		if (syscall(SYS_pidfd_send_signal, sb->pidfd, SIGKILL, NULL, 0) < 0)
			return -errno;
		sb->killed = true;
		return 0;
	}
	r = ns_send(sb->sock, &iov, 1, -1);
	if (r < 0)
		return -ESRCH;
	sb->signals |= UINT64_C(1) << (sig - 1);
	return 0;
}

static void usage(struct rt_sandbox *s, uint64_t *cpu_us, uint64_t *peak_bytes)
{
	struct ns_sandbox *sb = of(s);
	struct cg_usage u = { 0 };

	if (sb->leaf)
		cg_leaf_usage(sb->leaf, &u);
	if (!cg_has(groups, CG_CPUACCT) && !sb->over)
		u.cpu_us = ns_tree_cpu_us(sb->pid);
	*cpu_us = u.cpu_us;
	*peak_bytes = u.peak_bytes;
}

/* ---- ending ---------------------------------------------------------------------------------- */

static uint64_t micros(struct timeval t)
{
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_usec;
}

/* Init has ended without a word: it was killed, by us or by somebody else. */
static bool died(struct ns_sandbox *sb, struct ns_done *done)
{
	struct rusage ru = { 0 };
	pid_t pid = wait4(sb->pid, NULL, WNOHANG | __WALL, &ru);

	if (pid == 0 || (pid < 0 && errno == EINTR))
		return false;
	sb->gone = true;
	sb->end.lost = !sb->killed;
	done->status = SIGKILL;
	done->cpu_us = micros(ru.ru_utime) + micros(ru.ru_stime);
	done->peak_bytes = (uint64_t)ru.ru_maxrss * 1024;
	return true;
}

/* Has the end come? Then *done says how. */
static bool ended(struct ns_sandbox *sb, struct ns_done *done)
{
	ssize_t n = recv(sb->sock, done, sizeof(*done), MSG_DONTWAIT);

	if (n == (ssize_t)sizeof(*done))
		return true;
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	/* Only the pidfd tells from now on. */
	(void)epoll_ctl(sb->exit, EPOLL_CTL_DEL, sb->sock, NULL);
	return died(sb, done);
}

static bool reap(struct rt_sandbox *s, struct rt_exit *out)
{
	struct ns_sandbox *sb = of(s);
	struct rt_exit *x = &sb->end;
	struct ns_done done;

	if (!sb->over) {
		if (!sb->started || !ended(sb, &done))
			return false;
		sb->over = true;
		x->status = done.status;
		x->killed_by_us =
			sb->killed || (!x->lost && WIFSIGNALED(x->status) &&
				       (sb->signals & UINT64_C(1) << (WTERMSIG(x->status) - 1)));
		if (sb->leaf) {
			cg_leaf_events(sb->leaf, &x->oom, &x->pids_hit);
			usage(s, &x->cpu_us, &x->peak_bytes);
		}
		if (!cg_has(ns_groups(sb->host, NULL), CG_CPUACCT))
			x->cpu_us = done.cpu_us;
		if (!x->peak_bytes)
			x->peak_bytes = done.peak_bytes;
		x->has_egress = sb->egress;
		if (sb->egress) {
			egress_count(sb->egress, &x->egress);
			x->egress_list = egress_list(sb->egress);
		}
	}
	*out = *x;
	return true;
}

/* What the command wrote to its file systems stays in memory as long as the mount namespace does.
 */
static bool may_linger(struct rt_sandbox *s)
{
	struct ns_sandbox *sb = of(s);

	return !sb->egress && sb->leaf && cg_leaf_bytes(sb->leaf) <= LINGER_BYTES_MAX;
}

static void sweep(const struct rt_host *host)
{
	cg_sweep(ns_groups(host, NULL));
}

const struct rt_driver rt_namespace = {
	.name = "namespace",
	.may_stock = true,
	.preflight = ns_preflight,
	.create = create,
	.prepare = ns_prepare,
	.start = start,
	.signal = send_signal,
	.reap = reap,
	.usage = usage,
	.may_linger = may_linger,
	.destroy = destroy,
	.sweep = sweep,
};
