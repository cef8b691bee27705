/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots: what is taken is what is made again, and only what changed is read. */
#include "snap_util.h"

static void take__and_make_give_the_same_tree(void **state)
{
	struct trees *t = *state;
	struct snap_sums sums, again;
	struct snap_limits none = { .bytes = 0 };
	struct stat st;

	fill(t->a);
	OK(snap_take(t->f.s, t->a, t->ids[0], NULL, &none, &sums, e));
	OK(snap_make(t->f.s, t->ids[0], t->b, (uid_t)-1, (gid_t)-1, e));
	assert_int_equal(same_tree(t->a, t->b), sums.entries);
	assert_int_equal(sums.left_out, 0);
	assert_int_equal(sums.bytes, 6 + (3 << 20) + 1 + 3 + 10 + (8 << 20) + 3);
	assert_int_equal(sums.new_bytes, sums.bytes);
	assert_memory_equal(sums.digest, "sha256:", 7);
	assert_int_equal(strlen(sums.digest), 71);
	assert_int_equal(fstatat(t->b, "sparse", &st, 0), 0);
	assert_true(st.st_blocks < 2048); /* of 512 bytes: the holes are there again */
	OK(snap_measure(t->b, &again, e));
	assert_int_equal(again.bytes, sums.bytes);
	assert_int_equal(again.entries, sums.entries);
}

static void take__of_an_empty_directory(void **state)
{
	struct trees *t = *state;
	struct snap_sums sums = take(t, 0, NULL);

	assert_int_equal(sums.entries, 0);
	assert_int_equal(sums.bytes, 0);
	OK(snap_make(t->f.s, t->ids[0], t->b, (uid_t)-1, (gid_t)-1, e));
	assert_int_equal(same_tree(t->a, t->b), 0);
}

static void copy__gives_the_same_tree(void **state)
{
	struct trees *t = *state;
	struct snap_sums sums;

	fill(t->a);
	OK(snap_copy(t->a, t->b, (uid_t)-1, (gid_t)-1, NULL, &sums, e));
	assert_int_equal(same_tree(t->a, t->b), sums.entries);
	FAILS(ENTRY_EXISTS, snap_copy(t->a, t->b, (uid_t)-1, (gid_t)-1, NULL, &sums, e));
	assert_int_equal(same_tree(t->a, t->b), sums.entries);
}

static void make__gives_it_all_to_the_user(void **state)
{
	static const char *const names[] = { ".", "plain", "outside", "dir", "dir/deep/linked" };
	struct trees *t = *state;
	struct stat st;

	if (geteuid() != 0)
		skip();
	fill(t->a);
	(void)take(t, 0, NULL);
	OK(snap_make(t->f.s, t->ids[0], t->b, 1234, 4321, e));
	for (size_t i = 0; i < SBX_COUNT(names); i++) {
		assert_int_equal(fstatat(t->b, names[i], &st, AT_SYMLINK_NOFOLLOW), 0);
		assert_int_equal(st.st_uid, 1234);
		assert_int_equal(st.st_gid, 4321);
	}
	(void)same_tree(t->a, t->b);
}

static void make__refuses_a_directory_with_something_in_it(void **state)
{
	struct trees *t = *state;

	puts_at(t->a, "mine", "1");
	(void)take(t, 0, NULL);
	puts_at(t->b, "yours", "2");
	FAILS(ENTRY_EXISTS, snap_make(t->f.s, t->ids[0], t->b, (uid_t)-1, (gid_t)-1, e));
	assert_int_equal(faccessat(t->b, "yours", F_OK, 0), 0);
	FAILS(SNAPSHOT_NOT_FOUND, snap_make(t->f.s, t->ids[1], t->b, (uid_t)-1, (gid_t)-1, e));
	FAILS(SNAPSHOT_NOT_FOUND, snap_make(t->f.s, "../state.db", t->b, (uid_t)-1, (gid_t)-1, e));
}

