# SPDX-License-Identifier: Apache-2.0
"""What the mount's tests share: a real sandboxfs on a state directory of its own, runs, and a check that
nothing is left behind. Nothing here sleeps: everything waits for the event, with a time limit."""
import contextlib
import ctypes
import errno
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import weakref

BUILD = os.environ.get("SBX_BUILD_ROOT", os.path.join(os.path.dirname(__file__), "../../build"))
RUNNER = os.path.join(os.path.abspath(BUILD), "runtimes", "runner", "sandbox-runner")
SOURCE = os.environ.get("SBX_SOURCE_ROOT", os.path.join(os.path.dirname(__file__), "../.."))
SANDBOXFS = os.path.join(os.path.abspath(BUILD), "fsd", "sandboxfs")
ROOT = os.geteuid() == 0
# Sanitizers make everything slower; limits on waiting are multiplied, promises about speed are for bench.
SLOW = float(os.environ.get("SBX_TEST_SLOW", "4"))
TERMINAL = ("completed", "failed", "killed", "timed_out")

libc = ctypes.CDLL(None, use_errno=True)


def sanitizer(program):
    """"asan", "tsan" or None: what it was built with. Sizes of memory mean something else then."""
    with open(program, "rb") as f:
        text = f.read()
    return next((name for name in ("asan", "tsan") if b"__%s_init" % name.encode() in text), None)


class Refused(OSError):
    """A submission that was refused: errno, and the error document that the descriptor read back."""

    def __init__(self, errno, reply):
        super().__init__(errno, os.strerror(errno))
        self.reply = reply
        self.code = reply.get("error", {}).get("code") if isinstance(reply, dict) else None
        self.message = reply.get("error", {}).get("message", "") if isinstance(reply, dict) else ""
        self.details = reply.get("error", {}).get("details", {}) if isinstance(reply, dict) else {}


