/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trees of real files: the artifacts of a run. The kernel's numbers for them are looked up in a
 * table that holds (row, path) as long as the kernel remembers it. A number is made of its place,
 * so that it is the same when the kernel had forgotten it: cp takes a file whose number changed
 * between its stat and its open for another one. Files are opened below the run's directory without
 * following a link, and handed to the kernel by splice.
 */
#include "fsd/fsd_i.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"

struct real_node {
	struct real_node *next;	      /* in the bucket of its number */
	struct real_node *place_next; /* in the bucket of its place */
	uint64_t number; /* of its place; the next that is free where two places have one */
	int64_t row;
	char id[37];
	uint64_t nlookup;
	char path[]; /* relative to artifacts/ */
};

enum { BUCKETS = 1024 };

struct real_nodes {
	pthread_mutex_t lock;
	struct real_node *by_number[BUCKETS];
	struct real_node *by_place[BUCKETS];
};

static uint64_t add_hash(uint64_t hash, const char *s)
{
	for (; *s; s++)
		hash = (hash ^ (unsigned char)*s) * UINT64_C(1099511628211);
	return hash;
}

static uint64_t place_hash(int64_t row, const char *path)
{
	/* FNV-1a; whoever finds two names of one hash gets two numbers all the same. */
	return add_hash(UINT64_C(14695981039346656037) ^ (uint64_t)row, path);
}

static size_t place_bucket(int64_t row, const char *path)
{
	return place_hash(row, path) % BUCKETS;
}

struct real_nodes *real_new(void)
{
	struct real_nodes *r = calloc(1, sizeof(*r));

	if (r)
		pthread_mutex_init(&r->lock, NULL);
	return r;
}

void real_free(struct real_nodes *r)
{
	if (!r)
		return;
	for (size_t i = 0; i < BUCKETS; i++) {
		struct real_node *n;

		while ((n = r->by_number[i])) {
			r->by_number[i] = n->next;
			free(n);
		}
	}
	pthread_mutex_destroy(&r->lock);
	free(r);
}

bool is_real_dir(fuse_ino_t ino)
{
	return (ino & INO_REAL) || ino_node(ino) == MS_N_RUN_ARTS;
}

/* Where a node is. Plain data, copied out of the table. */
struct place {
	int64_t row;
	char id[37];
	bool hidden;
	char path[SBX_PATH_MAX + 1]; /* "" for artifacts/ itself */
};

static int place_of(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct place *ret)
{
	struct real_nodes *t = f->real;
	int r = -ENOENT;

	ret->hidden = false;
	if (!(ino & INO_REAL)) {
		struct run_ref run;

		r = run_by_row(f, req, ino_row(ino), &run);
		if (r < 0)
			return r;
		/* They are copied before the row says so: until then there are none. */
		ret->hidden = !store_phase_terminal(run.key.phase);
		ret->row = run.key.row;
		memcpy(ret->id, run.key.id, sizeof(ret->id));
		ret->path[0] = '\0';
		return 0;
	}
	pthread_mutex_lock(&t->lock);
	for (struct real_node *n = t->by_number[ino % BUCKETS]; n; n = n->next) {
		if (n->number != ino)
			continue;
		ret->row = n->row;
		memcpy(ret->id, n->id, sizeof(ret->id));
		(void)snprintf(ret->path, sizeof(ret->path), "%s", n->path);
		r = 0;
		break;
	}
	pthread_mutex_unlock(&t->lock);
	return r;
}

static int open_place(struct fsd *f, const struct place *p, const char *name, int flags)
{
	sbx_autoclose int dir = store_run_dir(f->store, p->id, false, NULL);
	char path[SBX_PATH_MAX + sizeof("artifacts/") + SBX_NAME_MAX + 2];

	if (dir < 0 || p->hidden)
		return -ENOENT;
	if ((size_t)snprintf(path, sizeof(path), "artifacts%s%s%s%s", *p->path ? "/" : "", p->path,
			     name ? "/" : "", name ? name : "") >= sizeof(path))
		return -ENAMETOOLONG;
	return sbx_open_beneath(dir, path, flags, 0);
}

/* What may be seen of a real file: no writing, no set-id bits, the run's owner. */
static void present(struct fsd *f, fuse_ino_t ino, int64_t row, struct stat *st)
{
	struct store_run_key key;

	if (store_run_key_row(f->store, row, &key, NULL, NULL) == 0 && key.uid >= 0)
		st->st_uid = (uid_t)key.uid;
	else
		st->st_uid = f->uid;
	st->st_gid = st->st_uid == f->uid ? getgid() : (gid_t)st->st_uid;
	st->st_ino = ino;
	st->st_mode = S_ISDIR(st->st_mode) ? S_IFDIR | 0500 : S_IFREG | 0400;
	acl_mode(f, st);
	if (S_ISREG(st->st_mode))
		st->st_nlink = 1;
}

