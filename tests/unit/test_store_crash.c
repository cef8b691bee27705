/* SPDX-License-Identifier: Apache-2.0 */
/* store/: what is promised about the disk: shared syncs, failed syncs, kill -9, a full disk. */
#include "store_fixture.h"

#include <poll.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "store/store_i.h"

/* ---- durable commits ------------------------------------------------------------------------- */

static void commit__settles_later_when_asked(void **state)
{
	struct fixture *f = *state;
	struct store_ticket ticket = { .wal_mark = 0, .touched = false };
	struct store_tx *tx = NULL;
	store_autorun r;
	store_autorun got = { .row = 0 };
	uint64_t rounds;

	run_init(&r, "alice");
	OK(store_begin(f->s, &tx, e));
	OK(store_tx_run_insert(tx, &r, "{}", e));
	rounds = f->s->sync.rounds;
	OK(store_commit_early(tx, &ticket, e));
	assert_int_equal(f->s->sync.rounds, rounds);
	OK(store_run_get(f->s, r.id, &got, e)); /* others see it already */
	OK(store_settle(f->s, ticket, e));
	assert_int_equal(f->s->sync.rounds, rounds + 1);
	assert_true(f->s->sync.synced >= ticket.wal_mark);
	/* A sync that somebody did meanwhile would have been enough. */
	OK(store_settle(f->s, (struct store_ticket){ .wal_mark = ticket.wal_mark }, e));
	assert_int_equal(f->s->sync.rounds, rounds + 1);
}

enum { THREADS = 16, EACH = 10 };

static void *submit_durably(void *ctx)
{
	for (int i = 0; i < EACH; i++)
		if (try_submit(ctx, "alice", true, NULL, NULL) < 0)
			return ctx;
	return NULL;
}

static void commit__concurrent_ones_share_syncs(void **state)
{
	struct fixture *f = *state;
	pthread_t threads[THREADS];
	uint64_t committed = f->s->sync.committed;

	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, submit_durably, f->s), 0);
	for (int i = 0; i < THREADS; i++) {
		void *failed = NULL;

		assert_int_equal(pthread_join(threads[i], &failed), 0);
		assert_null(failed);
	}
	assert_int_equal(f->s->sync.committed - committed, THREADS * EACH);
	assert_int_equal(f->s->sync.synced, f->s->sync.committed);
	assert_true(f->s->sync.rounds <= THREADS * EACH);
	assert_false(f->s->sync.busy);
}

static void commit__never_pretends_after_a_failed_sync(void **state)
{
	struct fixture *f = *state;
	sbx_autoerror why = SBX_ERROR_INIT;
	struct store_tx *tx = NULL;
	int pipes[2], good = f->s->wal_fd;

	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	for (int i = 0; i < 2; i++) {
		/* fdatasync of a pipe fails; afterwards the descriptor is the right one again. */
		f->s->wal_fd = i ? good : pipes[0];
		OK(store_begin(f->s, &tx, e));
		OK(store_tx_meta_set(tx, "k", "v", e));
		assert_int_equal(store_commit(tx, true, &why), -SBX_E_STORE_UNAVAILABLE);
		assert_non_null(strstr(why.message, "not safe on the disk"));
	}
	submit(f->s, "alice", NULL); /* what asks for no durability goes on */
	(void)close(pipes[0]);
	(void)close(pipes[1]);
}

static void commit__notices_that_the_log_was_removed(void **state)
{
	struct fixture *f = *state;

	OK(try_submit(f->s, "alice", true, NULL, NULL));
	assert_int_equal(unlinkat(store_dir_fd(f->s), "state.db-wal", 0), 0);
	assert_int_equal(try_submit(f->s, "alice", true, NULL, NULL), -SBX_E_STORE_UNAVAILABLE);
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

static void checkpoint__keeps_the_log_short_behind_the_writers(void **state)
{
	struct fixture *f = *state;
	sbx_autofree char *text = malloc(200001);
	struct stat st;
	off_t most = 0;

	assert_non_null(text);
	text[200000] = '\0';
	/* 120 MiB of pages through the log. */
	for (int i = 0; i < 600; i++) {
		struct store_tx *tx = NULL;

		memset(text, 'a' + i % 26, 200000); /* the same bytes would not be written again */
		OK(store_begin(f->s, &tx, e));
		OK(store_tx_meta_set(tx, "k", text, e));
		OK(store_commit(tx, i % 50 == 0, e));
		assert_int_equal(fstat(f->s->wal_fd, &st), 0);
		most = st.st_size > most ? st.st_size : most;
	}
	assert_true(f->s->checkpointer.running);
	assert_true(most < (off_t)(STORE_BACKLOG_HARD * 4096 * 5 / 4));
	OK(store_integrity(f->s, e));
}

static void checkpoint__of_a_runner_needs_no_thread(void **state)
{
	struct fixture *f = *state;
	struct store_options opts = { .readers = 1, .existing = true };
	struct store *runner = NULL;
	struct store_tx *tx = NULL;
	sbx_autofree char *text = calloc(1, 5000001);

	assert_non_null(text);
	OK(store_open(f->dir, &opts, &runner, e));
	for (int i = 0; i < 20; i++) {
		memset(text, 'a' + i, 5000000);
		OK(store_begin(runner, &tx, e));
		OK(store_tx_meta_set(tx, "k", text, e));
		OK(store_commit(tx, false, e));
	}
	assert_false(runner->checkpointer.running);
	assert_true(runner->sql->backlog(runner->writer->db) < STORE_BACKLOG_HARD);
	store_close(runner);
}

/* ---- kill -9 --------------------------------------------------------------------------------- */

/* Submits for ever and tells each id through the pipe once it is durable. */
static void submit_for_ever(const struct fixture *f, int out)
{
	struct store *s = NULL;
	char id[37];

	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || store_open(f->dir, NULL, &s, NULL) < 0)
		_exit(1);
	for (;;)
		if (try_submit(s, "alice", true, id, NULL) < 0 || write(out, id, 36) != 36)
			_exit(2);
}

