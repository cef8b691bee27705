/* SPDX-License-Identifier: Apache-2.0 */
#include "base/process.h"

#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sysexits.h>

#include "base/auto.h"
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

/* ---- the service manager --------------------------------------------------------------------- */

static struct sockaddr_un manager; /* sun_path empty: there is none */
static socklen_t manager_len;

/* Taken out of the environment, or what a program that we start says would count as ours. */
static void find_manager(void)
{
	const char *path = getenv("NOTIFY_SOCKET");
	size_t len = path ? strlen(path) : 0;

	if (len > 1 && len < sizeof(manager.sun_path) && (*path == '/' || *path == '@')) {
		manager.sun_family = AF_UNIX;
		memcpy(manager.sun_path, path, len);
		if (*path == '@')
			manager.sun_path[0] = '\0'; /* an abstract name */
		manager_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
	}
	(void)unsetenv("NOTIFY_SOCKET");
}

/* One datagram, as sd_notify(3) describes; libsystemd would bring a megabyte with it. */
static void tell_manager(const char *what)
{
	sbx_autoclose int fd = -1;

	if (!manager_len)
		return;
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || sendto(fd, what, strlen(what), MSG_NOSIGNAL,
			     (const struct sockaddr *)&manager, manager_len) < 0)
		sbx_log(SBX_LOG_WARNING, "cannot tell the service manager what=%s", what);
}

void sbx_process_ready(void)
{
	tell_manager("READY=1");
}

void sbx_process_stopping(void)
{
	tell_manager("STOPPING=1");
}

void sbx_process_init(const char *program)
{
	struct rlimit files;

	name = program;
	find_manager();
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
