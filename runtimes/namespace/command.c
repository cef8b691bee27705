/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Process 2: the command before it is one. It gives up everything first and learns afterwards what
 * it will execute, so that when a run arrives only the exec is left to do.
 *
 * Until then it shares process 1's memory, which makes both the fork and the exec cheaper: there is
 * no address space to copy and none to take down. So it has a stack of its own and allocates
 * nothing with malloc. errno is shared too: while one of the two is at work, the other sleeps in
 * poll or recvmsg, or is on its way there without a call that fails.
 */
#include "runtimes/namespace/ns_i.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/fs.h"
#include "runtimes/inside_i.h"

/* SECBIT_KEEP_CAPS is not locked: there is nothing to keep, and ping(8) gives up where it may not
 * ask for it. */
#define FIXED_SECUREBITS                                                                           \
	(SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP |                           \
	 SECBIT_NO_SETUID_FIXUP_LOCKED | SECBIT_NO_CAP_AMBIENT_RAISE |                             \
	 SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED)

enum {
	STACK_SIZE = 128 << 10,
};

/* Limits that are the same for every command; RLIM_INFINITY where there is another limit. */
static const struct {
	int resource;
	rlim_t soft, hard;
} fixed_limits[] = {
	/* Not 0: with that the kernel would still start the program that the host's core_pattern
	 * may name, as the host's root. 1 is its word for none at all; the filter keeps it so. */
	{ RLIMIT_CORE, 1, 1 },
	{ RLIMIT_CPU, RLIM_INFINITY, RLIM_INFINITY },
	{ RLIMIT_FSIZE, RLIM_INFINITY, RLIM_INFINITY },
	{ RLIMIT_STACK, 8 << 20, RLIM_INFINITY },
	{ RLIMIT_MEMLOCK, 1 << 20, 1 << 20 },
	{ RLIMIT_MSGQUEUE, 256 << 10, 256 << 10 },
	{ RLIMIT_SIGPENDING, 4096, 4096 },
	{ RLIMIT_NICE, 0, 0 },
	{ RLIMIT_RTPRIO, 0, 0 },
};

/* What is above the service's own limits cannot be had; less than asked for is still a limit. */
static int set_limit(int resource, rlim_t soft, rlim_t hard)
{
	struct rlimit old, new = { .rlim_cur = soft, .rlim_max = hard };

	if (getrlimit((__rlimit_resource_t)resource, &old) < 0)
		return -1;
	if (new.rlim_max > old.rlim_max)
		new.rlim_max = old.rlim_max;
	if (new.rlim_cur > new.rlim_max)
		new.rlim_cur = new.rlim_max;
	return setrlimit((__rlimit_resource_t)resource, &new);
}

/* ---- giving up ------------------------------------------------------------------------------- */

static int drop_capabilities(struct ns_reply *r)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = { 0 };
	unsigned long cap = 0;

	if (prctl(PR_SET_SECUREBITS, FIXED_SECUREBITS, 0, 0, 0) < 0)
		return ns_fail(r, NS_STAGE_USER, errno, "cannot lock the secure bits");
	/* The kernel says which capability is the first that it does not know. */
	while (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) == 0)
		cap++;
	if (cap == 0 || prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0)
		return ns_fail(r, NS_STAGE_USER, errno, "cannot drop a capability");
	(void)prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
	if (syscall(SYS_capset, &head, none) < 0)
		return ns_fail(r, NS_STAGE_USER, errno, "cannot drop the capabilities");
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return ns_fail(r, NS_STAGE_OTHER, errno, "cannot set no_new_privs");
	return 0;
}

static int take_stdio(const struct ns_config *c, struct ns_reply *r)
{
	if (dup2(c->in, 0) < 0 || dup2(c->out, 1) < 0 || dup2(c->err, 2) < 0)
		return ns_fail(r, NS_STAGE_OTHER, errno, "cannot set up the standard streams");
	return 0;
}

static int give_up(const struct ns_config *c, struct ns_reply *r)
{
	struct sock_fprog program = { .len = (unsigned short)c->n_filter };

	if (setsid() < 0) /* no terminal of the service's can be the command's */
		return ns_fail(r, NS_STAGE_OTHER, errno, "cannot make a session");
	(void)umask(022);
	for (size_t i = 0; i < SBX_COUNT(fixed_limits); i++)
		if (set_limit(fixed_limits[i].resource, fixed_limits[i].soft,
			      fixed_limits[i].hard) < 0)
			return ns_fail(r, NS_STAGE_OTHER, errno, "cannot set resource limit %d",
				       fixed_limits[i].resource);
	if (drop_capabilities(r) < 0)
		return -1;
	memcpy(&program.filter, &c->filter, sizeof(program.filter)); /* it is not written to */
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) < 0)
		return ns_fail(r, NS_STAGE_SECCOMP, errno, "cannot install the system call filter");
	return 0;
}

