# SPDX-License-Identifier: Apache-2.0
"""A workspace is made by code that nobody trusts, while somebody looks at it: what that code does is seen at once,
leads nowhere else, and holds up nobody; and other users see none of it."""
import errno
import json
import os
import stat
import sys
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import fskit  # noqa: E402
import sbx  # noqa: E402
from fskit import ALICE, BOB, as_user  # noqa: E402
from workkit import Session, WorkCase  # noqa: E402


class Links(WorkCase):
    """What leads out is shown as if the workspace were the root of all."""

    SHOWN = (  # directory of the link, what it says, what it shows
        ("", "/etc/passwd", "etc/passwd"), ("", "/", "."), ("", "..", "."), ("", "../..", "."),
        ("", "../../../../../../etc/passwd", "etc/passwd"), ("", "a/../../x", "x"), ("", "/workspace/a", "a"),
        ("", "/workspace", "."), ("", "/workspaces", "workspaces"), ("", "./a", "./a"), ("", "a//b/", "a//b/"),
        ("d", "..", ".."), ("d", "../..", ".."), ("d", "../a", "../a"), ("d", "../../a", "../a"), ("d", "/a", "../a"),
        ("d", "b/../../a", "../a"), ("d", "b/../../../a", "../a"), ("d", "/workspace/../etc", "../etc"),
        ("d/e", "../../a", "../../a"), ("d/e", "../../../a", "../../a"), ("d/e", "/proc/self/root", "../../proc/self/root"),
        ("d/e", "x/../y", "y"), ("d/e", "../x/../y", "../y"),
    )

    def test_what_they_show(self):
        os.makedirs(self.s.disk("d/e"))
        for i, (where, target, shown) in enumerate(self.SHOWN):
            name = os.path.join(where, "l%d" % i)
            os.symlink(target, self.s.disk(name))
            with self.subTest(where=where, target=target):
                self.assertEqual(os.readlink(self.path(name)), shown)
                self.assertEqual(os.lstat(self.path(name)).st_size, len(shown))

    def test_nothing_of_the_host_is_reached(self):
        os.makedirs(self.s.disk("d/e"))
        os.symlink("/etc", self.s.disk("d/e/etc"))
        os.symlink("../" * 40 + "etc", self.s.disk("d/e/up"))
        os.symlink("d/..", self.s.disk("dot"))
        os.symlink("dot/../dot/../../status.json", self.s.disk("session"))
        for name in ("d/e/etc/passwd", "d/e/up/passwd", "session"):
            self.assertFalse(os.path.exists(self.path(name)), name)
        os.makedirs(self.path("etc"))
        self.s.write("etc/passwd", b"of the workspace")
        for name in ("d/e/etc/passwd", "d/e/up/passwd"):
            self.assertEqual(self.s.read(name), b"of the workspace")

    def test_one_link_at_two_depths(self):
        os.makedirs(self.s.disk("d/e/f"))
        os.symlink("../../../a", self.s.disk("d/e/f/l"))
        os.link(self.s.disk("d/e/f/l"), self.s.disk("l"), follow_symlinks=False)
        for _ in range(2):
            self.assertEqual(os.readlink(self.path("d/e/f/l")), "../../../a")
            self.assertEqual(os.readlink(self.path("l")), "a")
        os.rename(self.path("d/e/f/l"), self.path("d/m"))
        self.assertEqual(os.readlink(self.path("d/m")), "../a")
        os.rename(self.path("d/e/f"), self.path("f"))

    def test_depth_follows_a_directory_that_moves(self):
        os.makedirs(self.path("a/b/c"))
        os.symlink("../../../x", self.path("a/b/c/l"))
        self.assertEqual(os.readlink(self.path("a/b/c/l")), "../../../x")
        os.rename(self.path("a/b/c"), self.path("c"))
        self.assertEqual(os.readlink(self.path("c/l")), "../x")

    def test_writing_through_a_link_stays_inside(self):
        target = os.path.join(self.m.base, "outside")
        os.symlink(target, self.path("l"))
        with self.assertRaises(FileNotFoundError):
            self.s.write("l", b"x")
        self.assertFalse(os.path.exists(target))


