/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the control group of a process that somebody else has put there, as a container engine
 * does. The files are held open, so that the group need not be found again. */
#ifndef SBX_RUNTIMES_CGROUP_WATCH_H
#define SBX_RUNTIMES_CGROUP_WATCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "runtimes/cgroup.h"

enum cg_watch_file {
	CG_WATCH_CPU,
	CG_WATCH_PEAK,
	CG_WATCH_NOW,
	CG_WATCH_OOM,
	CG_WATCH_PIDS,
	CG_WATCH__COUNT
};

struct cg_watch {
	int fd[CG_WATCH__COUNT]; /* owned; -1: there is no such file */
	int freezer;		 /* owned; for writing; -1: none, or not for us to write */
	uint64_t cpu_us;	 /* used before the watch began */
};
#define CG_WATCH_INIT                                                                              \
	{                                                                                          \
		.fd = { -1, -1, -1, -1, -1 }, .freezer = -1                                        \
	}

/* What cannot be opened stays unknown, and is no error. */
void cg_watch_open(struct cg_watch *w, pid_t pid);
void cg_watch_close(struct cg_watch *w);
/* CPU time counts from here. */
void cg_watch_mark(struct cg_watch *w);
/* False when the group is gone, or not known; *ret is then as it was. */
bool cg_watch_usage(struct cg_watch *w, struct cg_usage *ret);
/* As above. Has the kernel killed for memory; has a fork been refused. */
bool cg_watch_events(struct cg_watch *w, bool *ret_oom, bool *ret_pids);
/* Lets a group of version 1 go on that somebody has frozen: what is killed in there would only die
 * when it is thawed. (In version 2 it dies at once.) False: there is no such group, or it is not
 * for us to do. One above it may be frozen as well. */
bool cg_watch_thaw(struct cg_watch *w);

#endif
