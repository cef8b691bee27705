/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inotify for what happens behind the kernel's back. The kernel raises events for operations that
 * go through the mount, so this thread performs one that changes nothing, and the handlers know it
 * by its thread id: mkdir of a new run gives IN_CREATE, an open for writing with a truncate to the
 * present size and a close gives IN_MODIFY and IN_CLOSE_WRITE on `status`, mkdir and mknod of what
 * was captured give IN_CREATE in `artifacts`, and a symlink gives it in by/phase/PHASE when the run
 * has come there and somebody may watch that.
 *
 * Only this thread ever uses the mount from inside, and no handler waits for it. It goes in by a
 * copy of the mount that is attached nowhere, so that it never keeps the visible one busy, and lets
 * go of the copy when the visible one is gone, for else the file system would live on. Where the
 * kernel makes no such copy (it is for root), the path is opened anew each time and checked to be
 * our mount; an umount in just that moment hears that it is busy.
 *
 * The thread has a table of descriptors of its own, without /dev/fuse in it. When the process is
 * killed while a kick waits for its answer, the thread cannot end before /dev/fuse is closed, and
 * with a shared table that would be never: the mount would hang for everybody.
 */
#include "fsd/fsd_i.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"

enum {
	KICK_NAMES =
		1000, /* artifacts of one run that are announced; whoever watches lists anyway */
	KICK_AFTER_MS = 20,  /* so that what happens at once is told at once, in one go */
	KICK_TRIES = 20,     /* to announce one run, KICK_EVERY_MS apart */
	KICK_EVERY_MS = 100, /* at most ten a second for one node */
	KICK_MAX = 4096, /* runs that may be waiting for a kick; beyond that, watchers miss some */
	VISIBLE_TRIES = 8, /* looks at a table of mounts that changes meanwhile */
};

struct kick {
	struct kick *next;
	int64_t row;
	char id[37];
	unsigned what;	 /* enum kick_what bits still to do */
	unsigned failed; /* times that it could not be announced */
	int64_t not_before_us;
};

struct kicker {
	struct fsd *f;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake; /* CLOCK_MONOTONIC */
	struct kick *first, *last;
	size_t n;
	int64_t newest; /* row of the newest run whose news came */
	int64_t busy;	/* row of the run that is being announced, 0: none */
	bool serving;	/* requests are answered, so the thread may make some */
	bool news;	/* of workspaces */
	bool stop;
	bool unmounted; /* nobody can watch any more */
	int mounts;	/* owned; polls when the table of mounts changes */
	/* Of the thread's own table; owned. */
	int state; /* the state directory */
	int copy;  /* the root of the copy, -1: by path */
	/* Of the mount; 0 while unknown. Written by the thread alone. */
	_Atomic dev_t dev;
};

/* Below the oldest run that still waits for its announcement, whatever became of later ones. Under
 * the lock. */
static void move_mark(struct kicker *k)
{
	int64_t mark = k->newest;

	if (k->busy && k->busy <= mark)
		mark = k->busy - 1;
	for (const struct kick *one = k->first; one; one = one->next)
		if ((one->what & KICK_NEW) && one->row <= mark)
			mark = one->row - 1;
	atomic_store(&k->f->announced_row, mark);
}

void kicker_add(struct kicker *k, int64_t row, const char *id, unsigned what)
{
	struct kick *one;

	if (!k)
		return;
	pthread_mutex_lock(&k->lock);
	if (k->unmounted) {
		pthread_mutex_unlock(&k->lock);
		return;
	}
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
	if ((what & KICK_NEW) && row > k->newest)
		k->newest = row;
	if (what & KICK_NEW)
		move_mark(k);
	if (k->n == 1) /* the thread sleeps until the first of them is due */
		pthread_cond_signal(&k->wake);
	pthread_mutex_unlock(&k->lock);
}

void kicker_news(struct kicker *k)
{
	pthread_mutex_lock(&k->lock);
	k->news = true;
	pthread_cond_signal(&k->wake);
	pthread_mutex_unlock(&k->lock);
}

void kicker_serving(struct kicker *k)
{
	if (!k)
		return;
	pthread_mutex_lock(&k->lock);
	k->serving = true;
	pthread_cond_signal(&k->wake);
	pthread_mutex_unlock(&k->lock);
}

int kicker_mounts_fd(const struct kicker *k)
{
	return k ? k->mounts : -1;
}

/* 1: there is a mount of this device, 0: there is none, -1: not known. */
static int find_mount(FILE *f, dev_t dev)
{
	char *line = NULL;
	size_t size = 0;
	int found = 0;
	unsigned major_no, minor_no;

	while (!found && getline(&line, &size, f) > 0)
		found = sscanf(line, "%*d %*d %u:%u", &major_no, &minor_no) == 2 &&
			makedev(major_no, minor_no) == dev;
	if (!found && (ferror(f) || !feof(f)))
		found = -1;
	free(line);
	return found;
}

