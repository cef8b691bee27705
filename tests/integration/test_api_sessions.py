# SPDX-License-Identifier: Apache-2.0
# run: limit=240
"""The routes of sessions and snapshots: who may use them, what they answer to bad documents, what waits and what
does not, and what happens when clients or the service go away in the middle."""
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import api  # noqa: E402
import rawhttp  # noqa: E402
import sbx  # noqa: E402
import sessions  # noqa: E402
from sessions import Session  # noqa: E402

STUBBORN = "trap '' TERM; echo up; while :; do sleep 0.1; done"


class Case(unittest.TestCase):
    settings = {}

    @classmethod
    def setUpClass(cls):
        cls.a = api.Apid(settings=cls.settings)
        cls.addClassCleanup(cls.a.close)
        cls.a.start()

    def refused(self, got, status, code):
        self.assertEqual((got.status, got.code), (status, code), got)
        return got


# ---- what is asked, and by whom ----------------------------------------------------------------------

# method, path below the session, document
ROUTES = (
    ("GET", "", None), ("DELETE", "", None), ("POST", "/files", None), ("POST", "/snapshot", None),
    ("GET", "/snapshots", None), ("POST", "/snapshots", b"x"), ("GET", "/snapshots/x/export", None),
    ("PATCH", "", {"expires_in_sec": 1}), ("DELETE", "/snapshots/x", None), ("GET", "/snapshots/x/diff", None),
    ("POST", "/restore", {"snapshot_id": "x"}), ("POST", "/clone", None),
)


class Access(Case):
    settings = api.USERS

    def test_nobody_is_asked_to_log_in(self):
        for method, rest, doc in (*ROUTES, ("POST", None, {}), ("GET", None, None)):
            path = "/sessions" if rest is None else "/sessions/x" + rest
            self.refused(self.a.request(method, path, doc, login=api.NOBODY), 401, "unauthorized")

    def test_a_foreign_session_is_not_there(self):
        s = Session.make(self.a, login=api.user("alice"))
        nothing = Session(self.a, "00000000-0000-4000-8000-000000000000")
        for method, rest, doc in ROUTES:
            with self.subTest(method + rest):
                headers = {"Content-Type": sessions.form_type()} if rest == "/files" else {}
                answers = [one.ask(method, rest, doc, login=api.user("bob"), headers=headers)
                           for one in (s, nothing, Session(self.a, "x"), Session(self.a, "%00"), Session(self.a, "..%2f"))]
                for got in answers[:3]:
                    self.refused(got, 404, "session_not_found")
                    self.assertEqual(got.json["detail"], "session_not_found")
                for got in answers[3:]:
                    self.assertEqual(got.status, 404, got)
        self.assertEqual(self.a.get("/sessions", login=api.user("bob")).json["items"], [])
        self.assertEqual(s.get().status, 200)

    def test_an_administrator_sees_it_and_its_clone_is_the_owners(self):
        boss = api.user("boss", role="admin")
        s = Session.make(self.a, login=api.user("carol"))
        s.put(("f", b"x"))
        self.assertEqual(s.get(login=boss).json["id"], s.id)
        self.assertEqual(self.a.get("/sessions", login=boss).json["items"], [])
        got = s.ask("POST", "/clone", login=boss)
        self.assertEqual(got.status, 200, got)
        ids = [i["id"] for i in self.a.get("/sessions", login=s.login).json["items"]]
        self.assertEqual(ids, [got.json["session_id"], s.id])
        self.assertEqual(s.delete(login=boss).json, {"ok": True})

    def test_pages(self):
        user = api.user("dora")
        made = [Session.make(self.a, login=user).id for _ in range(5)][::-1]
        seen, cursor = [], ""
        while cursor is not None:
            got = self.a.get("/sessions?limit=2" + (cursor and "&cursor=" + cursor), login=user).json
            seen += [i["id"] for i in got["items"]]
            cursor = got["next_cursor"]
        self.assertEqual(seen, made)
        for query in ("limit=0", "limit=1001", "limit=x", "cursor=x", "cursor=" + "0" * 36):
            got = self.a.get("/sessions?" + query, login=user)
            self.assertEqual(got.status, 422, got)
            self.assertEqual(got.json["detail"][0]["loc"], ["query", query.split("=")[0]])


