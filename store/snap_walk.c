/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The walk of a tree: what is there now, beside what was there before. Whoever wrote the tree may
 * change it meanwhile: what vanishes is left out, and nothing is opened through a link.
 *
 * A directory is listed, sorted and looked at as a whole before the walk goes into those below it.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/fs.h"
#include "store/snap_i.h"

enum {
	LISTING_SIZE = 64 << 10,
	/* A change within one tick of the kernel's clock after another has the same time. */
	TICK_NSEC = 20000000,
};

struct snap_level {
	uint32_t dir, next, end; /* of now */
	uint32_t before;	 /* the same directory in before, or SNAP_NONE */
	uint32_t n;		 /* records and texts before it was listed, */
	size_t strings, xattrs;	 /* to go back to when they are only counted */
};

/* A name in walk->names. first: its first eight bytes, so that most comparisons need no more. */
struct snap_item {
	uint64_t first;
	uint32_t name;
	uint16_t len;
	uint8_t type;
};

int snap_walk_open(int dirfd, const char *name)
{
	/* Not blocking: it may have become a pipe. Its access time is no business of ours, but
	 * only an owner may keep it. */
	int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY;
	sbx_autoclose int fd = openat(dirfd, name, flags | O_NOATIME);
	struct stat st;

	if (fd < 0 && errno == EPERM)
		fd = openat(dirfd, name, flags);
	if (fd < 0)
		return errno == ELOOP || errno == ENXIO || errno == ENODEV ? -ENOENT : -errno;
	if (fstat(fd, &st) < 0)
		return -errno;
	return S_ISREG(st.st_mode) ? sbx_steal_fd(&fd) : -ENOENT;
}

int snap_walk_count(struct snap_walk *w, int64_t bytes, struct sbx_error *e)
{
	if (__builtin_add_overflow(w->sums.bytes, bytes, &w->sums.bytes))
		w->sums.bytes = INT64_MAX;
	if (w->limits.bytes > 0 && w->sums.bytes > w->limits.bytes)
		return sbx_fail(e, SBX_E_WORKSPACE_CAP,
				"the files have more than the %lld bytes that are allowed",
				(long long)w->limits.bytes);
	return 0;
}

static int failed_at(struct snap_walk *w, uint32_t dir, const char *name, const char *what, int err,
		     struct sbx_error *e)
{
	char buf[256];

	return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, err, "cannot %s '%s%s%s' of the tree",
			      what, snap_where(w->now, dir, buf, sizeof(buf)), *name ? "/" : "",
			      name);
}

/* ---- one entry ------------------------------------------------------------------------------- */

static int look(int dirfd, const char *name, int flags, struct snap_record *rec,
		uint64_t *ret_nlink, bool *ret_mount)
{
	struct statx st;

	if (statx(dirfd, name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | flags, STATX_BASIC_STATS,
		  &st) < 0)
		return -errno;
	*rec = (struct snap_record){
		.size = S_ISDIR(st.stx_mode) ? 0 : (int64_t)st.stx_size,
		.mtime_sec = st.stx_mtime.tv_sec,
		.mtime_nsec = st.stx_mtime.tv_nsec,
		.ctime_sec = st.stx_ctime.tv_sec,
		.ctime_nsec = st.stx_ctime.tv_nsec,
		.ino = st.stx_ino,
		.dev = makedev(st.stx_dev_major, st.stx_dev_minor),
		.mode = st.stx_mode & (S_IFMT | SNAP_MODE_MASK),
		.count = S_ISREG(st.stx_mode) ? 1 : 0,
	};
	*ret_nlink = st.stx_nlink;
	*ret_mount = st.stx_attributes & STATX_ATTR_MOUNT_ROOT;
	return 0;
}

/* Does `before` tell what this still is? Whoever changes a file changes its ctime, unless that was
 * within the same tick in which the earlier walk looked at it. */
