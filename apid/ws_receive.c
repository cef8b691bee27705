/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a client sends, taken apart by wslay. Its context is some 9 KiB, so a socket has one only
 * while something is half received: the bytes that were put in are compared with the frames that
 * came out. What wslay answers (pongs, close frames) goes among the socket's control frames.
 */
#include "apid/ws_i.h"

#include <string.h>
#include <wslay/wslay.h>

#include "base/clock.h"

enum {
	TURN_US = 1000, /* after which no more bytes are taken ... */
	MORSEL = 512,	/* ... of which there may be small messages that cost much */
};

struct ws_in {
	struct ws_socket *s;
	wslay_event_context_ptr wslay; /* owned */
	const char *data;	       /* not yet taken by wslay */
	size_t len;
	int64_t until_us;     /* boot clock */
	uint64_t fed, framed; /* bytes put in; bytes of the frames that have begun */
	unsigned opcode;      /* of the frame in hand */
	bool fragmented;      /* of a message so far */
	struct sbx_buf message;
};

void ws_receive_free(struct ws_in *in)
{
	if (!in)
		return;
	wslay_event_context_free(in->wslay);
	sbx_buf_free(&in->message);
	free(in);
}

/* ---- wslay's callbacks ----------------------------------------------------------------------- */

static ssize_t give(wslay_event_context_ptr ctx, uint8_t *buf, size_t len, int flags, void *arg)
{
	struct ws_in *in = arg;

	(void)flags;
	if (in->len == 0 || sbx_boot_us() >= in->until_us) {
		wslay_event_set_error(ctx, WSLAY_ERR_WOULDBLOCK);
		return -1;
	}
	len = len < in->len ? len : in->len;
	len = len < MORSEL ? len : MORSEL;
	memcpy(buf, in->data, len);
	in->data += len;
	in->len -= len;
	in->fed += len;
	return (ssize_t)len;
}

static ssize_t answer(wslay_event_context_ptr ctx, const uint8_t *data, size_t len, int flags,
		      void *arg)
{
	struct ws_in *in = arg;

	(void)ctx;
	(void)flags;
	if (!in->s->closing)
		sbx_buf_add(&in->s->control, data, len);
	return (ssize_t)len;
}

static void refuse(struct ws_in *in, uint16_t code, const char *text)
{
	(void)wslay_event_queue_close(in->wslay, code, (const uint8_t *)text, strlen(text));
	wslay_event_shutdown_read(in->wslay);
}

static void frame_begins(wslay_event_context_ptr ctx,
			 const struct wslay_event_on_frame_recv_start_arg *arg, void *user)
{
	struct ws_in *in = user;
	uint64_t n = arg->payload_length;

	(void)ctx;
	in->framed += 2 + 4 + (n < 126 ? 0 : n <= 0xffff ? 2 : 8) + n;
	in->opcode = arg->opcode;
	if (wslay_is_ctrl_frame(arg->opcode))
		return;
	in->fragmented = !arg->fin;
	if (arg->opcode == WSLAY_BINARY_FRAME)
		refuse(in, WS_UNSUPPORTED, "only text is understood");
	else if (n > WS_MESSAGE_MAX - in->message.len)
		refuse(in, WS_TOO_BIG, "a message is at most 262144 bytes");
}

static void frame_goes_on(wslay_event_context_ptr ctx,
			  const struct wslay_event_on_frame_recv_chunk_arg *arg, void *user)
{
	struct ws_in *in = user;

	(void)ctx;
	if (!wslay_is_ctrl_frame(in->opcode))
		sbx_buf_add(&in->message, arg->data, arg->data_length);
}

static void message_ends(wslay_event_context_ptr ctx, const struct wslay_event_on_msg_recv_arg *arg,
			 void *user)
{
	struct ws_in *in = user;

	(void)ctx;
	if (arg->opcode != WSLAY_TEXT_FRAME)
		return;
	if (!sbx_buf_failed(&in->message))
		ws_stdin_message(in->s, in->message.data ? in->message.data : "", in->message.len);
	sbx_buf_free(&in->message);
	in->message = (struct sbx_buf)SBX_BUF_INIT(WS_MESSAGE_MAX);
}

/* ---- one helping ----------------------------------------------------------------------------- */

static struct ws_in *open_in(struct ws_socket *s)
{
	static const struct wslay_event_callbacks callbacks = {
		.recv_callback = give,
		.send_callback = answer,
		.on_frame_recv_start_callback = frame_begins,
		.on_frame_recv_chunk_callback = frame_goes_on,
		.on_msg_recv_callback = message_ends,
	};
	struct ws_in *in = calloc(1, sizeof(*in));

	if (!in)
		return NULL;
	in->s = s;
	in->message = (struct sbx_buf)SBX_BUF_INIT(WS_MESSAGE_MAX);
	if (wslay_event_context_server_init(&in->wslay, &callbacks, in) < 0) {
		free(in);
		return NULL;
	}
	/* We keep the message ourselves: wslay would take memory for what a header claims. */
	wslay_event_config_set_no_buffering(in->wslay, 1);
	wslay_event_config_set_max_recv_msg_length(in->wslay, WS_MESSAGE_MAX);
	return in;
}

size_t ws_receive(struct ws_socket *s, const void *data, size_t len)
{
	struct ws_in *in;

	if (s->deaf)
		return len;
	in = s->in ? s->in : (s->in = open_in(s));
	if (!in) {
		ws_socket_drop(s);
		return len;
	}
	in->data = data;
	in->len = len;
	in->until_us = sbx_boot_us() + TURN_US;
	if (wslay_event_recv(in->wslay) < 0) {
		/* A header that is none; wslay would close without a code. */
		s->deaf = true;
		ws_socket_close(s, WS_PROTOCOL, NULL);
		return len;
	}
	if (wslay_event_send(in->wslay) < 0 || sbx_buf_failed(&s->control)) {
		ws_socket_drop(s);
		return len;
	}
	s->deaf = wslay_event_get_close_sent(in->wslay);
	s->seen = s->closing && wslay_event_get_close_received(in->wslay);
	len = s->deaf ? len : len - in->len;
	if (s->deaf || (in->fed == in->framed && !in->fragmented)) {
		s->in = NULL;
		ws_receive_free(in);
	}
	if (s->deaf)
		ws_socket_closing(s);
	return len;
}
