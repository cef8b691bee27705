/* SPDX-License-Identifier: Apache-2.0 */
/* From a raw fact to a stable code, and what is to be done about that. */
#include "runtimes/runtimes.h"

#include <ctype.h>
#include <string.h>

#include "runtimes/runtimes_i.h"

struct rule {
	const char *text, *code;
};

static const struct rt_reason_info codes[] = {
#define CODE(code_, category_, severity_, action_)                                                 \
	{ .code = (code_),                                                                         \
	  .category = (category_),                                                                 \
	  .severity = (severity_),                                                                 \
	  .operator_action = (action_) },
#include "runtimes/reasons.def"
};

static const struct rule prefixes[] = {
#define PREFIX(text, code) { (text), (code) },
#include "runtimes/reasons.def"
};

static const struct rule literals[] = {
#define RAW(text, code) { (text), (code) },
#include "runtimes/reasons.def"
};

static const struct rule *find_literal(const char *raw, size_t len)
{
	for (size_t i = 0; i < SBX_COUNT(literals); i++)
		if (strlen(literals[i].text) == len && memcmp(literals[i].text, raw, len) == 0)
			return &literals[i];
	return NULL;
}

const char *rt_reason_literal(const char *raw, size_t len)
{
	const struct rule *rule = find_literal(raw, len);

	return rule ? rule->text : NULL;
}

const char *rt_reason_normalize(const char *raw)
{
	const struct rule *rule;
	size_t len;

	while (raw && isspace((unsigned char)*raw))
		raw++;
	len = raw ? strlen(raw) : 0;
	while (len && isspace((unsigned char)raw[len - 1]))
		len--;
	for (size_t i = 0; len && i < SBX_COUNT(prefixes); i++)
		if (strncmp(raw, prefixes[i].text, strlen(prefixes[i].text)) == 0)
			return prefixes[i].code;
	rule = len ? find_literal(raw, len) : NULL;
	return rule ? rule->code : "unknown";
}

const struct rt_reason_info *rt_reason_info(const char *code)
{
	for (size_t i = 0; code && i < SBX_COUNT(codes); i++)
		if (strcmp(codes[i].code, code) == 0)
			return &codes[i];
	return &codes[SBX_COUNT(codes) - 1];
}
