/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The write-ahead log and the disk: durable commits, and checkpoints off everybody's path.
 *
 * SQLite's synchronous=FULL would sync inside COMMIT, that is, while the write lock of the
 * database is held, and every other writer on the machine would wait for our disk. So
 * connections run with NORMAL, where COMMIT appends to the log and syncs nothing, and who needs
 * durability calls fdatasync on the log after the lock is released. That is as good: a commit
 * is durable when all of the log up to its last frame is on the disk (recovery reads frames from
 * the beginning while their checksums chain), or when a checkpoint has moved it into the
 * database, which NORMAL does only after syncing the log and ends by syncing the database.
 * If the log was started anew meanwhile, the latter is the case and our sync is merely late.
 *
 * The descriptor is our own. Closing it is harmless: SQLite's fcntl locks live on the
 * database and on -shm, never on -wal. The file stays the same one as long as we have the
 * database open, because SQLite removes it only with the last connection (each holds a
 * shared lock).
 */
#include "store/store_i.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/fs.h"

enum { CHECKPOINT_STACK = 256 << 10 };

int store_wal_init(struct store *s, struct sbx_error *e)
{
	/* store_migrate() has run a transaction, so the file exists. */
	s->wal_fd = sbx_open_beneath(s->dir_fd, "state.db-wal", O_RDWR, 0);
	if (s->wal_fd < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, -s->wal_fd,
				      "cannot open the write-ahead log in '%s'", s->dir);
	return 0;
}

/*
 * Gives the log its size ahead of time: syncing bytes that were overwritten took 0.2 ms where
 * syncing bytes that made the file longer took 0.5 ms, since then ext4 has to commit its journal,
 * too. SQLite reads frames only while their checksums chain, so zeros behind the last one mean
 * nothing, and it never shortens the file below journal_size_limit. Under the write lock, or the
 * zeros could land on a frame that another process has just appended. Not being able to is no
 * failure.
 */
void store_wal_reserve(struct store *s)
{
	static const char zeros[64 << 10];
	store_autotx struct store_tx *tx = NULL;
	struct stat st;
	int r = store_begin(s, &tx, NULL);

	if (r < 0 || fstat(s->wal_fd, &st) < 0 || st.st_size >= STORE_WAL_RESERVE)
		return;
	for (off_t at = st.st_size; r == 0 && at < STORE_WAL_RESERVE;) {
		size_t n = sizeof(zeros);

		if ((off_t)n > STORE_WAL_RESERVE - at)
			n = (size_t)(STORE_WAL_RESERVE - at);
		r = sbx_pwrite_all(s->wal_fd, zeros, n, at);
		at += (off_t)n;
	}
	/* A full disk is not made fuller by half an attempt. */
	if (r < 0 && ftruncate(s->wal_fd, st.st_size) < 0)
		return;
	(void)fdatasync(s->wal_fd);
}

uint64_t store_wal_committed(struct store *s)
{
	uint64_t mark;

	pthread_mutex_lock(&s->sync.lock);
	mark = ++s->sync.committed;
	pthread_mutex_unlock(&s->sync.lock);
	return mark;
}

/* The log, and once its name: whoever made the file may not have synced the directory. */
static int sync_files(const struct store *s, bool with_dir)
{
	struct stat st;

	if (fstat(s->wal_fd, &st) < 0)
		return errno;
	if (st.st_nlink == 0)
		return ENOENT; /* somebody removed it under us: nothing written is safe */
	if (fdatasync(s->wal_fd) < 0)
		return errno;
	if (with_dir && fsync(s->dir_fd) < 0)
		return errno;
	return 0;
}

/*
 * Group commit. Whoever finds no sync in progress does one, for every commit that had finished
 * by then; the others wait for it, and for the next one if theirs came later.
 *
 * A failed sync is final for this process: the kernel reports a lost page once and then calls
 * it clean, so a later fdatasync that succeeds would prove nothing. The next program that
 * opens the database recovers what is really there.
 */
