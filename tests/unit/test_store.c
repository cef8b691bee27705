/* SPDX-License-Identifier: Apache-2.0 */
/* store/: opening, rows of runs, transactions. */
#include "store_fixture.h"

#include "store/store_i.h"

/* ---- opening --------------------------------------------------------------------------------- */

static mode_t mode_of(const struct fixture *f, const char *name)
{
	char path[160];
	struct stat st;

	(void)snprintf(path, sizeof(path), "%s/%s", f->dir, name);
	assert_int_equal(stat(path, &st), 0);
	return st.st_mode & 07777;
}

static void open__makes_private_files_whatever_the_umask(void **state)
{
	static const mode_t masks[] = { 0, 022, 0177 };

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(masks); i++) {
		struct fixture f = { .s = NULL };
		mode_t old;

		assert_int_equal(fixture_dir(&f), 0);
		old = umask(masks[i] & 077);
		OK(store_open(f.dir, NULL, &f.s, e));
		(void)umask(masks[i]);
		submit(f.s, "alice", NULL);
		(void)umask(old);
		assert_int_equal(mode_of(&f, ""), 0700);
		assert_int_equal(mode_of(&f, "runs"), 0700);
		assert_int_equal(mode_of(&f, "notify"), 0700);
		assert_int_equal(mode_of(&f, "state.db"), 0600);
		assert_int_equal(mode_of(&f, "state.db-wal"), 0600);
		assert_int_equal(mode_of(&f, "state.db-shm"), 0600);
		assert_int_equal(mode_of(&f, "notify/feed"), 0600);
		assert_string_equal(store_dir(f.s), f.dir);
		OK(store_integrity(f.s, e));
		store_close(f.s);
		OK(sbx_remove_tree(AT_FDCWD, f.base));
	}
}

static void open__existing_makes_nothing(void **state)
{
	struct fixture f = { .s = NULL };
	struct store_options opts = { .readers = 1, .existing = true };
	struct stat st;

	(void)state;
	assert_int_equal(fixture_dir(&f), 0);
	FAILS(STORE_UNAVAILABLE, store_open(f.dir, &opts, &f.s, e));
	assert_int_equal(stat(f.dir, &st), -1);
	OK(store_open(f.dir, NULL, &f.s, e));
	store_close(f.s);
	OK(store_open(f.dir, &opts, &f.s, e));
	submit(f.s, "alice", NULL);
	store_close(f.s);
	OK(sbx_remove_tree(AT_FDCWD, f.base));
}

static void open__refuses_a_newer_schema(void **state)
{
	struct fixture *f = *state;
	struct store *other = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;

	exec_raw(f, "UPDATE schema_version SET version = 1000");
	assert_int_equal(store_open(f->dir, NULL, &other, &e), -SBX_E_STORE_UNAVAILABLE);
	assert_non_null(strstr(e.message, "newer"));
	assert_non_null(strstr(e.message, "1000"));
}

static void open__refuses_what_is_no_database(void **state)
{
	struct fixture f = { .s = NULL };

	(void)state;
	assert_int_equal(fixture_dir(&f), 0);
	OK(sbx_mkdirs(f.dir, 0700));
	{
		char path[128];
		sbx_autoclose int fd = -1;

		(void)snprintf(path, sizeof(path), "%s/state.db", f.dir);
		fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
		assert_true(fd >= 0);
		for (int i = 0; i < 100; i++)
			assert_int_equal(write(fd, "this is not a database\n", 23), 23);
	}
	FAILS(STORE_UNAVAILABLE, store_open(f.dir, NULL, &f.s, e));
	OK(sbx_remove_tree(AT_FDCWD, f.base));
}

/* Children that wait at a gate and then open the same new directory. */
static void open__by_many_processes_at_once(void **state)
{
	enum { CHILDREN = 8 };
	struct fixture f = { .s = NULL };
	pid_t pids[CHILDREN];
	int64_t n = 0;
	int gate[2];
	char c;

	(void)state;
	assert_int_equal(fixture_dir(&f), 0);
	assert_int_equal(pipe2(gate, O_CLOEXEC), 0);
	for (int i = 0; i < CHILDREN; i++) {
		pids[i] = fork();
		assert_true(pids[i] >= 0);
		if (pids[i] == 0) {
			(void)close(gate[1]);
			(void)!read(gate[0], &c, 1);
			if (store_open(f.dir, NULL, &f.s, NULL) < 0)
				_exit(1);
			_exit(try_submit(f.s, "alice", true, NULL, NULL) < 0 ? 2 : 0);
		}
	}
	(void)close(gate[0]);
	(void)close(gate[1]);
	for (int i = 0; i < CHILDREN; i++)
		assert_int_equal(wait_child(pids[i]), 0);
	OK(store_open(f.dir, NULL, &f.s, e));
	OK(store_run_count(f.s, NULL, &n, e));
	assert_int_equal(n, CHILDREN);
	OK(store_integrity(f.s, e));
	store_close(f.s);
	OK(sbx_remove_tree(AT_FDCWD, f.base));
}

