/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots and the disk: garbage goes, what is needed stays, also beside others, also when the
 * disk is full. */
#include "snap_util.h"

/* The ids that have a row, one after the other. */
struct rows {
	const char *ids[4];
};

static bool is_known(void *ctx, const char *id)
{
	const struct rows *rows = ctx;

	for (size_t i = 0; i < SBX_COUNT(rows->ids); i++)
		if (rows->ids[i] && strcmp(rows->ids[i], id) == 0)
			return true;
	return false;
}

static bool all_known(void *ctx, const char *id)
{
	(void)ctx;
	return sbx_id_valid(id);
}

static void collect__removes_what_nobody_needs(void **state)
{
	struct trees *t = *state;
	struct rows rows = { { t->ids[0], t->ids[1] } };
	int64_t freed = -1, bytes = 0;

	puts_at(t->a, "shared", "shared");
	puts_at(t->a, "old", "only in the first");
	(void)take(t, 0, NULL);
	puts_at(t->a, "old", "only in the second");
	(void)take(t, 1, t->ids[0]);
	puts_at(t->a, "old", "only in the third");
	(void)take(t, 2, t->ids[1]);
	OK(snap_collect(t->f.s, is_known, &rows, &freed, e)); /* the third has no row */
	assert_true(freed > 17);
	assert_int_equal(count_files(t, "snapshots", NULL), 2);
	assert_int_equal(count_files(t, "objects", &bytes), 3);
	assert_int_equal(bytes, 6 + 17 + 18);
	OK(snap_collect(t->f.s, is_known, &rows, &freed, e));
	assert_int_equal(freed, 0);
	snap_drop(t->f.s, t->ids[0]);
	snap_drop(t->f.s, "../state.db"); /* is no snapshot */
	OK(snap_collect(t->f.s, is_known, &rows, &freed, e));
	assert_int_equal(freed, 17);
	assert_true(has_object(t, "shared") && has_object(t, "only in the second"));
	OK(snap_make(t->f.s, t->ids[1], t->b, (uid_t)-1, (gid_t)-1, e));
	rows = (struct rows){ { NULL } };
	OK(snap_collect(t->f.s, is_known, &rows, &freed, e));
	assert_int_equal(count_files(t, "snapshots", NULL), 0);
	assert_int_equal(count_files(t, "objects", NULL), 0);
}

static void collect__without_any_snapshot(void **state)
{
	struct trees *t = *state;
	int64_t freed = -1;

	OK(snap_collect(t->f.s, all_known, NULL, &freed, e));
	assert_int_equal(freed, 0);
}

static void collect__removes_what_a_crash_left(void **state)
{
	struct trees *t = *state;
	char path[256];
	int64_t freed = 0;

	puts_at(t->a, "f", "1");
	(void)take(t, 0, NULL);
	(void)snprintf(path, sizeof(path), "%s/objects/new-%s-0", t->f.dir, t->ids[1]);
	puts_at(AT_FDCWD, path, "half an obj");
	(void)snprintf(path, sizeof(path), "%s/snapshots/new-%s", t->f.dir, t->ids[1]);
	puts_at(AT_FDCWD, path, "half");
	(void)snprintf(path, sizeof(path), "%s/objects/README", t->f.dir);
	puts_at(AT_FDCWD, path, "somebody else's");
	OK(snap_collect(t->f.s, all_known, NULL, &freed, e));
	assert_int_equal(freed, 11 + 4);
	assert_int_equal(count_files(t, "objects", NULL), 2);
	assert_int_equal(count_files(t, "snapshots", NULL), 1);
}

static void collect__removes_nothing_when_it_cannot_know(void **state)
{
	struct trees *t = *state;
	char path[256];
	int64_t freed = 0;

	puts_at(t->a, "f", "1");
	(void)take(t, 0, NULL);
	puts_at(t->a, "f", "2");
	(void)take(t, 1, NULL);
	manifest_path(t, t->ids[0], path);
	cut(path, 90);
	FAILS(STORE_UNAVAILABLE, snap_collect(t->f.s, all_known, NULL, &freed, e));
	assert_true(has_object(t, "1") && has_object(t, "2"));
	snap_drop(t->f.s, t->ids[0]);
	OK(snap_collect(t->f.s, all_known, NULL, &freed, e));
	assert_false(has_object(t, "1"));
}

static void collect__is_kept_away(void **state)
{
	struct trees *t = *state;
	struct rows rows = { { NULL } };
	int64_t freed = 0;
	int hold = snap_hold(t->f.s);

	assert_true(hold >= 0);
	puts_at(t->a, "f", "1");
	(void)take(t, 0, NULL); /* no row yet */
	OK(snap_collect(t->f.s, is_known, &rows, &freed, e));
	assert_int_equal(freed, -1);
	assert_true(has_object(t, "1"));
	(void)close(hold);
	OK(snap_collect(t->f.s, is_known, &rows, &freed, e));
	assert_false(has_object(t, "1"));
}

/* ---- at the same time ------------------------------------------------------------------------ */

enum { TAKERS = 3, ROUNDS = 15 };

