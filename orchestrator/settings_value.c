/* SPDX-License-Identifier: Apache-2.0 */
/* One value of a setting: from text to its type, with the reason when it is none. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <json-c/json.h>

#include "base/auto.h"
#include "base/utf8.h"
#include "orchestrator/settings_i.h"

/* Refuses a value; what is wrong with it follows. Secrets are not repeated. */
#define REFUSE(e, row, where, text, fmt, ...)                                                      \
	sbx_fail((e), SBX_E_INVALID_CONFIG, "%s: %s = %s%.80s%s: " fmt, (where), (row)->key,       \
		 (row)->secret ? "" : "\"", (row)->secret ? "(hidden)" : (text),                   \
		 (row)->secret ? "" : "\"", __VA_ARGS__)

static size_t trim(const char **text)
{
	size_t len;

	while (isspace((unsigned char)**text))
		(*text)++;
	len = strlen(*text);
	while (len && isspace((unsigned char)(*text)[len - 1]))
		len--;
	return len;
}

static bool all_of(const char *s, size_t len, const char *set)
{
	for (size_t i = 0; i < len; i++)
		if (!strchr(set, s[i]))
			return false;
	return len > 0;
}

bool orch_word_in(const char *words, const char *word, size_t len)
{
	for (const char *w = words; *w; w += strspn(w, " ")) {
		size_t n = strcspn(w, " ");

		if (n == len && memcmp(w, word, len) == 0)
			return true;
		w += n;
	}
	return false;
}

int orch_value_int(const struct orch_setting_info *row, const char *text, const char *where,
		   int64_t *ret, struct sbx_error *e)
{
	const char *t = text;
	size_t len = trim(&t), sign = *t == '-' || *t == '+';
	long long v;

	errno = 0;
	v = strtoll(t, NULL, 10);
	if (len <= sign || !all_of(t + sign, len - sign, "0123456789") || errno)
		return REFUSE(e, row, where, text, "not a whole number from %.0f to %.0f", row->min,
			      row->max);
	if (v < (long long)row->min || v > (long long)row->max)
		return REFUSE(e, row, where, text, "out of range; allowed are %.0f to %.0f",
			      row->min, row->max);
	*ret = v;
	return 0;
}

int orch_value_number(const struct orch_setting_info *row, const char *text, const char *where,
		      double *ret, struct sbx_error *e)
{
	const char *t = text;
	size_t len = trim(&t);
	char *end = NULL;
	double v = strtod(t, &end);

	/* strtod also takes "nan", "inf" and hexadecimal. */
	if (!all_of(t, len, "0123456789.+-eE") || end != t + len)
		return REFUSE(e, row, where, text, "not a number from %g to %g", row->min,
			      row->max);
	if (v < row->min || v > row->max)
		return REFUSE(e, row, where, text, "out of range; allowed are %g to %g", row->min,
			      row->max);
	*ret = v;
	return 0;
}

int orch_value_bool(const struct orch_setting_info *row, const char *text, const char *where,
		    bool *ret, struct sbx_error *e)
{
	static const char *const words[][2] = {
		{ "0", "1" }, { "false", "true" }, { "no", "yes" }, { "off", "on" }, { "n", "y" },
	};
	const char *t = text;
	size_t len = trim(&t);

	for (size_t i = 0; i < SBX_COUNT(words); i++)
		for (int v = 0; v < 2; v++)
			if (strlen(words[i][v]) == len && strncasecmp(words[i][v], t, len) == 0) {
				*ret = v;
				return 0;
			}
	return REFUSE(e, row, where, text, "%s",
		      "neither true (1 yes on y) nor false (0 no off n)");
}

enum { SOCKET_MAX = 107 };

/* ---- text ------------------------------------------------------------------------------------ */

struct list {
	const struct orch_setting_info *row;
	const char *where;
	struct sbx_buf text; /* the entries so far, separated by commas */
};

/* Is there an entry already that begins with key[0..len) and ends there, or has '=' there? */
static bool list_has(const struct list *l, const char *key, size_t len)
{
	for (const char *p = l->text.data; p && *p; p += strspn(p, ",")) {
		if (strncmp(p, key, len) == 0 && strchr(",=", p[len])) /* strchr finds the NUL */
			return true;
		p += strcspn(p, ",");
	}
	return false;
}

static int list_add(struct list *l, const char *entry, size_t len, struct sbx_error *e)
{
	sbx_autofree char *item = strndup(entry, len);
	const char *eq;

	if (!item)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a setting");
	eq = strchr(item, '=');
	if (strchr(item, ','))
		return REFUSE(e, l->row, l->where, item, "%s", "an entry must not contain a comma");
	if (l->row->words && !orch_word_in(l->row->words, item, len))
		return REFUSE(e, l->row, l->where, item, "not among the supported ones: %s",
			      l->row->words);
	if (l->row->form == ORCH_FORM_MAP) {
		if (!eq || eq == item || !eq[1])
			return REFUSE(e, l->row, l->where, item, "%s", "not alias=target");
		if (list_has(l, item, (size_t)(eq - item)))
			return REFUSE(e, l->row, l->where, item, "%s", "the alias is given twice");
	} else if (list_has(l, item, len)) {
		return 0;
	}
	if (l->text.len)
		sbx_buf_puts(&l->text, ",");
	sbx_buf_add(&l->text, item, len);
	return 0;
}

