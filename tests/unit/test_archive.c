/* SPDX-License-Identifier: Apache-2.0 */
/* Archives that come from outside, good and hostile, into a staging directory. */
#include "archive_util.h"

#include <dirent.h>

#include "orchestrator/unpack.h"

#define OUTSIDE "/tmp/sbx-archive-outside"

struct place {
	char base[64];
	int basefd;
	struct orch_unpack u;
	struct sbx_buf skipped; /* name: reason; ... */
	struct sbx_error e;
};

static void note(void *ctx, const char *name, const char *reason)
{
	struct place *p = ctx;

	sbx_buf_printf(&p->skipped, "%s: %s; ", name, reason);
}

static void fresh(struct place *p)
{
	const char *const names[] = { "dir", "spare" };

	for (size_t i = 0; i < SBX_COUNT(names); i++) {
		assert_int_equal(sbx_remove_tree(p->basefd, names[i]), 0);
		assert_int_equal(mkdirat(p->basefd, names[i], 0700), 0);
	}
	sbx_closep(&p->u.dir);
	sbx_closep(&p->u.spare);
	sbx_buf_free(&p->skipped);
	p->skipped = (struct sbx_buf)SBX_BUF_INIT(1 << 20);
	sbx_buf_puts(&p->skipped, "");
	sbx_error_clear(&p->e);
	p->u.dir = sbx_open_beneath(p->basefd, "dir", O_RDONLY | O_DIRECTORY, 0);
	p->u.spare = sbx_open_beneath(p->basefd, "spare", O_RDONLY | O_DIRECTORY, 0);
	assert_true(p->u.dir >= 0 && p->u.spare >= 0);
}

