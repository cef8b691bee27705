/* SPDX-License-Identifier: Apache-2.0 */
/* Runner: with process 1 of the container. */
#include "runtimes/docker/dk_i.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <json-c/json.h>

#include "base/auto.h"
#include "base/clock.h"
#include "base/fs.h"
#include "runtimes/filter_i.h"
#include "runtimes/waiting_i.h"

/* ---- messages -------------------------------------------------------------------------------- */

static bool send_with(int sock, const struct dk_msg *m, const int *fds, size_t n)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(DK_FILL__FDS * sizeof(int))];
	} control = { 0 };
	struct iovec iov = { .iov_len = sizeof(*m) };
	struct msghdr h = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t sent;

	memcpy(&iov.iov_base, &m, sizeof(m)); /* it is only read */
	if (n) {
		h.msg_control = control.bytes;
		h.msg_controllen = CMSG_SPACE(n * sizeof(int));
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(n * sizeof(int));
		memcpy(CMSG_DATA(&control.align), fds, n * sizeof(int));
	}
	do {
		sent = sendmsg(sock, &h, MSG_NOSIGNAL | MSG_DONTWAIT);
	} while (sent < 0 && errno == EINTR);
	return sent == (ssize_t)sizeof(*m);
}

bool dk_tell(struct dk_sandbox *sb, const struct dk_msg *m)
{
	return send_with(sb->sock, m, NULL, 0);
}

static int receive(int sock, struct dk_msg *m, int *ret_fd)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = { .iov_base = m, .iov_len = sizeof(*m) };
	struct msghdr h = { .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = control.bytes,
			    .msg_controllen = sizeof(control.bytes) };
	ssize_t n = recvmsg(sock, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&h) : NULL;
	int fd = -1;

	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
		memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	if (ret_fd)
		*ret_fd = fd;
	else
		sbx_closep(&fd);
	m->text[sizeof(m->text) - 1] = '\0';
	return n == (ssize_t)sizeof(*m) ? 0 : -1;
}

static int await(struct dk_sandbox *sb, struct dk_msg *m, int *ret_fd, int64_t limit_ms,
		 struct sbx_error *e)
{
	struct pollfd p = { .fd = sb->sock, .events = POLLIN };
	int r = rt_wait(sb->host->waiting, &p, 1, sbx_boot_us() + limit_ms * 1000, true);

	if (r == -SBX_E_INTERRUPTED)
		return sbx_fail(e, SBX_E_INTERRUPTED, "given up while the container was prepared");
	if (r == 0)
		return sbx_fail(e, SBX_E_RUNTIME_ERROR,
				"process 1 of the container did not answer within %lld s",
				(long long)(limit_ms / 1000));
	if (r < 0 || receive(sb->sock, m, ret_fd) < 0)
		return sbx_fail(e, SBX_E_RUNTIME_ERROR,
				"the container ended while it was prepared");
	return 0;
}

int dk_await(struct dk_sandbox *sb, struct dk_msg *ret, int64_t limit_ms, struct sbx_error *e)
{
	return await(sb, ret, NULL, limit_ms, e);
}

/* ---- hello ----------------------------------------------------------------------------------- */

/* The container has ended without a word, as the engine says. */
static int ended_early(struct dk_sandbox *sb, struct sbx_error *e)
{
	dk_autoanswer a = DK_ANSWER_INIT;
	struct json_object *o, *status = NULL;
	int r = dk_take(&a, e);

	if (r == 0)
		return 0;
	if (r < 0)
		return r;
	if (a.status != 200)
		return dk_refused(sb->host, &a, SBX_E_RUNTIME_ERROR, e, "watch the container");
	o = dk_answer_json(&a);
	(void)json_object_object_get_ex(o, "StatusCode", &status);
	r = json_object_get_int(status);
	json_object_put(o);
	return sbx_fail(e, SBX_E_RUNTIME_ERROR,
			"the container ended before it had begun, with status %d: process 1 must "
			"be able to reach the runner",
			r);
}

static int await_caller(struct dk_sandbox *sb, struct sbx_error *e)
{
	int64_t until = sbx_boot_us() + DK_HELLO_MS * INT64_C(1000);

	for (;;) {
		struct pollfd p[] = { { .fd = sb->place.listener, .events = POLLIN },
				      { .fd = dk_engine_fd(), .events = POLLIN } };
		int r = rt_wait(sb->host->waiting, p, SBX_COUNT(p), until, true);

		if (r == -SBX_E_INTERRUPTED)
			return sbx_fail(e, SBX_E_INTERRUPTED,
					"given up while the container started");
		if (r <= 0)
			return sbx_fail(e, SBX_E_RUNTIME_ERROR,
					"the container was started, and its process 1 was not "
					"heard of within %d s",
					DK_HELLO_MS / 1000);
		if (p[0].revents) {
			sb->sock = accept4(sb->place.listener, NULL, NULL,
					   SOCK_CLOEXEC | SOCK_NONBLOCK);
			if (sb->sock >= 0)
				return 0;
		}
		r = p[1].revents ? ended_early(sb, e) : 0;
		if (r < 0)
			return r;
	}
}

