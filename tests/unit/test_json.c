/* SPDX-License-Identifier: Apache-2.0 */
/* base/json: the scanner, the strict reader, canonical text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/json.h"

#define TEXT(s) (s), sizeof(s) - 1

/* Texts that are one object. */
static const struct {
	const char *text;
	size_t len;
} good[] = {
	{ TEXT("{}") },
	{ TEXT(" \t\r\n{ } \n") },
	{ TEXT("\xef\xbb\xbf{\"a\":1}") },
	{ TEXT("{\"a\":{\"b\":[1,2,{\"c\":null}]},\"d\":[]}") },
	{ TEXT("{\"n\":[0,-0,1.5,-1.5e3,1E+2,1e-2,0.0,123456789,9223372036854775807]}") },
	{ TEXT("{\"w\":[true,false,null]}") },
	{ TEXT("{\"e\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\ud83d\\ude42\"}") },
	{ TEXT("{\"u\":\"\xc3\xa9\xe4\xbd\xa0\xf0\x9f\x99\x82\"}") },
	{ TEXT("{\"\":\"an empty name\"}") },
	{ TEXT("{\"a\":1 , \"b\" : [ ] }") },
	{ TEXT("{\"del\":\"\x7f\"}") },
};

/* Texts that are not, what is said of them, and at which offset it can be known (the scanner's
 * problem_at; SIZE_MAX: the scanner is content, or waits for more). */
