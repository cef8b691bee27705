/* SPDX-License-Identifier: Apache-2.0 */
/* store/log.h: frames, the cap, every view at random ranges, torn files, repair. */
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
	struct log_writer *w;
	struct log_reader *r;
};

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	if (!f)
		return -1;
	(void)snprintf(f->dir, sizeof(f->dir), "/tmp/sbx-log-XXXXXX");
	if (!mkdtemp(f->dir))
		return -1;
	f->fd = open(f->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	*state = f;
	return f->fd < 0;
}

static int teardown(void **state)
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

static void put(struct fixture *f, enum log_type stream, const void *data, size_t len)
{
	OK(log_writer_put(f->w, stream, data, len, e));
}

static void reopen(struct fixture *f)
{
	f->r = log_reader_close(f->r);
	OK(log_reader_open(f->fd, &f->r, e));
}

/* The whole view, in reads of `step` bytes. */
static char *view(struct fixture *f, enum log_view v, size_t step, size_t *ret_len)
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

static void assert_view(struct fixture *f, enum log_view v, const void *want, size_t len)
{
	size_t got = 0;
	sbx_autofree char *all = view(f, v, 100000, &got);

	assert_int_equal(got, len);
	if (len)
		assert_memory_equal(all, want, len);
}

static const char *member(struct json_object *o, const char *name)
{
	struct json_object *v = NULL;

	return json_object_object_get_ex(o, name, &v) ? json_object_get_string(v) : NULL;
}

static struct json_object *frame(struct fixture *f, uint64_t seq)
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
static void decode(struct json_object *o, struct sbx_buf *out, struct sbx_buf *err)
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

/* ---- text of frames ---- */

static void frames__exact_text(void **state)
{
	static const char *const want[] = {
		"{\"type\":\"event\",\"event\":\"start\",\"data\":{\"ts\":\"T\",\"runtime\":"
		"\"namespace\"},\"seq\":1,\"ts\":\"T\"}",
		"{\"type\":\"stdout\",\"encoding\":\"utf8\",\"data\":\"h\\\"i\\n\",\"seq\":2,"
		"\"ts\":\"T\"}",
		"{\"type\":\"stderr\",\"encoding\":\"base64\",\"data\":\"//4=\",\"seq\":3,"
		"\"ts\":\"T\"}",
		"{\"type\":\"truncated\",\"reason\":\"stdin_rate\",\"seq\":4,\"ts\":\"T\"}",
		"{\"type\":\"event\",\"event\":\"end\",\"data\":{\"exit_code\":0},\"seq\":5,"
		"\"ts\":\"T\"}",
	};
	struct fixture *f = *state;

	OK(log_writer_open(f->fd, 1000, &f->w, e));
	OK(log_writer_start(f->w, "namespace", e));
	put(f, LOG_STDOUT, "h\"i\n", 4);
	put(f, LOG_STDERR, "\xff\xfe", 2);
	OK(log_writer_truncated(f->w, "stdin_rate", e));
	OK(log_writer_end(f->w, true, 0, "completed", e));
	reopen(f);
	assert_int_equal(log_reader_frames(f->r), SBX_COUNT(want));
	for (size_t i = 0; i < SBX_COUNT(want); i++) {
		sbx_autobuf b = SBX_BUF_INIT(4096);
		char *ts;

		OK(log_reader_frame(f->r, i + 1, &b, e));
		while ((ts = strstr(b.data, "\"ts\":\"2"))) {
			/* the time becomes T; its own text is checked by frame() */
			memmove(ts + 7, ts + 6 + 27, strlen(ts + 6 + 27) + 1);
			ts[6] = 'T';
		}
		assert_string_equal(b.data, want[i]);
	}
	{
		sbx_autobuf b = SBX_BUF_INIT(4096);

		assert_int_equal(log_reader_frame(f->r, 6, &b, NULL), -SBX_E_NOT_FOUND);
		assert_int_equal(log_reader_frame(f->r, 0, &b, NULL), -SBX_E_NOT_FOUND);
	}
}

