# SPDX-License-Identifier: Apache-2.0
"""inotify on the mount: the kernel raises nothing for what a server changes behind its back, and yet
watchers hear of runs that appear, of status that changes and of artifacts that arrive."""
import contextlib
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import fskit  # noqa: E402
import sbx  # noqa: E402
from fskit import Inotify  # noqa: E402

SLEEPER = {"command": ["sh", "-c", "read x; echo $x"], "interactive": True, "spec_version": "1.1"}


class InotifyCase(sbx.Case):
    def setUp(self):
        self.runs = os.path.join(self.m.mnt, "runs")
        self.ino = Inotify()
        self.addCleanup(os.close, self.ino.fd)

    def start(self):
        run = self.m.submit(SLEEPER)
        self.addCleanup(self.end, run)
        run.wait_phase("running")
        return run

    def end(self, run):
        if run.status() not in sbx.TERMINAL:
            run.ctl("kill")
            run.wait()

    def masks(self, path):
        return [mask for p, mask, _ in self.ino.seen if p == path]

    def settle(self, run):
        """News of one run may wait for a tenth of a second; what is due then is told in order. So when a run
        that began after that time has been announced, all about the earlier one has been told."""
        self.ino.add(self.runs, Inotify.CREATE)
        self.m.run({"command": ["sleep", "0.3"]})
        later = self.m.run({"command": ["true"]})
        self.ino.wait(lambda p, m, n: n == later.id)
        self.assertNotEqual(later.id, run.id)


class Phases(InotifyCase):
    """by/phase/PHASE hears of runs that come there."""

    def watch(self, phase):
        path = os.path.join(self.m.mnt, "by/phase", phase)
        self.ino.add(path, Inotify.CREATE)
        return path

    def came(self, path):
        return [n for p, m, n in self.ino.seen if p == path]

    def test_each_way_to_end(self):
        ends = {"completed": "exit 0", "failed": "exit 1", "timed_out": "sleep 100"}
        paths = {phase: self.watch(phase) for phase in ends}
        runs = {phase: self.m.sh(script, timeout_sec=1) for phase, script in ends.items()}
        for phase, run in runs.items():
            self.ino.wait(lambda p, m, n, path=paths[phase], run=run: (p, n) == (path, run.id))
            self.assertTrue(os.path.samefile(os.path.join(paths[phase], run.id), run.dir))
        for phase, path in paths.items():
            self.assertEqual([n for n in self.came(path) if n in [r.id for r in runs.values()]], [runs[phase].id])

    def test_a_name_that_the_kernel_knows_is_announced_all_the_same(self):
        path = self.watch("failed")
        for _ in range(5):
            run = self.m.run({"command": ["false"]})
            self.assertTrue(os.path.islink(os.path.join(path, run.id)))
            self.ino.wait(lambda p, m, n, run=run: (p, n) == (path, run.id))

    def test_what_has_left_again_is_not_announced(self):
        queued, killed = self.watch("queued"), self.watch("killed")
        run = self.start()
        run.ctl("kill")
        self.ino.wait(lambda p, m, n: (p, n) == (killed, run.id))
        self.settle(run)
        for name in self.came(queued):
            self.assertIn(name, self.m.runs())
        self.assertEqual(self.came(killed).count(run.id), 1)
        self.assertFalse(os.path.lexists(os.path.join(queued, run.id)))

    def test_nobody_makes_links_there(self):
        with self.assertRaises(PermissionError):
            os.symlink("x", os.path.join(self.watch("failed"), self.start().id))


