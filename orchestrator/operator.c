/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything at a glance: one section for each thing that can need an operator's hand. The sections
 * of macOS virtual machines, their images, their reconciliation and its evidence are those of the
 * reference; here they have nothing to be about, and say so.
 */
#include "orchestrator/orch_i.h"

#include <stdio.h>
#include <string.h>

#include "orchestrator/policy_i.h"

enum { SECTION_REASONS = 4, NAMES_MAX = 512, EXTRAS_MAX = 2048 };

/* What a section may say, from the best to the worst. */
enum section_state {
	SECTION_READY,
	SECTION_NOT_CONFIGURED,
	SECTION_DEGRADED,
	SECTION_UNKNOWN,
	SECTION_ACTION_REQUIRED,
	SECTION_UNAVAILABLE,
};

static const struct {
	const char *name, *severity;
} states[] = {
	[SECTION_READY] = { "ready", "info" },
	[SECTION_NOT_CONFIGURED] = { "not_configured", "info" },
	[SECTION_DEGRADED] = { "degraded", "warning" },
	[SECTION_UNKNOWN] = { "unknown", "warning" },
	[SECTION_ACTION_REQUIRED] = { "action_required", "error" },
	[SECTION_UNAVAILABLE] = { "unavailable", "error" },
};

struct section {
	const char *name;
	enum section_state state;
	const char *configured; /* "true", "false", "null" */
	const char *reasons[SECTION_REASONS];
	size_t n_reasons;
	char counts[256];	 /* members of an object */
	char extras[EXTRAS_MAX]; /* members of the section, each with a comma in front */
	/* What to do about it; NULL: nothing. */
	const char *action, *message, *endpoint;
};

/* What the sections are made from. */
struct facts {
	int total, ready, host_local_open; /* without a boundary, and it takes runs */
	char host_local[NAMES_MAX], repairable[NAMES_MAX]; /* as JSON lists */
	bool untrusted; /* the default runtime admits untrusted runs */
	bool store_ok;
	int64_t queued, active, queue_max;
	bool execution;
};

/* A list that begins with '[': behind its last name. */
static void add_name(char list[NAMES_MAX], const char *name)
{
	size_t n = strlen(list);

	(void)snprintf(list + n, NAMES_MAX - n, "%s\"%s\"", list[n - 1] == '[' ? "" : ",", name);
}

static void gather_runtimes(struct orch *o, struct facts *f)
{
	struct orch_config *c = orch_config(o);
	const struct rt_preflight *p;
	const struct rt_known *k;

	(void)snprintf(f->host_local, NAMES_MAX, "[");
	(void)snprintf(f->repairable, NAMES_MAX, "[");
	for (size_t i = 0; (k = rt_known_at(i)); i++) {
		const struct rt_policy_posture deny_all = orch_deny_all_posture(c->settings, k);
		bool local = strcmp(k->boundary_class, "host_local") == 0;
		bool ready;

		p = orch_preflight(c->preflights, k->name);
		ready = p && p->n_reasons == 0;
		f->total++;
		f->ready += ready;
		f->host_local_open +=
			ready && local && orch_strict_support(&deny_all, p->deny_all_ready);
		if (local)
			add_name(f->host_local, k->name);
		if (k->session_repair == RT_SUPPORTED || k->session_repair == RT_HOST_GATED)
			add_name(f->repairable, k->name);
	}
	p = orch_preflight(c->preflights, c->settings->default_runtime);
	f->untrusted = p && p->n_reasons == 0 && p->untrusted;
}

static void gather(struct orch *o, struct facts *f)
{
	gather_runtimes(o, f);
	f->store_ok = store_counts(o->store, &f->queued, &f->active, NULL) == 0 &&
		      store_healthy(o->store);
	f->queue_max = orch_settings(o)->queue_max_length;
	f->execution = orch_settings(o)->enable_execution;
}

/* ---- sections that are about something here -------------------------------------------------- */

static void runtime_section(const struct facts *f, struct section *s)
{
	s->state = f->ready ? SECTION_READY : SECTION_UNAVAILABLE;
	(void)snprintf(s->extras, sizeof(s->extras),
		       ",\"ready\":%d,\"total\":%d,\"host_local_warning_runtimes\":%s],"
		       "\"repair_supported_runtimes\":%s]",
		       f->ready, f->total, f->host_local, f->repairable);
	if (f->ready)
		return;
	s->action = "restore_runtime";
	s->message = "No runtime can be used: runtime-diagnostics says what each of them lacks.";
	s->endpoint = "/api/v1/sandbox/admin/runtime-diagnostics";
}

