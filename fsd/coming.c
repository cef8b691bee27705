/* SPDX-License-Identifier: Apache-2.0 */
/*
 * images/NAME.tar and snapshots/NAME.tar: what is copied there is kept in a file without a name,
 * and becomes the image or the snapshot NAME when the file is closed, by a process of its own. The
 * close fails when that does, and NAME.error then says why; the kernel has no words for it. Imports
 * are made one after the other, so that they take one writer and no more; who waits for his turn
 * can be interrupted.
 */
#include "fsd/img_i.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fs.h"

/* Files that may be coming: they are disk that nobody sees. An image comes from an administrator,
 * for whom there is always room, and takes none from the others. */
enum { OF_A_USER = 4, OF_ALL = 32 };

struct coming;

/* What may come where. */
struct gate {
	enum ms_node_id parent, file, error;
	/* Who may, and the empty file: a descriptor. -errno. c->place and c->name are set. */
	int (*stage)(struct fsd *f, struct coming *c);
	int64_t (*limit)(struct fsd *f);
	int (*import)(struct fsd *f, struct coming *c, struct sbx_error *e);
};

struct coming {
	struct handle h;
	struct comings *all;
	struct coming *next, **at; /* under its lock */
	int pins;		   /* the same: the open file, and whoever looks at it */
	int fd;			   /* owned */
	const struct gate *gate;
	uid_t uid;
	struct orch_principal who;
	char place[37];		 /* id of the session; "": images */
	char name[SESSION_NAME]; /* of what it will be */
	pthread_mutex_t lock;	 /* what follows, and the file; see also wait_for_reply */
	bool fresh;		 /* there are bytes that were not looked at yet */
	bool waiting;		 /* an import is queued or under way: there is one at a time */
	int result;		 /* of the last import: 0 or -errno */
	int broken; /* -errno of a write that failed: there is a hole, until all goes */
};

/* All that are open. Nobody waits for a disk under its lock. */
struct comings {
	pthread_mutex_t lock;
	struct coming *first;
};

struct comings *coming_all_new(void)
{
	struct comings *all = calloc(1, sizeof(*all));

	if (all)
		pthread_mutex_init(&all->lock, NULL);
	return all;
}

void coming_all_free(struct comings *all)
{
	if (!all)
		return;
	pthread_mutex_destroy(&all->lock);
	free(all);
}

/* Where it would come to, from whom. -errno. */
static int place_of(struct fsd *f, fuse_req_t req, fuse_ino_t parent, char ret[37])
{
	struct session_ref s;
	int r;

	ret[0] = '\0';
	if (!is_session_node(ino_node(parent)))
		return 0;
	r = session_of(f, req, parent, &s);
	if (r == 0)
		memcpy(ret, s.id, sizeof(s.id));
	return r;
}

/* The kernel has looked whether names may go from this directory. */
void coming_unlink(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct orch_principal p;
	char place[37];
	int r = place_of(f, req, parent, place);

	who_is(f, req, &p);
	if (r == 0 && !*place && !p.admin)
		r = -EACCES;
	if (r < 0) {
		fuse_reply_err(req, -r);
		return;
	}
	fuse_reply_err(req, failures_drop(f->failures, place, name) ? 0 : EPERM);
}

/* ---- imports, by turns ----------------------------------------------------------------------- */

static bool is_broken(struct fsd *f, struct coming *c, struct sbx_error *e)
{
	int broken;

	pthread_mutex_lock(&c->lock);
	broken = c->broken;
	pthread_mutex_unlock(&c->lock);
	if (broken == -EFBIG)
		(void)sbx_fail(e, SBX_E_SPEC_TOO_LARGE, "the file is larger than %lld bytes",
			       (long long)c->gate->limit(f));
	else if (broken)
		(void)sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, -broken, "a write failed");
	return broken;
}

