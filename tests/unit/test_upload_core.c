/* SPDX-License-Identifier: Apache-2.0 */
/* Uploads without a session: parts into a directory that has a cap, and in which a run may have
 * left anything. */
#include "archive_util.h"

#include "orchestrator/intake.h"

#define OUTSIDE "/tmp/sbx-upload-outside"

struct place {
	char base[64];
	int base_fd, stage, target;
	struct intake *in;
	struct sbx_error e;
};

static int dir_at(int at, const char *name)
{
	if (mkdirat(at, name, 0755) < 0)
		return -1;
	return openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* An upload into what the one before left; used is what it has. */
static void begin(struct place *p, int64_t used, int64_t cap)
{
	struct intake_options opts = { .used = used,
				       .cap = cap,
				       .uid = geteuid() == 0 ? 4711 : (uid_t)-1,
				       .gid = geteuid() == 0 ? 4711 : (gid_t)-1 };

	p->in = intake_free(p->in);
	sbx_closep(&p->stage);
	assert_int_equal(sbx_remove_tree(p->base_fd, "stage"), 0);
	p->stage = dir_at(p->base_fd, "stage");
	opts.stage = p->stage;
	opts.target = p->target;
	sbx_error_clear(&p->e);
	if (intake_new(&opts, &p->in, &p->e) < 0)
		fail_msg("%s", p->e.message);
}

static int setup(void **state)
{
	static struct place p;

	p = (struct place){ .base = "/tmp/sbx-upload-XXXXXX", .stage = -1 };
	if (!mkdtemp(p.base))
		return -1;
	p.base_fd = open(p.base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	p.target = dir_at(p.base_fd, "target");
	*state = &p;
	begin(&p, 0, 1 << 20);
	return 0;
}

static int teardown(void **state)
{
	struct place *p = *state;

	p->in = intake_free(p->in);
	sbx_closep(&p->stage);
	sbx_closep(&p->target);
	sbx_closep(&p->base_fd);
	sbx_error_clear(&p->e);
	return sbx_remove_tree(AT_FDCWD, p->base);
}

static int send(struct place *p, const char *name, const void *data, size_t len)
{
	int rc = intake_file(p->in, name, &p->e);

	for (size_t at = 0; rc == 0 && at < len; at += 1000)
		rc = intake_data(p->in, (const char *)data + at, len - at < 1000 ? len - at : 1000,
				 &p->e);
	return rc;
}

static void sends(struct place *p, const char *name, const char *text)
{
	if (send(p, name, text, strlen(text)) < 0)
		fail_msg("%s: %s", name ? name : "(none)", p->e.message);
}

static void commits(struct place *p, int64_t files, int64_t bytes, const char *skipped)
{
	sbx_autobuf out = SBX_BUF_INIT(1 << 20), wanted = SBX_BUF_INIT(1 << 20);

	if (intake_commit(p->in, &p->e) < 0)
		fail_msg("%s", p->e.message);
	intake_view(p->in, &out);
	sbx_buf_printf(&wanted, "\"bytes_received\":%lld,\"file_count\":%lld,\"skipped\":[",
		       (long long)bytes, (long long)files);
	if (strncmp(out.data, wanted.data, wanted.len) != 0 || !strstr(out.data, skipped))
		fail_msg("%s\nand not %s ... %s", out.data, wanted.data, skipped);
	assert_int_equal(intake_files(p->in), files);
	assert_int_equal(intake_bytes(p->in), bytes);
}

/* ---- what is good ---------------------------------------------------------------------------- */

static void upload__plain_files(void **state)
{
	struct place *p = *state;
	struct stat st;

	sends(p, "hello.txt", "hello world");
	sends(p, "a/b/c", "nested");
	sends(p, NULL, "no name");
	sends(p, "", "");
	sends(p, ".sandbox-upload.lock", "legacy lock payload");
	sends(p, "part-0", "as a staged one");
	sends(p, "stored.tar.xz", "as it is");
	sends(p, "..\\secret.txt", "a name like others");
	commits(p, 8, 11 + 6 + 7 + 0 + 19 + 15 + 8 + 18, "[],\"skipped_count\":0");
	file_is(p->target, "hello.txt", "hello world");
	file_is(p->target, "a/b/c", "nested");
	file_is(p->target, "file_2", "no name");
	file_is(p->target, "file_3", "");
	file_is(p->target, ".sandbox-upload.lock", "legacy lock payload");
	file_is(p->target, "stored.tar.xz", "as it is");
	file_is(p->target, "..\\secret.txt", "a name like others");
	assert_int_equal(fstatat(p->target, "a/b/c", &st, 0), 0);
	assert_int_equal(st.st_mode, S_IFREG | 0644);
	if (geteuid() == 0)
		assert_int_equal(st.st_uid, 4711);
	assert_int_equal(fstatat(p->target, "a", &st, 0), 0);
	assert_int_equal(st.st_mode, S_IFDIR | 0755);
	if (geteuid() == 0)
		assert_int_equal(st.st_uid, 4711);
}

static void upload__replaces(void **state)
{
	struct place *p = *state;

	sends(p, "f", "first");
	sends(p, "f", "second");
	commits(p, 2, 11, "[]");
	file_is(p->target, "f", "second");
	begin(p, 6, 8);
	sends(p, "f", "third...");
	commits(p, 1, 8, "[]");
	file_is(p->target, "f", "third...");
}

static void upload__archives_by_name(void **state)
{
	static const char *const names[] = { "a.tar",	  "a.tar.gz", "a.TGZ",
					     "a.tar.bz2", "d/a.tbz2", "../a.Tar.Gz" };
	struct place *p = *state;
	sbx_autobuf tar = TAR_INIT, xz = TAR_INIT, zip = TAR_INIT;
	struct archive *z = zip_new(&zip);

	tar_dir(&tar, "empty/", 0755);
	tar_file(&tar, "d/safe.txt", "safe");
	tar_end(&tar);
	/* What it is compressed with is seen in the bytes. */
	compress_into(&xz, ARCHIVE_FILTER_XZ, tar.data, tar.len);
	for (size_t i = 0; i < SBX_COUNT(names); i++) {
		begin(p, 0, 1 << 20);
		assert_int_equal(
			send(p, names[i], i % 2 ? xz.data : tar.data, i % 2 ? xz.len : tar.len), 0);
		commits(p, 1, 4, "[]");
		file_is(p->target, "d/safe.txt", "safe");
		assert_int_equal(mode_of(p->target, "empty"), S_IFDIR | 0755);
		is_absent(p->target, names[i]);
	}
	zip_add(z, S_IFREG | 0644, "zipped", "inside");
	zip_add(z, S_IFREG | 0644, "../../../tmp/evil.txt", "x");
	zip_end(z);
	begin(p, 0, 1 << 20);
	assert_int_equal(send(p, "archive.ZIP", zip.data, zip.len), 0);
	commits(p, 1, 6, "{\"path\":\"../../../tmp/evil.txt\",\"reason\":\"has a part '..'\"}");
	file_is(p->target, "zipped", "inside");
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void upload__unsafe_names(void **state)
{
	static const char *const names[] = { "../../../etc/passwd",
					     "/etc/passwd",
					     "../secret.txt",
					     "foo/../../../secret.txt",
					     "foo/bar/../../../../../../etc/passwd",
					     "./../secret.txt",
					     ".",
					     "./",
					     OUTSIDE };
	struct place *p = *state;

	for (size_t i = 0; i < SBX_COUNT(names); i++)
		sends(p, names[i], "x");
	commits(p, 0, 0, "\"skipped_count\":9");
	is_absent(p->base_fd, "secret.txt");
	is_absent(p->target, "foo");
	is_absent(AT_FDCWD, OUTSIDE);
}

static void upload__links_and_directories_of_the_workspace(void **state)
{
	struct place *p = *state;
	sbx_autobuf tar = TAR_INIT;

	assert_int_equal(mkdir(OUTSIDE, 0700), 0);
	assert_int_equal(symlinkat(OUTSIDE, p->target, "escape"), 0);
	assert_int_equal(symlinkat(OUTSIDE "/f", p->target, "link"), 0);
	assert_int_equal(mkdirat(p->target, "dir", 0755), 0);
	assert_int_equal(symlinkat("..", p->target, "dir/up"), 0);
	sends(p, "file", "f");
	commits(p, 1, 1, "[]");
	begin(p, 1, 1 << 20);
	tar_dir(&tar, "escape/", 0777);
	tar_file(&tar, "escape/secret.txt", "x");
	tar_dir(&tar, "escape/sub/", 0777);
	tar_file(&tar, "link", "x");
	tar_file(&tar, "dir", "x");
	tar_file(&tar, "file/x", "x");
	tar_file(&tar, "fine", "x");
	tar_end(&tar);
	sends(p, "escape/secret.txt", "x");
	sends(p, "escape/new/secret.txt", "x");
	sends(p, "link", "x");
	sends(p, "dir", "x");
	sends(p, "dir/up/x", "x");
	sends(p, "file/x", "x");
	assert_int_equal(send(p, "a.tar", tar.data, tar.len), 0);
	commits(p, 1, 1, "\"skipped_count\":10");
	file_is(p->target, "fine", "x");
	file_is(p->target, "file", "f");
	is_absent(p->target, "x");
	is_absent(AT_FDCWD, OUTSIDE "/f");
	/* Nothing has got there. */
	assert_int_equal(rmdir(OUTSIDE), 0);
}

static void zeros(struct sbx_buf *b, size_t n)
{
	assert_non_null(sbx_buf_reserve(b, n));
	memset(b->data, 0, n);
	b->len = n;
}

/* As soon as it cannot fit; what came before it stays. */
static void upload__cap_while_it_comes_in(void **state)
{
	struct place *p = *state;
	sbx_autobuf big = SBX_BUF_INIT(4 << 20);

	zeros(&big, 716800);
	assert_int_equal(send(p, "first.bin", big.data, big.len), 0);
	commits(p, 1, 716800, "[]");
	begin(p, 716800, 1 << 20);
	sends(p, "small", "before it");
	assert_int_equal(send(p, "second.bin", big.data, big.len), -SBX_E_WORKSPACE_CAP);
	assert_int_equal(intake_file(p->in, "more", NULL), -SBX_E_INVALID_ARGUMENT);
	commits(p, 1, 9, "[]");
	file_is(p->target, "small", "before it");
	is_absent(p->target, "second.bin");
	assert_int_equal(mode_of(p->target, "first.bin"), S_IFREG | 0644);
	assert_int_equal(intake_commit(p->in, NULL), -SBX_E_INVALID_ARGUMENT);
	/* In the place of the first, it fits. */
	begin(p, 716800, 1 << 20);
	assert_int_equal(send(p, "./first.bin", big.data, big.len), 0);
	commits(p, 1, 716800, "[]");
	/* Many that fit one by one. */
	begin(p, 0, 1 << 20);
	assert_int_equal(send(p, "a", big.data, 600000), 0);
	assert_int_equal(send(p, "b", big.data, 600000), -SBX_E_WORKSPACE_CAP);
}

static void upload__cap_in_an_archive(void **state)
{
	struct place *p = *state;
	sbx_autobuf big = SBX_BUF_INIT(4 << 20), tar = TAR_INIT, gz = TAR_INIT;

	zeros(&big, 600000);
	tar_file(&tar, "one", "1");
	tar_bytes(&tar, "two", 0644, big.data, big.len);
	tar_bytes(&tar, "three", 0644, big.data, big.len);
	tar_end(&tar);
	compress_into(&gz, ARCHIVE_FILTER_GZIP, tar.data, tar.len);
	sends(p, "before", "b");
	assert_int_equal(send(p, "a.tgz", gz.data, gz.len), 0);
	sends(p, "behind", "b");
	assert_int_equal(intake_commit(p->in, &p->e), -SBX_E_WORKSPACE_CAP);
	file_is(p->target, "before", "b");
	is_absent(p->target, "one");
	is_absent(p->target, "two");
	is_absent(p->target, "behind");
	is_absent(p->stage, "tree");
	/* It would fit by itself, and not beside what is there; and in the place of that. */
	begin(p, 600000, 1300000);
	assert_int_equal(send(p, "a.tgz", gz.data, gz.len), 0);
	assert_int_equal(intake_commit(p->in, &p->e), -SBX_E_WORKSPACE_CAP);
	is_absent(p->target, "two");
	begin(p, 0, 1300000);
	assert_int_equal(send(p, "a.tgz", gz.data, gz.len), 0);
	commits(p, 3, 1200001, "[]");
	begin(p, 1200001, 1300000);
	assert_int_equal(send(p, "a.tgz", gz.data, gz.len), 0);
	commits(p, 3, 1200001, "[]");
}

static void upload__archives_that_never_end(void **state)
{
	struct place *p = *state;
	sbx_autobuf big = SBX_BUF_INIT(4 << 20);
	int rc = 0, n = 0;

	zeros(&big, 1 << 20);
	assert_int_equal(intake_file(p->in, "a.tar", &p->e), 0);
	for (; rc == 0 && n < 100; n++)
		rc = intake_data(p->in, big.data, big.len, &p->e);
	assert_int_equal(rc, -SBX_E_WORKSPACE_CAP);
	assert_true(n < 20);
}

static void upload__many_are_skipped(void **state)
{
	struct place *p = *state;
	sbx_autobuf tar = TAR_INIT, out = SBX_BUF_INIT(1 << 20);
	char name[80];
	int shown = 0;

	for (int i = 0; i < 5000; i++) {
		(void)snprintf(name, sizeof(name), "../%d\xff\"", i);
		tar_file(&tar, name, "");
	}
	tar_end(&tar);
	assert_int_equal(send(p, "a.tar", tar.data, tar.len), 0);
	commits(p, 0, 0, "\"skipped_count\":5000");
	intake_view(p->in, &out);
	for (const char *at = out.data; (at = strstr(at, "\"path\"")); at++)
		shown++;
	assert_int_equal(shown, 100);
	assert_non_null(strstr(out.data, "../0\xef\xbf\xbd\\\""));
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(upload__plain_files),
		TEST(upload__replaces),
		TEST(upload__archives_by_name),
		TEST(upload__unsafe_names),
		TEST(upload__links_and_directories_of_the_workspace),
		TEST(upload__cap_while_it_comes_in),
		TEST(upload__cap_in_an_archive),
		TEST(upload__archives_that_never_end),
		TEST(upload__many_are_skipped),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
