/* SPDX-License-Identifier: Apache-2.0 */
/* runtimes/net as a driver uses it, on a network namespace that this test has made. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/icmp.h>
#include <linux/if_packet.h>
#include <linux/netlink.h>
#include <netinet/icmp6.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/fs.h"
#include "runtimes/net/egress_i.h"
#include "runtimes/net/netlink.h"

static int count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	assert_non_null(dir);
	while (readdir(dir))
		n++;
	(void)closedir(dir);
	return n;
}

/* The user and the groups of a child's user namespace. */
static void write_maps(pid_t pid, const char *groups)
{
	const char *const maps[][2] = { { "uid_map", "0 0 1" }, { "gid_map", groups } };

	for (size_t i = 0; i < SBX_COUNT(maps); i++) {
		char path[64];

		(void)snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, maps[i][0]);
		assert_int_equal(sbx_write_file(AT_FDCWD, path, maps[i][1]), 0);
	}
}

/* A network namespace, and for an ordinary user, or with `groups`, a gid_map, its user namespace;
 * -1 where there are none. */
static int make_namespace_for(const char *groups, int *ret_user)
{
	bool own = geteuid() || groups;
	int flags = CLONE_NEWNET | (own ? CLONE_NEWUSER : 0), sock[2], net = -1;
	char path[64], byte = 0;
	pid_t pid;

	*ret_user = -1;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock), 0);
	pid = fork();
	if (pid == 0) {
		sbx_closep(&sock[0]);
		byte = unshare(flags) == 0;
		_exit(write(sock[1], &byte, 1) == 1 && read(sock[1], &byte, 1) >= 0 ? 0 : 1);
	}
	sbx_closep(&sock[1]);
	assert_int_equal(read(sock[0], &byte, 1), 1);
	if (byte) {
		(void)snprintf(path, sizeof(path), "/proc/%d/ns/net", (int)pid);
		net = open(path, O_RDONLY | O_CLOEXEC);
		(void)snprintf(path, sizeof(path), "/proc/%d/ns/user", (int)pid);
		if (own)
			*ret_user = open(path, O_RDONLY | O_CLOEXEC);
		if (groups)
			write_maps(pid, groups);
	}
	sbx_closep(&sock[0]);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	return net;
}

static int make_namespace(int *ret_user)
{
	return make_namespace_for(NULL, ret_user);
}

static void open__says_what_is_wrong(void **state)
{
	static const char *const beyond[] = { "192.0.2.2" }, *const bad[] = { "192.0.2.2/8" };
	static const struct {
		struct egress_config c;
		enum sbx_code code;
		const char *part;
	} rows[] = {
		{ { .operator_list = NULL },
		  SBX_E_POLICY_UNSUPPORTED,
		  "egress_allowlist is empty" },
		{ { .operator_list = "a b" }, SBX_E_INVALID_CONFIG, "\"a b\"" },
		{ { .operator_list = "192.0.2.1", .tokens = beyond, .n_tokens = 1 },
		  SBX_E_POLICY_UNSUPPORTED,
		  "\"192.0.2.2\" is not within" },
		{ { .operator_list = "192.0.2.1", .tokens = bad, .n_tokens = 1 },
		  SBX_E_INVALID_SPEC,
		  "bits beyond" },
		{ { .operator_list = "a.test", .dns = "nonsense" },
		  SBX_E_INVALID_CONFIG,
		  "egress_dns" },
		/* Nobody listens there, which is told at once. */
		{ { .operator_list = "a.test", .dns = "127.0.0.1:1" },
		  SBX_E_POLICY_UNSUPPORTED,
		  "\"a.test\" of the allowlist does not resolve" },
		{ { .operator_list = "localhost" },
		  SBX_E_POLICY_UNSUPPORTED,
		  "resolves to an address that is" },
	};
	int fds = count_fds();

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		sbx_autoerror e = SBX_ERROR_INIT;
		struct egress *x = NULL;

		assert_int_equal(egress_open(&rows[i].c, &x, &e), -(int)rows[i].code);
		assert_null(x);
		if (!strstr(e.message, rows[i].part))
			fail_msg("wanted \"%s\", got \"%s\"", rows[i].part, e.message);
	}
	assert_int_equal(count_fds(), fds);
}

/* How reaching for 192.0.2.LAST from within ends: 0, or errno. By SOCK_STREAM it is a connection,
 * by SOCK_DGRAM a byte that is sent. */
