/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to runtimes/namespace/.
 *
 * Three processes make a sandbox:
 *   runner   the caller: clones init, writes its id maps, sends it what to do
 *   init     process 1 inside: builds the root, fills the workspace, reaps, reports the end
 *   command  process 2 inside: gives up every right long before there is a plan, then waits for
 *            what to execute (struct ns_exec), then for the word to do it
 * Each source file below says in which of them its functions run. Messages are plain structs on
 * stream sockets: both ends are the same program.
 */
#ifndef SBX_RUNTIMES_NAMESPACE_NS_I_H
#define SBX_RUNTIMES_NAMESPACE_NS_I_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "runtimes/filter_i.h"
#include "runtimes/runtimes.h"

struct clone_args;

enum {
	NS_ID = 1000, /* the user and group that the command is, inside */
	NS_ROOT_BYTES = 4 << 20,
	NS_ROOT_INODES = 4096,
	NS_EXEC_MAX = 8 << 20, /* arguments and environment of one command */
	NS_REPLY_SECONDS = 20, /* the longest that init may need for one step */
};

/* Where it went wrong; a preflight turns it into a reason. */
enum ns_stage {
	NS_STAGE_OTHER,
	NS_STAGE_USER,
	NS_STAGE_MOUNT,
	NS_STAGE_CGROUP,
	NS_STAGE_SECCOMP,
	NS_STAGE_IMAGE,
	NS_STAGE_FILES,
	NS_STAGE__COUNT,
};

/* ---- messages (wire.c, all processes) -------------------------------------------------------- */

enum ns_op { NS_OP_GO = 1, NS_OP_PREPARE, NS_OP_SIGNAL };

/* Runner to init. PREPARE is followed by struct ns_fill. */
struct ns_order {
	uint32_t op;
	int32_t scope, sig; /* SIGNAL */
};

/* Followed by the cwd (with its NUL) and n_files times struct ns_file, its path (with NUL), data.
 * has_tree: a detached mount for /workspace comes with the order. */
struct ns_fill {
	int64_t workspace_bytes, workspace_inodes, tmp_bytes;
	uint32_t has_tree, cwd_size, n_files;
};
struct ns_file {
	uint64_t size;
	uint32_t path_size, mode;
};

/* Init or command to runner: err 0 is success. */
struct ns_reply {
	int32_t err;
	uint32_t stage;
	char text[240];
};

/* Init to runner, its last words: everything else in the sandbox is dead. */
struct ns_done {
	int32_t status;
	uint64_t cpu_us;     /* of everything that was waited for, by whomever */
	uint64_t peak_bytes; /* of the largest process */
};

/* Runner to command. Followed by `size` bytes: cwd, argc arguments, envc variables, each with NUL;
 * and later by one byte, which means go. */
struct ns_exec {
	uint32_t size, argc, envc;
	uint32_t stdin_open;
	uint64_t nofile, nproc, data; /* 0: leave as it is */
};

/* The whole of it, or a negative errno. fd >= 0 goes along as SCM_RIGHTS. Consumes iov. */
int ns_send(int sock, struct iovec *iov, size_t n, int fd);
/* Exactly len bytes; -EPIPE at the end of the stream. *ret_fd, when ret_fd is not NULL, is a
 * descriptor that came along, or -1. */
