/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runner: makes a worktree in a sandbox of its own and takes it out as a tar. The repository is
 * hostile: its configuration, hooks, attributes and objects are only ever looked at in there, and
 * what comes out is checked by tar.c. In there, too, git reads them in one process only
 * (upload-pack, which executes nothing that a repository says); everything else works on a
 * repository of our making.
 */
#include "runtimes/worktree/wt_i.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/fs.h"
#include "runtimes/runtimes_i.h"
#include "runtimes/waiting_i.h"

enum {
	READ_CHUNK = 64 << 10,
	SAID_MAX = 2048,	   /* of what git says about a failure */
	WORD_SIZE = 164,	   /* and of that in an error */
	TAR_BYTES_PER_FILE = 2048, /* header, padding, a long name */
	GIT_BYTES = 256 << 20,	   /* what git itself needs, besides the files */
	GIT_PIDS = 64,
	GIT_NOFILE = 1024,
};

/* How the script ends. */
enum {
	END_NO_COMMIT = 64,
	END_DIRTY = 65,
	END_GIT = 66,
	END_FULL = 73,
};

/*
 * $1: repository, files or nothing; $2: commits; $3: refuse or head. The repository, or the files,
 * are at /workspace. Whether there are uncommitted changes is asked with our own configuration,
 * which knows none of the repository's filters, and without believing the numbers of files, which
 * are others here.
 */
static const char script[] =
	"umask 022\n"
	"fail() {\n"
	"	[ \"$(stat -f -c %a /tmp)\" -lt 16 ] && exit 73\n"
	"	exit 66\n"
	"}\n"
	"printf '%s\\n' '[safe]' 'directory = *' '[init]' 'defaultBranch = main' '[core]' \\\n"
	"	'hooksPath = /dev/null' '[gc]' 'auto = 0' '[advice]' 'detachedHead = false' \\\n"
	"	>/tmp/.gitconfig || fail\n"
	"source=$1 depth=$2 dirty=$3\n"
	"if [ \"$source\" = repository ]; then\n"
	"	set -- -q --template= --no-checkout --no-tags --single-branch\n"
	"	[ \"$depth\" = 0 ] || set -- \"$@\" --depth \"$depth\"\n"
	"	git clone \"$@\" file:///workspace /tmp/w || fail\n"
	"else\n"
	"	git init -q --template= /tmp/w || fail\n"
	"fi\n"
	"cd /tmp/w || fail\n"
	"git config user.name tldw && git config user.email tldw@localhost || fail\n"
	"if [ \"$source\" = repository ]; then\n"
	"	git rev-parse -q --verify 'HEAD^{commit}' >/dev/null || exit 64\n"
	"	git remote remove origin || fail\n"
	"	if [ \"$dirty\" = refuse ] && [ -e /workspace/.git/index ]; then\n"
	"		cp /workspace/.git/index /tmp/index || fail\n"
	"		changes=$(GIT_INDEX_FILE=/tmp/index git -c core.checkStat=minimal \\\n"
	"			-c core.trustctime=false -c core.fileMode=false \\\n"
	"			--work-tree=/workspace status --porcelain --no-renames \\\n"
	"			--untracked-files=no --ignore-submodules=all) || fail\n"
	"		if [ -n \"$changes\" ]; then\n"
	"			printf '%s\\n' \"$changes\" | head -n 1 >&2\n"
	"			exit 65\n"
	"		fi\n"
	"		rm -f /tmp/index\n"
	"	fi\n"
	"	git reset -q --hard || fail\n"
	"else\n"
	"	git commit -q --allow-empty -m 'an empty worktree' || fail\n"
	"fi\n"
	"git checkout -q --detach || fail\n"
	"set -- --create --file=- --format=gnu --hard-dereference --owner=0 --group=0 \\\n"
	"	--numeric-owner --ignore-failed-read\n"
	"if [ \"$source\" = files ]; then\n"
	"	tar \"$@\" --anchored --exclude=./.git -C /workspace . -C /tmp/w .git\n"
	"else\n"
	"	tar \"$@\" -C /tmp/w .\n"
	"fi\n"
	"[ $? -le 1 ] || fail\n";

