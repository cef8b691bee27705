/* SPDX-License-Identifier: Apache-2.0 */
/* Runner: does it work here? Makes a sandbox and runs a program in it. */
#include "runtimes/namespace/ns_i.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/clock.h"
#include "runtimes/cgroup.h"
#include "runtimes/runtimes_i.h"

enum { PREFLIGHT_SECONDS = 5, HOST_JSON_MAX = 4096 };

static const char *const reasons[NS_STAGE__COUNT] = {
	[NS_STAGE_OTHER] = "namespace_unavailable",
	[NS_STAGE_USER] = "user_namespaces_unavailable",
	[NS_STAGE_MOUNT] = "mount_namespaces_unavailable",
	[NS_STAGE_CGROUP] = "cgroup_unavailable",
	[NS_STAGE_SECCOMP] = "seccomp_unavailable",
	[NS_STAGE_IMAGE] = "namespace_unavailable",
	[NS_STAGE_FILES] = "namespace_unavailable",
};

static void add(struct rt_preflight *out, enum ns_stage stage)
{
	out->reasons[out->n_reasons++] = reasons[stage];
}

/* Any program that does nothing will do; a host need not have the first. */
static int run_once(struct ns_sandbox *sb, const struct egress_config *egress, struct sbx_error *e)
{
	char shell[] = "/bin/sh", option[] = "-c", script[] = ":", path[] = "PATH=/usr/bin:/bin";
	char *argv[] = { shell, option, script, NULL };
	char *envp[] = { path, NULL };
	struct rt_plan plan = {
		.run_id = "preflight",
		.argv = argv,
		.envp = envp,
		.cwd = "/workspace",
		.limits = rt_preflight_limits,
		.network = egress ? RT_NET_ALLOWLIST : RT_NET_DENY_ALL,
		.egress = egress,
		.workspace_fd = -1,
	};

	return rt_preflight_run((struct rt_sandbox *)sb, &plan,
				sbx_boot_us() + PREFLIGHT_SECONDS * SBX_SECOND_US, e);
}

/* A network with one target, which is for documentation (RFC 5737) and is not spoken to. */
static bool try_network(const struct rt_host *host)
{
	const struct egress_config egress = { .operator_list = "192.0.2.1",
					      .uid_base = host->uid_base,
					      .uid_range = host->uid_range };
	sbx_autoerror e = SBX_ERROR_INIT;
	struct ns_sandbox *sb = NULL;
	enum ns_stage stage;
	int r;

	if (!host->egress)
		return false;
	r = ns_create(host, &sb, &stage, &e);
	if (r == 0)
		r = run_once(sb, &egress, &e);
	rt_namespace.destroy((struct rt_sandbox *)sb);
	if (r < 0)
		rt_preflight_log("namespace", "allowlist", &e);
	return r == 0;
}

static char *host_json(const struct cg *groups, bool users, bool filter)
{
	sbx_autobuf b = SBX_BUF_INIT(HOST_JSON_MAX);
	bool tree = cg_has(groups, CG_MEMORY) && cg_has(groups, CG_PIDS);
	struct utsname u;

	sbx_buf_printf(&b,
		       "{\"uid\":%u,\"cgroup\":\"%s\",\"limits\":\"%s\",\"landlock_abi\":%d,"
		       "\"seccomp\":%s,\"user_namespaces\":%s,\"kernel\":",
		       (unsigned)geteuid(), cg_name(groups), tree ? "cgroup" : "rlimit",
		       ns_landlock_abi(), filter ? "true" : "false", users ? "true" : "false");
	sbx_buf_json_strz(&b, uname(&u) == 0 ? u.release : NULL);
	sbx_buf_puts(&b, "}");
	return sbx_buf_steal(&b);
}

void ns_preflight(const struct rt_host *host, struct rt_preflight *out)
{
	struct ns_sandbox *sb = NULL;
	struct cg *groups = ns_groups(host, NULL);
	enum ns_stage stage = NS_STAGE_OTHER;
	sbx_autoerror e = SBX_ERROR_INIT;
	bool works;

	memset(out, 0, sizeof(*out));
	works = ns_create(host, &sb, &stage, &e) == 0;
	if (works && run_once(sb, NULL, &e) < 0) {
		works = false;
		stage = NS_STAGE_OTHER;
	}
	rt_namespace.destroy((struct rt_sandbox *)sb);
	out->allowlist_ready = works && try_network(host);
	cg_trim(groups);
	if (!works) {
		add(out, stage);
		rt_preflight_log("namespace", "deny_all", &e);
	}
	out->deny_all_ready = out->trusted = out->standard = works;
	/* What nobody trusts needs limits for the tree, and a user of its own or at least one that
	 * is not the host's root. */
	out->untrusted = works && cg_has(groups, CG_MEMORY) && cg_has(groups, CG_PIDS) &&
			 (ns_is_root() || geteuid() != 0);
	out->host_json = host_json(groups, works || stage != NS_STAGE_USER,
				   works || stage != NS_STAGE_SECCOMP);
}
