# SPDX-License-Identifier: Apache-2.0
"""Escape attempts through system calls: the filter must answer, by number, on every door of the kernel."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from escape import Row, group, sbx  # noqa: E402

EPERM, ENOSYS = "EPERM", "ENOSYS"
CLONE = {"NEWTIME": 0x80, "NEWNS": 0x20000, "NEWCGROUP": 0x2000000, "NEWUTS": 0x4000000, "NEWIPC": 0x8000000,
         "NEWUSER": 0x10000000, "NEWPID": 0x20000000, "NEWNET": 0x40000000}

# Arguments are such that a kernel without the filter says something else wherever it can: EFAULT, EINVAL,
# EBADF come before the question who is asking.
denied = {
    "mount": 's("none"), s("/tmp"), s("tmpfs"), 0, None',
    "umount2": 's("/proc"), 2', "pivot_root": 's("."), s(".")', "chroot": 's("/tmp")',
    "open_tree": '-100, s("/"), 1', "open_tree_attr": '-100, s("/"), 1, None, 0',
    "move_mount": '-1, s(""), -100, s("/tmp"), 4', "mount_setattr": '-100, s("/"), 0, None, 0',
    "fsopen": 's("tmpfs"), 0', "fsconfig": '-1, 0, None, None, 0', "fsmount": '-1, 0, 0',
    "fspick": '-100, s("/tmp"), 0', "swapon": 's("/dev/null"), 0', "swapoff": 's("/dev/null")',
    "quotactl": '-1, s("/dev/vda"), 0, None', "quotactl_fd": '-1, 0, 0, None', "acct": 's("/tmp/acct")',
    "nfsservctl": '0, None, None', "open_by_handle_at": '-100, None, 0',
    "name_to_handle_at": '-100, s("/usr"), None, None, 0', "fanotify_init": '0, 0',
    "keyctl": '0, -3, 0', "add_key": 's("user"), s("k"), s("v"), 1, -2',
    "request_key": 's("user"), s("k"), None, -2', "bpf": '0, None, 0', "perf_event_open": 'None, 0, -1, -1, 0',
    "userfaultfd": '1', "kcmp": 'os.getpid(), os.getpid(), 0, 1, 1', "lookup_dcookie": '0, None, 0',
    "modify_ldt": '0, None, 0', "uselib": 's("/lib/x")', "ustat": '0, None', "sysfs": '3', "_sysctl": 'None',
    "kexec_load": '0, 0, None, 0', "kexec_file_load": '-1, -1, 0, s(""), 0', "init_module": 'None, 0, s("")',
    "finit_module": '-1, s(""), 0', "delete_module": 's("x"), 0', "create_module": 's("x"), 0',
    "get_kernel_syms": 'None', "query_module": 'None, 0, None, 0, None', "reboot": '0, 0, 0, None',
    "syslog": '3, None, 0', "sethostname": 's("x"), 1', "setdomainname": 's("x"), 1',
    "settimeofday": 'None, None', "clock_settime": '0, None', "clock_adjtime": '0, None', "adjtimex": 'None',
    "iopl": '3', "ioperm": '0, 1, 1', "vhangup": '', "mbind": 'None, 0, 0, None, 0, 0',
    "set_mempolicy": '0, None, 0', "set_mempolicy_home_node": 'None, 0, 0, 0',
    "migrate_pages": '0, 0, None, None', "move_pages": '0, 0, None, None, None, 0', "setns": '-1, 0',
}
absent = {
    "io_uring_setup": '1, (ctypes.c_char * 120)()', "io_uring_enter": '-1, 0, 0, 0, None, 0',
    "io_uring_register": '-1, 0, None, 0', "clone3": '(ctypes.c_uint64 * 11)(0, 0, 0, 0, 17), 88',
    "io_setup": '1, (ctypes.c_uint64 * 1)()',
}
rows = [Row(name, 'call("%s", %s)' % (name, args) if args else 'call("%s")' % name, EPERM)
        for name, args in denied.items()]
rows += [Row(name, 'call("%s", %s)' % (name, args), ENOSYS) for name, args in absent.items()]

for flag, bit in CLONE.items():
    rows.append(Row("unshare_" + flag.lower(), 'call("unshare", 0x%x)' % bit, EPERM))
    if flag != "NEWTIME":  # for clone(2) that bit is part of the exit signal
        rows.append(Row("clone_" + flag.lower(), 'forkish("clone", 0x%x | 17, 0, 0, 0, 0)' % bit, EPERM))
        # The kernel looks at the low 32 bits; so must the filter.
        rows.append(Row("clone_%s_high_bits" % flag.lower(),
                        'forkish("clone", 1 << 40 | 0x%x | 17, 0, 0, 0, 0)' % bit, EPERM))
rows += [
    Row("unshare_many", 'call("unshare", 0x%x)' % sum(CLONE.values()), EPERM),
    Row("unshare_high_bits", 'call("unshare", 1 << 40 | 0x10000000)', EPERM),
    Row("clone3_newuser", 'call("clone3", (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17), 88)', ENOSYS),
    Row("setns_by_pidfd", 'call("setns", os.pidfd_open(os.getpid()), 0x20000)', EPERM),
    Row("setns_own_user", 'call("setns", os.open("/proc/self/ns/user", 0), 0)', EPERM),

    Row("personality_read_implies_exec", 'call("personality", 0x400000)', EPERM),
    Row("personality_high_bits", 'call("personality", 1 << 40 | 0x400000)', EPERM),
    Row("personality_mmap_page_zero", 'call("personality", 0x100000)', EPERM),
    Row("personality_linux32", 'call("personality", 8)', EPERM),
    Row("personality_may_be_asked", 'call("personality", 0xffffffff)', "0"),

    # A call that this kernel may have and the filter's author did not know.
    Row("unknown_calls", 'errors_of([lambda n=n: call(n) for n in list(range(470, 520)) + [1000, 0x3fffffff]])',
        ENOSYS),
    Row("negative_call", 'call(-1)', ENOSYS),

    # x32 and i386 numbers mean other calls; on the host i386's getpid works where there is such a door.
    Row("x32_getpid", 'call(X32 | number("getpid")) if X86 else call(-1)', ENOSYS),
    Row("x32_mount", 'call(X32 | 165, s("none"), s("/tmp"), s("tmpfs"), 0, None) if X86 else call(-1)', ENOSYS),
    Row("x32_ptrace", 'call(X32 | 521, 0, 0, 0, 0) if X86 else call(-1)', ENOSYS),
    Row("x32_ioctl", 'call(X32 | 514, 0, 0x5412, s("x")) if X86 else call(-1)', ENOSYS),
    Row("i386_getpid", 'i386(20)', ENOSYS),
    Row("i386_clone_newuser", 'i386(120, 0x10000011)', ENOSYS),
    Row("i386_unshare_newuser", 'i386(310, 0x10000000)', ENOSYS),
    Row("i386_clone3", 'i386(435, 0, 0)', ENOSYS),
    Row("i386_keyctl", 'i386(288, 0, 0xfffffffd, 0)', ENOSYS),
    Row("i386_mount", 'i386(21, low_string("none"), low_string("/tmp"), low_string("tmpfs"))', ENOSYS),
    Row("i386_socketcall", 'i386(102, 1, 0)', ENOSYS),
    Row("i386_socket", 'i386(359, 17, 3, 0)', ENOSYS),
    Row("i386_open", 'i386(5, low_string("/etc/passwd"), 0)', ENOSYS),
    Row("i386_io_uring", 'i386(425, 1, 0)', ENOSYS),
    Row("i386_bpf", 'i386(357, 0, 0, 0)', ENOSYS),
    Row("i386_tiocsti", 'i386(54, 0, 0x5412, low_string("x"))', ENOSYS),

    # A real terminal, as the controlling one, where TIOCSTI would work.
    Row("tiocsti", 'm, t = pty_child()\nreturn call("ioctl", t, 0x5412, s("x"))', EPERM),
    Row("tiocsti_64_bit", 'm, t = pty_child()\nreturn call("ioctl", t, 1 << 32 | 0x5412, s("x"))', EPERM),
    Row("tiocsti_sign", 'm, t = pty_child()\nreturn call("ioctl", t, -(1 << 40) | 0x5412, s("x"))', EPERM),
    Row("tiocsti_dev_tty", 'pty_child()\nreturn call("ioctl", os.open("/dev/tty", os.O_RDWR), 0x5412, s("x"))',
        EPERM),
    Row("tioclinux", 'm, t = pty_child()\nreturn call("ioctl", t, 0x541c, s("\\x02"))', EPERM),
    Row("tioclinux_64_bit", 'm, t = pty_child()\nreturn call("ioctl", t, 7 << 33 | 0x541c, s("\\x02"))', EPERM),
    Row("terminal_still_works",
        'm, t = pty_child()\nos.write(m, b"typed\\n")\nreturn os.read(t, 99).decode().strip()', "typed"),
    Row("no_terminal_of_ours", 'os.open("/dev/tty", os.O_RDWR)', "ENXIO"),
    Row("terminals_are_few",
        'fds = []\ntry:\n  while True: fds.append(os.openpty())\n'
        'except OSError as e: return "few" if len(fds) <= 64 else len(fds)', "few"),

    Row("filter_and_no_new_privs",
        '[l.split()[1] for l in open("/proc/self/status") if l.split(":")[0] in ("Seccomp", "NoNewPrivs")]',
        "['1', '2']"),
    # PR_SET_NO_NEW_PRIVS off, PR_SET_SECCOMP off, securebits, PR_SET_MM
    Row("no_new_privs_off", 'call("prctl", 38, 0, 0, 0, 0)', "EINVAL"),
    Row("seccomp_off", 'call("prctl", 22, 0, 0, 0, 0)', "EINVAL"),
    Row("securebits", 'call("prctl", 28, 0, 0, 0, 0)', EPERM),
    Row("prctl_mm_exe", 'call("prctl", 35, 13, os.open("/usr/bin/python3", 0), 0, 0)', EPERM),
    Row("sysrq_by_keyboard_ioctl", 'call("ioctl", 0, 0x4b4e, 0)', "ENOTTY"),
]

Kernel = group("Kernel", rows)

if __name__ == "__main__":
    sbx.main()
