/* SPDX-License-Identifier: Apache-2.0 */
/* The files that were captured: a list, and downloads by range (RFC 9110, section 14; what the
 * reference answers 416 where the RFC would ignore the header is kept). */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>

#include "apid/apid_i.h"
#include "base/fs.h"
#include "base/id.h"

enum { LIST_MAX = 64 << 20, HTTP_DATE = 32 };

static int find(struct req *q, struct store_run *ret, struct sbx_error *e)
{
	if (!sbx_id_valid(q->param[0]))
		return sbx_fail(e, SBX_E_RUN_NOT_FOUND, "no run '%.60s'", q->param[0]);
	return orch_run_get(q->a->orch, &q->who, q->param[0], ret, e);
}

/* ---- the list -------------------------------------------------------------------------------- */

struct listing {
	struct sbx_buf *out;
	const char *run_id;
	bool any;
};

/* The path as a URL's: what is not plain is escaped, so that the link works as it stands. */
static void put_url(struct sbx_buf *out, const char *path)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
				    "-._~/!$&'()*+,;=:@";

	for (; *path; path++)
		if (strchr(plain, *path))
			sbx_buf_add(out, path, 1);
		else
			sbx_buf_printf(out, "%%%02X", (unsigned char)*path);
}

static bool add_artifact(void *ctx, const struct store_artifact *a)
{
	struct listing *l = ctx;

	sbx_buf_puts(l->out, l->any ? ",{\"path\":" : "{\"path\":");
	sbx_buf_json_strz(l->out, a->path);
	sbx_buf_printf(l->out, ",\"size\":%lld,\"download_url\":\"" API_BASE "/runs/%s/artifacts/",
		       (long long)a->size, l->run_id);
	put_url(l->out, a->path);
	sbx_buf_puts(l->out, "\"}");
	l->any = true;
	return !sbx_buf_failed(l->out);
}

enum MHD_Result artifacts_get(struct req *q)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	sbx_autobuf b = SBX_BUF_INIT(LIST_MAX);
	struct listing l = { .out = &b };
	store_autorun r = { 0 };

	if (find(q, &r, &e) < 0)
		return reply_error(q, &e);
	l.run_id = r.id;
	sbx_buf_puts(&b, "{\"items\":[");
	if (store_artifact_list(q->a->store, r.id, add_artifact, &l, &e) < 0)
		return reply_error(q, &e);
	sbx_buf_puts(&b, "]}\n");
	return reply_json(q, MHD_HTTP_OK, &b, NULL);
}

/* ---- what kind of file ----------------------------------------------------------------------- */

static const char *type_of(const char *path)
{
	static const struct {
		const char *ending, *type;
	} known[] = {
		{ ".txt", "text/plain; charset=utf-8" },
		{ ".log", "text/plain; charset=utf-8" },
		{ ".md", "text/markdown; charset=utf-8" },
		{ ".csv", "text/csv; charset=utf-8" },
		{ ".html", "text/html; charset=utf-8" },
		{ ".htm", "text/html; charset=utf-8" },
		{ ".css", "text/css; charset=utf-8" },
		{ ".js", "text/javascript; charset=utf-8" },
		{ ".py", "text/x-python; charset=utf-8" },
		{ ".xml", "text/xml; charset=utf-8" },
		{ ".json", "application/json" },
		{ ".pdf", "application/pdf" },
		{ ".zip", "application/zip" },
		{ ".gz", "application/gzip" },
		{ ".tar", "application/x-tar" },
		{ ".png", "image/png" },
		{ ".jpg", "image/jpeg" },
		{ ".jpeg", "image/jpeg" },
		{ ".gif", "image/gif" },
		{ ".svg", "image/svg+xml" },
		{ ".webp", "image/webp" },
		{ ".wasm", "application/wasm" },
	};
	const char *dot = strrchr(path, '.');

	for (size_t i = 0; dot && i < SBX_COUNT(known); i++)
		if (strcasecmp(dot, known[i].ending) == 0)
			return known[i].type;
	return "application/octet-stream";
}

static void http_date(time_t t, char out[HTTP_DATE])
{
	struct tm tm;

	(void)gmtime_r(&t, &tm);
	(void)strftime(out, HTTP_DATE, "%a, %d %b %Y %H:%M:%S GMT", &tm);
}

/* ---- ranges ---------------------------------------------------------------------------------- */

/* Digits only, no sign, no overflow; -1 when there are none. */
static int64_t number(const char **at)
{
	int64_t n = -1;

	for (; **at >= '0' && **at <= '9'; (*at)++) {
		int digit = **at - '0';

		if (n > (INT64_MAX - digit) / 10)
			n = INT64_MAX / 10 - 1;
		n = (n < 0 ? 0 : n) * 10 + digit;
	}
	return n;
}

/* "bytes=a-b", "bytes=a-" or "bytes=-n" within a file of this size. False: 416. */
static bool parse_range(const char *text, int64_t size, int64_t *first, int64_t *last)
{
	int64_t a, b;

	if (strncmp(text, "bytes=", 6) != 0)
		return false;
	text += 6;
	a = number(&text);
	if (*text++ != '-')
		return false;
	b = number(&text);
	if (*text || size == 0 || (a < 0 && b <= 0))
		return false;
	if (a < 0) {
		*first = b >= size ? 0 : size - b;
		*last = size - 1;
		return true;
	}
	*first = a;
	*last = b < 0 || b >= size ? size - 1 : b;
	return a < size && (b < 0 || a <= b);
}

