/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Artifacts: what a run leaves behind is copied out of its dead workspace. Names come from the
 * sandbox, so every step goes through a held directory and follows no link; what is not a
 * plain file is never opened for real.
 */
#include "runtimes/runner/runner_i.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/fs.h"

enum {
	COLLECT_SECONDS = 60,
	COLLECT_DEPTH = 128,	/* levels of folders that are looked into */
	COLLECT_FILES = 10000,	/* artifacts of one run */
	COLLECT_SYNC_EACH = 64, /* files beyond this are synced together, at the end */
};

/* ---- the matcher ----------------------------------------------------------------------------- */

/* Matches c against the set at p (behind '['). Returns the byte behind ']', or NULL when the set is
 * not closed, and then '[' is an ordinary character. */
static const char *match_set(const char *p, char c, bool *hit)
{
	bool negate = *p == '!', found = false;
	const char *start;

	if (negate)
		p++;
	start = p;
	for (; *p && (*p != ']' || p == start); p++) {
		unsigned char lo, hi;

		if (*p == '\\' && p[1])
			p++;
		lo = hi = (unsigned char)*p;
		if (p[1] == '-' && p[2] && p[2] != ']') {
			hi = (unsigned char)p[2];
			p += 2;
		}
		found |= (unsigned char)c >= lo && (unsigned char)c <= hi;
	}
	if (*p != ']')
		return NULL;
	*hit = found != negate;
	return p + 1;
}

/* Does one pattern element match the character? *next is the element behind it. */
static bool match_one(const char *p, char c, const char **next)
{
	bool hit = false;

	if (*p == '?') {
		*next = p + 1;
		return c != '\0';
	}
	if (*p == '[') {
		const char *end = match_set(p + 1, c, &hit);

		if (end) {
			*next = end;
			return hit && c != '\0';
		}
	}
	if (*p == '\\' && p[1])
		p++;
	*next = p + 1;
	return *p == c && c != '\0';
}

/* A star can absorb anything, so going back to the last one alone is enough: linear in each star,
 * never exponential. For "**" + '/' the absorbed text is empty or ends with a slash. */
bool glob_match(const char *pattern, const char *path)
{
	const char *p = pattern, *s = path, *star_p = NULL, *star_s = NULL, *next;
	bool star_dirs = false;

	while (strncmp(p, "./", 2) == 0)
		p += 2;
	for (;;) {
		if (strncmp(p, "**/", 3) == 0) {
			star_p = p + 3;
			star_s = s;
			star_dirs = true;
			p = star_p;
			continue;
		}
		if (*p == '*') {
			star_p = ++p;
			star_s = s;
			star_dirs = false;
			continue;
		}
		if (*p == '\0' && *s == '\0')
			return true;
		if (*p && match_one(p, *s, &next)) {
			p = next;
			s++;
			continue;
		}
		if (!star_p || *star_s == '\0')
			return false;
		if (star_dirs) {
			star_s = strchr(star_s, '/');
			if (!star_s)
				return false;
		}
		s = ++star_s;
		p = star_p;
	}
}

/* ---- the walk -------------------------------------------------------------------------------- */

struct walk {
	const struct runner *r;
	const struct ms_run_spec *spec;
	struct collected *c;
	int64_t until_us; /* boot clock: no file is looked at after that */
	const char *run_id;
	int run_dir, out; /* the run's directory and artifacts/ in it, -1 until the first file */
	int64_t left;	  /* bytes that may still be taken */
	char path[SBX_PATH_MAX + 1];
	struct sbx_error *e;
};

void collected_clear(struct collected *c)
{
	for (size_t i = 0; i < c->n; i++)
		free((char *)(uintptr_t)c->list[i].path);
	free(c->list);
	memset(c, 0, sizeof(*c));
}

static bool wanted(const struct walk *w)
{
	for (size_t i = 0; i < w->spec->n_capture_patterns; i++)
		if (glob_match(w->spec->capture_patterns[i], w->path))
			return true;
	return false;
}

static int remember(struct walk *w, int64_t size)
{
	struct collected *c = w->c;

	if (c->n == c->size) {
		size_t more = c->size ? 2 * c->size : 16;
		struct store_artifact *list = realloc(c->list, more * sizeof(*list));

		if (!list)
			return sbx_fail(w->e, SBX_E_NO_MEMORY, "no memory for the artifacts");
		c->list = list;
		c->size = more;
	}
	c->list[c->n].path = strdup(w->path);
	c->list[c->n].size = size;
	if (!c->list[c->n].path)
		return sbx_fail(w->e, SBX_E_NO_MEMORY, "no memory for the artifacts");
	c->n++;
	c->bytes += size;
	w->left -= size;
	return 0;
}

static int open_out(struct walk *w)
{
	if (w->out >= 0)
		return 0;
	if (w->run_dir < 0)
		w->run_dir = store_run_dir(w->r->store, w->run_id, true, w->e);
	if (w->run_dir < 0)
		return w->run_dir;
	if (mkdirat(w->run_dir, "artifacts", 0700) < 0 && errno != EEXIST)
		return sbx_fail_errno(w->e, SBX_E_STORE_UNAVAILABLE, errno,
				      "cannot make the artifacts folder");
	w->out = sbx_open_beneath(w->run_dir, "artifacts", O_RDONLY | O_DIRECTORY, 0);
	return w->out < 0 ? sbx_fail_errno(w->e, SBX_E_STORE_UNAVAILABLE, -w->out,
					   "cannot open the artifacts folder")
			  : 0;
}