static void lock__belongs_to_one(void **state)
{
	struct fixture *f = *state;
	int fd = store_lock(f->s, "janitor.lock");

	assert_true(fd >= 0);
	assert_int_equal(store_lock(f->s, "janitor.lock"), -EWOULDBLOCK);
	(void)close(fd);
	fd = store_lock(f->s, "janitor.lock");
	assert_true(fd >= 0);
	(void)close(fd);
	assert_int_equal(store_lock(f->s, "../x"), -EINVAL);
	assert_int_equal(store_lock(f->s, "runs/x"), -EINVAL);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void assert_runs_equal(const struct store_run *a, const struct store_run *b)
{
#define X_TEXT(m)                                                                                  \
	do {                                                                                       \
		if (a->m)                                                                          \
			assert_string_equal(a->m, b->m);                                           \
		else                                                                               \
			assert_null(b->m);                                                         \
	} while (0);
#define X_INT64(m)		assert_int_equal(a->m, b->m);
#define X_INT(m)		assert_int_equal(a->m, b->m);
#define X_BOOL(m)		assert_int_equal(a->m, b->m);
#define X_PHASE(m)		assert_int_equal(a->m, b->m);
#define X_CANCEL(m)		assert_int_equal(a->m, b->m);
#define X(type, member, column) X_##type(member)
	STORE_RUN_COLUMNS(X)
#undef X
	assert_int_equal(a->row, b->row);
}

/* Every text member its own column name, every number its own value. */
static void fill(struct store_run *r)
{
	int64_t n = 1000;

#define F_TEXT(m, c)                                                                               \
	if (!r->m)                                                                                 \
		r->m = strdup(c " \xc3\xa9'\"");
#define F_INT64(m, c)		r->m = n++;
#define F_INT(m, c)		r->m = -3;
#define F_BOOL(m, c)		r->m = true;
#define F_PHASE(m, c)		r->m = STORE_STARTING;
#define F_CANCEL(m, c)		r->m = STORE_CANCEL_TERM;
#define X(type, member, column) F_##type(member, column)
	STORE_RUN_COLUMNS(X)
#undef X
	r->finished_us = 0;
}

static void insert__round_trip_of_every_column(void **state)
{
	struct fixture *f = *state;
	store_autotx struct store_tx *tx = NULL;
	sbx_autofree char *spec = NULL;

	for (int full = 0; full < 2; full++) {
		store_autorun r;
		store_autorun in_tx = { .row = 0 };
		store_autorun by_id = { .row = 0 };
		store_autorun by_row = { .row = 0 };

		run_init(&r, "alice");
		if (full) {
			r.labels = strdup("{\"a\":\"b\"}"); /* the one that is read on its way in */
			fill(&r);
		}
		OK(store_begin(f->s, &tx, e));
		OK(store_tx_run_insert(tx, &r, "{\"x\":1}", e));
		assert_true(r.row > 0);
		assert_true(r.changed_us > 0);
		OK(store_tx_run_get(tx, r.id, &in_tx, e));
		OK(store_commit(sbx_steal(&tx), false, e));
		OK(store_run_get(f->s, r.id, &by_id, e));
		OK(store_run_get_row(f->s, r.row, &by_row, e));
		assert_runs_equal(&r, &in_tx);
		assert_runs_equal(&r, &by_id);
		assert_runs_equal(&r, &by_row);
		free(sbx_steal(&spec));
		OK(store_run_spec(f->s, r.id, &spec, e));
		assert_string_equal(spec, "{\"x\":1}");
	}
}

static void insert__refuses_rows_that_make_no_sense(void **state)
{
	static const char good[] = "01890a5d-ac96-774b-bcce-b302099a8057";
	static const struct {
		const char *id, *user, *owner, *boot;
		enum store_phase phase;
	} rows[] = {
		{ "../../etc", "a", NULL, NULL, STORE_QUEUED },
		{ NULL, "a", NULL, NULL, STORE_QUEUED },
		{ good, "", NULL, NULL, STORE_QUEUED },
		{ good, "a", NULL, NULL, STORE_COMPLETED },
		{ good, "a", NULL, NULL, STORE_PHASE__COUNT },
		{ good, "a", "owner", NULL, STORE_STARTING },
	};
	struct fixture *f = *state;
	struct store_tx *tx = NULL;
	char door[] = "fs";
	int64_t n = -1;

	OK(store_begin(f->s, &tx, e));
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		store_autorun r = { .id = rows[i].id ? strdup(rows[i].id) : NULL,
				    .user = strdup(rows[i].user),
				    .door = strdup(door),
				    .claim_owner = rows[i].owner ? strdup(rows[i].owner) : NULL,
				    .phase = rows[i].phase };

		FAILS(INVALID_ARGUMENT, store_tx_run_insert(tx, &r, "{}", e));
	}
	OK(store_commit(tx, false, e));
	OK(store_run_count(f->s, NULL, &n, e));
	assert_int_equal(n, 0);
}

