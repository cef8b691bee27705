/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold of a manifest before anything in it is used as an index, an offset or a name.
 * Everybody else relies on this. */
#include <string.h>

#include "store/snap_i.h"

static const char *check_name(const struct snap *n, uint32_t i)
{
	const struct snap_record *r = &n->records[i];
	const char *name;

	if (r->name >= n->strings.len || r->name_len >= n->strings.len - r->name)
		return "a name is outside of it";
	name = snap_name(n, i);
	if (name[r->name_len] != '\0')
		return "a name does not end";
	if (i == 0)
		return r->name_len == 0 ? NULL : "the root has a name";
	if (r->name_len == 0 || r->name_len > 255)
		return "a name has a wrong length";
	if (memchr(name, '\0', r->name_len) || memchr(name, '/', r->name_len))
		return "a name has a byte that no name has";
	if (name[0] == '.' && (r->name_len == 1 || (r->name_len == 2 && name[1] == '.')))
		return "a name is a direction";
	return NULL;
}

static const char *check_xattrs(const struct snap *n, uint32_t i)
{
	const struct snap_record *r = &n->records[i];
	struct snap_xattr x;
	uint32_t at = 0;

	if (r->xattrs_len == 0)
		return NULL;
	if (r->xattrs > n->xattrs.len || r->xattrs_len > n->xattrs.len - r->xattrs)
		return "attributes are outside of it";
	while (at < r->xattrs_len) {
		if (!snap_xattrs_next(n, r, &at, &x))
			return "attributes are cut";
		if (x.name_len < 6 || x.name_len > SNAP_XATTR_NAME_MAX ||
		    memcmp(x.name, "user.", 5) != 0 || memchr(x.name, '\0', x.name_len) ||
		    x.value_len > SNAP_XATTR_VALUE_MAX)
			return "an attribute is not one of a user";
	}
	return NULL;
}

/* Each child says that it belongs here, and all children together are as many as there are entries
 * (snap_check): so every entry but the root is in exactly one directory, and behind it. */
static const char *check_directory(const struct snap *n, uint32_t i)
{
	const struct snap_record *r = &n->records[i];

	if (r->count == 0)
		return NULL;
	if (r->first <= i || r->first >= n->n || r->count > n->n - r->first)
		return "a directory's entries are outside of it";
	for (uint32_t c = r->first; c < r->first + r->count; c++)
		if (n->records[c].parent != i)
			return "an entry is in two directories";
	return NULL;
}

static const char *check_order(const struct snap *n, uint32_t i)
{
	const struct snap_record *a = &n->records[i - 1], *b = &n->records[i];

	if (i < 2 || a->parent != b->parent)
		return NULL;
	return snap_compare(snap_name(n, i - 1), a->name_len, snap_name(n, i), b->name_len) < 0
		       ? NULL
		       : "the names are not in order";
}

static const char *check_link(const struct snap *n, uint32_t i)
{
	const struct snap_record *r = &n->records[i];

	if (r->count == 0 || r->count > SNAP_TARGET_MAX || r->size != r->count ||
	    r->first >= n->strings.len || r->count >= n->strings.len - r->first)
		return "a link's target is outside of it";
	if (snap_target(n, i)[r->count] != '\0' || memchr(snap_target(n, i), '\0', r->count))
		return "a link's target does not end";
	return NULL;
}

static const char *check_file(const struct snap *n, uint32_t i)
{
	const struct snap_record *r = &n->records[i], *first;

	if (r->first > i || r->count == 0 || r->count > n->n)
		return "a file's other names are outside of it";
	first = &n->records[r->first];
	if (!S_ISREG(first->mode) || first->first != r->first || first->count != r->count ||
	    first->size != r->size || memcmp(first->hash, r->hash, sizeof(r->hash)) != 0)
		return "names of one file disagree";
	return NULL;
}

static const char *check_record(const struct snap *n, uint32_t i)
{
	const struct snap_record *r = &n->records[i];
	const char *wrong = check_name(n, i);

	if (!wrong)
		wrong = check_xattrs(n, i);
	if (wrong)
		return wrong;
	if (r->parent >= (i ? i : 1))
		return "an entry is before its directory";
	if (r->size < 0 || r->mtime_nsec > 999999999 || r->ctime_nsec > 999999999)
		return "a size or a time is none";
	if (r->mode & ~(mode_t)(S_IFMT | SNAP_MODE_MASK))
		return "a mode has bits that are not kept";
	if (S_ISDIR(r->mode))
		return check_directory(n, i);
	if (S_ISLNK(r->mode))
		return check_link(n, i);
	if (S_ISREG(r->mode))
		return check_file(n, i);
	return "an entry has a type that is not kept";
}

const char *snap_check(const struct snap *n)
{
	uint64_t inside = 1;

	if (!S_ISDIR(n->records[0].mode))
		return "its root is no directory";
	for (uint32_t i = 0; i < n->n; i++) {
		const char *wrong = check_record(n, i);

		if (!wrong && i)
			wrong = check_order(n, i);
		if (wrong)
			return wrong;
		if (S_ISDIR(n->records[i].mode))
			inside += n->records[i].count;
	}
	return inside == n->n ? NULL : "an entry is in no directory";
}