/* A tar that is cut between two members unpacks like a whole one. */
static int perform(struct fsd *f, struct job *j)
{
	struct coming *c = (struct coming *)j->h;
	sbx_autoerror e = SBX_ERROR_INIT;
	int rc = is_broken(f, c, &e) ? -(int)e.code : c->gate->import(f, c, &e);

	failures_put(f->failures,
		     &(const struct failed){ .place = c->place,
					     .name = c->name,
					     .uid = c->uid,
					     .node = c->gate->error,
					     .text = rc < 0 ? sbx_error_json(&e) : NULL });
	return rc < 0 ? -fsd_errno(&e) : 0;
}

static void answer(struct fsd *f, struct job *j, int r)
{
	struct coming *c = (struct coming *)j->h;

	(void)f;
	pthread_mutex_lock(&c->lock);
	c->waiting = false;
	c->result = r;
	/* Nobody has looked at it. */
	c->fresh |= r == -EINTR || r == -EAGAIN || r == -ENOMEM || r == -ENOTCONN;
	fuse_reply_err(j->req, -r);
	pthread_mutex_unlock(&c->lock);
}

void coming_flush(struct fsd *f, fuse_req_t req, struct fuse_file_info *fi)
{
	struct coming *c = (struct coming *)handle_of(fi);
	const struct job j = { .req = req,
			       .perform = perform,
			       .answer = answer,
			       .h = &c->h,
			       .by_turns = true,
			       .must_answer = true };
	bool import;
	int result;

	pthread_mutex_lock(&c->lock);
	import = c->fresh && !c->waiting;
	/* Nobody knows yet how it ends, and what has come since is left for the next close: the
	 * queue is shared, and copies of one descriptor can be closed without number. */
	result = c->waiting ? -EAGAIN : c->result;
	if (import) {
		c->fresh = false;
		c->waiting = true;
	}
	pthread_mutex_unlock(&c->lock);
	if (import)
		(void)writers_give_job(f->writers, &j);
	else /* a copy of the descriptor is closed, or it was told already */
		fuse_reply_err(req, -result);
}

/* ---- what may come where --------------------------------------------------------------------- */

static int stage_image(struct fsd *f, struct coming *c)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	int fd;

	if (!c->who.admin)
		return -EACCES;
	if (orch_image_name_check(c->name, &e) < 0)
		return -EINVAL;
	fd = orch_image_stage(f->orch, &e);
	return fd < 0 ? -fsd_errno(&e) : fd;
}

static int64_t limit_image(struct fsd *f)
{
	return orch_settings(f->orch)->image_max_mb << 20;
}

static int import_image(struct fsd *f, struct coming *c, struct sbx_error *e)
{
	return orch_image_put(f->orch, &c->who, c->name, c->fd, e);
}

static int stage_shot(struct fsd *f, struct coming *c)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	int fd = orch_snapshot_stage(f->orch, &c->who, c->place, c->name, &e);

	return fd < 0 ? -fsd_errno(&e) : fd;
}

static int64_t limit_shot(struct fsd *f)
{
	return orch_snapshot_file_max(f->orch);
}

static int import_shot(struct fsd *f, struct coming *c, struct sbx_error *e)
{
	store_autosnapshot s = { 0 };

	return orch_snapshot_import(f->orch, &c->who, c->place, c->name, c->fd, &s, e);
}

static const struct gate gates[] = {
	{ MS_N_IMAGES, MS_N_IMAGE_TAR, MS_N_IMAGE_ERROR, stage_image, limit_image, import_image },
	{ MS_N_SESS_SHOTS, MS_N_SHOT_IN, MS_N_SHOT_ERROR, stage_shot, limit_shot, import_shot },
};

static const struct gate *gate_of(fuse_ino_t parent)
{
	for (size_t i = 0; i < SBX_COUNT(gates); i++)
		if (gates[i].parent == ino_node(parent))
			return &gates[i];
	return NULL;
}

bool coming_may(fuse_ino_t parent)
{
	return gate_of(parent) != NULL;
}

