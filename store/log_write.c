/* SPDX-License-Identifier: Apache-2.0 */
/* Writing a log: frames from bytes, and the cap. Two pwrites a chunk, nothing in memory. */
#include "store/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/utf8.h"
#include "store/log_i.h"
#include "store/store.h"

enum {
	KEPT_MAX = 3, /* a character has four bytes */
	/* Frames cost a record each, so a command that writes single bytes could make an index of
	 * a hundred times its cap: the log is full too after this many frames and one more for
	 * every BYTES_PER_FRAME bytes of the cap. */
	FRAMES_MIN = 64 << 10,
	BYTES_PER_FRAME = 16,
};

struct kept {
	char bytes[KEPT_MAX];
	size_t len;
};

struct log_writer {
	struct store *store; /* borrowed; NULL: dir_fd was given */
	char id[37];
	/* -1 until there is a frame (log_fd: a byte) to store: many a run prints nothing, and files
	 * are the dear part of a run that does little. */
	int dir_fd, idx_fd, log_fd;
	int64_t started_us;
	uint64_t cap, frames_max;
	struct log_record last; /* the totals so far, and the seq */
	uint64_t dropped;
	bool capped; /* the log_cap frame is written */
	bool broken; /* a write failed and was reported */
	struct kept out, err;
	uint8_t extra[256]; /* bytes that JSON adds to this one */
};

struct log_writer *log_writer_close(struct log_writer *w)
{
	if (!w)
		return NULL;
	sbx_closep(&w->log_fd);
	sbx_closep(&w->idx_fd);
	sbx_closep(&w->dir_fd);
	free(w);
	return NULL;
}
SBX_DEFINE_AUTO(struct log_writer, log_writer_close)

static int writer_new(int64_t cap_bytes, int64_t started_us, struct log_writer **ret,
		      struct sbx_error *e)
{
	uint64_t cap = (uint64_t)cap_bytes;
	struct log_writer *w;

	if (cap_bytes < 0)
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "the cap of a log is negative");
	w = calloc(1, sizeof(*w));
	if (!w)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a log");
	w->log_fd = w->idx_fd = w->dir_fd = -1;
	w->started_us = started_us;
	w->cap = cap;
	w->last.seq = 1; /* `start` */
	w->frames_max = FRAMES_MIN + cap / BYTES_PER_FRAME;
	for (int c = 0; c < 0x80; c++) {
		char byte = (char)c;

		w->extra[c] = (uint8_t)(sbx_json_str_len(&byte, 1) - 3);
	}
	*ret = w;
	return 0;
}

int log_writer_open(struct store *s, const char *run_id, int64_t cap_bytes, int64_t started_us,
		    struct log_writer **ret, struct sbx_error *e)
{
	int r = writer_new(cap_bytes, started_us, ret, e);

	if (r < 0)
		return r;
	(*ret)->store = s;
	memcpy((*ret)->id, run_id, strnlen(run_id, sizeof((*ret)->id) - 1));
	return 0;
}

int log_writer_open_at(int run_dirfd, int64_t cap_bytes, int64_t started_us,
		       struct log_writer **ret, struct sbx_error *e)
{
	SBX_AUTO(log_writer_closep) struct log_writer *w = NULL;
	int r = writer_new(cap_bytes, started_us, &w, e);

	if (r < 0)
		return r;
	w->dir_fd = fcntl(run_dirfd, F_DUPFD_CLOEXEC, 3);
	if (w->dir_fd < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno, "cannot keep a run open");
	*ret = sbx_steal(&w);
	return 0;
}

static int failed(struct log_writer *w, int err, struct sbx_error *e)
{
	w->broken = true;
	return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, err, "cannot write the log of a run");
}

