/* SPDX-License-Identifier: Apache-2.0 */
/* The table of nodes is sound, is walked right, and docs/mount.md and README say what it says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/fs.h"
#include "mountspec/tree.h"

/* ---- the table ------------------------------------------------------------------------------- */

static void table__parents_are_directories_that_come_first(void **state)
{
	(void)state;
	assert_int_equal(ms_node(MS_N_ROOT)->parent, MS_N_NONE);
	for (int i = MS_N_ROOT; i < MS_N__COUNT; i++) {
		const struct ms_node *n = ms_node((enum ms_node_id)i);

		assert_non_null(n);
		assert_true(n->parent < (enum ms_node_id)i);
		if (i != MS_N_ROOT)
			assert_int_equal(ms_node(n->parent)->kind, MS_K_DIR);
	}
}

static void table__names_are_names(void **state)
{
	(void)state;
	for (int i = MS_N_ROOT + 1; i < MS_N__COUNT; i++) {
		const char *name = ms_node((enum ms_node_id)i)->name;

		assert_true(*name && strlen(name) <= 255);
		assert_null(strchr(name, '/'));
		assert_string_not_equal(name, ".");
		assert_string_not_equal(name, "..");
		for (const char *p = name; *p; p++)
			assert_true(*p > ' ' && *p < 127);
	}
}

static void table__names_are_unique_in_their_directory(void **state)
{
	(void)state;
	for (int i = MS_N_ROOT + 1; i < MS_N__COUNT; i++) {
		const struct ms_node *a = ms_node((enum ms_node_id)i);

		for (int j = i + 1; j < MS_N__COUNT; j++) {
			const struct ms_node *b = ms_node((enum ms_node_id)j);

			assert_false(a->parent == b->parent && strcmp(a->name, b->name) == 0);
		}
	}
}

static void table__a_node_reads_if_it_has_a_view_and_takes_if_it_has_a_verb(void **state)
{
	(void)state;
	for (int i = MS_N_ROOT; i < MS_N__COUNT; i++) {
		const struct ms_node *n = ms_node((enum ms_node_id)i);
		bool readable = (n->mode & 0444) != 0, writable = (n->mode & 0222) != 0;

		if (n->kind == MS_K_DIR) {
			assert_true(n->view == MS_V_NONE && n->verb == MS_W_NONE);
			assert_true((n->mode & 0500) == 0500);
			/* Where all may make something, nobody removes what is another's. */
			assert_true((n->mode & 022) == 0 || (n->mode & 01000));
		} else if (n->kind == MS_K_LINK) {
			assert_true(n->view != MS_V_NONE && n->mode == 0777);
		} else {
			assert_int_equal(readable, n->view != MS_V_NONE);
			assert_int_equal(writable, n->verb != MS_W_NONE);
			assert_int_equal(n->mode & 0111, 0);
		}
	}
}

/* grep -r, find, tar and backup programs read all that is listed. */
static void table__what_waits_is_not_listed_and_all_else_is(void **state)
{
	(void)state;
	for (int i = MS_N_ROOT; i < MS_N__COUNT; i++) {
		const struct ms_node *n = ms_node((enum ms_node_id)i);

		/* Nor is a second name of what has another. */
		assert_int_equal(n->listed, n->kind != MS_K_STREAM && n->name[0] != '<');
		if (n->kind == MS_K_STREAM)
			assert_int_equal(n->name[0], '.');
	}
}

static void table__kinds_have_what_belongs_to_them(void **state)
{
	(void)state;
	for (int i = MS_N_ROOT + 1; i < MS_N__COUNT; i++) {
		const struct ms_node *n = ms_node((enum ms_node_id)i);

		assert_true(n->kind >= MS_K_DIR && n->kind <= MS_K_CONTROL);
		assert_true(n->kind != MS_K_CONTROL || n->verb != MS_W_NONE);
		assert_true(n->kind == MS_K_CONTROL || n->kind == MS_K_STREAM ||
			    n->verb == MS_W_NONE);
		assert_true(*n->doc);
	}
}

/* Nothing of one user or of the administrators may hang below a node that all may walk into and
 * have a wider audience than its directory. */
