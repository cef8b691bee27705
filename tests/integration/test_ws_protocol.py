# SPDX-License-Identifier: Apache-2.0
"""WebSocket itself: handshakes, frames that are joined, frames that end the connection, other clients."""
import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import sbx  # noqa: E402
import wsclient  # noqa: E402
import wskit  # noqa: E402
from wsclient import BINARY, CLOSE, CONT, PING, PONG, TEXT, frame  # noqa: E402

# What a client sends, and the code of the close frame that it gets.
MISTAKES = {
    "an unmasked frame": (frame(TEXT, b"{}", mask=False), 1002),
    "an unmasked ping": (frame(PING, mask=False), 1002),
    "a ping of 126 bytes": (frame(PING, b"x" * 126), 1002),
    "a ping in fragments": (frame(PING, b"x", fin=0), 1002),
    "a close frame in fragments": (frame(CLOSE, b"\x03\xe8", fin=0), 1002),
    "RSV1": (frame(TEXT, b"{}", rsv=4), 1002),
    "RSV2": (frame(TEXT, b"{}", rsv=2), 1002),
    "RSV3": (frame(PING, b"", rsv=1), 1002),
    "opcode 3": (frame(3, b"x"), 1002),
    "opcode 11": (frame(11, b"x"), 1002),
    "opcode 15": (frame(15), 1002),
    "a continuation of nothing": (frame(CONT, b"x"), 1002),
    "a new text inside a message": (frame(TEXT, b"x", fin=0) + frame(TEXT, b"y"), 1002),
    "a length of 2^63": (frame(TEXT, b"", length=1 << 63), 1002),
    "a length that is not the shortest": (b"\x81\xfe\x00\x05abcd12345", 1002),
    "garbage": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 1002),
    "bytes that are not UTF-8": (frame(TEXT, b"\xff\xfe"), 1007),
    "a character cut by the end": (frame(TEXT, b"\xe2\x82"), 1007),
    "a surrogate": (frame(TEXT, b"\xed\xa0\x80"), 1007),
    "bad UTF-8 in a fragment": (frame(TEXT, b"\xe2\x82", fin=0) + frame(CONT, b"A"), 1007),
    "a close reason that is not UTF-8": (frame(CLOSE, b"\x03\xe8\xff"), 1007),
    "a close code that nobody may send": (frame(CLOSE, b"\x03\xed"), 1002),
    "a close code of 999": (frame(CLOSE, b"\x03\xe7"), 1002),
    "a binary message": (frame(BINARY, b"x"), 1003),
    "a long message": (frame(TEXT, b"x" * ((256 << 10) + 1)), 1009),
    "long fragments": (frame(TEXT, b"x" * 200000, fin=0) + frame(CONT, b"x" * 200000), 1009),
    "a claim of 1 GiB": (frame(TEXT, b"x", length=1 << 30), 1009),
    "a claim of 2^62": (frame(TEXT, b"x", length=1 << 62), 1009),
}


class ProtocolCase(unittest.TestCase):
    settings = {"ws_max_connections_per_run": 0, "ws_max_connections_per_user": 0}

    @classmethod
    def setUpClass(cls):
        cls.a = wskit.Apid(**cls.settings)
        cls.addClassCleanup(cls.a.close)
        cls.a.start()
        cls.run_id = cls.a.run("while read x; do echo \"got $x\"; done", interactive=True, timeout_sec=600)
        cls.addClassCleanup(cls.a.cancel, cls.run_id)
        w = cls.a.ws(cls.run_id)
        w.recv()
        w.close()

    def ws(self, *args, **how):
        w = self.a.ws(how.pop("run", self.run_id), *args, **how)
        self.addCleanup(w.close)
        return w

    def opened(self, **how):
        """A stream with nothing of what other tests did."""
        w = self.ws("?from_seq=1000000", **how)
        self.assertEqual(w.status, 101)
        return w


