/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of store/ share; nobody else includes this but the unit tests. */
#ifndef SBX_STORE_STORE_I_H
#define SBX_STORE_STORE_I_H

#include <pthread.h>

#include "store/driver.h"
#include "store/statements.h"
#include "store/store.h"

enum {
	STORE_WAL_RESERVE = 4 << 20, /* bytes that the write-ahead log has from the start */
	STORE_BACKLOG_SOFT = 600,    /* pages in the write-ahead log: wake the checkpointer, so that
					the log begins anew before it outgrows its reserve */
	STORE_BACKLOG_HARD = 16000,  /* do it here, or wait for readers */
	STORE_WAIT_SECONDS = 10,     /* for the write lock; the driver then waits as long again */
	STORE_CHANGES_PRUNE_MAX = 10000,
};

struct store_conn {
	struct sql_conn *db;
	const struct sql_driver *sql;
	struct sql_stmt *statements[SQL__COUNT]; /* prepared at first use */
	struct store_conn *next;		 /* in the pool of idle readers */
};

struct store_tx {
	struct store *s;
	bool changed; /* appended to the feed */
	bool failed;  /* a statement failed: this transaction cannot commit any more */
};

/* The order of commits of this process, and how far it is on the disk (wal.c). */
struct store_sync {
	pthread_mutex_t lock;
	pthread_cond_t moved;
	uint64_t committed; /* number of commits so far */
	uint64_t synced;    /* those up to here are on the disk */
	bool busy;	    /* a thread is in fdatasync */
	bool dir_synced;    /* the log's name in the directory is on the disk */
	int broken;	    /* errno of a sync that failed; for ever */
	uint64_t rounds;    /* syncs done, for tests */
};

struct store_checkpointer {
	pthread_mutex_t lock;
	pthread_cond_t wake;
	pthread_t thread;
	bool allowed, running, stop, wanted, hard;
};

struct store {
	const struct sql_driver *sql;
	char *dir;	/* absolute */
	char *database; /* <dir>/state.db */
	int dir_fd, runs_fd, runners_fd, feed_fd, wal_fd;
	bool existing;

	/* A lock that can be waited for until a time of the monotonic clock. */
	pthread_mutex_t write_lock;
	pthread_cond_t write_free;
	bool writing;		   /* from store_begin to commit or rollback */
	struct store_conn *writer; /* of whoever set writing */
	struct store_tx tx;	   /* likewise */

	pthread_mutex_t pool_lock;
	pthread_cond_t pool_free;
	struct store_conn *idle;  /* under pool_lock */
	int readers, max_readers; /* under pool_lock */

	struct store_sync sync;
	struct store_checkpointer checkpointer;
};

/* ---- statements.c ---------------------------------------------------------------------------- */

struct sql_text {
	const char *name, *plan, *text;
};
extern const struct sql_text store_statements[SQL__COUNT];

/* A statement that runs on a connection; reset by the cleanup attribute. */
struct store_query {
	struct store_conn *c;
	struct sql_stmt *st;
};
void store_query_done(struct store_query *q);
#define store_autoquery __attribute__((cleanup(store_query_done))) struct store_query

struct sql_value store_text(const char *s); /* NULL is SQL NULL */
struct sql_value store_bytes(const void *p, size_t len);
struct sql_value store_int(int64_t n);
#define STORE_ARGS(...)                                                                            \
	(const struct sql_value[]){ __VA_ARGS__ },                                                 \
		sizeof((const struct sql_value[]){ __VA_ARGS__ }) / sizeof(struct sql_value)

/* Binds args to statement id; rows come from store_next. What args point to outlives q. */
int store_start(struct store_conn *c, enum sql_id id, const struct sql_value *args, size_t n,
		struct store_query *q, struct sbx_error *e);
int store_next(struct store_query *q, struct sbx_error *e); /* 1: a row, 0: no more */
/* store_start and the first store_next. */
int store_first(struct store_conn *c, enum sql_id id, const struct sql_value *args, size_t n,
		struct store_query *q, struct sbx_error *e);
int64_t store_col_int(struct store_query *q, int col);
const char *store_col_text(struct store_query *q, int col); /* borrowed until the next row */
char *store_col_dup(struct store_query *q, int col);	    /* NULL for NULL or no memory */

