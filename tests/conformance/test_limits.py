# SPDX-License-Identifier: Apache-2.0
"""What is kept of output and of files."""
import conf
from conf import api


class Small(conf.Case):
    settings = {**conf.FOREGROUND, "max_artifact_file_bytes": 5, "max_artifact_total_bytes": 8, "max_log_bytes": 5}

    def post(self, script, **spec):
        a = self.a.try_run({"command": ["sh", "-c", script], "timeout_sec": 20, **spec})
        self.assertEqual(a.status, 200, a)
        return api.Run(self.a, a.json), a.json, a.json["resource_usage"]

    def usage(self, have, **expected):
        self.assertEqual({k: have.get(k) for k in expected}, expected)

    def test_T193_caps_of_a_file_and_of_all(self):
        run, _, usage = self.post(
            "printf 1234 > a-small.txt; printf 123456 > b-too-large.txt; printf 12345 > c-would-total.txt; "
            "echo x > ignored.log; ln -s a-small.txt d-link.txt", capture_patterns=["*.txt"])
        self.assertEqual(run.artifacts(), {"a-small.txt": 4})
        self.usage(usage, artifact_files_collected=1, artifact_skip_file_limit=1, artifact_skip_total_limit=1,
                   artifact_bytes_collected=4)
        # The link is the third; ignored.log matches nothing and is not counted.
        self.assertGreaterEqual(usage["artifact_files_skipped"], 2)
        self.assertLessEqual(usage["artifact_files_skipped"], 3)

    def test_T198_what_cannot_be_read_is_counted(self):
        # A folder deeper than any is looked into.
        run, _, usage = self.post("d=.; i=0; while [ $i -lt 130 ]; do d=$d/d; i=$((i+1)); done; mkdir -p $d",
                                  capture_patterns=["*"])
        self.assertEqual(run.artifacts(), {})
        self.usage(usage, artifact_limit_file_bytes=5, artifact_limit_total_bytes=8, artifact_files_collected=0,
                   artifact_bytes_collected=0, artifact_files_skipped=1, artifact_skip_read_error=1)

    def test_T199_all_caps_at_once(self):
        run, doc, usage = self.post("printf 1234 > small.txt; printf 123456 > too-large.txt; "
                                    "printf 56789 > would-exceed-total.txt; echo abcdef", capture_patterns=["*.txt"])
        self.assertEqual(doc["phase"], "completed")
        self.assertEqual(run.artifacts(), {"small.txt": 4})
        self.assertEqual(run.artifact("small.txt").body, b"1234")
        self.usage(usage, artifact_limit_file_bytes=5, artifact_limit_total_bytes=8, artifact_files_collected=1,
                   artifact_files_skipped=2, artifact_skip_file_limit=1, artifact_skip_total_limit=1,
                   artifact_bytes_collected=4, artifact_bytes=4, log_limit_bytes=5, log_truncated=1)

    def test_T201_a_follower_gets_no_more_than_the_cap(self):
        run, doc, usage = self.post("printf abcdef")
        with self.a.stream(run) as ws:
            frames, _ = ws.frames()
        out = "".join(f["data"] for f in frames if f["type"] in ("stdout", "stderr"))
        self.assertEqual(out, "abcde")
        cut = [f for f in frames if f["type"] == "truncated"]
        self.assertEqual([(f["reason"], type(f["seq"])) for f in cut], [("log_cap", int)])
        self.assertEqual(usage["log_bytes"], 5)
        self.assertEqual(run.log(), b"abcde")


