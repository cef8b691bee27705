/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How sessions end. "Ending" is a time in the row: from then on no run is let in, the runs there
 * are get cancelled, and when none is left the session goes, whoever asked for it and whether he
 * lives or not. When the time is over and runs are still there, it stays. Once there are no runs,
 * ending is final: what follows is done again after a crash until it is done.
 *
 * One thread of each door does that, and whichever comes first takes the session's lock.
 */
#include "orchestrator/session_i.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crash.h"
#include "base/fs.h"
#include "base/log.h"

enum {
	BATCH = 64,	 /* sessions, or runs of one, looked at in one go */
	LOCK_MS = 1000,	 /* for whoever is still copying the workspace */
	AGAIN_MS = 1000, /* after a failure of the store, or while a snapshot is taken */
};

/* ---- one session ----------------------------------------------------------------------------- */

/* What a session has many of, runs and their artifacts, each costs a sync of the disk. Whoever asks
 * that it ends does a part of that and leaves the rest to the keeper: others need the thread. */
enum pace { A_PART, THE_WHOLE };

/* None comes any more. */
static int cancel_runs(struct orch *o, const struct store_session *s, enum pace pace,
		       struct sbx_error *e)
{
	struct orch_principal owner = { .uid = -1, .admin = true, .door = "local" };
	char *ids[BATCH];
	int n, rc = 0;

	(void)snprintf(owner.user, sizeof(owner.user), "%s", s->user);
	do {
		n = store_session_uncancelled(o->store, s->id, ids, BATCH, e);
		for (int i = 0; i < n; i++) {
			bool done;

			if (rc == 0)
				rc = orch_run_cancel(o, &owner, ids[i], STORE_CANCEL_TERM, &done,
						     e);
			free(ids[i]);
		}
	} while (n == BATCH && rc == 0 && pace == THE_WHOLE);
	return n < 0 ? n : rc;
}

enum decision {
	BEGIN,	/* to end */
	EXPIRE, /* the same, if it still is beyond its time */
	STAY,	/* give it up */
	FINISH, /* no run is left, and none comes any more: from here on it cannot stay */
};

/* What holds only while the row is what it was: another thread or door may have decided, too. */
static int may(struct store_tx *tx, const struct store_session *now, enum decision what, bool *ret,
	       struct sbx_error *e)
{
	int64_t live = 0;
	int rc = 0;

	switch (what) {
	case BEGIN:
		*ret = !now->ending_us;
		break;
	case EXPIRE:
		*ret = !now->ending_us && now->expires_us && now->expires_us <= sbx_now_us();
		break;
	case STAY:
		*ret = now->ending_us && now->ending_us < STORE_ENDING_LOST;
		break;
	case FINISH:
		rc = store_tx_session_runs(tx, now->id, false, &live, e);
		*ret = rc == 0 && live == 0 && now->ending_us &&
		       now->ending_us != STORE_ENDING_FINAL;
		break;
	}
	return rc;
}

/* Writes a decision down, unless it came too late. s then has the times that the row has. */
static int decide(struct orch *o, struct store_session *s, enum decision what, int64_t ending_us,
		  struct sbx_error *e)
{
	store_autotx struct store_tx *tx = NULL;
	store_autosession now = { 0 };
	bool yes = false;
	int rc = store_begin(o->store, &tx, e);

	if (rc == 0)
		rc = store_tx_session_get(tx, s->id, &now, e);
	if (rc == 0)
		rc = may(tx, &now, what, &yes, e);
	if (rc == 0 && yes)
		rc = store_tx_session_times(tx, s->id, now.expires_us, ending_us, e);
	if (rc == 0 && yes)
		rc = store_commit(sbx_steal(&tx), true, e);
	if (rc < 0)
		return rc;
	s->expires_us = now.expires_us;
	s->ending_us = yes ? ending_us : now.ending_us;
	return 0;
}

struct runs {
	char ids[BATCH][37];
	size_t n;
	int64_t row;
};

static bool note_artifacts(void *ctx, const struct store_run *r)
{
	struct runs *list = ctx;

	list->row = r->row;
	if (r->artifact_count > 0 && !r->artifacts_gone)
		(void)snprintf(list->ids[list->n++], sizeof(list->ids[0]), "%s", r->id);
	return list->n < BATCH;
}

/* *ret_all: no run has any now. */
static int drop_artifacts(struct orch *o, const char *session_id, enum pace pace, bool *ret_all,
			  struct sbx_error *e)
{
	struct runs list = { .row = INT64_MAX };
	int rc = 0;

