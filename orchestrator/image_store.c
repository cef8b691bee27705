/* SPDX-License-Identifier: Apache-2.0 */
/* The directory of images: names, what is known of an image, and how one goes. How one comes in is
 * in images.c, which alone needs to unpack. */
#include "orchestrator/images_i.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/fs.h"
#include "base/id.h"
#include "orchestrator/image.h"

enum { NAME_LEN_MAX = 128 };

/* ---- the directory of images ----------------------------------------------------------------- */

void images_close(struct images *im)
{
	sbx_closep(&im->dir);
	sbx_closep(&im->lock);
}

int image_dir_broken(int err, struct sbx_error *e)
{
	return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, err, "cannot use the image directory");
}

/* "sha256:..." as the name of a directory. */
void image_dir_name(const char *digest, char ret[ORCH_IMAGE_DIGEST])
{
	memcpy(ret, digest, ORCH_IMAGE_DIGEST);
	ret[6] = '-';
}

/* Where a name leads. False: it is no name of an imported image. */
bool image_name_read(int dir, const char *name, char ret[ORCH_IMAGE_DIGEST])
{
	char target[ORCH_IMAGE_DIGEST];
	ssize_t n = readlinkat(dir, name, target, sizeof(target));

	if (n != ORCH_IMAGE_DIGEST - 1)
		return false;
	target[n] = '\0';
	return orch_image_digest(target, ret);
}

void image_info_name(const char *digest, char ret[ORCH_IMAGE_DIGEST])
{
	(void)snprintf(ret, ORCH_IMAGE_DIGEST, IMAGE_INFO "%.64s", digest + 7);
}

/* ---- names ----------------------------------------------------------------------------------- */

int orch_image_name_check(const char *name, struct sbx_error *e)
{
	size_t n = 0;

	while (isalnum((unsigned char)name[n]) || (n > 0 && name[n] && strchr("._:@+-", name[n])))
		n++;
	if (n == 0 || name[n] || n > NAME_LEN_MAX || strcmp(name, "host") == 0 ||
	    strcmp(name, "host-local") == 0 || strncmp(name, "sha256", 6) == 0)
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT,
				"name of an image: found '%.200s', allowed letters, digits and "
				"._:@+- up to %d, but for host, host-local and sha256...",
				name, NAME_LEN_MAX);
	return 0;
}

int image_name_free(int dir, const char *name, struct sbx_error *e)
{
	char digest[ORCH_IMAGE_DIGEST];
	struct stat st;
	int rc = orch_image_name_check(name, e);

	if (rc == 0 && fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
	    !image_name_read(dir, name, digest))
		return sbx_fail(e, SBX_E_INVALID_ARGUMENT,
				"'%s' is a directory that was not imported; remove it first", name);
	return rc;
}

/* From one moment to the next, also for a name that was another image's. */
int image_name_set(int dir, const char *name, const char *digest, struct sbx_error *e)
{
	char target[ORCH_IMAGE_DIGEST], spare[32];

	image_dir_name(digest, target);
	(void)snprintf(spare, sizeof(spare), IMAGE_WORK "name");
	(void)unlinkat(dir, spare, 0);
	if (symlinkat(target, dir, spare) < 0 || renameat(dir, spare, dir, name) < 0 ||
	    fsync(dir) < 0)
		return image_dir_broken(errno, e);
	return 0;
}

/* ---- what nobody names ----------------------------------------------------------------------- */

static bool is_named(int dir, const char *digest)
{
	int own = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = own >= 0 ? fdopendir(own) : NULL;
	const struct dirent *de;
	bool found = !d; /* fail closed: it stays */
	char other[ORCH_IMAGE_DIGEST];

	if (!d)
		sbx_closep(&own);
	while (!found && (de = readdir(d)))
		found = image_name_read(dir, de->d_name, other) && strcmp(other, digest) == 0;
	if (d)
		(void)closedir(d);
	return found;
}

/* The image goes unless it has a name or a run. False: a run has it. */
bool image_drop_unnamed(int dir, const char *digest)
{
	char name[ORCH_IMAGE_DIGEST], spare[32];
	sbx_autoclose int fd = -1;

	if (is_named(dir, digest))
		return true;
	image_dir_name(digest, name);
	fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return true;
	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		return false;
	/* Out of the way at once: a run never sees half of an image. */
	(void)snprintf(spare, sizeof(spare), IMAGE_WORK "gone");
	if (renameat(dir, name, dir, spare) == 0) {
		image_info_name(digest, name);
		(void)unlinkat(dir, name, 0);
		(void)sbx_remove_tree(dir, spare);
	}
	return true;
}

