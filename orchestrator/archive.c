/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The only file that knows libarchive. What it is fed may be made to hurt: so formats are named one
 * by one, everything that is unpacked is counted whether it is wanted or not, and nothing that a
 * header says about sizes is believed before the bytes are there.
 */
#include "orchestrator/unpack.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <locale.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum {
	BLOCK = 64 << 10,
	/* Before the first entry: the directory of a zip is read whole, and kept. 100,000 entries
	 * with names of a hundred bytes fit. */
	HEAD_MAX = 16 << 20,
	FILTERS_MAX = 2, /* one compression, and libarchive's own reader of the file */
};

struct orch_archive {
	int fd; /* borrowed */
	int64_t size, at, pulled;
	struct orch_archive_options opts;
	struct archive *plain; /* owns: takes the compression away, for the digest; or NULL */
	struct archive *ar;    /* owns */
	EVP_MD_CTX *md;	       /* owns; with plain */
	locale_t locale;       /* owns: names in archives are UTF-8, whatever this process speaks */
	int64_t entries, work;
	bool begun, over;
	struct archive_entry *entry; /* libarchive's, until the next step */
	char complaint[160];
	char path[SBX_PATH_MAX + 1];
	char block[BLOCK];
};

/* ---- names ----------------------------------------------------------------------------------- */

const char *orch_archive_path(const char *name, bool rooted, char ret[SBX_PATH_MAX + 1])
{
	size_t len = 0, depth = 0;

	ret[0] = '\0';
	if (*name == '/' && !rooted)
		return "is absolute";
	for (const char *p = name; *p;) {
		size_t n = strcspn(p, "/");

		if (n == 2 && p[0] == '.' && p[1] == '.')
			return "has a part '..'";
		if (n > SBX_NAME_MAX)
			return "has a name longer than 255 bytes";
		if (n > 0 && !(n == 1 && p[0] == '.')) {
			if (len + (len > 0) + n > SBX_PATH_MAX)
				return "is longer than 4095 bytes";
			if (++depth > ORCH_ARCHIVE_DEPTH_MAX)
				return "is too deep";
			if (len)
				ret[len++] = '/';
			memcpy(ret + len, p, n);
			len += n;
			ret[len] = '\0';
		}
		p += n + (p[n] == '/');
	}
	return NULL;
}

/* ---- bytes in -------------------------------------------------------------------------------- */

static ssize_t pull(struct archive *ar, void *ctx, const void **ret)
{
	struct orch_archive *a = ctx;
	ssize_t n;

	do {
		n = pread(a->fd, a->block, sizeof(a->block), a->at);
	} while (n < 0 && errno == EINTR);
	if (n < 0) {
		archive_set_error(ar, errno, "cannot be read");
		return -1;
	}
	a->at += n;
	a->pulled += n;
	if (!a->begun && a->pulled > HEAD_MAX) {
		archive_set_error(ar, E2BIG, "has too large a directory");
		return -1;
	}
	*ret = a->block;
	return n;
}

static la_int64_t skip(struct archive *ar, void *ctx, la_int64_t n)
{
	struct orch_archive *a = ctx;

	(void)ar;
	if (n < 0)
		return 0;
	if (n > a->size - a->at)
		n = a->size > a->at ? a->size - a->at : 0;
	a->at += n;
	return n;
}

static la_int64_t seek(struct archive *ar, void *ctx, la_int64_t off, int whence)
{
	struct orch_archive *a = ctx;
	int64_t base = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? a->at : a->size;
	int64_t to;

	if (__builtin_add_overflow(base, off, &to) || to < 0 || to > a->size) {
		archive_set_error(ar, EINVAL, "points outside itself");
		return ARCHIVE_FATAL;
	}
	a->at = to;
	return to;
}

/* More was unpacked. False: it is too much. */
static bool count(struct orch_archive *a, int64_t n)
{
	a->work += n;
	if (a->work <= a->opts.limits.bytes)
		return true;
	a->over = true;
	(void)snprintf(a->complaint, sizeof(a->complaint), "unpacks to more than %lld bytes",
		       (long long)a->opts.limits.bytes);
	return false;
}

