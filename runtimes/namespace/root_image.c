/* SPDX-License-Identifier: Apache-2.0 */
/* Process 1: the read-only part of the root, from the host itself or from an image's directory. */
#include "runtimes/namespace/ns_i.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/auto.h"
#include "base/fs.h"

#define READ_ONLY (MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)

enum { TOP_ENTRIES_MAX = 256 };

static const char *const top_names[] = {
#define TOP(name) name,
#include "runtimes/namespace/root.def"
};

static const char *const etc_dirs[] = {
#define ETC_DIR(name) name,
#include "runtimes/namespace/root.def"
};

static const char *const etc_binds[] = {
#define ETC_BIND(name) name,
#include "runtimes/namespace/root.def"
};

static const struct {
	const char *name, *text;
} etc_files[] = {
#define ETC_FILE(name, text) { name, text },
#include "runtimes/namespace/root.def"
};

/* One entry of a directory to the same name (or `as`) in the new root: directories and files are
 * bound, links made again, anything else left out. */
static int take_entry(int dirfd, const char *name, const char *as, struct ns_reply *r)
{
	char target[SBX_PATH_MAX + 1];
	struct stat st;
	ssize_t n;

	if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) < 0)
		return errno == ENOENT || errno == ENOTDIR
			       ? -ENOENT
			       : ns_fail(r, NS_STAGE_IMAGE, errno, "cannot look at '/%s'", as);
	if (S_ISLNK(st.st_mode)) {
		n = readlinkat(dirfd, name, target, sizeof(target) - 1);
		if (n < 0)
			return ns_fail(r, NS_STAGE_IMAGE, errno, "cannot read the link '/%s'", as);
		target[n] = '\0';
		if (symlink(target, as) < 0)
			return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot make the link '/%s'", as);
		return 0;
	}
	if (S_ISDIR(st.st_mode)) {
		if (ns_mkdir(as, 0755, r) < 0)
			return -1;
	} else if (S_ISREG(st.st_mode)) {
		if (ns_write_new(as, "", r) < 0)
			return -1;
	} else {
		return -ENOENT;
	}
	return ns_bind(dirfd, name, as, READ_ONLY, r);
}