def read_wait(path, timeout):
    """Reads a node that waits, for at most `timeout` seconds."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        end = time.monotonic() + timeout
        while True:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError("%s said nothing within %s s" % (path, timeout))
            if not poll.poll(left * 1000):
                continue
            try:
                return os.read(fd, 65536)
            except BlockingIOError:
                continue
    finally:
        os.close(fd)


class Run:
    def __init__(self, mount, run_id):
        self.mount, self.id = mount, run_id
        self.dir = os.path.join(mount.mnt, "runs", run_id)

    def path(self, *names):
        return os.path.join(self.dir, *names)

    def read(self, *names):
        with open(self.path(*names), "rb") as f:
            return f.read()

    def wait(self, timeout=20):
        """The text of .wait once the run has ended: the exit code, or the phase when there is none."""
        return read_wait(self.path(".wait"), timeout * SLOW).decode().strip()

    def status(self):
        return self.read("status").decode().strip()

    def json(self):
        return json.loads(self.read("status.json"))

    @property
    def log(self):
        return self.read("log")

    @property
    def stdout(self):
        return self.read("stdout")

    @property
    def stderr(self):
        return self.read("stderr")

    def frames(self):
        return [json.loads(line) for line in self.read("log.ndjson").splitlines()]

    def ctl(self, text):
        with open(self.path("ctl"), "wb", buffering=0) as f:
            f.write(text.encode())

    def wait_phase(self, phases, timeout=20):
        """Waits, by poll on `status`, until the phase is one of these."""
        phases = (phases,) if isinstance(phases, str) else phases
        end = time.monotonic() + timeout * SLOW
        while True:
            fd = os.open(self.path("status"), os.O_RDONLY)
            try:
                now = os.read(fd, 100).decode().strip()
                if now in phases:
                    return now
                if now in TERMINAL or time.monotonic() > end:
                    raise AssertionError("phase is %s, wanted %s" % (now, phases))
                poll = select.poll()
                poll.register(fd, select.POLLPRI)
                poll.poll(max(0, end - time.monotonic()) * 1000)
            finally:
                os.close(fd)

    def stream_until(self, needle, timeout=20):
        """Follows .stream until the joined output contains the bytes."""
        import base64
        fd = os.open(self.path(".stream"), os.O_RDONLY | os.O_NONBLOCK)
        seen, pending = b"", b""
        end = time.monotonic() + timeout * SLOW
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            while needle not in seen:
                if not poll.poll(max(0, end - time.monotonic()) * 1000):
                    raise TimeoutError("no %r in the stream, only %r" % (needle, seen[-200:]))
                try:
                    data = os.read(fd, 65536)
                except BlockingIOError:
                    continue
                if not data:
                    raise AssertionError("stream ended without %r: %r" % (needle, seen[-200:]))
                pending += data
                *lines, pending = pending.split(b"\n")
                for line in lines:
                    f = json.loads(line)
                    if f["type"] in ("stdout", "stderr"):
                        seen += (f["data"].encode() if f["encoding"] == "utf8"
                                 else base64.b64decode(f["data"]))
            return seen
        finally:
            os.close(fd)


class Mount:
    """A sandboxfs of its own. Use as a context manager."""

    all = weakref.WeakSet()

    def __init__(self, state=None, opts=(), settings=None, env=None, prefix=(), check_leaks=True, where=None):
        self.base = tempfile.mkdtemp(prefix="sbx-test-", dir=where)
        os.chmod(self.base, 0o755)
        self.mnt = os.path.join(self.base, "mnt")
        os.mkdir(self.mnt)
        self.state = state or os.path.join(self.base, "state")
        self.own_state = state is None
        self.opts = list(opts)
        for key, value in (settings or {}).items():
            self.opts.append("%s=%s" % (key, str(value).replace(",", "\\,")))
        self.env = dict(os.environ, **(env or {}))
        # A configuration of the machine must not change a test.
        self.conf = os.path.join(self.base, "sandboxfs.conf")
        open(self.conf, "w").close()
        self.prefix = list(prefix)
        self.check_leaks = check_leaks
        self.proc = None
        Mount.all.add(self)

    def args(self):
        o = ["state=" + self.state, "config=" + self.conf] + self.opts
        if ROOT:
            o.append("allow_other")
        return self.prefix + [SANDBOXFS, "-f", "-o", ",".join(o), self.mnt]

    def start(self):
        self.log_path = os.path.join(self.base, "sandboxfs.err")
        with open(self.log_path, "ab") as log:
            self.proc = subprocess.Popen(self.args(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                         env=self.env)
        self.wait_mounted()
        return self

    def wait_mounted(self, timeout=20):
        """The mount is there when mountinfo changes to say so (poll on it reports changes) and it
        answers."""
        end = time.monotonic() + timeout * SLOW
        with open("/proc/self/mountinfo", "rb") as f:
            poll = select.poll()
            poll.register(f, select.POLLERR | select.POLLPRI)
            while not (self.is_mounted(f) and self.answers()):
                if self.proc.poll() is not None or time.monotonic() > end:
                    raise AssertionError("sandboxfs did not mount: " + self.errors())
                poll.poll(100)

    def answers(self):
        """False when nobody serves the mount: a dead server's stays in mountinfo until the next one
        has cleared it away."""
        try:
            os.statvfs(self.mnt)  # never answered from a cache
            os.stat(os.path.join(self.mnt, "README"))  # nor is it the bare directory below
        except OSError as e:
            if e.errno in (errno.ENOTCONN, errno.ENOENT, errno.ECONNABORTED):
                return False
            raise
        return True

    def is_mounted(self, f=None):
        if f:
            f.seek(0)
            text = f.read()
        else:
            text = open("/proc/self/mountinfo", "rb").read()
        return (" %s " % self.mnt).encode() in text

    def errors(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()

    def stop(self, timeout=20):
        """TERM, as an operator would; returns the exit status."""
        if self.proc and self.proc.poll() is None:
            self.proc.send_signal(signal.SIGTERM)
            try:
                self.proc.wait(timeout * SLOW)
            except subprocess.TimeoutExpired:
                self.kill()
                self.unmount_stale()
                raise AssertionError("sandboxfs does not stop: " + self.errors()) from None
        return self.proc.returncode if self.proc else None

    def kill(self):
        self.proc.kill()
        self.proc.wait()

    def unmount_stale(self):
        libc.umount2(self.mnt.encode(), 2)
        if self.is_mounted():
            subprocess.run(["fusermount3", "-u", "-z", "-q", self.mnt], check=False)

    def processes(self):
        """Processes that name our state directory: the server and its runners."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                with open("/proc/%s/cmdline" % pid, "rb") as f:
                    if self.state.encode() in f.read():
                        found.append(int(pid))
        return found

    def wait_processes_gone(self, timeout=10):
        end = time.monotonic() + timeout * SLOW
        while True:
            left = [p for p in self.processes() if p != os.getpid()]
            if not left:
                return []
            try:
                fd = os.pidfd_open(left[0])
            except ProcessLookupError:
                continue
            try:
                poll = select.poll()
                poll.register(fd, select.POLLIN)
                if not poll.poll(max(0, end - time.monotonic()) * 1000):
                    return left
            finally:
                os.close(fd)

    def shared(self):
        return any(m is not self and m.state == self.state and m.proc and m.proc.poll() is None
                   for m in Mount.all)

    def close(self):
        status = self.stop()
        # Another server on the same state, and its runs, are not ours to wait for.
        left = [] if self.shared() else self.wait_processes_gone()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.unmount_stale()
        mounted = self.is_mounted()
        errors = self.errors() if self.proc else ""
        shutil.rmtree(self.base, ignore_errors=True)
        if self.check_leaks:
            assert not left, "processes left: %s" % left
            assert not mounted, "still mounted"
            assert "Sanitizer" not in errors and "runtime error" not in errors, errors
        return status

    def __enter__(self):
        return self.start()

    def __exit__(self, kind, *rest):
        if kind:
            self.check_leaks = False
            sys.stderr.write(self.errors())
        self.close()

    # ---- submitting ----

    def submit(self, spec, node="new"):
        """Writes a document (dict, str or bytes) in one write; a Run, or Refused."""
        if isinstance(spec, dict):
            spec = json.dumps(spec)
        if isinstance(spec, str):
            spec = spec.encode()
        fd = os.open(os.path.join(self.mnt, "runs", node), os.O_RDWR)
        try:
            view = memoryview(spec)
            try:
                while view:
                    view = view[os.write(fd, view):]
                reply = os.read(fd, 1 << 20).decode()
            except OSError as e:
                reply = os.read(fd, 1 << 20).decode()
                raise Refused(e.errno, json.loads(reply)) from None
        finally:
            os.close(fd)
        if reply.startswith("{"):
            raise Refused(0, json.loads(reply))
        return Run(self, reply.strip())

    def sh(self, script, **spec):
        return self.submit(dict({"command": ["sh", "-c", script]}, **spec))

    def run(self, spec, timeout=20):
        r = self.submit(spec)
        r.exit = r.wait(timeout)
        return r

    def check(self, spec):
        with open(os.path.join(self.mnt, "runs", "check"), "r+b", buffering=0) as f:
            f.write(json.dumps(spec).encode())
            return json.loads(f.read(1 << 20))

    def runs(self):
        return sorted(n for n in os.listdir(os.path.join(self.mnt, "runs"))
                      if n not in ("new", "latest", "check"))