static void table__nobody_gets_more_than_the_directory_lets_in(void **state)
{
	(void)state;
	for (int i = MS_N_ROOT + 1; i < MS_N__COUNT; i++) {
		const struct ms_node *n = ms_node((enum ms_node_id)i), *up = ms_node(n->parent);

		if (up->who != MS_WHO_ALL) {
			assert_int_equal(n->who, up->who);
			assert_int_equal(up->mode & 077, 0);
		}
		if (n->kind == MS_K_DIR && n->who != MS_WHO_ALL)
			assert_int_equal(n->mode & 077, 0);
	}
}

static void table__states_apply_to_runs_only(void **state)
{
	(void)state;
	for (int i = MS_N_ROOT; i < MS_N__COUNT; i++)
		if (ms_node((enum ms_node_id)i)->when != MS_WHEN_ALWAYS)
			assert_int_equal(ms_node((enum ms_node_id)i)->parent, MS_N_RUN);
}

/* ---- walking --------------------------------------------------------------------------------- */

static void walk__outside_the_table_is_nothing(void **state)
{
	(void)state;
	assert_null(ms_node(MS_N_NONE));
	assert_null(ms_node(MS_N__COUNT));
	assert_null(ms_node((enum ms_node_id)255));
	assert_int_equal(ms_node_next(MS_N_README, MS_N_NONE), MS_N_NONE);
	assert_int_equal(ms_node_child(MS_N_README, "x"), MS_N_NONE);
}

static void walk__every_child_is_found_by_name_and_in_order(void **state)
{
	size_t seen = 0;

	(void)state;
	for (int up = MS_N_ROOT; up < MS_N__COUNT; up++) {
		enum ms_node_id at = MS_N_NONE, last = MS_N_NONE;

		while ((at = ms_node_next((enum ms_node_id)up, at)) != MS_N_NONE) {
			assert_int_equal(ms_node(at)->parent, up);
			assert_true(at > last);
			/* What stands between < and > is no name. */
			if (ms_node(at)->name[0] != '<')
				assert_int_equal(
					ms_node_child((enum ms_node_id)up, ms_node(at)->name), at);
			last = at;
			seen++;
		}
	}
	assert_int_equal(seen, MS_N__COUNT - 2); /* all but NONE and the root */
}

static void walk__a_fixed_name_wins_over_a_name_of_the_state(void **state)
{
	(void)state;
	assert_int_equal(ms_node_child(MS_N_RUNS, "new"), MS_N_RUNS_NEW);
	assert_int_equal(ms_node_child(MS_N_RUNS, "check"), MS_N_RUNS_CHECK);
	assert_int_equal(ms_node_child(MS_N_RUNS, "latest"), MS_N_RUNS_LATEST);
	assert_int_equal(ms_node_child(MS_N_RUNS, "anything"), MS_N_RUN);
	assert_int_equal(ms_node_child(MS_N_RUNS, "NEW"), MS_N_RUN);
	assert_int_equal(ms_node_child(MS_N_RUNTIMES, "docker.json"), MS_N_RUNTIME);
	assert_int_equal(ms_node_child(MS_N_ROOT, "anything"), MS_N_NONE);
	assert_int_equal(ms_node_child(MS_N_RUN, "statu"), MS_N_NONE);
	assert_int_equal(ms_node_child(MS_N_RUN, ""), MS_N_NONE);
}

static void path__is_spelled_from_the_root(void **state)
{
	static const struct {
		enum ms_node_id node;
		const char *path;
	} rows[] = { { MS_N_README, "/README" },
		     { MS_N_RUNS_NEW, "/runs/new" },
		     { MS_N_RUN, "/runs/<run>" },
		     { MS_N_RUN_WAIT, "/runs/<run>/.wait" },
		     { MS_N_RUNTIME, "/runtimes/<name>.json" },
		     { MS_N_SESS_RUN, "/sessions/<session>/runs/<run>" },
		     { MS_N_SHOT_META, "/sessions/<session>/snapshots/<snapshot>/meta.json" },
		     { MS_N_BY_PHASE_RUN, "/by/phase/<phase>/<run>" },
		     { MS_N_BY_LABEL_OF, "/by/label/<label>" },
		     { MS_N_BY_USER_RUN, "/by/user/<user>/<run>" },
		     { MS_N_ADMIN_QUEUE, "/admin/queue.json" } };

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		sbx_autobuf path = SBX_BUF_INIT(4096);

		ms_node_path(rows[i].node, &path);
		assert_string_equal(path.data, rows[i].path);
	}
}

