/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trees of snapshots. A number is made of the row of the snapshot and the place of the entry in its
 * manifest, both of which are for ever; nothing in one can change, so the kernel may keep all it
 * has read. Manifests that are in use stay open, a few of them.
 */
#include "fsd/fsd_i.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"
#include "fsd/work_i.h"

enum { SHOTS_OPEN = 16, ROW_BITS = 29 };

struct shot {
	struct shot *next; /* the one used last comes first */
	int64_t row;
	uid_t uid; /* owner of everything in it */
	unsigned refs;
	bool gone;
	struct snap *snap; /* owned */
};
struct shots {
	pthread_mutex_t lock;
	struct shot *first; /* under lock */
};

struct shots *shot_open(void)
{
	struct shots *s = calloc(1, sizeof(*s));

	if (s)
		pthread_mutex_init(&s->lock, NULL);
	return s;
}

static void close_one(struct shot *one)
{
	snap_close(one->snap);
	free(one);
}

void shot_free(struct shots *s)
{
	struct shot *one;

	if (!s)
		return;
	while ((one = s->first)) {
		s->first = one->next;
		close_one(one);
	}
	pthread_mutex_destroy(&s->lock);
	free(s);
}

/* Takes out what is too many or gone, and nobody uses. Under the lock. */
static struct shot *take_spare(struct shots *s)
{
	struct shot **at = &s->first, **spare = NULL, *one;
	size_t n = 0;

	for (; (one = *at); at = &one->next)
		if (!one->refs && (one->gone || ++n > SHOTS_OPEN))
			spare = at;
	if (!spare)
		return NULL;
	one = *spare;
	*spare = one->next;
	return one;
}

static void put(struct fsd *f, struct shot *one)
{
	struct shots *s = f->shots;
	struct shot *spare;

	pthread_mutex_lock(&s->lock);
	one->refs--;
	spare = take_spare(s);
	pthread_mutex_unlock(&s->lock);
	if (spare)
		close_one(spare);
}

/* Under the lock: with a reference, and in front. */
static struct shot *find(struct shots *s, int64_t row)
{
	for (struct shot **at = &s->first, *one; (one = *at); at = &one->next) {
		if (one->row != row || one->gone)
			continue;
		*at = one->next;
		one->next = s->first;
		s->first = one;
		one->refs++;
		return one;
	}
	return NULL;
}

static int load(struct fsd *f, int64_t row, struct shot **ret)
{
	store_autosnapshot shot = { 0 };
	store_autosession of = { 0 };
	sbx_autoerror e = SBX_ERROR_INIT;
	struct shot *one = calloc(1, sizeof(*one));
	int rc = one ? store_snapshot_get_row(f->store, row, &shot, &e)
		     : sbx_fail(&e, SBX_E_NO_MEMORY, "no memory for a snapshot");

	if (rc == 0)
		rc = store_session_get(f->store, shot.session_id, &of, &e);
	if (rc == 0)
		rc = snap_open(f->store, shot.id, &one->snap, &e);
	if (rc < 0) {
		free(one);
		return -fsd_errno(&e);
	}
	one->row = row;
	one->uid = of.uid >= 0 ? (uid_t)of.uid : f->uid;
	*ret = one;
	return 0;
}

static int get(struct fsd *f, int64_t row, struct shot **ret)
{
	struct shots *s = f->shots;
	struct shot *fresh, *one;
	int r;

	pthread_mutex_lock(&s->lock);
	one = find(s, row);
	pthread_mutex_unlock(&s->lock);
	if (!one) {
		r = load(f, row, &fresh);
		if (r < 0)
			return r;
		pthread_mutex_lock(&s->lock);
		one = find(s, row);
		if (!one) {
			one = sbx_steal(&fresh);
			one->refs = 1;
			one->next = s->first;
			s->first = one;
		}
		pthread_mutex_unlock(&s->lock);
		if (fresh)
			close_one(fresh);
	}
	*ret = one;
	return 0;
}

void shot_gone(struct fsd *f, int64_t row)
{
	struct shots *s = f->shots;
	struct shot *one;

	pthread_mutex_lock(&s->lock);
	one = find(s, row);
	if (one)
		one->gone = true;
	pthread_mutex_unlock(&s->lock);
	if (one)
		put(f, one);
	work_new_epoch(f);
}

/* ---- entries --------------------------------------------------------------------------------- */

static int64_t row_of(fuse_ino_t ino)
{
	return ino & INO_SHOT ? (int64_t)(ino >> 32 & ((UINT64_C(1) << ROW_BITS) - 1))
			      : ino_row(ino);
}

static fuse_ino_t number(int64_t row, uint32_t index)
{
	return index ? INO_SHOT | (fuse_ino_t)row << 32 | index : ino_make(row, MS_N_SHOT_TREE);
}

/* The snapshot, to be put back, and the entry. */
static int entry(struct fsd *f, fuse_ino_t ino, struct shot **ret, struct snap_entry *ret_entry)
{
	int r = row_of(ino) >> ROW_BITS ? -EOVERFLOW : get(f, row_of(ino), ret);

	if (r == 0 && !snap_entry((*ret)->snap, ino & INO_SHOT ? (uint32_t)ino : 0, ret_entry)) {
		put(f, *ret);
		r = -ENOENT;
	}
	return r;
}

static unsigned depth_of(const struct snap *snap, uint32_t index)
{
	struct snap_entry e;
	unsigned depth = 0;

	/* An entry's parent comes before it, so this ends. */
	while (index && snap_entry(snap, index, &e) && e.parent < index) {
		index = e.parent;
		depth++;
	}
	return depth ? depth - 1 : 0;
}

