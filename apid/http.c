/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request, between libmicrohttpd and a handler: its head is judged as soon as it is there
 * (path, method, login, size), its body is collected, then the handler is called. The body of an
 * upload is handed on as it comes.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "apid/apid_i.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/id.h"
#include "base/log.h"

enum {
	POOL_BYTES = 32 << 10, /* of one connection: its headers and a piece of a body */
	SMALL_BODY = 64 << 10, /* read away after a refusal, so that the connection stays usable */
	DRAIN_MAX = 64 << 20,  /* of a body that is too large; then the connection is cut */
	PEM_MAX = 1 << 20,
};

/* libmicrohttpd's pool of threads works with a listening socket of its own only. So there are
 * several daemons of one thread each, and the acceptor deals connections out to them in turn. */
struct http {
	struct apid *a;
	struct MHD_Daemon **daemons; /* owned: n of them plain, then, with TLS, n that speak it */
	size_t n, n_all, next;	     /* next: the acceptor's alone */
	char *cert, *key;	     /* owned; PEM */
};

/* ---- what handlers ask of a request ---------------------------------------------------------- */

const char *req_header(const struct req *q, const char *name)
{
	return MHD_lookup_connection_value(q->conn, MHD_HEADER_KIND, name);
}

const char *req_query(const struct req *q, const char *name)
{
	return MHD_lookup_connection_value(q->conn, MHD_GET_ARGUMENT_KIND, name);
}

bool req_query_int(struct req *q, const char *name, int64_t def, int64_t least, int64_t most,
		   int64_t *ret, enum MHD_Result *ret_answer)
{
	const char *text = NULL;
	char message[160], *end;
	size_t len = 0;

	*ret = def;
	(void)MHD_lookup_connection_value_n(q->conn, MHD_GET_ARGUMENT_KIND, name, strlen(name),
					    &text, &len);
	if (!text)
		return true;
	errno = 0;
	*ret = strtoll(text, &end, 10);
	/* No space or sign in front, which strtoll passes over, and no NUL that it ends at. */
	if (((*text >= '0' && *text <= '9') || *text == '-') && end == text + len && errno == 0 &&
	    *ret >= least && *ret <= most)
		return true;
	(void)snprintf(message, sizeof(message), "%s: found '%.40s', allowed %lld to %lld", name,
		       text, (long long)least, (long long)most);
	*ret_answer = reply_invalid_query(q, name, message);
	return false;
}

/* ---- the head -------------------------------------------------------------------------------- */

static bool decent(const char *id)
{
	size_t n = strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");

	return n > 0 && n <= API_REQUEST_ID && !id[n];
}

/* A proxy may send the whole URL (RFC 9112, section 3.2.2): ours begins behind the authority. */
static const char *origin_form(const char *target)
{
	size_t scheme = strncasecmp(target, "http://", 7) == 0	  ? 7
			: strncasecmp(target, "https://", 8) == 0 ? 8
								  : 0;
	const char *path = scheme ? strchr(target + scheme, '/') : target;

	return path ? path : target;
}

static void *on_target(void *apid, const char *target, struct MHD_Connection *conn)
{
	struct req *q = calloc(1, sizeof(*q));

	if (!q)
		return NULL;
	q->a = apid;
	q->conn = conn;
	q->body = (struct sbx_buf)SBX_BUF_INIT(API_BODY_MAX);
	q->target = strdup(origin_form(target));
	q->path_len = q->target ? strcspn(q->target, "?") : 0;
	q->began_us = sbx_boot_us();
	atomic_fetch_add(&q->a->requests, 1);
	conns_stage(q, CONN_HEAD);
	return q;
}

static void give_id(struct req *q)
{
	const char *id = req_header(q, "X-Request-ID");

	if (id && decent(id))
		(void)snprintf(q->id, sizeof(q->id), "%s", id);
	else
		sbx_id_new(q->id);
}

static int log_in(struct req *q, struct sbx_error *e)
{
	struct credentials c = { .api_key = req_header(q, "X-API-KEY"),
				 .authorization = req_header(q, MHD_HTTP_HEADER_AUTHORIZATION),
				 .fd = req_socket(q) };
	int rc = auth_check(q->a->auth, &c, &q->who, e);

	if (rc == 0 && q->route->access == ROUTE_ADMIN && !q->who.admin)
		return sbx_fail(e, SBX_E_FORBIDDEN, "this needs the role admin");
	return rc;
}

