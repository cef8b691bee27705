/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to runtimes/worktree/.
 *
 * A worktree is made by git, in a sandbox of its own (the driver `namespace`) that sees nothing of
 * the host but its programs and, read-only, one repository. What comes out of it is a tar: the
 * files of HEAD and a repository of their own. That is what the run gets, in a second sandbox, in
 * memory. So no git ever runs on the host, nothing is written into the repository, the run never
 * sees it, and nothing on the disk has to be removed afterwards, whoever dies.
 */
#ifndef SBX_RUNTIMES_WORKTREE_WT_I_H
#define SBX_RUNTIMES_WORKTREE_WT_I_H

#include <stdbool.h>
#include <stddef.h>

#include "runtimes/runtimes.h"

enum {
	WT_SECONDS = 30,	  /* for making a worktree */
	WT_PREFLIGHT_SECONDS = 5, /* for each step of a preflight */
	WT_GIT_MAJOR = 2,	  /* the oldest git that is used: 2.15 */
	WT_GIT_MINOR = 15,
};

extern const struct rt_driver rt_namespace; /* runtimes/namespace/driver.c */

/* ---- source.c: what a worktree is made of ---------------------------------------------------- */

struct wt_source {
	int dir;	 /* owned; -1: nothing, it begins empty */
	bool repository; /* dir is one; else its files are taken as they are */
};
/* POLICY_UNSUPPORTED: a directory that the operator has not allowed; RUNTIME_ERROR: no repository
 * that can be used. */
int wt_source_open(const struct rt_host *host, const struct rt_plan *p, struct wt_source *ret,
		   struct sbx_error *e);

/* ---- tar.c: what git's sandbox says ---------------------------------------------------------- */

struct wt_tree {
	struct rt_file *list; /* owned, with the paths and the targets of links */
	size_t n, size;
};
void wt_tree_clear(struct wt_tree *t);
/* Reads a tar of GNU's kind; contents of files point into it. Nothing in it is trusted: paths are
 * clean and relative, and there are only directories, files and links, at most `max` of them.
 * RUNTIME_ERROR when it is no such tar, WORKSPACE_CAP when it has too many entries. */
int wt_tar_read(const void *tar, size_t len, size_t max, struct wt_tree *ret, struct sbx_error *e);

/* ---- checkout.c: git at work ----------------------------------------------------------------- */

/* A finished worktree; wt_checkout_clear gives back what its files point into. */
struct wt_checkout {
	struct wt_tree tree;
	void *map; /* owned mapping */
	size_t len;
};
void wt_checkout_clear(struct wt_checkout *c);
/* Within so many seconds. WORKSPACE_CAP: it does not fit; POLICY_UNSUPPORTED: uncommitted changes;
 * else RUNTIME_ERROR. */
int wt_checkout(const struct rt_host *host, const struct wt_source *src, const struct rt_plan *p,
		int seconds, struct wt_checkout *ret, struct sbx_error *e);
/* What `git --version` says in a sandbox, NUL-terminated. False: nothing. */
bool wt_git_version(const struct rt_host *host, char *ret, size_t size);

/* ---- env.c ----------------------------------------------------------------------------------- */

/* What the run's document and the runner say, and of the service's own variables those that the
 * operator names; never one that holds a login. *ret is NULL-terminated and owned. */
int wt_env_make(const struct rt_host *host, char *const *envp, char ***ret, struct sbx_error *e);
void wt_env_free(char **envp);

/* ---- preflight.c ----------------------------------------------------------------------------- */

void wt_preflight(const struct rt_host *host, struct rt_preflight *out);

#endif
