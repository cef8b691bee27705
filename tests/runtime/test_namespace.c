/* SPDX-License-Identifier: Apache-2.0 */
/* The namespace driver on this kernel: what a command sees, and how its end is told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "base/fs.h"
#include "tests/runtime/ns_test.h"

/* ---- the end --------------------------------------------------------------------------------- */

static void exit__is_told_as_it_was(void **state)
{
	static const struct {
		const char *argv[4];
		int status, exec_errno;
	} rows[] = {
		{ { "sh", "-c", "exit 0" }, 0, 0 },
		{ { "sh", "-c", "exit 7" }, 7 << 8, 0 },
		{ { "sh", "-c", "exit 255" }, 255 << 8, 0 },
		{ { "/bin/sh", "-c", "kill -9 $$; echo survived" }, SIGKILL, 0 },
		{ { "sh", "-c", "kill -15 $$; echo survived" }, SIGTERM, 0 },
		{ { "sh", "-c", "ulimit -c 0; kill -11 $$" }, SIGSEGV, 0 },
		{ { "no-such-prog-q" }, 127 << 8, ENOENT },
		{ { "/no/such/prog" }, 127 << 8, ENOENT },
		{ { "/usr" }, 126 << 8, EACCES },
		{ { "/etc/passwd" }, 126 << 8, EACCES },
		{ { "" }, 127 << 8, ENOENT },
		{ { "sh", "-c", "printf '#!/bin/sh\\r\\n' > s; chmod +x s; ./s" }, 127 << 8, 0 },
	};

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(rows); i++) {
		struct job j = { 0 };
		struct live l;

		memcpy(j.argv, rows[i].argv, sizeof(rows[i].argv));
		job_run(&j, &l);
		if (l.x.status != rows[i].status || l.x.exec_errno != rows[i].exec_errno)
			fail_msg("row %zu: status %#x, errno %d", i, (unsigned)l.x.status,
				 l.x.exec_errno);
		assert_string_equal(l.out, "");
		assert_false(l.x.lost || l.x.oom || l.x.killed_by_us);
	}
}

static void exec__looks_in_the_commands_own_path(void **state)
{
	static const char *const envp[] = { "PATH=/nowhere::/workspace/bin", NULL };
	static const char text[] = "#!/bin/sh\necho found\n";
	static const struct rt_file files[] = {
		{ "bin/tool", text, sizeof(text) - 1, 0755 },
		{ "not-executable", text, sizeof(text) - 1, 0644 },
		{ "no-magic", "echo no\n", 8, 0755 },
	};
	struct job j = { .argv = { "tool" }, .envp = envp, .files = files, .n_files = 3 };
	struct live l;

	(void)state;
	job_run(&j, &l);
	assert_string_equal(l.out, "found\n");
	j.argv[0] = "not-executable"; /* in the empty part, which is the cwd */
	job_run(&j, &l);
	assert_int_equal(job_status(&l), 126);
	assert_int_equal(l.x.exec_errno, EACCES);
	j.argv[0] = "no-magic"; /* execve(2) does not fall back to a shell, and neither do we */
	job_run(&j, &l);
	assert_int_equal(job_status(&l), 126);
	assert_int_equal(l.x.exec_errno, ENOEXEC);
}

static void background__does_not_keep_a_run_alive(void **state)
{
	struct job j = shell("sleep 300 & setsid sleep 300 & echo started; exit 4");
	struct live l;

	(void)state;
	job_run(&j, &l);
	assert_int_equal(job_status(&l), 4);
	assert_string_equal(l.out, "started\n");
}

static void workspace__can_be_read_after_the_end(void **state)
{
	struct job j = shell("echo kept > f; chmod 600 f; mkdir d; echo x > d/g");
	sbx_autofree char *text = NULL;
	struct live l;
	int fd;

	(void)state;
	job_start(&j, &l);
	job_end(&l);
	fd = l.fds.workspace;
	l.fds.workspace = -1;
	job_free(&l);
	assert_int_equal(sbx_read_file(fd, "f", 100, &text, NULL), 0);
	assert_string_equal(text, "kept\n");
	assert_int_equal(faccessat(fd, "d/g", F_OK, 0), 0);
	(void)close(fd);
}

