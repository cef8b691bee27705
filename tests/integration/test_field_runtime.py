# SPDX-License-Identifier: Apache-2.0
"""Field cases about what a command meets when it runs and how it ends. Each was seen to go wrong in
some service of this kind; the name of a test begins with the number of its case."""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import field  # noqa: E402
import sbx  # noqa: E402
from field import py, sh, spec  # noqa: E402


class F09(field.Case):
    def test_F09_background_child_keeps_stdout_open(self):
        r = self.m.submit(sh("sleep 307 & echo started; exit 4", timeout_sec=60))
        self.ended(r, 4, "nonzero_exit")
        self.assertEqual(r.log, b"started\n")
        self.assertNotIn("sleep 307", field.command_lines())
        self.alive()

    def test_F09_child_in_a_session_of_its_own(self):
        r = self.m.submit(sh("setsid sh -c 'sleep 308; echo late' & echo started; exit 4"))
        self.ended(r, 4, "nonzero_exit")
        self.assertEqual(r.log, b"started\n")
        self.assertNotIn("sleep 308", field.command_lines())


class F10(field.Case):
    settings = {"cancel_grace_seconds": 1}
    PROGRAM = ("import os,signal,time\nsignal.signal(signal.SIGTERM,signal.SIG_IGN)\nif os.fork()==0:\n"
               "  os.setsid()\n  if os.fork()==0:\n    while True:\n"
               "      open('beat','a').write('.'); time.sleep(0.1)\n  os._exit(0)\n"
               "print('up',flush=True)\ntime.sleep(999)")

    def seconds(self, doc):
        return (field_time(doc["finished_at"]) - field_time(doc["started_at"])).total_seconds()

    def test_F10_setsid_double_fork_and_ignored_term(self):
        r = self.m.submit(py(self.PROGRAM, timeout_sec=2, labels={"f10": "a"}))
        r.wait()
        doc = r.json()
        self.assertEqual((doc["phase"], doc["status_reason_code"]), ("timed_out", "execution_timeout"))
        self.assertIsNone(doc["exit_code"])
        self.assertEqual(r.log, b"up\n")
        self.assertNotIn("open('beat'", field.command_lines())
        # TERM is ignored, so the grace of one second is used up; nothing comes early.
        self.assertGreaterEqual(self.seconds(doc), 2)
        self.assertGreaterEqual(doc["resource_usage"]["wall_time_us"], 3000000)

    def test_F10_a_command_that_heeds_term_needs_no_grace(self):
        r = self.m.submit(sh("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done",
                             timeout_sec=1))
        r.wait()
        self.assertEqual(self.reason(r), "execution_timeout")
        self.assertEqual(r.stdout, b"up\nbye\n")

    def test_F10_a_stopped_command_is_ended_too(self):
        r = self.m.submit(sh("echo up; kill -STOP $$; echo on", timeout_sec=1))
        r.wait()
        self.assertEqual(self.reason(r), "execution_timeout")
        self.assertTrue(r.log.startswith(b"up\n"))


def field_time(text):
    import datetime
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", text), text
    return datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ")


