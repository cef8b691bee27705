# SPDX-License-Identifier: Apache-2.0
"""The programs that people use work in a workspace on the mount as they do on a disk."""
import filecmp
import os
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import sbx  # noqa: E402
from workkit import WorkCase  # noqa: E402


def needs(program):
    return unittest.skipUnless(shutil.which(program), "%s is not installed" % program)


class Case(WorkCase):
    def plain(self):
        """A directory beside the mount."""
        d = tempfile.mkdtemp(dir=self.m.base)
        self.addCleanup(shutil.rmtree, d)
        return d

    def tree(self, where):
        """A tree with something of everything."""
        os.makedirs(os.path.join(where, "d/e"))
        for name, data in (("a", b"a\n"), ("d/b", random.Random(1).randbytes(100000)), ("d/e/empty", b"")):
            with open(os.path.join(where, name), "wb") as f:
                f.write(data)
        os.chmod(os.path.join(where, "a"), 0o751)
        os.chmod(os.path.join(where, "d/e/empty"), 0o400)
        os.symlink("../a", os.path.join(where, "d/l"))
        os.link(os.path.join(where, "a"), os.path.join(where, "d/hard"))
        for name in ("a", "d/b", "d/e", "d"):
            os.utime(os.path.join(where, name), ns=(10**18 + 1, 10**18 + 2))
        return where

    def assertSame(self, a, b):
        c = filecmp.dircmp(a, b)
        self.assertEqual((c.left_only, c.right_only, c.diff_files, c.funny_files), ([], [], [], []))
        for name in c.left_list:
            x, y = os.lstat(os.path.join(a, name)), os.lstat(os.path.join(b, name))
            self.assertEqual((x.st_mode, x.st_mtime_ns if name != "l" else 0, x.st_nlink),
                             (y.st_mode, y.st_mtime_ns if name != "l" else 0, y.st_nlink), name)
        for name in c.common_dirs:
            self.assertSame(os.path.join(a, name), os.path.join(b, name))


class Copying(Case):
    def test_cp_a_there_and_back(self):
        src, back = self.tree(self.plain()), self.plain()
        self.s.shell("cp -a '%s' t; cp -a t '%s/t'" % (src, back))
        self.assertSame(src, self.path("t"))
        self.assertSame(src, back + "/t")

    @needs("rsync")
    def test_rsync_twice(self):
        src = self.tree(self.plain())
        for _ in range(2):
            said = self.s.shell("rsync -aH --itemize-changes '%s/' t/" % src)
        self.assertEqual(said, "")
        self.assertSame(src, self.path("t"))
        with open(src + "/d/b", "ab") as f:
            f.write(b"more")
        self.s.shell("rsync -aH --inplace --no-whole-file '%s/' t/; rm '%s/a'; rsync -aH --delete '%s/' t/"
                     % (src, src, src))
        self.assertSame(src, self.path("t"))

    def test_tar(self):
        src, back = self.tree(self.plain()), self.plain()
        self.s.shell("tar c --format=posix -C '%s' . | tar xp; tar cf '%s/t.tar' --format=posix .; tar x -C '%s' -f '%s/t.tar'; rm '%s/t.tar'"
                     % (src, back, back, back, back))
        self.assertSame(src, self.s.work)
        self.assertSame(src, back)

    def test_mv_in_and_out(self):
        src = self.tree(self.plain())
        keep = self.plain() + "/keep"
        self.s.shell("cp -a '%s' '%s'; mv '%s' t; mv t/d .; mv d t/d; mv t '%s'" % (src, keep, src, src))
        self.assertSame(src, keep)
        os.makedirs(src, exist_ok=True)

    def test_find_grep_du(self):
        self.tree(self.s.work)
        self.assertEqual(self.s.shell("find . -type f | sort | tr '\\n' ' '"), "./a ./d/b ./d/e/empty ./d/hard ")
        self.assertEqual(self.s.shell("find . -newer d/b -name l; find . -links 2 -type f | wc -l"), "./d/l\n2\n")
        self.assertEqual(self.s.shell("grep -rl '^a$' . | sort | tr '\\n' ' '"), "./a ./d/hard ")
        self.assertEqual(self.s.shell("du -s --apparent-size -b d/b"), "100000\td/b\n")

    def test_dd_and_truncate(self):
        self.s.shell("dd if=/dev/urandom of=f bs=64k count=20 conv=fsync; dd if=f of=g bs=4k oflag=append conv=notrunc;"
                     "dd if=f of=h bs=4k iflag=direct oflag=direct; cmp f g; cmp f h; truncate -s 10 f; wc -c < f")


