# SPDX-License-Identifier: Apache-2.0
"""sandbox-runner --preflight: what does not work here is a reason on stdout, and why it does not a line on stderr."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))

import sbx  # noqa: E402


def preflight(*before):
    with tempfile.TemporaryDirectory(prefix="sbx-test-") as state:
        p = subprocess.run([*before, sbx.RUNNER, "--preflight", "--state", state], capture_output=True, text=True,
                           stdin=subprocess.DEVNULL, timeout=20 * sbx.SLOW, check=True)
    return json.loads(p.stdout), [line for line in p.stderr.splitlines() if "runtime=namespace" in line]


class Preflight(unittest.TestCase):
    def test_what_works_says_nothing(self):
        found, said = preflight()
        self.assertEqual(found["namespace"]["reasons"], [])
        self.assertEqual([line for line in said if "deny_all" in line], [])

    @unittest.skipIf(os.geteuid(), "hides a program of the host, as root can")
    def test_why_nothing_can_be_executed(self):
        # The host's shell is here, for the runner alone, a file that is no program.
        found, said = preflight("unshare", "--mount", "sh", "-c", 'mount --bind /dev/null /bin/sh && exec "$@"', "-")
        self.assertEqual(found["namespace"]["reasons"], ["namespace_unavailable"])
        self.assertRegex(said[0], r'preflight failed runtime=namespace tried="deny_all" '
                                  r'error=".*exec errno 13')


if __name__ == "__main__":
    sbx.main()