/* Its process is the only one that has the other end. */
static bool is_connected(int sock)
{
	struct pollfd p = { .fd = sock, .events = POLLRDHUP };

	return poll(&p, 1, 0) == 0;
}

/* Who is it, on this host? Its end tells the end of everything inside. Whoever is still connected
 * when its number has been looked up has not lost it to another process. */
static int know_caller(struct dk_sandbox *sb, struct sbx_error *e)
{
	struct ucred peer = { 0 };
	socklen_t len = sizeof(peer);

	if (getsockopt(sb->sock, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && peer.pid > 0) {
		sb->pid = peer.pid;
		sb->pidfd = (int)syscall(SYS_pidfd_open, peer.pid, 0);
	}
	if (sb->pidfd >= 0 && !is_connected(sb->sock)) {
		sbx_closep(&sb->pidfd);
		return sbx_fail(e, SBX_E_RUNTIME_ERROR,
				"the container ended while it was prepared");
	}
	if (sb->pidfd < 0)
		return sbx_fail(e, SBX_E_RUNTIME_ERROR,
				"the container is not on this host, or in another namespace of "
				"processes");
	cg_watch_open(&sb->watch, sb->pid);
	return 0;
}

static int watch_end(struct dk_sandbox *sb, struct sbx_error *e)
{
	struct epoll_event talk = { .events = EPOLLIN, .data.fd = sb->sock };
	struct epoll_event death = { .events = EPOLLIN, .data.fd = sb->pidfd };

	sb->exit = epoll_create1(EPOLL_CLOEXEC);
	if (sb->exit < 0 || epoll_ctl(sb->exit, EPOLL_CTL_ADD, sb->sock, &talk) < 0 ||
	    epoll_ctl(sb->exit, EPOLL_CTL_ADD, sb->pidfd, &death) < 0)
		return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, errno, "cannot watch the container");
	return 0;
}

int dk_hello(struct dk_sandbox *sb, struct sbx_error *e)
{
	struct dk_msg m;
	struct stat st;
	int r = await_caller(sb, e);

	dk_place_shut(&sb->place);
	if (r == 0)
		r = know_caller(sb, e);
	if (r == 0)
		r = await(sb, &m, &sb->workspace, DK_HELLO_MS, e);
	if (r < 0)
		return r;
	if (m.op != DK_HELLO || sb->workspace < 0 || fstat(sb->workspace, &st) < 0 ||
	    !S_ISDIR(st.st_mode))
		return sbx_fail(e, SBX_E_RUNTIME_ERROR, "process 1 of the container is not ours");
	return watch_end(sb, e);
}

/* ---- filling --------------------------------------------------------------------------------- */

static size_t name_length(const char *variable)
{
	return strcspn(variable, "=");
}

/* What says who and where the command is stays ours, whatever the image says. */
static bool is_ours(const char *variable)
{
	static const char *const ours[] = { "HOME", "USER", "PWD" };

	for (size_t i = 0; i < SBX_COUNT(ours); i++)
		if (strlen(ours[i]) == name_length(variable) &&
		    strncmp(ours[i], variable, strlen(ours[i])) == 0)
			return true;
	return false;
}

static bool same_name(const char *a, const char *b)
{
	return name_length(a) == name_length(b) && strncmp(a, b, name_length(a)) == 0;
}

static bool plan_sets(const struct rt_plan *p, const char *variable)
{
	for (size_t i = p->n_env_defaults; p->envp && p->envp[i]; i++)
		if (same_name(p->envp[i], variable))
			return true;
	return false;
}

static struct json_object *image_env(const struct dk_sandbox *sb)
{
	struct json_object *env = NULL;

	return json_object_object_get_ex(sb->image.config, "Env", &env) &&
			       json_object_is_type(env, json_type_array)
		       ? env
		       : NULL;
}

static bool image_sets(struct json_object *env, const char *variable)
{
	for (size_t i = 0; env && i < json_object_array_length(env); i++) {
		const char *v = json_object_get_string(json_object_array_get_idx(env, i));

		if (v && same_name(v, variable))
			return true;
	}
	return false;
}

static void add(struct sbx_buf *text, const char *s, uint32_t *count)
{
	sbx_buf_add(text, s, strlen(s) + 1);
	(*count)++;
}

/* Ours, below the image's, below the document's. */
static void add_env(const struct dk_sandbox *sb, const struct rt_plan *p, struct sbx_buf *text,
		    uint32_t *count)
{
	struct json_object *env = image_env(sb);

	for (size_t i = 0; i < p->n_env_defaults; i++)
		if (is_ours(p->envp[i]) || !image_sets(env, p->envp[i]))
			add(text, p->envp[i], count);
	for (size_t i = 0; env && i < json_object_array_length(env); i++) {
		const char *v = json_object_get_string(json_object_array_get_idx(env, i));

		if (v && v[name_length(v)] == '=' && !is_ours(v) && !plan_sets(p, v))
			add(text, v, count);
	}
	for (size_t i = p->n_env_defaults; p->envp && p->envp[i]; i++)
		add(text, p->envp[i], count);
}

