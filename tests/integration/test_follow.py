# SPDX-License-Identifier: Apache-2.0
"""Following what happens: reads that wait, poll, interrupts, and tools that must never hang on them."""
import errno
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import fskit  # noqa: E402
import sbx  # noqa: E402

# Says a line for each line of input, and ends with the input.
ECHO = {"command": ["sh", "-c", "while read x; do echo \"got $x\"; done; exit 7"], "interactive": True,
        "spec_version": "1.1"}


class FollowCase(sbx.Case):
    def start(self, spec=None):
        run = self.m.submit(spec or ECHO)
        self.addCleanup(self.end, run)
        run.wait_phase("running")
        return run

    def end(self, run):
        if run.status() not in sbx.TERMINAL:
            run.ctl("kill")
            run.wait()

    def say(self, run, text):
        with open(run.path("stdin"), "wb", buffering=0) as f:
            f.write(text)

    def open(self, path, flags=os.O_RDONLY):
        fd = os.open(path, flags)
        self.addCleanup(os.close, fd)
        return fd

    def events(self, after=None):
        e = fskit.Events(self.m, after)
        self.addCleanup(os.close, e.fd)
        return e

    def cat(self, path):
        """A reader that is known to be waiting."""
        p = subprocess.Popen(["cat", path], stdout=subprocess.PIPE)
        self.addCleanup(p.wait)
        self.addCleanup(p.stdout.close)
        fskit.blocked_in_read(p.pid)
        return p


class Wait(FollowCase):
    def test_gives_the_exit_code_when_the_run_ends(self):
        run = self.start()
        reader = self.cat(run.path(".wait"))
        self.assertIsNone(reader.poll())
        run.ctl("eof")
        self.assertEqual(reader.communicate(timeout=20 * sbx.SLOW)[0], b"7\n")

    def test_gives_the_phase_when_there_is_no_exit_code(self):
        run = self.start()
        reader = self.cat(run.path(".wait"))
        run.ctl("kill")
        self.assertEqual(reader.communicate(timeout=20 * sbx.SLOW)[0], b"killed\n")

    def test_answers_at_once_after_the_end(self):
        run = self.m.run({"command": ["sh", "-c", "exit 9"]})
        for _ in range(2):
            self.assertEqual(subprocess.run(["cat", run.path(".wait")], stdout=subprocess.PIPE,
                                            timeout=20 * sbx.SLOW).stdout, b"9\n")

    def test_byte_by_byte_then_the_end(self):
        run = self.m.run({"command": ["sh", "-c", "exit 123"]})
        fd = self.open(run.path(".wait"))
        got = []
        while piece := os.read(fd, 1):
            got.append(piece)
        self.assertEqual(got, [b"1", b"2", b"3", b"\n"])

    def test_nonblocking_is_eagain_until_the_end(self):
        run = self.start()
        fd = self.open(run.path(".wait"), os.O_RDONLY | os.O_NONBLOCK)
        with self.assertRaises(BlockingIOError):
            os.read(fd, 10)
        run.ctl("eof")
        self.assertTrue(fskit.readable(fd, 20 * sbx.SLOW))
        self.assertEqual(os.read(fd, 10), b"7\n")

    def test_poll_says_nothing_before_the_end(self):
        run = self.start()
        fd = self.open(run.path(".wait"))
        self.assertFalse(fskit.readable(fd, 0))
        run.ctl("eof")
        self.assertTrue(fskit.readable(fd, 20 * sbx.SLOW) & select.POLLIN)

    def test_epoll_over_many_runs(self):
        runs = [self.start() for _ in range(5)]
        ep = select.epoll()
        self.addCleanup(ep.close)
        fds = {self.open(r.path(".wait"), os.O_RDONLY | os.O_NONBLOCK): r for r in runs}
        for fd in fds:
            ep.register(fd, select.EPOLLIN | select.EPOLLET)
        self.assertEqual(ep.poll(0), [])
        runs[3].ctl("eof")
        got = ep.poll(20 * sbx.SLOW)
        self.assertEqual([fds[fd].id for fd, _ in got], [runs[3].id])

    def test_queued_run_that_is_cancelled(self):
        with sbx.Mount(opts=["workers=0"]) as m:
            run = m.submit({"command": ["true"]})
            reader = self.cat(run.path(".wait"))
            run.ctl("cancel")
            self.assertEqual(reader.communicate(timeout=20 * sbx.SLOW)[0], b"killed\n")

    def test_status_is_terminal_when_it_answers(self):
        run = self.start()
        reader = self.cat(run.path(".wait"))
        run.ctl("eof")
        reader.wait(20 * sbx.SLOW)
        self.assertEqual((run.status(), run.read("exit_code")), ("failed", b"7\n"))


