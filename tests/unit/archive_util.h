/* SPDX-License-Identifier: Apache-2.0 */
/* Archives for tests: tar headers are written by hand, so that they can be wrong; compression and
 * zip come from libarchive. */
#ifndef SBX_TESTS_ARCHIVE_UTIL_H
#define SBX_TESTS_ARCHIVE_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/error.h"
#include "base/fs.h"

enum { TAR_BLOCK = 512 };

/* An archive that grows. */
#define TAR_INIT SBX_BUF_INIT(256 << 20)

static inline void tar_pad(struct sbx_buf *b)
{
	static const char zeros[TAR_BLOCK];

	sbx_buf_add(b, zeros, (TAR_BLOCK - b->len % TAR_BLOCK) % TAR_BLOCK);
}

static inline void tar_checksum(char *h)
{
	unsigned sum = 0;

	memset(h + 148, ' ', 8);
	for (int i = 0; i < TAR_BLOCK; i++)
		sum += (unsigned char)h[i];
	(void)snprintf(h + 148, 8, "%06o", sum);
}

/* A header alone; type as in ustar. */
static inline void tar_header(struct sbx_buf *b, char type, const char *name, const char *link,
			      unsigned mode, unsigned long long size)
{
	char h[TAR_BLOCK] = { 0 };

	memcpy(h, name, strlen(name) < 100 ? strlen(name) : 100);
	(void)snprintf(h + 100, 8, "%07o", mode);
	(void)snprintf(h + 108, 8, "%07o", 1234);
	(void)snprintf(h + 116, 8, "%07o", 1234);
	if (size < 1ULL << 33) {
		(void)snprintf(h + 124, 12, "%011llo", size);
	} else { /* base 256, as GNU does */
		h[124] = (char)0x80;
		for (int i = 0; i < 8; i++)
			h[135 - i] = (char)(size >> (8 * i));
	}
	(void)snprintf(h + 136, 12, "%011o", 1700000000);
	h[156] = type;
	if (link)
		memcpy(h + 157, link, strlen(link) < 100 ? strlen(link) : 100);
	memcpy(h + 257, "ustar\00000", 8);
	tar_checksum(h);
	sbx_buf_add(b, h, sizeof(h));
}

static inline void tar_bytes(struct sbx_buf *b, const char *name, unsigned mode, const void *data,
			     size_t len)
{
	tar_header(b, '0', name, NULL, mode, len);
	sbx_buf_add(b, data, len);
	tar_pad(b);
}

static inline void tar_file(struct sbx_buf *b, const char *name, const char *text)
{
	tar_bytes(b, name, 0644, text, strlen(text));
}

static inline void tar_dir(struct sbx_buf *b, const char *name, unsigned mode)
{
	tar_header(b, '5', name, NULL, mode, 0);
}

static inline void tar_symlink(struct sbx_buf *b, const char *name, const char *to)
{
	tar_header(b, '2', name, to, 0777, 0);
}

static inline void tar_hardlink(struct sbx_buf *b, const char *name, const char *to)
{
	tar_header(b, '1', name, to, 0644, 0);
}

/* A pax record for what follows: "path=...". */
static inline void tar_pax(struct sbx_buf *b, const char *record, size_t len)
{
	sbx_autobuf text = SBX_BUF_INIT(1 << 20);
	size_t total = len + 2; /* space and newline */

	for (size_t digits = 1, n; digits < 8; digits++) {
		n = total + digits;
		if ((size_t)snprintf(NULL, 0, "%zu", n) == digits) {
			sbx_buf_printf(&text, "%zu ", n);
			break;
		}
	}
	sbx_buf_add(&text, record, len);
	sbx_buf_puts(&text, "\n");
	tar_header(b, 'x', "pax", NULL, 0644, text.len);
	sbx_buf_add(b, text.data, text.len);
	tar_pad(b);
}

static inline void tar_end(struct sbx_buf *b)
{
	static const char zeros[2 * TAR_BLOCK];

	sbx_buf_add(b, zeros, sizeof(zeros));
}

/* ---- compression, zip ------------------------------------------------------------------------ */

static inline la_ssize_t to_buf(struct archive *a, void *ctx, const void *data, size_t n)
{
	(void)a;
	sbx_buf_add(ctx, data, n);
	return (la_ssize_t)n;
}

/* filter: ARCHIVE_FILTER_*. */
static inline void compress_into(struct sbx_buf *out, int filter, const void *data, size_t len)
{
	struct archive *a = archive_write_new();
	struct archive_entry *en = archive_entry_new();

	assert_int_equal(archive_write_set_format_raw(a), ARCHIVE_OK);
	assert_int_equal(archive_write_add_filter(a, filter), ARCHIVE_OK);
	assert_int_equal(archive_write_set_bytes_in_last_block(a, 1), ARCHIVE_OK);
	assert_int_equal(archive_write_open(a, out, NULL, to_buf, NULL), ARCHIVE_OK);
	archive_entry_set_pathname(en, "x");
	archive_entry_set_filetype(en, AE_IFREG);
	assert_int_equal(archive_write_header(a, en), ARCHIVE_OK);
	assert_int_equal(archive_write_data(a, data, len), len);
	archive_entry_free(en);
	assert_int_equal(archive_write_close(a), ARCHIVE_OK);
	archive_write_free(a);
}

static inline struct archive *zip_new(struct sbx_buf *out)
{
	struct archive *a = archive_write_new();

	assert_int_equal(archive_write_set_format_zip(a), ARCHIVE_OK);
	assert_int_equal(archive_write_set_bytes_in_last_block(a, 1), ARCHIVE_OK);
	assert_int_equal(archive_write_open(a, out, NULL, to_buf, NULL), ARCHIVE_OK);
	return a;
}

static inline void zip_add(struct archive *a, mode_t mode, const char *name, const char *text)
{
	struct archive_entry *en = archive_entry_new();
	size_t len = strlen(text);

	archive_entry_set_pathname(en, name);
	archive_entry_set_mode(en, mode);
	if (S_ISLNK(mode))
		archive_entry_set_symlink(en, text);
	else if (S_ISREG(mode))
		archive_entry_set_size(en, (la_int64_t)len);
	assert_int_equal(archive_write_header(a, en), ARCHIVE_OK);
	if (S_ISREG(mode))
		assert_int_equal(archive_write_data(a, text, len), len);
	archive_entry_free(en);
}

static inline void zip_end(struct archive *a)
{
	assert_int_equal(archive_write_close(a), ARCHIVE_OK);
	archive_write_free(a);
}

/* The bytes as a file. */
static inline int as_file(const void *data, size_t len)
{
	int fd = memfd_create("archive", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(sbx_write_all(fd, data, len), 0);
	return fd;
}

/* ---- what came of it ------------------------------------------------------------------------- */

static inline void file_is(int dir, const char *path, const char *text)
{
	sbx_autofree char *data = NULL;
	sbx_autoclose int fd = sbx_open_beneath(dir, path, O_RDONLY | O_NOFOLLOW, 0);
	size_t n = strlen(text);

	if (fd < 0)
		fail_msg("%s: %s", path, strerror(-fd));
	data = calloc(1, n + 2);
	assert_int_equal(sbx_read_full(fd, data, n + 1), n);
	assert_memory_equal(data, text, n);
}

static inline void is_absent(int dir, const char *path)
{
	struct stat st;

	if (fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW) == 0)
		fail_msg("%s is there", path);
}

static inline mode_t mode_of(int dir, const char *path)
{
	struct stat st;

	if (fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
		fail_msg("%s: %s", path, strerror(errno));
	return st.st_mode;
}

#endif
