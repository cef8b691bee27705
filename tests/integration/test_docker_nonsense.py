# SPDX-License-Identifier: Apache-2.0
# run: limit=300
"""An engine that answers what no engine should: other JSON than was asked for, none, too much, half of it. The run fails
with a reason, in time; its runner lives on; and what the engine really has of it goes."""
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import dockerkit  # noqa: E402
import engine  # noqa: E402
import sbx  # noqa: E402
from dockerkit import SHELL  # noqa: E402

E = None

# What is no answer to anything.
BODIES = {
    "nothing": b"", "null": b"null", "an array": b"[]", "an array of null": b"[null]", "a word": b'"x"', "no JSON": b"<html>",
    "other types": json.dumps({"message": 1, "Id": {}, "Config": [], "Warnings": "x", "StatusCode": "x", "ApiVersion": 1,
                               "Names": 3, "Labels": [], "Components": [1], "State": 7, "error": []}).encode(),
    "null members": json.dumps({"message": None, "Id": None, "Config": None, "Warnings": [None], "StatusCode": None,
                                "ApiVersion": None, "State": None, "error": None}).encode(),
    "a deep one": b"[" * 100000, "a long one": b'{"message":"' + b"x" * (5 << 20) + b'"}',
}
RAW = {
    "no HTTP": b"\x00\x01\x02 nonsense\r\n\r\n", "half of it": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{",
    "a chunk that ends": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\n{", "nothing at all": b"",
    "status 0": b"HTTP/1.1 000 x\r\nContent-Length: 0\r\n\r\n", "elsewhere": b"HTTP/1.1 302 x\r\nLocation: http://127.0.0.1:1/\r\n"
    b"Content-Length: 0\r\n\r\n", "long lines": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 400000 + b"\r\n\r\n",
}
# A request, and the statuses with which that is said. (Of a removal that is said to be done nobody can know better.)
REQUESTS = {b"/images/shell": (200, 500, 404, 409), b"/containers/create": (201, 500, 404, 409),
            b"/start ": (204, 500, 404, 409), b"/wait ": (200, 500), b"DELETE /": (500, 409)}


def setUpModule():
    global E
    E = dockerkit.start(SHELL)


class Nonsense(unittest.TestCase):
    def setUp(self):
        self.g = engine.Gate(E)
        self.addCleanup(self.g.close)
        self.m = sbx.Mount(settings=dockerkit.settings(self.g, warm_runners=1))
        self.addCleanup(self.m.close)
        self.m.start()

    def run_with(self, request, answer):
        self.g.answers = {request: answer}
        run = self.m.submit({"runtime": "docker", "base_image": SHELL, "command": ["true"], "startup_timeout_sec": 20})
        run.wait(30)
        return run.json()

    def check(self, request):
        answers = [(name, engine.Answer(status, body)) for name, body in BODIES.items()
                   for status in REQUESTS[request]] + list(RAW.items())
        for name, answer in answers:
            with self.subTest(name=name, status=getattr(answer, "status", None)):
                doc = self.run_with(request, answer)
                self.assertIn(doc["phase"], ("completed", "failed"))
                if doc["phase"] == "failed":
                    self.assertIn(doc["status_reason_code"], ("runtime_error", "runtime_unavailable"), doc["message"])
                    self.assertTrue(doc["message"].isprintable(), doc["message"])
        self.g.answers = {}
        run = self.m.run({"runtime": "docker", "base_image": SHELL, "command": ["true"]})
        self.assertEqual(run.exit, "0")
        E.wait_no_container()

    def test_about_an_image(self):
        self.check(b"/images/shell")

    def test_about_a_creation(self):
        self.check(b"/containers/create")

    def test_about_a_start(self):
        self.check(b"/start ")

    def test_about_the_end(self):
        self.check(b"/wait ")

    def test_about_a_removal(self):
        self.check(b"DELETE /")


if __name__ == "__main__":
    sbx.main()
