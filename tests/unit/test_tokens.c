/* SPDX-License-Identifier: Apache-2.0 */
/* Bearer tokens: signatures and text, which are let in and which are not, and the keys in the
 * settings. */
#include "token_trial.h"

/* ---- signatures ------------------------------------------------------------------------------ */

enum how {
	BY_SECRET,
	BY_OTHER_SECRET,
	BY_EMPTY_SECRET,
	BY_RSA_PEM, /* the public key's text as if it were the secret */
	BY_RSA,
	BY_OTHER_RSA,
	BY_EC,
	BY_OTHER_EC,
	BY_EC_DER,
	BY_ZEROS,
	BY_NOBODY,
};

static char *sign(const char *text, enum how how)
{
	unsigned char raw[256] = { 0 };

	switch (how) {
	case BY_SECRET:
		return token_hmac(text, TOKEN_SECRET, strlen(TOKEN_SECRET));
	case BY_OTHER_SECRET:
		return token_hmac(text, "fedcba9876543210fedcba9876543210", 32);
	case BY_EMPTY_SECRET:
		return token_hmac(text, "", 0);
	case BY_RSA_PEM:
		return token_hmac(text, keys.rsa_pem, strlen(keys.rsa_pem));
	case BY_RSA:
		return token_rs256(text, keys.rsa);
	case BY_OTHER_RSA:
		return token_rs256(text, keys.other_rsa);
	case BY_EC:
		return token_es256(text, keys.ec);
	case BY_OTHER_EC:
		return token_es256(text, keys.other_ec);
	case BY_EC_DER:
		return token_base64(raw, token_sign_raw(text, keys.ec, raw, sizeof(raw)));
	case BY_ZEROS:
		return token_base64(raw, 64);
	default:
		return strdup("");
	}
}

static char *make(const char *header, const char *claims, enum how how)
{
	sbx_autofree char *text = token_unsigned(header, strlen(header), claims, strlen(claims));
	sbx_autofree char *signature = sign(text, how);

	return token_join(text, signature);
}

static void token__each_algorithm_with_its_key(void **state)
{
	static const struct {
		const char *header;
		enum how how;
	} good[] = {
		{ HS(""), BY_SECRET },
		{ HS(",\"typ\":\"JWT\",\"kid\":\"7\""), BY_SECRET },
		{ HS(",\"typ\":\"jwt\""), BY_SECRET },
		{ "{\"alg\":\"RS256\",\"typ\":\"JWT\"}", BY_RSA },
		{ "{\"alg\":\"ES256\",\"typ\":\"JWT\"}", BY_EC },
	};
	struct trial t;

	(void)state;
	begin(&t, NULL, NULL);
	for (size_t i = 0; i < SBX_COUNT(good); i++) {
		sbx_autofree char *token = make(good[i].header, "{" GOOD "}", good[i].how);

		check(&t, token);
		if (t.rc)
			fail_msg("%s: %s", good[i].header, t.e.message);
		assert_string_equal(t.who.user, "sbx-nobody-of-that-name");
		assert_int_equal(t.who.uid, -1);
		assert_false(t.who.admin);
		assert_int_equal(t.who.until, NOW + 100);
	}
	end(&t);
}

