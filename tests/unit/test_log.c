/* SPDX-License-Identifier: Apache-2.0 */
/* store/log.h, writing: the text of frames, characters and chunks, the cap. */
#include "log_fixture.h"

/* ---- text of frames -------------------------------------------------------------------------- */

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

	begin(f, 1000);
	put(f, LOG_STDOUT, "h\"i\n", 4);
	put(f, LOG_STDERR, "\xff\xfe", 2);
	OK(log_writer_truncated(f->w, "stdin_rate", e));
	finish(f, true, 0, "completed");
	reopen(f);
	assert_int_equal(log_reader_frames(f->r), SBX_COUNT(want));
	for (size_t i = 0; i < SBX_COUNT(want); i++) {
		sbx_autobuf b = SBX_BUF_INIT(4096);
		char *ts;

		OK(log_reader_frame(f->r, i + 1, &b, e));
		if (i == 0)
			assert_non_null(
				strstr(b.data, "\"ts\":\"1970-01-01T00:00:01.234567Z\",\"runtime"));
		if (i == 4)
			assert_non_null(strstr(b.data, "\"ts\":\"1970-01-01T00:00:02.469134Z\"}"));
		while ((ts = strstr(b.data, i % 4 ? "\"ts\":\"2" : "\"ts\":\"1"))) {
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
		{ true, -1, "", "{\"exit_code\":-1}" },
		{ false, 7, "execution_timeout",
		  "{\"exit_code\":null,\"reason\":\"execution_timeout\"}" },
		{ false, 0, "canceled_by_user",
		  "{\"exit_code\":null,\"reason\":\"canceled_by_user\",\"canceled\":true}" },
		{ true, 137, "limits_applied",
		  "{\"exit_code\":137,\"reason\":\"limits_applied\"}" },
		{ false, 0, "0123456789012345678901234567890",
		  "{\"exit_code\":null,\"reason\":\"0123456789012345678901234567890\"}" },
	};
	struct fixture *f = *state;

	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		struct json_object *o;

		begin(f, 1000);
		finish(f, rows[i].has_exit, rows[i].exit_code, rows[i].reason);
		f->w = log_writer_close(f->w);
		reopen(f);
		assert_true(log_reader_ended(f->r));
		o = frame(f, 2);
		{
			sbx_autobuf b = SBX_BUF_INIT(4096);

			OK(log_reader_frame(f->r, 2, &b, e));
			assert_non_null(strstr(b.data, rows[i].data));
		}
		json_object_put(o);
	}
}

/* ---- characters and chunks ------------------------------------------------------------------- */

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

		begin(f, 1000);
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
		for (uint64_t s = 2; s <= log_reader_frames(f->r); s++) {
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
	begin(f, 10 << 20);
	put(f, LOG_STDOUT, want.data, want.len);
	for (size_t i = 0; i < SBX_COUNT(writes); i++) {
		put(f, LOG_STDOUT, writes[i].bytes, writes[i].len);
		sbx_buf_add(&want, writes[i].bytes, writes[i].len);
	}
	put(f, LOG_STDERR, "\xc3", 1);
	finish(f, true, 0, "completed");
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
	begin(f, 10 << 20);
	put(f, LOG_STDOUT, data, len);
	OK(log_writer_flush(f->w, LOG_STDOUT, e));
	reopen(f);
	assert_int_equal(log_reader_frames(f->r), 6); /* the last is the character's part */
	for (uint64_t s = 2; s <= 5; s++) {
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

	assert_int_equal(log_writer_open_at(f->fd, -1, 0, &f->w, NULL), -SBX_E_INVALID_ARGUMENT);
	begin(f, 10);
	assert_int_equal(log_writer_put(f->w, LOG_START, "a", 1, NULL), -SBX_E_INVALID_ARGUMENT);
	assert_int_equal(log_writer_flush(f->w, LOG_END, NULL), -SBX_E_INVALID_ARGUMENT);
	OK(log_writer_put(f->w, LOG_STDOUT, "", 0, e));
	reopen(f);
	assert_int_equal(log_reader_frames(f->r), 0);
	assert_int_equal(faccessat(f->fd, "log.idx", F_OK, 0),
			 -1); /* nothing was made for nothing */
}

/* ---- the cap --------------------------------------------------------------------------------- */

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
		begin(f, rows[i].cap);
		for (size_t k = 0; k < rows[i].chunks; k++)
			put(f, k % 2 ? LOG_STDERR : LOG_STDOUT, data, len);
		finish(f, true, 0, "completed");
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

	begin(f, 5);
	put(f, LOG_STDOUT, "abc\xe3", 4);
	put(f, LOG_STDOUT,
	    "\x81\x82"
	    "def",
	    5);
	finish(f, true, 0, "");
	reopen(f);
	assert_view(f, LOG_VIEW_STDOUT, "abc\xe3\x81", 5);
	assert_int_equal(log_writer_dropped(f->w), 4);
}

static void cap__bounds_the_index_too(void **state)
{
	struct fixture *f = *state;
	struct stat st;
	uint64_t frames;

	begin(f, 1 << 20);
	for (int i = 0; i < 150000; i++) {
		put(f, LOG_STDOUT, "x", 1);
		if (i % 10 == 0)
			OK(log_writer_truncated(f->w, "stdin_rate", e));
	}
	finish(f, true, 0, "");
	reopen(f);
	frames = log_reader_frames(f->r);
	assert_true(frames > 100000 && frames < 135000);
	assert_true(log_writer_dropped(f->w) > 0);
	assert_true(log_reader_ended(f->r));
	assert_int_equal(fstatat(f->fd, "log.idx", &st, 0), 0);
	assert_true(st.st_size < 14 << 20);
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
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
