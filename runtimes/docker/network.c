/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runner: the network of a container. The engine makes it without any, so that its namespace has
 * loopback alone; what is on the list is let through from there, as for every other sandbox. No
 * network and no rule of the engine's has a part in it.
 */
#include "runtimes/docker/dk_i.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/auto.h"

static int fail(struct sbx_error *e, int err, const char *what)
{
	return sbx_fail_errno(e, SBX_E_POLICY_UNSUPPORTED, err,
			      "network_policy allowlist cannot be enforced: cannot %s", what);
}

/* Would the rules be the host's? An engine that does not do what it was asked to must not cost the
 * host its network. */
static bool may_be_the_hosts(int netns)
{
	struct stat ours, theirs;

	return stat("/proc/self/ns/net", &ours) < 0 || fstat(netns, &theirs) < 0 ||
	       (ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino);
}

/* Process 1 has answered since its pidfd was opened, so that this is of it; and as long as it
 * lives its number is nobody else's. */
static int open_netns(const struct dk_sandbox *sb, int *ret, struct sbx_error *e)
{
	struct pollfd end = { .fd = sb->pidfd, .events = POLLIN };
	sbx_autoclose int fd = -1;
	char path[64];

	(void)snprintf(path, sizeof(path), "/proc/%ld/ns/net", (long)sb->pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return fail(e, errno, "open the container's network namespace");
	if (poll(&end, 1, 0) != 0)
		return fail(e, ESRCH, "find process 1 of the container");
	if (may_be_the_hosts(fd))
		return sbx_fail(e, SBX_E_POLICY_UNSUPPORTED,
				"network_policy allowlist cannot be enforced: the engine has given "
				"the container the host's network");
	*ret = sbx_steal_fd(&fd);
	return 0;
}

int dk_network_open(const struct rt_plan *p, struct egress **ret, struct sbx_error *e)
{
	return p->network == RT_NET_ALLOWLIST ? egress_failed(egress_open(p->egress, ret, e), e)
					      : 0;
}

int dk_network_enter(struct dk_sandbox *sb, struct egress **egress, struct sbx_error *e)
{
	sbx_autoclose int netns = -1;
	int r;

	if (!*egress)
		return 0;
	r = open_netns(sb, &netns, e);
	if (r < 0)
		return r;
	sb->egress = sbx_steal(egress);
	return egress_failed(egress_enter(sb->egress, netns, -1, e), e);
}
