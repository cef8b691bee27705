# SPDX-License-Identifier: Apache-2.0
# run: limit=240
"""Runs in containers of a real engine, through the mount: what goes in and comes out, what they may, how they end,
and that nothing of them is left."""
import base64
import errno
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import dockerkit  # noqa: E402
import engine  # noqa: E402
import sbx  # noqa: E402
from workkit import Session  # noqa: E402
from dockerkit import BARE, SHELL  # noqa: E402

ODD = "odd:1"
E = None  # the engine of this module


def setUpModule():
    global E
    E = dockerkit.start(SHELL, BARE)
    # What an image may say about itself, and does not decide here.
    E.make_image(ODD, engine.root_with_shell(), "USER root", 'ENTRYPOINT ["/bin/false"]', 'CMD ["no"]',
                 "ENV PATH=/bin:/odd FROM_IMAGE=yes HOME=/root BOTH=image", "WORKDIR /data", "VOLUME /data",
                 "HEALTHCHECK --interval=1s CMD touch /tmp/healthy")


def b64(data):
    return base64.b64encode(data).decode()


class Case(dockerkit.Runs, sbx.Case):
    image = SHELL
    more = {}

    @classmethod
    def setUpClass(cls):
        cls.settings = dockerkit.settings(E, **{"warm_runners": 2, **cls.more})
        super().setUpClass()

    def submit(self, *command, **spec):
        return self.m.submit(dict({"runtime": "docker", "base_image": self.image, "command": list(command)}, **spec))

    def sh(self, script, **spec):
        return self.submit("sh", "-c", script, **spec)

    def says(self, script, **spec):
        run = self.sh(script, **spec)
        self.ended(run)
        return run.stdout.decode()


class Streams(Case):
    def test_streams_and_exit_code(self):
        run = self.sh("echo out; echo err >&2; exit 7")
        doc = self.ended(run, "failed", "nonzero_exit", 7)
        self.assertEqual((run.stdout, run.stderr), (b"out\n", b"err\n"))
        self.assertEqual(doc["image_digest"], E.image_id(SHELL))
        self.assertEqual(doc["runtime_version"], E.call("GET", "/version").json()["Version"])
        self.assertGreater(doc["resource_usage"]["cpu_time_us"], 0)
        self.assertGreater(doc["resource_usage"]["peak_memory_bytes"], 0)

    def test_order_of_both_streams(self):
        run = self.sh("i=0; while [ $i -lt 50 ]; do echo o$i; echo e$i >&2; i=$((i+1)); done")
        self.ended(run)
        self.assertEqual(sorted(run.log.split()), sorted(b"%s%d" % (s, i) for i in range(50) for s in (b"o", b"e")))
        self.assertEqual(run.stdout.split(), [b"o%d" % i for i in range(50)])

    def test_output_comes_while_it_runs(self):
        run = self.sh("echo ready; read x; echo got $x", interactive=True, spec_version="1.1")
        run.stream_until(b"ready\n")
        self.assertEqual(run.status(), "running")
        with open(run.path("stdin"), "wb", buffering=0) as f:
            f.write(b"word\n")
        self.ended(run)
        self.assertEqual(run.stdout, b"ready\ngot word\n")

    def test_the_last_bytes_are_there(self):
        run = self.sh("seq 20000; printf end")
        self.ended(run)
        self.assertEqual(run.stdout, b"".join(b"%d\n" % i for i in range(1, 20001)) + b"end")

    def test_input_ends(self):
        self.assertEqual(self.says("wc -c; echo after", stdin_b64=b64(b"x" * 200000)), "200000\nafter\n")
        self.assertEqual(self.says("cat; echo end"), "end\n")

    def test_streams_can_be_opened_by_name(self):
        run = self.sh("echo a > /dev/stdout; echo b > /dev/stderr; echo c >> /proc/self/fd/1")
        self.ended(run)
        self.assertEqual((run.stdout, run.stderr), (b"a\nc\n", b"b\n"))

    def test_who_holds_the_pipe_does_not_hold_the_run(self):
        run = self.sh("sleep 1000 & echo started")
        self.ended(run)
        self.assertEqual(run.stdout, b"started\n")

    def test_signals_reach_the_command(self):
        run = self.sh("trap 'echo usr; exit 4' USR1; echo up; while :; do sleep 0.1; done")
        run.stream_until(b"up\n")
        run.ctl("signal USR1\n")
        self.ended(run, "failed", "nonzero_exit", 4)
        self.assertEqual(run.stdout, b"up\nusr\n")

    def test_killed_by_a_signal(self):
        self.ended(self.sh("kill -9 $$"), "failed", "nonzero_exit", 137)


