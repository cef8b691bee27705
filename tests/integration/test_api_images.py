#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# run: limit=240
"""The routes of images: a tar that is sent becomes an image that runs use, or nothing at all."""
import gzip
import os
import signal
import socket
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import api  # noqa: E402
import sbx  # noqa: E402
from imagekit import BUSYBOX, base, held, member, oci, second, sha, tar  # noqa: E402

IN_OPEN = 0x20
ADMIN = api.user("boss", role="admin")


@unittest.skipUnless(BUSYBOX, "busybox is not installed")
class Case(unittest.TestCase):
    settings = {**api.USERS, "image_max_mb": 8}

    @classmethod
    def setUpClass(cls):
        cls.a = api.Apid(settings=cls.settings)
        cls.addClassCleanup(cls.a.close)
        cls.a.start()

    def tearDown(self):
        for item in self.list():
            self.unused(item["name"])
            self.ask("DELETE", item["name"])
        self.assertEqual(sorted(self.left()), [".lock"] if self.left() else [])

    def unused(self, name):
        """A runner lets go of it a moment after its run has ended."""
        with held(os.path.join(self.dir(), name)):
            pass

    def dir(self):
        return os.path.join(self.a.state, "images")

    def left(self):
        return os.listdir(self.dir()) if os.path.isdir(self.dir()) else []

    def ask(self, method, name, body=None, login=ADMIN, **kw):
        return self.a.request(method, "/admin/images/" + name, body, login=login, **kw)

    def list(self):
        got = self.a.get("/admin/images", login=ADMIN)
        self.assertEqual(got.status, 200, got)
        return got.json["items"]

    def refused(self, got, status, code):
        self.assertEqual((got.status, got.code), (status, code), got)
        return got.error["message"]


class Images(Case):
    def test_a_root_is_sent_and_used(self):
        data = gzip.compress(tar(base), 1)
        got = self.ask("PUT", "small:1.0", data)
        self.assertEqual(got.status, 200, got)
        doc = got.json
        self.assertEqual({k: doc[k] for k in ("name", "digest", "source", "layers", "file_bytes")},
                         {"name": "small:1.0", "digest": sha(data), "source": "root", "layers": 0,
                          "file_bytes": len(data)})
        self.assertGreater(doc["size_bytes"], os.path.getsize(BUSYBOX))
        self.assertEqual(self.ask("GET", "small:1.0").json, doc)
        self.assertEqual(self.list(), [doc])
        run = self.a.sh("cat /etc/version", login=ADMIN, base_image="small:1.0")
        self.assertEqual((run.wait()["phase"], run.get()["image_digest"]), ("completed", doc["digest"]))

    def test_the_same_bytes_twice_are_one_image(self):
        data = tar(base)
        one = self.ask("PUT", "one", data).json
        two = self.ask("PUT", "two", data).json
        self.assertEqual(one["digest"], two["digest"])
        self.assertEqual(one, self.ask("PUT", "one", data).json)
        self.assertEqual(len([n for n in self.left() if n.startswith("sha256-")]), 1)
        self.assertEqual(self.ask("DELETE", "one").json, {"ok": True, "name": "one"})
        self.assertEqual([i["name"] for i in self.list()], ["two"])

    def test_layers_and_another_image_of_the_name(self):
        data, config = oci([tar(base), tar(second)])
        self.ask("PUT", "x", tar(base))
        got = self.ask("PUT", "x", data).json
        self.assertEqual((got["digest"], got["source"], got["layers"]), (config, "layers", 2))
        self.assertEqual(len(self.list()), 1)

    def test_while_a_run_uses_it_it_stays(self):
        self.ask("PUT", "busy", tar(base))
        run = self.a.sh("sleep 100", login=ADMIN, base_image="busy")
        run.wait_phase("running")
        self.assertIn("used by a run", self.refused(self.ask("DELETE", "busy"), 409, "image_in_use"))
        self.assertEqual([i["name"] for i in self.list()], ["busy"])
        run.cancel()
        run.wait()
        self.unused("busy")
        self.assertEqual(self.ask("DELETE", "busy").status, 200)

    def test_directories_of_the_operator(self):
        os.makedirs(os.path.join(self.dir(), "own", "etc"))
        doc = self.ask("GET", "own").json
        self.assertEqual((doc["digest"], doc["source"], doc["size_bytes"]), (None, "directory", None))
        self.refused(self.ask("DELETE", "own"), 403, "forbidden")
        self.refused(self.ask("PUT", "own", tar(base)), 400, "invalid_argument")
        os.rmdir(os.path.join(self.dir(), "own", "etc"))
        os.rmdir(os.path.join(self.dir(), "own"))

    def test_only_for_administrators(self):
        for method, path in (("GET", ""), ("GET", "/x"), ("PUT", "/x"), ("DELETE", "/x")):
            body = tar(base) if method == "PUT" else None
            for login, status in ((api.user("alice"), 403), (api.NOBODY, 401)):
                got = self.a.request(method, "/admin/images" + path, body, login=login)
                self.assertEqual(got.status, status, got)
        self.assertEqual(self.list(), [])


