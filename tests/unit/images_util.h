/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of images share: a place for them, and bundles as other programs write them. */
#ifndef SBX_TESTS_UNIT_IMAGES_UTIL_H
#define SBX_TESTS_UNIT_IMAGES_UTIL_H

#include "archive_util.h"

#include <openssl/sha.h>
#include <sys/file.h>
#include <sys/utsname.h>

#include "orchestrator/image.h"
#include "orchestrator/images_i.h"

#define OUTSIDE "/tmp/sbx-images-outside"

struct place {
	char base[64];
	struct orch_settings st;
	int images; /* <base>/images, once there is one */
	char digest[ORCH_IMAGE_DIGEST];
	struct sbx_error e;
};

static inline int setup(void **state)
{
	static struct place p;

	p = (struct place){ .base = "/tmp/sbx-images-XXXXXX", .images = -1 };
	*state = &p;
	return mkdtemp(p.base) ? 0 : -1;
}

static inline int teardown(void **state)
{
	struct place *p = *state;

	sbx_closep(&p->images);
	sbx_error_clear(&p->e);
	return sbx_remove_tree(AT_FDCWD, p->base);
}

static inline int import(struct place *p, const struct sbx_buf *b, const char *name)
{
	sbx_autoclose int fd = as_file(b->data ? b->data : "", b->len);
	char path[128];
	int rc;

	assert_false(b->failed);
	sbx_error_clear(&p->e);
	rc = orch_image_import(&p->st, p->base, fd, name, p->digest, &p->e);
	sbx_closep(&p->images);
	(void)snprintf(path, sizeof(path), "%s/images", p->base);
	p->images = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	is_absent(p->images, ".import-work");
	return rc;
}

/* The root of the image of that name. */
static inline int root_of(struct place *p, const char *name)
{
	char *path = NULL, digest[72];
	int fd;

	if (orch_image_resolve(&p->st, p->base, name, &path, &p->e) < 0)
		fail_msg("%s", p->e.message);
	assert_true(orch_image_digest(path, digest));
	assert_string_equal(digest, p->digest);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	free(path);
	return fd;
}

static inline int imports(struct place *p, const struct sbx_buf *b, const char *name)
{
	if (import(p, b, name) < 0)
		fail_msg("%s", p->e.message);
	return root_of(p, name);
}

/* why "": for any reason. */
static inline void refuses(struct place *p, const struct sbx_buf *b, const char *why)
{
	sbx_autobuf list = SBX_BUF_INIT(4096);

	assert_int_equal(import(p, b, "bad"), -SBX_E_INVALID_ARGUMENT);
	if (*why && !strstr(p->e.message, why))
		fail_msg("\"%s\" does not say \"%s\"", p->e.message, why);
	assert_int_equal(orch_image_list(&p->st, p->base, &list, &p->e), 0);
	assert_null(list.data);
	is_absent(AT_FDCWD, OUTSIDE);
}

/* ---- bundles --------------------------------------------------------------------------------- */

enum { LAYERS = 4 };

struct bundle {
	struct sbx_buf layers[LAYERS]; /* tars */
	size_t n;
	bool gz;
	const char *arch;  /* NULL: this host's */
	const char *wrong; /* "layer", "diff_id", "config", "manifest" */
	char config_digest[72];
};

static inline void digest_of(const struct sbx_buf *b, char ret[72])
{
	unsigned char md[SHA256_DIGEST_LENGTH];

	SHA256((const unsigned char *)b->data, b->len, md);
	memcpy(ret, "sha256:", 8);
	for (int i = 0; i < 32; i++)
		(void)snprintf(ret + 7 + 2 * i, 3, "%02x", md[i]);
}

static inline void layer_init(struct bundle *b, size_t n)
{
	b->n = n;
	for (size_t i = 0; i < n; i++)
		b->layers[i] = (struct sbx_buf)TAR_INIT;
}