class F12ExitCodeTable(field.Case):
    def row(self, command, exit_code, reasons, log=None):
        r = self.m.submit(spec(command=command))
        got = r.wait()
        doc = r.json()
        self.assertIn(doc["exit_code"], exit_code, doc)
        self.assertEqual(got, str(doc["exit_code"]))
        self.assertIn(doc["status_reason_code"], reasons)
        self.assertEqual(doc["phase"], "completed" if doc["exit_code"] == 0 else "failed")
        self.assertEqual(r.read("exit_code"), b"%d\n" % doc["exit_code"])
        self.assertEqual(field.end_frame(r)["exit_code"], doc["exit_code"])
        if log is not None:
            self.assertEqual(r.log, log)
        return r, doc

    def test_F12_exit_7(self):
        self.row(["sh", "-c", "exit 7"], (7,), ("nonzero_exit",), b"")

    def test_F12_exit_255(self):
        self.row(["sh", "-c", "exit 255"], (255,), ("nonzero_exit",), b"")

    def test_F12_exit_256_is_0(self):
        self.row(["python3", "-c", "import sys; sys.exit(256)"], (0,), ("completed",), b"")

    def test_F12_kill_9_of_itself(self):
        _, doc = self.row(["sh", "-c", "kill -9 $$; echo survived"], (137,), ("killed", "nonzero_exit"), b"")
        self.assertIn("signal 9", doc["message"])

    def test_F12_kill_15_of_itself(self):
        self.row(["sh", "-c", "kill -15 $$; echo survived"], (143,), ("killed", "nonzero_exit"), b"")

    def test_F12_segmentation_fault(self):
        self.row(["python3", "-c", "import os;os.kill(os.getpid(),11)"], (139,), ("killed", "nonzero_exit"), b"")

    def test_F12_no_such_program(self):
        _, doc = self.row(["no-such-prog-q"], (127,), ("nonzero_exit",))
        self.assertIn("no-such-prog-q", doc["message"])

    def test_F12_no_such_path(self):
        _, doc = self.row(["/no/such/prog"], (127,), ("nonzero_exit",))
        self.assertIn("/no/such/prog", doc["message"])

    def test_F12_a_folder(self):
        _, doc = self.row(["/usr"], (126,), ("nonzero_exit",))
        self.assertIn("/usr", doc["message"])

    def test_F12_a_file_that_is_not_executable(self):
        r = self.m.run(spec(command=["./f"], files=[{"path": "f", "content_b64": field.b64("#!/bin/sh\n")}]))
        self.assertIn(r.exit, ("0", "126"))
        self.assertEqual(r.json()["exit_code"], int(r.exit))

    def test_F12_interpreter_with_carriage_return(self):
        r, _ = self.row(["sh", "-c", "printf '#!/bin/sh\\r\\necho x\\r\\n' > s; chmod +x s; ./s"], (126, 127),
                        ("nonzero_exit",))
        self.assertIn(b"./s", r.log)


class F13(field.Case):
    def test_F13_without_input_stdin_is_at_its_end(self):
        r = self.m.submit(sh("cat; echo after; [ -t 0 ] && echo tty || echo notty; "
                             "cat <<'Q' > f\nhere\nQ\ncat f"))
        self.ended(r, 0, "completed")
        self.assertEqual(r.log, b"after\nnotty\nhere\n")

    def interactive(self):
        return self.m.submit(sh("wc -c; sleep 0.5; echo tail; if [ -t 1 ]; then stty size; else echo notty; fi",
                                spec_version="1.1", interactive=True))

    def test_F13_end_of_input_does_not_cut_the_output(self):
        r = self.interactive()
        with open(r.path("stdin"), "wb", buffering=0) as f:
            f.write(b"hello")
        r.ctl("eof")
        self.ended(r, 0, "completed")
        self.assertEqual(r.log.replace(b" ", b""), b"5\ntail\nnotty\n")

    def test_F13_closing_the_descriptor_is_not_the_end_of_input(self):
        r = self.interactive()
        for part in (b"he", b"llo"):
            with open(r.path("stdin"), "wb", buffering=0) as f:
                f.write(part)
        self.assertNotIn(r.status(), sbx.TERMINAL)
        r.ctl("eof")
        self.ended(r, 0, "completed")
        self.assertEqual(r.log.split()[0], b"5")

    def test_F13_input_and_its_end_before_the_start(self):
        with sbx.Mount(settings={"max_concurrent_runs": 1, "cancel_grace_seconds": 0}) as m:
            first = m.submit(spec(command=["sleep", "60"]))
            first.wait_phase("running")
            r = m.submit(sh("wc -c", interactive=True))
            self.assertEqual(r.status(), "queued")
            with open(r.path("stdin"), "wb", buffering=0) as f:
                f.write(b"early")
            r.ctl("eof")
            first.ctl("kill")
            self.ended(r, 0, "completed")
            self.assertEqual(r.log.split(), [b"5"])

    def test_F13_no_carriage_return_is_added(self):
        r = self.m.submit(sh("printf 'a\\nb\\n'; printf 'c\\n' >&2"))
        self.ended(r, 0, "completed")
        self.assertEqual((r.stdout, r.stderr), (b"a\nb\n", b"c\n"))


