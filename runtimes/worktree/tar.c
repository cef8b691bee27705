/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tar of GNU's kind, from a process that read a hostile repository: every byte is checked. No
 * library is used, because this runs in the runner, and the format is a page.
 */
#include "runtimes/worktree/wt_i.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fs.h"

enum { BLOCK = 512, NAME_MAX_BYTES = SBX_PATH_MAX };

/* A header; fields are not terminated. */
struct header {
	char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], sum[8], type, link[100];
	char rest[255];
};
_Static_assert(sizeof(struct header) == BLOCK, "a header is a block");

struct reader {
	const char *at;
	size_t left;
	char *long_name, *long_link; /* owned; of the next entry */
};

void wt_tree_clear(struct wt_tree *t)
{
	for (size_t i = 0; i < t->n; i++) {
		void *target;

		memcpy(&target, &t->list[i].data, sizeof(target));
		if (S_ISLNK(t->list[i].mode))
			free(target);
		memcpy(&target, &t->list[i].path, sizeof(target));
		free(target);
	}
	free(t->list);
	memset(t, 0, sizeof(*t));
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* Octal digits between spaces, up to a NUL, a space or the end of the field. */
static bool octal(const char *field, size_t n, uint64_t *ret)
{
	size_t i = 0, digits = 0;

	*ret = 0;
	while (i < n && field[i] == ' ')
		i++;
	for (; i < n && field[i] >= '0' && field[i] <= '7'; i++, digits++)
		*ret = *ret * 8 + (uint64_t)(field[i] - '0');
	return digits > 0 && digits <= 12 && (i == n || field[i] == '\0' || field[i] == ' ');
}

static bool sum_is_right(const struct header *h)
{
	const unsigned char *bytes = (const unsigned char *)h;
	size_t sum_at = offsetof(struct header, sum);
	uint64_t wanted, sum = 0;

	for (size_t i = 0; i < BLOCK; i++)
		sum += i >= sum_at && i < sum_at + sizeof(h->sum) ? ' ' : bytes[i];
	return octal(h->sum, sizeof(h->sum), &wanted) && wanted == sum;
}

static bool all_zero(const char *block)
{
	for (size_t i = 0; i < BLOCK; i++)
		if (block[i])
			return false;
	return true;
}

/* ---- entries --------------------------------------------------------------------------------- */

static int broken(struct sbx_error *e, const char *what)
{
	return sbx_fail(e, SBX_E_RUNTIME_ERROR, "the worktree's archive is broken: %s", what);
}

static int no_memory(struct sbx_error *e)
{
	return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the worktree");
}

/* Takes the content of an entry; NULL when there is less than it says. */
static const char *take(struct reader *in, uint64_t size)
{
	const char *content = in->at;
	uint64_t padded = (size + BLOCK - 1) / BLOCK * BLOCK;

	if (padded > in->left)
		return NULL;
	in->at += padded;
	in->left -= padded;
	return content;
}

/* The name that belongs to the next entry, when it has no room in its header. */
static int keep_long(char **slot, const char *content, uint64_t size, struct sbx_error *e)
{
	if (size == 0 || size > NAME_MAX_BYTES + 1)
		return broken(e, "a name is too long");
	free(*slot);
	*slot = strndup(content, size);
	return *slot ? 0 : no_memory(e);
}

static char *own_text(char **longer, const char *field, size_t n)
{
	return *longer ? sbx_steal(longer) : strndup(field, n);
}

static struct rt_file *add(struct wt_tree *t)
{
	if (t->n == t->size) {
		size_t size = t->size ? t->size * 2 : 256;
		struct rt_file *list = reallocarray(t->list, size, sizeof(*list));

		if (!list)
			return NULL;
		t->list = list;
		t->size = size;
	}
	t->list[t->n] = (struct rt_file){ .mode = 0 };
	return &t->list[t->n++];
}

/* "./a/b/" is "a/b"; "" is the top itself. */
static void make_plain(char *path)
{
	char *p = path;
	size_t n;

	while (p[0] == '.' && p[1] == '/')
		p += 2;
	n = strlen(p);
	while (n && p[n - 1] == '/')
		n--;
	memmove(path, p, n);
	path[n] = '\0';
	if (strcmp(path, ".") == 0)
		path[0] = '\0';
}

static mode_t mode_of(const struct header *h)
{
	uint64_t mode;

	return octal(h->mode, sizeof(h->mode), &mode) && (mode & 0100) ? 0755 : 0644;
}

/* A file, a link or a directory. */
static int take_entry(struct reader *in, const struct header *h, const char *content, uint64_t size,
		      struct wt_tree *t, struct sbx_error *e)
{
	sbx_autofree char *path = own_text(&in->long_name, h->name, sizeof(h->name));
	sbx_autofree char *target = own_text(&in->long_link, h->link, sizeof(h->link));
	struct rt_file *f;

	if (!path || !target)
		return no_memory(e);
	make_plain(path);
	if (!*path && h->type == '5')
		return 0;
	if (sbx_path_problem(path, strlen(path)))
		return broken(e, "a path leads elsewhere");
	if (h->type == '2' && !*target)
		return broken(e, "a link without a target");
	f = add(t);
	if (!f)
		return no_memory(e);
	f->path = sbx_steal(&path);
	if (h->type == '2') {
		f->mode = S_IFLNK;
		f->len = strlen(target);
		f->data = sbx_steal(&target);
	} else if (h->type == '5') {
		f->mode = S_IFDIR;
	} else {
		f->mode = mode_of(h);
		f->data = content;
		f->len = size;
	}
	return 0;
}

static int take_next(struct reader *in, const struct header *h, struct wt_tree *t,
		     struct sbx_error *e)
{
	const char *content;
	uint64_t size;

	if (!sum_is_right(h) || !octal(h->size, sizeof(h->size), &size))
		return broken(e, "a header is damaged");
	content = take(in, size);
	if (!content)
		return broken(e, "it is cut off");
	switch (h->type) {
	case 'L':
		return keep_long(&in->long_name, content, size, e);
	case 'K':
		return keep_long(&in->long_link, content, size, e);
	case '0':
	case '\0':
	case '2':
	case '5':
		return take_entry(in, h, content, size, t, e);
	default: /* sockets, pipes and devices stay where they are */
		free(sbx_steal(&in->long_name));
		free(sbx_steal(&in->long_link));
		return 0;
	}
}

int wt_tar_read(const void *tar, size_t len, size_t max, struct wt_tree *ret, struct sbx_error *e)
{
	struct reader in = { .at = tar, .left = len };
	int r = 0;

	memset(ret, 0, sizeof(*ret));
	for (;;) {
		const char *block = take(&in, BLOCK);
		struct header h;

		if (!block)
			r = broken(e, "it is cut off");
		if (r < 0 || all_zero(block))
			break;
		memcpy(&h, block, BLOCK);
		r = take_next(&in, &h, ret, e);
		if (r == 0 && ret->n > max)
			r = sbx_fail(e, SBX_E_WORKSPACE_CAP, "the worktree has more than %zu files",
				     max);
		if (r < 0)
			break;
	}
	free(in.long_name);
	free(in.long_link);
	if (r < 0)
		wt_tree_clear(ret);
	return r;
}
