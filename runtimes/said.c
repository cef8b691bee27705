/* SPDX-License-Identifier: Apache-2.0 */
/* What programs outside say, made fit to be shown. */
#include "runtimes/runtimes_i.h"

#include <string.h>

#include "base/utf8.h"

static const char cut[] = "...", hidden[] = "***";

struct text {
	char *out;
	size_t n, max; /* bytes, without NUL */
	bool full;
};

static void put(struct text *t, const char *s, size_t n)
{
	t->full = t->full || n > t->max - t->n;
	if (t->full)
		return;
	memcpy(t->out + t->n, s, n);
	t->n += n;
}

static uint32_t code_point(const char *s, size_t n)
{
	static const unsigned char first[] = { 0, 0x7f, 0x1f, 0x0f, 0x07 };
	uint32_t c = (unsigned char)s[0] & first[n];

	for (size_t i = 1; i < n; i++)
		c = c << 6 | ((unsigned char)s[i] & 0x3f);
	return c;
}

/* What ends a line, moves a terminal's cursor, or turns the direction of a text. */
static bool is_control(uint32_t c)
{
	static const uint32_t ranges[][2] = {
		{ 0, 0x1f },	    { 0x7f, 0x9f },	  { 0x61c, 0x61c },   { 0x180e, 0x180e },
		{ 0x200b, 0x200f }, { 0x2028, 0x202e },	  { 0x2060, 0x206f }, { 0xfeff, 0xfeff },
		{ 0xfff9, 0xfffb }, { 0xe0000, 0xe007f },
	};

	for (size_t i = 0; i < SBX_COUNT(ranges); i++)
		if (c >= ranges[i][0] && c <= ranges[i][1])
			return true;
	return false;
}

static const char *put_char(struct text *t, const char *p)
{
	size_t n = sbx_utf8_char(p, strnlen(p, 4));

	if (n == 0)
		put(t, "?", 1);
	else if (is_control(code_point(p, n)))
		put(t, " ", 1);
	else
		put(t, p, n);
	return p + (n ? n : 1);
}

/* Quotes and white space end it, but for a quote that a backslash makes a part of it. */
static const char *url_end(const char *p)
{
	for (; *p; p++) {
		if (strchr(" \t\r\n<>\"", *p))
			return p;
		if (*p == '\\' && p[1])
			p++;
	}
	return p;
}

/* Behind the "://" of an address: what stands in front of an @ are a name and a password. */
static const char *skip_user(struct text *t, const char *p, const char *end)
{
	const char *at = memrchr(p, '@', (size_t)(end - p));

	if (!at)
		return p;
	put(t, hidden, sizeof(hidden) - 1);
	return at;
}

void rt_said(const char *dir, const char *said, char *out, size_t size)
{
	struct text t = { .out = out, .max = size - sizeof(cut) };
	size_t len = dir ? strlen(dir) : 0;
	const char *p = said, *url = NULL; /* the end of the address that p is in */

	while (*p && !t.full) {
		if (len && strncmp(p, dir, len) == 0) {
			put(&t, "(state)", 7);
			p += len;
		} else if (strncmp(p, "://", 3) == 0) {
			put(&t, p, 3);
			url = url_end(p + 3);
			p = skip_user(&t, p + 3, url);
		} else if (url && p < url && (*p == '?' || *p == '#')) {
			/* Signatures and tokens stand there. */
			put(&t, p, 1);
			put(&t, hidden, sizeof(hidden) - 1);
			p = url;
		} else {
			p = put_char(&t, p);
		}
	}
	if (t.full) {
		memcpy(out + t.n, cut, sizeof(cut) - 1);
		t.n += sizeof(cut) - 1;
	}
	out[t.n] = '\0';
}
