# SPDX-License-Identifier: Apache-2.0
# run: limit=240
"""What the HTTP door answers to bytes that no honest client sends: documents that are none, bodies in
every framing, paths that climb, heads that two readers would read differently. Raw sockets, so that
nothing is made better on the way."""
import contextlib
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import api  # noqa: E402
import badhttp  # noqa: E402
import sbx  # noqa: E402
from badhttp import BASE, HEALTH, MIB  # noqa: E402
from rawhttp import Raw, head  # noqa: E402

HELLO = b'{"spec_version":"1.0","base_image":"host","command":["echo","hello"]}'


class BadCase(badhttp.Case):
    def post(self, body, headers=(), target="/runs"):
        with Raw(self.address) as c:
            return c.ask("POST", BASE + target, [*self.login, ("Content-Length", str(len(body))), *headers],
                         body=body)


# ---- documents -------------------------------------------------------------------------------------

COMMAND = b'"spec_version":"1.0","base_image":"host","command":["echo","ran"]'


def with_command(more):
    return b"{" + COMMAND + b"," + (more if isinstance(more, bytes) else more.encode()) + b"}"


# name: (body, word in the message); all of them are refused with 422 invalid_spec.
DOCUMENTS = {
    "nothing": (b"", "empty"),
    "white space": (b" \r\n\t ", "document"),
    "a word": (b"hello", ""),
    "a number": (b"5", "JSON object"),
    "a string": (b'"x"', "JSON object"),
    "null": (b"null", "JSON object"),
    "a list": (b"[]", "JSON object"),
    "a list of documents": (b"[" + HELLO + b"]", "JSON object"),
    "half": (HELLO[:-1], ""),
    "half a string": (HELLO[:30], ""),
    "two documents": (HELLO + HELLO, ""),
    "text behind": (HELLO + b" trailing", ""),
    "a form": (b"command=true&base_image=host", ""),
    "XML": (b"<run><command>true</command></run>", ""),
    "single quotes": (b"{'command':['true']}", ""),
    "a comment": (b'{/* hello */"command":["true"]}', ""),
    "a comma at the end": (b"{" + COMMAND + b",}", ""),
    "no quotes": (b"{command:[true]}", ""),
    "NaN": (with_command('"timeout_sec":NaN'), ""),
    "infinity": (with_command('"timeout_sec":Infinity'), ""),
    "a plus sign": (with_command('"timeout_sec":+5'), ""),
    "a hexadecimal number": (with_command('"timeout_sec":0x10'), ""),
    "a zero in front": (with_command('"timeout_sec":010'), ""),
    "no digits behind the point": (with_command('"timeout_sec":1.'), ""),
    "1e400": (with_command('"timeout_sec":1e400'), ""),
    "a raw NUL": (b'{"command":["tr\0ue"],"base_image":"host"}', ""),
    "a NUL behind": (HELLO + b"\0", ""),
    "a NUL as escape": (b'{"command":["tr\\u0000ue"],"base_image":"host"}', ""),
    "a raw newline in a string": (b'{"command":["a\nb"],"base_image":"host"}', ""),
    "no UTF-8": (b'{"command":["\xff\xfe"],"base_image":"host"}', ""),
    "an overlong slash": (b'{"command":["\xc0\xaf"],"base_image":"host"}', ""),
    "half a surrogate": (b'{"command":["\\ud800"],"base_image":"host"}', ""),
    "half a surrogate as bytes": (b'{"command":["\xed\xa0\x80"],"base_image":"host"}', ""),
    "a bad escape": (b'{"command":["\\x41"],"base_image":"host"}', ""),
    "UTF-16": (HELLO.decode().encode("utf-16"), ""),
    "UTF-32": (HELLO.decode().encode("utf-32"), ""),
    "compressed": (b"\x1f\x8b\x08\x00\x00\x00\x00\x00", ""),
    "100,000 brackets": (b"[" * 100000, ""),
    "10,000 nested objects": (b'{"a":' * 10000 + b"1" + b"}" * 10000, ""),
    "the same name twice": (with_command('"timeout_sec":5,"timeout_sec":6'), "timeout_sec"),
    "the same name twice, once escaped": (with_command('"timeout_sec":5,"timeout\\u005fsec":6'), "twice"),
    "a script": (b"#!/bin/sh\necho hello\n", ""),
    "command is a string": (b'{"base_image":"host","command":"true"}', "command"),
    "command is null": (b'{"base_image":"host","command":null}', "command"),
    "command is an object": (b'{"base_image":"host","command":{"0":"true"}}', "command"),
    "command is empty": (b'{"base_image":"host","command":[]}', "command"),
    "command has a number": (b'{"base_image":"host","command":["sleep",5]}', "command"),
    "command is absent": (b'{"base_image":"host"}', "command"),
    "base_image is absent": (b'{"command":["true"]}', "base_image"),
    "base_image and session_id": (with_command('"session_id":"s"'), "base_image"),
    "base_image is a list": (b'{"command":["true"],"base_image":["host"]}', "base_image"),
    "timeout_sec is a string": (with_command('"timeout_sec":"60"'), "timeout_sec"),
    "timeout_sec is true": (with_command('"timeout_sec":true'), "timeout_sec"),
    "timeout_sec is half": (with_command('"timeout_sec":0.5'), "timeout_sec"),
    "timeout_sec is 0": (with_command('"timeout_sec":0'), "timeout_sec"),
    "timeout_sec is 2 to the 63": (with_command('"timeout_sec":9223372036854775808'), "timeout_sec"),
    "timeout_sec is a list": (with_command('"timeout_sec":[60]'), "timeout_sec"),
    "cpu is negative": (with_command('"resources":{"cpu":-2}'), "resources.cpu"),
    "cpu is 0": (with_command('"resources":{"cpu":0}'), "resources.cpu"),
    "resources is a list": (with_command('"resources":[]'), "resources"),
    "memory is 1e30": (with_command('"resources":{"memory_mb":1e30}'), "resources.memory_mb"),
    "env is a list": (with_command('"env":["A=b"]'), "env"),
    "env has a number": (with_command('"env":{"A":1}'), "env"),
    "env has an equals sign": (with_command('"env":{"A=B":"x"}'), "env"),
    "files is an object": (with_command('"files":{"a":"b"}'), "files"),
    "files has strings": (with_command('"files":["a"]'), "files"),
    "interactive is 1": (with_command('"interactive":1'), "interactive"),
    "interactive is a string": (with_command('"interactive":"yes"'), "interactive"),
    "labels is a string": (with_command('"labels":"a=b"'), "labels"),
    "trust_level is unknown": (with_command('"trust_level":"root"'), "trust_level"),
    "runtime is unknown": (with_command('"runtime":"chroot"'), "runtime"),
    "spec_version is a number": (b'{"spec_version":1.0,"base_image":"host","command":["true"]}', "spec_version"),
}


