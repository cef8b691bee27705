/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bodies that are taken as they come. A form is read in parts (upload.c); a tar is kept in a file
 * without a name, so that it costs nobody memory and nothing is left of it, and a worker does with
 * it what the route is for.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "apid/apid_i.h"
#include "base/fs.h"
#include "base/log.h"

/* ---- which route takes what ------------------------------------------------------------------ */

struct taker {
	handler *handle;
	int (*head)(struct req *q, struct sbx_error *e);
	/* NULL: there is nothing to wait for before the body comes. */
	bool (*open)(struct req *q, struct sbx_error *e);
	int (*opened)(struct req *q, struct sbx_error *e);
	int (*take)(struct req *q, const char *data, size_t len, struct sbx_error *e);
	void (*drop)(struct req *q);
	int64_t (*limit)(const struct req *q); /* a body has fewer bytes than this */
};

static int64_t upload_limit(const struct req *q)
{
	return (orch_settings(q->a->orch)->max_upload_mb << 20) + API_FORM_EXTRA + 1;
}

static int64_t image_limit(const struct req *q)
{
	return (orch_settings(q->a->orch)->image_max_mb << 20) + 1;
}

static int64_t snapshot_limit(const struct req *q)
{
	return orch_snapshot_file_max(q->a->orch) + 1;
}

static int spool_take(struct req *q, const char *data, size_t len, struct sbx_error *e)
{
	struct spool *s = q->state;
	int r = s->fd < 0 ? 0 : sbx_write_all(s->fd, data, len);

	s->bytes += (int64_t)len;
	return r < 0 ? sbx_fail_errno(e,
				      r == -ENOSPC ? SBX_E_STORAGE_FULL : SBX_E_STORE_UNAVAILABLE,
				      -r, "cannot keep the body")
		     : 0;
}

/* Makes room for another one, once the file is closed. */
static void leave(struct spool *s)
{
	struct apid *a = s->q->a;

	sbx_closep(&s->fd);
	pthread_mutex_lock(&a->spools_lock);
	if (s->at) {
		*s->at = s->next;
		if (s->next)
			s->next->at = s->at;
		s->at = NULL;
	}
	pthread_mutex_unlock(&a->spools_lock);
}

static void spool_drop(struct req *q)
{
	struct spool *s = q->state;

	if (s)
		leave(s);
}

static const struct taker takers[] = {
	{ session_files_post, upload_head, upload_open, upload_opened, upload_take, upload_drop,
	  upload_limit },
	{ snapshots_post, snapshot_head, NULL, NULL, spool_take, spool_drop, snapshot_limit },
	{ admin_image_put, image_head, NULL, NULL, spool_take, spool_drop, image_limit },
};

static const struct taker *taker_of(const struct req *q)
{
	for (size_t i = 0; i < SBX_COUNT(takers); i++)
		if (takers[i].handle == q->route->handle)
			return &takers[i];
	return NULL; /* test_openapi has seen that there is one */
}

int64_t body_limit(const struct req *q)
{
	return route_streams(q->route) ? taker_of(q)->limit(q) : API_BODY_MAX;
}

int body_head(struct req *q, struct sbx_error *e)
{
	return route_streams(q->route) ? taker_of(q)->head(q, e) : 0;
}

int body_open(struct req *q, struct sbx_error *e)
{
	const struct taker *t = route_streams(q->route) ? taker_of(q) : NULL;

	if (!t || !t->open)
		return 0;
	return t->open(q, e) ? 1 : -(int)e->code;
}

int body_opened(struct req *q, struct sbx_error *e)
{
	return taker_of(q)->opened(q, e);
}

int body_take(struct req *q, const char *data, size_t len, struct sbx_error *e)
{
	return taker_of(q)->take(q, data, len, e);
}

void body_drop(struct req *q)
{
	taker_of(q)->drop(q);
}

/* ---- a tar in a file ------------------------------------------------------------------------- */

/* They are disk that nobody sees. An image comes from an administrator, for whom there is always
 * room, and takes none from the others. */
enum { OF_A_USER = 8, OF_ALL = 32 };

static bool is_image(const struct spool *s)
{
	return s->q->route->handle == admin_image_put;
}

static int refuse(const char *reason, int limit, const char *whose, struct sbx_error *e)
{
	(void)sbx_fail(e, SBX_E_QUEUE_FULL,
		       "%d tars of %s are coming in already; more are not taken", limit, whose);
	return sbx_error_details(e, "{\"retry_after\":1,\"reason\":\"%s\",\"limit\":%d}", reason,
				 limit);
}

/* Joins the others, if there is room. How many there are in all is nobody's business. */
static int join(struct spool *s, struct sbx_error *e)
{
	struct apid *a = s->q->a;
	size_t all = 0, own = 0;
	bool ok;

	pthread_mutex_lock(&a->spools_lock);
	for (const struct spool *one = a->spools; one; one = one->next) {
		all += !is_image(one);
		own += strcmp(one->q->who.user, s->q->who.user) == 0;
	}
	ok = own < OF_A_USER && (all < OF_ALL || is_image(s));
	if (ok) {
		s->next = a->spools;
		s->at = &a->spools;
		if (s->next)
			s->next->at = &s->next;
		a->spools = s;
	}
	pthread_mutex_unlock(&a->spools_lock);
	if (ok)
		return 0;
	return own >= OF_A_USER ? refuse("user_bodies", OF_A_USER, "this user", e)
				: refuse("bodies", OF_ALL, "all users", e);
}

static void spool_free(void *state)
{
	struct spool *s = state;

	leave(s);
	sbx_error_clear(&s->why);
	sbx_buf_free(&s->out);
	free(s);
}

int spool_begin(struct req *q, int fd, void (*work)(struct req *q, struct spool *s),
		struct sbx_error *e)
{
	struct spool *s = calloc(1, sizeof(*s));
	int rc;

	if (!s) {
		sbx_closep(&fd);
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	}
	s->q = q;
	rc = join(s, e);
	if (rc < 0) {
		sbx_closep(&fd);
		free(s);
		return rc;
	}
	s->fd = fd;
	s->work = work;
	s->out = (struct sbx_buf)SBX_BUF_INIT(API_REPLY_MAX);
	q->state = s;
	q->free_state = spool_free;
	return 0;
}

static void work(struct req *q)
{
	struct spool *s = q->state;

	sbx_error_clear(&s->why);
	s->work(q, s);
	leave(s); /* whoever has the answer finds nothing left of it */
}

enum MHD_Result spool_end(struct req *q, const char *of)
{
	struct spool *s = q->state;
	sbx_autoerror e = SBX_ERROR_INIT;

	if (q->continued)
		return s->rc < 0 ? reply_error(q, &s->why)
				 : reply_json(q, MHD_HTTP_OK, &s->out, NULL);
	if (s->bytes == 0) {
		(void)sbx_fail(&e, SBX_E_INVALID_ARGUMENT, "the body is empty; it must be a tar");
		return reply_error(q, &e);
	}
	s->rc = sbx_fail(&s->why, SBX_E_INTERRUPTED, "the service stops; nothing was done");
	return worker_add(q, of, WORK_LOCKS, work, &e) ? MHD_YES : reply_error(q, &e);
}
