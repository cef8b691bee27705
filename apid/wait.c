/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests that wait for the end of a run or of a session. They are suspended, so that no thread is
 * held; the watcher follows the feed and continues them when it has come, when their time is over,
 * or when the client has gone, whatever comes first.
 */
#include <limits.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "apid/apid_i.h"
#include "base/clock.h"
#include "base/log.h"

enum {
	BUCKETS = 1024,
	CHANGES_BATCH = 64,
	LAST_ANSWERS_SEC = 2, /* for those who wait when the service stops */
};

enum what { ANYTHING, A_RUN, A_SESSION };

struct waiter {
	struct waiter *next;
	struct req *q;
	enum what what;
	/* What epoll says: never used again, unlike an address, and modulo BUCKETS its bucket. */
	uint64_t id;
	int64_t row, until_us;
	int fd; /* of the connection; borrowed */
};

enum { ID_WAKE = 1, ID_FEED, ID_FIRST = BUCKETS };

struct waiting {
	struct apid *a;
	pthread_t thread;
	bool started;
	int epoll, feed, wake; /* owned */
	int64_t seq;	       /* of the last change looked at; the watcher's */
	int64_t look_us;       /* when to look again after the store failed; the watcher's */
	pthread_mutex_t lock;  /* everything below */
	struct waiter *by_row[BUCKETS]; /* row of a run or of a session */
	size_t sessions;		/* how many wait for one */
	uint64_t last_id;
	int64_t first_until_us; /* no later than the first deadline */
	bool over;
	size_t unanswered;	 /* requests that were suspended and are not completed */
	pthread_cond_t answered; /* by CLOCK_MONOTONIC; it is 0 */
};

static struct waiter **bucket(struct waiting *w, int64_t row)
{
	return &w->by_row[(uint64_t)row % BUCKETS];
}

/* Under the lock. */
static void go_on(struct waiting *w, struct waiter *one, enum wait_end why)
{
	(void)epoll_ctl(w->epoll, EPOLL_CTL_DEL, one->fd, NULL);
	w->sessions -= one->what == A_SESSION;
	one->q->continued = why;
	MHD_resume_connection(one->q->conn);
	free(one);
}

/* Continues everybody who waits for such a thing in this row (0: in any) and is due at now. */
static void sweep_list(struct waiting *w, struct waiter **at, enum what what, int64_t row,
		       int64_t now, enum wait_end why)
{
	struct waiter *one;

	while ((one = *at)) {
		if ((what == ANYTHING || one->what == what) && (row == 0 || one->row == row) &&
		    one->until_us <= now) {
			*at = one->next;
			go_on(w, one, why);
		} else {
			at = &one->next;
		}
	}
}

/* A change does not say whose session a run was of: all that wait for one look. */
static void run_ended(struct waiting *w, int64_t row)
{
	pthread_mutex_lock(&w->lock);
	sweep_list(w, bucket(w, row), A_RUN, row, INT64_MAX, WAIT_ENDED);
	for (size_t i = 0; w->sessions && i < BUCKETS; i++)
		sweep_list(w, &w->by_row[i], A_SESSION, 0, INT64_MAX, WAIT_LOOK);
	pthread_mutex_unlock(&w->lock);
}

static void session_changed(struct waiting *w, int64_t row)
{
	pthread_mutex_lock(&w->lock);
	sweep_list(w, bucket(w, row), A_SESSION, row, INT64_MAX, WAIT_LOOK);
	pthread_mutex_unlock(&w->lock);
}

static void client_gone(struct waiting *w, uint64_t id)
{
	struct waiter **at = &w->by_row[id % BUCKETS];

	pthread_mutex_lock(&w->lock);
	while (*at && (*at)->id != id)
		at = &(*at)->next;
	if (*at) { /* else it has gone on already */
		struct waiter *one = *at;

		*at = one->next;
		go_on(w, one, WAIT_GONE);
	}
	pthread_mutex_unlock(&w->lock);
}

