# SPDX-License-Identifier: Apache-2.0
"""What the tests of sessions on the mount share: a session with its workspace, and its runs."""
import errno
import json
import os
import subprocess

import sbx


class Session:
    """One made with mkdir sessions/NAME, or, without `make`, one that is there."""

    def __init__(self, mount, name, make=True):
        self.mount, self.name = mount, name
        self.dir = os.path.join(mount.mnt, "sessions", name)
        if make:
            os.mkdir(self.dir)
        self.id = self.json()["id"]
        self.work = os.path.join(self.dir, "workspace")

    def json(self):
        with open(os.path.join(self.dir, "status.json")) as f:
            return json.load(f)

    def path(self, *names):
        return os.path.join(self.work, *names)

    def disk(self, *names):
        """The same file behind the mount's back."""
        return os.path.join(self.mount.state, "sessions", self.id, "workspace", *names)

    def write(self, name, data, mode="wb"):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), mode) as f:
            f.write(data)

    def read(self, *names):
        with open(self.path(*names), "rb") as f:
            return f.read()

    def ctl(self, text):
        with open(os.path.join(self.dir, "ctl"), "wb", buffering=0) as f:
            f.write(text.encode())

    def submit(self, script, **spec):
        return self.mount.submit(dict({"command": ["sh", "-c", script], "session_id": self.id}, **spec))

    def run(self, script, **spec):
        """The text of .wait."""
        return self.submit(script, **spec).wait()

    def shell(self, script, check=True, **kw):
        """A shell in the workspace; its standard output, and both when it fails."""
        kw.setdefault("timeout", 60 * sbx.SLOW)
        p = subprocess.run(["sh", "-euc", script], cwd=self.work, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, env=dict(os.environ, MNT=self.mount.mnt, **ENV), **kw)
        if check and p.returncode:
            raise AssertionError("status %d\n%s" % (p.returncode, p.stdout.decode(errors="replace")))
        return p.stdout.decode(errors="replace")


ENV = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "GIT_AUTHOR_NAME": "a",
       "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org"}


class WorkCase(sbx.Case):
    """A mount for the class, a session for each test."""

    def setUp(self):
        self.s = Session(self.m, self.id().rsplit(".", 1)[1])
        self.addCleanup(self.s.ctl, "destroy")

    def path(self, *names):
        return self.s.path(*names)

    def assertErrno(self, numbers, fn, *args, **kw):
        numbers = numbers if isinstance(numbers, tuple) else (numbers,)
        with self.assertRaises(OSError) as c:
            fn(*args, **kw)
        self.assertIn(errno.errorcode[c.exception.errno], [errno.errorcode[n] for n in numbers])