/* The same inside a transaction; a failure also marks it as failed. */
int store_tx_first(struct store_tx *tx, enum sql_id id, const struct sql_value *args, size_t n,
		   struct store_query *q, struct sbx_error *e);
/* A statement whose rows nobody wants. */
int store_tx_run(struct store_tx *tx, enum sql_id id, const struct sql_value *args, size_t n,
		 struct sbx_error *e);
/* Statement id gives one row of one number. */
int store_tx_number(struct store_tx *tx, enum sql_id id, const struct sql_value *args, size_t n,
		    int64_t *ret, struct sbx_error *e);

/* ---- conn.c ---------------------------------------------------------------------------------- */

int store_conn_open(const struct sql_driver *sql, const char *path, enum sql_mode mode,
		    struct store_conn **ret, struct sbx_error *e);
struct store_conn *store_conn_close(struct store_conn *c);
SBX_DEFINE_AUTO(struct store_conn, store_conn_close)

bool store_write_lock(struct store *s, int wait_seconds);
void store_write_unlock(struct store *s);

/* A reader is borrowed for the length of one read and given back by the cleanup attribute. */
struct store_reader {
	struct store *s;
	struct store_conn *c;
};
int store_reader_get(struct store *s, struct store_reader *ret, struct sbx_error *e);
void store_reader_put(struct store_reader *r);
#define store_autoreader __attribute__((cleanup(store_reader_put))) struct store_reader
/* Borrows a reader for this statement: 1: the first row, 0: there is none. q is declared after rd.
 */
int store_read(struct store *s, enum sql_id id, const struct sql_value *args, size_t n,
	       struct store_reader *rd, struct store_query *q, struct sbx_error *e);

/* ---- schema.c -------------------------------------------------------------------------------- */

int64_t store_schema_newest(void);
/* Brings the database of c to this schema, which is store_schema_newest() but in tests; may_make:
 * also one that has none yet. */
int store_migrate(struct store_conn *c, bool may_make, int64_t newest, struct sbx_error *e);

/* ---- wal.c ----------------------------------------------------------------------------------- */

void store_wal_reserve(struct store *s);
int store_wal_init(struct store *s, struct sbx_error *e);
void store_wal_fini(struct store *s);
uint64_t store_wal_committed(struct store *s); /* numbers a commit; within the transaction */
int store_wal_sync(struct store *s, uint64_t mark, struct sbx_error *e);
void store_wal_backlog(struct store *s, int64_t pages); /* outside a transaction */

/* ---- feed.c ---------------------------------------------------------------------------------- */

int store_feed_open(struct store *s, struct sbx_error *e);
/* A change of a run from the columns rid, owner, phase of q's row. */
int store_tx_run_changed(struct store_tx *tx, int64_t row, const char *id, const char *what,
			 enum store_phase phase, const char *owner, struct sbx_error *e);

/* ---- artifacts.c ----------------------------------------------------------------------------- */

/* One column of texts, malloc'd, as many as max; their number. */
int store_texts(struct store *s, enum sql_id id, const struct sql_value *args, size_t n_args,
		char **ret, size_t max, struct sbx_error *e);

/* ---- runs.c ---------------------------------------------------------------------------------- */

/* Fills *ret from a row of RUN_ROW; NO_MEMORY. */
int store_run_load(struct store_query *q, struct store_run *ret, struct sbx_error *e);
int store_usage_add(struct store_tx *tx, const char *owner, int64_t runs, int64_t log_bytes,
		    int64_t artifact_bytes, struct sbx_error *e);

/* ---- lists.c, tallies.c ---------------------------------------------------------------------- */

/* The labels (JSON object of strings) of a new run, for lists by label. */
int store_labels_remove(struct store_tx *tx, int64_t row, const char *owner, const char *labels,
			struct sbx_error *e);
int store_labels_add(struct store_tx *tx, int64_t row, const char *owner, const char *labels,
		     struct sbx_error *e);
/* A run came to this end; started_us 0: it never started. */
int store_end_add(struct store_tx *tx, const char *runtime, enum store_phase phase,
		  const char *reason, int64_t started_us, int64_t finished_us, struct sbx_error *e);

#endif
