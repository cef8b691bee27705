/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SBX_BASE_ID_H
#define SBX_BASE_ID_H

#include <stdbool.h>
#include <stddef.h>

enum { SBX_ID_LEN = 36 };

/*
 * A new UUID version 7 (RFC 9562): sorts by time as text, and by order of creation
 * within one process. 36 characters and a NUL. Thread-safe.
 */
void sbx_id_new(char out[SBX_ID_LEN + 1]);
/* Is this the text of a UUID in lower case? */
bool sbx_id_valid(const char *s);
/* len random bytes from the kernel; aborts when it has none (getrandom(2) cannot fail here). */
void sbx_random(void *out, size_t len);

#endif
