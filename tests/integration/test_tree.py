# SPDX-License-Identifier: Apache-2.0
"""What the tree shows: kinds, modes, owners, names, listings; and what cannot be done in it."""
import errno
import json
import os
import re
import stat
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import fskit
import imagekit  # noqa: E402
import sbx  # noqa: E402

ROW = re.compile(r'^X\((\w+),\s*(\w+),\s*"([^"]*)",\s*(\w+),\s*(0\d+),\s*(\w+),\s*(true|false),\s*(\w+),'
                 r'\s*(\w+),\s*(\w+),\s*"(.*)"\)$')
DYNAMIC = {"IMAGE": "<image>", "RUN": "<run>", "RUNTIME": "namespace.json", "SESSION": "<session>", "SESS_RUN": "<run>",
           "SHOT": "<snapshot>", "BY_PHASE_OF": "completed", "BY_LABEL_OF": "kind=tree", "BY_SESS_OF": "<session>",
           "BY_USER_OF": "<user>", "BY_PHASE_RUN": "<run>", "BY_LABEL_RUN": "<run>", "BY_SESS_RUN": "<run>",
           "BY_USER_RUN": "<run>"}
ANY_ID = "01890a5d-ac96-774b-bcce-b302099a8057"


def table():
    """The rows of mountspec/tree.def, with their paths."""
    rows, paths = [], {"NONE": ""}
    with open(os.path.join(sbx.SOURCE, "mountspec/tree.def")) as f:
        for line in f:
            m = ROW.match(line.strip())
            if not m:
                continue
            sym, parent, name, kind, mode, who, listed, when = m.groups()[:8]
            paths[sym] = paths[parent] + ("/" + (DYNAMIC.get(sym) or name) if sym != "ROOT" else "")
            rows.append({"sym": sym, "path": paths[sym].lstrip("/"), "kind": kind, "mode": int(mode, 8),
                         "who": who, "listed": listed == "true", "when": when, "verb": m.group(10)})
    return rows


