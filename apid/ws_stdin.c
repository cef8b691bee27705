/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Input from a stream:
 *   {"type":"stdin","encoding":"utf8"|"base64","data":"..."}   bytes for the command
 *   {"type":"stdin","eof":true}                                ... and no more after these
 * Everything else is ignored, and so is input for a run that takes none.
 *
 * What is over a limit is cut off and never queued; every viewer is told by a `truncated` frame,
 * which the runner puts into the log before it gives the command what was left.
 */
#include "apid/ws_i.h"

#include <json-c/json.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"

enum { DEPTH = 4 };

/* A message, decoded. */
struct input {
	char *data; /* owned */
	size_t len;
	bool eof;
};

static void input_clear(struct input *in)
{
	free(in->data);
}

static bool in_alphabet(char c)
{
	return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
	       c == '+' || c == '/';
}

/* As the reference does it: what does not belong there is passed over. */
static void decode_base64(const char *text, size_t len, struct input *in)
{
	sbx_autofree char *clean = malloc(len + 1);
	uint8_t *bytes = NULL;
	size_t n = 0;

	if (!clean)
		return;
	for (size_t i = 0; i < len && text[i] != '='; i++)
		if (in_alphabet(text[i]))
			clean[n++] = text[i];
	if (n % 4 == 1)
		n--;
	if (sbx_base64_decode(clean, n, &bytes, &in->len) == 0)
		in->data = (char *)bytes;
}

static bool has_text(struct json_object *o, const char *key, const char *value)
{
	struct json_object *v;

	return json_object_object_get_ex(o, key, &v) && json_object_is_type(v, json_type_string) &&
	       strcmp(json_object_get_string(v), value) == 0;
}

static struct json_object *parse(const char *text, size_t len)
{
	struct json_tokener *t = json_tokener_new_ex(DEPTH);
	struct json_object *o;

	if (!t)
		return NULL;
	json_tokener_set_flags(t, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
	o = json_tokener_parse_ex(t, text, (int)len);
	if (json_tokener_get_error(t) != json_tokener_success || !o ||
	    !json_object_is_type(o, json_type_object)) {
		json_object_put(o);
		o = NULL;
	}
	json_tokener_free(t);
	return o;
}

static bool read_input(const char *text, size_t len, struct input *in)
{
	sbx_autojson *o = parse(text, len);
	struct json_object *v;
	const char *data;
	size_t n;

	if (!o || !has_text(o, "type", "stdin"))
		return false;
	in->eof = json_object_object_get_ex(o, "eof", &v) &&
		  json_object_is_type(v, json_type_boolean) && json_object_get_boolean(v);
	if (!json_object_object_get_ex(o, "data", &v) || !json_object_is_type(v, json_type_string))
		return in->eof;
	data = json_object_get_string(v);
	n = (size_t)json_object_get_string_len(v);
	if (has_text(o, "encoding", "base64")) {
		decode_base64(data, n, in);
	} else if ((in->data = malloc(n + 1))) {
		memcpy(in->data, data, n);
		in->len = n;
	}
	return in->eof || in->len > 0;
}

/* ---- limits ---------------------------------------------------------------------------------- */

/* How much the bucket of one second allows; it is per run, whoever types. Fractions are kept, so
 * that many small messages get as much as a large one. */
static size_t take_tokens(struct ws_stdin *in, size_t want)
{
	double bps = (double)in->limits.bps;
	int64_t now = sbx_boot_us();
	size_t n;

	if (in->limits.bps < 0)
		return want;
	in->tokens += (double)(now - in->tokens_at_us) * bps / (double)SBX_SECOND_US;
	if (in->tokens > bps)
		in->tokens = bps;
	in->tokens_at_us = now;
	n = (double)want > in->tokens ? (size_t)in->tokens : want;
	in->tokens -= (double)n;
	return n;
}

static bool knows_limits(struct ws_follow *f)
{
	struct ws_stdin *in = &f->stdin_state;
	int rc;

	if (in->known)
		return !in->refused;
	rc = orch_stdin_limits(f->w->a->orch, &f->who, f->id, &in->limits, NULL);
	in->known = rc == 0 || rc == -SBX_E_NOT_INTERACTIVE;
	in->refused = rc < 0;
	in->tokens = in->limits.bps > 0 ? (double)in->limits.bps : 0;
	in->tokens_at_us = sbx_boot_us();
	return rc == 0;
}

static void type_in(struct ws_follow *f, const struct input *in)
{
	struct ws_stdin *st = &f->stdin_state;
	sbx_autoerror e = SBX_ERROR_INIT;
	const char *reason = NULL;
	size_t n = in->len, allowed;

	if (st->limits.frame >= 0 && n > (uint64_t)st->limits.frame) {
		n = (size_t)st->limits.frame;
		reason = "stdin_frame_cap";
	}
	allowed = take_tokens(st, n);
	if (allowed < n && !reason)
		reason = "stdin_rate";
	if (orch_run_type(f->w->a->orch, f->id, &st->limits, reason, in->data, allowed, &e) < 0)
		sbx_log(SBX_LOG_WARNING, "input is lost run=%s error=\"%s\"", f->id, e.message);
}

void ws_stdin_message(struct ws_socket *s, const char *text, size_t len)
{
	struct ws_follow *f = s->follow;
	SBX_AUTO(input_clear) struct input in = { 0 };

	if (s->closing || !f || f->ended || (f->stdin_state.known && f->stdin_state.refused))
		return;
	if (!read_input(text, len, &in) || !knows_limits(f))
		return;
	if (in.len > 0)
		type_in(f, &in);
	if (in.eof)
		(void)orch_run_ctl(f->w->a->orch, &f->who, f->id, "eof", 3, NULL);
}
