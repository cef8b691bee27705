/* SPDX-License-Identifier: Apache-2.0 */
/* Private to this folder. */
#ifndef SBX_RUNTIMES_RUNTIMES_I_H
#define SBX_RUNTIMES_RUNTIMES_I_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "runtimes/runtimes.h"

/* preflight.c: of a sandbox that is only tried. */
extern const struct rt_limits rt_preflight_limits;
/* Runs the plan's command, which must end well before then (boot clock). */
int rt_preflight_run(struct rt_sandbox *sb, const struct rt_plan *plan, int64_t until_us,
		     struct sbx_error *e);
/* A door learns a reason literal; why it is so stands in the log. */
void rt_preflight_log(const char *runtime, const char *tried, const struct sbx_error *e);

/* How many files and directories a tmpfs for temporary files may have, with this many bytes; its
 * root not counted. */
enum { RT_TMP_INODES_MIN = 1024, RT_TMP_BYTES_PER_INODE = 4096 };
static inline int64_t rt_tmp_inodes(int64_t bytes)
{
	int64_t n = bytes / RT_TMP_BYTES_PER_INODE;

	return n < RT_TMP_INODES_MIN ? RT_TMP_INODES_MIN : n;
}

/*
 * said.c: text of a program outside (an engine, git), made fit for a message that leaves through a
 * door: one line of valid UTF-8 without control characters, at most size-1 bytes, "..." at the end
 * of what was cut; without the names, passwords and queries of addresses, and without the path
 * `dir`, the state directory (NULL: none). size > 4.
 */
enum { RT_SAID_SIZE = 400 };
void rt_said(const char *dir, const char *said, char *out, size_t size);

/* reasons.c: the table's own string that equals raw[0..len), or NULL. */
const char *rt_reason_literal(const char *raw, size_t len);

/* idmap.c, root only: a detached mount of the directory in which its owner is this user. */
int rt_workspace_tree(int fd, uid_t uid, gid_t gid, bool read_only, int *ret, struct sbx_error *e);

#endif
