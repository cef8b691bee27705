# SPDX-License-Identifier: Apache-2.0
"""What is counted, and what is written down."""
import json

import conf

FIRECRACKER = {"runtime": "firecracker", "command": ["sh", "-c", "echo"], "timeout_sec": 5}


class Counted(conf.Case):
    settings = conf.QUEUED
    path = conf.NO_PROGRAMS

    def test_T385_a_refused_run_did_not_start(self):
        before = self.a.metric("sandbox_runs_started_total")
        self.refused(self.a.try_run(FIRECRACKER), 503, "runtime_unavailable")
        self.assertEqual(self.a.metric("sandbox_runs_started_total"), before)

    def test_T386_an_accepted_run_counts_as_started(self):
        before = self.a.metric("sandbox_runs_started_total")
        self.assertEqual(self.a.try_run({"command": ["sh", "-c", "echo ok"], "timeout_sec": 5}).status, 200)
        self.assertEqual(self.a.metric("sandbox_runs_started_total"), before + 1)


class Audit(conf.Alone):
    def events(self, run):
        return [(action, result, json.loads(details)) for action, result, details in run.api.sql(
            "SELECT action, result, details FROM audit WHERE resource=? ORDER BY rid", run.id)]

    def test_T387_limits_are_written_down(self):
        with self.server({"max_log_bytes": 5, "max_artifact_file_bytes": 5, "max_artifact_total_bytes": 8}) as a:
            run = a.sh("echo 123456; printf 123456 > a-secret-name.txt; printf 12345 > b-secret-name.txt; "
                       "printf 1234 > c-secret-name.txt", capture_patterns=["*.txt"])
            self.ended(run, "completed", "limits_applied")
            events = self.events(run)
            self.assertEqual([action for action, _, _ in events], ["run", "output_truncated", "artifacts_limited"])
            self.assertEqual([result for _, result, _ in events[1:]], ["limited", "limited"])
            self.assertEqual(events[2][2]["artifact_skip_reasons"], ["file_limit", "total_limit"])
            self.assertNotIn("secret-name", repr(events))

    def test_T389_the_completion_of_a_run(self):
        with self.server({"max_log_bytes": 5}) as a:
            levels = a.runtime("namespace")["supported_trust_levels"]  # fewer for an ordinary user
            level = "untrusted" if "untrusted" in levels else "standard"
            run = a.sh("echo 123456", trust_level=level, network_policy="deny_all",
                       capture_patterns=["*.secret-one", "*.secret-two"])
            doc = self.ended(run, "completed", "limits_applied")
            (action, result, d), *_ = self.events(run)
            self.assertEqual(action, "run")
            self.assertEqual(
                {k: d.get(k) for k in ("runtime", "effective_runtime", "trust_level", "network_policy", "policy_hash",
                                       "spec_version", "exit_code", "outcome", "status_reason_code",
                                       "capture_pattern_count")},
                {"runtime": "namespace", "effective_runtime": "namespace", "trust_level": level,
                 "network_policy": "deny_all", "policy_hash": doc["policy_hash"], "spec_version": "1.0", "exit_code": 0,
                 "outcome": "success", "status_reason_code": "limits_applied", "capture_pattern_count": 2})
            # What the document said before the defaults were filled in is not kept, so there is no
            # requested_runtime to be written down.
            self.assertNotIn("requested_runtime", d)
            self.assertNotIn("secret", repr(self.events(run)))

    def test_T390_no_path_of_the_host_is_written_down(self):
        # Stricter than the row: a path is no image, so there is no run to be completed.
        with self.server() as a:
            for path in ("/Users/operator/private-rootfs.img", "C:Users\\operator\\private-rootfs.img"):
                self.refused(a.try_run({"base_image": path, "command": ["true"]}), 422, "image_not_found")
            self.ended(a.sh("true"))
            self.assertEqual([], [r for r in a.sql("SELECT * FROM audit") if "operator" in repr(r)])


if __name__ == "__main__":
    conf.main()
