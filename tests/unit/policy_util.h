/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of policy and of discovery share: settings and preflight records from text. */
#ifndef SBX_TESTS_UNIT_POLICY_UTIL_H
#define SBX_TESTS_UNIT_POLICY_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "orchestrator/policy.h"

#define RECORD(available, reasons, deny, allow, trust, host)                                       \
	"{\"available\":" available ",\"reasons\":[" reasons "],\"deny_all_ready\":" deny          \
	",\"allowlist_ready\":" allow ",\"trust_levels\":[" trust "],\"host\":{" host "}}"
#define ALL_LEVELS "\"trusted\",\"standard\",\"untrusted\""
#define READY	   RECORD("true", "", "true", "true", ALL_LEVELS, "")
#define DOWN(why)  RECORD("false", "\"" why "\"", "false", "false", ALL_LEVELS, "")
#define NAMESPACE  "\"namespace\":" RECORD("true", "", "true", "false", ALL_LEVELS, "")
#define WITH_CGROUP                                                                                \
	"\"namespace\":" RECORD("true", "", "true", "false", ALL_LEVELS, "\"limits\":\"cgroup\"")
/* Everything works, and claims more than its posture allows. */
#define EVERYTHING                                                                                 \
	"{" NAMESPACE ",\"docker\":" READY ",\"firecracker\":" READY ",\"lima\":" READY            \
	",\"qemu\":" READY ",\"vz_linux\":" READY ",\"vz_macos\":" READY                           \
	",\"seatbelt\":" RECORD("true", "", "true", "true", "\"trusted\"",                         \
				"") ",\"worktree\":" RECORD("true", "", "true", "true",            \
							    "\"trusted\",\"standard\"", "") "}"

static inline struct orch_settings *settings(const char *const *overrides)
{
	struct orch_settings *s = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;
	size_t n = 0;

	while (overrides && overrides[n])
		n++;
	if (orch_settings_load("/dev/null", overrides, n, &s, &e))
		fail_msg("%s", e.message);
	return s;
}

static inline struct orch_preflights *preflights(const char *json)
{
	struct orch_preflights *p = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;

	if (orch_preflights_parse(json, &p, &e))
		fail_msg("%s", e.message);
	return p;
}

static inline int clean_environment(void **state)
{
	(void)state;
	for (size_t i = 0; orch_setting_at(i); i++)
		(void)unsetenv(orch_setting_at(i)->env);
	return 0;
}

/* ---- one application ------------------------------------------------------------------------- */

struct trial {
	struct orch_settings *s;
	struct orch_preflights *p;
	struct ms_run_spec *spec;
	struct orch_effective eff;
	struct sbx_error e;
	struct json_object *details;
	int rc;
};

static inline struct ms_run_spec *spec_new(void)
{
	struct ms_run_spec *s = calloc(1, sizeof(*s));

	assert_non_null(s);
	s->startup_timeout_sec = s->timeout_sec = s->memory_mb = s->pids = -1;
	s->stdin_max_bytes = s->stdin_max_frame_bytes = s->stdin_bps = -1;
	s->stdin_idle_timeout_sec = s->resume_from_seq = -1;
	s->cpu = -1.0;
	return s;
}

static inline void spec_free(struct ms_run_spec *s)
{
	free(s->runtime);
	free(s->base_image);
	free(s->trust_level);
	free(s->network_policy);
	free(s);
}

static inline char *dup_or_null(const char *text)
{
	return text ? strdup(text) : NULL;
}

static inline void begin(struct trial *t, const char *const *overrides, const char *records,
			 const char *runtime, const char *trust, const char *network)
{
	*t = (struct trial){ .s = settings(overrides), .spec = spec_new() };
	t->p = records ? preflights(records) : NULL;
	t->spec->runtime = dup_or_null(runtime);
	t->spec->trust_level = dup_or_null(trust);
	t->spec->network_policy = dup_or_null(network);
}

static inline void apply(struct trial *t)
{
	t->rc = orch_policy_apply(t->s, t->p, t->spec, &t->eff, &t->e);
	if (t->rc && t->e.details)
		t->details = json_tokener_parse(t->e.details);
}

static inline void admitted(struct trial *t)
{
	apply(t);
	if (t->rc)
		fail_msg("refused: %s", t->e.message);
}

static inline void end(struct trial *t)
{
	json_object_put(t->details);
	sbx_error_clear(&t->e);
	spec_free(t->spec);
	(void)orch_preflights_free(t->p);
	(void)orch_settings_free(t->s);
}

static inline const char *detail(const struct trial *t, const char *name)
{
	struct json_object *o = NULL;

	assert_non_null(t->details);
	assert_true(json_object_object_get_ex(t->details, name, &o));
	return json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN);
}

#endif
