/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshots/NAME/export.tar: made of the snapshot's contents as it is read, from wherever the
 * reader wants. It never changes, so the kernel may keep what it has read, and its size, which
 * takes a moment to find out, is asked for once.
 */
#include "fsd/fsd_i.h"

#include <errno.h>
#include <fcntl.h>

#include "store/snap.h"

struct tar_handle {
	struct handle h;
	pthread_mutex_t lock; /* one reader at a time; see also wait_for_reply */
	struct snap_tar *tar; /* owned */
};

static int load(struct fsd *f, int64_t row, struct snap_tar **ret)
{
	store_autosnapshot shot = { 0 };
	sbx_autoerror e = SBX_ERROR_INIT;
	int rc = store_snapshot_get_row(f->store, row, &shot, &e);

	if (rc == 0)
		rc = snap_tar_open(f->store, shot.id, ret, &e);
	return rc < 0 ? -fsd_errno(&e) : 0;
}

int shot_tar_size(struct fsd *f, int64_t row, off_t *ret)
{
	struct snap_tar *tar = NULL;
	int r = load(f, row, &tar);

	if (r == 0)
		*ret = (off_t)snap_tar_size(tar);
	snap_tar_close(tar);
	return r;
}

void shot_tar_open(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct tar_handle *h;
	int r;

	if ((fi->flags & O_ACCMODE) != O_RDONLY) {
		fuse_reply_err(req, EACCES);
		return;
	}
	h = calloc(1, sizeof(*h));
	r = h ? load(f, ino_row(ino), &h->tar) : -ENOMEM;
	if (r < 0) {
		free(h);
		fuse_reply_err(req, -r);
		return;
	}
	h->h.kind = H_TAR;
	h->h.ino = ino;
	pthread_mutex_init(&h->lock, NULL);
	fi->keep_cache = 1;
	fi->noflush = 1;
	handle_opened(f, req, fi, &h->h);
}

void shot_tar_read(fuse_req_t req, struct fuse_file_info *fi, size_t size, off_t off)
{
	struct tar_handle *h = (struct tar_handle *)handle_of(fi);
	sbx_autofree char *buf = malloc(size ? size : 1);
	ssize_t n;

	if (!buf) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	pthread_mutex_lock(&h->lock);
	n = snap_tar_read(h->tar, buf, size, off);
	if (n < 0) /* -ENOENT of a file that is open would puzzle everybody */
		fuse_reply_err(req, n == -ENOENT ? EIO : (int)-n);
	else
		fuse_reply_buf(req, buf, (size_t)n);
	pthread_mutex_unlock(&h->lock);
}

off_t shot_tar_end(const struct handle *h)
{
	return (off_t)snap_tar_size(((const struct tar_handle *)h)->tar);
}

void shot_tar_release(struct handle *h)
{
	struct tar_handle *t = (struct tar_handle *)h;

	wait_for_reply(&t->lock);
	snap_tar_close(t->tar);
	free(t);
}
