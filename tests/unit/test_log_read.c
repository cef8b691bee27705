/* SPDX-License-Identifier: Apache-2.0 */
/* store/log.h, reading: every view at random ranges, followers, torn files, the row, a full disk.
 */
#include "log_fixture.h"

/* ---- any range of any view ------------------------------------------------------------------- */

static uint32_t seed = 12345;

static uint32_t rnd(uint32_t below)
{
	seed = seed * 1664525 + 1013904223;
	return (seed >> 8) % below;
}

/* Bytes that are mostly text, sometimes anything. */
static size_t chunk(char *out, size_t max)
{
	static const char *const words[] = { "hello ",		"w\xc3\xb6rld\n",   "\xe3\x81\x82",
					     "\t\"\\",		"\xf0\x9f\x99\x82", "\x1b[0m",
					     "0123456789abcdef" };
	size_t n = 0, want = rnd(20) == 0 ? rnd((uint32_t)max - 32) : rnd(60);

	while (n < want) {
		if (rnd(40) == 0) {
			out[n++] = (char)rnd(256);
		} else {
			const char *w = words[rnd(SBX_COUNT(words))];

			memcpy(out + n, w, strlen(w));
			n += strlen(w);
		}
	}
	return n > max ? max : n;
}

static void check_ranges(struct fixture *f, enum log_view v, const char *want, size_t len)
{
	static char buf[300000];

	assert_int_equal(log_reader_size(f->r, v), len);
	for (int i = 0; i < 300; i++) {
		size_t off = rnd((uint32_t)len + 10), n = rnd(i % 10 ? 500 : sizeof(buf));
		size_t left = off < len ? len - off : 0, expect = n < left ? n : left;
		ssize_t got = 0;

		OK(got = log_reader_read(f->r, v, (int64_t)off, buf, n, e));
		assert_int_equal(got, expect);
		if (expect)
			assert_memory_equal(buf, want + off, expect);
	}
}

static void views__random_chunks_equal_their_concatenation(void **state)
{
	struct fixture *f = *state;
	static char data[200000];

	for (int round = 0; round < 6; round++) {
		sbx_autobuf out = SBX_BUF_INIT(64 << 20);
		sbx_autobuf err = SBX_BUF_INIT(64 << 20);
		sbx_autobuf back_out = SBX_BUF_INIT(64 << 20);
		sbx_autobuf back_err = SBX_BUF_INIT(64 << 20);
		sbx_autobuf json = SBX_BUF_INIT(256 << 20);
		size_t len = 0;
		sbx_autofree char *all = NULL;

		seed = 1000 + (uint32_t)round;
		begin(f, 1 << 30);
		for (int i = 0; i < 400; i++) {
			bool is_out = rnd(round + 2) != 0;
			size_t n = chunk(data, sizeof(data));

			put(f, is_out ? LOG_STDOUT : LOG_STDERR, data, n);
			sbx_buf_add(is_out ? &out : &err, data, n);
		}
		finish(f, true, 0, "completed");
		f->w = log_writer_close(f->w);
		reopen(f);
		for (uint64_t s = 1; s <= log_reader_frames(f->r); s++) {
			struct json_object *o = frame(f, s);

			decode(o, &back_out, &back_err);
			json_object_put(o);
			OK(log_reader_frame(f->r, s, &json, e));
			sbx_buf_puts(&json, "\n");
		}
		assert_int_equal(back_out.len, out.len);
		assert_memory_equal(back_out.data, out.data, out.len);
		assert_int_equal(back_err.len, err.len);
		assert_memory_equal(back_err.data, err.data, err.len);
		check_ranges(f, LOG_VIEW_STDOUT, out.data, out.len);
		check_ranges(f, LOG_VIEW_STDERR, err.data, err.len);
		check_ranges(f, LOG_VIEW_NDJSON, json.data, json.len);
		all = view(f, LOG_VIEW_ALL, 4096, &len);
		assert_int_equal(len, out.len + err.len);
		check_ranges(f, LOG_VIEW_ALL, all, len);
	}
}

static void views__sequential_small_reads(void **state)
{
	struct fixture *f = *state;
	size_t big = 0, small = 0;

	begin(f, 1 << 20);
	for (int i = 0; i < 1000; i++)
		put(f, i % 3 ? LOG_STDOUT : LOG_STDERR, "line of text\n", 13);
	reopen(f);
	for (int v = 0; v < LOG_VIEW__COUNT; v++) {
		sbx_autofree char *a = view(f, (enum log_view)v, 1 << 20, &big);
		sbx_autofree char *b = view(f, (enum log_view)v, 7, &small);

		assert_int_equal(big, small);
		assert_memory_equal(a, b, big);
	}
	assert_int_equal(log_reader_read(f->r, LOG_VIEW_ALL, -1, &big, 1, NULL),
			 -SBX_E_INVALID_ARGUMENT);
	assert_int_equal(log_reader_read(f->r, LOG_VIEW_ALL, 13000, &big, 1, NULL), 0);
	assert_int_equal(log_reader_read(f->r, LOG_VIEW_NDJSON, INT64_MAX, &big, 1, NULL), 0);
}

