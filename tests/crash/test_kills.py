# SPDX-License-Identifier: Apache-2.0
# run: limit=240
"""kill -9 of whatever there is, in the middle of things: the door, the runner, process 1 of a sandbox, all
of them; and runners that are stopped until their lease is over."""
import os
import select
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import house  # noqa: E402
from house import sbx  # noqa: E402

COUNT = "for i in $(seq 1 20); do echo $i; sleep 0.05; done"
COUNTED = b"".join(b"%d\n" % i for i in range(1, 21))


class Case(unittest.TestCase):
    def ended(self, run, phase, reason):
        run.wait(60)
        doc = run.json()
        self.assertEqual((doc["phase"], doc["status_reason_code"]), (phase, reason))
        return doc

    def counted(self, run):
        self.ended(run, "completed", "completed")
        self.assertEqual(run.log, b"ran %s\n" % run.key.encode() + COUNTED)

    def gone(self, pids):
        for pid in pids:
            self.assertTrue(house.wait_gone(pid), "process %d lives on" % pid)


class Door(Case):
    def test_door_killed_in_the_middle_of_a_run(self):
        with house.House() as h:
            door = h.door()
            run = h.submit(door, COUNT)
            run.stream_until(b"5\n")
            door.kill()
            door.start()
            self.assertEqual(run.status(), "running")
            self.counted(run)

    def test_run_that_ends_while_there_is_no_door(self):
        with house.House() as h:
            door = h.door()
            run = h.submit(door, COUNT)
            h.wait_tick(run.key)
            runner = h.runner_of(run)
            door.kill()
            self.gone([runner])  # it finishes its run first
            door.start()
            self.assertEqual(run.status(), "completed")
            self.counted(run)

    def test_door_stopped_by_term_in_the_middle_of_a_run(self):
        with house.House() as h:
            door = h.door()
            run = h.submit(door, COUNT)
            run.stream_until(b"3\n")
            self.assertEqual(door.stop(), 0)
            door.start()
            self.counted(run)

    def test_door_killed_five_times_during_one_run(self):
        with house.House() as h:
            door = h.door()
            run = h.submit(door, "for i in $(seq 1 20); do echo $i; sleep 0.2; done")
            for i in range(5):
                run.stream_until(b"\n%d\n" % (2 * i + 1))
                door.kill()
                door.start()
            self.counted(run)

    def test_queue_outlives_the_door(self):
        with house.House(max_concurrent_runs=1) as h:
            door = h.door()
            first = h.submit(door, "sleep 1")
            rest = [h.submit(door, "echo x") for _ in range(10)]
            h.wait_tick(first.key)
            door.kill()
            door.start()
            for r in [first] + rest:
                self.ended(r, "completed", "completed")

    def test_readers_are_told_at_once_that_the_door_is_gone(self):
        with house.House() as h:
            door = h.door()
            run = h.submit(door, "sleep 2")
            readers = [subprocess.Popen(["cat", run.path(name)], stderr=subprocess.DEVNULL, stdout=subprocess.PIPE)
                       for name in (".wait", ".stream")]
            self.assertIn(b"start", readers[1].stdout.readline())
            door.kill()
            for p in readers:
                self.assertNotEqual(p.wait(20 * sbx.SLOW), 0)
                p.stdout.close()
            door.start()
            self.ended(run, "completed", "completed")

    def test_cancel_of_a_run_of_the_dead_door(self):
        with house.House() as h:
            door = h.door()
            run = h.submit(door, "echo up; sleep 100")
            run.stream_until(b"up")
            init = h.init_of(run)
            door.kill()
            door.start()
            run.ctl("kill")
            self.ended(run, "killed", "canceled_by_user")
            self.gone([init])

    def test_input_to_a_run_of_the_dead_door(self):
        with house.House() as h:
            door = h.door()
            run = h.submit(door, "echo up; cat", interactive=True)
            run.stream_until(b"up")
            door.kill()
            door.start()
            with open(run.path("stdin"), "wb", buffering=0) as f:
                f.write(b"hello\n")
            run.ctl("eof")
            self.ended(run, "completed", "completed")
            self.assertTrue(run.log.endswith(b"up\nhello\n"))


