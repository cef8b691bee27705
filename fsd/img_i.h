/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the files about images/. */
#ifndef SBX_FSD_IMG_I_H
#define SBX_FSD_IMG_I_H

#include "fsd/dir_i.h"
#include "orchestrator/images.h"

enum { IMG_ERRORS = 64 }; /* failures that are remembered; the oldest go */

int64_t img_number(const char *name);

/* ---- failures.c: NAME.error; place is the id of a session, "" for images --------------------- */

struct failed {
	const char *place, *name; /* name: without ".error" */
	uid_t uid;		  /* whose */
	enum ms_node_id node;
	char *text; /* a gift: the error as JSON; NULL: all went well, so there is none now */
};
void failures_put(struct failures *fl, const struct failed *what);
/* By the name with ".error". False: there is none. */
bool failures_drop(struct failures *fl, const char *place, const char *name);
/* Its size and owner; -ENOENT. */
int failures_attr(struct failures *fl, fuse_ino_t ino, struct stat *st);
/* Its number is its own, and no other file of its kind ever had it. */
struct img_error {
	int64_t number;
	char name[SESSION_NAME];
};
/* All of a place; how many. */
size_t failures_list(struct failures *fl, const char *place, struct img_error ret[IMG_ERRORS]);

#endif
