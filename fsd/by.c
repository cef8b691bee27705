/* SPDX-License-Identifier: Apache-2.0 */
/*
 * by/: runs by what they have, as directories of symlinks, so that globbing is the query language.
 * Each is a question to an index of the store, asked page by page. A directory is known by a number
 * that never changes (of a phase, a session, a user, or made of a label), so nothing is kept here.
 *
 * Who looks sees what he sees in runs/. So what a name leads to differs by caller, and a run leaves
 * its phase: the kernel asks for these names each time.
 */
#include "fsd/dir_i.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/id.h"

static const char up[] = "../../../runs/";

/* What the runs of a directory have. */
struct value {
	struct store_keys_by by;
	char *text; /* owned; what `by` points to */
};

static void value_clear(struct value *v)
{
	free(v->text);
}

/* The caller of a request, and whose runs are looked at: NULL is anybody's. */
struct asker {
	struct fsd *f;
	fuse_req_t req;
	struct orch_principal p;
	const char *user;
};

static void ask(struct asker *a, struct fsd *f, fuse_req_t req)
{
	a->f = f;
	a->req = req;
	who_is(f, req, &a->p);
	a->user = a->p.admin ? NULL : a->p.user;
}

/* ---- by phase -------------------------------------------------------------------------------- */

static int find_phase(const struct asker *a, const char *name, int64_t *ret)
{
	(void)a;
	*ret = store_phase_find(name);
	return *ret ? 0 : -ENOENT;
}

static int load_phase(const struct asker *a, int64_t number, struct value *ret)
{
	(void)a;
	ret->by.phase = (enum store_phase)number;
	return 0;
}

/* ---- by label -------------------------------------------------------------------------------- */

static int find_label(const struct asker *a, const char *name, int64_t *ret)
{
	struct store_keys_by by = { .user = a->user };
	sbx_autoerror e = SBX_ERROR_INIT;
	struct store_run_key any;
	char word[MS_WORD_SIZE];
	int n;

	if (!ms_name_word(name, word))
		return -ENOENT;
	*ret = by.label = store_number(word);
	n = store_run_keys_by(a->f->store, &by, &any, 1, &e);
	return n < 0 ? -fsd_errno(&e) : n == 0 ? -ENOENT : 0;
}

static int load_label(const struct asker *a, int64_t number, struct value *ret)
{
	(void)a;
	ret->by.label = number;
	return 0;
}

/* ---- by user --------------------------------------------------------------------------------- */

static int find_user(const struct asker *a, const char *name, int64_t *ret)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	char word[MS_WORD_SIZE];

	if (!ms_name_word(name, word))
		return -ENOENT;
	return store_user_find(a->f->store, word, ret, &e) < 0 ? -fsd_errno(&e) : 0;
}

static int load_user(const struct asker *a, int64_t number, struct value *ret)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	int rc = store_user_get(a->f->store, number, &ret->text, &e);

	ret->by.user = ret->text;
	return rc < 0 ? -fsd_errno(&e) : 0;
}

/* ---- by session ------------------------------------------------------------------------------ */

static int find_session(const struct asker *a, const char *name, int64_t *ret)
{
	struct session_ref s;
	int r = session_by_name(a->f, a->req, name, &s);

	if (r < 0)
		return r;
	*ret = s.row;
	return strcmp(name, s.name) == 0 ? 0 : -ENOENT; /* a directory has one name */
}

static int load_session(const struct asker *a, int64_t number, struct value *ret)
{
	struct session_ref s;
	int r = session_by_row(a->f, a->req, number, &s);

	if (r < 0)
		return r;
	ret->by.session_id = ret->text = strdup(s.id);
	return ret->text ? 0 : -ENOMEM;
}

/* ---- the table ------------------------------------------------------------------------------- */

static int list_phases(struct listing *l, const struct asker *a, int64_t after);
static int list_labels(struct listing *l, const struct asker *a, int64_t after);
static int list_sessions(struct listing *l, const struct asker *a, int64_t after);
static int list_users(struct listing *l, const struct asker *a, int64_t after);

/* By the node of the directories with the runs. */
static const struct {
	/* From a name to the number of its directory, and on to what its runs have. -errno */
	int (*find)(const struct asker *a, const char *name, int64_t *ret);
	int (*load)(const struct asker *a, int64_t number, struct value *ret);
	/* The directories behind the one with this number. -errno */
	int (*list)(struct listing *l, const struct asker *a, int64_t after);
} kinds[MS_N__COUNT] = {
	[MS_N_BY_PHASE_OF] = { find_phase, load_phase, list_phases },
	[MS_N_BY_LABEL_OF] = { find_label, load_label, list_labels },
	[MS_N_BY_SESS_OF] = { find_session, load_session, list_sessions },
	[MS_N_BY_USER_OF] = { find_user, load_user, list_users },
};

