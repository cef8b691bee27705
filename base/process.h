/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SBX_BASE_PROCESS_H
#define SBX_BASE_PROCESS_H

/* The first thing that a service does: its name in log lines, every signal as at boot, files that
 * are its own, as many descriptors as it may have. program lives for ever. */
void sbx_process_init(const char *program);

#endif
