/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ways to isolate. A runtime is one const struct rt_driver in a table; what is known about
 * every runtime, usable here or not, is in known.def and reasons.def.
 *
 * Drivers run only inside sandbox-runner, which is single-threaded, and never touch the store.
 * They hand the runner descriptors to poll; log, caps, time limits, cancel, artifacts are the
 * runner's, so that all runtimes treat them alike. A driver that cannot honour part of a plan
 * fails prepare(); it never degrades.
 */
#ifndef SBX_RUNTIMES_RUNTIMES_H
#define SBX_RUNTIMES_RUNTIMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/error.h"
#include "runtimes/net/egress.h"

struct json_object;

/* ---- what a driver is told ------------------------------------------------------------------- */

enum rt_network { RT_NET_DENY_ALL = 1, RT_NET_ALLOWLIST };

struct rt_limits;

/* What the operator says about the runtime `worktree`. Lists are separated by commas. */
struct rt_worktree {
	const char *allowed_dirs; /* where repositories of the host may lie; NULL: nowhere */
	const char *env;	  /* variables of the service that a command gets; NULL: none */
	int64_t depth;		  /* commits of history; 0: all */
	bool dirty_is_head;	  /* uncommitted changes are left out; false: they end the run */
	bool deny_all;		  /* its empty network is published as policy deny_all */
};

/*
 * How a driver waits for something outside without being deaf: on its own descriptors and `bell`.
 * turn() is called first, then when the bell is readable, and when the boot-clock time has come
 * that it returned last; it says until when to wait now, or RT_GIVE_UP: the step fails at once with
 * INTERRUPTED, and the caller knows why. `counts`: the startup timeout goes on from now on; else it
 * stands still until the next call.
 */
#define RT_GIVE_UP INT64_C(-1)
struct rt_waiting {
	int bell; /* -1: none */
	int64_t (*turn)(void *ctx, bool counts);
	void *ctx;
};

/* What the docker runtime is told; all borrowed. */
struct rt_docker {
	const char *host;	   /* socket of the engine, "/path" or "unix:///path" */
	const char *seccomp;	   /* file with a profile; NULL: the engine's own */
	const char *apparmor;	   /* name of a profile; NULL: the engine's own */
	const char *default_image; /* of a sandbox that is made ahead */
	const char *programs;	   /* directory of our programs; NULL: where this one is */
	uint32_t uid, gid;	   /* of the command, inside */
	int64_t nproc;		   /* RLIMIT_NPROC */
	bool pull;		   /* whether images that are not there are fetched */
	int64_t pull_timeout_sec;
	bool warm; /* whether create() starts a container ahead */
};

/* Facts about the host and the operator's wishes, the same for every run. All borrowed. */
struct rt_host {
	const char *state_dir;	/* must never be visible in a sandbox */
	const char *mountpoint; /* nor this; NULL when there is none */
	uint32_t uid_base;	/* root only: sandbox uids are uid_base + slot, slot < uid_range */
	uint32_t uid_range;
	const char *cgroup_root; /* where our leaves go; NULL: <own cgroup>/sandboxfs */
	bool landlock; /* use it where the kernel has it (default); false only by setting */
	const struct rt_docker *docker; /* NULL: the defaults of the settings */
	/* During create(), prepare() and start(); NULL: nobody wants to interrupt them. */
	const struct rt_waiting *waiting;
	bool egress; /* the operator lets sandboxes reach what is on his list, which is not empty */
	/* What the next plan's limits will probably be: create() may fit the sandbox to them, off
	 * the client's path. NULL: nothing is known. */
	const struct rt_limits *expected;
	struct rt_worktree worktree;
};

struct rt_file {
	const char *path; /* clean and relative to the workspace */
	const void *data;
	size_t len;
	mode_t mode; /* permissions; with S_IFDIR a directory, with S_IFLNK a link to data, else a
			file */
};

struct rt_limits {
	int64_t memory_bytes; /* of all processes together, swap included */
	int64_t pids; /* processes and threads of the command's tree, our init not counted */
	int64_t nofile;
	int64_t workspace_bytes, workspace_inodes; /* of /workspace */
	int64_t tmp_bytes;			   /* of /tmp and /dev/shm, each */
	double cpu;				   /* cores */
	bool strict; /* fail prepare() unless memory and pids hold for the tree as a whole (cgroup);
			otherwise per-process limits stand in where there is no cgroup */
};

