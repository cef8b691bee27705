/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to fsd/, divided by source file. The mount door: it makes a principal from the caller of
 * a request, asks the orchestrator, and answers the kernel. It decides nothing and keeps nothing
 * that a restart would need: inode numbers are computed from (row, node).
 *
 * Threads, which docs/architecture.md describes: the servers read requests and answer; a handler
 * never waits for anything but the store, and few of them to write to it (writers.c). What must
 * wait is parked (park.c) and answered later by the feed thread, which follows the feed of changes
 * and the logs that somebody streams. The kicker performs no-op system calls on the mount itself,
 * so that inotify users hear of changes (kick.c); no handler ever waits for it.
 */
#ifndef SBX_FSD_FSD_I_H
#define SBX_FSD_FSD_I_H

#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>
#include <pthread.h>
#include <stdatomic.h>

#include "mountspec/tree.h"
#include "orchestrator/orchestrator.h"
#include "orchestrator/sessions.h"
#include "store/log.h"
#include "store/store.h"

enum { FSD_THREADS = 6, SESSION_NAME = 256 };

/* Seconds for which the kernel may believe what can no longer change, and artifacts, which expire.
 * The server takes back what it said only in ways that wait for nothing, see work.c: a thread that
 * waits for the kernel's locks while the process is killed would keep /dev/fuse open. */
#define FSD_FOREVER   86400.0
#define FSD_ARTIFACTS 5.0

struct parking;
struct kicker;
struct feed;
struct results;
struct real_nodes;
struct work_node;
struct work_table;
struct writers;
struct passes;
struct comings;
struct failures;

struct serial_share {
	int64_t serial;	  /* the last one that was given; 0: none */
	int64_t first_us; /* when it was given for the first time, boot clock */
	bool spare; /* it was closed by all who had it open, and the next look-up is to have it */
	uid_t uid;  /* whose these are */
	int given;  /* times */
	int open;   /* by so many of those */
};

struct fsd {
	struct orch *orch;
	struct store *store; /* borrowed from orch */
	struct fuse_session *se;
	const char *mountpoint; /* absolute */
	bool enforce;		/* the kernel checks permissions (default_permissions) */
	bool acl;		/* and asks for access control lists, see acl.c */
	uid_t admins[ORCH_ADMINS_MAX];
	size_t n_admins;
	uid_t uid; /* of this process: owner of what belongs to nobody */
	int64_t started_us;
	struct parking *parking;
	struct feed *feed;
	struct kicker *kicker;
	struct writers *writers;
	struct results *results;
	struct real_nodes *real;
	struct work_table *work;
	struct shots *shots;
	struct passes *passes;
	struct comings *comings;
	struct failures *failures;
	bool epochs; /* the kernel has a counter of epochs for all names, see work.c */
	pthread_mutex_t handles_lock;
	struct handle *handles;		/* open files; owns */
	struct text_handle *live_texts; /* some of them, under handles_lock; the newest first */
	/* Every run up to this row has been announced by a kick, or never will be: the kernel must
	 * not believe the names of others yet, or the mkdir that raises IN_CREATE would find them.
	 * Written by kick.c, as is the next one: the row that is being announced just now. */
	_Atomic int64_t announced_row;
	_Atomic int64_t announcing;
	struct holder *holders; /* owned; handles.c, under handles_lock */
	int64_t doc_bytes;	/* of all unfinished documents, under handles_lock */
	_Atomic int64_t serial; /* the last one that was given, see serial.c */
	pthread_mutex_t shares_lock;
	struct serial_share shares[2];			  /* under it; by serial_index() */
	_Atomic int64_t phases_known[STORE_PHASE__COUNT]; /* look-ups of by/phase/PHASE less
							     forgets: without one nobody watches */
	_Atomic pid_t kicker_tid;
	/* Of wire.c. The first two are of the thread that reads the first request. */
	uint64_t init_unique;
	uint32_t init_flags;
	atomic_bool agreed;
	void (*on_ready)(void *ctx); /* called once the kernel has agreed to the protocol */
	void *on_ready_ctx;
};

