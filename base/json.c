/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From text to json-c's values. json-c's own parser keeps the last of two equal keys and turns a
 * number that is too large into the largest, both without a word, and does not say where it is in
 * the document. So the scanner checks the grammar, and what it has accepted is read here.
 */
#include "base/json.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/utf8.h"

enum {
	KEY_SHOWN = 64,		/* bytes of a key that a message shows */
	NUMBER_MAX = 1000,	/* characters in a number */
	TEXT_MAX = INT_MAX / 2, /* json-c counts in int */
};

/* ---- where: the path, line and column of an offset, for messages ----------------------------- */

struct level {
	bool object;
	size_t key, key_len; /* in the text, without quotes; key_len 0: none yet */
	size_t index;
};

/* The offset behind the string whose opening quote is at `at`, or `end` when it has no end. */
static size_t skip_string(const char *text, size_t at, size_t end)
{
	for (at++; at < end; at++) {
		if (text[at] == '\\')
			at++;
		else if (text[at] == '"')
			return at + 1;
	}
	return end;
}

/* Cuts at a character's beginning, so that what is shown stays UTF-8. */
static size_t shown(const char *s, size_t len, size_t max)
{
	if (len <= max)
		return len;
	return max - sbx_utf8_partial_tail(s, max);
}

static void render_path(const char *text, const struct level *levels, unsigned depth,
			struct sbx_buf *out)
{
	for (unsigned i = 0; i < depth; i++) {
		const struct level *l = &levels[i];

		if (!l->object) {
			sbx_buf_printf(out, "[%zu]", l->index);
		} else if (l->key_len) {
			if (out->len)
				sbx_buf_puts(out, ".");
			sbx_buf_add(out, text + l->key,
				    shown(text + l->key, l->key_len, KEY_SHOWN));
		}
	}
}

/* Walks text[0..at), which the scanner has accepted so far. */
static void path_at(const char *text, size_t at, struct sbx_buf *out)
{
	struct level levels[SBX_JSON_DEPTH + 1];
	unsigned depth = 0;
	size_t i = 0, end;

	while (i < at) {
		char c = text[i];

		if (c == '"') {
			end = skip_string(text, i, at);
			if (levels[depth - 1].object && levels[depth - 1].key == 0 && end < at) {
				levels[depth - 1].key = i + 1;
				levels[depth - 1].key_len = end - i - 2;
			}
			i = end;
			continue;
		}
		if (c == '{' || c == '[')
			levels[depth++] = (struct level){ .object = c == '{' };
		else if ((c == '}' || c == ']') && depth)
			depth--;
		else if (c == ',')
			levels[depth - 1] = (struct level){ .object = levels[depth - 1].object,
							    .index = levels[depth - 1].index + 1 };
		i++;
	}
	render_path(text, levels, depth, out);
}

static void line_and_column(const char *text, size_t at, size_t *line, size_t *column)
{
	*line = *column = 1;
	for (size_t i = 0; i < at; i++) {
		if (text[i] == '\n') {
			(*line)++;
			*column = 1;
		} else if (((unsigned char)text[i] & 0xc0) != 0x80) {
			(*column)++;
		}
	}
}

static void found_at(const char *text, size_t len, size_t at, char out[40])
{
	if (at >= len)
		(void)snprintf(out, 40, "the end of the document");
	else if (text[at] >= 0x20 && text[at] < 0x7f)
		(void)snprintf(out, 40, "'%c'", text[at]);
	else
		(void)snprintf(out, 40, "the byte 0x%02x", (unsigned char)text[at]);
}

/* What a string or number holds is not shown: it may be a secret. */
static int refuse_at(const char *text, size_t at, const char *problem, const char *found,
		     struct sbx_error *e)
{
	sbx_autobuf path = SBX_BUF_INIT(16 << 10);
	sbx_autobuf details = SBX_BUF_INIT(64 << 10);
	const char *where;
	size_t line, column;

	if (!e)
		return -SBX_E_INVALID_SPEC;
	path_at(text, at, &path);
	where = path.len ? path.data : "the document";
	line_and_column(text, at, &line, &column);
	(void)sbx_fail(e, SBX_E_INVALID_SPEC, "%.300s: %s (found %s, line %zu, column %zu)", where,
		       problem, found, line, column);
	sbx_buf_puts(&details, "{\"field\":");
	sbx_buf_json_strz(&details, path.len ? path.data : NULL);
	sbx_buf_puts(&details, ",\"found\":");
	sbx_buf_json_strz(&details, found);
	sbx_buf_puts(&details, ",\"allowed\":\"one JSON object (RFC 8259)\",\"problem\":");
	sbx_buf_json_strz(&details, problem);
	sbx_buf_printf(&details, ",\"line\":%zu,\"column\":%zu,\"offset\":%zu}", line, column, at);
	return sbx_buf_failed(&details) ? -SBX_E_INVALID_SPEC
					: sbx_error_details(e, "%s", details.data);
}

