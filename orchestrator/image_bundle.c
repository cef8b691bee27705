/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an unpacked bundle says: an OCI layout (index.json, which names a manifest, which names
 * configuration and layers, each by digest), or what `docker save` wrote before it used that
 * (manifest.json). Either way the configuration names the digest of every layer's tar, so that its
 * own digest stands for the whole image.
 */
#include "orchestrator/images_i.h"

#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <linux/openat2.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/fs.h"
#include "base/json.h"
#include "orchestrator/unpack.h"

enum {
	JSON_MAX = 4 << 20,
	LAYERS_MAX = 1000,
	INDEX_DEPTH = 4, /* an index may name another one */
};

static int bad(struct sbx_error *e, const char *what)
{
	return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "the image is damaged: %s", what);
}

/* ---- digests --------------------------------------------------------------------------------- */

bool image_digest_valid(const char *s)
{
	return strncmp(s, "sha256:", 7) == 0 && strlen(s + 7) == 64 &&
	       strspn(s + 7, "0123456789abcdef") == 64;
}

static void print_digest(const unsigned char md[32], char ret[ORCH_IMAGE_DIGEST])
{
	memcpy(ret, "sha256:", 8);
	for (int i = 0; i < 32; i++)
		(void)snprintf(ret + 7 + 2 * i, 3, "%02x", md[i]);
}

int image_digest_of(int fd, char ret[ORCH_IMAGE_DIGEST], struct sbx_error *e)
{
	EVP_MD_CTX *md = EVP_MD_CTX_new();
	unsigned char out[EVP_MAX_MD_SIZE];
	char buf[64 << 10];
	off_t at = 0;
	ssize_t n = 0;
	bool ok = md && EVP_DigestInit_ex(md, EVP_sha256(), NULL) == 1;

	while (ok && (n = pread(fd, buf, sizeof(buf), at)) != 0) {
		if (n < 0 && errno == EINTR)
			continue;
		ok = n > 0 && EVP_DigestUpdate(md, buf, (size_t)n) == 1;
		at += n;
	}
	ok = ok && EVP_DigestFinal_ex(md, out, NULL) == 1;
	EVP_MD_CTX_free(md);
	if (!ok)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, n < 0 ? errno : EIO,
				      "cannot make a digest");
	print_digest(out, ret);
	return 0;
}

/* ---- files of the bundle --------------------------------------------------------------------- */

int image_bundle_open(int dir, const char *path, struct sbx_error *e)
{
	struct open_how how = {
		.flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK,
		/* Older archives have links from one layer to another. */
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV,
	};
	char clean[SBX_PATH_MAX + 1];
	struct stat st;
	int fd;

	if (orch_archive_path(path, false, clean) || !*clean)
		return bad(e, "a path leads nowhere");
	fd = (int)syscall(SYS_openat2, dir, clean, &how, sizeof(how));
	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
		sbx_closep(&fd);
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT,
				"the image is damaged: it has no file '%.200s'", path);
	}
	return fd;
}

/* A JSON text; array: it is one, and comes as the member "a" of an object. wanted: the digest that
 * the text must have, or NULL. */
static int read_json(int dir, const char *path, bool array, const char *wanted,
		     char ret_digest[ORCH_IMAGE_DIGEST], struct json_object **ret,
		     struct sbx_error *e)
{
	sbx_autoclose int fd = image_bundle_open(dir, path, e);
	char found[ORCH_IMAGE_DIGEST];
	sbx_autobuf text = SBX_BUF_INIT(JSON_MAX);
	sbx_autofree char *buf = NULL;
	struct stat st;
	ssize_t n;
	int rc;

	if (fd < 0)
		return fd;
	if (fstat(fd, &st) < 0 || st.st_size > JSON_MAX - 16)
		return bad(e, "a description is too large");
	rc = image_digest_of(fd, found, e);
	if (rc < 0)
		return rc;
	if (wanted && strcmp(found, wanted) != 0)
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "'%.200s' should be %s and is %s", path,
				wanted, found);
	buf = malloc((size_t)st.st_size + 1);
	n = buf ? sbx_read_full(fd, buf, (size_t)st.st_size) : -ENOMEM;
	if (n < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, (int)-n, "cannot read an image");
	sbx_buf_puts(&text, array ? "{\"a\":" : "");
	sbx_buf_add(&text, buf, (size_t)n);
	sbx_buf_puts(&text, array ? "}" : "");
	if (sbx_buf_failed(&text))
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	if (ret_digest)
		memcpy(ret_digest, found, sizeof(found));
	rc = sbx_json_parse_object(text.data, text.len, ret, e);
	if (rc < 0)
		return bad(e, "a description is no JSON");
	return 0;
}

