# SPDX-License-Identifier: Apache-2.0
"""Escape attempts through what the service itself does with a run's files, names and output: capturing
artifacts, building the root from an image, showing logs."""
import os
import shutil
import stat
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from escape import Attempts, contents, fingerprint, levels, sbx, space  # noqa: E402

LINKS = r"""
canary=$1 public=$2
ln -s $canary leak; ln -s $public leak2; ln -s /proc/self/environ env; ln -s ../../../../../../srv up
ln -s $(dirname $public) dir; ln -s /proc/1/root r; ln -s /proc/self/fd fds; ln -s /etc etc; ln -s . self
ln /etc/hostname hard 2>/dev/null; ln $public hard2 2>/dev/null; ln -s leak chain; ln -s nowhere dead
mkdir d; echo fine > d/ok; ln -s ../../../../$public d/climb; ln d/ok d/twin; ln -s ok d/alias
mkfifo d/pipe; mknod d/dev c 1 5 2>/dev/null; mknod d/white c 0 0 2>/dev/null
python3 -c "import socket; socket.socket(socket.AF_UNIX).bind('d/sock')"
true
"""

# Exchanges files with links to outside, for ever, in processes that nobody waits for.
SWAPPERS = r"""
import ctypes, os, sys
libc = ctypes.CDLL(None)
secret, n = sys.argv[1], 40
for i in range(n):
    open("file%d" % i, "w").write("fine"); os.symlink(secret, "link%d" % i)
    os.mkdir("dir%d" % i); open("dir%d/secret" % i, "w").write("fine")
    os.symlink(os.path.dirname(secret), "dlink%d" % i)
ready, w = os.pipe()
for k in range(4):
    if os.fork() == 0:
        os.setsid()
        if os.fork(): os._exit(0)
        os.write(w, b"x")
        while True:
            for i in range(n):
                for a, b in (("file", "link"), ("dir", "dlink")):
                    libc.renameat2(-100, b"%s%d" % (a.encode(), i), -100, b"%s%d" % (b.encode(), i), 2)
for k in range(4): os.read(ready, 1)
"""

ODD_NAMES = r"""
import os
os.mkdir(b"n")
for name in (b"new\nline", b"\x1b]0;title\x07", b"\xff\xfe not utf-8", b"a" * 255, b" ", b"-rf", b"*", b"\\", b'"',
             b"..hidden", b"%2e%2e", "\u202egnp.exe".encode()):
    open(b"n/" + name, "w").close()
"""

HARD_TREES = r"""
import os, sys
os.makedirs("many")
for i in range(12000): open("many/%05d" % i, "w").close()
open("hole", "w").truncate(1 << 40)
with open("a-sparse", "w") as f: f.truncate(60 << 20)
os.mkdir("closed", 0o700); open("closed/f", "w").write("x"); os.chmod("closed/f", 0); os.chmod("closed", 0)
os.mkdir("deep"); os.chdir("deep")
for i in range(1500):
    os.mkdir("deepdeepdeep"); os.chdir("deepdeepdeep")
open("bottom", "w").close()
print("made")
"""


def tree(path):
    """Every name below a directory, relative: what is there, no link followed."""
    found = {}
    for where, dirs, files in os.walk(os.fsencode(path)):
        for name in dirs + files:
            full = os.path.join(where, name)
            st = os.lstat(full)
            if not stat.S_ISDIR(st.st_mode):
                found[os.path.relpath(full, os.fsencode(path))] = st
    return found


