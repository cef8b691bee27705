/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The workspaces that are in use through the mount, and what the kernel may believe of them.
 *
 * While no run of a session is active only doors change its workspace, and the kernel may believe
 * for ever what it was told. While one is active it believes nothing. When that changes, or another
 * door has written, everything told before is taken back. Only such ways are used as wait for no
 * lock that a request may hold: for if this process is killed while a thread of it waits in the
 * kernel, /dev/fuse is not closed, and whoever waits for an answer would wait for ever. Names go by
 * the kernel's counter of epochs (Linux 6.16; before that, names are believed for a second at the
 * most), attributes one by one, and pages follow from the attributes, or are dropped at an open.
 */
#include "fsd/work_i.h"

#include <errno.h>
#include <linux/fuse.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

enum {
	NOTIFY_INC_EPOCH = 8, /* FUSE_NOTIFY_INC_EPOCH of newer headers */
	SWEEP_BATCH = 128,
};

static struct work **bucket_of(struct work_table *t, int64_t row)
{
	return &t->works[(uint64_t)row % WORKS_BUCKETS];
}

/* ---- workspaces ------------------------------------------------------------------------------ */

void work_settle(struct work_table *t, struct work *w)
{
	struct work **at = bucket_of(t, w->row);

	if (w->refs || !w->gone)
		return;
	while (*at != w)
		at = &(*at)->next;
	*at = w->next;
	t->n_works--;
	free(w);
}

/* Under the lock. */
static struct work *find(struct work_table *t, int64_t row)
{
	struct work *w = *bucket_of(t, row);

	while (w && (w->row != row || w->gone))
		w = w->next;
	return w;
}

static void set_root(struct work_table *t, struct work *w, struct work_node *root,
		     struct work_node **dead)
{
	struct work_node *old = w->root;

	w->root = root;
	if (root)
		root->refs++;
	if (old && root)
		work_adopt(old, root, dead);
	if (old)
		work_node_put(t, old, dead);
}

static int make(struct fsd *f, int64_t row, struct work **ret)
{
	store_autosession s = { 0 };
	sbx_autoerror e = SBX_ERROR_INIT;
	struct work *w;

	if (store_session_get_row(f->store, row, &s, &e) < 0)
		return -fsd_errno(&e);
	w = calloc(1, sizeof(*w));
	if (!w)
		return -ENOMEM;
	w->f = f;
	w->row = row;
	memcpy(w->id, s.id, sizeof(w->id));
	(void)snprintf(w->name, sizeof(w->name), "%s", s.entry ? s.entry : s.id);
	w->uid = s.uid >= 0 ? (uid_t)s.uid : f->uid;
	w->gid = w->uid == f->uid ? getgid() : (gid_t)w->uid;
	w->cap = orch_workspace_cap(f->orch, &s);
	w->nodes_end = &w->nodes;
	w->epoch = 1;
	w->busy = true; /* until it is known */
	*ret = w;
	return 0;
}

static void look_busy(struct work *w)
{
	bool busy = true;

	if (orch_workspace_busy(w->f->orch, w->id, &busy, NULL) < 0)
		busy = true;
	atomic_store(&w->busy, busy);
}

/* The workspace of this row, with a reference. It is found by news before it is asked whether it is
 * busy, so that none is missed. */
static int get(struct fsd *f, int64_t row, struct work **ret)
{
	struct work_table *t = f->work;
	struct work *w, *fresh = NULL;
	int r;

	pthread_mutex_lock(&t->lock);
	w = find(t, row);
	if (w)
		w->refs++;
	pthread_mutex_unlock(&t->lock);
	if (!w) {
		r = make(f, row, &fresh);
		if (r < 0)
			return r;
		pthread_mutex_lock(&t->lock);
		w = find(t, row);
		if (!w) {
			w = sbx_steal(&fresh);
			w->next = *bucket_of(t, row);
			*bucket_of(t, row) = w;
			t->n_works++;
			r = 1;
		}
		w->refs++;
		pthread_mutex_unlock(&t->lock);
		free(fresh);
		if (r)
			look_busy(w);
	}
	*ret = w;
	return 0;
}

static void put(struct work *w)
{
	struct work_table *t = w->f->work;

	pthread_mutex_lock(&t->lock);
	w->refs--;
	work_settle(t, w);
	pthread_mutex_unlock(&t->lock);
}

/* Opens the directory by its name and takes it for the root, unless it is the same as before. 1: it
 * is another one than before. */
