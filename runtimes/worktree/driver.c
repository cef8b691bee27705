/* SPDX-License-Identifier: Apache-2.0 */
/* Runner: the driver's operations: those of `namespace`, with a worktree in the workspace. */
#include "runtimes/worktree/wt_i.h"

#include <stdlib.h>
#include <string.h>

struct wt_sandbox {
	struct rt_sandbox_base base; /* first */
	const struct rt_host *host;
	struct rt_sandbox *inner; /* owned */
};

extern const struct rt_driver rt_worktree; /* runtimes/registry.c */

static struct wt_sandbox *of(struct rt_sandbox *sb)
{
	return (struct wt_sandbox *)sb;
}

static void destroy(struct rt_sandbox *s)
{
	if (!s)
		return;
	rt_namespace.destroy(of(s)->inner);
	free(s);
}

static int create(const struct rt_host *host, struct rt_sandbox **ret, struct sbx_error *e)
{
	struct wt_sandbox *sb = calloc(1, sizeof(*sb));
	int r;

	*ret = NULL;
	if (!sb)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a sandbox");
	sb->base.driver = &rt_worktree;
	sb->host = host;
	r = rt_namespace.create(host, &sb->inner, e);
	if (r < 0) {
		free(sb);
		return r;
	}
	*ret = (struct rt_sandbox *)sb;
	return 0;
}

/* The worktree's files, and on top of them the run's own. */
static int prepare_with(struct wt_sandbox *sb, const struct rt_plan *p,
			const struct wt_checkout *work, struct sbx_error *e)
{
	size_t n = work->tree.n + p->n_files;
	sbx_autofree struct rt_file *files = calloc(n + 1, sizeof(*files));
	struct rt_plan inside = *p;
	char **envp = NULL;
	int r;

	if (!files)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the run's plan");
	if (work->tree.n)
		memcpy(files, work->tree.list, work->tree.n * sizeof(*files));
	if (p->n_files)
		memcpy(files + work->tree.n, p->files, p->n_files * sizeof(*files));
	r = wt_env_make(sb->host, p->envp, &envp, e);
	if (r < 0)
		return r;
	inside.image_path = NULL;
	inside.workspace_fd = -1;
	inside.files = files;
	inside.n_files = n;
	inside.envp = envp;
	r = rt_namespace.prepare(sb->inner, &inside, e);
	wt_env_free(envp);
	return r;
}

static int prepare(struct rt_sandbox *s, const struct rt_plan *p, struct sbx_error *e)
{
	__attribute__((cleanup(wt_checkout_clear))) struct wt_checkout work = { .len = 0 };
	struct wt_sandbox *sb = of(s);
	struct wt_source source;
	int r;

	if (p->network != RT_NET_DENY_ALL)
		return sbx_fail(e, SBX_E_POLICY_UNSUPPORTED,
				"runtime 'worktree' has no network but the sandbox's own loopback");
	r = wt_source_open(sb->host, p, &source, e);
	if (r == 0)
		r = wt_checkout(sb->host, &source, p, WT_SECONDS, &work, e);
	if (r == 0)
		r = prepare_with(sb, p, &work, e);
	sbx_closep(&source.dir);
	return r;
}

static int start(struct rt_sandbox *s, struct rt_fds *ret, struct sbx_error *e)
{
	return rt_namespace.start(of(s)->inner, ret, e);
}

static int send_signal(struct rt_sandbox *s, enum rt_signal_scope scope, int sig)
{
	return rt_namespace.signal(of(s)->inner, scope, sig);
}

static bool reap(struct rt_sandbox *s, struct rt_exit *out)
{
	return rt_namespace.reap(of(s)->inner, out);
}

static void usage(struct rt_sandbox *s, uint64_t *cpu_us, uint64_t *peak_bytes)
{
	rt_namespace.usage(of(s)->inner, cpu_us, peak_bytes);
}

/* All that is outside is control groups, with the same labels. */
static void sweep(const struct rt_host *host)
{
	rt_namespace.sweep(host);
}

const struct rt_driver rt_worktree = {
	.name = "worktree",
	.image_is_repository = true,
	.preflight = wt_preflight,
	.create = create,
	.prepare = prepare,
	.start = start,
	.signal = send_signal,
	.reap = reap,
	.usage = usage,
	.destroy = destroy,
	.sweep = sweep,
};
