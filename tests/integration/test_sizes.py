# SPDX-License-Identifier: Apache-2.0
"""Sizes are true and every way of reading gives the same bytes: texts, logs, artifacts."""
import base64
import errno
import hashlib
import json
import mmap
import os
import random
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import fskit  # noqa: E402
import sbx  # noqa: E402

LINES = 5000
LOG = "".join("line %d of the log\n" % i for i in range(1, LINES + 1)).encode()
SCRIPT = """
i=1; while [ $i -le %d ]; do echo "line $i of the log"; i=$((i+1)); done
printf oops >&2
mkdir -p out/deep; printf 0123456789 > out/t; : > out/z; cp script.py out/deep/copy.py
head -c 300000 /dev/urandom > out/random; sha256sum < out/random | cut -c1-64 > out/sum
truncate -s 50M out/sparse; printf x >> out/sparse; chmod 4777 out/t
exit 3
""" % LINES


def slurp(path):
    with open(path, "rb") as f:
        return f.read()


class SizeCase(sbx.Case):
    spec = {"command": ["sh", "-c", SCRIPT], "capture_patterns": ["out/**"],
            "files": [{"path": "script.py", "content_b64": base64.b64encode(b"print(1)\n").decode()}]}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.run_ = cls.m.run(cls.spec)
        assert cls.run_.exit == "3", cls.run_.log[-500:]

    def setUp(self):
        self.tmp = tempfile.mkdtemp(prefix="sbx-sizes-")
        self.addCleanup(shutil.rmtree, self.tmp)

    def out(self, script, **env):
        p = fskit.shell(self.m, "cd %s\n%s" % (self.run_.dir, script))
        self.assertEqual((p.returncode, p.stderr), (0, b""), script)
        return p.stdout

    def pread(self, name, size, off):
        fd = os.open(self.run_.path(name), os.O_RDONLY)
        try:
            return os.pread(fd, size, off)
        finally:
            os.close(fd)


class EveryNode(SizeCase):
    def nodes(self):
        """Every regular file that the tree lists and whose text holds still."""
        for base, _, names in os.walk(self.m.mnt):
            for n in names:
                path = os.path.join(base, n)
                if not os.path.islink(path) and n not in ("health", "metrics", "new", "check") and \
                        "/admin" not in base and os.access(path, os.R_OK) and n != "ctl":
                    yield path

    def test_stat_is_what_is_read(self):
        seen = 0
        for path in self.nodes():
            with self.subTest(node=path.replace(self.m.mnt, "")):
                self.assertEqual(os.stat(path).st_size, len(slurp(path)))
                seen += 1
        self.assertGreater(seen, 20)

    def test_every_tool_agrees_on_the_size(self):
        for path in self.nodes():
            size = os.stat(path).st_size
            if size > 1 << 20:
                continue
            with self.subTest(node=path.replace(self.m.mnt, "")):
                got = fskit.shell(self.m, """stat -c %%s "$F"; wc -c < "$F"; cat "$F" | wc -c; tail -c +1 "$F" | wc -c
                    busybox cat "$F" | wc -c; dd if="$F" bs=7 status=none | wc -c; head -c %d "$F" | wc -c
                    cp "$F" "$T/c"; stat -c %%s "$T/c"; cmp "$F" "$T/c" && echo %d""".replace("$F", path)
                                  .replace("$T", self.tmp) % (size + 100, size))
                self.assertEqual((got.stderr, got.stdout.split()), (b"", [b"%d" % size] * 9))

    def test_cached_and_uncached_stat_agree(self):
        for path in self.nodes():
            self.assertEqual(os.stat(path).st_size, os.stat(path).st_size, path)

    def test_tar_stores_what_is_there(self):
        self.out("tar cf %s/all.tar --exclude=ctl --exclude=sparse ." % self.tmp)
        os.mkdir(self.tmp + "/x")
        subprocess.run(["tar", "xf", self.tmp + "/all.tar", "-C", self.tmp + "/x"], check=True)
        for name in ("log", "stdout", "stderr", "log.ndjson", "status", "status.json", "spec.json", "why",
                     "exit_code", "artifacts/out/random", "artifacts/out/z"):
            self.assertEqual(slurp(os.path.join(self.tmp, "x", name)), self.run_.read(name), name)

    def test_rsync_copies_and_then_has_nothing_to_do(self):
        if not shutil.which("rsync"):
            self.skipTest("no rsync")
        rsync = ["rsync", "-a", "--exclude=ctl", self.run_.dir + "/", self.tmp + "/r/"]
        subprocess.run(rsync, check=True)
        self.assertEqual(slurp(self.tmp + "/r/log"), LOG + b"oops")
        again = subprocess.run(rsync + ["--itemize-changes"], check=True, stdout=subprocess.PIPE)
        self.assertEqual(again.stdout, b"")

    def test_cp_recursive_keeps_times(self):
        self.out("cp -a artifacts log %s/" % self.tmp)
        for name in ("log", "artifacts/out/random"):
            self.assertEqual(os.stat(os.path.join(self.tmp, name)).st_mtime_ns,
                             os.stat(self.run_.path(name)).st_mtime_ns)

    def test_find_by_size(self):
        self.assertEqual(self.out("find artifacts -size -11c -size +9c -name t"), b"artifacts/out/t\n")
        self.assertEqual(self.out("find . -empty -type f -name z"), b"./artifacts/out/z\n")

    def test_du_counts_what_is_there(self):
        self.assertEqual(int(self.out("du -b stdout").split()[0]), len(LOG))
        self.assertGreater(int(self.out("du -k artifacts/out/random").split()[0]), 200)


