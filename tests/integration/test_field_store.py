# SPDX-License-Identifier: Apache-2.0
# run: limit=240
"""Field cases about the store: a service that is killed while it works, and two on one store. The name of a
test begins with the number of its case. More of the first kind is in tests/crash/."""
import contextlib
import os
import signal
import sqlite3
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import field  # noqa: E402
import sbx  # noqa: E402
from field import sh, spec  # noqa: E402

BEAT = "while :; do echo beat; sleep 0.1; done"


def integrity(state):
    c = sqlite3.connect("file:%s/state.db?mode=ro" % state, uri=True)
    with contextlib.closing(c):
        return c.execute("PRAGMA integrity_check").fetchall()


class F46(unittest.TestCase):
    def started(self, m):
        """Three that run, two that wait."""
        running = [m.submit(sh(BEAT, timeout_sec=300)) for _ in range(3)]
        for r in running:
            r.stream_until(b"beat")
        waiting = [m.submit(sh("echo later")) for _ in range(2)]
        self.assertEqual([r.status() for r in waiting], ["queued"] * 2)
        return running, waiting

    def later(self, waiting):
        """What waited was executed, as the design says."""
        for r in waiting:
            self.assertEqual(r.wait(60), "0")
            self.assertEqual(r.log, b"later\n")

    def test_F46_service_killed_while_runs_are_running(self):
        """The runs do not belong to the service's process: they go on, can be followed and stopped."""
        with sbx.Mount(settings={"max_concurrent_runs": 3, "cancel_grace_seconds": 1}) as m:
            running, waiting = self.started(m)
            m.kill()
            m.start()
            self.assertEqual(integrity(m.state), [("ok",)])
            self.assertEqual(len(m.runs()), 5)
            for r in running:
                self.assertEqual(r.status(), "running")
                before = len(r.log)
                r.stream_until(b"beat\n" * (before // 5 + 1))  # it grows
                r.ctl("cancel")
                r.wait()
                self.assertEqual((r.status(), r.json()["status_reason_code"]), ("killed", "canceled_by_user"))
                self.assertIsNotNone(r.json()["finished_at"])
                self.assertEqual(set(r.log.splitlines()), {b"beat"})
            self.later(waiting)

    def test_F46_everything_killed_while_runs_are_running(self):
        with sbx.Mount(settings={"max_concurrent_runs": 3}) as m:
            running, waiting = self.started(m)
            doomed = m.processes()
            for pid in doomed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            for pid in doomed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            m.proc.wait()
            self.assertEqual(m.wait_processes_gone(), [])
            sizes = {r.id: os.stat(os.path.join(m.state, "runs", r.id, "log")).st_size for r in running}
            m.start()
            for r in running:
                r.wait()
                doc = r.json()
                self.assertEqual((doc["phase"], doc["status_reason_code"]), ("failed", "runner_lost"))
                self.assertIsNotNone(doc["finished_at"])
                # What was written up to the kill can be read, to the byte, and does not grow any more.
                self.assertEqual(len(r.log), sizes[r.id])
                self.assertEqual(set(r.log.splitlines()), {b"beat"})
                self.assertEqual(r.frames()[-1]["event"], "end")
            self.later(waiting)
            self.assertEqual(len(m.runs()), 5)
            self.assertEqual(integrity(m.state), [("ok",)])


class F47(unittest.TestCase):
    N = 400

    def test_F47_two_processes_on_one_store_and_a_busy_lock(self):
        """400 runs, half through each door, while somebody takes the write lock again and again."""
        settings = {"queue_max_length": 1000, "max_concurrent_runs": 4}
        with sbx.Mount(settings=settings) as a, sbx.Mount(state=a.state, settings=settings) as b:
            runs, errors, listed, done = [], [], [], threading.Event()

            def client(m, n):
                for _ in range(n):
                    try:
                        runs.append(m.submit(spec(command=["true"])))
                    except (OSError, ValueError) as e:
                        errors.append((e, getattr(e, "reply", None)))

            def holder():
                c = sqlite3.connect(os.path.join(a.state, "state.db"), timeout=60 * sbx.SLOW, isolation_level=None)
                with contextlib.closing(c):
                    for _ in range(20):
                        try:
                            c.execute("BEGIN IMMEDIATE")
                            c.execute("SELECT 1")
                            done.wait(0.3)
                            c.execute("COMMIT")
                        except sqlite3.Error as e:
                            errors.append((e, None))
                        done.wait(0.1)

            def lister(m):
                while not done.is_set():
                    began = time.monotonic()
                    try:
                        m.runs()
                    except OSError as e:
                        errors.append((e, None))
                    listed.append(time.monotonic() - began)
                    done.wait(0.05)

            threads = [threading.Thread(target=client, args=(m, self.N // 40)) for m in (a, b) for _ in range(20)]
            others = [threading.Thread(target=holder)] + [threading.Thread(target=lister, args=(m,)) for m in (a, b)]
            for t in others + threads:
                t.start()
            for t in threads:
                t.join()
            for r in runs:
                self.assertEqual(r.wait(120), "0")
            done.set()
            for t in others:
                t.join()
            self.assertEqual(errors, [])
            # Of many, none waited for more than a few of those who hold the lock.
            self.assertGreater(len(listed), 10)
            self.assertLess(max(listed), 2 * sbx.SLOW)
            self.assertEqual(len({r.id for r in runs}), self.N)
            self.assertEqual(a.runs(), b.runs())
            self.assertEqual(a.runs(), sorted(r.id for r in runs))
            for m in (a, b):
                self.assertNotRegex(m.errors(), "locked|busy")
            c = sqlite3.connect("file:%s/state.db?mode=ro" % a.state, uri=True)
            with contextlib.closing(c):
                # Each executed once: claimed once, and ended once.
                self.assertEqual(c.execute("SELECT generation, phase, count(*) FROM runs GROUP BY 1, 2").fetchall(),
                                 [(1, 4, self.N)])
            self.assertEqual(integrity(a.state), [("ok",)])

    def test_F47_two_services_started_by_mistake(self):
        """A second one on the same state works beside the first; on the same mount point, too, it does no
        harm to what is there."""
        with sbx.Mount() as a:
            r = a.submit(sh("echo one"))
            with sbx.Mount(state=a.state) as b:
                self.assertEqual(b.runs(), [r.id])
                self.assertEqual(sbx.Run(b, r.id).wait(), "0")
                s = b.submit(sh("echo two"))
                self.assertEqual(s.wait(), "0")
                self.assertEqual(sbx.Run(a, s.id).log, b"two\n")
            self.assertEqual(a.run(sh("echo three")).log, b"three\n")
            self.assertEqual(len(a.runs()), 3)


if __name__ == "__main__":
    sbx.main()