static int setup(void **state)
{
	static struct place p;

	p = (struct place){ .base = "/tmp/sbx-archive-XXXXXX",
			    .u = { .dir = -1,
				   .spare = -1,
				   .uid = (uid_t)-1,
				   .gid = (gid_t)-1,
				   .skipped = note,
				   .ctx = &p,
				   .max_bytes = 1 << 20 } };
	if (!mkdtemp(p.base))
		return -1;
	p.basefd = open(p.base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	*state = &p;
	fresh(&p);
	return 0;
}

static int teardown(void **state)
{
	struct place *p = *state;

	sbx_closep(&p->u.dir);
	sbx_closep(&p->u.spare);
	sbx_closep(&p->basefd);
	sbx_buf_free(&p->skipped);
	sbx_error_clear(&p->e);
	return sbx_remove_tree(AT_FDCWD, p->base);
}

static int unpack(struct place *p, const struct sbx_buf *b, enum orch_archive_kind kind)
{
	sbx_autoclose int fd = as_file(b->data ? b->data : "", b->len);
	int r;

	assert_false(b->failed);
	r = orch_unpack(fd, kind, &p->u, &p->e);
	is_absent(p->u.spare, "entry");
	return r;
}

static void unpacks(struct place *p, const struct sbx_buf *b, enum orch_archive_kind kind,
		    int64_t files, const char *skipped)
{
	if (unpack(p, b, kind) != 0)
		fail_msg("%s", p->e.message);
	assert_string_equal(p->skipped.data ? p->skipped.data : "", skipped);
	assert_int_equal(p->u.files, files);
}

/* ---- what is good ---------------------------------------------------------------------------- */

static void archive__every_compression(void **state)
{
	static const int filters[] = { ARCHIVE_FILTER_NONE, ARCHIVE_FILTER_GZIP,
				       ARCHIVE_FILTER_BZIP2, ARCHIVE_FILTER_XZ,
				       ARCHIVE_FILTER_ZSTD };
	struct place *p = *state;
	sbx_autobuf tar = TAR_INIT;

	tar_dir(&tar, "./", 0755);
	tar_dir(&tar, "./a/", 0500);
	tar_file(&tar, "./a//b", "one");
	tar_bytes(&tar, "tool", 04755, "two", 3);
	tar_file(&tar, "made/on/the/way", "");
	tar_end(&tar);
	for (size_t i = 0; i < SBX_COUNT(filters); i++) {
		sbx_autobuf out = TAR_INIT;

		fresh(p);
		compress_into(&out, filters[i], tar.data, tar.len);
		unpacks(p, &out, ORCH_ARCHIVE_TAR, 3, "");
		assert_int_equal(p->u.bytes, 6);
		file_is(p->u.dir, "a/b", "one");
		file_is(p->u.dir, "tool", "two");
		file_is(p->u.dir, "made/on/the/way", "");
		assert_int_equal(mode_of(p->u.dir, "tool"), S_IFREG | 0755);
		assert_int_equal(mode_of(p->u.dir, "a"), S_IFDIR | 0700);
		assert_int_equal(mode_of(p->u.dir, "made/on"), S_IFDIR | 0755);
	}
}

static void archive__owner(void **state)
{
	struct place *p = *state;
	sbx_autobuf tar = TAR_INIT;
	struct stat st;

	if (geteuid() != 0)
		skip();
	p->u.uid = 4711;
	p->u.gid = 4712;
	tar_file(&tar, "d/f", "x");
	tar_end(&tar);
	unpacks(p, &tar, ORCH_ARCHIVE_TAR, 1, "");
	assert_int_equal(fstatat(p->u.dir, "d", &st, 0), 0);
	assert_int_equal(st.st_uid, 4711);
	assert_int_equal(fstatat(p->u.dir, "d/f", &st, 0), 0);
	assert_true(st.st_uid == 4711 && st.st_gid == 4712);
}

static void archive__zip(void **state)
{
	struct place *p = *state;
	sbx_autobuf out = TAR_INIT;
	struct archive *z = zip_new(&out);

	zip_add(z, S_IFREG | 0600, "safe.txt", "safe");
	zip_add(z, S_IFDIR | 0755, "d/", "");
	zip_add(z, S_IFREG | 0644, "d/f", "in");
	zip_add(z, S_IFREG | 0644, "../../evil", "x");
	zip_add(z, S_IFREG | 0644, OUTSIDE, "x");
	zip_add(z, S_IFLNK | 0777, "link", "/etc/passwd");
	zip_add(z, S_IFREG | 0644, "link/x", "y");
	zip_end(z);
	unpacks(p, &out, ORCH_ARCHIVE_ZIP, 3,
		"../../evil: has a part '..'; " OUTSIDE ": is absolute; "
		"link: is a symbolic link; ");
	file_is(p->u.dir, "d/f", "in");
	file_is(p->u.dir, "link/x", "y");
	is_absent(AT_FDCWD, OUTSIDE);
}

static void archive__kind_is_not_guessed(void **state)
{
	struct place *p = *state;
	sbx_autobuf tar = TAR_INIT, zip = TAR_INIT, twice = TAR_INIT, once = TAR_INIT;
	struct archive *z = zip_new(&zip);

	zip_add(z, S_IFREG | 0600, "f", "x");
	zip_end(z);
	tar_file(&tar, "f", "x");
	tar_end(&tar);
	unpacks(p, &tar, ORCH_ARCHIVE_ZIP, 0, ": corrupt archive; ");
	fresh(p);
	unpacks(p, &zip, ORCH_ARCHIVE_TAR, 0, ": corrupt archive; ");
	fresh(p);
	compress_into(&once, ARCHIVE_FILTER_GZIP, tar.data, tar.len);
	compress_into(&twice, ARCHIVE_FILTER_GZIP, once.data, once.len);
	unpacks(p, &twice, ORCH_ARCHIVE_TAR, 0, ": corrupt archive; ");
}

static void archive__names_of_any_bytes(void **state)
{
	static const char raw[] = "caf\xe9", pax[] = "path=na\xc3\xafve/\xe2\x82\xac",
			  bytes[] = "path=b\xff";
	struct place *p = *state;
	sbx_autobuf tar = TAR_INIT;

	tar_file(&tar, raw, "1");
	tar_pax(&tar, pax, sizeof(pax) - 1);
	tar_file(&tar, "short", "2");
	tar_file(&tar, "..\\up", "3");
	tar_pax(&tar, bytes, sizeof(bytes) - 1);
	tar_file(&tar, "short", "4");
	tar_end(&tar);
	unpacks(p, &tar, ORCH_ARCHIVE_TAR, 4, "");
	file_is(p->u.dir, raw, "1");
	file_is(p->u.dir, "na\xc3\xafve/\xe2\x82\xac", "2");
	file_is(p->u.dir, "..\\up", "3");
	file_is(p->u.dir, "b\xff", "4");
}

static void archive__sparse_files(void **state)
{
	static const char name[] = "path=hollow", major[] = "GNU.sparse.major=1",
			  minor[] = "GNU.sparse.minor=0", size[] = "GNU.sparse.realsize=70000";
	struct place *p = *state;
	sbx_autobuf tar = TAR_INIT, pax = SBX_BUF_INIT(4096);
	char map[512] = "1\n65536\n5\n";
	struct stat st;
	char found[6] = "";
	int fd;

	sbx_buf_printf(&pax, "%zu %s\n", strlen(name) + 4, name);
	sbx_buf_printf(&pax, "%zu %s\n", strlen(major) + 4, major);
	sbx_buf_printf(&pax, "%zu %s\n", strlen(minor) + 4, minor);
	sbx_buf_printf(&pax, "%zu %s\n", strlen(size) + 4, size);
	tar_header(&tar, 'x', "pax", NULL, 0644, pax.len);
	sbx_buf_add(&tar, pax.data, pax.len);
	tar_pad(&tar);
	tar_header(&tar, '0', "GNUSparseFile.0/hollow", NULL, 0644, 512 + 5);
	sbx_buf_add(&tar, map, sizeof(map));
	sbx_buf_puts(&tar, "bytes");
	tar_pad(&tar);
	tar_end(&tar);
	unpacks(p, &tar, ORCH_ARCHIVE_TAR, 1, "");
	assert_int_equal(p->u.bytes, 70000);
	fd = openat(p->u.dir, "hollow", O_RDONLY);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_size, 70000);
	assert_int_equal(pread(fd, found, 5, 65536), 5);
	assert_string_equal(found, "bytes");
	(void)close(fd);
	/* The hole counts as well. */
	fresh(p);
	p->u.max_bytes = 69999;
	assert_int_equal(unpack(p, &tar, ORCH_ARCHIVE_TAR), -SBX_E_WORKSPACE_CAP);
	is_absent(p->u.dir, "hollow");
}

