/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections: where they come in, how many there may be, and how long each may take for what it
 * does. libmicrohttpd knows one listening socket and one time limit, for silence; we have several
 * sockets, and a client that sends a byte now and then must not hold a connection for ever.
 * Each stage of a connection has one time limit, so that the list of those in it is sorted by
 * deadline all by itself, and the acceptor sleeps until the first of the first.
 */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "apid/apid_i.h"
#include "base/clock.h"
#include "base/log.h"

enum {
	REFUSED_MAX = 256, /* that are given a second to read why */
	REFUSED_SECONDS = 1,
	ACCEPTS_A_TURN = 64,
	LOCAL_EXTRA = 16, /* connections over the Unix socket beyond the limit */
	CROWD = 64,	  /* connections at one time whose memory is worth a walk of the heap */
	PAUSE_MS = 20,	  /* when the system has no room for another one */
	STAGES = CONN_REFUSED + 1,
};

struct conn {
	struct conn *next, **at; /* in the list of its stage */
	int fd;			 /* libmicrohttpd's; ours in stage CONN_REFUSED */
	int64_t deadline_us;	 /* boot clock */
	enum conn_stage stage;
	struct req *request; /* from its target to its end; the thread's of the connection */
};

struct list {
	struct conn *first, **last;
};

struct conns {
	struct apid *a;
	/* As the service began: a list is sorted only as long as its limit is one. */
	int64_t limits[STAGES], most;
	struct listeners in; /* owned */
	pthread_t thread;
	bool started;
	int epoll, wake, spare; /* owned; spare: a descriptor to give up when there are no more */
	atomic_bool stop;
	char sink[64 << 10]; /* the acceptor's: what nobody wants */

	pthread_mutex_t lock; /* everything below */
	struct list stages[STAGES];
	int64_t count, refused;
	int64_t crowd;		 /* most connections at one time since memory was given back */
	int64_t sleeps_until_us; /* the acceptor */
};

/* ---- the lists, under the lock --------------------------------------------------------------- */

static void list_remove(struct conns *c, struct conn *one)
{
	*one->at = one->next;
	if (one->next)
		one->next->at = one->at;
	else
		c->stages[one->stage].last = one->at;
}

static void wake_acceptor(struct conns *c)
{
	uint64_t one = 1;

	if (write(c->wake, &one, sizeof(one)) < 0)
		sbx_log(SBX_LOG_ERROR, "cannot wake the acceptor");
}

/* The last of many goes: the acceptor gives back what they needed. */
static void one_less(struct conns *c)
{
	if (--c->count == 0 && c->crowd >= CROWD)
		wake_acceptor(c);
}

static void list_append(struct conns *c, struct conn *one, enum conn_stage stage)
{
	struct list *l = &c->stages[stage];
	int64_t limit = c->limits[stage];

	one->stage = stage;
	one->deadline_us = limit ? sbx_boot_us() + limit * SBX_SECOND_US : INT64_MAX;
	one->next = NULL;
	one->at = l->last;
	*l->last = one;
	l->last = &one->next;
	if (one->deadline_us < c->sleeps_until_us) {
		c->sleeps_until_us = one->deadline_us;
		wake_acceptor(c);
	}
}

/* Under the lock. Taken out of epoll by hand: the descriptor may be a copy, and a child between
 * fork and exec may hold it as well; then closing ours would not take it out. */
static void drained(struct conns *c, struct conn *one)
{
	list_remove(c, one);
	c->refused--;
	(void)epoll_ctl(c->epoll, EPOLL_CTL_DEL, one->fd, NULL);
	(void)close(one->fd);
	free(one);
}

/* libmicrohttpd closes a socket only after it has told us, so the number is still its own. */
static void end_late(struct conns *c, int64_t now)
{
	for (int s = 0; s < STAGES; s++) {
		struct conn *one;

		while ((one = c->stages[s].first) && one->deadline_us <= now) {
			if (s == CONN_REFUSED) {
				drained(c, one);
				continue;
			}
			list_remove(c, one);
			(void)shutdown(one->fd, SHUT_RDWR);
			list_append(c, one, CONN_ANSWER); /* until the end of it is reported */
		}
	}
}

static int64_t first_deadline(const struct conns *c)
{
	int64_t at = INT64_MAX;

	for (int s = 0; s < STAGES; s++)
		if (c->stages[s].first && c->stages[s].first->deadline_us < at)
			at = c->stages[s].first->deadline_us;
	return at;
}

/* ---- what others tell us --------------------------------------------------------------------- */

void conns_notify(void *apid, struct MHD_Connection *conn, void **socket_context,
		  enum MHD_ConnectionNotificationCode code)
{
	struct conns *c = ((struct apid *)apid)->conns;
	struct conn *one = *socket_context;

	if (code == MHD_CONNECTION_NOTIFY_STARTED) {
		const union MHD_ConnectionInfo *i =
			MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD);

