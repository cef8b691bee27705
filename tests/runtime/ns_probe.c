/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs inside a sandbox and says what it finds. ns_probe WORD [ARGUMENT]; exit 0 means "as it
 * should be" where there is such a thing. Built without sanitizers: they need what limits forbid.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* ---- what is there --------------------------------------------------------------------------- */

static int say_env(const char *arg)
{
	(void)arg;
	for (char **v = environ; *v; v++)
		(void)fwrite(*v, 1, strlen(*v) + 1, stdout);
	return 0;
}

/* Every open descriptor but the directory's own. */
static int say_fds(const char *arg)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *d;

	(void)arg;
	if (!dir)
		return 1;
	while ((d = readdir(dir)))
		if (d->d_name[0] != '.' && atoi(d->d_name) != dirfd(dir))
			(void)printf("%s\n", d->d_name);
	return closedir(dir);
}

/* Process 1 must not be open to anybody inside. */
static int look_at_init(const char *arg)
{
	static const char *const files[] = { "/proc/1/environ",	 "/proc/1/mem", "/proc/1/maps",
					     "/proc/1/root/etc", "/proc/1/cwd", "/proc/1/fd/0",
					     "/proc/1/exe" };
	int bad = 0;

	(void)arg;
	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		int fd = open(files[i], O_RDONLY | O_NONBLOCK);

		if (fd >= 0) {
			(void)printf("opened %s\n", files[i]);
			bad = 1;
		}
	}
	return bad;
}

/* ---- network and shared memory --------------------------------------------------------------- */

static int loopback(const char *arg)
{
	struct sockaddr_in a = { .sin_family = AF_INET };
	socklen_t len = sizeof(a);
	int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
	char c = 0;
	int peer;

	(void)arg;
	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(listener, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(listener, 1) < 0 ||
	    getsockname(listener, (struct sockaddr *)&a, &len) < 0 ||
	    connect(client, (struct sockaddr *)&a, sizeof(a)) < 0)
		return 1;
	peer = accept(listener, NULL, NULL);
	return write(peer, "p", 1) == 1 && read(client, &c, 1) == 1 && c == 'p' ? 0 : 1;
}

static int shared_memory(const char *arg)
{
	int fd = shm_open("/probe", O_RDWR | O_CREAT | O_EXCL, 0600);
	char *p;

	(void)arg;
	if (fd < 0 || ftruncate(fd, 4096) < 0)
		return 1;
	p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return 1;
	p[0] = 7; /* and it is left behind, for the next sandbox not to find */
	return 0;
}

/* Makes the kernel count something without a single packet. */
static int reach_nowhere(const char *arg)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(9) };
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	(void)arg;
	a.sin_addr.s_addr = htonl(0xc0000201); /* 192.0.2.1 is nobody's */
	return connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0 && errno == ENETUNREACH ? 0 : 1;
}

static int reach_port(const char *arg)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(arg)) };
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0 ? 0 : 1;
}

static int reach_abstract(const char *arg)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	size_t n = strlen(arg);

	memcpy(a.sun_path + 1, arg, n);
	return fd >= 0 && connect(fd, (struct sockaddr *)&a,
				  (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n)) == 0
		       ? 0
		       : 1;
}

/* ---- limits ---------------------------------------------------------------------------------- */

static int eat_memory(const char *arg)
{
	size_t n = (size_t)atoi(arg) << 20;
	volatile char *p = malloc(n);

	if (!p)
		return 2;
	for (size_t i = 0; i < n; i += 4096)
		p[i] = 1;
	return 0;
}

/* Forks until it cannot; the children wait. Prints how many there were. */
static int count_forks(const char *arg)
{
	int n = 0;

	for (; n < atoi(arg); n++) {
		pid_t pid = fork();

		if (pid == 0) {
			(void)pause();
			_exit(0);
		}
		if (pid < 0)
			break;
	}
	(void)printf("%d\n", n);
	return 0;
}

