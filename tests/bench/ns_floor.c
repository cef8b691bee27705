/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one run costs in the namespace driver itself: medians of its steps for /bin/true, in
 * microseconds, next to a bare fork and exec of the same on the same machine.
 *   ns_floor [ROUNDS]
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/auto.h"
#include "runtimes/runtimes.h"

extern const struct rt_driver rt_namespace;

enum { ROUNDS = 300, ROUNDS_MAX = 100000 };

enum step { BARE, CREATE, PREPARE, START, EXIT, RUN, DESTROY, WHOLE, STEPS };

static const char *const step_names[STEPS] = {
	[BARE] = "bare fork, exec, wait",
	[CREATE] = "create (ahead of the run)",
	[PREPARE] = "  prepare",
	[START] = "  start",
	[EXIT] = "  until reaped",
	[RUN] = "prepare until reaped",
	[DESTROY] = "destroy (after the run)",
	[WHOLE] = "create until destroyed",
};

static double micros(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b)
{
	double x, y;

	memcpy(&x, a, sizeof(x));
	memcpy(&y, b, sizeof(y));
	return x < y ? -1 : x > y;
}

static int fail(const char *what, const struct sbx_error *e)
{
	(void)fprintf(stderr, "ns_floor: %s: %s\n", what, e->message);
	return -1;
}

static int bare(double *took)
{
	char name[] = "/bin/true";
	char *argv[] = { name, NULL };
	double from = micros();
	pid_t pid = fork();

	if (pid == 0) {
		(void)execv(name, argv);
		_exit(127);
	}
	if (pid < 0 || waitpid(pid, NULL, 0) < 0)
		return -1;
	*took = micros() - from;
	return 0;
}

static int until_reaped(struct rt_sandbox *sb, struct rt_fds *fds)
{
	struct pollfd p = { .fd = fds->exit, .events = POLLIN };
	struct rt_exit x;

	do {
		if (poll(&p, 1, -1) < 0)
			return -1;
	} while (!rt_namespace.reap(sb, &x));
	sbx_closep(&fds->out);
	sbx_closep(&fds->err);
	sbx_closep(&fds->exit);
	sbx_closep(&fds->workspace);
	return x.status == 0 ? 0 : -1;
}

static int one_run(const struct rt_host *host, double took[STEPS])
{
	char name[] = "/bin/true", path[] = "PATH=/usr/bin:/bin";
	char *argv[] = { name, NULL }, *envp[] = { path, NULL };
	struct rt_plan plan = {
		.run_id = "bench",
		.argv = argv,
		.envp = envp,
		.cwd = "/workspace",
		.limits = { .memory_bytes = 256 << 20,
			    .pids = 64,
			    .nofile = 256,
			    .workspace_bytes = 64 << 20,
			    .workspace_inodes = 16384,
			    .tmp_bytes = 64 << 20,
			    .cpu = 1 },
		.network = RT_NET_DENY_ALL,
		.workspace_fd = -1,
	};
	sbx_autoerror e = SBX_ERROR_INIT;
	struct rt_sandbox *sb;
	struct rt_fds fds;
	double t[6];

	t[0] = micros();
	if (rt_namespace.create(host, &sb, &e) < 0)
		return fail("create", &e);
	t[1] = micros();
	if (rt_namespace.prepare(sb, &plan, &e) < 0)
		return fail("prepare", &e);
	t[2] = micros();
	if (rt_namespace.start(sb, &fds, &e) < 0)
		return fail("start", &e);
	t[3] = micros();
	if (until_reaped(sb, &fds) < 0)
		return fail("run", &e);
	t[4] = micros();
	rt_namespace.destroy(sb);
	t[5] = micros();
	for (int s = CREATE; s <= EXIT; s++)
		took[s] = t[s - CREATE + 1] - t[s - CREATE];
	took[RUN] = t[4] - t[1];
	took[DESTROY] = t[5] - t[4];
	took[WHOLE] = t[5] - t[0];
	return bare(&took[BARE]);
}

static double cpu_seconds(void)
{
	double sum = 0;
	struct rusage ru;

	for (int i = 0; i < 2; i++) {
		(void)getrusage(i ? RUSAGE_CHILDREN : RUSAGE_SELF, &ru);
		sum += (double)(ru.ru_utime.tv_sec + ru.ru_stime.tv_sec) +
		       (double)(ru.ru_utime.tv_usec + ru.ru_stime.tv_usec) / 1e6;
	}
	return sum;
}

int main(int argc, char **argv)
{
	struct rt_host host = { .uid_base = 1u << 20, .uid_range = 1u << 16, .landlock = true };
	long rounds = argc > 1 ? strtol(argv[1], NULL, 10) : ROUNDS;
	double *times[STEPS], took[STEPS], cpu;

	if (rounds < 1 || rounds > ROUNDS_MAX)
		return 2;
	for (int s = 0; s < STEPS; s++) {
		times[s] = calloc((size_t)rounds, sizeof(*times[s]));
		if (!times[s])
			return 1;
	}
	if (one_run(&host, took) < 0) /* fills caches */
		return 1;
	cpu = cpu_seconds();
	for (long i = 0; i < rounds; i++) {
		if (one_run(&host, took) < 0)
			return 1;
		for (int s = 0; s < STEPS; s++)
			times[s][i] = took[s];
	}
	cpu = (cpu_seconds() - cpu) / (double)rounds * 1e6;
	(void)printf("%-28s %10s %10s %10s\n", "microseconds", "p10", "median", "p95");
	for (int s = 0; s < STEPS; s++) {
		qsort(times[s], (size_t)rounds, sizeof(*times[s]), compare);
		(void)printf("%-28s %10.0f %10.0f %10.0f\n", step_names[s], times[s][rounds / 10],
			     times[s][rounds / 2], times[s][rounds * 95 / 100]);
		free(times[s]);
	}
	(void)printf("%-28s %10s %10.0f\n", "CPU of all of it, mean", "", cpu);
	return 0;
}
