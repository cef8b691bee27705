/* SPDX-License-Identifier: Apache-2.0 */
/* Inside a sandbox: the search for the command. The caller may share memory with another process,
 * so that nothing here allocates. */
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "runtimes/inside_i.h"

static const char default_path[] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

static const char *path_of(char *const *envp)
{
	for (; *envp; envp++)
		if (strncmp(*envp, "PATH=", 5) == 0)
			return *envp + 5;
	return default_path;
}

int rt_execute(char *const *argv, char *const *envp)
{
	const char *path = path_of(envp);
	size_t name = strlen(argv[0]);
	int denied = 0;

	if (!name || strchr(argv[0], '/')) {
		(void)execve(argv[0], argv, envp);
		return errno;
	}
	for (;;) {
		size_t n = strcspn(path, ":");
		char file[SBX_PATH_MAX + 1];

		if (n + 1 + name < sizeof(file)) {
			memcpy(file, path, n);
			file[n] = '/';
			/* An empty part is the working directory. */
			memcpy(file + n + (n > 0), argv[0], name + 1);
			(void)execve(file, argv, envp);
			if (errno != ENOENT && errno != ENOTDIR && errno != EACCES)
				return errno;
			if (errno == EACCES && access(file, F_OK) == 0)
				denied = EACCES;
		}
		if (!path[n])
			return denied ? denied : ENOENT;
		path += n + 1;
	}
}

int rt_exec_status(int err)
{
	return err == ENOENT || err == ENOTDIR ? RT_STATUS_NOT_FOUND : RT_STATUS_CANNOT;
}

char *rt_split(char *p, char **vector, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		vector[i] = p;
		p += strlen(p) + 1;
	}
	vector[n] = NULL;
	return p;
}