class Case(unittest.TestCase):
    """One mount for a class; override `settings` and `opts`."""
    settings = {}
    opts = ()

    @classmethod
    def setUpClass(cls):
        cls.m = Mount(opts=cls.opts, settings=cls.settings)
        cls.addClassCleanup(cls.m.close)  # also when a subclass fails in its own setUpClass
        cls.m.start()


class TapResult(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.n = 0

    def line(self, ok, test, note=""):
        self.n += 1
        print("%s %d - %s%s" % ("ok" if ok else "not ok", self.n, test.id().replace("__main__.", ""),
                                note), flush=True)

    def explain(self, err, test):
        for line in self._exc_info_to_string(err, test).splitlines():
            print("# " + line, flush=True)

    def addSuccess(self, test):
        self.line(True, test)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.line(False, test)
        self.explain(err, test)

    addError = addFailure

    def addSkip(self, test, reason):
        self.line(True, test, " # SKIP " + reason)

    def addSubTest(self, test, subtest, err):
        if err:
            super().addFailure(test, err)
            self.line(False, subtest)
            self.explain(err, test)


def main():
    """Runs the tests of the calling module and prints TAP; names on the command line select."""
    loader = unittest.TestLoader()
    names = sys.argv[1:]
    module = sys.modules["__main__"]
    suite = loader.loadTestsFromNames(names, module) if names else loader.loadTestsFromModule(module)
    result = TapResult()
    suite.run(result)
    print("1..%d" % result.n)
    sys.exit(0 if result.wasSuccessful() else 1)
