/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SBX_FSD_OPTIONS_H
#define SBX_FSD_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

enum fsd_mode {
	FSD_MOUNT = 1,
	FSD_CHECK,
	FSD_PRINT_CONFIG,
	FSD_VERSION,
	FSD_HELP,
	FSD_IMPORT_IMAGE,
	FSD_REMOVE_IMAGE,
	FSD_LIST_IMAGES,
	FSD_UNPACK_TREE, /* for a door: standard input into the directory that is open as 4 */
};

/* The command line of sandboxfs, taken apart. Strings are owned. */
struct fsd_options {
	enum fsd_mode mode;
	bool foreground, debug, json, allow_other;
	char *mountpoint;     /* absolute, without links */
	char *state, *config; /* absolute; state NULL: the default place */
	int workers;	      /* -1: not given */
	char *fuse_opts;      /* for the kernel and libfuse, comma separated */
	char **overrides;     /* "key=value" settings */
	size_t n_overrides;
	char *image, *image_file; /* its name; of an import: the file, "-" is standard input;
				     of FSD_UNPACK_TREE the bytes that it may have */
};

/* INVALID_ARGUMENT names the option and what is allowed. */
int fsd_options_parse(int argc, char **argv, struct fsd_options *ret, struct sbx_error *e);
void fsd_options_clear(struct fsd_options *o);
extern const char fsd_usage[];

/* ---- places.c -------------------------------------------------------------------------------- */

/* o->state: as given, else the setting, else the default. INVALID_CONFIG. */
int fsd_choose_state(struct fsd_options *o, struct sbx_error *e);
/* A server that reads its own state through its own mount would wait for itself: INVALID_CONFIG. */
int fsd_check_places(const struct fsd_options *o, struct sbx_error *e);
/* Becomes sandbox-image, which is beside this program or in libexec, with the same command line; it
 * returns only to say that it could not (INVALID_CONFIG). */
int fsd_become_images(char **argv, struct sbx_error *e);
/* Unmounts what a killed server left there. */
void fsd_repair_mount(const char *mountpoint);

#endif