int req_socket(const struct req *q)
{
	const union MHD_ConnectionInfo *i =
		MHD_get_connection_info(q->conn, MHD_CONNECTION_INFO_CONNECTION_FD);

	return i ? i->connect_fd : -1;
}

/* Does a body follow that is too much to be read only to be dropped? */
static bool has_long_body(const struct req *q)
{
	const char *length = req_header(q, MHD_HTTP_HEADER_CONTENT_LENGTH);

	if (req_header(q, MHD_HTTP_HEADER_TRANSFER_ENCODING) ||
	    req_header(q, MHD_HTTP_HEADER_EXPECT))
		return true;
	return length && strtoll(length, NULL, 10) > SMALL_BODY;
}

static bool is_too_long(const struct req *q)
{
	const char *length = req_header(q, MHD_HTTP_HEADER_CONTENT_LENGTH);

	return length && strtoll(length, NULL, 10) >= body_limit(q);
}

struct heading {
	int hosts, lengths, codings;
	bool odd_name, odd_coding;
};

/* libmicrohttpd glues a folded line to the name of a header that had no value before it. */
static bool is_longer(const char *name, const char *than)
{
	size_t n = strlen(than);

	return strncasecmp(name, than, n) == 0 && name[n];
}

static enum MHD_Result look_at_header(void *heading, enum MHD_ValueKind kind, const char *name,
				      const char *value)
{
	static const char token[] = "!#$%&'*+-.^_`|~0123456789"
				    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
	struct heading *h = heading;

	(void)kind;
	h->odd_name |= !*name || name[strspn(name, token)] ||
		       is_longer(name, MHD_HTTP_HEADER_CONTENT_LENGTH) ||
		       is_longer(name, MHD_HTTP_HEADER_TRANSFER_ENCODING);
	h->hosts += strcasecmp(name, MHD_HTTP_HEADER_HOST) == 0;
	h->lengths += strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0;
	if (strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0) {
		h->codings++;
		h->odd_coding |= !value || strcasecmp(value, "chunked") != 0;
	}
	return MHD_YES;
}

/* What would let a proxy and us see different requests in the same bytes (RFC 9112, sections 3.2,
 * 5.1 and 6); libmicrohttpd heeds the first of several headers and lets such names pass. */
static const char *framing_problem(const struct req *q, const char *version)
{
	struct heading h = { 0 };
	bool old = strcmp(version, MHD_HTTP_VERSION_1_0) == 0;

	(void)MHD_get_connection_values(q->conn, MHD_HEADER_KIND, look_at_header, &h);
	if (h.odd_name)
		return "the name of a header has a character that no name may have";
	if (h.hosts > 1 || (h.hosts == 0 && !old))
		return "there must be one Host header";
	if (h.lengths > 1)
		return "there is more than one Content-Length";
	if (h.codings > 1 || h.odd_coding)
		return "the only Transfer-Encoding that is understood is chunked";
	if (h.codings && (h.lengths || old))
		return "Transfer-Encoding is for HTTP/1.1 and for bodies without a Content-Length";
	return NULL;
}

static void too_large(struct req *q)
{
	sbx_fail(&q->why, SBX_E_SPEC_TOO_LARGE, "the body is longer than %lld bytes",
		 (long long)body_limit(q) - 1);
}

/* Everything that can be said against it before its body is read. */
static enum req_verdict judge(struct req *q, const char *version)
{
	q->hint = framing_problem(q, version);
	if (q->hint)
		return REQ_BAD_FRAMING;
	if (strlen(q->target) > API_TARGET_MAX)
		return REQ_LONG_TARGET;
	q->hint = route_guard(q->target, q->path_len);
	if (q->hint)
		return REQ_BAD_PATH;
	q->head = strcmp(q->method, MHD_HTTP_METHOD_HEAD) == 0;
	q->route = route_find(q, q->allow);
	if (!q->route)
		return REQ_NO_ROUTE;
	if ((q->route->access == ROUTE_USER || q->route->access == ROUTE_ADMIN) &&
	    log_in(q, &q->why) < 0)
		return REQ_ERROR;
	if (is_too_long(q)) {
		too_large(q);
		return REQ_ERROR;
	}
	return body_head(q, &q->why) < 0 ? REQ_ERROR : REQ_FINE;
}

