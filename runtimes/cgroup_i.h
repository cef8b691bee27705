/* SPDX-License-Identifier: Apache-2.0 */
/* Private to cgroup*.c. */
#ifndef SBX_RUNTIMES_CGROUP_I_H
#define SBX_RUNTIMES_CGROUP_I_H

#include "runtimes/cgroup.h"

#define CG_OUR_DIR    "sandboxfs"
#define CG_SUPERVISOR "supervisor"

/* One directory that holds leaves; controllers that are mounted together share it. */
struct cg_base {
	char path[CG_PATH_SIZE];
	int fd; /* owned */
	bool v2;
};

/* A version 2 base beside one for each version 1 controller. */
enum { CG_BASES_MAX = CG__CONTROLLERS + 1 };

struct cg {
	struct cg_layout layout;
	struct cg_base bases[CG_BASES_MAX];
	size_t n_bases;
	int base_of[CG__CONTROLLERS]; /* index into bases; -1: not available */
	pid_t owner;		      /* who opened it; a forked child owns no leaf */
	uint64_t serial;	      /* of the next leaf */
	struct cg_leaf *parked;	      /* owned; clean, for the next to use */
};

/* cgroup_leaf.c: removes and frees it. NULL is fine. */
void cg_leaf_discard(struct cg_leaf *leaf);
/* Frees it and leaves it where it is. NULL is fine. */
void cg_leaf_disown(struct cg_leaf *leaf);
/* cgroup_sweep.c: kills and waits for everything in bases[].fd/name and removes that directory. */
void cg_remove_leaf(const struct cg_base *base, const char *name);
/* Start time of a process in clock ticks since boot; 0 when there is no such process. */
uint64_t cg_start_time(pid_t pid);
/* Is the process that had this start time no more? Only what is certain counts, for whoever asks
 * takes away what belongs to it. start 0: it was not known. */
bool cg_process_gone(pid_t pid, uint64_t start);

#endif