/* What is known of an image that a crash has kept from coming, or from going. */
static bool is_stray_info(int dir, const char *name)
{
	char digest[ORCH_IMAGE_DIGEST], root[ORCH_IMAGE_DIGEST];

	if (strncmp(name, IMAGE_INFO, sizeof(IMAGE_INFO) - 1) != 0)
		return false;
	(void)snprintf(digest, sizeof(digest), "sha256:%.64s", name + sizeof(IMAGE_INFO) - 1);
	image_dir_name(digest, root);
	return faccessat(dir, root, F_OK, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT;
}

/* What an import has left that was killed, and images that had a run when they lost their name. */
static void sweep(int dir)
{
	int own = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = own >= 0 ? fdopendir(own) : NULL;
	const struct dirent *de;
	char digest[ORCH_IMAGE_DIGEST];

	if (!d) {
		sbx_closep(&own);
		return;
	}
	while ((de = readdir(d))) {
		if (strncmp(de->d_name, IMAGE_WORK, sizeof(IMAGE_WORK) - 1) == 0)
			(void)sbx_remove_tree(dir, de->d_name);
		else if (is_stray_info(dir, de->d_name))
			(void)unlinkat(dir, de->d_name, 0);
		else if (orch_image_digest(de->d_name, digest))
			(void)image_drop_unnamed(dir, digest);
	}
	(void)closedir(d);
}

int images_open(const struct orch_settings *st, const char *state_dir, bool wait,
		struct images *ret, struct sbx_error *e)
{
	sbx_autofree char *path = orch_image_dir(st, state_dir);
	int r;

	if (!path)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	r = sbx_mkdirs(path, 0700);
	ret->dir = r < 0 ? r : open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (ret->dir < 0)
		return sbx_fail_errno(e, SBX_E_STORE_UNAVAILABLE, r < 0 ? -r : errno,
				      "cannot open the image directory '%s'", path);
	ret->lock = openat(ret->dir, ".lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (ret->lock < 0)
		return image_dir_broken(errno, e);
	while (flock(ret->lock, LOCK_EX | (wait ? 0 : LOCK_NB)) < 0) {
		if (errno == EWOULDBLOCK)
			return sbx_fail(e, SBX_E_IMAGE_IN_USE,
					"an image is being imported; try again when that is done");
		if (errno != EINTR)
			return image_dir_broken(errno, e);
	}
	sweep(ret->dir);
	return 0;
}

/* ---- listing and removing -------------------------------------------------------------------- */

int orch_image_list(const struct orch_settings *st, const char *state_dir, struct sbx_buf *out,
		    struct sbx_error *e)
{
	sbx_autofree char *path = orch_image_dir(st, state_dir);
	sbx_autoclose int dir = path ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	char **names = NULL;
	int n = path ? orch_image_names(path, &names) : -1;

	if (!path || n < 0)
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory");
	for (int i = 0; i < n; i++) {
		char digest[ORCH_IMAGE_DIGEST] = "-";

		if (!image_name_read(dir, names[i], digest))
			memcpy(digest, "-", 2);
		sbx_buf_printf(out, "%s\t%s\n", names[i], digest);
	}
	orch_image_names_free(names, n);
	return 0;
}

int orch_image_remove(const struct orch_settings *st, const char *state_dir, const char *name,
		      bool wait, struct sbx_error *e)
{
	AUTO_IMAGES im = { -1, -1 };
	char digest[ORCH_IMAGE_DIGEST];
	int rc = images_open(st, state_dir, wait, &im, e);

	if (rc < 0)
		return rc;
	if (sbx_path_problem(name, strlen(name)) || strchr(name, '/') ||
	    !image_name_read(im.dir, name, digest))
		return sbx_fail(e, SBX_E_IMAGE_NOT_FOUND, "no imported image '%.200s'", name);
	if (unlinkat(im.dir, name, 0) < 0)
		return image_dir_broken(errno, e);
	if (image_drop_unnamed(im.dir, digest))
		return fsync(im.dir) < 0 ? image_dir_broken(errno, e) : 0;
	rc = image_name_set(im.dir, name, digest, e);
	return rc < 0 ? rc
		      : sbx_fail(e, SBX_E_IMAGE_IN_USE,
				 "image '%.200s' is used by a run; try again when it has ended",
				 name);
}
