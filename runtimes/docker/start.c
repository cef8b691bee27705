/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sandbox-start: process 1 of a container, with the command's user and no rights. It connects to
 * the runner, puts files into the workspace, executes the command when it is told to, passes
 * signals on, reaps orphans, and says how the command ended. It ends with the runner, and with it
 * the kernel ends everything inside.
 *
 * Nothing inside may get hold of it: signals from inside do not reach process 1 of a namespace, and
 * it cannot be traced (not dumpable). Linked without shared libraries, since the image has any or
 * none.
 */
#include "runtimes/docker/start_i.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "base/auto.h"
#include "base/fs.h"
#include "runtimes/inside_i.h"

static struct {
	int sock, signals, workspace;
	int fds[DK_FILL__FDS]; /* -1 until they came */
	bool filled;
	struct dk_fill fill;
	struct sock_filter *filter;
	char *cwd;
	char **argv, **envp; /* NULL-terminated */
	pid_t command;	     /* 0: not yet */
} self = { .sock = -1, .signals = -1, .workspace = -1, .fds = { -1, -1, -1, -1 } };

/* ---- messages -------------------------------------------------------------------------------- */

/* Without a runner there is nothing to be here for. */
static void say(const struct dk_msg *m, int fd)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct iovec iov = { .iov_len = sizeof(*m) };
	struct msghdr h = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t n;

	memcpy(&iov.iov_base, &m, sizeof(m)); /* it is only read */
	if (fd >= 0) {
		h.msg_control = control.bytes;
		h.msg_controllen = sizeof(control.bytes);
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(sizeof(fd));
		memcpy(CMSG_DATA(&control.align), &fd, sizeof(fd));
	}
	do {
		n = sendmsg(self.sock, &h, MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	if (n != (ssize_t)sizeof(*m))
		_exit(1);
}

static void fail(struct dk_msg *m, int err, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

static void fail(struct dk_msg *m, int err, const char *fmt, ...)
{
	va_list ap;

	if (m->err)
		return; /* the first one counts */
	m->err = err ? err : EINVAL;
	va_start(ap, fmt);
	(void)vsnprintf(m->text, sizeof(m->text), fmt, ap);
	va_end(ap);
}

/* False at the end of the stream. Descriptors that come along are kept. */
static bool hear(struct dk_msg *m)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(DK_FILL__FDS * sizeof(int))];
	} control;
	struct iovec iov = { .iov_base = m, .iov_len = sizeof(*m) };
	struct msghdr h = { .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = control.bytes,
			    .msg_controllen = sizeof(control.bytes) };
	ssize_t n;

	do {
		n = recvmsg(self.sock, &h, MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	if (n != (ssize_t)sizeof(*m))
		return false;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&h); c; c = CMSG_NXTHDR(&h, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
		    c->cmsg_len == CMSG_LEN(sizeof(self.fds)))
			memcpy(self.fds, CMSG_DATA(c), sizeof(self.fds));
	return true;
}

/* ---- filling --------------------------------------------------------------------------------- */

static void write_file(const struct dk_file *f, const char *path, const char *data,
		       struct dk_msg *m)
{
	const char *what;
	int fd = rt_place_file(self.workspace, path, &what), err = 0;

	if (fd < 0) {
		fail(m, -fd, "cannot %s the file '%.180s'", what, path);
		return;
	}
	err = -sbx_write_all(fd, data, f->size);
	if (!err && fchmod(fd, f->mode & 0777) < 0)
		err = errno;
	/* Some file systems tell only at the end that there was no room. */
	if (close(fd) < 0 && !err)
		err = errno;
	if (err)
		fail(m, err, "cannot write the file '%.180s'", path);
}

static void write_files(const char *p, const char *end, struct dk_msg *m)
{
	for (uint32_t i = 0; i < self.fill.n_files && !m->err; i++) {
		struct dk_file f;
		const char *path;

		if ((size_t)(end - p) < sizeof(f)) {
			fail(m, EINVAL, "the files did not arrive whole");
			return;
		}
		memcpy(&f, p, sizeof(f));
		path = p + sizeof(f);
		if (f.path_size == 0 || f.path_size > (size_t)(end - path) ||
		    f.size > (uint64_t)(end - path) - f.path_size) {
			fail(m, EINVAL, "the files did not arrive whole");
			return;
		}
		p = path + f.path_size;
		write_file(&f, path, p, m);
		p += f.size;
	}
}

/* Arguments and environment stay where they are mapped; only the vectors are made. */
static bool take_vectors(char *text)
{
	self.argv = calloc((size_t)self.fill.argc + 1, sizeof(*self.argv));
	self.envp = calloc((size_t)self.fill.envc + 1, sizeof(*self.envp));
	if (!self.argv || !self.envp)
		return false;
	self.cwd = text;
	(void)rt_split(rt_split(text + strlen(text) + 1, self.argv, self.fill.argc), self.envp,
		       self.fill.envc);
	return true;
}

static void make_cwd(struct dk_msg *m)
{
	const char *what;
	int rc = rt_place_cwd(self.workspace, self.cwd, &what);

	if (rc > 0)
		fail(m, EINVAL, "the cwd '%.180s' %s", self.cwd, what);
	else if (rc < 0)
		fail(m, -rc, "cannot %s '%.180s' as cwd", what, self.cwd);
}

