/* SPDX-License-Identifier: Apache-2.0 */
/* apid/multipart.c: forms as tables of what goes in and what comes out, and each in pieces of every
 * size: where a piece ends must not matter. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "apid/multipart_i.h"
#include "base/buf.h"

#define TYPE	"multipart/form-data; boundary=XbX"
#define CD	"Content-Disposition: form-data; "
#define FILES	CD "name=\"files\"; filename=\"a\"\r\n\r\n"
#define PART(x) "--XbX\r\n" FILES x "\r\n"
#define END	"--XbX--\r\n"

/* What was heard: "<name|file>" for a part, its bytes behind it. */
static int on_part(void *ctx, const char *name, const char *file_name, struct sbx_error *e)
{
	(void)e;
	sbx_buf_printf(ctx, "<%s|%s>", name, file_name ? file_name : "-");
	return 0;
}

static int on_data(void *ctx, const char *data, size_t len, struct sbx_error *e)
{
	(void)e;
	assert_true(len > 0);
	sbx_buf_add(ctx, data, len);
	return 0;
}

static const struct multipart_calls calls = { on_part, on_data };

static int read_form(const char *type, const char *body, size_t len, size_t piece,
		     struct sbx_buf *out, struct sbx_error *e)
{
	sbx_autofree char *copy = malloc(piece);
	struct multipart *m = NULL;
	int rc = multipart_new(type, &calls, out, &m, e);

	assert_non_null(copy);
	for (size_t at = 0; rc == 0 && at < len; at += piece) {
		size_t n = len - at < piece ? len - at : piece;

		memcpy(copy, body + at, n); /* so that a sanitizer sees a step too far */
		rc = multipart_feed(m, copy, n, e);
	}
	if (rc == 0)
		rc = multipart_end(m, e);
	multipart_free(m);
	return rc;
}

static const struct {
	const char *name, *body, *heard;
} good[] = {
	{ "one part", PART("hello") END, "<files|a>hello" },
	{ "no content", PART("") END, "<files|a>" },
	{ "no content and one line less", "--XbX\r\n" FILES END, "<files|a>" },
	{ "two parts", PART("one") PART("two") END, "<files|a>one<files|a>two" },
	{ "no part at all", END, "" },
	{ "something in front", "to whom it may concern\r\n--XbX\r\n" FILES "x\r\n" END,
	  "<files|a>x" },
	{ "something behind", PART("x") END "farewell\r\n--XbX\r\nno header", "<files|a>x" },
	{ "no line end at the end", PART("x") "--XbX--", "<files|a>x" },
	{ "blanks behind a boundary", "--XbX \t \r\n" FILES "x\r\n--XbX--", "<files|a>x" },
	{ "content that looks like a boundary", PART("\r\n--XbY\r\n--Xb\r\n-- XbX\r\n-\r--XbX") END,
	  "<files|a>\r\n--XbY\r\n--Xb\r\n-- XbX\r\n-\r--XbX" },
	{ "a longer boundary is content", PART("\r\n--XbXX\r\n--XbX x\r\n--XbX-\r\n") END,
	  "<files|a>\r\n--XbXX\r\n--XbX x\r\n--XbX-\r\n" },
	{ "content of line ends", PART("\r\n\r\n\r\r\n\n") END, "<files|a>\r\n\r\n\r\r\n\n" },
	{ "names in any case",
	  "--XbX\r\ncontent-DISPOSITION:form-data;NAME=f;FileName=g\r\n\r\n1\r\n" END, "<f|g>1" },
	{ "no file name", "--XbX\r\n" CD "name=f\r\n\r\nx\r\n" END, "<f|->x" },
	{ "an empty file name", "--XbX\r\n" CD "name=f; filename=\"\"\r\n\r\nx\r\n" END, "<f|>x" },
	{ "escaped quotes", "--XbX\r\n" CD "name=f; filename=\"a\\\"b\\\\c\"\r\n\r\nx\r\n" END,
	  "<f|a\"b\\c>x" },
	{ "a backslash of its own", "--XbX\r\n" CD "name=f; filename=\"..\\x\"\r\n\r\nx\r\n" END,
	  "<f|..\\x>x" },
	{ "a semicolon in a name", "--XbX\r\n" CD "name=f; filename=\"a;b=c\"\r\n\r\nx\r\n" END,
	  "<f|a;b=c>x" },
	{ "bytes beyond ASCII", "--XbX\r\n" CD "name=f; filename=\"\xc3\xbc\xff\"\r\n\r\nx\r\n" END,
	  "<f|\xc3\xbc\xff>x" },
	{ "an extended name wins",
	  "--XbX\r\n" CD "name=f; filename=\"u\"; filename*=UTF-8''%c3%bc%20x\r\n\r\nx\r\n" END,
	  "<f|\xc3\xbc x>x" },
	{ "an extended name of another kind",
	  "--XbX\r\n" CD "name=f; filename=\"u\"; filename*=ISO-8859-1''%fc\r\n\r\nx\r\n" END,
	  "<f|u>x" },
	{ "an extended name with a NUL",
	  "--XbX\r\n" CD "name=f; filename=\"u\"; filename*=UTF-8''a%00b\r\n\r\nx\r\n" END,
	  "<f|u>x" },
	{ "other headers",
	  "--XbX\r\nX: y\r\n" CD "name=f\r\nContent-Type: a/b\r\n"
	  "Content-Transfer-Encoding: Binary \r\n\r\nx\r\n" END,
	  "<f|->x" },
	{ "other parameters", "--XbX\r\n" CD "x=1; name=f; y=\"2\"; \r\n\r\nx\r\n" END, "<f|->x" },
};

