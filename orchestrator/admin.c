/* SPDX-License-Identifier: Apache-2.0 */
/* What the service says of itself: health, metrics, and the operators' views. */
#include "orchestrator/orch_i.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"

static int done(struct sbx_buf *out, struct sbx_error *e)
{
	return sbx_buf_failed(out) ? sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the answer") : 0;
}

int orch_view_health(struct orch *o, struct sbx_buf *out, struct sbx_error *e)
{
	int64_t queued = 0, active = 0, t0 = sbx_boot_us(), t1;
	sbx_autoerror why = SBX_ERROR_INIT;
	char now[SBX_TIME_TEXT];
	int rc = store_counts(o->store, &queued, &active, &why);

	t1 = sbx_boot_us();
	sbx_buf_printf(out,
		       "{\"ok\":%s,\"time\":\"%s\",\"uptime_sec\":%lld,\"version\":\"%s\","
		       "\"store\":{\"ok\":%s,\"mode\":\"sqlite\",\"read_us\":%lld,\"error\":",
		       rc == 0 ? "true" : "false", sbx_time_format(sbx_now_us(), now),
		       (long long)((sbx_now_us() - o->opened_us) / SBX_SECOND_US), SBX_VERSION,
		       rc == 0 ? "true" : "false", (long long)(t1 - t0));
	sbx_buf_json_strz(out, rc == 0 ? NULL : why.message);
	sbx_buf_printf(out,
		       "},\"queue\":{\"queued\":%lld,\"active\":%lld,\"slots\":%lld},"
		       "\"execution\":%s}\n",
		       (long long)queued, (long long)active, (long long)orch_slots(o),
		       orch_slots(o) > 0 ? "true" : "false");
	return done(out, e);
}

static void metric(struct sbx_buf *out, const char *name, const char *type, const char *help,
		   long long value)
{
	sbx_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n%s %lld\n", name, help, name, type, name,
		       value);
}

int orch_view_metrics(struct orch *o, struct sbx_buf *out, struct sbx_error *e)
{
	int64_t by_phase[STORE_PHASE__COUNT] = { 0 }, queued = 0, active = 0, total = 0;
	int rc = store_phase_counts(o->store, by_phase, e);

	if (rc == 0)
		rc = store_counts(o->store, &queued, &active, e);
	if (rc < 0)
		return rc;
	for (int i = STORE_QUEUED; i < STORE_PHASE__COUNT; i++)
		total += by_phase[i];
	metric(out, "sandbox_runs_submitted_total", "counter", "Runs accepted.", total);
	metric(out, "sandbox_runs_started_total", "counter", "Runs that left the queue.",
	       total - by_phase[STORE_QUEUED]);
	sbx_buf_puts(out, "# HELP sandbox_runs_completed_total Runs that ended, by outcome.\n"
			  "# TYPE sandbox_runs_completed_total counter\n");
	for (int i = STORE_COMPLETED; i < STORE_PHASE__COUNT; i++)
		sbx_buf_printf(out, "sandbox_runs_completed_total{outcome=\"%s\"} %lld\n",
			       store_phase_name((enum store_phase)i), (long long)by_phase[i]);
	metric(out, "sandbox_queue_length", "gauge", "Runs that wait.", queued);
	metric(out, "sandbox_runs_active", "gauge", "Runs that start or run.", active);
	metric(out, "sandbox_queue_full_total", "counter",
	       "Submissions refused by a queue limit, by this process.",
	       atomic_load(&o->queue_full));
	metric(out, "sandbox_queue_ttl_expired_total", "counter",
	       "Runs that waited too long, ended by this process.", atomic_load(&o->queue_expired));
	metric(out, "sandbox_submissions_refused_total", "counter",
	       "Documents refused, by this process.", atomic_load(&o->refused));
	metric(out, "sandbox_idempotent_replays_total", "counter",
	       "Submissions answered with an earlier run, by this process.",
	       atomic_load(&o->replayed));
	return done(out, e);
}

struct list {
	struct orch *o;
	struct sbx_buf *out;
	int64_t n;
};

