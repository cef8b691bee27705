/* SPDX-License-Identifier: Apache-2.0 */
/* Inline files: names that stay in the workspace and do not stand in each other's way. */
#include "mountspec/spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"

static int refuse_file(struct sbx_error *e, const struct ms_row *row, const struct ms_file *file,
		       size_t i, const char *problem)
{
	char where[MS_WHERE], shown[MS_SHOWN], phrase[2 * MS_WHERE];

	(void)snprintf(phrase, sizeof(phrase), "%s %.200s", ms_quote(shown, file->path), problem);
	return ms_refuse(e, &(struct ms_refusal){
				    .code = SBX_E_INVALID_INLINE_FILE,
				    .field = ms_item_path(where, row, i, "path"),
				    .problem = phrase,
				    .allowed = "a relative path below the workspace, each once",
				    .path = file->path,
				    .index = i });
}

/* Sorts '/' before every other byte, so that a file stands right before what would be in it. */
static int compare_paths(const void *a, const void *b)
{
	const struct ms_file *const *x = a, *const *y = b;
	const char *p = (*x)->path, *q = (*y)->path;
	int c, d;

	while (*p && *p == *q) {
		p++;
		q++;
	}
	c = *p == '/' ? 1 : *p ? (unsigned char)*p + 1 : 0;
	d = *q == '/' ? 1 : *q ? (unsigned char)*q + 1 : 0;
	return c - d;
}

/* Is `b` the same path as `a` or below it? */
static bool collides(const char *a, const char *b)
{
	size_t n = strlen(a);

	return strncmp(a, b, n) == 0 && (b[n] == '\0' || b[n] == '/');
}

static int refuse_collision(struct ms_run_spec *s, const struct ms_row *row,
			    const struct ms_file *a, const struct ms_file *b, struct sbx_error *e)
{
	const struct ms_file *late = a > b ? a : b, *early = a > b ? b : a;
	char problem[MS_WHERE];

	(void)snprintf(problem, sizeof(problem),
		       strlen(a->path) == strlen(b->path)
			       ? "is also the path of files[%zu]"
			       : "cannot be there together with files[%zu], one being in the other",
		       (size_t)(early - s->files));
	return refuse_file(e, row, late, (size_t)(late - s->files), problem);
}

int ms_check_files(struct ms_run_spec *s, const struct ms_row *row, const struct ms_options *opts,
		   struct sbx_error *e)
{
	sbx_autofree const struct ms_file **sorted = NULL;
	const char *problem;

	(void)opts;
	for (size_t i = 0; i < s->n_files; i++) {
		problem = sbx_path_problem(s->files[i].path, strlen(s->files[i].path));
		if (problem)
			return refuse_file(e, row, &s->files[i], i, problem);
	}
	sorted = calloc(s->n_files + 1, sizeof(*sorted));
	if (!sorted)
		return ms_no_memory(e);
	for (size_t i = 0; i < s->n_files; i++)
		sorted[i] = &s->files[i];
	qsort(sorted, s->n_files, sizeof(*sorted), compare_paths);
	for (size_t i = 1; i < s->n_files; i++)
		if (collides(sorted[i - 1]->path, sorted[i]->path))
			return refuse_collision(s, row, sorted[i - 1], sorted[i], e);
	return 0;
}
