/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sandboxes made while nobody waits for one, and taken down likewise. One is always ready; when
 * orders come in a row, faster than a sandbox is made, half as many again are kept as were wanted
 * in one row, until nothing has run for a while. So a burst mostly executes, and pays for its
 * sandboxes afterwards, or while a run takes longer.
 */
#include "runtimes/runner/runner_i.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"

/* After so long without a run a burst is no longer to be expected. */
#define CALM_US (600 * SBX_SECOND_US)

/* An order that comes within it belongs to the same burst; longer than a run that does nothing
 * takes, so that runners that turn over do not take the CPU from those who wait. */
#define REST_MS 100

static const struct rt_driver *driver_of(const struct rt_sandbox *sb)
{
	return ((const struct rt_sandbox_base *)sb)->driver;
}

static void destroy(struct rt_sandbox *sb)
{
	if (sb)
		driver_of(sb)->destroy(sb);
}

static bool may_linger(struct rt_sandbox *sb)
{
	const struct rt_driver *d = driver_of(sb);

	return d->may_stock && d->may_linger && d->may_linger(sb);
}

/* Within that time; -1 is for ever. */
static bool order_comes(const struct runner *r, int timeout_ms)
{
	struct pollfd p = { .fd = r->door, .events = POLLIN };

	return poll(&p, 1, timeout_ms) > 0;
}

/* While a sandbox is made ahead: an order goes first, and a door that is gone wants none. */
static int64_t while_idle(void *ctx, bool counts)
{
	(void)counts;
	return order_comes(ctx, 0) ? RT_GIVE_UP : INT64_MAX;
}

/* A sandbox for whatever comes next. Not being able to make one is not the end: the run that
 * comes will say why. */
static struct rt_sandbox *make(struct runner *r)
{
	const struct rt_driver *d = rt_driver_find(r->settings->default_runtime);
	const struct rt_waiting waiting = { .bell = r->door, .turn = while_idle, .ctx = r };
	struct rt_sandbox *sb = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;

	r->host.waiting = &waiting;
	if (d && d->create(&r->host, &sb, &e) < 0)
		sbx_log(SBX_LOG_WARNING, "cannot prepare a sandbox ahead code=%s error=\"%s\"",
			sbx_code_name(e.code), e.message);
	r->host.waiting = NULL;
	return sb;
}

void stock_take(struct runner *r)
{
	struct stock *s = &r->stock;

	if (!r->sandbox)
		r->sandbox = s->n ? s->ready[--s->n] : make(r);
	if (r->sandbox)
		r->driver = driver_of(r->sandbox);
}

void stock_used(struct runner *r)
{
	struct stock *s = &r->stock;
	struct rt_sandbox *sb = sbx_steal(&r->sandbox);

	s->row++;
	s->last_us = sbx_boot_us();
	if (sb && s->n_used < (size_t)r->settings->spare_sandboxes && may_linger(sb))
		s->used[s->n_used++] = sb;
	else
		destroy(sb);
}

/* One step towards what should be there. False: it is there, or cannot be had. */
static bool step(struct runner *r)
{
	struct stock *s = &r->stock;
	struct rt_sandbox *sb;

	if (s->n_used) {
		destroy(s->used[--s->n_used]);
		return true;
	}
	if (s->n > s->wanted) {
		destroy(s->ready[--s->n]);
		return true;
	}
	sb = s->n < s->wanted ? make(r) : NULL;
	if (sb)
		s->ready[s->n++] = sb;
	return sb;
}

/* The row is over. The one that was ready before it does not count, and of the next burst another
 * runner may get fewer and this one more: hence half as many again. */
static void learn(struct runner *r)
{
	struct stock *s = &r->stock;
	size_t most = (size_t)r->settings->spare_sandboxes, more = s->row - 1;

	s->row = 0;
	if (more <= s->wanted || !r->sandbox || !driver_of(r->sandbox)->may_stock)
		return;
	more += more / 2;
	s->wanted = more < most ? more : most;
}

int64_t stock_tend(struct runner *r)
{
	struct stock *s = &r->stock;

	for (;;) {
		if (order_comes(r, 0))
			return 0;
		if (s->n && sbx_boot_us() >= s->last_us + CALM_US)
			s->wanted = 0;
		if (step(r))
			continue;
		if (s->row == 0)
			return s->n ? s->last_us + CALM_US : INT64_MAX;
		learn(r);
	}
}

void stock_wait(struct runner *r)
{
	int64_t until;

	if (r->stock.row && order_comes(r, REST_MS))
		return;
	while ((until = stock_tend(r)) != 0 && until != INT64_MAX) {
		int64_t left = (until - sbx_boot_us()) / 1000 + 1;

		(void)order_comes(r, left > 0 ? (int)left : 0);
	}
}

int64_t stock_shed(struct runner *r, int64_t since_us)
{
	struct stock *s = &r->stock;
	int64_t at = since_us + REST_MS * INT64_C(1000);

	if (s->n_used && sbx_boot_us() >= at)
		destroy(s->used[--s->n_used]);
	return s->n_used ? at : INT64_MAX;
}

void stock_clear(struct runner *r)
{
	struct stock *s = &r->stock;

	while (s->n_used)
		destroy(s->used[--s->n_used]);
	while (s->n)
		destroy(s->ready[--s->n]);
	destroy(sbx_steal(&r->sandbox));
}
