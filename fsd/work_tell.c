/* SPDX-License-Identifier: Apache-2.0 */
/*
 * News of a workspace become inotify events: the kicker does through the mount what somebody has
 * done behind it, and the handlers, who know that it is the kicker, change nothing. For that the
 * kicker has to see each name as the kernel's view of it was before: one that was made is not there
 * yet, and one that was removed still is. That is what "now" says, which the kicker sets and the
 * handlers of its own requests read. What the kernel does not know already is shown to the kicker
 * as a ghost, a number without a node: so however much is told, nothing is kept.
 *
 * What the kicker is told has no life time. Whoever else wants to know asks, is told the truth, and
 * is somebody who may watch (work_watch.c).
 */
#include "fsd/work_i.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"

enum { TELL_BATCH = 64 };

/* ---- the kicker's side ----------------------------------------------------------------------- */

/* Directories, held open through the mount while what happened in them is told. */
struct telling {
	struct fsd *f;
	int root;	     /* of the mount */
	struct work_node *n; /* pinned */
	int fd;		     /* owned */
};

static void set_now(struct work_table *t, const struct work_now *now)
{
	pthread_mutex_lock(&t->now_lock);
	t->now = *now;
	t->asked = 0;
	pthread_mutex_unlock(&t->now_lock);
}

static void get_now(struct work_table *t, struct work_now *ret)
{
	pthread_mutex_lock(&t->now_lock);
	*ret = t->now;
	pthread_mutex_unlock(&t->now_lock);
}

/* Its path below the mount; false when it is in no workspace any more. */
static bool path_of(struct work_node *n, struct sbx_buf *out)
{
	struct work_table *t = n->work->f->work;
	const struct work_node *chain[PATH_MAX / 2], *at;
	size_t depth = 0;
	bool ok;

	pthread_mutex_lock(&t->lock);
	for (at = n; at->parent && depth < SBX_COUNT(chain); at = at->parent)
		chain[depth++] = at;
	ok = at == n->work->root;
	sbx_buf_printf(out, "sessions/%s/workspace", n->work->name);
	while (ok && depth > 0)
		sbx_buf_printf(out, "/%s", chain[--depth]->name);
	pthread_mutex_unlock(&t->lock);
	return ok && !sbx_buf_failed(out) && out->len < PATH_MAX;
}

static int open_dir(struct telling *t, struct work_node *n)
{
	sbx_autobuf path = SBX_BUF_INIT((size_t)2 * PATH_MAX);
	struct stat st;
	int fd;

	if (!path_of(n, &path))
		return -1;
	set_now(t->f->work, &(struct work_now){ .row = n->work->row });
	fd = sbx_open_beneath(t->root, path.data, O_PATH | O_DIRECTORY, 0);
	/* Something else may have its name by now. */
	if (fd >= 0 && (fstat(fd, &st) < 0 ||
			st.st_ino != (n->parent ? work_number(n->is.dev, n->is.ino) : work_ino(n))))
		sbx_closep(&fd);
	return fd;
}

static int dir_fd(struct telling *t, struct work_node *n)
{
	if (t->n != n) {
		sbx_closep(&t->fd);
		work_unpinp(&t->n);
		work_pin_more(n);
		t->n = n;
		t->fd = open_dir(t, n);
	}
	return t->fd;
}

/* Opens for writing and closes, which are events; so is the time between the two. */
static void written(int dir, const char *name, int flags, bool modified)
{
	static const struct timespec now[2] = { { .tv_nsec = UTIME_OMIT },
						{ .tv_nsec = UTIME_NOW } };
	sbx_autoclose int fd =
		openat(dir, name, O_WRONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC | flags, 0600);

	if (fd >= 0 && modified)
		(void)futimens(fd, now);
}

static void tell_gone(int dir, const struct work_news *news)
{
	(void)unlinkat(dir, news->name, S_ISDIR(news->type) ? AT_REMOVEDIR : 0);
}