class LogReads(SizeCase):
    def test_streams_and_log(self):
        self.assertEqual(self.run_.stdout, LOG)
        self.assertEqual(self.run_.stderr, b"oops")
        self.assertEqual(len(self.run_.log), len(LOG) + 4)

    def test_tools_on_the_log(self):
        self.assertEqual(self.out("tail -c 9 stdout"), LOG[-9:])
        self.assertEqual(self.out("head -c 3 stdout"), b"lin")
        self.assertEqual(self.out("tail -n 1 stdout"), b"line 5000 of the log\n")
        self.assertEqual(self.out("grep -c . stdout").strip(), b"5000")
        self.assertEqual(self.out("sed -n 777p stdout"), b"line 777 of the log\n")
        self.assertEqual(self.out("tac stdout | head -n 1"), b"line 5000 of the log\n")

    def test_past_the_end_is_empty(self):
        for name in ("log", "stdout", "log.ndjson", "status", "spec.json", "artifacts/out/t"):
            size = os.stat(self.run_.path(name)).st_size
            for off in (size, size + 1, size + 10**9, 1 << 62):
                self.assertEqual(self.pread(name, 9, off), b"", (name, off))

    def test_more_than_there_is(self):
        self.assertEqual(self.pread("stdout", 10**7, 0), LOG)
        self.assertEqual(self.pread("stdout", 10**7, len(LOG) - 3), b"og\n")

    def test_random_ranges_of_every_view(self):
        rnd = random.Random(5)
        for name in ("log", "stdout", "stderr", "log.ndjson"):
            whole = self.run_.read(name)
            for _ in range(60):
                off, size = rnd.randrange(len(whole) + 10), rnd.randrange(1, 70000)
                self.assertEqual(self.pread(name, size, off), whole[off:off + size], (name, off, size))

    def test_sendfile(self):
        for name in ("log", "status.json", "artifacts/out/random"):
            want = self.run_.read(name)
            src = os.open(self.run_.path(name), os.O_RDONLY)
            dst = os.open(os.path.join(self.tmp, "x"), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            try:
                done = 0
                while n := os.sendfile(dst, src, done, 1 << 20):
                    done += n
            finally:
                os.close(src)
                os.close(dst)
            self.assertEqual(slurp(self.tmp + "/x"), want, name)

    def test_splice_into_a_pipe(self):
        src = os.open(self.run_.path("stdout"), os.O_RDONLY)
        r, w = os.pipe()
        try:
            got = b""
            while n := os.splice(src, w, 65536):
                got += os.read(r, n)
        finally:
            for fd in (src, r, w):
                os.close(fd)
        self.assertEqual(got, LOG)

    def test_mmap_of_what_has_ended(self):
        for name in ("log", "stdout", "spec.json", "artifacts/out/random"):
            with open(self.run_.path(name), "rb") as f:
                for flags in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):
                    with mmap.mmap(f.fileno(), 0, flags=flags, prot=mmap.PROT_READ) as m:
                        self.assertEqual(m[:], self.run_.read(name), name)

    def test_seek_end_and_data(self):
        fd = os.open(self.run_.path("stdout"), os.O_RDONLY)
        try:
            self.assertEqual(os.lseek(fd, 0, os.SEEK_END), len(LOG))
            self.assertEqual(os.lseek(fd, 5, os.SEEK_DATA), 5)
            self.assertEqual(os.lseek(fd, 5, os.SEEK_HOLE), len(LOG))
            with self.assertRaises(OSError) as c:
                os.lseek(fd, len(LOG), os.SEEK_DATA)
            self.assertEqual(c.exception.errno, errno.ENXIO)
        finally:
            os.close(fd)

    def test_read_to_the_end_without_a_buffer(self):
        with open(self.run_.path("stdout"), "rb", buffering=0) as f:
            self.assertEqual(f.readall(), LOG)


