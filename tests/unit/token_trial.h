/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of bearer tokens share: keys, and trials of one token after another. */
#ifndef SBX_TESTS_UNIT_TOKEN_TRIAL_H
#define SBX_TESTS_UNIT_TOKEN_TRIAL_H

#include "tests/unit/token_util.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apid/auth_i.h"
#include "base/fs.h"

#define NOW	 INT64_C(1700000000)
#define ALL	 "jwt_algorithms=HS256,RS256,ES256"
#define SECRET	 "jwt_secret=" TOKEN_SECRET
#define GOOD	 "\"sub\":\"sbx-nobody-of-that-name\",\"exp\":1700000100"
#define HS(rest) "{\"alg\":\"HS256\"" rest "}"

static struct {
	EVP_PKEY *rsa, *other_rsa, *ec, *other_ec;
	char *rsa_pem; /* public */
	char path[64], setting[96];
} keys;

static inline void write_keys(const char *text)
{
	int fd = open(keys.path, O_WRONLY | O_TRUNC | O_CREAT | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(sbx_write_all(fd, text, strlen(text)), 0);
	(void)close(fd);
}

static inline void write_both_keys(void)
{
	sbx_autofree char *ec = token_pem(keys.ec, false), *both = NULL;

	assert_true(asprintf(&both, "RSA:\n%s\nEC:\n%s", keys.rsa_pem, ec) > 0);
	write_keys(both);
}

static inline int make_keys(void **state)
{
	(void)state;
	(void)snprintf(keys.path, sizeof(keys.path), "/tmp/sbx-tokens-%d.pem", (int)getpid());
	(void)snprintf(keys.setting, sizeof(keys.setting), "jwt_public_key=%s", keys.path);
	keys.rsa = EVP_RSA_gen(2048);
	keys.other_rsa = EVP_RSA_gen(2048);
	keys.ec = EVP_EC_gen("P-256");
	keys.other_ec = EVP_EC_gen("P-256");
	if (!keys.rsa || !keys.other_rsa || !keys.ec || !keys.other_ec)
		return -1;
	keys.rsa_pem = token_pem(keys.rsa, false);
	return 0;
}

static inline int drop_keys(void **state)
{
	(void)state;
	EVP_PKEY_free(keys.rsa);
	EVP_PKEY_free(keys.other_rsa);
	EVP_PKEY_free(keys.ec);
	EVP_PKEY_free(keys.other_ec);
	free(keys.rsa_pem);
	return unlink(keys.path);
}

/* ---- one trial ------------------------------------------------------------------------------- */

struct trial {
	struct orch_settings *st;
	struct token_rules *rules;
	struct token_owner who;
	struct sbx_error e;
	int rc;
};

/* Extra settings end with NULL. */
static inline void begin(struct trial *t, const char *one, const char *two)
{
	const char *const overrides[] = { ALL, SECRET, keys.setting, one, one ? two : NULL, NULL };
	sbx_autoerror e = SBX_ERROR_INIT;

	*t = (struct trial){ .e = SBX_ERROR_INIT };
	write_both_keys();
	t->st = token_settings(overrides);
	if (token_rules_new(t->st, &t->rules, &e))
		fail_msg("%s", e.message);
}

static inline void end(struct trial *t)
{
	sbx_error_clear(&t->e);
	token_rules_free(t->rules);
	orch_settings_free(t->st);
}

static inline void check(struct trial *t, const char *token)
{
	sbx_error_clear(&t->e);
	memset(&t->who, 0, sizeof(t->who));
	t->rc = token_check(t->rules, token, strlen(token), NOW, &t->who, &t->e);
}

/* Signed as it should be. */
static inline void check_claims(struct trial *t, const char *claims)
{
	sbx_autofree char *token = token_hs256(claims, TOKEN_SECRET);

	check(t, token);
}

static inline void accepted(struct trial *t, const char *claims)
{
	check_claims(t, claims);
	if (t->rc)
		fail_msg("%s: %s", claims, t->e.message);
}

static inline void refused_with(struct trial *t, const char *what, const char *message)
{
	if (t->rc != -SBX_E_UNAUTHORIZED || !strstr(t->e.message, message))
		fail_msg("%s: wanted '%s', got %d '%s'", what, message, t->rc, t->e.message);
	assert_null(strstr(t->e.message, TOKEN_SECRET));
}

static inline void refused(struct trial *t, const char *claims, const char *message)
{
	check_claims(t, claims);
	refused_with(t, claims, message);
}

#endif
