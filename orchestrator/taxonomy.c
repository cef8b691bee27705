/* SPDX-License-Identifier: Apache-2.0 */
/* The table of reason codes, and how to guess one for a row that was stored without. */
#include "orchestrator/taxonomy.h"

#include <ctype.h>
#include <string.h>

#include <json-c/json.h>

static const struct orch_reason table[] = {
#define X(code_, category_, severity_, terminal_, retryable_, action_, doc_)                       \
	{                                                                                          \
		.code = (code_),                                                                   \
		.category = (category_),                                                           \
		.severity = (severity_),                                                           \
		.terminal = (terminal_),                                                           \
		.retryable = (retryable_),                                                         \
		.operator_action = (action_),                                                      \
		.doc = (doc_),                                                                     \
	},
#include "orchestrator/taxonomy.def"
#undef X
};

const struct orch_reason *orch_reason_at(size_t i)
{
	return i < SBX_COUNT(table) ? &table[i] : NULL;
}

static const struct orch_reason *lookup(const char *code)
{
	for (size_t i = 0; code && i < SBX_COUNT(table); i++)
		if (strcmp(table[i].code, code) == 0)
			return &table[i];
	return NULL;
}

const struct orch_reason *orch_reason_find(const char *code)
{
	const struct orch_reason *r = lookup(code);

	return r ? r : lookup("unknown");
}

void orch_reason_json(const struct orch_reason *r, struct sbx_buf *out)
{
	sbx_buf_printf(out,
		       "{\"code\":\"%s\",\"category\":\"%s\",\"severity\":\"%s\",\"terminal\":%s,"
		       "\"retryable\":%s,\"operator_action\":\"%s\","
		       "\"user_message_key\":\"sandbox.status.%s\"}",
		       r->code, r->category, r->severity, r->terminal ? "true" : "false",
		       r->retryable ? "true" : "false", r->operator_action, r->code);
}

/* ---- guessing -------------------------------------------------------------------------------- */

enum { MESSAGE_MAX = 1024 }; /* more of a message is not looked at */

/* The message trimmed and in lower case. */
static void normalize(const char *message, char out[MESSAGE_MAX])
{
	size_t n = 0;

	while (message && isspace((unsigned char)*message))
		message++;
	while (message && message[n] && n < MESSAGE_MAX - 1) {
		out[n] = (char)tolower((unsigned char)message[n]);
		n++;
	}
	while (n && isspace((unsigned char)out[n - 1]))
		n--;
	out[n] = '\0';
}

static bool has(const char *text, const char *part)
{
	return strstr(text, part) != NULL;
}

static bool one_of(const char *text, const char *const *list)
{
	for (; *list; list++)
		if (strcmp(*list, text) == 0)
			return true;
	return false;
}

static bool limits_hit(const char *usage)
{
	static const char *const counters[] = {
		"stdout_truncated",
		"stderr_truncated",
		"log_truncated",
		"guest_output_limit_exceeded",
		"artifact_files_skipped",
		"artifact_skip_file_limit",
		"artifact_skip_total_limit",
		"artifact_skip_symlink",
		"artifact_skip_invalid",
		"artifact_skip_read_error",
	};
	struct json_object *o = usage ? json_tokener_parse(usage) : NULL;
	bool hit = false;

	for (size_t i = 0; i < SBX_COUNT(counters); i++) {
		struct json_object *v = NULL;

		if (json_object_is_type(o, json_type_object) &&
		    json_object_object_get_ex(o, counters[i], &v) &&
		    (json_object_is_type(v, json_type_int) ||
		     json_object_is_type(v, json_type_double)))
			hit |= json_object_get_double(v) > 0;
	}
	json_object_put(o);
	return hit;
}

static bool runtime_unavailable(const char *m)
{
	static const char *const codes[] = {
		"runtime unavailable",	"docker_unavailable",	"firecracker_unavailable",
		"limactl_missing",	"vz_linux_unavailable", "vz_macos_unavailable",
		"seatbelt_unavailable", "worktree_unavailable", NULL,
	};
	static const char provisioning[] = "runtime_provisioning";

	if (one_of(m, codes) || has(m, "runtime_unavailable") ||
	    strncmp(m, provisioning, strlen(provisioning)) == 0)
		return true;
	return (has(m, "runtime") || has(m, "provision")) &&
	       (has(m, "unavailable") || has(m, "not found") || has(m, "missing"));
}

static const char *failed(const char *m, bool has_exit_code, int exit_code)
{
	if (strcmp(m, "queue_ttl_expired") == 0)
		return "queue_ttl_expired";
	if (has(m, "policy") && has(m, "failed"))
		return "policy_failed";
	if (runtime_unavailable(m))
		return "runtime_unavailable";
	if (has(m, "startup_timeout"))
		return "startup_timeout";
	if (has(m, "execution_timeout") || strcmp(m, "timeout") == 0)
		return "execution_timeout";
	return has_exit_code && exit_code ? "nonzero_exit" : "runtime_error";
}

const char *orch_reason_derive(enum store_phase phase, const char *message, bool has_exit_code,
			       int exit_code, const char *usage)
{
	char m[MESSAGE_MAX];

	normalize(message, m);
	switch (phase) {
	case STORE_QUEUED:
		return "queued";
	case STORE_STARTING:
		return "starting";
	case STORE_RUNNING:
		return "running";
	case STORE_COMPLETED:
		return limits_hit(usage) ? "limits_applied" : "completed";
	case STORE_FAILED:
		return limits_hit(usage) ? "limits_applied" : failed(m, has_exit_code, exit_code);
	case STORE_TIMED_OUT:
		if (limits_hit(usage))
			return "limits_applied";
		return has(m, "startup") ? "startup_timeout" : "execution_timeout";
	case STORE_KILLED:
		return has(m, "cancel") ? "canceled_by_user" : "killed";
	case STORE_PHASE__COUNT:
		break;
	}
	return "unknown";
}

const char *orch_outcome_word(enum store_phase phase)
{
	switch (phase) {
	case STORE_COMPLETED:
		return "success";
	case STORE_TIMED_OUT:
		return "timeout";
	default:
		return store_phase_name(phase);
	}
}