static const struct {
	const char *name, *body, *says;
} bad[] = {
	{ "nothing", "", "nowhere" },
	{ "another boundary", "--YYY\r\n" FILES "x\r\n--YYY--", "nowhere" },
	{ "no last boundary", PART("x"), "ends before" },
	{ "half a boundary", PART("x") "--XbX", "ends before" },
	{ "half a last boundary", PART("x") "--XbX-", "ends before" },
	{ "ends in a head", "--XbX\r\n" CD, "ends before" },
	{ "a last boundary in the middle of a line", "--XbX\r\n" FILES "x--XbX--", "ends before" },
	{ "bare line ends", "--XbX\n" CD "name=f\n\nx\n--XbX--\n", "nowhere" },
	{ "no headers", "--XbX\r\n\r\nx\r\n" END, "no headers" },
	{ "no name", "--XbX\r\n" CD "filename=\"a\"\r\n\r\nx\r\n" END, "no name" },
	{ "an empty name", "--XbX\r\n" CD "name=\"\"\r\n\r\nx\r\n" END, "no name" },
	{ "no disposition", "--XbX\r\nContent-Type: a/b\r\n\r\nx\r\n" END, "no name" },
	{ "two dispositions", "--XbX\r\n" CD "name=f\r\n" CD "name=g\r\n\r\nx\r\n" END,
	  "two headers" },
	{ "two names", "--XbX\r\n" CD "name=f; name=g\r\n\r\nx\r\n" END, "given twice" },
	{ "two file names", "--XbX\r\n" CD "name=f; filename=a; filename=b\r\n\r\nx\r\n" END,
	  "given twice" },
	{ "another disposition",
	  "--XbX\r\nContent-Disposition: attachment; name=f\r\n\r\nx\r\n" END, "no form-data" },
	{ "a name without end", "--XbX\r\n" CD "name=\"f\r\n\r\nx\r\n" END, "malformed" },
	{ "a parameter without value", "--XbX\r\n" CD "name\r\n\r\nx\r\n" END, "malformed" },
	{ "no header", "--XbX\r\nhello\r\n\r\nx\r\n" END, "no header" },
	{ "a folded header", "--XbX\r\n" CD "\r\n name=f\r\n\r\nx\r\n" END, "no header" },
	{ "a bare line end in a head", "--XbX\r\n" CD "name=f\nX: y\r\n\r\nx\r\n" END,
	  "as lines do" },
	{ "a bare carriage return in a head", "--XbX\r\n" CD "name=f\rX: y\r\n\r\nx\r\n" END,
	  "as lines do" },
	{ "a space in front of the colon",
	  "--XbX\r\nContent-Disposition : form-data; name=f\r\n\r\nx\r\n" END, "no header" },
	{ "an encoding",
	  "--XbX\r\n" CD "name=f\r\nContent-Transfer-Encoding: base64\r\n\r\nx\r\n" END,
	  "Transfer-Encoding" },
	{ "parts in a part",
	  "--XbX\r\n" CD "name=f\r\nContent-Type: multipart/mixed; "
	  "boundary=y\r\n\r\n--y\r\n\r\nx\r\n--y--\r\n" END,
	  "parts of its own" },
};

