/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes that act on what is written. A document for runs/new is complete when its JSON object is:
 * it is followed as it arrives and acts in the write that holds its last brace, so that even the
 * shell's echo sees the error. A script has no visible end: it acts at the first flush after its
 * bytes, or at a read on the same descriptor. Offsets mean nothing here: the descriptors cannot
 * seek.
 */
#include "fsd/fsd_i.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/crash.h"
#include "base/json.h"
#include "mountspec/mountspec.h"

enum { LOCK_SOON_MS = 10 };

struct control_handle {
	struct handle h;
	enum ms_verb verb;
	enum ms_view view;
	struct orch_principal who;
	pthread_mutex_t lock; /* dup'ed descriptors may write at once */
	atomic_bool writing;  /* whoever holds the lock may be waiting for the store */
	struct sbx_buf doc;   /* what has arrived of the present document */
	struct sbx_json_scan scan;
	size_t scanned;
	bool script;
	/* A write(2) that the kernel splits reports an error in a later part as a short count, and
	 * the client sends that part again: it gets the same answer. */
	struct {
		int err; /* 0: none */
		off_t off;
		size_t len;
		char head[64];
	} again;
	char *reply; /* owned; the line that this descriptor reads back, NULL: none yet */
	size_t reply_len, reply_off;
	struct bound {
		struct bound *next;
		char id[37];
	} * bound; /* owned: runs that end with this descriptor */
};

/* ---- the reply of a descriptor --------------------------------------------------------------- */

static void set_reply(struct fsd *f, struct control_handle *h, char *text)
{
	free(h->reply);
	h->reply = text;
	h->reply_len = text ? strlen(text) : 0;
	h->reply_off = 0;
	if (text && h->view != MS_V_NONE)
		results_set(f->results, (uid_t)h->who.uid, h->view, text, h->reply_len);
}

/* Starts over: the next bytes are a new document. */
static void reset_doc(struct fsd *f, struct control_handle *h)
{
	handle_discharge(f, &h->h);
	sbx_buf_free(&h->doc);
	h->doc.failed = false;
	h->scanned = 0;
	h->script = false;
	sbx_json_scan_init(&h->scan);
}

/* Ends the document with an error: -errno for the write. */
static int refuse(struct fsd *f, struct control_handle *h, const struct sbx_error *e)
{
	set_reply(f, h, sbx_error_json(e));
	reset_doc(f, h);
	return -fsd_errno(e);
}

/* What is submitted below a session is a run of that session. */
static bool in_session(const struct control_handle *h)
{
	return ino_node(h->h.ino) == MS_N_SESS_RUNS_NEW;
}

static int make_session(struct fsd *f, struct control_handle *h, const struct orch_request *rq)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	struct orch_session_made made;
	char *line = NULL;

	if (orch_session_create(f->orch, &h->who, rq, NULL, &made, &e) < 0)
		return refuse(f, h, &e);
	if (asprintf(&line, "%s\n", made.id) < 0)
		line = NULL;
	set_reply(f, h, line);
	reset_doc(f, h);
	return 0;
}

static int act(struct fsd *f, struct control_handle *h)
{
	const struct orch_settings *st = orch_settings(f->orch);
	struct orch_request rq = { .text = h->doc.data,
				   .len = h->doc.len,
				   .script_allowed = true,
				   .refuse_unknown = !st->fs_unknown_fields,
				   .default_image = true,
				   .session_id = in_session(h) ? h->h.id : NULL };
	sbx_autoerror e = SBX_ERROR_INIT;
	struct orch_submitted done;
	struct bound *node;
	char *line = NULL;

	if (h->verb == MS_W_MAKE_SESSION)
		return make_session(f, h, &rq);
	if (h->verb == MS_W_CHECK) {
		struct sbx_buf out = SBX_BUF_INIT(1 << 20);

		if (orch_check(f->orch, &h->who, &rq, &out, &e) < 0) {
			sbx_buf_free(&out);
			return refuse(f, h, &e);
		}
		set_reply(f, h, sbx_buf_steal(&out));
		reset_doc(f, h);
		return 0;
	}
	node = malloc(sizeof(*node)); /* before: a run that cannot be remembered must not begin */
	if (!node)
		sbx_fail(&e, SBX_E_NO_MEMORY, "no memory for the run");
	if (!node || orch_submit(f->orch, &h->who, &rq, &done, &e) < 0) {
		free(node);
		if (e.code != SBX_E_INTERRUPTED)
			return refuse(f, h, &e);
		/* Nothing happened, and who interrupted it decides whether it is tried again. */
		set_reply(f, h, sbx_error_json(&e));
		return -EINTR;
	}
	crash_point("door_answering");
	if (done.bound && !done.replayed) {
		memcpy(node->id, done.id, sizeof(node->id));
		node->next = h->bound;
		h->bound = sbx_steal(&node);
	}
	free(node);
	if (asprintf(&line, "%s\n", done.id) < 0)
		line = NULL;
	set_reply(f, h, line);
	reset_doc(f, h);
	return 0;
}

