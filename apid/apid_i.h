/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to apid/, divided by source file.
 *
 * Threads:
 *   main      signals
 *   acceptor  takes connections in, turns away what is too many, ends what is too slow (conn.c)
 *   http      a pool of libmicrohttpd's; each connection belongs to one of them; handlers run there
 *   watcher   follows the feed and continues requests that wait for the end of a run or of a
 * session (wait.c) workers   do what waits for the disk, started when there is something to do
 * (worker.c) streams   every WebSocket, in one epoll loop (ws.c and its like) A handler never waits
 * for anything but the store: what waits is suspended.
 */
#ifndef SBX_APID_APID_I_H
#define SBX_APID_APID_I_H

#include <microhttpd.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/error.h"
#include "orchestrator/orchestrator.h"
#include "orchestrator/sessions.h"

#define API_BASE "/api/v1/sandbox"

enum {
	API_TARGET_MAX = 8 << 10,      /* bytes of a request's path and query */
	API_BODY_MAX = (16 << 20) + 1, /* a document of 16 MiB, and one byte to tell it is more */
	API_REPLY_MAX = 64 << 20,      /* of what is made in memory */
	API_ETAG = 64,
	API_REQUEST_ID = 64,	  /* bytes of X-Request-ID that are kept */
	API_FORM_EXTRA = 1 << 20, /* of an upload, beside the files: boundaries and headers */
};

struct auth;
struct conns;
struct finished;
struct http;
struct waiting;
struct worker;
struct ws;

struct apid {
	struct orch *orch;
	struct store *store; /* borrowed from orch */
	struct http *http;
	struct auth *auth;
	struct conns *conns;
	struct waiting *waiting;
	struct worker *worker;
	struct finished *finished;
	struct ws *ws;
	pthread_mutex_t spools_lock;
	struct spool *spools; /* under it; each is its request's */
	/* Since this process began, for /metrics. */
	atomic_llong requests, refused;
};

/* ---- http.c: one request --------------------------------------------------------------------- */

struct route;

enum { API_PARAMS = 2, API_PARAM_MAX = 4096, ROUTE_ALLOW = 64 };

enum wait_end {
	WAIT_NONE,
	WAIT_ENDED,
	WAIT_TIME,
	WAIT_GONE,
	WAIT_LOOK,  /* wait again if need be */
	WAIT_WORKED /* what was given to the workers is done */
};
enum req_verdict {
	REQ_FINE,
	REQ_BAD_FRAMING,
	REQ_LONG_TARGET,
	REQ_BAD_PATH,
	REQ_NO_ROUTE,
	REQ_ERROR
};

/* Lives from the head of a request until its answer is sent. One thread at a time. */
struct req {
	struct apid *a;
	struct MHD_Connection *conn;
	const char *method;	   /* libmicrohttpd's; NULL until the head is there */
	char *target;		   /* owned; path and query as they came */
	size_t path_len;	   /* of the path in target */
	const struct route *route; /* NULL: none fits */
	/* Values of the route's {names}, decoded, in its order; owned. NULL past the last. */
	char *param[API_PARAMS];
	struct orch_principal who; /* of routes that need a login */
	struct sbx_buf body;	   /* whole when the handler is called; data NULL when empty */
	size_t drained;		   /* bytes of the body that came */
	size_t taken;		   /* the same of an upload, as long as nothing was against it */
	bool opening;		   /* an upload that is suspended in its head */
	enum req_verdict verdict;
	const char *hint;	 /* of REQ_BAD_PATH: which of the two answers; of ..FRAMING: why */
	char allow[ROUTE_ALLOW]; /* of REQ_NO_ROUTE: methods that would do */
	struct sbx_error why;	 /* of REQ_ERROR */
	enum wait_end continued; /* called again after it was suspended, and why */
	bool waited;		 /* it was suspended; wait.c's */
	void *state;		 /* the handler's own, between two calls; freed by free_state */
	void (*free_state)(void *state);
	char id[API_REQUEST_ID + 1]; /* X-Request-ID: the client's when it is decent, else ours */
	int64_t began_us;	     /* boot clock */
	int status;		     /* of the answer; 0: none yet */
	int64_t sent;		     /* bytes of its body */
	bool head;		     /* HEAD: as GET, without the body */
};

