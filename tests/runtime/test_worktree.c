/* SPDX-License-Identifier: Apache-2.0 */
/* The worktree driver on this kernel, with this host's git. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/fs.h"
#include "runtimes/worktree/wt_i.h"
#include "tests/runtime/ns_test.h"

extern const struct rt_driver rt_worktree;

static char scratch[] = "/tmp/sbx-wt-test-XXXXXX";
static char repo[64], state_dir[64];

/* Commands of a shell, in the scratch directory; what they do is known to work. */
static void host(const char *script)
{
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		if (chdir(scratch) == 0)
			(void)execl("/bin/sh", "sh", "-euc", script, (char *)NULL);
		_exit(1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static int make_scratch(void **state)
{
	(void)state;
	if (!mkdtemp(scratch) || chmod(scratch, 0755) < 0)
		return -1;
	(void)snprintf(repo, sizeof(repo), "%s/repo", scratch);
	(void)snprintf(state_dir, sizeof(state_dir), "%s/state", scratch);
	host("mkdir state; git init -q -b main repo; cd repo; git config user.name t;"
	     "git config user.email t; echo text >f; ln -s f l; mkdir d; echo x >d/e; chmod 755 "
	     "d/e;"
	     "git add .; git commit -qm one");
	return 0;
}

static int remove_scratch(void **state)
{
	(void)state;
	return sbx_remove_tree(AT_FDCWD, scratch);
}

static struct rt_host a_host(void)
{
	struct rt_host h = test_host;

	h.state_dir = state_dir;
	h.worktree.allowed_dirs = scratch;
	h.worktree.depth = 1;
	return h;
}

struct plan {
	struct rt_plan plan;
	char shell[8], option[4], script[256];
	char *argv[4];
};

static char path_env[] = "PATH=/usr/local/bin:/usr/bin:/bin";
static char home_env[] = "HOME=/workspace";
static char *const plain_env[] = { path_env, home_env, NULL };

/* Of a shell command; image NULL: without a repository. */
static void plan_init(struct plan *p, const char *image, const char *script)
{
	memset(p, 0, sizeof(*p));
	(void)snprintf(p->shell, sizeof(p->shell), "sh");
	(void)snprintf(p->option, sizeof(p->option), "-c");
	(void)snprintf(p->script, sizeof(p->script), "%s", script);
	p->argv[0] = p->shell;
	p->argv[1] = p->option;
	p->argv[2] = p->script;
	p->plan = (struct rt_plan){
		.run_id = "test",
		.image_path = image,
		.argv = p->argv,
		.envp = plain_env,
		.cwd = "/workspace",
		.limits = { .memory_bytes = 256 << 20,
			    .pids = 64,
			    .nofile = 256,
			    .workspace_bytes = 32 << 20,
			    .workspace_inodes = 4096,
			    .tmp_bytes = 16 << 20,
			    .cpu = 4 },
		.network = RT_NET_DENY_ALL,
		.workspace_fd = -1,
	};
}

static int prepare(const struct rt_host *h, const struct rt_plan *p, struct sbx_error *e)
{
	struct rt_sandbox *sb = NULL;
	int r;

	assert_int_equal(rt_worktree.create(h, &sb, e), 0);
	r = rt_worktree.prepare(sb, p, e);
	rt_worktree.destroy(sb);
	return r;
}

/* The status of the command; out: what it printed. */
static int run(const struct rt_host *h, const struct rt_plan *p, char out[4096])
{
	struct rt_fds fds = { -1, -1, -1, -1, -1 };
	sbx_autoerror e = SBX_ERROR_INIT;
	struct rt_sandbox *sb = NULL;
	struct pollfd wait;
	struct rt_exit x;
	ssize_t n;

	if (rt_worktree.create(h, &sb, &e) < 0 || rt_worktree.prepare(sb, p, &e) < 0 ||
	    rt_worktree.start(sb, &fds, &e) < 0)
		fail_msg("it did not start: %s", e.message);
	wait = (struct pollfd){ .fd = fds.exit, .events = POLLIN };
	do {
		assert_int_equal(poll(&wait, 1, TEST_SECONDS * 1000), 1);
	} while (!rt_worktree.reap(sb, &x));
	n = read(fds.out, out, 4095);
	out[n > 0 ? n : 0] = '\0';
	rt_worktree.destroy(sb);
	sbx_closep(&fds.out);
	sbx_closep(&fds.err);
	sbx_closep(&fds.in);
	sbx_closep(&fds.exit);
	sbx_closep(&fds.workspace);
	return WIFEXITED(x.status) ? WEXITSTATUS(x.status) : -1;
}

/* ---- preflight ------------------------------------------------------------------------------- */

static void preflight__finds_it_usable(void **state)
{
	struct rt_host h = a_host();
	struct rt_preflight p;

	(void)state;
	rt_worktree.preflight(&h, &p);
	assert_int_equal(p.n_reasons, 0);
	assert_true(p.trusted && p.standard);
	assert_false(p.untrusted || p.allowlist_ready || p.deny_all_ready);
	assert_non_null(strstr(p.host_json, "\"platform\":\"linux\""));
	assert_non_null(strstr(p.host_json, "\"git\":\"git version "));
	assert_non_null(strstr(p.host_json, "\"limits\":"));
	rt_preflight_clear(&p);
}

static void preflight__deny_all_is_the_operators_word(void **state)
{
	struct rt_host h = a_host();
	struct rt_preflight p;

	(void)state;
	h.worktree.deny_all = true;
	rt_worktree.preflight(&h, &p);
	assert_true(p.deny_all_ready);
	assert_false(p.allowlist_ready);
	rt_preflight_clear(&p);
}

/* ---- worktrees ------------------------------------------------------------------------------- */

static void worktree__of_a_repository(void **state)
{
	struct rt_host h = a_host();
	char out[4096];
	struct plan p;

	(void)state;
	plan_init(&p, repo,
		  "cat f l; test -x d/e; readlink l; git status --porcelain; git log --format=%s");
	assert_int_equal(run(&h, &p.plan, out), 0);
	assert_string_equal(out, "text\ntext\nf\none\n");
}

static void worktree__of_nothing(void **state)
{
	struct rt_host h = a_host();
	char out[4096];
	struct plan p;

	(void)state;
	plan_init(&p, NULL, "ls -A; git log --format='%an %ae'");
	assert_int_equal(run(&h, &p.plan, out), 0);
	assert_string_equal(out, ".git\ntldw tldw@localhost\n");
}

static void worktree__of_a_workspace(void **state)
{
	struct rt_host h = a_host();
	char out[4096], path[80];
	struct plan p;

	(void)state;
	(void)snprintf(path, sizeof(path), "%s/files", scratch);
	host("mkdir files; echo plain >files/f; chmod 755 files");
	plan_init(&p, NULL, "cat f; echo changed >f");
	p.plan.workspace_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_int_equal(run(&h, &p.plan, out), 0);
	assert_string_equal(out, "plain\n");
	host("test \"$(cat files/f)\" = plain");
	(void)close(p.plan.workspace_fd);
}

static void worktree__has_the_runs_files_on_top(void **state)
{
	static const struct rt_file files[] = { { "f", "ours\n", 5, 0644 },
						{ "new/f", "new\n", 4, 0644 } };
	struct rt_host h = a_host();
	char out[4096];
	struct plan p;

	(void)state;
	plan_init(&p, repo, "cat f new/f");
	p.plan.files = files;
	p.plan.n_files = SBX_COUNT(files);
	assert_int_equal(run(&h, &p.plan, out), 0);
	assert_string_equal(out, "ours\nnew\n");
}

static void environment__by_name(void **state)
{
	struct rt_host h = a_host();
	char out[4096];
	struct plan p;

	(void)state;
	assert_int_equal(setenv("SBX_LISTED", "listed", 1), 0);
	assert_int_equal(setenv("SBX_NOT_LISTED", "x", 1), 0);
	assert_int_equal(setenv("GITHUB_TOKEN", "x", 1), 0);
	h.worktree.env = "SBX_LISTED,GITHUB_TOKEN,PATH,SBX_NOT_THERE";
	plan_init(&p, NULL, "env | sort | cut -d= -f1 | tr '\\n' ' '; echo $SBX_LISTED");
	assert_int_equal(run(&h, &p.plan, out), 0);
	assert_string_equal(out, "PATH PWD SBX_LISTED listed\n");
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void refused(const struct rt_host *h, const struct rt_plan *p, enum sbx_code code,
		    const char *text)
{
	sbx_autoerror e = SBX_ERROR_INIT;

	assert_int_equal(prepare(h, p, &e), -(int)code);
	if (!strstr(e.message, text))
		fail_msg("'%s' is not in '%s'", text, e.message);
}

static void refused__another_network(void **state)
{
	struct rt_host h = a_host();
	struct plan p;

	(void)state;
	plan_init(&p, repo, "true");
	p.plan.network = RT_NET_ALLOWLIST;
	refused(&h, &p.plan, SBX_E_POLICY_UNSUPPORTED, "'worktree'");
}

static void refused__directories(void **state)
{
	struct rt_host h = a_host();
	char path[80];
	struct plan p;

	(void)state;
	plan_init(&p, repo, "true");
	h.worktree.allowed_dirs = NULL;
	refused(&h, &p.plan, SBX_E_POLICY_UNSUPPORTED, "not under any allowed directory");
	h.worktree.allowed_dirs = "relative,/nonexistent,/usr";
	refused(&h, &p.plan, SBX_E_POLICY_UNSUPPORTED, "not under any allowed directory");
	/* The beginning of a name is not a directory above it. */
	(void)snprintf(path, sizeof(path), "%.*s", (int)strlen(repo) - 1, repo);
	host("mkdir -p rep");
	h.worktree.allowed_dirs = path;
	refused(&h, &p.plan, SBX_E_POLICY_UNSUPPORTED, "not under any allowed directory");
	h = a_host();
	plan_init(&p, scratch, "true"); /* the state directory is in it */
	refused(&h, &p.plan, SBX_E_POLICY_UNSUPPORTED, "service's own");
	plan_init(&p, state_dir, "true");
	refused(&h, &p.plan, SBX_E_POLICY_UNSUPPORTED, "service's own");
}

static void refused__links(void **state)
{
	struct rt_host h = a_host();
	char path[80], allowed[80];
	struct plan p;

	(void)state;
	host("mkdir -p allowed; ln -s ../repo allowed/link");
	(void)snprintf(path, sizeof(path), "%s/allowed/link", scratch);
	(void)snprintf(allowed, sizeof(allowed), "%s/allowed", scratch);
	h.worktree.allowed_dirs = allowed;
	plan_init(&p, path, "true");
	refused(&h, &p.plan, SBX_E_POLICY_UNSUPPORTED, "not under any allowed directory");
}

static void refused__changes(void **state)
{
	struct rt_host h = a_host();
	char path[80], out[4096];
	struct plan p;

	(void)state;
	host("cp -a repo dirty; echo more >>dirty/f");
	(void)snprintf(path, sizeof(path), "%s/dirty", scratch);
	plan_init(&p, path, "cat f");
	refused(&h, &p.plan, SBX_E_POLICY_UNSUPPORTED, "not committed");
	h.worktree.dirty_is_head = true;
	assert_int_equal(run(&h, &p.plan, out), 0);
	assert_string_equal(out, "text\n");
}

static void refused__what_does_not_fit(void **state)
{
	struct rt_host h = a_host();
	char path[80];
	struct plan p;

	(void)state;
	host("cp -a repo big; cd big; head -c 8000000 /dev/zero >zeros; git add zeros; git commit "
	     "-qm big;"
	     "git rm -q --cached zeros; mkdir many; cd many; seq 500 | xargs touch; git add .;"
	     "git commit -qm many");
	(void)snprintf(path, sizeof(path), "%s/big", scratch);
	plan_init(&p, path, "true");
	p.plan.limits.workspace_inodes = 400;
	refused(&h, &p.plan, SBX_E_WORKSPACE_CAP, "400");
	host("cd big; git add zeros; git commit -qm zeros");
	plan_init(&p, path, "true");
	p.plan.limits.workspace_bytes = 4 << 20;
	refused(&h, &p.plan, SBX_E_WORKSPACE_CAP, "does not fit");
}

static int64_t never(void *ctx, bool counts)
{
	(void)counts;
	++*(int *)ctx;
	return RT_GIVE_UP;
}

/* Git waits for ever: its index is a pipe. */
static void given_up__when_nobody_wants_it(void **state)
{
	int64_t begun = sbx_boot_us();
	struct rt_host h = a_host();
	int asked = 0;
	char path[80];
	struct plan p;

	(void)state;
	host("cp -a repo stuck; rm stuck/.git/index; mkfifo stuck/.git/index");
	(void)snprintf(path, sizeof(path), "%s/stuck", scratch);
	plan_init(&p, path, "true");
	h.waiting = &(const struct rt_waiting){ .bell = -1, .turn = never, .ctx = &asked };
	refused(&h, &p.plan, SBX_E_RUNTIME_ERROR, "not wanted");
	assert_int_equal(asked, 1);
	assert_true(sbx_boot_us() - begun < TEST_SECONDS * SBX_SECOND_US);
}

/* ---- what it stands on ----------------------------------------------------------------------- */

static void workspace__read_only(void **state)
{
	struct job j = shell("cat f; touch f new 2>/dev/null || echo refused; rm f 2>/dev/null ||"
			     "echo refused; ln -s x y 2>/dev/null || echo refused");
	char path[80];
	struct live l;

	(void)state;
	host("mkdir ro; echo kept >ro/f; chmod 777 ro; chmod 666 ro/f");
	(void)snprintf(path, sizeof(path), "%s/ro", scratch);
	j.workspace_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	j.workspace_ro = true;
	job_run(&j, &l);
	assert_string_equal(l.out, "kept\nrefused\nrefused\nrefused\n");
	host("test \"$(cat ro/f)\" = kept; test \"$(ls ro)\" = f");
	(void)close(j.workspace_fd);
}

static void files__links_and_directories(void **state)
{
	static const struct rt_file files[] = { { "d/e", NULL, 0, S_IFDIR },
						{ "d/l", "../f", 4, S_IFLNK },
						{ "f", "text", 4, 0644 } };
	struct job j = shell("cat d/l; ls -A d d/e; stat -c %A d/l d/e");
	struct live l;

	(void)state;
	j.files = files;
	j.n_files = SBX_COUNT(files);
	job_run(&j, &l);
	assert_string_equal(l.out, "textd:\ne\nl\n\nd/e:\nlrwxrwxrwx\ndrwxr-xr-x\n");
}

/* Through a link that an earlier entry made, nothing is written. */
static void files__never_through_a_link(void **state)
{
	static const struct rt_file files[] = { { "d", "/tmp", 4, S_IFLNK },
						{ "d/f", "text", 4, 0644 } };
	struct job j = shell("true");
	sbx_autoerror e = SBX_ERROR_INIT;

	(void)state;
	j.files = files;
	j.n_files = SBX_COUNT(files);
	assert_int_equal(job_refused(&j, &e), -SBX_E_RUNTIME_ERROR);
}

static void cycles__leave_nothing(void **state)
{
	struct rt_host h = a_host();
	char out[4096];
	struct plan p;
	int fds;

	(void)state;
	plan_init(&p, repo, "rm -rf .git; sleep 300 & exit 0");
	assert_int_equal(run(&h, &p.plan, out), 0);
	fds = count_entries("/proc/self/fd");
	for (int i = 0; i < 10; i++)
		assert_int_equal(run(&h, &p.plan, out), 0);
	assert_int_equal(count_entries("/proc/self/fd"), fds);
	assert_int_equal(count_entries(state_dir), 2); /* . and .. */
	rt_worktree.sweep(&h);
	assert_int_equal(count_leaves(getpid()), 0);
	assert_int_equal(waitpid(-1, NULL, __WALL | WNOHANG), -1);
	host("cd repo; test \"$(git worktree list | wc -l)\" = 1; test -z \"$(git status "
	     "--porcelain)\"");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(preflight__finds_it_usable),
		cmocka_unit_test(preflight__deny_all_is_the_operators_word),
		cmocka_unit_test(worktree__of_a_repository),
		cmocka_unit_test(worktree__of_nothing),
		cmocka_unit_test(worktree__of_a_workspace),
		cmocka_unit_test(worktree__has_the_runs_files_on_top),
		cmocka_unit_test(environment__by_name),
		cmocka_unit_test(refused__another_network),
		cmocka_unit_test(refused__directories),
		cmocka_unit_test(refused__links),
		cmocka_unit_test(refused__changes),
		cmocka_unit_test(refused__what_does_not_fit),
		cmocka_unit_test(given_up__when_nobody_wants_it),
		cmocka_unit_test(workspace__read_only),
		cmocka_unit_test(files__links_and_directories),
		cmocka_unit_test(files__never_through_a_link),
		cmocka_unit_test(cycles__leave_nothing),
	};

	return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
