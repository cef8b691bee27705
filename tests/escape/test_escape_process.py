# SPDX-License-Identifier: Apache-2.0
"""Escape attempts through other processes: the host's, process 1, the service's, and those of another run
that executes at the same time."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from escape import Attempts, Row, batch_spec, contents, group, levels, parse, sbx  # noqa: E402

IOV = '(ctypes.c_uint64 * 2)(ctypes.addressof(buf), 1)'

processes = [
    Row("signal_host", 'os.kill(C["victim"], 0)', "ESRCH", control="OK"),
    Row("kill_host", 'os.kill(C["victim"], signal.SIGKILL)', "ESRCH"),
    Row("stop_host", 'os.kill(C["victim"], signal.SIGSTOP)', "ESRCH"),
    Row("kill_server", 'os.kill(C["server"], signal.SIGKILL)', "ESRCH"),
    Row("tgkill_host", 'call("tgkill", C["victim"], C["victim"], 9)', "ESRCH"),
    Row("kill_group_of_host", 'os.killpg(C["victim"], 0)', "ESRCH"),
    Row("pidfd_of_host", 'os.close(os.pidfd_open(C["victim"]))', "ESRCH", control="OK"),
    Row("trace_host", 'call("ptrace", 0x4206, C["victim"], 0, 0)', "ESRCH", control="0"),
    Row("attach_server", 'call("ptrace", 16, C["server"], 0, 0)', "ESRCH"),
    Row("read_memory_of_host", 'buf = ctypes.create_string_buffer(8)\nreturn call("process_vm_readv", C["victim"], %s, 1, '
        '(ctypes.c_uint64 * 2)(4096, 1), 1, 0)' % IOV, "ESRCH", control="EFAULT"),
    Row("proc_of_host", 'os.path.exists("/proc/%d" % C["victim"])', "False", control="True"),
    Row("environ_of_host", 'C["mark"].encode() in read("/proc/%d/environ" % C["victim"])', "ENOENT", control="True"),
    Row("mem_of_host", 'os.close(os.open("/proc/%d/mem" % C["victim"], os.O_RDWR))', "ENOENT", control="OK"),
    Row("root_of_host", 'os.close(os.open("/proc/%d/root/" % C["victim"], os.O_RDONLY))', "ENOENT", control="OK"),
    Row("only_our_processes", 'sorted(set(filter(str.isdigit, os.listdir("/proc"))) - {str(os.getpid()), str(os.getppid())})',
        "[]"),

    Row("proc_1_hidden", 'errors_of([lambda n=n: os.lstat("/proc/1/" + n) for n in "mem environ root exe cwd fd maps '
        'ns/mnt ns/user status task map_files".split()])', "ENOENT"),
    Row("proc_1_by_thread", 'os.listdir("/proc/1/task/1")', "ENOENT"),
    Row("kill_1", 'os.kill(1, signal.SIGKILL)', ("OK", "EPERM")),
    Row("stop_1", 'os.kill(1, signal.SIGSTOP)', ("OK", "EPERM")),
    Row("segv_1", 'os.kill(1, signal.SIGSEGV)', ("OK", "EPERM")),
    Row("term_1", 'os.kill(1, signal.SIGTERM)', ("OK", "EPERM")),
    Row("trace_1", 'call("ptrace", 0x4206, 1, 0, 0)', "EPERM"),
    Row("attach_1", 'call("ptrace", 16, 1, 0, 0)', "EPERM"),
    Row("read_memory_of_1", 'buf = ctypes.create_string_buffer(8)\nreturn call("process_vm_readv", 1, %s, 1, '
        '(ctypes.c_uint64 * 2)(4096, 1), 1, 0)' % IOV, "EPERM"),
    Row("write_memory_of_1", 'buf = ctypes.create_string_buffer(8)\nreturn call("process_vm_writev", 1, %s, 1, '
        '(ctypes.c_uint64 * 2)(4096, 1), 1, 0)' % IOV, "EPERM"),
    Row("descriptor_of_1", 'call("pidfd_getfd", os.pidfd_open(1), 3, 0)', "EPERM"),
    Row("priority_of_1", 'os.setpriority(os.PRIO_PROCESS, 1, 19)', ("OK", "EPERM", "EACCES")),
    Row("parent_is_inside", '[l.split()[1] for l in open("/proc/%d/status" % os.getppid()) if l.startswith("PPid")]',
        ("['1']", "['0']")),
    Row("own_session", 'os.getsid(0) == os.getppid()', "True"),
    Row("no_terminal", 'os.tcgetpgrp(0)', "ENOTTY"),

    Row("nice", 'os.nice(-1)', ("EPERM", "EACCES")),
    Row("real_time", 'os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))', "EPERM"),
    Row("real_time_io", 'call(251 if X86 else 30, 1, 0, 1 << 13 | 4)', "EPERM"),
    Row("lock_much_memory", 'm = mmap.mmap(-1, 4 << 20)\nif libc.mlockall(3): return errno.errorcode[ctypes.get_errno()]',
        ("ENOMEM", "EPERM", "EAGAIN")),
    Row("may_trace_itself", 'call("ptrace", 0, 0, 0, 0)', "0"),

    Row("sysv_shm_of_host", 'r = libc.shmget(C["shm_key"], 0, 0)\nreturn "found" if r >= 0 else errno.errorcode[ctypes.get_errno()]',
        "ENOENT", control="found"),
    Row("sysv_msg_of_host", 'r = libc.msgget(C["shm_key"], 0)\nreturn "found" if r >= 0 else errno.errorcode[ctypes.get_errno()]',
        "ENOENT", control="found"),
    Row("sysv_lists", '[len(open("/proc/sysvipc/" + n).readlines()) for n in ("shm", "msg", "sem")]', "[1, 1, 1]"),
    Row("posix_shm_of_host", 'os.close(os.open(C["posix_shm"], os.O_RDWR))', "ENOENT", control="OK"),
    Row("host_name", 'os.uname().nodename', "sandbox"),
    Row("domain_name", 'socket.getfqdn() in ("sandbox", "localhost")', "True"),
    Row("namespaces_are_new",
        '[n for n in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup") if os.readlink("/proc/self/ns/" + n) == C["ns"][n]]',
        "[]", control="['user', 'mnt', 'pid', 'net', 'ipc', 'uts', 'cgroup']"),
]


# What a neighbour offers to everybody on "its" machine; it lives until its input ends.
NEIGHBOUR = r"""
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
tcp = socket.create_server(("127.0.0.1", int(sys.argv[2])))
a = socket.socket(socket.AF_UNIX); a.bind("\0" + sys.argv[1]); a.listen()
u = socket.socket(socket.AF_UNIX); u.bind("/tmp/" + sys.argv[1]); u.listen()
open("/dev/shm/" + sys.argv[1], "w").write(sys.argv[1])
open("/workspace/" + sys.argv[1], "w").write(sys.argv[1])
assert libc.shmget(0x5bc0de, 4096, 0o1666) >= 0
print("up", os.getpid(), open("/proc/self/uid_map").read().split()[1], flush=True)
sys.stdin.read()
for s in (tcp, a, u):
    s.setblocking(False)
    try:
        s.accept()
        print("visited")
    except BlockingIOError:
        pass
