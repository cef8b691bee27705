/* SPDX-License-Identifier: Apache-2.0 */
/* Images from files: layers and whiteouts, digests, names, and what is hostile. */
#include "images_util.h"

/* ---- what is good ---------------------------------------------------------------------------- */

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

/* ---- names ----------------------------------------------------------------------------------- */

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

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(image__of_an_oci_layout),
		TEST(image__of_docker_save),
		TEST(image__of_a_root),
		TEST(image__from_a_pipe),
		TEST(image__names),
		TEST(image__a_directory_of_the_operator),
		TEST(image__in_use_stays),
		TEST(image__what_a_crash_left),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