static void frames__end_says_why(void **state)
{
	static const struct {
		bool has_exit;
		int exit_code;
		const char *reason, *data;
	} rows[] = {
		{ true, 0, "completed", "{\"exit_code\":0}" },
		{ true, 3, "nonzero_exit", "{\"exit_code\":3}" },
		{ true, -1, NULL, "{\"exit_code\":-1}" },
		{ false, 7, "execution_timeout",
		  "{\"exit_code\":null,\"reason\":\"execution_timeout\"}" },
		{ false, 0, "canceled_by_user",
		  "{\"exit_code\":null,\"reason\":\"canceled_by_user\",\"canceled\":true}" },
		{ true, 137, "limits_applied",
		  "{\"exit_code\":137,\"reason\":\"limits_applied\"}" },
		{ false, 0, "0123456789012345678901234567890123456789",
		  "{\"exit_code\":null,\"reason\":\"0123456789012345678901234567890\"}" },
	};
	struct fixture *f = *state;

	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		struct json_object *o;

		OK(log_writer_open(f->fd, 1000, &f->w, e));
		OK(log_writer_end(f->w, rows[i].has_exit, rows[i].exit_code, rows[i].reason, e));
		f->w = log_writer_close(f->w);
		reopen(f);
		assert_true(log_reader_ended(f->r));
		o = frame(f, 1);
		{
			sbx_autobuf b = SBX_BUF_INIT(4096);

			OK(log_reader_frame(f->r, 1, &b, e));
			assert_non_null(strstr(b.data, rows[i].data));
		}
		json_object_put(o);
	}
}

/* ---- characters and chunks ---- */

struct piece {
	enum log_type stream;
	const char *bytes;
	size_t len;
};
#define OUT(s)                                                                                     \
	{                                                                                          \
		LOG_STDOUT, s, sizeof(s) - 1                                                       \
	}
#define ERR(s)                                                                                     \
	{                                                                                          \
		LOG_STDERR, s, sizeof(s) - 1                                                       \
	}

static void utf8__a_character_is_never_split(void **state)
{
	/* After all pieces: frames as <stream letter><u or b><length>. */
	static const struct {
		struct piece pieces[5];
		const char *frames;
	} rows[] = {
		{ { OUT("ab") }, "ou2" },
		{ { OUT("a\xe3\x81"), OUT("\x82z") }, "ou1 ou4" },
		{ { OUT("\xf0"), OUT("\x9f"), OUT("\x99"), OUT("\x82") }, "ou4" },
		{ { OUT("\xf0\x9f"), OUT("\x99\x82\n\xe3") }, "ou5 ob1" },
		{ { OUT("\xc3"), OUT("x") }, "ob2" },
		{ { OUT("\xc3"), ERR("e"), OUT("\xa9") }, "eu1 ou2" },
		{ { OUT("\xc3"), ERR("\xe3"), OUT("\xa9"), ERR("\x81\x82") }, "ou2 eu3" },
		{ { OUT("\xe3\x81"), OUT("\x82\n\xff\xfe\x80") }, "ob7" },
		{ { OUT("ok\xff"), OUT("ok") }, "ob3 ou2" },
		{ { OUT("\xed\xa0\x80") }, "ob3" },
		{ { OUT("\x00\x01") }, "ou2" },
		{ { OUT("\xe3\x81"), OUT("\xe3\x81\x82") }, "ob5" },
		{ { OUT("\xe3"), OUT("\xe3") }, "ob1 ob1" },
		{ { OUT("\xf4\x90") }, "ob2" },
	};
	struct fixture *f = *state;

	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		char text[100] = "";
		sbx_autobuf want_out = SBX_BUF_INIT(100);
		sbx_autobuf want_err = SBX_BUF_INIT(100);

		OK(log_writer_open(f->fd, 1000, &f->w, e));
		for (size_t k = 0; k < 5 && rows[i].pieces[k].len; k++) {
			const struct piece *p = &rows[i].pieces[k];

			put(f, p->stream, p->bytes, p->len);
			sbx_buf_add(p->stream == LOG_STDOUT ? &want_out : &want_err, p->bytes,
				    p->len);
		}
		OK(log_writer_flush(f->w, LOG_STDOUT, e));
		OK(log_writer_flush(f->w, LOG_STDERR, e));
		f->w = log_writer_close(f->w);
		reopen(f);
		for (uint64_t s = 1; s <= log_reader_frames(f->r); s++) {
			struct json_object *o = frame(f, s);
			sbx_autobuf b = SBX_BUF_INIT(1000);
			size_t n = strlen(text);

			decode(o, &b, &b);
			(void)snprintf(text + n, sizeof(text) - n, "%s%c%c%zu", n ? " " : "",
				       member(o, "type")[3] == 'o' ? 'o' : 'e',
				       member(o, "encoding")[0], b.len);
			json_object_put(o);
		}
		assert_string_equal(text, rows[i].frames);
		assert_view(f, LOG_VIEW_STDOUT, want_out.data, want_out.len);
		assert_view(f, LOG_VIEW_STDERR, want_err.data, want_err.len);
	}
}

