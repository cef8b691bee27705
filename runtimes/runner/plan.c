/* SPDX-License-Identifier: Apache-2.0 */
/* From the effective spec to what a driver needs: limits, environment, files, image. */
#include "runtimes/runner/runner_i.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/fs.h"
#include "orchestrator/image.h"
#include "orchestrator/policy.h"
#include "store/sessions.h"

void plan_clear(struct plan_store *p)
{
	for (size_t i = 0; p->envp && p->envp[i]; i++)
		free(p->envp[i]);
	free(p->envp);
	free(p->files);
	free(p->cwd);
	free(p->image);
	sbx_closep(&p->workspace);
	sbx_closep(&p->image_held);
	memset(p, 0, sizeof(*p));
	p->workspace = p->image_held = -1;
}

/* What a program finds in its environment unless the spec says otherwise (docs/spec.md). */
static const char *const env_defaults[][2] = {
	{ "PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" },
	{ "HOME", "/workspace" },
	{ "USER", "sandbox" },
	{ "LANG", "C.UTF-8" },
	{ "PWD", NULL }, /* the cwd */
};

static bool spec_sets(const struct ms_run_spec *spec, const char *name)
{
	for (size_t i = 0; i < spec->n_env; i++)
		if (strcmp(spec->env[i].key, name) == 0)
			return true;
	return false;
}

static bool make_env(const struct ms_run_spec *spec, struct plan_store *p)
{
	size_t n = 0;

	p->envp = calloc(spec->n_env + SBX_COUNT(env_defaults) + 1, sizeof(*p->envp));
	if (!p->envp)
		return false;
	for (size_t i = 0; i < SBX_COUNT(env_defaults); i++) {
		const char *value = env_defaults[i][1] ? env_defaults[i][1] : p->cwd;

		if (spec_sets(spec, env_defaults[i][0]))
			continue;
		if (asprintf(&p->envp[n], "%s=%s", env_defaults[i][0], value) < 0) {
			p->envp[n] = NULL;
			return false;
		}
		n++;
	}
	p->plan.n_env_defaults = n;
	for (size_t i = 0; i < spec->n_env; i++, n++) {
		if (asprintf(&p->envp[n], "%s=%s", spec->env[i].key, spec->env[i].value) < 0) {
			p->envp[n] = NULL;
			return false;
		}
	}
	return true;
}

static bool make_files(const struct ms_run_spec *spec, struct plan_store *p)
{
	p->files = calloc(spec->n_files + 1, sizeof(*p->files));
	if (!p->files)
		return false;
	for (size_t i = 0; i < spec->n_files; i++)
		p->files[i] = (struct rt_file){
			.path = spec->files[i].path,
			.data = spec->files[i].data,
			.len = spec->files[i].len,
			/* A text that begins with #! is meant to be run. */
			.mode = spec->files[i].len > 2 && memcmp(spec->files[i].data, "#!", 2) == 0
					? 0755
					: 0644,
		};
	p->plan.files = p->files;
	p->plan.n_files = spec->n_files;
	return true;
}

/* The tier's limits again: the row holds what was clamped, these follow from settings. */
static void make_limits(const struct runner *r, const struct ms_run_spec *spec, struct rt_limits *l)
{
	struct orch_tier_limits t;

	orch_tier_limits(r->settings, spec->trust_level, &t);
	l->memory_bytes = spec->memory_mb << 20;
	l->pids = spec->pids > 0 && spec->pids < t.pids ? spec->pids : t.pids;
	l->nofile = t.nofile;
	l->workspace_bytes = t.workspace_cap_mb << 20;
	/* One inode for every 4 KiB, as mke2fs gives small file systems, and some for a start. */
	l->workspace_inodes = t.workspace_cap_mb * 256 + 1024;
	l->tmp_bytes = l->workspace_bytes;
	l->cpu = spec->cpu;
	l->strict = strcmp(spec->trust_level, "untrusted") == 0;
}

