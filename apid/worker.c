/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What waits for the disk, or for others to give a workspace back, is done here, so that the
 * threads which answer requests do not wait for it. The request is suspended meanwhile.
 *
 * A snapshot waits until an upload has ended, and the end of an upload is a job as well: so there
 * is always a thread for jobs that wait for nobody, also for those of each user. Nor can one
 * session, or one user, take all the others.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "apid/apid_i.h"

enum {
	THREADS = 8,		 /* at most; most services need none */
	LOCKING = THREADS - 1,	 /* that may wait for a workspace */
	OF_A_USER = THREADS - 1, /* that work for one user */
	LOCKING_OF_A_USER = OF_A_USER - 1,
	QUEUE_MAX = 256,
	SESSION = 40, /* bytes of an id, the NUL included */
};

struct job {
	struct job *next;
	struct req *q; /* NULL: nobody waits for it */
	void (*work)(struct req *q);
	void (*alone)(void *what); /* when nobody waits */
	void *what;
	enum work_kind kind;
	char session[SESSION];
};

struct worker {
	pthread_mutex_t lock; /* everything below */
	pthread_cond_t more;
	struct job *first, **last;
	size_t queued, idle, n;
	pthread_t threads[THREADS];
	struct job *running[THREADS]; /* borrowed from its thread */
	bool over;
};

/* ---- which one is next, under the lock ------------------------------------------------------- */

static bool same_user(const struct job *a, const struct job *b)
{
	return a->q && b->q && strcmp(a->q->who.user, b->q->who.user) == 0;
}

static bool may_begin(const struct worker *w, const struct job *j)
{
	size_t locking = 0, same = 0, same_locking = 0;

	for (size_t i = 0; i < w->n; i++) {
		const struct job *r = w->running[i];
		bool locks = r && r->kind == WORK_LOCKS;

		if (!r)
			continue;
		if (locks && j->kind == WORK_LOCKS && j->session[0] &&
		    strcmp(r->session, j->session) == 0)
			return false;
		locking += locks;
		same += same_user(r, j);
		same_locking += locks && same_user(r, j);
	}
	if (j->kind == WORK_GIVES)
		return same < OF_A_USER;
	return locking < LOCKING && same_locking < LOCKING_OF_A_USER;
}

static struct job *take(struct worker *w)
{
	for (struct job **at = &w->first; *at; at = &(*at)->next) {
		struct job *j = *at;

		if (!may_begin(w, j))
			continue;
		*at = j->next;
		if (!j->next)
			w->last = at;
		w->queued--;
		return j;
	}
	return NULL;
}

/* ---- threads --------------------------------------------------------------------------------- */

static void finish(struct job *j)
{
	if (j->q) {
		j->q->continued = WAIT_WORKED;
		MHD_resume_connection(j->q->conn);
	}
	free(j);
}

static void do_it(struct job *j)
{
	if (j->q)
		j->work(j->q);
	else
		j->alone(j->what);
}

struct seat {
	struct worker *w;
	size_t i;
};

static void *worker(void *arg)
{
	struct seat seat = *(struct seat *)arg;
	struct worker *w = seat.w;

	free(arg);
	pthread_mutex_lock(&w->lock);
	for (;;) {
		struct job *j = take(w);

		if (j) {
			w->running[seat.i] = j;
			pthread_mutex_unlock(&w->lock);
			do_it(j);
			pthread_mutex_lock(&w->lock);
			w->running[seat.i] = NULL;
			finish(j);
			pthread_cond_broadcast(&w->more); /* others may begin now */
		} else if (w->over) {
			break;
		} else {
			w->idle++;
			pthread_cond_wait(&w->more, &w->lock);
			w->idle--;
		}
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

/* Under the lock. False when there is not one thread. */
static bool have_threads(struct worker *w)
{
	struct seat *seat;

	if (w->n == THREADS || w->queued < w->idle)
		return true;
	seat = malloc(sizeof(*seat));
	if (seat)
		*seat = (struct seat){ .w = w, .i = w->n };
	if (seat && pthread_create(&w->threads[w->n], NULL, worker, seat) == 0)
		w->n++;
	else
		free(seat);
	return w->n > 0;
}

/* ---- giving work ----------------------------------------------------------------------------- */

/* Under the lock. */
static void append(struct worker *w, struct job *j)
{
	*w->last = j;
	w->last = &j->next;
	w->queued++;
	pthread_cond_signal(&w->more);
}

static int refuse(bool over, struct sbx_error *e)
{
	if (over)
		return sbx_fail(e, SBX_E_INTERRUPTED, "the service stops; nothing was done");
	(void)sbx_fail(e, SBX_E_QUEUE_FULL, "too much is waiting for the disk");
	return sbx_error_details(e, "{\"retry_after\":1,\"reason\":\"workers_busy\",\"limit\":%d}",
				 QUEUE_MAX);
}

bool worker_add(struct req *q, const char *session_id, enum work_kind kind,
		void (*work)(struct req *q), struct sbx_error *e)
{
	struct worker *w = q->a->worker;
	struct job *j = calloc(1, sizeof(*j));
	bool done = false, over;

	if (!j) {
		(void)sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
		return false;
	}
	j->q = q;
	j->kind = kind;
	j->work = work;
	(void)snprintf(j->session, sizeof(j->session), "%s", session_id);
	pthread_mutex_lock(&w->lock);
	over = w->over || !waiting_hold(q);
	if (over || w->queued >= QUEUE_MAX || !have_threads(w)) {
		(void)refuse(over, e);
	} else {
		MHD_suspend_connection(q->conn);
		append(w, j);
		done = true;
	}
	pthread_mutex_unlock(&w->lock);
	if (!done)
		free(j);
	return done;
}

void worker_do(struct apid *a, void (*work)(void *what), void *what)
{
	struct worker *w = a->worker;
	struct job *j = calloc(1, sizeof(*j));
	bool done = false;

	if (j) {
		j->kind = WORK_GIVES;
		j->alone = work;
		j->what = what;
		pthread_mutex_lock(&w->lock);
		done = !w->over && have_threads(w);
		if (done)
			append(w, j);
		pthread_mutex_unlock(&w->lock);
	}
	if (!done) {
		free(j);
		work(what);
	}
}

/* ---- life ------------------------------------------------------------------------------------ */

struct worker *worker_new(void)
{
	struct worker *w = calloc(1, sizeof(*w));

	if (!w)
		return NULL;
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->more, NULL);
	w->last = &w->first;
	return w;
}

/* Those that somebody waits for have not begun, and their answers say so; the others are done. */
static void clear_queue(struct worker *w)
{
	struct job *j;

	while ((j = w->first)) {
		w->first = j->next;
		if (!j->q)
			do_it(j);
		finish(j);
	}
	w->last = &w->first;
	w->queued = 0;
}

void worker_end(struct worker *w)
{
	if (!w)
		return;
	pthread_mutex_lock(&w->lock);
	w->over = true;
	clear_queue(w);
	pthread_cond_broadcast(&w->more);
	pthread_mutex_unlock(&w->lock);
	for (size_t i = 0; i < w->n; i++)
		pthread_join(w->threads[i], NULL);
	w->n = 0;
}

struct worker *worker_free(struct worker *w)
{
	if (!w)
		return NULL;
	pthread_cond_destroy(&w->more);
	pthread_mutex_destroy(&w->lock);
	free(w);
	return NULL;
}
