/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/image.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/fs.h"

/* The target of name in "a=x,b=y", malloc'd; NULL when it is not there or memory is short. */
static char *alias(const char *table, const char *name)
{
	size_t n = strlen(name);

	for (const char *p = table; p && *p;) {
		size_t len;

		p += strspn(p, ", ");
		len = strcspn(p, ",");
		if (len > n && strncmp(p, name, n) == 0 && p[n] == '=')
			return strndup(p + n + 1, len - n - 1);
		p += len;
	}
	return NULL;
}

static bool is_host(const char *name)
{
	return strcmp(name, "host") == 0 || strcmp(name, "host-local") == 0;
}

/* The operator's paths stay out of the message: it goes to clients. */
static int unknown(const struct orch_settings *st, const char *name, struct sbx_error *e)
{
	sbx_autobuf names = SBX_BUF_INIT(4096);

	for (const char *p = st->images; p && *p; p += strcspn(p, ",") + (strchr(p, ',') ? 1 : 0))
		sbx_buf_printf(&names, ", '%.*s'", (int)strcspn(p, "="), p);
	return sbx_fail(e, SBX_E_IMAGE_NOT_FOUND,
			"base_image: found '%.64s', allowed 'host'%.200s and the imported images",
			name, names.data && !sbx_buf_failed(&names) ? names.data : "");
}

int orch_image_resolve(const struct orch_settings *st, const char *state_dir, const char *name,
		       char **ret, struct sbx_error *e)
{
	sbx_autofree char *target = alias(st->images, name);
	sbx_autofree char *path = NULL;
	struct stat sb;

	if (!target)
		target = strdup(name);
	if (!target)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	if (is_host(target)) {
		*ret = NULL;
		return 0;
	}
	if (target[0] == '/' && strcmp(target, name) != 0) {
		path = sbx_steal(&target); /* the operator's own word */
	} else {
		if (strchr(target, '/') || sbx_path_problem(target, strlen(target)))
			return unknown(st, name, e);
		if (asprintf(&path, "%s%s/%s", st->image_dir ? st->image_dir : state_dir,
			     st->image_dir ? "" : "/images", target) < 0) {
			path = NULL;
			return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
		}
	}
	if (stat(path, &sb) < 0 || !S_ISDIR(sb.st_mode))
		return unknown(st, name, e);
	*ret = sbx_steal(&path);
	return 0;
}
