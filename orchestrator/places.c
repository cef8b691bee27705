/* SPDX-License-Identifier: Apache-2.0 */
/* Where the state of this host is, for whoever gives no directory. */
#include "orchestrator/orch_i.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *default_state(void)
{
	const char *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
	char *path = NULL;

	if (geteuid() == 0)
		return strdup("/var/lib/sandboxfs");
	if (xdg && xdg[0] == '/')
		return asprintf(&path, "%s/sandboxfs", xdg) < 0 ? NULL : path;
	return home && asprintf(&path, "%s/.local/state/sandboxfs", home) > 0 ? path : NULL;
}

int orch_state_dir(const char *config, const char *const *overrides, size_t n_overrides, char **ret,
		   struct sbx_error *e)
{
	struct orch_settings *st = NULL;
	int rc = orch_settings_load(config, overrides, n_overrides, &st, e);

	if (rc < 0)
		return rc;
	*ret = st->state_dir ? strdup(st->state_dir) : default_state();
	orch_settings_free(st);
	return *ret ? 0
		    : sbx_fail(e, SBX_E_INVALID_CONFIG,
			       "no state directory: name one on the command line, or set HOME");
}
