/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps of a run that its supervisor takes, and the one that ends it for somebody else.
 * Every change of phase in the product is one of these; each names the claim's generation, so that
 * a claimant who lost the run can write nothing.
 */
#ifndef SBX_ORCHESTRATOR_PHASE_H
#define SBX_ORCHESTRATOR_PHASE_H

#include "base/error.h"
#include "store/store.h"

/* How a run ended. Strings borrowed. */
struct orch_outcome {
	enum store_phase phase; /* a terminal one */
	const char *reason;	/* taxonomy code */
	const char *message;
	bool has_exit_code;
	int exit_code;
	const char *usage; /* JSON object */
	const char *image_digest, *runtime_version;
	const char *network; /* JSON object: what an allowlist stood for; NULL: there was none */
	int64_t started_us;  /* when the command began to execute; 0: it did not */
	int64_t log_bytes;
	const struct store_artifact *artifacts;
	size_t n_artifacts;
	size_t n_patterns; /* that the spec had, for the audit */
	/* Bytes that all artifacts of the user may have, 0: any. When others of the user's ended
	 * meanwhile and these no longer fit, they are removed. */
	int64_t artifact_user_max;
};

/* "host/boot-id/pid/start time/random": names one process for ever. malloc'd. */
char *orch_owner_new(void);
/* False only when the owner certainly is gone: same host, other boot, or same boot and no such
 * process any more. */
bool orch_owner_alive(const char *owner);
/* Ends an owner that lives on but has lost its claim, and with it its sandbox. True: it is gone. */
bool orch_owner_kill(const char *owner);

/* starting -> running, by the holder; started_us: when the command began. CLAIM_LOST. */
int orch_phase_running(struct store *s, const char *id, int64_t generation, int64_t started_us,
		       struct sbx_error *e);
/* A later lease for the holder. CLAIM_LOST. */
int orch_phase_renew(struct store *s, const char *id, int64_t generation, int64_t lease_us,
		     struct sbx_error *e);
/*
 * The end, written by the holder, with artifacts and audit in the same transaction. The row is
 * visible but not yet durable nor announced when it returns: the caller calls
 * store_settle(*ret_ticket). CLAIM_LOST.
 */
int orch_phase_end(struct store *s, const struct store_run *run, int64_t generation,
		   const struct orch_outcome *out, struct store_ticket *ret_ticket,
		   struct sbx_error *e);

#endif
