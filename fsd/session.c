/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions in the tree: who may see which, what they are like, and their names. The name of one in
 * sessions/ is its entry for its owner, who may have made it with mkdir, and its id for everybody
 * else: so what the kernel knows of such a name differs by caller, and is good for one look-up.
 * What is below is the same for all who may come in.
 *
 * A session that is being destroyed has no name any more; whoever is inside still sees it.
 */
#include "fsd/fsd_i.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/id.h"

/* ---- what is it ------------------------------------------------------------------------------ */

bool is_session_node(enum ms_node_id node)
{
	if (is_coming_node(node))
		return false;
	for (; node > MS_N_ROOT && node < MS_N__COUNT; node = ms_node(node)->parent)
		if (node == MS_N_SESSION || node == MS_N_SESS_BY_ID)
			return true;
	return false;
}

/* The row of its number is that of a snapshot. */
static bool of_shot(enum ms_node_id node)
{
	return node == MS_N_SHOT || ms_node(node)->parent == MS_N_SHOT;
}

static int not_found(int rc, const struct sbx_error *e)
{
	return rc == -SBX_E_SESSION_NOT_FOUND || rc == -SBX_E_SNAPSHOT_NOT_FOUND ||
			       rc == -SBX_E_RUN_NOT_FOUND
		       ? -ENOENT
		       : -fsd_errno(e);
}

static bool is_over(const struct store_session *s)
{
	return s->expires_us && s->expires_us <= sbx_now_us();
}

static int make_ref(struct fsd *f, fuse_req_t req, const struct store_session *s,
		    struct session_ref *ret)
{
	struct orch_principal p;

	who_is(f, req, &p);
	ret->mine = strcmp(p.user, s->user) == 0;
	if ((!ret->mine && !p.admin) || is_over(s))
		return -ENOENT;
	ret->row = s->row;
	(void)snprintf(ret->id, sizeof(ret->id), "%s", s->id);
	(void)snprintf(ret->name, sizeof(ret->name), "%s",
		       ret->mine && s->entry ? s->entry : s->id);
	ret->ending = s->ending_us != 0;
	ret->uid = s->uid;
	ret->created_us = s->created_us;
	ret->changed_us = s->changed_us;
	return 0;
}

int session_by_row(struct fsd *f, fuse_req_t req, int64_t row, struct session_ref *ret)
{
	store_autosession s = { 0 };
	sbx_autoerror e = SBX_ERROR_INIT;
	int rc = store_session_get_row(f->store, row, &s, &e);

	return rc < 0 ? not_found(rc, &e) : make_ref(f, req, &s, ret);
}

static int session_by_id(struct fsd *f, fuse_req_t req, const char *id, struct session_ref *ret)
{
	store_autosession s = { 0 };
	sbx_autoerror e = SBX_ERROR_INIT;
	int rc = store_session_get(f->store, id, &s, &e);

	return rc < 0 ? not_found(rc, &e) : make_ref(f, req, &s, ret);
}

int session_by_name(struct fsd *f, fuse_req_t req, const char *name, struct session_ref *ret)
{
	store_autosession s = { 0 };
	sbx_autoerror e = SBX_ERROR_INIT;
	struct orch_principal p;
	int rc;

	who_is(f, req, &p);
	rc = sbx_id_valid(name) ? store_session_get(f->store, name, &s, &e)
				: store_session_get_entry(f->store, p.user, name, &s, &e);
	if (rc < 0)
		return not_found(rc, &e);
	return s.ending_us ? -ENOENT : make_ref(f, req, &s, ret);
}

static int take_shot(struct fsd *f, fuse_req_t req, const struct store_snapshot *shot,
		     struct session_ref *ret)
{
	int r = session_by_id(f, req, shot->session_id, ret);

	ret->created_us = ret->changed_us = shot->created_us;
	return r;
}

/* The session that a node belongs to; its times are those of what the row is about. */
int session_of(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct session_ref *ret)
{
	enum ms_node_id node = ino_node(ino);
	sbx_autoerror e = SBX_ERROR_INIT;
	int rc;

	if (of_shot(node)) {
		store_autosnapshot shot = { 0 };

		rc = store_snapshot_get_row(f->store, ino_row(ino), &shot, &e);
		return rc < 0 ? not_found(rc, &e) : take_shot(f, req, &shot, ret);
	}
	if (node == MS_N_SESS_RUN) {
		store_autorun run = { 0 };

		rc = store_run_get_row(f->store, ino_row(ino), &run, &e);
		if (rc < 0)
			return not_found(rc, &e);
		rc = run.session_id ? session_by_id(f, req, run.session_id, ret) : -ENOENT;
		ret->created_us = ret->changed_us = run.created_us;
		return rc;
	}
	return session_by_row(f, req, ino_row(ino), ret);
}

/* ---- attributes ------------------------------------------------------------------------------ */