static int open_part(struct log_writer *w, const char *name, int *fd, struct sbx_error *e)
{
	if (*fd >= 0)
		return 0;
	/* Never executed twice, a run has no log that was begun before; but should there be
	 * one, this continues nothing. */
	*fd = sbx_open_beneath(w->dir_fd, name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (*fd >= 0)
		return 0;
	return failed(w, -sbx_steal_fd(fd), e);
}

/* The index first: a reader that sees it empty shows nothing of `log`. */
static int open_files(struct log_writer *w, bool bytes, struct sbx_error *e)
{
	struct log_header h = { .magic = LOG_MAGIC,
				.version = LOG_VERSION,
				.record_size = sizeof(struct log_record),
				.cap_bytes = (int64_t)w->cap,
				.started_us = w->started_us };
	bool begun = w->idx_fd >= 0;
	int r = 0;

	if (w->dir_fd < 0) {
		w->dir_fd = store_run_dir(w->store, w->id, true, e);
		w->broken = w->dir_fd < 0;
		r = w->broken ? sbx_steal_fd(&w->dir_fd) : 0;
	}
	if (r == 0)
		r = open_part(w, "log.idx", &w->idx_fd, e);
	if (r == 0 && !begun) {
		r = sbx_pwrite_all(w->idx_fd, &h, sizeof(h), 0);
		if (r < 0)
			return failed(w, -r, e);
	}
	return r == 0 && bytes ? open_part(w, "log", &w->log_fd, e) : r;
}

/* Completes rec (type, flags, len, text and totals of the streams are set) and writes it. */
static int put_record(struct log_writer *w, struct log_record *rec, size_t data_len,
		      struct sbx_error *e)
{
	size_t line;
	int r;

	rec->seq = w->last.seq + 1;
	rec->time_us = sbx_now_us();
	line = log_render_len(rec, data_len);
	if (line == 0)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a frame of a log");
	rec->json_total = w->last.json_total + line + 1;
	r = sbx_pwrite_all(w->idx_fd, rec, sizeof(*rec), log_record_at(rec->seq - 1));
	if (r < 0)
		return failed(w, -r, e);
	w->last = *rec;
	return 0;
}

static int put_truncated(struct log_writer *w, const char *reason, struct sbx_error *e)
{
	struct log_record rec = { .type = LOG_TRUNCATED,
				  .out_total = w->last.out_total,
				  .err_total = w->last.err_total };
	int r;

	memcpy(rec.text, reason, strnlen(reason, LOG_TEXT - 1));
	r = w->broken ? 0 : open_files(w, false, e);
	return r < 0 || w->broken ? r : put_record(w, &rec, 0, e);
}

/* ---- one frame ------------------------------------------------------------------------------- */

/* Is k followed by data valid UTF-8? k holds the beginning of one character, or nothing. */
static bool valid_joined(const struct kept *k, const char *data, size_t len)
{
	char head[KEPT_MAX + KEPT_MAX];
	size_t n = len < KEPT_MAX ? len : KEPT_MAX;
	size_t c;

	if (k->len == 0)
		return sbx_utf8_valid(data, len);
	memcpy(head, k->bytes, k->len);
	if (n)
		memcpy(head + k->len, data, n);
	c = sbx_utf8_char(head, k->len + n);
	return c > k->len && sbx_utf8_valid(data + (c - k->len), len - (c - k->len));
}

/* Is any of the eight bytes c? A borrow may say yes too often, never no. */
static uint64_t any_equal(uint64_t word, unsigned char c)
{
	uint64_t x = word ^ (0x0101010101010101u * c);

	return (x - 0x0101010101010101u) & ~x & 0x8080808080808080u;
}

static uint64_t any_control(uint64_t word)
{
	return (word - 0x2020202020202020u) & ~word & 0x8080808080808080u;
}

/* Length as the inside of a JSON string, of text that is valid UTF-8. Eight bytes at a time where
 * JSON leaves them as they are: this is on the path of every byte of output. */
static size_t json_len(const struct log_writer *w, const char *data, size_t len)
{
	const unsigned char *p = (const unsigned char *)data;
	size_t n = len, i = 0;
	uint64_t word;

	while (len - i >= sizeof(word)) {
		memcpy(&word, p + i, sizeof(word));
		if (any_control(word) | any_equal(word, '"') | any_equal(word, '\\') |
		    any_equal(word, 0x7f))
			for (size_t k = 0; k < sizeof(word); k++)
				n += w->extra[p[i + k]];
		i += sizeof(word);
	}
	for (; i < len; i++)
		n += w->extra[p[i]];
	return n;
}

static int put_frame(struct log_writer *w, enum log_type stream, const struct kept *k,
		     const char *data, size_t len, struct sbx_error *e)
{
	uint64_t at = w->last.out_total + w->last.err_total;
	size_t all = k->len + len, data_len;
	bool utf8 = valid_joined(k, data, len);
	struct log_record rec = { .type = (uint8_t)stream,
				  .flags = utf8 ? LOG_FLAG_UTF8 : 0,
				  .len = (uint32_t)all,
				  .out_total = w->last.out_total,
				  .err_total = w->last.err_total };
	int r = open_files(w, true, e);

	if (r < 0)
		return r;
	if (stream == LOG_STDOUT)
		rec.out_total += all;
	else
		rec.err_total += all;
	/* The kept bytes are part of a character, which JSON leaves as it is. */
	data_len = 2 + (utf8 ? k->len + json_len(w, data, len) : (all + 2) / 3 * 4);
	if (k->len)
		r = sbx_pwrite_all(w->log_fd, k->bytes, k->len, (off_t)at);
	if (r == 0 && len)
		r = sbx_pwrite_all(w->log_fd, data, len, (off_t)(at + k->len));
	if (r < 0)
		return failed(w, -r, e);
	return put_record(w, &rec, data_len, e);
}

/*
 * A frame, or as much of it as the cap leaves room for, then the one frame that says so. A
 * character that the cap cuts makes the last frame base64.
 */
static int emit(struct log_writer *w, enum log_type stream, struct kept *k, const char *data,
		size_t len, struct sbx_error *e)
{
	uint64_t room = w->cap - (w->last.out_total + w->last.err_total);
	uint64_t all = k->len + len;
	struct kept part = *k;
	int r;

	k->len = 0;
	if (w->last.seq >= w->frames_max)
		room = 0;
	if (w->capped || w->broken) {
		w->dropped += all;
		return 0;
	}
	if (all <= room) {
		r = put_frame(w, stream, &part, data, len, e);
		if (r < 0)
			w->dropped += all;
		return r;
	}
	w->dropped += all - room;
	w->capped = true;
	if (room) {
		if (part.len > room)
			part.len = (size_t)room;
		r = put_frame(w, stream, &part, data, (size_t)room - part.len, e);
		if (r < 0) {
			w->dropped += room;
			return r;
		}
	}
	return put_truncated(w, "log_cap", e);
}

/* ---- streams --------------------------------------------------------------------------------- */

static struct kept *kept_of(struct log_writer *w, enum log_type stream)
{
	return stream == LOG_STDOUT ? &w->out : stream == LOG_STDERR ? &w->err : NULL;
}

static void keep(struct kept *k, const char *data, size_t len)
{
	memcpy(k->bytes, data, len);
	k->len = len;
}

int log_writer_put(struct log_writer *w, enum log_type stream, const void *data, size_t len,
		   struct sbx_error *e)
{
	struct kept *k = kept_of(w, stream);
	const char *p = data;
	char joined[KEPT_MAX + KEPT_MAX + 1];
	size_t take, tail;
	int r = 0;

	if (!k)
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "a log takes stdout and stderr only");
	if (len == 0)
		return 0;
	if (k->len && len <= KEPT_MAX) {
		/* The end of so few bytes can only be judged together with what was kept. */
		memcpy(joined, k->bytes, k->len);
		memcpy(joined + k->len, p, len);
		p = joined;
		len += k->len;
		k->len = 0;
	}
	for (;;) {
		take = len < LOG_FRAME_MAX - k->len ? len : LOG_FRAME_MAX - k->len;
		tail = sbx_utf8_partial_tail(p, take);
		/* After a failure the loop goes on only to count what is dropped. */
		if (take > tail && r == 0)
			r = emit(w, stream, k, p, take - tail, e);
		else if (take > tail)
			(void)emit(w, stream, k, p, take - tail, NULL);
		if (take == len)
			break;
		p += take - tail;
		len -= take - tail;
	}
	if (tail)
		keep(k, p + take - tail, tail);
	return r;
}

int log_writer_flush(struct log_writer *w, enum log_type stream, struct sbx_error *e)
{
	struct kept *k = kept_of(w, stream);

	if (!k)
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "a log takes stdout and stderr only");
	return k->len ? emit(w, stream, k, "", 0, e) : 0;
}

int log_writer_truncated(struct log_writer *w, const char *reason, struct sbx_error *e)
{
	/* A client that floods stdin cannot make the index grow without end either. */
	if (w->last.seq >= w->frames_max)
		return 0;
	return put_truncated(w, reason, e);
}

int log_writer_sync(struct log_writer *w, struct sbx_error *e)
{
	/* Bytes before the records that speak of them. */
	if ((w->log_fd >= 0 && fdatasync(w->log_fd) < 0) ||
	    (w->idx_fd >= 0 && fdatasync(w->idx_fd) < 0))
		return failed(w, errno, e);
	return 0;
}

int64_t log_writer_bytes(const struct log_writer *w)
{
	return (int64_t)(w->last.out_total + w->last.err_total);
}

int64_t log_writer_dropped(const struct log_writer *w)
{
	return (int64_t)w->dropped;
}
