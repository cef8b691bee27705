/* SPDX-License-Identifier: Apache-2.0 */
/*
 * POST /sessions/{session_id}/files. The body goes through the reader of forms to the orchestrator
 * as it comes, so that its size is nobody's memory. To get the workspace, to put the files into it
 * and to forget them again is the workers' business.
 */
#include <string.h>

#include "apid/apid_i.h"
#include "apid/multipart_i.h"
#include "orchestrator/upload.h"

static const char files_field[] = "files";

/* What such a request has to remember. */
struct incoming {
	struct apid *a;
	struct multipart *form; /* owned */
	struct upload *upload;	/* owned; NULL until the workspace is ours, and after a refusal */
	char session_id[37];
	bool ours;	      /* the part that is being read is a file */
	bool over;	      /* it does not fit: what follows is read and dropped */
	struct sbx_error cap; /* why, owned */
	size_t files;	      /* parts that are */
	int rc;		      /* of what the workers did last */
	struct sbx_error why; /* and its error */
	struct sbx_buf out;   /* or its answer */
};

static int copy_error(const struct sbx_error *from, struct sbx_error *e)
{
	(void)sbx_fail(e, from->code, "%s", from->message);
	return from->details ? sbx_error_details(e, "%s", from->details) : -(int)from->code;
}

/* ---- parts ----------------------------------------------------------------------------------- */

static int on_part(void *ctx, const char *name, const char *file_name, struct sbx_error *e)
{
	struct incoming *in = ctx;

	in->ours = strcmp(name, files_field) == 0;
	if (!in->ours || in->over)
		return 0;
	in->files++;
	return upload_file(in->upload, file_name, e);
}

static int on_data(void *ctx, const char *data, size_t len, struct sbx_error *e)
{
	struct incoming *in = ctx;
	int rc;

	if (!in->ours || in->over)
		return 0;
	rc = upload_data(in->upload, data, len, &in->cap);
	in->over = rc == -SBX_E_WORKSPACE_CAP;
	/* The files before it are not to blame: they are put in place by a worker, which answers.
	 */
	return rc == 0 || in->over ? 0 : copy_error(&in->cap, e);
}

static const struct multipart_calls calls = { .part = on_part, .data = on_data };

/* ---- its end, in whatever way ---------------------------------------------------------------- */

static void forget(void *upload)
{
	upload_free(upload);
}

/* There may be much to remove: not in this thread. */
static void give_back(struct incoming *in)
{
	struct upload *u = sbx_steal(&in->upload);

	if (u)
		worker_do(in->a, forget, u);
}

static void incoming_free(void *incoming)
{
	struct incoming *in = incoming;

	give_back(in);
	multipart_free(in->form);
	sbx_error_clear(&in->cap);
	sbx_error_clear(&in->why);
	sbx_buf_free(&in->out);
	free(in);
}

void upload_drop(struct req *q)
{
	struct incoming *in = q->state;

	if (in)
		give_back(in);
}

/* ---- its beginning --------------------------------------------------------------------------- */

int upload_head(struct req *q, struct sbx_error *e)
{
	struct incoming *in = calloc(1, sizeof(*in));
	store_autosession s = { 0 };
	int rc;

	if (!in)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	q->state = in;
	q->free_state = incoming_free;
	in->a = q->a;
	in->out = (struct sbx_buf)SBX_BUF_INIT(API_REPLY_MAX);
	rc = session_find(q, &s, e);
	if (rc < 0)
		return rc;
	/* Nobody sends a whole body to a session that will not take it. */
	if (s.ending_us)
		return sbx_fail(e, SBX_E_SESSION_NOT_FOUND, "the session is being deleted");
	memcpy(in->session_id, s.id, strlen(s.id) + 1);
	return multipart_new(req_header(q, MHD_HTTP_HEADER_CONTENT_TYPE), &calls, in, &in->form, e);
}

static void take_workspace(struct req *q)
{
	struct incoming *in = q->state;

	sbx_error_clear(&in->why);
	in->rc = upload_begin(q->a->orch, &q->who, in->session_id, &in->upload, &in->why);
}

/* A job that is not begun leaves this. */
static void not_done(struct incoming *in)
{
	sbx_error_clear(&in->why);
	in->rc = sbx_fail(&in->why, SBX_E_INTERRUPTED, "the service stops; nothing was done");
}

bool upload_open(struct req *q, struct sbx_error *e)
{
	struct incoming *in = q->state;

	not_done(in);
	return worker_add(q, in->session_id, WORK_LOCKS, take_workspace, e);
}

int upload_opened(struct req *q, struct sbx_error *e)
{
	struct incoming *in = q->state;

	return in->rc < 0 ? copy_error(&in->why, e) : 0;
}

int upload_take(struct req *q, const char *data, size_t len, struct sbx_error *e)
{
	struct incoming *in = q->state;

	return multipart_feed(in->form, data, len, e);
}

/* ---- the whole of it is there ---------------------------------------------------------------- */

static void put_in(struct req *q)
{
	struct incoming *in = q->state;

	sbx_error_clear(&in->why);
	in->rc = upload_commit(in->upload, &in->why);
	if (in->over) {
		sbx_error_clear(&in->why);
		in->rc = copy_error(&in->cap, &in->why);
	}
	if (in->rc == 0)
		upload_view(in->upload, &in->out);
	/* Whoever has the answer finds nothing left of it, and the workspace free. */
	in->upload = upload_free(in->upload);
}

static int is_whole(const struct incoming *in, struct sbx_error *e)
{
	int rc = multipart_end(in->form, e);

	if (rc < 0 || in->files)
		return rc;
	(void)sbx_fail(e, SBX_E_INVALID_SPEC,
		       "files: is missing: no part of the form has this name");
	return sbx_error_details(e, "{\"field\":\"files\"}");
}

enum MHD_Result session_files_post(struct req *q)
{
	struct incoming *in = q->state;
	sbx_autoerror e = SBX_ERROR_INIT;

	if (q->continued)
		return in->rc < 0 ? reply_error(q, &in->why)
				  : reply_json(q, MHD_HTTP_OK, &in->out, NULL);
	if (is_whole(in, &e) < 0) {
		give_back(in);
		return reply_error(q, &e);
	}
	not_done(in);
	return worker_add(q, in->session_id, WORK_GIVES, put_in, &e) ? MHD_YES : reply_error(q, &e);
}
