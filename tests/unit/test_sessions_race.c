/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two who decide about one session at the same time, and what a door finds that comes after one
 * that died. The other one is played by a transaction of the test's own: who wants to write has
 * read the row before it, and comes to his turn after it.
 */
#include "session_house.h"

#include <pthread.h>
#include <sched.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* ---- somebody who comes late ----------------------------------------------------------------- */

struct late {
	struct house *h;
	const char *session;
	int (*act)(struct late *l, struct sbx_error *e);
	pthread_t thread;
	_Atomic pid_t tid;
	int rc;
	char run[37];
	enum orch_ending how;
};

static void *late_thread(void *arg)
{
	struct late *l = arg;
	sbx_autoerror e = SBX_ERROR_INIT;

	atomic_store(&l->tid, gettid());
	l->rc = l->act(l, &e);
	return NULL;
}

/* Returns when the thread sleeps: for the store, or for the lock. */
static void set_out(struct late *l)
{
	assert_int_equal(pthread_create(&l->thread, NULL, late_thread, l), 0);
	wait_asleep(&l->tid);
}

static void ends_with(struct late *l, int rc)
{
	assert_int_equal(pthread_join(l->thread, NULL), 0);
	assert_int_equal(l->rc, rc);
}

static struct store_tx *other(struct house *h)
{
	struct store_tx *tx = NULL;

	MUST(store_begin(h->o.store, &tx, e));
	return tx;
}

static int64_t ending_of(struct house *h, const char *id)
{
	store_autosession s = { 0 };

	MUST(store_session_get(h->o.store, id, &s, e));
	return s.ending_us;
}

/* ---- two at once ----------------------------------------------------------------------------- */

static int extend(struct late *l, struct sbx_error *e)
{
	return orch_session_extend(&l->h->o, &ann, l->session, 3600, e);
}

static void extend__does_not_bring_back_what_ends(void **state)
{
	struct late l = { .h = *state, .act = extend };
	struct orch_session_made s;
	struct store_tx *tx;

	MUST(make(l.h, &ann, "{\"base_image\":\"host\"}", NULL, &s, e));
	l.session = s.id;
	tx = other(l.h);
	set_out(&l);
	MUST(store_tx_session_times(tx, s.id, 0, STORE_ENDING_FINAL, e));
	MUST(store_commit(tx, false, e));
	ends_with(&l, -SBX_E_SESSION_NOT_FOUND);
	assert_true(ending_of(l.h, s.id) == STORE_ENDING_FINAL);
}

static int destroy(struct late *l, struct sbx_error *e)
{
	return orch_session_destroy(&l->h->o, &ann, l->session, &l->how, e);
}

static void claim_and_end(struct house *h, const char *run)
{
	struct admitted a = { .owner = "host/boot/1/1/1" };
	struct store_transition t = { .id = run,
				      .from = STORE_MASK_LIVE,
				      .generation = 1,
				      .to = STORE_COMPLETED,
				      .reason = "completed",
				      .finished_us = sbx_now_us() };
	struct store_tx *tx;
	bool done = false;
	size_t n = 0;

	MUST(admit_next(&h->o, &a, 1, &n, e));
	assert_int_equal(n, 1);
	tx = other(h);
	MUST(store_tx_run_transition(tx, &t, &done, e));
	MUST(store_commit(tx, false, e));
	assert_true(done);
}

/* It was given up, and a client was told so; the run ends a moment later. */
static void destroy__does_not_take_what_was_to_stay(void **state)
{
	struct late l = { .h = *state, .act = destroy };
	struct orch_session_made s;
	struct store_tx *tx;
	char run[37];

	MUST(make(l.h, &ann, "{\"base_image\":\"host\"}", NULL, &s, e));
	l.session = s.id;
	MUST(submit(l.h, &ann, s.id, run, e));
	claim_and_end(l.h, run);
	tx = other(l.h);
	MUST(store_tx_session_times(tx, s.id, 0, sbx_now_us() + SBX_SECOND_US, e));
	MUST(store_commit(tx, false, e));
	tx = other(l.h);
	set_out(&l); /* it has read that the session is ending */
	MUST(store_tx_session_times(tx, s.id, 0, 0, e));
	MUST(store_commit(tx, false, e));
	ends_with(&l, 0);
	assert_int_equal(ending_of(l.h, s.id), 0);
	assert_true(there(l.h, s.id));
}

