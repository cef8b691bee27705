/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A growing byte buffer with a hard limit. Failure is sticky: after the limit
 * or an allocation failed, every append is a no-op and sbx_buf_failed() says so,
 * so that a renderer checks once at its end. Not thread-safe.
 */
#ifndef SBX_BASE_BUF_H
#define SBX_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sbx_buf {
	char *data;   /* owned; NUL-terminated whenever non-NULL */
	size_t len;   /* bytes in use, without the NUL */
	size_t size;  /* bytes allocated */
	size_t limit; /* len never exceeds this */
	bool failed;
};
#define SBX_BUF_INIT(max_bytes)                                                                    \
	{                                                                                          \
		.data = NULL, .len = 0, .size = 0, .limit = (max_bytes), .failed = false           \
	}

void sbx_buf_free(struct sbx_buf *b);
#define sbx_autobuf __attribute__((cleanup(sbx_buf_free))) struct sbx_buf

void sbx_buf_add(struct sbx_buf *b, const void *data, size_t len);
void sbx_buf_puts(struct sbx_buf *b, const char *s);
void sbx_buf_printf(struct sbx_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Room for n more bytes at the end, not yet counted in len; NULL on failure. */
void *sbx_buf_reserve(struct sbx_buf *b, size_t n);
/* The text as a quoted JSON string. Bytes that are not UTF-8 become U+FFFD. */
void sbx_buf_json_str(struct sbx_buf *b, const char *s, size_t len);
/* A quoted JSON string, or null. */
void sbx_buf_json_strz(struct sbx_buf *b, const char *s);
/* len bytes as base64 (RFC 4648, with padding), without quotes. */
void sbx_buf_base64(struct sbx_buf *b, const void *data, size_t len);
static inline bool sbx_buf_failed(const struct sbx_buf *b)
{
	return b->failed;
}
/* The NUL-terminated bytes, now the caller's; NULL after a failure (all is freed). */
char *sbx_buf_steal(struct sbx_buf *b);

/* Number of bytes sbx_buf_json_str would append for the same text, quotes included. */
size_t sbx_json_str_len(const char *s, size_t len);

/* Decodes base64 with or without padding; refuses everything else, white space included.
 * On success *ret is malloc'd (never NULL) and *ret_len set. 0, or -1 when it is not base64
 * or memory is short. */
int sbx_base64_decode(const char *text, size_t len, uint8_t **ret, size_t *ret_len);

#endif
