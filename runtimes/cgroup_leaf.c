/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One sandbox's group: making it, its limits, what it used, its end. A leaf that is clean after use
 * is kept for the next sandbox of this process, with its control files open, because to make and
 * to remove one costs the kernel as much as a short command does.
 */
#include "runtimes/cgroup_i.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/auto.h"
#include "base/fs.h"

enum {
	CONTROL_MAX = 4096,
	CPU_PERIOD_US = 100000,	  /* the kernel's own default */
	CPU_QUOTA_MIN_US = 1000,  /* it takes no less */
	PARK_BYTES_MAX = 2 << 20, /* memory still charged to a leaf that is worth keeping */
};

enum leaf_file {
	FILE_MEMORY_MAX,
	FILE_SWAP_MAX,
	FILE_SOCKETS_MAX,
	FILE_MEMORY_NOW,
	FILE_MEMORY_PEAK,
	FILE_MEMORY_EVENTS,
	FILE_PIDS_MAX,
	FILE_PIDS_EVENTS,
	FILE_CPU_MAX,
	FILE_CPU_USED,
	FILE__COUNT,
};

static const struct {
	enum cg_controller controller;
	const char *v1, *v2;
	int flags;
} files[FILE__COUNT] = {
	[FILE_MEMORY_MAX] = { CG_MEMORY, "memory.limit_in_bytes", "memory.max", O_WRONLY },
	[FILE_SWAP_MAX] = { CG_MEMORY, "memory.memsw.limit_in_bytes", "memory.swap.max", O_WRONLY },
	[FILE_SOCKETS_MAX] = { CG_MEMORY, "memory.kmem.tcp.limit_in_bytes", NULL, O_WRONLY },
	[FILE_MEMORY_NOW] = { CG_MEMORY, "memory.usage_in_bytes", "memory.current", O_RDONLY },
	[FILE_MEMORY_PEAK] = { CG_MEMORY, "memory.max_usage_in_bytes", "memory.peak", O_RDWR },
	[FILE_MEMORY_EVENTS] = { CG_MEMORY, "memory.oom_control", "memory.events", O_RDONLY },
	[FILE_PIDS_MAX] = { CG_PIDS, "pids.max", "pids.max", O_WRONLY },
	[FILE_PIDS_EVENTS] = { CG_PIDS, "pids.events", "pids.events", O_RDONLY },
	[FILE_CPU_MAX] = { CG_CPU, "cpu.cfs_quota_us", "cpu.max", O_WRONLY },
	[FILE_CPU_USED] = { CG_CPUACCT, "cpuacct.usage", "cpu.stat", O_RDONLY },
};

struct cg_leaf {
	struct cg *cg;
	char name[CG_NAME_SIZE];
	int dir[CG_BASES_MAX];	 /* owned; -1: not made */
	int procs[CG_BASES_MAX]; /* owned; cgroup.procs */
	int file[FILE__COUNT];	 /* owned; -1: not opened yet */
	/* What the counters, which only grow, were at the last mark. */
	uint64_t cpu_us, oom_kills, pids_refusals;
	bool fresh_peak; /* the peak could be set back */
	bool limited;	 /* has limits, or half of them */
};

static bool is_v2(const struct cg_leaf *l, enum cg_controller c)
{
	return l->cg->bases[l->cg->base_of[c]].v2;
}

/* ---- control files --------------------------------------------------------------------------- */

/* A negative errno when the file, or its controller, is not there. */
static int open_file(struct cg_leaf *l, enum leaf_file f)
{
	enum cg_controller c = files[f].controller;

	if (!cg_has(l->cg, c))
		return -ENOENT;
	if (l->file[f] < 0) {
		const char *name = is_v2(l, c) ? files[f].v2 : files[f].v1;
		int dir = l->dir[l->cg->base_of[c]];

		l->file[f] = openat(dir, name, files[f].flags | O_CLOEXEC);
		/* Before it could be set back the peak was read-only. */
		if (l->file[f] < 0 && files[f].flags == O_RDWR)
			l->file[f] = openat(dir, name, O_RDONLY | O_CLOEXEC);
	}
	return l->file[f] < 0 ? -errno : l->file[f];
}

