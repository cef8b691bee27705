/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a run will really get, or why it cannot be had. Nothing is softened here: there is no
 * other runtime when the wanted one is not available, and no weaker rule when a rule cannot be
 * enforced.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/auto.h"
#include "orchestrator/image.h"
#include "orchestrator/policy_i.h"
#include "runtimes/net/targets.h"

struct tier {
	const char *name, *network_policy;
	double max_cpu;
	int64_t max_mem_mb, timeout_sec, workspace_cap_mb, pids_limit, ulimit_nofile;
};

#define TIER(s, level)                                                                             \
	{                                                                                          \
		.name = #level, .network_policy = (s)->tier_##level##_network_policy,              \
		.max_cpu = (s)->tier_##level##_max_cpu,                                            \
		.max_mem_mb = (s)->tier_##level##_max_mem_mb,                                      \
		.timeout_sec = (s)->tier_##level##_timeout_sec,                                    \
		.workspace_cap_mb = (s)->tier_##level##_workspace_cap_mb,                          \
		.pids_limit = (s)->tier_##level##_pids_limit,                                      \
		.ulimit_nofile = (s)->tier_##level##_ulimit_nofile,                                \
	}

static int find_tier(const struct orch_settings *s, const char *level, struct tier *ret,
		     struct sbx_error *e)
{
	const struct tier tiers[] = { TIER(s, trusted), TIER(s, standard), TIER(s, untrusted) };

	if (!level || !*level)
		level = "standard";
	for (size_t i = 0; i < SBX_COUNT(tiers); i++)
		if (strcmp(tiers[i].name, level) == 0) {
			*ret = tiers[i];
			return 0;
		}
	return sbx_fail(e, SBX_E_INVALID_SPEC,
			"trust_level: found \"%.80s\", allowed are trusted, standard, untrusted",
			level);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static int no_memory(struct sbx_error *e)
{
	return sbx_fail(e, SBX_E_NO_MEMORY, "no memory to apply the policy");
}

/* A runtime that takes the same images and can be used; NULL when there is none. For the client to
 * choose: nothing is ever replaced here. */
static const char *suggestion(const struct orch_preflights *preflights, const char *runtime)
{
	static const char *const pairs[][2] = { { "firecracker", "docker" },
						{ "docker", "firecracker" } };

	for (size_t i = 0; i < SBX_COUNT(pairs); i++) {
		const struct rt_preflight *p = orch_preflight(preflights, pairs[i][1]);

		if (strcmp(pairs[i][0], runtime) == 0 && p && p->n_reasons == 0)
			return pairs[i][1];
	}
	return NULL;
}

static int unavailable(const char *runtime, const char *suggested, const char *const *reasons,
		       size_t n, struct sbx_error *e)
{
	sbx_autobuf name = SBX_BUF_INIT(1024), list = SBX_BUF_INIT(8192);
	sbx_autobuf others = SBX_BUF_INIT(1024);

	sbx_buf_json_strz(&name, runtime);
	orch_json_strings(&others, &suggested, suggested ? 1 : 0);
	orch_json_strings(&list, reasons, n);
	if (sbx_buf_failed(&name) || sbx_buf_failed(&list) || sbx_buf_failed(&others))
		return no_memory(e);
	(void)sbx_fail(e, SBX_E_RUNTIME_UNAVAILABLE, "Requested runtime '%s' is unavailable",
		       runtime);
	(void)sbx_error_details(
		e, "{\"runtime\":%s,\"available\":false,\"suggested\":%s,\"reasons\":%s}",
		name.data, others.data, list.data);
	return -SBX_E_RUNTIME_UNAVAILABLE;
}

static int unsupported(const char *runtime, const char *requirement, const char *reason,
		       struct sbx_error *e)
{
	sbx_autobuf name = SBX_BUF_INIT(1024), wanted = SBX_BUF_INIT(8192);

