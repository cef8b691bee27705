/* SPDX-License-Identifier: Apache-2.0 */
/* A script in place of a document: its first line says what runs it, as for execve(2). */
#include "mountspec/spec.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

static const char script_name[] = "script";

/* The parts of "#! interpreter argument". The argument is one, spaces in it included. */
struct shebang {
	const char *interpreter, *argument;
	size_t interpreter_len, argument_len; /* argument_len 0: none */
};

static bool is_blank(char c)
{
	return c == ' ' || c == '\t';
}

static const char *split(const char *line, size_t len, struct shebang *ret)
{
	const char *p = line + 2, *end = line + len;

	if (len > 0 && end[-1] == '\r')
		return "line 1 of the script ends with a carriage return; save it with plain "
		       "line ends (LF)";
	while (end > p && is_blank(end[-1]))
		end--;
	while (p < end && is_blank(*p))
		p++;
	ret->interpreter = p;
	while (p < end && !is_blank(*p))
		p++;
	ret->interpreter_len = (size_t)(p - ret->interpreter);
	while (p < end && is_blank(*p))
		p++;
	ret->argument = p;
	ret->argument_len = (size_t)(end - p);
	if (ret->interpreter_len == 0)
		return "line 1 of the script names no program after '#!'";
	if (memchr(line, '\0', len))
		return "line 1 of the script contains a NUL byte";
	if (!sbx_utf8_valid(line, len))
		return "line 1 of the script is not valid UTF-8";
	return NULL;
}

static int read_line(const char *text, size_t len, struct shebang *ret, struct sbx_error *e)
{
	const char *newline, *problem;

	if (len < 2 || memcmp(text, "#!", 2) != 0)
		return ms_refuse(
			e, &(struct ms_refusal){ .field = "command",
						 .problem = "the script does not begin with #!",
						 .allowed = "#! and the path of a program" });
	newline = memchr(text, '\n', len);
	problem = split(text, newline ? (size_t)(newline - text) : len, ret);
	if (problem)
		return ms_refuse(e,
				 &(struct ms_refusal){ .field = "command",
						       .problem = problem,
						       .allowed = "#! and the path of a program" });
	if (ret->interpreter_len + ret->argument_len < MS_ARG_MAX)
		return 0;
	return ms_refuse(e, &(struct ms_refusal){ .code = SBX_E_SPEC_TOO_LARGE,
						  .field = "command",
						  .problem = "line 1 of the script is too long",
						  .allowed = "up to 131071 bytes" });
}

static int set_command(struct ms_run_spec *s, const struct shebang *line)
{
	s->command = calloc(4, sizeof(*s->command));
	if (!s->command)
		return -1;
	s->command[s->n_command++] = strndup(line->interpreter, line->interpreter_len);
	if (line->argument_len)
		s->command[s->n_command++] = strndup(line->argument, line->argument_len);
	s->command[s->n_command++] = strdup(script_name);
	for (size_t i = 0; i < s->n_command; i++)
		if (!s->command[i])
			return -1;
	return 0;
}

static int set_file(struct ms_run_spec *s, const char *text, size_t len)
{
	s->files = calloc(1, sizeof(*s->files));
	if (!s->files)
		return -1;
	s->n_files = 1;
	s->files[0].path = strdup(script_name);
	s->files[0].data = malloc(len);
	if (!s->files[0].path || !s->files[0].data)
		return -1;
	memcpy(s->files[0].data, text, len);
	s->files[0].len = len;
	return 0;
}

int ms_run_from_script(const char *text, size_t len, const struct ms_options *opts,
		       struct ms_run_spec **ret, struct sbx_error *e)
{
	ms_autorun struct ms_run_spec *s = NULL;
	struct shebang line = { .interpreter_len = 0 };
	int rc;

	*ret = NULL;
	rc = ms_check_size(len, MS_DOC_MAX, e);
	if (rc == 0)
		rc = read_line(text, len, &line, e);
	if (rc < 0)
		return rc;
	s = ms_new(&ms_run_doc, true);
	if (!s || set_command(s, &line) < 0 || set_file(s, text, len) < 0)
		return ms_no_memory(e);
	s->present = UINT64_C(1) << MS_F_COMMAND | UINT64_C(1) << MS_F_FILES;
	rc = ms_check_all(&ms_run_doc, s, opts, e);
	if (rc == 0)
		*ret = sbx_steal(&s);
	return rc;
}
