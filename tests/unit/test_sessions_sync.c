/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A clone that is answered before it is on the disk: who brings it there, who waits for that, and
 * what becomes of it when the machine or the disk fails before.
 */
#include "session_house.h"

#include <sched.h>
#include <sqlite3.h>
#include <sys/syscall.h>

#include "orchestrator/upload.h"

/* ---- the disk, and the machine --------------------------------------------------------------- */

static atomic_bool disk_fails;

/* In the place of the C library's. */
int syncfs(int fd)
{
	if (atomic_load(&disk_fails)) {
		errno = EIO;
		return -1;
	}
	return (int)syscall(SYS_syncfs, fd);
}

static void change(struct house *h, const char *sql)
{
	char path[160];
	sqlite3 *db = NULL;

	(void)snprintf(path, sizeof(path), "%s/state.db", h->dir);
	assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
	assert_int_equal(sqlite3_busy_timeout(db, 60000), SQLITE_OK); /* a keeper may be at work */
	assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
	assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void set_mark(struct house *h, const char *session, const char *boot)
{
	char sql[256];

	(void)snprintf(sql, sizeof(sql), "UPDATE sessions SET unsynced_boot = '%s' WHERE id = '%s'",
		       boot, session);
	change(h, sql);
}

static void set_number(struct house *h, const char *session, const char *column, int64_t value)
{
	char sql[256];

	(void)snprintf(sql, sizeof(sql), "UPDATE sessions SET %s = %lld WHERE id = '%s'", column,
		       (long long)value, session);
	change(h, sql);
}

/* ---- a session and its copy ------------------------------------------------------------------ */

struct pair {
	struct house *h;
	struct orch_session_made from, copy;
};

static void write_in(struct house *h, const char *session, const char *name)
{
	sbx_autoclose int fd = -1;
	char path[300];

	(void)snprintf(path, sizeof(path), "%s/sessions/%s/workspace/%s", h->dir, session, name);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	assert_true(fd >= 0);
	assert_int_equal(sbx_write_all(fd, "text", 4), 0);
}

static bool has_file(struct house *h, const char *session, const char *name)
{
	char path[300];

	(void)snprintf(path, sizeof(path), "%s/sessions/%s/workspace/%s", h->dir, session, name);
	return access(path, F_OK) == 0;
}

static bool is_marked(struct house *h, const char *session)
{
	store_autosession s = { 0 };

	MUST(store_session_get(h->o.store, session, &s, e));
	return s.unsynced_boot != NULL;
}

static void make_pair(struct house *h, struct pair *ret)
{
	*ret = (struct pair){ .h = h };
	atomic_store(&disk_fails, false);
	MUST(make(h, &ann, "{\"base_image\":\"host\"}", NULL, &ret->from, e));
	write_in(h, ret->from.id, "f");
	MUST(orch_session_clone(&h->o, &ann, ret->from.id, NULL, &ret->copy, e));
	assert_true(is_marked(h, ret->copy.id));
	assert_false(is_marked(h, ret->from.id));
}

static void ends_wholly(const struct pair *p)
{
	start_keeper(p->h);
	while (there(p->h, p->copy.id))
		(void)sched_yield();
	stop_keeper(p->h);
	assert_true(has_file(p->h, p->from.id, "f"));
	assert_false(is_marked(p->h, p->from.id));
}

/* ---- who brings it there --------------------------------------------------------------------- */

static void keeper__brings_it_to_the_disk(void **state)
{
	struct pair p;

	make_pair(*state, &p);
	start_keeper(p.h);
	while (is_marked(p.h, p.copy.id))
		(void)sched_yield();
	stop_keeper(p.h);
	assert_true(has_file(p.h, p.copy.id, "f"));
}

static void keeper__is_told_of_the_next_one(void **state)
{
	struct orch_session_made more;
	struct pair p;

	make_pair(*state, &p);
	start_keeper(p.h);
	while (is_marked(p.h, p.copy.id))
		(void)sched_yield();
	MUST(orch_session_clone(&p.h->o, &ann, p.from.id, NULL, &more, e));
	while (is_marked(p.h, more.id))
		(void)sched_yield();
	stop_keeper(p.h);
}

/* A stop in good order is no power cut. */
static void stop__leaves_no_mark(void **state)
{
	struct pair p;

	make_pair(*state, &p);
	start_keeper(p.h);
	while (is_marked(p.h, p.copy.id))
		(void)sched_yield();
	set_mark(p.h, p.copy.id, sbx_boot_id());
	stop_keeper(p.h);
	assert_false(is_marked(p.h, p.copy.id));
}

/* The door that made it was killed, and the machine went on. */
static void start__keeps_what_is_of_this_boot(void **state)
{
	struct pair p;

	make_pair(*state, &p);
	MUST(orch_sessions_recover(&p.h->o, e));
	start_keeper(p.h);
	while (is_marked(p.h, p.copy.id))
		(void)sched_yield();
	stop_keeper(p.h);
	assert_true(has_file(p.h, p.copy.id, "f"));
}

/* ---- who waits for it ------------------------------------------------------------------------ */

static void snapshot__is_not_taken_before(void **state)
{
	store_autosnapshot shot = { 0 };
	struct pair p;

	make_pair(*state, &p);
	MUST(orch_snapshot_take(&p.h->o, &ann, p.copy.id, "a", &shot, e));
	assert_false(is_marked(p.h, p.copy.id));
	set_mark(p.h, p.copy.id, sbx_boot_id());
	MUST(orch_snapshot_restore(&p.h->o, &ann, p.copy.id, "a", e));
	assert_false(is_marked(p.h, p.copy.id));
}

static void upload__is_not_answered_before(void **state)
{
	struct upload *u = NULL;
	struct pair p;

	make_pair(*state, &p);
	MUST(upload_begin(&p.h->o, &ann, p.copy.id, &u, e));
	MUST(upload_file(u, "g", e));
	MUST(upload_data(u, "text", 4, e));
	assert_true(is_marked(p.h, p.copy.id));
	MUST(upload_commit(u, e));
	upload_free(u);
	assert_true(has_file(p.h, p.copy.id, "g"));
	assert_false(is_marked(p.h, p.copy.id));
}

/* Of what is destroyed a clone may be all that is to be left. */
static void destroy__waits_for_clones(void **state)
{
	enum orch_ending how;
	struct pair p;

	make_pair(*state, &p);
	MUST(orch_session_destroy(&p.h->o, &ann, p.from.id, &how, e));
	assert_int_equal(how, ORCH_ENDING);
	assert_true(has_file(p.h, p.from.id, "f"));
	start_keeper(p.h);
	while (there(p.h, p.from.id))
		(void)sched_yield();
	stop_keeper(p.h);
	assert_false(is_marked(p.h, p.copy.id));
	assert_true(has_file(p.h, p.copy.id, "f"));
}

static void restore__waits_for_clones(void **state)
{
	store_autosnapshot shot = { 0 };
	struct pair p;

	make_pair(*state, &p);
	MUST(orch_snapshot_take(&p.h->o, &ann, p.from.id, "a", &shot, e));
	assert_true(is_marked(p.h, p.copy.id));
	MUST(orch_snapshot_restore(&p.h->o, &ann, p.from.id, "a", e));
	assert_false(is_marked(p.h, p.copy.id));
}

/* ---- what fails before ----------------------------------------------------------------------- */

/* Its runs are no reason for it to stay. */
static void boot__takes_a_torn_one_as_a_whole(void **state)
{
	store_autorun r = { 0 };
	store_autosession s = { 0 };
	char run[37], next[37];
	struct pair p;

	make_pair(*state, &p);
	MUST(submit(p.h, &ann, p.copy.id, run, e));
	set_mark(p.h, p.copy.id, "00000000-0000-4000-8000-000000000000");
	MUST(orch_sessions_recover(&p.h->o, e));
	FAILS_WITH(SESSION_NOT_FOUND, submit(p.h, &ann, p.copy.id, next, e));
	MUST(orch_sessions_recover(&p.h->o, e)); /* the other door starts, too */
	ends_wholly(&p);
	FAILS_WITH(SESSION_NOT_FOUND, store_session_get(p.h->o.store, p.copy.id, &s, e));
	MUST(store_run_get(p.h->o.store, run, &r, e));
	assert_int_equal(r.phase, STORE_KILLED);
}

static void boot__takes_as_many_as_there_are(void **state)
{
	enum { MANY = 70 }; /* more than are looked at in one go */
	struct store_session list[1];
	struct orch_session_made made;
	struct pair p;

	make_pair(*state, &p);
	set_mark(p.h, p.copy.id, "another");
	for (int i = 0; i < MANY; i++) {
		MUST(orch_session_clone(&p.h->o, &ann, p.from.id, NULL, &made, e));
		set_mark(p.h, made.id, "another");
	}
	MUST(orch_sessions_recover(&p.h->o, e));
	assert_int_equal(store_session_torn(p.h->o.store, sbx_boot_id(), list, 1, NULL), 0);
	ends_wholly(&p);
	start_keeper(p.h);
	while (there(p.h, made.id))
		(void)sched_yield();
	stop_keeper(p.h);
}

/* Whether the second step was made is not known: the first one was. */
static void boot__keeps_what_is_said_to_be_synced(void **state)
{
	struct pair p;

	make_pair(*state, &p);
	set_mark(p.h, p.copy.id, STORE_SYNCED);
	MUST(orch_sessions_recover(&p.h->o, e));
	MUST(session_settle_all(&p.h->o, e));
	assert_false(is_marked(p.h, p.copy.id));
	assert_true(has_file(p.h, p.copy.id, "f"));
}

/* The kernel tells of it once; that a second sync succeeds says nothing. */
static void disk__that_fails_takes_it_as_a_whole(void **state)
{
	struct admitted a = { .owner = "host/boot/1/1/1" };
	char run[37], next[37];
	struct pair p;
	size_t n = 1;

	make_pair(*state, &p);
	MUST(submit(p.h, &ann, p.copy.id, run, e));
	atomic_store(&disk_fails, true);
	FAILS_WITH(STORE_UNAVAILABLE, orch_session_settle(&p.h->o, p.copy.id, e));
	atomic_store(&disk_fails, false);
	MUST(session_settle_all(&p.h->o, e));
	FAILS_WITH(STORE_UNAVAILABLE, orch_session_settle(&p.h->o, p.copy.id, e));
	FAILS_WITH(SESSION_NOT_FOUND, submit(p.h, &ann, p.copy.id, next, e));
	MUST(admit_next(&p.h->o, &a, 1, &n, e)); /* not even what was queued */
	assert_int_equal(n, 0);
	ends_wholly(&p);
}

static void disk__that_fails_takes_all_of_them(void **state)
{
	enum { MANY = 70 };
	struct store_session list[1];
	struct orch_session_made made;
	struct pair p;

	make_pair(*state, &p);
	for (int i = 0; i < MANY; i++)
		MUST(orch_session_clone(&p.h->o, &ann, p.from.id, NULL, &made, e));
	atomic_store(&disk_fails, true);
	FAILS_WITH(STORE_UNAVAILABLE, session_settle_all(&p.h->o, e));
	atomic_store(&disk_fails, false);
	MUST(session_settle_all(&p.h->o, e)); /* those that it did not come to */
	assert_int_equal(store_session_unsynced(p.h->o.store, sbx_boot_id(), list, 1, NULL), 0);
	assert_true(is_marked(p.h, made.id));
	ends_wholly(&p);
	start_keeper(p.h);
	while (there(p.h, made.id))
		(void)sched_yield();
	stop_keeper(p.h);
}

/* The database is on the same disk, and may fail as well. */
static void disk__that_fails_is_not_forgotten(void **state)
{
	struct pair p;

	make_pair(*state, &p);
	change(p.h,
	       "CREATE TRIGGER no BEFORE UPDATE ON sessions BEGIN SELECT RAISE(ABORT, 'no'); END");
	atomic_store(&disk_fails, true);
	FAILS_WITH(STORE_UNAVAILABLE, session_settle_all(&p.h->o, e));
	atomic_store(&disk_fails, false);
	FAILS_WITH(INTERNAL, session_settle_all(&p.h->o, e)); /* of the trigger */
	change(p.h, "DROP TRIGGER no");
	FAILS_WITH(STORE_UNAVAILABLE, orch_session_settle(&p.h->o, p.copy.id, e));
	MUST(session_settle_all(&p.h->o, e));
	ends_wholly(&p);
}

struct waiter {
	struct pair *p;
	pthread_t thread;
	_Atomic pid_t tid;
};

static void *settle_other(void *arg)
{
	struct waiter *w = arg;

	atomic_store(&w->tid, gettid());
	FAILS_WITH(STORE_UNAVAILABLE, orch_session_settle(&w->p->h->o, w->p->copy.id, e));
	return NULL;
}

/* Who waits while another one sees the disk fail has not got what he waited for. */
static void disk__that_fails_fails_who_waits(void **state)
{
	struct pair p;
	struct waiter w = { .p = &p };

	make_pair(*state, &p);
	pthread_mutex_lock(&p.h->o.settle_lock);
	assert_int_equal(pthread_create(&w.thread, NULL, settle_other, &w), 0);
	wait_asleep(&w.tid);
	set_number(p.h, p.copy.id, "ending_us", STORE_ENDING_LOST);
	pthread_mutex_unlock(&p.h->o.settle_lock);
	assert_int_equal(pthread_join(w.thread, NULL), 0);
}

/* Its pages may be what failed, although it had no row yet. */
static void disk__that_fails_takes_what_is_being_copied(void **state)
{
	struct orch_session_made more;
	struct pair p;

	make_pair(*state, &p);
	atomic_store(&disk_fails, true);
	FAILS_WITH(STORE_UNAVAILABLE, session_settle_all(&p.h->o, e));
	atomic_store(&disk_fails, false);
	MUST(orch_session_clone(&p.h->o, &ann, p.from.id, NULL, &more, e));
	set_number(p.h, more.id, "created_us", p.h->o.sync_failed_us - 1);
	FAILS_WITH(STORE_UNAVAILABLE, orch_session_settle(&p.h->o, more.id, e));
	MUST(orch_session_clone(&p.h->o, &ann, p.from.id, NULL, &more, e));
	MUST(orch_session_settle(&p.h->o, more.id, e));
	assert_false(is_marked(p.h, more.id));
	ends_wholly(&p);
}

/* What another one copied is nothing to who syncs his own. */
static void disk__of_others_is_nothing_to_a_session(void **state)
{
	struct pair p;

	make_pair(*state, &p);
	atomic_store(&disk_fails, true);
	MUST(orch_session_settle(&p.h->o, p.from.id, e));
	atomic_store(&disk_fails, false);
	assert_true(is_marked(p.h, p.copy.id));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, build, clear)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(keeper__brings_it_to_the_disk),
		TEST(keeper__is_told_of_the_next_one),
		TEST(stop__leaves_no_mark),
		TEST(start__keeps_what_is_of_this_boot),
		TEST(snapshot__is_not_taken_before),
		TEST(upload__is_not_answered_before),
		TEST(destroy__waits_for_clones),
		TEST(restore__waits_for_clones),
		TEST(boot__takes_a_torn_one_as_a_whole),
		TEST(boot__takes_as_many_as_there_are),
		TEST(boot__keeps_what_is_said_to_be_synced),
		TEST(disk__that_fails_takes_it_as_a_whole),
		TEST(disk__that_fails_takes_all_of_them),
		TEST(disk__that_fails_is_not_forgotten),
		TEST(disk__that_fails_fails_who_waits),
		TEST(disk__that_fails_takes_what_is_being_copied),
		TEST(disk__of_others_is_nothing_to_a_session),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
