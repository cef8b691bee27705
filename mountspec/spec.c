/* SPDX-License-Identifier: Apache-2.0 */
/* Making and freeing a run spec, by the table. */
#include "mountspec/spec.h"

#include <stdlib.h>
#include <string.h>

static void free_string(struct ms_run_spec *s, const struct ms_row *row)
{
	free(*ms_string_of(s, row));
}

static void free_strings(struct ms_run_spec *s, const struct ms_row *row)
{
	char **list = *ms_strings_of(s, row);

	for (size_t i = 0; list && i < *ms_count_of(s, row); i++)
		free(list[i]);
	free(list);
}

static void free_pairs(struct ms_run_spec *s, const struct ms_row *row)
{
	struct ms_pair *list = *ms_pairs_of(s, row);

	for (size_t i = 0; list && i < *ms_count_of(s, row); i++) {
		free(list[i].key);
		free(list[i].value);
	}
	free(list);
}

static void free_files(struct ms_run_spec *s, const struct ms_row *row)
{
	struct ms_file *list = *ms_files_of(s, row);

	for (size_t i = 0; list && i < *ms_count_of(s, row); i++) {
		free(list[i].path);
		free(list[i].data);
	}
	free(list);
}

static void free_bytes(struct ms_run_spec *s, const struct ms_row *row)
{
	free(*ms_bytes_of(s, row));
}

static void (*const frees[])(struct ms_run_spec *s, const struct ms_row *row) = {
	[MS_STRING] = free_string, [MS_ENUM] = free_string, [MS_INT] = NULL,
	[MS_NUMBER] = NULL,	   [MS_BOOL] = NULL,	    [MS_STRINGS] = free_strings,
	[MS_STRMAP] = free_pairs,  [MS_FILES] = free_files, [MS_BYTES] = free_bytes,
	[MS_GROUP] = NULL,
};

struct ms_run_spec *ms_run_free(struct ms_run_spec *s)
{
	for (size_t i = 1; s && i < MS_F__COUNT; i++) {
		const struct ms_row *row = ms_row((enum ms_field)i);

		if (frees[row->info.type])
			frees[row->info.type](s, row);
	}
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

struct ms_run_spec *ms_run_new(bool defaults)
{
	ms_autorun struct ms_run_spec *s = calloc(1, sizeof(*s));

	for (size_t i = 1; s && i < MS_F__COUNT; i++) {
		const struct ms_row *row = ms_row((enum ms_field)i);

		if (row->info.type == MS_INT)
			*ms_int_of(s, row) = -1;
		else if (row->info.type == MS_NUMBER)
			*ms_number_of(s, row) = -1.0;
		if (defaults && fill_default(s, row) < 0)
			return NULL;
	}
	return sbx_steal(&s);
}
