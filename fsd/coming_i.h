/* SPDX-License-Identifier: Apache-2.0 */
/* A part of fsd_i.h: images/, and files that are copied into the tree. */
#ifndef SBX_FSD_COMING_I_H
#define SBX_FSD_COMING_I_H

#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>
#include <stdbool.h>

#include "base/buf.h"
#include "mountspec/tree.h"

struct fsd;
struct handle;
struct comings;
struct failures;

/* ---- image.c: images/ ------------------------------------------------------------------------ */

bool is_image_node(enum ms_node_id node);
int img_attr(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct stat *st, double *timeout);
int img_child(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name,
	      struct fuse_entry_param *ret);
int img_render(struct fsd *f, fuse_ino_t ino, struct sbx_buf *out);
void img_rmdir(struct fsd *f, fuse_req_t req, const char *name); /* in images/; answers */

/* ---- coming.c: files that are copied into the tree ------------------------------------------- */

struct comings *coming_all_new(void); /* NULL without memory */
void coming_all_free(struct comings *all);
bool is_coming_node(enum ms_node_id node);
bool coming_may(fuse_ino_t parent); /* may files come into this directory? */
int coming_attr(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct stat *st, double *timeout);
/* Handlers; each answers. */
void coming_create(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name,
		   struct fuse_file_info *fi);
void coming_write(struct fsd *f, fuse_req_t req, struct fuse_file_info *fi, const char *data,
		  size_t size, off_t off);
/* Of flush and fsync: what has come is imported. */
void coming_flush(struct fsd *f, fuse_req_t req, struct fuse_file_info *fi);
void coming_setattr(struct fsd *f, fuse_req_t req, fuse_ino_t ino, const struct stat *attr,
		    int to_set);
void coming_unlink(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name);
void coming_release(struct handle *h);

/* ---- failures.c: what went wrong with them --------------------------------------------------- */

/* NAME.error, a node of this kind; place: the id of a session, "" for images. -ENOENT. */
int coming_child(struct fsd *f, fuse_req_t req, enum ms_node_id node, const char *place,
		 const char *name, struct fuse_entry_param *ret);
int coming_render(struct fsd *f, fuse_ino_t ino, struct sbx_buf *out);
struct failures *failures_new(void); /* NULL without memory */
void failures_free(struct failures *fl);

#endif
