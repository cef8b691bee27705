#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# run: limit=240
"""Snapshots as tars through both doors: what goes out comes back as it was, and what is hostile does not come in."""
import contextlib
import errno
import io
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import tarfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import api  # noqa: E402
import fskit  # noqa: E402
import rawhttp  # noqa: E402
import sbx  # noqa: E402
import sessions  # noqa: E402
import treekit  # noqa: E402
from imagekit import held, member, tar  # noqa: E402

IN_OPEN = 0x20
CLOSE = {"x86_64": "3", "aarch64": "57"}


class Case(unittest.TestCase):
    settings = {"snapshot_max_size_mb": 8}

    @classmethod
    def setUpClass(cls):
        cls.a = api.Apid(settings=cls.settings)
        cls.addClassCleanup(cls.a.close)
        cls.a.start()

    def session(self, **kw):
        return sessions.Session.make(self.a, **kw)

    def refused(self, got, status, code):
        self.assertEqual((got.status, got.code), (status, code), got)
        return got.error["message"]

    def nothing_beside(self, s):
        self.assertEqual(os.listdir(s.files()), ["workspace"])


def export(s, name, method="GET", **kw):
    return s.ask(method, "/snapshots/%s/export" % name, **kw)


def take_in(s, data, name="", **kw):
    return s.ask("POST", "/snapshots" + ("?name=" + name if name else ""), data, **kw)


class Out(Case):
    def test_what_comes(self):
        s = self.session()
        s.put(("a", b"one"), ("d/b", b"x" * 70000))
        n = s.snapshot(name="first").json
        got = export(s, "first")
        self.assertEqual((got.status, got.headers["Content-Type"]), (200, "application/x-tar"))
        self.assertEqual(got.headers["Content-Disposition"], 'attachment; filename="first.tar"')
        self.assertEqual(int(got.headers["Content-Length"]), len(got.body))
        self.assertEqual(len(got.body) % 10240, 0)
        with tarfile.open(fileobj=io.BytesIO(got.body)) as t:
            self.assertEqual([m.name for m in t], ["a", "d", "d/b"])
            self.assertEqual(t.extractfile("d/b").read(), b"x" * 70000)
            self.assertEqual({(m.uid, m.gid, m.uname) for m in t}, {(0, 0, "")})
        self.assertEqual(export(s, n["snapshot_id"]).body, got.body)
        head = export(s, "first", "HEAD")
        self.assertEqual((head.status, head.body, head.headers["Content-Length"], head.headers["ETag"]),
                         (200, b"", str(len(got.body)), got.headers["ETag"]))

    def test_a_name_that_needs_care(self):
        s = self.session()
        n = s.snapshot(name='a "b"\u00fc').json
        self.assertEqual(export(s, n["snapshot_id"]).headers["Content-Disposition"],
                         'attachment; filename="%s.tar"' % n["snapshot_id"])

    def test_what_is_not_there(self):
        s, other = self.session(), self.session()
        n = s.snapshot(name="one").json
        for one, name in ((s, "two"), (other, n["snapshot_id"]), (s, "..%2f..%2fstate.db")):
            self.refused(export(one, name), 404, "snapshot_not_found")
        nobody = sessions.Session(self.a, "00000000-0000-4000-8000-000000000000")
        self.refused(export(nobody, "one"), 404, "session_not_found")

    def test_a_client_that_reads_slowly_or_leaves(self):
        """Holds up nobody, and costs no more than its socket has room for."""
        s = self.session()
        s.put(("big", os.urandom(7 << 20)))
        s.snapshot(name="one")
        with socket.socket() as c:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            c.settimeout(20 * sbx.SLOW)
            c.connect(("127.0.0.1", self.a.port))
            head = "".join("%s: %s\r\n" % h for h in api.KEY.headers.items())
            c.sendall(("GET %s%s HTTP/1.1\r\nHost: x\r\n%s\r\n" %
                       (api.BASE, s.path("/snapshots/one/export"), head)).encode())
            self.assertIn(b" 200 ", c.recv(1000))
            self.assertEqual(len(export(s, "one").body) >> 20, 7)
            self.assertEqual(s.ask("DELETE", "/snapshots/one").json["ok"], True)
        self.a.wait_line(r"path=\S+/export status=200")
        self.assertEqual(s.delete().status, 200)


