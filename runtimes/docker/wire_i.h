/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the runner and sandbox-engine, its helper that speaks HTTP with the engine. The helper is
 * a process of its own because the HTTP library and what it brings along take 6 MiB, and a runner
 * that waits for a run is to stay small. Plain structs on a stream socket: both are built together.
 *
 * One request at a time. A new one ends the one before, of which nothing more is heard.
 */
#ifndef SBX_RUNTIMES_DOCKER_WIRE_I_H
#define SBX_RUNTIMES_DOCKER_WIRE_I_H

#include <stdint.h>

enum {
	DK_PATH_MAX = 8 << 10,
	DK_BODY_MAX = 4 << 20,	/* of a request, and of an answer */
	DK_TAIL_MAX = 64 << 10, /* what is kept of the answer to a pull: its end */
	DK_HELPER_SOCKET = 3,	/* descriptor of the helper */
	DK_HELPER_ARGS = 2,	/* sandbox-engine SOCKET-OF-THE-ENGINE */
};

enum dk_method { DK_GET = 1, DK_POST, DK_DELETE };

/* Followed by the path and the body. */
struct dk_ask_head {
	uint32_t serial;
	uint32_t method;
	uint32_t path_size, body_size; /* without NUL */
	uint32_t limit_ms;
	uint32_t tail; /* of a long answer only the end is wanted */
	uint32_t tar;  /* the body is an archive and no JSON */
};

/* Followed by the body; for status 0 by what went wrong. */
struct dk_answer_head {
	uint32_t serial;
	uint32_t status; /* of HTTP; 0: there was no answer */
	uint32_t body_size;
};

#endif
