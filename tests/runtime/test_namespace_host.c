/* SPDX-License-Identifier: Apache-2.0 */
/* The namespace driver on this kernel: images, sessions, and what is left on the host. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/fs.h"
#include "runtimes/namespace/ns_i.h"
#include "runtimes/runtimes_i.h"
#include "tests/runtime/ns_test.h"

enum { FREE_UID = 54321, CYCLES = 100 };

static char scratch[] = "/tmp/sbx-ns-test-XXXXXX";

static int make_scratch(void **state)
{
	(void)state;
	return mkdtemp(scratch) && chmod(scratch, 0755) == 0 ? 0 : -1;
}

static int remove_scratch(void **state)
{
	(void)state;
	return sbx_remove_tree(AT_FDCWD, scratch);
}

/* ---- images ---------------------------------------------------------------------------------- */

static void put(const char *path, const void *data, size_t len, mode_t mode)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);

	assert_true(fd >= 0);
	assert_int_equal(sbx_write_all(fd, data, len), 0);
	assert_int_equal(fchmod(fd, mode), 0);
	(void)close(fd);
}

/* An image of nothing but busybox, without any of the mount points; NULL on a host without it. */
static const char *make_image(void)
{
	static char image[64];
	sbx_autofree char *busybox = NULL;
	char path[128];
	size_t len;

	if (image[0])
		return image;
	if (sbx_read_file(AT_FDCWD, "/bin/busybox", 16 << 20, &busybox, &len) < 0)
		return NULL;
	(void)snprintf(image, sizeof(image), "%s/image", scratch);
	(void)snprintf(path, sizeof(path), "%s/bin", image);
	assert_int_equal(sbx_mkdirs(path, 0755), 0);
	(void)snprintf(path, sizeof(path), "%s/bin/busybox", image);
	put(path, busybox, len, 0755);
	(void)snprintf(path, sizeof(path), "%s/bin/sh", image);
	assert_int_equal(symlink("busybox", path), 0);
	(void)snprintf(path, sizeof(path), "%s/marker", image);
	put(path, "mark\n", 5, 0644);
	(void)snprintf(path, sizeof(path), "%s/bin/lock", image);
	put(path, "x", 1, 04755);
	/* Names that are the sandbox's, as an image would abuse them. */
	(void)snprintf(path, sizeof(path), "%s/proc", image);
	assert_int_equal(symlink("/etc", path), 0);
	(void)snprintf(path, sizeof(path), "%s/dev", image);
	put(path, "not a directory", 15, 0644);
	return image;
}

static void image__is_the_root_read_only(void **state)
{
	const char *image = make_image();
	struct job j = shell("cat /marker; busybox ls /; busybox id -u; [ -d /proc/self ] && "
			     "echo proc; [ -c /dev/null ] && echo dev; "
			     "echo no > /marker; busybox touch /bin/x; pwd; "
			     "busybox cat /etc/hosts | busybox head -n 1; "
			     "busybox awk '$5 == \"/\"' /proc/self/mountinfo | busybox wc -l");
	struct live l;

	(void)state;
	if (!image)
		skip();
	j.image = image;
	job_run(&j, &l);
	assert_string_equal(l.out, "mark\nbin\ndev\netc\nmarker\nproc\nrun\nsys\ntmp\nworkspace\n"
				   "1000\nproc\ndev\n/workspace\n127.0.0.1 localhost sandbox\n1\n");
	assert_non_null(strstr(l.err, "Read-only file system"));
}