bool is_coming_node(enum ms_node_id node)
{
	for (size_t i = 0; i < SBX_COUNT(gates); i++)
		if (node == gates[i].file || node == gates[i].error)
			return true;
	return false;
}

/* ---- the file while it is open --------------------------------------------------------------- */

/* "NAME.tar", with or without what compressed it. False: it is called something else. */
static bool name_in(const char *file, char ret[SESSION_NAME])
{
	static const char *const ends[] = { ".tar",    ".tar.gz",  ".tgz",     ".tar.bz2",
					    ".tar.xz", ".tar.zst", ".tar.zstd" };
	size_t n = strlen(file);

	for (size_t i = 0; i < SBX_COUNT(ends); i++) {
		size_t end = strlen(ends[i]);

		if (n > end && n < SESSION_NAME && strcmp(file + n - end, ends[i]) == 0) {
			(void)snprintf(ret, SESSION_NAME, "%.*s", (int)(n - end), file);
			return true;
		}
	}
	return false;
}

/* Joins the others. -EMFILE: this user has too many, -EAGAIN: all together have. */
static int join(struct comings *all, struct coming *c)
{
	size_t n = 0, own = 0;
	int r;

	pthread_mutex_lock(&all->lock);
	for (const struct coming *one = all->first; one; one = one->next) {
		n += *one->place != '\0';
		own += one->uid == c->uid;
	}
	r = own >= OF_A_USER ? -EMFILE : *c->place && n >= OF_ALL ? -EAGAIN : 0;
	if (r == 0) {
		c->all = all;
		c->pins = 1;
		c->next = all->first;
		c->at = &all->first;
		if (c->next)
			c->next->at = &c->next;
		all->first = c;
	}
	pthread_mutex_unlock(&all->lock);
	return r;
}

static void leave(struct coming *c)
{
	pthread_mutex_lock(&c->all->lock);
	*c->at = c->next;
	if (c->next)
		c->next->at = c->at;
	pthread_mutex_unlock(&c->all->lock);
}

static void unpin(struct coming *c)
{
	bool last;

	pthread_mutex_lock(&c->all->lock);
	last = --c->pins == 0;
	pthread_mutex_unlock(&c->all->lock);
	if (!last)
		return;
	wait_for_reply(&c->lock);
	sbx_closep(&c->fd);
	free(c);
}

static int begin(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name,
		 struct coming **ret)
{
	sbx_autofree struct coming *c = calloc(1, sizeof(*c));
	int r;

	if (!c)
		return -ENOMEM;
	c->gate = gate_of(parent);
	c->uid = fuse_req_ctx(req)->uid;
	who_is(f, req, &c->who);
	r = place_of(f, req, parent, c->place);
	if (r < 0)
		return r;
	if (!name_in(name, c->name))
		return -EINVAL;
	c->h.kind = H_COMING;
	c->h.ino = ino_make(serial_new(f), c->gate->file);
	c->fd = -1;
	r = join(f->comings, c);
	if (r < 0)
		return r;
	pthread_mutex_init(&c->lock, NULL);
	c->fd = c->gate->stage(f, c);
	if (c->fd < 0) {
		r = c->fd;
		coming_release(&sbx_steal(&c)->h);
		return r;
	}
	*ret = sbx_steal(&c);
	return 0;
}

void coming_create(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name,
		   struct fuse_file_info *fi)
{
	struct fuse_entry_param e = { .generation = 1 };
	struct coming *c;
	int r = begin(f, req, parent, name, &c);

	if (r < 0) {
		fuse_reply_err(req, -r);
		return;
	}
	fi->direct_io = 1;
	e.ino = c->h.ino;
	if (!handle_add(f, req, fi, &c->h)) {
		fuse_reply_err(req, EMFILE);
		return;
	}
	r = coming_attr(f, req, e.ino, &e.attr, &e.attr_timeout);
	if (r < 0)
		fuse_reply_err(req, -r);
	if (r < 0 || fuse_reply_create(req, &e, fi) != 0)
		handle_close(f, &c->h);
}