static const char not_accepted[] = "algorithm that is accepted here";
static const char wrong[] = "wrong signature";
static const struct {
	const char *header;
	enum how how;
	const char *message;
} forged[] = {
	{ "{\"alg\":\"none\"}", BY_NOBODY, not_accepted },
	{ "{\"alg\":\"none\",\"typ\":\"JWT\"}", BY_SECRET, not_accepted },
	{ "{\"alg\":\"None\"}", BY_NOBODY, not_accepted },
	{ "{\"alg\":\"NONE\"}", BY_NOBODY, not_accepted },
	{ "{\"alg\":\"nOnE\"}", BY_NOBODY, not_accepted },
	{ "{\"alg\":\"none \"}", BY_NOBODY, not_accepted },
	{ "{\"alg\":\"\"}", BY_NOBODY, not_accepted },
	{ "{\"alg\":null}", BY_NOBODY, not_accepted },
	{ "{\"alg\":0}", BY_NOBODY, not_accepted },
	{ "{\"alg\":[\"HS256\"]}", BY_SECRET, not_accepted },
	{ "{}", BY_NOBODY, not_accepted },
	{ "{\"typ\":\"JWT\"}", BY_SECRET, not_accepted },
	{ "{\"alg\":\"hs256\"}", BY_SECRET, not_accepted },
	{ "{\"alg\":\"HS256 \"}", BY_SECRET, not_accepted },
	{ "{\"alg\":\"HS256,RS256\"}", BY_SECRET, not_accepted },
	{ "{\"alg\":\"HS384\"}", BY_SECRET, not_accepted },
	{ "{\"alg\":\"PS256\"}", BY_RSA, not_accepted },
	{ "{\"alg\":\"EdDSA\"}", BY_RSA, not_accepted },
	{ HS(""), BY_RSA_PEM, wrong },
	{ HS(""), BY_EMPTY_SECRET, wrong },
	{ HS(""), BY_OTHER_SECRET, wrong },
	{ HS(""), BY_RSA, wrong },
	{ HS(""), BY_NOBODY, "has no signature" },
	{ "{\"alg\":\"RS256\"}", BY_RSA_PEM, wrong },
	{ "{\"alg\":\"RS256\"}", BY_SECRET, wrong },
	{ "{\"alg\":\"RS256\"}", BY_OTHER_RSA, wrong },
	{ "{\"alg\":\"RS256\"}", BY_EC, wrong },
	{ "{\"alg\":\"RS256\"}", BY_NOBODY, "has no signature" },
	{ "{\"alg\":\"ES256\"}", BY_RSA, wrong },
	{ "{\"alg\":\"ES256\"}", BY_OTHER_EC, wrong },
	{ "{\"alg\":\"ES256\"}", BY_EC_DER, wrong },
	{ "{\"alg\":\"ES256\"}", BY_ZEROS, wrong },
	{ "{\"alg\":\"ES256\"}", BY_NOBODY, "has no signature" },
	{ "{\"alg\":\"none\",\"alg\":\"HS256\"}", BY_SECRET, "a member twice" },
	{ "{\"alg\":\"HS256\",\"alg\":\"none\"}", BY_NOBODY, "a member twice" },
	{ "{\"alg\":\"HS256\",\"\\u0061lg\":\"none\"}", BY_NOBODY, "a member twice" },
	{ HS(",\"crit\":[\"exp\"]"), BY_SECRET, "crit" },
	{ HS(",\"crit\":null"), BY_SECRET, "crit" },
	{ HS(",\"typ\":\"at+jwt\""), BY_SECRET, "typ" },
	{ HS(",\"typ\":1"), BY_SECRET, "typ" },
	{ "[\"HS256\"]", BY_SECRET, "not one JSON object" },
	{ "HS256", BY_SECRET, "not one JSON object" },
	{ "", BY_SECRET, "empty" },
};

static void token__forgeries(void **state)
{
	struct trial t;

	(void)state;
	begin(&t, NULL, NULL);
	for (size_t i = 0; i < SBX_COUNT(forged); i++) {
		sbx_autofree char *token = make(forged[i].header, "{" GOOD "}", forged[i].how);

		check(&t, token);
		refused_with(&t, forged[i].header, forged[i].message);
	}
	end(&t);
}

/* With only a public key there is nothing that an HS256 token could be checked with, and with only
 * a secret nothing for the others. */
