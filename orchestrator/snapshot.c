/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots of a workspace: taken, dropped, restored, copied into a new session. Each holds the
 * session's lock alone and looks for runs under it: since a run is let in under the same lock, none
 * comes meanwhile.
 */
#include "orchestrator/session_i.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crash.h"
#include "base/fs.h"
#include "base/id.h"
#include "base/log.h"

/* ---- the workspace, for us alone ------------------------------------------------------------- */

/* A session whose workspace nobody else uses. */
struct held {
	struct store_session s;
	int lock, dir, tree; /* owned: the session's directory, and its workspace for reading */
};

static void held_clear(struct held *h)
{
	store_session_clear(&h->s);
	sbx_closep(&h->tree);
	sbx_closep(&h->dir);
	sbx_closep(&h->lock);
}
#define AUTO_HELD __attribute__((cleanup(held_clear))) struct held

static int open_tree_of(struct held *h, struct sbx_error *e)
{
	h->tree = store_session_workspace(h->dir);
	return h->tree < 0 ? sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, -h->tree,
					    "cannot open the workspace of session %s", h->s.id)
			   : 0;
}

static int hold(struct orch *o, const struct orch_principal *p, const char *id, struct held *h,
		struct sbx_error *e)
{
	int64_t live = 0;
	int rc = session_usable(o, p, id, &h->s, e);

	if (rc < 0)
		return rc;
	h->lock = session_lock(o, id, true, SESSION_LOCK_MS, e);
	if (h->lock < 0)
		return h->lock;
	rc = store_session_runs(o->store, id, false, &live, e);
	if (rc < 0)
		return rc;
	if (live)
		return session_has_runs(id, live, e);
	h->dir = store_session_dir(o->store, id, false, e);
	return h->dir < 0 ? h->dir : open_tree_of(h, e);
}

int session_files_changed(struct orch *o, const struct store_session *s, struct sbx_error *e)
{
	store_autotx struct store_tx *tx = NULL;
	int rc = store_begin(o->store, &tx, e);

	if (rc == 0)
		rc = store_tx_change(tx, "session", s->row, s->id, "files", "", s->user, e);
	return rc < 0 ? rc : store_commit(sbx_steal(&tx), false, e);
}

/* ---- taking and dropping --------------------------------------------------------------------- */

/* The newest one: most of what it holds is still as it was. */
static int newest(struct orch *o, const char *session_id, char ret[37], struct sbx_error *e)
{
	struct store_snapshot list[16];
	int64_t after = 0;
	int n;

	ret[0] = '\0';
	do {
		n = store_snapshot_list(o->store, session_id, after, list, SBX_COUNT(list), e);
		for (int i = 0; i < n; i++) {
			after = list[i].row;
			(void)snprintf(ret, 37, "%s", list[i].id);
			store_snapshot_clear(&list[i]);
		}
	} while (n == (int)SBX_COUNT(list));
	return n < 0 ? n : 0;
}

static int insert(struct orch *o, struct store_snapshot *s, struct sbx_error *e)
{
	store_autotx struct store_tx *tx = NULL;
	bool taken = false;
	int rc = store_begin(o->store, &tx, e);

	if (rc == 0)
		rc = store_tx_snapshot_insert(tx, s, &taken, e);
	if (rc == 0 && taken)
		return sbx_fail(e, SBX_E_ENTRY_EXISTS, "there is a snapshot '%.120s' already",
				s->name);
	return rc < 0 ? rc : store_commit(sbx_steal(&tx), true, e);
}

static int drop(struct orch *o, const char *id, bool *ret_done, struct sbx_error *e)
{
	store_autotx struct store_tx *tx = NULL;
	int rc = store_begin(o->store, &tx, e);

	if (rc == 0)
		rc = store_tx_snapshot_drop(tx, id, ret_done, e);
	if (rc == 0)
		rc = store_commit(sbx_steal(&tx), true, e);
	crash_point("door_snapshot_row_gone");
	if (rc < 0 || !*ret_done)
		return rc;
	snap_drop(o->store, id);
	atomic_store(&o->garbage, true);
	session_keeper_poke(o);
	return 0;
}