static void form__in_pieces_of_every_size(void **state)
{
	(void)state;
	for (size_t i = 0; i < SBX_COUNT(good); i++) {
		size_t len = strlen(good[i].body);

		for (size_t piece = 1; piece <= len; piece++) {
			sbx_autobuf out = SBX_BUF_INIT(1 << 20);
			sbx_autoerror e = SBX_ERROR_INIT;

			if (read_form(TYPE, good[i].body, len, piece, &out, &e) < 0)
				fail_msg("%s: %s", good[i].name, e.message);
			if (strcmp(out.data ? out.data : "", good[i].heard) != 0)
				fail_msg("%s in pieces of %zu: heard %s", good[i].name, piece,
					 out.data);
		}
	}
}

static void broken_form__in_pieces_of_every_size(void **state)
{
	(void)state;
	for (size_t i = 0; i < SBX_COUNT(bad); i++) {
		size_t len = strlen(bad[i].body);

		for (size_t piece = 1; piece <= len + 1; piece++) {
			sbx_autobuf out = SBX_BUF_INIT(1 << 20);
			sbx_autoerror e = SBX_ERROR_INIT;
			int rc = read_form(TYPE, bad[i].body, len, piece, &out, &e);

			if (rc != -SBX_E_INVALID_ARGUMENT || !strstr(e.message, bad[i].says))
				fail_msg("%s in pieces of %zu: %d %s", bad[i].name, piece, rc,
					 e.message);
		}
	}
}

/* NUL and every other byte, and more of them than the window has. */
static void form__passes_every_byte(void **state)
{
	sbx_autobuf body = SBX_BUF_INIT(1 << 20), content = SBX_BUF_INIT(1 << 20);

	(void)state;
	for (int i = 0; i < 70000; i++) {
		char c = (char)(i * 7 + i / 256);

		sbx_buf_add(&content, &c, 1);
	}
	sbx_buf_puts(&body, "--XbX\r\n" FILES);
	sbx_buf_add(&body, content.data, content.len);
	sbx_buf_puts(&body, "\r\n" END);
	for (size_t piece = 1; piece < body.len; piece = piece * 3 + 1) {
		sbx_autobuf out = SBX_BUF_INIT(1 << 20);

		assert_int_equal(read_form(TYPE, body.data, body.len, piece, &out, NULL), 0);
		assert_int_equal(out.len, strlen("<files|a>") + content.len);
		assert_memory_equal(out.data + strlen("<files|a>"), content.data, content.len);
	}
}

static const struct {
	const char *type;
	int rc;
} types[] = {
	{ NULL, -SBX_E_INVALID_SPEC },
	{ "", -SBX_E_INVALID_SPEC },
	{ "application/json", -SBX_E_INVALID_SPEC },
	{ "multipart/mixed; boundary=XbX", -SBX_E_INVALID_SPEC },
	{ "multipart/form-datax; boundary=XbX", -SBX_E_INVALID_SPEC },
	{ "multipart/form-data", -SBX_E_INVALID_ARGUMENT },
	{ "multipart/form-data;", -SBX_E_INVALID_ARGUMENT },
	{ "multipart/form-data; boundary", -SBX_E_INVALID_ARGUMENT },
	{ "multipart/form-data; boundary=", -SBX_E_INVALID_ARGUMENT },
	{ "multipart/form-data; boundary=\"\"", -SBX_E_INVALID_ARGUMENT },
	{ "multipart/form-data; boundary=\"XbX", -SBX_E_INVALID_ARGUMENT },
	{ "multipart/form-data; boundary=\"XbX \"", -SBX_E_INVALID_ARGUMENT },
	{ "multipart/form-data; boundary=X@X", -SBX_E_INVALID_ARGUMENT },
	{ "multipart/form-data; boundary=XbX; boundary=YbY", -SBX_E_INVALID_ARGUMENT },
	{ "multipart/form-data; boundary=XbX boundary=YbY", -SBX_E_INVALID_ARGUMENT },
	{ "multipart/form-data; boundary="
	  "01234567890123456789012345678901234567890123456789012345678901234567890",
	  -SBX_E_INVALID_ARGUMENT },
	{ "Multipart/Form-Data;BOUNDARY=XbX", 0 },
	{ "multipart/form-data; charset=utf-8; boundary=\"XbX\"", 0 },
	{ "multipart/form-data ; boundary=XbX;", 0 },
};

