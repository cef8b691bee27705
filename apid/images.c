/* SPDX-License-Identifier: Apache-2.0 */
/* Images, for administrators: look, import a tar, remove. A process of its own unpacks it. */
#include <string.h>

#include "apid/apid_i.h"
#include "base/json.h"
#include "orchestrator/images.h"

/* Imports are made one after the other, as if all were of one session. */
static const char one_by_one[] = "images";

enum MHD_Result admin_images_get(struct req *q)
{
	sbx_autobuf out = SBX_BUF_INIT(API_REPLY_MAX);
	sbx_autoerror e = SBX_ERROR_INIT;

	return reply_view(q, orch_view_images(q->a->orch, &out, &e), &out, &e);
}

enum MHD_Result admin_image_get(struct req *q)
{
	sbx_autobuf out = SBX_BUF_INIT(API_REPLY_MAX);
	sbx_autoerror e = SBX_ERROR_INIT;

	return reply_view(q, orch_view_image(q->a->orch, q->param[0], &out, &e), &out, &e);
}

/* ---- import ---------------------------------------------------------------------------------- */

static void import(struct req *q, struct spool *s)
{
	s->rc = orch_image_put(q->a->orch, &q->who, q->param[0], s->fd, &s->why);
	if (s->rc == 0)
		s->rc = orch_view_image(q->a->orch, q->param[0], &s->out, &s->why);
}

int image_head(struct req *q, struct sbx_error *e)
{
	int fd, rc = orch_image_name_check(q->param[0], e);

	if (rc < 0)
		return rc;
	fd = orch_image_stage(q->a->orch, e);
	return fd < 0 ? fd : spool_begin(q, fd, import, e);
}

enum MHD_Result admin_image_put(struct req *q)
{
	return spool_end(q, one_by_one);
}

/* ---- removal --------------------------------------------------------------------------------- */

struct removal {
	int rc;
	struct sbx_error why;
};

static void removal_free(void *state)
{
	struct removal *r = state;

	sbx_error_clear(&r->why);
	free(r);
}

/* It may have many files. */
static void removes(struct req *q)
{
	struct removal *r = q->state;

	sbx_error_clear(&r->why);
	r->rc = orch_image_drop(q->a->orch, &q->who, q->param[0], &r->why);
}

static enum MHD_Result reply_removed(struct req *q)
{
	sbx_autobuf b = SBX_BUF_INIT(4096);

	sbx_buf_puts(&b, "{\"ok\":true,\"name\":");
	sbx_buf_json_strz(&b, q->param[0]);
	sbx_buf_puts(&b, "}\n");
	return reply_json(q, MHD_HTTP_OK, &b, NULL);
}

enum MHD_Result admin_image_delete(struct req *q)
{
	struct removal *r = q->state;
	sbx_autoerror e = SBX_ERROR_INIT;

	if (q->continued)
		return r->rc < 0 ? reply_error(q, &r->why) : reply_removed(q);
	r = calloc(1, sizeof(*r));
	if (!r) {
		(void)sbx_fail(&e, SBX_E_NO_MEMORY, "no memory");
		return reply_error(q, &e);
	}
	q->state = r;
	q->free_state = removal_free;
	r->rc = sbx_fail(&r->why, SBX_E_INTERRUPTED, "the service stops; nothing was done");
	return worker_add(q, one_by_one, WORK_LOCKS, removes, &e) ? MHD_YES : reply_error(q, &e);
}
