/* SPDX-License-Identifier: Apache-2.0 */
/* May this run wait, may it start: limits of the queue, slots, caps and budgets, and whose turn it
 * is. */
#include "orchestrator/session_i.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crash.h"

enum { LINE_DEPTH = 16 }; /* runs of one user that are looked at when the first may not start */

int64_t orch_slots(struct orch *o)
{
	const struct orch_settings *st = orch_settings(o);

	if (!st->enable_execution)
		return 0;
	return o->workers >= 0 ? o->workers : st->max_concurrent_runs;
}

/* The scopes of a run in the order in which limits are looked at. */
static const char *scope_key(const struct store_run *r, enum store_scope scope)
{
	const char *const keys[STORE_SCOPE__COUNT] = {
		[STORE_SCOPE_ALL] = "",
		[STORE_SCOPE_USER] = r->user,
		[STORE_SCOPE_PERSONA] = r->persona_id,
		[STORE_SCOPE_WORKSPACE] = r->workspace_id,
		[STORE_SCOPE_GROUP] = r->workspace_group_id,
	};

	return keys[scope];
}

static int64_t retry_after(struct orch *o, int64_t queued)
{
	const struct orch_settings *st = orch_settings(o);
	int64_t slots = st->max_concurrent_runs > 0 ? st->max_concurrent_runs : 1;
	int64_t sec = (queued * st->queue_estimated_wait_per_run_sec + slots - 1) / slots;

	if (sec > st->queue_ttl_sec)
		sec = st->queue_ttl_sec;
	return sec < 1 ? 1 : sec;
}

static const struct {
	const char *reason, *scope, *what;
} text[STORE_SCOPE__COUNT] = {
	[STORE_SCOPE_ALL] = { "queue_capacity_exceeded", "global", "this host" },
	[STORE_SCOPE_USER] = { "user_queue_quota_exceeded", "user_id", "this user" },
	[STORE_SCOPE_PERSONA] = { "persona_queue_quota_exceeded", "persona_id", "this persona" },
	[STORE_SCOPE_WORKSPACE] = { "workspace_queue_quota_exceeded", "workspace_id",
				    "this workspace" },
	[STORE_SCOPE_GROUP] = { "workspace_group_queue_quota_exceeded", "workspace_group_id",
				"this workspace group" },
};

const char *admit_full_reason(enum store_scope scope)
{
	return text[scope].reason;
}

int admit_queue_limits(struct orch *o, struct store_tx *tx, const struct store_run *r,
		       int64_t *ret_queued, struct sbx_error *e)
{
	const struct orch_settings *st = orch_settings(o);
	const int64_t limits[STORE_SCOPE__COUNT] = {
		[STORE_SCOPE_ALL] = st->queue_max_length,
		[STORE_SCOPE_USER] = st->queue_max_per_user,
		[STORE_SCOPE_PERSONA] = st->queue_max_per_persona,
		[STORE_SCOPE_WORKSPACE] = st->queue_max_per_workspace,
		[STORE_SCOPE_GROUP] = st->queue_max_per_workspace_group,
	};

	for (enum store_scope s = STORE_SCOPE_ALL; s < STORE_SCOPE__COUNT; s++) {
		const char *key = scope_key(r, s);
		int64_t n = 0, after;
		int rc;

		/* Only the first limit means "refuse everything" when it is 0. */
		if (!key || (s != STORE_SCOPE_ALL && limits[s] <= 0))
			continue;
		rc = store_tx_count(tx, false, s, key, &n, e);
		if (rc < 0)
			return rc;
		if (s == STORE_SCOPE_ALL)
			*ret_queued = n;
		if (n < limits[s])
			continue;
		after = retry_after(o, n);
		orch_count_full(o, s, r->runtime);
		sbx_fail(e, SBX_E_QUEUE_FULL,
			 "%lld runs of %s are waiting, the limit is %lld; try again in %lld s",
			 (long long)n, text[s].what, (long long)limits[s], (long long)after);
		return sbx_error_details(e,
					 "{\"retry_after\":%lld,\"reason\":\"%s\","
					 "\"quota_scope\":\"%s\",\"limit\":%lld}",
					 (long long)after, text[s].reason, text[s].scope,
					 (long long)limits[s]);
	}
	return 0;
}

