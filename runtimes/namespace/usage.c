/* SPDX-License-Identifier: Apache-2.0 */
/* Runner: what a tree of processes has used, where no control group counts it. */
#include "runtimes/namespace/ns_i.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/fs.h"

enum { TREE_MAX = 4096 }; /* processes looked at; what is beyond is counted when it has ended */

/* Fields 14 to 17 of /proc/PID/stat: the process and the children that it has waited for. */
static uint64_t own_ticks(pid_t pid)
{
	unsigned long long t[4] = { 0 };
	char text[1024];
	const char *p = sbx_proc_stat(pid, 14, text, sizeof(text), NULL);

	if (!p || sscanf(p, "%llu %llu %llu %llu", &t[0], &t[1], &t[2], &t[3]) != 4)
		return 0;
	return t[0] + t[1] + t[2] + t[3];
}

/* Appends the children of the first thread. */
static size_t add_children(pid_t pid, pid_t *list, size_t n)
{
	sbx_autofree char *text = NULL;
	char path[64], *save = NULL;

	(void)snprintf(path, sizeof(path), "/proc/%ld/task/%ld/children", (long)pid, (long)pid);
	if (sbx_read_file(AT_FDCWD, path, 1 << 20, &text, NULL) < 0)
		return n;
	for (char *p = strtok_r(text, " ", &save); p && n < TREE_MAX;
	     p = strtok_r(NULL, " ", &save))
		list[n++] = (pid_t)strtol(p, NULL, 10);
	return n;
}

uint64_t ns_tree_cpu_us(pid_t pid)
{
	sbx_autofree pid_t *list = calloc(TREE_MAX, sizeof(*list));
	long hz = sysconf(_SC_CLK_TCK);
	uint64_t ticks = 0;
	size_t n = 0;

	if (!list || pid <= 0 || hz <= 0)
		return 0;
	list[n++] = pid;
	for (size_t i = 0; i < n; i++) {
		ticks += own_ticks(list[i]);
		n = add_children(list[i], list, n);
	}
	return ticks * 1000000 / (uint64_t)hz;
}
