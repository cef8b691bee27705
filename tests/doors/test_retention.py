# SPDX-License-Identifier: Apache-2.0
"""Runs that are older than run_retention_hours go, for both doors at once, and nothing else does."""
import errno
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import doors  # noqa: E402
import sbx  # noqa: E402
import sessions  # noqa: E402

HOUR_US = 3600 * 1000000


class Retention(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.p = doors.Pair(settings={"run_retention_hours": 1, "artifact_janitor_interval_sec": 1,
                                     "artifact_ttl_hours": 1000})
        cls.p.start()
        cls.addClassCleanup(cls.p.close)
        cls.a = cls.p.a

    def made(self, **spec):
        run = self.a.sh("echo out; echo x > art", capture_patterns=["art"], **spec)
        self.assertEqual(run.wait()["phase"], "completed")
        return run

    def age(self, run, hours):
        self.a.change("UPDATE runs SET finished_us = finished_us - ? WHERE id = ?", int(hours * HOUR_US), run.id)

    def gone(self, run):
        self.a.until(lambda: self.a.get("/runs/" + run.id).status == 404)

    def started(self):
        return self.a.metric("sandbox_runs_started_total")

    def test_what_is_old_goes_and_the_rest_stays(self):
        s = sessions.Session.make(self.a)
        old, young = self.made(labels={"a": "b", "c": "d"}), self.made(labels={"a": "b"})
        of_session = s.run("true")
        of_session.wait()
        node = os.path.join(self.p.m.mnt, "runs", old.id)
        self.assertTrue(os.path.exists(node))
        started, ended = self.started(), self.a.metric("sandbox_runs_completed_total")
        removed = self.a.metric("sandbox_runs_removed_total")
        total = self.a.get("/admin/runs").json["total"]
        used = self.a.get("/admin/usage").json["items"][0]
        self.age(young, 0.5)
        self.age(old, 1.5)
        self.age(of_session, 1.5)
        self.gone(old)
        self.gone(of_session)
        # Through HTTP: not there, not listed, not counted among what there is.
        for path in ("", "/artifacts", "/artifacts/art"):
            self.assertEqual(self.a.get("/runs/" + old.id + path).status, 404)
        self.assertEqual([i["id"] for i in self.a.get("/runs?label=a=b").json["items"]], [young.id])
        self.assertEqual(self.a.get("/runs?label=c=d").json["items"], [])
        self.assertEqual(self.a.get("/admin/runs").json["total"], total - 2)
        now = self.a.get("/admin/usage").json["items"][0]
        self.assertEqual((used["runs_count"] - now["runs_count"], used["artifact_bytes"] - now["artifact_bytes"],
                          used["log_bytes"] - now["log_bytes"]), (2, 2, 4))
        # What is counted for ever is as it was.
        self.assertEqual((self.started(), self.a.metric("sandbox_runs_completed_total")), (started, ended))
        self.assertEqual(self.a.metric("sandbox_runs_removed_total"), removed + 2)
        # Through the mount.
        self.assertEqual(os.listdir(os.path.join(self.p.m.mnt, "runs")).count(old.id), 0)
        self.assertEqual(os.listdir(os.path.join(self.p.m.mnt, "sessions", s.id, "runs")), ["new"])
        with self.assertRaises(FileNotFoundError):
            with open(os.path.join(node, "log"), "rb"):
                pass
        # On the disk.
        doors.later(lambda: self.assertFalse(os.path.exists(old.files())))
        rows = {r for (r,) in self.a.sql("SELECT rid FROM runs")}
        self.assertEqual({r for (r,) in self.a.sql("SELECT rid FROM specs")}, rows)
        self.assertLessEqual({r for (r,) in self.a.sql("SELECT run FROM run_labels")}, rows)
        self.assertEqual(self.a.sql("SELECT * FROM artifacts WHERE run_id = ?", old.id), [])
        # The young one is whole.
        self.assertEqual((young.get()["phase"], young.log(), young.artifact("art").body), ("completed", b"out\n", b"x\n"))

    def test_what_has_not_ended_stays(self):
        run = self.a.sh("sleep 100")
        run.wait_phase("running")
        self.a.change("UPDATE runs SET created_us = 1, started_us = 1 WHERE id = ?", run.id)
        old = self.made()
        self.age(old, 2)
        self.gone(old)
        self.assertEqual(run.get()["phase"], "running")
        run.cancel()
        run.wait()

    def test_a_key_of_a_run_that_is_gone(self):
        spec = {"command": ["true"]}
        got = self.a.try_run(spec, key="k")
        run = self.a.run(spec, key="k")
        self.assertEqual(run.id, got.json["id"])
        run.wait()
        self.age(run, 2)
        self.gone(run)
        again = self.a.try_run(spec, key="k")
        self.assertEqual((again.status, again.code), (404, "run_not_found"))
        self.assertIn("has started, %s, is gone; another key starts another one" % run.id, again.error["message"])

    def test_a_key_of_a_run_that_is_gone_on_the_mount(self):
        spec = {"command": ["true"], "idempotency_key": "m"}
        run = self.p.m.submit(spec)
        run.wait()
        self.age(run, 2)
        self.gone(run)
        with self.assertRaises(sbx.Refused) as c:
            self.p.m.submit(spec)
        self.assertEqual((c.exception.errno, c.exception.code), (errno.ENOENT, "run_not_found"))
        self.assertIn("has started, %s, is gone; another key starts another one" % run.id, c.exception.message)


if __name__ == "__main__":
    sbx.main()