/* ---- documents ------------------------------------------------------------------------------- */

static bool only_space(const char *s, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (!isspace((unsigned char)s[i]))
			return false;
	return true;
}

/* Is this the beginning of a script? Two bytes decide; the first alone may still become one. */
static bool starts_script(const struct control_handle *h)
{
	return h->doc.len >= 1 && h->doc.data[0] == '#' &&
	       (h->doc.len == 1 || h->doc.data[1] == '!');
}

/* In the words of whoever parses whole documents, so that both doors say the same. */
static int scan_problem(struct fsd *f, struct control_handle *h)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	sbx_autojson *parsed = NULL;

	if (sbx_json_parse_object(h->doc.data, h->doc.len, &parsed, &e) == 0)
		sbx_fail(&e, SBX_E_INVALID_SPEC, "the document %s (byte %zu)",
			 h->scan.problem ? h->scan.problem : "is not JSON", h->scan.problem_at);
	return refuse(f, h, &e);
}

static int take_json(struct fsd *f, struct control_handle *h)
{
	size_t used = 0;
	enum sbx_json_state state = sbx_json_scan_feed(&h->scan, h->doc.data + h->scanned,
						       h->doc.len - h->scanned, &used);

	h->scanned += used;
	switch (state) {
	case SBX_JSON_MORE:
		return 0;
	case SBX_JSON_BROKEN:
		return scan_problem(f, h);
	case SBX_JSON_COMPLETE:
		break;
	}
	/* What follows the object in the same write is left in: parsing refuses it by name. */
	return act(f, h);
}

static int take_bytes(struct fsd *f, struct control_handle *h, const char *data, size_t len)
{
	sbx_autoerror e = SBX_ERROR_INIT;

	/* The newline that comes behind an object in a write of its own. */
	if (h->doc.len == 0 && only_space(data, len))
		return 0;
	if (!handle_charge(f, &h->h, len)) {
		sbx_fail(&e, SBX_E_NO_MEMORY,
			 "too many bytes of unfinished documents are waiting already");
		return refuse(f, h, &e);
	}
	sbx_buf_add(&h->doc, data, len);
	if (sbx_buf_failed(&h->doc)) {
		if (h->doc.len + len > MS_DOC_MAX)
			sbx_fail(&e, SBX_E_SPEC_TOO_LARGE, "the document is larger than %d bytes",
				 MS_DOC_MAX);
		else
			sbx_fail(&e, SBX_E_NO_MEMORY, "no memory for the document");
		return refuse(f, h, &e);
	}
	h->script = h->verb != MS_W_MAKE_SESSION && starts_script(h);
	return h->script ? 0 : take_json(f, h);
}

/* Takes back the bytes of a write that was interrupted, as if it had never come. */
static void take_back(struct fsd *f, struct control_handle *h, size_t len, size_t scanned,
		      const struct sbx_json_scan *scan)
{
	if (len == 0) {
		reset_doc(f, h);
		return;
	}
	h->doc.len = len;
	h->doc.data[len] = '\0';
	h->scanned = scanned;
	h->scan = *scan;
}

static int take_document(struct fsd *f, struct control_handle *h, const char *data, size_t len,
			 off_t off)
{
	size_t head = len < sizeof(h->again.head) ? len : sizeof(h->again.head);
	size_t before = h->doc.len, scanned = h->scanned;
	struct sbx_json_scan scan = h->scan;
	int r;

	if (h->again.err && off == h->again.off && len == h->again.len &&
	    memcmp(data, h->again.head, head) == 0)
		return h->again.err;
	h->again.err = 0;
	r = take_bytes(f, h, data, len);
	if (r == -EINTR) {
		take_back(f, h, before, scanned, &scan);
	} else if (r < 0 && before > 0) {
		h->again.err = r;
		h->again.off = off;
		h->again.len = len;
		memcpy(h->again.head, data, head);
	}
	return r;
}

/* ---- the handlers ---------------------------------------------------------------------------- */

