/* SPDX-License-Identifier: Apache-2.0 */
/* runtimes/cgroup: where the groups are, and the life of a leaf on this kernel. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/auto.h"
#include "base/fs.h"
#include "runtimes/cgroup.h"

/* ---- texts ----------------------------------------------------------------------------------- */

static const char v1_cgroup[] = "9:name=systemd:/\n"
				"8:pids:/\n"
				"4:memory:/jobs/a7:f6\n"
				"3:freezer:/cold\n"
				"2:cpu,cpuacct:/user.slice\n";
static const char v1_mounts[] =
	"27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n"
	"35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
	"36 31 0:33 / /sys/fs/cgroup/cpu,cpuacct rw master:1 - cgroup cgroup rw,cpu,cpuacct\n"
	"38 31 0:35 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer\n"
	"39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n";
static const char unified_line[] = "0::/init.scope\n";
static const char unified_mount[] =
	"41 31 0:38 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

static void layout__of_version_1(void **state)
{
	struct cg_layout l;

	(void)state;
	cg_layout_parse(v1_cgroup, v1_mounts, NULL, &l);
	assert_string_equal(l.v1[CG_MEMORY], "/sys/fs/cgroup/memory/jobs/a7:f6");
	assert_string_equal(l.v1[CG_PIDS], "/sys/fs/cgroup/pids");
	assert_string_equal(l.v1[CG_CPU], "/sys/fs/cgroup/cpu,cpuacct/user.slice");
	assert_string_equal(l.v1[CG_CPUACCT], l.v1[CG_CPU]);
	assert_string_equal(l.freezer, "/sys/fs/cgroup/freezer/cold");
	assert_string_equal(l.v2, "");
	assert_string_equal(cg_layout_name(&l), "v1");
	cg_layout_parse(v1_cgroup, v1_mounts, "/elsewhere/", &l);
	assert_string_equal(l.v1[CG_MEMORY], "/sys/fs/cgroup/memory/elsewhere");
}

static void layout__of_both(void **state)
{
	char cgroup[512], mounts[1024];
	struct cg_layout l;

	(void)state;
	(void)snprintf(cgroup, sizeof(cgroup), "%s%s", v1_cgroup, unified_line);
	(void)snprintf(mounts, sizeof(mounts), "%s%s", unified_mount, v1_mounts);
	cg_layout_parse(cgroup, mounts, NULL, &l);
	assert_string_equal(l.v1[CG_PIDS], "/sys/fs/cgroup/pids");
	assert_string_equal(l.v2, "/sys/fs/cgroup/unified/init.scope");
	assert_string_equal(cg_layout_name(&l), "hybrid");
}

static void layout__of_version_2(void **state)
{
	static const struct {
		const char *cgroup, *mounts, *dir;
	} rows[] = {
		{ "0::/system.slice/a.service\n", "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 c rw\n",
		  "/sys/fs/cgroup/system.slice/a.service" },
		/* a container that sees only its own part */
		{ "0::/docker/77\n", "30 1 0:26 /docker/77 /sys/fs/cgroup ro - cgroup2 c rw\n",
		  "/sys/fs/cgroup" },
		{ "0::/docker/77/x\n", "30 1 0:26 /docker/77 /cg rw shared:4 - cgroup2 c rw\n",
		  "/cg/x" },
		/* names that only begin alike */
		{ "0::/docker/777\n", "30 1 0:26 /docker/77 /cg rw - cgroup2 c rw\n", "" },
		/* outside of the own cgroup namespace */
		{ "0::/../other\n", "30 1 0:26 / /cg rw - cgroup2 c rw\n", "" },
		{ "0::/a\n", "30 1 0:26 / /with\\040space rw - cgroup2 c rw\n", "/with space/a" },
		/* the second mount shows it */
		{ "0::/a\n",
		  "30 1 0:26 /b /one rw - cgroup2 c rw\n31 1 0:26 / /two rw - cgroup2 c rw\n",
		  "/two/a" },
		{ "0::/a\n", "30 1 0:26 / /cg rw - cgroup", "" },
		{ "", "30 1 0:26 / /cg rw - cgroup2 c rw\n", "" },
		{ "0::/a\n", "", "" },
		{ "garbage\n:\n::\n0:\n", "\n - \nx y z\n", "" },
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		struct cg_layout l;

		cg_layout_parse(rows[i].cgroup, rows[i].mounts, NULL, &l);
		if (strcmp(l.v2, rows[i].dir) != 0)
			fail_msg("row %zu: '%s' instead of '%s'", i, l.v2, rows[i].dir);
		assert_string_equal(cg_layout_name(&l), rows[i].dir[0] ? "v2" : "none");
	}
}