/* ---- reading what the scanner has accepted --------------------------------------------------- */

struct reader {
	const char *text;
	size_t at;
	struct sbx_buf scratch; /* the string at hand, when it has escapes */
	struct sbx_error *e;
};

static int no_memory(struct sbx_error *e)
{
	return sbx_fail(e, SBX_E_NO_MEMORY, "no memory to read the document");
}

static char peek(struct reader *r)
{
	while (r->text[r->at] == ' ' || r->text[r->at] == '\t' || r->text[r->at] == '\n' ||
	       r->text[r->at] == '\r')
		r->at++;
	return r->text[r->at];
}

static unsigned read_hex(const char *s)
{
	char digits[5];

	memcpy(digits, s, 4);
	digits[4] = '\0';
	return (unsigned)strtoul(digits, NULL, 16);
}

static void add_utf8(struct sbx_buf *b, unsigned c)
{
	unsigned char out[4];
	size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
	static const unsigned char first[] = { 0, 0, 0xc0, 0xe0, 0xf0 };

	for (size_t i = n; i-- > 1; c >>= 6)
		out[i] = (unsigned char)(0x80 | (c & 0x3f));
	out[0] = (unsigned char)(first[n] | c);
	sbx_buf_add(b, out, n);
}

/* One escape at s (behind the backslash); returns how many bytes it has there. */
static size_t read_escape(struct sbx_buf *b, const char *s)
{
	static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
	unsigned c, low;

	if (*s != 'u') {
		sbx_buf_add(b, to + (strchr(from, *s) - from), 1);
		return 1;
	}
	c = read_hex(s + 1);
	if (c < 0xd800 || c > 0xdbff) {
		add_utf8(b, c);
		return 5;
	}
	low = read_hex(s + 7);
	add_utf8(b, 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00));
	return 11;
}

/* The string at r->at, decoded. *ret points into the text or the scratch buffer. */
static int read_string(struct reader *r, const char **ret, size_t *ret_len)
{
	size_t start = ++r->at, i = start;

	while (r->text[i] != '"' && r->text[i] != '\\')
		i++;
	*ret = r->text + start;
	*ret_len = i - start;
	if (r->text[i] == '\\') {
		r->scratch.len = 0;
		while (r->text[i] != '"') {
			sbx_buf_add(&r->scratch, r->text + start, i - start);
			i += 1 + read_escape(&r->scratch, r->text + i + 1);
			for (start = i; r->text[i] != '"' && r->text[i] != '\\';)
				i++;
		}
		sbx_buf_add(&r->scratch, r->text + start, i - start);
		if (sbx_buf_failed(&r->scratch))
			return no_memory(r->e);
		*ret = r->scratch.data;
		*ret_len = r->scratch.len;
	}
	r->at = i + 1;
	return 0;
}

static int read_number(struct reader *r, struct json_object **ret)
{
	char number[NUMBER_MAX + 1];
	size_t n = strspn(r->text + r->at, "+-.0123456789eE");
	long long whole;
	double real;

	if (n > NUMBER_MAX)
		return refuse_at(r->text, r->at, "has a number of more than 1000 digits",
				 "a longer one", r->e);
	memcpy(number, r->text + r->at, n);
	number[n] = '\0';
	errno = 0;
	whole = strtoll(number, NULL, 10);
	if (!strpbrk(number, ".eE") && errno == 0) {
		*ret = json_object_new_int64(whole);
	} else {
		real = strtod(number, NULL);
		if (!isfinite(real))
			return refuse_at(r->text, r->at, "has a number that is out of range",
					 "a number beyond 1.8e308", r->e);
		*ret = json_object_new_double_s(real, number);
	}
	r->at += n;
	return *ret ? 0 : no_memory(r->e);
}

static int read_value(struct reader *r, struct json_object **ret);

