/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting inside a driver, as struct rt_waiting asks for it. */
#ifndef SBX_RUNTIMES_WAITING_I_H
#define SBX_RUNTIMES_WAITING_I_H

#include <poll.h>

#include "runtimes/runtimes.h"

enum { RT_WAIT_FDS = 4 }; /* the most descriptors of one wait */

/* Waits until one of p[0..n) has an event: how many have. 0: the boot-clock time until_us has come
 * first. -SBX_E_INTERRUPTED: somebody does not want to wait any longer. w NULL: nobody else. */
int rt_wait(const struct rt_waiting *w, struct pollfd *p, size_t n, int64_t until_us, bool counts);

#endif
