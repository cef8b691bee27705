/* SPDX-License-Identifier: Apache-2.0 */
/* Runner: what a container needs of the host's file system, in a directory of its own. */
#include "runtimes/docker/dk_i.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/auto.h"
#include "base/clock.h"
#include "base/crash.h"
#include "base/fs.h"
#include "base/id.h"
#include "runtimes/cgroup_i.h"
#include "runtimes/runtimes_i.h"

enum { STATE_ID_BYTES = 16, BOOT_PART = 8 };

static const char id_file[] = "docker/id";

/* ---- names ----------------------------------------------------------------------------------- */

void dk_owner(char ret[64])
{
	(void)snprintf(ret, 64, "%ld-%llu-%.*s", (long)getpid(),
		       (unsigned long long)cg_start_time(getpid()), BOOT_PART, sbx_boot_id());
}

bool dk_owner_gone(const char *name)
{
	unsigned long long start;
	char boot[BOOT_PART + 1];
	long pid;

	if (sscanf(name, "%ld-%llu-%8s", &pid, &start, boot) != 3 || pid <= 0)
		return false; /* not of our making */
	return strncmp(boot, sbx_boot_id(), BOOT_PART) != 0 || cg_process_gone((pid_t)pid, start);
}

static int read_id(int state, char ret[33])
{
	sbx_autofree char *text = NULL;
	int r = sbx_read_file(state, id_file, 64, &text, NULL);

	if (r < 0)
		return r;
	if (strspn(text, "0123456789abcdef") < 32)
		return -EINVAL;
	(void)snprintf(ret, 33, "%.32s", text);
	return 0;
}

/* Whole or not at all, and the first one wins. */
static int make_id(int state)
{
	unsigned char bytes[STATE_ID_BYTES];
	char text[2 * STATE_ID_BYTES + 2], temporary[64];
	sbx_autoclose int fd = -1;
	int r;

	sbx_random(bytes, sizeof(bytes));
	for (size_t i = 0; i < sizeof(bytes); i++)
		(void)snprintf(text + 2 * i, 3, "%02x", bytes[i]);
	(void)snprintf(text + 2 * sizeof(bytes), 2, "\n");
	(void)snprintf(temporary, sizeof(temporary), "docker/id.%ld", (long)getpid());
	if (mkdirat(state, "docker", 0700) < 0 && errno != EEXIST)
		return -errno;
	fd = openat(state, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	r = fd < 0 ? -errno : sbx_write_all(fd, text, strlen(text));
	if (r == 0 && fsync(fd) < 0)
		r = -errno;
	if (r == 0 && linkat(state, temporary, state, id_file, 0) < 0 && errno != EEXIST)
		r = -errno;
	(void)unlinkat(state, temporary, 0);
	return r;
}

int dk_state_id(const struct rt_host *host, bool make, char ret[33], struct sbx_error *e)
{
	sbx_autoclose int state = open(host->state_dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	int r = state < 0 ? -errno : read_id(state, ret);

	if (r == 0)
		return 0;
	ret[0] = '\0';
	if (r == -ENOENT && !make)
		return 0;
	if (r == -ENOENT)
		r = make_id(state);
	if (r == 0)
		r = read_id(state, ret);
	return r == 0 ? 0
		      : sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, -r,
				       "cannot read the id of the state directory");
}

/* ---- the door -------------------------------------------------------------------------------- */

/* The directory is seen from inside through its own permissions alone; those above it keep the
 * host's users out. */
static int make_door(struct dk_place *p)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	sbx_autoclose int dir = -1;

	if (mkdir(p->door, 0755) < 0 || chmod(p->door, 0755) < 0)
		return -errno;
	dir = open(p->door, O_PATH | O_DIRECTORY | O_CLOEXEC);
	p->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (dir < 0 || p->listener < 0)
		return -errno;
	/* The path itself may be longer than a socket's may be. */
	(void)snprintf(a.sun_path, sizeof(a.sun_path), "/proc/self/fd/%d/%s", dir, DK_SOCKET);
	if (bind(p->listener, (struct sockaddr *)&a, sizeof(a)) < 0 ||
	    fchmodat(dir, DK_SOCKET, 0666, 0) < 0 || listen(p->listener, 1) < 0)
		return -errno;
	return 0;
}

void dk_place_shut(struct dk_place *p)
{
	char path[SBX_PATH_MAX + 1];

	sbx_closep(&p->listener);
	if (p->door && snprintf(path, sizeof(path), "%s/%s", p->door, DK_SOCKET) > 0)
		(void)unlink(path);
}

/* ---- the workspace of a session -------------------------------------------------------------- */

