/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builds the root file system and moves into it: first what is the same for all sandboxes with one
 * image, in a template or in process 1, then in process 1 what each has for itself.
 */
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
	if (c->workspace_ro)
		set.attr_set |= MOUNT_ATTR_RDONLY;
	if (mount_setattr(tree, "", AT_EMPTY_PATH | AT_RECURSIVE, &set, sizeof(set)) < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot protect the workspace");
	return ns_attach(tree, "workspace", r);
}

/* ---- the part that does not depend on the sandbox -------------------------------------------- */

static int make_tree(const struct ns_config *c, int image, struct ns_reply *r)
{
	static const char *const dirs[] = { "dev", "dev/pts", "proc", "sys", "run" };

	for (size_t i = 0; i < SBX_COUNT(dirs); i++)
		if (ns_mkdir(dirs[i], 0755, r) < 0)
			return -1;
	for (int a = 0; a < NS_AREA__COUNT; a++)
		if (ns_mkdir(areas[a].target, 0755, r) < 0)
			return -1;
	if (ns_make_dev(r) < 0)
		return -1;
	if ((image < 0 ? ns_image_host(r) : ns_image_directory(image, r)) < 0)
		return -1;
	if (c->host->state_dir && ns_hide(c, c->host->state_dir, r) < 0)
		return -1;
	if (c->host->mountpoint && ns_hide(c, c->host->mountpoint, r) < 0)
		return -1;
	if (c->workspace && bind_workspace(c, r) < 0)
		return -1;
	/* The kernel lets nobody mount a new /proc where none can be seen. The sandbox's own will
	 * lie on top of this one. */
	if (ns_bind(AT_FDCWD, "/proc", "proc",
		    MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC, r) != 0)
		return r->err ? -1 : ns_fail(r, NS_STAGE_MOUNT, ENOENT, "the host has no /proc");
	return 0;
}

/* Leaves the old root for good; `under` mounts lie on top of it. */
static int move_in(int under, struct ns_reply *r)
{
	struct mount_attr set = { .attr_set = MOUNT_ATTR_RDONLY };

	if (mount_setattr(AT_FDCWD, ".", 0, &set, sizeof(set)) < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot make the root read-only");
	/* The old root lands on top of the new one and is taken off from there, beginning with what
	 * lies on it. */
	if (syscall(SYS_pivot_root, ".", ".") < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot change the root");
	for (int i = 0; i <= under; i++)
		if (umount2(".", MNT_DETACH) < 0)
			return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot leave the old root");
	if (chdir("/") < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot enter the new root");
	return 0;
}

int ns_root_base(const struct ns_config *c, struct ns_reply *r)
{
	struct mount_attr private = { .propagation = MS_PRIVATE };
	sbx_autoclose int image = -1;

	if (mount_setattr(AT_FDCWD, "/", AT_RECURSIVE, &private, sizeof(private)) < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot make the mounts private");
	if (c->image) {
		image = ns_image_open(c, r);
		if (image < 0)
			return -1;
	}
	if (make_root(r) < 0 || make_tree(c, image, r) < 0)
		return -1;
	return move_in(image >= 0 ? 1 : 0, r);
}

/* ---- the sandbox's own part ------------------------------------------------------------------ */

int ns_root_own(const struct ns_config *c, struct ns_root *ret, struct ns_reply *r)
{
	ret->workspace = ret->ruleset = -1;
	for (int a = 0; a < NS_AREA__COUNT; a++) {
		ret->area_ctx[a] = -1;
		if (a == NS_AREA_WORKSPACE && c->workspace)
			continue;
		if (ns_tmpfs_mount(areas[a].target, &areas[a].fs, &ret->area_ctx[a], r) < 0)
			return -1;
	}
	if (ns_bind_var_tmp(r) < 0 || ns_mount_pts(r) < 0 || ns_mount_proc(r) < 0)
		return -1;
	ret->workspace = open("workspace", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (ret->workspace < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot open /workspace");
	return 0;
}
