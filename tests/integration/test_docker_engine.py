# SPDX-License-Identifier: Apache-2.0
# run: limit=240
"""Engines that are not there, die, refuse, or keep one waiting; images that are fetched, or cannot be; cancels at
every stage. All with a real engine, and a door before it where a moment must last."""
import contextlib
import json
import os
import re
import select
import socket
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import api  # noqa: E402
import dockerkit  # noqa: E402
import engine  # noqa: E402
import sbx  # noqa: E402
from dockerkit import SHELL  # noqa: E402

IN_MOVED_TO = 0x80
E = None  # the engine of this module


def setUpModule():
    global E
    E = dockerkit.start(SHELL)


class Case(dockerkit.Runs, unittest.TestCase):
    def mount(self, **settings):
        m = sbx.Mount(settings=dockerkit.settings(E, **{"warm_runners": 1, "cancel_grace_seconds": 1, **settings}))
        self.addCleanup(m.close)
        return m.start()

    def submit(self, m, *command, **spec):
        return m.submit(dict({"runtime": "docker", "base_image": SHELL, "command": list(command)}, **spec))

    def row(self, m):
        with open(os.path.join(m.mnt, "runtimes/docker.json")) as f:
            return json.load(f)

    def wait_no_container(self, e=None):
        (e or E).wait_no_container()

    def wait_no_probe(self):
        """What an engine did too late for a preflight goes with a later one."""
        m = self.mount()
        self.assertTrue(self.row(m)["available"])
        self.wait_no_container()

    def gate(self, held, e=None):
        g = engine.Gate(e or E, held)
        self.addCleanup(g.close)
        return g


class Absent(Case):
    def unavailable(self, m):
        row = self.row(m)
        self.assertEqual((row["available"], row["reasons"], row["interactive_supported"]),
                         (False, ["docker_unavailable"], False))
        with self.assertRaises(sbx.Refused) as c:
            self.submit(m, "true")
        self.assertEqual(c.exception.code, "runtime_unavailable")
        self.assertEqual(c.exception.details["reasons"], ["docker_unavailable"])
        self.assertEqual(m.run({"command": ["true"]}).exit, "0")

    def test_no_socket(self):
        m = self.mount(docker_host="/no/such/engine.sock")
        self.unavailable(m)
        self.assertFalse(os.path.exists(os.path.join(m.state, "docker")))

    def test_a_socket_that_nobody_listens_on(self):
        with tempfile.TemporaryDirectory() as d, contextlib.closing(socket.socket(socket.AF_UNIX)) as s:
            s.bind(d + "/s")
            self.unavailable(self.mount(docker_host="unix://" + d + "/s"))

    def test_something_else_listens(self):
        with tempfile.TemporaryDirectory() as d, contextlib.closing(socket.socket(socket.AF_UNIX)) as s:
            s.bind(d + "/s")
            s.listen()

            def serve():
                with contextlib.suppress(OSError):
                    while True:
                        c, _ = s.accept()
                        with c:
                            c.recv(4096)
                            c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            threading.Thread(target=serve, daemon=True).start()
            self.unavailable(self.mount(docker_host=d + "/s"))
            s.shutdown(socket.SHUT_RDWR)

    def test_it_takes_calls_and_says_nothing(self):
        """The door is there within its time, and the other runtimes with it."""
        for held in (b"GET /version", b"/images/create", b"/containers/create", b"/start"):
            with self.subTest(held=held):
                g = self.gate(held)
                m = self.mount(docker_host=g.socket)
                g.wait_reached()
                row = self.row(m)
                self.assertEqual((row["available"], row["reasons"]), (False, ["docker_unavailable"]))
                self.assertEqual(m.run({"command": ["true"]}).exit, "0")
                g.release()
        self.wait_no_probe()

    def test_it_dies_between_preflight_and_run(self):
        with engine.Engine() as own:
            own.make_image(SHELL, engine.root_with_shell())
            m = self.mount(docker_host=own.socket)
            self.ended(self.submit(m, "true"))
            self.wait_no_container(own)
            own.stop()
            self.ended(self.submit(m, "true"), "failed", "runtime_unavailable", None)

    def test_it_is_killed_while_runs_execute(self):
        """A run does not need the engine while it executes. What could not be removed goes when the engine is back
        and the next door starts."""
        with engine.Engine() as own:
            own.make_image(SHELL, engine.root_with_shell())
            m = self.mount(docker_host=own.socket)
            run = self.submit(m, "sh", "-c", "echo up; read x; echo $x; exit 5", interactive=True, spec_version="1.1")
            run.stream_until(b"up\n")
            own.kill()
            with open(run.path("stdin"), "wb", buffering=0) as f:
                f.write(b"still here\n")
            self.ended(run, "failed", "nonzero_exit", 5)
            self.assertEqual(run.stdout, b"up\nstill here\n")
            # The runner lives on and serves others.
            self.assertEqual(m.run({"command": ["true"]}).exit, "0")
            own.start()
            self.ended(self.submit(m, "true"))
            self.wait_no_container(own)


