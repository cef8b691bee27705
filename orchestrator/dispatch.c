/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dispatcher: one thread of each door that hands waiting runs to idle runners, ends what waited
 * or ran beyond its time, and calls the janitor. It sleeps until the feed, a runner or the next
 * deadline wakes it; an idle system costs nothing.
 */
#include "orchestrator/session_i.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include "base/clock.h"
#include "base/crash.h"
#include "base/fs.h"
#include "base/log.h"
#include "store/log.h"

/* A run whose runner dies before it executes is tried again, but one that kills them all is not. */
enum { MAX_CLAIMS = 5 };
enum { HAND_OUT_MAX = 16 }; /* runs claimed in one transaction */

void dispatch_wake(struct orch *o)
{
	uint64_t one = 1;

	/* The counter cannot overflow in practice, and a full one is a wake-up as well. */
	if (write(o->wake_fd, &one, sizeof(one)) < 0)
		return;
}

/* ---- ends that somebody else must write ------------------------------------------------------ */

/* Has the runner passed the point after which the command may have executed? It leaves its mark
 * right before. *ret_started_us: when, as far as that is known. */
static bool may_have_executed(struct orch *o, const struct store_run *r, int64_t *ret_started_us)
{
	struct store_mark m;

	if (r->phase == STORE_RUNNING)
		return true;
	/* The claim was made durable, the mark was not: after a power cut its absence tells
	 * nothing. */
	if (r->claim_boot && strcmp(r->claim_boot, sbx_boot_id()) != 0)
		return true;
	if (!r->claim_owner || store_mark_read(o->store, r->claim_owner, &m, NULL) < 0)
		return true; /* not knowing, the safe answer is yes: never execute twice */
	if (m.generation != r->generation || strcmp(m.run_id, r->id) != 0)
		return false;
	*ret_started_us = m.started_us;
	return true;
}

/* It waits anew, with a whole time to live: the delay was not the client's. */
static int requeue(struct orch *o, struct store_tx *tx, const struct store_run *r, bool *done,
		   struct sbx_error *e)
{
	int64_t ttl = orch_settings(o)->queue_ttl_sec * SBX_SECOND_US;
	struct store_transition t = { .id = r->id,
				      .from = STORE_MASK(STORE_STARTING),
				      .generation = r->generation,
				      .to = STORE_QUEUED,
				      .reason = "queued",
				      .queue_expires_us = sbx_boot_us() + ttl,
				      .requeue = true };

	return store_tx_run_transition(tx, &t, done, e);
}

static int end_lost(struct store_tx *tx, const struct store_run *r, const char *reason,
		    int64_t started_us, int64_t log_bytes, bool *done, struct sbx_error *e)
{
	enum store_phase to = strcmp(reason, "canceled_by_user") == 0 ? STORE_KILLED : STORE_FAILED;
	struct store_transition t = {
		.id = r->id,
		.from = STORE_MASK(STORE_STARTING) | STORE_MASK(STORE_RUNNING),
		.generation = r->generation,
		.to = to,
		.reason = reason,
		.message = reason,
		.started_us = started_us,
		.finished_us = sbx_now_us(),
		.log_bytes = log_bytes,
	};

	return store_tx_run_transition(tx, &t, done, e);
}

static int64_t log_bytes(struct orch *o, const char *id)
{
	struct log_reader *log = NULL;
	int64_t bytes;

	if (log_reader_open(o->store, id, &log, NULL) < 0)
		return 0;
	bytes = log_reader_size(log, LOG_VIEW_ALL);
	log_reader_close(log);
	return bytes;
}

/* What its runner had copied when it died belongs to no row and would never be removed. */
static void drop_artifacts(struct orch *o, const char *id)
{
	sbx_autoclose int dir = store_run_dir(o->store, id, false, NULL);

	if (dir >= 0)
		(void)sbx_remove_tree(dir, "artifacts");
}

/*
 * The claimant of r is gone: back into the queue if the command cannot have executed, else the end.
 * Files are looked at before the transaction; the generation in the compare-and-set makes
 * sure that nothing happened to the row since. One that cannot be ended may execute the run yet.
 */
static int take_over(struct orch *o, const struct store_run *r, bool gone, const char *reason,
		     struct sbx_error *e)
{
	int64_t started_us = 0;
	bool begun = may_have_executed(o, r, &started_us);
	bool again = gone && r->cancel == STORE_CANCEL_NONE && r->generation < MAX_CLAIMS && !begun;
	int64_t bytes = again ? 0 : log_bytes(o, r->id);
	store_autotx struct store_tx *tx = NULL;
	bool done = false;
	int rc;

