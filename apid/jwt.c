/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A token in its compact form: HEADER.CLAIMS.SIGNATURE, each base64url (RFC 7515, RFC 7519).
 *
 * libjwt checks the signature and nothing else here, because of what it does by itself: it takes
 * the algorithm from the token, in any case of letters, accepts an unsigned token when there is no
 * key, keeps the last of two equal members, knows no critical headers, recurses as deep as the text
 * wants, and has numbers that are no integers as 0. So both documents are read by our own strict
 * parser first, the key is chosen before libjwt sees the token, and which algorithm it has then
 * used is compared.
 */
#include <jwt.h>
#include <openssl/err.h>
#include <string.h>

#include "apid/auth_i.h"

static const struct alg {
	const char *name; /* exactly */
	jwt_alg_t jwt;
} algs[TOKEN_ALG__COUNT] = {
	[TOKEN_HS256] = { "HS256", JWT_ALG_HS256 },
	[TOKEN_RS256] = { "RS256", JWT_ALG_RS256 },
	[TOKEN_ES256] = { "ES256", JWT_ALG_ES256 },
};

static int refuse(struct sbx_error *e, const char *problem)
{
	return sbx_fail(e, SBX_E_UNAUTHORIZED, "the token %s", problem);
}

/* ---- text ------------------------------------------------------------------------------------ */

enum { HEADER, CLAIMS, SIGNATURE, PARTS };

struct part {
	const char *text;
	size_t len;
};

/* The parts of a token with exactly two dots. */
static bool split(const char *text, size_t len, struct part ret[PARTS])
{
	size_t begin = 0, n = 0;

	for (size_t i = 0; i <= len; i++) {
		if (i < len && text[i] != '.')
			continue;
		if (n == PARTS)
			return false;
		ret[n++] = (struct part){ text + begin, i - begin };
		begin = i + 1;
	}
	return n == PARTS;
}

bool token_like(const char *text, size_t len)
{
	struct part p[PARTS];

	return split(text, len, p);
}

/* base64url without padding, as RFC 7515 wants it; malloc'd. */
static int decode(const struct part *p, char **ret, size_t *ret_len)
{
	sbx_autofree char *plain = strndup(p->text, p->len);
	uint8_t *out = NULL;

	if (!plain)
		return -1;
	for (size_t i = 0; i < p->len; i++) {
		if (plain[i] == '+' || plain[i] == '/' || plain[i] == '=')
			return -1;
		if (plain[i] == '-')
			plain[i] = '+';
		else if (plain[i] == '_')
			plain[i] = '/';
	}
	if (sbx_base64_decode(plain, p->len, &out, ret_len) < 0)
		return -1;
	*ret = (char *)out;
	return 0;
}

/* What the document says is not shown: nobody has signed it yet. */
static int parse(const struct part *p, const char *what, struct json_object **ret,
		 struct sbx_error *e)
{
	sbx_autoerror why = SBX_ERROR_INIT;
	sbx_autofree char *text = NULL;
	size_t len = 0;

	if (p->len == 0 || decode(p, &text, &len) < 0)
		return sbx_fail(e, SBX_E_UNAUTHORIZED,
				"the token's %s is empty or not base64url without padding", what);
	if (sbx_json_parse_object(text, len, ret, &why) < 0)
		return sbx_fail(e, SBX_E_UNAUTHORIZED,
				"the token's %s is not one JSON object, or has a member twice",
				what);
	return 0;
}

/* ---- header ---------------------------------------------------------------------------------- */

static const char *header_text(struct json_object *header, const char *name)
{
	struct json_object *v = NULL;

	if (!json_object_object_get_ex(header, name, &v) ||
	    !json_object_is_type(v, json_type_string))
		return NULL;
	return json_object_get_string(v);
}

/* Spellings of `none` are simply not among ours. */
static int choose_alg(const struct token_rules *r, struct json_object *header, enum token_alg *ret,
		      struct sbx_error *e)
{
	const char *alg = header_text(header, "alg"), *typ = header_text(header, "typ");

	if (json_object_object_get_ex(header, "crit", NULL))
		return refuse(e, "has critical headers (crit), and none is known here");
	if (json_object_object_get_ex(header, "typ", NULL) && (!typ || strcasecmp(typ, "JWT") != 0))
		return refuse(e, "has a typ that is not JWT");
	for (int i = 1; alg && i < TOKEN_ALG__COUNT; i++) {
		if (strcmp(alg, algs[i].name) != 0 || !auth_name_listed(r->st->jwt_algorithms, alg))
			continue;
		*ret = (enum token_alg)i;
		return 0;
	}
	return refuse(e, "is not signed by an algorithm that is accepted here (jwt_algorithms)");
}

/* ---- signature ------------------------------------------------------------------------------- */

static bool signed_by(const char *token, const struct token_key *k)
{
	jwt_t *jwt = NULL;
	bool good = jwt_decode(&jwt, token, k->data, (int)k->len) == 0 &&
		    jwt_get_alg(jwt) == algs[k->alg].jwt;

	jwt_free(jwt);
	/* Refusals stay in the thread's queue otherwise, where TLS would find them. */
	ERR_clear_error();
	return good;
}

static int check_signature(const struct token_rules *r, const char *token, enum token_alg alg,
			   struct sbx_error *e)
{
	bool any = false;

	for (size_t i = 0; i < r->n_keys; i++) {
		if (r->keys[i].alg != alg)
			continue;
		any = true;
		if (signed_by(token, &r->keys[i]))
			return 0;
	}
	return refuse(e, any ? "has a wrong signature"
			     : "is signed by an algorithm for which there is no key here");
}

/* ---- all of it ------------------------------------------------------------------------------- */

int token_check(const struct token_rules *r, const char *text, size_t len, int64_t now,
		struct token_owner *ret, struct sbx_error *e)
{
	struct part p[PARTS];
	sbx_autojson *header = NULL, *claims = NULL;
	sbx_autofree char *token = NULL, *signature = NULL;
	enum token_alg alg = 0;
	size_t n;
	int rc;

	if (len > TOKEN_MAX)
		return refuse(e, "is longer than 8192 bytes");
	/* strndup and libjwt would see another token than we do. */
	if (memchr(text, '\0', len) || !split(text, len, p))
		return refuse(e, "is no JWT: it must have three parts with a dot between them");
	token = strndup(text, len);
	if (!token)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a token");
	rc = parse(&p[HEADER], "header", &header, e);
	if (rc == 0)
		rc = choose_alg(r, header, &alg, e);
	if (rc == 0)
		rc = parse(&p[CLAIMS], "second part", &claims, e);
	if (rc < 0)
		return rc;
	if (p[SIGNATURE].len == 0 || decode(&p[SIGNATURE], &signature, &n) < 0)
		return refuse(e, "has no signature, or one that is not base64url without padding");
	rc = check_signature(r, token, alg, e);
	return rc == 0 ? token_claims(r->st, claims, now, ret, e) : rc;
}
