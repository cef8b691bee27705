/* SPDX-License-Identifier: Apache-2.0 */
/* Runner: fits a waiting sandbox to a plan. */
#include "runtimes/namespace/ns_i.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/auto.h"
#include "base/fs.h"
#include "runtimes/cgroup.h"
#include "runtimes/runtimes_i.h"

/* Where a command begins unless it asks for another place; there in every sandbox. */
#define DEFAULT_CWD "/workspace"

static int check_plan(const struct ns_sandbox *sb, const struct rt_plan *p, struct sbx_error *e)
{
	const struct cg *groups = ns_groups(sb->host, e);

	if (!p->argv || !p->argv[0])
		return sbx_fail(e, SBX_E_RUNTIME_ERROR, "the plan has no command");
	if (!p->cwd || p->cwd[0] != '/' || strlen(p->cwd) > SBX_PATH_MAX)
		return sbx_fail(e, SBX_E_RUNTIME_ERROR, "the plan's cwd is not an absolute path");
	if (p->network != RT_NET_DENY_ALL && !(p->network == RT_NET_ALLOWLIST && p->egress))
		return sbx_fail(
			e, SBX_E_POLICY_UNSUPPORTED,
			"runtime 'namespace' has the sandbox's own loopback, or an allowlist "
			"of targets, which is missing");
	if (p->limits.strict && !(cg_has(groups, CG_MEMORY) && cg_has(groups, CG_PIDS)))
		return sbx_fail(e, SBX_E_POLICY_UNSUPPORTED,
				"memory and processes cannot be limited here: the service has no "
				"control group with these controllers");
	return 0;
}

static bool same_image(const char *a, const char *b)
{
	return a && b ? strcmp(a, b) == 0 : a == b;
}

/* A network is for a namespace that nobody else has had, although nothing happened in it. */
static bool fits_network(const struct ns_sandbox *sb, const struct rt_plan *p)
{
	return p->network == RT_NET_DENY_ALL || !sb->net || ns_net_is_new(sb->net);
}

/* Throws the waiting processes away when they were made for something else. */
static int fit_build(struct ns_sandbox *sb, const struct rt_plan *p, struct sbx_error *e)
{
	int bind = sb->own_ids ? -1 : p->workspace_fd; /* root sends a mount instead */
	enum ns_stage stage;

	if (sb->pid > 0 && same_image(sb->image, p->image_path) && bind < 0 && !sb->has_bound &&
	    fits_network(sb, p))
		return 0;
	if (sb->net && p->network != RT_NET_DENY_ALL)
		(void)ns_net_use(sb->net); /* so that the next one is new */
	ns_teardown(sb);
	sb->bind_ro = p->workspace_ro;
	return ns_build(sb, p->image_path, bind, &stage, e);
}

static int set_limits(struct ns_sandbox *sb, const struct rt_limits *l, struct sbx_error *e)
{
	struct cg_limits limits = {
		.memory_bytes = l->memory_bytes,
		.pids = l->pids > 0 ? l->pids + 1 : 0, /* init */
		.cpu = l->cpu,
	};

	return sb->leaf ? cg_leaf_limit(sb->leaf, &limits, e) : 0;
}

static int send_file(int sock, const struct rt_file *f)
{
	struct ns_file head = {
		.size = f->len,
		.path_size = (uint32_t)strlen(f->path) + 1,
		.mode = f->mode,
	};
	struct iovec iov[] = {
		{ .iov_base = &head, .iov_len = sizeof(head) },
		{ .iov_len = head.path_size },
		{ .iov_len = f->len },
	};

	memcpy(&iov[1].iov_base, &f->path, sizeof(f->path)); /* they are only read */
	memcpy(&iov[2].iov_base, &f->data, sizeof(f->data));
	return ns_send(sock, iov, SBX_COUNT(iov), -1);
}

