# SPDX-License-Identifier: Apache-2.0
# run: alone, limit=240
"""Resource abuse: each way to take more than one's share ends with the right reason, leaves no process and no
control group, and neither the mount nor the server notices."""
import errno
import glob
import os
import select
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from escape import contents, levels, sbx, space  # noqa: E402

MIB = 1 << 20
LOG_CAP = 4 * MIB
GROUP = "sbx-abuse-%d" % os.getpid()
SETTINGS = {"cancel_grace_seconds": 1, "warm_runners": 0, "max_log_bytes": LOG_CAP, "cgroup_root": "/" + GROUP}
PIDS, MEMORY, SPACE = ("the limit of 64 processes", "the memory limit of 64 MiB", "the workspace limit of 64 MiB")
TIMED_OUT = ("timed_out", "execution_timeout", "")


def limits(phase, sentence):
    return (phase, "limits_applied", sentence)


# What each program runs before it: nothing but names.
PRELUDE = """
import ctypes, errno, mmap, os, resource, select, signal, socket, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def deaf():
    for s in range(1, 65):
        try: signal.signal(s, signal.SIG_IGN)
        except (OSError, ValueError): pass
def until_error(make):
    held = []
    while True:
        try: held.append(make())
        except OSError as e: return held, errno.errorcode[e.errno]
"""

BOMB = "while True:\n  try: os.fork()\n  except OSError: time.sleep(0.01)"
TCP_HOG = """
held = []
for _ in range(100):
    s = socket.create_server(("127.0.0.1", 0)); c = socket.create_connection(s.getsockname()); a, _ = s.accept(); s.close()
    held += [c, a]
    for x in (c, a):
        x.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20); x.setblocking(False)
        try:
            while True: x.send(bytes(65536))
        except BlockingIOError: pass
print(int(open("/proc/net/sockstat").read().split("mem ")[1].split()[0]) * 4096)
"""


class Abuse:
    """One program. expect is (phase, reason, part of the message); check(test, run) says more."""

    def __init__(self, name, code, expect, check=None, sh=False, seconds=50, memory=64, **spec):
        self.name, self.expect, self.check = name, expect, check
        self.command = ["bash", "-c", code] if sh else ["python3", "-c", PRELUDE + code]
        self.spec = dict({"trust_level": "untrusted", "timeout_sec": seconds, "resources": {"memory_mb": memory}}, **spec)

    def submit(self, m, marker):
        return m.submit(dict(self.spec, command=self.command + [marker]))


def pids_hit(t, r):
    t.assertEqual(r.usage.get("pids_limit_hit"), 1)


def log_is_capped(t, r):
    t.assertEqual(len(r.log), LOG_CAP)
    t.assertEqual([f["reason"] for f in r.frames() if f["type"] == "truncated"], ["log_cap"])
    t.assertEqual(r.usage["log_truncated"], 1)


def printed(pattern):
    def check(t, r):
        t.assertRegex(r.stdout.decode(), pattern)
    return check


def at_most(limit):
    """It printed how much it got."""
    def check(t, r):
        t.assertLessEqual(int(r.stdout.split()[0]), limit)
        t.assertGreater(int(r.stdout.split()[0]), 0)
    return check


