/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/runtime/ns_test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/fs.h"
#include "runtimes/cgroup.h"

struct rt_host test_host = { .uid_base = 1u << 20, .uid_range = 1u << 16, .landlock = true };

struct job shell(const char *script)
{
	struct job j = { .argv = { "sh", "-c", script } };

	return j;
}

struct job probe(const char *word, const char *arg)
{
	struct job j = { .argv = { "./probe", word, arg }, .probe = true };

	return j;
}

static int64_t or_default(int64_t value, int64_t other)
{
	return value ? value : other;
}

static struct rt_limits complete(const struct rt_limits *l)
{
	struct rt_limits r = *l;

	r.memory_bytes = or_default(r.memory_bytes, 256 << 20);
	r.pids = or_default(r.pids, 64);
	r.nofile = or_default(r.nofile, 256);
	r.workspace_bytes = or_default(r.workspace_bytes, 32 << 20);
	r.workspace_inodes = or_default(r.workspace_inodes, 4096);
	r.tmp_bytes = or_default(r.tmp_bytes, 16 << 20);
	if (r.cpu <= 0)
		r.cpu = 4;
	return r;
}

static int prepare(struct rt_sandbox *sb, const struct job *j, struct sbx_error *e)
{
	static const char *const plain_env[] = { "PATH=/usr/local/bin:/usr/bin:/bin", NULL };
	struct rt_file files[8] = { 0 };
	struct rt_plan p = {
		.run_id = "test",
		.cwd = j->cwd ? j->cwd : "/workspace",
		.image_path = j->image,
		.files = files,
		.n_files = j->n_files,
		.limits = complete(&j->limits),
		.network = RT_NET_DENY_ALL,
		.stdin_open = j->input,
		.workspace_fd = j->workspace_fd ? j->workspace_fd : -1,
		.workspace_ro = j->workspace_ro,
	};
	const char *const *envp = j->envp ? j->envp : plain_env;
	sbx_autofree char *program = NULL;
	char *argv[SBX_COUNT(j->argv) + 1] = { 0 };
	size_t len = 0;
	int r;

	memcpy(argv, j->argv, sizeof(j->argv));
	p.argv = argv;
	memcpy(&p.envp, &envp, sizeof(envp));
	if (j->n_files)
		memcpy(files, j->files, j->n_files * sizeof(*files));
	if (j->probe) {
		r = sbx_read_file(AT_FDCWD, NS_PROBE, 16 << 20, &program, &len);
		if (r < 0)
			return sbx_fail_errno(e, SBX_E_INTERNAL, -r, "cannot read %s", NS_PROBE);
		files[p.n_files++] = (struct rt_file){ "probe", program, len, 0755 };
	}
	return rt_namespace.prepare(sb, &p, e);
}

static int begin(const struct job *j, struct live *l, struct sbx_error *e)
{
	int r;

	memset(l, 0, sizeof(*l));
	l->fds = (struct rt_fds){ -1, -1, -1, -1, -1 };
	r = rt_namespace.create(&test_host, &l->sb, e);
	if (r == 0)
		r = prepare(l->sb, j, e);
	if (r == 0)
		r = rt_namespace.start(l->sb, &l->fds, e);
	if (r == 0 && j->input) {
		r = sbx_write_all(l->fds.in, j->input, strlen(j->input));
		sbx_closep(&l->fds.in);
	}
	return r;
}

/* One read; false at the end of the stream. */
static bool take(int fd, char *buf, size_t *n, size_t size)
{
	ssize_t got = read(fd, buf + *n, size - 1 - *n);

	if (got > 0)
		*n += (size_t)got;
	buf[*n] = '\0';
	return got > 0 || (got < 0 && errno == EAGAIN && *n < size - 1);
}

