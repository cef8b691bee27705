/* SPDX-License-Identifier: Apache-2.0 */
/* Between the runner and sandbox-start, process 1 of a container: messages of one size on a
 * SOCK_SEQPACKET socket. Both are built together. */
#ifndef SBX_RUNTIMES_DOCKER_START_I_H
#define SBX_RUNTIMES_DOCKER_START_I_H

#include <stdint.h>

/* Inside the container. */
#define DK_INSIDE_START "/.sandbox/start"
#define DK_INSIDE_DOOR	"/.sandbox/door"
#define DK_SOCKET	"socket" /* in the latter */

enum dk_op {
	DK_HELLO = 1, /* from process 1, with a descriptor of /workspace */
	DK_FILL,      /* to it, with DK_FILL__FDS descriptors: what to execute, and on what */
	DK_FILLED,    /* from it: err and text, 0 is success */
	DK_GO,	      /* to it: execute */
	DK_STARTED,   /* from it: err, the errno of execve or 0 */
	DK_SIGNAL,    /* to it: scope, sig */
	DK_END,	      /* from it: err is the wait status; everything else inside is dead */
};

struct dk_msg {
	uint32_t op;
	int32_t err;
	int32_t scope, sig;
	char text[240];
};

/* In this order. The first is a file in memory with struct dk_fill and what follows it. */
enum { DK_FILL_TEXT, DK_FILL_IN, DK_FILL_OUT, DK_FILL_ERR, DK_FILL__FDS };

/* Followed by n_filter times struct sock_filter; then the cwd, argc arguments, envc variables, each
 * with its NUL: text_size bytes; then n_files times struct dk_file, the path with its NUL, the
 * data. */
struct dk_fill {
	uint64_t text_size;
	uint32_t argc, envc, n_files, n_filter;
	uint32_t stdin_open, unused;
	uint64_t nofile;
};
_Static_assert(sizeof(struct dk_fill) % 8 == 0, "what follows it is aligned");
struct dk_file {
	uint64_t size;
	uint32_t path_size, mode;
};

#endif
