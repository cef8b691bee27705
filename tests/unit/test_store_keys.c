/* SPDX-License-Identifier: Apache-2.0 */
/* store/: what directories of runs are made of: keys by what runs have, page by page, and labels
 * and users. */
#include "store_fixture.h"

#include "store/store_i.h"

enum { RUNS = 60 };

static const char *const users[] = { "alice", "bob", "carol" };

/* What the test knows of a run, to say by itself where it belongs. */
struct known {
	int64_t row;
	enum store_phase phase;
	const char *user;
	bool session, label;
};

static int64_t insert(struct store *s, const char *user, const char *labels, const char *session,
		      char ret_id[37])
{
	struct store_tx *tx = NULL;
	store_autorun r;

	run_init(&r, user);
	r.labels = labels ? strdup(labels) : NULL;
	r.session_id = session ? strdup(session) : NULL;
	OK(store_begin(s, &tx, e));
	OK(store_tx_run_insert(tx, &r, "{}", e));
	OK(store_commit(tx, false, e));
	if (ret_id)
		(void)snprintf(ret_id, 37, "%s", r.id);
	return r.row;
}

static void move_to(struct store *s, const char *id, enum store_phase to, int64_t started_us)
{
	struct store_transition t = { .id = id,
				      .from = STORE_MASK_LIVE,
				      .generation = -1,
				      .to = to,
				      .reason = "completed",
				      .started_us = started_us };

	assert_true(move(s, &t));
}

/* Starts that are not in the order of rows, many at the same moment, and some never. */
static void populate(struct store *s, struct known k[RUNS])
{
	for (int i = 0; i < RUNS; i++) {
		char id[37];

		k[i] = (struct known){ .phase = (enum store_phase)(1 + i % 7),
				       .user = users[i % 3],
				       .session = i % 4 == 0,
				       .label = i % 5 < 3 };
		k[i].row = insert(s, k[i].user, k[i].label ? "{\"a\":\"1\",\"b\":\"2\"}" : NULL,
				  k[i].session ? "s" : NULL, id);
		if (k[i].phase != STORE_QUEUED)
			move_to(s, id, k[i].phase, i % 2 ? 0 : 1000 - i % 3);
	}
}

static bool belongs(const struct known *k, const struct store_keys_by *by)
{
	return (!by->user || strcmp(by->user, k->user) == 0) &&
	       (!by->phase || by->phase == k->phase) && (!by->session_id || k->session) &&
	       (!by->label || k->label);
}

/* Walks the whole list in pages of this size; each run that belongs to it comes once. */
static void walk(struct store *s, const struct known k[RUNS], struct store_keys_by by, int page,
		 int64_t order[RUNS])
{
	bool seen[RUNS] = { false };
	int total = 0, n;

	do {
		struct store_run_key keys[RUNS];

		n = store_run_keys_by(s, &by, keys, (size_t)page, NULL);
		assert_true(n >= 0 && n <= page);
		for (int j = 0; j < n; j++) {
			int i = 0;

			while (i < RUNS && k[i].row != keys[j].row)
				i++;
			assert_true(i < RUNS && !seen[i] && belongs(&k[i], &by));
			assert_int_equal(keys[j].phase, k[i].phase);
			assert_int_equal(keys[j].in_session, k[i].session);
			seen[i] = true;
			order[total++] = by.after = keys[j].row;
		}
	} while (n == page);
	for (int i = 0; i < RUNS; i++)
		assert_int_equal(seen[i], belongs(&k[i], &by));
}

static void keys__by_everything_in_pages_of_any_size(void **state)
{
	struct fixture *f = *state;
	struct known k[RUNS];
	int64_t whole[RUNS], order[RUNS];

	populate(f->s, k);
	for (int what = 0; what < 10; what++) {
		for (int u = 0; u < 5; u++) {
			struct store_keys_by by = {
				.user = u == 4 ? "nobody"
					: u    ? users[u - 1]
					       : NULL,
				.phase = what < 8 ? (enum store_phase)what : 0,
				.session_id = what == 8 ? "s" : NULL,
				.label = what == 9 ? store_number("b=2") : 0,
			};

			memset(whole, 0, sizeof(whole));
			walk(f->s, k, by, RUNS, whole);
			for (int page = 1; page < 8; page++) {
				memset(order, 0, sizeof(order));
				walk(f->s, k, by, page, order);
				assert_memory_equal(order, whole, sizeof(order));
			}
		}
	}
}