int http_start(struct apid *a, struct http **ret, struct sbx_error *e);
struct http *http_stop(struct http *h); /* NULL is fine */
/* The acceptor's: takes the socket over, also when it fails. */
void http_take(struct http *h, int fd, bool tls, const struct sockaddr *addr, socklen_t len);

/* NULL when there is none. Borrowed. */
const char *req_header(const struct req *q, const char *name);
const char *req_query(const struct req *q, const char *name);
/* A whole number in the query: def when it is absent; false (and the refusal is queued) when it is
 * no number or outside least..most. */
bool req_query_int(struct req *q, const char *name, int64_t def, int64_t least, int64_t most,
		   int64_t *ret, enum MHD_Result *ret_answer);

int req_socket(const struct req *q); /* of its connection; borrowed */
void req_over(struct req *q);	     /* logs and frees it; conn.c does it for what was forgotten */

typedef enum MHD_Result handler(struct req *q);

/* ---- reply.c: answers ---------------------------------------------------------------------------
 * Each queues one answer and returns what the handler must return. Extra headers are NULL-ended
 * name, value pairs. */

/* Takes the buffer's bytes. */
enum MHD_Result reply_json(struct req *q, int status, struct sbx_buf *body,
			   const char *const *headers);
enum MHD_Result reply_text(struct req *q, int status, const char *type, struct sbx_buf *body,
			   const char *const *headers);
enum MHD_Result reply_empty(struct req *q, int status, const char *const *headers);
/* The error document of design: always "error", and "detail" where the reference has one. */
enum MHD_Result reply_error(struct req *q, const struct sbx_error *e);
/* The same with a status and a `detail` of its own (JSON text; NULL: none). */
enum MHD_Result reply_refusal(struct req *q, int status, const char *code, const char *message,
			      const char *detail_json, const char *const *headers);
enum MHD_Result reply_bad_path(struct req *q, const char *detail); /* 400, see route_guard */
enum MHD_Result reply_no_route(struct req *q, const char *allow);  /* 404, or 405 with methods */
/* 422: a member of the query. */
enum MHD_Result reply_invalid_query(struct req *q, const char *name, const char *message);
/* The document of reply_error. */
void reply_error_document(const struct req *q, const struct sbx_error *e, struct sbx_buf *out);
/* For a file: `response` is consumed. */
enum MHD_Result reply_response(struct req *q, int status, struct MHD_Response *response,
			       const char *const *headers);

/* ---- route.c: which handler ------------------------------------------------------------------ */

enum route_access { ROUTE_PUBLIC = 1, ROUTE_USER, ROUTE_ADMIN, ROUTE_OWN /* the handler asks */ };

/* One row of routes.def. */
struct route {
	const char *method; /* GET serves HEAD too */
	const char *path;   /* below API_BASE unless it begins with "//": {name} is one segment,
			       {name...}   the rest */
	enum route_access access;
	handler *handle;
	const char *tag; /* for openapi.json */
	/* Name of the body's schema there, NULL: takes no body; "?" in front: may be absent; "@":
	 * is a form with files, "=": is a tar, which are taken as they come (body.c). */
	const char *body;
	const char *answer;  /* name of the answer's schema */
	const char *summary; /* one line */
};
const struct route *route_at(size_t i); /* NULL past the end */
static inline bool route_streams(const struct route *r)
{
	return r && r->body && (r->body[0] == '@' || r->body[0] == '=');
}
/* Finds the route and fills q->param. NULL: no such path (404), or, when ret_allow is not empty,
 * the methods in it would do (405). */
const struct route *route_find(struct req *q, char ret_allow[ROUTE_ALLOW]);
/* NULL when the path may be looked at further, else the `detail` of the refusal (400). Looks at the
 * path as it came, before anything else does. */
const char *route_guard(const char *path, size_t len);

/* ---- auth.c, jwt.c: who ---------------------------------------------------------------------- */

