/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A snapshot as a tar, in the interchange format of POSIX (pax), straight from its objects. What
 * stands where is known from the manifest alone, and the same snapshot is always the same bytes: so
 * the size is true before a byte is read, any part can be read by itself, and nothing is kept but
 * where each entry begins.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/utf8.h"
#include "store/snap_i.h"

enum {
	BLOCK = 512,
	LAST_BLOCK = 10240, /* the whole is a multiple, as tar programs write it */
	NAME_FIELD = 100,
	HEADERS_MAX = 1 << 24, /* of one entry: its path, target and attributes */
};
#define SIZE_FIELD_MAX 077777777777LL /* of sizes and times that need no record */

/* One entry, in the order of the tar: depth first, so that whoever unpacks it can set the times of
 * a directory when it comes to the next. */
struct tar_entry {
	int64_t at;		 /* of its headers */
	uint32_t record, target; /* target: the record that it is another name of, 0: none */
};
struct snap_tar {
	struct store *s;	   /* borrowed */
	struct snap *n;		   /* owns */
	struct tar_entry *entries; /* owns; one more, which is the end */
	uint32_t count;
	int64_t size;
	struct sbx_buf head; /* of the entry `current` */
	struct sbx_buf path, other;
	uint32_t current; /* index plus one; 0: none */
	int fd;		  /* its content; -1: not open */
};

/* ---- headers --------------------------------------------------------------------------------- */

/* The path of record i, with a slash behind a directory. */
static int path_of(const struct snap *n, uint32_t i, struct sbx_buf *ret)
{
	size_t len = S_ISDIR(n->records[i].mode) ? 1 : 0, at;

	for (uint32_t k = i; k; k = n->records[k].parent)
		len += n->records[k].name_len + 1u;
	ret->len = 0;
	if (!sbx_buf_reserve(ret, len + 1))
		return -ENOMEM;
	ret->len = at = len - 1;
	ret->data[at] = '\0';
	if (S_ISDIR(n->records[i].mode))
		ret->data[--at] = '/';
	for (uint32_t k = i; k; k = n->records[k].parent) {
		at -= n->records[k].name_len;
		memcpy(ret->data + at, snap_name(n, k), n->records[k].name_len);
		if (at)
			ret->data[--at] = '/';
	}
	return 0;
}

/* "LENGTH KEY=VALUE\n", where the length counts itself. */
static void add_record(struct sbx_buf *out, const char *key, const void *value, size_t len)
{
	size_t rest = strlen(key) + len + 3, digits = 1, total;
	char text[24];

	do {
		total = rest + digits;
		digits = (size_t)snprintf(text, sizeof(text), "%zu", total);
	} while (total != rest + digits);
	sbx_buf_puts(out, text);
	sbx_buf_puts(out, " ");
	sbx_buf_puts(out, key);
	sbx_buf_puts(out, "=");
	sbx_buf_add(out, value, len);
	sbx_buf_puts(out, "\n");
}

static bool is_plain(const struct sbx_buf *text)
{
	for (size_t i = 0; i < text->len; i++)
		if ((unsigned char)text->data[i] >= 0x80)
			return false;
	return text->len <= NAME_FIELD;
}

static void add_time(struct sbx_buf *out, const struct snap_record *r)
{
	/* A time before 1970 is a whole number of seconds before, and a fraction after that. */
	bool before = r->mtime_sec < 0 && r->mtime_nsec;
	int64_t sec = r->mtime_sec + before;
	uint32_t nsec = before ? 1000000000u - r->mtime_nsec : r->mtime_nsec;
	char text[48];
	int n = snprintf(text, sizeof(text), "%s%lld", before && sec == 0 ? "-" : "",
			 (long long)sec);

	if (nsec)
		n += snprintf(text + n, sizeof(text) - (size_t)n, ".%09u", nsec);
	add_record(out, "mtime", text, (size_t)n);
}

