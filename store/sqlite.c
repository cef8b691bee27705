/* SPDX-License-Identifier: Apache-2.0 */
/* The SQLite driver: settings of a connection, waiting for a lock, SQLite's errors in our words. */
#include "store/driver.h"
#include "store/store.h"

#include <errno.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/auto.h"
#include "base/clock.h"
#include "base/id.h"

enum {
	BUSY_SECONDS = 10, /* how long a lock is waited for */
	BUSY_FIRST_US = 100,
	BUSY_MOST_US = 2000,
	LOOKASIDE_SLOT = 256, /* bytes; SQLite's default of 48 KiB a connection is too much */
	LOOKASIDE_SLOTS = 48,
	CACHE_KIB = 512, /* page cache of one connection */
	CACHE_PAGE = 4096,
	CACHE_SLOTS = 256, /* pages of two connections */
};

/*
 * What a process shares with a child it has to take back page by page, with a fault for each that
 * it writes to. The page cache is most of what a runner writes between two forks.
 */
static void keep_cache_from_children(void)
{
	static bool done;
	int head = 0;
	size_t slot, size;
	void *area;

	if (done || sqlite3_config(SQLITE_CONFIG_PCACHE_HDRSZ, &head) != SQLITE_OK)
		return;
	done = true;
	slot = (size_t)(CACHE_PAGE + head);
	size = slot * CACHE_SLOTS;
	area = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (area == MAP_FAILED)
		return;
	/* For the rest of the process; what does not fit comes from malloc. */
	if (madvise(area, size, MADV_DONTFORK) < 0 ||
	    sqlite3_config(SQLITE_CONFIG_PAGECACHE, area, (int)slot, CACHE_SLOTS) != SQLITE_OK)
		(void)munmap(area, size);
}

struct sql_conn {
	sqlite3 *db;
	int64_t busy_since; /* boot clock; when the present wait began */
	uint64_t jitter;    /* state of a xorshift generator */
	int backlog;
	bool beginning; /* a transaction: nothing is done yet, so the wait may be given up */
};

/* A sqlite3_stmt is handed out as our opaque type. */
static sqlite3_stmt *raw(struct sql_stmt *st)
{
	return (sqlite3_stmt *)(void *)st;
}

static int fail(sqlite3 *db, int rc, const char *what, struct sbx_error *e)
{
	int sys = db ? sqlite3_system_errno(db) : 0;
	const char *text = db ? sqlite3_errmsg(db) : sqlite3_errstr(rc);

	switch (rc & 0xff) {
	case SQLITE_NOMEM:
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory to %s", what);
	case SQLITE_FULL:
		return sbx_fail(e, SBX_E_STORAGE_FULL,
				"cannot %s: the disk that holds the state is full", what);
	case SQLITE_BUSY:
	case SQLITE_LOCKED:
		return sbx_fail(e, SBX_E_STORE_UNAVAILABLE,
				"cannot %s: another program has held the database for more than "
				"%d s",
				what, BUSY_SECONDS);
	case SQLITE_CONSTRAINT:
		return sbx_fail(e, SBX_E_INTERNAL, "cannot %s: %s", what, text);
	case SQLITE_IOERR:
	case SQLITE_CANTOPEN:
		if (sys)
			return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, sys, "cannot %s: %s",
					      what, text);
		break;
	default:
		break;
	}
	return sbx_fail(e, SBX_E_STORE_UNAVAILABLE, "cannot %s: %s", what, text);
}

/*
 * SQLite's locks are fcntl locks that it asks for without waiting, so whoever does not get one
 * must come back later; there is no event to wait for. SQLite's own handler backs off to
 * 100 ms, which starves a writer among many short transactions; these take about 0.1 ms, so we
 * come back after 0.1 to 2 ms, at an uneven interval so that waiters do not march in step. This
 * is the only place of the store that sleeps, and the whole wait is bounded.
 */