static inline void bundle_free(struct bundle *b)
{
	for (size_t i = 0; i < b->n; i++)
		sbx_buf_free(&b->layers[i]);
}
#define AUTO_BUNDLE __attribute__((cleanup(bundle_free))) struct bundle

static const char *host_arch(void)
{
	static struct utsname u;

	(void)uname(&u);
	return strcmp(u.machine, "x86_64") == 0	   ? "amd64"
	       : strcmp(u.machine, "aarch64") == 0 ? "arm64"
						   : u.machine;
}

static inline bool is_wrong(const struct bundle *b, const char *what)
{
	return b->wrong && strcmp(b->wrong, what) == 0;
}

static inline void config(struct bundle *b, struct sbx_buf *out)
{
	sbx_buf_printf(out, "{\"architecture\":\"%s\",\"os\":\"linux\",\"rootfs\":{\"diff_ids\":[",
		       b->arch ? b->arch : host_arch());
	for (size_t i = 0; i < b->n; i++) {
		char d[72];

		digest_of(&b->layers[i], d);
		if (is_wrong(b, "diff_id"))
			d[10] = d[10] == '0' ? '1' : '0';
		sbx_buf_printf(out, "%s\"%s\"", i ? "," : "", d);
	}
	sbx_buf_puts(out, "],\"type\":\"layers\"}}");
	digest_of(out, b->config_digest);
}

/* A blob under its digest, or under that of others. */
static inline void blob(struct sbx_buf *tar, const struct sbx_buf *b, bool wrong, char ret[72])
{
	sbx_autobuf other = SBX_BUF_INIT(64 << 20);
	char path[100];

	digest_of(b, ret);
	(void)snprintf(path, sizeof(path), "blobs/sha256/%s", ret + 7);
	sbx_buf_add(&other, b->data, b->len);
	if (wrong)
		sbx_buf_puts(&other, " ");
	tar_bytes(tar, path, 0644, other.data, other.len);
}

static inline void oci(struct bundle *b, struct sbx_buf *tar)
{
	sbx_autobuf cfg = SBX_BUF_INIT(65536), man = SBX_BUF_INIT(65536), idx = SBX_BUF_INIT(65536);
	char d[72];

	tar_file(tar, "oci-layout", "{\"imageLayoutVersion\":\"1.0.0\"}");
	config(b, &cfg);
	blob(tar, &cfg, is_wrong(b, "config"), d);
	sbx_buf_printf(&man, "{\"schemaVersion\":2,\"config\":{\"digest\":\"%s\"},\"layers\":[", d);
	for (size_t i = 0; i < b->n; i++) {
		sbx_autobuf packed = TAR_INIT;

		compress_into(&packed, b->gz ? ARCHIVE_FILTER_GZIP : ARCHIVE_FILTER_NONE,
			      b->layers[i].data, b->layers[i].len);
		blob(tar, &packed, is_wrong(b, "layer"), d);
		sbx_buf_printf(&man, "%s{\"digest\":\"%s\"}", i ? "," : "", d);
	}
	sbx_buf_puts(&man, "]}");
	blob(tar, &man, is_wrong(b, "manifest"), d);
	sbx_buf_printf(&idx,
		       "{\"manifests\":[{\"digest\":\"%s\",\"platform\":{\"os\":\"linux\","
		       "\"architecture\":\"%s\"}},{\"digest\":\"%s\",\"platform\":{\"os\":"
		       "\"unknown\",\"architecture\":\"unknown\"}}]}",
		       d, host_arch(), b->config_digest);
	tar_bytes(tar, "index.json", 0644, idx.data, idx.len);
	tar_end(tar);
}

