/* SPDX-License-Identifier: Apache-2.0 */
/* store/: the queue, deadlines, counts per scope, idempotency keys, and many writers at once. */
#include "store_fixture.h"

#include <sqlite3.h>

#include "store/store_i.h"

static char *next_user(struct store *s, const char *after)
{
	struct store_tx *tx = NULL;
	char *user = NULL;

	OK(store_begin(s, &tx, e));
	OK(store_tx_queue_next_user(tx, after, &user, e));
	store_rollback(tx);
	return user;
}

static void queue__goes_round_the_users(void **state)
{
	static const char *const users[] = { "alice", "bob", "\xc3\xa9va" };
	struct fixture *f = *state;
	sbx_autofree char *at = next_user(f->s, NULL);

	assert_null(at);
	/* In the order of a user with many and two with few. */
	for (int i = 0; i < 5; i++)
		submit(f->s, users[1], NULL);
	submit(f->s, users[2], NULL);
	submit(f->s, users[0], NULL);
	for (size_t i = 0; i < SBX_COUNT(users); i++) {
		char *next = next_user(f->s, at);

		assert_string_equal(next, users[i]);
		free(at);
		at = next;
	}
	{
		sbx_autofree char *end = next_user(f->s, at);
		sbx_autofree char *again = next_user(f->s, NULL);

		assert_null(end);
		assert_string_equal(again, users[0]);
	}
}

static void queue__head_and_position_in_one_users_line(void **state)
{
	struct fixture *f = *state;
	int64_t row[4], n = -1;
	char id[4][37];

	for (int i = 0; i < 4; i++) {
		submit(f->s, "other", NULL);
		row[i] = submit(f->s, "alice", id[i]);
	}
	for (int i = 0; i < 4; i++) {
		store_autorun r = { .row = 0 };
		struct store_tx *tx = NULL;

		OK(store_queue_position(f->s, "alice", row[3], &n, e));
		assert_int_equal(n, 3 - i);
		OK(store_begin(f->s, &tx, e));
		OK(store_tx_queue_head(tx, "alice", 0, &r, e));
		store_rollback(tx);
		assert_string_equal(r.id, id[i]);
		assert_true(claim(f->s, id[i], INT64_MAX));
	}
	{
		store_autorun r = { .row = 0 };
		struct store_tx *tx = NULL;

		OK(store_begin(f->s, &tx, e));
		FAILS(RUN_NOT_FOUND, store_tx_queue_head(tx, "alice", 0, &r, e));
		store_rollback(tx);
	}
}

static void submit_until(struct store *s, int64_t queue_expires_us, char id[37])
{
	struct store_tx *tx = NULL;
	store_autorun r;

	run_init(&r, "alice");
	r.queue_expires_us = queue_expires_us;
	OK(store_begin(s, &tx, e));
	OK(store_tx_run_insert(tx, &r, "{}", e));
	OK(store_commit(tx, false, e));
	memcpy(id, r.id, 37);
}

typedef int expired_fn(struct store_tx *tx, const char *boot, int64_t now, struct store_run *ret,
		       struct sbx_error *e);

/* Which run is overdue; NULL: none. */
static void assert_expired(struct store *s, expired_fn *ask, const char *boot, int64_t now,
			   const char *id)
{
	store_autorun r = { .row = 0 };
	sbx_autoerror why = SBX_ERROR_INIT;
	struct store_tx *tx = NULL;
	int rc;

	OK(store_begin(s, &tx, e));
	rc = ask(tx, boot, now, &r, &why);
	store_rollback(tx);
	if (!id) {
		assert_int_equal(rc, -SBX_E_RUN_NOT_FOUND);
		return;
	}
	assert_int_equal(rc, 0);
	assert_int_equal(why.code, SBX_OK);
	assert_string_equal(r.id, id);
}