/* ---- words as names -------------------------------------------------------------------------- */

static void word__has_one_name_and_comes_back(void **state)
{
	static const char *const rows[][2] = {
		{ "ci=17", "ci=17" },
		{ "a=b=c", "a=b=c" },
		{ "path=a/b", "path=a%2Fb" },
		{ "/=/", "%2F=%2F" },
		{ "%2F=", "%252F=" },
		{ ".", "%2E" },
		{ "..", "%2E%2E" },
		{ "...", "..." },
		{ ".=.", ".=." },
		{ " *?-\\", " *?-\\" },
		{ "a\tb\x7f", "a%09b%7F" },
		{ "\xc3\xa4=\xe6\xbc\xa2", "\xc3\xa4=\xe6\xbc\xa2" },
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		char name[MS_WORD_SIZE], word[MS_WORD_SIZE];

		assert_true(ms_word_name(rows[i][0], name));
		assert_string_equal(name, rows[i][1]);
		assert_true(ms_name_word(name, word));
		assert_string_equal(word, rows[i][0]);
	}
}

static void word__other_names_are_none(void **state)
{
	static const char *const rows[] = { "",	    "%",     "a%",  "a%2", "a%2f", "%41", "%00",
					    "a%2E", "%2E%2", "a/b", "%GG", "%-1",  "%25%" };
	char word[MS_WORD_SIZE];

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++)
		assert_false(ms_name_word(rows[i], word));
	assert_false(ms_name_word(".", word));
	assert_false(ms_name_word("..", word));
}

/* Every byte, and every length up to the longest that a name may have. */
static void word__of_any_bytes_and_length(void **state)
{
	char in[MS_WORD_SIZE + 8], name[MS_WORD_SIZE], word[MS_WORD_SIZE];

	(void)state;
	for (int c = 1; c < 256; c++) {
		bool escaped = c < ' ' || c == 0x7f || c == '/' || c == '%';

		for (size_t n = 1; n < sizeof(in); n++) {
			memset(in, c, n);
			in[n] = '\0';
			escaped = escaped || (c == '.' && n < 3);
			if (c == '.' && n >= 3)
				escaped = false;
			assert_int_equal(ms_word_name(in, name), n * (escaped ? 3 : 1) < 256);
			if (n * (escaped ? 3 : 1) >= 256)
				continue;
			assert_int_equal(strlen(name), n * (escaped ? 3 : 1));
			assert_null(strchr(name, '/'));
			assert_true(ms_name_word(name, word));
			assert_string_equal(word, in);
		}
	}
	assert_false(ms_word_name("", name));
}

/* ---- the texts ------------------------------------------------------------------------------- */

static void readme__has_a_line_for_every_node(void **state)
{
	sbx_autobuf text = SBX_BUF_INIT(1 << 20);
	size_t lines = 0;

	(void)state;
	ms_tree_readme(&text);
	assert_false(sbx_buf_failed(&text));
	for (int i = MS_N_ROOT + 1; i < MS_N__COUNT; i++) {
		const struct ms_node *n = ms_node((enum ms_node_id)i);
		sbx_autobuf line = SBX_BUF_INIT(4096), path = SBX_BUF_INIT(4096);

		ms_node_path((enum ms_node_id)i, &path);
		sbx_buf_printf(&line, "\n%c %-42s %s\n", n->listed ? ' ' : '+', path.data, n->doc);
		assert_non_null(strstr(text.data, line.data));
	}
	for (const char *p = text.data; (p = strpbrk(p, "\n")) != NULL; p++)
		lines += (p[1] == ' ' || p[1] == '+') && p[2] == ' ' && p[3] == '/';
	assert_int_equal(lines, MS_N__COUNT - 2);
	assert_true(strlen(text.data) == text.len);
}

static void add_escaped(struct sbx_buf *b, const char *text)
{
	for (; *text; text++) {
		if (*text == '|')
			sbx_buf_puts(b, "\\");
		sbx_buf_add(b, text, 1);
	}
}

