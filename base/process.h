/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SBX_BASE_PROCESS_H
#define SBX_BASE_PROCESS_H

#include "base/error.h"

/* The first thing that a service does: its name in log lines, every signal as at boot, files that
 * are its own, as many descriptors as it may have. program lives for ever. */
void sbx_process_init(const char *program);
/* What the process should end with (sysexits.h): 0 for rc 0, else what e says, after it has been
 * printed to standard error. */
int sbx_exit_code(int rc, const struct sbx_error *e);

#endif
