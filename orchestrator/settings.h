/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operator's settings, one row each in settings.def: member, environment variable, key in
 * the [sandbox] section of the INI file, type, default, bounds, whether it is a secret, doc line.
 * Precedence: command line, environment, file, default. Read-only after loading, so any
 * thread may look.
 */
#ifndef SBX_ORCHESTRATOR_SETTINGS_H
#define SBX_ORCHESTRATOR_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/error.h"

enum orch_setting_type { ORCH_SET_INT = 1, ORCH_SET_NUMBER, ORCH_SET_BOOL, ORCH_SET_TEXT };
enum orch_setting_form {
	ORCH_FORM_NONE = 0, /* no TEXT */
	ORCH_FORM_PLAIN,
	ORCH_FORM_WORD, /* one of `words` */
	ORCH_FORM_LIST, /* comma separated (a JSON array is taken too), each one of `words` if any;
			   kept without spaces: "a,b" */
	ORCH_FORM_MAP,	/* comma separated alias=target, kept the same way */
	ORCH_FORM_PATH, /* absolute */
	ORCH_FORM_SOCKET, /* the same, or unix:// and that; kept without it */
};
#define ORCH_CTYPE_INT	  int64_t
#define ORCH_CTYPE_NUMBER double
#define ORCH_CTYPE_BOOL	  bool
#define ORCH_CTYPE_TEXT	  char * /* owned; NULL when unset */

/* One member per row of settings.def, for example settings->queue_max_length. */
struct orch_settings {
#define X(member, env, key, type, ...) ORCH_CTYPE_##type member;
#include "orchestrator/settings.def"
#undef X
	/* Where each value came from, in table order: "default", "file LINE", "environment",
	 * "command line". Owned. */
	char **origins;
	/* The bytes of the file that was read, owned; NULL when there was none. */
	char *file;
	size_t file_len;
};

struct orch_settings *orch_settings_free(struct orch_settings *s); /* NULL is fine */
SBX_DEFINE_AUTO(struct orch_settings, orch_settings_free)

/*
 * Loads everything. path NULL: /etc/sandboxfs/sandboxfs.conf, which may be missing; a path that was
 * asked for may not. overrides: "key=value" strings from the command line (n of them).
 * INVALID_CONFIG names the file and line, variable or option, what was found and what is allowed;
 * an unknown key of the file is an error with the nearest known one; an unknown variable is none of
 * ours. An empty environment value counts as unset.
 */
int orch_settings_load(const char *path, const char *const *overrides, size_t n_overrides,
		       struct orch_settings **ret, struct sbx_error *e);
/* --print-config: "key = value  # origin" lines, secrets as "(hidden)", in table order. */
void orch_settings_print(const struct orch_settings *s, struct sbx_buf *out);

/* For documentation and tests. */
struct orch_setting_info {
	const char *member, *env, *key;
	enum orch_setting_type type;
	const char *def;
	double min, max;
	enum orch_setting_form form;
	const char *words; /* separated by one space; NULL: anything */
	bool secret;
	const char *doc;
};
const struct orch_setting_info *orch_setting_at(size_t i); /* NULL past the end */

#endif