/* ---- leaves ---------------------------------------------------------------------------------- */

static struct cg *open_or_skip(void)
{
	struct cg *cg;

	assert_int_equal(cg_open(NULL, &cg, NULL), 0);
	if (strcmp(cg_name(cg), "none") == 0) {
		cg_close(cg);
		skip();
	}
	return cg;
}

/* A process that works until it is killed. */
static pid_t start_worker(void)
{
	pid_t pid = fork();

	if (pid == 0)
		for (volatile unsigned n = 0;; n++)
			;
	assert_true(pid > 0);
	return pid;
}

static bool in_leaf(pid_t pid)
{
	sbx_autofree char *text = NULL;
	char path[40];

	(void)snprintf(path, sizeof(path), "/proc/%d/cgroup", pid);
	return sbx_read_file(AT_FDCWD, path, 1 << 16, &text, NULL) == 0 &&
	       strstr(text, "/sandboxfs/");
}

static void leaf__counts_and_is_removed_with_what_is_in_it(void **state)
{
	struct cg *cg = open_or_skip();
	struct cg_limits limits = { .memory_bytes = 32 << 20, .pids = 5, .cpu = 0.5 };
	struct cg_usage u = { 0 };
	struct cg_leaf *leaf;
	bool oom = true, pids = true;
	int status;
	pid_t pid;

	(void)state;
	assert_int_equal(cg_leaf_new(cg, &leaf, NULL), 0);
	pid = start_worker();
	assert_false(in_leaf(pid));
	assert_int_equal(cg_leaf_join(leaf, pid, false, NULL), 0);
	assert_true(in_leaf(pid));
	assert_int_equal(cg_leaf_limit(leaf, &limits, NULL), 0);
	while (cg_has(cg, CG_CPUACCT) && u.cpu_us < 20000)
		cg_leaf_usage(leaf, &u);
	cg_leaf_mark(leaf);
	cg_leaf_usage(leaf, &u);
	assert_true(u.cpu_us < 20000);
	cg_leaf_events(leaf, &oom, &pids);
	assert_false(oom || pids);
	cg_leaf_free(leaf);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	cg_close(cg);
}

/* Version 1 would refuse to raise the limit of memory above the one with swap. */
static void leaf__takes_other_limits_instead(void **state)
{
	static const struct cg_limits list[] = {
		{ .memory_bytes = 32 << 20, .pids = 5, .cpu = 0.5 },
		{ .memory_bytes = 256 << 20, .pids = 50, .cpu = 0.1 },
		{ .memory_bytes = 16 << 20, .pids = 2 },
	};
	struct cg *cg = open_or_skip();
	sbx_autoerror e = SBX_ERROR_INIT;
	struct cg_leaf *leaf;

	(void)state;
	assert_int_equal(cg_leaf_new(cg, &leaf, NULL), 0);
	for (size_t i = 0; i < SBX_COUNT(list); i++)
		if (cg_leaf_limit(leaf, &list[i], &e) < 0)
			fail_msg("limits %zu: %s", i, e.message);
	cg_leaf_free(leaf);
	cg_close(cg);
}