/* That it fails is no news: something else is there by now. */
static int tell_made(int dir, const struct work_news *news)
{
	if (S_ISDIR(news->type))
		return mkdirat(dir, news->name, 0700);
	if (S_ISLNK(news->type))
		return symlinkat("link", dir, news->name);
	if (S_ISREG(news->type) && news->there && (news->what & WORK_CLOSED))
		written(dir, news->name, O_CREAT | O_EXCL, news->what & WORK_WRITTEN);
	else
		return mknodat(dir, news->name, news->type | 0600, 0);
	return 0;
}

static void tell_changed(int dir, const struct work_news *news)
{
	static const struct timespec written_now[2] = { { .tv_nsec = UTIME_OMIT },
							{ .tv_nsec = UTIME_NOW } };

	if (S_ISREG(news->type) && (news->what & WORK_CLOSED))
		written(dir, news->name, 0, news->what & WORK_WRITTEN);
	else if (news->what & WORK_WRITTEN)
		(void)utimensat(dir, news->name, written_now, AT_SYMLINK_NOFOLLOW);
	if (news->what & WORK_ATTRIB)
		(void)utimensat(dir, news->name, NULL, AT_SYMLINK_NOFOLLOW);
}

static void tell_moved(struct telling *t, int dir, const struct work_news *news)
{
	sbx_autoclose int other = news->to != news->dir ? open_dir(t, news->to) : -1;
	struct work_now now = { .row = news->dir->work->row,
				.what = WORK_MOVED,
				.dir = work_ino(news->dir),
				.to = work_ino(news->to),
				.name = news->name,
				.to_name = news->to_name,
				.type = news->type };

	if (news->to != news->dir && other < 0)
		return;
	set_now(t->f->work, &now);
	(void)renameat(dir, news->name, other >= 0 ? other : dir, news->to_name);
}

static void tell_one(struct telling *t, const struct work_news *news)
{
	struct work_now now = { .row = news->dir->work->row,
				.dir = work_ino(news->dir),
				.name = news->name,
				.type = news->type };
	int dir = dir_fd(t, news->dir);

	if (dir < 0)
		return;
	if (news->what & WORK_MOVED) {
		tell_moved(t, dir, news);
		return;
	}
	if ((news->what & WORK_GONE) && (!news->there || (news->what & WORK_MADE))) {
		now.what = WORK_GONE;
		set_now(t->f->work, &now);
		tell_gone(dir, news);
	}
	if (!news->there && (news->what & WORK_GONE))
		return;
	if (news->what & WORK_MADE) {
		now.what = WORK_MADE;
		set_now(t->f->work, &now);
		(void)tell_made(dir, news);
	} else if (news->there) {
		set_now(t->f->work, &now);
		tell_changed(dir, news);
	}
}

bool work_tell(struct fsd *f, int root)
{
	struct work_watch *w = f->work->watch;
	struct telling t = { .f = f, .root = root, .fd = -1 };
	struct work_news *news = NULL;
	int left = TELL_BATCH;

	while (w && left-- > 0 && (news = work_news_take(w))) {
		if (root >= 0)
			tell_one(&t, news);
		set_now(f->work, &(struct work_now){ 0 });
		work_news_free(news);
	}
	sbx_closep(&t.fd);
	work_unpinp(&t.n);
	return left < 0;
}

/* ---- the handlers' side ---------------------------------------------------------------------- */

bool work_now_row(struct fsd *f, int64_t *ret)
{
	struct work_now now;

	get_now(f->work, &now);
	*ret = now.row;
	return now.row != 0;
}

/* For one name of what is told now: the kernel has our word for what is there. */
static void note_asked(struct work_table *t, unsigned which)
{
	pthread_mutex_lock(&t->now_lock);
	t->asked |= which;
	pthread_mutex_unlock(&t->now_lock);
}

/*
 * May the kernel take away what it has by this name? When it has not asked, since somebody else has
 * just been told of what is there now, it would be that: a directory that it calls removed is empty
 * to it from then on, a file is missed for a moment. Then the event is not worth it.
 */
static int may_go(struct fsd *f, fuse_ino_t parent, const char *name, unsigned which)
{
	work_autopin struct work_node *dir = NULL;
	struct work_table *t = f->work;
	struct work_identity is;
	struct stat st;
	bool asked;

	pthread_mutex_lock(&t->now_lock);
	asked = t->asked & which;
	pthread_mutex_unlock(&t->now_lock);
	if (asked || work_pin(f, parent, &dir) < 0 || work_identify(dir->fd, name, &is, &st) < 0)
		return 0;
	return -EBUSY;
}

