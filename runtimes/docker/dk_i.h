/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to runtimes/docker/.
 *
 * Four processes carry out a run:
 *   runner           the caller: asks the engine for a container, tells its process 1 what to do
 *   sandbox-engine   the runner's helper that speaks HTTP with the engine (engine_main.c, wire_i.h)
 *   sandbox-start    process 1 of the container, ours, bound into it (start.c, start_i.h)
 *   command          its child
 * The engine is asked for making, changing, killing and removing; everything else goes between
 * runner and process 1, over a socket that is bound into the container as well. So nothing is
 * executed before the runner says so, output comes through pipes, and the end is exact.
 */
#ifndef SBX_RUNTIMES_DOCKER_DK_I_H
#define SBX_RUNTIMES_DOCKER_DK_I_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "runtimes/cgroup_watch.h"
#include "runtimes/docker/start_i.h"
#include "runtimes/docker/wire_i.h"
#include "runtimes/runtimes.h"

struct json_object;

enum {
	DK_SMALL_MS = 10000, /* the longest that the engine may need for a simple question */
	DK_STEP_MS = 60000,  /* ... for making, starting, removing */
	DK_HELLO_MS = 30000, /* the longest from the start of a container to its first word */
	DK_FILL_MS = 60000,  /* ... for putting files into the workspace */
	DK_NAME_MAX = 160,
	DK_ID_MAX = 128,
	DK_VERSION_MAX = 64,
	DK_VOLUME_BYTES = 64 << 20, /* of each directory that the image calls a volume */
	DK_SECCOMP_MAX = 128 << 10,
	DK_COMMAND_OOM_SCORE = 500, /* process 1 has 0, and goes last */
};

/* ---- engine.c: the helper and what it is asked ----------------------------------------------- */

struct dk_ask {
	enum dk_method method;
	const char *path; /* behind the version, encoded */
	const char *body; /* NULL: none */
	size_t body_size;
	uint32_t limit_ms;
	bool bare;     /* the path has no version in front */
	bool tail;     /* of a long answer only the end is wanted */
	bool tar;      /* the body is an archive */
	bool no_hurry; /* its time is no part of the startup */
};
struct dk_answer {
	unsigned status;     /* of HTTP */
	struct sbx_buf body; /* owned */
};
void dk_answer_clear(struct dk_answer *a);
#define dk_autoanswer __attribute__((cleanup(dk_answer_clear))) struct dk_answer
#define DK_ANSWER_INIT                                                                             \
	{                                                                                          \
		.status = 0, .body = SBX_BUF_INIT(DK_BODY_MAX)                                     \
	}

/* Is there a socket of an engine at all? Costs one stat(2). */
bool dk_engine_there(const struct rt_docker *d);
/* The settings of the host, or the defaults. */
const struct rt_docker *dk_settings(const struct rt_host *host);
/* The helper runs and knows the engine's version, or there is no helper: RUNTIME_UNAVAILABLE. */
int dk_engine_open(const struct rt_host *host, struct sbx_error *e);
/* Valid after dk_engine_open(). */
const char *dk_engine_version(void); /* "20.10.24" */
const char *dk_engine_api(void);     /* "1.41" */
bool dk_engine_is_podman(void);
void dk_engine_close(void);
/* Asks and waits for the answer, whatever its status is. RUNTIME_UNAVAILABLE: there was none.
 * INTERRUPTED: host->waiting said so; the engine may still do what it was asked to. */
int dk_call(const struct rt_host *host, const struct dk_ask *ask, struct dk_answer *ret,
	    struct sbx_error *e);
/* The host for a dk_call() that is deaf: whoever has given up wants this all the more. */
struct rt_host dk_firm(const struct rt_host *host);
/* Asks and does not wait. */
int dk_post(const struct rt_host *host, const struct dk_ask *ask, struct sbx_error *e);
/* 1: *ret is the answer to the last question; 0: not yet; else there will be none. */
int dk_take(struct dk_answer *ret, struct sbx_error *e);
int dk_engine_fd(void); /* readable when there may be an answer; -1: no helper */
/* Waits for the answer that somebody has given up, so that the engine is done with it. False: it
 * may still be at it. */
