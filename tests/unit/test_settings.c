/* SPDX-License-Identifier: Apache-2.0 */
/* Settings: the table itself, the four sources and their order, and the document about them. */
#include "tests/unit/settings_util.h"

#include <ctype.h>

#include "runtimes/runtimes.h"

/* ---- the table ------------------------------------------------------------------------------- */

/* What follows the prefix, where there is one. */
static const char *without(const char *prefix, const char *name)
{
	size_t n = strlen(prefix);

	return strncmp(name, prefix, n) == 0 ? name + n : name;
}

static void table__names_follow_one_rule(void **state)
{
	(void)state;
	for (size_t i = 0; orch_setting_at(i); i++) {
		const struct orch_setting_info *row = orch_setting_at(i);

		/* Two are not the sandbox's alone in the reference, and have no prefix there; one
		 * has a longer one. */
		const char *env = without("SANDBOX_", without("TLDW_", row->env));

		assert_string_equal(row->member, row->key);
		assert_int_equal(strcasecmp(env, row->key), 0);
		for (const char *p = row->env; *p; p++)
			assert_true(isupper((unsigned char)*p) || *p == '_');
	}
}

static void table__names_are_distinct(void **state)
{
	(void)state;
	for (size_t i = 0; orch_setting_at(i); i++)
		for (size_t j = 0; j < i; j++)
			assert_string_not_equal(orch_setting_at(i)->key, orch_setting_at(j)->key);
}

static void table__every_row_is_complete(void **state)
{
	size_t n = 0;

	(void)state;
	for (; orch_setting_at(n); n++) {
		const struct orch_setting_info *row = orch_setting_at(n);

		assert_true(row->type >= ORCH_SET_INT && row->type <= ORCH_SET_TEXT);
		assert_true(strlen(row->doc) > 10);
		if (row->type == ORCH_SET_TEXT) {
			assert_int_not_equal(row->form, ORCH_FORM_NONE);
			assert_true(row->form != ORCH_FORM_WORD || row->words);
		} else {
			assert_int_equal(row->form, ORCH_FORM_NONE);
			assert_true(row->min < row->max);
			assert_non_null(row->def);
		}
	}
	assert_true(n >= 75);
	assert_null(orch_setting_at(n));
	assert_null(orch_setting_at(SIZE_MAX));
}

static void table__default_runtime_offers_every_runtime(void **state)
{
	char names[256] = "";

	(void)state;
	for (size_t i = 0; rt_known_at(i); i++) {
		strcat(names, i ? " " : "");
		strcat(names, rt_known_at(i)->name);
	}
	assert_string_equal(orch_setting_at(index_of("default_runtime"))->words, names);
}

/* ---- defaults -------------------------------------------------------------------------------- */

static void defaults__are_those_of_the_contract(void **state)
{
	SBX_AUTO(orch_settings_freep) struct orch_settings *s = load_ok("", NULL);

	(void)state;
	assert_string_equal(s->default_runtime, "namespace");
	assert_string_equal(s->network_default, "deny_all");
	assert_string_equal(s->supported_spec_versions, "1.0,1.1");
	assert_string_equal(s->store_backend, "sqlite");
	assert_string_equal(s->default_image, "host");
	assert_true(s->enable_execution && s->background_execution && s->landlock && s->inotify);
	assert_true(s->api_unknown_fields);
	assert_false(s->fs_unknown_fields || s->egress_enforcement);
	assert_int_equal(s->idempotency_ttl_sec, 600);
	assert_int_equal(s->default_startup_timeout_sec, 20);
	assert_int_equal(s->cancel_grace_seconds, 5);
	assert_int_equal(s->run_claim_lease_sec, 30);
	assert_int_equal(s->max_log_bytes, 10485760);
	assert_int_equal(s->max_artifact_file_bytes, 67108864);
	assert_int_equal(s->max_artifact_total_bytes, 268435456);
	assert_int_equal(s->max_artifact_bytes_per_run_mb, 256);
	assert_int_equal(s->max_artifact_bytes_per_user_mb, 1024);
	assert_int_equal(s->queue_max_length, 100);
	assert_int_equal(s->queue_ttl_sec, 120);
	assert_int_equal(s->max_concurrent_runs, 8);
	assert_int_equal(s->warm_runners, 4);
	assert_int_equal(s->uid_base, 0x70000000);
	assert_int_equal(s->uid_range, 65536);
	assert_int_equal(s->stdin_max_bytes_default, 67108864);
	assert_int_equal(s->events_keep, 100000);
	assert_null(s->admins);
	assert_null(s->images);
	assert_null(s->image_dir);
	assert_null(s->cgroup_root);
	assert_null(s->state_dir);
}

