/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the files that list directories of the tree. */
#ifndef SBX_FSD_DIR_I_H
#define SBX_FSD_DIR_I_H

#include "fsd/fsd_i.h"

/* Offsets are cookies that stay true while entries come and go: fixed children have their place in
 * the table, others their row. */
enum {
	OFF_DOT = 1,
	OFF_DOTDOT = 2,
	OFF_FIXED = 16,	       /* + node id */
	OFF_DYNAMIC = 1 << 10, /* + row */
};

struct listing {
	struct fsd *f;
	fuse_req_t req;
	bool plus;
	char *buf;
	size_t size, len;
};

/* False: the buffer is full. */
bool dir_add(struct listing *l, const char *name, off_t next, const struct fuse_entry_param *e);

/* May the caller see that such nodes exist? */
bool dir_visible(const struct orch_principal *p, const struct ms_node *n);
/* The runs of `by`, as long as there is room, each by add(), which is false when there is none. The
 * place of an entry is the row of its run. -errno. */
int dir_add_runs(struct listing *l, struct store_keys_by *by, enum ms_node_id node,
		 bool (*add)(struct listing *l, const struct store_run_key *key,
			     enum ms_node_id node));

/* session_dir.c: what the state has in sessions/ and below. after: the row of the last one that was
 * listed, 0: from the first. -errno. */
/* image.c: the same of images/. */
int img_list(struct listing *l, int64_t after);
int session_list(struct listing *l, fuse_ino_t dir, const struct orch_principal *p, int64_t after);
/* Calls each() for the sessions behind this row that the caller may see, with their names for him;
 * false: the buffer is full. -errno. */
int session_each(struct listing *l, const struct orch_principal *p, int64_t after,
		 bool (*each)(struct listing *l, int64_t row, const char *name));

/* by.c: the same for what the state has below by/. */
int by_list(struct listing *l, fuse_ino_t dir, int64_t after);

#endif
