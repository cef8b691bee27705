/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

static enum sbx_level max_level = SBX_LOG_INFO;
static const char *program = "sandboxfs";

void sbx_log_set_level(enum sbx_level level)
{
	max_level = level;
}

void sbx_log_set_program(const char *name)
{
	program = name;
}

static const char *level_name(enum sbx_level level)
{
	switch (level) {
	case SBX_LOG_ERROR:
		return "error";
	case SBX_LOG_WARNING:
		return "warning";
	case SBX_LOG_INFO:
		return "info";
	case SBX_LOG_DEBUG:
		return "debug";
	}
	return "info";
}

void sbx_log(enum sbx_level level, const char *fmt, ...)
{
	char line[1024], when[SBX_TIME_TEXT];
	int saved = errno;
	va_list ap;
	size_t n;
	int r;

	if (level > max_level)
		return;
	sbx_time_format(sbx_now_us(), when);
	r = snprintf(line, sizeof(line), "time=%s level=%s prog=%s pid=%d ", when,
		     level_name(level), program, (int)getpid());
	n = r > 0 ? (size_t)r : 0;
	va_start(ap, fmt);
	r = vsnprintf(line + n, sizeof(line) - n - 1, fmt, ap);
	va_end(ap);
	if (r > 0)
		n += (size_t)r;
	if (n > sizeof(line) - 2)
		n = sizeof(line) - 2;
	for (size_t i = 0; i < n; i++) /* a client's text must not forge a line */
		if ((unsigned char)line[i] < 0x20)
			line[i] = ' ';
	line[n++] = '\n';
	if (write(STDERR_FILENO, line, n) < 0) {
		/* Nowhere left to say so. */
	}
	errno = saved;
}