class Files(Case):
    more = {"tier_untrusted_workspace_cap_mb": 1}

    def test_files_in_artifacts_out(self):
        run = self.sh("cat f d/g; ./script; mkdir -p o/p; cp f o/p/x; stat -c '%u %a' f script", capture_patterns=["o/**"],
                      files=[{"path": "f", "content_b64": b64(b"one\n")}, {"path": "d/g", "content_b64": b64(b"two\n")},
                             {"path": "script", "content_b64": b64(b"#!/bin/sh\necho run\n")}])
        self.ended(run)
        self.assertEqual(run.stdout, b"one\ntwo\nrun\n1000 644\n1000 755\n")
        self.assertEqual(run.read("artifacts/o/p/x"), b"one\n")

    def test_artifacts_of_a_large_workspace(self):
        run = self.sh("head -c 20000000 /dev/urandom > big; sha256sum big", capture_patterns=["big"])
        self.ended(run)
        self.assertEqual(subprocess.run(["sha256sum"], input=run.read("artifacts/big"), stdout=subprocess.PIPE,
                                        check=True).stdout[:64], run.stdout[:64])

    def test_links_in_the_workspace_lead_nowhere(self):
        run = self.sh("ln -s /etc/passwd link; mkfifo fifo; echo x > plain", capture_patterns=["*"])
        self.ended(run, reason="limits_applied")
        self.assertEqual(os.listdir(run.path("artifacts")), ["plain"])

    def test_workspace_has_its_size(self):
        run = self.sh("head -c 2000000 /dev/zero > f", trust_level="untrusted")
        doc = self.ended(run, "failed", "limits_applied", 1)
        self.assertIn("workspace limit of 1 MiB", doc["message"])

    def test_tmp_and_shm_have_the_size_of_the_trust_level(self):
        script = "for d in /tmp /dev/shm; do df -k $d | tail -1; head -c 2000000 /dev/zero > $d/f; wc -c < $d/f; done"
        for spec, kib, written in (({"trust_level": "untrusted"}, 1024, 1 << 20), ({}, 256 << 10, 2000000)):
            run = self.sh(script + " 2>/dev/null", **spec)
            self.ended(run)
            lines = [line.split() for line in run.stdout.decode().splitlines()]
            self.assertEqual([(int(d[1]), int(n[0])) for d, n in zip(lines[::2], lines[1::2])], [(kib, written)] * 2)

    def test_files_that_do_not_fit(self):
        run = self.submit("true", files=[{"path": "f", "content_b64": b64(bytes(2 << 20))}],
                          trust_level="untrusted")
        doc = self.ended(run, "failed", "limits_applied", None)
        self.assertIn("the workspace is full", doc["message"])

    def test_cwd(self):
        self.assertEqual(self.says("pwd", cwd="a/b"), "/workspace/a/b\n")
        self.assertEqual(self.says("pwd", cwd="/data"), "/data\n")
        doc = self.ended(self.sh("pwd", cwd="/none"), "failed", "runtime_error", None)
        self.assertIn("/none", doc["message"])

    def test_only_workspace_and_tmp_can_be_written(self):
        said = self.says("for d in / /etc /data /bin /.sandbox /.sandbox/door /workspace /tmp /dev/shm; do "
                         "touch $d/x 2>/dev/null && echo $d; done; echo x > /.sandbox/start || true")
        self.assertEqual(said.split(), ["/workspace", "/tmp", "/dev/shm"])

    def test_programs_made_inside_can_be_run(self):
        self.assertEqual(self.says("for d in /workspace /tmp; do cp /bin/busybox $d/echo; $d/echo $d; done"),
                         "/workspace\n/tmp\n")


