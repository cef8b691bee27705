/* SPDX-License-Identifier: Apache-2.0 */
/* One sandbox's group: making it, its limits, what it used, its end. */
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
	CPU_PERIOD_US = 100000,
	CPU_QUOTA_MIN_US = 1000, /* the kernel takes no less */
};

struct cg_leaf {
	struct cg *cg;
	char name[CG_NAME_SIZE];
	int fd[CG_BASES_MAX]; /* owned; -1: not made */
	uint64_t cpu_base_us;
};

static int leaf_fd(const struct cg_leaf *l, enum cg_controller c)
{
	int i = l->cg->base_of[c];

	return i < 0 ? -1 : l->fd[i];
}

static bool is_v2(const struct cg_leaf *l, enum cg_controller c)
{
	return l->cg->bases[l->cg->base_of[c]].v2;
}

/* The number behind "key " at the start of a line, or the first one when key is NULL. */
static bool read_number(int dirfd, const char *file, const char *key, uint64_t *ret)
{
	char text[CONTROL_MAX], *line = text, *end;
	sbx_autoclose int fd = openat(dirfd, file, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : sbx_read_full(fd, text, sizeof(text) - 1);
	size_t len = key ? strlen(key) : 0;

	if (n <= 0)
		return false;
	text[n] = '\0';
	while (key && (strncmp(line, key, len) != 0 || line[len] != ' ')) {
		line = strchr(line, '\n');
		if (!line)
			return false;
		line++;
	}
	errno = 0;
	*ret = strtoull(line + len, &end, 10);
	return errno == 0 && end != line + len;
}

/* ---- making -------------------------------------------------------------------------------- */

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
	l->fd[i] = openat(b->fd, l->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (l->fd[i] < 0)
		return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, errno,
				      "cannot open the control group '%s/%s'", b->path, l->name);
	return 0;
}

int cg_leaf_new(struct cg *cg, struct cg_leaf **ret, struct sbx_error *e)
{
	struct cg_leaf *l = calloc(1, sizeof(*l));
	int r = 0;

	*ret = NULL;
	if (!l)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a control group");
	l->cg = cg;
	for (size_t i = 0; i < CG_BASES_MAX; i++)
		l->fd[i] = -1;
	(void)snprintf(l->name, sizeof(l->name), "%ld-%" PRIu64 "-%" PRIu64, (long)getpid(),
		       cg_start_time(getpid()), ++cg->serial);
	for (size_t i = 0; i < cg->n_bases && r == 0; i++)
		r = make_part(l, i, e);
	if (r < 0) {
		cg_leaf_free(l);
		return r;
	}
	*ret = l;
	return 0;
}

void cg_leaf_free(struct cg_leaf *l)
{
	if (!l)
		return;
	for (size_t i = 0; i < l->cg->n_bases; i++) {
		if (l->fd[i] < 0)
			continue;
		sbx_closep(&l->fd[i]);
		cg_remove_leaf(&l->cg->bases[i], l->name);
	}
	free(l);
}

int cg_leaf_v2_fd(const struct cg_leaf *l)
{
	for (size_t i = 0; i < l->cg->n_bases; i++)
		if (l->cg->bases[i].v2)
			return l->fd[i];
	return -1;
}

int cg_leaf_join(struct cg_leaf *l, pid_t pid, bool but_v2, struct sbx_error *e)
{
	char text[24];
	int r;

	(void)snprintf(text, sizeof(text), "%ld", (long)pid);
	for (size_t i = 0; i < l->cg->n_bases; i++) {
		if (l->cg->bases[i].v2 && but_v2)
			continue;
		r = sbx_write_file(l->fd[i], "cgroup.procs", text);
		if (r < 0)
			return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, -r,
					      "cannot put a process into the control group '%s/%s'",
					      l->cg->bases[i].path, l->name);
	}
	return 0;
}

/* ---- limits -------------------------------------------------------------------------------- */

static int set_value(const struct cg_leaf *l, enum cg_controller c, const char *file, bool may_lack,
		     const char *text, struct sbx_error *e)
{
	int r = sbx_write_file(leaf_fd(l, c), file, text);

	if (r == 0 || (r == -ENOENT && may_lack))
		return 0;
	return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, -r, "cannot set %s of the sandbox to '%s'",
			      file, text);
}