class LogBytes(sbx.Case):
    """Nothing is decoded, replaced or cut."""

    def joined(self, run, stream):
        data = b""
        for f in run.frames():
            if f["type"] == stream:
                self.assertIn(f["encoding"], ("utf8", "base64"))
                data += f["data"].encode() if f["encoding"] == "utf8" else base64.b64decode(f["data"])
        return data

    def test_characters_that_straddle_writes_and_bytes_that_are_no_text(self):
        run = self.m.run({"command": [
            "python3", "-c", "import os,time\no=os.write\no(1,b'a'*65535+b'\\xe3\\x81'); time.sleep(0.3); "
            "o(1,b'\\x82\\n\\xff\\xfe\\x80\\x00Z\\n\\xed\\xa0\\x80'); o(1,b'\\xf0\\x9f'); time.sleep(0.3); "
            "o(1,b'\\x99\\x82\\n'); o(2,b'\\xc3')"]})
        self.assertEqual(len(run.stdout), 65553)
        self.assertTrue(hashlib.sha256(run.stdout).hexdigest().startswith("0137e3ec0473e5a2"))
        self.assertEqual(run.stderr, b"\xc3")
        self.assertEqual(self.joined(run, "stdout"), run.stdout)
        self.assertEqual(self.joined(run, "stderr"), b"\xc3")
        self.assertNotIn("\ufffd".encode(), run.read("log.ndjson"))
        self.assertNotIn(b"\\ufffd", run.read("log.ndjson").lower())

    def test_every_byte_value(self):
        run = self.m.run({"command": ["python3", "-c", "import os\nos.write(1,bytes(range(256))*300)"]})
        self.assertEqual(run.stdout, bytes(range(256)) * 300)
        self.assertEqual(self.joined(run, "stdout"), run.stdout)

    def test_no_output_at_all(self):
        run = self.m.run({"command": ["true"]})
        for name in ("log", "stdout", "stderr"):
            self.assertEqual((os.stat(run.path(name)).st_size, run.read(name)), (0, b""), name)

    def test_carriage_returns_and_missing_last_newline(self):
        run = self.m.run({"command": ["printf", "a\\r\\nb\\rc"]})
        self.assertEqual(run.stdout, b"a\r\nb\rc")

    def test_sequence_numbers_have_no_gap_and_times_do_not_fall(self):
        run = self.m.run({"command": ["sh", "-c", "for i in 1 2 3 4 5; do echo $i; echo $i >&2; done"]})
        frames = run.frames()
        self.assertEqual([f["seq"] for f in frames], list(range(1, len(frames) + 1)))
        self.assertEqual([f["ts"] for f in frames], sorted(f["ts"] for f in frames))

    def test_hundred_short_runs_lose_nothing(self):
        """Half have a follower from before their start, half are read the moment the status is terminal."""
        spec = {"command": ["sh", "-c", "printf 'alpha\\nomega'; printf E >&2"]}
        for _ in range(5):
            runs = [self.m.submit(spec) for _ in range(20)]
            followers = [(r, subprocess.Popen(["cat", r.path(".stream")], stdout=subprocess.PIPE))
                         for r in runs[::2]]
            for run in runs[1::2]:
                run.wait()
                self.assertEqual(run.status(), "completed")
                self.assertEqual((run.stdout, run.stderr), (b"alpha\nomega", b"E"))
                self.assertEqual(len(run.log), 12)
            for run, proc in followers:
                text = proc.communicate(timeout=20 * sbx.SLOW)[0]
                self.assertEqual(text, run.read("log.ndjson"))
                self.assertEqual(json.loads(text.splitlines()[-1])["event"], "end")
                self.assertEqual((run.stdout, run.stderr), (b"alpha\nomega", b"E"))