class Rights(Case):
    def test_user_and_capabilities(self):
        said = self.says("id -u; id -g; grep -E 'Cap(Prm|Eff|Bnd|Amb)|NoNewPrivs|Seccomp:' /proc/self/status")
        self.assertEqual(said.split()[:2], ["1000", "1000"])
        fields = dict(line.split(":\t") for line in said.splitlines()[2:])
        self.assertEqual({fields[c] for c in ("CapPrm", "CapEff", "CapBnd", "CapAmb")}, {"0" * 16})
        self.assertEqual((fields["NoNewPrivs"], fields["Seccomp"]), ("1", "2"))

    def test_what_the_engine_was_asked_for(self):
        run = self.sh("echo up; cat", interactive=True, spec_version="1.1",
                      resources={"memory_mb": 100, "pids": 20, "cpu": 0.5})
        run.stream_until(b"up\n")
        c = E.container_of(run)
        h = c["HostConfig"]
        self.assertEqual((h["NetworkMode"], h["ReadonlyRootfs"], h["CapDrop"], h["CapAdd"], h["Privileged"]),
                         ("none", True, ["ALL"], None, False))
        self.assertEqual((h["Memory"], h["MemorySwap"], h["PidsLimit"], h["NanoCpus"]),
                         (100 << 20, 100 << 20, 21, 500000000))
        self.assertIn("no-new-privileges", h["SecurityOpt"])
        self.assertEqual({u["Name"]: (u["Soft"], u["Hard"]) for u in h["Ulimits"]},
                         {"nofile": (1024, 1024), "nproc": (512, 512), "core": (1, 1)})
        self.assertEqual((h["LogConfig"]["Type"], h["AutoRemove"], h["IpcMode"]), ("none", False, "private"))
        labels = c["Config"]["Labels"]
        self.assertEqual((labels["sandboxfs.run"], labels["sandboxfs.generation"]), (run.id, "1"))
        with open(os.path.join(self.m.state, "docker/id")) as f:
            self.assertEqual(labels["sandboxfs.state"], f.read().strip())
        run.ctl("eof\n")
        self.ended(run)

    def test_no_network(self):
        self.assertEqual(self.says("ls /sys/class/net"), "lo\n")

    def test_the_service_cannot_be_seen(self):
        said = self.says("ls -A /.sandbox/door; cat /proc/1/environ /proc/1/maps 2>/dev/null; ls /proc/1/fd 2>/dev/null; "
                         "kill -9 1; kill -STOP 1; echo still; hostname")
        self.assertEqual(said, "still\nsandbox\n")

    def test_limits(self):
        self.assertEqual(self.says("ulimit -n; ulimit -c; ulimit -u", trust_level="untrusted"), "256\n0\n512\n")

    def test_memory(self):
        run = self.sh("a=x; while :; do a=$a$a$a$a; done", resources={"memory_mb": 64})
        doc = self.ended(run, "failed", "limits_applied", 137)
        self.assertEqual(doc["resource_usage"]["memory_limit_hit"], 1)
        self.assertIn("memory limit of 64 MiB", doc["message"])

    def test_memory_by_files(self):
        """No kill frees what files take; process 1 may be the last to go, and it is still the memory."""
        run = self.sh("head -c 200000000 /dev/zero > f; echo no", resources={"memory_mb": 64})
        run.wait(60)
        doc = run.json()
        self.assertEqual(doc["status_reason_code"], "limits_applied", doc)
        self.assertEqual(doc["resource_usage"]["memory_limit_hit"], 1)

    def test_processes(self):
        run = self.sh("i=0; while [ $i -lt 30 ]; do sleep 100 & i=$((i+1)); done; exit 1", resources={"pids": 10})
        run.wait(60)
        doc = run.json()
        self.assertEqual((doc["status_reason_code"], doc["resource_usage"]["pids_limit_hit"]), ("limits_applied", 1))

    def test_allowlist_is_refused(self):
        with self.assertRaises(sbx.Refused) as c:
            self.submit("true", network_policy="allowlist")
        self.assertEqual((c.exception.code, c.exception.details["requirement"]), ("policy_unsupported", "allowlist"))