class Created(InotifyCase):
    def test_run_of_another_process(self):
        self.ino.add(self.runs, Inotify.CREATE)
        p = fskit.shell(self.m, """exec 3<>"$MNT/runs/new"; echo '{"command":["true"]}' >&3; cat <&3""")
        run_id = p.stdout.decode().strip()
        _, mask, _ = self.ino.wait(lambda p, m, n: n == run_id)
        self.assertTrue(mask & 0x40000000, "IN_ISDIR")

    def test_what_is_announced_is_there(self):
        self.ino.add(self.runs, Inotify.CREATE)
        run = self.m.submit({"command": ["true"]})
        self.ino.wait(lambda p, m, n: n == run.id)
        self.assertTrue(os.path.isdir(run.dir))
        self.assertIn(run.id, os.listdir(self.runs))
        run.wait()

    def test_every_run_once(self):
        self.ino.add(self.runs, Inotify.CREATE)
        ids = [self.m.submit({"command": ["true"]}).id for _ in range(40)]
        for run_id in ids:
            self.ino.wait(lambda p, m, n: n == run_id)
        for run_id in ids:
            sbx.Run(self.m, run_id).wait()
        names = [n for p, m, n in self.ino.seen]
        self.assertEqual(sorted(n for n in names if n in ids), sorted(ids))

    def test_run_that_somebody_looked_up_before(self):
        """Its name is known to the kernel already, which must not swallow the event."""
        self.ino.add(self.runs, Inotify.CREATE)
        for _ in range(5):
            run = self.m.submit({"command": ["true"]})
            os.stat(run.dir)
            os.listdir(run.dir)
            os.stat(run.path("status"))
            self.ino.wait(lambda p, m, n: n == run.id)

    def test_inotifywait(self):
        if not shutil.which("inotifywait"):
            self.skipTest("no inotifywait")
        with subprocess.Popen(["inotifywait", "-m", "-e", "create", "--format", "%f", self.runs],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) as p:
            try:
                while b"Watches established" not in p.stderr.readline():
                    pass
                run = self.m.submit({"command": ["true"]})
                self.assertEqual(p.stdout.readline().decode().strip(), run.id)
            finally:
                p.terminate()

    def test_reading_raises_no_change(self):
        run = self.m.run({"command": ["true"]})
        self.settle(run)
        for path in (self.runs, run.dir, run.path("status")):
            self.ino.add(path, Inotify.CREATE | Inotify.MODIFY | Inotify.CLOSE_WRITE | Inotify.DELETE)
        self.ino.read()
        self.ino.seen.clear()
        # (`new` itself is written to below.)
        fskit.shell(self.m, 'cd "$MNT"; ls -laR runs; cat runs/latest/status; grep -r x runs/latest/; stat runs/*')
        later = self.m.submit({"command": ["true"]})
        self.ino.wait(lambda p, m, n: n == later.id)
        self.assertEqual([n for p, m, n in self.ino.seen if p == self.runs and n != "new"], [later.id])
        self.assertEqual([x for x in self.ino.seen if x[0] != self.runs], [])