static void add_xattrs(struct sbx_buf *out, const struct snap *n, const struct snap_record *r)
{
	static const char prefix[] = "SCHILY.xattr.";
	char key[sizeof(prefix) + SNAP_XATTR_NAME_MAX];
	struct snap_xattr x;
	uint32_t at = 0;

	while (snap_xattrs_next(n, r, &at, &x)) {
		(void)snprintf(key, sizeof(key), "%s%.*s", prefix, (int)x.name_len, x.name);
		add_record(out, key, x.value, x.value_len);
	}
}

/* What the header below has no room for. */
static void add_records(const struct snap_tar *t, const struct snap_record *r, bool linked,
			struct sbx_buf *out)
{
	bool text = sbx_utf8_valid(t->path.data, t->path.len) &&
		    (!linked || sbx_utf8_valid(t->other.data, t->other.len));
	char size[24];
	int n;

	if (!text)
		add_record(out, "hdrcharset", "BINARY", 6);
	if (!is_plain(&t->path))
		add_record(out, "path", t->path.data, t->path.len);
	if (linked && !is_plain(&t->other))
		add_record(out, "linkpath", t->other.data, t->other.len);
	if (S_ISREG(r->mode) && !linked && r->size > SIZE_FIELD_MAX) {
		n = snprintf(size, sizeof(size), "%lld", (long long)r->size);
		add_record(out, "size", size, (size_t)n);
	}
	if (r->mtime_nsec || r->mtime_sec < 0 || r->mtime_sec > SIZE_FIELD_MAX)
		add_time(out, r);
	add_xattrs(out, t->n, r);
}

/* As the format has it: octal digits, and what was unused is NUL. */
struct header {
	char name[NAME_FIELD], mode[8], uid[8], gid[8], size[12], mtime[12], sum[8], type;
	char link[NAME_FIELD], magic[6], version[2], user[32], group[32], major[8], minor[8];
	char prefix[155], unused[12];
};
_Static_assert(sizeof(struct header) == BLOCK, "a header is a block");

static void octal(char *field, size_t size, int64_t value)
{
	char text[24];

	(void)snprintf(text, sizeof(text), "%0*llo", (int)size - 1, (unsigned long long)value);
	memcpy(field, text, size);
}

static void add_header(struct sbx_buf *out, const char *name, mode_t mode, int64_t size,
		       int64_t mtime, char type, const char *link)
{
	struct header h = { .type = type, .magic = "ustar", .version = { '0', '0' } };
	unsigned sum = 0;

	memcpy(h.name, name, strnlen(name, sizeof(h.name)));
	memcpy(h.link, link, strnlen(link, sizeof(h.link)));
	octal(h.mode, sizeof(h.mode), mode);
	octal(h.uid, sizeof(h.uid), 0);
	octal(h.gid, sizeof(h.gid), 0);
	octal(h.size, sizeof(h.size), size > SIZE_FIELD_MAX ? 0 : size);
	octal(h.mtime, sizeof(h.mtime), mtime < 0 || mtime > SIZE_FIELD_MAX ? 0 : mtime);
	octal(h.major, sizeof(h.major), 0);
	octal(h.minor, sizeof(h.minor), 0);
	memset(h.sum, ' ', sizeof(h.sum));
	for (size_t i = 0; i < sizeof(h); i++)
		sum += ((const unsigned char *)&h)[i];
	octal(h.sum, sizeof(h.sum) - 1, sum);
	sbx_buf_add(out, &h, sizeof(h));
}

static int64_t padded(int64_t len)
{
	return (len + BLOCK - 1) / BLOCK * BLOCK;
}

static void pad(struct sbx_buf *out)
{
	static const char zeros[BLOCK];

	sbx_buf_add(out, zeros, (size_t)(padded((int64_t)out->len) - (int64_t)out->len));
}

static char type_of(const struct snap_record *r, bool another_name)
{
	return another_name ? '1' : S_ISDIR(r->mode) ? '5' : S_ISLNK(r->mode) ? '2' : '0';
}

