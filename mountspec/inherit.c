/* SPDX-License-Identifier: Apache-2.0 */
/* What a run takes from its session. Both are the same struct, so a value goes to its own place. */
#include "mountspec/spec.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static int copy_string(struct ms_run_spec *to, struct ms_run_spec *from, const struct ms_row *row)
{
	char **string = ms_string_of(to, row);

	*string = strdup(*ms_string_of(from, row));
	return *string ? 0 : -1;
}

static int copy_int(struct ms_run_spec *to, struct ms_run_spec *from, const struct ms_row *row)
{
	*ms_int_of(to, row) = *ms_int_of(from, row);
	return 0;
}

static int copy_number(struct ms_run_spec *to, struct ms_run_spec *from, const struct ms_row *row)
{
	*ms_number_of(to, row) = *ms_number_of(from, row);
	return 0;
}

static int copy_pairs(struct ms_run_spec *to, struct ms_run_spec *from, const struct ms_row *row)
{
	const struct ms_pair *list = *ms_pairs_of(from, row);
	struct ms_pair *copy = calloc(*ms_count_of(from, row), sizeof(*copy));

	if (!copy)
		return -1;
	*ms_pairs_of(to, row) = copy;
	*ms_count_of(to, row) = *ms_count_of(from, row);
	for (size_t i = 0; i < *ms_count_of(to, row); i++) {
		copy[i].key = strdup(list[i].key);
		copy[i].value = strdup(list[i].value);
		if (!copy[i].key || !copy[i].value)
			return -1;
	}
	return 0;
}

/* The types that inherited fields have. */
static int (*const copies[])(struct ms_run_spec *to, struct ms_run_spec *from,
			     const struct ms_row *row) = {
	[MS_STRING] = copy_string, [MS_ENUM] = copy_string,  [MS_INT] = copy_int,
	[MS_NUMBER] = copy_number, [MS_STRMAP] = copy_pairs,
};

int ms_run_inherit(struct ms_run_spec *run, const struct ms_run_spec *session, struct sbx_error *e)
{
	struct ms_run_spec from = *session; /* the accessors give writable members */

	for (size_t i = 1; i < ms_run_doc.n; i++) {
		const struct ms_row *row = &ms_run_doc.rows[i];

		if (!row->info.inherit || run->present & row->bit)
			continue;
		assert((size_t)row->info.type < SBX_COUNT(copies) && copies[row->info.type]);
		/* The run's default goes also where the session has no value: its null is what
		 * the run shall have. */
		ms_clear(run, row);
		if (ms_is_set(&ms_run_doc, &from, row) &&
		    copies[row->info.type](run, &from, row) < 0)
			return ms_no_memory(e);
	}
	return 0;
}
