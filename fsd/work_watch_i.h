/* SPDX-License-Identifier: Apache-2.0 */
/* Private to work_watch.c, which reads what happens, work_mark.c, which says where, and work_say.c,
 * which tells what may have been missed. */
#ifndef SBX_FSD_WORK_WATCH_I_H
#define SBX_FSD_WORK_WATCH_I_H

#include "fsd/work_i.h"

enum {
	HANDLE_MAX = 64, /* bytes that a file system names a file by */
	MARK_BUCKETS = 1024,
	LOOKED = 256,		   /* directories that are not looked through as fresh ones again */
	RENAME_EVENT = 0x10000000, /* FAN_RENAME, Linux 5.17; not in older headers */
};

struct work_mark {
	struct work_mark *next;
	struct work_node *n; /* not counted: goes with it */
	bool look;	     /* through it, for what is newer than `since` */
	bool replaced;	     /* and it was another directory before */
	int64_t since_us;
	int64_t due_us, last_us; /* boot clock: not before, but then at the latest */
	unsigned len;
	int type;
	unsigned char bytes[HANDLE_MAX];
};

struct work_watch {
	struct work_table *t;
	pthread_t thread;
	int fan, wake; /* owned */
	pid_t pid;
	pthread_mutex_t order; /* of adding and removing marks */
	/* Under the table's lock. */
	struct work_mark *marks[MARK_BUCKETS];
	size_t n_marks, max;
	struct work_identity looked[LOOKED]; /* a ring */
	size_t n_looked;
	bool look;
	/* For the kicker. */
	pthread_mutex_t lock;
	pthread_cond_t changed; /* CLOCK_MONOTONIC */
	struct work_news *first, **last;
	bool stop;
	/* What health is to say; wall clock, 0: never. */
	_Atomic int64_t unwatched_us, lost_us;
	atomic_bool unsaid;   /* set behind these, when one is newer than what was said */
	atomic_bool stopping; /* so that nothing waits for the store any more */
	/* Of the thread alone. */
	int64_t said_us; /* boot clock */
	struct work_news *batch, **batch_end;
	size_t n_batch;
	int64_t seen_us; /* until then nothing was lost */
	int64_t logged_us;
	struct work *told_stale; /* of this batch; only compared */
	bool no_rename;
};

/* The mark of the directory with this handle; under the table's lock. */
struct work_mark *work_mark_find(struct work_watch *w, const unsigned char *bytes, unsigned len,
				 int type);
/* Can directories be watched at all? Finds out whether the kernel knows renames. errno. */
int work_mark_try(struct work_watch *w);
/* work_say.c: what is not said yet, to whoever reads health. Gives when to come again, on the boot
 * clock; INT64_MAX: when there is something new. */
int64_t work_say(struct work_watch *w);
void work_say_none(struct fsd *f); /* workspaces cannot be watched */
/* For a stop, which does not wait for whoever holds the store: who is over is not believed anyway.
 */
void work_say_no_more(struct fsd *f);
/* The thread has something to look through. */
void work_watch_wake(struct work_watch *w);

#endif
