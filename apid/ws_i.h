/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to the streams: stream.c (the handshake, in a thread of libmicrohttpd's) and ws*.c (one
 * thread, one epoll loop, every socket from its upgrade to its end).
 *
 * Nothing is queued for a socket. A socket is a position in a log: the number of its next frame and
 * how many bytes of that are sent. Frames are encoded once, into windows that all sockets share
 * (ws_window.c); who is too slow for the windows is served later from the file. So a slow reader
 * holds no memory, delays nobody and loses nothing.
 */
#ifndef SBX_APID_WS_I_H
#define SBX_APID_WS_I_H

#include <pthread.h>
#include <sys/queue.h>

#include "apid/apid_i.h"
#include "store/log.h"

enum {
	WS_MESSAGE_MAX = 256 << 10, /* bytes of a message from a client, fragments together */
	WS_PIECE = 64 << 10,	    /* bytes that one send() is given */
	WS_CONTROL_MAX = 4 << 10,   /* unsent answers, from which on a client is not read */
	WS_STALL_SEC = 300,	    /* without taking a byte of what waits for it */
	WS_ID = 37,
};

/* Close codes. */
enum {
	WS_NORMAL = 1000,
	WS_GOING_AWAY = 1001,
	WS_PROTOCOL = 1002,
	WS_UNSUPPORTED = 1003,
	WS_POLICY = 1008,
	WS_TOO_BIG = 1009,
	WS_INTERNAL = 1011,
	WS_UNAUTHORIZED = 4401,
	WS_NOT_FOUND = 4404,
	WS_QUOTA = 4429,
};

/* What the handshake found out. */
struct ws_offer {
	void *tls;	  /* its session (gnutls_session_t), NULL: it does not speak TLS */
	int wire;	  /* the connection's socket; before TLS stands another */
	int code;	  /* of the close frame that refuses; 0: welcome, and all below is set */
	const char *text; /* of a refusal; static */
	struct orch_principal who;
	char run[WS_ID];
	int64_t row;
	uint64_t user, persona, session; /* hashes for the quotas; 0: has none */
	uint64_t from_seq;		 /* 1 and up */
};

/* ---- sockets --------------------------------------------------------------------------------- */

TAILQ_HEAD(ws_sockets, ws_socket);

struct ws_in;
struct ws_follow;

struct ws_socket {
	TAILQ_ENTRY(ws_socket) line;  /* in one of the lists of struct ws */
	TAILQ_ENTRY(ws_socket) peers; /* in follow->sockets */
	struct ws *w;
	struct ws_follow *follow; /* NULL: refused, or done with */
	int fd;			  /* libmicrohttpd's; given back by urh */
	int wire;		  /* the connection's own, another than fd when it speaks TLS */
	void *tls;		  /* its session, NULL: none */
	bool tls_begun;		  /* a record is half sent ... */
	bool tls_control;	  /* ... that is of control frames */
	struct MHD_UpgradeResponseHandle *urh;
	uint64_t seq;		/* of the next frame */
	size_t off;		/* bytes of it that are sent */
	struct sbx_buf control; /* pongs, heartbeats, close: whole frames, sent between others */
	size_t control_off;
	struct ws_in *in; /* while a message comes in, NULL between two */
	uint64_t user, persona, session;
	int64_t due_us;	  /* of its line */
	int64_t looks;	  /* at its clock since the last heartbeat */
	int64_t moved_us; /* when it took bytes, or had nothing to take */
	int64_t heard_us; /* when bytes came from it */
	uint32_t events;  /* that epoll watches */
	bool closing;	  /* the close frame is queued: no frames behind it, nothing is read */
	bool shut;	  /* ... and sent; only the peer's end is waited for */
	bool deaf; /* its bytes are no frames any more: behind a close frame or a broken one */
	bool seen; /* the peer has answered our close frame */
	bool dead;
	struct ws_offer *offer; /* owned, until it is taken in */
	size_t early_off, early_len;
	char early[]; /* what came with the request; up to early_off it is taken */
};

/* ---- runs ------------------------------------------------------------------------------------ */

/* The input of one run, over all sockets; see ws_stdin.c. */
struct ws_stdin {
	bool known, refused;
	struct orch_stdin_limits limits;
	double tokens;
	int64_t tokens_at_us;
};

/* A run that somebody follows. */
struct ws_follow {
	struct ws_follow *next_row, *next_wd; /* of the same bucket */
	struct ws *w;
	char id[WS_ID];
	int64_t row;
	struct orch_principal who; /* its owner: nobody else may follow */
	struct log_reader *log;	   /* owned */
	int wd;			   /* watch of its directory, -1: there is none yet */
	uint64_t frames;	   /* in the log when it was last looked at */
	bool ended;
	bool blind; /* it cannot be watched */
	struct ws_sockets sockets;
	size_t users; /* sockets, and who works on it at the moment */
	size_t open;  /* sockets that are not closing */
	struct ws_stdin stdin_state;
};

/* ---- encoded frames -------------------------------------------------------------------------- */

enum { WS_WINDOWS = 16, WS_WINDOW_MAX = 256 << 10 };

/* Frames first..first+n-1 of one run as they go over the wire; no frame is masked by a server, so
 * the bytes are the same for everybody. */
struct ws_window {
	const struct ws_follow *follow; /* NULL: free */
	uint64_t first;
	size_t n, size; /* of ends */
	size_t *ends;	/* owned; where each frame ends in bytes */
	struct sbx_buf bytes;
	uint64_t used; /* when, in looks */
};

