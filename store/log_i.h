/* SPDX-License-Identifier: Apache-2.0 */
/* The format of log.idx, shared by writer, reader and repair. Host byte order: a log does not
 * travel between machines. */
#ifndef SBX_STORE_LOG_I_H
#define SBX_STORE_LOG_I_H

#include "store/log.h"

/*
 *   log.idx:  header | record 1 | record 2 | ...
 *
 * Record n stands at sizeof(header) + (n - 1) * sizeof(record). The bytes of a stream frame end
 * at out_total + err_total in `log`, as that holds exactly both streams; so byte i of stdout that
 * arrived while err_total was e stands at i + e.
 */
struct log_header {
	char magic[8];
	uint32_t version;
	uint32_t record_size;
	int64_t cap_bytes;
	int64_t made_us; /* tells a log that was begun anew from the one before */
};
_Static_assert(sizeof(struct log_header) == 32, "log.idx header");

#define LOG_MAGIC "sbxlog\r\n"
enum { LOG_VERSION = 1, LOG_TEXT = 32 };

enum log_flag {
	LOG_FLAG_UTF8 = 1, /* a stream frame that is valid UTF-8; otherwise base64 */
	LOG_FLAG_EXIT = 2, /* an end frame that has an exit code */
};

struct log_record {
	uint64_t seq;
	int64_t time_us;
	uint64_t out_total;  /* bytes of stdout up to and with this frame */
	uint64_t err_total;  /* of stderr */
	uint64_t json_total; /* of the NDJSON rendering, newlines included */
	uint32_t len;	     /* bytes of a stream frame, at most LOG_FRAME_MAX */
	int32_t exit_code;
	uint8_t type; /* enum log_type */
	uint8_t flags;
	uint8_t spare[14];
	char text[LOG_TEXT]; /* runtime of start, reason of end and truncated; NUL-terminated */
};
_Static_assert(sizeof(struct log_record) == 96, "log.idx record");

static inline off_t log_record_at(uint64_t seq)
{
	return (off_t)(sizeof(struct log_header) + (seq - 1) * sizeof(struct log_record));
}

/* Can this be record seq of a log whose `log` file has `bytes` bytes? */
bool log_record_ok(const struct log_record *r, uint64_t seq, uint64_t bytes);

/* Appends the frame as one JSON object; data: the r->len bytes of a stream frame. */
void log_render(const struct log_record *r, const char *data, struct sbx_buf *out);
/* Length of what log_render would append, given the length of the "data" string with its quotes
 * (stream frames only). 0 without memory. */
size_t log_render_len(const struct log_record *r, size_t data_len);

#endif