print("alive")
"""

neighbour = [
    Row("signal", 'os.kill(C["pid"], 0)', "ESRCH"),
    Row("signal_by_inner_number", 'os.kill(C["inner"], 0) if C["inner"] not in (os.getppid(), os.getpid()) else 1/0', ("ESRCH", "ZeroDivisionError: division by zero")),
    Row("trace", 'call("ptrace", 0x4206, C["pid"], 0, 0)', "ESRCH"),
    Row("environ", 'read("/proc/%d/environ" % C["pid"])', "ENOENT"),
    Row("tcp", 'connect(socket.AF_INET, ("127.0.0.1", C["port"]))', "ECONNREFUSED"),
    Row("abstract", 'connect(socket.AF_UNIX, "\\0" + C["name"])', ("ECONNREFUSED", "EPERM")),
    Row("unix", 'connect(socket.AF_UNIX, "/tmp/" + C["name"])', "ENOENT"),
    Row("shm_file", 'read("/dev/shm/" + C["name"])', "ENOENT"),
    Row("workspace", 'read("/workspace/" + C["name"])', "ENOENT"),
    Row("sysv_shm", 'r = libc.shmget(0x5bc0de, 0, 0)\nreturn "found" if r >= 0 else errno.errorcode[ctypes.get_errno()]', "ENOENT"),
    Row("same_name_is_free", 's1 = socket.socket(socket.AF_UNIX)\ns1.bind("\\0" + C["name"])', "OK"),
    Row("same_port_is_free", 'socket.create_server(("127.0.0.1", C["port"])).close()', "OK"),
]

KILL_ALL = r"""
import os, signal
for p in (-1, 1, 2, os.getppid()):
    try: p == os.getpid() or os.kill(p, signal.SIGKILL)
    except OSError: pass
