/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Run and session documents and scripts out of arbitrary bytes: never a crash, and what must agree
 * agrees: the scanner with itself in any portions, the reader with the scanner, and a spec with the
 * one that is read back from its own JSON.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/auto.h"
#include "base/json.h"
#include "mountspec/mountspec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	(void)fprintf(stderr, "fuzz_spec: broken: %s\n", what);
	abort();
}

/* Portions of 1 to 16 bytes, chosen by the input, so that a failure can be repeated. */
static enum sbx_json_state scan_in_portions(const char *text, size_t len, size_t *ret_used)
{
	struct sbx_json_scan s;
	enum sbx_json_state got = SBX_JSON_MORE;
	uint32_t random = (uint32_t)len * 2654435761u + 1;
	size_t at = 0, used, n;

	sbx_json_scan_init(&s);
	while (at < len && got == SBX_JSON_MORE) {
		random = random * 1664525u + 1013904223u;
		n = 1 + (random >> 28);
		if (n > len - at)
			n = len - at;
		got = sbx_json_scan_feed(&s, text + at, n, &used);
		must(used <= n && (got != SBX_JSON_MORE || used == n), "bytes used");
		at += used;
	}
	*ret_used = at;
	return got;
}

static void check_scanner(const char *text, size_t len)
{
	struct sbx_json_scan s;
	enum sbx_json_state whole;
	struct json_object *o = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;
	size_t used, portions_used;
	int rc;

	sbx_json_scan_init(&s);
	whole = sbx_json_scan_feed(&s, text, len, &used);
	must(scan_in_portions(text, len, &portions_used) == whole, "verdict in portions");
	must(portions_used == used, "end in portions");
	rc = sbx_json_parse_object(text, len, &o, &e);
	must(rc < 0 || whole == SBX_JSON_COMPLETE, "reader takes what the scanner does not");
	must(rc == 0 || (e.code != SBX_OK && e.message[0] && !o), "a refusal says why");
	if (rc == 0) {
		sbx_autofree char *canonical = sbx_json_canonical(o);

		must(canonical != NULL, "canonical text");
	}
	json_object_put(o);
}

static void check_refusal(const struct sbx_error *e)
{
	sbx_autojson *details = NULL;

	must(e->code != SBX_OK && e->message[0], "a refusal says why");
	if (e->details)
		must(sbx_json_parse_object(e->details, strlen(e->details), &details, NULL) == 0,
		     "details are JSON");
}

static void check_spec(const struct ms_run_spec *s)
{
	static const struct ms_options stored = { .stored = true };
	ms_autorun struct ms_run_spec *back = NULL;
	sbx_autofree char *text = ms_run_json(s), *again = NULL;
	sbx_autofree char *canonical = ms_run_canonical(s), *same = NULL;

	must(text && canonical, "rendering");
	must(ms_run_parse(text, strlen(text), &stored, &back, NULL) == 0, "reading back");
	again = ms_run_json(back);
	same = ms_run_canonical(back);
	must(again && strcmp(text, again) == 0, "the same JSON after reading back");
	must(same && strcmp(canonical, same) == 0, "the same canonical text after reading back");
}

static void check_session(const struct ms_run_spec *s)
{
	static const struct ms_options stored = { .stored = true };
	ms_autorun struct ms_run_spec *back = NULL, *run = NULL;
	sbx_autofree char *text = ms_session_json(s), *again = NULL;
	sbx_autofree char *canonical = ms_session_canonical(s), *same = NULL;

	must(text && canonical, "rendering a session");
	must(ms_session_parse(text, strlen(text), &stored, &back, NULL) == 0,
	     "reading back a session");
	again = ms_session_json(back);
	same = ms_session_canonical(back);
	must(again && strcmp(text, again) == 0, "the same session after reading back");
	must(same && strcmp(canonical, same) == 0, "the same canonical session");
	must(ms_run_parse("{}", 2, &stored, &run, NULL) == 0, "an empty run");
	must(ms_run_inherit(run, s, NULL) == 0, "taking over from a session");
	check_spec(run);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct ms_options options[] = {
		{ .refuse_unknown = true, .default_image = "host" },
		{ .refuse_unknown = false },
		{ .stored = true },
	};
	const char *text = (const char *)data;

	check_scanner(text, size);
	for (size_t i = 0; i < SBX_COUNT(options); i++) {
		ms_autorun struct ms_run_spec *spec = NULL, *script = NULL, *session = NULL;
		sbx_autoerror e = SBX_ERROR_INIT;

		if (ms_run_parse(text, size, &options[i], &spec, &e) == 0)
			check_spec(spec);
		else
			check_refusal(&e);
		if (ms_run_from_script(text, size, &options[i], &script, &e) == 0)
			check_spec(script);
		else
			check_refusal(&e);
		if (ms_session_parse(text, size, &options[i], &session, &e) == 0)
			check_session(session);
		else
			check_refusal(&e);
	}
	return 0;
}
