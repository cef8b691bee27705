/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SBX_ORCHESTRATOR_STAGE_I_H
#define SBX_ORCHESTRATOR_STAGE_I_H

#include "base/error.h"

/* A directory beside a workspace, in which something is made that is not whole yet. */
struct stage {
	int fd; /* owned; flock(2)ed as long as it is used */
	char name[32];
};
/* In the directory of a session; what processes have left that ended in the middle goes. */
int stage_make(int dir, struct stage *ret, struct sbx_error *e);
/* With all that is in it. fd -1: there is none. */
void stage_end(int dir, struct stage *s);

#endif
