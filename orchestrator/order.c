/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/order.h"

#include <stdio.h>
#include <string.h>

/* The texts of a row that a supervisor needs: to choose a driver, and for the audit of the end. */
static const size_t texts[] = {
	offsetof(struct store_run, user),	    offsetof(struct store_run, door),
	offsetof(struct store_run, spec_version),   offsetof(struct store_run, runtime),
	offsetof(struct store_run, policy_hash),    offsetof(struct store_run, trust_level),
	offsetof(struct store_run, network_policy),
};

static char **text_of(struct store_run *r, size_t i)
{
	return (char **)(void *)((char *)r + texts[i]);
}

static size_t size_of(struct store_run *r, const char *spec)
{
	size_t n = strlen(spec) + 1;

	for (size_t i = 0; i < SBX_COUNT(texts); i++)
		n += *text_of(r, i) ? strlen(*text_of(r, i)) + 1 : ORCH_ORDER_MAX;
	return n;
}

void orch_order_write(const struct orch_order *o, struct sbx_buf *out)
{
	struct store_run r = o->run;

	sbx_buf_printf(out, "run %s %lld %lld", o->id, (long long)o->generation,
		       (long long)r.started_us);
	if (!o->spec || out->len + 1 + size_of(&r, o->spec) > ORCH_ORDER_MAX)
		return;
	sbx_buf_add(out, "", 1);
	for (size_t i = 0; i < SBX_COUNT(texts); i++)
		sbx_buf_add(out, *text_of(&r, i), strlen(*text_of(&r, i)) + 1);
	sbx_buf_add(out, o->spec, strlen(o->spec));
}

bool orch_order_read(char *msg, size_t n, struct orch_order *ret)
{
	char *p = msg + strlen(msg), *end = msg + n;
	long long generation, started;

	memset(ret, 0, sizeof(*ret));
	if (sscanf(msg, "run %36s %lld %lld", ret->id, &generation, &started) != 3)
		return false;
	ret->generation = generation;
	for (size_t i = 0; i < SBX_COUNT(texts) && p < end; i++) {
		*text_of(&ret->run, i) = ++p;
		p += strlen(p);
	}
	if (p >= end)
		return true;
	ret->spec = p + 1;
	ret->run.id = ret->id;
	ret->run.generation = generation;
	ret->run.started_us = started;
	ret->run.phase = STORE_STARTING;
	return true;
}
