/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client of the bench: does the same thing many times and prints how long each took, in
 * microseconds from the common start (burst) or from its own start (turns), one a line.
 *   shots burst MNT N            N threads at once: submit /bin/true, wait for its end
 *   shots turns MNT N            one after the other
 *   shots spawn-burst N ARGV...  N processes started at once, each waited for
 *   shots spawn-turns N ARGV...  one after the other
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static pthread_barrier_t gate;
static const char *mount_point;
static double start_us;

static double now_us(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static _Noreturn void die(const char *what)
{
	perror(what);
	exit(1);
}

static void shot(void)
{
	static const char spec[] = "{\"command\":[\"/bin/true\"]}\n";
	char path[512], id[64], got[64];
	ssize_t n;
	int fd;

	(void)snprintf(path, sizeof(path), "%s/runs/new", mount_point);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0 || write(fd, spec, sizeof(spec) - 1) < 0)
		die(path);
	n = read(fd, id, sizeof(id) - 1);
	if (n < 36)
		die("read of the id");
	close(fd);
	(void)snprintf(path, sizeof(path), "%s/runs/%.36s/.wait", mount_point, id);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || (n = read(fd, got, sizeof(got))) != 2 || memcmp(got, "0\n", 2) != 0)
		die(path);
	close(fd);
}

static void *burst_thread(void *result)
{
	(void)pthread_barrier_wait(&gate);
	shot();
	*(double *)result = now_us() - start_us;
	return NULL;
}

static void burst(int n, double *out)
{
	pthread_t *t = calloc((size_t)n, sizeof(*t));
	pthread_attr_t attr;

	(void)pthread_barrier_init(&gate, NULL, (unsigned)n + 1);
	(void)pthread_attr_init(&attr);
	(void)pthread_attr_setstacksize(&attr, 64 << 10);
	for (int i = 0; i < n; i++)
		if (!t || pthread_create(&t[i], &attr, burst_thread, &out[i]) != 0)
			die("pthread_create");
	start_us = now_us();
	(void)pthread_barrier_wait(&gate);
	for (int i = 0; i < n; i++)
		(void)pthread_join(t[i], NULL);
	free(t);
}

static pid_t spawn(char **argv)
{
	posix_spawn_file_actions_t fa;
	pid_t pid;

	(void)posix_spawn_file_actions_init(&fa);
	(void)posix_spawn_file_actions_addopen(&fa, 1, "/dev/null", O_WRONLY, 0);
	errno = posix_spawn(&pid, argv[0], &fa, NULL, argv, environ);
	if (errno)
		die(argv[0]);
	(void)posix_spawn_file_actions_destroy(&fa);
	return pid;
}

static void spawn_burst(int n, char **argv, double *out)
{
	start_us = now_us();
	for (int i = 0; i < n; i++)
		(void)spawn(argv);
	for (int i = 0; i < n; i++) {
		int status;

		if (wait(&status) < 0 || status != 0)
			die("wait");
		out[i] = now_us() - start_us;
	}
}

int main(int argc, char **argv)
{
	const char *how = argc > 3 ? argv[1] : "";
	int spawning = strncmp(how, "spawn-", 6) == 0;
	int n = argc > 3 ? atoi(argv[spawning ? 2 : 3]) : 0;
	double *out = calloc((size_t)(n > 0 ? n : 1), sizeof(*out));

	if (n <= 0 || !out) {
		fprintf(stderr,
			"usage: shots burst|turns MNT N | spawn-burst|spawn-turns N ARGV...\n");
		return 2;
	}
	mount_point = argv[2];
	if (strcmp(how, "burst") == 0) {
		burst(n, out);
	} else if (strcmp(how, "spawn-burst") == 0) {
		spawn_burst(n, argv + 3, out);
	} else {
		for (int i = 0; i < n; i++) {
			double t = now_us();
			int status = 0;

			if (!spawning)
				shot();
			else if (waitpid(spawn(argv + 3), &status, 0) < 0 || status != 0)
				die("wait");
			out[i] = now_us() - t;
		}
	}
	for (int i = 0; i < n; i++)
		printf("%.0f\n", out[i]);
	free(out);
	return 0;
}
