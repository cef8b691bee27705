# SPDX-License-Identifier: Apache-2.0
# run: limit=240
"""Who waits, how long, in what order, and who is turned away."""
import os
import re
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import house  # noqa: E402
import fskit  # noqa: E402
from house import sbx  # noqa: E402

EAGAIN = 11


class Case(unittest.TestCase):
    def ended(self, run, phase="completed", reason="completed", timeout=60):
        run.wait(timeout)
        doc = run.json()
        self.assertEqual((doc["phase"], doc["status_reason_code"]), (phase, reason))
        return doc

    def as_user(self, h, uid, door, script="", **over):
        """A submission by a process of this uid."""
        key = h.key("u%d-" % uid)
        run = fskit.submit_as(uid, door, h.spec(key, script, **over))
        run.key = key
        h.runs[key] = run
        return run

    def times(self, h):
        """(started, finished) of every run by its key."""
        return {name: (s, f) for name, s, f in h.sql("SELECT name, started_us, finished_us FROM runs")}

    def order(self, h, runs):
        at = self.times(h)
        return sorted(runs, key=lambda r: at[r.key][0])

    def most_at_once(self, h, runs):
        at = self.times(h)
        moments = sorted([(at[r.key][0], 1) for r in runs] + [(at[r.key][1], -1) for r in runs])
        most = now = 0
        for _, step in moments:
            now += step
            most = max(most, now)
        return most


class Ttl(Case):
    def test_a_run_that_waits_too_long_is_ended(self):
        with house.House(max_concurrent_runs=1, queue_ttl_sec=1) as h:
            door = h.door()
            first = h.submit(door, "echo up; sleep 100")
            first.stream_until(b"up")
            second = h.submit(door)
            self.ended(second, "failed", "queue_ttl_expired")
            self.assertEqual(second.log, b"")
            self.assertEqual(first.status(), "running")
            first.ctl("kill")
            self.ended(first, "killed", "canceled_by_user")
            # The time in the queue is not the run's own.
            third = h.submit(door, "sleep 2")
            self.ended(third)
            self.assertNotIn(second.key, h.drain())

    def test_time_goes_on_while_there_is_no_door(self):
        with house.House(queue_ttl_sec=1) as h:
            front = h.door(opts=["workers=0"])
            runs = [h.submit(front) for _ in range(3)]
            front.kill()
            h.sleep_until_boot(h.sql("SELECT max(queue_expires_us) FROM runs")[0][0])
            back = h.door()
            for r in runs:
                h.move(r, back)
                self.ended(r, "failed", "queue_ttl_expired")
            self.assertEqual(h.drain(), {})

    def test_why_says_that_it_waits(self):
        with house.House(max_concurrent_runs=1) as h:
            door = h.door()
            first = h.submit(door, "echo up; sleep 100")
            first.stream_until(b"up")
            second = h.submit(door)
            self.assertRegex(second.read("why"), b"waiting: .*1 of 1 slots are taken")
            self.assertIsNotNone(second.json()["estimated_start_time"])
            first.ctl("kill")
            self.ended(second)