static void image__with_its_own_etc_gets_our_hosts(void **state)
{
	struct job j = shell("busybox cat /etc/mine /etc/hosts /etc/resolv.conf; "
			     "busybox readlink /etc/hostname");
	const char *image = make_image();
	char path[128];
	struct live l;

	(void)state;
	if (!image)
		skip();
	(void)snprintf(path, sizeof(path), "%s/etc", image);
	assert_int_equal(mkdir(path, 0755), 0);
	(void)snprintf(path, sizeof(path), "%s/etc/mine", image);
	put(path, "mine\n", 5, 0644);
	(void)snprintf(path, sizeof(path), "%s/etc/hosts", image);
	put(path, "6.6.6.6 bank\n", 13, 0644);
	(void)snprintf(path, sizeof(path), "%s/etc/resolv.conf", image);
	put(path, "nameserver 6.6.6.6\n", 19, 0644);
	(void)snprintf(path, sizeof(path), "%s/etc/hostname", image);
	assert_int_equal(symlink("/workspace/x", path), 0); /* not followed, left as it is */
	j.image = image;
	job_run(&j, &l);
	assert_string_equal(l.out, "mine\n127.0.0.1 localhost sandbox\n::1 localhost\n"
				   "nameserver 127.0.0.1\n/workspace/x\n");
	(void)snprintf(path, sizeof(path), "%s/etc", image);
	assert_int_equal(sbx_remove_tree(AT_FDCWD, path), 0);
}

static void image__that_is_missing_has_its_own_error(void **state)
{
	struct job j = { .argv = { "true" }, .image = "/nonexistent/image" };

	(void)state;
	assert_int_equal(job_refused(&j, NULL), -SBX_E_IMAGE_NOT_FOUND);
}

/* ---- sessions -------------------------------------------------------------------------------- */

static void session__files_stay_and_belong_to_their_owner(void **state)
{
	struct job first = shell("id -u; echo made > f; mkdir -p d; stat -c %u . f"),
		   second = shell("cat f given d/given; echo more >> f; ls -ln | grep -c 1000");
	static const struct rt_file files[] = { { "given", "g\n", 2, 0644 },
						{ "d/given", "h\n", 2, 0644 } };
	char path[64];
	struct stat st;
	struct live l;
	int fd;

	(void)state;
	(void)snprintf(path, sizeof(path), "%s/session", scratch);
	assert_int_equal(mkdir(path, 0700), 0);
	if (geteuid() == 0)
		assert_int_equal(chown(path, FREE_UID, FREE_UID), 0);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_int_equal(fstat(fd, &st), 0);
	first.workspace_fd = second.workspace_fd = fd;
	job_run(&first, &l);
	assert_string_equal(l.out, "1000\n1000\n1000\n");
	second.files = files;
	second.n_files = SBX_COUNT(files);
	job_run(&second, &l);
	assert_string_equal(l.out, "made\ng\nh\n3\n");
	assert_int_equal(fstatat(fd, "d/given", &st, 0), 0);
	assert_int_equal(st.st_uid, geteuid() == 0 ? FREE_UID : geteuid());
	(void)close(fd);
}

static void session__traps_for_given_files_do_not_work(void **state)
{
	struct job set = shell("ln -s /etc link; ln -s /tmp/evil f; mkfifo p; mkdir dir"),
		   get = shell("cat f p; [ -L f ] || echo plain");
	struct rt_file through = { "link/passwd", "x", 1, 0644 },
		       onto_dir = { "dir", "x", 1, 0644 };
	static const struct rt_file replaced[] = { { "f", "1\n", 2, 0644 },
						   { "p", "2\n", 2, 0644 } };
	char path[64];
	struct live l;
	int fd;

	(void)state;
	(void)snprintf(path, sizeof(path), "%s/traps", scratch);
	assert_int_equal(mkdir(path, 0777), 0);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	set.workspace_fd = get.workspace_fd = fd;
	job_run(&set, &l);
	assert_int_equal(job_status(&l), 0);
	get.n_files = 1;
	get.files = &through;
	assert_int_equal(job_refused(&get, NULL), -SBX_E_RUNTIME_ERROR);
	get.files = &onto_dir;
	assert_int_equal(job_refused(&get, NULL), -SBX_E_RUNTIME_ERROR);
	get.files = replaced;
	get.n_files = SBX_COUNT(replaced);
	job_run(&get, &l);
	assert_string_equal(l.out, "1\n2\nplain\n");
	(void)close(fd);
}

