# SPDX-License-Identifier: Apache-2.0
# run: limit=240
"""inotify in a workspace on the mount: what a run, an upload or a restore does there is heard by those who watch."""
import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import api  # noqa: E402
import doors  # noqa: E402
import fskit  # noqa: E402
import sbx  # noqa: E402
import sessions  # noqa: E402
import workkit  # noqa: E402
from fskit import Inotify as I  # noqa: E402

ALL = (I.CREATE | I.DELETE | I.MODIFY | I.CLOSE_WRITE | I.ATTRIB | I.MOVED_FROM | I.MOVED_TO | I.DELETE_SELF |
       I.MOVE_SELF)
# A run that does one thing after another, each when it is told to.
STEPS = "while read step; do eval \"$step\"; done"


class Case(workkit.WorkCase):
    def setUp(self):
        super().setUp()
        self.ino = I()
        self.addCleanup(os.close, self.ino.fd)

    @staticmethod
    def step(run, text):
        with open(run.path("stdin"), "wb", buffering=0) as f:
            f.write(text.encode() + b"\n")

    def watch(self, *names):
        self.ino.add(self.path(*names), ALL)

    def heard(self, mask, name, *where, ino=None):
        """Waits for an event with all of these bits."""
        path = self.path(*where)
        return (ino or self.ino).wait(lambda p, m, n: p == path and n == name and m & mask == mask)

    def names(self, mask, *where):
        return [n for p, m, n in self.ino.seen if p == self.path(*where) and m & mask]

    def settle(self, *where):
        """What is due is told in order: so when this has been heard, everything before it has."""
        self.assertEqual(self.s.run("echo > last-one; sleep 0.3; rm last-one"), "0")
        self.heard(I.DELETE, "last-one", *where)