static void link_text(const struct snap *snap, const struct snap_entry *e, struct sbx_buf *out)
{
	work_target(e->target, depth_of(snap, e->index), out);
}

static void fill(struct fsd *f, const struct shot *s, const struct snap_entry *e, struct stat *st)
{
	memset(st, 0, sizeof(*st));
	st->st_ino = number(s->row, e->index);
	st->st_mode = e->mode & (S_IFMT | 0555);
	if (!e->index)
		st->st_mode = S_IFDIR | 0500;
	acl_mode(f, st);
	st->st_nlink = S_ISDIR(e->mode) ? 2 : 1;
	st->st_uid = s->uid;
	st->st_gid = s->uid == f->uid ? getgid() : (gid_t)s->uid;
	st->st_size = e->size;
	st->st_blksize = 4096;
	st->st_mtim = st->st_ctim = st->st_atim = e->mtime;
	if (S_ISLNK(e->mode)) {
		sbx_autobuf text = SBX_BUF_INIT(SBX_PATH_MAX);

		link_text(s->snap, e, &text);
		st->st_size = (off_t)text.len;
		st->st_mode |= 0777;
	}
	st->st_blocks = (st->st_size + 511) / 512;
}

static void fill_entry(struct fsd *f, const struct shot *s, const struct snap_entry *e,
		       struct fuse_entry_param *ret)
{
	memset(ret, 0, sizeof(*ret));
	ret->ino = number(s->row, e->index);
	ret->generation = 1;
	ret->attr_timeout = FSD_FOREVER;
	ret->entry_timeout = f->epochs ? FSD_FOREVER : FSD_ARTIFACTS;
	fill(f, s, e, &ret->attr);
}

int shot_attr(struct fsd *f, fuse_ino_t ino, struct stat *st, double *timeout)
{
	struct snap_entry e;
	struct shot *s;
	int r = entry(f, ino, &s, &e);

	if (r < 0)
		return r;
	fill(f, s, &e, st);
	*timeout = FSD_FOREVER;
	put(f, s);
	return 0;
}

void shot_lookup(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param e = { 0 };
	struct snap_entry dir, child;
	struct shot *s;
	int r = entry(f, parent, &s, &dir);

	if (r < 0) {
		fuse_reply_err(req, -r);
		return;
	}
	if (snap_child(s->snap, dir.index, name, &child))
		fill_entry(f, s, &child, &e);
	else
		e.entry_timeout = f->epochs ? FSD_FOREVER : FSD_ARTIFACTS;
	put(f, s);
	fuse_reply_entry(req, &e);
}

void shot_readlink(struct fsd *f, fuse_req_t req, fuse_ino_t ino)
{
	sbx_autobuf text = SBX_BUF_INIT(SBX_PATH_MAX);
	struct snap_entry e;
	struct shot *s;
	int r = entry(f, ino, &s, &e);

	if (r == 0) {
		if (S_ISLNK(e.mode))
			link_text(s->snap, &e, &text);
		r = !S_ISLNK(e.mode) ? -EINVAL : sbx_buf_failed(&text) ? -ENAMETOOLONG : 0;
		put(f, s);
	}
	if (r < 0)
		fuse_reply_err(req, -r);
	else
		fuse_reply_readlink(req, text.data);
}

/* ---- directories: the offset is the place in the directory, behind "." and ".." -------------- */

static size_t add(fuse_req_t req, char *buf, size_t left, const char *name,
		  const struct fuse_entry_param *e, off_t next, bool plus)
{
	return plus ? fuse_add_direntry_plus(req, buf, left, name, e, next)
		    : fuse_add_direntry(req, buf, left, name, &e->attr, next);
}

static size_t list(struct fsd *f, fuse_req_t req, const struct shot *s,
		   const struct snap_entry *dir, char *buf, size_t size, off_t off, bool plus)
{
	static const char *const dots[] = { ".", ".." };
	size_t len = 0, n;

	for (; off < (off_t)dir->children + 2; off++) {
		struct fuse_entry_param p = { .attr = { .st_mode = S_IFDIR } };
		struct snap_entry e;
		const char *name;

		if (off < 2) {
			name = dots[off];
			p.attr.st_ino = number(s->row, off ? dir->parent : dir->index);
		} else {
			if (!snap_entry(s->snap, dir->first_child + (uint32_t)(off - 2), &e))
				break;
			name = e.name;
			fill_entry(f, s, &e, &p);
		}
		n = add(req, buf + len, size - len, name, &p, off + 1, plus);
		if (n > size - len)
			break;
		len += n;
	}
	return len;
}

void shot_readdir(struct fsd *f, fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, bool plus)
{
	sbx_autofree char *buf = malloc(size);
	struct snap_entry dir;
	struct shot *s;
	size_t len = 0;
	int r = buf ? entry(f, ino, &s, &dir) : -ENOMEM;

	if (r == 0) {
		len = list(f, req, s, &dir, buf, size, off, plus);
		put(f, s);
	}
	if (r < 0)
		fuse_reply_err(req, -r);
	else
		fuse_reply_buf(req, buf, len);
}

void shot_file_open(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct snap_entry e;
	struct shot *s;
	int fd = -1, r = (fi->flags & O_ACCMODE) != O_RDONLY ? -EROFS : entry(f, ino, &s, &e);

	if (r == 0) {
		fd = S_ISREG(e.mode) ? snap_content(f->store, &e) : -EISDIR;
		r = fd < 0 ? fd : 0;
		put(f, s);
	}
	if (r < 0)
		fuse_reply_err(req, -r);
	else
		real_opened(f, req, ino, fd, fi);
}