	/* A cancelled run whose runner died is what the user asked for: gone. */
	if (r->cancel != STORE_CANCEL_NONE)
		reason = "canceled_by_user";
	if (gone && !again)
		drop_artifacts(o, r->id);
	rc = store_begin(o->store, &tx, e);
	if (rc == 0)
		rc = again ? requeue(o, tx, r, &done, e)
			   : end_lost(tx, r, reason, started_us, bytes, &done, e);
	crash_point("door_reap_marked");
	if (rc == 0)
		rc = store_commit(sbx_steal(&tx), true, e);
	crash_point("door_reap_committed");
	if (rc < 0 || !done)
		return rc;
	sbx_log(SBX_LOG_WARNING, "run lost its runner run=%s reason=%s outcome=%s", r->id, reason,
		again ? "queued_again" : "ended");
	return 0;
}

/* It died between the row and what follows it: the disk, the news. */
static int finish_end(struct orch *o, const struct store_run *r, struct sbx_error *e)
{
	store_autotx struct store_tx *tx = NULL;
	int rc = store_begin(o->store, &tx, e);

	if (rc == 0)
		rc = store_tx_change(tx, "run", r->row, r->id, "status", store_phase_name(r->phase),
				     r->user, e);
	return rc < 0 ? rc : store_commit(sbx_steal(&tx), true, e);
}

void dispatch_lost(struct orch *o, const char *id, int64_t generation)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	store_autorun r = { 0 };
	int rc = store_run_get(o->store, id, &r, &e);

	if (rc == 0 && store_phase_terminal(r.phase))
		rc = finish_end(o, &r, &e);
	else if (rc == 0 && r.generation == generation)
		rc = take_over(o, &r, true, "runner_lost", &e);
	if (rc < 0)
		sbx_log(SBX_LOG_ERROR, "cannot end a lost run run=%s error=\"%s\"", id, e.message);
}

/* Ends every run whose lease is over. */
static int reap_leases(struct orch *o, struct sbx_error *e)
{
	for (;;) {
		store_autorun r = { 0 };
		store_autotx struct store_tx *tx = NULL;
		int rc = store_begin(o->store, &tx, e);

		if (rc == 0)
			rc = store_tx_lease_expired(tx, sbx_boot_id(), sbx_boot_us(), &r, e);
		store_rollback(sbx_steal(&tx));
		if (rc == -SBX_E_RUN_NOT_FOUND)
			return 0;
		if (rc == 0) {
			bool lives = r.claim_owner && orch_owner_alive(r.claim_owner);

			/* What could not renew in time is no judge of whether it may go on. */
			rc = take_over(o, &r, !lives || orch_owner_kill(r.claim_owner),
				       lives ? "claim_lease_expired" : "runner_lost", e);
		}
		if (rc < 0)
			return rc;
	}
}

static int expire_queue(struct orch *o, struct sbx_error *e)
{
	for (;;) {
		store_autorun r = { 0 };
		store_autotx struct store_tx *tx = NULL;
		struct store_transition t;
		bool done = false;
		int rc = store_begin(o->store, &tx, e);

		if (rc == 0)
			rc = store_tx_queue_expired(tx, sbx_boot_id(), sbx_boot_us(), &r, e);
		if (rc == -SBX_E_RUN_NOT_FOUND)
			return 0;
		if (rc < 0)
			return rc;
		t = (struct store_transition){ .id = r.id,
					       .from = STORE_MASK(STORE_QUEUED),
					       .generation = r.generation,
					       .to = STORE_FAILED,
					       .reason = "queue_ttl_expired",
					       .message = "queue_ttl_expired",
					       .finished_us = sbx_now_us() };
		rc = store_tx_run_transition(tx, &t, &done, e);
		if (rc == 0)
			rc = store_commit(sbx_steal(&tx), true, e);
		if (rc < 0)
			return rc;
		crash_point("door_expire_committed");
	}
}

/* ---- handing out ----------------------------------------------------------------------------- */

/* One round for the runners that are idle now. *ret_more: there may be more of both. */
static int hand_out_some(struct orch *o, int64_t queued, int64_t *ret_n, bool *ret_more,
			 struct sbx_error *e)
{
	struct pool_runner *idle[HAND_OUT_MAX];
	struct admitted list[HAND_OUT_MAX];
	size_t n = 0, got = 0;
	int rc = 0;