static void leaf__limits_that_the_kernel_refuses_are_errors(void **state)
{
	struct cg *cg = open_or_skip();
	struct cg_limits limits = { .pids = INT64_MAX };
	sbx_autoerror e = SBX_ERROR_INIT;
	struct cg_leaf *leaf;

	(void)state;
	if (!cg_has(cg, CG_PIDS)) {
		cg_close(cg);
		skip();
	}
	assert_int_equal(cg_leaf_new(cg, &leaf, NULL), 0);
	assert_int_equal(cg_leaf_limit(leaf, &limits, &e), -SBX_E_RUNTIME_ERROR);
	assert_non_null(strstr(e.message, "pids.max"));
	cg_leaf_free(leaf);
	cg_close(cg);
}

/* Directories that process pid made, over all hierarchies. */
static int leaves_of(pid_t pid)
{
	sbx_autofree char *own = NULL, *mounts = NULL;
	struct cg_layout l;
	int n = 0;

	assert_int_equal(sbx_read_file(AT_FDCWD, "/proc/self/cgroup", 1 << 20, &own, NULL), 0);
	assert_int_equal(sbx_read_file(AT_FDCWD, "/proc/self/mountinfo", 16 << 20, &mounts, NULL),
			 0);
	cg_layout_parse(own, mounts, NULL, &l);
	for (int c = 0; c <= CG__CONTROLLERS; c++) {
		const char *group = c < CG__CONTROLLERS ? l.v1[c] : l.v2;
		const char *moved = strstr(group, "/supervisor"); /* where version 2 put us */
		char path[CG_PATH_SIZE + 32];
		struct dirent *d;
		DIR *dir;

		(void)snprintf(path, sizeof(path), "%.*s/sandboxfs",
			       (int)(moved ? (size_t)(moved - group) : strlen(group)), group);
		dir = opendir(path);
		while (dir && (d = readdir(dir)))
			n += strtol(d->d_name, NULL, 10) == pid;
		if (dir)
			(void)closedir(dir);
	}
	return n;
}

static void sweep__removes_only_what_the_dead_left(void **state)
{
	struct cg *cg = open_or_skip();
	struct cg_leaf *mine, *theirs;
	int status, done[2], hold[2];
	pid_t pid, worker;
	char c;

	(void)state;
	assert_int_equal(pipe2(done, O_CLOEXEC) | pipe2(hold, O_CLOEXEC), 0);
	assert_int_equal(cg_leaf_new(cg, &mine, NULL), 0);
	worker = start_worker();
	assert_int_equal(cg_leaf_join(mine, worker, false, NULL), 0);
	pid = fork();
	if (pid == 0) {
		struct cg *own;
		bool good = cg_open(NULL, &own, NULL) == 0 && cg_leaf_new(own, &theirs, NULL) == 0;

		_exit(good && write(done[1], "x", 1) == 1 && read(hold[0], &c, 1) == 1 ? 0 : 1);
	}
	assert_int_equal(read(done[0], &c, 1), 1);
	cg_sweep(cg); /* both makers live */
	assert_true(in_leaf(worker));
	assert_int_equal(write(hold[1], "x", 1), 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_true(leaves_of(pid) > 0);
	cg_sweep(cg);
	assert_int_equal(leaves_of(pid), 0);
	assert_true(in_leaf(worker));
	assert_int_equal(waitpid(worker, NULL, WNOHANG), 0);
	cg_leaf_free(mine);
	assert_int_equal(waitpid(worker, &status, 0), worker);
	for (int i = 0; i < 2; i++) {
		(void)close(done[i]);
		(void)close(hold[i]);
	}
	cg_close(cg);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(layout__of_version_1),
		cmocka_unit_test(layout__of_both),
		cmocka_unit_test(layout__of_version_2),
		cmocka_unit_test(leaf__counts_and_is_removed_with_what_is_in_it),
		cmocka_unit_test(leaf__takes_other_limits_instead),
		cmocka_unit_test(leaf__limits_that_the_kernel_refuses_are_errors),
		cmocka_unit_test(sweep__removes_only_what_the_dead_left),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
