/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens of an allowlist: reading them, and which of them is within which. Pure. */
#include "runtimes/net/targets.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/auto.h"

enum {
	LABEL_MAX = 63,
	TEXT_MAX = 1024, /* a token with everything that may be around a name */
};

/* ---- names ----------------------------------------------------------------------------------- */

static bool label_is_good(const char *label, size_t len)
{
	if (len == 0 || len > LABEL_MAX || label[0] == '-' || label[len - 1] == '-')
		return false;
	for (size_t i = 0; i < len; i++)
		if (!isalnum((unsigned char)label[i]) && label[i] != '-' && label[i] != '_')
			return false;
	return true;
}

/* What inet_aton(3) and its like take for an address, such as 127.1 or 0x7f.1, ends in a number. */
static bool is_number(const char *label, size_t len)
{
	size_t i = 0;

	if (len > 1 && label[0] == '0' && label[1] == 'x')
		return true;
	while (i < len && isdigit((unsigned char)label[i]))
		i++;
	return i == len;
}

bool net_name_normal(const char *text, size_t len, char out[NET_NAME_MAX + 1])
{
	const char *label = out;

	while (len && text[len - 1] == '.')
		len--;
	if (len == 0 || len > NET_NAME_MAX)
		return false;
	for (size_t i = 0; i < len; i++)
		out[i] = (char)tolower((unsigned char)text[i]);
	out[len] = '\0';
	for (;;) {
		size_t n = strcspn(label, ".");

		if (!label_is_good(label, n))
			return false;
		if (!label[n])
			return strlen(out) == len && !is_number(label, n);
		label += n + 1;
	}
}

/* ---- reading --------------------------------------------------------------------------------- */

/* "443" */
static bool read_port(const char *text, uint16_t *ret)
{
	size_t len = strlen(text);
	long n;

	if (len == 0 || len > 5 || strspn(text, "0123456789") != len)
		return false;
	n = strtol(text, NULL, 10);
	*ret = (uint16_t)n;
	return n > 0 && n <= UINT16_MAX;
}

static const char *check_address(const struct net_addr *a)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };

	return a->v6 && memcmp(a->b, mapped, sizeof(mapped)) == 0
		       ? "is an IPv4 address in a form of IPv6; write it as IPv4"
		       : NULL;
}

static const char *read_address(const char *text, struct net_token *ret)
{
	ret->kind = NET_NETWORK;
	ret->prefix = ret->addr.v6 ? 128 : 32;
	return net_addr_parse(text, &ret->addr) ? check_address(&ret->addr) : "is no address";
}

/* The length of a network's prefix, whose address has been read. */
static const char *read_network(const char *length, struct net_token *ret)
{
	size_t len = strlen(length);
	int bits = ret->addr.v6 ? 128 : 32;

	ret->kind = NET_NETWORK;
	if (len == 0 || len > 3 || strspn(length, "0123456789") != len ||
	    strtol(length, NULL, 10) > bits)
		return "has no prefix length of its family behind the slash";
	ret->prefix = (int)strtol(length, NULL, 10);
	for (int i = ret->prefix; i < bits; i++)
		if (ret->addr.b[i / 8] & 0x80 >> i % 8)
			return "has bits beyond its prefix";
	return check_address(&ret->addr);
}

/* "[ADDRESS]" with or without a port; cuts the text. */
static const char *read_bracketed(char *text, struct net_token *ret)
{
	char *end = strchr(text, ']');

	if (!end || (end[1] && end[1] != ':'))
		return "has a bracket that does not end";
	if (end[1] && !read_port(end + 2, &ret->port))
		return "has no port from 1 to 65535 behind the colon";
	*end = '\0';
	if (!net_addr_parse(text + 1, &ret->addr) || !ret->addr.v6)
		return "has no IPv6 address in its brackets";
	ret->kind = NET_NETWORK;
	ret->prefix = 128;
	return check_address(&ret->addr);
}

/* A name or an IPv4 address, with or without a port; cuts the text. */
static const char *read_host(char *text, struct net_token *ret)
{
	char *colon = strchr(text, ':');

	if (colon && !read_port(colon + 1, &ret->port))
		return "has no port from 1 to 65535 behind the colon";
	if (colon)
		*colon = '\0';
	if (net_addr_parse(text, &ret->addr)) {
		ret->kind = NET_NETWORK;
		ret->prefix = 32;
		return NULL;
	}
	ret->kind = NET_HOST;
	if (text[0] == '*' && text[1] == '.')
		text++;
	if (text[0] == '.') {
		ret->kind = NET_BELOW;
		text++;
	}
	return net_name_normal(text, strlen(text), ret->name)
		       ? NULL
		       : "is neither an address nor a network nor a name";
}

/* Without http:// and what follows the host; *ret_url: it was a URL. */
static char *strip_url(char *text, bool *ret_url)
{
	static const char *const schemes[] = { "http://", "https://" };

	*ret_url = false;
	for (size_t i = 0; i < SBX_COUNT(schemes) && !*ret_url; i++) {
		size_t n = strlen(schemes[i]);

		if (strncasecmp(text, schemes[i], n) != 0)
			continue;
		text += n;
		text[strcspn(text, "/?#")] = '\0';
		*ret_url = true;
	}
	return text;
}

