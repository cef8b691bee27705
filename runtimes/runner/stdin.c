/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Input of the command: first what the spec gave, then, for an interactive run, what doors append
 * to the file `stdin` of the run. The file is the queue: it keeps order, survives every process,
 * and is the record of what was typed.
 */
#include "runtimes/runner/runner_i.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/clock.h"
#include "base/fs.h"

enum {
	BPS_MAX = 1 << 30,
	IDLE_MAX_SEC = 1000000000,
	RATE_WAIT_US = 10000, /* at least so long between two helpings */
};

void feeder_init(struct feeder *f, const struct ms_run_spec *spec, int fd)
{
	/* Bounds far above any use keep the arithmetic below from overflowing. */
	int64_t bps = spec->stdin_bps < BPS_MAX ? spec->stdin_bps : BPS_MAX;
	int64_t idle = spec->stdin_idle_timeout_sec < IDLE_MAX_SEC ? spec->stdin_idle_timeout_sec
								   : IDLE_MAX_SEC;

	*f = (struct feeder){
		.fd = fd,
		.spool = -1,
		.first = spec->stdin_data,
		.first_len = spec->stdin_len,
		.interactive = spec->interactive,
		.eof = f->eof, /* may have been asked for before the start */
		.bps = bps,
		.idle_us = spec->interactive && idle > 0 ? idle * SBX_SECOND_US : -1,
		.tokens = bps > 0 ? bps : 0,
	};
	f->last_us = f->tokens_at_us = sbx_boot_us();
}

void feeder_close(struct feeder *f)
{
	sbx_closep(&f->fd);
	sbx_closep(&f->spool);
}

/* How many bytes may go now under stdin_bps: a bucket of one second, refilled in microseconds so
 * that small rates are not rounded away. */
static size_t allowance(struct feeder *f, size_t want)
{
	int64_t now, add;

	if (f->bps < 0)
		return want;
	now = sbx_boot_us();
	add = (now - f->tokens_at_us) * f->bps / SBX_SECOND_US;
	if (add > 0) {
		f->tokens = f->tokens + add > f->bps ? f->bps : f->tokens + add;
		f->tokens_at_us = now;
	}
	return (int64_t)want > f->tokens ? (size_t)f->tokens : want;
}

/* 1: all given; 0: the pipe is full or the rate is used up (*ret_rate); -1: nobody reads. */
static int push(struct feeder *f, const void *data, size_t len, size_t *ret_done, bool *ret_rate)
{
	size_t may = allowance(f, len);
	ssize_t n;

	*ret_done = 0;
	if (may == 0) {
		*ret_rate = true;
		return 0;
	}
	n = write(f->fd, data, may);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -1;
	if (f->bps >= 0)
		f->tokens -= n;
	f->last_us = sbx_boot_us();
	*ret_done = (size_t)n;
	*ret_rate = may < len && (size_t)n == may;
	return (size_t)n == len;
}

/* The same with the next bytes of the spool. 2: the spool has no more for now. */
static int push_spool(struct feeder *f, struct store *s, const char *run_id, bool *ret_rate)
{
	char buf[16 << 10];
	size_t done;
	ssize_t n;
	int r;

	if (f->spool < 0) {
		sbx_autoclose int dir = store_run_dir(s, run_id, false, NULL);

		f->spool = dir < 0 ? -1 : sbx_open_beneath(dir, "stdin", O_RDONLY, 0);
	}
	if (f->spool < 0)
		return 2;
	n = pread(f->spool, buf, sizeof(buf), f->given);
	if (n <= 0)
		return 2;
	r = push(f, buf, (size_t)n, &done, ret_rate);
	f->given += (int64_t)done;
	return r;
}

/* As push: what is left of the input that the spec gave. */
static int push_first(struct feeder *f, bool *ret_rate)
{
	size_t done;
	int r = push(f, f->first + f->first_off, f->first_len - f->first_off, &done, ret_rate);

	f->first_off += done;
	return r;
}

int64_t feeder_pump(struct feeder *f, struct store *s, const char *run_id, bool *ret_want_out,
		    bool *ret_idle)
{
	bool rate = false;
	int r = 1;

	*ret_want_out = *ret_idle = false;
	while (f->fd >= 0 && r == 1) {
		if (f->first_off < f->first_len)
			r = push_first(f, &rate);
		else
			r = f->interactive ? push_spool(f, s, run_id, &rate) : 2;
	}
	if (f->fd < 0)
		return INT64_MAX;
	if (r < 0 || (r == 2 && (!f->interactive || f->eof))) {
		feeder_close(f);
		return INT64_MAX;
	}
	if (r == 0 && !rate) {
		*ret_want_out = true;
		return INT64_MAX;
	}
	if (rate && f->bps > 0) { /* when the bucket has a byte more */
		int64_t wait = SBX_SECOND_US / f->bps + 1;

		return sbx_boot_us() + (wait > RATE_WAIT_US ? wait : RATE_WAIT_US);
	}
	if (rate)
		return INT64_MAX;
	if (f->idle_us < 0)
		return INT64_MAX;
	if (sbx_boot_us() - f->last_us >= f->idle_us) {
		*ret_idle = true;
		feeder_close(f);
		return INT64_MAX;
	}
	return f->last_us + f->idle_us;
}
