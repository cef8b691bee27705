/* SPDX-License-Identifier: Apache-2.0 */
/* A tree out of a snapshot, and a tree out of a tree. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/crash.h"
#include "base/fs.h"
#include "store/snap_i.h"

static int make_file(struct store *s, struct snap_dest *d, const struct snap *n, uint32_t i,
		     struct sbx_error *e)
{
	sbx_autoclose int from = -1;
	struct snap_entry entry;
	char buf[256];
	int64_t size;
	int r;

	if (n->records[i].first != i)
		return snap_dest_link(d, i, e);
	(void)snap_entry(n, i, &entry);
	from = entry.size ? snap_content(s, &entry) : -1;
	if (entry.size && from < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, -from,
				      "cannot open the content of '%s'",
				      snap_where(n, i, buf, sizeof(buf)));
	r = snap_dest_file(d, entry.name, &n->records[i], from, &size, e);
	return r < 0 ? sbx_error_wrap(e, r, "'%s'", snap_where(n, i, buf, sizeof(buf))) : 0;
}

/* The directory and all in it but the directories. */
static int make_level(struct store *s, struct snap_dest *d, const struct snap *n, uint32_t dir,
		      struct sbx_error *e)
{
	const struct snap_record *rec = &n->records[dir];
	int r = snap_dest_enter(d, dir, e);

	for (uint32_t i = rec->first; r == 0 && i < rec->first + rec->count; i++) {
		if (S_ISREG(n->records[i].mode))
			r = make_file(s, d, n, i, e);
		else if (S_ISLNK(n->records[i].mode))
			r = snap_dest_symlink(d, i, e);
	}
	return r;
}

/* In the order of the walk that found it: the first name of a file comes before the others. */
static int make_tree(struct store *s, struct snap_dest *d, const struct snap *n,
		     struct sbx_error *e)
{
	uint32_t dir = 0, at = n->records[0].first;
	int r = make_level(s, d, n, 0, e);

	while (r == 0) {
		const struct snap_record *rec = &n->records[dir];

		if (rec->count == 0 || at == rec->first + rec->count) {
			r = snap_dest_leave(d, dir, e);
			if (dir == 0)
				break;
			at = dir + 1;
			dir = rec->parent;
		} else if (S_ISDIR(n->records[at].mode)) {
			dir = at;
			at = n->records[dir].first;
			r = make_level(s, d, n, dir, e);
		} else {
			at++;
		}
	}
	return r;
}

int snap_make(struct store *s, const char *id, int tree, uid_t uid, gid_t gid, struct sbx_error *e)
{
	snap_auto struct snap *n = NULL;
	struct snap_dest d;
	int r = snap_open(s, id, &n, e);

	if (r == 0)
		r = snap_dest_init(&d, n, tree, uid, gid, e);
	if (r < 0)
		return r;
	d.to_sync = true;
	r = make_tree(s, &d, n, e);
	crash_point("snap_made");
	if (r == 0)
		r = snap_dest_sync(&d, e);
	if (r < 0)
		snap_dest_undo(tree);
	snap_dest_fini(&d);
	return r;
}

/* ---- copy ------------------------------------------------------------------------------------ */

static int copy_file(struct snap_walk *w, int dirfd, const char *name, struct snap_record *rec,
		     bool *ret_gone, struct sbx_error *e)
{
	sbx_autoclose int fd = snap_walk_open(dirfd, name);
	struct stat st;
	int r;

	if (fd == -ENOENT) {
		*ret_gone = true;
		return 0;
	}
	if (fd < 0 || fstat(fd, &st) < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, fd < 0 ? -fd : errno,
				      "cannot open '%s' of the tree", name);
	snap_describe(rec, &st);
	r = snap_xattrs_read(w->now, fd, &rec->xattrs, &rec->xattrs_len, e);
	if (r == 0)
		r = snap_dest_file(w->ctx, name, rec, st.st_size ? fd : -1, &rec->size, e);
	return r < 0 ? sbx_error_wrap(e, r, "'%s' of the tree", name) : 0;
}

static int copy_other(struct snap_walk *w, uint32_t i, struct sbx_error *e)
{
	return S_ISLNK(w->now->records[i].mode) ? snap_dest_symlink(w->ctx, i, e)
						: snap_dest_link(w->ctx, i, e);
}

/* The copy's first directory is where it learns what it copies. */
static int copy_enter(struct snap_walk *w, uint32_t dir, struct sbx_error *e)
{
	struct snap_dest *d = w->ctx;

	d->n = w->now;
	return snap_dest_enter(d, dir, e);
}

static int copy_leave(struct snap_walk *w, uint32_t dir, struct sbx_error *e)
{
	return snap_dest_leave(w->ctx, dir, e);
}

static const struct snap_walk_ops copying = {
	.file = copy_file,
	.other = copy_other,
	.enter = copy_enter,
	.leave = copy_leave,
};

int snap_copy(int from, int to, uid_t uid, gid_t gid, const struct snap_limits *limits,
	      struct snap_sums *ret, struct sbx_error *e)
{
	struct snap_dest d;
	struct snap_walk w = { .ops = &copying, .ctx = &d };
	int r = snap_dest_init(&d, NULL, to, uid, gid, e);

	if (r < 0)
		return r;
	if (limits)
		w.limits = *limits;
	r = snap_walk(&w, from, e);
	if (r < 0)
		snap_dest_undo(to);
	if (r == 0 && ret)
		*ret = w.sums;
	snap_dest_fini(&d);
	snap_walk_fini(&w);
	return r;
}
