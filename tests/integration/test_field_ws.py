# SPDX-License-Identifier: Apache-2.0
# run: limit=240
"""Field cases of the streams. The name of a test begins with the number of its case."""
import hashlib
import json
import os
import sys
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import api  # noqa: E402
import badhttp  # noqa: E402
import sbx  # noqa: E402
import wsclient  # noqa: E402
from field import py, sh  # noqa: E402
from wsclient import CLOSE, CONT, PING, PONG, TEXT, frame  # noqa: E402


class Case(unittest.TestCase):
    settings = {"ws_max_connections_per_user": 0, "ws_max_connections_per_run": 0, "cancel_grace_seconds": 0}

    @classmethod
    def setUpClass(cls):
        cls.a = api.Apid(settings=cls.settings)
        cls.addClassCleanup(cls.a.close)
        cls.a.start()

    def tearDown(self):
        self.assertIsNone(self.a.proc.poll())

    def raw(self, run, **kw):
        """A client that does what it is told; the login is added."""
        headers = tuple(kw.pop("headers", ())) + tuple(self.a.login.headers.items())
        return wsclient.WS(("127.0.0.1", self.a.port), "%s/runs/%s/stream" % (api.BASE, run.id), headers,
                           timeout=20 * sbx.SLOW, **kw)

    def ended(self, run, exit_code=0):
        doc = run.wait(60)
        self.assertEqual((doc["phase"], doc["exit_code"]), ("completed" if exit_code == 0 else "failed", exit_code), doc)
        with self.a.stream(run) as ws:
            frames, code = ws.frames()
        self.assertEqual(code, 1000)
        return frames


class F13(Case):
    def test_F13_without_input_stdin_is_at_its_end(self):
        run = self.a.sh("cat; echo after; [ -t 0 ] && echo tty || echo notty; cat <<'Q' > f\nhere\nQ\ncat f")
        self.assertEqual(wsclient.output(self.ended(run)), b"after\nnotty\nhere\n")

    SECOND = dict(spec_version="1.1", interactive=True, command=[
        "sh", "-c", "wc -c; sleep 1; echo tail; if [ -t 1 ]; then stty size; else echo notty; fi"])

    def test_F13_end_of_input_does_not_cut_the_output(self):
        run = self.a.run(self.SECOND)
        with self.a.stream(run) as ws:
            ws.stdin("hello")
            ws.eof()
            frames, code = ws.frames()
        self.assertEqual((wsclient.output(frames), code), (b"5\ntail\nnotty\n", 1000))
        self.assertEqual(frames[-1]["data"], {"exit_code": 0})

    def test_F13_data_and_end_in_one_message(self):
        run = self.a.run(self.SECOND)
        with self.a.stream(run) as ws:
            ws.stdin("hello", eof=True)
            self.assertEqual(wsclient.output(ws.frames()[0]), b"5\ntail\nnotty\n")

    def test_F13_a_client_that_drops_the_connection_does_not_end_the_run(self):
        run = self.a.run(self.SECOND)
        with self.a.stream(run) as ws:
            ws.stdin("hel")
            ws.until(wsclient.is_event("start"))
        with self.a.stream(run) as ws:
            self.assertEqual(run.phase(), "running")
            ws.stdin("lo")
            ws.eof()
            self.assertEqual(wsclient.output(ws.frames()[0]), b"5\ntail\nnotty\n")


class F26(Case):
    PROGRAM = ("import os,time\no=os.write\no(1,b'a'*65535+b'\\xe3\\x81'); time.sleep(0.3); "
               "o(1,b'\\x82\\n\\xff\\xfe\\x80\\x00Z\\n\\xed\\xa0\\x80'); o(1,b'\\xf0\\x9f'); time.sleep(0.3); "
               "o(1,b'\\x99\\x82\\n'); o(2,b'\\xc3')")

    def exact(self, frames):
        out = wsclient.output(frames)
        self.assertEqual((len(out), hashlib.sha256(out).hexdigest()[:16]), (65553, "0137e3ec0473e5a2"))
        self.assertEqual(wsclient.output(frames, "stderr"), b"\xc3")
        self.assertNotIn("\ufffd", json.dumps(frames, ensure_ascii=False))
        self.assertEqual({f["encoding"] for f in frames if f["type"] == "stdout"}, {"utf8", "base64"})
        self.assertEqual([f["encoding"] for f in frames if f["type"] == "stderr"], ["base64"])

    def test_F26_log_bytes_are_exact_live_and_late(self):
        run = self.a.run(py(self.PROGRAM))
        with self.a.stream(run) as ws:
            live, code = ws.frames()
        self.assertEqual(code, 1000)
        self.exact(live)
        self.assertEqual(self.ended(run), live)