static int open_root(struct work *w)
{
	struct work_table *t = w->f->work;
	struct work_node *dead = NULL, *root = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;
	struct work_identity is;
	struct stat st;
	bool changed = false;
	sbx_autoclose int fd = orch_workspace_dir(w->f->orch, w->id, &e);
	int r = fd < 0 ? -fsd_errno(&e) : work_statx(fd, &st, &is);

	if (r < 0)
		return r;
	pthread_mutex_lock(&t->lock);
	if (!w->root || memcmp(&w->root->is, &is, sizeof(is)) != 0) {
		root = work_node_new(w, NULL, "", fd, &is);
		if (root) {
			fd = -1;
			changed = w->root != NULL;
			w->disk_uid = st.st_uid;
			w->disk_gid = st.st_gid;
			set_root(t, w, root, &dead);
		} else {
			r = -ENOMEM;
		}
	}
	if (changed)
		root->pins++;
	pthread_mutex_unlock(&t->lock);
	work_bury(t, dead);
	if (changed) {
		work_watch(root, false);
		work_look_through(root, 0, true);
		work_unpin(root);
	}
	return r < 0 ? r : changed;
}

void work_new_epoch(struct fsd *f)
{
	struct fuse_out_header out = { .len = sizeof(out), .error = NOTIFY_INC_EPOCH };

	if (f->epochs && write(fuse_session_fd(f->se), &out, sizeof(out)) < 0 && errno != ENODEV)
		sbx_log(SBX_LOG_WARNING, "names not invalidated error=\"%s\"", strerror(errno));
}

void work_take_back(struct work *w)
{
	struct work_table *t = w->f->work;

	atomic_fetch_add(&w->epoch, 1);
	work_new_epoch(w->f);
	pthread_mutex_lock(&t->lock);
	w->sweep = w->n_nodes + 1;
	pthread_cond_signal(&t->wake);
	pthread_mutex_unlock(&t->lock);
}

void work_stale(struct work *w)
{
	atomic_store(&w->measured, false);
	work_take_back(w);
}

int work_root(struct fsd *f, int64_t row, bool fresh, struct work_node **ret)
{
	struct work_table *t = f->work;
	struct work *w;
	int r = get(f, row, &w);

	if (r < 0)
		return r;
	pthread_mutex_lock(&t->lock);
	fresh |= !w->root;
	pthread_mutex_unlock(&t->lock);
	r = fresh ? open_root(w) : 0;
	if (r > 0) {
		work_stale(w);
		r = 0;
	}
	pthread_mutex_lock(&t->lock);
	if (r == 0 && !w->root)
		r = -ENOENT;
	if (r == 0) {
		w->root->pins++;
		*ret = w->root;
	}
	pthread_mutex_unlock(&t->lock);
	put(w);
	return r;
}

/* ---- news ------------------------------------------------------------------------------------ */

/* With a reference. */
static struct work *find_id(struct work_table *t, const char *id)
{
	struct work *w = NULL;

	pthread_mutex_lock(&t->lock);
	for (size_t i = 0; i < WORKS_BUCKETS && !w; i++)
		for (w = t->works[i]; w && (w->gone || strcmp(w->id, id) != 0);)
			w = w->next;
	if (w)
		w->refs++;
	pthread_mutex_unlock(&t->lock);
	return w;
}

void work_changed(struct fsd *f, const char *id)
{
	struct work *w = f->work->n_works ? find_id(f->work, id) : NULL;

	if (!w)
		return;
	/* Whoever is inside asks for its name no more. */
	(void)open_root(w);
	work_stale(w);
	put(w);
}

void work_run_changed(struct fsd *f, int64_t run_row)
{
	struct store_run_key key;
	store_autorun run = { 0 };
	struct work *w;
	bool before;

	if (f->work->n_works == 0 || store_run_key_row(f->store, run_row, &key, NULL, NULL) < 0 ||
	    !key.in_session || store_run_get_row(f->store, run_row, &run, NULL) < 0 ||
	    !run.session_id)
		return;
	w = find_id(f->work, run.session_id);
	if (!w)
		return;
	before = atomic_load(&w->busy);
	look_busy(w);
	/* A run may have come and gone between two looks. */
	if (before != atomic_load(&w->busy) || store_phase_terminal(key.phase)) {
		work_stale(w);
	}
	put(w);
}

void work_session_gone(struct fsd *f, const char *id)
{
	struct work_table *t = f->work;
	struct work *w = t->n_works ? find_id(t, id) : NULL;
	struct work_node *dead = NULL;

	if (!w)
		return;
	work_take_back(w);
	pthread_mutex_lock(&t->lock);
	w->gone = true;
	set_root(t, w, NULL, &dead);
	pthread_mutex_unlock(&t->lock);
	work_bury(t, dead);
	put(w);
}

