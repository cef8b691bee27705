# SPDX-License-Identifier: Apache-2.0
"""Who may see what: foreign runs look absent, and without a login there is nothing."""
import conf
from conf import api

A, B = api.user("a"), api.user("b")


class Owners(conf.Case):
    settings = {**api.USERS, **conf.QUEUED}

    def setUp(self):
        self.run_of_a = self.a.run({"command": ["sh", "-c", "echo hello"], "timeout_sec": 5}, A)

    def test_T001_a_foreign_run_looks_absent(self):
        foreign = self.a.get("/runs/" + self.run_of_a.id, login=B)
        self.refused(foreign, 404, "run_not_found")
        # Absent altogether: the answer does not differ from that for a run that never was.
        never = self.a.get("/runs/00000000-0000-4000-8000-000000000000", login=B)
        self.assertEqual((foreign.status, foreign.json["detail"]), (never.status, never.json["detail"]))
        self.assertEqual(self.a.get("/runs/%s/artifacts" % self.run_of_a.id, login=B).status, 404)
        self.assertEqual(self.run_of_a.cancel(login=B).status, 404)
        self.assertEqual(self.run_of_a.phase(), "queued")

    def test_T002_the_owner_sees_it(self):
        self.assertEqual(self.run_of_a.get()["id"], self.run_of_a.id)

    def test_T003_a_stream_needs_a_login(self):
        # Design: a refusal upgrades and closes with its code, so that a browser sees it.
        with self.a.stream(self.run_of_a, headers={}) as ws:
            self.assertEqual(ws.status, 101)
            self.assertEqual(ws.frames(), ([], 4401))


class NoLogin(conf.Alone):
    def check(self, a):
        for method, path in (("GET", "/runs/any-id"), ("GET", "/runtimes"), ("POST", "/runs"), ("GET", "/runs"),
                             ("GET", "/health"), ("POST", "/runs/any-id/cancel"), ("GET", "/runs/any-id/artifacts"),
                             ("GET", "/runs/any-id/artifacts/x"), ("GET", "/admin/runs")):
            body = {"base_image": "host", "command": ["true"]} if method == "POST" else None
            answer = a.request(method, path, body, login=api.NOBODY)
            self.assertIn(answer.status, (401, 403), (method, path, answer))
            self.assertEqual(answer.code, {401: "unauthorized", 403: "forbidden"}[answer.status])
            self.assertIsInstance(answer.json["detail"], str)
        self.assertEqual(a.get("/health/public", login=api.NOBODY).status, 200)
        # What denies only: whether the run exists cannot be seen from it.
        self.assertEqual(a.get("/runs/any-id/anything/else", login=api.NOBODY).status, 404)
        self.assertEqual(a.get("/runs/any-id/artifacts/../x", login=api.NOBODY).status, 400)

    def test_T005_without_a_login_there_is_nothing(self):
        for settings in ({}, api.USERS):
            with self.subTest(settings.get("auth_mode", "single_user")), self.server(settings) as a:
                self.check(a)
                wrong = api.Login("wrong", X_API_KEY="not-the-key", Authorization="Bearer not.a.token")
                self.assertEqual(a.get("/runtimes", login=wrong).status, 401)


class Roles(conf.Case):
    settings = api.USERS

    def test_T007_admin_routes_are_for_admins(self):
        for path in ("/admin/runs", "/admin/idempotency", "/admin/usage", "/admin/runs/any-id",
                     "/admin/runtime-diagnostics", "/admin/operator-status"):
            answer = self.a.get(path, login=A)
            self.assertIn(answer.status, (401, 403), (path, answer))
            self.assertNotIn("items", answer.json)
        for path in ("/admin/runs", "/admin/idempotency", "/admin/usage"):
            self.assertEqual(self.a.get(path, login=api.user("root-of-all", role="admin")).status, 200, path)


if __name__ == "__main__":
    conf.main()
