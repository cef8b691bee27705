/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arbitrary bytes as a token, as the claims of one that is signed well, and as its header: never a
 * crash, a refusal says why, and whoever is let in has a name, an end, and is not root.
 */
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apid/auth_i.h"

#define NOW    INT64_C(1700000000)
#define SECRET "0123456789abcdef0123456789abcdef"
#define HEADER "{\"alg\":\"HS256\",\"typ\":\"JWT\"}"
#define CLAIMS "{\"sub\":\"sbx-nobody-of-that-name\",\"exp\":1700000100}"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	(void)fprintf(stderr, "fuzz_token: broken: %s\n", what);
	abort();
}

/* Lives as long as the process. */
static const struct token_rules *rules(void)
{
	static const char *const overrides[] = { "jwt_secret=" SECRET };
	static struct token_rules *r;
	struct orch_settings *st = NULL;

	if (r)
		return r;
	must(orch_settings_load("/dev/null", overrides, SBX_COUNT(overrides), &st, NULL) == 0,
	     "settings");
	must(token_rules_new(st, &r, NULL) == 0, "rules");
	return r;
}

static void add_base64(struct sbx_buf *out, const void *data, size_t len)
{
	size_t from = out->len;
	sbx_autobuf text = SBX_BUF_INIT(1 << 20);

	sbx_buf_base64(&text, data, len);
	while (text.len && text.data[text.len - 1] == '=')
		text.len--;
	if (text.len == 0)
		return;
	sbx_buf_add(out, text.data, text.len);
	for (char *p = out->data + from; p < out->data + out->len; p++)
		*p = (char)(*p == '+' ? '-' : *p == '/' ? '_' : *p);
}

static bool check(const char *text, size_t len, struct token_owner *ret)
{
	sbx_autoerror e = SBX_ERROR_INIT;

	if (token_check(rules(), text, len, NOW, ret, &e) == 0) {
		must(!auth_name_problem(ret->user), "the user has a name");
		must(ret->uid != 0 && strncmp(ret->user, "uid:", 4) != 0, "the user is not root");
		must(ret->until > NOW, "the token has an end, and it is to come");
		return true;
	}
	must(e.code == SBX_E_UNAUTHORIZED || e.code == SBX_E_INTERNAL, "code of a refusal");
	must(e.message[0] != '\0', "a refusal says why");
	return false;
}

static bool check_signed(const void *header, size_t header_len, const void *claims,
			 size_t claims_len)
{
	sbx_autobuf text = SBX_BUF_INIT(4 << 20);
	unsigned char mac[EVP_MAX_MD_SIZE];
	struct token_owner owner;
	unsigned n = 0;

	add_base64(&text, header, header_len);
	sbx_buf_puts(&text, ".");
	add_base64(&text, claims, claims_len);
	(void)HMAC(EVP_sha256(), SECRET, (int)strlen(SECRET), (const unsigned char *)text.data,
		   text.len, mac, &n);
	sbx_buf_puts(&text, ".");
	add_base64(&text, mac, n);
	must(!sbx_buf_failed(&text), "making a token");
	return check(text.data, text.len, &owner);
}

/* A header that is let in says HS256 in exactly these letters, once. */
static void check_header(const uint8_t *data, size_t size)
{
	sbx_autojson *header = NULL;
	struct json_object *alg = NULL;

	if (!check_signed(data, size, CLAIMS, strlen(CLAIMS)))
		return;
	must(sbx_json_parse_object((const char *)data, size, &header, NULL) == 0, "a document");
	must(json_object_object_get_ex(header, "alg", &alg) &&
		     strcmp(json_object_get_string(alg), "HS256") == 0,
	     "the algorithm");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct token_owner owner;

	if (size > (64 << 10))
		return 0;
	(void)check((const char *)data, size, &owner);
	(void)check_signed(HEADER, strlen(HEADER), data, size);
	check_header(data, size);
	return 0;
}
