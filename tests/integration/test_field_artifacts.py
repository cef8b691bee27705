# SPDX-License-Identifier: Apache-2.0
"""Field cases about what is captured from a workspace, and what must never be. The name of a test begins
with the number of its case."""
import os
import shutil
import stat
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import field  # noqa: E402
import sbx  # noqa: E402
from field import b64, py, sh, spec  # noqa: E402


def tree(run):
    """Every file below artifacts/ by its path, by what a plain walk and lstat say."""
    top, found = run.path("artifacts"), {}
    for where, folders, files in os.walk(os.fsencode(top)):
        for name in folders + files:
            path = os.path.join(where, name)
            st = os.lstat(path)
            if not stat.S_ISDIR(st.st_mode):
                found[os.path.relpath(path, os.fsencode(top)).decode()] = st
    return found


class Case(field.Case):
    def names(self, run):
        found = tree(run)
        for name, st in found.items():
            self.assertTrue(stat.S_ISREG(st.st_mode), name)
        return sorted(found)

    def capture(self, script, patterns, reasons=("completed",), **over):
        r = self.m.submit(sh(script, capture_patterns=patterns, **over))
        r.wait()
        self.assertIn(self.reason(r), reasons, r.log)
        return r


class F40(Case):
    SPEC = {"files": [{"path": "in.txt", "content_b64": b64("one\n")}, {"path": "d/s.sh", "content_b64": b64("echo hi\n")}],
            "capture_patterns": ["in.txt", "p/*", "q.txt", "x/*"]}
    SCRIPT = ("echo two >> in.txt && : > d/new && rm d/new && sh d/s.sh; umask; umask 077; mkdir p; echo deep > p/o.txt; "
              "echo no > q.txt; chmod 000 q.txt; mkdir x; echo y > x/y; chmod 111 x")

    def test_F40_umask_modes_and_writable_uploads(self):
        r = self.m.submit(sh(self.SCRIPT, **self.SPEC))
        r.wait()
        doc = r.json()
        self.assertEqual(doc["exit_code"], 0, r.log)
        self.assertIn(doc["status_reason_code"], ("completed", "limits_applied"))
        self.assertEqual(r.stdout, b"hi\n0022\n")
        self.assertEqual(r.read("artifacts", "in.txt"), b"one\ntwo\n")
        self.assertEqual(r.read("artifacts", "p", "o.txt"), b"deep\n")
        names = self.names(r)
        skipped = doc["resource_usage"]["artifact_files_skipped"]
        self.assertEqual(len(names) + skipped, 4, names)
        self.assertEqual(doc["status_reason_code"], "limits_applied" if skipped else "completed")

    def test_F40_the_mounts_user_can_read_them(self):
        r = self.m.submit(sh(self.SCRIPT, **self.SPEC))
        r.wait()
        for name, st in tree(r).items():
            self.assertEqual(st.st_uid, os.getuid(), name)
            self.assertTrue(st.st_mode & stat.S_IRUSR, name)
            self.assertFalse(st.st_mode & (stat.S_ISUID | stat.S_ISGID | 0o022), name)
            r.read("artifacts", name)


class F41(Case):
    SCRIPT = ("mkdir out; cd out; echo ok > a.txt; : > empty; mkfifo p; ln -s nowhere dead; ln -s a.txt alias; "
              "python3 -c \"import socket;socket.socket(socket.AF_UNIX).bind('s')\"; mknod dev c 1 5 2>/dev/null; true")

    def test_F41_fifo_socket_dead_link(self):
        r = self.capture(self.SCRIPT, ["out/**"], ("completed", "limits_applied"))
        self.assertEqual(r.json()["phase"], "completed")
        self.assertEqual(self.names(r), ["out/a.txt", "out/empty"])
        self.assertEqual(r.read("artifacts", "out", "a.txt"), b"ok\n")
        self.assertEqual(r.read("artifacts", "out", "empty"), b"")
        usage = r.json()["resource_usage"]
        # p and s are no files, dead and alias are links; a device cannot be made at all.
        self.assertEqual((usage["artifact_skip_invalid"], usage["artifact_skip_symlink"]), (2, 2))
        self.assertEqual(usage["artifact_files_collected"], 2)

    def test_F41_a_folder_that_is_replaced_by_a_fifo_while_the_run_ends(self):
        r = self.capture("mkdir a; echo x > a/f; rm -r a; mkfifo a; echo y > b", ["**/*", "a", "b"],
                         ("completed", "limits_applied"))
        self.assertEqual(self.names(r), ["b"])