static enum MHD_Result refuse(struct req *q)
{
	/* Where the next request would begin is anybody's guess. */
	const char *headers[] = { MHD_HTTP_HEADER_CONNECTION, "close", NULL };

	switch (q->verdict) {
	case REQ_BAD_FRAMING:
		return reply_refusal(q, MHD_HTTP_BAD_REQUEST, "bad_request", q->hint, NULL,
				     headers);
	case REQ_LONG_TARGET:
		return reply_refusal(q, MHD_HTTP_URI_TOO_LONG, "uri_too_long",
				     "the path and query are too long", NULL, NULL);
	case REQ_BAD_PATH:
		return reply_bad_path(q, q->hint);
	case REQ_NO_ROUTE:
		return reply_no_route(q, q->allow);
	default:
		return reply_error(q, &q->why);
	}
}

/* ---- the body, and the handler --------------------------------------------------------------- */

/* libmicrohttpd is told once when a client ends its side, and forgets it when there are bytes to
 * look at first. This tells it again; what it has read already is not lost. */
static void recall_end(const struct req *q)
{
	int fd = req_socket(q);
	char byte;

	if (recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
		(void)shutdown(fd, SHUT_RD);
}

/* libmicrohttpd takes no answer in the middle of a body. Where the socket is ours to write to, the
 * client is told in spite of that. */
static enum MHD_Result cut_off(struct req *q)
{
	sbx_autobuf body = SBX_BUF_INIT(64 << 10), told = SBX_BUF_INIT(64 << 10);

	if (q->verdict != REQ_ERROR) { /* it was refused for something else, and is too long */
		too_large(q);
		q->verdict = REQ_ERROR;
	}
	q->status = sbx_code_http(q->why.code);
	reply_error_document(q, &q->why, &body);
	sbx_buf_printf(&told,
		       "HTTP/1.1 %d %s\r\nConnection: close\r\n"
		       "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
		       q->status, MHD_get_reason_phrase_for((unsigned)q->status), body.len,
		       body.data ? body.data : "");
	if (!told.failed && !MHD_get_connection_info(q->conn, MHD_CONNECTION_INFO_GNUTLS_SESSION)) {
		conns_linger(q);
		(void)send(req_socket(q), told.data, told.len, MSG_DONTWAIT | MSG_NOSIGNAL);
		(void)shutdown(req_socket(q), SHUT_WR);
	}
	return MHD_NO;
}

/* Of an upload: on to where it belongs. What is refused there is still read away, as long as it is
 * no more than anybody may send. */
static void pass_on(struct req *q, const char *data, size_t size)
{
	enum { A_STEP = 1 << 20 };
	size_t before = q->taken;

	q->taken += size;
	if (q->taken >= (size_t)body_limit(q))
		too_large(q);
	else if (body_take(q, data, size, &q->why) == 0) {
		if (before / A_STEP != q->taken / A_STEP) /* it is slow, but it goes on */
			conns_stage(q, CONN_BODY);
		return;
	}
	q->verdict = REQ_ERROR;
	body_drop(q);
}

static enum MHD_Result take_body(struct req *q, const char *data, size_t *size)
{
	bool streams = q->verdict == REQ_FINE && route_streams(q->route);

	if (q->verdict == REQ_FINE && !streams && q->drained + *size >= API_BODY_MAX) {
		too_large(q);
		q->verdict = REQ_ERROR;
	}
	q->drained += streams ? 0 : *size;
	if (q->drained > DRAIN_MAX)
		return cut_off(q);
	/* Kept only for whoever takes one, which is nobody without a login. */
	if (streams)
		pass_on(q, data, *size);
	else if (q->verdict == REQ_FINE && q->route->body)
		sbx_buf_add(&q->body, data, *size);
	*size = 0;
	recall_end(q);
	return MHD_YES;
}

static enum MHD_Result answer(struct req *q)
{
	conns_stage(q, CONN_ANSWER);
	if (q->verdict == REQ_FINE && q->body.failed) {
		sbx_fail(&q->why, SBX_E_NO_MEMORY, "no memory for the body");
		q->verdict = REQ_ERROR;
	}
	return q->verdict == REQ_FINE ? q->route->handle(q) : refuse(q);
}

/* An upload is suspended until its workspace is to be had, and goes on with its body. */
static bool opens(struct req *q)
{
	int r = q->verdict == REQ_FINE ? body_open(q, &q->why) : 0;

	if (r < 0)
		q->verdict = REQ_ERROR;
	q->opening = r > 0;
	return q->opening;
}

/* A refusal waits until a short body has been read away; before a long one it ends the connection.
 */
static enum MHD_Result refuse_or_go_on(struct req *q)
{
	if (q->verdict == REQ_BAD_FRAMING || (q->verdict != REQ_FINE && has_long_body(q))) {
		conns_linger(q);
		return refuse(q);
	}
	if (req_header(q, MHD_HTTP_HEADER_CONTENT_LENGTH) ||
	    req_header(q, MHD_HTTP_HEADER_TRANSFER_ENCODING))
		recall_end(q);
	return MHD_YES;
}

static enum MHD_Result begin(struct req *q, const char *method, const char *version)
{
	q->method = method;
	give_id(q);
	conns_stage(q, CONN_BODY);
	q->verdict = judge(q, version);
	return opens(q) ? MHD_YES : refuse_or_go_on(q);
}

/* The workspace of an upload is there, or is not to be had. */
static void opened(struct req *q)
{
	q->opening = false;
	q->continued = WAIT_NONE;
	waiting_done(q); /* no answer is due yet */
	conns_stage(q, CONN_BODY);
	if (body_opened(q, &q->why) < 0)
		q->verdict = REQ_ERROR;
}

static enum MHD_Result on_request(void *apid, struct MHD_Connection *conn, const char *url,
				  const char *method, const char *version, const char *data,
				  size_t *size, void **req_cls)
{
	struct req *q = *req_cls;

	(void)apid;
	(void)conn;
	(void)url;
	if (!q || !q->target)
		return MHD_NO; /* no memory */
	if (!q->method)
		return begin(q, method, version);
	if (q->opening) {
		opened(q);
		/* libmicrohttpd makes its first call once more for a request that was suspended in
		 * it. */
		if (!*size)
			return refuse_or_go_on(q);
	}
	if (*size)
		return take_body(q, data, size);
	return answer(q);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Bytes that would end a log line, or a field of it, are shown as '?'. */
static void visible(const char *from, size_t len, char *to, size_t size)
{
	size_t n = len < size - 1 ? len : size - 1;

	for (size_t i = 0; i < n; i++)
		to[i] = from[i] > ' ' && from[i] < 0x7f && from[i] != '"' ? from[i] : '?';
	to[n] = '\0';
}

/* Never the query: it may hold a token. */
static void log_access(const struct req *q)
{
	const char *asked = q->method ? q->method : "?";
	char path[512], method[32], user[64];

	visible(q->target, q->path_len, path, sizeof(path));
	visible(asked, strlen(asked), method, sizeof(method));
	visible(q->who.user, strlen(q->who.user), user, sizeof(user));
	sbx_log(SBX_LOG_INFO,
		"request method=%s path=%s status=%d bytes=%lld us=%lld user=%s id=%s", method,
		path, q->status, (long long)q->sent, (long long)(sbx_boot_us() - q->began_us),
		user[0] ? user : "-", q->id[0] ? q->id : "-");
}

void req_over(struct req *q)
{
	if (q->target && orch_settings(q->a->orch)->api_access_log)
		log_access(q);
	waiting_done(q);
	if (q->free_state)
		q->free_state(q->state);
	for (size_t i = 0; i < API_PARAMS; i++)
		free(q->param[i]);
	sbx_error_clear(&q->why);
	sbx_buf_free(&q->body);
	free(q->target);
	free(q);
}

static void on_completed(void *apid, struct MHD_Connection *conn, void **req_cls,
			 enum MHD_RequestTerminationCode code)
{
	struct req *q = *req_cls;

	(void)apid;
	(void)conn;
	if (!q)
		return;
	*req_cls = NULL;
	conns_stage(q, CONN_IDLE);
	if (code == MHD_REQUEST_TERMINATED_COMPLETED_OK)
		recall_end(q);
	req_over(q);
}

/* ---- daemons --------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 0))) static void on_log(void *apid, const char *fmt, va_list args)
{
	char text[512], shown[512];

	(void)apid;
	(void)vsnprintf(text, sizeof(text), fmt, args);
	visible(text, strcspn(text, "\n"), shown, sizeof(shown));
	sbx_log(SBX_LOG_DEBUG, "http text=\"%s\"", shown);
}

/* Strict, because libmicrohttpd 1.0 otherwise joins a folded line to the one before it and takes a
 * line feed alone for the end of a line, where a proxy in front may not. */
static struct MHD_Daemon *make(struct http *h, bool tls)
{
	struct apid *a = h->a;
	unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ITC |
			 MHD_ALLOW_SUSPEND_RESUME | MHD_ALLOW_UPGRADE | MHD_USE_ERROR_LOG;
	struct MHD_OptionItem tls_options[] = {
		{ MHD_OPTION_HTTPS_MEM_CERT, 0, h->cert },
		{ MHD_OPTION_HTTPS_MEM_KEY, 0, h->key },
		{ MHD_OPTION_END, 0, NULL },
	};
	struct MHD_OptionItem none[] = { { MHD_OPTION_END, 0, NULL } };

	return MHD_start_daemon(flags | (tls ? MHD_USE_TLS : 0), 0, NULL, NULL, on_request, a,
				MHD_OPTION_EXTERNAL_LOGGER, on_log, a, MHD_OPTION_URI_LOG_CALLBACK,
				on_target, a, MHD_OPTION_NOTIFY_COMPLETED, on_completed, a,
				MHD_OPTION_NOTIFY_CONNECTION, conns_notify, a,
				MHD_OPTION_CONNECTION_LIMIT,
				(unsigned)orch_settings(a->orch)->api_max_connections + 64,
				MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)POOL_BYTES,
				MHD_OPTION_CONNECTION_TIMEOUT,
				(unsigned)orch_settings(a->orch)->api_idle_timeout_sec,
				MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_SIGPIPE_HANDLED_BY_APP,
				1, MHD_OPTION_ARRAY, tls ? tls_options : none, MHD_OPTION_END);
}

static int read_pem(const char *path, char **ret, struct sbx_error *e)
{
	int r = sbx_read_file(AT_FDCWD, path, PEM_MAX, ret, NULL);

	return r < 0 ? sbx_fail_errno(e, SBX_E_INVALID_CONFIG, -r, "cannot read '%s'", path) : 0;
}

static int read_certificate(struct http *h, const struct orch_settings *s, struct sbx_error *e)
{
	int rc;

	if (!s->api_tls_cert && !s->api_tls_key)
		return 0;
	if (!s->api_tls_cert || !s->api_tls_key)
		return sbx_fail(e, SBX_E_INVALID_CONFIG,
				"api_tls_cert and api_tls_key: either both or none");
	rc = read_pem(s->api_tls_cert, &h->cert, e);
	return rc < 0 ? rc : read_pem(s->api_tls_key, &h->key, e);
}

int http_start(struct apid *a, struct http **ret, struct sbx_error *e)
{
	const struct orch_settings *s = orch_settings(a->orch);
	struct http *h = calloc(1, sizeof(*h));
	int rc;

	if (!h)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	*ret = h;
	h->a = a;
	h->n = (size_t)s->api_threads;
	rc = read_certificate(h, s, e);
	if (rc < 0)
		return rc;
	h->daemons = calloc(2 * h->n, sizeof(*h->daemons));
	if (!h->daemons)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	for (; h->n_all < (h->cert ? 2 : 1) * h->n; h->n_all++) {
		h->daemons[h->n_all] = make(h, h->n_all >= h->n);
		if (!h->daemons[h->n_all])
			return sbx_fail(e, h->cert ? SBX_E_INVALID_CONFIG : SBX_E_INTERNAL,
					"cannot start the HTTP server%s",
					h->cert ? ": is the certificate right, and the key its own?"
						: "");
	}
	return 0;
}

void http_take(struct http *h, int fd, bool tls, const struct sockaddr *addr, socklen_t len)
{
	size_t i = h->next++ % h->n + (tls && h->cert ? h->n : 0);

	/* Closes the socket when it fails. */
	if (MHD_add_connection(h->daemons[i], fd, addr, len) != MHD_YES)
		conns_lost(h->a->conns);
}

struct http *http_stop(struct http *h)
{
	if (!h)
		return NULL;
	for (size_t i = 0; i < h->n_all; i++)
		if (h->daemons[i])
			MHD_stop_daemon(h->daemons[i]);
	free(h->daemons);
	free(h->cert);
	free(h->key);
	free(h);
	return NULL;
}
