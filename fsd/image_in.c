/* SPDX-License-Identifier: Apache-2.0 */
/*
 * images/NAME.tar: what an administrator copies there is kept in a file without a name, and becomes
 * the image NAME when the file is closed, by a process of its own. The close fails when that does,
 * and images/NAME.error then says why; the kernel has no words for it. Imports are made one after
 * the other, so that they take one writer and no more.
 */
#include "fsd/img_i.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fs.h"

static const char error_end[] = ".error";

struct coming {
	struct handle h;
	pthread_mutex_t lock; /* what follows; see also wait_for_reply */
	int fd;		      /* owned */
	uid_t uid;
	struct orch_principal who;
	char name[SESSION_NAME]; /* of the image */
	bool fresh;		 /* there are bytes that were not looked at yet */
	int result;		 /* of the last import: 0 or -errno */
};

/* An import that waits for its turn. */
struct turn {
	struct turn *next;
	struct job job;
};

struct failure {
	char name[SESSION_NAME]; /* NAME.error; "": none */
	char *text;		 /* owned: the error as JSON */
	uint64_t age;
};

struct imports {
	pthread_mutex_t lock;
	struct turn *first, **last; /* owned */
	bool busy;
	struct failure failures[IMG_ERRORS];
	uint64_t clock;
};

struct imports *img_imports_new(void)
{
	struct imports *im = calloc(1, sizeof(*im));

	if (!im)
		return NULL;
	pthread_mutex_init(&im->lock, NULL);
	im->last = &im->first;
	return im;
}

void img_imports_free(struct imports *im)
{
	if (!im)
		return;
	for (size_t i = 0; i < IMG_ERRORS; i++)
		free(im->failures[i].text);
	pthread_mutex_destroy(&im->lock);
	free(im);
}

/* ---- what went wrong ------------------------------------------------------------------------- */

/* text: the caller's gift; NULL: nothing went wrong. */
static void remember(struct fsd *f, const char *image, char *text)
{
	struct imports *im = f->imports;
	struct failure *at = &im->failures[0];
	char name[SESSION_NAME];

	(void)snprintf(name, sizeof(name), "%.200s%s", image, error_end);
	pthread_mutex_lock(&im->lock);
	for (size_t i = 0; i < IMG_ERRORS; i++) {
		struct failure *one = &im->failures[i];

		if (strcmp(one->name, name) == 0) {
			at = one;
			break;
		}
		if (one->age < at->age)
			at = one;
	}
	if (text || strcmp(at->name, name) == 0) {
		free(at->text);
		*at = (struct failure){ .text = text, .age = text ? ++im->clock : 0 };
		if (text)
			memcpy(at->name, name, sizeof(name));
	}
	pthread_mutex_unlock(&im->lock);
}

bool img_failed(struct fsd *f, int64_t number, struct sbx_buf *out)
{
	struct imports *im = f->imports;
	bool found = false;

	pthread_mutex_lock(&im->lock);
	for (size_t i = 0; i < IMG_ERRORS && !found; i++) {
		const struct failure *one = &im->failures[i];

		found = one->name[0] && img_number(one->name) == number;
		if (found && out)
			sbx_buf_puts(out, one->text);
	}
	pthread_mutex_unlock(&im->lock);
	return found;
}

size_t img_failures(struct fsd *f, char ret[IMG_ERRORS][SESSION_NAME])
{
	struct imports *im = f->imports;
	size_t n = 0;

	pthread_mutex_lock(&im->lock);
	for (size_t i = 0; i < IMG_ERRORS; i++)
		if (im->failures[i].name[0])
			memcpy(ret[n++], im->failures[i].name, SESSION_NAME);
	pthread_mutex_unlock(&im->lock);
	return n;
}

void img_unlink(struct fsd *f, fuse_req_t req, const char *name)
{
	size_t n = strlen(name), end = sizeof(error_end) - 1;
	struct orch_principal p;
	char image[SESSION_NAME];
	bool there = img_failed(f, img_number(name), NULL);

	who_is(f, req, &p);
	if (!p.admin || !there || n <= end || n >= sizeof(image)) {
		fuse_reply_err(req, !p.admin ? EACCES : EPERM);
		return;
	}
	(void)snprintf(image, sizeof(image), "%.*s", (int)(n - end), name);
	remember(f, image, NULL);
	fuse_reply_err(req, 0);
}

/* ---- imports, one by one --------------------------------------------------------------------- */

/* Hands the next one to a writer, if none has one. */
static void next(struct fsd *f)
{
	struct imports *im = f->imports;

	for (;;) {
		struct turn *t;
		int r;

		pthread_mutex_lock(&im->lock);
		t = im->busy ? NULL : im->first;
		if (t) {
			im->first = t->next;
			if (!im->first)
				im->last = &im->first;
			im->busy = true;
		}
		pthread_mutex_unlock(&im->lock);
		if (!t)
			return;
		r = writers_give_job(f->writers, &t->job);
		free(t);
		if (r == 0)
			return;
		pthread_mutex_lock(&im->lock); /* it was answered, and nobody comes back from it */
		im->busy = false;
		pthread_mutex_unlock(&im->lock);
	}
}

static int perform(struct fsd *f, struct job *j)
{
	struct coming *c = (struct coming *)j->h;
	sbx_autoerror e = SBX_ERROR_INIT;
	int rc = orch_image_put(f->orch, &c->who, c->name, c->fd, &e);

	remember(f, c->name, rc < 0 ? sbx_error_json(&e) : NULL);
	return rc < 0 ? -fsd_errno(&e) : 0;
}

