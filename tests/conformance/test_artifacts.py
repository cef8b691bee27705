# SPDX-License-Identifier: Apache-2.0
"""Files that were captured: the list, downloads, ranges, and paths that try to lead elsewhere."""
import contextlib
import os
import shutil
import tempfile
import time

import conf

DIGITS = {"command": ["sh", "-c", "printf 0123456789 > out.txt"], "timeout_sec": 5, "capture_patterns": ["out.txt"]}


def resident(pid):
    with open("/proc/%d/statm" % pid) as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Downloads(conf.Case):
    settings = {"max_artifact_file_bytes": 300 << 20, "max_artifact_total_bytes": 300 << 20}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.digits = cls.a.run(DIGITS)
        cls.digits.wait()

    def made(self, script, patterns):
        run = self.a.sh(script, capture_patterns=patterns)
        self.ended(run)
        return run

    def test_T205_list_and_download(self):
        run = self.made(r"printf 'hello world' > results.txt; printf '\000\001\002\003\004' > data.bin", ["*"])
        a = self.a.get("/runs/%s/artifacts" % run.id)
        self.assertEqual(a.status, 200)
        self.assertEqual({i["path"] for i in a.json["items"]}, {"results.txt", "data.bin"})
        a = run.artifact("results.txt")
        self.assertEqual((a.status, a.body), (200, b"hello world"))
        self.assertEqual(run.artifact("data.bin").body, bytes(range(5)))

    def test_T206_paths_and_sizes(self):
        run = self.made("mkdir nested; printf hello > nested/out.txt; printf ok > summary.txt", ["*"])
        self.assertEqual(run.artifacts(), {"nested/out.txt": 5, "summary.txt": 2})

    def test_T207_type_of_text(self):
        run = self.made("printf 'hello world' > out.txt", ["out.txt"])
        a = run.artifact("out.txt")
        self.assertEqual((a.status, a.body), (200, b"hello world"))
        self.assertTrue(a.headers["Content-Type"].startswith("text/plain"), a.headers)

    def test_T208_a_range(self):
        a = self.digits.artifact("out.txt", Range="bytes=0-4")
        self.assertEqual((a.status, a.body), (206, b"01234"))
        self.assertEqual((a.headers["Content-Range"], a.headers["Accept-Ranges"], a.headers["Content-Length"]),
                         ("bytes 0-4/10", "bytes", "5"))

    def unsatisfiable(self, text):
        a = self.digits.artifact("out.txt", Range=text)
        self.assertEqual((a.status, a.body), (416, b""))
        self.assertEqual(a.headers["Content-Range"], "bytes */10")

    def test_T210_two_ranges(self):
        self.unsatisfiable("bytes=0-1,3-4")

    def test_T211_a_range_that_ends_before_it_begins(self):
        self.unsatisfiable("bytes=7-5")

    def test_T213_a_range_of_a_large_file(self):
        size = 200 << 20
        run = self.made("printf 01234 > big.bin; truncate -s %d big.bin" % size, ["big.bin"])
        self.assertEqual(run.artifact("big.bin", Range="bytes=0-4").body, b"01234")  # warm
        before, began = resident(self.a.proc.pid), time.monotonic()
        a = run.artifact("big.bin", Range="bytes=0-4")
        took = time.monotonic() - began
        self.assertEqual((a.status, a.body), (206, b"01234"))
        self.assertEqual(a.headers["Content-Range"], "bytes 0-4/%d" % size)
        self.assertLess(resident(self.a.proc.pid) - before, size // 20)
        self.assertLess(took, 2 * conf.sbx.SLOW)

    def climbs(self, path):
        a = self.digits.artifact(path)
        self.assertEqual(a.status, 400, a)
        self.assertIn(a.json["detail"], ("invalid_path", "Path traversal detected"))
        self.assertEqual(a.code, "invalid_path")

    def test_T214_encoded_dots(self):
        self.climbs("%2E%2E/secret.txt")

    def test_T215_dots_that_were_encoded_twice(self):
        self.climbs("%252E%252E/secret.txt")

    def test_T217_an_absolute_path(self):
        self.climbs("/etc/passwd")

    def test_T218_plain_dots(self):
        self.climbs("../secret.txt")


class Shared(conf.Alone):
    def test_T219_through_another_server(self):
        with conf.two() as (p1, p2):
            run = p1.sh(r"mkdir results; printf hello > results/a.txt; printf '\000\001' > b.bin",
                        capture_patterns=["*"])
            self.ended(run)
            other = run.through(p2)
            self.assertEqual(other.artifacts(), {"b.bin": 2, "results/a.txt": 5})
            a = other.artifact("results/a.txt")
            self.assertEqual((a.status, a.body), (200, b"hello"))


class Planted(conf.Alone):
    """Links where the service keeps artifacts, which nobody but the service may write."""

    def setUp(self):
        self.outside = tempfile.mkdtemp(prefix="sbx-test-")
        self.addCleanup(shutil.rmtree, self.outside, ignore_errors=True)
        with open(os.path.join(self.outside, "secret.txt"), "w") as f:
            f.write("outside content")

    def nothing_left(self, run, path):
        """Neither was anything written outside, nor is anything there to be had."""
        self.assertEqual(os.listdir(self.outside), ["secret.txt"])
        a = run.artifact(path)
        self.assertIn(a.status, (400, 404), a)
        self.assertNotIn(b"outside content", a.body)

    def while_it_runs(self, a, t, plant, script):
        """A run, and a link that is planted before its artifacts are stored."""
        go = os.path.join(t.image, "tick/go")
        os.mkfifo(go)
        os.chmod(go, 0o666)
        fd = os.open(go, os.O_RDWR)  # both ends: no open waits
        try:
            run = a.run(t.spec("x", script, capture_patterns=["*"]))
            t.wait("x")
            plant(run)
            os.write(fd, b"go\n")
            run.wait()
        finally:
            os.close(fd)
        return run

    WAIT = "read go < /tick/go; "

    def test_T221_a_link_among_the_artifacts(self):
        with conf.Ticker() as t, self.server(t.settings) as a:
            def plant(run):
                os.makedirs(run.files("artifacts"))
                os.symlink(self.outside, run.files("artifacts/escape"))

            run = self.while_it_runs(a, t, plant, self.WAIT + "mkdir escape; echo leaked > escape/leaked.txt")
            self.nothing_left(run, "escape/leaked.txt")
            self.nothing_left(run, "escape/secret.txt")

    def test_T222_a_link_in_place_of_a_folder(self):
        def the_folder_of_artifacts(run):
            os.makedirs(run.files(), 0o700, exist_ok=True)
            os.symlink(self.outside, run.files("artifacts"))

        def the_folder_of_the_run(run):
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(run.files())
            os.symlink(self.outside, run.files())

        for plant in (the_folder_of_artifacts, the_folder_of_the_run):
            with self.subTest(plant.__name__), conf.Ticker() as t, self.server(t.settings) as a:
                run = self.while_it_runs(a, t, plant, self.WAIT + "echo leaked > leaked.txt")
                self.nothing_left(run, "leaked.txt")
                self.nothing_left(run, "secret.txt")

    def test_T223_a_link_in_place_of_a_file(self):
        with self.server() as a:
            run = a.sh("echo x > leak.txt", capture_patterns=["leak.txt"])
            self.ended(run)
            self.assertEqual(run.artifact("leak.txt").body, b"x\n")
            os.unlink(run.files("artifacts/leak.txt"))
            os.symlink(os.path.join(self.outside, "secret.txt"), run.files("artifacts/leak.txt"))
            self.nothing_left(run, "leak.txt")


if __name__ == "__main__":
    conf.main()