bool dk_engine_settle(uint32_t limit_ms);
/* Fails with what the engine says in {"message"}: "cannot WHAT: ...". */
int dk_refused(const struct rt_host *host, const struct dk_answer *a, enum sbx_code code,
	       struct sbx_error *e, const char *what);
/* The answer as JSON; NULL when it is none. */
struct json_object *dk_answer_json(const struct dk_answer *a);
/* Text of a member, borrowed; "" when there is none. */
const char *dk_text(struct json_object *o, const char *name);
/* Path of one of our programs; 0 or a failure. */
int dk_program(const struct rt_host *host, const char *name, char *ret, size_t size,
	       struct sbx_error *e);

/* ---- image.c --------------------------------------------------------------------------------- */

struct dk_image {
	char id[DK_ID_MAX];	    /* "sha256:..." */
	struct json_object *config; /* owned; its Config */
};
void dk_image_clear(struct dk_image *i);
/* Finds the image, or fetches it when that is allowed. IMAGE_NOT_FOUND. */
int dk_image_get(const struct rt_host *host, const char *name, struct dk_image *ret,
		 struct sbx_error *e);

/* ---- place.c: what a container needs of the host's file system ------------------------------- */

/* <state>/docker/NAME, where NAME tells its owner: the directory with the socket that is bound into
 * the container, and the mount point for a session's workspace. It exists as long as there may be
 * a container of this name, so it is also the note for whoever has to clean up. */
struct dk_place {
	char name[DK_NAME_MAX]; /* "PID-START-SERIAL"; "": there is none */
	char *path;		/* owned */
	char *door;		/* owned; what is bound: the directory with the socket */
	char *workspace;	/* owned; what is bound at /workspace; NULL: a tmpfs */
	bool mounted;		/* there is a mount of ours at path/workspace */
	int listener;		/* owned; -1 once somebody is connected */
	uid_t uid;		/* the user that owns the workspace, seen from the container */
	gid_t gid;
};
/* The name of this state directory among all that use the engine: 32 hex digits. *ret[0] is 0 when
 * there is none yet and make is false. */
int dk_state_id(const struct rt_host *host, bool make, char ret[33], struct sbx_error *e);
/* workspace_fd -1: none. */
int dk_place_make(const struct rt_host *host, int workspace_fd, struct dk_place *ret,
		  struct sbx_error *e);
/* Nobody else can connect any more. */
void dk_place_shut(struct dk_place *p);
/* Removes everything; what is half-made is fine. Not gone: there may still be a container of the
 * name, and the directory stays as a note for any process that sweeps. */
void dk_place_remove(struct dk_place *p, bool gone);
#define DK_LEFT "left." /* then stands in front of the name of the directory */
/* "PID-START": who we are, as far as names and labels go. */
void dk_owner(char ret[64]);
/* Is the process named by the first two parts of this name gone? */
bool dk_owner_gone(const char *name);

/* ---- container.c ----------------------------------------------------------------------------- */

struct dk_sandbox {
	struct rt_sandbox_base base; /* first */
	const struct rt_host *host;
	struct dk_place place;	 /* owned */
	struct dk_image image;	 /* owned */
	char *image_name;	 /* owned; NULL: there is no container */
	bool created;		 /* there is, or may be, a container of this name */
	struct rt_limits limits; /* that it has */
	bool has_session;	 /* the workspace is a session's */
	int sock;		 /* to process 1 */
	int pidfd;		 /* of process 1 */
	pid_t pid;		 /* of process 1, here */
	struct cg_watch watch;
	int exit;	  /* epoll of sock, pidfd and, once it is asked about the end, the engine */
	int in, out, err; /* the runner's ends of the pipes */
	int workspace;	  /* O_RDONLY directory */

	struct egress *egress; /* owned; NULL: no network */

