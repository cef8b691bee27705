# SPDX-License-Identifier: Apache-2.0
"""The first five minutes: write a spec, see it end, read what it left."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import sbx  # noqa: E402


class Basic(sbx.Case):
    def test_exit_code_streams_and_reason(self):
        r = self.m.run({"command": ["sh", "-c", "echo hi; echo oops >&2; exit 3"]})
        self.assertEqual(r.exit, "3")
        self.assertEqual(r.status(), "failed")
        self.assertEqual(r.json()["status_reason_code"], "nonzero_exit")
        self.assertEqual((r.stdout, r.stderr), (b"hi\n", b"oops\n"))
        self.assertEqual(sorted(r.log.splitlines()), [b"hi", b"oops"])

    def test_refused_spec_fails_in_write(self):
        with self.assertRaises(sbx.Refused) as c:
            self.m.submit({"comand": ["ls"]})
        self.assertEqual(c.exception.code, "invalid_spec")
        self.assertIn("command", c.exception.message)


if __name__ == "__main__":
    sbx.main()
