/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runner: which repository a worktree is made of. One of the host only where the operator has named
 * it (`images`) and the directory that it lies in (`worktree_allowed_dirs`); else the workspace of
 * the run's session; else nothing.
 */
#include "runtimes/worktree/wt_i.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fs.h"

/* What of `path` lies below `dir`, both real; NULL when it does not, "" for the same. */
static const char *below(const char *path, const char *dir)
{
	size_t n = strcmp(dir, "/") == 0 ? 0 : strlen(dir);

	if (strncmp(path, dir, n) != 0 || (path[n] && path[n] != '/'))
		return NULL;
	return path[n] ? path + n + 1 : path + n;
}

/* The first of the listed directories at or below which `real` lies, resolved. *ret_rest is what is
 * left of it. */
static bool find_allowed(const char *dirs, const char *real, char ret[PATH_MAX],
			 const char **ret_rest)
{
	for (const char *p = dirs; p && *p; p += strspn(p, ",")) {
		size_t n = strcspn(p, ",");
		sbx_autofree char *dir = strndup(p, n);

		p += n;
		/* A relative one would depend on where the service was started. */
		if (!dir || dir[0] != '/' || !realpath(dir, ret))
			continue;
		*ret_rest = below(real, ret);
		if (*ret_rest)
			return true;
	}
	return false;
}

static int refuse(struct sbx_error *e)
{
	(void)sbx_fail(e, SBX_E_POLICY_UNSUPPORTED,
		       "base_image: the path of this repository is not under any allowed directory "
		       "(worktree_allowed_dirs)");
	(void)sbx_error_details(e, "{\"runtime\":\"worktree\",\"requirement\":"
				   "\"worktree_allowed_dirs\",\"reasons\":["
				   "\"repository_not_allowed\"]}");
	return -SBX_E_POLICY_UNSUPPORTED;
}

/* Each step again below the directory that is allowed, so that nothing that was exchanged
 * meanwhile leads elsewhere. */
static int open_listed(const char *dirs, const char *path, int *ret, struct sbx_error *e)
{
	char real[PATH_MAX], allowed[PATH_MAX];
	sbx_autoclose int dir = -1;
	const char *rest = NULL;

	if (!realpath(path, real))
		return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, errno,
				      "base_image: the repository cannot be found");
	if (!find_allowed(dirs, real, allowed, &rest))
		return refuse(e);
	dir = open(allowed, O_PATH | O_DIRECTORY | O_CLOEXEC);
	*ret = dir < 0 ? -errno
		       : sbx_open_beneath(dir, *rest ? rest : ".", O_PATH | O_DIRECTORY, 0);
	return *ret < 0 ? sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, -*ret,
					 "base_image: the repository cannot be opened")
			: 0;
}

int rt_worktree_allowed(const char *dirs, const char *path, struct sbx_error *e)
{
	char real[PATH_MAX], allowed[PATH_MAX];
	const char *rest;

	/* A door may have fewer rights than the runner, which looks again. */
	return realpath(path, real) && !find_allowed(dirs, real, allowed, &rest) ? refuse(e) : 0;
}

/* Git will read everything below the repository, so the service's own state must not be there; and
 * what lies inside of that is the service's. Asked of what was opened: its path may lead elsewhere
 * by now. */
static int keep_apart(int dir, const char *ours, struct sbx_error *e)
{
	char link[40], real[PATH_MAX], real_ours[PATH_MAX];

	if (!ours || !realpath(ours, real_ours))
		return 0;
	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d", dir);
	if (!realpath(link, real))
		return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, errno,
				      "base_image: the repository cannot be found");
	if (below(real, real_ours) || below(real_ours, real))
		return sbx_fail(e, SBX_E_POLICY_UNSUPPORTED,
				"base_image: the repository and the service's own directories lie "
				"one in the other");
	return 0;
}

static bool has(int dir, const char *name, mode_t type)
{
	struct stat st;

	return fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && (st.st_mode & S_IFMT) == type;
}

static bool is_bare(int dir)
{
	return has(dir, "HEAD", S_IFREG) && has(dir, "objects", S_IFDIR) &&
	       has(dir, "refs", S_IFDIR);
}

static int open_host(const struct rt_host *host, const char *path, struct wt_source *ret,
		     struct sbx_error *e)
{
	int r = open_listed(host->worktree.allowed_dirs, path, &ret->dir, e);

	if (r == 0)
		r = keep_apart(ret->dir, host->state_dir, e);
	if (r == 0)
		r = keep_apart(ret->dir, host->mountpoint, e);
	/* A file there leads to another repository: that of a submodule or a linked worktree. */
	if (r == 0 && !has(ret->dir, ".git", S_IFDIR) && !is_bare(ret->dir))
		r = sbx_fail(e, SBX_E_RUNTIME_ERROR,
			     "base_image: there is no git repository of its own at the top of this "
			     "directory");
	ret->repository = true;
	return r;
}

int wt_source_open(const struct rt_host *host, const struct rt_plan *p, struct wt_source *ret,
		   struct sbx_error *e)
{
	int r = 0;

	*ret = (struct wt_source){ .dir = -1 };
	if (p->image_path) {
		r = open_host(host, p->image_path, ret, e);
	} else if (p->workspace_fd >= 0) {
		ret->dir = fcntl(p->workspace_fd, F_DUPFD_CLOEXEC, 3);
		if (ret->dir < 0)
			return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, errno,
					      "cannot take the session's workspace");
		ret->repository = has(ret->dir, ".git", S_IFDIR);
	}
	if (r < 0)
		sbx_closep(&ret->dir);
	return r;
}