@unittest.skipUnless(sbx.ROOT, "makes a folder in /var that only root may enter")
class F42(Case):
    SCRIPT = ("ln -s /var/fc-private/marker leak; ln -s /proc/self/environ env; ln -s ../../../../../../var up; "
              "ln -s /proc/1/root r; mkdir d; ln /etc/hostname hard 2>/dev/null; ln -s leak chain; echo fine > d/ok")
    PATTERNS = ["leak", "env", "up/fc-private/*", "r/var/fc-private/marker", "chain", "hard", "d/*", "**/*"]

    @classmethod
    def setUpClass(cls):
        os.makedirs("/var/fc-private", 0o700, exist_ok=True)
        with open("/var/fc-private/marker", "w") as f:
            f.write("MARK-f42\n")
        cls.addClassCleanup(shutil.rmtree, "/var/fc-private", ignore_errors=True)
        cls.m = sbx.Mount(env={"FIELD": "MARK-f42"})
        cls.addClassCleanup(cls.m.close)
        cls.m.start()

    def test_F42_links_that_point_out_of_the_workspace(self):
        r = self.capture(self.SCRIPT, self.PATTERNS, ("completed", "limits_applied"))
        self.assertEqual(self.names(r), ["d/ok"])
        self.assertEqual(r.read("artifacts", "d", "ok"), b"fine\n")
        for name in ("leak", "env", "up", "r", "chain", "hard", "up/fc-private/marker", "r/var/fc-private/marker"):
            with self.assertRaises(OSError, msg=name):
                r.read("artifacts", name)
        p = subprocess.run(["grep", "-rs", "MARK-f42", r.dir], stdout=subprocess.PIPE)
        # The spec itself does not hold the mark, so nothing may be found.
        self.assertEqual(p.stdout, b"")
        self.assertEqual(r.json()["resource_usage"]["artifact_skip_symlink"], 5)

    def test_F42_a_folder_that_is_a_link(self):
        r = self.capture("ln -s /var/fc-private out; ln -s /etc etc; mkdir in; ln -s / in/root; echo ok > in/f",
                         ["out/*", "etc/*", "in/**", "in/root/etc/passwd"], ("completed", "limits_applied"))
        self.assertEqual(self.names(r), ["in/f"])


class F43(Case):
    NAMES = ["50%.t", "a b#c?.t", "x%2fy.t", "p+q.t", "..dots.t", "\u00fcn.t", "&=;.t"]

    def test_F43_odd_names_come_back_exactly(self):
        script = "mkdir o; cd o; for n in %s; do echo \"$n\" > \"$n\"; done" % " ".join("'%s'" % n for n in self.NAMES)
        r = self.capture(script, ["o/*"])
        self.assertEqual(self.names(r), sorted("o/" + n for n in self.NAMES))
        for n in self.NAMES:
            self.assertEqual(r.read("artifacts", "o", n), (n + "\n").encode())
        self.assertEqual(sorted(os.listdir(r.path("artifacts", "o"))), sorted(self.NAMES))

    def test_F43_names_are_not_decoded(self):
        r = self.capture("mkdir o; echo 1 > o/p+q.t; echo 2 > 'o/x%2fy.t'", ["o/*"])
        for name in ("o/p q.t", "o/p%2Bq.t", "o%2Fp+q.t", "o/x/y.t", "o/%2e%2e/%2e%2e/status", "..%2f..%2fstatus",
                     "o/p+q.t/", "o/p+q.t/x"):
            with self.assertRaises(OSError, msg=name):
                r.read("artifacts", name)
        with self.assertRaises(IsADirectoryError):
            r.read("artifacts", "o")

    def test_F43_names_that_are_no_text(self):
        r = self.m.submit(py("import os\nfor n in (b'\\xff\\xfe.t', b'new\\nline.t', b'-rf', b'q\"\\\\.t'):\n"
                             "  open(n,'wb').write(n)", capture_patterns=["*"]))
        r.wait()
        self.assertIn(self.reason(r), ("completed", "limits_applied"))
        found = [n for n in os.listdir(os.fsencode(r.path("artifacts")))]
        for n in found:
            with open(os.path.join(os.fsencode(r.path("artifacts")), n), "rb") as f:
                self.assertEqual(f.read(), n)
        usage = r.json()["resource_usage"]
        self.assertEqual(usage["artifact_files_collected"], len(found))
        self.assertEqual(usage["artifact_files_collected"] + usage["artifact_files_skipped"], 4)
        for n in (b"new\nline.t", b"-rf", b'q"\\.t'):
            self.assertIn(n, found)