class Documents(BadCase):
    def test_each_is_refused_and_leaves_no_run(self):
        for name, (body, word) in DOCUMENTS.items():
            with self.subTest(name):
                got = self.post(body)
                self.assertEqual((got.status, got.code), (422, "invalid_spec"), got)
                self.assertIn(word, got.json()["error"]["message"])
                self.assertEqual(got.header("Content-Type"), "application/json")
        self.assertEqual(self.rows(), 0)

    def test_each_is_refused_on_one_connection_too(self):
        """The connection stays usable, and no answer belongs to another request."""
        with Raw(self.address) as c:
            for i, (name, (body, _)) in enumerate(DOCUMENTS.items()):
                got = c.ask("POST", BASE + "/runs", [*self.login, ("X-Request-ID", "r%d" % i),
                                                     ("Content-Length", str(len(body)))], body=body)
                self.assertEqual((got.status, got.header("X-Request-ID")), (422, "r%d" % i), name)
        self.assertEqual(self.rows(), 0)

    def test_check_says_the_same_and_is_no_refusal(self):
        for name, (body, _) in DOCUMENTS.items():
            with self.subTest(name):
                refused, checked = self.post(body), self.post(body, target="/runs/check")
                self.assertEqual(checked.status, 200, checked)
                self.assertEqual(checked.json(), {"accepted": False, "error": refused.json()["error"]})
        self.assertEqual(self.rows(), 0)

    def test_the_content_type_means_nothing(self):
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "\xff"):
            with self.subTest(kind):
                self.assertEqual(self.post(HELLO, [("Content-Type", kind.encode("latin-1"))], "/runs/check").status, 200)
                self.assertEqual(self.post(b"x=1", [("Content-Type", kind.encode("latin-1"))]).code, "invalid_spec")

    def test_a_byte_order_mark_is_skipped(self):
        got = self.post(b"\xef\xbb\xbf" + HELLO, target="/runs/check")
        self.assertTrue(got.json()["accepted"], got)

    def test_keys(self):
        for key, status in (("k" * 255, 200), ("k" * 256, 422), ("k" * 10000, 422), ("", 422)):
            with self.subTest(len(key)):
                got = self.post(HELLO, [("Idempotency-Key", key)])
                self.assertEqual(got.status, status, got)

    def test_waits(self):
        for wait in ("-1", "x", "", "1.5", "86401", "99999999999999999999", "0x5", "1%00", " 1", "1;"):
            with self.subTest(wait):
                got = self.post(HELLO, target="/runs?wait=" + wait.replace(" ", "%20"))
                self.assertEqual((got.status, got.code), (422, "invalid_argument"), got)
                self.assertEqual(got.json()["detail"][0]["loc"], ["query", "wait"])
        # A preference that makes no sense is ignored (RFC 7240, section 2).
        for prefer in ("wait", "wait=", "wait=x", "wait=-1", ";;;,", "wait=\xff", "respond-async"):
            with self.subTest(prefer):
                got = self.post(HELLO, [("Prefer", prefer.encode("latin-1"))])
                self.assertEqual(got.status, 200, got)


