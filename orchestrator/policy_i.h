/* SPDX-License-Identifier: Apache-2.0 */
/* Private to policy.c, preflights.c, policy_hash.c, discovery.c and operator.c. */
#ifndef SBX_ORCHESTRATOR_POLICY_I_H
#define SBX_ORCHESTRATOR_POLICY_I_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "orchestrator/policy.h"

/* preflights.c */

/* Does the runtime's host record say that limits hold for a whole tree ("limits": "cgroup")? */
bool orch_preflight_cgroup(const struct orch_preflights *p, const char *runtime);
/* The reasons that stand in a way: those of the record, or preflight_missing without one. Fills
 * reasons[] and returns how many; 0 means available. */
size_t orch_preflight_reasons(const struct rt_preflight *p, const char *reasons[RT_REASONS_MAX]);
/* What a runtime is published to do for policy deny_all: the static posture, or what the operator
 * has set for it. */
struct rt_policy_posture orch_deny_all_posture(const struct orch_settings *s,
					       const struct rt_known *known);
/* Can the runtime really enforce this policy here? What it is made for and what the host lets it do
 * must both say so. */
bool orch_strict_support(const struct rt_policy_posture *posture, bool ready);

/* ["a","b"] */
void orch_json_strings(struct sbx_buf *out, const char *const *items, size_t n);
/* A comma separated list (NULL: empty) as ["a","b"]. */
void orch_json_list(struct sbx_buf *out, const char *commas);

#endif