class Stream(FollowCase):
    def test_lines_come_while_the_run_goes_on(self):
        run = self.start()
        for word in (b"one", b"two"):
            self.say(run, word + b"\n")
            self.assertIn(b"got " + word + b"\n", run.stream_until(b"got " + word + b"\n"))
        self.assertEqual(run.status(), "running")

    def test_whole_stream_is_log_ndjson(self):
        run = self.start()
        follower = self.cat(run.path(".stream"))
        self.say(run, b"a\nb\nc\n")
        run.ctl("eof")
        text = follower.communicate(timeout=20 * sbx.SLOW)[0]
        self.assertEqual(text, run.read("log.ndjson"))
        self.assertEqual(json.loads(text.splitlines()[-1])["event"], "end")

    def test_reader_that_comes_after_the_end_gets_the_same(self):
        run = self.m.run({"command": ["echo", "hi"]})
        self.assertEqual(subprocess.run(["cat", run.path(".stream")], stdout=subprocess.PIPE,
                                        timeout=20 * sbx.SLOW).stdout, run.read("log.ndjson"))

    def test_small_reads_lose_nothing(self):
        run = self.start()
        got, fd = b"", self.open(run.path(".stream"))
        self.say(run, b"abc\n")
        run.ctl("eof")
        while piece := os.read(fd, 7):
            got += piece
        self.assertEqual(got, run.read("log.ndjson"))

    def test_nonblocking_is_eagain_at_the_end_of_what_there_is(self):
        run = self.start()
        fd = self.open(run.path(".stream"), os.O_RDONLY | os.O_NONBLOCK)
        with self.assertRaises(BlockingIOError):
            while os.read(fd, 65536):
                pass
        self.say(run, b"x\n")
        self.assertTrue(fskit.readable(fd, 20 * sbx.SLOW))
        self.assertIn(b"got x", os.read(fd, 65536))

    def test_edge_triggered_epoll_wakes_on_every_growth(self):
        run = self.start()
        fd = self.open(run.path(".stream"), os.O_RDONLY | os.O_NONBLOCK)
        ep = select.epoll()
        self.addCleanup(ep.close)
        ep.register(fd, select.EPOLLIN | select.EPOLLET)
        seen = b""
        for i in range(5):
            word = b"got %d" % i
            self.say(run, b"%d\n" % i)
            while word not in seen:
                self.assertTrue(ep.poll(20 * sbx.SLOW), seen)
                try:
                    while piece := os.read(fd, 65536):
                        seen += piece
                except BlockingIOError:
                    pass

    def test_many_followers_all_get_everything(self):
        run = self.start()
        followers = [subprocess.Popen(["cat", run.path(".stream")], stdout=subprocess.PIPE) for _ in range(20)]
        self.say(run, b"".join(b"%d\n" % i for i in range(500)))
        run.ctl("eof")
        texts = {p.communicate(timeout=30 * sbx.SLOW)[0] for p in followers}
        self.assertEqual(texts, {run.read("log.ndjson")})
        self.assertEqual(run.stdout, b"".join(b"got %d\n" % i for i in range(500)))

    def test_queued_run_that_is_cancelled_ends_the_stream(self):
        with sbx.Mount(opts=["workers=0"]) as m:
            run = m.submit({"command": ["true"]})
            follower = self.cat(run.path(".stream"))
            run.ctl("cancel")
            text = follower.communicate(timeout=20 * sbx.SLOW)[0]
            self.assertEqual(json.loads(text.splitlines()[-1])["event"], "end")

    def test_tail_f_of_stdout(self):
        run = self.start()
        self.say(run, b"first\n")
        run.stream_until(b"got first\n")
        with subprocess.Popen(["tail", "-n", "+1", "-f", run.path("stdout")], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL) as tail:
            try:
                self.assertEqual(tail.stdout.readline(), b"got first\n")
                self.say(run, b"second\n")
                self.assertEqual(tail.stdout.readline(), b"got second\n")
            finally:
                tail.terminate()