class F14(field.Case):
    SCRIPT = ("yes q | head -n 1; grep -E '^Sig(Blk|Ign)' /proc/self/status; "
              "sh -c 'kill -TERM $$; echo no'; echo rc=$?")

    def check(self, r):
        self.ended(r, 0, "completed")
        out = r.stdout.decode()
        self.assertEqual([line.split() for line in out.splitlines()],
                         [["q"], ["SigBlk:", "0" * 16], ["SigIgn:", "0" * 16], ["rc=143"]])
        self.assertNotIn(b"Broken pipe", r.stderr)

    def test_F14_signals_are_at_their_defaults(self):
        self.check(self.m.submit(sh(self.SCRIPT)))

    def test_F14_also_when_the_service_was_started_with_signals_ignored(self):
        # A service manager, nohup or a shell in the background hands these down.
        prefix = [sys.executable, "-c",
                  "import os,signal,sys\nfor s in ('HUP','INT','QUIT','PIPE','TERM','CHLD','USR1','USR2'):\n"
                  "  n=getattr(signal,'SIG'+s)\n  signal.signal(n,signal.SIG_IGN)\n"
                  "  signal.pthread_sigmask(signal.SIG_BLOCK,[n])\n"
                  "os.execv(sys.argv[1],sys.argv[1:])"]
        with sbx.Mount(prefix=prefix) as m:
            self.check(m.submit(sh(self.SCRIPT)))


class F16(field.Case):
    INSIDE = ("import socket,threading,multiprocessing as m\nfrom multiprocessing import shared_memory as q\n"
              "s=socket.create_server(('127.0.0.1',0))\ndef srv():\n  c,_=s.accept(); c.sendall(b'pong'); c.close()\n"
              "threading.Thread(target=srv).start()\nprint(socket.create_connection(s.getsockname()).recv(9))\n"
              "with m.Pool(2) as p: print(p.map(abs,[-1,2]))\n"
              "b=q.SharedMemory(create=True,size=4096); b.buf[0]=7; print(b.buf[0]); b.close(); b.unlink()")
    OUTSIDE = ("import socket\nfor fam,a in ((socket.AF_INET,('127.0.0.1',%d)),(socket.AF_INET,('%s',%d)),"
               "(socket.AF_UNIX,'\\0fieldcase-%d')):\n  s=socket.socket(fam); s.settimeout(2)\n"
               "  try: s.connect(a); print('REACHED',a)\n  except OSError as e: print('blocked',e.errno)")

    def test_F16_loopback_and_shared_memory_work(self):
        r = self.m.submit(py(self.INSIDE, network_policy="deny_all"))
        self.ended(r, 0, "completed")
        self.assertEqual(r.stdout, b"b'pong'\n[1, 2]\n7\n")

    def test_F16_sockets_of_the_host_are_out_of_reach(self):
        tcp = socket.create_server(("0.0.0.0", 0))
        abstract = socket.socket(socket.AF_UNIX)
        abstract.bind("\0fieldcase-%d" % os.getpid())
        abstract.listen()
        with tcp, abstract:
            port = tcp.getsockname()[1]
            program = self.OUTSIDE % (port, host_address(), port, os.getpid())
            # The same program reaches all of them on the host, or nothing would be shown.
            here = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True).stdout
            self.assertEqual(here.count(b"REACHED"), 3, here)
            r = self.m.submit(py(program, network_policy="deny_all"))
            self.ended(r, 0, "completed")
        lines = r.stdout.splitlines()
        self.assertEqual(len(lines), 3, lines)
        for line in lines:
            self.assertTrue(line.startswith(b"blocked"), line)

    def test_F16_shared_memory_is_empty_for_the_next_run(self):
        for _ in range(3):
            r = self.m.submit(sh("ls -A /dev/shm; echo x > /dev/shm/left; ls -A /dev/shm"))
            self.ended(r, 0, "completed")
            self.assertEqual(r.stdout, b"left\n")


