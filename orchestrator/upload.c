/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An upload into a session: the session, its locks and the directory for staging. What is done with
 * the bytes is in intake.c.
 */
#include "orchestrator/upload.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>

#include "base/clock.h"
#include "base/fs.h"
#include "orchestrator/intake.h"
#include "orchestrator/session_i.h"
#include "orchestrator/stage_i.h"
#include "store/snap.h"

struct upload {
	struct orch *o; /* borrowed */
	struct store_session s;
	char user[64];
	const char *door;
	int lock; /* of the workspace's shape */
	int dir;  /* of the session */
	int work; /* the workspace */
	struct stage stage;
	struct intake *in; /* owns */
};

/* ---- life ------------------------------------------------------------------------------------ */

/* What the workspace has now: runs write to it, and other uploads. */
static int measure(void *ctx, int64_t *ret, struct sbx_error *e)
{
	const struct upload *u = ctx;
	struct snap_sums sums = { 0 };
	int rc = snap_measure(u->work, &sums, e);

	*ret = sums.bytes;
	return rc;
}

static int prepare(struct upload *u, struct sbx_error *e)
{
	uid_t uid = u->s.uid >= 0 && (uid_t)u->s.uid != geteuid() ? (uid_t)u->s.uid : (uid_t)-1;
	struct intake_options opts = { .cap = orch_workspace_cap(u->o, &u->s),
				       .uid = uid,
				       .gid = uid,
				       .measure = measure,
				       .ctx = u };
	int rc;

	u->dir = store_session_dir(orch_store(u->o), u->s.id, false, e);
	if (u->dir < 0)
		return u->dir;
	u->work = sbx_open_beneath(u->dir, "workspace", O_RDONLY | O_DIRECTORY, 0);
	if (u->work < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, -u->work,
				      "cannot open the workspace of session %s", u->s.id);
	rc = measure(u, &opts.used, e);
	if (rc == 0)
		rc = stage_make(u->dir, &u->stage, e);
	opts.stage = u->stage.fd;
	opts.target = u->work;
	return rc < 0 ? rc : intake_new(&opts, &u->in, e);
}

int upload_begin(struct orch *o, const struct orch_principal *p, const char *session_id,
		 struct upload **ret, struct sbx_error *e)
{
	SBX_AUTO(upload_freep) struct upload *u = calloc(1, sizeof(*u));
	int rc;

	if (!u)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	u->o = o;
	u->door = p->door;
	u->lock = u->dir = u->work = u->stage.fd = -1;
	(void)snprintf(u->user, sizeof(u->user), "%s", p->user);
	rc = session_usable(o, p, session_id, &u->s, e);
	if (rc < 0)
		return rc;
	u->lock = session_lock(o, u->s.id, false, SESSION_LOCK_MS, e);
	rc = u->lock < 0 ? u->lock : prepare(u, e);
	if (rc < 0)
		return rc;
	*ret = sbx_steal(&u);
	return 0;
}

struct upload *upload_free(struct upload *u)
{
	if (!u)
		return NULL;
	u->in = intake_free(u->in);
	stage_end(u->dir, &u->stage);
	sbx_closep(&u->work);
	sbx_closep(&u->dir);
	sbx_closep(&u->lock);
	store_session_clear(&u->s);
	free(u);
	return NULL;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Readers of the session learn that its files are others, also when only some have come in. */
static int announce(struct upload *u, bool ok, struct sbx_error *e)
{
	store_autotx struct store_tx *tx = NULL;
	char details[96];
	const struct store_audit a = { .at_us = sbx_now_us(),
				       .user = u->user,
				       .door = u->door,
				       .action = "session",
				       .resource = u->s.id,
				       .result = ok ? "uploaded" : "upload_failed",
				       .details = details };
	int rc = store_begin(orch_store(u->o), &tx, e);

	(void)snprintf(details, sizeof(details), "{\"bytes_received\":%lld,\"file_count\":%lld}",
		       (long long)intake_bytes(u->in), (long long)intake_files(u->in));
	if (rc == 0)
		rc = store_tx_change(tx, "session", u->s.row, u->s.id, "files", "", u->s.user, e);
	if (rc == 0)
		rc = store_tx_audit(tx, &a, e);
	if (rc == 0)
		rc = store_tx_counter_add(tx, ORCH_COUNT_UPLOAD_BYTES, intake_bytes(u->in), e);
	if (rc == 0)
		rc = store_tx_counter_add(tx, ORCH_COUNT_UPLOAD_FILES, intake_files(u->in), e);
	return rc < 0 ? rc : store_commit(sbx_steal(&tx), false, e);
}

int upload_commit(struct upload *u, struct sbx_error *e)
{
	int rc;

	/* One after the other, so that the cap holds for all of them together. */
	while (flock(u->dir, LOCK_EX) < 0)
		if (errno != EINTR)
			return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno,
					      "cannot lock the workspace of session %s", u->s.id);
	rc = intake_commit(u->in, e);
	(void)flock(u->dir, LOCK_UN);
	if (rc == 0)
		rc = orch_session_settle(u->o, u->s.id, e);
	if (rc == 0)
		rc = announce(u, true, e);
	else if (intake_files(u->in) > 0)
		(void)announce(u, false, NULL);
	return rc;
}

int upload_file(struct upload *u, const char *name, struct sbx_error *e)
{
	return intake_file(u->in, name, e);
}

int upload_data(struct upload *u, const void *data, size_t len, struct sbx_error *e)
{
	return intake_data(u->in, data, len, e);
}

void upload_view(const struct upload *u, struct sbx_buf *out)
{
	sbx_buf_puts(out, "{\"session_id\":");
	sbx_buf_json_strz(out, u->s.id);
	sbx_buf_puts(out, ",");
	intake_view(u->in, out);
	sbx_buf_puts(out, "}");
}
