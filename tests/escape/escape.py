# SPDX-License-Identifier: Apache-2.0
"""What the escape tests share: things on the host that no sandbox may reach or change (canaries), and tests
made from rows. A row is a small program and the exact way in which it must fail inside a sandbox; where it
has a `control`, the same program outside must end with that, so that a row cannot pass by being wrong."""
import base64
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../lib"))
import sbx  # noqa: E402

# The runtime whose sandboxes are tried, and what it needs to be set.
RUNTIME = os.environ.get("SBX_ESCAPE_RUNTIME", "namespace")
BOTH = ("standard",) if RUNTIME == "worktree" else ("standard", "untrusted")
RUNTIME_SETTINGS = {"default_runtime": RUNTIME, **{
    "worktree": {"worktree_deny_all": "true"},
}.get(RUNTIME, {})}


class Row:
    def __init__(self, name, code, expect, control=None, trust=BOTH):
        self.name, self.code, self.control, self.trust = name, code, control, trust
        self.expect = expect if isinstance(expect, tuple) else (expect,)


def contents(path):
    with open(path, "rb") as f:
        return f.read()


def fingerprint(path):
    """All that would change if somebody had touched it."""
    st = os.lstat(path)
    what = (sorted(os.listdir(path)) if os.path.isdir(path)
            else hashlib.sha256(contents(path)).hexdigest())
    return (st.st_ino, st.st_mode, st.st_uid, st.st_gid, st.st_size, st.st_mtime_ns, st.st_nlink, what)


def space(path):
    """What a tree takes on its disk, in bytes; what goes away meanwhile counts nothing."""
    total = 0
    for where, _, files in os.walk(path):
        for name in files:
            try:
                total += os.lstat(os.path.join(where, name)).st_blocks * 512
            except FileNotFoundError:
                pass
    return total


def host_address(family, probe):
    """This host's own address towards the outside; no packet is sent."""
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        try:
            s.connect((probe, 9))
            return s.getsockname()[0]
        except OSError:
            return None