/* ---- inode numbers --------------------------------------------------------------------------- */

/* The top bits tell what a number is made of. Nodes of a snapshot's tree, see shot.c. */
#define INO_SHOT (UINT64_C(1) << 61)
/* Nodes of a workspace, see work.c: the rest is the address of the node. */
#define INO_WORK (UINT64_C(1) << 62)
/* Nodes of real trees (artifacts) have the top bit and live in a table, see real.c. */
#define INO_REAL (UINT64_C(1) << 63)

/* row 0: nodes that belong to no run; RUNTIME: index of the runtime + 1. */
static inline fuse_ino_t ino_make(int64_t row, enum ms_node_id node)
{
	return (fuse_ino_t)row << 8 | (fuse_ino_t)node;
}
static inline int64_t ino_row(fuse_ino_t ino)
{
	return (int64_t)(ino >> 8);
}
/* MS_N_NONE: it is in another tree. */
static inline enum ms_node_id ino_node(fuse_ino_t ino)
{
	return ino & (INO_REAL | INO_WORK | INO_SHOT) ? MS_N_NONE : (enum ms_node_id)(ino & 0xff);
}
/* Does the row of this number name a run? For a runtime it is an index, and for runs/new and
 * runs/check a serial. */
static inline bool ino_of_run(fuse_ino_t ino)
{
	const struct ms_node *n = ms_node(ino_node(ino));

	return ino_row(ino) && n && (ino_node(ino) == MS_N_RUN || n->parent == MS_N_RUN);
}
/* Nodes of which a look-up gives a serial, see serial.c; -1 for others. */
static inline int serial_index(enum ms_node_id node)
{
	return node == MS_N_RUNS_NEW ? 0 : node == MS_N_RUNS_CHECK ? 1 : -1;
}

/* ---- serial.c: inodes of runs/new and runs/check --------------------------------------------- */

int64_t serial_new(struct fsd *f); /* that nobody else has */
/* For a look-up by this user. */
int64_t serial_take(struct fsd *f, int index, uid_t uid);
/* One of those who had it opens the file with that serial, and then closes it. */
void serial_opened(struct fsd *f, int index, int64_t serial);
void serial_closed(struct fsd *f, int index, int64_t serial);

/* ---- wire.c: between libfuse and the kernel -------------------------------------------------- */

int fsd_wire_up(struct fsd *f); /* once it is mounted, before the first request; 0, or an error */

/* ---- pass.c: files that the kernel reads by itself ------------------------------------------- */

struct passes *pass_new(void);
void pass_free(struct passes *p);
void pass_init(struct fuse_conn_info *conn); /* asks for it in the first answer */
bool pass_start(struct fsd *f);		     /* once that is agreed: will the kernel do it? */
/* Decides how a file is opened, which this descriptor has; -1: it is the kicker's open. 1: it
 * passes through, 0: it does not, in both cases it is to be closed; or -ENOMEM. */
int pass_open(struct fsd *f, fuse_ino_t ino, int fd, struct fuse_file_info *fi);
bool pass_close(struct fsd *f, fuse_ino_t ino); /* did it pass through? */

/* ---- who.c ----------------------------------------------------------------------------------- */

void who_is(struct fsd *f, fuse_req_t req, struct orch_principal *ret);
bool is_kicker(struct fsd *f, fuse_req_t req);

/* A run as the handlers need it. */
struct run_ref {
	struct store_run_key key;
	bool mine; /* the caller may see it */
};
/* -errno. With check, a foreign run is -ENOENT. */
int run_by_row(struct fsd *f, fuse_req_t req, int64_t row, struct run_ref *ret);
int run_by_name(struct fsd *f, fuse_req_t req, const char *name, struct run_ref *ret);

