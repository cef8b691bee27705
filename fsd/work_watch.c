/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What others do in a workspace, for those who watch it through the mount. Each directory that
 * somebody has looked up and the kernel still knows is watched on the disk; what is seen there
 * becomes news, and the kicker raises the events (work_tell.c). Where nobody has been, nobody can
 * be waiting, so a run may make as many directories as it likes.
 *
 * fanotify and not inotify: it says whose doing an event was, and what went through this mount has
 * raised its events already. It also gives both names of a rename at once. Watches stand while no
 * run is active, too, since a run may be over before one hears of it.
 *
 * One thread reads. It waits a moment, so that what belongs together is told together, and never
 * has more in memory than the kicker takes in a moment; meanwhile the kernel's queue fills, and
 * when that overflows the directories are looked through for what is newer.
 */
#include "fsd/work_watch_i.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/fanotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"

enum {
	WATCH_MAX = 8192,  /* directories */
	READS = 64,	   /* buffers at a time, which is more than the kernel keeps */
	BATCH = 256,	   /* news that are told in one go, about */
	SETTLE_US = 20000, /* what happens within it is told together */
	PAUSE_US = 100000, /* so that one name is told of at most ten times a second */
	NAME_US = 400,	   /* of each name that is told; a limit for what a run can make us do */
	LOOK_NAMES = 1000, /* of one directory that is looked through */
	MERGE_MAX = 64,	   /* so far back news of one name are put together */
	LOG_EVERY_US = 60000000,
	INFO_OLD = 10,
	INFO_NEW = 12,
};

/* ---- news ------------------------------------------------------------------------------------ */

void work_news_free(struct work_news *news)
{
	work_unpin(news->dir);
	if (news->to)
		work_unpin(news->to);
	free(news);
}

/* What is told of the same name already, unless something was moved since. */
static struct work_news *find_news(struct work_watch *w, const struct work_node *dir,
				   const char *name)
{
	struct work_news *found = NULL;
	size_t n = 0;

	for (struct work_news *one = w->batch; one; one = one->next) {
		if (w->n_batch - n++ > MERGE_MAX)
			continue;
		if (one->what & WORK_MOVED)
			found = NULL;
		else if (one->dir == dir && strcmp(one->name, name) == 0)
			found = one;
	}
	return found;
}

/* Takes the pins of both directories. */
static void add_news(struct work_watch *w, struct work_node *dir, const char *name,
		     struct work_node *to, const char *to_name, unsigned what, bool is_dir)
{
	size_t len = strlen(name) + 1, to_len = to ? strlen(to_name) + 1 : 0;
	struct work_news *news = to ? NULL : find_news(w, dir, name);

	if (news) {
		news->what |= what;
		news->type = is_dir ? S_IFDIR : S_IFREG;
		work_unpin(dir);
		return;
	}
	news = malloc(sizeof(*news) + len + to_len);
	if (!news) {
		work_unpin(dir);
		if (to)
			work_unpin(to);
		return;
	}
	*news = (struct work_news){ .dir = dir, .to = to, .what = what };
	news->type = is_dir ? S_IFDIR : S_IFREG;
	memcpy(news->name, name, len);
	news->to_name = news->name + len;
	if (to)
		memcpy(news->name + len, to_name, to_len);
	*w->batch_end = news;
	w->batch_end = &news->next;
	w->n_batch++;
}