class Canaries:
    SYSCTLS = ("kernel/core_pattern", "kernel/hostname", "kernel/sysrq", "vm/overcommit_memory",
               "kernel/domainname", "kernel/printk", "net/ipv4/ip_forward", "kernel/modprobe")

    def __init__(self):
        self.mark = "canary" + os.urandom(12).hex()
        self.dirs, self.watched, self.listeners, self.before = [], [], [], {}
        self.victim = self.shm = self.msg = None
        try:
            self.make()
        except BaseException:
            self.close()
            raise

    def make(self):
        home = next(d for d in ("/srv", "/opt", "/var/lib", "/var/tmp") if os.access(d, os.W_OK))
        self.base = self.directory(home, 0o755)
        self.c = {"mark": self.mark, "base": self.base,
                  "ns": {n: os.readlink("/proc/self/ns/" + n) for n in os.listdir("/proc/self/ns")}}
        self.make_files()
        self.make_usr()
        self.make_sockets()
        self.make_ipc()
        self.victim = subprocess.Popen(["sleep", "100000"], env={"MARK": self.mark, "PATH": os.environ["PATH"]})
        self.c["victim"] = self.victim.pid
        for binary in (sbx.SANDBOXFS, os.path.join(os.path.abspath(sbx.BUILD), "runtimes/runner/sandbox-runner")):
            self.watched.append(binary)
        self.c["runner"] = self.watched[-1]
        self.remember()

    def directory(self, parent, mode):
        path = tempfile.mkdtemp(prefix="sbx-canary-", dir=parent)
        os.chmod(path, mode)
        self.dirs.append(path)
        return path

    def file(self, path, mode):
        with open(path, "w") as f:
            f.write(self.mark)
        os.chmod(path, mode)
        self.watched.append(path)
        return path

    def make_files(self):
        private = os.path.join(self.base, "private")
        os.mkdir(private, 0o700)
        self.c["private"] = self.file(os.path.join(private, "secret"), 0o600)
        self.c["public"] = self.file(os.path.join(self.base, "public"), 0o644)
        open_dir = os.path.join(self.base, "open")
        os.mkdir(open_dir)
        os.chmod(open_dir, 0o777)
        self.c["writable"] = self.file(os.path.join(open_dir, "writable"), 0o666)
        self.watched += [private, open_dir]

    def make_usr(self):
        """Files that a sandbox does see, below the host's /usr; only root can put some there."""
        self.c["usr"] = None
        if not os.access("/usr/local/share", os.W_OK):
            return
        usr = self.c["usr"] = self.directory("/usr/local/share", 0o777)
        self.file(os.path.join(usr, "writable"), 0o666)
        for name in ("setuid", "caps"):
            path = os.path.join(usr, name)
            shutil.copy(os.path.realpath("/usr/bin/python3"), path)
            os.chmod(path, 0o6755 if name == "setuid" else 0o755)
            self.watched.append(path)
        # Version 2, effective: every capability, permitted.
        os.setxattr(path, "security.capability",
                    bytes.fromhex("01000002" + "ffffffff" + "00000000" + "ffffffff" + "00000000"))
        self.watched.append(usr)

    def listen(self, key, family, address, kind=socket.SOCK_STREAM):
        s = socket.socket(family, kind)
        if family == socket.AF_INET6:
            s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        s.bind(address)
        if kind == socket.SOCK_STREAM:
            s.listen(64)
        s.setblocking(False)
        self.listeners.append((key, s))
        return s.getsockname()

    def make_sockets(self):
        c = self.c
        c["port"] = self.listen("tcp loopback", socket.AF_INET, ("127.0.0.1", 0))[1]
        c["udp"] = self.listen("udp loopback", socket.AF_INET, ("127.0.0.1", 0), socket.SOCK_DGRAM)[1]
        c["addr"] = host_address(socket.AF_INET, "192.0.2.1")
        if c["addr"]:
            self.listen("tcp host address", socket.AF_INET, (c["addr"], c["port"]))
        try:
            self.listen("tcp v6 loopback", socket.AF_INET6, ("::1", c["port"]))
            c["addr6"] = "::1"
        except OSError:
            c["addr6"] = None
        c["abstract"] = "canary-" + os.urandom(8).hex()
        self.listen("abstract", socket.AF_UNIX, "\0" + c["abstract"])
        c["unix"] = os.path.join(self.directory("/tmp", 0o755), "socket")
        self.listen("unix", socket.AF_UNIX, c["unix"])
        os.chmod(c["unix"], 0o666)

    def make_ipc(self):
        self.c["shm_key"] = int.from_bytes(os.urandom(3), "big") | 1 << 24
        self.c["posix_shm"] = "/dev/shm/" + os.path.basename(self.base)
        self.file(self.c["posix_shm"], 0o666)
        self.shm = sbx.libc.shmget(self.c["shm_key"], 4096, 0o1666)
        self.msg = sbx.libc.msgget(self.c["shm_key"], 0o1666)

    def arrived(self):
        """Names of the sockets that somebody reached, emptying them."""
        got = []
        for key, s in self.listeners:
            try:
                while True:
                    if s.type == socket.SOCK_STREAM:
                        s.accept()[0].close()
                    else:
                        s.recv(1)
                    got.append(key)
            except BlockingIOError:
                pass
        return got

    def snapshot(self):
        now = {path: fingerprint(path) for path in self.watched}
        for name in self.SYSCTLS:
            if os.access("/proc/sys/" + name, os.R_OK):
                now[name] = contents("/proc/sys/" + name)
        with open("/proc/%d/status" % self.victim.pid) as f:
            fields = dict(line.split(":", 1) for line in f)
        now["victim"] = [fields[k].strip() for k in ("TracerPid", "SigPnd", "ShdPnd", "Uid", "Seccomp")]
        now["victim runs"] = fields["State"].split()[0] in "SRD"
        return now

    def remember(self):
        self.before = self.snapshot()

    def problems(self):
        """What changed, or was reached, since remember(); an empty list is a good day."""
        if self.victim.poll() is not None:
            return ["the host process was ended"]
        now = self.snapshot()
        found = ["%s: %s, was %s" % (k, now[k], self.before[k]) for k in now if now[k] != self.before[k]]
        return found + ["reached: " + key for key in self.arrived()]

    def close(self):
        if self.victim:
            self.victim.kill()
            self.victim.wait()
        for _, s in self.listeners:
            s.close()
        if self.msg is not None:
            sbx.libc.shmctl(self.shm, 0, None)
            sbx.libc.msgctl(self.msg, 0, None)
            os.unlink(self.c["posix_shm"])
        for d in self.dirs:
            shutil.rmtree(d, ignore_errors=True)


