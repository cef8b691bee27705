# SPDX-License-Identifier: Apache-2.0
# run: limit=180
"""Frames of a run over WebSocket."""
import threading

import conf
import wsclient
from wsclient import is_event, output, says


def followed(ws):
    """All frames but heartbeats, of a stream that ends as it should."""
    frames, code = ws.frames()
    assert code == 1000, (code, frames)
    return frames


def seqs(frames):
    return [f["seq"] for f in frames]


def ends(frames):
    return [f for f in frames if f["type"] == "event" and f["event"] == "end"]


class Streams(conf.Case):
    settings = {"max_concurrent_runs": 4, "ws_heartbeat_sec": 1}

    def increasing(self, frames):
        for f in frames:
            self.assertIs(type(f["seq"]), int, f)
        self.assertEqual(sorted(set(seqs(frames))), seqs(frames))

    def all_of(self, run, **query):
        with self.a.stream(run, **query) as ws:
            return followed(ws)

    def waiting(self, script):
        """A run that goes on when it gets a line of input: the moment is the test's."""
        return self.a.sh(script, interactive=True, spec_version="1.1")

    def test_T287_start_and_end(self):
        frames = self.all_of(self.a.sh("echo hello"))
        names = [f["event"] for f in frames if f["type"] == "event"]
        self.assertEqual((names[0], names[-1]), ("start", "end"))
        self.assertEqual(frames[-1]["event"], "end")
        self.assertEqual(frames[-1]["data"]["exit_code"], 0)

    def test_T288_numbers_grow(self):
        frames = self.all_of(self.a.sh("echo hello"))
        self.assertGreaterEqual(len(frames), 2)
        self.increasing(frames)

    def test_T289_two_read_the_same(self):
        run = self.a.sh("echo A; sleep 0.5; echo B")
        run.wait()
        one, two = self.all_of(run), self.all_of(run)
        self.assertEqual(one, two)
        self.increasing(one)
        self.assertEqual(output(one), b"A\nB\n")
        self.assertEqual((one[0]["event"], one[-1]["event"]), ("start", "end"))

    def test_T291_history_after_the_end(self):
        run = self.waiting("echo X; read x; echo Y")
        with self.a.stream(run) as ws:
            got = ws.until(says("X"))
            self.assertTrue(is_event("start")(got[0]), got)
        with self.a.stream(run) as ws:
            ws.stdin("go\n")
            followed(ws)
        run.wait()
        frames = self.all_of(run)
        self.increasing(frames)
        self.assertEqual(output(frames), b"X\nY\n")
        self.assertTrue(is_event("end")(frames[-1]))

    def test_T293_heartbeats(self):
        # Design: heartbeats take no numbers; theirs is the last that was used, so it does not fall.
        run = self.waiting("read x")
        with self.a.stream(run) as ws:
            beats = []
            while len(beats) < 3:
                f = ws.recv()
                if f["type"] == "heartbeat":
                    beats.append(f)
            self.assertTrue(all(type(f["seq"]) is int for f in beats), beats)
            self.assertEqual(sorted(seqs(beats)), seqs(beats))
            ws.stdin("go\n")
            followed(ws)

    def test_T294_no_heartbeat_after_the_end(self):
        run = self.a.sh("echo hi; sleep 1.5")
        with self.a.stream(run) as ws:
            got, ended = [], False
            try:
                while True:
                    f = ws.recv()
                    self.assertFalse(ended, "%r came after the end" % f)
                    ended = f["type"] == "event" and f["event"] == "end"
                    got.append(f["type"])
            except wsclient.Closed as c:
                # Design: after the end the server closes.
                self.assertEqual(c.code, 1000)
            self.assertIn("heartbeat", got)
            self.assertTrue(ended)

    def test_T295_one_end_for_ever(self):
        for _ in range(5):
            run = self.waiting("read x")
            run.wait_phase("running")
            sockets = [self.a.stream(run) for _ in range(3)]
            try:
                cancel = threading.Thread(target=run.cancel)
                sockets[0].stdin("go\n")  # the natural end, and at the same time
                cancel.start()
                all_frames = [followed(ws) for ws in sockets]
                cancel.join()
            finally:
                for ws in sockets:
                    ws.close()
            run.wait()
            all_frames.append(self.all_of(run))
            for frames in all_frames:
                self.assertEqual(len(ends(frames)), 1, frames)
                self.assertEqual(ends(frames), ends(all_frames[0]))

    def test_T297_one_leaves_the_other_stays(self):
        run = self.waiting("echo 0; read x; for i in 1 2 3 4; do echo $i; done")
        with self.a.stream(run) as stays, self.a.stream(run) as leaves:
            leaves.until(says("0"))
            leaves.close()
            stays.stdin("go\n")
            frames = followed(stays)
        self.assertEqual(output(frames), b"0\n1\n2\n3\n4\n")
        self.assertTrue(is_event("end")(frames[-1]))

    def test_T298_heartbeats_are_live_only(self):
        # Design: they take no numbers, so early and late followers see the same.
        run = self.waiting("read x; echo A; read x")
        with self.a.stream(run) as early:
            first = early.until(lambda f: f["type"] == "heartbeat")
            early.stdin("go\n")
            first += early.until(says("A"))
            with self.a.stream(run) as late:
                second = late.until(says("A"))
            early.stdin("go\n")
            followed(early)
        first, second = ([f for f in got if f["type"] != "heartbeat"] for got in (first, second))
        self.assertEqual(seqs(second), list(range(1, len(second) + 1)))
        self.assertEqual([f for f in second if f not in first], [])

    def test_T300_a_slow_reader_delays_nobody(self):
        big = self.a.sh("yes | head -c 8000000")
        with self.a.stream(big) as slow:  # never reads meanwhile
            self.ended(big)
            run = self.a.sh("echo hi")
            self.assertEqual(output(self.all_of(run)), b"hi\n")
            self.ended(run)
            # It has lost nothing by that.
            self.assertEqual(len(output(followed(slow))), 8000000)

    def test_T301_who_reads_late_loses_nothing(self):
        # Design: every frame to every socket. The row allows the oldest to be dropped.
        run = self.a.sh("i=0; while [ $i -lt 5000 ]; do echo line$i; i=$((i+1)); done")
        with self.a.stream(run) as ws:
            self.ended(run)
            frames = followed(ws)
        self.increasing(frames)
        self.assertEqual(output(frames), b"".join(b"line%d\n" % i for i in range(5000)))
        self.assertEqual(self.a.metric("sandbox_ws_queue_drops_total"), 0)


class Quotas(conf.Case):
    settings = {**conf.QUEUED, "ws_max_connections_per_user": 1}

    def test_T302_one_at_a_time(self):
        run = self.a.sh("echo x")
        with self.a.stream(run) as first:
            self.assertEqual(first.status, 101)
            first.wait_there()
            with self.a.stream(run) as second:
                self.assertEqual(second.frames(), ([], 4429))
            self.assertTrue(first.silent(0))
            first.send(wsclient.CLOSE, (1000).to_bytes(2, "big"))
            self.assertEqual(first.close_code(), 1000)
        with self.a.stream(run) as third:
            third.wait_there()
            run.cancel()
            self.assertEqual(len(ends(followed(third))), 1)


class Two(conf.Alone):
    def test_T303_through_another_server(self):
        # Design: the log is shared, so nothing has to be passed on between servers.
        with conf.two(second=["--workers", "0"]) as (p1, p2):
            run = p1.run({"command": ["printf", "hello"]})
            with p2.stream(run) as ws:
                frames = followed(ws)
            self.assertEqual(output(frames), b"hello")
            for f in frames:
                if f["type"] == "stdout":
                    self.assertIn(f["encoding"], ("utf8", "base64"))


if __name__ == "__main__":
    conf.main()
