/* SPDX-License-Identifier: Apache-2.0 */
/* Making, emptying and freeing a spec, by the table. */
#include "mountspec/spec.h"

#include <stdlib.h>
#include <string.h>

static void clear_string(struct ms_run_spec *s, const struct ms_row *row)
{
	char **string = ms_string_of(s, row);

	free(*string);
	*string = NULL;
}

static void clear_int(struct ms_run_spec *s, const struct ms_row *row)
{
	*ms_int_of(s, row) = -1;
}

static void clear_number(struct ms_run_spec *s, const struct ms_row *row)
{
	*ms_number_of(s, row) = -1.0;
}

static void clear_bool(struct ms_run_spec *s, const struct ms_row *row)
{
	*ms_bool_of(s, row) = false;
}

static void clear_strings(struct ms_run_spec *s, const struct ms_row *row)
{
	char ***list = ms_strings_of(s, row);
	size_t *n = ms_count_of(s, row);

	for (size_t i = 0; *list && i < *n; i++)
		free((*list)[i]);
	free(*list);
	*list = NULL;
	*n = 0;
}

static void clear_pairs(struct ms_run_spec *s, const struct ms_row *row)
{
	struct ms_pair **list = ms_pairs_of(s, row);
	size_t *n = ms_count_of(s, row);

	for (size_t i = 0; *list && i < *n; i++) {
		free((*list)[i].key);
		free((*list)[i].value);
	}
	free(*list);
	*list = NULL;
	*n = 0;
}

static void clear_files(struct ms_run_spec *s, const struct ms_row *row)
{
	struct ms_file **list = ms_files_of(s, row);
	size_t *n = ms_count_of(s, row);

	for (size_t i = 0; *list && i < *n; i++) {
		free((*list)[i].path);
		free((*list)[i].data);
	}
	free(*list);
	*list = NULL;
	*n = 0;
}

static void clear_bytes(struct ms_run_spec *s, const struct ms_row *row)
{
	uint8_t **data = ms_bytes_of(s, row);

	free(*data);
	*data = NULL;
	*ms_count_of(s, row) = 0;
}

/* The members of a group have rows of their own. */
static void clear_group(struct ms_run_spec *s, const struct ms_row *row)
{
	(void)s;
	(void)row;
}

static void (*const clears[])(struct ms_run_spec *s, const struct ms_row *row) = {
	[MS_STRING] = clear_string, [MS_ENUM] = clear_string, [MS_INT] = clear_int,
	[MS_NUMBER] = clear_number, [MS_BOOL] = clear_bool,   [MS_STRINGS] = clear_strings,
	[MS_STRMAP] = clear_pairs,  [MS_FILES] = clear_files, [MS_BYTES] = clear_bytes,
	[MS_GROUP] = clear_group,
};

void ms_clear(struct ms_run_spec *s, const struct ms_row *row)
{
	clears[row->info.type](s, row);
}

/* What a document of any kind owns is a member that the run's table has. */
struct ms_run_spec *ms_run_free(struct ms_run_spec *s)
{
	for (size_t i = 1; s && i < ms_run_doc.n; i++)
		ms_clear(s, &ms_run_doc.rows[i]);
	free(s);
	return NULL;
}

/* The default of the table, which is a JSON scalar. */
static int fill_default(struct ms_run_spec *s, const struct ms_row *row)
{
	const char *def = row->info.def;
	char **string;

	if (strcmp(def, "null") == 0)
		return 0;
	if (row->info.type == MS_INT) {
		*ms_int_of(s, row) = strtoll(def, NULL, 10);
	} else if (row->info.type == MS_BOOL) {
		*ms_bool_of(s, row) = strcmp(def, "true") == 0;
	} else if (row->info.type == MS_STRING || row->info.type == MS_ENUM) {
		string = ms_string_of(s, row);
		*string = strndup(def + 1, strlen(def) - 2);
		return *string ? 0 : -1;
	}
	return 0;
}

struct ms_run_spec *ms_new(const struct ms_doc *doc, bool defaults)
{
	ms_autorun struct ms_run_spec *s = calloc(1, sizeof(*s));

	/* Members that this kind of document does not have are without a value, too. */
	for (size_t i = 1; s && i < ms_run_doc.n; i++)
		ms_clear(s, &ms_run_doc.rows[i]);
	for (size_t i = 1; s && defaults && i < doc->n; i++)
		if (fill_default(s, &doc->rows[i]) < 0)
			return NULL;
	return sbx_steal(&s);
}
