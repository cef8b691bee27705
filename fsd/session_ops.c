/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions and snapshots are made with mkdir and go with rmdir, and a session obeys its ctl. All of
 * these write to the store and some read a whole workspace, so writers do them.
 */
#include "fsd/fsd_i.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static void answer_entry(struct fsd *f, struct job *j, int r)
{
	struct fuse_entry_param e;

	if (r == 0)
		r = session_child(f, j->req, j->parent, j->name, &e);
	if (r < 0)
		fuse_reply_err(j->req, -r);
	else
		fuse_reply_entry(j->req, &e);
}

static void answer_err(struct fsd *f, struct job *j, int r)
{
	(void)f;
	fuse_reply_err(j->req, -r);
}

int session_settle(struct fsd *f, struct job *j)
{
	sbx_autoerror e = SBX_ERROR_INIT;

	return orch_session_settle(f->orch, j->id, &e) < 0 ? -fsd_errno(&e) : 0;
}

void session_fsync(struct fsd *f, fuse_req_t req, fuse_ino_t ino)
{
	struct job j = { .req = req, .perform = session_settle, .answer = answer_err };
	struct session_ref s;
	int r = session_of(f, req, ino, &s);

	/* What is open may be of a session that is no more: nothing of that has to last. */
	if (r < 0) {
		fuse_reply_err(req, r == -ENOENT ? 0 : -r);
		return;
	}
	memcpy(j.id, s.id, sizeof(j.id));
	writers_give_job(f->writers, &j);
}

static int make_session(struct fsd *f, struct job *j)
{
	const struct orch_request rq = { .text = "{}", .len = 2, .default_image = true };
	sbx_autoerror e = SBX_ERROR_INIT;
	struct orch_session_made made;
	int rc = orch_session_create(f->orch, &j->who, &rq, j->name, &made, &e);

	return rc < 0 ? -fsd_errno(&e) : 0;
}

static int take_shot(struct fsd *f, struct job *j)
{
	store_autosnapshot shot = { 0 };
	sbx_autoerror e = SBX_ERROR_INIT;
	int rc = orch_snapshot_take(f->orch, &j->who, j->id, j->name, &shot, &e);

	return rc < 0 ? -fsd_errno(&e) : 0;
}

/*
 * The directory above is locked in the kernel until this is answered, for everybody: nobody could
 * look up or list sessions while the runs of one end. So it is not waited for; the name is gone.
 */
static int end_session(struct fsd *f, struct job *j)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	enum orch_ending ending;
	int rc = orch_session_destroy(f->orch, &j->who, j->id, &ending, &e);

	return rc < 0 ? -fsd_errno(&e) : 0;
}

static int drop_shot(struct fsd *f, struct job *j)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	bool done = false;
	int rc = orch_snapshot_drop(f->orch, &j->who, j->id, j->name, &done, &e);

	return rc < 0 ? -fsd_errno(&e) : done ? 0 : -ENOENT;
}

static void begin(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name, bool make)
{
	struct job j = { .req = req, .parent = parent };
	struct session_ref s = { 0 };
	int r = 0;

	who_is(f, req, &j.who);
	(void)snprintf(j.name, sizeof(j.name), "%s", name);
	if (ino_node(parent) == MS_N_SESS_SHOTS)
		r = session_of(f, req, parent, &s);
	else if (!make)
		r = session_by_name(f, req, name, &s);
	if (r == 0 && !make && ino_node(parent) == MS_N_SESSIONS && strcmp(name, s.name) != 0)
		r = -ENOTDIR; /* the link of its id */
	memcpy(j.id, s.id, sizeof(j.id));
	j.answer = make ? answer_entry : answer_err;
	if (ino_node(parent) == MS_N_SESSIONS)
		j.perform = make ? make_session : end_session;
	else
		j.perform = make ? take_shot : drop_shot;
	if (r < 0)
		fuse_reply_err(req, -r);
	else
		writers_give_job(f->writers, &j);
}

bool session_makes(fuse_ino_t parent)
{
	return parent == ino_make(0, MS_N_SESSIONS) ||
	       (!(parent & (INO_REAL | INO_WORK | INO_SHOT)) &&
		ino_node(parent) == MS_N_SESS_SHOTS);
}

void session_mkdir(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name)
{
	begin(f, req, parent, name, true);
}

void session_rmdir(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name)
{
	begin(f, req, parent, name, false);
}

/* ---- ctl ------------------------------------------------------------------------------------- */

static int extend(struct orch *o, const struct orch_principal *p, const char *id, const char *arg,
		  struct sbx_error *e)
{
	char *end;
	long long seconds = strtoll(arg, &end, 10);

	if (end == arg || *end)
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "'%.64s' is not a number of seconds",
				arg);
	return orch_session_extend(o, p, id, seconds, e);
}

static int snapshot(struct orch *o, const struct orch_principal *p, const char *id, const char *arg,
		    struct sbx_error *e)
{
	store_autosnapshot shot = { 0 };

	return orch_snapshot_take(o, p, id, *arg ? arg : NULL, &shot, e);
}

static int copy(struct orch *o, const struct orch_principal *p, const char *id, const char *arg,
		struct sbx_error *e)
{
	struct orch_session_made made;

	return orch_session_clone(o, p, id, arg, &made, e);
}

static int destroy(struct orch *o, const struct orch_principal *p, const char *id, const char *arg,
		   struct sbx_error *e)
{
	enum orch_ending ending;

	(void)arg;
	return orch_session_destroy(o, p, id, &ending, e);
}

static const struct {
	const char *word;
	bool needs, takes; /* an argument */
	int (*act)(struct orch *o, const struct orch_principal *p, const char *id, const char *arg,
		   struct sbx_error *e);
} commands[] = {
	{ "extend", true, true, extend },
	{ "snapshot", false, true, snapshot },
	{ "restore", true, true, orch_snapshot_restore },
	{ "clone", true, true, copy },
	{ "destroy", false, false, destroy },
};

int session_ctl(struct fsd *f, const struct orch_principal *p, const char *id, const char *text,
		size_t len, struct sbx_error *e)
{
	char line[SESSION_NAME + 16], *arg;
	int rc;

	while (len && (text[len - 1] == '\n' || text[len - 1] == ' '))
		len--;
	if (len >= sizeof(line) || memchr(text, '\0', len))
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "the command is not understood");
	memcpy(line, text, len);
	line[len] = '\0';
	arg = line + strcspn(line, " ");
	if (*arg)
		*arg++ = '\0';
	for (size_t i = 0; i < SBX_COUNT(commands); i++) {
		if (strcmp(commands[i].word, line) != 0)
			continue;
		if ((commands[i].needs && !*arg) || (!commands[i].takes && *arg))
			return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "%s takes %s argument", line,
					commands[i].needs ? "an" : "no");
		rc = commands[i].act(f->orch, p, id, arg, e);
		/* The feed will say so, but whoever hears from us that it is done looks at once. */
		if (rc == 0 && commands[i].act == orch_snapshot_restore)
			work_changed(f, id);
		return rc;
	}
	return sbx_fail(
		e, SBX_E_INVALID_ARGUMENT,
		"the command is extend SEC, snapshot [NAME], restore SNAPSHOT, clone NAME or "
		"destroy");
}
