/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this folder share. Not for other folders: they include mountspec.h. */
#ifndef SBX_MOUNTSPEC_SPEC_H
#define SBX_MOUNTSPEC_SPEC_H

#include <json-c/json.h>

#include "base/buf.h"
#include "mountspec/mountspec.h"

enum {
	MS_SHOWN = 80,	/* bytes that ms_quote needs */
	MS_WHERE = 160, /* bytes that a field's path needs */
};

struct ms_row;
/* A kind of document, which is its table. The struct is the same for all. */
struct ms_doc {
	const struct ms_row *rows; /* row 0 is empty */
	size_t n;
	const struct ms_row *key; /* idempotency_key, which idempotency does not compare */
};
extern const struct ms_doc ms_run_doc, ms_session_doc;

/* A rule about one field's value, or about fields together. Runs when all fields are read. */
typedef int ms_check(struct ms_run_spec *s, const struct ms_row *row, const struct ms_options *opts,
		     struct sbx_error *e);

struct ms_row {
	struct ms_field_info info;
	uint64_t bit;	   /* in present and null of struct ms_run_spec */
	size_t off, off_n; /* of the member, and of its count, in struct ms_run_spec */
	ms_check *check;
};

/* The row called `name` directly below the group `parent` (NULL: the document). */
const struct ms_row *ms_find_row(const struct ms_doc *doc, const struct ms_row *parent,
				 const char *name);
/* Is row directly below parent? If so its name there ("cpu"), else NULL. */
const char *ms_leaf(const struct ms_row *parent, const struct ms_row *row);
/* The name that was probably meant, NULL when none is near. Static. */
const char *ms_suggest(const struct ms_doc *doc, const struct ms_row *parent, const char *name);
bool ms_is_choice(const char *choices, const char *word);

/* The row's member. Each is for rows of its types only. */
char **ms_string_of(struct ms_run_spec *s, const struct ms_row *row);
int64_t *ms_int_of(struct ms_run_spec *s, const struct ms_row *row);
double *ms_number_of(struct ms_run_spec *s, const struct ms_row *row);
bool *ms_bool_of(struct ms_run_spec *s, const struct ms_row *row);
char ***ms_strings_of(struct ms_run_spec *s, const struct ms_row *row);
struct ms_pair **ms_pairs_of(struct ms_run_spec *s, const struct ms_row *row);
struct ms_file **ms_files_of(struct ms_run_spec *s, const struct ms_row *row);
uint8_t **ms_bytes_of(struct ms_run_spec *s, const struct ms_row *row);
size_t *ms_count_of(struct ms_run_spec *s, const struct ms_row *row);

/* A new spec with every default in place (or, for a stored text, with nothing). NULL: no memory. */
struct ms_run_spec *ms_new(const struct ms_doc *doc, bool defaults);
/* Frees the row's value and leaves none. */
void ms_clear(struct ms_run_spec *s, const struct ms_row *row);
/* Has the row a value? A group has one when a member has. Only looks, although s is writable. */
bool ms_is_set(const struct ms_doc *doc, struct ms_run_spec *s, const struct ms_row *row);
/* SPEC_TOO_LARGE when a text of len bytes is longer than max. */
int ms_check_size(size_t len, size_t max, struct sbx_error *e);
/* Runs the checks of all rows. */
int ms_check_all(const struct ms_doc *doc, struct ms_run_spec *s, const struct ms_options *opts,
		 struct sbx_error *e);

/* A refusal as message and details. Either problem, or found and allowed, or all three. */
struct ms_refusal {
	enum sbx_code code; /* 0: INVALID_SPEC */
	const char *field;
	const char *problem; /* a phrase that goes on after the field's path */
	const char *found, *allowed;
	const char *did_you_mean;
	const char *message; /* instead of the one made from the above */
	const char *path;    /* of an inline file, which is number `index` */
	size_t index;
};
int ms_refuse(struct sbx_error *e, const struct ms_refusal *why);
int ms_no_memory(struct sbx_error *e);
/* The text in quotes, cut to a length that suits a message, on one line. Returns out. */
char *ms_quote(char out[MS_SHOWN], const char *s);
/* What values a row allows, in words; and the same with the type. Both return out. */
char *ms_allowed(char out[MS_WHERE], const struct ms_row *row);
char *ms_wanted(char out[MS_WHERE], const struct ms_row *row);
/* "env.NAME", made fit for a message. Returns out. */
char *ms_entry_path(char out[MS_WHERE], const struct ms_row *row, const char *key);
/* "files[3]" and, with a member, "files[3].path". Returns out. */
char *ms_item_path(char out[MS_WHERE], const struct ms_row *row, size_t i, const char *member);

ms_check ms_check_version, ms_check_blank, ms_check_null, ms_check_image, ms_check_command,
	ms_check_env, ms_check_cwd, ms_check_allowlist, ms_check_files, ms_check_patterns,
	ms_check_name, ms_check_labels, ms_check_key;

#endif
