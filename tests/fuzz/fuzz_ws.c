/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a client of a stream sends: as bytes in portions of any size, as frames that are put
 * together well around any content, and as the text of a message. Never a crash; what is answered
 * are whole, unmasked frames; nothing follows a close frame; what is typed is within the limits;
 * and between two messages a socket has no memory of what came in.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apid/ws_i.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FRAME_CAP = 50, ANSWERS_MAX = 1 << 20 };

static struct {
	bool closed, dropped;
	size_t typed;
} seen;

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	(void)fprintf(stderr, "fuzz_ws: broken: %s\n", what);
	abort();
}

/* ---- in place of the socket and of the orchestrator ------------------------------------------ */

void ws_socket_close(struct ws_socket *s, int code, const char *text)
{
	must(code >= 1000 && code < 5000, "a close code");
	must(!text || strlen(text) < 124, "a reason that fits its frame");
	ws_socket_closing(s);
}

void ws_socket_closing(struct ws_socket *s)
{
	s->closing = true;
	seen.closed = true;
}

void ws_socket_drop(struct ws_socket *s)
{
	s->closing = true;
	seen.dropped = true;
}

int orch_stdin_limits(struct orch *o, const struct orch_principal *p, const char *id,
		      struct orch_stdin_limits *ret, struct sbx_error *e)
{
	(void)o;
	(void)p;
	(void)id;
	(void)e;
	*ret = (struct orch_stdin_limits){ .total = 1000, .frame = FRAME_CAP, .bps = -1 };
	return 0;
}

int orch_run_type(struct orch *o, const char *id, const struct orch_stdin_limits *limits,
		  const char *reason, const void *data, size_t len, struct sbx_error *e)
{
	static volatile unsigned sum __attribute__((unused)); /* every byte is there to be read */

	(void)o;
	(void)id;
	(void)e;
	must(limits->frame == FRAME_CAP && len <= FRAME_CAP, "a cut at the cap of a frame");
	must(len > 0 && (!reason || len == FRAME_CAP), "a reason where there was a cut");
	for (size_t i = 0; i < len; i++)
		sum += ((const unsigned char *)data)[i];
	seen.typed += len;
	return 0;
}

int orch_run_ctl(struct orch *o, const struct orch_principal *p, const char *id, const char *text,
		 size_t len, struct sbx_error *e)
{
	(void)o;
	(void)p;
	(void)id;
	(void)e;
	must(len == 3 && memcmp(text, "eof", 3) == 0, "the end of input");
	return 0;
}

/* ---- one connection -------------------------------------------------------------------------- */

/* Pongs and at most one close frame, which is the last. */
static void check_answers(const struct sbx_buf *b)
{
	const unsigned char *p = (const unsigned char *)b->data;
	bool closed = false;

	for (size_t at = 0; at < b->len;) {
		must(!closed, "nothing behind a close frame");
		must(b->len - at >= 2 && (p[at] == 0x8a || p[at] == 0x88),
		     "a pong or a close frame");
		must(p[at + 1] <= 125, "a short frame without a mask");
		closed = p[at] == 0x88;
		at += 2 + (size_t)p[at + 1];
		must(at <= b->len, "a whole frame");
	}
}

static void feed(struct ws_socket *s, const uint8_t *data, size_t len, size_t portion)
{
	/* Behind a close frame of ours the peer's is waited for. */
	for (size_t at = 0; at < len && !s->deaf && !seen.dropped;) {
		size_t n = len - at < portion ? len - at : portion;
		char *copy = malloc(n); /* so that one byte too far is seen */

		must(copy, "memory");
		memcpy(copy, data + at, n);
		at += ws_receive(s, copy, n);
		free(copy);
	}
}

/* Each frame: a byte of FIN, RSV and opcode, a byte of length, and so many bytes. The key is 0. */
static void feed_frames(struct ws_socket *s, const uint8_t *data, size_t len, size_t portion)
{
	sbx_autobuf wire = SBX_BUF_INIT(1 << 20);

	while (len >= 2) {
		size_t n = data[1] < len - 2 ? data[1] : len - 2;
		unsigned char head[8] = { data[0], (unsigned char)(0x80 | (n < 126 ? n : 126)) };
		size_t head_len = 6;

		if (n >= 126) {
			head[3] = (unsigned char)n;
			head_len = 8;
		}
		sbx_buf_add(&wire, head, head_len);
		sbx_buf_add(&wire, data + 2, n);
		data += 2 + n;
		len -= 2 + n;
	}
	feed(s, (const uint8_t *)wire.data, wire.len, portion);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct apid a;
	static struct ws w = { .a = &a };
	struct ws_follow f = { .w = &w };
	struct ws_socket *s = calloc(1, sizeof(*s));
	size_t portion;

	must(s, "memory");
	if (size < 2) {
		free(s);
		return 0;
	}
	memset(&seen, 0, sizeof(seen));
	s->w = &w;
	s->follow = &f;
	s->control = (struct sbx_buf)SBX_BUF_INIT(ANSWERS_MAX);
	portion = data[1] ? data[1] : 4096;
	if (data[0] % 3 == 0)
		feed(s, data + 2, size - 2, portion);
	else if (data[0] % 3 == 1)
		feed_frames(s, data + 2, size - 2, portion);
	else
		ws_stdin_message(s, (const char *)data + 2, size - 2);
	check_answers(&s->control);
	ws_receive_free(s->in);
	sbx_buf_free(&s->control);
	free(s);
	return 0;
}