/* The oldest go until the rest is within the limits; the newest stays, it was known to fit. */
static int evict(struct orch *o, const char *session_id, struct sbx_error *e)
{
	const struct orch_settings *st = orch_settings(o);
	int rc = 0;

	for (;;) {
		store_autotx struct store_tx *tx = NULL;
		store_autosnapshot oldest = { 0 };
		int64_t n = 0, bytes = 0;
		bool done;

		rc = store_begin(o->store, &tx, e);
		if (rc == 0)
			rc = store_tx_snapshot_totals(tx, session_id, &n, &bytes, e);
		store_rollback(sbx_steal(&tx));
		if (rc < 0 || n <= 1 ||
		    (n <= st->snapshot_max_count && bytes <= st->snapshot_max_size_mb << 20))
			return rc;
		rc = store_snapshot_list(o->store, session_id, 0, &oldest, 1, e);
		if (rc > 0)
			rc = drop(o, oldest.id, &done, e);
		if (rc < 0)
			return rc;
	}
}

int snapshot_name_check(const char *name, struct sbx_error *e)
{
	/* "workspace" is what a difference calls the workspace itself. */
	if (!name || (session_entry_fits(name) && strcmp(name, "workspace") != 0))
		return 0;
	return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "'%.120s' cannot be the name of a snapshot",
			name);
}

int snapshot_keep(struct orch *o, const char *session_id, const char *name, int tree,
		  const char *previous, struct store_snapshot *ret, struct sbx_error *e)
{
	const struct snap_limits limits = { .bytes = orch_settings(o)->snapshot_max_size_mb << 20 };
	store_autosnapshot s = { 0 };
	/* Until the row is there, the collection of garbage must not take what we write now. */
	sbx_autoclose int objects = snap_hold(o->store);
	char id[SBX_ID_LEN + 1];
	struct snap_sums sums = { 0 };
	int rc;

	if (objects < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, -objects,
				      "cannot lock the objects of snapshots");
	rc = orch_session_settle(o, session_id, e); /* it lasts no longer than its session */
	if (rc < 0)
		return rc;
	sbx_id_new(id);
	rc = snap_take(o->store, tree, id, previous, &limits, &sums, e);
	crash_point("door_snapshot_taken");
	if (rc < 0)
		return rc;
	s = (struct store_snapshot){
		.id = strdup(id),
		.name = name ? strdup(name) : NULL,
		.session_id = strdup(session_id),
		.created_us = sbx_now_us(),
		.bytes = sums.bytes,
		.files = sums.entries,
		.digest = strdup(sums.digest),
	};
	rc = s.id && s.session_id && s.digest && (s.name || !name)
		     ? insert(o, &s, e)
		     : sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a snapshot");
	crash_point("door_snapshot_inserted");
	if (rc < 0) {
		snap_drop(o->store, id);
		return rc;
	}
	sbx_closep(&objects);
	/* It stands, whatever becomes of the old ones. */
	(void)evict(o, session_id, NULL);
	*ret = s;
	s = (struct store_snapshot){ 0 };
	return 0;
}

int orch_snapshot_take(struct orch *o, const struct orch_principal *p, const char *session_id,
		       const char *name, struct store_snapshot *ret, struct sbx_error *e)
{
	AUTO_HELD h = { .lock = -1, .dir = -1, .tree = -1 };
	char previous[37] = "";
	int rc = snapshot_name_check(name, e);

	if (rc == 0)
		rc = hold(o, p, session_id, &h, e);
	if (rc == 0)
		rc = newest(o, session_id, previous, e);
	return rc < 0 ? rc
		      : snapshot_keep(o, session_id, name, h.tree, previous[0] ? previous : NULL,
				      ret, e);
}

int orch_snapshot_drop(struct orch *o, const struct orch_principal *p, const char *session_id,
		       const char *snapshot_id, bool *ret_done, struct sbx_error *e)
{
	store_autosnapshot s = { 0 };
	store_autosession session = { 0 };
	int rc = session_usable(o, p, session_id, &session, e);

	*ret_done = false;
	if (rc == 0)
		rc = store_snapshot_get(o->store, session_id, snapshot_id, &s, e);
	if (rc == -SBX_E_SNAPSHOT_NOT_FOUND) {
		sbx_error_clear(e);
		return 0;
	}
	return rc < 0 ? rc : drop(o, s.id, ret_done, e);
}

