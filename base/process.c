/* SPDX-License-Identifier: Apache-2.0 */
#include "base/process.h"

#include <malloc.h>
#include <signal.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/stat.h>

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

void sbx_process_init(const char *program)
{
	struct rlimit files;

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