class Ends(Case):
    more = {"cancel_grace_seconds": 1}

    def test_timeout(self):
        run = self.sh("trap 'echo term' TERM; echo up; while :; do sleep 0.1; done", timeout_sec=1)
        self.ended(run, "timed_out", "execution_timeout", None)
        self.assertEqual(run.stdout, b"up\nterm\n")

    def test_cancel(self):
        run = self.sh("echo up; sleep 1000")
        run.stream_until(b"up\n")
        run.ctl("cancel\n")
        self.ended(run, "killed", "canceled_by_user", None)

    def test_cancel_of_what_resists(self):
        run = self.sh("trap '' TERM; echo up; while :; do sleep 0.1; done")
        run.stream_until(b"up\n")
        run.ctl("cancel\n")
        self.ended(run, "killed", "canceled_by_user", None)
        self.assertGreaterEqual(run.json()["resource_usage"]["cpu_time_us"], 1)

    def test_what_cannot_be_executed(self):
        self.assertIn("No such file", self.ended(self.submit("no-such"), "failed", "nonzero_exit", 127)["message"])
        self.assertIn("denied", self.ended(self.submit("/etc/passwd"), "failed", "nonzero_exit", 126)["message"])
        self.ended(self.submit("/etc"), "failed", "nonzero_exit", 126)

    def test_nothing_is_left(self):
        with tempfile.TemporaryDirectory() as state:
            with sbx.Mount(state=state, settings=self.settings) as m:
                for command, n in (("true", "0"), ("false", "1"), ("no-such", "127")):
                    run = m.run({"runtime": "docker", "base_image": SHELL, "command": [command]})
                    self.assertEqual(run.exit, n)
            self.assertEqual(os.listdir(os.path.join(state, "docker")), ["id"])
            with open("/proc/self/mountinfo") as f:
                self.assertNotIn(state, f.read())
            with open(os.path.join(state, "docker/id")) as f:
                mine = f.read().strip()
        self.assertEqual([c for c in E.containers() if c["Labels"]["sandboxfs.state"] == mine], [])


class Images(Case):
    def test_without_a_shell(self):
        run = self.submit("/echo", "hello", base_image=BARE)
        self.ended(run)
        self.assertEqual(run.stdout, b"hello\n")
        self.ended(self.sh("true", base_image=BARE), "failed", "nonzero_exit", 127)

    def test_by_digest(self):
        run = self.submit("true", base_image=E.image_id(SHELL))
        self.assertEqual(self.ended(run)["image_digest"], E.image_id(SHELL))

    def test_what_an_image_says(self):
        said = self.says("id -u; pwd; env | sort", base_image=ODD, env={"BOTH": "document"})
        lines = said.splitlines()
        self.assertEqual(lines[:2], ["1000", "/workspace"])
        env = dict(line.split("=", 1) for line in lines[2:])
        self.assertEqual((env["PATH"], env["FROM_IMAGE"], env["BOTH"]), ("/bin:/odd", "yes", "document"))
        self.assertEqual((env["HOME"], env["USER"], env["PWD"]), ("/workspace", "sandbox", "/workspace"))

    def test_a_volume_is_small_and_goes(self):
        run = self.sh("df -k /data | tail -1; echo x > /data/f; cat; test ! -e /tmp/healthy", base_image=ODD,
                      interactive=True, spec_version="1.1")
        run.stream_until(b"/data\n")
        self.assertEqual([m for m in E.container_of(run)["Mounts"] if m["Type"] == "volume"], [])
        run.ctl("eof\n")
        self.ended(run)
        self.assertEqual(run.stdout.split()[:2], [b"tmpfs", b"65536"])
        self.assertEqual(E.call("GET", "/volumes").json()["Volumes"] or [], [])

    def test_a_volume_does_not_cover_the_workspace(self):
        E.make_image("covers:1", engine.root_with_shell(), "VOLUME /workspace/")
        run = self.sh("grep -c ' /workspace ' /proc/self/mountinfo; touch /workspace/own", base_image="covers:1")
        self.ended(run)
        self.assertEqual(run.stdout, b"1\n")

    def test_a_volume_that_no_tmpfs_would_cover(self):
        """The engine understands it otherwise than by its letters, and would mount one of the host's disk."""
        for n, volume in enumerate(("../../data", "data", "/x/%s/../data" % ("a" * 5000), "/..")):
            with self.subTest(volume=volume[:20]):
                name = "odd-volume:%d" % n
                E.make_image(name, engine.root_with_shell(), "VOLUME " + volume)
                run = self.sh("grep -c ' /data ' /proc/self/mountinfo", base_image=name)
                run.wait(60)
                self.assertEqual((run.json()["phase"], run.log), ("failed", b""))
                if volume != "/..":  # which the engine itself refuses
                    self.assertEqual(run.json()["status_reason_code"], "policy_failed")
                    self.assertIn("volume '%s" % volume[:20], run.json()["message"])
                self.assertEqual(E.call("GET", "/volumes").json()["Volumes"] or [], [])

    def test_a_volume_by_another_name(self):
        """What is an absolute path is understood as the engine does."""
        E.make_image("spelt:1", engine.root_with_shell(), "VOLUME //x/./y/..//../data/")
        run = self.sh("df -k /data | tail -1", base_image="spelt:1")
        self.ended(run)
        self.assertEqual(run.stdout.split()[:2], [b"tmpfs", b"65536"])
        self.assertEqual(E.call("GET", "/volumes").json()["Volumes"] or [], [])

    def test_that_is_not_there(self):
        doc = self.ended(self.submit("true", base_image="nobody/has:this"), "failed", "runtime_error", None)
        self.assertIn("nobody/has:this", doc["message"])

    def test_names_that_are_none(self):
        for name in ("host", "host-local", "../x", "a b", "-x", "a//b", "a/", "x\u00e9", "a?b=c"):
            with self.subTest(name=name), self.assertRaises(sbx.Refused) as c:
                self.submit("true", base_image=name)
            self.assertEqual((c.exception.errno, c.exception.code), (errno.EINVAL, "invalid_spec"))
            self.assertIn("base_image", c.exception.message)
            self.assertIn("python:3.11-slim", c.exception.message)

    def test_check_says_the_same(self):
        v = self.m.check({"runtime": "docker", "base_image": "host", "command": ["true"]})
        self.assertEqual((v["accepted"], v["error"]["code"]), (False, "invalid_spec"))
        v = self.m.check({"runtime": "docker", "command": ["true"]})
        self.assertEqual((v["accepted"], v["base_image"]), (True, "python:3.11-slim"))


