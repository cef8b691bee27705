/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing to the store may take as long as somebody else holds its lock, or a disk that stalls.
 * Requests that only read must not wait for that, so few server threads write themselves; what
 * comes while they are busy is queued for threads of its own. On a store that nobody holds up a
 * request finds a place among the few and is never handed over.
 *
 * Every operation that waits or writes stands in one list, under `lock`, so that an interrupt finds
 * it by its request: one that is still queued is taken out and was never begun; one that is under
 * way gives up its wait for the store's lock, in which nothing has been done yet, and else
 * finishes.
 */
#include "fsd/fsd_i.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

enum {
	WRITERS_HERE = 2,     /* server threads that may write at the same time */
	WRITERS = 4,	      /* threads that only write */
	WRITERS_QUEUED = 256, /* requests that wait for one of them */
	LATE_US = 100000,     /* no crowd takes so long on a store that nobody holds up */
};

struct writers {
	struct fsd *f;
	pthread_t threads[WRITERS];
	size_t n_threads;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct act *first, **end; /* in the order of arrival */
	size_t queued, here;
	bool turn_taken; /* a job of those that come by turns is under way */
	bool stop;
};

/* Both under the lock. */
static void put(struct writers *w, struct act *a)
{
	a->since_us = sbx_boot_us();
	a->next = NULL;
	a->at = w->end;
	*w->end = a;
	w->end = &a->next;
}

static void take(struct writers *w, struct act *a)
{
	*a->at = a->next;
	if (a->next)
		a->next->at = a->at;
	else
		w->end = a->at;
	if (a->queued && a->req)
		w->queued--;
	a->queued = false;
}

static void act_free(struct act *a)
{
	free(a->copy);
	free(a->job);
	free(a);
}

/* Of what has not been begun. The job may be one that is on the stack. */
static void refuse(struct writers *w, fuse_req_t req, struct job *j, int err)
{
	if (j && j->must_answer)
		j->answer(w->f, j, err);
	else
		fuse_reply_err(req, -err);
}

/* The data is not the operation: libfuse may call this for a request that is being answered. */
static void interrupted(fuse_req_t req, void *data)
{
	struct writers *w = data;
	struct act *a;
	bool queued;

	pthread_mutex_lock(&w->lock);
	for (a = w->first; a && a->req != req;)
		a = a->next;
	queued = a && a->queued;
	if (queued)
		take(w, a);
	else if (a)
		atomic_store(&a->give_up, true);
	pthread_mutex_unlock(&w->lock);
	if (queued) {
		refuse(w, req, a->job, -EINTR);
		act_free(a);
	} else if (a) {
		store_look_again(w->f->store);
	}
}

bool writers_late(struct writers *w)
{
	const struct act *a;
	bool late;

	pthread_mutex_lock(&w->lock);
	/* Some take their time, and whom one of them holds up stands in the list himself. */
	for (a = w->first; a && (a->job || a->slow);)
		a = a->next;
	late = a && sbx_boot_us() >= a->since_us + LATE_US;
	pthread_mutex_unlock(&w->lock);
	return late;
}

bool writers_here(struct writers *w, struct act *a)
{
	bool ok;

	pthread_mutex_lock(&w->lock);
	ok = w->here < WRITERS_HERE;
	if (ok) {
		w->here++;
		a->here = true;
		put(w, a);
	}
	pthread_mutex_unlock(&w->lock);
	if (ok && a->req)
		fuse_req_interrupt_func(a->req, interrupted, w);
	return ok;
}

void writers_done(struct writers *w, struct act *a)
{
	pthread_mutex_lock(&w->lock);
	if (a->at) { /* which its neighbours in the list write, too */
		take(w, a);
		a->at = NULL;
		if (a->here)
			w->here--;
	}
	pthread_mutex_unlock(&w->lock);
}

static struct act *copy_act(const struct act *a)
{
	struct act *copy = calloc(1, sizeof(*copy));

	if (!copy)
		return NULL;
	*copy = (struct act){ .req = a->req,
			      .h = a->h,
			      .what = a->what,
			      .len = a->len,
			      .off = a->off,
			      .slow = a->slow };
	if (a->data) {
		copy->data = copy->copy = malloc(a->len ? a->len : 1);
		if (!copy->copy) {
			free(copy);
			return NULL;
		}
		memcpy(copy->copy, a->data, a->len);
	}
	return copy;
}