class Full(Case):
    def full(self, h, door, reason, scope, limit, uid=None, **over):
        with self.assertRaises(sbx.Refused) as c:
            if uid:
                fskit.submit_as(uid, door, h.spec("refused", **over))
            else:
                door.submit(h.spec("refused", **over))
        e = c.exception
        self.assertEqual((e.errno, e.code), (EAGAIN, "queue_full"))
        self.assertEqual((e.details["reason"], e.details["quota_scope"], e.details["limit"]), (reason, scope, limit))
        self.assertGreaterEqual(e.details["retry_after"], 1)
        self.assertIn(str(limit), e.message)

    def test_queue_is_full(self):
        with house.House(queue_max_length=3) as h:
            front = h.door(opts=["workers=0"])
            runs = [h.submit(front) for _ in range(3)]
            self.full(h, front, "queue_capacity_exceeded", "global", 3)
            # A key of a run that is there is answered all the same; a new one is not used up.
            runs[0].ctl("cancel")
            self.ended(runs[0], "killed", "canceled_by_user")
            more = h.submit(front)
            self.full(h, front, "queue_capacity_exceeded", "global", 3)
            h.door()
            for r in runs[1:] + [more]:
                self.ended(r)

    def test_a_key_is_not_used_up_by_a_full_queue(self):
        with house.House(queue_max_length=1) as h:
            front = h.door(opts=["workers=0"])
            first = h.submit(front, idempotency_key="one")
            self.full(h, front, "queue_capacity_exceeded", "global", 1, idempotency_key="two")
            again = front.submit(h.spec(first.key, idempotency_key="one"))
            self.assertEqual(again.id, first.id)
            h.door()
            self.ended(first)
            second = h.submit(front, idempotency_key="two")
            self.ended(second)

    def test_no_queue_at_all_refuses_everything(self):
        with house.House() as h:
            door = h.door(queue_max_length=0)
            self.full(h, door, "queue_capacity_exceeded", "global", 0)

    def test_persona(self):
        with house.House(queue_max_per_persona=2) as h:
            front = h.door(opts=["workers=0"])
            for _ in range(2):
                h.submit(front, persona_id="p")
            self.full(h, front, "persona_queue_quota_exceeded", "persona_id", 2, persona_id="p")
            h.submit(front, persona_id="q")
            h.submit(front)
            h.door()

    def test_workspace(self):
        with house.House(queue_max_per_workspace=1) as h:
            front = h.door(opts=["workers=0"])
            h.submit(front, workspace_id="w")
            self.full(h, front, "workspace_queue_quota_exceeded", "workspace_id", 1, workspace_id="w")
            h.submit(front, workspace_id="v")
            h.door()

    def test_workspace_group(self):
        with house.House(queue_max_per_workspace_group=1) as h:
            front = h.door(opts=["workers=0"])
            h.submit(front, workspace_group_id="g")
            self.full(h, front, "workspace_group_queue_quota_exceeded", "workspace_group_id", 1, workspace_group_id="g")
            h.submit(front)
            h.door()

    @unittest.skipUnless(sbx.ROOT, "needs other users")
    def test_user(self):
        with house.House(queue_max_per_user=2) as h:
            front = h.door(opts=["workers=0"])
            for _ in range(2):
                self.as_user(h, fskit.ALICE, front)
            self.full(h, front, "user_queue_quota_exceeded", "user_id", 2, uid=fskit.ALICE)
            self.as_user(h, fskit.BOB, front)
            h.door()


@unittest.skipUnless(sbx.ROOT, "needs other users")
class Fairness(Case):
    def test_two_users_take_turns(self):
        with house.House(max_concurrent_runs=1) as h:
            front = h.door(opts=["workers=0"])
            alice = [self.as_user(h, fskit.ALICE, front) for _ in range(6)]
            bob = [self.as_user(h, fskit.BOB, front) for _ in range(3)]
            h.door()
            for r in alice + bob:
                self.ended(r)
            order = self.order(h, alice + bob)
            who = "".join("a" if r in alice else "b" for r in order)
            self.assertRegex(who, "^(ab){3}aaa$|^(ba){3}aaa$")
            # And each one's own in the order in which they came.
            for mine in (alice, bob):
                self.assertEqual([r for r in order if r in mine], mine)

    def test_one_users_many_runs_delay_anothers_by_one(self):
        with house.House(max_concurrent_runs=1, queue_max_length=200) as h:
            front = h.door(opts=["workers=0"])
            many = [self.as_user(h, fskit.ALICE, front) for _ in range(40)]
            one = self.as_user(h, fskit.BOB, front)
            h.door()
            self.ended(one)
            for r in many:
                self.ended(r)
            self.assertLessEqual(self.order(h, many + [one]).index(one), 1)

    def test_turns_are_remembered_over_a_restart(self):
        with house.House(max_concurrent_runs=1) as h:
            front = h.door(opts=["workers=0"])
            runs = []
            for _ in range(3):
                for uid in (fskit.ALICE, fskit.BOB, fskit.CAROL):
                    runs.append(self.as_user(h, uid, front, "sleep 0.1"))
            back = h.door()
            h.wait_tick(runs[0].key)
            back.kill()
            back.start()
            for r in runs:
                self.ended(r)
            # Three users, each with three runs: every three in a row are of three users.
            order = [int(re.search(r"u(\d+)-", r.key).group(1)) for r in self.order(h, runs)]
            for i in (0, 3, 6):
                self.assertEqual(len(set(order[i:i + 3])), 3, order)


