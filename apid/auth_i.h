/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to the files that say who asks, and to their tests:
 *   auth.c        which credentials there are, and what they are worth together
 *   auth_key.c    the API key
 *   auth_name.c   user names
 *   jwt.c         a token: its text, its header, its signature
 *   jwt_keys.c    what signatures are checked with
 *   jwt_claims.c  what a token says
 * A secret, a key or a token never stands in a message.
 */
#ifndef SBX_APID_AUTH_I_H
#define SBX_APID_AUTH_I_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/auto.h"
#include "base/error.h"
#include "base/json.h"
#include "orchestrator/orchestrator.h"

enum {
	AUTH_USER = 64,		 /* bytes of a user name and its NUL, as in struct orch_principal */
	AUTH_DIGEST = 32,	 /* SHA-256 */
	AUTH_API_KEY_LEAST = 16, /* characters in the file */
	TOKEN_MAX = 8 << 10,	 /* bytes of a token */
	TOKEN_SECRET_LEAST = 32, /* RFC 7518, 3.2: no shorter than the hash */
	TOKEN_RSA_LEAST = 2048,	 /* bits; RFC 7518, 3.3 */
	TOKEN_KEYS = 8, /* public keys at once, so that they can be changed without a gap */
	TOKEN_PEM_MAX = 64 << 10,
};

/* ---- auth_name.c ----------------------------------------------------------------------------- */

/* NULL when this can be a user's name, else what is wrong with it, as a short phrase. */
const char *auth_name_problem(const char *name);
/* Is the name one of a list ("a,b") of the settings? NULL is the empty list. */
bool auth_name_listed(const char *list, const char *name);
/* The login that a map ("alias=login,...") has for the alias; false when it has none, or one that
 * does not fit. */
bool auth_name_mapped(const char *map, const char *alias, char ret[AUTH_USER]);
/* Every login of the map can be a user's name. INVALID_CONFIG names the setting. */
int auth_name_check_map(const char *map, struct sbx_error *e);
/* Uid of a login name ("uid:N" is N), -1 when there is no such user. The name becomes that of the
 * user directory, which may not tell upper from lower case. INTERNAL when the directory is down: a
 * name of which nobody knows whether it is root's is not let in. */
int auth_name_uid(char name[AUTH_USER], int64_t *ret, struct sbx_error *e);

/* ---- auth_key.c ------------------------------------------------------------------------------ */

void auth_digest(const void *data, size_t len, unsigned char ret[AUTH_DIGEST]);
/* SHA-256 of the setting, else of `api.key` below dirfd, which is made when there is none.
 * INVALID_CONFIG. */
int auth_key_load(const struct orch_settings *st, int dirfd, unsigned char ret[AUTH_DIGEST],
		  struct sbx_error *e);

/* ---- jwt_keys.c ------------------------------------------------------------------------------ */

enum token_alg { TOKEN_HS256 = 1, TOKEN_RS256, TOKEN_ES256, TOKEN_ALG__COUNT };

struct token_key {
	enum token_alg alg;
	unsigned char *data; /* owned: the secret, or the PEM text of one public key */
	size_t len;	     /* never 0 */
};

/* What tokens must be. Made from one state of the settings; read-only. */
struct token_rules {
	const struct orch_settings *st; /* borrowed */
	struct token_key keys[TOKEN_KEYS + 1];
	size_t n_keys;
};
/* INVALID_CONFIG. */
int token_rules_new(const struct orch_settings *st, struct token_rules **ret, struct sbx_error *e);
struct token_rules *token_rules_free(struct token_rules *r); /* NULL is fine */
SBX_DEFINE_AUTO(struct token_rules, token_rules_free)

/* ---- jwt.c, jwt_claims.c --------------------------------------------------------------------- */

struct token_owner {
	char user[AUTH_USER];
	int64_t uid; /* -1: the host knows no such user */
	bool admin;
	int64_t until; /* Unix seconds; from then on the token is worth nothing */
};
/* Exactly two dots: it means to be a JWT. */
bool token_like(const char *text, size_t len);
/* Everything; now is in Unix seconds. UNAUTHORIZED, INTERNAL. */
int token_check(const struct token_rules *r, const char *text, size_t len, int64_t now,
		struct token_owner *ret, struct sbx_error *e);
/* What is left to do when the signature is good. */
int token_claims(const struct orch_settings *st, struct json_object *claims, int64_t now,
		 struct token_owner *ret, struct sbx_error *e);

#endif
