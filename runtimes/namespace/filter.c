/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runner: the system call filter as bytes, so that the command installs it with one call and
 * needs no library. libseccomp makes the program from filter.def; two checks that it cannot
 * express stand in front of it.
 */
#include "runtimes/namespace/ns_i.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/netlink.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <seccomp.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/fs.h"

enum {
	/* The newest call that was looked at when the table was written. A later one is answered
	 * like an older kernel would. */
	LAST_KNOWN_CALL = 469,
	FAMILY_LIMIT = 46, /* address families that Linux had then */
	FILTER_MAX = BPF_MAXINSNS * (int)sizeof(struct sock_filter),
};

/* ---- libseccomp's part ----------------------------------------------------------------------- */

static const struct {
	const char *name;
	int number;
} numbers[] = {
#define NUMBER(name, number) { #name, number },
#include "runtimes/namespace/filter.def"
};

static const struct {
	const char *name;
	int err;
} whole_calls[] = {
#define DENY(name, reason)   { #name, EPERM },
#define ABSENT(name, reason) { #name, ENOSYS },
#include "runtimes/namespace/filter.def"
};

static const struct {
	const char *name;
	unsigned arg;
	uint64_t flag;
} flags[] = {
#define DENY_FLAG(name, arg, flag, reason) { #name, arg, flag },
#include "runtimes/namespace/filter.def"
};

static const struct {
	const char *name;
	unsigned arg;
	uint64_t value;
	unsigned pointer;
} ignored[] = {
#define IGNORE(name, arg, value, pointer, reason) { #name, arg, value, pointer },
#include "runtimes/namespace/filter.def"
};

static const uint64_t ioctls[] = {
#define DENY_IOCTL(request, reason) request,
#include "runtimes/namespace/filter.def"
};

/* Families that stay within the sandbox; of netlink only routing, which getifaddrs(3) asks. */
static const int families[] = { AF_UNIX, AF_INET, AF_INET6, AF_NETLINK };

/* A negative number: no such call on this architecture, so nothing to forbid. */
static int call_number(const char *name)
{
	int nr = seccomp_syscall_resolve_name(name);

	for (size_t i = 0; nr < 0 && i < SBX_COUNT(numbers); i++)
		if (strcmp(numbers[i].name, name) == 0)
			nr = numbers[i].number;
	return nr;
}

/* One rule about up to two arguments. */
static int forbid(scmp_filter_ctx ctx, int err, int call, const struct scmp_arg_cmp *args,
		  unsigned n)
{
	return seccomp_rule_add_array(ctx, SCMP_ACT_ERRNO((unsigned)err), call, n, args);
}

static int add_calls(scmp_filter_ctx ctx)
{
	int r = 0;

	for (size_t i = 0; i < SBX_COUNT(whole_calls) && r == 0; i++) {
		int nr = call_number(whole_calls[i].name);

		if (nr >= 0)
			r = forbid(ctx, whole_calls[i].err, nr, NULL, 0);
	}
	for (size_t i = 0; i < SBX_COUNT(flags) && r == 0; i++) {
		struct scmp_arg_cmp set = { flags[i].arg, SCMP_CMP_MASKED_EQ, flags[i].flag,
					    flags[i].flag };

		r = forbid(ctx, EPERM, call_number(flags[i].name), &set, 1);
	}
	for (size_t i = 0; i < SBX_COUNT(ignored) && r == 0; i++) {
		struct scmp_arg_cmp these[] = {
			{ ignored[i].arg, SCMP_CMP_MASKED_EQ, UINT32_MAX, ignored[i].value },
			{ ignored[i].pointer, SCMP_CMP_NE, 0, 0 },
		};
		int nr = call_number(ignored[i].name);

		if (nr >= 0)
			r = forbid(ctx, 0, nr, these, SBX_COUNT(these));
	}
	for (size_t i = 0; i < SBX_COUNT(ioctls) && r == 0; i++) {
		struct scmp_arg_cmp request = { 1, SCMP_CMP_MASKED_EQ, UINT32_MAX, ioctls[i] };

		r = forbid(ctx, EPERM, SCMP_SYS(ioctl), &request, 1);
	}
	return r;
}