static void crash__kill_in_the_middle_loses_nothing_that_was_told(void **state)
{
	struct fixture *f = *state;
	char ids[5 * 200][37];
	size_t told = 0;

	/* With our own connection closed, each victim's log is recovered by the next opener. */
	f->s = store_close(f->s);
	for (int round = 0; round < 5; round++) {
		int pipes[2], status = 0;
		pid_t pid;

		assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
		pid = fork();
		assert_true(pid >= 0);
		if (pid == 0)
			submit_for_ever(f, pipes[1]);
		(void)close(pipes[1]);
		for (int i = 0; i < 20 + 7 * round; i++) {
			assert_int_equal(sbx_read_full(pipes[0], ids[told], 36), 36);
			ids[told++][36] = '\0';
		}
		assert_int_equal(kill(pid, SIGKILL), 0);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFSIGNALED(status));
		while (told < SBX_COUNT(ids) && sbx_read_full(pipes[0], ids[told], 36) == 36)
			ids[told++][36] = '\0';
		(void)close(pipes[0]);
	}
	OK(store_open(f->dir, NULL, &f->s, e));
	OK(store_integrity(f->s, e));
	for (size_t i = 0; i < told; i++) {
		struct store_run_key k;

		OK(store_run_key(f->s, ids[i], "alice", &k, e));
	}
	{
		int64_t n = 0, queued = 0, active = 0, last = 0;

		/* Counters, rows and feed are of one transaction each. */
		OK(store_run_count(f->s, "alice", &n, e));
		OK(store_counts(f->s, &queued, &active, e));
		OK(store_changes_last(f->s, &last, e));
		assert_true(n >= (int64_t)told && n <= (int64_t)told + 5);
		assert_int_equal(queued, n);
		assert_int_equal(last, n);
	}
}

/* ---- a full disk ----------------------------------------------------------------------------- */

static int fill(int dirfd)
{
	static const char zeros[64 << 10];
	int fd = openat(dirfd, "filler", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	size_t size = sizeof(zeros);

	assert_true(fd >= 0);
	while (size > 0)
		if (write(fd, zeros, size) < 0)
			size /= 2;
	return fd;
}

static void disk_full__is_said_and_survived(void **state)
{
	struct fixture f = { .s = NULL };
	char first[37], again[37];
	int64_t n = 0, bytes = 0;
	int fd, failures = 0;

	(void)state;
	if (geteuid() != 0) {
		print_message("[   SKIP   ] needs root to mount a small tmpfs\n");
		skip();
	}
	assert_int_equal(fixture_dir(&f), 0);
	if (mount("none", f.base, "tmpfs", 0, "size=3m") < 0) {
		print_message("[   SKIP   ] cannot mount a tmpfs: %s\n", strerror(errno));
		(void)rmdir(f.base);
		skip();
	}
	OK(store_open(f.dir, NULL, &f.s, e));
	submit(f.s, "alice", first);
	fd = fill(store_dir_fd(f.s));
	for (int i = 0; i < 200; i++) {
		int r = try_submit(f.s, "alice", true, NULL, NULL);

		if (r == 0)
			bytes++;
		else
			assert_int_equal(r, -SBX_E_STORAGE_FULL);
		failures += r < 0;
	}
	assert_true(failures > 0);
	OK(store_run_count(f.s, "alice", &n, e));
	assert_int_equal(n, 1 + bytes); /* what failed is not there, what succeeded is */
	{
		struct store_run_key k;

		OK(store_run_key(f.s, first, "alice", &k, e)); /* and reading goes on */
	}
	(void)close(fd);
	assert_int_equal(unlinkat(store_dir_fd(f.s), "filler", 0), 0);
	OK(try_submit(f.s, "alice", true, again, NULL));
	OK(store_integrity(f.s, e));
	store_close(f.s);
	OK(store_open(f.dir, NULL, &f.s, e));
	OK(store_run_count(f.s, "alice", &n, e));
	assert_int_equal(n, 2 + bytes);
	store_close(f.s);
	assert_int_equal(umount2(f.base, MNT_DETACH), 0);
	assert_int_equal(rmdir(f.base), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		STORE_TEST(commit__settles_later_when_asked),
		STORE_TEST(commit__concurrent_ones_share_syncs),
		STORE_TEST(commit__never_pretends_after_a_failed_sync),
		STORE_TEST(commit__notices_that_the_log_was_removed),
		STORE_TEST(checkpoint__keeps_the_log_short_behind_the_writers),
		STORE_TEST(checkpoint__of_a_runner_needs_no_thread),
		STORE_TEST(crash__kill_in_the_middle_loses_nothing_that_was_told),
		cmocka_unit_test(disk_full__is_said_and_survived),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
