# SPDX-License-Identifier: Apache-2.0
"""What the conformance suites share. A row of rows.tsv is a test whose name begins with the row's id, or it
stands in skipped.tsv; test_rows.py compares. The rows come from a service with other runtimes: where one says
"docker" and means any runtime, the tests take the default one here, `namespace`, with the image `host`. Where a
row and this project's design disagree, the design is tested and a comment says so."""
import contextlib
import os
import select
import shutil
import socket
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import api  # noqa: E402
import sbx  # noqa: E402

QUEUED = {"enable_execution": "false"}  # what is accepted stays queued
FOREGROUND = {"background_execution": "false"}  # POST answers when the run has ended
NO_PROGRAMS = "/nonexistent"  # a PATH on which no runtime's program is
MACOS = {"vz_linux", "vz_macos", "seatbelt"}
LEASE = 3  # seconds; the shortest that can be set


class Case(unittest.TestCase):
    """One server for a class; override what it is started with."""
    settings = {}
    env = None
    preflight = None
    path = None

    @classmethod
    def setUpClass(cls):
        cls.a = cls.server(cls.settings, env=cls.env, preflight=cls.preflight, path=cls.path)
        cls.addClassCleanup(cls.a.close)
        cls.a.start()

    @staticmethod
    def server(settings=None, **kw):
        return api.Apid(settings=settings, **kw)

    def refused(self, answer, status, code, **details):
        """An error of this kind, with these members of its details. The details."""
        self.assertEqual((answer.status, answer.code), (status, code), answer)
        self.assertIsInstance(answer.error["message"], str)
        for name, value in details.items():
            self.assertEqual(answer.details.get(name), value, answer)
        return answer.details

    def ended(self, run, phase="completed", reason=None, timeout=30):
        doc = run.wait(timeout)
        self.assertEqual((doc["phase"], doc["status_reason_code"]), (phase, reason or phase), doc)
        return doc


class Alone(unittest.TestCase):
    """Every test starts its own servers."""
    server = staticmethod(Case.server)
    refused = Case.refused
    ended = Case.ended


class Docker(Alone):
    """Tests with a real engine, which has an image with Python. What it made is looked for when the engine has
    said that it is gone: the end of a run is told when its command has ended."""
    IMAGE = "python:3.11-slim"

    @classmethod
    def setUpClass(cls):
        import dockerkit
        cls.engine = dockerkit.start(cls.IMAGE, closing=cls.addClassCleanup)

    def docker(self, **settings):
        return self.server({"docker_host": self.engine.socket, "docker_pull": "false", "warm_runners": 1, **settings})

    def nothing_left(self):
        self.engine.wait_no_container()


@contextlib.contextmanager
def two(settings=None, first=(), second=()):
    """Two servers on one state directory; first and second: further arguments."""
    with api.Apid(settings=settings, args=first) as p1:
        with api.Apid(state=p1.state, settings=settings, args=second) as p2:
            yield p1, p2


class Ticker:
    """An image with a FIFO in it, whose other end is here: how often each command was executed is seen from
    outside. Use as a context manager."""

    def __enter__(self):
        self.base = tempfile.mkdtemp(prefix="sbx-test-")
        os.chmod(self.base, 0o755)
        self.image = os.path.join(self.base, "image")
        for name in ("bin", "tick", "etc"):
            os.makedirs(os.path.join(self.image, name), 0o755)
        shutil.copy(shutil.which("busybox"), os.path.join(self.image, "bin/busybox"))
        for name in ("sh", "sleep", "cat", "echo", "true"):
            os.symlink("busybox", os.path.join(self.image, "bin", name))
        fifo = os.path.join(self.image, "tick/fifo")
        os.mkfifo(fifo)
        os.chmod(fifo, 0o666)
        self.fd = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)  # both ends: a writer never waits
        self.partial, self.seen = b"", {}
        return self

    def __exit__(self, *_):
        os.close(self.fd)
        shutil.rmtree(self.base, ignore_errors=True)

    @property
    def settings(self):
        return {"landlock": "false", "images": "tick=" + self.image}

    @staticmethod
    def spec(key, script="true", **over):
        """First of all it ticks."""
        return {"base_image": "tick", "command": ["sh", "-c", "echo %s > /tick/fifo; %s" % (key, script)],
                "timeout_sec": 60, **over}

    def ticks(self):
        """How often each key was seen."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.fd, 65536):
                *lines, self.partial = (self.partial + data).split(b"\n")
                for line in lines:
                    key = line.decode()
                    self.seen[key] = self.seen.get(key, 0) + 1
        return self.seen

    def wait(self, key, timeout=20):
        end = time.monotonic() + timeout * sbx.SLOW
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        while not self.ticks().get(key):
            assert poll.poll(max(0, end - time.monotonic()) * 1000), "%s was not executed" % key


def boot_id():
    with open("/proc/sys/kernel/random/boot_id") as f:
        return f.read().strip()


def owner(pid, boot=None):
    """How a claim names this process."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            start = f.read().rsplit(")", 1)[1].split()[19]
    except OSError:
        start = "1"
    return "%s/%s/%d/%s/0badcafe" % (socket.gethostname(), boot or boot_id(), pid, start)


def boot_us():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def wait_boot(us):
    """Until the clock of leases has passed this moment."""
    api.wait_until(time.CLOCK_BOOTTIME, us / 1e6)


main = sbx.main
