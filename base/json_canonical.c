/* SPDX-License-Identifier: Apache-2.0 */
/* One text for equal values, byte for byte: what a fingerprint can be taken of. */
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

enum {
	CANONICAL_MAX = 1 << 28,
	FIXED_MIN =
		-3, /* places of the decimal point for which a number is written without exponent */
	FIXED_MAX = 16,
};

static void zeros(struct sbx_buf *b, int n)
{
	for (; n > 0; n--)
		sbx_buf_puts(b, "0");
}

/* The digits d with the decimal point behind the first `point` of them. */
static void fixed(struct sbx_buf *b, const char *d, int n, int point)
{
	if (point <= 0) {
		sbx_buf_puts(b, "0.");
		zeros(b, -point);
		sbx_buf_add(b, d, (size_t)n);
	} else if (point >= n) {
		sbx_buf_add(b, d, (size_t)n);
		zeros(b, point - n);
		sbx_buf_puts(b, ".0");
	} else {
		sbx_buf_add(b, d, (size_t)point);
		sbx_buf_puts(b, ".");
		sbx_buf_add(b, d + point, (size_t)(n - point));
	}
}

void sbx_json_double(struct sbx_buf *b, double v)
{
	char text[40], digits[20];
	const char *e;
	int n = 0, exponent;

	if (!isfinite(v)) {
		sbx_buf_puts(b, "null"); /* JSON has no other word for it */
		return;
	}
	for (int precision = 0; precision < 17; precision++) {
		(void)snprintf(text, sizeof(text), "%.*e", precision, v);
		if (strtod(text, NULL) == v)
			break;
	}
	e = strchr(text, 'e');
	exponent = (int)strtol(e + 1, NULL, 10);
	for (const char *p = text; p < e; p++)
		if (*p >= '0' && *p <= '9')
			digits[n++] = *p;
	if (text[0] == '-')
		sbx_buf_puts(b, "-");
	if (exponent + 1 >= FIXED_MIN && exponent + 1 <= FIXED_MAX) {
		fixed(b, digits, n, exponent + 1);
		return;
	}
	sbx_buf_add(b, digits, 1);
	if (n > 1)
		sbx_buf_printf(b, ".%.*s", n - 1, digits + 1);
	sbx_buf_printf(b, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
}

static unsigned decode_utf8(const char *s, size_t *ret_len)
{
	const unsigned char *u = (const unsigned char *)s;

	if (u[0] < 0xe0) {
		*ret_len = 2;
		return (u[0] & 0x1fu) << 6 | (u[1] & 0x3fu);
	}
	if (u[0] < 0xf0) {
		*ret_len = 3;
		return (u[0] & 0x0fu) << 12 | (u[1] & 0x3fu) << 6 | (u[2] & 0x3fu);
	}
	*ret_len = 4;
	return (u[0] & 0x07u) << 18 | (u[1] & 0x3fu) << 12 | (u[2] & 0x3fu) << 6 | (u[3] & 0x3fu);
}

/* Appends the character at s and returns its length. */
static size_t canonical_char(struct sbx_buf *b, const char *s, size_t len)
{
	static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
	const char *p = *s ? strchr(from, *s) : NULL;
	unsigned c;
	size_t n;

	if (p) {
		sbx_buf_printf(b, "\\%c", to[p - from]);
		return 1;
	}
	if ((unsigned char)*s < 0x80) {
		sbx_buf_printf(b, "\\u%04x", (unsigned)*s);
		return 1;
	}
	if (sbx_utf8_char(s, len) == 0) {
		sbx_buf_puts(b, "\\ufffd");
		return 1;
	}
	c = decode_utf8(s, &n);
	if (c >= 0x10000) {
		c -= 0x10000;
		sbx_buf_printf(b, "\\u%04x", 0xd800 + (c >> 10));
		c = 0xdc00 + (c & 0x3ff);
	}
	sbx_buf_printf(b, "\\u%04x", c);
	return n;
}

static void canonical_string(struct sbx_buf *b, const char *s, size_t len)
{
	size_t start = 0, i = 0;

	sbx_buf_puts(b, "\"");
	while (i < len) {
		if (s[i] >= 0x20 && s[i] < 0x7f && s[i] != '"' && s[i] != '\\') {
			i++;
			continue;
		}
		sbx_buf_add(b, s + start, i - start);
		i += canonical_char(b, s + i, len - i);
		start = i;
	}
	sbx_buf_add(b, s + start, i - start);
	sbx_buf_puts(b, "\"");
}

static int compare_keys(const void *a, const void *b)
{
	const char *x, *y;

	memcpy(&x, a, sizeof(x));
	memcpy(&y, b, sizeof(y));
	return strcmp(x, y);
}

static void canonical_value(struct sbx_buf *b, struct json_object *o);

static void canonical_object(struct sbx_buf *b, struct json_object *o)
{
	size_t n = 0, count = (size_t)json_object_object_length(o);
	const char **keys = calloc(count + 1, sizeof(*keys));

	if (!keys) {
		b->failed = true;
		return;
	}
	json_object_object_foreach(o, key, member)
	{
		(void)member;
		keys[n++] = key;
	}
	qsort(keys, n, sizeof(*keys), compare_keys);
	sbx_buf_puts(b, "{");
	for (size_t i = 0; i < n; i++) {
		if (i)
			sbx_buf_puts(b, ",");
		canonical_string(b, keys[i], strlen(keys[i]));
		sbx_buf_puts(b, ":");
		canonical_value(b, json_object_object_get(o, keys[i]));
	}
	sbx_buf_puts(b, "}");
	free(keys);
}

static void canonical_array(struct sbx_buf *b, struct json_object *o)
{
	size_t n = json_object_array_length(o);

	sbx_buf_puts(b, "[");
	for (size_t i = 0; i < n; i++) {
		if (i)
			sbx_buf_puts(b, ",");
		canonical_value(b, json_object_array_get_idx(o, i));
	}
	sbx_buf_puts(b, "]");
}

static void canonical_value(struct sbx_buf *b, struct json_object *o)
{
	switch (json_object_get_type(o)) {
	case json_type_object:
		canonical_object(b, o);
		break;
	case json_type_array:
		canonical_array(b, o);
		break;
	case json_type_string:
		canonical_string(b, json_object_get_string(o),
				 (size_t)json_object_get_string_len(o));
		break;
	case json_type_double:
		sbx_json_double(b, json_object_get_double(o));
		break;
	case json_type_int:
		sbx_buf_printf(b, "%lld", (long long)json_object_get_int64(o));
		break;
	case json_type_boolean:
		sbx_buf_puts(b, json_object_get_boolean(o) ? "true" : "false");
		break;
	case json_type_null:
		sbx_buf_puts(b, "null");
		break;
	}
}

char *sbx_json_canonical(struct json_object *o)
{
	struct sbx_buf b = SBX_BUF_INIT(CANONICAL_MAX);

	canonical_value(&b, o);
	return sbx_buf_steal(&b);
}
