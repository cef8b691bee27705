/* SPDX-License-Identifier: Apache-2.0 */
/* What the service says of itself and of its runtimes. */
#include "orchestrator/orch_i.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"

/* The contract's members. *ret_queued, *ret_active: what the store said, 0 if it did not. */
static void add_health(struct orch *o, int64_t *ret_queued, int64_t *ret_active,
		       struct sbx_buf *out)
{
	int64_t t0 = sbx_boot_us();
	bool ok = store_counts(o->store, ret_queued, ret_active, NULL) == 0 &&
		  store_healthy(o->store);
	char now[SBX_TIME_TEXT];

	sbx_buf_printf(out,
		       "{\"ok\":%s,\"store\":{\"mode\":\"%s\",\"healthy\":%s%s},"
		       "\"redis\":{\"enabled\":false,\"channel\":null,\"connected\":false},"
		       "\"timings\":{\"store_ms\":%.3f},\"time\":\"%s\"",
		       ok ? "true" : "false", orch_settings(o)->store_backend,
		       ok ? "true" : "false", ok ? "" : ",\"code\":\"internal_error\"",
		       (double)(sbx_boot_us() - t0) / 1000, sbx_time_format(sbx_now_us(), now));
}

int orch_view_health_public(struct orch *o, struct sbx_buf *out, struct sbx_error *e)
{
	int64_t queued = 0, active = 0;

	add_health(o, &queued, &active, out);
	sbx_buf_puts(out, "}\n");
	return orch_view_done(0, out, e);
}

int orch_view_health(struct orch *o, struct sbx_buf *out, struct sbx_error *e)
{
	int64_t queued = 0, active = 0;

	add_health(o, &queued, &active, out);
	sbx_buf_printf(out,
		       ",\"uptime_sec\":%lld,\"version\":\"%s\",\"queue\":{\"queued\":%lld,"
		       "\"active\":%lld,\"slots\":%lld},\"execution\":%s",
		       (long long)((sbx_now_us() - o->opened_us) / SBX_SECOND_US), SBX_VERSION,
		       (long long)queued, (long long)active, (long long)orch_slots(o),
		       orch_slots(o) > 0 ? "true" : "false");
	watching_view(o, out);
	sbx_buf_puts(out, "}\n");
	return orch_view_done(0, out, e);
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

int orch_view_runtimes(struct orch *o, struct sbx_buf *out, struct sbx_error *e)
{
	struct orch_config *c = orch_config(o);

	return orch_discovery(c->settings, c->preflights, out, e);
}

int orch_view_check(struct orch *o, bool json, struct sbx_buf *out, struct sbx_error *e)
{
	struct orch_config *c = orch_config(o);
	const struct rt_known *k;

	if (json)
		return orch_view_runtimes(o, out, e);
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
	return orch_view_done(0, out, e);
}
