/* SPDX-License-Identifier: Apache-2.0 */
#include "base/process.h"

#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sysexits.h>

#include "base/fs.h"
#include "base/log.h"

/* What the starter ignored or blocked (nohup, a careless manager of services) must not decide
 * whether we can be stopped. */
static void default_signals(void)
{
	struct sigaction dfl = { .sa_handler = SIG_DFL };
	sigset_t none;

	for (int sig = 1; sig < NSIG; sig++)
		(void)sigaction(sig, &dfl, NULL); /* KILL and STOP cannot be set, nor ignored */
	sigemptyset(&none);
	(void)sigprocmask(SIG_SETMASK, &none, NULL);
}

static const char *name = "sandboxfs"; /* until it is known */

void sbx_process_init(const char *program)
{
	struct rlimit files;

	name = program;
	default_signals();
	/* Few arenas: the threads are many, what they allocate is little. */
	(void)mallopt(M_ARENA_MAX, 2);
	(void)umask(077);
	if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
		files.rlim_cur = files.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &files);
	}
	sbx_log_set_program(program);
}

int sbx_process_signals(void)
{
	sigset_t set;

	(void)signal(SIGPIPE, SIG_IGN);
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	(void)pthread_sigmask(SIG_BLOCK, &set, NULL);
	return signalfd(-1, &set, SFD_CLOEXEC);
}

int sbx_option_path(char **ret, const char *option, const char *value, struct sbx_error *e)
{
	char *path;

	if (!*value)
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "%s: a path must follow", option);
	path = sbx_absolute(value);
	if (!path)
		return sbx_fail_errno(e, SBX_E_NO_MEMORY, errno, "cannot make '%s' absolute",
				      value);
	free(*ret);
	*ret = path;
	return 0;
}

int sbx_exit_code(int rc, const struct sbx_error *e)
{
	if (rc == 0)
		return EX_OK;
	fprintf(stderr, "%s: %s\n", name, e->message);
	switch (e->code) {
	case SBX_E_INVALID_ARGUMENT:
		return EX_USAGE;
	case SBX_E_INVALID_CONFIG:
		return EX_CONFIG;
	case SBX_E_STORAGE_FULL:
	case SBX_E_STORE_UNAVAILABLE:
		return EX_CANTCREAT;
	default:
		return EX_UNAVAILABLE;
	}
}