class F28(Case):
    settings = {**Case.settings, "queue_max_length": 1000}
    SPEC = sh("printf 'alpha\\nomega'; printf E >&2")

    def complete(self, frames, code):
        self.assertEqual((wsclient.output(frames), wsclient.output(frames, "stderr")), (b"alpha\nomega", b"E"))
        self.assertEqual((frames[0]["event"], frames[-1]["event"], code), ("start", "end", 1000))
        self.assertEqual([f["seq"] for f in frames], list(range(1, len(frames) + 1)))

    def test_F28_last_bytes_200_times(self):
        """Half with a follower from before the start, half with one that connects when the status says that
        it has ended; twenty at a time."""
        problems = []

        def one(follows):
            try:
                run = self.a.run(self.SPEC)
                if not follows:
                    self.assertEqual(run.wait(60)["phase"], "completed")
                with self.a.stream(run) as ws:
                    self.complete(*ws.frames())
            except Exception as e:  # of a thread: told below
                problems.append(repr(e))

        for _ in range(10):
            threads = [threading.Thread(target=one, args=(i % 2 == 0,)) for i in range(20)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual(problems, [])


class F29(Case):
    SPEC = dict(spec_version="1.1", interactive=True, stdin_max_bytes=200000, stdin_max_frame_bytes=100000,
                command=["sh", "-c", "wc -c"])

    def test_F29_fragments_a_ping_in_between_and_70_kb(self):
        run = self.a.run(self.SPEC)
        with self.raw(run) as ws:
            ws.send(TEXT, b'{"type":"stdin",', fin=0)
            ws.send(PING, b"p1")
            rest = frame(CONT, b'"encoding":"utf8","data":"abc"}')
            for i in range(len(rest)):
                ws.sock.sendall(rest[i:i + 1])
            pongs = []
            while not pongs:
                _, _, op, data = ws.recv_frame()
                pongs += [data] if op == PONG else []
            self.assertEqual(pongs, [b"p1"])
            ws.stdin("x" * 70000)
            ws.eof()
            frames, code = ws.frames()
        self.assertEqual((wsclient.output(frames).strip(), code), (b"70003", 1000))

    def test_F29_a_frame_in_the_packet_of_the_request(self):
        run = self.a.run(self.SPEC)
        early = frame(TEXT, b'{"type":"stdin","encoding":"utf8","data":"early"}')
        with self.raw(run, early=early) as ws:
            self.assertEqual(ws.status, 101)
            ws.eof()
            frames, _ = ws.frames()
        self.assertEqual(wsclient.output(frames).strip(), b"5")

    def test_F29_a_message_over_the_cap_of_a_frame(self):
        """The first bytes are taken, every viewer is told, and the run lives on."""
        run = self.a.run({**self.SPEC, "stdin_max_frame_bytes": 2048})
        with self.raw(run) as ws:
            ws.stdin("x" * 70000)
            told = ws.until(lambda f: f["type"] == "truncated")[-1]
            self.assertEqual(told["reason"], "stdin_frame_cap")
            ws.eof()
            frames, code = ws.frames()
        self.assertEqual((wsclient.output(frames).strip(), code), (b"2048", 1000))


class F30(Case):
    # name: what is sent, the codes that may come.
    MISTAKES = {
        "1 unmasked text": (frame(TEXT, b"{}", mask=False), (1002,)),
        "2 ping of 126 bytes": (frame(PING, b"x" * 126), (1002,)),
        "3 ping in fragments": (frame(PING, b"x", fin=0), (1002,)),
        "4 RSV1": (frame(TEXT, b"{}", rsv=4), (1002,)),
        "5 opcode 3": (frame(3, b"x"), (1002,)),
        "6 continuation of nothing": (frame(CONT, b"x"), (1002,)),
        "7 text inside a message": (frame(TEXT, b"x", fin=0) + frame(TEXT, b"y"), (1002,)),
        "8 a length of 2^63": (frame(TEXT, b"", length=1 << 63), (1002, 1009)),
        "9 a claim of 1 GiB": (frame(TEXT, b"x", length=1 << 30), (1002, 1009)),
    }

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.r = cls.a.sh("while read x; do echo got $x; done", interactive=True, timeout_sec=600)
        cls.addClassCleanup(cls.r.cancel)
        cls.r.wait_phase("running")

    def resident_kib(self):
        with open("/proc/%d/status" % self.a.proc.pid) as f:
            return int(next(x for x in f if x.startswith("VmRSS:")).split()[1])

    def mistake(self, data, codes):
        with self.raw(self.r) as ws:
            ws.sock.sendall(data)
            self.assertIn(ws.close_code(), codes)

    def test_F30_each_ends_its_connection_and_no_other(self):
        with self.a.stream(self.r) as other:
            other.until(wsclient.is_event("start"))
            for i, (name, (data, codes)) in enumerate(self.MISTAKES.items()):
                with self.subTest(name):
                    before = self.resident_kib()
                    self.mistake(data, codes)
                    self.assertLess(self.resident_kib() - before, 8 << 10)
                    # The other follower and the run go on.
                    other.stdin("%d\n" % i)
                    other.until(wsclient.says("got %d\n" % i))
        self.assertEqual(self.r.phase(), "running")

    def test_F30_no_key(self):
        with self.raw(self.r, drop=("Sec-WebSocket-Key",)) as ws:
            self.assertEqual(ws.status, 400)

    def test_F30_version_12(self):
        with self.raw(self.r, version="12") as ws:
            self.assertEqual((ws.status, ws.headers.get("sec-websocket-version")), (426, "13"))

    def test_F30_two_hundred_of_them_leave_nothing(self):
        with self.a.stream(self.r) as other:
            other.until(wsclient.is_event("start"))
            kinds = list(self.MISTAKES.values())
            for i in range(200):
                self.mistake(*kinds[i % len(kinds)])
            badhttp.until(lambda: badhttp.connections(self.a.port) == 1, "only the other one is left")
            # Silence behind a close frame has an end, too.
            with self.raw(self.r) as ws:
                ws.send(CLOSE, b"\x03\xe8")
                self.assertEqual(ws.close_code(), 1000)


if __name__ == "__main__":
    sbx.main()
