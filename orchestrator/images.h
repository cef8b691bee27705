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
/* The name, and the image when it has no other. IMAGE_NOT_FOUND; INVALID_ARGUMENT while a run uses
 * the image, whose name then stays. */
int orch_image_remove(const struct orch_settings *st, const char *state_dir, const char *name,
		      struct sbx_error *e);

#endif
