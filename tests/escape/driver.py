# SPDX-License-Identifier: Apache-2.0
"""Runs inside the sandbox (and, as a control, outside): executes each attempt of attempts.json in a child of
its own and prints one JSON line for each: its name and how it ended. Knows nothing of the rest of the tests."""
import ctypes
import errno
import fcntl
import json
import mmap
import os
import platform
import resource
import signal
import socket
import stat
import struct
import subprocess
import sys
import termios

# name: (x86_64, the generic table of aarch64 and riscv64); since 424 all architectures agree.
NUMBERS = {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "swapon": (167, 224), "swapoff": (168, 225), "quotactl": (179, 60), "acct": (163, 89),
    "nfsservctl": (180, 42), "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "kcmp": (312, 272),
    "lookup_dcookie": (212, 18), "modify_ldt": (154, None), "uselib": (134, None), "ustat": (136, None),
    "sysfs": (139, None), "_sysctl": (156, None), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "create_module": (174, None), "get_kernel_syms": (177, None), "query_module": (178, None),
    "reboot": (169, 142), "syslog": (103, 116), "sethostname": (170, 161), "setdomainname": (171, 162),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266),
    "adjtimex": (159, 171), "iopl": (172, None), "ioperm": (173, None), "vhangup": (153, 58),
    "mbind": (237, 235), "set_mempolicy": (238, 237), "migrate_pages": (256, 238), "move_pages": (279, 239),
    "setns": (308, 268), "unshare": (272, 97), "clone": (56, 220), "personality": (135, 92),
    "ioctl": (16, 29), "socket": (41, 198), "socketpair": (53, 199), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "capset": (126, 91),
    "capget": (125, 90), "setgroups": (116, 159), "getpid": (39, 172), "io_setup": (206, 0),
    "setrlimit": (160, 164), "prlimit64": (302, 261), "prctl": (157, 167), "kill": (62, 129), "tgkill": (234, 131), "linkat": (265, 37),
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435,
    "pidfd_open": 434, "openat2": 437, "pidfd_getfd": 438, "mount_setattr": 442, "quotactl_fd": 443,
    "set_mempolicy_home_node": 450, "open_tree_attr": 467,
}
X86 = platform.machine() == "x86_64"
X32 = 0x40000000
libc = ctypes.CDLL(None, use_errno=True)


def s(text):
    return ctypes.c_char_p(text.encode() if isinstance(text, str) else text)


def number(name):
    n = NUMBERS[name] if isinstance(name, str) else name
    if isinstance(n, tuple):
        n = n[0 if X86 else 1]
    if n is None:
        raise NotImplementedError  # no such call here
    return n


def call(name, *args):
    """syscall(2); raises OSError."""
    wide = [a if isinstance(a, (ctypes.c_char_p, ctypes.Array, type(None))) or hasattr(a, "_obj")
            else ctypes.c_long(a) for a in args]
    ctypes.set_errno(0)
    r = libc.syscall(ctypes.c_long(number(name)), *wide)
    if r == -1:
        raise OSError(ctypes.get_errno(), "")
    return r


def forkish(name, *args):
    """A call that may return twice: the child vanishes, the parent says that there was one."""
    r = call(name, *args)
    if r == 0:
        os._exit(0)
    return "made process"


def i386(nr, a=0, b=0, c=0):
    """The same kernel by its other door: int 0x80 from 64-bit code. Arguments must fit 32 bits."""
    if not X86:
        raise NotImplementedError
    # push rbx; mov eax,edi; mov ebx,esi; xchg edx,ecx; int 0x80; pop rbx; ret
    code = bytes.fromhex("5389f889f387cacd805bc3")
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    at = ctypes.addressof(ctypes.c_char.from_buffer(page))
    r = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint] * 4)(at)(nr, a, b, c)
    if -4096 < r < 0:
        raise OSError(-r, "")
    return r


def low_string(text):
    """The address of a string below 4 GiB, for 32-bit calls."""
    MAP_32BIT = 0x40
    libc.mmap.restype = ctypes.c_void_p
    at = libc.mmap(None, 4096, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_32BIT, -1, 0)
    ctypes.memmove(at, text.encode() + b"\0", len(text) + 1)
    return at


def pty_child():
    """A terminal of our own as the controlling one: (master, slave)."""
    master, slave = os.openpty()
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    return master, slave


def read(path, size=65536):
    with open(path, "rb") as f:
        return f.read(size)


def write(path, data):
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, data if isinstance(data, bytes) else data.encode())
    finally:
        os.close(fd)
    return "written"


def connect(family, address, kind=socket.SOCK_STREAM, proto=0):
    with socket.socket(family, kind, proto) as c:
        c.settimeout(4)
        c.connect(address)
        return "REACHED"


def errors_of(calls):
    """The different ways in which many calls fail, as one word each."""
    seen = set()
    for one in calls:
        try:
            seen.add("OK" if one() is None else "OK")
        except OSError as e:
            seen.add(errno.errorcode.get(e.errno, str(e.errno)))
    return " ".join(sorted(seen))


def verdict(code, canary):
    names = dict(globals(), C=canary)
    try:
        try:
            value = eval(compile(code, "attempt", "eval"), names)
        except SyntaxError:
            body = "def attempt():\n" + "".join("    %s\n" % line for line in code.splitlines())
            exec(compile(body, "attempt", "exec"), names)
            value = names["attempt"]()
    except TimeoutError:
        return "ETIMEDOUT"
    except OSError as e:
        return errno.errorcode.get(e.errno, str(e))
    except NotImplementedError:
        return "not here"
    except BaseException as e:
        return "%s: %s" % (type(e).__name__, e)
    return "OK" if value is None else str(value)


def run(code, canary):
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(r)
        signal.alarm(30)
        text = verdict(code, canary).encode()
        while text:
            text = text[os.write(w, text):]
        os._exit(0)
    os.close(w)
    out = b""
    while True:
        part = os.read(r, 65536)
        if not part:
            break
        out += part
    os.close(r)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return "signal %d" % os.WTERMSIG(status)
    return out.decode(errors="backslashreplace")


def main():
    with open(sys.argv[1]) as f:
        work = json.load(f)
    for name, code in work["attempts"]:
        print(json.dumps({"name": name, "verdict": run(code, work["canary"])}), flush=True)


if __name__ == "__main__":
    main()
