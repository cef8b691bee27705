# SPDX-License-Identifier: Apache-2.0
# run: limit=240
"""Who executes a run, and that it is only one. Design: a claim is taken by the runner that will execute the
run, in the transaction that admits it; there is no claim of a queued run. The workers of the rows are the
runners of two servers, P1 and P2, on one state directory."""
import os
import signal
import subprocess

import conf
from conf import api

STARTING, RUNNING, FAILED = 2, 3, 5


def claimed(run):
    return run.row("claim_owner", "generation")


def runner_of(run):
    return int(claimed(run)[0].split("/")[2])


class Pair(conf.Alone):
    def look_again(self, server, t, key):
        """Makes this server's dispatcher look at everything, and waits until it has."""
        self.ended(server.run(t.spec(key)))

    def freeze(self, pid):
        """Stops a process as a machine stops that is suspended: it cannot renew."""
        os.kill(pid, signal.SIGSTOP)
        self.addCleanup(lambda: os.path.exists("/proc/%d" % pid) and os.kill(pid, signal.SIGCONT))


class Claims(Pair):
    def test_T156_a_claimed_run_is_left_alone(self):
        with conf.Ticker() as t, conf.two(t.settings) as (p1, p2):
            x = p1.run(t.spec("x", "sleep 100", timeout_sec=200))
            t.wait("x")
            x.wait_phase("running")
            before = x.row("claim_owner", "generation", "claim_boot")
            self.assertIsNotNone(before[0])
            self.assertGreater(x.row("claim_expires_us")[0], conf.boot_us())
            self.look_again(p2, t, "other")
            self.assertEqual(x.row("claim_owner", "generation", "claim_boot"), before)
            x.through(p2).cancel()
            self.ended(x, "killed", "canceled_by_user")
            self.assertEqual(t.ticks(), {"x": 1, "other": 1})

    def abandoned(self, t, p2, key, owner):
        """A run that this process has claimed and does not execute: P2 leaves it alone until the lease is over."""
        busy = [p2.run(t.spec("busy%d-%s" % (i, key), "sleep 100", timeout_sec=200)) for i in range(2)]
        for i, run in enumerate(busy):
            t.wait("busy%d-%s" % (i, key))
            run.wait_phase("running")
        x = p2.run(t.spec(key))
        until = conf.boot_us() + 3000000
        p2.change("UPDATE runs SET phase=?, reason='starting', generation=1, claim_owner=?, claim_boot=?, "
                  "claim_expires_us=? WHERE id=? AND phase=1", STARTING, owner, conf.boot_id(), until, x.id)
        for run in busy:  # slots become free
            run.cancel()
            self.ended(run, "killed", "canceled_by_user")
        self.look_again(p2, t, "other-" + key)
        looked = (x.row("phase", "claim_owner", "generation"), t.ticks().get(key))
        if conf.boot_us() < until:  # else this machine is too slow to see it refused
            self.assertEqual(looked, ((STARTING, owner, 1), None))
        doc = x.wait()
        self.assertGreater(conf.boot_us(), until)
        self.assertIsNone(claimed(x)[0])
        return doc

    def test_T157_an_abandoned_claim_runs_out(self):
        dead = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
        dead_owner = conf.owner(dead.pid)
        dead.kill()
        dead.communicate()
        with conf.Ticker() as t, self.server({**t.settings, "max_concurrent_runs": 2}) as p2:
            # The claimant is certainly gone, and the command was not begun: P2 executes it.
            doc = self.abandoned(t, p2, "x", dead_owner)
            self.assertEqual((doc["phase"], doc["claim_generation"]), ("completed", 2))
            self.assertEqual(t.ticks()["x"], 1)
            # Of one on another machine nobody can say what it did; and a run never executes twice.
            doc = self.abandoned(t, p2, "y", "elsewhere/%s/1/1/0" % conf.boot_id())
            self.assertEqual((doc["phase"], doc["status_reason_code"]), ("failed", "claim_lease_expired"))
            self.assertNotIn("y", t.ticks())

    def test_T158_only_the_holder_renews(self):
        # Somebody else takes the claim: the first runner's next renewal is refused, so it kills its sandbox
        # and writes nothing more; the other's claim stays as it was.
        with conf.Ticker() as t, self.server({**t.settings, "run_claim_lease_sec": conf.LEASE}) as a:
            x = a.run(t.spec("x", "sleep 100", timeout_sec=200))
            t.wait("x")
            x.wait_phase("running")
            other = "elsewhere/%s/1/1/0" % conf.boot_id()
            sandbox = [int(p) for p in children(runner_of(x))]
            self.assertTrue(sandbox)
            a.change("UPDATE runs SET generation=2, claim_owner=?, claim_expires_us=? WHERE id=?", other,
                     conf.boot_us() + 600000000, x.id)
            for p in sandbox:
                self.assertTrue(gone(p, 20 * conf.sbx.SLOW), "the sandbox of the refused runner lives")
            self.assertEqual(x.row("phase", "claim_owner", "generation"), (RUNNING, other, 2))
            # The holder's own word is taken: its lease runs out, and the run ends.
            a.change("UPDATE runs SET claim_expires_us=1 WHERE id=?", x.id)
            self.look_again(a, t, "later")
            self.ended(x, "failed", "claim_lease_expired")
            self.assertEqual(claimed(x)[0], None)

    def test_T167_the_lease_is_renewed_while_it_executes(self):
        with conf.Ticker() as t, conf.two({**t.settings, "run_claim_lease_sec": conf.LEASE}) as (p1, p2):
            x = p1.run(t.spec("x", "sleep %d" % (conf.LEASE + 2), timeout_sec=30))
            t.wait("x")
            owner, generation = claimed(x)
            first = x.row("claim_expires_us")[0]
            conf.wait_boot(first)
            self.look_again(p2, t, "other")
            self.assertEqual(claimed(x), (owner, generation))
            self.assertGreater(x.row("claim_expires_us")[0], first)
            self.ended(x)
            self.assertEqual(x.row("claim_owner", "claim_expires_us", "generation"), (None, 0, 1))
            self.assertEqual(t.ticks(), {"x": 1, "other": 1})

    def test_T168_a_queued_run_has_no_claim(self):
        with conf.Ticker() as t, self.server(t.settings, args=["--workers", "0"]) as front:
            x = front.run(t.spec("x"))
            self.assertEqual(x.phase(), "queued")
            self.assertEqual(claimed(x), (None, 0))
            with self.server(t.settings, state=front.state):
                self.ended(x)
            self.assertEqual(t.ticks(), {"x": 1})
            self.assertEqual(claimed(x), (None, 1))

    def test_T169_what_another_has_claimed_is_not_executed(self):
        with conf.Ticker() as t, self.server({**t.settings, "max_concurrent_runs": 2}) as p1:
            busy = [p1.run(t.spec("busy%d" % i, "sleep 100", timeout_sec=200)) for i in range(2)]
            for i in range(2):
                t.wait("busy%d" % i)
            x = p1.run(t.spec("x"))
            other = conf.owner(os.getpid())
            p1.change("UPDATE runs SET phase=?, reason='starting', generation=1, claim_owner=?, claim_boot=?, "
                      "claim_expires_us=? WHERE id=?", STARTING, other, conf.boot_id(),
                      conf.boot_us() + 600000000, x.id)
            for run in busy:  # slots become free
                run.cancel()
                self.ended(run, "killed", "canceled_by_user")
            self.look_again(p1, t, "later")
            self.assertEqual(x.row("phase", "claim_owner", "generation"), (STARTING, other, 1))
            self.assertNotIn("x", t.ticks())
            p1.change("UPDATE runs SET phase=?, claim_owner=NULL, finished_us=created_us WHERE id=?", FAILED, x.id)

    def test_T171_handed_out_twice_it_executes_once(self):
        with conf.Ticker() as t, self.server({**t.settings, "queue_max_length": 100}, args=["--workers", "0"]) as front:
            runs = {"r%d" % i: front.run(t.spec("r%d" % i)) for i in range(12)}
            with self.server(t.settings, state=front.state) as p1, self.server(t.settings, state=front.state) as p2:
                for run in runs.values():
                    self.ended(run)
                self.look_again(p1, t, "later1")
                self.look_again(p2, t, "later2")
            self.assertEqual(t.ticks(), {k: 1 for k in [*runs, "later1", "later2"]})
            self.assertEqual({r.row("generation") for r in runs.values()}, {(1,)})

    def test_T172_the_answer_does_not_take_a_phase_back(self):
        with conf.Ticker() as t, conf.two(t.settings, first=["--workers", "0"]) as (p1, p2):
            order = ["queued", "starting", "running", "completed"]
            for i in range(10):
                x = p1.run(t.spec("x%d" % i))
                self.assertIn(x.posted["phase"], order)
                self.assertGreaterEqual(order.index(x.phase()), order.index(x.posted["phase"]))
                self.ended(x.through(p2))
                seen = [p for p, in p1.sql("SELECT phase FROM changes WHERE id=? ORDER BY seq", x.id)]
                self.assertEqual(sorted(seen, key=order.index), seen)
                self.assertEqual(x.row("generation"), (1,))
            self.assertEqual(t.ticks(), {"x%d" % i: 1 for i in range(10)})