	do {
		const struct store_run_filter f = { .session_id = session_id,
						    .before_row = list.row,
						    .limit = STORE_LIST_MAX };

		list.row = 0;
		list.n = 0;
		rc = store_run_list(o->store, &f, note_artifacts, &list, e);
		for (size_t i = 0; i < list.n && rc == 0 && !atomic_load(&o->stop); i++)
			rc = janitor_drop_artifacts(o, list.ids[i], e);
	} while (rc == 0 && list.row && !atomic_load(&o->stop) &&
		 (pace == THE_WHOLE || list.n < BATCH));
	*ret_all = rc == 0 && !list.row;
	return rc;
}

static int drop_snapshots(struct orch *o, const char *session_id, struct sbx_error *e)
{
	struct store_snapshot list[BATCH];
	int64_t after = 0;
	int n;

	do {
		n = store_snapshot_list(o->store, session_id, after, list, BATCH, e);
		for (int i = 0; i < n; i++) {
			snap_drop(o->store, list[i].id);
			after = list[i].row;
			store_snapshot_clear(&list[i]);
		}
	} while (n == BATCH);
	return n < 0 ? n : 0;
}

static int drop_row(struct orch *o, const struct store_session *s, struct sbx_error *e)
{
	store_autotx struct store_tx *tx = NULL;
	const struct store_audit a = { .at_us = sbx_now_us(),
				       .user = s->user,
				       .door = s->door,
				       .action = "session",
				       .resource = s->id,
				       .result = "destroyed",
				       .details = "{}" };
	int rc = store_begin(o->store, &tx, e);

	if (rc == 0)
		rc = store_tx_session_drop(tx, s->id, e);
	if (rc == 0)
		rc = store_tx_audit(tx, &a, e);
	return rc < 0 ? rc : store_commit(sbx_steal(&tx), true, e);
}

/* The lock is held, and ending is final. Files first: what a crash leaves undone the row remembers.
 */
static int remove_all(struct orch *o, const struct store_session *s, enum pace pace, bool *ret,
		      struct sbx_error *e)
{
	int rc = session_may_go(o, pace == THE_WHOLE, ret, e);

	if (rc == 0 && *ret)
		rc = drop_artifacts(o, s->id, pace, ret, e);
	crash_point("door_session_artifacts_gone");
	if (rc < 0 || !*ret)
		return rc;
	rc = drop_snapshots(o, s->id, e);
	atomic_store(&o->garbage, true);
	crash_point("door_session_snapshots_gone");
	if (rc == 0)
		rc = store_session_dir_remove(o->store, s->id, e);
	crash_point("door_session_files_gone");
	if (rc == 0)
		rc = drop_row(o, s, e);
	crash_point("door_session_row_gone");
	/* Whoever came for the lock meanwhile has made its file anew. */
	if (rc == 0)
		(void)store_session_dir_remove(o->store, s->id, NULL);
	return rc;
}

/* *ret: it is gone. */
static int try_to_end(struct orch *o, struct store_session *s, enum pace pace, bool *ret,
		      struct sbx_error *e)
{
	sbx_autoclose int lock = -1;
	int rc = 0;

	*ret = false;
	if (s->ending_us != STORE_ENDING_FINAL)
		rc = decide(o, s, FINISH, STORE_ENDING_FINAL, e);
	if (rc == 0 && s->ending_us == STORE_ENDING_FINAL) {
		lock = store_session_lock(o->store, s->id, true, pace == A_PART ? 0 : LOCK_MS);
		if (lock < 0) /* somebody still reads or writes there, or is at it, too */
			return 0;
		rc = remove_all(o, s, pace, ret, e);
		*ret &= rc == 0;
	}
	if (rc == -SBX_E_SESSION_NOT_FOUND) { /* the other door was faster */
		sbx_error_clear(e);
		if (lock >= 0)
			(void)store_session_dir_remove(o->store, s->id, NULL);
		*ret = true;
		return 0;
	}
	return rc;
}

int orch_session_destroy(struct orch *o, const struct orch_principal *p, const char *id,
			 enum orch_ending *ret, struct sbx_error *e)
{
	int64_t now = sbx_now_us();
	store_autosession s = { 0 };
	bool gone = false;
	int rc = orch_session_get(o, p, id, &s, e);