static int read_blob(int dir, const char *digest, char ret_digest[ORCH_IMAGE_DIGEST],
		     struct json_object **ret, struct sbx_error *e)
{
	char path[128];

	if (!digest || !image_digest_valid(digest))
		return bad(e, "a digest is none of SHA-256");
	(void)snprintf(path, sizeof(path), "blobs/sha256/%s", digest + 7);
	return read_json(dir, path, false, digest, ret_digest, ret, e);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static struct json_object *member(struct json_object *o, const char *name, enum json_type type)
{
	struct json_object *v = NULL;

	if (!json_object_is_type(o, json_type_object) || !json_object_object_get_ex(o, name, &v) ||
	    !json_object_is_type(v, type))
		return NULL;
	return v;
}

static const char *text(struct json_object *o, const char *name)
{
	struct json_object *v = member(o, name, json_type_string);

	return v ? json_object_get_string(v) : NULL;
}

/* ---- the configuration ----------------------------------------------------------------------- */

/* Go's name for what uname(2) says. */
static const char *architecture(void)
{
	static const struct {
		const char *machine, *name;
	} rows[] = {
		{ "x86_64", "amd64" }, { "aarch64", "arm64" },	 { "armv7l", "arm" },
		{ "i686", "386" },     { "riscv64", "riscv64" }, { "ppc64le", "ppc64le" },
		{ "s390x", "s390x" },
	};
	static struct utsname u;

	if (uname(&u) < 0)
		return "";
	for (size_t i = 0; i < SBX_COUNT(rows); i++)
		if (strcmp(u.machine, rows[i].machine) == 0)
			return rows[i].name;
	return u.machine;
}

static bool is_ours(struct json_object *platform)
{
	const char *os = text(platform, "os"), *arch = text(platform, "architecture");

	return (!os || strcmp(os, "linux") == 0) && (!arch || strcmp(arch, architecture()) == 0);
}

/* b->layers has paths; the configuration says what must be in them. */
static int take_config(struct image_bundle *b, struct json_object *config, struct sbx_error *e)
{
	struct json_object *rootfs = member(config, "rootfs", json_type_object);
	struct json_object *ids = rootfs ? member(rootfs, "diff_ids", json_type_array) : NULL;

	if (!is_ours(config))
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT,
				"the image is for %.32s/%.32s, and this host is linux/%s",
				text(config, "os") ? text(config, "os") : "?",
				text(config, "architecture") ? text(config, "architecture") : "?",
				architecture());
	if (!ids || json_object_array_length(ids) != b->n_layers)
		return bad(e, "its configuration does not name its layers");
	for (size_t i = 0; i < b->n_layers; i++) {
		struct json_object *id = json_object_array_get_idx(ids, i);
		const char *s =
			json_object_is_type(id, json_type_string) ? json_object_get_string(id) : "";

		if (!image_digest_valid(s))
			return bad(e, "a digest is none of SHA-256");
		memcpy(b->layers[i].diff_id, s, ORCH_IMAGE_DIGEST);
	}
	return 0;
}

static int make_layers(struct image_bundle *b, struct json_object *list, struct sbx_error *e)
{
	size_t n = list ? json_object_array_length(list) : 0;

	if (n == 0 || n > LAYERS_MAX)
		return bad(e, "it has no layers, or too many");
	b->layers = calloc(n, sizeof(*b->layers));
	if (!b->layers)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	b->n_layers = n;
	return 0;
}

/* ---- OCI layout ------------------------------------------------------------------------------ */

static int take_manifest(int dir, struct json_object *manifest, struct image_bundle *b,
			 struct sbx_error *e)
{
	struct json_object *layers = member(manifest, "layers", json_type_array);
	sbx_autojson *config = NULL;
	const char *digest = text(member(manifest, "config", json_type_object), "digest");
	int rc = make_layers(b, layers, e);

