# SPDX-License-Identifier: Apache-2.0
# run: limit=240
"""The door dies, by SIGKILL, at each of its named points, and is started again on the same state. What
runs goes on meanwhile; what was accepted is executed, once; what was not may be tried again."""
import os
import sqlite3
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import house  # noqa: E402
from house import sbx  # noqa: E402


@unittest.skipUnless(house.has_crash_points(), "this build has no crash points")
class Case(unittest.TestCase):
    def again(self, h, door):
        """Starts the door once more, without a point to die at."""
        h.crash_at(door, None)
        door.start()
        return door

    def ended(self, run, phase, reason):
        run.wait(60)
        doc = run.json()
        self.assertEqual((doc["phase"], doc["status_reason_code"]), (phase, reason))


class Submitting(Case):
    """A submission during which the door dies was not accepted; the client tries again, with its key."""

    def die_at(self, point, there, meanwhile=False):
        """there: whether the run is in the store. meanwhile: another one is executing."""
        with house.House() as h:
            door = h.door()
            running = h.submit(door, "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.1; done") if meanwhile else None
            if running:
                h.wait_tick(running.key)
            door.stop()
            h.crash_at(door, point)
            door.start()
            key = h.submit_that_dies(door, "echo more", idempotency_key="the-key")
            row = h.row(key)
            self.assertEqual(row is not None, there)
            self.again(h, door)
            run = h.submit(door, "echo more", key=key, idempotency_key="the-key")
            if there:
                self.assertEqual(run.id, row[0])
            self.ended(run, "completed", "completed")
            self.assertEqual(h.drain()[key], 1)
            self.assertEqual(run.log, b"ran %s\nmore\n" % key.encode())
            if running:
                h.move(running, door)
                self.ended(running, "completed", "completed")
                self.assertEqual(running.log.split(), [b"ran", running.key.encode()] + b"1 2 3 4 5 6 7 8".split())

    def test_submit_parsed(self):
        self.die_at("door_submit_parsed", False)

    def test_submit_inserted(self):
        self.die_at("door_submit_inserted", False)

    def test_submit_committed(self):
        self.die_at("door_submit_committed", True)

    def test_submit_assigned(self):
        self.die_at("door_submit_assigned", True)

    def test_submit_settled(self):
        self.die_at("door_submit_settled", True)

    def test_answering(self):
        self.die_at("door_answering", True)

    def test_submit_inserted_while_another_runs(self):
        self.die_at("door_submit_inserted", False, True)

    def test_submit_committed_while_another_runs(self):
        self.die_at("door_submit_committed", True, True)

    def test_submit_assigned_while_another_runs(self):
        self.die_at("door_submit_assigned", True, True)

    def test_without_a_second_try(self):
        """Nobody asks again: what is in the store is executed all the same, once."""
        with house.House() as h:
            door = h.door(crash_at="door_submit_committed")
            key = h.submit_that_dies(door)
            self.again(h, door)
            self.ended(sbx.Run(door, h.row(key)[0]), "completed", "completed")
            self.assertEqual(h.drain()[key], 1)

    def test_ten_times_in_a_row(self):
        with house.House() as h:
            door = h.door(crash_at="door_submit_assigned")
            keys = [h.submit_that_dies(door)]
            for _ in range(9):
                door.start()
                keys.append(h.submit_that_dies(door))
            self.again(h, door)
            for key in keys:
                self.ended(sbx.Run(door, h.row(key)[0]), "completed", "completed")
            h.drain()
            self.assertEqual([h.ticks[k] for k in keys], [1] * 10)