void admit_reservation(const struct ms_run_spec *spec, int64_t *memory_mb, int64_t *cpu_milli)
{
	/* A limit that was only filled in from the tier is a ceiling, not a wish: reserving it
	 * would let two default runs fill a host. The parent cgroup bounds the sum of what is
	 * really used. */
	bool memory = spec->present & (UINT64_C(1) << MS_F_MEMORY_MB);
	bool cpu = spec->present & (UINT64_C(1) << MS_F_CPU);

	*memory_mb = memory && spec->memory_mb > 0 ? spec->memory_mb : 0;
	*cpu_milli = cpu && spec->cpu > 0 ? (int64_t)(spec->cpu * 1000) : 0;
}

static int64_t memory_budget_mb(const struct orch_settings *st)
{
	int64_t pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);

	if (st->host_memory_budget_mb > 0)
		return st->host_memory_budget_mb;
	return (pages / 10 * 9) / ((1 << 20) / size);
}

static int64_t cpu_budget_milli(const struct orch_settings *st)
{
	if (st->host_cpu_budget > 0)
		return (int64_t)(st->host_cpu_budget * 1000);
	return sysconf(_SC_NPROCESSORS_ONLN) * 4000;
}

/* Fits into what the host has left; a run that is alone always fits. */
static int within_budget(struct orch *o, struct store_tx *tx, int64_t active, int64_t memory_mb,
			 int64_t cpu_milli, bool *ret, struct sbx_error *e)
{
	const struct orch_settings *st = orch_settings(o);
	int64_t memory = 0, cpu = 0;
	int rc;

	*ret = true;
	if (active == 0 || (memory_mb == 0 && cpu_milli == 0))
		return 0;
	rc = store_tx_reserved(tx, &memory, &cpu, e);
	if (rc == 0)
		*ret = memory + memory_mb <= memory_budget_mb(st) &&
		       cpu + cpu_milli <= cpu_budget_milli(st);
	return rc;
}

/* One run at a time may change a workspace, unless its session says otherwise. */
static int session_free(struct store_tx *tx, const char *id, bool *ret, struct sbx_error *e)
{
	store_autosession s = { 0 };
	int64_t active = 0;
	int rc = store_tx_session_get(tx, id, &s, e);

	*ret = true;
	if (rc == -SBX_E_SESSION_NOT_FOUND) { /* it will fail, and say so */
		sbx_error_clear(e);
		return 0;
	}
	if (rc == 0 && !s.concurrent)
		rc = store_tx_session_runs(tx, id, true, &active, e);
	*ret = active == 0 && s.ending_us != STORE_ENDING_LOST;
	return rc;
}

int admit_allowed(struct orch *o, struct store_tx *tx, const struct store_run *r, bool *ret,
		  struct sbx_error *e)
{
	const struct orch_settings *st = orch_settings(o);
	const int64_t limits[STORE_SCOPE__COUNT] = {
		[STORE_SCOPE_ALL] = st->max_concurrent_runs,
		[STORE_SCOPE_USER] = st->active_max_per_user,
		[STORE_SCOPE_PERSONA] = st->active_max_per_persona,
		[STORE_SCOPE_WORKSPACE] = st->active_max_per_workspace,
		[STORE_SCOPE_GROUP] = st->active_max_per_workspace_group,
	};
	int64_t active = 0;

	*ret = false;
	for (enum store_scope s = STORE_SCOPE_ALL; s < STORE_SCOPE__COUNT; s++) {
		const char *key = scope_key(r, s);
		int64_t n = 0;
		int rc;

		if (!key || (s != STORE_SCOPE_ALL && limits[s] <= 0))
			continue;
		rc = store_tx_count(tx, true, s, key, &n, e);
		if (rc < 0)
			return rc;
		if (s == STORE_SCOPE_ALL)
			active = n;
		if (n >= limits[s])
			return 0;
	}
	if (r->session_id) {
		bool is_free = false;
		int rc = session_free(tx, r->session_id, &is_free, e);

		if (rc < 0 || !is_free)
			return rc;
	}
	return within_budget(o, tx, active, r->reserved_memory_mb, r->reserved_cpu_milli, ret, e);
}

