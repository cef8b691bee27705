/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GET /runs/{run_id}/stream: the handshake, and the addresses under which it is asked for.
 *
 * What is no WebSocket request gets an HTTP answer. A WebSocket request that must be refused is
 * upgraded and then closed with a code, since that is all that a browser shows to its script.
 */
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "apid/ws_i.h"
#include "base/clock.h"

#define WS_GUID "258EAFA5-E914-47DA-95CA-C5AB0DC85B11" /* RFC 6455, 1.3 */

enum { KEY_TEXT = 24, KEY_BYTES = 16, ACCEPT_TEXT = 64, SIGNATURE_TEXT = 65 };

/* ---- signed addresses ------------------------------------------------------------------------ */

/* HMAC-SHA256 of "<run id>:<exp>" in lower-case hex. */
static bool sign(const char *secret, const char *run_id, int64_t exp, char ret[SIGNATURE_TEXT])
{
	unsigned char mac[EVP_MAX_MD_SIZE];
	unsigned n = 0;
	char text[128];
	int len = snprintf(text, sizeof(text), "%s:%lld", run_id, (long long)exp);

	if (len < 0 || (size_t)len >= sizeof(text) ||
	    !HMAC(EVP_sha256(), secret, (int)strlen(secret), (const unsigned char *)text,
		  (size_t)len, mac, &n))
		return false;
	for (unsigned i = 0; i < n && i < 32; i++)
		(void)snprintf(ret + (size_t)2 * i, 3, "%02x", mac[i]);
	return n == 32;
}

char *stream_url(struct apid *a, const char *run_id, int64_t from_seq)
{
	const struct orch_settings *set = orch_settings(a->orch);
	const char *secret = set->ws_signing_secret;
	sbx_autobuf out = SBX_BUF_INIT(1024);
	char token[SIGNATURE_TEXT];
	int64_t exp = sbx_now_us() / SBX_SECOND_US + set->ws_signed_url_ttl_sec;
	char join = '?';

	sbx_buf_printf(&out, API_BASE "/runs/%s/stream", run_id);
	/* Without a secret it stays unsigned, and every connection is refused. */
	if (set->ws_signed_urls && secret && *secret && sign(secret, run_id, exp, token)) {
		sbx_buf_printf(&out, "?token=%s&exp=%lld", token, (long long)exp);
		join = '&';
	}
	if (from_seq > 0)
		sbx_buf_printf(&out, "%cfrom_seq=%lld", join, (long long)from_seq);
	return sbx_buf_steal(&out);
}

static bool parse_int(const char *text, int64_t *ret)
{
	char *end;

	if (!text || !*text)
		return false;
	errno = 0;
	*ret = strtoll(text, &end, 10);
	return !*end && errno == 0;
}

static bool signature_good(const struct req *q, const struct orch_settings *set, const char *run_id)
{
	const char *secret = set->ws_signing_secret, *token = req_query(q, "token");
	char right[SIGNATURE_TEXT];
	int64_t exp;

	return secret && *secret && token && parse_int(req_query(q, "exp"), &exp) &&
	       exp > sbx_now_us() / SBX_SECOND_US && sign(secret, run_id, exp, right) &&
	       strlen(token) == strlen(right) && CRYPTO_memcmp(token, right, strlen(right)) == 0;
}

/* ---- is it welcome? -------------------------------------------------------------------------- */

static bool login(struct req *q, const struct orch_settings *set)
{
	const char *token = req_query(q, "auth_token");
	struct credentials c = { .api_key = req_header(q, "X-API-KEY"), .fd = req_socket(q) };

	/* With signed addresses, `token` is the signature. */
	if (!token && !set->ws_signed_urls)
		token = req_query(q, "token");
	c.token = token;
	if (!token)
		c.authorization = req_header(q, MHD_HTTP_HEADER_AUTHORIZATION);
	return auth_check(q->a->auth, &c, &q->who, NULL) == 0;
}

static void refuse(struct ws_offer *o, int code, const char *text)
{
	o->code = code;
	o->text = text;
}

/* In the order of the contract: login, owner, signature. The quotas come when it is taken in. */
static void judge(struct req *q, struct ws_offer *o)
{
	const struct orch_settings *set = orch_settings(q->a->orch);
	store_autorun run = { 0 };
	int64_t from = 0;
	int rc;

	if (!login(q, set)) {
		refuse(o, WS_UNAUTHORIZED, "unauthorized");
		return;
	}
	o->who = q->who;
	o->who.admin = false; /* an admin does not look over anybody's shoulder */
	rc = orch_run_get(q->a->orch, &o->who, q->param[0], &run, NULL);
	if (rc < 0 && rc != -SBX_E_RUN_NOT_FOUND) {
		refuse(o, WS_INTERNAL, "the store cannot be read");
		return;
	}
	if (rc < 0) {
		refuse(o, WS_NOT_FOUND, "run_not_found");
		return;
	}
	if (set->ws_signed_urls && !signature_good(q, set, run.id)) {
		refuse(o, WS_POLICY, "bad or expired signature");
		return;
	}
	(void)snprintf(o->run, sizeof(o->run), "%s", run.id);
	o->row = run.row;
	o->user = store_user_hash(run.user);
	o->persona = run.persona_id ? store_user_hash(run.persona_id) : 0;
	o->session = run.session_id ? store_user_hash(run.session_id) : 0;
	o->from_seq = parse_int(req_query(q, "from_seq"), &from) && from > 0 ? (uint64_t)from : 1;
}

