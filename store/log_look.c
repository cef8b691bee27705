/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reader looks at the row and at the files of a log, in that order. The frames `start` and `end`
 * are records that are made here, of what the row says; what the files say is checked, since a
 * crash may have torn the end of the index.
 */
#include "store/log_reader_i.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"
#include "store/store_i.h"

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

/* ---- opening --------------------------------------------------------------------------------- */

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
	return sbx_pread_full(r->idx_fd, ret, sizeof(*ret), log_record_at(n)) ==
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
	ssize_t n = sbx_pread_full(r->idx_fd, &h, sizeof(h), 0);

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

/* ---- the two frames of the row --------------------------------------------------------------- */

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

/* ---- the row --------------------------------------------------------------------------------- */

static void copy(char to[LOG_TEXT], const char *from)
{
	if (from)
		memcpy(to, from, strnlen(from, LOG_TEXT - 1));
}

static int get_facts(struct store *s, const char *run_id, struct log_facts *ret,
		     struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	enum store_phase phase;
	int r = store_reader_get(s, &rd, e);

	if (r == 0)
		r = store_first(rd.c, SQL_LOG_FACTS, STORE_ARGS(store_text(run_id)), &q, e);
	if (r < 0)
		return r;
	if (r == 0)
		return sbx_fail(e, SBX_E_RUN_NOT_FOUND, "no such run");
	memset(ret, 0, sizeof(*ret));
	phase = (enum store_phase)store_col_int(&q, 0);
	ret->ended = store_phase_terminal(phase);
	/* While it is starting the row has the time of the claim there. */
	if (phase == STORE_RUNNING || ret->ended)
		ret->started_us = store_col_int(&q, 1);
	ret->finished_us = store_col_int(&q, 2);
	ret->has_exit_code = store_col_int(&q, 3) != 0;
	ret->exit_code = (int)store_col_int(&q, 4);
	copy(ret->runtime, store_col_text(&q, 5));
	copy(ret->reason, store_col_text(&q, 6));
	return 0;
}

int log_reader_refresh(struct log_reader *r, struct sbx_error *e)
{
	struct log_facts facts;
	int rc;

	if (r->facts.ended)
		return 0;
	/* The row first: what is in the files after that is all that belongs before its end. */
	rc = get_facts(r->store, r->id, &facts, e);
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
