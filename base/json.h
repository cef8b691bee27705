/* SPDX-License-Identifier: Apache-2.0 */
/* Strict JSON: what json-c accepts, minus everything that could mean two things. */
#ifndef SBX_BASE_JSON_H
#define SBX_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>

#include <json-c/json.h>

#include "base/buf.h"
#include "base/error.h"

static inline void json_putp(struct json_object **p)
{
	json_object_put(*p);
}
#define sbx_autojson __attribute__((cleanup(json_putp))) struct json_object

/*
 * Follows a JSON object as its bytes arrive and says when it is complete, so that a
 * document starts at its last brace. It checks only what can be known at once: structure,
 * depth, UTF-8, control characters, escapes. Feed it bytes in any portions.
 */
struct sbx_json_scan {
	unsigned char stack[8]; /* one bit per level: 1 object, 0 array */
	unsigned depth;
	unsigned state;
	unsigned utf8_need;    /* continuation bytes still to come */
	unsigned char utf8_lo; /* range of the next one */
	unsigned char utf8_hi;
	unsigned hex_left; /* digits of a \u escape still to come */
	unsigned hex;
	bool begun;
	const char *problem; /* a short phrase once the text cannot be an object */
	size_t problem_at;   /* offset of the byte that made it so */
	size_t consumed;     /* bytes looked at */
};
enum { SBX_JSON_DEPTH = 64 }; /* levels of nesting; a run spec needs three */

enum sbx_json_state { SBX_JSON_MORE, SBX_JSON_COMPLETE, SBX_JSON_BROKEN };

void sbx_json_scan_init(struct sbx_json_scan *s);
/* Looks at data[0..len). COMPLETE: the object ended; *ret_used bytes belong to it (leading
 * white space and a byte order mark included), the rest was not looked at. */
enum sbx_json_state sbx_json_scan_feed(struct sbx_json_scan *s, const char *data, size_t len,
				       size_t *ret_used);

/*
 * Parses exactly one JSON object: refuses trailing text, duplicate keys, NUL in strings
 * and keys, lone surrogates, NaN and numbers outside the range of double. A byte order
 * mark in front is skipped. On failure e (INVALID_SPEC) says what, and where.
 */
int sbx_json_parse_object(const char *text, size_t len, struct json_object **ret,
			  struct sbx_error *e);

/* Canonical text: keys sorted bytewise, no spaces, non-ASCII as \uXXXX (surrogate pairs above
 * U+FFFF), doubles that are whole printed with ".0". malloc'd; NULL without memory. */
char *sbx_json_canonical(struct json_object *o);

/* A number as JSON: the shortest text that reads back as v, with ".0" when it is whole. */
void sbx_json_double(struct sbx_buf *b, double v);

#endif
