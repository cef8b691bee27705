/* SPDX-License-Identifier: Apache-2.0 */
/* A part of fsd_i.h: what happens while nobody asks, and who hears of it. */
#ifndef SBX_FSD_NEWS_I_H
#define SBX_FSD_NEWS_I_H

#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "store/store.h"

struct fsd;
struct run_ref;
struct handle;
struct text_handle;
struct parking;
struct feed;
struct kicker;

/* ---- park.c, poll.c: reads that wait, and poll ----------------------------------------------- */

struct parking *parking_new(struct fsd *f);
/* Forgets a status handle that is polled. */
void parking_drop_text(struct parking *p, struct text_handle *h);
void parking_end(struct parking *p); /* all requests are answered with ENOTCONN */
void parking_free(struct parking *p);
void stream_open(struct fsd *f, fuse_req_t req, fuse_ino_t ino, const struct run_ref *run,
		 struct fuse_file_info *fi);
void stream_read(struct fsd *f, fuse_req_t req, struct fuse_file_info *fi, size_t size);
/* .events: the text is a seq to begin behind. */
void stream_write(struct fsd *f, fuse_req_t req, struct fuse_file_info *fi, const char *data,
		  size_t len);
void stream_release(struct fsd *f, struct handle *h);
void stream_poll(struct fsd *f, fuse_req_t req, struct fuse_file_info *fi,
		 struct fuse_pollhandle *ph);
void status_poll(struct fsd *f, fuse_req_t req, struct text_handle *h, struct fuse_pollhandle *ph);
/* Feed thread: something happened. */
void parking_run_changed(struct parking *p, int64_t row, bool terminal);
void parking_log_grew(struct parking *p, int64_t row);
void parking_events(struct parking *p);
/* Something may have been missed: everybody looks again. */
void parking_look_all(struct parking *p);

/* ---- feed.c ---------------------------------------------------------------------------------- */

struct feed *feed_start(struct fsd *f, struct sbx_error *e);
void feed_stop(struct feed *fd); /* joins the thread; handlers may still call the rest */
void feed_free(struct feed *fd);
/* Watches the log of a run while somebody streams it; counted. */
void feed_watch_log(struct feed *fd, int64_t row, const char *id);
void feed_unwatch_log(struct feed *fd, int64_t row);

/* ---- kick.c ---------------------------------------------------------------------------------- */

enum kick_what { KICK_NEW = 1, KICK_STATUS = 2, KICK_ARTIFACTS = 4, KICK_PHASE = 8 };
/* It may have come into this phase. */
static inline unsigned kick_phase(enum store_phase p)
{
	return (unsigned)KICK_PHASE << p;
}
/* Takes news from now on, and makes requests once it is told that they are answered. */
struct kicker *kicker_start(struct fsd *f, struct sbx_error *e);
void kicker_serving(struct kicker *k);
void kicker_stop(struct kicker *k);
/* For the main thread: poll this for POLLPRI (-1: no need), and call the other when it says so.
 * False: the mount is gone, and the kicker let go of it. */
int kicker_mounts_fd(const struct kicker *k);
bool kicker_mounts_changed(struct kicker *k);
void kicker_add(struct kicker *k, int64_t row, const char *id, unsigned what);
void kicker_news(struct kicker *k); /* of workspaces: it calls work_tell() */

#endif