class Handshake(ProtocolCase):
    def test_what_is_no_websocket_request(self):
        self.assertEqual(self.a.request("GET", self.a.path(self.run_id))[0], 404)
        self.assertEqual(self.ws(drop=("Upgrade",)).status, 404)

    def test_version(self):
        for version in ("12", "8", "x", None):
            w = self.ws(version=version)
            self.assertEqual((w.status, w.headers["sec-websocket-version"]), (426, "13"))

    def test_key(self):
        for key in (None, "x", "AAAA", "A" * 24, "!" * 22 + "=="):
            self.assertEqual(self.ws(key=key).status, 400, key)

    def test_connection_must_name_upgrade(self):
        self.assertEqual(self.ws(drop=("Connection",)).status, 400)
        # A list may come in several headers, as proxies send it.
        w = self.ws(drop=("Connection",), headers=(("Authorization", "Bearer " + wskit.token("alice")),
                                                   ("Connection", "keep-alive"), ("Connection", "Upgrade")))
        self.assertEqual(w.status, 101)
        self.assertEqual(w.recv()["seq"], 1)

    def test_no_extension_and_no_protocol_is_agreed_on(self):
        w = self.ws(headers=(("Authorization", "Bearer " + wskit.token("alice")),
                             ("Sec-WebSocket-Extensions", "permessage-deflate; client_max_window_bits"),
                             ("Sec-WebSocket-Protocol", "chat, superchat")))
        self.assertEqual(w.status, 101)
        self.assertNotIn("sec-websocket-extensions", w.headers)
        self.assertNotIn("sec-websocket-protocol", w.headers)
        self.assertEqual(w.recv()["seq"], 1)


class Frames(ProtocolCase):
    def test_fragments_with_a_ping_in_between_byte_by_byte(self):
        w = self.opened()
        w.send(TEXT, b'{"type":"stdin",', fin=0)
        w.send(PING, b"p1")
        for c in frame(CONT, b'"encoding":"utf8","data":"abc\\n"}'):
            w.sock.sendall(bytes([c]))
        self.assertEqual(w.recv_frame(), (1, 0, PONG, b"p1"))
        self.assertEqual(w.until(wsclient.says("got"))[-1]["data"], "got abc\n")

    def test_many_messages_in_one_packet_and_one_in_many(self):
        w = self.opened()
        one = frame(TEXT, b'{"type":"stdin","data":"x\\n"}')
        w.sock.sendall(one * 50)
        for i in range(0, 50 * len(one), 7):  # seven bytes at a time
            w.sock.sendall((one * 50)[i:i + 7])
        out = b""
        while out.count(b"got x\n") < 100:
            out += wsclient.output([w.recv()])
        self.assertEqual(out, b"got x\n" * 100)

    def test_a_frame_together_with_the_request(self):
        w = self.ws(early=frame(TEXT, b'{"type":"stdin","data":"early\\n"}'))
        self.assertEqual(w.until(wsclient.says("got early"))[-1]["data"], "got early\n")

    def test_a_long_message(self):
        run = self.a.run("wc -c", interactive=True, stdin_max_bytes=200000, stdin_max_frame_bytes=100000)
        w = self.ws(run=run)
        w.stdin("abc")
        w.stdin("x" * 70000)
        w.eof()
        frames, code = w.frames()
        self.assertEqual((wsclient.output(frames).strip(), code), (b"70003", 1000))

    def test_pings_in_a_row_are_answered_in_order(self):
        w = self.opened()
        w.sock.sendall(b"".join(frame(PING, b"%d" % i) for i in range(2000)))
        self.assertEqual([w.recv_frame()[3] for _ in range(2000)], [b"%d" % i for i in range(2000)])

    def test_an_empty_ping_and_an_unasked_pong(self):
        w = self.opened()
        w.send(PONG, b"unasked")
        w.send(PING)
        self.assertEqual(w.recv_frame(), (1, 0, PONG, b""))

    def test_close_is_echoed(self):
        for body, code in ((b"\x03\xe8bye", 1000), (b"\x0f\xa0", 4000), (b"", 1005)):
            w = self.opened()
            w.send(CLOSE, body)
            self.assertEqual(w.close_code(), code)

    def test_what_is_not_understood_is_ignored(self):
        w = self.opened()
        for text in (b"", b"x", b"[]", b"null", b"{}", b'{"type":"resize"}', b'{"type":"stdin"}', b'{"type":1}',
                     b'{"type":"stdin","data":5}', b'{"type":"stdin","data":""}', b'{"type":"stdin","eof":"yes"}',
                     b'{"type":"stdin","encoding":"base64","data":"*"}', b"[" * 10000,
                     b'{"type":"stdin","data":"cut'):
            w.send(TEXT, text)
        w.stdin("after\n")
        self.assertEqual(w.until(wsclient.says("got"))[-1]["data"], "got after\n")


