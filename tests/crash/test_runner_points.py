# SPDX-License-Identifier: Apache-2.0
# run: limit=240
"""A runner dies, by SIGKILL, at each of its named points: while its door lives and sees it, and together
with its door. Whatever the point, the run is executed at most once, ends, and keeps its log."""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import house  # noqa: E402
from house import sbx  # noqa: E402

SCRIPT = "echo one; echo two >&2; exit 0"
# What becomes of the run. Before the mark it is as if nothing had been; after the row says how it
# ended, that is how it ended; in between nobody can know, and so it is not done again.
AGAIN, LOST, DONE = "AGAIN", "LOST", "DONE"
ENDS = {AGAIN: ("completed", "completed"), LOST: ("failed", "runner_lost"), DONE: ("completed", "completed")}
POINTS = {
    "idle": (AGAIN, 1), "claimed": (AGAIN, 1), "before_mark": (AGAIN, 1),
    "after_mark": (LOST, 0), "executing": (LOST, None), "before_artifacts": (LOST, 1),
    "before_end": (LOST, 1), "after_end": (DONE, 1), "after_settle": (DONE, 1),
}


@unittest.skipUnless(house.has_crash_points(), "this build has no crash points")
class RunnerDies(unittest.TestCase):
    def check(self, h, door, run, point):
        what, ticks = POINTS[point]
        phase, reason = ENDS[what]
        self.assertEqual(len(os.listdir(h.used)), 1, "no runner died at the point")
        doc = run.json()
        self.assertEqual((doc["phase"], doc["status_reason_code"]), (phase, reason))
        if ticks is not None:
            self.assertEqual(h.drain().get(run.key, 0), ticks)
        if phase == "completed" or point in ("before_artifacts", "before_end"):
            # All that was printed was printed before the point.
            self.assertEqual(sorted(run.log.splitlines()), sorted([b"ran " + run.key.encode(), b"one", b"two"]))
        # The next run is not troubled.
        other = h.submit(door, "echo next")
        self.assertEqual(other.wait(), "0")

    def while_the_door_lives(self, point):
        with house.House(max_concurrent_runs=1) as h:
            h.arm(point)
            door = h.door()
            run = h.submit(door, SCRIPT)
            run.wait(60)
            self.check(h, door, run, point)

    def together_with_the_door(self, point):
        """The door dies when it is about to record the loss, so that only the next one can."""
        with house.House(max_concurrent_runs=1) as h:
            h.arm(point)
            door = h.door(crash_at="door_reap_marked")
            key = h.key()
            try:
                run = h.submit(door, SCRIPT, key=key)
            except OSError:
                run = None  # so soon that the client was not even told
                h.maybe.add(key)
            h.died(door)
            h.crash_at(door, None)
            door.start()
            if not run:
                run = sbx.Run(door, h.row(key)[0])
                run.key = key
            run.wait(60)
            self.check(h, door, run, point)


def add(point):
    def lives(self):
        self.while_the_door_lives(point)

    def together(self):
        self.together_with_the_door(point)

    setattr(RunnerDies, "test_%s_while_the_door_lives" % point, lives)
    # Nothing is to be recorded when the runner had no run, or when its end is in the row.
    if POINTS[point][0] != DONE and point != "idle":
        setattr(RunnerDies, "test_%s_together_with_the_door" % point, together)


for name in POINTS:
    add(name)


@unittest.skipUnless(house.has_crash_points(), "this build has no crash points")
class Cancelled(unittest.TestCase):
    """A cancelled run whose runner dies is what its user asked for: gone."""

    def test_cancelled_run_whose_runner_dies_at_its_end(self):
        with house.House(max_concurrent_runs=1) as h:
            h.arm("before_end")
            door = h.door()
            run = h.submit(door, "sleep 60")
            h.wait_tick(run.key)
            run.ctl("cancel")
            run.wait()
            self.assertEqual((run.status(), run.json()["status_reason_code"]), ("killed", "canceled_by_user"))

    def test_cancelled_run_whose_runner_dies_after_its_end(self):
        with house.House(max_concurrent_runs=1) as h:
            h.arm("after_end")
            door = h.door()
            run = h.submit(door, "sleep 60")
            h.wait_tick(run.key)
            run.ctl("kill")
            run.wait()
            self.assertEqual((run.status(), run.json()["status_reason_code"]), ("killed", "canceled_by_user"))

    def test_runners_that_die_one_after_another(self):
        """Some die with the claim in their hands; the next one executes it, once."""
        with house.House(max_concurrent_runs=1) as h:
            h.arm("claimed", 2)
            door = h.door()
            run = h.submit(door)
            self.assertEqual(run.wait(60), "0")
            self.assertEqual(h.row(run.key)[5], 3)  # generation
            self.assertEqual(h.drain()[run.key], 1)

    def test_a_run_that_kills_every_runner_is_given_up(self):
        with house.House(max_concurrent_runs=1) as h:
            h.arm("claimed", 50)
            door = h.door()
            run = h.submit(door)
            self.assertEqual(run.wait(60), "failed")
            self.assertEqual(run.json()["status_reason_code"], "runner_lost")
            h.disarm()
            self.assertNotIn(run.key, h.drain())
            other = h.submit(door)
            self.assertEqual(other.wait(60), "0")

    def test_files_of_dead_runners_are_removed(self):
        """But not before the run that the runner had in hand is taken over."""
        with house.House(max_concurrent_runs=1) as h:
            h.arm("executing")
            door = h.door()
            run = h.submit(door, SCRIPT)
            run.wait(60)
            self.assertEqual(run.json()["status_reason_code"], "runner_lost")
            other = h.submit(door)
            self.assertEqual(other.wait(60), "0")
            names = os.listdir(os.path.join(h.state, "runners"))
            self.assertTrue(names)
            for name in names:  # host,boot,pid,start time,number
                self.assertTrue(house.start_time(int(name.split(",")[2])), name)

    def test_some_of_many(self):
        """Thirty runs, and every third of the first dozen runners dies somewhere."""
        with house.House(max_concurrent_runs=4, queue_max_length=100) as h:
            for point in ("claimed", "after_mark", "executing", "before_end", "after_end", "idle"):
                h.arm(point)
            door = h.door()
            runs = [h.submit(door, "echo x") for _ in range(30)]
            for run in runs:
                run.wait(60)
            lost = [r for r in runs if r.json()["status_reason_code"] == "runner_lost"]
            self.assertLessEqual(len(lost), 3)
            self.assertEqual(len(os.listdir(h.used)), 6)


if __name__ == "__main__":
    sbx.main()