static bool is_known(void *ctx, const char *id)
{
	struct orch *o = ctx;
	bool known = true;

	/* Not knowing, the safe answer is yes. */
	if (store_snapshot_known(o->store, id, &known, NULL) < 0)
		known = true;
	return known;
}

int snapshot_collect(struct orch *o, struct sbx_error *e)
{
	int64_t bytes = 0;
	int rc = snap_collect(o->store, is_known, o, &bytes, e);

	if (rc == 0 && bytes < 0)
		return 1;
	if (rc == 0 && bytes)
		sbx_log(SBX_LOG_INFO, "content of dropped snapshots removed bytes=%lld",
			(long long)bytes);
	return rc;
}

/* ---- a new tree beside the old --------------------------------------------------------------- */

/* An empty directory beside the workspace that belongs to the session's user. */
static int make_sibling(const struct held *h, const char *name, struct sbx_error *e)
{
	uid_t uid = session_owner(&h->s);
	int fd;

	if (mkdirat(h->dir, name, 0700) < 0)
		return sbx_fail_errno(
			e, errno == ENOSPC ? SBX_E_STORAGE_FULL : SBX_E_STORE_UNAVAILABLE, errno,
			"cannot make a directory beside the workspace");
	fd = sbx_open_beneath(h->dir, name, O_RDONLY | O_DIRECTORY, 0);
	if (fd >= 0 && uid != (uid_t)-1 && fchown(fd, uid, uid) < 0)
		sbx_closep(&fd);
	return fd < 0 ? sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno,
				       "cannot make a directory beside the workspace")
		      : fd;
}

/* From one moment to the next the workspace is the other tree; a crash leaves one of the two. */
static int swap_in(struct orch *o, struct held *h, const char *name, struct sbx_error *e)
{
	if (fsync(h->dir) < 0 || renameat2(h->dir, name, h->dir, "workspace", RENAME_EXCHANGE) < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno,
				      "cannot exchange the workspace");
	crash_point("door_restore_exchanged");
	if (fsync(h->dir) < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno,
				      "the exchanged workspace is not safe on the disk");
	return session_files_changed(o, &h->s, e);
}

int orch_snapshot_restore(struct orch *o, const struct orch_principal *p, const char *session_id,
			  const char *snapshot_id, struct sbx_error *e)
{
	AUTO_HELD h = { .lock = -1, .dir = -1, .tree = -1 };
	store_autosnapshot s = { 0 };
	sbx_autoclose int tree = -1, objects = -1;
	char name[48];
	uint32_t random;
	uid_t uid;
	int rc = hold(o, p, session_id, &h, e);

	/* Should it be dropped meanwhile, its content stays until we have it. */
	objects = rc < 0 ? -1 : snap_hold(o->store);
	if (rc == 0 && objects < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, -objects,
				      "cannot lock the objects of snapshots");
	if (rc == 0)
		rc = store_snapshot_get(o->store, session_id, snapshot_id, &s, e);
	if (rc < 0)
		return rc;
	if (s.bytes > orch_workspace_cap(o, &h.s))
		return sbx_fail(e, SBX_E_WORKSPACE_CAP,
				"the snapshot has %lld bytes, the workspace may have %lld",
				(long long)s.bytes, (long long)orch_workspace_cap(o, &h.s));
	sbx_random(&random, sizeof(random));
	(void)snprintf(name, sizeof(name), "restore-%08x", random);
	tree = make_sibling(&h, name, e);
	if (tree < 0)
		return tree;
	crash_point("door_restore_made");
	uid = session_owner(&h.s);
	rc = snap_make(o->store, s.id, tree, uid, uid, e);
	crash_point("door_restore_filled");
	if (rc == 0) /* so is its clone, which may be all that is left of what was here */
		rc = session_settle_all(o, e);
	if (rc == 0)
		rc = orch_session_settle(o, session_id, e);
	if (rc == 0)
		rc = swap_in(o, &h, name, e);
	/* What is called so now is the old workspace, or what was made in vain. */
	(void)sbx_remove_tree(h.dir, name);
	crash_point("door_restore_done");
	return rc;
}