static int put(struct cg_leaf *l, enum leaf_file f, const char *text)
{
	int fd = open_file(l, f);

	if (fd < 0)
		return fd;
	return pwrite(fd, text, strlen(text), 0) < 0 ? -errno : 0;
}

/* The number behind "key " at the start of a line, or the first one when key is NULL; 0 when there
 * is none. */
static uint64_t get(struct cg_leaf *l, enum leaf_file f, const char *key)
{
	char text[CONTROL_MAX], *line = text;
	int fd = open_file(l, f);
	ssize_t n = fd < 0 ? -1 : pread(fd, text, sizeof(text) - 1, 0);
	size_t len = key ? strlen(key) : 0;

	if (n <= 0)
		return 0;
	text[n] = '\0';
	while (key && (strncmp(line, key, len) != 0 || line[len] != ' ')) {
		line = strchr(line, '\n');
		if (!line)
			return 0;
		line++;
	}
	return strtoull(line + len, NULL, 10);
}

/* ---- making ---------------------------------------------------------------------------------- */

static int make_part(struct cg_leaf *l, size_t i, struct sbx_error *e)
{
	struct cg_base *b = &l->cg->bases[i];

	if (mkdirat(b->fd, l->name, 0755) < 0) {
		/* Somebody tidied the directory away while it was empty. */
		if (errno == ENOENT && (mkdir(b->path, 0755) == 0 || errno == EEXIST)) {
			int fd = open(b->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

			if (fd >= 0) {
				sbx_closep(&b->fd);
				b->fd = fd;
			}
		}
		if (mkdirat(b->fd, l->name, 0755) < 0)
			return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, errno,
					      "cannot make the control group '%s/%s'", b->path,
					      l->name);
	}
	l->dir[i] = openat(b->fd, l->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (l->dir[i] >= 0)
		l->procs[i] = openat(l->dir[i], "cgroup.procs", O_WRONLY | O_CLOEXEC);
	if (l->procs[i] < 0)
		return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, errno,
				      "cannot open the control group '%s/%s'", b->path, l->name);
	return 0;
}

int cg_leaf_new(struct cg *cg, struct cg_leaf **ret, struct sbx_error *e)
{
	struct cg_leaf *l = cg->parked;
	int r = 0;

	if (l) {
		cg->parked = NULL;
		*ret = l;
		return 0;
	}
	*ret = NULL;
	l = calloc(1, sizeof(*l));
	if (!l)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a control group");
	l->cg = cg;
	memset(l->dir, -1, sizeof(l->dir));
	memset(l->procs, -1, sizeof(l->procs));
	memset(l->file, -1, sizeof(l->file));
	(void)snprintf(l->name, sizeof(l->name), "%ld-%" PRIu64 "-%" PRIu64, (long)getpid(),
		       cg_start_time(getpid()), ++cg->serial);
	for (size_t i = 0; i < cg->n_bases && r == 0; i++)
		r = make_part(l, i, e);
	if (r < 0) {
		cg_leaf_discard(l);
		return r;
	}
	*ret = l;
	return 0;
}

static void leaf_end(struct cg_leaf *l, bool and_remove)
{
	if (!l)
		return;
	for (int f = 0; f < FILE__COUNT; f++)
		sbx_closep(&l->file[f]);
	for (size_t i = 0; i < l->cg->n_bases; i++) {
		bool made = l->dir[i] >= 0;

		sbx_closep(&l->procs[i]);
		sbx_closep(&l->dir[i]);
		if (made && and_remove)
			cg_remove_leaf(&l->cg->bases[i], l->name);
	}
	free(l);
}

void cg_leaf_discard(struct cg_leaf *l)
{
	leaf_end(l, true);
}

void cg_leaf_disown(struct cg_leaf *l)
{
	leaf_end(l, false);
}