class NoOutput(sbx.Case):
    """A run that prints nothing makes nothing on the disk, and reads like any other."""

    def test_nothing_is_made_and_the_log_is_there(self):
        run = self.m.run({"command": ["true"]})
        frames, doc = run.frames(), run.json()
        self.assertEqual([(f["event"], f["seq"]) for f in frames], [("start", 1), ("end", 2)])
        self.assertEqual(frames[0]["ts"], doc["started_at"])
        self.assertEqual(frames[1]["ts"], doc["finished_at"])
        self.assertEqual(frames[1]["data"], {"exit_code": 0})
        self.assertEqual(run.read(".stream"), run.read("log.ndjson"))
        self.assertEqual(os.stat(run.path("log.ndjson")).st_size, len(run.read("log.ndjson")))
        for name in ("log", "stdout", "stderr"):
            self.assertEqual((run.read(name), os.stat(run.path(name)).st_size), (b"", 0))
        self.assertEqual(os.listdir(run.path("artifacts")), [])
        self.assertFalse(os.path.exists(os.path.join(self.m.state, "runs", run.id)))

    def test_times_of_a_run_with_output(self):
        run = self.m.run({"command": ["echo", "x"]})
        frames, doc = run.frames(), run.json()
        self.assertEqual((frames[0]["ts"], frames[-1]["ts"]), (doc["started_at"], doc["finished_at"]))

    def test_the_start_is_seen_while_it_runs(self):
        run = self.m.submit({"command": ["sleep", "60"]})
        try:
            with open(run.path(".stream"), "rb", buffering=0) as f:
                first = json.loads(f.readline())
            self.assertEqual((first["event"], first["ts"]), ("start", run.json()["started_at"]))
        finally:
            run.ctl("kill")
        self.assertEqual(json.loads(run.read(".stream").splitlines()[-1])["data"]["canceled"], True)


class Live(sbx.Case):
    """A run that is still going."""

    def setUp(self):
        self.run_ = self.m.submit({"command": ["sh", "-c", "echo first; read x; echo second; read y"],
                                   "interactive": True, "spec_version": "1.1"})
        self.run_.stream_until(b"first\n")

    def tearDown(self):
        if self.run_.status() not in sbx.TERMINAL:
            self.run_.ctl("kill")
            self.run_.wait()

    def go_on(self):
        with open(self.run_.path("stdin"), "wb", buffering=0) as f:
            f.write(b"\n")

    def test_size_of_a_growing_log(self):
        self.assertEqual(os.stat(self.run_.path("log")).st_size, 6)
        with open(self.run_.path("log"), "rb", buffering=0) as f:
            self.assertEqual(f.read(100), b"first\n")
            self.assertEqual(f.read(100), b"")
            self.go_on()
            self.run_.stream_until(b"second\n")
            self.assertEqual(f.read(100), b"second\n")
            self.assertEqual(os.fstat(f.fileno()).st_size, 13)

    def test_mtime_of_a_growing_log_moves(self):
        before = os.stat(self.run_.path("log")).st_mtime_ns
        self.go_on()
        self.run_.stream_until(b"second\n")
        self.assertGreater(os.stat(self.run_.path("log")).st_mtime_ns, before)

    def test_text_is_fixed_at_open(self):
        with open(self.run_.path("status.json"), "rb", buffering=0) as f:
            head = f.read(5)
            self.go_on()
            self.go_on()
            self.run_.wait()
            rest = b""
            while piece := f.read(7):
                rest += piece
        self.assertEqual(json.loads(head + rest)["phase"], "running")
        self.assertEqual(self.run_.json()["phase"], "completed")

    def test_size_and_mtime_of_status_follow_the_phase(self):
        before = os.stat(self.run_.path("status"))
        self.assertEqual(before.st_size, len("running\n"))
        self.run_.ctl("kill")
        self.run_.wait()
        after = os.stat(self.run_.path("status"))
        self.assertEqual(after.st_size, len("killed\n"))
        self.assertGreater(after.st_mtime_ns, before.st_mtime_ns)

    def test_size_after_the_open_is_that_of_what_was_opened(self):
        """health and metrics are new each time, and rsync takes a file that is shorter than fstat said for
        damaged."""
        paths = [os.path.join(self.m.mnt, n) for n in ("health", "metrics", "admin/queue.json", "admin/runs.json")
                 if os.path.exists(os.path.join(self.m.mnt, n))]
        for i in range(40):
            for path in paths:
                with open(path, "rb", buffering=0) as f:
                    if i % 10 == 0:
                        self.m.submit({"command": ["true"]})
                    size = os.fstat(f.fileno()).st_size
                    self.assertEqual(len(f.read(1 << 20)), size, path)
                    self.assertEqual(f.read(10), b"")
            if i % 10 == 0:
                self.m.run({"command": ["true"]})

    def test_text_that_became_final_while_an_old_one_is_open(self):
        with open(self.run_.path("status.json"), "rb", buffering=0) as old:
            self.go_on()
            self.go_on()
            self.run_.wait()
            self.assertEqual(json.loads(self.run_.read("status.json"))["phase"], "completed")
            self.assertEqual(os.stat(self.run_.path("status.json")).st_size, len(self.run_.read("status.json")))
            self.assertEqual(json.loads(old.read(1 << 20))["phase"], "running")

    def test_exit_code_appears(self):
        self.assertFalse(os.path.exists(self.run_.path("exit_code")))
        self.assertNotIn("exit_code", os.listdir(self.run_.dir))
        self.go_on()
        self.go_on()
        self.run_.wait()
        self.assertEqual(self.run_.read("exit_code"), b"0\n")
        self.assertIn("exit_code", os.listdir(self.run_.dir))

    def test_what_was_read_before_the_end_is_not_served_after_it(self):
        """The page cache must not keep the live state."""
        for name in ("log", "stdout", "log.ndjson", "status", "status.json", "why"):
            self.run_.read(name)
        self.go_on()
        self.go_on()
        self.run_.wait()
        self.assertEqual(self.run_.log, b"first\nsecond\n")
        self.assertEqual(self.run_.stdout, b"first\nsecond\n")
        self.assertEqual(self.run_.frames()[-1]["event"], "end")
        self.assertEqual(self.run_.json()["exit_code"], 0)
        self.assertTrue(self.run_.read("why").startswith(b"completed"))


