/* SPDX-License-Identifier: Apache-2.0 */
/* base/: buffers, UTF-8, base64, ids, clocks, paths, removal of trees, errors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/id.h"
#include "base/utf8.h"

static void buf__limit_is_sticky(void **state)
{
	sbx_autobuf b = SBX_BUF_INIT(8);

	(void)state;
	sbx_buf_puts(&b, "12345678");
	assert_false(sbx_buf_failed(&b));
	assert_string_equal(b.data, "12345678");
	sbx_buf_puts(&b, "9");
	assert_true(sbx_buf_failed(&b));
	assert_null(sbx_buf_steal(&b));
}

static void buf__json_strings(void **state)
{
	static const struct {
		const char *in;
		size_t len;
		const char *out;
	} rows[] = {
		{ "plain", 5, "\"plain\"" },
		{ "a\"b\\c", 5, "\"a\\\"b\\\\c\"" },
		{ "\n\t\r\x01", 4, "\"\\n\\t\\r\\u0001\"" },
		{ "\xc3\xa9", 2, "\"\xc3\xa9\"" },
		{ "x\xff", 2, "\"x\xef\xbf\xbd\"" },
		{ "a\0b", 3, "\"a\\u0000b\"" },
		{ "", 0, "\"\"" },
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		sbx_autobuf b = SBX_BUF_INIT(1000);

		sbx_buf_json_str(&b, rows[i].in, rows[i].len);
		assert_string_equal(b.data, rows[i].out);
		assert_int_equal(sbx_json_str_len(rows[i].in, rows[i].len), b.len);
	}
}

static void base64__round_trip_and_refusal(void **state)
{
	static const char *const bad[] = { "@@@", "QQ==\n", "Q", "QQ=a", "Q===", "====", " QQ==" };
	uint8_t *out = NULL;
	size_t n = 0;

	(void)state;
	for (size_t len = 0; len < 40; len++) {
		sbx_autobuf b = SBX_BUF_INIT(1000);
		uint8_t data[40];

		sbx_random(data, sizeof(data));
		sbx_buf_base64(&b, data, len);
		assert_int_equal(sbx_base64_decode(b.data ? b.data : "", b.len, &out, &n), 0);
		assert_int_equal(n, len);
		assert_memory_equal(out, data, len);
		free(out);
	}
	assert_int_equal(sbx_base64_decode("QQ", 2, &out, &n), 0);
	assert_int_equal(n, 1);
	free(out);
	for (size_t i = 0; i < SBX_COUNT(bad); i++)
		assert_int_equal(sbx_base64_decode(bad[i], strlen(bad[i]), &out, &n), -1);
}

static void utf8__tables(void **state)
{
	static const struct {
		const char *s;
		bool valid;
		size_t tail;
	} rows[] = {
		{ "plain ascii of some length", true, 0 },
		{ "\xe3\x81\x82", true, 0 },
		{ "a\xe3\x81", false, 2 },
		{ "a\xe3", false, 1 },
		{ "\xf0\x9f\x99", false, 3 },
		{ "\xf0\x9f\x99\x82", true, 0 },
		{ "\xed\xa0\x80", false, 0 },	  /* a surrogate */
		{ "\xc0\x80", false, 0 },	  /* overlong */
		{ "\xf4\x90\x80\x80", false, 0 }, /* above U+10FFFF */
		{ "\x80", false, 0 },
		{ "\xff", false, 0 },
		{ "0123456789abcdef\xc3", false, 1 },
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		assert_int_equal(sbx_utf8_valid(rows[i].s, strlen(rows[i].s)), rows[i].valid);
		assert_int_equal(sbx_utf8_partial_tail(rows[i].s, strlen(rows[i].s)), rows[i].tail);
	}
}

static void ids__sort_in_order_of_creation(void **state)
{
	char a[SBX_ID_LEN + 1], b[SBX_ID_LEN + 1];

	(void)state;
	sbx_id_new(a);
	assert_true(sbx_id_valid(a));
	for (int i = 0; i < 10000; i++) {
		sbx_id_new(b);
		assert_true(strcmp(a, b) < 0);
		memcpy(a, b, sizeof(a));
	}
	assert_true(sbx_id_valid(b));
	assert_int_equal(b[14], '7');
	assert_false(sbx_id_valid("x"));
	assert_false(sbx_id_valid("00000000-0000-7000-8000-00000000000G"));
}