static int add_families(scmp_filter_ctx ctx, int call)
{
	struct scmp_arg_cmp unknown = { 0, SCMP_CMP_GE, FAMILY_LIMIT, 0 };
	struct scmp_arg_cmp not_routing[] = { { 0, SCMP_CMP_EQ, AF_NETLINK, 0 },
					      { 2, SCMP_CMP_NE, NETLINK_ROUTE, 0 } };
	int r = forbid(ctx, EAFNOSUPPORT, call, &unknown, 1);

	for (unsigned family = 0; family < FAMILY_LIMIT && r == 0; family++) {
		struct scmp_arg_cmp this = { 0, SCMP_CMP_EQ, family, 0 };
		bool good = false;

		for (size_t i = 0; i < SBX_COUNT(families); i++)
			good = good || families[i] == (int)family;
		if (!good)
			r = forbid(ctx, EAFNOSUPPORT, call, &this, 1);
	}
	return r ? r : forbid(ctx, EAFNOSUPPORT, call, not_routing, 2);
}

/* The program's length in instructions, or a negative errno. */
static ssize_t make_program(struct sock_filter *out, size_t max)
{
	scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ALLOW);
	sbx_autoclose int fd = memfd_create("filter", MFD_CLOEXEC);
	ssize_t n;
	int r;

	if (!ctx || fd < 0) {
		seccomp_release(ctx);
		return -ENOMEM;
	}
	/* i386 and x32 calls have other numbers, which no rule here is about. */
	r = seccomp_attr_set(ctx, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_ERRNO(ENOSYS));
	if (r == 0)
		r = seccomp_attr_set(ctx, SCMP_FLTATR_CTL_OPTIMIZE, 2); /* a binary tree */
	if (r == 0)
		r = add_calls(ctx);
	if (r == 0)
		r = add_families(ctx, SCMP_SYS(socket));
	if (r == 0)
		r = add_families(ctx, SCMP_SYS(socketpair));
	if (r == 0)
		r = seccomp_export_bpf(ctx, fd);
	seccomp_release(ctx);
	if (r < 0)
		return r;
	if (lseek(fd, 0, SEEK_SET) < 0)
		return -errno;
	n = sbx_read_full(fd, out, max * sizeof(*out));
	return n < 0 ? n : n / (ssize_t)sizeof(*out);
}

/* ---- in front of it -------------------------------------------------------------------------- */

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define LOAD_ARG0                                                                                  \
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS,                                                         \
		 offsetof(struct seccomp_data, args) +                                             \
			 (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? 4 : 0))
#define RETURN(err) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (err))

/*
 * Unknown calls, and personality(2): asking (0xffffffff), the plain one, and without address
 * randomisation, which debuggers use; the others bring back old bugs on purpose. The kernel looks
 * at 32 bits of its argument. Any other call goes on to libseccomp's program.
 */
static const struct sock_filter front[] = {
	LOAD(arch),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 9), /* 0: see FRONT_ARCH */
	LOAD(nr),
	BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, LAST_KNOWN_CALL, 6, 0),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_personality, 0, 6),
	LOAD_ARG0,
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xffffffff, 4, 0),
	BPF_STMT(BPF_ALU | BPF_AND | BPF_K, ~(uint32_t)ADDR_NO_RANDOMIZE),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 2, 0),
	RETURN(EPERM),
	RETURN(ENOSYS),
};

enum { FRONT_ARCH = 1 }; /* where the number of the architecture goes */

int ns_filter_get(const struct sock_filter **ret, size_t *ret_len, struct sbx_error *e)
{
	static struct sock_filter *program;
	static size_t len;

	if (!program) {
		size_t max = BPF_MAXINSNS - SBX_COUNT(front);
		struct sock_filter *p = malloc(FILTER_MAX);
		struct sock_filter *fit;
		ssize_t n;

		if (!p)
			return sbx_fail(e, SBX_E_NO_MEMORY, "no memory for the system call filter");
		memcpy(p, front, sizeof(front));
		p[FRONT_ARCH].k = seccomp_arch_native();
		n = make_program(p + SBX_COUNT(front), max);
		if (n <= 0) {
			free(p);
			return sbx_fail_errno(e, SBX_E_RUNTIME_ERROR, (int)-n,
					      "cannot make the system call filter");
		}
		len = SBX_COUNT(front) + (size_t)n;
		fit = realloc(p, len * sizeof(*p));
		program = fit ? fit : p;
	}
	*ret = program;
	*ret_len = len;
	return 0;
}