static bool is_as_before(const struct snap_walk *w, const struct snap_record *rec, uint32_t i)
{
	const struct snap_record *old;
	const struct snap_header *head;
	int64_t nsec;

	if (i == SNAP_NONE)
		return false;
	old = &w->before->records[i];
	head = &w->before->head;
	if (old->ino != rec->ino || old->dev != rec->dev || old->ctime_sec != rec->ctime_sec ||
	    old->ctime_nsec != rec->ctime_nsec || old->mtime_sec != rec->mtime_sec ||
	    old->mtime_nsec != rec->mtime_nsec || (old->mode & S_IFMT) != (rec->mode & S_IFMT) ||
	    (!S_ISDIR(rec->mode) && old->size != rec->size))
		return false;
	nsec = (int64_t)head->taken_nsec - TICK_NSEC;
	if (rec->ctime_sec != head->taken_sec)
		return rec->ctime_sec < head->taken_sec - 1 ||
		       (rec->ctime_sec == head->taken_sec - 1 &&
			rec->ctime_nsec < nsec + 1000000000);
	return rec->ctime_nsec < nsec;
}

static int keep_xattrs(struct snap_walk *w, struct snap_record *rec, uint32_t i,
		       struct sbx_error *e)
{
	const struct snap_record *old = &w->before->records[i];

	if (old->xattrs_len == 0)
		return 0;
	rec->xattrs = (uint32_t)w->now->xattrs.len;
	rec->xattrs_len = old->xattrs_len;
	sbx_buf_add(&w->now->xattrs, w->before->xattrs.data + old->xattrs, old->xattrs_len);
	if (sbx_buf_failed(&w->now->xattrs))
		return sbx_fail(e, SBX_E_WORKSPACE_CAP,
				"the tree's attributes have more than %d bytes", SNAP_TEXT_MAX);
	return 0;
}

/* 1: record number *ret_first is the same file. */
static int find_file(struct snap_walk *w, const struct snap_record *rec, uint32_t *ret_first,
		     struct sbx_error *e)
{
	uint8_t key[SNAP_HASH_LEN] = { 0 };
	int r;

	memcpy(key, &rec->ino, sizeof(rec->ino));
	memcpy(key + sizeof(rec->ino), &rec->dev, sizeof(rec->dev));
	/* When it is only counted, the record will not be there any more. */
	r = snap_table_add(&w->links, key, w->count_only ? 0 : w->now->n, ret_first);
	if (r < 0)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the links of a tree");
	return r == 0;
}

static int visit_file(struct snap_walk *w, int dirfd, const char *name, struct snap_record *rec,
		      uint64_t nlink, uint32_t before, bool *ret_gone, struct sbx_error *e)
{
	uint32_t first = w->now->n;
	int r = nlink > 1 ? find_file(w, rec, &first, e) : 0;

	if (r < 0)
		return r;
	if (r == 1 && w->count_only)
		return 0;
	if (r == 1 && first < w->now->n && w->now->records[first].ino == rec->ino &&
	    w->now->records[first].dev == rec->dev && S_ISREG(w->now->records[first].mode)) {
		w->now->records[first].count++;
		*rec = w->now->records[first];
		return 0;
	}
	rec->first = w->now->n;
	if (is_as_before(w, rec, before)) {
		memcpy(rec->hash, w->before->records[before].hash, sizeof(rec->hash));
		r = keep_xattrs(w, rec, before, e);
		return r < 0 ? r : snap_walk_count(w, rec->size, e);
	}
	if (!w->ops->file)
		return snap_walk_count(w, rec->size, e);
	/* What is already too much is not read first. */
	if (w->limits.bytes > 0 && rec->size > w->limits.bytes - w->sums.bytes)
		return snap_walk_count(w, rec->size, e);
	r = w->ops->file(w, dirfd, name, rec, ret_gone, e);
	return r < 0 || *ret_gone ? r : snap_walk_count(w, rec->size, e);
}