/* Under the lock. */
static uint64_t free_number(const struct real_nodes *t, int64_t row, const char *path)
{
	uint64_t number = INO_REAL | place_hash(row, path);
	const struct real_node *n;

	for (;; number = INO_REAL | (number + 1)) {
		for (n = t->by_number[number % BUCKETS]; n && n->number != number;)
			n = n->next;
		if (!n)
			return number;
	}
}

/* The number of this place: the one the kernel has already, or a new one. */
static uint64_t number_of(struct real_nodes *t, const struct place *p, const char *name)
{
	size_t len = strlen(p->path) + strlen(name) + 2;
	struct real_node *n = calloc(1, sizeof(*n) + len), *old;
	uint64_t number = 0;
	size_t b;

	if (!n)
		return 0;
	(void)snprintf(n->path, len, "%s%s%s", p->path, *p->path ? "/" : "", name);
	b = place_bucket(p->row, n->path);
	pthread_mutex_lock(&t->lock);
	for (old = t->by_place[b]; old; old = old->place_next)
		if (old->row == p->row && strcmp(old->path, n->path) == 0)
			break;
	if (old) {
		old->nlookup++;
		number = old->number;
		free(n);
	} else {
		n->number = number = free_number(t, p->row, n->path);
		n->row = p->row;
		memcpy(n->id, p->id, sizeof(n->id));
		n->nlookup = 1;
		n->next = t->by_number[number % BUCKETS];
		t->by_number[number % BUCKETS] = n;
		n->place_next = t->by_place[b];
		t->by_place[b] = n;
	}
	pthread_mutex_unlock(&t->lock);
	return number;
}

/* Under the lock. */
static void drop(struct real_nodes *t, struct real_node **at)
{
	struct real_node *n = *at, **place = &t->by_place[place_bucket(n->row, n->path)];

	*at = n->next;
	while (*place != n)
		place = &(*place)->place_next;
	*place = n->place_next;
	free(n);
}

void real_forget(struct fsd *f, fuse_ino_t ino, uint64_t nlookup)
{
	struct real_nodes *t = f->real;

	pthread_mutex_lock(&t->lock);
	for (struct real_node **at = &t->by_number[ino % BUCKETS]; *at; at = &(*at)->next) {
		struct real_node *n = *at;

		if (n->number != ino)
			continue;
		if (n->nlookup <= nlookup)
			drop(t, at);
		else
			n->nlookup -= nlookup;
		break;
	}
	pthread_mutex_unlock(&t->lock);
}

void real_lookup(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param e = { .generation = 1,
				      .attr_timeout = FSD_ARTIFACTS,
				      .entry_timeout = FSD_ARTIFACTS };
	struct place p;
	sbx_autoclose int fd = -1;
	int r = place_of(f, req, parent, &p);

	if (r == 0) {
		fd = open_place(f, &p, name, O_PATH | O_NOFOLLOW);
		r = fd < 0 ? fd : 0;
	}
	if (r == 0 && fstat(fd, &e.attr) < 0)
		r = -errno;
	if (r == 0 && !S_ISREG(e.attr.st_mode) && !S_ISDIR(e.attr.st_mode))
		r = -ENOENT;
	if (r == 0) {
		e.ino = number_of(f->real, &p, name);
		r = e.ino ? 0 : -ENOMEM;
	}
	if (r < 0) {
		fuse_reply_err(req, r == -ELOOP || r == -EXDEV ? ENOENT : -r);
		return;
	}
	present(f, e.ino, p.row, &e.attr);
	if (fuse_reply_entry(req, &e) != 0)
		real_forget(f, e.ino, 1);
}

int real_attr(struct fsd *f, fuse_ino_t ino, struct stat *st)
{
	struct place p;
	sbx_autoclose int fd = -1;
	int r = place_of(f, NULL, ino, &p);

	if (r < 0)
		return r;
	fd = open_place(f, &p, NULL, O_PATH | O_NOFOLLOW);
	if (fd < 0)
		return fd;
	if (fstat(fd, st) < 0)
		return -errno;
	present(f, ino, p.row, st);
	return 0;
}

/* ---- files ----------------------------------------------------------------------------------- */

struct real_handle {
	struct handle h;
	int fd;	  /* owned unless dir has it */
	DIR *dir; /* owned */
	struct place place;
	pthread_mutex_t lock; /* the position of dir */
};

static struct real_handle *real_handle(enum handle_kind kind, fuse_ino_t ino, int fd)
{
	struct real_handle *h = calloc(1, sizeof(*h));

