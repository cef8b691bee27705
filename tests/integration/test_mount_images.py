#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# run: limit=240
"""images/ on the mount: what is copied there is an image when the copy is closed, and says why when it is not."""
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import api  # noqa: E402
import fskit  # noqa: E402
import sbx  # noqa: E402
from imagekit import BUSYBOX, base, held, member, oci, sha, tar  # noqa: E402

IN_OPEN = 0x20


@unittest.skipUnless(BUSYBOX, "busybox is not installed")
class Case(unittest.TestCase):
    settings = {"image_max_mb": 8}

    @classmethod
    def setUpClass(cls):
        cls.m = sbx.Mount(settings=cls.settings)
        cls.m.start()
        cls.addClassCleanup(cls.m.close)

    def setUp(self):
        self.where = os.path.join(self.m.mnt, "images")
        self.file = os.path.join(self.m.base, "file")
        self.addCleanup(self.clear)

    def clear(self):
        for name in os.listdir(self.where):
            path = os.path.join(self.where, name)
            if os.path.isdir(path):
                self.unused(name)
                os.rmdir(path)
            else:
                os.unlink(path)
        kept = os.path.join(self.m.state, "images")
        self.assertLessEqual(set(os.listdir(kept)), {".lock"})

    def unused(self, name):
        """A runner lets go of it a moment after its run has ended."""
        with held(os.path.join(self.m.state, "images", name)):
            pass

    def path(self, *names):
        return os.path.join(self.where, *names)

    def read(self, *names):
        with open(self.path(*names)) as f:
            return f.read()

    def put(self, name, data):
        """As one write after the other; the close tells."""
        with open(self.path(name), "xb") as f:
            f.write(data)

    def copy(self, name, data, *command):
        with open(self.file, "wb") as f:
            f.write(data)
        return subprocess.run([*(command or ("cp",)), self.file, self.path(name)], stderr=subprocess.PIPE, check=False)


class Images(Case):
    def test_cp_makes_an_image(self):
        data = tar(base)
        done = self.copy("small.tar", data)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertEqual(os.listdir(self.where), ["small"])
        self.assertEqual(sorted(os.listdir(self.path("small"))), ["digest", "info.json", "size", "source"])
        self.assertEqual(self.read("small", "digest"), sha(data) + "\n")
        self.assertEqual(self.read("small", "source"), "root\n")
        self.assertGreater(int(self.read("small", "size")), os.path.getsize(BUSYBOX))
        self.assertEqual(os.stat(self.path("small", "digest")).st_size, 72)
        info = json.loads(self.read("small", "info.json"))
        self.assertEqual((info["name"], info["digest"], info["file_bytes"]), ("small", sha(data), len(data)))
        run = self.m.sh("cat /etc/version", base_image="small")
        self.assertEqual((run.wait(), run.stdout, run.json()["image_digest"]), ("0", b"one\n", sha(data)))

    def test_mv_cat_dd_and_tar(self):
        data, config = oci([tar(base)])
        self.assertEqual(self.copy("moved.tar", data, "mv").returncode, 0)
        self.assertFalse(os.path.exists(self.file))
        self.assertEqual(self.copy("preserved.tar.gz", data, "cp", "-p").returncode, 0)
        with open(self.file, "wb") as f:
            f.write(data)
        for script in ("cat %s > %s", "dd if=%s of=%s bs=64k conv=fsync status=none"):
            name = self.path(script.split()[0] + ".tar")
            subprocess.run(["sh", "-c", script % (self.file, name)], check=True)
        self.assertEqual(sorted(os.listdir(self.where)), ["cat", "dd", "moved", "preserved"])
        self.assertEqual({self.read(n, "digest") for n in os.listdir(self.where)}, {config + "\n"})

    def test_another_image_of_the_name(self):
        self.put("x.tar", tar(base))
        one = self.read("x", "digest")
        self.put("x.tar", oci([tar(base)])[0])
        self.assertNotEqual(self.read("x", "digest"), one)
        self.assertEqual(os.listdir(self.where), ["x"])

    def test_the_command_line_sees_the_same(self):
        self.put("one.tar", tar(base))
        listed = subprocess.run([sbx.SANDBOXFS, "-o", "state=%s,config=%s" % (self.m.state, self.m.conf),
                                 "--list-images"], stdout=subprocess.PIPE, check=True).stdout
        self.assertEqual(listed.decode(), "one\t" + self.read("one", "digest"))
        os.rmdir(self.path("one"))
        self.assertEqual(os.listdir(self.where), [])

    def test_in_use_it_stays(self):
        self.put("busy.tar", tar(base))
        run = self.m.sh("echo started; read line", base_image="busy", interactive=True)
        run.stream_until(b"started")
        with self.assertRaises(OSError) as c:
            os.rmdir(self.path("busy"))
        self.assertEqual(c.exception.errno, errno.EBUSY)
        self.assertEqual(self.m.sh("true", base_image="busy").wait(), "0")
        run.ctl("eof")
        run.wait()
        self.unused("busy")
        os.rmdir(self.path("busy"))

    def test_names_stay_in_the_listing_while_others_go(self):
        self.put("a.tar", tar(base))
        for i in range(40):  # one image, many names
            os.symlink(os.readlink(os.path.join(self.m.state, "images", "a")),
                       os.path.join(self.m.state, "images", "n%02d" % i))
        with os.scandir(self.where) as it:
            first = next(it).name
            os.rmdir(self.path("n07" if first != "n07" else "n08"))
            rest = {e.name for e in it}
        want = {"a", *("n%02d" % i for i in range(40))} - {first, "n07" if first != "n07" else "n08"}
        self.assertLessEqual(want, rest)


