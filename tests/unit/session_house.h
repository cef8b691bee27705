/* SPDX-License-Identifier: Apache-2.0 */
/* A state directory with sessions in it, and no door and no runner. */
#ifndef SBX_TESTS_SESSION_HOUSE_H
#define SBX_TESTS_SESSION_HOUSE_H

#include "policy_util.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/id.h"
#include "orchestrator/session_i.h"

__attribute__((unused)) static const struct orch_principal ann = { .user = "ann",
								   .uid = -1,
								   .door = "api" };
__attribute__((unused)) static const struct orch_principal bob = { .user = "bob",
								   .uid = -1,
								   .door = "api" };
__attribute__((unused)) static const struct orch_principal root = {
	.user = "root", .uid = 0, .admin = true, .door = "fs"
};

struct house {
	char dir[64];
	struct orch o;
	struct orch_config config;
};

/* Opens the store on h->dir, as a process does that starts. */
static int open_house(struct house *h)
{
	sbx_autoerror e = SBX_ERROR_INIT;

	if (store_open(h->dir, NULL, &h->o.store, &e) < 0)
		return -1;
	h->config.settings = settings(NULL);
	h->config.preflights = preflights("{" NAMESPACE "}");
	atomic_store(&h->o.config, &h->config);
	h->o.state_dir = h->dir;
	h->o.workers = 2;
	(void)pthread_mutex_init(&h->o.settle_lock, NULL);
	return 0;
}

static void close_house(struct house *h)
{
	store_close(sbx_steal(&h->o.store));
	(void)orch_settings_free(sbx_steal(&h->config.settings));
	(void)orch_preflights_free(atomic_exchange(&h->config.preflights, NULL));
}

static int build(void **state)
{
	struct house *h = calloc(1, sizeof(*h));

	if (!h || clean_environment(NULL) < 0)
		return -1;
	(void)snprintf(h->dir, sizeof(h->dir), "/tmp/sbx-sessions-XXXXXX");
	if (!mkdtemp(h->dir) || open_house(h) < 0)
		return -1;
	*state = h;
	return 0;
}

static int clear(void **state)
{
	struct house *h = *state;

	close_house(h);
	(void)sbx_remove_tree(AT_FDCWD, h->dir);
	free(h);
	return 0;
}

#define MUST(call)                                                                                 \
	do {                                                                                       \
		sbx_autoerror err_ = SBX_ERROR_INIT;                                               \
		struct sbx_error *e = &err_;                                                       \
		if ((call) < 0)                                                                    \
			fail_msg("%s: %s", #call, e->message);                                     \
	} while (0)
#define FAILS_WITH(code, call)                                                                     \
	do {                                                                                       \
		sbx_autoerror err_ = SBX_ERROR_INIT;                                               \
		struct sbx_error *e = &err_;                                                       \
		assert_int_equal((call), -SBX_E_##code);                                           \
	} while (0)

__attribute__((unused)) static int make(struct house *h, const struct orch_principal *p,
					const char *text, const char *entry,
					struct orch_session_made *ret, struct sbx_error *e)
{
	const struct orch_request rq = { .text = text,
					 .len = strlen(text),
					 .refuse_unknown = true };

	return orch_session_create(&h->o, p, &rq, entry, ret, e);
}

__attribute__((unused)) static int submit(struct house *h, const struct orch_principal *p,
					  const char *session, char id[37], struct sbx_error *e)
{
	sbx_autofree char *text = NULL;
	struct orch_submitted got;
	struct orch_request rq = { .refuse_unknown = true };
	int rc;

	assert_true(asprintf(&text, "{\"session_id\":\"%s\",\"command\":[\"true\"]}", session) > 0);
	rq.text = text;
	rq.len = strlen(text);
	rc = orch_submit(&h->o, p, &rq, &got, e);
	memcpy(id, got.id, 37);
	return rc;
}

__attribute__((unused)) static void start_keeper(struct house *h)
{
	atomic_store(&h->o.stop, false);
	MUST(session_keeper_start(&h->o, e));
}

__attribute__((unused)) static void stop_keeper(struct house *h)
{
	atomic_store(&h->o.stop, true);
	session_keeper_stop(&h->o);
}

/* Until that thread of ours, whose number comes, sleeps. */
__attribute__((unused)) static void wait_asleep(_Atomic pid_t *tid)
{
	char state = '?', path[64], text[256];
	int asleep = 0;

	while (!atomic_load(tid))
		(void)sched_yield();
	(void)snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)*tid);
	/* Seen so a few times in a row, it is not just some short lock. */
	while (asleep < 1000) {
		sbx_autoclose int fd = open(path, O_RDONLY | O_CLOEXEC);
		ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
		const char *p;

		assert_true(n > 0);
		text[n > 0 ? n : 0] = '\0';
		p = strrchr(text, ')');
		state = p ? p[2] : '?';
		asleep = state == 'S' || state == 'D' ? asleep + 1 : 0;
		(void)sched_yield();
	}
}

__attribute__((unused)) static bool there(struct house *h, const char *id)
{
	char path[160];

	(void)snprintf(path, sizeof(path), "%s/sessions/%s/workspace", h->dir, id);
	return access(path, F_OK) == 0;
}

#endif
