# SPDX-License-Identifier: Apache-2.0
"""Why a run is in its phase. The code is stored when the phase changes; rows that have none, as an import from
elsewhere may write them, are classified by their message and their counters, and such rows are made here."""
import json

import conf
from conf import api

CODES = ("queued starting running completed limits_applied nonzero_exit policy_failed runtime_unavailable "
         "startup_timeout execution_timeout canceled_by_user killed queue_ttl_expired runtime_error unknown").split()
PHASE = {"completed": 4, "failed": 5, "killed": 6, "timed_out": 7}


class Queued(conf.Case):
    settings = {**conf.QUEUED, "queue_ttl_sec": 1}

    def test_T111_a_queued_run(self):
        a = self.a.try_run({"command": ["true"]})
        self.assertEqual(a.json["status_reason_details"], {
            "code": "queued", "category": "lifecycle", "severity": "info", "terminal": False, "retryable": False,
            "operator_action": "none", "user_message_key": "sandbox.status.queued"})

    def test_T117_a_run_that_waited_too_long(self):
        # Design: by a timer; no other submission is needed.
        doc = self.a.run({"command": ["true"]}).wait()
        self.assertEqual((doc["phase"], doc["message"], doc["status_reason_code"]),
                         ("failed", "queue_ttl_expired", "queue_ttl_expired"))


class Executed(conf.Case):
    settings = {**conf.FOREGROUND, "max_log_bytes": 10, "max_artifact_file_bytes": 5}

    def post(self, script, **spec):
        a = self.a.try_run({"command": ["sh", "-c", script], "timeout_sec": 5, **spec})
        self.assertEqual(a.status, 200, a)
        return a.json

    def test_T112_completed(self):
        doc = self.post("echo ok")
        self.assertEqual(doc["status_reason_code"], "completed")
        self.assertEqual(doc["status_reason_details"], {
            "code": "completed", "category": "success", "severity": "info", "terminal": True, "retryable": False,
            "operator_action": "none", "user_message_key": "sandbox.status.completed"})

    def test_T113_nonzero_exit(self):
        doc = self.post("exit 2")
        self.assertEqual((doc["phase"], doc["status_reason_code"]), ("failed", "nonzero_exit"))

    def test_T115_execution_timeout(self):
        doc = self.post("sleep 60", timeout_sec=1)
        self.assertEqual((doc["phase"], doc["status_reason_code"]), ("timed_out", "execution_timeout"))
        self.assertIsNone(doc["exit_code"])

    def test_T116_canceled_by_user(self):
        a = self.a.try_run({"command": ["sleep", "60"], "timeout_sec": 90}, headers={"Prefer": "wait=0"})
        run = api.Run(self.a, a.json)
        self.assertIs(run.cancel().json["cancelled"], True)
        doc = self.ended(run, "killed", "canceled_by_user")
        self.assertEqual(doc["message"], "canceled_by_user")

    def test_T119_output_that_was_cut(self):
        # The counter of a namespace run is log_truncated: its log holds both streams in their order.
        doc = self.post("yes o | head -c 100")
        self.assertEqual((doc["phase"], doc["status_reason_code"]), ("completed", "limits_applied"))
        self.assertEqual(doc["resource_usage"]["log_truncated"], 1)

    def test_T120_artifacts_that_were_skipped(self):
        doc = self.post("printf 123456 > a.txt; printf 123456 > b.txt", capture_patterns=["*.txt"])
        self.assertEqual(doc["status_reason_code"], "limits_applied")
        self.assertEqual(doc["resource_usage"]["artifact_files_skipped"], 2)