static int send_fill(struct ns_sandbox *sb, const struct rt_plan *p, int tree)
{
	struct ns_order order = { .op = NS_OP_PREPARE };
	struct ns_fill fill = {
		.workspace_bytes = p->limits.workspace_bytes,
		.workspace_inodes = p->limits.workspace_inodes,
		.tmp_bytes = p->limits.tmp_bytes,
		.has_tree = tree >= 0,
		.cwd_size = (uint32_t)strlen(p->cwd) + 1,
		.n_files = (uint32_t)p->n_files,
	};
	struct iovec iov[] = {
		{ .iov_base = &order, .iov_len = sizeof(order) },
		{ .iov_base = &fill, .iov_len = sizeof(fill) },
		{ .iov_len = fill.cwd_size },
	};
	int r;

	memcpy(&iov[2].iov_base, &p->cwd, sizeof(p->cwd));
	r = ns_send(sb->sock, iov, SBX_COUNT(iov), tree);
	for (size_t i = 0; i < p->n_files && r == 0; i++)
		r = send_file(sb->sock, &p->files[i]);
	return r;
}

/* The command waits with all of it for one byte more. */
static int send_exec(struct ns_sandbox *sb, const struct rt_plan *p, struct sbx_error *e)
{
	const struct cg *groups = ns_groups(sb->host, NULL);
	sbx_autobuf text = SBX_BUF_INIT(NS_EXEC_MAX);
	struct ns_exec head = { .stdin_open = p->stdin_open };
	struct iovec iov[2] = { { .iov_base = &head, .iov_len = sizeof(head) } };
	int r;

	sbx_buf_add(&text, p->cwd, strlen(p->cwd) + 1);
	for (char *const *a = p->argv; *a; a++, head.argc++)
		sbx_buf_add(&text, *a, strlen(*a) + 1);
	for (char *const *v = p->envp; v && *v; v++, head.envc++)
		sbx_buf_add(&text, *v, strlen(*v) + 1);
	if (sbx_buf_failed(&text))
		return sbx_fail(e, SBX_E_RUNTIME_ERROR,
				"the arguments and the environment are larger than %d bytes",
				NS_EXEC_MAX);
	head.size = (uint32_t)text.len;
	head.nofile = (uint64_t)p->limits.nofile;
	/* Where no group counts the tree: processes per user of this namespace (init is one), and
	 * private memory of each process. The address space as such is not limited, because
	 * language runtimes reserve far more of it than they use. */
	if (!cg_has(groups, CG_PIDS))
		head.nproc = (uint64_t)p->limits.pids + 1;
	if (!cg_has(groups, CG_MEMORY))
		head.data = (uint64_t)p->limits.memory_bytes;
	iov[1].iov_base = text.data;
	iov[1].iov_len = text.len;
	r = ns_send(sb->command, iov, SBX_COUNT(iov), -1);
	if (r < 0)
		return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, -r,
				      "cannot hand the command to the sandbox");
	return 0;
}

static int check_files(const struct rt_plan *p, struct sbx_error *e)
{
	for (size_t i = 0; i < p->n_files; i++) {
		const char *problem = sbx_path_problem(p->files[i].path, strlen(p->files[i].path));

		if (problem)
			return sbx_fail(e, SBX_E_RUNTIME_ERROR, "the path of file %zu %s", i,
					problem);
		if ((S_ISLNK(p->files[i].mode) || S_ISDIR(p->files[i].mode)) &&
		    p->files[i].len > SBX_PATH_MAX)
			return sbx_fail(e, SBX_E_RUNTIME_ERROR,
					"the target of link %zu is longer than %d bytes", i,
					SBX_PATH_MAX);
	}
	return 0;
}

/* Files that do not fit are the caller's doing and have a code of their own. */
static int await_fill(struct ns_sandbox *sb, struct sbx_error *e)
{
	struct ns_reply r;
	bool oom = false, pids;
	int rc = ns_recv(sb->sock, &r, sizeof(r), NULL);

	if (rc < 0 && sb->leaf)
		cg_leaf_events(sb->leaf, &oom, &pids);
	if (oom)
		return sbx_fail(e, SBX_E_WORKSPACE_CAP,
				"the files do not fit into the sandbox's memory limit");
	if (rc < 0)
		return sbx_fail(e, SBX_E_RUNTIME_ERROR, "the sandbox ended while it was prepared");
	if (r.err == 0)
		return 0;
	r.text[sizeof(r.text) - 1] = '\0';
	if (r.err == ENOSPC || r.err == EDQUOT)
		return sbx_fail(e, SBX_E_WORKSPACE_CAP, "%s: the workspace is full", r.text);
	return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, r.err, "%s", r.text);
}

