/* SPDX-License-Identifier: Apache-2.0 */
/* Runner: does it work here? Makes a sandbox, asks git in it what it is, and makes a worktree. */
#include "runtimes/worktree/wt_i.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "runtimes/runtimes_i.h"

enum { HOST_JSON_MAX = 4096, VERSION_MAX = 80 };

static void add(struct rt_preflight *out, const char *reason)
{
	out->reasons[out->n_reasons++] = reason;
}

/* "git version 2.39.5" and the like. */
static bool new_enough(const char *version)
{
	int major = 0, minor = 0;

	if (sscanf(version, "git version %d.%d", &major, &minor) != 2)
		return false;
	return major > WT_GIT_MAJOR || (major == WT_GIT_MAJOR && minor >= WT_GIT_MINOR);
}

static bool make_one(const struct rt_host *host)
{
	__attribute__((cleanup(wt_checkout_clear))) struct wt_checkout c = { .len = 0 };
	const struct wt_source nothing = { .dir = -1 };
	const struct rt_plan p = {
		.run_id = "preflight",
		.limits = { .workspace_bytes = 4 << 20, .workspace_inodes = 1024, .cpu = 1 },
	};

	sbx_autoerror e = SBX_ERROR_INIT;

	if (wt_checkout(host, &nothing, &p, WT_PREFLIGHT_SECONDS, &c, &e) == 0)
		return true;
	rt_preflight_log("worktree", "a worktree", &e);
	return false;
}

/* What the namespaces say of the host, and git. */
static char *host_json(char *of_namespace, const char *version)
{
	sbx_autofree char *facts = of_namespace;
	sbx_autobuf b = SBX_BUF_INIT(HOST_JSON_MAX);
	size_t n = facts ? strlen(facts) : 0;

	sbx_buf_puts(&b, "{\"platform\":\"linux\",\"git\":");
	sbx_buf_json_strz(&b, *version ? version : NULL);
	if (n > 2) {
		sbx_buf_puts(&b, ",");
		sbx_buf_add(&b, facts + 1, n - 1);
	} else {
		sbx_buf_puts(&b, "}");
	}
	return sbx_buf_steal(&b);
}

void wt_preflight(const struct rt_host *host, struct rt_preflight *out)
{
	char version[VERSION_MAX] = "";
	struct rt_preflight base;

	memset(out, 0, sizeof(*out));
	rt_namespace.preflight(host, &base);
	if (base.n_reasons > 0)
		add(out, "unshare_required_on_linux");
	else if (!wt_git_version(host, version, sizeof(version)) || !new_enough(version))
		add(out, "git_too_old_or_missing");
	else if (!make_one(host))
		add(out, "worktree_unavailable");
	/* Whoever may be trusted is not for the host to say; what is refused is what would need
	 * more of a boundary than is published. */
	out->trusted = out->standard = true;
	out->deny_all_ready = !out->n_reasons && host->worktree.deny_all;
	out->host_json = host_json(sbx_steal(&base.host_json), version);
	rt_preflight_clear(&base);
}