class FromRuns(Case):
    def test_a_file_is_made_written_changed_and_removed(self):
        self.watch()
        self.assertEqual(self.s.run("echo 1 > f"), "0")
        self.heard(I.CREATE, "f")
        self.heard(I.MODIFY, "f")
        self.heard(I.CLOSE_WRITE, "f")
        self.assertEqual(self.s.read("f"), b"1\n")
        self.ino.seen.clear()
        self.assertEqual(self.s.run("echo 2 >> f"), "0")
        self.heard(I.MODIFY, "f")
        self.heard(I.CLOSE_WRITE, "f")
        self.assertEqual(self.names(I.CREATE | I.DELETE), [])
        self.assertEqual(self.s.run("chmod 600 f"), "0")
        self.heard(I.ATTRIB, "f")
        self.watch("f")
        self.assertEqual(self.s.run("rm f"), "0")
        self.heard(I.DELETE, "f")
        self.heard(I.DELETE_SELF, "", "f")
        self.assertFalse(os.path.exists(self.path("f")))

    def test_every_kind_of_file(self):
        self.watch()
        self.assertEqual(self.s.run("mkdir d; ln -s /etc/passwd l; mkfifo p; : > f; ln f h"), "0")
        self.heard(I.CREATE | I.ISDIR, "d")
        for name in "lpfh":
            _, mask, _ = self.heard(I.CREATE, name)
            self.assertFalse(mask & I.ISDIR)
        self.assertEqual(os.readlink(self.path("l")), "etc/passwd")
        self.assertEqual(self.s.run("rmdir d; rm l p f h"), "0")
        self.heard(I.DELETE | I.ISDIR, "d")
        for name in "lpfh":
            self.heard(I.DELETE, name)
        self.assertEqual(os.listdir(self.s.work), [])

    def test_moves_have_two_halves(self):
        for d in ("a", "b"):
            os.mkdir(self.path(d))
            self.watch(d)
        self.s.write("a/f", b"x")
        os.mkdir(self.path("a/sub"))
        self.watch("a/sub")
        self.ino.read()
        self.ino.seen.clear()
        self.ino.cookies.clear()
        self.assertEqual(self.s.run("mv a/f b/g; mv a/sub b/sub"), "0")
        for old, new, bits in (("f", "g", 0), ("sub", "sub", I.ISDIR)):
            self.heard(I.MOVED_TO | bits, new, "b")
            cookies = [c for (p, m, n), c in zip(self.ino.seen, self.ino.cookies)
                       if n in (old, new) and m & (I.MOVED_FROM | I.MOVED_TO) and (m & I.ISDIR) == bits]
            self.assertEqual((len(cookies), len(set(cookies))), (2, 1), self.ino.seen)
        self.heard(I.MOVE_SELF, "", "a/sub")
        # Who watches a directory goes on to do so where it is now.
        self.assertEqual(self.s.run("echo > b/sub/later"), "0")
        self.heard(I.CREATE, "later", "a/sub")
        self.assertEqual((self.s.read("b/g"), os.listdir(self.path("a"))), (b"x", []))

    def test_a_file_that_is_replaced(self):
        self.s.write("f", b"old")
        self.watch()
        self.watch("f")
        self.ino.read()
        self.ino.seen.clear()
        self.assertEqual(self.s.run("echo new > .f.tmp; mv .f.tmp f"), "0")
        self.heard(I.MOVED_TO, "f")
        self.heard(I.DELETE_SELF, "", "f")
        self.assertEqual(self.s.read("f"), b"new\n")

    def test_moved_out_of_and_into_what_nobody_watches(self):
        self.s.shell("mkdir -p in/deep; echo x > f")
        self.assertEqual(self.s.run("mkdir -p new/er"), "0")
        self.watch()
        self.assertEqual(self.s.run("mv f new/er/g"), "0")
        self.ino.wait(lambda p, m, n: n == "f" and m & (I.DELETE | I.MOVED_FROM))
        self.assertEqual(self.s.run("mv new/er/g back"), "0")
        self.ino.wait(lambda p, m, n: n == "back" and m & (I.CREATE | I.MOVED_TO))
        self.assertEqual(self.s.read("back"), b"x\n")

    def test_whoever_is_inside_stays_there(self):
        """What is told changes nothing for those who have a directory or a file open."""
        self.assertEqual(self.s.run("mkdir d; echo 1 > d/f"), "0")
        self.watch()
        self.watch("d")
        with subprocess.Popen(["sh", "-c", "read x; pwd -P; cat f; ls"], cwd=self.path("d"), stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE) as p, open(self.path("d/f"), "rb") as f:
            self.assertEqual(self.s.run("echo 2 > d/f; echo > d/g; chmod 755 d"), "0")
            self.heard(I.CREATE, "g", "d")
            self.heard(I.ATTRIB, "d")
            out, _ = p.communicate(b"\n")
            self.assertEqual(out.decode(), self.path("d") + "\n2\nf\ng\n")
            self.assertEqual(f.read(), b"2\n")

    def test_removed_with_all_that_is_in_it(self):
        self.s.shell("mkdir -p d/e; echo > d/e/f; echo > d/g")
        for where in ((), ("d",), ("d/e",)):
            self.watch(*where)
        self.assertEqual(self.s.run("rm -r d"), "0")
        self.heard(I.DELETE, "f", "d/e")
        self.heard(I.DELETE, "e", "d")
        self.heard(I.DELETE, "g", "d")
        self.heard(I.DELETE | I.ISDIR, "d")
        self.heard(I.DELETE_SELF, "", "d/e")

    def test_what_goes_through_the_mount_is_told_once(self):
        run = self.s.submit(STEPS, interactive=True, spec_version="1.1")
        run.wait_phase("running")
        self.watch()
        self.s.shell("echo 1 > mine; mkdir dir; mv mine own; chmod 600 own; ln -s own l; rm l; rmdir dir")
        self.step(run, "echo > last")
        self.heard(I.CREATE, "last")
        run.ctl("eof")
        run.wait()
        self.settle()
        for mask, names in ((I.CREATE, ["mine", "dir", "l", "last", "last-one"]),
                            (I.DELETE, ["l", "dir", "last-one"]), (I.MOVED_TO, ["own"]), (I.MOVED_FROM, ["mine"]),
                            (I.ATTRIB, ["own"])):
            self.assertEqual(self.names(mask), names)

    def test_few_events_of_a_file_that_is_written_all_the_time(self):
        self.watch()
        self.assertEqual(self.s.run("i=0; while [ $i -lt 3000 ]; do echo $i >> f; i=$((i+1)); done"), "0")
        self.settle()
        self.assertGreaterEqual(len(self.names(I.CLOSE_WRITE)), 1)
        self.assertLess(len([1 for p, m, n in self.ino.seen if n == "f" and m & I.MODIFY]), 500)

    def test_links_that_lead_out(self):
        with sbx.tempfile.TemporaryDirectory(prefix="sbx-out-") as out:
            self.watch()
            self.assertEqual(self.s.run("ln -s '%s' out; mkdir d; ln -s ../.. d/up" % out), "0")
            self.heard(I.CREATE, "d")
            self.watch("d")
            with open(os.path.join(out, "secret"), "w"):
                pass
            self.settle()
            self.assertEqual([n for p, m, n in self.ino.seen if n == "secret"], [])
            self.assertEqual(os.listdir(out), ["secret"])


