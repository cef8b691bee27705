# SPDX-License-Identifier: Apache-2.0
"""Field cases of the HTTP door. The name of a test begins with the number of its case. Where a case leaves
the answer to the documents, docs/api.md has it."""
import contextlib
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
from urllib.parse import quote

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import api  # noqa: E402
import field  # noqa: E402
import sbx  # noqa: E402
from field import py, sh, spec  # noqa: E402
from rawhttp import Raw, head  # noqa: E402


class Case(unittest.TestCase):
    settings, env = {}, {}

    @classmethod
    def setUpClass(cls):
        cls.a = api.Apid(settings=cls.settings, env=cls.env)
        cls.addClassCleanup(cls.a.close)
        cls.a.start()
        cls.address = ("127.0.0.1", cls.a.port)
        cls.url = "http://127.0.0.1:%d%s" % (cls.a.port, api.BASE)
        cls.tmp = tempfile.mkdtemp(prefix="sbx-field-")
        cls.addClassCleanup(shutil.rmtree, cls.tmp)

    def tearDown(self):
        self.assertIsNone(self.a.proc.poll())

    def file(self, name, data):
        path = os.path.join(self.tmp, name)
        with open(path, "wb") as f:
            f.write(data if isinstance(data, bytes) else data.encode())
        return path

    def curl(self, *args, stdin=None, key=api.API_KEY):
        """(status, all headers as curl saw them, body)."""
        body, heads = os.path.join(self.tmp, "curl.body"), os.path.join(self.tmp, "curl.head")
        p = subprocess.run(["curl", "-s", "-S", "-o", body, "-D", heads, "-w", "%{http_code}", "--max-time",
                            str(int(60 * sbx.SLOW)), "-H", "X-API-KEY: " + key, *args],
                           stdin=stdin or subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        with open(heads, "rb") as f:
            heads = f.read().decode()
        with open(body, "rb") as f:
            body = f.read()
        self.assertEqual(p.returncode, 0, (p.stderr, heads, body[:300]))
        return int(p.stdout), heads, body

    def runs(self):
        return self.a.sql("SELECT count(*) FROM runs")[0][0]

    def refused(self, document, code="invalid_spec", *words, statuses=(400, 422)):
        before = self.runs()
        body = document if isinstance(document, bytes) else (
            document if isinstance(document, str) else json.dumps(document)).encode()
        a = self.a.post("/runs", body)
        self.assertIn(a.status, statuses, a)
        self.assertEqual(a.code, code, a)
        for word in words:
            self.assertIn(word, a.error["message"])
        self.assertEqual(self.runs(), before)
        return a

    def ended(self, doc, exit_code=0, reason="completed"):
        run = api.Run(self.a, doc)
        got = run.wait(60)
        self.assertEqual((got["exit_code"], got["status_reason_code"]), (exit_code, reason), got)
        return run


class F03(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        data = random.Random(7).randbytes(3 * 1024 * 1024)
        cls.want = b"3145728\n%s\n" % hashlib.sha256(data).hexdigest()[:16].encode()
        cls.text = json.dumps(spec(files=[{"path": "in/big.bin", "content_b64": field.b64(data)}],
                                   command=["sh", "-c", "wc -c < in/big.bin; sha256sum in/big.bin | cut -c1-16"]))

    def setUp(self):
        self.big = self.file("big.json", self.text)

    def right(self, answer):
        status, _, body = answer
        self.assertEqual(status, 200, body[:300])
        self.assertEqual(self.ended(json.loads(body)).log(), self.want)

    def test_F03_by_curl(self):
        self.right(self.curl("--data-binary", "@" + self.big, self.url + "/runs"))

    def test_F03_in_chunks(self):
        with open(self.big, "rb") as f:
            self.right(self.curl("-T", "-", "-X", "POST", "-H", "Transfer-Encoding: chunked", self.url + "/runs", stdin=f))

    def test_F03_over_the_unix_socket(self):
        self.right(self.curl("--unix-socket", self.a.socket, "--data-binary", "@" + self.big,
                             "http://localhost%s/runs" % api.BASE))

    def test_F03_in_pieces_of_1000_bytes(self):
        text = self.text.encode()
        with Raw(self.address, 60) as c:
            c.send(head("POST", api.BASE + "/runs", [("X-API-KEY", api.API_KEY), ("Content-Length", str(len(text)))]))
            for i in range(0, len(text), 1000):
                c.send(text[i:i + 1000])
            got = c.answer()
        self.right((got.status, None, got.body))


class F33(Case):
    REFUSED = {
        "NUL in the command": ('{"base_image":"host","command":["sh","-c","echo A\\u0000B"]}', "command"),
        "NUL in the environment": ('{"base_image":"host","command":["true"],"env":{"X":"a\\u0000b"}}', "env.X"),
        "NUL in a file name": ('{"base_image":"host","command":["true"],"files":[{"path":"a\\u0000.txt","content_b64":""}]}',
                               "files[0]"),
        "half a surrogate pair": ('{"base_image":"host","command":["echo","\\ud800"]}', "command"),
        "the same key twice": ('{"base_image":"host","command":["true"],"timeout_sec":5,"timeout_sec":6}', "timeout_sec"),
        "100,000 nested brackets": ("[" * 100000, ""),
        "text behind the object": ('{"base_image":"host","command":["true"]} x', ""),
    }

    def test_F33_refused_with_the_field(self):
        for name, (text, word) in self.REFUSED.items():
            with self.subTest(name):
                self.refused(text, "invalid_spec", word)

    def test_F33_timeouts(self):
        for value in ("0", "-1", "0.5", "1e400", "NaN", '"60"', "true", "2147483648", "9223372036854775808"):
            with self.subTest(value):
                self.refused('{"base_image":"host","command":["true"],"timeout_sec":%s}' % value, "invalid_spec", "timeout_sec")

    def test_F33_resources(self):
        for value in ('"memory_mb":-1', '"memory_mb":0', '"memory_mb":1e30', '"cpu":0', '"cpu":-2', '"cpu":"1"'):
            with self.subTest(value):
                self.refused('{"base_image":"host","command":["true"],"resources":{%s}}' % value, "invalid_spec", "resources.")

    def effective(self, more):
        a = self.a.post("/runs/check", ('{"base_image":"host","command":["true"]%s}' % more).encode())
        self.assertTrue(a.json["accepted"], a)
        return a.json

    def test_F33_effective_values(self):
        self.assertEqual(self.effective(',"timeout_sec":null')["timeout_sec"], self.effective("")["timeout_sec"])
        self.assertEqual(self.effective(',"timeout_sec":6e1')["timeout_sec"], 60)
        got = self.effective(',"timeout_sec":1e3')
        self.assertEqual((got["timeout_sec"], got["clamped"]), (300, ["timeout_sec"]))

    def test_F33_byte_order_mark(self):
        a = self.a.post("/runs", b'\xef\xbb\xbf{"base_image":"host","command":["echo","ran"]}')
        self.assertEqual(a.status, 200, a)
        self.assertEqual(self.ended(a.json).log(), b"ran\n")


class F34(Case):
    # Exact names and sizes, NUL between them.
    EXACT = ("import os,sys\nfor d,_,fs in sorted(os.walk(b'.')):\n  for f in sorted(fs):\n"
             "    p=os.path.join(d,f); sys.stdout.buffer.write(p[2:]+b'\\0'+b'%d'%os.stat(p).st_size+b'\\0')")
    BAD = {
        "dot dot": [("../x", "QQ==")], "dot dot in the middle": [("a/../../x", "QQ==")], "absolute": [("/etc/x", "QQ==")],
        "two slashes": [("//x", "QQ==")], "empty": [("", "QQ==")], "dot": [(".", "QQ==")], "slash at the end": [("a/", "QQ==")],
        "dot in the middle": [("a/./b", "QQ==")], "256 bytes": [("x" * 256, "QQ==")], "258 bytes": [("\u4f60" * 86, "QQ==")],
        "file and folder": [("a", "QQ=="), ("a/b", "QQ==")], "no base64": [("a", "@@@")],
        "the same path twice": [("a", "QQ=="), ("a", "QUI=")],
    }
    GOOD = {
        "255 bytes": [("x" * 255, "QQ==", 1)], "40 nested folders": [("/".join(["d"] * 40) + "/f", "QQ==", 1)],
        "an option": [("-rf", "QQ==", 1)], "a space": [("a b", "QQ==", 1)], "a newline": [("new\nline", "QQ==", 1)],
        "two spellings": [("caf\u00e9", "QQ==", 1), ("cafe\u0301", "QUI=", 2)], "an empty file": [("e", "", 0)],
        "no padding": [("a", "QQ", 1)], "1,000 files": [("f%d" % i, "QQ==", 1) for i in range(1000)],
    }

    def test_F34_refused_with_the_entry(self):
        for name, files in self.BAD.items():
            with self.subTest(name):
                self.refused(sh("ls -lAR", files=[{"path": p, "content_b64": c} for p, c in files]),
                             "invalid_inline_file", "files[")

    def test_F34_1001_files_are_refused(self):
        self.refused(spec(command=["true"], files=[{"path": "f%d" % i, "content_b64": ""} for i in range(1001)]),
                     "invalid_spec", "files", "1000")

    def test_F34_accepted_and_exact(self):
        for name, files in self.GOOD.items():
            with self.subTest(name):
                run = self.a.run(py(self.EXACT, files=[{"path": p, "content_b64": c} for p, c, _ in files]))
                self.ended(run.posted)
                got = run.log().split(b"\0")[:-1]
                self.assertEqual({k.decode(): int(v) for k, v in zip(got[::2], got[1::2])}, {p: n for p, _, n in files})


class F35(Case):
    settings = {**api.USERS, "idempotency_ttl_sec": 3600}
    B = sh("sleep 1; echo once")

    def test_F35_twenty_at_once_and_again_after_the_end(self):
        go, answers = threading.Barrier(20), []

        def one():
            go.wait(30 * sbx.SLOW)
            answers.append(self.a.try_run(self.B, key="twenty"))

        threads = [threading.Thread(target=one) for _ in range(20)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual([a.status for a in answers], [200] * 20, answers)
        self.assertEqual(len({a.json["id"] for a in answers}), 1)
        run = self.ended(answers[0].json)
        self.assertEqual(run.log(), b"once\n")
        again = self.a.try_run(self.B, key="twenty")
        self.assertEqual((again.json["id"], again.json["phase"]), (run.id, "completed"))
        self.assertEqual(run.log(), b"once\n")

    def test_F35_another_body_at_any_phase(self):
        run = self.a.run(self.B, key="other-body")
        for phase in ("running", "completed"):
            a = self.a.try_run(spec(command=["true"]), key="other-body")
            self.assertEqual((a.status, a.code), (409, "idempotency_conflict"), phase)
            self.assertEqual((a.details["prior_id"], a.details["key"]), (run.id, "other-body"))
            self.assertRegex(a.details["prior_created_at"], r"\A\d{4}-\d\d-\d\dT[\d:.]+Z\Z")
            self.ended(run.posted)

    def test_F35_another_user_is_independent(self):
        run = self.a.run(self.B, key="two-users")
        other = self.a.run(self.B, login=api.user("bob"), key="two-users")
        self.assertNotEqual(other.id, run.id)
        self.assertEqual(self.a.run(self.B, key="two-users").id, run.id)

    def test_F35_spelling_means_nothing(self):
        """Spaces, order, and what is the default in any case."""
        run = self.a.run(self.B, key="spelling")
        for text in (json.dumps({**self.B}, indent=8), json.dumps(dict(reversed(self.B.items()))),
                     json.dumps({**self.B, "env": None, "network_policy": None, "trust_level": "standard"})):
            a = self.a.post("/runs", text.encode(), headers={"Idempotency-Key": "spelling"})
            self.assertEqual((a.status, a.json.get("id")), (200, run.id), a)

    def test_F35_the_key_survives_a_restart(self):
        run = self.a.run(self.B, key="restart")
        self.a.stop()
        self.a.start()
        type(self).address = ("127.0.0.1", self.a.port)
        self.assertEqual(self.a.run(self.B, key="restart").id, run.id)

    def test_F35_a_refused_spec_does_not_use_it_up(self):
        a = self.a.try_run({**self.B, "timeout_sec": 0}, key="refused")
        self.assertEqual(a.status, 422)
        self.a.run(self.B, key="refused")

    def test_F35_empty_and_huge_keys_are_refused(self):
        for key in ("", "k" * 10240):
            a = self.a.try_run(self.B, headers={"Idempotency-Key": key})
            self.assertEqual((a.status, a.code), (422, "invalid_spec"), a)


class F37(Case):
    # Range on `t`: status, Content-Range, body.
    TABLE = (
        ("bytes=0-4", 206, "bytes 0-4/10", b"01234"),
        ("bytes=7-", 206, "bytes 7-9/10", b"789"),
        ("bytes=-3", 206, "bytes 7-9/10", b"789"),
        ("bytes=5-99", 206, "bytes 5-9/10", b"56789"),
        ("bytes=5-18446744073709551616", 206, "bytes 5-9/10", b"56789"),
        ("bytes=-99", 206, "bytes 0-9/10", b"0123456789"),
        ("bytes=-18446744073709551616", 206, "bytes 0-9/10", b"0123456789"),
        ("bytes=10-", 416, "bytes */10", b""),
        ("bytes=18446744073709551616-", 416, "bytes */10", b""),
        ("bytes=-0", 416, "bytes */10", b""),
        ("bytes=0-1,3-4", 416, "bytes */10", b""),
        # The contract keeps what the reference does, where the RFC would ignore the header.
        ("bytes=4-2", 416, "bytes */10", b""),
        ("bytes=a-b", 416, "bytes */10", b""),
        ("bytes=", 416, "bytes */10", b""),
        ("lines=0-1", 416, "bytes */10", b""),
    )

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.r = cls.a.run(sh("printf 0123456789 > t; : > z", capture_patterns=["t", "z"]))
        assert cls.r.wait()["phase"] == "completed"
        cls.path = "%s/runs/%s/artifacts/" % (api.BASE, cls.r.id)

    def ask(self, c, name, headers=(), method="GET"):
        return c.ask(method, self.path + name, [("X-API-KEY", api.API_KEY), *headers])

    def test_F37_the_table(self):
        """On one connection, which stays usable."""
        with Raw(self.address) as c:
            for text, status, where, body in self.TABLE:
                with self.subTest(text):
                    got = self.ask(c, "t", [("Range", text)])
                    self.assertEqual((got.status, got.header("Content-Range"), got.body), (status, where, body), got)
                    self.assertEqual(got.header("Content-Length"), str(len(body)))

    def test_F37_by_curl(self):
        for text, status, _, body in self.TABLE[:6]:
            got = self.curl("-H", "Range: " + text, "http://127.0.0.1:%d%st" % (self.a.port, self.path))
            self.assertEqual((got[0], got[2]), (status, body), text)

    def test_F37_an_empty_file(self):
        with Raw(self.address) as c:
            for text in ("bytes=-5", "bytes=0-", "bytes=0-0"):
                got = self.ask(c, "z", [("Range", text)])
                self.assertEqual((got.status, got.header("Content-Range"), got.body), (416, "bytes */0", b""), text)
            got = self.ask(c, "z")
            self.assertEqual((got.status, got.header("Content-Length"), got.body), (200, "0", b""))

    def test_F37_without_a_range(self):
        with Raw(self.address) as c:
            got = self.ask(c, "t")
            self.assertEqual((got.status, got.body, got.header("Accept-Ranges")), (200, b"0123456789", "bytes"))
            got = self.ask(c, "t", method="HEAD")
            self.assertEqual((got.status, got.header("Content-Length"), got.header("Accept-Ranges")), (200, "10", "bytes"))
            self.assertEqual(self.ask(c, "t").body, b"0123456789")


class F39(Case):
    settings = {"api_body_timeout_sec": 3}
    # What is freed is to be free, or there is no peak to speak of.
    env = {"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=1"}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.big = os.path.join(cls.tmp, "big.json")
        data = random.Random(9).randbytes(3 * 1024 * 1024)
        with open(cls.big, "w") as f:
            json.dump(spec(command=["true"], files=[{"path": "b", "content_b64": field.b64(data)}]), f)
        cls.huge = os.path.join(cls.tmp, "huge")
        with open(cls.huge, "wb") as f:
            for _ in range(80):
                f.write(b" " * 1000000)

    def peak(self):
        with open("/proc/%d/status" % self.a.proc.pid) as f:
            return int(next(x for x in f if x.startswith("VmHWM:")).split()[1])

    def test_F39_expect_is_answered(self):
        status, heads, body = self.curl("-H", "Expect: 100-continue", "--data-binary", "@" + self.big, self.url + "/runs")
        self.assertEqual(status, 200, body[:300])
        self.assertTrue(heads.startswith("HTTP/1.1 100 Continue\r\n"), heads)

    def test_F39_too_large_in_both_framings(self):
        """A readable answer, a bounded memory, and others are served meanwhile."""
        before, stop = self.peak(), threading.Event()
        healthy = []

        def watch():
            while not stop.is_set():
                healthy.append(self.a.get("/health/public").status)

        t = threading.Thread(target=watch)
        t.start()
        try:
            for framing in ([], ["-H", "Transfer-Encoding: chunked", "-H", "Expect:"], ["-H", "Expect:"]):
                status, _, body = self.curl(*framing, "--data-binary", "@" + self.huge, self.url + "/runs")
                self.assertEqual((status, json.loads(body)["error"]["code"]), (413, "spec_too_large"), framing)
        finally:
            stop.set()
            t.join()
        self.assertEqual(set(healthy), {200})
        self.assertLess(self.peak() - before, 64 << 10)

    def test_F39_a_wrong_key_is_told_before_everything_is_read(self):
        for framing in ([], ["-H", "Expect:"]):
            status, _, body = self.curl(*framing, "--data-binary", "@" + self.huge, self.url + "/runs", key="wrong")
            self.assertEqual((status, json.loads(body)["error"]["code"]), (401, "unauthorized"))

    def test_F39_an_unfinished_body_is_closed(self):
        with Raw(self.address) as c:
            c.send("POST %s/runs HTTP/1.1\r\nHost: x\r\nX-API-KEY: %s\r\nContent-Length: 999\r\n\r\n{" % (api.BASE, api.API_KEY))
            self.assertTrue(c.is_closed())
            self.assertEqual(c.pending, b"")

    def test_F39_no_body_another_method_another_type(self):
        status, _, body = self.curl("-X", "POST", self.url + "/runs")
        self.assertEqual((status, json.loads(body)["error"]["code"]), (422, "invalid_spec"))
        status, heads, _ = self.curl("-X", "PUT", self.url + "/runs")
        self.assertEqual(status, 405)
        self.assertIn("\r\nAllow: POST, GET, HEAD\r\n", heads)
        status, _, body = self.curl("-d", "@" + self.big, "-H", "Content-Type: text/plain", self.url + "/runs")
        self.assertEqual(status, 200, body[:300])


class F43(Case):
    NAMES = ("50%.t", "a b#c?.t", "x%2fy.t", "p+q.t", "..dots.t", "\u00fcn.t", "&=;.t")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.r = cls.a.run(sh("mkdir o; cd o; for n in '50%.t' 'a b#c?.t' 'x%2fy.t' 'p+q.t' '..dots.t' '\u00fcn.t' '&=;.t'; do "
                             "echo \"$n\" > \"$n\"; done", capture_patterns=["o/*"]))
        assert cls.r.wait()["phase"] == "completed"

    def test_F43_each_comes_back_under_its_own_name(self):
        self.assertEqual(set(self.r.artifacts()), {"o/" + n for n in self.NAMES})
        for name in self.NAMES:
            for text in (quote("o/" + name, safe=""), quote("o/" + name, safe="/"), "o/" + quote(name, safe="+&=;")):
                with self.subTest(text):
                    a = self.r.artifact(text)
                    self.assertEqual((a.status, a.body), (200, (name + "\n").encode()))

    def test_F43_links_of_the_listing_work_as_they_stand(self):
        items = self.a.get("/runs/%s/artifacts" % self.r.id).json["items"]
        self.assertEqual(len(items), 7)
        for item in items:
            status, _, body = self.curl("http://127.0.0.1:%d%s" % (self.a.port, item["download_url"]))
            self.assertEqual((status, body.decode()), (200, item["path"][2:] + "\n"), item)

    def test_F43_what_is_no_artifact(self):
        for tail in ("o/../o/p+q.t", "o/%2e%2e/%2e%2e/status", "..%2f..%2f..%2fetc%2fpasswd", "%252e%252e%252fetc",
                     "o/p+q.t%00.x", "o/%zz", "o//p+q.t", "o/p+q.t/", "o", "o/", "o/p%20q.t", "O/p+q.t"):
            with self.subTest(tail):
                with Raw(self.address) as c:
                    got = c.ask("GET", "%s/runs/%s/artifacts/%s" % (api.BASE, self.r.id, tail), [("X-API-KEY", api.API_KEY)])
                self.assertIn(got.status, (400, 404), got)
                self.assertNotIn(b"root:", got.body)


if __name__ == "__main__":
    with contextlib.suppress(KeyError):
        del os.environ["http_proxy"]
    sbx.main()
