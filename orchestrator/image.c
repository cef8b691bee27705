/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/image.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/fs.h"
#include "runtimes/runtimes.h"

enum { BY_NAME_MAX = 500 };

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

/* ---- imported ones --------------------------------------------------------------------------- */

bool orch_image_digest(const char *path, char ret[72])
{
	static const char prefix[] = "sha256-", digits[] = "0123456789abcdef";
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	const char *hex = name + sizeof(prefix) - 1;

	if (strncmp(name, prefix, sizeof(prefix) - 1) != 0 || strlen(hex) != 64 ||
	    strspn(hex, digits) != 64)
		return false;
	(void)snprintf(ret, 72, "sha256:%s", hex);
	return true;
}

/* Whoever removes it holds the lock alone and takes it out of the way before it is let go. */
int orch_image_hold(const char *path, int *ret_fd, struct sbx_error *e)
{
	sbx_autoclose int fd = -1;
	char digest[72];
	struct stat ours, now;

	*ret_fd = -1;
	if (!orch_image_digest(path, digest))
		return 0;
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || flock(fd, LOCK_SH | LOCK_NB) < 0 || fstat(fd, &ours) < 0 ||
	    stat(path, &now) < 0 || ours.st_ino != now.st_ino)
		return sbx_fail(e, SBX_E_IMAGE_NOT_FOUND, "the image %s is being removed", digest);
	*ret_fd = sbx_steal_fd(&fd);
	return 0;
}

char *orch_image_dir(const struct orch_settings *st, const char *state_dir)
{
	char *path = NULL;

	if (st->image_dir)
		return strdup(st->image_dir);
	return asprintf(&path, "%s/images", state_dir) < 0 ? NULL : path;
}

static int is_name(const struct dirent *d)
{
	char digest[72];

	return d->d_name[0] != '.' && !orch_image_digest(d->d_name, digest);
}

int orch_image_names(const char *dir, char ***ret)
{
	struct dirent **list = NULL;
	int n = scandir(dir, &list, is_name, alphasort);
	char **names = calloc(n > 0 ? (size_t)n : 1, sizeof(*names));
	bool whole = names != NULL;

	for (int i = 0; i < n; i++) {
		if (whole && !(names[i] = strdup(list[i]->d_name)))
			whole = false;
		free(list[i]);
	}
	free(list);
	if (!whole && names)
		orch_image_names_free(names, n);
	*ret = whole ? names : NULL;
	return whole ? n > 0 ? n : 0 : -1;
}

void orch_image_names_free(char **names, int n)
{
	for (int i = 0; i < n; i++)
		free(names[i]);
	free(names);
}

/* ---- those of other programs ----------------------------------------------------------------- */

bool orch_image_by_name(const struct orch_settings *st, const char *runtime)
{
	const struct rt_driver *d =
		rt_driver_find(runtime && *runtime ? runtime : st->default_runtime);

	return d && d->images_by_name;
}

const char *orch_image_default(const void *ctx, const char *runtime)
{
	const struct orch_settings *st = ctx;

	return orch_image_by_name(st, runtime) ? st->docker_default_image : st->default_image;
}

static int check_name(const char *runtime, const char *name, struct sbx_error *e)
{
	static const char letters[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
	static const char others[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
		"._-/:@+";
	size_t n = strlen(name);

	if (!is_host(name) && n > 0 && n <= BY_NAME_MAX && strchr(letters, name[0]) &&
	    strspn(name, others) == n && !strstr(name, "//") && !strstr(name, "..") &&
	    name[n - 1] != '/')
		return 0;
	(void)sbx_fail(
		e, SBX_E_INVALID_SPEC,
		"base_image: found '%.64s', allowed with runtime %s is the name of an image, "
		"such as python:3.11-slim",
		name, runtime);
	(void)sbx_error_details(e, "{\"field\":\"base_image\",\"allowed\":\"name of an image\"}");
	return -SBX_E_INVALID_SPEC;
}

/* ---- names ----------------------------------------------------------------------------------- */

/* The operator's paths stay out of the message: it goes to clients. */
static int unknown(const struct orch_settings *st, const char *state_dir, const char *name,
		   struct sbx_error *e)
{
	sbx_autobuf names = SBX_BUF_INIT(4096);
	sbx_autofree char *dir = orch_image_dir(st, state_dir);
	char **list = NULL;
	int n = dir ? orch_image_names(dir, &list) : 0;

	for (const char *p = st->images; p && *p; p += strcspn(p, ",") + (strchr(p, ',') ? 1 : 0))
		sbx_buf_printf(&names, ", '%.*s'", (int)strcspn(p, "="), p);
	for (int i = 0; i < n && names.len < 300; i++)
		sbx_buf_printf(&names, ", '%.64s'", list[i]);
	orch_image_names_free(list, n);
	return sbx_fail(e, SBX_E_IMAGE_NOT_FOUND,
			"base_image: found '%.64s', allowed 'host'%.300s and what is imported",
			name, names.data && !sbx_buf_failed(&names) ? names.data : "");
}

/* A name of an imported image leads to the directory of its digest. */
static int follow(char **path, struct sbx_error *e)
{
	char target[72], digest[72];
	ssize_t n = readlink(*path, target, sizeof(target) - 1);
	char *slash = strrchr(*path, '/'), *real = NULL;

	if (n < 0 || !slash)
		return 0; /* a directory of its own */
	target[n] = '\0';
	if (!orch_image_digest(target, digest))
		return 0; /* the operator's own link */
	if (asprintf(&real, "%.*s/%s", (int)(slash - *path), *path, target) < 0)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	free(*path);
	*path = real;
	return 0;
}

int orch_image_resolve(const struct orch_settings *st, const char *state_dir, const char *name,
		       char **ret, struct sbx_error *e)
{
	sbx_autofree char *target = alias(st->images, name);
	sbx_autofree char *path = NULL, *dir = NULL;
	struct stat sb;
	int rc = 0;

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
		if (strchr(target, '/') || target[0] == '.' ||
		    sbx_path_problem(target, strlen(target)))
			return unknown(st, state_dir, name, e);
		if (strncmp(target, "sha256:", 7) == 0)
			target[6] = '-';
		dir = orch_image_dir(st, state_dir);
		if (!dir || asprintf(&path, "%s/%s", dir, target) < 0) {
			path = NULL;
			return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
		}
		rc = follow(&path, e);
	}
	if (rc < 0)
		return rc;
	if (stat(path, &sb) < 0 || !S_ISDIR(sb.st_mode))
		return unknown(st, state_dir, name, e);
	*ret = sbx_steal(&path);
	return 0;
}

int orch_image_check(const struct orch_settings *st, const char *state_dir, const char *runtime,
		     const char *name, struct sbx_error *e)
{
	sbx_autofree char *path = NULL;
	const struct rt_driver *d;
	int rc;

	if (!runtime || !*runtime)
		runtime = st->default_runtime;
	if (orch_image_by_name(st, runtime))
		return check_name(runtime, name, e);
	rc = orch_image_resolve(st, state_dir, name, &path, e);
	d = rt_driver_find(runtime);
	if (rc == 0 && path && d && d->image_is_repository)
		rc = rt_worktree_allowed(st->worktree_allowed_dirs, path, e);
	return rc;
}
