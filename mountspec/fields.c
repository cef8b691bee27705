/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of fields as data, and how to find a row and its member. */
#include "mountspec/spec.h"

#include <stdlib.h>
#include <string.h>

#include "base/fs.h"

#define NO_MAX 0x1p63
enum { TAG_MAX = 1024 };
#define RUNTIMES     "namespace docker firecracker lima qemu vz_linux vz_macos seatbelt worktree"
#define TRUST_LEVELS "trusted standard untrusted"

#define ROW(field, name_, type_, member, count, entries_, bytes_, check_, unit_, min_, max_, def_, \
	    choices_, since_, inherit_, doc_)                                                      \
	[field] = {                                                                                \
		.info = { .name = name_,                                                           \
			  .type = type_,                                                           \
			  .unit = unit_,                                                           \
			  .min = min_,                                                             \
			  .max = max_,                                                             \
			  .bytes = bytes_,                                                         \
			  .entries = entries_,                                                     \
			  .def = def_,                                                             \
			  .choices = choices_,                                                     \
			  .since = since_,                                                         \
			  .inherit = inherit_,                                                     \
			  .doc = doc_ },                                                           \
		.bit = UINT64_C(1) << (field),                                                     \
		.off = offsetof(struct ms_run_spec, member),                                       \
		.off_n = offsetof(struct ms_run_spec, count),                                      \
		.check = check_,                                                                   \
	},

static const struct ms_row run_rows[MS_F__COUNT] = {
#define X(sym, ...) ROW(MS_F_##sym, __VA_ARGS__)
#include "mountspec/fields.def"
#undef X
};

const struct ms_doc ms_run_doc = { .rows = run_rows,
				   .n = MS_F__COUNT,
				   .key = &run_rows[MS_F_IDEMPOTENCY_KEY] };

static const struct ms_row session_rows[MS_S__COUNT] = {
#define X(sym, ...) ROW(MS_S_##sym, __VA_ARGS__)
#include "mountspec/session_fields.def"
#undef X
};

const struct ms_doc ms_session_doc = { .rows = session_rows,
				       .n = MS_S__COUNT,
				       .key = &session_rows[MS_S_IDEMPOTENCY_KEY] };

const struct ms_field_info *ms_field_info(enum ms_field f)
{
	return f > MS_F_NONE && f < MS_F__COUNT ? &run_rows[f].info : NULL;
}

const struct ms_field_info *ms_session_field_info(enum ms_session_field f)
{
	return f > MS_S_NONE && f < MS_S__COUNT ? &session_rows[f].info : NULL;
}

const char *ms_leaf(const struct ms_row *parent, const struct ms_row *row)
{
	const char *name = row->info.name;
	size_t n;

	if (parent) {
		n = strlen(parent->info.name);
		if (strncmp(name, parent->info.name, n) != 0 || name[n] != '.')
			return NULL;
		name += n + 1;
	}
	return strchr(name, '.') ? NULL : name;
}

const struct ms_row *ms_find_row(const struct ms_doc *doc, const struct ms_row *parent,
				 const char *name)
{
	const char *leaf;

	for (size_t i = 1; i < doc->n; i++) {
		leaf = ms_leaf(parent, &doc->rows[i]);
		if (leaf && strcmp(leaf, name) == 0)
			return &doc->rows[i];
	}
	return NULL;
}

bool ms_is_choice(const char *choices, const char *word)
{
	size_t n = strlen(word), len;

	for (const char *p = choices; *p; p += len) {
		p += strspn(p, " ");
		len = strcspn(p, " ");
		if (len == n && memcmp(p, word, n) == 0)
			return n > 0;
	}
	return false;
}

enum { NAME_MAX_COMPARED = 40, NEAR = 2 };

static size_t least(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* Edits between two short names, an exchange of neighbours being one edit. */
static size_t distance(const char *a, const char *b)
{
	size_t n = strlen(a), m = strlen(b);
	size_t row[NAME_MAX_COMPARED + 1][NAME_MAX_COMPARED + 1];

	if (n > NAME_MAX_COMPARED || m > NAME_MAX_COMPARED)
		return SIZE_MAX;
	for (size_t i = 0; i <= n; i++)
		row[i][0] = i;
	for (size_t j = 0; j <= m; j++)
		row[0][j] = j;
	for (size_t i = 1; i <= n; i++) {
		for (size_t j = 1; j <= m; j++) {
			row[i][j] = least(least(row[i - 1][j], row[i][j - 1]) + 1,
					  row[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				row[i][j] = least(row[i][j], row[i - 2][j - 2] + 1);
		}
	}
	return row[n][m];
}

const char *ms_suggest(const struct ms_doc *doc, const struct ms_row *parent, const char *name)
{
	const char *best = NULL, *leaf, *dot;
	size_t best_distance = NEAR + 1, d;

	for (size_t i = 1; i < doc->n; i++) {
		leaf = ms_leaf(parent, &doc->rows[i]);
		d = leaf ? distance(name, leaf) : SIZE_MAX;
		if (d < best_distance && d < strlen(name)) {
			best = doc->rows[i].info.name;
			best_distance = d;
		}
	}
	/* The right name on the wrong level: "memory_mb" belongs into "resources". */
	for (size_t i = 1; i < doc->n && !best; i++) {
		dot = strrchr(doc->rows[i].info.name, '.');
		leaf = dot ? dot + 1 : doc->rows[i].info.name;
		if (strcmp(leaf, name) == 0)
			best = doc->rows[i].info.name;
	}
	return best;
}

/* The one place where an offset of the table becomes a typed pointer. */
static void *member(struct ms_run_spec *s, size_t off)
{
	return (char *)s + off;
}

char **ms_string_of(struct ms_run_spec *s, const struct ms_row *row)
{
	return member(s, row->off);
}

int64_t *ms_int_of(struct ms_run_spec *s, const struct ms_row *row)
{
	return member(s, row->off);
}

double *ms_number_of(struct ms_run_spec *s, const struct ms_row *row)
{
	return member(s, row->off);
}

bool *ms_bool_of(struct ms_run_spec *s, const struct ms_row *row)
{
	return member(s, row->off);
}

char ***ms_strings_of(struct ms_run_spec *s, const struct ms_row *row)
{
	return member(s, row->off);
}

struct ms_pair **ms_pairs_of(struct ms_run_spec *s, const struct ms_row *row)
{
	return member(s, row->off);
}

struct ms_file **ms_files_of(struct ms_run_spec *s, const struct ms_row *row)
{
	return member(s, row->off);
}

uint8_t **ms_bytes_of(struct ms_run_spec *s, const struct ms_row *row)
{
	return member(s, row->off);
}

size_t *ms_count_of(struct ms_run_spec *s, const struct ms_row *row)
{
	return member(s, row->off_n);
}
