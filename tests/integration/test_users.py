# SPDX-License-Identifier: Apache-2.0
"""Who sees what: users on one mount see their own runs, also after the kernel has learned the names of
others'."""
import errno
import json
import os
import stat
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import fskit  # noqa: E402
import sbx  # noqa: E402
from fskit import ALICE, BOB, CAROL, as_user  # noqa: E402

HELLO = {"command": ["sh", "-c", "echo hello; echo x > a"], "capture_patterns": ["a"]}
FILES = ("spec.json", "status", "status.json", "why", "log", "stdout", "stderr", "log.ndjson", "exit_code",
         ".wait", ".stream", "artifacts/a")


def slurp(path):
    with open(path, "rb") as f:
        return f.read().decode()


a_name = os.path.basename


@unittest.skipUnless(sbx.ROOT, "only root can act for several users")
class UserCase(sbx.Case):
    def path(self, *names):
        return os.path.join(self.m.mnt, *names)

    def runs(self, uid):
        return as_user(uid, self.m.runs)

    def finished(self, uid, spec=None):
        run = fskit.submit_as(uid, self.m, spec or HELLO)
        run.wait()
        return run

    def assertErrno(self, numbers, uid, fn, *args):
        with self.assertRaises(OSError) as c:
            as_user(uid, fn, *args)
        self.assertIn(errno.errorcode[c.exception.errno], [errno.errorcode[n] for n in numbers])

    def assertHidden(self, uid, path):
        """Nothing of it, by any call; while the kernel knows the name, its owner and times show."""
        for fn in (os.listdir, slurp, os.chdir, lambda p: os.listdir(p + "/artifacts"),
                   lambda p: os.stat(p + "/status").st_size, lambda p: slurp(p + "/status"),
                   lambda p: os.stat(p + "/no-such-node").st_size, lambda p: slurp(p + "/../%s/log" % a_name(p)),
                   lambda p: os.close(os.open(p + "/ctl", os.O_WRONLY)),
                   lambda p: os.close(os.open(p + "/status", os.O_PATH)),
                   lambda p: os.rename(p, p + "x"), lambda p: os.rmdir(p), lambda p: os.utime(p)):
            self.assertErrno((errno.ENOENT, errno.EACCES, errno.EPERM), uid, fn, path)


