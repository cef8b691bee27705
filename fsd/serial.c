/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which inode a look-up of runs/new or runs/check gets. The kernel lets only one write at a time
 * into an inode, and whoever waits for that cannot be interrupted, while submitting must go on side
 * by side. So each look-up gets an inode that nobody else has: a new one, or the one that was
 * closed last, which the kernel still knows by that name and need not ask about twice. What counts
 * is who has it open: the kernel looks up again what it finds changed, and stat() opens nothing.
 *
 * But under a name the kernel has one inode at a time. Of a crowd that opens the name at once, one
 * gets an answer and all others find that it is not theirs and ask again, n * n / 2 look-ups in
 * all: a quarter of the CPU time of a hundred runs. Hence those who come at once share an inode, up
 * to SHARED of them, unless writes take long just then.
 *
 * Only clients of one user do: the kernel fetches what is written while it holds the inode, and
 * from memory that is slow on purpose (a mapped file of another FUSE server) it does so for as long
 * as the writer likes.
 */
#include "fsd/fsd_i.h"

#include "base/clock.h"

enum {
	SHARED = 8,
	AT_ONCE_US = 1000, /* from the first of them to the last */
};

int64_t serial_new(struct fsd *f)
{
	return atomic_fetch_add(&f->serial, 1) + 1;
}

int64_t serial_take(struct fsd *f, int index, uid_t uid)
{
	struct serial_share *s = &f->shares[index];
	int64_t now = sbx_boot_us(), ret;
	bool late = writers_late(f->writers);

	pthread_mutex_lock(&f->shares_lock);
	if (!late && s->uid == uid && s->given > 0 && s->given < SHARED &&
	    now < s->first_us + AT_ONCE_US) {
		s->given++;
	} else {
		s->serial = s->spare && s->uid == uid ? s->serial : serial_new(f);
		s->uid = uid;
		s->given = 1;
		s->open = 0;
		s->first_us = now;
	}
	s->spare = false;
	ret = s->serial;
	pthread_mutex_unlock(&f->shares_lock);
	return ret;
}

void serial_opened(struct fsd *f, int index, int64_t serial)
{
	struct serial_share *s = &f->shares[index];

	pthread_mutex_lock(&f->shares_lock);
	if (serial == s->serial) {
		s->open++;
		s->spare = false;
	}
	pthread_mutex_unlock(&f->shares_lock);
}

void serial_closed(struct fsd *f, int index, int64_t serial)
{
	struct serial_share *s = &f->shares[index];

	pthread_mutex_lock(&f->shares_lock);
	if (serial == s->serial && s->open > 0 && --s->open == 0)
		s->spare = true;
	pthread_mutex_unlock(&f->shares_lock);
}