static const char *const in_doc[MS_N__COUNT] = {
	[MS_N_RUN] = "ID",
	[MS_N_SESS_RUN] = "ID",
	[MS_N_BY_PHASE_RUN] = "ID",
	[MS_N_BY_LABEL_RUN] = "ID",
	[MS_N_BY_SESS_RUN] = "ID",
	[MS_N_BY_USER_RUN] = "ID",
	[MS_N_SESS_BY_ID] = "ID",
	[MS_N_SESS_WORK_LINK] = "workspace",
	[MS_N_RUNTIME] = "NAME.json",
	[MS_N_BY_PHASE_OF] = "PHASE",
	[MS_N_BY_LABEL_OF] = "KEY=VALUE",
};

/* "runs/ID/ctl" for /runs/<run>/ctl: angle brackets would be markup. */
static void add_doc_path(struct sbx_buf *b, enum ms_node_id id)
{
	const struct ms_node *n = ms_node(id);

	if (n->parent != MS_N_ROOT)
		add_doc_path(b, n->parent);
	if (strncmp(n->name, "<name>", 6) == 0)
		sbx_buf_printf(b, "NAME%s", n->name + 6);
	else
		sbx_buf_puts(b, in_doc[id]		    ? in_doc[id]
				: strcmp(n->name, "*") == 0 ? "NAME"
							    : n->name);
	if (n->kind == MS_K_DIR)
		sbx_buf_puts(b, "/");
}

static void doc__has_every_node_and_no_other(void **state)
{
	sbx_autofree char *doc = NULL;
	sbx_autoclose int dir = -1;
	const char *root = getenv("SBX_SOURCE_ROOT"), *end;
	size_t rows = 0;

	(void)state;
	assert_non_null(root);
	dir = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
	assert_true(dir >= 0);
	assert_int_equal(sbx_read_file(dir, "docs/mount.md", 1 << 20, &doc, NULL), 0);
	for (int i = MS_N_ROOT + 1; i < MS_N__COUNT; i++) {
		const struct ms_node *n = ms_node((enum ms_node_id)i);
		sbx_autobuf row = SBX_BUF_INIT(4096);

		sbx_buf_puts(&row, "\n| `");
		add_doc_path(&row, (enum ms_node_id)i);
		sbx_buf_printf(&row, "`%s | 0%o | ", n->listed ? "" : " +", (unsigned)n->mode);
		add_escaped(&row, n->doc);
		sbx_buf_puts(&row, " |\n");
		if (!strstr(doc, row.data))
			fail_msg("docs/mount.md lacks this line:%s", row.data);
	}
	end = strstr(doc, "\n## Submitting");
	assert_non_null(end);
	for (const char *p = doc; (p = strstr(p, "\n| `")) != NULL && p < end; p++)
		rows++;
	assert_int_equal(rows, MS_N__COUNT - 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(table__parents_are_directories_that_come_first),
		cmocka_unit_test(table__names_are_names),
		cmocka_unit_test(table__names_are_unique_in_their_directory),
		cmocka_unit_test(table__a_node_reads_if_it_has_a_view_and_takes_if_it_has_a_verb),
		cmocka_unit_test(table__what_waits_is_not_listed_and_all_else_is),
		cmocka_unit_test(table__kinds_have_what_belongs_to_them),
		cmocka_unit_test(table__nobody_gets_more_than_the_directory_lets_in),
		cmocka_unit_test(table__states_apply_to_runs_only),
		cmocka_unit_test(walk__outside_the_table_is_nothing),
		cmocka_unit_test(walk__every_child_is_found_by_name_and_in_order),
		cmocka_unit_test(walk__a_fixed_name_wins_over_a_name_of_the_state),
		cmocka_unit_test(path__is_spelled_from_the_root),
		cmocka_unit_test(word__has_one_name_and_comes_back),
		cmocka_unit_test(word__other_names_are_none),
		cmocka_unit_test(word__of_any_bytes_and_length),
		cmocka_unit_test(readme__has_a_line_for_every_node),
		cmocka_unit_test(doc__has_every_node_and_no_other),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
