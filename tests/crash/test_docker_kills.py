# SPDX-License-Identifier: Apache-2.0
# run: limit=300
"""kill -9 of runners that have containers: of twenty at once with their door, and of one at each of its named
points. Afterwards no container, mount or directory of theirs is left, and each run has its right end."""
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import house  # noqa: E402
from house import sbx  # noqa: E402
import dockerkit  # noqa: E402
import nethosts  # noqa: E402
from workkit import Session  # noqa: E402
from dockerkit import SHELL  # noqa: E402

MANY = 20
E = None


def setUpModule():
    global E
    E = dockerkit.start(SHELL)


class Case(unittest.TestCase):
    def setUp(self):
        self.state = tempfile.mkdtemp(prefix="sbx-crash-")
        self.addCleanup(self.remove_state)
        self.base = tempfile.mkdtemp(prefix="sbx-crash-")
        self.addCleanup(shutil.rmtree, self.base)
        # One runner, the first that finds the token, dies at its point.
        self.wrapper = os.path.join(self.base, "runner")
        with open(self.wrapper, "w") as f:
            f.write("#!/bin/sh\ncase \"$*\" in *--preflight*) exec %(real)s \"$@\";; esac\n"
                    "if mv %(base)s/token %(base)s/used 2>/dev/null; then\n"
                    "  read SBX_CRASH_AT < %(base)s/used; export SBX_CRASH_AT\nfi\nexec %(real)s \"$@\"\n"
                    % {"real": sbx.RUNNER, "base": self.base})
        os.chmod(self.wrapper, 0o755)

    def remove_state(self):
        with open("/proc/self/mountinfo") as f:
            self.assertNotIn(self.state, f.read())
        shutil.rmtree(self.state)

    def door(self, **settings):
        m = sbx.Mount(state=self.state, env={"SANDBOXFS_RUNNER": self.wrapper}, check_leaks=False, settings=dockerkit.settings(
            E, **{"warm_runners": 1, "cancel_grace_seconds": 1, "docker_default_image": SHELL, **settings}))
        self.addCleanup(m.close)
        return m.start()

    def arm(self, point):
        with open(os.path.join(self.base, "token"), "w") as f:
            f.write(point + "\n")

    def submit(self, m, script, **more):
        return m.submit({"runtime": "docker", "base_image": SHELL, "command": ["sh", "-c", script], **more})

    def wait_no_container(self):
        E.wait_no_container()

    def runners(self, m):
        found = []
        for pid in m.processes():
            with contextlib.suppress(OSError), open("/proc/%d/comm" % pid) as f:
                found += [pid] if f.read().strip() == "sandbox-runner" else []
        return found

    def kill_all(self, pids):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            self.assertTrue(house.wait_gone(pid))


