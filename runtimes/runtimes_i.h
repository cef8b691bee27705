/* SPDX-License-Identifier: Apache-2.0 */
/* Private to this folder. */
#ifndef SBX_RUNTIMES_RUNTIMES_I_H
#define SBX_RUNTIMES_RUNTIMES_I_H

#include <stddef.h>

/* reasons.c: the table's own string that equals raw[0..len), or NULL. */
const char *rt_reason_literal(const char *raw, size_t len);

#endif
