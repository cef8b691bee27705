# SPDX-License-Identifier: Apache-2.0
"""Somebody holds the lock of the database. Who writes waits, and can give up; who reads does not."""
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import api  # noqa: E402
import fskit  # noqa: E402
import sbx  # noqa: E402


class HeldCase(sbx.Case):
    opts = ("workers=0",)
    settings = {"queue_max_length": "1000"}

    def setUp(self):
        self.db = sqlite3.connect(os.path.join(self.m.state, "state.db"), isolation_level=None)
        self.addCleanup(self.db.close)

    def hold(self):
        self.db.execute("BEGIN IMMEDIATE")

    def release(self):
        self.db.execute("COMMIT")

    def names(self):
        return [name for name, in self.db.execute("SELECT name FROM runs WHERE name IS NOT NULL ORDER BY name")]

    def echo(self, text, node="runs/new"):
        """A shell that writes and then waits for the answer."""
        p = subprocess.Popen(["sh", "-c", 'echo "$1" > "$2"', "sh", text, os.path.join(self.m.mnt, node)],
                             stderr=subprocess.DEVNULL)
        self.addCleanup(p.wait)
        self.addCleanup(p.kill)
        return p

    def is_late(self, pid):
        """From a tenth of a second after the first write that waits, nobody shares an inode with another."""
        fskit.blocked_in_write(pid)
        api.wait_until(time.CLOCK_MONOTONIC, time.monotonic() + 0.1)

    def submit_later(self, names):
        waiting = []
        for name in names:
            waiting.append(self.echo('{"command":["true"],"name":"%s"}' % name))
            if len(waiting) == 1:
                self.is_late(waiting[0].pid)
        for p in waiting:
            fskit.blocked_in_write(p.pid)
        return waiting

    def reads_are_quick(self, run):
        """(In this process: a child would close copies of descriptors whose write waits, which waits, too.)"""
        for read in (lambda: os.stat(run.path("status")), lambda: os.listdir(run.dir), self.m.runs, run.status,
                     run.json, lambda: [os.stat(run.path(n)) for n in os.listdir(run.dir)]):
            start = time.monotonic()
            read()
            self.assertLess(time.monotonic() - start, sbx.SLOW)


class Submits(HeldCase):
    def test_readers_do_not_wait_for_those_who_submit(self):
        run = self.m.submit({"command": ["true"]})
        self.hold()
        waiting = self.submit_later("a%02d" % i for i in range(20))
        self.reads_are_quick(run)
        self.assertEqual([p.poll() for p in waiting], [None] * 20)
        self.release()
        self.assertEqual([fskit.wait_exit(p) for p in waiting], [0] * 20)
        self.assertEqual([n for n in self.names() if n[0] == "a"], ["a%02d" % i for i in range(20)])

    def test_interrupt_of_one_that_waits(self):
        """Six are under way and wait for the lock, the others have not been begun."""
        self.hold()
        waiting = self.submit_later("b%02d" % i for i in range(12))
        for i in (0, 5, 11, 1, 8, 3, 7, 10):
            waiting[i].send_signal(signal.SIGINT)
            self.assertEqual(fskit.wait_exit(waiting[i]), -signal.SIGINT)
        self.release()
        for i, p in enumerate(waiting):
            self.assertEqual(fskit.wait_exit(p), -signal.SIGINT if i not in (2, 4, 6, 9) else 0)
        self.assertEqual([n for n in self.names() if n[0] == "b"],
                         ["b02", "b04", "b06", "b09"])

    def test_write_that_a_signal_interrupts_is_made_again(self):
        """In pieces, the last of which is interrupted: what came before is kept."""
        seen = []
        before = signal.signal(signal.SIGUSR1, lambda *_: (seen.append(1), self.release()))
        self.addCleanup(signal.signal, signal.SIGUSR1, before)
        with open(os.path.join(self.m.mnt, "runs/new"), "r+b", buffering=0) as f:
            f.write(b'{"command":["true"],')
            self.hold()
            timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1))
            timer.start()
            self.addCleanup(timer.join)
            f.write(b'"name":"c"}')  # Python writes again after EINTR
            self.assertEqual(f.read(100).decode().strip() in self.m.runs(), True)
        self.assertEqual((seen, [n for n in self.names() if n[0] == "c"]), ([1], ["c"]))

    def test_too_many_are_told_to_come_again(self):
        results = []

        def submit(i):
            try:
                results.append(self.m.submit({"command": ["true"], "name": "d%03d" % i}).id)
            except sbx.Refused as e:
                results.append(e.code)

        self.hold()
        first = self.submit_later(["d300"])[0]
        threads = [threading.Thread(target=submit, args=(i,)) for i in range(299)]
        for t in threads:
            t.start()
        # Those who are told need not wait for the lock; when they have been, all others wait.
        while len(results) < 300 - 256 - 6:
            os.sched_yield()
        self.release()
        for t in threads:
            t.join()
        self.assertEqual(fskit.wait_exit(first), 0)
        self.assertEqual(len(results), 299)
        refused = [r for r in results if r == "queue_full"]
        self.assertEqual(len(refused), 300 - 256 - 6)
        self.assertEqual(len([n for n in self.names() if n[0] == "d"]), 256 + 6)


