/* SPDX-License-Identifier: Apache-2.0 */
/* Looking into snapshots: entries, names, contents, differences, tars, and manifests that are
 * damaged in every way. */
#include "snap_util.h"

static struct snap_entry find(const struct snap *n, const char *path)
{
	struct snap_entry entry;
	char copy[256], *save = NULL;

	(void)snprintf(copy, sizeof(copy), "%s", path);
	assert_true(snap_entry(n, 0, &entry));
	for (char *p = strtok_r(copy, "/", &save); p; p = strtok_r(NULL, "/", &save))
		assert_true(snap_child(n, entry.index, p, &entry));
	return entry;
}

static void entry__says_what_was_there(void **state)
{
	struct trees *t = *state;
	snap_auto struct snap *n = NULL;
	struct snap_entry entry, parent;
	uint8_t hash[32];
	uint32_t seen = 1;

	fill(t->a);
	assert_int_equal(take(t, 0, NULL).entries, 15);
	OK(snap_open(t->f.s, t->ids[0], &n, e));
	assert_int_equal(snap_count(n), 16);
	assert_false(snap_entry(n, 16, &entry));
	entry = find(n, "");
	assert_string_equal(entry.name, "");
	assert_int_equal(entry.children, 7);
	entry = find(n, "dir/deep/linked");
	assert_int_equal(entry.links, 3);
	assert_int_equal(entry.size, 6);
	assert_int_equal(entry.mtime.tv_sec, 1000000000);
	assert_int_equal(entry.mtime.tv_nsec, 123456789);
	hash_of("hello\n", hash);
	assert_memory_equal(entry.hash, hash, sizeof(hash));
	entry = find(n, "dir/up");
	assert_true(S_ISLNK(entry.mode));
	assert_string_equal(entry.target, "../..");
	assert_int_equal(entry.size, 5);
	assert_int_equal(entry.mtime.tv_sec, -5);
	entry = find(n, "dir/deep");
	assert_int_equal(entry.mode, S_IFDIR | 01777);
	assert_false(snap_child(n, 0, "plai", &entry));
	assert_false(snap_child(n, 0, "", &entry));
	assert_false(snap_child(n, 0, "zz", &entry));
	assert_false(snap_child(n, find(n, "plain").index, "x", &entry));
	assert_false(snap_child(n, 99, "x", &entry));
	for (uint32_t i = 0; snap_entry(n, i, &parent); i++)
		for (uint32_t c = 0; c < parent.children; c++, seen++) {
			assert_true(snap_entry(n, parent.first_child + c, &entry));
			assert_int_equal(entry.parent, i);
		}
	assert_int_equal(seen, 16);
}

static void content__is_read_only(void **state)
{
	struct trees *t = *state;
	snap_auto struct snap *n = NULL;
	struct snap_entry entry;
	struct stat st;
	char buf[8];
	int fd;

	fill(t->a);
	(void)take(t, 0, NULL);
	OK(snap_open(t->f.s, t->ids[0], &n, e));
	entry = find(n, "plain");
	fd = snap_content(t->f.s, &entry);
	assert_int_equal(pread(fd, buf, sizeof(buf), 2), 4);
	assert_memory_equal(buf, "llo\n", 4);
	assert_int_equal(write(fd, "x", 1), -1);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0400);
	(void)close(fd);
	entry = find(n, "empty");
	fd = snap_content(t->f.s, &entry);
	assert_int_equal(read(fd, buf, sizeof(buf)), 0);
	assert_int_equal(write(fd, "x", 1), -1);
	(void)close(fd);
	entry = find(n, "dir");
	assert_int_equal(snap_content(t->f.s, &entry), -EINVAL);
}

/* ---- damage ---------------------------------------------------------------------------------- */

