/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which directories of workspaces are watched on the disk: those that somebody has looked up and
 * the kernel still knows, up to a limit. A mark goes with its node, and is found by the handle that
 * the file system gives, which is what events name a directory by.
 */
#include "fsd/work_watch_i.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/fanotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

enum {
	FRESH_US = 10000000,
	/* Programs look at a directory, go down into it, and watch it only then. */
	LOOK_AFTER_US = 250000,
	LOOK_LATEST_US = 2000000,
};

static const uint64_t EVENTS = FAN_CREATE | FAN_DELETE | FAN_MODIFY | FAN_CLOSE_WRITE | FAN_ATTRIB |
			       FAN_ONDIR | FAN_EVENT_ON_CHILD;

/* ---- marks ----------------------------------------------------------------------------------- */

static struct work_mark **mark_bucket(struct work_watch *w, const unsigned char *bytes,
				      unsigned len)
{
	uint64_t hash = UINT64_C(14695981039346656037);

	for (unsigned i = 0; i < len; i++)
		hash = (hash ^ bytes[i]) * UINT64_C(1099511628211);
	return &w->marks[hash % MARK_BUCKETS];
}

struct work_mark *work_mark_find(struct work_watch *w, const unsigned char *bytes, unsigned len,
				 int type)
{
	struct work_mark *m = *mark_bucket(w, bytes, len);

	while (m && !(m->len == len && m->type == type && memcmp(m->bytes, bytes, len) == 0))
		m = m->next;
	return m;
}

static struct work_mark *new_mark(struct work_node *n)
{
	union {
		struct file_handle h;
		char room[sizeof(struct file_handle) + HANDLE_MAX];
	} u = { .h = { .handle_bytes = HANDLE_MAX } };
	struct work_mark *m = calloc(1, sizeof(*m));
	int mount_id;

	if (!m || name_to_handle_at(n->fd, "", &u.h, &mount_id, AT_EMPTY_PATH) < 0) {
		free(m);
		return NULL;
	}
	m->n = n;
	m->len = u.h.handle_bytes;
	m->type = u.h.handle_type;
	memcpy(m->bytes, u.h.f_handle, m->len);
	return m;
}

static int mark(struct work_watch *w, unsigned how, int fd)
{
	uint64_t moves = FAN_MOVED_FROM | FAN_MOVED_TO;

	return fanotify_mark(w->fan, how | FAN_MARK_ONLYDIR,
			     EVENTS | (w->no_rename ? moves : RENAME_EVENT), AT_FDCWD,
			     work_path(fd).s);
}

/* Under the table's lock. */
static void drop_mark(struct work_watch *w, struct work_node *n)
{
	struct work_mark **at = mark_bucket(w, n->mark->bytes, n->mark->len);

	while (*at != n->mark)
		at = &(*at)->next;
	*at = n->mark->next;
	w->n_marks--;
}

/* False: there are too many, or there is one already, which is looked through if that was asked. */
static bool enter_mark(struct work_watch *w, struct work_node *n, struct work_mark *m)
{
	struct work_table *t = w->t;
	bool ok;

	pthread_mutex_lock(&t->lock);
	ok = !n->mark && w->n_marks < w->max && n->work->root && n->is.dev == n->work->root->is.dev;
	if (ok) {
		struct work_mark **at = mark_bucket(w, m->bytes, m->len);

		m->next = *at;
		*at = m;
		w->n_marks++;
		n->mark = m;
		m->due_us = sbx_boot_us() + LOOK_AFTER_US;
		m->last_us = sbx_boot_us() + LOOK_LATEST_US;
		w->look |= m->look;
	}
	pthread_mutex_unlock(&t->lock);
	return ok;
}

/* The thread says so; it has been woken when there is something that is not said yet. */
static void left_out(struct work_watch *w)
{
	atomic_store(&w->unwatched_us, sbx_now_us());
	if (!atomic_exchange(&w->unsaid, true))
		work_watch_wake(w);
}

void work_watch_wake(struct work_watch *w)
{
	uint64_t one = 1;

	if (write(w->wake, &one, sizeof(one)) < 0)
		sbx_log(SBX_LOG_ERROR, "cannot tell the thread that watches workspaces");
}

