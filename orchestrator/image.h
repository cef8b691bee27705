/* SPDX-License-Identifier: Apache-2.0 */
/* Which directory a base_image names. Used at submission and again by the runner; images.h has how
 * images get there. */
#ifndef SBX_ORCHESTRATOR_IMAGE_H
#define SBX_ORCHESTRATOR_IMAGE_H

#include <stdbool.h>

#include "base/error.h"
#include "orchestrator/settings.h"

/*
 * "host" (and "host-local") is the host's own /usr: *ret is NULL. Other names go through the alias
 * table of the setting `images` (name=host or name=/directory) and then must be a directory
 * <image_dir>/<name> (image_dir unset: <state>/images), or the name or "sha256:..." of an image
 * that was imported: *ret is then the directory of that digest, whatever becomes of the name. A
 * client can never name a path. *ret is malloc'd. IMAGE_NOT_FOUND lists what there is.
 */
int orch_image_resolve(const struct orch_settings *st, const char *state_dir, const char *name,
		       char **ret, struct sbx_error *e);

/* Does the runtime (NULL: the default one) find images by their names itself? */
bool orch_image_by_name(const struct orch_settings *st, const char *runtime);
/* Is there such an image, or, where only the runtime knows, could it be the name of one? The latter
 * is INVALID_SPEC. */
int orch_image_check(const struct orch_settings *st, const char *state_dir, const char *runtime,
		     const char *name, struct sbx_error *e);
/* The image of a run that names none; ctx is the settings (see struct ms_options). */
const char *orch_image_default(const void *ctx, const char *runtime);

/* The digest, "sha256:...", of an imported image by the path of its directory. False: it was not
 * imported. */
bool orch_image_digest(const char *path, char ret[72]);
/* An imported image stays as long as the descriptor is open, which is -1 for others.
 * IMAGE_NOT_FOUND when it has just gone. */
int orch_image_hold(const char *path, int *ret_fd, struct sbx_error *e);
/* <image_dir>, malloc'd; NULL without memory. */
char *orch_image_dir(const struct orch_settings *st, const char *state_dir);
/* The names in it, sorted; their number, or -1 without memory. */
int orch_image_names(const char *dir, char ***ret);
void orch_image_names_free(char **names, int n);

#endif