void control_open(struct fsd *f, fuse_req_t req, fuse_ino_t ino, const struct run_ref *run,
		  struct fuse_file_info *fi)
{
	const struct ms_node *n = ms_node(ino_node(ino));
	int index = serial_index(ino_node(ino));
	struct session_ref session;
	struct control_handle *h;

	/* Who only reads gets the last result as a plain text, with a size that one may seek in. */
	if ((fi->flags & O_ACCMODE) == O_RDONLY && n->view != MS_V_NONE) {
		text_open(f, req, ino, run, fi);
		return;
	}
	h = calloc(1, sizeof(*h));
	if (!h) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	h->h.kind = H_CONTROL;
	h->h.ino = ino;
	if (run)
		memcpy(h->h.id, run->key.id, sizeof(h->h.id));
	else if (is_session_node(ino_node(ino)) && session_of(f, req, ino, &session) == 0)
		memcpy(h->h.id, session.id, sizeof(h->h.id));
	h->verb = n->verb;
	h->view = n->view;
	h->doc = (struct sbx_buf)SBX_BUF_INIT(MS_DOC_MAX);
	sbx_json_scan_init(&h->scan);
	pthread_mutex_init(&h->lock, NULL);
	who_is(f, req, &h->who);
	fi->direct_io = 1;
	fi->nonseekable = 1;
	if (index >= 0)
		serial_opened(f, index, ino_row(ino));
	handle_opened(f, req, fi, &h->h);
}

/* ctl and stdin act on each write. */
static int take_command(struct fsd *f, struct control_handle *h, const char *data, size_t len)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	int rc;

	if (h->verb == MS_W_SESSION_CTL)
		rc = session_ctl(f, &h->who, h->h.id, data, len, &e);
	else if (h->verb == MS_W_CTL)
		rc = orch_run_ctl(f->orch, &h->who, h->h.id, data, len, &e);
	else
		rc = orch_run_stdin(f->orch, &h->who, h->h.id, data, len, &e);
	return rc < 0 ? -fsd_errno(&e) : 0;
}

/* ---- performing ------------------------------------------------------------------------------ */

static int take_write(struct fsd *f, struct control_handle *h, const struct act *a)
{
	if (h->verb == MS_W_SUBMIT || h->verb == MS_W_CHECK || h->verb == MS_W_MAKE_SESSION)
		return take_document(f, h, a->data, a->len, a->off);
	return take_command(f, h, a->data, a->len);
}

/* One that was interrupted is not tried again by the close of another copy of the descriptor. */
static int act_script(struct fsd *f, struct control_handle *h)
{
	int r = act(f, h);

	if (r == -EINTR)
		reset_doc(f, h);
	return r;
}

/* At every close of any copy of the descriptor: before the first byte (shells), in the middle (a
 * forked copy), at the end. */
static int take_flush(struct fsd *f, struct control_handle *h)
{
	sbx_autoerror e = SBX_ERROR_INIT;

	if (h->script)
		return act_script(f, h);
	if (h->doc.len == 0)
		return 0;
	/* Reported, and kept: another copy may bring the rest. */
	sbx_fail(&e, SBX_E_INVALID_SPEC,
		 "the document is not complete: it ends after %zu bytes with %u open "
		 "brackets",
		 h->doc.len, h->scan.depth);
	set_reply(f, h, sbx_error_json(&e));
	return -fsd_errno(&e);
}

static void take_read(struct fsd *f, struct control_handle *h)
{
	if (h->script)
		(void)act_script(f, h); /* a refusal is what is read now */
	if (!h->reply && h->doc.len == 0) {
		h->reply = results_get(f->results, (uid_t)h->who.uid, h->view, &h->reply_len);
		h->reply_off = 0;
	}
}

static void reply_read(fuse_req_t req, struct control_handle *h, size_t size)
{
	size_t left = h->reply ? h->reply_len - h->reply_off : 0;

	if (size > left)
		size = left;
	fuse_reply_buf(req, h->reply ? h->reply + h->reply_off : NULL, size);
	h->reply_off += size;
}

/* Performs and answers. Under the handle's lock. */
static void perform(struct fsd *f, struct control_handle *h, struct act *a)
{
	int r = 0;

	atomic_store(&h->writing, true);
	store_give_up_when(&a->give_up);
	if (a->what == ACT_WRITE)
		r = take_write(f, h, a);
	else if (a->what == ACT_FLUSH)
		r = take_flush(f, h);
	else
		take_read(f, h);
	store_give_up_when(NULL);
	atomic_store(&h->writing, false);
	writers_done(f->writers, a); /* once it is answered the request is no longer ours */
	if (a->what == ACT_READ)
		reply_read(a->req, h, a->len);
	else if (r < 0 || a->what == ACT_FLUSH)
		fuse_reply_err(a->req, -r);
	else
		fuse_reply_write(a->req, a->len);
}

