/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the store asks of a database. The SQL itself stands once, in statements.h and schema.c,
 * in the part of the language that SQLite and PostgreSQL share; a driver only carries it.
 *
 * A connection, and every statement on it, belongs to one thread at a time. Functions that return
 * int give 0 or a negative error code. Every member is required.
 */
#ifndef SBX_STORE_DRIVER_H
#define SBX_STORE_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct sql_conn;
struct sql_stmt;

enum sql_kind { SQL_INT = 1, SQL_TEXT, SQL_BYTES };

/* One parameter. What p points to must live until the statement is reset; NULL is SQL NULL. */
struct sql_value {
	enum sql_kind kind;
	const void *p;
	size_t len;
	int64_t n;
};

enum sql_mode {
	SQL_READ,   /* queries only */
	SQL_WRITE,  /* the database must exist */
	SQL_CREATE, /* made when it is missing */
};

/* The words of the schema that the two dialects spell differently; see schema.c. */
enum sql_word {
	SQL_WORD_ROW,
	SQL_WORD_KEY,
	SQL_WORD_BYTES,
	SQL_WORD_LABELS,
	SQL_WORD_NUMBER,
	SQL_WORD__COUNT
};

struct sql_driver {
	const char *name;
	const char *words[SQL_WORD__COUNT];

	/* Before the first open, in a process that forks again and again: keeps memory that the
	 * children have no use for from being shared with them. May be NULL, and may do nothing. */
	void (*forks)(void);
	int (*open)(const char *path, enum sql_mode mode, struct sql_conn **ret,
		    struct sbx_error *e);
	void (*close)(struct sql_conn *c); /* every statement is finalized before */
	/* Statements without parameters or results, separated by semicolons. */
	int (*exec)(struct sql_conn *c, const char *script, struct sbx_error *e);

	/* A transaction that holds the right to write from its first moment, so that reading
	 * first and writing later cannot fail. Waits up to 10 s for it, or until the thread gives
	 * up (store_given_up). */
	int (*begin)(struct sql_conn *c, struct sbx_error *e);
	/* After a failure nothing was written and there is no transaction any more. */
	int (*commit)(struct sql_conn *c, struct sbx_error *e);
	void (*rollback)(struct sql_conn *c);

	/* Parameters are $1, $2, ... and appear first in this order. */
	int (*prepare)(struct sql_conn *c, const char *text, struct sql_stmt **ret,
		       struct sbx_error *e);
	void (*finalize)(struct sql_stmt *st); /* NULL is fine */
	int (*bind)(struct sql_stmt *st, int index, const struct sql_value *v, struct sbx_error *e);
	int (*step)(struct sql_stmt *st, struct sbx_error *e); /* 1: a row; 0: no more */
	void (*reset)(struct sql_stmt *st);
	/* Columns of the row that step gave, from 0; pointers live until the next step. */
	int64_t (*column_int)(struct sql_stmt *st, int col);	  /* 0 for NULL */
	const char *(*column_text)(struct sql_stmt *st, int col); /* NULL for NULL */
	const void *(*column_bytes)(struct sql_stmt *st, int col, size_t *ret_len);

	/* Pages of the write-ahead log not yet known to be in the database, as of the last commit
	 * on this connection; 0 where the server sees to that itself. */
	int64_t (*backlog)(struct sql_conn *c);
	/* Moves them there as far as nobody is in the way; hard: waits for readers. */
	void (*checkpoint)(struct sql_conn *c, bool hard);
	/* The database's own check of itself. */
	int (*check)(struct sql_conn *c, struct sbx_error *e);
};

extern const struct sql_driver store_sqlite;

/* conn.c: need the calling thread not wait for the right to write any more? */
bool store_given_up(void);

#endif
