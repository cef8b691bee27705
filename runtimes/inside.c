/* SPDX-License-Identifier: Apache-2.0 */
/* Inside a sandbox: files and the working directory. No link in the workspace is followed, and
 * nothing in it is opened that could block. */
#include "runtimes/inside_i.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/fs.h"

static int open_dir(const char *path)
{
	struct open_how how = {
		.flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
		.resolve = RESOLVE_NO_MAGICLINKS,
	};

	return (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof(how));
}

int rt_enter(const char *cwd)
{
	int fd = open_dir(cwd);

	return fd < 0 ? -1 : fchdir(fd);
}

int rt_place_file(int workspace, const char *path, const char **ret_what)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	char parent[SBX_PATH_MAX + 1] = ".";
	sbx_autoclose int dir = -1;
	int fd, rc = sbx_mkdirs_beneath(workspace, path, 0755);

	*ret_what = "make the directories of";
	if (rc < 0)
		return rc;
	if (slash)
		(void)snprintf(parent, sizeof(parent), "%.*s", (int)(slash - path), path);
	dir = sbx_open_beneath(workspace, parent, O_PATH | O_DIRECTORY, 0);
	*ret_what = "open the directory of";
	if (dir < 0)
		return dir;
	*ret_what = "write";
	fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0 && errno == EEXIST && unlinkat(dir, name, 0) == 0)
		fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	return fd < 0 ? -errno : fd;
}

int rt_place_cwd(int workspace, const char *cwd, const char **ret_what)
{
	static const char below[] = "/workspace/";
	sbx_autoclose int fd = open_dir(cwd);
	char path[SBX_PATH_MAX + 1];
	size_t n;
	int rc;

	*ret_what = "use";
	if (fd >= 0)
		return 0;
	if (errno != ENOENT || strncmp(cwd, below, strlen(below)) != 0)
		return -errno;
	n = (size_t)snprintf(path, sizeof(path), "%s", cwd + strlen(below));
	while (n && path[n - 1] == '/')
		path[--n] = '\0';
	*ret_what = sbx_path_problem(path, n);
	if (*ret_what)
		return 1;
	*ret_what = "make";
	rc = sbx_mkdirs_beneath(workspace, path, 0755);
	if (rc < 0)
		return rc;
	return mkdirat(workspace, path, 0755) < 0 && errno != EEXIST ? -errno : 0;
}
