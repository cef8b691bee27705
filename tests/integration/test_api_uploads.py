# SPDX-License-Identifier: Apache-2.0
# run: limit=240
"""Uploads that no honest client sends, and honest ones under bad conditions. Whatever happens, the workspace holds
whole files or nothing of them, nothing is left beside it, and nobody else is kept from it."""
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import api  # noqa: E402
import rawhttp  # noqa: E402
import sbx  # noqa: E402
import sessions  # noqa: E402
from sessions import Session, Slow, end, form, part  # noqa: E402

MIB = 1 << 20


class Case(unittest.TestCase):
    settings = {}

    @classmethod
    def setUpClass(cls):
        cls.a = api.Apid(settings=cls.settings)
        cls.addClassCleanup(cls.a.close)
        cls.a.start()

    def setUp(self):
        self.s = Session.make(self.a)

    def refused(self, got, status, code):
        self.assertEqual((got.status, got.code), (status, code), got)
        return got

    def nothing_left(self, s=None, tree=()):
        """The workspace is this, nothing is beside it, and it is free."""
        s = s or self.s
        sessions.again(lambda: os.listdir(s.files()) == ["workspace"], "something is left: %s" % os.listdir(s.files()))
        self.assertEqual(s.tree(), sorted(tree))
        self.assertEqual(s.snapshot().status, 200)


# ---- forms that are none -----------------------------------------------------------------------------

GOOD = form(("f", b"content"))
CD = "Content-Disposition: form-data; "

# name: (Content-Type, body, status)
BROKEN = {
    "no content type": (None, GOOD, 422),
    "JSON": ("application/json", b'{"files":[]}', 422),
    "a form without files": ("application/x-www-form-urlencoded", b"files=x", 422),
    "mixed": ("multipart/mixed; boundary=x", GOOD, 422),
    "no boundary": ("multipart/form-data", GOOD, 400),
    "an empty boundary": ('multipart/form-data; boundary=""', GOOD, 400),
    "a boundary of 71 bytes": ("multipart/form-data; boundary=" + "b" * 71, GOOD, 400),
    "two boundaries": (sessions.form_type() + "; boundary=x", GOOD, 400),
    "another boundary": (sessions.form_type("other"), GOOD, 400),
    "an empty body": (sessions.form_type(), b"", 400),
    "no part": (sessions.form_type(), end(), 422),
    "parts of other names": (sessions.form_type(), part("file", "f", b"x") + part("files[]", "g", b"x") +
                             part("FILES", "h", b"x") + part("files.0", "i", b"x") + end(), 422),
    "cut in the head": (sessions.form_type(), GOOD[:60], 400),
    "cut in the content": (sessions.form_type(), GOOD[:-60], 400),
    "cut in the last boundary": (sessions.form_type(), GOOD[:-4], 400),
    "a second part that is cut": (sessions.form_type(), part("files", "f", b"x") + part("files", "g", b"y")[:-10], 400),
    "no headers": (sessions.form_type(), b"--" + sessions.BOUNDARY.encode() + b"\r\n\r\nx\r\n" + end(), 400),
    "no name": (sessions.form_type(), GOOD.replace(b'name="files"; ', b""), 400),
    "two names": (sessions.form_type(), GOOD.replace(b'name="files"', b'name="files"; name="x"'), 400),
    "two dispositions": (sessions.form_type(), part("files", "f", b"x", headers=[CD + 'name="files"']) + end(), 400),
    "base64": (sessions.form_type(), part("files", "f", b"eA==", headers=["Content-Transfer-Encoding: base64"]) + end(), 400),
    "parts in a part": (sessions.form_type(), part("files", "f", b"--y\r\n\r\nx\r\n--y--",
                                                   headers=["Content-Type: multipart/mixed; boundary=y"]) + end(), 400),
    "headers of 9 KiB": (sessions.form_type(), part("files", "f", b"x", headers=["X: " + "y" * 9000]) + end(), 400),
    "headers without end": (sessions.form_type(), part("files", "f", b"x", headers=["X: " + "y" * 500000]), 400),
    "2000 headers": (sessions.form_type(), part("files", "f", b"x", headers=["X: y"] * 2000) + end(), 400),
    "a name of 9 KiB": (sessions.form_type(), part("files", "n" * 9000, b"x") + end(), 400),
    "NUL in a name": (sessions.form_type(), part("files", "a\0b", b"x") + end(), 400),
    "bare line ends": (sessions.form_type(), GOOD.replace(b"\r\n", b"\n"), 400),
    "10001 parts": (sessions.form_type(), part("x", None, b"") * 10001 + end(), 400),
    "a megabyte of nothing": (sessions.form_type(), b"\0" * MIB, 400),
}