bool is_by_node(enum ms_node_id node)
{
	for (; node > MS_N_ROOT && node < MS_N__COUNT; node = ms_node(node)->parent)
		if (node == MS_N_BY)
			return true;
	return false;
}

static int load(const struct asker *a, fuse_ino_t dir, struct value *ret)
{
	*ret = (struct value){ .by.user = a->user };
	return kinds[ino_node(dir)].load(a, ino_row(dir), ret);
}

/* ---- attributes ------------------------------------------------------------------------------ */

static double entry_time(enum ms_node_id node)
{
	const struct ms_node *n = ms_node(node);

	if (n->who == MS_WHO_ADMIN || n->kind == MS_K_LINK)
		return 0;
	return strcmp(n->name, "*") != 0 || node == MS_N_BY_PHASE_OF ? FSD_FOREVER : 0;
}

/* It never changes, but whoever may not see the run must not find it here. */
static void link_attr(struct fsd *f, fuse_ino_t ino, const struct store_run_key *key,
		      struct stat *st)
{
	memset(st, 0, sizeof(*st));
	st->st_ino = ino;
	st->st_mode = S_IFLNK | ms_node(ino_node(ino))->mode;
	st->st_nlink = 1;
	st->st_uid = key->uid >= 0 ? (uid_t)key->uid : f->uid;
	st->st_gid = st->st_uid == f->uid ? getgid() : (gid_t)st->st_uid;
	st->st_size = (off_t)(sizeof(up) - 1 + strlen(key->id));
	st->st_blocks = 1;
	st->st_blksize = 4096;
	node_times(st, key->created_us, key->created_us);
}

/* Which of them a change was about is not looked up: each may have changed then. */
static int dir_attr(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct stat *st, double *timeout)
{
	int64_t changed_us = 0;
	int r = node_attr_run(f, req, ino, NULL, st, timeout);

	if (r == 0 && store_changes_time(f->store, &changed_us, NULL) == 0 &&
	    changed_us > f->started_us)
		node_times(st, f->started_us, changed_us);
	*timeout = 1.0;
	return r;
}

int by_attr(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct stat *st, double *timeout)
{
	struct run_ref run;
	int r;

	if (ms_node(ino_node(ino))->kind == MS_K_DIR)
		return dir_attr(f, req, ino, st, timeout);
	r = run_by_row(f, req, ino_row(ino), &run);
	if (r == 0)
		link_attr(f, ino, &run.key, st);
	*timeout = 0;
	return r;
}

int by_link(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct sbx_buf *out)
{
	struct run_ref run;
	int r = run_by_row(f, req, ino_row(ino), &run);

	if (r == 0)
		sbx_buf_printf(out, "%s%s", up, run.key.id);
	return r < 0 ? r : sbx_buf_failed(out) ? -ENOMEM : 0;
}

/* ---- look-up --------------------------------------------------------------------------------- */

/* Does this run have it? A phase is in its row; else it is the first behind the row before. */
static int has(const struct asker *a, struct store_keys_by *by, const struct store_run_key *key)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	struct store_run_key first;
	int n;

	if (by->phase)
		return by->phase == key->phase ? 0 : -ENOENT;
	by->after = key->row - 1;
	n = store_run_keys_by(a->f->store, by, &first, 1, &e);
	if (n < 0)
		return -fsd_errno(&e);
	return n == 1 && first.row == key->row ? 0 : -ENOENT;
}

static int find_run(const struct asker *a, fuse_ino_t dir, const char *name,
		    struct fuse_entry_param *ret)
{
	__attribute__((cleanup(value_clear))) struct value v = { .text = NULL };
	struct run_ref run;
	int r = run_by_name(a->f, a->req, name, &run);

	if (r == 0)
		r = load(a, dir, &v);
	if (r == 0)
		r = has(a, &v.by, &run.key);
	if (r < 0)
		return r;
	ret->ino = ino_make(run.key.row, ms_node_child(ino_node(dir), name));
	link_attr(a->f, ret->ino, &run.key, &ret->attr);
	return 0;
}

static int find(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name,
		struct fuse_entry_param *ret)
{
	enum ms_node_id node = ms_node_child(ino_node(parent), name);
	struct asker a;
	int64_t row = 0;
	int r = 0;

	ask(&a, f, req);
	if (!dir_visible(&a.p, ms_node(node)))
		return -ENOENT;
	ret->generation = 1;
	ret->entry_timeout = entry_time(node);
	if (ms_node(node)->kind == MS_K_LINK)
		return find_run(&a, parent, name, ret);
	if (kinds[node].find)
		r = kinds[node].find(&a, name, &row);
	if (r < 0)
		return r;
	ret->ino = ino_make(row, node);
	return by_attr(f, req, ret->ino, &ret->attr, &ret->attr_timeout);
}

