/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/auto.h"

const char *sbx_path_problem(const char *path, size_t len)
{
	size_t start = 0;

	if (len == 0)
		return "is empty";
	if (memchr(path, '\0', len))
		return "contains a NUL byte";
	if (path[0] == '/')
		return "is absolute";
	if (len > SBX_PATH_MAX)
		return "is longer than 4095 bytes";
	for (size_t i = 0; i <= len; i++) {
		size_t n;

		if (i < len && path[i] != '/')
			continue;
		n = i - start;
		if (n == 0)
			return i == len ? "ends with a slash" : "has an empty part";
		if (n == 1 && path[start] == '.')
			return "has a part '.'";
		if (n == 2 && path[start] == '.' && path[start + 1] == '.')
			return "has a part '..'";
		if (n > SBX_NAME_MAX)
			return "has a name longer than 255 bytes";
		start = i + 1;
	}
	return NULL;
}

static int open_how(int dirfd, const char *path, int flags, mode_t mode, uint64_t resolve)
{
	struct open_how how = {
		.flags = (uint64_t)(unsigned)(flags | O_CLOEXEC),
		.mode = flags & (O_CREAT | __O_TMPFILE) ? mode : 0,
		.resolve = resolve,
	};
	long fd;

	do {
		fd = syscall(SYS_openat2, dirfd, path, &how, sizeof(how));
	} while (fd < 0 && (errno == EINTR || errno == EAGAIN));
	return fd < 0 ? -errno : (int)fd;
}

int sbx_open_beneath(int dirfd, const char *path, int flags, mode_t mode)
{
	return open_how(dirfd, path, flags, mode,
			RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS);
}

int sbx_mkdirs_beneath(int dirfd, const char *path, mode_t mode)
{
	sbx_autoclose int at = -1;
	const char *p = path, *slash;
	char name[SBX_NAME_MAX + 1];

	while ((slash = strchr(p, '/'))) {
		size_t n = (size_t)(slash - p);
		int next;

		if (n > SBX_NAME_MAX)
			return -ENAMETOOLONG;
		memcpy(name, p, n);
		name[n] = '\0';
		if (mkdirat(at >= 0 ? at : dirfd, name, mode) < 0 && errno != EEXIST)
			return -errno;
		next = sbx_open_beneath(at >= 0 ? at : dirfd, name, O_PATH | O_DIRECTORY, 0);
		if (next < 0)
			return next;
		sbx_closep(&at);
		at = next;
		p = slash + 1;
	}
	return 0;
}

char *sbx_absolute(const char *path)
{
	sbx_autofree char *cwd = NULL;
	char *joined = NULL;

	if (*path == '/')
		return strdup(path);
	cwd = getcwd(NULL, 0);
	return cwd && asprintf(&joined, "%s/%s", cwd, path) > 0 ? joined : NULL;
}

int sbx_mkdirs(const char *path, mode_t mode)
{
	sbx_autofree char *copy = strdup(path);

	if (!copy)
		return -ENOMEM;
	for (char *p = copy + 1; *p; p++) {
		if (*p != '/')
			continue;
		*p = '\0';
		if (mkdir(copy, mode) < 0 && errno != EEXIST)
			return -errno;
		*p = '/';
	}
	if (mkdir(copy, mode) < 0 && errno != EEXIST)
		return -errno;
	return 0;
}

/* off < 0: where the descriptor is. */
static int write_all(int fd, const void *data, size_t len, off_t off)
{
	const char *p = data;

	for (size_t put = 0; put < len;) {
		ssize_t n = off < 0 ? write(fd, p + put, len - put)
				    : pwrite(fd, p + put, len - put, off + (off_t)put);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		put += (size_t)n;
	}
	return 0;
}

int sbx_write_all(int fd, const void *data, size_t len)
{
	return write_all(fd, data, len, -1);
}

int sbx_pwrite_all(int fd, const void *data, size_t len, off_t off)
{
	return off < 0 ? -EINVAL : write_all(fd, data, len, off);
}

/* off < 0: from where the descriptor is. */
static ssize_t read_full(int fd, void *data, size_t len, off_t off)
{
	char *p = data;
	size_t got = 0;

	while (got < len) {
		ssize_t n = off < 0 ? read(fd, p + got, len - got)
				    : pread(fd, p + got, len - got, off + (off_t)got);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		got += (size_t)n;
	}
	return (ssize_t)got;
}

ssize_t sbx_read_full(int fd, void *data, size_t len)
{
	return read_full(fd, data, len, -1);
}

ssize_t sbx_pread_full(int fd, void *data, size_t len, off_t off)
{
	return off < 0 ? -EINVAL : read_full(fd, data, len, off);
}

