/* SPDX-License-Identifier: Apache-2.0 */
/* The growing buffer, and the two text encodings that both doors need: JSON strings, base64. */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

void sbx_buf_free(struct sbx_buf *b)
{
	free(b->data);
	b->data = NULL;
	b->len = b->size = 0;
}

void *sbx_buf_reserve(struct sbx_buf *b, size_t n)
{
	size_t want, size;
	char *p;

	if (b->failed)
		return NULL;
	if (n > b->limit || b->len > b->limit - n) {
		b->failed = true;
		return NULL;
	}
	want = b->len + n + 1;
	if (want > b->size) {
		size = b->size ? b->size : 128;
		while (size < want)
			size += size / 2 + 64;
		p = realloc(b->data, size);
		if (!p) {
			b->failed = true;
			return NULL;
		}
		b->data = p;
		b->size = size;
	}
	return b->data + b->len;
}

void sbx_buf_add(struct sbx_buf *b, const void *data, size_t len)
{
	char *p = sbx_buf_reserve(b, len);

	if (!p)
		return;
	if (len)
		memcpy(p, data, len);
	b->len += len;
	b->data[b->len] = '\0';
}

void sbx_buf_puts(struct sbx_buf *b, const char *s)
{
	sbx_buf_add(b, s, strlen(s));
}

/* Mostly there is room already; then the text is made once. */
void sbx_buf_printf(struct sbx_buf *b, const char *fmt, ...)
{
	size_t room = b->failed || !b->data ? 0 : b->size - b->len;
	va_list ap;
	int n;
	char *p;

	va_start(ap, fmt);
	n = vsnprintf(room ? b->data + b->len : NULL, room, fmt, ap);
	va_end(ap);
	if (n >= 0 && (size_t)n < room && (size_t)n <= b->limit - b->len) {
		b->len += (size_t)n;
		return;
	}
	if (room)
		b->data[b->len] = '\0'; /* what was cut off, or is too much */
	if (n < 0) {
		b->failed = true;
		return;
	}
	p = sbx_buf_reserve(b, (size_t)n);
	if (!p)
		return;
	va_start(ap, fmt);
	(void)vsnprintf(p, (size_t)n + 1, fmt, ap);
	va_end(ap);
	b->len += (size_t)n;
}

/* One step of JSON escaping: the escape for the text at s, its length in *out, and how many
 * input bytes it stands for. Plain runs are left to the caller: returns 0 for a plain byte. */
static size_t json_escape(const char *s, size_t len, char out[8], size_t *out_len)
{
	unsigned char c = (unsigned char)s[0];
	size_t n;

	switch (c) {
	case '"':
	case '\\':
		out[0] = '\\';
		out[1] = (char)c;
		*out_len = 2;
		return 1;
	case '\n':
		memcpy(out, "\\n", *out_len = 2);
		return 1;
	case '\t':
		memcpy(out, "\\t", *out_len = 2);
		return 1;
	case '\r':
		memcpy(out, "\\r", *out_len = 2);
		return 1;
	default:
		break;
	}
	if (c < 0x20 || c == 0x7f) {
		(void)snprintf(out, 8, "\\u%04x", c);
		*out_len = 6;
		return 1;
	}
	if (c < 0x80)
		return 0;
	n = sbx_utf8_char(s, len);
	if (n)
		return 0;
	memcpy(out, "\xef\xbf\xbd", *out_len = 3);
	return 1;
}

/* Printable ASCII but for quote and backslash stands for itself; logs are mostly that. */
static size_t plain_run(const char *s, size_t len)
{
	size_t i = 0;

	while (i < len && (unsigned char)s[i] >= 0x20 && (unsigned char)s[i] < 0x7f &&
	       s[i] != '"' && s[i] != '\\')
		i++;
	return i;
}

/* Walks the text; with b NULL it only counts. */
static size_t json_str(struct sbx_buf *b, const char *s, size_t len)
{
	size_t total = 2, start = 0, i = 0, n, out_len;
	char out[8];

	if (b)
		sbx_buf_add(b, "\"", 1);
	while (i < len) {
		i += plain_run(s + i, len - i);
		if (i == len)
			break;
		n = json_escape(s + i, len - i, out, &out_len);
		if (n == 0) {
			i += sbx_utf8_char(s + i, len - i);
			continue;
		}
		if (b) {
			sbx_buf_add(b, s + start, i - start);
			sbx_buf_add(b, out, out_len);
		}
		total += i - start + out_len;
		i += n;
		start = i;
	}
	if (b) {
		sbx_buf_add(b, s + start, i - start);
		sbx_buf_add(b, "\"", 1);
	}
	return total + (i - start);
}

void sbx_buf_json_str(struct sbx_buf *b, const char *s, size_t len)
{
	(void)json_str(b, s, len);
}

size_t sbx_json_str_len(const char *s, size_t len)
{
	return json_str(NULL, s, len);
}

void sbx_buf_json_strz(struct sbx_buf *b, const char *s)
{
	if (s)
		sbx_buf_json_str(b, s, strlen(s));
	else
		sbx_buf_puts(b, "null");
}

static const char base64_chars[] =
	"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void sbx_buf_base64(struct sbx_buf *b, const void *data, size_t len)
{
	const uint8_t *in = data;
	char *p = sbx_buf_reserve(b, (len + 2) / 3 * 4);
	size_t n = 0;

	if (!p)
		return;
	for (size_t i = 0; i < len; i += 3) {
		size_t left = len - i;
		uint32_t v = (uint32_t)in[i] << 16 | (left > 1 ? (uint32_t)in[i + 1] << 8 : 0) |
			     (left > 2 ? in[i + 2] : 0);

		p[n++] = base64_chars[v >> 18 & 63];
		p[n++] = base64_chars[v >> 12 & 63];
		p[n++] = left > 1 ? base64_chars[v >> 6 & 63] : '=';
		p[n++] = left > 2 ? base64_chars[v & 63] : '=';
	}
	p[n] = '\0';
	b->len += n;
}

char *sbx_buf_steal(struct sbx_buf *b)
{
	char *p;

	if (!b->data && !b->failed)
		sbx_buf_add(b, "", 0);
	if (b->failed) {
		sbx_buf_free(b);
		return NULL;
	}
	p = b->data;
	b->data = NULL;
	b->len = b->size = 0;
	return p;
}

static int base64_value(char c)
{
	const char *p = c ? strchr(base64_chars, c) : NULL;

	return p ? (int)(p - base64_chars) : -1;
}

int sbx_base64_decode(const char *text, size_t len, uint8_t **ret, size_t *ret_len)
{
	uint8_t *out;
	uint32_t acc = 0;
	size_t n = 0;
	int bits = 0;

	if (len && len % 4 == 0 && text[len - 1] == '=')
		len -= text[len - 2] == '=' ? 2 : 1;
	if (len % 4 == 1)
		return -1;
	out = malloc(len / 4 * 3 + 3);
	if (!out)
		return -1;
	for (size_t i = 0; i < len; i++) {
		int v = base64_value(text[i]);

		if (v < 0) {
			free(out);
			return -1;
		}
		acc = acc << 6 | (uint32_t)v;
		bits += 6;
		if (bits >= 8) {
			bits -= 8;
			out[n++] = (uint8_t)(acc >> bits);
		}
	}
	*ret = out;
	*ret_len = n;
	return 0;
}
