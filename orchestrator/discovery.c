/* SPDX-License-Identifier: Apache-2.0 */
/* What a client may know about the runtimes before it chooses one, and what an operator wants to
 * know about those that do not work. */
#include <stdlib.h>
#include <string.h>

#include "base/auto.h"
#include "base/json.h"
#include "orchestrator/policy_i.h"

enum {
	ROWS_MAX = 256 << 10,
	DEFAULT_IMAGES_MAX = 8,
};
/* The helper of that runtime carries no more. */
#define VZ_LINUX_LOG_MAX (INT64_C(256) << 20)

/* Everything that a row is made from. */
struct row {
	const struct orch_settings *s;
	const struct rt_known *known;
	const struct rt_preflight *preflight; /* NULL: none */
	const char *reasons[RT_REASONS_MAX];
	size_t n_reasons;
	const char *codes[RT_REASONS_MAX]; /* of the reasons, each once, in order */
	size_t n_codes;
	struct rt_policy_posture deny_all;
	bool available, deny_all_ready, allowlist_ready, strict_deny_all, strict_allowlist;
};

static void row_init(struct row *row, const struct orch_settings *s,
		     const struct orch_preflights *preflights, const struct rt_known *known)
{
	const struct rt_preflight *p = orch_preflight(preflights, known->name);

	*row = (struct row){ .s = s, .known = known, .preflight = p };
	row->n_reasons = orch_preflight_reasons(p, row->reasons);
	row->available = row->n_reasons == 0;
	for (size_t i = 0; i < row->n_reasons; i++) {
		const char *code = rt_reason_normalize(row->reasons[i]);
		size_t j = 0;

		while (j < row->n_codes && strcmp(row->codes[j], code) != 0)
			j++;
		if (j == row->n_codes)
			row->codes[row->n_codes++] = code;
	}
	row->deny_all_ready = row->available && p->deny_all_ready;
	row->allowlist_ready = row->available && p->allowlist_ready;
	row->deny_all = orch_deny_all_posture(s, known);
	row->strict_deny_all = orch_strict_support(&row->deny_all, row->deny_all_ready);
	row->strict_allowlist = orch_strict_support(&known->allowlist, row->allowlist_ready);
}

static const char *yes(bool b)
{
	return b ? "true" : "false";
}

/* ---- pieces of both documents ---------------------------------------------------------------- */

static bool host_local(const struct rt_known *k)
{
	return strcmp(k->boundary_class, "host_local") == 0;
}

static void add_warnings(struct sbx_buf *out, const struct rt_known *k)
{
	const char *warnings[3];
	size_t n = 0;

	if (host_local(k)) {
		warnings[n++] = "host_local_boundary";
		if (!k->vm_grade)
			warnings[n++] = "not_vm_grade_isolation";
		if (!k->untrusted_eligible)
			warnings[n++] = "not_untrusted_eligible";
	}
	orch_json_strings(out, warnings, n);
}

static void add_reasons(struct sbx_buf *out, const struct row *row)
{
	sbx_buf_puts(out, ",\"reasons\":");
	orch_json_strings(out, row->reasons, row->n_reasons);
	sbx_buf_puts(out, ",\"normalized_reasons\":");
	orch_json_strings(out, row->codes, row->n_codes);
	sbx_buf_puts(out, ",\"normalized_reason_details\":[");
	for (size_t i = 0; i < row->n_codes; i++) {
		const struct rt_reason_info *info = rt_reason_info(row->codes[i]);

		sbx_buf_printf(out,
			       "%s{\"code\":\"%s\",\"category\":\"%s\",\"severity\":\"%s\","
			       "\"availability_blocking\":true,\"operator_action\":\"%s\","
			       "\"user_message_key\":\"sandbox.runtime.reason.%s\"}",
			       i ? "," : "", info->code, info->category, info->severity,
			       info->operator_action, info->code);
	}
	sbx_buf_puts(out, "]");
}

static void add_isolation(struct sbx_buf *out, const struct rt_known *k)
{
	sbx_buf_printf(out,
		       ",\"boundary_class\":\"%s\",\"vm_grade_isolation\":%s"
		       ",\"untrusted_eligible\":%s,\"isolation_warnings\":",
		       k->boundary_class, yes(k->vm_grade), yes(k->untrusted_eligible));
	add_warnings(out, k);
}

static void add_strict(struct sbx_buf *out, const struct row *row)
{
	sbx_buf_printf(out, ",\"strict_deny_all_supported\":%s,\"strict_allowlist_supported\":%s",
		       yes(row->strict_deny_all), yes(row->strict_allowlist));
}

/* ---- discovery ------------------------------------------------------------------------------- */

static void add_trust_levels(struct sbx_buf *out, const struct rt_preflight *p)
{
	const char *levels[3];
	size_t n = 0;

	if (p && p->trusted)
		levels[n++] = "trusted";
	if (p && p->standard)
		levels[n++] = "standard";
	if (p && p->untrusted)
		levels[n++] = "untrusted";
	orch_json_strings(out, levels, n);
}