/* Everything that an entry can lead to. */
static void look_everywhere(struct snap *n)
{
	struct snap_entry entry, again;
	uint64_t sum = 0;

	for (uint32_t i = 0; snap_entry(n, i, &entry); i++) {
		struct snap_xattr x;
		uint32_t at = 0;

		sum += strlen(entry.name) + (entry.target ? strlen(entry.target) : 0);
		for (uint32_t c = 0; c < entry.children; c++) {
			assert_true(snap_entry(n, entry.first_child + c, &again));
			assert_true(snap_child(n, i, again.name, &again));
			assert_int_equal(again.index, entry.first_child + c);
		}
		while (snap_xattrs_next(n, &n->records[i], &at, &x))
			for (uint32_t k = 0; k < x.value_len; k++)
				sum += ((const uint8_t *)x.value)[k];
	}
	assert_true(sum > 0);
}

static void small_tree(struct trees *t)
{
	puts_at(t->a, "f", "1");
	assert_int_equal(linkat(t->a, "f", t->a, "g", 0), 0);
	assert_int_equal(mkdirat(t->a, "d", 0755), 0);
	puts_at(t->a, "d/e", "");
	assert_int_equal(symlinkat("to", t->a, "l"), 0);
	(void)set_xattr(t->a, "f", "user.k", "v");
}

static void open__refuses_every_changed_byte(void **state)
{
	struct trees *t = *state;
	sbx_autofree char *data = NULL;
	char path[256];
	size_t len;

	small_tree(t);
	(void)take(t, 0, NULL);
	manifest_path(t, t->ids[0], path);
	assert_int_equal(sbx_read_file(AT_FDCWD, path, 1 << 20, &data, &len), 0);
	for (size_t i = 0; i < len; i++) {
		struct snap *n = NULL;

		data[i] = (char)(data[i] ^ 0x55);
		assert_int_equal(snap_from_bytes(data, len, false, &n, NULL),
				 -SBX_E_STORE_UNAVAILABLE);
		data[i] = (char)(data[i] ^ 0x55);
	}
	for (size_t i = 0; i < len; i++) {
		struct snap *n = NULL;

		assert_int_equal(snap_from_bytes(data, i, false, &n, NULL),
				 -SBX_E_STORE_UNAVAILABLE);
	}
	cut(path, 0);
	{
		struct snap *n = NULL;

		FAILS(STORE_UNAVAILABLE, snap_open(t->f.s, t->ids[0], &n, e));
		FAILS(SNAPSHOT_NOT_FOUND, snap_open(t->f.s, t->ids[1], &n, e));
		FAILS(SNAPSHOT_NOT_FOUND, snap_open(t->f.s, "../objects.lock", &n, e));
	}
}

/* Somebody who can make the hash fit gets something in bounds, or nothing. */
static void open__stays_inside_whatever_the_bytes_are(void **state)
{
	static const uint8_t masks[] = { 0x01, 0x02, 0x10, 0x40, 0x80, 0xff };
	struct trees *t = *state;
	sbx_autofree char *data = NULL;
	int opened = 0, refused = 0;
	char path[256];
	size_t len;

	small_tree(t);
	(void)take(t, 0, NULL);
	manifest_path(t, t->ids[0], path);
	assert_int_equal(sbx_read_file(AT_FDCWD, path, 1 << 20, &data, &len), 0);
	for (size_t i = 0; i < len; i++)
		for (size_t m = 0; m < SBX_COUNT(masks); m++) {
			/* Its own piece of memory, so that a sanitizer sees where it ends. */
			sbx_autofree char *copy = malloc(len);
			struct snap *n = NULL;

			memcpy(copy, data, len);
			copy[i] = (char)(copy[i] ^ masks[m]);
			if (snap_from_bytes(copy, len, true, &n, NULL) < 0) {
				refused++;
				continue;
			}
			opened++;
			look_everywhere(n);
			snap_close(n);
		}
	assert_true(opened > 0 && refused > 0);
}

/* ---- differences ----------------------------------------------------------------------------- */

struct told {
	struct sbx_buf text;
	int left;
};

static bool tell(void *ctx, const char *path, enum snap_change what, int64_t size_a, int64_t size_b)
{
	static const char letters[] = "?ARCMT";
	struct told *told = ctx;

	sbx_buf_printf(&told->text, "%c %s %lld %lld\n", letters[what], path, (long long)size_a,
		       (long long)size_b);
	return --told->left != 0;
}