/* Beyond the time that runs had to end, but there are none: a workspace that is in use then does
 * not save the session. */
static void end__is_final_without_runs(void **state)
{
	struct late l = { .h = *state };
	struct orch_session_made s;
	struct store_tx *tx;
	int lock;

	MUST(make(l.h, &ann, "{\"base_image\":\"host\"}", NULL, &s, e));
	lock = store_session_lock(l.h->o.store, s.id, false, 0);
	assert_true(lock >= 0);
	tx = other(l.h);
	MUST(store_tx_session_times(tx, s.id, 0, 1, e));
	MUST(store_commit(tx, false, e));
	start_keeper(l.h);
	while (ending_of(l.h, s.id) == 1)
		(void)sched_yield();
	stop_keeper(l.h); /* it waits for the lock in vain, and decides */
	assert_true(ending_of(l.h, s.id) == STORE_ENDING_FINAL);
	close(lock);
	start_keeper(l.h);
	while (there(l.h, s.id))
		(void)sched_yield();
	stop_keeper(l.h);
}

static int submit_late(struct late *l, struct sbx_error *e)
{
	return submit(l->h, &ann, l->session, l->run, e);
}

static bool has_lock_file(struct house *h, const char *id)
{
	char path[160];

	(void)snprintf(path, sizeof(path), "%s/sessions/%s.lock", h->dir, id);
	return access(path, F_OK) == 0;
}

static int lock_late(struct late *l, struct sbx_error *e)
{
	int fd = session_lock(&l->h->o, l->session, false, SESSION_LOCK_MS, e);

	if (fd >= 0)
		close(fd);
	return fd < 0 ? fd : 0;
}

static void lock__leaves_no_file_of_what_is_gone(void **state)
{
	struct late l = { .h = *state, .act = lock_late };
	struct orch_session_made s;
	struct store_tx *tx;
	int lock;

	MUST(make(l.h, &ann, "{\"base_image\":\"host\"}", NULL, &s, e));
	l.session = s.id;
	lock = store_session_lock(l.h->o.store, s.id, true, 0);
	assert_true(lock >= 0);
	set_out(&l);
	/* The row first: it looks for the file every now and then, and once that is gone it has the
	 * lock. Whoever ends a session has said so in the row before. */
	tx = other(l.h);
	MUST(store_tx_session_drop(tx, s.id, e));
	MUST(store_commit(tx, false, e));
	MUST(store_session_dir_remove(l.h->o.store, s.id, e));
	close(lock);
	ends_with(&l, -SBX_E_SESSION_NOT_FOUND);
	assert_false(has_lock_file(l.h, s.id));
}

/* Beyond its time and ending: it lets nobody in, as one that is only ending. */
static void lock__is_not_to_be_had_of_what_is_over(void **state)
{
	struct late l = { .h = *state };
	struct orch_session_made s;
	struct store_tx *tx;

	MUST(make(l.h, &ann, "{\"base_image\":\"host\"}", NULL, &s, e));
	l.session = s.id;
	tx = other(l.h);
	MUST(store_tx_session_times(tx, s.id, 1, STORE_ENDING_FINAL, e));
	MUST(store_commit(tx, false, e));
	FAILS_WITH(SESSION_NOT_FOUND, lock_late(&l, e));
}

/* Whoever copies a workspace may take a minute, and the thread that takes a run is needed for
 * others. */
static void submit__does_not_wait_for_who_copies(void **state)
{
	struct late l = { .h = *state };
	struct orch_session_made s;
	int64_t began = sbx_boot_us();
	int lock;

	MUST(make(l.h, &ann, "{\"base_image\":\"host\"}", NULL, &s, e));
	l.session = s.id;
	lock = store_session_lock(l.h->o.store, s.id, true, 0);
	assert_true(lock >= 0);
	FAILS_WITH(SESSION_ACTIVE_RUNS, submit_late(&l, e));
	assert_true(sbx_boot_us() - began < 20 * SBX_SECOND_US);
	close(lock);
	MUST(submit_late(&l, e));
}

/* ---- after one that died --------------------------------------------------------------------- */

enum { MANY = 70 }; /* runs: more than are looked at in one go */

