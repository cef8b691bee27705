# SPDX-License-Identifier: Apache-2.0
"""Sessions and snapshots as directories: made, named, run in, looked into, put back, destroyed."""
import contextlib
import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import database  # noqa: E402
import fskit  # noqa: E402
import sbx  # noqa: E402
from workkit import Session, WorkCase  # noqa: E402


class Case(WorkCase):
    def sessions(self, *names):
        return os.path.join(self.m.mnt, "sessions", *names)

    def make(self, doc):
        """Writes a session spec; the id that is read back, or the error."""
        fd = os.open(self.sessions("new"), os.O_RDWR)
        try:
            os.write(fd, doc if isinstance(doc, bytes) else json.dumps(doc).encode())
            return os.read(fd, 1 << 16).decode().strip()
        except OSError as e:
            raise sbx.Refused(e.errno, json.loads(os.read(fd, 1 << 16))) from None
        finally:
            os.close(fd)

    def submit_here(self, text):
        fd = os.open(os.path.join(self.s.dir, "runs/new"), os.O_RDWR)
        try:
            os.write(fd, text)
            return sbx.Run(self.m, os.read(fd, 1 << 16).decode().strip())
        finally:
            os.close(fd)

    def wait_gone(self, session_id):
        with fskit.Events(self.m, after=0) as events:
            events.wait(lambda e: e.get("kind") == "session" and e["id"] == session_id and e["what"] == "gone")


class Sessions(Case):
    def test_new(self):
        made = self.make({"env": {"A": "from the session"}, "timeout_sec": 17})
        with open(self.sessions(made, "spec.json")) as f:
            spec = json.load(f)
        self.assertEqual((spec["env"], spec["timeout_sec"]), ({"A": "from the session"}, 17))
        self.assertEqual(os.readlink(self.sessions("latest")), made)
        with open(self.sessions("new")) as f:
            self.assertEqual(f.read().strip(), made)
        with open(self.sessions(made, "runs/new"), "r+b", buffering=0) as f:
            f.write(b'{"command":["sh","-c","echo $A"]}')
            run = sbx.Run(self.m, f.read(100).decode().strip())
        self.assertEqual((run.wait(), run.stdout), ("0", b"from the session\n"))
        os.rmdir(self.sessions(made))

    def test_new_with_a_name(self):
        made = self.make({"name": "named"})
        self.assertTrue(os.path.isdir(self.sessions("named/workspace")))
        self.assertEqual(os.readlink(self.sessions(made)), "named")
        self.assertNotIn(made, os.listdir(self.sessions()))
        self.assertEqual(os.readlink(self.sessions("latest")), "named")
        os.rmdir(self.sessions("named"))

    def test_what_new_refuses(self):
        for doc, err in ((b'{"nonsense":1}', errno.EINVAL), (b'{"timeout_sec":-1}', errno.EINVAL), (b"[]", errno.EINVAL),
                         (b"#!/bin/sh\n", errno.EINVAL)):
            with self.subTest(doc=doc), self.assertRaises(sbx.Refused) as c:
                self.make(doc)
            self.assertEqual(c.exception.errno, err)

    def test_mkdir(self):
        self.assertEqual(self.s.json()["entry"], self.s.name)
        self.assertIn(self.s.name, os.listdir(self.sessions()))
        self.assertEqual(os.listdir(self.s.work), [])
        self.assertErrno(errno.EEXIST, os.mkdir, self.s.dir)
        for name in ("new", "latest"):
            self.assertErrno(errno.EEXIST, os.mkdir, self.sessions(name))
        for name in (".hidden", "01890a5d-ac96-774b-bcce-b302099a8057"):
            self.assertErrno(errno.EINVAL, os.mkdir, self.sessions(name))
        self.assertErrno(errno.ENAMETOOLONG, os.mkdir, self.sessions("x" * 256))

    def test_rmdir(self):
        s = Session(self.m, "short")
        s.write("d/f", b"x")
        os.rmdir(s.dir)
        self.assertNotIn("short", os.listdir(self.sessions()))
        self.assertErrno(errno.ENOENT, os.stat, s.dir)
        self.assertErrno(errno.ENOENT, os.lstat, self.sessions(s.id))
        again = Session(self.m, "short")
        self.assertNotEqual(again.id, s.id)
        self.assertEqual(os.listdir(again.work), [])
        os.rmdir(again.dir)

    def test_rmdir_ends_its_runs(self):
        s = Session(self.m, "busy")
        run = s.submit("while :; do :; done")
        run.wait_phase("running")
        os.rmdir(s.dir)  # it does not wait, since everybody would
        self.assertNotIn("busy", os.listdir(self.sessions()))
        self.assertEqual(run.wait(), "killed")
        self.wait_gone(s.id)
        self.assertEqual(run.status(), "killed")

    def test_what_is_open_outlives_the_session(self):
        s = Session(self.m, "open")
        s.write("f", b"there")
        with open(s.path("f"), "rb") as f:
            os.rmdir(s.dir)
            self.wait_gone(s.id)
            self.assertEqual(f.read(), b"there")
        for i in range(3):
            self.assertFalse(os.path.exists(s.path("f")))

    def test_ctl(self):
        self.s.ctl("extend 1000\n")
        self.assertIsNotNone(self.s.json()["expires_at"])
        for text in ("extend", "extend x", "nonsense", "destroy now", "restore", "restore none", "clone", "x" * 1000):
            with self.subTest(text=text), self.assertRaises(OSError) as c:
                self.s.ctl(text)
            self.assertIn(c.exception.errno, (errno.EINVAL, errno.ENOENT))

    def test_clone(self):
        self.s.write("d/f", b"x")
        self.s.ctl("clone copy")
        with open(self.sessions("copy/workspace/d/f"), "r+b") as f:
            self.assertEqual(f.read(), b"x")
            f.write(b"y")
        self.assertEqual(self.s.read("d/f"), b"x")
        with open(self.sessions("copy/status.json")) as f:
            self.assertEqual(json.load(f)["cloned_from"], self.s.id)
        os.rmdir(self.sessions("copy"))


