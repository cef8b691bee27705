/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Administrators who are not root. The kernel checks permissions, by owner and mode, which are the
 * same for everybody; so what is private to its owner has an access control list that names the
 * administrators, too, and the kernel asks for it when somebody comes for whom owner and others do
 * not decide. With a list, the group bits of the mode are its mask, and the list itself gives the
 * group what everybody has, which is nothing but in images/.
 *
 * The kernel keeps what it has read. So the names are those of the mount's start, and without any
 * there are no lists and no requests for them.
 */
#include "fsd/fsd_i.h"

#include <endian.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

/* As linux/posix_acl_xattr.h; little-endian. */
enum { ACL_VERSION = 2, ACL_OWNER = 1, ACL_USER = 2, ACL_GROUP = 4, ACL_MASK = 16, ACL_OTHER = 32 };
struct acl_entry {
	uint16_t tag, perm;
	uint32_t id;
};
struct acl {
	uint32_t version;
	struct acl_entry entries[ORCH_ADMINS_MAX + 4];
};

static unsigned owner_bits(mode_t mode)
{
	return mode >> 6 & 7;
}

/* What an administrator may: as the owner. Nobody makes names in the tree, but those of images. */
static unsigned admin_bits(fuse_ino_t ino, mode_t mode)
{
	return S_ISDIR(mode) && ino != ino_make(0, MS_N_IMAGES) ? owner_bits(mode) & 5
								: owner_bits(mode);
}

static bool is_private(fuse_ino_t ino, mode_t mode)
{
	return admin_bits(ino, mode) & ~(mode & 7u);
}

void acl_mode(const struct fsd *f, struct stat *st)
{
	if (f->acl && is_private(st->st_ino, st->st_mode))
		st->st_mode |= admin_bits(st->st_ino, st->st_mode) << 3;
}

static void entry(struct acl *a, size_t *n, uint16_t tag, unsigned perm, uint32_t id)
{
	a->entries[(*n)++] = (struct acl_entry){ .tag = htole16(tag),
						 .perm = htole16((uint16_t)perm),
						 .id = htole32(id) };
}

static size_t make_list(const struct fsd *f, fuse_ino_t ino, mode_t mode, struct acl *a)
{
	const uint32_t nobody = UINT32_MAX;
	size_t n = 0;

	a->version = htole32(ACL_VERSION);
	entry(a, &n, ACL_OWNER, owner_bits(mode), nobody);
	for (size_t i = 0; i < f->n_admins; i++)
		entry(a, &n, ACL_USER, admin_bits(ino, mode), f->admins[i]);
	entry(a, &n, ACL_GROUP, mode & 7, nobody);
	entry(a, &n, ACL_MASK, admin_bits(ino, mode), nobody);
	entry(a, &n, ACL_OTHER, mode & 7, nobody);
	return offsetof(struct acl, entries) + n * sizeof(a->entries[0]);
}

void acl_getxattr(struct fsd *f, fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	struct acl list;
	struct stat st;
	double timeout;
	size_t len;
	int r;

	if (!f->acl) {
		fuse_reply_err(req, ENOSYS); /* the kernel asks no more */
		return;
	}
	if (strcmp(name, "system.posix_acl_access") != 0) {
		fuse_reply_err(req, ENODATA);
		return;
	}
	/* A failure is no list: the kernel then refuses. */
	r = node_attr(f, req, ino, &st, &timeout);
	if (r < 0 || !is_private(ino, st.st_mode)) {
		fuse_reply_err(req, r < 0 ? -r : ENODATA);
		return;
	}
	len = make_list(f, ino, st.st_mode, &list);
	if (size == 0)
		fuse_reply_xattr(req, len);
	else if (size < len)
		fuse_reply_err(req, ERANGE);
	else
		fuse_reply_buf(req, (const char *)&list, len);
}