static int wait_for_lock(void *ctx, int count)
{
	struct sql_conn *c = ctx;
	int64_t now = sbx_boot_us();
	int64_t us = count < 5 ? BUSY_FIRST_US << count : BUSY_MOST_US;
	struct timespec ts = { 0, 0 };

	if (count == 0)
		c->busy_since = now;
	if (now - c->busy_since > BUSY_SECONDS * SBX_SECOND_US ||
	    (c->beginning && store_given_up()))
		return 0;
	if (us > BUSY_MOST_US)
		us = BUSY_MOST_US;
	c->jitter ^= c->jitter << 13;
	c->jitter ^= c->jitter >> 7;
	c->jitter ^= c->jitter << 17;
	ts.tv_nsec = (us / 2 + (int64_t)(c->jitter % (uint64_t)us)) * 1000;
	(void)nanosleep(&ts, NULL);
	return 1;
}

static int on_commit(void *ctx, sqlite3 *db, const char *name, int pages)
{
	struct sql_conn *c = ctx;

	(void)db;
	(void)name;
	c->backlog = pages;
	return SQLITE_OK;
}

static void configure_library(void)
{
	/* Statistics cost a global lock at every allocation. */
	(void)sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0);
	(void)sqlite3_config(SQLITE_CONFIG_LOOKASIDE, LOOKASIDE_SLOT, LOOKASIDE_SLOTS);
	(void)sqlite3_initialize();
}

static int exec(struct sql_conn *c, const char *script, struct sbx_error *e)
{
	int rc = sqlite3_exec(c->db, script, NULL, NULL, NULL);

	return rc == SQLITE_OK ? 0 : fail(c->db, rc, "set up the database", e);
}

static int store_text(void *ctx, int n, char **values, char **names)
{
	char *out = ctx;

	(void)names;
	(void)snprintf(out, 32, "%s", n > 0 && values[0] ? values[0] : "");
	return 0;
}

/* Switching to WAL needs the database for a moment alone, and SQLite does not call the busy
 * handler for it; two programs that open a new database at once meet here. */
static int enter_wal(struct sql_conn *c, struct sbx_error *e)
{
	char mode[32] = "";
	int rc;

	for (int tries = 0;; tries++) {
		rc = sqlite3_exec(c->db, "PRAGMA journal_mode = WAL", store_text, mode, NULL);
		if ((rc & 0xff) != SQLITE_BUSY || !wait_for_lock(c, tries))
			break;
	}
	if (rc != SQLITE_OK)
		return fail(c->db, rc, "open the database", e);
	if (strcmp(mode, "wal") != 0)
		return sbx_fail(e, SBX_E_STORE_UNAVAILABLE,
				"the state directory's file system cannot hold a write-ahead log "
				"(journal mode '%s'); use a local one",
				mode);
	return 0;
}

static void sqlite_close(struct sql_conn *c)
{
	if (!c)
		return;
	(void)sqlite3_close(c->db);
	free(c);
}
SBX_DEFINE_AUTO(struct sql_conn, sqlite_close)

/* For migrations. */
static void number_of(sqlite3_context *x, int n, sqlite3_value **args)
{
	const char *text = (const char *)sqlite3_value_text(args[0]);

	(void)n;
	sqlite3_result_int64(x, text ? store_number(text) : 0);
}