#ifdef SBX_CRASH_POINTS
#define NEEDS_POINTS() (void)0
#else
#define NEEDS_POINTS() skip()
#endif

/* Whoever makes the map has a process for it, which knows all of its descriptors. */
static void session__a_map_does_not_outlive_its_maker(void **state)
{
	sbx_autoclose int fd = -1;
	int pair[2], status;
	char path[64], c;
	pid_t pid;

	(void)state;
	NEEDS_POINTS();
	if (geteuid() != 0)
		skip();
	(void)snprintf(path, sizeof(path), "%s/mapped", scratch);
	assert_int_equal(mkdir(path, 0700), 0);
	assert_int_equal(chown(path, FREE_UID, FREE_UID), 0);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(pipe2(pair, O_CLOEXEC), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		int tree = -1;

		if (setenv("SBX_CRASH_AT", "mapping", 1) == 0)
			(void)rt_workspace_tree(fd, FREE_UID + 1, FREE_UID + 1, false, &tree, NULL);
		_exit(1);
	}
	close(pair[1]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status));
	/* As the door reads the runner's socket: the end comes when nobody has it any more. */
	assert_int_equal(read(pair[0], &c, 1), 0);
	close(pair[0]);
}

/* ---- what is left ---------------------------------------------------------------------------- */

/* The driver's mounts have no source; others' may come and go meanwhile. */
static int count_mounts(void)
{
	sbx_autofree char *text = NULL;
	int n = 0;

	assert_int_equal(sbx_read_file(AT_FDCWD, "/proc/self/mountinfo", 16 << 20, &text, NULL), 0);
	for (const char *p = text; (p = strstr(p, " none ")); p++)
		n++;
	return n;
}

static void cycles__leave_nothing(void **state)
{
	struct job j = shell("echo x > f; sleep 300 & exit 0");
	struct live l;
	int fds, mounts, leaves;

	(void)state;
	job_run(&j, &l); /* what stays for the life of the process is made by the first */
	fds = count_entries("/proc/self/fd");
	mounts = count_mounts();
	leaves = count_leaves(getpid());
	for (int i = 0; i < CYCLES; i++) {
		job_run(&j, &l);
		assert_int_equal(job_status(&l), 0);
	}
	assert_int_equal(count_entries("/proc/self/fd"), fds);
	assert_int_equal(count_mounts(), mounts);
	assert_int_equal(count_leaves(getpid()), leaves);
	rt_namespace.sweep(&test_host); /* one is kept for the next sandbox */
	assert_int_equal(count_leaves(getpid()), 0);
	assert_int_equal(waitpid(-1, NULL, __WALL | WNOHANG), -1);
	assert_int_equal(errno, ECHILD);
}