class Documents(Case):
    def test_defaults_without_a_document(self):
        for body in (None, b"", b"{}"):
            got = self.a.post("/sessions", body)
            self.assertEqual(got.status, 200, got)
            self.assertEqual((got.json["timeout_sec"], got.json["network_policy"], got.json["trust_level"]),
                             (300, "deny_all", "standard"))

    def test_members_are_those_of_the_description(self):
        schemas = self.a.get("//openapi.json").json["components"]["schemas"]
        s = Session.make(self.a, name="n")
        up = s.put(("f", b"x"))
        shot = s.snapshot(name="one").json
        answers = {"Session": s.get().json, "Uploaded": up, "Snapshot": shot,
                   "SessionPage": self.a.get("/sessions").json, "Snapshots": s.ask("GET", "/snapshots").json,
                   "Restored": s.restore("one").json, "Cloned": s.clone().json,
                   "SnapshotDropped": s.ask("DELETE", "/snapshots/one").json, "Done": s.delete().json}
        for name, doc in answers.items():
            with self.subTest(name):
                self.assertEqual(list(doc), list(schemas[name]["properties"]))
        fields = schemas["SessionSpec"]["properties"]
        self.assertLessEqual({"cpu_limit", "memory_mb", "timeout_sec", "env", "labels", "concurrent"}, set(fields))
        self.assertNotIn("command", fields)

    # document: the field that is named, None: any refusal of the document
    BAD = {
        "cpu": ({"cpu_limit": -1}, "cpu_limit"), "memory": ({"memory_mb": 63}, "memory_mb"),
        "timeout": ({"timeout_sec": 0}, "timeout_sec"), "long timeout": ({"timeout_sec": 3601}, "timeout_sec"),
        "env": ({"env": {"A": 1}}, "env"), "labels": ({"labels": ["a"]}, "labels"),
        "trust": ({"trust_level": "none"}, "trust_level"), "runtime": ({"runtime": "none"}, "runtime"),
        "type": ({"base_image": 5}, "base_image"), "list": ([], None), "text": (b"x", None), "half": (b'{"env":', None),
        "twice": (b'{"name":"a","name":"b"}', None), "NUL": (b'{"name":"a\\u0000b"}', None),
    }

    def test_bad_documents(self):
        for name, (doc, field) in self.BAD.items():
            with self.subTest(name):
                got = self.refused(self.a.post("/sessions", doc), 422, "invalid_spec")
                self.assertEqual(got.json["detail"][0]["loc"][0], "body")
                if field:
                    self.assertTrue(got.details["field"].startswith(field), got)
        self.refused(self.a.post("/sessions", {"spec_version": "9"}), 400, "invalid_spec_version")
        self.assertEqual(self.a.post("/sessions", {"no_such_member": 1}).status, 200)
        got = self.a.post("/sessions", b"[" * 1000000)
        self.refused(got, 422, "invalid_spec")
        got = self.a.post("/sessions", b'{"name":"' + b"x" * (17 << 20) + b'"}')
        self.refused(got, 413, "spec_too_large")

    def test_a_conflict_has_both_shapes(self):
        key = {"Idempotency-Key": "both"}
        self.a.post("/sessions", {"name": "a"}, headers=key)
        got = self.refused(self.a.post("/sessions", {"name": "b"}, headers=key), 409, "idempotency_conflict")
        self.assertEqual(got.json["detail"], {"error": got.error})

    def test_bad_documents_of_the_others(self):
        s = Session.make(self.a)
        for rest, member, docs in (
                ("/restore", "snapshot_id", ({}, {"snapshot_id": 1}, {"snapshot_id": None}, {"other": "x"}, b"", None)),
                ("/clone", "new_session_name", ({"new_session_name": 1}, {"new_session_name": ["x"]})),
                ("/snapshot", "name", ({"name": 1}, {"name": {}}))):
            for doc in docs:
                got = self.refused(s.ask("POST", rest, doc), 422, "invalid_spec")
                self.assertEqual(got.json["detail"][0]["loc"], ["body", member])
            for doc in (b"x", b"[]", b'{"a":', b"\xff", b'"text"'):
                self.refused(s.ask("POST", rest, doc), 422, "invalid_spec")
        for name in ("../x", "a/b", "", ".", "..", "x" * 300, "a\0b"):
            got = s.snapshot(name=name)
            self.assertIn(got.status, (400, 409, 422), got)
        for unknown in ("x", "", "../x", "/etc/passwd", "snap-abc123def456", "x" * 5000, "\u00fc"):
            self.refused(s.restore(unknown), 404, "snapshot_not_found")
        other = Session.make(self.a)
        n = other.snapshot().json["snapshot_id"]
        self.refused(s.restore(n), 404, "snapshot_not_found")
        self.assertEqual(s.ask("DELETE", "/snapshots/" + n).json, {"ok": False, "snapshot_id": n})
        self.assertEqual(len(other.snapshots()), 1)
        self.refused(s.ask("GET", "/snapshots/%s/diff" % n), 404, "snapshot_not_found")

    def test_it_lasts_longer(self):
        s = Session.make(self.a)
        self.assertIsNone(s.get().json["expires_at"])
        got = s.ask("PATCH", "", {"expires_in_sec": 3600})
        self.assertEqual(got.status, 200, got)
        self.assertIsNotNone(got.json["expires_at"])
        self.assertEqual(s.get().json, got.json)
        self.assertIsNone(s.ask("PATCH", "", {"expires_in_sec": 0}).json["expires_at"])
        for doc in ({}, {"expires_in_sec": "1"}, {"expires_in_sec": 1.5}, {"expires_in_sec": None}, b"x", b""):
            self.refused(s.ask("PATCH", "", doc), 422, "invalid_spec")
        for n in (-1, 31536001, 1 << 60):
            self.refused(s.ask("PATCH", "", {"expires_in_sec": n}), 400, "invalid_argument")
        s.ask("PATCH", "", {"expires_in_sec": 1})
        self.a.until(lambda: s.get().status == 404)

    def test_methods(self):
        s = Session.make(self.a)
        for method, rest, allowed in (("PUT", "", "GET, HEAD, PATCH, DELETE"), ("GET", "/files", "POST"), ("GET", "/snapshot", "POST"),
                                      ("PUT", "/snapshots", "GET, HEAD, POST"), ("DELETE", "/clone", "POST"),
                                      ("GET", "/snapshots/x", "DELETE")):
            got = self.refused(s.ask(method, rest), 405, "method_not_allowed")
            self.assertEqual(got.headers["Allow"], allowed)
        got = s.ask("HEAD")
        self.assertEqual((got.status, got.body), (200, b""))
        self.assertEqual(self.a.request("PATCH", "/sessions").status, 405)

    def test_runs_of_a_session(self):
        s = Session.make(self.a)
        s.put(("f", b"x"))
        self.assertEqual(s.sh("cat f; echo y > g"), b"x")
        self.assertEqual(s.tree(), ["f", "g"])
        got = self.a.post("/runs?wait=20", b'{"session\\u005fid":"%s","command":["cat","g"]}' % s.id.encode())
        self.assertEqual((got.status, got.json["phase"], got.json["session_id"]), (200, "completed", s.id), got)
        bare = self.a.post("/sessions", {})
        got = self.a.post("/runs", {"session_id": bare.json["id"], "command": ["true"]})
        self.refused(got, 422, "session_base_image_required")
        self.assertEqual(got.json["detail"]["error"]["code"], "session_base_image_required")
        got = self.a.post("/runs", {"session_id": s.id, "base_image": "host", "command": ["true"]})
        self.refused(got, 422, "invalid_spec")