static const struct {
	const char *text;
	size_t len;
	const char *says;
	size_t at;
} bad[] = {
	{ TEXT(""), "is empty", SIZE_MAX },
	{ TEXT(" \n"), "is empty", SIZE_MAX },
	{ TEXT("hello"), "is not a JSON object", 0 },
	{ TEXT("[1]"), "is not a JSON object", 0 },
	{ TEXT("  \"s\""), "is not a JSON object", 2 },
	{ TEXT("\xef\xbb{}"), "is not a JSON object", 2 },
	{ TEXT(" \xef\xbb\xbf{}"), "is not a JSON object", 1 },
	{ TEXT("{"), "ends before it is complete", SIZE_MAX },
	{ TEXT("{\"a\":\"x"), "a: the document ends before", SIZE_MAX },
	{ TEXT("{\"a\":[1,"), "a[1]: the document ends before", SIZE_MAX },
	{ TEXT("{\"a\":1}x"), "has text after the object", SIZE_MAX },
	{ TEXT("{\"a\":1}{}"), "has text after the object", SIZE_MAX },
	{ TEXT("{\"a\":1}\0"), "has text after the object", SIZE_MAX },
	{ TEXT("{a:1}"), "needs a name in double quotes", 1 },
	{ TEXT("{\"a\":1,}"), "needs a name in double quotes", 7 },
	{ TEXT("{\"a\" 1}"), "needs a ':'", 5 },
	{ TEXT("{\"a\":}"), "a: needs a value here", 5 },
	{ TEXT("{\"a\":NaN}"), "a: needs a value here (found 'N', line 1, column 6)", 5 },
	{ TEXT("{\"a\":Infinity}"), "a: needs a value", 5 },
	{ TEXT("{\"a\":-Infinity}"), "a: has a number that is not written", 6 },
	{ TEXT("{\"a\":+1}"), "a: needs a value", 5 },
	{ TEXT("{\"a\":01}"), "a: has a number that is not written", 6 },
	{ TEXT("{\"a\":1.}"), "a: has a number that is not written", 7 },
	{ TEXT("{\"a\":.5}"), "a: needs a value", 5 },
	{ TEXT("{\"a\":1e}"), "a: has a number that is not written", 7 },
	{ TEXT("{\"a\":1e+}"), "a: has a number that is not written", 8 },
	{ TEXT("{\"a\":0x10}"), "needs a ',' or '}'", 6 },
	{ TEXT("{\"a\":nul}"), "a: has a word that is not", 8 },
	{ TEXT("{\"a\":True}"), "a: needs a value", 5 },
	{ TEXT("{\"a\":'x'}"), "a: needs a value", 5 },
	{ TEXT("{\"a\":[1,]}"), "a[1]: needs a value", 8 },
	{ TEXT("{\"a\":[1 2]}"), "a[0]: needs a ',' or ']'", 8 },
	{ TEXT("{\"a\":[1}"), "needs a ',' or ']'", 7 },
	{ TEXT("{\"a\":1]"), "needs a ',' or '}'", 6 },
	{ TEXT("{\"a\":1 /* no */}"), "needs a ',' or '}'", 7 },
	{ TEXT("{\"a\":\"\xff\"}"), "a: is not valid UTF-8 (found the byte 0xff", 6 },
	{ TEXT("{\"a\":\"\xc3(\"}"), "a: is not valid UTF-8", 7 },
	{ TEXT("{\"a\":\"\xc0\x80\"}"), "a: is not valid UTF-8", 6 },
	{ TEXT("{\"a\":\"\xed\xa0\x80\"}"), "a: is not valid UTF-8", 7 },
	{ TEXT("{\"a\":\"\xe0\x80\x80\"}"), "a: is not valid UTF-8", 7 },
	{ TEXT("{\"a\":\"\xf4\x90\x80\x80\"}"), "a: is not valid UTF-8", 7 },
	{ TEXT("{\"a\":\"\xf5\x80\x80\x80\"}"), "a: is not valid UTF-8", 6 },
	{ TEXT("{\"a\":\"\xc3\"}"), "a: is not valid UTF-8", 7 },
	{ TEXT("{\"a\":\"x\ny\"}"), "a: has a control character", 7 },
	{ TEXT("{\"a\":\"x\0y\"}"), "a: contains a NUL byte", 7 },
	{ TEXT("{\"a\":\"x\\u0000y\"}"), "a: contains a NUL byte", 12 },
	{ TEXT("{\"a\\u0000\":1}"), "contains a NUL byte", 8 },
	{ TEXT("{\"a\":\"\\x\"}"), "a: has an unknown escape", 7 },
	{ TEXT("{\"a\":\"\\u12g4\"}"), "a: has a \\u escape", 10 },
	{ TEXT("{\"a\":\"\\ud800\"}"), "a: has half of a surrogate pair", 12 },
	{ TEXT("{\"a\":\"\\ud800\\n\"}"), "a: has half of a surrogate pair", 13 },
	{ TEXT("{\"a\":\"\\ud800\\u0041\"}"), "a: has half of a surrogate pair", 17 },
	{ TEXT("{\"a\":\"\\ud800\\ud800\"}"), "a: has half of a surrogate pair", 17 },
	{ TEXT("{\"a\":\"\\udc00\"}"), "a: has half of a surrogate pair", 11 },
	{ TEXT("{\"a\":1,\"a\":2}"), "a: is given twice", SIZE_MAX },
	{ TEXT("{\"a\":1,\"\\u0061\":2}"), "is given twice", SIZE_MAX },
	{ TEXT("{\"a\":null,\"a\":null}"), "a: is given twice", SIZE_MAX },
	{ TEXT("{\"x\":[0,{\"b\":{\"c\":1,\"c\":1}}]}"), "x[1].b.c: is given twice", SIZE_MAX },
	{ TEXT("{\"a\":1e400}"), "a: has a number that is out of range", SIZE_MAX },
	{ TEXT("{\"a\":[0,-1e999]}"), "a[1]: has a number that is out of range", SIZE_MAX },
	{ TEXT("{\n\"a\": 1,\n  \"b\": ?}"), "line 3, column 8", 17 },
};

static void object__accepts(void **state)
{
	(void)state;
	for (size_t i = 0; i < SBX_COUNT(good); i++) {
		sbx_autoerror e = SBX_ERROR_INIT;
		sbx_autojson *o = NULL;

		if (sbx_json_parse_object(good[i].text, good[i].len, &o, &e) != 0)
			fail_msg("row %zu: %s", i, e.message);
		assert_true(json_object_is_type(o, json_type_object));
	}
}

