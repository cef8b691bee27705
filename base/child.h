/* SPDX-License-Identifier: Apache-2.0 */
/* Starting a program with exactly the descriptors that it is to have. */
#ifndef SBX_BASE_CHILD_H
#define SBX_BASE_CHILD_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum {
	SBX_SPAWN_NULL = -1, /* /dev/null */
	SBX_SPAWN_SAME = -2, /* what has this number here */
	SBX_SPAWN_FDS = 8,   /* the most that a program is given */
};

/*
 * Executes argv[0], a path, with our environment. fds[i] becomes its descriptor i, for i below n;
 * nothing else is open in it, whatever a careless library has left open here. They may have any
 * numbers here, and stay the caller's. Every signal is as at boot, and blocked is none. `session`:
 * in one of its own, so that no key on our terminal reaches it. 0, or an errno.
 */
int sbx_spawn(char *const *argv, const int *fds, size_t n, bool session, pid_t *ret);

#endif