class Differences(Case):
    def lines(self, s, which, against=None):
        got = s.ask("GET", "/snapshots/%s/diff%s" % (which, "?against=" + against if against else ""))
        self.assertEqual((got.status, got.headers["Content-Type"]), (200, "application/x-ndjson"), got)
        return {d["path"]: d["change"] for d in map(json.loads, got.body.splitlines())}

    def test_between_snapshots_and_the_workspace(self):
        s = Session.make(self.a)
        s.put(("same", b"s"), ("changed", b"c"), ("gone", b"g"))
        s.snapshot(name="one")
        self.assertEqual(self.lines(s, "one"), {})
        s.sh("echo new > changed; rm gone; mkdir d; echo x > d/new")
        wanted = {"changed": "content", "gone": "removed", "d": "added", "d/new": "added"}
        have = {k: v for k, v in self.lines(s, "one").items() if k not in ("", ".")}
        self.assertEqual(have, wanted)
        s.snapshot(name="two")
        have = {k: v for k, v in self.lines(s, "one", "two").items() if k not in ("", ".")}
        self.assertEqual(have, wanted)
        have = {k: v for k, v in self.lines(s, "two", "one").items() if k not in ("", ".")}
        self.assertEqual(have, {"changed": "content", "gone": "added", "d": "removed", "d/new": "removed"})


# ---- what waits --------------------------------------------------------------------------------------