class Status(FollowCase):
    def test_poll_reports_a_change_as_pollpri(self):
        run = self.start()
        fd = self.open(run.path("status"))
        self.assertFalse(fskit.readable(fd, 0, select.POLLPRI))
        run.ctl("eof")
        self.assertTrue(fskit.readable(fd, 20 * sbx.SLOW, select.POLLPRI) & select.POLLPRI)
        self.assertEqual(run.status(), "failed")

    def test_is_always_readable(self):
        run = self.start()
        self.assertTrue(fskit.readable(self.open(run.path("status")), 0))

    def test_two_hundred_pollers_all_wake(self):
        run = self.start()
        ep = select.epoll()
        self.addCleanup(ep.close)
        fds = {self.open(run.path("status")) for _ in range(200)}
        for fd in fds:
            ep.register(fd, select.EPOLLPRI | select.EPOLLET)
        self.assertEqual(ep.poll(0), [])
        run.ctl("eof")
        woken = set()
        while woken != fds:
            got = ep.poll(20 * sbx.SLOW, 1000)
            self.assertTrue(got, "only %d of %d woke" % (len(woken), len(fds)))
            woken |= {fd for fd, what in got if what & select.EPOLLPRI}


class EventsNode(FollowCase):
    def test_phases_of_a_run_in_order(self):
        ev = self.events()
        run = self.m.run({"command": ["sleep", "0.5"]})
        ev.wait(lambda e: e["id"] == run.id and e["phase"] == "completed")
        mine = [e for e in ev.lines if e["id"] == run.id]
        self.assertEqual((mine[0]["what"], mine[0]["kind"]), ("new", "run"))
        phases = [e["phase"] for e in mine]
        order = ["queued", "starting", "running", "completed"]
        self.assertEqual(phases, sorted(phases, key=order.index))
        self.assertIn("running", phases)
        seqs = [e["seq"] for e in ev.lines]
        self.assertEqual(seqs, sorted(set(seqs)))

    def test_begins_now(self):
        self.m.run({"command": ["true"]})
        with self.assertRaises(BlockingIOError):
            os.read(self.events().fd, 100)

    def test_resume_behind_a_seq(self):
        first = self.events()
        a = self.m.run({"command": ["true"]})
        b = self.m.run({"command": ["true"]})
        first.wait(lambda e: e["id"] == b.id and e["phase"] == "completed")
        cut = first.lines[2]["seq"]
        again = self.events(after=cut)
        again.wait(lambda e: e["id"] == b.id and e["phase"] == "completed")
        self.assertEqual(again.lines, first.lines[3:])
        self.assertLessEqual({a.id, b.id}, {e["id"] for e in first.lines})

    def test_resume_in_shell(self):
        ev = self.events()
        run = self.m.run({"command": ["true"]})
        at = ev.wait(lambda e: e["id"] == run.id and e["what"] == "new")["seq"]
        out = fskit.shell(self.m, 'exec 3<>"$MNT/.events"; echo %d >&3; head -n 1 <&3' % (at - 1)).stdout
        self.assertEqual(json.loads(out)["id"], run.id)

    def test_blocked_reader_is_woken(self):
        reader = self.cat(os.path.join(self.m.mnt, ".events"))
        run = self.m.submit({"command": ["true"]})
        self.assertEqual(json.loads(reader.stdout.readline())["id"], run.id)
        reader.kill()

    def test_poll(self):
        ev = self.events()
        self.assertFalse(fskit.readable(ev.fd, 0))
        self.m.submit({"command": ["true"]})
        self.assertTrue(fskit.readable(ev.fd, 20 * sbx.SLOW))

    def test_small_reads_lose_nothing(self):
        ev = self.events()
        run = self.m.run({"command": ["true"]})
        ev.wait(lambda e: e["id"] == run.id and e["phase"] == "completed")
        fd = self.open(os.path.join(self.m.mnt, ".events"), os.O_RDWR | os.O_NONBLOCK)
        os.write(fd, b"%d\n" % (ev.lines[0]["seq"] - 1))
        got = b""
        try:
            while True:
                got += os.read(fd, 11)
        except BlockingIOError:
            pass
        self.assertEqual([json.loads(x) for x in got.splitlines()][:len(ev.lines)], ev.lines)

    def test_what_is_no_seq_is_refused(self):
        fd = self.open(os.path.join(self.m.mnt, ".events"), os.O_RDWR | os.O_NONBLOCK)
        for bad in (b"x\n", b"-1\n", b"1x\n", b"", b"1" * 40):
            with self.subTest(bad=bad):
                if bad:
                    with self.assertRaises(OSError) as c:
                        os.write(fd, bad)
                    self.assertEqual(c.exception.errno, errno.EINVAL)

    def test_seq_survives_a_restart(self):
        with sbx.Mount() as m:
            with fskit.Events(m) as ev:
                a = m.run({"command": ["true"]})
                ev.wait(lambda e: e["id"] == a.id and e["phase"] == "completed")
                lines = list(ev.lines)
            m.stop()
            m.start()
            with fskit.Events(m, after=lines[0]["seq"] - 1) as ev:
                ev.wait(lambda e: e["id"] == a.id and e["phase"] == "completed")
                self.assertEqual(ev.lines[:len(lines)], lines)