static void add_posture(struct sbx_buf *out, const char *name, const struct rt_policy_posture *p)
{
	sbx_buf_printf(out,
		       "\"%s\":{\"support_state\":\"%s\",\"strict_enforcement\":%s,"
		       "\"readiness_source\":\"%s\"}",
		       name, rt_support_name(p->state), yes(p->strict), p->readiness_source);
}

static void add_contracts(struct sbx_buf *out, const struct row *row)
{
	const struct rt_known *k = row->known;

	sbx_buf_puts(out, ",\"network_policy_contract\":{");
	add_posture(out, "deny_all", &row->deny_all);
	sbx_buf_puts(out, ",");
	add_posture(out, "allowlist", &k->allowlist);
	sbx_buf_printf(out,
		       "},\"session_contract\":{\"support_state\":\"%s\",\"reuse_model\":\"%s\","
		       "\"requires_live_health_check\":%s,\"recovery_state\":\"%s\","
		       "\"repair_state\":\"%s\"}",
		       rt_support_name(k->session_support), k->session_reuse,
		       yes(k->session_live_check), rt_support_name(k->session_recovery),
		       rt_support_name(k->session_repair));
}

static void add_default_images(struct sbx_buf *out, const char *spaced)
{
	sbx_autofree char *copy = strdup(spaced);
	const char *images[DEFAULT_IMAGES_MAX];
	char *rest = copy, *word;
	size_t n = 0;

	while (rest && n < DEFAULT_IMAGES_MAX && (word = strsep(&rest, " ")))
		images[n++] = word;
	out->failed |= !copy;
	sbx_buf_puts(out, ",\"default_images\":");
	orch_json_strings(out, images, n);
}

static void add_limits(struct sbx_buf *out, const struct row *row)
{
	const struct orch_settings *s = row->s;
	int64_t log = s->max_log_bytes;

	if (strcmp(row->known->name, "vz_linux") == 0 && log > VZ_LINUX_LOG_MAX)
		log = VZ_LINUX_LOG_MAX;
	sbx_buf_puts(out, ",\"max_cpu\":");
	sbx_json_double(out, s->max_cpu);
	sbx_buf_printf(out,
		       ",\"max_mem_mb\":%lld,\"max_upload_mb\":%lld,\"max_log_bytes\":%lld"
		       ",\"max_artifact_file_bytes\":%lld,\"max_artifact_total_bytes\":%lld"
		       ",\"queue_max_length\":%lld,\"queue_ttl_sec\":%lld"
		       ",\"workspace_cap_mb\":%lld,\"artifact_ttl_hours\":%lld",
		       (long long)s->max_mem_mb, (long long)s->max_upload_mb, (long long)log,
		       (long long)s->max_artifact_file_bytes,
		       (long long)s->max_artifact_total_bytes, (long long)s->queue_max_length,
		       (long long)s->queue_ttl_sec, (long long)s->workspace_cap_mb,
		       (long long)s->artifact_ttl_hours);
}

static void add_row(struct sbx_buf *out, const struct row *row)
{
	const struct rt_known *k = row->known;
	const struct rt_preflight *p = row->preflight;
	/* Published for none without a boundary of its own, whatever its driver can do. */
	bool interactive = row->available && row->s->enable_execution && !host_local(k) &&
			   rt_driver_find(k->name) != NULL;

	sbx_buf_printf(out, "{\"name\":\"%s\",\"implementation_state\":\"%s\",\"available\":%s",
		       k->name, rt_support_name(k->implementation), yes(row->available));
	add_reasons(out, row);
	sbx_buf_puts(out, ",\"supported_trust_levels\":");
	add_trust_levels(out, p);
	add_strict(out, row);
	sbx_buf_printf(out, ",\"enforcement_ready\":{\"deny_all\":%s,\"allowlist\":%s},\"host\":%s",
		       yes(row->deny_all_ready), yes(row->allowlist_ready),
		       p && p->host_json ? p->host_json : "{}");
	add_isolation(out, k);
	add_contracts(out, row);
	add_default_images(out, k->default_images);
	add_limits(out, row);
	sbx_buf_puts(out, ",\"supported_spec_versions\":");
	orch_json_list(out, row->s->supported_spec_versions);
	sbx_buf_printf(out,
		       ",\"interactive_supported\":%s,\"egress_allowlist_supported\":%s"
		       ",\"store_mode\":\"%s\",\"notes\":",
		       yes(interactive), yes(row->strict_allowlist), row->s->store_backend);
	sbx_buf_json_strz(out, k->notes);
	sbx_buf_puts(out, "}");
}

static int finish(struct sbx_buf *out, struct sbx_error *e)
{
	if (sbx_buf_failed(out))
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory to describe the runtimes");
	return 0;
}

int orch_discovery_row(const struct orch_settings *settings,
		       const struct orch_preflights *preflights, const char *runtime,
		       struct sbx_buf *out, struct sbx_error *e)
{
	const struct rt_known *known = rt_known_find(runtime);
	struct row row;

