/* SPDX-License-Identifier: Apache-2.0 */
/* The rules that the columns of the table cannot say. */
#include "mountspec/spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"

int ms_check_size(size_t len, size_t max, struct sbx_error *e)
{
	char found[MS_SHOWN], allowed[MS_SHOWN];

	if (len <= max)
		return 0;
	(void)snprintf(found, sizeof(found), "%zu bytes or more", len);
	(void)snprintf(allowed, sizeof(allowed), "up to %zu bytes", max);
	return ms_refuse(e, &(struct ms_refusal){ .code = SBX_E_SPEC_TOO_LARGE,
						  .field = "the document",
						  .found = found,
						  .allowed = allowed });
}

static int refuse(struct sbx_error *e, const char *field, const char *problem, const char *allowed)
{
	return ms_refuse(
		e, &(struct ms_refusal){ .field = field, .problem = problem, .allowed = allowed });
}

static bool is_blank(const char *s)
{
	return s[strspn(s, " \t\r\n")] == '\0';
}

/* A string of white space is nothing, as in the reference API. */
static void drop_blank(char **s)
{
	if (!*s || !is_blank(*s))
		return;
	free(*s);
	*s = NULL;
}

static bool has_control_character(const char *s)
{
	for (; *s; s++)
		if ((unsigned char)*s < 0x20 || *s == 0x7f)
			return true;
	return false;
}

static bool has_dot_dot(const char *path)
{
	size_t n;

	for (const char *p = path; *p; p += n) {
		p += strspn(p, "/");
		n = strcspn(p, "/");
		if (n == 2 && memcmp(p, "..", 2) == 0)
			return true;
	}
	return false;
}

static const char *next_version(const char *p, size_t *ret_len)
{
	p += strspn(p, ", ");
	*ret_len = strcspn(p, ", ");
	return *ret_len ? p : NULL;
}

static int wrong_version(const char *provided, const char *versions, struct sbx_error *e)
{
	sbx_autobuf list = SBX_BUF_INIT(4 << 10);
	sbx_autobuf quoted = SBX_BUF_INIT(4 << 10);
	char shown[MS_SHOWN];
	size_t n;
	int rc;

	for (const char *p = versions; (p = next_version(p, &n)) != NULL; p += n) {
		if (list.len)
			sbx_buf_puts(&list, ",");
		sbx_buf_json_str(&list, p, n);
	}
	sbx_buf_json_strz(&quoted, provided);
	rc = sbx_fail(e, SBX_E_INVALID_SPEC_VERSION, "spec_version: found %s, allowed %.200s",
		      ms_quote(shown, provided), list.data ? list.data : "none");
	if (e && !sbx_buf_failed(&list) && !sbx_buf_failed(&quoted))
		(void)sbx_error_details(e,
					"{\"field\":\"spec_version\",\"supported\":[%s],"
					"\"provided\":%s}",
					list.data ? list.data : "", quoted.data);
	return rc;
}

/* The empty string passes, whatever is supported; so does the reference. */
int ms_check_version(struct ms_run_spec *s, const struct ms_row *row, const struct ms_options *opts,
		     struct sbx_error *e)
{
	const char *versions = opts->versions ? opts->versions : "1.0,1.1";
	const char *def = row->info.def;
	size_t n;

	if (*s->spec_version == '\0') {
		free(s->spec_version);
		s->spec_version = strndup(def + 1, strlen(def) - 2);
		return s->spec_version ? 0 : ms_no_memory(e);
	}
	for (const char *p = versions; (p = next_version(p, &n)) != NULL; p += n)
		if (strlen(s->spec_version) == n && memcmp(s->spec_version, p, n) == 0)
			return 0;
	return wrong_version(s->spec_version, versions, e);
}

int ms_check_blank(struct ms_run_spec *s, const struct ms_row *row, const struct ms_options *opts,
		   struct sbx_error *e)
{
	(void)opts;
	(void)e;
	drop_blank(ms_string_of(s, row));
	return 0;
}