class Seen(WorkCase):
    """What a run does is seen at once, by whoever looks, in whatever way."""

    def both(self, script):
        """A run that goes on between lines of ours: it waits for a file named go."""
        run = self.s.submit("%s; touch ready; while [ ! -e go ]; do :; done" % script)
        while not os.path.exists(self.path("ready")):
            self.assertNotIn(run.status(), sbx.TERMINAL)
            os.sched_yield()
        return run

    def finish(self, run):
        self.s.write("go", b"")
        self.assertEqual(run.wait(), "0")

    def test_new_changed_and_gone(self):
        self.s.write("changed", b"before")
        self.s.write("gone", b"before")
        self.s.write("d/kept", b"")
        for name in ("new", "changed", "gone", "d/new"):
            os.path.exists(self.path(name))
        os.listdir(self.path("d"))
        self.assertEqual(self.s.run("echo new > new; echo now > changed; rm gone; echo x > d/new"), "0")
        self.assertEqual((self.s.read("new"), self.s.read("changed")), (b"new\n", b"now\n"))
        self.assertFalse(os.path.exists(self.path("gone")))
        self.assertEqual(sorted(os.listdir(self.path("d"))), ["kept", "new"])

    def test_same_size_and_time(self):
        self.s.write("f", b"before")
        os.utime(self.path("f"), ns=(10**18, 10**18))
        self.assertEqual(self.s.read("f"), b"before")
        self.assertEqual(self.s.run("touch -r f t; printf after! > f; touch -r t f"), "0")
        self.assertEqual(self.s.read("f"), b"after!")

    def test_while_it_runs(self):
        run = self.both("echo 1 > f")
        self.assertEqual(self.s.read("f"), b"1\n")
        with open(self.s.disk("f"), "wb") as f:
            f.write(b"22\n")
        self.assertEqual((self.s.read("f"), os.stat(self.path("f")).st_size), (b"22\n", 3))
        os.rename(self.s.disk("f"), self.s.disk("g"))
        self.assertFalse(os.path.exists(self.path("f")))
        self.assertEqual(self.s.read("g"), b"22\n")
        self.assertIn("g", os.listdir(self.s.work))
        self.finish(run)

    def test_open_file_is_read_on(self):
        self.s.write("f", b"before\n")
        with open(self.path("f"), "rb", buffering=0) as f:
            self.assertEqual(f.read(100), b"before\n")
            self.assertEqual(self.s.run("echo after >> f"), "0")
            self.assertEqual(f.read(100), b"after\n")

    def test_inside_a_directory(self):
        os.mkdir(self.path("d"))
        fd = os.open(self.path("d"), os.O_RDONLY)
        self.addCleanup(os.close, fd)
        self.assertEqual(os.listdir(fd), [])
        self.assertEqual(self.s.run("echo x > d/f"), "0")
        self.assertEqual(os.listdir(fd), ["f"])
        self.assertEqual(os.stat("f", dir_fd=fd).st_size, 2)

    def test_working_directory_lives_through_runs(self):
        os.makedirs(self.path("d/e"))
        out = self.s.shell("""cd d/e; for i in 1 2 3; do
            echo '{"command":["sh","-c","echo x >> d/e/f"]}' > ../../../runs/new; read -r id < ../../../runs/new
            cat "$MNT/runs/$id/.wait"; wc -l < f; pwd -P; done""")
        self.assertEqual(out.split(), [w for i in "123" for w in ("0", i, self.path("d/e"))])

    def test_written_by_us_and_read_by_the_run(self):
        for i in range(5):
            self.s.write("in", b"%d\n" % i)
            run = self.s.submit("cat in; wc -c < in")
            run.wait()
            self.assertEqual(run.stdout.split(), [b"%d" % i, b"2"])

    def test_restore_by_another_door(self):
        self.s.write("d/f", b"old")
        self.s.ctl("snapshot one")
        self.s.write("d/f", b"new")
        self.s.write("g", b"new")
        self.assertEqual(self.s.read("d/f"), b"new")
        with sbx.Mount(state=self.m.state, opts=["workers=0"]) as other:
            with open(os.path.join(other.mnt, "sessions", self.s.name, "ctl"), "w") as f:
                f.write("restore one")
            with fskit.Events(self.m, after=0) as events:
                events.wait(lambda e: e.get("what") == "files" and e["id"] == self.s.id)
        self.assertEqual(self.s.read("d/f"), b"old")
        self.assertEqual(os.listdir(self.s.work), ["d"])

    def test_hostile_while_we_walk(self):
        """Directories, links and files change places under our feet: errors, but nothing of the host."""
        os.mkdir(self.path("t"))
        with open("/etc/passwd", "rb") as f:
            secret = f.read()
        run = self.s.submit("""touch ready; cd t; while [ ! -e ../go ]; do
            mkdir -p a/b; echo f > a/b/f; mv a c; ln -s /etc a; mv c/b/f passwd; ln -s ../../../../etc/passwd c/b/f
            rm a; mv c a; mkfifo a/p; rm -rf a passwd; ln -s ../.. a; rm a; echo x > a; rm a; done""")
        for _ in range(300):
            for where, dirs, files in os.walk(self.path("t")):
                for name in dirs + files:
                    p = os.path.join(where, name)
                    try:
                        if not stat.S_ISFIFO(os.stat(p).st_mode):
                            with open(p, "rb", opener=lambda q, fl: os.open(q, fl | os.O_NONBLOCK)) as f:
                                self.assertNotEqual(f.read(), secret)
                        self.assertTrue(os.path.realpath(p).startswith(self.s.work), os.path.realpath(p))
                    except OSError:
                        pass
            os.path.exists(self.path("t/a/passwd"))
        self.s.write("go", b"")
        self.assertEqual(run.wait(60), "0")


