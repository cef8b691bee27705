/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inotify for what happens behind the kernel's back. The kernel raises events for operations that go
 * through the mount, so this thread performs one that changes nothing, and the handlers know it by
 * its thread id: mkdir of a new run gives IN_CREATE, an open for writing with a truncate to the present
 * size and a close gives IN_MODIFY and IN_CLOSE_WRITE on `status`, mkdir and mknod of what was
 * captured give IN_CREATE in `artifacts`.
 *
 * Only this thread ever uses the mount from inside, and no handler waits for it. A path is opened
 * anew each time and checked to be our mount, so that nothing keeps it busy.
 */
#include "fsd/fsd_i.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"

enum {
	KICK_NAMES = 1000, /* artifacts of one run that are announced; whoever watches lists anyway */
	KICK_AFTER_MS = 20,  /* so that what happens at once is told at once, in one go */
	KICK_EVERY_MS = 100, /* at most ten a second for one node */
	KICK_MAX = 4096,     /* runs that may be waiting for a kick; beyond that, watchers miss some */
};

struct kick {
	struct kick *next;
	int64_t row;
	char id[37];
	unsigned what; /* enum kick_what bits still to do */
	int64_t not_before_us;
};

struct kicker {
	struct fsd *f;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake; /* CLOCK_MONOTONIC */
	struct kick *first, *last;
	size_t n;
	bool stop;
	dev_t dev; /* of the mount, seen by this thread */
};

void kicker_add(struct kicker *k, int64_t row, const char *id, unsigned what)
{
	struct kick *one;

	if (!k)
		return;
	pthread_mutex_lock(&k->lock);
	for (one = k->first; one && one->row != row;)
		one = one->next;
	if (one) {
		one->what |= what;
	} else if (k->n < KICK_MAX && (one = calloc(1, sizeof(*one)))) {
		one->row = row;
		one->what = what;
		one->not_before_us = sbx_boot_us() + KICK_AFTER_MS * INT64_C(1000);
		(void)snprintf(one->id, sizeof(one->id), "%s", id);
		if (k->last)
			k->last->next = one;
		else
			k->first = one;
		k->last = one;
		k->n++;
	}
	if (k->n == 1) /* the thread sleeps until the first of them is due */
		pthread_cond_signal(&k->wake);
	pthread_mutex_unlock(&k->lock);
}

/* The mount's root, or -1 when what is there is not us (any more). */
static int open_root(struct kicker *k)
{
	int fd = open(k->f->mountpoint, O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct stat st;

	if (fd < 0)
		return -1;
	if (fstat(fd, &st) < 0 || st.st_ino != FUSE_ROOT_ID || (k->dev && st.st_dev != k->dev)) {
		close(fd);
		return -1;
	}
	k->dev = st.st_dev;
	return fd;
}

static void kick_new(int root, const char *id)
{
	char path[64];

	(void)snprintf(path, sizeof(path), "runs/%s", id);
	/* Whoever looked the name up meanwhile made the kernel know it; its answer to that had no
	 * life time (announced_row), so the kernel asks again, and we say that it is not there. */
	for (int tries = 0; tries < 3; tries++)
		if (mkdirat(root, path, 0700) == 0 || errno != EEXIST)
			break;
}

/* The size asked for is of no interest: the answer carries the true one. */
static void kick_status(int root, const char *id)
{
	sbx_autoclose int fd = -1;
	char path[64];

	(void)snprintf(path, sizeof(path), "runs/%s/status", id);
	fd = openat(root, path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0 || ftruncate(fd, 1) < 0)
		return;
}

/* What was captured came all at once. Folders below the first level need no event: whoever hears of
 * a folder looks into it. */
static void kick_artifacts(struct kicker *k, int root, const char *id)
{
	sbx_autoclose int run = store_run_dir(k->f->store, id, false, NULL);
	int fd = run < 0 ? -1 : sbx_open_beneath(run, "artifacts", O_RDONLY | O_DIRECTORY, 0);
	DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
	struct dirent *d;
	char path[64 + NAME_MAX + 1];

	if (!dir) {
		sbx_closep(&fd); /* they expired, or there never were any */
		return;
	}
	for (int n = 0; n < KICK_NAMES && (d = readdir(dir)); n++) {
		if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0)
			continue;
		(void)snprintf(path, sizeof(path), "runs/%s/artifacts/%s", id, d->d_name);
		if (d->d_type == DT_DIR)
			(void)mkdirat(root, path, 0500);
		else if (d->d_type == DT_REG)
			(void)mknodat(root, path, S_IFREG | 0400, 0);
	}
	closedir(dir);
}