int work_told_gone(struct fsd *f, fuse_ino_t parent, const char *name)
{
	return may_go(f, parent, name, WORK_ASKED_NAME);
}

/* What is in the way at the new place goes, and the old name is there no more. */
int work_told_moved(struct fsd *f, fuse_ino_t parent, const char *name, fuse_ino_t to,
		    const char *to_name)
{
	int r = may_go(f, parent, name, WORK_ASKED_NAME);

	return r < 0 ? r : may_go(f, to, to_name, WORK_ASKED_TO);
}

static bool is_at(fuse_ino_t dir, const char *a, fuse_ino_t parent, const char *name)
{
	return dir == parent && a && strcmp(a, name) == 0;
}

/* Attributes of what the kicker alone sees. */
static void ghost_attr(fuse_ino_t ino, mode_t type, struct stat *st)
{
	memset(st, 0, sizeof(*st));
	st->st_ino = ino;
	st->st_mode = type | 0700;
	st->st_nlink = 1;
}

static void ghost_entry(struct work_table *t, mode_t type, struct fuse_entry_param *ret)
{
	memset(ret, 0, sizeof(*ret));
	ret->generation = 1;
	ret->ino = INO_WORK | (atomic_fetch_add(&t->ghosts, 2) + 1);
	ret->attr_timeout = FSD_FOREVER;
	ghost_attr(ret->ino, type, &ret->attr);
}

/* Whatever is not there any more has a name until that is told: when the kernel lets go of a name
 * without others, it says to watchers that the file is gone, and they watch no more. */
static void known_attr(struct work_node *n, bool gone, struct stat *st)
{
	struct work_identity is;

	if (n->fd < 0 || work_statx(n->fd, st, &is) < 0 || work_present(n, st) < 0)
		ghost_attr(work_number(n->is.dev, n->is.ino), n->is.type, st);
	else if (gone)
		st->st_nlink++;
	if (!st->st_nlink)
		st->st_nlink = 1;
}

/* A node that the kernel knows already. */
static void known_entry(struct work_node *n, bool gone, struct fuse_entry_param *ret)
{
	struct work_table *t = n->work->f->work;

	memset(ret, 0, sizeof(*ret));
	pthread_mutex_lock(&t->lock);
	n->nlookup++;
	pthread_mutex_unlock(&t->lock);
	ret->ino = work_ino(n);
	ret->generation = 1;
	known_attr(n, gone, &ret->attr);
}

/* What is there: the node that the kernel knows, or a ghost, since whoever wants more asks. */
static int present_entry(struct work_node *dir, const char *name, struct fuse_entry_param *ret)
{
	work_autopin struct work_node *n = NULL;
	struct work_identity is;
	struct stat st;
	int r = work_identify(dir->fd, name, &is, &st);

	if (r < 0)
		return r;
	n = work_find_known(dir, &is);
	if (n)
		known_entry(n, false, ret);
	else
		ghost_entry(dir->work->f->work, is.type, ret);
	return 0;
}

/* What was there: the node that the kernel knows, or a ghost. */
static int old_entry(struct work_node *dir, const char *name, mode_t type, bool ghost,
		     struct fuse_entry_param *ret)
{
	work_autopin struct work_node *n = NULL;
	struct work_identity is;
	struct stat st;
	bool there = work_identify(dir->fd, name, &is, &st) == 0;

	n = work_find_place(dir, name, there ? &is : NULL);
	if (n && S_ISDIR(n->is.type) == S_ISDIR(type)) {
		known_entry(n, true, ret);
	} else if (ghost) {
		ghost_entry(dir->work->f->work, type, ret);
	} else {
		return -ENOENT;
	}
	return 0;
}

/* What was moved is where it is now. */
static int moved_entry(struct fsd *f, struct work_node *dir, const struct work_now *now,
		       struct fuse_entry_param *ret)
{
	work_autopin struct work_node *to = NULL;
	int r = work_pin(f, now->to, &to);

