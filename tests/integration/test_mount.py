# SPDX-License-Identifier: Apache-2.0
"""The program itself: command line, background start, signals, repair, a full disk."""
import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import api  # noqa: E402
import fskit  # noqa: E402
import sbx  # noqa: E402

EX_OK, EX_USAGE, EX_UNAVAILABLE, EX_CANTCREAT, EX_CONFIG = 0, 64, 69, 73, 78


class CommandLine(unittest.TestCase):
    def setUp(self):
        self.tmp = tempfile.mkdtemp(prefix="sbx-mount-")
        self.addCleanup(shutil.rmtree, self.tmp)
        self.mnt = os.path.join(self.tmp, "mnt")
        os.mkdir(self.mnt)
        self.conf = self.file("conf", "")
        self.state = "state=%s/state,config=%s" % (self.tmp, self.conf)

    def file(self, name, text):
        path = os.path.join(self.tmp, name)
        with open(path, "w") as f:
            f.write(text)
        return path

    def run_(self, *args, env=None, **kw):
        return subprocess.run([sbx.SANDBOXFS, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=30 * sbx.SLOW,
                              env=dict(os.environ, **(env or {})), **kw)

    def refused(self, status, text, *args, **kw):
        p = self.run_(*args, **kw)
        self.assertEqual((p.returncode, p.stdout), (status, ""), p)
        self.assertTrue(p.stderr.startswith("sandboxfs: "), p.stderr)
        self.assertIn(text, p.stderr)
        with open("/proc/self/mounts") as f:
            self.assertNotIn(self.tmp, f.read())
        return p

    def test_version(self):
        p = self.run_("--version")
        self.assertEqual((p.returncode, p.stderr), (EX_OK, ""))
        self.assertRegex(p.stdout, r"^sandboxfs \d+\.\d+\.\d+ ")

    def test_help(self):
        p = self.run_("--help")
        self.assertEqual((p.returncode, p.stderr), (EX_OK, ""))
        for word in ("usage:", "--check", "--print-config", "state=DIR", "fusermount3 -u"):
            self.assertIn(word, p.stdout)

    def test_no_argument(self):
        self.assertIn("--help", self.refused(EX_USAGE, "mount point").stderr)

    def test_too_many_arguments(self):
        self.refused(EX_USAGE, "mount point", "-o", self.state, self.mnt, self.mnt, self.mnt)

    def test_unknown_options(self):
        for args in (("-x",), ("--nope",), ("-o", "nonsense"), ("-o", "max_concurent_runs=1")):
            with self.subTest(args=args):
                self.refused(EX_USAGE, "no such option", *args, self.mnt)

    def test_workers_out_of_range(self):
        for n in ("-1", "x", "", "1e3", "99999"):
            self.refused(EX_USAGE, "workers", "-o", "workers=" + n, self.mnt)

    def test_mount_point_that_does_not_exist(self):
        self.refused(EX_USAGE, "No such file", "-o", self.state, os.path.join(self.tmp, "none"))

    def test_mount_point_that_is_a_file(self):
        self.refused(EX_USAGE, "not a directory", "-o", self.state, self.conf)

    def test_state_inside_the_mount_point(self):
        for where in (self.mnt, self.mnt + "/state", self.mnt + "/../mnt/deep/state"):
            self.refused(EX_CONFIG, "inside the mount point", "-o", "state=%s,config=%s" % (where, self.conf),
                         self.mnt)

    def test_state_inside_the_mount_point_by_a_link(self):
        link = os.path.join(self.tmp, "link")
        os.symlink(self.mnt, link)
        self.refused(EX_CONFIG, "inside the mount point", "-o", "state=%s/s,config=%s" % (link, self.conf), self.mnt)

    def test_state_that_cannot_be_made(self):
        self.refused(EX_CANTCREAT, "state directory", "-o", "state=/proc/none/x,config=" + self.conf, self.mnt)

    def test_state_that_is_a_file(self):
        self.refused(EX_CANTCREAT, "state directory", "-o", "state=%s,config=%s" % (self.conf, self.conf), self.mnt)

    def test_empty_state(self):
        self.refused(EX_USAGE, "state", "-o", "state=", self.mnt)

    def test_configuration_that_is_missing(self):
        self.refused(EX_CONFIG, "none.conf", "-o", "state=%s/s,config=%s/none.conf" % (self.tmp, self.tmp), self.mnt)

    def test_mistake_in_the_configuration_names_the_line(self):
        conf = self.file("bad.conf", "[sandbox]\n\nqueue_max_lenght = 3\n")
        p = self.refused(EX_CONFIG, "bad.conf:3:", "-o", "state=%s/s,config=%s" % (self.tmp, conf), self.mnt)
        self.assertIn("did you mean 'queue_max_length'", p.stderr)

    def test_mistake_in_the_environment_names_the_variable(self):
        self.refused(EX_CONFIG, "SANDBOX_QUEUE_MAX_LENGTH", "-o", self.state, self.mnt,
                     env={"SANDBOX_QUEUE_MAX_LENGTH": "many"})

    def test_mistake_on_the_command_line(self):
        self.refused(EX_CONFIG, "queue_max_length", "-o", self.state + ",queue_max_length=x", self.mnt)

    def test_check_prints_a_table(self):
        p = self.run_("--check", "-o", self.state)
        self.assertEqual(p.returncode, EX_OK)
        names = [line.split()[0] for line in p.stdout.splitlines()]
        for name in ("RUNTIME", "namespace", "docker", "firecracker", "vz_macos"):
            self.assertIn(name, names)

    def test_check_as_json(self):
        p = self.run_("--check", "--json", "-o", self.state)
        self.assertEqual(p.returncode, EX_OK)
        rows = {r["name"]: r for r in json.loads(p.stdout)["runtimes"]}
        self.assertIs(rows["namespace"]["available"], True)
        self.assertIn("macos_required", rows["vz_macos"]["reasons"])

    def test_print_config_shows_values_and_where_they_come_from(self):
        conf = self.file("c.conf", "[sandbox]\nqueue_ttl_sec = 77\n")
        p = self.run_("--print-config", "-o", "config=%s,queue_max_length=7" % conf,
                      env={"SANDBOX_MAX_CPU": "2.5"})
        self.assertEqual(p.returncode, EX_OK)
        lines = {x.split(" = ")[0]: x.split(" = ")[1] for x in p.stdout.splitlines() if " = " in x}
        self.assertRegex(lines["queue_max_length"], "^7 .*command line")
        self.assertRegex(lines["queue_ttl_sec"], "^77 .*file")
        self.assertRegex(lines["max_cpu"], "^2.5 .*environment")
        self.assertRegex(lines["log_level"], "^info .*default")

    def test_print_config_can_be_read_again(self):
        first = self.run_("--print-config", "-o", "config=%s,queue_max_length=7" % self.conf).stdout
        conf = self.file("again.conf", "[sandbox]\n" + first)
        again = self.run_("--print-config", "-o", "config=" + conf)
        self.assertEqual(again.returncode, EX_OK, again.stderr)
        strip = [x.split("  #")[0].split(" ; ")[0].rstrip() for x in first.splitlines() if " = " in x]
        self.assertEqual([x.split("  #")[0].split(" ; ")[0].rstrip() for x in again.stdout.splitlines()
                          if " = " in x], strip)


class LogLevel(unittest.TestCase):
    """log_level, of the server and of its runners, and when it is read again."""

    def mount(self, level):
        m = sbx.Mount()
        self.addCleanup(m.close)
        self.level(m, level)
        return m.start()

    def level(self, m, level):
        with open(m.conf, "w") as f:
            f.write("[sandbox]\nlog_level = %s\nwarm_runners = 1\n" % level)

    def kinds(self, m):
        return {tuple(line.split()[1:3]) for line in m.errors().splitlines() if line.startswith("time=")}

    def test_of_each_kind_of_process(self):
        server, runner = ("level=info", "prog=sandboxfs"), ("level=warning", "prog=sandbox-runner")
        for level, wanted in (("error", set()), ("warning", {runner}), ("info", {server, runner})):
            with self.subTest(level=level):
                m = self.mount(level)
                # A run that cannot start is a warning of its runner's.
                m.run({"command": ["true"], "base_image": "host", "cwd": "/no/such/place"})
                self.assertEqual(m.stop(), 0)
                self.assertEqual(self.kinds(m), wanted, m.errors())

    def test_it_is_read_again(self):
        m = self.mount("error")
        self.assertEqual(self.kinds(m), set())
        self.level(m, "info")
        with api.watch(m.log_path, api.IN_MODIFY) as ring:
            m.proc.send_signal(signal.SIGHUP)
            while "configuration reloaded" not in m.errors():
                self.assertTrue(ring(20 * sbx.SLOW), m.errors())
        self.level(m, "error")
        m.proc.send_signal(signal.SIGHUP)
        self.assertEqual(m.stop(), 0)
        self.assertEqual(m.errors().count("configuration reloaded"), 1)


class Background(unittest.TestCase):
    """Without -f: the command returns once the mount works."""

    def setUp(self):
        self.m = sbx.Mount()
        self.addCleanup(self.m.close)

    def start(self, *more):
        args = [a for a in self.m.args() if a != "-f"] + list(more)
        return subprocess.run(args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=30 * sbx.SLOW, env=self.m.env)

    def server(self):
        """A descriptor of the background process, to wait for its end."""
        def parent(pid):
            with open("/proc/%d/stat" % pid) as f:
                return int(f.read().rsplit(")", 1)[1].split()[1])
        pids = [p for p in self.m.processes() if os.path.basename(os.readlink("/proc/%d/exe" % p)) == "sandboxfs"]
        pids = [p for p in pids if parent(p) not in pids]  # a runner is sandboxfs until its exec
        self.assertEqual(len(pids), 1)
        fd = os.pidfd_open(pids[0])
        self.addCleanup(os.close, fd)
        return pids[0], fd

    def unmount(self, argv):
        """An ordinary user's server is inside for the moment that it takes to raise an inotify event; then
        the mount is busy, and asking again helps. Root's never is."""
        end = sbx.time.monotonic() + 10 * sbx.SLOW
        while True:
            p = subprocess.run(argv, stderr=subprocess.PIPE)
            if p.returncode == 0:
                return
            self.assertIn(b"busy", p.stderr)
            self.assertFalse(sbx.ROOT, p.stderr)
            self.assertLess(sbx.time.monotonic(), end, "busy for ever")

    def gone(self, fd):
        self.assertTrue(fskit.readable(fd, 20 * sbx.SLOW), "the server still runs")

    def test_returns_when_it_works_and_closes_what_it_got(self):
        p = self.start()  # would not return while the server held the pipes
        self.assertEqual((p.returncode, p.stdout, p.stderr), (0, b"", b""))
        self.assertTrue(self.m.is_mounted())
        self.assertEqual(self.m.run({"command": ["echo", "hi"]}).stdout, b"hi\n")
        pid, fd = self.server()
        self.assertEqual(os.readlink("/proc/%d/cwd" % pid), "/")
        self.assertNotEqual(os.getsid(pid), os.getsid(0))
        os.kill(pid, signal.SIGTERM)
        self.gone(fd)
        self.assertFalse(self.m.is_mounted())

    def test_fusermount_ends_it(self):
        self.assertEqual(self.start().returncode, 0)
        _, fd = self.server()
        self.unmount(["fusermount3", "-u", self.m.mnt])
        self.gone(fd)

    def test_umount_ends_it(self):
        if not sbx.ROOT:
            self.skipTest("umount is for root")
        self.assertEqual(self.start().returncode, 0)
        _, fd = self.server()
        self.unmount(["umount", self.m.mnt])
        self.gone(fd)

    def test_failure_is_the_commands_status(self):
        self.m.opts.append("queue_max_length=x")
        p = self.start()
        self.assertEqual(p.returncode, EX_CONFIG)
        self.assertIn(b"queue_max_length", p.stderr)

    def test_keeps_a_log(self):
        self.start()
        with open(os.path.join(self.m.state, "sandboxfs.log")) as f:
            self.assertIn("mounted", f.read())
        self.assertEqual(os.stat(os.path.join(self.m.state, "sandboxfs.log")).st_mode & 0o77, 0)
        self.unmount(["fusermount3", "-u", self.m.mnt])

    def test_state_is_private(self):
        self.start()
        self.m.run({"command": ["true"]})
        self.assertEqual(os.stat(self.m.state).st_mode & 0o77, 0)
        self.assertEqual(os.stat(os.path.join(self.m.state, "state.db")).st_mode & 0o77, 0)
        self.unmount(["fusermount3", "-u", self.m.mnt])

    def test_relative_paths(self):
        args = [sbx.SANDBOXFS, "-o", "state=state,config=" + self.m.conf, "mnt"]
        p = subprocess.run(args, cwd=self.m.base, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual((p.returncode, p.stderr), (0, b""))
        self.assertEqual(self.m.run({"command": ["echo", "hi"]}).stdout, b"hi\n")
        self.unmount(["fusermount3", "-u", self.m.mnt])

    @unittest.skipUnless(sbx.ROOT and shutil.which("mount.fuse3"), "needs root and mount.fuse3")
    def test_mount_type_fuse_sandboxfs(self):
        env = dict(os.environ, PATH=os.path.dirname(sbx.SANDBOXFS) + ":" + os.environ["PATH"],
                   SANDBOXFS_RUNNER=os.path.join(os.path.abspath(sbx.BUILD), "runtimes/runner/sandbox-runner"))
        p = subprocess.run(["mount.fuse3", self.m.state, self.m.mnt, "-t", "sandboxfs", "-o",
                            "rw,nofail,_netdev,x-systemd.automount,allow_other,config=" + self.m.conf],
                           env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=30 * sbx.SLOW)
        self.assertEqual((p.returncode, p.stderr), (0, b""))
        self.assertEqual(self.m.run({"command": ["echo", "hi"]}).stdout, b"hi\n")
        self.assertTrue(os.path.exists(os.path.join(self.m.state, "state.db")))
        self.unmount(["umount", self.m.mnt])


class ReadOnly(unittest.TestCase):
    def test_nothing_can_be_submitted_and_everything_read(self):
        with sbx.Mount() as m:
            run = m.run({"command": ["echo", "hi"]})
            with sbx.Mount(state=m.state, opts=["ro"]) as ro:
                with self.assertRaises(OSError) as c:
                    os.open(os.path.join(ro.mnt, "runs/new"), os.O_WRONLY)
                self.assertEqual(c.exception.errno, errno.EROFS)
                same = sbx.Run(ro, run.id)
                with self.assertRaises(OSError) as c:
                    same.ctl("kill")
                self.assertEqual(c.exception.errno, errno.EROFS)
                self.assertEqual((same.stdout, same.wait()), (b"hi\n", "0"))


class Signals(sbx.Case):
    def setUp(self):
        self.m.start() if self.m.proc.poll() is not None else None

    def sleeper(self):
        run = self.m.submit({"command": ["sh", "-c", "echo a; read x; echo b"], "interactive": True,
                             "spec_version": "1.1"})
        run.stream_until(b"a\n")
        return run

    def go_on(self, run):
        with open(run.path("stdin"), "wb", buffering=0) as f:
            f.write(b"\n")

    def test_term_unmounts_and_runs_go_on(self):
        run = self.sleeper()
        self.assertEqual(self.m.stop(), 0)
        self.assertFalse(self.m.is_mounted())
        self.m.start()
        self.assertEqual(run.status(), "running")
        self.go_on(run)
        self.assertEqual((run.wait(), run.stdout), ("0", b"a\nb\n"))

    def test_int_stops_it_too(self):
        self.m.proc.send_signal(signal.SIGINT)
        self.assertEqual(fskit.wait_exit(self.m.proc), 0)
        self.assertFalse(self.m.is_mounted())

    def test_term_while_a_shell_sits_inside(self):
        with subprocess.Popen(["sh", "-c", "echo; read x"], cwd=os.path.join(self.m.mnt, "runs"),
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE) as p:
            p.stdout.readline()
            self.assertEqual(self.m.stop(), 0)
            self.assertFalse(self.m.is_mounted())
            p.communicate(b"\n")

    def test_term_answers_parked_readers(self):
        run = self.sleeper()
        readers = [subprocess.Popen(["cat", run.path(n)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                   for n in (".wait", ".stream")]
        readers.append(subprocess.Popen(["cat", os.path.join(self.m.mnt, ".events")], stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE))
        for p in readers:
            fskit.blocked_in_read(p.pid)
        self.assertEqual(self.m.stop(), 0)
        for p in readers:
            _, err = p.communicate(timeout=20 * sbx.SLOW)
            self.assertEqual(p.returncode, 1)
            self.assertRegex(err, b"not connected|abort")
        self.m.start()
        run.ctl("kill")
        run.wait()

    def reload(self, text, line):
        with open(self.m.conf, "w") as f:
            f.write(text)
        size = os.path.getsize(self.m.log_path)
        with fskit.Inotify() as ino:
            ino.add(self.m.log_path, ino.MODIFY)
            self.m.proc.send_signal(signal.SIGHUP)
            ino.wait(lambda p, m, n: line in self.m.errors()[size:])

    def test_hup_reads_the_configuration_again(self):
        reload = self.reload
        self.m.submit({"command": ["true"]})
        reload("[sandbox]\nqueue_max_length = 0\n", "configuration reloaded")
        with self.assertRaises(sbx.Refused) as c:
            self.m.submit({"command": ["true"]})
        self.assertEqual(c.exception.code, "queue_full")
        # A mistake changes nothing, and is told.
        reload("[sandbox]\nqueue_max_length = many\n", "configuration not reloaded")
        with self.assertRaises(sbx.Refused):
            self.m.submit({"command": ["true"]})
        reload("", "configuration reloaded")
        self.m.submit({"command": ["true"]}).wait()

    def test_broken_file_that_is_saved_harms_only_a_reload(self):
        """New runners get what their door has read, not what is in the file now."""
        self.reload("[sandbox]\nwarm_runners = 1\npids_limit = 77  # kept\n", "configuration reloaded")
        for broken in ("[sandbox]\npids_limit = many\n", "no configuration", None):
            if broken is None:
                os.unlink(self.m.conf)
            else:
                with open(self.m.conf, "w") as f:
                    f.write(broken)
            fskit.kill_idle_runners(self.m)
            run = self.m.run({"command": ["true"]})
            self.assertEqual((run.exit, json.loads(run.read("spec.json"))["resources"]["pids"]), ("0", 77))
        self.reload("[sandbox]\npids_limit = many\n", "configuration not reloaded")
        self.assertEqual(self.m.run({"command": ["true"]}).exit, "0")
        self.reload("", "configuration reloaded")
        self.assertNotIn("cannot start", self.m.errors())


class Killed(unittest.TestCase):
    def setUp(self):
        self.m = sbx.Mount()
        self.m.start()
        self.addCleanup(self.m.close)

    def test_everything_says_not_connected(self):
        self.m.kill()
        # (What the kernel has cached, the attributes of the root, it still tells.)
        for fn in (os.listdir, os.statvfs, lambda p: open(p + "/README"), lambda p: os.stat(p + "/.events")):
            with self.assertRaises(OSError) as c:
                fn(self.m.mnt)
            # A request that the kernel had under way at that moment is aborted.
            self.assertIn(c.exception.errno, (errno.ENOTCONN, errno.ECONNABORTED))

    def test_parked_reader_is_told(self):
        run = self.m.submit({"command": ["sleep", "100"]})
        reader = subprocess.Popen(["cat", run.path(".wait")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        fskit.blocked_in_read(reader.pid)
        self.m.kill()
        self.assertEqual(fskit.wait_exit(reader), 1)
        self.m.start()
        run.ctl("kill")
        self.assertEqual(run.wait(), "killed")

    def test_next_start_repairs_it_and_finds_the_old_runs(self):
        run = self.m.run({"command": ["echo", "old"]})
        os.stat(self.m.mnt)  # from now on the kernel knows the root, and says so of a dead mount, too
        self.m.kill()
        self.m.start()
        self.assertEqual(self.m.runs(), [run.id])
        self.assertEqual(run.stdout, b"old\n")
        with open("/proc/self/mounts") as f:
            self.assertEqual(sum(x.split()[1] == self.m.mnt for x in f), 1)

    def test_repair_in_the_background_mode(self):
        self.m.kill()
        p = subprocess.run([a for a in self.m.args() if a != "-f"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           timeout=30 * sbx.SLOW)
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertEqual(self.m.run({"command": ["echo", "hi"]}).stdout, b"hi\n")
        subprocess.run(["fusermount3", "-u", "-z", self.m.mnt], check=True)

    def test_killed_while_it_raises_events(self):
        """It is inside its own mount then, and its own death must still end the wait there."""
        for _ in range(8):
            with fskit.Inotify() as ino:
                ino.add(os.path.join(self.m.mnt, "runs"), ino.CREATE)
                fd = os.open(os.path.join(self.m.mnt, "runs/new"), os.O_WRONLY)
                for _ in range(8):
                    os.write(fd, b'{"command":["true"]}')
                ino.wait(lambda p, m, n: m & ino.CREATE)
                self.m.kill()
                # It is reaped only when its last thread is gone.
                p = subprocess.run(["ls", self.m.mnt], stderr=subprocess.PIPE, timeout=20 * sbx.SLOW)
                self.assertRegex(p.stderr, b"not connected|abort")
                with contextlib.suppress(OSError):
                    os.close(fd)
            self.m.start()

    def test_twice_killed(self):
        for _ in range(2):
            self.m.kill()
            self.m.start()
        self.assertEqual(self.m.run({"command": ["echo", "hi"]}).stdout, b"hi\n")

    def test_runs_outlive_it(self):
        run = self.m.submit({"command": ["sh", "-c", "echo a; read x; echo b"], "interactive": True,
                             "spec_version": "1.1"})
        run.stream_until(b"a\n")
        self.m.kill()
        self.m.start()
        with open(run.path("stdin"), "wb", buffering=0) as f:
            f.write(b"\n")
        self.assertEqual((run.wait(), run.stdout), ("0", b"a\nb\n"))

    def test_shell_inside_comes_back_by_cd(self):
        with subprocess.Popen(["sh", "-c", 'read x; cd "$PWD" && ls'], cwd=os.path.join(self.m.mnt, "runs"),
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE) as p:
            self.m.kill()
            self.m.start()
            self.assertIn(b"new", p.communicate(b"\n", timeout=20 * sbx.SLOW)[0])

    def test_unmount_while_a_reader_waits(self):
        run = self.m.submit({"command": ["sh", "-c", "read x"], "interactive": True, "spec_version": "1.1"})
        run.wait_phase("running")
        reader = subprocess.Popen(["cat", run.path(".wait")], stdout=subprocess.PIPE)
        fskit.blocked_in_read(reader.pid)
        p = subprocess.run(["fusermount3", "-u", self.m.mnt], stderr=subprocess.PIPE)
        self.assertNotEqual(p.returncode, 0)
        self.assertIn(b"busy", p.stderr)
        # Lazily it goes, and the reader gets its answer all the same.
        control = os.open(run.path("ctl"), os.O_WRONLY)
        subprocess.run(["fusermount3", "-u", "-z", self.m.mnt], check=True)
        self.assertIsNone(reader.poll())
        os.write(control, b"kill\n")
        self.assertEqual(reader.communicate(timeout=20 * sbx.SLOW)[0], b"killed\n")
        os.close(control)
        self.assertEqual(fskit.wait_exit(self.m.proc), 0)


class NoThread(unittest.TestCase):
    @unittest.skipUnless(sbx.ROOT and shutil.which("strace"), "needs root and strace")
    @unittest.skipIf(sbx.sanitizer(sbx.SANDBOXFS) == "tsan", "ThreadSanitizer has a thread of its own")
    def test_start_that_gets_no_thread_says_so_and_ends(self):
        """Whichever of its threads it is: none waits for another that never was."""
        for n in range(1, 15):
            m = sbx.Mount(env={"ASAN_OPTIONS": "detect_leaks=0"}, prefix=[
                "strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=clone,clone3",
                "-e", "inject=clone,clone3:error=EAGAIN:when=%d" % n])
            self.addCleanup(m.close)
            p = subprocess.run(m.args(), env=m.env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               timeout=20 * sbx.SLOW)
            self.assertEqual(p.returncode, 69)  # EX_UNAVAILABLE
            self.assertIn(b"temporarily unavailable", p.stderr)


class TwoDoors(unittest.TestCase):
    def test_one_submits_the_other_executes(self):
        with sbx.Mount(opts=["workers=0"]) as m:
            run = m.submit({"command": ["echo", "hi"]})
            self.assertEqual(run.status(), "queued")
            with sbx.Mount(state=m.state):
                self.assertEqual((run.wait(), run.stdout), ("0", b"hi\n"))


@unittest.skipUnless(sbx.ROOT, "only root can make a small disk")
class FullDisk(unittest.TestCase):
    def setUp(self):
        self.disk = tempfile.mkdtemp(prefix="sbx-disk-")
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m,mode=755", "tmpfs", self.disk], check=True)
        self.addCleanup(os.rmdir, self.disk)
        self.addCleanup(subprocess.run, ["umount", "-l", self.disk], check=True)
        self.m = sbx.Mount(state=os.path.join(self.disk, "state"))
        self.m.start()
        self.addCleanup(self.m.close)

    def fill(self):
        with open(os.path.join(self.disk, "filler"), "wb", buffering=0) as f, contextlib.suppress(OSError):
            for size in (1 << 20, 4096):
                with contextlib.suppress(OSError):
                    while f.write(b"x" * size):
                        pass

    def test_write_says_enospc_and_works_again_with_space(self):
        old = self.m.run({"command": ["echo", "old"]})
        self.fill()
        with self.assertRaises(sbx.Refused) as c:
            for _ in range(200):  # the database may have some room left in its own file
                self.m.submit({"command": ["true"], "env": {"A": "x" * 30000}})
        self.assertEqual((c.exception.errno, c.exception.code), (errno.ENOSPC, "storage_full"))
        p = fskit.shell(self.m, """echo '{"command":["true"],"env":{"A":"%s"}}' > "$MNT/runs/new" """ % ("x" * 30000))
        self.assertNotEqual(p.returncode, 0)
        # What is there can still be read.
        self.assertEqual((old.status(), old.stdout), ("completed", b"old\n"))
        self.assertIn(old.id, self.m.runs())
        os.unlink(os.path.join(self.disk, "filler"))
        self.assertEqual(self.m.run({"command": ["echo", "again"]}).stdout, b"again\n")


if __name__ == "__main__":
    sbx.main()