/* ---- attacks --------------------------------------------------------------------------------- */

static int kill_everything(const char *arg)
{
	static const pid_t targets[] = { -1, 1, 2 };

	(void)arg;
	for (size_t i = 0; i < sizeof(targets) / sizeof(targets[0]); i++) {
		if (targets[i] == getpid())
			continue;
		(void)kill(targets[i], SIGKILL);
		(void)kill(targets[i], SIGSTOP);
	}
	return 0;
}

#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif

static long io_ctl(unsigned long request)
{
	return syscall(SYS_ioctl, 0, request, "x");
}

/* Each must fail with that errno and no other: EBADF or EFAULT would mean that the kernel got to
 * look at the arguments. */
static const struct {
	const char *name;
	long nr, a, b, c;
	int err;
} denied[] = {
	{ "unshare user", SYS_unshare, CLONE_NEWUSER, 0, 0, EPERM },
	{ "unshare net", SYS_unshare, CLONE_NEWNET, 0, 0, EPERM },
	{ "clone user", SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, EPERM },
	{ "clone3", SYS_clone3, 0, 0, 0, ENOSYS },
	{ "setns", SYS_setns, -1, 0, 0, EPERM },
	{ "mount", SYS_mount, 0, 0, 0, EPERM },
	{ "umount2", SYS_umount2, 0, 0, 0, EPERM },
	{ "pivot_root", SYS_pivot_root, 0, 0, 0, EPERM },
	{ "open_tree", SYS_open_tree, -1, 0, 0, EPERM },
	{ "move_mount", SYS_move_mount, -1, 0, 0, EPERM },
	{ "fsopen", SYS_fsopen, 0, 0, 0, EPERM },
	{ "mount_setattr", SYS_mount_setattr, -1, 0, 0, EPERM },
	{ "keyctl", SYS_keyctl, 0, 0, 0, EPERM },
	{ "add_key", SYS_add_key, 0, 0, 0, EPERM },
	{ "request_key", SYS_request_key, 0, 0, 0, EPERM },
	{ "bpf", SYS_bpf, 0, 0, 0, EPERM },
	{ "io_uring_setup", SYS_io_uring_setup, 1, 0, 0, ENOSYS },
	{ "perf_event_open", SYS_perf_event_open, 0, 0, 0, EPERM },
	{ "userfaultfd", SYS_userfaultfd, 0, 0, 0, EPERM },
	{ "kexec_load", SYS_kexec_load, 0, 0, 0, EPERM },
	{ "finit_module", SYS_finit_module, -1, 0, 0, EPERM },
	{ "open_by_handle_at", SYS_open_by_handle_at, -1, 0, 0, EPERM },
	{ "name_to_handle_at", SYS_name_to_handle_at, -1, 0, 0, EPERM },
	{ "swapoff", SYS_swapoff, 0, 0, 0, EPERM },
	{ "reboot", SYS_reboot, 0, 0, 0, EPERM },
	{ "syslog", SYS_syslog, 3, 0, 0, EPERM },
	{ "kcmp", SYS_kcmp, 0, 0, 0, EPERM },
	{ "personality UNAME26", SYS_personality, UNAME26, 0, 0, EPERM },
	{ "personality READ_IMPLIES_EXEC", SYS_personality, READ_IMPLIES_EXEC, 0, 0, EPERM },
	{ "socket vsock", SYS_socket, AF_VSOCK, SOCK_STREAM, 0, EAFNOSUPPORT },
	{ "socket packet", SYS_socket, AF_PACKET, SOCK_RAW, 0, EAFNOSUPPORT },
	{ "socket alg", SYS_socket, AF_ALG, SOCK_SEQPACKET, 0, EAFNOSUPPORT },
	{ "socket netlink audit", SYS_socket, AF_NETLINK, SOCK_RAW, 9, EAFNOSUPPORT },
	{ "a call of the future", 600, 0, 0, 0, ENOSYS },
#ifdef __x86_64__
	{ "x32 getpid", 0x40000000 + SYS_getpid, 0, 0, 0, ENOSYS },
	{ "x32 mount", 0x40000000 + SYS_mount, 0, 0, 0, ENOSYS },
#endif
};