	*ret = ORCH_ENDING;
	if (rc < 0)
		return rc;
	if (!s.ending_us) {
		rc = decide(o, &s, BEGIN,
			    now + orch_settings(o)->session_delete_drain_timeout_sec *
					    SBX_SECOND_US,
			    e);
		crash_point("door_session_ending");
	}
	if (rc < 0)
		return rc;
	(void)cancel_runs(o, &s, A_PART, NULL); /* the keeper does it again */
	rc = try_to_end(o, &s, A_PART, &gone, e);
	if (gone)
		*ret = ORCH_GONE;
	/* The rest, and what lies in the trash, is nothing that the caller waits for. */
	atomic_store(&o->sessions_ending, true);
	session_keeper_poke(o);
	return rc;
}

int orch_session_ending(struct orch *o, const char *id, enum orch_ending *ret, struct sbx_error *e)
{
	store_autosession s = { 0 };
	int64_t live = 0;
	int rc = store_session_get(o->store, id, &s, e);

	if (rc == -SBX_E_SESSION_NOT_FOUND) {
		sbx_error_clear(e);
		*ret = ORCH_GONE;
		return 0;
	}
	if (rc < 0)
		return rc;
	*ret = s.ending_us ? ORCH_ENDING : ORCH_STAYS;
	if (s.ending_us)
		return 0;
	(void)store_session_runs(o->store, id, false, &live, NULL);
	(void)sbx_fail(e, SBX_E_SESSION_DRAIN_TIMEOUT,
		       "%lld runs of session %s did not end in time; it stays", (long long)live,
		       id);
	(void)sbx_error_details(e,
				"{\"error\":\"session_cancel_drain_timeout\",\"active_runs\":%lld,"
				"\"session_id\":\"%s\"}",
				(long long)live, id);
	return -SBX_E_SESSION_DRAIN_TIMEOUT;
}

/* ---- what a crash left ----------------------------------------------------------------------- */

/* Beside a workspace stand only the trees that are being made or taken away, under the lock. */
static void tidy_beside(struct orch *o, const char *id)
{
	sbx_autoclose int dir = store_session_dir(o->store, id, false, NULL);
	struct dirent *d;
	DIR *list;

	if (dir < 0)
		return;
	list = fdopendir(dir);
	if (!list)
		return;
	(void)sbx_steal_fd(&dir);
	while ((d = readdir(list)))
		if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0 &&
		    strcmp(d->d_name, "workspace") != 0)
			(void)sbx_remove_tree(dirfd(list), d->d_name);
	closedir(list);
}

static bool tidy_one(void *ctx, const char *id)
{
	struct orch *o = ctx;
	store_autosession s = { 0 };
	/* Who makes, fills or replaces one has its lock. */
	sbx_autoclose int lock = store_session_lock(o->store, id, true, 0);
	int rc = lock < 0 ? lock : store_session_get(o->store, id, &s, NULL);

	if (rc == -SBX_E_SESSION_NOT_FOUND) {
		sbx_log(SBX_LOG_INFO, "removing a session directory without a row session=%s", id);
		(void)store_session_dir_remove(o->store, id, NULL);
	} else if (rc == 0) {
		tidy_beside(o, id);
	}
	return !atomic_load(&o->stop);
}

void session_tidy(struct orch *o)
{
	(void)store_session_dirs(o->store, tidy_one, o, NULL);
	atomic_store(&o->garbage, true);
}

/* ---- the keeper ------------------------------------------------------------------------------ */

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* What another door has ended meanwhile is no failure. */
static int unless_gone(int rc, struct sbx_error *e)
{
	if (rc != -SBX_E_SESSION_NOT_FOUND)
		return rc;
	sbx_error_clear(e);
	return 0;
}

/* Those beyond their time begin to end. */
static int expire(struct orch *o, int64_t *next_us, struct sbx_error *e)
{
	int64_t now = sbx_now_us();
	int64_t until = now + orch_settings(o)->session_delete_drain_timeout_sec * SBX_SECOND_US;
	struct store_session list[BATCH];
	int n = store_session_expiring(o->store, list, BATCH, e), rc = n < 0 ? n : 0;
	bool all = n == BATCH; /* there may be more of them */

	for (int i = 0; i < n; i++) {
		if (list[i].expires_us > now) {
			*next_us = least(*next_us, list[i].expires_us);
			all = false;
		} else if (rc == 0) {
			sbx_log(SBX_LOG_INFO, "session is over session=%s", list[i].id);
			rc = unless_gone(decide(o, &list[i], EXPIRE, until, e), e);
		}
		store_session_clear(&list[i]);
	}
	if (all && rc == 0)
		*next_us = least(*next_us, now);
	return rc;
}

static int end_one(struct orch *o, struct store_session *s, int64_t *next_us, bool *left,
		   struct sbx_error *e)
{
	int64_t now = sbx_now_us();
	bool gone = false;
	int rc = 0;

