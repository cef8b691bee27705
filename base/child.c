/* SPDX-License-Identifier: Apache-2.0 */
#include "base/child.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>

#include "base/auto.h"

/* Copies of those whose number another one is to get, above all that will be used. */
static int clear_way(const int *fds, size_t n, int high[SBX_SPAWN_FDS])
{
	for (size_t i = 0; i < n; i++) {
		if (fds[i] < 0 || fds[i] >= (int)n)
			continue;
		high[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, (int)n);
		if (high[i] < 0)
			return errno;
	}
	return 0;
}

static int add_fds(posix_spawn_file_actions_t *fa, const int *fds, size_t n,
		   const int high[SBX_SPAWN_FDS])
{
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++) {
		if (fds[i] == SBX_SPAWN_NULL)
			r = posix_spawn_file_actions_addopen(fa, (int)i, "/dev/null", O_RDWR, 0);
		else if (fds[i] >= 0)
			r = posix_spawn_file_actions_adddup2(fa, high[i] >= 0 ? high[i] : fds[i],
							     (int)i);
	}
	return r == 0 ? posix_spawn_file_actions_addclosefrom_np(fa, (int)n) : r;
}

static int add_signals(posix_spawnattr_t *attr, bool session)
{
	short flags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF;
	sigset_t none, all;
	int r;

	sigemptyset(&none);
	sigfillset(&all);
	r = posix_spawnattr_setsigmask(attr, &none);
	if (r == 0)
		r = posix_spawnattr_setsigdefault(attr, &all);
	if (session)
		flags |= POSIX_SPAWN_SETSID;
	return r == 0 ? posix_spawnattr_setflags(attr, flags) : r;
}

int sbx_spawn(char *const *argv, const int *fds, size_t n, bool session, pid_t *ret)
{
	int high[SBX_SPAWN_FDS] = { -1, -1, -1, -1, -1, -1, -1, -1 }, r;
	posix_spawn_file_actions_t fa;
	posix_spawnattr_t attr;

	assert(n <= SBX_SPAWN_FDS);
	r = posix_spawn_file_actions_init(&fa);
	if (r != 0)
		return r;
	r = posix_spawnattr_init(&attr);
	if (r == 0) {
		r = clear_way(fds, n, high);
		if (r == 0)
			r = add_fds(&fa, fds, n, high);
		if (r == 0)
			r = add_signals(&attr, session);
		if (r == 0)
			r = posix_spawn(ret, argv[0], &fa, &attr, argv, environ);
		posix_spawnattr_destroy(&attr);
	}
	posix_spawn_file_actions_destroy(&fa);
	for (size_t i = 0; i < SBX_SPAWN_FDS; i++)
		sbx_closep(&high[i]);
	return r;
}