class Mistakes(ProtocolCase):
    def test_each_ends_its_connection_and_no_other(self):
        other = self.opened()
        for what, (data, code) in MISTAKES.items():
            w = self.opened()
            started = time.monotonic()
            try:
                w.sock.sendall(data)
            except (BrokenPipeError, ConnectionResetError):
                pass  # it was too much to be read to its end
            self.assertEqual(w.close_code(), code, what)
            self.assertLess(time.monotonic() - started, 2 * sbx.SLOW, what)
            w.close()
        other.stdin("still here\n")
        self.assertEqual(other.until(wsclient.says("got"))[-1]["data"], "got still here\n")

    def test_nothing_behind_a_mistake_counts(self):
        w = self.opened()
        w.sock.sendall(frame(3, b"x") + frame(TEXT, b'{"type":"stdin","data":"late\\n"}'))
        self.assertEqual(w.close_code(), 1002)
        other = self.opened()
        other.stdin("mark\n")
        self.assertEqual(other.until(wsclient.says("got"))[-1]["data"], "got mark\n")

    def test_random_frames(self):
        """Whatever comes, the connection ends or goes on, and the service lives."""
        rng = random.Random(7)
        for _ in range(300):
            data = b""
            for _ in range(rng.randrange(1, 6)):
                body = bytes(rng.choice((rng.randrange(256), 0x20, 0x22)) for _ in range(rng.choice((0, 1, 5, 130))))
                one = bytearray(frame(rng.randrange(16), body, fin=rng.randrange(2), mask=rng.random() < 0.9,
                                      rsv=rng.choice((0, 0, 0, 1, 4))))
                if rng.random() < 0.3:
                    one[rng.randrange(len(one))] ^= 1 << rng.randrange(8)
                data += one
            with self.a.ws(self.run_id, "?from_seq=1000000") as w:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    w.sock.sendall(data)
                    w.sock.shutdown(socket.SHUT_WR)
                    while w.sock.recv(65536):
                        pass
        w = self.opened()
        w.stdin("alive\n")
        w.until(wsclient.says("got alive"))

    def test_two_hundred_of_them_leave_nothing(self):
        self.opened().close()
        before = self.a.sockets()
        for i in range(200):
            w = self.a.ws(self.run_id)
            data = list(MISTAKES.values())[i % len(MISTAKES)][0]
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                w.sock.sendall(data)
            if i % 3 == 0:
                w.close_code()
            w.close()
        # The last ones may be in the hands of the HTTP library, whose threads close them.
        end = time.monotonic() + 20 * sbx.SLOW
        while self.a.sockets() > before:
            self.assertLess(time.monotonic(), end, "%d sockets, %d before" % (self.a.sockets(), before))
            self.a.metric("sandbox_ws_disconnects_total")
        self.assertEqual(self.a.metric("sandbox_ws_connections_opened_total"),
                         self.a.metric("sandbox_ws_disconnects_total"))

    def test_a_half_closed_connection_ends(self):
        w = self.opened()
        before = self.a.metric("sandbox_ws_disconnects_total")
        w.sock.shutdown(socket.SHUT_WR)
        w.expect_end()
        self.assertGreater(self.a.metric("sandbox_ws_disconnects_total"), before)

    def test_a_reset_connection_ends(self):
        w = self.opened()
        before = self.a.metric("sandbox_ws_disconnects_total")
        w.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        w.close()
        end = time.monotonic() + 10 * sbx.SLOW
        while self.a.metric("sandbox_ws_disconnects_total") == before:
            self.assertLess(time.monotonic(), end)