/* ---- following ------------------------------------------------------------------------------- */

static void follow__sees_what_came_and_no_more(void **state)
{
	struct fixture *f = *state;

	reopen(f); /* before the run has started */
	assert_int_equal(log_reader_frames(f->r), 0);
	assert_int_equal(log_reader_fd(f->r), -1);
	assert_int_equal(log_reader_size(f->r, LOG_VIEW_NDJSON), 0);
	assert_false(log_reader_ended(f->r));
	begin(f, 100);
	look(f);
	assert_int_equal(log_reader_frames(f->r), 0);
	assert_int_equal(log_reader_fd(f->r), -1); /* made with the first byte */
	OK(log_writer_truncated(f->w, "stdin_rate", e));
	look(f);
	assert_int_equal(log_reader_frames(f->r), 2);
	assert_int_equal(log_reader_fd(f->r), -1);
	for (uint64_t i = 1; i <= 20; i++) {
		put(f, LOG_STDOUT, "x", 1);
		assert_int_equal(log_reader_frames(f->r), i + 1);
		look(f);
		assert_int_equal(log_reader_frames(f->r), i + 2);
		assert_true(log_reader_fd(f->r) >= 0);
		json_object_put(frame(f, i + 2));
	}
	/* Bytes whose record is not written yet are not shown. */
	{
		sbx_autoclose int fd = openat(f->fd, "log", O_WRONLY | O_APPEND | O_CLOEXEC);

		assert_int_equal(write(fd, "yyy", 3), 3);
	}
	look(f);
	assert_view(f, LOG_VIEW_ALL, "xxxxxxxxxxxxxxxxxxxx", 20);
	finish(f, true, 0, "");
	assert_false(log_reader_ended(f->r));
	look(f);
	assert_true(log_reader_ended(f->r));
}

static void follow__a_log_begun_anew_forgets_the_old_one(void **state)
{
	struct fixture *f = *state;

	for (int round = 0; round < 2; round++) {
		begin(f, 100);
		put(f, LOG_STDOUT, round ? "new" : "old", 3);
		if (round == 0)
			reopen(f);
		look(f);
		assert_view(f, LOG_VIEW_STDOUT, round ? "new" : "old", 3);
		{
			struct json_object *o = frame(f, 2);

			assert_string_equal(member(o, "data"), round ? "new" : "old");
			json_object_put(o);
		}
		{
			size_t len = 0;
			sbx_autofree char *json = view(f, LOG_VIEW_NDJSON, 1000, &len);

			assert_non_null(strstr(json, round ? "\"new\"" : "\"old\""));
		}
		f->w = log_writer_close(f->w);
	}
}

/* ---- torn files ------------------------------------------------------------------------------ */

static void write_sample(struct fixture *f, bool end)
{
	begin(f, 1000);
	for (int i = 0; i < 5; i++)
		put(f, i % 2 ? LOG_STDERR : LOG_STDOUT, "0123456789", 10);
	if (end)
		finish(f, true, 0, "");
	OK(log_writer_sync(f->w, e));
	f->w = log_writer_close(f->w);
}

static off_t size_of(struct fixture *f, const char *name)
{
	struct stat st;

	assert_int_equal(fstatat(f->fd, name, &st, 0), 0);
	return st.st_size;
}

static void cut_to(struct fixture *f, const char *name, off_t size)
{
	sbx_autoclose int fd = openat(f->fd, name, O_RDWR | O_CLOEXEC);

	assert_int_equal(ftruncate(fd, size), 0);
}

static void read_everything(struct fixture *f)
{
	for (int v = 0; v < LOG_VIEW__COUNT; v++) {
		size_t len = 0;

		free(view(f, (enum log_view)v, 1000, &len));
	}
	for (uint64_t s = 1; s <= log_reader_frames(f->r); s++)
		json_object_put(frame(f, s));
}

static void torn__index_of_any_length_can_be_read(void **state)
{
	struct fixture *f = *state;
	off_t full;

	write_sample(f, true);
	full = size_of(f, "log.idx");
	for (off_t size = full; size >= 0; size--) {
		uint64_t want =
			2 + (size < 32 ? 0 : (uint64_t)(size - 32) / sizeof(struct log_record));

		cut_to(f, "log.idx", size);
		reopen(f);
		assert_int_equal(log_reader_frames(f->r), want);
		read_everything(f);
	}
}

static void torn__records_without_bytes_or_of_zeros_are_left_out(void **state)
{
	struct fixture *f = *state;
	off_t full;

	write_sample(f, true);
	full = size_of(f, "log.idx");
	/* A power cut may leave a length whose blocks were never written. */
	cut_to(f, "log.idx", full + 10 * (off_t)sizeof(struct log_record) + 17);
	reopen(f);
	assert_int_equal(log_reader_frames(f->r), 7);
	read_everything(f);
	cut_to(f, "log.idx", full);
	cut_to(f, "log", 25);
	reopen(f);
	assert_int_equal(log_reader_frames(f->r), 4); /* start, two frames of ten bytes, end */
	assert_int_equal(log_reader_size(f->r, LOG_VIEW_ALL), 20);
	read_everything(f);
}

