/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots as tars: sent as they are read, in any direction that a client's speed allows; taken
 * into a file, and then by a worker. */
#include <stdio.h>
#include <string.h>

#include "apid/apid_i.h"
#include "store/snap.h"

enum { PIECE = 256 << 10 };

/* ---- out ------------------------------------------------------------------------------------- */

/* What such a request has to remember, until the response has the tar. */
struct outgoing {
	char session_id[37];
	struct store_snapshot s;
	struct snap_tar *tar; /* owned */
	int rc;
	struct sbx_error why;
};

static void outgoing_free(void *state)
{
	struct outgoing *out = state;

	snap_tar_close(out->tar);
	store_snapshot_clear(&out->s);
	sbx_error_clear(&out->why);
	free(out);
}

/* A large one takes a moment until its size is known. */
static void look(struct req *q)
{
	struct outgoing *out = q->state;

	sbx_error_clear(&out->why);
	out->rc = orch_snapshot_tar(q->a->orch, &q->who, out->session_id, q->param[1], &out->s,
				    &out->tar, &out->why);
}

static ssize_t piece(void *tar, uint64_t at, char *to, size_t max)
{
	ssize_t n = snap_tar_read(tar, to, max, (int64_t)at);

	/* Dropped meanwhile, or the disk: what was promised does not come, and the end says so. */
	return n > 0 ? n : MHD_CONTENT_READER_END_WITH_ERROR;
}

static void close_tar(void *tar)
{
	snap_tar_close(tar);
}

/* Between quotes: its name if that needs no care, else its id. */
static const char *plain_name(const struct store_snapshot *s)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
				    "-._";

	return s->name && !s->name[strspn(s->name, plain)] ? s->name : s->id;
}

static enum MHD_Result send_tar(struct req *q, struct outgoing *out)
{
	char disposition[400], etag[96];
	const char *headers[] = { MHD_HTTP_HEADER_CONTENT_TYPE,
				  "application/x-tar",
				  MHD_HTTP_HEADER_CONTENT_DISPOSITION,
				  disposition,
				  MHD_HTTP_HEADER_ETAG,
				  etag,
				  MHD_HTTP_HEADER_CACHE_CONTROL,
				  "private, no-cache",
				  NULL };
	uint64_t size = (uint64_t)snap_tar_size(out->tar);
	struct MHD_Response *r;

	(void)snprintf(disposition, sizeof(disposition), "attachment; filename=\"%s.tar\"",
		       plain_name(&out->s));
	(void)snprintf(etag, sizeof(etag), "\"%s\"", out->s.digest);
	r = MHD_create_response_from_callback(size, PIECE, piece, out->tar, close_tar);
	if (r)
		out->tar = NULL; /* it is the response's now */
	q->sent = q->head ? 0 : (int64_t)size;
	return reply_response(q, MHD_HTTP_OK, r, headers);
}

enum MHD_Result snapshot_export_get(struct req *q)
{
	struct outgoing *out = q->state;
	sbx_autoerror e = SBX_ERROR_INIT;
	store_autosession s = { 0 };

	if (q->continued)
		return out->rc < 0 ? reply_error(q, &out->why) : send_tar(q, out);
	if (session_find(q, &s, &e) < 0)
		return reply_error(q, &e);
	out = calloc(1, sizeof(*out));
	if (!out) {
		(void)sbx_fail(&e, SBX_E_NO_MEMORY, "no memory");
		return reply_error(q, &e);
	}
	q->state = out;
	q->free_state = outgoing_free;
	memcpy(out->session_id, s.id, strlen(s.id) + 1);
	out->rc = sbx_fail(&out->why, SBX_E_INTERRUPTED, "the service stops; nothing was done");
	return worker_add(q, out->session_id, WORK_GIVES, look, &e) ? MHD_YES : reply_error(q, &e);
}

/* ---- in -------------------------------------------------------------------------------------- */

static const char *name_of(const struct req *q)
{
	const char *name = req_query(q, "name");

	return name && *name ? name : NULL;
}

static void import(struct req *q, struct spool *sp)
{
	store_autosnapshot s = { 0 };

	sp->rc = orch_snapshot_import(q->a->orch, &q->who, q->param[0], name_of(q), sp->fd, &s,
				      &sp->why);
	if (sp->rc == 0)
		orch_view_snapshot(&s, &sp->out);
}

int snapshot_head(struct req *q, struct sbx_error *e)
{
	store_autosession s = { 0 };
	int fd, rc = session_find(q, &s, e);

	if (rc < 0)
		return rc;
	fd = orch_snapshot_stage(q->a->orch, &q->who, s.id, name_of(q), e);
	return fd < 0 ? fd : spool_begin(q, fd, import, e);
}

enum MHD_Result snapshots_post(struct req *q)
{
	return spool_end(q, q->param[0]);
}