int cg_leaf_v2_fd(const struct cg_leaf *l)
{
	for (size_t i = 0; i < l->cg->n_bases; i++)
		if (l->cg->bases[i].v2)
			return l->dir[i];
	return -1;
}

int cg_leaf_join(struct cg_leaf *l, pid_t pid, bool but_v2, struct sbx_error *e)
{
	char text[24];
	int n = snprintf(text, sizeof(text), "%ld", (long)pid);

	for (size_t i = 0; i < l->cg->n_bases; i++) {
		if (l->cg->bases[i].v2 && but_v2)
			continue;
		if (pwrite(l->procs[i], text, (size_t)n, 0) < 0)
			return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, errno,
					      "cannot put a process into the control group '%s/%s'",
					      l->cg->bases[i].path, l->name);
	}
	return 0;
}

/* ---- limits ---------------------------------------------------------------------------------- */

static int set_value(struct cg_leaf *l, enum leaf_file f, bool may_lack, const char *text,
		     struct sbx_error *e)
{
	int r = put(l, f, text);

	if (r == 0 || (r == -ENOENT && may_lack))
		return 0;
	return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, -r, "cannot set %s of the sandbox to '%s'",
			      is_v2(l, files[f].controller) ? files[f].v2 : files[f].v1, text);
}

static int limit_memory(struct cg_leaf *l, int64_t bytes, struct sbx_error *e)
{
	char text[24];
	int r;

	(void)snprintf(text, sizeof(text), "%" PRId64, bytes);
	r = set_value(l, FILE_MEMORY_MAX, false, text, e);
	/* Version 1 limits memory and swap together, version 2 swap alone. Without swap accounting
	 * there is no such file. */
	if (r == 0)
		r = set_value(l, FILE_SWAP_MAX, true, is_v2(l, CG_MEMORY) ? "0" : text, e);
	/* What sockets hold version 1 counts apart, and only when it has a limit of its own. */
	if (r == 0 && !is_v2(l, CG_MEMORY))
		r = set_value(l, FILE_SOCKETS_MAX, true, text, e);
	return r;
}

static int limit_cpu(struct cg_leaf *l, double cores, struct sbx_error *e)
{
	/* Once is enough: it is a file that is read, and more cores than there are is no limit. */
	static double online;
	int64_t quota = (int64_t)(cores * CPU_PERIOD_US);
	char text[48];

	if (online < 1)
		online = (double)sysconf(_SC_NPROCESSORS_ONLN);

	if (cores >= online)
		return 0;
	if (quota < CPU_QUOTA_MIN_US)
		quota = CPU_QUOTA_MIN_US;
	if (is_v2(l, CG_CPU))
		(void)snprintf(text, sizeof(text), "%" PRId64 " %d", quota, CPU_PERIOD_US);
	else
		(void)snprintf(text, sizeof(text), "%" PRId64, quota);
	return set_value(l, FILE_CPU_MAX, false, text, e);
}

/* In this order: version 1 wants the limit with swap never below the one without. */
static const struct {
	enum leaf_file file;
	const char *v1, *v2; /* NULL: nothing to set */
} unlimited[] = {
	{ FILE_SWAP_MAX, "-1", "max" },	  { FILE_MEMORY_MAX, "-1", "max" },
	{ FILE_SOCKETS_MAX, "-1", NULL }, { FILE_PIDS_MAX, "max", "max" },
	{ FILE_CPU_MAX, "-1", "max" },
};

/* False when something stayed. */
static bool unlimit(struct cg_leaf *l)
{
	for (size_t i = 0; i < SBX_COUNT(unlimited); i++) {
		enum cg_controller c = files[unlimited[i].file].controller;
		const char *text;
		int r;

		if (!cg_has(l->cg, c))
			continue;
		text = is_v2(l, c) ? unlimited[i].v2 : unlimited[i].v1;
		r = text ? put(l, unlimited[i].file, text) : 0;
		if (r < 0 && r != -ENOENT)
			return false;
	}
	l->limited = false;
	return true;
}