static void time__is_rfc3339_utc(void **state)
{
	char t[SBX_TIME_TEXT];

	(void)state;
	assert_string_equal(sbx_time_format(0, t), "1970-01-01T00:00:00.000000Z");
	assert_string_equal(sbx_time_format(INT64_C(1769860800123456), t),
			    "2026-01-31T12:00:00.123456Z");
	assert_int_equal(strlen(sbx_boot_id()), 36);
}

static void time__parses_what_clients_write(void **state)
{
	static const struct {
		const char *text;
		int64_t us; /* -1: refused */
	} rows[] = {
		{ "1970-01-01T00:00:00Z", 0 },
		{ "2026-01-31T12:00:00.123456Z", INT64_C(1769860800123456) },
		{ "2026-01-31t12:00:00.1234567z", INT64_C(1769860800123456) },
		{ "2026-01-31 12:00:00", INT64_C(1769860800000000) },
		{ "2026-01-31T12:00:00.5", INT64_C(1769860800500000) },
		{ "2026-01-31T13:30:00+01:30", INT64_C(1769860800000000) },
		{ "2026-01-31T13:30:00 01:30", INT64_C(1769860800000000) },
		{ "2026-01-31T07:00:00-0500", INT64_C(1769860800000000) },
		{ "2026-02-29T00:00:00Z", -1 },
		{ "2026-13-01T00:00:00Z", -1 },
		{ "2026-00-10T00:00:00Z", -1 },
		{ "2026-01-31T24:00:00Z", -1 },
		{ "2026-01-31T12:00:00+24:00", -1 },
		{ "2026-01-31T12:00:00Zx", -1 },
		{ "2026-01-31", -1 },
		{ "1969-12-31T23:59:59Z", -1 },
		{ "1769860800", -1 },
		{ "", -1 },
		{ "yesterday", -1 },
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		int64_t us = -1;

		if (sbx_time_parse(rows[i].text, &us) != (rows[i].us < 0 ? -1 : 0) ||
		    us != rows[i].us)
			fail_msg("'%s' is %lld", rows[i].text, (long long)us);
	}
}

static void path__problems(void **state)
{
	static const char *const bad[] = { "",	    "/x", "../x", "a/../x", "a/..", "a//b",
					   "a/./b", "a/", ".",	  "..",	    "./a" };
	static const char *const good[] = { "a", "a/b", "...", "..a", "-rf", "a b", "new\nline" };
	char name[300];

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(bad); i++)
		assert_non_null(sbx_path_problem(bad[i], strlen(bad[i])));
	for (size_t i = 0; i < SBX_COUNT(good); i++)
		assert_null(sbx_path_problem(good[i], strlen(good[i])));
	memset(name, 'x', sizeof(name));
	assert_null(sbx_path_problem(name, 255));
	assert_non_null(sbx_path_problem(name, 256));
	assert_non_null(sbx_path_problem("a\0b", 3));
}

static void fs__opens_nothing_outside(void **state)
{
	char dir[] = "/tmp/sbx-base-XXXXXX";
	sbx_autoclose int fd = -1;
	int r;

	(void)state;
	assert_non_null(mkdtemp(dir));
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(symlinkat("/etc", fd, "out"), 0);
	assert_int_equal(sbx_mkdirs_beneath(fd, "a/b/c", 0700), 0);
	r = sbx_open_beneath(fd, "a/b", O_RDONLY, 0);
	assert_true(r >= 0);
	close(r);
	assert_true(sbx_open_beneath(fd, "out/passwd", O_RDONLY, 0) < 0);
	assert_true(sbx_open_beneath(fd, "../etc/passwd", O_RDONLY, 0) < 0);
	assert_true(sbx_open_beneath(fd, "/etc/passwd", O_RDONLY, 0) < 0);
	assert_true(sbx_mkdirs_beneath(fd, "out/x/y", 0700) < 0);
	assert_int_equal(sbx_remove_tree(AT_FDCWD, dir), 0);
	assert_int_equal(access("/etc/passwd", F_OK), 0);
	assert_int_equal(access(dir, F_OK), -1);
}