/* What is there now, of which the kicker, who has no descriptors of ours, cannot know. */
static void look_at(struct work_news *news)
{
	const struct work_node *dir = news->to ? news->to : news->dir;
	struct stat st;

	if (fstatat(dir->fd, news->to ? news->to_name : news->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return;
	news->there = true;
	news->type = st.st_mode & S_IFMT;
}

static void wait_until(struct work_watch *w, int64_t at_us)
{
	struct timespec ts;
	int64_t left = at_us - sbx_boot_us();

	if (left <= 0)
		return;
	(void)clock_gettime(CLOCK_MONOTONIC, &ts);
	ts.tv_nsec += left % SBX_SECOND_US * 1000;
	ts.tv_sec += left / SBX_SECOND_US + ts.tv_nsec / 1000000000;
	ts.tv_nsec %= 1000000000;
	pthread_mutex_lock(&w->lock);
	while (!w->stop && pthread_cond_timedwait(&w->changed, &w->lock, &ts) == 0)
		;
	pthread_mutex_unlock(&w->lock);
}

/* Hands the batch to the kicker and waits until it has taken all of it. */
static void publish(struct work_watch *w)
{
	int64_t pause = (int64_t)w->n_batch * NAME_US, now = sbx_boot_us();

	if (!w->n_batch)
		return;
	for (struct work_news *one = w->batch; one; one = one->next)
		look_at(one);
	pthread_mutex_lock(&w->lock);
	*w->last = w->batch;
	w->last = w->batch_end;
	pthread_mutex_unlock(&w->lock);
	w->batch = NULL;
	w->batch_end = &w->batch;
	w->n_batch = 0;
	kicker_news(w->t->f->kicker);
	pthread_mutex_lock(&w->lock);
	while (w->first && !w->stop)
		pthread_cond_wait(&w->changed, &w->lock);
	pthread_mutex_unlock(&w->lock);
	wait_until(w, now + (pause > PAUSE_US ? pause : PAUSE_US));
}

struct work_news *work_news_take(struct work_watch *w)
{
	struct work_news *one;

	pthread_mutex_lock(&w->lock);
	one = w->first;
	if (one)
		w->first = one->next;
	if (one && !w->first) {
		w->last = &w->first;
		pthread_cond_signal(&w->changed);
	}
	pthread_mutex_unlock(&w->lock);
	return one;
}

/* ---- events ---------------------------------------------------------------------------------- */

struct place {
	struct work_node *dir; /* pinned; NULL: of no interest */
	const char *name;
	char self[NAME_MAX + 1];
};

/* It is about the directory itself, which is a name in its parent. Under the table's lock. */
static void of_itself(const struct work_node *n, struct place *p)
{
	p->dir = n->parent && n->parent->mark ? n->parent : NULL;
	(void)snprintf(p->self, sizeof(p->self), "%s", n->name);
}

/* Events stand at multiples of four: what is in one is copied out of it. */
static void place_of(struct work_watch *w, const char *info, struct place *p)
{
	const char *handle = info + offsetof(struct fanotify_event_info_fid, handle);
	const unsigned char *bytes =
		(const unsigned char *)handle + offsetof(struct file_handle, f_handle);
	struct file_handle h;
	struct work_mark *m;

	memcpy(&h, handle, sizeof(h));
	p->name = (const char *)bytes + h.handle_bytes;
	pthread_mutex_lock(&w->t->lock);
	m = work_mark_find(w, bytes, h.handle_bytes, h.handle_type);
	p->dir = m ? m->n : NULL;
	if (m && strcmp(p->name, ".") == 0) {
		of_itself(m->n, p);
		p->name = p->self;
	}
	if (p->dir)
		p->dir->pins++; /* it is not among those whose descriptor may be closed */
	pthread_mutex_unlock(&w->t->lock);
}

static unsigned what_of(uint64_t mask)
{
	static const struct {
		uint64_t event;
		unsigned what;
	} map[] = {
		{ FAN_CREATE, WORK_MADE },
		{ FAN_DELETE, WORK_GONE },
		{ FAN_MODIFY, WORK_WRITTEN },
		{ FAN_CLOSE_WRITE, WORK_CLOSED },
		{ FAN_ATTRIB, WORK_ATTRIB },
		{ FAN_MOVED_FROM, WORK_GONE },
		{ FAN_MOVED_TO, WORK_MADE | WORK_CLOSED },
	};
	unsigned what = 0;

	for (size_t i = 0; i < SBX_COUNT(map); i++)
		if (mask & map[i].event)
			what |= map[i].what;
	return what;
}

/* Others wrote although no run is active, as far as is known: what the kernel was told is not true
 * any more. */
static void others_were_here(struct work_watch *w, struct work *one)
{
	if (atomic_load(&one->busy) || w->told_stale == one)
		return;
	w->told_stale = one;
	work_stale(one);
}

static void take_event(struct work_watch *w, const struct fanotify_event_metadata *m,
		       const char *event)
{
	const char *at = event + m->metadata_len, *end = event + m->event_len;
	struct place old = { .dir = NULL }, new = { .dir = NULL };
	struct fanotify_event_info_header info;
	bool is_dir = m->mask & FAN_ONDIR;

	for (; at < end; at += info.len) {
		memcpy(&info, at, sizeof(info));
		if (info.info_type == INFO_NEW && !new.dir)
			place_of(w, at, &new);
		else if ((info.info_type == INFO_OLD ||
			  info.info_type == FAN_EVENT_INFO_TYPE_DFID_NAME) &&
			 !old.dir)
			place_of(w, at, &old);
	}
	if (old.dir)
		others_were_here(w, old.dir->work);
	if (new.dir)
		others_were_here(w, new.dir->work);
	if (old.dir && new.dir && old.dir->work == new.dir->work) {
		add_news(w, old.dir, old.name, new.dir, new.name, WORK_MOVED, is_dir);
		return;
	}
	/* The other half of a rename is where nobody has looked. */
	if (old.dir)
		add_news(w, old.dir, old.name, NULL, NULL,
			 m->mask & RENAME_EVENT ? WORK_GONE : what_of(m->mask), is_dir);
	if (new.dir)
		add_news(w, new.dir, new.name, NULL, NULL, WORK_MADE | WORK_CLOSED, is_dir);
}

static void look_at_all(struct work_watch *w)
{
	int64_t now = sbx_boot_us();

	if (!w->logged_us || now - w->logged_us > LOG_EVERY_US)
		sbx_log(SBX_LOG_WARNING, "too much happens in workspaces: watchers may miss some");
	w->logged_us = now;
	pthread_mutex_lock(&w->t->lock);
	for (size_t i = 0; i < MARK_BUCKETS; i++) {
		for (struct work_mark *m = w->marks[i]; m; m = m->next) {
			if (!m->look)
				m->since_us = w->seen_us;
			m->look = true;
			m->due_us = 0;
		}
	}
	w->look = true;
	pthread_mutex_unlock(&w->t->lock);
}

/* One buffer full. False: there was nothing. */
static bool read_some(struct work_watch *w, bool *lost)
{
	char buf[32 << 10];
	struct fanotify_event_metadata m;
	ssize_t n = read(w->fan, buf, sizeof(buf));

	for (ssize_t at = 0; at < n; at += m.event_len) {
		memcpy(&m, buf + at, sizeof(m));
		if (m.mask & FAN_Q_OVERFLOW)
			*lost = true;
		else if (m.pid != w->pid)
			take_event(w, &m, buf + at);
	}
	return n > 0;
}

/* What is there, which is mostly our own when that is much. */
static void read_events(struct work_watch *w)
{
	int64_t now = sbx_now_us();
	bool lost = false, more = true;

	w->told_stale = NULL;
	for (int i = 0; i < READS && more && w->n_batch < BATCH; i++)
		more = read_some(w, &lost);
	if (lost) {
		atomic_store(&w->lost_us, now);
		atomic_store(&w->unsaid, true);
		look_at_all(w);
	} else if (!more)
		w->seen_us = now;
	publish(w);
}

/* ---- looking through a directory ------------------------------------------------------------- */

static bool is_newer(const struct statx_timestamp *t, int64_t since_us)
{
	/* The kernel's clock of files is a tick behind. */
	return t->tv_sec * SBX_SECOND_US + t->tv_nsec / 1000 >= since_us - SETTLE_US;
}

static unsigned newer(const struct statx *sx, const struct work_mark *m)
{
	unsigned what = 0;

	if (m->since_us == 0 || m->replaced || !(sx->stx_mask & STATX_BTIME) ||
	    is_newer(&sx->stx_btime, m->since_us))
		return WORK_MADE | WORK_CLOSED | (m->replaced ? WORK_GONE : 0);
	if (S_ISREG(sx->stx_mode) && is_newer(&sx->stx_mtime, m->since_us))
		what |= WORK_WRITTEN | WORK_CLOSED;
	if (!what && is_newer(&sx->stx_ctime, m->since_us))
		what |= WORK_ATTRIB;
	return what;
}

/* What the kernel knew in the directory before is news when it is not in this one. */
static void look_for_gone(struct work_watch *w, struct work_node *n)
{
	sbx_autobuf names = SBX_BUF_INIT((size_t)LOOK_NAMES * (NAME_MAX + 2));
	struct stat st;

	work_names(n, &names);
	for (size_t at = 0; at < names.len; at += strlen(names.data + at) + 1) {
		const char *name = names.data + at + 1;

		if (fstatat(n->fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
			continue;
		work_pin_more(n);
		add_news(w, n, name, NULL, NULL, WORK_GONE, names.data[at] == 'd');
	}
}

/* Takes the pin. */
static void look_through(struct work_watch *w, struct work_node *n, const struct work_mark *m)
{
	int fd = sbx_open_beneath(n->fd, ".", O_RDONLY | O_DIRECTORY, 0);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *d;
	struct statx sx;
	int left = LOOK_NAMES;

	if (!dir)
		sbx_closep(&fd);
	while (dir && left > 0 && (d = readdir(dir))) {
		unsigned what;

		if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0 ||
		    statx(n->fd, d->d_name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME,
			  &sx) < 0)
			continue;
		what = newer(&sx, m);
		if (!what)
			continue;
		work_pin_more(n);
		add_news(w, n, d->d_name, NULL, NULL, what, S_ISDIR(sx.stx_mode));
		left--;
	}
	if (dir)
		closedir(dir);
	if (m->replaced)
		look_for_gone(w, n);
	work_unpin(n);
}

/* One that is to be looked through, pinned; its mark is copied. NULL: none now, and the next one at
 * that time, INT64_MAX: none. */
static struct work_node *next_look(struct work_watch *w, struct work_mark *ret, int64_t *ret_at)
{
	int64_t now = sbx_boot_us();
	struct work_node *n = NULL;

	*ret_at = INT64_MAX;
	pthread_mutex_lock(&w->t->lock);
	for (size_t i = 0; w->look && i < MARK_BUCKETS && !n; i++) {
		for (struct work_mark *m = w->marks[i]; m; m = m->next) {
			if (m->look && m->due_us > now && m->due_us < *ret_at)
				*ret_at = m->due_us;
			if (!m->look || m->due_us > now)
				continue;
			*ret = *m;
			m->look = m->replaced = false;
			m->since_us = 0;
			n = m->n;
			n->pins++;
			w->looked[w->n_looked++ % LOOKED] = n->is;
			break;
		}
	}
	w->look &= n || *ret_at != INT64_MAX;
	pthread_mutex_unlock(&w->t->lock);
	return n;
}

static bool stopped(struct work_watch *w)
{
	bool stop;

	pthread_mutex_lock(&w->lock);
	stop = w->stop;
	pthread_mutex_unlock(&w->lock);
	return stop;
}

static int wait_ms(int64_t at_us)
{
	int64_t left = (at_us - sbx_boot_us()) / 1000 + 1;

	return at_us == INT64_MAX ? -1 : left > 0 ? (int)left : 0;
}

static void *watch_thread(void *arg)
{
	struct work_watch *w = arg;
	struct pollfd p[2] = { { .fd = w->fan, .events = POLLIN },
			       { .fd = w->wake, .events = POLLIN } };
	struct work_mark m;
	struct work_node *n;
	uint64_t count;
	int64_t at, say_at;

	while (!stopped(w)) {
		say_at = work_say(w);
		while (w->n_batch < BATCH && (n = next_look(w, &m, &at)))
			look_through(w, n, &m);
		if (w->n_batch) {
			publish(w);
			continue;
		}
		if (poll(p, SBX_COUNT(p), wait_ms(at < say_at ? at : say_at)) <= 0)
			continue;
		if (p[1].revents && read(w->wake, &count, sizeof(count)) < 0)
			break;
		wait_until(w, sbx_boot_us() + SETTLE_US);
		if (p[0].revents)
			read_events(w);
	}
	return NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

static struct work_watch *make(struct work_table *t)
{
	struct work_watch *w = calloc(1, sizeof(*w));
	pthread_condattr_t attr;

	if (!w)
		return NULL;
	w->t = t;
	w->pid = getpid();
	w->max = t->open_max / 2 < WATCH_MAX ? t->open_max / 2 : WATCH_MAX;
	w->last = &w->first;
	w->batch_end = &w->batch;
	w->seen_us = sbx_now_us();
	w->wake = eventfd(0, EFD_CLOEXEC);
	w->fan = fanotify_init(FAN_CLASS_NOTIF | FAN_CLOEXEC | FAN_NONBLOCK | FAN_REPORT_DFID_NAME,
			       O_RDONLY);
	pthread_mutex_init(&w->order, NULL);
	pthread_mutex_init(&w->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&w->changed, &attr);
	pthread_condattr_destroy(&attr);
	return w;
}

int work_watch_start(struct work_table *t, struct sbx_error *e)
{
	struct work_watch *w;
	int r;

	if (!t->f->kicker)
		return 0;
	w = make(t);
	if (!w)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	if (w->fan < 0 || w->wake < 0 || work_mark_try(w) < 0) {
		sbx_log(SBX_LOG_WARNING,
			"what runs do in workspaces raises no inotify events error=\"%s\"",
			strerror(errno));
		work_watch_free(w);
		work_say_none(t->f);
		return 0;
	}
	r = pthread_create(&w->thread, NULL, watch_thread, w);
	if (r != 0) {
		work_watch_free(w);
		return sbx_fail_errno(e, SBX_E_INTERNAL, r, "cannot start a thread");
	}
	t->watch = w;
	return 0;
}

void work_watch_stop(struct work_watch *w, struct fsd *f)
{
	if (!w) {
		work_say_no_more(f);
		return;
	}
	pthread_mutex_lock(&w->lock);
	w->stop = true;
	pthread_cond_signal(&w->changed);
	pthread_mutex_unlock(&w->lock);
	atomic_store(&w->stopping, true);
	store_look_again(w->t->f->store);
	work_watch_wake(w);
	pthread_join(w->thread, NULL);
	work_say_no_more(f);
}

void work_watch_free(struct work_watch *w)
{
	struct work_news *one;

	if (!w)
		return;
	while ((one = work_news_take(w)))
		work_news_free(one);
	sbx_closep(&w->fan);
	sbx_closep(&w->wake);
	pthread_mutex_destroy(&w->order);
	pthread_mutex_destroy(&w->lock);
	pthread_cond_destroy(&w->changed);
	free(w);
}