/* ---- one file -------------------------------------------------------------------------------- */

struct file {
	int fd; /* owned until a response has it */
	struct stat st;
	char etag[80], modified[HTTP_DATE];
};

static int open_file(struct req *q, const struct store_run *r, struct file *f, struct sbx_error *e)
{
	sbx_autoclose int dir = store_run_dir(q->a->store, r->id, false, NULL);
	char path[API_PARAM_MAX + 16];

	f->fd = -1;
	if (dir >= 0 && !r->artifacts_gone &&
	    snprintf(path, sizeof(path), "artifacts/%s", q->param[1]) < (int)sizeof(path))
		f->fd = sbx_open_beneath(dir, path, O_RDONLY | O_NONBLOCK, 0);
	if (f->fd == -EMFILE || f->fd == -ENFILE || f->fd == -ENOMEM || f->fd == -EIO)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, -f->fd,
				      "cannot open the artifact");
	if (f->fd < 0 || fstat(f->fd, &f->st) < 0 || !S_ISREG(f->st.st_mode)) {
		sbx_closep(&f->fd);
		return sbx_fail(e, SBX_E_ARTIFACT_NOT_FOUND, "the run has no artifact '%.200s'",
				q->param[1]);
	}
	(void)snprintf(f->etag, sizeof(f->etag), "\"%llx-%llx-%llx.%lx\"",
		       (unsigned long long)f->st.st_ino, (unsigned long long)f->st.st_size,
		       (unsigned long long)f->st.st_mtim.tv_sec, f->st.st_mtim.tv_nsec);
	http_date(f->st.st_mtim.tv_sec, f->modified);
	return 0;
}

/* The range counts only if the file is still the one that the client has a part of. */
static const char *range_of(struct req *q, const struct file *f)
{
	const char *condition = req_header(q, MHD_HTTP_HEADER_IF_RANGE);

	if (q->head) /* ranges are defined for GET (RFC 9110, section 14.2) */
		return NULL;
	if (condition && strcmp(condition, f->etag) != 0 && strcmp(condition, f->modified) != 0)
		return NULL;
	return req_header(q, MHD_HTTP_HEADER_RANGE);
}

/* What a sandbox made is shown under our own origin: it must not act there. */
static enum MHD_Result send_file(struct req *q, struct file *f, int64_t first, int64_t last,
				 int status)
{
	bool part = status == MHD_HTTP_PARTIAL_CONTENT;
	char range[96];
	const char *headers[] = { MHD_HTTP_HEADER_ACCEPT_RANGES,
				  "bytes",
				  MHD_HTTP_HEADER_CONTENT_TYPE,
				  type_of(q->param[1]),
				  MHD_HTTP_HEADER_ETAG,
				  f->etag,
				  MHD_HTTP_HEADER_LAST_MODIFIED,
				  f->modified,
				  MHD_HTTP_HEADER_CACHE_CONTROL,
				  "private, no-cache",
				  "Content-Security-Policy",
				  "sandbox; default-src 'none'",
				  MHD_HTTP_HEADER_CONTENT_RANGE,
				  part ? range : NULL,
				  NULL };
	uint64_t len = (uint64_t)(last - first + 1);
	struct MHD_Response *r;

	(void)snprintf(range, sizeof(range), "bytes %lld-%lld/%lld", (long long)first,
		       (long long)last, (long long)f->st.st_size);
	r = len ? MHD_create_response_from_fd_at_offset64(len, f->fd, (uint64_t)first)
		: MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
	if (r && len)
		f->fd = -1; /* it is the response's now */
	q->sent = q->head || status == MHD_HTTP_NOT_MODIFIED ? 0 : (int64_t)len;
	return reply_response(q, status, r, headers);
}

static enum MHD_Result reply_file(struct req *q, struct file *f)
{
	const char *have = req_header(q, MHD_HTTP_HEADER_IF_NONE_MATCH);
	const char *range = range_of(q, f);
	int64_t first = 0, last = f->st.st_size - 1;
	char size[64];
	const char *beyond[] = { MHD_HTTP_HEADER_CONTENT_RANGE, size, NULL };

	if (have && (strcmp(have, "*") == 0 || strstr(have, f->etag)))
		return send_file(q, f, 0, last, MHD_HTTP_NOT_MODIFIED);
	if (range && !parse_range(range, f->st.st_size, &first, &last)) {
		(void)snprintf(size, sizeof(size), "bytes */%lld", (long long)f->st.st_size);
		return reply_empty(q, MHD_HTTP_RANGE_NOT_SATISFIABLE, beyond);
	}
	return send_file(q, f, first, last, range ? MHD_HTTP_PARTIAL_CONTENT : MHD_HTTP_OK);
}

enum MHD_Result artifact_get(struct req *q)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	store_autorun r = { 0 };
	enum MHD_Result done;
	struct file f;

	if (find(q, &r, &e) < 0 || open_file(q, &r, &f, &e) < 0)
		return reply_error(q, &e);
	done = reply_file(q, &f);
	sbx_closep(&f.fd);
	return done;
}