class Artifacts(Attempts):
    settings = {"cancel_grace_seconds": 1}

    def capture(self, command, patterns, timeout=40, **more):
        r = self.m.run(dict({"command": command, "capture_patterns": patterns, "timeout_sec": 55}, **more), timeout)
        r.usage = r.json()["resource_usage"]
        return r

    def assert_only_files(self, r):
        """By both ways to them there are only plain files, private and without privileges."""
        kept = os.path.join(self.m.state, "runs", r.id, "artifacts")
        for root in (r.path("artifacts"), kept):
            for name, st in tree(root).items():
                self.assertTrue(stat.S_ISREG(st.st_mode), name)
                self.assertEqual(st.st_mode & 0o7022, 0, name)
        for name in tree(r.path("artifacts")):
            text = contents(os.path.join(os.fsencode(r.path("artifacts")), name))
            self.assertNotIn(self.canaries.mark.encode(), text)

    def test_links_give_nothing(self):
        c = self.canary
        for trust in levels(self.m):
            r = self.capture(["sh", "-c", LINKS, "sh", c["private"], c["public"]],
                             ["**/*", "leak", "env", "up/*/public", "dir/*", "r/srv/*", "chain", "hard", "hard2", "d/*",
                              "etc/*", "self/self/d/*", "fds/*"], trust_level=trust)
            self.assertEqual((r.exit, r.status()), ("0", "completed"), r.log)
            self.assertEqual(sorted(tree(r.path("artifacts"))), [b"d/ok", b"d/twin"])
            self.assertEqual(r.read("artifacts", "d", "ok"), b"fine\n")
            self.assert_only_files(r)
            self.assertEqual(r.json()["status_reason_code"], "limits_applied")
            self.assertGreaterEqual(r.usage["artifact_skip_symlink"], 10)
            self.assertGreaterEqual(r.usage["artifact_skip_invalid"], 2)  # the FIFO and the socket
            for outside in ("leak", "dir/public", "leak/../../status.json", "d/climb", "up", "etc/passwd"):
                with self.assertRaises(FileNotFoundError, msg=outside):
                    contents(r.path("artifacts", outside))

    def test_exchanged_while_it_ends(self):
        runs = [self.m.submit({"command": ["python3", "-c", SWAPPERS, self.canary["private"]], "timeout_sec": 30,
                               "capture_patterns": ["**/*"]}) for _ in range(6)]
        for r in runs:
            self.assertEqual((r.wait(), r.status()), ("0", "completed"), r.stderr)
            self.assert_only_files(r)
            self.assertEqual({contents(os.path.join(os.fsencode(r.path("artifacts")), n))
                              for n in tree(r.path("artifacts"))}, {b"fine"})

    def test_hard_link_to_the_host_changes_nothing(self):
        usr = self.canary["usr"]
        if not usr:
            self.skipTest("only root can put a file where a sandbox sees it")
        before = fingerprint(os.path.join(usr, "writable"))
        r = self.capture(["sh", "-c", "ln %s/writable w || cp --reflink=never %s/writable w; chmod 6777 w" % (usr, usr)],
                         ["w"])
        self.assertEqual(fingerprint(os.path.join(usr, "writable")), before)
        self.assertEqual(r.exit, "0")
        self.assertEqual(os.lstat(r.path("artifacts", "w")).st_mode & 0o7022, 0)

    def test_fifo_as_artifact_does_not_wait(self):
        r = self.capture(["sh", "-c", "mkfifo out; mkdir p; mkfifo p/q; echo x > ok"], ["*", "**/*"])
        self.assertEqual((r.exit, sorted(tree(r.path("artifacts")))), ("0", [b"ok"]))

    def test_names(self):
        r = self.capture(["python3", "-c", ODD_NAMES], ["n/*"])
        self.assertEqual(r.exit, "0", r.stderr)
        names = set(tree(r.path("artifacts")))
        self.assertLessEqual({b"n/-rf", b"n/*", b"n/ ", b"n/" + b"a" * 255, b"n/..hidden", b"n/%2e%2e"}, names)
        # What a name does to a terminal is the reader's affair; to the documents, ours.
        for document in (r.read("status.json"), r.read("log.ndjson"), r.read("why")):
            self.assertNotIn(b"\x1b", document)
        self.assert_only_files(r)
        # Every name that is listed can be opened.
        for name in names:
            self.assertEqual(contents(os.path.join(os.fsencode(r.path("artifacts")), name)), b"")

    def test_trees_that_are_hard_to_walk(self):
        before = space(self.m.state)
        r = self.capture(["python3", "-c", HARD_TREES], ["**/*"], trust_level=levels(self.m)[-1], timeout=60)
        self.assertEqual((r.exit, r.stdout), ("0", b"made\n"), r.stderr)
        found = tree(r.path("artifacts"))
        self.assertLessEqual(len(found), 10000)
        self.assertNotIn(b"hole", found)
        self.assertGreaterEqual(r.usage["artifact_skip_file_limit"], 1)
        self.assertGreaterEqual(r.usage["artifact_skip_total_limit"], 1)
        kept = os.stat(os.path.join(self.m.state, "runs", r.id, "artifacts", "a-sparse"))
        self.assertEqual(kept.st_size, 60 << 20)
        self.assertLess(kept.st_blocks * 512, 1 << 20)
        self.assertLess(space(self.m.state) - before, 64 << 20)
        self.assertEqual(r.json()["status_reason_code"], "limits_applied")

    def test_terminal_sequences(self):
        """Output is kept as it came; documents that quote a run's words show no control characters."""
        evil = "\x1b]0;owned\x07\x1b[2J\r\u009b31m"
        r = self.m.run({"command": ["printf", "%s", evil]})
        self.assertEqual(r.stdout, evil.encode())
        for command in ([evil], ["sh", "-c", "exit 3"]):
            r = self.m.run({"command": command, "name": "x"})
            self.assertEqual(r.status(), "failed")
            for node in ("why", "status", "status.json", "spec.json", "exit_code"):
                text = r.read(node).decode()
                # JSON has its own way to write the control characters; others of U+0080 on it may not hide.
                last = 160 if node == "why" else 128
                self.assertEqual([c for c in text if ord(c) < 32 and c != "\n" or 127 <= ord(c) < last], [], node)

    def test_zz_canaries_untouched(self):
        self.check_canaries()


