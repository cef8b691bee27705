/* SPDX-License-Identifier: Apache-2.0 */
/* What park.c and poll.c share: the handles of nodes that wait, and the table of who waits. */
#ifndef SBX_FSD_PARK_I_H
#define SBX_FSD_PARK_I_H

#include "fsd/fsd_i.h"

enum { PARK_BUCKETS = 1024, PARK_BATCH = 64 };

struct waiter;

struct stream_handle {
	struct handle h;
	enum ms_view view;
	struct orch_principal who;
	pthread_mutex_t lock; /* cursor and log, for reads of dup'ed descriptors */
	/* .wait: the answer, once given, and what of it was read. */
	char answer[32];
	size_t answer_len, answer_off;
	/* .stream: position in the NDJSON; .events: highest seq seen. */
	int64_t at;
	struct log_reader *log; /* owned */
	bool watching;
	struct sbx_buf rest; /* of a line that did not fit the reader's buffer */
	size_t rest_off;
	struct fuse_pollhandle *poll;	   /* owned, under parking->lock */
	struct stream_handle *prev, *next; /* all stream handles, under parking->lock */
};

struct parking {
	struct fsd *f;
	pthread_mutex_t lock;
	struct waiter *by_req[PARK_BUCKETS];
	struct waiter *by_row[PARK_BUCKETS];
	struct stream_handle *streams;
	struct text_handle *polled; /* status handles that were polled */
};

/* Tells the kernel about every polled handle of this row (0: .events) with one of these views, and
 * about a polled `status` of the row. Feed thread. */
void poll_notify(struct parking *p, int64_t row, enum ms_view a, enum ms_view b);

#endif
