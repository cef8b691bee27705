/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who asks. A request may bring a key, a token, both, or on a Unix socket nothing: then the kernel
 * says who the peer is. What was brought must be good, all of it; the first good one says who.
 */
#include <openssl/crypto.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>

#include "apid/apid_i.h"
#include "apid/auth_i.h"
#include "base/clock.h"

enum {
	CACHE_SLOTS = 256, /* by the first byte of a digest */
	CACHE_SEC = 60,	   /* what changes in the user directory is seen after that */
};

/* Made from one state of the settings, and replaced as a whole. */
struct rules {
	const struct orch_settings *st; /* borrowed; stays valid across a reload */
	struct token_rules *tokens;
	bool has_key; /* single_user */
	unsigned char key[AUTH_DIGEST];
	struct orch_principal holder; /* of the key */
};

/* A token whose signature was good: checking one costs up to a millisecond. */
struct known_token {
	unsigned char digest[AUTH_DIGEST];
	int64_t since, until; /* Unix seconds; empty when they are equal */
	struct token_owner owner;
};

struct auth {
	struct apid *a;
	pthread_rwlock_t lock; /* rules; a check holds it, so the cache never outlives them */
	struct rules *rules;
	pthread_mutex_t cache_lock; /* below lock */
	struct known_token cache[CACHE_SLOTS];
};

/* ---- rules ----------------------------------------------------------------------------------- */

static struct rules *rules_free(struct rules *r)
{
	if (!r)
		return NULL;
	token_rules_free(r->tokens);
	OPENSSL_cleanse(r, sizeof(*r));
	free(r);
	return NULL;
}
SBX_DEFINE_AUTO(struct rules, rules_free)

/* Who has the API key. `admins` counts for this name as for any other. */
static int find_holder(struct apid *a, const struct orch_settings *st, struct orch_principal *ret,
		       struct sbx_error *e)
{
	const char *name = st->single_user_name;
	const char *problem = name ? auth_name_problem(name) : NULL;
	int rc = 0;

	if (problem)
		return sbx_fail(e, SBX_E_INVALID_CONFIG, "single_user_name: %s", problem);
	orch_principal_uid(a->orch, geteuid(), "api", ret);
	if (name) {
		(void)snprintf(ret->user, sizeof(ret->user), "%s", name);
		rc = auth_name_uid(ret->user, &ret->uid, e);
	}
	ret->admin = st->single_user_admin || auth_name_listed(st->admins, ret->user);
	return rc;
}

static int rules_new(struct apid *a, struct rules **ret, struct sbx_error *e)
{
	SBX_AUTO(rules_freep) struct rules *r = calloc(1, sizeof(*r));
	int rc;

	if (!r)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the rules of logins");
	r->st = orch_settings(a->orch);
	r->has_key = strcmp(r->st->auth_mode, "single_user") == 0;
	rc = token_rules_new(r->st, &r->tokens, e);
	if (rc == 0 && r->has_key)
		rc = auth_key_load(r->st, store_dir_fd(a->store), r->key, e);
	if (rc == 0 && r->has_key)
		rc = find_holder(a, r->st, &r->holder, e);
	if (rc == 0)
		*ret = sbx_steal(&r);
	return rc;
}

