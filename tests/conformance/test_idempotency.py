# SPDX-License-Identifier: Apache-2.0
"""One key, one run."""
import datetime
import threading
import time

import conf
from conf import api


class Sessions(conf.Case):
    SPEC = {"spec_version": "1.0", "base_image": "host", "timeout_sec": 60}

    def post(self, key, **more):
        return self.a.post("/sessions", {**self.SPEC, **more}, headers={"Idempotency-Key": key})

    def test_T134_the_same_again_is_the_same_session(self):
        first, again = (self.post("abc-134") for _ in range(2))
        self.assertEqual((first.status, again.status), (200, 200), again)
        self.assertEqual(first.json, again.json)
        # Defaults and nulls are as if they were not there.
        self.assertEqual(self.post("abc-134", labels=None, trust_level="standard").json["id"], first.json["id"])

    def test_T135_another_document_is_a_conflict(self):
        first = self.post("abc-135")
        got = self.post("abc-135", timeout_sec=61)
        self.refused(got, 409, "idempotency_conflict", prior_id=first.json["id"], key="abc-135")
        self.assertEqual(got.json["detail"], {"error": got.error})
        # The key of a session is not one of a run.
        run = self.a.try_run({"command": ["true"]}, key="abc-135")
        self.assertEqual(run.status, 200, run)


class Foreground(conf.Alone):
    def test_T136_the_same_again_is_the_same_run(self):
        with conf.Ticker() as t, self.server({**conf.FOREGROUND, **t.settings}) as a:
            spec = t.spec("hello")
            first, again = (a.try_run(spec, key="idem-run-1") for _ in range(2))
            self.assertEqual((first.status, again.status), (200, 200))
            self.assertEqual(first.json["id"], again.json["id"])
            self.assertEqual(again.json["phase"], "completed")
            # Whatever was under way would have been seen by now: a run that came later has ended.
            self.assertEqual(a.try_run(t.spec("later")).json["phase"], "completed")
            self.assertEqual(t.ticks(), {"hello": 1, "later": 1})

    def test_T138_another_document_is_a_conflict(self):
        with self.server(conf.FOREGROUND) as a:
            one, two = ({"command": ["sh", "-c", "echo %d" % i], "timeout_sec": 5} for i in (1, 2))
            x = a.try_run(one, key="k-conflict-1").json["id"]
            details = self.refused(a.try_run(two, key="k-conflict-1"), 409, "idempotency_conflict", prior_id=x,
                                   key="k-conflict-1")
            at = datetime.datetime.fromisoformat(details["prior_created_at"].replace("Z", "+00:00"))
            self.assertIsNotNone(at.tzinfo)
            self.assertEqual(a.try_run(one, key="k-conflict-1").json["id"], x)

    def test_T139_an_expired_key_never_conflicts(self):
        # 0 is no setting here; the shortest memory is a second.
        with self.server({**conf.FOREGROUND, "idempotency_ttl_sec": 1}) as a:
            spec = {"command": ["sh", "-c", "echo 1"], "timeout_sec": 5}
            first = a.try_run(spec, key="k-expire-1")
            self.assertEqual(first.status, 200)
            api.wait_until(time.CLOCK_REALTIME, time.time() + 1)
            second = a.try_run(spec, key="k-expire-1")
            self.assertEqual(second.status, 200, second)
            self.assertNotEqual(first.json["id"], second.json["id"])
            api.wait_until(time.CLOCK_REALTIME, time.time() + 1)
            self.assertEqual(a.try_run({**spec, "timeout_sec": 6}, key="k-expire-1").status, 200)


class Waiting(conf.Alone):
    """The key of a run that still waits."""

    def replays(self, replay):
        """replay(server, document) while X is queued with key same-run; then everything runs."""
        with conf.Ticker() as t, self.server({"max_concurrent_runs": 1, **t.settings}) as a:
            busy = a.run(t.spec("busy", "sleep 100", timeout_sec=200))
            t.wait("busy")
            x = a.run(t.spec("x"), key="same-run")
            self.assertEqual(x.phase(), "queued")
            for answer in replay(a, t.spec("x")):
                self.assertEqual(answer.status, 200, answer)
                self.assertEqual((answer.json["id"], answer.json["phase"]), (x.id, "queued"))
            busy.cancel()
            self.ended(x)
            self.ended(a.run(t.spec("later")))
            self.assertEqual(t.ticks(), {"busy": 1, "x": 1, "later": 1})
            self.assertEqual(x.row("generation"), (1,))

    def test_T140_a_replay_does_not_hand_it_out_again(self):
        self.replays(lambda a, spec: [a.try_run(spec, key="same-run")])

    def test_T142_four_at_the_same_instant(self):
        def four(a, spec):
            answers, start = [], threading.Barrier(4)

            def one():
                start.wait()
                answers.append(a.try_run(spec, key="same-run"))

            threads = [threading.Thread(target=one) for _ in range(4)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual(len(answers), 4)
            return answers

        self.replays(four)


if __name__ == "__main__":
    conf.main()