/* Text, a character over two writes, garbage, a NUL, and half a character at the end. */
static void utf8__bytes_of_mixed_output_are_exact(void **state)
{
	struct fixture *f = *state;
	sbx_autobuf want = SBX_BUF_INIT(100000);
	sbx_autobuf out = SBX_BUF_INIT(100000);
	sbx_autobuf err = SBX_BUF_INIT(100);
	static const struct {
		const char *bytes;
		size_t len;
	} writes[] = {
		{ "\x82\n\xff\xfe\x80\x00Z\n\xed\xa0\x80", 11 },
		{ "\xf0\x9f", 2 },
		{ "\x99\x82\n", 3 },
	};
	char *as = sbx_buf_reserve(&want, 65535);

	memset(as, 'a', 65535);
	want.len = 65535;
	sbx_buf_add(&want, "\xe3\x81", 2);
	OK(log_writer_open(f->fd, 10 << 20, &f->w, e));
	put(f, LOG_STDOUT, want.data, want.len);
	for (size_t i = 0; i < SBX_COUNT(writes); i++) {
		put(f, LOG_STDOUT, writes[i].bytes, writes[i].len);
		sbx_buf_add(&want, writes[i].bytes, writes[i].len);
	}
	put(f, LOG_STDERR, "\xc3", 1);
	OK(log_writer_end(f->w, true, 0, "completed", e));
	assert_int_equal(want.len, 65553);
	reopen(f);
	assert_view(f, LOG_VIEW_STDOUT, want.data, want.len);
	assert_view(f, LOG_VIEW_STDERR, "\xc3", 1);
	for (uint64_t s = 1; s <= log_reader_frames(f->r); s++) {
		struct json_object *o = frame(f, s);

		decode(o, &out, &err);
		json_object_put(o);
	}
	assert_int_equal(out.len, want.len);
	assert_memory_equal(out.data, want.data, want.len);
	assert_int_equal(err.len, 1);
	assert_memory_equal(err.data, "\xc3", 1);
}

static void put__long_writes_become_frames_at_characters(void **state)
{
	struct fixture *f = *state;
	size_t len = 3 * (size_t)LOG_FRAME_MAX + 100;
	sbx_autofree char *data = malloc(len);

	assert_non_null(data);
	/* Three-byte characters, so that no frame can end at its limit. */
	for (size_t i = 0; i < len; i++)
		data[i] = "\xe3\x81\x82"[i % 3];
	OK(log_writer_open(f->fd, 10 << 20, &f->w, e));
	put(f, LOG_STDOUT, data, len);
	OK(log_writer_flush(f->w, LOG_STDOUT, e));
	reopen(f);
	assert_int_equal(log_reader_frames(f->r), 5); /* the last is the character's part */
	for (uint64_t s = 1; s <= 4; s++) {
		struct json_object *o = frame(f, s);

		assert_string_equal(member(o, "encoding"), "utf8");
		assert_int_equal(strlen(member(o, "data")) % 3, 0);
		json_object_put(o);
	}
	assert_view(f, LOG_VIEW_STDOUT, data, len);
}