class Others(conf.Alone):
    def test_T191_a_cap_of_both_streams_together(self):
        # Design: the log holds both streams in the order in which they came, and the cap cuts its end. The row
        # gives each stream a part and counts them apart, for runtimes that hand over both at the end.
        with self.server({**conf.FOREGROUND, "max_log_bytes": 10}) as a:
            for script, kept in (("printf %0100d 0; printf %0100d 1 >&2", b"0" * 10),
                                 ("printf 00000; sleep 0.2; printf %0100d 1 >&2", b"0000000000")):
                doc = a.try_run({"command": ["sh", "-c", script], "timeout_sec": 5}).json
                run = api.Run(a, doc)
                self.assertEqual((doc["phase"], doc["status_reason_code"]), ("completed", "limits_applied"))
                self.assertEqual(run.log(), kept)
                usage = doc["resource_usage"]
                self.assertEqual((usage["log_bytes"], usage["log_limit_bytes"], usage["log_truncated"]), (10, 10, 1))

    def test_T195_links_do_not_lead_out(self):
        with self.server(conf.FOREGROUND) as a:
            doc = a.try_run({"command": ["sh", "-c", "mkdir nested; printf ok > nested/inside.txt; "
                                         "ln -s /etc/passwd nested/outside-link.txt"], "timeout_sec": 5,
                             "capture_patterns": ["nested/*.txt"]}).json
            self.assertEqual(api.Run(a, doc).artifacts(), {"nested/inside.txt": 2})
            usage = doc["resource_usage"]
            self.assertEqual((usage["artifact_files_collected"], usage["artifact_files_skipped"],
                              usage["artifact_skip_symlink"]), (1, 1, 1))

    def test_T197_nothing_of_the_runner_is_captured(self):
        # Here a runner keeps none of its files in the workspace, so there is none to leave out and to count.
        with self.server({**conf.FOREGROUND, "max_artifact_total_bytes": 4, "max_artifact_file_bytes": 100}) as a:
            doc = a.try_run({"command": ["sh", "-c", "printf bbbb > visible.txt"], "timeout_sec": 5,
                             "capture_patterns": ["*"]}).json
            self.assertEqual(api.Run(a, doc).artifacts(), {"visible.txt": 4})
            usage = doc["resource_usage"]
            self.assertEqual((usage["artifact_files_collected"], usage["artifact_files_skipped"]), (1, 0))

    def test_T202_artifacts_count_for_their_owner(self):
        one, admin = api.user("user-1"), api.user("boss", role="admin")
        with self.server({**api.USERS, **conf.FOREGROUND}) as a:
            a.run({"command": ["sh", "-c", "printf hello > out.txt"], "capture_patterns": ["out.txt"]}, one)
            items = a.get("/admin/usage?user_id=user-1", login=admin).json["items"]
            self.assertEqual([(i["user_id"], i["artifact_bytes"]) for i in items], [("user-1", 5)])

    def test_T203_the_cap_of_a_user_holds_for_runs_that_end_together(self):
        one, admin = api.user("user-1"), api.user("boss", role="admin")
        with conf.Ticker() as t, self.server({**api.USERS, **t.settings, "max_artifact_bytes_per_user_mb": 1}) as a:
            # Each waits for the other, by the links in the image, so that they end at the same moment.
            runs = [a.run(t.spec("r%d" % i, "read x; head -c 716800 /dev/zero > out.txt", interactive=True,
                                 spec_version="1.1", capture_patterns=["out.txt"]), one) for i in range(2)]
            for i, run in enumerate(runs):
                t.wait("r%d" % i)
                run.wait_phase("running")
            self.let_go(a, runs)
            docs = [run.wait() for run in runs]
            self.assertEqual([d["exit_code"] for d in docs], [0, 0])
            kept = [run.artifacts() for run in runs]
            self.assertLessEqual(sum(sum(k.values()) for k in kept), 1 << 20)
            self.assertIn({}, kept)
            counted = a.get("/admin/usage?user_id=user-1", login=admin).json["items"][0]["artifact_bytes"]
            self.assertEqual(counted, sum(sum(k.values()) for k in kept))

    def test_T204_totals_that_drifted_are_set_right(self):
        one, admin = api.user("user-1"), api.user("boss", role="admin")
        with self.server({**api.USERS, **conf.FOREGROUND, "artifact_reconcile_interval_sec": 1}) as a:
            a.run({"command": ["sh", "-c", "printf hello > out.txt"], "capture_patterns": ["out.txt"]}, one)
            a.change("INSERT INTO usage_totals (owner, runs, log_bytes, artifact_bytes) VALUES ('user-ghost', 0, 0, 7)")
            a.change("UPDATE usage_totals SET artifact_bytes = artifact_bytes + 9 WHERE owner = 'user-1'")
            # It may have met the first one before the second was there.
            seen = 0
            while seen < 2:
                found = a.wait_line(r"artifacts reconciled files=0 users=(\d) bytes=(\d+)")
                seen += int(found.group(1))
                a.said += found.end()
            items = a.get("/admin/usage", login=admin).json["items"]
            self.assertEqual({i["user_id"]: i["artifact_bytes"] for i in items if i["user_id"].startswith("user-")},
                             {"user-1": 5, "user-ghost": 0})
            name = "sandbox_artifact_reconcile_"
            self.assertEqual((a.metric(name + "corrected_users_total"), a.metric(name + "corrected_bytes_total")), (2, 16))
            self.assertGreaterEqual(a.metric(name + "runs_total"), 1)

    def let_go(self, a, runs):
        """A line of input for each."""
        sockets = [a.stream(run) for run in runs]
        try:
            for ws in sockets:
                ws.stdin("go\n")
            for ws in sockets:
                ws.frames()
        finally:
            for ws in sockets:
                ws.close()


if __name__ == "__main__":
    conf.main()