class Interrupt(FollowCase):
    def test_sigint_ends_a_blocked_read(self):
        run = self.start()
        for node in (run.path(".wait"), run.path(".stream"), os.path.join(self.m.mnt, ".events")):
            with self.subTest(node=node):
                reader = self.cat(node)
                reader.send_signal(signal.SIGINT)
                self.assertEqual(fskit.wait_exit(reader), -signal.SIGINT)

    def test_sigkill_ends_a_blocked_read(self):
        run = self.start()
        reader = self.cat(run.path(".wait"))
        reader.kill()
        self.assertEqual(fskit.wait_exit(reader), -signal.SIGKILL)

    def test_handler_sees_eintr(self):
        run = self.start()

        def read():
            libc_read = sbx.libc.read
            signal.signal(signal.SIGUSR1, lambda *a: None)
            signal.siginterrupt(signal.SIGUSR1, True)
            buf = sbx.ctypes.create_string_buffer(10)
            fd = os.open(run.path(".wait"), os.O_RDONLY)
            return 0 if libc_read(fd, buf, 10) == -1 and sbx.ctypes.get_errno() == errno.EINTR else 3
        with fskit.Child(read) as child:
            fskit.blocked_in_read(child.pid)
            child.signal(signal.SIGUSR1)
            self.assertEqual(child.wait(), 0)

    def test_interrupted_reader_does_not_disturb_the_others(self):
        run = self.start()
        a, b = self.cat(run.path(".wait")), self.cat(run.path(".wait"))
        a.send_signal(signal.SIGINT)
        fskit.wait_exit(a)
        run.ctl("eof")
        self.assertEqual(b.communicate(timeout=20 * sbx.SLOW)[0], b"7\n")

    def test_timeout_command(self):
        run = self.start()
        p = subprocess.run(["timeout", "0.2", "cat", run.path(".wait")], timeout=20 * sbx.SLOW)
        self.assertEqual(p.returncode, 124)

    def test_storm_of_interrupts_leaks_no_descriptor(self):
        run = self.start()

        def count():
            return len(os.listdir("/proc/%d/fd" % self.m.proc.pid))
        # The store may open its other connections as late as now; a leak would be some of 25 logs.
        spare = 8
        for _ in range(2):  # the first round warms up what is kept open
            before = count()
            readers = [subprocess.Popen(["cat", run.path(n)], stdout=subprocess.DEVNULL)
                       for n in (".wait", ".stream") * 25]
            for i, p in enumerate(readers):
                fskit.blocked_in_read(p.pid)
                p.send_signal(signal.SIGINT if i % 2 else signal.SIGKILL)
            for p in readers:
                fskit.wait_exit(p)
            # RELEASE comes some time after the death of a process, and tells nobody.
            end = sbx.time.monotonic() + 20 * sbx.SLOW
            while count() > before + spare and sbx.time.monotonic() < end:
                os.sched_yield()
        self.assertLessEqual(count(), before + spare)
        self.say(run, b"still there\n")
        run.stream_until(b"got still there\n")