class Deep(Case):
    rest = b""

    def inotifywait(self):
        if not shutil.which("inotifywait"):
            self.skipTest("no inotifywait")
        p = subprocess.Popen(["inotifywait", "-m", "-r", "--format", "%w%f %e", self.s.work],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(p.wait)
        self.addCleanup(p.stderr.close)
        self.addCleanup(p.stdout.close)
        self.addCleanup(p.terminate)
        while b"Watches established" not in p.stderr.readline():
            pass
        return p

    def lines_until(self, p, *wanted):
        wanted = {w.encode() for w in wanted}
        while wanted:
            line = self.line(p, wanted)
            self.assertTrue(line, "inotifywait ended")
            wanted -= {line.strip().replace(os.fsencode(self.s.work) + b"/", b"")}

    def line(self, p, wanted):
        while b"\n" not in self.rest:
            if not fskit.readable(p.stdout.fileno(), 20 * sbx.SLOW):
                self.fail("never told of: %r" % sorted(wanted))
            self.rest += os.read(p.stdout.fileno(), 65536)
        line, _, self.rest = self.rest.partition(b"\n")
        return line

    def test_inotifywait_recursively(self):
        p = self.inotifywait()
        run = self.s.submit(STEPS, interactive=True, spec_version="1.1")
        run.wait_phase("running")
        for step, *lines in (("echo 1 > f", "f CREATE", "f MODIFY", "f CLOSE_WRITE,CLOSE"),
                             ("mkdir d", "d CREATE,ISDIR"),
                             ("echo 2 > d/g", "d/g CREATE", "d/g CLOSE_WRITE,CLOSE"),
                             ("mv d/g d/h", "d/g MOVED_FROM", "d/h MOVED_TO"),
                             ("rm d/h", "d/h DELETE"),
                             ("rmdir d", "d DELETE,ISDIR"),
                             ("mkdir -p a/b/c; echo > a/b/c/f; echo > a/b/g", "a CREATE,ISDIR", "a/b/c/f CREATE",
                              "a/b/g CREATE"),
                             ("echo >> a/b/c/f", "a/b/c/f MODIFY")):
            with self.subTest(step=step):
                self.step(run, step)
                self.lines_until(p, *lines)
        run.ctl("eof")
        run.wait()

    def test_short_run_of_which_one_hears_when_it_is_over(self):
        p = self.inotifywait()
        for i in range(20):
            self.assertEqual(self.s.run("echo > f%d" % i), "0")
            self.lines_until(p, "f%d CREATE" % i)

    def test_tree_of_many_directories(self):
        p = self.inotifywait()
        self.assertEqual(self.s.run("for i in $(seq 40); do mkdir -p d$i/e/f; echo > d$i/e/f/x; done"), "0")
        self.lines_until(p, *["d%d/e/f/x CREATE" % i for i in range(1, 41)])


class Flood(Case):
    settings = {"tier_standard_workspace_cap_mb": "1000", "workspace_cap_mb": "1000"}

    def memory(self):
        with open("/proc/%d/status" % self.m.proc.pid) as f:
            return int(f.read().split("VmRSS:")[1].split()[0])

    def test_a_run_that_makes_more_than_anybody_can_hear(self):
        self.watch()
        before = self.memory()
        run = self.s.submit("seq 2000 | xargs mkdir; seq 12000 | sed s,^,x, | xargs touch; ls | xargs rm -r")
        # Others are served meanwhile.
        other = self.m.run({"command": ["echo", "x"]})
        self.assertEqual(other.stdout, b"x\n")
        self.assertEqual(run.wait(60), "0")
        self.assertLess(self.memory() - before, 4096 * (20 if sbx.sanitizer(sbx.SANDBOXFS) else 1))
        self.assertEqual(self.s.run("echo > after"), "0")
        self.heard(I.CREATE, "after")


class FromOthers(Case):
    """Uploads over HTTP, and restores through either door."""

    @classmethod
    def setUpClass(cls):
        cls.p = doors.Pair()
        cls.p.start()
        cls.addClassCleanup(cls.p.close)
        cls.m = cls.p.m

    def test_uploads(self):
        s = sessions.Session(self.p.a, self.s.id)
        work = self.s.work
        os.mkdir(os.path.join(work, "d"))
        self.ino.add(work, ALL)
        self.ino.add(os.path.join(work, "d"), ALL)
        s.put(("up.txt", b"uploaded"), ("d/deep.txt", b"deep"), ("new/er.txt", b"new"))
        for where, name in ((work, "up.txt"), (work + "/d", "deep.txt"), (work, "new")):
            self.ino.wait(lambda p, m, n: p == where and n == name and m & (I.CREATE | I.MOVED_TO))
        self.ino.wait(lambda p, m, n: n == "up.txt" and m & I.CLOSE_WRITE)
        with open(os.path.join(work, "up.txt"), "rb") as f:
            self.assertEqual(f.read(), b"uploaded")

    def restored(self, restore):
        self.s.shell("mkdir kept gone; echo first > f; echo x > kept/x")
        os.mkdir(os.path.join(self.s.dir, "snapshots", "one"))
        self.s.shell("rm -r gone; echo second > f; mkdir other; rm kept/x")
        os.listdir(self.path("kept"))
        self.watch()
        restore()
        self.heard(I.CREATE, "f")
        self.heard(I.CREATE | I.ISDIR, "gone")
        self.heard(I.DELETE | I.ISDIR, "other")
        self.assertEqual(sorted(os.listdir(self.s.work)), ["f", "gone", "kept"])
        self.assertEqual(self.s.read("f"), b"first\n")
        # What is watched is the new directory, and not the one before.
        self.ino.seen.clear()
        self.assertEqual(self.s.run("echo > later"), "0")
        self.heard(I.CREATE, "later")

    def test_restore_by_the_mount(self):
        self.restored(lambda: self.s.ctl("restore one"))

    def test_restore_by_http(self):
        def restore():
            answer = sessions.Session(self.p.a, self.s.id).restore("one")
            self.assertEqual(answer.status, 200, answer)
        self.restored(restore)


class SwitchedOff(Case):
    settings = {"inotify": "false"}

    def test_no_events_of_others_and_everything_else_works(self):
        self.watch()
        self.assertEqual(self.s.run("echo > f"), "0")
        self.assertEqual(os.listdir(self.s.work), ["f"])
        self.s.write("g", b"x")
        self.heard(I.CLOSE_WRITE, "g")
        self.assertEqual({n for p, m, n in self.ino.seen}, {"g"})


class Health(sbx.Case):
    """What keeps watchers from hearing everything is said in health, by both doors."""
    settings = {"workers": "1"}

    def reasons(self, mount, expected):
        """Waits until both say so: the thread that watches tells."""
        docs = []

        def same():
            with open(os.path.join(mount.mnt, "health")) as f:
                docs[:] = [json.load(f), self.a.get("/health").json]
            return [d["watching"].get("reasons") for d in docs] == [expected] * 2
        self.a.until(same, timeout=60)
        self.assertEqual([d["watching"]["healthy"] for d in docs], [not expected] * 2)
        self.assertEqual([d["ok"] for d in docs], [True] * 2)

    def setUp(self):
        self.a = api.Apid(state=self.m.state)
        self.addCleanup(self.a.close)
        self.a.start()

    def other(self, *prefix, env=None):
        m = sbx.Mount(state=self.m.state, opts=["workers=0"], prefix=list(prefix), env=env)
        self.addCleanup(m.close)
        m.start()
        return m

    def test_events_that_were_lost(self):
        self.reasons(self.m, None)
        s = workkit.Session(self.m, "lost")
        os.listdir(s.work)
        for i in range(40000):  # the kernel keeps 16384
            os.close(os.open(s.disk(str(i)), os.O_CREAT | os.O_WRONLY))
        self.reasons(self.m, ["events_lost"])
        self.m.stop()
        self.m.start()
        self.reasons(self.m, None)

    def left_out(self, s, *names):
        for name in names:
            os.mkdir(s.path(name))
        for name in names:
            os.stat(s.path(name))

    def other_of_few(self):
        return self.other("sh", "-c", 'ulimit -n 300; exec "$0" "$@"')

    def said_us(self):
        """When a directory was left out, by what all mounts said last."""
        with contextlib.closing(sqlite3.connect(os.path.join(self.m.state, "state.db"))) as db:
            (text,), = db.execute("SELECT value FROM meta WHERE name = 'watching'")
        return max(said["unwatched_us"] for said in json.loads(text).values())

    def test_directories_that_are_left_out_again(self):
        """Health forgets in ten minutes, so it hears of it again and again; although nothing else happens."""
        m = self.other_of_few()
        s = workkit.Session(m, "on")
        self.left_out(s, *map(str, range(100)))
        self.reasons(m, ["directories_not_watched"])
        now = time.time() * 1e6
        self.left_out(s, "again")
        self.a.until(lambda: self.said_us() >= now)

    def test_what_cannot_be_said_is_said_later(self):
        m = self.other_of_few()
        s = workkit.Session(m, "held")
        with contextlib.closing(sqlite3.connect(os.path.join(m.state, "state.db"), isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            with api.watch(m.log_path, 0x2) as ring:  # IN_MODIFY
                self.left_out(s, *map(str, range(100)))
                while "cannot say how workspaces are watched" not in m.errors():
                    self.assertTrue(ring(20 * sbx.SLOW))
            db.execute("COMMIT")
        self.reasons(m, ["directories_not_watched"])

    def test_a_stop_waits_for_nobody(self):
        m = self.other_of_few()
        s = workkit.Session(m, "stop")
        self.left_out(s, *map(str, range(100)))
        self.reasons(m, ["directories_not_watched"])
        with contextlib.closing(sqlite3.connect(os.path.join(m.state, "state.db"), isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            self.assertEqual(m.stop(), 0)
            self.assertIn('error="interrupted while others held the database', m.errors())
        self.reasons(self.m, None)

    def test_directories_that_are_too_many(self):
        m = self.other_of_few()
        s = workkit.Session(m, "many")
        self.left_out(s, *map(str, range(100)))
        self.reasons(m, ["directories_not_watched"])
        m.stop()
        self.reasons(self.m, None)

    def test_a_kernel_that_cannot(self):
        if not (sbx.ROOT and shutil.which("strace")):
            self.skipTest("needs root and strace")
        m = self.other("strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fanotify_init", "-e",
                       "inject=fanotify_init:error=ENOSYS", env={"ASAN_OPTIONS": "detect_leaks=0"})
        self.reasons(m, ["workspaces_not_watched"])
        self.reasons(self.m, ["workspaces_not_watched"])
        m.stop()
        self.reasons(self.m, None)
        m.start()
        self.reasons(self.m, ["workspaces_not_watched"])
        m.kill()
        self.reasons(self.m, None)


if __name__ == "__main__":
    sbx.main()
