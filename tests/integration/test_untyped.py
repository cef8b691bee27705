# SPDX-License-Identifier: Apache-2.0
"""A state directory on a file system whose listings do not say what is a directory and what a file."""
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import sbx  # noqa: E402
import workkit  # noqa: E402
from fskit import Inotify  # noqa: E402


class Untyped(sbx.Case):
    @classmethod
    def setUpClass(cls):
        if not (sbx.ROOT and shutil.which("mkfs.ext4")):
            raise sbx.unittest.SkipTest("needs root and mkfs.ext4")
        place = tempfile.mkdtemp(prefix="sbx-untyped-")
        cls.addClassCleanup(shutil.rmtree, place)
        disk, image = os.path.join(place, "disk"), os.path.join(place, "image")
        os.mkdir(disk)
        with open(image, "wb") as f:
            f.truncate(64 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-O", "^filetype", image], check=True)
        if subprocess.run(["mount", "-o", "loop", image, disk], stderr=subprocess.DEVNULL).returncode:
            raise sbx.unittest.SkipTest("this machine mounts no files")
        # A sandbox that is still dying may have it open for a moment.
        cls.addClassCleanup(subprocess.run, ["umount", "-l", disk], check=True)
        os.chmod(place, 0o755)
        cls.m = sbx.Mount(where=disk)
        cls.addClassCleanup(cls.m.close)
        cls.m.start()

    def test_artifacts_are_listed_and_announced(self):
        run = self.m.submit({"command": ["sh", "-c", "read x; mkdir d; echo 1 > a; echo 3 > d/c"],
                             "interactive": True, "spec_version": "1.1", "capture_patterns": ["**"]})
        run.wait_phase("running")
        with Inotify() as ino:
            ino.add(run.path("artifacts"), Inotify.CREATE)
            run.ctl("eof")
            for name in ("a", "d"):
                ino.wait(lambda p, m, n: n == name)
        with os.scandir(run.path("artifacts")) as entries:
            self.assertEqual(sorted((e.name, e.is_dir()) for e in entries), [("a", False), ("d", True)])
        self.assertEqual(os.listdir(run.path("artifacts/d")), ["c"])
        self.assertEqual(run.read("artifacts/d/c"), b"3\n")

    def test_a_snapshot_has_everything(self):
        s = workkit.Session(self.m, "s")
        s.write("d/e/f", b"1")
        os.symlink("d", s.path("l"))
        os.mkfifo(s.disk("p"))
        os.mkdir(os.path.join(s.dir, "snapshots", "one"))
        tree = os.path.join(s.dir, "snapshots", "one", "tree")
        self.assertEqual([(w[len(tree):], d, f) for w, d, f in os.walk(tree)],
                         [("", ["d", "l"], []), ("/d", ["e"], []), ("/d/e", [], ["f"])])
        s.ctl("destroy")


if __name__ == "__main__":
    sbx.main()