class Broken(Case):
    def test_each_is_refused_and_leaves_nothing(self):
        self.s.put(("kept", b"before"))
        for name, (kind, body, status) in BROKEN.items():
            for chunked in (False, True):
                with self.subTest(name, chunked=chunked):
                    got = self.s.ask("POST", "/files", iter([body[i:i + 10000] for i in range(0, len(body), 10000)]) if chunked
                                     else body, headers={"Content-Type": kind} if kind else {})
                    self.refused(got, status, "invalid_spec" if status == 422 else "invalid_argument")
                    if status == 422:
                        self.assertEqual(got.json["detail"][0]["loc"], ["body", "files"])
                    else:
                        self.assertIsInstance(got.json["detail"], str)
        self.nothing_left(tree=["kept"])
        self.assertEqual(self.s.read("kept"), b"before")

    def test_each_cut_of_a_good_one(self):
        body = part("files", "one", b"1" * 50) + part("x", None, b"no file") + part("files", "two", b"2" * 50) + end()
        for cut in range(0, len(body) - 2, 7):
            got = self.s.send(body[:cut])
            self.refused(got, 400, "invalid_argument")
        self.nothing_left()

    def test_10000_parts(self):
        other = part("x", None, b"")
        got = self.s.send(other * 9999 + part("files", "f", b"x") + end())
        self.assertEqual((got.status, got.json["file_count"]), (200, 1), got)
        got = self.s.send(b"".join(part("files", "d/%d" % i, b"x") for i in range(10000)) + end(), timeout=60)
        if got.status == 200:
            self.assertEqual(got.json["file_count"], 10000)
        else:
            self.assertIn(got.status, (400, 413, 422), got)


class Names(Case):
    def test_without_one(self):
        got = self.s.send(part("files", None, b"a") + part("files", "", b"bb") + part("files", "x", b"ccc") + end())
        self.assertEqual((got.status, got.json["file_count"], got.json["bytes_received"]), (200, 3, 6), got)
        self.assertEqual(len(self.s.tree()), 3)
        self.assertEqual([n for n in self.s.tree() if not n.startswith("file_")], ["x"])

    def test_with_odd_ones(self):
        names = {'quote\\"d': 'quote"d', "back\\\\slash": "back\\slash", "C:\\dir\\f": "C:\\dir\\f", "a b": "a b",
                 "\u00fcn\u00ef": "\u00fcn\u00ef", "\u6f22\U0001f642": "\u6f22\U0001f642", "50%": "50%", "a%22b": "a%22b",
                 "semi;colon=x": "semi;colon=x", "-rf": "-rf", "..dots": "..dots", "\udcff": "\udcff", "'": "'",
                 "deep/er/still": "deep/er/still"}
        got = self.s.send(b"".join(part("files", name, b"x") for name in names) + end())
        self.assertEqual((got.status, got.json["file_count"]), (200, len(names)), got)
        for name in names.values():
            self.assertEqual(self.s.read(*name.split("/")), b"x", name)

    def test_an_extended_one(self):
        body = part("files", "plain", b"x").replace(b'"plain"', b"\"plain\"; filename*=UTF-8''%c3%bc%20x") + end()
        self.assertEqual(self.s.send(body).status, 200)
        self.assertEqual(self.s.tree(), ["\u00fc x"])

    def test_bad_ones_are_left_out_and_named(self):
        bad = ["../x", "/x", "a/../../x", "a//b", "./x", "x/", "n" * 300, "d/" * 3000 + "x", ".", ".."]
        got = self.s.send(b"".join(part("files", name, b"x") for name in bad) + part("files", "good", b"y") + end())
        self.assertEqual((got.status, got.json["file_count"]), (200, 1 + len(bad) - got.json["skipped_count"]), got)
        self.assertIn("good", self.s.tree())
        self.assertTrue(all({"path", "reason"} <= set(one) for one in got.json["skipped"]))


# ---- size and time -----------------------------------------------------------------------------------

@unittest.skipUnless(sbx.ROOT and shutil.which("strace"), "needs root and strace")
class OnTheDisk(Case):
    def calls(self, act):
        """The names of what the service asks of the disk meanwhile, in their order."""
        path = os.path.join(self.a.base, "calls")
        tracer = subprocess.Popen(["strace", "-f", "-o", path, "-e", "trace=fsync,syncfs,renameat", "-p", str(self.a.proc.pid)],
                                  stderr=subprocess.PIPE)
        try:
            self.assertIn(b"attached", tracer.stderr.readline())
            act()
        finally:
            tracer.send_signal(signal.SIGINT)
            tracer.wait(20 * sbx.SLOW)
            tracer.stderr.close()
        with open(path) as f:
            found = re.findall(r"^\d+ +(?:<\.\.\. )?(\w+)[( ].*= 0$", f.read(), re.M)
        return found

    def test_contents_before_names_and_all_before_the_answer(self):
        calls = self.calls(lambda: self.s.put(("a", b"1"), ("d/b", b"2")))
        names = [i for i, c in enumerate(calls) if c == "renameat"]
        self.assertEqual(len(names), 2, calls)
        self.assertGreaterEqual(calls[:names[0]].count("fsync"), 2, calls)
        self.assertIn("syncfs", calls[names[1]:])

    def test_an_archive(self):
        calls = self.calls(lambda: self.s.upload(("x.tar.gz", sessions.tar(("p", b"1"), ("q", b"2")))))
        last = len(calls) - 1 - calls[::-1].index("renameat")
        self.assertIn("syncfs", calls[last:], calls)
        self.assertIn("syncfs", calls[:last - 1], calls)


