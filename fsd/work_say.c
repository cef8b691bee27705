/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this mount says of how well it watches workspaces, to whoever reads health. What happened
 * once is said there for ten minutes, so that it happens again need be said only now and then.
 */
#include "fsd/work_watch_i.h"

#include "base/clock.h"
#include "base/log.h"

enum { SAY_EVERY_US = 10000000 };

static bool say_now(struct fsd *f, const struct orch_watching *what)
{
	sbx_autoerror e = SBX_ERROR_INIT;

	if (orch_watching_say(f->orch, what, &e) == 0)
		return true;
	sbx_log(SBX_LOG_WARNING, "cannot say how workspaces are watched error=\"%s\"", e.message);
	return false;
}

int64_t work_say(struct work_watch *w)
{
	struct orch_watching now = { .unavailable = false };

	if (!atomic_load(&w->unsaid))
		return INT64_MAX;
	if (w->said_us && sbx_boot_us() < w->said_us + SAY_EVERY_US)
		return w->said_us + SAY_EVERY_US;
	atomic_store(&w->unsaid, false); /* before the times are read: what comes now is new */
	now.unwatched_us = atomic_load(&w->unwatched_us);
	now.lost_us = atomic_load(&w->lost_us);
	store_give_up_when(&w->stopping);
	if (!say_now(w->t->f, &now))
		atomic_store(&w->unsaid, true);
	store_give_up_when(NULL);
	w->said_us = sbx_boot_us();
	return atomic_load(&w->unsaid) ? w->said_us + SAY_EVERY_US : INT64_MAX;
}

void work_say_none(struct fsd *f)
{
	const struct orch_watching none = { .unavailable = true };

	(void)say_now(f, &none);
}

void work_say_no_more(struct fsd *f)
{
	static const atomic_bool at_once = true;

	store_give_up_when(&at_once);
	(void)say_now(f, NULL);
	store_give_up_when(NULL);
}
