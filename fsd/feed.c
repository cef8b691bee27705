/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The feed thread: follows the changes of the store, made by any process, and the logs of runs that
 * somebody streams; wakes parked reads and hands changes to the kicker.
 */
#include "fsd/fsd_i.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>

#include "base/log.h"

enum { CHANGES_BATCH = 64 };

/* A run whose log is watched. */
struct log_watch {
	struct log_watch *next;
	int64_t row;
	int wd;
	unsigned users;
};

struct feed {
	struct fsd *f;
	pthread_t thread;
	int epoll, changes, logs, stop; /* owned */
	int64_t seq;			/* of the last change handled */
	bool missed;			/* something may have passed unseen; feed thread only */
	pthread_mutex_t lock;
	struct log_watch *watches; /* under lock; few: one for each run that is streamed */
};

void feed_watch_log(struct feed *fd, int64_t row, const char *id)
{
	struct log_watch *w;
	char path[PATH_MAX];

	pthread_mutex_lock(&fd->lock);
	for (w = fd->watches; w && w->row != row;)
		w = w->next;
	if (w) {
		w->users++;
	} else if ((w = calloc(1, sizeof(*w)))) {
		/* The directory, since the log may not exist yet. */
		(void)snprintf(path, sizeof(path), "%s/runs/%s", store_dir(fd->f->store), id);
		w->wd = inotify_add_watch(fd->logs, path, IN_MODIFY | IN_CREATE | IN_ONLYDIR);
		w->row = row;
		w->users = 1;
		w->next = fd->watches;
		fd->watches = w;
		if (w->wd < 0)
			sbx_log(SBX_LOG_WARNING, "cannot watch a log run=%s error=\"%s\"", id,
				strerror(errno));
	}
	pthread_mutex_unlock(&fd->lock);
}

void feed_unwatch_log(struct feed *fd, int64_t row)
{
	struct log_watch *w;

	pthread_mutex_lock(&fd->lock);
	for (struct log_watch **at = &fd->watches; (w = *at); at = &w->next) {
		if (w->row != row)
			continue;
		if (--w->users == 0) {
			*at = w->next;
			if (w->wd >= 0)
				(void)inotify_rm_watch(fd->logs, w->wd);
			free(w);
		}
		break;
	}
	pthread_mutex_unlock(&fd->lock);
}

static int64_t row_of(struct feed *fd, int wd)
{
	int64_t row = 0;

	pthread_mutex_lock(&fd->lock);
	for (struct log_watch *w = fd->watches; w; w = w->next)
		if (w->wd == wd)
			row = w->row;
	pthread_mutex_unlock(&fd->lock);
	return row;
}

static void log_events(struct feed *fd)
{
	char buf[8192] __attribute__((aligned(__alignof__(struct inotify_event))));
	const struct inotify_event *ev;
	int64_t last = 0;
	ssize_t n;

	while ((n = read(fd->logs, buf, sizeof(buf))) > 0) {
		for (char *p = buf; p < buf + n; p += sizeof(*ev) + ev->len) {
			int64_t row;

			ev = (const struct inotify_event *)(const void *)p;
			if (ev->mask & IN_Q_OVERFLOW)
				fd->missed = true;
			/* Only the index: a record there means that its bytes are complete. */
			if (ev->len == 0 || strcmp(ev->name, "log.idx") != 0)
				continue;
			row = row_of(fd, ev->wd);
			if (row && row != last) /* one look serves a burst of one log */
				parking_log_grew(fd->f->parking, row);
			last = row;
		}
		last = 0;
	}
}

static void session_changed(struct fsd *f, const struct store_change *c)
{
	if (strcmp(c->what, "files") == 0)
		work_changed(f, c->id);
	else if (strcmp(c->what, "gone") == 0)
		work_session_gone(f, c->id);
}

static void handle_change(struct feed *fd, const struct store_change *c)
{
	enum store_phase phase = store_phase_find(c->phase);
	unsigned what;

	if (strcmp(c->kind, "session") == 0)
		session_changed(fd->f, c);
	else if (strcmp(c->kind, "snapshot") == 0 && strcmp(c->what, "gone") == 0)
		shot_gone(fd->f, c->row);
	if (strcmp(c->kind, "run") != 0)
		return;
	if (strcmp(c->what, "gone") == 0) { /* it had ended, and nobody waits for it */
		work_new_epoch(fd->f);
		return;
	}
	work_run_changed(fd->f, c->row); /* who waits for the end then sees what was written */
	/* First whoever waits for an answer, then who only watches. */
	parking_run_changed(fd->f->parking, c->row, store_phase_terminal(phase));
	if (strcmp(c->what, "cancel") == 0) /* that is asked for, and `status` says nothing of it */
		return;
	what = strcmp(c->what, "new") == 0	   ? KICK_NEW
	       : strcmp(c->what, "artifacts") == 0 ? KICK_ARTIFACTS
						   : KICK_STATUS;
	if (what != KICK_ARTIFACTS && by_watched(fd->f, phase))
		what |= kick_phase(phase);
	kicker_add(fd->f->kicker, c->row, c->id, what);
}