static void put__takes_streams_only(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(log_writer_open(f->fd, -1, &f->w, NULL), -SBX_E_INVALID_ARGUMENT);
	OK(log_writer_open(f->fd, 10, &f->w, e));
	assert_int_equal(log_writer_put(f->w, LOG_START, "a", 1, NULL), -SBX_E_INVALID_ARGUMENT);
	assert_int_equal(log_writer_flush(f->w, LOG_END, NULL), -SBX_E_INVALID_ARGUMENT);
	OK(log_writer_put(f->w, LOG_STDOUT, "", 0, e));
	reopen(f);
	assert_int_equal(log_reader_frames(f->r), 0);
}

/* ---- the cap ---- */

static void cap__is_exact_and_said_once(void **state)
{
	static const struct {
		int64_t cap;
		size_t chunk, chunks;
	} rows[] = { { 0, 1, 3 },	  { 1, 1, 3 },		{ 10, 3, 10 },
		     { 10, 10, 1 },	  { 10, 10, 2 },	{ 10, 11, 1 },
		     { 65536, 65536, 3 }, { 100000, 70000, 2 }, { 1000000, 7777, 200 } };
	struct fixture *f = *state;

	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		size_t len = rows[i].chunk, all = len * rows[i].chunks;
		size_t stored = all < (size_t)rows[i].cap ? all : (size_t)rows[i].cap;
		sbx_autofree char *data = malloc(len);
		int said = 0;

		assert_non_null(data);
		memset(data, 'k', len);
		OK(log_writer_open(f->fd, rows[i].cap, &f->w, e));
		for (size_t k = 0; k < rows[i].chunks; k++)
			put(f, k % 2 ? LOG_STDERR : LOG_STDOUT, data, len);
		OK(log_writer_end(f->w, true, 0, "completed", e));
		assert_int_equal(log_writer_bytes(f->w), stored);
		assert_int_equal(log_writer_dropped(f->w), all - stored);
		f->w = log_writer_close(f->w);
		reopen(f);
		assert_int_equal(log_reader_size(f->r, LOG_VIEW_ALL), stored);
		for (uint64_t s = 1; s <= log_reader_frames(f->r); s++) {
			struct json_object *o = frame(f, s);

			if (strcmp(member(o, "type"), "truncated") == 0) {
				assert_string_equal(member(o, "reason"), "log_cap");
				assert_int_equal(s, log_reader_frames(f->r) - 1);
				said++;
			}
			json_object_put(o);
		}
		assert_int_equal(said, all > stored ? 1 : 0);
		assert_true(log_reader_ended(f->r));
	}
}

static void cap__that_cuts_a_character_keeps_its_bytes(void **state)
{
	struct fixture *f = *state;

	OK(log_writer_open(f->fd, 5, &f->w, e));
	put(f, LOG_STDOUT, "abc\xe3", 4);
	put(f, LOG_STDOUT,
	    "\x81\x82"
	    "def",
	    5);
	OK(log_writer_end(f->w, true, 0, NULL, e));
	reopen(f);
	assert_view(f, LOG_VIEW_STDOUT, "abc\xe3\x81", 5);
	assert_int_equal(log_writer_dropped(f->w), 4);
}