static char *const git_env[] = {
	(char *)(uintptr_t) "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	(char *)(uintptr_t) "HOME=/tmp",
	(char *)(uintptr_t) "LC_ALL=C",
	(char *)(uintptr_t) "GIT_CONFIG_NOSYSTEM=1",
	(char *)(uintptr_t) "GIT_ALLOW_PROTOCOL=file",
	(char *)(uintptr_t) "GIT_NO_LAZY_FETCH=1",
	(char *)(uintptr_t) "GIT_TERMINAL_PROMPT=0",
	(char *)(uintptr_t) "GIT_OPTIONAL_LOCKS=0",
	NULL,
};

/* ---- a sandbox for git ----------------------------------------------------------------------- */

struct git {
	const struct rt_host *host;
	struct rt_sandbox *sb; /* owned */
	struct rt_fds fds;     /* owned */
	struct rt_exit end;
	int64_t deadline_us;
	int seconds;		 /* what that was made of */
	int spool;		 /* what it prints goes there; -1: into said */
	size_t spooled, max;	 /* bytes; more is too much */
	char said[SAID_MAX + 1]; /* NUL-terminated */
	char word[WORD_SIZE];	 /* of that, for an error */
	size_t n_said;
	bool over, late, unwanted, too_much, broken;
};

static void git_clear(struct git *g)
{
	rt_namespace.destroy(g->sb);
	sbx_closep(&g->fds.out);
	sbx_closep(&g->fds.err);
	sbx_closep(&g->fds.in);
	sbx_closep(&g->fds.exit);
	sbx_closep(&g->fds.workspace);
	sbx_closep(&g->spool);
}

static int git_start(struct git *g, const struct rt_plan *p, struct sbx_error *e)
{
	struct rt_host host = *g->host;
	int r;

	host.expected = NULL; /* of runs */
	r = rt_namespace.create(&host, &g->sb, e);
	if (r == 0)
		r = rt_namespace.prepare(g->sb, p, e);
	if (r == 0)
		r = rt_namespace.start(g->sb, &g->fds, e);
	return r;
}

static void keep_said(struct git *g, const char *data, size_t n)
{
	if (n > SAID_MAX - g->n_said)
		n = SAID_MAX - g->n_said;
	memcpy(g->said + g->n_said, data, n);
	g->n_said += n;
	g->said[g->n_said] = '\0';
}

static void keep_output(struct git *g, const char *data, size_t n)
{
	if (g->spool < 0) {
		keep_said(g, data, n);
		return;
	}
	g->too_much |= n > g->max - g->spooled;
	if (g->too_much || g->broken)
		return;
	g->broken = sbx_write_all(g->spool, data, n) < 0;
	g->spooled += n;
}

/* One read; closes the descriptor at the end. False: nothing more for now. */
static bool drain(struct git *g, int *fd, void (*keep)(struct git *, const char *, size_t))
{
	static char buf[READ_CHUNK];
	ssize_t n = *fd < 0 ? 0 : read(*fd, buf, sizeof(buf));

	if (n > 0)
		keep(g, buf, (size_t)n);
	if (n == 0)
		sbx_closep(fd);
	return n > 0 || (n < 0 && errno == EINTR);
}

/* Until it is over, or must be. */
static void git_wait(struct git *g)
{
	while (!g->over && !g->late && !g->unwanted && !g->too_much && !g->broken) {
		struct pollfd p[] = { { .fd = g->fds.out, .events = POLLIN },
				      { .fd = g->fds.err, .events = POLLIN },
				      { .fd = g->fds.exit, .events = POLLIN } };
		int n = rt_wait(g->host->waiting, p, SBX_COUNT(p), g->deadline_us, true);

		g->late = n == 0;
		g->unwanted = n < 0;
		if (n <= 0)
			return;
		if (p[0].revents)
			(void)drain(g, &g->fds.out, keep_output);
		if (p[1].revents)
			(void)drain(g, &g->fds.err, keep_said);
		if (p[2].revents)
			g->over = rt_namespace.reap(g->sb, &g->end);
	}
	/* Every process is dead, so the pipes hold the rest and then end. */
	while (g->over && drain(g, &g->fds.out, keep_output))
		;
	while (g->over && drain(g, &g->fds.err, keep_said))
		;
}

