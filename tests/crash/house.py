# SPDX-License-Identifier: Apache-2.0
"""A state directory with one or more doors, a way to kill any process at a named moment, and everything
that must hold once it is quiet again.

Whether a command was executed, and how often, is seen from outside: each run writes its key into a FIFO
in its image, whose other end is held here. What the service says about itself is then compared."""
import contextlib
import ctypes
import json
import os
import re
import select
import shutil
import signal
import sqlite3
import stat
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import sbx  # noqa: E402

PHASES = (None, "queued", "starting", "running", "completed", "failed", "killed", "timed_out")
# What may be in a state directory when all is quiet; anything else is somebody's forgotten temporary.
KNOWN = re.compile(r"state\.db(-wal|-shm)?|janitor\.lock|bound|notify(/feed)?|runners(/[^/,]+,[^/]+\.(bell|mark))?|sandboxfs\.log|images"
                   r"|objects\.lock|objects|snapshots|sessions|trash"
                   r"|runs(/[0-9a-f-]{36}(/(log|log\.idx|stdin|ctl|artifacts(/.*)?))?)?")
DIED = (5, 103, 104, 107)  # EIO, ECONNABORTED, ECONNRESET, ENOTCONN: the server is gone

sbx.libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphaned runners are ours to reap


def has_crash_points():
    """By what only such a build reads; the names of the points are also in one that was not optimized."""
    with open(sbx.SANDBOXFS, "rb") as f:
        return b"SBX_CRASH_AT" in f.read()


def start_time(pid):
    """What tells one process from a later one of the same number; None when there is none."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            fields = f.read().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def wait_gone(pid, timeout=20):
    """Waits for the end of a process. False: it still lives."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(timeout * sbx.SLOW * 1000))
    finally:
        os.close(fd)


def follow(run, timeout=60):
    """All of .stream, to its end."""
    data, poll = b"", select.poll()
    fd = os.open(run.path(".stream"), os.O_RDONLY | os.O_NONBLOCK)
    try:
        poll.register(fd, select.POLLIN)
        while True:
            assert poll.poll(timeout * sbx.SLOW * 1000), ".stream does not end: %r, %r" % (data[-300:], run.json())
            try:
                part = os.read(fd, 1 << 16)
            except BlockingIOError:
                continue
            if not part:
                return data
            data += part
    finally:
        os.close(fd)


@contextlib.contextmanager
def watch(path, mask):
    """inotify on one path: gives a function that waits for the next events, False when there were none."""
    fd = sbx.libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    assert sbx.libc.inotify_add_watch(fd, path.encode(), mask) >= 0
    poll = select.poll()
    poll.register(fd, select.POLLIN)

    def ring(timeout):
        if not poll.poll(max(0, timeout) * 1000):
            return False
        with contextlib.suppress(BlockingIOError):
            while os.read(fd, 65536):
                pass
        return True

    try:
        yield ring
    finally:
        os.close(fd)


def children(pid):
    found = []
    with contextlib.suppress(OSError):
        for tid in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/children" % (pid, tid)) as f:
                found += [int(p) for p in f.read().split()]
    return found


def reap_all():
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def descendants(pid):
    found = []
    for child in children(pid):
        found += [child] + descendants(child)
    return found


def own_groups():
    """The directories below which this process's services keep the groups of their sandboxes."""
    mounts, found = {}, []
    with open("/proc/self/mountinfo") as f:
        for line in f:
            left, right = line.split(" - ")
            kind, _, options = right.split()[:3]
            if kind == "cgroup2":
                mounts[""] = left.split()[4]
            elif kind == "cgroup":
                for name in options.split(","):
                    mounts[name] = left.split()[4]
    with open("/proc/self/cgroup") as f:
        for line in f:
            _, names, path = line.rstrip("\n").split(":", 2)
            for name in names.split(","):
                top = mounts.get(name)
                if top:
                    path = path[:-len("/supervisor")] if path.endswith("/supervisor") else path
                    found.append(top + path.rstrip("/") + "/sandboxfs")
    return found