class F45(Case):
    SCRIPT = ("mkdir -p d/e .h; for f in a.txt d/b.txt d/e/c.txt .h/z.txt d/.w.txt '[x].txt' 'n*.txt' D.TXT; "
              "do echo \"$f\" > \"$f\"; done; ln -s . loop; ln -s d dl; ln -s ../e d/e/back")
    PATTERNS = ["**/*.txt", "a.txt", "./d/b.txt", "[[]x].txt", "n\\*.txt", "none/*.txt", "d"]

    def test_F45_globs_duplicates_and_loops(self):
        r = self.capture(self.SCRIPT, self.PATTERNS)
        names = self.names(r)
        hidden = [n for n in names if "/." in "/" + n]
        self.assertIn(hidden, ([], [".h/z.txt", "d/.w.txt"]))  # one rule for both
        self.assertEqual([n for n in names if n not in hidden],
                         sorted(["a.txt", "d/b.txt", "d/e/c.txt", "[x].txt", "n*.txt"]))
        for n in names:
            self.assertEqual(r.read("artifacts", n), (n + "\n").encode())
        usage = r.json()["resource_usage"]
        self.assertEqual(usage["artifact_files_collected"], len(names))
        self.assertEqual(usage["artifact_bytes_collected"], sum(len(n) + 1 for n in names))

    def test_F45_each_pattern_alone(self):
        rows = {"a.txt": ["a.txt"], "./d/b.txt": ["d/b.txt"], "[[]x].txt": ["[x].txt"], "n\\*.txt": ["n*.txt"],
                "none/*.txt": [], "d": [], "D.TXT": ["D.TXT"], "?.txt": ["a.txt"], "d/e/*": ["d/e/c.txt"],
                "[!a]*.TXT": ["D.TXT"], "**/c.txt": ["d/e/c.txt"], "**/a.txt": ["a.txt"], "loop/a.txt": [], "dl/b.txt": []}
        runs = {p: self.m.submit(sh(self.SCRIPT, capture_patterns=[p])) for p in rows}
        for pattern, want in rows.items():
            with self.subTest(pattern):
                runs[pattern].wait()
                self.assertEqual(self.names(runs[pattern]), want)

    def test_F45_refused_at_submission(self):
        for bad in ("/etc/*", "../*", "a/../b", "", "a\0b"):
            with self.subTest(repr(bad)):
                self.refused(sh("true", capture_patterns=[bad]), "invalid_spec")

    def test_F45_a_hard_pattern_ends(self):
        r = self.capture("touch %s; touch %sb" % ("a" * 255, "a" * 254), ["*a" * 30 + "c", "*a" * 30 + "b"])
        self.assertEqual(self.names(r), ["a" * 254 + "b"])


class F51(Case):
    PROGRAM = ("import os\nos.makedirs('ro/x')\nopen('ro/x/f','w').write('1')\nos.chmod('ro/x',0o555); os.chmod('ro',0o000)\n"
               "for i in range(3000):\n  os.mkdir('deepdeepdeep'); os.chdir('deepdeepdeep')\n"
               "open('bottom','w').close(); print('made')")

    def files(self):
        return sum(len(f) + len(d) for _, d, f in os.walk(self.m.state))

    def test_F51_a_deep_and_unreadable_tree_goes_away(self):
        self.alive()
        before = self.files()
        r = self.m.submit(py(self.PROGRAM))
        self.ended(r, 0, "completed", timeout=60)
        self.assertEqual(r.stdout, b"made\n")
        self.assertLess(self.files() - before, 10)
        self.alive()

    def test_F51_it_is_captured_as_far_as_it_can_be(self):
        r = self.m.submit(py(self.PROGRAM, capture_patterns=["**", "**/*"]))
        r.wait(60)
        doc = r.json()
        self.assertEqual((doc["exit_code"], r.stdout), (0, b"made\n"))
        # The bottom is deeper than anybody could name it: left out, counted, and said.
        self.assertEqual(doc["status_reason_code"], "limits_applied")
        self.assertGreaterEqual(doc["resource_usage"]["artifact_files_skipped"], 1)
        names = self.names(r)
        self.assertNotIn("bottom", " ".join(names))
        p = subprocess.run(["timeout", "60", "ls", "-R", r.path("artifacts")], stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
        self.assertNotEqual(p.returncode, 124)
        self.alive()

    def test_F51_a_deep_tree_that_is_captured_can_be_listed_and_removed(self):
        r = self.capture("p=.; i=0; while [ $i -lt 100 ]; do p=$p/deep; i=$((i+1)); done; mkdir -p $p; echo b > $p/bottom; "
                         "ln -s / link", ["**/*"], ("completed", "limits_applied"))
        self.assertEqual(self.names(r), ["deep/" * 100 + "bottom"])
        self.assertEqual(r.read("artifacts", "deep/" * 100 + "bottom"), b"b\n")


if __name__ == "__main__":
    sbx.main()
