/* SPDX-License-Identifier: Apache-2.0 */
/* The table of settings, and the order in which its four sources are asked. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/auto.h"
#include "base/json.h"
#include "orchestrator/settings_i.h"
#include "runtimes/net/targets.h"

#define DEFAULT_PATH "/etc/sandboxfs/sandboxfs.conf"

static const struct orch_setting_info rows[] = {
#define X(member_, env_, key_, type_, def_, min_, max_, form_, words_, secret_, doc_)              \
	{                                                                                          \
		.member = #member_,                                                                \
		.env = (env_),                                                                     \
		.key = (key_),                                                                     \
		.type = ORCH_SET_##type_,                                                          \
		.def = (def_),                                                                     \
		.min = (min_),                                                                     \
		.max = (max_),                                                                     \
		.form = ORCH_FORM_##form_,                                                         \
		.words = (words_),                                                                 \
		.secret = (secret_),                                                               \
		.doc = (doc_),                                                                     \
	},
#include "orchestrator/settings.def"
#undef X
};

static const size_t offsets[] = {
#define X(member, ...) offsetof(struct orch_settings, member),
#include "orchestrator/settings.def"
#undef X
};

static void *slot(const struct orch_settings *s, size_t i)
{
	return (char *)(uintptr_t)s + offsets[i];
}

const struct orch_setting_info *orch_setting_at(size_t i)
{
	return i < SBX_COUNT(rows) ? &rows[i] : NULL;
}

size_t orch_setting_find(const char *key)
{
	for (size_t i = 0; i < SBX_COUNT(rows); i++)
		if (strcmp(rows[i].key, key) == 0)
			return i;
	return SIZE_MAX;
}

struct orch_settings *orch_settings_free(struct orch_settings *s)
{
	if (!s)
		return NULL;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		if (rows[i].type == ORCH_SET_TEXT)
			free(*(char **)slot(s, i));
		if (s->origins)
			free(s->origins[i]);
	}
	free(s->origins);
	free(s->file);
	free(s);
	return NULL;
}

/* ---- names that are none --------------------------------------------------------------------- */

enum { NEAR_MAX = 64 }; /* longest key that is compared */

/* Edits (insert, delete, replace, without regard to case) that make a out of b. */
static size_t distance(const char *a, const char *b)
{
	size_t line[NEAR_MAX + 1], na = strlen(a), nb = strlen(b);

	if (na > NEAR_MAX || nb > NEAR_MAX)
		return SIZE_MAX;
	for (size_t j = 0; j <= nb; j++)
		line[j] = j;
	for (size_t i = 1; i <= na; i++) {
		size_t corner = line[0];

		line[0] = i;
		for (size_t j = 1; j <= nb; j++) {
			size_t up = line[j], best = corner + !!strncasecmp(a + i - 1, b + j - 1, 1);

			if (up + 1 < best)
				best = up + 1;
			if (line[j - 1] + 1 < best)
				best = line[j - 1] + 1;
			line[j] = best;
			corner = up;
		}
	}
	return line[nb];
}

const char *orch_setting_nearest(const char *key)
{
	const char *ret = NULL;
	size_t best;

	/* The variable's name where the key belongs is a mistake of its own kind. */
	if (strncasecmp(key, "sandbox_", 8) == 0)
		key += 8;
	best = strlen(key) / 3 + 1;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		size_t d = distance(key, rows[i].key);

		if (d < best) {
			best = d;
			ret = rows[i].key;
		}
	}
	return ret;
}

int orch_setting_unknown(const char *key, const char *where, struct sbx_error *e)
{
	const char *near = orch_setting_nearest(key);

	if (near)
		return sbx_fail(e, SBX_E_INVALID_CONFIG,
				"%s: unknown setting '%.80s'; did you mean '%s'?", where, key,
				near);
	return sbx_fail(e, SBX_E_INVALID_CONFIG,
			"%s: unknown setting '%.80s'; --print-config lists all", where, key);
}

/* ---- loading --------------------------------------------------------------------------------- */

int orch_setting_assign(struct orch_settings *s, size_t i, const char *text, const char *where,
			const char *origin, struct sbx_error *e)
{
	const struct orch_setting_info *row = &rows[i];
	sbx_autofree char *text_value = NULL;
	char **text_slot;
	char *copy;
	int rc = 0;

	switch (row->type) {
	case ORCH_SET_INT:
		rc = orch_value_int(row, text, where, slot(s, i), e);
		break;
	case ORCH_SET_NUMBER:
		rc = orch_value_number(row, text, where, slot(s, i), e);
		break;
	case ORCH_SET_BOOL:
		rc = orch_value_bool(row, text, where, slot(s, i), e);
		break;
	case ORCH_SET_TEXT:
		rc = orch_value_text(row, text, where, &text_value, e);
		if (rc)
			break;
		text_slot = slot(s, i);
		free(*text_slot);
		*text_slot = sbx_steal(&text_value);
		break;
	}
	if (rc)
		return rc;
	copy = strdup(origin);
	if (!copy)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for settings");
	free(s->origins[i]);
	s->origins[i] = copy;
	return 0;
}