class Caps(Case):
    def capped(self, h, door, limit, n, **over):
        runs = [h.submit(door, "sleep 0.3", **over) for _ in range(n)]
        free = h.submit(door, "sleep 0.3")
        for r in runs + [free]:
            self.ended(r)
        self.assertLessEqual(self.most_at_once(h, runs), limit)
        # The one that is in no such scope did not wait for them.
        self.assertLess(self.times(h)[free.key][0], max(self.times(h)[r.key][0] for r in runs))

    def test_slots(self):
        with house.House(max_concurrent_runs=2) as h:
            door = h.door()
            runs = [h.submit(door, "sleep 0.3") for _ in range(6)]
            for r in runs:
                self.ended(r)
            self.assertEqual(self.most_at_once(h, runs), 2)

    @unittest.skipUnless(sbx.ROOT, "needs other users")
    def test_user(self):
        with house.House(active_max_per_user=1, max_concurrent_runs=4) as h:
            door = h.door()
            alice = [self.as_user(h, fskit.ALICE, door, "sleep 0.3") for _ in range(3)]
            bob = self.as_user(h, fskit.BOB, door, "sleep 0.3")
            for r in alice + [bob]:
                self.ended(r)
            self.assertEqual(self.most_at_once(h, alice), 1)
            self.assertLess(self.times(h)[bob.key][0], self.times(h)[alice[2].key][0])

    @unittest.skipUnless(sbx.ROOT, "needs other users")
    def test_persona(self):
        with house.House(active_max_per_persona=1, max_concurrent_runs=4) as h:
            door = h.door()
            alice = [self.as_user(h, fskit.ALICE, door, "sleep 0.3", persona_id="p") for _ in range(2)]
            bob = [self.as_user(h, fskit.BOB, door, "sleep 0.3", persona_id="p") for _ in range(2)]
            for r in alice + bob:
                self.ended(r)
            self.assertEqual(self.most_at_once(h, alice + bob), 1)

    def test_workspace(self):
        with house.House(active_max_per_workspace=2, max_concurrent_runs=4) as h:
            door = h.door()
            runs = [h.submit(door, "sleep 0.3", workspace_id="w") for _ in range(5)]
            for r in runs:
                self.ended(r)
            self.assertEqual(self.most_at_once(h, runs), 2)

    def test_workspace_group(self):
        with house.House(active_max_per_workspace_group=1, max_concurrent_runs=4) as h:
            door = h.door()
            runs = [h.submit(door, "sleep 0.3", workspace_group_id="g", workspace_id="w%d" % i) for i in range(3)]
            for r in runs:
                self.ended(r)
            self.assertEqual(self.most_at_once(h, runs), 1)

    def test_memory_of_the_host(self):
        with house.House(host_memory_budget_mb=500, max_concurrent_runs=4) as h:
            door = h.door()
            runs = [h.submit(door, "sleep 0.3", resources={"memory_mb": 300}) for _ in range(3)]
            for r in runs:
                self.ended(r)
            self.assertEqual(self.most_at_once(h, runs), 1)

    def test_processors_of_the_host(self):
        with house.House(host_cpu_budget=2, max_concurrent_runs=4) as h:
            door = h.door()
            runs = [h.submit(door, "sleep 0.3", resources={"cpu": 1}) for _ in range(5)]
            for r in runs:
                self.ended(r)
            self.assertEqual(self.most_at_once(h, runs), 2)

    def test_a_run_that_is_alone_always_fits(self):
        with house.House(host_memory_budget_mb=100, host_cpu_budget=0.5) as h:
            door = h.door()
            run = h.submit(door, resources={"memory_mb": 300, "cpu": 2})
            self.ended(run)

    def test_slots_are_free_again_after_every_kind_of_end(self):
        with house.House(max_concurrent_runs=1) as h:
            door = h.door()
            ends = [("", {}), ("exit 3", {}), ("kill -9 $$", {}), ("sleep 100", {"timeout_sec": 1})]
            runs = [h.submit(door, script, **over) for script, over in ends]
            runs.append(door.submit({"command": ["/no/such"], "name": "none"}))
            h.maybe.add("none")
            last = h.submit(door, "echo last")
            self.ended(last)
            self.assertEqual([r.json()["status_reason_code"] for r in runs],
                             ["completed", "nonzero_exit", "nonzero_exit", "execution_timeout", "nonzero_exit"])


if __name__ == "__main__":
    sbx.main()
