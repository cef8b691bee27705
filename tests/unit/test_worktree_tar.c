/* SPDX-License-Identifier: Apache-2.0 */
/* Tars out of git's sandbox: what is taken, and everything that is not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "runtimes/worktree/wt_i.h"

enum { BLOCK = 512, TAR_MAX = 256 * BLOCK };

static unsigned char tar[TAR_MAX];
static size_t len;

static int reset(void **state)
{
	(void)state;
	memset(tar, 0, sizeof(tar));
	len = 0;
	return 0;
}

/* The header of `at`, after somebody has changed it. */
static void sign(unsigned char *at)
{
	unsigned sum = 0;

	memset(at + 148, ' ', 8);
	for (size_t i = 0; i < BLOCK; i++)
		sum += at[i];
	(void)snprintf((char *)at + 148, 8, "%06o", sum);
}

static unsigned char *header(const char *name, char type, const char *link, size_t size)
{
	unsigned char *at = tar + len;

	(void)snprintf((char *)at, 100, "%s", name);
	memcpy(at + 100, "0000755", 8);
	(void)snprintf((char *)at + 124, 12, "%011o", (unsigned)size & 0777777777);
	at[156] = (unsigned char)type;
	(void)snprintf((char *)at + 157, 100, "%s", link ? link : "");
	memcpy(at + 257, "ustar  ", 8);
	sign(at);
	len += BLOCK;
	return at;
}

static void content(const char *text)
{
	memcpy(tar + len, text, strlen(text));
	len += (strlen(text) + BLOCK - 1) / BLOCK * BLOCK;
}

static void file(const char *name, const char *text)
{
	header(name, '0', NULL, strlen(text));
	content(text);
}

static void finish(void)
{
	len += 2 * BLOCK;
}

static int rc_of(size_t max)
{
	struct wt_tree t;
	int r = wt_tar_read(tar, len, max, &t, NULL);

	wt_tree_clear(&t);
	return r;
}

static void tar__files_links_and_directories(void **state)
{
	struct wt_tree t;

	(void)state;
	header("./", '5', NULL, 0);
	header("./d/", '5', NULL, 0);
	file("./d/f", "text");
	header("./l", '2', "../../elsewhere", 0);
	file("empty", "");
	finish();
	assert_int_equal(wt_tar_read(tar, len, 10, &t, NULL), 0);
	assert_int_equal(t.n, 4);
	assert_string_equal(t.list[0].path, "d");
	assert_true(S_ISDIR(t.list[0].mode));
	assert_string_equal(t.list[1].path, "d/f");
	assert_int_equal(t.list[1].mode, 0755);
	assert_int_equal(t.list[1].len, 4);
	assert_memory_equal(t.list[1].data, "text", 4);
	assert_true(S_ISLNK(t.list[2].mode));
	assert_string_equal(t.list[2].data, "../../elsewhere");
	assert_int_equal(t.list[3].len, 0);
	wt_tree_clear(&t);
}

static void tar__long_names(void **state)
{
	char name[301], target[251];
	struct wt_tree t;

	(void)state;
	memset(name, 'n', 300);
	name[150] = '/';
	name[300] = '\0';
	memset(target, 't', 250);
	target[250] = '\0';
	header("././@LongLink", 'K', NULL, 251);
	content(target);
	header("././@LongLink", 'L', NULL, 301);
	content(name);
	header("nnn", '2', "ttt", 0);
	file("after", "x");
	finish();
	assert_int_equal(wt_tar_read(tar, len, 10, &t, NULL), 0);
	assert_int_equal(t.n, 2);
	assert_string_equal(t.list[0].path, name);
	assert_string_equal(t.list[0].data, target);
	assert_string_equal(t.list[1].path, "after");
	wt_tree_clear(&t);
}

/* A name or link as long as its field has no NUL there. */
static void tar__full_fields(void **state)
{
	unsigned char *at;
	struct wt_tree t;

	(void)state;
	at = header("x", '2', "y", 0);
	memset(at, 'n', 100);
	memset(at + 157, 't', 100);
	sign(at);
	finish();
	assert_int_equal(wt_tar_read(tar, len, 10, &t, NULL), 0);
	assert_int_equal(strlen(t.list[0].path), 100);
	assert_int_equal(t.list[0].len, 100);
	wt_tree_clear(&t);
}