int sbx_read_file(int dirfd, const char *path, size_t max, char **ret, size_t *ret_len)
{
	sbx_autoclose int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC);
	sbx_autofree char *data = NULL;
	size_t size = 4096, len = 0;

	if (fd < 0)
		return -errno;
	for (;;) {
		char *p = realloc(data, size + 1);
		ssize_t n;

		if (!p)
			return -ENOMEM;
		data = p;
		n = sbx_read_full(fd, data + len, size - len);
		if (n < 0)
			return (int)n;
		len += (size_t)n;
		if (len < size)
			break;
		if (len > max)
			return -EFBIG;
		size *= 2;
	}
	if (len > max)
		return -EFBIG;
	data[len] = '\0';
	if (ret_len)
		*ret_len = len;
	*ret = sbx_steal(&data);
	return 0;
}

int sbx_write_file(int dirfd, const char *path, const char *text)
{
	sbx_autoclose int fd = openat(dirfd, path, O_WRONLY | O_CLOEXEC);
	size_t len = strlen(text);
	ssize_t n;

	if (fd < 0)
		return -errno;
	do {
		n = write(fd, text, len);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	return (size_t)n == len ? 0 : -EIO;
}

int sbx_replace_file(int dirfd, const char *name, const void *data, size_t len, mode_t mode)
{
	char tmp[SBX_NAME_MAX + 1];
	sbx_autoclose int fd = -1;
	int r;

	if ((size_t)snprintf(tmp, sizeof(tmp), ".%.200s.%d.tmp", name, (int)gettid()) >=
	    sizeof(tmp))
		return -ENAMETOOLONG;
	fd = openat(dirfd, tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode);
	if (fd < 0)
		return -errno;
	r = sbx_write_all(fd, data, len);
	if (r == 0 && fsync(fd) < 0)
		r = -errno;
	if (r == 0 && renameat(dirfd, tmp, dirfd, name) < 0)
		r = -errno;
	if (r < 0) {
		(void)unlinkat(dirfd, tmp, 0);
		return r;
	}
	if (dirfd >= 0 && fsync(dirfd) < 0)
		return -errno;
	return 0;
}

/* Copies the bytes [off, end) that hold data. */
static int copy_extent(int from, int to, off_t off, off_t end)
{
	char buf[64 << 10];

	while (off < end) {
		size_t want = (size_t)(end - off);
		off_t in = off, out = off;
		ssize_t n = copy_file_range(from, &in, to, &out, want, 0);

		if (n < 0 && (errno == EXDEV || errno == EINVAL || errno == EOPNOTSUPP)) {
			n = pread(from, buf, want < sizeof(buf) ? want : sizeof(buf), off);
			if (n > 0) {
				int r = sbx_pwrite_all(to, buf, (size_t)n, off);

				if (r < 0)
					return r;
			}
		}
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0) /* the file shrank under us */
			break;
		off += n;
	}
	return 0;
}

int sbx_copy_sparse(int from, int to, uint64_t len, uint64_t *ret_copied)
{
	struct stat st;
	off_t off = 0, end;
	int r;

	if (fstat(from, &st) < 0)
		return -errno;
	end = (uint64_t)st.st_size < len ? st.st_size : (off_t)len;
	while (off < end) {
		off_t data = lseek(from, off, SEEK_DATA), hole;

		if (data < 0 && errno == ENXIO)
			break; /* only a hole is left */
		if (data < 0) {
			data = off; /* no SEEK_DATA here: all is data */
			hole = end;
		} else {
			hole = lseek(from, data, SEEK_HOLE);
			if (hole < 0 || hole > end)
				hole = end;
		}
		if (data >= end)
			break;
		r = copy_extent(from, to, data, hole);
		if (r < 0)
			return r;
		off = hole;
	}
	if (ftruncate(to, end) < 0)
		return -errno;
	*ret_copied = (uint64_t)end;
	return 0;
}

/* Finds a sub-directory in fd after unlinking what can be unlinked. 1: *name is one. */
static int sweep_dir(int fd, char name[SBX_NAME_MAX + 1], const atomic_bool *stop)
{
	int dup_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0), found = 0;
	struct dirent *d;
	DIR *dir;

	if (dup_fd < 0)
		return -errno;
	dir = fdopendir(dup_fd);
	if (!dir) {
		int e = errno;

		close(dup_fd);
		return -e;
	}
	rewinddir(dir);
	while ((d = readdir(dir))) {
		if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0)
			continue;
		if (stop && atomic_load(stop)) {
			found = -EINTR;
			break;
		}
		if (unlinkat(fd, d->d_name, 0) == 0 || errno == ENOENT)
			continue;
		if (errno != EISDIR && errno != EPERM && errno != EACCES) {
			found = -errno;
			break;
		}
		if (unlinkat(fd, d->d_name, AT_REMOVEDIR) == 0)
			continue;
		(void)snprintf(name, SBX_NAME_MAX + 1, "%s", d->d_name);
		found = 1;
		break;
	}
	closedir(dir);
	return found;
}