/* It warns and does not judge, as in the reference; what counts is in runtime_readiness. */
static void boundary_section(const struct facts *f, struct section *s)
{
	(void)snprintf(s->extras, sizeof(s->extras), ",\"host_local_warning_runtimes\":%s]",
		       f->host_local);
	if (!f->untrusted)
		s->reasons[s->n_reasons++] = "default_runtime_not_for_untrusted";
}

static void queue_section(const struct facts *f, struct section *s)
{
	bool full = f->queued >= f->queue_max;

	s->state = !f->store_ok ? SECTION_UNKNOWN : full ? SECTION_DEGRADED : SECTION_READY;
	(void)snprintf(s->counts, sizeof(s->counts),
		       "\"queued\":%lld,\"active\":%lld,\"limit\":%lld", (long long)f->queued,
		       (long long)f->active, (long long)f->queue_max);
	if (!f->execution)
		s->reasons[s->n_reasons++] = "execution_disabled";
	if (!f->store_ok) {
		s->reasons[s->n_reasons++] = "store_unavailable";
	} else if (full) {
		s->reasons[s->n_reasons++] = "queue_full";
		s->action = "inspect_queue";
		s->message = "The queue is full: new runs are refused until some have ended.";
		s->endpoint = "/api/v1/sandbox/admin/runs?phase=queued";
	}
}

static void store_section(const struct facts *f, struct section *s)
{
	s->state = f->store_ok ? SECTION_READY : SECTION_UNAVAILABLE;
	if (f->store_ok)
		return;
	s->reasons[s->n_reasons++] = "store_unavailable";
	s->action = "restore_store";
	s->message =
		"The state cannot be read, or its disk failed to take it: repair it and restart "
		"the service.";
}

/* Warnings of a start would stop this service; there are none once it answers. */
static void startup_section(const struct facts *f, struct section *s)
{
	(void)f;
	(void)snprintf(s->extras, sizeof(s->extras),
		       ",\"present\":false,\"blocking\":false,\"codes\":[]");
}

/* ---- sections of the reference's macOS runtimes ---------------------------------------------- */

static void macos_section(const struct facts *f, struct section *s)
{
	(void)f;
	(void)snprintf(s->extras, sizeof(s->extras),
		       ",\"helper_ready\":false,\"configured_templates\":[],"
		       "\"unready_templates\":[]");
}

static void image_section(const struct facts *f, struct section *s)
{
	(void)f;
	(void)snprintf(s->extras, sizeof(s->extras), ",\"gc_candidates\":0");
}

static void evidence_section(const struct facts *f, struct section *s)
{
	(void)f;
	s->reasons[s->n_reasons++] = "evidence_not_configured";
	(void)snprintf(s->extras, sizeof(s->extras),
		       ",\"source\":\"host_smoke_evidence\",\"available\":false,\"valid\":false,"
		       "\"evidence_dir\":null,\"schema_version\":null,\"created_at\":null,"
		       "\"age_seconds\":null,\"stale\":false,\"smoke_run_id\":null,"
		       "\"final_exit_code\":null,\"phases\":[],\"cleanup\":{},"
		       "\"runtime_pointers\":{},\"expected_files\":[],\"skip_flags\":{"
		       "\"skip_build\":null,\"skip_sign\":null,\"include_failure_drills\":null}");
}

/* ---- all of it ------------------------------------------------------------------------------- */

static const struct {
	const char *name;
	void (*make)(const struct facts *f, struct section *s); /* NULL: nothing to add */
	enum section_state state;				/* unless made otherwise */
	const char *configured;
} makers[] = {
	{ "runtime_readiness", runtime_section, SECTION_READY, "true" },
	{ "macos_vz", macos_section, SECTION_NOT_CONFIGURED, "false" },
	{ "image_store", image_section, SECTION_NOT_CONFIGURED, "false" },
	{ "reconciliation", NULL, SECTION_NOT_CONFIGURED, "false" },
	{ "evidence", evidence_section, SECTION_NOT_CONFIGURED, "false" },
	{ "security_boundaries", boundary_section, SECTION_READY, "null" },
	{ "startup_warnings", startup_section, SECTION_READY, "null" },
	{ "queue", queue_section, SECTION_READY, "true" },
	{ "store", store_section, SECTION_READY, "true" },
};