/* ---- the handshake --------------------------------------------------------------------------- */

/* Is the word in this list of tokens? Other parameters of a token do not matter here. */
static bool lists(const char *list, const char *word)
{
	size_t n = strlen(word);

	while (list && *list) {
		list += strspn(list, " \t,");
		if (strncasecmp(list, word, n) == 0 && (!list[n] || strchr(" \t,;", list[n])))
			return true;
		list += strcspn(list, ",");
	}
	return false;
}

struct wanted {
	const char *name, *word;
	bool found;
};

static enum MHD_Result look_at(void *wanted, enum MHD_ValueKind kind, const char *name,
			       const char *value)
{
	struct wanted *w = wanted;

	(void)kind;
	w->found |= strcasecmp(name, w->name) == 0 && lists(value, w->word);
	return w->found ? MHD_NO : MHD_YES;
}

/* A list may be spread over several headers of its name (RFC 9110, 5.3). */
static bool header_lists(const struct req *q, const char *name, const char *word)
{
	struct wanted w = { name, word, false };

	(void)MHD_get_connection_values(q->conn, MHD_HEADER_KIND, look_at, &w);
	return w.found;
}

/* The answer to the client's key; false when that is none. */
static bool accept_of(const char *key, char ret[ACCEPT_TEXT])
{
	sbx_autofree uint8_t *raw = NULL;
	sbx_autobuf b = SBX_BUF_INIT(ACCEPT_TEXT - 1);
	unsigned char digest[EVP_MAX_MD_SIZE];
	char text[KEY_TEXT + sizeof(WS_GUID)];
	unsigned n = 0;
	size_t len = 0;

	if (!key || strlen(key) != KEY_TEXT || sbx_base64_decode(key, KEY_TEXT, &raw, &len) < 0 ||
	    len != KEY_BYTES)
		return false;
	(void)snprintf(text, sizeof(text), "%s" WS_GUID, key);
	if (!EVP_Digest(text, strlen(text), digest, &n, EVP_sha1(), NULL))
		return false;
	sbx_buf_base64(&b, digest, n);
	if (sbx_buf_failed(&b))
		return false;
	memcpy(ret, b.data, b.len + 1);
	return true;
}

static void upgraded(void *offer, struct MHD_Connection *conn, void *req, const char *extra,
		     size_t extra_len, MHD_socket fd, struct MHD_UpgradeResponseHandle *urh)
{
	struct req *q = req;

	(void)conn;
	ws_adopt(q->a->ws, offer, fd, extra, extra_len, urh);
}

/* Copied at once: in libmicrohttpd 1.0 all answers about a connection are in one place, and the
 * next question overwrites it. */
static void *tls_session(const struct req *q)
{
	const union MHD_ConnectionInfo *i =
		MHD_get_connection_info(q->conn, MHD_CONNECTION_INFO_GNUTLS_SESSION);

	return i ? i->tls_session : NULL;
}

enum MHD_Result stream_get(struct req *q)
{
	static const char *const version[] = { "Sec-WebSocket-Version", "13", NULL };
	const char *given = req_header(q, "Sec-WebSocket-Version");
	char accept[ACCEPT_TEXT];
	const char *headers[] = { MHD_HTTP_HEADER_UPGRADE, "websocket", "Sec-WebSocket-Accept",
				  accept, NULL };
	struct ws_offer *o;

	if (q->head || !header_lists(q, MHD_HTTP_HEADER_UPGRADE, "websocket"))
		return reply_no_route(q, "");
	if (!given || strcmp(given, "13") != 0)
		return reply_refusal(q, MHD_HTTP_UPGRADE_REQUIRED, "websocket_version",
				     "Sec-WebSocket-Version: allowed 13", NULL, version);
	if (!header_lists(q, MHD_HTTP_HEADER_CONNECTION, "upgrade"))
		return reply_refusal(q, MHD_HTTP_BAD_REQUEST, "websocket_handshake",
				     "Connection: it must name Upgrade", NULL, NULL);
	if (!accept_of(req_header(q, "Sec-WebSocket-Key"), accept))
		return reply_refusal(q, MHD_HTTP_BAD_REQUEST, "websocket_handshake",
				     "Sec-WebSocket-Key: 16 bytes in base64 are needed", NULL,
				     NULL);
	o = calloc(1, sizeof(*o));
	if (!o)
		return MHD_NO;
	q->state = o; /* lives until the request ends, which is after the upgrade */
	q->free_state = free;
	o->wire = req_socket(q);
	o->tls = tls_session(q);
	judge(q, o);
	return reply_response(q, MHD_HTTP_SWITCHING_PROTOCOLS,
			      MHD_create_response_for_upgrade(upgraded, o), headers);
}
