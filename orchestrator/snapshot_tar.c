/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots as files: given away, and taken in. What comes in is unpacked by a process of its own
 * beside the workspace, and then kept as if it had been one; the workspace is not touched.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fs.h"
#include "orchestrator/helper_i.h"
#include "orchestrator/session_i.h"
#include "orchestrator/stage_i.h"
#include "store/snap.h"

int orch_snapshot_tar(struct orch *o, const struct orch_principal *p, const char *session_id,
		      const char *snapshot_id, struct store_snapshot *ret,
		      struct snap_tar **ret_tar, struct sbx_error *e)
{
	store_autosession session = { 0 };
	store_autosnapshot s = { 0 };
	int rc = session_usable(o, p, session_id, &session, e);

	if (rc == 0)
		rc = store_snapshot_get(o->store, session_id, snapshot_id, &s, e);
	if (rc == 0)
		rc = snap_tar_open(o->store, s.id, ret_tar, e);
	if (rc < 0)
		return rc;
	*ret = s;
	s = (struct store_snapshot){ 0 };
	return 0;
}

/* A tar has a block for each name, so that it may be larger than what is in it. */
int64_t orch_snapshot_file_max(struct orch *o)
{
	return 2 * (orch_settings(o)->snapshot_max_size_mb << 20) + (16 << 20);
}

int orch_snapshot_stage(struct orch *o, const struct orch_principal *p, const char *session_id,
			const char *name, struct sbx_error *e)
{
	store_autosession s = { 0 };
	sbx_autoclose int dir = -1;
	int fd, rc = snapshot_name_check(name, e);

	if (rc == 0)
		rc = session_usable(o, p, session_id, &s, e);
	if (rc < 0)
		return rc;
	dir = store_session_dir(o->store, session_id, false, e);
	if (dir < 0)
		return dir;
	fd = openat(dir, ".", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
	return fd >= 0 ? fd
		       : sbx_fail_errno(
				 e, errno == ENOSPC ? SBX_E_STORAGE_FULL : SBX_E_STORE_UNAVAILABLE,
				 errno, "cannot stage a snapshot");
}

/* Everything about one import that must be let go. */
struct taking {
	struct store_session s;
	int lock, dir, tree;
	struct stage stage;
};

static void taking_clear(struct taking *t)
{
	sbx_closep(&t->tree);
	stage_end(t->dir, &t->stage);
	sbx_closep(&t->dir);
	sbx_closep(&t->lock);
	store_session_clear(&t->s);
}

/* An empty directory with the permissions that the workspace has: an archive does not tell them. */
static int make_tree(struct taking *t, struct sbx_error *e)
{
	struct stat st;
	int rc = stage_make(t->dir, &t->stage, e);

	if (rc < 0)
		return rc;
	if (fstatat(t->dir, "workspace", &st, AT_SYMLINK_NOFOLLOW) < 0 ||
	    mkdirat(t->stage.fd, "tree", 0700) < 0 ||
	    (t->tree = openat(t->stage.fd, "tree", O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0 ||
	    fchmod(t->tree, st.st_mode & 0777) < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno,
				      "cannot make a directory beside the workspace");
	return 0;
}

static int unpack(struct orch *o, const struct taking *t, int fd, struct sbx_error *e)
{
	sbx_autobuf answer = SBX_BUF_INIT(64 << 10);
	char bytes[24];

	(void)snprintf(bytes, sizeof(bytes), "%lld",
		       (long long)orch_settings(o)->snapshot_max_size_mb << 20);
	return helper_run(o, (const char *const[]){ "--unpack-tree", bytes, NULL }, fd, t->tree,
			  &answer, e);
}

int orch_snapshot_import(struct orch *o, const struct orch_principal *p, const char *session_id,
			 const char *name, int fd, struct store_snapshot *ret, struct sbx_error *e)
{
	__attribute__((cleanup(taking_clear))) struct taking t = {
		.lock = -1, .dir = -1, .tree = -1, .stage = { .fd = -1 }
	};
	int rc = snapshot_name_check(name, e);

	if (rc == 0)
		rc = session_usable(o, p, session_id, &t.s, e);
	if (rc < 0)
		return rc;
	/* Shared: what runs do in the workspace is nothing to us. */
	t.lock = session_lock(o, session_id, false, SESSION_LOCK_MS, e);
	if (t.lock < 0)
		return t.lock;
	t.dir = store_session_dir(o->store, session_id, false, e);
	rc = t.dir < 0 ? t.dir : make_tree(&t, e);
	if (rc == 0)
		rc = unpack(o, &t, fd, e);
	return rc < 0 ? rc : snapshot_keep(o, session_id, name, t.tree, NULL, ret, e);
}
