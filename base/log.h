/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One key=value line per event on stderr. Libraries return errors; whoever handles
 * an error logs it, once. Thread-safe: a line is one write(2).
 */
#ifndef SBX_BASE_LOG_H
#define SBX_BASE_LOG_H

#include <stdbool.h>

enum sbx_level {
	SBX_LOG_ERROR = 3, /* the numbers of syslog(3) */
	SBX_LOG_WARNING = 4,
	SBX_LOG_INFO = 6,
	SBX_LOG_DEBUG = 7,
};

/* "error", "warning", "info", as at first, or "debug": less important lines are dropped from now
 * on, in every thread. False: there is no such level. */
bool sbx_log_set_level(const char *name);
/* Name shown as prog=; the string must live for ever. */
void sbx_log_set_program(const char *name);
/* The message is printf style and should itself be key=value pairs after a first word. */
void sbx_log(enum sbx_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
