/* SPDX-License-Identifier: Apache-2.0 */
/* Runner: makes the processes of a sandbox that belongs to no run yet, and ends them. */
#include "runtimes/namespace/ns_i.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "base/auto.h"
#include "base/fs.h"
#include "runtimes/cgroup.h"

#define NAMESPACES (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS)

enum { OUTPUT_PIPE_SIZE = 256 << 10 };

/* Both ends of everything; the child's ends are closed when this goes. */
struct ends {
	int sock[2], command[2];   /* [0] stays with the runner */
	int in[2], out[2], err[2]; /* [0] reads */
};

static void endsp(struct ends *d)
{
	int *all = d->sock;

	for (size_t i = 0; i < sizeof(*d) / sizeof(int); i++)
		sbx_closep(&all[i]);
}

/* A service may run with its standard streams closed; then 0, 1 and 2 must not become ours. */
static int above_stdio(int fd[2])
{
	for (int i = 0; i < 2; i++) {
		int up;

		if (fd[i] > 2)
			continue;
		up = fcntl(fd[i], F_DUPFD_CLOEXEC, 3);
		if (up < 0)
			return -1;
		(void)close(fd[i]);
		fd[i] = up;
	}
	return 0;
}

static int make_socket(int fd[2])
{
	struct timeval limit = { .tv_sec = NS_REPLY_SECONDS };

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) < 0 || above_stdio(fd) < 0)
		return -1;
	/* Something that init waits for, a dead disk say, must not stop the runner for ever. */
	if (setsockopt(fd[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) < 0)
		return -1;
	return setsockopt(fd[0], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

static int make_pipe(int fd[2], bool output)
{
	if (pipe2(fd, O_CLOEXEC) < 0 || above_stdio(fd) < 0)
		return -1;
	/* More room means fewer switches between writer and reader. A user who has used up his
	 * share keeps the usual size. */
	if (output)
		(void)fcntl(fd[1], F_SETPIPE_SZ, OUTPUT_PIPE_SIZE);
	return fcntl(fd[output ? 0 : 1], F_SETFL, O_NONBLOCK);
}

static int make_ends(struct ends *d, struct sbx_error *e)
{
	memset(d, -1, sizeof(*d));
	if (make_socket(d->sock) < 0 || make_socket(d->command) < 0 ||
	    make_pipe(d->in, false) < 0 || make_pipe(d->out, true) < 0 ||
	    make_pipe(d->err, true) < 0)
		return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, errno, "cannot make a pipe");
	return 0;
}

/* ---- identity -------------------------------------------------------------------------------- */

bool ns_is_root(void)
{
	static const int needed[] = { CAP_CHOWN, CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN,
				      CAP_SYS_CHROOT };
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = { 0 };

	if (syscall(SYS_capget, &head, data) < 0)
		return false;
	for (size_t i = 0; i < SBX_COUNT(needed); i++)
		if (!(data[CAP_TO_INDEX(needed[i])].effective & CAP_TO_MASK(needed[i])))
			return false;
	return true;
}

static int write_proc(int proc, const char *file, const char *text, struct sbx_error *e)
{
	int r = sbx_write_file(proc, file, text);

	return r == 0 ? 0
		      : sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, -r, "cannot write %s of the sandbox",
				       file);
}

/* One user and one group exist inside. A process number is unique among the living, so that a
 * range as large as pid_max gives every sandbox a user of its own. */
static int map_ids(struct ns_sandbox *sb, int proc, struct sbx_error *e)
{
	char text[48];
	gid_t gid;
	int r;

	sb->uid = geteuid();
	gid = getegid();
	if (sb->own_ids) {
		sb->uid = sb->host->uid_base + (uid_t)sb->pid % sb->host->uid_range;
		gid = sb->uid;
	} else {
		r = write_proc(proc, "setgroups", "deny", e);
		if (r < 0)
			return r;
	}
	(void)snprintf(text, sizeof(text), "%d %u 1", NS_ID, (unsigned)sb->uid);
	r = write_proc(proc, "uid_map", text, e);
	if (r < 0)
		return r;
	(void)snprintf(text, sizeof(text), "%d %u 1", NS_ID, (unsigned)gid);
	return write_proc(proc, "gid_map", text, e);
}

