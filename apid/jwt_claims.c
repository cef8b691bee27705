/* SPDX-License-Identifier: Apache-2.0 */
/* What a token says, once its signature is known to be good: for whom, until when, who, and whether
 * an administrator. Every member may be missing or of any type. */
#include <stdio.h>
#include <string.h>

#include "apid/auth_i.h"

/* The last second of the year 9999: what is later is no time in seconds. */
#define TIME_MAX INT64_C(253402300799)
/* Above it JSON readers disagree about which integer it is, and it would be which user. */
#define ID_MAX ((INT64_C(1) << 53) - 1)

static int refuse(struct sbx_error *e, const char *problem)
{
	return sbx_fail(e, SBX_E_UNAUTHORIZED, "the token %s", problem);
}

/* NULL for null, too. */
static struct json_object *claim(struct json_object *claims, const char *name)
{
	struct json_object *v = NULL;

	(void)json_object_object_get_ex(claims, name, &v);
	return v;
}

static bool is_text(struct json_object *v, const char *wanted)
{
	return json_object_is_type(v, json_type_string) &&
	       strcmp(json_object_get_string(v), wanted) == 0;
}

/* A claim that is one string or an array of them. */
static bool has_text(struct json_object *v, const char *wanted)
{
	if (!json_object_is_type(v, json_type_array))
		return is_text(v, wanted);
	for (size_t i = 0; i < json_object_array_length(v); i++)
		if (is_text(json_object_array_get_idx(v, i), wanted))
			return true;
	return false;
}

/* ---- when and for whom ----------------------------------------------------------------------- */

static bool whole_number(struct json_object *v, int64_t most, int64_t *ret)
{
	if (!json_object_is_type(v, json_type_int))
		return false;
	*ret = json_object_get_int64(v);
	return *ret >= 0 && *ret <= most;
}

/* `iat` is not compared with the clock: `nbf` is what says "not yet", and an issuer whose clock is
 * a second ahead would lock everybody out for a second. */
static int check_times(const struct orch_settings *st, struct json_object *claims, int64_t now,
		       int64_t *ret_until, struct sbx_error *e)
{
	struct json_object *exp = claim(claims, "exp"), *nbf = claim(claims, "nbf");
	int64_t leeway = st->jwt_leeway_sec, at;

	if (!exp)
		return refuse(e, "has no exp; one without an end is not accepted");
	if (!whole_number(exp, TIME_MAX, &at))
		return refuse(e, "has an exp that is not a whole number of seconds since 1970");
	*ret_until = at + leeway;
	if (now >= *ret_until)
		return refuse(e, "has expired");
	if (!json_object_object_get_ex(claims, "nbf", NULL))
		return 0;
	if (!whole_number(nbf, TIME_MAX, &at))
		return refuse(e, "has an nbf that is not a whole number of seconds since 1970");
	return now + leeway < at ? refuse(e, "is not valid yet (nbf)") : 0;
}

static int check_scope(const struct orch_settings *st, struct json_object *claims,
		       struct sbx_error *e)
{
	if (st->jwt_issuer && !is_text(claim(claims, "iss"), st->jwt_issuer))
		return refuse(e, "is from another issuer (iss)");
	if (st->jwt_audience && !has_text(claim(claims, "aud"), st->jwt_audience))
		return refuse(e, "is for another audience (aud)");
	/* The reference signs refresh tokens and links in mails with the same key. */
	if (json_object_object_get_ex(claims, "type", NULL) &&
	    !is_text(claim(claims, "type"), "access"))
		return refuse(e, "is no access token (type)");
	return 0;
}

/* ---- who ------------------------------------------------------------------------------------- */

/* `sub`; where there is none, `user_id`. A number becomes its decimal digits. */
static int subject(struct json_object *claims, char room[24], const char **ret, struct sbx_error *e)
{
	struct json_object *v = claim(claims, "sub");
	int64_t id;

	if (!v)
		v = claim(claims, "user_id");
	if (!v)
		return refuse(e, "names no user (sub)");
	if (whole_number(v, ID_MAX, &id)) {
		(void)snprintf(room, 24, "%lld", (long long)id);
		*ret = room;
		return 0;
	}
	if (!json_object_is_type(v, json_type_string))
		return refuse(e, "has a sub that is neither text nor a whole number below 2^53");
	*ret = json_object_get_string(v);
	return 0;
}

/*
 * Whoever signs tokens may name every user of this host but root and those who are known by their
 * uid alone: an account of the same name elsewhere must not become root here by accident. The
 * operator can say that it is meant, in user_map or in admins.
 */
static int check_user(const struct orch_settings *st, const char *sub, struct token_owner *ret,
		      struct sbx_error *e)
{
	bool mapped = auth_name_mapped(st->user_map, sub, ret->user);
	const char *problem = mapped ? NULL : auth_name_problem(sub);
	int rc;

	if (problem)
		return sbx_fail(e, SBX_E_UNAUTHORIZED,
				"the token's sub cannot be a user name, and user_map has none for "
				"it: %s",
				problem);
	if (!mapped)
		(void)snprintf(ret->user, sizeof(ret->user), "%s", sub);
	rc = auth_name_uid(ret->user, &ret->uid, e);
	if (rc < 0)
		return rc;
	if (!mapped && !auth_name_listed(st->admins, ret->user) &&
	    (ret->uid == 0 || strncmp(ret->user, "uid:", 4) == 0))
		return refuse(e, "names a user that a token may not name by itself; user_map can "
				 "allow it");
	return 0;
}

/* The narrower of the reference's two rules, that of its admin routes: there is one flag here, and
 * `system.configure`, which opens other users' runs only, would open those routes as well. */
static bool says_admin(struct json_object *claims)
{
	return is_text(claim(claims, "role"), "admin") ||
	       has_text(claim(claims, "roles"), "admin") ||
	       has_text(claim(claims, "permissions"), "*");
}

int token_claims(const struct orch_settings *st, struct json_object *claims, int64_t now,
		 struct token_owner *ret, struct sbx_error *e)
{
	char room[24];
	const char *sub = NULL;
	int rc = check_times(st, claims, now, &ret->until, e);

	if (rc == 0)
		rc = check_scope(st, claims, e);
	if (rc == 0)
		rc = subject(claims, room, &sub, e);
	if (rc == 0)
		rc = check_user(st, sub, ret, e);
	if (rc == 0)
		ret->admin = says_admin(claims) || auth_name_listed(st->admins, ret->user);
	return rc;
}
