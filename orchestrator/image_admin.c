/* SPDX-License-Identifier: Apache-2.0 */
/* Images as administrators see them through a door. Nothing is unpacked here. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/json.h"
#include "orchestrator/helper_i.h"
#include "orchestrator/image.h"
#include "orchestrator/images_i.h"

enum { INFO_MAX = 64 << 10 };

static int not_found(const char *name, struct sbx_error *e)
{
	return sbx_fail(e, SBX_E_NOT_FOUND, "no image '%.200s'", name);
}

/* The directory of images; -ENOENT: there are none yet. */
static int open_dir(struct orch *o)
{
	sbx_autofree char *path = orch_image_dir(orch_settings(o), o->state_dir);
	int fd = path ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;

	return fd >= 0 ? fd : path ? -errno : -ENOMEM;
}

/* ---- what there is to tell ------------------------------------------------------------------- */

static int64_t number(struct json_object *o, const char *key)
{
	struct json_object *v = NULL;

	return json_object_object_get_ex(o, key, &v) && json_object_is_type(v, json_type_int)
		       ? json_object_get_int64(v)
		       : -1;
}

/* The file beside an imported image; NULL: it came before there were such files. */
static struct json_object *read_info(int dir, const char *digest)
{
	char name[ORCH_IMAGE_DIGEST];
	sbx_autofree char *text = NULL;
	struct json_object *doc = NULL;
	size_t len = 0;

	image_info_name(digest, name);
	if (sbx_read_file(dir, name, INFO_MAX, &text, &len) < 0 ||
	    sbx_json_parse_object(text, len, &doc, NULL) < 0)
		return NULL;
	return doc;
}

/* Of one in an open directory. *ret_info: what is known besides, the caller's; NULL: nothing. */
static int look(int dir, const char *name, struct orch_image *ret, struct json_object **ret_info,
		struct sbx_error *e)
{
	struct json_object *source = NULL;
	struct stat st;

	*ret = (struct orch_image){ .bytes = -1, .source = "directory" };
	*ret_info = NULL;
	if (name[0] == '.' || sbx_path_problem(name, strlen(name)) || strchr(name, '/') ||
	    orch_image_digest(name, ret->digest) || fstatat(dir, name, &st, 0) < 0 ||
	    !S_ISDIR(st.st_mode))
		return not_found(name, e);
	if (!image_name_read(dir, name, ret->digest)) {
		ret->digest[0] = '\0';
		return 0;
	}
	*ret_info = read_info(dir, ret->digest);
	ret->source = "root";
	if (!*ret_info)
		return 0;
	ret->bytes = number(*ret_info, "size_bytes");
	if (json_object_object_get_ex(*ret_info, "source", &source) &&
	    strcmp(json_object_get_string(source), "layers") == 0)
		ret->source = "layers";
	return 0;
}

int orch_image_get(struct orch *o, const char *name, struct orch_image *ret, struct sbx_error *e)
{
	sbx_autoclose int dir = open_dir(o);
	sbx_autojson *info = NULL;

	if (dir == -ENOENT)
		return not_found(name, e);
	return dir < 0 ? image_dir_broken(-dir, e) : look(dir, name, ret, &info, e);
}

static void text_member(struct sbx_buf *out, const char *key, const char *value)
{
	sbx_buf_printf(out, ",\"%s\":", key);
	sbx_buf_json_strz(out, value);
}

static void number_member(struct sbx_buf *out, const char *key, int64_t n)
{
	if (n < 0)
		sbx_buf_printf(out, ",\"%s\":null", key);
	else
		sbx_buf_printf(out, ",\"%s\":%lld", key, (long long)n);
}

static int object(int dir, const char *name, struct sbx_buf *out, struct sbx_error *e)
{
	struct json_object *when = NULL;
	sbx_autojson *info = NULL;
	struct orch_image im;
	int rc = look(dir, name, &im, &info, e);

	if (rc < 0)
		return rc;
	sbx_buf_puts(out, "{\"name\":");
	sbx_buf_json_strz(out, name);
	text_member(out, "digest", im.digest[0] ? im.digest : NULL);
	text_member(out, "source", im.source);
	number_member(out, "layers", info ? number(info, "layers") : -1);
	number_member(out, "size_bytes", im.bytes);
	number_member(out, "entries", info ? number(info, "entries") : -1);
	number_member(out, "file_bytes", info ? number(info, "file_bytes") : -1);
	if (info)
		(void)json_object_object_get_ex(info, "imported_at", &when);
	text_member(out, "imported_at", when ? json_object_get_string(when) : NULL);
	sbx_buf_puts(out, "}");
	return 0;
}