static void submit_many(struct house *h, const char *session)
{
	char run[37];

	for (int i = 0; i < MANY; i++)
		MUST(submit(h, &ann, session, run, e));
}

/* Whoever asks does a part of the work, the keeper all the rest. */
static void destroy__leaves_many_runs_to_the_keeper(void **state)
{
	struct late l = { .h = *state };
	struct orch_session_made s;
	int64_t live = 0;
	enum orch_ending how;

	MUST(make(l.h, &ann, "{\"base_image\":\"host\"}", NULL, &s, e));
	submit_many(l.h, s.id);
	MUST(orch_session_destroy(&l.h->o, &ann, s.id, &how, e));
	assert_int_equal(how, ORCH_ENDING);
	MUST(store_session_runs(l.h->o.store, s.id, false, &live, e));
	assert_true(live > 0 && live < MANY);
	start_keeper(l.h);
	while (there(l.h, s.id))
		(void)sched_yield();
	stop_keeper(l.h);
}

static void destroy__leaves_many_artifacts_to_the_keeper(void **state)
{
	static const struct store_artifact one = { "a", 1 };
	struct late l = { .h = *state };
	struct orch_session_made s;
	enum orch_ending how;
	struct store_tx *tx;
	int64_t used = 0;
	char run[37];

	MUST(make(l.h, &ann, "{\"base_image\":\"host\"}", NULL, &s, e));
	for (int i = 0; i < MANY; i++) {
		MUST(submit(l.h, &ann, s.id, run, e));
		claim_and_end(l.h, run);
		tx = other(l.h);
		MUST(store_tx_artifacts_add(tx, run, &one, 1, e));
		MUST(store_commit(tx, false, e));
	}
	MUST(orch_session_destroy(&l.h->o, &ann, s.id, &how, e));
	assert_int_equal(how, ORCH_ENDING);
	assert_true(ending_of(l.h, s.id) == STORE_ENDING_FINAL);
	start_keeper(l.h);
	while (there(l.h, s.id))
		(void)sched_yield();
	stop_keeper(l.h);
	MUST(store_usage_bytes(l.h->o.store, "ann", &used, e));
	assert_int_equal(used, 0);
}

/* Ending was written down, and no run was cancelled. */
static void end__goes_on_where_another_stopped(void **state)
{
	struct late l = { .h = *state };
	struct orch_session_made s;
	struct store_tx *tx;

	MUST(make(l.h, &ann, "{\"base_image\":\"host\"}", NULL, &s, e));
	submit_many(l.h, s.id);
	tx = other(l.h);
	MUST(store_tx_session_times(tx, s.id, 0, sbx_now_us() + 3600 * SBX_SECOND_US, e));
	MUST(store_commit(tx, false, e));
	start_keeper(l.h);
	while (there(l.h, s.id))
		(void)sched_yield();
	stop_keeper(l.h);
}

static void tidy__removes_a_lock_without_a_directory(void **state)
{
	struct house *h = *state;
	struct orch_session_made s;
	char id[SBX_ID_LEN + 1];
	int lock;

	MUST(make(h, &ann, "", NULL, &s, e));
	sbx_id_new(id);
	lock = store_session_lock(h->o.store, id, false, 0);
	assert_true(lock >= 0);
	session_tidy(&h->o);
	assert_true(has_lock_file(h, id)); /* somebody is about to make it */
	close(lock);
	session_tidy(&h->o);
	assert_false(has_lock_file(h, id));
	assert_true(has_lock_file(h, s.id));
}

static bool is_empty(struct house *h, const char *folder)
{
	char path[160];

	/* Only what is empty can be removed, and the next one makes it anew. */
	(void)snprintf(path, sizeof(path), "%s/%s", h->dir, folder);
	return rmdir(path) == 0 || errno == ENOENT;
}

/* What nobody waits for is left for the next start. */
static void stop__does_not_wait_for_the_trash(void **state)
{
	struct late l = { .h = *state };
	atomic_bool stop = true;
	char path[160];

	(void)snprintf(path, sizeof(path), "%s/trash/x/y", l.h->dir);
	assert_int_equal(sbx_mkdirs(path, 0700), 0);
	MUST(store_trash_empty(l.h->o.store, &stop, e));
	assert_int_equal(access(path, F_OK), 0);
	start_keeper(l.h);
	while (!is_empty(l.h, "trash"))
		(void)sched_yield();
	stop_keeper(l.h);
}