static int try_within(int net, int user, int type, uint8_t last)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(80) };
	pid_t pid = fork();
	int status, fd;

	if (pid == 0) {
		if ((user >= 0 && setns(user, CLONE_NEWUSER) < 0) || setns(net, CLONE_NEWNET) < 0)
			_exit(200);
		fd = socket(AF_INET, type, 0);
		memcpy(&to.sin_addr, (const uint8_t[]){ 192, 0, 2, last }, 4);
		if (connect(fd, (struct sockaddr *)&to, sizeof(to)) < 0 ||
		    (type == SOCK_DGRAM && send(fd, "x", 1, 0) < 0))
			_exit(errno);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void enter__stands_until_it_is_closed(void **state)
{
	const struct egress_config c = { .operator_list = "192.0.2.1" };
	sbx_autoclose int user = -1, net = make_namespace(&user);
	struct egress_counters counters;
	sbx_autoerror e = SBX_ERROR_INIT;
	struct egress *x = NULL;
	int fds = count_fds();

	(void)state;
	if (net < 0)
		skip();
	assert_int_equal(egress_open(&c, &x, &e), 0);
	assert_string_equal(egress_list(x),
			    "{\"targets\":[\"192.0.2.1/32\"],\"pins\":{\"192.0.2.1\":"
			    "[\"192.0.2.1\"]}}");
	if (egress_enter(x, net, user, &e) < 0)
		fail_msg("%s", e.message);
	assert_int_equal(try_within(net, user, SOCK_STREAM, 2), ECONNREFUSED);
	egress_count(x, &counters);
	assert_false(counters.lost);
	assert_int_equal(counters.refused_tcp, 1);
	assert_int_equal(counters.connections, 0);
	(void)egress_close(x);
	/* Nobody listens for what the rules still let through, and they refuse the rest. */
	assert_int_equal(try_within(net, user, SOCK_STREAM, 2), ECONNREFUSED);
	assert_int_equal(count_fds(), fds);
	assert_int_equal(waitpid(-1, NULL, __WALL | WNOHANG), -1);
	assert_int_equal(errno, ECHILD);
}

static void enter__refuses_what_has_a_network(void **state)
{
	const struct egress_config c = { .operator_list = "192.0.2.1" };
	sbx_autoclose int user = -1, net = make_namespace(&user);
	sbx_autoerror e = SBX_ERROR_INIT;
	struct egress *x = NULL, *y = NULL;
	int fds = count_fds();

	(void)state;
	if (net < 0)
		skip();
	assert_int_equal(egress_open(&c, &x, &e), 0);
	assert_int_equal(egress_open(&c, &y, &e), 0);
	assert_int_equal(egress_enter(x, net, user, &e), 0);
	assert_int_equal(egress_enter(y, net, user, &e), -SBX_E_POLICY_UNSUPPORTED);
	assert_non_null(strstr(e.message, "cannot add an address"));
	(void)egress_close(y);
	(void)egress_close(x);
	assert_int_equal(count_fds(), fds);
}

/* A network of its own besides, towards 192.0.2.0/24; false where such devices cannot be made. */
static bool add_device(int net)
{
	char command[256];

	(void)snprintf(
		command, sizeof(command),
		"nsenter --net=/proc/%d/fd/%d sh -c 'ip link add sbxa type veth peer name sbxb && "
		"ip addr add 192.0.2.9/24 dev sbxa && ip link set sbxa up && ip link set sbxb up'",
		(int)getpid(), net);
	return geteuid() == 0 && system(command) == 0;
}

static void enter__lets_nothing_out_by_another_device(void **state)
{
	const struct egress_config c = { .operator_list = "192.0.2.1" };
	sbx_autoclose int user = -1, net = make_namespace(&user);
	struct egress_counters counters;
	sbx_autoerror e = SBX_ERROR_INIT;
	struct egress *x = NULL;

	(void)state;
	if (net < 0 || !add_device(net))
		skip();
	assert_int_equal(try_within(net, user, SOCK_DGRAM, 1), 0);
	assert_int_equal(egress_open(&c, &x, &e), 0);
	if (egress_enter(x, net, user, &e) < 0)
		fail_msg("%s", e.message);
	assert_int_equal(try_within(net, user, SOCK_DGRAM, 1), EPERM);
	egress_count(x, &counters);
	assert_true(counters.refused_other >= 1); /* the devices have things to say, too */
	assert_int_equal(counters.flows, 0);
	(void)egress_close(x);
}

static void count__tells_that_a_process_is_lost(void **state)
{
	const struct egress_config c = { .operator_list = "192.0.2.1" };
	sbx_autoclose int user = -1, net = make_namespace(&user), children = -1;
	struct egress_counters counters;
	sbx_autoerror e = SBX_ERROR_INIT;
	struct egress *x = NULL;
	char text[64] = "";
	int pid = 0;

	(void)state;
	if (net < 0)
		skip();
	assert_int_equal(egress_open(&c, &x, &e), 0);
	assert_int_equal(egress_enter(x, net, user, &e), 0);
	children = open("/proc/thread-self/children", O_RDONLY | O_CLOEXEC);
	if (children >= 0 && read(children, text, sizeof(text) - 1) > 0)
		pid = atoi(text); /* the gate, which was first */
	if (pid > 0) {
		assert_int_equal(kill(pid, SIGKILL), 0);
		egress_count(x, &counters);
		assert_true(counters.lost);
	}
	(void)egress_close(x);
}

static void routes__are_told_apart(void **state)
{
	static const struct {
		const char *text;
		enum net_route kind;
	} rows[] = {
		{ "127.0.0.1", NET_ROUTE_LOCAL },
		{ "127.1.2.3", NET_ROUTE_LOCAL },
		{ "127.255.255.255", NET_ROUTE_OTHER }, /* the broadcast of its network */
	};
	sbx_autoclose int fd = net_route_open();

	(void)state;
	assert_true(fd >= 0);
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		struct net_addr a;

		assert_true(net_addr_parse(rows[i].text, &a));
		assert_int_equal(net_route_of(fd, &a), rows[i].kind);
	}
}