	for (size_t i = 0; rc == 0 && i < b->n_layers; i++) {
		const char *d = text(json_object_array_get_idx(layers, i), "digest");

		if (!d || !image_digest_valid(d))
			return bad(e, "a digest is none of SHA-256");
		memcpy(b->layers[i].digest, d, ORCH_IMAGE_DIGEST);
		if (asprintf(&b->layers[i].path, "blobs/sha256/%s", d + 7) < 0) {
			b->layers[i].path = NULL;
			return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
		}
	}
	if (rc == 0)
		rc = read_blob(dir, digest, b->digest, &config, e);
	return rc < 0 ? rc : take_config(b, config, e);
}

/* The one image of an index that is for this host. */
static int choose(struct json_object *index, const char **ret, struct sbx_error *e)
{
	struct json_object *list = member(index, "manifests", json_type_array);
	size_t n = list ? json_object_array_length(list) : 0;

	*ret = NULL;
	for (size_t i = 0; i < n; i++) {
		struct json_object *o = json_object_array_get_idx(list, i);
		struct json_object *platform = member(o, "platform", json_type_object);
		const char *digest = text(o, "digest");

		if (!digest || (platform && !is_ours(platform)))
			continue;
		if (*ret && strcmp(*ret, digest) != 0)
			return sbx_fail(e, SBX_E_INVALID_ARGUMENT,
					"the file has several images for linux/%s; it must have "
					"one",
					architecture());
		*ret = digest;
	}
	return *ret ? 0
		    : sbx_fail(e, SBX_E_INVALID_ARGUMENT, "the file has no image for linux/%s",
			       architecture());
}

static int read_layout(int dir, struct image_bundle *b, struct sbx_error *e)
{
	sbx_autojson *o = NULL;
	const char *digest;
	int rc = read_json(dir, "index.json", false, NULL, NULL, &o, e);

	for (int depth = 0; rc == 0 && depth < INDEX_DEPTH; depth++) {
		struct json_object *next = NULL;

		if (!member(o, "manifests", json_type_array))
			return take_manifest(dir, o, b, e);
		rc = choose(o, &digest, e);
		if (rc == 0)
			rc = read_blob(dir, digest, NULL, &next, e);
		if (rc == 0) {
			json_object_put(o);
			o = next;
		}
	}
	return rc < 0 ? rc : bad(e, "its index goes on for ever");
}

/* ---- docker save ----------------------------------------------------------------------------- */

/* Files are named by their digests, mostly: "<hex>.json", "blobs/sha256/<hex>". */
static bool contradicts(const char *path, const char *digest)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;

	return strspn(name, "0123456789abcdef") == 64 && (name[64] == '\0' || name[64] == '.') &&
	       strncmp(name, digest + 7, 64) != 0;
}

static int read_docker(int dir, struct image_bundle *b, struct sbx_error *e)
{
	sbx_autojson *o = NULL, *config = NULL;
	struct json_object *list, *image, *layers;
	const char *path;
	int rc = read_json(dir, "manifest.json", true, NULL, NULL, &o, e);

	if (rc < 0)
		return rc;
	list = member(o, "a", json_type_array);
	if (!list || json_object_array_length(list) != 1)
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "the file must have one image");
	image = json_object_array_get_idx(list, 0);
	path = text(image, "Config");
	layers = member(image, "Layers", json_type_array);
	if (!path)
		return bad(e, "it has no configuration");
	rc = make_layers(b, layers, e);
	for (size_t i = 0; rc == 0 && i < b->n_layers; i++) {
		struct json_object *s = json_object_array_get_idx(layers, i);

		if (!json_object_is_type(s, json_type_string))
			return bad(e, "a layer has no name");
		b->layers[i].path = strdup(json_object_get_string(s));
		if (!b->layers[i].path)
			return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	}
	if (rc == 0)
		rc = read_json(dir, path, false, NULL, b->digest, &config, e);
	if (rc == 0 && contradicts(path, b->digest))
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT, "'%.200s' is %s", path, b->digest);
	return rc < 0 ? rc : take_config(b, config, e);
}

int image_bundle_read(int dir, struct image_bundle *ret, struct sbx_error *e)
{
	memset(ret, 0, sizeof(*ret));
	return faccessat(dir, "index.json", F_OK, AT_SYMLINK_NOFOLLOW) == 0
		       ? read_layout(dir, ret, e)
		       : read_docker(dir, ret, e);
}

void image_bundle_clear(struct image_bundle *b)
{
	for (size_t i = 0; i < b->n_layers; i++)
		free(b->layers[i].path);
	free(b->layers);
	memset(b, 0, sizeof(*b));
}
