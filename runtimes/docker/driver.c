/* SPDX-License-Identifier: Apache-2.0 */
/* Runner: the driver's operations. */
#include "runtimes/docker/dk_i.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/auto.h"
#include "base/fs.h"

enum { EXEC_MS = 60000 }; /* the longest that execve may take, on a slow disk */

static struct dk_sandbox *of(struct rt_sandbox *sb)
{
	return (struct dk_sandbox *)sb;
}

/* ---- making ---------------------------------------------------------------------------------- */

void dk_sandbox_init(struct dk_sandbox *sb, const struct rt_host *host)
{
	*sb = (struct dk_sandbox){ .base.driver = &rt_docker,
				   .host = host,
				   .place.listener = -1,
				   .remove_ms = DK_SMALL_MS,
				   .sock = -1,
				   .pidfd = -1,
				   .watch = CG_WATCH_INIT,
				   .exit = -1,
				   .clock = -1,
				   .in = -1,
				   .out = -1,
				   .err = -1,
				   .workspace = -1 };
}

static void teardown(struct dk_sandbox *sb)
{
	const struct rt_host *host = sb->host;
	int *fds[] = { &sb->pidfd, &sb->exit,  &sb->in,	      &sb->out,
		       &sb->err,   &sb->clock, &sb->workspace };

	dk_container_remove(sb);
	(void)egress_close(sbx_steal(&sb->egress));
	for (size_t i = 0; i < SBX_COUNT(fds); i++)
		sbx_closep(fds[i]);
	dk_sandbox_init(sb, host);
}

static void destroy(struct rt_sandbox *s)
{
	if (!s)
		return;
	teardown(of(s));
	free(s);
	dk_engine_close(); /* a runner that waits for a run is small */
}

static int create(const struct rt_host *host, struct rt_sandbox **ret, struct sbx_error *e)
{
	const struct rt_docker *d = dk_settings(host);
	struct dk_sandbox *sb = calloc(1, sizeof(*sb));
	int r = 0;

	*ret = NULL;
	if (!sb)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a sandbox");
	dk_sandbox_init(sb, host);
	dk_sweep(host); /* what an engine that was away could not remove */
	/* Only what is known can be made ahead: the sizes of the workspace are the container's. */
	if (d->warm && host->expected)
		r = dk_container_make(sb, d->default_image, host->expected, NULL, e);
	if (r < 0) /* the run that comes will say why */
		teardown(sb);
	*ret = (struct rt_sandbox *)sb;
	return 0;
}

/* ---- preparing ------------------------------------------------------------------------------- */

static int check_plan(const struct rt_plan *p, struct sbx_error *e)
{
	if (!p->argv || !p->argv[0])
		return sbx_fail(e, SBX_E_RUNTIME_ERROR, "the plan has no command");
	if (!p->cwd || p->cwd[0] != '/' || strlen(p->cwd) > SBX_PATH_MAX)
		return sbx_fail(e, SBX_E_RUNTIME_ERROR, "the plan's cwd is not an absolute path");
	for (size_t i = 0; i < p->n_files; i++) {
		const char *problem = sbx_path_problem(p->files[i].path, strlen(p->files[i].path));

		if (problem)
			return sbx_fail(e, SBX_E_RUNTIME_ERROR, "the path of file %zu %s", i,
					problem);
	}
	if (p->network != RT_NET_DENY_ALL && !(p->network == RT_NET_ALLOWLIST && p->egress))
		return sbx_fail(e, SBX_E_POLICY_UNSUPPORTED,
				"runtime 'docker' supports network_policy deny_all, and allowlist "
				"with a list");
	return 0;
}

/* A container that waits may have ended: its engine was restarted, or somebody removed it. */
static bool is_alive(const struct dk_sandbox *sb)
{
	struct pollfd p = { .fd = sb->pidfd, .events = POLLIN };

	return poll(&p, 1, 0) == 0;
}

/* An engine that does not see our mounts, or an image that covers its place, would let the command
 * work somewhere else. */
static bool same_directory(int a, int b)
{
	struct stat sa, sb;

	return fstat(a, &sa) == 0 && fstat(b, &sb) == 0 && sa.st_dev == sb.st_dev &&
	       sa.st_ino == sb.st_ino;
}

/* What a container has for all its life. */
static bool fits(const struct dk_sandbox *sb, const struct rt_plan *p)
{
	return sb->image_name && strcmp(sb->image_name, p->image_name) == 0 &&
	       p->workspace_fd < 0 && !sb->has_session &&
	       sb->limits.workspace_bytes == p->limits.workspace_bytes &&
	       sb->limits.workspace_inodes == p->limits.workspace_inodes &&
	       sb->limits.tmp_bytes == p->limits.tmp_bytes && sb->limits.nofile >= p->limits.nofile;
}

/* The name of an image may have come to mean another one meanwhile, or none. An engine that does
 * not say so is not needed for one that waits. */
static bool is_current(struct dk_sandbox *sb)
{
	struct dk_image now = { .config = NULL };
	int r = dk_image_get(sb->host, sb->image_name, &now, NULL);
	bool same = r == 0 ? strcmp(now.id, sb->image.id) == 0 : r != -SBX_E_IMAGE_NOT_FOUND;

	dk_image_clear(&now);
	return same;
}

