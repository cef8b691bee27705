# SPDX-License-Identifier: Apache-2.0
"""Streams over WebSocket: what a follower gets, from where, who may follow, and how it ends."""
import contextlib
import hashlib
import hmac
import os
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import sbx  # noqa: E402
import wsclient  # noqa: E402
import wskit  # noqa: E402

LOOP = "while read x; do echo \"got $x\"; done; exit 7"


class WsCase(unittest.TestCase):
    settings = {}

    @classmethod
    def setUpClass(cls):
        cls.a = wskit.Apid(**cls.settings)
        cls.addClassCleanup(cls.a.close)
        cls.a.start()

    def ws(self, run, *args, **how):
        w = self.a.ws(run, *args, **how)
        self.addCleanup(w.close)
        return w

    def live(self, command=LOOP, **spec):
        """A run that goes on until the test ends."""
        run = self.a.run(command, **dict({"interactive": True, "timeout_sec": 600}, **spec))
        self.addCleanup(self.a.wait, run)
        self.addCleanup(self.a.cancel, run)
        return run

    def refused(self, code, run, *args, **how):
        w = self.ws(run, *args, **how)
        self.assertEqual(w.status, 101)
        with self.assertRaises(wsclient.Closed) as got:
            w.recv()
        self.assertEqual(got.exception.code, code, got.exception.text)
        w.expect_end()
        return got.exception.text


class Follow(WsCase):
    def test_frames_of_a_run_in_order_and_then_1000(self):
        run = self.a.run("printf 'alpha\\nomega'; printf E >&2; exit 3")
        frames, code = self.ws(run).frames()
        self.assertEqual(code, 1000)
        self.assertEqual([f["seq"] for f in frames], list(range(1, len(frames) + 1)))
        self.assertEqual(frames[0]["event"], "start")
        self.assertEqual((frames[-1]["event"], frames[-1]["data"]["exit_code"]), ("end", 3))
        self.assertEqual(wsclient.output(frames), b"alpha\nomega")
        self.assertEqual(wsclient.output(frames, "stderr"), b"E")
        self.assertEqual(sum(f["type"] == "event" and f["event"] == "end" for f in frames), 1)

    def test_a_run_that_is_over_shows_the_same_again(self):
        run = self.a.run("echo one; echo two >&2")
        live = self.ws(run).frames()
        self.a.wait(run)
        self.assertEqual(self.ws(run).frames(), live)

    def test_a_queued_run_is_followed_before_it_begins(self):
        first = [self.live() for _ in range(4)]
        run = self.a.run("echo at last")
        w = self.ws(run)
        self.assertTrue(w.silent(0.3))
        for r in first:
            self.a.cancel(r)
        frames, code = w.frames()
        self.assertEqual((wsclient.output(frames), code), (b"at last\n", 1000))

    def test_a_run_that_never_began_has_its_end(self):
        first = [self.live() for _ in range(4)]
        run = self.a.run("echo no")
        w = self.ws(run)
        self.a.cancel(run)
        frames, code = w.frames()
        self.assertEqual([f["event"] for f in frames][-1:], ["end"])
        self.assertTrue(frames[-1]["data"]["canceled"])
        self.assertEqual(code, 1000)
        for r in first:
            self.a.cancel(r)

    def test_a_run_whose_directory_is_made_late(self):
        first = [self.live() for _ in range(4)]
        run = self.a.run("echo born")
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(os.path.join(self.a.state, "runs", run))
        w = self.ws(run)
        self.assertTrue(w.silent(0.2))
        for r in first:
            self.a.cancel(r)
        frames, code = w.frames()
        self.assertEqual((wsclient.output(frames), code), (b"born\n", 1000))

    def test_bytes_are_exact(self):
        script = ("import os,time\no=os.write\no(1,b'a'*65535+b'\\xe3\\x81'); time.sleep(0.3); "
                  "o(1,b'\\x82\\n\\xff\\xfe\\x80\\x00Z\\n\\xed\\xa0\\x80'); o(1,b'\\xf0\\x9f'); time.sleep(0.3); "
                  "o(1,b'\\x99\\x82\\n'); o(2,b'\\xc3')")
        frames, _ = self.ws(self.a.run(["python3", "-c", script])).frames()
        out = wsclient.output(frames)
        self.assertEqual((len(out), hashlib.sha256(out).hexdigest()[:16]), (65553, "0137e3ec0473e5a2"))
        self.assertEqual(wsclient.output(frames, "stderr"), b"\xc3")
        self.assertFalse(any("\ufffd" in f.get("data", "") for f in frames if f["type"] == "stdout"))

    def test_two_viewers_and_one_that_leaves(self):
        run = self.live("for i in 1 2 3 4 5; do read x; echo line $i; done")
        one, two = self.ws(run), self.ws(run)
        one.stdin("\n")
        one.until(wsclient.says("line 1"))
        two.until(wsclient.says("line 1"))
        one.close()
        two.stdin("\n\n\n\n")
        frames, code = two.frames()
        self.assertEqual(wsclient.output(frames), b"line 2\nline 3\nline 4\nline 5\n")
        self.assertEqual(code, 1000)

    def test_cancel_gives_one_end(self):
        run = self.live()
        w = self.ws(run)
        w.recv()
        self.a.cancel(run)
        frames, _ = w.frames()
        self.assertEqual([f["event"] for f in frames if f["type"] == "event"], ["end"])
        self.assertTrue(frames[-1]["data"]["canceled"])

    def test_short_runs_lose_nothing(self):
        for i in range(40):
            run = self.a.run("printf 'alpha\\nomega'; printf E >&2")
            if i % 2:
                self.a.wait(run)
            frames, code = self.ws(run).frames()
            self.assertEqual((wsclient.output(frames), wsclient.output(frames, "stderr"), code),
                             (b"alpha\nomega", b"E", 1000))
            self.assertEqual(frames[-1]["event"], "end")