	sbx_buf_json_strz(&name, runtime);
	sbx_buf_json_str(&wanted, requirement, strnlen(requirement, 1024));
	if (sbx_buf_failed(&name) || sbx_buf_failed(&wanted))
		return no_memory(e);
	(void)sbx_fail(e, SBX_E_POLICY_UNSUPPORTED,
		       "Runtime '%s' does not satisfy requirement '%.200s'", runtime, requirement);
	(void)sbx_error_details(e, "{\"runtime\":%s,\"requirement\":%s,\"reasons\":[\"%s\"]}",
				name.data, wanted.data, reason);
	return -SBX_E_POLICY_UNSUPPORTED;
}

static int not_allowed(const char *runtime, const char *target, struct sbx_error *e)
{
	sbx_autobuf wanted = SBX_BUF_INIT(8192);

	sbx_buf_json_str(&wanted, target, strnlen(target, 1024));
	if (sbx_buf_failed(&wanted))
		return no_memory(e);
	(void)sbx_fail(e, SBX_E_POLICY_UNSUPPORTED,
		       "network_allowlist: \"%.200s\" is not within what the operator allows "
		       "(egress_allowlist)",
		       target);
	(void)sbx_error_details(e,
				"{\"runtime\":\"%s\",\"requirement\":\"network_allowlist\","
				"\"found\":%s,\"reasons\":[\"target_not_allowed\"]}",
				runtime, wanted.data);
	return -SBX_E_POLICY_UNSUPPORTED;
}

/* ---- checks, in their order ------------------------------------------------------------------ */

static int find_runtime(const struct orch_settings *s, const struct ms_run_spec *spec,
			const struct rt_known **ret, struct sbx_error *e)
{
	const char *name = spec->runtime && *spec->runtime ? spec->runtime : s->default_runtime;
	sbx_autobuf known = SBX_BUF_INIT(1024);

	*ret = rt_known_find(name);
	if (*ret)
		return 0;
	for (size_t i = 0; rt_known_at(i); i++)
		sbx_buf_printf(&known, "%s%s", i ? ", " : "", rt_known_at(i)->name);
	return sbx_fail(e, SBX_E_INVALID_SPEC, "runtime: found \"%.80s\", allowed are %s", name,
			sbx_buf_failed(&known) ? "the names in runtimes" : known.data);
}

/* What no host can change comes first: "unavailable" would invite to try again. */
static int check_boundary(const struct rt_known *rt, const struct tier *tier, struct sbx_error *e)
{
	if (strcmp(rt->boundary_class, "host_local") == 0 && strcmp(tier->name, "untrusted") == 0)
		return unsupported(rt->name, "untrusted_requires_vm_runtime",
				   "trust_level_requires_vm_runtime", e);
	return 0;
}

static int check_available(const struct rt_known *rt, const struct orch_preflights *preflights,
			   struct sbx_error *e)
{
	const char *reasons[RT_REASONS_MAX];
	size_t n = orch_preflight_reasons(orch_preflight(preflights, rt->name), reasons);

	return n ? unavailable(rt->name, suggestion(preflights, rt->name), reasons, n, e) : 0;
}

static int check_trust(const struct rt_known *rt, const struct rt_preflight *p,
		       const struct tier *tier, struct sbx_error *e)
{
	const struct {
		const char *name, *requirement;
		bool served;
	} levels[] = {
		{ "trusted", "trust_level:trusted", p->trusted },
		{ "standard", "trust_level:standard", p->standard },
		{ "untrusted", "trust_level:untrusted", p->untrusted },
	};

	for (size_t i = 0; i < SBX_COUNT(levels); i++) {
		if (levels[i].served || strcmp(levels[i].name, tier->name) != 0)
			continue;
		if (strcmp(rt->name, "seatbelt") == 0 && strcmp(tier->name, "standard") == 0)
			return unsupported(rt->name, "standard_not_enabled",
					   "seatbelt_standard_disabled", e);
		return unsupported(rt->name, levels[i].requirement, "trust_level_not_supported", e);
	}
	return 0;
}

enum { NETWORK_MAX = 128 }; /* more of a policy's name is cut off; it matches nothing then */

/* The document's word, trimmed and in lower case; the tier's when it has none. */
static void network_word(const struct orch_settings *s, const struct tier *tier, const char *text,
			 char out[NETWORK_MAX])
{
	size_t n = 0;

	while (text && isspace((unsigned char)*text))
		text++;
	if (!text || !*text)
		text = strcmp(tier->network_policy, "default") ? tier->network_policy
							       : s->network_default;
	while (text[n] && n < NETWORK_MAX - 1) {
		out[n] = (char)tolower((unsigned char)text[n]);
		n++;
	}
	while (n && isspace((unsigned char)out[n - 1]))
		n--;
	out[n] = '\0';
}

/* *ret is static. */
static int choose_network(const struct orch_settings *s, const struct rt_known *rt,
			  const struct rt_preflight *p, const char *word, const char **ret,
			  struct sbx_error *e)
{
	const struct rt_policy_posture deny_all = orch_deny_all_posture(s, rt);
	const struct {
		const char *name, *reason;
		const struct rt_policy_posture *posture;
		bool ready;
	} modes[] = {
		{ "deny_all", "strict_deny_all_not_supported", &deny_all, p->deny_all_ready },
		{ "allowlist", "strict_allowlist_not_supported", &rt->allowlist,
		  p->allowlist_ready },
	};