class Others(HeldCase):
    def test_cancel_waits_and_counts(self):
        run = self.m.submit({"command": ["true"]})
        self.hold()
        p = self.echo("kill", "runs/%s/ctl" % run.id)
        fskit.blocked_in_write(p.pid)
        self.reads_are_quick(run)
        self.release()
        self.assertEqual(fskit.wait_exit(p), 0)
        self.assertEqual(run.wait(), "killed")

    def bring(self, name):
        """A process that makes this file and closes it, which is when it is imported: it is no image."""
        code = "import os, sys; f = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT); os.write(f, b'no'); os.close(f)"
        p = subprocess.Popen([sys.executable, "-c", code, os.path.join(self.m.mnt, "images", name)],
                             stderr=subprocess.DEVNULL)
        self.addCleanup(p.kill)
        return p

    def test_an_image_whose_copy_ends_before_its_turn(self):
        """All who write are busy, so nobody has begun with it; the next one must not wait for it."""
        self.hold()
        waiting = self.submit_later("e%02d" % i for i in range(12))
        given_up = self.bring("a.tar")
        fskit.blocked_in(given_up.pid, {"x86_64": "3", "aarch64": "57"}, 20)
        given_up.send_signal(signal.SIGTERM)
        self.release()
        self.assertEqual(fskit.wait_exit(given_up), -signal.SIGTERM)
        self.assertEqual([fskit.wait_exit(p) for p in waiting], [0] * 12)
        self.assertEqual(fskit.wait_exit(self.bring("b.tar")), 1)
        self.assertEqual(os.listdir(os.path.join(self.m.mnt, "images")), ["b.error"])

    def test_runs_whose_descriptors_are_closed(self):
        """Closing one that binds a run writes, too, and nobody waits for that."""
        fds, runs = [], []
        for _ in range(12):
            fd = os.open(os.path.join(self.m.mnt, "runs/new"), os.O_RDWR)
            os.write(fd, b'{"command":["true"],"lifetime":"handle"}')
            runs.append(sbx.Run(self.m, os.read(fd, 100).decode().strip()))
            fds.append(fd)
        self.hold()
        for fd in fds:
            os.close(fd)
        self.reads_are_quick(runs[0])
        self.release()
        for run in runs:
            self.assertEqual(run.wait(), "killed")

    def test_one_descriptor_used_by_many(self):
        """While a write of one waits, the other copies' operations wait with it, and with nobody else."""
        run = self.m.submit({"command": ["true"]})
        fd = os.open(os.path.join(self.m.mnt, "runs/new"), os.O_RDWR)
        self.addCleanup(os.close, fd)
        self.hold()
        writer = threading.Thread(target=os.write, args=(fd, b'{"command":["true"],"name":"e"}'))
        writer.start()
        closers = [subprocess.Popen(["sh", "-c", "exec 3<&-; true"], pass_fds=[fd]) for _ in range(8)]
        self.reads_are_quick(run)
        self.release()
        writer.join()
        for p in closers:
            fskit.wait_exit(p)
        self.assertIn("e", self.names())

    def test_server_that_is_stopped_meanwhile(self):
        with sbx.Mount(opts=["workers=0"]) as m:
            run = m.submit({"command": ["true"]})
            db = sqlite3.connect(os.path.join(m.state, "state.db"), isolation_level=None)
            db.execute("BEGIN IMMEDIATE")
            fds = [os.open(os.path.join(m.mnt, "runs/new"), os.O_RDWR) for _ in range(9)]

            def write(fd):
                with contextlib.suppress(OSError):
                    os.write(fd, b'{"command":["true"]}')

            threads = [threading.Thread(target=write, args=(fd,)) for fd in fds]
            for t in threads:
                t.start()
            os.stat(run.path("status"))
            m.proc.send_signal(signal.SIGTERM)
            db.execute("COMMIT")
            db.close()
            for t in threads:
                t.join()
            for fd in fds:
                with contextlib.suppress(OSError):  # not connected any more
                    os.close(fd)
            self.assertEqual(fskit.wait_exit(m.proc), 0)


if __name__ == "__main__":
    sbx.main()
