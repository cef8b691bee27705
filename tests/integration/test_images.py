#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Images from files, by the command line, and what runs in them sees."""
import fcntl
import gzip
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import sbx
from imagekit import BUSYBOX, base, member, oci, second, sha, tar

def images(mount, *args, data=None):
    """sandboxfs on the state directory of a mount: status, output, errors."""
    done = subprocess.run([sbx.SANDBOXFS, "-o", "state=%s,config=%s" % (mount.state, mount.conf), *args],
                          input=data, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@unittest.skipUnless(BUSYBOX, "busybox is not installed")
class Images(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="sbx-images-")
        self.addCleanup(shutil.rmtree, self.dir)

    def imported(self, mount, name, data):
        path = os.path.join(self.dir, "image")
        with open(path, "wb") as f:
            f.write(data)
        status, out, err = images(mount, "--import-image", "%s=%s" % (name, path))
        self.assertEqual(status, 0, err)
        self.assertEqual(err, "")
        found, digest = out.rstrip("\n").split("\t")
        self.assertEqual(found, name)
        return digest

    @staticmethod
    def wait_unused(mount, digest):
        """Until no runner holds the image; it lets go a moment after the run has ended."""
        fd = os.open(os.path.join(mount.state, "images", digest.replace(":", "-")), os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        finally:
            os.close(fd)

    def output(self, mount, image, script):
        run = mount.sh(script, base_image=image)
        self.assertEqual(run.wait(), "0", run.log)
        return run.stdout.decode(), run.json()

    def test_a_root(self):
        with sbx.Mount() as m:
            data = gzip.compress(tar(base), 1)
            digest = self.imported(m, "small:1.0", data)
            self.assertEqual(digest, sha(data))
            out, status = self.output(m, "small:1.0", "cat /etc/version /caf*/*; ls -l /bin/busybox; ls /dev/disk;"
                                                      "touch /bin/x || echo no; exit 0")
            self.assertIn("one\neuro\n-rwxr-xr-x", out)
            self.assertTrue(out.endswith("no\n"), out)
            self.assertEqual(status["image_digest"], digest)
            self.assertEqual(status["base_image"], "small:1.0")

    def test_layers(self):
        with sbx.Mount() as m:
            archive, config = oci([tar(base), tar(second)])
            digest = self.imported(m, "layered", archive)
            self.assertEqual(digest, config)
            out, status = self.output(m, "layered", "cat /etc/version; ls /etc")
            self.assertEqual(out.split()[0], "two")
            self.assertNotIn("dropped", out)
            self.assertEqual(status["image_digest"], config)
            # By its digest, whatever the name leads to by then.
            self.imported(m, "layered", tar(base))
            self.assertEqual(self.output(m, "layered", "cat /etc/version")[0], "one\n")
            self.assertEqual(images(m, "--list-images")[1].count("\n"), 1)

    def test_digest_as_a_name(self):
        with sbx.Mount() as m:
            digest = self.imported(m, "x", tar(base))
            out, status = self.output(m, digest, "cat /etc/version")
            self.assertEqual(out, "one\n")
            self.assertEqual(status["image_digest"], digest)

    def test_from_standard_input(self):
        with sbx.Mount() as m:
            status, out, err = images(m, "--import-image", "piped=-", data=tar(base))
            self.assertEqual((status, err), (0, ""))
            self.assertEqual(self.output(m, "piped", "cat /etc/version")[0], "one\n")
            self.assertEqual(images(m, "--list-images")[1], out)

    def test_in_use_it_stays(self):
        with sbx.Mount() as m:
            first = self.imported(m, "x", tar(base))
            run = m.sh("echo started; read line", base_image="x", interactive=True)
            run.stream_until(b"started")
            status, _, err = images(m, "--remove-image", "x")
            self.assertNotEqual(status, 0)
            self.assertIn("used by a run", err)
            # The name can be given to another one meanwhile.
            second_one = self.imported(m, "x", tar(lambda t: (base(t), member(t, "etc/version", b"three\n"))))
            self.assertEqual(self.output(m, "x", "cat /etc/version")[0], "three\n")
            run.ctl("eof")
            run.wait()
            self.wait_unused(m, first)
            self.wait_unused(m, second_one)
            status, _, err = images(m, "--remove-image", "x")
            self.assertEqual((status, err), (0, ""))
            self.assertEqual(images(m, "--list-images")[1], "")
            with self.assertRaises(sbx.Refused) as refused:
                m.sh("true", base_image="x")
            self.assertEqual(refused.exception.code, "image_not_found")

    def test_refusals_name_what_there_is(self):
        with sbx.Mount() as m:
            self.imported(m, "alpine", tar(base))
            for name in ("alpin", "../images", ".lock", "sha256:" + 64 * "0"):
                with self.assertRaises(sbx.Refused) as refused:
                    m.sh("true", base_image=name)
                self.assertEqual(refused.exception.code, "image_not_found")
                self.assertIn("'alpine'", refused.exception.message)

    def test_hostile(self):
        """Refused as a whole, with a sentence, and nothing is left."""
        outside = os.path.join(self.dir, "outside")
        rows = {
            "climbs out": [("../e", b"x")],
            "writes through a link": [("l", None, tarfile.SYMTYPE, self.dir), ("l/outside", b"x")],
            "links to the host": [("h", None, tarfile.LNKTYPE, "/etc/passwd")],
            "links upwards": [("h", None, tarfile.LNKTYPE, "../../../etc/passwd")],
        }
        with sbx.Mount() as m:
            for what, entries in rows.items():
                def fill(t, entries=entries):
                    base(t)
                    for name, data, *kind in entries:
                        member(t, name, data or b"", kind=kind[0] if kind else tarfile.REGTYPE,
                               link=kind[1] if kind else "")
                with self.subTest(what):
                    status, out, err = images(m, "--import-image", "bad=-", data=tar(fill))
                    self.assertEqual((status, out), (64, ""), err)
                    self.assertTrue(err.startswith("sandbox-image: "), err)
                    self.assertFalse(os.path.lexists(outside))
                    self.assertEqual(os.listdir(os.path.join(m.state, "images")), [".lock"])
            whole = oci([tar(base), tar(second)])[0]
            for cut in (1, 1000, len(whole) // 2):
                status, out, err = images(m, "--import-image", "bad=-", data=whole[:cut])
                self.assertEqual((status, out), (64, ""), err)
            self.assertEqual(os.listdir(os.path.join(m.state, "images")), [".lock"])

    def test_command_line(self):
        with sbx.Mount() as m:
            for args in (("--import-image", "x"), ("--import-image", "x="), ("--import-image", "host=/dev/null"),
                         ("--import-image", "a/b=/dev/null"), ("--import-image", "x=/nowhere"),
                         ("--remove-image", "nothing")):
                status, out, err = images(m, *args)
                self.assertEqual(out, "")
                self.assertNotEqual(status, 0)
                self.assertTrue(err, args)
            self.assertEqual(images(m, "--list-images"), (0, "", ""))


if __name__ == "__main__":
    sbx.main()