/* Under the table's lock. */
static bool was_looked_through(const struct work_watch *w, const struct work_node *n)
{
	for (size_t i = 0; i < LOOKED; i++)
		if (work_same(&w->looked[i], &n->is))
			return true;
	return false;
}

/* It may be told of just now, with things in it that nobody has heard of. The kernel looks a name
 * up twice, and forgets what it heard first, when it is not as it was. */
static bool made_just_now(const struct work_watch *w, const struct work_node *n)
{
	int64_t born = n->is.born.tv_sec * SBX_SECOND_US + n->is.born.tv_nsec / 1000;

	return sbx_now_us() - born < FRESH_US && !was_looked_through(w, n);
}

/* Under the table's lock. */
static void put_off(struct work_mark *m)
{
	int64_t at = sbx_boot_us() + LOOK_AFTER_US;

	m->due_us = at < m->last_us ? at : m->last_us;
}

/* n is pinned: its descriptor is not closed before there is a mark, nor afterwards. */
static void add_mark(struct work_watch *w, struct work_node *n, bool look)
{
	struct work_mark *m = new_mark(n);
	bool ok;

	if (!m) {
		left_out(w);
		return;
	}
	m->look = look;
	pthread_mutex_lock(&w->order);
	ok = enter_mark(w, n, m);
	if (ok && mark(w, FAN_MARK_ADD, n->fd) < 0) {
		pthread_mutex_lock(&w->t->lock);
		drop_mark(w, n);
		n->mark = NULL;
		pthread_mutex_unlock(&w->t->lock);
		left_out(w);
		ok = false;
	}
	pthread_mutex_unlock(&w->order);
	if (!ok)
		free(m);
	else if (look)
		work_watch_wake(w);
}

void work_watch(struct work_node *n, bool fresh)
{
	struct work_watch *w = n->work->f->work->watch;
	bool ok, full, look;

	if (!w || !S_ISDIR(n->is.type))
		return;
	pthread_mutex_lock(&w->t->lock);
	ok = !n->mark;
	if (!ok && fresh)
		put_off(n->mark);
	full = w->n_marks >= w->max;
	look = fresh && made_just_now(w, n);
	pthread_mutex_unlock(&w->t->lock);
	if (ok && full)
		left_out(w);
	if (!ok || full)
		return;
	work_pin_more(n);
	add_mark(w, n, look);
	work_unpin(n);
}

void work_unhash_mark(struct work_node *n)
{
	if (n->mark)
		drop_mark(n->work->f->work->watch, n);
}

/* Another node may be of the same directory by now. */
void work_unwatch(struct work_node *n)
{
	struct work_watch *w = n->work->f->work->watch;
	struct work_mark *m = n->mark;
	bool other;

	if (!m)
		return;
	pthread_mutex_lock(&w->order);
	pthread_mutex_lock(&w->t->lock);
	other = work_mark_find(w, m->bytes, m->len, m->type) != NULL;
	pthread_mutex_unlock(&w->t->lock);
	if (!other)
		(void)mark(w, FAN_MARK_REMOVE, n->fd);
	pthread_mutex_unlock(&w->order);
	free(m);
}

void work_look_through(struct work_node *n, int64_t since_us, bool replaced)
{
	struct work_watch *w = n->work->f->work->watch;

	if (!w)
		return;
	pthread_mutex_lock(&w->t->lock);
	if (n->mark) {
		n->mark->look = true;
		n->mark->since_us = since_us;
		n->mark->replaced |= replaced;
		n->mark->due_us = 0;
		w->look = true;
	}
	pthread_mutex_unlock(&w->t->lock);
	work_watch_wake(w);
}

int work_mark_try(struct work_watch *w)
{
	int fd = store_dir_fd(w->t->f->store), r = mark(w, FAN_MARK_ADD, fd);

	if (r < 0 && errno == EINVAL) {
		w->no_rename = true;
		r = mark(w, FAN_MARK_ADD, fd);
	}
	if (r == 0)
		r = mark(w, FAN_MARK_REMOVE, fd);
	return r;
}
