/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two clocks. Wall time (microseconds since 1970, UTC) is for people and records;
 * boot time is for every deadline and lease, because it does not jump when the wall
 * clock is set and goes on during suspend (clock_gettime(2), CLOCK_BOOTTIME).
 */
#ifndef SBX_BASE_CLOCK_H
#define SBX_BASE_CLOCK_H

#include <stdint.h>

#define SBX_SECOND_US INT64_C(1000000)

enum { SBX_TIME_TEXT = 32 }; /* "2026-01-31T12:00:00.123456Z" and its NUL */

int64_t sbx_now_us(void);
int64_t sbx_boot_us(void);
/* RFC 3339 in UTC with microseconds and Z. Returns out. */
char *sbx_time_format(int64_t us, char out[SBX_TIME_TEXT]);
/* RFC 3339, also with a space for the T, without seconds' fraction, or without a zone, which is
 * UTC. Digits beyond microseconds are dropped. Returns 0, or -1 when it is no such time, or before
 * 1970. */
int sbx_time_parse(const char *text, int64_t *ret_us);
/* The machine's boot id (36 characters), read once; "unknown" when it cannot be read. */
const char *sbx_boot_id(void);

#endif