struct taker {
	struct trees *t;
	int number;
	_Atomic(int) *left;
};

/* Takes, checks that all of it is there, drops; the others have partly the same contents. */
static void *take_and_drop(void *ctx)
{
	struct taker *me = ctx;
	char path[128];
	int dir;

	(void)snprintf(path, sizeof(path), "taker-%d", me->number);
	dir = trees_open(me->t, path);
	for (int i = 0; dir >= 0 && i < ROUNDS; i++) {
		char id[SBX_ID_LEN + 1], text[64];
		struct snap_sums sums;
		snap_auto struct snap *n = NULL;
		struct snap_entry entry;

		sbx_id_new(id);
		(void)snprintf(text, sizeof(text), "%d", i % 3);
		puts_at(dir, "common", text);
		(void)snprintf(text, sizeof(text), "%d of %d", i, me->number);
		puts_at(dir, "own", text);
		if (snap_take(me->t->f.s, dir, id, NULL, NULL, &sums, NULL) < 0 ||
		    snap_open(me->t->f.s, id, &n, NULL) < 0)
			break;
		for (uint32_t k = 1; snap_entry(n, k, &entry); k++) {
			int fd = snap_content(me->t->f.s, &entry);

			if (fd < 0)
				goto out;
			(void)close(fd);
		}
		snap_drop(me->t->f.s, id);
		if (i == ROUNDS - 1)
			me->number = -1;
	}
out:
	(void)close(dir);
	--*me->left;
	return NULL;
}

static void collect__beside_those_who_take(void **state)
{
	struct trees *t = *state;
	struct taker takers[TAKERS];
	pthread_t threads[TAKERS];
	_Atomic(int) left = TAKERS;
	int64_t freed;

	for (int i = 0; i < TAKERS; i++) {
		takers[i] = (struct taker){ .t = t, .number = i, .left = &left };
		assert_int_equal(pthread_create(&threads[i], NULL, take_and_drop, &takers[i]), 0);
	}
	while (left > 0)
		OK(snap_collect(t->f.s, all_known, NULL, &freed, e));
	for (int i = 0; i < TAKERS; i++) {
		assert_int_equal(pthread_join(threads[i], NULL), 0);
		assert_int_equal(takers[i].number, -1); /* it came to its end */
	}
	OK(snap_collect(t->f.s, all_known, NULL, &freed, e));
	assert_int_equal(count_files(t, "objects", NULL), 0);
}

static void take__of_several_processes_share_objects(void **state)
{
	struct trees *t = *state;
	pid_t pids[4];
	int64_t bytes;

	fill(t->a);
	for (size_t i = 0; i < SBX_COUNT(pids); i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			struct snap_sums sums;

			_exit(snap_take(t->f.s, t->a, t->ids[i], NULL, NULL, &sums, NULL) < 0);
		}
	}
	for (size_t i = 0; i < SBX_COUNT(pids); i++)
		assert_int_equal(wait_child(pids[i]), 0);
	assert_int_equal(count_files(t, "objects", &bytes), 6);
	for (size_t i = 0; i < SBX_COUNT(pids); i++) {
		OK(snap_make(t->f.s, t->ids[i], t->b, (uid_t)-1, (gid_t)-1, e));
		(void)same_tree(t->a, t->b);
		snap_dest_undo(t->b);
	}
}

static void take__of_several_processes_with_one_id(void **state)
{
	struct trees *t = *state;
	int first = 0, others = 0;
	pid_t pids[4];

	fill(t->a);
	for (size_t i = 0; i < SBX_COUNT(pids); i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			struct snap_sums sums;

			_exit(-snap_take(t->f.s, t->a, t->ids[0], NULL, NULL, &sums, NULL));
		}
	}
	for (size_t i = 0; i < SBX_COUNT(pids); i++) {
		int status = wait_child(pids[i]);

		first += status == 0;
		others += status == SBX_E_ENTRY_EXISTS;
	}
	assert_int_equal(first, 1);
	assert_int_equal(others, 3);
	assert_int_equal(count_files(t, "snapshots", NULL), 1);
	OK(snap_make(t->f.s, t->ids[0], t->b, (uid_t)-1, (gid_t)-1, e));
	(void)same_tree(t->a, t->b);
}

/* ---- killed ---------------------------------------------------------------------------------- */

static void kill_at(struct trees *t, const char *point, const char *id)
{
	pid_t pid = fork();
	int status = 0;

	if (pid == 0) {
		struct rows rows = { { t->ids[0] } };
		struct snap_sums sums;
		int64_t freed;

		if (setenv("SBX_CRASH_AT", point, 1) < 0 ||
		    snap_take(t->f.s, t->a, id, t->ids[0], NULL, &sums, NULL) < 0 ||
		    snap_collect(t->f.s, is_known, &rows, &freed, NULL) < 0 ||
		    snap_make(t->f.s, t->ids[0], t->b, (uid_t)-1, (gid_t)-1, NULL) < 0)
			_exit(1);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGKILL);
}

