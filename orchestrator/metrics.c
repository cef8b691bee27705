/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters in Prometheus text. What concerns runs comes out of small tables that the store's
 * transactions keep, so that it is the same at both doors, survives restarts and costs no scan;
 * what only a door knows (refusals, and how long what it claimed had waited) is counted in the
 * process.
 */
#include "orchestrator/orch_i.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"

enum { RUNTIME_UNKNOWN = ORCH_RUNTIMES_MAX - 1 };

static size_t runtime_index(const char *name)
{
	const struct rt_known *k;

	for (size_t i = 0; i < RUNTIME_UNKNOWN && (k = rt_known_at(i)); i++)
		if (name && strcmp(k->name, name) == 0)
			return i;
	return RUNTIME_UNKNOWN;
}

/* NULL: nobody has that number. */
static const char *runtime_name(size_t i)
{
	static const char unknown[] = "unknown";
	const struct rt_known *k = i < RUNTIME_UNKNOWN ? rt_known_at(i) : NULL;

	return i == RUNTIME_UNKNOWN ? unknown : k ? k->name : NULL;
}

void orch_count_full(struct orch *o, enum store_scope scope, const char *runtime)
{
	atomic_fetch_add(&o->counts.queue_full[scope][runtime_index(runtime)], 1);
}

void orch_count_wait(struct orch *o, const char *runtime, int64_t waited_us)
{
	struct orch_waits *w = &o->counts.waits[runtime_index(runtime)];

	if (waited_us < 0) /* the clock was set */
		waited_us = 0;
	for (int i = 0; i < STORE_BUCKETS; i++)
		if (waited_us <= store_bucket_us[i])
			atomic_fetch_add(&w->bucket[i], 1);
	atomic_fetch_add(&w->sum_us, waited_us);
	atomic_fetch_add(&w->n, 1);
}

/* ---- the format ------------------------------------------------------------------------------ */