class Default(Case):
    more = {"docker_default_image": SHELL, "default_runtime": "docker", "docker_default_uid": 4242,
            "docker_default_gid": 4343}

    def test_image_runtime_and_user_of_the_settings(self):
        run = self.m.run({"command": ["sh", "-c", "id -u; id -g"]})
        doc = self.ended(run)
        self.assertEqual((doc["runtime"], doc["base_image"], run.stdout), ("docker", SHELL, b"4242\n4343\n"))

    def test_a_script(self):
        run = self.m.submit("#!/bin/sh\necho script\n")
        self.ended(run)
        self.assertEqual(run.stdout, b"script\n")


class Sessions(Case):
    more = {"docker_default_image": SHELL}

    def in_session(self, s, script, **spec):
        return s.submit(script, runtime="docker", **spec)

    def test_the_workspace_is_shared_and_owned(self):
        s = Session(self.m, "one")
        s.write("given", b"from outside\n")
        run = self.in_session(s, "id -u; cat given; stat -c %u given; echo made > made; mkdir d; echo x > d/f",
                              capture_patterns=["made"], files=[{"path": "doc", "content_b64": b64(b"doc")}])
        self.ended(run)
        self.assertEqual(run.stdout, b"1000\nfrom outside\n1000\n")
        self.assertEqual((s.read("made"), s.read("d/f"), s.read("doc")), (b"made\n", b"x\n", b"doc"))
        self.assertEqual({os.stat(s.disk(n)).st_uid for n in ("given", "made", "d", "d/f", "doc")}, {0})
        self.assertEqual(run.read("artifacts/made"), b"made\n")
        self.ended(self.in_session(s, "cat made d/f > both"))
        self.assertEqual(s.read("both"), b"made\nx\n")
        # The other runtime sees the same files as its own.
        self.ended(s.submit("cat both > again; stat -c %u both", base_image=None))
        os.rmdir(s.dir)

    def test_of_a_user(self):
        s = Session(self.m, "user")
        disk = s.disk()
        os.chown(disk, 1234, 1234)
        run = self.in_session(s, "id -u; echo mine > f; stat -c %u f")
        self.ended(run)
        self.assertEqual(run.stdout, b"1000\n1000\n")
        self.assertEqual((os.stat(os.path.join(disk, "f")).st_uid, os.stat(os.path.join(disk, "f")).st_gid), (1234, 1234))
        os.chown(disk, 0, 0)
        os.rmdir(s.dir)

    def test_cap(self):
        s = Session(self.m, "cap")
        run = self.in_session(s, "head -c 70000000 /dev/zero > f; sleep 100", trust_level="untrusted")
        run.wait(60)
        self.assertEqual(run.json()["status_reason_code"], "limits_applied")
        os.rmdir(s.dir)