static void queue__expires_by_boot_time(void **state)
{
	struct fixture *f = *state;
	char never[37], late[37], soon[37];
	int64_t queue = 0, lease = 0;

	OK(store_deadlines(f->s, &queue, &lease, e));
	assert_true(queue == INT64_MAX && lease == INT64_MAX);
	submit_until(f->s, 0, never);
	submit_until(f->s, 2000, late);
	submit_until(f->s, 1000, soon);
	OK(store_deadlines(f->s, &queue, &lease, e));
	assert_true(queue == 1001 && lease == INT64_MAX);
	assert_expired(f->s, store_tx_queue_expired, sbx_boot_id(), 1000, NULL);
	assert_expired(f->s, store_tx_queue_expired, sbx_boot_id(), 1001, soon);
	assert_expired(f->s, store_tx_queue_expired, sbx_boot_id(), 5000, soon);
	assert_true(finish(f->s, soon, STORE_FAILED));
	assert_expired(f->s, store_tx_queue_expired, sbx_boot_id(), 5000, late);
	/* After a restart of the machine what waited is over, whatever its clock said. */
	assert_expired(f->s, store_tx_queue_expired, "00000000", 0, late);
	assert_expired(f->s, store_tx_queue_expired, "zzzzzzzz", 0, late);
	assert_true(claim(f->s, late, 7));
	assert_expired(f->s, store_tx_queue_expired, "zzzzzzzz", 0, NULL);
}

static void lease__expires_by_boot_time(void **state)
{
	struct fixture *f = *state;
	struct store_tx *tx = NULL;
	char a[37], b[37];
	int64_t queue = 0, lease = 0;

	submit(f->s, "alice", a);
	submit(f->s, "alice", b);
	assert_true(claim(f->s, a, 2000));
	assert_true(claim(f->s, b, 1000));
	OK(store_deadlines(f->s, &queue, &lease, e));
	assert_true(queue == INT64_MAX && lease == 1001);
	assert_expired(f->s, store_tx_lease_expired, sbx_boot_id(), 1000, NULL);
	assert_expired(f->s, store_tx_lease_expired, sbx_boot_id(), 1001, b);
	OK(store_begin(f->s, &tx, e));
	OK(store_tx_run_renew(tx, b, 1, 9000, e));
	OK(store_commit(tx, false, e));
	assert_expired(f->s, store_tx_lease_expired, sbx_boot_id(), 1001, NULL);
	assert_expired(f->s, store_tx_lease_expired, sbx_boot_id(), 2001, a);
	assert_expired(f->s, store_tx_lease_expired, "00000000", 0, a);
	assert_expired(f->s, store_tx_lease_expired, "zzzzzzzz", 0, a);
	assert_true(finish(f->s, a, STORE_FAILED));
	assert_true(finish(f->s, b, STORE_FAILED));
	assert_expired(f->s, store_tx_lease_expired, "zzzzzzzz", INT64_MAX, NULL);
}

static void queue__a_requeued_run_may_get_new_time(void **state)
{
	struct fixture *f = *state;
	char id[37];
	struct store_transition again = { .id = id,
					  .from = STORE_MASK(STORE_STARTING),
					  .generation = -1,
					  .to = STORE_QUEUED,
					  .requeue = true };

	submit_until(f->s, 1000, id);
	assert_true(claim(f->s, id, 5));
	assert_true(move(f->s, &again));
	assert_expired(f->s, store_tx_queue_expired, sbx_boot_id(), 1001, id);
	assert_true(claim(f->s, id, 5));
	again.queue_expires_us = 3000;
	assert_true(move(f->s, &again));
	assert_expired(f->s, store_tx_queue_expired, sbx_boot_id(), 3000, NULL);
	assert_expired(f->s, store_tx_queue_expired, sbx_boot_id(), 3001, id);
}

static void deadlines__are_now_for_another_boot(void **state)
{
	struct fixture *f = *state;
	int64_t queue = -1, lease = -1;
	char a[37], b[37];

	submit_until(f->s, 5000, a);
	submit(f->s, "alice", b);
	assert_true(claim(f->s, b, 7000));
	{
		store_autotx struct store_tx *tx = NULL;

		OK(store_begin(f->s, &tx, e));
		OK(f->s->sql->exec(f->s->writer->db,
				   "UPDATE runs SET queue_boot = 'before' WHERE phase = 1;"
				   "UPDATE runs SET claim_boot = 'zebra' WHERE phase = 2",
				   e));
		OK(store_commit(sbx_steal(&tx), false, e));
	}
	OK(store_deadlines(f->s, &queue, &lease, e));
	assert_int_equal(queue, 0);
	assert_int_equal(lease, 0);
}

