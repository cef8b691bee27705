/* SPDX-License-Identifier: Apache-2.0 */
/* Bearer tokens: what their claims say, when they are good, and whom they make of their holder. */
#include "token_trial.h"

/* ---- when, for whom -------------------------------------------------------------------------- */

#define SUB "\"sub\":\"sbx-nobody-of-that-name\""

static void token__times(void **state)
{
	static const struct {
		const char *claims, *message; /* NULL: accepted */
	} rows[] = {
		{ "{" SUB "}", "no exp" },
		{ "{" SUB ",\"exp\":null}", "no exp" },
		{ "{" SUB ",\"exp\":1700000001}", NULL },
		{ "{" SUB ",\"exp\":1700000000}", "expired" },
		{ "{" SUB ",\"exp\":1699999999}", "expired" },
		{ "{" SUB ",\"exp\":0}", "expired" },
		{ "{" SUB ",\"exp\":-1}", "whole number" },
		{ "{" SUB ",\"exp\":-1700000100}", "whole number" },
		{ "{" SUB ",\"exp\":\"1700000100\"}", "whole number" },
		{ "{" SUB ",\"exp\":1700000100.5}", "whole number" },
		{ "{" SUB ",\"exp\":1.7e10}", "whole number" },
		{ "{" SUB ",\"exp\":true}", "whole number" },
		{ "{" SUB ",\"exp\":[1700000100]}", "whole number" },
		{ "{" SUB ",\"exp\":{}}", "whole number" },
		{ "{" SUB ",\"exp\":1700000100000}", "whole number" },
		{ "{" SUB ",\"exp\":9223372036854775807}", "whole number" },
		{ "{" SUB ",\"exp\":18446744073709551615}", "the token" },
		{ "{" SUB ",\"exp\":99999999999999999999999}", "the token" },
		{ "{" SUB ",\"exp\":253402300799}", NULL },
		{ "{" GOOD ",\"nbf\":1700000000}", NULL },
		{ "{" GOOD ",\"nbf\":1700000001}", "not valid yet" },
		{ "{" GOOD ",\"nbf\":\"1\"}", "nbf that is not a whole" },
		{ "{" GOOD ",\"nbf\":1.5}", "nbf that is not a whole" },
		{ "{" GOOD ",\"nbf\":-5}", "nbf that is not a whole" },
		{ "{" GOOD ",\"nbf\":null}", "nbf that is not a whole" },
		{ "{" GOOD ",\"iat\":1700009999}", NULL },
	};
	struct trial t;

	(void)state;
	begin(&t, NULL, NULL);
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		if (rows[i].message)
			refused(&t, rows[i].claims, rows[i].message);
		else
			accepted(&t, rows[i].claims);
	}
	end(&t);
}

static void token__leeway_forgives_clocks(void **state)
{
	struct trial t;

	(void)state;
	begin(&t, "jwt_leeway_sec=30", NULL);
	accepted(&t, "{" SUB ",\"exp\":1699999971}");
	assert_int_equal(t.who.until, NOW + 1);
	refused(&t, "{" SUB ",\"exp\":1699999970}", "expired");
	accepted(&t, "{" GOOD ",\"nbf\":1700000030}");
	refused(&t, "{" GOOD ",\"nbf\":1700000031}", "not valid yet");
	end(&t);
}