class Resume(WsCase):
    def setUp(self):
        self.run_id = self.a.run("for i in 1 2 3 4 5; do echo $i; sleep 0.05; done")
        self.a.wait(self.run_id)
        self.all = self.ws(self.run_id).frames()[0]

    def seqs(self, query):
        frames, code = self.ws(self.run_id, query).frames()
        self.assertEqual(code, 1000)
        return [f["seq"] for f in frames]

    def test_from_seq_is_inclusive(self):
        last = self.all[-1]["seq"]
        self.assertEqual(self.seqs("?from_seq=3"), list(range(3, last + 1)))
        self.assertEqual(self.seqs("?from_seq=%d" % last), [last])

    def test_bad_and_small_ones_are_the_first(self):
        for bad in ("0", "-5", "x", "", "1.5", "99999999999999999999"):
            self.assertEqual(self.seqs("?from_seq=" + bad), [f["seq"] for f in self.all], bad)

    def test_above_the_last_a_run_that_is_over_shows_its_end(self):
        self.assertEqual(self.seqs("?from_seq=1000"), [self.all[-1]["seq"]])

    def test_above_the_last_live_frames_come(self):
        run = self.live()
        first = self.ws(run)
        first.recv()
        w = self.ws(run, "?from_seq=1000")
        self.assertTrue(w.silent(0.2))
        first.stdin("x\n")
        self.assertEqual(w.recv()["data"], "got x\n")

    def test_reaches_back_to_the_first_of_many(self):
        run = self.a.run(["python3", "-u", "-c", "for i in range(3000): print('line-%d' % i)"])
        self.a.wait(run)
        frames, _ = self.ws(run, "?from_seq=1").frames()
        self.assertEqual([f["seq"] for f in frames], list(range(1, len(frames) + 1)))
        self.assertEqual(wsclient.output(frames), b"".join(b"line-%d\n" % i for i in range(3000)))


