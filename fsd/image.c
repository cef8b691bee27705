/* SPDX-License-Identifier: Apache-2.0 */
/*
 * images/: what runs can name, and what became of files that were copied here. Images come and go
 * by other programs too, which tell nobody, so the kernel may believe nothing of it. A number is
 * made of the name, so that no table is needed and a restarted server knows every one.
 */
#include "fsd/img_i.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { NUMBER_BITS = 52 };

bool is_image_node(enum ms_node_id node)
{
	if (is_coming_node(node))
		return false;
	for (; node > MS_N_ROOT && node < MS_N__COUNT; node = ms_node(node)->parent)
		if (node == MS_N_IMAGES)
			return true;
	return false;
}

/* FNV-1a; never 0. */
int64_t img_number(const char *name)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325);

	for (; *name; name++)
		h = (h ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
	h = (h ^ h >> NUMBER_BITS) & ((UINT64_C(1) << NUMBER_BITS) - 1);
	return h ? (int64_t)h : 1;
}

/* The image of this number; -ENOENT. */
static int name_of(struct fsd *f, int64_t number, char ret[SESSION_NAME])
{
	sbx_autoerror e = SBX_ERROR_INIT;
	char **names = NULL;
	int n = orch_images_list(f->orch, &names, &e), r = -ENOENT;

	if (n < 0)
		return -fsd_errno(&e);
	for (int i = 0; i < n && r < 0; i++)
		if (img_number(names[i]) == number && strlen(names[i]) < SESSION_NAME) {
			(void)snprintf(ret, SESSION_NAME, "%s", names[i]);
			r = 0;
		}
	orch_images_list_free(names, n);
	return r;
}

/* ---- attributes ------------------------------------------------------------------------------ */

static bool of_one(enum ms_node_id node)
{
	return node == MS_N_IMAGE || ms_node(node)->parent == MS_N_IMAGE;
}

static int size_of(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct stat *st)
{
	const struct ms_node *n = ms_node(ino_node(ino));
	char name[SESSION_NAME];

	if (n->kind == MS_K_DIR)
		return ino_node(ino) == MS_N_IMAGE ? name_of(f, ino_row(ino), name) : 0;
	return node_size(f, req, ino, &st->st_size);
}

int img_attr(struct fsd *f, fuse_req_t req, fuse_ino_t ino, struct stat *st, double *timeout)
{
	const struct ms_node *n = ms_node(ino_node(ino));
	int r;

	memset(st, 0, sizeof(*st));
	st->st_ino = ino;
	st->st_mode = (n->kind == MS_K_DIR ? S_IFDIR : S_IFREG) | n->mode;
	st->st_nlink = n->kind == MS_K_DIR ? 2 : 1;
	st->st_uid = f->uid;
	st->st_gid = getgid();
	st->st_blksize = 4096;
	st->st_mtim.tv_sec = st->st_ctim.tv_sec = st->st_atim.tv_sec = f->started_us / 1000000;
	acl_mode(f, st);
	*timeout = ino_node(ino) == MS_N_IMAGES ? FSD_FOREVER : 0;
	r = size_of(f, req, ino, st);
	st->st_blocks = (st->st_size + 511) / 512;
	return r;
}

/* ---- look-up and listing --------------------------------------------------------------------- */

static int find(struct fsd *f, const char *name, fuse_ino_t *ret)
{
	sbx_autoerror e = SBX_ERROR_INIT;
	struct orch_image im;

	if (strlen(name) < SESSION_NAME && orch_image_get(f->orch, name, &im, &e) == 0) {
		*ret = ino_make(img_number(name), MS_N_IMAGE);
		return 0;
	}
	return e.code && e.code != SBX_E_NOT_FOUND ? -fsd_errno(&e) : -ENOENT;
}

int img_child(struct fsd *f, fuse_req_t req, fuse_ino_t parent, const char *name,
	      struct fuse_entry_param *ret)
{
	int r = 0;

	memset(ret, 0, sizeof(*ret));
	ret->generation = 1;
	if (ino_node(parent) == MS_N_ROOT) {
		ret->ino = ino_make(0, MS_N_IMAGES);
		ret->entry_timeout = FSD_FOREVER;
	} else if (ino_node(parent) == MS_N_IMAGES) {
		r = find(f, name, &ret->ino);
		if (r == -ENOENT)
			return coming_child(f, req, MS_N_IMAGE_ERROR, "", name, ret);
	} else {
		enum ms_node_id node = ms_node_child(ino_node(parent), name);

		if (node == MS_N_NONE)
			return -ENOENT;
		ret->ino = ino_make(ino_row(parent), node);
	}
	return r < 0 ? r : img_attr(f, req, ret->ino, &ret->attr, &ret->attr_timeout);
}