/* In the network namespace; as this user namespace sees it. */
static void read_ping_groups(int net, char *ret, size_t size)
{
	int sock[2], status;
	ssize_t n;
	pid_t pid;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock), 0);
	pid = fork();
	if (pid == 0) {
		sbx_autofree char *text = NULL;

		if (setns(net, CLONE_NEWNET) < 0 ||
		    sbx_read_file(AT_FDCWD, "/proc/sys/net/ipv4/ping_group_range", 100, &text,
				  NULL) < 0 ||
		    write(sock[1], text, strlen(text)) < 0)
			_exit(1);
		_exit(0);
	}
	sbx_closep(&sock[1]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	n = read(sock[0], ret, size - 1);
	sbx_closep(&sock[0]);
	ret[n > 0 ? n : 0] = '\0';
}

/* Of ranges the largest, wherever it stands, for the kernel takes one. */
static void enter__lets_the_groups_of_the_sandbox_ping(void **state)
{
	static const struct {
		const char *map;
		unsigned first, last;
	} rows[] = {
		{ "0 0 1\n1 100000 1000\n1001 200000 10", 100000, 100999 },
		{ "0 100000 500\n500 200000 1", 100000, 100499 },
	};
	const struct egress_config c = { .operator_list = "192.0.2.1" };

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		sbx_autoclose int user = -1, net = -1;
		sbx_autoerror e = SBX_ERROR_INIT;
		struct egress *x = NULL;
		unsigned first, last;
		char text[100];

		net = geteuid() == 0 ? make_namespace_for(rows[i].map, &user) : -1;
		if (net < 0)
			skip();
		assert_int_equal(egress_open(&c, &x, &e), 0);
		if (egress_enter(x, net, user, &e) < 0)
			fail_msg("%s", e.message);
		read_ping_groups(net, text, sizeof(text));
		assert_int_equal(sscanf(text, "%u %u", &first, &last), 2);
		assert_int_equal(first, rows[i].first);
		assert_int_equal(last, rows[i].last);
		(void)egress_close(x);
	}
}

