/* SPDX-License-Identifier: Apache-2.0 */
/* Where the caller's own groups are, from two texts of /proc. Touches no file. */
#include "runtimes/cgroup.h"

#include <stdio.h>
#include <string.h>

static const char *const controller_names[CG__CONTROLLERS] = {
	[CG_MEMORY] = "memory",
	[CG_PIDS] = "pids",
	[CG_CPU] = "cpu",
	[CG_CPUACCT] = "cpuacct",
};

struct slice {
	const char *s;
	size_t len;
};

static bool slice_is(struct slice a, const char *s)
{
	return a.len == strlen(s) && memcmp(a.s, s, a.len) == 0;
}

/* The next part of *rest up to `sep`; false at the end. */
static bool next_part(struct slice *rest, char sep, struct slice *ret)
{
	const char *end;

	if (!rest->s)
		return false;
	end = memchr(rest->s, sep, rest->len);
	ret->s = rest->s;
	ret->len = end ? (size_t)(end - rest->s) : rest->len;
	if (end) {
		rest->len -= ret->len + 1;
		rest->s = end + 1;
	} else {
		rest->s = NULL;
		rest->len = 0;
	}
	return true;
}

static bool list_has(struct slice list, const char *name)
{
	struct slice part;

	while (next_part(&list, ',', &part))
		if (slice_is(part, name))
			return true;
	return false;
}

/* The group of this controller, or of version 2 when controller is NULL. */
static bool own_group(const char *self_cgroup, const char *controller, struct slice *ret)
{
	struct slice lines = { self_cgroup, strlen(self_cgroup) }, line;

	while (next_part(&lines, '\n', &line)) {
		struct slice id, list;

		if (!next_part(&line, ':', &id) || !next_part(&line, ':', &list) || !line.s)
			continue;
		if (controller ? list_has(list, controller) : (slice_is(id, "0") && !list.len)) {
			*ret = line; /* what is left: a path may hold colons */
			return true;
		}
	}
	return false;
}

/* Copies a field of mountinfo, where white space and backslash are written \ooo. */
static bool unescape(struct slice f, char *out, size_t size)
{
	size_t n = 0;

	for (size_t i = 0; i < f.len; i++) {
		char c = f.s[i];

		if (c == '\\' && i + 3 < f.len) {
			c = (char)((f.s[i + 1] - '0') << 6 | (f.s[i + 2] - '0') << 3 |
				   (f.s[i + 3] - '0'));
			i += 3;
		}
		if (n + 1 >= size)
			return false;
		out[n++] = c;
	}
	out[n] = '\0';
	return true;
}

struct mount_line {
	char root[CG_PATH_SIZE], point[CG_PATH_SIZE];
	struct slice type, options;
};

static bool parse_mount(struct slice line, struct mount_line *ret)
{
	struct slice f;
	bool dash = false;

	for (int i = 0; i < 6; i++) {
		if (!next_part(&line, ' ', &f))
			return false;
		if ((i == 3 && !unescape(f, ret->root, sizeof(ret->root))) ||
		    (i == 4 && !unescape(f, ret->point, sizeof(ret->point))))
			return false;
	}
	while (!dash && next_part(&line, ' ', &f))
		dash = slice_is(f, "-");
	return dash && next_part(&line, ' ', &ret->type) && next_part(&line, ' ', &f) &&
	       next_part(&line, ' ', &ret->options);
}

/* The directory of `group` seen through one mount; false when the mount does not show it. */
static bool group_dir(const struct mount_line *m, struct slice group, char out[CG_PATH_SIZE])
{
	size_t root = strcmp(m->root, "/") == 0 ? 0 : strlen(m->root);
	int n;

	if (group.len < root || memcmp(group.s, m->root, root) != 0 ||
	    (group.len > root && group.s[root] != '/'))
		return false;
	group.s += root;
	group.len -= root;
	while (group.len && group.s[group.len - 1] == '/')
		group.len--;
	n = snprintf(out, CG_PATH_SIZE, "%s%.*s", m->point, (int)group.len, group.s);
	if (n > 0 && n < CG_PATH_SIZE && !strstr(out, "/../"))
		return true;
	out[0] = '\0';
	return false;
}

static void find_dir(const char *mountinfo, const char *type, const char *controller,
		     struct slice group, char out[CG_PATH_SIZE])
{
	struct slice lines = { mountinfo, strlen(mountinfo) }, line;
	struct mount_line m;

	out[0] = '\0';
	while (next_part(&lines, '\n', &line)) {
		if (!parse_mount(line, &m) || !slice_is(m.type, type))
			continue;
		if (controller && !list_has(m.options, controller))
			continue;
		if (group_dir(&m, group, out))
			return;
	}
}

void cg_layout_parse(const char *self_cgroup, const char *mountinfo, const char *group,
		     struct cg_layout *ret)
{
	struct slice given = { group, group ? strlen(group) : 0 };
	struct slice own;

	memset(ret, 0, sizeof(*ret));
	for (int c = 0; c < CG__CONTROLLERS; c++)
		if (own_group(self_cgroup, controller_names[c], &own))
			find_dir(mountinfo, "cgroup", controller_names[c], group ? given : own,
				 ret->v1[c]);
	if (own_group(self_cgroup, "freezer", &own))
		find_dir(mountinfo, "cgroup", "freezer", group ? given : own, ret->freezer);
	if (own_group(self_cgroup, NULL, &own))
		find_dir(mountinfo, "cgroup2", NULL, group ? given : own, ret->v2);
}

const char *cg_layout_name(const struct cg_layout *l)
{
	bool v1 = false;

	for (int c = 0; c < CG__CONTROLLERS; c++)
		v1 = v1 || l->v1[c][0];
	if (v1)
		return l->v2[0] ? "hybrid" : "v1";
	return l->v2[0] ? "v2" : "none";
}
