/* SPDX-License-Identifier: Apache-2.0 */
/* Trust tiers, clamps, choice of runtime, fail closed: contract/core.md section 7 in one place. */
#ifndef SBX_ORCHESTRATOR_POLICY_H
#define SBX_ORCHESTRATOR_POLICY_H

#include "base/buf.h"
#include "base/error.h"
#include "mountspec/mountspec.h"
#include "orchestrator/settings.h"
#include "runtimes/runtimes.h"

/* What every runtime said when it was tried on this host. Immutable once made; replaced whole. */
struct orch_preflights;
/* From the JSON that `sandbox-runner --preflight` prints (rt_preflight_json of every runtime). A
 * runtime that is missing in it is unavailable. */
int orch_preflights_parse(const char *json, struct orch_preflights **ret, struct sbx_error *e);
/* What it was parsed from; borrowed. */
const char *orch_preflights_text(const struct orch_preflights *p);
/* `p` takes the place of `older`, which it owns from now on: others may still look at it. */
void orch_preflights_replace(struct orch_preflights *p, struct orch_preflights *older);
struct orch_preflights *orch_preflights_free(struct orch_preflights *p); /* NULL is fine */
/* NULL: no record, which means unavailable. Borrowed. */
const struct rt_preflight *orch_preflight(const struct orch_preflights *p, const char *runtime);

/* What the run will really get. Strings are borrowed from the spec, settings or static. */
struct orch_effective {
	const char *runtime, *trust_level, *network_policy, *base_image;
	int64_t timeout_sec, startup_timeout_sec;
	double cpu;
	int64_t memory_mb, pids, nofile, workspace_cap_mb;
	bool strict_limits; /* the tier needs limits that hold for the whole tree */
};

/*
 * Applies policy to a parsed spec: fills in defaults, clamps cpu, memory, time, pids to
 * min(global, tier), and writes the effective values back into *spec (so that spec.json shows
 * them). RUNTIME_UNAVAILABLE with details runtime, available, suggested, reasons;
 * POLICY_UNSUPPORTED with details runtime, requirement, reasons. Never falls back to another
 * runtime.
 */
int orch_policy_apply(const struct orch_settings *settings,
		      const struct orch_preflights *preflights, struct ms_run_spec *spec,
		      struct orch_effective *ret, struct sbx_error *e);

/* The caps of a tier after the global settings: min(global, tier). */
struct orch_tier_limits {
	double cpu;
	int64_t memory_mb, timeout_sec, workspace_cap_mb, pids, nofile;
	const char *network_policy; /* what it gives a run that names none; borrowed */
};
/* level: trusted, standard or untrusted; anything else gets the caps of untrusted. */
void orch_tier_limits(const struct orch_settings *settings, const char *level,
		      struct orch_tier_limits *ret);

/* 16 hex digits over the configuration, as in contract/core.md 7.6 (same canonical JSON). */
void orch_policy_hash(const struct orch_settings *settings, char out[17]);

/* One row of GET /runtimes, which is also runtimes/<name>.json on the mount (one JSON object and a
 * newline). NOT_FOUND for an unknown name. */
int orch_discovery_row(const struct orch_settings *settings,
		       const struct orch_preflights *preflights, const char *runtime,
		       struct sbx_buf *out, struct sbx_error *e);
/* {"runtimes":[...]} of all. */
int orch_discovery(const struct orch_settings *settings, const struct orch_preflights *preflights,
		   struct sbx_buf *out, struct sbx_error *e);
/* The admin view: contract/api.md 9.1. */
int orch_runtime_diagnostics(const struct orch_settings *settings,
			     const struct orch_preflights *preflights, struct sbx_buf *out,
			     struct sbx_error *e);

#endif