struct rt_plan {
	const char *run_id; /* for labels */
	int64_t generation;
	const char *image_path; /* host directory with the root file system; NULL: image "host" */
	const char *image_name; /* as the document has it, for drivers with images_by_name */
	char *const *argv;	/* NULL-terminated, at least one */
	char *const *envp;	/* NULL-terminated NAME=value, complete */
	size_t n_env_defaults;	/* the first so many of envp are ours, and an image may know better
				 */
	const char *cwd;	/* absolute, inside; made when it is below /workspace and missing */
	const struct rt_file *files;
	size_t n_files;
	struct rt_limits limits;
	enum rt_network network;
	const struct egress_config *egress; /* with RT_NET_ALLOWLIST; else NULL */
	bool stdin_open;   /* false: the command's stdin is at end of file from the start */
	int workspace_fd;  /* directory to bind at /workspace; -1: a tmpfs of limits.workspace_* */
	bool workspace_ro; /* it may be read only */
};

/* ---- what a driver says ---------------------------------------------------------------------- */

struct rt_fds {
	int out, err;  /* read ends, non-blocking */
	int in;	       /* write end, non-blocking; -1 without stdin_open */
	int exit;      /* readable when reap() has something to say */
	int workspace; /* O_RDONLY directory of the workspace, usable after the sandbox is dead; -1
			  when the driver has none */
};

struct rt_exit {
	int status;	/* wait status of the command as in waitpid(2) */
	int exec_errno; /* the command could not be executed; status is then 127 << 8 or 126 << 8 */
	bool oom;	/* the kernel killed for memory, at least once in the tree */
	bool pids_hit;	/* a fork was refused by the pids limit, at least once */
	bool killed_by_us;   /* signal() or destroy() ended it */
	uint64_t cpu_us;     /* user and system time of the whole tree */
	uint64_t peak_bytes; /* peak memory of the tree; 0 when unknown */
	bool lost; /* the sandbox vanished without a status (its init was killed from outside) */
	bool has_egress; /* it had a network */
	struct egress_counters egress;
	const char *egress_list; /* see egress_list(); borrowed from the sandbox */
};

enum rt_signal_scope {
	RT_SIGNAL_COMMAND, /* the command's process group */
	RT_SIGNAL_ALL,	   /* every process of the sandbox */
};

struct rt_sandbox; /* one driver's own struct, beginning with struct rt_sandbox_base */
struct rt_driver;
struct rt_sandbox_base {
	const struct rt_driver *driver;
};

/* What a preflight found by trying. */
enum { RT_REASONS_MAX = 8 };
struct rt_preflight {
	const char
		*reasons[RT_REASONS_MAX]; /* raw reason literals, static strings; none: available */
	size_t n_reasons;
	bool deny_all_ready, allowlist_ready;
	bool trusted, standard, untrusted; /* trust levels it can serve here */
	char *host_json; /* facts for troubleshooting, a JSON object; owned; NULL: {} */
};
void rt_preflight_clear(struct rt_preflight *p);

/* What a driver found out about where a run executes; borrowed from the sandbox. NULL: not
 * known.
 */
struct rt_facts {
	const char *image_digest, *runtime_version;
};

struct rt_driver {
	const char *name;
	/* Unused sandboxes are small (half a MiB) and fast to make, so that a runner may
	 * keep many of them. */
	bool may_stock;
	/* It finds images itself: a plan has an image_name and no image_path. */
	bool images_by_name;
	/* What a run has as its image is a git repository: where it lies must be allowed, see
	 * rt_worktree_allowed(). */
	bool image_is_repository;

	/* Required. Tries the thing itself, with a time limit of its own (a few seconds),
	 * and leaves nothing behind. Always fills *out. */
	void (*preflight)(const struct rt_host *host, struct rt_preflight *out);

	/* Required. A sandbox that belongs to no run yet: everything that does not depend
	 * on a plan is done here (namespaces, default image, cgroup leaf), off the client's
	 * path. */
	int (*create)(const struct rt_host *host, struct rt_sandbox **ret, struct sbx_error *e);

