/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Process 1: what a plan wants in the workspace. The workspace of a session was written by earlier
 * commands: no link in it is followed, and nothing in it is opened that could block.
 */
#include "runtimes/namespace/ns_i.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/auto.h"
#include "base/fs.h"
#include "runtimes/inside_i.h"
#include "runtimes/runtimes_i.h"

enum {
	COPY_SIZE = 64 << 10,
};

static int resize_areas(const struct ns_fill *f, struct ns_root *root, struct ns_reply *r)
{
	int64_t tmp_inodes = rt_tmp_inodes(f->tmp_bytes);
	struct ns_tmpfs sizes[NS_AREA__COUNT];

	for (int a = 0; a < NS_AREA__COUNT; a++) {
		bool workspace = a == NS_AREA_WORKSPACE;

		sizes[a].bytes = workspace ? f->workspace_bytes : f->tmp_bytes;
		sizes[a].inodes = (workspace ? f->workspace_inodes : tmp_inodes) + 1; /* its root */
		/* 0 would mean no limit. */
		if (sizes[a].bytes < 1)
			sizes[a].bytes = 1;
		if (sizes[a].inodes < 2)
			sizes[a].inodes = 2;
		if (root->area_ctx[a] >= 0 && ns_tmpfs_resize(root->area_ctx[a], &sizes[a], r) < 0)
			return -1;
	}
	return 0;
}