/* Where null is a word of its own: not the default, but what the host decides later. */
int ms_check_null(struct ms_run_spec *s, const struct ms_row *row, const struct ms_options *opts,
		  struct sbx_error *e)
{
	(void)opts;
	(void)e;
	if (s->null & row->bit)
		ms_clear(s, row);
	return 0;
}

/* Where it was submitted says of which session it is. */
static int name_session(struct ms_run_spec *s, const char *id, struct sbx_error *e)
{
	if (!id)
		return 0;
	if (s->session_id && strcmp(s->session_id, id) != 0)
		return ms_refuse(e, &(struct ms_refusal){ .field = "session_id",
							  .problem = "names another session",
							  .found = s->session_id,
							  .allowed = id });
	free(s->session_id);
	s->session_id = strdup(id);
	return s->session_id ? 0 : ms_no_memory(e);
}

int ms_check_image(struct ms_run_spec *s, const struct ms_row *row, const struct ms_options *opts,
		   struct sbx_error *e)
{
	const char *image = opts->default_image;
	int rc = name_session(s, opts->session_id, e);

	(void)row;
	if (rc < 0)
		return rc;
	drop_blank(&s->base_image);
	if (s->session_id && s->base_image)
		return ms_refuse(e,
				 &(struct ms_refusal){ .field = "base_image",
						       .problem = "given together with session_id",
						       .found = "both",
						       .allowed = "exactly one of the two" });
	if (s->session_id || s->base_image)
		return 0;
	if (opts->default_image_of)
		image = opts->default_image_of(opts->default_image_ctx, s->runtime);
	if (!image)
		return ms_refuse(
			e, &(struct ms_refusal){ .field = "base_image",
						 .problem = "is missing, and so is session_id",
						 .found = "neither",
						 .allowed = "exactly one of the two" });
	s->base_image = strdup(image);
	return s->base_image ? 0 : ms_no_memory(e);
}

int ms_check_command(struct ms_run_spec *s, const struct ms_row *row, const struct ms_options *opts,
		     struct sbx_error *e)
{
	static const char allowed[] = "an array of strings, the program first";
	char where[MS_WHERE];
	bool present = s->present & row->bit;

	(void)opts;
	if (s->n_command == 0)
		return ms_refuse(
			e, &(struct ms_refusal){ .field = row->info.name,
						 .problem = present ? "is empty" : "is missing",
						 .found = "nothing",
						 .allowed = allowed });
	if (s->command[0][0] == '\0')
		return refuse(e, ms_item_path(where, row, 0, NULL), "is empty", allowed);
	return 0;
}

/* The kernel takes no string above MS_ARG_MAX, and that is "NAME=value" with its NUL. */
static int too_large_env(struct sbx_error *e, const char *field, size_t n, size_t max)
{
	char found[MS_SHOWN], allowed[MS_SHOWN];

	(void)snprintf(found, sizeof(found), "%zu bytes", n);
	(void)snprintf(allowed, sizeof(allowed), "up to %zu bytes with names, '=' and NUL", max);
	return ms_refuse(e, &(struct ms_refusal){ .code = SBX_E_SPEC_TOO_LARGE,
						  .field = field,
						  .found = found,
						  .allowed = allowed });
}

int ms_check_env(struct ms_run_spec *s, const struct ms_row *row, const struct ms_options *opts,
		 struct sbx_error *e)
{
	static const char allowed[] = "a name of one or more bytes without '='";
	char where[MS_WHERE];
	size_t total = 0;

