/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runner, as root only: network namespaces that outlive a sandbox. Making one and taking it down
 * is the dearest part of a sandbox, and most commands never use it. So one in which nothing has
 * happened is kept for the next sandbox: every counter that the kernel shows for it must be what it
 * was when the namespace was new. One packet over the loopback device, one connection that failed,
 * and it is thrown away, with whatever it remembers. It belongs to the host's user namespace, so
 * that nothing inside may configure it.
 */
#include "runtimes/namespace/ns_i.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/fs.h"
#include "base/log.h"

/* What a program inside could see of an earlier one's use. */
static const char *const counters[] = { "net/dev", "net/snmp", "net/snmp6" };

enum { COUNTERS_MAX = 32 << 10 };

struct ns_net {
	int fd;	    /* owned; the namespace */
	bool old;   /* an earlier sandbox had it */
	bool used;  /* somebody has set up a network in it, whatever the counters say */
	size_t len; /* of the counters' texts when it was new */
	char new[COUNTERS_MAX];
};

static struct ns_net *kept; /* owned; unused, for the next */

/* ---- in it ----------------------------------------------------------------------------------- */

static int own_namespace(void)
{
	return open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
}

static void go_back(int own)
{
	if (setns(own, CLONE_NEWNET) == 0)
		return;
	/* Everything that the runner does from here on would happen in a sandbox's network. */
	sbx_log(SBX_LOG_ERROR, "net_namespace_lost errno=%d", errno);
	abort();
}

/* The texts one after another; a file that this kernel lacks is an empty one. */
static size_t read_counters(char text[COUNTERS_MAX])
{
	sbx_autoclose int proc = open("/proc/self", O_PATH | O_DIRECTORY | O_CLOEXEC);
	size_t len = 0;

	for (size_t i = 0; i < SBX_COUNT(counters); i++) {
		sbx_autoclose int fd = openat(proc, counters[i], O_RDONLY | O_CLOEXEC);
		ssize_t n = fd < 0 ? 0 : sbx_read_full(fd, text + len, COUNTERS_MAX - len);

		len += n > 0 ? (size_t)n : 0;
	}
	return len;
}

int ns_loopback_up(void)
{
	sbx_autoclose int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct ifreq lo = { .ifr_flags = IFF_UP | IFF_RUNNING };

	memcpy(lo.ifr_name, "lo", sizeof("lo"));
	/* A kernel without IP has no loopback to bring up. */
	return fd < 0 ? 0 : ioctl(fd, SIOCSIFFLAGS, &lo);
}

/* ---- making, keeping ------------------------------------------------------------------------- */

static int make(struct ns_net *n, struct sbx_error *e)
{
	sbx_autoclose int own = own_namespace();
	int err = 0;

	if (own < 0 || unshare(CLONE_NEWNET) < 0)
		return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, errno,
				      "cannot make a network namespace");
	n->fd = own_namespace();
	if (n->fd < 0 || ns_loopback_up() < 0)
		err = errno;
	else
		n->len = read_counters(n->new);
	go_back(own);
	return err ? sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, err, "cannot make a network namespace")
		   : 0;
}

static struct ns_net *net_free(struct ns_net *n)
{
	if (n)
		sbx_closep(&n->fd);
	free(n);
	return NULL;
}

int ns_net_take(struct ns_net **ret, struct sbx_error *e)
{
	struct ns_net *n = sbx_steal(&kept);
	int r = 0;

	if (!n) {
		n = calloc(1, sizeof(*n));
		if (!n)
			return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a network namespace");
		n->fd = -1;
		r = make(n, e);
	}
	*ret = r < 0 ? net_free(n) : n;
	return r;
}

/* Has nothing ever happened in it? */
static bool untouched(const struct ns_net *n)
{
	static char now[COUNTERS_MAX];
	sbx_autoclose int own = own_namespace();
	size_t len;

	if (own < 0 || setns(n->fd, CLONE_NEWNET) < 0)
		return false;
	len = read_counters(now);
	go_back(own);
	/* A text that filled the buffer may have been cut. */
	return len == n->len && len < COUNTERS_MAX && memcmp(now, n->new, len) == 0;
}

bool ns_net_is_new(const struct ns_net *n)
{
	return !n->old;
}

int ns_net_use(struct ns_net *n)
{
	n->used = true;
	return n->fd;
}

void ns_net_give_back(struct ns_net *n)
{
	if (!n || kept || n->used || !untouched(n)) {
		(void)net_free(n);
		return;
	}
	n->old = true;
	kept = n;
}

int ns_net_enter(const struct ns_net *n, int *ret_own)
{
	*ret_own = own_namespace();
	if (*ret_own < 0)
		return -1;
	if (setns(n->fd, CLONE_NEWNET) == 0)
		return 0;
	sbx_closep(ret_own);
	return -1;
}

void ns_net_leave(int *own)
{
	if (*own < 0)
		return;
	go_back(*own);
	sbx_closep(own);
}
