# SPDX-License-Identifier: Apache-2.0
"""What the tests of the HTTP door share: a real sandbox-apid on a state directory of its own or on one that a
Mount or another Apid has, requests over TCP and over the Unix socket, users with tokens, runs. Nothing here
sleeps: everything waits for the event, with a time limit."""
import contextlib
import ctypes
import http.client
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse

import database
import sbx
import tokens

APID = os.path.join(os.path.abspath(sbx.BUILD), "apid", "sandbox-apid")
BASE = "/api/v1/sandbox"
API_KEY = "a-key-that-only-tests-know"
JWT_SECRET = tokens.SECRET
IN_MODIFY, IN_ATTRIB, IN_DELETE, IN_CREATE = 0x2, 0x4, 0x200, 0x100


@contextlib.contextmanager
def watch(path, mask, *others):
    """inotify on one path: gives a function that waits for the next event, or for one of the other
    descriptors; False when the time is over."""
    fd = sbx.libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if sbx.libc.inotify_add_watch(fd, os.fsencode(path), mask) < 0:
            raise OSError(ctypes.get_errno(), "inotify_add_watch " + path)
        poll = select.poll()
        for one in (fd, *others):
            poll.register(one, select.POLLIN)

        def ring(timeout):
            if not poll.poll(max(0, timeout) * 1000):
                return False
            with contextlib.suppress(BlockingIOError):
                while os.read(fd, 65536):
                    pass
            return True

        yield ring
    finally:
        os.close(fd)


def wait_until(clock, seconds):
    """Until this clock of time.CLOCK_* shows this moment: for what is promised only after a time."""
    fd = sbx.libc.timerfd_create(clock, os.O_CLOEXEC)
    try:
        whole = int(seconds)
        spec = (ctypes.c_long * 4)(0, 0, whole, int((seconds - whole) * 1e9) + 1)
        assert sbx.libc.timerfd_settime(fd, 1, spec, None) == 0
        os.read(fd, 8)
    finally:
        os.close(fd)


# ---- who asks --------------------------------------------------------------------------------------

class Login:
    def __init__(self, name, **headers):
        self.name = name
        self.headers = {k.replace("_", "-"): v for k, v in headers.items()}


def user(name, role="user", **claims):
    """Somebody of whom a token tells; the server needs USERS among its settings."""
    return Login(name, Authorization="Bearer " + tokens.token(sub=name, role=role, **claims))


KEY = Login("key", X_API_KEY=API_KEY)
NOBODY = Login("nobody")
USERS = {"auth_mode": "multi_user", "jwt_secret": JWT_SECRET}


# ---- answers ---------------------------------------------------------------------------------------

class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        """The error object, or {}."""
        try:
            doc = self.json
        except ValueError:
            return {}
        return doc.get("error", {}) if isinstance(doc, dict) else {}

    @property
    def code(self):
        return self.error.get("code")

    @property
    def details(self):
        return self.error.get("details", {})

    def __repr__(self):
        return "Answer(%d, %r)" % (self.status, self.body[:600])


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Run:
    """A run as its owner sees it through one server."""

    def __init__(self, api, doc, login=None):
        self.api, self.posted, self.login = api, doc, login
        self.id = doc["id"]

    def through(self, api):
        return Run(api, self.posted, self.login)

    def get(self, login=None):
        a = self.api.get("/runs/" + self.id, login=login or self.login)
        assert a.status == 200, a
        return a.json

    def phase(self):
        return self.get()["phase"]

    def wait(self, timeout=20):
        """Its status once it has ended."""
        limit = timeout * sbx.SLOW
        a = self.api.get("/runs/%s?wait=%d" % (self.id, min(600, limit)), login=self.login, timeout=limit + 10)
        assert a.status == 200, a
        assert a.json["phase"] in sbx.TERMINAL, "still %s after %d s" % (a.json["phase"], limit)
        return a.json

    def wait_phase(self, *phases, timeout=20):
        """Its status as soon as it has one of these phases; fails when it can have none of them any more."""
        def look():
            doc = self.get()
            assert doc["phase"] in phases or doc["phase"] not in sbx.TERMINAL, doc
            return doc if doc["phase"] in phases else None
        return self.api.until(look, timeout)

    def cancel(self, login=None):
        return self.api.post("/runs/%s/cancel" % self.id, login=login or self.login)

    def artifacts(self):
        """Path to size."""
        a = self.api.get("/runs/%s/artifacts" % self.id, login=self.login)
        assert a.status == 200, a
        return {item["path"]: item["size"] for item in a.json["items"]}

    def artifact(self, path, login=None, **headers):
        """Path as it shall stand in the request."""
        return self.api.get("/runs/%s/artifacts/%s" % (self.id, path), login=login or self.login, headers=headers)

    def files(self, *names):
        """Where the service keeps what belongs to this run."""
        return os.path.join(self.api.state, "runs", self.id, *names)

    def log(self):
        with open(self.files("log"), "rb") as f:
            return f.read()

    def row(self, *columns):
        return self.api.sql("SELECT %s FROM runs WHERE id=?" % ", ".join(columns), self.id)[0]