class Editing(Case):
    @needs("vim")
    def test_vim(self):
        self.s.write("f", b"one\ntwo\n")
        self.s.shell("vim -u NONE -es -c 'set backup writebackup' -c '%s/two/three/' -c 'wq' f")
        self.assertEqual(self.s.read("f"), b"one\nthree\n")
        self.s.shell("vim -u NONE -es -c 'set backupcopy=yes undofile' -c '%s/one/1/' -c 'wq' f")
        self.assertEqual(self.s.read("f"), b"1\nthree\n")

    @needs("ed")
    def test_ed(self):
        self.s.write("f", b"one\ntwo\n")
        self.s.shell("printf '2s/two/three/\\na\\nfour\\n.\\nw\\nq\\n' | ed -s f")
        self.assertEqual(self.s.read("f"), b"one\nthree\nfour\n")

    def test_sed_i(self):
        self.s.write("d/f", b"one\ntwo\n")
        os.chmod(self.path("d/f"), 0o640)
        self.s.shell("sed -i s/two/three/ d/f; sed -i.bak s/three/four/ d/f")
        self.assertEqual((self.s.read("d/f"), self.s.read("d/f.bak")), (b"one\nfour\n", b"one\nthree\n"))
        self.assertEqual((sorted(os.listdir(self.path("d"))), os.stat(self.path("d/f")).st_mode & 0o777),
                         (["f", "f.bak"], 0o640))

    def test_python_tempfile_and_replace(self):
        for i in range(100):
            with tempfile.NamedTemporaryFile(dir=self.s.work, delete=False) as f:
                f.write(b"%d" % i)
                f.flush()
                os.fsync(f.fileno())
            os.replace(f.name, self.path("f"))
            self.assertEqual(self.s.read("f"), b"%d" % i)
        self.assertEqual(os.listdir(self.s.work), ["f"])
        with tempfile.TemporaryFile(dir=self.s.work) as f:
            f.write(b"x")

    def test_python_imports_and_its_cache(self):
        self.s.write("pkg/__init__.py", b"x = 1\n")
        run = "'%s' -c 'import pkg; print(pkg.x)'" % sys.executable
        self.assertEqual(self.s.shell(run), "1\n")
        self.s.write("pkg/__init__.py", b"x = 22\n")
        self.assertEqual(self.s.shell(run), "22\n")

    def test_sqlite(self):
        self.s.shell("""'%s' -c '
import sqlite3
for mode in ("delete", "wal"):
    db = sqlite3.connect("%%s.db" %% mode)
    db.execute("pragma journal_mode=" + mode)
    db.execute("create table t(a)")
    for i in range(50):
        db.execute("insert into t values(?)", (i,))
        db.commit()
    assert db.execute("select count(*) from t").fetchone() == (50,)
    assert db.execute("pragma integrity_check").fetchone() == ("ok",)
'""" % sys.executable)

    @needs("cc")
    def test_compile_link_and_run(self):
        self.s.write("m.c", b'#include <stdio.h>\nint main(void) { puts("built"); return 0; }\n')
        self.assertEqual(self.s.shell("cc -c m.c && cc -o m m.o && ar rc lib.a m.o && ./m"), "built\n")


