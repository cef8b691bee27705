/* SPDX-License-Identifier: Apache-2.0 */
/* Programs that we start have the descriptors that they are given, and signals as at boot. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/auto.h"
#include "base/fs.h"
#include "base/child.h"

static int file_with(const char *text)
{
	int fd = memfd_create("file", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(sbx_write_all(fd, text, strlen(text)), 0);
	assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
	return fd;
}

/* What the script prints with these as its descriptors, the second being where it prints to. */
static void check(const char *script, int *fds, size_t n, bool session, const char *wanted)
{
	char sh[] = "/bin/sh", c[] = "-c", text[1024], got[1024] = "";
	char *argv[] = { sh, c, text, NULL };
	int out = file_with(""), status = -1;
	pid_t pid = -1;

	(void)snprintf(text, sizeof(text), "%s", script);
	fds[1] = out;
	assert_int_equal(sbx_spawn(argv, fds, n, session, &pid), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_true(pread(out, got, sizeof(got) - 1, 0) >= 0);
	assert_string_equal(got, wanted);
	(void)close(out);
}

/* Each has the number that another one is to get, and one is given twice. */
static void spawn__exchanges_numbers(void **state)
{
	int a = file_with("a"), b = file_with("b"), fds[6] = { SBX_SPAWN_NULL, 0, SBX_SPAWN_SAME };

	(void)state;
	assert_int_equal(dup2(a, 3), 3);
	assert_int_equal(dup2(b, 4), 4);
	fds[3] = 4;
	fds[4] = 3;
	fds[5] = 4;
	check("cat <&3; cat <&4; cat /proc/self/fd/5", fds, 6, false, "bab");
	(void)close(3);
	(void)close(4);
	(void)close(a);
	(void)close(b);
}

static void spawn__keeps_the_number_that_one_has(void **state)
{
	int a = file_with("a"), fds[4] = { SBX_SPAWN_NULL, 0, SBX_SPAWN_SAME, 3 };

	(void)state;
	assert_int_equal(dup3(a, 3, O_CLOEXEC) < 0 && a != 3, 0);
	check("cat <&3", fds, 4, false, "a");
	(void)close(3);
	if (a != 3)
		(void)close(a);
}

static void spawn__gives_nothing_else(void **state)
{
	int left = open("/dev/zero", O_RDONLY),
	    fds[4] = { SBX_SPAWN_NULL, 0, SBX_SPAWN_SAME, left };

	(void)state;
	assert_int_equal(fcntl(left, F_DUPFD, 20) >= 20, 1); /* not close-on-exec */
	/* The shell itself has none above; the directory is opened by ls. */
	check("cd /proc/$$/fd && ls", fds, 4, false, "0\n1\n2\n3\n");
	check("readlink /proc/$$/fd/0 /proc/$$/fd/3", fds, 4, false, "/dev/null\n/dev/zero\n");
	(void)close(left);
	(void)close(20);
}

static void spawn__with_signals_as_at_boot(void **state)
{
	int fds[3] = { SBX_SPAWN_NULL, 0, SBX_SPAWN_SAME };
	sigset_t set, old;

	(void)state;
	(void)sigemptyset(&set);
	(void)sigaddset(&set, SIGTERM);
	(void)sigprocmask(SIG_BLOCK, &set, &old);
	(void)signal(SIGPIPE, SIG_IGN);
	/* Above 31 are the library's own. */
	check("for m in Ign Blk; do x=$(sed -n \"s/Sig$m:.//p\" /proc/self/status); "
	      "echo $m $((0x$x & 0x7fffffff)); done",
	      fds, 3, false, "Ign 0\nBlk 0\n");
	(void)signal(SIGPIPE, SIG_DFL);
	(void)sigprocmask(SIG_SETMASK, &old, NULL);
}

static void spawn__in_a_session_of_its_own(void **state)
{
	int fds[3] = { SBX_SPAWN_NULL, 0, SBX_SPAWN_SAME };

	(void)state;
	check("test $(cut -d' ' -f6 /proc/$$/stat) = $$ && echo own", fds, 3, true, "own\n");
	check("test $(cut -d' ' -f6 /proc/$$/stat) = $$ || echo ours", fds, 3, false, "ours\n");
}

static void spawn__says_why_not(void **state)
{
	char no[] = "/no/such/program";
	char *argv[] = { no, NULL };
	int fds[1] = { SBX_SPAWN_NULL };
	pid_t pid = -1;

	(void)state;
	assert_int_equal(sbx_spawn(argv, fds, 1, false, &pid), ENOENT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(spawn__exchanges_numbers),
		cmocka_unit_test(spawn__keeps_the_number_that_one_has),
		cmocka_unit_test(spawn__gives_nothing_else),
		cmocka_unit_test(spawn__with_signals_as_at_boot),
		cmocka_unit_test(spawn__in_a_session_of_its_own),
		cmocka_unit_test(spawn__says_why_not),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
