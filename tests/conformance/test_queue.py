# SPDX-License-Identifier: Apache-2.0
"""Who may wait, how many, and in which order."""
import conf
from conf import api

U101, U202 = api.user("101"), api.user("202")
ECHO = {"command": ["echo", "hi"], "timeout_sec": 5}
QUOTAS = {"queue_max_length": 10, "queue_max_per_user": 0, "queue_max_per_persona": 0, "queue_max_per_workspace": 0}


class Limits(conf.Alone):
    def full(self, answer, reason, scope, limit):
        self.refused(answer, 429, "queue_full", reason=reason, quota_scope=scope, limit=limit)
        self.assertGreaterEqual(int(answer.headers["Retry-After"]), 1)

    def users(self, **quota):
        return self.server({**api.USERS, **conf.QUEUED, **QUOTAS, **quota})

    def test_T143_no_room_at_all(self):
        with self.server({**conf.QUEUED, "queue_max_length": 0}) as a:
            self.full(a.try_run(ECHO), "queue_capacity_exceeded", "global", 0)

    def test_T144_one_for_each_user(self):
        with self.users(queue_max_per_user=1) as a:
            self.assertEqual(a.try_run(ECHO, U101).status, 200)
            self.full(a.try_run(ECHO, U101), "user_queue_quota_exceeded", "user_id", 1)
            self.assertEqual(a.try_run(ECHO, U202).status, 200)

    def test_T145_one_for_each_persona_of_whatever_user(self):
        with self.users(queue_max_per_persona=1) as a:
            alpha, beta = {**ECHO, "persona_id": "persona-alpha"}, {**ECHO, "persona_id": "persona-beta"}
            self.assertEqual(a.try_run(alpha, U101).status, 200)
            self.full(a.try_run(alpha, U202), "persona_queue_quota_exceeded", "persona_id", 1)
            self.assertEqual(a.try_run(beta, U202).status, 200)

    def test_T147_one_for_each_workspace_of_whatever_user(self):
        with self.users(queue_max_per_workspace=1) as a:
            one, two = {**ECHO, "workspace_id": "w-1"}, {**ECHO, "workspace_id": "w-2"}
            self.assertEqual(a.try_run(one, U101).status, 200)
            self.full(a.try_run(one, U202), "workspace_queue_quota_exceeded", "workspace_id", 1)
            self.assertEqual(a.try_run(two, U202).status, 200)

    def test_T148_the_count_is_shared_by_two_servers(self):
        with conf.two({**api.USERS, **conf.QUEUED, "queue_max_per_user": 1}) as (p1, p2):
            self.assertEqual(p1.try_run(ECHO, U101).status, 200)
            self.full(p2.try_run(ECHO, U101), "user_queue_quota_exceeded", "user_id", 1)
            self.assertEqual(p2.try_run(ECHO, U202).status, 200)


class Order(conf.Alone):
    def test_T150_first_in_first_out(self):
        with self.server({"max_concurrent_runs": 1}) as a:
            runs = [a.run({"command": ["sleep", "0.3"], "timeout_sec": 5}) for _ in range(3)]
            began = [self.ended(r)["started_at"] for r in runs]
            self.assertEqual(sorted(began), began)
            self.assertEqual(len(set(began)), 3)

    def test_T152_a_cancelled_run_never_starts(self):
        with conf.Ticker() as t, self.server({"max_concurrent_runs": 1, **t.settings}) as a:
            busy = a.run(t.spec("busy", "sleep 100", timeout_sec=200))
            t.wait("busy")
            one, two = a.run(t.spec("one")), a.run(t.spec("two"))
            self.assertIs(one.cancel().json["cancelled"], True)
            doc = self.ended(one, "killed", "canceled_by_user")
            self.assertIsNone(doc["started_at"])
            busy.cancel()
            self.ended(two)
            self.assertEqual(t.ticks(), {"busy": 1, "two": 1})

    def test_T154_queued_work_survives_a_restart(self):
        with conf.Ticker() as t, self.server(t.settings, args=["--workers", "0"]) as a:
            run = a.run(t.spec("x"))
            before = run.row("rid", "owner", "created_us")
            self.assertEqual(run.phase(), "queued")
            self.assertEqual(a.stop(), 0)
            a.args = []
            a.start()
            self.assertEqual(self.ended(run)["id"], run.id)
            self.assertEqual(run.row("rid", "owner", "created_us"), before)
            self.assertEqual(t.ticks(), {"x": 1})

    def test_T155_the_time_in_the_queue_is_observed(self):
        with self.server({"max_concurrent_runs": 1}) as a:
            for run in [a.sh("echo q", timeout_sec=5) for _ in range(2)]:
                self.ended(run)
            text = a.get("//metrics").body.decode()
            self.assertIn("# TYPE sandbox_queue_wait_seconds histogram", text)
            self.assertGreaterEqual(a.metric("sandbox_queue_wait_seconds_count"), 1)
            self.assertRegex(text, r"sandbox_queue_wait_seconds_sum(\{[^}]+\})? \d+\.\d+")
            self.assertRegex(text, r'sandbox_queue_wait_seconds_bucket\{[^}]*le="\+Inf"[^}]*\} [1-9]')


if __name__ == "__main__":
    conf.main()
