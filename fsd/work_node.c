/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The nodes of workspaces. The kernel counts what it knows and says when it forgets; until then a
 * node is there, and finds its file by the descriptor that it holds. Descriptors are few where
 * trees are large, so those that were not used for the longest time are closed; such a node finds
 * its file by its name in its parent, and makes sure that it is the same one.
 *
 * A link has a node for each directory that it is in, since what it shows depends on how deep it
 * is. Everything else has one, whatever its names.
 */
#include "fsd/work_i.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fs.h"

/* So deep can a tree be whose descriptors were all closed; the calls are nested. */
enum { REOPEN_MAX = 512 };

static struct work_table *table_of(const struct work_node *n)
{
	return n->work->f->work;
}

/* ---- finding, under the lock ----------------------------------------------------------------- */

static struct work_node **bucket_of(struct work_table *t, const struct work_identity *is)
{
	uint64_t hash =
		((uint64_t)is->ino ^ (uint64_t)is->dev << 40) * UINT64_C(0x9e3779b97f4a7c15);

	return &t->nodes[(hash >> 40) % WORK_BUCKETS];
}

bool work_same(const struct work_identity *a, const struct work_identity *b)
{
	return a->dev == b->dev && a->ino == b->ino && a->type == b->type &&
	       a->born.tv_sec == b->born.tv_sec && a->born.tv_nsec == b->born.tv_nsec;
}

static struct work_node *find(struct work_table *t, const struct work_identity *is,
			      const struct work_node *parent)
{
	struct work_node *n = *bucket_of(t, is);

	while (n && !(work_same(&n->is, is) && (!S_ISLNK(is->type) || n->parent == parent)))
		n = n->next;
	return n;
}

static void unhash(struct work_table *t, struct work_node *n)
{
	struct work_node **at = bucket_of(t, &n->is);

	if (!n->hashed)
		return;
	while (*at != n)
		at = &(*at)->next;
	*at = n->next;
	n->hashed = false;
}

/* ---- descriptors that may be closed, under the lock ------------------------------------------ */

static void busy_again(struct work_table *t, struct work_node *n)
{
	if (!n->newer)
		return;
	*n->newer = n->older;
	if (n->older)
		n->older->newer = n->newer;
	else
		t->newest = n->newer;
	n->newer = NULL;
	n->older = NULL;
}

/* The list begins with the oldest; `older` leads to the next newer one's place in it. */
static void idle_now(struct work_table *t, struct work_node *n)
{
	if (n->newer || n->pins || n->fd < 0 || n->keep || n->mark || !n->hashed || !n->parent)
		return;
	n->older = NULL;
	n->newer = t->newest;
	*t->newest = n;
	t->newest = &n->older;
}

/* ---- places, under the lock ------------------------------------------------------------------ */

static struct work_node **place_bucket(struct work_table *t, const struct work_node *parent,
				       const char *name)
{
	uint64_t hash = (uintptr_t)parent * UINT64_C(0x9e3779b97f4a7c15);

	for (; *name; name++)
		hash = (hash ^ (unsigned char)*name) * UINT64_C(1099511628211);
	return &t->places[(hash >> 40) % WORK_BUCKETS];
}

static void enter_place(struct work_table *t, struct work_node *n)
{
	struct work_node **at = place_bucket(t, n->parent, n->name);

	n->place_next = *at;
	*at = n;
}

static void leave_place(struct work_table *t, struct work_node *n)
{
	struct work_node **at = place_bucket(t, n->parent, n->name);

	while (*at != n)
		at = &(*at)->place_next;
	*at = n->place_next;
}

struct work_node *work_find_place(struct work_node *dir, const char *name,
				  const struct work_identity *is)
{
	struct work_table *t = table_of(dir);
	struct work_node *n;

	pthread_mutex_lock(&t->lock);
	for (n = *place_bucket(t, dir, name); n; n = n->place_next)
		if (n->parent == dir && n->nlookup && strcmp(n->name, name) == 0 &&
		    !(is && work_same(&n->is, is)))
			break;
	if (n) {
		n->pins++;
		busy_again(t, n);
	}
	pthread_mutex_unlock(&t->lock);
	return n;
}