unsigned char sbx_entry_type(int dirfd, const struct dirent *d)
{
	struct stat st;

	if (d->d_type != DT_UNKNOWN)
		return d->d_type;
	return fstatat(dirfd, d->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 ? DT_UNKNOWN
								       : IFTODT(st.st_mode);
}

/* Moves a directory to `root` under a name that is free there: one that was killed before us may
 * have had our process number, and what we remove may be made of such names. */
static int move_up(int sub, const char *name, int root, unsigned *serial)
{
	char moved[64];
	int r;

	do {
		(void)snprintf(moved, sizeof(moved), ".rm-%d-%u", (int)getpid(), (*serial)++);
		r = renameat(sub, name, root, moved) < 0 ? -errno : 0;
	} while (r == -EEXIST || r == -ENOTEMPTY || r == -ENOTDIR);
	return r;
}

/* Of a name without slashes. -EXDEV: something is mounted there, this file system or another. */
static int open_dir_for_removal(int at, const char *name)
{
	const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW;
	int fd = open_how(at, name, flags, 0, RESOLVE_NO_XDEV);

	if (fd == -EACCES) {
		/* A 0000 directory of our own: fchmodat follows no link to a directory we
		 * could not have opened anyway, as O_NOFOLLOW is checked again below. */
		if (fchmodat(at, name, 0700, 0) < 0)
			return -EACCES;
		fd = open_how(at, name, flags, 0, RESOLVE_NO_XDEV);
	}
	if (fd >= 0)
		(void)fchmod(fd, 0700);
	return fd;
}

/* The way to the name itself may lead over mounts, and links of the operator's. */
static int open_root_for_removal(int dirfd, const char *name)
{
	const char *slash = strrchr(name, '/');
	sbx_autofree char *way = NULL;
	sbx_autoclose int at = -1;

	if (!slash)
		return open_dir_for_removal(dirfd, name);
	if (!slash[1])
		return -EINVAL;
	way = strndup(name, (size_t)(slash - name) + 1);
	if (!way)
		return -ENOMEM;
	at = openat(dirfd, way, O_PATH | O_DIRECTORY | O_CLOEXEC);
	return at < 0 ? -errno : open_dir_for_removal(at, slash + 1);
}

/*
 * Depth costs nothing: a directory found inside is moved up to the root of the removal
 * and emptied there, so no chain of descriptors or stack frames ever forms.
 */
int sbx_remove_tree_until(int dirfd, const char *name, const atomic_bool *stop)
{
	sbx_autoclose int root = -1;
	unsigned serial = 0;
	int r;

	if (unlinkat(dirfd, name, 0) == 0 || errno == ENOENT || errno == ENOTDIR)
		return 0;
	if (unlinkat(dirfd, name, AT_REMOVEDIR) == 0)
		return 0;
	root = open_root_for_removal(dirfd, name);
	if (root < 0)
		return root == -ENOENT ? 0 : root;
	for (;;) {
		char child[SBX_NAME_MAX + 1], grand[SBX_NAME_MAX + 1];
		sbx_autoclose int sub = -1;

		r = sweep_dir(root, child, stop);
		if (r <= 0)
			break;
		sub = open_dir_for_removal(root, child);
		if (sub < 0)
			return sub;
		while ((r = sweep_dir(sub, grand, stop)) == 1) {
			r = move_up(sub, grand, root, &serial);
			/* moving a directory rewrites its "..", so it must be writable */
			if ((r == -EACCES || r == -EPERM) && fchmodat(sub, grand, 0700, 0) == 0)
				r = move_up(sub, grand, root, &serial);
			if (r < 0)
				return r;
		}
		if (r < 0)
			return r;
		if (unlinkat(root, child, AT_REMOVEDIR) < 0 && errno != ENOENT)
			return -errno;
	}
	if (r < 0)
		return r;
	if (unlinkat(dirfd, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
		return -errno;
	return 0;
}

int sbx_remove_tree(int dirfd, const char *name)
{
	return sbx_remove_tree_until(dirfd, name, NULL);
}

void sbx_close_from(unsigned lowest)
{
	(void)syscall(SYS_close_range, lowest, ~0U, 0);
}

const char *sbx_proc_stat(pid_t pid, int field, char *buf, size_t size, bool *ret_dead)
{
	sbx_autoclose int fd = -1;
	char path[40], *p;
	ssize_t n;

	(void)snprintf(path, sizeof(path), "/proc/%ld/stat", (long)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : sbx_read_full(fd, buf, size - 1);
	if (n <= 0)
		return NULL;
	buf[n] = '\0';
	/* The name in parentheses, field 2, may hold anything. */
	p = strrchr(buf, ')');
	if (p && ret_dead)
		*ret_dead = strncmp(p, ") Z", 3) == 0 || strncmp(p, ") X", 3) == 0;
	for (int at = 2; p && at < field; at++)
		p = strchr(p + 1, ' ');
	return p ? p + 1 : NULL;
}