static int make_etc(struct ns_reply *r)
{
	if (ns_mkdir("etc", 0755, r) < 0)
		return -1;
	for (size_t i = 0; i < SBX_COUNT(etc_files); i++) {
		char path[64];

		(void)snprintf(path, sizeof(path), "etc/%s", etc_files[i].name);
		if (ns_write_new(path, etc_files[i].text, r) < 0)
			return -1;
	}
	if (symlink("/proc/self/mounts", "etc/mtab") < 0 ||
	    symlink("/usr/share/zoneinfo/UTC", "etc/localtime") < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot make a link in /etc");
	return 0;
}

static int bind_etc(struct ns_reply *r)
{
	sbx_autoclose int etc = open("/etc", O_PATH | O_DIRECTORY | O_CLOEXEC);

	if (etc < 0)
		return 0;
	for (size_t i = 0; i < SBX_COUNT(etc_dirs); i++) {
		char path[64];

		(void)snprintf(path, sizeof(path), "etc/%s", etc_dirs[i]);
		if (faccessat(etc, etc_dirs[i], F_OK, AT_SYMLINK_NOFOLLOW) == 0 &&
		    ns_mkdir(path, 0755, r) < 0)
			return -1;
	}
	for (size_t i = 0; i < SBX_COUNT(etc_binds); i++) {
		char path[64];

		(void)snprintf(path, sizeof(path), "etc/%s", etc_binds[i]);
		if (take_entry(etc, etc_binds[i], path, r) == -1)
			return -1;
	}
	return 0;
}

int ns_image_host(struct ns_reply *r)
{
	sbx_autoclose int host = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);

	if (host < 0)
		return ns_fail(r, NS_STAGE_IMAGE, errno, "cannot open the host's root");
	for (size_t i = 0; i < SBX_COUNT(top_names); i++)
		if (take_entry(host, top_names[i], top_names[i], r) == -1)
			return -1;
	if (make_etc(r) < 0 || bind_etc(r) < 0)
		return -1;
	if (ns_mkdir("var", 0755, r) < 0)
		return -1;
	if (symlink("/tmp", "var/tmp") < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot make '/var/tmp'");
	return 0;
}

/* ---- directories ----------------------------------------------------------------------------- */

/* These are the sandbox's, whatever an image has under their names. */
static bool is_ours(const char *name)
{
	static const char *const ours[] = { ".",   "..",  "dev", "proc",
					    "run", "sys", "tmp", "workspace" };

	for (size_t i = 0; i < SBX_COUNT(ours); i++)
		if (strcmp(name, ours[i]) == 0)
			return true;
	return false;
}

static int take_top(int tree, struct ns_reply *r)
{
	int fd = openat(tree, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
	struct dirent *d;
	int rc = 0, entries = 0;

	if (!dir) {
		rc = ns_fail(r, NS_STAGE_IMAGE, errno,
			     "the image's directory must be readable for everybody");
		sbx_closep(&fd);
		return rc;
	}
	while (rc != -1 && (d = readdir(dir))) {
		if (is_ours(d->d_name))
			continue;
		if (++entries > TOP_ENTRIES_MAX)
			rc = ns_fail(r, NS_STAGE_IMAGE, E2BIG,
				     "the image has more than %d entries at its top",
				     TOP_ENTRIES_MAX);
		else
			rc = take_entry(tree, d->d_name, d->d_name, r);
	}
	(void)closedir(dir);
	return rc == -1 ? -1 : 0;
}

/* A name of the new root that is a directory or file without any link on the way; what an image
 * holds is never followed. */
static int open_plain(const char *path)
{
	int fd = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC), r;
	struct open_how how = {
		.flags = (uint64_t)(unsigned)(O_PATH | O_CLOEXEC),
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
	};

	if (fd < 0)
		return -1;
	r = (int)syscall(SYS_openat2, fd, path, &how, sizeof(how));
	sbx_closep(&fd);
	return r;
}

/* Puts a file with this text over `target`. */
static int cover_file(int target, const char *name, const char *text, struct ns_reply *r)
{
	static const char spare[] = "run/.cover";
	struct mount_attr set = { .attr_set = READ_ONLY | MOUNT_ATTR_NOEXEC };
	sbx_autoclose int tree = -1;

	if (ns_write_new(spare, text, r) < 0)
		return -1;
	tree = open_tree(AT_FDCWD, spare, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
	if (tree < 0 || mount_setattr(tree, "", AT_EMPTY_PATH, &set, sizeof(set)) < 0 ||
	    move_mount(tree, "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot cover '/etc/%s'", name);
	(void)unlink(spare); /* the mount keeps the file */
	return 0;
}

/* An image brings its own /etc; three files in it describe the network, which is ours. */
static int cover_etc(struct ns_reply *r)
{
	static const char *const names[] = { "hosts", "hostname", "resolv.conf" };

	for (size_t i = 0; i < SBX_COUNT(etc_files); i++) {
		char path[64];
		bool wanted = false;
		sbx_autoclose int target = -1;
		struct stat st;

		for (size_t j = 0; j < SBX_COUNT(names); j++)
			wanted = wanted || strcmp(names[j], etc_files[i].name) == 0;
		(void)snprintf(path, sizeof(path), "etc/%s", etc_files[i].name);
		target = wanted ? open_plain(path) : -1;
		if (target < 0 || fstat(target, &st) < 0 || !S_ISREG(st.st_mode))
			continue;
		if (cover_file(target, etc_files[i].name, etc_files[i].text, r) < 0)
			return -1;
	}
	return 0;
}

int ns_image_open(const struct ns_config *c, struct ns_reply *r)
{
	int tree =
		open_tree(AT_FDCWD, c->image, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);

	if (tree < 0)
		return ns_fail(r, NS_STAGE_IMAGE, errno, "cannot open the image's directory");
	/* On top of the old root, with which it will go away. Parts of a mount that is nowhere
	 * could not be bound. */
	if (move_mount(tree, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH) < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot mount the image");
	return tree;
}

int ns_bind_var_tmp(struct ns_reply *r)
{
	sbx_autoclose int target = open_plain("var/tmp");
	sbx_autoclose int tree = -1;
	struct stat st;

	if (target < 0 || fstat(target, &st) < 0 || !S_ISDIR(st.st_mode))
		return 0;
	tree = open_tree(AT_FDCWD, "tmp", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
	if (tree < 0 ||
	    move_mount(tree, "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot mount '/var/tmp'");
	return 0;
}

int ns_image_directory(int tree, struct ns_reply *r)
{
	struct stat st;

	if (take_top(tree, r) < 0)
		return -1;
	if (fstatat(AT_FDCWD, "etc", &st, AT_SYMLINK_NOFOLLOW) < 0)
		return make_etc(r);
	return cover_etc(r);
}

/* What a directory of the host is called in the new root, if it can be seen there: NULL if not. */
static const char *name_inside(const struct ns_config *c, const char *real)
{
	char image[PATH_MAX];
	size_t n;

	if (!c->image)
		return real + 1; /* what is bound from the host has its old name */
	if (!realpath(c->image, image))
		return NULL;
	n = strcmp(image, "/") == 0 ? 0 : strlen(image);
	return strncmp(real, image, n) == 0 && real[n] == '/' ? real + n + 1 : NULL;
}

int ns_hide(const struct ns_config *c, const char *path, struct ns_reply *r)
{
	static const struct ns_tmpfs nothing = { .bytes = 4096,
						 .inodes = 2,
						 .mode = 0555,
						 .attr = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOEXEC };
	char real[PATH_MAX];
	const char *p = realpath(path, real) ? name_inside(c, real) : NULL;
	sbx_autoclose int found = p && *p ? open_plain(p) : -1;

	return found < 0 ? 0 : ns_tmpfs_mount(p, &nothing, NULL, r);
}