/* Does the engine see the mounts that we make? It says who it is. */
static bool same_mounts(const struct rt_host *host)
{
	const char *path = dk_settings(host)->host;
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	sbx_autoclose int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct ucred peer;
	socklen_t len = sizeof(peer);
	struct stat ours, theirs;
	char ns[64];

	if (strncmp(path, "unix://", 7) == 0)
		path += 7;
	if (s < 0 || strlen(path) >= sizeof(a.sun_path))
		return false;
	memcpy(a.sun_path, path, strlen(path) + 1);
	if (connect(s, (struct sockaddr *)&a, sizeof(a)) < 0 ||
	    getsockopt(s, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0 || peer.pid <= 0)
		return false;
	(void)snprintf(ns, sizeof(ns), "/proc/%ld/ns/mnt", (long)peer.pid);
	return stat(ns, &theirs) == 0 && stat("/proc/self/ns/mnt", &ours) == 0 &&
	       ours.st_ino == theirs.st_ino && ours.st_dev == theirs.st_dev;
}

static bool real_path(int fd, char **ret)
{
	char link[64], path[SBX_PATH_MAX + 1];
	ssize_t n;

	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	if (n <= 0)
		return false;
	path[n] = '\0';
	*ret = strdup(path);
	return *ret != NULL;
}

/* A mount of our own, in which the files belong to the container's user. */
static int mount_workspace(const struct rt_host *host, int fd, struct dk_place *p,
			   struct sbx_error *e)
{
	sbx_autofree char *target = NULL;
	sbx_autoclose int tree = -1;
	int r;

	if (geteuid() != 0 || !same_mounts(host))
		return sbx_fail(e, SBX_E_RUNTIME_ERROR, "the engine does not see our mounts");
	r = rt_workspace_tree(fd, p->uid, p->gid, false, &tree, e);
	if (r < 0)
		return r;
	if (asprintf(&target, "%s/workspace", p->path) < 0) {
		target = NULL;
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a container");
	}
	if (mkdir(target, 0700) < 0 ||
	    move_mount(tree, "", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH) < 0)
		return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, errno,
				      "cannot mount the session's workspace");
	p->mounted = true;
	p->workspace = sbx_steal(&target);
	return 0;
}

/* Files on the disk stay their owner's: by a mount that maps them, or because the container has
 * that very user. */
static int take_workspace(const struct rt_host *host, int fd, struct dk_place *p,
			  struct sbx_error *e)
{
	sbx_autoerror why = SBX_ERROR_INIT;
	struct stat st;

	if (fstat(fd, &st) < 0)
		return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, errno,
				      "cannot look at the workspace");
	if (mount_workspace(host, fd, p, &why) == 0)
		return 0;
	if (st.st_uid == 0)
		return sbx_fail(e, SBX_E_POLICY_UNSUPPORTED,
				"the workspace belongs to root, which no container is, and its "
				"owner cannot be mapped: %.300s",
				why.message);
	p->uid = st.st_uid;
	p->gid = st.st_gid ? st.st_gid : dk_settings(host)->gid;
	if (!real_path(fd, &p->workspace))
		return sbx_fail(e, SBX_E_RUNTIME_ERROR, "cannot find the workspace");
	return 0;
}

/* ---- all of it ------------------------------------------------------------------------------- */

int dk_place_make(const struct rt_host *host, int workspace_fd, struct dk_place *p,
		  struct sbx_error *e)
{
	static unsigned serial;
	char owner[64];
	int r = 0;

	*p = (struct dk_place){ .listener = -1,
				.uid = dk_settings(host)->uid,
				.gid = dk_settings(host)->gid };
	dk_owner(owner);
	(void)snprintf(p->name, sizeof(p->name), "%s-%u", owner, ++serial);
	if (asprintf(&p->path, "%s/docker/%s", host->state_dir, p->name) < 0)
		p->path = NULL;
	if (!p->path || asprintf(&p->door, "%s/door", p->path) < 0) {
		p->door = NULL;
		return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for a container");
	}
	if (mkdir(p->path, 0700) < 0)
		r = -errno;
	if (r == 0)
		r = make_door(p);
	crash_point("docker_placed");
	if (r < 0)
		return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, -r,
				      "cannot make the directory of a container");
	return workspace_fd < 0 ? 0 : take_workspace(host, workspace_fd, p, e);
}

/* The owner lives, and is done with it, as of now. */
static void leave_note(const struct dk_place *p)
{
	const char *slash = strrchr(p->path, '/');
	sbx_autofree char *note = NULL;

	if (asprintf(&note, "%.*s/" DK_LEFT "%s", (int)(slash - p->path), p->path, p->name) < 0)
		note = NULL;
	(void)utimensat(AT_FDCWD, p->path, NULL, AT_SYMLINK_NOFOLLOW);
	if (note)
		(void)rename(p->path, note);
}

void dk_place_remove(struct dk_place *p, bool gone)
{
	sbx_closep(&p->listener);
	if (p->mounted)
		(void)umount2(p->workspace, MNT_DETACH);
	/* Crosses no mount: where that one is left, the directory is for the sweep. */
	if (p->path && (!gone || sbx_remove_tree(AT_FDCWD, p->path) < 0))
		leave_note(p);
	free(p->workspace);
	free(p->door);
	free(p->path);
	*p = (struct dk_place){ .listener = -1 };
}