void plan_expect(const struct runner *r, struct rt_limits *ret)
{
	struct ms_run_spec bare = { .trust_level = (char *)(uintptr_t) "standard" };
	struct orch_tier_limits t;

	orch_tier_limits(r->settings, bare.trust_level, &t);
	bare.memory_mb = t.memory_mb;
	bare.cpu = t.cpu;
	make_limits(r, &bare, ret);
}

/* For the library of networks, which knows nothing of runs. */
static bool still_wanted(void *ctx)
{
	const struct rt_waiting *w = ctx;

	return w->turn(w->ctx, true) != RT_GIVE_UP;
}

/* The run's own list, or the operator's; whether it is within that one is asked again there, since
 * the settings may be others by now. */
static int make_network(const struct runner *r, const struct ms_run_spec *spec,
			struct plan_store *p, struct sbx_error *e)
{
	struct rt_plan *plan = &p->plan;

	plan->network = RT_NET_DENY_ALL;
	if (strcmp(spec->network_policy, "allowlist") != 0)
		return 0;
	if (!r->host.egress)
		return sbx_fail(e, SBX_E_POLICY_UNSUPPORTED,
				"network_policy allowlist needs egress_enforcement, "
				"egress_granular_enforcement and an egress_allowlist");
	p->egress = (struct egress_config){
		.tokens = (const char *const *)spec->network_allowlist,
		.n_tokens = spec->n_network_allowlist,
		.operator_list = r->settings->egress_allowlist,
		.dns = r->settings->egress_dns,
		.uid_base = r->host.uid_base,
		.uid_range = r->host.uid_range,
		.wanted = r->host.waiting ? still_wanted : NULL,
		.wanted_ctx = (void *)(uintptr_t)r->host.waiting,
	};
	plan->network = RT_NET_ALLOWLIST;
	plan->egress = &p->egress;
	return 0;
}

static int open_workspace(const struct runner *r, const char *session_id, struct plan_store *p,
			  struct sbx_error *e)
{
	sbx_autoclose int dir = store_session_dir(r->store, session_id, false, e);

	if (dir < 0)
		return dir;
	p->workspace = store_session_workspace(dir);
	if (p->workspace < 0)
		return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, -p->workspace,
				      "cannot open the session's workspace");
	p->plan.workspace_fd = p->workspace;
	return 0;
}

int plan_make(const struct runner *r, const struct store_run *run, const struct ms_run_spec *spec,
	      struct plan_store *ret, struct sbx_error *e)
{
	struct rt_plan *plan = &ret->plan;
	const char *image =
		spec->base_image ? spec->base_image : orch_image_default(r->settings, run->runtime);
	int rc = 0;

	if (orch_image_by_name(r->settings, run->runtime))
		plan->image_name = image;
	else
		rc = orch_image_resolve(r->settings, r->host.state_dir, image, &ret->image, e);
	if (rc == 0 && ret->image)
		rc = orch_image_hold(ret->image, &ret->image_held, e);
	if (rc < 0)
		return rc;
	if (ret->image)
		(void)orch_image_digest(ret->image, ret->image_digest);
	if (!spec->cwd)
		ret->cwd = strdup("/workspace");
	else if (spec->cwd[0] == '/')
		ret->cwd = strdup(spec->cwd);
	else if (asprintf(&ret->cwd, "/workspace/%s", spec->cwd) < 0)
		ret->cwd = NULL;
	if (!ret->cwd || !make_env(spec, ret) || !make_files(spec, ret))
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the run's plan");
	plan->run_id = run->id;
	plan->generation = run->generation;
	plan->image_path = ret->image;
	plan->argv = spec->command;
	plan->envp = ret->envp;
	plan->cwd = ret->cwd;
	make_limits(r, spec, &plan->limits);
	rc = make_network(r, spec, ret, e);
	if (rc < 0)
		return rc;
	plan->stdin_open = spec->interactive || spec->stdin_len > 0;
	plan->workspace_fd = -1;
	return spec->session_id ? open_workspace(r, spec->session_id, ret, e) : 0;
}