	(void)opts;
	for (size_t i = 0; i < s->n_env; i++) {
		size_t n = strlen(s->env[i].key) + strlen(s->env[i].value) + 2;

		(void)ms_entry_path(where, row, s->env[i].key);
		if (s->env[i].key[0] == '\0')
			return refuse(e, row->info.name, "has an entry with an empty name",
				      allowed);
		if (strchr(s->env[i].key, '='))
			return refuse(e, where, "has a '=' in its name", allowed);
		if (n > MS_ARG_MAX)
			return too_large_env(e, where, n, MS_ARG_MAX);
		total += n;
	}
	return total > MS_ENV_MAX ? too_large_env(e, row->info.name, total, MS_ENV_MAX) : 0;
}

int ms_check_cwd(struct ms_run_spec *s, const struct ms_row *row, const struct ms_options *opts,
		 struct sbx_error *e)
{
	static const char allowed[] = "a path below /workspace, or an absolute one, without '..'";

	(void)opts;
	if (!s->cwd)
		return 0;
	if (s->cwd[0] == '\0')
		return refuse(e, row->info.name, "is empty", allowed);
	if (has_dot_dot(s->cwd))
		return refuse(e, row->info.name, "has a part '..'", allowed);
	return 0;
}

int ms_check_allowlist(struct ms_run_spec *s, const struct ms_row *row,
		       const struct ms_options *opts, struct sbx_error *e)
{
	char where[MS_WHERE];

	(void)opts;
	for (size_t i = 0; i < s->n_network_allowlist; i++)
		if (is_blank(s->network_allowlist[i]))
			return refuse(e, ms_item_path(where, row, i, NULL), "is empty",
				      "a host name, an address or a network");
	return 0;
}

int ms_check_patterns(struct ms_run_spec *s, const struct ms_row *row,
		      const struct ms_options *opts, struct sbx_error *e)
{
	char where[MS_WHERE];
	const char *pattern, *problem;

	(void)opts;
	for (size_t i = 0; i < s->n_capture_patterns; i++) {
		pattern = s->capture_patterns[i];
		problem = pattern[0] == '\0'	 ? "is empty"
			  : pattern[0] == '/'	 ? "is absolute"
			  : has_dot_dot(pattern) ? "has a part '..'"
						 : NULL;
		if (problem)
			return refuse(e, ms_item_path(where, row, i, NULL), problem,
				      "a pattern for paths below the workspace");
	}
	return 0;
}

int ms_check_name(struct ms_run_spec *s, const struct ms_row *row, const struct ms_options *opts,
		  struct sbx_error *e)
{
	(void)opts;
	drop_blank(&s->name);
	if (s->name && has_control_character(s->name))
		return refuse(e, row->info.name, "has a control character", "one line of text");
	return 0;
}

int ms_check_labels(struct ms_run_spec *s, const struct ms_row *row, const struct ms_options *opts,
		    struct sbx_error *e)
{
	char where[MS_WHERE];

	(void)opts;
	for (size_t i = 0; i < s->n_labels; i++) {
		if (s->labels[i].key[0] == '\0')
			return refuse(e, row->info.name, "has an entry with an empty name",
				      "names of one line");
		if (has_control_character(s->labels[i].key) ||
		    has_control_character(s->labels[i].value))
			return refuse(e, ms_entry_path(where, row, s->labels[i].key),
				      "has a control character", "names and values of one line");
	}
	return 0;
}

int ms_check_key(struct ms_run_spec *s, const struct ms_row *row, const struct ms_options *opts,
		 struct sbx_error *e)
{
	(void)opts;
	/* An empty key is a script's unset variable: ignoring it would run things twice. */
	if (s->idempotency_key && is_blank(s->idempotency_key))
		return refuse(e, row->info.name, "is empty",
			      "up to 255 bytes, not only white space");
	return 0;
}

int ms_check_all(const struct ms_doc *doc, struct ms_run_spec *s, const struct ms_options *opts,
		 struct sbx_error *e)
{
	const struct ms_row *row;
	int rc;

	for (size_t i = 1; i < doc->n; i++) {
		row = &doc->rows[i];
		rc = row->check ? row->check(s, row, opts, e) : 0;
		if (rc < 0)
			return rc;
	}
	return 0;
}