class Separate(UserCase):
    def test_each_lists_their_own(self):
        a, b = self.finished(ALICE), self.finished(BOB)
        self.assertIn(a.id, self.runs(ALICE))
        self.assertNotIn(b.id, self.runs(ALICE))
        self.assertIn(b.id, self.runs(BOB))
        self.assertNotIn(a.id, self.runs(BOB))

    def test_own_run_works_in_full(self):
        a = self.finished(ALICE)

        def look():
            return {n: slurp(a.path(n)) for n in FILES}
        got = as_user(ALICE, look)
        self.assertEqual((got["stdout"], got["artifacts/a"], got[".wait"]), ("hello\n", "x\n", "0\n"))
        self.assertEqual(json.loads(got["status.json"])["user"], "uid:%d" % ALICE)

    def test_nodes_belong_to_the_user(self):
        a = self.finished(ALICE)
        for name in ("", *FILES, "artifacts", "ctl"):
            st = os.stat(a.path(name))
            self.assertEqual((st.st_uid, st.st_gid), (ALICE, ALICE), name)
        self.assertEqual(stat.S_IMODE(os.stat(a.dir).st_mode), 0o700)

    def test_foreign_run_is_not_there(self):
        a = self.finished(ALICE)
        self.assertHidden(BOB, a.dir)
        self.assertNotIn(a.id, self.runs(BOB))

    def test_foreign_files_are_not_there(self):
        a = self.finished(ALICE)
        for name in FILES:
            self.assertErrno((errno.ENOENT, errno.EACCES), BOB, slurp, a.path(name))
            self.assertErrno((errno.ENOENT, errno.EACCES), BOB, os.stat, a.path(name))

    def test_foreign_run_after_its_owner_has_warmed_every_cache(self):
        a = self.finished(ALICE)

        def warm():
            os.listdir(a.dir)
            os.listdir(a.path("artifacts"))
            for n in FILES:
                os.stat(a.path(n))
                slurp(a.path(n))
        as_user(ALICE, warm)
        for name in FILES:
            self.assertErrno((errno.ENOENT, errno.EACCES), BOB, slurp, a.path(name))
        self.assertHidden(BOB, a.dir)
        self.assertNotIn(a.id, self.runs(BOB))

    def test_foreign_run_after_root_has_walked_the_tree(self):
        a = self.finished(ALICE)
        fskit.shell(self.m, 'ls -laR "$MNT/runs" > /dev/null; grep -r . "$MNT/runs" > /dev/null')
        self.assertHidden(BOB, a.dir)
        self.assertNotIn(a.id, self.runs(BOB))
        self.assertIn(a.id, self.runs(ALICE))

    def test_readdir_of_one_is_not_the_cache_of_another(self):
        a, b = self.finished(ALICE), self.finished(BOB)
        for _ in range(3):
            self.assertNotIn(b.id, self.runs(ALICE))
            self.assertNotIn(a.id, self.runs(BOB))
            self.assertLessEqual({a.id, b.id}, set(self.m.runs()))

    def test_write_to_foreign_control(self):
        a = fskit.submit_as(ALICE, self.m, {"command": ["sh", "-c", "read x"], "interactive": True,
                                            "spec_version": "1.1"})
        a.wait_phase("running")

        def write(name, text):
            fd = os.open(a.path(name), os.O_WRONLY)
            return os.write(fd, text)
        for name, text in (("ctl", b"kill\n"), ("ctl", b"signal TERM\n"), ("stdin", b"x\n")):
            self.assertErrno((errno.ENOENT, errno.EACCES), BOB, write, name, text)
        self.assertEqual(a.status(), "running")
        self.assertEqual(as_user(ALICE, write, "ctl", b"kill\n"), 5)
        self.assertEqual(a.wait(), "killed")

    def test_descriptor_passed_to_another_user_acts_for_its_opener(self):
        """Rights come with the open descriptor, as everywhere in Unix; the run is its opener's."""
        def child():
            fd = os.open(self.path("runs/new"), os.O_RDWR)
            # Still the opener's after the process has become somebody else.
            return fd
        r, w = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setgroups([])
                os.setresgid(ALICE, ALICE, 0)
                os.setresuid(ALICE, ALICE, 0)
                fd = child()
                os.setresuid(0, 0, 0)
                fskit.become(BOB)
                os.write(fd, b'{"command":["true"]}')
                os.write(w, os.read(fd, 100))
            finally:
                os._exit(0)
        os.close(w)
        with os.fdopen(r) as f:
            run_id = f.read().strip()
        os.waitpid(pid, 0)
        self.assertIn(run_id, self.runs(ALICE))
        self.assertNotIn(run_id, self.runs(BOB))

    def test_setuid_program_acts_for_its_effective_user(self):
        def both():
            os.setgroups([])
            os.setresgid(ALICE, BOB, BOB)
            os.setresuid(ALICE, BOB, BOB)
            return self.m.submit(HELLO).id
        pid_r, pid_w = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.write(pid_w, both().encode())
            finally:
                os._exit(0)
        os.close(pid_w)
        with os.fdopen(pid_r) as f:
            run_id = f.read()
        os.waitpid(pid, 0)
        self.assertIn(run_id, self.runs(BOB))
        self.assertNotIn(run_id, self.runs(ALICE))

    def test_many_users_at_once(self):
        uids = [4200000 + i for i in range(8)]
        children = []
        for uid in uids:
            def work(uid=uid):
                fskit.become(uid)
                mine = {self.m.submit({"command": ["id"]}).id for _ in range(5)}
                return 0 if set(self.m.runs()) == mine else 1
            children.append(fskit.Child(work))
        self.assertEqual([c.wait(60) for c in children], [0] * len(uids))


class Latest(UserCase):
    def latest(self):
        return os.readlink(self.path("runs/latest"))

    def test_latest_differs_by_user(self):
        a = self.finished(ALICE)
        b = self.finished(BOB)
        for _ in range(3):
            self.assertEqual(as_user(ALICE, self.latest), a.id)
            self.assertEqual(as_user(BOB, self.latest), b.id)
        self.assertEqual(as_user(ALICE, slurp, self.path("runs/latest/stdout")), "hello\n")

    def test_latest_of_a_user_without_runs(self):
        self.finished(ALICE)
        self.assertEqual(as_user(CAROL, self.latest), "none-yet")
        self.assertErrno((errno.ENOENT,), CAROL, slurp, self.path("runs/latest/status"))

    def test_size_of_latest_and_new_differ_by_user(self):
        self.finished(ALICE)
        self.assertEqual(as_user(ALICE, lambda: os.lstat(self.path("runs/latest")).st_size), 36)
        self.assertEqual(as_user(CAROL, lambda: os.lstat(self.path("runs/latest")).st_size), 8)
        self.assertEqual(as_user(ALICE, lambda: os.stat(self.path("runs/new")).st_size), 37)
        self.assertEqual(as_user(CAROL, lambda: os.stat(self.path("runs/new")).st_size), 0)

    def test_last_result_differs_by_user(self):
        def bad():
            try:
                self.m.submit({"command": ["secret"], "timeout_sec": 0})
            except sbx.Refused:
                pass
        a = self.finished(ALICE)
        as_user(BOB, bad)
        self.assertEqual(as_user(ALICE, slurp, self.path("runs/new")).strip(), a.id)
        self.assertIn("timeout_sec", as_user(BOB, slurp, self.path("runs/new")))
        self.assertEqual(as_user(CAROL, slurp, self.path("runs/new")), "")

    def test_last_verdict_differs_by_user(self):
        v = as_user(ALICE, self.m.check, {"command": ["true"]})
        self.assertIs(v["accepted"], True)
        self.assertEqual(json.loads(as_user(ALICE, slurp, self.path("runs/check"))), v)
        self.assertEqual(as_user(CAROL, slurp, self.path("runs/check")), "")