class Dispatching(Case):
    """One door submits, the other executes and dies while it hands a run out."""

    def die_at(self, point, n=3):
        with house.House(max_concurrent_runs=2) as h:
            front = h.door(opts=["workers=0"])
            runs = [h.submit(front, "echo more") for _ in range(n)]
            self.assertEqual([r.status() for r in runs], ["queued"] * n)
            back = h.door()
            back.stop()
            # What the first moments executed is done; the rest waits.
            for r in runs:
                if r.status() in ("starting", "running"):
                    r.wait(60)
            more = [h.submit(front, "echo more") for _ in range(n)]
            h.crash_at(back, point)
            h.start_that_dies(back)
            self.again(h, back)
            for r in runs + more:
                self.ended(r, "completed", "completed")
                self.assertEqual(r.log, b"ran %s\nmore\n" % r.key.encode())
            h.drain()
            self.assertEqual([h.ticks[r.key] for r in runs + more], [1] * (2 * n))

    def test_dispatch_claimed(self):
        self.die_at("door_dispatch_claimed")

    def test_dispatch_committed(self):
        self.die_at("door_dispatch_committed")

    def test_dispatch_assigned(self):
        self.die_at("door_dispatch_assigned")

    def several_claims(self, point):
        """Runs of a queue are claimed together for the runners that are idle."""
        with house.House(max_concurrent_runs=6, warm_runners=6) as h:
            front = h.door(opts=["workers=0"])
            runs = [h.submit(front) for _ in range(10)]
            door = h.door(crash_at=point)
            h.died(door)
            self.again(h, door)
            for run in runs:
                self.ended(run, "completed", "completed")

    def test_dispatch_claimed_several(self):
        self.several_claims("door_dispatch_claimed")

    def test_dispatch_committed_several(self):
        self.several_claims("door_dispatch_committed")

    def test_runner_started(self):
        self.die_at("door_runner_started")


class Cancelling(Case):
    def cancel_that_dies(self, h, run, text="cancel"):
        try:
            run.ctl(text)
        except OSError as e:
            self.assertIn(e.errno, house.DIED)
        h.died(run.mount)

    def queued(self, point, phase):
        """Cancel of a run that waits. phase: after the restart, before anything else."""
        with house.House() as h:
            front = h.door(opts=["workers=0"], crash_at=point)
            run = h.submit(front)
            self.cancel_that_dies(h, run)
            self.again(h, front)
            self.assertEqual(run.status(), phase)
            run.ctl("cancel")
            self.ended(run, "killed", "canceled_by_user")
            self.assertNotIn(run.key, h.drain())

    def test_cancel_marked_of_a_queued_run(self):
        self.queued("door_cancel_marked", "queued")

    def test_cancel_committed_of_a_queued_run(self):
        self.queued("door_cancel_committed", "killed")

    def running(self, point, again):
        """Cancel of a run that executes. again: the client has to ask once more."""
        with house.House() as h:
            door = h.door(crash_at=point)
            run = h.submit(door, "echo up; sleep 100")
            run.stream_until(b"up")
            self.cancel_that_dies(h, run)
            self.again(h, door)
            if again:
                self.assertEqual(run.status(), "running")
                run.ctl("cancel")
            self.ended(run, "killed", "canceled_by_user")
            self.assertEqual(run.log, b"ran %s\nup\n" % run.key.encode())

    def test_cancel_marked_of_a_running_run(self):
        self.running("door_cancel_marked", True)

    def test_cancel_committed_of_a_running_run(self):
        """The intent is in the row: it is obeyed although nobody rang."""
        self.running("door_cancel_committed", False)

    def test_told_runner(self):
        """A signal that is written but not rung for: the next one brings both."""
        with house.House() as h:
            door = h.door(crash_at="door_told_runner")
            run = h.submit(door, "trap 'echo usr1' USR1; trap 'echo usr2; exit 7' USR2; echo up; "
                                 "while :; do sleep 0.05; done")
            run.stream_until(b"up")
            self.cancel_that_dies(h, run, "signal USR1")
            self.again(h, door)
            run.ctl("signal USR2")
            self.ended(run, "failed", "nonzero_exit")
            self.assertEqual(run.json()["exit_code"], 7)
            self.assertEqual(run.stdout, b"ran %s\nup\nusr1\nusr2\n" % run.key.encode())

    def test_input_that_is_written_but_not_rung_for(self):
        with house.House() as h:
            door = h.door(crash_at="door_told_runner")
            run = h.submit(door, "echo up; cat", interactive=True)
            run.stream_until(b"up")
            try:
                fd = os.open(run.path("stdin"), os.O_WRONLY)
                os.write(fd, b"hello ")
            except OSError as e:
                self.assertIn(e.errno, house.DIED)
            h.died(door)
            self.again(h, door)
            try:
                os.close(fd)
            except OSError:
                pass
            with open(run.path("stdin"), "wb", buffering=0) as f:
                f.write(b"world\n")
            run.ctl("eof")
            self.ended(run, "completed", "completed")
            self.assertEqual(run.log, b"ran %s\nup\nhello world\n" % run.key.encode())