/* ---- a copy ---------------------------------------------------------------------------------- */

static char *copy_text(const char *text)
{
	return text ? strdup(text) : NULL;
}

static int copy_session(struct orch *o, const struct store_session *from, const char *name,
			struct store_session *ret, struct sbx_error *e)
{
	char id[SBX_ID_LEN + 1];

	sbx_id_new(id);
	*ret = (struct store_session){
		.id = strdup(id),
		.user = strdup(from->user),
		.uid = from->uid,
		.door = copy_text(from->door),
		.name = copy_text(name),
		.spec = strdup(from->spec),
		.runtime = copy_text(from->runtime),
		.policy_hash = copy_text(orch_config(o)->policy_hash),
		.cloned_from = strdup(from->id),
		.unsynced_boot = strdup(sbx_boot_id()),
		.created_us = sbx_now_us(),
		.expires_us = session_expiry(o),
		.concurrent = from->concurrent,
	};
	return ret->id && ret->user && ret->spec && ret->cloned_from && ret->unsynced_boot
		       ? 0
		       : sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a session");
}

/* The new session's directory with a copy of the workspace in it. */
static int copy_workspace(struct orch *o, const struct held *h, const struct store_session *to,
			  struct sbx_error *e)
{
	const struct snap_limits limits = { .bytes = orch_workspace_cap(o, to) };
	sbx_autoclose int dir = store_session_dir(o->store, to->id, true, e);
	sbx_autoclose int tree = -1;
	struct snap_sums sums = { 0 };
	uid_t uid = session_owner(to);

	if (dir < 0)
		return dir;
	tree = store_session_workspace(dir);
	if (tree < 0 || (uid != (uid_t)-1 && fchown(tree, uid, uid) < 0))
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, tree < 0 ? -tree : errno,
				      "cannot open the new workspace");
	return snap_copy(h->tree, tree, uid, uid, &limits, &sums, e);
}

int orch_session_clone(struct orch *o, const struct orch_principal *p, const char *session_id,
		       const char *name, struct orch_session_made *ret, struct sbx_error *e)
{
	AUTO_HELD h = { .lock = -1, .dir = -1, .tree = -1 };
	store_autosession to = { 0 };
	sbx_autoclose int lock = -1;
	int rc;

	memset(ret, 0, sizeof(*ret));
	if (name && strlen(name) > MS_NAME_MAX)
		return sbx_fail(e, SBX_E_INVALID_SPEC,
				"new_session_name: found %zu bytes, allowed %d", strlen(name),
				MS_NAME_MAX);
	rc = hold(o, p, session_id, &h, e);
	if (rc == 0)
		rc = copy_session(o, &h.s, name, &to, e);
	if (rc < 0)
		return rc;
	/* Until it has a row the janitor would take its directory for a leftover. */
	lock = store_session_lock(o->store, to.id, false, 0);
	if (lock < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, -lock,
				      "cannot lock the workspace of a new session");
	rc = copy_workspace(o, &h, &to, e);
	crash_point("door_clone_copied");
	if (rc < 0)
		(void)store_session_dir_remove(o->store, to.id, NULL);
	else
		rc = session_put(o, &to, NULL, true, NULL, e);
	session_keeper_poke(o); /* it goes to the disk, or to the trash */
	if (rc < 0)
		return rc;
	(void)snprintf(ret->id, sizeof(ret->id), "%s", to.id);
	ret->row = to.row;
	return 0;
}

/* ---- what they show -------------------------------------------------------------------------- */

