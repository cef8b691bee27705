# SPDX-License-Identifier: Apache-2.0
# run: limit=240
"""Sessions through both doors: each shows what the other has made, in the same bytes, and refuses the same."""
import errno
import json
import os
import sys
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import api  # noqa: E402
import doors  # noqa: E402
import imagekit  # noqa: E402
import sbx  # noqa: E402
import sessions  # noqa: E402

VALUES = {"spec_version": "1.0", "base_image": "host", "cpu_limit": 1.5, "memory_mb": 768, "timeout_sec": 77,
          "env": {"A": "b"}, "labels": {"ci": "17"}, "trust_level": "trusted", "persona_id": "p", "name": "a name"}


class Node:
    """A session on the mount: spec.json, status.json and the files of its workspace."""

    def __init__(self, mount, name):
        self.dir = os.path.join(mount.mnt, "sessions", name)

    def path(self, *names):
        return os.path.join(self.dir, *names)

    def read(self, *names):
        with open(self.path(*names), "rb") as f:
            return f.read()

    def write(self, data, *names):
        with open(self.path("workspace", *names), "wb") as f:
            f.write(data)

    def tree(self):
        top = self.path("workspace")
        return sorted(os.path.relpath(os.path.join(where, name), top)
                      for where, folders, files in os.walk(top) for name in folders + files)


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.p = doors.Pair()
        cls.p.start()
        cls.addClassCleanup(cls.p.close)
        cls.sessions = os.path.join(cls.p.m.mnt, "sessions")

    def by_mount(self, document):
        """The id; raises doors.Refused."""
        with open(os.path.join(self.sessions, "new"), "r+b", buffering=0) as f:
            try:
                f.write(doors.text_of(document))
            except OSError as e:
                raise doors.Refused(e.errno, json.loads(f.read(1 << 20))["error"]) from None
            return f.read(4096).decode().strip()

    def by_http(self, document):
        got = self.p.a.post("/sessions", document)
        if got.status != 200:
            raise doors.Refused(got.status, got.error)
        return got.json["id"]

    def http(self, session_id):
        return sessions.Session(self.p.a, session_id)

    def same(self, session_id, name=None):
        """Both show the same bytes."""
        node = Node(self.p.m, name or session_id)
        body = self.http(session_id).get().body
        doors.later(lambda: self.assertEqual(node.read("status.json"), body))
        return node, json.loads(body)


class Made(Case):
    def test_by_either_from_one_document(self):
        documents = []
        for make in (self.by_mount, self.by_http):
            node, doc = self.same(make(VALUES))
            self.assertEqual({k: doc[k] for k in VALUES}, VALUES)
            documents.append({k: v for k, v in doc.items() if k not in ("id", "created_at", "entry")})
            self.assertLessEqual({k: v for k, v in json.loads(node.read("spec.json")).items() if k in VALUES}.items(),
                                 VALUES.items())
        self.assertEqual(*documents)

    def test_by_mkdir(self):
        os.mkdir(os.path.join(self.sessions, "by-mkdir"))
        node = Node(self.p.m, "by-mkdir")
        session_id = json.loads(node.read("status.json"))["id"]
        _, doc = self.same(session_id, "by-mkdir")
        self.assertEqual((doc["entry"], doc["state"], doc["timeout_sec"]), ("by-mkdir", "active", 300))
        self.assertIn(session_id, [i["id"] for i in self.p.a.get("/sessions").json["items"]])

    def test_one_key_is_one_session(self):
        document = {"base_image": "host", "idempotency_key": "both"}
        one = self.by_mount(document)
        self.assertEqual(self.by_http(document), one)
        got = self.p.a.post("/sessions", {"base_image": "host"}, headers={"Idempotency-Key": "both"})
        self.assertEqual(got.json["id"], one)

    def test_a_key_of_a_session_that_is_gone(self):
        document = {"base_image": "host", "idempotency_key": "gone"}
        one = self.by_mount(document)
        self.assertEqual(self.http(one).delete().status, 200)
        errors = []
        for make, column in ((self.by_http, 0), (self.by_mount, 1)):
            with self.assertRaises(doors.Refused) as c:
                make(document)
            self.assertEqual((c.exception.code, c.exception.number),
                             ("session_not_found", doors.errors_table()["session_not_found"][column]))
            errors.append(c.exception.error)
        self.assertEqual(*errors)
        self.assertIn(one, errors[0]["message"])

    REFUSED = (
        ({"cpu_limit": -1}, "invalid_spec"), ({"timeout_sec": 0}, "invalid_spec"), ({"env": {"A": 1}}, "invalid_spec"),
        ({"runtime": "none"}, "invalid_spec"), ({"spec_version": "9"}, "invalid_spec_version"),
        ({"network_policy": "anything"}, "policy_unsupported"), ({"base_image": "host", "idempotency_key": "x" * 300}, "invalid_spec"),
        (b"no document", "invalid_spec"),
    )

    def test_refused_by_both_in_the_same_words(self):
        for document, code in self.REFUSED:
            with self.subTest(document):
                errors = []
                for make, column in ((self.by_http, 0), (self.by_mount, 1)):
                    with self.assertRaises(doors.Refused) as c:
                        make(document)
                    self.assertEqual((c.exception.code, c.exception.number), (code, doors.errors_table()[code][column]))
                    errors.append(c.exception.error)
                self.assertEqual(*errors)