static void cap__bounds_the_index_too(void **state)
{
	struct fixture *f = *state;
	struct stat st;
	uint64_t frames;

	OK(log_writer_open(f->fd, 1 << 20, &f->w, e));
	for (int i = 0; i < 150000; i++) {
		put(f, LOG_STDOUT, "x", 1);
		if (i % 10 == 0)
			OK(log_writer_truncated(f->w, "stdin_rate", e));
	}
	OK(log_writer_end(f->w, true, 0, NULL, e));
	reopen(f);
	frames = log_reader_frames(f->r);
	assert_true(frames > 100000 && frames < 135000);
	assert_true(log_writer_dropped(f->w) > 0);
	assert_true(log_reader_ended(f->r));
	assert_int_equal(fstatat(f->fd, "log.idx", &st, 0), 0);
	assert_true(st.st_size < 14 << 20);
}

/* ---- any range of any view ---- */

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
		OK(log_writer_open(f->fd, 1 << 30, &f->w, e));
		OK(log_writer_start(f->w, "namespace", e));
		for (int i = 0; i < 400; i++) {
			bool is_out = rnd(round + 2) != 0;
			size_t n = chunk(data, sizeof(data));

			put(f, is_out ? LOG_STDOUT : LOG_STDERR, data, n);
			sbx_buf_add(is_out ? &out : &err, data, n);
		}
		OK(log_writer_end(f->w, true, 0, "completed", e));
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

	OK(log_writer_open(f->fd, 1 << 20, &f->w, e));
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

/* ---- following ---- */

static void follow__sees_what_came_and_no_more(void **state)
{
	struct fixture *f = *state;

	reopen(f); /* before the run has started */
	assert_int_equal(log_reader_frames(f->r), 0);
	assert_int_equal(log_reader_fd(f->r), -1);
	assert_int_equal(log_reader_size(f->r, LOG_VIEW_NDJSON), 0);
	assert_false(log_reader_ended(f->r));
	OK(log_writer_open(f->fd, 100, &f->w, e));
	OK(log_reader_refresh(f->r, e));
	assert_int_equal(log_reader_frames(f->r), 0);
	assert_true(log_reader_fd(f->r) >= 0);
	for (uint64_t i = 1; i <= 20; i++) {
		put(f, LOG_STDOUT, "x", 1);
		assert_int_equal(log_reader_frames(f->r), i - 1);
		OK(log_reader_refresh(f->r, e));
		assert_int_equal(log_reader_frames(f->r), i);
		json_object_put(frame(f, i));
	}
	/* Bytes whose record is not written yet are not shown. */
	{
		sbx_autoclose int fd = openat(f->fd, "log", O_WRONLY | O_APPEND | O_CLOEXEC);

		assert_int_equal(write(fd, "yyy", 3), 3);
	}
	OK(log_reader_refresh(f->r, e));
	assert_view(f, LOG_VIEW_ALL, "xxxxxxxxxxxxxxxxxxxx", 20);
	OK(log_writer_end(f->w, true, 0, NULL, e));
	assert_false(log_reader_ended(f->r));
	OK(log_reader_refresh(f->r, e));
	assert_true(log_reader_ended(f->r));
}