static int sqlite_open(const char *path, enum sql_mode mode, struct sql_conn **ret,
		       struct sbx_error *e)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE;
	SBX_AUTO(sqlite_closep) struct sql_conn *c = NULL;
	char pragmas[512];
	int rc;

	(void)pthread_once(&once, configure_library);
	c = calloc(1, sizeof(*c));
	if (!c)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory to open the database");
	sbx_random(&c->jitter, sizeof(c->jitter));
	c->jitter |= 1;
	if (mode == SQL_CREATE)
		flags |= SQLITE_OPEN_CREATE;
	rc = sqlite3_open_v2(path, &c->db, flags, NULL);
	if (rc != SQLITE_OK)
		return fail(c->db, rc, "open the database", e);
	(void)sqlite3_extended_result_codes(c->db, 1);
	(void)sqlite3_busy_handler(c->db, wait_for_lock, c);
	(void)snprintf(pragmas, sizeof(pragmas),
		       "PRAGMA cache_size = -%d; PRAGMA mmap_size = 0; PRAGMA temp_store = MEMORY;"
		       "PRAGMA foreign_keys = OFF; PRAGMA synchronous = NORMAL;"
		       "PRAGMA journal_size_limit = 67108864; PRAGMA query_only = %d",
		       CACHE_KIB, mode == SQL_READ);
	rc = exec(c, pragmas, e);
	if (rc < 0)
		return rc;
	if (mode != SQL_READ) {
		rc = enter_wal(c, e);
		if (rc < 0)
			return rc;
	}
	rc = sqlite3_create_function(c->db, "sbx_number", 1, SQLITE_UTF8 | SQLITE_DETERMINISTIC,
				     NULL, number_of, NULL, NULL);
	if (rc != SQLITE_OK)
		return fail(c->db, rc, "add a function to the database", e);
	/* Takes the place of SQLite's own check-point inside a commit; see wal.c. */
	(void)sqlite3_wal_hook(c->db, on_commit, c);
	*ret = sbx_steal(&c);
	return 0;
}