def host_address():
    """An address of this machine that is not loopback, or loopback when there is none."""
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with s:
        try:
            s.connect(("192.0.2.1", 9))  # sends nothing
            return s.getsockname()[0]
        except OSError:
            return "127.0.0.2"


class F17(field.Case):
    ENV = {"ML": "l1\nl2\n", "EQ": "a=b==c", "EMPTY": "", "SP": "  x ", "U": "\u00e9\u4f60", "Q": "'\"$HOME`\\"}
    SHOW = "import os,json;print(json.dumps({k:os.environ.get(k) for k in %r}))"

    def test_F17_values_are_exact(self):
        r = self.m.submit(py(self.SHOW % (tuple(self.ENV),), env=self.ENV))
        self.ended(r, 0, "completed")
        self.assertEqual(json.loads(r.stdout), self.ENV)

    def test_F17_empty_name_is_refused(self):
        self.refused(spec(command=["true"], env={"": "x"}), "invalid_spec", "env")

    def test_F17_name_with_equals_sign_is_refused(self):
        self.refused(spec(command=["true"], env={"A=B": "x"}), "invalid_spec", "env")

    def test_F17_name_with_nul_is_refused(self):
        self.refused(spec(command=["true"], env={"A\0": "x"}), "invalid_spec")

    def test_F17_value_that_is_no_string_is_refused(self):
        for value in (1, True, None, ["x"], {"a": "b"}):
            self.refused(spec(command=["true"], env={"A": value}), "invalid_spec", "env")

    def test_F17_defaults_and_the_spec_wins(self):
        names = ("HOME", "PATH", "PWD")
        r = self.m.submit(py(self.SHOW % (names,)))
        self.ended(r, 0, "completed")
        got = json.loads(r.stdout)
        self.assertEqual((got["HOME"], got["PWD"]), ("/workspace", "/workspace"))
        self.assertIn("/usr/bin", got["PATH"].split(":"))
        own = {"HOME": "/h", "PATH": "/usr/bin:/x", "PWD": "/p"}
        r = self.m.submit(py(self.SHOW % (names,), env=own))
        self.ended(r, 0, "completed")
        self.assertEqual(json.loads(r.stdout), own)

    def test_F17_nothing_of_the_service_comes_along(self):
        with sbx.Mount(env={"FIELD_SECRET": "MARK"}) as m:
            r = m.run(sh("env; cat /proc/1/environ 2>/dev/null; tr '\\0' '\\n' < /proc/self/environ"))
            self.assertEqual(r.exit, "0")
            self.assertNotIn(b"MARK", r.log)
            self.assertNotIn(b"SBX_", r.log)


class F19(field.Case):
    @unittest.skip("would change the clock of this machine; deadlines use the boot clock, see the unit tests")
    def test_F19_clock_steps(self):
        pass

    def test_F19_time_zone_of_the_service_is_not_the_runs(self):
        with sbx.Mount(env={"TZ": "Asia/Kathmandu"}) as m:
            r = m.run(spec(command=["date", "+%z"]))
            self.assertEqual(r.stdout, b"+0000\n")
            r = m.run(spec(command=["date", "+%z"], env={"TZ": "UTC-3"}))
            self.assertEqual(r.stdout, b"+0300\n")
            doc = r.json()
            for name in ("created_at", "started_at", "finished_at"):
                # Says that it is UTC, and is: within an hour of now, where Kathmandu is 5:45 off.
                import datetime
                off = datetime.datetime.utcnow() - field_time(doc[name])
                self.assertLess(abs(off.total_seconds()), 3600, name)
            for frame in r.frames():
                field_time(frame["ts"])

    def test_F19_durations_are_never_negative(self):
        for _ in range(3):
            r = self.m.submit(spec(command=["true"]))
            r.wait()
            doc = r.json()
            self.assertLessEqual(field_time(doc["created_at"]), field_time(doc["started_at"]))
            self.assertLessEqual(field_time(doc["started_at"]), field_time(doc["finished_at"]))
            for name, value in doc["resource_usage"].items():
                self.assertGreaterEqual(value, 0, name)


