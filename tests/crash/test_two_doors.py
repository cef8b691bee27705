# SPDX-License-Identifier: Apache-2.0
# run: limit=240
"""Two doors on one state directory: what is started through one is seen through the other at once, and
executed once by one of them; and one goes on when the other dies."""
import os
import signal
import subprocess
import sys
import threading
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import house  # noqa: E402
import fskit  # noqa: E402
from house import sbx  # noqa: E402


class Case(unittest.TestCase):
    def ended(self, run, phase="completed", reason="completed", timeout=60):
        run.wait(timeout)
        doc = run.json()
        self.assertEqual((doc["phase"], doc["status_reason_code"]), (phase, reason))
        return doc

    def through(self, run, door):
        """A second look at the same run, through this door."""
        other = sbx.Run(door, run.id)
        other.key = run.key
        return other


class Together(Case):
    def test_300_runs_through_both_at_once_execute_once_each(self):
        with house.House(queue_max_length=1000, max_concurrent_runs=8) as h:
            doors = [h.door(), h.door()]
            errors = []

            def client(door, n):
                try:
                    for _ in range(n):
                        h.submit(door, "echo x", key=names.pop())
                except Exception as e:
                    errors.append(repr(e))

            names = ["t%d" % i for i in range(320)]
            clients = [threading.Thread(target=client, args=(doors[i % 2], 40)) for i in range(8)]
            for t in clients:
                t.start()
            for t in clients:
                t.join()
            self.assertEqual(errors, [])
            self.assertEqual(len({r.id for r in h.runs.values()}), 320)
            for r in h.runs.values():
                self.ended(r)
            h.drain()
            self.assertEqual(sorted(h.ticks.values()), [1] * 320)
            self.assertEqual(doors[0].runs(), doors[1].runs())

    def test_seen_at_once(self):
        with house.House() as h:
            a, b = h.door(), h.door()
            b.runs()  # so that there is something to be stale
            for _ in range(10):
                run = h.submit(a, "echo x")
                self.assertIn(run.id, b.runs())
                self.assertEqual(os.path.basename(os.readlink(os.path.join(b.mnt, "runs/latest"))), run.id)
                other = self.through(run, b)
                self.assertEqual(other.json()["id"], run.id)
                self.assertEqual(other.wait(), "0")
                self.assertEqual(run.wait(), "0")
                # Ended through one, it is ended through the other, with all that belongs to it.
                for r in (run, other):
                    self.assertEqual(r.status(), "completed")
                    self.assertEqual(r.log, b"ran %s\nx\n" % run.key.encode())
                    self.assertEqual(r.read("exit_code"), b"0\n")
                    self.assertEqual(r.read("artifacts", "ran"), run.key.encode() + b"\n")
            for name in ("spec.json", "status.json", "log.ndjson", "why"):
                self.assertEqual(run.read(name), other.read(name))

    def test_waiting_readers_of_the_other_door(self):
        with house.House() as h:
            a, b = h.door(), h.door()
            run = h.submit(a, "echo up; read x; echo $x", interactive=True)
            other = self.through(run, b)
            wait = subprocess.Popen(["cat", other.path(".wait")], stdout=subprocess.PIPE)
            follow = subprocess.Popen(["cat", other.path(".stream")], stdout=subprocess.PIPE)
            other.stream_until(b"up")
            with open(other.path("stdin"), "wb", buffering=0) as f:
                f.write(b"through-b\n")
            self.assertEqual(wait.communicate(timeout=20 * sbx.SLOW)[0], b"0\n")
            self.assertEqual(follow.communicate(timeout=20 * sbx.SLOW)[0], run.read("log.ndjson"))
            self.assertIn(b"through-b\n", run.log)

    def test_inotify_of_the_other_door(self):
        with house.House() as h:
            a, b = h.door(), h.door()
            with fskit.Inotify() as i:
                i.add(os.path.join(b.mnt, "runs"), i.CREATE)
                run = h.submit(a, "echo x")
                i.wait(lambda path, mask, name: mask & i.CREATE and name == run.id)
            self.ended(run)

    def test_events_of_the_other_door(self):
        with house.House() as h:
            a, b = h.door(), h.door()
            with fskit.Events(b) as events:
                run = h.submit(a, "echo x")
                events.wait(lambda e: e.get("id") == run.id and e["phase"] == "completed")
            with fskit.Events(a, after=0) as one, fskit.Events(b, after=0) as two:
                done = lambda e: e.get("id") == run.id and e["phase"] == "completed"  # noqa: E731
                one.wait(done)
                two.wait(done)
                self.assertEqual([e["seq"] for e in one.lines], [e["seq"] for e in two.lines])

    def test_poll_of_status_of_the_other_door(self):
        with house.House() as h:
            a, b = h.door(), h.door()
            run = h.submit(a, "echo up; sleep 0.5")
            self.through(run, b).wait_phase("completed")

    def cancel(self, text):
        with house.House() as h:
            a, b = h.door(), h.door()
            run = h.submit(a, "echo up; sleep 100")
            run.stream_until(b"up")
            self.through(run, b).ctl(text)
            self.ended(run, "killed", "canceled_by_user")
            self.assertEqual(run.log, b"ran %s\nup\n" % run.key.encode())

    def test_cancel_across_doors(self):
        self.cancel("cancel")

    def test_kill_across_doors(self):
        self.cancel("kill")

    def test_cancel_of_a_waiting_run_across_doors(self):
        with house.House(max_concurrent_runs=1) as h:
            a, b = h.door(), h.door()
            first = h.submit(a, "echo up; sleep 100")
            first.stream_until(b"up")
            second = h.submit(a)
            self.through(second, b).ctl("cancel")
            self.ended(second, "killed", "canceled_by_user")
            first.ctl("kill")
            self.ended(first, "killed", "canceled_by_user")
            self.assertNotIn(second.key, h.drain())

    def test_both_cancel_at_once(self):
        with house.House() as h:
            doors = [h.door(), h.door()]
            runs = [h.submit(doors[i % 2], "echo up; sleep 100") for i in range(6)]
            for r in runs:
                r.stream_until(b"up")
            threads = [threading.Thread(target=self.through(r, d).ctl, args=("kill",)) for r in runs for d in doors]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            for r in runs:
                self.ended(r, "killed", "canceled_by_user")

    def test_a_key_is_one_run_through_both(self):
        with house.House() as h:
            doors = [h.door(), h.door()]
            key, ids = h.key(), []

            def one(door):
                ids.append(door.submit(h.spec(key, idempotency_key="same")).id)

            threads = [threading.Thread(target=one, args=(doors[i % 2],)) for i in range(10)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual(len(ids), 10)
            self.assertEqual(len(set(ids)), 1)
            h.runs[key] = sbx.Run(doors[0], ids[0])
            self.ended(h.runs[key])

    def test_limits_hold_for_both_together(self):
        with house.House(max_concurrent_runs=2, queue_max_length=3) as h:
            a, b = h.door(), h.door()
            runs = [h.submit(d, "echo up; sleep 100") for d in (a, b)]
            for r in runs:
                r.stream_until(b"up")
            waiting = [h.submit(d) for d in (a, b, a)]
            for d in (a, b):
                with self.assertRaises(sbx.Refused) as c:
                    d.submit(h.spec("no"))
                self.assertEqual((c.exception.errno, c.exception.code), (11, "queue_full"))
            for r in runs:
                r.ctl("kill")
            for r in waiting:
                self.ended(r)


class OneDies(Case):
    def test_runs_of_a_killed_door_go_on(self):
        with house.House() as h:
            a, b = h.door(), h.door()
            runs = [h.submit(a, "for i in 1 2 3 4 5; do echo $i; sleep 0.2; done") for _ in range(3)]
            for r in runs:
                h.wait_tick(r.key)
            a.kill()
            for r in runs:
                h.move(r, b)
                self.ended(r)
                self.assertEqual(r.log, b"ran %s\n1\n2\n3\n4\n5\n" % r.key.encode())

    def test_what_is_lost_with_a_door_is_ended_by_the_other(self):
        with house.House(run_claim_lease_sec=3) as h:
            a, b = h.door(), h.door(opts=["workers=0"])
            run = h.submit(a, "echo up; sleep 100")
            run.stream_until(b"up")
            h.move(run, b)
            wait = subprocess.Popen(["cat", run.path(".wait")], stdout=subprocess.PIPE)
            runner = h.runner_of(run)
            for pid in (a.proc.pid, runner):
                os.kill(pid, signal.SIGSTOP)
            for pid in (a.proc.pid, runner):
                os.kill(pid, signal.SIGKILL)
            a.proc.wait()
            # Nobody is left who saw it die: its lease tells.
            self.ended(run, "failed", "runner_lost")
            self.assertEqual(wait.communicate(timeout=20 * sbx.SLOW)[0], b"failed\n")
            self.assertEqual(run.log, b"ran %s\nup\n" % run.key.encode())

    def test_what_waits_is_executed_by_the_other(self):
        with house.House(max_concurrent_runs=1) as h:
            a, b = h.door(), h.door()
            first = h.submit(a, "echo up; sleep 1")
            first.stream_until(b"up")
            rest = [h.submit(a) for _ in range(5)]
            a.kill()
            for r in [first] + rest:
                h.move(r, b)
                self.ended(r)

    def test_a_door_that_dies_again_and_again_beside_one_that_lives(self):
        with house.House(max_concurrent_runs=4, queue_max_length=500) as h:
            a, b = h.door(), h.door()
            for _ in range(6):
                for _ in range(6):
                    h.submit(a, "echo x")
                    h.submit(b, "echo x")
                a.kill()
                a.start()
            for r in h.runs.values():
                self.ended(r)
            h.drain()
            self.assertEqual(sorted(h.ticks.values()), [1] * 72)

    def test_both_killed_and_one_started_again(self):
        with house.House(max_concurrent_runs=2) as h:
            a, b = h.door(), h.door()
            runs = [h.submit(d, "echo x; sleep 0.5; echo y") for d in (a, b, a, b)]
            h.wait_tick(runs[0].key)
            a.kill()
            b.kill()
            a.start()
            for r in runs:
                h.move(r, a)
                self.ended(r)


class Front(Case):
    """A door that submits and shows, and one that executes."""

    def test_front_and_back(self):
        with house.House() as h:
            front, back = h.door(opts=["workers=0"]), h.door()
            runs = [h.submit(front, "echo x") for _ in range(10)]
            for r in runs:
                self.ended(r)
                self.assertEqual(r.log, b"ran %s\nx\n" % r.key.encode())
            self.assertEqual(front.runs(), back.runs())

    def test_front_alone_only_queues(self):
        with house.House() as h:
            front = h.door(opts=["workers=0"])
            runs = [h.submit(front) for _ in range(3)]
            self.assertEqual([r.status() for r in runs], ["queued"] * 3)
            self.assertEqual(h.live_runners(), [])
            follow = subprocess.Popen(["cat", runs[2].path(".stream")], stdout=subprocess.PIPE)
            wait = subprocess.Popen(["cat", runs[2].path(".wait")], stdout=subprocess.PIPE)
            h.door()
            for r in runs:
                self.ended(r)
            self.assertEqual(wait.communicate(timeout=20 * sbx.SLOW)[0], b"0\n")
            self.assertEqual(follow.communicate(timeout=20 * sbx.SLOW)[0], runs[2].read("log.ndjson"))

    def test_back_is_killed_and_comes_again(self):
        with house.House() as h:
            front, back = h.door(opts=["workers=0"]), h.door()
            run = h.submit(front, "echo up; sleep 1; echo end")
            run.stream_until(b"up")
            back.kill()
            later = h.submit(front, "echo later")
            self.assertEqual(later.status(), "queued")
            self.ended(run)  # its runner did not need the door
            back.start()
            self.ended(later)

    def test_cancel_by_the_front(self):
        with house.House() as h:
            front = h.door(opts=["workers=0"])
            h.door()
            run = h.submit(front, "echo up; sleep 100")
            run.stream_until(b"up")
            run.ctl("cancel")
            self.ended(run, "killed", "canceled_by_user")


if __name__ == "__main__":
    sbx.main()
