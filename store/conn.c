/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and closing, the pool of readers, and transactions on the one writer. */
#include "store/store_i.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>

#include "base/fs.h"

enum { READERS_DEFAULT = 4 };

/* ---- connections ----------------------------------------------------------------------------- */

struct store_conn *store_conn_close(struct store_conn *c)
{
	if (!c)
		return NULL;
	for (size_t i = 0; i < SQL__COUNT; i++)
		c->sql->finalize(c->statements[i]);
	c->sql->close(c->db);
	free(c);
	return NULL;
}

int store_conn_open(const struct sql_driver *sql, const char *path, enum sql_mode mode,
		    struct store_conn **ret, struct sbx_error *e)
{
	SBX_AUTO(store_conn_closep) struct store_conn *c = calloc(1, sizeof(*c));
	int r;

	if (!c)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory to open the database");
	c->sql = sql;
	r = sql->open(path, mode, &c->db, e);
	if (r < 0)
		return r;
	*ret = sbx_steal(&c);
	return 0;
}

int store_reader_get(struct store *s, struct store_reader *ret, struct sbx_error *e)
{
	int r = 0;

	pthread_mutex_lock(&s->pool_lock);
	while (!s->idle && s->readers == s->max_readers)
		pthread_cond_wait(&s->pool_free, &s->pool_lock);
	ret->s = s;
	ret->c = s->idle;
	if (ret->c)
		s->idle = ret->c->next;
	else
		s->readers++;
	pthread_mutex_unlock(&s->pool_lock);
	if (ret->c)
		return 0;
	r = store_conn_open(s->sql, s->database, SQL_READ, &ret->c, e);
	if (r < 0) {
		pthread_mutex_lock(&s->pool_lock);
		s->readers--;
		pthread_cond_signal(&s->pool_free);
		pthread_mutex_unlock(&s->pool_lock);
	}
	return r;
}

void store_reader_put(struct store_reader *r)
{
	if (!r->c)
		return;
	pthread_mutex_lock(&r->s->pool_lock);
	r->c->next = r->s->idle;
	r->s->idle = r->c;
	pthread_cond_signal(&r->s->pool_free);
	pthread_mutex_unlock(&r->s->pool_lock);
	r->c = NULL;
}

int store_read(struct store *s, enum sql_id id, const struct sql_value *args, size_t n,
	       struct store_reader *rd, struct store_query *q, struct sbx_error *e)
{
	int r = store_reader_get(s, rd, e);

	return r < 0 ? r : store_first(rd->c, id, args, n, q, e);
}

/* ---- opening --------------------------------------------------------------------------------- */

static int open_dirs(struct store *s, const char *dir, struct sbx_error *e)
{
	char real[PATH_MAX];
	int r = s->existing ? 0 : sbx_mkdirs(dir, 0700);

	if (r < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, -r,
				      "cannot make the state directory '%s'", dir);
	if (!realpath(dir, real))
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno,
				      "cannot open the state directory '%s'", dir);
	s->dir = strdup(real);
	if (!s->dir || asprintf(&s->database, "%s/state.db", real) < 0) {
		s->database = NULL;
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory to open the state directory");
	}
	s->dir_fd = open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (s->dir_fd < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno,
				      "cannot open the state directory '%s'", dir);
	if (!s->existing && ((mkdirat(s->dir_fd, "notify", 0700) < 0 && errno != EEXIST) ||
			     (mkdirat(s->dir_fd, "runners", 0700) < 0 && errno != EEXIST) ||
			     (mkdirat(s->dir_fd, "runs", 0700) < 0 && errno != EEXIST)))
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno,
				      "cannot make a folder in the state directory '%s'", dir);
	s->runs_fd = openat(s->dir_fd, "runs", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	s->runners_fd = openat(s->dir_fd, "runners", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (s->runs_fd < 0 || s->runners_fd < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno,
				      "cannot open the folder 'runs' of the state directory '%s'",
				      dir);
	return 0;
}

/*
 * The file is made with its mode before SQLite opens it, whatever the umask; its companions take
 * the mode from it. mknod, because opening and closing the file here would drop the locks of
 * another connection of this process to the same file, as fcntl(2) locks do.
 */
static int make_database(struct store *s, struct sbx_error *e)
{
	if (mknodat(s->dir_fd, "state.db", S_IFREG | 0600, 0) == 0) {
		if (fchmodat(s->dir_fd, "state.db", 0600, 0) == 0)
			return 0;
	} else if (errno == EEXIST) {
		return 0;
	}
	return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno, "cannot make the database in '%s'",
			      s->dir);
}

