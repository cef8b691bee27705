# SPDX-License-Identifier: Apache-2.0
"""What a stream must not be held up by, and must not lose: readers that have stopped, time limits beside
long heartbeats, events that the kernel drops, input behind the end."""
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import unittest
import unittest.mock

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import api  # noqa: E402
import sbx  # noqa: E402
import wsclient  # noqa: E402
import wskit  # noqa: E402

LONG = {"ws_heartbeat_sec": 3600}


class HoldCase(unittest.TestCase):
    def door(self, **settings):
        a = wskit.Apid(**dict(LONG, **settings))
        self.addCleanup(a.close)
        return a.start()

    def run_(self, a, command, **spec):
        """A run that goes on until the test ends."""
        run = a.run(command, interactive=True, timeout_sec=600, **spec)
        self.addCleanup(self.end, a, run)
        return run

    def end(self, a, run):
        if a.proc.poll() is None:
            a.cancel(run)
            a.wait(run)

    def ws(self, a, run, *args, **how):
        w = a.ws(run, *args, **how)
        self.addCleanup(w.close)
        return w


class Stop(HoldCase):
    def test_a_reader_that_has_stopped_does_not_hold_it_up(self):
        a = self.door()
        # Much more than fits into the buffers of a connection.
        run = a.run("head -c 8000000 /dev/zero | tr '\\0' x")
        a.wait(run)
        self.ws(a, run, rcvbuf=4096)
        while not a.metric("sandbox_ws_connections_opened_total"):
            pass
        began = time.monotonic()
        a.stop()
        self.assertLess(time.monotonic() - began, 15 * sbx.SLOW)


class Time(HoldCase):
    def test_a_message_is_finished_in_time(self):
        a = self.door()
        w = self.ws(a, self.run_(a, "cat"), timeout=60 * sbx.SLOW)
        w.recv()
        w.sock.sendall(wsclient.frame(wsclient.TEXT, b"{", length=100))
        self.assertEqual(w.close_code(), 1008)

    def test_a_shorter_heartbeat_after_a_reload(self):
        a = self.door()
        run = self.run_(a, "cat")
        first = self.ws(a, run)
        first.recv()
        with open(a.conf) as f:
            text = f.read()
        with open(a.conf, "w") as f:
            f.write(text.replace("ws_heartbeat_sec = 3600", "ws_heartbeat_sec = 1"))
        a.proc.send_signal(signal.SIGHUP)
        while "configuration reloaded" not in a.errors():
            a.metric("sandbox_ws_heartbeats_sent_total")
        for w in (self.ws(a, run, "?from_seq=99"), first):
            self.assertEqual(w.recv()["type"], "heartbeat")


class DroppedEvents(HoldCase):
    """The kernel keeps so many events of files for a process, and then only says that there were more."""

    def flood(self, a, run):
        with open("/proc/sys/fs/inotify/max_queued_events") as f:
            most = int(f.read())
        names = [os.path.join(a.state, "runs", run, n) for n in ("x", "y")]
        fds = [os.open(n, os.O_WRONLY | os.O_CREAT) for n in names]
        for i in range(most + 10):
            os.write(fds[i % 2], b".")
        for fd, name in zip(fds, names):
            os.close(fd)
            os.unlink(name)

    def log(self, a, run):
        try:
            with open(os.path.join(a.state, "runs", run, "log"), "rb") as f:
                return f.read()
        except FileNotFoundError:
            return b""

    def test_nothing_is_missed(self):
        a = self.door()
        loud, early, silent = (self.run_(a, c) for c in (
            "echo early; cat", "echo early; sleep 5; echo late; cat", "sleep 5; echo late; read x; echo \"got $x\"; cat"))
        streams = {r: self.ws(a, r) for r in (loud, early, silent)}
        for run in (loud, early):
            streams[run].until(wsclient.says("early"))
        streams[silent].until(wsclient.is_event("start"))
        a.proc.send_signal(signal.SIGSTOP)
        try:
            self.flood(a, loud)
            while b"late" not in self.log(a, early) or b"late" not in self.log(a, silent):
                api.wait_until(time.CLOCK_MONOTONIC, time.monotonic() + 0.1)
        finally:
            a.proc.send_signal(signal.SIGCONT)
        streams[early].until(wsclient.says("late"))
        streams[silent].until(wsclient.says("late"))
        # From then on it is watched as any other.
        streams[silent].stdin("this\n")
        streams[silent].until(wsclient.says("got this"))