int orch_view_image(struct orch *o, const char *name, struct sbx_buf *out, struct sbx_error *e)
{
	sbx_autoclose int dir = open_dir(o);
	int rc;

	if (dir == -ENOENT)
		return not_found(name, e);
	rc = dir < 0 ? image_dir_broken(-dir, e) : object(dir, name, out, e);
	sbx_buf_puts(out, "\n");
	return orch_view_done(rc, out, e);
}

int orch_images_list(struct orch *o, char ***ret, struct sbx_error *e)
{
	sbx_autofree char *path = orch_image_dir(orch_settings(o), o->state_dir);
	int n = path ? orch_image_names(path, ret) : -1;

	return n < 0 ? sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a list") : n;
}

void orch_images_list_free(char **names, int n)
{
	orch_image_names_free(names, n);
}

int orch_view_images(struct orch *o, struct sbx_buf *out, struct sbx_error *e)
{
	sbx_autoclose int dir = open_dir(o);
	char **names = NULL;
	bool any = false;
	int n = orch_images_list(o, &names, e);

	if (n < 0)
		return n;
	sbx_buf_puts(out, "{\"items\":[");
	for (int i = 0; dir >= 0 && i < n; i++) {
		size_t len = out->len;

		sbx_buf_puts(out, any ? "," : "");
		if (object(dir, names[i], out, NULL) == 0)
			any = true;
		else if (!sbx_buf_failed(out)) /* it has just gone, or is a file of somebody's */
			out->len = len;
	}
	sbx_buf_puts(out, "]}\n");
	orch_images_list_free(names, n);
	return orch_view_done(0, out, e);
}

/* ---- coming and going ------------------------------------------------------------------------ */

static void note(struct orch *o, const struct orch_principal *p, const char *name,
		 const char *result)
{
	const struct store_audit a = { .at_us = sbx_now_us(),
				       .user = p->user,
				       .door = p->door,
				       .action = "image",
				       .resource = name,
				       .result = result };
	store_autotx struct store_tx *tx = NULL;

	if (store_begin(o->store, &tx, NULL) == 0 && store_tx_audit(tx, &a, NULL) == 0)
		(void)store_commit(sbx_steal(&tx), false, NULL);
}

int orch_image_stage(struct orch *o, struct sbx_error *e)
{
	sbx_autofree char *path = orch_image_dir(orch_settings(o), o->state_dir);
	int r = path ? sbx_mkdirs(path, 0700) : -ENOMEM;
	int fd = r < 0 ? r : open(path, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);

	return fd >= 0 ? fd
		       : sbx_fail_errno(
				 e, errno == ENOSPC ? SBX_E_STORAGE_FULL : SBX_E_STORE_UNAVAILABLE,
				 r < 0 ? -r : errno, "cannot stage an image");
}

int orch_image_put(struct orch *o, const struct orch_principal *p, const char *name, int fd,
		   struct sbx_error *e)
{
	sbx_autofree char *arg = NULL;
	sbx_autobuf answer = SBX_BUF_INIT(64 << 10);
	int rc = orch_image_name_check(name, e);

	if (rc < 0)
		return rc;
	if (asprintf(&arg, "%s=-", name) < 0) {
		arg = NULL;
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	}
	rc = helper_run(o, (const char *const[]){ "--import-image", arg, NULL }, fd, -1, &answer,
			e);
	if (rc == 0)
		note(o, p, name, "imported");
	return rc;
}

int orch_image_drop(struct orch *o, const struct orch_principal *p, const char *name,
		    struct sbx_error *e)
{
	struct orch_image im;
	int rc = orch_image_get(o, name, &im, e);

	if (rc == 0 && !im.digest[0])
		return sbx_fail(
			e, SBX_E_FORBIDDEN,
			"'%.200s' is a directory that was not imported; its owner removes it",
			name);
	if (rc == 0)
		rc = orch_image_remove(orch_settings(o), o->state_dir, name, false, e);
	if (rc == 0)
		note(o, p, name, "removed");
	return rc;
}