static const char *read_token(char *text, struct net_token *ret)
{
	bool url;
	char *slash;

	text = strip_url(text, &url);
	if (text[0] == '[')
		return read_bracketed(text, ret);
	slash = strchr(text, '/');
	if (slash) {
		*slash = '\0';
		if (net_addr_parse(text, &ret->addr))
			return read_network(slash + 1, ret);
	}
	if (net_addr_parse(text, &ret->addr))
		return read_address(text, ret);
	return read_host(text, ret);
}

const char *net_token_parse(const char *text, size_t len, struct net_token *ret)
{
	char copy[TEXT_MAX + 1];
	const char *problem;

	while (len && isspace((unsigned char)*text))
		text++, len--;
	while (len && isspace((unsigned char)text[len - 1]))
		len--;
	memset(ret, 0, sizeof(*ret));
	if (len == 0)
		return "is empty";
	if (len > TEXT_MAX)
		return "is longer than 1024 bytes";
	if (memchr(text, '\0', len))
		return "has a NUL byte";
	memcpy(copy, text, len);
	copy[len] = '\0';
	problem = read_token(copy, ret);
	if (ret->kind != NET_NETWORK)
		memset(&ret->addr, 0, sizeof(ret->addr)); /* of an attempt to read one */
	return problem;
}

/* ---- comparing ------------------------------------------------------------------------------- */

bool net_token_has_name(const struct net_token *t, const char *name)
{
	size_t len = strlen(name), n = strlen(t->name);

	if (t->kind == NET_NETWORK || len < n || strcmp(name + len - n, t->name) != 0)
		return false;
	return len == n || (t->kind == NET_BELOW && name[len - n - 1] == '.');
}

bool net_token_has_addr(const struct net_token *t, const struct net_addr *a)
{
	size_t whole = (size_t)t->prefix / 8;
	int rest = t->prefix % 8;

	if (t->kind != NET_NETWORK || t->addr.v6 != a->v6 || memcmp(t->addr.b, a->b, whole) != 0)
		return false;
	return rest == 0 || ((t->addr.b[whole] ^ a->b[whole]) >> (8 - rest)) == 0;
}

bool net_token_is_addr(const struct net_token *t)
{
	return t->kind == NET_NETWORK && t->prefix == (t->addr.v6 ? 128 : 32);
}

bool net_token_covers(const struct net_token *a, const struct net_token *b)
{
	if (a->port && a->port != b->port)
		return false;
	if (b->kind == NET_NETWORK)
		return a->prefix <= b->prefix && net_token_has_addr(a, &b->addr);
	return net_token_has_name(a, b->name) && (b->kind == NET_HOST || a->kind == NET_BELOW);
}

/* ---- lists ----------------------------------------------------------------------------------- */

void net_tokens_clear(struct net_tokens *t)
{
	free(t->all);
	memset(t, 0, sizeof(*t));
}

static int add_one(const char *text, size_t len, const char *where, enum sbx_code code,
		   struct net_tokens *ret, struct sbx_error *e)
{
	struct net_token token;
	const char *problem = net_token_parse(text, len, &token);

	if (problem)
		return sbx_fail(e, code,
				"%s: found \"%.*s\", which %s; allowed are addresses, networks, "
				"names, *.name, each but networks with a :port",
				where, (int)(len < 120 ? len : 120), text, problem);
	if (ret->n == NET_TOKENS_MAX)
		return sbx_fail(e, code, "%s: found more than %d targets", where, NET_TOKENS_MAX);
	if (!ret->all)
		ret->all = calloc(NET_TOKENS_MAX, sizeof(*ret->all));
	if (!ret->all)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for an allowlist");
	ret->all[ret->n++] = token;
	return 0;
}

int net_tokens_add(const char *const *texts, size_t n, const char *where, enum sbx_code code,
		   struct net_tokens *ret, struct sbx_error *e)
{
	int rc = 0;

	for (size_t i = 0; i < n && rc == 0; i++)
		rc = add_one(texts[i], strlen(texts[i]), where, code, ret, e);
	return rc;
}

int net_tokens_add_list(const char *commas, const char *where, enum sbx_code code,
			struct net_tokens *ret, struct sbx_error *e)
{
	int rc = 0;

	for (const char *p = commas; p && *p && rc == 0; p += strspn(p, ",")) {
		size_t n = strcspn(p, ",");

		if (n)
			rc = add_one(p, n, where, code, ret, e);
		p += n;
	}
	return rc;
}

size_t net_tokens_uncovered(const struct net_tokens *allowed, const struct net_tokens *wanted)
{
	for (size_t i = 0; i < wanted->n; i++) {
		size_t j = 0;

		while (j < allowed->n && !net_token_covers(&allowed->all[j], &wanted->all[i]))
			j++;
		if (j == allowed->n)
			return i;
	}
	return wanted->n;
}