class Crowded(InotifyCase):
    """Every run is told to every watcher, whatever else goes on."""
    settings = {"queue_max_length": "1000"}

    def background(self, script):
        """Again and again, as long as there is a file; what it does last is done when the test ends."""
        flag = tempfile.NamedTemporaryFile(prefix="sbx-flag-")
        p = subprocess.Popen(["sh", "-c", 'while [ -e "%s" ]; do %s; done' % (flag.name, script)],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(p.wait)
        self.addCleanup(flag.close)

    def test_names_looked_up_and_mounts_that_come_and_go(self):
        self.background('ls -lR "%s"' % self.runs)
        if sbx.ROOT:
            place = tempfile.mkdtemp(prefix="sbx-place-")
            self.addCleanup(os.rmdir, place)
            self.addCleanup(subprocess.run, ["umount", place], stderr=subprocess.DEVNULL, check=False)
            self.background('mount -t tmpfs none "%s"; umount "%s"' % (place, place))
        watchers = [self.ino, Inotify(), Inotify()]
        for w in watchers:
            w.add(self.runs, Inotify.CREATE)
        ids = [self.m.submit({"command": ["true"]}).id for _ in range(60)]
        for w in watchers:
            for run_id in ids:
                w.wait(lambda p, m, n: n == run_id)
        for w in watchers[1:]:
            os.close(w.fd)
        for w in watchers:
            self.assertEqual([n for p, m, n in w.seen if n in ids], ids)
        for run_id in ids:
            sbx.Run(self.m, run_id).wait()


class FromTheFirstMoment(sbx.Case):
    def told(self, other):
        """Watches as soon as there is a mount, and hears of what another server's users submit from then on."""
        self.addCleanup(other.close)
        with Inotify() as ino, open("/proc/self/mountinfo", "rb") as table:
            poll = select.poll()
            poll.register(table, select.POLLERR | select.POLLPRI)
            starter = threading.Thread(target=other.start)
            starter.start()
            while not ino.paths:
                poll.poll(100)
                with contextlib.suppress(OSError):  # not there yet
                    ino.add(os.path.join(other.mnt, "runs"), Inotify.CREATE)
            ids = [self.m.submit({"command": ["true"]}).id for _ in range(3)]
            for run_id in ids:
                ino.wait(lambda p, m, n: n == run_id)
            starter.join()
        other.stop()

    def traced(self, inject):
        if not (sbx.ROOT and shutil.which("strace")):
            self.skipTest("needs root and strace")
        calls = inject.split(":")[0]
        return sbx.Mount(state=self.m.state, opts=["workers=0"], env={"ASAN_OPTIONS": "detect_leaks=0"},
                         prefix=["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=" + calls,
                                 "-e", "inject=" + inject])

    def test_mount_that_has_just_come(self):
        for _ in range(5):
            other = sbx.Mount(state=self.m.state, opts=["workers=0"])
            self.told(other)

    def test_threads_that_start_one_after_the_other(self):
        """The servers answer long before the thread behind them is there."""
        other = self.traced("clone,clone3:delay_exit=200000")
        self.told(other)

    def test_announcement_that_fails_is_made_again(self):
        other = self.traced("mkdirat:error=EEXIST:when=1")
        self.told(other)


class StatusChange(InotifyCase):
    settings = {"cancel_grace_seconds": "120"}

    def test_modify_and_close_write_on_the_file(self):
        run = self.start()
        self.ino.add(run.path("status"), Inotify.MODIFY | Inotify.CLOSE_WRITE)
        run.ctl("kill")
        path = run.path("status")
        self.ino.wait(lambda p, m, n: p == path and m & Inotify.CLOSE_WRITE and run.status() == "killed")
        self.assertTrue(any(m & Inotify.MODIFY for m in self.masks(path)))

    def test_watch_on_the_directory_of_the_run(self):
        run = self.start()
        self.ino.add(run.dir, Inotify.MODIFY | Inotify.CLOSE_WRITE)
        run.ctl("kill")
        self.ino.wait(lambda p, m, n: n == "status" and m & Inotify.CLOSE_WRITE)

    def test_state_is_readable_when_it_is_announced(self):
        for _ in range(5):
            run = self.start()
            self.ino.add(run.path("status"), Inotify.CLOSE_WRITE)
            self.settle(run)
            self.ino.read()
            self.ino.seen.clear()
            run.ctl("kill")
            # Other news of the run may be told before its end; the last that is told finds the end.
            self.ino.wait(lambda p, m, n: p == run.path("status") and run.status() == "killed")

    def test_cancel_that_is_asked_for_is_no_change(self):
        run = self.m.submit({"command": ["sh", "-c", "trap '' TERM; echo on; read x"], "interactive": True,
                             "spec_version": "1.1"})
        self.addCleanup(self.end, run)
        run.stream_until(b"on\n")
        self.ino.add(run.path("status"), Inotify.MODIFY | Inotify.CLOSE_WRITE)
        self.settle(run)
        self.ino.read()
        self.ino.seen.clear()
        run.ctl("cancel")
        self.settle(run)
        self.assertEqual((run.status(), self.masks(run.path("status"))), ("running", []))

    def test_events_are_few(self):
        """Changes of one node that follow each other fast are told together."""
        self.ino.add(self.runs, Inotify.CREATE)
        run = self.m.submit({"command": ["true"]})
        self.ino.add(run.path("status"), Inotify.CLOSE_WRITE)
        run.wait()
        self.settle(run)
        self.ino.read()
        self.assertLessEqual(len(self.masks(run.path("status"))), 3)

    def test_inotifywait_ends_with_the_run(self):
        if not shutil.which("inotifywait"):
            self.skipTest("no inotifywait")
        run = self.start()
        self.ino.add(run.path("status"), Inotify.CLOSE_WRITE)
        self.settle(run)
        with subprocess.Popen(["inotifywait", "-e", "close_write", run.path("status")],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) as p:
            while b"Watches established" not in p.stderr.readline():
                pass
            run.ctl("kill")
            self.assertEqual(fskit.wait_exit(p), 0)
        self.assertEqual(run.status(), "killed")


class ArtifactsArrive(InotifyCase):
    def test_create_of_each_top_level_name(self):
        run = self.m.submit({"command": ["sh", "-c", "read x; mkdir d; echo 1 > a; echo 2 > b; echo 3 > d/c"],
                             "interactive": True, "spec_version": "1.1", "capture_patterns": ["**"]})
        self.addCleanup(self.end, run)
        run.wait_phase("running")
        self.ino.add(run.path("artifacts"), Inotify.CREATE)
        run.ctl("eof")
        for name in ("a", "b", "d"):
            self.ino.wait(lambda p, m, n: n == name)
        self.assertEqual(run.read("artifacts/a"), b"1\n")
        self.assertEqual(run.read("artifacts/d/c"), b"3\n")
        self.assertEqual(sorted(n for p, m, n in self.ino.seen), ["a", "b", "d"])


class TwoMounts(sbx.Case):
    """What one server's users do is news for the other's."""

    def test_run_and_status_seen_through_the_other(self):
        with sbx.Mount(state=self.m.state) as other, Inotify() as ino:
            runs = os.path.join(self.m.mnt, "runs")
            ino.add(runs, Inotify.CREATE)
            far = other.submit(SLEEPER)
            ino.wait(lambda p, m, n: n == far.id)
            near = sbx.Run(self.m, far.id)
            near.wait_phase("running")
            ino.add(near.path("status"), Inotify.CLOSE_WRITE)
            far.ctl("kill")
            ino.wait(lambda p, m, n: p == near.path("status") and near.status() == "killed")

    def test_waiters_and_streams_of_the_other(self):
        with sbx.Mount(state=self.m.state) as other:
            far = other.submit(SLEEPER)
            near = sbx.Run(self.m, far.id)
            near.wait_phase("running")
            with open(near.path("stdin"), "wb", buffering=0) as f:
                f.write(b"across\n")
            self.assertEqual(far.wait(), "0")
            self.assertEqual(near.wait(), "0")
            self.assertEqual((near.stdout, far.stdout), (b"across\n", b"across\n"))
            self.assertEqual(near.read("log.ndjson"), far.read("log.ndjson"))


class SwitchedOff(sbx.Case):
    settings = {"inotify": "false"}

    def test_no_events_and_everything_else_works(self):
        with Inotify() as ino:
            ino.add(os.path.join(self.m.mnt, "runs"), Inotify.CREATE)
            run = self.m.run({"command": ["echo", "hi"]})
            self.assertEqual(run.stdout, b"hi\n")
            self.assertIn(run.id, self.m.runs())
            # An event of our own making, on a watch of the same queue: nothing came before it.
            with tempfile.TemporaryDirectory() as tmp:
                ino.add(tmp, Inotify.CREATE)
                open(os.path.join(tmp, "mark"), "w").close()
                ino.wait(lambda p, m, n: n == "mark")
            self.assertEqual([n for p, m, n in ino.seen if n != "mark"], [])


if __name__ == "__main__":
    sbx.main()
