/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a symbolic link in a workspace shows. Whoever resolves it on the mount must stay inside, so
 * a link shows at most as many ".." as there are directories above it, and none behind a name: for
 * that name may itself be a link. What leads out is shown as if the workspace were the root of all,
 * which for the sandbox it nearly is: its /workspace is the same place.
 */
#include "fsd/work_i.h"

#include <string.h>

#include "base/fs.h"

static const char *next_part(const char *p, size_t *ret_len)
{
	while (*p == '/')
		p++;
	*ret_len = strcspn(p, "/");
	return *ret_len ? p : NULL;
}

static bool is_dots(const char *part, size_t len, size_t dots)
{
	return len == dots && strncmp(part, "..", dots) == 0;
}

/* Does it stay inside as it is? */
static bool stays(const char *target, unsigned depth)
{
	unsigned up = 0;
	bool named = false;
	size_t len;

	if (*target == '/')
		return false;
	for (const char *p = target; (p = next_part(p, &len)); p += len) {
		if (!is_dots(p, len, 2))
			named |= !is_dots(p, len, 1);
		else if (named || ++up > depth)
			return false;
	}
	return true;
}

/* Where the parts of out that were put behind `base` begin to be the last one. */
static size_t last_part(const struct sbx_buf *out, size_t base)
{
	size_t at = out->len;

	while (at > base && out->data[at - 1] != '/')
		at--;
	return at > base ? at - 1 : base;
}

static void put_part(struct sbx_buf *out, const char *part, size_t len)
{
	if (out->len)
		sbx_buf_puts(out, "/");
	sbx_buf_add(out, part, len);
}

void work_target(const char *target, unsigned depth, struct sbx_buf *out)
{
	static const char top[] = "/workspace";
	unsigned up = *target == '/' ? depth : 0;
	sbx_autobuf names = SBX_BUF_INIT(SBX_PATH_MAX + 1);
	size_t len;

	if (stays(target, depth)) {
		sbx_buf_puts(out, target);
		return;
	}
	if (strncmp(target, top, sizeof(top) - 1) == 0 &&
	    (target[sizeof(top) - 1] == '/' || target[sizeof(top) - 1] == '\0'))
		target += sizeof(top) - 1;
	for (const char *p = target; (p = next_part(p, &len)); p += len) {
		if (is_dots(p, len, 1))
			continue;
		if (!is_dots(p, len, 2))
			put_part(&names, p, len);
		else if (names.len)
			names.len = last_part(&names, 0);
		else if (up < depth)
			up++;
	}
	for (unsigned i = 0; i < up; i++)
		put_part(out, "..", 2);
	if (names.len)
		put_part(out, names.data, names.len);
	if (sbx_buf_failed(&names))
		out->failed = true;
	if (!out->len)
		sbx_buf_puts(out, ".");
}
