/* SPDX-License-Identifier: Apache-2.0 */
/* Extended attributes of a workspace's files: those of users, of plain files and directories. The
 * kernel asks for others at nearly every write, and is answered without a look at the file. */
#include "fsd/work_i.h"

#include <errno.h>
#include <linux/xattr.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

enum { LIST_MAX = 64 << 10 }; /* the kernel's limit, for a value too */

static bool of_user(const char *name)
{
	return strncmp(name, XATTR_USER_PREFIX, XATTR_USER_PREFIX_LEN) == 0;
}

static int pin(struct fsd *f, fuse_ino_t ino, int err, struct work_node **ret)
{
	int r = work_pin(f, ino, ret);

	if (r == 0 && !S_ISREG((*ret)->is.type) && !S_ISDIR((*ret)->is.type))
		r = -err;
	return r;
}

static void reply_bytes(fuse_req_t req, ssize_t n, const char *data, size_t size)
{
	if (n < 0)
		fuse_reply_err(req, (int)-n);
	else if (size == 0)
		fuse_reply_xattr(req, (size_t)n);
	else
		fuse_reply_buf(req, data, (size_t)n);
}

void work_getxattr(struct fsd *f, fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	work_autopin struct work_node *n = NULL;
	sbx_autofree char *value = NULL;
	ssize_t got = of_user(name) ? pin(f, ino, ENODATA, &n) : -ENODATA;

	if (size > LIST_MAX)
		size = LIST_MAX;
	if (got == 0 && size && !(value = malloc(size)))
		got = -ENOMEM;
	if (got == 0) {
		got = getxattr(work_path(n->fd).s, name, value, size);
		got = got < 0 ? -errno : got;
	}
	reply_bytes(req, got, value, size);
}

/* Leaves the names that may be seen. */
static size_t sift(char *list, size_t len)
{
	size_t kept = 0;

	for (size_t at = 0, one; at < len; at += one) {
		one = strlen(list + at) + 1;
		if (!of_user(list + at))
			continue;
		memmove(list + kept, list + at, one);
		kept += one;
	}
	return kept;
}

void work_listxattr(struct fsd *f, fuse_req_t req, fuse_ino_t ino, size_t size)
{
	work_autopin struct work_node *n = NULL;
	sbx_autofree char *list = malloc(LIST_MAX + 1);
	ssize_t got = list ? work_pin(f, ino, &n) : -ENOMEM;

	if (got == 0 && (S_ISREG(n->is.type) || S_ISDIR(n->is.type))) {
		got = listxattr(work_path(n->fd).s, list, LIST_MAX);
		got = got < 0 ? -errno : got;
	}
	if (got > 0) {
		list[got] = '\0';
		got = (ssize_t)sift(list, (size_t)got);
	}
	if (got > 0 && size && (size_t)got > size)
		got = -ERANGE;
	reply_bytes(req, got, list, size);
}

void work_setxattr(struct fsd *f, fuse_req_t req, fuse_ino_t ino, const char *name,
		   const char *value, size_t size, int flags)
{
	work_autopin struct work_node *n = NULL;
	int r = of_user(name) ? pin(f, ino, EPERM, &n) : -EOPNOTSUPP;

	if (r == 0 && setxattr(work_path(n->fd).s, name, value, size, flags) < 0)
		r = -errno;
	fuse_reply_err(req, -r);
}

void work_removexattr(struct fsd *f, fuse_req_t req, fuse_ino_t ino, const char *name)
{
	work_autopin struct work_node *n = NULL;
	int r = of_user(name) ? pin(f, ino, EPERM, &n) : -ENODATA;

	if (r == 0 && removexattr(work_path(n->fd).s, name) < 0)
		r = -errno;
	fuse_reply_err(req, -r);
}
