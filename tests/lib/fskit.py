# SPDX-License-Identifier: Apache-2.0
"""Helpers for the tests of the mount itself: shells, other users, inotify, event streams."""
import contextlib
import ctypes
import json
import os
import select
import signal
import struct
import subprocess
import time

import sbx

# Uids that no login uses: their names on the mount are "uid:N".
ALICE, BOB, CAROL = 4100001, 4100002, 4100003


def shell(mount, script, sh="sh", timeout=60, **kw):
    """A shell in the mount's root; MNT names it."""
    argv = sh if isinstance(sh, (list, tuple)) else [sh]
    return subprocess.run([*argv, "-c", script], cwd="/", env=dict(os.environ, MNT=mount.mnt, LC_ALL="C"),
                          stdin=kw.pop("stdin", subprocess.DEVNULL), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=timeout * sbx.SLOW, **kw)


def become(uid):
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def as_user(uid, fn, *args):
    """Calls fn(*args) in a child process of this uid. Returns its value, or raises its OSError."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(r)
            become(uid)
            try:
                answer = {"value": fn(*args)}
            except OSError as e:
                answer = {"errno": e.errno, "reply": getattr(e, "reply", None)}
            with os.fdopen(w, "w") as f:
                json.dump(answer, f)
            status = 0
        finally:
            os._exit(status)
    os.close(w)
    with os.fdopen(r) as f:
        text = f.read()
    os.waitpid(pid, 0)
    if not text:
        raise AssertionError("the child of uid %d died" % uid)
    answer = json.loads(text)
    if "errno" in answer:
        if answer["reply"] is not None:
            raise sbx.Refused(answer["errno"], answer["reply"])
        raise OSError(answer["errno"], os.strerror(answer["errno"]))
    return answer["value"]


def submit_as(uid, mount, spec):
    return sbx.Run(mount, as_user(uid, lambda: mount.submit(spec).id))


def readable(fd, timeout, events=select.POLLIN):
    poll = select.poll()
    poll.register(fd, events)
    got = poll.poll(max(0, timeout) * 1000)
    return got[0][1] if got else 0


def sync(path):
    """As sync(1) does with a file or directory."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def wait_exit(proc, timeout=20):
    """The return code of a Popen; fails in place of waiting for ever."""
    return proc.wait(timeout * sbx.SLOW)


def kill_idle_runners(mount):
    """While no run is under way. Their places are taken by new ones."""
    for pid in mount.processes():
        if pid != mount.proc.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Inotify:
    MODIFY, ATTRIB, CLOSE_WRITE, CREATE, DELETE = 0x2, 0x4, 0x8, 0x100, 0x200
    MOVED_FROM, MOVED_TO, DELETE_SELF, MOVE_SELF, ISDIR = 0x40, 0x80, 0x400, 0x800, 0x40000000

    def __init__(self):
        self.fd = sbx.libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self.paths = {}
        self.seen = []
        self.cookies = []  # beside `seen`: the same number in both halves of a move

    def add(self, path, mask):
        wd = sbx.libc.inotify_add_watch(self.fd, os.fsencode(path), mask)
        if wd < 0:
            raise OSError(ctypes.get_errno(), "inotify_add_watch " + path)
        self.paths[wd] = path
        return wd

    def read(self):
        """What there is now, as (path, mask, name); remembered in `seen`, too."""
        new = []
        with contextlib.suppress(BlockingIOError):
            while True:
                data = os.read(self.fd, 65536)
                while data:
                    wd, mask, cookie, n = struct.unpack_from("iIII", data)
                    name = data[16:16 + n].rstrip(b"\0").decode()
                    new.append((self.paths.get(wd), mask, name))
                    self.cookies.append(cookie)
                    data = data[16 + n:]
        self.seen += new
        return new

    def wait(self, want, timeout=20):
        """Until want(path, mask, name) is true of an event that was seen."""
        end = time.monotonic() + timeout * sbx.SLOW
        while True:
            for event in self.seen:
                if want(*event):
                    return event
            left = end - time.monotonic()
            if left <= 0:
                raise AssertionError("no such event; the last of %d: %r" % (len(self.seen), self.seen[-20:]))
            readable(self.fd, left)
            self.read()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        os.close(self.fd)