	while (n < HAND_OUT_MAX && (int64_t)n < queued && (idle[n] = pool_take(o->pool))) {
		list[n].owner = pool_owner(idle[n]);
		n++;
	}
	if (n)
		rc = admit_next(o, list, n, &got, e);
	if (got)
		crash_point("door_dispatch_committed");
	for (size_t i = 0; i < n; i++) {
		struct orch_order order = { .generation = list[i].generation };

		if (i < got) {
			memcpy(order.id, list[i].id, sizeof(order.id));
			pool_assign(o->pool, idle[i], &order);
		} else {
			pool_give_back(o->pool, idle[i]);
		}
	}
	if (got)
		crash_point("door_dispatch_assigned");
	*ret_n = (int64_t)got;
	*ret_more = n == HAND_OUT_MAX && got == n;
	return rc;
}

/* Returns the number of runs still waiting. */
static int64_t hand_out(struct orch *o, struct sbx_error *e)
{
	int64_t queued = 0, active = 0, n = 0;
	bool more = orch_slots(o) > 0;
	int rc = store_counts(o->store, &queued, &active, e);

	while (rc == 0 && more && queued > 0) {
		rc = hand_out_some(o, queued, &n, &more, e);
		queued -= n;
	}
	return queued;
}

static void arm(int timer, int64_t at_boot_us)
{
	struct itimerspec its = { 0 };

	if (at_boot_us != INT64_MAX) {
		if (at_boot_us < 1)
			at_boot_us = 1;
		its.it_value.tv_sec = at_boot_us / SBX_SECOND_US;
		its.it_value.tv_nsec = (at_boot_us % SBX_SECOND_US) * 1000;
	}
	(void)timerfd_settime(timer, TFD_TIMER_ABSTIME, &its, NULL);
}

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* When something that waits for nobody is next to be done, boot clock. */
struct agenda {
	int64_t queue_at, lease_at;
	int64_t woken_at;   /* when the timer was to wake us */
	int64_t hold_until; /* no lease is judged before */
};

/*
 * After a suspend, or while the store could not be written, nobody could renew: the leases that ran
 * out meanwhile say nothing. Their holders get half a lease to come forward.
 */
static void mind_the_gap(struct orch *o, struct agenda *a, int64_t now, bool failed)
{
	int64_t lease = orch_settings(o)->run_claim_lease_sec * SBX_SECOND_US;

	if (failed || now > a->woken_at + 2 * SBX_SECOND_US)
		a->hold_until = now + lease / 2;
}

/* What is beyond its time; no store access while nothing is. */
static int due(struct orch *o, struct agenda *a, int64_t now, struct sbx_error *e)
{
	int rc = 0;

	if (a->lease_at < now && a->hold_until <= now)
		rc = reap_leases(o, e);
	if (rc == 0 && a->queue_at < now)
		rc = expire_queue(o, e);
	/* "Nothing is due" leaves no error behind. */
	if (rc == 0)
		sbx_error_clear(e);
	return rc;
}

/* One look at everything. Returns the boot time at which to look again without being told. */
static int64_t look(struct orch *o, struct agenda *a)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	int64_t queued = 0, now = sbx_boot_us();
	int rc;

	mind_the_gap(o, a, now, false);
	findings_follow(o);
	if (atomic_load(&o->sessions_ending))
		session_keeper_poke(o);
	(void)pool_events(o->pool);
	rc = due(o, a, now, &e);
	if (rc == 0)
		queued = hand_out(o, &e);
	pool_resize(o->pool, queued);
	if (rc == 0)
		rc = store_deadlines(o->store, &a->queue_at, &a->lease_at, &e);
	if (rc < 0 || e.code != SBX_OK) {
		sbx_log(SBX_LOG_ERROR, "dispatcher code=%s error=\"%s\"", sbx_code_name(e.code),
			e.message);
		/* A store that fails is tried again in a second, not in a loop. */
		a->queue_at = a->lease_at = 0;
		mind_the_gap(o, a, now, true);
		return now + SBX_SECOND_US;
	}
	if (a->lease_at < a->hold_until)
		a->lease_at = a->hold_until;
	/* Deadlines are compared with <, so a microsecond later is the first moment to act. */
	now = least(least(a->queue_at, a->lease_at), pool_next_us(o->pool));
	return now == INT64_MAX ? now : now + 1;
}