static int read_member(struct reader *r, struct json_object *object)
{
	sbx_autojson *member = NULL;
	sbx_autofree char *key = NULL;
	size_t len;
	const char *s;
	int rc;

	rc = read_string(r, &s, &len);
	if (rc < 0)
		return rc;
	key = strndup(s, len);
	if (!key)
		return no_memory(r->e);
	if (peek(r) == ':')
		r->at++;
	/* Reported from behind the colon, where the path ends with this key. */
	if (json_object_object_get_ex(object, key, NULL))
		return refuse_at(r->text, r->at, "is given twice",
				 "the same name in one object again", r->e);
	rc = read_value(r, &member);
	if (rc < 0)
		return rc;
	if (json_object_object_add_ex(object, key, member, JSON_C_OBJECT_ADD_KEY_IS_NEW) < 0)
		return no_memory(r->e);
	member = NULL;
	return 0;
}

/* The members or elements up to the closing bracket. The scanner limits the recursion. */
static int read_container(struct reader *r, struct json_object *o, bool object)
{
	struct json_object *element;
	char close = object ? '}' : ']';
	int rc = 0;

	r->at++;
	while (peek(r) != close) {
		if (object) {
			rc = read_member(r, o);
		} else {
			element = NULL;
			rc = read_value(r, &element);
			if (rc == 0 && json_object_array_add(o, element) < 0) {
				json_object_put(element);
				rc = no_memory(r->e);
			}
		}
		if (rc < 0)
			return rc;
		if (peek(r) == ',')
			r->at++;
	}
	r->at++;
	return 0;
}

static int read_word(struct reader *r, struct json_object **ret)
{
	char c = r->text[r->at];

	r->at += c == 'f' ? 5 : 4;
	if (c == 'n')
		return 0; /* json-c's null is NULL */
	*ret = json_object_new_boolean(c == 't');
	return *ret ? 0 : no_memory(r->e);
}

static int read_value(struct reader *r, struct json_object **ret)
{
	char c = peek(r);
	const char *s;
	size_t len;
	int rc;

	*ret = NULL;
	if (c == '"') {
		rc = read_string(r, &s, &len);
		if (rc < 0)
			return rc;
		*ret = json_object_new_string_len(s, (int)len);
		return *ret ? 0 : no_memory(r->e);
	}
	if (c == '{' || c == '[') {
		sbx_autojson *o = c == '{' ? json_object_new_object() : json_object_new_array();

		if (!o)
			return no_memory(r->e);
		rc = read_container(r, o, c == '{');
		if (rc == 0)
			*ret = sbx_steal(&o);
		return rc;
	}
	if (c == 't' || c == 'f' || c == 'n')
		return read_word(r, ret);
	return read_number(r, ret);
}

static bool all_space(const char *text, size_t len, size_t *ret_other)
{
	for (*ret_other = 0; *ret_other < len; (*ret_other)++)
		if (!memchr(" \t\n\r", text[*ret_other], 4))
			return false;
	return true;
}

/* The scanner's verdict on the whole text; *ret_start is where the brace is to be looked for. */
static int check_grammar(const char *text, size_t len, struct sbx_error *e)
{
	struct sbx_json_scan scan;
	enum sbx_json_state state;
	size_t used, other;
	char found[40];

	sbx_json_scan_init(&scan);
	state = sbx_json_scan_feed(&scan, text, len, &used);
	if (state == SBX_JSON_BROKEN) {
		found_at(text, len, scan.problem_at, found);
		return refuse_at(text, scan.problem_at, scan.problem, found, e);
	}
	found_at(text, len, len, found);
	if (state == SBX_JSON_MORE && !scan.begun)
		return refuse_at(text, 0, "is empty; a JSON object is needed", found, e);
	if (state == SBX_JSON_MORE)
		return refuse_at(text, len, "the document ends before it is complete", found, e);
	if (!all_space(text + used, len - used, &other)) {
		found_at(text, len, used + other, found);
		return refuse_at(text, used + other, "has text after the object", found, e);
	}
	return 0;
}

int sbx_json_parse_object(const char *text, size_t len, struct json_object **ret,
			  struct sbx_error *e)
{
	struct reader r = { .text = text, .scratch = SBX_BUF_INIT(len), .e = e };
	int rc;

	*ret = NULL;
	if (len > TEXT_MAX)
		return sbx_fail(e, SBX_E_SPEC_TOO_LARGE, "the document has %zu bytes", len);
	rc = check_grammar(text, len, e);
	if (rc < 0)
		return rc;
	while (text[r.at] != '{') /* white space and a byte order mark */
		r.at++;
	rc = read_value(&r, ret);
	sbx_buf_free(&r.scratch);
	return rc;
}