static void counts__per_scope(void **state)
{
	static const struct {
		bool active;
		enum store_scope scope;
		const char *key;
		int64_t want;
	} rows[] = {
		{ false, STORE_SCOPE_ALL, NULL, 6 },	 { true, STORE_SCOPE_ALL, NULL, 3 },
		{ false, STORE_SCOPE_USER, "alice", 6 }, { true, STORE_SCOPE_USER, "alice", 3 },
		{ true, STORE_SCOPE_USER, "bob", 0 },	 { false, STORE_SCOPE_PERSONA, "p", 3 },
		{ true, STORE_SCOPE_PERSONA, "p", 1 },	 { false, STORE_SCOPE_WORKSPACE, "w", 2 },
		{ true, STORE_SCOPE_WORKSPACE, "w", 1 }, { false, STORE_SCOPE_GROUP, "g", 1 },
		{ true, STORE_SCOPE_GROUP, "g", 1 },	 { true, STORE_SCOPE_GROUP, "x", 0 },
	};
	struct fixture *f = *state;
	struct store_tx *tx = NULL;
	int64_t n = -1, mem = -1, cpu = -1;

	/* Twelve runs: 0..5 queued, 6..8 active, 9..11 finished. */
	for (int i = 0; i < 12; i++) {
		store_autorun r;

		run_init(&r, "alice");
		r.persona_id = i % 2 ? NULL : strdup("p");
		r.workspace_id = i % 3 == 1 ? strdup("w") : NULL;
		r.workspace_group_id = i % 4 == 3 ? strdup("g") : NULL;
		if (i == 8)
			r.persona_id = (free(r.persona_id), NULL);
		if (i == 7)
			r.workspace_group_id = (free(r.workspace_group_id), strdup("g"));
		OK(store_begin(f->s, &tx, e));
		OK(store_tx_run_insert(tx, &r, "{}", e));
		OK(store_tx_set_reserved(tx, r.id, 100 + i, 10, e));
		OK(store_commit(tx, false, e));
		if (i > 5)
			assert_true(claim(f->s, r.id, INT64_MAX));
		if (i > 8)
			assert_true(finish(f->s, r.id, STORE_COMPLETED));
	}
	OK(store_begin(f->s, &tx, e));
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		OK(store_tx_count(tx, rows[i].active, rows[i].scope, rows[i].key, &n, e));
		if (n != rows[i].want)
			fail_msg("row %zu: %lld", i, (long long)n);
	}
	FAILS(INVALID_ARGUMENT, store_tx_count(tx, true, STORE_SCOPE_USER, NULL, &n, e));
	FAILS(RUN_NOT_FOUND, store_tx_set_reserved(tx, "x", 1, 1, e));
	OK(store_tx_reserved(tx, &mem, &cpu, e));
	store_rollback(tx);
	assert_int_equal(mem, 106 + 107 + 108);
	assert_int_equal(cpu, 30);
}

static void meta__is_kept(void **state)
{
	struct fixture *f = *state;
	struct store_tx *tx = NULL;
	sbx_autofree char *none = NULL;
	sbx_autofree char *value = NULL;

	OK(store_begin(f->s, &tx, e));
	OK(store_tx_meta_get(tx, "turn", &none, e));
	assert_null(none);
	OK(store_tx_meta_set(tx, "turn", "alice", e));
	OK(store_tx_meta_set(tx, "turn", "bob", e));
	OK(store_commit(tx, false, e));
	OK(store_begin(f->s, &tx, e));
	OK(store_tx_meta_get(tx, "turn", &value, e));
	store_rollback(tx);
	assert_string_equal(value, "bob");
}

/* ---- idempotency ----------------------------------------------------------------------------- */

static bool put_key(struct store *s, const char *user, const char *key, const char *object,
		    int64_t now, int64_t not_before, struct store_idem *prior)
{
	struct store_tx *tx = NULL;
	bool fresh = false;

	OK(store_begin(s, &tx, e));
	OK(store_tx_idem_put(tx, "runs", user, key, "print", object, now, not_before, &fresh, prior,
			     e));
	OK(store_commit(tx, false, e));
	return fresh;
}