class RoundTrip(Case):
    def test_everything_comes_back_as_it_was(self):
        s, other = self.session(), self.session()
        treekit.fill(s.files("workspace"))
        os.setxattr(s.files("workspace", "plain"), "user.colour", b"blue\0\n")
        n = s.snapshot(name="whole").json
        data = export(s, "whole").body
        got = take_in(other, data, "copy")
        self.assertEqual(got.status, 200, got)
        self.assertEqual((got.json["name"], got.json["size_bytes"], got.json["file_count"], got.json["session_id"]),
                         ("copy", n["size_bytes"], n["file_count"], other.id))
        self.assertEqual(os.listdir(other.files("workspace")), [])
        self.nothing_beside(other)
        self.assertEqual(other.restore("copy").status, 200)
        self.assertEqual(treekit.show(other.files("workspace")), treekit.show(s.files("workspace")))
        self.assertEqual(os.getxattr(other.files("workspace", "plain"), "user.colour"), b"blue\0\n")
        self.assertEqual(stat_of(other), stat_of(s))
        self.assertEqual(export(other, "copy").body, data)

    def test_a_tar_of_another_program(self):
        s = self.session()
        data = sessions.tar(("etc/x", b"1"), sessions.special("l", tarfile.SYMTYPE, "/etc/passwd"),
                            sessions.special("pipe", tarfile.FIFOTYPE))
        self.assertEqual(take_in(s, data, "a").status, 200)
        self.assertEqual(s.restore("a").status, 200)
        self.assertEqual(s.sh("cat etc/x; readlink l; ls"), b"1/etc/passwd\netc\nl\n")

    def test_while_a_run_is_active(self):
        s = self.session()
        run = s.run("sleep", "100")
        run.wait_phase("running")
        self.assertEqual(take_in(s, tar(lambda t: member(t, "x", b"1"))).status, 200)
        run.cancel()
        run.wait()


def stat_of(s):
    return os.stat(s.files("workspace")).st_mode


class Hostile(Case):
    ROWS = (
        (lambda t: member(t, "../e", b"x"), "'..'"),
        (lambda t: member(t, "/e", b"x"), "absolute"),
        (lambda t: member(t, "a/../../e", b"x"), "'..'"),
        (lambda t: (member(t, "l", kind=tarfile.SYMTYPE, link="/tmp"), member(t, "l/e", b"x")), "no directory"),
        (lambda t: (member(t, "l", kind=tarfile.SYMTYPE, link="."), member(t, "l/", kind=tarfile.DIRTYPE)), ""),
        (lambda t: member(t, "h", kind=tarfile.LNKTYPE, link="/etc/passwd"), "hard link"),
        (lambda t: member(t, "h", kind=tarfile.LNKTYPE, link="../workspace/x"), "hard link"),
        (lambda t: member(t, "h", kind=tarfile.LNKTYPE, link="h"), "itself"),
        (lambda t: (member(t, "l", kind=tarfile.SYMTYPE, link="/etc"),
                    member(t, "h", kind=tarfile.LNKTYPE, link="l/passwd")), "hard link"),
        (lambda t: (member(t, "d", kind=tarfile.DIRTYPE), member(t, "d", b"x")), "directory"),
        (lambda t: (member(t, "f", b"x"), member(t, "f/g", b"x")), "no directory"),
        (lambda t: member(t, "/".join("d" * 200), b"x"), "deep"),
    )

    def test_refused_as_a_whole(self):
        s = self.session()
        s.put(("x", b"1"))
        for fill, why in self.ROWS:
            got = take_in(s, tar(lambda t, fill=fill: (member(t, "before", b"1"), fill(t))))
            with self.subTest(why):
                self.assertIn(why, self.refused(got, 400, "invalid_argument"))
                self.nothing_beside(s)
        whole = tar(lambda t: member(t, "x", b"1" * 100000))
        for body in (b"", b"no tar", whole[:50000], whole[:700]):
            self.refused(take_in(s, body), 400, "invalid_argument")
        self.assertEqual(s.snapshots(), [])
        self.nothing_beside(s)

    def test_too_much(self):
        s = self.session()
        for data in (tar(lambda t: member(t, "x", b"\0" * (9 << 20))),
                     sessions.tar(("bomb", b"\0" * (64 << 20))),
                     tar(lambda t: [member(t, "x%d" % i, b"\0" * (1 << 20)) for i in range(9)])):
            self.refused(take_in(s, data), 413, "workspace_cap_exceeded")
        self.refused(take_in(s, iter([b"x" * (1 << 20)] * 33)), 413, "spec_too_large")
        self.nothing_beside(s)

    def test_names(self):
        s = self.session()
        s.snapshot(name="taken")
        data = tar(lambda t: member(t, "x", b"1"))
        self.refused(take_in(s, data, "taken"), 409, "entry_exists")
        for name in ("workspace", ".x", "a%2fb", "new", "x" * 300):
            self.refused(take_in(s, data, name), 400, "invalid_argument")
        self.assertEqual(len(s.snapshots()), 1)

    def test_the_oldest_go(self):
        s = self.session()
        for i in range(12):
            self.assertEqual(take_in(s, tar(lambda t: member(t, "x", b"1")), "n%d" % i).status, 200)
        self.assertEqual([n["name"] for n in s.snapshots()], ["n%d" % i for i in range(11, 1, -1)])