/* Copies an open plain file to its place. */
static int copy_out(struct walk *w, int in, int64_t size)
{
	sbx_autoclose int to = -1;
	uint64_t copied = 0;
	int r = open_out(w);

	if (r < 0)
		return r;
	r = sbx_mkdirs_beneath(w->out, w->path, 0700);
	if (r == 0) {
		to = sbx_open_beneath(w->out, w->path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
		r = to < 0 ? to : 0;
	}
	if (r == 0)
		r = sbx_copy_sparse(in, to, (uint64_t)size, &copied);
	if (r == 0 && w->c->n < COLLECT_SYNC_EACH && fdatasync(to) < 0)
		r = -errno;
	if (r < 0)
		return sbx_fail_errno(w->e, SBX_E_STORE_UNAVAILABLE, -r,
				      "cannot store artifact '%.200s'", w->path);
	return remember(w, (int64_t)copied);
}

static int take_file(struct walk *w, int dir, const char *name)
{
	/* O_NONBLOCK: a FIFO or device put in place of the file must not hold us. */
	sbx_autoclose int in =
		sbx_open_beneath(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0);
	struct collected *c = w->c;
	struct stat st;

	if (in < 0 || fstat(in, &st) < 0) {
		c->skip_read_error++;
		return 0;
	}
	if (!S_ISREG(st.st_mode)) {
		c->skip_invalid++;
		return 0;
	}
	if (st.st_size > c->limit_file) {
		c->skip_file_limit++;
		return 0;
	}
	if (st.st_size > w->left || c->n >= COLLECT_FILES) {
		c->skip_total_limit++;
		return 0;
	}
	return copy_out(w, in, st.st_size);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

static int no_dots(const struct dirent *d)
{
	return strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0;
}

static int walk_dir(struct walk *w, int dir, size_t len, int depth);

/* path[0..len) is the folder, "" or with its slash. */
static int visit(struct walk *w, int dir, const char *name, size_t len, int depth)
{
	size_t n = strlen(name);
	struct stat st;

	if (w->r->tick)
		w->r->tick(w->r->tick_ctx);
	/* Whoever makes a million names for 256 patterns gets what fits into the time. */
	if (sbx_boot_us() >= w->until_us) {
		w->c->skip_total_limit++;
		return 0;
	}
	if (len + n + 2 > sizeof(w->path)) {
		w->c->skip_invalid++;
		return 0;
	}
	memcpy(w->path + len, name, n + 1);
	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return 0;
	if (S_ISDIR(st.st_mode)) {
		sbx_autoclose int sub =
			sbx_open_beneath(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);

		if (sub < 0 || depth >= COLLECT_DEPTH) {
			w->c->skip_read_error++;
			return 0;
		}
		memcpy(w->path + len + n, "/", 2);
		return walk_dir(w, sub, len + n + 1, depth + 1);
	}
	if (!wanted(w))
		return 0;
	if (S_ISLNK(st.st_mode)) {
		w->c->skip_symlink++;
		return 0;
	}
	if (!S_ISREG(st.st_mode)) {
		w->c->skip_invalid++;
		return 0;
	}
	return take_file(w, dir, name);
}

static int walk_dir(struct walk *w, int dir, size_t len, int depth)
{
	struct dirent **names = NULL;
	int n = scandirat(dir, ".", &names, no_dots, by_name), r = 0;

	if (n < 0)
		w->c->skip_read_error++;
	for (int i = 0; i < n; i++) {
		if (r == 0)
			r = visit(w, dir, names[i]->d_name, len, depth);
		free(names[i]);
	}
	free(names);
	return r;
}

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

int collect_artifacts(const struct runner *r, const struct store_run *run,
		      const struct ms_run_spec *spec, int workspace, struct collected *ret,
		      struct sbx_error *e)
{
	const struct orch_settings *st = r->settings;
	struct walk w = { .until_us = sbx_boot_us() + COLLECT_SECONDS * SBX_SECOND_US,
			  .r = r,
			  .spec = spec,
			  .c = ret,
			  .out = -1,
			  .run_dir = -1,
			  .run_id = run->id,
			  .e = e };
	int64_t used = 0;
	int rc;

	if (spec->n_capture_patterns == 0 || workspace < 0)
		return 0;
	rc = store_usage_bytes(r->store, run->user, &used, e);
	if (rc < 0)
		return rc;
	ret->ran = true;
	ret->limit_file = st->max_artifact_file_bytes;
	ret->limit_total =
		least(st->max_artifact_total_bytes, st->max_artifact_bytes_per_run_mb << 20);
	w.left = least(ret->limit_total, (st->max_artifact_bytes_per_user_mb << 20) - used);
	rc = walk_dir(&w, workspace, 0, 0);
	if (rc == 0 && w.out >= 0 &&
	    ((ret->n > COLLECT_SYNC_EACH && syncfs(w.out) < 0) || fsync(w.out) < 0 ||
	     fsync(w.run_dir) < 0))
		rc = sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, errno,
				    "cannot store the artifacts");
	sbx_closep(&w.out);
	sbx_closep(&w.run_dir);
	return rc;
}