static void token__issuer_and_audience(void **state)
{
	static const char *const wrong_issuer[] = {
		"{" GOOD ",\"aud\":\"sandbox\"}",
		"{" GOOD ",\"aud\":\"sandbox\",\"iss\":\"https://b\"}",
		"{" GOOD ",\"aud\":\"sandbox\",\"iss\":\"https://a/\"}",
		"{" GOOD ",\"aud\":\"sandbox\",\"iss\":[\"https://a\"]}",
		"{" GOOD ",\"aud\":\"sandbox\",\"iss\":null}",
	};
	static const char *const wrong_audience[] = {
		"{" GOOD ",\"iss\":\"https://a\"}",
		"{" GOOD ",\"iss\":\"https://a\",\"aud\":\"Sandbox\"}",
		"{" GOOD ",\"iss\":\"https://a\",\"aud\":\"sandbox other\"}",
		"{" GOOD ",\"iss\":\"https://a\",\"aud\":[]}",
		"{" GOOD ",\"iss\":\"https://a\",\"aud\":[\"x\",7,null]}",
		"{" GOOD ",\"iss\":\"https://a\",\"aud\":[[\"sandbox\"]]}",
		"{" GOOD ",\"iss\":\"https://a\",\"aud\":{\"sandbox\":\"sandbox\"}}",
	};
	struct trial t;

	(void)state;
	begin(&t, "jwt_issuer=https://a", "jwt_audience=sandbox");
	accepted(&t, "{" GOOD ",\"iss\":\"https://a\",\"aud\":\"sandbox\"}");
	accepted(&t, "{" GOOD ",\"iss\":\"https://a\",\"aud\":[\"x\",\"sandbox\"]}");
	for (size_t i = 0; i < SBX_COUNT(wrong_issuer); i++)
		refused(&t, wrong_issuer[i], "issuer");
	for (size_t i = 0; i < SBX_COUNT(wrong_audience); i++)
		refused(&t, wrong_audience[i], "audience");
	end(&t);
	begin(&t, NULL, NULL);
	accepted(&t, "{" GOOD ",\"iss\":\"any\",\"aud\":\"any\"}");
	accepted(&t, "{" GOOD ",\"type\":\"access\"}");
	refused(&t, "{" GOOD ",\"type\":\"refresh\"}", "no access token");
	refused(&t, "{" GOOD ",\"type\":null}", "no access token");
	end(&t);
}

/* ---- who ------------------------------------------------------------------------------------- */

#define EXP "\"exp\":1700000100"

static void named(struct trial *t, const char *claims, const char *user, int64_t uid)
{
	accepted(t, claims);
	assert_string_equal(t->who.user, user);
	assert_int_equal(t->who.uid, uid);
}

static void token__subjects(void **state)
{
	static const char *const bad[] = {
		"{" EXP "}",
		"{" EXP ",\"sub\":null}",
		"{" EXP ",\"sub\":\"\"}",
		"{" EXP ",\"sub\":true}",
		"{" EXP ",\"sub\":1.5}",
		"{" EXP ",\"sub\":-7}",
		"{" EXP ",\"sub\":9007199254740992}",
		"{" EXP ",\"sub\":[\"alice\"]}",
		"{" EXP ",\"sub\":{\"name\":\"alice\"}}",
		"{" EXP ",\"sub\":\"a b\"}",
		"{" EXP ",\"sub\":\"a/b\"}",
		"{" EXP ",\"sub\":\"../root\"}",
		"{" EXP ",\"sub\":\".\"}",
		"{" EXP ",\"sub\":\"..\"}",
		"{" EXP ",\"sub\":\"a\\nb\"}",
		"{" EXP ",\"sub\":\"a\\u007f\"}",
		"{" EXP ",\"sub\":\" root\"}",
		"{" EXP ",\"sub\":\"r\\u043e\\u043et\"}",
	};
	struct trial t;

	(void)state;
	begin(&t, NULL, NULL);
	named(&t, "{" EXP ",\"sub\":\"auth0|1234\"}", "auth0|1234", -1);
	named(&t, "{" EXP ",\"sub\":\"sbx-a@example.org\"}", "sbx-a@example.org", -1);
	named(&t, "{" EXP ",\"sub\":1007}", "1007", -1);
	named(&t, "{" EXP ",\"sub\":0}", "0", -1);
	named(&t, "{" EXP ",\"user_id\":12}", "12", -1);
	named(&t, "{" EXP ",\"user_id\":12,\"sub\":\"13\"}", "13", -1);
	named(&t, "{" EXP ",\"sub\":9007199254740991}", "9007199254740991", -1);
	for (size_t i = 0; i < SBX_COUNT(bad); i++)
		refused(&t, bad[i], "sub");
	end(&t);
}

static void token__longest_name(void **state)
{
	char claims[256], name[AUTH_USER];
	struct trial t;

	(void)state;
	begin(&t, NULL, NULL);
	(void)snprintf(name, sizeof(name), "%0*d", AUTH_USER - 1, 0);
	(void)snprintf(claims, sizeof(claims), "{" EXP ",\"sub\":\"%s\"}", name);
	named(&t, claims, name, -1);
	(void)snprintf(claims, sizeof(claims), "{" EXP ",\"sub\":\"%s0\"}", name);
	refused(&t, claims, "longer than 63 bytes");
	end(&t);
}