int cg_leaf_limit(struct cg_leaf *l, const struct cg_limits *limits, struct sbx_error *e)
{
	int r = 0;

	/* Whatever the new limits do not name must not stay from the old ones, and version 1 lets
	 * none of the two for memory pass the other. */
	if (l->limited && !unlimit(l))
		return sbx_fail(e, SBX_E_RUNTIME_ERROR,
				"cannot lift the earlier limits of the sandbox");
	l->limited = true;
	if (limits->memory_bytes > 0 && cg_has(l->cg, CG_MEMORY))
		r = limit_memory(l, limits->memory_bytes, e);
	if (r == 0 && limits->pids > 0 && cg_has(l->cg, CG_PIDS)) {
		char text[24];

		(void)snprintf(text, sizeof(text), "%" PRId64, limits->pids);
		r = set_value(l, FILE_PIDS_MAX, false, text, e);
	}
	if (r == 0 && limits->cpu > 0 && cg_has(l->cg, CG_CPU))
		r = limit_cpu(l, limits->cpu, e);
	return r;
}

/* ---- usage ----------------------------------------------------------------------------------- */

static uint64_t cpu_total_us(struct cg_leaf *l)
{
	if (!cg_has(l->cg, CG_CPUACCT))
		return 0;
	if (is_v2(l, CG_CPUACCT))
		return get(l, FILE_CPU_USED, "usage_usec");
	return get(l, FILE_CPU_USED, NULL) / 1000;
}

void cg_leaf_mark(struct cg_leaf *l)
{
	l->cpu_us = cpu_total_us(l);
	l->oom_kills = get(l, FILE_MEMORY_EVENTS, "oom_kill");
	l->pids_refusals = get(l, FILE_PIDS_EVENTS, "max");
	/* Any text sets it back in version 1, and since Linux 6.12 in version 2 for this
	 * descriptor. Where it cannot be, it is a new leaf's, and what was used until here is
	 * little. */
	l->fresh_peak = put(l, FILE_MEMORY_PEAK, "0") == 0;
}

void cg_leaf_usage(struct cg_leaf *l, struct cg_usage *ret)
{
	uint64_t now = cpu_total_us(l);

	ret->cpu_us = now > l->cpu_us ? now - l->cpu_us : 0;
	ret->peak_bytes = get(l, FILE_MEMORY_PEAK, NULL);
	if (!ret->peak_bytes) /* memory.peak came with Linux 5.19 */
		ret->peak_bytes = get(l, FILE_MEMORY_NOW, NULL);
}

uint64_t cg_leaf_bytes(struct cg_leaf *l)
{
	uint64_t now = get(l, FILE_MEMORY_NOW, NULL);

	return now ? now : UINT64_MAX;
}

void cg_leaf_events(struct cg_leaf *l, bool *ret_oom, bool *ret_pids)
{
	*ret_oom = get(l, FILE_MEMORY_EVENTS, "oom_kill") > l->oom_kills;
	*ret_pids = get(l, FILE_PIDS_EVENTS, "max") > l->pids_refusals;
}

/* ---- keeping --------------------------------------------------------------------------------- */

static bool is_empty(const struct cg_leaf *l)
{
	/* A process joins all parts, so one tells. Version 1 keeps the list for a descriptor that
	 * has read it before: only a new one reads anew. */
	sbx_autoclose int fd = openat(l->dir[0], "cgroup.procs", O_RDONLY | O_CLOEXEC);
	char c;

	return fd >= 0 && read(fd, &c, 1) == 0;
}

/* As if it were new. False when something of the last use would show in the next. */
static bool clean(struct cg_leaf *l)
{
	if (!is_empty(l) || (cg_has(l->cg, CG_MEMORY) && !l->fresh_peak) ||
	    get(l, FILE_MEMORY_NOW, NULL) > PARK_BYTES_MAX)
		return false;
	return unlimit(l);
}

void cg_leaf_free(struct cg_leaf *l)
{
	if (l && !l->cg->parked && clean(l))
		l->cg->parked = l;
	else
		cg_leaf_discard(l);
}