static bool same_limits(const struct rt_limits *a, const struct rt_limits *b)
{
	return a->memory_bytes == b->memory_bytes && a->pids == b->pids && a->cpu == b->cpu;
}

static int prepare(struct rt_sandbox *s, const struct rt_plan *p, struct sbx_error *e)
{
	struct dk_sandbox *sb = of(s);
	const struct rt_limits *l = &p->limits;
	SBX_AUTO(egress_closep) struct egress *egress = NULL;
	int r = check_plan(p, e);

	if (r == 0)
		r = dk_network_open(p, &egress, e);
	if (r < 0)
		return r;
	/* One that was made ahead will do for any network: its namespace is as new as its process 1
	 * has left it, which does nothing there. */
	if (sb->image_name && (!fits(sb, p) || !is_alive(sb) || !is_current(sb)))
		teardown(sb);
	if (!sb->image_name)
		r = dk_container_make(sb, p->image_name, l, p, e);
	else if (!same_limits(&sb->limits, l))
		r = dk_container_limit(sb, l, e);
	if (r == 0 && p->workspace_fd >= 0 && !same_directory(p->workspace_fd, sb->workspace))
		r = sbx_fail(e, SBX_E_RUNTIME_ERROR,
			     "the container does not have the session's workspace");
	if (r == 0)
		r = dk_fill(sb, p, e);
	if (r == 0)
		r = dk_network_enter(sb, &egress, e);
	if (r < 0)
		return r;
	if (p->workspace_fd >= 0) {
		sbx_closep(&sb->workspace);
		sb->workspace = openat(p->workspace_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (sb->workspace < 0)
			return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, errno,
					      "cannot open the workspace");
	}
	cg_watch_mark(&sb->watch);
	sb->stdin_open = p->stdin_open;
	sb->prepared = true;
	return 0;
}

static void facts(const struct rt_sandbox *s, struct rt_facts *out)
{
	const struct dk_sandbox *sb = (const struct dk_sandbox *)s;

	out->image_digest = sb->image.id[0] ? sb->image.id : NULL;
	out->runtime_version = sb->runtime_version[0] ? sb->runtime_version : NULL;
}

/* ---- running --------------------------------------------------------------------------------- */

/* Process 1 is to be the last that the kernel kills for memory. Not for everybody to say. */
static void spare_process_1(const struct dk_sandbox *sb)
{
	char path[64];

	(void)snprintf(path, sizeof(path), "/proc/%ld/oom_score_adj", (long)sb->pid);
	(void)sbx_write_file(AT_FDCWD, path, "0");
}

static int start(struct rt_sandbox *s, struct rt_fds *ret, struct sbx_error *e)
{
	struct dk_sandbox *sb = of(s);
	struct dk_msg m = { .op = DK_GO };
	int r;

	if (!sb->prepared || sb->started)
		return sbx_fail(e, SBX_E_INTERNAL, "a sandbox was started that was not prepared");
	sb->started = true;
	(void)dk_tell(sb, &m);
	r = dk_await(sb, &m, EXEC_MS, e);
	if (r < 0)
		return r;
	if (m.op != DK_STARTED)
		return sbx_fail(e, SBX_E_RUNTIME_ERROR, "process 1 of the container is confused");
	sb->end.exec_errno = m.err;
	spare_process_1(sb);
	ret->exit = fcntl(sb->exit, F_DUPFD_CLOEXEC, 3);
	if (ret->exit < 0)
		return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, errno,
				      "cannot duplicate a descriptor");
	ret->out = sbx_steal_fd(&sb->out);
	ret->err = sbx_steal_fd(&sb->err);
	ret->in = sb->stdin_open ? sbx_steal_fd(&sb->in) : -1;
	ret->workspace = sbx_steal_fd(&sb->workspace);
	sbx_closep(&sb->in);
	return 0;
}

static int send_signal(struct rt_sandbox *s, enum rt_signal_scope scope, int sig)
{
	struct dk_sandbox *sb = of(s);
	struct dk_msg m = { .op = DK_SIGNAL, .scope = scope == RT_SIGNAL_ALL, .sig = sig };

	if (!sb->started || sb->over)
		return -ESRCH;
	if (sig < 1 || sig >= NSIG)
		return -EINVAL;
	if (sig == SIGKILL && scope == RT_SIGNAL_ALL) {
		dk_kill(sb);
		return 0;
	}
	if (!dk_tell(sb, &m))
		return -ESRCH;
	sb->signals |= UINT64_C(1) << (sig - 1);
	return 0;
}

static void usage(struct rt_sandbox *s, uint64_t *cpu_us, uint64_t *peak_bytes)
{
	struct dk_sandbox *sb = of(s);

	dk_look(sb);
	*cpu_us = sb->end.cpu_us;
	*peak_bytes = sb->end.peak_bytes;
}

const struct rt_driver rt_docker = {
	.name = "docker",
	.images_by_name = true,
	.preflight = dk_preflight,
	.create = create,
	.prepare = prepare,
	.start = start,
	.signal = send_signal,
	.reap = dk_reap,
	.usage = usage,
	.facts = facts,
	.destroy = destroy,
	.sweep = dk_sweep,
};
