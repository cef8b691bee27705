/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges of addresses, in the form that sets of the packet filter want. Pure. */
#include "runtimes/net/targets.h"

#include <stdlib.h>
#include <string.h>

#include "base/auto.h"

void net_ranges_clear(struct net_ranges *r)
{
	free(r->all);
	memset(r, 0, sizeof(*r));
}

bool net_ranges_add(struct net_ranges *r, const struct net_range *one)
{
	if (r->n == r->size) {
		size_t size = r->size ? r->size * 2 : 32;
		struct net_range *all = realloc(r->all, size * sizeof(*all));

		if (!all)
			return false;
		r->all = all;
		r->size = size;
	}
	r->all[r->n++] = *one;
	return true;
}

bool net_ranges_add_token(struct net_ranges *r, const struct net_token *network)
{
	struct net_range one = { .lo = network->addr, .hi = network->addr, .port = network->port };
	int bits = network->addr.v6 ? 128 : 32;

	for (int i = network->prefix; i < bits; i++)
		one.hi.b[i / 8] |= (uint8_t)(0x80 >> i % 8);
	return net_ranges_add(r, &one);
}

static int compare(const void *va, const void *vb)
{
	const struct net_range *a = va, *b = vb;
	int c;

	if (a->port != b->port)
		return a->port < b->port ? -1 : 1;
	c = net_addr_compare(&a->lo, &b->lo);
	return c ? c : net_addr_compare(&a->hi, &b->hi);
}

/* The address behind a; false: there is none. */
static bool next(const struct net_addr *a, struct net_addr *ret)
{
	*ret = *a;
	for (int i = a->v6 ? 15 : 3; i >= 0; i--)
		if (++ret->b[i])
			return true;
	return false;
}

static bool joins(const struct net_range *a, const struct net_range *b)
{
	struct net_addr after;

	if (a->port != b->port || a->lo.v6 != b->lo.v6)
		return false;
	return !next(&a->hi, &after) || net_addr_compare(&b->lo, &after) <= 0;
}

void net_ranges_merge(struct net_ranges *r)
{
	size_t n = 0;

	if (r->n)
		qsort(r->all, r->n, sizeof(r->all[0]), compare);
	for (size_t i = 0; i < r->n; i++) {
		struct net_range *last = n ? &r->all[n - 1] : NULL;

		if (!last || !joins(last, &r->all[i]))
			r->all[n++] = r->all[i];
		else if (net_addr_compare(&r->all[i].hi, &last->hi) > 0)
			last->hi = r->all[i].hi;
	}
	r->n = n;
}