	for (size_t i = 0; i < SBX_COUNT(modes); i++) {
		if (strcmp(modes[i].name, word) != 0)
			continue;
		if (!orch_strict_support(modes[i].posture, modes[i].ready))
			return unsupported(rt->name, modes[i].name, modes[i].reason, e);
		*ret = modes[i].name;
		return 0;
	}
	return unsupported(rt->name, word, "unsupported_network_policy", e);
}

/* A list of targets under deny_all would look as if it did something. */
static int check_allowlist(const struct ms_run_spec *spec, const char *network, struct sbx_error *e)
{
	if (!spec->n_network_allowlist || strcmp(network, "allowlist") == 0)
		return 0;
	(void)sbx_fail(e, SBX_E_INVALID_SPEC,
		       "network_allowlist: found %zu targets, allowed only with network_policy "
		       "\"allowlist\"; the run's is \"%s\"",
		       spec->n_network_allowlist, network);
	(void)sbx_error_details(e,
				"{\"field\":\"network_allowlist\",\"found\":\"%zu targets\","
				"\"allowed\":\"none with network_policy %s\"}",
				spec->n_network_allowlist, network);
	return -SBX_E_INVALID_SPEC;
}

/* A run may reach less than the operator lets runs reach, and never more. */
static int check_targets(const struct orch_settings *s, const struct rt_known *rt,
			 const struct ms_run_spec *spec, struct sbx_error *e)
{
	struct net_tokens wanted = { .n = 0 }, allowed = { .n = 0 };
	size_t at = 0;
	int rc = net_tokens_add((const char *const *)spec->network_allowlist,
				spec->n_network_allowlist, "network_allowlist", SBX_E_INVALID_SPEC,
				&wanted, e);

	if (!rc)
		rc = net_tokens_add_list(s->egress_allowlist, "egress_allowlist",
					 SBX_E_INVALID_CONFIG, &allowed, e);
	if (!rc) {
		at = net_tokens_uncovered(&allowed, &wanted);
		if (at < wanted.n)
			rc = -SBX_E_POLICY_UNSUPPORTED;
	}
	net_tokens_clear(&wanted);
	net_tokens_clear(&allowed);
	return rc == -SBX_E_POLICY_UNSUPPORTED
		       ? not_allowed(rt->name, spec->network_allowlist[at], e)
		       : rc;
}

/* ---- what it gets ---------------------------------------------------------------------------- */

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* Not given (0 or less) is the cap; more than the cap is the cap. */
static int64_t clamp(int64_t wanted, int64_t cap)
{
	return wanted <= 0 ? cap : least(wanted, cap);
}

static void tier_limits(const struct orch_settings *s, const struct tier *tier,
			struct orch_tier_limits *ret)
{
	*ret = (struct orch_tier_limits){
		.cpu = s->max_cpu < tier->max_cpu ? s->max_cpu : tier->max_cpu,
		.memory_mb = least(s->max_mem_mb, tier->max_mem_mb),
		.timeout_sec = tier->timeout_sec,
		.workspace_cap_mb = least(s->workspace_cap_mb, tier->workspace_cap_mb),
		.pids = least(s->pids_limit, tier->pids_limit),
		.nofile = least(s->ulimit_nofile, tier->ulimit_nofile),
		.network_policy = tier->network_policy,
	};
}

void orch_tier_limits(const struct orch_settings *settings, const char *level,
		      struct orch_tier_limits *ret)
{
	struct tier tier = TIER(settings, untrusted);

