# SPDX-License-Identifier: Apache-2.0
# run: limit=240
"""by/: runs by what they have. What is listed, what can be named, who sees it, what the kernel believes, and
that long lists are read page by page."""
import contextlib
import errno
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import fskit  # noqa: E402
import sbx  # noqa: E402
from fskit import ALICE, BOB, CAROL, as_user  # noqa: E402

PHASES = ["completed", "failed", "killed", "queued", "running", "starting", "timed_out"]
BOTH = {ord("/"): "%2F", ord("%"): "%25"}
ANY_ID = "01890a5d-ac96-774b-bcce-b302099a8057"


class ByCase(sbx.Case):
    def by(self, *names):
        return os.path.join(self.m.mnt, "by", *names)

    def ls(self, *names):
        return sorted(os.listdir(self.by(*names)))

    def labelled(self, command=("true",), **labels):
        return self.m.run({"command": list(command), "labels": labels})

    def assertAbsent(self, *names):
        self.assertNotIn(names[-1], self.ls(*names[:-1]))
        with self.assertRaises(OSError) as c:
            os.lstat(self.by(*names))
        self.assertEqual(errno.errorcode[c.exception.errno], "ENOENT")


def finished(uid, m, **labels):
    run = fskit.submit_as(uid, m, {"command": ["true"], "labels": labels})
    run.wait()
    return run


class Phases(ByCase):
    def test_all_seven_are_there(self):
        self.assertEqual(self.ls("phase"), PHASES)
        for name in ("Failed", "failed ", "", "none", "0", "8", "cancelled"):
            if name:
                self.assertAbsent("phase", name)

    def test_a_run_is_in_one_of_them(self):
        run = self.m.sh("echo up; read line; exit 3", interactive=True, spec_version="1.1")
        run.stream_until(b"up\n")
        self.assertEqual([p for p in PHASES if run.id in self.ls("phase", p)], ["running"])
        link = self.by("phase/running", run.id)
        self.assertEqual(os.readlink(link), "../../../runs/" + run.id)
        self.assertEqual(len(os.readlink(link)), os.lstat(link).st_size)
        self.assertTrue(os.path.samefile(link, run.dir))
        with open(link + "/stdin", "wb", buffering=0) as f:
            f.write(b"go\n")
        run.wait()
        # Whoever heard of the end sees it here, though the kernel was told the name a moment ago.
        self.assertFalse(os.path.lexists(link))
        self.assertEqual([p for p in PHASES if run.id in self.ls("phase", p)], ["failed"])
        self.assertTrue(os.path.samefile(self.by("phase/failed", run.id), run.dir))

    def test_names_follow_each_change_at_once(self):
        for script, phase in (("exit 0", "completed"), ("exit 1", "failed"), ("sleep 100", "timed_out")):
            run = self.m.sh(script, timeout_sec=1)
            paths = {p: self.by("phase", p, run.id) for p in PHASES}
            for p in paths.values():
                os.path.lexists(p)  # the kernel has asked for all of them
            run.wait()
            self.assertEqual([p for p in PHASES if os.path.lexists(paths[p])], [phase])

    def test_the_directories_change_when_runs_do(self):
        with sbx.Mount() as m:
            def changed(phase):  # each asked for once, since the kernel keeps an answer for a second
                return os.stat(os.path.join(m.mnt, "by/phase", phase)).st_mtime_ns
            first = changed("completed")
            m.run({"command": ["false"]})
            self.assertGreater(changed("failed"), first)


