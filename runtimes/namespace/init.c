/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Process 1 of a sandbox. It keeps its capabilities in its own user namespace, so nothing inside
 * may get hold of it: signals from inside do not reach process 1 of a namespace, it cannot be
 * traced (not dumpable), and it reads only from the runner's socket. It waits in one ppoll and
 * ends when the command has ended or the runner is gone; with it the kernel ends everything else.
 */
#include "runtimes/namespace/ns_i.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/auto.h"

struct init {
	const struct ns_config *c;
	struct ns_root root;
	pid_t command;
	int signals; /* signalfd of SIGCHLD */
};

static void answer(int sock, struct ns_reply *r, int fd)
{
	struct iovec iov = { .iov_base = r, .iov_len = sizeof(*r) };

	if (ns_send(sock, &iov, 1, fd) < 0)
		_exit(1);
}

/* ---- becoming -------------------------------------------------------------------------------- */

static int take_ids(const struct ns_config *c, struct ns_reply *r)
{
	/* The service's groups must not come along. An ordinary user may not drop them. */
	if (c->own_ids && setgroups(0, NULL) < 0)
		return ns_fail(r, NS_STAGE_USER, errno, "cannot drop the groups");
	if (setresgid(NS_ID, NS_ID, NS_ID) < 0 || setresuid(NS_ID, NS_ID, NS_ID) < 0)
		return ns_fail(r, NS_STAGE_USER, errno, "cannot become user %d", NS_ID);
	/* After the change of ids, which clears it. Not needed for a runner that died before: its
	 * socket says so. */
	if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
		return ns_fail(r, NS_STAGE_OTHER, errno, "cannot protect process 1");
	return 0;
}

/* The command starts with every signal at its default and nothing blocked, whatever the service
 * does with them. Process 1 blocks all and reads the one it wants. */
static int take_signals(struct init *in, struct ns_reply *r)
{
	static const unsigned long dfl[8]; /* the kernel's struct sigaction; SIG_DFL is 0 */
	sigset_t set;

	for (int sig = 1; sig < NSIG; sig++) /* sigaction(3) would leave out two of them */
		(void)syscall(SYS_rt_sigaction, sig, dfl, NULL, (NSIG - 1) / 8);
	(void)sigfillset(&set);
	(void)sigprocmask(SIG_SETMASK, &set, NULL);
	(void)sigemptyset(&set);
	(void)sigaddset(&set, SIGCHLD);
	in->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return in->signals < 0 ? ns_fail(r, NS_STAGE_OTHER, errno, "cannot make a signalfd") : 0;
}

static int take_names(const struct ns_config *c, struct ns_reply *r)
{
	static const char host[] = "sandbox";

	if (sethostname(host, strlen(host)) < 0 || setdomainname("", 0) < 0)
		return ns_fail(r, NS_STAGE_OTHER, errno, "cannot set the host name");
	if (!c->has_net && ns_loopback_up() < 0)
		return ns_fail(r, NS_STAGE_OTHER, errno, "cannot bring up the loopback device");
	return 0;
}

static int start_command(struct init *in, struct ns_reply *r)
{
	in->command = ns_command_start(in->c, in->root.ruleset);
	return in->command < 0 ? ns_fail(r, NS_STAGE_OTHER, errno, "cannot fork") : 0;
}

static int become(struct init *in, struct ns_reply *r)
{
	const struct ns_config *c = in->c;

	if (take_ids(c, r) < 0 || take_signals(in, r) < 0 || take_names(c, r) < 0)
		return -1;
	/* Now that the runner has put us into the leaf, it is what /proc/self/cgroup calls "/". */
	if (unshare(CLONE_NEWCGROUP) < 0 && errno != EINVAL)
		return ns_fail(r, NS_STAGE_OTHER, errno, "cannot make a cgroup namespace");
	if ((!c->has_base && ns_root_base(c, r) < 0) || ns_root_own(c, &in->root, r) < 0)
		return -1;
	if (c->landlock && ns_landlock_abi() > 0) {
		in->root.ruleset = ns_landlock_new(r);
		if (in->root.ruleset < 0)
			return -1;
	}
	return start_command(in, r);
}

/* ---- being ----------------------------------------------------------------------------------- */

/* Nothing outlives the command. Init itself goes later, when the runner says so by closing the
 * socket or kills it: the end of a process with so many namespaces takes 0.3 ms of the processor
 * that the runner has just been woken on, and somebody waits for what the runner has to record. */
static _Noreturn void end(const struct init *in, int status)
{
	struct ns_order order;
	struct ns_done done = { .status = status };
	struct iovec iov = { .iov_base = &done, .iov_len = sizeof(done) };
	struct rusage ru;

	(void)kill(-1, SIGKILL);
	while (waitpid(-1, NULL, 0) > 0)
		;
	if (getrusage(RUSAGE_CHILDREN, &ru) == 0) {
		done.cpu_us = (uint64_t)(ru.ru_utime.tv_sec + ru.ru_stime.tv_sec) * 1000000 +
			      (uint64_t)(ru.ru_utime.tv_usec + ru.ru_stime.tv_usec);
		done.peak_bytes = (uint64_t)ru.ru_maxrss * 1024;
	}
	(void)ns_send(in->c->sock, &iov, 1, -1);
	while (ns_recv(in->c->sock, &order, sizeof(order), NULL) == 0)
		; /* a signal for nobody */
	_exit(0);
}

static void reap(const struct init *in)
{
	struct signalfd_siginfo info;
	int status;
	pid_t pid;

	while (read(in->signals, &info, sizeof(info)) > 0)
		;
	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		if (pid == in->command)
			end(in, status);
}

static void obey(struct init *in)
{
	struct ns_reply r = { 0 };
	struct ns_order order;
	sbx_autoclose int fd = -1;

	if (ns_recv(in->c->sock, &order, sizeof(order), &fd) < 0)
		_exit(1);
	switch (order.op) {
	case NS_OP_PREPARE:
		(void)ns_fill_workspace(in->c->sock, fd, &in->root, &r);
		answer(in->c->sock, &r, -1);
		break;
	case NS_OP_SIGNAL:
		(void)kill(order.scope == RT_SIGNAL_ALL ? -1 : -in->command, order.sig);
		break;
	default:
		_exit(1);
	}
}

/* A service may run without standard streams; what is opened from here on must not become one. */
static void fill_stdio(void)
{
	int fd;

	do {
		fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	} while (fd >= 0 && fd < 3);
	sbx_closep(&fd);
}

_Noreturn void ns_init_main(const struct ns_config *c)
{
	int keep[] = { c->sock, c->command_sock, c->in, c->out, c->err };
	struct init in = { .c = c, .signals = -1 };
	struct ns_reply r = { 0 };
	struct ns_order order;

	ns_close_others(keep, SBX_COUNT(keep));
	fill_stdio();
	if (ns_recv(c->sock, &order, sizeof(order), NULL) < 0 || order.op != NS_OP_GO)
		_exit(1);
	if (become(&in, &r) < 0) {
		answer(c->sock, &r, -1);
		_exit(1);
	}
	(void)close(c->command_sock);
	(void)close(c->in);
	(void)close(c->out);
	(void)close(c->err);
	answer(c->sock, &r, in.root.workspace);
	for (;;) {
		struct pollfd p[] = { { .fd = in.signals, .events = POLLIN },
				      { .fd = c->sock, .events = POLLIN } };

		if (poll(p, SBX_COUNT(p), -1) < 0)
			continue;
		if (p[0].revents)
			reap(&in);
		if (p[1].revents)
			obey(&in);
	}
}