/* 3,000 levels deep, with a directory without rights and a link out on the way. */
static void fs__removes_deep_and_hostile_trees(void **state)
{
	char dir[] = "/tmp/sbx-base-XXXXXX";
	int at, next;

	(void)state;
	assert_non_null(mkdtemp(dir));
	at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	for (int i = 0; i < 3000; i++) {
		assert_int_equal(mkdirat(at, "deepdeepdeep", 0700), 0);
		assert_int_equal(symlinkat("/etc", at, "link"), 0);
		next = openat(at, "deepdeepdeep", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		assert_true(next >= 0);
		if (i == 10)
			assert_int_equal(fchmod(at, 0), 0);
		close(at);
		at = next;
	}
	close(at);
	assert_int_equal(sbx_remove_tree(AT_FDCWD, dir), 0);
	assert_int_equal(access(dir, F_OK), -1);
	assert_int_equal(access("/etc/passwd", F_OK), 0);
	assert_int_equal(sbx_remove_tree(AT_FDCWD, dir), 0); /* nothing there is success */
}

/* Whoever stops it finds the rest as before. */
static void fs__removal_can_be_stopped(void **state)
{
	char dir[] = "/tmp/sbx-base-XXXXXX";
	sbx_autoclose int fd = -1;
	atomic_bool stop = true;

	(void)state;
	assert_non_null(mkdtemp(dir));
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_int_equal(sbx_mkdirs_beneath(fd, "a/b/c", 0700), 0);
	assert_int_equal(sbx_remove_tree_until(AT_FDCWD, dir, &stop), -EINTR);
	assert_int_equal(faccessat(fd, "a/b", F_OK, 0), 0);
	stop = false;
	assert_int_equal(sbx_remove_tree_until(AT_FDCWD, dir, &stop), 0);
	assert_int_equal(access(dir, F_OK), -1);
}

/* What one that was killed left, and a later process has its number; or somebody who knows. */
static void fs__removes_names_like_its_own(void **state)
{
	char dir[] = "/tmp/sbx-base-XXXXXX", path[64];
	sbx_autoclose int fd = -1;

	(void)state;
	assert_non_null(mkdtemp(dir));
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(fd >= 0);
	for (int i = 0; i < 3; i++) {
		(void)snprintf(path, sizeof(path), ".rm-%d-%d/a/b/c", (int)getpid(), i);
		assert_int_equal(sbx_mkdirs_beneath(fd, path, 0700), 0);
	}
	(void)snprintf(path, sizeof(path), "d/.rm-%d-4", (int)getpid());
	assert_int_equal(sbx_mkdirs_beneath(fd, "d/e/f/g", 0700), 0);
	assert_int_equal(symlinkat("nowhere", fd, path), 0);
	assert_int_equal(sbx_remove_tree(AT_FDCWD, dir), 0);
	assert_int_equal(access(dir, F_OK), -1);
}

/* The same file system, seen once more: its device does not tell. */
static void fs__removal_crosses_no_mount(void **state)
{
	static const char *const targets[] = { "d", "d/b", "d/b/c" };
	char dir[] = "/tmp/sbx-base-XXXXXX", target[64], kept[64];
	sbx_autoclose int fd = -1;

	(void)state;
	if (geteuid() != 0)
		skip();
	assert_non_null(mkdtemp(dir));
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	(void)snprintf(kept, sizeof(kept), "%s/kept", dir);
	assert_int_equal(sbx_mkdirs_beneath(fd, "kept/x/y", 0700), 0);
	for (size_t i = 0; i < SBX_COUNT(targets); i++) {
		int as_path, by_name;

		assert_int_equal(sbx_mkdirs_beneath(fd, "d/b/c/e", 0700), 0);
		(void)snprintf(target, sizeof(target), "%s/%s", dir, targets[i]);
		assert_int_equal(mount(kept, target, NULL, MS_BIND, NULL), 0);
		(void)snprintf(target, sizeof(target), "%s/d", dir);
		as_path = sbx_remove_tree(AT_FDCWD, target);
		by_name = sbx_remove_tree(fd, "d");
		(void)snprintf(target, sizeof(target), "%s/%s", dir, targets[i]);
		assert_int_equal(umount2(target, MNT_DETACH), 0);
		assert_true(as_path == -EXDEV || as_path == -EBUSY);
		assert_int_equal(by_name, as_path);
		assert_int_equal(faccessat(fd, "kept/x", F_OK, 0), 0);
		assert_int_equal(sbx_remove_tree(fd, "d"), 0);
	}
	assert_int_equal(sbx_remove_tree(AT_FDCWD, dir), 0);
}

static void fs__copies_holes(void **state)
{
	char a[] = "/tmp/sbx-base-XXXXXX", b[] = "/tmp/sbx-base-XXXXXX";
	sbx_autoclose int in = mkostemp(a, O_CLOEXEC), out = mkostemp(b, O_CLOEXEC);
	uint64_t n = 0;
	struct stat st;
	char c = 0;

	(void)state;
	assert_true(in >= 0 && out >= 0);
	assert_int_equal(ftruncate(in, INT64_C(1) << 40), 0);
	assert_int_equal(pwrite(in, "x", 1, 1 << 30), 1);
	assert_int_equal(sbx_copy_sparse(in, out, UINT64_MAX, &n), 0);
	assert_int_equal(n, UINT64_C(1) << 40);
	assert_int_equal(fstat(out, &st), 0);
	assert_true(st.st_blocks < 1000);
	assert_int_equal(pread(out, &c, 1, 1 << 30), 1);
	assert_int_equal(c, 'x');
	unlink(a);
	unlink(b);
}

static void errors__table_is_complete_and_distinct(void **state)
{
	(void)state;
	for (int i = 1; i < SBX_E__COUNT; i++) {
		const char *name = sbx_code_name((enum sbx_code)i);

		assert_int_equal(sbx_code_find(name), i);
		assert_in_range(sbx_code_http((enum sbx_code)i), 400, 599);
		assert_true(sbx_code_errno((enum sbx_code)i) > 0);
		assert_true(strlen(sbx_code_doc((enum sbx_code)i)) > 10);
	}
	assert_int_equal(sbx_code_find("no such"), SBX_OK);
}

static void errors__keep_code_and_details(void **state)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	sbx_autofree char *json = NULL;

	(void)state;
	assert_int_equal(sbx_fail(&e, SBX_E_RUN_NOT_FOUND, "no run '%s'", "x"),
			 -SBX_E_RUN_NOT_FOUND);
	sbx_error_details(&e, "{\"id\":\"%s\"}", "x");
	sbx_error_wrap(&e, -1, "cannot cancel");
	json = sbx_error_json(&e);
	assert_string_equal(json, "{\"error\":{\"code\":\"run_not_found\",\"message\":\"cannot "
				  "cancel: no run 'x'\",\"details\":{\"id\":\"x\"}}}\n");
	assert_int_equal(sbx_fail_errno(&e, SBX_E_STORE_UNAVAILABLE, ENOSPC, "write"),
			 -SBX_E_STORAGE_FULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(buf__limit_is_sticky),
		cmocka_unit_test(buf__json_strings),
		cmocka_unit_test(base64__round_trip_and_refusal),
		cmocka_unit_test(utf8__tables),
		cmocka_unit_test(ids__sort_in_order_of_creation),
		cmocka_unit_test(time__is_rfc3339_utc),
		cmocka_unit_test(time__parses_what_clients_write),
		cmocka_unit_test(path__problems),
		cmocka_unit_test(fs__opens_nothing_outside),
		cmocka_unit_test(fs__removes_deep_and_hostile_trees),
		cmocka_unit_test(fs__removal_can_be_stopped),
		cmocka_unit_test(fs__removes_names_like_its_own),
		cmocka_unit_test(fs__removal_crosses_no_mount),
		cmocka_unit_test(fs__copies_holes),
		cmocka_unit_test(errors__table_is_complete_and_distinct),
		cmocka_unit_test(errors__keep_code_and_details),
	};

	return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
