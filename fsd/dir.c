/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Look-up and listing of the synthetic directories.
 */
#include "fsd/dir_i.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "runtimes/runtimes.h"

enum { RUNS_BATCH = 256 };

bool dir_visible(const struct orch_principal *p, const struct ms_node *n)
{
	return n->who != MS_WHO_ADMIN || p->admin;
}

/* ---- look-up --------------------------------------------------------------------------------- */

static int runtime_index(const char *name, int64_t *ret)
{
	const struct rt_known *k;
	size_t len = strlen(name);

	if (len < 6 || strcmp(name + len - 5, ".json") != 0)
		return -ENOENT;
	for (size_t i = 0; (k = rt_known_at(i)); i++) {
		if (strlen(k->name) == len - 5 && strncmp(k->name, name, len - 5) == 0) {
			*ret = (int64_t)i + 1;
			return 0;
		}
	}
	return -ENOENT;
}

static void fill_entry(struct fsd *f, fuse_ino_t ino, const struct run_ref *run,
		       struct fuse_entry_param *ret)
{
	ret->ino = ino;
	ret->generation = 1;
	ret->entry_timeout = entry_timeout(f, ino, run);
}

int dir_run_entry(struct fsd *f, fuse_req_t req, const struct run_ref *run,
		  struct fuse_entry_param *ret)
{
	memset(ret, 0, sizeof(*ret));
	fill_entry(f, ino_make(run->key.row, MS_N_RUN), run, ret);
	return node_attr_run(f, req, ret->ino, run, &ret->attr, &ret->attr_timeout);
}

/* A run: for the kicker it is not there while it announces it, so that its mkdir reaches us. */
static int child_run(struct fsd *f, fuse_req_t req, const char *name, struct fuse_entry_param *ret)
{
	struct run_ref run;
	int r = run_by_name(f, req, name, &run);

	if (r < 0)
		return r;
	if (is_kicker(f, req) && run.key.row == atomic_load(&f->announcing))
		return -ENOENT;
	return dir_run_entry(f, req, &run, ret);
}

static int child_of_run(struct fsd *f, fuse_req_t req, int64_t row, enum ms_node_id node,
			struct fuse_entry_param *ret)
{
	struct run_ref run;
	int r = run_by_row(f, req, row, &run);

	if (r < 0)
		return r;
	if (!node_exists(ms_node(node), &run))
		return -ENOENT;
	fill_entry(f, ino_make(row, node), &run, ret);
	return node_attr_run(f, req, ret->ino, &run, &ret->attr, &ret->attr_timeout);
}

int dir_child(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name,
	      struct fuse_entry_param *ret)
{
	enum ms_node_id node = ms_node_child(ino_node(parent), name);
	struct orch_principal p;
	int64_t row = ino_row(parent);
	int r;

	memset(ret, 0, sizeof(*ret));
	if (node == MS_N_NONE)
		return -ENOENT;
	if (node == MS_N_RUN)
		return child_run(f, req, name, ret);
	if (is_session_node(node))
		return session_child(f, req, parent, name, ret);
	if (is_by_node(node))
		return by_child(f, req, parent, name, ret);
	if (is_image_node(node))
		return img_child(f, req, parent, name, ret);
	if (node == MS_N_RUNTIME) {
		r = runtime_index(name, &row);
		if (r < 0)
			return r;
	} else if (row) {
		return child_of_run(f, req, row, node, ret);
	}
	who_is(f, req, &p);
	if (!dir_visible(&p, ms_node(node)))
		return -ENOENT;
	if (serial_index(node) >= 0)
		row = serial_take(f, serial_index(node), fuse_req_ctx(req)->uid);
	fill_entry(f, ino_make(row, node), NULL, ret);
	return node_attr_run(f, req, ret->ino, NULL, &ret->attr, &ret->attr_timeout);
}

void dir_lookup(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param entry;
	int r = dir_child(f, req, parent, name, &entry);

	if (r == -ENOENT && ino_node(parent) != MS_N_RUNS && ino_node(parent) != MS_N_RUN &&
	    ms_node_child(ino_node(parent), name) == MS_N_NONE) {
		/* A name that can never be: the kernel may remember that, editors ask a lot. */
		memset(&entry, 0, sizeof(entry));
		entry.entry_timeout = FSD_FOREVER;
		fuse_reply_entry(req, &entry);
		return;
	}
	if (r < 0)
		fuse_reply_err(req, -r);
	else if (fuse_reply_entry(req, &entry) == 0)
		by_known(f, entry.ino);
}

