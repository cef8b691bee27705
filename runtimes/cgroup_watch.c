/* SPDX-License-Identifier: Apache-2.0 */
#include "runtimes/cgroup_watch.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/fs.h"

enum { TEXT_MAX = 4096, MOUNTS_MAX = 4 << 20 };

static const struct {
	enum cg_controller controller;
	const char *v1, *v2;
	const char *v1_key, *v2_key; /* what the line begins with; NULL: the file is one number */
} files[CG_WATCH__COUNT] = {
	[CG_WATCH_CPU] = { CG_CPUACCT, "cpuacct.usage", "cpu.stat", NULL, "usage_usec" },
	[CG_WATCH_PEAK] = { CG_MEMORY, "memory.max_usage_in_bytes", "memory.peak", NULL, NULL },
	[CG_WATCH_NOW] = { CG_MEMORY, "memory.usage_in_bytes", "memory.current", NULL, NULL },
	[CG_WATCH_OOM] = { CG_MEMORY, "memory.oom_control", "memory.events", "oom_kill",
			   "oom_kill" },
	[CG_WATCH_PIDS] = { CG_PIDS, "pids.events", "pids.events", "max", "max" },
};

void cg_watch_open(struct cg_watch *w, pid_t pid)
{
	sbx_autofree char *groups = NULL, *mounts = NULL;
	sbx_autofree struct cg_layout *l = calloc(1, sizeof(*l));
	char path[CG_PATH_SIZE + 64];

	(void)snprintf(path, sizeof(path), "/proc/%ld/cgroup", (long)pid);
	if (!l || sbx_read_file(AT_FDCWD, path, MOUNTS_MAX, &groups, NULL) < 0 ||
	    sbx_read_file(AT_FDCWD, "/proc/self/mountinfo", MOUNTS_MAX, &mounts, NULL) < 0)
		return;
	cg_layout_parse(groups, mounts, NULL, l);
	for (int f = 0; f < CG_WATCH__COUNT; f++) {
		const char *v1 = l->v1[files[f].controller];

		(void)snprintf(path, sizeof(path), "%s/%s", *v1 ? v1 : l->v2,
			       *v1 ? files[f].v1 : files[f].v2);
		w->fd[f] = open(path, O_RDONLY | O_CLOEXEC);
	}
	(void)snprintf(path, sizeof(path), "%s/freezer.state", l->freezer);
	if (*l->freezer)
		w->freezer = open(path, O_WRONLY | O_CLOEXEC);
}

void cg_watch_close(struct cg_watch *w)
{
	for (int f = 0; f < CG_WATCH__COUNT; f++)
		sbx_closep(&w->fd[f]);
	sbx_closep(&w->freezer);
}

/* The number behind one of the keys at the start of a line, or the first one. */
static bool get(const struct cg_watch *w, enum cg_watch_file f, uint64_t *ret)
{
	char text[TEXT_MAX];
	ssize_t n = w->fd[f] < 0 ? -1 : pread(w->fd[f], text, sizeof(text) - 1, 0);
	const char *keys[] = { files[f].v1_key, files[f].v2_key };

	if (n <= 0)
		return false;
	text[n] = '\0';
	for (size_t i = 0; i < SBX_COUNT(keys); i++) {
		size_t len = keys[i] ? strlen(keys[i]) : 0;

		for (const char *p = text; len && p; p = strchr(p, '\n')) {
			p += *p == '\n';
			if (strncmp(p, keys[i], len) == 0 && p[len] == ' ') {
				*ret = strtoull(p + len, NULL, 10);
				return true;
			}
		}
	}
	if (text[0] < '0' || text[0] > '9')
		return false;
	*ret = strtoull(text, NULL, 10);
	return true;
}

/* Version 1 counts in nanoseconds, and its file is one number. */
static bool cpu_us(const struct cg_watch *w, uint64_t *ret)
{
	char c;

	if (!get(w, CG_WATCH_CPU, ret))
		return false;
	if (pread(w->fd[CG_WATCH_CPU], &c, 1, 0) == 1 && c >= '0' && c <= '9')
		*ret /= 1000;
	return true;
}

void cg_watch_mark(struct cg_watch *w)
{
	(void)cpu_us(w, &w->cpu_us);
}

bool cg_watch_usage(struct cg_watch *w, struct cg_usage *ret)
{
	struct cg_usage now = { 0 };
	bool known = cpu_us(w, &now.cpu_us);

	now.cpu_us = now.cpu_us > w->cpu_us ? now.cpu_us - w->cpu_us : 0;
	/* memory.peak came with Linux 5.19. */
	if (!get(w, CG_WATCH_PEAK, &now.peak_bytes))
		known |= get(w, CG_WATCH_NOW, &now.peak_bytes);
	if (known)
		*ret = now;
	return known;
}

bool cg_watch_events(struct cg_watch *w, bool *ret_oom, bool *ret_pids)
{
	uint64_t oom = 0, pids = 0;

	if (!get(w, CG_WATCH_OOM, &oom))
		return false;
	(void)get(w, CG_WATCH_PIDS, &pids);
	*ret_oom = oom > 0;
	*ret_pids = pids > 0;
	return true;
}

bool cg_watch_thaw(struct cg_watch *w)
{
	static const char thawed[] = "THAWED";

	return w->freezer >= 0 && write(w->freezer, thawed, sizeof(thawed) - 1) > 0;
}