static int load_defaults(struct orch_settings *s, struct sbx_error *e)
{
	s->origins = calloc(SBX_COUNT(rows), sizeof(*s->origins));
	if (!s->origins)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for settings");
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		int rc = orch_setting_assign(s, i, rows[i].def ? rows[i].def : "",
					     "built-in default", "default", e);

		if (rc)
			return rc;
	}
	return 0;
}

static int load_environment(struct orch_settings *s, struct sbx_error *e)
{
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		const char *text = getenv(rows[i].env);
		char where[96];
		int rc;

		if (!text || !*text)
			continue;
		(void)snprintf(where, sizeof(where), "environment variable %s", rows[i].env);
		rc = orch_setting_assign(s, i, text, where, "environment", e);
		if (rc)
			return rc;
	}
	return 0;
}

static int load_override(struct orch_settings *s, const char *option, struct sbx_error *e)
{
	const char *eq = strchr(option, '=');
	sbx_autofree char *key = NULL;
	size_t i;

	if (!eq || eq == option)
		return sbx_fail(e, SBX_E_INVALID_CONFIG, "command line: '%.80s' is not key=value",
				option);
	key = strndup(option, (size_t)(eq - option));
	if (!key)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for settings");
	i = orch_setting_find(key);
	if (i == SIZE_MAX)
		return orch_setting_unknown(key, "command line", e);
	return orch_setting_assign(s, i, eq + 1, "command line", "command line", e);
}

/* Targets that are none would be found out by the first run that wants a network. */
static int check_egress(const struct orch_settings *s, struct sbx_error *e)
{
	struct net_tokens targets = { .n = 0 }, servers = { .n = 0 };
	int rc = net_tokens_add_list(s->egress_allowlist, "egress_allowlist", SBX_E_INVALID_CONFIG,
				     &targets, e);

	if (!rc)
		rc = net_tokens_add_list(s->egress_dns, "egress_dns", SBX_E_INVALID_CONFIG,
					 &servers, e);
	for (size_t i = 0; !rc && i < servers.n; i++)
		if (!net_token_is_addr(&servers.all[i]))
			rc = sbx_fail(e, SBX_E_INVALID_CONFIG,
				      "egress_dns: found \"%s\", allowed are addresses, each with "
				      "or without a :port",
				      s->egress_dns);
	net_tokens_clear(&targets);
	net_tokens_clear(&servers);
	return rc;
}

/* What no single row can say. */
static int check_together(const struct orch_settings *s, struct sbx_error *e)
{
	if (s->uid_base + s->uid_range > INT64_C(4294967295)) /* (uid_t)-1 is nobody's */
		return sbx_fail(e, SBX_E_INVALID_CONFIG,
				"uid_base = %lld and uid_range = %lld reach beyond uid 4294967294",
				(long long)s->uid_base, (long long)s->uid_range);
	return check_egress(s, e);
}

int orch_settings_load(const char *path, const char *const *overrides, size_t n_overrides,
		       struct orch_settings **ret, struct sbx_error *e)
{
	SBX_AUTO(orch_settings_freep)
	struct orch_settings *s = calloc(1, sizeof(*s));
	int rc;

	if (!s)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for settings");
	rc = load_defaults(s, e);
	if (!rc)
		rc = orch_settings_file(s, path ? path : DEFAULT_PATH, !path, e);
	if (!rc)
		rc = load_environment(s, e);
	for (size_t i = 0; !rc && i < n_overrides; i++)
		rc = load_override(s, overrides[i], e);
	if (!rc)
		rc = check_together(s, e);
	if (rc)
		return rc;
	*ret = sbx_steal(&s);
	return 0;
}

/* ---- showing --------------------------------------------------------------------------------- */

static void print_value(const struct orch_settings *s, size_t i, struct sbx_buf *out)
{
	const char *text;

	switch (rows[i].type) {
	case ORCH_SET_INT:
		sbx_buf_printf(out, "%lld", (long long)*(const int64_t *)slot(s, i));
		break;
	case ORCH_SET_NUMBER:
		sbx_json_double(out, *(const double *)slot(s, i));
		break;
	case ORCH_SET_BOOL:
		sbx_buf_puts(out, *(const bool *)slot(s, i) ? "true" : "false");
		break;
	case ORCH_SET_TEXT:
		text = *(char *const *)slot(s, i);
		if (text)
			sbx_buf_puts(out, rows[i].secret ? "(hidden)" : text);
		break;
	}
}

void orch_settings_print(const struct orch_settings *s, struct sbx_buf *out)
{
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		sbx_buf_printf(out, "%s = ", rows[i].key);
		print_value(s, i, out);
		sbx_buf_printf(out, "  # %s\n", s->origins[i]);
	}
}
