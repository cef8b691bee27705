/* SPDX-License-Identifier: Apache-2.0 */
/* store/: every statement can be prepared, and uses the index that its row of the table names. */
#include "store_fixture.h"

#include <sqlite3.h>

#include "store/store_i.h"

static sqlite3 *open_raw(const struct fixture *f)
{
	char path[128];
	sqlite3 *db = NULL;

	(void)snprintf(path, sizeof(path), "%s/state.db", f->dir);
	assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
	return db;
}

static void statements__all_prepare(void **state)
{
	struct fixture *f = *state;
	SBX_AUTO(store_conn_closep) struct store_conn *c = NULL;

	OK(store_conn_open(f->s->sql, f->s->database, SQL_WRITE, &c, e));
	for (size_t i = 0; i < SQL__COUNT; i++) {
		struct sql_stmt *st = NULL;

		OK(c->sql->prepare(c->db, store_statements[i].text, &st, e));
		c->sql->finalize(st);
	}
}

/* A sort of what an index has narrowed down to unfinished runs is fine: once in these. */
static bool may_sort(const char *name)
{
	size_t n = strlen(name);

	return strcmp(name, "LIST_LIVE") == 0 ||
	       (strncmp(name, "STARTED_", 8) == 0 &&
		(strcmp(name + n - 4, "DESC") == 0 || strcmp(name + n - 3, "ASC") == 0));
}

/* Holds each line of a plan to the rule, and says whether `want` was among them: once, or, where
 * the four terminal phases are asked for one by one, four times, beside the live rows. */
static bool check_plan(sqlite3 *db, const struct sql_text *t)
{
	sqlite3_stmt *st = NULL;
	sbx_autofree char *sql = NULL;
	bool live = false;
	int found = 0, sorts = 0, want = strncmp(t->name, "STARTED_", 8) == 0 ? 4 : 1;

	assert_true(asprintf(&sql, "EXPLAIN QUERY PLAN %s", t->text) > 0);
	assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &st, NULL), SQLITE_OK);
	while (sqlite3_step(st) == SQLITE_ROW) {
		const char *line = (const char *)sqlite3_column_text(st, 3);

		if (strncmp(line, "SCAN ", 5) == 0 && !strstr(line, "USING") &&
		    strcmp(line, "SCAN CONSTANT ROW") != 0 && t->plan && t->plan[0] != '=')
			fail_msg("%s: %s", t->name, line);
		if (strstr(line, "TEMP B-TREE") && (!may_sort(t->name) || sorts++))
			fail_msg("%s: %s", t->name, line);
		if (t->plan && strstr(line, t->plan))
			found++;
		if (want == 4 && strstr(line, "runs_live"))
			live = true;
	}
	sqlite3_finalize(st);
	return found >= want && (want == 1 || live);
}

static void statements__use_their_index(void **state)
{
	sqlite3 *db = open_raw(*state);

	for (size_t i = 0; i < SQL__COUNT; i++) {
		const struct sql_text *t = &store_statements[i];
		bool found = check_plan(db, t);

		if (!t->plan)
			assert_int_equal(strncmp(t->text, "INSERT ", 7), 0);
		else if (t->plan[0] != '=' && !found)
			fail_msg("%s does not use %s", t->name, t->plan);
	}
	sqlite3_close(db);
}

/* The rule itself must be able to fail: the same question without its index is caught. */
static void statements__a_lost_index_is_noticed(void **state)
{
	sqlite3 *db = open_raw(*state);

	assert_true(check_plan(db, &store_statements[SQL_QUEUE_HEAD]));
	assert_int_equal(sqlite3_exec(db, "DROP INDEX runs_live", NULL, NULL, NULL), SQLITE_OK);
	assert_false(check_plan(db, &(struct sql_text){ "QUEUE_HEAD",
							store_statements[SQL_QUEUE_HEAD].plan,
							store_statements[SQL_QUEUE_HEAD].text }));
	sqlite3_close(db);
}

/* Steps of the virtual machine, which is what "does not grow" means. */
static int steps(sqlite3 *db, enum sql_id id)
{
	sqlite3_stmt *st = NULL;
	int n;

	assert_int_equal(sqlite3_prepare_v2(db, store_statements[id].text, -1, &st, NULL),
			 SQLITE_OK);
	(void)sqlite3_bind_text(st, 1, "alice", -1, SQLITE_STATIC);
	if (id == SQL_COUNT_OWNER) {
		(void)sqlite3_bind_int(st, 1, STORE_STARTING);
		(void)sqlite3_bind_int(st, 2, STORE_RUNNING);
		(void)sqlite3_bind_text(st, 3, "alice", -1, SQLITE_STATIC);
	}
	if (id == SQL_QUEUE_POSITION)
		(void)sqlite3_bind_int64(st, 2, INT64_MAX);
	if (sqlite3_bind_parameter_count(st) == 10) { /* STARTED_*: the first two of all */
		(void)sqlite3_bind_int(st, 1, 0);
		(void)sqlite3_bind_int64(st, 2, INT64_MAX);
		(void)sqlite3_bind_int(st, 3, 0);
		(void)sqlite3_bind_text(st, 4, "alice", -1, SQLITE_STATIC);
		(void)sqlite3_bind_int(st, 9, 2);
		(void)sqlite3_bind_int(st, 10, 0);
	}
	while (sqlite3_step(st) == SQLITE_ROW)
		;
	n = sqlite3_stmt_status(st, SQLITE_STMTSTATUS_VM_STEP, 0);
	sqlite3_finalize(st);
	return n;
}

static void queries__do_not_grow_with_finished_runs(void **state)
{
	static const enum sql_id ids[] = {
		SQL_COUNT_OWNER,       SQL_QUEUE_HEAD, SQL_QUEUE_NEXT_USER,
		SQL_RESERVED,	       SQL_DEADLINES,  SQL_KEY_LATEST_OWNER,
		SQL_KEY_LATEST,	       SQL_USAGE_GET,  SQL_QUEUE_POSITION,
		SQL_COUNT_ALL,	       SQL_ENDS,       SQL_PHASE_COUNTS,
		SQL_STARTED_OWNER_DESC
	};
	struct fixture *f = *state;
	sqlite3 *db = open_raw(f);
	int before[SBX_COUNT(ids)];
	char id[37];

	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < (round ? 300 : 3); i++) {
			submit(f->s, "alice", id);
			assert_true(claim(f->s, id, INT64_MAX));
			assert_true(finish(f->s, id, STORE_COMPLETED));
		}
		for (size_t i = 0; i < SBX_COUNT(ids); i++) {
			if (round == 0)
				before[i] = steps(db, ids[i]);
			else if (steps(db, ids[i]) > before[i] + 5)
				fail_msg("%s grows", store_statements[ids[i]].name);
		}
	}
	sqlite3_close(db);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		STORE_TEST(statements__all_prepare),
		STORE_TEST(statements__use_their_index),
		STORE_TEST(statements__a_lost_index_is_noticed),
		STORE_TEST(queries__do_not_grow_with_finished_runs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