for p in range(2, 70000):
    if p != os.getpid():
        try: os.kill(p, signal.SIGSTOP)
        except OSError: pass
"""

DESCRIPTORS = r"""
import os
print(sorted(map(int, os.listdir("/proc/self/fd"))))
print([os.readlink("/proc/self/fd/%d" % n).split(":")[0] for n in (0, 1, 2)])
print(os.getcwd(), os.path.exists("/proc/self/fd/../../1/root/usr"))
for n in range(3, 1024):
    try: os.fstat(n); print("LEAK", n, os.readlink("/proc/self/fd/%d" % n))
    except OSError: pass
"""


def stopped():
    """Processes of the host that are stopped now."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if contents("/proc/%s/stat" % pid).rsplit(b")", 1)[1].split()[0] == b"T":
                found.add(pid)
        except OSError:
            pass
    return found


class Neighbours(Attempts):
    """Two runs of one user at the same time."""

    def neighbour(self, trust="standard"):
        name = "neighbour-" + os.urandom(6).hex()
        r = self.m.submit({"command": ["python3", "-c", NEIGHBOUR, name, "18765"], "spec_version": "1.1",
                           "interactive": True, "timeout_sec": 55, "trust_level": trust})
        _, inner, uid = r.stream_until(b"\n").decode().split()
        r.canary = {"name": name, "port": 18765, "inner": int(inner), "mark": name, "uid": int(uid)}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if name.encode() in contents("/proc/%s/cmdline" % pid):
                    r.canary["pid"] = int(pid)
            except OSError:
                pass
        self.assertIn("pid", r.canary)
        return r

    def let_go(self, r):
        r.ctl("eof")
        self.assertEqual((r.wait(), r.stdout.splitlines()[1:]), ("0", [b"alive"]), r.stderr)

    def reach(self, trust):
        """The rows, against a living neighbour."""
        if trust not in levels(self.m):
            self.skipTest("no %s sandbox here" % trust)
        r = self.neighbour(trust)
        try:
            other = self.m.run(batch_spec(neighbour, r.canary, trust_level=trust))
            found = parse(other.stdout)
            for row in neighbour:
                with self.subTest(row.name):
                    self.assertIn(found.get(row.name), row.expect, other.stderr)
        finally:
            self.let_go(r)

    def test_neighbour_standard(self):
        self.reach("standard")

    def test_neighbour_untrusted(self):
        self.reach("untrusted")

    def test_users_differ(self):
        if not sbx.ROOT:
            self.skipTest("only root's sandboxes have users of their own")
        a, b = self.neighbour(), self.neighbour()
        try:
            self.assertNotEqual(a.canary["uid"], b.canary["uid"])
            for r in (a, b):
                self.assertTrue(1879048192 <= r.canary["uid"] < 1879048192 + 65536)
                self.assertEqual(os.stat("/proc/%d" % r.canary["pid"]).st_uid, r.canary["uid"])
        finally:
            self.let_go(a)
            self.let_go(b)

    def test_kill_everybody(self):
        r, before = self.neighbour(), stopped()
        try:
            killer = self.m.run({"command": ["python3", "-c", KILL_ALL], "timeout_sec": 20})
            self.assertEqual((killer.exit, killer.status()), ("0", "completed"), killer.stderr)
            self.assertEqual(stopped() - before, set())
            suicide = self.m.run({"command": ["sh", "-c", "sleep 60 & kill -9 0"]})
            self.assertEqual((suicide.exit, suicide.json()["status_reason_code"]), ("137", "nonzero_exit"))
        finally:
            self.let_go(r)
        self.assertIsNone(self.m.proc.poll())

    def test_inotify_of_the_host_remains(self):
        """All that a sandbox may watch, taken; the service's user can still watch."""
        r = self.m.submit({"command": ["python3", "-c", "import ctypes, sys\nlibc = ctypes.CDLL(None)\nn = 0\n"
                                       "while libc.inotify_init1(0) >= 0: n += 1\n"
                                       "print(n, flush=True)\nsys.stdin.read()"],
                           "spec_version": "1.1", "interactive": True, "timeout_sec": 55})
        try:
            self.assertGreater(int(r.stream_until(b"\n")), 0)
            if sbx.ROOT:
                fds = [sbx.libc.inotify_init1(0o2000000) for _ in range(8)]
                for fd in fds:
                    if fd >= 0:
                        os.close(fd)
                self.assertTrue(all(fd >= 0 for fd in fds), fds)
            self.assertEqual(self.m.run({"command": ["echo", "ok"]}).stdout, b"ok\n")
        finally:
            r.ctl("eof")
            self.assertEqual(r.wait(), "0")

    def test_descriptors(self):
        runs = [self.m.submit({"command": ["python3", "-c", DESCRIPTORS], **more})
                for more in ({}, {"trust_level": levels(self.m)[-1]}, {"stdin_b64": "eA=="}, {"cwd": "a/b"})]
        for r, cwd, first in zip(runs, (b"", b"", b"", b"/a/b"), (b"/dev/null", b"/dev/null", b"pipe", b"/dev/null")):
            self.assertEqual(r.wait(), "0", r.stderr)
            self.assertEqual(r.stdout.splitlines(), [
                b"[0, 1, 2, 3]", b"['%s', 'pipe', 'pipe']" % first, b"/workspace" + cwd + b" False"])

    def test_cwd_cannot_be_outside(self):
        for cwd in ("/proc/self/fd/3", "/proc/self/fd/7", "/proc/1/root", "/proc/1/cwd", "/proc/self/root",
                    "/proc/self/cwd", "/proc/thread-self/fd/3", "/dev/fd/3", self.m.state, self.canary["base"]):
            with self.subTest(cwd):
                r = self.m.run({"command": ["pwd"], "cwd": cwd})
                self.assertEqual((r.status(), r.stdout), ("failed", b""))
                self.assertEqual(r.json()["status_reason_code"], "runtime_error")
        for cwd in ("..", "../..", "a/../../b", "/workspace/../etc"):
            with self.subTest(cwd), self.assertRaises(sbx.Refused) as c:
                self.m.submit({"command": ["pwd"], "cwd": cwd})
            self.assertEqual(c.exception.code, "invalid_spec")

    def test_cwd_planted_by_files(self):
        """A file put where the cwd should be."""
        r = self.m.run({"command": ["pwd"], "cwd": "x/y", "files": [{"path": "x", "content_b64": ""}]})
        self.assertEqual((r.status(), r.stdout), ("failed", b""))

    def test_zz_canaries_untouched(self):
        self.check_canaries()


Processes = group("Processes", processes)

if __name__ == "__main__":
    sbx.main()
