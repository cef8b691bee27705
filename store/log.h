/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log of one run: two files in its directory.
 *
 *   log      the bytes of stdout and stderr in order of arrival, nothing else
 *   log.idx  a header, then one fixed-size record per frame of a stream (see store/log_i.h)
 *
 * The frames `start` (seq 1) and `end` (the last) are not stored: the row of the run says when it
 * began and how it ended, and a reader makes the two of that. So the end of a run is one
 * transaction, and no frame has to follow it.
 *
 * seq -> bytes is one seek. Records carry running totals of each stream and of the NDJSON
 * rendering, so that a range of any view is a binary search. There is one writer (the runner);
 * any number of readers in other processes read records that are complete and never see a torn
 * one: bytes go into `log` before their record goes into `log.idx`, and a record is one write.
 */
#ifndef SBX_STORE_LOG_H
#define SBX_STORE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/error.h"

struct store;

enum log_type {
	LOG_START = 1, /* event "start"; of the row */
	LOG_END,       /* event "end": exit code and reason; of the row */
	LOG_STDOUT,
	LOG_STDERR,
	LOG_TRUNCATED, /* reason: log_cap, stdin_frame_cap, stdin_rate, stdin_cap, stdin_idle */
	LOG_TYPE__COUNT,
};

enum log_view {
	LOG_VIEW_ALL, /* both streams, the file `log` itself */
	LOG_VIEW_STDOUT,
	LOG_VIEW_STDERR,
	LOG_VIEW_NDJSON, /* every frame as one line of JSON with seq and ts */
	LOG_VIEW__COUNT,
};

/* Longest run of bytes in one frame; a longer write becomes several. */
enum { LOG_FRAME_MAX = 64 << 10 };

/* ---- writing (the runner) -------------------------------------------------------------------- */

struct log_writer;
/* started_us: the time of the `start` frame, which must become started_us of the row. Nothing is
 * made before there is a frame to write; then the run's directory and log.idx, and `log` with the
 * first byte. */
int log_writer_open(struct store *s, const char *run_id, int64_t cap_bytes, int64_t started_us,
		    struct log_writer **ret, struct sbx_error *e);
/* Takes bytes of one stream. Bytes that may be the first part of a character are kept back until
 * the rest comes or log_writer_flush. Above the cap one LOG_TRUNCATED frame is written and the
 * rest is only counted; the log is full too after 65536 + cap/16 frames, so that single bytes
 * cannot make an index of many times the cap. A write that fails (STORAGE_FULL on a full disk) is
 * returned once, and from then on everything is only counted: treat it as a truncation. */
int log_writer_put(struct log_writer *w, enum log_type stream, const void *data, size_t len,
		   struct sbx_error *e);
int log_writer_flush(struct log_writer *w, enum log_type stream, struct sbx_error *e);
/* reason: at most 31 bytes. */
int log_writer_truncated(struct log_writer *w, const char *reason, struct sbx_error *e);
int log_writer_sync(struct log_writer *w, struct sbx_error *e); /* fdatasync of what was written */
int64_t log_writer_bytes(const struct log_writer *w);		/* stored in `log` */
int64_t log_writer_dropped(const struct log_writer *w);		/* above the cap */
struct log_writer *log_writer_close(struct log_writer *w);	/* NULL is fine; returns NULL */

/* ---- reading (doors) ------------------------------------------------------------------------- */

struct log_reader; /* one thread at a time */
/* Also looks, as log_reader_refresh does. A run without files is one without output, not an error.
 */
int log_reader_open(struct store *s, const char *run_id, struct log_reader **ret,
		    struct sbx_error *e);
struct log_reader *log_reader_close(struct log_reader *r); /* NULL is fine; returns NULL */
/* Looks at the row and then at the files again. Sizes and reads below speak of this moment.
 * RUN_NOT_FOUND. */
int log_reader_refresh(struct log_reader *r, struct sbx_error *e);
uint64_t log_reader_frames(const struct log_reader *r); /* highest seq */
/* The run is over: the last frame is `end`, and nothing changes any more. */
bool log_reader_ended(const struct log_reader *r);
int64_t log_reader_size(const struct log_reader *r, enum log_view view);
/* Up to len bytes of the view from off; 0 at and past its end; a negative error code. */
ssize_t log_reader_read(struct log_reader *r, enum log_view view, int64_t off, void *buf,
			size_t len, struct sbx_error *e);
/* The descriptor of `log` for splicing LOG_VIEW_ALL, -1 while there is no byte in it. Borrowed. */
int log_reader_fd(const struct log_reader *r);
/* Appends frame seq as one JSON object (no newline) to out. NOT_FOUND above the last. */
int log_reader_frame(struct log_reader *r, uint64_t seq, struct sbx_buf *out, struct sbx_error *e);

#endif