def outside(rows, canary):
    """The same programs on the host, as the service's user."""
    with tempfile.TemporaryDirectory() as d:
        work = os.path.join(d, "attempts.json")
        with open(work, "w") as f:
            json.dump({"canary": canary, "attempts": [(r.name, r.code) for r in rows]}, f)
        out = subprocess.run([sys.executable, os.path.join(HERE, "driver.py"), work], cwd=d, check=True,
                             stdout=subprocess.PIPE, timeout=60 * sbx.SLOW).stdout
    return parse(out)


def levels(mount):
    """The trust levels that this host can serve."""
    return [trust for trust in BOTH if mount.check({"command": ["true"], "trust_level": trust})["accepted"]]


def parse(out):
    found = {}
    for line in out.decode().splitlines():
        one = json.loads(line)
        found[one["name"]] = one["verdict"]
    return found


def batch_spec(rows, canary, **more):
    work = json.dumps({"canary": canary, "attempts": [(r.name, r.code) for r in rows]}).encode()
    driver = contents(os.path.join(HERE, "driver.py"))
    files = [{"path": "driver.py", "content_b64": base64.b64encode(driver).decode()},
             {"path": "attempts.json", "content_b64": base64.b64encode(work).decode()}]
    return dict({"command": ["python3", "driver.py", "attempts.json"], "files": files, "timeout_sec": 55}, **more)


class Attempts(unittest.TestCase):
    """A group of rows: its runs are made once, then each row is a test of its own."""
    rows = ()
    settings = {}
    spec = {}  # what the documents of its runs have besides
    where = None

    @classmethod
    def setUpClass(cls):
        cls.canaries = Canaries()
        cls.addClassCleanup(cls.canaries.close)
        cls.m = sbx.Mount(settings={**RUNTIME_SETTINGS, **cls.settings}, env={"SBX_CANARY": cls.canaries.mark}, where=cls.where)
        cls.m.start()
        cls.addClassCleanup(cls.m.close)
        cls.canary = dict(cls.canaries.c, state=cls.m.state, mnt=cls.m.mnt, server=cls.m.proc.pid)
        controls = [r for r in cls.rows if r.control is not None]
        cls.controls = outside(controls, cls.canary) if controls else {}
        cls.canaries.arrived()
        cls.canaries.remember()
        cls.runs = {}
        for trust in BOTH:
            rows = [r for r in cls.rows if trust in r.trust]
            if rows:
                cls.runs[trust] = cls.start_batch(rows, trust)
        cls.found = {trust: cls.results(run) for trust, run in cls.runs.items()}

    @classmethod
    def start_batch(cls, rows, trust):
        try:
            return cls.m.submit(batch_spec(rows, cls.canary, trust_level=trust, **cls.spec))
        except sbx.Refused as e:
            if e.code in ("policy_unsupported", "runtime_unavailable"):
                return e.message
            raise

    @classmethod
    def results(cls, run):
        if isinstance(run, str):
            return run
        end = run.wait(60)
        found = parse(run.stdout)
        if end != "0":
            found[None] = "the driver ended with %s: %s; %s" % (end, run.json().get("message"), run.stderr[-500:])
        return found

    def judge(self, trust, row):
        found = self.found[trust]
        if isinstance(found, str):
            self.skipTest("no %s sandbox here: %s" % (trust, found))
        verdict = found.get(row.name, found.get(None, "no verdict"))
        if verdict == "not here":
            self.skipTest("this architecture has no such call")
        self.assertIn(verdict, row.expect)

    def check_canaries(self):
        self.assertEqual(self.canaries.problems(), [])
        self.assertEqual(self.m.run({"command": ["echo", "ok"]}).stdout, b"ok\n")


def group(name, rows, **attributes):
    """A test class of these rows; names sort so that the canaries are looked at last."""
    assert len({r.name for r in rows}) == len(rows), "two rows of one name in " + name
    tests = {}
    for row in rows:
        for trust in row.trust:
            tests["test_%s_%s" % (row.name, trust)] = (
                lambda self, trust=trust, row=row: self.judge(trust, row))
        if row.control is not None:
            tests["test_%s_outside" % row.name] = (
                lambda self, row=row: self.assertEqual(self.controls.get(row.name), row.control))
    tests["test_zz_canaries_untouched"] = Attempts.check_canaries
    # The tests of the class must not be found again in this module's own name space.
    return type(name, (Attempts,), dict(tests, rows=tuple(rows), **attributes))