static int loop_open(struct orch *o, struct dispatch_loop *l, struct sbx_error *e)
{
	const struct {
		int fd;
	} watch[] = { { l->feed = store_feed_watch(o->store, e) },
		      { l->timer = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK) },
		      { o->wake_fd },
		      { pool_epoll_fd(o->pool) } };

	if (l->feed < 0)
		return l->feed;
	l->epoll = epoll_create1(EPOLL_CLOEXEC);
	for (size_t i = 0; i < SBX_COUNT(watch); i++) {
		struct epoll_event ev = { .events = EPOLLIN, .data.fd = watch[i].fd };

		if (epoll_ctl(l->epoll, EPOLL_CTL_ADD, watch[i].fd, &ev) < 0)
			return sbx_fail_errno(e, SBX_E_INTERNAL, errno,
					      "cannot set up the dispatcher");
	}
	return 0;
}

static void drain(int fd)
{
	uint64_t n;

	while (read(fd, &n, sizeof(n)) > 0)
		;
}

static void loop_close(struct dispatch_loop *l)
{
	sbx_closep(&l->epoll);
	sbx_closep(&l->feed);
	sbx_closep(&l->timer);
}

static void *dispatcher(void *arg)
{
	struct orch *o = arg;
	struct dispatch_loop *l = &o->loop;
	struct agenda agenda = { .woken_at = INT64_MAX / 2 }; /* the rest 0: everything is due */

	while (!atomic_load(&o->stop)) {
		struct epoll_event ev[8];

		agenda.woken_at = look(o, &agenda);
		arm(l->timer, agenda.woken_at);
		if (agenda.woken_at > INT64_MAX / 2)
			agenda.woken_at = INT64_MAX / 2;
		if (epoll_wait(l->epoll, ev, SBX_COUNT(ev), -1) < 0 && errno != EINTR)
			break;
		store_feed_drain(l->feed);
		drain(l->timer);
		drain(o->wake_fd);
	}
	return NULL;
}

/* Live runs whose claimant certainly is gone. */
struct dead {
	struct orch *o;
	struct {
		char id[37];
		int64_t generation;
	} list[256];
	size_t n;
};

static bool note_dead(void *ctx, const struct store_run *r)
{
	struct dead *d = ctx;

	if (r->claim_owner && !orch_owner_alive(r->claim_owner)) {
		(void)snprintf(d->list[d->n].id, sizeof(d->list[d->n].id), "%s", r->id);
		d->list[d->n++].generation = r->generation;
	} else if (r->cancel != STORE_CANCEL_NONE) {
		/* Who wrote that may have died before it could ring. */
		(void)store_run_ring(d->o->store, r->id);
	}
	return d->n < SBX_COUNT(d->list);
}

/* Runs that a process which no longer exists had claimed: no need to wait for their leases. More
 * than one batch of them is left to the leases. */
static void reap_dead_owners(struct orch *o)
{
	for (enum store_phase ph = STORE_STARTING; ph <= STORE_RUNNING; ph++) {
		const struct store_run_filter f = { .phase = ph, .limit = 1000 };
		struct dead d = { .o = o };

		(void)store_run_list(o->store, &f, note_dead, &d, NULL);
		for (size_t i = 0; i < d.n; i++)
			dispatch_lost(o, d.list[i].id, d.list[i].generation);
	}
}

int dispatch_start_thread(pthread_t *ret, void *(*run)(void *), struct orch *o)
{
	sigset_t all, old;
	int r;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &old);
	r = pthread_create(ret, NULL, run, o);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return r;
}

int dispatch_start(struct orch *o, struct sbx_error *e)
{
	int r;

	reap_dead_owners(o);
	o->pool = pool_new(o, e);
	if (!o->pool)
		return -SBX_E_NO_MEMORY;
	r = loop_open(o, &o->loop, e);
	if (r < 0) {
		loop_close(&o->loop);
		return r;
	}
	r = session_keeper_start(o, e); /* the others poke it */
	if (r < 0)
		return r;
	r = dispatch_start_thread(&o->dispatcher, dispatcher, o);
	o->dispatching = r == 0;
	if (r == 0) {
		r = dispatch_start_thread(&o->janitor, janitor_thread, o);
		o->cleaning = r == 0;
	}
	return r == 0 ? 0 : sbx_fail_errno(e, SBX_E_INTERNAL, r, "cannot start a thread");
}

void dispatch_stop(struct orch *o)
{
	atomic_store(&o->stop, true);
	if (o->cleaning) {
		janitor_wake(o);
		pthread_join(o->janitor, NULL);
		o->cleaning = false;
	}
	if (o->dispatching) {
		dispatch_wake(o);
		pthread_join(o->dispatcher, NULL);
		o->dispatching = false;
		loop_close(&o->loop);
	}
	session_keeper_stop(o); /* after those that poke it */
	o->pool = pool_free(o->pool);
}
