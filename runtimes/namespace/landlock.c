/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Landlock: a second opinion on what may be changed. Mounts already say what is read-only; these
 * rules say it again, by another part of the kernel. Process 1 makes them, process 2 enters.
 */
#include "runtimes/namespace/ns_i.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "base/auto.h"

/* Newer than the headers that this must compile with. */
#define FS_TRUNCATE	    (UINT64_C(1) << 14)
#define FS_IOCTL_DEV	    (UINT64_C(1) << 15)
#define SCOPE_ABSTRACT_UNIX (UINT64_C(1) << 0)
#define SCOPE_SIGNAL	    (UINT64_C(1) << 1)

struct ruleset_attr {
	uint64_t fs, net, scoped;
};

#define READ                                                                                       \
	(LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)
#define WRITE_FILE    (LANDLOCK_ACCESS_FS_WRITE_FILE | FS_TRUNCATE | FS_IOCTL_DEV)
#define FIRST_ABI_ALL ((UINT64_C(1) << 13) - 1)

/* Every right that this kernel knows. */
static uint64_t known_rights(int abi)
{
	uint64_t all = FIRST_ABI_ALL;

	if (abi >= 2)
		all |= LANDLOCK_ACCESS_FS_REFER;
	if (abi >= 3)
		all |= FS_TRUNCATE;
	if (abi >= 5)
		all |= FS_IOCTL_DEV;
	return all;
}

int ns_landlock_abi(void)
{
	long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);

	return abi > 0 ? (int)abi : 0;
}

static int allow(int ruleset, int dirfd, uint64_t rights, struct ns_reply *r)
{
	struct landlock_path_beneath_attr rule = {
		.allowed_access = rights & known_rights(ns_landlock_abi()),
		.parent_fd = dirfd,
	};

	if (syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) < 0)
		return ns_fail(r, NS_STAGE_OTHER, errno, "cannot add a Landlock rule");
	return 0;
}

int ns_landlock_allow(int ruleset, int dirfd, struct ns_reply *r)
{
	return allow(ruleset, dirfd, ~UINT64_C(0), r);
}

int ns_landlock_new(struct ns_reply *r)
{
	static const struct {
		const char *path;
		uint64_t rights;
	} rules[] = {
		{ "/", READ },
		{ "/workspace", ~UINT64_C(0) },
		{ "/tmp", ~UINT64_C(0) },
		{ "/dev/shm", ~UINT64_C(0) },
		{ "/dev", READ | WRITE_FILE },
		{ "/proc", READ | WRITE_FILE }, /* oom_score_adj, comm and the like */
	};
	int abi = ns_landlock_abi();
	struct ruleset_attr attr = { .fs = known_rights(abi) };
	sbx_autoclose int ruleset = -1;

	if (abi >= 6)
		attr.scoped = SCOPE_ABSTRACT_UNIX | SCOPE_SIGNAL;
	/* Older kernels take only the part that they know. */
	ruleset = (int)syscall(SYS_landlock_create_ruleset, &attr,
			       abi >= 6 ? sizeof(attr) : sizeof(attr.fs), 0);
	if (ruleset < 0)
		return ns_fail(r, NS_STAGE_OTHER, errno, "cannot make a Landlock ruleset");
	for (size_t i = 0; i < SBX_COUNT(rules); i++) {
		sbx_autoclose int fd = open(rules[i].path, O_PATH | O_CLOEXEC);

		if (fd < 0)
			return ns_fail(r, NS_STAGE_OTHER, errno, "cannot open %s", rules[i].path);
		if (allow(ruleset, fd, rules[i].rights, r) < 0)
			return -1;
	}
	return sbx_steal_fd(&ruleset);
}

int ns_landlock_enter(int ruleset)
{
	return (int)syscall(SYS_landlock_restrict_self, ruleset, 0);
}
