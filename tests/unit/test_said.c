/* SPDX-License-Identifier: Apache-2.0 */
/* What engines and other programs say is shown to users: on one line, not too long, without
 * secrets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/utf8.h"
#include "runtimes/runtimes_i.h"

static void check(const char *said, const char *shown)
{
	char out[RT_SAID_SIZE];

	rt_said("/var/lib/state", said, out, sizeof(out));
	assert_string_equal(out, shown);
}

static void said__plain_text_stays(void **state)
{
	(void)state;
	check("", "");
	check("no such image: nobody/has:this@sha256:abc",
	      "no such image: nobody/has:this@sha256:abc");
	check("\xc3\xa9t\xc3\xa9 \xe2\x82\xac \xf0\x9f\x90\xb3",
	      "\xc3\xa9t\xc3\xa9 \xe2\x82\xac \xf0\x9f\x90\xb3");
	check("a user@host and 100% ?x=1", "a user@host and 100% ?x=1");
}

static void said__is_one_line_that_moves_no_cursor(void **state)
{
	(void)state;
	check("one\r\ntwo\tthree\x1b[31m\x7f", "one  two three [31m ");
	check("\xc2\x9b"
	      "31m",
	      " 31m"); /* one byte of the C1 set */
	check("\xe2\x80\xae"
	      "txt.exe",
	      " txt.exe"); /* right to left from here */
	check("a\xd8\x9c"
	      "b\xe1\xa0\x8e"
	      "c",
	      "a b c"); /* Arabic letter mark, Mongolian vowel separator */
	check("a\xe2\x80\xa8"
	      "b\xef\xbb\xbf"
	      "c",
	      "a b c"); /* a line separator, a byte order mark */
	check("bad \xff\xc3x \xed\xa0\x80 end\xe2\x82", "bad ??x ??? end??");
}

static void said__knows_no_password(void **state)
{
	(void)state;
	check("Get \"https://user:pa%2Fss@reg.test:5000/v2/\": EOF",
	      "Get \"https://***@reg.test:5000/v2/\": EOF");
	check("https://user:p@ss@host/x", "https://***@host/x");
	check("https://token@host", "https://***@host");
	check("https://user:pa/ss@host/x", "https://***@host/x");
	check("\"https://user:pa\\\"ss@host/x\" a@b", "\"https://***@host/x\" a@b");
	check("x git+ssh://a:b@host https://c:d@host", "x git+ssh://***@host https://***@host");
	check("https://blobs.test/a?X-Signature=abc&x=1 was refused?",
	      "https://blobs.test/a?*** was refused?");
	check("https://host/#access_token=abc", "https://host/#***");
	check("https://u:secret", "https://u:secret"); /* a port, as far as anybody can tell */
	check("://", "://");
}

static void said__knows_no_path_of_the_service(void **state)
{
	(void)state;
	check("mount /var/lib/state/docker/1-2: denied", "mount (state)/docker/1-2: denied");
}

static void said__has_an_end(void **state)
{
	char text[5000], out[RT_SAID_SIZE];

	(void)state;
	for (size_t i = 0; i + 2 < sizeof(text); i += 2)
		memcpy(text + i, "\xc3\xa9", 2);
	text[4998] = '\0';
	for (size_t size = 8; size < sizeof(out); size++) {
		memset(out, 'x', sizeof(out));
		rt_said(NULL, text, out, size);
		assert_true(strlen(out) < size && strlen(out) + 3 > size);
		assert_string_equal(out + strlen(out) - 3, "...");
		assert_true(sbx_utf8_valid(out, strlen(out)));
	}
	memset(text, 'y', sizeof(text));
	text[sizeof(out) - 4] = '\0';
	rt_said(NULL, text, out, sizeof(out));
	assert_string_equal(out, text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(said__plain_text_stays),
		cmocka_unit_test(said__is_one_line_that_moves_no_cursor),
		cmocka_unit_test(said__knows_no_password),
		cmocka_unit_test(said__knows_no_path_of_the_service),
		cmocka_unit_test(said__has_an_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