class Slow(WsCase):
    BYTES = 8000000

    def test_a_reader_that_waits_gets_everything_and_stops_nobody(self):
        run = self.a.run("yes abcdefg | head -c %d" % self.BYTES)
        slow = self.ws(run, rcvbuf=4096)
        self.a.wait(run)
        other = self.a.run("echo hi")
        frames, code = self.ws(other).frames()
        self.assertEqual((wsclient.output(frames), code), (b"hi\n", 1000))
        frames, code = slow.frames()
        out = wsclient.output(frames)
        self.assertEqual((len(out), code), (self.BYTES, 1000))
        self.assertEqual(out, (b"abcdefg\n" * (self.BYTES // 8 + 1))[:self.BYTES])
        self.assertEqual([f["seq"] for f in frames], list(range(1, len(frames) + 1)))
        self.assertEqual(self.a.metric("sandbox_ws_queue_drops_total"), 0)

    def test_readers_at_different_places(self):
        run = self.a.run("yes abcdefg | head -c %d" % self.BYTES)
        many = [self.ws(run, rcvbuf=4096 << i % 4) for i in range(8)]
        results, threads = [None] * 8, []

        def read(i):
            results[i] = hashlib.sha256(wsclient.output(many[i].frames()[0])).hexdigest()

        for i in range(8):
            threads.append(threading.Thread(target=read, args=(i,)))
            threads[-1].start()
        for t in threads:
            t.join()
        self.assertEqual(len(set(results)), 1)
        self.assertEqual(results[0], hashlib.sha256((b"abcdefg\n" * 1000000)[:self.BYTES]).hexdigest())

    def test_answers_come_between_the_frames_of_a_slow_reader(self):
        run = self.live("yes abcdefg | head -c %d; cat" % self.BYTES)
        w = self.ws(run, rcvbuf=4096)
        for i in range(50):
            w.send(wsclient.PING, b"p%d" % i)
        out, pongs = 0, []
        while out < self.BYTES or len(pongs) < 50:
            fin, rsv, op, data = w.recv_frame()
            self.assertEqual((fin, rsv), (1, 0))
            if op == wsclient.PONG:
                pongs.append(data)
                if len(pongs) == 50:
                    self.assertLess(out, self.BYTES, "the answers waited for everything else")
            elif op == wsclient.TEXT and data.startswith(b'{"type":"stdout"'):
                out += len(wsclient.output([wsclient.json.loads(data)]))
        self.assertEqual(pongs, [b"p%d" % i for i in range(50)])


class Heartbeats(WsCase):
    settings = {"ws_heartbeat_sec": 1}

    def test_they_name_the_last_frame_and_take_no_number(self):
        run = self.live()
        w = self.ws(run)
        start = w.recv()
        before = self.a.metric("sandbox_ws_heartbeats_sent_total")
        self.assertEqual([w.recv() for _ in range(2)], [{"type": "heartbeat", "seq": start["seq"]}] * 2)
        self.assertGreaterEqual(self.a.metric("sandbox_ws_heartbeats_sent_total"), before + 1)
        w.stdin("x\n")
        self.assertEqual(w.until(wsclient.says("got"))[-1]["seq"], start["seq"] + 1)
        self.assertEqual(w.until(lambda f: f["type"] == "heartbeat")[-1]["seq"], start["seq"] + 1)

    def test_none_after_the_end(self):
        run = self.a.run("echo hi")
        w = self.ws(run)
        w.until(wsclient.is_event("end"))
        with self.assertRaises(wsclient.Closed) as got:
            w.recv()
        self.assertEqual(got.exception.code, 1000)
        w.expect_end()


class Login(WsCase):
    def test_who_says_nothing_or_nonsense(self):
        run = self.a.run("echo hi")
        for headers in ((), (("Authorization", "Bearer nonsense"),), (("X-API-KEY", "nonsense"),),
                        (("Authorization", "Basic YWxpY2U6eA=="),)):
            self.refused(4401, run, headers=headers)
        self.refused(4401, run, "?auth_token=nonsense", headers=())

    def test_a_token_in_the_query(self):
        run = self.a.run("echo hi")
        t = wskit.token(self.a.user)
        self.assertEqual(self.ws(run, "?auth_token=" + t, headers=()).frames()[1], 1000)
        self.assertEqual(self.ws(run, "?token=" + t, headers=()).frames()[1], 1000)
        # auth_token counts before the others.
        self.refused(4404, run, "?auth_token=" + wskit.token("bob") + "&token=" + t)

    def test_strangers_and_administrators_see_no_run(self):
        run = self.a.run("echo hi")
        self.refused(4404, run, user="bob")
        self.refused(4404, run, headers=(("Authorization", "Bearer " + wskit.token("carol", role="admin")),))
        self.refused(4404, "00000000-0000-7000-8000-000000000000")
        self.refused(4404, "nonsense")

    def test_the_unix_socket_knows_its_peer(self):
        run = self.a.submit("echo hi", user=wskit.PEER)["id"]
        self.assertEqual(self.ws(run, headers=(), address=self.a.unix).frames()[1], 1000)

    def test_the_address_in_the_answer(self):
        doc = self.a.submit("echo hi")
        self.assertEqual(doc["log_stream_url"], self.a.path(doc["id"]))
        doc = self.a.submit("echo hi", resume_from_seq=7)
        self.assertEqual(doc["log_stream_url"], self.a.path(doc["id"], "?from_seq=7"))


class Signed(WsCase):
    settings = {"ws_signed_urls": "true", "ws_signing_secret": "test-secret"}

    def query(self, run, exp, secret=b"test-secret"):
        mac = hmac.new(secret, ("%s:%d" % (run, exp)).encode(), hashlib.sha256).hexdigest()
        return "?token=%s&exp=%d" % (mac, exp)

    def test_the_address_in_the_answer_works(self):
        doc = self.a.submit("echo hi", resume_from_seq=2)
        path, _, query = doc["log_stream_url"].partition("?")
        self.assertEqual(path, self.a.path(doc["id"]))
        values = dict(p.split("=") for p in query.split("&"))
        self.assertEqual("?" + query, self.query(doc["id"], int(values["exp"])) + "&from_seq=2")
        self.assertAlmostEqual(int(values["exp"]), time.time() + 60, delta=5 * sbx.SLOW)
        self.a.wait(doc["id"])
        frames, code = self.ws(doc["id"], "?" + query).frames()
        self.assertEqual((frames[0]["seq"], code), (2, 1000))

    def test_refusals(self):
        run, other, soon = self.a.run("echo hi"), self.a.run("echo ho"), int(time.time()) + 50
        good = self.query(run, soon)
        for bad in ("", "?token=", good[:-1] + "x", good.replace("&exp", "0&exp"), self.query(other, soon),
                    self.query(run, soon, b"guess"), self.query(run, int(time.time()) - 10),
                    good.split("&")[0], good.upper()):
            self.refused(1008, run, bad)
        self.assertEqual(self.ws(run, good).frames()[1], 1000)

    def test_it_does_not_log_in(self):
        run = self.a.run("echo hi")
        good = self.query(run, int(time.time()) + 50)
        self.refused(4401, run, good, headers=())
        self.refused(4404, run, good, user="bob")
        self.assertEqual(self.ws(run, good + "&auth_token=" + wskit.token(self.a.user), headers=()).frames()[1], 1000)


class SignedWithoutSecret(WsCase):
    settings = {"ws_signed_urls": "true"}

    def test_nobody_gets_in(self):
        doc = self.a.submit("echo hi")
        self.assertEqual(doc["log_stream_url"], self.a.path(doc["id"]))
        self.refused(1008, doc["id"])


class Quotas(WsCase):
    settings = {"ws_max_connections_total": 5, "ws_max_connections_per_user": 4, "ws_max_connections_per_persona": 3,
                "ws_max_connections_per_run": 2}

    def gone(self, n):
        """Waits until the server has seen this many streams end."""
        end = time.monotonic() + 20 * sbx.SLOW
        while self.a.metric("sandbox_ws_disconnects_total") < n:
            self.assertLess(time.monotonic(), end)

    def opened(self, run, **how):
        w = self.ws(run, **how)
        w.recv()
        return w

    def test_each_and_the_slot_is_free_again(self):
        # user, ..., and what refuses the next one
        mine, hers = [self.live() for _ in range(3)], self.live(persona_id="p")
        before = self.a.metric("sandbox_ws_quota_rejections_total")
        two = [self.opened(mine[0]), self.opened(mine[0])]
        self.assertEqual(self.refused(4429, mine[0]), "run_connections_quota_exceeded")
        two.append(self.opened(mine[1]))
        two.append(self.opened(hers))
        self.assertEqual(self.refused(4429, mine[2]), "user_connections_quota_exceeded")
        bobs = self.a.submit("sleep 100", user="bob")["id"]
        w = self.opened(bobs, user="bob")
        self.assertEqual(self.refused(4429, bobs, user="bob"), "total_connections_quota_exceeded")
        self.assertEqual(self.a.metric("sandbox_ws_quota_rejections_total"), before + 3)
        n = self.a.metric("sandbox_ws_disconnects_total")
        w.close()
        two.pop(0).close()
        self.gone(n + 2)
        two.append(self.opened(mine[0]))
        self.a.request("POST", "%s/runs/%s/cancel" % (wskit.BASE, bobs), user="bob")

    def test_a_stream_that_has_ended_counts_no_more(self):
        run = self.a.run("echo hi")
        self.a.wait(run)
        kept = []
        for _ in range(6):
            kept.append(self.ws(run))
            kept[-1].until(wsclient.is_event("end"))
            with self.assertRaises(wsclient.Closed):
                kept[-1].recv()


class Tls(unittest.TestCase):
    def test_all_the_same(self):
        with wskit.Apid(tls=True) as a:
            run = a.run("cat; yes abcdefg | head -c 3000000", interactive=True)
            with a.ws(run) as w:
                w.stdin("typed\n")
                w.eof()
                frames, code = w.frames()
            self.assertEqual((len(wsclient.output(frames)), code), (3000006, 1000))
            with a.ws(run, headers=()) as w:
                self.assertEqual(w.close_code(), 4401)
            with a.ws(run, headers=()) as w, self.assertRaises(wsclient.Closed):
                w.recv()
            started = time.monotonic()
            with a.ws(run, headers=()) as w:
                self.assertEqual(w.frames()[1], 4401)
                w.send(wsclient.CLOSE, b"\x11\x31")
                w.expect_end()
                self.assertLess(time.monotonic() - started, 1 * sbx.SLOW)
            with a.ws(run) as w:  # one that leaves in the middle
                w.recv()


class Stop(unittest.TestCase):
    def test_everybody_is_told(self):
        a = wskit.Apid().start()
        try:
            run = a.run("cat", interactive=True)
            many = [a.ws(run) for _ in range(5)]
            for w in many:
                w.recv()
            self.assertEqual(a.metric("sandbox_ws_connections_opened_total"), 5)
            a.cancel(a.run("true"))
            started = time.monotonic()
            stopper = threading.Thread(target=a.stop)
            stopper.start()
            self.assertEqual([w.close_code() for w in many], [1001] * 5)
            for w in many:
                w.close()
            stopper.join()
            self.assertLess(time.monotonic() - started, 5 * sbx.SLOW)
            for pid in a.processes():  # the run goes on, as it should
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)
        finally:
            a.close()


if __name__ == "__main__":
    sbx.main()