static void announce(struct kicker *k, const struct kick *one, unsigned what)
{
	sbx_autoclose int root = open_root(k);

	if (root < 0)
		return;
	if (what & KICK_NEW)
		kick_new(root, one->id);
	if (what & KICK_STATUS)
		kick_status(root, one->id);
	if (what & KICK_ARTIFACTS)
		(void)fuse_lowlevel_notify_inval_entry(k->f->se, ino_make(one->row, MS_N_RUN),
						       "artifacts", strlen("artifacts"));
	if (what & KICK_ARTIFACTS)
		kick_artifacts(k, root, one->id);
}

/* The next kick whose time has come, taken out of the list; else how long to wait. Under the lock. */
static struct kick *next_kick(struct kicker *k, int64_t now, int64_t *ret_at)
{
	struct kick **at, *prev = NULL, *one;

	*ret_at = INT64_MAX;
	for (at = &k->first; (one = *at); prev = one, at = &one->next) {
		if (one->what && one->not_before_us <= now) {
			*at = one->next;
			if (k->last == one)
				k->last = prev;
			k->n--;
			return one;
		}
		if (!one->what && one->not_before_us <= now) {
			/* Quiet for a while: forget it. */
			*at = one->next;
			if (k->last == one)
				k->last = prev;
			k->n--;
			free(one);
			return next_kick(k, now, ret_at);
		}
		if (one->not_before_us < *ret_at)
			*ret_at = one->not_before_us;
	}
	return NULL;
}

static void wait_until(struct kicker *k, int64_t at_us, int64_t now_us)
{
	struct timespec ts;

	if (at_us == INT64_MAX) {
		pthread_cond_wait(&k->wake, &k->lock);
		return;
	}
	(void)clock_gettime(CLOCK_MONOTONIC, &ts);
	ts.tv_nsec += (at_us - now_us) % SBX_SECOND_US * 1000;
	ts.tv_sec += (at_us - now_us) / SBX_SECOND_US + ts.tv_nsec / 1000000000;
	ts.tv_nsec %= 1000000000;
	(void)pthread_cond_timedwait(&k->wake, &k->lock, &ts);
}

/* Puts it back with its pause, which also holds for what was added meanwhile. */
static void put_back(struct kicker *k, struct kick *one)
{
	for (struct kick *other = k->first; other; other = other->next) {
		if (other->row == one->row) {
			other->not_before_us = one->not_before_us;
			free(one);
			return;
		}
	}
	one->next = NULL;
	if (k->last)
		k->last->next = one;
	else
		k->first = one;
	k->last = one;
	k->n++;
}

static void *kicker_thread(void *arg)
{
	struct kicker *k = arg;

	/* Watchers can wait; runs and their readers cannot. */
	(void)setpriority(PRIO_PROCESS, (id_t)gettid(), 19);
	atomic_store(&k->f->kicker_tid, gettid());
	pthread_mutex_lock(&k->lock);
	while (!k->stop) {
		int64_t at, now = sbx_boot_us();
		struct kick *one = next_kick(k, now, &at);
		unsigned what;

		if (!one) {
			wait_until(k, at, now);
			continue;
		}
		what = one->what;
		one->what = 0;
		pthread_mutex_unlock(&k->lock);
		announce(k, one, what);
		if ((what & KICK_NEW) && one->row > atomic_load(&k->f->announced_row))
			atomic_store(&k->f->announced_row, one->row);
		pthread_mutex_lock(&k->lock);
		one->not_before_us = sbx_boot_us() + KICK_EVERY_MS * INT64_C(1000);
		put_back(k, one);
	}
	pthread_mutex_unlock(&k->lock);
	return NULL;
}

struct kicker *kicker_start(struct fsd *f, struct sbx_error *e)
{
	struct kicker *k = calloc(1, sizeof(*k));
	pthread_condattr_t attr;
	int r;

	if (!k) {
		sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the kicker");
		return NULL;
	}
	k->f = f;
	pthread_mutex_init(&k->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&k->wake, &attr);
	pthread_condattr_destroy(&attr);
	r = pthread_create(&k->thread, NULL, kicker_thread, k);
	if (r != 0) {
		sbx_fail_errno(e, SBX_E_INTERNAL, r, "cannot start the kicker");
		free(k);
		return NULL;
	}
	return k;
}

void kicker_stop(struct kicker *k)
{
	struct kick *one;

	if (!k)
		return;
	pthread_mutex_lock(&k->lock);
	k->stop = true;
	pthread_cond_signal(&k->wake);
	pthread_mutex_unlock(&k->lock);
	pthread_join(k->thread, NULL);
	while ((one = k->first)) {
		k->first = one->next;
		free(one);
	}
	pthread_cond_destroy(&k->wake);
	pthread_mutex_destroy(&k->lock);
	free(k);
}