/* ---- attr.c ---------------------------------------------------------------------------------- */

/* Attributes of a node and how long the kernel may believe them. -errno. */
int node_attr(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct stat *st, double *timeout);
/* The same when the run is known already. */
int node_attr_run(struct fsd *f, fuse_req_t req, fuse_ino_t ino, const struct run_ref *run,
		  struct stat *st, double *timeout);
void node_times(struct stat *st, int64_t born_us, int64_t changed_us);
/* How many bytes a reader of a rendered node would get. -errno. */
int node_size(struct fsd *f, fuse_req_t req, fuse_ino_t ino, off_t *ret);
/* Does this child of a run exist in its present state? */
bool node_exists(const struct ms_node *n, const struct run_ref *run);
/* How long the kernel may believe the name of a run that is there. */
double run_name_time(struct fsd *f);
/* How long the kernel may believe a name that leads to this node. */
double entry_timeout(struct fsd *f, fuse_ino_t ino, const struct run_ref *run);

/* ---- acl.c ----------------------------------------------------------------------------------- */

/* Sets the group bits of what has a list. */
void acl_mode(const struct fsd *f, struct stat *st);
void acl_getxattr(struct fsd *f, fuse_req_t req, fuse_ino_t ino, const char *name, size_t size);

/* ---- render.c -------------------------------------------------------------------------------- */

/* The bytes of a FILE or LINK node for this caller. run is NULL outside runs. -errno. */
int render(struct fsd *f, fuse_req_t req, fuse_ino_t ino, const struct run_ref *run,
	   struct sbx_buf *out);
/* Can its content no longer change? */
bool is_final(const struct ms_node *n, const struct run_ref *run);
enum { RENDER_MAX = 64 << 20 };

/* ---- open handles ---------------------------------------------------------------------------- */

struct holder;

/* What fuse_file_info.fh points to. The first member says which kind it is. */
enum handle_kind {
	H_TEXT = 1,
	H_LOG,
	H_CONTROL,
	H_STREAM,
	H_REAL_FILE,
	H_REAL_DIR,
	H_WORK_FILE,
	H_WORK_DIR,
	H_TAR,	  /* a snapshot as a tar */
	H_COMING, /* a file that is copied into the tree, see coming.c */
};
struct handle {
	enum handle_kind kind;
	fuse_ino_t ino;
	int64_t row;
	char id[37];		   /* of the run, "" outside */
	bool in_pass;		   /* it is counted in pass.c */
	struct handle *next, **at; /* all that are open, under fsd.handles_lock */
	struct holder *holder;	   /* whose account it is on, under handles_lock */
	int64_t charged;	   /* bytes of its document on that account */
};
struct text_handle {
	struct handle h;
	pthread_mutex_t lock; /* see wait_for_reply */
	char *data;	      /* owned: content fixed at open */
	size_t len;
	/* `status` answers poll: the change counter that this handle has seen. */
	enum store_phase seen;
	/* Under the parking lock: the chain of text handles that were ever polled. */
	struct fuse_pollhandle *poll; /* owned */
	struct text_handle *polled_next, **polled_at;
	/* Under fsd.handles_lock: the chain of texts that may change, see text_size. */
	struct text_handle *live_next, **live_at;
	pid_t opener;
	int64_t opened_us; /* boot clock */
};
struct log_handle {
	struct handle h;
	pthread_mutex_t lock;
	struct log_reader *log; /* owned */
	enum log_view view;
};
static inline struct handle *handle_of(const struct fuse_file_info *fi)
{
	return (struct handle *)(uintptr_t)fi->fh;
}

/* ---- handles.c ------------------------------------------------------------------------------- */

