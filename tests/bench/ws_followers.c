/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many followers of one run: opens N sockets on a stream, says "go" once all are open, reads each
 * to its end, and prints one line of JSON. Every socket must be sent the same bytes; a delay is
 * counted from the time in a frame (when the runner wrote it) to the moment when the bytes were
 * received, for the oldest frame of every portion.
 *
 *   ws_followers PORT PATH TOKEN N
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PORTION = 256 << 10, SEEN_MAX = 64 << 20, DELAYS_MAX = 4 << 20, HEAD_MAX = 4096 };

struct follower {
	int fd;
	size_t at; /* bytes of the stream so far */
};

static struct {
	char *bytes; /* what the stream is, by who saw it first */
	size_t len;
	int32_t *delays_us;
	size_t n_delays, different, portions;
} seen;

static void die(const char *what)
{
	fprintf(stderr, "ws_followers: %s: %s\n", what, strerror(errno));
	exit(1);
}

static double now(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_REALTIME, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* The first time in these bytes, as seconds since 1970; 0: there is none. */
static double first_time(const char *data, size_t len)
{
	static const char mark[] = "\"ts\":\"2";
	const char *p = memmem(data, len, mark, sizeof(mark) - 1);
	struct tm tm = { 0 };
	char text[32], *rest;

	if (!p || len - (size_t)(p - data) < 6 + 27)
		return 0;
	memcpy(text, p + 6, 27);
	text[27] = '\0';
	rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
	return rest ? (double)timegm(&tm) + strtod(rest, NULL) : 0;
}

/* ---- one socket ------------------------------------------------------------------------------ */

static void take(struct follower *f, const char *data, size_t len)
{
	double t = first_time(data, len);
	size_t known = seen.len > f->at ? seen.len - f->at : 0;

	if (known > len)
		known = len;
	if (f->at + len > SEEN_MAX || memcmp(seen.bytes + f->at, data, known) != 0)
		seen.different++;
	else if (known < len) {
		memcpy(seen.bytes + f->at + known, data + known, len - known);
		seen.len = f->at + len;
	}
	f->at += len;
	seen.portions++;
	if (t > 0 && seen.n_delays < DELAYS_MAX)
		seen.delays_us[seen.n_delays++] = (int32_t)((now() - t) * 1e6);
}

static void follow(struct follower *f, int port, const char *path, const char *token)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	char head[HEAD_MAX], *end = NULL;
	size_t n = 0;
	int len = snprintf(head, sizeof(head),
			   "GET %s HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
			   "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
			   "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
			   "Authorization: Bearer %s\r\n\r\n",
			   path, token);

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	f->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (f->fd < 0 || connect(f->fd, (struct sockaddr *)&to, sizeof(to)) < 0 ||
	    write(f->fd, head, (size_t)len) != len)
		die("connect");
	while (!end) {
		ssize_t got = recv(f->fd, head + n, sizeof(head) - 1 - n, 0);

		if (got <= 0)
			die("handshake");
		n += (size_t)got;
		head[n] = '\0';
		end = strstr(head, "\r\n\r\n");
	}
	if (strncmp(head, "HTTP/1.1 101", 12) != 0)
		die(head);
	end += 4;
	if (end < head + n)
		take(f, end, (size_t)(head + n - end));
}

/* The masked text frame {"type":"stdin","data":"go\n"}; a key of zeroes leaves it readable. */
static void say_go(int fd)
{
	static const char text[] = "{\"type\":\"stdin\",\"data\":\"go\\n\"}";
	char frame[6 + sizeof(text)] = { (char)0x81, (char)(0x80 | (sizeof(text) - 1)) };

	memcpy(frame + 6, text, sizeof(text) - 1);
	if (write(fd, frame, 6 + sizeof(text) - 1) < 0)
		die("write");
}

/* ---- all of them ----------------------------------------------------------------------------- */

static void read_all(struct follower *all, size_t n)
{
	static char portion[PORTION];
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	size_t left = n;

	for (size_t i = 0; i < n; i++) {
		struct epoll_event ev = { .events = EPOLLIN, .data.ptr = &all[i] };

		if (epoll_ctl(epoll, EPOLL_CTL_ADD, all[i].fd, &ev) < 0)
			die("epoll");
	}
	while (left > 0) {
		struct epoll_event ev[256];
		int k = epoll_wait(epoll, ev, 256, -1);

		for (int i = 0; i < k; i++) {
			struct follower *f = ev[i].data.ptr;
			ssize_t got = recv(f->fd, portion, sizeof(portion), MSG_DONTWAIT);

			if (got > 0) {
				take(f, portion, (size_t)got);
			} else if (got == 0 || errno != EAGAIN) {
				(void)close(f->fd);
				left--;
			}
		}
	}
	(void)close(epoll);
}

static int by_size(const void *a, const void *b)
{
	return *(const int32_t *)a < *(const int32_t *)b
		       ? -1
		       : *(const int32_t *)a > *(const int32_t *)b;
}

static double percentile(double q)
{
	size_t i = (size_t)((double)seen.n_delays * q);

	if (!seen.n_delays)
		return 0;
	return seen.delays_us[i < seen.n_delays ? i : seen.n_delays - 1] / 1000.0;
}

int main(int argc, char **argv)
{
	size_t n = argc == 5 ? (size_t)atol(argv[4]) : 0, short_ones = 0;
	struct follower *all = calloc(n ? n : 1, sizeof(*all));
	struct rlimit most = { 65536, 65536 };
	double began;

	seen.bytes = malloc(SEEN_MAX);
	seen.delays_us = malloc(DELAYS_MAX * sizeof(*seen.delays_us));
	if (n == 0 || !all || !seen.bytes || !seen.delays_us) {
		fprintf(stderr, "usage: ws_followers PORT PATH TOKEN N\n");
		return 2;
	}
	if (setrlimit(RLIMIT_NOFILE, &most) < 0) {
		(void)getrlimit(RLIMIT_NOFILE, &most);
		most.rlim_cur = most.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &most);
	}
	for (size_t i = 0; i < n; i++)
		follow(&all[i], atoi(argv[1]), argv[2], argv[3]);
	began = now();
	say_go(all[0].fd);
	read_all(all, n);
	for (size_t i = 0; i < n; i++)
		short_ones += all[i].at != seen.len;
	qsort(seen.delays_us, seen.n_delays, sizeof(*seen.delays_us), by_size);
	printf("{\"sockets\":%zu,\"bytes\":%zu,\"short\":%zu,\"different\":%zu,\"portions\":%zu,"
	       "\"seconds\":%.3f,\"p50_ms\":%.2f,\"p90_ms\":%.2f,\"p99_ms\":%.2f,\"max_ms\":%.2f}"
	       "\n",
	       n, seen.len, short_ones, seen.different, seen.portions, now() - began,
	       percentile(0.5), percentile(0.9), percentile(0.99), percentile(1));
	free(all);
	free(seen.bytes);
	free(seen.delays_us);
	return short_ones || seen.different;
}