		one = calloc(1, sizeof(*one));
		if (!one)
			return; /* it lives without limits of time */
		one->fd = i->connect_fd;
		pthread_mutex_lock(&c->lock);
		list_append(c, one, CONN_HEAD);
		pthread_mutex_unlock(&c->lock);
		*socket_context = one;
		return;
	}
	pthread_mutex_lock(&c->lock);
	one_less(c);
	if (one)
		list_remove(c, one);
	pthread_mutex_unlock(&c->lock);
	/* libmicrohttpd forgets a request whose arguments do not fit into its memory. */
	if (one && one->request)
		req_over(one->request);
	free(one);
	*socket_context = NULL;
}

void conns_stage(struct req *q, enum conn_stage stage)
{
	struct conns *c = q->a->conns;
	const union MHD_ConnectionInfo *i =
		MHD_get_connection_info(q->conn, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
	struct conn *one = i ? i->socket_context : NULL;

	if (!one)
		return;
	one->request = stage == CONN_IDLE ? NULL : q;
	pthread_mutex_lock(&c->lock);
	if (one->stage != stage || stage == CONN_BODY) {
		list_remove(c, one);
		list_append(c, one, stage);
	}
	pthread_mutex_unlock(&c->lock);
}

int64_t conns_count(struct conns *c)
{
	int64_t n;

	pthread_mutex_lock(&c->lock);
	n = c->count;
	pthread_mutex_unlock(&c->lock);
	return n;
}

/* ---- accepting ------------------------------------------------------------------------------- */

/* What a refused client still sends is read away for a moment: to close before it has stopped would
 * be a reset, which may reach it before the answer. Takes the socket over; any thread. */
static void drain(struct conns *c, int fd)
{
	struct conn *one = calloc(1, sizeof(*one));
	struct epoll_event ev = { .events = EPOLLIN | EPOLLRDHUP, .data.ptr = one };

	pthread_mutex_lock(&c->lock);
	if (one)
		one->fd = fd;
	if (!one || c->refused >= REFUSED_MAX || epoll_ctl(c->epoll, EPOLL_CTL_ADD, fd, &ev) < 0) {
		(void)close(fd);
		free(one);
	} else {
		c->refused++;
		list_append(c, one, CONN_REFUSED);
	}
	pthread_mutex_unlock(&c->lock);
}

/* One too many: it is told so, and may read that before it is closed. */
static void refuse(struct conns *c, int fd)
{
	static const char body[] =
		"{\"error\":{\"code\":\"too_many_connections\",\"message\":\"this service has all "
		"the connections it may have\",\"details\":{}}}\n";
	char text[512];
	int n;

	n = snprintf(text, sizeof(text),
		     "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\n"
		     "Connection: close\r\nContent-Type: application/json\r\n"
		     "Content-Length: %zu\r\n\r\n%s",
		     sizeof(body) - 1, body);
	(void)send(fd, text, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
	(void)shutdown(fd, SHUT_WR);
	atomic_fetch_add(&c->a->refused, 1);
	drain(c, fd);
}

void conns_linger(const struct req *q)
{
	int fd = fcntl(req_socket(q), F_DUPFD_CLOEXEC, 0);

	if (fd >= 0)
		drain(q->a->conns, fd);
}

/* Some of it at a time: who sends without end must not keep us from the others. */
static void refused_event(struct conns *c, struct conn *one)
{
	ssize_t n = recv(one->fd, c->sink, sizeof(c->sink), MSG_DONTWAIT);

	if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)))
		return;
	pthread_mutex_lock(&c->lock);
	drained(c, one);
	pthread_mutex_unlock(&c->lock);
}

