/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of store/ share: a store in a directory of its own, and runs to put into it. */
#ifndef SBX_TESTS_STORE_FIXTURE_H
#define SBX_TESTS_STORE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/id.h"
#include "store/store_i.h"

struct fixture {
	char base[64]; /* made by mkdtemp; the state directory is below it */
	char dir[80];
	struct store *s;
};

#define OK(call)                                                                                   \
	do {                                                                                       \
		sbx_autoerror ok_e = SBX_ERROR_INIT;                                               \
		struct sbx_error *e = &ok_e;                                                       \
		int ok_r = (int)(call);                                                            \
		(void)e;                                                                           \
		if (ok_r < 0)                                                                      \
			fail_msg("%s: %d %s", #call, ok_r, ok_e.message);                          \
	} while (0)
#define FAILS(want, call)                                                                          \
	do {                                                                                       \
		sbx_autoerror ok_e = SBX_ERROR_INIT;                                               \
		struct sbx_error *e = &ok_e;                                                       \
		assert_int_equal((int)(call), -SBX_E_##want);                                      \
		assert_int_equal(ok_e.code, SBX_E_##want);                                         \
		assert_true(ok_e.message[0] != '\0');                                              \
	} while (0)

static inline int fixture_dir(struct fixture *f)
{
	(void)snprintf(f->base, sizeof(f->base), "/tmp/sbx-store-XXXXXX");
	if (!mkdtemp(f->base))
		return -1;
	(void)snprintf(f->dir, sizeof(f->dir), "%s/a/state", f->base);
	return 0;
}

static inline int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	sbx_autoerror e = SBX_ERROR_INIT;

	if (!f || fixture_dir(f) < 0)
		return -1;
	if (store_open(f->dir, NULL, &f->s, &e) < 0) {
		(void)fprintf(stderr, "store_open: %s\n", e.message);
		return -1;
	}
	*state = f;
	return 0;
}

static inline int teardown(void **state)
{
	struct fixture *f = *state;

	store_close(f->s);
	(void)sbx_remove_tree(AT_FDCWD, f->base);
	free(f);
	return 0;
}

#define STORE_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static inline void run_init(struct store_run *r, const char *user)
{
	memset(r, 0, sizeof(*r));
	r->id = malloc(SBX_ID_LEN + 1);
	assert_non_null(r->id);
	sbx_id_new(r->id);
	r->user = strdup(user);
	r->door = strdup("fs");
	r->uid = 1000;
	r->phase = STORE_QUEUED;
}

/* Inserts a queued run; *ret_row may be NULL. A negative error code on failure. */
static inline int try_submit(struct store *s, const char *user, bool durable, char id[37],
			     int64_t *ret_row)
{
	store_autotx struct store_tx *tx = NULL;
	store_autorun r;
	sbx_autoerror e = SBX_ERROR_INIT;
	struct store_tx *commit;
	int rc;

	run_init(&r, user);
	rc = store_begin(s, &tx, &e);
	if (rc == 0)
		rc = store_tx_run_insert(tx, &r, "{\"command\":[\"true\"]}", &e);
	if (rc == 0) {
		commit = sbx_steal(&tx);
		rc = store_commit(commit, durable, &e);
	}
	if (rc < 0)
		return rc;
	if (id)
		memcpy(id, r.id, SBX_ID_LEN + 1);
	if (ret_row)
		*ret_row = r.row;
	return 0;
}

static inline int64_t submit(struct store *s, const char *user, char id[37])
{
	int64_t row = 0;

	assert_int_equal(try_submit(s, user, false, id, &row), 0);
	return row;
}

/* One transition in a transaction of its own. */
static inline bool move(struct store *s, const struct store_transition *t)
{
	struct store_tx *tx = NULL;
	bool done = false;

	OK(store_begin(s, &tx, e));
	OK(store_tx_run_transition(tx, t, &done, e));
	OK(store_commit(tx, false, e));
	return done;
}

static inline bool claim(struct store *s, const char *id, int64_t expires_us)
{
	struct store_transition t = { .id = id,
				      .from = STORE_MASK(STORE_QUEUED),
				      .generation = -1,
				      .to = STORE_STARTING,
				      .started_us = sbx_now_us(),
				      .claim_owner = "host/boot/1/a",
				      .claim_boot = sbx_boot_id(),
				      .claim_expires_us = expires_us };

	return move(s, &t);
}

static inline bool finish(struct store *s, const char *id, enum store_phase to)
{
	struct store_transition t = { .id = id,
				      .from = STORE_MASK_LIVE,
				      .generation = -1,
				      .to = to,
				      .reason = "completed",
				      .has_exit_code = true,
				      .exit_code = 0 };

	return move(s, &t);
}

/* Somebody with the sqlite3 shell. */
static inline void exec_raw(const struct fixture *f, const char *sql)
{
	char path[128];
	sqlite3 *db = NULL;

	(void)snprintf(path, sizeof(path), "%s/state.db", f->dir);
	assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
	assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
	sqlite3_close(db);
}

/* A closed store as the program of that schema version left it, with these rows. */
static inline void fixture_older(struct fixture *f, int64_t version, const char *sql)
{
	SBX_AUTO(store_conn_closep) struct store_conn *c = NULL;
	char path[128];

	assert_int_equal(fixture_dir(f), 0);
	OK(sbx_mkdirs(f->dir, 0700));
	(void)snprintf(path, sizeof(path), "%s/state.db", f->dir);
	OK(store_conn_open(&store_sqlite, path, SQL_CREATE, &c, e));
	OK(store_migrate(c, true, version, e));
	exec_raw(f, sql);
}

/* Waits for a child and gives its exit status; fails the test when it was killed. */
static inline int wait_child(pid_t pid)
{
	int status = 0;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

#endif