class Refused(Case):
    def fails(self, name, data, number=errno.EINVAL):
        with self.assertRaises(OSError) as c:
            self.put(name, data)
        self.assertEqual(c.exception.errno, number)

    def test_cp_fails_and_a_file_says_why(self):
        done = self.copy("bad.tar", tar(base)[:30000])
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(b"Invalid argument", done.stderr)
        self.assertEqual(os.listdir(self.where), ["bad.error"])
        error = json.loads(self.read("bad.error"))["error"]
        self.assertEqual(error["code"], "invalid_argument")
        self.assertIn("Truncated", error["message"])
        self.put("bad.tar", tar(base))  # now it is right
        self.assertEqual(os.listdir(self.where), ["bad"])

    def test_fsync_and_close_say_the_same(self):
        fd = os.open(self.path("x.tar"), os.O_CREAT | os.O_WRONLY)
        os.write(fd, b"no tar")
        for _ in range(2):
            with self.assertRaises(OSError) as c:
                os.fsync(fd)
            self.assertEqual(c.exception.errno, errno.EINVAL)
        with self.assertRaises(OSError):
            os.close(fd)
        self.assertEqual(os.listdir(self.where), ["x.error"])
        os.unlink(self.path("x.error"))
        self.assertEqual(os.listdir(self.where), [])

    def test_errors_whose_names_are_made_alike_are_two(self):
        # FNV-1a, which numbers are made with, gives both the same.
        names = ["8yn0iYCKYHlIj4-BwPqk", "GReLUrM4wMqfg9yzV3KQ"]
        for name in names:
            with self.assertRaises(OSError):
                self.put(name + ".tar", b"no tar")
        self.assertEqual(sorted(os.listdir(self.where)), [n + ".error" for n in names])
        inodes = {os.stat(self.path(n + ".error")).st_ino for n in names}
        self.assertEqual(len(inodes), 2)
        os.unlink(self.path(names[0] + ".error"))
        self.assertEqual(os.listdir(self.where), [names[1] + ".error"])
        self.assertIn("error", json.loads(self.read(names[1] + ".error")))

    def test_hostile(self):
        for data in (tar(lambda t: member(t, "../e", b"x")), tar(lambda t: member(t, "h", kind=b"1", link="/etc/passwd")),
                     b"\0" * 600, oci([tar(base)])[0][:-20000]):
            self.fails("h.tar", data)
        self.assertEqual(os.listdir(self.where), ["h.error"])

    def test_names(self):
        for name in ("x", "x.zip", ".tar", "host.tar", "sha256:1.tar", "-x.tar", "x" * 129 + ".tar", "y.error"):
            with self.subTest(name), self.assertRaises(OSError) as c:
                self.put(name, b"x")
            self.assertEqual(c.exception.errno, errno.EINVAL)
        for call in (lambda: os.mkdir(self.path("d")), lambda: os.symlink("x", self.path("l")),
                     lambda: os.mkfifo(self.path("p"))):
            with self.assertRaises(OSError) as c:
                call()
            self.assertEqual(c.exception.errno, errno.EPERM)
        for name in ("none", "<name>.tar", "<name>.error", "..%2f"):
            self.assertFalse(os.path.lexists(self.path(name)))

    def test_too_large(self):
        fd = os.open(self.path("big.tar"), os.O_CREAT | os.O_WRONLY)
        for call in (lambda: os.pwrite(fd, b"x", 8 << 20), lambda: os.ftruncate(fd, (8 << 20) + 1)):
            with self.assertRaises(OSError) as c:
                call()
            self.assertEqual(c.exception.errno, errno.EFBIG)
        os.ftruncate(fd, 100)
        self.assertEqual(os.fstat(fd).st_size, 100)
        with self.assertRaises(OSError):
            os.close(fd)

    def test_nothing_written_is_nothing(self):
        os.close(os.open(self.path("nothing.tar"), os.O_CREAT | os.O_WRONLY))
        self.assertEqual(os.listdir(self.where), [])