class Artifacts(SizeCase):
    def test_listing(self):
        self.assertEqual(sorted(os.listdir(self.run_.path("artifacts/out"))),
                         ["deep", "random", "sparse", "sum", "t", "z"])

    def test_bytes(self):
        self.assertEqual(hashlib.sha256(self.run_.read("artifacts/out/random")).hexdigest(),
                         self.run_.read("artifacts/out/sum").decode().strip())
        self.assertEqual(self.run_.read("artifacts/out/deep/copy.py"), b"print(1)\n")

    def test_ranges(self):
        for off, size, want in ((0, 5, b"01234"), (7, 100, b"789"), (5, 94, b"56789"), (9, 1, b"9"),
                                (10, 1, b""), (0, 0, b""), (1 << 40, 5, b""), ((1 << 63) - 2, 1, b"")):
            self.assertEqual(self.pread("artifacts/out/t", size, off), want, (off, size))
        self.assertEqual(self.out("tail -c 3 artifacts/out/t"), b"789")

    def test_negative_offset(self):
        with self.assertRaises(OSError) as c:
            self.pread("artifacts/out/t", 1, -1)
        self.assertEqual(c.exception.errno, errno.EINVAL)

    def test_empty_file(self):
        self.assertEqual(os.stat(self.run_.path("artifacts/out/z")).st_size, 0)
        self.assertEqual(self.run_.read("artifacts/out/z"), b"")

    def test_modes_are_plain(self):
        st = os.stat(self.run_.path("artifacts/out/t"))
        self.assertEqual(st.st_mode & 0o7777, 0o400)
        self.assertEqual(os.stat(self.run_.path("artifacts/out")).st_mode & 0o7777, 0o500)

    def test_cannot_be_written_or_removed(self):
        path = self.run_.path("artifacts/out/t")
        for fn in (lambda: os.open(path, os.O_WRONLY), lambda: os.open(path, os.O_RDWR | os.O_TRUNC),
                   lambda: os.unlink(path), lambda: os.truncate(path, 0), lambda: os.chmod(path, 0o777),
                   lambda: os.open(path + ".new", os.O_CREAT | os.O_WRONLY), lambda: os.rename(path, path + "2"),
                   lambda: os.mkdir(path + "d"), lambda: os.utime(path)):
            with self.assertRaises(OSError) as c:
                fn()
            self.assertIn(c.exception.errno, (errno.EPERM, errno.EACCES))
        self.assertEqual(self.run_.read("artifacts/out/t"), b"0123456789")

    def test_sparse_file(self):
        path = self.run_.path("artifacts/out/sparse")
        st = os.stat(path)
        self.assertEqual(st.st_size, (50 << 20) + 1)
        self.assertLess(st.st_blocks * 512, 1 << 20)
        fd = os.open(path, os.O_RDONLY)
        try:
            self.assertEqual(os.pread(fd, 10, st.st_size - 1), b"x")
            self.assertEqual(os.pread(fd, 1 << 20, 7 << 20), bytes(1 << 20))
            self.assertGreater(os.lseek(fd, 0, os.SEEK_DATA), 49 << 20)
            self.assertEqual(os.lseek(fd, 0, os.SEEK_HOLE), 0)
        finally:
            os.close(fd)

    def test_sparse_copy_stays_sparse(self):
        self.out("cp --sparse=auto artifacts/out/sparse %s/s; cmp artifacts/out/sparse %s/s"
                 % (self.tmp, self.tmp))
        self.assertLess(os.stat(self.tmp + "/s").st_blocks * 512, 1 << 20)

    def test_same_inode_number_twice(self):
        path = self.run_.path("artifacts/out/t")
        self.assertEqual(os.stat(path).st_ino, os.stat(path).st_ino)

    def test_run_without_artifacts_has_an_empty_folder(self):
        run = self.m.run({"command": ["true"]})
        self.assertEqual(os.listdir(run.path("artifacts")), [])
        self.assertEqual(subprocess.run(["find", run.path("artifacts")], stdout=subprocess.PIPE,
                                        check=True).stdout.decode().split(), [run.path("artifacts")])

    def test_long_listing(self):
        run = self.m.run({"command": ["sh", "-c", "mkdir o; for i in $(seq 1500); do echo $i > o/file-$i; done"],
                          "capture_patterns": ["o/*"]})
        names = os.listdir(run.path("artifacts/o"))
        self.assertEqual(sorted(names), sorted("file-%d" % i for i in range(1, 1501)))
        with os.scandir(run.path("artifacts/o")) as it:
            self.assertTrue(all(e.is_file(follow_symlinks=False) for e in it))
        self.assertEqual(run.read("artifacts/o/file-1499"), b"1499\n")

    def test_names_are_bytes(self):
        names = [b"a b", b"new\nline", b"\xff\xfe", "caf\u00e9".encode(), "cafe\u0301".encode(), b"-rf",
                 b"x" * 255, b"back\\slash", b"*?[", b"...", b".hidden"]
        code = "import os\nos.mkdir(b'o')\nfor n in %r:\n open(b'o/'+n,'wb').write(n)" % (names,)
        run = self.m.run({"command": ["python3", "-c", code], "capture_patterns": ["o/*", "o/.*"]})
        base = os.fsencode(run.path("artifacts/o"))
        self.assertEqual(sorted(os.listdir(base)), sorted(names))
        for n in names:
            self.assertEqual(slurp(os.path.join(base, n)), n)


