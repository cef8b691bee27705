/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8 as RFC 3629 has it: no surrogates, no overlong forms, nothing above U+10FFFF. */
#ifndef SBX_BASE_UTF8_H
#define SBX_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Length (1..4) of the valid character at s, 0 when there is none within len bytes. */
size_t sbx_utf8_char(const char *s, size_t len);
bool sbx_utf8_valid(const char *s, size_t len);
/* How many bytes at the end (0..3) could be the beginning of a character that is still to
 * come. 0 when the end is complete or can no longer become valid. */
size_t sbx_utf8_partial_tail(const char *s, size_t len);

#endif
