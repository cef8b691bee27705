/* SPDX-License-Identifier: Apache-2.0 */
/* A user's runs of one workspace, and whether a new one would be let in. */
#include "orchestrator/orch_i.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { WORKSPACE_PAGE_MAX = 100 };

/* What the runtimes are good for, or whether a run is admitted. */
struct verdict {
	const char *state, *code, *message; /* code: NULL when there is nothing to say against it */
};

static void judge_runtimes(struct orch *o, struct verdict *ret)
{
	struct orch_config *c = orch_config(o);
	const struct rt_known *k;
	size_t known = 0, tried = 0, ready = 0;

	for (size_t i = 0; (k = rt_known_at(i)); i++, known++) {
		const struct rt_preflight *p = orch_preflight(c->preflights, k->name);

		tried += p != NULL;
		ready += p && p->n_reasons == 0;
	}
	if (ready)
		*ret = (struct verdict){ "available", NULL, "A runtime can be used." };
	else if (!known)
		*ret = (struct verdict){ "not_configured", "sandbox_no_runtimes_discovered",
					 "This host has no runtime." };
	else if (tried)
		*ret = (struct verdict){ "unavailable", "sandbox_runtime_unavailable",
					 "No runtime can be used on this host now." };
	else
		*ret = (struct verdict){ "unknown", "sandbox_not_available",
					 "The runtimes of this host could not be tried." };
}

static void judge_admission(struct orch *o, const struct verdict *runtime, struct verdict *ret)
{
	if (strcmp(runtime->state, "not_configured") == 0)
		*ret = (struct verdict){ "blocked", "sandbox_not_configured", runtime->message };
	else if (runtime->code)
		*ret = (struct verdict){ "blocked", runtime->code, runtime->message };
	else if (!orch_settings(o)->enable_execution)
		*ret = (struct verdict){ "blocked", "sandbox_execution_disabled",
					 "Execution is disabled on this host." };
	else
		*ret = (struct verdict){ "available", NULL, "New runs are admitted." };
}

static void add_verdict(struct sbx_buf *out, const char *name, const struct verdict *v)
{
	sbx_buf_printf(out, ",\"%s\":{\"state\":\"%s\",\"reason_code\":", name, v->state);
	sbx_buf_json_strz(out, v->code);
	sbx_buf_puts(out, ",\"message\":");
	sbx_buf_json_strz(out, v->message);
	sbx_buf_puts(out, ",\"management_surface\":\"sandbox_settings\"}");
}

struct shown {
	struct sbx_buf *out;
	int64_t n;
};

static bool add_run(void *ctx, const struct store_run *r)
{
	struct shown *l = ctx;

	sbx_buf_puts(l->out, l->n++ ? ",\n" : "\n");
	orch_run_object(r, ORCH_FORM_WORKSPACE, NULL, l->out);
	return !sbx_buf_failed(l->out);
}

/* As one value of a query. */
static void add_encoded(struct sbx_buf *out, const char *text)
{
	for (; *text; text++) {
		if (isalnum((unsigned char)*text) || strchr("-._~", *text))
			sbx_buf_add(out, text, 1);
		else
			sbx_buf_printf(out, "%%%02X", (unsigned char)*text);
	}
}

int orch_view_workspace(struct orch *o, const struct orch_principal *p, const char *workspace_id,
			int64_t limit, struct sbx_buf *out, struct sbx_error *e)
{
	const struct store_run_filter f = { .user = p->user,
					    .workspace_id = workspace_id,
					    .limit = limit };
	struct shown l = { .out = out };
	struct verdict runtime, admission;
	int64_t total = 0;
	char found[24];
	int rc;

	(void)snprintf(found, sizeof(found), "%lld", (long long)limit);
	if (limit < 1 || limit > WORKSPACE_PAGE_MAX)
		return orch_view_refuse("limit", found, "1 to 100", e);
	judge_runtimes(o, &runtime);
	judge_admission(o, &runtime, &admission);
	rc = store_workspace_count(o->store, workspace_id, p->user, &total, e);
	sbx_buf_puts(out, "{\"workspace_id\":");
	sbx_buf_json_strz(out, workspace_id);
	sbx_buf_puts(out, ",\"source_label\":\"research_workspace\"");
	add_verdict(out, "runtime", &runtime);
	add_verdict(out, "admission", &admission);
	sbx_buf_printf(out, ",\"runs\":{\"total\":%lld,\"limit\":%lld,\"has_more\":%s,\"items\":[",
		       (long long)total, (long long)limit, total > limit ? "true" : "false");
	if (rc == 0)
		rc = store_run_list(o->store, &f, add_run, &l, e);
	sbx_buf_puts(out, "]},\"links\":{\"runtime_config\":\"/admin/runtime-config\","
			  "\"admin_runs\":\"/admin/monitoring?focus=sandbox&workspace_id=");
	add_encoded(out, workspace_id);
	sbx_buf_puts(out, "\"}}\n");
	return orch_view_done(rc, out, e);
}
