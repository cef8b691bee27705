/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a log while it is written: any range of any view by binary search over the records.
 * Memory is one block of records and one rendered line, whatever the size of the log; what the
 * records say is checked before it is used, since a crash may have torn the end of the index.
 * The frames `start` and `end` are records that are made here, of what the row says.
 */
#include "store/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/fs.h"
#include "store/log_i.h"
#include "store/store.h"

enum {
	BLOCK = 64,			    /* records read at once */
	LINE_MAX = LOG_FRAME_MAX * 6 + 512, /* every byte as \u00xx, and the members around */
};

struct log_reader {
	struct store *store; /* borrowed; NULL: somebody else knows the facts and the directory */
	char id[37];
	struct log_facts facts;
	int dir_fd, idx_fd, log_fd;
	struct log_header header;    /* zeroes while there is none */
	uint64_t records;	     /* in log.idx, whole and with all their bytes */
	struct log_record stored;    /* the last of them; zeroes when there is none */
	struct log_record start;     /* frame 1; type 0: the command has not begun */
	struct log_record end, last; /* `end` (type 0: not over), and the last frame there is */
	uint64_t frames;

	struct log_record block[BLOCK]; /* block_first and those behind it */
	uint64_t block_first;
	size_t block_n;

	struct sbx_buf line; /* frame line_seq with its newline; 0: none */
	uint64_t line_seq;
};

struct log_reader *log_reader_close(struct log_reader *r)
{
	if (!r)
		return NULL;
	sbx_closep(&r->dir_fd);
	sbx_closep(&r->idx_fd);
	sbx_closep(&r->log_fd);
	sbx_buf_free(&r->line);
	free(r);
	return NULL;
}
SBX_DEFINE_AUTO(struct log_reader, log_reader_close)

static void forget(struct log_reader *r)
{
	r->records = 0;
	memset(&r->stored, 0, sizeof(r->stored));
	r->block_n = 0;
	r->line_seq = 0;
}

static int damaged(uint64_t seq, struct sbx_error *e)
{
	return sbx_fail(e, SBX_E_STORE_UNAVAILABLE, "frame %llu of the log is damaged",
			(unsigned long long)seq);
}

/* The number of bytes read, which is less than len only at the end of the file. */
static ssize_t pread_full(int fd, void *buf, size_t len, off_t off)
{
	size_t got = 0;

	while (got < len) {
		ssize_t n = pread(fd, (char *)buf + got, len - got, off + (off_t)got);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		got += (size_t)n;
	}
	return (ssize_t)got;
}

/* ---- opening and looking again ---- */

static struct log_reader *reader_new(struct sbx_error *e)
{
	struct log_reader *r = calloc(1, sizeof(*r));

	if (!r) {
		sbx_fail(e, SBX_E_NO_MEMORY, "no memory to read a log");
		return NULL;
	}
	r->dir_fd = r->idx_fd = r->log_fd = -1;
	r->line = (struct sbx_buf)SBX_BUF_INIT(LINE_MAX);
	return r;
}

int log_reader_open_at(int run_dirfd, struct log_reader **ret, struct sbx_error *e)
{
	SBX_AUTO(log_reader_closep) struct log_reader *r = reader_new(e);

	if (!r)
		return -SBX_E_NO_MEMORY;
	r->dir_fd = fcntl(run_dirfd, F_DUPFD_CLOEXEC, 0);
	if (r->dir_fd < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno, "cannot read a log");
	*ret = sbx_steal(&r);
	return 0;
}

int log_reader_open(struct store *s, const char *run_id, struct log_reader **ret,
		    struct sbx_error *e)
{
	SBX_AUTO(log_reader_closep) struct log_reader *r = reader_new(e);
	int rc;

	if (!r)
		return -SBX_E_NO_MEMORY;
	r->store = s;
	memcpy(r->id, run_id, strnlen(run_id, sizeof(r->id) - 1));
	rc = log_reader_refresh(r, e);
	if (rc < 0)
		return rc;
	*ret = sbx_steal(&r);
	return 0;
}