/* Continues those whose time is over; how long to sleep then, in milliseconds. */
static int look_at_time(struct waiting *w)
{
	int64_t now = sbx_boot_us(), first = INT64_MAX;

	pthread_mutex_lock(&w->lock);
	if (w->first_until_us <= now) {
		for (size_t i = 0; i < BUCKETS; i++) {
			sweep_list(w, &w->by_row[i], ANYTHING, 0, now, WAIT_TIME);
			for (struct waiter *one = w->by_row[i]; one; one = one->next)
				if (one->until_us < first)
					first = one->until_us;
		}
		w->first_until_us = first;
	}
	first = w->first_until_us;
	pthread_mutex_unlock(&w->lock);
	first = first < w->look_us ? first : w->look_us;
	if (first == INT64_MAX)
		return -1;
	first = first <= now ? 0 : (first - now) / 1000 + 1;
	return first > INT_MAX ? INT_MAX : (int)first;
}

/* ---- following ------------------------------------------------------------------------------- */

/* After a gap in the feed everything is looked at: by the handlers, who then wait again. */
static void look_at_all(struct waiting *w, enum wait_end why)
{
	pthread_mutex_lock(&w->lock);
	for (size_t i = 0; i < BUCKETS; i++)
		sweep_list(w, &w->by_row[i], ANYTHING, 0, INT64_MAX, why);
	pthread_mutex_unlock(&w->lock);
}

static void read_changes(struct waiting *w)
{
	struct store_change c[CHANGES_BATCH];
	int n;

	w->look_us = INT64_MAX;
	do {
		bool gap = false;

		n = store_changes(w->a->store, w->seq, c, CHANGES_BATCH, &gap, NULL);
		if (gap)
			look_at_all(w, WAIT_LOOK);
		if (n < 0) /* it may answer again by then */
			w->look_us = sbx_boot_us() + SBX_SECOND_US;
		for (int i = 0; i < n; i++) {
			w->seq = c[i].seq;
			if (strcmp(c[i].kind, "run") == 0 &&
			    store_phase_terminal(store_phase_find(c[i].phase)))
				run_ended(w, c[i].row);
			else if (strcmp(c[i].kind, "session") == 0)
				session_changed(w, c[i].row);
		}
	} while (n == CHANGES_BATCH);
}

static bool is_over(struct waiting *w)
{
	uint64_t count;
	bool over;

	if (read(w->wake, &count, sizeof(count)) < 0)
		return false;
	pthread_mutex_lock(&w->lock);
	over = w->over;
	pthread_mutex_unlock(&w->lock);
	return over;
}

static void *watcher(void *arg)
{
	struct waiting *w = arg;
	struct epoll_event ev[64];

	read_changes(w);
	for (;;) {
		int n = epoll_wait(w->epoll, ev, SBX_COUNT(ev), look_at_time(w));

		if (w->look_us <= sbx_boot_us())
			read_changes(w);
		for (int i = 0; i < n; i++) {
			if (ev[i].data.u64 >= ID_FIRST) {
				client_gone(w, ev[i].data.u64);
			} else if (ev[i].data.u64 == ID_FEED) {
				store_feed_drain(w->feed);
				read_changes(w);
			} else if (is_over(w)) {
				return NULL;
			}
		}
	}
}

static void wake(struct waiting *w)
{
	uint64_t one = 1;

	if (write(w->wake, &one, sizeof(one)) < 0)
		sbx_log(SBX_LOG_ERROR, "cannot wake the watcher");
}

/* Has the run ended while it was being added? Then nobody will say so again. */
static void look_again(struct waiting *w, const char *run_id, int64_t row)
{
	struct store_run_key key;

	if (store_run_key(w->a->store, run_id, NULL, &key, NULL) < 0 ||
	    store_phase_terminal(key.phase))
		run_ended(w, row);
}

/* Under the lock. */
static void count(struct waiting *w, struct req *q)
{
	w->unanswered += !q->waited;
	q->waited = true;
}

static bool add(struct req *q, enum what what, int64_t row, int64_t until_us)
{
	struct waiting *w = q->a->waiting;
	struct waiter *one = calloc(1, sizeof(*one));
	struct epoll_event ev = { .events = EPOLLRDHUP | EPOLLONESHOT };
	bool first;

	if (!one)
		return false;
	one->q = q;
	one->what = what;
	one->row = row;
	one->until_us = until_us;
	one->fd = req_socket(q);
	pthread_mutex_lock(&w->lock);
	if (w->over) {
		pthread_mutex_unlock(&w->lock);
		free(one);
		return false;
	}
	ev.data.u64 = one->id = ++w->last_id * BUCKETS + (uint64_t)row % BUCKETS;
	first = until_us < w->first_until_us;
	if (first)
		w->first_until_us = until_us;
	one->next = *bucket(w, row);
	*bucket(w, row) = one;
	w->sessions += what == A_SESSION;
	count(w, q);
	MHD_suspend_connection(q->conn);
	/* Without it a client that has gone is noticed when the run ends. */
	(void)epoll_ctl(w->epoll, EPOLL_CTL_ADD, one->fd, &ev);
	pthread_mutex_unlock(&w->lock);
	if (first)
		wake(w);
	return true;
}