static int open_database(struct store *s, struct sbx_error *e)
{
	int r;

	if (s->existing && faccessat(s->dir_fd, "state.db", F_OK, 0) < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno,
				      "there is no database in '%s'", s->dir);
	if (!s->existing) {
		r = make_database(s, e);
		if (r < 0)
			return r;
	}
	r = store_conn_open(s->sql, s->database, s->existing ? SQL_WRITE : SQL_CREATE, &s->writer,
			    e);
	if (r == 0)
		r = store_migrate(s->writer, !s->existing, store_schema_newest(), e);
	return r < 0 ? sbx_error_wrap(e, r, "%s", s->database) : 0;
}

static void init_locks(struct store *s)
{
	pthread_condattr_t monotonic;

	(void)pthread_condattr_init(&monotonic);
	(void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	(void)pthread_mutex_init(&s->write_lock, NULL);
	(void)pthread_cond_init(&s->write_free, &monotonic);
	(void)pthread_condattr_destroy(&monotonic);
	(void)pthread_mutex_init(&s->pool_lock, NULL);
	(void)pthread_cond_init(&s->pool_free, NULL);
	(void)pthread_mutex_init(&s->sync.lock, NULL);
	(void)pthread_cond_init(&s->sync.moved, NULL);
	(void)pthread_mutex_init(&s->checkpointer.lock, NULL);
	(void)pthread_cond_init(&s->checkpointer.wake, NULL);
}

static void fini_locks(struct store *s)
{
	(void)pthread_mutex_destroy(&s->write_lock);
	(void)pthread_cond_destroy(&s->write_free);
	(void)pthread_mutex_destroy(&s->pool_lock);
	(void)pthread_cond_destroy(&s->pool_free);
	(void)pthread_mutex_destroy(&s->sync.lock);
	(void)pthread_cond_destroy(&s->sync.moved);
	(void)pthread_mutex_destroy(&s->checkpointer.lock);
	(void)pthread_cond_destroy(&s->checkpointer.wake);
}

int store_open(const char *dir, const struct store_options *opts, struct store **ret,
	       struct sbx_error *e)
{
	store_auto struct store *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory to open the store");
	s->sql = &store_sqlite;
	s->dir_fd = s->runs_fd = s->runners_fd = s->feed_fd = s->wal_fd = -1;
	s->existing = opts && opts->existing;
	s->max_readers = opts && opts->readers > 0 ? opts->readers : READERS_DEFAULT;
	init_locks(s);
	/* A runner must stay a process of one thread (it unshares namespaces). */
	s->checkpointer.allowed = !s->existing;
	if (s->existing && s->sql->forks)
		s->sql->forks();
	r = open_dirs(s, dir, e);
	if (r == 0)
		r = open_database(s, e);
	if (r == 0)
		r = store_wal_init(s, e);
	if (r == 0)
		r = store_feed_open(s, e);
	if (r < 0)
		return r;
	if (!s->existing)
		store_wal_reserve(s);
	*ret = sbx_steal(&s);
	return 0;
}

struct store *store_close(struct store *s)
{
	struct store_conn *c;

	if (!s)
		return NULL;
	store_wal_fini(s);
	while ((c = s->idle)) {
		s->idle = c->next;
		store_conn_close(c);
	}
	store_conn_close(s->writer);
	sbx_closep(&s->feed_fd);
	sbx_closep(&s->runs_fd);
	sbx_closep(&s->runners_fd);
	sbx_closep(&s->dir_fd);
	fini_locks(s);
	free(s->database);
	free(s->dir);
	free(s);
	return NULL;
}

int store_dir_fd(const struct store *s)
{
	return s->dir_fd;
}

const char *store_dir(const struct store *s)
{
	return s->dir;
}

int store_integrity(struct store *s, struct sbx_error *e)
{
	store_autoreader r = { NULL, NULL };
	int rc = store_reader_get(s, &r, e);

	return rc < 0 ? rc : s->sql->check(r.c->db, e);
}

int store_sync_files(struct store *s, struct sbx_error *e)
{
	return syncfs(s->dir_fd) < 0 ? sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno,
						      "cannot sync the state directory")
				     : 0;
}