class Ending(Case):
    def reap(self, point):
        """The runner is killed, and the door dies while it records that."""
        with house.House() as h:
            door = h.door(crash_at=point)
            run = h.submit(door, "echo up; sleep 100")
            run.stream_until(b"up")
            os.kill(h.runner_of(run), 9)
            h.died(door)
            self.again(h, door)
            self.ended(run, "failed", "runner_lost")
            self.assertEqual(run.log, b"ran %s\nup\n" % run.key.encode())

    def test_reap_marked(self):
        self.reap("door_reap_marked")

    def test_reap_committed(self):
        self.reap("door_reap_committed")

    def test_reap_committed_of_a_run_that_goes_back(self):
        with house.House(max_concurrent_runs=1) as h:
            h.arm("claimed")
            door = h.door(crash_at="door_reap_committed")
            run = h.submit(door)
            h.died(door)
            self.assertEqual(house.PHASES[h.row(run.key)[1]], "queued")
            self.again(h, door)
            self.ended(run, "completed", "completed")

    def test_expire_committed(self):
        with house.House(queue_ttl_sec=1) as h:
            front = h.door(opts=["workers=0"], crash_at="door_expire_committed")
            run = h.submit(front)
            h.died(front)
            self.again(h, front)
            self.ended(run, "failed", "queue_ttl_expired")
            self.assertNotIn(run.key, h.drain())

    def bound(self, point):
        """A run that lives as long as its descriptor; the door dies when that is closed."""
        with house.House() as h:
            door = h.door(crash_at=point)
            fd = os.open(os.path.join(door.mnt, "runs/new"), os.O_RDWR)
            key = h.key()
            import json
            os.write(fd, json.dumps(h.spec(key, "echo up; sleep 100", lifetime="handle")).encode())
            run = sbx.Run(door, os.read(fd, 100).decode().strip())
            run.key, h.runs[key] = key, run
            run.stream_until(b"up")
            try:
                os.close(fd)
            except OSError:
                pass
            h.died(door)
            self.again(h, door)
            self.ended(run, "killed", "canceled_by_user")

    def test_release_bound(self):
        self.bound("door_release_bound")

    def test_release_bound_and_cancelled(self):
        self.bound("door_cancel_committed")


class Housekeeping(Case):
    def age(self, h, hours=48):
        """Makes every run look as if it had ended that long ago."""
        c = sqlite3.connect(os.path.join(h.state, "state.db"), timeout=20)
        with c:
            c.execute("UPDATE runs SET finished_us = finished_us - ?", (hours * 3600 * 1000000,))
        c.close()

    def test_janitor_removed(self):
        """Artifacts past their time: the files are gone and the rows are not yet."""
        with house.House() as h:
            door = h.door()
            runs = [h.submit(door) for _ in range(3)]
            for r in runs:
                self.ended(r, "completed", "completed")
            door.stop()
            self.age(h)
            h.crash_at(door, "door_janitor_removed")
            h.start_that_dies(door)
            self.again(h, door)
            h.wait_sql("SELECT count(*) FROM artifacts", 0)
            for r in runs:
                self.assertEqual(os.listdir(r.path("artifacts")), [])
                self.assertFalse(os.path.exists(os.path.join(h.state, "runs", r.id, "artifacts")))
                del h.runs[r.key]
            # What remains of them is the row and the log.
            for r in runs:
                self.assertEqual(r.log, b"ran %s\n" % r.key.encode())
                h.expired.add(r.key)

    def test_janitor_pruned(self):
        with house.House() as h:
            door = h.door()
            run = h.submit(door, "sleep 0.5; echo end")
            door.kill()
            h.crash_at(door, "door_janitor_pruned")
            h.start_that_dies(door)
            self.again(h, door)
            self.ended(run, "completed", "completed")
            self.assertEqual(run.log, b"ran %s\nend\n" % run.key.encode())

    def test_run_directory_without_a_row(self):
        with house.House() as h:
            door = h.door()
            run = h.submit(door)
            self.ended(run, "completed", "completed")
            door.kill()
            stray = os.path.join(h.state, "runs", "0192f5c0-0000-7000-8000-000000000000")
            os.makedirs(os.path.join(stray, "artifacts/deep"))
            with open(os.path.join(stray, "log"), "w") as f:
                f.write("x")
            door.start()
            h.wait_path_gone(stray)


if __name__ == "__main__":
    sbx.main()