/* ---- listing --------------------------------------------------------------------------------- */

bool dir_add(struct listing *l, const char *name, off_t next, const struct fuse_entry_param *e)
{
	char *at = l->buf + l->len;
	size_t left = l->size - l->len;
	size_t n = l->plus ? fuse_add_direntry_plus(l->req, at, left, name, e, next)
			   : fuse_add_direntry(l->req, at, left, name, &e->attr, next);

	if (n > left)
		return false;
	l->len += n;
	return true;
}

static bool add_dot(struct listing *l, const char *name, fuse_ino_t ino, off_t next)
{
	struct fuse_entry_param e = { .attr = { .st_ino = ino, .st_mode = S_IFDIR } };

	/* Node id 0: the kernel does not look at it, and nothing is counted. */
	return dir_add(l, name, next, &e);
}

static int attr_of(struct listing *l, const struct run_ref *run, struct fuse_entry_param *e)
{
	enum ms_node_id node = ino_node(e->ino);

	if (is_session_node(node))
		return session_attr(l->f, l->req, e->ino, &e->attr, &e->attr_timeout);
	if (is_by_node(node))
		return by_attr(l->f, l->req, e->ino, &e->attr, &e->attr_timeout);
	if (is_image_node(node))
		return img_attr(l->f, l->req, e->ino, &e->attr, &e->attr_timeout);
	return node_attr_run(l->f, l->req, e->ino, run, &e->attr, &e->attr_timeout);
}

static bool add_fixed(struct listing *l, fuse_ino_t dir, enum ms_node_id node,
		      const struct run_ref *run)
{
	enum ms_node_id shown = session_shown(l->f, l->req, dir, node);
	const struct ms_node *n = ms_node(node);
	struct fuse_entry_param e = { 0 };

	if (!n->listed || strcmp(n->name, "*") == 0 || (run && !node_exists(n, run)))
		return true;
	fill_entry(l->f, ino_make(ino_row(dir), shown), run, &e);
	if (is_session_node(node))
		e.entry_timeout = session_entry_time(l->f, node);
	if (ino_node(dir) == MS_N_IMAGE)
		e.entry_timeout = 0; /* it goes with the image, and another may come */
	if (node == MS_N_RUNS_NEW || node == MS_N_RUNS_CHECK)
		e.ino = 0; /* its number is made by a look-up */
	if (l->plus && e.ino) {
		int r = attr_of(l, run, &e);

		if (r == -ENOENT)
			return true;
		if (r < 0) /* it is there all the same: a look-up may have more luck */
			e.ino = 0;
	}
	if (!l->plus || e.ino == 0) {
		static const mode_t types[] = { [MS_K_DIR] = S_IFDIR, [MS_K_LINK] = S_IFLNK };

		enum ms_kind kind = ms_node(shown)->kind;

		e.attr.st_ino = ino_make(ino_row(dir), shown);
		e.attr.st_mode = kind < SBX_COUNT(types) && types[kind] ? types[kind] : S_IFREG;
	}
	return dir_add(l, n->name, OFF_FIXED + (off_t)node, &e);
}

static bool add_run(struct listing *l, const struct store_run_key *key, enum ms_node_id node)
{
	struct run_ref run = { .key = *key, .mine = true };
	struct fuse_entry_param e = { 0 };

	fill_entry(l->f, ino_make(key->row, node), &run, &e);
	if (node_attr_run(l->f, l->req, e.ino, &run, &e.attr, &e.attr_timeout) < 0)
		return true;
	return dir_add(l, key->id, OFF_DYNAMIC + key->row, &e);
}

int dir_add_runs(struct listing *l, struct store_keys_by *by, enum ms_node_id node,
		 bool (*add)(struct listing *l, const struct store_run_key *key,
			     enum ms_node_id node))
{
	struct store_run_key keys[RUNS_BATCH];
	sbx_autoerror e = SBX_ERROR_INIT;
	/* As many as can fit at the least, so that rows are not read for nothing. */
	size_t want = (l->size - l->len) / (l->plus ? 200 : 64) + 1;
	int n;