# ---- paths -----------------------------------------------------------------------------------------

# Below /runs/ID/artifacts/. None may be served; S is the path of a file outside, R the run's id.
CLIMBS = (
    "../status", "..", "../", "../..", "../../../../etc/passwd", "x/../../status", "a/..", "a/../a", "./a", ".",
    "a/.", "a/./", "//a", "/etc/passwd", "//etc/passwd", "a/", "a//", "", "/",
    "%2e%2e/status", "%2E%2E/status", ".%2e/status", "%2e./status", "%2e%2e%2fstatus", "..%2fstatus", "..%2Fstatus",
    "%2e%2e", "%2e", "%2f", "%2fetc%2fpasswd", "%2Fetc/passwd", "a%2f..%2fa", "a%2f%2e%2e%2fa", "a%2f", "a%2f%2f",
    "%2e%2e%2f%2e%2e%2f%2e%2e%2f%2e%2e%2fetc%2fpasswd", "..%2f..%2f..%2fetc%2fpasswd", "%2e/a", "%2e%2fa",
    # Decoded twice, they would climb.
    "%252e%252e/status", "%252e%252e%252fstatus", "..%252fstatus", "%25%32%65%25%32%65/status", "%2%65%2%65/status",
    # What other systems take for a dot or a slash.
    "..\\status", "..%5cstatus", "%5c..%5cstatus", "\\\\host\\share", "%c0%ae%c0%ae/status", "%c0%ae%c0%ae%c0%afstatus",
    "%e0%80%ae%e0%80%ae/status", "%uff0e%uff0e/status", "%ef%bc%8e%ef%bc%8e/status", "..;/status", "..%00/status",
    "..%0d%0a/status", "...", ".../status", "..../status", "%2e%2e;/status", "..%3b/status", "..#/status", "..%23/status",
    # Names that end early for C.
    "a%00", "a%00.txt", "%00", "%00a", "a%00/../a", "a%2500",
    "%", "%2", "%zz", "a%", "a%2", "a%zz", "%%", "%%32%65%%32%65/status", "a?x/../../y%00".replace("?x", "%3fx"),
    "S", "/S", "..S", "../../../../../../../..S", "%2e%2e" + "/%2e%2e" * 20 + "S",
    "link", "link/passwd", "dir", "dir/", "dir/../a", "dir/..%2fa",
)
# Whole targets: none may find what it means to reach.
TARGETS = (
    BASE + "/runs/../health/public", BASE + "/runs/x/../../health/public", BASE + "/runs/R/..", BASE + "/runs/R/../R",
    BASE + "/runs/%2e%2e/health/public", BASE + "/runs/R/%2e%2e/R", BASE + "/runs/R%2f..%2fR", BASE + "/runs/..%2fhealth",
    BASE + "/runs/R%00", BASE + "/runs/R%00x", BASE + "/runs/%00", BASE + "/runs/R/", BASE + "/runs//R", BASE + "//runs/R",
    BASE + "/runs/R%20", BASE + "/runs/%20R", BASE + "/runs/R;x", BASE + "/runs/R%3f", BASE + "/runs/.", BASE + "/runs/..",
    "/api/v1/sandbox/../sandbox/health/public", "/api/v1/./sandbox/health/public", "/api//v1/sandbox/health/public",
    "/..", "/../etc/passwd", "/%2e%2e/etc/passwd", "/etc/passwd", "//etc/passwd", "/.", "/", "//", "/api.key", "/state.db",
    "/%61pi/v1/sandbox/health/public", "/api/v1/sandbox%2fhealth%2fpublic", "/API/V1/SANDBOX/HEALTH/PUBLIC",
    "/api/v1/sandbox/health/public/", "/api/v1/sandbox/health%2fpublic", "/api/v1/sandbox/health/public%00",
    "*", "?", "#", "http://", "http://h", "file:///etc/passwd", "h:443", "etc/passwd", "\\etc\\passwd", "/\\..\\etc",
)
SECRET = b"a secret of the host"


