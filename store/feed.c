/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ordered list of changes, and the bell that rings after a commit: eight bytes written to
 * <dir>/notify/feed, which raises IN_MODIFY in every process that watches the file.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/utf8.h"
#include "store/store_i.h"

/* Changes up to this number are gone; a row of meta. */
#define PRUNED "changes_pruned"

int store_feed_open(struct store *s, struct sbx_error *e)
{
	struct stat st;
	int64_t zero = 0;
	int r;

	s->feed_fd = sbx_open_beneath(s->dir_fd, "notify/feed", O_RDWR | O_CREAT, 0600);
	if (s->feed_fd < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, -s->feed_fd,
				      "cannot open 'notify/feed' in '%s'", s->dir);
	/* Its block is taken now, so that ringing later needs no space. */
	if (fstat(s->feed_fd, &st) < 0 || st.st_size < (off_t)sizeof(zero)) {
		r = sbx_pwrite_all(s->feed_fd, &zero, sizeof(zero), 0);
		if (r < 0)
			return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, -r,
					      "cannot write 'notify/feed' in '%s'", s->dir);
	}
	return 0;
}

void store_announce(struct store *s)
{
	int64_t now = sbx_now_us();

	/* The commit stands, so there is no failure to report. A file system that copies on
	 * write may have no space even for this; the times then raise IN_ATTRIB instead. */
	if (sbx_pwrite_all(s->feed_fd, &now, sizeof(now), 0) < 0)
		(void)futimens(s->feed_fd, NULL);
}

int store_feed_watch(struct store *s, struct sbx_error *e)
{
	sbx_autoclose int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	char path[64];

	if (fd < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno, "cannot watch the feed");
	/* By descriptor, so that it is the file we ring whatever became of the path. */
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", s->feed_fd);
	if (inotify_add_watch(fd, path, IN_MODIFY | IN_ATTRIB) < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno,
				      "cannot watch the feed (fs.inotify.max_user_watches)");
	return sbx_steal_fd(&fd);
}

void store_feed_drain(int fd)
{
	char events[4096];

	while (read(fd, events, sizeof(events)) > 0)
		;
}

uint64_t store_user_hash(const char *user)
{
	uint64_t h = 0xcbf29ce484222325u; /* FNV-1a, 64 bits; kept in the database */

	for (const unsigned char *p = (const unsigned char *)user; *p; p++)
		h = (h ^ *p) * 0x100000001b3u;
	return h;
}

int store_tx_change(struct store_tx *tx, const char *kind, int64_t row, const char *id,
		    const char *what, const char *phase, const char *user, struct sbx_error *e)
{
	char shown[sizeof(((struct store_change *)0)->user)];
	size_t n = strnlen(user ? user : "", sizeof(shown) - 1);
	int r;

	memcpy(shown, user ? user : "", n);
	if (n == sizeof(shown) - 1)
		n -= sbx_utf8_partial_tail(shown, n);
	shown[n] = '\0';
	r = store_tx_run(tx, SQL_CHANGE_ADD,
			 STORE_ARGS(store_int(sbx_now_us()), store_text(kind), store_int(row),
				    store_text(id ? id : ""), store_text(what),
				    store_text(phase ? phase : ""), store_text(shown),
				    store_int((int64_t)store_user_hash(user ? user : ""))),
			 e);
	if (r == 0)
		tx->changed = true;
	return r;
}

int store_tx_run_changed(struct store_tx *tx, int64_t row, const char *id, const char *what,
			 enum store_phase phase, const char *owner, struct sbx_error *e)
{
	return store_tx_change(tx, "run", row, id, what, store_phase_name(phase), owner, e);
}

static void copy(char *to, size_t size, const char *from)
{
	size_t n = strnlen(from ? from : "", size - 1);

	memcpy(to, from ? from : "", n);
	to[n] = '\0';
}

static void load(struct store_query *q, struct store_change *ret)
{
	ret->seq = store_col_int(q, 0);
	ret->at_us = store_col_int(q, 1);
	copy(ret->kind, sizeof(ret->kind), store_col_text(q, 2));
	ret->row = store_col_int(q, 3);
	copy(ret->id, sizeof(ret->id), store_col_text(q, 4));
	copy(ret->what, sizeof(ret->what), store_col_text(q, 5));
	copy(ret->phase, sizeof(ret->phase), store_col_text(q, 6));
	copy(ret->user, sizeof(ret->user), store_col_text(q, 7));
	ret->user_hash = (uint64_t)store_col_int(q, 8);
}

static int read_pruned(struct store_conn *c, int64_t *ret, struct sbx_error *e)
{
	store_autoquery q = { NULL, NULL };
	const char *text;
	int r = store_first(c, SQL_META_GET, STORE_ARGS(store_text(PRUNED)), &q, e);

	if (r < 0)
		return r;
	text = r ? store_col_text(&q, 0) : NULL;
	*ret = text ? strtoll(text, NULL, 10) : 0;
	return 0;
}

int store_changes(struct store *s, int64_t after, struct store_change *ret, size_t max,
		  bool *ret_gap, struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	int64_t pruned = 0;
	size_t n = 0;
	int r = store_read(s, SQL_CHANGES, STORE_ARGS(store_int(after), store_int((int64_t)max)),
			   &rd, &q, e);

	while (r == 1 && n < max) {
		load(&q, &ret[n++]);
		r = store_next(&q, e);
	}
	store_query_done(&q);
	/* Asked after the rows were read: whoever prunes in between is seen, and costs the reader
	 * one look too many, where the other order could hide a gap. */
	if (r >= 0)
		r = read_pruned(rd.c, &pruned, e);
	if (r < 0)
		return r;
	*ret_gap = after < pruned;
	return (int)n;
}

int store_changes_last(struct store *s, int64_t *ret, struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	int64_t last = 0, pruned = 0;
	int r = store_read(s, SQL_CHANGES_RANGE, NULL, 0, &rd, &q, e);

	if (r == 1)
		last = store_col_int(&q, 1);
	store_query_done(&q);
	if (r >= 0)
		r = read_pruned(rd.c, &pruned, e);
	if (r < 0)
		return r;
	*ret = last > pruned ? last : pruned;
	return 0;
}

int store_changes_time(struct store *s, int64_t *ret_us, struct sbx_error *e)
{
	store_autoreader rd = { NULL, NULL };
	store_autoquery q = { NULL, NULL };
	int r = store_read(s, SQL_CHANGE_NEWEST, NULL, 0, &rd, &q, e);

	if (r < 0)
		return r;
	*ret_us = r ? store_col_int(&q, 0) : 0;
	return 0;
}

int store_tx_changes_prune(struct store_tx *tx, int64_t keep, struct sbx_error *e)
{
	store_autoquery q = { NULL, NULL };
	int64_t first, upto;
	char text[24];
	int r = store_tx_first(tx, SQL_CHANGES_RANGE, NULL, 0, &q, e);

	if (r < 0)
		return r;
	first = store_col_int(&q, 0);
	upto = store_col_int(&q, 1) - keep;
	store_query_done(&q);
	if (first == 0 || upto < first)
		return 0;
	/* The rest waits for the next time: a long transaction would hold up everybody. */
	if (upto - first >= STORE_CHANGES_PRUNE_MAX)
		upto = first + STORE_CHANGES_PRUNE_MAX - 1;
	(void)snprintf(text, sizeof(text), "%lld", (long long)upto);
	r = store_tx_run(tx, SQL_CHANGES_PRUNE, STORE_ARGS(store_int(upto)), e);
	return r < 0 ? r : store_tx_meta_set(tx, PRUNED, text, e);
}
