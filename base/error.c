/* SPDX-License-Identifier: Apache-2.0 */
/* The error table and the error value. Nothing here allocates but details and JSON text. */
#include "base/error.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

static const struct {
	const char *name;
	int http;
	int sys;
	const char *doc;
} codes[SBX_E__COUNT] = {
	[SBX_OK] = { "ok", 200, 0, "no failure" },
#define X(sym, wire, http, sys, doc) [SBX_E_##sym] = { wire, http, sys, doc },
#include "base/errors.def"
#undef X
};

void sbx_error_clear(struct sbx_error *e)
{
	int saved = errno;

	if (!e)
		return;
	free(e->details);
	*e = (struct sbx_error)SBX_ERROR_INIT;
	errno = saved;
}

__attribute__((format(printf, 3, 0))) static void set(struct sbx_error *e, enum sbx_code code,
						      const char *fmt, va_list ap)
{
	char text[sizeof(e->message)];

	/* Formatted aside first: an argument may point into the old message. */
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	sbx_error_clear(e);
	e->code = code;
	memcpy(e->message, text, sizeof(text));
}

int sbx_fail(struct sbx_error *e, enum sbx_code code, const char *fmt, ...)
{
	va_list ap;

	assert(code > SBX_OK && code < SBX_E__COUNT);
	if (e) {
		va_start(ap, fmt);
		set(e, code, fmt, ap);
		va_end(ap);
	}
	return -(int)code;
}

int sbx_fail_errno(struct sbx_error *e, enum sbx_code code, int err, const char *fmt, ...)
{
	va_list ap;
	size_t n;

	if (err == ENOSPC || err == EDQUOT)
		code = SBX_E_STORAGE_FULL;
	else if (err == ENOMEM)
		code = SBX_E_NO_MEMORY;
	if (e) {
		va_start(ap, fmt);
		set(e, code, fmt, ap);
		va_end(ap);
		n = strlen(e->message);
		(void)snprintf(e->message + n, sizeof(e->message) - n, ": %s", strerror(err));
	}
	return -(int)code;
}

int sbx_error_details(struct sbx_error *e, const char *fmt, ...)
{
	va_list ap;
	char *text = NULL;

	if (!e)
		return -SBX_E_INTERNAL;
	va_start(ap, fmt);
	if (vasprintf(&text, fmt, ap) < 0)
		text = NULL;
	va_end(ap);
	free(e->details);
	e->details = text;
	return -(int)e->code;
}

int sbx_error_wrap(struct sbx_error *e, int rc, const char *fmt, ...)
{
	char head[sizeof(e->message)];
	char tail[sizeof(e->message)];
	va_list ap;

	if (!e)
		return rc;
	va_start(ap, fmt);
	(void)vsnprintf(head, sizeof(head), fmt, ap);
	va_end(ap);
	memcpy(tail, e->message, sizeof(tail));
	(void)snprintf(e->message, sizeof(e->message), "%.200s: %.300s", head, tail);
	return rc;
}

static enum sbx_code known(enum sbx_code code)
{
	return code < SBX_E__COUNT ? code : SBX_E_INTERNAL;
}

const char *sbx_code_name(enum sbx_code code)
{
	return codes[known(code)].name;
}

int sbx_code_http(enum sbx_code code)
{
	return codes[known(code)].http;
}

int sbx_code_errno(enum sbx_code code)
{
	return codes[known(code)].sys;
}

const char *sbx_code_doc(enum sbx_code code)
{
	return codes[known(code)].doc;
}

enum sbx_code sbx_code_find(const char *name)
{
	for (size_t i = 1; i < SBX_E__COUNT; i++)
		if (strcmp(codes[i].name, name) == 0)
			return (enum sbx_code)i;
	return SBX_OK;
}

char *sbx_error_json(const struct sbx_error *e)
{
	struct sbx_buf b = SBX_BUF_INIT(64 << 10);

	sbx_buf_puts(&b, "{\"error\":{\"code\":");
	sbx_buf_json_str(&b, sbx_code_name(e->code), strlen(sbx_code_name(e->code)));
	sbx_buf_puts(&b, ",\"message\":");
	sbx_buf_json_str(&b, e->message, strlen(e->message));
	sbx_buf_printf(&b, ",\"details\":%s}}\n", e->details ? e->details : "{}");
	return sbx_buf_steal(&b);
}