class Waiting(Case):
    settings = {"api_threads": 1, "cancel_grace_seconds": 2}

    def test_a_snapshot_holds_no_thread_and_nobody_elses_session(self):
        s, other = Session.make(self.a), Session.make(self.a)
        other.put(("f", b"x"))
        with sessions.objects(self.a):
            shots = [sessions.Asked(s.snapshot) for _ in range(5)]
            sessions.waits_for_objects(self.a)
            self.assertEqual(s.get().status, 200)
            self.assertEqual(other.upload(("g", b"y")).status, 200)
            self.assertEqual(other.clone().status, 200)
            self.assertEqual(other.sh("cat f g"), b"xy")
            self.assertTrue(all(shot.is_open() for shot in shots))
        self.assertEqual({shot.wait().status for shot in shots}, {200})

    def test_too_much_at_once(self):
        s = Session.make(self.a)
        address = ("127.0.0.1", self.a.port)
        request = rawhttp.head("POST", api.BASE + s.path("/restore"),
                               [*self.a.login.headers.items(), ("Content-Length", "19")]) + b'{"snapshot_id":"x"}'
        with sessions.objects(self.a):
            shot = sessions.Asked(s.snapshot)
            sessions.waits_for_objects(self.a)
            asked = []
            for _ in range(300):
                c = rawhttp.Raw(address)
                self.addCleanup(c.close)
                asked.append(c.send(request))
            first = rawhttp.ask(address, "GET", api.BASE + "/sessions", [*self.a.login.headers.items()])
            self.assertEqual(first.status, 200)
        answers = [c.answer() for c in asked]
        self.assertEqual(shot.wait().status, 200)
        by_status = {status: [g for g in answers if g.status == status] for status in {g.status for g in answers}}
        self.assertEqual(set(by_status), {404, 429}, by_status.keys())
        self.assertEqual(len(by_status[404]), 256)
        self.assertEqual((by_status[429][0].code, by_status[429][0].header("Retry-After")), ("queue_full", "1"))

    def test_clients_that_do_not_wait(self):
        s = Session.make(self.a)
        s.put(("f", b"x"))
        with sessions.objects(self.a):
            arrivals = sessions.Arrivals(self.a)
            for leave in (rawhttp.Raw.close, rawhttp.Raw.reset) * 3:
                c = rawhttp.Raw(("127.0.0.1", self.a.port))
                c.send(rawhttp.head("POST", api.BASE + s.path("/snapshot"), [*self.a.login.headers.items()]))
                arrivals.wait()
                leave(c)
            sessions.waits_for_objects(self.a)
        # What was accepted is done, and the service is well.
        self.a.until(lambda: len(s.snapshots()) == 6)
        self.assertEqual(s.delete().json, {"ok": True})


class Ending(Case):
    settings = {"cancel_grace_seconds": 2}

    def stubborn(self, s):
        run = s.run("sh", "-c", STUBBORN, timeout_sec=60)
        with s.api.stream(run) as ws:
            ws.until(lambda f: f["type"] == "stdout")
        return run

    def test_two_want_it(self):
        s = Session.make(self.a)
        run = self.stubborn(s)
        both = [sessions.Asked(s.delete) for _ in range(2)]
        self.a.until(lambda: s.get().json["state"] == "ending")
        self.refused(s.snapshot(), 404, "session_not_found")
        self.refused(s.try_run("true"), 404, "session_not_found")
        self.assertEqual([b.wait().json for b in both], [{"ok": True}] * 2)
        self.assertEqual(run.get()["phase"], "killed")
        self.refused(s.delete(), 404, "session_not_found")

    def test_a_client_that_leaves(self):
        s = Session.make(self.a)
        self.stubborn(s)
        c = rawhttp.Raw(("127.0.0.1", self.a.port))
        c.send(rawhttp.head("DELETE", api.BASE + s.path(), [*self.a.login.headers.items()]))
        self.a.until(lambda: s.get().json["state"] == "ending")
        c.close()
        self.a.until(lambda: s.get().status == 404)
        self.assertFalse(os.path.exists(s.files()))

    def test_runs_that_do_not_end_in_time(self):
        with api.Apid(settings={"cancel_grace_seconds": 30, "session_delete_drain_timeout_sec": 1}) as a:
            s = Session.make(a)
            run = self.stubborn(s)
            got = self.refused(s.delete(), 409, "session_cancel_drain_timeout")
            self.assertEqual(got.json["detail"], {"error": "session_cancel_drain_timeout", "active_runs": 1,
                                                  "session_id": s.id})
            self.assertEqual(got.details, got.json["detail"])
            self.assertEqual((s.get().json["state"], os.path.isdir(s.workspace())), ("active", True))
            self.assertIn(run.get()["phase"], ("running", "killed"))
            os.kill(int(run.row("claim_owner")[0].split("/")[2]), 9)

    def test_the_service_stops(self):
        with api.Apid(settings=self.settings) as a:
            s = Session.make(a)
            s.put(("f", b"x"))
            self.stubborn(s)
            gone = sessions.Asked(s.delete)
            a.until(lambda: s.get().json["state"] == "ending")
            with sessions.objects(a):
                t = Session.make(a)
                shots = [sessions.Asked(t.snapshot) for _ in range(2)]
                sessions.waits_for_objects(a)
                stop = sessions.Asked(a.stop)
                self.refused(gone.wait(), 503, "interrupted")
            codes = sorted(shot.wait().status for shot in shots)
            self.assertEqual(codes, [200, 503])
            self.assertEqual(stop.wait(), 0)
            a.start()
            a.until(lambda: s.get().status == 404)
            self.assertFalse(os.path.exists(s.files()))
            self.assertEqual(len(t.snapshots()), 1)


if __name__ == "__main__":
    sbx.main()