class TreeCase(sbx.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.rows = table()
        assert len(cls.rows) > 30
        # A session with a run of its own, for what is below sessions/.
        os.makedirs(os.path.join(cls.m.mnt, "sessions/tree"))
        cls.session = os.path.join(cls.m.mnt, "sessions/tree")
        with open(os.path.join(cls.session, "status.json")) as f:
            cls.session_id = json.load(f)["id"]
        cls.in_session = cls.m.run({"command": ["true"], "session_id": cls.session_id})
        os.mkdir(os.path.join(cls.session, "snapshots/one"))
        with open(os.path.join(cls.m.mnt, "images/tree.tar"), "xb") as f:
            f.write(imagekit.tar(lambda t: imagekit.member(t, "etc/version", b"1")))
        cls.run_ = cls.m.run({"command": ["sh", "-c", "cat; echo x > a"], "interactive": True, "labels": {"kind": "tree"},
                              "stdin_b64": "aGkK", "stdin_idle_timeout_sec": 1, "spec_version": "1.1",
                              "capture_patterns": ["a"]})

    def path(self, *names):
        return os.path.join(self.m.mnt, *names)

    def there(self, row):
        """The path of a row on this mount, for the run of the class; None where it has no such node."""
        if row["when"] == "SESSION" or row["sym"] == "SESS_WORK_LINK" or "<name>." in row["path"]:
            return None
        path = row["path"]
        run = self.in_session if path.startswith(("sessions/", "by/session/")) else self.run_
        for word, name in (("<run>", run.id), ("<session>", "tree"), ("<id>", self.session_id), ("<snapshot>", "one"),
                           ("<user>", self.run_.json()["user"]), ("<image>", "tree")):
            path = path.replace(word, name)
        return self.path(path)

    def assertErrno(self, numbers, fn, *args, **kw):
        numbers = numbers if isinstance(numbers, tuple) else (numbers,)
        with self.assertRaises(OSError) as c:
            fn(*args, **kw)
        self.assertIn(errno.errorcode[c.exception.errno], [errno.errorcode[n] for n in numbers])


class EveryRow(TreeCase):
    def test_kind_and_mode(self):
        kinds = {"DIR": stat.S_IFDIR, "LINK": stat.S_IFLNK}
        for row in self.rows:
            path = self.there(row)
            if path:
                with self.subTest(node=row["path"]):
                    st = os.lstat(path)
                    self.assertEqual(stat.S_IFMT(st.st_mode), kinds.get(row["kind"], stat.S_IFREG))
                    self.assertEqual(oct(stat.S_IMODE(st.st_mode)), oct(row["mode"]))
                    self.assertEqual((st.st_uid, st.st_gid), (os.getuid(), os.getgid()))
                    self.assertEqual(st.st_nlink, 2 if row["kind"] == "DIR" else 1)

    def test_listed_or_not(self):
        for row in self.rows:
            path = self.there(row)
            if path and row["sym"] != "ROOT":
                with self.subTest(node=row["path"]):
                    self.assertEqual(os.path.basename(path) in os.listdir(os.path.dirname(path)), row["listed"])

    def test_nothing_is_listed_that_is_not_in_the_table(self):
        known = {self.there(r) for r in self.rows}
        known.add(self.in_session.dir)
        for base in (self.m.mnt, self.path("runs"), self.run_.dir, self.path("admin"), self.path("sessions"),
                     self.session, self.session + "/runs", self.session + "/snapshots/one", self.path("by"),
                     self.path("by/label"), self.path("by/label/kind=tree"), self.path("by/session"),
                     self.path("by/session/tree"), self.path("by/user"), self.path("images"),
                     self.path("images/tree")):
            for name in os.listdir(base):
                self.assertIn(os.path.join(base, name), known)

    def test_readme_tells_of_every_node(self):
        with open(self.path("README")) as f:
            text = f.read()
        for row in self.rows:
            if row["sym"] != "ROOT":
                path = row["path"]
                for name, word in (("namespace.json", "<name>.json"), ("phase/completed", "phase/<phase>"),
                                   ("kind=tree", "<label>")):
                    path = path.replace(name, word)
                self.assertRegex(text, r"(?m)^[ +] /%s +\S" % re.escape(path))

    def test_readdir_and_stat_agree_on_numbers_and_kinds(self):
        for base in (self.m.mnt, self.path("runs"), self.run_.dir, self.run_.path("artifacts"), self.path("runtimes"),
                     self.path("admin"), self.path("sessions"), self.session, self.session + "/runs",
                     self.session + "/snapshots", self.session + "/snapshots/one", self.path("by"), self.path("by/phase"),
                     self.path("by/phase/completed"), self.path("by/label"), self.path("by/label/kind=tree"),
                     self.path("by/session"), self.path("by/session/tree"), self.path("by/user")):
            with os.scandir(base) as it:
                for e in it:
                    st = os.lstat(e.path)
                    self.assertEqual(e.inode(), st.st_ino, e.path)
                    self.assertEqual((e.is_dir(follow_symlinks=False), e.is_symlink()),
                                     (stat.S_ISDIR(st.st_mode), stat.S_ISLNK(st.st_mode)), e.path)

    def test_inode_numbers_differ(self):
        seen = {}
        for row in self.rows:
            path = self.there(row)
            if path:
                ino = os.lstat(path).st_ino
                self.assertNotIn(ino, seen, path)
                seen[ino] = path

    def test_json_nodes_are_json(self):
        for row in self.rows:
            if row["path"].endswith(".json") or row["sym"] == "HEALTH":
                with open(self.there(row)) as f:
                    self.assertIsInstance(json.load(f), dict, row["path"])

    def test_dot_and_dotdot(self):
        self.assertTrue(os.path.samefile(self.path("runs", ".."), self.m.mnt))
        self.assertTrue(os.path.samefile(self.path("runs", self.run_.id, ".", "..", ".."), self.m.mnt))
        p = fskit.shell(self.m, 'cd "$MNT/runs/latest" && cd .. && pwd -P && ls -a | head -n 2')
        self.assertEqual(p.stdout.decode().split(), [self.path("runs"), ".", ".."])

    def test_ls_la_of_everything(self):
        p = fskit.shell(self.m, 'ls -laR "$MNT"')
        self.assertEqual((p.returncode, p.stderr), (0, b""))

    def test_latest_links_to_the_run(self):
        self.assertEqual(os.readlink(self.path("runs/latest")), self.run_.id)
        self.assertTrue(os.path.samefile(self.path("runs/latest"), self.run_.dir))

    def test_access_times_do_not_move_by_reading(self):
        before = os.stat(self.run_.path("log"))
        self.run_.read("log")
        after = os.stat(self.run_.path("log"))
        self.assertEqual((before.st_atime_ns, before.st_mtime_ns), (after.st_atime_ns, after.st_mtime_ns))


class Refused(TreeCase):
    def everywhere(self):
        return [self.m.mnt, self.path("runs"), self.run_.dir, self.path("runtimes"), self.path("admin"),
                self.run_.path("artifacts"), self.path("by"), self.path("by/phase"), self.path("by/phase/failed"),
                self.path("by/label"), self.path("by/label/kind=tree"), self.path("by/session/tree")]

    def test_create(self):
        for base in self.everywhere():
            self.assertErrno(errno.EPERM, os.open, os.path.join(base, "x"), os.O_CREAT | os.O_WRONLY)

    def test_create_under_a_valid_id(self):
        self.assertErrno(errno.EPERM, os.mkdir, self.path("runs", ANY_ID))
        self.assertErrno(errno.EPERM, os.open, self.path("runs", ANY_ID), os.O_CREAT | os.O_WRONLY)

    def test_mkdir_mknod_symlink(self):
        for base in self.everywhere():
            path = os.path.join(base, "x")
            self.assertErrno(errno.EPERM, os.mkdir, path)
            self.assertErrno(errno.EPERM, os.mkfifo, path)
            self.assertErrno(errno.EPERM, os.mknod, path)
            self.assertErrno(errno.EPERM, os.symlink, "target", path)

    def test_unlink_and_rmdir(self):
        for path in (self.path("README"), self.path("runs/new"), self.path("runs/latest"),
                     self.run_.path("status"), self.run_.path("artifacts/a"),
                     self.path("by/label/kind=tree", self.run_.id)):
            self.assertErrno(errno.EPERM, os.unlink, path)
        for path in (self.path("runs"), self.run_.dir, self.run_.path("artifacts"), self.path("by/phase"),
                     self.path("by/phase/killed"), self.path("by/label/kind=tree")):
            self.assertErrno(errno.EPERM, os.rmdir, path)

    def test_rename(self):
        for src, dst in ((self.path("README"), self.path("README2")), (self.run_.dir, self.path("runs/x")),
                         (self.run_.path("log"), self.path("log")), (self.run_.path("log"), self.run_.path("why"))):
            self.assertErrno(errno.EPERM, os.rename, src, dst)

    def test_link(self):
        self.assertErrno(errno.EPERM, os.link, self.path("README"), self.path("runs/x"))
        self.assertErrno(errno.EXDEV, os.link, self.path("README"), os.path.join(self.m.base, "x"))

    def test_chmod_and_chown(self):
        for path in (self.m.mnt, self.path("runs/new"), self.run_.dir, self.run_.path("status"),
                     self.run_.path("artifacts/a")):
            self.assertErrno(errno.EPERM, os.chmod, path, 0o777)
            self.assertErrno(errno.EPERM, os.chown, path, 1, 1)

    def test_truncate_and_write_of_what_only_reads(self):
        for path in (self.path("README"), self.run_.path("status"), self.run_.path("log"),
                     self.run_.path("spec.json"), self.run_.path(".wait"), self.path("health")):
            self.assertErrno((errno.EPERM, errno.EACCES), os.truncate, path, 0)
            self.assertErrno(errno.EACCES, os.open, path, os.O_WRONLY)
            self.assertErrno(errno.EACCES, os.open, path, os.O_RDWR)

    def test_utime_of_what_only_reads(self):
        self.assertErrno(errno.EPERM, os.utime, self.run_.path("status"))

    def test_sed_in_place_fails_and_leaves_nothing(self):
        before = sorted(os.listdir(self.run_.dir))
        p = fskit.shell(self.m, 'sed -i s/a/b/ "$MNT/README"; echo $?; cd "%s"; sed -i s/a/b/ status; echo $?'
                        % self.run_.dir)
        self.assertEqual(p.stdout, b"4\n4\n")
        self.assertEqual(sorted(os.listdir(self.run_.dir)), before)

    def test_rm_rf_removes_nothing(self):
        p = fskit.shell(self.m, 'rm -rf "$MNT/runs"; echo $?')
        self.assertEqual(p.stdout, b"1\n")
        self.assertEqual(self.run_.status(), "completed")

    def test_xattrs(self):
        for path in (self.path("README"), self.run_.path("log"), self.run_.dir):
            self.assertErrno((errno.ENODATA, errno.EOPNOTSUPP), os.getxattr, path, "user.x")
            self.assertErrno((errno.EOPNOTSUPP, errno.EPERM), os.setxattr, path, "user.x", b"1")
            self.assertErrno((errno.ENODATA, errno.EOPNOTSUPP), os.getxattr, path, "system.posix_acl_access")

    def test_not_a_directory_and_is_a_directory(self):
        self.assertErrno(errno.ENOTDIR, os.stat, self.path("README/x"))
        self.assertErrno(errno.ENOTDIR, os.listdir, self.run_.path("status"))
        self.assertErrno(errno.ENOTDIR, os.open, self.run_.path("log"), os.O_DIRECTORY)
        self.assertErrno(errno.EISDIR, os.open, self.path("runs"), os.O_WRONLY)
        self.assertErrno(errno.EISDIR, os.open, self.run_.dir, os.O_RDWR)
        fd = os.open(self.path("runs"), os.O_RDONLY)
        self.addCleanup(os.close, fd)
        self.assertErrno(errno.EISDIR, os.read, fd, 10)

    def test_exclusive_create_of_what_exists(self):
        self.assertErrno(errno.EEXIST, os.open, self.path("runs/new"), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        self.assertErrno(errno.EEXIST, os.mkdir, self.run_.dir)
        os.close(os.open(self.path("runs/new"), os.O_CREAT | os.O_WRONLY | os.O_TRUNC))

    def test_readlink_of_what_is_none(self):
        self.assertErrno(errno.EINVAL, os.readlink, self.path("README"))

    def test_no_follow_of_latest(self):
        self.assertErrno(errno.ELOOP, os.open, self.path("runs/latest"), os.O_RDONLY | os.O_NOFOLLOW)

    def test_mount_is_nosuid_nodev(self):
        with open("/proc/self/mounts") as f:
            line = next(x for x in f if x.split()[1] == self.m.mnt)
        self.assertEqual(line.split()[2], "fuse.sandboxfs")
        for word in ("nosuid", "nodev"):
            self.assertIn(word, line.split()[3].split(","))


class Names(TreeCase):
    def test_names_that_are_none(self):
        run = self.run_.id
        for name in (run.upper(), run + " ", " " + run, run + ".", run[:-1], run + "0", run.replace("-", "_"),
                     "NEW", "new ", "new.json", "...", "-", "*", "%2e%2e", "none-yet", "caf\u00e9", "a\nb", "\\",
                     ANY_ID, "0" * 36, "{%s}" % run):
            with self.subTest(name=name):
                self.assertErrno(errno.ENOENT, os.lstat, self.path("runs", name))

    def test_bytes_that_are_no_text(self):
        self.assertErrno(errno.ENOENT, os.lstat, os.fsencode(self.path("runs/")) + b"\xff\xfe\x01")
        self.assertErrno(errno.ENOENT, os.lstat, os.fsencode(self.run_.dir) + b"/\x80")

    def test_names_of_other_places(self):
        for name in ("status", "runs/status", "runs/admin", "runtimes/status", "runtimes/none.json",
                     "runtimes/namespace", "runtimes/.json", "admin/none", "runs/%s/runs" % self.run_.id,
                     "runs/%s/session" % self.run_.id, "runs/%s/.events" % self.run_.id, ".wait", ".stream"):
            with self.subTest(name=name):
                self.assertErrno(errno.ENOENT, os.lstat, self.path(name))

    def test_too_long(self):
        for base in (self.m.mnt, self.path("runs"), self.run_.dir, self.run_.path("artifacts")):
            self.assertErrno(errno.ENOENT, os.lstat, os.path.join(base, "x" * 255))
            for n in (256, 1024, 4000):
                self.assertErrno(errno.ENAMETOOLONG, os.lstat, os.path.join(base, "x" * n))

    def test_absent_names_many_times(self):
        for _ in range(3):
            for i in range(50):
                self.assertFalse(os.path.exists(self.path(".git%d" % i)))
        self.assertTrue(os.path.exists(self.path("README")))

    def test_statfs(self):
        v = os.statvfs(self.m.mnt)
        self.assertEqual(v.f_namemax, 255)
        self.assertGreater(v.f_blocks, 0)
        self.assertLessEqual(v.f_bavail, v.f_blocks)
        p = fskit.shell(self.m, 'df "$MNT"')
        self.assertEqual((p.returncode, p.stderr), (0, b""))

    def test_inode_numbers_survive_a_restart(self):
        with sbx.Mount() as m:
            run = m.run({"command": ["sh", "-c", "mkdir d; touch a d/b"], "capture_patterns": ["a", "d/*"],
                         "labels": {"x": "y"}})
            by = [os.path.join(m.mnt, "by", *p) for p in (("phase",), ("phase", "completed"), ("label", "x=y"),
                                                         ("label", "x=y", run.id), ("user", run.json()["user"]))]
            paths = [m.mnt, run.dir, *map(run.path, ("log", "status.json", "artifacts", "artifacts/d/b", "artifacts/a")),
                     *by]
            before = [os.lstat(p).st_ino for p in paths]
            m.stop()
            m.start()
            self.assertEqual([os.lstat(p).st_ino for p in reversed(paths)], before[::-1])

    def test_without_runs(self):
        with sbx.Mount(opts=["workers=0"]) as m:
            runs = os.path.join(m.mnt, "runs")
            self.assertEqual(sorted(os.listdir(runs)), ["check", "latest", "new"])
            self.assertTrue(os.path.islink(os.path.join(runs, "latest")))
            self.assertFalse(os.path.exists(os.path.join(runs, "latest")))
            with open(os.path.join(runs, "new"), "rb") as f:
                self.assertEqual(f.read(), b"")


class Many(sbx.Case):
    """3,000 runs that wait."""
    opts = ("workers=0",)
    settings = {"queue_max_length": 100000, "queue_ttl_sec": 100000, "events_keep": 1000,
                "artifact_janitor_interval_sec": 1}
    N = 3000

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.ids = cls.add(cls.N)

    @classmethod
    def add(cls, n):
        fd = os.open(os.path.join(cls.m.mnt, "runs/new"), os.O_RDWR)
        try:
            ids = []
            for _ in range(n):
                os.write(fd, b'{"command":["true"]}')
                ids.append(os.read(fd, 100).decode().strip())
            cls.all = getattr(cls, "all", []) + ids
            return ids
        finally:
            os.close(fd)

    def setUp(self):
        self.runs = os.path.join(self.m.mnt, "runs")

    def listed(self):
        return [n for n in os.listdir(self.runs) if n not in ("new", "check", "latest")]

    def test_listed_once_each_in_order_of_time(self):
        self.assertEqual(self.listed(), self.all)
        self.assertEqual(self.all, sorted(self.all))

    def test_ls_la_shows_all(self):
        p = fskit.shell(self.m, 'ls -la "$MNT/runs" | wc -l; ls -f "$MNT/runs" | wc -l; find "$MNT/runs" '
                                '-mindepth 1 -maxdepth 1 -type d | wc -l')
        n = len(self.all)
        self.assertEqual(p.stdout.split(), [b"%d" % (n + 6), b"%d" % (n + 5), b"%d" % n])

    def test_runs_added_during_a_listing(self):
        before = list(self.all)
        d = fskit.Dir(self.runs)
        names = d.read(700)
        for _ in range(4):
            self.add(20)
            names += d.read(400)
        names += d.read(1 << 20)
        d.close()
        self.assertEqual(len(names), len(set(names)))
        self.assertLessEqual(set(before), set(names))
        self.assertEqual([n for n in names if n in set(before)], before)

    def test_telldir_and_seekdir(self):
        d = fskit.Dir(self.runs)
        try:
            d.read(1000)
            at = d.tell()
            page = d.read(100)
            self.assertEqual(len(page), 100)
            d.read(500)
            d.seek(at)
            self.assertEqual(d.read(100), page)
            d.seek(0)
            self.assertEqual(d.read(2), [".", ".."])
        finally:
            d.close()

    def test_offsets_stay_true_when_runs_are_added(self):
        d = fskit.Dir(self.runs)
        try:
            d.read(2000)
            at = d.tell()
            page = d.read(100)
            self.add(30)
            d.seek(at)
            self.assertEqual(d.read(100), page)
        finally:
            d.close()

    def test_two_listings_at_once(self):
        a, b = fskit.Dir(self.runs), fskit.Dir(self.runs)
        x, y = [], []
        while True:
            p, q = a.read(100), b.read(37)
            x, y = x + p, y + q
            if not q:
                break
        a.close()
        b.close()
        self.assertEqual(x, y)

    def test_order_of_time_by_ls(self):
        p = fskit.shell(self.m, 'ls -tr "$MNT/runs" | tail -n 1')
        self.assertIn(p.stdout.decode().strip(), self.all[-1:] + ["new", "check", "latest"])

    def test_directory_time_follows_the_newest_run(self):
        with fskit.Inotify() as ino:
            ino.add(self.runs, ino.CREATE)
            new = self.add(1)[0]
            ino.wait(lambda p, m, n: n == new)
        self.assertGreaterEqual(os.stat(self.runs).st_mtime_ns, os.stat(os.path.join(self.runs, new)).st_atime_ns)

    def test_readers_of_old_events_are_told_of_the_gap(self):
        def gap():
            with fskit.Events(self.m, after=0) as ev:
                ev.drain()
                return ev.lines
        end = sbx.time.monotonic() + 30 * sbx.SLOW
        while "gap" not in (lines := gap())[0]:
            self.assertLess(sbx.time.monotonic(), end, "nothing was pruned")
            os.sched_yield()
        self.assertEqual((lines[0]["gap"], lines[0]["after"]), (True, 0))
        self.assertEqual(lines[0]["lowest"], lines[1]["seq"])
        self.assertGreaterEqual(len(lines) - 1, 1000)
        with fskit.Events(self.m, after=lines[1]["seq"] - 1) as ev:
            ev.drain()
            self.assertEqual(ev.lines[0], lines[1])

    def test_why_says_what_it_waits_for(self):
        with open(os.path.join(self.runs, self.ids[5], "why")) as f:
            self.assertTrue(f.read().startswith("waiting"))


if __name__ == "__main__":
    sbx.main()