static void change_events(struct feed *fd)
{
	struct store_change c[CHANGES_BATCH];
	bool any = false;
	int n;

	do {
		bool gap = false;

		n = store_changes(fd->f->store, fd->seq, c, CHANGES_BATCH, &gap, NULL);
		if (n < 0 || gap)
			fd->missed = true;
		for (int i = 0; i < n; i++) {
			fd->seq = c[i].seq;
			handle_change(fd, &c[i]);
			any = true;
		}
	} while (n == CHANGES_BATCH);
	if (any)
		parking_events(fd->f->parking);
}

static void *feed_thread(void *arg)
{
	struct feed *fd = arg;

	change_events(fd); /* what came between the last look and the watch */
	for (;;) {
		struct epoll_event ev[4];
		/* What was missed is made up for by a look at everything, a second later: the store
		 * may answer again by then. */
		int n = epoll_wait(fd->epoll, ev, SBX_COUNT(ev), fd->missed ? 1000 : -1);

		if (n < 0 && errno != EINTR)
			break;
		if (n == 0) {
			fd->missed = false;
			change_events(fd);
			work_look_all(fd->f);
			parking_look_all(fd->f->parking);
		}
		for (int i = 0; i < n; i++) {
			if (ev[i].data.fd == fd->stop)
				return NULL;
			if (ev[i].data.fd == fd->logs) {
				log_events(fd);
			} else {
				store_feed_drain(fd->changes);
				change_events(fd);
			}
		}
	}
	return NULL;
}

void feed_free(struct feed *fd)
{
	struct log_watch *w;

	if (!fd)
		return;
	while ((w = fd->watches)) {
		fd->watches = w->next;
		free(w);
	}
	sbx_closep(&fd->epoll);
	sbx_closep(&fd->changes);
	sbx_closep(&fd->logs);
	sbx_closep(&fd->stop);
	pthread_mutex_destroy(&fd->lock);
	free(fd);
}

static int feed_open(struct feed *fd, struct sbx_error *e)
{
	int rc = store_changes_last(fd->f->store, &fd->seq, e);

	if (rc < 0)
		return rc;
	fd->changes = store_feed_watch(fd->f->store, e);
	if (fd->changes < 0)
		return fd->changes;
	fd->logs = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	fd->stop = eventfd(0, EFD_CLOEXEC);
	fd->epoll = epoll_create1(EPOLL_CLOEXEC);
	for (int i = 0; i < 3; i++) {
		int one = i == 0 ? fd->changes : i == 1 ? fd->logs : fd->stop;
		struct epoll_event ev = { .events = EPOLLIN, .data.fd = one };

		if (epoll_ctl(fd->epoll, EPOLL_CTL_ADD, one, &ev) < 0)
			return sbx_fail_errno(e, SBX_E_INTERNAL, errno, "cannot follow the feed");
	}
	return 0;
}

struct feed *feed_start(struct fsd *f, struct sbx_error *e)
{
	struct feed *fd = calloc(1, sizeof(*fd));
	int r;

	if (!fd) {
		sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the feed");
		return NULL;
	}
	fd->f = f;
	fd->epoll = fd->changes = fd->logs = fd->stop = -1;
	pthread_mutex_init(&fd->lock, NULL);
	if (feed_open(fd, e) < 0) {
		feed_free(fd);
		return NULL;
	}
	r = pthread_create(&fd->thread, NULL, feed_thread, fd);
	if (r != 0) {
		sbx_fail_errno(e, SBX_E_INTERNAL, r, "cannot start the feed");
		feed_free(fd);
		return NULL;
	}
	return fd;
}

void feed_stop(struct feed *fd)
{
	uint64_t one = 1;

	if (fd && write(fd->stop, &one, sizeof(one)) == (ssize_t)sizeof(one))
		pthread_join(fd->thread, NULL);
}