/* The headers of an entry into t->head. */
static int make_head(struct snap_tar *t, const struct tar_entry *en)
{
	const struct snap_record *r = &t->n->records[en->record];
	bool linked = en->target || S_ISLNK(r->mode);
	sbx_autobuf records = SBX_BUF_INIT(HEADERS_MAX);

	t->head.len = t->other.len = 0;
	if (path_of(t->n, en->record, &t->path) < 0 ||
	    (en->target && path_of(t->n, en->target, &t->other) < 0))
		return -ENOMEM;
	if (linked && !en->target)
		sbx_buf_puts(&t->other, snap_target(t->n, en->record));
	add_records(t, r, linked, &records);
	if (records.len) {
		add_header(&t->head, "././@PaxHeader", 0644, (int64_t)records.len, 0, 'x', "");
		sbx_buf_add(&t->head, records.data, records.len);
		pad(&t->head);
	}
	add_header(&t->head, t->path.data, r->mode & SNAP_MODE_MASK,
		   S_ISREG(r->mode) && !linked ? r->size : 0, r->mtime_sec,
		   type_of(r, en->target != 0), linked ? t->other.data : "");
	return records.failed || t->head.failed || t->path.failed || t->other.failed ? -ENOMEM : 0;
}

static int64_t content_of(const struct snap_tar *t, const struct tar_entry *en)
{
	const struct snap_record *r = &t->n->records[en->record];

	return S_ISREG(r->mode) && !en->target ? r->size : 0;
}

/* ---- where everything is --------------------------------------------------------------------- */

/* written: by the first record of a file, its record that came first, or 0. */
static int place(struct snap_tar *t, uint32_t i, uint32_t *written)
{
	const struct snap_record *r = &t->n->records[i];
	struct tar_entry *en = &t->entries[t->count++];
	int rc;

	*en = (struct tar_entry){ .at = t->size, .record = i };
	if (S_ISREG(r->mode)) {
		en->target = written[r->first];
		if (!en->target)
			written[r->first] = i;
	}
	rc = make_head(t, en);
	t->size += (int64_t)t->head.len + padded(content_of(t, en));
	return rc;
}

static int place_all(struct snap_tar *t)
{
	const struct snap_record *records = t->n->records;
	sbx_autofree uint32_t *written = calloc(t->n->n, sizeof(*written));
	uint32_t dir = 0, at = records[0].first;
	int r = written ? 0 : -ENOMEM;

	while (r == 0) {
		if (records[dir].count == 0 || at == records[dir].first + records[dir].count) {
			if (dir == 0)
				break;
			at = dir + 1;
			dir = records[dir].parent;
			continue;
		}
		r = place(t, at, written);
		if (S_ISDIR(records[at].mode)) {
			dir = at;
			at = records[at].first;
		} else {
			at++;
		}
	}
	t->entries[t->count].at = t->size;
	t->size += 2LL * BLOCK;
	t->size = (t->size + LAST_BLOCK - 1) / LAST_BLOCK * LAST_BLOCK;
	return r;
}

struct snap_tar *snap_tar_close(struct snap_tar *t)
{
	if (!t)
		return NULL;
	sbx_closep(&t->fd);
	sbx_buf_free(&t->head);
	sbx_buf_free(&t->path);
	sbx_buf_free(&t->other);
	free(t->entries);
	snap_close(t->n);
	free(t);
	return NULL;
}

int snap_tar_open(struct store *s, const char *id, struct snap_tar **ret, struct sbx_error *e)
{
	struct snap_tar *t = calloc(1, sizeof(*t));
	int r;

	if (!t)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for an archive");
	t->s = s;
	t->fd = -1;
	t->head = (struct sbx_buf)SBX_BUF_INIT(2ul * HEADERS_MAX);
	t->path = t->other = (struct sbx_buf)SBX_BUF_INIT(2ul * SNAP_TEXT_MAX);
	r = snap_open(s, id, &t->n, e);
	if (r == 0) {
		t->entries = calloc((size_t)t->n->n + 1, sizeof(*t->entries));
		if (!t->entries || place_all(t) < 0)
			r = sbx_fail(e, SBX_E_NO_MEMORY, "no memory for an archive");
	}
	if (r < 0)
		t = snap_tar_close(t);
	*ret = t;
	return r;
}