static void archive__the_last_of_a_name_counts(void **state)
{
	struct place *p = *state;
	sbx_autobuf tar = TAR_INIT;

	tar_file(&tar, "f", "a long first one");
	tar_file(&tar, "./f", "2nd");
	tar_file(&tar, "d/x", "x");
	tar_file(&tar, "d", "not over a directory");
	tar_file(&tar, "f/x", "nor below a file");
	tar_dir(&tar, "f/", 0755);
	tar_end(&tar);
	unpacks(p, &tar, ORCH_ARCHIVE_TAR, 2,
		"d: is a directory already; f/x: is below something that is no directory; "
		"f/: is below something that is no directory; ");
	assert_int_equal(p->u.bytes, 4);
	file_is(p->u.dir, "f", "2nd");
	file_is(p->u.dir, "d/x", "x");
}

/* ---- what is hostile ------------------------------------------------------------------------- */

static void archive__ways_out(void **state)
{
	struct place *p = *state;
	sbx_autobuf tar = TAR_INIT;

	tar_file(&tar, "../e", "x");
	tar_file(&tar, OUTSIDE, "x");
	tar_file(&tar, "a/../../e", "x");
	tar_symlink(&tar, "l", "/tmp");
	tar_file(&tar, "l/sbx-archive-outside", "below");
	tar_symlink(&tar, "m", "../..");
	tar_file(&tar, "m/e", "below");
	tar_hardlink(&tar, "h", "/etc/passwd");
	tar_hardlink(&tar, "i", "../../x");
	tar_symlink(&tar, "f", OUTSIDE);
	tar_file(&tar, "f", "plain");
	tar_header(&tar, '3', "dev", NULL, 0666, 0);
	tar_header(&tar, '6', "pipe", NULL, 0666, 0);
	tar_file(&tar, "", "no name");
	tar_file(&tar, ".", "no name");
	tar_file(&tar, "safe.txt", "safe");
	tar_end(&tar);
	unpacks(p, &tar, ORCH_ARCHIVE_TAR, 4,
		"../e: has a part '..'; " OUTSIDE ": is absolute; a/../../e: has a part '..'; "
		"l: is a symbolic link; m: is a symbolic link; h: is a hard link; i: is a hard "
		"link; f: is a symbolic link; dev: is a device, a pipe or a socket; pipe: is a "
		"device, a pipe or a socket; : is empty; .: is empty; ");
	file_is(p->u.dir, "f", "plain");
	file_is(p->u.dir, "l/sbx-archive-outside", "below");
	is_absent(p->basefd, "e");
	is_absent(AT_FDCWD, OUTSIDE);
}