class Planted(WorkCase):
    def test_special_files(self):
        self.assertEqual(self.s.run("mkfifo p; python3 -c 'import socket; socket.socket(1).bind(\"s\")' || true"), "0")
        self.assertTrue(stat.S_ISFIFO(os.lstat(self.path("p")).st_mode))
        fd = os.open(self.path("p"), os.O_RDONLY | os.O_NONBLOCK)  # one of our kernel's, with nobody in it
        self.assertEqual(os.read(fd, 1), b"")
        os.close(fd)
        if os.path.lexists(self.path("s")):
            self.assertRaises(OSError, open, self.path("s"))
        os.unlink(self.path("p"))

    @unittest.skipUnless(sbx.ROOT, "only root can make a device")
    def test_device_is_dead(self):
        os.mknod(self.s.disk("null"), stat.S_IFCHR | 0o666, os.makedev(1, 3))
        with self.assertRaises(OSError) as c:
            os.open(self.path("null"), os.O_RDWR)
        self.assertEqual(c.exception.errno, errno.EACCES)

    def test_fifo_where_we_create(self):
        os.mkfifo(self.s.disk("f"))
        fd = os.open(self.path("f"), os.O_RDWR | os.O_CREAT | os.O_NONBLOCK)  # the kernel's own
        os.close(fd)

    def test_deep_tree(self):
        d = os.open(self.s.disk(), os.O_PATH)
        for _ in range(1500):
            os.mkdir("d", dir_fd=d)
            n = os.open("d", os.O_PATH, dir_fd=d)
            os.close(d)
            d = n
        os.close(d)
        self.s.shell("find . | wc -l; rm -rf d", check=False)
        self.s.write("alive", b"")

    def test_a_full_directory(self):
        self.assertEqual(self.s.run("mkdir d; cd d; seq 20000 | xargs touch"), "0")
        self.assertEqual(len(os.listdir(self.path("d"))), 20000)
        self.s.shell("rm -rf d")


class Killed(WorkCase):
    def test_kill_and_mount_again(self):
        with sbx.Mount() as m:
            s = Session(m, "k")
            s.write("d/f", b"there")
            f = open(s.path("d/f"), "r+b", buffering=0)
            m.kill()
            with self.assertRaises(OSError) as c:
                f.write(b"x")
            self.assertIn(c.exception.errno, (errno.ENOTCONN, errno.ECONNABORTED))
            f.close()
            m.start()
            self.assertEqual(s.read("d/f"), b"there")
            s.write("d/f", b"again")
            self.assertEqual(s.run("cat d/f > g"), "0")
            self.assertEqual(s.read("g"), b"again")

    def test_killed_while_it_tells_the_kernel(self):
        for _ in range(5):
            with sbx.Mount() as m:
                s = Session(m, "k")
                for i in range(200):
                    s.write("f%d" % i, b"")
                stop = threading.Event()

                def look(s=s, stop=stop):
                    while not stop.is_set():
                        try:
                            os.listdir(s.work)
                            os.path.exists(s.path("f1"))
                            with open(s.path("new"), "w"):
                                pass
                            os.unlink(s.path("new"))
                        except OSError:
                            pass
                t = threading.Thread(target=look)
                t.start()
                run = s.submit("true")
                run.wait_phase(sbx.TERMINAL)
                m.kill()
                stop.set()
                t.join(20 * sbx.SLOW)
                self.assertFalse(t.is_alive())
                m.start()