static void object__refuses_and_says_where(void **state)
{
	(void)state;
	for (size_t i = 0; i < SBX_COUNT(bad); i++) {
		sbx_autoerror e = SBX_ERROR_INIT;
		sbx_autojson *o = NULL, *details = NULL;

		if (sbx_json_parse_object(bad[i].text, bad[i].len, &o, &e) != -SBX_E_INVALID_SPEC)
			fail_msg("row %zu (%s) was accepted", i, bad[i].text);
		assert_null(o);
		assert_int_equal(e.code, SBX_E_INVALID_SPEC);
		if (!strstr(e.message, bad[i].says))
			fail_msg("row %zu: %s", i, e.message);
		assert_non_null(e.details);
		assert_int_equal(
			sbx_json_parse_object(e.details, strlen(e.details), &details, NULL), 0);
		assert_true(json_object_object_get_ex(details, "offset", NULL));
		assert_int_equal(sbx_json_parse_object(bad[i].text, bad[i].len, &o, NULL),
				 -SBX_E_INVALID_SPEC);
	}
}

static void scan__says_at_which_byte(void **state)
{
	(void)state;
	for (size_t i = 0; i < SBX_COUNT(bad); i++) {
		struct sbx_json_scan s;
		size_t used;
		enum sbx_json_state got;

		sbx_json_scan_init(&s);
		got = sbx_json_scan_feed(&s, bad[i].text, bad[i].len, &used);
		if (bad[i].at == SIZE_MAX) {
			assert_int_not_equal(got, SBX_JSON_BROKEN);
			continue;
		}
		assert_int_equal(got, SBX_JSON_BROKEN);
		if (s.problem_at != bad[i].at)
			fail_msg("row %zu: problem at %zu", i, s.problem_at);
		assert_int_equal(used, bad[i].at + 1);
		assert_non_null(s.problem);
		/* It stays broken, whatever comes. */
		assert_int_equal(sbx_json_scan_feed(&s, "{}", 2, &used), SBX_JSON_BROKEN);
		assert_int_equal(used, 0);
	}
}

/* The verdict on a text in portions of `step` bytes. */
static enum sbx_json_state feed_in_steps(const char *text, size_t len, size_t step, size_t *ret)
{
	struct sbx_json_scan s;
	enum sbx_json_state got = SBX_JSON_MORE;
	size_t used, at = 0;

	sbx_json_scan_init(&s);
	while (at < len && got == SBX_JSON_MORE) {
		size_t n = len - at < step ? len - at : step;

		got = sbx_json_scan_feed(&s, text + at, n, &used);
		if (got == SBX_JSON_MORE)
			assert_int_equal(used, n);
		at += used;
	}
	assert_int_equal(s.consumed, at);
	*ret = at;
	return got;
}

static void scan__portions_do_not_matter(void **state)
{
	size_t whole_used, used;

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(good) + SBX_COUNT(bad); i++) {
		bool is_good = i < SBX_COUNT(good);
		const char *text = is_good ? good[i].text : bad[i - SBX_COUNT(good)].text;
		size_t len = is_good ? good[i].len : bad[i - SBX_COUNT(good)].len;
		enum sbx_json_state whole = feed_in_steps(text, len, SIZE_MAX, &whole_used);

		if (is_good)
			assert_int_equal(whole, SBX_JSON_COMPLETE);
		for (size_t step = 1; step <= 4; step++) {
			assert_int_equal(feed_in_steps(text, len, step, &used), whole);
			assert_int_equal(used, whole_used);
		}
	}
}

static void scan__ends_at_the_last_brace(void **state)
{
	static const char text[] = "\xef\xbb\xbf {\"a\":\"}\\\"}\",\"b\":[{}]} and more";
	struct sbx_json_scan s;
	size_t used;

	(void)state;
	sbx_json_scan_init(&s);
	assert_int_equal(sbx_json_scan_feed(&s, text, 0, &used), SBX_JSON_MORE);
	assert_int_equal(sbx_json_scan_feed(&s, TEXT(text), &used), SBX_JSON_COMPLETE);
	assert_string_equal(text + used, " and more");
	assert_int_equal(sbx_json_scan_feed(&s, "x", 1, &used), SBX_JSON_COMPLETE);
	assert_int_equal(used, 0);
}