bool waiting_add(struct req *q, const char *run_id, int64_t row, int64_t until_us)
{
	if (!add(q, A_RUN, row, until_us))
		return false;
	look_again(q->a->waiting, run_id, row);
	return true;
}

bool waiting_add_session(struct req *q, const char *session_id, int64_t row, int64_t until_us)
{
	enum orch_ending how = ORCH_GONE;

	if (!add(q, A_SESSION, row, until_us))
		return false;
	if (orch_session_ending(q->a->orch, session_id, &how, NULL) < 0 || how != ORCH_ENDING)
		session_changed(q->a->waiting, row);
	return true;
}

bool waiting_hold(struct req *q)
{
	struct waiting *w = q->a->waiting;
	bool over;

	pthread_mutex_lock(&w->lock);
	over = w->over;
	if (!over)
		count(w, q);
	pthread_mutex_unlock(&w->lock);
	return !over;
}

void waiting_done(struct req *q)
{
	struct waiting *w = q->a->waiting;

	if (!q->waited)
		return;
	q->waited = false;
	pthread_mutex_lock(&w->lock);
	if (--w->unanswered == 0)
		pthread_cond_signal(&w->answered);
	pthread_mutex_unlock(&w->lock);
}

/* ---- life ------------------------------------------------------------------------------------ */

static int set_up(struct waiting *w, struct sbx_error *e)
{
	struct epoll_event feed = { .events = EPOLLIN, .data.u64 = ID_FEED };
	struct epoll_event stop = { .events = EPOLLIN, .data.u64 = ID_WAKE };
	int rc = store_changes_last(w->a->store, &w->seq, e);

	if (rc < 0)
		return rc;
	w->feed = store_feed_watch(w->a->store, e);
	if (w->feed < 0)
		return w->feed;
	w->epoll = epoll_create1(EPOLL_CLOEXEC);
	w->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->feed, &feed) < 0 ||
	    epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->wake, &stop) < 0)
		return sbx_fail_errno(e, SBX_E_INTERNAL, errno, "cannot follow the feed");
	return 0;
}

int waiting_start(struct apid *a, struct waiting **ret, struct sbx_error *e)
{
	struct waiting *w = calloc(1, sizeof(*w));
	pthread_condattr_t clock;
	int rc;

	if (!w)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	*ret = w;
	w->a = a;
	w->epoll = w->feed = w->wake = -1;
	w->first_until_us = INT64_MAX;
	pthread_mutex_init(&w->lock, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&w->answered, &clock);
	pthread_condattr_destroy(&clock);
	rc = set_up(w, e);
	if (rc < 0)
		return rc;
	rc = pthread_create(&w->thread, NULL, watcher, w);
	if (rc != 0)
		return sbx_fail_errno(e, SBX_E_INTERNAL, rc, "cannot start the watcher");
	w->started = true;
	return 0;
}

/* libmicrohttpd, when it is stopped, cuts off what it has not sent. */
void waiting_flush(struct waiting *w)
{
	struct timespec until;

	if (!w)
		return;
	(void)clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += LAST_ANSWERS_SEC;
	pthread_mutex_lock(&w->lock);
	while (w->unanswered && pthread_cond_timedwait(&w->answered, &w->lock, &until) == 0)
		;
	pthread_mutex_unlock(&w->lock);
}

void waiting_end(struct waiting *w)
{
	if (!w)
		return;
	pthread_mutex_lock(&w->lock);
	w->over = true;
	pthread_mutex_unlock(&w->lock);
	if (w->started) {
		wake(w);
		pthread_join(w->thread, NULL);
		w->started = false;
	}
	look_at_all(w, WAIT_TIME);
}

struct waiting *waiting_free(struct waiting *w)
{
	if (!w)
		return NULL;
	sbx_closep(&w->epoll);
	sbx_closep(&w->feed);
	sbx_closep(&w->wake);
	pthread_cond_destroy(&w->answered);
	pthread_mutex_destroy(&w->lock);
	free(w);
	return NULL;
}