@unittest.skipUnless(sbx.ROOT, "only root can act for several users")
class Users(sbx.Case):
    def path(self, *names):
        return os.path.join(self.m.mnt, "sessions", *names)

    def session(self, uid, name):
        def make():
            os.mkdir(self.path(name))
            with open(self.path(name, "status.json")) as f:
                return json.load(f)["id"]
        return as_user(uid, make)

    def names(self, uid):
        return sorted(set(as_user(uid, os.listdir, self.path())) - {"new", "latest"})

    def assertHidden(self, uid, path):
        for fn in (os.listdir, os.stat, lambda p: os.open(p, os.O_PATH), lambda p: os.listdir(p + "/workspace"),
                   lambda p: os.stat(p + "/workspace/f"), lambda p: os.mkdir(p + "/snapshots/x"), os.rmdir,
                   lambda p: os.open(p + "/ctl", os.O_WRONLY), lambda p: os.open(p + "/runs/new", os.O_WRONLY)):
            with self.assertRaises(OSError) as c:
                as_user(uid, lambda fn=fn: fn(path) and None)
            self.assertIn(c.exception.errno, (errno.ENOENT, errno.EACCES, errno.EPERM))

    def test_same_name_for_two(self):
        a, b = self.session(ALICE, "same"), self.session(BOB, "same")

        def write(text):
            with open(self.path("same/workspace/f"), "w") as f:
                f.write(text)

        def read():
            with open(self.path("same/workspace/f")) as f:
                return f.read()
        as_user(ALICE, write, "alice")
        as_user(BOB, write, "bob")
        for _ in range(3):
            self.assertEqual((as_user(ALICE, read), as_user(BOB, read)), ("alice", "bob"))
        self.assertIn("same", self.names(ALICE))
        self.assertIn("same", self.names(BOB))
        self.assertHidden(ALICE, self.path(b))
        self.assertHidden(BOB, self.path(a))
        self.assertLessEqual({a, b}, set(os.listdir(self.path())))  # root, by their ids
        with open(self.path(a, "workspace/f")) as f:
            self.assertEqual(f.read(), "alice")
        as_user(ALICE, os.rmdir, self.path("same"))
        self.assertEqual(as_user(BOB, read), "bob")
        as_user(BOB, os.rmdir, self.path("same"))

    def test_foreign_session_is_not_there(self):
        a = self.session(ALICE, "hers")
        as_user(ALICE, lambda: os.close(os.open(self.path("hers/workspace/f"), os.O_CREAT | os.O_WRONLY)))
        for name in ("hers", a):
            self.assertHidden(BOB, self.path(name))
        self.assertNotIn("hers", self.names(BOB))

    def test_files_belong_to_the_user_whoever_made_them(self):
        a = self.session(ALICE, "owned")

        def make():
            with open(self.path("owned/workspace/mine"), "w") as f:
                f.write("x")
            os.mkdir(self.path("owned/workspace/d"))
            os.symlink("mine", self.path("owned/workspace/l"))
            run = self.m.submit({"command": ["sh", "-c", "echo y > theirs; echo z >> mine; mkdir d/e; touch d/e/f"],
                                 "session_id": a})
            return run.wait()
        self.assertEqual(as_user(ALICE, make), "0")

        def look():
            for name in ("mine", "theirs", "d", "d/e", "d/e/f", "l", ""):
                st = os.lstat(self.path("owned/workspace", name))
                assert (st.st_uid, st.st_gid) == (ALICE, ALICE), (name, st)
            with open(self.path("owned/workspace/theirs"), "a") as f:
                f.write("mine now")
            os.chmod(self.path("owned/workspace/theirs"), 0o600)
            os.rename(self.path("owned/workspace/d/e"), self.path("owned/workspace/e"))
            os.unlink(self.path("owned/workspace/e/f"))
            with open(self.path("owned/workspace/mine")) as f:
                return f.read()
        self.assertEqual(as_user(ALICE, look), "xz\n")
        disk = {os.lstat(os.path.join(w, n)).st_uid
                for w, ds, fs in os.walk(os.path.join(self.m.state, "sessions", a, "workspace")) for n in ds + fs}
        self.assertEqual(len(disk), 1)

    def test_mode_holds(self):
        self.session(ALICE, "modes")

        def try_it():
            p = self.path("modes/workspace/f")
            os.close(os.open(p, os.O_CREAT | os.O_WRONLY, 0o400))
            try:
                os.open(p, os.O_WRONLY)
            except PermissionError:
                return "refused"
        self.assertEqual(as_user(ALICE, try_it), "refused")

    def test_nobody_removes_anothers(self):
        a = self.session(ALICE, "sticky")
        for name in ("sticky", a):
            with self.assertRaises(OSError):
                as_user(BOB, os.rmdir, self.path(name))
        self.assertIn("sticky", self.names(ALICE))


if __name__ == "__main__":
    sbx.main()