class Counted(Case):
    def test_what_came_in_is_counted(self):
        names = ("sandbox_upload_bytes_total", "sandbox_upload_files_total")
        before = [self.a.metric(n, kind="session_upload") for n in names]
        self.s.put(("a", b"12345"))
        self.s.upload(("x.tar.gz", sessions.tar(("p", b"1" * 100), ("q", b"2"))))
        self.s.upload(("../bad", b"123"))
        after = [self.a.metric(n, kind="session_upload") for n in names]
        self.assertEqual([b - a for a, b in zip(before, after)], [106, 3])


class Sizes(Case):
    settings = {"max_upload_mb": 48, "workspace_cap_mb": 64}

    def test_parts_of_20_MiB(self):
        big = [os.urandom(MIB) * 20 for _ in range(2)]
        got = self.s.upload(("one", big[0]), ("two", big[1]), timeout=60)
        self.assertEqual((got.status, got.json["bytes_received"]), (200, 40 * MIB), got)
        for name, data in zip(("one", "two"), big):
            self.assertEqual(hashlib.sha256(self.s.read(name)).digest(), hashlib.sha256(data).digest())

    def test_more_than_one_upload_may_have(self):
        body = form(("f", b"x" * (50 * MIB)))
        got = self.refused(self.s.send(body), 413, "spec_too_large")
        self.assertIsInstance(got.json["detail"], str)
        pieces = (body[i:i + MIB] for i in range(0, len(body), MIB))
        self.refused(self.s.ask("POST", "/files", pieces, headers={"Content-Type": sessions.form_type()}), 413,
                     "spec_too_large")
        with Slow(self.s, 40 * MIB):
            pass
        slow = Slow(self.s, 50 * MIB)
        self.addCleanup(slow.close)
        self.assertEqual((slow.go.status, slow.go.code), (413, "spec_too_large"))
        self.nothing_left()

    def test_more_than_the_workspace_takes(self):
        self.s.put(("there", b"x" * (40 * MIB)))
        got = self.s.upload(("a", b"a" * MIB), ("b", b"b" * (30 * MIB)), ("c", b"c"), timeout=60)
        self.refused(got, 413, "workspace_cap_exceeded")
        self.assertEqual(got.json["detail"], "workspace_cap_exceeded")
        self.assertNotIn("b", self.s.tree())
        sessions.again(lambda: os.listdir(self.s.files()) == ["workspace"], "something is left")

    def test_a_session_that_is_not_there_is_told_before_the_body(self):
        for s in (Session(self.a, "00000000-0000-4000-8000-000000000000"), Session(self.a, "x")):
            slow = Slow(s, 40 * MIB)
            self.addCleanup(slow.close)
            self.assertEqual((slow.go.status, slow.go.code), (404, "session_not_found"))
        slow = Slow(self.s, 40 * MIB, login=api.NOBODY)
        self.addCleanup(slow.close)
        self.assertEqual((slow.go.status, slow.go.code), (401, "unauthorized"))


class Slowness(Case):
    settings = {"api_body_timeout_sec": 2}

    def test_byte_by_byte(self):
        body = form(("f", b"content"))
        with Slow(self.s, len(body)) as slow:
            for i in range(len(body)):
                slow.send(body[i:i + 1])
            got = slow.answer()
        self.assertEqual((got.status, got.json()["file_count"]), (200, 1), got)
        self.assertEqual(self.s.read("f"), b"content")

    def test_one_that_stalls_is_ended(self):
        with Slow(self.s, 1000) as slow:
            slow.send(form(("f", b"x" * 500))[:300])
            self.assertTrue(slow.raw.is_closed(timeout=20))
        self.nothing_left()

    def test_one_that_goes_on_is_not(self):
        body = form(("f", b"x" * (4 * MIB)))
        with Slow(self.s, len(body)) as slow:
            began = time.time()
            for i in range(5):
                slow.send(body[i * MIB:(i + 1) * MIB])
                api.wait_until(time.CLOCK_REALTIME, began + i)
            got = slow.answer()
        self.assertEqual((got.status, got.json()["file_count"]), (200, 1), got)

    def test_a_client_that_goes_away(self):
        body = form(("one", b"1" * 100000), ("two", b"2" * 100000))
        for at in (0, 10, 200, 50000, 100300, 150000, len(body) - 3):
            for leave in (rawhttp.Raw.close, rawhttp.Raw.reset):
                with Slow(self.s, len(body)) as slow:
                    slow.send(body[:at])
                    leave(slow.raw)
        self.nothing_left()

    def test_a_client_that_ends_its_side(self):
        body = form(("one", b"1" * 1000))
        with Slow(self.s, len(body)) as slow:
            slow.send(body[:500])
            slow.raw.sock.shutdown(socket.SHUT_WR)
            self.assertTrue(slow.raw.is_closed())
        self.nothing_left()
        with Slow(self.s, len(body)) as slow:
            slow.send(body)
            slow.raw.sock.shutdown(socket.SHUT_WR)
            self.assertEqual(slow.answer().status, 200)
        self.nothing_left(tree=["one"])


