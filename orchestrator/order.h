/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a door and a runner say to each other on their socket, one message a packet:
 *
 *   runner to door   "ready OWNER"
 *   door to runner   "run ID GENERATION", and what the runner would otherwise read from the store,
 *                    when the door has it at hand and it is not too long
 */
#ifndef SBX_ORCHESTRATOR_ORDER_H
#define SBX_ORCHESTRATOR_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "store/store.h"

enum { ORCH_ORDER_MAX = 16 << 10 }; /* bytes of one packet */

struct orch_order {
	char id[37];
	int64_t generation;
	/* The claimed row, as far as a supervisor needs it, and the text of its spec. All borrow
	 * from the packet (or, for writing, from the caller). spec NULL: to be read from the store.
	 */
	struct store_run run;
	const char *spec;
};

/* Appends the packet. What does not fit is left out, and the runner reads the store. */
void orch_order_write(const struct orch_order *o, struct sbx_buf *out);
/* msg[n] is '\0'. False: not an order. */
bool orch_order_read(char *msg, size_t n, struct orch_order *ret);

#endif