class NoWatches(HoldCase):
    """A second door in a user namespace, where the kernel has as many watches as we say."""

    def limited_door(self, a):
        enter = subprocess.run(["unshare", "-Ur", "true"], stderr=subprocess.DEVNULL, check=False)
        if enter.returncode:
            self.skipTest("no user namespace can be made")
        b = wskit.Apid(**LONG)
        b.state = a.state
        program = os.path.join(b.base, "apid")
        with open(program, "w") as f:
            f.write('#!/bin/sh\nexec unshare -Ur "%s" --workers 0 "$@"\n' % wskit.APID)
        os.chmod(program, 0o755)
        with unittest.mock.patch.object(wskit, "APID", program):
            b.start()
        self.addCleanup(self.close, b)
        # It says where it listens before it has all its watches, and answers when it has them.
        self.assertEqual(b.request("GET", wskit.BASE + "/health/public")[0], 200)
        return b

    def close(self, b):
        self.assertEqual(b.stop(), 0, b.errors())
        b.reader.join()
        b.proc.stderr.close()
        shutil.rmtree(b.base)

    def no_more(self, b):
        used, fds = 0, "/proc/%d/fdinfo" % b.proc.pid
        for fd in os.listdir(fds):
            with contextlib.suppress(FileNotFoundError), open(os.path.join(fds, fd)) as f:
                used += f.read().count("inotify wd:")
        subprocess.run(["nsenter", "-U", "-t", str(b.proc.pid), "sh", "-c",
                        "echo %d > /proc/sys/user/max_inotify_watches" % used], check=True)

    def test_logs_are_followed_without(self):
        a = self.door()
        b = self.limited_door(a)
        run = self.run_(a, "read x; echo \"one $x\"; read x; echo \"two $x\"; cat")
        self.no_more(b)
        w = self.ws(b, run)
        w.until(wsclient.is_event("start"))
        for text in ("one", "two"):
            w.stdin("line\n")
            w.until(wsclient.says(text + " line"))


class BehindTheEnd(HoldCase):
    SIZE = 40000

    def test_input_costs_no_frames(self):
        """A masked message can end with the bytes of a close frame."""
        a = self.door()
        run = a.run("head -c %d /dev/zero | tr '\\0' x" % self.SIZE)
        a.wait(run)
        w = self.ws(a, run, rcvbuf=2304)
        while a.metric("sandbox_ws_disconnects_total") < 1:
            pass
        key, text = b"\0\0\xc9\xc1", b"A" * 20
        wire = bytes(c ^ key[i & 3] for i, c in enumerate(text))
        self.assertEqual(wire[14:16], b"\x88\x80")
        w.sock.sendall(b"\x81\x94" + key + wire)
        for _ in range(10):
            api.wait_until(time.CLOCK_MONOTONIC, time.monotonic() + 0.1)
            w.send(wsclient.PING, b"x")
        frames, code = w.frames()
        self.assertEqual((len(wsclient.output(frames)), code), (self.SIZE, 1000))


class Flood(HoldCase):
    SOCKETS = 40

    def test_many_small_messages_do_not_hold_up_others(self):
        a = self.door(ws_max_connections_per_run=0)
        victim = self.ws(a, self.run_(a, "while sleep 0.2; do echo x; done"))
        victim.until(wsclient.says("x"))
        run = self.run_(a, "sleep 600")
        flood = b"".join(wsclient.frame(wsclient.TEXT, b'{"type":"stdin","data":"x"}') for _ in range(2000))
        over = threading.Event()

        def send(w):
            with w:
                while not over.is_set():
                    with contextlib.suppress(TimeoutError):
                        w.sock.send(flood)

        threads = [threading.Thread(target=send, args=(a.ws(run, timeout=0.5),)) for _ in range(self.SOCKETS)]
        for t in threads:
            t.start()
        try:
            came = [time.monotonic()]
            while came[-1] - came[0] < 6:
                victim.recv()
                came.append(time.monotonic())
        finally:
            over.set()
            for t in threads:
                t.join()
        self.assertLess(max(y - x for x, y in zip(came, came[1:])), 1.5 * sbx.SLOW)


if __name__ == "__main__":
    sbx.main()