# ---- the server ------------------------------------------------------------------------------------

_real_preflight = {}


def real_preflight():
    """What the runtimes say of this host, as the server asks them."""
    if not _real_preflight:
        with tempfile.TemporaryDirectory(prefix="sbx-test-") as where:
            out = subprocess.run([sbx.RUNNER, "--preflight", "--state", where], stdout=subprocess.PIPE,
                                 stdin=subprocess.DEVNULL, timeout=20 * sbx.SLOW, check=True).stdout
        _real_preflight.update(json.loads(out))
    return json.loads(json.dumps(_real_preflight))


class Apid:
    """A sandbox-apid. Use as a context manager; leaving it checks that it ends well and leaves nothing.

    settings   of docs/configuration.md, on the command line
    env        further environment
    preflight  {runtime: {member: value}}: what the runtimes are to say of this host, where that differs from
               what they do say; None for a runtime: it says nothing"""

    def __init__(self, state=None, settings=None, env=None, args=(), config="", preflight=None, path=None):
        self.base = tempfile.mkdtemp(prefix="sbx-test-")
        os.chmod(self.base, 0o755)
        self.state = state or os.path.join(self.base, "state")
        self.settings = dict(settings or {})
        self.args = list(args)
        self.env = dict(os.environ, SINGLE_USER_API_KEY=API_KEY, **(env or {}))
        if path is not None:
            self.env["PATH"] = path
        self.conf = os.path.join(self.base, "sandboxfs.conf")
        with open(self.conf, "w") as f:  # a configuration of the machine must not change a test
            f.write(config)
        self.log_path = os.path.join(self.base, "apid.err")
        # Two servers on one state cannot have one socket.
        self.socket = os.path.join(self.base if state else self.state, "api.sock")
        self.proc, self.port, self.said = None, None, 0
        self.login = user("alice") if self.settings.get("auth_mode") == "multi_user" else KEY
        if preflight is not None:
            self.env["SANDBOXFS_RUNNER"] = self.claiming_runner(preflight)
        sbx.Mount.all.add(self)  # so that a Mount on the same state knows of us, and we of it

    def claiming_runner(self, changes):
        """A runner that claims these things of the host and is real otherwise."""
        record = real_preflight()
        for name, members in changes.items():
            if members is None:
                record.pop(name, None)
            else:
                record[name].update(members)
        with open(os.path.join(self.base, "preflight.json"), "w") as f:
            json.dump(record, f)
        path = os.path.join(self.base, "runner")
        with open(path, "w") as f:
            f.write("#!/bin/sh\ncase \"$*\" in *--preflight*) cat %s/preflight.json; exit;; esac\n"
                    "exec %s \"$@\"\n" % (self.base, sbx.RUNNER))
        os.chmod(path, 0o755)
        return path

    def argv(self):
        options = ["--state", self.state, "--config", self.conf]
        options += ["--unix", self.socket] if not self.socket.startswith(self.state) else []
        if "--listen" not in self.args:
            options += ["--listen", "127.0.0.1:0"]
        for key, value in self.settings.items():
            options += ["-o", "%s=%s" % (key, str(value).lower() if isinstance(value, bool) else value)]
        return [APID] + options + self.args

    # ---- life ----

    def start(self):
        """Until it listens: from then on connections are made, and answered as soon as it has started."""
        self.said = os.path.getsize(self.log_path) if os.path.exists(self.log_path) else 0
        with open(self.log_path, "ab") as log:
            self.proc = subprocess.Popen(self.argv(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env)
        if "none" not in self.args:
            self.port = int(self.wait_line(r"listening address=\S+ port=(\d+)").group(1))
        self.wait_line(r"listening path=")
        return self

    def wait_line(self, pattern, timeout=20):
        """Until the server has printed a line like this, since its last start."""
        end = time.monotonic() + timeout * sbx.SLOW
        pidfd = os.pidfd_open(self.proc.pid)
        try:
            with watch(self.log_path, IN_MODIFY, pidfd) as ring:
                while True:
                    over = self.proc.poll() is not None
                    found = re.search(pattern, self.errors()[self.said:])
                    if found:
                        return found
                    assert not over, "sandbox-apid ended with %s: %s" % (self.proc.returncode, self.errors())
                    assert ring(end - time.monotonic()), "sandbox-apid did not say %r: %s" % (pattern, self.errors())
        finally:
            os.close(pidfd)

    def errors(self):
        if not os.path.exists(self.log_path):
            return ""
        with open(self.log_path, errors="replace") as f:
            return f.read()

    def fails(self, timeout=20):
        """Starts it and waits for its end, which is what is expected. (exit status, what it said)"""
        self.said = 0
        with open(self.log_path, "ab") as log:
            self.proc = subprocess.Popen(self.argv(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env)
        return self.proc.wait(timeout * sbx.SLOW), self.errors()

    def stop(self, timeout=20):
        """TERM, as an operator would; the exit status."""
        if self.proc and self.proc.poll() is None:
            self.proc.send_signal(signal.SIGTERM)
            try:
                self.proc.wait(timeout * sbx.SLOW)
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError("sandbox-apid does not stop: " + self.errors()) from None
        return self.proc.returncode if self.proc else None

    def kill(self):
        self.proc.kill()
        self.proc.wait()

    processes = sbx.Mount.processes
    wait_processes_gone = sbx.Mount.wait_processes_gone
    shared = sbx.Mount.shared

    def close(self, check=True):
        killed = self.proc is not None and self.proc.poll() is not None
        try:
            status = self.stop()
            left = [] if self.shared() else self.wait_processes_gone()
        finally:
            errors = self.errors()
            socket_left = os.path.exists(self.socket)
            if not self.shared():
                for pid in [p for p in self.processes() if p != os.getpid()]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            shutil.rmtree(self.base, ignore_errors=True)
        if check:
            assert not left, "processes left: %s" % left
            assert killed or status in (0, None), "exit status %s: %s" % (status, errors)
            assert killed or not socket_left, "its socket is left"
            assert "Sanitizer" not in errors and "runtime error" not in errors, errors

    def __enter__(self):
        try:
            return self.start()
        except BaseException:
            self.close(check=False)
            raise

    def __exit__(self, kind, *rest):
        if kind:
            sys.stderr.write(self.errors())
        self.close(check=not kind)

    # ---- requests ----

    def connection(self, unix=False, timeout=30):
        limit = timeout * sbx.SLOW
        return (UnixConnection(self.socket, limit) if unix
                else http.client.HTTPConnection("127.0.0.1", self.port, timeout=limit))

    def url(self, path):
        """Paths are below the API's base; those that begin with // are not."""
        return path[1:] if path.startswith("//") else BASE + path

    def request(self, method, path, body=None, login=None, headers=(), unix=False, timeout=30):
        head = {} if unix and login is None else dict((login or self.login).headers)
        head.update({k.replace("_", "-"): v for k, v in dict(headers).items()})
        if isinstance(body, (dict, list)):
            body = json.dumps(body).encode()
            head.setdefault("Content-Type", "application/json")
        c = self.connection(unix, timeout)
        try:
            c.request(method, self.url(path), body=body, headers=head)
            r = c.getresponse()
            return Answer(r.status, r.headers, r.read())
        finally:
            c.close()

    def get(self, path, **kw):
        return self.request("GET", path, **kw)

    def post(self, path, body=None, **kw):
        return self.request("POST", path, body, **kw)

    # ---- runs ----

    def try_run(self, spec, login=None, key=None, **kw):
        """POST /runs, whatever comes of it. An image is filled in."""
        headers = {"Idempotency-Key": key} if key else {}
        return self.post("/runs", {"spec_version": "1.0", "base_image": "host", **spec}, login=login,
                         headers={**headers, **kw.pop("headers", {})}, **kw)

    def run(self, spec, login=None, **kw):
        a = self.try_run(spec, login, **kw)
        assert a.status == 200, a
        return Run(self, a.json, login)

    def sh(self, script, login=None, **spec):
        return self.run({"command": ["sh", "-c", script], "timeout_sec": 60, **spec}, login)

    def until(self, look, timeout=20):
        """The first true value of look(), which is asked again whenever something has changed in the store."""
        end = time.monotonic() + timeout * sbx.SLOW
        with watch(os.path.join(self.state, "notify/feed"), IN_MODIFY | IN_ATTRIB) as ring:
            while True:
                value = look()
                if value:
                    return value
                assert ring(end - time.monotonic()), "nothing came of it"

    def metric(self, name, **labels):
        """The sum of all samples of this name that have these labels."""
        a = self.get("//metrics")
        assert a.status == 200, a
        total = None
        for line in a.body.decode().splitlines():
            m = re.fullmatch(re.escape(name) + r"(?:\{(.*)\})? (\S+)", line)
            if not m:
                continue
            have = dict(re.findall(r'(\w+)="([^"]*)"', m.group(1) or ""))
            if all(have.get(k) == v for k, v in labels.items()):
                total = (total or 0) + float(m.group(2))
        assert total is not None, "no metric %s in %s" % (name, a.body.decode())
        return total

    def runtime(self, name):
        """Its entry in GET /runtimes."""
        a = self.get("/runtimes")
        assert a.status == 200, a
        return next(r for r in a.json["runtimes"] if r["name"] == name)

    def stream(self, run, login=None, headers=None, **query):
        """An open WebSocket on the stream of a run. run: a Run, an id, or a path with its query, as an answer
        gives it; other words are of its query."""
        import wsclient
        path = getattr(run, "id", run)
        if not path.startswith("/"):
            path = "%s/runs/%s/stream" % (BASE, path)
        if query:
            path += ("&" if "?" in path else "?") + urllib.parse.urlencode(query)
        if headers is None:
            headers = (login or getattr(run, "login", None) or self.login).headers
        return wsclient.WS(("127.0.0.1", self.port), path, tuple(dict(headers).items()), timeout=20 * sbx.SLOW)

    # ---- the database, for what no request can make or show ----

    def sql(self, text, *args):
        return database.sql(self.state, text, *args)

    def change(self, text, *args):
        database.change(self.state, text, *args)