/* /dev/stdout is opened by name, with the rights of the file that it leads to. */
static int own_pipes(const struct ns_sandbox *sb, const struct ends *d, struct sbx_error *e)
{
	const int fds[] = { d->in[0], d->out[1], d->err[1] };

	for (size_t i = 0; sb->own_ids && i < SBX_COUNT(fds); i++)
		if (fchown(fds[i], sb->uid, sb->uid) < 0)
			return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, errno,
					      "cannot give the pipes to the sandbox");
	return 0;
}

/* ---- cloning --------------------------------------------------------------------------------- */

/*
 * What a sandbox holds of inotify instances, message queue bytes and the like the kernel counts
 * for the user who made its user namespace, too. Were that root, one sandbox could use up root's
 * share and stop the host. So root makes each in the name of another user: the one whose number
 * this process has, as which no sandbox runs. All rights are kept.
 */
struct disguise {
	uid_t uid; /* to go back to */
	int dumpable;
	bool on;
};

static struct disguise put_on(const struct ns_sandbox *sb)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3];
	struct disguise d = { .uid = geteuid(), .dumpable = prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) };
	uid_t owner;

	if (!sb->own_ids || syscall(SYS_capget, &head, caps) < 0)
		return d;
	owner = sb->host->uid_base + (uid_t)getpid() % sb->host->uid_range;
	/* Of this thread alone: the C library's function would change them all. */
	if (syscall(SYS_setresuid, -1, owner, -1) < 0)
		return d;
	d.on = true;
	/* Leaving user 0 has taken the effective ones away. */
	(void)syscall(SYS_capset, &head, caps);
	return d;
}

static void take_off(const struct disguise *d)
{
	if (!d->on)
		return;
	(void)syscall(SYS_setresuid, -1, d->uid, -1);
	(void)prctl(PR_SET_DUMPABLE, d->dumpable == 1, 0, 0, 0);
}

/* With a network namespace and a template the clone happens inside of both. */
static pid_t clone_within(const struct ns_sandbox *sb, int template, struct clone_args *args)
{
	int own = -1, err;
	pid_t pid;

	if (template <0)
		return (pid_t)syscall(SYS_clone3, args, sizeof(*args));
	if (ns_net_enter(sb->net, &own) < 0)
		return -1;
	pid = ns_template_clone(template, args, sizeof(*args));
	if (pid == 0)
		return 0;
	err = errno;
	ns_net_leave(&own);
	errno = err;
	return pid;
}

static int clone_init(struct ns_sandbox *sb, const struct ns_config *c, int template,
		      bool *ret_in_v2, struct sbx_error *e)
{
	struct clone_args args = { .flags = NAMESPACES | CLONE_PIDFD };
	int pidfd = -1, v2 = sb->leaf ? cg_leaf_v2_fd(sb->leaf) : -1, err;
	struct disguise d;
	pid_t pid;

	args.pidfd = (uint64_t)(uintptr_t)&pidfd;
	if (!sb->net)
		args.flags |= CLONE_NEWNET;
	*ret_in_v2 = v2 >= 0;
	if (v2 >= 0) {
		args.flags |= CLONE_INTO_CGROUP;
		args.cgroup = (uint64_t)v2;
	}
	d = put_on(sb);
	pid = clone_within(sb, template, &args);
	if (pid < 0 && v2 >= 0) {
		/* Before Linux 5.7; joining afterwards does it too, only slower. */
		*ret_in_v2 = false;
		args.flags &= ~(uint64_t)CLONE_INTO_CGROUP;
		args.cgroup = 0;
		pid = clone_within(sb, template, &args);
	}
	if (pid == 0)
		ns_init_main(c);
	err = errno;
	take_off(&d);
	if (pid < 0)
		return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, err,
				      "cannot clone into new namespaces");
	sb->pid = pid;
	sb->pidfd = pidfd;
	return 0;
}

static const char *text_of_errno(int err)
{
	const char *s = strerrordesc_np(err);

	return s ? s : "unknown error";
}

