/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many bytes a workspace has. It is measured when that is first asked, and from then on what
 * goes through the mount is counted. What others do is not seen, so it is measured again after a
 * run, and before somebody hears that it is full.
 */
#include "fsd/work_i.h"

#include <fcntl.h>

#include "base/clock.h"
#include "base/fs.h"

enum { MEASURE_EVERY_US = 1000000 };

/* Bytes of removed files that somebody still has open. */
static int64_t removed_bytes(struct work *w)
{
	struct work_table *t = w->f->work;
	int64_t sum = 0;

	pthread_mutex_lock(&t->lock);
	for (const struct work_node *n = w->nodes; n; n = n->in_work)
		sum += n->extra;
	pthread_mutex_unlock(&t->lock);
	return sum;
}

/* What is written meanwhile may count twice: it is measured again before that does harm. */
static void measure(struct work *w, int root)
{
	sbx_autoclose int tree = sbx_open_beneath(root, ".", O_RDONLY | O_DIRECTORY, 0);
	int64_t before = atomic_load(&w->used);
	struct snap_sums sums;

	if (tree < 0 || snap_measure(tree, &sums, NULL) < 0)
		return;
	atomic_fetch_add(&w->used, sums.bytes + removed_bytes(w) - before);
	atomic_store(&w->measured_us, sbx_boot_us());
	atomic_store(&w->measured, true);
}

int64_t work_used(struct work *w, int root)
{
	if (!atomic_load(&w->measured))
		measure(w, root);
	return atomic_load(&w->used);
}

static bool add(struct work *w, int64_t bytes)
{
	if (atomic_fetch_add(&w->used, bytes) + bytes <= w->cap)
		return true;
	atomic_fetch_sub(&w->used, bytes);
	return false;
}

static bool measure_and_add(struct work *w, int64_t bytes)
{
	struct work_node *root;

	if (bytes > w->cap || work_root(w->f, w->row, false, &root) < 0)
		return false;
	measure(w, root->fd);
	work_unpin(root);
	return add(w, bytes);
}

/* A removed file's bytes go when it does. */
static void count_removed(struct work_node *n, int64_t bytes)
{
	struct work_table *t = n->work->f->work;

	pthread_mutex_lock(&t->lock);
	if (!n->hashed)
		n->extra += bytes;
	pthread_mutex_unlock(&t->lock);
}

bool work_take(struct work_node *n, int64_t bytes)
{
	struct work *w = n->work;
	bool ok;

	if (bytes <= 0 || w->cap <= 0)
		return true;
	if (!atomic_load(&w->measured))
		ok = measure_and_add(w, bytes);
	else
		ok = add(w, bytes) ||
		     (sbx_boot_us() - atomic_load(&w->measured_us) > MEASURE_EVERY_US &&
		      measure_and_add(w, bytes));
	if (ok)
		count_removed(n, bytes);
	return ok;
}

void work_give(struct work_node *n, int64_t bytes)
{
	if (bytes <= 0 || n->work->cap <= 0)
		return;
	atomic_fetch_sub(&n->work->used, bytes);
	count_removed(n, -bytes);
}
