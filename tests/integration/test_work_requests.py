# SPDX-License-Identifier: Apache-2.0
"""How often the kernel asks when real programs work in a workspace. Each request costs two changes of process, so
what a file costs is their number, and that does not depend on the machine."""
import collections
import os
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import sbx  # noqa: E402
import workkit  # noqa: E402

FILES = 200


class Told(sbx.Mount):
    """Prints every request."""

    def args(self):
        first, *rest = super().args()
        return [first, "-d", *rest]

    def requests(self, fn):
        """What comes while fn is called, and a little more: what needs no answer, as RELEASE, may come later."""
        start = os.path.getsize(self.log_path)
        fn()
        os.statvfs(self.mnt)
        with open(self.log_path, errors="replace") as f:
            f.seek(start)
            return collections.Counter(re.findall(r"opcode: (\w+)", f.read()))


class Requests(workkit.WorkCase):
    @classmethod
    def setUpClass(cls):
        cls.m = Told()
        cls.m.start()
        cls.addClassCleanup(cls.m.close)
        cls.made = os.path.join(cls.m.base, "made")
        for i in range(FILES):
            os.makedirs("%s/d%d" % (cls.made, i // 100), exist_ok=True)
            with open("%s/d%d/f%d" % (cls.made, i // 100, i), "w") as f:
                f.write("%d\n" % i)

    def per_file(self, fn):
        """Without those that nobody waits for."""
        n = self.m.requests(fn)
        return sum(n[k] for k in n if k not in ("RELEASE", "FORGET", "BATCH_FORGET")) / FILES, n

    def unpack(self):
        archive = os.path.join(self.m.base, "a.tar")
        subprocess.run(["tar", "cf", archive, "-C", self.made, "."], check=True)
        return self.per_file(lambda: subprocess.run(["tar", "xf", archive, "-C", self.s.work], check=True))

    def test_tar(self):
        """lookup, create, write, times, owner, mode; attributes of the directory, and capabilities twice."""
        n, kinds = self.unpack()
        self.assertLess(n, 9.5 if sbx.ROOT else 7.5, kinds)
        self.assertLess(kinds["GETATTR"], 1.2 * FILES)

    def test_what_was_seen_is_not_asked_for_again(self):
        self.unpack()
        self.s.shell("ls -lR")
        n, kinds = self.per_file(lambda: self.s.shell("ls -lR"))
        # Attributes with names are never kept, and a newer ls wants them.
        n -= (kinds["GETXATTR"] + kinds["LISTXATTR"]) / FILES
        self.assertLess(n, 0.2, kinds)

    def test_a_file_written_in_many_pieces(self):
        def write():
            with open(self.path("f"), "wb", buffering=0) as f:
                for _ in range(100):
                    f.write(b"x" * 100)
        n = self.m.requests(write)
        self.assertGreaterEqual(n["WRITE"], 100)  # one more for each edge of a page
        self.assertLess(sum(n.values()), 115, n)

    @unittest.skipUnless(shutil.which("git"), "no git")
    def test_git_status(self):
        self.unpack()
        self.s.shell("git init -q; git add .; git status")
        n, kinds = self.per_file(lambda: self.s.shell("git status"))
        self.assertLess(n, 1, kinds)


if __name__ == "__main__":
    sbx.main()