/* A reload must get its turn, however many requests there are. */
static void init_lock(pthread_rwlock_t *lock)
{
	pthread_rwlockattr_t writers_first;

	(void)pthread_rwlockattr_init(&writers_first);
	(void)pthread_rwlockattr_setkind_np(&writers_first,
					    PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(lock, &writers_first);
	(void)pthread_rwlockattr_destroy(&writers_first);
}

int auth_new(struct apid *a, struct auth **ret, struct sbx_error *e)
{
	struct auth *u = calloc(1, sizeof(*u));
	int rc;

	if (!u)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for logins");
	u->a = a;
	init_lock(&u->lock);
	pthread_mutex_init(&u->cache_lock, NULL);
	rc = rules_new(a, &u->rules, e);
	if (rc < 0)
		auth_free(u);
	else
		*ret = u;
	return rc;
}

struct auth *auth_free(struct auth *u)
{
	if (!u)
		return NULL;
	rules_free(u->rules);
	pthread_rwlock_destroy(&u->lock);
	pthread_mutex_destroy(&u->cache_lock);
	free(u);
	return NULL;
}

int auth_reload(struct auth *u, struct sbx_error *e)
{
	SBX_AUTO(rules_freep) struct rules *r = NULL;
	struct rules *old;
	int rc = rules_new(u->a, &r, e);

	if (rc < 0)
		return rc;
	pthread_rwlock_wrlock(&u->lock);
	old = u->rules;
	u->rules = sbx_steal(&r);
	memset(u->cache, 0, sizeof(u->cache)); /* nobody else is in here */
	pthread_rwlock_unlock(&u->lock);
	rules_free(old);
	return 0;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* A digest, not the token: a memory dump tells nothing, and equality leaks nothing that is of use.
 */
static bool recall(struct auth *u, const unsigned char digest[AUTH_DIGEST], int64_t now,
		   struct token_owner *ret)
{
	struct known_token *k = &u->cache[digest[0]];
	bool known;

	pthread_mutex_lock(&u->cache_lock);
	known = k->since <= now && now < k->until && memcmp(k->digest, digest, AUTH_DIGEST) == 0;
	if (known)
		*ret = k->owner;
	pthread_mutex_unlock(&u->cache_lock);
	return known;
}

static void remember(struct auth *u, const unsigned char digest[AUTH_DIGEST], int64_t now,
		     const struct token_owner *owner)
{
	struct known_token *k = &u->cache[digest[0]];

	pthread_mutex_lock(&u->cache_lock);
	memcpy(k->digest, digest, AUTH_DIGEST);
	k->owner = *owner;
	k->since = now;
	k->until = owner->until < now + CACHE_SEC ? owner->until : now + CACHE_SEC;
	pthread_mutex_unlock(&u->cache_lock);
}

static int check_token(struct auth *u, const char *text, size_t len, struct orch_principal *ret,
		       struct sbx_error *e)
{
	unsigned char digest[AUTH_DIGEST];
	struct token_owner owner;
	int64_t now = sbx_now_us() / SBX_SECOND_US;
	int rc = 0;

	auth_digest(text, len, digest);
	if (!recall(u, digest, now, &owner)) {
		rc = token_check(u->rules->tokens, text, len, now, &owner, e);
		if (rc == 0)
			remember(u, digest, now, &owner);
	}
	if (rc < 0)
		return rc;
	memcpy(ret->user, owner.user, sizeof(ret->user));
	ret->uid = owner.uid;
	ret->admin = owner.admin;
	ret->door = "api";
	return 0;
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* Digests are compared, so that neither the time nor the length of the right key shows. */
static int check_key(const struct rules *r, const char *text, size_t len,
		     struct orch_principal *ret, struct sbx_error *e)
{
	unsigned char digest[AUTH_DIGEST];

	if (!r->has_key)
		return sbx_fail(e, SBX_E_UNAUTHORIZED,
				"API keys are no login here (auth_mode=multi_user); send "
				"Authorization: Bearer TOKEN");
	auth_digest(text, len, digest);
	if (CRYPTO_memcmp(digest, r->key, AUTH_DIGEST) != 0)
		return sbx_fail(e, SBX_E_UNAUTHORIZED, "the API key is wrong");
	*ret = r->holder;
	return 0;
}

/* ---- what was brought ------------------------------------------------------------------------ */

struct brought {
	const char *text;
	size_t len;
	bool key; /* never a token, whatever it looks like */
};

/* "Bearer VALUE", in any case of letters. False: another scheme, which is nothing of ours. */
static bool bearer(const char *header, struct brought *ret)
{
	size_t len;

	if (strncasecmp(header, "Bearer", 6) != 0 || (header[6] && header[6] != ' '))
		return false;
	header += 6;
	header += strspn(header, " \t");
	len = strlen(header);
	while (len && (header[len - 1] == ' ' || header[len - 1] == '\t'))
		len--;
	*ret = (struct brought){ header, len, false };
	return true;
}

static int check_brought(struct auth *u, const struct brought *b, struct orch_principal *ret,
			 struct sbx_error *e)
{
	if (b->len == 0)
		return sbx_fail(e, SBX_E_UNAUTHORIZED, "the %s is empty",
				b->key ? "API key" : "bearer token");
	if (!b->key && token_like(b->text, b->len))
		return check_token(u, b->text, b->len, ret, e);
	return check_key(u->rules, b->text, b->len, ret, e);
}

/* ---- nothing was brought --------------------------------------------------------------------- */

static bool peer_uid(int fd, uid_t *ret)
{
	struct ucred peer;
	int domain = 0;
	socklen_t len = sizeof(domain);

	if (fd < 0 || getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) < 0 || domain != AF_UNIX)
		return false;
	len = sizeof(peer);
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0 || peer.uid == (uid_t)-1)
		return false;
	*ret = peer.uid;
	return true;
}

static int check_peer(struct auth *u, const struct credentials *c, struct orch_principal *ret,
		      struct sbx_error *e)
{
	uid_t uid;

	if (c->authorization)
		return sbx_fail(e, SBX_E_UNAUTHORIZED,
				"Authorization must be: Bearer TOKEN; no other scheme is known");
	if (!peer_uid(c->fd, &uid))
		return sbx_fail(e, SBX_E_UNAUTHORIZED,
				"no login: send %sAuthorization: Bearer TOKEN",
				u->rules->has_key ? "X-API-KEY: KEY or " : "");
	orch_principal_uid(u->a->orch, uid, "api", ret);
	return 0;
}

int auth_check(struct auth *u, const struct credentials *c, struct orch_principal *ret,
	       struct sbx_error *e)
{
	struct orch_principal who;
	struct brought b[3];
	size_t n = 0;
	int rc = 0;

	if (c->token)
		b[n++] = (struct brought){ c->token, strlen(c->token), false };
	if (c->authorization && bearer(c->authorization, &b[n]))
		n++;
	if (c->api_key)
		b[n++] = (struct brought){ c->api_key, strlen(c->api_key), true };
	pthread_rwlock_rdlock(&u->lock);
	/* From the last to the first, which so is the one that stays. */
	for (size_t i = n; i-- > 0 && rc == 0;)
		rc = check_brought(u, &b[i], &who, e);
	if (n == 0)
		rc = check_peer(u, c, &who, e);
	pthread_rwlock_unlock(&u->lock);
	if (rc == 0)
		*ret = who;
	return rc;
}