class HostileImage(Attempts):
    """An image whose maker wanted the service to follow its links while it builds the root."""

    @classmethod
    def setUpClass(cls):
        if not sbx.ROOT:
            raise unittest.SkipTest("an image with devices can only be made by root")
        busybox = shutil.which("busybox")
        cls.reason = None if busybox and b"/ld-linux" not in contents(busybox)[:4096] else "no static busybox"
        cls.images = tempfile.mkdtemp(prefix="sbx-canary-images-", dir="/var/tmp")
        cls.addClassCleanup(shutil.rmtree, cls.images)
        os.chmod(cls.images, 0o755)
        cls.settings = {"image_dir": cls.images}
        super().setUpClass()

    @classmethod
    def make(cls, plan):
        """An image: plan maps names to a link target, bytes, a device or None for a directory. Its name."""
        image = os.path.join(cls.images, "image-" + os.urandom(4).hex())
        os.mkdir(image, 0o755)
        os.mkdir(image + "/bin")
        shutil.copy(shutil.which("busybox"), image + "/bin/busybox")
        for name in ("sh", "cat", "ls", "id", "readlink"):
            os.symlink("busybox", image + "/bin/" + name)
        for name, what in plan.items():
            path = os.path.join(image, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if what is None:
                os.mkdir(path)
            elif isinstance(what, str):
                os.symlink(what, path)
            elif isinstance(what, tuple):
                os.mknod(path, 0o666 | what[0], os.makedev(*what[1:]))
                os.chmod(path, 0o666)
            else:
                with open(path, "wb") as f:
                    f.write(what)
        return os.path.basename(image)

    def run_image(self, plan, script):
        if self.reason:
            self.skipTest(self.reason)
        image = self.make(plan)
        r = self.m.run({"command": ["/bin/sh", "-c", script], "base_image": image})
        self.assertEqual(self.canaries.problems(), [])
        return r

    @property
    def base(self):
        return self.canary["base"]

    def test_plain(self):
        r = self.run_image({"etc/hostname": b"mine", "hello": b"hello"}, "cat /hello; id -u; cat /etc/hostname")
        self.assertEqual((r.exit, r.stdout), ("0", b"hello1000\nsandbox\n"), r.log)

    def test_links_in_place_of_our_directories(self):
        names = ("dev", "proc", "sys", "tmp", "run", "workspace")
        r = self.run_image({n: self.base + "/open" for n in names}, "for d in %s; do readlink /$d; done; ls /workspace /tmp; "
                           "echo x > /tmp/new; ls /dev/null /proc/self/status" % " ".join(names))
        self.assertEqual((r.exit, r.stderr), ("0", b""), r.log)
        self.assertEqual(r.stdout.split(), [b"/tmp:", b"/workspace:", b"/dev/null", b"/proc/self/status"])

    def test_links_in_place_of_our_files(self):
        """hosts, hostname and resolv.conf are covered; /etc and what is in it may be a link."""
        for plan in ({"etc/hosts": self.canary["writable"], "etc/resolv.conf": self.canary["public"], "etc/hostname": "../../x"},
                     {"etc": self.base + "/open"}, {"etc": b"a file"},
                     {"var/tmp": self.base + "/open"}, {"usr": "/proc/1/root/usr"}, {"lib64": "../../../../lib64"}):
            r = self.run_image(plan, "cat /etc/hosts /etc/resolv.conf /etc/hostname /var/tmp/* /usr/bin/* 2>/dev/null; echo end")
            self.assertNotIn(self.canaries.mark.encode(), r.log)
            self.assertIn(r.status(), ("completed", "failed"))
            if r.status() == "completed":
                self.assertTrue(r.stdout.endswith(b"end\n"), r.log)

    def test_pipe_in_place_of_a_file(self):
        r = self.run_image({"etc/hosts": (stat.S_IFIFO, 0, 0)}, "ls -l /etc/hosts")
        self.assertEqual((r.exit, r.stdout[:1]), ("0", b"p"), r.log)

    def test_devices(self):
        r = self.run_image({"x/zero": (stat.S_IFCHR, 1, 5), "x/disk": (stat.S_IFBLK, 7, 0), "x/mem": (stat.S_IFCHR, 1, 1),
                            "topdev": (stat.S_IFCHR, 1, 5)},
                           "for d in zero disk mem; do cat /x/$d >/dev/null 2>&1 && echo opened $d; done; ls -d /topdev; echo end")
        self.assertEqual(r.stdout, b"end\n")

    def test_setuid(self):
        if self.reason:
            self.skipTest(self.reason)
        image = self.make({})
        os.chmod(os.path.join(self.images, image, "bin/busybox"), 0o6755)
        r = self.m.run({"command": ["/bin/id", "-u"], "base_image": image})
        self.assertEqual((r.exit, r.stdout), ("0", b"1000\n"), r.log)

    def test_image_is_read_only(self):
        r = self.run_image({"open": None, "f": b"x"}, "echo y > /f; mkdir /open/d; echo y > /bin/sh; echo end")
        self.assertEqual(r.stdout, b"end\n")
        self.assertEqual(r.stderr.count(b"Read-only") + r.stderr.count(b"Permission denied"), 3, r.stderr)

    def test_names_that_are_no_images(self):
        for name in ("..", "../..", "/", "/etc", "/proc/self/root", "a/../../b", "/proc/1/root", "nothing"):
            with self.subTest(name):
                try:
                    r = self.m.run({"command": ["/bin/sh", "-c", "cat " + self.canary["public"]], "base_image": name})
                except sbx.Refused as e:
                    self.assertIn(e.code, ("image_not_found", "invalid_spec"))
                    continue
                self.assertNotIn(self.canaries.mark.encode(), r.log)
                self.assertEqual(r.status(), "failed")

    def test_zz_canaries_untouched(self):
        self.check_canaries()


if __name__ == "__main__":
    sbx.main()