/* ---- how it ended ---------------------------------------------------------------------------- */

/* The last line of what git said. */
static const char *last_word(struct git *g)
{
	const char *p = g->said;
	size_t n = g->n_said;

	while (n && isspace((unsigned char)p[n - 1]))
		n--;
	g->said[n] = '\0';
	for (const char *line = strchr(p, '\n'); line; line = strchr(p, '\n'))
		p = line + 1;
	rt_said(g->host->state_dir, p, g->word, sizeof(g->word));
	return *g->word ? g->word : "no message";
}

static int does_not_fit(const struct rt_plan *p, struct sbx_error *e)
{
	return sbx_fail(e, SBX_E_WORKSPACE_CAP,
			"the worktree does not fit into the workspace limit of %lld MiB",
			(long long)(p->limits.workspace_bytes >> 20));
}

/* Git takes away again what it could not finish, so that the place is free when it ends; it speaks
 * English, and what it writes to is a file system of ours, whose only fault can be its size. */
static bool was_full(const struct git *g)
{
	return strstr(g->said, "No space left on device") || strstr(g->said, "unable to write");
}

static int judge(struct git *g, const struct rt_plan *p, struct sbx_error *e)
{
	int status = g->end.status;

	if (g->unwanted)
		return sbx_fail(e, SBX_E_RUNTIME_ERROR, "the run is not wanted any more");
	if (g->late)
		return sbx_fail(e, SBX_E_RUNTIME_ERROR,
				"the worktree was not ready within %d seconds", g->seconds);
	if (g->broken)
		return sbx_fail(e, SBX_E_RUNTIME_ERROR,
				"cannot put the worktree aside: the disk "
				"of the service is full or broken");
	if (g->too_much || g->end.oom)
		return does_not_fit(p, e);
	if (WIFEXITED(status) && WEXITSTATUS(status) == END_GIT && was_full(g))
		return does_not_fit(p, e);
	if (g->end.lost || !WIFEXITED(status))
		return sbx_fail(e, SBX_E_RUNTIME_ERROR, "git was killed");
	switch (WEXITSTATUS(status)) {
	case 0:
		return 0;
	case END_FULL:
		return does_not_fit(p, e);
	case END_NO_COMMIT:
		return sbx_fail(e, SBX_E_RUNTIME_ERROR,
				"the repository has no commit of which a worktree could be made");
	case END_DIRTY:
		return sbx_fail(e, SBX_E_POLICY_UNSUPPORTED,
				"the repository has changes that are not committed and would not "
				"be in the worktree: %s",
				last_word(g));
	case END_GIT:
		return sbx_fail(e, SBX_E_RUNTIME_ERROR, "git cannot make a worktree: %s",
				last_word(g));
	default:
		return sbx_fail(e, SBX_E_RUNTIME_ERROR, "git cannot be run: %s", last_word(g));
	}
}

/* ---- making ---------------------------------------------------------------------------------- */

/* A file without a name, so that nothing is left of it when the runner dies. */
static int open_spool(const struct rt_host *host, struct sbx_error *e)
{
	const char *dir = host->state_dir ? host->state_dir : "/tmp";
	int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

	if (fd < 0 && errno == EOPNOTSUPP)
		fd = memfd_create("worktree", MFD_CLOEXEC);
	return fd < 0 ? sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, errno,
				       "cannot make a file for the worktree")
		      : fd;
}

static int read_spool(const struct git *g, const struct rt_plan *p, struct wt_checkout *ret,
		      struct sbx_error *e)
{
	if (!g->spooled)
		return sbx_fail(e, SBX_E_RUNTIME_ERROR, "git made no worktree");
	ret->map = mmap(NULL, g->spooled, PROT_READ, MAP_PRIVATE, g->spool, 0);
	if (ret->map == MAP_FAILED) {
		ret->map = NULL;
		return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, errno, "cannot map the worktree");
	}
	ret->len = g->spooled;
	return wt_tar_read(ret->map, ret->len, (size_t)p->limits.workspace_inodes, &ret->tree, e);
}