class Crowd(FollowCase):
    READERS = 600

    def test_blocked_readers_do_not_hold_up_anybody(self):
        """Ten blocked handlers would wedge a server with a thread for each request."""
        run = self.start()
        answers, lock = [], threading.Lock()

        def read(node):
            with open(run.path(node), "rb", buffering=0) as f:
                data = f.read(100) if node == ".wait" else b"".join(iter(lambda: f.read(65536), b""))
            with lock:
                answers.append((node, data))
        old = threading.stack_size(256 << 10)
        try:
            threads = [threading.Thread(target=read, args=(".wait" if i % 3 else ".stream",))
                       for i in range(self.READERS)]
            for t in threads:
                t.start()
        finally:
            threading.stack_size(old)
        # Work goes on beside them.
        self.assertIn(run.id, os.listdir(os.path.join(self.m.mnt, "runs")))
        self.assertEqual(os.stat(run.path("status")).st_size, 8)
        self.assertEqual(self.m.run({"command": ["echo", "beside"]}).stdout, b"beside\n")
        self.assertEqual(answers, [])
        subprocess.run(["ls", "-la", run.dir], stdout=subprocess.DEVNULL, check=True, timeout=20 * sbx.SLOW)
        run.ctl("eof")
        for t in threads:
            t.join(30 * sbx.SLOW)
            self.assertFalse(t.is_alive())
        stream = run.read("log.ndjson")
        self.assertEqual(len(answers), self.READERS)
        self.assertEqual({a for a in answers}, {(".wait", b"7\n"), (".stream", stream)})


class Recursive(FollowCase):
    """Tools that walk everything, while runs are going on."""

    def tool(self, *argv, ok=(0,)):
        run, before = self.start(), self.m.runs()
        p = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60 * sbx.SLOW)
        self.assertIn(p.returncode, ok, p.stderr)
        # Reading had no effect.
        self.assertEqual(set(self.m.runs()) - set(before), set())
        self.assertEqual(run.status(), "running")
        return p.stdout

    def test_nodes_that_wait_are_not_listed_but_exist(self):
        run = self.start()
        self.assertNotIn(".events", os.listdir(self.m.mnt))
        for name in (".wait", ".stream"):
            self.assertNotIn(name, os.listdir(run.dir))
            self.assertTrue(os.path.isfile(run.path(name)))
        self.assertTrue(os.path.isfile(os.path.join(self.m.mnt, ".events")))

    def test_readme_names_them(self):
        with open(os.path.join(self.m.mnt, "README")) as f:
            text = f.read()
        for name in ("/.events", "/runs/<run>/.wait", "/runs/<run>/.stream"):
            self.assertIn(name, text)

    def test_grep_r(self):
        self.tool("grep", "-r", "no such text", self.m.mnt, ok=(0, 1))

    def test_tar(self):
        self.tool("tar", "cf", "/dev/null", "--ignore-failed-read", "-C", self.m.mnt, ".", ok=(0, 1))

    def test_tar_that_reads_the_bytes(self):
        with tempfile.TemporaryDirectory() as tmp:
            self.tool("tar", "cf", tmp + "/x.tar", "-C", self.m.mnt, "runs", ok=(0, 1))

    def test_find(self):
        out = self.tool("find", self.m.mnt, "-ls")
        self.assertIn(b"log.ndjson", out)

    def test_du(self):
        self.tool("du", "-a", self.m.mnt)

    def test_rsync(self):
        if not shutil.which("rsync"):
            self.skipTest("no rsync")
        with tempfile.TemporaryDirectory() as tmp:
            self.tool("rsync", "-a", self.m.mnt + "/", tmp + "/x/")
            with open(os.path.join(tmp, "x/README")) as f:
                self.assertIn("runs/new", f.read())

    def test_cp_recursive(self):
        with tempfile.TemporaryDirectory() as tmp:
            self.tool("cp", "-r", self.m.mnt, tmp + "/x")

    def test_diff_recursive(self):
        self.tool("diff", "-r", self.m.mnt + "/runtimes", self.m.mnt + "/runtimes")


if __name__ == "__main__":
    sbx.main()
