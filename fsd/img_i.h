/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the files about images/. */
#ifndef SBX_FSD_IMG_I_H
#define SBX_FSD_IMG_I_H

#include "fsd/dir_i.h"
#include "orchestrator/images.h"

enum { IMG_ERRORS = 64 }; /* failures that are remembered; the oldest go */

int64_t img_number(const char *name);

/* ---- image_in.c: files that are copied into images/ ------------------------------------------ */

/* Size and owner of one that is open. -ENOENT. */
int img_in_attr(struct fsd *f, fuse_ino_t ino, struct stat *st);
/* The file of this number, NAME.error, if there is one; out may be NULL. */
bool img_failed(struct fsd *f, int64_t number, struct sbx_buf *out);
/* The names of all; how many. */
size_t img_failures(struct fsd *f, char ret[IMG_ERRORS][SESSION_NAME]);

#endif
