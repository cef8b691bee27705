# SPDX-License-Identifier: Apache-2.0
# run: limit=300
"""Random things happen to two doors and their runners: submissions, cancels, signals, kills, restarts. The
seed is fixed, what a few hundred of them lead to is not; every promise must hold at the end of each."""
import json
import os
import random
import signal
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import house  # noqa: E402
from house import sbx  # noqa: E402

SCRIPTS = ("true", "echo a; echo b >&2", "exit 3", "sleep 0.2; echo slept", "for i in $(seq 1 50); do echo $i; done",
           "head -c 100000 /dev/zero", "sleep 30", "setsid sleep 30 & echo left", "kill -9 $$",
           "trap 'echo term; exit 9' TERM; while :; do sleep 0.05; done")
POINTS = ("idle", "claimed", "before_mark", "after_mark", "executing", "before_artifacts", "before_end",
          "after_end", "after_settle")
ENDS = {
    "completed": {"completed", "limits_applied"},
    "failed": {"nonzero_exit", "runner_lost", "runtime_error", "queue_ttl_expired", "claim_lease_expired"},
    "killed": {"canceled_by_user"}, "timed_out": {"execution_timeout", "startup_timeout"},
}


class Model(unittest.TestCase):
    def live_door(self):
        return self.rnd.choice([d for d in self.doors if d.proc.poll() is None])

    def some_run(self):
        if not self.h.runs:
            return None
        run = self.rnd.choice(list(self.h.runs.values())[-15:])
        return sbx.Run(self.live_door(), run.id)

    # ---- what can happen ----

    def do_submit(self):
        over = {}
        if self.rnd.random() < 0.3:
            over["idempotency_key"] = "key-%d" % self.h.serial
        if self.rnd.random() < 0.2:
            over["timeout_sec"] = 1
        if self.rnd.random() < 0.2:
            over["trust_level"] = self.rnd.choice(("standard", "untrusted"))
        try:
            self.h.submit(self.live_door(), self.rnd.choice(SCRIPTS), **over)
        except sbx.Refused as e:
            self.assertEqual(e.code, "queue_full")

    def do_ctl(self):
        run = self.some_run()
        if not run:
            return
        try:
            run.ctl(self.rnd.choice(("cancel", "cancel", "kill", "signal TERM", "signal KILL", "signal USR1")))
        except OSError as e:
            self.assertEqual(e.errno, 32)  # EPIPE: it has ended already

    def do_kill_door(self):
        """Kills a door, lets a submission fall into the gap, and starts it again."""
        door = self.rnd.choice(self.doors)
        door.kill()
        with self.assertRaises(OSError):
            door.submit(self.h.spec("gap"))
        door.start()

    def do_stop_door(self):
        door = self.rnd.choice(self.doors)
        door.stop()
        door.start()

    def do_kill_runner(self):
        pids = self.h.live_runners()
        if pids:
            try:
                os.kill(self.rnd.choice(pids), signal.SIGKILL)
            except ProcessLookupError:
                pass

    def do_kill_init(self):
        for pid in self.h.live_runners():
            below = house.children(pid)
            if below and self.rnd.random() < 0.5:
                try:
                    os.kill(below[0], signal.SIGKILL)
                except ProcessLookupError:
                    pass
                return

    def do_arm(self):
        """The next runner to be started will die at one of its points."""
        if house.has_crash_points():
            self.h.arm(self.rnd.choice(POINTS))

    def do_wait(self):
        run = self.some_run()
        if run and run.json()["phase"] in sbx.TERMINAL:
            self.assertTrue(run.wait())
            last = json.loads(house.follow(run).splitlines()[-1])
            self.assertEqual(last.get("event"), "end")

    def do_look(self):
        ids = self.live_door().runs()
        for run in self.h.runs.values():
            self.assertIn(run.id, ids)

    STEPS = (("submit", 55), ("ctl", 20), ("wait", 10), ("look", 3), ("kill_runner", 4), ("kill_init", 3),
             ("arm", 3), ("kill_door", 2), ("stop_door", 1))

    def play(self, seed, steps, **settings):
        self.rnd = random.Random(seed)
        names, weights = zip(*self.STEPS)
        with house.House(max_concurrent_runs=4, queue_max_length=40, **settings) as h:
            self.h = h
            self.doors = [h.door(), h.door()]
            for name in self.rnd.choices(names, weights, k=steps):
                getattr(self, "do_" + name)()
            last = self.doors[0]
            for run_id in last.runs():
                sbx.Run(last, run_id).ctl("kill")  # says nothing to one that has ended
            h.check(last)
            for run_id in last.runs():
                doc = sbx.Run(last, run_id).json()
                self.assertIn(doc["status_reason_code"], ENDS[doc["phase"]], doc)
            self.assertGreater(len(h.runs), steps // 10)

    def test_seed_1(self):
        self.play(1, 400)

    def test_seed_2_with_short_leases(self):
        self.play(2, 400, run_claim_lease_sec=3)

    def test_seed_3_with_few_runners(self):
        self.play(3, 300, warm_runners=0)


if __name__ == "__main__":
    sbx.main()
