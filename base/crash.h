/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Named moments at which a test kills the process. In a release build they are nothing; with the
 * meson option crash_points the environment variable SBX_CRASH_AT names the one that raises
 * SIGKILL.
 */
#ifndef SBX_BASE_CRASH_H
#define SBX_BASE_CRASH_H

#ifdef SBX_CRASH_POINTS
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static inline void crash_point(const char *name)
{
	const char *at = getenv("SBX_CRASH_AT");

	if (at && strcmp(at, name) == 0)
		(void)raise(SIGKILL);
}
#else
static inline void crash_point(const char *name)
{
	(void)name;
}
#endif

#endif