class Hostile(Case):
    def test_what_is_refused_leaves_nothing(self):
        whole = tar(base)
        rows = ((b"", "empty"), (b"no tar at all", "format"), (whole[:len(whole) // 2], "Truncated"),
                (tar(lambda t: member(t, "../e", b"x")), "'..'"),
                (tar(lambda t: (base(t), member(t, "h", kind=b"1", link="/../../etc/passwd"))), "hard link"),
                (oci([tar(base)])[0][:-20000], ""))
        for body, why in rows:
            with self.subTest(why):
                got = self.ask("PUT", "bad", body)
                self.assertEqual((got.status, got.code), (400, "invalid_argument"), got)
                self.assertIn(why, got.error["message"])
                self.assertLessEqual(set(self.left()), {".lock"})

    def test_names(self):
        for name in ("host", "sha256:" + 64 * "0", ".lock", "-x", "x" * 129, "a%2fb", "..%2fx"):
            with self.subTest(name):
                got = self.ask("PUT", name, tar(base))
                self.assertIn(got.status, (400, 404), got)
        for name in ("none", ".lock", "..%2fruns", "%2e%2e"):
            self.assertEqual(self.ask("GET", name).status, 404)
            self.assertEqual(self.ask("DELETE", name).status, 404)
        self.assertEqual(self.list(), [])

    def begin(self, name, length):
        """A request whose body is still to come."""
        s = socket.create_connection(("127.0.0.1", self.a.port), timeout=20 * sbx.SLOW)
        head = "".join("%s: %s\r\n" % h for h in ADMIN.headers.items())
        s.sendall(("PUT %s/admin/images/%s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n" %
                   (api.BASE, name, head, length)).encode())
        return s

    def test_too_large(self):
        with self.begin("big", (8 << 20) + 1) as s:  # before a byte of it is sent
            self.assertIn(b" 413 ", s.recv(1 << 16).split(b"\r\n")[0])
        chunk = b"x" * (1 << 20)
        self.refused(self.ask("PUT", "big", iter([chunk] * 8 + [b"x"])), 413, "spec_too_large")
        self.assertLessEqual(set(self.left()), {".lock"})

    def test_a_client_that_goes_away(self):
        with self.begin("half", 100000) as s:
            s.sendall(tar(base)[:50000])
        self.a.wait_line(r"method=PUT path=\S+half")
        self.assertEqual(self.list(), [])
        self.assertLessEqual(set(self.left()), {".lock"})


class Stopped(unittest.TestCase):
    def test_a_service_that_stops_ends_an_import(self):
        """Somebody else imports, so that ours waits: it is ended, its client is told, nothing is left."""
        with api.Apid() as a:
            a.request("PUT", "/admin/images/first", tar(base))
            where = os.path.join(a.state, "images")
            lock = os.path.join(where, ".lock")
            with held(lock), api.watch(lock, IN_OPEN) as ring:
                with socket.create_connection(("127.0.0.1", a.port)) as s:
                    body = tar(base)
                    head = "".join("%s: %s\r\n" % h for h in api.KEY.headers.items())
                    s.sendall(("PUT %s/admin/images/x HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n" %
                               (api.BASE, head, len(body))).encode() + body)
                    self.assertTrue(ring(20 * sbx.SLOW))
                    a.proc.send_signal(signal.SIGTERM)
                    self.assertIn(b" 503 ", s.recv(1 << 16).split(b"\r\n")[0])
                a.proc.wait(20 * sbx.SLOW)
            self.assertEqual([n for n in os.listdir(where) if "import" in n], [])


if __name__ == "__main__":
    sbx.main()