/* The run at which a page ended leaves the phase: the next one begins behind its place. */
static void keys__go_on_behind_what_has_left(void **state)
{
	struct fixture *f = *state;
	char ids[10][37];
	int64_t rows[10];

	for (int i = 0; i < 10; i++)
		rows[i] = insert(f->s, "alice", NULL, NULL, ids[i]);
	for (int whose = 0; whose < 2; whose++) {
		struct store_keys_by by = { .user = whose ? "alice" : NULL, .phase = STORE_QUEUED };
		struct store_run_key keys[10];
		int at = whose * 5;

		by.after = rows[at + 1];
		move_to(f->s, ids[at + 1], STORE_STARTING, 5);
		assert_int_equal(store_run_keys_by(f->s, &by, keys, 2, NULL), 2);
		assert_int_equal(keys[0].row, rows[at + 2]);
		assert_int_equal(keys[1].row, rows[at + 3]);
	}
}

static void keys__of_nothing(void **state)
{
	struct fixture *f = *state;
	struct store_keys_by by = { .label = store_number("none=1") };
	struct store_run_key key;

	insert(f->s, "alice", "{\"none\":\"2\"}", NULL, NULL);
	assert_int_equal(store_run_keys_by(f->s, &by, &key, 1, NULL), 0);
	by = (struct store_keys_by){ .phase = STORE_FAILED, .after = 12345 };
	assert_int_equal(store_run_keys_by(f->s, &by, &key, 1, NULL), 0);
	by = (struct store_keys_by){ .session_id = "" };
	assert_int_equal(store_run_keys_by(f->s, &by, &key, 1, NULL), 0);
}

/* ---- what a page costs ----------------------------------------------------------------------- */

static int steps(sqlite3 *db, enum sql_id id, int64_t after, const char *session, int64_t number)
{
	sqlite3_stmt *st = NULL;
	int n;

	assert_int_equal(sqlite3_prepare_v2(db, store_statements[id].text, -1, &st, NULL),
			 SQLITE_OK);
	(void)sqlite3_bind_int64(st, 1, after);
	if (session)
		(void)sqlite3_bind_text(st, 2, session, -1, SQLITE_STATIC);
	else
		(void)sqlite3_bind_int64(st, 2, number);
	if (strstr(store_statements[id].name, "_OWNER"))
		(void)sqlite3_bind_text(st, 3, "alice", -1, SQLITE_STATIC);
	(void)sqlite3_bind_int(st, 4, 10);
	for (int rows = 0;; rows++) {
		if (sqlite3_step(st) == SQLITE_ROW)
			continue;
		assert_int_equal(rows, 10);
		break;
	}
	n = sqlite3_stmt_status(st, SQLITE_STMTSTATUS_VM_STEP, 0);
	sqlite3_finalize(st);
	return n;
}

/* All of one user, in one phase, with one label, started at one moment: nothing else tells them
 * apart, and still the last page costs what the second one did. */
static void keys__cost_the_same_on_every_page(void **state)
{
	static const struct {
		enum sql_id id;
		enum store_phase phase;
		const char *session;
	} rows[] = {
		{ SQL_KEYS_LIVE, STORE_QUEUED, NULL }, { SQL_KEYS_LIVE_OWNER, STORE_QUEUED, NULL },
		{ SQL_KEYS_DONE, STORE_FAILED, NULL }, { SQL_KEYS_DONE_OWNER, STORE_FAILED, NULL },
		{ SQL_KEYS_SESSION, 0, "s" },	       { SQL_KEYS_LABEL, 0, NULL },
		{ SQL_KEYS_LABEL_OWNER, 0, NULL },
	};
	struct fixture *f = *state;
	int64_t row[400];
	char path[128], id[37];
	sqlite3 *db = NULL;

	for (int i = 0; i < 400; i++) {
		row[i] = insert(f->s, "alice", "{\"ci\":\"17\"}", "s", id);
		if (i % 2)
			move_to(f->s, id, STORE_FAILED, 0);
	}
	(void)snprintf(path, sizeof(path), "%s/state.db", f->dir);
	assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		int at = rows[i].phase == STORE_QUEUED ? 10 : 11; /* a run of that phase */
		int64_t number = rows[i].phase ? rows[i].phase : store_number("ci=17");
		int early = steps(db, rows[i].id, row[at], rows[i].session, number);
		int late = steps(db, rows[i].id, row[at + 350], rows[i].session, number);

		if (late > early + 10)
			fail_msg("%s: %d steps, then %d", store_statements[rows[i].id].name, early,
				 late);
	}
	sqlite3_close(db);
}