static bool same_limits(const struct rt_limits *a, const struct rt_limits *b)
{
	return a->memory_bytes == b->memory_bytes && a->pids == b->pids && a->cpu == b->cpu &&
	       a->workspace_bytes == b->workspace_bytes &&
	       a->workspace_inodes == b->workspace_inodes && a->tmp_bytes == b->tmp_bytes;
}

/* Is there nothing left to do but to name the command? */
static bool fits(const struct ns_sandbox *sb, const struct rt_plan *p)
{
	return sb->fitted && !p->n_files && p->workspace_fd < 0 &&
	       strcmp(p->cwd, DEFAULT_CWD) == 0 && same_limits(&sb->fitted_to, &p->limits);
}

/* The groups, the sizes, the workspace. */
static int fit(struct ns_sandbox *sb, const struct rt_plan *p, struct sbx_error *e)
{
	sbx_autoclose int tree = -1;
	int r = 0;

	sb->fitted = false;
	/* Files count as memory, so that the limits must be there before. Without any, init can
	 * work while they are set. */
	if (p->n_files)
		r = set_limits(sb, &p->limits, e);
	if (r == 0 && p->workspace_fd >= 0 && sb->own_ids)
		r = rt_workspace_tree(p->workspace_fd, sb->uid, sb->uid, p->workspace_ro, &tree, e);
	if (r < 0)
		return r;
	/* A failure to send is a dead init; its answer, or the lack of one, says more. */
	(void)send_fill(sb, p, tree);
	if (!p->n_files)
		r = set_limits(sb, &p->limits, e);
	return r == 0 ? await_fill(sb, e) : r;
}

int ns_fit_ahead(struct ns_sandbox *sb, const struct rt_limits *limits, struct sbx_error *e)
{
	const struct rt_plan bare = { .cwd = DEFAULT_CWD, .limits = *limits, .workspace_fd = -1 };
	int r = fit(sb, &bare, e);

	if (r < 0)
		return r;
	sb->fitted = true;
	sb->fitted_to = *limits;
	return 0;
}

/* ---- network --------------------------------------------------------------------------------- */

/* The list and its names, before anything is made for the run. */
static int open_network(const struct rt_plan *p, struct egress **ret, struct sbx_error *e)
{
	return p->network == RT_NET_DENY_ALL ? 0 : egress_failed(egress_open(p->egress, ret, e), e);
}

static int enter_network(struct ns_sandbox *sb, struct egress **egress, struct sbx_error *e)
{
	int netns;

	if (!*egress)
		return 0;
	netns = sb->net ? ns_net_use(sb->net) : sb->netns;
	sb->egress = sbx_steal(egress);
	return egress_failed(egress_enter(sb->egress, netns, sb->net ? -1 : sb->userns, e), e);
}

int ns_prepare(struct rt_sandbox *s, const struct rt_plan *p, struct sbx_error *e)
{
	struct ns_sandbox *sb = (struct ns_sandbox *)s;
	SBX_AUTO(egress_closep) struct egress *egress = NULL;
	int r = check_plan(sb, p, e);

	if (r == 0)
		r = check_files(p, e);
	if (r == 0)
		r = open_network(p, &egress, e);
	if (r == 0)
		r = fit_build(sb, p, e);
	if (r == 0 && !fits(sb, p))
		r = fit(sb, p, e);
	if (r == 0)
		r = enter_network(sb, &egress, e);
	/* Not earlier: the command enters its cwd and the Landlock rules as soon as it knows them.
	 */
	if (r == 0)
		r = send_exec(sb, p, e);
	if (r < 0)
		return r;
	if (p->workspace_fd >= 0) {
		sbx_closep(&sb->workspace);
		sb->workspace = openat(p->workspace_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (sb->workspace < 0)
			return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, errno,
					      "cannot open the workspace");
	}
	sb->stdin_open = p->stdin_open;
	sb->prepared = true;
	return 0;
}