/* What the listing of images/ has; its cookie is the number, which stays while others come and go.
 */
struct listed {
	int64_t number;
	enum ms_node_id node;
	const char *name; /* borrowed */
};

static int by_number(const void *a, const void *b)
{
	const struct listed *x = a, *y = b;

	return x->number < y->number ? -1 : x->number > y->number;
}

static bool add(struct listing *l, const struct listed *one)
{
	struct fuse_entry_param e = { .ino = ino_make(one->number, one->node), .generation = 1 };
	int r = !l->plus ? -ENOENT
		: one->node == MS_N_IMAGE
			? img_attr(l->f, l->req, e.ino, &e.attr, &e.attr_timeout)
			: coming_attr(l->f, l->req, e.ino, &e.attr, &e.attr_timeout);

	if (r < 0) {
		e.attr.st_ino = e.ino;
		e.attr.st_mode = one->node == MS_N_IMAGE ? S_IFDIR : S_IFREG;
		e.ino = 0; /* a look-up may have more luck */
	}
	return dir_add(l, one->name, OFF_DYNAMIC + one->number, &e);
}

int img_list(struct listing *l, int64_t after)
{
	struct img_error failed[IMG_ERRORS];
	sbx_autofree struct listed *all = NULL;
	sbx_autoerror e = SBX_ERROR_INIT;
	char **names = NULL;
	size_t n_failed = failures_list(l->f->failures, "", failed), n_all = 0;
	int n = orch_images_list(l->f->orch, &names, &e);

	if (n < 0)
		return -fsd_errno(&e);
	all = calloc((size_t)n + n_failed + 1, sizeof(*all));
	for (int i = 0; all && i < n; i++)
		all[n_all++] = (struct listed){ img_number(names[i]), MS_N_IMAGE, names[i] };
	for (size_t i = 0; all && i < n_failed; i++)
		all[n_all++] =
			(struct listed){ failed[i].number, MS_N_IMAGE_ERROR, failed[i].name };
	if (all)
		qsort(all, n_all, sizeof(*all), by_number);
	for (size_t i = 0; i < n_all; i++)
		if (all[i].number > after && !add(l, &all[i]))
			break;
	orch_images_list_free(names, n);
	return all ? 0 : -ENOMEM;
}

/* ---- what its nodes say ---------------------------------------------------------------------- */

static void say(enum ms_view view, const struct orch_image *im, struct sbx_buf *out)
{
	if (view == MS_V_IMAGE_DIGEST)
		sbx_buf_printf(out, "%s\n", im->digest[0] ? im->digest : "-");
	else if (view == MS_V_IMAGE_SOURCE)
		sbx_buf_printf(out, "%s\n", im->source);
	else if (im->bytes < 0)
		sbx_buf_puts(out, "-\n");
	else
		sbx_buf_printf(out, "%lld\n", (long long)im->bytes);
}

int img_render(struct fsd *f, fuse_ino_t ino, struct sbx_buf *out)
{
	enum ms_view view = ms_node(ino_node(ino))->view;
	sbx_autoerror e = SBX_ERROR_INIT;
	char name[SESSION_NAME];
	struct orch_image im;
	int r, rc;

	if (!of_one(ino_node(ino)))
		return -EACCES;
	r = name_of(f, ino_row(ino), name);
	if (r < 0)
		return r;
	if (view == MS_V_IMAGE_INFO) {
		rc = orch_view_image(f->orch, name, out, &e);
	} else {
		rc = orch_image_get(f->orch, name, &im, &e);
		if (rc == 0)
			say(view, &im, out);
	}
	return rc < 0 ? -fsd_errno(&e) : sbx_buf_failed(out) ? -ENOMEM : 0;
}

/* ---- removal --------------------------------------------------------------------------------- */

static int remove_image(struct fsd *f, struct job *j)
{
	sbx_autoerror e = SBX_ERROR_INIT;

	return orch_image_drop(f->orch, &j->who, j->name, &e) < 0 ? -fsd_errno(&e) : 0;
}

static void answer(struct fsd *f, struct job *j, int r)
{
	(void)f;
	fuse_reply_err(j->req, -r);
}

void img_rmdir(struct fsd *f, fuse_req_t req, const char *name)
{
	struct job j = { .req = req, .perform = remove_image, .answer = answer };

	who_is(f, req, &j.who);
	(void)snprintf(j.name, sizeof(j.name), "%s", name);
	if (!j.who.admin)
		fuse_reply_err(req, EACCES);
	else
		(void)writers_give_job(f->writers, &j);
}
