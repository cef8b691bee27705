/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens for tests, made with libcrypto alone: what is tested has no part in making them. */
#ifndef SBX_TESTS_UNIT_TOKEN_UTIL_H
#define SBX_TESTS_UNIT_TOKEN_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <openssl/ecdsa.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "orchestrator/settings.h"

#define TOKEN_SECRET "0123456789abcdef0123456789abcdef" /* exactly the least that is allowed */

static inline struct orch_settings *token_settings(const char *const *overrides)
{
	struct orch_settings *s = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;
	size_t n = 0;

	for (size_t i = 0; orch_setting_at(i); i++)
		(void)unsetenv(orch_setting_at(i)->env);
	while (overrides[n])
		n++;
	if (orch_settings_load("/dev/null", overrides, n, &s, &e))
		fail_msg("%s", e.message);
	return s;
}

/* A user that every host has and nobody logs in as. */
static inline int64_t daemon_uid(void)
{
	struct passwd *pw = getpwnam("daemon");

	assert_non_null(pw);
	return pw->pw_uid;
}

/* base64url without padding; malloc'd. */
static inline char *token_base64(const void *data, size_t len)
{
	char *out = malloc(len / 3 * 4 + 5);
	int n;

	assert_non_null(out);
	n = EVP_EncodeBlock((unsigned char *)out, data, (int)len);
	while (n && out[n - 1] == '=')
		n--;
	out[n] = '\0';
	for (char *p = out; *p; p++)
		*p = (char)(*p == '+' ? '-' : *p == '/' ? '_' : *p);
	return out;
}

static inline char *token_hmac(const char *text, const void *key, size_t key_len)
{
	unsigned char mac[EVP_MAX_MD_SIZE];
	unsigned n = 0;

	assert_non_null(HMAC(EVP_sha256(), key, (int)key_len, (const unsigned char *)text,
			     strlen(text), mac, &n));
	return token_base64(mac, n);
}

/* SHA-256 with RSA (PKCS #1) or ECDSA (DER). */
static inline size_t token_sign_raw(const char *text, EVP_PKEY *key, unsigned char *out,
				    size_t size)
{
	EVP_MD_CTX *ctx = EVP_MD_CTX_new();

	assert_int_equal(EVP_DigestSignInit(ctx, NULL, EVP_sha256(), NULL, key), 1);
	assert_int_equal(EVP_DigestSign(ctx, out, &size, (const unsigned char *)text, strlen(text)),
			 1);
	EVP_MD_CTX_free(ctx);
	return size;
}

static inline char *token_rs256(const char *text, EVP_PKEY *key)
{
	unsigned char out[1024];

	return token_base64(out, token_sign_raw(text, key, out, sizeof(out)));
}

/* r and s, 32 bytes each: RFC 7518, 3.4. */
static inline char *token_es256(const char *text, EVP_PKEY *key)
{
	unsigned char der[256], raw[64];
	const unsigned char *at = der;
	size_t n = token_sign_raw(text, key, der, sizeof(der));
	ECDSA_SIG *sig = d2i_ECDSA_SIG(NULL, &at, (long)n);

	assert_non_null(sig);
	assert_int_equal(BN_bn2binpad(ECDSA_SIG_get0_r(sig), raw, 32), 32);
	assert_int_equal(BN_bn2binpad(ECDSA_SIG_get0_s(sig), raw + 32, 32), 32);
	ECDSA_SIG_free(sig);
	return token_base64(raw, sizeof(raw));
}

/* "HEADER.CLAIMS"; malloc'd. */
static inline char *token_unsigned(const char *header, size_t header_len, const char *claims,
				   size_t claims_len)
{
	sbx_autofree char *h = token_base64(header, header_len);
	sbx_autofree char *c = token_base64(claims, claims_len);
	char *out = NULL;

	assert_true(asprintf(&out, "%s.%s", h, c) > 0);
	return out;
}

static inline char *token_join(const char *text, const char *signature)
{
	char *out = NULL;

	assert_true(asprintf(&out, "%s.%s", text, signature) > 0);
	return out;
}

static inline char *token_hs256(const char *claims, const char *secret)
{
	static const char header[] = "{\"alg\":\"HS256\",\"typ\":\"JWT\"}";
	sbx_autofree char *text = token_unsigned(header, strlen(header), claims, strlen(claims));
	sbx_autofree char *signature = token_hmac(text, secret, strlen(secret));

	return token_join(text, signature);
}

/* The PEM text of the public or the private half; malloc'd. */
static inline char *token_pem(EVP_PKEY *key, bool private_half)
{
	BIO *out = BIO_new(BIO_s_mem());
	char *data = NULL, *text;
	long n;

	assert_non_null(out);
	if (private_half)
		assert_int_equal(PEM_write_bio_PrivateKey(out, key, NULL, NULL, 0, NULL, NULL), 1);
	else
		assert_int_equal(PEM_write_bio_PUBKEY(out, key), 1);
	n = BIO_get_mem_data(out, &data);
	text = strndup(data, (size_t)n);
	BIO_free(out);
	assert_non_null(text);
	return text;
}

#endif