int store_wal_sync(struct store *s, uint64_t mark, struct sbx_error *e)
{
	struct store_sync *y = &s->sync;
	uint64_t target;
	int err = 0;

	pthread_mutex_lock(&y->lock);
	while (y->synced < mark && !y->broken) {
		bool with_dir = !y->dir_synced;

		if (y->busy) {
			pthread_cond_wait(&y->moved, &y->lock);
			continue;
		}
		y->busy = true;
		target = y->committed;
		pthread_mutex_unlock(&y->lock);
		err = sync_files(s, with_dir);
		pthread_mutex_lock(&y->lock);
		y->busy = false;
		y->rounds++;
		if (err) {
			y->broken = err;
		} else {
			y->synced = target;
			y->dir_synced = true;
		}
		pthread_cond_broadcast(&y->moved);
	}
	err = y->synced < mark ? y->broken : 0;
	pthread_mutex_unlock(&y->lock);
	if (err)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, err,
				      "the change is made but is not safe on the disk; repair the "
				      "disk and restart the service");
	return 0;
}

bool store_healthy(struct store *s)
{
	bool ok;

	pthread_mutex_lock(&s->sync.lock);
	ok = !s->sync.broken;
	pthread_mutex_unlock(&s->sync.lock);
	return ok;
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

static void *checkpoint_thread(void *ctx)
{
	struct store *s = ctx;
	struct store_checkpointer *k = &s->checkpointer;
	struct store_conn *c = NULL;

	pthread_mutex_lock(&k->lock);
	while (!k->stop) {
		bool hard;

		if (!k->wanted) {
			pthread_cond_wait(&k->wake, &k->lock);
			continue;
		}
		k->wanted = false;
		hard = k->hard;
		k->hard = false;
		pthread_mutex_unlock(&k->lock);
		/* Without a connection the log grows until the next attempt. */
		if (c || store_conn_open(s->sql, s->database, SQL_WRITE, &c, NULL) == 0)
			s->sql->checkpoint(c->db, hard);
		pthread_mutex_lock(&k->lock);
	}
	pthread_mutex_unlock(&k->lock);
	store_conn_close(c);
	return NULL;
}

/* Started when it is first needed, so that a door may fork into the background before. */
static bool start_thread(struct store *s)
{
	struct store_checkpointer *k = &s->checkpointer;
	pthread_attr_t attr;

	if (!k->running && k->allowed) {
		(void)pthread_attr_init(&attr);
		(void)pthread_attr_setstacksize(&attr, CHECKPOINT_STACK);
		k->running = pthread_create(&k->thread, &attr, checkpoint_thread, s) == 0;
		(void)pthread_attr_destroy(&attr);
	}
	return k->running;
}

void store_wal_backlog(struct store *s, int64_t pages)
{
	struct store_checkpointer *k = &s->checkpointer;
	bool here = false;

	if (pages < STORE_BACKLOG_SOFT)
		return;
	pthread_mutex_lock(&k->lock);
	if (start_thread(s)) {
		k->wanted = true;
		k->hard = k->hard || pages >= STORE_BACKLOG_HARD;
		pthread_cond_signal(&k->wake);
	} else {
		here = pages >= STORE_BACKLOG_HARD;
	}
	pthread_mutex_unlock(&k->lock);
	/* No thread (a runner) and no door has done it for long: now it is this process's job. */
	if (here && store_write_lock(s, 0)) {
		s->sql->checkpoint(s->writer->db, false);
		store_write_unlock(s);
	}
}

void store_wal_fini(struct store *s)
{
	struct store_checkpointer *k = &s->checkpointer;
	bool join;

	pthread_mutex_lock(&k->lock);
	k->stop = true;
	join = k->running;
	pthread_cond_signal(&k->wake);
	pthread_mutex_unlock(&k->lock);
	if (join)
		(void)pthread_join(k->thread, NULL);
	sbx_closep(&s->wal_fd);
}