static int sqlite_begin(struct sql_conn *c, struct sbx_error *e)
{
	int rc;

	c->beginning = true;
	rc = sqlite3_exec(c->db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
	c->beginning = false;
	return rc == SQLITE_OK ? 0 : fail(c->db, rc, "begin a transaction", e);
}

static void sqlite_rollback(struct sql_conn *c)
{
	/* Some failures, a full disk among them, have rolled back already. */
	if (!sqlite3_get_autocommit(c->db))
		(void)sqlite3_exec(c->db, "ROLLBACK", NULL, NULL, NULL);
}

static int sqlite_commit(struct sql_conn *c, struct sbx_error *e)
{
	int rc, r;

	if (sqlite3_get_autocommit(c->db))
		return sbx_fail(e, SBX_E_STORE_UNAVAILABLE,
				"cannot commit: the transaction was rolled back");
	rc = sqlite3_exec(c->db, "COMMIT", NULL, NULL, NULL);
	if (rc == SQLITE_OK)
		return 0;
	r = fail(c->db, rc, "commit", e);
	sqlite_rollback(c);
	return r;
}

/* $N are names to SQLite, numbered as they appear; hold the text to numbers in order. */
static int check_parameters(sqlite3_stmt *st, struct sbx_error *e)
{
	int n = sqlite3_bind_parameter_count(st);
	char want[16];

	for (int i = 1; i <= n; i++) {
		const char *name = sqlite3_bind_parameter_name(st, i);

		(void)snprintf(want, sizeof(want), "$%d", i);
		if (!name || strcmp(name, want) != 0)
			return sbx_fail(e, SBX_E_INTERNAL,
					"parameter %d of a statement is called '%s'", i,
					name ? name : "?");
	}
	return 0;
}

static int sqlite_prepare(struct sql_conn *c, const char *text, struct sql_stmt **ret,
			  struct sbx_error *e)
{
	sqlite3_stmt *st = NULL;
	int rc = sqlite3_prepare_v3(c->db, text, -1, SQLITE_PREPARE_PERSISTENT, &st, NULL);

	if (rc != SQLITE_OK)
		return fail(c->db, rc, "prepare a statement", e);
	rc = check_parameters(st, e);
	if (rc < 0) {
		(void)sqlite3_finalize(st);
		return rc;
	}
	*ret = (struct sql_stmt *)(void *)st;
	return 0;
}

static void sqlite_finalize(struct sql_stmt *st)
{
	(void)sqlite3_finalize(raw(st));
}

static int sqlite_bind(struct sql_stmt *st, int index, const struct sql_value *v,
		       struct sbx_error *e)
{
	int rc;

	if (v->kind == SQL_INT)
		rc = sqlite3_bind_int64(raw(st), index, v->n);
	else if (!v->p)
		rc = sqlite3_bind_null(raw(st), index);
	else if (v->kind == SQL_TEXT)
		rc = sqlite3_bind_text64(raw(st), index, v->p, v->len, SQLITE_STATIC, SQLITE_UTF8);
	else
		rc = sqlite3_bind_blob64(raw(st), index, v->p, v->len, SQLITE_STATIC);
	return rc == SQLITE_OK ? 0 : fail(sqlite3_db_handle(raw(st)), rc, "bind a value", e);
}

static int sqlite_step(struct sql_stmt *st, struct sbx_error *e)
{
	int rc = sqlite3_step(raw(st));

	if (rc == SQLITE_ROW)
		return 1;
	if (rc == SQLITE_DONE)
		return 0;
	return fail(sqlite3_db_handle(raw(st)), rc, "use the database", e);
}

static void sqlite_reset(struct sql_stmt *st)
{
	(void)sqlite3_reset(raw(st));
	(void)sqlite3_clear_bindings(raw(st));
}

static int64_t sqlite_column_int(struct sql_stmt *st, int col)
{
	return sqlite3_column_int64(raw(st), col);
}

static const char *sqlite_column_text(struct sql_stmt *st, int col)
{
	return (const char *)sqlite3_column_text(raw(st), col);
}

static const void *sqlite_column_bytes(struct sql_stmt *st, int col, size_t *ret_len)
{
	const void *p = sqlite3_column_blob(raw(st), col);

	*ret_len = (size_t)sqlite3_column_bytes(raw(st), col);
	return p;
}

static int64_t sqlite_backlog(struct sql_conn *c)
{
	return c->backlog;
}

static void sqlite_checkpoint(struct sql_conn *c, bool hard)
{
	/* Not done is no failure: somebody else is at it, or the next one will. */
	(void)sqlite3_wal_checkpoint_v2(
		c->db, NULL, hard ? SQLITE_CHECKPOINT_RESTART : SQLITE_CHECKPOINT_PASSIVE, NULL,
		NULL);
}

static int sqlite_check(struct sql_conn *c, struct sbx_error *e)
{
	sqlite3_stmt *st = NULL;
	const char *text = NULL;
	int rc, r = 0;

	rc = sqlite3_prepare_v2(c->db, "PRAGMA integrity_check(1)", -1, &st, NULL);
	if (rc == SQLITE_OK)
		rc = sqlite3_step(st);
	if (rc == SQLITE_ROW)
		text = (const char *)sqlite3_column_text(st, 0);
	if (rc != SQLITE_ROW)
		r = fail(c->db, rc, "check the database", e);
	else if (!text || strcmp(text, "ok") != 0)
		r = sbx_fail(e, SBX_E_STORE_UNAVAILABLE, "the database is damaged: %s",
			     text ? text : "no answer");
	(void)sqlite3_finalize(st);
	return r;
}

const struct sql_driver store_sqlite = {
	.name = "sqlite",
	.words = {
		[SQL_WORD_ROW] = "INTEGER PRIMARY KEY AUTOINCREMENT",
		[SQL_WORD_KEY] = "INTEGER PRIMARY KEY",
		[SQL_WORD_BYTES] = "BLOB",
			[SQL_WORD_LABELS] = "json_each(runs.labels)",
		[SQL_WORD_NUMBER] = "sbx_number",
	},
	.forks = keep_cache_from_children,
	.open = sqlite_open,
	.close = sqlite_close,
	.exec = exec,
	.begin = sqlite_begin,
	.commit = sqlite_commit,
	.rollback = sqlite_rollback,
	.prepare = sqlite_prepare,
	.finalize = sqlite_finalize,
	.bind = sqlite_bind,
	.step = sqlite_step,
	.reset = sqlite_reset,
	.column_int = sqlite_column_int,
	.column_text = sqlite_column_text,
	.column_bytes = sqlite_column_bytes,
	.backlog = sqlite_backlog,
	.checkpoint = sqlite_checkpoint,
	.check = sqlite_check,
};
