# SPDX-License-Identifier: Apache-2.0
"""POST /runs and GET /runs/ID."""
import base64
import os
import shutil
import tempfile

import conf

HELLO = {"command": ["sh", "-c", "echo hello"], "timeout_sec": 5}
# What a status says of the run itself, and so must not depend on who is asked.
MEMBERS = ("id spec_version runtime phase status_reason_code status_reason_details exit_code started_at finished_at "
           "message policy_hash session_id persona_id workspace_id workspace_group_id scope_snapshot_id").split()


class Foreground(conf.Case):
    settings = conf.FOREGROUND

    def test_T092_the_answer_comes_when_it_has_ended(self):
        a = self.a.try_run(HELLO, key="idem-run-1")
        self.assertEqual(a.status, 200)
        self.assertEqual((a.json["phase"], a.json["spec_version"], a.json["runtime"]),
                         ("completed", "1.0", "namespace"))
        self.assertRegex(a.json["policy_hash"], r"^\S+$")

    def test_T093_an_image_or_a_session_is_needed(self):
        a = self.a.post("/runs", {"spec_version": "1.0", "command": ["sh", "-c", "echo hello"]})
        self.refused(a, 422, "invalid_spec")
        self.assertIsInstance(a.json["detail"], list)

    def test_T095_usage_is_in_whole_numbers(self):
        doc = self.a.try_run({"command": ["sh", "-c", "echo ok"], "timeout_sec": 5}).json
        self.assertEqual(doc["phase"], "completed")
        self.assertIsInstance(doc["message"], str)
        for name in ("cpu_time_sec", "wall_time_sec", "peak_rss_mb", "log_bytes", "artifact_bytes"):
            self.assertIs(type(doc["resource_usage"][name]), int, name)
        self.assertEqual(doc["resource_usage"]["log_bytes"], 3)

    def test_T101_an_exit_code_other_than_0(self):
        a = self.a.try_run({"command": ["sh", "-c", "exit 42"], "timeout_sec": 5})
        self.assertEqual(a.status, 200)
        self.assertEqual((a.json["phase"], a.json["exit_code"]), ("failed", 42))


class Queued(conf.Case):
    settings = conf.QUEUED

    def test_T096_a_queued_run(self):
        a = self.a.try_run({"command": ["echo", "queued"], "timeout_sec": 5})
        self.assertEqual(a.status, 200)
        doc = a.json
        self.assertEqual(doc["phase"], "queued")
        for name in ("started_at", "finished_at", "exit_code"):
            self.assertIn(name, doc)
            self.assertIsNone(doc[name])
        self.assertEqual(doc["status_reason_code"], "queued")

    def test_T097_get_says_what_post_said(self):
        run = self.a.run({"command": ["echo", "durable"], "timeout_sec": 5})
        doc = run.get()
        self.assertEqual({k: doc[k] for k in MEMBERS}, {k: run.posted[k] for k in MEMBERS})

    def test_T106_tags_are_echoed(self):
        tags = {"workspace_id": "workspace-api-created", "workspace_group_id": "research-workspace",
                "scope_snapshot_id": "scope-1"}
        a = self.a.try_run({"command": ["echo", "diagnostics"], "timeout_sec": 5, **tags})
        self.assertEqual(a.status, 200)
        self.assertEqual({k: a.json[k] for k in tags}, tags)

    def test_T108_names_of_other_platforms_are_names(self):
        for runtime, image in (("vz_linux", "ubuntu-24.04"), ("worktree", "host-local")):
            a = self.a.try_run({"runtime": runtime, "base_image": image, "command": ["echo", "ok"]})
            self.assertIn((a.status, a.code), ((200, None), (422, "policy_unsupported"), (503, "runtime_unavailable")))
            if a.status != 200:
                self.assertEqual(a.details["runtime"], runtime)

    def test_T110_inline_files_stay_inside(self):
        # Stricter than a failed run, as the row allows: the document is refused.
        before = os.listdir(os.path.join(self.a.state, "runs"))
        for runtime in ("namespace", "worktree"):
            a = self.a.try_run({"runtime": runtime, "base_image": "host-local", "command": ["/bin/echo", "unused"],
                                "timeout_sec": 10, "network_policy": "deny_all",
                                "files": [{"path": "../escape.txt",
                                           "content_b64": base64.b64encode(b"not allowed").decode()}]})
            self.refused(a, 422, "invalid_inline_file")
            self.assertEqual(a.json["detail"]["error"]["code"], "invalid_inline_file")
        self.assertEqual(os.listdir(os.path.join(self.a.state, "runs")), before)
        self.assertEqual([], [n for w, _, names in os.walk(self.a.base) for n in names if n == "escape.txt"])


class Background(conf.Alone):
    def test_T098_the_answer_comes_at_once(self):
        with self.server() as a:
            run = a.sh("sleep 2", timeout_sec=30)
            self.assertIn(run.posted["phase"], ("queued", "starting", "running"))
            self.assertEqual(self.ended(run)["exit_code"], 0)
            order = ["queued", "starting", "running", "completed"]
            seen = [p for p, in a.sql("SELECT phase FROM changes WHERE id=? ORDER BY seq", run.id)]
            self.assertEqual(sorted(seen, key=order.index), seen, "a phase went back")
            self.assertEqual(seen[-1], "completed")

    def test_T102_a_runtime_that_breaks_after_admission(self):
        # The image goes away while the run waits.
        image = tempfile.mkdtemp(prefix="sbx-test-")
        self.addCleanup(shutil.rmtree, image, ignore_errors=True)
        settings = {"images": "gone=" + image}
        with self.server(settings, args=["--workers", "0"]) as front:
            run = front.sh("echo ok", base_image="gone", timeout_sec=5)
            shutil.rmtree(image)
            with self.server(settings, state=front.state) as back:
                doc = run.wait()
                self.assertEqual(doc["phase"], "failed")
                self.assertIsNotNone(doc["finished_at"])
                self.assertIsNone(doc["exit_code"])
                # The row's "docker_failed" is that runtime's word; what matters is that it says something,
                # and nothing about where the operator keeps things.
                self.assertTrue(doc["message"])
                self.assertNotIn(image, doc["message"])
                self.assertEqual(run.through(back).get(), doc)


class Container(conf.Docker):
    def test_T100_a_run_of_a_session_in_a_container(self):
        with self.docker() as a:
            session = a.post("/sessions", {"spec_version": "1.0", "runtime": "docker", "base_image": self.IMAGE}).json
            got = a.post("/runs", {
                "session_id": session["id"], "spec_version": "1.0", "runtime": "docker",
                "command": ["python", "/workspace/hello.py"], "capture_patterns": ["*.py"], "timeout_sec": 30,
                "files": [{"path": "hello.py",
                           "content_b64": "aW1wb3J0IHN5cwpwcmludCgiSGVsbG8gZnJvbSBzYW5kYm94ISIpCnN5cy5leGl0KDAp"}]})
            self.assertEqual(got.status, 200, got)
            run = conf.api.Run(a, got.json)
            doc = self.ended(run, timeout=60)
            self.assertEqual(doc["exit_code"], 0)
            self.assertIn("hello.py", run.artifacts())
            self.nothing_left()
            self.assertEqual(self.engine.call("GET", "/networks?filters=%7B%22label%22%3A%5B%22sandboxfs.state%22%5D%7D").json(),
                             [])


if __name__ == "__main__":
    conf.main()
