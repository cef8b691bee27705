/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of logs share: a directory with a writer and a reader, views, decoded frames. */
#ifndef SBX_TESTS_LOG_FIXTURE_H
#define SBX_TESTS_LOG_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/fs.h"
#include "base/utf8.h"
#include "store/log_i.h"

#define OK(call)                                                                                   \
	do {                                                                                       \
		sbx_autoerror ok_e = SBX_ERROR_INIT;                                               \
		struct sbx_error *e = &ok_e;                                                       \
		int ok_r = (int)(call);                                                            \
		(void)e;                                                                           \
		if (ok_r < 0)                                                                      \
			fail_msg("%s: %d %s", #call, ok_r, ok_e.message);                          \
	} while (0)

struct fixture {
	char dir[64];
	int fd;
	struct log_facts facts; /* what the row says: nothing, until a test changes it */
	struct log_writer *w;
	struct log_reader *r;
};

enum { BEGAN_US = 1234567 };

static inline int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	if (!f)
		return -1;
	(void)snprintf(f->dir, sizeof(f->dir), "/tmp/sbx-log-XXXXXX");
	if (!mkdtemp(f->dir))
		return -1;
	f->fd = open(f->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	(void)snprintf(f->facts.runtime, sizeof(f->facts.runtime), "namespace");
	*state = f;
	return f->fd < 0;
}

static inline int teardown(void **state)
{
	struct fixture *f = *state;

	log_writer_close(f->w);
	log_reader_close(f->r);
	(void)close(f->fd);
	(void)sbx_remove_tree(AT_FDCWD, f->dir);
	free(f);
	return 0;
}

#define LOG_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static inline void put(struct fixture *f, enum log_type stream, const void *data, size_t len)
{
	OK(log_writer_put(f->w, stream, data, len, e));
}

/* A log of a command that began to execute. */
static inline void begin(struct fixture *f, int64_t cap)
{
	f->facts.ended = false;
	f->w = log_writer_close(f->w);
	OK(log_writer_open_at(f->fd, cap, BEGAN_US, &f->w, e));
}

/* What the runner does at the end: the rest of the streams, then the row. */
static inline void finish(struct fixture *f, bool has_exit_code, int exit_code, const char *reason)
{
	OK(log_writer_flush(f->w, LOG_STDOUT, e));
	OK(log_writer_flush(f->w, LOG_STDERR, e));
	f->facts.started_us = BEGAN_US;
	f->facts.finished_us = 2 * (int64_t)BEGAN_US;
	f->facts.ended = true;
	f->facts.has_exit_code = has_exit_code;
	f->facts.exit_code = exit_code;
	(void)snprintf(f->facts.reason, sizeof(f->facts.reason), "%s", reason);
}

static inline void look(struct fixture *f)
{
	OK(log_reader_look(f->r, &f->facts, e));
}

static inline void reopen(struct fixture *f)
{
	f->r = log_reader_close(f->r);
	OK(log_reader_open_at(f->fd, &f->r, e));
	look(f);
}

/* The whole view, in reads of `step` bytes. */
static inline char *view(struct fixture *f, enum log_view v, size_t step, size_t *ret_len)
{
	size_t size = (size_t)log_reader_size(f->r, v), got = 0;
	char *all = malloc(size + 1);

	assert_non_null(all);
	while (got < size) {
		size_t want = step < size - got ? step : size - got;
		ssize_t n = 0;

		OK(n = log_reader_read(f->r, v, (int64_t)got, all + got, want, e));
		assert_int_equal(n, want);
		got += (size_t)n;
	}
	all[size] = '\0';
	*ret_len = size;
	return all;
}

static inline void assert_view(struct fixture *f, enum log_view v, const void *want, size_t len)
{
	size_t got = 0;
	sbx_autofree char *all = view(f, v, 100000, &got);

	assert_int_equal(got, len);
	if (len)
		assert_memory_equal(all, want, len);
}

static inline const char *member(struct json_object *o, const char *name)
{
	struct json_object *v = NULL;

	return json_object_object_get_ex(o, name, &v) ? json_object_get_string(v) : NULL;
}

static inline struct json_object *frame(struct fixture *f, uint64_t seq)
{
	sbx_autobuf b = SBX_BUF_INIT(1 << 20);
	struct json_object *o;

	OK(log_reader_frame(f->r, seq, &b, e));
	assert_null(memchr(b.data, '\n', b.len));
	o = json_tokener_parse(b.data);
	assert_non_null(o);
	assert_int_equal(strtoull(member(o, "seq"), NULL, 10), seq);
	assert_int_equal(strlen(member(o, "ts")), 27);
	return o;
}

/* Appends what the frame carries, decoded; checks that utf8 frames are. */
static inline void decode(struct json_object *o, struct sbx_buf *out, struct sbx_buf *err)
{
	struct json_object *data = NULL;
	const char *type = member(o, "type");
	struct sbx_buf *to = strcmp(type, "stdout") == 0   ? out
			     : strcmp(type, "stderr") == 0 ? err
							   : NULL;

	if (!to)
		return;
	assert_true(json_object_object_get_ex(o, "data", &data));
	if (strcmp(member(o, "encoding"), "utf8") == 0) {
		size_t n = (size_t)json_object_get_string_len(data);

		assert_true(n > 0 && n <= LOG_FRAME_MAX);
		assert_true(sbx_utf8_valid(json_object_get_string(data), n));
		assert_null(strstr(json_object_get_string(data), "\xef\xbf\xbd"));
		sbx_buf_add(to, json_object_get_string(data), n);
	} else {
		sbx_autofree uint8_t *bytes = NULL;
		size_t n = 0;

		assert_string_equal(member(o, "encoding"), "base64");
		assert_int_equal(sbx_base64_decode(json_object_get_string(data),
						   strlen(json_object_get_string(data)), &bytes,
						   &n),
				 0);
		sbx_buf_add(to, bytes, n);
	}
}

#endif