/* It may come into being at any time. */
static int open_dir(struct log_reader *r, struct sbx_error *e)
{
	if (r->dir_fd >= 0 || !r->store)
		return 0;
	r->dir_fd = store_run_dir(r->store, r->id, false, e);
	if (r->dir_fd >= 0)
		return 0;
	if (r->dir_fd == -SBX_E_RUN_NOT_FOUND) {
		sbx_error_clear(e);
		r->dir_fd = -1;
		return 0;
	}
	return r->dir_fd;
}

/* *fd stays -1 when there is no such file yet. */
static int open_part(const struct log_reader *r, const char *name, int *fd, struct sbx_error *e)
{
	if (*fd >= 0 || r->dir_fd < 0)
		return 0;
	*fd = sbx_open_beneath(r->dir_fd, name, O_RDONLY, 0);
	if (*fd >= 0)
		return 0;
	if (*fd == -ENOENT) {
		*fd = -1;
		return 0;
	}
	errno = -*fd;
	*fd = -1;
	return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno, "cannot open '%s' of a run", name);
}

static bool record_good(const struct log_reader *r, uint64_t n, uint64_t bytes,
			struct log_record *ret)
{
	return pread_full(r->idx_fd, ret, sizeof(*ret), log_record_at(n)) ==
		       (ssize_t)sizeof(*ret) &&
	       log_record_ok(ret, n, bytes);
}

/* The last of n records that is whole. It is the n-th, but after a crash. */
static void find_last(struct log_reader *r, uint64_t n, uint64_t bytes)
{
	struct log_record rec;
	uint64_t low = 0, high = n;

	memset(&r->stored, 0, sizeof(r->stored));
	if (n > 0 && record_good(r, n, bytes, &r->stored)) {
		r->records = n;
		return;
	}
	memset(&r->stored, 0, sizeof(r->stored));
	while (low < high) {
		uint64_t mid = low + (high - low + 1) / 2;

		if (record_good(r, mid, bytes, &rec)) {
			low = mid;
			r->stored = rec;
		} else {
			high = mid - 1;
		}
	}
	r->records = low;
}

static int check_header(struct log_reader *r, struct sbx_error *e)
{
	struct log_header h;
	ssize_t n = pread_full(r->idx_fd, &h, sizeof(h), 0);

	if (n < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, (int)-n, "cannot read a log");
	if (n < (ssize_t)sizeof(h)) {
		memset(&h, 0, sizeof(h)); /* being made at this moment */
	} else if (memcmp(h.magic, LOG_MAGIC, sizeof(h.magic)) != 0 || h.version != LOG_VERSION ||
		   h.record_size != sizeof(struct log_record)) {
		forget(r);
		return sbx_fail(e, SBX_E_STORE_UNAVAILABLE, "log.idx is no log index of version %d",
				LOG_VERSION);
	}
	/* A log that was begun anew, after a requeue, has nothing of the old one. */
	if (memcmp(&h, &r->header, sizeof(h)) != 0)
		forget(r);
	r->header = h;
	return 0;
}

static int look_at_files(struct log_reader *r, struct sbx_error *e)
{
	struct stat idx, log = { .st_size = 0 }; /* `log` appears with its first byte */
	uint64_t n;
	int rc;

	rc = open_dir(r, e);
	if (rc == 0)
		rc = open_part(r, "log.idx", &r->idx_fd, e);
	if (rc == 0)
		rc = open_part(r, "log", &r->log_fd, e);
	if (rc < 0)
		return rc;
	if (r->idx_fd < 0) {
		forget(r);
		return 0;
	}
	rc = check_header(r, e);
	if (rc < 0)
		return rc;
	/* The index first: bytes are written before their record, so those of every record
	 * that is seen here are in the size that is seen then. */
	if (fstat(r->idx_fd, &idx) < 0 || (r->log_fd >= 0 && fstat(r->log_fd, &log) < 0))
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno, "cannot read a log");
	n = idx.st_size > (off_t)sizeof(struct log_header)
		    ? ((uint64_t)idx.st_size - sizeof(struct log_header)) / sizeof(r->stored)
		    : 0;
	if (n == r->records)
		return 0;
	if (n < r->records)
		forget(r);
	find_last(r, n, (uint64_t)log.st_size);
	return 0;
}