void coming_write(struct fsd *f, fuse_req_t req, struct fuse_file_info *fi, const char *data,
		  size_t size, off_t off)
{
	struct coming *c = (struct coming *)handle_of(fi);
	off_t most = c->gate->limit(f);
	int r;

	pthread_mutex_lock(&c->lock);
	r = off > most || (off_t)size > most - off ? -EFBIG
						   : sbx_pwrite_all(c->fd, data, size, off);
	c->fresh = true;
	if (r < 0 && !c->broken)
		c->broken = r;
	if (r < 0)
		fuse_reply_err(req, -r);
	else
		fuse_reply_write(req, size);
	pthread_mutex_unlock(&c->lock);
}

void coming_release(struct handle *h)
{
	struct coming *c = (struct coming *)h;

	leave(c);
	unpin(c);
}

/* Calls with the open file of this number, under its lock. -ENOENT: it has been closed. */
static int with(struct fsd *f, fuse_ino_t ino, int (*act)(struct coming *c, void *ctx), void *ctx)
{
	struct comings *all = f->comings;
	struct coming *c;
	int r;

	pthread_mutex_lock(&all->lock);
	for (c = all->first; c && c->h.ino != ino;)
		c = c->next;
	if (c)
		c->pins++;
	pthread_mutex_unlock(&all->lock);
	if (!c)
		return -ENOENT;
	pthread_mutex_lock(&c->lock);
	r = act(c, ctx);
	pthread_mutex_unlock(&c->lock);
	unpin(c);
	return r;
}

static int look(struct coming *c, void *ctx)
{
	struct stat now, *st = ctx;

	if (fstat(c->fd, &now) < 0)
		return -errno;
	st->st_size = now.st_size;
	st->st_mtim = now.st_mtim;
	st->st_uid = c->uid; /* so that who copies may set times and mode, which mean nothing */
	return 0;
}

int coming_attr(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct stat *st, double *timeout)
{
	const struct ms_node *n = ms_node(ino_node(ino));
	int r;

	(void)req;
	memset(st, 0, sizeof(*st));
	st->st_ino = ino;
	st->st_mode = S_IFREG | n->mode;
	st->st_nlink = 1;
	st->st_uid = f->uid;
	st->st_blksize = 4096;
	st->st_mtim.tv_sec = st->st_ctim.tv_sec = st->st_atim.tv_sec = f->started_us / 1000000;
	*timeout = 0;
	r = n->view == MS_V_NONE ? with(f, ino, look, st) : failures_attr(f->failures, ino, st);
	st->st_gid = st->st_uid == f->uid ? getgid() : (gid_t)st->st_uid;
	st->st_blocks = (st->st_size + 511) / 512;
	return r;
}

static int cut(struct coming *c, void *ctx)
{
	const off_t *size = ctx;

	if (ftruncate(c->fd, *size) < 0)
		return -errno;
	if (*size == 0)
		c->broken = 0;
	return 0;
}

static int may_be(struct coming *c, void *ctx)
{
	const struct gate **gate = ctx;

	*gate = c->gate;
	return 0;
}

void coming_setattr(struct fsd *f, fuse_req_t req, fuse_ino_t ino, const struct stat *attr,
		    int to_set)
{
	const struct gate *gate = NULL;
	off_t size = attr->st_size;
	double timeout = 0;
	struct stat st;
	int r = with(f, ino, may_be, &gate);

	if (r == 0 && (to_set & FUSE_SET_ATTR_SIZE))
		r = size > gate->limit(f) ? -EFBIG : with(f, ino, cut, &size);
	if (r == 0)
		r = coming_attr(f, req, ino, &st, &timeout);
	if (r < 0)
		fuse_reply_err(req, -r);
	else
		fuse_reply_attr(req, &st, timeout);
}
