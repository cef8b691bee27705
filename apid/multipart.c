/* SPDX-License-Identifier: Apache-2.0 */
/* multipart/form-data: where its parts begin and end. What their heads say is in multipart_head.c.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "apid/multipart_head_i.h"

enum {
	DELIMITER = MULTIPART_BOUNDARY + 4, /* CR LF - - and the boundary */
	PADDING = 64,			    /* blanks that may follow it */
	/* Whole lines of a head, or a delimiter with its padding, fit in beside a piece. */
	PIECE = 16 << 10,
	WINDOW = PIECE + MULTIPART_HEAD + DELIMITER + PADDING,
};

enum state {
	BEFORE,	   /* the first boundary: what stands there is nobody's */
	BOUNDARY,  /* right behind one */
	HEAD,	   /* of a part */
	BLANK,	   /* the empty line behind it */
	CONTENT,   /* of a part */
	AFTERWARDS /* the last boundary: nobody's either */
};

struct multipart {
	struct multipart_calls calls;
	void *ctx;
	char delimiter[DELIMITER + 1];
	size_t delimiter_len;
	enum state state;
	bool part;		  /* BOUNDARY: there is a part that it ends, maybe */
	size_t parts, begin, end; /* of the window: what is not yet looked at */
	char window[WINDOW + 1];
};

static int broken(struct sbx_error *e, const char *what)
{
	return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "the form cannot be read: %s", what);
}

int multipart_new(const char *content_type, const struct multipart_calls *calls, void *ctx,
		  struct multipart **ret, struct sbx_error *e)
{
	char boundary[MULTIPART_BOUNDARY + 1] = "";
	int rc = multipart_boundary(content_type, boundary, e);
	struct multipart *m;

	if (rc < 0)
		return rc;
	m = calloc(1, sizeof(*m));
	if (!m)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	m->calls = *calls;
	m->ctx = ctx;
	memcpy(m->delimiter, "\r\n--", 4);
	memcpy(m->delimiter + 4, boundary, strlen(boundary) + 1);
	m->delimiter_len = strlen(m->delimiter);
	m->state = BEFORE;
	/* The first boundary may stand at the very beginning. */
	memcpy(m->window, "\r\n", 2);
	m->end = 2;
	*ret = m;
	return 0;
}

struct multipart *multipart_free(struct multipart *m)
{
	free(m);
	return NULL;
}

/* ---- one step in each state: 1 when it got on, 0 when it needs more, or an error ------------- */

/* Bytes of the content, or of what is nobody's. */
static int give(struct multipart *m, size_t n, struct sbx_error *e)
{
	int rc = 0;

	if (n && m->part)
		rc = m->calls.data(m->ctx, m->window + m->begin, n, e);
	m->begin += n;
	return rc;
}

/* Up to the next delimiter, or as far as none can have begun. */
static int pass(struct multipart *m, struct sbx_error *e)
{
	const char *from = m->window + m->begin;
	size_t len = m->end - m->begin, keep = m->delimiter_len - 1;
	const char *at = memmem(from, len, m->delimiter, m->delimiter_len);
	int rc;

	if (at) {
		rc = give(m, (size_t)(at - from), e);
		m->state = BOUNDARY;
		return rc < 0 ? rc : 1;
	}
	return len > keep ? give(m, len - keep, e) : 0;
}

/* At a delimiter: does its line end as it must? Else it is text that only looks like one. */
static int at_boundary(struct multipart *m, struct sbx_error *e)
{
	const char *s = m->window + m->begin + m->delimiter_len;
	size_t left = m->end - m->begin - m->delimiter_len, blanks = 0;
	int rc;

	if (left < 2)
		return 0;
	if (memcmp(s, "--", 2) == 0) {
		m->state = AFTERWARDS;
		return 1;
	}
	while (blanks < left && (s[blanks] == ' ' || s[blanks] == '\t'))
		blanks++;
	if (blanks <= PADDING && left < blanks + 2)
		return 0;
	if (blanks <= PADDING && memcmp(s + blanks, "\r\n", 2) == 0) {
		if (++m->parts > MULTIPART_PARTS)
			return broken(e, "it has more than 10000 parts");
		m->begin += m->delimiter_len + blanks + 2;
		m->state = HEAD;
		return 1;
	}
	rc = give(m, m->delimiter_len, e);
	m->state = m->part ? CONTENT : BEFORE;
	return rc < 0 ? rc : 1;
}

static int in_head(struct multipart *m, struct sbx_error *e)
{
	struct multipart_head h = { .name = NULL };
	char *from = m->window + m->begin, *end;
	size_t len = m->end - m->begin, n;
	int rc;

	if (len >= 2 && memcmp(from, "\r\n", 2) == 0)
		return broken(e, "a part has no headers");
	end = memmem(from, len, "\r\n\r\n", 4);
	n = end ? (size_t)(end - from) + 2 : len;
	/* Until the empty line is whole, half of it may be there. */
	if (n > MULTIPART_HEAD + (end ? 0 : 1))
		return broken(e, "the headers of a part are longer than 8 KiB");
	if (memchr(from, '\0', n))
		return broken(e, "a header of a part has a NUL");
	if (!end)
		return 0;
	from[n] = '\0';
	rc = multipart_head_read(from, &h, e);
	if (rc == 0)
		rc = m->calls.part(m->ctx, h.name, h.file_name, e);
	multipart_head_clear(&h);
	m->part = true;
	m->begin += n;
	from[n] = '\r';
	m->state = BLANK;
	return rc < 0 ? rc : 1;
}

/* Where there is no content, this line may be the beginning of the delimiter. */
static int at_blank(struct multipart *m)
{
	size_t len = m->end - m->begin, n = len < m->delimiter_len ? len : m->delimiter_len;
	bool same = memcmp(m->window + m->begin, m->delimiter, n) == 0;

	if (same && n < m->delimiter_len)
		return 0;
	m->begin += same ? 0 : 2;
	m->state = CONTENT;
	return 1;
}

static int step(struct multipart *m, struct sbx_error *e)
{
	switch (m->state) {
	case BEFORE:
	case CONTENT:
		return pass(m, e);
	case BOUNDARY:
		return at_boundary(m, e);
	case HEAD:
		return in_head(m, e);
	case BLANK:
		return at_blank(m);
	default:
		m->begin = m->end;
		return 0;
	}
}

/* ---- from outside ---------------------------------------------------------------------------- */

int multipart_feed(struct multipart *m, const char *data, size_t len, struct sbx_error *e)
{
	while (len) {
		size_t room, n;
		int rc;

		memmove(m->window, m->window + m->begin, m->end - m->begin);
		m->end -= m->begin;
		m->begin = 0;
		room = WINDOW - m->end;
		n = len < room ? len : room;
		memcpy(m->window + m->end, data, n);
		m->end += n;
		data += n;
		len -= n;
		while ((rc = step(m, e)) > 0)
			;
		if (rc < 0)
			return rc;
	}
	return 0;
}

int multipart_end(const struct multipart *m, struct sbx_error *e)
{
	if (m->state == AFTERWARDS)
		return 0;
	return broken(e, m->parts ? "it ends before its last boundary does"
				  : "its boundary is nowhere in it");
}
