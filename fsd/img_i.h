/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the files about images/. */
#ifndef SBX_FSD_IMG_I_H
#define SBX_FSD_IMG_I_H

#include "fsd/dir_i.h"
#include "orchestrator/images.h"

enum { IMG_ERRORS = 64 }; /* failures that are remembered; the oldest go */

int64_t img_number(const char *name);

/* ---- coming.c -------------------------------------------------------------------------------- */

/* The number of a file NAME.error; place: the id of a session, "" for images. */
int64_t coming_number(const char *place, const char *name);
/* The names of all of a place; how many. */
size_t coming_failures(struct fsd *f, const char *place, char ret[IMG_ERRORS][SESSION_NAME]);

#endif