int64_t snap_tar_size(const struct snap_tar *t)
{
	return t->size;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* The entry that this byte is in; count: it is behind all of them. */
static uint32_t entry_at(const struct snap_tar *t, int64_t off)
{
	uint32_t low = 0, high = t->count;

	while (low < high) {
		uint32_t mid = low + (high - low) / 2;

		if (t->entries[mid + 1].at <= off)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

static int go_to(struct snap_tar *t, uint32_t i)
{
	int r;

	if (t->current == i + 1)
		return 0;
	t->current = 0;
	sbx_closep(&t->fd);
	r = make_head(t, &t->entries[i]);
	if (r == 0)
		t->current = i + 1;
	return r;
}

static ssize_t read_content(struct snap_tar *t, const struct tar_entry *en, char *to, size_t len,
			    int64_t off)
{
	ssize_t n;

	if (t->fd < 0) {
		struct snap_entry entry;

		(void)snap_entry(t->n, en->record, &entry);
		t->fd = snap_content(t->s, &entry);
		if (t->fd < 0)
			return t->fd;
	}
	do {
		n = pread(t->fd, to, len, off);
	} while (n < 0 && errno == EINTR);
	return n > 0 ? n : n == 0 ? -EIO : -errno;
}

/* Some bytes of one entry, at least one. */
static ssize_t read_some(struct snap_tar *t, char *to, size_t len, int64_t off)
{
	uint32_t i = entry_at(t, off);
	const struct tar_entry *en = &t->entries[i];
	int64_t in = off - en->at, content;
	int r;

	if (i == t->count) { /* the end mark, and what follows it */
		memset(to, 0, len);
		return (ssize_t)len;
	}
	r = go_to(t, i);
	if (r < 0)
		return r;
	if (len > (size_t)(t->entries[i + 1].at - off))
		len = (size_t)(t->entries[i + 1].at - off);
	if (in < (int64_t)t->head.len) {
		if (len > t->head.len - (size_t)in)
			len = t->head.len - (size_t)in;
		memcpy(to, t->head.data + in, len);
		return (ssize_t)len;
	}
	in -= (int64_t)t->head.len;
	content = content_of(t, en);
	if (in < content) {
		if ((int64_t)len > content - in)
			len = (size_t)(content - in);
		return read_content(t, en, to, len, in);
	}
	memset(to, 0, len);
	return (ssize_t)len;
}

ssize_t snap_tar_read(struct snap_tar *t, void *to, size_t len, int64_t off)
{
	size_t done = 0;

	if (off < 0 || off >= t->size)
		return 0;
	if ((int64_t)len > t->size - off)
		len = (size_t)(t->size - off);
	while (done < len) {
		ssize_t n = read_some(t, (char *)to + done, len - done, off + (int64_t)done);

		if (n < 0)
			return n;
		done += (size_t)n;
	}
	return (ssize_t)done;
}

int snap_export(struct store *s, const char *id, int fd, struct sbx_error *e)
{
	struct snap_tar *t = NULL;
	sbx_autofree char *buf = malloc(SNAP_COPY_BUFFER);
	int r = buf ? snap_tar_open(s, id, &t, e) : sbx_fail(e, SBX_E_NO_MEMORY, "no memory");

	for (int64_t off = 0; r == 0 && off < t->size; off += SNAP_COPY_BUFFER) {
		ssize_t n = snap_tar_read(t, buf, SNAP_COPY_BUFFER, off);

		if (n < 0) {
			r = snap_storage(e, (int)-n, "read an object");
			break;
		}
		n = sbx_write_all(fd, buf, (size_t)n);
		if (n < 0)
			r = snap_storage(e, (int)-n, "write the archive");
	}
	snap_tar_close(t);
	return r;
}
