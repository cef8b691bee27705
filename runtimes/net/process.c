/* SPDX-License-Identifier: Apache-2.0 */
/* What gate and relay have in common: how they begin, what they give up, how they speak. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/landlock.h>
#include <netinet/in.h>
#include <seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtimes/net/egress_i.h"

enum { FDS_MAX = 16, OPEN_FILES = 2048 };
_Static_assert((int)FDS_MAX >= (int)NET_SOCKET__COUNT, "all sockets of the gate in one message");

/* ---- beginning ------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
	const int *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static void close_others(int *keep, size_t n)
{
	unsigned from = 3;

	qsort(keep, n, sizeof(*keep), compare);
	for (size_t i = 0; i < n; i++) {
		if (keep[i] < 3)
			continue;
		if ((unsigned)keep[i] > from)
			(void)syscall(SYS_close_range, from, (unsigned)keep[i] - 1, 0);
		from = (unsigned)keep[i] + 1;
	}
	(void)syscall(SYS_close_range, from, ~0U, 0);
}

pid_t net_fork(int *keep, size_t n, const char *name)
{
	pid_t parent = getpid(), pid = fork();
	sigset_t none;
	int null;

	if (pid != 0)
		return pid < 0 ? -errno : pid;
	close_others(keep, n);
	null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (null >= 0) {
		(void)dup2(null, STDIN_FILENO);
		(void)dup2(null, STDOUT_FILENO);
		if (null > 2)
			(void)close(null);
	}
	(void)sigemptyset(&none);
	(void)sigprocmask(SIG_SETMASK, &none, NULL);
	(void)signal(SIGPIPE, SIG_IGN);
	(void)prctl(PR_SET_NAME, name, 0, 0, 0);
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	if (getppid() != parent)
		_exit(1);
	return 0;
}

/* ---- giving up ------------------------------------------------------------------------------- */

static int take_uid(uid_t uid)
{
	if (uid == 0)
		return 0;
	if (prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) < 0 || setgroups(0, NULL) < 0 ||
	    setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0)
		return -errno;
	return 0;
}

int net_keep_capabilities(uint32_t mask)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = { 0 };

	if (syscall(SYS_capget, &head, data) < 0)
		return -errno;
	mask &= data[0].permitted;
	memset(data, 0, sizeof(data));
	data[0].effective = data[0].permitted = mask;
	return syscall(SYS_capset, &head, data) < 0 ? -errno : 0;
}

/* Newer than the headers that this must compile with. */
#define FS_TRUNCATE	    (UINT64_C(1) << 14)
#define SCOPE_ABSTRACT_UNIX (UINT64_C(1) << 0)
#define SCOPE_SIGNAL	    (UINT64_C(1) << 1)

/* With Landlock, where the kernel has it: from here on no file can be changed, made or executed,
 * and nothing is said to programs of this machine but over its network. */
static void confine(void)
{
	const uint64_t reading = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
	struct {
		uint64_t fs, net, scoped;
	} rules = { .fs = ((UINT64_C(1) << 13) - 1) & ~reading };
	long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
	size_t size = abi >= 6 ? sizeof(rules) : sizeof(rules.fs);
	sbx_autoclose int fd = -1;

	if (abi >= 2)
		rules.fs |= LANDLOCK_ACCESS_FS_REFER;
	if (abi >= 3)
		rules.fs |= FS_TRUNCATE;
	if (abi >= 6)
		rules.scoped = SCOPE_ABSTRACT_UNIX | SCOPE_SIGNAL;
	fd = abi > 0 ? (int)syscall(SYS_landlock_create_ruleset, &rules, size, 0) : -1;
	if (fd >= 0)
		(void)syscall(SYS_landlock_restrict_self, fd, 0);
}

int net_drop_rights(uint32_t capabilities, uid_t uid)
{
	pid_t parent = getppid();
	struct rlimit files = { OPEN_FILES, OPEN_FILES }, nothing = { 0, 0 };
	int r;

	for (unsigned long cap = 0; prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) == 0;)
		cap++;
	r = take_uid(uid);
	if (r == 0)
		r = net_keep_capabilities(capabilities);
	if (r < 0)
		return r;
	/* Changing the user has forgotten these. */
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 ||
	    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
		return -errno;
	if (getppid() != parent)
		_exit(1);
	(void)setrlimit(RLIMIT_NOFILE, &files);
	(void)setrlimit(RLIMIT_CORE, &nothing);
	confine();
	return 0;
}