static void release_now(struct fsd *f, struct control_handle *h)
{
	struct bound *b;

	wait_for_reply(&h->lock);
	while ((b = h->bound)) {
		h->bound = b->next;
		crash_point("door_release_bound");
		/* The last copy of the descriptor is closed, whatever the reason: so ends the run.
		 */
		(void)orch_run_unbind(f->orch, &h->who, b->id, NULL);
		free(b);
	}
	sbx_buf_free(&h->doc);
	free(h->reply);
	free(h);
}

void control_perform(struct fsd *f, struct act *a)
{
	struct control_handle *h = (struct control_handle *)a->h;

	if (a->what == ACT_RELEASE) {
		writers_done(f->writers, a);
		release_now(f, h);
		return;
	}
	pthread_mutex_lock(&h->lock);
	perform(f, h, a);
	pthread_mutex_unlock(&h->lock);
}

/* Too many wait for the store already; nothing was taken, so the same write may come again. */
static int refuse_wait(struct fsd *f, struct control_handle *h, int err)
{
	sbx_autoerror e = SBX_ERROR_INIT;

	if (err == -EAGAIN) {
		sbx_fail(&e, SBX_E_QUEUE_FULL,
			 "too many requests wait for the store already; try again later");
		set_reply(f, h, sbx_error_json(&e));
	}
	return err;
}

/* Takes the lock unless whoever has it may keep it for long. One that has just answered gives it
 * back at once, while its client may be here already. */
static bool lock_soon(struct control_handle *h)
{
	struct timespec until;

	if (pthread_mutex_trylock(&h->lock) == 0)
		return true;
	if (atomic_load(&h->writing))
		return false;
	/* The wall clock is good enough for moments, and the only one that ThreadSanitizer knows.
	 */
	(void)clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += LOCK_SOON_MS * 1000000L;
	until.tv_sec += until.tv_nsec / 1000000000L;
	until.tv_nsec %= 1000000000L;
	return pthread_mutex_timedlock(&h->lock, &until) == 0;
}

/* Does it here, or hands it over when it could wait: for the store, when it writes to it, or for
 * another operation on this handle that does. */
static void here_or_there(struct fsd *f, struct control_handle *h, struct act *a)
{
	bool mine = lock_soon(h);
	bool writes = mine && h->verb != MS_W_CHECK && (a->what == ACT_WRITE || h->script);
	bool long_one = h->verb == MS_W_SESSION_CTL && a->what == ACT_WRITE;
	int r = 0;

	a->slow = long_one;
	if (mine && !long_one && (!writes || writers_here(f->writers, a))) {
		perform(f, h, a);
	} else {
		r = writers_give(f->writers, a);
		if (r < 0 && mine)
			r = refuse_wait(f, h, r);
	}
	if (r < 0)
		fuse_reply_err(a->req, -r);
	if (mine)
		pthread_mutex_unlock(&h->lock);
}

void control_write(struct fsd *f, fuse_req_t req, struct fuse_file_info *fi, const char *data,
		   size_t len, off_t off)
{
	struct act a = { .req = req,
			 .h = handle_of(fi),
			 .what = ACT_WRITE,
			 .data = data,
			 .len = len,
			 .off = off };

	here_or_there(f, (struct control_handle *)a.h, &a);
}

/* The offset means nothing: the kernel counts bytes written as well. */
void control_read(struct fsd *f, fuse_req_t req, struct fuse_file_info *fi, size_t size)
{
	struct act a = { .req = req, .h = handle_of(fi), .what = ACT_READ, .len = size };

	here_or_there(f, (struct control_handle *)a.h, &a);
}

void control_flush(struct fsd *f, fuse_req_t req, struct fuse_file_info *fi)
{
	struct act a = { .req = req, .h = handle_of(fi), .what = ACT_FLUSH };

	here_or_there(f, (struct control_handle *)a.h, &a);
}

/* Nobody waits for it, so what must write is never done by a server. */
void control_release(struct fsd *f, struct handle *base)
{
	struct act a = { .h = base, .what = ACT_RELEASE };
	struct control_handle *h = (struct control_handle *)base;
	int index = serial_index(ino_node(base->ino));

	if (index >= 0)
		serial_closed(f, index, ino_row(base->ino));
	if (!h->bound || writers_give(f->writers, &a) < 0)
		release_now(f, h);
}
