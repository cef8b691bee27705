/* SPDX-License-Identifier: Apache-2.0 */
/* The directory of each run below <dir>/runs. An id is checked before it becomes a name. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/id.h"
#include "store/store_i.h"

static int bad_id(struct sbx_error *e)
{
	return sbx_fail(e, SBX_E_RUN_NOT_FOUND, "no such run");
}

int store_run_dir(struct store *s, const char *id, bool create, struct sbx_error *e)
{
	int fd;

	if (!sbx_id_valid(id))
		return bad_id(e);
	if (create && mkdirat(s->runs_fd, id, 0700) < 0 && errno != EEXIST)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno,
				      "cannot make the directory of run '%s'", id);
	fd = sbx_open_beneath(s->runs_fd, id, O_RDONLY | O_DIRECTORY, 0);
	if (fd == -ENOENT)
		return sbx_fail(e, SBX_E_RUN_NOT_FOUND, "run '%s' has no directory", id);
	if (fd < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, -fd,
				      "cannot open the directory of run '%s'", id);
	return fd;
}

int store_run_dir_remove(struct store *s, const char *id, struct sbx_error *e)
{
	int r;

	if (!sbx_id_valid(id))
		return bad_id(e);
	r = sbx_remove_tree(s->runs_fd, id);
	if (r < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, -r,
				      "cannot remove the directory of run '%s'", id);
	return 0;
}

static void close_dir(DIR **d)
{
	if (*d)
		(void)closedir(*d);
}

int store_run_dirs(struct store *s, bool (*each)(void *ctx, const char *id), void *ctx,
		   struct sbx_error *e)
{
	SBX_AUTO(close_dir) DIR *dir = NULL;
	int fd = openat(s->runs_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct dirent *d;

	if (fd >= 0)
		dir = fdopendir(fd);
	if (!dir) {
		int err = errno;

		sbx_closep(&fd);
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, err,
				      "cannot list the directories of runs");
	}
	while (errno = 0, (d = readdir(dir)))
		if (sbx_id_valid(d->d_name) && !each(ctx, d->d_name))
			return 0;
	if (errno)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno,
				      "cannot list the directories of runs");
	return 0;
}