static int visit_link(struct snap_walk *w, int dirfd, const char *name, struct snap_record *rec,
		      bool *ret_gone, struct sbx_error *e)
{
	char target[SNAP_TARGET_MAX + 1];
	ssize_t n = readlinkat(dirfd, name, target, sizeof(target));

	if (n <= 0 || n > SNAP_TARGET_MAX) {
		*ret_gone = true; /* the file systems of Linux have no other links */
		return 0;
	}
	rec->size = n;
	rec->count = (uint32_t)n;
	return snap_string(w->now, target, (size_t)n, &rec->first, e);
}

/* Makes the next record of the tree out of one name. */
static int visit_item(struct snap_walk *w, int dirfd, uint32_t dir, const struct snap_item *item,
		      uint32_t before, struct sbx_error *e)
{
	const char *name = w->names.data + item->name;
	struct snap_record rec;
	bool gone = false, mount = false;
	uint64_t nlink = 0;
	int r = look(dirfd, name, 0, &rec, &nlink, &mount);

	if (r == -ENOENT)
		return 0;
	if (r < 0)
		return failed_at(w, dir, name, "look at", -r, e);
	if (mount || !(S_ISREG(rec.mode) || S_ISDIR(rec.mode) || S_ISLNK(rec.mode))) {
		w->sums.left_out++;
		return 0;
	}
	if (w->limits.entries > 0 && w->sums.entries >= w->limits.entries)
		return sbx_fail(e, SBX_E_WORKSPACE_CAP,
				"the tree has more than the %lld entries that are allowed",
				(long long)w->limits.entries);
	if (S_ISREG(rec.mode))
		r = visit_file(w, dirfd, name, &rec, nlink, before, &gone, e);
	else if (S_ISLNK(rec.mode))
		r = visit_link(w, dirfd, name, &rec, &gone, e);
	if (r < 0 || gone)
		return r;
	rec.parent = dir;
	rec.name_len = item->len;
	r = snap_string(w->now, name, item->len, &rec.name, e);
	if (r < 0)
		return r;
	w->now->records[w->now->n++] = rec;
	w->sums.entries++;
	if (w->ops->other &&
	    (S_ISLNK(rec.mode) || (S_ISREG(rec.mode) && rec.first != w->now->n - 1)))
		r = w->ops->other(w, w->now->n - 1, e);
	return r;
}

/* ---- one directory --------------------------------------------------------------------------- */

static int add_item(struct snap_walk *w, size_t count, const char *name, uint8_t type)
{
	size_t len = strlen(name);
	struct snap_item *item;
	uint64_t first = 0;

	if (count == w->items_size) {
		size_t size = w->items_size ? 2 * w->items_size : 256;
		struct snap_item *items = reallocarray(w->items, size, sizeof(*items));

		if (!items)
			return -ENOMEM;
		w->items = items;
		w->items_size = size;
	}
	memcpy(&first, name, len < sizeof(first) ? len : sizeof(first));
	item = &w->items[count];
	*item = (struct snap_item){ .first = __builtin_bswap64(first),
				    .name = (uint32_t)w->names.len,
				    .len = (uint16_t)len,
				    .type = type };
	sbx_buf_add(&w->names, name, len + 1);
	if (!sbx_buf_failed(&w->names))
		return 0;
	return w->names.len + len >= SNAP_TEXT_MAX ? -EOVERFLOW : -ENOMEM;
}

static int by_name(const void *a, const void *b, void *names)
{
	const struct snap_item *x = a, *y = b;
	const char *text = names;

	if (x->first != y->first)
		return x->first < y->first ? -1 : 1;
	return snap_compare(text + x->name, x->len, text + y->name, y->len);
}

/* The names in a directory, sorted. Their number, or a negative errno. */
static ssize_t list(struct snap_walk *w, int fd)
{
	size_t count = 0, same = 0;
	ssize_t len;
	int r;

	w->names.len = 0;
	while ((len = getdents64(fd, w->listing, LISTING_SIZE)) > 0) {
		for (ssize_t at = 0; at < len;) {
			const struct dirent64 *d = (const void *)(w->listing + at);
			const char *name = d->d_name;

			at += d->d_reclen;
			if (name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2])))
				continue;
			r = add_item(w, count, name, d->d_type);
			if (r == 0 && ++count > SNAP_RECORDS_MAX)
				r = -EOVERFLOW; /* enough to be refused */
			if (r < 0)
				return r;
		}
	}
	if (len < 0)
		return errno == ENOENT ? 0 : -errno;
	if (count)
		qsort_r(w->items, count, sizeof(*w->items), by_name, w->names.data);
	/* A name can be listed twice when the directory changes meanwhile. */
	for (size_t i = 0; i < count; i++)
		if (i == 0 || by_name(&w->items[i], &w->items[same - 1], w->names.data) != 0)
			w->items[same++] = w->items[i];
	return (ssize_t)same;
}