class Warm(Case):
    more = {"docker_default_image": SHELL, "default_runtime": "docker", "docker_warm": "true", "warm_runners": 1}

    def waiting(self):
        return [c for c in E.containers() if "sandboxfs.run" not in c["Labels"]]

    def wait_warm(self):
        """One is there, and that of the run before is not there any more."""
        while [c["State"] for c in E.containers()] != ["running"] or not self.waiting():
            E.wait_event(lambda e: e.get("Action") in ("start", "destroy"), lambda: None)

    def test_one_waits_and_is_used(self):
        self.ended(self.m.run({"command": ["true"]}))  # the next one is made for what the last one had
        self.wait_warm()
        (waiting,) = self.waiting()
        door = next(m["Source"] for m in E.call("GET", "/containers/%s/json" % waiting["Id"]).json()["Mounts"]
                    if m["Destination"] == "/.sandbox/door")
        run = self.m.run({"command": ["cat", "/proc/self/mountinfo"]})
        self.ended(run)
        self.assertIn(os.path.basename(os.path.dirname(door)).encode(), run.stdout)

    def test_other_limits(self):
        self.wait_warm()
        run = self.m.run({"command": ["sh", "-c", "echo up; a=x; while :; do a=$a$a$a$a; done"], "resources": {"memory_mb": 64}})
        self.ended(run, "failed", "limits_applied", 137)

    def test_another_workspace(self):
        self.wait_warm()
        run = self.m.run({"command": ["sh", "-c", "df -k /workspace | tail -1"], "trust_level": "untrusted"})
        self.ended(run)
        self.assertEqual(run.stdout.split()[1], b"65536")

    def test_another_image(self):
        self.wait_warm()
        run = self.m.run({"command": ["/echo", "other"], "base_image": BARE})
        self.ended(run)

    def test_one_that_has_ended_is_made_again(self):
        with sbx.Mount(settings=self.settings) as m:
            self.assertTrue(os.listdir(os.path.join(m.mnt, "runtimes")))  # there is a first runner
            with open(os.path.join(m.state, "docker/id")) as f:
                mine = f.read().strip()
            found = []
            while not found:
                found = [c for c in self.waiting() if c["Labels"]["sandboxfs.state"] == mine and c["State"] == "running"]
                if not found:
                    E.wait_event(lambda e: e.get("Action") == "start", lambda: None)
            E.wait_event(lambda e: e.get("Action") == "die" and e.get("id") == found[0]["Id"],
                         lambda: E.call("POST", "/containers/%s/kill" % found[0]["Id"]))
            run = m.run({"command": ["echo", "all the same"]})
            self.ended(run)
            self.assertEqual(run.stdout, b"all the same\n")

    def test_a_name_that_has_moved_to_another_image(self):
        """A container that was made ahead has the old one."""
        with open(engine.static_busybox(), "rb") as f:
            program = f.read()

        def move(text):
            E.make_image("moves:1", engine.archive(("cat", program, 0o755), ("which", text, 0o644)))
        move(b"first\n")
        with sbx.Mount(settings={**self.settings, "docker_default_image": "moves:1"}) as m:
            for text in (b"first\n", b"second\n"):
                with open(os.path.join(m.state, "docker/id")) as f:
                    mine = f.read().strip()
                while not [c for c in self.waiting() if c["Labels"]["sandboxfs.state"] == mine and c["State"] == "running"]:
                    E.wait_event(lambda e: e.get("Action") == "start", lambda: None)
                move(text)
                run = m.run({"command": ["/cat", "/which"]})
                self.assertEqual((self.ended(run)["image_digest"], run.stdout), (E.image_id("moves:1"), text))

    def test_none_is_left_by_a_door_that_stops(self):
        with sbx.Mount(settings=self.settings) as m:
            self.assertEqual(m.run({"command": ["true"]}).exit, "0")
            with open(os.path.join(m.state, "docker/id")) as f:
                mine = f.read().strip()
        self.assertEqual([c for c in E.containers() if c["Labels"]["sandboxfs.state"] == mine], [])


class Discovery(Case):
    def row(self):
        with open(os.path.join(self.m.mnt, "runtimes/docker.json")) as f:
            return json.load(f)

    def test_row(self):
        row = self.row()
        self.assertTrue(row["available"] and row["interactive_supported"] and row["strict_deny_all_supported"])
        self.assertEqual((row["reasons"], row["boundary_class"], row["untrusted_eligible"]), ([], "container", True))
        self.assertEqual(row["enforcement_ready"], {"deny_all": True, "allowlist": False})
        self.assertEqual(row["supported_trust_levels"], ["trusted", "standard", "untrusted"])
        self.assertEqual(row["host"]["limits"], "cgroup")

    def test_the_probe_leaves_nothing(self):
        self.assertEqual([i for i in E.call("GET", "/images/json").json() if "sandboxfs-probe" in str(i["RepoTags"])], [])


if __name__ == "__main__":
    sbx.main()
