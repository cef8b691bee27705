/* SPDX-License-Identifier: Apache-2.0 */
/* A snapshot as a tar in the pax format, straight from its objects. */
#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <locale.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/fs.h"
#include "store/snap_i.h"

enum { BLOCK = 64 << 10, LAST_BLOCK = 10240 };

struct tar {
	struct store *s;
	const struct snap *n;
	struct archive *out;
	struct archive_entry *entry;
	int fd;
	bool broken;	   /* no more of it */
	char *buffer;	   /* SNAP_COPY_BUFFER */
	uint32_t *written; /* by the first record of a file: its record that came first, or 0 */
};

static int failed(struct tar *t, struct sbx_error *e)
{
	int err = archive_errno(t->out);

	return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, err > 0 ? err : EIO,
			      "cannot write the archive");
}

/* The path of record i. */
static int path_of(const struct snap *n, uint32_t i, struct sbx_buf *ret)
{
	size_t len = 0, at;

	for (uint32_t k = i; k; k = n->records[k].parent)
		len += n->records[k].name_len + 1u;
	ret->len = 0;
	if (!sbx_buf_reserve(ret, len + 1))
		return -ENOMEM;
	at = len - 1;
	ret->data[at] = '\0';
	for (uint32_t k = i; k; k = n->records[k].parent) {
		at -= n->records[k].name_len;
		memcpy(ret->data + at, snap_name(n, k), n->records[k].name_len);
		if (at)
			ret->data[--at] = '/';
	}
	return 0;
}

static int describe(struct tar *t, uint32_t i, struct sbx_buf *path, struct sbx_error *e)
{
	const struct snap_record *rec = &t->n->records[i];
	char name[SNAP_XATTR_NAME_MAX + 1];
	struct snap_xattr x;
	uint32_t at = 0;

	if (path_of(t->n, i, path) < 0)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a path");
	archive_entry_set_pathname(t->entry, path->data);
	archive_entry_set_mode(t->entry, (mode_t)rec->mode);
	archive_entry_set_mtime(t->entry, rec->mtime_sec, (long)rec->mtime_nsec);
	archive_entry_set_uid(t->entry, 0);
	archive_entry_set_gid(t->entry, 0);
	archive_entry_set_size(t->entry, S_ISREG(rec->mode) ? rec->size : 0);
	while (snap_xattrs_next(t->n, rec, &at, &x)) {
		memcpy(name, x.name, x.name_len);
		name[x.name_len] = '\0';
		archive_entry_xattr_add_entry(t->entry, name, x.value, x.value_len);
	}
	if (S_ISLNK(rec->mode))
		archive_entry_set_symlink(t->entry, snap_target(t->n, i));
	if (S_ISREG(rec->mode) && t->written[rec->first]) {
		if (path_of(t->n, t->written[rec->first], path) < 0)
			return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a path");
		archive_entry_set_size(t->entry, 0);
		archive_entry_set_hardlink(t->entry, path->data);
	}
	return 0;
}

static int write_content(struct tar *t, uint32_t i, struct sbx_error *e)
{
	struct snap_entry entry;
	sbx_autoclose int fd = -1;
	char buf[256];

	(void)snap_entry(t->n, i, &entry);
	fd = snap_content(t->s, &entry);
	if (fd < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, -fd,
				      "cannot open the content of '%s'",
				      snap_where(t->n, i, buf, sizeof(buf)));
	for (int64_t left = entry.size; left > 0;) {
		ssize_t n = sbx_read_full(fd, t->buffer, SNAP_COPY_BUFFER);

		if (n <= 0)
			return snap_storage(e, n < 0 ? (int)-n : EIO, "read an object");
		if (archive_write_data(t->out, t->buffer, (size_t)n) != n)
			return failed(t, e);
		left -= n;
	}
	return 0;
}

static int write_entry(struct tar *t, uint32_t i, struct sbx_buf *path, struct sbx_error *e)
{
	const struct snap_record *rec = &t->n->records[i];
	int r;

	archive_entry_clear(t->entry);
	r = describe(t, i, path, e);
	if (r < 0)
		return r;
	/* A warning is about a name that is no text; it is written as bytes. */
	if (archive_write_header(t->out, t->entry) < ARCHIVE_WARN)
		return failed(t, e);
	if (!S_ISREG(rec->mode) || t->written[rec->first])
		return 0;
	t->written[rec->first] = i;
	return rec->size ? write_content(t, i, e) : 0;
}

/* Depth first: whoever unpacks it sets the times of a directory when it comes to the next. */
static int write_all(struct tar *t, struct sbx_error *e)
{
	sbx_autobuf path = SBX_BUF_INIT(2ul * SNAP_TEXT_MAX);
	const struct snap_record *records = t->n->records;
	uint32_t dir = 0, at = records[0].first;
	int r = 0;

	while (r == 0) {
		if (records[dir].count == 0 || at == records[dir].first + records[dir].count) {
			if (dir == 0)
				break;
			at = dir + 1;
			dir = records[dir].parent;
			continue;
		}
		r = write_entry(t, at, &path, e);
		if (S_ISDIR(records[at].mode)) {
			dir = at;
			at = records[dir].first;
		} else {
			at++;
		}
	}
	return r;
}

/* libarchive writes an end mark when it is freed, which must not stand behind a part of a tree. */
static la_ssize_t write_part(struct archive *a, void *ctx, const void *data, size_t len)
{
	struct tar *t = ctx;
	int r = t->broken ? -EPIPE : sbx_write_all(t->fd, data, len);

	if (r == 0)
		return (la_ssize_t)len;
	archive_set_error(a, -r, "cannot write");
	return -1;
}

static int begin(struct tar *t, struct sbx_error *e)
{
	t->out = archive_write_new();
	t->entry = archive_entry_new();
	t->buffer = malloc(SNAP_COPY_BUFFER);
	t->written = calloc(t->n->n, sizeof(*t->written));
	if (!t->out || !t->entry || !t->buffer || !t->written)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for an archive");
	if (archive_write_set_format_pax(t->out) != ARCHIVE_OK ||
	    archive_write_set_bytes_per_block(t->out, BLOCK) != ARCHIVE_OK ||
	    archive_write_set_bytes_in_last_block(t->out, LAST_BLOCK) != ARCHIVE_OK ||
	    archive_write_open(t->out, t, NULL, write_part, NULL) != ARCHIVE_OK)
		return failed(t, e);
	return 0;
}

int snap_export(struct store *s, const char *id, int fd, struct sbx_error *e)
{
	snap_auto struct snap *n = NULL;
	struct tar t = { .s = s, .fd = fd };
	/* Names that are UTF-8 are written as such, whatever locale the program has. */
	locale_t text = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0), old = (locale_t)0;
	int r = snap_open(s, id, &n, e);

	if (text)
		old = uselocale(text);
	t.n = n;
	if (r == 0)
		r = begin(&t, e);
	if (r == 0)
		r = write_all(&t, e);
	if (r == 0 && archive_write_close(t.out) != ARCHIVE_OK)
		r = failed(&t, e);
	t.broken = r < 0;
	archive_entry_free(t.entry);
	if (t.out)
		(void)archive_write_free(t.out);
	free(t.buffer);
	free(t.written);
	if (text) {
		(void)uselocale(old);
		freelocale(text);
	}
	return r;
}
