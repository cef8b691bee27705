/* SPDX-License-Identifier: Apache-2.0 */
/* What the headers of a form and of its parts say: the boundary, the name of the field, the name of
 * the file. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "apid/multipart_head_i.h"
#include "base/buf.h"

static const char token[] = "!#$%&'*+-.^_`|~0123456789"
			    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
static const char blank[] = " \t";

static int broken(struct sbx_error *e, const char *what)
{
	return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "the form cannot be read: %s", what);
}

/* ---- parameters: ;name=value;name="value" ---------------------------------------------------- */

/* Between quotes: a backslash escapes a quote or itself, and is one of its own before anything
 * else, since browsers escape none. Returns where it ends, NULL when it does not. */
static const char *quoted(const char *at, struct sbx_buf *out)
{
	for (at++; *at && *at != '"'; at++) {
		if (*at == '\\' && (at[1] == '"' || at[1] == '\\'))
			at++;
		sbx_buf_add(out, at, 1);
	}
	return *at ? at + 1 : NULL;
}

struct param {
	char name[32];
	struct sbx_buf value;
};

/* The next one; *at is behind what came before. 1: there is one, 0: that was all, -1: broken. */
static int next_param(const char **at, struct param *p)
{
	const char *s = *at + strspn(*at, blank);
	size_t n;

	if (!*s)
		return 0;
	if (*s != ';')
		return -1;
	s += 1 + strspn(s + 1, blank);
	if (!*s) /* one semicolon too many hurts nobody */
		return 0;
	n = strspn(s, token);
	if (n == 0 || n >= sizeof(p->name))
		return -1;
	memcpy(p->name, s, n);
	p->name[n] = '\0';
	s += n + strspn(s + n, blank);
	if (*s != '=')
		return -1;
	s += 1 + strspn(s + 1, blank);
	p->value.len = 0;
	sbx_buf_add(&p->value, "", 0);
	if (*s == '"') {
		s = quoted(s, &p->value);
	} else {
		n = strcspn(s, "; \t\"");
		sbx_buf_add(&p->value, s, n);
		s += n;
	}
	*at = s;
	return s && !p->value.failed ? 1 : -1;
}

static char *copy(const struct sbx_buf *b)
{
	return strndup(b->data ? b->data : "", b->len);
}

/* ---- filename*=UTF-8''... (RFC 5987) --------------------------------------------------------- */

