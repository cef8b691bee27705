/* SPDX-License-Identifier: Apache-2.0 */
/* The way down into a tree, for walks without recursion and with few descriptors. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"
#include "store/snap_i.h"

void snap_path_fini(struct snap_path *p)
{
	for (size_t i = 0; i < p->depth; i++)
		sbx_closep(&p->steps[i].fd);
	free(p->steps);
	*p = (struct snap_path){ .steps = NULL };
}

int snap_path_top(const struct snap_path *p)
{
	return p->steps[p->depth - 1].fd;
}

int snap_path_push(struct snap_path *p, int fd)
{
	sbx_autoclose int mine = fd;

	if (p->depth == p->size) {
		size_t size = p->size ? 2 * p->size : 32;
		struct snap_step *steps = reallocarray(p->steps, size, sizeof(*steps));

		if (!steps)
			return -ENOMEM;
		p->steps = steps;
		p->size = size;
	}
	if (p->depth >= SNAP_HELD_MAX) {
		struct snap_step *above = &p->steps[p->depth - 1];
		struct stat st;

		if (fstat(above->fd, &st) < 0)
			return -errno;
		above->dev = st.st_dev;
		above->ino = st.st_ino;
		sbx_closep(&above->fd);
	}
	p->steps[p->depth++] = (struct snap_step){ .fd = sbx_steal_fd(&mine) };
	return 0;
}

int snap_path_pop(struct snap_path *p)
{
	struct snap_step *last = &p->steps[--p->depth], *above = last - 1;
	sbx_autoclose int fd = sbx_steal_fd(&last->fd), up = -1;
	struct stat st;

	if (p->depth == 0 || above->fd >= 0)
		return 0;
	up = openat(fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (up < 0 || fstat(up, &st) < 0)
		return -errno;
	if (st.st_dev != above->dev || st.st_ino != above->ino)
		return -ESTALE; /* moved to somewhere else; that may be outside of the tree */
	above->fd = sbx_steal_fd(&up);
	return 0;
}

/* The names of the directories from `dir` up, as many as one call of the kernel takes, ending at
 * `stop`. Returns the directory that the path leads to. */
static uint32_t part_of_path(const struct snap *n, uint32_t dir, uint32_t stop, char path[4096])
{
	size_t len = 0, at;
	uint32_t to = dir;

	/* Too long: leave off the lower end, and come back for it. */
	for (uint32_t i = dir; i != stop; i = n->records[i].parent) {
		len += n->records[i].name_len + 1u;
		while (len > 4096) {
			len -= n->records[to].name_len + 1u;
			to = n->records[to].parent;
		}
	}
	at = len ? len - 1 : 0;
	path[at] = '\0';
	for (uint32_t i = to; i != stop; i = n->records[i].parent) {
		at -= n->records[i].name_len;
		memcpy(path + at, snap_name(n, i), n->records[i].name_len);
		if (at)
			path[--at] = '/';
	}
	return to;
}

int snap_open_record(const struct snap *n, uint32_t dir, int root)
{
	sbx_autoclose int at = openat(root, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	uint32_t here = 0;
	char path[4096];

	if (at < 0)
		return -errno;
	while (here != dir) {
		int fd;

		here = part_of_path(n, dir, here, path);
		fd = sbx_open_beneath(at, path, O_PATH | O_DIRECTORY, 0);
		if (fd < 0)
			return fd;
		sbx_closep(&at);
		at = fd;
	}
	return sbx_steal_fd(&at);
}
