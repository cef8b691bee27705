/* SPDX-License-Identifier: Apache-2.0 */
/* Images from files: layers and whiteouts, digests, names, and what is hostile. */
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

static int setup(void **state)
{
	static struct place p;

	p = (struct place){ .base = "/tmp/sbx-images-XXXXXX", .images = -1 };
	*state = &p;
	return mkdtemp(p.base) ? 0 : -1;
}

static int teardown(void **state)
{
	struct place *p = *state;

	sbx_closep(&p->images);
	sbx_error_clear(&p->e);
	return sbx_remove_tree(AT_FDCWD, p->base);
}

static int import(struct place *p, const struct sbx_buf *b, const char *name)
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
static int root_of(struct place *p, const char *name)
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

static int imports(struct place *p, const struct sbx_buf *b, const char *name)
{
	if (import(p, b, name) < 0)
		fail_msg("%s", p->e.message);
	return root_of(p, name);
}

static void refuses(struct place *p, const struct sbx_buf *b, const char *why)
{
	sbx_autobuf list = SBX_BUF_INIT(4096);

	assert_int_equal(import(p, b, "bad"), -SBX_E_INVALID_ARGUMENT);
	if (!strstr(p->e.message, why))
		fail_msg("\"%s\" does not say \"%s\"", p->e.message, why);
	assert_int_equal(orch_image_list(&p->st, p->base, &list, &p->e), 0);
	assert_null(list.data);
	is_absent(AT_FDCWD, OUTSIDE);
}

/* ---- bundles ----------------------------------------------------------------------------------
 */

enum { LAYERS = 4 };

struct bundle {
	struct sbx_buf layers[LAYERS]; /* tars */
	size_t n;
	bool gz;
	const char *arch;  /* NULL: this host's */
	const char *wrong; /* "layer", "diff_id", "config", "manifest" */
	char config_digest[72];
};

static void digest_of(const struct sbx_buf *b, char ret[72])
{
	unsigned char md[SHA256_DIGEST_LENGTH];

	SHA256((const unsigned char *)b->data, b->len, md);
	memcpy(ret, "sha256:", 8);
	for (int i = 0; i < 32; i++)
		(void)snprintf(ret + 7 + 2 * i, 3, "%02x", md[i]);
}

static void layer_init(struct bundle *b, size_t n)
{
	b->n = n;
	for (size_t i = 0; i < n; i++)
		b->layers[i] = (struct sbx_buf)TAR_INIT;
}

static void bundle_free(struct bundle *b)
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

static bool is_wrong(const struct bundle *b, const char *what)
{
	return b->wrong && strcmp(b->wrong, what) == 0;
}

static void config(struct bundle *b, struct sbx_buf *out)
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
static void blob(struct sbx_buf *tar, const struct sbx_buf *b, bool wrong, char ret[72])
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

static void oci(struct bundle *b, struct sbx_buf *tar)
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
static void docker(struct bundle *b, struct sbx_buf *tar)
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
static void three_layers(struct bundle *b)
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

static void check_three_layers(int root)
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

/* ---- what is good -----------------------------------------------------------------------------
 */

static void image__of_an_oci_layout(void **state)
{
	struct place *p = *state;

	for (int gz = 0; gz < 2; gz++) {
		AUTO_BUNDLE b = { .gz = gz };
		sbx_autobuf tar = TAR_INIT, all = TAR_INIT;
		sbx_autoclose int root = -1;

		three_layers(&b);
		oci(&b, &tar);
		compress_into(&all, gz ? ARCHIVE_FILTER_XZ : ARCHIVE_FILTER_NONE, tar.data,
			      tar.len);
		root = imports(p, &all, "python:3.12");
		assert_string_equal(p->digest, b.config_digest);
		check_three_layers(root);
	}
}

static void image__of_docker_save(void **state)
{
	struct place *p = *state;
	AUTO_BUNDLE b = { .n = 0 };
	sbx_autobuf tar = TAR_INIT;
	sbx_autoclose int root = -1;

	three_layers(&b);
	b.n = LAYERS;
	b.layers[3] = (struct sbx_buf)TAR_INIT;
	sbx_buf_add(&b.layers[3], b.layers[0].data, b.layers[0].len);
	docker(&b, &tar);
	root = imports(p, &tar, "saved");
	assert_string_equal(p->digest, b.config_digest);
	file_is(root, "etc/gone", "x"); /* the first layer again */
	file_is(root, "cache/new", "n");
}