static void exit__of_the_process_leaves_nothing(void **state)
{
	struct job j = { .argv = { "true" } };
	int status;
	pid_t pid = fork();

	(void)state;
	if (pid == 0) {
		struct live l;

		exit(job_try(&j, &l) ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(count_leaves(pid), 0);
}

/* A process that runs a sandbox and then waits to be killed; says on `tell` when it is up. */
static _Noreturn void be_a_runner(int tell)
{
	struct job j = shell("setsid sleep 300 & echo up; sleep 300");
	struct live l;

	job_start(&j, &l);
	job_wait_output(&l, "up\n");
	if (write(tell, "u", 1) != 1)
		_exit(1);
	for (;;)
		(void)pause();
}

static pid_t first_child(pid_t pid)
{
	sbx_autofree char *text = NULL;
	char path[64];

	(void)snprintf(path, sizeof(path), "/proc/%d/task/%d/children", pid, pid);
	if (sbx_read_file(AT_FDCWD, path, 4096, &text, NULL) < 0)
		return 0;
	return (pid_t)strtol(text, NULL, 10);
}

static void runner__takes_its_sandbox_with_it(void **state)
{
	struct pollfd gone[2];
	pid_t runner, init, command;
	int pipefd[2];
	char c;

	(void)state;
	assert_int_equal(pipe2(pipefd, O_CLOEXEC), 0);
	runner = fork();
	if (runner == 0)
		be_a_runner(pipefd[1]);
	(void)close(pipefd[1]);
	assert_int_equal(read(pipefd[0], &c, 1), 1);
	(void)close(pipefd[0]);
	init = first_child(runner);
	command = first_child(init);
	assert_true(init > 0 && command > 0);
	gone[0] = (struct pollfd){ .fd = (int)syscall(SYS_pidfd_open, init, 0), .events = POLLIN };
	gone[1] =
		(struct pollfd){ .fd = (int)syscall(SYS_pidfd_open, command, 0), .events = POLLIN };
	assert_true(gone[0].fd >= 0 && gone[1].fd >= 0);
	(void)kill(runner, SIGKILL);
	assert_int_equal(waitpid(runner, NULL, 0), runner);
	for (size_t i = 0; i < SBX_COUNT(gone); i++) {
		assert_int_equal(poll(&gone[i], 1, TEST_SECONDS * 1000), 1);
		(void)close(gone[i].fd);
	}
	/* The leaf is all that it left, until somebody sweeps. */
	rt_namespace.sweep(&test_host);
	assert_int_equal(count_leaves(runner), 0);
}

static void sweep__leaves_the_living_alone(void **state)
{
	struct job j = shell("sleep 300");
	struct live l;
	int leaves;

	(void)state;
	job_start(&j, &l);
	leaves = count_leaves(getpid());
	rt_namespace.sweep(&test_host);
	assert_int_equal(count_leaves(getpid()), leaves);
	assert_false(rt_namespace.reap(l.sb, &l.x));
	job_free(&l);
}

static void init__killed_from_outside_is_lost(void **state)
{
	struct job j = shell("echo up; sleep 300");
	struct live l;

	(void)state;
	job_start(&j, &l);
	job_wait_output(&l, "up\n");
	assert_int_equal(kill(first_child(getpid()), SIGKILL), 0);
	job_end(&l);
	assert_true(l.x.lost);
	assert_false(l.x.killed_by_us);
	job_free(&l);
}

/* ---- as an ordinary user --------------------------------------------------------------------- */

struct user_case {
	const char *script, *out;
	int status;
};

/* Returns 0, or the number of the case that failed. */
static int try_cases(const struct user_case *c, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct job j = shell(c[i].script);
		struct live l;

		j.limits.pids = 10;
		if (!job_try(&j, &l) || job_status(&l) != c[i].status ||
		    strcmp(l.out, c[i].out) != 0) {
			(void)fprintf(stderr, "case %zu: status %#x, out '%s', err '%s'\n", i,
				      (unsigned)l.x.status, l.out, l.err);
			return (int)i + 1;
		}
	}
	return 0;
}

/* The image's root, and nothing of the host's on top of it or below. */
static bool try_image(void)
{
	struct job j = shell("cat /marker; busybox awk '$5 == \"/\"' /proc/self/mountinfo | "
			     "busybox wc -l; busybox ls /usr 2>/dev/null; echo > /bin/x");
	struct live l;

	j.image = make_image();
	return !j.image || (job_try(&j, &l) && strcmp(l.out, "mark\n1\n") == 0);
}

static int as_user(void)
{
	static const struct user_case cases[] = {
		{ "id -u; exit 7", "1000\n", 7 },
		{ "echo a > /dev/stdout; cat /etc/hostname", "a\nsandbox\n", 0 },
		{ "echo x > f && cat f; : > /usr/x", "x\n", 2 },
		{ "sleep 300 & exit 3", "", 3 },
		/* ten processes for the shell and nine more */
		{ "i=0; while [ $i -lt 20 ]; do sleep 5 & i=$((i+1)); done 2>/dev/null", "", 2 },
	};
	struct job strict = { .argv = { "true" }, .limits = { .strict = true } };
	struct job session = shell("cat f; echo new > g; stat -c %u g");
	struct live l;
	int fd, r = try_cases(cases, SBX_COUNT(cases));

	if (r)
		return r;
	if (count_leaves(getpid()) == 0 && job_try(&strict, &l))
		return 50; /* without groups it must not start */
	if (!try_image())
		return 54;
	if (mkdir("mine", 0700) < 0)
		return 51;
	fd = open("mine", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	put("mine/f", "old\n", 4, 0600);
	session.workspace_fd = fd;
	if (!job_try(&session, &l) || strcmp(l.out, "old\n1000\n") != 0)
		return 52;
	return access("mine/g", F_OK) == 0 ? 0 : 53;
}

static void ordinary_user__can_run_too(void **state)
{
	char home[64];
	int status;
	pid_t pid;

	(void)state;
	(void)make_image();
	(void)snprintf(home, sizeof(home), "%s/home", scratch);
	assert_int_equal(mkdir(home, 0755), 0);
	if (geteuid() == 0)
		assert_int_equal(chown(home, FREE_UID, FREE_UID), 0);
	pid = fork();
	if (pid == 0) {
		if (chdir(home) < 0 ||
		    (geteuid() == 0 && (setgroups(0, NULL) < 0 || setgid(FREE_UID) < 0 ||
					setresuid(FREE_UID, FREE_UID, FREE_UID) < 0)))
			_exit(100);
		/* A program that an ordinary user starts is so by itself. */
		(void)prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
		_exit(as_user());
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static void preflight__tells_what_works(void **state)
{
	struct rt_preflight p;
	int fds;

	(void)state;
	rt_namespace.sweep(&test_host);
	fds = count_entries("/proc/self/fd");
	rt_namespace.preflight(&test_host, &p);
	assert_int_equal(p.n_reasons, 0);
	assert_true(p.deny_all_ready && p.trusted && p.standard);
	assert_false(p.allowlist_ready);
	assert_non_null(strstr(p.host_json, "\"seccomp\":true"));
	assert_int_equal(p.untrusted, strstr(p.host_json, "\"limits\":\"cgroup\"") ? true : false);
	free(p.host_json);
	assert_int_equal(count_entries("/proc/self/fd"), fds);
	assert_int_equal(count_leaves(getpid()), 0);
}

/* Where it works for whoever runs this, it says so when the operator wants networks at all. */
static void preflight__tries_a_network(void **state)
{
	struct rt_host host = test_host;
	struct rt_preflight p;
	int fds = count_entries("/proc/self/fd");

	(void)state;
	host.egress = true;
	rt_namespace.preflight(&host, &p);
	assert_true(p.deny_all_ready && p.allowlist_ready);
	free(p.host_json);
	assert_true(count_entries("/proc/self/fd") <= fds);
	assert_int_equal(count_leaves(getpid()), 0);
	assert_int_equal(waitpid(-1, NULL, __WALL | WNOHANG), -1);
}

/* What others mount meanwhile is not to be counted; an ordinary user has to put up with it. */
static int set_up(void **state)
{
	if (geteuid() == 0 &&
	    (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0))
		return -1;
	return make_scratch(state);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ordinary_user__can_run_too),
		cmocka_unit_test(image__is_the_root_read_only),
		cmocka_unit_test(image__with_its_own_etc_gets_our_hosts),
		cmocka_unit_test(image__that_is_missing_has_its_own_error),
		cmocka_unit_test(session__files_stay_and_belong_to_their_owner),
		cmocka_unit_test(session__traps_for_given_files_do_not_work),
		cmocka_unit_test(session__a_map_does_not_outlive_its_maker),
		cmocka_unit_test(cycles__leave_nothing),
		cmocka_unit_test(exit__of_the_process_leaves_nothing),
		cmocka_unit_test(runner__takes_its_sandbox_with_it),
		cmocka_unit_test(sweep__leaves_the_living_alone),
		cmocka_unit_test(init__killed_from_outside_is_lost),
		cmocka_unit_test(preflight__tells_what_works),
		cmocka_unit_test(preflight__tries_a_network),
	};

	return cmocka_run_group_tests(tests, set_up, remove_scratch);
}