/* ---- the two frames of the row ---- */

/* Puts rec, of an event, behind what r->last counts. */
static int make_event(struct log_reader *r, struct log_record *rec, struct sbx_error *e)
{
	size_t line;

	rec->seq = r->last.seq + 1;
	rec->out_total = r->last.out_total;
	rec->err_total = r->last.err_total;
	line = log_render_len(rec, 0);
	if (line == 0)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a frame of a log");
	rec->json_total = r->last.json_total + line + 1;
	r->last = *rec;
	return 0;
}

/* The header knows the time before the row does: the first output may be faster than the row. */
static int make_start(struct log_reader *r, const struct log_facts *facts, struct sbx_error *e)
{
	struct log_record start = { .type = LOG_START,
				    .time_us = r->header.version ? r->header.started_us
								 : facts->started_us };
	int rc = 0;

	if (!r->header.version && !facts->started_us)
		memset(&start, 0, sizeof(start));
	else
		memcpy(start.text, facts->runtime, sizeof(start.text) - 1);
	if (start.type)
		rc = make_event(r, &start, e);
	if (memcmp(&start, &r->start, sizeof(start)) != 0)
		r->line_seq = 0;
	r->start = start;
	return rc;
}

static int make_end(struct log_reader *r, const struct log_facts *facts, struct sbx_error *e)
{
	struct log_record end = { .type = LOG_END,
				  .flags = facts->has_exit_code ? LOG_FLAG_EXIT : 0,
				  .exit_code = facts->has_exit_code ? facts->exit_code : 0,
				  .time_us = facts->finished_us };
	int rc = 0;

	memcpy(end.text, facts->reason, sizeof(end.text) - 1);
	memset(&r->end, 0, sizeof(r->end));
	if (facts->ended)
		rc = make_event(r, &end, e);
	if (facts->ended && rc == 0)
		r->end = end;
	return rc;
}

int log_reader_look(struct log_reader *r, const struct log_facts *facts, struct sbx_error *e)
{
	int rc = look_at_files(r, e);

	if (rc < 0)
		return rc;
	r->facts = (struct log_facts){ 0 }; /* until the look has succeeded */
	memset(&r->last, 0, sizeof(r->last));
	rc = make_start(r, facts, e);
	if (rc == 0 && r->records) {
		r->last = r->stored;
		r->last.json_total += r->start.json_total;
	}
	if (rc == 0)
		rc = make_end(r, facts, e);
	r->frames = r->last.seq;
	if (rc == 0)
		r->facts = *facts;
	return rc;
}

int log_reader_refresh(struct log_reader *r, struct sbx_error *e)
{
	struct log_facts facts;
	int rc;

	if (r->facts.ended)
		return 0;
	/* The row first: what is in the files after that is all that belongs before its end. */
	rc = log_facts_get(r->store, r->id, &facts, e);
	return rc < 0 ? rc : log_reader_look(r, &facts, e);
}

uint64_t log_reader_frames(const struct log_reader *r)
{
	return r->frames;
}

bool log_reader_ended(const struct log_reader *r)
{
	return r->end.type == LOG_END;
}

int log_reader_fd(const struct log_reader *r)
{
	return r->log_fd;
}

/* ---- records ---- */

/* The record of frame seq (1..frames), checked against the last one. */
static int get(struct log_reader *r, uint64_t seq, struct log_record *ret, struct sbx_error *e)
{
	uint64_t at = seq - 1, first = (at - 1) / BLOCK * BLOCK + 1;
	ssize_t n;

	if (seq == r->start.seq || seq == r->end.seq) {
		*ret = seq == r->start.seq ? r->start : r->end;
		return 0;
	}
	if (at == 0)
		return damaged(seq, e);
	if (first != r->block_first || at - first >= r->block_n) {
		n = pread_full(r->idx_fd, r->block, sizeof(r->block), log_record_at(first));
		if (n < 0)
			return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, (int)-n,
					      "cannot read a log");
		r->block_first = first;
		r->block_n = (size_t)n / sizeof(r->block[0]);
	}
	if (at - first >= r->block_n)
		return damaged(seq, e);
	*ret = r->block[at - first];
	if (!log_record_ok(ret, at, r->last.out_total + r->last.err_total))
		return damaged(seq, e);
	ret->json_total += r->start.json_total;
	return 0;
}