	bool stdin_open, prepared, started;
	bool over;	  /* the end is known */
	bool asked;	  /* the engine was asked how it ended */
	bool killed;	  /* by us, for certain */
	bool given_up;	  /* it was killed, and does not die */
	int clock;	  /* once it was killed: when to try again */
	size_t tries;	  /* so far */
	uint64_t signals; /* bit n-1: signal n was sent */
	char runtime_version[DK_VERSION_MAX];
	uint32_t remove_ms; /* the longest that its removal may take */
	struct rt_exit end;
};

/* Makes and starts the container of this image with these limits, and waits for the first word of
 * its process 1. plan NULL: ahead of any. */
int dk_container_make(struct dk_sandbox *sb, const char *image, const struct rt_limits *limits,
		      const struct rt_plan *plan, struct sbx_error *e);
/* Other limits for a container that waits. */
int dk_container_limit(struct dk_sandbox *sb, const struct rt_limits *limits, struct sbx_error *e);
/* Ends and removes it, and what it had of the host. What cannot be removed is left to sweep(). */
void dk_container_remove(struct dk_sandbox *sb);
/* Removes by name; true: there is none of this name now. */
bool dk_container_gone(const struct rt_host *host, const char *name, uint32_t limit_ms);
/* POST /containers/NAME/VERB. body may be NULL, and ret, when the answer is not waited for. */
int dk_container_post(struct dk_sandbox *sb, const char *verb, const char *body, uint32_t limit_ms,
		      struct dk_answer *ret, struct sbx_error *e);
/* The name of the container that belongs to a place. */
int dk_container_name(const struct rt_host *host, const char *place, char ret[DK_NAME_MAX],
		      struct sbx_error *e);

/* ---- request.c: the body of a create --------------------------------------------------------- */

/* *ret is malloc'd JSON. POLICY_UNSUPPORTED: a profile cannot be read, or a volume of the image
 * cannot be limited. */
int dk_create_body(const struct dk_sandbox *sb, const struct rt_limits *limits,
		   const struct rt_plan *plan, char **ret, struct sbx_error *e);
/* The members that POST /containers/ID/update takes. */
void dk_limits_json(const struct rt_limits *limits, struct json_object *into);

/* ---- talk.c: with process 1 ------------------------------------------------------------------ */

/* Waits until process 1 has connected and said hello. */
int dk_hello(struct dk_sandbox *sb, struct sbx_error *e);
/* Hands over pipes, files, arguments; waits until the files are in place. */
int dk_fill(struct dk_sandbox *sb, const struct rt_plan *p, struct sbx_error *e);
/* One message without descriptors; false: nobody is there. */
bool dk_tell(struct dk_sandbox *sb, const struct dk_msg *m);
/* Waits for one message. */
int dk_await(struct dk_sandbox *sb, struct dk_msg *ret, int64_t limit_ms, struct sbx_error *e);

/* ---- end.c ----------------------------------------------------------------------------------- */

/* Keeps what the groups say now: they may be gone when the end is known. */
void dk_look(struct dk_sandbox *sb);
/* Ends a container that executes. Its end is told within ten seconds, also when it is frozen by
 * somebody whom we cannot overrule: then it dies when that one lets go. */
void dk_kill(struct dk_sandbox *sb);
/* See reap of struct rt_driver. */
bool dk_reap(struct rt_sandbox *s, struct rt_exit *out);

/* ---- network.c ------------------------------------------------------------------------------- */

/* Reads the list of a plan and looks its names up, before there is a container; *ret stays NULL
 * without a list. POLICY_UNSUPPORTED. */
int dk_network_open(const struct rt_plan *p, struct egress **ret, struct sbx_error *e);
/* Between the start of the container and the first instruction of the command: its network
 * namespace is there, and nothing but process 1 is in it. Takes *egress, unless it is NULL.
 * POLICY_UNSUPPORTED: nothing may begin in there. */
int dk_network_enter(struct dk_sandbox *sb, struct egress **egress, struct sbx_error *e);

/* ---- the rest -------------------------------------------------------------------------------- */

void dk_sandbox_init(struct dk_sandbox *sb, const struct rt_host *host);
void dk_preflight(const struct rt_host *host, struct rt_preflight *out);
void dk_sweep(const struct rt_host *host);
extern const struct rt_driver rt_docker;

#endif