class Stdin(ProtocolCase):
    def echo(self, **spec):
        run = self.a.run("cat", interactive=True, **spec)
        w = self.ws(run=run)
        w.run_id = run
        w.recv()
        return w

    def outcome(self, w):
        frames, _ = w.frames()
        return wsclient.output(frames), [f["reason"] for f in frames if f["type"] == "truncated"]

    def test_both_encodings_and_the_end_of_input(self):
        w = self.echo()
        w.stdin("a\u00e9\U0001f600\u0000")
        w.stdin("/v8A", encoding="base64")
        w.stdin(" /v\n8 A=", encoding="base64")
        w.stdin("rot13", encoding="rot13")
        w.send_json({"type": "stdin", "data": "z", "eof": True})
        self.assertEqual(self.outcome(w), ("a\u00e9\U0001f600\0".encode() + b"\xfe\xff\0" * 2 + b"rot13z", []))

    def test_output_after_the_end_of_input(self):
        w = self.ws(run=self.a.run("wc -c; sleep 0.5; echo tail; [ -t 0 ] || echo notty", interactive=True))
        w.stdin("hello")
        w.eof()
        frames, code = w.frames()
        self.assertEqual((wsclient.output(frames), code), (b"5\ntail\nnotty\n", 1000))

    def test_frame_cap(self):
        w = self.echo(stdin_max_bytes=5, stdin_max_frame_bytes=3)
        w.stdin("abcdef")
        w.eof()
        frames, _ = w.frames()
        kinds = [(f["type"], f.get("reason") or f.get("data")) for f in frames]
        self.assertEqual(kinds[:2], [("truncated", "stdin_frame_cap"), ("stdout", "abc")])

    def test_total_cap_over_all_connections_and_all_are_told(self):
        one = self.echo(stdin_max_bytes=5)
        two = self.ws(run=one.run_id)
        two.recv()
        one.stdin("abc")
        one.until(wsclient.says("abc"))
        two.stdin("defgh")
        two.stdin("ijk")
        two.eof()
        for w in (one, two):
            frames, _ = w.frames()
            self.assertEqual(wsclient.output(frames)[-2:], b"de")
            self.assertEqual([f["reason"] for f in frames if f["type"] == "truncated"], ["stdin_cap"] * 2)

    def test_rate(self):
        w = self.echo(stdin_bps=10)
        w.stdin("0123456789abc")
        w.eof()
        self.assertEqual(self.outcome(w), (b"0123456789", ["stdin_rate"]))

    def test_a_rate_of_zero_takes_nothing(self):
        w = self.echo(stdin_bps=0)
        w.stdin("x")
        w.eof()
        self.assertEqual(w.until(lambda f: f["type"] == "truncated")[-1]["reason"], "stdin_rate")

    def test_small_messages_at_a_low_rate_get_through(self):
        w = self.echo(stdin_bps=20)
        w.stdin("x" * 20)
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            w.stdin("y")
            w.silent(0.02)
        w.eof()
        out, reasons = self.outcome(w)
        self.assertGreaterEqual(out.count(b"y"), 15)  # of the 20 that a second has
        self.assertEqual(set(reasons), {"stdin_rate"})

    def test_idle(self):
        w = self.ws(run=self.a.run("cat; echo over", interactive=True, stdin_idle_timeout_sec=1))
        frames, code = w.frames()
        self.assertEqual([f.get("reason") for f in frames if f["type"] == "truncated"], ["stdin_idle"])
        self.assertEqual((wsclient.output(frames), code), (b"over\n", 1000))

    def test_a_run_that_takes_none(self):
        w = self.ws(run=self.a.run("sleep 0.3; echo done"))
        w.stdin("a")
        w.eof()
        frames, code = w.frames()
        self.assertEqual((wsclient.output(frames), code), (b"done\n", 1000))
        self.assertNotIn("truncated", [f["type"] for f in frames])

    def test_floods_of_notices_leave_room_for_the_end_of_input(self):
        w = self.echo(stdin_max_bytes=1)
        for _ in range(5000):
            w.stdin("xx")
        w.eof()
        out, reasons = self.outcome(w)
        self.assertEqual(out, b"x")
        self.assertGreater(len(reasons), 1000)

    def test_leaving_does_not_end_the_run(self):
        w = self.echo()
        w.stdin("one ")
        w.until(wsclient.says("one"))
        w.close()
        again = self.ws(run=w.run_id)
        again.stdin("two")
        again.eof()
        self.assertEqual(self.outcome(again), (b"one two", []))