/*
 * That the mount is gone is believed for ever, so it must be certain: the table is read a page at a
 * time, and a look at one that changes meanwhile proves nothing. The file says when it has changed
 * since it was opened, and then there is another look. Whoever finds no quiet moment takes the
 * mount for there: the changes that were in the way make the main thread come again.
 */
static bool is_visible(struct kicker *k)
{
	dev_t dev = atomic_load(&k->dev);

	for (int tries = 0; dev && tries < VISIBLE_TRIES; tries++) {
		FILE *f = fopen("/proc/self/mountinfo", "re");
		struct pollfd p = { .fd = f ? fileno(f) : -1, .events = POLLPRI };
		int found = f ? find_mount(f, dev) : -1;
		bool changed = found == 0 && poll(&p, 1, 0) != 0;

		if (f)
			(void)fclose(f);
		if (found == 0 && !changed)
			return false;
		if (found == 1)
			return true;
	}
	return true; /* rather busy than blind */
}

bool kicker_mounts_changed(struct kicker *k)
{
	if (is_visible(k))
		return true;
	pthread_mutex_lock(&k->lock);
	k->unmounted = true; /* the thread closes the copy, which it may be using */
	pthread_cond_signal(&k->wake);
	pthread_mutex_unlock(&k->lock);
	return false;
}

/* A table of descriptors for this thread, with nothing of the process in it. */
static bool leave_table(void)
{
	if (close_range(0, ~0U, CLOSE_RANGE_UNSHARE) < 0)
		return false;
	/* Whatever a library may want to say. */
	for (int i = 0; i < 3; i++)
		if (open("/dev/null", O_RDWR | O_CLOEXEC) != i)
			return false;
	return true;
}

/* Takes the copy, if the kernel gives one. */
static void copy_mount(struct kicker *k)
{
	struct stat st;

	k->copy = open_tree(AT_FDCWD, k->f->mountpoint,
			    OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW);
	if (k->copy < 0)
		return;
	if (fstat(k->copy, &st) < 0 || st.st_ino != FUSE_ROOT_ID) {
		sbx_closep(&k->copy);
		return;
	}
	atomic_store(&k->dev, st.st_dev);
	/* It may have gone before there was a number to look for. */
	(void)kicker_mounts_changed(k);
}

