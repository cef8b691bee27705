/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes user.*: of the others some are the kernel's, and some give rights. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "store/snap_i.h"

/* In front of name and value; not aligned. */
struct xattr_head {
	uint16_t name_len, reserved;
	uint32_t value_len;
};

bool snap_xattrs_next(const struct snap *n, const struct snap_record *r, uint32_t *at,
		      struct snap_xattr *ret)
{
	const char *p;
	uint32_t left;
	struct xattr_head h;

	if (*at >= r->xattrs_len)
		return false;
	p = n->xattrs.data + r->xattrs;
	left = r->xattrs_len - *at;
	if (left < sizeof(h))
		return false;
	memcpy(&h, p + *at, sizeof(h));
	left -= (uint32_t)sizeof(h);
	if (h.name_len > left || h.value_len > left - h.name_len)
		return false;
	ret->name = p + *at + sizeof(h);
	ret->name_len = h.name_len;
	ret->value = ret->name + h.name_len;
	ret->value_len = h.value_len;
	*at += (uint32_t)sizeof(h) + h.name_len + h.value_len;
	return true;
}

static int by_text(const void *a, const void *b)
{
	const char *const *x = a, *const *y = b;

	return strcmp(*x, *y);
}

static int add_one(struct snap *n, int fd, const char *name)
{
	struct xattr_head h = { .name_len = (uint16_t)strlen(name) };
	size_t before = n->xattrs.len;
	ssize_t got;
	char *p;

	sbx_buf_add(&n->xattrs, &h, sizeof(h));
	sbx_buf_add(&n->xattrs, name, h.name_len);
	got = fgetxattr(fd, name, NULL, 0);
	if (got >= 0) {
		p = sbx_buf_reserve(&n->xattrs, (size_t)got);
		if (!p)
			return -ENOSPC;
		if (got > 0)
			got = fgetxattr(fd, name, p, (size_t)got);
	}
	if (got < 0) {
		n->xattrs.len = before; /* removed, or grown, since it was listed */
		return errno == ENODATA || errno == ERANGE ? 0 : -errno;
	}
	h.value_len = (uint32_t)got;
	memcpy(n->xattrs.data + before, &h, sizeof(h));
	n->xattrs.len += (size_t)got;
	return 0;
}

static int read_list(struct snap *n, int fd, char *list, size_t len)
{
	sbx_autofree const char **names = NULL;
	size_t count = 0, at = 0;
	int r = 0;

	names = calloc(len / 2 + 1, sizeof(*names));
	if (!names)
		return -ENOMEM;
	for (; at < len; at += strlen(list + at) + 1)
		if (strncmp(list + at, "user.", 5) == 0 && list[at + 5])
			names[count++] = list + at;
	qsort(names, count, sizeof(*names), by_text);
	for (size_t i = 0; r == 0 && i < count; i++)
		r = add_one(n, fd, names[i]);
	return r;
}

int snap_xattrs_read(struct snap *n, int fd, uint32_t *ret, uint32_t *ret_len, struct sbx_error *e)
{
	sbx_autofree char *list = NULL;
	size_t before = n->xattrs.len;
	ssize_t len = flistxattr(fd, NULL, 0);
	int r;

	*ret = *ret_len = 0;
	if (len > 0) {
		list = malloc((size_t)len + 1);
		if (!list)
			return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for attributes");
		len = flistxattr(fd, list, (size_t)len);
	}
	if (len < 0 && errno != EOPNOTSUPP && errno != ERANGE)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno, "cannot list attributes");
	if (len <= 0)
		return 0;
	list[len] = '\0';
	r = read_list(n, fd, list, (size_t)len);
	if (sbx_buf_failed(&n->xattrs))
		return sbx_fail(e, SBX_E_WORKSPACE_CAP,
				"the tree's attributes have more than %d bytes", SNAP_TEXT_MAX);
	if (r < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, -r, "cannot read attributes");
	if (n->xattrs.len > before) {
		*ret = (uint32_t)before;
		*ret_len = (uint32_t)(n->xattrs.len - before);
	}
	return 0;
}

int snap_xattrs_set(const struct snap *n, const struct snap_record *rec, int fd)
{
	char name[SNAP_XATTR_NAME_MAX + 1];
	struct snap_xattr x;
	uint32_t at = 0;

	while (snap_xattrs_next(n, rec, &at, &x)) {
		memcpy(name, x.name, x.name_len);
		name[x.name_len] = '\0';
		if (fsetxattr(fd, name, x.value, x.value_len, 0) < 0)
			return -errno;
	}
	return 0;
}

bool snap_xattrs_equal(const struct snap *a, uint32_t i, const struct snap *b, uint32_t j)
{
	const struct snap_record *x = &a->records[i], *y = &b->records[j];

	return x->xattrs_len == y->xattrs_len &&
	       (x->xattrs_len == 0 ||
		memcmp(a->xattrs.data + x->xattrs, b->xattrs.data + y->xattrs, x->xattrs_len) == 0);
}