class Keys(UserCase):
    def test_idempotency_keys_are_each_users_own(self):
        doc = {"command": ["true"], "idempotency_key": "shared"}
        a, b = fskit.submit_as(ALICE, self.m, doc), fskit.submit_as(BOB, self.m, doc)
        self.assertNotEqual(a.id, b.id)
        self.assertEqual(fskit.submit_as(ALICE, self.m, doc).id, a.id)

    def test_foreign_key_is_no_conflict_and_tells_nothing(self):
        fskit.submit_as(ALICE, self.m, {"command": ["true"], "idempotency_key": "k2"})
        run = fskit.submit_as(BOB, self.m, {"command": ["false"], "idempotency_key": "k2"})
        self.assertEqual(run.wait(), "1")


class EventsOfUsers(UserCase):
    def test_only_ones_own(self):
        def follow():
            with fskit.Events(self.m) as ev:
                os.write(ready_w, b".")
                os.read(go_r, 1)
                mine = self.m.submit({"command": ["true"]}).id
                ev.wait(lambda e: e["id"] == mine and e["phase"] == "completed")
                return [{e["id"] for e in ev.lines} == {mine}, {e["user"] for e in ev.lines} == {"uid:%d" % BOB}]
        ready_r, ready_w = os.pipe()
        go_r, go_w = os.pipe()

        def child():
            fskit.become(BOB)
            return 0 if follow() == [True, True] else 1
        with fskit.Child(child) as c:
            os.read(ready_r, 1)
            self.finished(ALICE)
            os.write(go_w, b".")
            self.assertEqual(c.wait(30), 0)
        for fd in (ready_r, ready_w, go_r, go_w):
            os.close(fd)

    def test_history_is_filtered_too(self):
        a, b = self.finished(ALICE), self.finished(BOB)

        def history():
            with fskit.Events(self.m, after=0) as ev:
                return [e["id"] for e in ev.drain()]
        self.assertIn(b.id, as_user(BOB, history))
        self.assertNotIn(a.id, as_user(BOB, history))
        self.assertLessEqual({a.id, b.id}, set(history()))

    def test_foreign_changes_do_not_make_it_readable(self):
        def follow():
            fskit.become(BOB)
            with fskit.Events(self.m) as ev:
                os.write(ready_w, b".")
                os.read(go_r, 1)
                return 1 if fskit.readable(ev.fd, 0) else 0
        ready_r, ready_w = os.pipe()
        go_r, go_w = os.pipe()
        with fskit.Child(follow) as c:
            os.read(ready_r, 1)
            self.finished(ALICE)
            os.write(go_w, b".")
            self.assertEqual(c.wait(), 0)
        for fd in (ready_r, ready_w, go_r, go_w):
            os.close(fd)