NODE = r"""
const WebSocket = require("ws");
const [address, bearer] = process.argv.slice(2);
const w = new WebSocket(address, bearer ? { headers: { Authorization: "Bearer " + bearer } } : {});
const got = [];
let pongs = 0;
w.on("open", () => { w.ping("hello"); });
w.on("pong", () => { pongs++; w.send(JSON.stringify({ type: "stdin", data: "node\n" }));
                     w.send(JSON.stringify({ type: "stdin", eof: true })); });
w.on("message", (m, binary) => { got.push(JSON.parse(m)); });
w.on("close", (code, reason) => { console.log(JSON.stringify({ code, reason: reason.toString(), pongs, got })); });
w.on("error", (e) => { console.log(JSON.stringify({ error: e.message })); });
"""
BUILT_IN = r"""
const w = new WebSocket(process.argv.at(-1));
const got = [];
w.onmessage = (m) => { got.push(JSON.parse(m.data)); };
w.onclose = (e) => { console.log(JSON.stringify({ code: e.code, clean: e.wasClean, got })); };
"""


class Node(ProtocolCase):
    """Clients that others wrote."""

    @classmethod
    def setUpClass(cls):
        if not shutil.which("node"):
            raise unittest.SkipTest("node is not installed")
        super().setUpClass()

    def node(self, script, *args):
        p = subprocess.run(["node", *script, *args], stdout=subprocess.PIPE, check=False, cwd=self.a.base,
                           timeout=30 * sbx.SLOW, text=True)
        return json.loads(p.stdout)

    def url(self, run, query=""):
        return "ws://127.0.0.1:%d%s" % (self.a.address[1], self.a.path(run, query))

    def test_the_library_ws(self):
        if not shutil.which("npm") or subprocess.run(
                ["npm", "install", "--silent", "--no-audit", "--no-fund", "ws@8"], cwd=self.a.base,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60, check=False).returncode:
            self.skipTest("npm cannot install ws")
        script = os.path.join(self.a.base, "client.js")
        with open(script, "w") as f:
            f.write(NODE)
        run = self.a.run("cat", interactive=True)
        said = self.node([script], self.url(run), wskit.token("alice"))
        self.assertEqual((said["code"], said["pongs"]), (1000, 1), said)
        self.assertEqual(wsclient.output(said["got"]), b"node\n")
        for query, bearer, code in (("", "", 4401), ("", wskit.token("bob"), 4404)):
            self.assertEqual(self.node([script], self.url(run, query), bearer)["code"], code)

    def test_what_is_built_in_as_in_a_browser(self):
        has = subprocess.run(["node", "--experimental-websocket", "-e", "new WebSocket('ws://x')"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if "bad option" in has.stderr or "not defined" in has.stderr:
            self.skipTest("this node has no WebSocket")
        run = self.a.run("echo hi")
        script = ["--experimental-websocket", "--no-warnings", "-e", BUILT_IN, "--"]
        said = self.node(script, self.url(run, "?auth_token=" + wskit.token("alice")))
        self.assertEqual((said["code"], said["clean"]), (1000, True))
        self.assertEqual(wsclient.output(said["got"]), b"hi\n")
        for query, code in (("", 4401), ("?auth_token=" + wskit.token("bob"), 4404)):
            said = self.node(script, self.url(run, query))
            self.assertEqual((said["code"], said["clean"]), (code, True))


if __name__ == "__main__":
    sbx.main()
