# SPDX-License-Identifier: Apache-2.0
"""Acting on a run that is going: ctl and stdin."""
import base64
import errno
import hashlib
import os
import random
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import fskit  # noqa: E402
import sbx  # noqa: E402


class ControlCase(sbx.Case):
    def start(self, command, wait_for=None, **spec):
        if isinstance(command, str):
            command = ["sh", "-c", command]
        run = self.m.submit(dict({"command": command, "spec_version": "1.1"}, **spec))
        self.addCleanup(self.end, run)
        run.wait_phase("running")
        if wait_for:
            run.stream_until(wait_for)
        return run

    def end(self, run):
        if run.status() not in sbx.TERMINAL:
            run.ctl("kill")
            run.wait()

    def say(self, run, data):
        with open(run.path("stdin"), "wb", buffering=0) as f:
            self.assertEqual(f.write(data), len(data))

    def assertErrno(self, number, fn, *args):
        with self.assertRaises(OSError) as c:
            fn(*args)
        self.assertEqual(errno.errorcode[c.exception.errno], errno.errorcode[number])


class Ctl(ControlCase):
    def test_cancel_is_term_first(self):
        run = self.start("trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.1; done", b"ready")
        run.ctl("cancel\n")
        run.wait()
        self.assertEqual(run.status(), "killed")
        self.assertEqual(run.json()["status_reason_code"], "canceled_by_user")
        self.assertIn(b"bye\n", run.stdout)

    def test_kill_does_not_ask(self):
        run = self.start("trap 'echo bye' TERM; echo ready; while :; do sleep 0.1; done", b"ready")
        run.ctl("kill")
        self.assertEqual(run.wait(), "killed")
        self.assertNotIn(b"bye", run.stdout)

    def test_echo_in_every_shell(self):
        for sh in (["dash"], ["bash"], ["busybox", "sh"]):
            run = self.start(["sleep", "100"])
            p = fskit.shell(self.m, 'echo kill > "$MNT/runs/%s/ctl"' % run.id, sh=sh)
            self.assertEqual((p.returncode, p.stderr), (0, b""))
            self.assertEqual(run.wait(), "killed")

    def test_signal_by_name_and_number(self):
        run = self.start("trap 'echo usr1' USR1; trap 'echo usr2' USR2; trap 'echo hup' HUP; echo ready;"
                         "while :; do sleep 0.05; done", b"ready")
        for text, word in (("signal USR1", b"usr1"), ("signal SIGUSR2\n", b"usr2"), ("  signal   1 \n", b"hup")):
            run.ctl(text)
            run.stream_until(word)
        self.assertEqual(run.status(), "running")

    def test_signal_that_ends_it_is_no_cancel(self):
        run = self.start(["sleep", "100"])
        run.ctl("signal TERM")
        self.assertEqual(run.wait(), "143")
        self.assertEqual((run.status(), run.json()["status_reason_code"]), ("failed", "nonzero_exit"))

    def test_stop_and_cont(self):
        run = self.start("echo a; read x; echo b", b"a\n", interactive=True)
        run.ctl("signal STOP")
        run.ctl("signal CONT")
        self.say(run, b"\n")
        self.assertEqual(run.wait(), "0")

    def test_cancel_reaches_a_stopped_run(self):
        run = self.start(["sleep", "100"])
        run.ctl("signal STOP")
        run.ctl("kill")
        self.assertEqual(run.wait(), "killed")

    def test_what_is_no_command(self):
        run = self.start(["sleep", "100"])
        for bad in ("", "stop", "cancel now", "kill 9", "CANCEL", "signal", "signal NONE", "signal 0", "signal 65",
                    "signal -9", "signal TERM KILL", "eof now", "x" * 5000, "cancel\0", "signal TERM\0"):
            if bad:
                with self.subTest(bad=bad[:30]):
                    self.assertErrno(errno.EINVAL, run.ctl, bad)
        self.assertEqual(run.status(), "running")

    def test_builtin_echo_sees_the_refusal(self):
        run = self.start(["sleep", "100"])
        for sh in (["dash"], ["bash"], ["busybox", "sh"]):
            p = fskit.shell(self.m, 'echo nonsense > "$MNT/runs/%s/ctl"' % run.id, sh=sh)
            self.assertNotEqual(p.returncode, 0)

    def test_append_and_seek_mean_nothing(self):
        run = self.start("trap 'echo usr1' USR1; echo ready; while :; do sleep 0.05; done", b"ready")
        fd = os.open(run.path("ctl"), os.O_WRONLY | os.O_APPEND)
        try:
            os.write(fd, b"signal USR1\n")
            run.stream_until(b"usr1\n")
            self.assertErrno(errno.ESPIPE, os.lseek, fd, 0, os.SEEK_SET)
            os.write(fd, b"kill\n")
        finally:
            os.close(fd)
        self.assertEqual(run.wait(), "killed")

    def test_after_the_end(self):
        run = self.m.run({"command": ["true"]})
        self.assertErrno(errno.EPIPE, run.ctl, "signal TERM")
        self.assertErrno(errno.EPIPE, run.ctl, "eof")
        # Ending what has ended is what was wanted.
        run.ctl("cancel")
        run.ctl("kill")
        self.assertEqual(run.status(), "completed")

    def test_eof_of_a_run_that_takes_no_input(self):
        run = self.start(["sleep", "100"])
        self.assertErrno(errno.EPERM, run.ctl, "eof")

    def test_is_write_only(self):
        run = self.start(["sleep", "100"])
        self.assertEqual(os.stat(run.path("ctl")).st_mode & 0o777, 0o200)
        self.assertEqual(os.stat(run.path("ctl")).st_size, 0)
        with open(run.path("ctl"), "rb") as f:  # root may open it all the same
            self.assertEqual(f.read(), b"")
        self.assertEqual(run.status(), "running")

    def test_truncation_is_no_command(self):
        run = self.start(["sleep", "100"])
        os.truncate(run.path("ctl"), 0)
        fskit.shell(self.m, ': > "$MNT/runs/%s/ctl"' % run.id)
        self.assertEqual(run.status(), "running")

    def test_cancel_of_a_queued_run(self):
        with sbx.Mount(opts=["workers=0"]) as m:
            run = m.submit({"command": ["true"]})
            run.ctl("cancel")
            self.assertEqual((run.wait(), run.status()), ("killed", "killed"))
            self.assertEqual(run.json()["status_reason_code"], "canceled_by_user")

    def test_twenty_cancels_at_once(self):
        runs = [self.start(["sleep", "100"]) for _ in range(5)]
        threads = [threading.Thread(target=r.ctl, args=("kill",)) for r in runs for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual([r.wait() for r in runs], ["killed"] * 5)


class Stdin(ControlCase):
    def test_bytes_are_exact_and_eof_ends(self):
        data = random.Random(1).randbytes(300000) + b"\0\n\r\n\xff"
        run = self.start("sha256sum; echo done", interactive=True)
        for at in range(0, len(data), 7777):
            self.say(run, data[at:at + 7777])
        run.ctl("eof")
        self.assertEqual(run.wait(), "0")
        self.assertEqual(run.stdout, hashlib.sha256(data).hexdigest().encode() + b"  -\ndone\n")

    def test_cat_of_a_large_file(self):
        run = self.start("wc -c", interactive=True)
        p = fskit.shell(self.m, 'head -c 3000000 /dev/zero > "$MNT/runs/%s/stdin" && echo eof > "$MNT/runs/%s/ctl"'
                        % (run.id, run.id))
        self.assertEqual((p.returncode, p.stderr), (0, b""))
        self.assertEqual((run.wait(), run.stdout), ("0", b"3000000\n"))

    def test_conversation(self):
        run = self.start(["python3", "-uc", "while True: print(eval(input()))"], interactive=True)
        for q, a in ((b"6*7\n", b"42\n"), (b"'a'*3\n", b"aaa\n"), (b"2**64\n", b"18446744073709551616\n")):
            self.say(run, q)
            run.stream_until(a)

    def test_closing_the_descriptor_is_no_end_of_input(self):
        run = self.start("read a; echo \"$a\"; read b; echo \"$b\"", interactive=True)
        self.say(run, b"one\n")
        run.stream_until(b"one\n")
        self.assertEqual(run.status(), "running")
        self.say(run, b"two\n")
        self.assertEqual((run.wait(), run.stdout), ("0", b"one\ntwo\n"))

    def test_writes_keep_their_order_and_do_not_mix(self):
        run = self.start("cat", interactive=True)

        def work(n):
            fd = os.open(run.path("stdin"), os.O_WRONLY)
            for i in range(50):
                os.write(fd, b"%d:%d:%s\n" % (n, i, b"x" * 100))
            os.close(fd)
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        run.ctl("eof")
        run.wait()
        lines = run.stdout.splitlines()
        self.assertEqual(len(lines), 200)
        self.assertTrue(all(x.endswith(b":" + b"x" * 100) for x in lines))
        for n in range(4):
            mine = [int(x.split(b":")[1]) for x in lines if x.startswith(b"%d:" % n)]
            self.assertEqual(mine, list(range(50)))

    def test_eof_in_front_of_the_first_byte(self):
        run = self.start("wc -c", interactive=True)
        run.ctl("eof")
        self.assertEqual((run.wait(), run.stdout), ("0", b"0\n"))

    def test_input_that_arrives_before_the_start(self):
        run = self.m.submit({"command": ["cat"], "interactive": True, "spec_version": "1.1"})
        self.addCleanup(self.end, run)
        self.say(run, b"early\n")
        run.ctl("eof")
        self.assertEqual((run.wait(), run.stdout), ("0", b"early\n"))

    def test_stdin_b64_comes_first(self):
        run = self.start("cat", interactive=True, stdin_b64=base64.b64encode(b"given\n").decode())
        self.say(run, b"typed\n")
        run.ctl("eof")
        self.assertEqual((run.wait(), run.stdout), ("0", b"given\ntyped\n"))

    def test_stdin_b64_alone_ends_by_itself(self):
        data = random.Random(2).randbytes(200000)
        run = self.m.run({"command": ["sha256sum"], "stdin_b64": base64.b64encode(data).decode()})
        self.assertEqual((run.exit, run.stdout), ("0", hashlib.sha256(data).hexdigest().encode() + b"  -\n"))

    def test_without_input_it_is_at_its_end(self):
        self.assertEqual(self.m.run({"command": ["wc", "-c"]}).stdout, b"0\n")

    def test_run_that_is_not_interactive_has_no_stdin(self):
        run = self.start(["sleep", "100"])
        self.assertFalse(os.path.exists(run.path("stdin")))
        self.assertNotIn("stdin", os.listdir(run.dir))

    def test_write_after_the_end_is_epipe(self):
        run = self.m.run({"command": ["true"], "interactive": True, "spec_version": "1.1"})
        self.assertErrno(errno.EPIPE, self.say, run, b"x")

    def test_open_descriptor_after_the_end_is_epipe(self):
        run = self.start("read x", interactive=True)
        fd = os.open(run.path("stdin"), os.O_WRONLY)
        try:
            os.write(fd, b"\n")
            run.wait()
            self.assertErrno(errno.EPIPE, os.write, fd, b"x")
        finally:
            os.close(fd)

    def test_largest_frame(self):
        run = self.start("cat", interactive=True, stdin_max_frame_bytes=10)
        self.say(run, b"0123456789")
        self.assertErrno(errno.EFBIG, self.say, run, b"0123456789a")
        run.ctl("eof")
        self.assertEqual((run.wait(), run.stdout), ("0", b"0123456789"))

    def test_most_in_all(self):
        run = self.start("cat", interactive=True, stdin_max_bytes=10)
        self.say(run, b"01234")
        self.assertErrno(errno.ENOSPC, self.say, run, b"012345")
        self.say(run, b"56789")
        self.assertErrno(errno.ENOSPC, self.say, run, b"x")
        run.ctl("eof")
        self.assertEqual((run.wait(), run.stdout), ("0", b"0123456789"))

    def test_bytes_per_second(self):
        run = self.start("cat", interactive=True, stdin_bps=2000)
        self.say(run, b"x" * 3000)
        run.ctl("eof")
        self.assertEqual(run.wait(), "0")
        self.assertEqual(run.stdout, b"x" * 3000)
        times = [f["ts"] for f in run.frames() if f["type"] == "stdout"]
        self.assertGreater(len(times), 1, "all at once")

    def test_idle_input_ends(self):
        run = self.start("cat; echo ended", interactive=True, stdin_idle_timeout_sec=1)
        self.say(run, b"a\n")
        self.assertEqual((run.wait(), run.stdout), ("0", b"a\nended\n"))

    def test_command_that_does_not_read_does_not_block_the_writer(self):
        run = self.start(["sleep", "100"], interactive=True)
        for _ in range(20):
            self.say(run, b"x" * 100000)
        self.assertEqual(run.status(), "running")


if __name__ == "__main__":
    sbx.main()
