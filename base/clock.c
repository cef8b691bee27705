/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
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

/* The n lowest digits of v, and what follows them. */
static char *put_digits(char *out, int n, int v, char behind)
{
	for (int i = n - 1; i >= 0; i--, v /= 10)
		out[i] = (char)('0' + v % 10);
	out[n] = behind;
	return out + n + 1;
}

/* By hand: strftime and snprintf were a tenth of what a run's status costs. */
char *sbx_time_format(int64_t us, char out[SBX_TIME_TEXT])
{
	time_t sec = (time_t)(us / SBX_SECOND_US);
	int64_t frac = us % SBX_SECOND_US;
	struct tm tm;
	char *p = out;

	if (frac < 0) {
		frac += SBX_SECOND_US;
		sec--;
	}
	if (!gmtime_r(&sec, &tm) || tm.tm_year + 1900 > 9999 || tm.tm_year + 1900 < 0)
		memset(&tm, 0, sizeof(tm));
	p = put_digits(p, 4, tm.tm_year + 1900, '-');
	p = put_digits(p, 2, tm.tm_mon + 1, '-');
	p = put_digits(p, 2, tm.tm_mday, 'T');
	p = put_digits(p, 2, tm.tm_hour, ':');
	p = put_digits(p, 2, tm.tm_min, ':');
	p = put_digits(p, 2, tm.tm_sec, '.');
	*put_digits(p, 6, (int)frac, 'Z') = '\0';
	return out;
}

/* Exactly n digits at *p, which moves behind them. */
static bool digits(const char **p, int n, int *ret)
{
	for (*ret = 0; n > 0; n--, ++*p) {
		if (**p < '0' || **p > '9')
			return false;
		*ret = *ret * 10 + (**p - '0');
	}
	return true;
}

static bool mark(const char **p, const char *one_of)
{
	return **p && strchr(one_of, **p) && ++*p;
}

static int64_t fraction(const char **p)
{
	int64_t us = 0, unit = SBX_SECOND_US / 10;

	if (**p != '.' && **p != ',')
		return 0;
	for (++*p; **p >= '0' && **p <= '9'; ++*p, unit /= 10)
		us += unit * (**p - '0');
	return us;
}

/* Seconds east of UTC. A + that came through a query as a space is still one. */
static bool zone(const char **p, int64_t *ret)
{
	int hours, minutes = 0;
	bool west = **p == '-';

	*ret = 0;
	if (!**p || mark(p, "Zz"))
		return true;
	if (!mark(p, "+- ") || !digits(p, 2, &hours))
		return false;
	(void)mark(p, ":");
	if (**p && !digits(p, 2, &minutes))
		return false;
	*ret = (west ? -1 : 1) * (hours * INT64_C(3600) + minutes * INT64_C(60));
	return hours < 24 && minutes < 60;
}

int sbx_time_parse(const char *text, int64_t *ret_us)
{
	struct tm tm = { 0 };
	const char *p = text;
	int64_t us, east;
	time_t sec;
	int day, month;

	if (!digits(&p, 4, &tm.tm_year) || !mark(&p, "-") || !digits(&p, 2, &month) ||
	    !mark(&p, "-") || !digits(&p, 2, &day) || !mark(&p, "Tt ") ||
	    !digits(&p, 2, &tm.tm_hour) || !mark(&p, ":") || !digits(&p, 2, &tm.tm_min) ||
	    !mark(&p, ":") || !digits(&p, 2, &tm.tm_sec))
		return -1;
	us = fraction(&p);
	if (!zone(&p, &east) || *p || tm.tm_hour > 23 || tm.tm_min > 59 || tm.tm_sec > 59)
		return -1;
	tm.tm_year -= 1900;
	tm.tm_mon = month - 1;
	tm.tm_mday = day;
	sec = timegm(&tm);
	/* timegm carries what is too much; a date that it changed was none. */
	if (tm.tm_mon != month - 1 || tm.tm_mday != day || sec - east < 0)
		return -1;
	*ret_us = (int64_t)(sec - east) * SBX_SECOND_US + us;
	return 0;
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