class Refusals(Case):
    def profile(self, text):
        f = tempfile.NamedTemporaryFile("w", suffix=".json")
        self.addCleanup(f.close)
        f.write(text)
        f.flush()
        return f.name

    def start_with(self, **settings):
        """The preflight must see no engine with these options, or refuse it; both are fail closed."""
        m = self.mount(**settings)
        row = self.row(m)
        self.assertEqual((row["available"], row["reasons"]), (False, ["docker_unavailable"]))
        self.wait_no_container()

    def test_a_seccomp_profile_that_is_not_there(self):
        self.start_with(docker_seccomp="/no/such/profile.json")

    def test_a_seccomp_profile_that_is_no_json(self):
        self.start_with(docker_seccomp=self.profile("nonsense"))

    def test_a_seccomp_profile_that_the_engine_refuses(self):
        self.start_with(docker_seccomp=self.profile('{"defaultAction":"SCMP_ACT_NONSENSE"}'))

    def test_a_seccomp_profile_holds(self):
        path = self.profile(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
            {"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 28}]}))
        m = self.mount(docker_seccomp=path)
        run = self.submit(m, "sh", "-c", "mkdir d")
        self.ended(run, "failed", "nonzero_exit", 1)
        self.assertIn(b"No space left", run.stderr)
        # It is read for each run: one that is spoiled later stops runs, not their protection.
        with open(path, "w") as f:
            f.write("nonsense")
        doc = self.ended(self.submit(m, "true"), "failed", "policy_failed", None)
        self.assertIn("docker_seccomp", doc["message"])

    def test_an_apparmor_profile_that_cannot_be(self):
        """The engine refuses one that it does not know, and says nothing where the kernel has no AppArmor."""
        self.start_with(docker_apparmor_profile="no-such-profile")


class Pulls(Case):
    def registry(self, **how):
        with open(engine.static_busybox(), "rb") as f:
            # Another layer each time, or the engine would have it already.
            r = engine.Registry(engine.archive(("echo", f.read(), 0o755), ("id", os.urandom(16), 0o644)), **how)
        self.addCleanup(r.close)
        return r

    def test_an_image_is_fetched(self):
        r = self.registry()
        m = self.mount(docker_pull="true")
        run = self.submit(m, "/echo", "fetched", base_image=r.name())
        doc = self.ended(run)
        self.assertEqual((run.stdout, doc["image_digest"]), (b"fetched\n", E.image_id(r.name())))

    def test_not_when_that_is_off(self):
        r = self.registry()
        m = self.mount(docker_pull="false")
        doc = self.ended(self.submit(m, "/echo", base_image=r.name()), "failed", "runtime_error", None)
        self.assertIn("docker_pull", doc["message"])
        self.assertFalse(r.asked.is_set())

    def test_no_such_image(self):
        r = self.registry()
        m = self.mount(docker_pull="true")
        doc = self.ended(self.submit(m, "/echo", base_image=r.name(tag="none")), "failed", "runtime_error", None)
        self.assertIn("cannot fetch the image", doc["message"])

    def test_failure_inside_a_stream_that_began_well(self):
        r = self.registry(broken=True)
        m = self.mount(docker_pull="true")
        doc = self.ended(self.submit(m, "/echo", base_image=r.name("broken")), "failed", "runtime_error", None)
        self.assertIn("cannot fetch the image", doc["message"])
        self.assertTrue(r.asked.is_set())

    def test_the_startup_time_stands_still(self):
        hold = threading.Event()
        r = self.registry(hold=hold)
        m = self.mount(docker_pull="true")
        run = self.submit(m, "/echo", "late", base_image=r.name("slow"), startup_timeout_sec=2)
        self.assertTrue(r.asked.wait(20 * sbx.SLOW))
        threading.Timer(4, hold.set).start()
        self.ended(run)
        self.assertEqual(run.stdout, b"late\n")

    def test_its_own_time_limit(self):
        r = self.registry(hold=threading.Event())
        m = self.mount(docker_pull="true", docker_pull_timeout_sec=1)
        doc = self.ended(self.submit(m, "/echo", base_image=r.name("endless")), "failed", "runtime_unavailable", None)
        self.assertIn("in time", doc["message"])

    def test_cancel_meanwhile(self):
        r = self.registry(hold=threading.Event())
        m = self.mount(docker_pull="true")
        run = self.submit(m, "/echo", base_image=r.name("cancelled"))
        self.assertTrue(r.asked.wait(20 * sbx.SLOW))
        run.ctl("cancel\n")
        self.ended(run, "killed", "canceled_by_user", None)
        self.assertEqual(m.run({"command": ["true"]}).exit, "0")


class Words(Case):
    """What an engine says is shown to users, who may see neither its secrets nor what would confuse a terminal."""
    SAID = ("it was \x1b[31mred\x1b[0m,\r\nfrom https://user:s3cret@reg.test/v2/?sig=s3cret to \u202e /STATE/docker "
            + "and so on " * 500)

    def said_by(self, request, document, **settings):
        g = self.gate(None)
        m = self.mount(docker_host=g.socket, **settings)
        self.assertTrue(self.row(m)["available"])
        text = json.dumps(document).replace("/STATE", m.state)
        g.answers[request] = engine.Answer(200 if "images" in request.decode() else 500, text.encode())
        run = self.submit(m, "true", base_image="none:1" if "images" in request.decode() else SHELL)
        message = self.ended(run, "failed", "runtime_error", None)["message"]
        self.assertIn("it was  [31mred [0m,  from https://***@reg.test/v2/?*** to   (state)/docker and so on", message)
        self.assertNotIn("s3cret", message)
        self.assertTrue(message.isprintable() and message.endswith("..."), message)
        self.assertLess(len(message), 500)
        g.answers.clear()
        self.ended(self.submit(m, "true"))
        self.wait_no_container()

    def test_of_a_refusal(self):
        self.said_by(b"/containers/create", {"message": self.SAID})

    def test_of_a_fetch(self):
        self.said_by(b"/images/create", {"error": self.SAID}, docker_pull="true")


class Stages(Case):
    """A cancel, and the end of the startup time, while the engine is at work."""

    def begin(self, request, **spec):
        g = self.gate(None)
        m = self.mount(docker_host=g.socket)
        self.assertTrue(self.row(m)["available"])
        g.held = request
        return g, m, self.submit(m, "sh", "-c", "echo executed", **spec)

    def cancelled_while(self, request):
        g, m, run = self.begin(request)
        g.wait_reached()
        run.ctl("cancel\n")
        self.ended(run, "killed", "canceled_by_user", None)
        self.assertEqual(run.log, b"")
        g.release()
        self.wait_no_container()
        self.ended(self.submit(m, "true"))
        self.wait_no_container()

    def test_cancel_while_it_looks_for_the_image(self):
        self.cancelled_while(b"/images/")

    def test_cancel_while_the_container_is_made(self):
        self.cancelled_while(b"/containers/create")

    def test_cancel_while_the_container_starts(self):
        self.cancelled_while(b"/start")

    def test_startup_timeout(self):
        g, m, run = self.begin(b"/start", startup_timeout_sec=1)
        g.wait_reached()
        self.ended(run, "timed_out", "startup_timeout", None)
        g.release()
        self.wait_no_container()

    def test_cancel_while_it_stops(self):
        m = self.mount(cancel_grace_seconds=5)
        run = self.submit(m, "sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done", timeout_sec=1)
        run.stream_until(b"up\n")
        run.wait_phase(("running",))
        run.ctl("cancel\n")
        run.ctl("kill\n")
        run.wait(60)
        self.assertIn(run.json()["phase"], ("killed", "timed_out"))
        self.wait_no_container()

    def test_what_it_does_not_make_for_certain_is_removed(self):
        """It may be there, or in part. Only a request that it refuses made nothing."""
        for status, asked in ((409, True), (500, True), (400, False), (404, False)):
            with self.subTest(status=status):
                g = self.gate(None)
                m = self.mount(docker_host=g.socket)
                self.assertTrue(self.row(m)["available"])
                g.answers = {b"/containers/create": engine.Answer(status, b'{"message":"so it says"}')}
                before = len(g.seen)
                self.ended(self.submit(m, "true"), "failed", "runtime_error", None)
                m.stop()
                self.assertEqual(m.wait_processes_gone(), [])
                self.assertEqual(any(b"DELETE /" in line for line in g.seen[before:]), asked)
                self.assertEqual(os.listdir(os.path.join(m.state, "docker")), ["id"])

    def test_removal_that_is_slow_holds_up_nobody(self):
        g, m, run = self.begin(b"DELETE")
        self.ended(run)
        g.wait_reached()
        self.assertEqual(len(E.containers()), 1)
        g.release()
        self.wait_no_container()

    def test_what_cannot_be_removed_does_not_hold_up_run_after_run(self):
        """Who comes next tries, and then it is left alone for a while."""
        g, m, run = self.begin(b"DELETE")
        self.ended(run)
        g.wait_reached()
        docker = os.path.join(m.state, "docker")
        with api.watch(docker, IN_MOVED_TO) as ring:  # the note of its runner, which has given up
            (place,) = (n for n in os.listdir(docker) if n != "id")
            os.utime(os.path.join(docker, place), (0, 0))  # its run took long
            while not os.path.exists(os.path.join(docker, "left." + place)):
                self.assertTrue(ring(20 * sbx.SLOW))

        def tried():  # by a sweep, which goes by the ids that it is told
            return len([line for line in g.seen if re.match(rb"DELETE /v[0-9.]+/containers/[0-9a-f]{64}\?", line)])
        self.ended(self.submit(m, "true"))
        before = tried()
        self.assertGreater(before, 0)
        self.ended(self.submit(m, "true"))
        self.assertEqual(tried(), before)
        # A minute later, or so it seems, all of it goes.
        g.release()
        os.utime(os.path.join(docker, "slow"), (0, 0))
        self.ended(self.submit(m, "true"))
        self.wait_no_container()
        self.assertNotIn("slow", os.listdir(docker))
        # The note is as old as the giving up.
        self.assertIn("left." + place, os.listdir(docker))

    def test_runs_of_two_doors_do_not_touch_each_other(self):
        a, b = self.mount(), self.mount()
        run = self.submit(a, "sh", "-c", "echo up; cat", interactive=True, spec_version="1.1")
        run.stream_until(b"up\n")
        self.ended(self.submit(b, "true"))
        self.assertEqual(b.stop(), 0)
        self.assertEqual(run.status(), "running")
        run.ctl("eof\n")
        self.ended(run)


class Small(Case):
    def helpers(self, m):
        found = []
        for pid in m.processes():
            with contextlib.suppress(OSError), open("/proc/%d/task/%d/children" % (pid, pid)) as f:
                for child in f.read().split():
                    with contextlib.suppress(OSError), open("/proc/%s/comm" % child) as c:
                        found += [int(child)] if c.read().strip() == "sandbox-engine" else []
        return found

    def test_the_helper_goes_after_the_run(self):
        m = self.mount()
        run = self.submit(m, "sh", "-c", "echo up; cat", interactive=True, spec_version="1.1")
        run.stream_until(b"up\n")
        (helper,) = self.helpers(m)
        fd = os.pidfd_open(helper)
        self.addCleanup(os.close, fd)
        run.ctl("eof\n")
        self.ended(run)
        self.assertTrue(select.select([fd], [], [], 10 * sbx.SLOW)[0], "it is still there")

    def test_no_helper_stays_for_an_engine_that_is_away(self):
        """Whoever sweeps, since a dead runner has left something, asks in vain and waits for a run without one."""
        dead = socket.socket(socket.AF_UNIX)  # that nobody listens on
        self.addCleanup(dead.close)
        for answer in (None, engine.Answer(500, b"{}"), engine.Answer(200, b"{}")):
            with self.subTest(answer=answer and answer.status), tempfile.TemporaryDirectory() as state:
                os.makedirs(state + "/docker/1-1-00000000-1", 0o700)
                g = self.gate(None)
                g.answers = {b"": answer}
                if not answer:
                    dead.bind(state + "/s")
                m = sbx.Mount(state=state, settings={"docker_host": g.socket if answer else state + "/s", "warm_runners": 1})
                self.addCleanup(m.close)
                m.start()
                self.assertEqual(m.run({"command": ["true"]}).exit, "0")
                for fd in map(os.pidfd_open, self.helpers(m)):
                    self.addCleanup(os.close, fd)
                    self.assertTrue(select.select([fd], [], [], 10 * sbx.SLOW)[0], "it is still there")
                m.stop()


if __name__ == "__main__":
    sbx.main()
