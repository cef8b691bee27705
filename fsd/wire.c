/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes to the kernel passes through here, for the sake of one message: the answer to the first
 * request, in which both sides agree on what they can do. libfuse 3.14 says less there than it was
 * told, and knows nothing of FUSE_HANDLE_KILLPRIV_V2; what it leaves out is added. With the first
 * two the kernel looks names of one directory up side by side, and gives a file away without asking
 * for its attributes before; with the third it does not ask at each write whether the file has
 * capabilities, but at the first. That set-id bits and capabilities go is what they want in return:
 * none is ever shown.
 */
#include "fsd/fsd_i.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { ASKED_FOR = FUSE_PARALLEL_DIROPS | FUSE_HANDLE_KILLPRIV | FUSE_HANDLE_KILLPRIV_V2 };

/* The first request is alone: the kernel sends no other before it is answered. */
static ssize_t receive(int fd, void *buf, size_t size, void *userdata)
{
	struct fsd *f = userdata;
	ssize_t n = read(fd, buf, size);
	const struct fuse_in_header *in = buf;
	const struct fuse_init_in *init = (const void *)(in + 1);

	if (n >= (ssize_t)(sizeof(*in) + offsetof(struct fuse_init_in, flags2)) &&
	    !atomic_load_explicit(&f->agreed, memory_order_relaxed) && in->opcode == FUSE_INIT) {
		f->init_unique = in->unique;
		f->init_flags = init->flags & ASKED_FOR;
	}
	return n;
}

static ssize_t answer(int fd, struct iovec *iov, int count, void *userdata)
{
	struct fsd *f = userdata;
	const struct fuse_out_header *out = iov[0].iov_base;
	struct fuse_init_out *init;

	if (atomic_load_explicit(&f->agreed, memory_order_relaxed))
		return writev(fd, iov, count);
	if (out->unique == f->init_unique && out->error == 0 && count == 2 &&
	    iov[1].iov_len >= offsetof(struct fuse_init_out, max_write)) {
		init = iov[1].iov_base;
		init->flags |= f->init_flags;
		atomic_store(&f->agreed, true);
	}
	return writev(fd, iov, count);
}

static ssize_t splice_in(int from, off_t *from_off, int to, off_t *to_off, size_t len,
			 unsigned int flags, void *userdata)
{
	(void)userdata;
	return splice(from, from_off, to, to_off, len, flags);
}

int fsd_wire_up(struct fsd *f)
{
	static const struct fuse_custom_io io = { .read = receive,
						  .writev = answer,
						  .splice_receive = splice_in,
						  .splice_send = splice_in };

	return fuse_session_custom_io(f->se, &io, fuse_session_fd(f->se));
}
