# SPDX-License-Identifier: Apache-2.0
# run: limit=240
"""Containers that somebody freezes while a command executes in them: with the engine's own pause, or by their control
group. A cancel and a time limit end the run all the same, and nothing is left."""
import os
import select
import signal
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import dockerkit  # noqa: E402
import sbx  # noqa: E402
from dockerkit import SHELL  # noqa: E402

E = None


def setUpModule():
    global E
    E = dockerkit.start(SHELL)


def freezer(pid):
    """The file that freezes the control group of a process, its directory's parent, and the words for it."""
    with open("/proc/%d/cgroup" % pid) as f:
        paths = {name: path for _, names, path in (line.rstrip("\n").split(":", 2) for line in f)
                 for name in names.split(",")}
    with open("/proc/self/mountinfo") as f:
        for line in f:
            left, right = line.split(" - ")
            kind, _, options = right.split()[:3]
            if kind == "cgroup" and "freezer" in options.split(","):
                return left.split()[4] + paths["freezer"], "freezer.state", ("FROZEN", "THAWED")
            if kind == "cgroup2" and "freezer" not in paths:
                return left.split()[4] + paths[""], "cgroup.freeze", ("1", "0")
    raise unittest.SkipTest("there is no group to freeze")


class Frozen(dockerkit.Runs, sbx.Case):
    @classmethod
    def setUpClass(cls):
        cls.settings = dockerkit.settings(E, warm_runners=1, cancel_grace_seconds=1)
        super().setUpClass()

    def begin(self, **spec):
        run = self.m.submit({"runtime": "docker", "base_image": SHELL, **spec,
                             "command": ["sh", "-c", "echo up; while :; do sleep 0.1; done"]})
        run.stream_until(b"up\n")
        run.wait_phase("running")
        return run, E.container_of(run)

    def pause(self, container):
        r = E.call("POST", "/containers/%s/pause" % container["Id"])
        self.assertEqual(r.status, 204, r.body)

    def write(self, path, text):
        with open(path, "w") as f:
            f.write(text)

    def all_is_well(self):
        """Also that whoever comes next clears up."""
        after = self.m.run({"runtime": "docker", "base_image": SHELL, "command": ["echo", "ok"]})
        self.assertEqual((after.exit, after.stdout), ("0", b"ok\n"))
        E.wait_no_container()

    def test_paused_and_cancelled(self):
        run, container = self.begin()
        self.pause(container)
        run.ctl("cancel\n")
        self.ended(run, "killed", "canceled_by_user", None)
        self.all_is_well()

    def test_paused_beyond_its_time(self):
        run, container = self.begin(timeout_sec=2)
        self.pause(container)
        self.ended(run, "timed_out", "execution_timeout", None)
        self.all_is_well()

    def test_paused_for_a_while(self):
        """Who goes on in time has lost nothing."""
        run, container = self.begin(timeout_sec=60)
        self.pause(container)
        self.assertEqual(run.status(), "running")
        self.assertEqual(E.call("POST", "/containers/%s/unpause" % container["Id"]).status, 204)
        run.ctl("signal KILL\n")
        self.ended(run, "failed", "nonzero_exit", 137)
        self.all_is_well()

    def test_its_group_is_frozen(self):
        """The engine knows nothing of it."""
        run, container = self.begin()
        group, name, (frozen, _) = freezer(container["State"]["Pid"])
        self.write(os.path.join(group, name), frozen)
        run.ctl("cancel\n")
        self.ended(run, "killed", "canceled_by_user", None)
        self.all_is_well()

    def test_its_runner_is_killed(self):
        """Process 1 cannot see that. Whoever sweeps ends it."""
        for by_engine in (True, False):
            with self.subTest(by_engine=by_engine):
                run, container = self.begin()
                if by_engine:
                    self.pause(container)
                else:
                    group, name, (frozen, _) = freezer(container["State"]["Pid"])
                    self.write(os.path.join(group, name), frozen)
                owner = os.pidfd_open(int(container["Config"]["Labels"]["sandboxfs.owner"].split("-")[0]))
                self.addCleanup(os.close, owner)
                signal.pidfd_send_signal(owner, signal.SIGKILL)
                self.ended(run, "failed", "runner_lost", None)
                self.all_is_well()

    def test_a_group_above_is_frozen(self):
        """By somebody who freezes more than this container: that is not for us to end. The run ends, and what is left
        of it goes as soon as it can."""
        run, container = self.begin()
        group, name, (frozen, thawed) = freezer(container["State"]["Pid"])
        above, died = os.path.dirname(group), os.pidfd_open(container["State"]["Pid"])
        self.addCleanup(os.close, died)
        self.assertEqual(os.path.basename(above), E.group)
        self.write(os.path.join(above, name), frozen)
        try:
            run.ctl("cancel\n")
            self.ended(run, "killed", "canceled_by_user", None)
        finally:
            self.write(os.path.join(above, name), thawed)
        self.assertTrue(select.select([died], [], [], 10 * sbx.SLOW)[0], "it lives on")
        self.all_is_well()


if __name__ == "__main__":
    sbx.main()