class House:
    """Use as a context manager; leaving it checks everything."""

    def __init__(self, **settings):
        self.base = tempfile.mkdtemp(prefix="sbx-crash-")
        os.chmod(self.base, 0o755)
        self.state = os.path.join(self.base, "state")
        self.settings = {"landlock": "false", "images": "tick=" + self.make_image(), "default_image": "tick",
                         "cancel_grace_seconds": 1, **settings}
        self.doors = []
        self.runs = {}      # key -> Run, of what was accepted
        self.ticks = {}     # key -> how often it was executed
        self.maybe = set()  # keys whose submission died: they may or may not be there
        self.expired = set()  # keys whose artifacts were past their time
        self.serial = 0
        self.wrap_runner()

    def make_image(self):
        image = os.path.join(self.base, "image")
        for name in ("bin", "tick", "etc"):
            os.makedirs(os.path.join(image, name), 0o755)
            os.chmod(os.path.join(image, name), 0o755)
        os.chmod(image, 0o755)
        shutil.copy(shutil.which("busybox"), os.path.join(image, "bin/busybox"))
        for name in ("sh", "sleep", "cat", "echo", "seq", "head", "true", "setsid"):
            os.symlink("busybox", os.path.join(image, "bin", name))
        fifo = os.path.join(image, "tick/fifo")
        os.mkfifo(fifo, 0o666)
        os.chmod(fifo, 0o666)
        # Both ends, so that a writer never waits and never gets SIGPIPE.
        self.fifo = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
        return image

    # ---- runners that die ----

    def wrap_runner(self):
        """A runner that notes its pid and, while there is a token, takes one and dies at its point."""
        self.pids = os.path.join(self.base, "pids")
        self.tokens = os.path.join(self.base, "tokens")
        self.used = os.path.join(self.base, "used")
        os.mkdir(self.tokens)
        os.mkdir(self.used)
        self.wrapper = os.path.join(self.base, "runner")
        with open(self.wrapper, "w") as f:
            f.write("#!/bin/sh\n"
                    "unset SBX_CRASH_AT\n"
                    "case \"$*\" in *--preflight*) exec %(real)s \"$@\";; esac\n"
                    "echo $$ >> %(base)s/pids\n"
                    "for t in %(base)s/tokens/*; do\n"
                    "  if mv \"$t\" %(base)s/used/$$ 2>/dev/null; then\n"
                    "    read SBX_CRASH_AT < %(base)s/used/$$; export SBX_CRASH_AT; break\n"
                    "  fi\n"
                    "done\n"
                    "exec %(real)s \"$@\"\n" % {"real": sbx.RUNNER, "base": self.base})
        os.chmod(self.wrapper, 0o755)

    def arm(self, point, n=1):
        """The next n runners to be started die at this point."""
        for _ in range(n):
            self.serial += 1
            path = os.path.join(self.base, "token")
            with open(path, "w") as f:
                f.write(point + "\n")
            os.rename(path, os.path.join(self.tokens, "%06d" % self.serial))

    def disarm(self):
        for name in os.listdir(self.tokens):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.tokens, name))

    def runner_pids(self):
        if not os.path.exists(self.pids):
            return []
        with open(self.pids) as f:
            return [int(line) for line in f.read().split()]

    def live_runners(self):
        return [p for p in self.runner_pids() if start_time(p)]

    def runner_of(self, run):
        """The pid of the runner that has claimed this run."""
        owner = self.sql("SELECT claim_owner FROM runs WHERE id=?", run.id)[0][0]
        return int(owner.split("/")[2])

    def wait_idle(self, pid, timeout=20):
        """Until this runner waits for a run: it has a sandbox ready and sleeps in recvfrom."""
        end = time.monotonic() + timeout * sbx.SLOW
        while time.monotonic() < end:
            with open("/proc/%d/syscall" % pid) as f:
                if f.read().split()[:2] == ["45", "0x3"] and len(descendants(pid)) >= 2:
                    return
            os.sched_yield()
        raise AssertionError("runner %d does not become idle" % pid)

    def init_of(self, run):
        """Process 1 of this run's sandbox."""
        return children(self.runner_of(run))[0]

    # ---- doors ----

    def door(self, crash_at=None, opts=(), **settings):
        """A started door."""
        m = sbx.Mount(state=self.state, opts=opts, settings={**self.settings, **settings},
                      env={"SANDBOXFS_RUNNER": self.wrapper, "SBX_CRASH_AT": crash_at or ""}, check_leaks=False)
        self.doors.append(m)
        m.start()
        return m

    def crash_at(self, door, point):
        """Takes effect at the door's next start."""
        door.env["SBX_CRASH_AT"] = point or ""

    def start_that_dies(self, door):
        """Starts a door that dies while it starts, or right after."""
        try:
            door.start()
        except (AssertionError, OSError):
            pass
        self.died(door)

    def died(self, door, timeout=20):
        """Waits for the death of a door that came to its point."""
        code = door.proc.wait(timeout * sbx.SLOW)
        assert code == -signal.SIGKILL, "the door ended with %s: %s" % (code, door.errors())

    # ---- runs ----

    def key(self, hint="k"):
        self.serial += 1
        return "%s%d" % (hint, self.serial)

    def spec(self, key, script="", **over):
        """First of all it ticks, then it says that it ran, then it does what the test wants."""
        command = ["sh", "-c", "echo %s > /tick/fifo; echo ran %s; echo %s > ran; %s" % (key, key, key, script)]
        return {"command": command, "capture_patterns": ["ran"], "timeout_sec": 120, "name": key, **over}

    def submit(self, door, script="", key=None, **over):
        key = key or self.key()
        run = door.submit(self.spec(key, script, **over))
        run.key = key
        self.runs[key] = run
        return run

    def submit_that_dies(self, door, script="", key=None, **over):
        """A submission during which the door dies: nobody was told that it was accepted. It may be there
        all the same, and then it is a run like any other."""
        key = key or self.key()
        self.maybe.add(key)
        try:
            door.submit(self.spec(key, script, **over))
        except OSError as e:
            assert e.errno in DIED or isinstance(e, sbx.Refused), e
        else:
            raise AssertionError("the door was expected to die")
        self.died(door)
        return key

    def move(self, run, door):
        """The same run, seen through another door."""
        run.mount = door
        run.dir = os.path.join(door.mnt, "runs", run.id)
        return run

    def drain(self):
        """Counts the ticks that have come."""
        with contextlib.suppress(BlockingIOError):
            self.partial = getattr(self, "partial", b"")
            while data := os.read(self.fifo, 65536):
                *lines, self.partial = (self.partial + data).split(b"\n")
                for line in lines:
                    key = line.decode()
                    self.ticks[key] = self.ticks.get(key, 0) + 1
        return self.ticks

    def wait_tick(self, key, timeout=20):
        end = time.monotonic() + timeout * sbx.SLOW
        poll = select.poll()
        poll.register(self.fifo, select.POLLIN)
        while not self.drain().get(key):
            assert poll.poll(max(0, end - time.monotonic()) * 1000), "%s was not executed" % key

    # ---- looking ----

    def sql(self, text, *args):
        c = sqlite3.connect("file:%s/state.db?mode=ro" % self.state, uri=True, timeout=20 * sbx.SLOW)
        try:
            return c.execute(text, args).fetchall()
        finally:
            c.close()

    def row(self, key):
        rows = self.sql("SELECT id, phase, reason, exit_code, has_exit_code, generation FROM runs WHERE name=?", key)
        assert len(rows) <= 1, rows
        return rows[0] if rows else None

    def sleep_until_boot(self, at_us):
        """Until the boot clock, which the service counts by, has passed this moment."""
        fd = sbx.libc.timerfd_create(7, os.O_CLOEXEC)
        spec = (ctypes.c_long * 4)(0, 0, at_us // 1000000, at_us % 1000000 * 1000 + 1000)
        assert sbx.libc.timerfd_settime(fd, 1, spec, None) == 0
        os.read(fd, 8)
        os.close(fd)

    def wait_sql(self, text, value, timeout=20):
        """Until the query gives this value; looks again whenever the feed of changes is rung."""
        end = time.monotonic() + timeout * sbx.SLOW
        with watch(os.path.join(self.state, "notify/feed"), 0x2 | 0x4) as ring:
            while self.sql(text)[0][0] != value:
                assert ring(end - time.monotonic()), "%s is %s" % (text, self.sql(text))

    def wait_path_gone(self, path, timeout=20):
        end = time.monotonic() + timeout * sbx.SLOW
        with watch(os.path.dirname(path), 0x200 | 0x40) as ring:  # IN_DELETE, IN_MOVED_FROM
            while os.path.exists(path):
                assert ring(end - time.monotonic()), "%s is still there" % path

    # ---- what must hold ----

    def settle(self, door, timeout=60):
        """Waits, through this door, until every run has ended, by the nodes that wait."""
        for run_id in door.runs():
            run = sbx.Run(door, run_id)
            run.wait(timeout)
            # A follower of the stream is let go, too, and has seen what the file holds.
            data = follow(run, timeout)
            assert data == run.read("log.ndjson"), (data, run.read("log.ndjson"))

    def check(self, door):
        """Every promise, once everything has ended."""
        self.settle(door)
        self.drain()
        rows = self.sql("SELECT id, name, phase, reason, has_exit_code, exit_code, claim_owner, artifact_count, "
                        "log_bytes, finished_us FROM runs")
        by_id = {r[0]: r for r in rows}
        names = [r[1] for r in rows]
        assert len(set(names)) == len(names), "the same document became two runs: %s" % names
        for key, run in self.runs.items():
            assert run.id in by_id, "accepted run %s is lost" % key
        assert sorted(by_id) == door.runs()
        for run_id, name, phase, reason, has_exit, code, owner, artifacts, log_bytes, finished in rows:
            about = (name, PHASES[phase], reason, self.ticks.get(name, 0))
            assert phase >= 4 and finished > 0, about
            assert owner is None, about
            assert self.ticks.get(name, 0) <= 1, "executed twice: %s" % (about,)
            assert name in self.runs or name in self.maybe or name in self.expired, about
            self.check_run(sbx.Run(door, run_id), about, PHASES[phase], reason, artifacts, log_bytes)
            if phase == 4:
                assert has_exit and code == 0 and self.ticks.get(name) == 1, about
        for key in self.ticks:
            assert key in names, "%s was executed without a row" % key
        self.check_store()

    def check_run(self, run, about, phase, reason, artifacts, log_bytes):
        doc = run.json()
        assert (doc["phase"], doc["status_reason_code"]) == (phase, reason), (doc, about)
        assert run.status() == phase
        frames = run.frames()
        events = [f["event"] for f in frames if f["type"] == "event"]
        assert events.count("start") <= 1, (about, frames)
        assert events.count("end") == 1 and frames[-1].get("event") == "end", (about, frames[-3:])
        assert [f["seq"] for f in frames] == list(range(1, len(frames) + 1)), (about, frames)
        log = run.log
        assert len(log) == os.stat(run.path("log")).st_size == log_bytes, (about, len(log), log_bytes)
        key = about[0]
        if b"ran" in log:
            assert log.startswith(b"ran %s\n" % key.encode()) and log.count(b"ran ") == 1, (about, log)
            assert about[3] == 1, about
        listed = os.listdir(run.path("artifacts"))
        if key in self.expired:
            assert listed == [], (about, listed)
        elif phase == "completed":
            assert "start" in events, about
            assert log.startswith(b"ran %s\n" % key.encode()), (about, log)
            assert listed == ["ran"] and artifacts == 1, (about, listed)
            assert run.read("artifacts", "ran") == key.encode() + b"\n"
        for name in listed:
            assert artifacts >= 1, (about, listed)

    def check_store(self):
        assert self.sql("PRAGMA integrity_check") == [("ok",)]
        counts = dict(self.sql("SELECT phase, sum(n) FROM phase_counts GROUP BY phase HAVING sum(n) <> 0"))
        assert counts == dict(self.sql("SELECT phase, count(*) FROM runs GROUP BY phase")), counts
        ends = dict(self.sql("SELECT phase, sum(runs) FROM run_ends GROUP BY phase"))
        assert ends == dict(self.sql("SELECT phase, count(*) FROM runs WHERE finished_us > 0 GROUP BY phase")), ends
        totals = self.sql("SELECT owner, runs, artifact_bytes FROM usage_totals ORDER BY owner")
        real = self.sql("SELECT owner, count(*), coalesce(sum(CASE artifacts_gone WHEN 0 THEN artifact_bytes ELSE 0 END), 0) "
                        "FROM runs GROUP BY owner ORDER BY owner")
        assert totals == real, (totals, real)
        listed = self.sql("SELECT count(*) FROM artifacts")[0][0]
        assert listed == self.sql("SELECT coalesce(sum(artifact_count), 0) FROM runs WHERE artifacts_gone=0")[0][0]

    def check_files(self):
        ids = {r[0] for r in self.sql("SELECT id FROM runs")}
        for where, folders, files in os.walk(self.state):
            for name in folders + files:
                path = os.path.relpath(os.path.join(where, name), self.state)
                assert KNOWN.fullmatch(path), "left in the state directory: " + path
        for name in os.listdir(os.path.join(self.state, "runs")):
            assert name in ids, "a run directory without a row: " + name

    def check_outside(self):
        """No process, mount or control group is left."""
        probe = self.doors[0]
        left = probe.wait_processes_gone(20)
        assert not left, "processes left: %s" % [open("/proc/%d/cmdline" % p).read() for p in left]
        with open("/proc/self/mountinfo") as f:
            mounts = [line for line in f if self.base in line]
        assert not mounts, mounts
        pids = set(self.runner_pids())
        for top in own_groups():
            for name in os.listdir(top) if os.path.isdir(top) else ():
                owner = name.split("-")[0]
                assert not (owner.isdigit() and int(owner) in pids and not start_time(int(owner))), \
                    "a control group is left: %s/%s" % (top, name)

    # ---- the end ----

    def stop(self):
        for m in self.doors:
            m.stop()
            if m.is_mounted():
                m.unmount_stale()

    def finish(self):
        """One last door looks at everything; then all go and nothing is left."""
        self.disarm()
        for m in self.doors:
            m.stop()
        last = self.door()
        self.check(last)
        self.stop()
        self.check_outside()
        self.check_files()
        for m in self.doors:
            said = m.errors()
            assert "Sanitizer" not in said and "runtime error" not in said, said

    def __enter__(self):
        return self

    def __exit__(self, kind, *rest):
        try:
            if not kind:
                self.finish()
        except BaseException:
            kind = True
            raise
        finally:
            if kind:
                for m in self.doors:
                    sys.stderr.write(m.errors() if hasattr(m, "log_path") else "")
            self.clean()

    def clean(self):
        for m in self.doors:
            with contextlib.suppress(Exception):
                if m.proc and m.proc.poll() is None:
                    m.kill()
            m.unmount_stale()
        for pid in [p for p in (self.doors[0].processes() if self.doors else ()) if p != os.getpid()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                os.kill(pid, signal.SIGCONT)
        for m in self.doors:
            shutil.rmtree(m.base, ignore_errors=True)
        os.close(self.fifo)
        shutil.rmtree(self.base, ignore_errors=True)
        reap_all()
