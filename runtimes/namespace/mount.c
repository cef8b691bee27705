/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mounting, as init does it: through descriptors, each mount with its flags before anybody can
 * see it. The working directory is the root that is being built, and nothing in it is anybody
 * else's yet, so relative names are safe here.
 */
#include "runtimes/namespace/ns_i.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "base/auto.h"
#include "base/fs.h"

#define SAFE (MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC)

int ns_mkdir(const char *path, mode_t mode, struct ns_reply *r)
{
	if (mkdir(path, mode) < 0 && errno != EEXIST)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot make the directory '/%s'", path);
	return 0;
}

int ns_write_new(const char *path, const char *text, struct ns_reply *r)
{
	sbx_autoclose int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	int err = fd < 0 ? -errno : sbx_write_all(fd, text, strlen(text));

	if (err < 0)
		return ns_fail(r, NS_STAGE_MOUNT, -err, "cannot write '/%s'", path);
	return 0;
}

int ns_attach(int tree, const char *target, struct ns_reply *r)
{
	if (move_mount(tree, "", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH) < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot mount at '/%s'", target);
	return 0;
}

int ns_bind(int dirfd, const char *source, const char *target, uint64_t attr, struct ns_reply *r)
{
	struct mount_attr set = { .attr_set = attr };
	sbx_autoclose int tree = open_tree(dirfd, source,
					   OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE |
						   AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT);

	if (tree < 0 && (errno == ENOENT || errno == ENOTDIR))
		return -ENOENT;
	if (tree < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot take '%s' into the sandbox",
			       source);
	if (mount_setattr(tree, "", AT_EMPTY_PATH | AT_RECURSIVE, &set, sizeof(set)) < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot protect '%s'", source);
	return ns_attach(tree, target, r);
}

/* ---- tmpfs ----------------------------------------------------------------------------------- */

static int set_number(int ctx, const char *key, int64_t value)
{
	char text[24];

	(void)snprintf(text, sizeof(text), "%" PRId64, value);
	return fsconfig(ctx, FSCONFIG_SET_STRING, key, text, 0);
}

static int set_size(int ctx, const struct ns_tmpfs *t)
{
	if (set_number(ctx, "size", t->bytes) < 0)
		return -1;
	return set_number(ctx, "nr_inodes", t->inodes);
}

int ns_tmpfs_mount(const char *target, const struct ns_tmpfs *t, int *ret_ctx, struct ns_reply *r)
{
	sbx_autoclose int ctx = fsopen("tmpfs", FSOPEN_CLOEXEC);
	sbx_autoclose int tree = -1;
	char mode[8];

	(void)snprintf(mode, sizeof(mode), "%o", (unsigned)t->mode);
	if (ctx < 0 || set_size(ctx, t) < 0 ||
	    fsconfig(ctx, FSCONFIG_SET_STRING, "mode", mode, 0) < 0 ||
	    fsconfig(ctx, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot make a tmpfs for '/%s'", target);
	tree = fsmount(ctx, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | t->attr);
	if (tree < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot make a tmpfs for '/%s'", target);
	if (ret_ctx)
		*ret_ctx = sbx_steal_fd(&ctx);
	return ns_attach(tree, target, r);
}

int ns_tmpfs_resize(int ctx, const struct ns_tmpfs *t, struct ns_reply *r)
{
	if (set_size(ctx, t) < 0 || fsconfig(ctx, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0) < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot set the size of a tmpfs");
	return 0;
}

/* ---- /proc ----------------------------------------------------------------------------------- */

/* What a program inside has no use for and the host would rather not tell. */
static const char *const proc_masked[] = { "proc/kcore",	 "proc/keys",
					   "proc/sysrq-trigger", "proc/timer_list",
					   "proc/sched_debug",	 "proc/latency_stats" };
static const char *const proc_empty[] = { "proc/acpi", "proc/scsi" };
static const char *const proc_readonly[] = { "proc/sys", "proc/bus", "proc/fs", "proc/irq" };

static int protect_proc(struct ns_reply *r)
{
	static const struct ns_tmpfs nothing = { .bytes = 4096,
						 .inodes = 2,
						 .mode = 0555,
						 .attr = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOEXEC };
	int rc = 0;

	for (size_t i = 0; i < SBX_COUNT(proc_masked) && rc == 0; i++)
		if (faccessat(AT_FDCWD, proc_masked[i], F_OK, AT_SYMLINK_NOFOLLOW) == 0)
			rc = ns_bind(AT_FDCWD, "dev/null", proc_masked[i],
				     MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, r);
	for (size_t i = 0; i < SBX_COUNT(proc_empty) && rc == 0; i++)
		if (faccessat(AT_FDCWD, proc_empty[i], F_OK, AT_SYMLINK_NOFOLLOW) == 0)
			rc = ns_tmpfs_mount(proc_empty[i], &nothing, NULL, r);
	for (size_t i = 0; i < SBX_COUNT(proc_readonly) && rc == 0; i++) {
		rc = ns_bind(AT_FDCWD, proc_readonly[i], proc_readonly[i], MOUNT_ATTR_RDONLY | SAFE,
			     r);
		rc = rc == -ENOENT ? 0 : rc;
	}
	return rc;
}

int ns_mount_proc(struct ns_reply *r)
{
	sbx_autoclose int ctx = fsopen("proc", FSOPEN_CLOEXEC);
	sbx_autoclose int tree = -1;

	if (ctx < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot make /proc");
	/* Hides process 1, which shares the command's user but may not be looked at. Only kernels
	 * since 5.8 know the word; before, the option would have changed the host's /proc too. */
	(void)fsconfig(ctx, FSCONFIG_SET_STRING, "hidepid", "invisible", 0);
	if (fsconfig(ctx, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot make /proc");
	tree = fsmount(ctx, FSMOUNT_CLOEXEC, SAFE);
	if (tree < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot mount /proc");
	if (ns_attach(tree, "proc", r) < 0)
		return -1;
	return protect_proc(r);
}

/* ---- /dev ------------------------------------------------------------------------------------ */

static const char *const dev_nodes[] = { "dev/null",   "dev/zero",    "dev/full",
					 "dev/random", "dev/urandom", "dev/tty" };

static const struct {
	const char *target, *path;
} dev_links[] = {
	{ "/proc/self/fd", "dev/fd" },	     { "/proc/self/fd/0", "dev/stdin" },
	{ "/proc/self/fd/1", "dev/stdout" }, { "/proc/self/fd/2", "dev/stderr" },
	{ "pts/ptmx", "dev/ptmx" },
};

/* Terminals of the sandbox's own. A kernel without devpts has programs without them. */
int ns_mount_pts(struct ns_reply *r)
{
	sbx_autoclose int ctx = fsopen("devpts", FSOPEN_CLOEXEC);
	sbx_autoclose int tree = -1;

	/* The host has one count of terminals for everybody; no sandbox may take them all. */
	if (ctx < 0 || fsconfig(ctx, FSCONFIG_SET_STRING, "mode", "0620", 0) < 0 ||
	    fsconfig(ctx, FSCONFIG_SET_STRING, "ptmxmode", "0666", 0) < 0 ||
	    fsconfig(ctx, FSCONFIG_SET_STRING, "max", "64", 0) < 0 ||
	    fsconfig(ctx, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
		return 0;
	tree = fsmount(ctx, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
	return tree < 0 ? 0 : ns_attach(tree, "dev/pts", r);
}

int ns_make_dev(struct ns_reply *r)
{
	int rc = 0;

	for (size_t i = 0; i < SBX_COUNT(dev_nodes) && rc == 0; i++) {
		char source[32];

		(void)snprintf(source, sizeof(source), "/%s", dev_nodes[i]);
		rc = ns_write_new(dev_nodes[i], "", r);
		/* Read-only does not stop writing to a device, but setting the host's times. */
		if (rc == 0)
			rc = ns_bind(AT_FDCWD, source, dev_nodes[i],
				     MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, r);
		if (rc == -ENOENT)
			rc = ns_fail(r, NS_STAGE_MOUNT, ENOENT, "the host has no %s", source);
	}
	for (size_t i = 0; i < SBX_COUNT(dev_links) && rc == 0; i++)
		if (symlink(dev_links[i].target, dev_links[i].path) < 0)
			rc = ns_fail(r, NS_STAGE_MOUNT, errno, "cannot make '/%s'",
				     dev_links[i].path);
	return rc;
}
