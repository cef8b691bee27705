/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration file. inih parses it; what inih lacks is added around it: line numbers in
 * messages, an error for a key given twice and for a line that is too long, and lists that go on
 * over indented lines.
 */
#include <ctype.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <fcntl.h>
#include <ini.h>

#include "base/auto.h"
#include "base/fs.h"
#include "orchestrator/settings_i.h"

struct reading {
	struct orch_settings *s;
	const char *path;
	const char *next, *end; /* what inih has not seen yet */
	int line;		/* number of the line it sees now */
	bool indented;		/* that line begins with white space */
	size_t last;		/* row of the key before, SIZE_MAX after a [section] */
	char *value;		/* owned: value of that key so far */
	int *seen;		/* owned: line of each row, 0 when not given */
	int failed_line;
	struct sbx_error *e;
	int rc;
};

/* Notes the failure of the line that is being read; nothing after it is looked at. */
#define REFUSE(r, ...)                                                                             \
	do {                                                                                       \
		(r)->failed_line = (r)->line;                                                      \
		(r)->rc = sbx_fail((r)->e, SBX_E_INVALID_CONFIG, __VA_ARGS__);                     \
	} while (0)

/* inih's reader: one line, as fgets. NULL ends the parsing, also after a failure. */
static char *next_line(char *buf, int size, void *arg)
{
	struct reading *r = arg;
	const char *nl;
	size_t len;

	if (r->rc || r->next == r->end)
		return NULL;
	r->line++;
	nl = memchr(r->next, '\n', (size_t)(r->end - r->next));
	len = (size_t)((nl ? nl + 1 : r->end) - r->next);
	if (len + 1 > (size_t)size) {
		REFUSE(r, "%s:%d: longer than %d bytes; a list may go on in indented lines",
		       r->path, r->line, size - 2);
		return NULL;
	}
	memcpy(buf, r->next, len);
	buf[len] = '\0';
	r->next += len;
	r->indented = buf[0] == ' ' || buf[0] == '\t';
	if (buf[0] == '[')
		r->last = SIZE_MAX;
	return buf;
}

/* Cuts a comment that begins with white space and # or ; off the end. */
static char *without_comment(const char *value)
{
	char *copy = strdup(value);

	for (char *p = copy; p && *p; p++)
		if ((*p == '#' || *p == ';') && (p == copy || isspace((unsigned char)p[-1])))
			*p = '\0';
	return copy;
}

/* Puts what row i has so far in front of *value; an indented line goes on with the list. */
static int join(struct reading *r, size_t i, const char *where, char **value)
{
	const struct orch_setting_info *row = orch_setting_at(i);
	char *joined = NULL;

	if (row->form != ORCH_FORM_LIST && row->form != ORCH_FORM_MAP)
		return sbx_fail(r->e, SBX_E_INVALID_CONFIG,
				"%s: an indented line goes on with %s, which has one value only; "
				"begin a setting at the left edge",
				where, row->key);
	if (asprintf(&joined, "%s,%s", r->value ? r->value : "", *value) < 0)
		return sbx_fail(r->e, SBX_E_NO_MEMORY, "no memory for settings");
	free(*value);
	*value = joined;
	return 0;
}

static int take(struct reading *r, const char *where, const char *name, const char *text)
{
	sbx_autofree char *value = without_comment(text);
	size_t i = orch_setting_find(name);
	char origin[32];
	int rc = 0;

	if (!value)
		return sbx_fail(r->e, SBX_E_NO_MEMORY, "no memory for settings");
	if (i == SIZE_MAX)
		return orch_setting_unknown(name, where, r->e);
	if (r->indented && r->last == i)
		rc = join(r, i, where, &value);
	else if (r->seen[i])
		rc = sbx_fail(r->e, SBX_E_INVALID_CONFIG, "%s: %s is already set in line %d", where,
			      name, r->seen[i]);
	else
		r->seen[i] = r->line;
	(void)snprintf(origin, sizeof(origin), "file %d", r->seen[i]);
	if (!rc)
		rc = orch_setting_assign(r->s, i, value, where, origin, r->e);
	if (rc)
		return rc;
	r->last = i;
	free(r->value);
	r->value = sbx_steal(&value);
	return 0;
}

/* inih's handler: 1 is fine, 0 is not. */
static int on_value(void *arg, const char *section, const char *name, const char *text)
{
	struct reading *r = arg;
	char where[SBX_NAME_MAX + 32];

	if (r->rc)
		return 0;
	(void)snprintf(where, sizeof(where), "%.255s:%d", r->path, r->line);
	if (strcasecmp(section, "sandbox") != 0) {
		REFUSE(r, "%s: '%.80s' is in section '%.80s'; settings are in [sandbox]", where,
		       name, section);
		return 0;
	}
	r->rc = take(r, where, name, text);
	if (r->rc)
		r->failed_line = r->line;
	return r->rc == 0;
}

static int read_config(const char *path, bool optional, char **ret, size_t *ret_len,
		       struct sbx_error *e)
{
	int rc = sbx_read_file(AT_FDCWD, path, ORCH_CONFIG_MAX, ret, ret_len);

	if (rc == -ENOENT && optional)
		return 0;
	if (rc == -EFBIG)
		return sbx_fail(e, SBX_E_INVALID_CONFIG, "%s: larger than 1 MiB", path);
	if (rc)
		return sbx_fail_errno(e, SBX_E_INVALID_CONFIG, -rc, "cannot read %s", path);
	if (memchr(*ret, '\0', *ret_len))
		return sbx_fail(e, SBX_E_INVALID_CONFIG, "%s: not a text file, it has a NUL byte",
				path);
	return 0;
}

int orch_settings_file(struct orch_settings *s, const char *path, bool optional,
		       struct sbx_error *e)
{
	sbx_autofree char *text = NULL;
	struct reading r = { .s = s, .path = path, .last = SIZE_MAX, .e = e };
	size_t len = 0, n = 0;
	int rc = read_config(path, optional, &text, &len, e);

	if (rc || !text)
		return rc;
	while (orch_setting_at(n))
		n++;
	r.seen = calloc(n, sizeof(*r.seen));
	if (!r.seen)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for settings");
	r.next = text;
	r.end = text + len;
	rc = ini_parse_stream(next_line, &r, on_value, &r);
	/* inih tells the first bad line: one that on_value refused, or one that it cannot read. */
	if (rc > 0 && rc != r.failed_line)
		r.rc = sbx_fail(e, SBX_E_INVALID_CONFIG,
				"%s:%d: neither a comment, nor [sandbox], nor key = value", path,
				rc);
	else if (rc < 0)
		r.rc = sbx_fail(e, SBX_E_NO_MEMORY, "no memory to parse %s", path);
	free(r.value);
	free(r.seen);
	if (r.rc)
		return r.rc;
	s->file = sbx_steal(&text);
	s->file_len = len;
	return 0;
}