static void token__algorithm_without_a_key(void **state)
{
	const char *const only_public[] = { ALL, keys.setting, NULL };
	const char *const only_secret[] = { ALL, SECRET, NULL };
	static const struct {
		const char *header;
		enum how how;
		bool secret;
	} rows[] = {
		{ HS(""), BY_RSA_PEM, false },
		{ HS(""), BY_EMPTY_SECRET, false },
		{ "{\"alg\":\"RS256\"}", BY_SECRET, true },
		{ "{\"alg\":\"ES256\"}", BY_SECRET, true },
	};

	(void)state;
	write_both_keys();
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		sbx_autofree char *token = make(rows[i].header, "{" GOOD "}", rows[i].how);
		struct trial t = { .e = SBX_ERROR_INIT };

		t.st = token_settings(rows[i].secret ? only_secret : only_public);
		assert_int_equal(token_rules_new(t.st, &t.rules, NULL), 0);
		check(&t, token);
		refused_with(&t, rows[i].header, "no key here");
		end(&t);
	}
}

static void token__algorithm_that_is_not_in_the_settings(void **state)
{
	const char *const overrides[] = { "jwt_algorithms=RS256", SECRET, keys.setting, NULL };
	sbx_autofree char *hs = make(HS(""), "{" GOOD "}", BY_SECRET);
	sbx_autofree char *es = make("{\"alg\":\"ES256\"}", "{" GOOD "}", BY_EC);
	struct trial t = { .e = SBX_ERROR_INIT };

	(void)state;
	write_both_keys();
	t.st = token_settings(overrides);
	assert_int_equal(token_rules_new(t.st, &t.rules, NULL), 0);
	check(&t, hs);
	refused_with(&t, "HS256", not_accepted);
	check(&t, es);
	refused_with(&t, "ES256", not_accepted);
	end(&t);
}

/* ---- text ------------------------------------------------------------------------------------ */

/* No byte of a token can be changed. The last character of a part may have bits that say nothing.
 */
static void token__any_change_is_noticed(void **state)
{
	sbx_autofree char *token = token_hs256("{" GOOD "}", TOKEN_SECRET);
	size_t len = strlen(token);
	struct trial t;

	(void)state;
	begin(&t, NULL, NULL);
	for (size_t i = 0; i < len; i++) {
		char was = token[i];

		token[i] = was == 'A' ? 'B' : 'A';
		check(&t, token);
		if (t.rc != -SBX_E_UNAUTHORIZED)
			fail_msg("byte %zu of %zu", i, len);
		token[i] = was;
	}
	check(&t, token);
	assert_int_equal(t.rc, 0);
	end(&t);
}

static void token__every_beginning_is_refused(void **state)
{
	sbx_autofree char *token = token_hs256("{" GOOD "}", TOKEN_SECRET);
	struct trial t;

	(void)state;
	begin(&t, NULL, NULL);
	for (size_t i = strlen(token); i-- > 0;) {
		token[i] = '\0';
		check(&t, token);
		assert_int_equal(t.rc, -SBX_E_UNAUTHORIZED);
	}
	end(&t);
}

static void token__shapes(void **state)
{
	sbx_autofree char *good = token_hs256("{" GOOD "}", TOKEN_SECRET);
	static const struct {
		const char *before, *after, *message;
	} rows[] = {
		{ "", ".", "three parts" },	  { "", ".AAAA", "three parts" },
		{ ".", "", "three parts" },	  { "", "=", "signature" },
		{ "", " ", "signature" },	  { "", "\n", "signature" },
		{ "", "+", "signature" },	  { "", "/", "signature" },
		{ "", "A", "wrong signature" },	  { " ", "", "header" },
		{ "\xef\xbb\xbf", "", "header" },
	};
	static const char *const whole[] = {
		"", ".", "..", "...", "a.b.c", "a.b", "AAAA.AAAA.AAAA"
	};
	struct trial t;

	(void)state;
	begin(&t, NULL, NULL);
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		sbx_autofree char *token = NULL;

		assert_true(asprintf(&token, "%s%s%s", rows[i].before, good, rows[i].after) > 0);
		check(&t, token);
		refused_with(&t, token, rows[i].message);
	}
	for (size_t i = 0; i < SBX_COUNT(whole); i++) {
		check(&t, whole[i]);
		assert_int_equal(t.rc, -SBX_E_UNAUTHORIZED);
	}
	good[20] = '\0';
	t.rc = token_check(t.rules, good, strlen(good) + 1 + strlen(good + 21), NOW, &t.who, &t.e);
	refused_with(&t, "NUL", "three parts");
	end(&t);
	assert_true(token_like("a.b.c", 5));
	assert_true(token_like("..", 2));
	assert_false(token_like("a.b", 3));
	assert_false(token_like("a.b.c.d", 7));
	assert_false(token_like("", 0));
}