/* The session's directory takes the place of the tmpfs. */
static int take_tree(int tree, struct ns_root *root, struct ns_reply *r)
{
	int fd;

	if (ns_attach(tree, "workspace", r) < 0)
		return -1;
	fd = open("/workspace", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return ns_fail(r, NS_STAGE_MOUNT, errno, "cannot open /workspace");
	sbx_closep(&root->workspace);
	root->workspace = fd;
	return root->ruleset < 0 ? 0 : ns_landlock_allow(root->ruleset, fd, r);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Where a new entry goes: the directory it is made in, with everything that leads there. */
static int open_parent(int workspace, const char *path, const char **ret_name, struct ns_reply *r)
{
	const char *slash = strrchr(path, '/');
	char parent[SBX_PATH_MAX + 1] = ".";
	int dir, rc = sbx_mkdirs_beneath(workspace, path, 0755);

	if (rc < 0)
		return ns_fail(r, NS_STAGE_FILES, -rc, "cannot make the directories of '%.180s'",
			       path);
	if (slash)
		(void)snprintf(parent, sizeof(parent), "%.*s", (int)(slash - path), path);
	dir = sbx_open_beneath(workspace, parent, O_PATH | O_DIRECTORY, 0);
	if (dir < 0)
		return ns_fail(r, NS_STAGE_FILES, -dir, "cannot open the directory of '%.180s'",
			       path);
	*ret_name = slash ? slash + 1 : path;
	return dir;
}

static int make_directory(int workspace, const char *path, struct ns_reply *r)
{
	const char *name = NULL;
	sbx_autoclose int dir = open_parent(workspace, path, &name, r);

	if (dir < 0)
		return -1;
	if (mkdirat(dir, name, 0755) < 0 && errno != EEXIST)
		return ns_fail(r, NS_STAGE_FILES, errno, "cannot make the directory '%.180s'",
			       path);
	return 0;
}

static int make_link(int workspace, const char *path, const char *target, struct ns_reply *r)
{
	const char *name = NULL;
	sbx_autoclose int dir = open_parent(workspace, path, &name, r);

	if (dir < 0)
		return -1;
	if (symlinkat(target, dir, name) < 0)
		return ns_fail(r, NS_STAGE_FILES, errno, "cannot make the link '%.180s'", path);
	return 0;
}

/* Reads size bytes from the socket into fd, or to nowhere when fd is -1: after a failure the rest
 * must still be read, because the runner reads no answer before it has sent everything. Returns 0
 * or an errno of writing; *ret_lost is set when the socket itself failed. */
static int copy_in(int sock, int fd, uint64_t size, bool *ret_lost)
{
	static char buf[COPY_SIZE];
	int err = 0;

	while (size) {
		size_t n = size < sizeof(buf) ? (size_t)size : sizeof(buf);

		if (ns_recv(sock, buf, n, NULL) < 0) {
			*ret_lost = true;
			return EPIPE;
		}
		if (fd >= 0 && !err)
			err = -sbx_write_all(fd, buf, n);
		size -= n;
	}
	return err;
}

static int take_content(int sock, int workspace, const char *path, const struct ns_file *f,
			bool failed, struct ns_reply *r)
{
	sbx_autoclose int fd = -1;
	const char *what;
	bool lost = false;
	int err;

	if (!failed) {
		fd = rt_place_file(workspace, path, &what);
		if (fd < 0)
			(void)ns_fail(r, NS_STAGE_FILES, -fd, "cannot %s the file '%.180s'", what,
				      path);
	}
	err = copy_in(sock, fd, f->size, &lost);
	if (lost)
		_exit(1);
	if (fd < 0)
		return -1;
	if (!err && fchmod(fd, f->mode & 0777) < 0)
		err = errno;
	/* Some file systems tell only at the end that there was no room. */
	if (close(sbx_steal_fd(&fd)) < 0 && !err)
		err = errno;
	return err ? ns_fail(r, NS_STAGE_FILES, err, "cannot write the file '%.180s'", path) : 0;
}

/* Links and directories come whole: a link's size was checked before it was sent. */
static int take_other(int sock, int workspace, const char *path, const struct ns_file *f,
		      bool failed, struct ns_reply *r)
{
	char target[SBX_PATH_MAX + 1];

	if (f->size > SBX_PATH_MAX || ns_recv(sock, target, f->size, NULL) < 0)
		_exit(1);
	target[f->size] = '\0';
	if (failed)
		return -1;
	return S_ISDIR(f->mode) ? make_directory(workspace, path, r)
				: make_link(workspace, path, target, r);
}

static int take_file(int sock, int workspace, bool failed, struct ns_reply *r)
{
	char path[SBX_PATH_MAX + 1];
	struct ns_file f;

	if (ns_recv(sock, &f, sizeof(f), NULL) < 0 || f.path_size > sizeof(path) ||
	    f.path_size == 0 || ns_recv(sock, path, f.path_size, NULL) < 0)
		_exit(1); /* no runner, no sandbox */
	path[f.path_size - 1] = '\0';
	return S_ISDIR(f.mode) || S_ISLNK(f.mode)
		       ? take_other(sock, workspace, path, &f, failed, r)
		       : take_content(sock, workspace, path, &f, failed, r);
}

/* ---- cwd ------------------------------------------------------------------------------------- */

static int make_cwd(int workspace, const char *cwd, struct ns_reply *r)
{
	const char *what;
	int rc = rt_place_cwd(workspace, cwd, &what);

	if (rc > 0)
		return ns_fail(r, NS_STAGE_FILES, EINVAL, "the cwd '%.180s' %s", cwd, what);
	return rc < 0 ? ns_fail(r, NS_STAGE_FILES, -rc, "cannot %s '%.180s' as cwd", what, cwd) : 0;
}

int ns_fill_workspace(int sock, int tree, struct ns_root *root, struct ns_reply *r)
{
	char cwd[SBX_PATH_MAX + 1];
	struct ns_fill f;
	int rc;

	if (ns_recv(sock, &f, sizeof(f), NULL) < 0 || f.cwd_size == 0 || f.cwd_size > sizeof(cwd) ||
	    ns_recv(sock, cwd, f.cwd_size, NULL) < 0)
		_exit(1);
	cwd[f.cwd_size - 1] = '\0';
	rc = resize_areas(&f, root, r);
	if (rc == 0 && f.has_tree)
		rc = tree < 0 ? ns_fail(r, NS_STAGE_MOUNT, EBADF, "the workspace did not arrive")
			      : take_tree(tree, root, r);
	for (uint32_t i = 0; i < f.n_files; i++) {
		bool failed = rc < 0;

		if (take_file(sock, root->workspace, failed, r) < 0)
			rc = -1;
	}
	return rc < 0 ? rc : make_cwd(root->workspace, cwd, r);
}
