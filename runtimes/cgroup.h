/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control groups of either version, or both at once: one small group ("leaf") for each sandbox,
 * below a directory of ours. A leaf is named after the process that made it, so that what a dead
 * process left behind can be told from what a living one uses. Single-threaded.
 */
#ifndef SBX_RUNTIMES_CGROUP_H
#define SBX_RUNTIMES_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

enum cg_controller { CG_MEMORY, CG_PIDS, CG_CPU, CG_CPUACCT, CG__CONTROLLERS };

enum { CG_PATH_SIZE = 1024, CG_NAME_SIZE = 96 };

/* Directories of the caller's own groups; "" where there is none. Every controller that is not
 * attached to a version 1 hierarchy may be found in the version 2 one. */
struct cg_layout {
	char v1[CG__CONTROLLERS][CG_PATH_SIZE];
	char freezer[CG_PATH_SIZE]; /* of version 1; no leaf has one of its own */
	char v2[CG_PATH_SIZE];
};

/* From the texts of /proc/self/cgroup and /proc/self/mountinfo. `group`, when not NULL, is the
 * path of a group ("/a/b") to take instead of the caller's own. */
void cg_layout_parse(const char *self_cgroup, const char *mountinfo, const char *group,
		     struct cg_layout *ret);
/* "v1", "v2", "hybrid" (both are mounted) or "none". */
const char *cg_layout_name(const struct cg_layout *l);

struct cg;

/* Finds out what can be used here and makes <own group>/sandboxfs, or `root` (a group's path) when
 * that is not NULL. With version 2 this moves the processes of the own group to a child
 * `supervisor`, because a group with processes cannot hand controllers to its children. A host
 * without usable groups is no error: nothing is then available. */
int cg_open(const char *root, struct cg **ret, struct sbx_error *e);
/* Removes a kept leaf, but not in a child that was forked since. NULL is fine. */
void cg_close(struct cg *cg);
bool cg_has(const struct cg *cg, enum cg_controller c);
const char *cg_name(const struct cg *cg); /* as cg_layout_name; "none" when nothing is usable */
/* Removes the leaf that is kept for the next use. NULL is fine. */
void cg_trim(struct cg *cg);
/* Removes the leaves whose makers are gone, with whatever runs in them, and trims. NULL is fine. */
void cg_sweep(struct cg *cg);

struct cg_leaf;

int cg_leaf_new(struct cg *cg, struct cg_leaf **ret, struct sbx_error *e);
/* The end of its use, with whatever is still in it. A clean one is kept for the next cg_leaf_new()
 * until cg_trim() or cg_close(). NULL is fine. */
void cg_leaf_free(struct cg_leaf *leaf);
/* The version 2 directory, for CLONE_INTO_CGROUP; -1 when the leaf has none. */
int cg_leaf_v2_fd(const struct cg_leaf *leaf);
/* Moves a process into the leaf; `but_v2`: it was cloned into the version 2 part. */
int cg_leaf_join(struct cg_leaf *leaf, pid_t pid, bool but_v2, struct sbx_error *e);

/* 0 means no limit. Only controllers that cg_has() are set. Memory includes swap. */
struct cg_limits {
	int64_t memory_bytes;
	int64_t pids;
	double cpu; /* cores */
};
int cg_leaf_limit(struct cg_leaf *leaf, const struct cg_limits *limits, struct sbx_error *e);

struct cg_usage {
	uint64_t cpu_us;     /* since the last cg_leaf_mark() */
	uint64_t peak_bytes; /* 0: not known */
};
/* Usage counts from here. */
void cg_leaf_mark(struct cg_leaf *leaf);
void cg_leaf_usage(struct cg_leaf *leaf, struct cg_usage *ret);
uint64_t cg_leaf_bytes(struct cg_leaf *leaf); /* memory charged to it now; UINT64_MAX: not known */
/* Has the kernel killed for memory; has a fork been refused. */
void cg_leaf_events(struct cg_leaf *leaf, bool *ret_oom, bool *ret_pids);

#endif