class Clones(Case):
    """A clone is answered before it is on the disk."""

    def this_boot(self):
        with open("/proc/sys/kernel/random/boot_id") as f:
            return f.read().strip()

    def mark(self, m, boot):
        database.change(m.state, "UPDATE sessions SET unsynced_boot = ? WHERE entry = 'copy'", boot)

    def marked(self, m):
        return database.sql(m.state, "SELECT entry FROM sessions WHERE unsynced_boot IS NOT NULL")

    @contextlib.contextmanager
    def cloned(self):
        with sbx.Mount() as m:
            s = Session(m, "from")
            s.write("d/f", b"x" * 100000)
            s.ctl("clone copy")
            yield m

    def read_copy(self, m):
        with open(os.path.join(m.mnt, "sessions/copy/workspace/d/f"), "rb") as f:
            return f.read()

    def test_fsync_waits_for_all_of_it(self):
        with self.cloned() as m:
            for path, sync in (("workspace/d/f", os.fsync), ("workspace/d/f", os.fdatasync), ("workspace/d", os.fsync),
                               ("", os.fsync), ("status.json", os.fsync)):
                fd = os.open(os.path.join(m.mnt, "sessions/copy", path), os.O_RDONLY)
                try:
                    sync(fd)
                    self.mark(m, self.this_boot())
                    sync(fd)
                    self.assertEqual(self.marked(m), [])
                finally:
                    os.close(fd)

    def test_it_outlives_the_mount_that_made_it(self):
        with self.cloned() as m:
            m.kill()
            self.mark(m, self.this_boot())
            m.start()
            self.assertEqual(self.read_copy(m), b"x" * 100000)
            self.assertEqual(m.stop(), 0)
            self.assertEqual(self.marked(m), [])
            m.start()
            self.assertEqual(self.read_copy(m), b"x" * 100000)

    def test_another_boot_takes_it_as_a_whole(self):
        with self.cloned() as m:
            with open(os.path.join(m.mnt, "sessions/copy/status.json")) as f:
                copy = json.load(f)["id"]
            m.kill()
            self.mark(m, "00000000-0000-4000-8000-000000000000")
            m.start()
            self.assertNotIn("copy", os.listdir(os.path.join(m.mnt, "sessions")))
            with fskit.Events(m, after=0) as events:
                events.wait(lambda e: e.get("kind") == "session" and e["id"] == copy and e["what"] == "gone")
            self.assertEqual([n for n in os.listdir(os.path.join(m.mnt, "sessions")) if n not in ("new", "latest")], ["from"])
            self.assertFalse(os.path.exists(os.path.join(m.state, "sessions", copy)))
            self.assertEqual(os.stat(os.path.join(m.mnt, "sessions/from/workspace/d/f")).st_size, 100000)