def named(name):
    """Processes of this name, whosever they are."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open("/proc/%s/comm" % pid) as f:
            found |= {int(pid)} if f.read().strip() == name else set()
    return found


def parent(pid):
    try:
        with open("/proc/%d/stat" % pid) as f:
            return int(f.read().rpartition(")")[2].split()[1])
    except OSError:
        return None


class Many(Case):
    def test_all_runners_and_their_door(self):
        self.kill_many({}, {})

    @unittest.skipIf(nethosts.reason_not_here(), nethosts.reason_not_here())
    def test_all_runners_of_runs_with_a_network(self):
        networks, links = E.networks(), nethosts.links()
        self.kill_many({"egress_enforcement": "true", "egress_granular_enforcement": "true",
                        "egress_allowlist": "192.0.2.1"}, {"network_policy": "allowlist"}, helpers=2)
        self.assertEqual((E.networks(), nethosts.links()), (networks, links))

    def kill_many(self, settings, document, helpers=0):
        m = self.door(max_concurrent_runs=MANY, host_memory_budget_mb=1 << 20, host_cpu_budget=1000, **settings)
        runs = [self.submit(m, "echo ran; cat; echo end", interactive=True, spec_version="1.1",
                            resources={"memory_mb": 64}, **document) for _ in range(MANY)]
        for run in runs:
            run.stream_until(b"ran\n", timeout=60)
        self.assertEqual(len(E.containers()), MANY)
        inside = [E.container_of(run)["State"]["Pid"] for run in runs]
        own = set(self.runners(m))
        beside = [p for name in ("egress-gate", "egress-relay") for p in named(name) if parent(p) in own]
        self.assertEqual(len(beside), helpers * MANY)
        m.proc.send_signal(signal.SIGSTOP)  # so that it replaces none of them
        self.kill_all(self.runners(m))
        m.kill()
        for pid in inside + beside:  # process 1 of each goes with its runner, before anybody sweeps
            self.assertTrue(house.wait_gone(pid))
        m.start()
        for run in runs:
            run.wait(60)
            doc = run.json()
            self.assertEqual((doc["phase"], doc["status_reason_code"]), ("failed", "runner_lost"))
            self.assertEqual(run.log, b"ran\n")
        self.wait_no_container()
        self.assertEqual(self.submit(m, "echo again").wait(60), "0")

    def test_a_session_in_use(self):
        """The mount of its workspace goes, too."""
        m = self.door()
        s = Session(m, "s")
        run = s.submit("echo made > f; echo ran; cat", runtime="docker", interactive=True, spec_version="1.1")
        run.stream_until(b"ran\n")
        with open("/proc/self/mountinfo") as f:
            self.assertIn(self.state + "/docker/", f.read())
        self.kill_all(self.runners(m))
        run.wait(60)
        self.assertEqual(run.json()["status_reason_code"], "runner_lost")
        self.assertEqual(s.read("f"), b"made\n")
        again = s.submit("cat f", runtime="docker")
        self.assertEqual((again.wait(60), again.stdout), ("0", b"made\n"))
        self.wait_no_container()
        os.rmdir(s.dir)

    def test_the_door_alone(self):
        """Runs go on without it, and are removed by their runners."""
        m = self.door()
        run = self.submit(m, "echo ran; read x; echo $x", interactive=True, spec_version="1.1")
        run.stream_until(b"ran\n")
        m.kill()
        m.start()
        self.assertEqual(run.status(), "running")
        with open(run.path("stdin"), "wb", buffering=0) as f:
            f.write(b"still\n")
        self.assertEqual((run.wait(60), run.log), ("0", b"ran\nstill\n"))
        self.wait_no_container()


# Before the mark it is as if nothing had been; after the row says how it ended, that is how it ended.
POINTS = {"docker_placed": "again", "docker_created": "again", "docker_started": "again", "before_mark": "again",
          "after_mark": "lost", "executing": "lost", "before_end": "lost", "after_settle": "done",
          "docker_removed": "done"}


@unittest.skipUnless(house.has_crash_points(), "this build has no crash points")
class Points(Case):
    def check(self, point):
        self.arm(point)
        m = self.door(max_concurrent_runs=1)
        run = self.submit(m, "echo ran")
        run.wait(60)
        ends = {"again": ("completed", "completed"), "lost": ("failed", "runner_lost"), "done": ("completed", "completed")}
        doc = run.json()
        self.assertEqual((doc["phase"], doc["status_reason_code"]), ends[POINTS[point]])
        if POINTS[point] != "lost":
            self.assertEqual(run.log, b"ran\n")
        # The next one is not troubled, and comes after the sweep of the dead one's place.
        self.assertEqual(self.submit(m, "echo next").wait(60), "0")
        self.assertTrue(os.path.exists(os.path.join(self.base, "used")), "no runner died at the point")
        self.wait_no_container()


def add(point):
    setattr(Points, "test_" + point, lambda self: self.check(point))


for name in POINTS:
    add(name)


class Settled(Case):
    def test_labels_that_were_inherited(self):
        """Whoever makes an image of one of our containers has our labels on what he starts from it."""
        m = self.door()
        run = self.submit(m, "echo ran; cat", interactive=True, spec_version="1.1")
        run.stream_until(b"ran\n")
        config = E.container_of(run)["Config"]
        other = E.call("POST", "/containers/create?name=somebody-elses",
                       json.dumps({"Image": config["Image"], "Cmd": ["true"], "Labels": config["Labels"]})).json()["Id"]
        self.addCleanup(E.call, "DELETE", "/containers/%s?force=1" % other)
        self.kill_all(self.runners(m))
        run.wait(60)
        self.assertEqual(self.submit(m, "true").wait(60), "0")
        E.wait_no_container(others=1)
        m.stop()
        self.assertEqual([c["Id"] for c in E.containers()], [other])

    def test_directories_of_the_dead_go_after_two_minutes(self):
        """The engine may still be making what a dead runner asked for, so that its note is kept for a while."""
        m = self.door()
        run = self.submit(m, "echo ran; cat", interactive=True, spec_version="1.1")
        run.stream_until(b"ran\n")
        self.kill_all(self.runners(m))
        run.wait(60)
        self.assertEqual(self.submit(m, "true").wait(60), "0")
        self.wait_no_container()
        m.stop()
        at = os.path.join(self.state, "docker")
        left = [n for n in os.listdir(at) if n != "id"]
        self.assertEqual(len(left), 1)
        # A request may have been out for a minute when it died.
        for age, kept in ((90, left), (3600, [])):
            os.utime(os.path.join(at, left[0]), (time.time() - age,) * 2)
            m.start()
            self.assertEqual(self.submit(m, "true").wait(60), "0")
            m.stop()
            self.assertEqual(m.wait_processes_gone(), [])
            self.assertEqual(sorted(os.listdir(at)), sorted(kept + ["id"]))


if __name__ == "__main__":
    sbx.main()
