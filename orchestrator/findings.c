/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the runtimes say about this host. A door asks them by `sandbox-runner --preflight`. What a
 * door that executes was told also stands in the store, for those that only submit: they may run
 * without any right to try, and what counts is what the executing door can do.
 */
#include "orchestrator/orch_i.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "base/child.h"
#include "base/clock.h"
#include "base/log.h"

enum { PREFLIGHT_TIMEOUT_MS = 20000, PREFLIGHT_MAX = 256 << 10 };

#define SHARED	"preflight" /* a row of meta */
#define NOTHING "{}"	    /* what no answer at start counts as */

/* ---- asking ---------------------------------------------------------------------------------- */

/* Runs `sandbox-runner --preflight` and collects what it prints, for at most 20 s. */
static int spawn_preflight(const struct orch *o, const struct orch_config *c, int *ret_out,
			   pid_t *ret_pid)
{
	int fds[] = { SBX_SPAWN_NULL, -1, SBX_SPAWN_SAME, c->file }, p[2], r;
	size_t n = 0;
	sbx_autofree char **argv = calloc(8 + 2 * o->n_overrides, sizeof(*argv));

	if (!argv || pipe2(p, O_CLOEXEC) < 0)
		return errno;
	argv[n++] = o->runner;
	argv[n++] = (char *)(uintptr_t) "--preflight";
	argv[n++] = (char *)(uintptr_t) "--state";
	argv[n++] = o->state_dir;
	argv[n++] = (char *)(uintptr_t) "--config";
	argv[n++] = (char *)(uintptr_t) "/proc/self/fd/3";
	for (size_t i = 0; i < o->n_overrides; i++) {
		argv[n++] = (char *)(uintptr_t) "-o";
		argv[n++] = o->overrides[i];
	}
	fds[1] = p[1];
	r = sbx_spawn(argv, fds, SBX_COUNT(fds), false, ret_pid);
	close(p[1]);
	if (r != 0)
		close(p[0]);
	else
		*ret_out = p[0];
	return r;
}

static void collect(int fd, int64_t until_us, struct sbx_buf *out)
{
	struct pollfd pfd = { .fd = fd, .events = POLLIN };

	for (;;) {
		int64_t left = (until_us - sbx_boot_us()) / 1000;
		char *room = sbx_buf_reserve(out, 4096);
		ssize_t n;

		if (!room || left <= 0 || poll(&pfd, 1, (int)left) <= 0)
			return;
		n = read(fd, room, 4096);
		if (n <= 0)
			return;
		out->len += (size_t)n;
		out->data[out->len] = '\0';
	}
}

struct orch_preflights *findings_try(struct orch *o, const struct orch_config *c,
				     struct sbx_error *e)
{
	sbx_autobuf out = SBX_BUF_INIT(PREFLIGHT_MAX);
	sbx_autoclose int fd = -1;
	struct orch_preflights *p = NULL;
	pid_t pid = -1;
	int status = 0, r = spawn_preflight(o, c, &fd, &pid);

	if (r != 0) {
		sbx_fail_errno(e, SBX_E_RUNTIME_UNAVAILABLE, r, "cannot run '%s'", o->runner);
		return NULL;
	}
	collect(fd, sbx_boot_us() + PREFLIGHT_TIMEOUT_MS * INT64_C(1000), &out);
	/* It has printed everything or its time is over; what it started dies with it. */
	(void)kill(pid, SIGKILL);
	(void)waitpid(pid, &status, 0);
	if (orch_preflights_parse(out.len ? out.data : "", &p, e) == 0)
		return p;
	/* At a reload the old findings stay. At start no answer is an answer: nothing is available,
	 * and discovery says so. */
	if (orch_config(o))
		return NULL;
	sbx_error_clear(e);
	return orch_preflights_parse(NOTHING, &p, e) == 0 ? p : NULL;
}

/* ---- sharing --------------------------------------------------------------------------------- */

static void publish(struct orch *o, const char *text)
{
	store_autotx struct store_tx *tx = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;
	sbx_autofree char *before = NULL;
	int rc = store_begin(o->store, &tx, &e);

	if (rc == 0)
		rc = store_tx_meta_get(tx, SHARED, &before, &e);
	if (rc == 0 && before && strcmp(before, text) == 0)
		return;
	if (rc == 0)
		rc = store_tx_meta_set(tx, SHARED, text, &e);
	if (rc == 0)
		rc = store_commit(sbx_steal(&tx), false, &e);
	if (rc == 0)
		store_announce(o->store);
	else
		sbx_log(SBX_LOG_WARNING, "cannot tell other doors about the runtimes error=\"%s\"",
			e.message);
}

static void adopt(struct orch *o)
{
	struct orch_config *c = orch_config(o);
	struct orch_preflights *now = atomic_load(&c->preflights), *next = NULL;
	sbx_autofree char *text = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;

	if (store_meta_get(o->store, SHARED, &text, &e) < 0 || !text ||
	    strcmp(text, orch_preflights_text(now)) == 0)
		return;
	if (orch_preflights_parse(text, &next, &e) < 0) {
		sbx_log(SBX_LOG_WARNING, "what the executing door says of runtimes: error=\"%s\"",
			e.message);
		return;
	}
	orch_preflights_replace(next, now);
	/* The dispatcher and a reload may find the same news: one of them is enough. */
	if (!atomic_compare_exchange_strong(&c->preflights, &now, next)) {
		orch_preflights_replace(next, NULL);
		orch_preflights_free(next);
		return;
	}
	sbx_log(SBX_LOG_INFO, "runtimes are as the door that executes has found them");
}

void findings_share(struct orch *o)
{
	const char *text = orch_preflights_text(atomic_load(&orch_config(o)->preflights));

	if (orch_slots(o) == 0)
		adopt(o);
	else if (strcmp(text, NOTHING) != 0)
		publish(o, text);
}

void findings_follow(struct orch *o)
{
	if (orch_slots(o) == 0)
		adopt(o);
}
