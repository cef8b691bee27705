/* SPDX-License-Identifier: Apache-2.0 */
/* Making a tree: each directory is finished when all below it is, since its times and its right to
 * be written to would not outlast that. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/fs.h"
#include "store/snap_i.h"

/* ENOENT for an empty one. */
static int first_name(int root, char name[SBX_NAME_MAX + 1])
{
	int fd = openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = -ENOENT;
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *d;

	if (!dir) {
		r = -errno;
		sbx_closep(&fd);
		return r;
	}
	while (errno = 0, (d = readdir(dir))) {
		if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0)
			continue;
		(void)snprintf(name, SBX_NAME_MAX + 1, "%s", d->d_name);
		r = 0;
		break;
	}
	if (r < 0 && errno)
		r = -errno;
	(void)closedir(dir);
	return r;
}

void snap_dest_undo(int root)
{
	char name[SBX_NAME_MAX + 1];

	while (first_name(root, name) == 0)
		if (sbx_remove_tree(root, name) < 0)
			break;
}

int snap_dest_init(struct snap_dest *d, const struct snap *n, int root, uid_t uid, gid_t gid,
		   struct sbx_error *e)
{
	char name[SBX_NAME_MAX + 1];
	int r = first_name(root, name);

	*d = (struct snap_dest){ .n = n, .root = root, .uid = uid, .gid = gid, .leader_dir = -1 };
	if (r == 0)
		return sbx_fail(e, SBX_E_ENTRY_EXISTS, "the directory for the tree is not empty");
	if (r != -ENOENT)
		return snap_storage(e, -r, "list the directory for the tree");
	return 0;
}

void snap_dest_fini(struct snap_dest *d)
{
	snap_path_fini(&d->path);
	sbx_closep(&d->leader_dir);
}

static int failed(struct snap_dest *d, uint32_t i, const char *what, int err, struct sbx_error *e)
{
	char buf[256];

	return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, err, "cannot %s '%s'", what,
			      snap_where(d->n, i, buf, sizeof(buf)));
}

/* Owner first: a change of owner takes rights away. Nobody else has the file open. */
static int set_attributes(struct snap_dest *d, int fd, const struct snap_record *rec)
{
	struct timespec times[2] = { { .tv_nsec = UTIME_OMIT },
				     { .tv_sec = rec->mtime_sec, .tv_nsec = rec->mtime_nsec } };

	if ((d->uid != (uid_t)-1 || d->gid != (gid_t)-1) && fchown(fd, d->uid, d->gid) < 0)
		return -errno;
	if (fchmod(fd, rec->mode & SNAP_MODE_MASK) < 0 || futimens(fd, times) < 0)
		return -errno;
	return 0;
}

int snap_dest_enter(struct snap_dest *d, uint32_t dir, struct sbx_error *e)
{
	int at = dir ? snap_path_top(&d->path) : d->root, fd, r;
	const char *name = dir ? snap_name(d->n, dir) : ".";

	if (dir && mkdirat(at, name, 0700) < 0)
		return failed(d, dir, "make the directory", errno, e);
	fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	r = fd < 0 ? -errno : snap_path_push(&d->path, fd);
	return r < 0 ? failed(d, dir, "open the directory", -r, e) : 0;
}

int snap_dest_leave(struct snap_dest *d, uint32_t dir, struct sbx_error *e)
{
	int fd = snap_path_top(&d->path), r = snap_xattrs_set(d->n, &d->n->records[dir], fd);

	if (r == 0)
		r = set_attributes(d, fd, &d->n->records[dir]);
	if (r == 0)
		r = snap_path_pop(&d->path);
	return r < 0 ? failed(d, dir, "finish the directory", -r, e) : 0;
}

/* By sharing the blocks, else by a copy that keeps holes. */
static int copy_content(const struct snap_dest *d, int from, int to, int64_t *ret_size)
{
	uint64_t copied = 0;
	struct stat st;
	int r;

	if (ioctl(to, FICLONE, from) == 0) {
		if (fstat(to, &st) < 0)
			return -errno;
		*ret_size = st.st_size;
		return 0;
	}
	r = sbx_copy_sparse(from, to, INT64_MAX, &copied);
	*ret_size = (int64_t)copied;
	/* The disk may begin while the next one is copied. */
	if (r == 0 && d->to_sync && copied >= SNAP_COPY_BUFFER)
		(void)sync_file_range(to, 0, 0, SYNC_FILE_RANGE_WRITE);
	return r;
}

int snap_dest_file(struct snap_dest *d, const char *name, const struct snap_record *rec, int from,
		   int64_t *ret_size, struct sbx_error *e)
{
	sbx_autoclose int fd = -1;
	int r;

	*ret_size = 0;
	fd = openat(snap_path_top(&d->path), name,
		    O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return snap_storage(e, errno, "make a file");
	r = from < 0 ? 0 : copy_content(d, from, fd, ret_size);
	if (r == 0)
		r = snap_xattrs_set(d->n, rec, fd);
	if (r == 0)
		r = set_attributes(d, fd, rec);
	return r < 0 ? snap_storage(e, -r, "write a file") : 0;
}

int snap_dest_symlink(struct snap_dest *d, uint32_t i, struct sbx_error *e)
{
	const struct snap_record *rec = &d->n->records[i];
	const char *name = snap_name(d->n, i);
	struct timespec times[2] = { { .tv_nsec = UTIME_OMIT },
				     { .tv_sec = rec->mtime_sec, .tv_nsec = rec->mtime_nsec } };
	int at = snap_path_top(&d->path);

	if (symlinkat(snap_target(d->n, i), at, name) < 0 ||
	    ((d->uid != (uid_t)-1 || d->gid != (gid_t)-1) &&
	     fchownat(at, name, d->uid, d->gid, AT_SYMLINK_NOFOLLOW) < 0) ||
	    utimensat(at, name, times, AT_SYMLINK_NOFOLLOW) < 0)
		return failed(d, i, "make the link", errno, e);
	return 0;
}

static int open_leader(struct snap_dest *d, uint32_t first)
{
	uint32_t parent = d->n->records[first].parent;

	/* Most names of a file are near each other. */
	if (d->leader_dir >= 0 && d->leader_parent == parent)
		return 0;
	sbx_closep(&d->leader_dir);
	d->leader_dir = snap_open_record(d->n, parent, d->root);
	d->leader_parent = parent;
	return d->leader_dir < 0 ? d->leader_dir : 0;
}

int snap_dest_link(struct snap_dest *d, uint32_t i, struct sbx_error *e)
{
	const struct snap_record *rec = &d->n->records[i];
	const char *leader = snap_name(d->n, rec->first);
	sbx_autoclose int from = -1;
	int64_t size;
	int r = open_leader(d, rec->first);

	if (r < 0)
		return failed(d, rec->first, "find", -r, e);
	if (linkat(d->leader_dir, leader, snap_path_top(&d->path), snap_name(d->n, i), 0) == 0)
		return 0;
	if (errno != EMLINK)
		return failed(d, i, "link", errno, e);
	from = openat(d->leader_dir, leader, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (from < 0)
		return failed(d, i, "copy", errno, e);
	return snap_dest_file(d, snap_name(d->n, i), rec, from, &size, e);
}

int snap_dest_sync(struct snap_dest *d, struct sbx_error *e)
{
	sbx_autoclose int fd = openat(d->root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	/* Files, directories and names; one by one would take a commit of the journal for each. */
	return fd < 0 || syncfs(fd) < 0 ? snap_storage(e, errno, "sync a tree") : 0;
}
