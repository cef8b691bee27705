/* SPDX-License-Identifier: Apache-2.0 */
/* Process 1: builds the root file system and moves into it. */
#include "runtimes/namespace/ns_i.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/auto.h"
#include "base/fs.h"

/* Sizes until a plan says better; a tmpfs that was made without a limit cannot get one. */
static const struct {
	const char *target;
	struct ns_tmpfs fs;
} areas[NS_AREA__COUNT] = {
	[NS_AREA_WORKSPACE] = { "workspace", { .bytes = 1 << 20, .inodes = 64, .mode = 0755 } },
	[NS_AREA_TMP] = { "tmp", { .bytes = 1 << 20, .inodes = 64, .mode = 01777 } },
	[NS_AREA_SHM] = { "dev/shm", { .bytes = 1 << 20, .inodes = 64, .mode = 01777 } },
};

/* An empty root on top of the old one, and the working directory in it. */
static int make_root(struct ns_reply *r)
{
	sbx_autoclose int ctx = fsopen("tmpfs", FSOPEN_CLOEXEC);
	sbx_autoclose int tree = -1;
	char bytes[24], inodes[24];

	(void)snprintf(bytes, sizeof(bytes), "%d", NS_ROOT_BYTES);
	(void)snprintf(inodes, sizeof(inodes), "%d", NS_ROOT_INODES);
	if (ctx < 0 || fsconfig(ctx, FSCONFIG_SET_STRING, "size", bytes, 0) < 0 ||
	    fsconfig(ctx, FSCONFIG_SET_STRING, "nr_inodes", inodes, 0) < 0 ||
	    fsconfig(ctx, FSCONFIG_SET_STRING, "mode", "0755", 0) < 0 ||
	    fsconfig(ctx, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot make a root file system");
	tree = fsmount(ctx, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
	if (tree < 0 || move_mount(tree, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH) < 0 ||
	    fchdir(tree) < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot mount a root file system");
	return 0;
}

/* The session's directory, by name. Between the runner's look at it and now its name may have come
 * to mean something else. */
static int bind_workspace(const struct ns_config *c, struct ns_reply *r)
{
	struct mount_attr set = { .attr_set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV };
	sbx_autoclose int tree =
		open_tree(AT_FDCWD, c->workspace,
			  OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE | AT_SYMLINK_NOFOLLOW);
	struct stat st;

	if (tree < 0 || fstat(tree, &st) < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot open the workspace");
	if (st.st_dev != c->workspace_dev || st.st_ino != c->workspace_ino)
		return ns_fail(r, NS_STAGE_MOUNT, ESTALE, "the workspace has been replaced");
	if (mount_setattr(tree, "", AT_EMPTY_PATH | AT_RECURSIVE, &set, sizeof(set)) < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot protect the workspace");
	return ns_attach(tree, "workspace", r);
}

static int mount_areas(const struct ns_config *c, struct ns_root *ret, struct ns_reply *r)
{
	for (int a = 0; a < NS_AREA__COUNT; a++) {
		int rc;

		ret->area_ctx[a] = -1;
		if (ns_mkdir(areas[a].target, 0755, r) < 0)
			return -1;
		if (a == NS_AREA_WORKSPACE && c->workspace)
			rc = bind_workspace(c, r);
		else
			rc = ns_tmpfs_mount(areas[a].target, &areas[a].fs, &ret->area_ctx[a], r);
		if (rc < 0)
			return -1;
	}
	return 0;
}

static int make_tree(const struct ns_config *c, int image, struct ns_root *ret, struct ns_reply *r)
{
	static const char *const dirs[] = { "dev", "dev/pts", "proc", "sys", "run" };

	for (size_t i = 0; i < SBX_COUNT(dirs); i++)
		if (ns_mkdir(dirs[i], 0755, r) < 0)
			return -1;
	if (ns_mount_dev(r) < 0 || mount_areas(c, ret, r) < 0)
		return -1;
	if ((image < 0 ? ns_image_host(r) : ns_image_directory(image, r)) < 0)
		return -1;
	if (c->host->state_dir && ns_hide(c->host->state_dir, r) < 0)
		return -1;
	if (c->host->mountpoint && ns_hide(c->host->mountpoint, r) < 0)
		return -1;
	return ns_mount_proc(r);
}

/* Leaves the old root for good. */
static int move_in(struct ns_reply *r)
{
	struct mount_attr set = { .attr_set = MOUNT_ATTR_RDONLY };

	if (mount_setattr(AT_FDCWD, ".", 0, &set, sizeof(set)) < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot make the root read-only");
	/* The old root lands on top of the new one and is taken off from there. */
	if (syscall(SYS_pivot_root, ".", ".") < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot change the root");
	if (umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot leave the old root");
	return 0;
}

int ns_root_build(const struct ns_config *c, struct ns_root *ret, struct ns_reply *r)
{
	struct mount_attr private = { .propagation = MS_PRIVATE };
	int image = -1;

	ret->workspace = ret->ruleset = -1;
	if (mount_setattr(AT_FDCWD, "/", AT_RECURSIVE, &private, sizeof(private)) < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot make the mounts private");
	if (c->image) {
		image = ns_image_open(c, r);
		if (image < 0)
			return -1;
	}
	if (make_root(r) < 0 || make_tree(c, image, ret, r) < 0)
		return -1;
	sbx_closep(&image);
	if (move_in(r) < 0)
		return -1;
	ret->workspace = open("/workspace", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (ret->workspace < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot open /workspace");
	return 0;
}