static void crash__leaves_only_what_is_whole_or_garbage(void **state)
{
	static const char *const points[] = {
		"snap_written", "snap_synced",	     "snap_objects_named",   "snap_named",
		"snap_settled", "snap_collect_read", "snap_collect_removed", "snap_made",
	};
	struct trees *t = *state;
	struct rows rows = { { t->ids[0] } };
	int64_t freed;

#ifndef SBX_CRASH_POINTS
	skip();
#endif
	fill(t->a);
	(void)take(t, 0, NULL);
	for (size_t i = 0; i < SBX_COUNT(points); i++) {
		char id[SBX_ID_LEN + 1], path[256];

		sbx_id_new(id);
		puts_at(t->a, "changed", points[i]);
		kill_at(t, points[i], id);
		manifest_path(t, id, path);
		/* A manifest that is there is whole, and so is what it names. */
		if (access(path, F_OK) == 0) {
			snap_dest_undo(t->b);
			OK(snap_make(t->f.s, id, t->b, (uid_t)-1, (gid_t)-1, e));
			(void)same_tree(t->a, t->b);
		}
		OK(snap_collect(t->f.s, is_known, &rows, &freed, e));
		assert_int_equal(count_files(t, "snapshots", NULL), 1);
		assert_int_equal(count_files(t, "objects", NULL), 6);
		assert_int_equal(unlinkat(t->a, "changed", 0), 0);
		snap_dest_undo(t->b);
		OK(snap_make(t->f.s, t->ids[0], t->b, (uid_t)-1, (gid_t)-1, e));
		set_mtime(t->a, ".", 1700000000, 43);
		(void)same_tree(t->a, t->b);
		snap_dest_undo(t->b);
	}
}

/* ---- a full disk ----------------------------------------------------------------------------- */

static void take__on_a_full_disk(void **state)
{
	struct trees *t = *state;
	struct snap_sums sums;
	struct store *small = NULL;
	sbx_autofree char *big = calloc(1, 2 << 20);
	char dir[128], path[160];
	int64_t before = 0, after = 0, freed;
	int tree;

	(void)snprintf(dir, sizeof(dir), "%s/tree-b", t->f.base);
	if (geteuid() != 0 || mount("none", dir, "tmpfs", MS_NOSUID | MS_NODEV, "size=16m") < 0)
		skip();
	OK(store_open(dir, NULL, &small, e));
	big[0] = 1;
	for (int i = 0; i < 9; i++) {
		char name[8];

		big[1] = (char)i;
		(void)snprintf(name, sizeof(name), "f%d", i);
		put(t->a, name, big, 2 << 20);
	}
	(void)snprintf(t->f.dir, sizeof(t->f.dir), "%.70s", dir);
	FAILS(STORAGE_FULL, snap_take(small, t->a, t->ids[0], NULL, NULL, &sums, e));
	assert_int_equal(count_files(t, "objects", NULL), 0); /* nothing is left of it */
	assert_int_equal(count_files(t, "snapshots", NULL), 0);
	/* One that fits is taken, and a tree that does not is not half made. */
	for (int i = 1; i < 9; i++) {
		char name[8];

		(void)snprintf(name, sizeof(name), "f%d", i);
		assert_int_equal(unlinkat(t->a, name, 0), 0);
	}
	OK(snap_take(small, t->a, t->ids[0], NULL, NULL, &sums, e));
	assert_int_equal(count_files(t, "objects", &before), 1);
	(void)snprintf(path, sizeof(path), "%s/here", dir);
	assert_int_equal(mkdir(path, 0700), 0);
	tree = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	(void)snprintf(path, sizeof(path), "%s/ballast", dir);
	for (size_t len = 2 << 20; len >= 4096; len /= 2) {
		int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

		while (sbx_write_all(fd, big, len) == 0)
			;
		(void)close(fd);
	}
	FAILS(STORAGE_FULL, snap_make(small, t->ids[0], tree, (uid_t)-1, (gid_t)-1, e));
	assert_int_equal(unlinkat(tree, "f0", 0), -1);
	FAILS(STORAGE_FULL, snap_copy(t->a, tree, (uid_t)-1, (gid_t)-1, NULL, &sums, e));
	assert_int_equal(unlinkat(tree, "f0", 0), -1);
	assert_int_equal(unlink(path), 0);
	OK(snap_make(small, t->ids[0], tree, (uid_t)-1, (gid_t)-1, e));
	OK(snap_collect(small, all_known, NULL, &freed, e));
	assert_int_equal(count_files(t, "objects", &after), 1);
	(void)close(tree);
	store_close(small);
	assert_int_equal(umount(dir), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		SNAP_TEST(collect__removes_what_nobody_needs),
		SNAP_TEST(collect__without_any_snapshot),
		SNAP_TEST(collect__removes_what_a_crash_left),
		SNAP_TEST(collect__removes_nothing_when_it_cannot_know),
		SNAP_TEST(collect__is_kept_away),
		SNAP_TEST(collect__beside_those_who_take),
		SNAP_TEST(take__of_several_processes_share_objects),
		SNAP_TEST(take__of_several_processes_with_one_id),
		SNAP_TEST(crash__leaves_only_what_is_whole_or_garbage),
		SNAP_TEST(take__on_a_full_disk),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