void work_names(struct work_node *dir, struct sbx_buf *out)
{
	struct work_table *t = table_of(dir);

	pthread_mutex_lock(&t->lock);
	for (const struct work_node *n = dir->work->nodes; n; n = n->in_work) {
		if (n->parent != dir || !n->nlookup || out->len + strlen(n->name) + 2 > out->limit)
			continue;
		sbx_buf_puts(out, S_ISDIR(n->is.type) ? "d" : "f");
		sbx_buf_add(out, n->name, strlen(n->name) + 1);
	}
	pthread_mutex_unlock(&t->lock);
}

struct work_node *work_find_known(struct work_node *dir, const struct work_identity *is)
{
	struct work_table *t = table_of(dir);
	struct work_node *n;

	pthread_mutex_lock(&t->lock);
	n = find(t, is, dir);
	if (n && !n->nlookup)
		n = NULL;
	if (n) {
		n->pins++;
		busy_again(t, n);
	}
	pthread_mutex_unlock(&t->lock);
	return n;
}

fuse_ino_t work_ino(const struct work_node *n)
{
	return n->parent ? INO_WORK | (uintptr_t)n : (fuse_ino_t)n->work->row << 8 | MS_N_SESS_WORK;
}

/* Closing may be the end of a large file that was removed, and so is not done under the lock. */
static void trim(struct work_table *t)
{
	for (;;) {
		struct work_node *n = NULL;
		int fd = -1;

		pthread_mutex_lock(&t->lock);
		if (t->open > t->open_max)
			n = t->oldest;
		if (n) {
			busy_again(t, n);
			fd = sbx_steal_fd(&n->fd);
			t->open--;
		}
		pthread_mutex_unlock(&t->lock);
		if (!n)
			return;
		sbx_closep(&fd);
	}
}

/* ---- life ------------------------------------------------------------------------------------ */

struct work_node *work_node_new(struct work *w, struct work_node *parent, const char *name, int fd,
				const struct work_identity *is)
{
	struct work_table *t = w->f->work;
	struct work_node *n = calloc(1, sizeof(*n));

	if (!n || !(n->name = strdup(name))) {
		free(n);
		return NULL;
	}
	n->work = w;
	w->refs++;
	n->fd = fd;
	t->open++;
	n->is = *is;
	n->in_at = w->nodes_end;
	*w->nodes_end = n;
	w->nodes_end = &n->in_work;
	w->n_nodes++;
	n->parent = parent;
	if (!parent)
		return n;
	parent->refs++;
	n->next = *bucket_of(t, is);
	*bucket_of(t, is) = n;
	n->hashed = true;
	enter_place(t, n);
	return n;
}

static void leave_work(struct work_node *n)
{
	struct work *w = n->work;

	*n->in_at = n->in_work;
	if (n->in_work)
		n->in_work->in_at = n->in_at;
	else
		w->nodes_end = n->in_at;
	w->n_nodes--;
}

/* Nobody needs it: it goes, and perhaps its parents after it. */
static void check_life(struct work_table *t, struct work_node *n, struct work_node **dead)
{
	while (n && !n->nlookup && !n->refs && !n->pins) {
		struct work_node *parent = n->parent;

		unhash(t, n);
		busy_again(t, n);
		leave_work(n);
		work_unhash_mark(n);
		if (parent)
			leave_place(t, n);
		n->next = *dead;
		*dead = n;
		if (parent)
			parent->refs--;
		n = parent;
	}
}

void work_node_put(struct work_table *t, struct work_node *n, struct work_node **dead)
{
	n->refs--;
	check_life(t, n, dead);
}

void work_bury(struct work_table *t, struct work_node *dead)
{
	struct work_node *n;

	while ((n = dead)) {
		struct work *w = n->work;
		bool had = n->fd >= 0;

		dead = n->next;
		work_unwatch(n);
		sbx_closep(&n->fd);
		atomic_fetch_sub(&w->used, n->extra);
		free(n->name);
		free(n);
		pthread_mutex_lock(&t->lock);
		t->open -= had;
		w->refs--;
		work_settle(t, w);
		pthread_mutex_unlock(&t->lock);
	}
}

void work_forget(struct fsd *f, fuse_ino_t ino, uint64_t nlookup)
{
	struct work_table *t = f->work;
	struct work_node *n = (struct work_node *)(uintptr_t)(ino & ~INO_WORK), *dead = NULL;

	if (work_is_ghost(ino))
		return;
	pthread_mutex_lock(&t->lock);
	n->nlookup -= nlookup < n->nlookup ? nlookup : n->nlookup;
	check_life(t, n, &dead);
	pthread_mutex_unlock(&t->lock);
	work_bury(t, dead);
}

