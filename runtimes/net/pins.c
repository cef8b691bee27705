/* SPDX-License-Identifier: Apache-2.0 */
/* The table of names and what they resolved to. */
#include "runtimes/net/pins.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/auto.h"
#include "base/clock.h"

/* What a wildcard is taken for before anybody has asked for a name below it. */
static const char *const usual[] = { "", "www.", "api." };

/* ---- names ----------------------------------------------------------------------------------- */

struct net_pin *net_pins_find(const struct net_pins *p, const char *name)
{
	for (size_t i = 0; i < p->n; i++)
		if (strcmp(p->pin[i].name, name) == 0)
			return &p->pin[i];
	return NULL;
}

bool net_pins_has_name(const struct net_pins *p, const char *name)
{
	for (size_t i = 0; i < p->tokens.n; i++)
		if (net_token_has_name(&p->tokens.all[i], name))
			return true;
	return false;
}

/* In the table once; a name that two tokens mean is needed when one of them needs it. */
static void add_name(struct net_pins *p, const char *prefix, const char *name, bool needed)
{
	char whole[NET_NAME_MAX + 8];
	struct net_pin *pin;

	(void)snprintf(whole, sizeof(whole), "%s%s", prefix, name);
	if (strlen(whole) > NET_NAME_MAX)
		return;
	pin = net_pins_find(p, whole);
	if (!pin && p->n == NET_PINS_MAX)
		return;
	if (!pin) {
		pin = &p->pin[p->n++];
		memcpy(pin->name, whole, strlen(whole) + 1);
	}
	pin->needed = pin->needed || needed;
}

int net_pins_new(struct net_tokens *tokens, struct net_tokens *operator, struct net_pins ** ret,
		 struct sbx_error *e)
{
	SBX_AUTO(net_pins_freep) struct net_pins *p = calloc(1, sizeof(*p));

	if (p)
		p->pin = calloc(NET_PINS_MAX, sizeof(*p->pin));
	if (!p || !p->pin)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for an allowlist");
	p->tokens = *tokens;
	p->operator= * operator;
	memset(tokens, 0, sizeof(*tokens));
	memset(operator, 0, sizeof(*operator));
	/* The needed ones first: there are at most as many as tokens, so that they have room. */
	for (size_t i = 0; i < p->tokens.n; i++)
		if (p->tokens.all[i].kind == NET_HOST)
			add_name(p, "", p->tokens.all[i].name, true);
	for (size_t i = 0; i < p->tokens.n; i++)
		for (size_t u = 0; p->tokens.all[i].kind == NET_BELOW && u < SBX_COUNT(usual); u++)
			add_name(p, usual[u], p->tokens.all[i].name, false);
	*ret = sbx_steal(&p);
	return 0;
}

struct net_pins *net_pins_free(struct net_pins *p)
{
	if (p) {
		net_tokens_clear(&p->tokens);
		net_tokens_clear(&p->operator);
		free(p->pin);
	}
	free(p);
	return NULL;
}

struct net_pin *net_pins_add(struct net_pins *p, const char *name, int64_t now_us)
{
	struct net_pin *pin = NULL;

	for (size_t i = 0; i < p->n && !pin; i++)
		if (!p->pin[i].name[0])
			pin = &p->pin[i];
	if (!pin && p->n < NET_PINS_MAX)
		pin = &p->pin[p->n++];
	for (size_t i = 0; i < p->n && p->n == NET_PINS_MAX && (!pin || pin->name[0]); i++)
		if (p->pin[i].on_demand && !p->pin[i].busy &&
		    (!pin || p->pin[i].used_us < pin->used_us))
			pin = &p->pin[i];
	if (!pin)
		return NULL;
	net_pins_drop(p, pin);
	(void)snprintf(pin->name, sizeof(pin->name), "%s", name);
	pin->on_demand = true;
	pin->due_us = pin->used_us = now_us;
	return pin;
}

void net_pins_drop(struct net_pins *p, struct net_pin *pin)
{
	p->change += pin->answer.n > 0;
	memset(pin, 0, sizeof(*pin));
}

/* ---- addresses ------------------------------------------------------------------------------- */

static size_t room(const struct net_pins *p, const struct net_pin *but)
{
	size_t used = 0;

	for (size_t i = 0; i < p->n; i++)
		if (&p->pin[i] != but)
			used += p->pin[i].answer.n;
	return used < NET_ADDRS_MAX ? NET_ADDRS_MAX - used : 0;
}