/* The run at which a page ended is gone: the next begins where the one behind it is. */
static void keys__go_on_behind_what_is_gone(void **state)
{
	struct fixture *f = *state;
	struct store_keys_by by = { .phase = STORE_FAILED };
	struct store_run_key keys[10];
	int64_t rows[10];
	char id[37];

	for (int i = 0; i < 10; i++) {
		rows[i] = insert(f->s, "alice", NULL, NULL, id);
		move_to(f->s, id, STORE_FAILED, 1000 + i);
	}
	by.after = rows[4];
	exec_raw(f, "DELETE FROM runs WHERE started_us IN (1004, 1009)");
	assert_int_equal(store_run_keys_by(f->s, &by, keys, 10, NULL), 4);
	assert_int_equal(keys[0].row, rows[5]);
	by.after = rows[9];
	assert_int_equal(store_run_keys_by(f->s, &by, keys, 10, NULL), 0);
}

/* ---- labels and users ------------------------------------------------------------------------ */

static void number__is_made_of_the_text(void **state)
{
	(void)state;
	assert_true(store_number("ci=17") == store_number("ci=17"));
	assert_true(store_number("ci=17") != store_number("ci=18"));
	/* For ever: the first 53 bits of SHA-256. */
	assert_true(store_number("ci=17") == INT64_C(5348136055060756));
	for (int i = 0; i < 1000; i++) {
		char text[16];

		(void)snprintf(text, sizeof(text), "%d=", i);
		assert_true(store_number(text) > 0 && store_number(text) < INT64_C(1) << 53);
	}
}

struct names {
	char *name[16]; /* owned; in the order of their bytes */
	int64_t last;
	size_t n, stop;
};