/* A runtime without a boundary that takes runs is a reason to look; one that takes none is not,
 * and `worktree` could be used on nearly every host. */
static enum section_state overall(const struct facts *f, const struct section *s)
{
	enum section_state worst = f->host_local_open ? SECTION_DEGRADED : SECTION_READY;

	if (!f->store_ok)
		return SECTION_ACTION_REQUIRED;
	if (!f->ready)
		return SECTION_UNAVAILABLE;
	for (size_t i = 0; i < SBX_COUNT(makers); i++)
		if (s[i].state >= SECTION_DEGRADED && s[i].state > worst)
			worst = s[i].state;
	return worst == SECTION_UNKNOWN ? SECTION_DEGRADED : worst;
}

static void add_section(struct sbx_buf *out, const struct section *s)
{
	sbx_buf_printf(out,
		       "\"%s\":{\"status\":\"%s\",\"severity\":\"%s\",\"configured\":%s,"
		       "\"reasons\":",
		       s->name, states[s->state].name, states[s->state].severity, s->configured);
	orch_json_strings(out, s->reasons, s->n_reasons);
	sbx_buf_printf(
		out, ",\"counts\":{%s},\"repair_endpoint\":null,\"cleanup_plan_endpoint\":null%s}",
		s->counts, s->extras);
}

static void add_actions(struct sbx_buf *out, const struct section *s, size_t *ret_n)
{
	*ret_n = 0;
	for (size_t i = 0; i < SBX_COUNT(makers); i++) {
		if (!s[i].action)
			continue;
		sbx_buf_printf(out,
			       "%s{\"code\":\"%s\",\"severity\":\"%s\",\"section\":\"%s\","
			       "\"message\":",
			       (*ret_n)++ ? "," : "", s[i].action, states[s[i].state].severity,
			       s[i].name);
		sbx_buf_json_strz(out, s[i].message);
		sbx_buf_puts(out, ",\"endpoint\":");
		sbx_buf_json_strz(out, s[i].endpoint);
		sbx_buf_puts(out, ",\"dry_run_required\":false}");
	}
}

static void add_notes(struct sbx_buf *out, const struct facts *f)
{
	const char *notes[2];
	size_t n = 0;

	if (!f->execution)
		notes[n++] = "Execution is switched off: runs are taken and stay queued.";
	if (f->ready && !f->untrusted)
		notes[n++] = "The default runtime does not admit untrusted runs on this host.";
	orch_json_strings(out, notes, n);
}

int orch_view_operator(struct orch *o, struct sbx_buf *out, struct sbx_error *e)
{
	struct section s[SBX_COUNT(makers)] = { { .name = NULL } };
	sbx_autobuf actions = SBX_BUF_INIT(64 << 10);
	struct facts f = { .total = 0 };
	enum section_state all;
	size_t n = 0;

	gather(o, &f);
	for (size_t i = 0; i < SBX_COUNT(makers); i++) {
		s[i].name = makers[i].name;
		s[i].state = makers[i].state;
		s[i].configured = makers[i].configured;
		if (makers[i].make)
			makers[i].make(&f, &s[i]);
	}
	all = overall(&f, s);
	sbx_buf_puts(&actions, "[");
	add_actions(&actions, s, &n);
	sbx_buf_printf(out,
		       "{\"source\":\"sandbox_operator_status\",\"overall_status\":\"%s\","
		       "\"overall_severity\":\"%s\",\"summary\":{\"runtime_total\":%d,"
		       "\"runtime_ready\":%d,\"actions\":%zu},\"sections\":{",
		       states[all].name, states[all].severity, f.total, f.ready, n);
	for (size_t i = 0; i < SBX_COUNT(makers); i++) {
		sbx_buf_puts(out, i ? "," : "");
		add_section(out, &s[i]);
	}
	sbx_buf_printf(out, "},\"recommended_actions\":%s],\"notes\":",
		       actions.failed ? "[" : actions.data);
	add_notes(out, &f);
	sbx_buf_puts(out, "}\n");
	return orch_view_done(0, out, e);
}