class Paths(BadCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.outside = tempfile.NamedTemporaryFile(prefix="sbx-secret-")
        cls.addClassCleanup(cls.outside.close)
        cls.outside.write(SECRET)
        cls.outside.flush()
        # What the names of a state directory would give away.
        run = cls.a.sh("echo mine > a; mkdir dir; echo deep > dir/b; ln -s /etc link; ln -s / dir/up",
                       capture_patterns=["*"])
        assert run.wait()["phase"] == "completed"
        cls.r = run.id

    def target(self, text):
        return text.replace("R", self.r).replace("S", self.outside.name)

    def nothing_of_it(self, target, got):
        self.assertIn(got.status, (400, 404), (target, got))
        self.assertNotIn(SECRET, got.body, target)
        self.assertNotIn(b"root:", got.body, target)
        self.assertNotIn(b"mine\n", got.body, target)
        self.assertNotIn(self.a.state.encode(), got.body, target)
        self.assertIn(got.code, ("invalid_path", "not_found", "artifact_not_found", "run_not_found"), target)

    def test_the_honest_path_works(self):
        got = self.ask("GET", self.target(BASE + "/runs/R/artifacts/a"), self.login)
        self.assertEqual((got.status, got.body), (200, b"mine\n"))
        got = self.ask("GET", self.target(BASE + "/runs/R/artifacts/dir%2fb"), self.login)
        self.assertEqual((got.status, got.body), (200, b"deep\n"))

    def test_nothing_outside_is_served(self):
        for climb in CLIMBS:
            for method in ("GET", "HEAD"):
                with self.subTest(climb, method=method):
                    with Raw(self.address) as c:
                        c.send(head(method, self.target(BASE + "/runs/R/artifacts/" + climb).encode("latin-1"), self.login))
                        got = c.answer(no_body=method == "HEAD")
                    if method == "GET":
                        self.nothing_of_it(climb, got)
                    else:
                        self.assertIn(got.status, (400, 404), climb)

    def test_nor_without_a_login(self):
        """Where the guard answers first, it tells nothing; everywhere else a login is asked for."""
        for climb in CLIMBS:
            with self.subTest(climb):
                got = self.ask("GET", self.target(BASE + "/runs/R/artifacts/" + climb).encode("latin-1"))
                self.assertIn(got.status, (400, 401, 404), got)
                self.assertNotIn(SECRET, got.body)

    def test_many_arguments(self):
        """They cost memory of the connection's 32 KiB; more is the end of it."""
        for n in (1000, 4000):
            said = self.volley([(n, head("GET", self.target(BASE + "/runs/R/artifacts/a?") + "&" * n, self.login))])[0][1]
            self.assertRegex(said, rb"\A(?!.)|\AHTTP/1\.1 (200|413|414|431) ")
        self.alive()

    def test_the_query_is_no_path(self):
        for query in ("?/../..", "?x=/../", "?%2e%2e", "?a=%00", "?" + "&" * 100, "?%", "?a=%zz"):
            with self.subTest(query):
                got = self.ask("GET", self.target(BASE + "/runs/R/artifacts/a") + query, self.login)
                self.assertEqual((got.status, got.body), (200, b"mine\n"), got)

    def test_whole_targets(self):
        for target in TARGETS:
            with self.subTest(target):
                with Raw(self.address) as c:
                    c.send(head("GET", self.target(target).encode("latin-1"), self.login))
                    self.nothing_of_it(target, c.answer())

    def test_every_method_is_guarded(self):
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"):
            with self.subTest(method):
                with Raw(self.address) as c:
                    c.send(head(method, self.target(BASE + "/runs/R/artifacts/../../x"), [("Content-Length", "0")]))
                    got = c.answer(no_body=method == "HEAD")
                self.assertEqual(got.status, 400, got)
                if method != "HEAD":
                    self.assertEqual(got.json()["detail"], "Path traversal detected")

    def test_a_whole_url_is_judged_like_its_path(self):
        for scheme in ("http://h", "HTTP://h:80", "https://user@h"):
            got = self.ask("GET", scheme + self.target(BASE + "/runs/R/artifacts/a"), self.login)
            self.assertEqual((got.status, got.body), (200, b"mine\n"), scheme)
            got = self.ask("GET", scheme + self.target(BASE + "/runs/R/artifacts/../status"), self.login)
            self.assertEqual((got.status, got.json()["detail"]), (400, "Path traversal detected"), scheme)


# ---- heads -----------------------------------------------------------------------------------------

class Heads(BadCase):
    settings = {"api_header_timeout_sec": 2, "api_body_timeout_sec": 2}

    def send(self, data, no_body=False):
        """The answer to these bytes and whether the server ended the connection with it."""
        with Raw(self.address) as c:
            c.send(data)
            got = c.answer(no_body)
            closes = "close" in (got.header("Connection") or "").lower()
            if closes:
                self.assertTrue(c.is_closed(), data[:80])
            return got, closes

    def test_requests_with_two_ends_are_refused(self):
        """Each shape, with a second request hidden where another reader would see one: it is never
        answered, and it never starts a run."""
        hidden = head("POST", BASE + "/runs", [*self.login, ("Content-Length", str(len(HELLO)))]) + HELLO
        for name, lines in badhttp.TWO_ENDS.items():
            with self.subTest(name):
                with Raw(self.address) as c:
                    c.send("POST %s/runs HTTP/1.1\r\nHost: h\r\nX-API-KEY: %s\r\n" % (BASE, api.API_KEY),
                           "".join(line.replace("%N", str(len(hidden))) + "\r\n" for line in lines).encode("latin-1"),
                           "\r\n0\r\n\r\n", hidden)
                    got = c.answer()
                    self.assertEqual(got.status, 400, got)
                    self.assertTrue(c.is_closed())
                    self.assertNotIn(b'"phase"', c.pending)
        self.assertEqual(self.rows(), 0)

    def test_heads_that_are_none(self):
        """An answer of the 4xx or 5xx kind, or the end of the connection; never silence and never a
        result."""
        # The blank line, for what waits for one.
        for name, said in self.volley((n, data + b"\r\n\r\n") for n, data in badhttp.GARBAGE.items()):
            with self.subTest(name):
                self.assertTrue(said == b"" or said.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5")), (name, said[:300]))
                self.assertNotIn(b'"phase"', said)

    def test_a_missing_host(self):
        for lines, status in (((), 400), (("Host: a", "Host: b"), 400), (("Host: a", "Host: a"), 400), (("Host:",), 200)):
            with self.subTest(lines):
                got, closes = self.send("GET %s HTTP/1.1\r\n%s\r\n" % (HEALTH, "".join(x + "\r\n" for x in lines)))
                self.assertEqual((got.status, closes), (status, status == 400), got)

    def test_http_1_0(self):
        got, _ = self.send("GET %s HTTP/1.0\r\n\r\n" % HEALTH)
        self.assertEqual(got.status, 200)
        with Raw(self.address) as c:
            c.send("GET %s HTTP/1.0\r\n\r\n" % HEALTH)
            self.assertTrue(c.is_closed(), "HTTP/1.0 ends with its answer")
        with Raw(self.address) as c:
            for _ in range(3):
                c.send("GET %s HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" % HEALTH)
                self.assertEqual(c.answer().status, 200)

    def test_versions(self):
        versions = ("0.9", "2.0", "3.0", "1.10", "1", "", "99999999999.1", "-1.1", "1.1.1", "1,1", "x")
        for version, said in self.volley((v, head("GET", HEALTH, version=v)) for v in versions):
            with self.subTest(version):
                self.assertRegex(said, rb"\A(?!.)|\AHTTP/1\.1 (400|505) ")

    def test_unknown_methods(self):
        for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW", "get", "G", "PRI", "POSTS",
                       "X" * 5000, "M-SEARCH", "!#$%&'*+.^_`|~"):
            with self.subTest(method[:20]):
                got = self.ask(method, BASE + "/runs", [*self.login, ("Content-Length", "0")])
                self.assertEqual((got.status, got.code), (405, "method_not_allowed"), got)
                self.assertEqual(set(got.header("Allow").split(", ")), {"GET", "HEAD", "POST"})
        got = self.ask("TRACE", HEALTH, [("X-Secret", "sesame")])
        self.assertEqual(got.status, 405)
        self.assertNotIn(b"sesame", got.body)

    def test_long_targets(self):
        """8 KiB of target are looked at; more is 414, whoever asks."""
        pad = 8192 - len(HEALTH) - 1
        self.assertEqual(self.ask("GET", HEALTH + "?" + "x" * pad).status, 200)
        for n in (pad + 1, 20000):
            got = self.ask("GET", HEALTH + "?" + "x" * n)
            self.assertEqual((got.status, got.code), (414, "uri_too_long"), n)
        for n in (40000, 1 << 20, 8 << 20):
            with Raw(self.address) as c:
                # It may end the connection while we still send.
                with contextlib.suppress(ConnectionError):
                    c.send(head("GET", HEALTH + "?" + "x" * n))
                said = c.rest()
            self.assertTrue(said == b"" or said.startswith(b"HTTP/1.1 414 "), said[:200])
        self.alive()

    def test_long_and_many_headers(self):
        """32 KiB of head in all; more is 431."""
        self.assertEqual(self.ask("GET", HEALTH, [("X-Long", "x" * 20000)]).status, 200)
        self.assertEqual(self.ask("GET", HEALTH, [("X-%d" % i, "y") for i in range(200)]).status, 200)
        for headers in ([("X-Long", "x" * 40000)], [("X" * 40000, "y")], [("X", "y")] * 5000, [("Cookie", "a=b; " * 9000)],
                        [("X-API-KEY", "k" * 40000)], [("Authorization", "Bearer " + "e" * 40000)]):
            with self.subTest(headers[0][0][:10], n=len(headers)):
                with Raw(self.address) as c:
                    with contextlib.suppress(ConnectionError):
                        c.send(head("GET", HEALTH, headers))
                    said = c.rest()
                self.assertTrue(said == b"" or said.startswith(b"HTTP/1.1 431 "), said[:200])
        self.alive()

    def test_control_bytes(self):
        cases = []
        for byte in (b"\0", b"\1", b"\7", b"\b", b"\v", b"\f", b"\x1b", b"\x7f", b"\x80", b"\xff"):
            cases += [((byte, "target"), head("GET", HEALTH.encode() + byte)),
                      ((byte, "value"), head("GET", HEALTH, [("X-Value", b"a" + byte + b"b")])),
                      ((byte, "name"), head("GET", HEALTH, [(b"X-" + byte + b"Name", "x")])),
                      ((byte, "method"), head(b"GE" + byte + b"T", HEALTH)),
                      ((byte, "request id"), head("GET", HEALTH, [("X-Request-ID", b"a" + byte)]))]
        for (byte, where), said in self.volley(cases):
            with self.subTest(repr(byte), where=where):
                # It is no error of the service, and the byte does not come back in a header.
                self.assertTrue(said == b"" or 200 <= int(said.split()[1]) < 500, said[:200])
                self.assertNotIn(byte, said.split(b"\r\n\r\n")[0])
        self.alive()

    def test_request_ids(self):
        """A decent one comes back; any other is replaced, and cannot forge a line of the log."""
        for given, kept in (("abc-1.2_3", True), ("x" * 64, True), ("x" * 65, False), ("a b", False), ('a"b', False),
                            ("a\tb", False), ("\u00e4".encode(), False), ("", False), ("a=b status=500", False)):
            with self.subTest(given):
                got = self.ask("GET", HEALTH, [("X-Request-ID", given)])
                self.assertEqual(got.header("X-Request-ID") == given, kept, got)
                self.assertRegex(got.header("X-Request-ID"), r"\A[A-Za-z0-9._-]{1,64}\Z")

    def test_the_log_cannot_be_forged(self):
        self.ask("GET", b"/%0atime=now\x7flevel=error%0d\x01 x".replace(b" ", b"\x1b"), [("X-Request-ID", "mark-1")])
        self.ask("GET", HEALTH, [("X-Request-ID", "mark-2")])
        self.a.wait_line("id=mark-1")
        self.a.wait_line("id=mark-2")
        line = [x for x in self.a.errors().splitlines() if "id=mark-1" in x]
        self.assertEqual(len(line), 1)
        self.assertRegex(line[0], r"\Atime=\S+ level=info [ -~]* path=/%0atime=now\?level=error%0d\?\?x status=404 ")

    def test_pipelining(self):
        """Answers come in order, each to its own request, good and bad ones mixed."""
        wanted, data = [], b""
        for i in range(120):
            target, status = ((HEALTH, 200), (BASE + "/nothing", 404), (BASE + "/runs/x/artifacts/../y", 400),
                              (BASE + "/runs", 401))[i % 4]
            wanted.append((status, "p%d" % i))
            data += head("GET", target, [("X-Request-ID", "p%d" % i)])
        with Raw(self.address) as c:
            c.send(data)
            got = [c.answer() for _ in wanted]
        self.assertEqual([(g.status, g.header("X-Request-ID")) for g in got], wanted)

    def test_pipelining_behind_a_body(self):
        body = b"[]"
        with Raw(self.address) as c:
            for _ in range(20):
                c.send(head("POST", BASE + "/runs", [*self.login, ("Content-Length", "2")]), body, head("GET", HEALTH))
            for _ in range(20):
                self.assertEqual((c.answer().status, c.answer().status), (422, 200))

    def test_byte_by_byte(self):
        data = head("POST", BASE + "/runs", [*self.login, ("Content-Length", "2")]) + b"[]"
        with Raw(self.address) as c:
            for i in range(len(data)):
                c.send(data[i:i + 1])
            self.assertEqual(c.answer().status, 422)

    def test_a_blank_line_in_front(self):
        got, _ = self.send(b"\r\n" + head("GET", HEALTH))
        self.assertEqual(got.status, 200)


# ---- bodies ----------------------------------------------------------------------------------------

class Bodies(BadCase):
    settings = {"api_body_timeout_sec": 5}

    BIG = b'{"command":["true"],"base_image":"host","name":"' + b"x" * (20 * MIB) + b'"}'

    def chunked(self, body, size=64 << 10):
        parts = [body[i:i + size] for i in range(0, len(body), size)]
        return b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in parts) + b"0\r\n\r\n"

    def too_large(self, *parts, timeout=20):
        """The answer is readable although the server may stop reading."""
        with Raw(self.address, timeout) as c:
            with contextlib.suppress(ConnectionError):
                for p in parts:
                    c.send(p)
            got = c.answer()
        self.assertEqual((got.status, got.code), (413, "spec_too_large"), got)
        self.assertEqual(got.json()["detail"], got.json()["error"]["message"])

    def test_20_mib(self):
        self.too_large(head("POST", BASE + "/runs", [*self.login, ("Content-Length", str(len(self.BIG)))]), self.BIG)
        self.assertEqual(self.rows(), 0)
        self.alive()

    def test_20_mib_in_chunks(self):
        self.too_large(head("POST", BASE + "/runs", [*self.login, ("Transfer-Encoding", "chunked")]), self.chunked(self.BIG))
        self.assertEqual(self.rows(), 0)
        self.alive()

    def test_exactly_16_mib(self):
        """What the language allows goes through; its own limits then speak."""
        body = b'{"command":["true"],"base_image":"host"'
        body += b" " * (16 * MIB - len(body) - 1) + b"}"
        got = self.post(body, target="/runs/check")
        self.assertTrue(got.json()["accepted"], got)
        self.too_large(head("POST", BASE + "/runs/check", [*self.login, ("Content-Length", str(len(body) + 1))]), body + b" ")

    def test_lengths_that_lie(self):
        """Too short a length cuts the body, and the rest is no request; a length beyond all numbers is
        no memory taken."""
        for length in ("1000000000000", str(2**63 - 1), str(2**63), str(2**64), "9" * 100):
            with self.subTest(length[:30]):
                with Raw(self.address) as c:
                    c.send(head("POST", BASE + "/runs", [*self.login, ("Content-Length", length)]))
                    said = c.rest()
                self.assertRegex(said[:40], rb"\AHTTP/1\.1 4(00|13) ")
        lengths = ("-1", "+4", "0x4", "4 4", "4,4", "four", "4.0", "", "4\t5", "\u0664".encode())
        for length, said in self.volley((n, head("POST", BASE + "/runs", [*self.login, ("Content-Length", n)]) + b"{}{}")
                                        for n in lengths):
            with self.subTest(length):
                self.assertRegex(said[:40], rb"\AHTTP/1\.1 4\d\d ")
                self.assertNotIn(b'"phase"', said)
        self.assertEqual(self.rows(), 0)

    def test_chunks_that_are_none(self):
        first = head("POST", BASE + "/runs", [*self.login, ("Transfer-Encoding", "chunked")])
        for name, said in self.volley((n, first + body) for n, body in badhttp.CHUNKS.items()):
            with self.subTest(name):
                # A size line that does not fit into its buffer, libmicrohttpd takes for a fault of ours.
                allowed = (400, 413, 422, 500) if name == "an extension without end" else (400, 413, 422)
                self.assertTrue(said == b"" or int(said.split()[1]) in allowed, said[:200])
                self.assertNotIn(b'"phase"', said)
        self.assertEqual(self.rows(), 0)

    def test_chunks_of_every_size(self):
        for size in (1, 7, 100, 4096):
            with self.subTest(size):
                with Raw(self.address) as c:
                    got = c.ask("POST", BASE + "/runs/check", [*self.login, ("Transfer-Encoding", "Chunked")],
                                body=self.chunked(HELLO, size))
                    self.assertTrue(got.json()["accepted"], got)
                    self.assertEqual(c.ask("GET", HEALTH).status, 200)

    def test_trailers(self):
        with Raw(self.address) as c:
            c.send(head("POST", BASE + "/runs/check", [*self.login, ("Transfer-Encoding", "chunked")]),
                   b"%x\r\n%s\r\n0\r\nX-API-KEY: other\r\nX-Trailer: 1\r\n\r\n" % (len(HELLO), HELLO),
                   head("GET", HEALTH))
            self.assertTrue(c.answer().json()["accepted"])
            self.assertEqual(c.answer().status, 200)

    def test_chunk_extensions(self):
        """They are skipped, or end the connection (libmicrohttpd 1.0 counts their line one byte too
        short). A request that hides in the trailer behind one is never answered."""
        hidden = b"GET %s?: HTTP/1.1\r\nHost: h\r\nX-Request-ID: hidden\r\n\r\n" % HEALTH.encode()
        first = head("POST", BASE + "/runs/check", [*self.login, ("Transfer-Encoding", "chunked")])
        for name, extension, last in (("data", b';a=b;c="d"', b"0\r\n\r\n"), ("last", b"", b"0;x\r\n\r\n"),
                                      ("trailer", b"", b"0;x\r\nX-Trailer: 1\r\n\r\n"), ("hidden", b"", b"0;x\r\n" + hidden)):
            with self.subTest(name):
                body = b"%x%s\r\n%s\r\n%s" % (len(HELLO), extension, HELLO, last)
                said = self.volley([(name, first + body + head("GET", HEALTH, [("X-Request-ID", "honest")]))])[0][1]
                if b'"accepted":true' in said:
                    self.assertIn(b"honest", said)
                else:
                    self.assertRegex(said, rb"\A(?!.)|\AHTTP/1\.1 400 ")
                    self.assertNotIn(b"honest", said)
                self.assertNotIn(b"hidden", said)

    def test_expect_is_accepted(self):
        with Raw(self.address) as c:
            c.send(head("POST", BASE + "/runs/check", [*self.login, ("Content-Length", str(len(HELLO))),
                                                       ("Expect", "100-continue")]))
            self.assertEqual(c.answer().status, 100)
            c.send(HELLO)
            self.assertTrue(c.answer().json()["accepted"])
            self.assertEqual(c.ask("GET", HEALTH).status, 200)

    def test_expect_is_accepted_and_nobody_waited(self):
        with Raw(self.address) as c:
            c.send(head("POST", BASE + "/runs/check", [*self.login, ("Content-Length", str(len(HELLO))),
                                                       ("Expect", "100-continue")]), HELLO)
            got = c.answer()
            got = c.answer() if got.status == 100 else got
            self.assertTrue(got.json()["accepted"])

    def test_expect_is_refused_without_the_body(self):
        """The answer comes before a byte of the body was asked for."""
        for target, login, length, status in (("/runs", [], 100, 401), ("/runs", self.login, 20 * MIB, 413),
                                              ("/nothing", self.login, 100, 404), ("/runs/a/../b", self.login, 100, 400)):
            with self.subTest(status):
                with Raw(self.address) as c:
                    c.send(head("POST", BASE + target, [*login, ("Content-Length", str(length)), ("Expect", "100-continue")]))
                    self.assertEqual(c.answer().status, status)
                    self.assertTrue(c.is_closed(), "what follows might be the body")

    def test_expect_something_else(self):
        got = self.post(HELLO, [("Expect", "200-ok")], "/runs/check")
        self.assertIn(got.status, (200, 417), got)

    def test_a_body_that_nobody_wants(self):
        """It is read away, so that the next request on the connection is understood."""
        for method, target, status in (("GET", HEALTH, 200), ("GET", BASE + "/nothing", 404), ("PUT", BASE + "/runs", 405),
                                       ("POST", BASE + "/runs", 401)):
            with self.subTest(target):
                with Raw(self.address) as c:
                    for _ in range(3):
                        got = c.ask(method, target, [("Content-Length", "1000")], body=b"GET / HTTP/1.1\r\n" + b"x" * 984)
                        self.assertEqual(got.status, status, got)

    def test_a_login_that_fails_is_told_before_20_mib_are_read(self):
        with Raw(self.address) as c:
            with contextlib.suppress(ConnectionError):
                c.send(head("POST", BASE + "/runs", [("X-API-KEY", "bad"), ("Content-Length", str(len(self.BIG)))]),
                       self.BIG)
            self.assertEqual(c.answer().status, 401)

    def test_who_reads_only_when_all_is_sent_gets_the_answer_too(self):
        """What is still under way is read away for a moment: the client sees no reset."""
        for login, status in (([("X-API-KEY", "bad")], 401), (self.login, 413)):
            with self.subTest(status):
                with Raw(self.address) as c:
                    c.send(head("POST", BASE + "/runs", [*login, ("Content-Length", str(20 * MIB))]))
                    for _ in range(12):
                        c.send(b" " * MIB)
                    self.assertEqual(c.answer().status, status)

    def test_a_post_without_a_body(self):
        got = self.ask("POST", BASE + "/runs", self.login)
        self.assertEqual((got.status, got.code), (422, "invalid_spec"))


if __name__ == "__main__":
    sbx.main()
