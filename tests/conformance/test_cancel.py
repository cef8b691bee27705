# SPDX-License-Identifier: Apache-2.0
"""The end of a run at its owner's word."""
import time

import conf


def ends(frames):
    return [f for f in frames if f["type"] == "event" and f["event"] == "end"]


class Queued(conf.Case):
    settings = conf.QUEUED

    def test_T177_a_follower_sees_one_end(self):
        run = self.a.sh("echo running", timeout_sec=30)
        with self.a.stream(run) as ws:
            self.assertEqual(ws.status, 101)
            answer = run.cancel()
            self.assertEqual((answer.status, answer.json["cancelled"]), (200, True))
            frames, code = ws.frames()
        self.assertEqual(len(ends(frames)), 1, frames)
        self.assertEqual(frames[-1]["event"], "end")
        self.assertEqual(code, 1000)
        self.assertEqual(run.phase(), "killed")

    def test_T178_a_second_time_changes_nothing(self):
        run = self.a.sh("echo x")
        first = run.cancel()
        self.assertEqual((first.status, first.json["cancelled"], first.json["id"]), (200, True, run.id))
        run.wait()
        second = run.cancel()
        self.assertEqual((second.status, second.json["cancelled"]), (200, False))

    def test_T182_what_broke_inside_does_not_show(self):
        run = self.a.sh("echo x")
        private = "no such file: /srv/private/state"
        self.a.change("CREATE TRIGGER broken BEFORE UPDATE ON runs BEGIN SELECT RAISE(ABORT, '%s'); END" % private)
        try:
            answer = run.cancel()
        finally:
            self.a.change("DROP TRIGGER broken")
        self.refused(answer, 500, "cancel_failed", run_id=run.id)
        self.assertEqual(answer.error["message"], "Failed to cancel sandbox run")
        self.assertEqual(answer.json["detail"], {"error": answer.error})
        self.assertNotIn(b"private", answer.body)
        self.assertIs(run.cancel().json["cancelled"], True)


class Running(conf.Alone):
    def test_T179_term_then_grace(self):
        grace = 30
        with conf.Ticker() as t, self.server({**t.settings, "cancel_grace_seconds": grace}) as a:
            # A shell waits for its child before it takes a signal: that this ends soon shows that the child, of
            # the same group, got the signal as well.
            run = a.run(t.spec("x", "trap 'echo term; exit 0' TERM; echo ready > /tick/fifo; sleep 1000",
                               timeout_sec=300))
            t.wait("ready")
            run.wait_phase("running")
            began = time.monotonic()
            self.assertIs(run.cancel().json["cancelled"], True)
            doc = self.ended(run, "killed", "canceled_by_user")
            self.assertLess(time.monotonic() - began, grace)
            self.assertIsNone(doc["exit_code"])
            self.assertIn(b"term\n", run.log())
            with a.stream(run) as ws:
                self.assertEqual(len(ends(ws.frames()[0])), 1)
            with open("/proc/self/mountinfo") as f:
                self.assertNotIn(run.id, f.read())

    def test_T181_a_cancelled_run_leaves_no_artifacts(self):
        with conf.Ticker() as t, self.server(t.settings) as a:
            run = a.run(t.spec("x", "echo a > artifact.txt; echo made > /tick/fifo; sleep 60", timeout_sec=90,
                               capture_patterns=["*.txt"]))
            t.wait("made")
            run.cancel()
            doc = self.ended(run, "killed", "canceled_by_user")
            self.assertEqual(run.artifacts(), {})
            self.assertNotIn("artifact_files_collected", doc["resource_usage"])


if __name__ == "__main__":
    conf.main()
