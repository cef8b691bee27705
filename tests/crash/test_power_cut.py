# SPDX-License-Identifier: Apache-2.0
"""What a power cut leaves: the state lies on a file system of its own, which is told to stop at once, as a disk is
that loses its power: nothing that was not synced is written any more. Then everything is killed and mounted again.
The machine's boot is the same, so a test that another would matter to writes one into the row."""
import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import api  # noqa: E402
import database  # noqa: E402
import fskit  # noqa: E402
import sbx  # noqa: E402
import sessions  # noqa: E402
from workkit import Session  # noqa: E402

EXT4_IOC_SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32), linux/ext4.h
NOTHING_MORE = (2).to_bytes(4, sys.byteorder)  # EXT4_GOING_FLAGS_NOLOGFLUSH
FILES = 40


class Machine:
    """A disk, and a door on it."""

    def __init__(self, case):
        self.base = tempfile.mkdtemp(prefix="sbx-cut-")
        case.addCleanup(shutil.rmtree, self.base)
        self.disk = os.path.join(self.base, "disk")
        os.mkdir(self.disk)
        self.image = self.base + "/image"
        with open(self.image, "wb") as f:
            f.truncate(512 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", self.image], check=True)
        self.plug_in()
        case.addCleanup(self.unplug)
        self.m = sbx.Mount(state=self.disk + "/state", check_leaks=False, settings={"snapshot_max_count": 1000})
        case.addCleanup(self.m.close)
        self.m.start()

    def plug_in(self):
        subprocess.run(["mount", "-o", "loop", self.image, self.disk], check=True)

    def unplug(self):
        """What is in use, as by a sandbox that is still dying, goes later."""
        subprocess.run(["umount", "-l", self.disk], check=True)

    def cut(self, doors=()):
        fd = os.open(self.disk, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, NOTHING_MORE)
        finally:
            os.close(fd)
        for door in doors:
            door.kill()
        self.m.kill()
        for pid in self.m.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert self.m.wait_processes_gone(20) == []
        self.m.unmount_stale()
        # The kernel has only one file system of a disk, and the one that stopped may stay for a moment.
        subprocess.run(["cp", "--sparse=always", self.image, self.image + ".next"], check=True)
        self.unplug()
        os.rename(self.image + ".next", self.image)
        self.plug_in()

    def start_again(self):
        """And the store must be whole."""
        self.m.start()
        assert database.sql(self.m.state, "PRAGMA integrity_check") == [("ok",)]
        return self.m

    def session(self, name):
        """One that is there already."""
        return Session(self.m, name, make=False)


def content(seed, i):
    return hashlib.sha512(b"%s %d" % (seed, i)).digest() * 1024  # 64 KiB


def fill(s, seed):
    for i in range(FILES):
        s.write("d%d/f%d" % (i % 4, i), content(seed, i))


def is_whole(s, seed):
    return all(s.read("d%d/f%d" % (i % 4, i)) == content(seed, i) for i in range(FILES))


@unittest.skipUnless(sbx.ROOT and shutil.which("mkfs.ext4"), "needs root and mkfs.ext4")
class PowerCut(unittest.TestCase):
    def setUp(self):
        self.machine = Machine(self)
        self.m = self.machine.m

    def test_runs_that_were_accepted(self):
        made = [self.m.submit({"command": ["sh", "-c", "echo %d" % i], "idempotency_key": "k%d" % i}) for i in range(20)]
        self.machine.cut()
        self.machine.start_again()
        self.assertLessEqual({r.id for r in made}, set(self.m.runs()))
        again = self.m.submit({"command": ["sh", "-c", "echo 7"], "idempotency_key": "k7"})
        self.assertEqual(again.id, made[7].id)
        for r in made:
            r.wait(60)
            self.assertIn(r.status(), ("completed", "failed"))

    def test_a_run_that_has_ended(self):
        run = self.m.run({"command": ["sh", "-c", "echo out; echo kept > artifacts/a; exit 3"]})
        self.assertEqual(run.exit, "3")
        self.machine.cut()
        self.machine.start_again()
        self.assertEqual((run.wait(), run.status()), ("3", "failed"))

    def test_a_session_and_what_was_synced_in_it(self):
        s = Session(self.m, "s")
        with open(s.path("f"), "wb") as f:
            f.write(b"synced")
            f.flush()
            os.fsync(f.fileno())
        fskit.sync(s.work)
        self.machine.cut()
        self.machine.start_again()
        self.assertEqual(self.machine.session("s").read("f"), b"synced")

    def test_a_snapshot_and_a_restore(self):
        s = Session(self.m, "s")
        fill(s, b"old")
        os.mkdir(s.dir + "/snapshots/a")
        self.machine.cut()
        self.machine.start_again()
        s = self.machine.session("s")
        s.ctl("restore a")
        self.machine.cut()
        self.machine.start_again()
        s = self.machine.session("s")
        self.assertTrue(is_whole(s, b"old"))
        fill(s, b"new")
        s.ctl("restore a")
        self.machine.cut()
        self.machine.start_again()
        self.assertTrue(is_whole(self.machine.session("s"), b"old"))

    def test_an_upload(self):
        a = api.Apid(state=self.m.state)
        self.addCleanup(shutil.rmtree, a.base)
        a.start()
        s = sessions.Session.make(a)
        s.put(("f", b"uploaded"))
        self.machine.cut(doors=[a])
        self.machine.start_again()
        with open(os.path.join(self.m.state, "sessions", s.id, "workspace/f"), "rb") as f:
            self.assertEqual(f.read(), b"uploaded")

    def work(self, turn, answered, enough):
        """One thing after the other until there is no door any more; what was answered is noted."""
        s = self.machine.session("s")
        with contextlib.suppress(OSError):
            for n in range(1000):
                name = "t%dn%d" % (turn, n)
                kind = ("run", "file", "snapshot", "session", "no session")[n % 5]
                if kind == "run":
                    name = self.m.submit({"command": ["true"]}).id
                elif kind == "file":
                    s.write(name, name.encode())
                    fskit.sync(s.path(name))
                    fskit.sync(s.work)
                elif kind == "snapshot":
                    os.mkdir("%s/snapshots/%s" % (s.dir, name))
                else:
                    os.mkdir("%s/sessions/%s" % (self.m.mnt, name))
                    if kind == "no session":
                        os.rmdir("%s/sessions/%s" % (self.m.mnt, name))
                answered.append((kind, name))
                if n == 4 + 3 * turn:
                    enough.set()

    def test_in_the_midst_of_things(self):
        Session(self.m, "s")
        for turn in range(6):
            answered, enough = [], threading.Event()
            worker = threading.Thread(target=self.work, args=(turn, answered, enough))
            worker.start()
            self.assertTrue(enough.wait(20 * sbx.SLOW))
            self.machine.cut()
            worker.join()
            self.machine.start_again()
            s, runs = self.machine.session("s"), set(self.m.runs())
            for kind, what in answered:
                if kind == "run":
                    self.assertIn(what, runs)
                elif kind == "file":
                    self.assertEqual(s.read(what), what.encode())
                elif kind == "snapshot":
                    self.assertTrue(os.path.isdir("%s/snapshots/%s/tree" % (s.dir, what)), what)
                else:
                    there = os.path.isdir("%s/sessions/%s/workspace" % (self.m.mnt, what))
                    self.assertEqual(there, kind == "session", what)
            for name in os.listdir(s.dir + "/snapshots"):
                os.rmdir("%s/snapshots/%s" % (s.dir, name))

    def clone(self, name):
        self.machine.session("s").ctl("clone " + name)

    def reboot(self):
        """In another boot of the machine."""
        marked = "unsynced_boot <> ''"
        if database.sql(self.m.state, "SELECT 1 FROM sessions WHERE " + marked):
            database.change(self.m.state, "UPDATE sessions SET unsynced_boot = 'another' WHERE " + marked)
        self.machine.start_again()

    def test_a_clone_is_there_as_a_whole_or_not_at_all(self):
        fill(Session(self.m, "s"), b"old")
        fskit.sync(self.machine.session("s").work)
        os.sync()
        for i in range(6):
            name = "c%d" % i
            self.clone(name)
            for _ in range(i * i * 40):  # a little later each time
                os.stat(self.m.mnt + "/runs")
            self.machine.cut()
            self.reboot()
            there = name in os.listdir(self.m.mnt + "/sessions")
            if there:
                self.assertTrue(is_whole(self.machine.session(name), b"old"))
            self.assertTrue(is_whole(self.machine.session("s"), b"old"))

    def test_a_clone_outlives_what_it_was_made_of(self):
        s = Session(self.m, "s")
        fill(s, b"old")
        self.clone("c")
        os.rmdir(s.dir)
        with fskit.Events(self.m, after=0) as events:
            events.wait(lambda e: e.get("kind") == "session" and e["id"] == s.id and e["what"] == "gone")
        self.machine.cut()
        self.reboot()
        self.assertTrue(is_whole(self.machine.session("c"), b"old"))

    def test_a_clone_that_was_waited_for(self):
        fill(Session(self.m, "s"), b"old")
        self.clone("c")
        fskit.sync(self.machine.session("c").dir)
        self.machine.cut()
        self.reboot()
        self.assertTrue(is_whole(self.machine.session("c"), b"old"))


if __name__ == "__main__":
    sbx.main()