static int try_denied(const char *arg)
{
	int bad = 0;

	(void)arg;
	for (size_t i = 0; i < sizeof(denied) / sizeof(denied[0]); i++) {
		long r;

		errno = 0;
		r = syscall(denied[i].nr, denied[i].a, denied[i].b, denied[i].c, 0, 0);
		if (r == 0 && denied[i].nr == SYS_clone)
			_exit(0);
		if (r >= 0 || errno != denied[i].err) {
			(void)printf("%s: %ld, errno %d\n", denied[i].name, r, errno);
			bad = 1;
		}
	}
	for (int i = 0; i < 2; i++) {
		errno = 0;
		/* The kernel sees 32 bits of the request; so must the filter. */
		if (io_ctl(i ? TIOCSTI | 1UL << 32 : TIOCSTI) >= 0 || errno != EPERM) {
			(void)printf("TIOCSTI: errno %d\n", errno);
			bad = 1;
		}
	}
	return bad;
}

/* What ordinary programs do must go on working. */
static int try_allowed(const char *arg)
{
	int fd = socket(AF_NETLINK, SOCK_RAW, 0);
	pid_t pid = fork();

	(void)arg;
	if (pid == 0)
		_exit(5);
	if (fd < 0 || pid < 0 || personality(0xffffffff) < 0 || personality(ADDR_NO_RANDOMIZE) < 0)
		return 1;
	return waitpid(pid, &fd, 0) == pid && WEXITSTATUS(fd) == 5 ? 0 : 1;
}

/* Covered by /dev/null, which anybody may write to. */
static bool is_masked(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3);
}

/* Writing where nothing may be written; each path is tried in several ways. */
static int try_write(const char *arg)
{
	static const char *const paths[] = {
		"/",	    "/usr", "/etc/passwd",	   "/bin/sh", "/proc/sys/kernel/hostname",
		"/dev/new", "/var", "/proc/sysrq-trigger", "/run",    "/sys"
	};
	char name[256];
	int bad = 0;

	(void)arg;
	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
		if (is_masked(paths[i]))
			continue;
		(void)snprintf(name, sizeof(name), "%s/created", paths[i]);
		if (open(paths[i], O_WRONLY) >= 0 || open(name, O_WRONLY | O_CREAT, 0600) >= 0 ||
		    chmod(paths[i], 0777) == 0 || mkdir(name, 0700) == 0 ||
		    rename(paths[i], "/tmp/moved") == 0 || unlink(paths[i]) == 0) {
			(void)printf("changed %s\n", paths[i]);
			bad = 1;
		}
	}
	if (mknod("/workspace/node", S_IFCHR | 0600, 0x103) == 0) {
		(void)printf("made a device\n");
		bad = 1;
	}
	return bad;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *word;
		int (*run)(const char *arg);
	} words[] = {
		{ "env", say_env },	     { "fds", say_fds },
		{ "init", look_at_init },    { "loopback", loopback },
		{ "shm", shared_memory },    { "nowhere", reach_nowhere },
		{ "port", reach_port },	     { "abstract", reach_abstract },
		{ "eat", eat_memory },	     { "forks", count_forks },
		{ "kill", kill_everything }, { "denied", try_denied },
		{ "allowed", try_allowed },  { "write", try_write },
	};

	for (size_t i = 0; argc > 1 && i < sizeof(words) / sizeof(words[0]); i++)
		if (strcmp(words[i].word, argv[1]) == 0)
			return words[i].run(argc > 2 ? argv[2] : "");
	return 99;
}
