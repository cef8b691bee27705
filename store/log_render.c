/* SPDX-License-Identifier: Apache-2.0 */
/* One frame as JSON, and how long that will be: the reader renders what the writer counted. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "store/log_i.h"

/* Everything after the members of one type. */
static void render_tail(const struct log_record *r, struct sbx_buf *out)
{
	char ts[SBX_TIME_TEXT];

	sbx_buf_printf(out, ",\"seq\":%llu,\"ts\":\"%s\"}", (unsigned long long)r->seq,
		       sbx_time_format(r->time_us, ts));
}

static void render_stream(const struct log_record *r, const char *data, struct sbx_buf *out)
{
	bool utf8 = r->flags & LOG_FLAG_UTF8;

	sbx_buf_printf(out, "{\"type\":\"%s\",\"encoding\":\"%s\",\"data\":",
		       r->type == LOG_STDOUT ? "stdout" : "stderr", utf8 ? "utf8" : "base64");
	if (utf8) {
		sbx_buf_json_str(out, data, r->len);
		return;
	}
	sbx_buf_puts(out, "\"");
	sbx_buf_base64(out, data, r->len);
	sbx_buf_puts(out, "\"");
}

static void render_start(const struct log_record *r, const char *data, struct sbx_buf *out)
{
	char ts[SBX_TIME_TEXT];

	(void)data;
	sbx_buf_printf(out, "{\"type\":\"event\",\"event\":\"start\",\"data\":{\"ts\":\"%s\"",
		       sbx_time_format(r->time_us, ts));
	if (r->text[0]) {
		sbx_buf_puts(out, ",\"runtime\":");
		sbx_buf_json_str(out, r->text, strnlen(r->text, LOG_TEXT));
	}
	sbx_buf_puts(out, "}");
}

static void render_end(const struct log_record *r, const char *data, struct sbx_buf *out)
{
	(void)data;
	sbx_buf_puts(out, "{\"type\":\"event\",\"event\":\"end\",\"data\":{\"exit_code\":");
	if (r->flags & LOG_FLAG_EXIT)
		sbx_buf_printf(out, "%d", (int)r->exit_code);
	else
		sbx_buf_puts(out, "null");
	/* What the exit code says by itself needs no reason beside it. */
	if (r->text[0] && strcmp(r->text, "completed") != 0 &&
	    strcmp(r->text, "nonzero_exit") != 0) {
		sbx_buf_puts(out, ",\"reason\":");
		sbx_buf_json_str(out, r->text, strnlen(r->text, LOG_TEXT));
	}
	if (strcmp(r->text, "canceled_by_user") == 0)
		sbx_buf_puts(out, ",\"canceled\":true");
	sbx_buf_puts(out, "}");
}

static void render_truncated(const struct log_record *r, const char *data, struct sbx_buf *out)
{
	(void)data;
	sbx_buf_puts(out, "{\"type\":\"truncated\",\"reason\":");
	sbx_buf_json_str(out, r->text, strnlen(r->text, LOG_TEXT));
}

static void (*const renderers[LOG_TYPE__COUNT])(const struct log_record *r, const char *data,
						struct sbx_buf *out) = {
	[LOG_START] = render_start,	    [LOG_END] = render_end,
	[LOG_STDOUT] = render_stream,	    [LOG_STDERR] = render_stream,
	[LOG_TRUNCATED] = render_truncated,
};

void log_render(const struct log_record *r, const char *data, struct sbx_buf *out)
{
	renderers[r->type](r, data, out);
	render_tail(r, out);
}

size_t log_render_len(const struct log_record *r, size_t data_len)
{
	struct log_record empty = *r;
	sbx_autobuf b = SBX_BUF_INIT(4096);

	/* An empty frame of the same kind, whose two quotes make room for the data. */
	empty.len = 0;
	log_render(&empty, "", &b);
	if (sbx_buf_failed(&b))
		return 0;
	if (r->type == LOG_STDOUT || r->type == LOG_STDERR)
		return b.len - 2 + data_len;
	return b.len;
}

bool log_record_ok(const struct log_record *r, uint64_t n, uint64_t bytes)
{
	bool stream = r->type == LOG_STDOUT || r->type == LOG_STDERR;
	uint64_t own = r->type == LOG_STDOUT ? r->out_total : r->err_total;

	if (r->seq != n + 1 || (!stream && r->type != LOG_TRUNCATED))
		return false;
	if (r->out_total > bytes || r->err_total > bytes - r->out_total)
		return false;
	if (r->text[LOG_TEXT - 1] != '\0' || r->json_total > INT64_MAX / 2)
		return false;
	if (stream)
		return r->len > 0 && r->len <= LOG_FRAME_MAX && r->len <= own;
	return r->len == 0;
}