/* Answers an open with this handle, which belongs to the kernel from here on. */
void handle_opened(struct fsd *f, fuse_req_t req, struct fuse_file_info *fi, struct handle *h);
/* The same without the answer. False: there are too many, and it is closed. */
bool handle_add(struct fsd *f, fuse_req_t req, struct fuse_file_info *fi, struct handle *h);
void handle_close(struct fsd *f, struct handle *h);
/* Once no server thread runs any more. */
void handle_close_all(struct fsd *f);
/* Puts bytes of an unfinished document on the account of the handle's user; false: there are too
 * many. */
bool handle_charge(struct fsd *f, struct handle *h, size_t len);
void handle_discharge(struct fsd *f, struct handle *h);

/* ---- files.c: text and logs ------------------------------------------------------------------ */

void text_open(struct fsd *f, fuse_req_t req, fuse_ino_t ino, const struct run_ref *run,
	       struct fuse_file_info *fi);
void text_read(fuse_req_t req, struct text_handle *h, size_t size, off_t off);
void log_open(struct fsd *f, fuse_req_t req, fuse_ino_t ino, const struct run_ref *run,
	      struct fuse_file_info *fi);
void log_read(fuse_req_t req, struct log_handle *h, size_t size, off_t off);
void text_free(struct fsd *f, struct text_handle *h);
/* A caller that has just opened a text which may change, and now asks for its size, means that of
 * what it will read. -1: it has not. */
int64_t text_size(struct fsd *f, fuse_req_t req, fuse_ino_t ino);
void log_free(struct log_handle *h);
/*
 * An answer wakes its reader at once, who may close the file and so have the handle released by
 * another thread while the one that answers has not come back yet. Whoever answers from a handle
 * holds its lock meanwhile, and whoever frees it takes the lock once. Destroys the lock.
 */
void wait_for_reply(pthread_mutex_t *lock);
int log_view_of(const struct ms_node *n); /* enum log_view */
/* Size of a log node now, or -errno. *changed is set when the log has a file to say so. */
int64_t log_size(struct fsd *f, const char *id, enum log_view view, struct timespec *changed);

/* ---- writers.c: operations that write to the store ------------------------------------------- */

enum act_what { ACT_WRITE = 1, ACT_READ, ACT_FLUSH, ACT_RELEASE };
/* One operation on a control handle. */
struct job;
struct act {
	fuse_req_t req; /* NULL for ACT_RELEASE */
	struct handle *h;
	enum act_what what;
	const char *data; /* of a write; borrowed, or `copy` while it waits */
	size_t len;	  /* of a write, or the size of a read */
	off_t off;
	/* Of writers.c. */
	char *copy;		/* owned */
	struct job *job;	/* owned; instead of all the above but req */
	struct act *next, **at; /* all that wait or write; at is NULL when it is not among them */
	int64_t since_us;	/* boot clock */
	bool queued, here;
	bool slow;	     /* it takes its time, however quick the store is */
	atomic_bool give_up; /* its caller was interrupted: it need not wait for the store */
};
struct writers *writers_start(struct fsd *f, struct sbx_error *e);
/* Joins the threads; what is queued is answered with ENOTCONN. Nobody writes here any more. */
void writers_stop(struct writers *w);
void writers_free(struct writers *w);
/* May this server thread perform it itself? Then writers_done follows, before the answer. */
bool writers_here(struct writers *w, struct act *a);
void writers_done(struct writers *w, struct act *a);
/* Has a write waited for long? Then somebody holds the store's lock, or a disk stalls. */
bool writers_late(struct writers *w);
/* Hands a copy to a writer, which calls control_perform. -EAGAIN: too many wait already, -ENOMEM,
 * -ENOTCONN: there are no writers any more. */