	do {
		if (want > RUNS_BATCH)
			want = RUNS_BATCH;
		n = store_run_keys_by(l->f->store, by, keys, want, &e);
		if (n < 0)
			return -fsd_errno(&e);
		for (int i = 0; i < n; i++) {
			if (!add(l, &keys[i], node))
				return 0;
			by->after = keys[i].row;
		}
	} while ((size_t)n == want);
	return 0;
}

static void add_runtimes(struct listing *l, int64_t after)
{
	const struct rt_known *k;
	char name[64];

	for (size_t i = (size_t)after; (k = rt_known_at(i)); i++) {
		struct fuse_entry_param e = { 0 };

		fill_entry(l->f, ino_make((int64_t)i + 1, MS_N_RUNTIME), NULL, &e);
		if (node_attr_run(l->f, l->req, e.ino, NULL, &e.attr, &e.attr_timeout) < 0)
			continue;
		(void)snprintf(name, sizeof(name), "%s.json", k->name);
		if (!dir_add(l, name, OFF_DYNAMIC + (off_t)i + 1, &e))
			return;
	}
}

static int list(struct listing *l, fuse_ino_t dir, const struct orch_principal *p,
		const struct run_ref *run, off_t off)
{
	enum ms_node_id at = off >= OFF_FIXED ? (enum ms_node_id)(off - OFF_FIXED) : MS_N_NONE;
	int64_t after = off >= OFF_DYNAMIC ? off - OFF_DYNAMIC : 0;

	if (off < OFF_DOT && !add_dot(l, ".", dir, OFF_DOT))
		return 0;
	if (off < OFF_DOTDOT && !add_dot(l, "..", FUSE_ROOT_ID, OFF_DOTDOT))
		return 0;
	if (off < OFF_DYNAMIC) {
		while ((at = ms_node_next(ino_node(dir), at)) != MS_N_NONE)
			if (dir_visible(p, ms_node(at)) && !add_fixed(l, dir, at, run))
				return 0;
	}
	if (ino_node(dir) == MS_N_RUNS) {
		struct store_keys_by all = { .user = p->admin ? NULL : p->user, .after = after };

		return dir_add_runs(l, &all, MS_N_RUN, add_run);
	}
	if (ino_node(dir) == MS_N_IMAGES)
		return img_list(l, after);
	if (ino_node(dir) == MS_N_RUNTIMES)
		add_runtimes(l, after);
	if (is_by_node(ino_node(dir)))
		return by_list(l, dir, after);
	return session_list(l, dir, p, after);
}

void dir_read(struct fsd *f, fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, bool plus)
{
	struct listing l = { .f = f, .req = req, .plus = plus, .size = size };
	struct session_ref session;
	struct orch_principal p;
	struct run_ref run;
	int r = 0;

	who_is(f, req, &p);
	if (ino_of_run(ino))
		r = run_by_row(f, req, ino_row(ino), &run);
	else if (is_session_node(ino_node(ino)))
		r = session_of(f, req, ino, &session);
	else if (!dir_visible(&p, ms_node(ino_node(ino))))
		r = -EACCES;
	if (r == 0) {
		l.buf = malloc(size);
		r = l.buf ? list(&l, ino, &p, ino_of_run(ino) ? &run : NULL, off) : -ENOMEM;
	}
	if (r < 0 && l.len == 0)
		fuse_reply_err(req, -r);
	else
		fuse_reply_buf(req, l.buf, l.len);
	free(l.buf);
}

void dir_reply(fuse_req_t req, struct handle *h, pthread_mutex_t *lock, size_t size, off_t off,
	       bool plus,
	       size_t (*fill)(fuse_req_t req, struct handle *h, char *buf, size_t size, off_t off,
			      bool plus))
{
	sbx_autofree char *buf = malloc(size);
	size_t len;

	if (!buf) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	pthread_mutex_lock(lock);
	len = fill(req, h, buf, size, off, plus);
	pthread_mutex_unlock(lock);
	fuse_reply_buf(req, buf, len);
}
