/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a leaf: its processes, its directory; also of leaves that nobody owns any more. */
#include "runtimes/cgroup_i.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>

#include "base/auto.h"
#include "base/fs.h"

enum {
	PROCS_MAX = 1 << 20,
	KILL_ROUNDS = 64,     /* a fork bomb may outrun a few */
	DEATH_WAIT_MS = 2000, /* for one killed process; the kernel needs milliseconds */
};

uint64_t cg_start_time(pid_t pid)
{
	unsigned long long start;
	bool dead = false;
	char text[1024];
	const char *p = sbx_proc_stat(pid, 22, text, sizeof(text), &dead);

	/* Of a dead one only the exit status is left, for a parent that may never ask. */
	return p && !dead && sscanf(p, "%llu", &start) == 1 ? start : 0;
}

bool cg_process_gone(pid_t pid, uint64_t start)
{
	unsigned long long now;
	bool dead = false;
	char text[1024];
	const char *p;

	if (kill(pid, 0) < 0 && errno == ESRCH)
		return true;
	p = sbx_proc_stat(pid, 22, text, sizeof(text), &dead);
	if (!p || sscanf(p, "%llu", &now) != 1) /* no descriptor is free, say */
		return false;
	return dead || (start && now != start);
}

/* Is the process still in the group? Between reading the list and opening the process its number
 * may have gone to somebody else; one that is still listed afterwards is the one meant. */
static bool listed(int leaf, pid_t pid)
{
	sbx_autofree char *text = NULL;
	char *save = NULL;

	if (sbx_read_file(leaf, "cgroup.procs", PROCS_MAX, &text, NULL) < 0)
		return false;
	for (char *p = strtok_r(text, "\n", &save); p; p = strtok_r(NULL, "\n", &save))
		if (strtol(p, NULL, 10) == pid)
			return true;
	return false;
}

static void kill_and_wait(int leaf, pid_t pid)
{
	sbx_autoclose int fd = (int)syscall(SYS_pidfd_open, pid, 0);
	struct pollfd p = { .fd = fd, .events = POLLIN };

	if (fd < 0 || !listed(leaf, pid))
		return;
	(void)syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0);
	while (poll(&p, 1, DEATH_WAIT_MS) < 0 && errno == EINTR)
		;
}

/* Kills what is in the group. False when there was nothing to kill. */
static bool kill_round(int leaf)
{
	sbx_autofree char *text = NULL;
	char *save = NULL;
	bool any = false;

	(void)sbx_write_file(leaf, "cgroup.kill", "1"); /* version 2 since 5.14; all at once */
	if (sbx_read_file(leaf, "cgroup.procs", PROCS_MAX, &text, NULL) < 0)
		return false;
	for (char *p = strtok_r(text, "\n", &save); p; p = strtok_r(NULL, "\n", &save)) {
		pid_t pid = (pid_t)strtol(p, NULL, 10);

		/* 0: of a namespace that we cannot see into. */
		if (pid <= 0 || pid == getpid())
			continue;
		kill_and_wait(leaf, pid);
		any = true;
	}
	return any;
}

/* No process is listed, yet the group is still busy: newer kernels let go of a dead task only after
 * it has been switched away from for the last time. */
static void settle(int leaf)
{
	sbx_autoclose int fd = openat(leaf, "cgroup.events", O_RDONLY | O_CLOEXEC);
	struct pollfd p = { .fd = fd, .events = POLLPRI };
	char text[256];
	ssize_t n = fd < 0 ? -1 : sbx_read_full(fd, text, sizeof(text) - 1);

	if (n <= 0) {
		(void)sched_yield(); /* version 1 tells no events */
		return;
	}
	text[n] = '\0';
	if (strstr(text, "populated 1"))
		(void)poll(&p, 1, DEATH_WAIT_MS);
}

void cg_remove_leaf(const struct cg_base *base, const char *name)
{
	sbx_autoclose int leaf = -1;

	if (unlinkat(base->fd, name, AT_REMOVEDIR) == 0 || errno != EBUSY)
		return;
	leaf = openat(base->fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	for (int i = 0; leaf >= 0 && i < KILL_ROUNDS; i++) {
		if (!kill_round(leaf))
			settle(leaf);
		if (unlinkat(base->fd, name, AT_REMOVEDIR) == 0 || errno != EBUSY)
			return;
	}
}

/* Made by a process that is no more? Names that we did not make are left alone. */
static bool abandoned(const char *name)
{
	unsigned long long start, serial;
	char tail;
	long pid;

	return sscanf(name, "%ld-%llu-%llu%c", &pid, &start, &serial, &tail) == 3 && pid > 0 &&
	       cg_process_gone((pid_t)pid, start);
}

void cg_trim(struct cg *cg)
{
	if (!cg)
		return;
	cg_leaf_discard(cg->parked);
	cg->parked = NULL;
}

void cg_sweep(struct cg *cg)
{
	cg_trim(cg);
	for (size_t i = 0; cg && i < cg->n_bases; i++) {
		int fd = openat(cg->bases[i].fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
		struct dirent *d;

		if (!dir) {
			sbx_closep(&fd);
			continue;
		}
		while ((d = readdir(dir)))
			if (sbx_entry_type(fd, d) == DT_DIR && abandoned(d->d_name))
				cg_remove_leaf(&cg->bases[i], d->d_name);
		(void)closedir(dir);
	}
}