static void follow__a_log_begun_anew_forgets_the_old_one(void **state)
{
	struct fixture *f = *state;

	for (int round = 0; round < 2; round++) {
		OK(log_writer_open(f->fd, 100, &f->w, e));
		put(f, LOG_STDOUT, round ? "new" : "old", 3);
		if (round == 0)
			reopen(f);
		OK(log_reader_refresh(f->r, e));
		assert_view(f, LOG_VIEW_STDOUT, round ? "new" : "old", 3);
		{
			struct json_object *o = frame(f, 1);

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

/* ---- torn files and repair ---- */

static void write_sample(struct fixture *f, bool end)
{
	OK(log_writer_open(f->fd, 1000, &f->w, e));
	OK(log_writer_start(f->w, "namespace", e));
	for (int i = 0; i < 5; i++)
		put(f, i % 2 ? LOG_STDERR : LOG_STDOUT, "0123456789", 10);
	if (end)
		OK(log_writer_end(f->w, true, 0, NULL, e));
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
		uint64_t want = size < 32 ? 0 : (uint64_t)(size - 32) / sizeof(struct log_record);

		cut_to(f, "log.idx", size);
		reopen(f);
		assert_int_equal(log_reader_frames(f->r), want);
		assert_int_equal(log_reader_ended(f->r), want == 7);
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
	assert_int_equal(log_reader_frames(f->r), 3); /* start and two frames of ten bytes */
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
	assert_int_equal(log_reader_open(f->fd, &f->r, &why), -SBX_E_STORE_UNAVAILABLE);
	assert_non_null(strstr(why.message, "log.idx"));
}

static void repair__ends_what_a_dead_runner_left(void **state)
{
	struct fixture *f = *state;
	off_t full;

	write_sample(f, false);
	full = size_of(f, "log.idx");
	for (off_t size = full; size >= 0; size -= 13) {
		uint64_t whole = size < 32 ? 0 : (uint64_t)(size - 32) / sizeof(struct log_record);
		uint64_t want = whole ? whole + 1 : 2;

		write_sample(f, false);
		cut_to(f, "log.idx", size);
		for (int again = 0; again < 2; again++) {
			struct json_object *o;

			OK(log_repair_end(f->fd, "runner_lost", e));
			reopen(f);
			assert_int_equal(log_reader_frames(f->r), want);
			assert_true(log_reader_ended(f->r));
			assert_int_equal(size_of(f, "log"), log_reader_size(f->r, LOG_VIEW_ALL));
			o = frame(f, 1);
			assert_string_equal(member(o, "event"), "start");
			json_object_put(o);
			o = frame(f, want);
			assert_string_equal(member(o, "event"), "end");
			json_object_put(o);
			read_everything(f);
		}
	}
}

static void repair__makes_a_log_where_there_is_none(void **state)
{
	struct fixture *f = *state;

	OK(log_repair_end(f->fd, "claim_lease_expired", e));
	reopen(f);
	assert_int_equal(log_reader_frames(f->r), 2);
	assert_true(log_reader_ended(f->r));
}

/* ---- a full disk ---- */

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
	OK(log_writer_open(dir, 10 << 20, &f->w, e));
	for (int i = 0; i < 40; i++) {
		int r = log_writer_put(f->w, LOG_STDOUT, data, sizeof(data), NULL);

		all += (int64_t)sizeof(data);
		failures += r < 0;
		assert_true(r == 0 || r == -SBX_E_STORAGE_FULL);
	}
	assert_int_equal(failures, 1);
	assert_int_equal(log_writer_bytes(f->w) + log_writer_dropped(f->w), all);
	assert_true(log_writer_bytes(f->w) > 0);
	OK(log_reader_open(dir, &f->r, e));
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
		LOG_TEST(frames__exact_text),
		LOG_TEST(frames__end_says_why),
		LOG_TEST(utf8__a_character_is_never_split),
		LOG_TEST(utf8__bytes_of_mixed_output_are_exact),
		LOG_TEST(put__long_writes_become_frames_at_characters),
		LOG_TEST(put__takes_streams_only),
		LOG_TEST(cap__is_exact_and_said_once),
		LOG_TEST(cap__that_cuts_a_character_keeps_its_bytes),
		LOG_TEST(cap__bounds_the_index_too),
		LOG_TEST(views__random_chunks_equal_their_concatenation),
		LOG_TEST(views__sequential_small_reads),
		LOG_TEST(follow__sees_what_came_and_no_more),
		LOG_TEST(follow__a_log_begun_anew_forgets_the_old_one),
		LOG_TEST(torn__index_of_any_length_can_be_read),
		LOG_TEST(torn__records_without_bytes_or_of_zeros_are_left_out),
		LOG_TEST(torn__a_foreign_file_is_refused),
		LOG_TEST(repair__ends_what_a_dead_runner_left),
		LOG_TEST(repair__makes_a_log_where_there_is_none),
		LOG_TEST(disk_full__is_said_once_and_then_counted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
