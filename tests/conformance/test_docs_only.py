# SPDX-License-Identifier: Apache-2.0
"""Promises of the two documents that the API is made from, which no test of theirs backs. Where they differ from the
contract of the code, the contract holds, and a comment says so."""
import base64
import json
import tarfile

import conf
import sessions
import wsclient
from sessions import Session


class Sessions(conf.Case):
    def setUp(self):
        self.s = Session.make(self.a)
        self.s.put(("f", b"content"))

    def test_T408_a_snapshot(self):
        got = self.s.snapshot()
        self.assertEqual(got.status, 200, got)
        self.assertRegex(got.json["created_at"], r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z\Z")
        self.assertEqual(got.json["size_bytes"], 7)
        self.assertIsInstance(got.json["snapshot_id"], str)

    def test_T409_the_list_of_them(self):
        taken = [self.s.snapshot().json for _ in range(2)]
        items = self.s.snapshots()
        self.assertEqual(items, taken[::-1])
        for item in items:
            self.assertLessEqual({"snapshot_id", "session_id", "created_at", "size_bytes"}, set(item))
            self.assertEqual(item["session_id"], self.s.id)

    def test_T411_a_clone(self):
        for doc in ({}, {"new_session_name": "my-experiment"}, {"new_session_name": None}):
            got = self.s.clone(**doc)
            self.assertEqual((got.status, got.json["cloned_from"]), (200, self.s.id), got)
            self.assertNotIn(got.json["session_id"], (None, self.s.id))
            self.assertEqual(Session(self.a, got.json["session_id"]).read("f"), b"content")

    def test_T428_archives_with_links_and_devices(self):
        # The limits of 1000 files and of 10 levels are the documents'; the reference has neither, and here the cap
        # of the workspace counts. What is no file is left out.
        deep = "/".join("d" * 15) + "/deep"
        bad = [sessions.special("hard", tarfile.LNKTYPE, "f"), sessions.special("dev", tarfile.CHRTYPE),
               sessions.special("fifo", tarfile.FIFOTYPE)]
        many = [("m/%d" % i, b"m") for i in range(1200)]
        got = self.s.upload(("a.tar", sessions.tar((deep, b"deep"), *bad, *many, mode="w")))
        if got.status == 200:
            self.assertEqual((got.json["file_count"], got.json["skipped_count"]), (1201, 3), got)
            self.assertEqual(self.s.read(deep), b"deep")
        else:
            self.refused(got, 413, "workspace_cap_exceeded")
        self.assertFalse({"hard", "dev", "fifo"} & set(self.s.tree()))


class Levels(conf.Case):
    settings = {"max_cpu": 8, "max_mem_mb": 16384}  # else the host's own limits come first
    CAPS = {"trusted": (8, 16384, 600), "standard": (4, 8192, 300), "untrusted": (1, 1024, 60)}

    def test_T413_what_a_trust_level_gives_at_most(self):
        for level, caps in self.CAPS.items():
            if level not in self.a.runtime("namespace")["supported_trust_levels"]:
                continue
            doc = Session.make(self.a, trust_level=level, cpu_limit=64, memory_mb=100000, timeout_sec=3600).get().json
            self.assertEqual((doc["cpu_limit"], doc["memory_mb"], doc["timeout_sec"]), caps)
            self.assertEqual(doc["network_policy"], "deny_all")
        check = {"base_image": "host", "command": ["true"]}
        for level, pids, nofile in (("standard", 256, 1024), ("untrusted", 64, 256)):
            got = self.a.post("/runs/check", {**check, "trust_level": level}).json
            if got["accepted"]:
                self.assertEqual((got["pids"], got["nofile"], got["network_policy"]), (pids, nofile, "deny_all"))

    def test_T414_networks_of_the_other_runtimes(self):
        wanted = {
            "docker": ("supported strict config", "host_gated strict config"),
            "firecracker": ("host_gated strict runtime_preflight", "scaffold - runtime_preflight"),
            "lima": ("host_gated strict runtime_preflight", "unsupported - not_applicable"),
            "vz_macos": ("scaffold - runtime_preflight", "unsupported - not_applicable"),
        }
        for name, policies in wanted.items():
            have = self.a.runtime(name)["network_policy_contract"]
            for policy, words in zip(("deny_all", "allowlist"), policies):
                state, strict, by = words.split()
                one = have[policy]
                with self.subTest("%s %s" % (name, policy)):
                    self.assertIn(state, json.dumps(one))
                    self.assertIn(by, json.dumps(one))
                    self.assertIn(strict == "strict", one.values())

    def test_T418_versions(self):
        for r in self.a.get("/runtimes").json["runtimes"]:
            self.assertEqual(r["supported_spec_versions"], ["1.0", "1.1"])

    def test_T420_an_unknown_version(self):
        got = self.a.try_run({"command": ["true"], "spec_version": "0.9"})
        details = self.refused(got, 400, "invalid_spec_version", provided="0.9")
        self.assertEqual(details["supported"], ["1.0", "1.1"])

    def test_T422_times_that_nobody_gave(self):
        # One document says 60 for timeout_sec; the reference's code and its other document say 300.
        got = self.a.post("/runs/check", {"base_image": "host", "command": ["true"]}).json
        self.assertEqual((got["startup_timeout_sec"], got["timeout_sec"]), (20, 300))


class Streams(conf.Case):
    def test_T416_an_address_without_a_signature(self):
        run = self.a.sh("echo hi")
        self.assertNotIn("token=", run.posted["log_stream_url"])
        with self.a.stream(run.posted["log_stream_url"], headers=self.a.login.headers) as ws:
            self.assertEqual(ws.status, 101)
            frames, code = ws.frames()
        self.assertEqual((wsclient.output(frames), code), (b"hi\n", 1000))

    def test_T423_from_the_very_beginning(self):
        # Nothing is forgotten here while the run is kept, so there is no gap to tell of.
        run = self.a.sh("seq 5000")
        run.wait()
        with self.a.stream(run, from_seq=1) as ws:
            frames, _ = ws.frames()
        self.assertNotIn("resume", [f.get("event") for f in frames])
        self.assertEqual(frames[0]["seq"], 1)

    def test_T424_input_beyond_its_limit(self):
        # The document's event stdin_closed is not what the reference does: it says "truncated" and goes on.
        run = self.a.sh("cat", interactive=True, spec_version="1.1", stdin_max_bytes=3)
        with self.a.stream(run) as ws:
            ws.stdin("abcdef")
            frames = ws.until(lambda f: f["type"] == "truncated")
            self.assertTrue(frames[-1]["reason"].startswith("stdin_"), frames)
            ws.eof()
            rest, _ = ws.frames()
        self.assertEqual(wsclient.output(frames + rest), b"abc")

    def test_T425_output_that_is_no_text(self):
        run = self.a.sh(r"printf '\377\376'; sleep 0.2; echo text; head -c 300000 /dev/zero | tr '\0' a")
        with self.a.stream(run) as ws:
            frames, _ = ws.frames()
        out = [f for f in frames if f["type"] == "stdout"]
        self.assertEqual((out[0]["encoding"], base64.b64decode(out[0]["data"])), ("base64", b"\xff\xfe"))
        for f in out:
            self.assertIn(f["encoding"], ("utf8", "base64"))
            self.assertLessEqual(len(f["data"]), 64 << 10)  # of the output; the document counts the message
        self.assertEqual(min(f["seq"] for f in frames if "seq" in f), 1)


class Artifacts(conf.Case):
    def test_T426_items_of_the_list(self):
        run = self.a.sh("mkdir out; echo hello > out/a.txt", capture_patterns=["out/*"])
        run.wait()
        self.assertEqual(self.a.get("/runs/%s/artifacts" % run.id).json, {"items": [
            {"path": "out/a.txt", "size": 6,
             "download_url": "/api/v1/sandbox/runs/%s/artifacts/out/a.txt" % run.id}]})


class Cancelled(conf.Case):
    settings = {"cancel_grace_seconds": 1}

    def test_T429_first_TERM_then_KILL(self):
        run = self.a.sh("trap 'echo term' TERM; echo up; while :; do sleep 0.05; done")
        with self.a.stream(run) as ws:
            frames = ws.until(lambda f: f["type"] == "stdout")
            run.cancel()
            rest, code = ws.frames()
        frames += rest
        self.assertEqual(wsclient.output(frames), b"up\nterm\n")
        self.assertEqual([f["event"] for f in frames if f["type"] == "event"].count("end"), 1)
        doc = run.wait()
        self.assertEqual((doc["phase"], doc["message"]), ("killed", "canceled_by_user"))


if __name__ == "__main__":
    conf.main()
