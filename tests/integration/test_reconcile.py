#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rows of artifacts and the disk, when they do not agree: what a crash or somebody's hand has left is set right."""
import contextlib
import os
import shutil
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import api  # noqa: E402
import sbx  # noqa: E402

SCRIPT = "mkdir d; printf hello > a; printf 12345678 > d/b; printf x > 'odd\xff\n'"


class Reconcile(unittest.TestCase):
    """The comparison is made at the start, so each test stops the service, spoils something and starts it."""

    def setUp(self):
        self.a = api.Apid()
        self.addCleanup(self.a.close)
        self.a.start()
        self.run_ = self.made()

    def made(self):
        run = self.a.run({"command": ["sh", "-c", SCRIPT], "capture_patterns": ["*"]})
        self.assertEqual(run.wait()["phase"], "completed")
        return run

    def usage(self):
        return sum(i["artifact_bytes"] for i in self.a.get("/admin/usage").json["items"])

    @contextlib.contextmanager
    def stopped(self):
        """Until the comparison has been made."""
        self.a.stop()
        yield
        self.a.start()
        self.a.wait_line(r"artifacts reconciled ")
        self.a.until(lambda: self.a.metric("sandbox_artifact_reconcile_corrected_files_total") or
                     self.a.metric("sandbox_artifact_reconcile_corrected_users_total"))

    def path(self, *names):
        return self.run_.files("artifacts", *names)

    def test_files_that_no_row_knows(self):
        with self.stopped():
            os.makedirs(self.path("left", "over"))
            for names in (("left", "over", "f"), ("z",)):
                with open(self.path(*names), "wb") as f:
                    f.write(b"1234")
            os.symlink("/etc/passwd", self.path("link"))
        self.assertEqual(sorted(os.listdir(self.path())), ["a", "d", "left", "odd\xff\n"])
        self.assertEqual(os.listdir(self.path("left", "over")), [])
        self.assertEqual(len(self.run_.artifacts()), 3)
        self.assertTrue(os.path.exists("/etc/passwd"))
        self.assertEqual(self.usage(), 14)
        self.assertEqual(self.a.metric("sandbox_artifact_reconcile_corrected_files_total"), 3)

    def test_rows_whose_file_is_gone_and_wrong_sizes(self):
        with self.stopped():
            os.unlink(self.path("a"))
            with open(self.path("d", "b"), "ab") as f:
                f.write(b"90")
        self.assertEqual(self.run_.artifacts()["d/b"], 10)
        self.assertNotIn("a", self.run_.artifacts())
        self.assertEqual((self.usage(), self.run_.artifact("a").status, self.run_.artifact("d/b").status), (11, 404, 200))

    def test_a_run_whose_files_are_all_gone(self):
        other = self.made()
        with self.stopped():
            shutil.rmtree(self.run_.files())
        self.assertEqual((self.run_.artifacts(), len(other.artifacts()), self.usage()), ({}, 3, 14))

    def test_a_run_whose_files_cannot_be_looked_at(self):
        """What is not known to be gone is not forgotten, or the next comparison would remove the files."""
        other, aside = self.made(), self.run_.files() + ".aside"
        with self.stopped():
            os.rename(self.run_.files(), aside)
            with open(self.run_.files(), "wb"):
                pass
            os.unlink(other.files("artifacts", "a"))
        os.unlink(self.run_.files())
        os.rename(aside, self.run_.files())
        self.assertEqual((len(self.run_.artifacts()), len(other.artifacts()), self.usage()), (3, 2, 14 + 9))

    def test_a_link_in_the_place_of_a_file_is_no_file(self):
        with self.stopped():
            os.unlink(self.path("a"))
            os.symlink("/etc/passwd", self.path("a"))
        self.assertEqual(sorted(self.run_.artifacts())[0], "d/b")
        self.assertFalse(os.path.lexists(self.path("a")))

    def test_what_still_runs_is_left_alone(self):
        run = self.a.sh("sleep 100")
        run.wait_phase("running")
        os.makedirs(run.files("artifacts"))
        with open(run.files("artifacts", "coming"), "wb") as f:
            f.write(b"1")
        with self.stopped():
            with open(self.path("z"), "wb") as f:
                f.write(b"1")
        self.assertEqual(os.listdir(run.files("artifacts")), ["coming"])
        run.cancel()
        run.wait()

    def test_totals(self):
        with self.stopped():
            self.a.change("UPDATE usage_totals SET artifact_bytes = 1")
        self.assertEqual(self.usage(), 14)


if __name__ == "__main__":
    sbx.main()