static int list_from_json(struct list *l, const char *text, size_t len, struct sbx_error *e)
{
	struct json_tokener *tok = json_tokener_new();
	struct json_object *array = NULL;
	int rc = 0;

	if (!tok)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a setting");
	json_tokener_set_flags(tok, JSON_TOKENER_STRICT);
	array = json_tokener_parse_ex(tok, text, (int)len);
	if (!array || json_tokener_get_parse_end(tok) != len ||
	    !json_object_is_type(array, json_type_array))
		rc = REFUSE(e, l->row, l->where, text, "%s", "not a JSON array of strings");
	for (size_t i = 0; !rc && i < json_object_array_length(array); i++) {
		struct json_object *o = json_object_array_get_idx(array, i);

		if (!json_object_is_type(o, json_type_string))
			rc = REFUSE(e, l->row, l->where, text, "entry %zu is no string", i);
		else if (json_object_get_string_len(o))
			rc = list_add(l, json_object_get_string(o),
				      (size_t)json_object_get_string_len(o), e);
	}
	json_object_put(array);
	json_tokener_free(tok);
	return rc;
}

static int list_from_commas(struct list *l, const char *text, size_t len, struct sbx_error *e)
{
	const char *end = text + len;

	while (text < end) {
		size_t n = strcspn(text, ","), left = n;
		const char *p = text;

		if (n > (size_t)(end - text))
			n = left = (size_t)(end - text);
		while (left && isspace((unsigned char)*p))
			p++, left--;
		while (left && isspace((unsigned char)p[left - 1]))
			left--;
		if (left) {
			int rc = list_add(l, p, left, e);

			if (rc)
				return rc;
		}
		text += n + 1;
	}
	return 0;
}

/* An array of strings; an address like [::1]:80 begins with a bracket as well. */
static bool is_json(const char *text)
{
	return *text == '[' && strchr("\"]", text[1 + strspn(text + 1, " \t\n\r")]);
}

static int list_value(const struct orch_setting_info *row, const char *text, size_t len,
		      const char *where, char **ret, struct sbx_error *e)
{
	struct list l = { row, where, SBX_BUF_INIT(ORCH_VALUE_MAX) };
	int rc = is_json(text) ? list_from_json(&l, text, len, e)
			       : list_from_commas(&l, text, len, e);

	if (!rc && sbx_buf_failed(&l.text))
		rc = sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a setting");
	if (!rc && l.text.len)
		*ret = sbx_buf_steal(&l.text);
	sbx_buf_free(&l.text);
	return rc;
}

static const char *text_problem(const char *text, size_t len)
{
	if (len > ORCH_VALUE_MAX)
		return "longer than 64 KiB";
	if (!sbx_utf8_valid(text, len))
		return "not UTF-8";
	for (size_t i = 0; i < len; i++)
		if (iscntrl((unsigned char)text[i]))
			return "has a control character";
	return NULL;
}

/* A path that fits into an address (unix(7)). */
static int socket_value(const struct orch_setting_info *row, const char *text, size_t len,
			const char *where, char **ret, struct sbx_error *e)
{
	static const char scheme[] = "unix://";
	size_t skip = strncmp(text, scheme, sizeof(scheme) - 1) == 0 ? sizeof(scheme) - 1 : 0;

	if (text[skip] != '/')
		return REFUSE(e, row, where, text, "%s",
			      "neither an absolute path nor one behind unix://");
	if (len - skip > SOCKET_MAX)
		return REFUSE(e, row, where, text, "longer than %d bytes", SOCKET_MAX);
	*ret = strndup(text + skip, len - skip);
	return *ret ? 0 : sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a setting");
}

int orch_value_text(const struct orch_setting_info *row, const char *text, const char *where,
		    char **ret, struct sbx_error *e)
{
	const char *t = text, *problem;
	size_t len = trim(&t);
	int rc = 0;

	*ret = NULL;
	problem = text_problem(t, len);
	if (problem)
		return REFUSE(e, row, where, t, "%s", problem);
	if (row->form == ORCH_FORM_LIST || row->form == ORCH_FORM_MAP) {
		rc = list_value(row, t, len, where, ret, e);
	} else if (row->form == ORCH_FORM_WORD && !orch_word_in(row->words, t, len)) {
		rc = REFUSE(e, row, where, t, "not among the supported ones: %s", row->words);
	} else if (row->form == ORCH_FORM_SOCKET && len) {
		rc = socket_value(row, t, len, where, ret, e);
	} else if (row->form == ORCH_FORM_PATH && len && *t != '/') {
		rc = REFUSE(e, row, where, t, "%s", "not an absolute path");
	} else if (len) {
		*ret = strndup(t, len);
		if (!*ret)
			rc = sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a setting");
	}
	if (!rc && !*ret && row->def)
		rc = REFUSE(e, row, where, t, "must not be empty; its default is %s", row->def);
	return rc;
}
