/* SPDX-License-Identifier: Apache-2.0 */
/* The drivers of this build: a declaration and a line each. */
#include "runtimes/runtimes.h"

extern const struct rt_driver rt_namespace; /* runtimes/namespace/driver.c */
extern const struct rt_driver rt_docker;    /* runtimes/docker/driver.c */
extern const struct rt_driver rt_worktree;  /* runtimes/worktree/driver.c */

static const struct rt_driver *const drivers[] = {
	&rt_namespace,
	&rt_docker,
	&rt_worktree,
	NULL,
};

const struct rt_driver *rt_driver_find(const char *name)
{
	for (size_t i = 0; name && drivers[i]; i++)
		if (strcmp(drivers[i]->name, name) == 0)
			return drivers[i];
	return NULL;
}