/* The mount's root by path, or -1 when what is there is not us (any more). */
static int open_root(struct kicker *k)
{
	int fd = open(k->f->mountpoint, O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct stat st;

	if (fd < 0)
		return -1;
	if (fstat(fd, &st) < 0 || st.st_ino != FUSE_ROOT_ID ||
	    (atomic_load(&k->dev) && st.st_dev != atomic_load(&k->dev))) {
		close(fd);
		return -1;
	}
	atomic_store(&k->dev, st.st_dev);
	return fd;
}

/* 0 or an errno. While the run is `announcing`, our own look-ups do not find it, whoever made the
 * kernel know its name meanwhile: their answers had no life time (announced_row), so the kernel
 * asks again, and hears that it is not there. */
static int kick_new(struct kicker *k, int root, const struct kick *one)
{
	char path[64];
	int err;

	(void)snprintf(path, sizeof(path), "runs/%s", one->id);
	atomic_store(&k->f->announcing, one->row);
	err = mkdirat(root, path, 0700) < 0 ? errno : 0;
	atomic_store(&k->f->announcing, 0);
	return err;
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

/* Those it has left meanwhile say that it is not there. The target is of no interest. */
static void kick_phases(int root, const char *id, unsigned what)
{
	char path[80];

	for (int p = STORE_QUEUED; p < STORE_PHASE__COUNT; p++) {
		if (!(what & kick_phase((enum store_phase)p)))
			continue;
		(void)snprintf(path, sizeof(path), "by/phase/%s/%s",
			       store_phase_name((enum store_phase)p), id);
		if (symlinkat(id, root, path) < 0)
			continue;
	}
}

/* What was captured came all at once. Folders below the first level need no event: whoever hears of
 * a folder looks into it. When artifacts expired there is nothing left to open here. */
static void kick_artifacts(struct kicker *k, int root, const char *id)
{
	char path[64 + NAME_MAX + 1];
	unsigned char type;
	struct dirent *d;
	DIR *dir;
	int fd;

	(void)snprintf(path, sizeof(path), "runs/%s/artifacts", id);
	fd = sbx_open_beneath(k->state, path, O_RDONLY | O_DIRECTORY, 0);
	dir = fd >= 0 ? fdopendir(fd) : NULL;
	if (!dir) {
		sbx_closep(&fd); /* they expired, or there never were any */
		return;
	}
	for (int n = 0; n < KICK_NAMES && (d = readdir(dir)); n++) {
		if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0)
			continue;
		(void)snprintf(path, sizeof(path), "runs/%s/artifacts/%s", id, d->d_name);
		type = sbx_entry_type(dirfd(dir), d);
		if (type == DT_DIR)
			(void)mkdirat(root, path, 0500);
		else if (type == DT_REG)
			(void)mknodat(root, path, S_IFREG | 0400, 0);
	}
	closedir(dir);
}

/* What is left to do: KICK_NEW when the run could not be announced and shall be tried again. */
static unsigned announce(struct kicker *k, struct kick *one, unsigned what)
{
	sbx_autoclose int opened = k->copy < 0 ? open_root(k) : -1;
	int root = k->copy < 0 ? opened : k->copy;
	unsigned left = 0;
	int err = 0;

	if (root < 0)
		return 0;
	if (what & KICK_NEW)
		err = kick_new(k, root, one);
	if (err && err != ENOTCONN && err != ECONNABORTED && ++one->failed < KICK_TRIES)
		left = KICK_NEW;
	else if (err)
		sbx_log(SBX_LOG_WARNING, "run not announced to watchers run=%s error=\"%s\"",
			one->id, strerror(err));
	if (what & KICK_STATUS)
		kick_status(root, one->id);
	kick_phases(root, one->id, what);
	if (what & KICK_ARTIFACTS)
		kick_artifacts(k, root, one->id);
	return left;
}

/* The next kick whose time has come, taken out of the list; else how long to wait. Under the lock.
 */
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
			other->what |= one->what;
			other->failed = one->failed;
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

/* A request of ours before somebody answers would wait, and whoever stops us with it. What is news
 * meanwhile is kept. False: nobody ever will. */
static bool wait_for_servers(struct kicker *k)
{
	bool go;

	pthread_mutex_lock(&k->lock);
	while (!k->serving && !k->stop)
		pthread_cond_wait(&k->wake, &k->lock);
	go = !k->stop;
	pthread_mutex_unlock(&k->lock);
	return go;
}

/* Some of what happened in workspaces, between that of runs. Under the lock, which it gives up. */
static void tell_news(struct kicker *k)
{
	bool more;

	k->news = false;
	pthread_mutex_unlock(&k->lock);
	{
		sbx_autoclose int opened = k->copy < 0 ? open_root(k) : -1;

		more = work_tell(k->f, k->copy < 0 ? opened : k->copy);
	}
	pthread_mutex_lock(&k->lock);
	k->news |= more;
}

static void announce_one(struct kicker *k, struct kick *one)
{
	unsigned what = one->what;

	one->what = 0;
	k->busy = what & KICK_NEW ? one->row : 0;
	pthread_mutex_unlock(&k->lock);
	what = announce(k, one, what);
	pthread_mutex_lock(&k->lock);
	k->busy = 0;
	one->what = what;
	one->not_before_us = sbx_boot_us() + KICK_EVERY_MS * INT64_C(1000);
	put_back(k, one);
	move_mark(k);
}

static void *kicker_thread(void *arg)
{
	struct kicker *k = arg;

	/* Watchers can wait; runs and their readers cannot. But while it is in the kernel it may
	 * hold the lock of a directory, so it must get on among many who compute. */
	(void)setpriority(PRIO_PROCESS, (id_t)gettid(), 5);
	if (!wait_for_servers(k))
		return NULL;
	atomic_store(&k->f->kicker_tid, gettid());
	if (leave_table()) {
		k->state = open(store_dir(k->f->store), O_PATH | O_DIRECTORY | O_CLOEXEC);
		copy_mount(k);
		pthread_mutex_lock(&k->lock);
	} else { /* Linux before 5.9 */
		pthread_mutex_lock(&k->lock);
		k->unmounted = true;
		atomic_store(&k->f->announced_row, INT64_MAX);
	}
	while (!k->stop && !k->unmounted) {
		int64_t at, now = sbx_boot_us();
		struct kick *one = next_kick(k, now, &at);

		if (one)
			announce_one(k, one);
		if (k->news)
			tell_news(k);
		else if (!one)
			wait_until(k, at, now);
	}
	pthread_mutex_unlock(&k->lock);
	atomic_store(&k->f->kicker_tid, 0); /* the number may be somebody else's soon */
	sbx_closep(&k->state);
	sbx_closep(&k->copy); /* may end the file system, and with it the server */
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
	k->newest = atomic_load(&f->announced_row);
	k->state = k->copy = -1;
	k->mounts = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
	pthread_mutex_init(&k->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&k->wake, &attr);
	pthread_condattr_destroy(&attr);
	r = pthread_create(&k->thread, NULL, kicker_thread, k);
	if (r != 0) {
		sbx_fail_errno(e, SBX_E_INTERNAL, r, "cannot start the kicker");
		sbx_closep(&k->mounts);
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
	sbx_closep(&k->mounts);
	pthread_cond_destroy(&k->wake);
	pthread_mutex_destroy(&k->lock);
	free(k);
}
