/* SPDX-License-Identifier: Apache-2.0 */
/* Two snapshots side by side, each directory as a merge of two sorted lists. */
#include <stdlib.h>
#include <string.h>

#include "store/snap_i.h"

/* What is left of a directory that a, b or both have. */
struct pair {
	uint32_t a, a_end, b, b_end;
	size_t path; /* length of its path, with the slash */
};

struct difference {
	const struct snap *a, *b;
	bool (*each)(void *ctx, const char *path, enum snap_change what, int64_t size_a,
		     int64_t size_b);
	void *ctx;
	struct pair *pairs;
	size_t depth, size;
	struct sbx_buf path;
};

/* A directory's own time is left alone: it changes with what is in it, which is told anyway. */
static bool same_attributes(const struct difference *d, uint32_t i, uint32_t j)
{
	const struct snap_record *x = &d->a->records[i], *y = &d->b->records[j];

	if (x->mode != y->mode || !snap_xattrs_equal(d->a, i, d->b, j))
		return false;
	if (S_ISDIR(x->mode))
		return true;
	if (x->mtime_sec != y->mtime_sec || x->mtime_nsec != y->mtime_nsec)
		return false;
	return !S_ISLNK(x->mode) || strcmp(snap_target(d->a, i), snap_target(d->b, j)) == 0;
}

/* 0: nothing changed. */
static enum snap_change compare(const struct difference *d, uint32_t i, uint32_t j)
{
	const struct snap_record *x, *y;

	if (i == SNAP_NONE)
		return SNAP_ADDED;
	if (j == SNAP_NONE)
		return SNAP_REMOVED;
	x = &d->a->records[i];
	y = &d->b->records[j];
	if ((x->mode & S_IFMT) != (y->mode & S_IFMT))
		return SNAP_TYPE;
	if (S_ISREG(x->mode) &&
	    (x->size != y->size || memcmp(x->hash, y->hash, sizeof(x->hash)) != 0))
		return SNAP_CONTENT;
	return same_attributes(d, i, j) ? (enum snap_change)0 : SNAP_ATTRIBUTES;
}

/* Directory i of a and j of b, or one of them, is next. */
static int push(struct difference *d, uint32_t i, uint32_t j, struct sbx_error *e)
{
	struct pair p = { .path = d->path.len };

	if (i != SNAP_NONE && S_ISDIR(d->a->records[i].mode)) {
		p.a = d->a->records[i].first;
		p.a_end = p.a + d->a->records[i].count;
	}
	if (j != SNAP_NONE && S_ISDIR(d->b->records[j].mode)) {
		p.b = d->b->records[j].first;
		p.b_end = p.b + d->b->records[j].count;
	}
	if (p.a == p.a_end && p.b == p.b_end)
		return 0;
	if (d->depth == d->size) {
		size_t size = d->size ? 2 * d->size : 32;
		struct pair *pairs = reallocarray(d->pairs, size, sizeof(*pairs));

		if (!pairs)
			return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the depth of a tree");
		d->pairs = pairs;
		d->size = size;
	}
	if (p.path) {
		sbx_buf_add(&d->path, "/", 1);
		p.path = d->path.len;
	}
	d->pairs[d->depth++] = p;
	return 0;
}

static int order(const struct difference *d, const struct pair *p)
{
	if (p->a == p->a_end)
		return 1;
	if (p->b == p->b_end)
		return -1;
	return snap_compare(snap_name(d->a, p->a), d->a->records[p->a].name_len,
			    snap_name(d->b, p->b), d->b->records[p->b].name_len);
}

/* The next name of the innermost directory. 1: each() wants no more. */
static int step(struct difference *d, struct sbx_error *e)
{
	struct pair *p = &d->pairs[d->depth - 1];
	uint32_t i = SNAP_NONE, j = SNAP_NONE;
	enum snap_change what;
	int c;

	if (p->a == p->a_end && p->b == p->b_end) {
		d->depth--;
		return 0;
	}
	c = order(d, p);
	if (c <= 0)
		i = p->a++;
	if (c >= 0)
		j = p->b++;
	d->path.len = p->path;
	sbx_buf_puts(&d->path, c <= 0 ? snap_name(d->a, i) : snap_name(d->b, j));
	if (sbx_buf_failed(&d->path))
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a path");
	what = compare(d, i, j);
	if (what && !d->each(d->ctx, d->path.data, what, c <= 0 ? d->a->records[i].size : -1,
			     c >= 0 ? d->b->records[j].size : -1))
		return 1;
	return push(d, i, j, e);
}

int snap_diff(const struct snap *a, const struct snap *b,
	      bool (*each)(void *ctx, const char *path, enum snap_change what, int64_t size_a,
			   int64_t size_b),
	      void *ctx, struct sbx_error *e)
{
	struct difference d = {
		.a = a, .b = b, .each = each, .ctx = ctx, .path = SBX_BUF_INIT(2ul * SNAP_TEXT_MAX)
	};
	int r = push(&d, a ? 0 : SNAP_NONE, b ? 0 : SNAP_NONE, e);

	while (r == 0 && d.depth)
		r = step(&d, e);
	free(d.pairs);
	sbx_buf_free(&d.path);
	return r < 0 ? r : 0;
}
