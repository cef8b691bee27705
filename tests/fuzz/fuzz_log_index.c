/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as log.idx beside a log of fixed bytes: every view and frame is read, of a run that
 * lives and of one that has ended. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/fs.h"
#include "store/log_i.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LOG_BYTES = 5000, FRAMES = 200, READS = 200 };

static char dir[] = "/tmp/sbx-fuzz-log-XXXXXX";

static void remove_dir(void)
{
	(void)sbx_remove_tree(AT_FDCWD, dir);
}

static int open_dir(void)
{
	static int fd = -1;

	if (fd < 0) {
		if (!mkdtemp(dir))
			abort();
		(void)atexit(remove_dir);
		fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (fd < 0)
			abort();
	}
	return fd;
}

static void put_file(int dirfd, const char *name, const void *data, size_t size)
{
	sbx_autoclose int fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	if (fd < 0 || sbx_write_all(fd, data, size) < 0)
		abort();
}

static void read_all(int dirfd, const struct log_facts *facts)
{
	static char buf[3000];
	struct log_reader *r = NULL;

	if (log_reader_open_at(dirfd, &r, NULL) < 0)
		abort();
	if (log_reader_look(r, facts, NULL) < 0) {
		log_reader_close(r);
		return;
	}
	for (int v = 0; v < LOG_VIEW__COUNT; v++) {
		int64_t size = log_reader_size(r, (enum log_view)v), at = 0;

		/* Sizes may be lies: from the front, and a few reads near the end. */
		for (int i = 0; i < READS && at < size; i++) {
			ssize_t n =
				log_reader_read(r, (enum log_view)v, at, buf, sizeof(buf), NULL);

			if (n <= 0)
				break;
			at += n;
		}
		(void)log_reader_read(r, (enum log_view)v, size - 1, buf, sizeof(buf), NULL);
		(void)log_reader_read(r, (enum log_view)v, size / 2, buf, sizeof(buf), NULL);
	}
	for (uint64_t s = 1; s <= log_reader_frames(r) && s <= FRAMES; s++) {
		sbx_autobuf b = SBX_BUF_INIT(1 << 20);

		(void)log_reader_frame(r, s, &b, NULL);
	}
	(void)log_reader_look(r, facts, NULL);
	log_reader_close(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char bytes[LOG_BYTES];
	int fd = open_dir();

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (char)(i * 7);
	put_file(fd, "log", bytes, sizeof(bytes));
	put_file(fd, "log.idx", data, size);
	for (int ended = 0; ended < 2; ended++)
		read_all(fd, &(struct log_facts){ .started_us = 1, .ended = ended });
	return 0;
}