int ns_await(int sock, int *ret_fd, enum ns_stage *stage, enum sbx_code code, struct sbx_error *e)
{
	struct ns_reply r;
	int rc = ns_recv(sock, &r, sizeof(r), ret_fd);

	if (rc == -EAGAIN)
		return sbx_fail(e, code, "the sandbox did not answer within %d seconds",
				NS_REPLY_SECONDS);
	if (rc < 0)
		return sbx_fail(e, code, "the sandbox ended while it was being made");
	if (r.err == 0)
		return 0;
	*stage = r.stage < NS_STAGE__COUNT ? (enum ns_stage)r.stage : NS_STAGE_OTHER;
	r.text[sizeof(r.text) - 1] = '\0';
	return sbx_fail(e, code, "%s: %s", r.text, text_of_errno(r.err));
}

/* What rt_fds.exit is: readable when init has said its last word, or has died without one. */
static int watch(struct ns_sandbox *sb, struct sbx_error *e)
{
	struct epoll_event in = { .events = EPOLLIN };

	sb->exit = epoll_create1(EPOLL_CLOEXEC);
	if (sb->exit < 0 || epoll_ctl(sb->exit, EPOLL_CTL_ADD, sb->sock, &in) < 0 ||
	    epoll_ctl(sb->exit, EPOLL_CTL_ADD, sb->pidfd, &in) < 0)
		return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, errno, "cannot watch the sandbox");
	return 0;
}

/* What only the outside can do for a new init, and then: go. */
static int admit(struct ns_sandbox *sb, const struct ends *d, bool in_v2, enum ns_stage *stage,
		 struct sbx_error *e)
{
	struct ns_order go = { .op = NS_OP_GO };
	struct iovec iov = { .iov_base = &go, .iov_len = sizeof(go) };
	sbx_autoclose int proc = -1;
	char path[32];
	int r;

	(void)snprintf(path, sizeof(path), "/proc/%ld", (long)sb->pid);
	proc = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	*stage = NS_STAGE_USER;
	r = map_ids(sb, proc, e);
	if (r == 0)
		r = own_pipes(sb, d, e);
	if (r < 0)
		return r;
	*stage = NS_STAGE_CGROUP;
	r = sb->leaf ? cg_leaf_join(sb->leaf, sb->pid, in_v2, e) : 0;
	if (r < 0)
		return r;
	/* When memory is short the kernel shall choose the command, which inherits this, before
	 * init and before anything else of the host. Init gets its own back in start(). */
	(void)sbx_write_file(proc, "oom_score_adj", "500");
	sb->score = openat(proc, "oom_score_adj", O_WRONLY | O_CLOEXEC);
	*stage = NS_STAGE_MOUNT;
	sb->mnt = openat(proc, "ns/mnt", O_RDONLY | O_CLOEXEC);
	if (sb->mnt < 0)
		return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, errno,
				      "cannot hold the mount namespace");
	if (!sb->net) {
		/* Later, when init is protected, an ordinary user could not. */
		sb->netns = openat(proc, "ns/net", O_RDONLY | O_CLOEXEC);
		sb->userns = openat(proc, "ns/user", O_RDONLY | O_CLOEXEC);
	}
	*stage = NS_STAGE_OTHER;
	r = ns_send(sb->sock, &iov, 1, -1);
	if (r < 0)
		return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, -r, "cannot speak to the sandbox");
	return 0;
}

/* ---- sources --------------------------------------------------------------------------------- */

/* What is ready to be used; nothing for an ordinary user, whose init makes it all itself. */
static int find_parts(struct ns_sandbox *sb, const char *image, int *template, enum ns_stage *stage,
		      struct sbx_error *e)
{
	struct stat st;
	int r;

	*stage = NS_STAGE_IMAGE;
	if (image) {
		if (stat(image, &st) < 0 || !S_ISDIR(st.st_mode))
			return sbx_fail(e, SBX_E_IMAGE_NOT_FOUND,
					"the image's directory is not there");
		sb->image = strdup(image);
		if (!sb->image)
			return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a sandbox");
	}
	if (!sb->own_ids)
		return 0;
	r = ns_template_get(sb->host, image, template, stage, e);
	if (r < 0)
		return r;
	*stage = NS_STAGE_OTHER;
	return ns_net_take(&sb->net, e);
}