class F52(field.Case):
    PROGRAM = ("import os\nprint(sorted(map(int,os.listdir('/proc/self/fd'))))\n"
               "for n in (0,1,2): print(n,os.readlink('/proc/self/fd/%d'%n))\nprint(os.getcwd())\n"
               "print(os.path.exists('/proc/self/fd/../../1/root/var/fc-private'))\n"
               "for i in range(3,256):\n  try: os.fstat(i); print('LEAK',i,os.readlink('/proc/self/fd/%d'%i))\n"
               "  except OSError: pass")

    def setUp(self):
        os.makedirs("/var/fc-private", 0o700, exist_ok=True)

    def tearDown(self):
        os.rmdir("/var/fc-private")

    def check(self, r):
        self.ended(r, 0, "completed", timeout=60)
        lines = r.stdout.decode().splitlines()
        self.assertEqual(lines[0], "[0, 1, 2, 3]")
        self.assertNotIn("LEAK", r.stdout.decode())
        self.assertEqual(lines[4:], ["/workspace", "False"])
        for bad in (self.m.state, self.m.mnt, "fuse", "state.db", "socket:"):
            self.assertNotIn(bad, r.stdout.decode())

    @unittest.skipUnless(sbx.ROOT, "makes a folder in /var")
    def test_F52_nothing_is_inherited(self):
        self.check(self.m.submit(py(self.PROGRAM)))

    @unittest.skipUnless(sbx.ROOT, "makes a folder in /var")
    def test_F52_also_with_50_runs_and_50_followers(self):
        runs, fds = [], []
        try:
            for _ in range(50):
                runs.append(self.m.submit(py(self.PROGRAM)))
                fds.append(os.open(runs[-1].path(".stream"), os.O_RDONLY | os.O_NONBLOCK))
                fds.append(os.open(runs[-1].path("log"), os.O_RDONLY))
            for r in runs:
                self.check(r)
        finally:
            for fd in fds:
                os.close(fd)

    def test_F52_the_first_process_shows_nothing(self):
        r = self.m.submit(sh("ls -l /proc/1/fd 2>&1; ls -l /proc/1/cwd /proc/1/root /proc/1/exe 2>&1; "
                             "cat /proc/1/maps /proc/1/environ 2>&1; true"))
        self.ended(r, 0, "completed")
        for bad in (self.m.state, self.m.mnt, "socket:", "->"):
            self.assertNotIn(bad, r.log.decode())


class F54(field.Case):
    PROGRAM = ("import os,signal\nfor p in (-1,0,1,2,os.getppid()):\n  try: os.kill(p,signal.SIGKILL)\n"
               "  except OSError: pass\nfor p in range(2,70000):\n  if p!=os.getpid():\n"
               "    try: os.kill(p,signal.SIGSTOP)\n    except OSError: pass")

    def stopped(self):
        text = subprocess.run(["ps", "-eo", "stat"], stdout=subprocess.PIPE, check=True).stdout.decode()
        return sum("T" in line for line in text.splitlines())

    def test_F54_kill_9_of_everything(self):
        other = self.m.submit(sh("echo up; sleep 3; echo done"))
        other.stream_until(b"up")
        stopped, server = self.stopped(), self.m.proc.pid
        r = self.m.submit(py(self.PROGRAM, timeout_sec=10))
        self.assertIn(r.wait(), ("0", "137", "failed"))
        self.assertIn(r.json()["status_reason_code"], ("completed", "nonzero_exit", "runtime_error"))
        self.ended(other, 0, "completed")
        self.assertEqual(other.log, b"up\ndone\n")
        self.assertEqual(self.stopped(), stopped)
        self.assertIsNone(self.m.proc.poll())
        self.assertEqual(self.m.proc.pid, server)
        self.alive()

    def test_F54_signals_do_not_reach_process_1(self):
        r = self.m.submit(sh("for s in INT TERM KILL STOP HUP QUIT USR1; do kill -$s 1; done; echo still"))
        self.ended(r, 0, "completed")
        self.assertEqual(r.stdout, b"still\n")


if __name__ == "__main__":
    sbx.main()
