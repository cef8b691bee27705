/* SPDX-License-Identifier: Apache-2.0 */
/* User names. One person has one name on both doors: the login name of a uid. */
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apid/auth_i.h"

enum { PASSWD_ROOM = 16 << 10 };

/* ASCII only: a name that merely looks like somebody else's must not exist. */
const char *auth_name_problem(const char *name)
{
	size_t len = strlen(name);

	if (len == 0)
		return "it is empty";
	if (len >= AUTH_USER)
		return "it is longer than 63 bytes";
	if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
		return "it is the name of a directory";
	for (size_t i = 0; i < len; i++)
		if (name[i] <= ' ' || name[i] > '~' || name[i] == '/')
			return "it has a character that is no printable ASCII, a space or a slash";
	return NULL;
}

bool auth_name_listed(const char *list, const char *name)
{
	size_t n = strlen(name);

	while (list && *list) {
		size_t len = strcspn(list, ",");

		if (len == n && memcmp(list, name, n) == 0)
			return true;
		list += len + (list[len] == ',');
	}
	return false;
}

/* The next entry of a map, which has no spaces; NULL at its end. */
static const char *next_entry(const char *at, size_t *ret_alias, const char **ret_login,
			      size_t *ret_len)
{
	size_t len = at ? strcspn(at, ",") : 0;

	if (len == 0)
		return NULL;
	*ret_alias = strcspn(at, "=");
	*ret_login = at + *ret_alias + 1;
	*ret_len = len - *ret_alias - 1;
	return at + len + (at[len] == ',');
}

bool auth_name_mapped(const char *map, const char *alias, char ret[AUTH_USER])
{
	size_t wanted = strlen(alias), n, len;
	const char *login, *next;

	for (; (next = next_entry(map, &n, &login, &len)); map = next) {
		if (n != wanted || memcmp(map, alias, n) != 0 || len >= AUTH_USER)
			continue;
		memcpy(ret, login, len);
		ret[len] = '\0';
		return true;
	}
	return false;
}

int auth_name_check_map(const char *map, struct sbx_error *e)
{
	size_t n, len;
	const char *login, *next;

	for (; (next = next_entry(map, &n, &login, &len)); map = next) {
		sbx_autofree char *name = strndup(login, len);
		const char *problem = name ? auth_name_problem(name) : "there is no memory";

		if (problem)
			return sbx_fail(e, SBX_E_INVALID_CONFIG,
					"user_map: '%.100s' cannot be a user name: %s",
					name ? name : "", problem);
	}
	return 0;
}

/* How getpwnam(3) says that there is no such user; anything else is a directory that is down. */
static bool means_absent(int err)
{
	return err == 0 || err == ENOENT || err == ESRCH || err == EBADF || err == EPERM;
}

/* "uid:N" is what somebody without a login name is called on the mount. */
static bool parse_uid(const char *name, int64_t *ret)
{
	char *end = NULL;
	unsigned long long uid;

	if (strncmp(name, "uid:", 4) != 0 || name[4] < '0' || name[4] > '9')
		return false;
	errno = 0;
	uid = strtoull(name + 4, &end, 10);
	if (errno || *end || uid >= UINT32_MAX) /* the last one means "no uid" */
		return false;
	*ret = (int64_t)uid;
	return true;
}

int auth_name_uid(char name[AUTH_USER], int64_t *ret, struct sbx_error *e)
{
	char room[PASSWD_ROOM];
	struct passwd pw, *found = NULL;
	int err;

	if (parse_uid(name, ret))
		return 0;
	*ret = -1;
	err = getpwnam_r(name, &pw, room, sizeof(room), &found);
	if (!found && !means_absent(err))
		return sbx_fail_errno(e, SBX_E_INTERNAL, err,
				      "the user directory of this host did not answer");
	if (!found)
		return 0;
	*ret = pw.pw_uid;
	if (!auth_name_problem(pw.pw_name))
		(void)snprintf(name, AUTH_USER, "%s", pw.pw_name);
	return 0;
}
