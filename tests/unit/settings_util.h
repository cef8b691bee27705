/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of settings share: a configuration file, and loading it. */
#ifndef SBX_TESTS_UNIT_SETTINGS_UTIL_H
#define SBX_TESTS_UNIT_SETTINGS_UTIL_H

#include <ctype.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include <cmocka.h>

#include "base/fs.h"
#include "orchestrator/settings.h"

static char conf[] = "/tmp/sbx-settings-XXXXXX";

static inline void write_conf(const char *text)
{
	int fd = open(conf, O_WRONLY | O_TRUNC | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(sbx_write_all(fd, text, strlen(text)), 0);
	(void)close(fd);
}

static inline int load(const char *text, const char *override, struct orch_settings **ret,
		       struct sbx_error *e)
{
	write_conf(text);
	return orch_settings_load(conf, &override, override ? 1 : 0, ret, e);
}

static inline struct orch_settings *load_ok(const char *text, const char *override)
{
	struct orch_settings *s = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;
	int rc = load(text, override, &s, &e);

	if (rc)
		fail_msg("%s", e.message);
	assert_non_null(s);
	return s;
}

static inline size_t index_of(const char *key)
{
	for (size_t i = 0; orch_setting_at(i); i++)
		if (strcmp(orch_setting_at(i)->key, key) == 0)
			return i;
	fail_msg("no setting %s", key);
	return 0;
}

static inline void origin_is(const struct orch_settings *s, const char *key, const char *origin)
{
	assert_string_equal(s->origins[index_of(key)], origin);
}

static inline int make_conf(void **state)
{
	int fd;

	(void)state;
	for (size_t i = 0; orch_setting_at(i); i++)
		(void)unsetenv(orch_setting_at(i)->env);
	fd = mkostemp(conf, O_CLOEXEC);
	if (fd < 0)
		return -1;
	(void)close(fd);
	return 0;
}

static inline int remove_conf(void **state)
{
	(void)state;
	return unlink(conf);
}

#endif