static uint64_t total(const struct log_record *rec, enum log_view view)
{
	switch (view) {
	case LOG_VIEW_STDOUT:
		return rec->out_total;
	case LOG_VIEW_STDERR:
		return rec->err_total;
	case LOG_VIEW_NDJSON:
		return rec->json_total;
	default:
		return rec->out_total + rec->err_total;
	}
}

/* The first frame whose total in the view is above off; frames + 1 when there is none. */
static int find(struct log_reader *r, enum log_view view, uint64_t off, uint64_t *ret,
		struct sbx_error *e)
{
	uint64_t low = 1, high = r->frames + 1;
	struct log_record rec;

	while (low < high) {
		uint64_t mid = low + (high - low) / 2;
		int rc = get(r, mid, &rec, e);

		if (rc < 0)
			return rc;
		if (total(&rec, view) > off)
			high = mid;
		else
			low = mid + 1;
	}
	*ret = low;
	return 0;
}

int64_t log_reader_size(const struct log_reader *r, enum log_view view)
{
	return (int64_t)total(&r->last, view);
}

/* ---- bytes ---- */

static int read_bytes(struct log_reader *r, void *buf, size_t len, uint64_t at, struct sbx_error *e)
{
	ssize_t n = pread_full(r->log_fd, buf, len, (off_t)at);

	if (n < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, (int)-n, "cannot read a log");
	if ((size_t)n < len)
		return sbx_fail(e, SBX_E_STORE_UNAVAILABLE, "the log of the run was cut");
	return 0;
}

/*
 * Frames of one stream with none of the other between them are one piece of `log`: from off up
 * to the first frame of the other stream that follows the frame which holds off.
 */
static ssize_t read_stream(struct log_reader *r, enum log_view view, uint64_t off, char *buf,
			   size_t len, struct sbx_error *e)
{
	enum log_view other = view == LOG_VIEW_STDOUT ? LOG_VIEW_STDERR : LOG_VIEW_STDOUT;
	uint64_t size = total(&r->last, view), seq = 0, next = 0, end = size, before;
	struct log_record rec;
	int rc = find(r, view, off, &seq, e);

	if (rc == 0)
		rc = get(r, seq, &rec, e);
	if (rc < 0)
		return rc;
	before = total(&rec, other);
	rc = find(r, other, before, &next, e);
	if (rc == 0 && next <= r->frames) {
		rc = get(r, next, &rec, e);
		end = total(&rec, view);
	}
	if (rc < 0)
		return rc;
	if (end <= off || end > size)
		return damaged(next, e);
	if (len > end - off)
		len = (size_t)(end - off);
	rc = read_bytes(r, buf, len, off + before, e);
	return rc < 0 ? rc : (ssize_t)len;
}

static ssize_t read_all(struct log_reader *r, enum log_view view, uint64_t off, char *buf,
			size_t len, struct sbx_error *e)
{
	uint64_t left = total(&r->last, view) - off;
	int rc;

	if (len > left)
		len = (size_t)left;
	rc = read_bytes(r, buf, len, off, e);
	return rc < 0 ? rc : (ssize_t)len;
}

/* ---- frames as JSON ---- */

static int render(struct log_reader *r, const struct log_record *rec, struct sbx_buf *out,
		  struct sbx_error *e)
{
	sbx_autofree char *data = malloc(rec->len + 1);
	int rc;

	if (!data)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a frame of a log");
	if (rec->len) {
		rc = read_bytes(r, data, rec->len, rec->out_total + rec->err_total - rec->len, e);
		if (rc < 0)
			return rc;
	}
	log_render(rec, data, out);
	if (sbx_buf_failed(out))
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a frame of a log");
	return 0;
}