class Git(Case):
    @needs("git")
    def test_a_day_of_work(self):
        self.tree(self.s.work)
        os.chmod(self.path("d/e/empty"), 0o644)
        self.s.shell("git init -q . && git add -A && git commit -qm first && test -z \"$(git status --porcelain)\"")
        out = self.s.shell("""
git checkout -qb topic; echo more >> a; mv d/b b; git add -A; git commit -qm second
git checkout -q master; test -f d/b; git status --porcelain
git merge -q topic; git log --oneline | wc -l
git stash list; echo dirty >> a; git stash -q; git status --porcelain; git stash pop -q; git diff --stat | tail -1
git gc -q; git fsck --strict --no-dangling; git clone -q . ../workspace/clone; git -C clone log --oneline | wc -l
git worktree add -q wt topic; git -C wt status --porcelain; rm -rf clone wt
""")
        self.assertEqual(out, "2\n 1 file changed, 1 insertion(+)\n2\n")

    @needs("git")
    def test_status_is_clean_after_a_run_and_shows_what_it_did(self):
        self.s.shell("git init -q .; for i in 1 2 3; do echo $i > f$i; done; git add -A; git commit -qm x")
        self.assertEqual(self.s.shell("git status --porcelain"), "")
        self.assertEqual(self.s.run("echo changed > f2; rm f3; echo new > f4"), "0")
        self.assertEqual(self.s.shell("git status --porcelain"), " M f2\n D f3\n?? f4\n")

    @needs("npm")
    def test_npm_install(self):
        os.makedirs(self.path("dep"))
        self.s.write("dep/package.json", b'{"name":"dep","version":"1.0.0","main":"i.js","bin":"i.js"}')
        self.s.write("dep/i.js", b"#!/usr/bin/env node\nmodule.exports = 42;\n")
        self.s.write("app/package.json", b'{"name":"app","version":"1.0.0"}')
        home = self.plain()
        self.s.shell("cd app; export HOME='%s'; npm install --offline --no-audit --no-fund ../dep; ls node_modules/dep/;"
                     "test \"$(node -p 'require(\"dep\")')\" = 42" % home)


class Many(Case):
    def test_ten_thousand_small_files(self):
        src = self.plain()
        for d in range(100):
            os.mkdir("%s/%d" % (src, d))
            for i in range(100):
                with open("%s/%d/%d" % (src, d, i), "w") as f:
                    f.write("%d %d\n" % (d, i))
        subprocess.run(["tar", "cf", src + "/t.tar", "-C", src, *map(str, range(100))], check=True)
        self.s.shell("tar xf '%s/t.tar'" % src)
        self.assertEqual(self.s.shell("find . -type f | wc -l; cat */* | sort | sha256sum"),
                         "10000\n" + subprocess.run("cat */* | sort | sha256sum", shell=True, cwd=src, text=True,
                                                    stdout=subprocess.PIPE, check=True).stdout)
        fds = len(os.listdir("/proc/%d/fd" % self.m.proc.pid))
        self.s.shell("rm -rf *")
        self.assertEqual(os.listdir(self.s.work), [])
        self.assertLess(len(os.listdir("/proc/%d/fd" % self.m.proc.pid)), max(fds - 9000, 500))


class FewDescriptors(Case):
    """The kernel knows more files than the server may have open."""

    @classmethod
    def setUpClass(cls):
        cls.m = sbx.Mount(prefix=["sh", "-c", 'ulimit -n 300; exec "$0" "$@"'])
        cls.addClassCleanup(cls.m.close)
        cls.m.start()

    def test_a_large_tree_all_the_same(self):
        for d in range(40):
            for i in range(25):
                self.s.write("a/%d/%d" % (d, i), b"%d" % i)
        files = [self.path("a/%d/%d" % (d, i)) for d in range(40) for i in range(25)]
        with open(files[0], "rb") as first:
            for p in files:
                os.chmod(p, 0o600)
            os.rename(self.path("a/7"), self.path("b"))
            os.rename(self.path("b/3"), self.path("b/x"))
            for p in files:
                if "/a/7/" not in p:
                    self.assertEqual(os.stat(p).st_mode & 0o777, 0o600)
            self.assertEqual(self.s.read("b/x"), b"3")
            self.assertEqual(self.s.read("b/24"), b"24")
            self.assertEqual(first.read(), b"0")
        self.assertLessEqual(len(os.listdir("/proc/%d/fd" % self.m.proc.pid)), 300)
        fd = os.open(self.path("b"), os.O_RDONLY)
        for p in files:
            if "/a/7/" not in p:
                os.stat(p)
                os.chmod(p, 0o644)
        self.assertIn("x", os.listdir(fd))
        os.close(fd)
        self.s.shell("rm -rf a b; ls")


if __name__ == "__main__":
    sbx.main()
