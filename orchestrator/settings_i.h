/* SPDX-License-Identifier: Apache-2.0 */
/* Private to settings*.c and the JSON that shows settings. */
#ifndef SBX_ORCHESTRATOR_SETTINGS_I_H
#define SBX_ORCHESTRATOR_SETTINGS_I_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/error.h"
#include "orchestrator/settings.h"

enum {
	ORCH_CONFIG_MAX = 1 << 20, /* bytes of a configuration file */
	ORCH_VALUE_MAX = 64 << 10, /* bytes of one TEXT value */
};

/* settings.c */

/* Index of the row, or SIZE_MAX. */
size_t orch_setting_find(const char *key);
/* The known key that `key` was probably meant to be; NULL when none is near. */
const char *orch_setting_nearest(const char *key);
/* Parses text into row i and notes its origin. `where` begins the message of a failure. */
int orch_setting_assign(struct orch_settings *s, size_t i, const char *text, const char *where,
			const char *origin, struct sbx_error *e);
/* INVALID_CONFIG for a key that no row has. */
int orch_setting_unknown(const char *key, const char *where, struct sbx_error *e);

/* settings_value.c */

/* Each checks text against the row; the message names `where`, the key, what was found and what
 * is allowed. INVALID_CONFIG, NO_MEMORY. */
int orch_value_int(const struct orch_setting_info *row, const char *text, const char *where,
		   int64_t *ret, struct sbx_error *e);
int orch_value_number(const struct orch_setting_info *row, const char *text, const char *where,
		      double *ret, struct sbx_error *e);
int orch_value_bool(const struct orch_setting_info *row, const char *text, const char *where,
		    bool *ret, struct sbx_error *e);
/* *ret is malloc'd, or NULL when the text is empty and the row has no default. */
int orch_value_text(const struct orch_setting_info *row, const char *text, const char *where,
		    char **ret, struct sbx_error *e);
/* Is word[0..len) one of `words`, which are separated by one space? */
bool orch_word_in(const char *words, const char *word, size_t len);

/* settings_file.c */

/* Reads the [sandbox] section of an INI file, and keeps its bytes. With optional, a missing file is
 * fine. */
int orch_settings_file(struct orch_settings *s, const char *path, bool optional,
		       struct sbx_error *e);

#endif