static void make__leaves_nothing_when_an_object_is_lost(void **state)
{
	struct trees *t = *state;
	uint8_t hash[32];
	char path[256], name[256];

	fill(t->a);
	(void)take(t, 0, NULL);
	hash_of("x", hash);
	object_path(t, hash, path);
	cut(path, 0);
	FAILS(STORE_UNAVAILABLE, snap_make(t->f.s, t->ids[0], t->b, (uid_t)-1, (gid_t)-1, e));
	(void)snprintf(name, sizeof(name), "%s/tree-b", t->f.base);
	assert_int_equal(rmdir(name), 0); /* that is: it is empty */
	/* The next snapshot repairs it, as it sees the length. */
	(void)take(t, 1, NULL);
	assert_true(has_object(t, "x"));
	cut(path, 1);
}

static void take__keeps_no_setuid_and_no_devices(void **state)
{
	struct trees *t = *state;
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct snap_sums sums;
	struct stat st;
	int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	puts_at(t->a, "root", "me");
	assert_int_equal(fchmodat(t->a, "root", 06755, 0), 0);
	assert_int_equal(mkfifoat(t->a, "pipe", 0666), 0);
	(void)snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/tree-a/socket", t->f.base);
	assert_int_equal(bind(s, (const struct sockaddr *)&addr, sizeof(addr)), 0);
	(void)close(s);
	sums = take(t, 0, NULL);
	assert_int_equal(sums.left_out, 2);
	assert_int_equal(sums.entries, 1);
	OK(snap_make(t->f.s, t->ids[0], t->b, (uid_t)-1, (gid_t)-1, e));
	assert_int_equal(fstatat(t->b, "root", &st, 0), 0);
	assert_int_equal(st.st_mode & 07777, 0755);
}

static void take__goes_to_any_depth(void **state)
{
	enum { DEPTH = 300 };
	struct trees *t = *state;
	char name[200];
	int at = dup(t->a), next;
	struct snap_sums sums, measured;

	memset(name, 'd', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	for (int i = 0; i < DEPTH; i++) {
		assert_int_equal(mkdirat(at, name, 0755), 0);
		puts_at(at, "file", "f");
		next = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		(void)close(at);
		at = next;
	}
	puts_at(at, "bottom", "reached");
	assert_int_equal(linkat(at, "bottom", t->a, "top", 0), 0);
	(void)close(at);
	sums = take(t, 0, NULL);
	assert_int_equal(sums.entries, 2 * DEPTH + 2);
	OK(snap_make(t->f.s, t->ids[0], t->b, (uid_t)-1, (gid_t)-1, e));
	OK(snap_measure(t->b, &measured, e));
	assert_int_equal(measured.entries, sums.entries);
	assert_int_equal(measured.bytes, sums.bytes);
	snap_dest_undo(t->b);
	OK(snap_copy(t->a, t->b, (uid_t)-1, (gid_t)-1, NULL, &measured, e));
	assert_int_equal(measured.entries, sums.entries);
}

static void take__an_unreadable_file_is_an_error_of_an_ordinary_user(void **state)
{
	struct trees *t = *state;
	pid_t pid;

	if (geteuid() != 0)
		skip();
	puts_at(t->a, "closed", "1");
	assert_int_equal(fchmodat(t->a, "closed", 0, 0), 0);
	assert_int_equal(chmod(t->f.base, 0755), 0);
	pid = fork();
	if (pid == 0) {
		struct snap *n = NULL;

		if (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534))
			_exit(2);
		_exit(snap_of_tree(t->f.s, t->a, NULL, &n, NULL) == -SBX_E_STORE_UNAVAILABLE ? 0
											     : 1);
	}
	assert_int_equal(wait_child(pid), 0);
	assert_int_equal(take(t, 0, NULL).bytes, 1); /* root reads it */
}