/* The tar behind the compression, on its way from `plain` to `ar`. */
static ssize_t pull_plain(struct archive *ar, void *ctx, const void **ret)
{
	struct orch_archive *a = ctx;
	size_t n = 0;
	int r = 0;

	/* Blocks of no bytes are not the end, and to the reader they would be. */
	while (n == 0) {
		la_int64_t off;

		r = archive_read_data_block(a->plain, ret, &n, &off);
		if (r == ARCHIVE_EOF)
			return 0;
		if (r < ARCHIVE_WARN) {
			archive_set_error(ar, archive_errno(a->plain), "%s",
					  archive_error_string(a->plain));
			return -1;
		}
	}
	if (!count(a, (int64_t)n) || EVP_DigestUpdate(a->md, *ret, n) != 1) {
		archive_set_error(ar, E2BIG, "is too large");
		return -1;
	}
	return (ssize_t)n;
}

/* ---- opening --------------------------------------------------------------------------------- */

static int add_callbacks(struct orch_archive *a, struct archive *ar)
{
	return archive_read_set_read_callback(ar, pull) == ARCHIVE_OK &&
			       archive_read_set_skip_callback(ar, skip) == ARCHIVE_OK &&
			       archive_read_set_seek_callback(ar, seek) == ARCHIVE_OK &&
			       archive_read_set_callback_data(ar, a) == ARCHIVE_OK
		       ? 0
		       : -1;
}

/* Each by itself: "all" would bring formats that nobody asked for. A compression that was not built
 * in answers with a warning, and would be done by whatever program has its name. */
static int add_filters(struct archive *ar)
{
	return archive_read_support_filter_gzip(ar) == ARCHIVE_OK &&
			       archive_read_support_filter_bzip2(ar) == ARCHIVE_OK &&
			       archive_read_support_filter_xz(ar) == ARCHIVE_OK &&
			       archive_read_support_filter_zstd(ar) == ARCHIVE_OK
		       ? 0
		       : -1;
}

static int configure(struct orch_archive *a)
{
	if (!(a->ar = archive_read_new()))
		return -1;
	if (a->opts.kind == ORCH_ARCHIVE_ZIP)
		/* The other reader of zip does not see the directory, where links are told from
		 * files. */
		return archive_read_support_format_zip_seekable(a->ar) == ARCHIVE_OK
			       ? add_callbacks(a, a->ar)
			       : -1;
	if (archive_read_support_format_tar(a->ar) != ARCHIVE_OK)
		return -1;
	if (!a->opts.digest)
		return add_filters(a->ar) < 0 ? -1 : add_callbacks(a, a->ar);
	if (!(a->plain = archive_read_new()) || !(a->md = EVP_MD_CTX_new()) ||
	    EVP_DigestInit_ex(a->md, EVP_sha256(), NULL) != 1 ||
	    archive_read_support_format_raw(a->plain) != ARCHIVE_OK || add_filters(a->plain) < 0 ||
	    add_callbacks(a, a->plain) < 0)
		return -1;
	return archive_read_set_read_callback(a->ar, pull_plain) == ARCHIVE_OK &&
			       archive_read_set_callback_data(a->ar, a) == ARCHIVE_OK
		       ? 0
		       : -1;
}

int orch_archive_open(int fd, const struct orch_archive_options *opts, struct orch_archive **ret,
		      struct sbx_error *e)
{
	SBX_AUTO(orch_archive_closep) struct orch_archive *a = calloc(1, sizeof(*a));
	struct stat st;

	if (!a)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	if (fstat(fd, &st) < 0)
		return sbx_fail_errno(e, SBX_E_INTERNAL, errno, "cannot look at an archive");
	a->fd = fd;
	a->size = st.st_size;
	a->opts = *opts;
	a->locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
	if (configure(a) < 0)
		return sbx_fail(e, SBX_E_INTERNAL, "libarchive cannot read this kind of archive");
	*ret = sbx_steal(&a);
	return 0;
}

struct orch_archive *orch_archive_close(struct orch_archive *a)
{
	if (!a)
		return NULL;
	if (a->ar)
		(void)archive_read_free(a->ar);
	if (a->plain)
		(void)archive_read_free(a->plain);
	EVP_MD_CTX_free(a->md);
	if (a->locale)
		freelocale(a->locale);
	free(a);
	return NULL;
}

const char *orch_archive_complaint(const struct orch_archive *a)
{
	return a->complaint;
}

/* ---- entries --------------------------------------------------------------------------------- */