/* Whether a name that others may give away again is still the same can only be asked. */
double session_entry_time(struct fsd *f, enum ms_node_id node)
{
	if (node == MS_N_SESSION || node == MS_N_SESS_BY_ID)
		return 0;
	if (node == MS_N_SESS_RUN)
		return run_name_time(f);
	if (node == MS_N_SHOT)
		return f->epochs ? FSD_FOREVER : 1.0;
	return FSD_FOREVER;
}

static double attr_time(const struct ms_node *n)
{
	if (n->kind == MS_K_DIR)
		return 1.0;
	if (n->kind == MS_K_FILE)
		return is_final(n, NULL) ? FSD_FOREVER : 0;
	return n->view == MS_V_NONE || n->view == MS_V_RUN_LINK ? FSD_FOREVER : 0;
}

static int attr_of(struct fsd *f, fuse_req_t req, fuse_ino_t ino, const struct session_ref *s,
		   struct stat *st, double *timeout)
{
	static const mode_t types[] = { [MS_K_DIR] = S_IFDIR,
					[MS_K_FILE] = S_IFREG,
					[MS_K_LINK] = S_IFLNK,
					[MS_K_CONTROL] = S_IFREG };
	const struct ms_node *n = ms_node(ino_node(ino));
	int r = 0;

	memset(st, 0, sizeof(*st));
	st->st_ino = ino;
	st->st_mode = types[n->kind] | n->mode;
	acl_mode(f, st);
	st->st_nlink = n->kind == MS_K_DIR ? 2 : 1;
	st->st_uid = s->uid >= 0 ? (uid_t)s->uid : f->uid;
	st->st_gid = st->st_uid == f->uid ? getgid() : (gid_t)st->st_uid;
	st->st_blksize = 4096;
	node_times(st, s->created_us, s->changed_us);
	*timeout = attr_time(n);
	if (n->view == MS_V_SHOT_TAR)
		r = shot_tar_size(f, ino_row(ino), &st->st_size);
	else if (n->view != MS_V_NONE)
		r = node_size(f, req, ino, &st->st_size);
	st->st_blocks = (st->st_size + 511) / 512;
	return r;
}

int session_attr(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct stat *st, double *timeout)
{
	struct session_ref s;
	int r = session_of(f, req, ino, &s);

	if (r < 0)
		return r;
	if (ino_node(ino) == MS_N_SESS_WORK)
		return work_root_attr(f, ino, st, timeout);
	return attr_of(f, req, ino, &s, st, timeout);
}

/* ---- look-up --------------------------------------------------------------------------------- */

/* Whoever has the server's rights can reach the directory, too. */
static bool is_work_link(const struct fsd *f, const struct session_ref *s)
{
	return orch_settings(f->orch)->workspace_links && s->uid == (int64_t)f->uid;
}

enum ms_node_id session_shown(struct fsd *f, fuse_req_t req, fuse_ino_t dir, enum ms_node_id node)
{
	struct session_ref s;

	return node == MS_N_SESS_WORK && session_of(f, req, dir, &s) == 0 && is_work_link(f, &s)
		       ? MS_N_SESS_WORK_LINK
		       : node;
}

static int child_session(struct fsd *f, fuse_req_t req, const char *name, fuse_ino_t *ret)
{
	struct session_ref s;
	int64_t row;
	int r;

	if (is_kicker(f, req) && work_now_row(f, &row)) {
		*ret = ino_make(row, MS_N_SESSION);
		return 0;
	}
	r = session_by_name(f, req, name, &s);
	if (r == 0)
		*ret = ino_make(s.row, strcmp(name, s.name) == 0 ? MS_N_SESSION : MS_N_SESS_BY_ID);
	return r;
}

static int child_run(struct fsd *f, const struct session_ref *s, const char *name, fuse_ino_t *ret)
{
	store_autorun run = { 0 };
	sbx_autoerror e = SBX_ERROR_INIT;
	int rc =
		sbx_id_valid(name) ? store_run_get(f->store, name, &run, &e) : -SBX_E_RUN_NOT_FOUND;

	if (rc < 0)
		return not_found(rc, &e);
	if (!run.session_id || strcmp(run.session_id, s->id) != 0)
		return -ENOENT;
	*ret = ino_make(run.row, MS_N_SESS_RUN);
	return 0;
}

static int child_shot(struct fsd *f, const struct session_ref *s, const char *name, fuse_ino_t *ret)
{
	store_autosnapshot shot = { 0 };
	sbx_autoerror e = SBX_ERROR_INIT;
	int rc = store_snapshot_get(f->store, s->id, name, &shot, &e);

	if (rc < 0)
		return not_found(rc, &e);
	if (shot.name && strcmp(shot.name, name) != 0)
		return -ENOENT; /* a directory has one name */
	*ret = ino_make(shot.row, MS_N_SHOT);
	return 0;
}

