/* SPDX-License-Identifier: Apache-2.0 */
/* Where the state is, and what is at the mount point before we are. */
#include "fsd/options.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/log.h"
#include "orchestrator/orchestrator.h"

int fsd_choose_state(struct fsd_options *o, struct sbx_error *e)
{
	if (o->state)
		return 0;
	return orch_state_dir(o->config, (const char *const *)o->overrides, o->n_overrides,
			      &o->state, e);
}

static bool is_below(const char *path, const char *dir)
{
	size_t n = strlen(dir);

	return strncmp(path, dir, n) == 0 && (path[n] == '/' || path[n] == '\0');
}

/* Where would a path that need not exist yet end up? Its longest part that exists decides. */
static bool leads_below(const char *path, const char *dir)
{
	sbx_autofree char *at = strdup(path);
	char real[PATH_MAX], *slash;

	while (at && *at) {
		if (realpath(at, real))
			return is_below(real, dir);
		slash = strrchr(at, '/');
		if (!slash)
			break;
		*slash = '\0';
	}
	return false;
}

int fsd_check_places(const struct fsd_options *o, struct sbx_error *e)
{
	if (is_below(o->state, o->mountpoint) || leads_below(o->state, o->mountpoint))
		return sbx_fail(e, SBX_E_INVALID_CONFIG,
				"the state directory '%s' is inside the mount point '%s'; give "
				"another one with -o state=DIR",
				o->state, o->mountpoint);
	return 0;
}

static int run_quietly(const char *const argv[])
{
	pid_t pid = fork();
	int status = 0;

	if (pid == 0) {
		(void)execvp(argv[0], (char *const *)(uintptr_t)argv);
		_exit(127);
	}
	return pid < 0 || waitpid(pid, &status, 0) < 0 ? -1 : status;
}

/* Every access to it says "Transport endpoint is not connected", but for those that the kernel
 * answers from its cache, as it may a stat. */
int fsd_become_images(char **argv, struct sbx_error *e)
{
	static const char *const beside[] = { "sandbox-image", "../libexec/sandboxfs/sandbox-image",
					      "../lib/sandboxfs/sandbox-image" };
	char self[PATH_MAX], *slash;
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	self[n > 0 ? n : 0] = '\0';
	slash = strrchr(self, '/');
	if (slash)
		*slash = '\0';
	for (size_t i = 0; i < SBX_COUNT(beside); i++) {
		sbx_autofree char *path = NULL;

		if (asprintf(&path, "%s/%s", self, beside[i]) < 0)
			return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
		(void)execv(path, argv);
	}
	return sbx_fail_errno(e, SBX_E_INVALID_CONFIG, errno,
			      "sandbox-image is not beside this program ('%s') nor in "
			      "../libexec/sandboxfs",
			      self);
}

void fsd_repair_mount(const char *mountpoint)
{
	struct statfs st;

	for (int i = 0; i < 8 && statfs(mountpoint, &st) < 0 && errno == ENOTCONN; i++) {
		sbx_log(SBX_LOG_INFO, "unmounting what a dead server left mountpoint=%s",
			mountpoint);
		if (umount2(mountpoint, MNT_DETACH) < 0)
			(void)run_quietly((const char *const[]){ "fusermount3", "-u", "-z", "-q",
								 "--", mountpoint, NULL });
	}
}