struct credentials {
	const char *api_key;	   /* X-API-KEY, NULL: none */
	const char *authorization; /* the whole header */
	const char *token;	   /* a JWT or a key in the query of a stream; NULL: none */
	int fd;			   /* the connection's socket, for peer credentials */
};
/* INVALID_CONFIG. Reads key files; makes api.key when there is none. */
int auth_new(struct apid *a, struct auth **ret, struct sbx_error *e);
struct auth *auth_free(struct auth *u); /* NULL is fine */
/* Reads the key files again, after a reload of the settings; on failure the old ones stay. */
int auth_reload(struct auth *u, struct sbx_error *e);
/* UNAUTHORIZED with a message that helps its owner and nobody else. Any thread. */
int auth_check(struct auth *u, const struct credentials *c, struct orch_principal *ret,
	       struct sbx_error *e);

/* ---- listen.c: where they come in ------------------------------------------------------------ */

struct listener {
	int fd;
	bool tcp;
};
struct listeners {
	struct listener at[16];
	size_t n;
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)]; /* of the Unix socket; "": none */
};
/* Binds everything that the settings name (INVALID_CONFIG with the address that failed); logs a
 * line for each. What was opened before a failure is the caller's to close as well. */
int listen_open(struct apid *a, struct listeners *ret, struct sbx_error *e);
void listen_close(struct listeners *l); /* more than once is fine */

/* ---- conn.c: connections --------------------------------------------------------------------- */

/* As listen_open. */
int conns_open(struct apid *a, struct conns **ret, struct sbx_error *e);
int conns_start(struct conns *c, struct sbx_error *e); /* the thread; a->http is there */
void conns_stop(struct conns *c);		       /* nothing is accepted any more */
struct conns *conns_close(struct conns *c);	       /* NULL is fine */
/* libmicrohttpd's callback for beginnings and ends. */
void conns_notify(void *apid, struct MHD_Connection *conn, void **socket_context,
		  enum MHD_ConnectionNotificationCode code);
enum conn_stage { CONN_HEAD = 1, CONN_BODY, CONN_ANSWER, CONN_IDLE, CONN_REFUSED };
/* What the connection waits for from now on; each stage has its own time limit. */
void conns_stage(struct req *q, enum conn_stage stage);
/* The request is refused before its body is read, and its connection will be closed: what the
 * client still sends is read away for a moment, so that it sees the answer and not a reset. */
void conns_linger(const struct req *q);
int64_t conns_count(struct conns *c);
/* A connection that was taken in never got as far as conns_notify. */
void conns_lost(struct conns *c);

/* ---- wait.c: requests that wait for an end --------------------------------------------------- */

int waiting_start(struct apid *a, struct waiting **ret, struct sbx_error *e);
/* Continues all of them, and suspends none any more. */
void waiting_end(struct waiting *w);
void waiting_flush(struct waiting *w); /* gives their answers a moment to get out */
void waiting_done(struct req *q);      /* the request is over; also for those that never waited */
struct waiting *waiting_free(struct waiting *w); /* NULL is fine */
/* Suspends the request until the run has ended, the time (boot clock) is over or the client has
 * gone; then its handler is called again with q->continued. False: it shall go on at once. */
bool waiting_add(struct req *q, const char *run_id, int64_t row, int64_t until_us);
/* The same until something happens to a session that is being destroyed: then its handler looks,
 * and may wait again. */
bool waiting_add_session(struct req *q, const char *session_id, int64_t row, int64_t until_us);
/* It is about to be suspended by somebody else, and its answer shall get out as well when the
 * service stops. False: nothing is suspended any more. */
bool waiting_hold(struct req *q);

/* ---- worker.c: what waits for the disk ------------------------------------------------------- */

enum work_kind {
	WORK_LOCKS = 1, /* may wait until others give a workspace back */
	WORK_GIVES,	/* gives one back: never waits for those */
};
struct worker *worker_new(void); /* NULL without memory; no thread yet */
/* What runs is finished; what has not begun is answered as the handler has prepared it. */
void worker_end(struct worker *w);	      /* NULL is fine */
struct worker *worker_free(struct worker *w); /* NULL is fine */
/* Suspends the request; a thread calls work(q), and then its handler is called again with
 * WAIT_WORKED. q is the thread's meanwhile. Of one session only one thing of WORK_LOCKS is done at
 * a time. False, with the refusal: it is not done. */
bool worker_add(struct req *q, const char *session_id, enum work_kind kind,
		void (*work)(struct req *q), struct sbx_error *e);