	if (r == 0)
		r = present_entry(to, now->to_name, ret);
	return r == 0 ? 0 : old_entry(dir, now->name, now->type, true, ret);
}

static int entry_for_kicker(struct fsd *f, struct work_node *dir, fuse_ino_t parent,
			    const char *name, struct fuse_entry_param *ret)
{
	struct work_now now;
	int r;

	get_now(f->work, &now);
	if (now.what == WORK_MOVED && is_at(now.to, now.to_name, parent, name)) {
		note_asked(f->work, WORK_ASKED_TO);
		return old_entry(dir, name, now.type, false, ret);
	}
	if (!is_at(now.dir, now.name, parent, name)) {
		r = work_child(dir, name, ret);
		/* On the way to a directory that was removed after what happened in it. */
		return r == -ENOENT ? old_entry(dir, name, S_IFDIR, false, ret) : r;
	}
	note_asked(f->work, WORK_ASKED_NAME);
	if (now.what == WORK_MADE)
		return -ENOENT;
	if (now.what == WORK_GONE)
		return old_entry(dir, name, now.type, true, ret);
	if (now.what == WORK_MOVED)
		return moved_entry(f, dir, &now, ret);
	return present_entry(dir, name, ret);
}

static void reply_entry(struct fsd *f, fuse_req_t req, int r, struct fuse_entry_param *e)
{
	e->entry_timeout = 0;
	if (r < 0)
		fuse_reply_err(req, -r);
	else if (fuse_reply_entry(req, e) != 0)
		work_forget(f, e->ino, 1);
}

void work_told_lookup(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name)
{
	work_autopin struct work_node *dir = NULL;
	struct fuse_entry_param e = { 0 };
	int r = work_pin(f, parent, &dir);

	if (r == 0)
		r = entry_for_kicker(f, dir, parent, name, &e);
	reply_entry(f, req, r, &e);
}

/* What was made may have been moved since, which is told next. */
static int made_entry(struct fsd *f, fuse_ino_t parent, const char *name,
		      struct fuse_entry_param *ret)
{
	work_autopin struct work_node *dir = NULL;
	struct work_now now;
	int r = work_pin(f, parent, &dir);

	get_now(f->work, &now);
	if (r == 0 && present_entry(dir, name, ret) < 0)
		ghost_entry(f->work, now.type, ret);
	return r;
}

void work_told_made(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param e = { 0 };

	reply_entry(f, req, made_entry(f, parent, name, &e), &e);
}

/* Without a handle: the kicker closes it, and that is all. But it is one of those who have the file
 * open, see pass.c. */
static int open_for_kicker(struct fsd *f, fuse_ino_t ino, struct fuse_file_info *fi)
{
	int r;

	fi->fh = 0;
	fi->keep_cache = fi->noflush = 1;
	r = pass_open(f, ino, -1, fi);
	return r < 0 ? r : 0;
}

void work_told_create(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name,
		      struct fuse_file_info *fi)
{
	struct fuse_entry_param e = { 0 };
	int r = made_entry(f, parent, name, &e);

	if (r == 0)
		r = open_for_kicker(f, e.ino, fi);
	if (r < 0) {
		fuse_reply_err(req, -r);
	} else if (fuse_reply_create(req, &e, fi) != 0) {
		(void)pass_close(f, e.ino);
		work_forget(f, e.ino, 1);
	}
}

void work_told_open(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	int r = open_for_kicker(f, ino, fi);

	if (r < 0)
		fuse_reply_err(req, -r);
	else if (fuse_reply_open(req, fi) != 0)
		(void)pass_close(f, ino);
}

void work_told_attr(struct fsd *f, fuse_req_t req, fuse_ino_t ino)
{
	work_autopin struct work_node *n = NULL;
	struct work_now now;
	struct stat st;
	int r = 0;

	get_now(f->work, &now);
	if (work_is_ghost(ino))
		ghost_attr(ino, now.type, &st);
	else
		r = work_pin(f, ino, &n);
	if (n)
		known_attr(n, false, &st);
	if (r < 0)
		fuse_reply_err(req, -r);
	else
		fuse_reply_attr(req, &st, 0);
}
