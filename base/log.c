/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/clock.h"

static const struct {
	enum sbx_level level;
	const char *name;
} levels[] = {
	{ SBX_LOG_ERROR, "error" },
	{ SBX_LOG_WARNING, "warning" },
	{ SBX_LOG_INFO, "info" },
	{ SBX_LOG_DEBUG, "debug" },
};

static atomic_int max_level = SBX_LOG_INFO;
static const char *program = "sandboxfs";

bool sbx_log_set_level(const char *name)
{
	for (size_t i = 0; i < SBX_COUNT(levels); i++)
		if (strcmp(levels[i].name, name) == 0) {
			atomic_store_explicit(&max_level, (int)levels[i].level,
					      memory_order_relaxed);
			return true;
		}
	return false;
}

void sbx_log_set_program(const char *name)
{
	program = name;
}

static const char *level_name(enum sbx_level level)
{
	for (size_t i = 0; i < SBX_COUNT(levels); i++)
		if (levels[i].level == level)
			return levels[i].name;
	return "info";
}

void sbx_log(enum sbx_level level, const char *fmt, ...)
{
	char line[1024], when[SBX_TIME_TEXT];
	int saved = errno;
	va_list ap;
	size_t n;
	int r;

	if ((int)level > atomic_load_explicit(&max_level, memory_order_relaxed))
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