class Runner(Case):
    def test_runner_killed_in_the_middle_of_a_run(self):
        with house.House() as h:
            door = h.door()
            run = h.submit(door, COUNT + "; sleep 100")
            run.stream_until(b"20\n")
            runner = h.runner_of(run)
            below = house.descendants(runner)
            self.assertGreaterEqual(len(below), 2)
            os.kill(runner, signal.SIGKILL)
            self.ended(run, "failed", "runner_lost")
            self.gone(below)
            self.assertEqual(run.log, b"ran %s\n" % run.key.encode() + COUNTED)
            self.assertIsNone(run.json()["exit_code"])
            self.assertIn(b"is gone", run.read("why"))

    def test_followers_of_a_lost_run_end(self):
        with house.House() as h:
            door = h.door()
            run = h.submit(door, "echo up; sleep 100")
            wait = subprocess.Popen(["cat", run.path(".wait")], stdout=subprocess.PIPE)
            follow = subprocess.Popen(["cat", run.path(".stream")], stdout=subprocess.PIPE)
            run.stream_until(b"up")
            os.kill(h.runner_of(run), signal.SIGKILL)
            self.assertEqual(wait.communicate(timeout=20 * sbx.SLOW)[0], b"failed\n")
            self.assertEqual(follow.communicate(timeout=20 * sbx.SLOW)[0], run.read("log.ndjson"))

    def test_idle_runners_killed(self):
        with house.House() as h:
            door = h.door()
            run = h.submit(door)
            self.ended(run, "completed", "completed")
            for _ in range(3):
                for pid in h.live_runners():
                    os.kill(pid, signal.SIGKILL)
                run = h.submit(door, "echo again")
                self.ended(run, "completed", "completed")

    def test_a_fork_bomb_dies_with_its_runner(self):
        with house.House() as h:
            door = h.door()
            run = h.submit(door, "for i in $(seq 1 30); do setsid sleep 100 & done; echo up; sleep 100")
            run.stream_until(b"up")
            runner = h.runner_of(run)
            below = house.descendants(runner)
            os.kill(runner, signal.SIGKILL)
            self.ended(run, "failed", "runner_lost")
            self.gone(below)

    def test_runner_killed_while_output_comes(self):
        """What followers were shown is what the log keeps."""
        with house.House() as h:
            door = h.door()
            run = h.submit(door, "i=0; while :; do echo line-$i; i=$((i+1)); done")
            seen = run.stream_until(b"line-500\n")
            os.kill(h.runner_of(run), signal.SIGKILL)
            self.ended(run, "failed", "runner_lost")
            self.assertTrue(run.log.startswith(seen))
            lines = run.log.split(b"\n")[1:-1]
            self.assertEqual(lines, [b"line-%d" % i for i in range(len(lines))])


class Init(Case):
    def test_process_1_killed_from_outside(self):
        with house.House() as h:
            door = h.door()
            run = h.submit(door, COUNT + "; sleep 100")
            run.stream_until(b"20\n")
            runner, init = h.runner_of(run), h.init_of(run)
            below = house.descendants(init)
            os.kill(init, signal.SIGKILL)
            self.ended(run, "failed", "runtime_error")
            self.gone(below)
            self.assertEqual(run.log, b"ran %s\n" % run.key.encode() + COUNTED)
            self.assertIsNotNone(house.start_time(runner))
            other = h.submit(door)
            self.ended(other, "completed", "completed")

    def test_command_killed_from_outside(self):
        with house.House() as h:
            door = h.door()
            run = h.submit(door, "echo up; while :; do sleep 0.1; done")
            run.stream_until(b"up")
            os.kill(house.children(h.init_of(run))[0], signal.SIGKILL)
            doc = self.ended(run, "failed", "nonzero_exit")
            self.assertEqual(doc["exit_code"], 137)


class Everything(Case):
    def test_everything_killed_at_once(self):
        """As after a loss of power, but for what the disk had not got yet."""
        with house.House(max_concurrent_runs=3) as h:
            door = h.door()
            busy = [h.submit(door, "echo up; sleep 100") for _ in range(3)]
            waiting = [h.submit(door, "echo later") for _ in range(2)]
            for r in busy:
                r.stream_until(b"up")
            runners = h.live_runners()
            below = [p for r in runners for p in house.descendants(r)]
            for pid in [door.proc.pid] + runners:
                os.kill(pid, signal.SIGSTOP)  # so that none sees another die
            for pid in [door.proc.pid] + runners:
                os.kill(pid, signal.SIGKILL)
            door.proc.wait()
            self.gone(below)
            door.start()
            for r in busy:
                self.ended(r, "failed", "runner_lost")
                self.assertEqual(r.log, b"ran %s\nup\n" % r.key.encode())
            for r in waiting:
                self.ended(r, "completed", "completed")

    def test_a_stranger_with_the_number_of_the_runner(self):
        """A process id that was used again is not taken for the claimant, and comes to no harm."""
        if not os.access("/proc/sys/kernel/ns_last_pid", os.W_OK):
            self.skipTest("cannot choose process ids")
        with house.House() as h:
            door = h.door()
            run = h.submit(door, "echo up; sleep 100")
            run.stream_until(b"up")
            runner = h.runner_of(run)
            doomed = [door.proc.pid] + h.live_runners()
            below = [p for r in doomed[1:] for p in house.descendants(r)]
            for pid in doomed:
                os.kill(pid, signal.SIGSTOP)
            for pid in doomed:
                os.kill(pid, signal.SIGKILL)
            door.proc.wait()
            # A number is free when nobody has it as a session's, either, and all are waited for.
            self.gone(doomed + below)
            house.reap_all()
            stranger = self.take(runner)
            if not stranger:
                self.skipTest("the number went to somebody else")
            try:
                door.start()
                self.ended(run, "failed", "runner_lost")
                self.assertIsNone(stranger.poll())
            finally:
                stranger.kill()
                stranger.wait()

    def take(self, pid):
        """A process with this very number, or None."""
        for _ in range(50):
            with open("/proc/sys/kernel/ns_last_pid", "w") as f:
                f.write(str(pid - 1))
            p = subprocess.Popen(["sleep", "1000"])
            if p.pid == pid:
                return p
            p.kill()
            p.wait()
        return None