static void image__of_a_root(void **state)
{
	struct place *p = *state;
	sbx_autobuf tar = TAR_INIT, gz = TAR_INIT;
	sbx_autoclose int root = -1;
	char wanted[72];

	tar_dir(&tar, "./", 0700);
	tar_file(&tar, "./manifest.json", "no bundle");
	tar_file(&tar, "./etc/motd", "hello");
	tar_end(&tar);
	compress_into(&gz, ARCHIVE_FILTER_ZSTD, tar.data, tar.len);
	digest_of(&gz, wanted);
	root = imports(p, &gz, "plain");
	assert_string_equal(p->digest, wanted);
	file_is(root, "etc/motd", "hello");
	assert_int_equal(mode_of(root, "."), S_IFDIR | 0755);
}

static void image__from_a_pipe(void **state)
{
	struct place *p = *state;
	sbx_autobuf tar = TAR_INIT;
	int ends[2];

	tar_file(&tar, "etc/motd", "hello");
	tar_end(&tar);
	assert_int_equal(pipe(ends), 0);
	assert_int_equal(sbx_write_all(ends[1], tar.data, tar.len), 0);
	(void)close(ends[1]);
	if (orch_image_import(&p->st, p->base, ends[0], "piped", p->digest, &p->e) < 0)
		fail_msg("%s", p->e.message);
	(void)close(ends[0]);
	ends[0] = root_of(p, "piped");
	file_is(ends[0], "etc/motd", "hello");
	(void)close(ends[0]);
}

/* ---- names ------------------------------------------------------------------------------------
 */

static void small(struct sbx_buf *tar, const char *text)
{
	tar_file(tar, "etc/motd", text);
	tar_end(tar);
}

static void image__names(void **state)
{
	static const char *const bad[] = { "",		 ".",	     "..",	"a/b",
					   ".hidden",	 "a,b",	     "a=b",	"host",
					   "host-local", "sha256-x", "sha256:1" };
	struct place *p = *state;
	sbx_autobuf one = TAR_INIT, two = TAR_INIT, list = SBX_BUF_INIT(4096);
	sbx_autofree char *path = NULL;
	char first[72], name[72], wanted[400];

	small(&one, "1");
	small(&two, "2");
	for (size_t i = 0; i < SBX_COUNT(bad); i++)
		assert_int_equal(import(p, &one, bad[i]), -SBX_E_INVALID_ARGUMENT);
	(void)close(imports(p, &one, "b"));
	memcpy(first, p->digest, sizeof(first));
	(void)close(imports(p, &one, "a"));
	(void)close(imports(p, &one, "a")); /* the same again */
	/* By digest, too. */
	(void)close(root_of(p, first));
	(void)close(imports(p, &two, "a"));
	(void)snprintf(wanted, sizeof(wanted), "a\t%s\nb\t%s\n", p->digest, first);
	assert_int_equal(orch_image_list(&p->st, p->base, &list, &p->e), 0);
	assert_string_equal(list.data, wanted);
	assert_int_equal(orch_image_resolve(&p->st, p->base, "c", &path, &p->e),
			 -SBX_E_IMAGE_NOT_FOUND);
	assert_non_null(strstr(p->e.message, "'a', 'b'"));
	assert_int_equal(orch_image_resolve(&p->st, p->base, ".lock", &path, &p->e),
			 -SBX_E_IMAGE_NOT_FOUND);
	/* An image goes with its last name. */
	(void)snprintf(name, sizeof(name), "sha256-%s", first + 7);
	assert_int_equal(mode_of(p->images, name), S_IFDIR | 0755);
	assert_int_equal(orch_image_remove(&p->st, p->base, "b", true, &p->e), 0);
	is_absent(p->images, name);
	assert_int_equal(orch_image_remove(&p->st, p->base, "b", true, &p->e),
			 -SBX_E_IMAGE_NOT_FOUND);
	assert_int_equal(orch_image_remove(&p->st, p->base, "../images", true, &p->e),
			 -SBX_E_IMAGE_NOT_FOUND);
}