/* No descriptor is left: the spare one takes the connection in, only to end it. */
static void shed(struct conns *c, int listener)
{
	int fd;

	sbx_closep(&c->spare);
	fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	sbx_closep(&fd);
	c->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void take(struct conns *c, const struct listener *l, int fd, struct sockaddr *addr,
		 socklen_t len)
{
	bool room;

	pthread_mutex_lock(&c->lock);
	/* A flood from the network must not lock out whoever is at the machine. */
	room = c->count < c->most + (l->tcp ? 0 : LOCAL_EXTRA);
	c->count += room;
	if (c->count > c->crowd)
		c->crowd = c->count;
	pthread_mutex_unlock(&c->lock);
	if (room)
		http_take(c->a->http, fd, l->tcp, addr, len);
	else if (l->tcp && orch_settings(c->a->orch)->api_tls_cert)
		(void)close(fd); /* plain text would only confuse it */
	else
		refuse(c, fd);
}

/* A few at a time, so that the clock and the others get their turn. False: the system has no room
 * for another connection now. */
static bool accept_some(struct conns *c, const struct listener *l)
{
	struct sockaddr_storage addr;

	for (int i = 0; i < ACCEPTS_A_TURN; i++) {
		socklen_t len = sizeof(addr);
		int fd = accept4(l->fd, (struct sockaddr *)&addr, &len,
				 SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd >= 0)
			take(c, l, fd, (struct sockaddr *)&addr, len);
		else if (errno == EMFILE || errno == ENFILE)
			shed(c, l->fd);
		else if (errno != EINTR && errno != ECONNABORTED)
			return errno == EAGAIN;
	}
	return c->spare >= 0;
}

void conns_lost(struct conns *c)
{
	pthread_mutex_lock(&c->lock);
	one_less(c);
	pthread_mutex_unlock(&c->lock);
}

/* How long to sleep, in milliseconds. */
static int look_at_time(struct conns *c)
{
	int64_t now = sbx_boot_us(), at;

	pthread_mutex_lock(&c->lock);
	end_late(c, now);
	at = first_deadline(c);
	c->sleeps_until_us = at;
	pthread_mutex_unlock(&c->lock);
	if (at == INT64_MAX)
		return -1;
	return at <= now ? 0 : (int)((at - now) / 1000 + 1);
}

/* What many connections needed lies below what is still in use, where free() leaves it: 2 MiB after
 * 200 at one time. */
static void give_back_memory(struct conns *c)
{
	bool empty;

	pthread_mutex_lock(&c->lock);
	empty = c->count == 0 && c->crowd >= CROWD;
	if (empty)
		c->crowd = 0;
	pthread_mutex_unlock(&c->lock);
	if (empty)
		(void)malloc_trim(0);
}

static void *acceptor(void *arg)
{
	struct conns *c = arg;
	struct pollfd wake = { .fd = c->wake, .events = POLLIN };
	struct epoll_event ev[64];

	while (!atomic_load(&c->stop)) {
		int n = epoll_wait(c->epoll, ev, SBX_COUNT(ev), look_at_time(c));

		for (int i = 0; i < n && !atomic_load(&c->stop); i++) {
			const char *p = ev[i].data.ptr;
			uint64_t count;

			if (p == (char *)&c->wake) {
				if (read(c->wake, &count, sizeof(count)) == sizeof(count))
					give_back_memory(c);
			} else if (p >= (char *)c->in.at && p < (char *)(c->in.at + c->in.n)) {
				if (!accept_some(c, ev[i].data.ptr))
					(void)poll(&wake, 1, PAUSE_MS);
			} else {
				refused_event(c, ev[i].data.ptr);
			}
		}
	}
	return NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Everything that comes in, in one set. */
static int watch_listeners(struct conns *c, struct sbx_error *e)
{
	for (size_t i = 0; i < c->in.n; i++) {
		struct epoll_event ev = { .events = EPOLLIN, .data.ptr = &c->in.at[i] };

		if (epoll_ctl(c->epoll, EPOLL_CTL_ADD, c->in.at[i].fd, &ev) < 0)
			return sbx_fail_errno(e, SBX_E_INTERNAL, errno,
					      "cannot watch the listening sockets");
	}
	return 0;
}

int conns_open(struct apid *a, struct conns **ret, struct sbx_error *e)
{
	const struct orch_settings *st = orch_settings(a->orch);
	struct conns *c = calloc(1, sizeof(*c));
	struct epoll_event ev = { .events = EPOLLIN };
	int rc;

	if (!c)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	*ret = c;
	c->a = a;
	c->sleeps_until_us = INT64_MAX;
	c->most = st->api_max_connections;
	/* The others have none: a handler has it, and silence is libmicrohttpd's to see. */
	c->limits[CONN_HEAD] = st->api_header_timeout_sec;
	c->limits[CONN_BODY] = st->api_body_timeout_sec;
	c->limits[CONN_IDLE] = st->api_idle_timeout_sec;
	c->limits[CONN_REFUSED] = REFUSED_SECONDS;
	pthread_mutex_init(&c->lock, NULL);
	for (int s = 0; s < STAGES; s++)
		c->stages[s].last = &c->stages[s].first;
	c->epoll = epoll_create1(EPOLL_CLOEXEC);
	c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	c->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
	ev.data.ptr = &c->wake;
	if (c->epoll < 0 || c->wake < 0 || epoll_ctl(c->epoll, EPOLL_CTL_ADD, c->wake, &ev) < 0)
		return sbx_fail_errno(e, SBX_E_INTERNAL, errno, "cannot set up the acceptor");
	rc = listen_open(a, &c->in, e);
	return rc < 0 ? rc : watch_listeners(c, e);
}

int conns_start(struct conns *c, struct sbx_error *e)
{
	int r = pthread_create(&c->thread, NULL, acceptor, c);

	c->started = r == 0;
	return r == 0 ? 0 : sbx_fail_errno(e, SBX_E_INTERNAL, r, "cannot start the acceptor");
}

void conns_stop(struct conns *c)
{
	uint64_t one = 1;

	if (!c || !c->started)
		return;
	atomic_store(&c->stop, true);
	if (write(c->wake, &one, sizeof(one)) == (ssize_t)sizeof(one))
		pthread_join(c->thread, NULL);
	c->started = false;
	listen_close(&c->in);
}

struct conns *conns_close(struct conns *c)
{
	if (!c)
		return NULL;
	while (c->stages[CONN_REFUSED].first)
		drained(c, c->stages[CONN_REFUSED].first);
	listen_close(&c->in);
	sbx_closep(&c->epoll);
	sbx_closep(&c->wake);
	sbx_closep(&c->spare);
	pthread_mutex_destroy(&c->lock);
	free(c);
	return NULL;
}
