/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between the processes of a sandbox. */
#include "runtimes/namespace/ns_i.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/auto.h"
#include "base/fs.h"

union fd_control {
	struct cmsghdr align;
	char bytes[CMSG_SPACE(sizeof(int))];
};

static void skip_sent(struct iovec **iov, size_t *n, size_t sent)
{
	while (*n && sent >= (*iov)->iov_len) {
		sent -= (*iov)->iov_len;
		(*iov)++;
		(*n)--;
	}
	if (*n) {
		(*iov)->iov_base = (char *)(*iov)->iov_base + sent;
		(*iov)->iov_len -= sent;
	}
}

int ns_send(int sock, struct iovec *iov, size_t n, int fd)
{
	union fd_control control = { 0 };

	skip_sent(&iov, &n, 0);
	while (n) {
		struct msghdr m = { .msg_iov = iov, .msg_iovlen = n };
		ssize_t sent;

		if (fd >= 0) {
			m.msg_control = control.bytes;
			m.msg_controllen = sizeof(control.bytes);
			control.align.cmsg_level = SOL_SOCKET;
			control.align.cmsg_type = SCM_RIGHTS;
			control.align.cmsg_len = CMSG_LEN(sizeof(fd));
			memcpy(CMSG_DATA(&control.align), &fd, sizeof(fd));
		}
		sent = sendmsg(sock, &m, MSG_NOSIGNAL);
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0)
			return -errno;
		fd = -1; /* it went with the first byte */
		skip_sent(&iov, &n, (size_t)sent);
	}
	return 0;
}

static void take_fd(struct msghdr *m, int *ret_fd)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		int fd;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		memcpy(&fd, CMSG_DATA(c), sizeof(fd));
		sbx_closep(ret_fd);
		*ret_fd = fd;
	}
}

int ns_recv(int sock, void *data, size_t len, int *ret_fd)
{
	union fd_control control;
	char *p = data;

	if (ret_fd)
		*ret_fd = -1;
	while (len) {
		struct iovec iov = { .iov_base = p, .iov_len = len };
		struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
		ssize_t n;

		if (ret_fd) {
			m.msg_control = control.bytes;
			m.msg_controllen = sizeof(control.bytes);
		}
		n = recvmsg(sock, &m, MSG_CMSG_CLOEXEC | MSG_WAITALL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EPIPE;
		if (ret_fd)
			take_fd(&m, ret_fd);
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

int ns_fail(struct ns_reply *r, enum ns_stage stage, int err, const char *fmt, ...)
{
	va_list ap;

	r->err = err ? err : EINVAL;
	r->stage = stage;
	va_start(ap, fmt);
	(void)vsnprintf(r->text, sizeof(r->text), fmt, ap);
	va_end(ap);
	return -1;
}

void ns_close_others(int *keep, size_t n)
{
	unsigned from = 3;

	for (size_t i = 1; i < n; i++) {
		for (size_t j = i; j > 0 && keep[j - 1] > keep[j]; j--) {
			int t = keep[j];

			keep[j] = keep[j - 1];
			keep[j - 1] = t;
		}
	}
	for (size_t i = 0; i < n; i++) {
		if (keep[i] < 3)
			continue;
		if ((unsigned)keep[i] > from)
			(void)close_range(from, (unsigned)keep[i] - 1, 0);
		from = (unsigned)keep[i] + 1;
	}
	sbx_close_from(from);
}