int session_child(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name,
		  struct fuse_entry_param *ret)
{
	enum ms_node_id node = ms_node_child(ino_node(parent), name);
	struct session_ref s;
	int r;

	memset(ret, 0, sizeof(*ret));
	if (node == MS_N_NONE || node == MS_N_SESS_BY_ID || node == MS_N_SESS_WORK_LINK)
		return -ENOENT;
	ret->generation = 1;
	if (node == MS_N_SESSION) {
		r = child_session(f, req, name, &ret->ino);
	} else {
		ret->ino = ino_make(ino_row(parent), node);
		r = session_of(f, req, parent, &s);
		if (r == 0 && node == MS_N_SESS_RUN)
			r = child_run(f, &s, name, &ret->ino);
		else if (r == 0 && node == MS_N_SHOT)
			r = child_shot(f, &s, name, &ret->ino);
		else if (r == 0 && node == MS_N_SESS_WORK && is_work_link(f, &s))
			ret->ino = ino_make(s.row, MS_N_SESS_WORK_LINK);
	}
	if (r == -ENOENT && node == MS_N_SHOT)
		return coming_child(f, req, MS_N_SHOT_ERROR, s.id, name, ret);
	if (r < 0)
		return r;
	ret->entry_timeout = session_entry_time(f, ino_node(ret->ino));
	return session_attr(f, req, ret->ino, &ret->attr, &ret->attr_timeout);
}

/* ---- what its nodes say ---------------------------------------------------------------------- */

static int latest_before(struct fsd *f, const char *session_id, int64_t row,
			 struct store_snapshot *ret, struct sbx_error *e)
{
	struct store_snapshot list[16];
	int64_t after = 0;
	int n;

	do {
		n = store_snapshot_list(f->store, session_id, after, list, SBX_COUNT(list), e);
		for (int i = 0; i < n; i++) {
			after = list[i].row;
			if (list[i].row < row) {
				store_snapshot_clear(ret);
				*ret = list[i];
			} else {
				store_snapshot_clear(&list[i]);
			}
		}
	} while (n == (int)SBX_COUNT(list) && after < row);
	return n < 0 ? n : 0;
}

static int view_diff(struct fsd *f, fuse_req_t req, const struct store_snapshot *shot,
		     struct sbx_buf *out, struct sbx_error *e)
{
	store_autosnapshot before = { 0 };
	struct orch_principal p;
	int rc = latest_before(f, shot->session_id, shot->row, &before, e);

	if (rc < 0 || !before.id)
		return rc;
	who_is(f, req, &p);
	return orch_view_diff(f->orch, &p, shot->session_id, before.id, shot->id, out, e);
}

static int view_shot(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct sbx_buf *out,
		     struct sbx_error *e)
{
	store_autosnapshot shot = { 0 };
	int rc = store_snapshot_get_row(f->store, ino_row(ino), &shot, e);

	if (rc < 0)
		return rc;
	if (ino_node(ino) == MS_N_SHOT_DIFF)
		return view_diff(f, req, &shot, out, e);
	orch_view_snapshot(&shot, out);
	return 0;
}

static int view_run(struct fsd *f, fuse_ino_t ino, struct sbx_buf *out, struct sbx_error *e)
{
	store_autorun run = { 0 };
	int rc = store_run_get_row(f->store, ino_row(ino), &run, e);

	if (rc == 0)
		sbx_buf_printf(out, "../../../runs/%s", run.id);
	return rc;
}

static int view_session(struct fsd *f, fuse_ino_t ino, struct sbx_buf *out, struct sbx_error *e)
{
	store_autosession s = { 0 };
	int rc = store_session_get_row(f->store, ino_row(ino), &s, e);

	if (rc < 0)
		return rc;
	switch (ms_node(ino_node(ino))->view) {
	case MS_V_SESSION_SPEC:
		orch_view_session_spec(&s, out);
		return 0;
	case MS_V_SESSION_STATUS:
		orch_view_session(f->orch, &s, out);
		return 0;
	case MS_V_WORK_PLACE:
		sbx_buf_printf(out, "%s/sessions/%s/workspace", store_dir(f->store), s.id);
		return 0;
	default:
		sbx_buf_puts(out, s.entry ? s.entry : s.id);
		return 0;
	}
}

/* The bytes of a node whose view is of a session. The caller has looked whether it may be seen. */
int session_render(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct sbx_buf *out)
{
	enum ms_node_id node = ino_node(ino);
	sbx_autoerror e = SBX_ERROR_INIT;
	int rc;

	if (of_shot(node))
		rc = view_shot(f, req, ino, out, &e);
	else if (node == MS_N_SESS_RUN)
		rc = view_run(f, ino, out, &e);
	else
		rc = view_session(f, ino, out, &e);
	if (rc < 0)
		return not_found(rc, &e);
	return sbx_buf_failed(out) ? -ENOMEM : 0;
}
