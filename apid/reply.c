/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers. The reference has five shapes of error documents; ours is one superset of them: always
 * "error", and "detail" beside it where a client of the reference looks for that.
 */
#include <stdio.h>
#include <string.h>

#include "apid/apid_i.h"
#include "base/json.h"
#include "base/log.h"

static const char type_json[] = "application/json";

/* ---- queueing -------------------------------------------------------------------------------- */

static void add(struct MHD_Response *r, const char *name, const char *value)
{
	(void)MHD_add_response_header(r, name, value);
}

enum MHD_Result reply_response(struct req *q, int status, struct MHD_Response *r,
			       const char *const *headers)
{
	enum MHD_Result done;

	if (!r)
		return MHD_NO; /* no memory: the connection ends */
	for (; headers && headers[0]; headers += 2)
		if (headers[1])
			add(r, headers[0], headers[1]);
	add(r, "X-Request-ID", q->id);
	add(r, "X-Content-Type-Options", "nosniff");
	q->status = status;
	done = MHD_queue_response(q->conn, (unsigned)status, r);
	MHD_destroy_response(r);
	return done;
}

enum MHD_Result reply_text(struct req *q, int status, const char *type, struct sbx_buf *body,
			   const char *const *headers)
{
	size_t len = body->len;
	char *data = sbx_buf_steal(body);
	struct MHD_Response *r;

	if (!data) /* no memory, or more than such an answer may be */
		return reply_empty(q, MHD_HTTP_INTERNAL_SERVER_ERROR, NULL);
	r = MHD_create_response_from_buffer(len, data, MHD_RESPMEM_MUST_FREE);
	if (!r) {
		free(data);
		return MHD_NO;
	}
	add(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	q->sent = q->head || status == MHD_HTTP_NOT_MODIFIED ? 0 : (int64_t)len;
	return reply_response(q, status, r, headers);
}

enum MHD_Result reply_json(struct req *q, int status, struct sbx_buf *body,
			   const char *const *headers)
{
	return reply_text(q, status, type_json, body, headers);
}

enum MHD_Result reply_empty(struct req *q, int status, const char *const *headers)
{
	return reply_response(q, status,
			      MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT),
			      headers);
}

/* ---- refusals -------------------------------------------------------------------------------- */

enum MHD_Result reply_refusal(struct req *q, int status, const char *code, const char *message,
			      const char *detail_json, const char *const *headers)
{
	sbx_autobuf b = SBX_BUF_INIT(64 << 10);

	sbx_buf_puts(&b, "{\"error\":{\"code\":");
	sbx_buf_json_strz(&b, code);
	sbx_buf_puts(&b, ",\"message\":");
	sbx_buf_json_strz(&b, message);
	sbx_buf_puts(&b, ",\"details\":{}}");
	if (detail_json)
		sbx_buf_printf(&b, ",\"detail\":%s", detail_json);
	sbx_buf_puts(&b, "}\n");
	return reply_json(q, status, &b, headers);
}

enum MHD_Result reply_bad_path(struct req *q, const char *detail)
{
	char quoted[64];

	(void)snprintf(quoted, sizeof(quoted), "\"%s\"", detail);
	return reply_refusal(q, MHD_HTTP_BAD_REQUEST, sbx_code_name(SBX_E_INVALID_PATH),
			     sbx_code_doc(SBX_E_INVALID_PATH), quoted, NULL);
}

enum MHD_Result reply_no_route(struct req *q, const char *allow)
{
	const char *headers[] = { MHD_HTTP_HEADER_ALLOW, allow, NULL };

	if (allow[0])
		return reply_refusal(q, MHD_HTTP_METHOD_NOT_ALLOWED, "method_not_allowed",
				     "this path is for another method", "\"Method Not Allowed\"",
				     headers);
	return reply_refusal(q, MHD_HTTP_NOT_FOUND, sbx_code_name(SBX_E_NOT_FOUND),
			     "there is nothing at this path", "\"Not Found\"", NULL);
}

/* The reference's list of what is wrong with a request, with one member. */
static void detail_list(struct sbx_buf *out, const char *where, const char *field,
			const char *message)
{
	sbx_buf_printf(out, "[{\"type\":\"value_error\",\"loc\":[\"%s\"", where);
	while (field && *field) {
		size_t n = strcspn(field, ".");

		sbx_buf_puts(out, ",");
		sbx_buf_json_str(out, field, n);
		field += n + (field[n] == '.');
	}
	sbx_buf_puts(out, "],\"msg\":");
	sbx_buf_json_strz(out, message);
	sbx_buf_puts(out, ",\"input\":null}]");
}

enum MHD_Result reply_invalid_query(struct req *q, const char *name, const char *message)
{
	sbx_autobuf detail = SBX_BUF_INIT(4096);

	detail_list(&detail, "query", name, message);
	return reply_refusal(q, MHD_HTTP_UNPROCESSABLE_CONTENT,
			     sbx_code_name(SBX_E_INVALID_ARGUMENT), message, detail.data, NULL);
}

/* ---- errors ---------------------------------------------------------------------------------- */

/* What the reference has as `detail` of an error; SHAPE_NONE: it has no detail. */
enum shape {
	SHAPE_NONE,    /* {"error":...} alone */
	SHAPE_NESTED,  /* {"detail":{"error":...}} */
	SHAPE_CODE,    /* {"detail":"<code>"} */
	SHAPE_MESSAGE, /* {"detail":"<text>"} */
	SHAPE_LIST,    /* {"detail":[{"loc",...}]} */
	SHAPE_DETAILS, /* {"detail":{the details}} */
};