/* ---- the next one ---------------------------------------------------------------------------- */

static void take__again_reads_nothing_that_is_unchanged(void **state)
{
	struct trees *t = *state;
	struct snap_sums sums;
	uint8_t hash[32];
	char path[256];

	fill(t->a);
	(void)take(t, 0, NULL);
	age(t, t->ids[0]);
	/* Whoever read the file would store its content again. */
	hash_of("x", hash);
	object_path(t, hash, path);
	assert_int_equal(unlink(path), 0);
	sums = take(t, 1, t->ids[0]);
	assert_int_equal(sums.new_bytes, 0);
	assert_false(has_object(t, "x"));
	sums = take(t, 2, NULL);
	assert_int_equal(sums.new_bytes, 1);
	OK(snap_make(t->f.s, t->ids[1], t->b, (uid_t)-1, (gid_t)-1, e));
	(void)same_tree(t->a, t->b);
}

static void take__again_reads_what_changed(void **state)
{
	struct trees *t = *state;
	struct snap_sums sums;
	struct stat st;

	fill(t->a);
	(void)take(t, 0, NULL);
	age(t, t->ids[0]);
	/* The same length and the same time: its ctime betrays it. */
	assert_int_equal(fstatat(t->a, "dir/script", &st, 0), 0);
	assert_int_equal(fchmodat(t->a, "dir/script", 0755, 0), 0);
	puts_at(t->a, "dir/script", "#!/bin/ed\n");
	assert_int_equal(fchmodat(t->a, "dir/script", 0555, 0), 0);
	set_mtime(t->a, "dir/script", st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
	puts_at(t->a, "dir/new", "new");
	assert_int_equal(unlinkat(t->a, "zlinked", 0), 0);
	assert_int_equal(unlinkat(t->a, "outside", 0), 0);
	assert_int_equal(symlinkat("/etc/shadow", t->a, "outside"), 0);
	(void)set_xattr(t->a, "dir", "user.of.a.directory", "no");
	sums = take(t, 1, t->ids[0]);
	assert_int_equal(sums.new_bytes, 10 + 3);
	OK(snap_make(t->f.s, t->ids[1], t->b, (uid_t)-1, (gid_t)-1, e));
	assert_int_equal(same_tree(t->a, t->b), sums.entries);
}

/* Within one tick of the clock a change leaves no trace, so what is that young is read once more.
 */
static void take__does_not_believe_what_changed_a_moment_before(void **state)
{
	static const struct {
		int64_t nsec; /* from the change of the file to the first snapshot */
		bool believed;
	} cases[] = {
		{ 0, false },	     { 9000000, false },   { -1000000000, false },
		{ 900000000, true }, { 1100000000, true }, { 5000000000, true },
	};
	struct trees *t = *state;
	uint8_t hash[32];
	char path[256];
	struct stat st;

	puts_at(t->a, "f", "1");
	assert_int_equal(fstatat(t->a, "f", &st, 0), 0);
	(void)take(t, 0, NULL);
	hash_of("1", hash);
	object_path(t, hash, path);
	for (size_t i = 0; i < SBX_COUNT(cases); i++) {
		assert_true(unlink(path) == 0 || errno == ENOENT);
		taken_at(t, t->ids[0], st.st_ctim.tv_sec - 1,
			 st.st_ctim.tv_nsec + 1000000000 + cases[i].nsec);
		sbx_id_new(t->ids[1]);
		assert_int_equal(take(t, 1, t->ids[0]).new_bytes, cases[i].believed ? 0 : 1);
	}
}

static void take__again_without_its_previous(void **state)
{
	struct trees *t = *state;
	char path[256];

	fill(t->a);
	(void)take(t, 0, NULL);
	manifest_path(t, t->ids[0], path);
	cut(path, 100);
	assert_int_equal(take(t, 1, t->ids[0]).new_bytes, 0); /* damaged */
	snap_drop(t->f.s, t->ids[0]);
	assert_int_equal(take(t, 2, t->ids[0]).new_bytes, 0); /* gone */
	OK(snap_make(t->f.s, t->ids[2], t->b, (uid_t)-1, (gid_t)-1, e));
	(void)same_tree(t->a, t->b);
}

static void take__shares_contents(void **state)
{
	struct trees *t = *state;
	struct snap_sums sums;
	int objects;

	puts_at(t->a, "one", "the same");
	puts_at(t->a, "two", "the same");
	puts_at(t->a, "three", "another");
	sums = take(t, 0, NULL);
	assert_int_equal(sums.bytes, 8 + 8 + 7);
	assert_int_equal(sums.new_bytes, 8 + 7);
	objects = count_files(t, "objects", NULL);
	assert_int_equal(objects, 2);
	assert_int_equal(take(t, 1, NULL).new_bytes, 0);
	assert_int_equal(count_files(t, "objects", NULL), 2);
	FAILS(ENTRY_EXISTS, snap_take(t->f.s, t->a, t->ids[1], NULL, NULL, &sums, e));
	assert_int_equal(count_files(t, "snapshots", NULL), 2);
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void take__keeps_nothing_above_its_limits(void **state)
{
	struct trees *t = *state;
	struct snap_limits limits = { .bytes = 5 };
	struct snap_sums sums;

	puts_at(t->a, "a", "123");
	puts_at(t->a, "b", "456");
	FAILS(WORKSPACE_CAP, snap_take(t->f.s, t->a, t->ids[0], NULL, &limits, &sums, e));
	limits = (struct snap_limits){ .entries = 1 };
	FAILS(WORKSPACE_CAP, snap_take(t->f.s, t->a, t->ids[0], NULL, &limits, &sums, e));
	FAILS(WORKSPACE_CAP, snap_copy(t->a, t->b, (uid_t)-1, (gid_t)-1, &limits, &sums, e));
	assert_int_equal(count_files(t, "objects", NULL), 0);
	assert_int_equal(count_files(t, "snapshots", NULL), 0);
	assert_int_equal(faccessat(t->b, "a", F_OK, 0), -1);
	limits = (struct snap_limits){ .bytes = 6, .entries = 2 };
	OK(snap_take(t->f.s, t->a, t->ids[0], NULL, &limits, &sums, e));
	OK(snap_copy(t->a, t->b, (uid_t)-1, (gid_t)-1, &limits, &sums, e));
	/* Also when nothing of it has to be read. */
	age(t, t->ids[0]);
	limits.bytes = 5;
	FAILS(WORKSPACE_CAP, snap_take(t->f.s, t->a, t->ids[1], t->ids[0], &limits, &sums, e));
}

static void take__counts_a_file_with_several_names_once(void **state)
{
	struct trees *t = *state;
	struct snap_limits limits = { .bytes = 4 };
	struct snap_sums sums, measured;

	puts_at(t->a, "a", "1234");
	assert_int_equal(linkat(t->a, "a", t->a, "b", 0), 0);
	OK(snap_take(t->f.s, t->a, t->ids[0], NULL, &limits, &sums, e));
	assert_int_equal(sums.bytes, 4);
	assert_int_equal(sums.entries, 2);
	OK(snap_measure(t->a, &measured, e));
	assert_int_equal(measured.bytes, 4);
	assert_int_equal(measured.entries, 2);
}

/* ---- while somebody changes it --------------------------------------------------------------- */

struct swapper {
	int dir;
	_Atomic(bool) stop;
};

/* Files that grow, vanish, and turn into links and pipes, under a walk. */
static void *keep_changing(void *ctx)
{
	struct swapper *s = ctx;

	for (unsigned i = 0; !s->stop; i++) {
		char name[16];
		int fd;

		(void)snprintf(name, sizeof(name), "f%u", i % 50);
		(void)unlinkat(s->dir, name, 0);
		(void)unlinkat(s->dir, name, AT_REMOVEDIR);
		switch (i % 4) {
		case 0:
			if (symlinkat("/etc/passwd", s->dir, name) < 0)
				return ctx;
			break;
		case 1:
			(void)mkfifoat(s->dir, name, 0666);
			break;
		case 2:
			(void)mkdirat(s->dir, name, 0777);
			break;
		default:
			fd = openat(s->dir, name, O_WRONLY | O_CREAT | O_NOFOLLOW, 0666);
			(void)sbx_write_all(fd, name, strlen(name));
			(void)close(fd);
			break;
		}
		fd = openat(s->dir, "growing", O_WRONLY | O_CREAT | O_APPEND, 0666);
		(void)sbx_write_all(fd, "growing\n", 8);
		(void)close(fd);
	}
	return NULL;
}

/* Every object is what its name says. */
static void check_objects(struct trees *t, const char *id)
{
	snap_auto struct snap *n = NULL;
	struct snap_entry entry;

	OK(snap_open(t->f.s, id, &n, e));
	for (uint32_t i = 0; snap_entry(n, i, &entry); i++) {
		sbx_autofree char *data = NULL;
		uint8_t hash[32];
		int fd;

		assert_null(entry.target ? strstr(entry.target, "root:") : NULL);
		if (!S_ISREG(entry.mode))
			continue;
		fd = snap_content(t->f.s, &entry);
		assert_true(fd >= 0);
		data = malloc((size_t)entry.size + 1);
		assert_int_equal(sbx_read_full(fd, data, (size_t)entry.size + 1), entry.size);
		SHA256((const unsigned char *)data, (size_t)entry.size, hash);
		assert_memory_equal(hash, entry.hash, sizeof(hash));
		(void)close(fd);
	}
}

static void take__of_a_tree_that_changes(void **state)
{
	enum { ROUNDS = 15 };
	struct trees *t = *state;
	struct swapper s = { .dir = t->a };
	pthread_t thread;

	fill(t->a);
	assert_int_equal(pthread_create(&thread, NULL, keep_changing, &s), 0);
	for (int i = 0; i < ROUNDS; i++) {
		struct snap_sums sums;
		char id[SBX_ID_LEN + 1];

		sbx_id_new(id);
		OK(snap_take(t->f.s, t->a, id, i ? t->ids[0] : NULL, NULL, &sums, e));
		check_objects(t, id);
		OK(snap_copy(t->a, t->b, (uid_t)-1, (gid_t)-1, NULL, &sums, e));
		snap_dest_undo(t->b);
		memcpy(t->ids[0], id, sizeof(id));
	}
	s.stop = true;
	assert_int_equal(pthread_join(thread, NULL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		SNAP_TEST(take__and_make_give_the_same_tree),
		SNAP_TEST(take__of_an_empty_directory),
		SNAP_TEST(copy__gives_the_same_tree),
		SNAP_TEST(make__gives_it_all_to_the_user),
		SNAP_TEST(make__refuses_a_directory_with_something_in_it),
		SNAP_TEST(make__leaves_nothing_when_an_object_is_lost),
		SNAP_TEST(take__keeps_no_setuid_and_no_devices),
		SNAP_TEST(take__goes_to_any_depth),
		SNAP_TEST(take__an_unreadable_file_is_an_error_of_an_ordinary_user),
		SNAP_TEST(take__again_reads_nothing_that_is_unchanged),
		SNAP_TEST(take__again_reads_what_changed),
		SNAP_TEST(take__does_not_believe_what_changed_a_moment_before),
		SNAP_TEST(take__again_without_its_previous),
		SNAP_TEST(take__shares_contents),
		SNAP_TEST(take__keeps_nothing_above_its_limits),
		SNAP_TEST(take__counts_a_file_with_several_names_once),
		SNAP_TEST(take__of_a_tree_that_changes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