static void torn__a_foreign_file_is_refused(void **state)
{
	struct fixture *f = *state;
	sbx_autoclose int fd = -1;
	sbx_autoerror why = SBX_ERROR_INIT;

	write_sample(f, true);
	fd = openat(f->fd, "log.idx", O_WRONLY | O_CLOEXEC);
	assert_int_equal(pwrite(fd, "hello", 5, 0), 5);
	OK(log_reader_open_at(f->fd, &f->r, e));
	assert_int_equal(log_reader_look(f->r, &f->facts, &why), -SBX_E_STORE_UNAVAILABLE);
	assert_non_null(strstr(why.message, "log.idx"));
}

/* ---- the frames of the row ------------------------------------------------------------------- */

/* The NDJSON before and after the row learns more: what was there stays as it is. */
static void row__adds_frames_and_changes_none(void **state)
{
	struct fixture *f = *state;
	size_t before = 0, running = 0, after = 0;
	sbx_autofree char *a = NULL, *b = NULL, *c = NULL;

	begin(f, 1000);
	put(f, LOG_STDOUT, "fast\n", 5);
	reopen(f); /* its output was faster than the row */
	a = view(f, LOG_VIEW_NDJSON, 1000, &before);
	f->facts.started_us = BEGAN_US;
	look(f);
	b = view(f, LOG_VIEW_NDJSON, 1000, &running);
	assert_int_equal(before, running);
	assert_memory_equal(a, b, before);
	assert_int_equal(log_reader_frames(f->r), 2);
	finish(f, false, 0, "runner_lost");
	look(f);
	c = view(f, LOG_VIEW_NDJSON, 7, &after);
	assert_true(after > running);
	assert_memory_equal(b, c, running);
	assert_int_equal(log_reader_frames(f->r), 3);
	read_everything(f);
}

static void row__alone_is_a_log(void **state)
{
	struct fixture *f = *state;
	struct json_object *o;

	reopen(f);
	assert_int_equal(log_reader_frames(f->r), 0);
	f->facts.started_us = BEGAN_US;
	look(f);
	assert_int_equal(log_reader_frames(f->r), 1);
	assert_false(log_reader_ended(f->r));
	f->facts.ended = true;
	look(f);
	assert_int_equal(log_reader_frames(f->r), 2);
	assert_true(log_reader_ended(f->r));
	read_everything(f);
	/* It was cancelled in the queue, say. */
	f->facts.started_us = 0;
	reopen(f);
	assert_int_equal(log_reader_frames(f->r), 1);
	o = frame(f, 1);
	assert_string_equal(member(o, "event"), "end");
	json_object_put(o);
	read_everything(f);
}

/* ---- a full disk ----------------------------------------------------------------------------- */

static void disk_full__is_said_once_and_then_counted(void **state)
{
	struct fixture *f = *state;
	static char data[LOG_FRAME_MAX];
	int failures = 0, dir;
	int64_t all = 0;

	if (geteuid() != 0 || mount("none", f->dir, "tmpfs", 0, "size=1m") < 0) {
		print_message("[   SKIP   ] needs root to mount a small tmpfs\n");
		skip();
	}
	dir = open(f->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(dir >= 0);
	memset(data, 'x', sizeof(data));
	OK(log_writer_open_at(dir, 10 << 20, BEGAN_US, &f->w, e));
	for (int i = 0; i < 40; i++) {
		int r = log_writer_put(f->w, LOG_STDOUT, data, sizeof(data), NULL);

		all += (int64_t)sizeof(data);
		failures += r < 0;
		assert_true(r == 0 || r == -SBX_E_STORAGE_FULL);
	}
	assert_int_equal(failures, 1);
	assert_int_equal(log_writer_bytes(f->w) + log_writer_dropped(f->w), all);
	assert_true(log_writer_bytes(f->w) > 0);
	OK(log_reader_open_at(dir, &f->r, e));
	look(f);
	assert_int_equal(log_reader_size(f->r, LOG_VIEW_STDOUT), log_writer_bytes(f->w));
	read_everything(f);
	f->w = log_writer_close(f->w);
	f->r = log_reader_close(f->r);
	(void)close(dir);
	assert_int_equal(umount2(f->dir, MNT_DETACH), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		LOG_TEST(views__random_chunks_equal_their_concatenation),
		LOG_TEST(views__sequential_small_reads),
		LOG_TEST(follow__sees_what_came_and_no_more),
		LOG_TEST(follow__a_log_begun_anew_forgets_the_old_one),
		LOG_TEST(torn__index_of_any_length_can_be_read),
		LOG_TEST(torn__records_without_bytes_or_of_zeros_are_left_out),
		LOG_TEST(torn__a_foreign_file_is_refused),
		LOG_TEST(row__adds_frames_and_changes_none),
		LOG_TEST(row__alone_is_a_log),
		LOG_TEST(disk_full__is_said_once_and_then_counted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
