/* SPDX-License-Identifier: Apache-2.0 */
/* What the runtimes said about this host, read once and then only looked at. */
#include <stdlib.h>
#include <string.h>

#include <json-c/json.h>

#include "orchestrator/policy_i.h"

struct record {
	bool present, cgroup;
	struct rt_preflight preflight;
};

struct orch_preflights {
	char *text;		       /* owned */
	struct orch_preflights *older; /* owned */
	size_t n;		       /* one for each runtime, in the order of rt_known_at */
	struct record records[];
};

struct orch_preflights *orch_preflights_free(struct orch_preflights *p)
{
	if (!p)
		return NULL;
	orch_preflights_free(p->older);
	for (size_t i = 0; i < p->n; i++)
		rt_preflight_clear(&p->records[i].preflight);
	free(p->text);
	free(p);
	return NULL;
}

const char *orch_preflights_text(const struct orch_preflights *p)
{
	return p->text;
}

void orch_preflights_replace(struct orch_preflights *p, struct orch_preflights *older)
{
	p->older = older;
}

static int read_record(struct json_object *o, const char *runtime, struct record *ret,
		       struct sbx_error *e)
{
	struct json_object *host = NULL, *limits = NULL;
	int rc = rt_preflight_from_json(o, &ret->preflight);

	if (rc == -SBX_E_NO_MEMORY)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the runtime preflight");
	if (rc)
		return sbx_fail(
			e, SBX_E_RUNTIME_ERROR,
			"runtime preflight: the record of '%s' lacks a member or has one of "
			"the wrong type",
			runtime);
	ret->present = true;
	if (json_object_object_get_ex(o, "host", &host) &&
	    json_object_object_get_ex(host, "limits", &limits) &&
	    json_object_is_type(limits, json_type_string))
		ret->cgroup = strcmp(json_object_get_string(limits), "cgroup") == 0;
	return 0;
}

static struct json_object *parse(const char *json)
{
	struct json_tokener *tok = json_tokener_new();
	struct json_object *o = NULL;
	size_t len = strlen(json);

	if (!tok)
		return NULL;
	while (len && strchr(" \t\r\n", json[len - 1]))
		len--;
	json_tokener_set_flags(tok, JSON_TOKENER_STRICT);
	o = json_tokener_parse_ex(tok, json, (int)len);
	if (o &&
	    (json_tokener_get_parse_end(tok) != len || !json_object_is_type(o, json_type_object))) {
		json_object_put(o);
		o = NULL;
	}
	json_tokener_free(tok);
	return o;
}

int orch_preflights_parse(const char *json, struct orch_preflights **ret, struct sbx_error *e)
{
	struct orch_preflights *p;
	struct json_object *all = parse(json);
	size_t n = 0;
	int rc = 0;

	if (!all)
		return sbx_fail(e, SBX_E_RUNTIME_ERROR,
				"runtime preflight: the answer is not one JSON object");
	while (rt_known_at(n))
		n++;
	p = calloc(1, sizeof(*p) + n * sizeof(p->records[0]));
	if (!p || !(p->text = strdup(json))) {
		free(p);
		json_object_put(all);
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the runtime preflight");
	}
	p->n = n;
	for (size_t i = 0; !rc && i < n; i++) {
		struct json_object *o = NULL;

		if (json_object_object_get_ex(all, rt_known_at(i)->name, &o))
			rc = read_record(o, rt_known_at(i)->name, &p->records[i], e);
	}
	json_object_put(all);
	if (rc) {
		(void)orch_preflights_free(p);
		return rc;
	}
	*ret = p;
	return 0;
}

static const struct record *find(const struct orch_preflights *p, const char *runtime)
{
	for (size_t i = 0; p && i < p->n; i++)
		if (p->records[i].present && strcmp(rt_known_at(i)->name, runtime) == 0)
			return &p->records[i];
	return NULL;
}

const struct rt_preflight *orch_preflight(const struct orch_preflights *p, const char *runtime)
{
	const struct record *r = find(p, runtime);

	return r ? &r->preflight : NULL;
}

bool orch_preflight_cgroup(const struct orch_preflights *p, const char *runtime)
{
	const struct record *r = find(p, runtime);

	return r && r->cgroup;
}

size_t orch_preflight_reasons(const struct rt_preflight *p, const char *reasons[RT_REASONS_MAX])
{
	if (!p) {
		reasons[0] = "preflight_missing";
		return 1;
	}
	memcpy(reasons, p->reasons, p->n_reasons * sizeof(reasons[0]));
	return p->n_reasons;
}

struct rt_policy_posture orch_deny_all_posture(const struct orch_settings *s,
					       const struct rt_known *known)
{
	static const struct rt_policy_posture tried = { RT_HOST_GATED, true, "runtime_preflight" };

	return strcmp(known->name, "worktree") == 0 && s->worktree_deny_all ? tried
									    : known->deny_all;
}

bool orch_strict_support(const struct rt_policy_posture *posture, bool ready)
{
	return ready && posture->strict &&
	       (posture->state == RT_SUPPORTED || posture->state == RT_HOST_GATED);
}

void orch_json_strings(struct sbx_buf *out, const char *const *items, size_t n)
{
	sbx_buf_puts(out, "[");
	for (size_t i = 0; i < n; i++) {
		sbx_buf_puts(out, i ? "," : "");
		sbx_buf_json_strz(out, items[i]);
	}
	sbx_buf_puts(out, "]");
}

void orch_json_list(struct sbx_buf *out, const char *commas)
{
	const char *separator = "";

	sbx_buf_puts(out, "[");
	for (const char *p = commas; p && *p; p += strspn(p, ",")) {
		size_t n = strcspn(p, ",");

		sbx_buf_puts(out, separator);
		sbx_buf_json_str(out, p, n);
		separator = ",";
		p += n;
	}
	sbx_buf_puts(out, "]");
}