class Lease(Case):
    """A runner that is stopped cannot renew its lease. It must not come back as a second hand."""

    def stopped(self, h, door, script):
        run = h.submit(door, script)
        run.stream_until(b"up")
        runner, init = h.runner_of(run), h.init_of(run)
        below = house.descendants(runner)
        os.kill(runner, signal.SIGSTOP)
        return run, runner, init, below

    def test_lease_of_a_stopped_runner_runs_out(self):
        with house.House(run_claim_lease_sec=3) as h:
            door = h.door()
            run, runner, init, below = self.stopped(h, door, "echo up; sleep 100")
            self.ended(run, "failed", "claim_lease_expired")
            # Its sandbox has gone with it, now or at the latest when it wakes.
            try:
                os.kill(runner, signal.SIGCONT)
            except ProcessLookupError:
                pass
            self.gone(below)
            self.assertEqual(run.log, b"ran %s\nup\n" % run.key.encode())
            self.assertEqual(h.drain()[run.key], 1)
            # The slot is free again.
            other = h.submit(door)
            self.ended(other, "completed", "completed")

    def test_output_of_a_run_that_was_taken_away_is_not_added(self):
        with house.House(run_claim_lease_sec=3) as h:
            door = h.door()
            run, runner, _, below = self.stopped(h, door, "echo up; while :; do echo more; sleep 0.01; done")
            self.ended(run, "failed", "claim_lease_expired")
            log, frames = run.log, run.read("log.ndjson")
            try:
                os.kill(runner, signal.SIGCONT)
            except ProcessLookupError:
                pass
            self.gone([runner] + below)
            self.assertEqual((run.log, run.read("log.ndjson")), (log, frames))

    def test_runner_stopped_before_it_began(self):
        """An idle runner that was stopped gets a run, and never looks at it."""
        with house.House(run_claim_lease_sec=3, max_concurrent_runs=1, warm_runners=1) as h:
            door = h.door()
            first = h.submit(door)
            self.ended(first, "completed", "completed")
            runner = h.live_runners()[-1]
            h.wait_idle(runner)
            os.kill(runner, signal.SIGSTOP)
            run = h.submit(door, "echo once")
            self.assertIn(run.status(), ("starting", "queued"))
            self.ended(run, "completed", "completed")
            try:
                os.kill(runner, signal.SIGCONT)
            except ProcessLookupError:
                pass
            self.assertEqual(h.drain()[run.key], 1)

    def test_a_short_stop_is_forgiven(self):
        with house.House(run_claim_lease_sec=6) as h:
            door = h.door()
            run, runner, _, _ = self.stopped(h, door, "echo up; sleep 3; echo end")
            select.select([], [], [], 1)
            os.kill(runner, signal.SIGCONT)
            self.ended(run, "completed", "completed")

    def test_leases_are_renewed(self):
        with house.House(run_claim_lease_sec=3) as h:
            door = h.door()
            run = h.submit(door, "sleep 5; echo end")
            self.ended(run, "completed", "completed")
            self.assertEqual(run.json()["claim_generation"], 1)

    def test_stopped_runner_of_a_dead_door(self):
        with house.House(run_claim_lease_sec=3) as h:
            door = h.door()
            run, runner, _, below = self.stopped(h, door, "echo up; sleep 100")
            door.kill()
            door.start()
            self.assertEqual(run.status(), "running")  # its claim still stands
            self.ended(run, "failed", "claim_lease_expired")
            try:
                os.kill(runner, signal.SIGCONT)
            except ProcessLookupError:
                pass
            self.gone([runner] + below)


if __name__ == "__main__":
    sbx.main()