static bool has(const struct net_answer *answer, const struct net_addr *a)
{
	for (size_t i = 0; i < answer->n; i++)
		if (net_addr_compare(&answer->addr[i], a) == 0)
			return true;
	return false;
}

/* In another order they are the same. */
static bool same(const struct net_answer *a, const struct net_answer *b)
{
	if (a->n != b->n)
		return false;
	for (size_t i = 0; i < a->n; i++)
		if (!has(b, &a->addr[i]))
			return false;
	return true;
}

void net_pins_set(struct net_pins *p, struct net_pin *pin, const struct net_answer *answer,
		  int64_t now_us)
{
	int64_t ttl = answer->ttl;
	struct net_answer new = { .n = 0 };
	size_t most = room(p, pin);

	for (size_t i = 0; i < answer->n && new.n < most; i++)
		if (!has(&new, &answer->addr[i]))
			new.addr[new.n++] = answer->addr[i];
	ttl = ttl < NET_TTL_LEAST ? NET_TTL_LEAST : ttl > NET_TTL_MOST ? NET_TTL_MOST : ttl;
	new.ttl = (uint32_t)ttl;
	if (!same(&new, &pin->answer))
		pin->change = ++p->change;
	pin->answer = new;
	pin->busy = pin->no_reply = false;
	pin->due_us = now_us + ttl * SBX_SECOND_US;
	pin->until_us = pin->due_us + NET_STALE_MOST * SBX_SECOND_US;
}

void net_pins_failed(struct net_pins *p, struct net_pin *pin, bool gone, int64_t now_us)
{
	pin->busy = false;
	pin->no_reply = !gone;
	pin->due_us = now_us + (gone ? NET_AGAIN_GONE : NET_AGAIN_SILENT) * SBX_SECOND_US;
	if (pin->answer.n && (gone || now_us >= pin->until_us)) {
		pin->answer.n = 0;
		pin->change = ++p->change;
	}
}

struct net_pin *net_pins_due(const struct net_pins *p)
{
	struct net_pin *first = NULL;

	for (size_t i = 0; i < p->n; i++)
		if (p->pin[i].name[0] && !p->pin[i].busy &&
		    (!first || p->pin[i].due_us < first->due_us))
			first = &p->pin[i];
	return first;
}

/* ---- what is allowed ------------------------------------------------------------------------- */

bool net_pins_allow(const struct net_pins *p, const struct net_addr *a, uint16_t port)
{
	for (size_t i = 0; i < p->tokens.n; i++) {
		const struct net_token *t = &p->tokens.all[i];

		if (t->port && t->port != port)
			continue;
		if (net_token_has_addr(t, a))
			return true;
		for (size_t j = 0; t->kind != NET_NETWORK && j < p->n; j++)
			if (net_token_has_name(t, p->pin[j].name) && has(&p->pin[j].answer, a))
				return true;
	}
	return false;
}

bool net_pins_any_port(const struct net_pins *p)
{
	for (size_t i = 0; i < p->tokens.n; i++)
		if (!p->tokens.all[i].port)
			return true;
	return false;
}

bool net_pins_literal(const struct net_pins *p, const struct net_addr *a, int port)
{
	for (size_t i = 0; i < p->operator.n; i++) {
		const struct net_token *t = &p->operator.all[i];

		if (net_token_is_addr(t) && net_token_has_addr(t, a) &&
		    (port < 0 || !t->port || t->port == port))
			return true;
	}
	return false;
}

static bool add_pin(struct net_ranges *ret, const struct net_pin *pin, uint16_t port)
{
	bool good = true;

	for (size_t i = 0; i < pin->answer.n && good; i++) {
		const struct net_range one = { pin->answer.addr[i], pin->answer.addr[i], port };

		good = net_ranges_add(ret, &one);
	}
	return good;
}

bool net_pins_ranges(const struct net_pins *p, struct net_ranges *ret)
{
	bool good = true;

	for (size_t i = 0; i < p->tokens.n && good; i++) {
		const struct net_token *t = &p->tokens.all[i];

		if (t->kind == NET_NETWORK)
			good = net_ranges_add_token(ret, t);
		for (size_t j = 0; t->kind != NET_NETWORK && j < p->n && good; j++)
			if (net_token_has_name(t, p->pin[j].name))
				good = add_pin(ret, &p->pin[j], t->port);
	}
	net_ranges_merge(ret);
	return good;
}