	if (!h)
		return NULL;
	h->h.kind = kind;
	h->h.ino = ino;
	h->fd = fd;
	pthread_mutex_init(&h->lock, NULL);
	return h;
}

void real_open(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct place p;
	int fd, r = place_of(f, req, ino, &p);

	if (r == 0 && (fi->flags & O_ACCMODE) != O_RDONLY)
		r = -EACCES;
	if (r < 0) {
		fuse_reply_err(req, -r);
		return;
	}
	fd = open_place(f, &p, NULL, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		fuse_reply_err(req, -fd);
	else
		real_opened(f, req, ino, fd, fi);
}

void real_opened(struct fsd *f, fuse_req_t req, fuse_ino_t ino, int fd, struct fuse_file_info *fi)
{
	struct real_handle *h = real_handle(H_REAL_FILE, ino, fd);

	if (!h) {
		fuse_reply_err(req, ENOMEM);
		sbx_closep(&fd);
		return;
	}
	fi->keep_cache = 1;
	fi->noflush = 1;
	h->h.in_pass = pass_open(f, ino, fd, fi) >= 0;
	handle_opened(f, req, fi, &h->h);
}

void real_read(fuse_req_t req, struct fuse_file_info *fi, size_t size, off_t off)
{
	struct real_handle *h = (struct real_handle *)handle_of(fi);
	struct fuse_bufvec v = FUSE_BUFVEC_INIT(size);

	v.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK;
	v.buf[0].fd = h->fd;
	v.buf[0].pos = off;
	fuse_reply_data(req, &v, FUSE_BUF_SPLICE_MOVE);
}

void real_lseek(fuse_req_t req, struct fuse_file_info *fi, off_t off, int whence)
{
	struct real_handle *h = (struct real_handle *)handle_of(fi);
	off_t at = lseek(h->fd, off, whence);

	if (at < 0)
		fuse_reply_err(req, errno);
	else
		fuse_reply_lseek(req, at);
}

void real_release(struct handle *base)
{
	struct real_handle *h = (struct real_handle *)base;

	if (h->dir)
		closedir(h->dir);
	else
		sbx_closep(&h->fd);
	pthread_mutex_destroy(&h->lock);
	free(h);
}

/* ---- folders --------------------------------------------------------------------------------- */

void real_opendir(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct place p;
	struct real_handle *h;
	int fd, r = place_of(f, req, ino, &p);

	if (r < 0) {
		fuse_reply_err(req, -r);
		return;
	}
	fd = open_place(f, &p, NULL, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
	if (fd < 0 && !(fd == -ENOENT && !*p.path)) {
		fuse_reply_err(req, -fd);
		return;
	}
	/* A run without artifacts has no folder of them: an empty listing. */
	h = real_handle(H_REAL_DIR, ino, fd);
	if (h && fd >= 0)
		h->dir = fdopendir(fd);
	if (!h || (fd >= 0 && !h->dir)) {
		free(h);
		sbx_closep(&fd);
		fuse_reply_err(req, ENOMEM);
		return;
	}
	h->place = p;
	handle_opened(f, req, fi, &h->h);
}

/* Adds what readdir gives until the buffer is full. The "plus" entries carry no node (number 0),
 * which tells the kernel to look up what it wants to know. */
static size_t fill(fuse_req_t req, struct handle *handle, char *buf, size_t size, off_t off,
		   bool plus)
{
	struct real_handle *h = (struct real_handle *)handle;
	uint64_t dir_hash =
		add_hash(place_hash(h->place.row, h->place.path), *h->place.path ? "/" : "");
	struct dirent *d;
	size_t len = 0;

	if (!h->dir)
		return 0;
	seekdir(h->dir, off);
	while ((d = readdir(h->dir))) {
		unsigned char type = sbx_entry_type(dirfd(h->dir), d);
		struct fuse_entry_param e = { .attr = { .st_ino = INO_REAL |
								  add_hash(dir_hash, d->d_name),
							.st_mode = DTTOIF(type) } };
		size_t n;

		if (type != DT_REG && type != DT_DIR)
			continue;
		n = plus ? fuse_add_direntry_plus(req, buf + len, size - len, d->d_name, &e,
						  d->d_off)
			 : fuse_add_direntry(req, buf + len, size - len, d->d_name, &e.attr,
					     d->d_off);
		if (n > size - len)
			break;
		len += n;
	}
	return len;
}

void real_readdir(fuse_req_t req, struct fuse_file_info *fi, size_t size, off_t off, bool plus)
{
	struct real_handle *h = (struct real_handle *)handle_of(fi);

	dir_reply(req, &h->h, &h->lock, size, off, plus, fill);
}