static int limit_memory(struct cg_leaf *l, int64_t bytes, struct sbx_error *e)
{
	bool v2 = is_v2(l, CG_MEMORY);
	char text[24];
	int r;

	(void)snprintf(text, sizeof(text), "%" PRId64, bytes);
	r = set_value(l, CG_MEMORY, v2 ? "memory.max" : "memory.limit_in_bytes", false, text, e);
	if (r < 0)
		return r;
	/* Without swap accounting there is no such file. */
	if (v2)
		return set_value(l, CG_MEMORY, "memory.swap.max", true, "0", e);
	return set_value(l, CG_MEMORY, "memory.memsw.limit_in_bytes", true, text, e);
}

static int limit_cpu(struct cg_leaf *l, double cores, struct sbx_error *e)
{
	int64_t quota = (int64_t)(cores * CPU_PERIOD_US);
	char text[48];
	int r;

	if (cores >= (double)sysconf(_SC_NPROCESSORS_ONLN))
		return 0;
	if (quota < CPU_QUOTA_MIN_US)
		quota = CPU_QUOTA_MIN_US;
	if (is_v2(l, CG_CPU)) {
		(void)snprintf(text, sizeof(text), "%" PRId64 " %d", quota, CPU_PERIOD_US);
		return set_value(l, CG_CPU, "cpu.max", false, text, e);
	}
	(void)snprintf(text, sizeof(text), "%d", CPU_PERIOD_US);
	r = set_value(l, CG_CPU, "cpu.cfs_period_us", false, text, e);
	if (r < 0)
		return r;
	(void)snprintf(text, sizeof(text), "%" PRId64, quota);
	return set_value(l, CG_CPU, "cpu.cfs_quota_us", false, text, e);
}

int cg_leaf_limit(struct cg_leaf *l, const struct cg_limits *limits, struct sbx_error *e)
{
	int r = 0;

	if (limits->memory_bytes > 0 && cg_has(l->cg, CG_MEMORY))
		r = limit_memory(l, limits->memory_bytes, e);
	if (r == 0 && limits->pids > 0 && cg_has(l->cg, CG_PIDS)) {
		char text[24];

		(void)snprintf(text, sizeof(text), "%" PRId64, limits->pids);
		r = set_value(l, CG_PIDS, "pids.max", false, text, e);
	}
	if (r == 0 && limits->cpu > 0 && cg_has(l->cg, CG_CPU))
		r = limit_cpu(l, limits->cpu, e);
	return r;
}

/* ---- usage --------------------------------------------------------------------------------- */

static uint64_t cpu_total_us(const struct cg_leaf *l)
{
	uint64_t v = 0;

	if (!cg_has(l->cg, CG_CPUACCT))
		return 0;
	if (is_v2(l, CG_CPUACCT))
		return read_number(leaf_fd(l, CG_CPUACCT), "cpu.stat", "usage_usec", &v) ? v : 0;
	return read_number(leaf_fd(l, CG_CPUACCT), "cpuacct.usage", NULL, &v) ? v / 1000 : 0;
}

void cg_leaf_mark(struct cg_leaf *l)
{
	l->cpu_base_us = cpu_total_us(l);
	/* Version 2 has no way to set the peak back for everybody; what was used until here is
	 * little, so it may stay in. */
	if (cg_has(l->cg, CG_MEMORY) && !is_v2(l, CG_MEMORY))
		(void)sbx_write_file(leaf_fd(l, CG_MEMORY), "memory.max_usage_in_bytes", "0");
}

void cg_leaf_usage(struct cg_leaf *l, struct cg_usage *ret)
{
	uint64_t now = cpu_total_us(l), bytes = 0;
	int fd = leaf_fd(l, CG_MEMORY);

	ret->cpu_us = now > l->cpu_base_us ? now - l->cpu_base_us : 0;
	ret->peak_bytes = 0;
	if (fd < 0)
		return;
	if (is_v2(l, CG_MEMORY)) {
		/* memory.peak came with Linux 5.19. */
		if (!read_number(fd, "memory.peak", NULL, &bytes))
			(void)read_number(fd, "memory.current", NULL, &bytes);
	} else {
		(void)read_number(fd, "memory.max_usage_in_bytes", NULL, &bytes);
	}
	ret->peak_bytes = bytes;
}

void cg_leaf_events(const struct cg_leaf *l, bool *ret_oom, bool *ret_pids)
{
	uint64_t n = 0;

	*ret_oom = *ret_pids = false;
	if (cg_has(l->cg, CG_MEMORY)) {
		const char *file = is_v2(l, CG_MEMORY) ? "memory.events" : "memory.oom_control";

		*ret_oom = read_number(leaf_fd(l, CG_MEMORY), file, "oom_kill", &n) && n > 0;
	}
	if (cg_has(l->cg, CG_PIDS))
		*ret_pids = read_number(leaf_fd(l, CG_PIDS), "pids.events", "max", &n) && n > 0;
}