static void scan__deep_nesting_ends_at_once(void **state)
{
	static char deep[100001];
	struct sbx_json_scan s;
	sbx_autoerror e = SBX_ERROR_INIT;
	struct json_object *o;
	sbx_autobuf fits = SBX_BUF_INIT(1000);
	size_t used;

	(void)state;
	memset(deep, '[', sizeof(deep) - 1);
	memcpy(deep, "{\"a\":", 5);
	sbx_json_scan_init(&s);
	assert_int_equal(sbx_json_scan_feed(&s, TEXT(deep), &used), SBX_JSON_BROKEN);
	assert_int_equal(s.problem_at, 5 + SBX_JSON_DEPTH - 1);
	assert_int_equal(sbx_json_parse_object(TEXT(deep), &o, &e), -SBX_E_INVALID_SPEC);
	assert_non_null(strstr(e.message, "is nested deeper than 64 levels"));

	sbx_buf_puts(&fits, "{\"a\":");
	for (int i = 1; i < SBX_JSON_DEPTH; i++)
		sbx_buf_puts(&fits, "[");
	for (int i = 1; i < SBX_JSON_DEPTH; i++)
		sbx_buf_puts(&fits, "]");
	sbx_buf_puts(&fits, "}");
	assert_int_equal(sbx_json_parse_object(fits.data, fits.len, &o, NULL), 0);
	json_object_put(o);
}

static void object__strings_are_exact(void **state)
{
	static const char text[] =
		"{\"k\\u00e9y\":\"a\\\"\\\\\\/\\b\\f\\n\\r\\t\\u20ac\\ud83d\\ude42z\",\"p\":\"\"}";
	sbx_autojson *o = NULL;
	struct json_object *v;

	(void)state;
	assert_int_equal(sbx_json_parse_object(TEXT(text), &o, NULL), 0);
	assert_true(json_object_object_get_ex(o, "k\xc3\xa9y", &v));
	assert_string_equal(json_object_get_string(v),
			    "a\"\\/\b\f\n\r\t\xe2\x82\xac\xf0\x9f\x99\x82z");
	assert_true(json_object_object_get_ex(o, "p", &v));
	assert_int_equal(json_object_get_string_len(v), 0);
}

static void object__numbers_are_exact(void **state)
{
	static const struct {
		const char *text;
		enum json_type type;
		int64_t whole;
		double real;
	} rows[] = {
		{ "0", json_type_int, 0, 0 },
		{ "-0", json_type_int, 0, 0 },
		{ "9223372036854775807", json_type_int, INT64_MAX, 0 },
		{ "-9223372036854775808", json_type_int, INT64_MIN, 0 },
		{ "9223372036854775808", json_type_double, 0, 0x1p63 },
		{ "18446744073709551616", json_type_double, 0, 0x1p64 },
		{ "1e3", json_type_double, 0, 1000 },
		{ "0.1", json_type_double, 0, 0.1 },
		{ "1e-400", json_type_double, 0, 0 },
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		sbx_autojson *o = NULL;
		struct json_object *v;
		char text[64];

		(void)snprintf(text, sizeof(text), "{\"n\":%s}", rows[i].text);
		assert_int_equal(sbx_json_parse_object(text, strlen(text), &o, NULL), 0);
		assert_true(json_object_object_get_ex(o, "n", &v));
		assert_int_equal(json_object_get_type(v), rows[i].type);
		if (rows[i].type == json_type_int)
			assert_int_equal(json_object_get_int64(v), rows[i].whole);
		else
			assert_true(json_object_get_double(v) == rows[i].real);
	}
}

static void object__a_number_has_an_end(void **state)
{
	static char text[2000] = "{\"n\":";
	sbx_autoerror e = SBX_ERROR_INIT;
	struct json_object *o;

	(void)state;
	memset(text + 5, '1', 1100);
	text[1105] = '}';
	assert_int_equal(sbx_json_parse_object(text, 1106, &o, &e), -SBX_E_INVALID_SPEC);
	assert_non_null(strstr(e.message, "n: has a number of more than 1000"));
}