forks = [
    Abuse("fork", BOMB, TIMED_OUT, pids_hit, seconds=2),
    Abuse("fork_deaf_in_sessions",
          "deaf()\nwhile True:\n  try:\n    if os.fork() == 0:\n      os.setsid()\n      if os.fork(): os._exit(0)\n"
          "  except OSError: time.sleep(0.01)", TIMED_OUT, pids_hit, seconds=2),
    Abuse("fork_of_bash", "b() { b | b & }; b 2>/dev/null; exec sleep 40", TIMED_OUT, pids_hit, sh=True, seconds=2),
    Abuse("exec_chain", "while True:\n  try:\n    if os.fork() == 0: os.execv(sys.executable, [sys.executable, '-c', "
          "'import time; time.sleep(40)', sys.argv[1]])\n  except OSError: sys.exit(7)",
          limits("failed", PIDS), pids_hit, memory=1024),
    Abuse("threads", "while True: threading.Thread(target=time.sleep, args=(40,), daemon=True).start()",
          limits("failed", PIDS), pids_hit),
    Abuse("zombies", "while True:\n  try:\n    if os.fork() == 0: os._exit(0)\n  except OSError: sys.exit(7)",
          limits("failed", PIDS), pids_hit),
    Abuse("orphans_are_reaped", "for i in range(300):\n  if os.fork() == 0:\n    if os.fork() == 0: os._exit(0)\n"
          "    os._exit(0)\n  os.wait()\nprint('ok')", ("completed", "completed", ""), printed("^ok$")),
]
memory = [
    Abuse("slow", "held = []\nwhile True: held.append(bytearray(b'x' * (1 << 20))); time.sleep(0.001)",
          limits("failed", MEMORY)),
    Abuse("one_shot", "x = b'x' * (512 << 20)", limits("failed", MEMORY)),
    Abuse("child_dies_parent_is_well", "import subprocess\nrc = subprocess.run([sys.executable, '-c', \"x = b'x' * (512 << 20)\"])"
          ".returncode\nprint(rc)", limits("completed", MEMORY), printed("^-9$")),
    Abuse("kill_9_is_not_memory", "os.kill(os.getpid(), 9)", ("failed", "nonzero_exit", "killed by signal 9")),
    Abuse("tmpfs", "f = open('/tmp/f', 'wb')\nwhile True: f.write(bytes(1 << 20))", limits("failed", MEMORY)),
    Abuse("tmpfs_by_small_processes", "head -c 100000000 /dev/zero > /tmp/f; head -c 100000000 /dev/zero > /dev/shm/g; exit 3",
          limits("failed", MEMORY), sh=True),
    Abuse("shared_memory", "m = mmap.mmap(-1, 512 << 20)\nfor i in range(0, len(m), 4096): m[i] = 1", limits("failed", MEMORY)),
    Abuse("memfd", "fd = os.memfd_create('x')\nwhile True: os.write(fd, bytes(1 << 20))", limits("failed", MEMORY)),
    Abuse("pipes", "import fcntl\ndef fill():\n  r, w = os.pipe(); fcntl.fcntl(w, 1031, 1 << 20); os.set_blocking(w, False)\n"
          "  try:\n    while True: os.write(w, bytes(1 << 16))\n  except BlockingIOError: return r, w\n"
          "until_error(fill)\nsys.exit(7)", limits("failed", MEMORY)),
    Abuse("unix_sockets", "def fill():\n  a, b = socket.socketpair()\n  a.setblocking(False)\n"
          "  try:\n    while True: a.send(bytes(1 << 16))\n  except BlockingIOError: return a, b\n"
          "os.fork(); os.fork()\nheld = until_error(fill)\n"
          # At the limit the kernel may refuse a buffer and kill nobody. No room is left for anything else then.
          "x = b'x' * (16 << 20)\nsys.exit(7)", limits("failed", MEMORY)),
    Abuse("tcp_buffers", TCP_HOG, ("completed", "completed", ""), at_most(80 * MIB)),
    Abuse("page_tables", "m = mmap.mmap(-1, 1 << 40, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)\n"
          "for i in range(0, len(m), 2 << 20): m[i]", limits("failed", MEMORY)),
]
output = [
    Abuse("no_newline", "for _ in range(100): os.write(1, b'k' * (1 << 20))\nos.write(2, b'err')",
          limits("completed", ""), log_is_capped),
    Abuse("one_write", "os.write(1, b'h' * (11 << 20))\nopen('/dev/stdout', 'wb').write(b'h' * (11 << 20))",
          limits("completed", ""), log_is_capped),
    Abuse("single_bytes", "for _ in range(100000): os.write(1, b'x')", ("completed", "completed", ""),
          lambda t, r: t.assertEqual(len(r.log), 100000)),
    Abuse("binary", "data = os.urandom(1 << 20)\nfor _ in range(16): os.write(1, data); os.write(2, data)",
          limits("completed", ""), log_is_capped),
    Abuse("empty_lines", "for _ in range(300): os.write(1, b'\\n' * 65536)", limits("completed", ""), log_is_capped),
    Abuse("for_ever", "yes \"$0\"", TIMED_OUT, log_is_capped, sh=True, seconds=2),
    Abuse("early_then_stuck", "print('early', flush=True); time.sleep(60)", TIMED_OUT, printed("^early$"), seconds=1),
    Abuse("failure_wins_over_the_cap", "os.write(1, b'k' * (8 << 20)); sys.exit(3)", ("failed", "nonzero_exit", ""), log_is_capped),
]
disk = [
    Abuse("data", "f = open('big', 'wb', 0)\nwhile True: f.write(bytes(1 << 20))", limits("failed", SPACE), memory=512,
          capture_patterns=["big"]),
    Abuse("inodes", "i = 0\nwhile True: open('n%d' % i, 'w').close(); i += 1", limits("failed", SPACE), memory=512,
          capture_patterns=["n1"]),
    Abuse("links", "i = 0\nwhile True: os.symlink('x' * 4000, 'l%d' % i); i += 1", limits("failed", SPACE), memory=512),
    Abuse("directories", "i = 0\nwhile True:\n  os.mkdir('d%d' % i)\n  if i % 100: os.chdir('d%d' % i)\n"
          "  else: os.chdir('/workspace')\n  i += 1", limits("failed", SPACE), memory=512),
    Abuse("sparse", "f = open('hole', 'w'); f.truncate(1 << 40); f.close()\nprint(os.stat('hole').st_blocks)",
          limits("completed", ""), printed("^0$"), capture_patterns=["hole"]),
    Abuse("preallocated", "try: os.posix_fallocate(os.open('f', os.O_CREAT | os.O_RDWR), 0, 1 << 40)\n"
          "except OSError as e: print(errno.errorcode[e.errno]); sys.exit(7)", ("failed", "nonzero_exit", ""), printed("^ENOSPC$")),
    Abuse("deleted_but_open", "fd = os.open('f', os.O_CREAT | os.O_RDWR); os.unlink('f')\ntry:\n  while True: os.write(fd, bytes(1 << 20))\n"
          "except OSError as e: print(errno.errorcode[e.errno]); sys.exit(7)", ("failed", "nonzero_exit", ""), printed("^ENOSPC$"),
          memory=512),
]
exhaustion = [
    Abuse("descriptors", "held, why = until_error(lambda: os.open('/dev/null', 0))\nprint(len(held), why)",
          ("completed", "completed", ""), printed(r"^2\d\d EMFILE$")),
    Abuse("descriptors_raise", "try: resource.setrlimit(resource.RLIMIT_NOFILE, (100000, 100000))\nexcept ValueError: print('no')",
          ("completed", "completed", ""), printed("^no$")),
    Abuse("timers", "def timer():\n  t = ctypes.c_void_p()\n  if libc.timer_create(1, None, ctypes.byref(t)): raise OSError(ctypes.get_errno(), '')\n"
          "held, why = until_error(timer)\nprint(len(held), why)", ("completed", "completed", ""), at_most(4096)),
    Abuse("inotify", "def watch():\n  fd = libc.inotify_init1(0)\n  if fd < 0: raise OSError(ctypes.get_errno(), '')\n"
          "held, why = until_error(watch)\nprint(len(held), why)", ("completed", "completed", ""), at_most(256)),
    Abuse("queued_signals", "signal.pthread_sigmask(signal.SIG_BLOCK, [40])\ndef queue():\n"
          "  if libc.sigqueue(os.getpid(), 40, None): raise OSError(ctypes.get_errno(), '')\n"
          "held, why = until_error(queue)\nprint(len(held), why)", ("completed", "completed", ""), at_most(4096)),
    Abuse("message_queues", "rt = ctypes.CDLL('librt.so.1', use_errno=True)\ni = 0\ndef mq():\n  global i; i += 1\n"
          "  r = rt.mq_open(b'/q%d' % i, os.O_CREAT | os.O_RDWR, 0o600, None)\n"
          "  if r < 0: raise OSError(ctypes.get_errno(), '')\n  return r\nheld, why = until_error(mq)\nprint(len(held), why)",
          ("completed", "completed", ""), printed(r"^(0 EACCES|[1-9] EMFILE)$")),
    Abuse("terminals", "held, why = until_error(os.openpty)\nprint(len(held), why)", ("completed", "completed", ""), at_most(64)),
    Abuse("locked_memory", "m = mmap.mmap(-1, 16 << 20)\na = ctypes.addressof(ctypes.c_char.from_buffer(m))\n"
          "print(libc.mlock(ctypes.c_void_p(a), ctypes.c_size_t(16 << 20)))", ("completed", "completed", ""), printed("^-1$")),
]
stuck = [
    Abuse("stopped_tree", "for _ in range(5):\n  if os.fork() == 0: os.kill(os.getpid(), 19); time.sleep(60)\nos.kill(os.getpid(), 19)\ntime.sleep(60)",
          TIMED_OUT, seconds=1),
    Abuse("stopped_and_deaf", "deaf()\nfor _ in range(5):\n  if os.fork() == 0:\n    while True: os.kill(os.getpid(), 19)\n"
          "while True: os.kill(os.getpid(), 19)", TIMED_OUT, seconds=1),
    Abuse("traced_and_stopped", "deaf()\nif os.fork() == 0:\n  libc.ptrace(0, 0, 0, 0); os.kill(os.getpid(), 19)\ntime.sleep(60)", TIMED_OUT,
          seconds=1),
    Abuse("spin", "deaf()\nos.fork(); os.fork()\nwhile True: pass", TIMED_OUT, seconds=1),
    Abuse("sleep_past_the_end", "deaf()\nwhile True: time.sleep(60)", TIMED_OUT, seconds=1),
    Abuse("leader_thread_gone", "deaf()\nthreading.Thread(target=time.sleep, args=(60,)).start()\nlibc.syscall(60, 0)", TIMED_OUT, seconds=1),
    Abuse("background_keeps_the_pipes", "deaf()\nif os.fork() == 0:\n  os.setsid(); time.sleep(60)\nprint('gone')",
          ("completed", "completed", ""), printed("^gone$")),
    Abuse("input_nobody_reads", "time.sleep(60)", TIMED_OUT, seconds=1, stdin_b64="eHh4" * (MIB // 4)),
]


def our_groups():
    """The directories of the control groups that this file's runs get, in every hierarchy."""
    return glob.glob("/sys/fs/cgroup/" + GROUP) + glob.glob("/sys/fs/cgroup/*/" + GROUP)


def leaves():
    return [d.path for g in our_groups() for d in os.scandir(g) if d.is_dir()]


def command_line(pid):
    try:
        return contents("/proc/%d/cmdline" % pid)
    except OSError:
        return b""


def named(marker):
    """Processes of the host whose command line has the word."""
    return [int(pid) for pid in filter(str.isdigit, os.listdir("/proc")) if marker.encode() in command_line(int(pid))]


def memory_of(pid, field):
    with open("/proc/%d/status" % pid) as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith(field))


def start_mount(**more):
    # Sanitizers keep what was freed for a while, and newer ones the stacks of calls that have returned,
    # which is not what is measured here.
    asan = os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=1:detect_stack_use_after_return=0"
    m = sbx.Mount(settings=dict(SETTINGS, **more), env={"ASAN_OPTIONS": asan})
    return m.start()


def members_of(group):
    """Its processes; none when it is removed while we look."""
    try:
        return [int(pid) for pid in contents(group + "/cgroup.procs").split()]
    except OSError as e:
        if e.errno not in (errno.ENOENT, errno.ENODEV):
            raise
        return []


class Abused(sbx.unittest.TestCase):
    """What must hold after every group: nothing is left, and the server is as small as before."""
    settings = {}

    @classmethod
    def setUpClass(cls):
        cls.m = start_mount(**cls.settings)
        cls.addClassCleanup(cls.clean)
        if "untrusted" not in levels(cls.m):
            raise sbx.unittest.SkipTest("no untrusted sandbox here: memory and processes cannot be limited")
        cls.m.run({"command": ["echo", "ok"]})
        cls.rss = memory_of(cls.m.proc.pid, "VmRSS")
        with open("/proc/%d/clear_refs" % cls.m.proc.pid, "w") as f:
            f.write("5")  # the peak counts from here
        cls.disk = space(cls.m.state)

    @classmethod
    def clean(cls):
        cls.m.close()
        left = leaves()
        for g in left + our_groups():
            os.rmdir(g)
        assert not left, "control groups left: %s" % left

    def wait_no_strangers(self):
        """In our control groups there are only runners and the sandboxes that wait for work, all of one
        command line; anything else is waited for by its descriptor, and not for long."""
        end = time.monotonic() + 20 * sbx.SLOW
        while True:
            members = {pid for leaf in leaves() for pid in members_of(leaf)}
            left = sorted(members - set(self.m.processes()))
            if not left:
                return
            self.assertLess(time.monotonic(), end, "still there: %s" % [(p, command_line(p)) for p in left])
            try:
                fd = os.pidfd_open(left[0])
            except ProcessLookupError:
                continue
            try:
                select.select([fd], [], [], max(0, end - time.monotonic()))
            finally:
                os.close(fd)

    def judge(self, case, r):
        r.wait(60)
        self.assertEqual(named(r.marker), [])
        doc = r.json()
        r.usage = doc["resource_usage"]
        phase, reason, sentence = case.expect
        self.assertEqual((doc["phase"], doc["status_reason_code"]), (phase, reason), (doc["message"], r.stderr[-300:]))
        self.assertIn(sentence, doc["message"] or "")
        if case.check:
            case.check(self, r)

    def nothing_left(self):
        self.wait_no_strangers()
        self.assertLess(memory_of(self.m.proc.pid, "VmHWM") - self.rss, 32 * MIB)
        after = self.m.run({"command": ["echo", "ok"]})
        self.assertEqual((after.exit, after.stdout), ("0", b"ok\n"))
        self.assertIsNone(self.m.proc.poll())


def group(name, cases, extra=None):
    """All of them at once, as many as have room; then each is a test of its own."""
    def start(cls):
        Abused.setUpClass.__func__(cls)
        cls.runs = {}
        for case in cases:
            marker = "abuse-%s-%s" % (case.name, os.urandom(6).hex())
            cls.runs[case.name] = case.submit(cls.m, marker)
            cls.runs[case.name].marker = marker

    tests = {"test_" + c.name: (lambda self, c=c: self.judge(c, self.runs[c.name])) for c in cases}
    tests["test_zz_nothing_left"] = Abused.nothing_left
    return type(name, (Abused,), dict(tests, setUpClass=classmethod(start),
                                      settings={"max_concurrent_runs": 4, "queue_ttl_sec": 600}, **(extra or {})))


def state_is_small(self):
    """After all that filling, the state directory has not grown by more than what may be kept."""
    for run in self.runs.values():
        run.wait(60)
    self.assertLess(space(self.m.state) - self.disk, 160 * MIB)
    r = self.m.run({"command": ["ls", "-A"]})
    self.assertEqual((r.exit, r.stdout), ("0", b""))


def stdin_flood(self):
    """Input has its limit, whoever reads it; and none is taken after the end."""
    r = self.m.submit({"command": ["sh", "-c", "echo up; sleep 60"], "spec_version": "1.1", "interactive": True,
                       "stdin_max_bytes": MIB, "stdin_max_frame_bytes": 65536, "timeout_sec": 50})
    r.stream_until(b"up\n")
    with open(r.path("stdin"), "wb", buffering=0) as f:
        with self.assertRaises(OSError) as c:
            f.write(bytes(65537))
        self.assertEqual(c.exception.errno, errno.EFBIG)
        for _ in range(16):
            f.write(bytes(65536))
        with self.assertRaises(OSError) as c:
            f.write(b"x")
        self.assertEqual(c.exception.errno, errno.ENOSPC)
        r.ctl("kill")
        self.assertEqual(r.wait(), "killed")
        with self.assertRaises(OSError):
            f.write(b"x")
    self.assertEqual(r.json()["status_reason_code"], "canceled_by_user")


def cancel_stopped(self):
    """A tree that is stopped dies of a cancel as of a kill."""
    for word in ("cancel", "kill"):
        marker = "abuse-cancel-" + os.urandom(6).hex()
        r = self.m.submit({"command": ["python3", "-c", PRELUDE + "deaf()\nos.fork(); os.fork()\nos.write(1, b'u')\n"
                                       "while True: os.kill(os.getpid(), 19)", marker], "timeout_sec": 50})
        r.stream_until(b"uuuu")
        r.ctl(word)
        self.assertEqual((r.wait(), r.json()["status_reason_code"]), ("killed", "canceled_by_user"))
        self.assertEqual(named(marker), [])


Forks = group("Forks", forks)
Memory = group("Memory", memory)
Output = group("Output", output)
Disk = group("Disk", disk, {"test_state_is_small": state_is_small})
Exhaustion = group("Exhaustion", exhaustion)
Stuck = group("Stuck", stuck, {"test_stdin_flood": stdin_flood, "test_cancel_stopped": cancel_stopped})


class Storm(Abused):
    """Ten of each of four kinds at once, while somebody looks at the mount."""
    settings = {"max_concurrent_runs": 8, "queue_max_length": 100, "queue_ttl_sec": 600}
    kinds = {
        "fork": Abuse("fork", BOMB, TIMED_OUT, seconds=2),
        "memory": Abuse("memory", "x = b'x' * (512 << 20)", limits("failed", MEMORY), seconds=30),
        "output": Abuse("output", "while True: os.write(1, b'k' * 65536)", TIMED_OUT, seconds=2),
        "disk": Abuse("disk", "f = open('big', 'wb', 0)\nwhile True: f.write(bytes(1 << 20))", limits("failed", SPACE),
                      memory=256, seconds=30),
    }

    def look(self, runs, stop, found):
        """Asks for attributes without rest, with a moment between, and keeps the longest time."""
        paths = [os.path.join(self.m.mnt, n) for n in ("", "README", "runs")] + [r.path("status") for r in runs]
        while not stop.wait(0.02):
            for path in paths:
                begin = time.monotonic()
                try:
                    os.stat(path)
                except OSError as e:
                    found["error"] = "%s: %s" % (path, e)
                took = time.monotonic() - begin
                if took > found["longest"]:
                    found["longest"], found["path"] = took, path

    def test_storm(self):
        runs = []
        for _ in range(10):
            for kind, case in self.kinds.items():
                marker = "abuse-%s-%s" % (kind, os.urandom(6).hex())
                r = case.submit(self.m, marker)
                r.marker, r.case = marker, case
                runs.append(r)
        stop, found = threading.Event(), {"longest": 0.0, "path": "", "error": None}
        looker = threading.Thread(target=self.look, args=(runs, stop, found))
        looker.start()
        try:
            for r in runs:
                self.judge(r.case, r)
        finally:
            stop.set()
            looker.join()
        print("# longest stat during the storm: %.3f s (%s)" % (found["longest"], found["path"]))
        self.assertIsNone(found["error"])
        self.assertLess(found["longest"], max(1.0, sbx.SLOW / 2))

    def test_zz_nothing_left(self):
        self.nothing_left()


if __name__ == "__main__":
    sbx.main()