static int complain(struct orch_archive *a, int r, struct sbx_error *e)
{
	const char *text = archive_error_string(a->ar);

	if (a->over)
		return ORCH_ARCHIVE_OVER;
	if (archive_errno(a->ar) == ENOMEM)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory to read an archive");
	(void)snprintf(a->complaint, sizeof(a->complaint), "%s", text ? text : "cannot be read");
	return r == ARCHIVE_FATAL ? ORCH_ARCHIVE_BROKEN : ORCH_ARCHIVE_SPOILT;
}

static int begin(struct orch_archive *a, struct sbx_error *e)
{
	struct archive_entry *ignored;
	int r = a->plain ? archive_read_open1(a->plain) : ARCHIVE_OK;

	if (r == ARCHIVE_OK && a->plain)
		r = archive_read_next_header(a->plain, &ignored);
	if (r != ARCHIVE_OK || a->size == 0) {
		(void)snprintf(a->complaint, sizeof(a->complaint), "is empty or cannot be read");
		return ORCH_ARCHIVE_BROKEN;
	}
	r = archive_read_open1(a->ar);
	return r < ARCHIVE_WARN ? complain(a, ARCHIVE_FATAL, e) : ORCH_ARCHIVE_OK;
}

static enum orch_archive_type type_of(struct archive_entry *en)
{
	if (archive_entry_hardlink(en))
		return ORCH_ARCHIVE_HARDLINK;
	switch (archive_entry_filetype(en)) {
	case AE_IFREG:
		return ORCH_ARCHIVE_FILE;
	case AE_IFDIR:
		return ORCH_ARCHIVE_DIR;
	case AE_IFLNK:
		return ORCH_ARCHIVE_SYMLINK;
	default:
		return ORCH_ARCHIVE_OTHER;
	}
}

static void describe(struct orch_archive *a, struct archive_entry *en,
		     struct orch_archive_entry *ret)
{
	memset(ret, 0, sizeof(*ret));
	ret->name = archive_entry_pathname(en);
	ret->type = type_of(en);
	ret->link = ret->type == ORCH_ARCHIVE_HARDLINK	? archive_entry_hardlink(en)
		    : ret->type == ORCH_ARCHIVE_SYMLINK ? archive_entry_symlink(en)
							: NULL;
	ret->mode = archive_entry_perm(en) & 0777;
	ret->sticky = archive_entry_perm(en) & S_ISVTX;
	ret->mtime.tv_sec = archive_entry_mtime(en);
	ret->mtime.tv_nsec = archive_entry_mtime_nsec(en);
	/* It reads "-6.75" as 6 seconds before 1970 and three quarters after that. */
	if (ret->mtime.tv_sec < 0 && ret->mtime.tv_nsec > 0) {
		ret->mtime.tv_sec--;
		ret->mtime.tv_nsec = 1000000000 - ret->mtime.tv_nsec;
	}
	if (!ret->name) {
		ret->name = "";
		ret->problem = "cannot be read";
		return;
	}
	ret->problem =
		*ret->name ? orch_archive_path(ret->name, a->opts.rooted, a->path) : "is empty";
	if (!ret->problem && !a->path[0] && ret->type != ORCH_ARCHIVE_DIR)
		ret->problem = "is empty";
	ret->path = ret->problem ? NULL : a->path;
}

/* Passing over is unpacking, too, in pieces that can be counted: one call of libarchive for it all
 * would not come back from a bomb. */
static int pass_over(struct orch_archive *a, struct sbx_error *e)
{
	const void *data;
	la_int64_t off;
	size_t n;
	int r;

	while ((r = archive_read_data_block(a->ar, &data, &n, &off)) >= ARCHIVE_WARN) {
		if (r == ARCHIVE_EOF)
			return ORCH_ARCHIVE_OK;
		if (!a->plain && !count(a, (int64_t)n))
			return ORCH_ARCHIVE_OVER;
	}
	return r == ARCHIVE_FATAL ? complain(a, r, e) : ORCH_ARCHIVE_OK;
}