class BigArtifact(sbx.Case):
    MIB = 200
    settings = {"workspace_cap_mb": 400, "tier_standard_workspace_cap_mb": 400,
                "max_artifact_file_bytes": 400 << 20, "max_artifact_total_bytes": 400 << 20,
                "max_artifact_bytes_per_run_mb": 400}

    def test_200_mib_by_ranges_and_as_a_whole(self):
        code = "with open('big','wb') as f:\n for i in range(%d): f.write(i.to_bytes(8,'big')*131072)" % self.MIB
        run = self.m.run({"command": ["python3", "-c", code], "capture_patterns": ["big"]}, timeout=60)
        self.assertEqual(run.exit, "0", run.log)
        path, rnd = run.path("artifacts/big"), random.Random(3)
        self.assertEqual(os.stat(path).st_size, self.MIB << 20)

        def expect(off, size):
            first, last = off >> 20, (off + size - 1) >> 20
            data = b"".join(i.to_bytes(8, "big") * 131072 for i in range(first, min(last, self.MIB - 1) + 1))
            return data[off - (first << 20):][:size]
        fd = os.open(path, os.O_RDONLY)
        try:
            for _ in range(60):
                off, size = rnd.randrange(self.MIB << 20), rnd.randrange(1, 3 << 20)
                self.assertEqual(os.pread(fd, size, off), expect(off, size), (off, size))
            digest = hashlib.sha256()
            while data := os.read(fd, 1 << 20):
                digest.update(data)
        finally:
            os.close(fd)
        want = hashlib.sha256()
        for i in range(self.MIB):
            want.update(i.to_bytes(8, "big") * 131072)
        self.assertEqual(digest.hexdigest(), want.hexdigest())


if __name__ == "__main__":
    sbx.main()
