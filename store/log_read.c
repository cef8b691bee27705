/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a log while it is written: any range of any view by binary search over the records.
 * Memory is one block of records and one rendered line, whatever the size of the log; what the
 * records say is checked before it is used.
 */
#include "store/log_reader_i.h"

#include <stdlib.h>
#include <string.h>

#include "base/fs.h"

static int damaged(uint64_t seq, struct sbx_error *e)
{
	return sbx_fail(e, SBX_E_STORE_UNAVAILABLE, "frame %llu of the log is damaged",
			(unsigned long long)seq);
}

/* ---- records --------------------------------------------------------------------------------- */

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
		n = sbx_pread_full(r->idx_fd, r->block, sizeof(r->block), log_record_at(first));
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

/* ---- bytes ----------------------------------------------------------------------------------- */

static int read_bytes(struct log_reader *r, void *buf, size_t len, uint64_t at, struct sbx_error *e)
{
	ssize_t n = sbx_pread_full(r->log_fd, buf, len, (off_t)at);

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

/* ---- frames as JSON -------------------------------------------------------------------------- */

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