/* The kicker finds no run in a phase, so that its symlink reaches us. */
int by_child(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name,
	     struct fuse_entry_param *ret)
{
	if (ino_node(parent) == MS_N_BY_PHASE_OF && is_kicker(f, req))
		return -ENOENT;
	return find(f, req, parent, name, ret);
}

/* ---- watchers of phases ---------------------------------------------------------------------- */

void by_known(struct fsd *f, fuse_ino_t ino)
{
	if (ino_node(ino) == MS_N_BY_PHASE_OF)
		atomic_fetch_add(&f->phases_known[ino_row(ino)], 1);
}

void by_forget(struct fsd *f, fuse_ino_t ino, uint64_t nlookup)
{
	if (ino_node(ino) == MS_N_BY_PHASE_OF)
		atomic_fetch_sub(&f->phases_known[ino_row(ino)], (int64_t)nlookup);
}

bool by_watched(struct fsd *f, enum store_phase p)
{
	return p && atomic_load(&f->phases_known[p]) > 0;
}

/* It may have left again: then there is nothing to tell. */
void by_announce(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param entry = { 0 };
	int r = find(f, req, parent, name, &entry);

	if (r < 0)
		fuse_reply_err(req, -r);
	else
		fuse_reply_entry(req, &entry);
}

/* ---- listing --------------------------------------------------------------------------------- */

/* Directories of one kind, which are alike. */
struct dirs {
	struct listing *l;
	enum ms_node_id node;
	struct fuse_entry_param entry;
};

static int dirs_begin(struct dirs *d, struct listing *l, enum ms_node_id node)
{
	*d = (struct dirs){ .l = l, .node = node };
	d->entry.generation = 1;
	d->entry.entry_timeout = entry_time(node);
	return by_attr(l->f, l->req, ino_make(0, node), &d->entry.attr, &d->entry.attr_timeout);
}

static bool add_dir(struct dirs *d, int64_t number, const char *name)
{
	d->entry.ino = d->entry.attr.st_ino = ino_make(number, d->node);
	if (d->node == MS_N_BY_PHASE_OF)
		d->entry.ino = 0; /* a look-up is counted */
	return dir_add(d->l, name, OFF_DYNAMIC + number, &d->entry);
}

static int list_phases(struct listing *l, const struct asker *a, int64_t after)
{
	struct dirs d;
	int r = dirs_begin(&d, l, MS_N_BY_PHASE_OF);

	(void)a;
	for (int64_t i = after + 1; r == 0 && i < STORE_PHASE__COUNT; i++)
		if (!add_dir(&d, i, store_phase_name((enum store_phase)i)))
			break;
	return r;
}

static bool add_word(void *ctx, int64_t number, const char *word)
{
	char name[MS_WORD_SIZE];

	return !ms_word_name(word, name) || add_dir(ctx, number, name);
}

static int list_labels(struct listing *l, const struct asker *a, int64_t after)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	struct dirs d;
	int r = dirs_begin(&d, l, MS_N_BY_LABEL_OF);

	if (r < 0)
		return r;
	return store_labels(l->f->store, a->user, after, add_word, &d, &e) < 0 ? -fsd_errno(&e) : 0;
}

static int list_users(struct listing *l, const struct asker *a, int64_t after)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	struct dirs d;
	int r = dirs_begin(&d, l, MS_N_BY_USER_OF);

	(void)a;
	if (r < 0)
		return r;
	return store_users(l->f->store, after, add_word, &d, &e) < 0 ? -fsd_errno(&e) : 0;
}

static bool add_session(struct listing *l, int64_t row, const char *name)
{
	struct dirs d;

	return dirs_begin(&d, l, MS_N_BY_SESS_OF) < 0 || add_dir(&d, row, name);
}

static int list_sessions(struct listing *l, const struct asker *a, int64_t after)
{
	return session_each(l, &a->p, after, add_session);
}

static bool add_link(struct listing *l, const struct store_run_key *key, enum ms_node_id node)
{
	struct fuse_entry_param e = { .ino = ino_make(key->row, node), .generation = 1 };

	link_attr(l->f, e.ino, key, &e.attr);
	return dir_add(l, key->id, OFF_DYNAMIC + key->row, &e);
}

int by_list(struct listing *l, fuse_ino_t dir, int64_t after)
{
	__attribute__((cleanup(value_clear))) struct value v = { .text = NULL };
	enum ms_node_id below = ms_node_next(ino_node(dir), MS_N_NONE);
	struct asker a;
	int r;

	ask(&a, l->f, l->req);
	if (kinds[below].list)
		return kinds[below].list(l, &a, after);
	if (!kinds[ino_node(dir)].load)
		return 0; /* by/ itself, whose children are in the table */
	r = load(&a, dir, &v);
	v.by.after = after;
	return r < 0 ? r : dir_add_runs(l, &v.by, below, add_link);
}