/* One that cannot be ended holds up neither the others nor the trash. */
static void end__goes_on_with_the_others(void **state)
{
	struct late l = { .h = *state };
	struct orch_session_made bad, good;
	char path[160], sql[256];
	struct store_tx *tx;
	sqlite3 *db = NULL;

	MUST(make(l.h, &ann, "{\"base_image\":\"host\"}", NULL, &bad, e));
	MUST(make(l.h, &ann, "{\"base_image\":\"host\"}", NULL, &good, e));
	(void)snprintf(path, sizeof(path), "%s/state.db", l.h->dir);
	(void)snprintf(sql, sizeof(sql),
		       "CREATE TRIGGER no BEFORE DELETE ON sessions WHEN OLD.id = '%s' "
		       "BEGIN SELECT RAISE(ABORT, 'no'); END",
		       bad.id);
	assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
	assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
	assert_int_equal(sqlite3_close(db), SQLITE_OK);
	tx = other(l.h);
	/* In this order they are looked at. */
	MUST(store_tx_session_times(tx, bad.id, 0, STORE_ENDING_FINAL - 1, e));
	MUST(store_tx_session_times(tx, good.id, 0, STORE_ENDING_FINAL, e));
	MUST(store_commit(tx, false, e));
	start_keeper(l.h);
	while (there(l.h, good.id) || !is_empty(l.h, "trash"))
		(void)sched_yield();
	stop_keeper(l.h);
}

/* ---- the service of an ordinary user --------------------------------------------------------- */

/* As nobody, in a process of its own. */
static void as_nobody(bool (*is_right)(struct house *h))
{
	int status = -1;
	pid_t pid;

	if (geteuid() != 0)
		skip();
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		void *own = NULL;

		if (setresgid(65534, 65534, 65534) < 0 || setresuid(65534, 65534, 65534) < 0 ||
		    build(&own) < 0)
			_exit(2);
		status = is_right(own) ? 0 : 1;
		(void)clear(&own);
		_exit(status);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static bool makes_one_for_another(struct house *h)
{
	const struct orch_principal cat = { .user = "cat", .uid = 4711, .door = "fs" };
	struct orch_session_made s;

	return make(h, &cat, "", NULL, &s, NULL) == 0;
}

/* It owns all that its sandboxes make, and can give nothing away. */
static void create__for_another_user(void **state)
{
	(void)state;
	as_nobody(makes_one_for_another);
}

static bool opens_what_was_closed(struct house *h)
{
	static const mode_t modes[] = { 0, 0400, 0200, 0100 };
	sbx_autoclose int dir = -1;
	struct orch_session_made s;
	bool right = true;

	if (make(h, &ann, "{\"base_image\":\"host\"}", NULL, &s, NULL) < 0)
		return false;
	dir = store_session_dir(h->o.store, s.id, false, NULL);
	for (size_t i = 0; i < SBX_COUNT(modes); i++) {
		store_autosnapshot shot = { 0 };

		right &= fchmodat(dir, "workspace", modes[i], 0) == 0 &&
			 orch_snapshot_take(&h->o, &ann, s.id, NULL, &shot, NULL) == 0;
	}
	return right;
}

/* A command may close its own workspace: that is no end of the session. */
static void workspace__is_opened_again(void **state)
{
	(void)state;
	as_nobody(opens_what_was_closed);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, build, clear)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(extend__does_not_bring_back_what_ends),
		TEST(destroy__does_not_take_what_was_to_stay),
		TEST(end__is_final_without_runs),
		TEST(lock__leaves_no_file_of_what_is_gone),
		TEST(lock__is_not_to_be_had_of_what_is_over),
		TEST(submit__does_not_wait_for_who_copies),
		TEST(destroy__leaves_many_runs_to_the_keeper),
		TEST(destroy__leaves_many_artifacts_to_the_keeper),
		TEST(end__goes_on_where_another_stopped),
		TEST(tidy__removes_a_lock_without_a_directory),
		TEST(end__goes_on_with_the_others),
		TEST(stop__does_not_wait_for_the_trash),
		TEST(create__for_another_user),
		TEST(workspace__is_opened_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