static void content_type__cases(void **state)
{
	static const char body[] = PART("x") END;

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(types); i++) {
		sbx_autobuf out = SBX_BUF_INIT(1 << 10);
		sbx_autoerror e = SBX_ERROR_INIT;
		int rc = read_form(types[i].type, body, strlen(body), 7, &out, &e);

		if (rc != types[i].rc)
			fail_msg("%s: %d %s", types[i].type, rc, e.message);
	}
}

static void boundary__of_seventy_bytes(void **state)
{
	static const char b[] =
		"0123456789012345678901234567890123456789012345678901234567890'()+_,-./";
	sbx_autobuf type = SBX_BUF_INIT(1 << 10), body = SBX_BUF_INIT(1 << 10);

	(void)state;
	assert_int_equal(strlen(b), MULTIPART_BOUNDARY);
	sbx_buf_printf(&type, "multipart/form-data; boundary=\"%s\"", b);
	sbx_buf_printf(&body, "--%s\r\n" FILES "x\r\n--%.69s\r\n--%s--", b, b, b);
	for (size_t piece = 1; piece <= body.len; piece++) {
		sbx_autobuf out = SBX_BUF_INIT(1 << 10), wanted = SBX_BUF_INIT(1 << 10);

		sbx_buf_printf(&wanted, "<files|a>x\r\n--%.69s", b);
		assert_int_equal(read_form(type.data, body.data, body.len, piece, &out, NULL), 0);
		assert_string_equal(out.data, wanted.data);
	}
}

static void limits__are_reached(void **state)
{
	sbx_autobuf head = SBX_BUF_INIT(1 << 20), parts = SBX_BUF_INIT(4 << 20);
	sbx_autobuf out = SBX_BUF_INIT(1 << 20);
	sbx_autoerror e = SBX_ERROR_INIT;

	(void)state;
	sbx_buf_puts(&head, "--XbX\r\n" CD "name=f\r\nX: ");
	while (head.len < MULTIPART_HEAD + 7 - 2)
		sbx_buf_puts(&head, "y");
	for (int over = 0; over < 2; over++) {
		size_t len = head.len;

		sbx_buf_puts(&head, over ? "y\r\n\r\nx\r\n" END : "\r\n\r\nx\r\n" END);
		for (size_t piece = 1; piece < 40000; piece = piece * 5 + 2) {
			int rc = read_form(TYPE, head.data, head.len, piece, &out, &e);

			assert_int_equal(rc, over ? -SBX_E_INVALID_ARGUMENT : 0);
		}
		head.len = len;
	}
	for (int i = 0; i < MULTIPART_PARTS; i++)
		sbx_buf_puts(&parts, "--XbX\r\n" CD "name=f\r\n\r\n\r\n");
	for (int over = 0; over < 2; over++) {
		size_t len = parts.len;

		sbx_buf_puts(&parts, END);
		assert_int_equal(read_form(TYPE, parts.data, parts.len, 32768, &out, &e),
				 over ? -SBX_E_INVALID_ARGUMENT : 0);
		parts.len = len;
		sbx_buf_puts(&parts, "--XbX\r\n" CD "name=f\r\n\r\n\r\n");
	}
}

static int refuse_part(void *ctx, const char *name, const char *file_name, struct sbx_error *e)
{
	(void)ctx;
	(void)name;
	(void)file_name;
	return sbx_fail(e, SBX_E_WORKSPACE_CAP, "full");
}

static void refusal__of_the_caller_ends_it(void **state)
{
	const struct multipart_calls no = { refuse_part, on_data };
	static const char body[] = PART("x") END;
	sbx_autoerror e = SBX_ERROR_INIT;
	struct multipart *m = NULL;

	(void)state;
	assert_int_equal(multipart_new(TYPE, &no, NULL, &m, &e), 0);
	assert_int_equal(multipart_feed(m, body, strlen(body), &e), -SBX_E_WORKSPACE_CAP);
	assert_null(multipart_free(m));
	assert_null(multipart_free(NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(form__in_pieces_of_every_size),
		cmocka_unit_test(broken_form__in_pieces_of_every_size),
		cmocka_unit_test(form__passes_every_byte),
		cmocka_unit_test(content_type__cases),
		cmocka_unit_test(boundary__of_seventy_bytes),
		cmocka_unit_test(limits__are_reached),
		cmocka_unit_test(refusal__of_the_caller_ends_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