int writers_give(struct writers *w, const struct act *a);
/* What is not an operation on a handle. */
struct job {
	int (*perform)(struct fsd *f, struct job *j); /* 0 or -errno */
	/* Afterwards, when it cannot be interrupted any more. */
	void (*answer)(struct fsd *f, struct job *j, int r);
	fuse_req_t req;
	struct orch_principal who;
	fuse_ino_t parent;
	char id[37]; /* of the session */
	char name[SESSION_NAME];
	int fd;		  /* borrowed from an open file, which stays open until it is answered */
	struct handle *h; /* the same */
	bool datasync;
	bool by_turns;	  /* one of these at a time */
	bool must_answer; /* answer() also when it is refused, or taken out before it was begun */
};
/* Hands a copy to a writer; answers when there is none, and says so: -errno. */
int writers_give_job(struct writers *w, const struct job *j);

/* ---- control.c: new, check, ctl, stdin ------------------------------------------------------- */

void control_open(struct fsd *f, fuse_req_t req, fuse_ino_t ino, const struct run_ref *run,
		  struct fuse_file_info *fi);
void control_write(struct fsd *f, fuse_req_t req, struct fuse_file_info *fi, const char *data,
		   size_t len, off_t off);
void control_read(struct fsd *f, fuse_req_t req, struct fuse_file_info *fi, size_t size);
void control_flush(struct fsd *f, fuse_req_t req, struct fuse_file_info *fi);
/* A writer thread: performs and answers. */
void control_perform(struct fsd *f, struct act *a);
void control_release(struct fsd *f, struct handle *h);

/* The last result of each user, for a fresh reader of runs/new and runs/check. */
struct results *results_new(void);
void results_free(struct results *r);
void results_set(struct results *r, uid_t uid, enum ms_view view, const char *text, size_t len);
/* malloc'd copy, "" when there is none; NULL without memory. */
char *results_get(struct results *r, uid_t uid, enum ms_view view, size_t *ret_len);

#include "fsd/news_i.h"

/* ---- dir.c ----------------------------------------------------------------------------------- */

void dir_read(struct fsd *f, fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, bool plus);
/* Answers with what fill() puts into a buffer of this size, for directories that are open; it
 * returns the number of bytes. Under the handle's lock. */
void dir_reply(fuse_req_t req, struct handle *h, pthread_mutex_t *lock, size_t size, off_t off,
	       bool plus,
	       size_t (*fill)(fuse_req_t req, struct handle *h, char *buf, size_t size, off_t off,
			      bool plus));
void dir_lookup(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name);
/* 0 and *ret, or -errno: the child of a synthetic directory. */
int dir_child(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name,
	      struct fuse_entry_param *ret);
/* The entry of a run in runs/. */
int dir_run_entry(struct fsd *f, fuse_req_t req, const struct run_ref *run,
		  struct fuse_entry_param *ret);

/* ---- real.c: trees of real files ------------------------------------------------------------- */

