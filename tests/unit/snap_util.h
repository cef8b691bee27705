/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of snapshots share: a store with two directories beside it, and trees in them. */
#ifndef SBX_TESTS_SNAP_UTIL_H
#define SBX_TESTS_SNAP_UTIL_H

#include "store_fixture.h"

#include <dirent.h>
#include <openssl/sha.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/xattr.h>

#include "store/snap_i.h"

struct trees {
	struct fixture f;
	int a, b; /* two empty directories, a/ and b/ */
	char ids[4][SBX_ID_LEN + 1];
};

static inline int trees_open(struct trees *t, const char *name)
{
	char path[256];

	(void)snprintf(path, sizeof(path), "%s/%s", t->f.base, name);
	if (mkdir(path, 0755) < 0)
		return -1;
	return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static inline int trees_setup(void **state)
{
	struct trees *t = calloc(1, sizeof(*t));
	sbx_autoerror e = SBX_ERROR_INIT;

	if (!t || fixture_dir(&t->f) < 0 || store_open(t->f.dir, NULL, &t->f.s, &e) < 0)
		return -1;
	t->a = trees_open(t, "tree-a");
	t->b = trees_open(t, "tree-b");
	for (size_t i = 0; i < SBX_COUNT(t->ids); i++)
		sbx_id_new(t->ids[i]);
	*state = t;
	return t->a < 0 || t->b < 0 ? -1 : 0;
}

static inline int trees_teardown(void **state)
{
	struct trees *t = *state;
	char mounted[128];

	(void)snprintf(mounted, sizeof(mounted), "%s/tree-b", t->f.base);
	(void)umount2(mounted, MNT_DETACH); /* by a test that failed */
	store_close(t->f.s);
	(void)close(t->a);
	(void)close(t->b);
	(void)sbx_remove_tree(AT_FDCWD, t->f.base);
	free(t);
	return 0;
}

#define SNAP_TEST(name) cmocka_unit_test_setup_teardown(name, trees_setup, trees_teardown)

static inline void put(int dir, const char *path, const void *data, size_t len)
{
	int fd = openat(dir, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	assert_true(fd >= 0);
	assert_int_equal(sbx_write_all(fd, data, len), 0);
	assert_int_equal(close(fd), 0);
}

static inline void puts_at(int dir, const char *path, const char *text)
{
	put(dir, path, text, strlen(text));
}

static inline void set_mtime(int dir, const char *path, time_t sec, long nsec)
{
	struct timespec times[2] = { { .tv_sec = 1, .tv_nsec = 2 },
				     { .tv_sec = sec, .tv_nsec = nsec } };

	assert_int_equal(utimensat(dir, path, times, AT_SYMLINK_NOFOLLOW), 0);
}

static inline bool set_xattr(int dir, const char *path, const char *name, const char *value)
{
	int fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
	int r;

	assert_true(fd >= 0);
	r = fsetxattr(fd, name, value, strlen(value), 0);
	(void)close(fd);
	return r == 0;
}

/* One of everything; the names say what. */
static inline void fill(int dir)
{
	static const char big[3 << 20] = "not only zeros";
	int fd;

	puts_at(dir, "plain", "hello\n");
	puts_at(dir, "empty", "");
	put(dir, "big", big, sizeof(big));
	assert_int_equal(mkdirat(dir, "dir", 0750), 0);
	assert_int_equal(mkdirat(dir, "dir/none", 0700), 0);
	assert_int_equal(mkdirat(dir, "dir/deep", 01777), 0);
	assert_int_equal(fchmodat(dir, "dir/deep", 01777, 0), 0);
	puts_at(dir, "dir/deep/x", "x");
	puts_at(dir, "dir/\xff\xfe name\n\t\"", "odd");
	puts_at(dir, "dir/script", "#!/bin/sh\n");
	assert_int_equal(fchmodat(dir, "dir/script", 0555, 0), 0);
	assert_int_equal(linkat(dir, "plain", dir, "dir/deep/linked", 0), 0);
	assert_int_equal(linkat(dir, "plain", dir, "zlinked", 0), 0);
	assert_int_equal(symlinkat("/etc/passwd", dir, "outside"), 0);
	assert_int_equal(symlinkat("no/such\xff/thing", dir, "dir/dangling"), 0);
	assert_int_equal(symlinkat("../..", dir, "dir/up"), 0);
	fd = openat(dir, "sparse", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	assert_int_equal(sbx_pwrite_all(fd, "middle", 6, 5 << 20), 0);
	assert_int_equal(ftruncate(fd, (8 << 20) + 3), 0);
	(void)close(fd);
	(void)set_xattr(dir, "plain", "user.colour", "blue");
	(void)set_xattr(dir, "plain", "user.a", "");
	(void)set_xattr(dir, "dir", "user.of.a.directory", "yes");
	set_mtime(dir, "plain", 1000000000, 123456789);
	set_mtime(dir, "outside", 1234567890, 1);
	set_mtime(dir, "dir/up", -5, 7);
	set_mtime(dir, "dir/none", 5, 999999999);
	set_mtime(dir, "dir", 1600000000, 42);
	set_mtime(dir, ".", 1700000000, 43);
}

static inline void same_bytes(int a, int b, off_t size)
{
	static char x[64 << 10], y[64 << 10];

	for (off_t at = 0; at < size; at += (off_t)sizeof(x)) {
		ssize_t n = pread(a, x, sizeof(x), at);

		assert_true(n > 0);
		assert_int_equal(pread(b, y, sizeof(y), at), n);
		assert_memory_equal(x, y, (size_t)n);
	}
}

static inline void same_xattrs(int a, int b)
{
	char x[4096], y[4096], v[4096], w[4096];
	ssize_t n = flistxattr(a, x, sizeof(x)), m = flistxattr(b, y, sizeof(y));

	assert_int_equal(n, m);
	for (ssize_t at = 0; at < n; at += (ssize_t)strlen(x + at) + 1) {
		ssize_t len = fgetxattr(a, x + at, v, sizeof(v));

		assert_int_equal(fgetxattr(b, x + at, w, sizeof(w)), len);
		if (len > 0)
			assert_memory_equal(v, w, (size_t)len);
	}
}

static inline void same_entry(int a, int b, const char *name)
{
	struct stat x, y;

	assert_int_equal(fstatat(a, name, &x, AT_SYMLINK_NOFOLLOW), 0);
	assert_int_equal(fstatat(b, name, &y, AT_SYMLINK_NOFOLLOW), 0);
	assert_int_equal(x.st_mode, y.st_mode);
	assert_int_equal(x.st_mtim.tv_sec, y.st_mtim.tv_sec);
	assert_int_equal(x.st_mtim.tv_nsec, y.st_mtim.tv_nsec);
	if (!S_ISDIR(x.st_mode)) {
		assert_int_equal(x.st_size, y.st_size);
		assert_int_equal(x.st_nlink, y.st_nlink);
	}
	if (S_ISLNK(x.st_mode)) {
		char s[4096] = "", u[4096] = "";

		assert_true(readlinkat(a, name, s, sizeof(s)) > 0);
		assert_true(readlinkat(b, name, u, sizeof(u)) > 0);
		assert_string_equal(s, u);
	} else {
		int fa = openat(a, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
		int fb = openat(b, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

		same_xattrs(fa, fb);
		if (S_ISREG(x.st_mode))
			same_bytes(fa, fb, x.st_size);
		(void)close(fa);
		(void)close(fb);
	}
}

/* Number of entries below; every one is asserted to be the same in both. */
static inline int same_tree(int a, int b)
{
	int fd = openat(a, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), n = 0, other = 0;
	DIR *dir = fdopendir(fd);
	const struct dirent *d;

	assert_non_null(dir);
	same_entry(a, b, ".");
	while ((d = readdir(dir))) {
		if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0)
			continue;
		n++;
		same_entry(a, b, d->d_name);
		if (d->d_type == DT_DIR) {
			int x = openat(a, d->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
			int y = openat(b, d->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
			int below = same_tree(x, y);

			n += below;
			other -= below;
			(void)close(x);
			(void)close(y);
		}
	}
	(void)closedir(dir);
	other += n;
	fd = openat(b, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	dir = fdopendir(fd);
	while ((d = readdir(dir)))
		other -= strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0;
	assert_int_equal(other, 0);
	(void)closedir(dir);
	return n;
}

static inline void manifest_path(const struct trees *t, const char *id, char out[256])
{
	(void)snprintf(out, 256, "%s/snapshots/%s", t->f.dir, id);
}

/* Objects and manifests are nobody's to write to, also not their owner's. */
static inline void cut(const char *path, off_t len)
{
	assert_int_equal(chmod(path, 0600), 0);
	assert_int_equal(truncate(path, len), 0);
}

static inline void seal(char *data, size_t len)
{
	SHA256((const unsigned char *)data, len - SNAP_HASH_LEN,
	       (unsigned char *)data + len - SNAP_HASH_LEN);
}

/* As if it had been taken then. */
static inline void taken_at(const struct trees *t, const char *id, int64_t sec, int64_t nsec)
{
	sbx_autofree char *data = NULL;
	struct snap_header *head;
	char path[256];
	size_t len;

	manifest_path(t, id, path);
	assert_int_equal(sbx_read_file(AT_FDCWD, path, 64 << 20, &data, &len), 0);
	head = (struct snap_header *)(void *)data;
	head->taken_sec = sec + nsec / 1000000000;
	head->taken_nsec = (uint32_t)(nsec % 1000000000);
	seal(data, len);
	assert_int_equal(unlink(path), 0);
	put(AT_FDCWD, path, data, len);
}

/* What changed just before is old enough to be believed. */
static inline void age(const struct trees *t, const char *id)
{
	taken_at(t, id, time(NULL) + 60, 0);
}

static inline struct snap_sums take(struct trees *t, int i, const char *previous)
{
	struct snap_sums sums = { .bytes = -1 };

	OK(snap_take(t->f.s, t->a, t->ids[i], previous, NULL, &sums, e));
	return sums;
}

/* Files below <dir>/<name>, and their bytes. */
static inline int count_files(const struct trees *t, const char *name, int64_t *ret_bytes)
{
	char command[256];
	FILE *p;
	int n = 0;
	long long size, bytes = 0;

	(void)snprintf(command, sizeof(command), "find %s/%s -type f -printf '%%s\\n'", t->f.dir,
		       name);
	p = popen(command, "r");
	assert_non_null(p);
	while (fscanf(p, "%lld", &size) == 1) {
		n++;
		bytes += size;
	}
	assert_int_equal(pclose(p), 0);
	if (ret_bytes)
		*ret_bytes = bytes;
	return n;
}

static inline void object_path(const struct trees *t, const uint8_t hash[32], char out[256])
{
	char hex[65];

	snap_hash_hex(hash, hex);
	(void)snprintf(out, 256, "%s/objects/%.2s/%s", t->f.dir, hex, hex + 2);
}

static inline void hash_of(const char *text, uint8_t hash[32])
{
	SHA256((const unsigned char *)text, strlen(text), hash);
}

static inline bool has_object(const struct trees *t, const char *text)
{
	uint8_t hash[32];
	char path[256];

	hash_of(text, hash);
	object_path(t, hash, path);
	return access(path, F_OK) == 0;
}

#endif