/* Links are kept where they are asked for, and lead nowhere while they are made. */
static void archive__kept_links_are_not_followed(void **state)
{
	struct place *p = *state;
	sbx_autobuf tar = TAR_INIT;

	p->u.symlinks = true;
	tar_symlink(&tar, "l", "/tmp");
	tar_file(&tar, "l/sbx-archive-outside", "x");
	tar_symlink(&tar, "f", OUTSIDE);
	tar_file(&tar, "f", "plain");
	tar_end(&tar);
	unpacks(p, &tar, ORCH_ARCHIVE_TAR, 1,
		"l/sbx-archive-outside: is below something that is no directory; ");
	file_is(p->u.dir, "f", "plain");
	assert_true(S_ISLNK(mode_of(p->u.dir, "l")));
	is_absent(AT_FDCWD, OUTSIDE);
}

static void archive__long_and_deep_names(void **state)
{
	struct place *p = *state;
	sbx_autobuf tar = TAR_INIT, name = SBX_BUF_INIT(8192), deep = SBX_BUF_INIT(8192);

	sbx_buf_puts(&name, "path=");
	for (int i = 0; i < 4990; i++)
		sbx_buf_puts(&name, i % 100 == 99 ? "/" : "n");
	tar_pax(&tar, name.data, name.len);
	tar_file(&tar, "short", "1");
	sbx_buf_puts(&deep, "path=");
	for (int i = 0; i < 200; i++)
		sbx_buf_puts(&deep, "d/");
	tar_pax(&tar, deep.data, deep.len - 1);
	tar_file(&tar, "short", "2");
	deep.len = 5 + 2 * ORCH_ARCHIVE_DEPTH_MAX - 1;
	tar_pax(&tar, deep.data, deep.len);
	tar_file(&tar, "short", "3");
	tar_end(&tar);
	if (unpack(p, &tar, ORCH_ARCHIVE_TAR) != 0)
		fail_msg("%s", p->e.message);
	assert_int_equal(p->u.files, 1);
	assert_non_null(strstr(p->skipped.data, ": is longer than 4095 bytes; "));
	assert_non_null(strstr(p->skipped.data, ": is too deep; "));
}