static void defaults__tiers_are_those_of_the_reference(void **state)
{
	SBX_AUTO(orch_settings_freep) struct orch_settings *s = load_ok("", NULL);

	(void)state;
#define TIER(t, cpu, mem, sec, net, ws, pids, nofile)                                              \
	do {                                                                                       \
		assert_true(s->tier_##t##_max_cpu == (cpu));                                       \
		assert_int_equal(s->tier_##t##_max_mem_mb, mem);                                   \
		assert_int_equal(s->tier_##t##_timeout_sec, sec);                                  \
		assert_string_equal(s->tier_##t##_network_policy, net);                            \
		assert_int_equal(s->tier_##t##_workspace_cap_mb, ws);                              \
		assert_int_equal(s->tier_##t##_pids_limit, pids);                                  \
		assert_int_equal(s->tier_##t##_ulimit_nofile, nofile);                             \
	} while (0)
	TIER(trusted, 8.0, 16384, 600, "allowlist", 512, 512, 4096);
	TIER(standard, 4.0, 8192, 300, "deny_all", 256, 256, 1024);
	TIER(untrusted, 1.0, 1024, 60, "deny_all", 64, 64, 256);
#undef TIER
}

static void defaults__have_that_origin(void **state)
{
	SBX_AUTO(orch_settings_freep) struct orch_settings *s = load_ok("", NULL);

	(void)state;
	for (size_t i = 0; orch_setting_at(i); i++)
		assert_string_equal(s->origins[i], "default");
}

/* ---- sources and their order ----------------------------------------------------------------- */

static void file__sets_values_of_every_type(void **state)
{
	SBX_AUTO(orch_settings_freep)
	struct orch_settings *s = load_ok("# comment\n\n[sandbox]\nqueue_ttl_sec = 7\n"
					  "max_cpu: 2.5\ninotify = NO\ndefault_image = deb  # why\n"
					  "state_dir=/srv/x ; note\n",
					  NULL);

	(void)state;
	assert_int_equal(s->queue_ttl_sec, 7);
	assert_true(s->max_cpu == 2.5);
	assert_false(s->inotify);
	assert_string_equal(s->default_image, "deb");
	assert_string_equal(s->state_dir, "/srv/x");
	origin_is(s, "queue_ttl_sec", "file 4");
	origin_is(s, "max_cpu", "file 5");
	origin_is(s, "default_runtime", "default");
}

static void file__accepts_the_section_of_the_reference(void **state)
{
	SBX_AUTO(orch_settings_freep)
	struct orch_settings *s = load_ok("[Sandbox]\r\nqueue_ttl_sec = 9\r\n", NULL);

	(void)state;
	assert_int_equal(s->queue_ttl_sec, 9);
}

static void file__last_line_needs_no_newline(void **state)
{
	SBX_AUTO(orch_settings_freep)
	struct orch_settings *s = load_ok("[sandbox]\nqueue_ttl_sec = 11", NULL);

	(void)state;
	assert_int_equal(s->queue_ttl_sec, 11);
}

static void file__lists_go_on_in_indented_lines(void **state)
{
	SBX_AUTO(orch_settings_freep)
	struct orch_settings *s = load_ok("[sandbox]\nadmins = ann,\n    bob,\n    # no one else\n"
					  "\tcarl\nqueue_ttl_sec = 8\n",
					  NULL);

	(void)state;
	assert_string_equal(s->admins, "ann,bob,carl");
	origin_is(s, "admins", "file 2");
	assert_int_equal(s->queue_ttl_sec, 8);
}

static void file__may_be_missing_only_when_not_asked_for(void **state)
{
	struct orch_settings *s = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;

	(void)state;
	assert_int_equal(orch_settings_load("/tmp/sbx-no-such-file.conf", NULL, 0, &s, &e),
			 -SBX_E_INVALID_CONFIG);
	assert_non_null(strstr(e.message, "/tmp/sbx-no-such-file.conf"));
	if (access("/etc/sandboxfs/sandboxfs.conf", F_OK) == 0)
		return;
	sbx_error_clear(&e);
	assert_int_equal(orch_settings_load(NULL, NULL, 0, &s, &e), 0);
	assert_null(orch_settings_free(s));
}

static void environment__wins_over_the_file(void **state)
{
	struct orch_settings *s;

	(void)state;
	(void)setenv("SANDBOX_QUEUE_TTL_SEC", "33", 1);
	s = load_ok("[sandbox]\nqueue_ttl_sec = 7\nmax_cpu = 2\n", NULL);
	(void)unsetenv("SANDBOX_QUEUE_TTL_SEC");
	assert_int_equal(s->queue_ttl_sec, 33);
	origin_is(s, "queue_ttl_sec", "environment");
	origin_is(s, "max_cpu", "file 3");
	(void)orch_settings_free(s);
}

static void environment__empty_is_unset(void **state)
{
	struct orch_settings *s;

	(void)state;
	(void)setenv("SANDBOX_QUEUE_TTL_SEC", "", 1);
	s = load_ok("[sandbox]\nqueue_ttl_sec = 7\n", NULL);
	(void)unsetenv("SANDBOX_QUEUE_TTL_SEC");
	assert_int_equal(s->queue_ttl_sec, 7);
	(void)orch_settings_free(s);
}

static void environment__unknown_variable_is_none_of_ours(void **state)
{
	(void)state;
	(void)setenv("SANDBOX_NO_SUCH_THING", "1", 1);
	(void)orch_settings_free(load_ok("", NULL));
	(void)unsetenv("SANDBOX_NO_SUCH_THING");
}

static void command_line__wins_over_all(void **state)
{
	struct orch_settings *s;

	(void)state;
	(void)setenv("SANDBOX_QUEUE_TTL_SEC", "33", 1);
	s = load_ok("[sandbox]\nqueue_ttl_sec = 7\n", "queue_ttl_sec=44");
	(void)unsetenv("SANDBOX_QUEUE_TTL_SEC");
	assert_int_equal(s->queue_ttl_sec, 44);
	origin_is(s, "queue_ttl_sec", "command line");
	(void)orch_settings_free(s);
}

/* ---- values ---------------------------------------------------------------------------------- */

static void values__booleans(void **state)
{
	static const struct {
		const char *text;
		bool value;
	} rows[] = {
		{ "true", true },   { "TRUE", true }, { "1", true },  { "yes", true },
		{ "on", true },	    { "y", true },    { "0", false }, { "false", false },
		{ " Off ", false }, { "no", false },  { "N", false },
	};
	char text[64];

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		SBX_AUTO(orch_settings_freep) struct orch_settings *s = NULL;

		(void)snprintf(text, sizeof(text), "inotify=%s", rows[i].text);
		s = load_ok("", text);
		assert_int_equal(s->inotify, rows[i].value);
	}
}

static void values__lists_are_kept_without_spaces(void **state)
{
	static const struct {
		const char *text, *value;
	} rows[] = {
		{ "admins=a, b ,c", "a,b,c" },	    { "admins=a,,b,", "a,b" },
		{ "admins=[\"a\", \"b\"]", "a,b" }, { "admins=a,b,a", "a,b" },
		{ "admins=ab,a", "ab,a" },
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		SBX_AUTO(orch_settings_freep)
		struct orch_settings *s = load_ok("", rows[i].text);

		assert_string_equal(s->admins, rows[i].value);
	}
}

static void values__an_empty_list_is_null(void **state)
{
	SBX_AUTO(orch_settings_freep) struct orch_settings *s = load_ok("", "admins=");
	SBX_AUTO(orch_settings_freep) struct orch_settings *t = load_ok("", "admins=[]");

	(void)state;
	assert_null(s->admins);
	assert_null(t->admins);
}

static void values__maps_keep_their_order(void **state)
{
	SBX_AUTO(orch_settings_freep)
	struct orch_settings *s = load_ok("", "images=python:3.11-slim=/srv/py, py=a=b,p=host");

	(void)state;
	assert_string_equal(s->images, "python:3.11-slim=/srv/py,py=a=b,p=host");
}

/* ---- showing --------------------------------------------------------------------------------- */

static void print__shows_every_setting_with_its_origin(void **state)
{
	SBX_AUTO(orch_settings_freep)
	struct orch_settings *s = load_ok("[sandbox]\nmax_cpu = 3\n", "queue_ttl_sec=44");
	sbx_autobuf out = SBX_BUF_INIT(64 << 10);
	size_t lines = 0, rows = 0;

	(void)state;
	orch_settings_print(s, &out);
	assert_false(sbx_buf_failed(&out));
	for (const char *p = out.data; *p; p++)
		lines += *p == '\n';
	while (orch_setting_at(rows))
		rows++;
	assert_int_equal(lines, rows);
	assert_non_null(strstr(out.data, "\nmax_cpu = 3.0  # file 2\n"));
	assert_non_null(strstr(out.data, "\nqueue_ttl_sec = 44  # command line\n"));
	assert_non_null(strstr(out.data, "\nadmins =   # default\n"));
	assert_memory_equal(out.data, "default_runtime = namespace  # default\n", 39);
}

static void print__reads_back_as_a_file(void **state)
{
	SBX_AUTO(orch_settings_freep)
	struct orch_settings *s = load_ok("[sandbox]\nmax_cpu = 0.3\nadmins = a, b\n"
					  "images = x=/y\nstate_dir = /srv/s\ninotify = 0\n",
					  NULL);
	SBX_AUTO(orch_settings_freep) struct orch_settings *t = NULL;
	sbx_autobuf first = SBX_BUF_INIT(64 << 10), second = SBX_BUF_INIT(64 << 10);

	(void)state;
	sbx_buf_puts(&first, "[sandbox]\n");
	orch_settings_print(s, &first);
	t = load_ok(first.data, NULL);
	for (size_t i = 0; orch_setting_at(i); i++) {
		free(t->origins[i]);
		t->origins[i] = strdup(s->origins[i]);
	}
	sbx_buf_puts(&second, "[sandbox]\n");
	orch_settings_print(t, &second);
	assert_string_equal(first.data, second.data);
}

/* ---- docs/configuration.md ------------------------------------------------------------------- */

static void words_text(const char *words, char out[256])
{
	size_t n = 0;

	for (; words && *words && n < 253; words++) {
		if (*words == ' ')
			out[n++] = ',';
		out[n++] = *words;
	}
	out[n] = '\0';
}

static void allowed_text(const struct orch_setting_info *row, char out[300])
{
	static const char *const forms[] = {
		[ORCH_FORM_PLAIN] = "text",
		[ORCH_FORM_LIST] = "list",
		[ORCH_FORM_MAP] = "list of alias=target",
		[ORCH_FORM_PATH] = "absolute path",
		[ORCH_FORM_SOCKET] = "absolute path, or unix:// and one",
	};
	char words[256];

	words_text(row->words, words);
	if (row->type == ORCH_SET_INT)
		(void)snprintf(out, 300, "%.0f to %.0f", row->min, row->max);
	else if (row->type == ORCH_SET_NUMBER)
		(void)snprintf(out, 300, "%g to %g", row->min, row->max);
	else if (row->type == ORCH_SET_BOOL)
		(void)snprintf(out, 300, "true, false");
	else if (row->form == ORCH_FORM_WORD)
		(void)snprintf(out, 300, "%s", words);
	else if (row->words)
		(void)snprintf(out, 300, "list of %s", words);
	else
		(void)snprintf(out, 300, "%s", forms[row->form]);
}

/* Every setting has exactly its row in the document, in order, and there is no other row. */
static void document__matches_the_table_both_ways(void **state)
{
	const char *root = getenv("SBX_SOURCE_ROOT");
	char path[4096], allowed[300], row[1024], def[300];
	sbx_autofree char *text = NULL;
	char *rest, *line;
	size_t i = 0;

	(void)state;
	assert_non_null(root);
	(void)snprintf(path, sizeof(path), "%s/docs/configuration.md", root);
	assert_int_equal(sbx_read_file(AT_FDCWD, path, 1 << 20, &text, NULL), 0);
	rest = text;
	while ((line = strsep(&rest, "\n"))) {
		const struct orch_setting_info *info = orch_setting_at(i);

		const char *variable = strstr(line, "` | `");

		/* Variables are in capitals, keys of other tables are not. */
		if (strncmp(line, "| `", 3) != 0 || !variable || !isupper(variable[5]))
			continue;
		if (!info)
			fail_msg("docs/configuration.md has a row too many: %s", line);
		allowed_text(info, allowed);
		(void)snprintf(def, sizeof(def), info->def ? "`%s`" : "unset", info->def);
		(void)snprintf(row, sizeof(row), "| `%s` | `%s` | %s | %s | %s |", info->key,
			       info->env, def, allowed, info->doc);
		assert_string_equal(line, row);
		i++;
	}
	if (orch_setting_at(i))
		fail_msg("docs/configuration.md lacks %s", orch_setting_at(i)->key);
}

/* What differs from the reference is explained, and the table of differences tells our defaults. */
static void document__explains_the_defaults_that_differ(void **state)
{
	static const char *const keys[] = {
		"default_runtime",
		"enable_execution",
		"background_execution",
		"store_backend",
		"default_exec_timeout_sec",
		"max_artifact_bytes_per_run_mb",
		"max_artifact_bytes_per_user_mb",
	};
	const char *root = getenv("SBX_SOURCE_ROOT");
	char path[4096], row[256];
	sbx_autofree char *text = NULL;
	const char *differences;

	(void)state;
	assert_non_null(root);
	(void)snprintf(path, sizeof(path), "%s/docs/configuration.md", root);
	assert_int_equal(sbx_read_file(AT_FDCWD, path, 1 << 20, &text, NULL), 0);
	differences = strstr(text, "| Key | Reference | Here | Why |");
	assert_non_null(differences);
	for (size_t i = 0; i < SBX_COUNT(keys); i++) {
		const char *at;

		(void)snprintf(row, sizeof(row), "| `%s` | ", keys[i]);
		at = strstr(differences, row);
		if (!at)
			fail_msg("no reason for %s", keys[i]);
		(void)snprintf(row, sizeof(row), " | `%s` | ",
			       orch_setting_at(index_of(keys[i]))->def);
		assert_true(strstr(at, row) && strstr(at, row) < strchr(at, '\n'));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(table__names_follow_one_rule),
		cmocka_unit_test(table__names_are_distinct),
		cmocka_unit_test(table__every_row_is_complete),
		cmocka_unit_test(table__default_runtime_offers_every_runtime),
		cmocka_unit_test(defaults__are_those_of_the_contract),
		cmocka_unit_test(defaults__tiers_are_those_of_the_reference),
		cmocka_unit_test(defaults__have_that_origin),
		cmocka_unit_test(file__sets_values_of_every_type),
		cmocka_unit_test(file__accepts_the_section_of_the_reference),
		cmocka_unit_test(file__last_line_needs_no_newline),
		cmocka_unit_test(file__lists_go_on_in_indented_lines),
		cmocka_unit_test(file__may_be_missing_only_when_not_asked_for),
		cmocka_unit_test(environment__wins_over_the_file),
		cmocka_unit_test(environment__empty_is_unset),
		cmocka_unit_test(environment__unknown_variable_is_none_of_ours),
		cmocka_unit_test(command_line__wins_over_all),
		cmocka_unit_test(values__booleans),
		cmocka_unit_test(values__lists_are_kept_without_spaces),
		cmocka_unit_test(values__an_empty_list_is_null),
		cmocka_unit_test(values__maps_keep_their_order),
		cmocka_unit_test(print__shows_every_setting_with_its_origin),
		cmocka_unit_test(print__reads_back_as_a_file),
		cmocka_unit_test(document__matches_the_table_both_ways),
		cmocka_unit_test(document__explains_the_defaults_that_differ),
	};

	return cmocka_run_group_tests(tests, make_conf, remove_conf);
}