/* ---- streams --------------------------------------------------------------------------------- */

static void stdin__is_at_its_end_unless_asked_for(void **state)
{
	struct job j = shell("cat; echo after; [ -t 0 ] && echo tty; cat <<'Q'\nhere\nQ\n");
	struct live l;

	(void)state;
	job_run(&j, &l);
	assert_string_equal(l.out, "after\nhere\n");
}

static void stdin__ends_when_the_writer_closes(void **state)
{
	struct job j = shell("wc -c; echo tail; echo e >&2");
	struct live l;

	(void)state;
	j.input = "hello";
	job_run(&j, &l);
	assert_string_equal(l.out, "5\ntail\n");
	assert_string_equal(l.err, "e\n");
}

static void dev_stdout__can_be_opened_again(void **state)
{
	struct job j = shell("echo a > /dev/stdout; echo b > /dev/stderr; echo c > /dev/fd/1; "
			     ": > /dev/null && head -c 3 /dev/zero | wc -c");
	struct live l;

	(void)state;
	job_run(&j, &l);
	assert_string_equal(l.out, "a\nc\n3\n");
	assert_string_equal(l.err, "b\n");
}

/* ---- how it begins --------------------------------------------------------------------------- */

static void signals__start_at_their_defaults(void **state)
{
	struct job j = shell("yes q | head -n 1; grep -E '^Sig(Blk|Ign)' /proc/self/status | "
			     "tr -d '\\t'; sh -c 'kill -TERM $$; echo no'; echo rc=$?; umask");
	struct live l;
	sigset_t set, old;
	void (*pipe_was)(int), (*term_was)(int);

	(void)state;
	(void)sigfillset(&set);
	(void)sigprocmask(SIG_BLOCK, &set, &old); /* a service may well have done this */
	pipe_was = signal(SIGPIPE, SIG_IGN);
	term_was = signal(SIGTERM, SIG_IGN);
	job_run(&j, &l);
	(void)signal(SIGPIPE, pipe_was);
	(void)signal(SIGTERM, term_was);
	(void)sigprocmask(SIG_SETMASK, &old, NULL);
	assert_string_equal(l.out, "q\nSigBlk:0000000000000000\nSigIgn:0000000000000000\n"
				   "rc=143\n0022\n");
	assert_null(strstr(l.err, "Broken pipe"));
}

static void environment__is_exact(void **state)
{
	static const char *const envp[] = {
		"ML=l1\nl2\n",	 "EQ=a=b==c", "EMPTY=", "SP=  x ", "U=\xc3\xa9\xe4\xbd\xa0",
		"Q='\"$HOME`\\", "PATH=/bin", NULL
	};
	struct job j = probe("env", NULL);
	struct live l;
	const char *p;

	(void)state;
	j.envp = envp;
	job_run(&j, &l);
	assert_int_equal(job_status(&l), 0);
	p = l.out;
	for (size_t i = 0; envp[i]; i++) {
		assert_string_equal(p, envp[i]);
		p += strlen(p) + 1;
	}
	assert_int_equal(p - l.out, l.n_out);
}

static void descriptors__are_the_three(void **state)
{
	struct job j = probe("fds", NULL);
	int extra = open("/", O_RDONLY | O_DIRECTORY); /* not close-on-exec */
	struct live l;

	(void)state;
	job_run(&j, &l);
	(void)close(extra);
	assert_string_equal(l.out, "0\n1\n2\n");
}