/* ---- pins ------------------------------------------------------------------------------------ */

static int ready(struct work_node *n, unsigned level);

static int reopen(struct work_node *n, struct work_node *parent, const char *name, unsigned level)
{
	struct work_table *t = table_of(n);
	struct work_identity is;
	struct stat st;
	sbx_autoclose int fd = -1;
	int r = level < REOPEN_MAX ? ready(parent, level + 1) : -ELOOP;

	if (r < 0)
		return r;
	fd = sbx_open_beneath(parent->fd, name, O_PATH | O_NOFOLLOW, 0);
	if (fd < 0)
		return fd == -ENOENT || fd == -ENOTDIR ? -ESTALE : fd;
	r = work_statx(fd, &st, &is);
	if (r == 0 && !work_same(&is, &n->is))
		r = -ESTALE;
	if (r < 0)
		return r;
	pthread_mutex_lock(&t->lock);
	if (n->fd < 0) {
		n->fd = sbx_steal_fd(&fd);
		t->open++;
	}
	pthread_mutex_unlock(&t->lock);
	return 0;
}

/* Opens what is pinned. */
static int ready(struct work_node *n, unsigned level)
{
	struct work_table *t = table_of(n);
	sbx_autofree char *name = NULL;
	struct work_node *parent = NULL;
	int r;

	pthread_mutex_lock(&t->lock);
	if (n->fd >= 0) {
		pthread_mutex_unlock(&t->lock);
		return 0;
	}
	name = n->parent && n->hashed ? strdup(n->name) : NULL;
	if (name) {
		parent = n->parent;
		parent->pins++;
		busy_again(t, parent);
	}
	pthread_mutex_unlock(&t->lock);
	if (!name)
		return -ESTALE;
	r = reopen(n, parent, name, level);
	work_unpin(parent);
	return r;
}

void work_pin_more(struct work_node *n)
{
	struct work_table *t = table_of(n);

	pthread_mutex_lock(&t->lock);
	n->pins++;
	busy_again(t, n);
	pthread_mutex_unlock(&t->lock);
}

void work_unpin(struct work_node *n)
{
	struct work_table *t = table_of(n);
	struct work_node *dead = NULL;
	bool many;

	pthread_mutex_lock(&t->lock);
	n->pins--;
	idle_now(t, n);
	check_life(t, n, &dead);
	many = t->open > t->open_max;
	pthread_mutex_unlock(&t->lock);
	work_bury(t, dead);
	if (many)
		trim(t);
}

int work_pin(struct fsd *f, fuse_ino_t ino, struct work_node **ret)
{
	struct work_node *n = (struct work_node *)(uintptr_t)(ino & ~INO_WORK);
	int r;

	if (!(ino & INO_WORK))
		return work_root(f, ino_row(ino), false, ret);
	if (work_is_ghost(ino))
		return -ESTALE;
	work_pin_more(n);
	r = ready(n, 0);
	if (r < 0)
		work_unpin(n);
	else
		*ret = n;
	return r;
}

/* ---- places ---------------------------------------------------------------------------------- */

/*
 * Under the lock. What others move may be seen in an order in which a directory comes to be below
 * itself: then the link in the chain that cannot be true any more is cut, and whose place is not
 * known counts as being right below the root, where a link shows the least.
 */
static void cut_circle(const struct work_node *n, struct work_node *parent, struct work_node **dead)
{
	struct work_node *root = n->work->root;

	for (struct work_node *at = parent; at && root; at = at->parent) {
		if (at->parent != n)
			continue;
		at->keep = true;
		root->refs++;
		leave_place(table_of(n), at);
		at->parent = root;
		enter_place(table_of(n), at);
		work_node_put(table_of(n), (struct work_node *)(uintptr_t)n, dead);
		return;
	}
}

/* Under the lock. */
static void place(struct work_node *n, struct work_node *parent, const char *name,
		  struct work_node **dead)
{
	struct work_node *old = n->parent;
	char *copy;

	if (!old || n == parent || (old == parent && strcmp(n->name, name) == 0))
		return;
	copy = strdup(name);
	leave_place(table_of(n), n);
	if (copy) {
		free(n->name);
		n->name = copy;
	} else {
		n->keep = true;
	}
	if (S_ISDIR(n->is.type))
		cut_circle(n, parent, dead);
	parent->refs++;
	n->parent = parent;
	enter_place(table_of(n), n);
	work_node_put(table_of(n), old, dead);
}