void work_look_all(struct fsd *f)
{
	struct work_table *t = f->work;

	for (size_t i = 0; i < WORKS_BUCKETS; i++) {
		char ids[32][37];
		size_t n = 0;

		pthread_mutex_lock(&t->lock);
		for (struct work *w = t->works[i]; w && n < SBX_COUNT(ids); w = w->next)
			memcpy(ids[n++], w->id, sizeof(w->id));
		pthread_mutex_unlock(&t->lock);
		while (n > 0) {
			struct work *w = find_id(t, ids[--n]);

			if (w) {
				look_busy(w);
				work_take_back(w);
				put(w);
			}
		}
	}
}

/* ---- the thread that takes back attributes --------------------------------------------------- */

/* Takes some nodes that are still to be told of, and puts them behind the others. Under the lock.
 */
static size_t next_batch(struct work *w, fuse_ino_t *ret)
{
	size_t n = 0;

	if (w->sweep > w->n_nodes) { /* the root's number in the tree is the first */
		ret[n++] = (fuse_ino_t)w->row << 8 | MS_N_SESS_WORK;
		w->sweep = w->n_nodes;
	}
	while (w->sweep && n < SWEEP_BATCH) {
		struct work_node *one = w->nodes;

		w->sweep--;
		ret[n++] = INO_WORK | (uintptr_t)one;
		if (!one->in_work)
			continue;
		w->nodes = one->in_work;
		w->nodes->in_at = &w->nodes;
		one->in_work = NULL;
		one->in_at = w->nodes_end;
		*w->nodes_end = one;
		w->nodes_end = &one->in_work;
	}
	return n;
}

static size_t some_batch(struct work_table *t, fuse_ino_t *ret)
{
	for (size_t i = 0; i < WORKS_BUCKETS; i++)
		for (struct work *w = t->works[i]; w; w = w->next)
			if (w->sweep)
				return next_batch(w, ret);
	return 0;
}

static void *sweeper_thread(void *arg)
{
	struct work_table *t = arg;
	fuse_ino_t batch[SWEEP_BATCH];

	pthread_mutex_lock(&t->lock);
	while (!t->stop) {
		size_t n = some_batch(t, batch);

		if (n == 0) {
			pthread_cond_wait(&t->wake, &t->lock);
			continue;
		}
		pthread_mutex_unlock(&t->lock);
		/* A negative offset: attributes alone. A number that is somebody else's by now
		 * costs a look, and one that is not known costs nothing. */
		for (size_t i = 0; i < n; i++)
			(void)fuse_lowlevel_notify_inval_inode(t->f->se, batch[i], -1, 0);
		pthread_mutex_lock(&t->lock);
	}
	pthread_mutex_unlock(&t->lock);
	return NULL;
}

/* ---- the table ------------------------------------------------------------------------------- */

struct work_table *work_open(struct fsd *f)
{
	struct work_table *t = calloc(1, sizeof(*t));
	struct rlimit files = { 0 };

	if (!t)
		return NULL;
	t->f = f;
	t->newest = &t->oldest;
	pthread_mutex_init(&t->lock, NULL);
	pthread_mutex_init(&t->now_lock, NULL);
	pthread_cond_init(&t->wake, NULL);
	(void)getrlimit(RLIMIT_NOFILE, &files);
	t->open_max = files.rlim_cur / 2;
	return t;
}

int work_start(struct work_table *t, struct sbx_error *e)
{
	int r = pthread_create(&t->thread, NULL, sweeper_thread, t);

	if (r != 0)
		return sbx_fail_errno(e, SBX_E_INTERNAL, r, "cannot start a thread");
	t->running = true;
	return work_watch_start(t, e);
}

void work_stop(struct work_table *t)
{
	if (!t || !t->running)
		return;
	pthread_mutex_lock(&t->lock);
	t->stop = true;
	pthread_cond_signal(&t->wake);
	pthread_mutex_unlock(&t->lock);
	pthread_join(t->thread, NULL);
	t->running = false;
	work_watch_stop(t->watch, t->f);
}

static void free_node(struct work_node *n)
{
	sbx_closep(&n->fd);
	free(n->name);
	free(n->mark);
	free(n);
}

void work_free(struct work_table *t)
{
	if (!t)
		return;
	work_watch_free(t->watch);
	for (size_t i = 0; i < WORKS_BUCKETS; i++) {
		struct work *w;

		while ((w = t->works[i])) {
			struct work_node *n;

			t->works[i] = w->next;
			while ((n = w->nodes)) {
				w->nodes = n->in_work;
				free_node(n);
			}
			free(w);
		}
	}
	pthread_cond_destroy(&t->wake);
	pthread_mutex_destroy(&t->lock);
	pthread_mutex_destroy(&t->now_lock);
	free(t);
}
