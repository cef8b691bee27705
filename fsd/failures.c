/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NAME.error: why what was copied into the tree did not become what it was to be. The last few are
 * remembered, in memory. Each has a number of its own, and not one made of its name, of which
 * somebody could find two with the same.
 */
#include "fsd/img_i.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct failure {
	char place[37];
	char name[SESSION_NAME]; /* NAME.error */
	uid_t uid;		 /* who may read it */
	enum ms_node_id node;
	char *text;	/* owned: the error as JSON */
	int64_t number; /* its row in the tree: the highest is the newest; 0: none */
};

struct failures {
	pthread_mutex_t lock;
	struct failure all[IMG_ERRORS];
	int64_t last_number;
};

struct failures *failures_new(void)
{
	struct failures *fl = calloc(1, sizeof(*fl));

	if (fl)
		pthread_mutex_init(&fl->lock, NULL);
	return fl;
}

void failures_free(struct failures *fl)
{
	if (!fl)
		return;
	for (size_t i = 0; i < IMG_ERRORS; i++)
		free(fl->all[i].text);
	pthread_mutex_destroy(&fl->lock);
	free(fl);
}

/* ---- the table; all under the lock ----------------------------------------------------------- */

static struct failure *named(struct failures *fl, const char *place, const char *name)
{
	for (size_t i = 0; i < IMG_ERRORS; i++) {
		struct failure *one = &fl->all[i];

		if (one->number && strcmp(one->name, name) == 0 && strcmp(one->place, place) == 0)
			return one;
	}
	return NULL;
}

static struct failure *numbered(struct failures *fl, fuse_ino_t ino)
{
	for (size_t i = 0; i < IMG_ERRORS; i++) {
		struct failure *one = &fl->all[i];

		if (one->number && one->number == ino_row(ino) && one->node == ino_node(ino))
			return one;
	}
	return NULL;
}

/* One that is free counts as old. */
static struct failure *oldest(struct failures *fl)
{
	struct failure *at = &fl->all[0];

	for (size_t i = 1; i < IMG_ERRORS; i++)
		if (fl->all[i].number < at->number)
			at = &fl->all[i];
	return at;
}

static void forget(struct failure *one)
{
	free(one->text);
	*one = (struct failure){ .number = 0 };
}

/* ---- what others ask ------------------------------------------------------------------------- */

void failures_put(struct failures *fl, const struct failed *what)
{
	char name[SESSION_NAME];
	struct failure *at;

	(void)snprintf(name, sizeof(name), "%.200s.error", what->name);
	pthread_mutex_lock(&fl->lock);
	at = named(fl, what->place, name);
	if (at)
		forget(at);
	if (what->text) {
		at = oldest(fl);
		forget(at);
		at->text = what->text;
		at->uid = what->uid;
		at->node = what->node;
		at->number = ++fl->last_number;
		memcpy(at->name, name, sizeof(name));
		(void)snprintf(at->place, sizeof(at->place), "%s", what->place);
	}
	pthread_mutex_unlock(&fl->lock);
}

bool failures_drop(struct failures *fl, const char *place, const char *name)
{
	struct failure *one;

	pthread_mutex_lock(&fl->lock);
	one = named(fl, place, name);
	if (one)
		forget(one);
	pthread_mutex_unlock(&fl->lock);
	return one;
}

int failures_attr(struct failures *fl, fuse_ino_t ino, struct stat *st)
{
	const struct failure *one;

	pthread_mutex_lock(&fl->lock);
	one = numbered(fl, ino);
	if (one) {
		st->st_size = (off_t)strlen(one->text);
		st->st_uid = one->uid;
	}
	pthread_mutex_unlock(&fl->lock);
	return one ? 0 : -ENOENT;
}

size_t failures_list(struct failures *fl, const char *place, struct img_error ret[IMG_ERRORS])
{
	size_t n = 0;

	pthread_mutex_lock(&fl->lock);
	for (size_t i = 0; i < IMG_ERRORS; i++) {
		const struct failure *one = &fl->all[i];

		if (!one->number || strcmp(one->place, place) != 0)
			continue;
		ret[n].number = one->number;
		memcpy(ret[n++].name, one->name, SESSION_NAME);
	}
	pthread_mutex_unlock(&fl->lock);
	return n;
}

/* ---- as files of the tree -------------------------------------------------------------------- */

int coming_render(struct fsd *f, fuse_ino_t ino, struct sbx_buf *out)
{
	struct failures *fl = f->failures;
	const struct failure *one;

	pthread_mutex_lock(&fl->lock);
	one = numbered(fl, ino);
	if (one)
		sbx_buf_puts(out, one->text);
	pthread_mutex_unlock(&fl->lock);
	return one ? 0 : -ENOENT;
}

int coming_child(struct fsd *f, fuse_req_t req, enum ms_node_id node, const char *place,
		 const char *name, struct fuse_entry_param *ret)
{
	struct failures *fl = f->failures;
	const struct failure *one;
	int64_t number;

	pthread_mutex_lock(&fl->lock);
	one = named(fl, place, name);
	number = one ? one->number : 0;
	pthread_mutex_unlock(&fl->lock);
	if (!number)
		return -ENOENT;
	memset(ret, 0, sizeof(*ret));
	ret->generation = 1;
	ret->ino = ino_make(number, node);
	return coming_attr(f, req, ret->ino, &ret->attr, &ret->attr_timeout);
}