static void object(const struct store_snapshot *s, struct sbx_buf *out)
{
	char when[SBX_TIME_TEXT];

	sbx_buf_printf(out, "{\"snapshot_id\":\"%s\",\"session_id\":\"%s\",\"name\":", s->id,
		       s->session_id);
	sbx_buf_json_strz(out, s->name);
	sbx_buf_printf(out,
		       ",\"created_at\":\"%s\",\"size_bytes\":%lld,\"file_count\":%lld,"
		       "\"digest\":\"%s\"}",
		       sbx_time_format(s->created_us, when), (long long)s->bytes,
		       (long long)s->files, s->digest);
}

void orch_view_snapshot(const struct store_snapshot *s, struct sbx_buf *out)
{
	object(s, out);
	sbx_buf_puts(out, "\n");
}

int orch_view_snapshots(struct orch *o, const struct orch_principal *p, const char *session_id,
			struct sbx_buf *out, struct sbx_error *e)
{
	int64_t most = orch_settings(o)->snapshot_max_count + 1;
	sbx_autofree struct store_snapshot *list = calloc((size_t)most, sizeof(*list));
	store_autosession s = { 0 };
	sbx_autoclose int lock = -1;
	int n, rc = session_usable(o, p, session_id, &s, e);

	if (rc < 0)
		return rc;
	if (!list)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a list");
	/* One that is being taken is in the list or not, but is not about to be. */
	lock = session_lock(o, session_id, false, SESSION_LOCK_MS, e);
	if (lock < 0)
		return lock;
	n = store_snapshot_list(o->store, session_id, 0, list, (size_t)most, e);
	sbx_buf_puts(out, "{\"items\":[");
	for (int i = n; i-- > 0;) {
		object(&list[i], out);
		sbx_buf_puts(out, i ? "," : "");
		store_snapshot_clear(&list[i]);
	}
	sbx_buf_puts(out, "]}\n");
	return orch_view_done(n < 0 ? n : 0, out, e);
}

/* ---- what changed ---------------------------------------------------------------------------- */

static bool diff_line(void *ctx, const char *path, enum snap_change what, int64_t size_a,
		      int64_t size_b)
{
	static const char *const words[] = { [SNAP_ADDED] = "added",
					     [SNAP_REMOVED] = "removed",
					     [SNAP_CONTENT] = "content",
					     [SNAP_ATTRIBUTES] = "attributes",
					     [SNAP_TYPE] = "type" };
	struct sbx_buf *out = ctx;

	sbx_buf_puts(out, "{\"path\":");
	sbx_buf_json_strz(out, path);
	sbx_buf_printf(out, ",\"change\":\"%s\",\"size_before\":%lld,\"size_after\":%lld}\n",
		       words[what], (long long)size_a, (long long)size_b);
	return !sbx_buf_failed(out);
}

static int open_side(struct orch *o, const char *session_id, const char *which, struct snap **ret,
		     struct sbx_error *e)
{
	store_autosnapshot s = { 0 };
	sbx_autoclose int dir = -1, tree = -1;
	char previous[37];
	int rc;

	if (strcmp(which, "workspace") != 0) {
		rc = store_snapshot_get(o->store, session_id, which, &s, e);
		return rc < 0 ? rc : snap_open(o->store, s.id, ret, e);
	}
	rc = newest(o, session_id, previous, e);
	if (rc < 0)
		return rc;
	dir = store_session_dir(o->store, session_id, false, e);
	if (dir < 0)
		return dir;
	tree = store_session_workspace(dir);
	if (tree < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, -tree,
				      "cannot open the workspace of session %s", session_id);
	return snap_of_tree(o->store, tree, previous[0] ? previous : NULL, ret, e);
}

int orch_view_diff(struct orch *o, const struct orch_principal *p, const char *session_id,
		   const char *from, const char *to, struct sbx_buf *out, struct sbx_error *e)
{
	struct snap *a = NULL, *b = NULL;
	store_autosession s = { 0 };
	int rc = session_usable(o, p, session_id, &s, e);

	if (rc == 0)
		rc = open_side(o, session_id, from, &a, e);
	if (rc == 0)
		rc = open_side(o, session_id, to, &b, e);
	if (rc == 0)
		rc = snap_diff(a, b, diff_line, out, e);
	snap_close(a);
	snap_close(b);
	return orch_view_done(rc, out, e);
}