def other_user(where):
    """What somebody else sees of images/, and what comes of each thing that is not theirs to do."""
    def number(act):
        try:
            act()
        except OSError as e:
            return e.errno
        return 0

    with open(os.path.join(where, "x", "source")) as f:
        source = f.read()
    return [os.listdir(where), source, os.access(where, os.W_OK), number(lambda: open(os.path.join(where, "y.tar"), "xb")),
            number(lambda: os.rmdir(os.path.join(where, "x"))), number(lambda: os.mkdir(os.path.join(where, "d")))]


class Others(unittest.TestCase):
    def test_may_read_and_not_write(self):
        with sbx.Mount(opts=("allow_other",)) as m:
            where = os.path.join(m.mnt, "images")
            with open(os.path.join(where, "x.tar"), "xb") as f:
                f.write(tar(base))
            self.assertEqual(fskit.as_user(12345, other_user, where), [["x"], "root\n", False, 13, 13, 13])
            self.assertEqual(os.listdir(where), ["x"])

    def test_with_administrators_the_group_of_the_server_may_read_like_others(self):
        with sbx.Mount(opts=("allow_other",), settings={"admins": "uid:12345"}) as m:
            where = os.path.join(m.mnt, "images")
            for group in (os.getgid(), 23456):
                done = subprocess.run(["sh", "-c", "ls %s && ! mkdir %s/d 2>/dev/null" % (where, where)], user=23456,
                                      group=group, extra_groups=[], check=False, stderr=subprocess.PIPE)
                self.assertEqual((done.returncode, done.stderr), (0, b""))

    def test_an_administrator_who_is_not_root_may(self):
        with sbx.Mount(opts=("allow_other",), settings={"admins": "uid:12345"}) as m:
            where = os.path.join(m.mnt, "images")
            data = os.path.join(m.base, "data")
            with open(data, "wb") as f:
                f.write(tar(base))
            os.chmod(data, 0o644)
            done = subprocess.run(["sh", "-c", "cp %s %s/x.tar && cat %s/x/source && rmdir %s/x" % (data, where, where, where)],
                                  user=12345, group=12345, extra_groups=[], check=False, stderr=subprocess.PIPE,
                                  stdout=subprocess.PIPE)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, b"root\n", b""))


class Stopped(unittest.TestCase):
    def test_a_mount_that_ends_ends_the_import(self):
        """Somebody else imports, so that ours waits; a second copy waits behind it."""
        with sbx.Mount() as m:
            where, lock = os.path.join(m.mnt, "images"), os.path.join(m.state, "images", ".lock")
            with open(os.path.join(where, "first.tar"), "xb") as f:
                f.write(tar(base))
            data = shutil.copy("/bin/true", os.path.join(m.base, "data"))
            with held(lock), api.watch(lock, IN_OPEN) as ring:
                copies = [subprocess.Popen(["cp", data, os.path.join(where, "%d.tar" % i)], stderr=subprocess.PIPE)
                          for i in range(2)]
                self.assertTrue(ring(20 * sbx.SLOW))
                m.proc.send_signal(signal.SIGTERM)
                m.proc.wait(20 * sbx.SLOW)
                for c in copies:
                    self.assertNotEqual((c.wait(20 * sbx.SLOW), c.stderr.read()), (0, b""))
                    c.stderr.close()
            self.assertEqual([n for n in os.listdir(os.path.dirname(lock)) if "import" in n], [])
            m.start()
            self.assertEqual(os.listdir(where), ["first"])


if __name__ == "__main__":
    sbx.main()
