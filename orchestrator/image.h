/* SPDX-License-Identifier: Apache-2.0 */
/* Which directory a base_image names. Used at submission and again by the runner. */
#ifndef SBX_ORCHESTRATOR_IMAGE_H
#define SBX_ORCHESTRATOR_IMAGE_H

#include "base/error.h"
#include "orchestrator/settings.h"

/*
 * "host" (and "host-local") is the host's own /usr: *ret is NULL. Other names go through the alias
 * table of the setting `images` (name=host or name=/directory) and then must be a directory
 * <image_dir>/<name> (image_dir unset: <state>/images). A client can never name a path. *ret is
 * malloc'd. IMAGE_NOT_FOUND lists what there is.
 */
int orch_image_resolve(const struct orch_settings *st, const char *state_dir, const char *name,
		       char **ret, struct sbx_error *e);

#endif
