/* SPDX-License-Identifier: Apache-2.0 */
/* The system call filter of a command, the same in every kind of sandbox (namespace/filter.def). */
#ifndef SBX_RUNTIMES_FILTER_I_H
#define SBX_RUNTIMES_FILTER_I_H

#include <stddef.h>

#include "base/error.h"

struct sock_filter;

/* Built once per process; borrowed. */
int ns_filter_get(const struct sock_filter **ret, size_t *ret_len, struct sbx_error *e);

#endif