/* Little that unpacks to a GiB: the file itself, and one that would only be passed over. */
static void archive__ratio_bombs_stop_early(void **state)
{
	static const char *const names[] = { "bomb", "../bomb" };
	struct place *p = *state;
	sbx_autobuf zeros = SBX_BUF_INIT(16 << 20), piece = TAR_INIT;

	assert_non_null(sbx_buf_reserve(&zeros, 16 << 20));
	memset(zeros.data, 0, 16 << 20);
	compress_into(&piece, ARCHIVE_FILTER_GZIP, zeros.data, 16 << 20);
	for (size_t i = 0; i < SBX_COUNT(names); i++) {
		sbx_autobuf tar = TAR_INIT, out = TAR_INIT;
		struct stat st;

		fresh(p);
		tar_file(&tar, "first", "1");
		tar_header(&tar, '0', names[i], NULL, 0644, 1 << 30);
		compress_into(&out, ARCHIVE_FILTER_GZIP, tar.data, tar.len);
		for (int n = 0; n < 64; n++)
			sbx_buf_add(&out, piece.data, piece.len);
		assert_true(out.len < 2 << 20);
		assert_int_equal(unpack(p, &out, ORCH_ARCHIVE_TAR), -SBX_E_WORKSPACE_CAP);
		is_absent(p->u.dir, "bomb");
		assert_int_equal(fstatat(p->u.dir, "first", &st, 0), 0);
	}
}

static void archive__more_than_the_limit(void **state)
{
	struct place *p = *state;
	sbx_autobuf tar = TAR_INIT;

	p->u.max_bytes = 10;
	tar_file(&tar, "a", "12345");
	tar_file(&tar, "a", "1234567890");
	tar_end(&tar);
	unpack(p, &tar, ORCH_ARCHIVE_TAR);
	/* Both are there for a moment. */
	assert_int_equal(p->e.code, SBX_E_WORKSPACE_CAP);
	file_is(p->u.dir, "a", "12345");
}

static void archive__too_many_entries(void **state)
{
	struct place *p = *state;
	sbx_autobuf tar = TAR_INIT;

	for (int i = 0; i < 200000; i++)
		tar_header(&tar, '6', "p", NULL, 0644, 0);
	tar_end(&tar);
	assert_int_equal(unpack(p, &tar, ORCH_ARCHIVE_TAR), -SBX_E_WORKSPACE_CAP);
	assert_non_null(strstr(p->e.message, "100000 entries"));
}

static void archive__bad_headers(void **state)
{
	struct place *p = *state;
	sbx_autobuf sum = TAR_INIT, huge = TAR_INIT, none = TAR_INIT, junk = TAR_INIT;

	tar_file(&sum, "first", "1");
	tar_file(&sum, "second", "2");
	sum.data[2 * TAR_BLOCK] = 'S';
	tar_end(&sum);
	unpacks(p, &sum, ORCH_ARCHIVE_TAR, 1, ": corrupt archive; ");
	file_is(p->u.dir, "first", "1");

	fresh(p);
	tar_file(&huge, "first", "1");
	tar_header(&huge, '0', "huge", NULL, 0644, INT64_MAX);
	sbx_buf_puts(&huge, "some");
	tar_pad(&huge);
	(void)unpack(p, &huge, ORCH_ARCHIVE_TAR);
	file_is(p->u.dir, "first", "1");
	is_absent(p->u.dir, "huge");

	fresh(p);
	unpacks(p, &none, ORCH_ARCHIVE_TAR, 0, ": corrupt archive; ");
	fresh(p);
	for (int i = 0; i < 100000; i++)
		sbx_buf_add(&junk, &(char){ (char)(i * i / 7) }, 1);
	unpacks(p, &junk, ORCH_ARCHIVE_TAR, 0, ": corrupt archive; ");
	fresh(p);
	unpacks(p, &junk, ORCH_ARCHIVE_ZIP, 0, ": corrupt archive; ");
}