static void idem__first_wins_until_it_is_old(void **state)
{
	struct fixture *f = *state;
	struct store_idem i = { .created_us = 0 };
	struct store_tx *tx = NULL;
	bool found = true;
	int64_t gone = -1;

	OK(store_idem_get(f->s, "runs", "alice", "k", 0, &found, &i, e));
	assert_false(found);
	assert_true(put_key(f->s, "alice", "k", "one", 100, 0, &i));
	assert_false(put_key(f->s, "alice", "k", "two", 200, 100, &i));
	assert_string_equal(i.object_id, "one");
	assert_string_equal(i.fingerprint, "print");
	assert_int_equal(i.created_us, 100);
	store_idem_clear(&i);
	assert_true(put_key(f->s, "bob", "k", "three", 200, 0, &i));
	assert_true(put_key(f->s, "alice", "K", "four", 200, 0, &i));
	OK(store_idem_get(f->s, "runs", "alice", "k", 101, &found, &i, e));
	assert_false(found); /* too old to count */
	assert_true(put_key(f->s, "alice", "k", "five", 300, 101, &i));
	OK(store_idem_get(f->s, "runs", "alice", "k", 0, &found, &i, e));
	assert_true(found);
	assert_string_equal(i.object_id, "five");
	store_idem_clear(&i);
	OK(store_idem_get(f->s, "sessions", "alice", "k", 0, &found, &i, e));
	assert_false(found);

	OK(store_begin(f->s, &tx, e));
	OK(store_tx_idem_prune(tx, 300, 1, &gone, e));
	assert_int_equal(gone, 1);
	OK(store_tx_idem_prune(tx, 300, 100, &gone, e));
	assert_int_equal(gone, 1);
	OK(store_tx_idem_prune(tx, 300, 100, &gone, e));
	assert_int_equal(gone, 0);
	OK(store_commit(tx, false, e));
}

struct contender {
	struct store *s;
	char id[37];
	bool fresh;
};

/* One submit as a door does it: key and run in one transaction. */
static void *contend(void *ctx)
{
	struct contender *c = ctx;
	struct store_tx *tx = NULL;
	struct store_idem prior = { .created_us = 0 };
	store_autorun r;

	run_init(&r, "alice");
	if (store_begin(c->s, &tx, NULL) < 0 ||
	    store_tx_idem_put(tx, "runs", "alice", "key", "print", r.id, sbx_now_us(), 0, &c->fresh,
			      &prior, NULL) < 0)
		return c;
	if (c->fresh && store_tx_run_insert(tx, &r, "{}", NULL) < 0)
		return c;
	memcpy(c->id, c->fresh ? r.id : prior.object_id, 37);
	store_idem_clear(&prior);
	return store_commit(tx, true, NULL) < 0 ? c : NULL;
}

static void idem__one_run_from_twenty_threads(void **state)
{
	enum { THREADS = 20 };
	struct fixture *f = *state;
	struct contender c[THREADS];
	pthread_t threads[THREADS];
	int64_t n = 0;
	int fresh = 0;

	for (int i = 0; i < THREADS; i++) {
		c[i] = (struct contender){ .s = f->s };
		assert_int_equal(pthread_create(&threads[i], NULL, contend, &c[i]), 0);
	}
	for (int i = 0; i < THREADS; i++) {
		void *failed = NULL;

		assert_int_equal(pthread_join(threads[i], &failed), 0);
		assert_null(failed);
		fresh += c[i].fresh;
	}
	assert_int_equal(fresh, 1);
	for (int i = 1; i < THREADS; i++)
		assert_string_equal(c[i].id, c[0].id);
	OK(store_run_count(f->s, NULL, &n, e));
	assert_int_equal(n, 1);
}

/* ---- many writers ---------------------------------------------------------------------------- */

enum { SUBMITTERS = 10, EACH = 20 };

static void *submit_many(void *ctx)
{
	for (int i = 0; i < EACH; i++)
		if (try_submit(ctx, i % 2 ? "alice" : "bob", i % 4 == 0, NULL, NULL) < 0)
			return ctx;
	return NULL;
}

static bool submit_with_threads(struct store *s)
{
	pthread_t threads[SUBMITTERS];
	bool ok = true;

	for (int i = 0; i < SUBMITTERS; i++)
		if (pthread_create(&threads[i], NULL, submit_many, s) != 0)
			return false;
	for (int i = 0; i < SUBMITTERS; i++) {
		void *failed = NULL;

		ok = pthread_join(threads[i], &failed) == 0 && !failed && ok;
	}
	return ok;
}

