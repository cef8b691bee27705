# SPDX-License-Identifier: Apache-2.0
"""What the field cases share: the base that each spec is laid over, and the seven questions that every
run answers."""
import base64
import subprocess

import sbx

BASE = {"spec_version": "1.0", "runtime": "namespace", "base_image": "host", "timeout_sec": 20}


def spec(**over):
    return {**BASE, **over}


def b64(data):
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


def py(program, **over):
    return spec(command=["python3", "-c", program], **over)


def sh(script, **over):
    return spec(command=["sh", "-c", script], **over)


def output(run, stream):
    """The bytes of one stream as a follower of the frames joins them."""
    data = b""
    for f in run.frames():
        if f["type"] == stream:
            data += f["data"].encode() if f["encoding"] == "utf8" else base64.b64decode(f["data"])
    return data


def end_frame(run):
    last = run.frames()[-1]
    assert last["type"] == "event" and last["event"] == "end", last
    return last["data"]


class Case(sbx.Case):
    """Assertions about an ended run; fails with everything that is known about it."""

    def reason(self, run):
        return run.json()["status_reason_code"]

    def ended(self, run, exit_code, reason, timeout=20):
        got = run.wait(timeout)
        doc = run.json()
        about = "%s\nlog: %r" % (doc, run.log[-300:])
        self.assertEqual((doc["exit_code"], doc["status_reason_code"]), (exit_code, reason), about)
        self.assertIn(got, (str(exit_code), doc["phase"]), about)
        end_frame(run)
        return doc

    def alive(self):
        """The service takes and ends another run."""
        r = self.m.run({"command": ["echo", "ok"]})
        self.assertEqual((r.exit, r.log), ("0", b"ok\n"))

    def refused(self, document, code="invalid_spec", *words):
        """Refused with this code and with these words in the message; leaves no run."""
        before = self.m.runs()
        with self.assertRaises(sbx.Refused) as c:
            self.m.submit(document)
        self.assertEqual(c.exception.code, code, c.exception.message)
        for word in words:
            self.assertIn(word, c.exception.message)
        self.assertEqual(self.m.runs(), before)
        return c.exception


def command_lines():
    """The command lines of all processes of the host."""
    return subprocess.run(["ps", "-eo", "args"], stdout=subprocess.PIPE, check=True).stdout.decode(
        errors="replace")