class Runs(Case):
    def test_submitted_here(self):
        run = self.submit_here(b'{"command":["sh","-c","pwd; echo x > f"]}')
        self.assertEqual((run.wait(), run.stdout, self.s.read("f")), ("0", b"/workspace\n", b"x\n"))
        self.assertEqual(run.json()["session_id"], self.s.id)
        self.assertTrue(os.path.samefile(run.path("session"), self.s.dir))
        self.assertEqual(os.readlink(os.path.join(self.s.dir, "runs", run.id)), "../../../runs/" + run.id)

    def test_script_submitted_here(self):
        run = self.submit_here(b"#!/bin/sh\necho script > f\n")
        self.assertEqual((run.wait(), self.s.read("f")), ("0", b"script\n"))

    def test_of_another_session_is_refused(self):
        with self.assertRaises(OSError) as c:
            self.submit_here(b'{"command":["true"],"session_id":"01890a5d-ac96-774b-bcce-b302099a8057"}')
        self.assertEqual(c.exception.errno, errno.EINVAL)

    def test_listed_newest_first(self):
        ids = []
        for _ in range(5):
            run = self.s.submit("true")
            run.wait()
            ids.append(run.id)
        other = self.m.run({"command": ["true"]})
        names = os.listdir(os.path.join(self.s.dir, "runs"))
        self.assertEqual(names, ["new"] + ids[::-1])
        self.assertFalse(os.path.lexists(os.path.join(self.s.dir, "runs", other.id)))
        for i in ids:
            self.assertEqual(sbx.Run(self.m, i).status(), "completed")

    def test_many(self):
        for _ in range(80):
            self.s.submit("true").wait()
        with os.scandir(os.path.join(self.s.dir, "runs")) as it:
            self.assertEqual(len([e for e in it if e.is_symlink()]), 80)


class Snapshots(Case):
    def shots(self, *names):
        return os.path.join(self.s.dir, "snapshots", *names)

    def fill(self):
        self.s.write("d/f", b"first")
        self.s.write("script", b"#!/bin/sh\n")
        os.chmod(self.path("script"), 0o755)
        os.symlink("d/f", self.path("l"))
        os.symlink("/etc/passwd", self.path("out"))
        os.utime(self.path("d/f"), ns=(10**18, 10**18 + 5))

    def test_taken_and_looked_into(self):
        self.fill()
        os.mkdir(self.shots("one"))
        self.s.write("d/f", b"second")
        os.unlink(self.path("script"))
        tree = self.shots("one/tree")
        with open(os.path.join(tree, "d/f"), "rb") as f:
            self.assertEqual(f.read(), b"first")
        st = os.stat(os.path.join(tree, "d/f"))
        self.assertEqual((st.st_mtime_ns, st.st_size, oct(st.st_mode)), (10**18 + 5, 5, "0o100444"))
        self.assertEqual(oct(os.stat(os.path.join(tree, "script")).st_mode), "0o100555")
        self.assertEqual(os.readlink(os.path.join(tree, "l")), "d/f")
        self.assertEqual(os.readlink(os.path.join(tree, "out")), "etc/passwd")
        self.assertEqual(sorted(os.listdir(tree)), ["d", "l", "out", "script"])
        out = self.s.shell("find ../snapshots/one/tree | sort; cp -a ../snapshots/one/tree copy; cat copy/d/f;"
                           "grep -r first ../snapshots; tar c ../snapshots/one | tar t | wc -l")
        self.assertIn("../snapshots/one/tree/d/f:first", out)
        with open(self.shots("one/meta.json")) as f:
            meta = json.load(f)
        self.assertEqual((meta["name"], meta["session_id"]), ("one", self.s.id))

    def test_listing_agrees_with_stat(self):
        self.fill()
        os.mkdir(self.shots("one"))
        for where, _, _ in os.walk(self.shots("one")):
            with os.scandir(where) as it:
                for e in it:
                    self.assertEqual(e.inode(), os.lstat(e.path).st_ino, e.path)

    def test_nothing_in_one_can_be_changed(self):
        self.fill()
        os.mkdir(self.shots("one"))
        tree = self.shots("one/tree")
        refused = (errno.EPERM, errno.EACCES, errno.EROFS)
        self.assertErrno(refused, os.open, tree + "/d/f", os.O_WRONLY)
        self.assertErrno(refused, os.open, tree + "/x", os.O_CREAT | os.O_WRONLY)
        for fn in (os.unlink, os.chmod, os.utime, os.truncate):
            args = {os.chmod: (0o777,), os.truncate: (0,)}.get(fn, ())
            self.assertErrno(refused, fn, tree + "/d/f", *args)
        self.assertErrno(refused, os.mkdir, tree + "/x")
        self.assertErrno(refused + (errno.EXDEV,), os.rename, tree + "/d/f", tree + "/g")
        self.assertErrno(refused, os.rmdir, tree)

    def test_diff(self):
        self.fill()
        os.mkdir(self.shots("one"))
        self.s.write("d/f", b"second")
        self.s.write("new", b"x")
        os.unlink(self.path("l"))
        os.mkdir(self.shots("two"))
        with open(self.shots("two/diff")) as f:
            self.assertEqual({(x["path"], x["change"]) for x in map(json.loads, f)},
                             {("d/f", "content"), ("new", "added"), ("l", "removed")})
        with open(self.shots("one/diff")) as f:
            self.assertEqual(f.read(), "")

    def test_restore(self):
        self.fill()
        os.mkdir(self.shots("one"))
        self.s.write("d/f", b"second")
        self.s.write("d/g", b"second")
        before = os.stat(self.s.work)
        self.s.ctl("restore one")
        self.assertEqual((self.s.read("d/f"), os.listdir(self.path("d"))), (b"first", ["f"]))
        self.assertEqual(os.stat(self.s.work).st_ino, before.st_ino)
        self.assertTrue(os.stat(self.path("script")).st_mode & stat.S_IXUSR)
        self.s.write("d/f", b"third")
        self.assertEqual(self.s.run("cat d/f > seen"), "0")
        self.assertEqual(self.s.read("seen"), b"third")

    def test_removed(self):
        self.fill()
        os.mkdir(self.shots("one"))
        os.listdir(self.shots("one/tree/d"))
        self.assertErrno(errno.EEXIST, os.mkdir, self.shots("one"))
        os.rmdir(self.shots("one"))
        self.assertEqual(os.listdir(self.shots()), [])
        self.assertErrno(errno.ENOENT, os.stat, self.shots("one/tree"))
        self.assertErrno(errno.ENOENT, os.rmdir, self.shots("one"))
        self.s.write("d/f", b"second")
        os.mkdir(self.shots("one"))
        with open(self.shots("one/tree/d/f"), "rb") as f:
            self.assertEqual(f.read(), b"second")

    def test_without_a_name(self):
        self.fill()
        self.s.ctl("snapshot")
        name, = os.listdir(self.shots())
        self.assertEqual(os.listdir(self.shots(name, "tree/d")), ["f"])
        self.s.ctl("restore " + name)
        os.rmdir(self.shots(name))

    def test_not_while_it_runs(self):
        run = self.s.submit("while :; do :; done")
        run.wait_phase("running")
        self.assertErrno(errno.EBUSY, os.mkdir, self.shots("one"))
        run.ctl("kill")
        run.wait()
        os.mkdir(self.shots("one"))

    def test_large_files_and_many(self):
        data = os.urandom(5 << 20)
        self.s.write("big", data)
        for i in range(3000):
            self.s.write("many/%04d" % i, b"%d" % i)
        os.mkdir(self.shots("one"))
        self.s.shell("cmp big ../snapshots/one/tree/big; diff -r many ../snapshots/one/tree/many")
        names = os.listdir(self.shots("one/tree/many"))
        self.assertEqual(names, sorted(names))
        self.assertEqual(len(names), 3000)