class Dirent(ctypes.Structure):
    _fields_ = [("ino", ctypes.c_uint64), ("off", ctypes.c_int64), ("reclen", ctypes.c_ushort),
                ("kind", ctypes.c_ubyte), ("name", ctypes.c_char * 256)]


class Dir:
    """opendir and its relatives, which Python has not."""

    def __init__(self, path):
        c = ctypes.CDLL(None, use_errno=True)
        c.opendir.restype = c.fdopendir.restype = ctypes.c_void_p
        c.readdir.restype = ctypes.POINTER(Dirent)
        c.telldir.restype = ctypes.c_long
        self.c, self.d = c, ctypes.c_void_p(c.opendir(os.fsencode(path)))
        assert self.d

    def read(self, n):
        names = []
        while n and (e := self.c.readdir(self.d)):
            names.append(e.contents.name.decode())
            n -= 1
        return names

    def tell(self):
        return self.c.telldir(self.d)

    def seek(self, at):
        self.c.seekdir(self.d, ctypes.c_long(at))

    def close(self):
        self.c.closedir(self.d)


class Events:
    """A reader of .events; with `after` it begins behind that seq."""

    def __init__(self, mount, after=None):
        path = os.path.join(mount.mnt, ".events")
        self.fd = os.open(path, (os.O_RDONLY if after is None else os.O_RDWR) | os.O_NONBLOCK)
        if after is not None:
            os.write(self.fd, b"%d\n" % after)
        self.pending = b""
        self.lines = []

    def more(self):
        """Reads what is there now; False when there is nothing."""
        try:
            data = os.read(self.fd, 65536)
        except BlockingIOError:
            return False
        self.pending += data
        *lines, self.pending = self.pending.split(b"\n")
        self.lines += [json.loads(line) for line in lines]
        return bool(data)

    def drain(self):
        while self.more():
            pass
        return self.lines

    def wait(self, want, timeout=20):
        end = time.monotonic() + timeout * sbx.SLOW
        while True:
            self.drain()
            for e in self.lines:
                if want(e):
                    return e
            left = end - time.monotonic()
            if left <= 0:
                raise AssertionError("no such event among %d, last %r" % (len(self.lines), self.lines[-3:]))
            readable(self.fd, left)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        os.close(self.fd)


class Child:
    """fn() in a forked process that the test can watch, signal and reap."""

    def __init__(self, fn):
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                status = fn() or 0
            finally:
                os._exit(status)
        self.pidfd = os.pidfd_open(self.pid)
        self.code = None

    def signal(self, sig):
        signal.pidfd_send_signal(self.pidfd, sig)

    def ended(self, timeout=0):
        return bool(readable(self.pidfd, timeout))

    def wait(self, timeout=20):
        """Exit code, or minus the signal."""
        if self.code is None:
            if not self.ended(timeout * sbx.SLOW):
                raise AssertionError("child %d still runs" % self.pid)
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self.pidfd)
        return self.code

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                self.signal(signal.SIGKILL)
            self.wait()


def blocked_in_read(pid, timeout=20):
    blocked_in(pid, {"x86_64": "0", "aarch64": "63"}, timeout)


def blocked_in_write(pid, timeout=20):
    blocked_in(pid, {"x86_64": "1", "aarch64": "64"}, timeout)


def blocked_in(pid, numbers, timeout):
    """Waits until the process sleeps in this call to the mount; its look-up and open are requests, too, in
    which it may sleep. The state has no event to wait for, so this yields the processor between looks."""
    number = numbers.get(os.uname().machine)
    end = time.monotonic() + timeout * sbx.SLOW
    while time.monotonic() < end:
        with open("/proc/%d/stat" % pid) as f:
            state = f.read().rsplit(")", 1)[1].split()[0]
        with open("/proc/%d/wchan" % pid) as f:
            where = f.read()
        with open("/proc/%d/syscall" % pid) as f:
            call = f.read().split()[0]
        if state in "SD" and ("fuse" in where or "request_wait" in where) and number in (call, None):
            return
        os.sched_yield()
    raise AssertionError("process %d does not wait in the mount" % pid)