static void family(struct sbx_buf *out, const char *name, const char *type, const char *help)
{
	sbx_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void single(struct sbx_buf *out, const char *name, const char *type, const char *help,
		   int64_t value)
{
	family(out, name, type, help);
	sbx_buf_printf(out, "%s %lld\n", name, (long long)value);
}

/* A value of a label. Ours need no escapes, but a row may have been written by hand. */
static void label(struct sbx_buf *out, const char *name, const char *value)
{
	sbx_buf_printf(out, "%s=\"", name);
	for (; *value; value++) {
		if (*value == '\n')
			sbx_buf_puts(out, "\\n");
		else if (*value == '"' || *value == '\\')
			sbx_buf_printf(out, "\\%c", *value);
		else
			sbx_buf_add(out, value, 1);
	}
	sbx_buf_puts(out, "\"");
}

/* labels: as between the braces. bucket[] is cumulative already. */
static void histogram(struct sbx_buf *out, const char *name, const char *labels, int64_t n,
		      int64_t sum_us, const int64_t bucket[STORE_BUCKETS])
{
	for (int i = 0; i < STORE_BUCKETS; i++)
		sbx_buf_printf(out, "%s_bucket{%s,le=\"%g\"} %lld\n", name, labels,
			       (double)store_bucket_us[i] / SBX_SECOND_US, (long long)bucket[i]);
	sbx_buf_printf(out, "%s_bucket{%s,le=\"+Inf\"} %lld\n", name, labels, (long long)n);
	sbx_buf_printf(out, "%s_sum{%s} %lld.%06lld\n%s_count{%s} %lld\n", name, labels,
		       (long long)(sum_us / SBX_SECOND_US), (long long)(sum_us % SBX_SECOND_US),
		       name, labels, (long long)n);
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* Of one reading of the store. */
struct reading {
	int64_t started[ORCH_RUNTIMES_MAX];
	int64_t expired[ORCH_RUNTIMES_MAX];
	int64_t removed;
	int64_t queued, active;
	struct sbx_buf completed, durations; /* samples */
};

static bool add_started(void *ctx, const char *runtime, enum store_phase phase, int64_t n)
{
	struct reading *r = ctx;

	r->started[runtime_index(runtime)] += n;
	if (phase == STORE_QUEUED)
		r->queued += n;
	else if (!store_phase_terminal(phase))
		r->active += n;
	return true;
}

/* Rows that have gone were started as well. */
static bool add_removed(void *ctx, const char *name, int64_t n)
{
	struct reading *r = ctx;
	size_t prefix = sizeof(STORE_COUNT_REMOVED) - 1;

	if (strncmp(name, STORE_COUNT_REMOVED, prefix) == 0) {
		r->started[runtime_index(name + prefix)] += n;
		r->removed += n;
	}
	return true;
}

static bool add_end(void *ctx, const struct store_ends *t)
{
	struct reading *r = ctx;
	sbx_autobuf labels = SBX_BUF_INIT(1024);

	label(&labels, "runtime", t->runtime[0] ? t->runtime : "unknown");
	sbx_buf_puts(&labels, ",");
	label(&labels, "outcome", orch_outcome_word(t->phase));
	sbx_buf_puts(&labels, ",");
	label(&labels, "reason", t->reason);
	if (sbx_buf_failed(&labels))
		return false;
	sbx_buf_printf(&r->completed, "sandbox_runs_completed_total{%s} %lld\n", labels.data,
		       (long long)t->runs);
	if (t->timed)
		histogram(&r->durations, "sandbox_run_duration_seconds", labels.data, t->timed,
			  t->sum_us, t->bucket);
	if (strcmp(t->reason, "queue_ttl_expired") == 0)
		r->expired[runtime_index(t->runtime)] += t->runs;
	return true;
}

static void add_runs(const struct reading *r, struct sbx_buf *out)
{
	family(out, "sandbox_runs_started_total", "counter", "Runs accepted.");
	for (size_t i = 0; i < ORCH_RUNTIMES_MAX; i++)
		if (runtime_name(i) && (r->started[i] || i != RUNTIME_UNKNOWN))
			sbx_buf_printf(out, "sandbox_runs_started_total{runtime=\"%s\"} %lld\n",
				       runtime_name(i), (long long)r->started[i]);
	family(out, "sandbox_runs_completed_total", "counter",
	       "Runs that ended, by outcome and status_reason_code.");
	sbx_buf_add(out, r->completed.data, r->completed.len);
	family(out, "sandbox_run_duration_seconds", "histogram",
	       "From the start of a run to its end; those that never started are not in it.");
	sbx_buf_add(out, r->durations.data, r->durations.len);
	single(out, "sandbox_queue_length", "gauge", "Runs that wait.", r->queued);
	single(out, "sandbox_runs_removed_total", "counter",
	       "Runs that were removed when run_retention_hours were over.", r->removed);
	single(out, "sandbox_runs_active", "gauge", "Runs that start or run.", r->active);
	family(out, "sandbox_queue_ttl_expired_total", "counter", "Runs that waited too long.");
	for (size_t i = 0; i < ORCH_RUNTIMES_MAX; i++)
		if (runtime_name(i) && (r->expired[i] || i != RUNTIME_UNKNOWN))
			sbx_buf_printf(out,
				       "sandbox_queue_ttl_expired_total{component=\"sandbox\","
				       "reason=\"queue_ttl_expired\",runtime=\"%s\"} %lld\n",
				       runtime_name(i), (long long)r->expired[i]);
}

static int read_runs(struct orch *o, struct sbx_buf *out, struct sbx_error *e)
{
	struct reading r = { .completed = SBX_BUF_INIT(out->limit),
			     .durations = SBX_BUF_INIT(out->limit) };
	int rc = store_runtime_counts(o->store, add_started, &r, e);

	if (rc == 0)
		rc = store_counters(o->store, add_removed, &r, e);
	if (rc == 0)
		rc = store_ends(o->store, add_end, &r, e);
	if (rc == 0) {
		add_runs(&r, out);
		out->failed |= r.completed.failed || r.durations.failed;
	}
	sbx_buf_free(&r.completed);
	sbx_buf_free(&r.durations);
	return rc;
}

/* ---- what this process counted --------------------------------------------------------------- */

static void add_waits(struct orch *o, struct sbx_buf *out)
{
	family(out, "sandbox_queue_wait_seconds", "histogram",
	       "From the entry into the queue to the claim, of what this process handed out.");
	for (size_t i = 0; i < ORCH_RUNTIMES_MAX; i++) {
		struct orch_waits *w = &o->counts.waits[i];
		int64_t bucket[STORE_BUCKETS], n = atomic_load(&w->n);
		char labels[64];

		/* What can run here is there from the first look on. */
		if (!n &&
		    (i == RUNTIME_UNKNOWN || !runtime_name(i) || !rt_driver_find(runtime_name(i))))
			continue;
		for (int b = 0; b < STORE_BUCKETS; b++) {
			bucket[b] = atomic_load(&w->bucket[b]);
			/* One that is counted at this moment is in its buckets first. */
			bucket[b] = bucket[b] < n ? bucket[b] : n;
		}
		(void)snprintf(labels, sizeof(labels), "runtime=\"%s\"", runtime_name(i));
		histogram(out, "sandbox_queue_wait_seconds", labels, n, atomic_load(&w->sum_us),
			  bucket);
	}
}

static void add_full(struct orch *o, struct sbx_buf *out)
{
	family(out, "sandbox_queue_full_total", "counter",
	       "Submissions refused by a limit of the queue, by this process.");
	for (enum store_scope s = STORE_SCOPE_ALL; s < STORE_SCOPE__COUNT; s++)
		for (size_t i = 0; i < ORCH_RUNTIMES_MAX; i++) {
			long long n = atomic_load(&o->counts.queue_full[s][i]);

			if (n || (s == STORE_SCOPE_ALL && i != RUNTIME_UNKNOWN && runtime_name(i)))
				sbx_buf_printf(out,
					       "sandbox_queue_full_total{component=\"sandbox\","
					       "reason=\"%s\",runtime=\"%s\"} %lld\n",
					       admit_full_reason(s), runtime_name(i), n);
		}
	single(out, "sandbox_submissions_refused_total", "counter",
	       "Documents refused, by this process.", atomic_load(&o->counts.refused));
	single(out, "sandbox_idempotent_replays_total", "counter",
	       "Submissions answered with an earlier run, by this process.",
	       atomic_load(&o->counts.replayed));
}

/* ---- counters by name ------------------------------------------------------------------------ */

static const struct {
	const char *key, *name, *labels, *help;
} counters[] = {
	{ ORCH_COUNT_LOG_TRUNCATED, "sandbox_log_truncations_total",
	  "component=\"sandbox\",reason=\"log_cap\"", "Logs that were cut off at their cap." },
	{ ORCH_COUNT_CYCLES, "sandbox_artifact_maintenance_cycles_total", "trigger=\"timer\"",
	  "Rounds of housekeeping." },
	{ ORCH_COUNT_JANITOR, "sandbox_artifact_janitor_runs_total", "mode=\"background\"",
	  "Rounds that looked for artifacts beyond their time." },
	{ ORCH_COUNT_REMOVED_RUNS, "sandbox_artifact_janitor_removed_runs_total",
	  "mode=\"background\"", "Runs whose artifacts were removed." },
	{ ORCH_COUNT_REMOVED_FILES, "sandbox_artifact_janitor_removed_files_total",
	  "mode=\"background\"", "Artifacts that were removed." },
	{ ORCH_COUNT_RECONCILES, "sandbox_artifact_reconcile_runs_total", "component=\"sandbox\"",
	  "Comparisons of artifacts with the disk." },
	{ ORCH_COUNT_RECONCILED_USERS, "sandbox_artifact_reconcile_corrected_users_total",
	  "component=\"sandbox\"", "Users whose total was wrong." },
	{ ORCH_COUNT_RECONCILED_FILES, "sandbox_artifact_reconcile_corrected_files_total",
	  "component=\"sandbox\"", "Files without a row, rows without a file, wrong sizes." },
	{ ORCH_COUNT_RECONCILED_BYTES, "sandbox_artifact_reconcile_corrected_bytes_total",
	  "component=\"sandbox\"",
	  "Bytes by which totals were wrong, and of files without a row." },
	{ ORCH_COUNT_RECONCILE_MS, "sandbox_artifact_reconcile_duration_ms_total",
	  "component=\"sandbox\"", "Time that the comparisons took." },
	{ ORCH_COUNT_UPLOAD_BYTES, "sandbox_upload_bytes_total", "kind=\"session_upload\"",
	  "Bytes that uploads have put into workspaces." },
	{ ORCH_COUNT_UPLOAD_FILES, "sandbox_upload_files_total", "kind=\"session_upload\"",
	  "Files that uploads have put into workspaces." },
	{ ORCH_COUNT_REMOVED_BYTES, "sandbox_artifact_janitor_removed_bytes_total",
	  "mode=\"background\"", "Bytes of artifacts that were removed." },
};

struct counted {
	int64_t n[SBX_COUNT(counters)];
};

static bool see_counter(void *ctx, const char *name, int64_t n)
{
	struct counted *c = ctx;

	for (size_t i = 0; i < SBX_COUNT(counters); i++)
		if (strcmp(counters[i].key, name) == 0)
			c->n[i] = n;
	return true;
}

static int add_counters(struct orch *o, struct sbx_buf *out, struct sbx_error *e)
{
	struct counted c = { { 0 } };
	int rc = store_counters(o->store, see_counter, &c, e);

	for (size_t i = 0; rc == 0 && i < SBX_COUNT(counters); i++) {
		family(out, counters[i].name, "counter", counters[i].help);
		sbx_buf_printf(out, "%s{%s} %lld\n", counters[i].name, counters[i].labels,
			       (long long)c.n[i]);
	}
	return rc;
}

int orch_view_metrics(struct orch *o, struct sbx_buf *out, struct sbx_error *e)
{
	int rc = read_runs(o, out, e);

	if (rc == 0)
		rc = add_counters(o, out, e);
	if (rc < 0)
		return rc;
	add_waits(o, out);
	add_full(o, out);
	single(out, "sandbox_store_healthy", "gauge", "1: the disk has taken everything so far.",
	       store_healthy(o->store));
	return orch_view_done(0, out, e);
}
