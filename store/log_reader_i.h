/* SPDX-License-Identifier: Apache-2.0 */
/* What log_look.c and log_read.c share: a reader, after its last look at row and files. */
#ifndef SBX_STORE_LOG_READER_I_H
#define SBX_STORE_LOG_READER_I_H

#include "base/auto.h"
#include "store/log_i.h"

enum {
	BLOCK = 64,			    /* records read at once */
	LINE_MAX = LOG_FRAME_MAX * 6 + 512, /* every byte as \u00xx, and the members around */
};

struct log_reader {
	struct store *store; /* borrowed; NULL: somebody else knows the facts and the directory */
	char id[37];
	struct log_facts facts;
	int dir_fd, idx_fd, log_fd;
	struct log_header header;    /* zeroes while there is none */
	uint64_t records;	     /* in log.idx, whole and with all their bytes */
	struct log_record stored;    /* the last of them; zeroes when there is none */
	struct log_record start;     /* frame 1; type 0: the command has not begun */
	struct log_record end, last; /* `end` (type 0: not over), and the last frame there is */
	uint64_t frames;

	struct log_record block[BLOCK]; /* block_first and those behind it */
	uint64_t block_first;
	size_t block_n;

	struct sbx_buf line; /* frame line_seq with its newline; 0: none */
	uint64_t line_seq;
};

#endif
