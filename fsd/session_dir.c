/* SPDX-License-Identifier: Apache-2.0 */
/* Listing sessions, their runs and their snapshots. */
#include "fsd/img_i.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"

enum { BATCH = 64 };

/* An entry with its attributes where they are wanted. False: the buffer is full. */
static bool add(struct listing *l, fuse_ino_t ino, const char *name, mode_t type, int64_t row)
{
	struct fuse_entry_param e = { .ino = ino, .generation = 1 };

	e.entry_timeout = session_entry_time(l->f, ino_node(ino));
	if (!l->plus || session_attr(l->f, l->req, ino, &e.attr, &e.attr_timeout) < 0) {
		e.ino = 0; /* a look-up may have more luck */
		e.attr.st_ino = ino;
		e.attr.st_mode = type;
	}
	return dir_add(l, name, OFF_DYNAMIC + row, &e);
}

static bool add_session(struct listing *l, int64_t row, const char *name)
{
	return add(l, ino_make(row, MS_N_SESSION), name, S_IFDIR, row);
}

static bool is_there(const struct store_session *s)
{
	return !s->ending_us && (!s->expires_us || s->expires_us > sbx_now_us());
}

int session_each(struct listing *l, const struct orch_principal *p, int64_t after,
		 bool (*each)(struct listing *l, int64_t row, const char *name))
{
	struct store_session list[BATCH];
	sbx_autoerror e = SBX_ERROR_INIT;
	bool room = true;
	int n;

	do {
		n = store_session_list(l->f->store, p->admin ? NULL : p->user, after, list, BATCH,
				       &e);
		if (n < 0)
			return -fsd_errno(&e);
		for (int i = 0; i < n; i++) {
			const struct store_session *s = &list[i];
			bool mine = strcmp(p->user, s->user) == 0;

			after = s->row;
			if (room && is_there(s))
				room = each(l, s->row, mine && s->entry ? s->entry : s->id);
			store_session_clear(&list[i]);
		}
	} while (room && n == BATCH);
	return 0;
}

struct found {
	int64_t row;
	char id[37];
};
struct found_list {
	struct found list[BATCH];
	int n;
};

static bool note_run(void *ctx, const struct store_run *r)
{
	struct found_list *found = ctx;
	struct found *one = &found->list[found->n++];

	one->row = r->row;
	(void)snprintf(one->id, sizeof(one->id), "%s", r->id);
	return found->n < BATCH;
}

/* Newest first: `before` is the row of the last one. */
static int list_runs(struct listing *l, const struct session_ref *s, int64_t before)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	struct found_list found;

	do {
		struct store_run_filter by = { .session_id = s->id,
					       .before_row = before,
					       .limit = BATCH };

		found.n = 0;
		if (store_run_list(l->f->store, &by, note_run, &found, &e) < 0)
			return -fsd_errno(&e);
		for (int i = 0; i < found.n; i++) {
			before = found.list[i].row;
			if (!add(l, ino_make(before, MS_N_SESS_RUN), found.list[i].id, S_IFLNK,
				 before))
				return 0;
		}
	} while (found.n == BATCH);
	return 0;
}

/* Behind all snapshots, by their numbers. */
#define FAILURES (INT64_C(1) << 53)

static void list_failures(struct listing *l, const struct session_ref *s, int64_t after)
{
	struct img_error failed[IMG_ERRORS];
	size_t n = failures_list(l->f->failures, s->id, failed);
	int64_t last = after;

	for (size_t done = 0; done < n; done++) {
		struct fuse_entry_param e = { .attr = { .st_mode = S_IFREG } };
		int64_t best = 0;
		size_t at = 0;

		for (size_t i = 0; i < n; i++) {
			int64_t number = failed[i].number;

			if (number > last && (!best || number < best)) {
				best = number;
				at = i;
			}
		}
		if (!best)
			return;
		e.attr.st_ino = ino_make(best, MS_N_SHOT_ERROR);
		if (!dir_add(l, failed[at].name, OFF_DYNAMIC + FAILURES + best, &e))
			return;
		last = best;
	}
}

static int list_shots(struct listing *l, const struct session_ref *s, int64_t after)
{
	int64_t before = after;
	struct store_snapshot list[BATCH];
	sbx_autoerror e = SBX_ERROR_INIT;
	bool room = true;
	int n;

	do {
		n = store_snapshot_list(l->f->store, s->id, after, list, BATCH, &e);
		if (n < 0)
			return -fsd_errno(&e);
		for (int i = 0; i < n; i++) {
			after = list[i].row;
			room = room &&
			       add(l, ino_make(after, MS_N_SHOT),
				   list[i].name ? list[i].name : list[i].id, S_IFDIR, after);
			store_snapshot_clear(&list[i]);
		}
	} while (room && n == BATCH);
	if (room)
		list_failures(l, s, before - FAILURES);
	return 0;
}

int session_list(struct listing *l, fuse_ino_t dir, const struct orch_principal *p, int64_t after)
{
	enum ms_node_id node = ino_node(dir);
	struct session_ref s;
	int r;

	if (node == MS_N_SESSIONS)
		return session_each(l, p, after, add_session);
	if (node != MS_N_SESS_RUNS && node != MS_N_SESS_SHOTS)
		return 0;
	r = session_of(l->f, l->req, dir, &s);
	if (r < 0)
		return r;
	return node == MS_N_SESS_RUNS ? list_runs(l, &s, after) : list_shots(l, &s, after);
}
