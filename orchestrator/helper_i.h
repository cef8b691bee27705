/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SBX_ORCHESTRATOR_HELPER_I_H
#define SBX_ORCHESTRATOR_HELPER_I_H

#include "orchestrator/orch_i.h"

/* Runs sandbox-image with these words (NULL-ended) behind its options, and waits for its end: long.
 * file becomes its standard input, extra (-1: none) its descriptor 4. *out: the JSON object that it
 * printed. Its own error, as it says it; INTERRUPTED after orch_stop_helpers. */
int helper_run(struct orch *o, const char *const *words, int file, int extra, struct sbx_buf *out,
	       struct sbx_error *e);

#endif