class InSession(Case):
    def setUp(self):
        self.s = self.http(self.by_http({"base_image": "host"}))
        self.node, _ = self.same(self.s.id)


class Used(InSession):
    def test_files_through_both(self):
        self.s.put(("up.txt", b"uploaded"), ("d/deep.txt", b"deep"))
        self.assertEqual(self.node.read("workspace", "up.txt"), b"uploaded")
        self.assertEqual(self.node.read("workspace", "d", "deep.txt"), b"deep")
        self.node.write(b"written", "w.txt")
        self.assertEqual(self.s.sh("cat up.txt w.txt; echo made > m.txt; rm d/deep.txt"), b"uploadedwritten")
        doors.later(lambda: self.assertEqual(self.node.tree(), ["d", "m.txt", "up.txt", "w.txt"]))
        self.assertEqual(self.node.read("workspace", "m.txt"), b"made\n")

    def test_an_upload_over_a_file_that_the_mount_has_read(self):
        for data in (b"one", b"a longer two", b"3"):
            self.s.put(("f", data))
            doors.later(lambda: self.assertEqual(self.node.read("workspace", "f"), data))
            self.assertEqual(os.stat(self.node.path("workspace", "f")).st_size, len(data))

    def test_a_restore_is_seen(self):
        self.node.write(b"before", "state.txt")
        n = self.s.snapshot().json
        self.assertEqual(n["size_bytes"], 6)
        self.node.write(b"mutated", "state.txt")
        self.node.write(b"new", "new.txt")
        self.assertEqual(self.s.restore(n["snapshot_id"]).status, 200)
        doors.later(lambda: self.assertEqual((self.node.tree(), self.node.read("workspace", "state.txt")),
                                             (["state.txt"], b"before")))

    def test_a_snapshot_that_is_dropped_while_the_other_restores_it(self):
        """It is restored as a whole, or it was not there any more; its contents are collected afterwards."""
        for i in range(2000):
            with open(self.s.files("workspace", "f%d" % i), "w") as f:
                f.write("%s %d" % (self.s.id, i))
        for turn in range(6):
            os.mkdir(self.node.path("snapshots", "s"))
            answers = []
            restore = threading.Thread(target=lambda: answers.append(self.s.restore("s")))
            with api.watch(self.s.files(), api.IN_CREATE) as ring:
                restore.start()
                self.assertTrue(ring(20 * sbx.SLOW))  # the tree beside the workspace has been made
                os.rmdir(self.node.path("snapshots", "s"))
                restore.join()
            self.assertIn((answers[0].status, answers[0].code), ((200, None), (404, "snapshot_not_found")), answers)
            self.assertEqual(len(os.listdir(self.s.files("workspace"))), 2000)
        self.assertEqual(os.listdir(self.s.files()), ["workspace"])

    def test_a_clone_is_a_session_on_the_mount(self):
        self.node.write(b"content", "f")
        got = self.s.clone().json
        node, doc = self.same(got["session_id"])
        self.assertEqual((doc["cloned_from"], node.read("workspace", "f")), (self.s.id, b"content"))
        node.write(b"other", "f")
        self.assertEqual(self.node.read("workspace", "f"), b"content")

    def test_snapshots_by_name(self):
        os.mkdir(self.node.path("snapshots", "by-mount"))
        self.s.snapshot(name="by-http")
        self.assertEqual([i["name"] for i in self.s.snapshots()], ["by-http", "by-mount"])
        doors.later(lambda: self.assertEqual(sorted(os.listdir(self.node.path("snapshots"))), ["by-http", "by-mount"]))
        self.assertEqual(self.s.snapshot(name="by-mount").code, "entry_exists")
        with self.assertRaises(OSError) as c:
            os.mkdir(self.node.path("snapshots", "by-http"))
        self.assertEqual(c.exception.errno, errno.EEXIST)
        os.rmdir(self.node.path("snapshots", "by-http"))
        self.assertEqual([i["name"] for i in self.s.snapshots()], ["by-mount"])