struct real_nodes *real_new(void);
void real_free(struct real_nodes *r);
void real_lookup(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name);
void real_forget(struct fsd *f, fuse_ino_t ino, uint64_t nlookup);
int real_attr(struct fsd *f, fuse_ino_t ino, struct stat *st);
void real_open(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void real_read(fuse_req_t req, struct fuse_file_info *fi, size_t size, off_t off);
void real_lseek(fuse_req_t req, struct fuse_file_info *fi, off_t off, int whence);
/* Answers with a handle on this file, which it takes; read as the others. */
void real_opened(struct fsd *f, fuse_req_t req, fuse_ino_t ino, int fd, struct fuse_file_info *fi);
void real_release(struct handle *h);
void real_opendir(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void real_readdir(fuse_req_t req, struct fuse_file_info *fi, size_t size, off_t off, bool plus);
/* Is this the top of a real tree (runs/<run>/artifacts) or a node in one? */
bool is_real_dir(fuse_ino_t ino);

/* ---- session.c: sessions in the tree --------------------------------------------------------- */

/* A session as the handlers need it. */
struct session_ref {
	int64_t row;
	char id[37];
	char name[SESSION_NAME]; /* in sessions/, for this caller */
	bool mine;		 /* not seen as an administrator */
	bool ending;
	int64_t uid, created_us, changed_us;
};
/* -errno. A foreign one is -ENOENT in all of these. */
int session_by_row(struct fsd *f, fuse_req_t req, int64_t row, struct session_ref *ret);
int session_by_name(struct fsd *f, fuse_req_t req, const char *name, struct session_ref *ret);
/* The session that a node belongs to; its times are those of what the node's row is about. */
int session_of(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct session_ref *ret);
/* What stands for this child of a session's directory: with workspace_links, a link. */
enum ms_node_id session_shown(struct fsd *f, fuse_req_t req, fuse_ino_t dir, enum ms_node_id node);
/* Does the node belong to one session, run of a session or snapshot? */
bool is_session_node(enum ms_node_id node);
int session_child(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name,
		  struct fuse_entry_param *ret);
double session_entry_time(struct fsd *f, enum ms_node_id node);
int session_attr(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct stat *st, double *timeout);
/* The bytes of a node whose view is of a session. The caller has looked whether it may be seen. */
int session_render(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct sbx_buf *out);

/* ---- by.c: runs by what they have ------------------------------------------------------------ */

bool is_by_node(enum ms_node_id node);
int by_child(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name,
	     struct fuse_entry_param *ret);
int by_attr(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct stat *st, double *timeout);
/* The kernel was told of this node, and forgets it. */
void by_known(struct fsd *f, fuse_ino_t ino);
void by_forget(struct fsd *f, fuse_ino_t ino, uint64_t nlookup);
/* May somebody watch by/phase/PHASE? */
bool by_watched(struct fsd *f, enum store_phase p);
/* The kicker makes what is there already, for those who watch. Answers. */
void by_announce(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name);
/* Where a symlink to a run leads, for a caller who may see it. -errno. */
int by_link(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct sbx_buf *out);

/* ---- session_ops.c --------------------------------------------------------------------------- */

/* Is this a directory in which mkdir makes a session or a snapshot? */
bool session_makes(fuse_ino_t parent);
void session_mkdir(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name);
void session_rmdir(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name);
/* One command of ctl. It may take long. */
int session_ctl(struct fsd *f, const struct orch_principal *p, const char *id, const char *text,
		size_t len, struct sbx_error *e);

/* For a writer: brings the clone j->id to the disk, if it is one. 0 or -errno. */
int session_settle(struct fsd *f, struct job *j);
/* The same for who syncs something of the session that is not in its workspace. */
void session_fsync(struct fsd *f, fuse_req_t req, fuse_ino_t ino);

#include "fsd/coming_i.h"

/* ---- shot.c: trees of snapshots -------------------------------------------------------------- */

struct shots;
static inline bool is_shot(fuse_ino_t ino)
{
	return !(ino & (INO_REAL | INO_WORK)) &&
	       ((ino & INO_SHOT) || ino_node(ino) == MS_N_SHOT_TREE);
}
struct shots *shot_open(void);
void shot_free(struct shots *s);
void shot_gone(struct fsd *f, int64_t row); /* the feed thread */
int shot_attr(struct fsd *f, fuse_ino_t ino, struct stat *st, double *timeout);
void shot_lookup(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name);
void shot_readlink(struct fsd *f, fuse_req_t req, fuse_ino_t ino);
void shot_readdir(struct fsd *f, fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, bool plus);
void shot_file_open(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);

/* ---- shot_tar.c: a snapshot as a tar --------------------------------------------------------- */

int shot_tar_size(struct fsd *f, int64_t row, off_t *ret); /* -errno */
void shot_tar_open(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void shot_tar_read(fuse_req_t req, struct fuse_file_info *fi, size_t size, off_t off);
off_t shot_tar_end(const struct handle *h);
void shot_tar_release(struct handle *h);

/* ---- work*.c: the workspace of a session ----------------------------------------------------- */

static inline bool is_work(fuse_ino_t ino)
{
	return !(ino & INO_REAL) && ((ino & INO_WORK) || ino_node(ino) == MS_N_SESS_WORK);
}
struct work_table *work_open(struct fsd *f);
int work_start(struct work_table *t, struct sbx_error *e);
void work_stop(struct work_table *t); /* joins its thread */
void work_free(struct work_table *t);
/* The feed thread. A run has changed: others may begin or end to write to its workspace. */
void work_run_changed(struct fsd *f, int64_t run_row);
void work_changed(struct fsd *f, const char *session_id); /* by another door */
void work_session_gone(struct fsd *f, const char *session_id);
/* All names that the kernel knows are to be looked up again. Waits for nothing. */
void work_new_epoch(struct fsd *f);
void work_look_all(struct fsd *f); /* something may have been missed */
/* The kicker: tells some of the news by the root of the mount (-1: passes them over). True: there
 * is more. */
bool work_tell(struct fsd *f, int root);
/* A look-up by the kicker: the session that it means, whatever its name is for whom. */
bool work_now_row(struct fsd *f, int64_t *ret);

/* Handlers; each answers. */
int work_root_attr(struct fsd *f, fuse_ino_t ino, struct stat *st, double *timeout);
void work_lookup(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name);
void work_forget(struct fsd *f, fuse_ino_t ino, uint64_t nlookup); /* answers nothing */
void work_getattr(struct fsd *f, fuse_req_t req, fuse_ino_t ino);
void work_setattr(struct fsd *f, fuse_req_t req, fuse_ino_t ino, const struct stat *attr,
		  int to_set, struct fuse_file_info *fi);
void work_readlink(struct fsd *f, fuse_req_t req, fuse_ino_t ino);
void work_mkdir(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode);
void work_mknod(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode);
void work_symlink(struct fsd *f, fuse_req_t req, const char *target, fuse_ino_t parent,
		  const char *name);
void work_link(struct fsd *f, fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name);
void work_create(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
		 struct fuse_file_info *fi);
void work_unlink(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name, bool is_dir);
void work_rename(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name,
		 fuse_ino_t newparent, const char *newname, unsigned flags);
void work_file_open(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void work_read(fuse_req_t req, struct fuse_file_info *fi, size_t size, off_t off);
void work_write(fuse_req_t req, struct fuse_file_info *fi, const char *data, size_t size,
		off_t off);
void work_fsync(struct fsd *f, fuse_req_t req, struct fuse_file_info *fi, bool datasync);
void work_lseek(fuse_req_t req, struct fuse_file_info *fi, off_t off, int whence);
void work_fallocate(fuse_req_t req, struct fuse_file_info *fi, int mode, off_t off, off_t len);
void work_copy_range(fuse_req_t req, struct fuse_file_info *from, off_t off_in,
		     struct fuse_file_info *to, off_t off_out, size_t len);
void work_release(struct handle *h, bool passed);
void work_dir_open(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void work_readdir(fuse_req_t req, struct fuse_file_info *fi, size_t size, off_t off, bool plus);
void work_statfs(struct fsd *f, fuse_req_t req, fuse_ino_t ino);
void work_getxattr(struct fsd *f, fuse_req_t req, fuse_ino_t ino, const char *name, size_t size);
void work_listxattr(struct fsd *f, fuse_req_t req, fuse_ino_t ino, size_t size);
void work_setxattr(struct fsd *f, fuse_req_t req, fuse_ino_t ino, const char *name,
		   const char *value, size_t size, int flags);
void work_removexattr(struct fsd *f, fuse_req_t req, fuse_ino_t ino, const char *name);

/* ---- ops.c ----------------------------------------------------------------------------------- */

extern const struct fuse_lowlevel_ops fsd_ops;
/* errno for a failure of the orchestrator; also remembers nothing. */
int fsd_errno(const struct sbx_error *e);

#endif