class Mount(unittest.TestCase):
    """The same through the mount, with the programs that people use."""

    @classmethod
    def setUpClass(cls):
        cls.m = sbx.Mount(settings={"snapshot_max_size_mb": 8})
        cls.m.start()
        cls.addClassCleanup(cls.m.close)

    def session(self, name):
        top = os.path.join(self.m.mnt, "sessions", name)
        os.mkdir(top)
        return top

    def put(self, path, data):
        with open(path, "xb") as f:
            f.write(data)

    def test_there_and_back(self):
        one, two = self.session("one"), self.session("two")
        treekit.fill(one + "/workspace")
        os.mkdir(one + "/snapshots/s")
        path = one + "/snapshots/s/export.tar"
        size = os.stat(path).st_size
        with open(path, "rb") as f:
            data = f.read()
            self.assertEqual((len(data), os.fstat(f.fileno()).st_size, f.seek(0, 2)), (size, size, size))
            for off, n in ((0, 1), (511, 3), (size - 5, 100), (size // 2, 4096), (size, 10)):
                self.assertEqual(os.pread(f.fileno(), n, off), data[off:off + n])
            with mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as whole:
                self.assertEqual(whole[:], data)
        subprocess.run(["cp", path, two + "/snapshots/copy.tar"], check=True)
        self.assertEqual(os.listdir(two + "/snapshots"), ["copy"])
        with open(two + "/snapshots/copy/export.tar", "rb") as f:
            self.assertEqual(f.read(), data)
        with open(two + "/ctl", "wb", buffering=0) as f:
            f.write(b"restore copy")
        self.assertEqual(treekit.show(two + "/workspace"), treekit.show(one + "/workspace"))

    def test_other_programs_read_it(self):
        top, out = self.session("read"), os.path.join(self.m.base, "out")
        self.put(top + "/workspace/a", b"1")
        os.mkdir(top + "/snapshots/s")
        os.mkdir(out)
        subprocess.run(["tar", "-C", out, "-xf", top + "/snapshots/s/export.tar"], check=True)
        self.assertEqual(os.listdir(out), ["a"])
        with self.assertRaises(OSError) as c:
            open(top + "/snapshots/s/export.tar", "r+b")
        self.assertEqual(c.exception.errno, errno.EACCES)

    def test_what_is_refused_and_why(self):
        top = self.session("bad")
        shots = top + "/snapshots/"
        for fill, why in Hostile.ROWS:
            with self.assertRaises(OSError) as c:
                self.put(shots + "x.tar", tar(fill))
            self.assertEqual((c.exception.errno, os.listdir(shots)), (errno.EINVAL, ["x.error"]))
            with open(shots + "x.error") as f:
                self.assertIn(why, json.load(f)["error"]["message"])
        os.unlink(shots + "x.error")
        self.assertEqual(os.listdir(shots), [])
        with self.assertRaises(OSError) as c:
            self.put(shots + "x.tar", tar(lambda t: member(t, "x", b"1" * (9 << 20))))
        self.assertEqual(c.exception.errno, errno.ENOSPC)
        self.put(shots + "x.tar", tar(lambda t: member(t, "x", b"1")))
        self.assertEqual(os.listdir(shots), ["x"])
        with self.assertRaises(OSError) as c:
            self.put(shots + "x.tar", tar(lambda t: member(t, "x", b"1")))
        self.assertEqual(c.exception.errno, errno.EEXIST)
        for name in ("workspace.tar", "new.tar", ".tar", "x.zip"):
            with self.assertRaises(OSError) as c:
                self.put(shots + name, b"x")
            self.assertEqual(c.exception.errno, errno.EINVAL)
        self.assertEqual(os.listdir(os.path.join(self.m.state, "sessions", session_id(top))), ["workspace"])

    def test_a_write_that_failed_leaves_no_whole(self):
        """What is there unpacks without complaint: the tar is cut between two of its members."""
        top = self.session("cut")
        path, most = top + "/snapshots/x.tar", (2 * 8 + 16) << 20
        whole = tar(lambda t: member(t, "x", b"1"))
        with self.assertRaises(OSError) as c, open(path, "xb", buffering=0) as f:
            f.write(whole[:1024])
            with self.assertRaises(OSError) as c:
                os.pwrite(f.fileno(), b"\0" * 512, most)
            self.assertEqual(c.exception.errno, errno.EFBIG)
        self.assertEqual((c.exception.errno, os.listdir(top + "/snapshots")), (errno.EFBIG, ["x.error"]))
        with open(top + "/snapshots/x.error") as f:
            self.assertEqual(json.load(f)["error"]["code"], "spec_too_large")
        # Whoever begins again in the same file may.
        with open(path, "xb", buffering=0) as f:
            with self.assertRaises(OSError):
                os.pwrite(f.fileno(), b"x", most)
            f.truncate(0)
            f.write(whole)
        self.assertEqual(os.listdir(top + "/snapshots"), ["x"])

    def test_errors_of_two_sessions_are_two(self):
        for name in ("e1", "e2"):
            top = self.session(name)
            with self.assertRaises(OSError):
                self.put(top + "/snapshots/x.tar", b"no tar")
        os.unlink(self.m.mnt + "/sessions/e1/snapshots/x.error")
        self.assertEqual([os.listdir("%s/sessions/%s/snapshots" % (self.m.mnt, n)) for n in ("e1", "e2")], [[], ["x.error"]])

    def test_few_at_a_time(self):
        top = self.session("many")
        with contextlib.ExitStack() as stack:
            for i in range(4):
                stack.enter_context(open("%s/snapshots/%d.tar" % (top, i), "xb"))
            with self.assertRaises(OSError) as c:
                open(top + "/snapshots/5.tar", "xb")
            self.assertEqual(c.exception.errno, errno.EMFILE)

    @contextlib.contextmanager
    def taken_turn(self, name):
        """Somebody else's import is under way for as long as this lasts, so all others wait for their turn."""
        lock, data = os.path.join(self.m.state, "images", ".lock"), os.path.join(self.m.base, "some")
        with open(data, "wb") as f:
            f.write(tar(lambda t: member(t, "x", b"1")))
        with contextlib.suppress(OSError):  # makes the lock's file
            self.put(os.path.join(self.m.mnt, "images", "none.tar"), b"no tar")
        with held(lock), api.watch(lock, IN_OPEN) as ring:
            first = subprocess.Popen(["cp", data, os.path.join(self.m.mnt, "images", name + ".tar")],
                                     stderr=subprocess.DEVNULL)
            self.assertTrue(ring(20 * sbx.SLOW))
            yield data
            self.assertIsNone(first.poll())
        first.wait(20 * sbx.SLOW)

    def test_who_waits_for_his_turn_can_be_interrupted(self):
        top = self.session("turns")
        with self.taken_turn("first") as data:
            second = subprocess.Popen(["cp", data, top + "/snapshots/s.tar"])
            fskit.blocked_in(second.pid, CLOSE, 20)
            second.terminate()
            self.assertEqual(second.wait(20 * sbx.SLOW), -signal.SIGTERM)
        self.assertEqual(os.listdir(top + "/snapshots"), [])
        # The turn of who was interrupted is nobody's.
        self.put(top + "/snapshots/s.tar", tar(lambda t: member(t, "x", b"1")))
        self.assertEqual(os.listdir(top + "/snapshots"), ["s"])

    def test_one_file_stands_in_the_queue_once(self):
        """However often copies of its descriptor are written to and closed: the queue is for all users."""
        top = self.session("copies")
        code = ("import os, sys\nfd = int(sys.argv[1])\nos.pwrite(fd, sys.argv[2].encode(), 0)\n"
                "try: os.close(fd)\nexcept OSError as e: sys.exit(e.errno)")

        def closer(text):
            p = subprocess.Popen([sys.executable, "-c", code, str(fd), text], pass_fds=[fd])
            self.addCleanup(p.wait)
            self.addCleanup(p.kill)
            return p

        fd = os.open(top + "/snapshots/x.tar", os.O_CREAT | os.O_WRONLY)
        with self.taken_turn("second"):
            waits = closer("x")
            fskit.blocked_in(waits.pid, CLOSE, 20)
            # Nobody knows yet what becomes of it, so no close may say that it is well.
            for text in ("", "y"):
                self.assertEqual(closer(text).wait(20 * sbx.SLOW), errno.EAGAIN)
        self.assertEqual(waits.wait(20 * sbx.SLOW), errno.EINVAL)
        os.unlink(top + "/snapshots/x.error")
        with self.assertRaises(OSError) as c:  # takes what has come since
            os.close(fd)
        self.assertEqual((c.exception.errno, os.listdir(top + "/snapshots")), (errno.EINVAL, ["x.error"]))

    @unittest.skipUnless(sbx.ROOT, "needs several users")
    def test_few_of_all(self):
        def as_user(uid, n):
            os.seteuid(uid)
            try:
                top = self.session("of-%d" % uid)
                for i in range(n):
                    stack.enter_context(open("%s/snapshots/%d.tar" % (top, i), "xb"))
            finally:
                os.seteuid(0)

        with contextlib.ExitStack() as stack:
            stack.enter_context(open(self.m.mnt + "/images/one.tar", "xb"))
            for uid in range(20001, 20009):
                as_user(uid, 4)
            with self.assertRaises(OSError) as c:
                as_user(20009, 1)
            self.assertEqual(c.exception.errno, errno.EAGAIN)
            # Images come from an administrator, and are not among those.
            stack.enter_context(open(self.m.mnt + "/images/two.tar", "xb"))


class Owners(unittest.TestCase):
    def test_an_ordinary_user(self):
        with sbx.Mount(opts=("allow_other",)) as m:
            top = os.path.join(m.mnt, "sessions", "mine")
            fskit.as_user(12345, os.mkdir, top)
            self.assertEqual(fskit.as_user(12345, as_owner, top), ["copy", "s"])
            with self.assertRaises(OSError) as c:
                fskit.as_user(12346, os.listdir, os.path.join(m.mnt, "sessions", session_id(top)))
            self.assertIn(c.exception.errno, (errno.EACCES, errno.ENOENT))
            self.assertEqual(fskit.as_user(12345, owner_of_error, top), [12345, 0o400])


def session_id(top):
    with open(top + "/status.json") as f:
        return json.load(f)["id"]


def as_owner(top):
    with open(top + "/workspace/a", "xb") as f:
        f.write(b"1")
    os.mkdir(top + "/snapshots/s")
    with open(top + "/snapshots/s/export.tar", "rb") as f:
        data = f.read()
    with open(top + "/snapshots/copy.tar", "xb") as f:
        f.write(data)
    return sorted(os.listdir(top + "/snapshots"))


def owner_of_error(top):
    with contextlib.suppress(OSError), open(top + "/snapshots/bad.tar", "xb") as f:
        f.write(b"no tar")
    st = os.stat(top + "/snapshots/bad.error")
    with open(top + "/snapshots/bad.error") as f:
        assert "error" in json.load(f)
    return [st.st_uid, st.st_mode & 0o777]


class Coming(Case):
    """Bodies that are announced and do not come."""

    def connect(self):
        c = socket.create_connection(("127.0.0.1", self.a.port), 20 * sbx.SLOW)
        self.addCleanup(c.close)
        return c

    def begin(self, s, login=api.KEY):
        c = self.connect()
        c.sendall(rawhttp.head("POST", api.BASE + s.path("/snapshots"), [
            ("Expect", "100-continue"), ("Content-Length", "10"), *login.headers.items()]))
        self.assertIn(b" 100 ", c.recv(100))
        return c


class Busy(Coming):
    def test_few_at_a_time(self):
        s = self.session()
        waiting = [self.begin(s) for _ in range(8)]
        got = take_in(s, tar(lambda t: member(t, "x", b"1")))
        self.refused(got, 429, "queue_full")
        self.assertEqual((got.headers["Retry-After"], got.error["details"]),
                         ("1", {"retry_after": 1, "reason": "user_bodies", "limit": 8}))
        # Who leaves makes room.
        for c in waiting:
            c.close()
        self.a.wait_line(r"(path=\S+/snapshots status=\S+ [\s\S]*){9}")
        self.assertEqual(take_in(s, tar(lambda t: member(t, "x", b"1"))).status, 200)

    def test_what_is_refused_has_left(self):
        """Although its client goes on sending for as long as he likes."""
        s = self.session()
        for _ in range(7):
            self.begin(s)
        c = self.connect()
        c.sendall(rawhttp.head("POST", api.BASE + s.path("/snapshots"), [
            ("Transfer-Encoding", "chunked"), *api.KEY.headers.items()]))
        # Far more than the sockets hold beside what may come, so the server has seen that it is too much.
        for _ in range(32 + 40):
            c.sendall(b"100000\r\n" + bytes(1 << 20) + b"\r\n")
        self.refused(take_in(s, b"no tar"), 400, "invalid_argument")


class Images(Coming):
    settings = api.USERS

    def test_an_image_has_room(self):
        """Whatever users send: it comes from an administrator, and is not among those."""
        logins = [api.user("user%d" % i) for i in range(4)]
        for login in logins:
            s = self.session(login=login)
            for _ in range(8):
                self.begin(s, login)
        other = api.user("another")
        got = take_in(self.session(login=other), b"x", login=other)
        self.refused(got, 429, "queue_full")
        self.assertEqual(got.error["details"], {"retry_after": 1, "reason": "bodies", "limit": 32})
        got = self.a.request("PUT", "/admin/images/x", b"no tar", login=api.user("boss", "admin"))
        self.refused(got, 400, "invalid_argument")


class Foreign(Case):
    settings = api.USERS

    def test_sessions_of_others_are_not_there(self):
        s = self.session(login=api.user("alice"))
        s.snapshot(name="one")
        for login, status in ((api.user("bob"), 404), (api.NOBODY, 401)):
            self.assertEqual(export(s, "one", login=login).status, status)
            self.assertEqual(take_in(s, tar(lambda t: member(t, "x", b"1")), login=login).status, status)


if __name__ == "__main__":
    sbx.main()