class Administrators(UserCase):
    settings = {"admins": "uid:%d" % CAROL}

    def test_admin_directory_is_hidden_from_users(self):
        self.assertNotIn("admin", as_user(ALICE, os.listdir, self.m.mnt))
        self.assertErrno((errno.ENOENT, errno.EACCES), ALICE, os.listdir, self.path("admin"))

    def test_admin_directory_stays_hidden_after_root_has_read_it(self):
        slurp(self.path("admin/runs.json"))
        os.listdir(self.path("admin"))
        for fn, path in ((slurp, "admin/runs.json"), (os.listdir, "admin"), (slurp, "admin/queue.json")):
            self.assertErrno((errno.ENOENT, errno.EACCES), ALICE, fn, self.path(path))

    def test_root_sees_everybodys(self):
        a, b = self.finished(ALICE), self.finished(BOB)
        self.assertLessEqual({a.id, b.id}, set(self.m.runs()))
        self.assertEqual(a.stdout, b"hello\n")
        users = {r["user_id"] for r in json.loads(slurp(self.path("admin/runs.json")))["items"]}
        self.assertLessEqual({"uid:%d" % ALICE, "uid:%d" % BOB}, users)

    def test_root_ends_a_foreign_run(self):
        a = fskit.submit_as(ALICE, self.m, {"command": ["sleep", "100"]})
        a.wait_phase("running")
        a.ctl("kill")
        self.assertEqual(a.wait(), "killed")

    def test_named_admin_lists_everybodys(self):
        a = self.finished(ALICE)
        self.assertIn(a.id, self.runs(CAROL))

    def test_named_admin_sees_the_admin_directory(self):
        self.assertIn("admin", as_user(CAROL, os.listdir, self.m.mnt))

    def test_named_admin_reads_the_admin_directory(self):
        def look():
            return {n: json.loads(slurp(self.path("admin", n))) for n in os.listdir(self.path("admin"))}
        self.assertIn("queue.json", as_user(CAROL, look))
        for name in ("admin/queue.json", "admin"):
            self.assertErrno((errno.ENOENT, errno.EACCES), ALICE, slurp, self.path(name))

    def test_named_admin_reads_a_foreign_run_in_full(self):
        a = self.finished(ALICE, dict(HELLO, command=["sh", "-c", "echo hello; mkdir d; echo x > a; echo y > d/b"],
                                      capture_patterns=["**"]))

        def look():
            os.listdir(a.dir)
            os.listdir(a.path("artifacts/d"))
            return {n: slurp(a.path(n)) for n in (*FILES, "artifacts/d/b")}
        for _ in range(2):
            got = as_user(CAROL, look)
            self.assertEqual((got["stdout"], got["artifacts/a"], got["artifacts/d/b"]), ("hello\n", "x\n", "y\n"))
            self.assertEqual(json.loads(got["spec.json"])["capture_patterns"], ["**"])
            # What the kernel has learned for one is no way in for another.
            self.assertHidden(BOB, a.dir)
            for name in (*FILES, "artifacts/d/b", "artifacts"):
                self.assertErrno((errno.ENOENT, errno.EACCES), BOB, slurp, a.path(name))
                self.assertErrno((errno.ENOENT, errno.EACCES), BOB, os.stat, a.path(name))
        self.assertEqual(as_user(ALICE, look), got)

    def test_named_admin_ends_a_foreign_run(self):
        a = fskit.submit_as(ALICE, self.m, {"command": ["cat"], "interactive": True, "spec_version": "1.1"})
        a.wait_phase("running")

        def write(name, text):
            with open(a.path(name), "wb", buffering=0) as f:
                return f.write(text)
        as_user(CAROL, write, "stdin", b"from the admin\n")
        a.stream_until(b"from the admin\n")
        self.assertErrno((errno.ENOENT, errno.EACCES), BOB, write, "ctl", b"kill\n")
        as_user(CAROL, write, "ctl", b"kill\n")
        self.assertEqual(a.wait(), "killed")

    def test_group_of_the_owner_gains_nothing(self):
        """The group bits of the mode are the mask of the list."""
        a = self.finished(ALICE)
        self.assertEqual(stat.S_IMODE(os.stat(a.dir).st_mode), 0o750)
        as_user(CAROL, os.listdir, a.dir)

        r, w = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setgroups([ALICE, 0])
                os.setresgid(ALICE, ALICE, ALICE)
                os.setresuid(BOB, BOB, BOB)
                for path in (a.dir, a.path("spec.json"), a.path("artifacts"), self.path("admin")):
                    try:
                        os.listdir(path) if os.path.basename(path) != "spec.json" else slurp(path)
                        os.write(w, path.encode())
                    except OSError as e:
                        if e.errno not in (errno.EACCES, errno.ENOENT):
                            os.write(w, repr(e).encode())
            finally:
                os._exit(0)
        os.close(w)
        os.waitpid(pid, 0)
        with os.fdopen(r) as f:
            self.assertEqual(f.read(), "")

    def test_named_admin_hears_everybodys_events(self):
        a = self.finished(ALICE)

        def history():
            with fskit.Events(self.m, after=0) as ev:
                return [e["id"] for e in ev.drain()]
        self.assertIn(a.id, as_user(CAROL, history))


if __name__ == "__main__":
    sbx.main()