/* ---- executing ------------------------------------------------------------------------------- */

struct request {
	struct ns_exec head;
	char *cwd;
	char **argv, **envp; /* NULL-terminated */
};

static int take_request(int sock, struct request *q)
{
	size_t pointers;
	char *text;
	void *area;

	if (ns_recv(sock, &q->head, sizeof(q->head), NULL) < 0)
		return -1;
	pointers = (size_t)q->head.argc + q->head.envc + 2;
	area = mmap(NULL, pointers * sizeof(char *) + q->head.size + 1, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (area == MAP_FAILED)
		return -1;
	q->argv = area;
	q->envp = q->argv + q->head.argc + 1;
	text = (char *)(q->argv + pointers);
	if (ns_recv(sock, text, q->head.size, NULL) < 0)
		return -1;
	text[q->head.size] = '\0';
	q->cwd = text;
	rt_split(rt_split(text + strlen(text) + 1, q->argv, q->head.argc), q->envp, q->head.envc);
	return 0;
}

static int apply(const struct ns_exec *x, int ruleset, struct ns_reply *r)
{
	if (x->nofile && set_limit(RLIMIT_NOFILE, x->nofile, x->nofile) < 0)
		return ns_fail(r, NS_STAGE_OTHER, errno, "cannot limit open files");
	if (x->nproc && set_limit(RLIMIT_NPROC, x->nproc, x->nproc) < 0)
		return ns_fail(r, NS_STAGE_OTHER, errno, "cannot limit processes");
	if (x->data && set_limit(RLIMIT_DATA, x->data, x->data) < 0)
		return ns_fail(r, NS_STAGE_OTHER, errno, "cannot limit memory");
	if (ruleset >= 0 && ns_landlock_enter(ruleset) < 0)
		return ns_fail(r, NS_STAGE_OTHER, errno, "cannot enter the Landlock rules");
	return 0;
}

/* The exit status, after telling the runner why. */
static int fail_to_runner(int sock, struct ns_reply *r)
{
	struct iovec iov = { .iov_base = r, .iov_len = sizeof(*r) };

	(void)ns_send(sock, &iov, 1, -1);
	return rt_exec_status(r->err);
}

static int prepare(const struct ns_config *c, int ruleset, int *ret_null, struct ns_reply *r)
{
	int keep[] = { c->command_sock, ruleset };

	if (take_stdio(c, r) < 0)
		return -1;
	ns_close_others(keep, SBX_COUNT(keep));
	*ret_null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (*ret_null < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot open /dev/null");
	return give_up(c, r);
}

static int settle(const struct request *q, int null, int ruleset, struct ns_reply *r)
{
	sigset_t none;

	if (!q->head.stdin_open && dup2(null, 0) < 0)
		return ns_fail(r, NS_STAGE_OTHER, errno, "cannot set up the standard input");
	if (apply(&q->head, ruleset, r) < 0)
		return -1;
	if (rt_enter(q->cwd) < 0)
		return ns_fail(r, NS_STAGE_FILES, errno, "cannot enter the cwd");
	(void)sigemptyset(&none);
	(void)sigprocmask(SIG_SETMASK, &none, NULL);
	return 0;
}

struct start {
	const struct ns_config *c;
	int ruleset;
};

/* Returns, if at all, the exit status. Without a runner nobody wants to know why. */
static int command_main(void *p)
{
	const struct start *s = p;
	int sock = s->c->command_sock;
	struct ns_reply r = { 0 };
	struct iovec iov = { .iov_base = &r, .iov_len = sizeof(r) };
	struct request q;
	int null;
	char go;

	if (prepare(s->c, s->ruleset, &null, &r) < 0)
		return fail_to_runner(sock, &r);
	if (ns_send(sock, &iov, 1, -1) < 0 || take_request(sock, &q) < 0)
		return RT_STATUS_CANNOT;
	if (settle(&q, null, s->ruleset, &r) < 0)
		return fail_to_runner(sock, &r);
	if (ns_recv(sock, &go, 1, NULL) < 0)
		return RT_STATUS_CANNOT;
	ns_fail(&r, NS_STAGE_OTHER, rt_execute(q.argv, q.envp), "cannot execute");
	return fail_to_runner(sock, &r);
}

pid_t ns_command_start(const struct ns_config *c, int ruleset)
{
	static struct start s;
	char *stack = mmap(NULL, STACK_SIZE, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);

	if (stack == MAP_FAILED)
		return -1;
	s.c = c;
	s.ruleset = ruleset;
	return clone(command_main, stack + STACK_SIZE, CLONE_VM | SIGCHLD, &s);
}