class Labels(ByCase):
    def test_each_label_finds_its_runs(self):
        a = self.labelled(ci="17", os="linux")
        b = self.labelled(("false",), ci="17")
        c = self.labelled(ci="18")
        self.assertEqual(self.ls("label", "ci=17"), [a.id, b.id])
        self.assertEqual(self.ls("label", "ci=18"), [c.id])
        self.assertEqual(self.ls("label", "os=linux"), [a.id])
        got = fskit.shell(self.m, 'cat "$MNT"/by/label/ci=17/*/status; cd "$MNT/by/label/ci=17"; ls -d */ | wc -l')
        self.assertEqual(got.stdout.split(), [b"completed", b"failed", b"2"])
        for name in ("ci", "ci=", "ci=1", "CI=17", "=17", "ci=17=", "ci%3D17", "%63i=17"):
            self.assertAbsent("label", name)
        self.assertAbsent("label", "ci=17", c.id)
        self.assertAbsent("label", "ci=17", ANY_ID)
        self.assertAbsent("label", "ci=17", "x")

    def test_odd_words(self):
        words = [("a/b", "c/d"), ("%2F", "%"), (" ", " "), ("*", "?[a]"), ("-rf", "\\"), ("..", ".."), ("k=", "=v"),
                 ("\u00e4", "\u6f22\U0001f642"), ("'", '"'), ("$HOME", "`id`"), ("e", ""), ("x" * 120, "y" * 120)]
        run = self.m.run({"command": ["true"], "labels": dict(words)})
        for k, v in words:
            name = ("%s=%s" % (k, v)).translate(BOTH)
            with self.subTest(name=name):
                self.assertIn(name, self.ls("label"))
                self.assertEqual(self.ls("label", name), [run.id])
                self.assertTrue(os.path.samefile(self.by("label", name, run.id), run.dir))

    def test_a_name_that_would_be_too_long_is_left_out(self):
        long = self.labelled(**{"/" * 84: "x", "n": "1"})  # 254 bytes
        over = self.labelled(**{"/" * 85: "x", "n": "2"})  # 257
        self.assertEqual(self.ls("label", "%2F" * 84 + "=x"), [long.id])
        self.assertEqual([n for n in self.ls("label") if n.startswith("%2F" * 84)], ["%2F" * 84 + "=x"])
        self.assertEqual(self.ls("label", "n=2"), [over.id])

    def test_two_of_one_run_have_numbers_of_their_own(self):
        self.labelled(p="1", q="1")
        inos = [os.stat(self.by("label", n)).st_ino for n in ("p=1", "q=1")]
        self.assertEqual(len(set(inos)), 2)
        self.labelled(p="1", q="1")
        self.assertEqual([os.stat(self.by("label", n)).st_ino for n in ("p=1", "q=1")], inos)


class Sessions(ByCase):
    def test_runs_of_a_session(self):
        os.mkdir(os.path.join(self.m.mnt, "sessions/one"))
        with open(os.path.join(self.m.mnt, "sessions/one/status.json")) as f:
            sid = json.load(f)["id"]
        self.assertEqual(self.ls("session", "one"), [])
        a = self.m.run({"command": ["true"], "session_id": sid})
        self.m.run({"command": ["true"]})
        self.assertEqual(self.ls("session", "one"), [a.id])
        self.assertEqual(sorted(os.listdir(os.path.join(self.m.mnt, "sessions/one/runs"))), [a.id, "new"])
        self.assertAbsent("session", sid)  # one name each
        fd = os.open(self.by("session/one"), os.O_RDONLY)
        self.addCleanup(os.close, fd)
        os.rmdir(os.path.join(self.m.mnt, "sessions/one"))
        self.assertAbsent("session", "one")
        with contextlib.suppress(FileNotFoundError):
            self.assertIn(os.listdir(fd), ([a.id], []))  # it is being destroyed, or gone


@unittest.skipUnless(sbx.ROOT, "only root can act for several users")
class Users(ByCase):
    def setUp(self):
        self.m = sbx.Mount()  # a house of its own: what others left would be seen
        self.addCleanup(self.m.close)
        self.m.start()

    def test_each_sees_what_is_in_runs(self):
        a, b = finished(ALICE, self.m, who="a", both="1"), finished(BOB, self.m, who="b", both="1")
        for _ in range(2):  # also after the kernel has learned the names of the others'
            for uid, own, other in ((ALICE, a, b), (BOB, b, a)):
                word = "who=a" if own is a else "who=b"
                hidden = "who=b" if own is a else "who=a"

                def look():
                    names = {d: sorted(os.listdir(self.by(d))) for d in ("label", "label/both=1", "phase/completed")}
                    names["links"] = [os.path.lexists(self.by(d, run.id)) for d in ("label/both=1", "phase/completed")
                                      for run in (own, other)]
                    names["own"] = os.path.isdir(self.by("label", word))
                    names["other"] = os.path.lexists(self.by("label", hidden))
                    names["number"] = os.stat(self.by("label/both=1")).st_ino
                    names["through"] = open(self.by("label/both=1", own.id, "status")).read()
                    return names
                self.assertEqual(as_user(uid, look), {
                    "label": ["both=1", word], "label/both=1": [own.id], "phase/completed": [own.id],
                    "links": [True, False, True, False], "own": True, "other": False, "through": "completed\n",
                    "number": os.stat(self.by("label/both=1")).st_ino})
            self.assertLessEqual({a.id, b.id}, set(self.ls("label/both=1")))
            self.assertEqual(self.ls("label"), ["both=1", "who=a", "who=b"])

    def test_users_are_for_administrators(self):
        a = finished(ALICE, self.m)
        self.assertIn("uid:%d" % ALICE, self.ls("user"))
        self.assertIn(a.id, self.ls("user", "uid:%d" % ALICE))
        self.assertNotIn("uid:4199999", self.ls("user"))
        self.assertAbsent("user", "uid:4199999")

        def look():
            found = []
            for fn, path in ((os.listdir, "user"), (os.listdir, "user/uid:%d" % ALICE),
                             (os.lstat, "user/uid:%d/%s" % (ALICE, a.id))):
                try:
                    fn(self.by(path))
                except OSError as e:
                    found.append(errno.errorcode[e.errno])
            return found
        for uid in (ALICE, BOB):
            got = as_user(uid, look)
            self.assertEqual(len(got), 3)
            self.assertLessEqual(set(got), {"ENOENT", "EACCES"})
        self.assertIn("user", os.listdir(self.by()))
        self.assertNotIn("user", as_user(ALICE, lambda: os.listdir(self.by())))

    def test_an_open_directory_shows_its_reader_s_runs(self):
        a, b = finished(ALICE, self.m, open="1"), finished(BOB, self.m, open="1")
        fd = os.open(self.by("label/open=1"), os.O_RDONLY)
        self.addCleanup(os.close, fd)
        self.assertEqual(sorted(os.listdir(fd)), sorted([a.id, b.id]))
        self.assertEqual(as_user(BOB, lambda: os.listdir("/proc/self/fd/%d" % fd)), [b.id])