/* The first of a user's line that may start: what a persona, a workspace or a session holds back
 * must not hold back the rest. */
static int find_in_line(struct orch *o, struct store_tx *tx, const char *user,
			struct store_run *run, bool *ret, struct sbx_error *e)
{
	int64_t after = 0;
	int rc = 0;

	for (int n = 0; n < LINE_DEPTH && rc == 0 && !*ret; n++) {
		store_run_clear(run);
		rc = store_tx_queue_head(tx, user, after, run, e);
		if (rc == -SBX_E_RUN_NOT_FOUND) {
			sbx_error_clear(e);
			return 0;
		}
		if (rc == 0)
			rc = admit_allowed(o, tx, run, ret, e);
		after = run->row;
	}
	return rc;
}

/* The next user with a run that may start, beginning behind the user served last. */
static int find_next(struct orch *o, struct store_tx *tx, struct store_run *run, bool *ret,
		     struct sbx_error *e)
{
	sbx_autofree char *at = NULL;
	bool wrapped = false;
	sbx_autofree char *first = NULL;
	int rc = store_tx_meta_get(tx, "rr_user", &at, e);

	*ret = false;
	while (rc == 0) {
		char *user = NULL;

		rc = store_tx_queue_next_user(tx, at, &user, e);
		if (rc == 0 && !user) {
			if (wrapped || !at)
				return 0;
			wrapped = true;
			free(sbx_steal(&at));
			continue;
		}
		if (rc < 0)
			return rc;
		free(at);
		at = user;
		if (first && strcmp(first, user) == 0)
			return 0; /* once round */
		if (!first)
			first = strdup(user);
		if (!first)
			return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
		rc = find_in_line(o, tx, user, run, ret, e);
		if (rc < 0 || *ret)
			return rc;
	}
	return rc;
}

static int claim_next(struct orch *o, struct store_tx *tx, struct admitted *a, bool *ret,
		      struct sbx_error *e)
{
	store_autorun run = { 0 };
	struct store_transition t;
	bool found = false;
	int rc = find_next(o, tx, &run, &found, e);

	*ret = false;
	if (rc < 0 || !found)
		return rc;
	t = (struct store_transition){
		.id = run.id,
		.from = STORE_MASK(STORE_QUEUED),
		.generation = run.generation,
		.to = STORE_STARTING,
		.reason = "starting",
		.started_us = sbx_now_us(),
		.claim_owner = a->owner,
		.claim_boot = sbx_boot_id(),
		.claim_expires_us =
			sbx_boot_us() + orch_settings(o)->run_claim_lease_sec * SBX_SECOND_US,
	};
	rc = store_tx_run_transition(tx, &t, ret, e);
	if (rc == 0 && *ret)
		rc = store_tx_meta_set(tx, "rr_user", run.user, e);
	/* A queued run changes when it enters the queue, and not again before it is claimed. */
	if (rc == 0 && *ret)
		orch_count_wait(o, run.runtime, t.started_us - run.changed_us);
	(void)snprintf(a->id, sizeof(a->id), "%s", run.id);
	a->generation = run.generation + 1;
	return rc;
}

int admit_next(struct orch *o, struct admitted *list, size_t n, size_t *ret_n, struct sbx_error *e)
{
	store_autotx struct store_tx *tx = NULL;
	bool claimed = true;
	size_t got = 0;
	int rc = store_begin(o->store, &tx, e);

	*ret_n = 0;
	while (rc == 0 && got < n && claimed) {
		rc = claim_next(o, tx, &list[got], &claimed, e);
		got += claimed;
	}
	if (rc < 0 || got == 0)
		return rc;
	crash_point("door_dispatch_claimed");
	rc = store_commit(sbx_steal(&tx), false, e);
	if (rc == 0)
		*ret_n = got;
	return rc;
}