/* As Docker has saved for years; a second layer that is the same is a link. */
static inline void docker(struct bundle *b, struct sbx_buf *tar)
{
	sbx_autobuf cfg = SBX_BUF_INIT(65536), man = SBX_BUF_INIT(65536);
	char path[100];

	config(b, &cfg);
	(void)snprintf(path, sizeof(path), "%s.json", b->config_digest + 7);
	if (is_wrong(b, "config"))
		path[0] = path[0] == '0' ? '1' : '0';
	tar_bytes(tar, path, 0644, cfg.data, cfg.len);
	sbx_buf_printf(&man, "[{\"Config\":\"%s\",\"RepoTags\":null,\"Layers\":[", path);
	for (size_t i = 0; i < b->n; i++) {
		(void)snprintf(path, sizeof(path), "%zu/layer.tar", i);
		if (i == 3)
			tar_symlink(tar, path, "../0/layer.tar");
		else
			tar_bytes(tar, path, 0644, b->layers[i].data, b->layers[i].len);
		sbx_buf_printf(&man, "%s\"%s\"", i ? "," : "", path);
	}
	sbx_buf_puts(&man, "]}]");
	tar_bytes(tar, "manifest.json", 0644, man.data, man.len);
	tar_end(tar);
}

/* Three layers that hide and replace, and the result. */
static inline void three_layers(struct bundle *b)
{
	layer_init(b, 3);
	tar_dir(&b->layers[0], "bin/", 0700);
	tar_bytes(&b->layers[0], "bin/tool", 04711, "tool", 4);
	tar_file(&b->layers[0], "etc/gone", "x");
	tar_file(&b->layers[0], "etc/stays", "1");
	tar_file(&b->layers[0], "cache/a", "x");
	tar_file(&b->layers[0], "cache/d/b", "x");
	tar_symlink(&b->layers[0], "lib", "usr/lib");
	tar_dir(&b->layers[0], "usr/lib", 0755);
	tar_dir(&b->layers[0], "was/", 0755);
	tar_file(&b->layers[0], "was/dir/f", "x");
	tar_hardlink(&b->layers[0], "bin/same", "bin/tool");
	tar_header(&b->layers[0], '3', "dev/null", NULL, 0666, 0);
	tar_end(&b->layers[0]);
	tar_file(&b->layers[1], "etc/.wh.gone", "");
	/* What it brings is not hidden, whichever comes first. */
	tar_file(&b->layers[1], "cache/new", "n");
	tar_file(&b->layers[1], "cache/.wh..wh..opq", "");
	tar_file(&b->layers[1], "lib/linked.so", "so");
	tar_file(&b->layers[1], "was", "a file now");
	tar_file(&b->layers[1], ".wh.nothing", "");
	tar_end(&b->layers[1]);
	tar_file(&b->layers[2], "/etc/stays", "2");
	tar_file(&b->layers[2], ".wh..wh.plnk", "");
	tar_symlink(&b->layers[2], "absolute", "/etc/stays");
	tar_end(&b->layers[2]);
}

static inline void check_three_layers(int root)
{
	struct stat a, b;

	file_is(root, "bin/tool", "tool");
	assert_int_equal(mode_of(root, "bin/tool"), S_IFREG | 0755);
	assert_int_equal(mode_of(root, "bin"), S_IFDIR | 0755);
	assert_int_equal(fstatat(root, "bin/tool", &a, 0), 0);
	assert_int_equal(fstatat(root, "bin/same", &b, 0), 0);
	assert_int_equal(a.st_ino, b.st_ino);
	assert_int_equal(a.st_uid, geteuid());
	assert_int_equal(a.st_mtime, 1700000000);
	is_absent(root, "etc/gone");
	is_absent(root, "etc/.wh.gone");
	file_is(root, "etc/stays", "2");
	is_absent(root, "cache/a");
	is_absent(root, "cache/d");
	is_absent(root, "cache/.wh..wh..opq");
	file_is(root, "cache/new", "n");
	file_is(root, "usr/lib/linked.so", "so");
	assert_true(S_ISLNK(mode_of(root, "lib")));
	file_is(root, "was", "a file now");
	is_absent(root, "dev/null");
	is_absent(root, ".wh..wh.plnk");
	assert_true(S_ISLNK(mode_of(root, "absolute")));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

#endif
