/* SPDX-License-Identifier: Apache-2.0 */
/* Owned locals that clean up after themselves. errno survives every helper. */
#ifndef SBX_BASE_AUTO_H
#define SBX_BASE_AUTO_H

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SBX_AUTO(fn) __attribute__((cleanup(fn)))

static inline void sbx_freep(void *pp)
{
	void *p;

	memcpy(&p, pp, sizeof(p)); /* pp is T**; no aliasing cast */
	free(p);
}

/* Closes *fd unless it is negative, and makes it -1. */
static inline void sbx_closep(int *fd)
{
	int saved = errno;

	if (*fd >= 0)
		(void)close(*fd);
	*fd = -1;
	errno = saved;
}

static inline int sbx_steal_fd(int *fd)
{
	int r = *fd;

	*fd = -1;
	return r;
}

#define sbx_autofree  SBX_AUTO(sbx_freep)
#define sbx_autoclose SBX_AUTO(sbx_closep)

/* For a type whose destructor takes NULL: sbx_auto(type, destructor) name = NULL; */
#define SBX_DEFINE_AUTO(type, destroy)                                                             \
	static inline void destroy##p(type **p)                                                    \
	{                                                                                          \
		(void)destroy(*p);                                                                 \
	}

#define sbx_steal(pp)                                                                              \
	__extension__({                                                                            \
		__typeof__(*(pp)) stolen_ = *(pp);                                                 \
		*(pp) = NULL;                                                                      \
		stolen_;                                                                           \
	})

#define SBX_COUNT(array) (sizeof(array) / sizeof((array)[0]))

#endif