static bool step(struct live *l, int64_t deadline, bool *over)
{
	struct pollfd p[] = { { .fd = l->fds.out, .events = POLLIN },
			      { .fd = l->fds.err, .events = POLLIN },
			      { .fd = l->fds.exit, .events = POLLIN } };
	int64_t left = (deadline - sbx_boot_us()) / 1000;

	if (left <= 0 || poll(p, SBX_COUNT(p), (int)left) <= 0)
		return false;
	if (p[0].revents && !take(l->fds.out, l->out, &l->n_out, sizeof(l->out)))
		sbx_closep(&l->fds.out);
	if (p[1].revents && !take(l->fds.err, l->err, &l->n_err, sizeof(l->err)))
		sbx_closep(&l->fds.err);
	*over = p[2].revents && rt_namespace.reap(l->sb, &l->x);
	return true;
}

static bool finish(struct live *l)
{
	int64_t deadline = sbx_boot_us() + TEST_SECONDS * SBX_SECOND_US;
	bool over = false;

	while (!over)
		if (!step(l, deadline, &over))
			return false;
	/* What was written before the end is in the pipes. */
	for (ssize_t n = 1; n > 0 && l->fds.out >= 0; l->n_out += n > 0 ? (size_t)n : 0)
		n = read(l->fds.out, l->out + l->n_out, sizeof(l->out) - 1 - l->n_out);
	for (ssize_t n = 1; n > 0 && l->fds.err >= 0; l->n_err += n > 0 ? (size_t)n : 0)
		n = read(l->fds.err, l->err + l->n_err, sizeof(l->err) - 1 - l->n_err);
	l->out[l->n_out] = l->err[l->n_err] = '\0';
	return true;
}

void job_start(const struct job *j, struct live *l)
{
	sbx_autoerror e = SBX_ERROR_INIT;

	if (begin(j, l, &e) < 0)
		fail_msg("the sandbox did not start: %s", e.message);
}

void job_wait_output(struct live *l, const char *text)
{
	int64_t deadline = sbx_boot_us() + TEST_SECONDS * SBX_SECOND_US;
	bool over = false;

	while (!strstr(l->out, text))
		if (!step(l, deadline, &over) || over)
			fail_msg("'%s' was never printed; out '%s', err '%s'", text, l->out,
				 l->err);
}

void job_end(struct live *l)
{
	if (!finish(l))
		fail_msg("the run did not end; out '%s', err '%s'", l->out, l->err);
}

void job_free(struct live *l)
{
	rt_namespace.destroy(l->sb);
	l->sb = NULL;
	sbx_closep(&l->fds.out);
	sbx_closep(&l->fds.err);
	sbx_closep(&l->fds.in);
	sbx_closep(&l->fds.exit);
	sbx_closep(&l->fds.workspace);
}

void job_run(const struct job *j, struct live *l)
{
	job_start(j, l);
	job_end(l);
	job_free(l);
}

bool job_try(const struct job *j, struct live *l)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	bool good = begin(j, l, &e) == 0 && finish(l);

	if (!good)
		(void)fprintf(stderr, "job: %s\n", e.message);
	job_free(l);
	return good;
}

int job_refused(const struct job *j, struct sbx_error *e)
{
	struct rt_sandbox *sb;
	int r;

	assert_int_equal(rt_namespace.create(&test_host, &sb, e), 0);
	r = prepare(sb, j, e);
	rt_namespace.destroy(sb);
	return r;
}

int job_status(const struct live *l)
{
	return WIFEXITED(l->x.status) ? WEXITSTATUS(l->x.status) : -1;
}

int count_entries(const char *path)
{
	DIR *dir = opendir(path);
	int n = 0;

	while (dir && readdir(dir))
		n++;
	if (dir)
		(void)closedir(dir);
	return n;
}

int count_leaves(pid_t pid)
{
	sbx_autofree char *own = NULL, *mounts = NULL;
	struct cg_layout l;
	int n = 0;

	if (sbx_read_file(AT_FDCWD, "/proc/self/cgroup", 1 << 20, &own, NULL) < 0 ||
	    sbx_read_file(AT_FDCWD, "/proc/self/mountinfo", 16 << 20, &mounts, NULL) < 0)
		return -1;
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