	if (!known)
		return sbx_fail(e, SBX_E_NOT_FOUND, "no runtime '%.80s'", runtime);
	row_init(&row, settings, preflights, known);
	add_row(out, &row);
	sbx_buf_puts(out, "\n");
	return finish(out, e);
}

int orch_discovery(const struct orch_settings *settings, const struct orch_preflights *preflights,
		   struct sbx_buf *out, struct sbx_error *e)
{
	sbx_buf_puts(out, "{\"runtimes\":[");
	for (size_t i = 0; rt_known_at(i); i++) {
		struct row row;

		row_init(&row, settings, preflights, rt_known_at(i));
		sbx_buf_puts(out, i ? "," : "");
		add_row(out, &row);
	}
	sbx_buf_puts(out, "]}\n");
	return finish(out, e);
}

/* ---- diagnostics ----------------------------------------------------------------------------- */

static const char *readiness(const struct row *row)
{
	enum rt_support state = row->known->implementation;

	if (row->available)
		return "ready";
	return state == RT_SUPPORTED ? "unavailable" : rt_support_name(state);
}

static const char *recommended_action(const struct row *row)
{
	static const char *const by_rank[] = {
		"check_helper",		 "configure_template", "prepare_host",
		"adjust_request_policy", "inspect_reasons",    "use_different_runtime",
	};
	enum rt_support state = row->known->implementation;

	if (row->available)
		return "none";
	for (size_t i = 0; i < SBX_COUNT(by_rank); i++)
		for (size_t j = 0; j < row->n_codes; j++)
			if (strcmp(rt_reason_info(row->codes[j])->operator_action, by_rank[i]) == 0)
				return by_rank[i];
	return state == RT_SUPPORTED || state == RT_HOST_GATED ? "inspect_reasons"
							       : "use_different_runtime";
}

static bool repair_supported(const struct rt_known *k)
{
	return k->session_repair == RT_SUPPORTED || k->session_repair == RT_HOST_GATED;
}

static void add_diagnostic(struct sbx_buf *out, const struct row *row)
{
	const struct rt_known *k = row->known;

	sbx_buf_printf(out,
		       "{\"name\":\"%s\",\"available\":%s,\"implementation_state\":\"%s\","
		       "\"readiness\":\"%s\"",
		       k->name, yes(row->available), rt_support_name(k->implementation),
		       readiness(row));
	add_reasons(out, row);
	add_isolation(out, k);
	add_strict(out, row);
	sbx_buf_printf(out,
		       ",\"session_reuse_model\":\"%s\",\"requires_live_health_check\":%s"
		       ",\"repair_supported\":%s,\"recommended_action\":\"%s\"}",
		       k->session_reuse, yes(k->session_live_check), yes(repair_supported(k)),
		       recommended_action(row));
}

struct summary {
	size_t total, ready, unavailable, host_gated, scaffold;
};

static void sum_up(struct summary *sum, const char *state)
{
	sum->total++;
	if (strcmp(state, "ready") == 0)
		sum->ready++;
	else if (strcmp(state, "host_gated") == 0)
		sum->host_gated++;
	else if (strcmp(state, "scaffold") == 0)
		sum->scaffold++;
	else
		sum->unavailable++;
}

static void add_name(struct sbx_buf *out, const char *name)
{
	sbx_buf_printf(out, "%s\"%s\"", out->len ? "," : "", name);
}

int orch_runtime_diagnostics(const struct orch_settings *settings,
			     const struct orch_preflights *preflights, struct sbx_buf *out,
			     struct sbx_error *e)
{
	sbx_autobuf rows = SBX_BUF_INIT(ROWS_MAX), warned = SBX_BUF_INIT(ROWS_MAX),
		    repairable = SBX_BUF_INIT(ROWS_MAX);
	struct summary sum = { .total = 0 };

	for (size_t i = 0; rt_known_at(i); i++) {
		struct row row;

		row_init(&row, settings, preflights, rt_known_at(i));
		sum_up(&sum, readiness(&row));
		if (host_local(row.known))
			add_name(&warned, row.known->name);
		if (repair_supported(row.known))
			add_name(&repairable, row.known->name);
		sbx_buf_puts(&rows, i ? "," : "");
		add_diagnostic(&rows, &row);
	}
	out->failed |= rows.failed || warned.failed || repairable.failed;
	if (out->failed)
		return finish(out, e);
	sbx_buf_printf(out,
		       "{\"source\":\"feature_discovery\",\"summary\":{\"total\":%zu,\"ready\":%zu,"
		       "\"unavailable\":%zu,\"host_gated\":%zu,\"scaffold\":%zu,"
		       "\"host_local_warning_runtimes\":[%s],\"repair_supported_runtimes\":[%s]}",
		       sum.total, sum.ready, sum.unavailable, sum.host_gated, sum.scaffold,
		       warned.data, repairable.data);
	/* Start-up problems of this service stop it; there are none to report once it answers. */
	sbx_buf_printf(out,
		       ",\"runtimes\":[%s],\"startup_warning_summary\":{\"present\":false,"
		       "\"blocking\":false,\"codes\":[]}}\n",
		       rows.data);
	return finish(out, e);
}