static bool usage_row(void *ctx, const struct store_usage *u)
{
	struct list *l = ctx;

	sbx_buf_puts(l->out, l->n++ ? ",\n{\"user_id\":" : "\n{\"user_id\":");
	sbx_buf_json_strz(l->out, u->user);
	sbx_buf_printf(l->out, ",\"runs_count\":%lld,\"log_bytes\":%lld,\"artifact_bytes\":%lld}",
		       (long long)u->runs, (long long)u->log_bytes, (long long)u->artifact_bytes);
	return !sbx_buf_failed(l->out);
}

int orch_view_usage(struct orch *o, struct sbx_buf *out, struct sbx_error *e)
{
	struct list l = { o, out, 0 };
	int rc;

	sbx_buf_puts(out, "{\"items\":[");
	rc = store_usage_list(o->store, NULL, false, 0, 1000, usage_row, &l, e);
	sbx_buf_printf(out, "],\"total\":%lld}\n", (long long)l.n);
	return rc < 0 ? rc : done(out, e);
}

static bool status_row(void *ctx, const struct store_run *r)
{
	struct list *l = ctx;

	sbx_buf_puts(l->out, l->n++ ? "," : "");
	orch_view_status(l->o, r, NULL, l->out);
	return !sbx_buf_failed(l->out);
}

int orch_view_runs(struct orch *o, struct sbx_buf *out, struct sbx_error *e)
{
	struct list l = { o, out, 0 };
	const struct store_run_filter f = { .limit = 1000 };
	int rc;

	sbx_buf_puts(out, "{\"items\":[\n");
	rc = store_run_list(o->store, &f, status_row, &l, e);
	sbx_buf_printf(out, "],\"count\":%lld}\n", (long long)l.n);
	return rc < 0 ? rc : done(out, e);
}

int orch_view_queue(struct orch *o, struct sbx_buf *out, struct sbx_error *e)
{
	const struct orch_settings *st = orch_settings(o);
	struct list l = { o, out, 0 };
	int64_t queued = 0, active = 0;
	int rc = store_counts(o->store, &queued, &active, e);

	sbx_buf_printf(out,
		       "{\"queued\":%lld,\"active\":%lld,\"max_concurrent_runs\":%lld,"
		       "\"queue_max_length\":%lld,\"queue_ttl_sec\":%lld,\"runs\":[\n",
		       (long long)queued, (long long)active, (long long)st->max_concurrent_runs,
		       (long long)st->queue_max_length, (long long)st->queue_ttl_sec);
	for (enum store_phase ph = STORE_QUEUED; rc == 0 && ph <= STORE_RUNNING; ph++) {
		const struct store_run_filter f = { .phase = ph, .limit = 1000 };

		rc = store_run_list(o->store, &f, status_row, &l, e);
	}
	sbx_buf_puts(out, "]}\n");
	return rc < 0 ? rc : done(out, e);
}

/* ---- operator status ------------------------------------------------------------------------ */

enum health { HEALTH_READY, HEALTH_DEGRADED, HEALTH_UNAVAILABLE };

struct section {
	const char *name;
	enum health state;
	char summary[160];
	const char *action;
};

static const char *const health_names[] = { "ready", "degraded", "unavailable" };
static const char *const severities[] = { "info", "warning", "error" };

static void runtime_section(struct orch *o, struct section *s)
{
	const struct rt_known *k;
	int ready = 0, total = 0;

	for (size_t i = 0; (k = rt_known_at(i)); i++, total++) {
		const struct rt_preflight *p = orch_preflight(orch_config(o)->preflights, k->name);

		ready += p && p->n_reasons == 0;
	}
	s->name = "runtime_readiness";
	s->state = ready == 0 ? HEALTH_UNAVAILABLE : HEALTH_READY;
	s->action = ready == 0 ? "prepare_host" : "none";
	(void)snprintf(s->summary, sizeof(s->summary), "%d of %d runtimes can be used", ready,
		       total);
}

static void boundary_section(struct orch *o, struct section *s)
{
	const struct rt_preflight *p =
		orch_preflight(orch_config(o)->preflights, orch_settings(o)->default_runtime);
	bool untrusted = p && p->n_reasons == 0 && p->untrusted;

	s->name = "security_boundaries";
	s->state = untrusted ? HEALTH_READY : HEALTH_DEGRADED;
	s->action = untrusted ? "none" : "prepare_host";
	(void)snprintf(s->summary, sizeof(s->summary),
		       untrusted
			       ? "the default runtime admits every trust level"
			       : "the default runtime does not admit untrusted runs on this host");
}

