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

/* session_dir.c: what the state has in sessions/ and below. after: the row of the last one that was
 * listed, 0: from the first. -errno. */
/* image.c: the same of images/. */
int img_list(struct listing *l, int64_t after);
int session_list(struct listing *l, fuse_ino_t dir, const struct orch_principal *p, int64_t after);

#endif