static void object__long_and_odd_keys_fit_a_message(void **state)
{
	sbx_autobuf b = SBX_BUF_INIT(100000);
	sbx_autoerror e = SBX_ERROR_INIT;
	struct json_object *o;

	(void)state;
	sbx_buf_puts(&b, "{\"");
	for (int i = 0; i < 10000; i++)
		sbx_buf_puts(&b, "\xe4\xbd\xa0");
	sbx_buf_puts(&b, "\":?}");
	assert_int_equal(sbx_json_parse_object(b.data, b.len, &o, &e), -SBX_E_INVALID_SPEC);
	assert_non_null(strstr(e.message, "needs a value here"));
	assert_int_equal(sbx_json_parse_object(e.details, strlen(e.details), &o, NULL), 0);
	json_object_put(o);
}

static void canonical__vectors(void **state)
{
	static const char same[] = "{\"base_image\":\"x\",\"command\":[\"echo\",\"\\u00e9\"],"
				   "\"spec_version\":\"1.0\"}";
	static const struct {
		const char *in, *out;
	} rows[] = {
		/* SHA-256 of this one is 925f0f8a71115ea1...: what the reference's clients have */
		{ "{\"spec_version\":\"1.0\",\"command\":[\"echo\",\"\xc3\xa9\"],\"base_image\":"
		  "\"x\"}",
		  same },
		{ " { \"command\" : [ \"echo\" , \"\\u00E9\" ],\n\"base_image\":\"x\" , "
		  "\"spec_version\":\"1.0\"} ",
		  same },
		{ "{\"b\":1,\"a\":{\"d\":null,\"c\":[true,false]},\"B\":2,\"aa\":3}",
		  "{\"B\":2,\"a\":{\"c\":[true,false],\"d\":null},\"aa\":3,\"b\":1}" },
		{ "{\"s\":\"\\ud83d\\ude42\\u0001\\u007f\\/\\n\\\"\\\\\\b\\f\\r\\t\"}",
		  "{\"s\":\"\\ud83d\\ude42\\u0001\\u007f/\\n\\\"\\\\\\b\\f\\r\\t\"}" },
		{ "{\"n\":[4.0,4,1e3,1e15,1e16,0.0001,0.00001,1.5e-7,-2.50,0.1,1e22,0.0,-0.0,1e100]"
		  "}",
		  "{\"n\":[4.0,4,1000.0,1000000000000000.0,1e+16,0.0001,1e-05,1.5e-07,-2.5,0.1,"
		  "1e+22,0.0,-0.0,1e+100]}" },
		{ "{}", "{}" },
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		sbx_autojson *o = NULL;
		sbx_autofree char *text = NULL;

		assert_int_equal(sbx_json_parse_object(rows[i].in, strlen(rows[i].in), &o, NULL),
				 0);
		text = sbx_json_canonical(o);
		assert_non_null(text);
		assert_string_equal(text, rows[i].out);
	}
}

static void double__reads_back(void **state)
{
	static const double values[] = { 0.1,	     1.0 / 3, 5e-324, 1.7976931348623157e308, 2.5,
					 123456.789, 1e21,    -7.0,   0x1.fffffffffffffp52 };

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(values); i++) {
		sbx_autobuf b = SBX_BUF_INIT(100);

		sbx_json_double(&b, values[i]);
		assert_true(strtod(b.data, NULL) == values[i]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(object__accepts),
		cmocka_unit_test(object__refuses_and_says_where),
		cmocka_unit_test(scan__says_at_which_byte),
		cmocka_unit_test(scan__portions_do_not_matter),
		cmocka_unit_test(scan__ends_at_the_last_brace),
		cmocka_unit_test(scan__deep_nesting_ends_at_once),
		cmocka_unit_test(object__strings_are_exact),
		cmocka_unit_test(object__numbers_are_exact),
		cmocka_unit_test(object__a_number_has_an_end),
		cmocka_unit_test(object__long_and_odd_keys_fit_a_message),
		cmocka_unit_test(canonical__vectors),
		cmocka_unit_test(double__reads_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