int store_lock(struct store *s, const char *name)
{
	sbx_autoclose int fd = -1;

	if (sbx_path_problem(name, strlen(name)) || strchr(name, '/'))
		return -EINVAL;
	fd = sbx_open_beneath(s->dir_fd, name, O_RDWR | O_CREAT, 0600);
	if (fd < 0)
		return fd;
	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		return -errno;
	return sbx_steal_fd(&fd);
}

/* ---- transactions ---------------------------------------------------------------------------- */

/* Of this thread's caller, see store.h; borrowed. */
static _Thread_local const atomic_bool *give_up;

void store_give_up_when(const atomic_bool *flag)
{
	give_up = flag;
}

bool store_given_up(void)
{
	return give_up && atomic_load(give_up);
}

void store_look_again(struct store *s)
{
	pthread_mutex_lock(&s->write_lock);
	pthread_cond_broadcast(&s->write_free);
	pthread_mutex_unlock(&s->write_lock);
}

bool store_write_lock(struct store *s, int wait_seconds)
{
	struct timespec until = { 0, 0 };
	int rc = 0;
	bool mine;

	(void)clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += wait_seconds;
	pthread_mutex_lock(&s->write_lock);
	while (s->writing && rc == 0 && wait_seconds > 0 && !store_given_up())
		rc = pthread_cond_timedwait(&s->write_free, &s->write_lock, &until);
	mine = !s->writing;
	s->writing = true;
	pthread_mutex_unlock(&s->write_lock);
	return mine;
}

void store_write_unlock(struct store *s)
{
	pthread_mutex_lock(&s->write_lock);
	s->writing = false;
	pthread_cond_signal(&s->write_free);
	pthread_mutex_unlock(&s->write_lock);
}

static int gave_up(struct sbx_error *e)
{
	return sbx_fail(e, SBX_E_INTERRUPTED,
			"interrupted while others held the database; nothing was done");
}

int store_begin(struct store *s, struct store_tx **ret, struct sbx_error *e)
{
	int r;

	if (!store_write_lock(s, STORE_WAIT_SECONDS))
		return store_given_up()
			       ? gave_up(e)
			       : sbx_fail(e, SBX_E_STORE_UNAVAILABLE,
					  "cannot begin a transaction: others of this process have "
					  "held the database for more than %d s",
					  STORE_WAIT_SECONDS);
	r = s->sql->begin(s->writer->db, e);
	if (r < 0) {
		store_write_unlock(s);
		if (!store_given_up())
			return r;
		sbx_error_clear(e);
		return gave_up(e);
	}
	s->tx = (struct store_tx){ .s = s, .changed = false, .failed = false };
	*ret = &s->tx;
	return 0;
}

void store_rollback(struct store_tx *tx)
{
	struct store *s;

	if (!tx)
		return;
	s = tx->s;
	s->sql->rollback(s->writer->db);
	tx->s = NULL;
	store_write_unlock(s);
}

int store_commit_early(struct store_tx *tx, struct store_ticket *ret_ticket, struct sbx_error *e)
{
	struct store *s = tx->s;
	int64_t backlog;
	int r;

	*ret_ticket = (struct store_ticket){ .wal_mark = 0, .touched = false };
	if (tx->failed) {
		store_rollback(tx);
		return sbx_fail(e, SBX_E_STORE_UNAVAILABLE,
				"cannot commit: a statement of the transaction failed");
	}
	r = s->sql->commit(s->writer->db, e);
	if (r == 0) {
		ret_ticket->wal_mark = store_wal_committed(s);
		ret_ticket->touched = tx->changed;
	}
	backlog = s->sql->backlog(s->writer->db);
	tx->s = NULL;
	store_write_unlock(s);
	if (r == 0)
		store_wal_backlog(s, backlog);
	return r;
}

int store_settle(struct store *s, struct store_ticket ticket, struct sbx_error *e)
{
	int r = store_wal_sync(s, ticket.wal_mark, e);

	/* Also after a failed sync: the change can be seen by everybody, so say so. */
	if (ticket.touched)
		store_announce(s);
	return r;
}

int store_commit(struct store_tx *tx, bool durable, struct sbx_error *e)
{
	struct store *s = tx->s;
	struct store_ticket ticket;
	int r = store_commit_early(tx, &ticket, e);

	if (r < 0)
		return r;
	if (durable)
		return store_settle(s, ticket, e);
	if (ticket.touched)
		store_announce(s);
	return 0;
}
