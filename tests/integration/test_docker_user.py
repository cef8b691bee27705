# SPDX-License-Identifier: Apache-2.0
# run: limit=200
"""The runtime docker under an ordinary user who may speak with the engine: a service of that user's own, which can
neither kill a container's processes nor map the owner of a workspace, and works all the same."""
import json
import os
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../lib"))
import dockerkit  # noqa: E402
import sbx  # noqa: E402
from dockerkit import SHELL  # noqa: E402

UID = 2345
PYTHON = "/usr/bin/python3"  # one that everybody may execute
E = None

# Runs as the user: does each document, and prints how it ended.
PROGRAM = """
import json, sys
sys.path.insert(0, %r)
import api
import engine
settings, documents = json.loads(sys.stdin.readline())
e = engine.At(settings["docker_host"])
with api.Apid(settings=settings) as a:
    row = a.runtime("docker")
    out = {"available": row["available"], "runs": []}
    session = a.post("/sessions", {"spec_version": "1.0", "runtime": "docker", "base_image": %r}).json["id"]
    for d in documents:
        paused = d.pop("paused", False)
        image = {"session_id": session} if d.pop("in_session", False) else {"base_image": %r}
        got = a.post("/runs", {"spec_version": "1.0", "runtime": "docker", **image, **d})
        assert got.status == 200, got
        run = api.Run(a, got.json)
        if paused:
            run.wait_phase("running")
            assert e.call("POST", "/containers/" + e.container_of(run)["Id"] + "/pause").status == 204
        doc = run.wait(60)
        out["runs"].append([doc["phase"], doc["status_reason_code"], doc["exit_code"], run.artifacts()])
    print(json.dumps(out))
"""


def as_user(argv, **kw):
    return subprocess.run(["setpriv", "--reuid", str(UID), "--regid", str(UID), "--clear-groups", *argv], cwd="/",
                          check=False, **kw)


def setUpModule():
    global E
    if not os.access(PYTHON, os.X_OK):
        raise unittest.SkipTest("%s is not there" % PYTHON)
    for path in (os.path.join(HERE, "../lib/api.py"), sbx.SANDBOXFS):
        if as_user(["test", "-r", path]).returncode:
            raise unittest.SkipTest("an ordinary user cannot read %s" % path)
    E = dockerkit.start(SHELL)
    os.chmod(E.base, 0o711)
    os.chmod(E.socket, 0o666)


class User(unittest.TestCase):
    def serve(self, *documents, **settings):
        settings = dockerkit.settings(E, **{"warm_runners": 1, "cancel_grace_seconds": 1, **settings})
        lib = os.path.join(HERE, "../lib")
        done = as_user([PYTHON, "-c", PROGRAM % (lib, SHELL, SHELL)], input=json.dumps([settings, documents]) + "\n",
                       text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60 * sbx.SLOW,
                       env=dict(os.environ, HOME="/nonexistent", PYTHONDONTWRITEBYTECODE="1"))
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        out = json.loads(done.stdout.splitlines()[-1])
        self.assertTrue(out["available"])
        return out["runs"]

    def test_what_goes_in_and_comes_out(self):
        (run,) = self.serve({"command": ["sh", "-c", "test $(id -u) = 1000 && echo x > /dev/stdout && cat f > a"],
                               "files": [{"path": "f", "content_b64": "aGk="}], "capture_patterns": ["a"]})
        self.assertEqual((run[:3], run[3]), (["completed", "completed", 0], {"a": 2}))

    def test_what_resists_is_killed(self):
        runs = self.serve({"command": ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"], "timeout_sec": 1},
                            {"command": ["sh", "-c", "a=x; while :; do a=$a$a$a$a; done"], "resources": {"memory_mb": 64}})
        self.assertEqual([r[:3] for r in runs], [["timed_out", "execution_timeout", None], ["failed", "limits_applied", 137]])

    def test_what_is_paused_is_killed(self):
        """Neither process 1 nor the kernel does that for such a user; the engine does."""
        runs = self.serve({"command": ["sleep", "1000"], "timeout_sec": 2, "paused": True}, {"command": ["true"]})
        self.assertEqual([r[:3] for r in runs], [["timed_out", "execution_timeout", None], ["completed", "completed", 0]])

    def test_a_workspace_has_its_owner(self):
        runs = self.serve({"command": ["sh", "-c", "id -u > who"], "in_session": True},
                            {"command": ["sh", "-c", "test $(cat who) = %d -a $(stat -c %%u who) = %d" % (UID, UID)],
                             "in_session": True})
        self.assertEqual([r[:3] for r in runs], [["completed", "completed", 0]] * 2)

    def test_nothing_is_left(self):
        self.serve({"command": ["true"]})
        self.assertEqual(E.containers(), [])


if __name__ == "__main__":
    sbx.main()