/* Signed well, and no claims. */
static void token__claims_that_are_no_document(void **state)
{
	static const struct {
		const char *claims;
		size_t len;
	} rows[] = {
		{ "", 0 },
		{ "x", 1 },
		{ "[]", 2 },
		{ "\"sub\"", 5 },
		{ "{" GOOD "}}", sizeof("{" GOOD "}}") - 1 },
		{ "{" GOOD ",}", sizeof("{" GOOD ",}") - 1 },
		{ "{" GOOD ",\"sub\":\"root\"}", sizeof("{" GOOD ",\"sub\":\"root\"}") - 1 },
		{ "{" GOOD ",\"exp\":1800000000}", sizeof("{" GOOD ",\"exp\":1800000000}") - 1 },
		{ "{" GOOD ",\"a\":\"\xff\"}", sizeof("{" GOOD ",\"a\":\"\xff\"}") - 1 },
		{ "{" GOOD ",\"a\":\"\\u0000\"}", sizeof("{" GOOD ",\"a\":\"\\u0000\"}") - 1 },
		{ "{" GOOD "}\0", sizeof("{" GOOD "}") },
	};
	static const char header[] = HS("");
	struct trial t;

	(void)state;
	begin(&t, NULL, NULL);
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		sbx_autofree char *text =
			token_unsigned(header, sizeof(header) - 1, rows[i].claims, rows[i].len);
		sbx_autofree char *signature = sign(text, BY_SECRET);
		sbx_autofree char *token = token_join(text, signature);

		check(&t, token);
		refused_with(&t, rows[i].claims, "the token's second part");
	}
	end(&t);
}

static void token__deep_documents(void **state)
{
	char deep[5000];
	struct trial t;

	(void)state;
	begin(&t, NULL, NULL);
	memset(deep, '[', sizeof(deep));
	memcpy(deep, "{\"a\":", 5);
	deep[sizeof(deep) - 1] = '\0';
	refused(&t, deep, "the token's second part");
	end(&t);
}

static void token__too_long(void **state)
{
	static const size_t sizes[] = { 6200, 65536 };
	struct trial t;

	(void)state;
	begin(&t, NULL, NULL);
	for (size_t i = 0; i < SBX_COUNT(sizes); i++) {
		sbx_autofree char *claims = NULL;

		assert_true(asprintf(&claims, "{" GOOD ",\"a\":\"%0*d\"}", (int)sizes[i], 0) > 0);
		refused(&t, claims, "longer than 8192");
	}
	end(&t);
}

/* ---- keys in the settings -------------------------------------------------------------------- */

static void misconfigured(const char *const *overrides, const char *message)
{
	struct orch_settings *st = token_settings(overrides);
	struct token_rules *r = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;
	int rc = token_rules_new(st, &r, &e);

	if (rc != -SBX_E_INVALID_CONFIG || !strstr(e.message, message))
		fail_msg("%s: wanted '%s', got %d '%s'", overrides[0], message, rc, e.message);
	assert_null(r);
	orch_settings_free(st);
}