@unittest.skipUnless(sbx.ROOT, "only root can act for several users")
class Administrators(ByCase):
    settings = {"admins": "uid:%d" % CAROL}

    def test_an_administrator_who_is_not_root(self):
        a, b = finished(ALICE, self.m, x="1"), finished(BOB, self.m, x="1")

        def look():
            return [sorted(os.listdir(self.by(d))) for d in ("label/x=1", "phase/completed", "user/uid:%d" % BOB)] + [
                open(self.by("user/uid:%d" % BOB, b.id, "status")).read()]
        self.assertEqual(as_user(CAROL, look), [[a.id, b.id], [a.id, b.id], [b.id], "completed\n"])


class Many(ByCase):
    """Thousands that wait, and thousands that came to the same end without a start."""
    opts = ("workers=0",)
    settings = {"queue_max_length": 100000, "queue_ttl_sec": 100000, "events_keep": 1000}
    N = 3000

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.ids = []
        fd = os.open(os.path.join(cls.m.mnt, "runs/new"), os.O_RDWR)
        try:
            for i in range(cls.N):
                os.write(fd, b'{"command":["true"],"labels":{"all":"1","n":"%05d"}}' % i)
                cls.ids.append(os.read(fd, 100).decode().strip())
        finally:
            os.close(fd)
        for i in cls.ids[::2]:
            sbx.Run(cls.m, i).ctl("cancel\n")

    def test_all_of_them_once_each(self):
        self.assertEqual(self.ls("phase/killed"), self.ids[::2])
        self.assertEqual(self.ls("phase/queued"), self.ids[1::2])
        self.assertEqual(self.ls("label/all=1"), self.ids)
        self.assertEqual(self.ls("label"), ["all=1", *("n=%05d" % i for i in range(self.N))])
        p = fskit.shell(self.m, 'ls -l "$MNT/by/phase/killed" | wc -l; ls -lL "$MNT/by/label/all=1" | wc -l; '
                                'ls -d "$MNT"/by/label/n=0012?/*/ | wc -l')
        self.assertEqual(p.stdout.split(), [b"%d" % (self.N // 2 + 1), b"%d" % (self.N + 1), b"10"])

    def test_telldir_and_seekdir(self):
        for name in ("phase/killed", "phase/queued", "label/all=1", "label"):
            d = fskit.Dir(self.by(name))
            try:
                first = d.read(1000)
                at = d.tell()
                page = d.read(100)
                rest = d.read(1 << 20)
                self.assertEqual(len(page), 100, name)
                self.assertEqual(len(set(first + page + rest)), len(first) + len(page) + len(rest), name)
                d.seek(at)
                self.assertEqual(d.read(100), page, name)
                self.assertEqual(d.read(1 << 20), rest, name)
                d.seek(0)
                self.assertEqual(d.read(2), [".", ".."])
            finally:
                d.close()

    def test_what_leaves_during_a_listing_takes_nothing_along(self):
        d = fskit.Dir(self.by("phase/queued"))
        try:
            names = d.read(300)
            gone = [n for n in names if n not in (".", "..")][100:] + self.ids[2501:2600:2]
            for i in gone:
                sbx.Run(self.m, i).ctl("cancel\n")
            names += d.read(1 << 20)
        finally:
            d.close()
        self.assertEqual(len(names), len(set(names)))
        self.assertLessEqual(set(self.ids[1::2]) - set(gone), set(names))
        for i in gone:
            self.assertFalse(os.path.lexists(self.by("phase/queued", i)))
            self.assertTrue(os.path.lexists(self.by("phase/killed", i)))
        type(self).ids = [i for i in self.ids if i not in gone]  # for the other tests


if __name__ == "__main__":
    sbx.main()