	/* Required. Everything up to exec. RUNTIME_ERROR, RUNTIME_UNAVAILABLE,
	 * IMAGE_NOT_FOUND, WORKSPACE_CAP (files do not fit), POLICY_UNSUPPORTED (a limit
	 * cannot be enforced), INTERRUPTED (see struct rt_waiting). */
	int (*prepare)(struct rt_sandbox *sb, const struct rt_plan *plan, struct sbx_error *e);

	/* Required. The command runs; returns when execve happened or failed (then reap()
	 * tells). The descriptors in *ret are the caller's to close. */
	int (*start)(struct rt_sandbox *sb, struct rt_fds *ret, struct sbx_error *e);

	/* Required. -ESRCH when it is over. SIGKILL with RT_SIGNAL_ALL ends the sandbox for
	 * certain. */
	int (*signal)(struct rt_sandbox *sb, enum rt_signal_scope scope, int sig);

	/* Required. After rt_fds.exit is readable: true once every process is dead and *out is
	 * filled; false: not yet, poll again. Never blocks, but for two seconds at the most to
	 * count what a network refused, when everything else is over. */
	bool (*reap)(struct rt_sandbox *sb, struct rt_exit *out);

	/* Required. CPU time and memory peak so far, for live usage; cheap. */
	void (*usage)(struct rt_sandbox *sb, uint64_t *cpu_us, uint64_t *peak_bytes);

	/* Optional. Whenever prepare() was called, whatever came of it. */
	void (*facts)(const struct rt_sandbox *sb, struct rt_facts *out);

	/* Optional. After its run: it holds so little, memory above all, that destroy() may wait
	 * for a better moment. NULL: it may not. */
	bool (*may_linger)(struct rt_sandbox *sb);

	/* Required. Kills what lives, waits for it, removes every outside thing, frees sb.
	 * In any state, also half-made. NULL is fine. */
	void (*destroy)(struct rt_sandbox *sb);

	/* Required. Removes outside things (cgroups, ...) of this driver whose owner
	 * process is gone. From their labels alone; never touches what a living runner
	 * owns. */
	void (*sweep)(const struct rt_host *host);
};

/* NULL: a runtime without a driver in this build (its preflight reasons say why). */
const struct rt_driver *rt_driver_find(const char *name);

/* ---- what is known about every runtime ------------------------------------------------------- */

enum rt_support { RT_UNSUPPORTED = 1, RT_SUPPORTED, RT_SCAFFOLD, RT_HOST_GATED, RT_NOT_APPLICABLE };
const char *rt_support_name(enum rt_support s);

struct rt_policy_posture {
	enum rt_support state;
	bool strict;
	const char *readiness_source; /* "config", "runtime_preflight", "not_applicable" */
};

/* Static posture: one row of known.def. */
struct rt_known {
	const char *name;
	enum rt_support implementation;
	const char *boundary_class;
	bool vm_grade, untrusted_eligible;
	struct rt_policy_posture deny_all, allowlist;
	enum rt_support session_support;
	const char *session_reuse;
	bool session_live_check;
	enum rt_support session_recovery, session_repair;
	const char *default_images; /* separated by one space */
	const char *notes;	    /* one sentence */
};
const struct rt_known *rt_known_at(size_t i); /* NULL past the end; table order is list order */
const struct rt_known *rt_known_find(const char *name);

/* May a repository in this directory be used by the runtime `worktree`? POLICY_UNSUPPORTED
 * says that it is not below one of dirs, a list separated by commas. Whoever cannot even
 * look for it leaves that to the driver, which asks once more. */
int rt_worktree_allowed(const char *dirs, const char *path, struct sbx_error *e);

/* Asks the driver, or for runtimes without one does the probe that finds its reasons. */
void rt_preflight(const char *name, const struct rt_host *host, struct rt_preflight *out);

/* One record as a JSON object: available, reasons, deny_all_ready, allowlist_ready,
 * trust_levels, host. The other way round, reasons that are no literals of reasons.def
 * become "unknown". */
void rt_preflight_json(const struct rt_preflight *p, struct sbx_buf *out);
int rt_preflight_from_json(struct json_object *o, struct rt_preflight *ret);

/* raw reason -> stable code ("host_prerequisite_missing", ...; "unknown"). Static string. */
const char *rt_reason_normalize(const char *raw);
struct rt_reason_info {
	const char *code, *category, *severity, *operator_action;
};
const struct rt_reason_info *rt_reason_info(const char *code); /* of "unknown" for others */

#endif
