/* SPDX-License-Identifier: Apache-2.0 */
/* The format of log.idx, shared by writer and reader. Host byte order: a log does not travel
 * between machines. */
#ifndef SBX_STORE_LOG_I_H
#define SBX_STORE_LOG_I_H

#include "store/log.h"

/*
 *   log.idx:  header | record 1 | record 2 | ...
 *
 * Record n is frame n + 1, since frame 1 is `start`, and stands at sizeof(header) +
 * (n - 1) * sizeof(record). The bytes of a stream frame end at out_total + err_total in `log`, as
 * that holds exactly both streams; so byte i of stdout that arrived while err_total was e stands
 * at i + e.
 */
struct log_header {
	char magic[8];
	uint32_t version;
	uint32_t record_size;
	int64_t cap_bytes;
	int64_t started_us; /* time of the `start` frame */
};
_Static_assert(sizeof(struct log_header) == 32, "log.idx header");

#define LOG_MAGIC "sbxlog\r\n"
enum { LOG_VERSION = 2, LOG_TEXT = 32 };

enum log_flag {
	LOG_FLAG_UTF8 = 1, /* a stream frame that is valid UTF-8; otherwise base64 */
	LOG_FLAG_EXIT = 2, /* an end frame that has an exit code */
};

struct log_record {
	uint64_t seq;
	int64_t time_us;
	uint64_t out_total;  /* bytes of stdout up to and with this frame */
	uint64_t err_total;  /* of stderr */
	uint64_t json_total; /* of the NDJSON rendering without `start`, newlines included */
	uint32_t len;	     /* bytes of a stream frame, at most LOG_FRAME_MAX */
	int32_t exit_code;   /* of `end`, so 0 in the file */
	uint8_t type;	     /* enum log_type */
	uint8_t flags;
	uint8_t spare[14];
	char text[LOG_TEXT]; /* runtime of start, reason of end and truncated; NUL-terminated */
};
_Static_assert(sizeof(struct log_record) == 96, "log.idx record");

static inline off_t log_record_at(uint64_t n)
{
	return (off_t)(sizeof(struct log_header) + (n - 1) * sizeof(struct log_record));
}

/* Can this be record n of a log whose `log` file has `bytes` bytes? */
bool log_record_ok(const struct log_record *r, uint64_t n, uint64_t bytes);

/* What the row of a run says of its log. */
struct log_facts {
	int64_t started_us; /* 0: the row does not know that the command has begun */
	bool ended;
	bool has_exit_code;
	int exit_code;
	int64_t finished_us;
	char runtime[LOG_TEXT], reason[LOG_TEXT];
};

/* The two halves of what store/log.h offers, for tests without a store: files in a directory, and
 * facts that somebody gives. */
int log_writer_open_at(int run_dirfd, int64_t cap_bytes, int64_t started_us,
		       struct log_writer **ret, struct sbx_error *e);
int log_reader_open_at(int run_dirfd, struct log_reader **ret, struct sbx_error *e);
int log_reader_look(struct log_reader *r, const struct log_facts *facts, struct sbx_error *e);

/* Appends the frame as one JSON object; data: the r->len bytes of a stream frame. */
void log_render(const struct log_record *r, const char *data, struct sbx_buf *out);
/* Length of what log_render would append, given the length of the "data" string with its quotes
 * (stream frames only). 0 without memory. */
size_t log_render_len(const struct log_record *r, size_t data_len);

#endif