/* Somebody with the sqlite3 shell: holds the write lock for a second, again and again. */
static int hold_lock(const struct fixture *f, int gate)
{
	struct timespec second = { .tv_sec = 1, .tv_nsec = 0 };
	char path[128];
	sqlite3 *db = NULL;
	char c = 'x';

	(void)snprintf(path, sizeof(path), "%s/state.db", f->dir);
	if (sqlite3_open(path, &db) != SQLITE_OK)
		return 1;
	(void)sqlite3_busy_timeout(db, 20000);
	for (int i = 0; i < 3; i++) {
		if (sqlite3_exec(db, "BEGIN IMMEDIATE; SELECT 1", NULL, NULL, NULL) != SQLITE_OK)
			return 2;
		if (i == 0 && write(gate, &c, 1) != 1)
			return 3;
		(void)nanosleep(&second, NULL);
		if (sqlite3_exec(db, "COMMIT", NULL, NULL, NULL) != SQLITE_OK)
			return 4;
	}
	return sqlite3_close(db);
}

static void writers__of_two_processes_wait_for_a_held_lock(void **state)
{
	struct fixture *f = *state;
	struct store_run_key keys[2 * SUBMITTERS * EACH + 1];
	pid_t holder, second;
	int64_t n = 0;
	int gate[2];
	char c;

	assert_int_equal(pipe2(gate, O_CLOEXEC), 0);
	holder = fork();
	assert_true(holder >= 0);
	if (holder == 0)
		_exit(hold_lock(f, gate[1]));
	assert_int_equal(read(gate[0], &c, 1), 1); /* it has the lock now */
	second = fork();
	assert_true(second >= 0);
	if (second == 0) {
		struct store *s = NULL;

		if (store_open(f->dir, NULL, &s, NULL) < 0)
			_exit(1);
		_exit(submit_with_threads(s) ? 0 : 2);
	}
	assert_true(submit_with_threads(f->s));
	assert_int_equal(wait_child(holder), 0);
	assert_int_equal(wait_child(second), 0);
	(void)close(gate[0]);
	(void)close(gate[1]);

	OK(store_run_count(f->s, NULL, &n, e));
	assert_int_equal(n, 2 * SUBMITTERS * EACH);
	assert_int_equal(store_run_keys(f->s, NULL, 0, keys, SBX_COUNT(keys), NULL), n);
	for (int i = 1; i < n; i++)
		assert_true(keys[i].row > keys[i - 1].row);
	OK(store_integrity(f->s, e));
}

static void *read_many(void *ctx)
{
	struct store_run_key k;
	int64_t last = 0;

	for (int i = 0; i < 200; i++) {
		int r = store_run_latest(ctx, NULL, &k, NULL);

		if (r < 0 && r != -SBX_E_RUN_NOT_FOUND)
			return ctx;
		if (r == 0 && k.row < last)
			return ctx;
		last = r == 0 ? k.row : last;
	}
	return NULL;
}

static void readers__more_than_connections_beside_writers(void **state)
{
	enum { READERS = 12 };
	struct fixture *f = *state;
	pthread_t threads[READERS];

	for (int i = 0; i < READERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, read_many, f->s), 0);
	assert_true(submit_with_threads(f->s));
	for (int i = 0; i < READERS; i++) {
		void *failed = NULL;

		assert_int_equal(pthread_join(threads[i], &failed), 0);
		assert_null(failed);
	}
	assert_true(f->s->readers <= 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		STORE_TEST(queue__goes_round_the_users),
		STORE_TEST(queue__head_and_position_in_one_users_line),
		STORE_TEST(queue__expires_by_boot_time),
		STORE_TEST(lease__expires_by_boot_time),
		STORE_TEST(queue__a_requeued_run_may_get_new_time),
		STORE_TEST(deadlines__are_now_for_another_boot),
		STORE_TEST(counts__per_scope),
		STORE_TEST(meta__is_kept),
		STORE_TEST(idem__first_wins_until_it_is_old),
		STORE_TEST(idem__one_run_from_twenty_threads),
		STORE_TEST(writers__of_two_processes_wait_for_a_held_lock),
		STORE_TEST(readers__more_than_connections_beside_writers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