# ---- several at once ---------------------------------------------------------------------------------

class AtOnce(Case):
    settings = {"api_threads": 1}

    def test_two_into_one_session(self):
        one, two = form(("one", b"1" * 1000), ("same", b"first")), form(("two", b"2" * 1000), ("same", b"second"))
        with Slow(self.s, len(one)) as a, Slow(self.s, len(two)) as b:
            a.send(one[:700])
            b.send(two[:300])
            a.send(one[700:900])
            b.send(two[300:])
            self.assertEqual(b.answer().status, 200)
            self.assertEqual((self.s.read("two"), self.s.read("same")), (b"2" * 1000, b"second"))
            a.send(one[900:])
            self.assertEqual(a.answer().status, 200)
        self.nothing_left(tree=["one", "same", "two"])
        self.assertEqual((self.s.read("one"), self.s.read("same")), (b"1" * 1000, b"first"))

    def test_many_into_many(self):
        all_of_them, answers = [Session.make(self.a) for _ in range(4)], []

        def work(i):
            s = all_of_them[i % 4]
            answers.append(s.upload(("f%d" % i, bytes([i]) * 100000), ("d/%d" % i, b"x")))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(24)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual({(a.status, a.json["file_count"]) for a in answers}, {(200, 2)}, answers)
        for i in range(24):
            self.assertEqual(all_of_them[i % 4].read("f%d" % i), bytes([i]) * 100000)

    def test_delete_meanwhile(self):
        body = form(("f", b"x" * 100000))
        arrivals = sessions.Arrivals(self.a)
        with Slow(self.s, len(body)) as slow:
            slow.send(body[:50000])
            gone = sessions.Asked(self.s.delete)
            arrivals.wait(2)
            self.a.until(lambda: self.s.get().json.get("state") != "active")
            slow.send(body[50000:])
            got = slow.answer()
        self.assertIn((got.status, got.code), ((200, None), (404, "session_not_found")))
        self.assertEqual(gone.wait().json, {"ok": True})
        self.assertFalse(os.path.exists(self.s.files()))
        self.refused(self.s.get(), 404, "session_not_found")

    def test_delete_of_one_whose_client_leaves(self):
        slow = Slow(self.s, 100000)
        slow.send(form(("f", b"x" * 100000))[:5000])
        gone = sessions.Asked(self.s.delete)
        self.a.until(lambda: self.s.get().json.get("state") != "active")
        slow.close()
        self.assertEqual(gone.wait().json, {"ok": True})
        self.assertFalse(os.path.exists(self.s.files()))

    def test_the_service_stops(self):
        with api.Apid() as a:
            s = Session.make(a)
            s.put(("kept", b"x"))
            slow = Slow(s, 100000)
            slow.send(form(("f", b"x" * 100000))[:5000])
            self.assertEqual(a.stop(), 0)
            slow.close()
            a.start()
            self.nothing_left(s, tree=["kept"])

    @staticmethod
    def nobody_listens(path):
        """A runner that was just being started has the service's descriptors until it is executed."""
        with socket.socket(socket.AF_UNIX) as c:
            return c.connect_ex(path) != 0

    def test_the_service_is_killed(self):
        with api.Apid() as a:
            s = Session.make(a)
            s.put(("kept", b"x"))
            slow = Slow(s, 100000)
            slow.send(form(("f", b"x" * 100000))[:50000])
            a.kill()
            slow.close()
            sessions.again(lambda: self.nobody_listens(a.socket), "somebody has its socket")
            a.start()
            self.assertEqual(s.tree(), ["kept"])
            s.put(("again", b"y"))
            self.assertEqual(s.snapshot().status, 200)
            self.assertEqual(s.delete().json, {"ok": True})
            self.assertFalse(os.path.exists(s.files()))


if __name__ == "__main__":
    sbx.main()