static void image__a_directory_of_the_operator(void **state)
{
	struct place *p = *state;
	sbx_autobuf tar = TAR_INIT, list = SBX_BUF_INIT(4096);
	sbx_autofree char *path = NULL;
	int held;

	small(&tar, "1");
	(void)close(imports(p, &tar, "imported"));
	assert_int_equal(mkdirat(p->images, "own", 0755), 0);
	assert_int_equal(import(p, &tar, "own"), -SBX_E_INVALID_ARGUMENT);
	assert_int_equal(orch_image_remove(&p->st, p->base, "own", true, &p->e),
			 -SBX_E_IMAGE_NOT_FOUND);
	assert_int_equal(orch_image_list(&p->st, p->base, &list, &p->e), 0);
	assert_non_null(strstr(list.data, "own\t-\n"));
	assert_int_equal(orch_image_resolve(&p->st, p->base, "own", &path, &p->e), 0);
	assert_int_equal(orch_image_hold(path, &held, &p->e), 0);
	assert_int_equal(held, -1);
}

static void image__in_use_stays(void **state)
{
	struct place *p = *state;
	sbx_autobuf one = TAR_INIT, two = TAR_INIT;
	sbx_autofree char *path = NULL;
	int held = -1, root;

	small(&one, "1");
	small(&two, "2");
	(void)close(imports(p, &one, "x"));
	assert_int_equal(orch_image_resolve(&p->st, p->base, "x", &path, &p->e), 0);
	assert_int_equal(orch_image_hold(path, &held, &p->e), 0);
	assert_true(held >= 0);
	assert_int_equal(orch_image_remove(&p->st, p->base, "x", true, &p->e), -SBX_E_IMAGE_IN_USE);
	root = root_of(p, "x");
	file_is(root, "etc/motd", "1");
	/* Another image takes the name; what runs keeps the old one. */
	(void)close(imports(p, &two, "x"));
	file_is(root, "etc/motd", "1");
	(void)close(root);
	(void)close(held);
	/* Nobody has it any more, which the next one sees. */
	assert_int_equal(orch_image_remove(&p->st, p->base, "none", true, &p->e),
			 -SBX_E_IMAGE_NOT_FOUND);
	is_absent(AT_FDCWD, path);
	(void)close(imports(p, &one, "x"));
	assert_int_equal(orch_image_remove(&p->st, p->base, "x", true, &p->e), 0);
	assert_int_equal(orch_image_hold(path, &held, &p->e), -SBX_E_IMAGE_NOT_FOUND);
}

static void image__what_a_crash_left(void **state)
{
	struct place *p = *state;
	sbx_autobuf tar = TAR_INIT;

	small(&tar, "1");
	(void)close(imports(p, &tar, "x"));
	assert_int_equal(mkdirat(p->images, ".import-work", 0700), 0);
	assert_int_equal(mkdirat(p->images, ".import-work/root", 0700), 0);
	assert_int_equal(symlinkat("nowhere", p->images, ".import-name"), 0);
	(void)close(imports(p, &tar, "y"));
	is_absent(p->images, ".import-name");
}

/* ---- what is hostile --------------------------------------------------------------------------
 */

static void image__wrong_digests(void **state)
{
	static const char *const wrong[] = { "layer", "diff_id", "config", "manifest" };
	struct place *p = *state;

	for (size_t i = 0; i < SBX_COUNT(wrong); i++) {
		AUTO_BUNDLE b = { .wrong = wrong[i] };
		sbx_autobuf tar = TAR_INIT;

		three_layers(&b);
		oci(&b, &tar);
		refuses(p, &tar, "should be sha256:");
	}
	for (size_t i = 1; i < 3; i++) {
		AUTO_BUNDLE b = { .wrong = wrong[i] };
		sbx_autobuf tar = TAR_INIT;

		three_layers(&b);
		docker(&b, &tar);
		refuses(p, &tar, "sha256:");
	}
}

