/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Images that are imported from files. <image_dir>/sha256-<hex>/ is the root of one, complete from
 * the moment it has its name, and never changed; <image_dir>/NAME is a symbolic link to it. All
 * work is done under <image_dir>/.lock, one import at a time.
 *
 * What is imported is hostile: names and links that climb out, devices, ratio bombs, wrong digests.
 */
#ifndef SBX_ORCHESTRATOR_IMAGES_H
#define SBX_ORCHESTRATOR_IMAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "orchestrator/settings.h"

enum { ORCH_IMAGE_DIGEST = 72 }; /* "sha256:", 64 digits, NUL */

/* A `docker save` archive, a tar of an OCI layout, or a tar of a root directory, as it is or
 * compressed, from fd (its offset is used only when it is no regular file). The digest is that of
 * the image's configuration, which is its ID in Docker, or of the file when it is a root. An image
 * of that digest that is there is kept. INVALID_ARGUMENT says what is wrong with name or file;
 * STORAGE_FULL. */
int orch_image_import(const struct orch_settings *st, const char *state_dir, int fd,
		      const char *name, char digest[ORCH_IMAGE_DIGEST], struct sbx_error *e);
/* Lines "NAME<tab>DIGEST", sorted; a directory that was not imported has "-" for a digest. */
int orch_image_list(const struct orch_settings *st, const char *state_dir, struct sbx_buf *out,
		    struct sbx_error *e);
/* The name, and the image when it has no other. IMAGE_NOT_FOUND; IMAGE_IN_USE while a run uses the
 * image, whose name then stays, or, without wait, while one is imported. */
int orch_image_remove(const struct orch_settings *st, const char *state_dir, const char *name,
		      bool wait, struct sbx_error *e);
/* Could an image have this name? INVALID_ARGUMENT. */
int orch_image_name_check(const char *name, struct sbx_error *e);

/* ---- for doors: image_admin.c ------------------------------------------------------------------
 * What a door does for an administrator: it has looked who asks. NOT_FOUND for an unknown name. */

struct orch;
struct orch_principal;

struct orch_image {
	char digest[ORCH_IMAGE_DIGEST]; /* "": a directory of the operator's */
	int64_t bytes;			/* of all its files; -1: not known */
	const char *source;		/* "root", "layers", "directory"; static */
};
int orch_image_get(struct orch *o, const char *name, struct orch_image *ret, struct sbx_error *e);
/* {"name","digest","source",...}: what there is to tell. */
int orch_view_image(struct orch *o, const char *name, struct sbx_buf *out, struct sbx_error *e);
/* {"items":[...]}, by name. */
int orch_view_images(struct orch *o, struct sbx_buf *out, struct sbx_error *e);
/* The names, sorted; orch_image_names_free of image.h frees them. Their number, or an error. */
int orch_images_list(struct orch *o, char ***ret, struct sbx_error *e);
void orch_images_list_free(char **names, int n);
/* An empty file for an upload: it has no name, so that nothing is left of it whatever happens. A
 * descriptor. STORAGE_FULL. */
int orch_image_stage(struct orch *o, struct sbx_error *e);
/* Imports what is staged by a process of its own, and waits for it: long. INTERRUPTED after
 * orch_stop_helpers. */
int orch_image_put(struct orch *o, const struct orch_principal *p, const char *name, int fd,
		   struct sbx_error *e);
int orch_image_drop(struct orch *o, const struct orch_principal *p, const char *name,
		    struct sbx_error *e);

#endif