class Classified(conf.Case):
    """Rows without a code."""
    settings = {**api.USERS, **conf.QUEUED}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.admin = api.user("boss", role="admin")
        cls.run_ = cls.a.run({"command": ["true"]})
        cls.run_.cancel()
        cls.run_.wait()

    def classify(self, phase, message=None, usage=None, runtime="namespace", exit_code=None, code=None):
        self.a.change("UPDATE runs SET phase=?, reason=?, message=?, usage_json=?, runtime=?, has_exit_code=?, "
                      "exit_code=?, changed_us=changed_us+1 WHERE id=?", PHASE[phase], code, message,
                      json.dumps(usage or {}), runtime, exit_code is not None, exit_code or 0, self.run_.id)
        doc = self.run_.get()
        self.assertEqual(doc["phase"], phase)
        self.assertEqual(doc["status_reason_details"]["code"], doc["status_reason_code"])
        return doc

    def code(self, *args, **kw):
        return self.classify(*args, **kw)["status_reason_code"]

    def test_T122_limits_before_a_timeout(self):
        self.assertEqual(self.code("timed_out", "execution_timeout", {"artifact_skip_total_limit": 1}),
                         "limits_applied")
        self.assertEqual(self.code("timed_out", "execution_timeout", {"artifact_skip_total_limit": 0}),
                         "execution_timeout")

    def test_T123_limits_of_a_worktree_run(self):
        self.assertEqual(self.code("completed", None, {"log_truncated": 1, "log_limit_bytes": 5}, "worktree",
                                   exit_code=0), "limits_applied")

    def test_T124_policy_failed(self):
        for runtime in ("lima", "vz_linux", "vz_macos", "seatbelt", "worktree"):
            self.assertEqual(self.code("failed", runtime + "_policy_failed"), "policy_failed", runtime)

    def test_T126_runtime_unavailable(self):
        for message in ("runtime_unavailable", "runtime unavailable", "docker_unavailable", "firecracker_unavailable",
                        "limactl_missing", "vz_linux_unavailable", "vz_macos_unavailable", "seatbelt_unavailable",
                        "worktree_unavailable", "runtime provisioning template missing"):
            self.assertEqual(self.code("failed", message), "runtime_unavailable", message)

    def test_T127_missing_alone_is_a_runtime_error(self):
        for message in ("command not found in PATH: python", "artifact manifest missing",
                        "2026-01-01T00:00:00Z runtime error: it broke"):
            self.assertEqual(self.code("failed", message), "runtime_error", message)

    def test_T129_the_record_of_runtime_unavailable(self):
        self.assertEqual(self.classify("failed", "docker_unavailable")["status_reason_details"], {
            "code": "runtime_unavailable", "category": "runtime", "severity": "error", "retryable": True,
            "terminal": True, "operator_action": "check_runtime_readiness",
            "user_message_key": "sandbox.status.runtime_unavailable"})

    def test_T130_the_record_of_limits_applied(self):
        doc = self.classify("completed", None, {"stdout_truncated": 1}, exit_code=0)
        record = {"code": "limits_applied", "category": "limits", "severity": "warning", "terminal": True,
                  "retryable": False, "operator_action": "review_limits",
                  "user_message_key": "sandbox.status.limits_applied"}
        self.assertEqual(doc["status_reason_details"], record)
        a = self.a.get("/admin/runs", login=self.admin)
        self.assertEqual([i["status_reason_details"] for i in a.json["items"] if i["id"] == self.run_.id], [record])

    def test_T131_the_records_of_policy_failed_and_unknown(self):
        doc = self.classify("failed", "x", code="policy_failed")
        self.assertEqual(doc["status_reason_details"]["operator_action"], "review_policy")
        for code in ("unknown", "a_code_of_a_later_release"):
            doc = self.classify("failed", "x", code=code)
            self.assertEqual((doc["status_reason_code"], doc["status_reason_details"]["category"]),
                             ("unknown", "unknown"))

    def test_T132_every_code_has_a_record_in_both_views(self):
        for code in CODES:
            doc = self.classify("failed", "x", code=code)
            self.assertEqual(doc["status_reason_code"], code)
            self.assertEqual(set(doc["status_reason_details"]),
                             {"code", "category", "severity", "terminal", "retryable", "operator_action",
                              "user_message_key"})
            items = self.a.get("/admin/runs", login=self.admin).json["items"]
            seen = [i for i in items if i["id"] == self.run_.id][0]
            self.assertEqual((seen["status_reason_code"], seen["status_reason_details"]),
                             (code, doc["status_reason_details"]))


if __name__ == "__main__":
    conf.main()
