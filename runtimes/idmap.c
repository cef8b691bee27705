/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runner, as root only: the directory of a session as the sandbox may see it. Its files belong on
 * disk to whoever owns the directory; through an id-mapped mount the same files belong to the user
 * of the sandbox.
 */
#include "runtimes/runtimes_i.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/auto.h"
#include "base/crash.h"
#include "base/fs.h"

static int write_map(pid_t pid, const char *file, unsigned from, unsigned to)
{
	char path[64], text[48];

	(void)snprintf(path, sizeof(path), "/proc/%ld/%s", (long)pid, file);
	(void)snprintf(text, sizeof(text), "%u %u 1", from, to);
	return sbx_write_file(AT_FDCWD, path, text);
}

/* It has all descriptors of the runner: while it lives, nobody can see that the runner does not. */
static _Noreturn void wait_for_end(pid_t runner)
{
	if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) == 0)
		while (getppid() == runner)
			(void)pause();
	_exit(1);
}

/* A user namespace that is nothing but a map; -1 with errno set. */
static int map_namespace(const struct stat *disk, uid_t uid, gid_t gid)
{
	struct clone_args args = { .flags = CLONE_NEWUSER };
	pid_t pid, runner = getpid();
	char path[64];
	int fd = -1, err;

	pid = (pid_t)syscall(SYS_clone3, &args, sizeof(args));
	if (pid == 0)
		wait_for_end(runner);
	if (pid < 0)
		return -1;
	crash_point("mapping");
	err = -write_map(pid, "uid_map", disk->st_uid, uid);
	if (!err)
		err = -write_map(pid, "gid_map", disk->st_gid, gid);
	if (!err) {
		(void)snprintf(path, sizeof(path), "/proc/%ld/ns/user", (long)pid);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		err = fd < 0 ? errno : 0;
	}
	(void)kill(pid, SIGKILL);
	while (waitpid(pid, NULL, __WALL) < 0 && errno == EINTR)
		;
	errno = err;
	return fd;
}

int rt_workspace_tree(int fd, uid_t uid, gid_t gid, bool read_only, int *ret, struct sbx_error *e)
{
	struct mount_attr set = { .attr_set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV };
	sbx_autoclose int tree =
		open_tree(fd, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
	sbx_autoclose int map = -1;
	struct stat st;

	if (tree < 0 || fstat(tree, &st) < 0)
		return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, errno,
				      "cannot take the workspace into the sandbox");
	if (read_only)
		set.attr_set |= MOUNT_ATTR_RDONLY;
	if (st.st_uid != uid || st.st_gid != gid) {
		map = map_namespace(&st, uid, gid);
		if (map < 0)
			return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, errno,
					      "cannot map the owner of the workspace");
		set.attr_set |= MOUNT_ATTR_IDMAP;
		set.userns_fd = (uint64_t)map;
	}
	if (mount_setattr(tree, "", AT_EMPTY_PATH, &set, sizeof(set)) < 0)
		return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, errno,
				      "the file system of the workspace cannot map its owner "
				      "(user %u) to the sandbox's",
				      (unsigned)st.st_uid);
	*ret = sbx_steal_fd(&tree);
	return 0;
}