static int forbid_levels(scmp_filter_ctx ctx, scmp_datum_t mask, scmp_datum_t value)
{
	return seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(setsockopt), 1,
				SCMP_A1(SCMP_CMP_MASKED_EQ, mask, value));
}

/* With a raw socket one could send anything in anybody's name, by options of several levels, and
 * through io_uring. Two levels are of use here, so all others are closed: the small numbers one by
 * one, the rest by each bit that a larger number may have, since a filter compares either the whole
 * register, of which the kernel takes half, or bits of it. */
int net_forbid_heads(void)
{
	enum { BELOW_BITS = 3, INT_BITS = 32 };
	_Static_assert((int)SOL_SOCKET < 1 << BELOW_BITS && (int)IPPROTO_TCP < 1 << BELOW_BITS,
		       "what is left is below what the bits close");
	scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ALLOW);
	int r = ctx ? 0 : -ENOMEM;

	for (scmp_datum_t level = 0; level < 1 << BELOW_BITS && r == 0; level++)
		if (level != SOL_SOCKET && level != IPPROTO_TCP)
			r = forbid_levels(ctx, UINT32_MAX, level);
	for (unsigned bit = BELOW_BITS; bit < INT_BITS && r == 0; bit++)
		r = forbid_levels(ctx, UINT32_C(1) << bit, UINT32_C(1) << bit);
	if (r == 0)
		r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(io_uring_setup), 0);
	if (r == 0)
		r = seccomp_load(ctx);
	if (ctx)
		seccomp_release(ctx);
	return r;
}

/* ---- speaking -------------------------------------------------------------------------------- */

union control {
	struct cmsghdr head;
	char space[CMSG_SPACE(FDS_MAX * sizeof(int))];
};

int net_send_fds(int sock, const void *data, size_t len, const int *fds, size_t n)
{
	union control control = { .space = { 0 } };
	struct iovec iov = { .iov_len = len };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct cmsghdr *c;
	ssize_t sent;

	memcpy(&iov.iov_base, &data, sizeof(data)); /* it is only read */
	if (n) {
		msg.msg_control = control.space;
		msg.msg_controllen = CMSG_SPACE(n * sizeof(int));
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(n * sizeof(int));
		memcpy(CMSG_DATA(c), fds, n * sizeof(int));
	}
	do {
		sent = sendmsg(sock, &msg, MSG_NOSIGNAL);
	} while (sent < 0 && errno == EINTR);
	return sent < 0 ? -errno : 0;
}

ssize_t net_recv_fds(int sock, void *data, size_t max, int *ret_fds, size_t n)
{
	union control control;
	struct iovec iov = { .iov_base = data, .iov_len = max };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control.space,
			      .msg_controllen = sizeof(control.space) };
	ssize_t got;

	for (size_t i = 0; i < n; i++)
		ret_fds[i] = -1;
	do {
		got = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
	} while (got < 0 && errno == EINTR);
	if (got < 0)
		return -errno;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
		size_t came = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
			memcpy(ret_fds, CMSG_DATA(c), (came < n ? came : n) * sizeof(int));
	}
	return got;
}

socklen_t net_to_sockaddr(const struct net_end *end, struct sockaddr_storage *out)
{
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6, .sin6_port = htons(end->port) };
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(end->port) };

	memset(out, 0, sizeof(*out));
	if (end->addr.v6) {
		memcpy(&in6.sin6_addr, end->addr.b, 16);
		memcpy(out, &in6, sizeof(in6));
		return sizeof(in6);
	}
	memcpy(&in.sin_addr, end->addr.b, 4);
	memcpy(out, &in, sizeof(in));
	return sizeof(in);
}

bool net_from_sockaddr(const struct sockaddr_storage *sa, struct net_end *ret)
{
	struct sockaddr_in6 in6;
	struct sockaddr_in in;

	memset(ret, 0, sizeof(*ret));
	if (sa->ss_family == AF_INET6) {
		memcpy(&in6, sa, sizeof(in6));
		memcpy(ret->addr.b, &in6.sin6_addr, 16);
		ret->addr.v6 = true;
		ret->port = ntohs(in6.sin6_port);
		return true;
	}
	memcpy(&in, sa, sizeof(in));
	memcpy(ret->addr.b, &in.sin_addr, 4);
	ret->port = ntohs(in.sin_port);
	return sa->ss_family == AF_INET;
}