static int by_bytes(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool see(void *ctx, int64_t number, const char *name)
{
	struct names *w = ctx;

	assert_true(number > w->last);
	w->last = number;
	w->name[w->n++] = strdup(name);
	qsort(w->name, w->n, sizeof(w->name[0]), by_bytes);
	return w->n != w->stop;
}

/* All at once, and one by one, each behind the one before. */
static void labels_are(struct store *s, const char *user, const char *want)
{
	for (size_t stop = 0; stop < 2; stop++) {
		struct names w = { .stop = stop };
		char text[512] = "";
		size_t before;

		do {
			before = w.n;
			w.stop = stop ? before + 1 : 0;
			OK(store_labels(s, user, w.last, see, &w, e));
		} while (stop && w.n > before);
		for (size_t i = 0; i < w.n; i++) {
			strcat(text, w.name[i]);
			strcat(text, " ");
			free(w.name[i]);
		}
		assert_string_equal(text, want);
	}
}

static void labels__of_ones_own_and_of_all(void **state)
{
	struct fixture *f = *state;

	labels_are(f->s, NULL, "");
	insert(f->s, "bob", "{\"ci\":\"17\",\"b\":\"\"}", NULL, NULL);
	insert(f->s, "alice", "{\"ci\":\"17\",\"a\":\"/\",\"z\":\"\xc3\xa9\"}", NULL, NULL);
	insert(f->s, "alice", "{\"ci\":\"9\"}", NULL, NULL);
	insert(f->s, "alice", "{\"ci\":\"17\"}", NULL, NULL);
	labels_are(f->s, NULL, "a=/ b= ci=17 ci=9 z=\xc3\xa9 ");
	labels_are(f->s, "alice", "a=/ ci=17 ci=9 z=\xc3\xa9 ");
	labels_are(f->s, "bob", "b= ci=17 ");
	labels_are(f->s, "carol", "");
}

static void users__have_numbers(void **state)
{
	struct fixture *f = *state;
	struct names w = { .n = 0 };
	int64_t alice = 0, n = 0;
	sbx_autofree char *name = NULL;

	FAILS(NOT_FOUND, store_user_find(f->s, "alice", &n, e));
	insert(f->s, "bob", NULL, NULL, NULL);
	insert(f->s, "alice", NULL, NULL, NULL);
	OK(store_user_find(f->s, "alice", &alice, e));
	for (int i = 0; i < 5; i++)
		insert(f->s, i % 2 ? "alice" : "aaron", NULL, NULL, NULL);
	OK(store_user_find(f->s, "alice", &n, e));
	assert_int_equal(n, alice);
	OK(store_user_get(f->s, n, &name, e));
	assert_string_equal(name, "alice");
	OK(store_users(f->s, 0, see, &w, e));
	assert_int_equal(w.n, 3);
	assert_string_equal(w.name[0], "aaron");
	OK(store_users(f->s, w.last, see, &w, e));
	assert_int_equal(w.n, 3);
	for (size_t i = 0; i < w.n; i++)
		free(w.name[i]);
	FAILS(NOT_FOUND, store_user_find(f->s, "carol", &n, e));
	FAILS(NOT_FOUND, store_user_get(f->s, 1000, &(char *){ NULL }, e));
}

/* ---- an older database ----------------------------------------------------------------------- */

static bool copy_usage(void *ctx, const struct store_usage *u)
{
	*(struct store_usage *)ctx = *u;
	return true;
}

static void migrate__numbers_labels_and_users_of_version_3(void **state)
{
	struct fixture f = { .s = NULL };
	struct store_keys_by by = { .user = "alice", .label = store_number("ci=17") };
	struct store_usage u = { .runs = 0 };
	int64_t n = 0;
	struct store_run_key key;

	(void)state;
	fixture_older(
		&f, 3,
		"INSERT INTO runs (id, owner, uid, door, phase, interactive, generation,"
		" claim_expires_us, cancel, created_us, started_us, finished_us, queue_expires_us,"
		" estimated_start_us, changed_us, has_exit_code, exit_code, log_bytes,"
		" artifact_bytes, artifact_count, artifacts_gone, labels) VALUES"
		" ('a','bob',1,'fs',4,0,1,0,0,1,2,3,0,0,3,1,0,0,0,0,0,'{\"ci\":\"17\"}'),"
		" ('b','alice',1,'fs',4,0,1,0,0,1,2,3,0,0,3,1,0,0,0,0,0,'{\"ci\":\"17\"}');"
		"INSERT INTO run_labels (holder, label, run) SELECT owner, 'ci=17', rid FROM runs;"
		"INSERT INTO usage_totals VALUES ('alice', 1, 7, 9), ('bob', 1, 0, 0)");
	OK(store_open(f.dir, NULL, &f.s, e));
	labels_are(f.s, NULL, "ci=17 ");
	labels_are(f.s, "alice", "ci=17 ");
	assert_int_equal(store_run_keys_by(f.s, &by, &key, 1, NULL), 1);
	assert_string_equal(key.id, "b");
	by.user = NULL;
	assert_int_equal(store_run_keys_by(f.s, &by, &key, 1, NULL), 1);
	assert_string_equal(key.id, "a");
	OK(store_user_find(f.s, "alice", &n, e));
	OK(store_usage_list(f.s, "alice", false, 0, 1, copy_usage, &u, e));
	assert_int_equal(u.runs, 1);
	assert_int_equal(u.log_bytes, 7);
	insert(f.s, "alice", "{\"ci\":\"18\"}", NULL, NULL);
	labels_are(f.s, "alice", "ci=17 ci=18 ");
	store_close(f.s);
	OK(sbx_remove_tree(AT_FDCWD, f.base));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		STORE_TEST(keys__by_everything_in_pages_of_any_size),
		STORE_TEST(keys__go_on_behind_what_has_left),
		STORE_TEST(keys__of_nothing),
		STORE_TEST(keys__cost_the_same_on_every_page),
		STORE_TEST(keys__go_on_behind_what_is_gone),
		cmocka_unit_test(number__is_made_of_the_text),
		STORE_TEST(labels__of_ones_own_and_of_all),
		STORE_TEST(users__have_numbers),
		cmocka_unit_test(migrate__numbers_labels_and_users_of_version_3),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