/* Cut off anywhere, what is there is whole. */
static void cut_everywhere(struct place *p, const struct sbx_buf *b, enum orch_archive_kind kind)
{
	for (size_t len = 0; len < b->len; len += len < 1200 ? 13 : 61) {
		sbx_autobuf part = TAR_INIT;
		int64_t files = 0;

		fresh(p);
		sbx_buf_add(&part, b->data, len);
		if (unpack(p, &part, kind) != 0)
			fail_msg("%zu: %s", len, p->e.message);
		for (int i = 0; i < 3; i++) {
			char name[16], text[800];
			struct stat st;

			(void)snprintf(name, sizeof(name), "d/%d", i);
			(void)snprintf(text, sizeof(text), "%0700d", i);
			if (fstatat(p->u.dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
				continue;
			files++;
			file_is(p->u.dir, name, text);
		}
		assert_int_equal(p->u.files, files);
	}
}

static void archive__truncated(void **state)
{
	struct place *p = *state;
	sbx_autobuf tar = TAR_INIT, gz = TAR_INIT, zip = TAR_INIT;
	struct archive *z = zip_new(&zip);
	char name[16], text[800];

	for (int i = 0; i < 3; i++) {
		(void)snprintf(name, sizeof(name), "d/%d", i);
		(void)snprintf(text, sizeof(text), "%0700d", i);
		tar_file(&tar, name, text);
		zip_add(z, S_IFREG | 0644, name, text);
	}
	tar_end(&tar);
	zip_end(z);
	compress_into(&gz, ARCHIVE_FILTER_GZIP, tar.data, tar.len);
	cut_everywhere(p, &tar, ORCH_ARCHIVE_TAR);
	cut_everywhere(p, &gz, ORCH_ARCHIVE_TAR);
	cut_everywhere(p, &zip, ORCH_ARCHIVE_ZIP);
}

/* One byte wrong, anywhere: no crash, nothing outside, at most an error. */
static void archive__damaged(void **state)
{
	struct place *p = *state;
	sbx_autobuf tar = TAR_INIT, gz = TAR_INIT, zip = TAR_INIT;
	struct archive *z = zip_new(&zip);

	tar_dir(&tar, "d/", 0755);
	tar_file(&tar, "d/f", "text");
	zip_add(z, S_IFREG | 0644, "d/f", "text");
	zip_add(z, S_IFREG | 0644, "g", "more text");
	tar_end(&tar);
	zip_end(z);
	compress_into(&gz, ARCHIVE_FILTER_GZIP, tar.data, tar.len);
	for (size_t i = 0; i < gz.len || i < zip.len; i++) {
		fresh(p);
		if (i < gz.len) {
			gz.data[i] ^= 0x55;
			(void)unpack(p, &gz, ORCH_ARCHIVE_TAR);
			gz.data[i] ^= 0x55;
		}
		fresh(p);
		if (i < zip.len) {
			zip.data[i] ^= 0x55;
			(void)unpack(p, &zip, ORCH_ARCHIVE_ZIP);
			zip.data[i] ^= 0x55;
		}
	}
}

static void archive__paths(void **state)
{
	static const struct {
		const char *in;
		bool rooted;
		const char *out; /* NULL: refused */
	} rows[] = {
		{ "a", false, "a" },	     { "./a//b/", false, "a/b" }, { "././", false, "" },
		{ "", false, "" },	     { "/a", false, NULL },	  { "/a", true, "a" },
		{ "//a/./b", true, "a/b" },  { "..", true, NULL },	  { "a/..", false, NULL },
		{ "a/../b", false, NULL },   { "...", false, "..." },	  { "a..", false, "a.." },
		{ "..\\x", false, "..\\x" },
	};
	char path[SBX_PATH_MAX + 1];

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		const char *why = orch_archive_path(rows[i].in, rows[i].rooted, path);

		assert_int_equal(why == NULL, rows[i].out != NULL);
		if (rows[i].out)
			assert_string_equal(path, rows[i].out);
	}
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(archive__every_compression),
		TEST(archive__owner),
		TEST(archive__zip),
		TEST(archive__kind_is_not_guessed),
		TEST(archive__names_of_any_bytes),
		TEST(archive__sparse_files),
		TEST(archive__the_last_of_a_name_counts),
		TEST(archive__ways_out),
		TEST(archive__kept_links_are_not_followed),
		TEST(archive__long_and_deep_names),
		TEST(archive__ratio_bombs_stop_early),
		TEST(archive__more_than_the_limit),
		TEST(archive__too_many_entries),
		TEST(archive__bad_headers),
		TEST(archive__truncated),
		TEST(archive__damaged),
		cmocka_unit_test(archive__paths),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