/* Takes copy. */
static int give(struct writers *w, struct act *copy)
{
	fuse_req_t req = copy->req;
	int r = 0;

	pthread_mutex_lock(&w->lock);
	if (w->stop)
		r = -ENOTCONN;
	else if (req && w->queued >= WRITERS_QUEUED)
		r = -EAGAIN;
	else
		put(w, copy);
	pthread_mutex_unlock(&w->lock);
	if (r < 0) {
		act_free(copy);
		return r;
	}
	/* Nobody takes it yet, so the request is still ours. */
	if (req)
		fuse_req_interrupt_func(req, interrupted, w);
	pthread_mutex_lock(&w->lock);
	if (atomic_load(&copy->give_up)) {
		take(w, copy);
		r = -EINTR;
	} else {
		copy->queued = true;
		w->queued += req ? 1 : 0;
		pthread_cond_signal(&w->wake);
	}
	pthread_mutex_unlock(&w->lock);
	if (r < 0)
		act_free(copy);
	return r;
}

int writers_give(struct writers *w, const struct act *a)
{
	struct act *copy = copy_act(a);

	return copy ? give(w, copy) : -ENOMEM;
}

int writers_give_job(struct writers *w, const struct job *j)
{
	struct act *a = calloc(1, sizeof(*a));
	struct job *copy = malloc(sizeof(*copy));
	fuse_req_t req = j->req;
	int r = -ENOMEM;

	if (a && copy) {
		*copy = *j;
		a->req = req;
		a->job = copy;
		r = give(w, a);
	} else {
		free(copy);
		free(a);
	}
	if (r < 0) {
		struct job refused = *j;

		refuse(w, req, &refused, r);
	}
	return r;
}

/* Under the lock. */
static struct act *next_queued(struct writers *w)
{
	struct act *a = w->first;

	while (a && (!a->queued || (w->turn_taken && a->job && a->job->by_turns)))
		a = a->next;
	return a;
}

static void perform(struct writers *w, struct act *a)
{
	struct job *j = a->job;
	int r;

	if (!j) {
		control_perform(w->f, a);
		return;
	}
	store_give_up_when(&a->give_up);
	r = j->must_answer && atomic_load(&a->give_up) ? -EINTR : j->perform(w->f, j);
	store_give_up_when(NULL);
	writers_done(w, a);
	j->answer(w->f, j, r);
}

static void *writer_thread(void *arg)
{
	struct writers *w = arg;
	struct act *a;

	pthread_mutex_lock(&w->lock);
	for (;;) {
		bool turn;

		a = next_queued(w);
		if (!a && w->stop)
			break;
		if (!a) {
			pthread_cond_wait(&w->wake, &w->lock);
			continue;
		}
		a->queued = false;
		w->queued -= a->req ? 1 : 0;
		turn = a->job && a->job->by_turns;
		w->turn_taken |= turn;
		pthread_mutex_unlock(&w->lock);
		perform(w, a);
		act_free(a);
		pthread_mutex_lock(&w->lock);
		w->turn_taken &= !turn; /* and this thread looks for the next one */
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

struct writers *writers_start(struct fsd *f, struct sbx_error *e)
{
	struct writers *w = calloc(1, sizeof(*w));

	if (!w) {
		sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the writers");
		return NULL;
	}
	w->f = f;
	w->end = &w->first;
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->wake, NULL);
	for (; w->n_threads < WRITERS; w->n_threads++) {
		int r = pthread_create(&w->threads[w->n_threads], NULL, writer_thread, w);

		if (r != 0) {
			sbx_fail_errno(e, SBX_E_INTERNAL, r, "cannot start a writer");
			writers_stop(w);
			writers_free(w);
			return NULL;
		}
	}
	return w;
}

void writers_stop(struct writers *w)
{
	struct act *a, *next;

	if (!w)
		return;
	pthread_mutex_lock(&w->lock);
	w->stop = true;
	for (a = w->first; a; a = next) {
		next = a->next;
		if (!a->queued || !a->req)
			continue; /* under way, or a handle to be closed: that is done */
		take(w, a);
		refuse(w, a->req, a->job, -ENOTCONN);
		act_free(a);
	}
	pthread_cond_broadcast(&w->wake);
	pthread_mutex_unlock(&w->lock);
	while (w->n_threads > 0)
		pthread_join(w->threads[--w->n_threads], NULL);
}

void writers_free(struct writers *w)
{
	if (!w)
		return;
	pthread_cond_destroy(&w->wake);
	pthread_mutex_destroy(&w->lock);
	free(w);
}