static int write_files(int fd, const struct rt_plan *p)
{
	int r = 0;

	for (size_t i = 0; i < p->n_files && r == 0; i++) {
		const struct rt_file *f = &p->files[i];
		struct dk_file head = { .size = f->len,
					.path_size = (uint32_t)strlen(f->path) + 1,
					.mode = f->mode };

		r = sbx_write_all(fd, &head, sizeof(head));
		if (r == 0)
			r = sbx_write_all(fd, f->path, head.path_size);
		if (r == 0)
			r = sbx_write_all(fd, f->data, f->len);
	}
	return r;
}

/* Everything about the command in a file in memory. */
static int write_plan(const struct dk_sandbox *sb, const struct rt_plan *p, int *ret,
		      struct sbx_error *e)
{
	enum { TEXT_MAX = 16 << 20 };
	sbx_autoclose int fd = memfd_create("plan", MFD_CLOEXEC);
	sbx_autobuf text = SBX_BUF_INIT(TEXT_MAX);
	struct dk_fill head = { .n_files = (uint32_t)p->n_files,
				.stdin_open = p->stdin_open,
				.nofile = (uint64_t)p->limits.nofile };
	const struct sock_filter *filter = NULL;
	size_t n_filter = 0;
	int r;

	/* The operator's profile is all of the filter; the engine's own leaves doors open that are
	 * not of the network namespace (AF_VSOCK), and much of the kernel. */
	r = dk_settings(sb->host)->seccomp ? 0 : ns_filter_get(&filter, &n_filter, e);
	if (r < 0)
		return r;
	head.n_filter = (uint32_t)n_filter;
	sbx_buf_add(&text, p->cwd, strlen(p->cwd) + 1);
	for (char *const *a = p->argv; *a; a++)
		add(&text, *a, &head.argc);
	add_env(sb, p, &text, &head.envc);
	if (sbx_buf_failed(&text))
		return sbx_fail(e, SBX_E_RUNTIME_ERROR,
				"the arguments and the environment are larger than %d bytes",
				TEXT_MAX);
	head.text_size = text.len;
	r = fd < 0 ? -errno : sbx_write_all(fd, &head, sizeof(head));
	if (r == 0)
		r = sbx_write_all(fd, filter, n_filter * sizeof(*filter));
	if (r == 0)
		r = sbx_write_all(fd, text.data, text.len);
	if (r == 0)
		r = write_files(fd, p);
	if (r < 0)
		return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, -r, "cannot write down the plan");
	*ret = sbx_steal_fd(&fd);
	return 0;
}

/* *ours does not block; *theirs may be opened again by whoever the command is (/dev/stdout). */
static int make_pipe(int *ours, int *theirs, bool we_read)
{
	int p[2];

	if (pipe2(p, O_CLOEXEC) < 0)
		return -errno;
	*ours = p[we_read ? 0 : 1];
	*theirs = p[we_read ? 1 : 0];
	return fchmod(*theirs, 0666) < 0 || fcntl(*ours, F_SETFL, O_NONBLOCK) < 0 ? -errno : 0;
}

static int send_plan(struct dk_sandbox *sb, const struct rt_plan *p, int fds[DK_FILL__FDS],
		     struct sbx_error *e)
{
	struct dk_msg m = { .op = DK_FILL };
	int r = write_plan(sb, p, &fds[DK_FILL_TEXT], e);

	if (r < 0)
		return r;
	r = make_pipe(&sb->in, &fds[DK_FILL_IN], false);
	if (r == 0)
		r = make_pipe(&sb->out, &fds[DK_FILL_OUT], true);
	if (r == 0)
		r = make_pipe(&sb->err, &fds[DK_FILL_ERR], true);
	if (r < 0)
		return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, -r, "cannot make the pipes");
	/* A failure to send is a dead process 1; its answer, or the lack of one, says more. */
	(void)send_with(sb->sock, &m, fds, DK_FILL__FDS);
	return 0;
}

/* Files that do not fit are the caller's doing and have a code of their own. */
static int await_filled(struct dk_sandbox *sb, struct sbx_error *e)
{
	bool oom = false, pids;
	struct dk_msg m;
	int r = await(sb, &m, NULL, DK_FILL_MS, e);

	if (r == -SBX_E_RUNTIME_ERROR && cg_watch_events(&sb->watch, &oom, &pids) && oom)
		return sbx_fail(e, SBX_E_WORKSPACE_CAP,
				"the files do not fit into the sandbox's memory limit");
	if (r < 0 || m.err == 0)
		return r;
	if (m.err == ENOSPC || m.err == EDQUOT)
		return sbx_fail(e, SBX_E_WORKSPACE_CAP, "%s: the workspace is full", m.text);
	return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, m.err, "%s", m.text);
}

int dk_fill(struct dk_sandbox *sb, const struct rt_plan *p, struct sbx_error *e)
{
	int fds[DK_FILL__FDS] = { -1, -1, -1, -1 };
	int r = send_plan(sb, p, fds, e);

	for (int i = 0; i < DK_FILL__FDS; i++)
		sbx_closep(&fds[i]);
	return r < 0 ? r : await_filled(sb, e);
}
