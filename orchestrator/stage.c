/* SPDX-License-Identifier: Apache-2.0 */
/* Directories for staging, which nobody meets half removed: whoever has one has its lock. */
#include "orchestrator/stage_i.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "base/auto.h"
#include "base/fs.h"
#include "base/id.h"

enum { TRIES = 16 };

static const char prefix[] = "upload-";

/* True: nobody else has it, and it is still there. */
static bool take(int fd)
{
	struct stat st;

	return flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &st) == 0 && st.st_nlink > 0;
}

static void sweep(int dir)
{
	int own = sbx_open_beneath(dir, ".", O_RDONLY | O_DIRECTORY, 0);
	DIR *d = own >= 0 ? fdopendir(own) : NULL;
	const struct dirent *e;

	if (!d) {
		sbx_closep(&own);
		return;
	}
	while ((e = readdir(d))) {
		sbx_autoclose int fd = -1;

		if (strncmp(e->d_name, prefix, sizeof(prefix) - 1) != 0)
			continue;
		fd = sbx_open_beneath(dir, e->d_name, O_RDONLY | O_DIRECTORY, 0);
		if (fd >= 0 && take(fd))
			(void)sbx_remove_tree(dir, e->d_name);
	}
	(void)closedir(d);
}

int stage_make(int dir, struct stage *ret, struct sbx_error *e)
{
	ret->fd = -1;
	sweep(dir);
	for (int i = 0; i < TRIES; i++) {
		sbx_autoclose int fd = -1;
		uint64_t random;

		sbx_random(&random, sizeof(random));
		(void)snprintf(ret->name, sizeof(ret->name), "%s%016llx", prefix,
			       (unsigned long long)random);
		if (mkdirat(dir, ret->name, 0700) < 0 && errno != EEXIST)
			break;
		fd = sbx_open_beneath(dir, ret->name, O_RDONLY | O_DIRECTORY, 0);
		/* Another one's sweep may have had it before we did. */
		if (fd >= 0 && take(fd)) {
			ret->fd = sbx_steal_fd(&fd);
			return 0;
		}
	}
	return sbx_fail_errno(e, errno == ENOSPC ? SBX_E_STORAGE_FULL : SBX_E_STORE_UNAVAILABLE,
			      errno, "cannot stage an upload");
}

void stage_end(int dir, struct stage *s)
{
	/* While it is still ours: a sweep would meet half of it. */
	if (s->fd >= 0)
		(void)sbx_remove_tree(dir, s->name);
	sbx_closep(&s->fd);
}
