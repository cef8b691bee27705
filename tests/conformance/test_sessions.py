# SPDX-License-Identifier: Apache-2.0
"""Sessions: made, looked at after a restart and through another server, and ended with everything that is theirs."""
import glob
import os

import conf
import sessions
from conf import api
from sessions import Session

SPEC = {"spec_version": "1.0", "base_image": "host", "cpu_limit": 1.5, "memory_mb": 768, "timeout_sec": 77,
        "network_policy": "deny_all", "env": {"SESSION_TOKEN": "present"}, "trust_level": "trusted"}
TAGS = {"persona_id": "p-1", "workspace_id": "w-1", "workspace_group_id": "g-1", "scope_snapshot_id": "s-1"}


class Made(conf.Case):
    def post(self, doc, **kw):
        got = self.a.post("/sessions", doc, **kw)
        self.assertEqual(got.status, 200, got)
        return got.json

    def test_T054_with_a_key(self):
        doc = self.post({"spec_version": "1.0", "runtime": "namespace", "base_image": "host", "timeout_sec": 60},
                        headers={"Idempotency-Key": "abc-123"})
        self.assertRegex(doc["id"], r"\A[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
        self.assertEqual(doc["runtime"], "namespace")

    def test_T055_what_was_asked_is_told(self):
        asked = {**SPEC, "runtime": "namespace", "labels": {"team": "sandbox"}}
        doc = self.post(asked)
        self.assertEqual({k: doc[k] for k in asked}, asked)

    def test_T057_it_has_a_policy_hash(self):
        doc = self.post({"spec_version": "1.0", "runtime": "namespace", "base_image": "host"})
        self.assertRegex(doc["policy_hash"], r"\A[0-9a-f]{16}\Z")

    def test_T058_the_same_policy_has_the_same_hash(self):
        one, two = (self.post({"spec_version": "1.0", "base_image": "host"}) for _ in range(2))
        self.assertNotEqual(one["id"], two["id"])
        self.assertIsInstance(one["policy_hash"], str)
        self.assertEqual(one["policy_hash"], two["policy_hash"])


class Foreground(conf.Case):
    settings = conf.FOREGROUND

    def test_T059_runs_take_over_what_they_do_not_say(self):
        s = Session.make(self.a, SPEC)
        run = s.run("python3", "-c", "import os;print(os.environ['SESSION_TOKEN'])")
        doc = run.posted
        self.assertEqual((doc["phase"], doc["base_image"], doc["session_id"]), ("completed", "host", s.id), doc)
        self.assertEqual((doc["runtime"], doc["network_policy"], doc["trust_level"]), ("namespace", "deny_all", "trusted"))
        self.assertEqual(sessions.output(run), b"present\n")
        (spec,), = self.a.sql("SELECT spec FROM specs JOIN runs USING (rid) WHERE id=?", run.id)
        for text in ('"cpu":1.5', '"memory_mb":768', '"timeout_sec":77', '"SESSION_TOKEN":"present"'):
            self.assertIn(text, spec)


class Queued(conf.Case):
    settings = conf.QUEUED

    def test_T061_a_session_that_is_gone(self):
        s = Session.make(self.a)
        self.assertEqual(s.delete().json, {"ok": True})
        for gone in (s, Session(self.a, "00000000-0000-4000-8000-000000000000"), Session(self.a, "nothing")):
            got = gone.try_run("python3", "-c", "print(1)")
            self.refused(got, 404, "session_not_found")
            self.assertEqual(got.json["detail"], "session_not_found")
        self.assertEqual(self.a.get("/runs?session_id=" + s.id).json["items"], [])

    def test_T062_its_runs_end_with_it(self):
        s = Session.make(self.a)
        run = s.run("python3", "-c", "print('queued')", timeout_sec=15)
        self.assertEqual(run.posted["phase"], "queued")
        got = s.delete()
        self.assertEqual((got.status, got.json), (200, {"ok": True}))
        self.assertEqual(run.get()["phase"], "killed")
        self.refused(s.get(), 404, "session_not_found")

    def slow_snapshot(self, through):
        """A run that is posted through another server, or the same, while a snapshot is being taken."""
        s = Session.make(self.a)
        s.put(("big", b"x" * 100000))
        arrivals = sessions.Arrivals(through)
        with sessions.objects(self.a):
            shot = sessions.Asked(s.snapshot)
            sessions.waits_for_objects(self.a)
            arrivals.wait(through is self.a)
            run = sessions.Asked(s.through(through).try_run, "python3", "-c", "print('queued')")
            arrivals.wait()
            self.assertTrue(shot.is_open() and run.is_open())
            self.assertEqual(self.a.get("/runs?session_id=" + s.id).json["items"], [])
        shot, run = shot.wait(), run.wait()
        self.assertEqual((shot.status, run.status), (200, 200), (shot, run))
        self.assertEqual(run.json["phase"], "queued")
        order = self.a.sql("SELECT kind FROM changes WHERE what='new' AND id IN (?, ?) ORDER BY seq",
                           run.json["id"], shot.json["snapshot_id"])
        self.assertEqual(order, [("snapshot",), ("run",)])

    def test_T069_a_run_waits_for_the_snapshot(self):
        self.slow_snapshot(self.a)
        with self.server(conf.QUEUED, state=self.a.state) as other:
            self.slow_snapshot(other)


class Ended(conf.Alone):
    def test_T063_everything_of_it_goes(self):
        with self.server() as a:
            def usage():
                return sum(u["artifact_bytes"] for u in a.get("/admin/usage").json["items"])

            s = Session.make(a)
            s.put(("in.txt", b"uploaded"))
            x = s.run("sh", "-c", "printf 12345 > out.txt", capture_patterns=["out.txt"])
            self.ended(x)
            self.assertEqual((x.artifacts(), usage()), ({"out.txt": 5}, 5))
            shot = s.snapshot()
            self.assertEqual(shot.status, 200, shot)
            kept = os.path.join(a.state, "snapshots", shot.json["snapshot_id"])
            self.assertTrue(os.path.exists(kept))
            active = s.run("sleep", "100")
            got = s.delete()
            self.assertEqual((got.status, got.json), (200, {"ok": True}))
            self.assertFalse(os.path.exists(s.files()))
            self.assertFalse(os.path.exists(kept))
            self.assertEqual(glob.glob(x.files("artifacts", "*")), [])
            self.assertEqual(x.artifact("out.txt").status, 404)
            self.assertEqual((x.get()["phase"], active.get()["phase"]), ("completed", "killed"))
            self.assertEqual(usage(), 0)

    def test_T065_through_another_server(self):
        with conf.two() as (p1, p2):
            s = Session.make(p1)
            s.put(("state.txt", b"state"))
            self.assertTrue(os.path.exists(s.workspace("state.txt")))
            self.assertEqual(s.through(p2).delete().json, {"ok": True})
            self.assertFalse(os.path.exists(s.files()))
            self.refused(s.get(), 404, "session_not_found")


class Restarted(conf.Alone):
    def test_T066_it_is_still_there(self):
        user = api.user("42")
        with self.server(api.USERS) as a:
            s = Session.make(a, login=user)
            before = s.get().json
            s.put(("marker.txt", b"hello"))
            a.stop()
            a.start()
            self.assertEqual(s.get().json, before)
            self.refused(s.get(login=api.user("43")), 404, "session_not_found")
            run = s.run("cat", "marker.txt")
            doc = self.ended(run)
            self.assertEqual((doc["runtime"], doc["user"]), (before["runtime"], "42"))
            self.assertEqual(sessions.output(run), b"hello")

    def test_T067_with_all_its_values(self):
        asked = {**SPEC, **TAGS, "labels": {"team": "sandbox"}}
        with self.server() as a:
            s = Session.make(a, asked)
            a.stop()
            a.start()
            doc = s.get().json
            self.assertEqual({k: doc[k] for k in asked}, asked)
            clone = s.clone()
            self.assertEqual(clone.status, 200, clone)
            doc = a.get("/sessions/" + clone.json["session_id"]).json
            self.assertEqual({k: doc[k] for k in asked}, asked)
            run = s.run("true")
            self.assertEqual({k: run.posted[k] for k in (*TAGS, "trust_level", "network_policy", "base_image")},
                             {k: asked[k] for k in (*TAGS, "trust_level", "network_policy", "base_image")})
            self.ended(run)


if __name__ == "__main__":
    conf.main()