static void token__nobody_becomes_root_by_accident(void **state)
{
	static const char *const bad[] = {
		"{" EXP ",\"sub\":\"root\"}",	  "{" EXP ",\"sub\":\"root\",\"role\":\"admin\"}",
		"{" EXP ",\"user_id\":\"root\"}", "{" EXP ",\"sub\":\"uid:0\"}",
		"{" EXP ",\"sub\":\"uid:00\"}",	  "{" EXP ",\"sub\":\"uid:1005\"}",
		"{" EXP ",\"sub\":\"uid:\"}",
	};
	struct trial t;

	(void)state;
	begin(&t, NULL, NULL);
	for (size_t i = 0; i < SBX_COUNT(bad); i++)
		refused(&t, bad[i], "may not name by itself");
	end(&t);
	begin(&t, "admins=root", NULL);
	named(&t, "{" EXP ",\"sub\":\"root\"}", "root", 0);
	assert_true(t.who.admin);
	end(&t);
	begin(&t, "user_map=boss=root,7=uid:1005", NULL);
	refused(&t, bad[0], "may not name by itself");
	named(&t, "{" EXP ",\"sub\":\"boss\"}", "root", 0);
	assert_false(t.who.admin);
	named(&t, "{" EXP ",\"sub\":7}", "uid:1005", 1005);
	end(&t);
}

static void token__map_of_users(void **state)
{
	struct trial t;

	(void)state;
	begin(&t, "user_map=https://id.example/7=sbx-alice,8=sbx-bob,x=daemon", "admins=sbx-bob");
	named(&t, "{" EXP ",\"sub\":\"https://id.example/7\"}", "sbx-alice", -1);
	assert_false(t.who.admin);
	named(&t, "{" EXP ",\"sub\":8}", "sbx-bob", -1);
	assert_true(t.who.admin);
	named(&t, "{" EXP ",\"sub\":\"8\"}", "sbx-bob", -1);
	named(&t, "{" EXP ",\"sub\":\"x\"}", "daemon", daemon_uid());
	named(&t, "{" EXP ",\"sub\":\"daemon\"}", "daemon", daemon_uid());
	named(&t, "{" EXP ",\"sub\":\"8=sbx-bob\"}", "8=sbx-bob", -1);
	named(&t, "{" EXP ",\"sub\":\"8=sbx-bob,x\"}", "8=sbx-bob,x", -1);
	assert_false(t.who.admin);
	refused(&t, "{" EXP ",\"sub\":\"https://id.example/9\"}", "user_map has none");
	end(&t);
}

static void token__administrators(void **state)
{
	static const struct {
		const char *claims;
		bool admin;
	} rows[] = {
		{ "{" GOOD "}", false },
		{ "{" GOOD ",\"role\":\"admin\"}", true },
		{ "{" GOOD ",\"roles\":[\"user\",\"admin\"]}", true },
		{ "{" GOOD ",\"roles\":\"admin\"}", true },
		{ "{" GOOD ",\"permissions\":[\"*\"]}", true },
		{ "{" GOOD ",\"role\":\"Admin\"}", false },
		{ "{" GOOD ",\"role\":\" admin\"}", false },
		{ "{" GOOD ",\"role\":\"administrator\"}", false },
		{ "{" GOOD ",\"role\":[\"admin\"]}", false },
		{ "{" GOOD ",\"roles\":[[\"admin\"]]}", false },
		{ "{" GOOD ",\"roles\":{\"admin\":true}}", false },
		{ "{" GOOD ",\"roles\":[\"user admin\"]}", false },
		{ "{" GOOD ",\"permissions\":[\"system.configure\"]}", false },
		{ "{" GOOD ",\"permissions\":[\"sandbox.*\"]}", false },
		{ "{" GOOD ",\"is_admin\":true}", false },
		{ "{" GOOD ",\"admin\":true,\"scope\":\"admin\"}", false },
	};
	struct trial t;

	(void)state;
	begin(&t, "admins=sbx-nobody", NULL); /* the beginning of the name */
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		accepted(&t, rows[i].claims);
		if (t.who.admin != rows[i].admin)
			fail_msg("%s", rows[i].claims);
	}
	end(&t);
	begin(&t, "admins=a,sbx-nobody-of-that-name", NULL);
	accepted(&t, "{" GOOD "}");
	assert_true(t.who.admin);
	end(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(token__times),
		cmocka_unit_test(token__leeway_forgives_clocks),
		cmocka_unit_test(token__issuer_and_audience),
		cmocka_unit_test(token__subjects),
		cmocka_unit_test(token__longest_name),
		cmocka_unit_test(token__nobody_becomes_root_by_accident),
		cmocka_unit_test(token__map_of_users),
		cmocka_unit_test(token__administrators),
	};

	return cmocka_run_group_tests(tests, make_keys, drop_keys);
}
