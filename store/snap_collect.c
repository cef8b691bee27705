/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What no snapshot needs any more: manifests without a row, contents without a manifest, files of a
 * snapshot that was not finished. Nobody takes one meanwhile, so what has a temporary name is
 * nobody's.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/crash.h"
#include "base/fs.h"
#include "store/snap_i.h"

struct collection {
	struct store *s;
	bool (*known)(void *ctx, const char *id);
	void *ctx;
	struct snap_table needed;
	uint8_t group; /* first byte of the hashes in the directory of objects */
	int64_t freed;
};

static void close_dir(DIR **d)
{
	if (*d)
		(void)closedir(*d);
}

/* Calls each for every name in the directory fd; takes fd. */
static int each_name(struct collection *c, int fd,
		     int (*each)(struct collection *c, int dir, const char *name,
				 struct sbx_error *e),
		     struct sbx_error *e)
{
	SBX_AUTO(close_dir) DIR *dir = fdopendir(fd);
	const struct dirent *d;
	int r = 0;

	if (!dir) {
		r = snap_storage(e, errno, "list a directory of snapshots");
		(void)close(fd);
		return r;
	}
	while (r == 0 && (errno = 0, (d = readdir(dir)))) {
		if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0)
			r = each(c, dirfd(dir), d->d_name, e);
	}
	if (r == 0 && errno)
		r = snap_storage(e, errno, "list a directory of snapshots");
	return r;
}

static int remove_file(struct collection *c, int dir, const char *name, struct sbx_error *e)
{
	struct stat st;

	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : snap_storage(e, errno, "look at what is not needed");
	if (unlinkat(dir, name, 0) < 0)
		return errno == ENOENT ? 0 : snap_storage(e, errno, "remove what is not needed");
	c->freed += st.st_size;
	return 0;
}

static bool is_temporary(const char *name)
{
	return strncmp(name, "new-", 4) == 0;
}

/* What a manifest names is needed. One that is damaged may name anything, so nothing is removed. */
static int read_manifest(struct collection *c, const char *id, struct sbx_error *e)
{
	snap_auto struct snap *n = NULL;
	int r = snap_open(c->s, id, &n, e);

	if (r == -SBX_E_SNAPSHOT_NOT_FOUND) {
		sbx_error_clear(e); /* dropped just now */
		return 0;
	}
	for (uint32_t i = 0; r == 0 && i < n->n; i++)
		if (S_ISREG(n->records[i].mode) && n->records[i].size &&
		    snap_table_add(&c->needed, n->records[i].hash, 0, NULL) < 0)
			r = sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the hashes of objects");
	return r;
}

static int visit_manifest(struct collection *c, int dir, const char *name, struct sbx_error *e)
{
	if (sbx_id_valid(name))
		return c->known(c->ctx, name) ? read_manifest(c, name, e)
					      : remove_file(c, dir, name, e);
	return is_temporary(name) ? remove_file(c, dir, name, e) : 0;
}

static int hex_digit(char ch)
{
	return ch >= '0' && ch <= '9' ? ch - '0' : ch >= 'a' && ch <= 'f' ? ch - 'a' + 10 : -1;
}

/* len digits at text into out; false when they are others. */
static bool parse_hex(const char *text, size_t len, uint8_t *out)
{
	for (size_t i = 0; i < len; i += 2) {
		int high = hex_digit(text[i]), low = high < 0 ? -1 : hex_digit(text[i + 1]);

		if (low < 0)
			return false;
		out[i / 2] = (uint8_t)(high << 4 | low);
	}
	return text[len] == '\0';
}

static int visit_object(struct collection *c, int dir, const char *name, struct sbx_error *e)
{
	uint8_t hash[SNAP_HASH_LEN] = { c->group };

	if (!parse_hex(name, (size_t)2 * (SNAP_HASH_LEN - 1), hash + 1))
		return 0;
	return snap_table_has(&c->needed, hash) ? 0 : remove_file(c, dir, name, e);
}

static int visit_group(struct collection *c, int dir, const char *name, struct sbx_error *e)
{
	int fd;

	if (is_temporary(name))
		return remove_file(c, dir, name, e);
	if (!parse_hex(name, 2, &c->group))
		return 0;
	fd = sbx_open_beneath(dir, name, O_RDONLY | O_DIRECTORY, 0);
	if (fd < 0)
		return snap_storage(e, -fd, "open a directory of objects");
	return each_name(c, fd, visit_object, e);
}

static int collect(struct collection *c, struct sbx_error *e)
{
	int fd = snap_dir(c->s, SNAP_DIR_MANIFESTS, false), r = 0;

	if (fd >= 0)
		r = each_name(c, fd, visit_manifest, e);
	else if (fd != -ENOENT)
		r = snap_storage(e, -fd, "open the directory of snapshots");
	crash_point("snap_collect_read");
	if (r < 0)
		return r;
	fd = snap_dir(c->s, SNAP_DIR_OBJECTS, false);
	if (fd >= 0)
		r = each_name(c, fd, visit_group, e);
	else if (fd != -ENOENT)
		r = snap_storage(e, -fd, "open the directory of objects");
	crash_point("snap_collect_removed");
	return r;
}

int snap_collect(struct store *s, bool (*known)(void *ctx, const char *id), void *ctx,
		 int64_t *ret_bytes, struct sbx_error *e)
{
	struct collection c = { .s = s, .known = known, .ctx = ctx };
	sbx_autoclose int lock = snap_lock(s, LOCK_EX | LOCK_NB);
	sbx_autoerror why = SBX_ERROR_INIT;
	int r;

	*ret_bytes = 0;
	if (lock == -EWOULDBLOCK) {
		*ret_bytes = -1;
		return 0;
	}
	if (lock < 0)
		return snap_storage(e, -lock, "lock the objects");
	r = collect(&c, e ? e : &why);
	*ret_bytes = c.freed;
	snap_table_fini(&c.needed);
	return r;
}