/* The same for nobody: also at once, in this thread, when it must be. */
void worker_do(struct apid *a, void (*work)(void *what), void *what);

/* ---- finished.c: answers about runs that have ended ------------------------------------------ */

struct finished *finished_new(void); /* NULL without memory */
struct finished *finished_free(struct finished *f);
/* The status document of a run that this principal may see, if it is at hand; any thread. */
bool finished_get(struct apid *a, const char *id, const struct orch_principal *who,
		  char etag[API_ETAG], struct sbx_buf *out);
/* Keeps a copy, if the run has ended. */
void finished_put(struct finished *f, const struct store_run *r, const char etag[API_ETAG],
		  const struct sbx_buf *text);

/* ---- stream.c, ws*.c: WebSocket -------------------------------------------------------------- */

int ws_start(struct apid *a, struct ws **ret, struct sbx_error *e);
void ws_end(struct ws *w); /* closes every socket with 1001, and every new one; NULL is fine */
struct ws *ws_free(struct ws *w); /* when no handler runs any more; NULL is fine */
handler stream_get;		  /* GET /runs/{run_id}/stream */
/* The path (and query) under which the run's stream is found; signed when that is set.
 * malloc'd. */
char *stream_url(struct apid *a, const char *run_id, int64_t from_seq);
void ws_metrics(struct ws *w, struct sbx_buf *out);

/* ---- handlers -------------------------------------------------------------------------------- */

#define X(method, path, access, handle, ...) handler handle;
#include "apid/routes.def"
#undef X

/* sessions.c: the one that the path names. SESSION_NOT_FOUND. */
int session_find(struct req *q, struct store_session *ret, struct sbx_error *e);

/* upload.c: an upload from its head to its end; session_files_post is called after that. */

/* What can be said against it before its body comes; makes q->state. */
int upload_head(struct req *q, struct sbx_error *e);
/* Suspends it until the workspace is ours. False, with the refusal: it is not. */
bool upload_open(struct req *q, struct sbx_error *e);
int upload_opened(struct req *q, struct sbx_error *e); /* afterwards: how that went */
int upload_take(struct req *q, const char *data, size_t len, struct sbx_error *e);
void upload_drop(struct req *q); /* it is refused: what came is forgotten now */

/* ---- body.c: bodies that are taken as they come ---------------------------------------------- */

int64_t body_limit(const struct req *q); /* a body has fewer bytes than this; of any route */
/* What can be said against it before it comes. */
int body_head(struct req *q, struct sbx_error *e);
/* 1: the request is suspended, and body_opened tells how that went. */
int body_open(struct req *q, struct sbx_error *e);
int body_opened(struct req *q, struct sbx_error *e);
int body_take(struct req *q, const char *data, size_t len, struct sbx_error *e);
void body_drop(struct req *q);

/* The state of a request whose body is kept in a file. */
struct spool {
	struct req *q;		  /* whose state it is */
	struct spool *next, **at; /* all there are */
	int fd;			  /* owned; -1 when it is not wanted any more */
	int64_t bytes;
	void (*work)(struct req *q, struct spool *s); /* a worker: rc, and why or out */
	int rc;
	struct sbx_error why;
	struct sbx_buf out;
};
/* Takes fd, an empty file. QUEUE_FULL: too many bodies are kept already. */
int spool_begin(struct req *q, int fd, void (*work)(struct req *q, struct spool *s),
		struct sbx_error *e);
/* The handler of such a route; `of` is what worker_add calls the session. */
enum MHD_Result spool_end(struct req *q, const char *of);

int image_head(struct req *q, struct sbx_error *e);    /* images.c */
int snapshot_head(struct req *q, struct sbx_error *e); /* snapshots_tar.c */

/* info.c: the answer that a view of the orchestrator is, or its refusal. */
enum MHD_Result reply_view(struct req *q, int rc, struct sbx_buf *out, const struct sbx_error *e);

/* openapi.c */
void openapi_make(struct sbx_buf *out);
void openapi_doc(struct sbx_buf *out, const char *doc); /* a member "description", with a comma */
/* openapi_spec.c: the schemas of the documents, without a comma behind. */
void openapi_specs(struct sbx_buf *out);

#endif
