/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/auto.h"

static int64_t read_clock(clockid_t id)
{
	struct timespec ts = { 0, 0 };

	(void)clock_gettime(id, &ts);
	return (int64_t)ts.tv_sec * SBX_SECOND_US + ts.tv_nsec / 1000;
}

int64_t sbx_now_us(void)
{
	return read_clock(CLOCK_REALTIME);
}

int64_t sbx_boot_us(void)
{
	return read_clock(CLOCK_BOOTTIME);
}

char *sbx_time_format(int64_t us, char out[SBX_TIME_TEXT])
{
	time_t sec = (time_t)(us / SBX_SECOND_US);
	int64_t frac = us % SBX_SECOND_US;
	struct tm tm;
	size_t n;

	if (frac < 0) {
		frac += SBX_SECOND_US;
		sec--;
	}
	if (!gmtime_r(&sec, &tm))
		memset(&tm, 0, sizeof(tm));
	n = strftime(out, SBX_TIME_TEXT, "%Y-%m-%dT%H:%M:%S", &tm);
	(void)snprintf(out + n, SBX_TIME_TEXT - n, ".%06dZ", (int)frac);
	return out;
}

static char boot_id[37] = "unknown";

static void load_boot_id(void)
{
	sbx_autoclose int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	char text[36];

	if (fd >= 0 && read(fd, text, sizeof(text)) == (ssize_t)sizeof(text))
		memcpy(boot_id, text, sizeof(text));
}

const char *sbx_boot_id(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	(void)pthread_once(&once, load_boot_id);
	return boot_id;
}