int ns_recv(int sock, void *data, size_t len, int *ret_fd);
/* Fills r and returns -1. */
int ns_fail(struct ns_reply *r, enum ns_stage stage, int err, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
/* Closes every descriptor from 3 up except these; keep[] is sorted by the call, -1 is ignored. */
void ns_close_others(int *keep, size_t n);

/* ---- what runner prepares for init (copied by the clone) ------------------------------------- */

struct ns_config {
	const struct rt_host *host;
	const char *image;     /* NULL: image "host" */
	const char *workspace; /* bound by name; NULL: a tmpfs */
	dev_t workspace_dev;
	ino_t workspace_ino;
	bool workspace_ro;
	bool own_ids;  /* the runner gives ids of their own (it is root) */
	bool has_base; /* cloned within a template: the read-only part is there */
	bool has_net;  /* cloned within a network namespace */
	bool landlock;
	const struct sock_filter *filter;
	size_t n_filter;
	int sock;	  /* init's end */
	int command_sock; /* the command's end */
	int in, out, err; /* the command's ends */
};

/* ---- init.c, root.c, root_image.c, fill.c: process 1 ----------------------------------------- */

enum ns_area { NS_AREA_WORKSPACE, NS_AREA_TMP, NS_AREA_SHM, NS_AREA__COUNT };

struct ns_root {
	int area_ctx[NS_AREA__COUNT]; /* file system contexts, for a new size; -1: a bound directory
				       */
	int workspace;		      /* O_RDONLY directory */
	int ruleset;		      /* Landlock; -1: none */
};

_Noreturn void ns_init_main(const struct ns_config *c);
/* The read-only part, and the move into it. The working directory is the root afterwards. */
int ns_root_base(const struct ns_config *c, struct ns_reply *r);
/* What lies on top of it, for one sandbox. */
int ns_root_own(const struct ns_config *c, struct ns_root *ret, struct ns_reply *r);
/* The image's part of the root; the working directory is the new root. */
int ns_image_host(struct ns_reply *r);
/* Before there is a new root: the image's directory, or -1. */
int ns_image_open(const struct ns_config *c, struct ns_reply *r);
int ns_image_directory(int tree, struct ns_reply *r);
/* Covers a directory of the host in case that it can be seen in the new root. */
int ns_hide(const struct ns_config *c, const char *path, struct ns_reply *r);
/* Reads what follows a PREPARE order and carries it out. */
int ns_fill_workspace(int sock, int tree, struct ns_root *root, struct ns_reply *r);

/* mount.c: process 1; names are relative to the working directory. */
struct ns_tmpfs {
	int64_t bytes, inodes;
	mode_t mode;
	uint64_t attr; /* MOUNT_ATTR_* besides NOSUID and NODEV */
};
int ns_tmpfs_mount(const char *target, const struct ns_tmpfs *t, int *ret_ctx, struct ns_reply *r);
int ns_tmpfs_resize(int ctx, const struct ns_tmpfs *t, struct ns_reply *r);
/* Binds dirfd/source with everything below it; attr is MOUNT_ATTR_*. -ENOENT when there is no
 * source, else 0, or -1 with r filled. */
int ns_bind(int dirfd, const char *source, const char *target, uint64_t attr, struct ns_reply *r);
/* Attaches a detached mount. */
int ns_attach(int tree, const char *target, struct ns_reply *r);
int ns_mount_proc(struct ns_reply *r);
int ns_mount_pts(struct ns_reply *r);
int ns_make_dev(struct ns_reply *r);
/* In an image /var/tmp may be a directory; then it is /tmp. */
int ns_bind_var_tmp(struct ns_reply *r);
int ns_mkdir(const char *path, mode_t mode, struct ns_reply *r);
int ns_write_new(const char *path, const char *text, struct ns_reply *r);

/* ---- command.c: process 2 -------------------------------------------------------------------- */

/* Starts it; its process number, or -1 with errno set. */
pid_t ns_command_start(const struct ns_config *c, int ruleset);

/* ---- landlock.c ------------------------------------------------------------------------------ */

int ns_landlock_abi(void); /* 0: not there */
/* A ruleset for the finished root, opened by the names in it; -1 with r filled. */
int ns_landlock_new(struct ns_reply *r);
/* Lets everything below dirfd be changed. */
int ns_landlock_allow(int ruleset, int dirfd, struct ns_reply *r);
int ns_landlock_enter(int ruleset);

/* ---- filter.c: runner ------------------------------------------------------------------------ */

/* The system call filter, built once per process. */
int ns_filter_get(const struct sock_filter **ret, size_t *ret_len, struct sbx_error *e);

/* ---- build.c, idmap.c, prepare.c, driver.c: runner ------------------------------------------- */

struct ns_sandbox {
	struct rt_sandbox_base base; /* first */
	const struct rt_host *host;
	struct cg_leaf *leaf;  /* owned; NULL: no groups here */
	struct ns_net *net;    /* owned; NULL: init's own */
	struct egress *egress; /* owned; NULL: no network */
	char *image;	       /* owned; NULL: "host" */
	bool has_bound;	       /* the workspace was bound when the root was built */
	bool bind_ro;	       /* and is to be bound read-only */
	bool own_ids;
	uid_t uid; /* the command's user, outside */

	pid_t pid;	  /* of init; 0: none */
	int pidfd;	  /* of init */
	int sock;	  /* to init */
	int command;	  /* to the command; -1 once it has been started */
	int score;	  /* of init: its oom_score_adj */
	int exit;	  /* epoll of sock and pidfd: something for reap() */
	int in, out, err; /* the runner's ends of the pipes */
	int mnt;	  /* the mount namespace: held so that its end is not init's to wait for */
	int netns,
		userns; /* of init; -1: it has a network namespace of the host's, which is `net` */
	int workspace;

	bool fitted;		    /* to fitted_to, with an empty workspace and nothing else */
	struct rt_limits fitted_to; /* while fitted */
	bool stdin_open;
	bool prepared, started;
	bool over;	    /* the end is known: every process but init is dead */
	bool gone;	    /* init has been waited for */
	bool killed;	    /* by us, for certain */
	uint64_t signals;   /* bit n-1: signal n was sent */
	struct rt_exit end; /* exec_errno since start, the rest once over */
};

struct cg *ns_groups(const struct rt_host *host, struct sbx_error *e); /* one per process */
int ns_create(const struct rt_host *host, struct ns_sandbox **ret, enum ns_stage *stage,
	      struct sbx_error *e);
/* Makes the processes of an empty sandbox. workspace: see struct ns_config. */
int ns_build(struct ns_sandbox *sb, const char *image, int workspace_fd, enum ns_stage *stage,
	     struct sbx_error *e);
/* Ends them and closes everything; sb is as it was before ns_build. */
void ns_teardown(struct ns_sandbox *sb);
/* Root only: a mount namespace that holds the read-only part of this image, kept for later
 * sandboxes. *ret is borrowed. */
int ns_template_get(const struct rt_host *host, const char *image, int *ret, enum ns_stage *stage,
		    struct sbx_error *e);
/* clone3 in that mount namespace; returns as clone3 does. */
pid_t ns_template_clone(int mnt, const struct clone_args *args, size_t size);

/* net.c, root only: a network namespace with loopback up in which nothing has happened yet. */
struct ns_net;
int ns_net_take(struct ns_net **ret, struct sbx_error *e);
/* Has no other sandbox had it before? */
bool ns_net_is_new(const struct ns_net *n);
/* The namespace, for setns(2); borrowed. It is not kept for another sandbox afterwards. */
int ns_net_use(struct ns_net *n);
/* When everything in it is dead. NULL is fine. */
void ns_net_give_back(struct ns_net *n);
/* Puts the caller into it until ns_net_leave(). -1 with errno set. */
int ns_net_enter(const struct ns_net *n, int *ret_own);
void ns_net_leave(int *own); /* -1 is fine */
int ns_loopback_up(void);    /* in the caller's; -1 with errno set */
/* One reply of init (with a descriptor) or of the command. */
int ns_await(int sock, int *ret_fd, enum ns_stage *stage, enum sbx_code code, struct sbx_error *e);
bool ns_is_root(void); /* may give sandboxes ids of their own */
/* A detached mount of the directory in which the owner of its files is `uid`. */
int ns_workspace_tree(int fd, uid_t uid, bool read_only, int *ret, struct sbx_error *e);

int ns_prepare(struct rt_sandbox *sb, const struct rt_plan *p, struct sbx_error *e);
/* Fits a new sandbox to limits, for a plan that has them and asks for nothing else. */
int ns_fit_ahead(struct ns_sandbox *sb, const struct rt_limits *limits, struct sbx_error *e);
/* CPU time of a process and its descendants, from /proc; for hosts without groups. */
uint64_t ns_tree_cpu_us(pid_t pid);
void ns_preflight(const struct rt_host *host, struct rt_preflight *out);
extern const struct rt_driver rt_namespace;

#endif