static void answer(struct fsd *f, struct job *j, int r)
{
	struct coming *c = (struct coming *)j->h;

	pthread_mutex_lock(&f->imports->lock);
	f->imports->busy = false;
	pthread_mutex_unlock(&f->imports->lock);
	pthread_mutex_lock(&c->lock);
	c->result = r;
	fuse_reply_err(j->req, -r);
	pthread_mutex_unlock(&c->lock);
	next(f);
}

void img_flush(struct fsd *f, fuse_req_t req, struct fuse_file_info *fi)
{
	struct coming *c = (struct coming *)handle_of(fi);
	struct imports *im = f->imports;
	struct turn *t;
	bool fresh;
	int result;

	pthread_mutex_lock(&c->lock);
	fresh = c->fresh;
	c->fresh = false;
	result = c->result;
	pthread_mutex_unlock(&c->lock);
	if (!fresh) { /* a copy of the descriptor is closed, or it was told already */
		fuse_reply_err(req, -result);
		return;
	}
	t = calloc(1, sizeof(*t));
	if (!t) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	t->job = (struct job){ .req = req, .perform = perform, .answer = answer, .h = &c->h };
	pthread_mutex_lock(&im->lock);
	*im->last = t;
	im->last = &t->next;
	pthread_mutex_unlock(&im->lock);
	next(f);
}

/* ---- the file while it is open --------------------------------------------------------------- */

/* "NAME.tar", with or without what compressed it. False: it is called something else. */
static bool image_name(const char *file, char ret[SESSION_NAME])
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

static int begin(struct fsd *f, fuse_req_t req, const char *name, struct coming **ret)
{
	sbx_autofree struct coming *c = calloc(1, sizeof(*c));
	sbx_autoerror e = SBX_ERROR_INIT;

	if (!c)
		return -ENOMEM;
	who_is(f, req, &c->who);
	if (!c->who.admin)
		return -EACCES;
	if (!image_name(name, c->name) || orch_image_name_check(c->name, &e) < 0)
		return -EINVAL;
	c->fd = orch_image_stage(f->orch, &e);
	if (c->fd < 0)
		return -fsd_errno(&e);
	c->h.kind = H_COMING;
	c->h.ino = ino_make(atomic_fetch_add(&f->serial, 1) + 1, MS_N_IMAGE_TAR);
	c->uid = fuse_req_ctx(req)->uid;
	pthread_mutex_init(&c->lock, NULL);
	*ret = sbx_steal(&c);
	return 0;
}

void img_create(struct fsd *f, fuse_req_t req, const char *name, struct fuse_file_info *fi)
{
	struct fuse_entry_param e = { .generation = 1 };
	struct coming *c;
	int r = begin(f, req, name, &c);

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
	r = img_attr(f, req, e.ino, &e.attr, &e.attr_timeout);
	if (r < 0)
		fuse_reply_err(req, -r);
	if (r < 0 || fuse_reply_create(req, &e, fi) != 0)
		handle_close(f, &c->h);
}

void img_write(struct fsd *f, fuse_req_t req, struct fuse_file_info *fi, const char *data,
	       size_t size, off_t off)
{
	struct coming *c = (struct coming *)handle_of(fi);
	off_t most = (off_t)orch_settings(f->orch)->image_max_mb << 20;
	int r;

	pthread_mutex_lock(&c->lock);
	r = off > most || (off_t)size > most - off ? -EFBIG
						   : sbx_pwrite_all(c->fd, data, size, off);
	c->fresh = true;
	if (r < 0)
		fuse_reply_err(req, -r);
	else
		fuse_reply_write(req, size);
	pthread_mutex_unlock(&c->lock);
}

void img_release(struct handle *h)
{
	struct coming *c = (struct coming *)h;

	wait_for_reply(&c->lock);
	sbx_closep(&c->fd);
	free(c);
}

/* Calls with the open file of this number, under its lock. -ENOENT: it has been closed. */
static int with(struct fsd *f, fuse_ino_t ino, int (*act)(struct coming *c, void *ctx), void *ctx)
{
	int r = -ENOENT;

	pthread_mutex_lock(&f->handles_lock);
	for (struct handle *h = f->handles; h; h = h->next)
		if (h->kind == H_COMING && h->ino == ino) {
			r = act((struct coming *)h, ctx);
			break;
		}
	pthread_mutex_unlock(&f->handles_lock);
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

int img_in_attr(struct fsd *f, fuse_ino_t ino, struct stat *st)
{
	return with(f, ino, look, st);
}

static int cut(struct coming *c, void *ctx)
{
	const off_t *size = ctx;

	return ftruncate(c->fd, *size) < 0 ? -errno : 0;
}

void img_setattr(struct fsd *f, fuse_req_t req, fuse_ino_t ino, const struct stat *attr, int to_set)
{
	off_t most = (off_t)orch_settings(f->orch)->image_max_mb << 20, size = attr->st_size;
	double timeout = 0;
	struct stat st;
	int r = 0;

	if (to_set & FUSE_SET_ATTR_SIZE)
		r = size > most ? -EFBIG : with(f, ino, cut, &size);
	if (r == 0)
		r = img_attr(f, req, ino, &st, &timeout);
	if (r < 0)
		fuse_reply_err(req, -r);
	else
		fuse_reply_attr(req, &st, timeout);
}
