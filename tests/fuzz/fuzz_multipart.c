/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arbitrary bytes as a form: the first line is the Content-Type, its first byte how long the pieces
 * are. Whatever comes of it is the same as when all of it comes at once, but for the words of a
 * refusal.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apid/multipart_i.h"
#include "base/buf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	(void)fprintf(stderr, "fuzz_multipart: broken: %s\n", what);
	abort();
}

static int on_part(void *ctx, const char *name, const char *file_name, struct sbx_error *e)
{
	(void)e;
	must(name[0] != '\0', "a part has a name");
	sbx_buf_printf(ctx, "<%s|%s>", name, file_name ? file_name : "");
	return 0;
}

static int on_data(void *ctx, const char *data, size_t len, struct sbx_error *e)
{
	(void)e;
	must(len > 0, "data is not empty");
	sbx_buf_add(ctx, data, len);
	return 0;
}

static int take(const char *type, const char *data, size_t len, size_t piece, struct sbx_buf *out,
		struct sbx_error *e)
{
	const struct multipart_calls calls = { on_part, on_data };
	struct multipart *m = NULL;
	int rc = multipart_new(type, &calls, out, &m, e);

	for (size_t at = 0; rc == 0 && at < len; at += piece)
		rc = multipart_feed(m, data + at, len - at < piece ? len - at : piece, e);
	if (rc == 0)
		rc = multipart_end(m, e);
	multipart_free(m);
	return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *text = (const char *)data;
	const char *line = size ? memchr(text + 1, '\n', size - 1) : NULL;
	sbx_autobuf one = SBX_BUF_INIT(1 << 20), two = SBX_BUF_INIT(1 << 20);
	sbx_autoerror e = SBX_ERROR_INIT, f = SBX_ERROR_INIT;
	sbx_autofree char *type = NULL;
	size_t len;
	int rc;

	if (!line || size > (64 << 10))
		return 0;
	type = strndup(text + 1, (size_t)(line - text) - 1);
	must(type != NULL, "memory");
	len = size - (size_t)(line + 1 - text);
	rc = take(type, line + 1, len, len + 1, &one, &e);
	must(take(type, line + 1, len, data[0] % 64 + 1U, &two, &f) == rc, "the same result");
	/* Of two faults in one head the cut may decide which is named. */
	must(rc == 0 || (e.code == f.code && e.message[0] && f.message[0]),
	     "a refusal that says why");
	must(one.len == two.len && (one.len == 0 || memcmp(one.data, two.data, one.len) == 0),
	     "the same parts");
	return 0;
}