class Tars(InSession):
    def test_out_of_one_and_into_the_other(self):
        self.node.write(b"content", "f")
        os.mkdir(self.node.path("snapshots", "s"))
        by_mount = self.node.read("snapshots", "s", "export.tar")
        got = self.s.ask("GET", "/snapshots/s/export")
        self.assertEqual((got.status, got.body), (200, by_mount))
        other = self.http(self.by_http({"base_image": "host"}))
        self.assertEqual(other.ask("POST", "/snapshots?name=from-mount", by_mount).status, 200)
        with open(os.path.join(self.p.m.mnt, "sessions", other.id, "snapshots", "from-http.tar"), "xb") as f:
            f.write(got.body)
        self.assertEqual([i["name"] for i in other.snapshots()], ["from-http", "from-mount"])
        self.assertEqual(len({i["size_bytes"] for i in other.snapshots()}), 1)

    def test_refused_by_both_in_the_same_words(self):
        for data in (b"no tar", imagekit.tar(lambda t: imagekit.member(t, "../x", b"1"))):
            over_http = self.s.ask("POST", "/snapshots?name=x", data)
            with self.assertRaises(OSError) as c, open(self.node.path("snapshots", "x.tar"), "xb") as f:
                f.write(data)
            self.assertEqual(json.loads(self.node.read("snapshots", "x.error"))["error"], over_http.error)
            self.assertEqual(doors.errors_table()[over_http.code], (over_http.status, c.exception.errno))

    def test_a_longer_life(self):
        self.assertEqual(self.s.ask("PATCH", "", {"expires_in_sec": 1000}).status, 200)
        _, doc = self.same(self.s.id)
        self.assertIsNotNone(doc["expires_at"])
        with open(self.node.path("ctl"), "wb", buffering=0) as f:
            f.write(b"extend 0")
        self.assertIsNone(self.same(self.s.id)[1]["expires_at"])
        got = self.s.ask("PATCH", "", {"expires_in_sec": -1})
        with self.assertRaises(OSError) as c, open(self.node.path("ctl"), "wb", buffering=0) as f:
            f.write(b"extend -1")
        self.assertEqual(doors.errors_table()[got.code], (got.status, c.exception.errno))


@unittest.skipUnless(imagekit.BUSYBOX, "busybox is not installed")
class Images(Case):
    def test_what_one_takes_in_the_other_shows(self):
        data = imagekit.tar(imagekit.base)
        where = os.path.join(self.p.m.mnt, "images")
        put = self.p.a.request("PUT", "/admin/images/by-http", data)
        self.assertEqual(put.status, 200, put)
        with open(os.path.join(where, "by-mount.tar"), "xb") as f:
            f.write(data)
        self.assertEqual(sorted(os.listdir(where)), ["by-http", "by-mount"])
        for name in os.listdir(where):
            with open(os.path.join(where, name, "info.json"), "rb") as f:
                self.assertEqual(f.read(), self.p.a.get("/admin/images/" + name).body)
        os.rmdir(os.path.join(where, "by-http"))
        self.assertEqual([i["name"] for i in self.p.a.get("/admin/images").json["items"]], ["by-mount"])
        self.assertEqual(self.p.a.request("DELETE", "/admin/images/by-mount").status, 200)
        self.assertEqual(os.listdir(where), [])

    def test_refused_by_both_in_the_same_words(self):
        data = imagekit.tar(imagekit.base)[:30000]
        over_http = self.p.a.request("PUT", "/admin/images/bad", data)
        path = os.path.join(self.p.m.mnt, "images", "bad")
        with self.assertRaises(OSError) as c, open(path + ".tar", "xb") as f:
            f.write(data)
        with open(path + ".error") as f:
            self.assertEqual(json.load(f)["error"], over_http.error)
        self.assertEqual(doors.errors_table()[over_http.code], (over_http.status, c.exception.errno))
        os.unlink(path + ".error")


class Gone(Case):
    def test_through_http(self):
        s = self.http(self.by_mount({"base_image": "host"}))
        node, _ = self.same(s.id)
        node.write(b"x", "f")
        run = s.run("sleep", "100")
        self.assertEqual(s.delete().json, {"ok": True})
        doors.later(lambda: self.assertFalse(os.path.lexists(node.dir)))
        self.assertEqual(self.p.mount.status(run.id)["phase"], "killed")

    def test_through_the_mount(self):
        s = self.http(self.by_http({"base_image": "host"}))
        node, _ = self.same(s.id)
        run = s.run("sleep", "100")
        with open(node.path("ctl"), "wb", buffering=0) as f:
            f.write(b"destroy")
        self.p.a.until(lambda: s.get().status == 404)
        self.assertEqual(run.get()["phase"], "killed")
        self.assertFalse(os.path.lexists(node.dir))


if __name__ == "__main__":
    sbx.main()