void wt_checkout_clear(struct wt_checkout *c)
{
	wt_tree_clear(&c->tree);
	if (c->map)
		(void)munmap(c->map, c->len);
	memset(c, 0, sizeof(*c));
}

/* The limits of the run, as far as they are about the same things. */
static struct rt_limits git_limits(const struct rt_limits *l)
{
	return (struct rt_limits){
		.memory_bytes = l->workspace_bytes + GIT_BYTES,
		.pids = GIT_PIDS,
		.nofile = GIT_NOFILE,
		.workspace_bytes = 1 << 20,
		.workspace_inodes = 64,
		.tmp_bytes = l->workspace_bytes + (1 << 20),
		.cpu = l->cpu,
		.strict = l->strict,
	};
}

static int run(struct git *g, const struct rt_plan *of, char *const *argv, int dir,
	       struct sbx_error *e)
{
	struct rt_plan plan = {
		.run_id = of->run_id,
		.generation = of->generation,
		.argv = argv,
		.envp = git_env,
		.cwd = "/tmp",
		.limits = git_limits(&of->limits),
		.network = RT_NET_DENY_ALL,
		.workspace_fd = dir,
		.workspace_ro = true,
	};
	int r = git_start(g, &plan, e);

	if (r == 0)
		git_wait(g);
	return r;
}

int wt_checkout(const struct rt_host *host, const struct wt_source *src, const struct rt_plan *p,
		int seconds, struct wt_checkout *ret, struct sbx_error *e)
{
	__attribute__((cleanup(git_clear))) struct git g = {
		.host = host,
		.fds = { -1, -1, -1, -1, -1 },
		.deadline_us = sbx_boot_us() + seconds * SBX_SECOND_US,
		.seconds = seconds,
		.spool = -1,
		.max = (size_t)(p->limits.workspace_bytes +
				p->limits.workspace_inodes * TAR_BYTES_PER_FILE),
	};
	char depth[24], text[sizeof(script)], shell[] = "/bin/sh", option[] = "-c";
	char name[] = "worktree", repository[] = "repository", files[] = "files";
	char nothing[] = "nothing", refuse[] = "refuse", head[] = "head";
	char *argv[] = { shell, option, text, name, nothing, depth, refuse, NULL };
	int r;

	memset(ret, 0, sizeof(*ret));
	memcpy(text, script, sizeof(text));
	(void)snprintf(depth, sizeof(depth), "%lld", (long long)host->worktree.depth);
	if (src->dir >= 0)
		argv[4] = src->repository ? repository : files;
	if (host->worktree.dirty_is_head)
		argv[6] = head;
	g.spool = open_spool(host, e);
	if (g.spool < 0)
		return g.spool;
	r = run(&g, p, argv, src->dir, e);
	if (r == 0)
		r = judge(&g, p, e);
	if (r == 0)
		r = read_spool(&g, p, ret, e);
	if (r < 0)
		wt_checkout_clear(ret);
	return r;
}

bool wt_git_version(const struct rt_host *host, char *ret, size_t size)
{
	__attribute__((cleanup(git_clear))) struct git g = {
		.host = host,
		.fds = { -1, -1, -1, -1, -1 },
		.deadline_us = sbx_boot_us() + WT_PREFLIGHT_SECONDS * SBX_SECOND_US,
		.spool = -1,
	};
	const struct rt_plan p = { .run_id = "preflight",
				   .limits = { .workspace_bytes = 1 << 20, .cpu = 1 } };
	char git[] = "git", option[] = "--version";
	char *argv[] = { git, option, NULL };

	if (run(&g, &p, argv, -1, NULL) < 0 || !g.over || !WIFEXITED(g.end.status) ||
	    WEXITSTATUS(g.end.status) != 0)
		return false;
	(void)snprintf(ret, size, "%s", last_word(&g));
	return true;
}
