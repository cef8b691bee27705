/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SBX_BASE_PROCESS_H
#define SBX_BASE_PROCESS_H

#include "base/error.h"

/* The first thing that a service does: its name in log lines, every signal as at boot, files that
 * are its own, as many descriptors as it may have. program lives for ever. */
void sbx_process_init(const char *program);
/* From now on TERM, INT and HUP come through this descriptor (signalfd(2)), in every thread that is
 * started afterwards, and PIPE not at all. -1 with errno set. */
int sbx_process_signals(void);
/* To the service manager, when it wants to know (sd_notify(3)): that the service is ready, or that
 * it has begun to stop. Programs that this one starts cannot. */
void sbx_process_ready(void);
void sbx_process_stopping(void);
/* *ret becomes the path that an option was given, made absolute, instead of what it was.
 * INVALID_ARGUMENT when it is empty. */
int sbx_option_path(char **ret, const char *option, const char *value, struct sbx_error *e);
/* What the process should end with (sysexits.h): 0 for rc 0, else what e says, after it has been
 * printed to standard error. */
int sbx_exit_code(int rc, const struct sbx_error *e);

#endif