static void spec__of_many_megabytes(void **state)
{
	struct fixture *f = *state;
	size_t len = 16 << 20;
	sbx_autofree char *spec = malloc(len + 1);
	sbx_autofree char *back = NULL;
	struct store_tx *tx = NULL;
	store_autorun r;

	assert_non_null(spec);
	memset(spec, 'x', len);
	spec[len] = '\0';
	run_init(&r, "alice");
	OK(store_begin(f->s, &tx, e));
	OK(store_tx_run_insert(tx, &r, spec, e));
	OK(store_commit(tx, true, e));
	OK(store_run_spec(f->s, r.id, &back, e));
	assert_int_equal(strlen(back), len);
	assert_int_equal(memcmp(back, spec, len), 0);
	FAILS(RUN_NOT_FOUND,
	      store_run_spec(f->s, "01890a5d-ac96-774b-bcce-b302099a8057", &(char *){ NULL }, e));
}

/* ---- transactions ---------------------------------------------------------------------------- */

static void rollback__leaves_nothing(void **state)
{
	struct fixture *f = *state;
	struct store_tx *tx = NULL;
	store_autorun r;
	store_autorun got = { .row = 0 };
	int64_t last = -1, queued = -1, active = -1, bytes = -1;

	run_init(&r, "alice");
	OK(store_begin(f->s, &tx, e));
	OK(store_tx_run_insert(tx, &r, "{}", e));
	store_rollback(tx);
	store_rollback(NULL);
	FAILS(RUN_NOT_FOUND, store_run_get(f->s, r.id, &got, e));
	OK(store_changes_last(f->s, &last, e));
	OK(store_counts(f->s, &queued, &active, e));
	OK(store_usage_bytes(f->s, "alice", &bytes, e));
	assert_int_equal(last + queued + active + bytes, 0);
}

static void commit__refused_after_a_failed_statement(void **state)
{
	struct fixture *f = *state;
	struct store_tx *tx = NULL;
	store_autorun a;
	store_autorun got = { .row = 0 };

	run_init(&a, "alice");
	OK(store_begin(f->s, &tx, e));
	OK(store_tx_run_insert(tx, &a, "{}", e));
	FAILS(INTERNAL, store_tx_run_insert(tx, &a, "{}", e)); /* the same id again */
	FAILS(STORE_UNAVAILABLE, store_commit(tx, true, e));
	FAILS(RUN_NOT_FOUND, store_run_get(f->s, a.id, &got, e));
	submit(f->s, "alice", NULL); /* and the store goes on */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(open__makes_private_files_whatever_the_umask),
		cmocka_unit_test(open__existing_makes_nothing),
		STORE_TEST(open__refuses_a_newer_schema),
		cmocka_unit_test(open__refuses_what_is_no_database),
		cmocka_unit_test(open__by_many_processes_at_once),
		STORE_TEST(lock__belongs_to_one),
		STORE_TEST(insert__round_trip_of_every_column),
		STORE_TEST(insert__refuses_rows_that_make_no_sense),
		STORE_TEST(spec__of_many_megabytes),
		STORE_TEST(rollback__leaves_nothing),
		STORE_TEST(commit__refused_after_a_failed_statement),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