static int hex(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* malloc'd; NULL when it is none of ours. */
static char *extended(const struct sbx_buf *b)
{
	const char *from = b->data ? b->data : "", *text;
	char *to, *out;

	if (strncasecmp(from, "utf-8'", 6) != 0 || !(text = strchr(from + 6, '\'')))
		return NULL;
	out = to = strdup(text + 1);
	for (text++; out && *text; text++) {
		int high = *text == '%' ? hex(text[1]) : -1, low = high >= 0 ? hex(text[2]) : -1;

		if (*text == '%' && (low < 0 || (high == 0 && low == 0))) {
			free(out);
			return NULL;
		}
		*to++ = (char)(low < 0 ? *text : high << 4 | low);
		text += low < 0 ? 0 : 2;
	}
	if (out)
		*to = '\0';
	return out;
}

/* ---- the form's own header ------------------------------------------------------------------- */

static bool is_boundary(const struct sbx_buf *b)
{
	/* RFC 2046, section 5.1.1. */
	static const char allowed[] =
		"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
		"'()+_,-./:=? ";

	return b->len > 0 && b->len <= MULTIPART_BOUNDARY && strspn(b->data, allowed) == b->len &&
	       b->data[b->len - 1] != ' ';
}

int multipart_boundary(const char *type, char ret[MULTIPART_BOUNDARY + 1], struct sbx_error *e)
{
	static const char form[] = "multipart/form-data";
	struct param p = { .value = SBX_BUF_INIT(MULTIPART_HEAD) };
	size_t n = type ? strcspn(type, "; \t") : 0;
	bool found = false;
	int r = 0;

	if (n != strlen(form) || strncasecmp(type, form, n) != 0) {
		(void)sbx_fail(e, SBX_E_INVALID_SPEC,
			       "files: is missing: the body must be multipart/form-data with parts "
			       "named 'files', found '%.80s'",
			       type ? type : "no Content-Type");
		return sbx_error_details(e, "{\"field\":\"files\"}");
	}
	for (type += n; (r = next_param(&type, &p)) > 0;) {
		if (strcasecmp(p.name, "boundary") != 0)
			continue;
		if (found || !is_boundary(&p.value)) {
			r = -1;
			break;
		}
		memcpy(ret, p.value.data, p.value.len + 1);
		found = true;
	}
	sbx_buf_free(&p.value);
	return found && r == 0 ? 0
			       : broken(e, "Content-Type has no boundary, or none that is allowed");
}

/* ---- the head of a part ---------------------------------------------------------------------- */

void multipart_head_clear(struct multipart_head *h)
{
	free(h->name);
	free(h->file_name);
	*h = (struct multipart_head){ .name = NULL };
}

static int set(char **to, char *value, struct sbx_error *e)
{
	if (!value)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	if (*to) {
		free(value);
		return broken(e, "a name is given twice");
	}
	*to = value;
	return 0;
}

static int disposition(const char *text, struct multipart_head *h, struct sbx_error *e)
{
	struct param p = { .value = SBX_BUF_INIT(MULTIPART_HEAD) };
	size_t n = strcspn(text, "; \t");
	char *better = NULL;
	int r = 0, rc = 0;

	if (h->name)
		return broken(e, "a part has two headers Content-Disposition");
	if (n != 9 || strncasecmp(text, "form-data", n) != 0)
		return broken(e, "a part is no form-data");
	for (text += n; rc == 0 && (r = next_param(&text, &p)) > 0;) {
		if (strcasecmp(p.name, "name") == 0)
			rc = set(&h->name, copy(&p.value), e);
		else if (strcasecmp(p.name, "filename") == 0)
			rc = set(&h->file_name, copy(&p.value), e);
		else if (strcasecmp(p.name, "filename*") == 0 && !better)
			better = extended(&p.value);
	}
	sbx_buf_free(&p.value);
	if (better) {
		free(h->file_name);
		h->file_name = better;
	}
	if (rc == 0 && r < 0)
		rc = broken(e, "a header Content-Disposition is malformed");
	return rc;
}

/* What is encoded would be stored as it came, and would not be what was meant. */
static int encoding(const char *text, struct sbx_error *e)
{
	static const char *const plain[] = { "binary", "8bit", "7bit" };

	for (size_t i = 0; i < SBX_COUNT(plain); i++)
		if (strcasecmp(text, plain[i]) == 0)
			return 0;
	return broken(e, "a part has a Content-Transfer-Encoding");
}

static int one_header(char *line, struct multipart_head *h, struct sbx_error *e)
{
	size_t n = strspn(line, token);
	char *value = line + n + 1, *end;

	if (n == 0 || line[n] != ':')
		return broken(e, "a part has a line that is no header");
	line[n] = '\0';
	value += strspn(value, blank);
	for (end = value + strlen(value); end > value && strchr(blank, end[-1]); end--)
		;
	*end = '\0';
	if (strcasecmp(line, "Content-Disposition") == 0)
		return disposition(value, h, e);
	if (strcasecmp(line, "Content-Transfer-Encoding") == 0)
		return encoding(value, e);
	if (strcasecmp(line, "Content-Type") == 0 && strncasecmp(value, "multipart/", 10) == 0)
		return broken(e, "a part has parts of its own");
	return 0;
}

int multipart_head_read(char *text, struct multipart_head *h, struct sbx_error *e)
{
	int rc = 0;

	*h = (struct multipart_head){ .name = NULL };
	while (rc == 0 && *text) {
		char *end = strstr(text, "\r\n");

		if (!end || strcspn(text, "\r\n") != (size_t)(end - text))
			return broken(e, "a header of a part does not end as lines do");
		*end = '\0';
		rc = one_header(text, h, e);
		text = end + 2;
	}
	if (rc == 0 && (!h->name || !*h->name))
		rc = broken(e, "a part has no name");
	return rc;
}