static void image__bad_descriptions(void **state)
{
	static const struct {
		const char *name, *text, *why;
	} rows[] = {
		{ "manifest.json", "[]", "one image" },
		{ "manifest.json", "[{},{}]", "one image" },
		{ "manifest.json", "[{}]", "no configuration" },
		{ "manifest.json", "[", "no JSON" },
		{ "manifest.json", "[{\"Config\":\"../x\",\"Layers\":[\"a\"]}]", "leads nowhere" },
		{ "manifest.json", "[{\"Config\":\"/etc/passwd\",\"Layers\":[\"a\"]}]",
		  "leads nowhere" },
		{ "manifest.json", "[{\"Config\":\"link\",\"Layers\":[\"a\"]}]", "no file 'link'" },
		{ "manifest.json", "[{\"Config\":\"c\",\"Layers\":[1]}]", "no name" },
		{ "manifest.json", "[{\"Config\":\"c\",\"Layers\":[]}]", "no layers" },
		{ "index.json", "{}", "no layers" },
		{ "index.json", "{\"manifests\":[]}", "no image for" },
		{ "index.json", "{\"manifests\":[{\"digest\":\"sha256:../../x\"}]}", "SHA-256" },
		{ "index.json", "{\"manifests\":[{\"digest\":\"a\"},{\"digest\":\"b\"}]}",
		  "several images" },
	};
	struct place *p = *state;

	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		sbx_autobuf tar = TAR_INIT;

		tar_symlink(&tar, "link", "/etc/passwd");
		tar_file(&tar, rows[i].name, rows[i].text);
		tar_end(&tar);
		refuses(p, &tar, rows[i].why);
	}
}

static void image__of_another_machine(void **state)
{
	struct place *p = *state;
	AUTO_BUNDLE b = { .arch = "vax" };
	sbx_autobuf tar = TAR_INIT;

	three_layers(&b);
	docker(&b, &tar);
	refuses(p, &tar, "the image is for linux/vax");
}

static void refuses_root(struct place *p, struct sbx_buf *tar, const char *why)
{
	tar_end(tar);
	refuses(p, tar, why);
	sbx_buf_free(tar);
	*tar = (struct sbx_buf)TAR_INIT;
	tar_file(tar, "etc/motd", "x"); /* of the next one */
}

static void image__ways_out(void **state)
{
	struct place *p = *state;
	sbx_autobuf tar = TAR_INIT;

	tar_file(&tar, "../e", "x");
	refuses_root(p, &tar, "'..'");
	tar_file(&tar, "a/../../e", "x");
	refuses_root(p, &tar, "'..'");
	/* Links lead into the image's own root, where nothing is. */
	tar_symlink(&tar, "l", "/tmp");
	tar_file(&tar, "l/sbx-images-outside", "x");
	refuses_root(p, &tar, "cannot unpack 'l/sbx-images-outside'");
	tar_symlink(&tar, "m", "../../../../../../../../tmp");
	tar_dir(&tar, "m/sbx-images-outside", 0777);
	refuses_root(p, &tar, "cannot unpack 'm/sbx-images-outside'");
	tar_symlink(&tar, "r", "/proc/self/root/tmp");
	tar_file(&tar, "r/sbx-images-outside", "x");
	refuses_root(p, &tar, "cannot unpack 'r/sbx-images-outside'");
	tar_hardlink(&tar, "h", "/etc/passwd");
	refuses_root(p, &tar, "'h' is not there");
	tar_hardlink(&tar, "i", "../../x");
	refuses_root(p, &tar, "'..'");
	tar_file(&tar, "v", "1");
	tar_hardlink(&tar, "k/e", "v");
	tar_symlink(&tar, "k", "../out");
	tar_file(&tar, "k/e", "x");
	refuses_root(p, &tar, "cannot unpack 'k/e'");
	tar_file(&tar, "f/x", "x");
	tar_file(&tar, "etc/motd/x", "below a file");
	refuses_root(p, &tar, "cannot unpack 'etc/motd/x'");
	is_absent(AT_FDCWD, "/tmp/e");
}

static void image__links_stay_inside(void **state)
{
	struct place *p = *state;
	sbx_autobuf tar = TAR_INIT;
	sbx_autoclose int root = -1;

	tar_dir(&tar, "tmp", 0777);
	tar_symlink(&tar, "l", "/tmp");
	tar_file(&tar, "l/sbx-images-outside", "inside");
	tar_symlink(&tar, "up", "../../..");
	tar_file(&tar, "up/at-the-top", "top");
	tar_symlink(&tar, "f", OUTSIDE);
	tar_file(&tar, "f", "plain");
	tar_symlink(&tar, "etc/passwd", "/etc/shadow");
	tar_hardlink(&tar, "h", "etc/passwd");
	tar_end(&tar);
	root = imports(p, &tar, "x");
	file_is(root, "tmp/sbx-images-outside", "inside");
	file_is(root, "at-the-top", "top");
	file_is(root, "f", "plain");
	assert_true(S_ISLNK(mode_of(root, "h")));
	is_absent(AT_FDCWD, OUTSIDE);
}

