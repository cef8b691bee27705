/* SPDX-License-Identifier: Apache-2.0 */
/* Why a run is in its phase: one row per code in taxonomy.def. */
#ifndef SBX_ORCHESTRATOR_TAXONOMY_H
#define SBX_ORCHESTRATOR_TAXONOMY_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "store/store.h"

struct orch_reason {
	const char *code, *category, *severity;
	bool terminal, retryable;
	const char *operator_action;
	const char *doc; /* one sentence for people, used by `why` and docs */
};
/* The reference's fifteen codes, then ours (claim_lease_expired, runner_lost). */
const struct orch_reason *orch_reason_at(size_t i);	      /* NULL past the end */
const struct orch_reason *orch_reason_find(const char *code); /* "unknown" for anything else */
/* The seven members of status_reason_details as a JSON object. */
void orch_reason_json(const struct orch_reason *r, struct sbx_buf *out);
/* For rows without a stored code: derives it from phase, message, exit code and usage counters, as
 * the contract's section 8 has it. usage: JSON object text or NULL. */
const char *orch_reason_derive(enum store_phase phase, const char *message, bool has_exit_code,
			       int exit_code, const char *usage);

/* How audit and metrics call an end: success, timeout, failed, killed. */
const char *orch_outcome_word(enum store_phase phase);

#endif