static const struct {
	enum sbx_code code;
	enum shape runs, sessions;
} shapes[] = {
	{ SBX_E_INVALID_SPEC, SHAPE_LIST, SHAPE_LIST },
	{ SBX_E_INVALID_SPEC_VERSION, SHAPE_NONE, SHAPE_NESTED },
	{ SBX_E_IDEMPOTENCY_CONFLICT, SHAPE_NONE, SHAPE_NESTED },
	{ SBX_E_QUEUE_FULL, SHAPE_NONE, SHAPE_NESTED },
	{ SBX_E_INVALID_INLINE_FILE, SHAPE_NESTED, SHAPE_NESTED },
	{ SBX_E_SESSION_BASE_IMAGE, SHAPE_NESTED, SHAPE_NESTED },
	{ SBX_E_SESSION_ACTIVE_RUNS, SHAPE_DETAILS, SHAPE_DETAILS },
	{ SBX_E_SESSION_DRAIN_TIMEOUT, SHAPE_DETAILS, SHAPE_DETAILS },
	{ SBX_E_INVALID_ARGUMENT, SHAPE_NONE, SHAPE_MESSAGE },
	{ SBX_E_CANCEL_FAILED, SHAPE_NESTED, SHAPE_NESTED },
	{ SBX_E_RUN_NOT_FOUND, SHAPE_CODE, SHAPE_CODE },
	{ SBX_E_SESSION_NOT_FOUND, SHAPE_CODE, SHAPE_CODE },
	{ SBX_E_SNAPSHOT_NOT_FOUND, SHAPE_CODE, SHAPE_CODE },
	{ SBX_E_ARTIFACT_NOT_FOUND, SHAPE_CODE, SHAPE_CODE },
	{ SBX_E_INVALID_PATH, SHAPE_CODE, SHAPE_CODE },
	{ SBX_E_WORKSPACE_CAP, SHAPE_CODE, SHAPE_CODE },
	{ SBX_E_UNAUTHORIZED, SHAPE_MESSAGE, SHAPE_MESSAGE },
	{ SBX_E_FORBIDDEN, SHAPE_MESSAGE, SHAPE_MESSAGE },
	{ SBX_E_SPEC_TOO_LARGE, SHAPE_MESSAGE, SHAPE_MESSAGE },
};

static enum shape shape_of(const struct req *q, enum sbx_code code)
{
	bool sessions = q->route && strcmp(q->route->tag, "sessions") == 0;

	for (size_t i = 0; i < SBX_COUNT(shapes); i++)
		if (shapes[i].code == code)
			return sessions ? shapes[i].sessions : shapes[i].runs;
	return SHAPE_NONE;
}

static const char *detail_text(struct json_object *details, const char *key)
{
	struct json_object *v;

	return details && json_object_object_get_ex(details, key, &v) ? json_object_get_string(v)
								      : NULL;
}

/* What went wrong inside may name paths and statements: it goes to the log. */
static const char *told(const struct sbx_error *e)
{
	return e->code == SBX_E_INTERNAL ? sbx_code_doc(e->code) : e->message;
}

static void add_error(struct sbx_buf *b, const struct sbx_error *e)
{
	sbx_buf_printf(b, "{\"code\":\"%s\",\"message\":", sbx_code_name(e->code));
	sbx_buf_json_strz(b, told(e));
	sbx_buf_printf(b, ",\"details\":%s}", e->details ? e->details : "{}");
}

static void add_detail(struct sbx_buf *b, const struct sbx_error *e, enum shape shape,
		       struct json_object *details)
{
	if (shape == SHAPE_NONE)
		return;
	sbx_buf_puts(b, ",\"detail\":");
	switch (shape) {
	case SHAPE_NESTED:
		sbx_buf_puts(b, "{\"error\":");
		add_error(b, e);
		sbx_buf_puts(b, "}");
		break;
	case SHAPE_CODE:
		sbx_buf_json_strz(b, sbx_code_name(e->code));
		break;
	case SHAPE_LIST:
		detail_list(b, "body", detail_text(details, "field"), e->message);
		break;
	case SHAPE_DETAILS:
		sbx_buf_puts(b, e->details ? e->details : "{}");
		break;
	default:
		sbx_buf_json_strz(b, told(e));
		break;
	}
}

void reply_error_document(const struct req *q, const struct sbx_error *e, struct sbx_buf *out)
{
	sbx_autojson *details = e->details ? json_tokener_parse(e->details) : NULL;

	sbx_buf_puts(out, "{\"error\":");
	add_error(out, e);
	add_detail(out, e, shape_of(q, e->code), details);
	sbx_buf_puts(out, "}\n");
}

enum MHD_Result reply_error(struct req *q, const struct sbx_error *e)
{
	sbx_autojson *details = e->details ? json_tokener_parse(e->details) : NULL;
	sbx_autobuf b = SBX_BUF_INIT(256 << 10);
	const char *headers[5] = { NULL };
	size_t n = 0;

	if (e->code == SBX_E_INTERNAL)
		sbx_log(SBX_LOG_ERROR, "request failed id=%s error=\"%s\"", q->id, e->message);
	reply_error_document(q, e, &b);
	if (e->code == SBX_E_QUEUE_FULL) {
		headers[n++] = MHD_HTTP_HEADER_RETRY_AFTER;
		headers[n++] = detail_text(details, "retry_after");
	}
	if (e->code == SBX_E_UNAUTHORIZED) {
		headers[n++] = MHD_HTTP_HEADER_WWW_AUTHENTICATE;
		headers[n++] = "Bearer";
	}
	return reply_json(q, sbx_code_http(e->code), &b, headers);
}