static int push_level(struct snap_walk *w, const struct snap_level *level, struct sbx_error *e)
{
	if (w->depth == w->levels_size) {
		size_t size = w->levels_size ? 2 * w->levels_size : 32;
		struct snap_level *levels = reallocarray(w->levels, size, sizeof(*levels));

		if (!levels)
			return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the depth of a tree");
		w->levels = levels;
		w->levels_size = size;
	}
	w->levels[w->depth++] = *level;
	return 0;
}

/* The attributes of a directory that is open. */
static int visit_directory(struct snap_walk *w, uint32_t dir, int fd, uint32_t before,
			   struct sbx_error *e)
{
	struct snap_record *rec = &w->now->records[dir];
	char buf[256];
	int r;

	if (w->count_only)
		return 0;
	if (is_as_before(w, rec, before))
		return keep_xattrs(w, rec, before, e);
	r = snap_xattrs_read(w->now, fd, &rec->xattrs, &rec->xattrs_len, e);
	return r < 0 ? sbx_error_wrap(e, r, "'%s'", snap_where(w->now, dir, buf, sizeof(buf))) : 0;
}

/* All entries of the directory in fd. */
static int visit_items(struct snap_walk *w, uint32_t dir, int fd, uint32_t before,
		       struct sbx_error *e)
{
	uint32_t old = 0, old_end = 0;
	ssize_t count = list(w, fd);
	int r = 0;

	if (count == -EOVERFLOW)
		count = SNAP_RECORDS_MAX + 1; /* snap_room says it */
	if (count < 0)
		return failed_at(w, dir, "", "list", (int)-count, e);
	if (before != SNAP_NONE) {
		old = w->before->records[before].first;
		old_end = old + w->before->records[before].count;
	}
	r = snap_room(w->now, (uint32_t)count, e);
	for (ssize_t i = 0; r == 0 && i < count; i++) {
		const struct snap_item *item = &w->items[i];
		uint32_t match = SNAP_NONE;

		for (; old < old_end; old++) {
			int c = snap_compare(snap_name(w->before, old),
					     w->before->records[old].name_len,
					     w->names.data + item->name, item->len);

			if (c == 0)
				match = old;
			if (c >= 0)
				break;
		}
		if (item->type == DT_FIFO || item->type == DT_SOCK || item->type == DT_CHR ||
		    item->type == DT_BLK)
			w->sums.left_out++;
		else
			r = visit_item(w, fd, dir, item, match, e);
	}
	return r;
}

/* Which entry of the same name in the directory above was this one? */
static uint32_t find_before(const struct snap_walk *w, uint32_t above, uint32_t dir)
{
	struct snap_entry entry;

	if (above == SNAP_NONE || !snap_child(w->before, above, snap_name(w->now, dir), &entry) ||
	    !S_ISDIR(entry.mode))
		return SNAP_NONE;
	return entry.index;
}