/* What a child sees of a socket for echoes after it has given up heads of IP; 0: all is right. */
static int try_heads(int fd)
{
	static const struct {
		int level, name, err;
	} rows[] = {
		{ SOL_IP, IP_HDRINCL, EPERM },
		{ SOL_IP, IP_FREEBIND, EPERM },
		{ SOL_IPV6, IPV6_HDRINCL, EPERM },
		{ SOL_RAW, IPV6_HDRINCL, EPERM },
		{ SOL_RAW, ICMP_FILTER, EPERM },
		{ SOL_PACKET, PACKET_RX_RING, EPERM },
		{ SOL_ICMPV6, ICMP6_FILTER, EPERM },
		{ SOL_NETLINK, NETLINK_PKTINFO, EPERM },
		{ 7, 1, EPERM },
		{ 8, 1, EPERM },
		{ SOL_SOCKET | 1 << 8, SO_KEEPALIVE, EPERM },
		{ INT_MIN | SOL_SOCKET, SO_KEEPALIVE, EPERM },
		{ -1, 1, EPERM },
		{ IPPROTO_TCP, TCP_NODELAY,
		  ENOPROTOOPT },			 /* the kernel's own word: there is none */
		{ SOL_SOCKET, SO_DETACH_FILTER, EPERM }, /* it is locked */
		{ SOL_SOCKET, SO_KEEPALIVE, 0 },
	};
	const int on = 1;

	if (net_forbid_heads() < 0)
		return 100;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		errno = 0;
		(void)setsockopt(fd, rows[i].level, rows[i].name, &on, sizeof(on));
		if (errno != rows[i].err)
			return (int)i + 1;
		/* The upper half of a register is not the kernel's to look at. */
		errno = 0;
		(void)syscall(SYS_setsockopt, fd, 1L << 32 | rows[i].level, rows[i].name, &on,
			      sizeof(on));
		if (errno != rows[i].err)
			return (int)i + 50;
	}
	return syscall(SYS_io_uring_setup, 1, NULL) < 0 && errno == EPERM ? 0 : 200;
}

static void outside__is_a_socket_that_writes_no_heads(void **state)
{
	struct net_outlet out[] = { net_echo_outside(false), net_echo_outside(true) };
	int tried = 0;

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(out); i++) {
		pid_t pid;
		int status;

		if (out[i].fd < 0 || !out[i].raw) {
			sbx_closep(&out[i].fd);
			continue;
		}
		pid = fork();
		if (pid == 0)
			_exit(try_heads(out[i].fd));
		sbx_closep(&out[i].fd);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), 0);
		tried++;
	}
	if (!tried)
		skip();
}

/* "CapEff" and the like of a process, as a number. */
static unsigned long long status_of(int pid, const char *key)
{
	char path[64], line[256];
	unsigned long long n = ~0ULL;
	FILE *f;

	(void)snprintf(path, sizeof(path), "/proc/%d/status", pid);
	f = fopen(path, "re");
	assert_non_null(f);
	while (fgets(line, sizeof(line), f))
		if (strncmp(line, key, strlen(key)) == 0 && line[strlen(key)] == ':')
			n = strtoull(line + strlen(key) + 1, NULL, 16);
	(void)fclose(f);
	return n;
}

static void enter__leaves_its_processes_with_little(void **state)
{
	const unsigned long long gate =
		CAP_TO_MASK(CAP_NET_ADMIN) | CAP_TO_MASK(CAP_NET_BIND_SERVICE);
	const struct egress_config c = { .operator_list = "192.0.2.1" };
	sbx_autoclose int user = -1, net = make_namespace(&user), children = -1;
	sbx_autoerror e = SBX_ERROR_INIT;
	struct egress *x = NULL;
	char text[64] = "";
	int pids[2] = { 0, 0 };

	(void)state;
	if (net < 0)
		skip();
	assert_int_equal(egress_open(&c, &x, &e), 0);
	assert_int_equal(egress_enter(x, net, user, &e), 0);
	children = open("/proc/thread-self/children", O_RDONLY | O_CLOEXEC);
	if (children >= 0 && read(children, text, sizeof(text) - 1) > 0 &&
	    sscanf(text, "%d %d", &pids[0], &pids[1]) == 2) {
		assert_int_equal(status_of(pids[0], "CapEff"), gate);
		assert_int_equal(status_of(pids[0], "CapPrm"), gate);
		assert_int_equal(status_of(pids[1], "CapEff"), 0);
		assert_int_equal(status_of(pids[1], "CapPrm"), 0);
		assert_int_equal(status_of(pids[1], "Seccomp"), 2);
	}
	(void)egress_close(x);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(open__says_what_is_wrong),
		cmocka_unit_test(enter__stands_until_it_is_closed),
		cmocka_unit_test(enter__refuses_what_has_a_network),
		cmocka_unit_test(enter__lets_nothing_out_by_another_device),
		cmocka_unit_test(count__tells_that_a_process_is_lost),
		cmocka_unit_test(routes__are_told_apart),
		cmocka_unit_test(enter__lets_the_groups_of_the_sandbox_ping),
		cmocka_unit_test(outside__is_a_socket_that_writes_no_heads),
		cmocka_unit_test(enter__leaves_its_processes_with_little),
	};

	return cmocka_run_group_tests_name("egress", tests, NULL, NULL);
}
