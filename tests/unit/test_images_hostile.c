/* SPDX-License-Identifier: Apache-2.0 */
/* Images that are damaged, lie, or lead out, and what is refused of them. */
#include "images_util.h"

/* ---- what is hostile ------------------------------------------------------------------------- */

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
	const struct CMUnitTest tests[] = {
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
