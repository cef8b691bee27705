/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What signatures of tokens are checked with. A key belongs to one algorithm from the moment it is
 * read: what an RSA key can be used for is never up to a token.
 */
#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <stdio.h>

#include "apid/auth_i.h"
#include "base/fs.h"

static void evp_putp(EVP_PKEY **p)
{
	EVP_PKEY_free(*p);
}

static void bio_putp(BIO **p)
{
	(void)BIO_free(*p);
}

static int refuse_key(struct sbx_error *e, const char *problem)
{
	return sbx_fail(e, SBX_E_INVALID_CONFIG, "jwt_public_key: %s", problem);
}

static int add_key(struct token_rules *r, enum token_alg alg, const void *data, size_t len,
		   struct sbx_error *e)
{
	struct token_key *k = &r->keys[r->n_keys];

	k->data = malloc(len + 1);
	if (!k->data)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a key");
	memcpy(k->data, data, len);
	k->data[len] = '\0';
	k->len = len;
	k->alg = alg;
	r->n_keys++;
	return 0;
}

static int add_secret(struct token_rules *r, const char *secret, struct sbx_error *e)
{
	size_t len = secret ? strlen(secret) : 0;

	if (!secret)
		return 0;
	if (len < TOKEN_SECRET_LEAST)
		return sbx_fail(e, SBX_E_INVALID_CONFIG,
				"jwt_secret: it has %zu bytes, 32 is the least", len);
	return add_key(r, TOKEN_HS256, secret, len, e);
}

/* 0 when no algorithm of ours fits the key; *ret_problem says why. */
static enum token_alg alg_of(const EVP_PKEY *key, const char **ret_problem)
{
	char group[64] = "";

	if (EVP_PKEY_is_a(key, "RSA")) {
		if (EVP_PKEY_get_bits(key) >= TOKEN_RSA_LEAST)
			return TOKEN_RS256;
		*ret_problem = "an RSA key has fewer than 2048 bits";
		return 0;
	}
	if (EVP_PKEY_is_a(key, "EC")) {
		(void)EVP_PKEY_get_group_name(key, group, sizeof(group), NULL);
		if (strcmp(group, "prime256v1") == 0)
			return TOKEN_ES256;
		*ret_problem = "ES256 needs a key on the curve P-256 (prime256v1)";
		return 0;
	}
	*ret_problem = "a key is neither RSA nor EC";
	return 0;
}

/* Written again, so that libjwt reads the key that was looked at and nothing beside it. */
static int add_public(struct token_rules *r, EVP_PKEY *key, struct sbx_error *e)
{
	SBX_AUTO(bio_putp) BIO *out = BIO_new(BIO_s_mem());
	const char *problem = NULL;
	enum token_alg alg = alg_of(key, &problem);
	char *data = NULL;
	long len;

	if (!alg)
		return refuse_key(e, problem);
	if (r->n_keys == SBX_COUNT(r->keys))
		return refuse_key(e, "it holds more than 8 keys");
	if (!out || PEM_write_bio_PUBKEY(out, key) != 1)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a key");
	len = BIO_get_mem_data(out, &data);
	return add_key(r, alg, data, (size_t)len, e);
}

/* Did the reader stop because there is no further block? */
static bool at_end(void)
{
	unsigned long err = ERR_peek_last_error();

	return ERR_GET_LIB(err) == ERR_LIB_PEM && ERR_GET_REASON(err) == PEM_R_NO_START_LINE;
}

/* What is no public key is an error, or a private one could lie there unnoticed. */
static int add_block(struct token_rules *r, const char *name, const unsigned char *data, long len,
		     struct sbx_error *e)
{
	const unsigned char *at = data;
	SBX_AUTO(evp_putp) EVP_PKEY *key = NULL;

	if (strstr(name, "PRIVATE"))
		return refuse_key(e, "the file holds a private key, which must not be here; only "
				     "the public one is needed");
	if (strcmp(name, PEM_STRING_PUBLIC) != 0)
		return refuse_key(e, "the file holds something that is not a BEGIN PUBLIC KEY");
	key = d2i_PUBKEY(NULL, &at, len);
	return key && at == data + len ? add_public(r, key, e)
				       : refuse_key(e, "a key in the file cannot be read");
}

static int add_pem(struct token_rules *r, const char *text, size_t len, struct sbx_error *e)
{
	SBX_AUTO(bio_putp) BIO *in = BIO_new_mem_buf(text, (int)len);
	size_t before = r->n_keys;
	int rc = 0;

	if (!in)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a key");
	while (rc == 0) {
		char *name = NULL, *header = NULL;
		unsigned char *data = NULL;
		long n = 0;

		if (PEM_read_bio(in, &name, &header, &data, &n) != 1)
			break;
		rc = add_block(r, name, data, n, e);
		OPENSSL_free(name);
		OPENSSL_free(header);
		OPENSSL_clear_free(data, (size_t)n);
	}
	if (rc == 0 && !at_end())
		rc = refuse_key(e, "a key in the file cannot be read");
	if (rc == 0 && r->n_keys == before)
		rc = refuse_key(e, "the file holds no PEM public key (BEGIN PUBLIC KEY)");
	return rc;
}

static int add_file(struct token_rules *r, const char *path, struct sbx_error *e)
{
	sbx_autofree char *text = NULL;
	size_t len = 0;
	int rc;

	if (!path)
		return 0;
	rc = sbx_read_file(AT_FDCWD, path, TOKEN_PEM_MAX, &text, &len);
	if (rc < 0)
		return sbx_fail_errno(e, SBX_E_INVALID_CONFIG, -rc, "jwt_public_key: %s", path);
	if (!auth_name_listed(r->st->jwt_algorithms, "RS256") &&
	    !auth_name_listed(r->st->jwt_algorithms, "ES256"))
		return refuse_key(e, "it is set, but jwt_algorithms has neither RS256 nor ES256");
	ERR_clear_error();
	rc = add_pem(r, text, len, e);
	ERR_clear_error();
	OPENSSL_cleanse(text, len);
	return rc;
}

int token_rules_new(const struct orch_settings *st, struct token_rules **ret, struct sbx_error *e)
{
	SBX_AUTO(token_rules_freep) struct token_rules *r = calloc(1, sizeof(*r));
	int rc;

	if (!r)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the rules of tokens");
	r->st = st;
	rc = auth_name_check_map(st->user_map, e);
	if (rc == 0)
		rc = add_secret(r, st->jwt_secret, e);
	if (rc == 0)
		rc = add_file(r, st->jwt_public_key, e);
	if (rc == 0)
		*ret = sbx_steal(&r);
	return rc;
}

struct token_rules *token_rules_free(struct token_rules *r)
{
	if (!r)
		return NULL;
	for (size_t i = 0; i < r->n_keys; i++) {
		OPENSSL_cleanse(r->keys[i].data, r->keys[i].len);
		free(r->keys[i].data);
	}
	free(r);
	return NULL;
}
