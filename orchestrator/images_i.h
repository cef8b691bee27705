/* SPDX-License-Identifier: Apache-2.0 */
/* What the files about importing images share. */
#ifndef SBX_ORCHESTRATOR_IMAGES_I_H
#define SBX_ORCHESTRATOR_IMAGES_I_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "orchestrator/images.h"

/* What all layers together may still have. */
struct image_budget {
	int64_t entries, bytes;
};

/* ---- image_store.c --------------------------------------------------------------------------- */

/* Files beside images: what is not complete yet, or going; and what is known of one. */
#define IMAGE_WORK ".import-"
#define IMAGE_INFO ".info-"

/* The directory, under its lock. */
struct images {
	int dir, lock;
};
/* Removes what crashes have left. IMAGE_IN_USE: without wait, when somebody else has the lock. */
int images_open(const struct orch_settings *st, const char *state_dir, bool wait,
		struct images *ret, struct sbx_error *e);
void images_close(struct images *im);
#define AUTO_IMAGES __attribute__((cleanup(images_close))) struct images

int image_dir_broken(int err, struct sbx_error *e);
/* "sha256:..." as the name of a directory, and of the file about it. */
void image_dir_name(const char *digest, char ret[ORCH_IMAGE_DIGEST]);
void image_info_name(const char *digest, char ret[ORCH_IMAGE_DIGEST]);
/* Where a name leads. False: it is no name of an imported image. */
bool image_name_read(int dir, const char *name, char ret[ORCH_IMAGE_DIGEST]);
/* May it be given to an image? INVALID_ARGUMENT. */
int image_name_free(int dir, const char *name, struct sbx_error *e);
int image_name_set(int dir, const char *name, const char *digest, struct sbx_error *e);
/* The image goes unless it has a name or a run. False: a run has it. */
bool image_drop_unnamed(int dir, const char *digest);

/* ---- image_layer.c --------------------------------------------------------------------------- */

/* Applies one layer to the root: whiteouts first, then what it brings. Nothing leaves the root,
 * whatever links are in it. Everything is the caller's and readable by everybody; devices are left
 * out. diff_id: the digest that the tar must have ("sha256:..."); NULL: any. first: there is
 * nothing below it. INVALID_ARGUMENT. */
int image_layer_apply(int fd, int root, const char *diff_id, bool first,
		      struct image_budget *budget, struct sbx_error *e);

/* ---- image_bundle.c -------------------------------------------------------------------------- */

struct image_bundle_layer {
	char *path;			 /* owns; in the bundle's directory */
	char digest[ORCH_IMAGE_DIGEST];	 /* of the file; "" when nobody names it */
	char diff_id[ORCH_IMAGE_DIGEST]; /* of the tar in it */
};
struct image_bundle {
	char digest[ORCH_IMAGE_DIGEST];	   /* of the configuration */
	struct image_bundle_layer *layers; /* owns */
	size_t n_layers;
};
/* Reads what an unpacked docker-save archive or OCI layout says, and checks its digests but for
 * those of layers. INVALID_ARGUMENT. */
int image_bundle_read(int dir, struct image_bundle *ret, struct sbx_error *e);
void image_bundle_clear(struct image_bundle *b);
/* A file of the bundle, whose links stay in it; a descriptor, or INVALID_ARGUMENT. */
int image_bundle_open(int dir, const char *path, struct sbx_error *e);
/* The digest of a whole file. */
int image_digest_of(int fd, char ret[ORCH_IMAGE_DIGEST], struct sbx_error *e);
/* "sha256:" and 64 lower-case hexadecimal digits? */
bool image_digest_valid(const char *s);

#endif