int log_reader_frame(struct log_reader *r, uint64_t seq, struct sbx_buf *out, struct sbx_error *e)
{
	struct log_record rec;
	int rc;

	if (seq == 0 || seq > r->frames)
		return sbx_fail(e, SBX_E_NOT_FOUND, "the log has %llu frames",
				(unsigned long long)r->frames);
	rc = get(r, seq, &rec, e);
	return rc < 0 ? rc : render(r, &rec, out, e);
}

/* Where line seq begins in the view, and its record. */
static int line_bounds(struct log_reader *r, uint64_t seq, struct log_record *rec, uint64_t *start,
		       struct sbx_error *e)
{
	int rc = 0;

	*start = 0;
	if (seq > 1) {
		rc = get(r, seq - 1, rec, e);
		*start = rec->json_total;
	}
	return rc < 0 ? rc : get(r, seq, rec, e);
}

/* The frame whose line holds byte off. Whoever reads on finds the present or the next one
 * without a search. */
static int find_line(struct log_reader *r, uint64_t off, struct log_record *rec, uint64_t *start,
		     struct sbx_error *e)
{
	uint64_t seq;
	int rc;

	for (seq = r->line_seq; seq > 0 && seq <= r->line_seq + 1 && seq <= r->frames; seq++) {
		rc = line_bounds(r, seq, rec, start, e);
		if (rc < 0 || (*start <= off && off < rec->json_total))
			return rc;
	}
	rc = find(r, LOG_VIEW_NDJSON, off, &seq, e);
	if (rc == 0)
		rc = line_bounds(r, seq, rec, start, e);
	if (rc == 0 && (*start > off || rec->json_total <= off))
		rc = damaged(seq, e);
	return rc;
}

/* Renders it into r->line, unless it is there already. */
static int load_line(struct log_reader *r, uint64_t off, uint64_t *start, struct sbx_error *e)
{
	struct log_record rec;
	int rc = find_line(r, off, &rec, start, e);

	if (rc < 0 || rec.seq == r->line_seq)
		return rc;
	r->line_seq = 0;
	r->line.len = 0;
	rc = render(r, &rec, &r->line, e);
	sbx_buf_add(&r->line, "\n", 1);
	if (rc == 0 && (sbx_buf_failed(&r->line) || r->line.len != rec.json_total - *start))
		rc = damaged(rec.seq, e);
	if (rc == 0) {
		r->line_seq = rec.seq;
		return 0;
	}
	/* The failure of a buffer is sticky; begin with a new one next time. */
	sbx_buf_free(&r->line);
	r->line = (struct sbx_buf)SBX_BUF_INIT(LINE_MAX);
	return rc;
}

static ssize_t read_ndjson(struct log_reader *r, enum log_view view, uint64_t off, char *buf,
			   size_t len, struct sbx_error *e)
{
	uint64_t start = 0, left;
	int rc = load_line(r, off, &start, e);

	(void)view;
	if (rc < 0)
		return rc;
	left = start + r->line.len - off;
	if (len > left)
		len = (size_t)left;
	memcpy(buf, r->line.data + (off - start), len);
	return (ssize_t)len;
}

static ssize_t (*const readers[LOG_VIEW__COUNT])(struct log_reader *r, enum log_view view,
						 uint64_t off, char *buf, size_t len,
						 struct sbx_error *e) = {
	[LOG_VIEW_ALL] = read_all,
	[LOG_VIEW_STDOUT] = read_stream,
	[LOG_VIEW_STDERR] = read_stream,
	[LOG_VIEW_NDJSON] = read_ndjson,
};

ssize_t log_reader_read(struct log_reader *r, enum log_view view, int64_t off, void *buf,
			size_t len, struct sbx_error *e)
{
	uint64_t size = total(&r->last, view), at = (uint64_t)off;
	size_t got = 0;

	if (off < 0 || view >= LOG_VIEW__COUNT)
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "bad offset or view of a log");
	/* Pieces: of the stream between frames of the other, or lines. Each gives a byte or more.
	 */
	while (got < len && at < size) {
		ssize_t n = readers[view](r, view, at, (char *)buf + got, len - got, e);

		if (n < 0)
			return n;
		got += (size_t)n;
		at += (uint64_t)n;
	}
	return (ssize_t)got;
}
