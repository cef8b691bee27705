/* SPDX-License-Identifier: Apache-2.0 */
/* From a method and a path to a row of routes.def. */
#include <stdio.h>
#include <string.h>

#include "apid/apid_i.h"

static const struct route routes[] = {
#define X(method, path, access, ...) { method, path, ROUTE_##access, __VA_ARGS__ },
#include "apid/routes.def"
#undef X
};

const struct route *route_at(size_t i)
{
	return i < SBX_COUNT(routes) ? &routes[i] : NULL;
}

static int hex(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* %XX once; what is no escape stays as it is. Returns the length, which is never more. */
static size_t decode(const char *from, size_t len, char *to)
{
	size_t n = 0;

	for (size_t i = 0; i < len; i++) {
		int high = from[i] == '%' && i + 2 < len ? hex(from[i + 1]) : -1;
		int low = high >= 0 ? hex(from[i + 2]) : -1;

		if (low >= 0) {
			to[n++] = (char)(high << 4 | low);
			i += 2;
		} else {
			to[n++] = from[i];
		}
	}
	to[n] = '\0';
	return n;
}

/* ---- the guard ------------------------------------------------------------------------------- */

static const char runs_below[] = API_BASE "/runs/";
static const char traversal[] = "Path traversal detected";
static const char invalid[] = "invalid_path";

/* Does one of the segments climb? */
static bool climbs(const char *path, size_t len)
{
	return memmem(path, len, "/../", 4) || (len >= 3 && memcmp(path + len - 3, "/..", 3) == 0);
}

/* A relative path in its plainest form: no empty, "." or ".." part, no NUL. */
static bool is_plain(const char *path, size_t len)
{
	size_t at = 0;

	if (len == 0 || memchr(path, '\0', len))
		return false;
	while (at <= len) {
		const char *slash = memchr(path + at, '/', len - at);
		size_t n = slash ? (size_t)(slash - path) - at : len - at;

		if (n == 0 || (n == 1 && path[at] == '.') ||
		    (n == 2 && path[at] == '.' && path[at + 1] == '.'))
			return false;
		at += n + 1;
	}
	return true;
}

const char *route_guard(const char *path, size_t len)
{
	static const char artifacts[] = "/artifacts/";
	char plain[API_TARGET_MAX + 1], twice[API_TARGET_MAX + 1];
	const char *tail;
	size_t n;

	if (len < strlen(runs_below) || memcmp(path, runs_below, strlen(runs_below)) != 0)
		return NULL;
	n = decode(path, len, plain);
	if (climbs(path, len) || climbs(plain, n))
		return traversal;
	/* Nothing here decodes twice; a proxy in front may have been meant to. */
	if (climbs(twice, decode(plain, n, twice)))
		return traversal;
	if (memchr(plain, '\0', n))
		return invalid;
	tail = memmem(path, len, artifacts, strlen(artifacts));
	if (!tail)
		return NULL;
	tail += strlen(artifacts);
	n = decode(tail, len - (size_t)(tail - path), plain);
	return is_plain(plain, n) ? NULL : invalid;
}

/* ---- finding --------------------------------------------------------------------------------- */

struct found {
	const char *at[API_PARAMS];
	size_t len[API_PARAMS];
	size_t n;
};

/* One segment of the pattern against one of the path. */
static bool fits_segment(const char *want, size_t want_len, const char *have, size_t len,
			 struct found *f)
{
	if (*want != '{')
		return want_len == len && memcmp(want, have, len) == 0;
	if (len == 0 || f->n == API_PARAMS)
		return false;
	f->at[f->n] = have;
	f->len[f->n++] = len;
	return true;
}

static bool fits(const char *want, const char *have, size_t len, struct found *f)
{
	const char *end = have + len;

	f->n = 0;
	while (*want == '/' && have < end && *have == '/') {
		size_t want_len = strcspn(++want, "/");
		size_t n;

		have++;
		n = strcspn(have, "/?");
		if (want_len > 4 && memcmp(want + want_len - 4, "...}", 4) == 0)
			n = (size_t)(end - have);
		if (!fits_segment(want, want_len, have, n, f))
			return false;
		want += want_len;
		have += n;
	}
	return !*want && have == end;
}

/* False without memory, or when a NUL was meant to be a part of a name. */
static bool take_params(struct req *q, const struct found *f)
{
	for (size_t i = 0; i < f->n; i++) {
		size_t n;

		q->param[i] = malloc(f->len[i] + 1);
		if (!q->param[i])
			return false;
		n = decode(f->at[i], f->len[i], q->param[i]);
		if (strlen(q->param[i]) != n)
			return false;
	}
	return true;
}

/* GET below /runs/ID/ is never 405: whether something else could be done there is nobody's to know
 * who has not logged in (contract of the reference). */
static bool hides_methods(const struct req *q)
{
	size_t n = strlen(runs_below);

	return q->path_len > n && memcmp(q->target, runs_below, n) == 0 &&
	       memchr(q->target + n, '/', q->path_len - n) &&
	       (q->head || strcmp(q->method, MHD_HTTP_METHOD_GET) == 0);
}

static void allow(char list[ROUTE_ALLOW], const char *method)
{
	size_t n = strlen(list);
	bool get = strcmp(method, MHD_HTTP_METHOD_GET) == 0;

	(void)snprintf(list + n, ROUTE_ALLOW - n, "%s%s%s", n ? ", " : "", method,
		       get ? ", HEAD" : "");
}

const struct route *route_find(struct req *q, char ret_allow[ROUTE_ALLOW])
{
	const char *method = q->head ? MHD_HTTP_METHOD_GET : q->method;
	size_t base = strlen(API_BASE);
	bool below = q->path_len > base && memcmp(q->target, API_BASE, base) == 0;
	struct found f;

	ret_allow[0] = '\0';
	for (size_t i = 0; i < SBX_COUNT(routes); i++) {
		const struct route *r = &routes[i];
		bool top = r->path[1] == '/';

		if (top ? !fits(r->path + 1, q->target, q->path_len, &f)
			: !below || !fits(r->path, q->target + base, q->path_len - base, &f))
			continue;
		if (strcmp(r->method, method) != 0) {
			allow(ret_allow, r->method);
		} else if (take_params(q, &f)) {
			return r;
		} else { /* no method is good for such a path */
			ret_allow[0] = '\0';
			return NULL;
		}
	}
	if (hides_methods(q))
		ret_allow[0] = '\0';
	return NULL;
}