static char *diff(const struct snap *a, const struct snap *b, int most)
{
	struct told told = { .text = SBX_BUF_INIT(1 << 20), .left = most };

	sbx_buf_puts(&told.text, "");
	OK(snap_diff(a, b, tell, &told, e));
	return sbx_buf_steal(&told.text);
}

static void expect_diff(const struct snap *a, const struct snap *b, int most, const char *want)
{
	sbx_autofree char *got = diff(a, b, most);

	assert_string_equal(got, want);
}

static void diff__tells_what_changed(void **state)
{
	struct trees *t = *state;
	snap_auto struct snap *a = NULL;
	snap_auto struct snap *b = NULL;

	puts_at(t->a, "a-same", "1");
	puts_at(t->a, "b-content", "12");
	puts_at(t->a, "c-mode", "1");
	puts_at(t->a, "d-time", "1");
	puts_at(t->a, "e-gone", "123");
	puts_at(t->a, "f-type", "1");
	assert_int_equal(mkdirat(t->a, "g-dir", 0755), 0);
	puts_at(t->a, "g-dir/x", "1");
	assert_int_equal(mkdirat(t->a, "h-dir", 0755), 0);
	puts_at(t->a, "h-dir/x", "1");
	assert_int_equal(symlinkat("one", t->a, "i-link"), 0);
	set_mtime(t->a, "i-link", 5, 0);
	puts_at(t->a, "j-xattr", "1");
	(void)take(t, 0, NULL);
	puts_at(t->a, "b-content", "123");
	assert_int_equal(fchmodat(t->a, "c-mode", 0600, 0), 0);
	set_mtime(t->a, "d-time", 77, 0);
	assert_int_equal(unlinkat(t->a, "e-gone", 0), 0);
	assert_int_equal(unlinkat(t->a, "f-type", 0), 0);
	assert_int_equal(mkdirat(t->a, "f-type", 0755), 0);
	puts_at(t->a, "f-type/in", "12345");
	assert_int_equal(sbx_remove_tree(t->a, "g-dir"), 0);
	puts_at(t->a, "h-dir/new", "1");
	assert_int_equal(unlinkat(t->a, "i-link", 0), 0);
	assert_int_equal(symlinkat("two", t->a, "i-link"), 0);
	set_mtime(t->a, "i-link", 5, 0);
	(void)take(t, 1, t->ids[0]);
	OK(snap_open(t->f.s, t->ids[0], &a, e));
	OK(snap_open(t->f.s, t->ids[1], &b, e));
	expect_diff(a, a, -1, "");
	expect_diff(a, b, -1,
		    "C b-content 2 3\n"
		    "M c-mode 1 1\n"
		    "M d-time 1 1\n"
		    "R e-gone 3 -1\n"
		    "T f-type 1 0\n"
		    "A f-type/in -1 5\n"
		    "R g-dir 0 -1\n"
		    "R g-dir/x 1 -1\n"
		    "A h-dir/new -1 1\n"
		    "M i-link 3 3\n");
	expect_diff(a, b, 2, "C b-content 2 3\nM c-mode 1 1\n");
	expect_diff(NULL, NULL, -1, "");
}

static void diff__with_nothing_and_with_a_tree(void **state)
{
	struct trees *t = *state;
	snap_auto struct snap *a = NULL;
	snap_auto struct snap *live = NULL;

	puts_at(t->a, "b", "1");
	assert_int_equal(mkdirat(t->a, "a", 0755), 0);
	puts_at(t->a, "a/c", "12");
	(void)take(t, 0, NULL);
	OK(snap_open(t->f.s, t->ids[0], &a, e));
	expect_diff(NULL, a, -1, "A a -1 0\nA a/c -1 2\nA b -1 1\n");
	expect_diff(a, NULL, -1, "R a 0 -1\nR a/c 2 -1\nR b 1 -1\n");
	puts_at(t->a, "b", "new in the tree");
	if (set_xattr(t->a, "a/c", "user.k", "v")) {
		OK(snap_of_tree(t->f.s, t->a, t->ids[0], &live, e));
		expect_diff(a, live, -1, "M a/c 2 2\nC b 1 15\n");
	}
	assert_false(has_object(t, "new in the tree")); /* it was only looked at */
	assert_int_equal(count_files(t, "snapshots", NULL), 1);
}

