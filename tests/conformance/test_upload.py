# SPDX-License-Identifier: Apache-2.0
"""Files into a session: plain ones and archives, names that climb out, limits, and what happens to the session
meanwhile."""
import hashlib
import os
import shutil
import tarfile
import tempfile
import zipfile

import conf
import sessions
from sessions import Session

MIB = 1 << 20


class Uploads(conf.Case):
    def setUp(self):
        self.s = Session.make(self.a)

    def sent(self, *files, count, size=None):
        got = self.s.upload(*files)
        self.assertEqual((got.status, got.json["session_id"]), (200, self.s.id), got)
        self.assertEqual(got.json["file_count"], count, got)
        if size is not None:
            self.assertEqual(got.json["bytes_received"], size, got)
        return got.json

    def test_T070_a_file(self):
        self.sent(("hello.txt", b"hello"), count=1, size=5)

    def test_T071_a_run_sees_it(self):
        self.sent(("hello.txt", b"hello world"), count=1, size=11)
        self.assertEqual(self.s.sh("cat hello.txt"), b"hello world")
        self.assertEqual(self.s.read("hello.txt"), b"hello world")

    def test_T072_an_archive(self):
        self.sent(("archive.tar.gz", sessions.tar(("safe.txt", b"content"))), count=1, size=7)
        self.assertEqual(self.s.read("safe.txt"), b"content")
        self.assertEqual(self.s.tree(), ["safe.txt"])

    def outside(self):
        """What is beside the workspace, and beside the session."""
        return sorted(os.listdir(self.s.files())), sorted(os.listdir(os.path.dirname(self.s.files())))

    def skipped(self, *names):
        before = self.outside()
        for name in names:
            with self.subTest(name):
                doc = self.sent((name, b"evil"), count=0, size=0)
                self.assertEqual(doc["skipped_count"], 1)
                self.assertEqual(self.s.tree(), [])
                self.assertEqual(self.outside(), before)

    def test_T076_a_name_that_climbs(self):
        self.skipped("../../../etc/passwd")

    def test_T077_an_absolute_name(self):
        self.skipped("/etc/passwd")

    def test_T078_an_archive_that_climbs(self):
        evil = "/tmp/evil-%s.txt" % self.s.id
        self.sent(("archive.tar.gz", sessions.tar(("safe.txt", b"s"), ("../../.." + evil, b"evil"))), count=1)
        self.assertEqual(self.s.tree(), ["safe.txt"])
        self.assertFalse(os.path.exists(evil))

    def test_T079_an_archive_with_a_link(self):
        link = sessions.special("evil_link", tarfile.SYMTYPE, "/etc/passwd")
        self.sent(("archive.tar.gz", sessions.tar(("safe.txt", b"s"), link)), count=1)
        self.assertEqual(self.s.tree(), ["safe.txt"])

    def test_T080_a_zip_that_climbs(self):
        evil = "/tmp/evil-%s.txt" % self.s.id
        self.sent(("archive.zip", sessions.zipped(("safe.txt", b"s"), ("../../.." + evil, b"evil"))), count=1)
        self.assertEqual(self.s.tree(), ["safe.txt"])
        self.assertFalse(os.path.exists(evil))

    def test_T082_more_names_that_climb(self):
        self.skipped("../secret.txt", "foo/../../../secret.txt", "foo/bar/../../../../../../etc/passwd", "./../secret.txt")

    def test_T083_a_backslash(self):
        before = self.outside()
        got = self.s.upload(("..\\secret.txt", b"x"))
        self.assertEqual(got.status, 200, got)
        self.assertEqual(self.s.tree(), ["..\\secret.txt"] if got.json["file_count"] else [])
        self.assertEqual(self.outside(), before)

    def test_T085_a_link_in_the_workspace(self):
        there = tempfile.mkdtemp(prefix="sbx-test-")
        self.addCleanup(shutil.rmtree, there)
        os.chmod(there, 0o777)
        self.s.sh("ln -s %s escape" % there)
        self.sent(("escape/secret.txt", b"x"), count=0)
        self.assertEqual(os.listdir(there), [])
        self.assertTrue(os.path.islink(self.s.workspace("escape")))

    def test_T086_no_name_is_reserved(self):
        self.sent((".sandbox-upload.lock", b"legacy lock payload"), count=1)
        self.assertEqual(self.s.read(".sandbox-upload.lock"), b"legacy lock payload")

    def test_T087_a_snapshot_waits_for_it(self):
        body = sessions.form(("slow.txt", b"s" * 1000))
        arrivals = sessions.Arrivals(self.a)
        with sessions.Slow(self.s, len(body)) as slow:
            slow.send(body[:500])
            shot = sessions.Asked(self.s.snapshot)
            arrivals.wait(2)
            self.assertTrue(shot.is_open())
            self.assertEqual(self.a.sql("SELECT count(*) FROM snapshots WHERE session_id=?", self.s.id), [(0,)])
            got = slow.send(body[500:]).answer()
        self.assertEqual((got.status, got.json()["file_count"]), (200, 1), got)
        got = shot.wait()
        self.assertEqual((got.status, got.json["size_bytes"]), (200, 1000), got)