void work_adopt(struct work_node *old, struct work_node *root, struct work_node **dead)
{
	struct work_node *next;

	for (struct work_node *n = root->work->nodes; n; n = next) {
		next = n->in_work;
		if (n->parent == old)
			place(n, root, n->name, dead);
	}
}

void work_moved(const struct work_identity *is, struct work_node *from, struct work_node *to,
		const char *name)
{
	struct work_table *t = table_of(from);
	struct work_node *n, *dead = NULL;

	pthread_mutex_lock(&t->lock);
	n = find(t, is, from);
	if (n)
		place(n, to, name, &dead);
	pthread_mutex_unlock(&t->lock);
	work_bury(t, dead);
}

void work_gone(const struct work_identity *is, struct work_node *dir, int64_t size)
{
	struct work_table *t = table_of(dir);
	struct work_node *n;

	pthread_mutex_lock(&t->lock);
	n = find(t, is, dir);
	if (n) {
		unhash(t, n);
		busy_again(t, n);
		n->extra += size;
	}
	pthread_mutex_unlock(&t->lock);
	if (!n)
		atomic_fetch_sub(&dir->work->used, size);
}

void work_keep(struct work_node *n)
{
	struct work_table *t = table_of(n);

	pthread_mutex_lock(&t->lock);
	n->keep = true;
	pthread_mutex_unlock(&t->lock);
}

unsigned work_depth(struct work_node *n)
{
	struct work_table *t = table_of(n);
	unsigned depth = 0;

	pthread_mutex_lock(&t->lock);
	for (struct work_node *at = n->parent; at && at->parent; at = at->parent)
		depth++;
	pthread_mutex_unlock(&t->lock);
	return depth;
}

/* ---- looking up ------------------------------------------------------------------------------ */

int work_identify(int dir, const char *name, struct work_identity *ret, struct stat *st)
{
	sbx_autoclose int fd = sbx_open_beneath(dir, name, O_PATH | O_NOFOLLOW, 0);

	return fd < 0 ? fd : work_statx(fd, st, ret);
}

/* Under the lock: the node of what fd is, counted and pinned. Takes the descriptor if it needs it.
 */
static struct work_node *enter(struct work_node *dir, const char *name, int *fd,
			       const struct work_identity *is, bool keep, struct work_node **dead)
{
	struct work_table *t = table_of(dir);
	struct work_node *n = find(t, is, dir);

	if (n) {
		place(n, dir, name, dead);
		if (n->fd < 0) {
			n->fd = sbx_steal_fd(fd);
			t->open++;
		}
	} else {
		n = work_node_new(dir->work, dir, name, *fd, is);
		if (!n)
			return NULL;
		*fd = -1;
	}
	n->keep |= keep;
	n->nlookup++;
	n->pins++;
	busy_again(t, n);
	return n;
}

int work_enter(struct work_node *dir, const char *name, int fd, struct fuse_entry_param *ret)
{
	sbx_autoclose int own = fd;
	struct work_table *t = table_of(dir);
	work_autopin struct work_node *n = NULL;
	struct work_node *dead = NULL;
	struct work_identity is;
	int r;

	memset(ret, 0, sizeof(*ret));
	r = work_statx(fd, &ret->attr, &is);
	if (r < 0)
		return r;
	pthread_mutex_lock(&t->lock);
	n = enter(dir, name, &own, &is, S_ISREG(is.type) && ret->attr.st_nlink > 1, &dead);
	pthread_mutex_unlock(&t->lock);
	work_bury(t, dead);
	if (!n)
		return -ENOMEM;
	ret->ino = INO_WORK | (uintptr_t)n;
	ret->generation = 1;
	ret->entry_timeout = work_entry_time(n->work);
	ret->attr_timeout = work_attr_time(n->work);
	r = work_present(n, &ret->attr);
	if (r < 0)
		work_forget(n->work->f, ret->ino, 1);
	return r;
}

int work_child(struct work_node *dir, const char *name, struct fuse_entry_param *ret)
{
	int fd = sbx_open_beneath(dir->fd, name, O_PATH | O_NOFOLLOW, 0);

	return fd < 0 ? fd : work_enter(dir, name, fd, ret);
}

int work_look_up(struct work_node *dir, const char *name, struct fuse_entry_param *ret)
{
	int r = work_child(dir, name, ret);

	if (r == 0)
		work_watch_entry(ret, true);
	return r;
}