static void fill(void)
{
	struct dk_msg m = { .op = DK_FILLED };
	struct stat st;
	uint64_t filter, left;
	char *map, *text;

	if (self.filled || self.fds[DK_FILL_TEXT] < 0 || fstat(self.fds[DK_FILL_TEXT], &st) < 0 ||
	    (size_t)st.st_size < sizeof(self.fill))
		_exit(1);
	map = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE,
		   self.fds[DK_FILL_TEXT], 0);
	if (map == MAP_FAILED)
		_exit(1);
	memcpy(&self.fill, map, sizeof(self.fill));
	filter = (uint64_t)self.fill.n_filter * sizeof(*self.filter);
	left = (uint64_t)st.st_size - sizeof(self.fill);
	if (filter > left || self.fill.text_size > left - filter)
		_exit(1);
	self.filter = (struct sock_filter *)(void *)(map + sizeof(self.fill));
	text = map + sizeof(self.fill) + filter;
	if (!take_vectors(text))
		_exit(1);
	write_files(text + self.fill.text_size, map + st.st_size, &m);
	if (!m.err)
		make_cwd(&m);
	self.filled = true;
	say(&m, -1);
}

/* ---- the command ----------------------------------------------------------------------------- */

static void default_signals(void)
{
	struct sigaction dfl = { .sa_handler = SIG_DFL };
	sigset_t none;

	for (int sig = 1; sig < NSIG; sig++)
		(void)sigaction(sig, &dfl, NULL);
	(void)sigemptyset(&none);
	(void)sigprocmask(SIG_SETMASK, &none, NULL);
}

static int become(void)
{
	struct rlimit files = { .rlim_cur = self.fill.nofile, .rlim_max = self.fill.nofile }, old;
	int in = self.fill.stdin_open ? self.fds[DK_FILL_IN]
				      : open("/dev/null", O_RDONLY | O_CLOEXEC);

	if (setsid() < 0 || in < 0 || dup2(in, 0) < 0 || dup2(self.fds[DK_FILL_OUT], 1) < 0 ||
	    dup2(self.fds[DK_FILL_ERR], 2) < 0)
		return errno;
	if (getrlimit(RLIMIT_NOFILE, &old) == 0 && files.rlim_max > old.rlim_max)
		files.rlim_cur = files.rlim_max = old.rlim_max;
	if (self.fill.nofile && setrlimit(RLIMIT_NOFILE, &files) < 0)
		return errno;
	return rt_enter(self.cwd) < 0 ? errno : 0;
}

/* Last of all: what this needed is not for the command. */
static int enter_filter(void)
{
	struct sock_fprog program = { .len = (unsigned short)self.fill.n_filter,
				      .filter = self.filter };

	if (!self.fill.n_filter)
		return 0;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
	    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) < 0)
		return errno;
	return 0;
}

/* The child tells by this pipe why it could not become the command; it closes with execve. */
static _Noreturn void child(int tell)
{
	int err = become();

	if (!err) {
		default_signals();
		err = enter_filter();
	}
	if (!err)
		err = rt_execute(self.argv, self.envp);
	(void)sbx_write_all(tell, &err, sizeof(err));
	_exit(rt_exec_status(err));
}

static void go(void)
{
	struct dk_msg m = { .op = DK_STARTED };
	int p[2], err = 0;

	if (!self.filled || self.command || pipe2(p, O_CLOEXEC) < 0)
		_exit(1);
	self.command = fork();
	if (self.command == 0)
		child(p[1]);
	(void)close(p[1]);
	if (self.command < 0) /* the limit of processes is at its lowest */
		_exit(1);
	if (sbx_read_full(p[0], &err, sizeof(err)) == (ssize_t)sizeof(err))
		m.err = err;
	(void)close(p[0]);
	for (int i = 0; i < DK_FILL__FDS; i++)
		sbx_closep(&self.fds[i]);
	say(&m, -1);
}

/* Nothing outlives the command. The runner closes the socket when it has read what the groups say,
 * which go with this process. */
static _Noreturn void end(int status)
{
	struct dk_msg m = { .op = DK_END, .err = status }, late;

	(void)kill(-1, SIGKILL);
	while (waitpid(-1, NULL, 0) > 0)
		;
	say(&m, -1);
	while (hear(&late))
		; /* a signal for nobody */
	_exit(0);
}

static void reap(void)
{
	struct signalfd_siginfo info;
	int status;
	pid_t pid;

	while (read(self.signals, &info, sizeof(info)) > 0)
		;
	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		if (pid == self.command)
			end(status);
}

static void obey(void)
{
	struct dk_msg m;

	if (!hear(&m))
		_exit(1);
	if (m.op == DK_FILL)
		fill();
	else if (m.op == DK_GO)
		go();
	else if (m.op == DK_SIGNAL && self.command > 0)
		(void)kill(m.scope ? -1 : -self.command, m.sig);
}

/* ---- becoming process 1 ---------------------------------------------------------------------- */

static void take_signals(void)
{
	sigset_t set;

	(void)sigfillset(&set);
	(void)sigprocmask(SIG_SETMASK, &set, NULL);
	(void)sigemptyset(&set);
	(void)sigaddset(&set, SIGCHLD);
	self.signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static bool call_runner(void)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX, .sun_path = DK_INSIDE_DOOR "/" DK_SOCKET };

	self.sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	return self.sock >= 0 && connect(self.sock, (struct sockaddr *)&a, sizeof(a)) == 0;
}

int main(int argc, char **argv)
{
	struct dk_msg hello = { .op = DK_HELLO };

	(void)argv;
	if (argc > 1) /* a command that does nothing, there in every image */
		return 0;
	(void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	sbx_close_from(3);
	(void)umask(022);
	take_signals();
	self.workspace = open("/workspace", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (self.signals < 0 || self.workspace < 0 || !call_runner())
		return 1;
	say(&hello, self.workspace);
	for (;;) {
		struct pollfd p[] = { { .fd = self.signals, .events = POLLIN },
				      { .fd = self.sock, .events = POLLIN } };

		if (poll(p, SBX_COUNT(p), -1) < 0)
			continue;
		if (p[0].revents)
			reap();
		if (p[1].revents)
			obey();
	}
}