static void image__whiteouts_that_hide_no_name(void **state)
{
	static const char *const names[] = { ".wh.", ".wh..", ".wh...", "etc/.wh..", "etc/.wh..." };
	struct place *p = *state;

	for (size_t i = 0; i < SBX_COUNT(names); i++) {
		AUTO_BUNDLE b = { .n = 0 };
		sbx_autobuf tar = TAR_INIT;

		layer_init(&b, 2);
		tar_file(&b.layers[0], "etc/motd", "x");
		tar_end(&b.layers[0]);
		tar_file(&b.layers[1], names[i], "");
		tar_end(&b.layers[1]);
		oci(&b, &tar);
		refuses(p, &tar, "hides no name");
	}
}

/* What all layers together may have is less with each of them. */
static void image__budget(void **state)
{
	struct place *p = *state;
	sbx_autobuf zeros = SBX_BUF_INIT(16 << 20), tar = TAR_INIT, gz = TAR_INIT;
	struct image_budget budget = { 10, 20 << 20 };
	sbx_autoclose int root = open(p->base, O_RDONLY | O_DIRECTORY | O_CLOEXEC), fd = -1;

	assert_non_null(sbx_buf_reserve(&zeros, 16 << 20));
	memset(zeros.data, 0, 16 << 20);
	tar_bytes(&tar, "etc/zeros", 0644, zeros.data, 16 << 20);
	tar_end(&tar);
	compress_into(&gz, ARCHIVE_FILTER_GZIP, tar.data, tar.len);
	fd = as_file(gz.data, gz.len);
	assert_int_equal(image_layer_apply(fd, root, NULL, true, &budget, &p->e), 0);
	assert_int_equal(budget.entries, 9);
	assert_int_equal(budget.bytes, 4 << 20);
	assert_int_equal(image_layer_apply(fd, root, NULL, true, &budget, &p->e),
			 -SBX_E_INVALID_ARGUMENT);
	assert_non_null(strstr(p->e.message, "too large"));
	budget = (struct image_budget){ 0, 20 << 20 };
	assert_int_equal(image_layer_apply(fd, root, NULL, true, &budget, &p->e),
			 -SBX_E_INVALID_ARGUMENT);
	assert_non_null(strstr(p->e.message, "0 entries"));
}

static void image__damaged(void **state)
{
	struct place *p = *state;
	AUTO_BUNDLE b = { .gz = true };
	sbx_autobuf tar = TAR_INIT, none = TAR_INIT, root = TAR_INIT;

	refuses(p, &none, "");
	sbx_buf_puts(&none, "this is no archive at all");
	refuses(p, &none, "");
	three_layers(&b);
	oci(&b, &tar);
	for (size_t len = 100; len < tar.len - 1024; len += 777) {
		sbx_autobuf part = TAR_INIT;

		sbx_buf_add(&part, tar.data, len);
		refuses(p, &part, "");
	}
	tar_file(&root, "etc/motd", "hello");
	tar_header(&root, '0', "bin/tool", NULL, 0755, 100000);
	sbx_buf_puts(&root, "cut off");
	refuses(p, &root, "at 'bin/tool'");
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(image__of_an_oci_layout),
		TEST(image__of_docker_save),
		TEST(image__of_a_root),
		TEST(image__from_a_pipe),
		TEST(image__names),
		TEST(image__a_directory_of_the_operator),
		TEST(image__in_use_stays),
		TEST(image__what_a_crash_left),
		TEST(image__wrong_digests),
		TEST(image__bad_descriptions),
		TEST(image__of_another_machine),
		TEST(image__ways_out),
		TEST(image__links_stay_inside),
		TEST(image__whiteouts_that_hide_no_name),
		TEST(image__budget),
		TEST(image__damaged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