/* ---- the thread ------------------------------------------------------------------------------ */

enum { WS_BUCKETS = 256 };

enum ws_quota {
	WS_QUOTA_TOTAL,
	WS_QUOTA_USER,
	WS_QUOTA_PERSONA,
	WS_QUOTA_SESSION,
	WS_QUOTA_RUN,
	WS_QUOTA__COUNT,
};

struct ws {
	struct apid *a;
	pthread_t thread;
	int epoll, bell, logs, feed; /* owned */
	pthread_mutex_t lock;
	struct ws_sockets inbox; /* under lock: upgraded, not yet seen by the thread */
	bool stopping;		 /* under lock */

	/* The thread's own. */
	struct ws_sockets open;	   /* by the time of the next heartbeat */
	struct ws_sockets closing; /* by the end of patience */
	struct ws_sockets dead;	   /* until the events in hand are done with */
	bool ending;		   /* all are closing, and then the thread is done */
	size_t n_open;
	struct ws_follow *by_row[WS_BUCKETS], *by_wd[WS_BUCKETS];
	size_t n_follows, n_unwatched; /* unwatched: wait for their directory */
	int parent_wd;		       /* watch of <state>/runs, for those; -1: none */
	int64_t feed_seq;
	int64_t again_us; /* look at every run again; 0: no need */
	int64_t now_us;	  /* boot clock, of this turn */
	struct ws_window windows[WS_WINDOWS];
	uint64_t looks;
	struct sbx_buf frame; /* one frame being encoded */

	/* For /metrics; any thread. */
	atomic_llong opened, closed, heartbeats, rejected[WS_QUOTA__COUNT];
};

/* The upgrade has happened; any thread. Copies the offer. Never fails: what cannot be taken in is
 * closed. */
void ws_adopt(struct ws *w, const struct ws_offer *offer, int fd, const char *early, size_t len,
	      struct MHD_UpgradeResponseHandle *urh);

/* ---- ws_socket.c ----------------------------------------------------------------------------- */

/* Begins the life of a socket out of the inbox: refusal, quotas, first frames. */
void ws_socket_begin(struct ws_socket *s);
void ws_socket_event(struct ws_socket *s, uint32_t events);
/* Sends what the peer takes now of what is there for it. May make it dead, never frees it. */
void ws_socket_pump(struct ws_socket *s);
/* A close frame behind what is half sent. text: short, or NULL. */
void ws_socket_close(struct ws_socket *s, int code, const char *text);
/* The same, when a close frame is among s->control already. */
void ws_socket_closing(struct ws_socket *s);
/* Ends it without ceremony. */
void ws_socket_drop(struct ws_socket *s);
/* What is due in the two lines of sockets. Returns when the next thing is, INT64_MAX: never. */
int64_t ws_socket_timers(struct ws *w);
/* Appends one unmasked frame. */
void ws_frame_put(struct sbx_buf *out, unsigned opcode, const void *data, size_t len);

/* ---- ws_wire.c ------------------------------------------------------------------------------- */

int ws_wire_open(struct ws_socket *s); /* begins to watch it; -1 */
void ws_wire_watch(struct ws_socket *s, bool in, bool out);
/* The number of bytes sent; 0: there is no room now; -1: the connection is broken. */
ssize_t ws_wire_send(struct ws_socket *s, const char *data, size_t len);
void ws_wire_shut(struct ws_socket *s);	 /* nothing more is sent */
void ws_wire_close(struct ws_socket *s); /* gives the connection back */

/* ---- ws_receive.c ---------------------------------------------------------------------------- */

/* Bytes of the peer; returns how many of them were taken, so that others get their turn. May close
 * s; behind our close frame they only tell whether the peer has seen it, and so everything before.
 */
size_t ws_receive(struct ws_socket *s, const void *data, size_t len);
void ws_receive_free(struct ws_in *in); /* NULL is fine */

/* ---- ws_follow.c ----------------------------------------------------------------------------- */

int ws_follow_join(struct ws_socket *s, const struct ws_offer *offer, struct sbx_error *e);
void ws_follow_leave(struct ws_socket *s);
/* The number of open sockets of this run. */
size_t ws_follow_count(struct ws *w, int64_t row);
void ws_follow_logs(struct ws *w);    /* w->logs is readable */
void ws_follow_changes(struct ws *w); /* w->feed is readable */
void ws_follow_all(struct ws *w);     /* looks at every run */
int ws_follow_open(struct ws *w, struct sbx_error *e);
/* Encodes frame seq of the log. */
int ws_follow_frame(struct ws_follow *f, uint64_t seq, struct sbx_buf *out, struct sbx_error *e);

/* ---- ws_window.c ----------------------------------------------------------------------------- */

/* Bytes of frames from seq on, beginning at its byte off; frame seq is in the log. *ret_one: those
 * that still belong to frame seq. Valid until the next call. */
int ws_window_get(struct ws_follow *f, uint64_t seq, size_t off, const char **ret, size_t *ret_len,
		  size_t *ret_one, struct sbx_error *e);
/* Moves a position on by n bytes of what ws_window_get returned last for it. */
void ws_window_advance(const struct ws_follow *f, uint64_t *seq, size_t *off, size_t n);
void ws_window_forget(struct ws *w, const struct ws_follow *f);
void ws_window_free(struct ws *w);

/* ---- ws_stdin.c ------------------------------------------------------------------------------ */

/* A text message of a client. */
void ws_stdin_message(struct ws_socket *s, const char *text, size_t len);

#endif