	(void)find_tier(settings, level ? level : "untrusted", &tier, NULL);
	tier_limits(settings, &tier, ret);
}

static void clamp_all(const struct orch_settings *s, const struct tier *tier,
		      const struct ms_run_spec *spec, struct orch_effective *ret)
{
	int64_t timeout = spec->timeout_sec > 0 ? spec->timeout_sec : s->default_exec_timeout_sec;
	struct orch_tier_limits max;

	tier_limits(s, tier, &max);
	ret->cpu = spec->cpu > 0 && spec->cpu < max.cpu ? spec->cpu : max.cpu;
	ret->memory_mb = clamp(spec->memory_mb, max.memory_mb);
	ret->pids = clamp(spec->pids, max.pids);
	ret->nofile = max.nofile;
	ret->workspace_cap_mb = max.workspace_cap_mb;
	ret->timeout_sec = least(timeout, max.timeout_sec);
	ret->startup_timeout_sec = spec->startup_timeout_sec > 0 ? spec->startup_timeout_sec
								 : s->default_startup_timeout_sec;
}

/* The copies are made first, so that a failure leaves the document as it was. */
static int write_back(struct ms_run_spec *spec, struct orch_effective *eff, struct sbx_error *e)
{
	sbx_autofree char *runtime = strdup(eff->runtime);
	sbx_autofree char *trust = strdup(eff->trust_level);
	sbx_autofree char *network = strdup(eff->network_policy);

	if (!runtime || !trust || !network)
		return no_memory(e);
	free(spec->runtime);
	free(spec->trust_level);
	free(spec->network_policy);
	eff->runtime = spec->runtime = sbx_steal(&runtime);
	eff->trust_level = spec->trust_level = sbx_steal(&trust);
	eff->network_policy = spec->network_policy = sbx_steal(&network);
	spec->timeout_sec = eff->timeout_sec;
	spec->startup_timeout_sec = eff->startup_timeout_sec;
	spec->cpu = eff->cpu;
	spec->memory_mb = eff->memory_mb;
	spec->pids = eff->pids;
	return 0;
}

int orch_policy_apply(const struct orch_settings *settings,
		      const struct orch_preflights *preflights, struct ms_run_spec *spec,
		      struct orch_effective *ret, struct sbx_error *e)
{
	struct orch_effective eff = { .runtime = NULL };
	const struct rt_preflight *preflight;
	const struct rt_known *rt = NULL;
	char network[NETWORK_MAX];
	struct tier tier = { .name = NULL };
	int rc;

	rc = find_tier(settings, spec->trust_level, &tier, e);
	if (!rc)
		rc = find_runtime(settings, spec, &rt, e);
	if (rc)
		return rc;
	preflight = orch_preflight(preflights, rt->name);
	rc = check_boundary(rt, &tier, e);
	if (!rc)
		rc = check_available(rt, preflights, e);
	if (!rc)
		rc = check_trust(rt, preflight, &tier, e);
	network_word(settings, &tier, spec->network_policy, network);
	if (!rc)
		rc = choose_network(settings, rt, preflight, network, &eff.network_policy, e);
	if (!rc)
		rc = check_allowlist(spec, eff.network_policy, e);
	if (!rc && spec->n_network_allowlist)
		rc = check_targets(settings, rt, spec, e);
	if (rc)
		return rc;
	eff.runtime = rt->name;
	eff.trust_level = tier.name;
	clamp_all(settings, &tier, spec, &eff);
	eff.strict_limits =
		strcmp(tier.name, "untrusted") == 0 || orch_preflight_cgroup(preflights, rt->name);
	rc = write_back(spec, &eff, e);
	if (rc)
		return rc;
	eff.base_image =
		spec->base_image ? spec->base_image : orch_image_default(settings, eff.runtime);
	*ret = eff;
	return 0;
}