class Capped(conf.Case):
    settings = {"workspace_cap_mb": 1}

    def test_T074_more_than_fits(self):
        s = Session.make(self.a)
        s.put(("first.bin", b"1" * 716800))
        before = sorted(os.listdir(s.files()))
        got = s.upload(("second.bin", b"2" * 716800))
        self.refused(got, 413, "workspace_cap_exceeded")
        self.assertEqual(got.json["detail"], "workspace_cap_exceeded")
        self.assertEqual(s.tree(), ["first.bin"])
        self.assertEqual(s.read("first.bin"), b"1" * 716800)
        # What was staged goes when the answer has gone.
        sessions.again(lambda: sorted(os.listdir(s.files())) == before, "something is left")


class Ending(conf.Alone):
    """A session that is being deleted, and cannot go yet."""

    def meanwhile(self, first, second):
        s = Session.make(first)
        run = s.run("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done", timeout_sec=60)
        with first.stream(run) as ws:
            ws.until(lambda f: f["type"] == "stdout")
            gone = sessions.Asked(s.delete)
            first.until(lambda: s.get().json["state"] == "ending")
            got = s.through(second).upload(("late.txt", b"late"))
            self.refused(got, 404, "session_not_found")
            self.assertEqual(s.tree(), [])
            self.assertTrue(gone.is_open())
        got = gone.wait()
        self.assertEqual((got.status, got.json), (200, {"ok": True}), got)
        self.assertFalse(os.path.exists(s.files()))
        self.refused(s.through(second).upload(("late.txt", b"late")), 404, "session_not_found")
        self.assertFalse(os.path.exists(s.files()))

    def test_T089_it_takes_nothing_any_more(self):
        with conf.two({"cancel_grace_seconds": 3}) as (p1, p2):
            self.meanwhile(p1, p1)
            self.meanwhile(p1, p2)

    def test_T090_gone_by_another_server(self):
        # No server remembers a path: each request asks the store, and one that cannot is refused.
        with conf.two() as (p1, p2):
            s = Session.make(p1)
            s.put(("a", b"a"))
            self.assertEqual(s.through(p2).delete().json, {"ok": True})
            self.refused(s.upload(("b", b"b")), 404, "session_not_found")
            self.assertFalse(os.path.exists(s.files()))


class Large(conf.Case):
    settings = {"workspace_cap_mb": 512, "tier_standard_workspace_cap_mb": 512, "max_upload_mb": 256}
    SIZE = 200 * MIB

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.base = tempfile.mkdtemp(prefix="sbx-test-")
        cls.addClassCleanup(shutil.rmtree, cls.base)
        cls.plain = os.path.join(cls.base, "big.bin")
        block, h = os.urandom(MIB), hashlib.sha256()
        with open(cls.plain, "wb") as f:  # no hole, and not easy to pack
            for i in range(cls.SIZE // MIB):
                piece = bytes([i]) + block[1:]
                h.update(piece)
                f.write(piece)
        cls.digest = h.hexdigest()

    def peak(self):
        with open("/proc/%d/status" % self.a.proc.pid) as f:
            return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmHWM"))

    def arrives(self, name, path):
        """The content is intact, and nobody held it in memory."""
        s = Session.make(self.a)
        s.put(("warm", b"x"))
        with open("/proc/%d/clear_refs" % self.a.proc.pid, "w") as f:
            f.write("5")
        before = self.peak()
        head = b"--" + sessions.BOUNDARY.encode() + (
            b'\r\nContent-Disposition: form-data; name="files"; filename="%s"\r\n\r\n' % name.encode())
        tail = b"\r\n" + sessions.end()

        def body():
            yield head
            with open(path, "rb") as f:
                while piece := f.read(MIB):
                    yield piece
            yield tail

        size = len(head) + os.path.getsize(path) + len(tail)
        got = self.a.request("POST", s.path("/files"), body(), timeout=120, headers={
            "Content-Type": sessions.form_type(), "Content-Length": str(size)})
        self.assertEqual((got.status, got.json["file_count"], got.json["bytes_received"]), (200, 1, self.SIZE), got)
        h = hashlib.sha256()
        with open(s.workspace("big.bin"), "rb") as f:
            while piece := f.read(MIB):
                h.update(piece)
        self.assertEqual(h.hexdigest(), self.digest)
        self.assertLess(self.peak() - before, 32 * MIB)
        self.assertEqual(s.delete().status, 200)

    def test_T091_of_200_MiB(self):
        self.arrives("big.bin", self.plain)
        packed = os.path.join(self.base, "a.tar.gz")
        with tarfile.open(packed, "w:gz", compresslevel=1) as t:
            t.add(self.plain, "big.bin")
        self.arrives("a.tar.gz", packed)
        os.unlink(packed)
        packed = os.path.join(self.base, "a.zip")
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as z:
            z.write(self.plain, "big.bin")
        self.arrives("a.zip", packed)


if __name__ == "__main__":
    conf.main()