static void tar__paths_that_lead_elsewhere(void **state)
{
	static const char *const bad[] = { "/etc/passwd", "../x", "./a/../../x", "a//b",
					   "a/./b",	  "./..", "..",		 "" };

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(bad); i++) {
		(void)reset(NULL);
		file(bad[i], "x");
		finish();
		if (rc_of(10) != -SBX_E_RUNTIME_ERROR)
			fail_msg("'%s' was taken", bad[i]);
	}
}

static void tar__other_kinds_are_left_out(void **state)
{
	struct wt_tree t;

	(void)state;
	for (const char *type = "1346gx7"; *type; type++)
		header("odd", *type, "f", 0);
	file("f", "x");
	finish();
	assert_int_equal(wt_tar_read(tar, len, 10, &t, NULL), 0);
	assert_int_equal(t.n, 1);
	wt_tree_clear(&t);
}

static void tar__damage(void **state)
{
	(void)state;
	file("f", "text");
	finish();
	assert_int_equal(rc_of(10), 0);
	tar[0] ^= 1;
	assert_int_equal(rc_of(10), -SBX_E_RUNTIME_ERROR);
	tar[0] ^= 1;
	for (size_t n = 0; n <= 2 * BLOCK; n++) { /* cut off anywhere */
		len = n;
		assert_int_equal(rc_of(10), -SBX_E_RUNTIME_ERROR);
	}
}

static void tar__sizes_that_are_none(void **state)
{
	/* The last is how GNU writes what has no room in octal digits. */
	static const char *const bad[] = { "", "9", "77777777777", "-1", "1x", "\x80\x01" };

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(bad); i++) {
		unsigned char *at;

		(void)reset(NULL);
		at = header("f", '0', NULL, 0);
		memset(at + 124, 0, 12);
		memcpy(at + 124, bad[i], strlen(bad[i]));
		sign(at);
		finish();
		if (rc_of(10) != -SBX_E_RUNTIME_ERROR)
			fail_msg("size %zu was taken", i);
	}
}

static void tar__names_that_are_too_long(void **state)
{
	(void)state;
	header("././@LongLink", 'L', NULL, 5000);
	len += 10 * BLOCK;
	finish();
	assert_int_equal(rc_of(10), -SBX_E_RUNTIME_ERROR);
	(void)reset(NULL);
	header("././@LongLink", 'K', NULL, 0);
	finish();
	assert_int_equal(rc_of(10), -SBX_E_RUNTIME_ERROR);
}

static void tar__links_need_a_target(void **state)
{
	(void)state;
	header("l", '2', "", 0);
	finish();
	assert_int_equal(rc_of(10), -SBX_E_RUNTIME_ERROR);
}

static void tar__too_many(void **state)
{
	(void)state;
	for (int i = 0; i < 5; i++)
		file("f", "");
	finish();
	assert_int_equal(rc_of(5), 0);
	assert_int_equal(rc_of(4), -SBX_E_WORKSPACE_CAP);
}

static void tar__without_end(void **state)
{
	(void)state;
	assert_int_equal(rc_of(1), -SBX_E_RUNTIME_ERROR);
	file("f", "x");
	assert_int_equal(rc_of(1), -SBX_E_RUNTIME_ERROR);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(tar__files_links_and_directories, reset),
		cmocka_unit_test_setup(tar__long_names, reset),
		cmocka_unit_test_setup(tar__full_fields, reset),
		cmocka_unit_test_setup(tar__paths_that_lead_elsewhere, reset),
		cmocka_unit_test_setup(tar__other_kinds_are_left_out, reset),
		cmocka_unit_test_setup(tar__damage, reset),
		cmocka_unit_test_setup(tar__sizes_that_are_none, reset),
		cmocka_unit_test_setup(tar__names_that_are_too_long, reset),
		cmocka_unit_test_setup(tar__links_need_a_target, reset),
		cmocka_unit_test_setup(tar__too_many, reset),
		cmocka_unit_test_setup(tar__without_end, reset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