class Admission(Pair):
    def one_at_a_time(self, settings, a_spec, b_spec, c_spec=None, a_login=None, b_login=None, c_login=None):
        """a runs; b has to wait for it although there is room; c does not."""
        with conf.Ticker() as t, conf.two({**api.USERS, **t.settings, **settings}) as (p1, p2):
            a = p1.run(t.spec("a", "sleep 100", timeout_sec=200, **a_spec), a_login)
            t.wait("a")
            a.wait_phase("running")
            b = p2.run(t.spec("b", **b_spec), b_login)
            self.assertEqual(b.phase(), "queued")
            if c_spec is not None:
                self.ended(p2.run(t.spec("c", **c_spec), c_login))
            self.assertEqual((b.phase(), t.ticks().get("b")), ("queued", None))
            a.cancel()
            self.ended(a, "killed", "canceled_by_user")
            self.assertGreaterEqual(self.ended(b)["started_at"], a.get()["finished_at"])

    def test_T160_one_slot_for_both_servers(self):
        self.one_at_a_time({"max_concurrent_runs": 1}, {}, {})

    def test_T163_one_of_a_user(self):
        self.one_at_a_time({"max_concurrent_runs": 3, "active_max_per_user": 1}, {}, {}, {}, api.user("user-1"),
                           api.user("user-1"), api.user("user-2"))

    def test_T164_one_of_a_persona(self):
        shared, own = {"persona_id": "persona-shared"}, {"persona_id": "persona-own"}
        self.one_at_a_time({"max_concurrent_runs": 3, "active_max_per_persona": 1}, shared, shared, own,
                           api.user("user-1"), api.user("user-2"), api.user("user-3"))

    def test_T166_one_of_a_workspace_group(self):
        shared, own = {"workspace_group_id": "wg-shared"}, {"workspace_group_id": "wg-own"}
        self.one_at_a_time({"max_concurrent_runs": 3, "active_max_per_workspace_group": 1}, shared, shared, own,
                           api.user("user-1"), api.user("user-2"), api.user("user-3"))

    def test_T161_an_expired_claim_holds_no_slot(self):
        with conf.Ticker() as t, self.server({**t.settings, "max_concurrent_runs": 1,
                                              "run_claim_lease_sec": conf.LEASE}) as a:
            run = a.run(t.spec("a", "sleep 100", timeout_sec=200))
            t.wait("a")
            run.wait_phase("running")
            self.freeze(runner_of(run))
            b = a.run(t.spec("b"))
            self.assertEqual(b.phase(), "queued")
            self.ended(b)
            self.ended(run, "failed", "claim_lease_expired")
            self.assertEqual(t.ticks(), {"a": 1, "b": 1})


def children(pid):
    with open("/proc/%d/task/%d/children" % (pid, pid)) as f:
        return f.read().split()


def gone(pid, timeout):
    """Waits for the end of a process."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = conf.select.poll()
        poll.register(fd, conf.select.POLLIN)
        return bool(poll.poll(timeout * 1000))
    finally:
        os.close(fd)


if __name__ == "__main__":
    conf.main()
