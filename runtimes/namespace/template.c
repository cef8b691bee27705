/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runner, as root only: the read-only part of a root file system, built once and kept as a mount
 * namespace without processes. Init is cloned inside of it, so that it gets a short mount table
 * with everything in place, locked by the kernel against any change from within. An ordinary user
 * cannot enter a namespace of his making without leaving his own.
 */
#include "runtimes/namespace/ns_i.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/auto.h"
#include "base/log.h"

/* Directories whose change means that what is bound from them may have been replaced: below "/" for
 * the image "host", else below the image. */
static const char *const watched[] = { ".", "etc", "etc/ssl" };

enum { TEMPLATES = 2 }; /* "host", and the last other image */

struct template
{
	bool made;
	char *key; /* owned; everything else that it was made from */
	int mnt;   /* owned; the mount namespace */
	struct stat seen[SBX_COUNT(watched)];
};

/* ---- is it still right? ---------------------------------------------------------------------- */

static void look(const char *image, struct stat seen[SBX_COUNT(watched)])
{
	sbx_autoclose int dir = open(image ? image : "/", O_PATH | O_DIRECTORY | O_CLOEXEC);

	memset(seen, 0, sizeof(*seen) * SBX_COUNT(watched));
	for (size_t i = 0; dir >= 0 && i < SBX_COUNT(watched); i++)
		(void)fstatat(dir, watched[i], &seen[i], AT_SYMLINK_NOFOLLOW);
}

static bool same(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino &&
	       a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
	       a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

/* Lines, so that no two different sources give one text. */
static char *make_key(const struct rt_host *host, const char *image)
{
	char *key;

	return asprintf(&key, "%s\n%s\n%s", image ? image : "",
			host->state_dir ? host->state_dir : "",
			host->mountpoint ? host->mountpoint : "") < 0
		       ? NULL
		       : key;
}

static bool fits(const struct template *t, const char *key, const struct stat *now)
{
	if (!t->made || strcmp(t->key, key) != 0)
		return false;
	for (size_t i = 0; i < SBX_COUNT(watched); i++)
		if (!same(&t->seen[i], &now[i]))
			return false;
	return true;
}

/* ---- making ---------------------------------------------------------------------------------- */

static _Noreturn void builder(const struct ns_config *c)
{
	int keep[] = { c->sock };
	struct ns_reply r = { 0 };
	struct iovec iov = { .iov_base = &r, .iov_len = sizeof(r) };
	char end;

	/* What is made here is for another user to read, whatever the service's mask. */
	(void)umask(0);
	ns_close_others(keep, SBX_COUNT(keep));
	(void)ns_root_base(c, &r);
	if (ns_send(c->sock, &iov, 1, -1) == 0)
		(void)ns_recv(c->sock, &end, 1, NULL); /* until the runner has taken hold of it */
	_exit(0);
}

static int build(const struct rt_host *host, const char *image, int *ret, enum ns_stage *stage,
		 struct sbx_error *e)
{
	struct timeval limit = { .tv_sec = NS_REPLY_SECONDS };
	struct clone_args args = { .flags = CLONE_NEWNS };
	struct ns_config c = { .host = host, .image = image };
	char path[40];
	int sock[2], r;
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock) < 0)
		return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, errno, "cannot make a socket");
	(void)setsockopt(sock[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	c.sock = sock[1];
	*stage = NS_STAGE_MOUNT;
	pid = (pid_t)syscall(SYS_clone3, &args, sizeof(args));
	if (pid == 0)
		builder(&c);
	r = pid < 0 ? sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, errno,
				     "cannot clone into a new mount namespace")
		    : 0;
	sbx_closep(&sock[1]);
	if (r == 0)
		r = ns_await(sock[0], NULL, stage, SBX_E_RUNTIME_ERROR, e);
	if (r == 0) {
		(void)snprintf(path, sizeof(path), "/proc/%ld/ns/mnt", (long)pid);
		*ret = open(path, O_RDONLY | O_CLOEXEC);
		if (*ret < 0)
			r = sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, errno,
					   "cannot hold a mount namespace");
	}
	sbx_closep(&sock[0]);
	if (pid > 0) {
		(void)kill(pid, SIGKILL);
		while (waitpid(pid, NULL, __WALL) < 0 && errno == EINTR)
			;
	}
	return r;
}

int ns_template_get(const struct rt_host *host, const char *image, int *ret, enum ns_stage *stage,
		    struct sbx_error *e)
{
	static struct template all[TEMPLATES];
	struct template *t = &all[image ? 1 : 0];
	sbx_autofree char *key = make_key(host, image);
	struct stat now[SBX_COUNT(watched)];
	int r;

	if (!key)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for an image");
	look(image, now);
	if (!fits(t, key, now)) {
		if (t->made)
			sbx_closep(&t->mnt);
		t->made = false;
		free(sbx_steal(&t->key));
		t->key = sbx_steal(&key);
		r = build(host, image, &t->mnt, stage, e);
		if (r < 0)
			return r;
		memcpy(t->seen, now, sizeof(now));
		t->made = true;
	}
	*ret = t->mnt;
	return 0;
}

/* ---- using ----------------------------------------------------------------------------------- */

/* Where the runner was before it went into a template: entering one changes root and cwd. */
struct place {
	int mnt, root, cwd;
};

static bool remember(struct place *p)
{
	p->mnt = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
	p->root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	p->cwd = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	return p->mnt >= 0 && p->root >= 0 && p->cwd >= 0;
}

static void forget(struct place *p)
{
	sbx_closep(&p->mnt);
	sbx_closep(&p->root);
	sbx_closep(&p->cwd);
}

static void go_back(const struct place *p)
{
	if (setns(p->mnt, CLONE_NEWNS) == 0 && fchdir(p->root) == 0 && chroot(".") == 0 &&
	    fchdir(p->cwd) == 0)
		return;
	/* A runner that sees the sandbox's files as the host's must not go on. */
	sbx_log(SBX_LOG_ERROR, "mount_namespace_lost errno=%d", errno);
	abort();
}

pid_t ns_template_clone(int mnt, const struct clone_args *args, size_t size)
{
	struct place here = { -1, -1, -1 };
	pid_t pid = -1;
	int err;

	if (!remember(&here) || setns(mnt, CLONE_NEWNS) < 0) {
		err = errno;
		forget(&here);
		errno = err;
		return -1;
	}
	pid = (pid_t)syscall(SYS_clone3, args, size);
	if (pid == 0)
		return 0;
	err = errno;
	go_back(&here);
	forget(&here);
	errno = err;
	return pid;
}