/* ---- tar ------------------------------------------------------------------------------------- */

static void export__is_a_tar_of_the_tree(void **state)
{
	struct trees *t = *state;
	char command[512], path[128];
	int fd;

	fill(t->a);
	puts_at(t->a, "gr\xc3\xbc\xc3\x9f", "UTF-8");
	set_mtime(t->a, "dir/up", -7, 250000000); /* 6.75 seconds before 1970 */
	set_mtime(t->a, ".", 1700000000, 43);
	(void)take(t, 0, NULL);
	(void)snprintf(path, sizeof(path), "%s/x.tar", t->f.base);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	OK(snap_export(t->f.s, t->ids[0], fd, e));
	assert_int_equal(close(fd), 0);
	(void)snprintf(command, sizeof(command),
		       "cd %s && tar --xattrs --xattrs-include='user.*' --no-same-owner -xpSf x.tar"
		       " -C tree-b --warning=no-unknown-keyword",
		       t->f.base);
	assert_int_equal(system(command), 0);
	set_mtime(t->b, ".", 1700000000, 43); /* the root is not in it */
	assert_int_equal(same_tree(t->a, t->b), 16);
	FAILS(SNAPSHOT_NOT_FOUND, snap_export(t->f.s, t->ids[1], fd, e));
}

/* Wherever a reader begins, and however much it takes at a time. */
static void export__can_be_read_in_any_part(void **state)
{
	static const size_t steps[] = { 1, 7, 511, 512, 513, 4096, 65536 };
	struct trees *t = *state;
	struct snap_tar *tar = NULL;
	sbx_autofree char *whole = NULL, *part = NULL;
	char name[300];
	int64_t size;

	fill(t->a);
	memset(name, 'n', 250);
	name[250] = '\0';
	puts_at(t->a, name, "a name that has no room in a header");
	puts_at(t->a, "\xff\xfe", "one that is no text");
	(void)take(t, 0, NULL);
	OK(snap_tar_open(t->f.s, t->ids[0], &tar, e));
	size = snap_tar_size(tar);
	assert_int_equal(size % 10240, 0);
	whole = malloc((size_t)size);
	part = malloc((size_t)size);
	assert_true(whole && part);
	assert_int_equal(snap_tar_read(tar, whole, (size_t)size, 0), size);
	for (size_t i = 0; i < SBX_COUNT(steps); i++) {
		memset(part, 'x', (size_t)size);
		for (int64_t off = size - 1; off >= 0; off -= (int64_t)steps[i]) {
			int64_t from = off - (int64_t)steps[i] + 1;

			from = from < 0 ? 0 : from;
			assert_int_equal(
				snap_tar_read(tar, part + from, (size_t)(off - from + 1), from),
				off - from + 1);
		}
		assert_memory_equal(part, whole, (size_t)size);
	}
	assert_int_equal(snap_tar_read(tar, part, 100, size - 10), 10);
	assert_int_equal(snap_tar_read(tar, part, 100, size), 0);
	assert_int_equal(snap_tar_read(tar, part, 100, -1), 0);
	snap_tar_close(tar);
}

static void export__says_when_it_cannot_write(void **state)
{
	struct trees *t = *state;
	int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);

	fill(t->a);
	(void)take(t, 0, NULL);
	FAILS(STORAGE_FULL, snap_export(t->f.s, t->ids[0], fd, e));
	(void)close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		SNAP_TEST(entry__says_what_was_there),
		SNAP_TEST(content__is_read_only),
		SNAP_TEST(open__refuses_every_changed_byte),
		SNAP_TEST(open__stays_inside_whatever_the_bytes_are),
		SNAP_TEST(diff__tells_what_changed),
		SNAP_TEST(diff__with_nothing_and_with_a_tree),
		SNAP_TEST(export__is_a_tar_of_the_tree),
		SNAP_TEST(export__can_be_read_in_any_part),
		SNAP_TEST(export__says_when_it_cannot_write),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