/* Goes into directory `dir`; fd is taken, -1: it vanished, so it is empty. */
static int enter(struct snap_walk *w, uint32_t dir, int fd, uint32_t before, struct sbx_error *e)
{
	struct snap_level level = { .dir = dir,
				    .before = before,
				    .n = w->now->n,
				    .strings = w->now->strings.len,
				    .xattrs = w->now->xattrs.len };
	sbx_autoclose int mine = fd;
	int r = fd < 0 ? 0 : visit_directory(w, dir, fd, before, e);

	if (r == 0 && w->ops->enter)
		r = w->ops->enter(w, dir, e);
	if (r == 0 && fd >= 0)
		r = visit_items(w, dir, fd, before, e);
	if (r < 0)
		return r;
	level.next = level.n;
	level.end = w->now->n;
	w->now->records[dir].count = level.end - level.n;
	w->now->records[dir].first = level.end > level.n ? level.n : 0;
	if (fd < 0)
		return w->ops->leave ? w->ops->leave(w, dir, e) : 0;
	r = snap_path_push(&w->path, sbx_steal_fd(&mine));
	if (r < 0)
		return failed_at(w, dir, "", "go into", -r, e);
	return push_level(w, &level, e);
}

static int leave(struct snap_walk *w, struct sbx_error *e)
{
	const struct snap_level *level = &w->levels[--w->depth];
	int r = w->ops->leave ? w->ops->leave(w, level->dir, e) : 0, up;

	if (r < 0)
		return r;
	up = snap_path_pop(&w->path);
	if (up < 0)
		return failed_at(w, level->dir, "", "come back from", -up, e);
	if (w->count_only) {
		w->now->n = level->n;
		w->now->strings.len = level->strings;
		w->now->xattrs.len = level->xattrs;
	}
	return 0;
}

static int open_directory(int dirfd, const char *name)
{
	int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
	int fd = openat(dirfd, name, flags | O_NOATIME);

	if (fd < 0 && errno == EPERM)
		fd = openat(dirfd, name, flags);
	return fd < 0 ? -errno : fd;
}

static int next(struct snap_walk *w, struct sbx_error *e)
{
	struct snap_level *level = &w->levels[w->depth - 1];
	uint32_t i = level->next;
	int fd;

	if (i == level->end)
		return leave(w, e);
	level->next++;
	if (!S_ISDIR(w->now->records[i].mode))
		return 0;
	fd = open_directory(snap_path_top(&w->path), snap_name(w->now, i));
	if (fd < 0 && fd != -ENOENT && fd != -ENOTDIR && fd != -ELOOP)
		return failed_at(w, i, "", "open", -fd, e);
	return enter(w, i, fd, find_before(w, level->before, i), e);
}

/* Every name of a file says how many there are. */
static void set_counts(struct snap *n)
{
	for (uint32_t i = 0; i < n->n; i++)
		if (S_ISREG(n->records[i].mode))
			n->records[i].count = n->records[n->records[i].first].count;
}

int snap_walk(struct snap_walk *w, int tree, struct sbx_error *e)
{
	struct snap_record root;
	struct timespec started;
	uint64_t nlink;
	bool mount;
	int fd, r;

	w->names.limit = SNAP_TEXT_MAX;
	w->listing = malloc(LISTING_SIZE);
	w->now = snap_new();
	if (!w->listing || !w->now)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory to walk a tree");
	r = snap_room(w->now, w->before && !w->count_only ? w->before->n + 64 : 64, e);
	if (r < 0)
		return r;
	(void)clock_gettime(CLOCK_REALTIME, &started);
	fd = open_directory(tree, ".");
	r = fd < 0 ? fd : look(fd, "", AT_EMPTY_PATH, &root, &nlink, &mount);
	if (r < 0) {
		sbx_closep(&fd);
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, -r, "cannot open the tree");
	}
	w->now->head.taken_sec = started.tv_sec;
	w->now->head.taken_nsec = (uint32_t)started.tv_nsec;
	w->now->records[w->now->n++] = root;
	r = enter(w, 0, fd, w->before ? 0 : SNAP_NONE, e);
	while (r == 0 && w->depth)
		r = next(w, e);
	w->now->head.bytes = w->sums.bytes;
	w->now->head.left_out = w->sums.left_out;
	set_counts(w->now);
	return r;
}

void snap_walk_fini(struct snap_walk *w)
{
	snap_path_fini(&w->path);
	snap_table_fini(&w->links);
	free(w->levels);
	free(w->listing);
	free(w->items);
	sbx_buf_free(&w->names);
	w->now = snap_close(w->now);
}
