/* SPDX-License-Identifier: Apache-2.0 */
/* Where connections come in: addresses and the Unix socket. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apid/apid_i.h"
#include "base/log.h"

enum { BACKLOG = 1024 };

static int add(struct listeners *l, int fd, bool tcp, const char *where, struct sbx_error *e)
{
	if (l->n == SBX_COUNT(l->at))
		return sbx_fail(e, SBX_E_INVALID_CONFIG, "api_listen: more than %zu addresses",
				SBX_COUNT(l->at) - 1);
	if (listen(fd, BACKLOG) < 0)
		return sbx_fail_errno(e, SBX_E_INVALID_CONFIG, errno, "cannot listen on %s", where);
	l->at[l->n++] = (struct listener){ .fd = fd, .tcp = tcp };
	return 0;
}

/* "ADDR:PORT" in two; brackets around an address with colons. */
static int split(char *where, char **host, char **port, struct sbx_error *e)
{
	char *colon = strrchr(where, ':');
	size_t n, digits = colon ? strspn(colon + 1, "0123456789") : 0;

	if (digits == 0 || digits > 5 || colon[1 + digits] || colon == where ||
	    strtol(colon + 1, NULL, 10) > 65535)
		return sbx_fail(e, SBX_E_INVALID_CONFIG,
				"api_listen: found '%s', allowed ADDRESS:PORT, [v6]:PORT or none",
				where);
	*colon = '\0';
	*port = colon + 1;
	*host = where;
	n = strlen(where);
	if (where[0] == '[' && where[n - 1] == ']') {
		where[n - 1] = '\0';
		(*host)++;
	}
	return 0;
}

static void say_where(int fd, bool tls)
{
	struct sockaddr_storage addr;
	socklen_t len = sizeof(addr);
	char host[64], port[16];

	if (getsockname(fd, (struct sockaddr *)&addr, &len) == 0 &&
	    getnameinfo((struct sockaddr *)&addr, len, host, sizeof(host), port, sizeof(port),
			NI_NUMERICHOST | NI_NUMERICSERV) == 0)
		sbx_log(SBX_LOG_INFO, "listening address=%s port=%s tls=%d", host, port, tls);
}

static int listen_tcp(struct listeners *l, char *where, bool tls, struct sbx_error *e)
{
	struct addrinfo hints = { .ai_flags = AI_PASSIVE | AI_NUMERICSERV | AI_ADDRCONFIG,
				  .ai_socktype = SOCK_STREAM };
	sbx_autofree char *shown = strdup(where);
	struct addrinfo *list = NULL;
	char *host = NULL, *port = NULL;
	int rc = split(where, &host, &port, e), one = 1;

	if (rc < 0 || !shown)
		return rc < 0 ? rc : sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	rc = getaddrinfo(host, port, &hints, &list);
	if (rc != 0)
		return sbx_fail(e, SBX_E_INVALID_CONFIG, "api_listen: '%s': %s", shown,
				gai_strerror(rc));
	rc = 0;
	for (struct addrinfo *i = list; i && rc == 0; i = i->ai_next) {
		int fd = socket(i->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

		if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
		    (i->ai_family == AF_INET6 &&
		     setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one)) < 0) ||
		    bind(fd, i->ai_addr, i->ai_addrlen) < 0)
			rc = sbx_fail_errno(e, SBX_E_INVALID_CONFIG, errno, "cannot listen on %s",
					    shown);
		else
			rc = add(l, fd, true, shown, e);
		if (rc < 0)
			sbx_closep(&fd);
		else
			say_where(fd, tls);
	}
	freeaddrinfo(list);
	return rc;
}

/* Makes room for our socket: what a dead service left goes, everything else stays. */
static int clear_path(const struct sockaddr_un *addr, struct sbx_error *e)
{
	sbx_autoclose int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct stat st;

	if (lstat(addr->sun_path, &st) < 0)
		return 0; /* bind says what else is wrong */
	if (!S_ISSOCK(st.st_mode))
		return sbx_fail(e, SBX_E_INVALID_CONFIG, "%s is there, and is not a socket",
				addr->sun_path);
	if (fd < 0 || connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) == 0 ||
	    errno != ECONNREFUSED)
		return sbx_fail(e, SBX_E_INVALID_CONFIG, "another service listens on %s",
				addr->sun_path);
	(void)unlink(addr->sun_path);
	return 0;
}

static int listen_unix(struct apid *a, struct listeners *l, struct sbx_error *e)
{
	const struct orch_settings *s = orch_settings(a->orch);
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int n = s->api_socket ? snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", s->api_socket)
			      : snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/api.sock",
					 store_dir(a->store));
	int fd, rc;

	if (n >= (int)sizeof(addr.sun_path)) {
		if (s->api_socket)
			return sbx_fail(e, SBX_E_INVALID_CONFIG,
					"api_socket: the path is longer than %zu bytes",
					sizeof(addr.sun_path) - 1);
		sbx_log(SBX_LOG_WARNING, "no Unix socket: the path of the state directory is too "
					 "long; give api_socket");
		return 0;
	}
	rc = clear_path(&addr, e);
	if (rc < 0)
		return rc;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	/* The service's umask lets nobody in until the mode is right. */
	if (fd < 0 || bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 ||
	    chmod(addr.sun_path, (mode_t)strtol(s->api_socket_mode, NULL, 8)) < 0) {
		rc = sbx_fail_errno(e, SBX_E_INVALID_CONFIG, errno, "cannot listen on %s",
				    addr.sun_path);
		sbx_closep(&fd);
		return rc;
	}
	memcpy(l->path, addr.sun_path, sizeof(l->path));
	sbx_log(SBX_LOG_INFO, "listening path=%s", addr.sun_path);
	rc = add(l, fd, false, addr.sun_path, e);
	if (rc < 0)
		sbx_closep(&fd);
	return rc;
}

int listen_open(struct apid *a, struct listeners *l, struct sbx_error *e)
{
	const struct orch_settings *s = orch_settings(a->orch);
	sbx_autofree char *list = strdup(s->api_listen);
	char *rest = list, *where;
	int rc = listen_unix(a, l, e);

	if (!list)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	while (rc == 0 && (where = strsep(&rest, ",")))
		if (strcmp(where, "none") != 0)
			rc = listen_tcp(l, where, s->api_tls_cert != NULL, e);
	return rc;
}

/* The name first: afterwards it may be a successor's. */
void listen_close(struct listeners *l)
{
	if (l->path[0])
		(void)unlink(l->path);
	l->path[0] = '\0';
	for (size_t i = 0; i < l->n; i++)
		sbx_closep(&l->at[i].fd);
}