static void closed_streams__of_the_service_do_no_harm(void **state)
{
	struct job j = shell("echo out; echo err >&2; ls /proc/self/fd | wc -l");
	int status;
	pid_t pid = fork();

	(void)state;
	if (pid == 0) {
		struct live l;

		for (int fd = 0; fd < 3; fd++)
			(void)close(fd);
		_exit(job_try(&j, &l) && strcmp(l.out, "out\n4\n") == 0 &&
				      strcmp(l.err, "err\n") == 0
			      ? 0
			      : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void cwd__is_made_below_the_workspace(void **state)
{
	static const struct {
		const char *cwd, *out;
	} good[] = { { "/workspace", "/workspace\n" },
		     { "/workspace/a/b/", "/workspace/a/b\n" },
		     { "/tmp", "/tmp\n" },
		     { "/usr/bin", "/usr/bin\n" } };
	static const char *const bad[] = { "/no/such", "/workspace/../x", "/etc/passwd",
					   "/proc/self/fd/3", "/proc/1/cwd" };
	struct job j = { .argv = { "pwd" } };
	struct live l;

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(good); i++) {
		j.cwd = good[i].cwd;
		job_run(&j, &l);
		assert_string_equal(l.out, good[i].out);
	}
	for (size_t i = 0; i < SBX_COUNT(bad); i++) {
		sbx_autoerror e = SBX_ERROR_INIT;

		j.cwd = bad[i];
		assert_int_equal(job_refused(&j, &e), -SBX_E_RUNTIME_ERROR);
		assert_non_null(strstr(e.message, bad[i]));
	}
}

static void files__have_their_modes_and_can_be_changed(void **state)
{
	static const struct rt_file files[] = {
		{ "in.txt", "one\n", 4, 0644 },
		{ "d/e/s.sh", "#!/bin/sh\necho hi\n", 18, 0755 },
		{ "secret", "", 0, 0400 },
	};
	struct job j = shell("echo two >> in.txt && cat in.txt && rm d/e/s.sh && : > d/new && "
			     "stat -c '%a %u' in.txt secret d");
	struct live l;

	(void)state;
	j.files = files;
	j.n_files = SBX_COUNT(files);
	job_run(&j, &l);
	assert_string_equal(l.out, "one\ntwo\n644 1000\n400 1000\n755 1000\n");
}

/* ---- what is inside -------------------------------------------------------------------------- */

static void loopback_and_shm__work_and_are_private(void **state)
{
	struct job net = probe("loopback", NULL), shm = probe("shm", NULL);
	struct live l;

	(void)state;
	job_run(&net, &l);
	assert_int_equal(job_status(&l), 0);
	for (int i = 0; i < 2; i++) { /* the second must not find the first one's */
		job_run(&shm, &l);
		assert_int_equal(job_status(&l), 0);
	}
}

static void network__of_the_last_sandbox_is_not_seen(void **state)
{
	static const char *const words[] = { "allowed", "nowhere", "loopback" };
	struct job look = shell("cat /proc/net/dev /proc/net/snmp");
	struct live before, use, after;

	(void)state;
	job_run(&look, &before);
	assert_non_null(strstr(before.out, "lo:"));
	for (size_t i = 0; i < SBX_COUNT(words); i++) {
		struct job j = probe(words[i], NULL);

		job_run(&j, &use);
		assert_int_equal(job_status(&use), 0);
		job_run(&look, &after);
		assert_string_equal(after.out, before.out);
	}
}

static void host_sockets__are_out_of_reach(void **state)
{
	static const char name[] = "sbx-test-abstract";
	struct sockaddr_un u = { .sun_family = AF_UNIX };
	struct sockaddr_in a = { .sin_family = AF_INET };
	socklen_t len = sizeof(a);
	int tcp = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int un = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char port[8];
	struct job by_port, by_name = probe("abstract", name);
	struct live l;

	(void)state;
	memcpy(u.sun_path + 1, name, sizeof(name) - 1);
	assert_int_equal(bind(un, (struct sockaddr *)&u,
			      offsetof(struct sockaddr_un, sun_path) + sizeof(name)),
			 0);
	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(bind(tcp, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(listen(tcp, 4) | listen(un, 4), 0);
	assert_int_equal(getsockname(tcp, (struct sockaddr *)&a, &len), 0);
	(void)snprintf(port, sizeof(port), "%u", ntohs(a.sin_port));
	by_port = probe("port", port);
	job_run(&by_port, &l);
	assert_int_equal(job_status(&l), 1);
	job_run(&by_name, &l);
	assert_int_equal(job_status(&l), 1);
	(void)close(tcp);
	(void)close(un);
}

static void attacks__fail_as_they_should(void **state)
{
	static const char *const words[] = { "denied", "allowed", "write", "init" };

	(void)state;
	for (size_t i = 0; i < SBX_COUNT(words); i++) {
		struct job j = probe(words[i], NULL);
		struct live l;

		job_run(&j, &l);
		if (job_status(&l) != 0)
			fail_msg("%s: status %#x: %s", words[i], (unsigned)l.x.status, l.out);
	}
}

static void identity__is_an_ordinary_users(void **state)
{
	struct job j = shell("id -u; id -g; id -un; hostname; grep -E '^(Cap|NoNew|Seccomp:)' "
			     "/proc/self/status | tr -d '\\t'; cat /proc/1/comm 2>/dev/null; "
			     "ls /home /root /etc/shadow /etc/machine-id 2>/dev/null; date +%Z; "
			     "grep -c sandboxfs /proc/self/cgroup");
	struct live l;

	(void)state;
	job_run(&j, &l);
	assert_string_equal(l.out, "1000\n1000\nsandbox\nsandbox\n"
				   "CapInh:0000000000000000\nCapPrm:0000000000000000\n"
				   "CapEff:0000000000000000\nCapBnd:0000000000000000\n"
				   "CapAmb:0000000000000000\nNoNewPrivs:1\nSeccomp:2\nUTC\n0\n");
}

static void state_dir__is_covered_where_the_image_shows_it(void **state)
{
	static const char link[] = "/tmp/sbx-state-link";
	struct job j = shell("ls -A /usr/share/doc | wc -l");
	struct live l;

	(void)state;
	(void)unlink(link);
	assert_int_equal(symlink("/usr/share", link), 0);
	for (int i = 0; i < 2; i++) {
		test_host.state_dir = i ? "/tmp/sbx-state-link/doc" : "/usr/share/doc";
		job_run(&j, &l);
		assert_string_equal(l.out, "0\n");
	}
	(void)unlink(link);
	test_host.state_dir = NULL;
	job_run(&j, &l);
	assert_string_not_equal(l.out, "0\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(exit__is_told_as_it_was),
		cmocka_unit_test(exec__looks_in_the_commands_own_path),
		cmocka_unit_test(background__does_not_keep_a_run_alive),
		cmocka_unit_test(workspace__can_be_read_after_the_end),
		cmocka_unit_test(stdin__is_at_its_end_unless_asked_for),
		cmocka_unit_test(stdin__ends_when_the_writer_closes),
		cmocka_unit_test(dev_stdout__can_be_opened_again),
		cmocka_unit_test(signals__start_at_their_defaults),
		cmocka_unit_test(environment__is_exact),
		cmocka_unit_test(descriptors__are_the_three),
		cmocka_unit_test(closed_streams__of_the_service_do_no_harm),
		cmocka_unit_test(cwd__is_made_below_the_workspace),
		cmocka_unit_test(files__have_their_modes_and_can_be_changed),
		cmocka_unit_test(loopback_and_shm__work_and_are_private),
		cmocka_unit_test(network__of_the_last_sandbox_is_not_seen),
		cmocka_unit_test(host_sockets__are_out_of_reach),
		cmocka_unit_test(attacks__fail_as_they_should),
		cmocka_unit_test(identity__is_an_ordinary_users),
		cmocka_unit_test(state_dir__is_covered_where_the_image_shows_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
