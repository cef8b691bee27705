/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as the manifest of a snapshot whose hash fits: it is refused, or everything that an
 * entry leads to is inside of it, every entry is reached from the root once, each child is found by
 * its name, and a comparison with itself tells nothing.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/snap_i.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	(void)fprintf(stderr, "fuzz_snap: broken: %s\n", what);
	abort();
}

static bool count(void *ctx, const char *path, enum snap_change what, int64_t size_a,
		  int64_t size_b)
{
	uint32_t *n = ctx;

	(void)size_a;
	(void)size_b;
	must(path[0] != '\0' && path[0] != '/', "a path is relative");
	must(what != SNAP_REMOVED, "nothing is removed from an empty tree");
	(*n)++;
	return true;
}

static void look_at(const struct snap *n, uint32_t i, uint32_t *seen)
{
	struct snap_entry entry, child, found;
	struct snap_xattr x;
	uint32_t at = 0;
	char buf[256];

	must(snap_entry(n, i, &entry), "an entry is there");
	must(entry.index == i && (i == 0 || entry.parent < i), "an entry is behind its directory");
	must(strlen(entry.name) <= 255, "a name has a length");
	must(!entry.target || (int64_t)strlen(entry.target) == entry.size, "so has a target");
	(void)snap_where(n, i, buf, sizeof(buf));
	for (uint32_t c = 0; c < entry.children; c++) {
		must(snap_entry(n, entry.first_child + c, &child), "a child is there");
		must(child.parent == i, "a child knows its directory");
		must(snap_child(n, i, child.name, &found) && found.index == child.index,
		     "a child is found by name");
		(*seen)++;
	}
	while (snap_xattrs_next(n, &n->records[i], &at, &x))
		must(memchr(x.name, '\0', x.name_len) == NULL &&
			     x.value_len <= SNAP_XATTR_VALUE_MAX,
		     "an attribute is one");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	sbx_autofree void *copy = malloc(size ? size : 1);
	struct snap *n = NULL;
	uint32_t seen = 1, told = 0;

	if (!copy)
		return 0;
	memcpy(copy, data, size);
	if (snap_from_bytes(copy, size, true, &n, NULL) < 0)
		return 0;
	for (uint32_t i = 0; i < snap_count(n); i++)
		look_at(n, i, &seen);
	must(seen == snap_count(n), "every entry is in one directory");
	must(snap_diff(NULL, n, count, &told, NULL) == 0 && told + 1 == seen,
	     "all is new to nothing");
	told = 0;
	must(snap_diff(n, n, count, &told, NULL) == 0 && told == 0, "nothing is new to itself");
	snap_close(n);
	return 0;
}