/* ---- as texts -------------------------------------------------------------------------------- */

enum { TARGET_TEXT = NET_ADDR_TEXT + 4 };

static void print_target(const struct net_addr *a, int prefix, char out[TARGET_TEXT])
{
	char text[NET_ADDR_TEXT];

	(void)snprintf(out, TARGET_TEXT, "%s/%d", net_addr_print(a, text), prefix);
}

static int compare_texts(const void *a, const void *b)
{
	return strcmp(a, b);
}

void net_pins_targets(const struct net_pins *p, struct sbx_buf *out)
{
	size_t most = NET_TOKENS_MAX + NET_ADDRS_MAX, n = 0, written = 0;
	sbx_autofree char *texts = calloc(most, TARGET_TEXT);

	out->failed |= !texts;
	for (size_t i = 0; texts && i < p->tokens.n; i++)
		if (p->tokens.all[i].kind == NET_NETWORK)
			print_target(&p->tokens.all[i].addr, p->tokens.all[i].prefix,
				     texts + n++ * TARGET_TEXT);
	for (size_t i = 0; texts && i < p->n; i++)
		for (size_t j = 0; j < p->pin[i].answer.n; j++)
			print_target(&p->pin[i].answer.addr[j],
				     p->pin[i].answer.addr[j].v6 ? 128 : 32,
				     texts + n++ * TARGET_TEXT);
	if (n)
		qsort(texts, n, TARGET_TEXT, compare_texts);
	sbx_buf_puts(out, "[");
	for (size_t i = 0; i < n; i++) {
		const char *text = texts + i * TARGET_TEXT;

		if (i && strcmp(text, text - TARGET_TEXT) == 0)
			continue;
		sbx_buf_printf(out, "%s\"%s\"", written++ ? "," : "", text);
	}
	sbx_buf_puts(out, "]");
}

static void map_token(const struct net_pins *p, const struct net_token *t, struct sbx_buf *out)
{
	struct net_answer seen = { .n = 0 };
	char text[TARGET_TEXT];

	if (t->kind == NET_NETWORK) {
		print_target(&t->addr, t->prefix, text);
		if (net_token_is_addr(t))
			*strchr(text, '/') = '\0';
		sbx_buf_printf(out, net_token_is_addr(t) ? "\"%s\":[\"%s\"]" : "\"%s\":[]", text,
			       text);
		return;
	}
	sbx_buf_printf(out, "\"%s\":[", t->name);
	for (size_t i = 0; i < p->n; i++)
		for (size_t j = 0; net_token_has_name(t, p->pin[i].name) && j < p->pin[i].answer.n;
		     j++) {
			const struct net_addr *a = &p->pin[i].answer.addr[j];

			if (has(&seen, a))
				continue;
			sbx_buf_printf(out, "%s\"%s\"", seen.n ? "," : "", net_addr_print(a, text));
			if (seen.n < NET_ANSWERS_MAX)
				seen.addr[seen.n++] = *a;
		}
	sbx_buf_puts(out, "]");
}

/* Two tokens about one thing, with other ports say, are one entry: which token is the first of
 * them? A wildcard has more addresses than the name alone. */
static bool is_entry(const struct net_pins *p, size_t at)
{
	const struct net_token *t = &p->tokens.all[at];

	for (size_t i = 0; i < p->tokens.n; i++) {
		const struct net_token *u = &p->tokens.all[i];

		if (i == at || u->prefix != t->prefix || strcmp(u->name, t->name) != 0 ||
		    net_addr_compare(&u->addr, &t->addr) != 0)
			continue;
		if (u->kind > t->kind || (u->kind == t->kind && i < at))
			return false;
	}
	return true;
}

void net_pins_map(const struct net_pins *p, struct sbx_buf *out)
{
	const char *comma = "";

	sbx_buf_puts(out, "{");
	for (size_t i = 0; i < p->tokens.n; i++) {
		if (!is_entry(p, i))
			continue;
		sbx_buf_puts(out, comma);
		comma = ",";
		map_token(p, &p->tokens.all[i], out);
	}
	sbx_buf_puts(out, "}");
}