/* A file with this text is no key. */
static void bad_file(char *text, const char *message)
{
	const char *const overrides[] = { keys.setting, ALL, NULL };

	write_keys(text);
	misconfigured(overrides, message);
	free(text);
}

static char *with_junk(const char *text)
{
	char *out = strdup(text);

	assert_non_null(out);
	memset(strchr(out, '\n') + 1, 'A', 40);
	return out;
}

static void config__secrets_and_maps(void **state)
{
	static const char *const rows[][4] = {
		{ "jwt_secret=0123456789abcdef0123456789abcde", NULL, NULL, "31 bytes" },
		{ "jwt_secret=a", NULL, NULL, "1 bytes" },
		{ "user_map=a=b/c", NULL, NULL, "user_map" },
		{ "user_map=a=x,b=..", NULL, NULL, "user_map" },
		{ "jwt_public_key=/nonexistent/key.pem", ALL, NULL, "/nonexistent/key.pem" },
		{ "jwt_public_key=/", ALL, NULL, "jwt_public_key: /" },
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++)
		misconfigured(rows[i], rows[i][3]);
}

static void config__key_files(void **state)
{
	const char *const unused[] = { keys.setting, "jwt_algorithms=HS256", NULL };
	EVP_PKEY *small = EVP_RSA_gen(1024), *curve = EVP_EC_gen("P-384");
	sbx_autofree char *rsa = token_pem(keys.rsa, false);
	char *cut = strdup(rsa);

	(void)state;
	assert_non_null(cut);
	cut[strlen(cut) / 2] = '\0';
	bad_file(strdup(""), "no PEM public key");
	bad_file(strdup("ssh-rsa AAAA"), "no PEM public key");
	bad_file(cut, "cannot be read");
	bad_file(with_junk(rsa), "cannot be read");
	bad_file(token_pem(keys.rsa, true), "private key");
	bad_file(token_pem(keys.ec, true), "private key");
	bad_file(token_pem(small, false), "fewer than 2048 bits");
	bad_file(token_pem(curve, false), "P-256");
	write_keys(rsa);
	misconfigured(unused, "neither RS256 nor ES256");
	EVP_PKEY_free(small);
	EVP_PKEY_free(curve);
}

/* The new key is added, tokens move over, the old one is taken out. */
static void config__two_keys_at_once(void **state)
{
	const char *const overrides[] = { ALL, keys.setting, NULL };
	sbx_autofree char *new_pem = token_pem(keys.other_rsa, false), *both = NULL;
	static const enum how hows[] = { BY_RSA, BY_OTHER_RSA };
	struct trial t = { .e = SBX_ERROR_INIT };

	(void)state;
	assert_true(asprintf(&both, "%s%s", keys.rsa_pem, new_pem) > 0);
	write_keys(both);
	t.st = token_settings(overrides);
	assert_int_equal(token_rules_new(t.st, &t.rules, NULL), 0);
	for (size_t i = 0; i < SBX_COUNT(hows); i++) {
		sbx_autofree char *token = make("{\"alg\":\"RS256\"}", "{" GOOD "}", hows[i]);

		check(&t, token);
		assert_int_equal(t.rc, 0);
	}
	end(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(token__each_algorithm_with_its_key),
		cmocka_unit_test(token__forgeries),
		cmocka_unit_test(token__algorithm_without_a_key),
		cmocka_unit_test(token__algorithm_that_is_not_in_the_settings),
		cmocka_unit_test(token__any_change_is_noticed),
		cmocka_unit_test(token__every_beginning_is_refused),
		cmocka_unit_test(token__shapes),
		cmocka_unit_test(token__claims_that_are_no_document),
		cmocka_unit_test(token__deep_documents),
		cmocka_unit_test(token__too_long),
		cmocka_unit_test(config__secrets_and_maps),
		cmocka_unit_test(config__key_files),
		cmocka_unit_test(config__two_keys_at_once),
	};

	return cmocka_run_group_tests(tests, make_keys, drop_keys);
}