class RestoredAtOnce(Case):
    def names(self):
        return sorted(os.path.join(at, n) for at, dirs, files in os.walk(self.s.work) for n in dirs + files)

    def test_what_was_removed_is_back_for_good(self):
        """Watchers are told of what went and came while somebody already looks at what is there now."""
        for i in range(200):
            self.s.write("top/d%d/f%d" % (i % 20, i), b"x")
        self.assertEqual(self.s.run("ls /workspace"), "0")
        before = self.names()
        os.mkdir(self.s.dir + "/snapshots/a")
        for _ in range(12):
            shutil.rmtree(self.path("top"))
            self.s.ctl("restore a")
            self.assertEqual(self.names(), before)
            self.assertEqual(self.names(), before)


class Links(Case):
    """With workspace_links, the server's own user works in the directory itself."""
    settings = {"workspace_links": "true"}

    def test_a_link_to_the_directory(self):
        self.assertEqual(os.readlink(self.s.work), self.s.disk())
        with os.scandir(self.s.dir) as it:
            entry, = [e for e in it if e.name == "workspace"]
            self.assertTrue(entry.is_symlink())
            self.assertEqual(entry.inode(), os.lstat(self.s.work).st_ino)
        self.assertNotEqual(os.statvfs(self.s.work + "/.").f_fsid, os.statvfs(self.s.dir).f_fsid)
        self.assertFalse(os.path.lexists(os.path.join(self.s.dir, "<workspace>")))

    def test_both_sides_write(self):
        self.s.shell("mkdir d; echo 1 > d/f")
        self.assertEqual(self.s.run("cat d/f > seen; echo 2 >> d/f"), "0")
        self.assertEqual((self.s.read("seen"), self.s.read("d/f")), (b"1\n", b"1\n2\n"))

    def test_snapshot_and_restore(self):
        self.s.write("f", b"before")
        os.mkdir(os.path.join(self.s.dir, "snapshots", "one"))
        self.s.write("f", b"after")
        self.s.ctl("restore one")
        self.assertEqual(self.s.read("f"), b"before")

    @unittest.skipUnless(sbx.ROOT, "needs another user")
    def test_others_have_what_they_had(self):
        path = os.path.join(self.m.mnt, "sessions", "of-nobody")
        subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c",
                        "mkdir '%s' && echo x > '%s/workspace/f' && [ ! -L '%s/workspace' ] && rmdir '%s'"
                        % ((path,) * 4)], check=True)


if __name__ == "__main__":
    sbx.main()