	/* Whoever began it may have died before he came to that. */
	if (s->ending_us != STORE_ENDING_FINAL)
		rc = cancel_runs(o, s, THE_WHOLE, e);
	if (rc == 0)
		rc = try_to_end(o, s, THE_WHOLE, &gone, e);
	if (rc < 0 || gone || !s->ending_us)
		return rc;
	if (s->ending_us > now) {
		*left = true;
		*next_us = least(*next_us, s->ending_us == STORE_ENDING_FINAL ? now : s->ending_us);
		return 0;
	}
	sbx_log(SBX_LOG_WARNING, "session stays, its runs did not end session=%s", s->id);
	return unless_gone(decide(o, s, STAY, 0, e), e);
}

/* True: tried again soon. What fails holds up nothing else, least of all what makes room. */
static bool has_failed(int rc, const char *id, struct sbx_error *e)
{
	if (rc >= 0)
		return false;
	sbx_log(SBX_LOG_WARNING, "cannot look after sessions session=%s code=%s error=\"%s\"", id,
		sbx_code_name(e->code), e->message);
	sbx_error_clear(e);
	return true;
}

/* True: something failed. */
static bool end_all(struct orch *o, int64_t *next_us, struct sbx_error *e)
{
	struct store_session list[BATCH], last = { 0 };
	bool left = false, failed = false;
	int n;

	do {
		n = store_session_ending(o->store, &last, list, BATCH, e);
		failed |= has_failed(n, "-", e);
		for (int i = 0; i < n; i++) {
			last.ending_us = list[i].ending_us;
			last.row = list[i].row;
			if (!atomic_load(&o->stop))
				failed |= has_failed(end_one(o, &list[i], next_us, &left, e),
						     list[i].id, e);
			store_session_clear(&list[i]);
		}
	} while (n == BATCH && !atomic_load(&o->stop));
	/* While some are ending, every end of a run is news. */
	atomic_store(&o->sessions_ending, left || failed);
	return failed;
}

/* Milliseconds until the next look, -1: when somebody says so. */
static int keep(struct orch *o)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	int64_t next = INT64_MAX, left;
	bool failed = has_failed(session_settle_all(o, &e), "-", &e);

	failed |= has_failed(expire(o, &next, &e), "-", &e);
	failed |= end_all(o, &next, &e);
	failed |= has_failed(store_trash_empty(o->store, &o->stop, &e), "-", &e);
	if (!atomic_load(&o->stop) && atomic_exchange(&o->garbage, false)) {
		int rc = snapshot_collect(o, &e);

		failed |= has_failed(rc, "-", &e) || rc > 0;
		if (rc != 0)
			atomic_store(&o->garbage, true);
	}
	if (failed)
		return AGAIN_MS;
	if (next == INT64_MAX)
		return -1;
	left = (next - sbx_now_us()) / 1000 + 1;
	return left < 0 ? 0 : left > 3600000 ? 3600000 : (int)left;
}

static void *keeper(void *arg)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	struct orch *o = arg;

	while (!atomic_load(&o->stop)) {
		struct pollfd p = { .fd = o->keeper_fd, .events = POLLIN };
		int wait_ms = keep(o);
		uint64_t n;

		(void)poll(&p, 1, wait_ms);
		while (read(o->keeper_fd, &n, sizeof(n)) > 0)
			;
	}
	/* The machine may be stopping in good order, and its next boot takes what is not marked as
	 * synced for torn. */
	(void)has_failed(session_settle_all(o, &e), "-", &e);
	return NULL;
}

void session_keeper_poke(struct orch *o)
{
	uint64_t one = 1;

	/* A full counter is a wake-up as well. */
	if (atomic_load(&o->keeping) && write(o->keeper_fd, &one, sizeof(one)) < 0)
		return;
}

int session_keeper_start(struct orch *o, struct sbx_error *e)
{
	int r;

	o->keeper_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (o->keeper_fd < 0)
		return sbx_fail_errno(e, SBX_E_INTERNAL, errno, "cannot make an eventfd");
	r = dispatch_start_thread(&o->keeper, keeper, o);
	atomic_store(&o->keeping, r == 0);
	return r == 0 ? 0 : sbx_fail_errno(e, SBX_E_INTERNAL, r, "cannot start a thread");
}

void session_keeper_stop(struct orch *o)
{
	if (!atomic_load(&o->keeping))
		return;
	session_keeper_poke(o);
	pthread_join(o->keeper, NULL);
	atomic_store(&o->keeping, false);
	sbx_closep(&o->keeper_fd);
}