/* Where the directory of a descriptor is now, for an init that has to open it by name. */
static int name_workspace(int fd, struct ns_config *c, char path[SBX_PATH_MAX + 1],
			  struct sbx_error *e)
{
	char link[40];
	struct stat st;
	ssize_t n;

	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, SBX_PATH_MAX);
	if (n <= 0 || fstat(fd, &st) < 0)
		return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, errno, "cannot find the workspace");
	path[n] = '\0';
	c->workspace = path;
	c->workspace_dev = st.st_dev;
	c->workspace_ino = st.st_ino;
	return 0;
}

static void keep_ends(struct ns_sandbox *sb, struct ends *d)
{
	sb->sock = sbx_steal_fd(&d->sock[0]);
	sb->command = sbx_steal_fd(&d->command[0]);
	sb->in = sbx_steal_fd(&d->in[1]);
	sb->out = sbx_steal_fd(&d->out[0]);
	sb->err = sbx_steal_fd(&d->err[0]);
}

static int configure(struct ns_sandbox *sb, struct ns_config *c, const struct ends *d,
		     enum ns_stage *stage, struct sbx_error *e)
{
	*stage = NS_STAGE_SECCOMP;
	c->host = sb->host;
	c->image = sb->image;
	c->own_ids = sb->own_ids;
	c->has_net = sb->net;
	c->landlock = sb->host->landlock;
	c->sock = d->sock[1];
	c->command_sock = d->command[1];
	c->in = d->in[0];
	c->out = d->out[1];
	c->err = d->err[1];
	return ns_filter_get(&c->filter, &c->n_filter, e);
}

int ns_build(struct ns_sandbox *sb, const char *image, int workspace_fd, enum ns_stage *stage,
	     struct sbx_error *e)
{
	__attribute__((cleanup(endsp))) struct ends d;
	char workspace[SBX_PATH_MAX + 1];
	struct ns_config c = { 0 };
	bool in_v2 = false;
	int template = -1;
	int r = make_ends(&d, e);

	*stage = NS_STAGE_OTHER;
	if (r == 0)
		r = find_parts(sb, image, &template, stage, e);
	c.has_base = template >= 0;
	if (r == 0)
		r = configure(sb, &c, &d, stage, e);
	c.workspace_ro = sb->bind_ro;
	if (r == 0 && workspace_fd >= 0)
		r = name_workspace(workspace_fd, &c, workspace, e);
	if (r == 0) {
		*stage = NS_STAGE_USER;
		r = clone_init(sb, &c, template, &in_v2, e);
	}
	if (r == 0) {
		keep_ends(sb, &d);
		r = watch(sb, e);
	}
	if (r == 0)
		r = admit(sb, &d, in_v2, stage, e);
	endsp(&d); /* or the end of the child could not be seen */
	if (r == 0)
		r = ns_await(sb->sock, &sb->workspace, stage, SBX_E_RUNTIME_ERROR, e);
	if (r == 0)
		r = ns_await(sb->command, NULL, stage, SBX_E_RUNTIME_ERROR, e);
	if (r == 0 && sb->leaf)
		cg_leaf_mark(sb->leaf);
	sb->has_bound = workspace_fd >= 0;
	if (r < 0)
		ns_teardown(sb);
	return r;
}

void ns_teardown(struct ns_sandbox *sb)
{
	int *fds[] = { &sb->pidfd, &sb->sock, &sb->command,   &sb->exit, &sb->score, &sb->in,
		       &sb->out,   &sb->err,  &sb->workspace, &sb->mnt,	 &sb->netns, &sb->userns };

	if (sb->pid > 0 && !sb->gone) {
		(void)syscall(SYS_pidfd_send_signal, sb->pidfd, SIGKILL, NULL, 0);
		while (waitpid(sb->pid, NULL, __WALL) < 0 && errno == EINTR)
			;
	}
	sb->pid = 0;
	sb->gone = false;
	(void)egress_close(sbx_steal(&sb->egress));
	sb->fitted = false;
	ns_net_give_back(sbx_steal(&sb->net));
	for (size_t i = 0; i < SBX_COUNT(fds); i++)
		sbx_closep(fds[i]);
	free(sbx_steal(&sb->image));
}