static void queue_section(struct orch *o, struct section *s)
{
	int64_t queued = 0, active = 0, max = orch_settings(o)->queue_max_length;
	bool full;

	(void)store_counts(o->store, &queued, &active, NULL);
	full = queued >= max;
	s->name = "queue";
	s->state = full ? HEALTH_DEGRADED : HEALTH_READY;
	s->action = full ? "retry_later" : "none";
	(void)snprintf(s->summary, sizeof(s->summary), "%lld wait (limit %lld), %lld are active",
		       (long long)queued, (long long)max, (long long)active);
}

static void store_section(struct orch *o, struct section *s)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	int64_t queued, active;
	bool ok = store_counts(o->store, &queued, &active, &e) == 0;

	s->name = "store";
	s->state = ok ? HEALTH_READY : HEALTH_UNAVAILABLE;
	s->action = ok ? "none" : "inspect_logs";
	(void)snprintf(s->summary, sizeof(s->summary), "%.150s",
		       ok ? "the database answers" : e.message);
}

int orch_view_operator(struct orch *o, struct sbx_buf *out, struct sbx_error *e)
{
	static void (*const makers[])(struct orch *,
				      struct section *) = { runtime_section, boundary_section,
							    queue_section, store_section };
	struct section s[SBX_COUNT(makers)];
	enum health worst = HEALTH_READY;

	for (size_t i = 0; i < SBX_COUNT(makers); i++) {
		makers[i](o, &s[i]);
		if (s[i].state > worst)
			worst = s[i].state;
	}
	sbx_buf_printf(out,
		       "{\"source\":\"sandboxfs\",\"overall_status\":\"%s\",\"overall_severity\":"
		       "\"%s\",\"sections\":{",
		       health_names[worst], severities[worst]);
	for (size_t i = 0; i < SBX_COUNT(makers); i++) {
		sbx_buf_printf(out, "%s\"%s\":{\"status\":\"%s\",\"severity\":\"%s\",\"summary\":",
			       i ? "," : "", s[i].name, health_names[s[i].state],
			       severities[s[i].state]);
		sbx_buf_json_strz(out, s[i].summary);
		sbx_buf_printf(out, ",\"recommended_action\":\"%s\"}", s[i].action);
	}
	sbx_buf_puts(out, "},\"recommended_actions\":[");
	for (size_t i = 0, n = 0; i < SBX_COUNT(makers); i++)
		if (s[i].state != HEALTH_READY)
			sbx_buf_printf(out, "%s\"%s\"", n++ ? "," : "", s[i].action);
	sbx_buf_puts(out, "],\"notes\":[]}\n");
	return done(out, e);
}

int orch_view_diagnostics(struct orch *o, struct sbx_buf *out, struct sbx_error *e)
{
	struct orch_config *c = orch_config(o);

	return orch_runtime_diagnostics(c->settings, c->preflights, out, e);
}

int orch_view_runtime(struct orch *o, const char *name, struct sbx_buf *out, struct sbx_error *e)
{
	struct orch_config *c = orch_config(o);

	return orch_discovery_row(c->settings, c->preflights, name, out, e);
}

int orch_view_check(struct orch *o, bool json, struct sbx_buf *out, struct sbx_error *e)
{
	struct orch_config *c = orch_config(o);
	const struct rt_known *k;

	if (json)
		return orch_discovery(c->settings, c->preflights, out, e);
	sbx_buf_printf(out, "%-12s %-10s %-18s %s\n", "RUNTIME", "AVAILABLE", "BOUNDARY",
		       "REASONS");
	for (size_t i = 0; (k = rt_known_at(i)); i++) {
		const struct rt_preflight *p = orch_preflight(c->preflights, k->name);

		sbx_buf_printf(out, "%-12s %-10s %-18s", k->name,
			       p && p->n_reasons == 0 ? "yes" : "no", k->boundary_class);
		for (size_t j = 0; p && j < p->n_reasons; j++)
			sbx_buf_printf(out, "%s%s", j ? "," : " ", p->reasons[j]);
		if (p && p->n_reasons == 0)
			sbx_buf_printf(out, " trust:%s%s%s", p->trusted ? " trusted" : "",
				       p->standard ? " standard" : "",
				       p->untrusted ? " untrusted" : "");
		sbx_buf_puts(out, p ? "\n" : " preflight_missing\n");
	}
	return done(out, e);
}
