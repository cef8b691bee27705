# SPDX-License-Identifier: Apache-2.0
"""Files that the kernel reads by itself, where it and libfuse can, and the rules that hold in any case: what is
read is what is there, and the limit of a workspace is counted at each write."""
import errno
import hashlib
import mmap
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import fskit  # noqa: E402
import sbx  # noqa: E402
import workkit  # noqa: E402

MIB = 1 << 20


class Case(workkit.WorkCase):
    settings = {"tier_standard_workspace_cap_mb": "8", "workspace_cap_mb": "8"}



class Read(Case):
    """The same with and without."""

    def same(self, path, data):
        size = len(data)
        with open(path, "rb") as f:
            self.assertEqual(os.fstat(f.fileno()).st_size, size)
            self.assertEqual(hashlib.sha256(f.read()).digest(), hashlib.sha256(data).digest())
            self.assertEqual(os.pread(f.fileno(), 100, size - 50), data[-50:])
            self.assertEqual(os.pread(f.fileno(), 10, size), b"")
            with mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
                self.assertEqual(m[12345:12399], data[12345:12399])
        out = subprocess.run(["sh", "-c", 'cat "$1"; cp "$1" "$2"; cmp "$1" "$2"', "sh", path,
                              os.path.join(self.m.base, "copy")], check=True, stdout=subprocess.PIPE).stdout
        self.assertEqual(out, data)

    def test_artifact(self):
        run = self.m.run({"command": ["sh", "-c", "head -c 3000001 /dev/urandom > big"], "capture_patterns": ["big"]})
        with open(os.path.join(self.m.state, "runs", run.id, "artifacts", "big"), "rb") as f:
            self.same(run.path("artifacts", "big"), f.read())

    def test_file_of_a_snapshot(self):
        data = os.urandom(3000001)
        self.s.write("d/big", data)
        os.mkdir(os.path.join(self.s.dir, "snapshots", "one"))
        self.s.write("d/big", b"other")
        self.same(os.path.join(self.s.dir, "snapshots/one/tree/d/big"), data)

    def test_file_of_a_workspace(self):
        data = os.urandom(3000001)
        self.s.write("big", data)
        self.same(self.path("big"), data)

    def test_program(self):
        self.s.shell("cp /bin/echo .; ./echo hello > out; cat out")
        self.assertEqual(self.s.read("out"), b"hello\n")


class Mixed(Case):
    """Readers and writers of one file at a time."""

    def test_reader_then_writer(self):
        self.s.write("f", b"a" * 10000)
        with open(self.path("f"), "rb", buffering=0) as r, open(self.path("f"), "r+b", buffering=0) as w:
            self.assertEqual(r.read(5), b"aaaaa")
            w.write(b"b" * 20000)
            self.assertEqual(os.pread(r.fileno(), 5, 15000), b"bbbbb")
            self.assertEqual(os.fstat(r.fileno()).st_size, 20000)
            self.assertEqual(os.pread(w.fileno(), 5, 0), b"bbbbb")
            w.truncate(3)
            self.assertEqual(os.pread(r.fileno(), 10, 0), b"bbb")
        self.assertEqual(self.s.read("f"), b"bbb")

    def test_writer_then_reader(self):
        with open(self.path("f"), "w+b", buffering=0) as w:
            w.write(b"one")
            with open(self.path("f"), "rb", buffering=0) as r:
                self.assertEqual(r.read(), b"one")
                w.write(b"two")
                self.assertEqual(r.read(), b"two")
        self.assertEqual(self.s.read("f"), b"onetwo")

    def test_mapping_that_is_written(self):
        self.s.write("f", b"a" * 8192)
        for readers in (0, 1):
            with self.subTest(readers=readers):
                held = [open(self.path("f"), "rb") for _ in range(readers)]
                before = os.stat(self.path("f")).st_mtime_ns
                with open(self.path("f"), "r+b") as w, mmap.mmap(w.fileno(), 0) as m:
                    m[4096:4100] = b"wxyz" if readers else b"stuv"
                    m.flush()
                for f in held:
                    f.close()
                self.assertEqual(self.s.read("f")[4096:4100], b"wxyz" if readers else b"stuv")
                with open(self.s.disk("f"), "rb") as f:
                    self.assertEqual(f.read()[4096:4100], b"wxyz" if readers else b"stuv")
                self.assertGreaterEqual(os.stat(self.path("f")).st_mtime_ns, before)

    def test_many_at_once(self):
        self.s.write("f", b"x" * 4096)
        script = 'for i in 1 2 3 4 5 6 7 8 9 10; do cat f > /dev/null; printf y | dd of=f conv=notrunc status=none; done'
        procs = [subprocess.Popen(["sh", "-ec", script], cwd=self.s.work) for _ in range(8)]
        self.assertEqual([p.wait(60 * sbx.SLOW) for p in procs], [0] * 8)
        self.assertEqual(self.s.read("f"), b"y" + b"x" * 4095)

    def test_the_limit_holds_for_those_who_write_beside_readers(self):
        self.s.write("f", b"x")
        with open(self.path("f"), "rb") as r, open(self.path("f"), "r+b", buffering=0) as w:
            self.assertEqual(r.read(), b"x")
            with self.assertRaises(OSError) as c:
                for _ in range(20):
                    w.write(b"z" * MIB)
            self.assertEqual(c.exception.errno, errno.ENOSPC)
            self.assertLessEqual(os.fstat(r.fileno()).st_size, 8 * MIB)

    def test_a_run_that_writes_what_is_open(self):
        self.s.write("f", b"before")
        with open(self.path("f"), "rb", buffering=0) as r:
            self.assertEqual(r.read(), b"before")
            self.assertEqual(self.s.run("printf 'after and longer' > f"), "0")
            self.assertEqual(os.pread(r.fileno(), 100, 0), b"after and longer")


class Through(Case):
    """Only where there is passthrough."""

    def requests(self, fn):
        m = self.m
        start = os.path.getsize(m.log_path)
        fn()
        os.statvfs(m.mnt)
        with open(m.log_path, errors="replace") as f:
            f.seek(start)
            return f.read()

    @classmethod
    def setUpClass(cls):
        class Told(sbx.Mount):
            def args(self):
                first, *rest = super().args()
                return [first, "-d", *rest]
        cls.m = Told(settings=cls.settings)
        cls.m.start()
        cls.addClassCleanup(cls.m.close)

    def setUp(self):
        super().setUp()
        with fskit.Inotify() as ino:
            ino.add(self.m.log_path, fskit.Inotify.MODIFY)
            while "passthrough=" not in self.m.errors():
                self.assertTrue(fskit.readable(ino.fd, 20 * sbx.SLOW))
                ino.read()
        if "passthrough=yes" not in self.m.errors():
            self.skipTest("this kernel, libfuse or user has no passthrough")

    def test_nothing_is_asked_when_it_is_read(self):
        self.s.write("f", os.urandom(MIB))
        text = self.requests(lambda: self.s.read("f"))
        self.assertIn("opcode: OPEN ", text)
        self.assertNotIn("opcode: READ ", text)

    def test_a_mapping_shows_what_a_run_writes(self):
        self.s.write("f", b"before")
        with open(self.path("f"), "rb") as r, mmap.mmap(r.fileno(), 0, prot=mmap.PROT_READ) as m:
            self.assertEqual(m[:6], b"before")
            self.assertEqual(self.s.run("printf after1 | dd of=f conv=notrunc status=none"), "0")
            self.assertEqual(m[:6], b"after1")


if __name__ == "__main__":
    sbx.main()
