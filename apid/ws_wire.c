/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How bytes get to the peer. Where the connection speaks TLS, libmicrohttpd stands in between with
 * a pair of sockets, and of 0.9.75 it passes on 4 bytes at a time: its buffers for an upgraded
 * connection are what the head of the answer has left of the connection's memory, which is nothing.
 * So it only receives for us; we send through the session ourselves, which GnuTLS allows while
 * another thread receives. Nothing else is ever sent on a connection that is upgraded.
 */
#include <gnutls/gnutls.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "apid/ws_i.h"

/* Few bytes wait in the kernel, small frames leave at once, a peer that has vanished is noticed.
 * On a Unix socket there is nothing to tune. */
static void tune(int fd)
{
	const struct {
		int level, name, value;
	} options[] = {
		{ IPPROTO_TCP, TCP_NODELAY, 1 },
		{ IPPROTO_TCP, TCP_NOTSENT_LOWAT, WS_PIECE },
		{ IPPROTO_TCP, TCP_USER_TIMEOUT, WS_STALL_SEC * 1000 },
		{ SOL_SOCKET, SO_KEEPALIVE, 1 },
	};

	for (size_t i = 0; i < SBX_COUNT(options); i++)
		(void)setsockopt(fd, options[i].level, options[i].name, &options[i].value,
				 sizeof(options[i].value));
}

int ws_wire_open(struct ws_socket *s)
{
	struct epoll_event in = { .events = EPOLLIN, .data.ptr = s };
	struct epoll_event wire = { .events = 0, .data.ptr = s };

	tune(s->wire);
	s->events = EPOLLIN;
	if (epoll_ctl(s->w->epoll, EPOLL_CTL_ADD, s->fd, &in) < 0)
		return -1;
	return s->tls ? epoll_ctl(s->w->epoll, EPOLL_CTL_ADD, s->wire, &wire) : 0;
}

void ws_wire_watch(struct ws_socket *s, bool in, bool out)
{
	uint32_t want = (in ? (uint32_t)EPOLLIN : 0u) | (out ? (uint32_t)EPOLLOUT : 0u);
	struct epoll_event ev = { .events = want, .data.ptr = s };

	if (want == s->events)
		return;
	if (s->tls) {
		ev.events = want & EPOLLOUT;
		(void)epoll_ctl(s->w->epoll, EPOLL_CTL_MOD, s->wire, &ev);
		ev.events = want & EPOLLIN;
	}
	s->events = want;
	(void)epoll_ctl(s->w->epoll, EPOLL_CTL_MOD, s->fd, &ev);
}

ssize_t ws_wire_send(struct ws_socket *s, const char *data, size_t len)
{
	ssize_t n;

	if (!s->tls) {
		n = send(s->fd, data, len, MSG_NOSIGNAL | MSG_DONTWAIT);
		return n >= 0 ? n : errno == EAGAIN || errno == EINTR ? 0 : -1;
	}
	/* A record that was begun goes out first, and tells then how much was in it. */
	n = s->tls_begun ? gnutls_record_send(s->tls, NULL, 0)
			 : gnutls_record_send(s->tls, data, len);
	s->tls_begun = n == GNUTLS_E_AGAIN || n == GNUTLS_E_INTERRUPTED;
	return s->tls_begun ? 0 : n > 0 ? n : -1;
}

void ws_wire_shut(struct ws_socket *s)
{
	if (s->tls)
		(void)gnutls_bye(s->tls, GNUTLS_SHUT_WR);
	else
		(void)shutdown(s->fd, SHUT_WR);
}

void ws_wire_close(struct ws_socket *s)
{
	(void)epoll_ctl(s->w->epoll, EPOLL_CTL_DEL, s->fd, NULL);
	if (s->tls) {
		(void)epoll_ctl(s->w->epoll, EPOLL_CTL_DEL, s->wire, NULL);
		/* libmicrohttpd would go on to wait for a peer that does not end by itself. */
		(void)shutdown(s->wire, SHUT_RDWR);
	}
	(void)MHD_upgrade_action(s->urh, MHD_UPGRADE_ACTION_CLOSE);
}
