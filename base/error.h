/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SBX_BASE_ERROR_H
#define SBX_BASE_ERROR_H

#include <stddef.h>

/* One vocabulary of failure for both doors; the rows are in errors.def. */
enum sbx_code {
	SBX_OK = 0,
#define X(sym, wire, http, sys, doc) SBX_E_##sym,
#include "base/errors.def"
#undef X
	SBX_E__COUNT,
};

/*
 * A failure as a value on the caller's stack. `message` needs no allocation,
 * so that "out of memory" can be reported. `details` is the text of one JSON
 * object, owned, or NULL.
 */
struct sbx_error {
	enum sbx_code code;
	char message[512];
	char *details;
};
#define SBX_ERROR_INIT                                                                             \
	{                                                                                          \
		.code = SBX_OK, .message = "", .details = NULL                                     \
	}

/* Frees what e owns and makes it SBX_ERROR_INIT again. NULL is fine. */
void sbx_error_clear(struct sbx_error *e);
#define sbx_autoerror __attribute__((cleanup(sbx_error_clear))) struct sbx_error

/* Records the failure, dropping an earlier one, and returns -code. e may be NULL. */
int sbx_fail(struct sbx_error *e, enum sbx_code code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* As sbx_fail, with ": <text of err>" behind the message. ENOSPC and EDQUOT become
 * STORAGE_FULL and ENOMEM becomes NO_MEMORY whatever `code` says. */
int sbx_fail_errno(struct sbx_error *e, enum sbx_code code, int err, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* Attaches details (the text of a JSON object, printf style). Returns -e->code. */
int sbx_error_details(struct sbx_error *e, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* Puts "context: " in front of the message and keeps the code. Returns rc. */
int sbx_error_wrap(struct sbx_error *e, int rc, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

const char *sbx_code_name(enum sbx_code code);
int sbx_code_http(enum sbx_code code);
int sbx_code_errno(enum sbx_code code);
const char *sbx_code_doc(enum sbx_code code);
/* The code with this wire name, SBX_OK when there is none. */
enum sbx_code sbx_code_find(const char *name);

/* {"error":{"code","message","details"}} and a newline; malloc'd, NULL without memory. */
char *sbx_error_json(const struct sbx_error *e);

#endif
