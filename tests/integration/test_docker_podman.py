# SPDX-License-Identifier: Apache-2.0
# run: limit=200
"""The runtime docker with Podman's service instead of Docker's."""
import base64
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import dockerkit  # noqa: E402
import engine  # noqa: E402
import nethosts  # noqa: E402
import sbx  # noqa: E402
from workkit import Session  # noqa: E402

SHELL = "shell:latest"
E = None


def setUpModule():
    global E
    if engine.why_no_podman():
        raise unittest.SkipTest(engine.why_no_podman())
    E = engine.Podman()
    unittest.addModuleCleanup(E.close)
    E.start()
    E.make_image(SHELL, engine.root_with_shell())


class Podman(dockerkit.Runs, sbx.Case):
    @classmethod
    def setUpClass(cls):
        cls.settings = dockerkit.settings(E, warm_runners=1, cancel_grace_seconds=1, docker_default_image=SHELL)
        super().setUpClass()

    def sh(self, script, **spec):
        return self.m.submit(dict({"runtime": "docker", "base_image": SHELL, "command": ["sh", "-c", script]}, **spec))

    def test_streams_files_and_artifacts(self):
        run = self.sh("id -u; cat f; echo err >&2; echo made > a; ls /sys/class/net; exit 3", capture_patterns=["a"],
                      files=[{"path": "f", "content_b64": base64.b64encode(b"in\n").decode()}])
        self.ended(run, "failed", "nonzero_exit", 3)
        self.assertEqual((run.stdout, run.stderr), (b"1000\nin\nlo\n", b"err\n"))
        self.assertEqual(run.read("artifacts/a"), b"made\n")

    def test_rights(self):
        run = self.sh("touch /x /bin/x 2>/dev/null; grep -E 'CapBnd|NoNewPrivs|Seccomp:' /proc/self/status")
        run.wait(60)
        self.assertEqual(run.stdout.split()[1::2], [b"0" * 16, b"1", b"2"])

    def test_memory(self):
        doc = self.ended(self.sh("a=x; while :; do a=$a$a$a$a; done", resources={"memory_mb": 64}), "failed",
                         "limits_applied", 137)
        self.assertEqual(doc["resource_usage"]["memory_limit_hit"], 1)

    def test_cancel(self):
        run = self.sh("echo up; sleep 1000")
        run.stream_until(b"up\n")
        run.ctl("cancel\n")
        self.ended(run, "killed", "canceled_by_user", None)

    def test_session(self):
        s = Session(self.m, "s")
        run = s.submit("id -u; echo made > f; stat -c %u f", runtime="docker")
        self.ended(run)
        self.assertEqual((run.stdout, s.read("f"), os.stat(s.disk("f")).st_uid), (b"1000\n1000\n", b"made\n", 0))
        os.rmdir(s.dir)

    def test_nothing_is_left(self):
        with tempfile.TemporaryDirectory() as where:
            state = os.path.join(where, "state")
            with sbx.Mount(state=state, settings=self.settings) as m:
                run = m.run({"runtime": "docker", "base_image": SHELL, "command": ["true"]})
                self.assertEqual(run.exit, "0")
                with open(os.path.join(m.state, "docker/id")) as f:
                    mine = f.read().strip()
            # Podman may refuse to remove a container while it sees to its end: whoever comes next does it.
            with sbx.Mount(state=state, settings=self.settings) as m:
                self.assertEqual(m.run({"command": ["true"]}).exit, "0")
        self.assertEqual([c for c in E.containers() if c["Labels"]["sandboxfs.state"] == mine], [])

    @unittest.skipIf(nethosts.reason_not_here(), nethosts.reason_not_here())
    def test_a_network_by_allowlist(self):
        with nethosts.Host("allowed") as a, nethosts.Host("forbidden", sniffs=True) as f, \
                sbx.Mount(settings={**self.settings, "egress_enforcement": "true", "egress_granular_enforcement": "true",
                                    "egress_allowlist": "good.test,%s,%s" % (a.v4, a.v6), "egress_dns": a.v4}) as m:
            a.zone({"good.test": {"A": [a.v4]}})
            script = ("for a in %s [%s] %s; do wget -q -O - http://$a/ 2>&1; done; nslookup -type=a good.test; "
                      "ls /etc/resolv.conf" % (a.v4, a.v6, f.v4))
            run = m.run({"runtime": "docker", "base_image": SHELL, "command": ["sh", "-c", script],
                         "network_policy": "allowlist"}, timeout=60)
            self.assertEqual((run.exit, run.stdout.decode().splitlines()[:2]), ("1", ["allowed 80", "allowed 80"]), run.json()["message"])
            self.assertIn(b"refused", run.stdout)
            # It writes no file about name servers, and without one libraries ask the loopback device.
            self.assertIn("good.test\nAddress: %s\n" % a.v4, run.stdout.decode())
            self.assertEqual(f.seen()["packets"], [])


if __name__ == "__main__":
    sbx.main()
