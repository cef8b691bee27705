/* SPDX-License-Identifier: Apache-2.0 */
/*
 * multipart/form-data (RFC 7578, RFC 2046) as it comes, in pieces of any size. Nothing is kept but
 * the head of one part and as many bytes as a boundary may have. Private to apid/.
 *
 * libmicrohttpd's post processor ends a quoted name at the first quote, escaped or not, passes over
 * what it does not understand, and does not tell a body that was cut off from a whole one.
 */
#ifndef SBX_APID_MULTIPART_I_H
#define SBX_APID_MULTIPART_I_H

#include <stddef.h>

#include "base/auto.h"
#include "base/error.h"

enum {
	MULTIPART_BOUNDARY = 70, /* bytes, RFC 2046 */
	MULTIPART_HEAD = 8 << 10,
	MULTIPART_PARTS = 10000,
};

struct multipart_calls {
	/* A part begins. name is never NULL; file_name NULL: it has none. Bytes of any kind but
	 * NUL. */
	int (*part)(void *ctx, const char *name, const char *file_name, struct sbx_error *e);
	int (*data)(void *ctx, const char *data, size_t len, struct sbx_error *e);
};

struct multipart;
/* content_type: the header, NULL: none. What is no form at all is INVALID_SPEC; a form that cannot
 * be read is INVALID_ARGUMENT, here and below. */
int multipart_new(const char *content_type, const struct multipart_calls *calls, void *ctx,
		  struct multipart **ret, struct sbx_error *e);
int multipart_feed(struct multipart *m, const char *data, size_t len, struct sbx_error *e);
/* The body is over: was it whole? */
int multipart_end(const struct multipart *m, struct sbx_error *e);
struct multipart *multipart_free(struct multipart *m); /* NULL is fine; returns NULL */
SBX_DEFINE_AUTO(struct multipart, multipart_free)

#endif