static int step(struct orch_archive *a, struct orch_archive_entry *ret, struct sbx_error *e)
{
	struct archive_entry *en;
	int r;

	if (a->over)
		return ORCH_ARCHIVE_OVER;
	r = a->entries ? pass_over(a, e) : a->begun ? ORCH_ARCHIVE_OK : begin(a, e);
	if (r != ORCH_ARCHIVE_OK)
		return r;
	r = archive_read_next_header(a->ar, &en);
	a->begun = true;
	if (r == ARCHIVE_EOF)
		return ORCH_ARCHIVE_END;
	/* ARCHIVE_RETRY would look for a header further on, in what may be a file's content. */
	if (r != ARCHIVE_OK && r != ARCHIVE_WARN && r != ARCHIVE_FAILED)
		return complain(a, ARCHIVE_FATAL, e);
	if (archive_filter_count(a->plain ? a->plain : a->ar) > FILTERS_MAX) {
		(void)snprintf(a->complaint, sizeof(a->complaint), "is compressed more than once");
		return ORCH_ARCHIVE_BROKEN;
	}
	if (++a->entries > a->opts.limits.entries) {
		a->over = true;
		(void)snprintf(a->complaint, sizeof(a->complaint), "has more than %lld entries",
			       (long long)a->opts.limits.entries);
		return ORCH_ARCHIVE_OVER;
	}
	if (r == ARCHIVE_FAILED)
		return complain(a, r, e);
	describe(a, en, ret);
	a->entry = en;
	(void)archive_entry_xattr_reset(en);
	return ORCH_ARCHIVE_OK;
}

int orch_archive_next(struct orch_archive *a, struct orch_archive_entry *ret, struct sbx_error *e)
{
	locale_t old = a->locale ? uselocale(a->locale) : (locale_t)0;
	int r = step(a, ret, e);

	if (old)
		(void)uselocale(old);
	return r;
}

bool orch_archive_xattr(struct orch_archive *a, const char **ret_name, const void **ret_value,
			size_t *ret_len)
{
	return archive_entry_xattr_next(a->entry, ret_name, ret_value, ret_len) == ARCHIVE_OK;
}

int orch_archive_data(struct orch_archive *a, int to, int64_t max, int64_t *ret_bytes,
		      struct sbx_error *e)
{
	const void *data;
	la_int64_t off = 0;
	int64_t end = 0;
	size_t n = 0;
	int r;

	*ret_bytes = 0;
	while ((r = archive_read_data_block(a->ar, &data, &n, &off)) >= ARCHIVE_WARN &&
	       r != ARCHIVE_EOF) {
		if (!a->plain && !count(a, (int64_t)n))
			return ORCH_ARCHIVE_OVER;
		if (n == 0)
			continue;
		if (off < end || off > max || (int64_t)n > max - off)
			break;
		r = sbx_pwrite_all(to, data, n, off);
		if (r < 0)
			return sbx_fail_errno(e, SBX_E_INTERNAL, -r, "cannot write a file");
		end = *ret_bytes = off + (int64_t)n;
	}
	if (r < ARCHIVE_WARN)
		return complain(a, r, e);
	if (r != ARCHIVE_EOF && off < end) {
		(void)snprintf(a->complaint, sizeof(a->complaint), "has data out of order");
		return ORCH_ARCHIVE_SPOILT;
	}
	/* At the end, off is the size of a file that ends with a hole. */
	if (r != ARCHIVE_EOF || off > max) {
		(void)snprintf(a->complaint, sizeof(a->complaint), "has a file that is too large");
		return ORCH_ARCHIVE_OVER;
	}
	if (off > end) {
		if (ftruncate(to, off) < 0)
			return sbx_fail_errno(e, SBX_E_INTERNAL, errno, "cannot write a file");
		*ret_bytes = off;
	}
	return ORCH_ARCHIVE_OK;
}

int orch_archive_digest(struct orch_archive *a, char ret[65], struct sbx_error *e)
{
	unsigned char md[EVP_MAX_MD_SIZE];
	const void *data;
	ssize_t n;

	/* The reader may have left padding. */
	do {
		n = pull_plain(a->ar, a, &data);
	} while (n > 0);
	if (n < 0)
		return complain(a, ARCHIVE_FATAL, e);
	if (EVP_DigestFinal_ex(a->md, md, NULL) != 1)
		return sbx_fail(e, SBX_E_INTERNAL, "cannot make a digest");
	for (int i = 0; i < 32; i++)
		(void)snprintf(ret + 2 * i, 3, "%02x", md[i]);
	return ORCH_ARCHIVE_OK;
}
