/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of each runner below <dir>/runners, made once when it starts: OWNER.bell, a FIFO that
 * wakes it, and OWNER.mark, the last run that it began to execute. So neither needs anything to be
 * made for a run. The owner is the name of its claims, with ',' for '/'.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"
#include "store/store_i.h"

#define BELL ".bell"
#define MARK ".mark"

/* What stands in a mark: one write, so that a process that is killed leaves all of it or nothing.
 */
struct mark_file {
	int64_t generation, started_us;
	char run_id[40];
};

static int file_name(const char *owner, const char *suffix, char name[NAME_MAX + 1],
		     struct sbx_error *e)
{
	int n = snprintf(name, NAME_MAX + 1, "%s%s", owner, suffix);

	if (n < 0 || n > NAME_MAX || owner[0] == '.' || owner[0] == '\0' || strchr(owner, ','))
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "a runner cannot be called '%.64s'",
				owner);
	for (char *p = name; *p; p++)
		if (*p == '/')
			*p = ',';
	return 0;
}

int store_runner_open(struct store *s, const char *owner, int *ret_bell, int *ret_mark,
		      struct sbx_error *e)
{
	sbx_autoclose int bell = -1, mark = -1;
	char name[NAME_MAX + 1];
	int r = file_name(owner, MARK, name, e);

	if (r < 0)
		return r;
	mark = openat(s->runners_fd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (mark < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno, "cannot make '%s'", name);
	(void)file_name(owner, BELL, name, e);
	/* Open for writing too, so that it is never at its end. */
	if (mkfifoat(s->runners_fd, name, 0600) == 0)
		bell = openat(s->runners_fd, name, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (bell < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno, "cannot make '%s'", name);
	*ret_bell = sbx_steal_fd(&bell);
	*ret_mark = sbx_steal_fd(&mark);
	return 0;
}

void store_runner_remove(struct store *s, const char *owner)
{
	char name[NAME_MAX + 1];

	if (file_name(owner, BELL, name, NULL) == 0)
		(void)unlinkat(s->runners_fd, name, 0);
	if (file_name(owner, MARK, name, NULL) == 0)
		(void)unlinkat(s->runners_fd, name, 0);
}

int store_mark_write(int mark, const struct store_mark *m, struct sbx_error *e)
{
	struct mark_file f = { .generation = m->generation, .started_us = m->started_us };
	int r;

	memcpy(f.run_id, m->run_id, sizeof(m->run_id));
	r = sbx_pwrite_all(mark, &f, sizeof(f), 0);
	if (r < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, -r, "cannot mark a run as begun");
	return 0;
}

int store_mark_read(struct store *s, const char *owner, struct store_mark *ret, struct sbx_error *e)
{
	sbx_autoclose int fd = -1;
	char name[NAME_MAX + 1];
	struct mark_file f = { 0 };
	int r = file_name(owner, MARK, name, e);
	ssize_t n;

	if (r < 0)
		return r;
	*ret = (struct store_mark){ .run_id = "" };
	fd = sbx_open_beneath(s->runners_fd, name, O_RDONLY, 0);
	if (fd == -ENOENT)
		return 0;
	if (fd < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, -fd, "cannot open '%s'", name);
	n = pread(fd, &f, sizeof(f), 0);
	if (n != 0 && n != (ssize_t)sizeof(f))
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, n < 0 ? errno : EIO,
				      "cannot read '%s'", name);
	*ret = (struct store_mark){ .generation = f.generation, .started_us = f.started_us };
	memcpy(ret->run_id, f.run_id, sizeof(ret->run_id) - 1);
	return 0;
}

int store_runner_ring(struct store *s, const char *owner)
{
	sbx_autoclose int fd = -1;
	char name[NAME_MAX + 1];

	if (file_name(owner, BELL, name, NULL) < 0)
		return -SBX_E_RUN_NOT_FOUND;
	/* Without a reader it fails: nobody is there any more. */
	fd = sbx_open_beneath(s->runners_fd, name, O_WRONLY | O_NONBLOCK, 0);
	if (fd < 0)
		return fd == -ENXIO || fd == -ENOENT ? -SBX_E_RUN_NOT_FOUND
						     : -SBX_E_STORE_UNAVAILABLE;
	/* A full pipe rings all the same. */
	return write(fd, "", 1) == 1 || errno == EAGAIN ? 0 : -SBX_E_STORE_UNAVAILABLE;
}

int store_run_ring(struct store *s, const char *id)
{
	store_autorun r = { 0 };
	int rc = store_run_get(s, id, &r, NULL);

	if (rc < 0)
		return rc;
	return r.claim_owner ? store_runner_ring(s, r.claim_owner) : -SBX_E_RUN_NOT_FOUND;
}

static void close_dir(DIR **d)
{
	if (*d)
		(void)closedir(*d);
}

/* The owner that this name stands for, in place; NULL: it is no mark. */
static char *owner_of(char *name)
{
	size_t n = strlen(name), m = sizeof(MARK) - 1;

	if (name[0] == '.' || n <= m || strcmp(name + n - m, MARK) != 0)
		return NULL;
	name[n - m] = '\0';
	for (char *p = name; *p; p++)
		if (*p == ',')
			*p = '/';
	return name;
}

int store_runners(struct store *s, bool (*each)(void *ctx, const char *owner), void *ctx,
		  struct sbx_error *e)
{
	SBX_AUTO(close_dir) DIR *dir = NULL;
	int fd = openat(s->runners_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct dirent *d;
	char *owner;

	if (fd >= 0)
		dir = fdopendir(fd);
	if (!dir) {
		int err = errno;

		sbx_closep(&fd);
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, err, "cannot list the runners");
	}
	while ((d = readdir(dir)))
		if ((owner = owner_of(d->d_name)) && !each(ctx, owner))
			break;
	return 0;
}
