# SPDX-License-Identifier: Apache-2.0
"""Sessions through the HTTP door: forms with files, made by hand so that they can be wrong; archives; a session
as its owner sees it; locks that hold the service up for as long as a test wants."""
import contextlib
import fcntl
import io
import os
import tarfile
import threading
import time
import zipfile

import api
import rawhttp
import sbx

BOUNDARY = "----what-separates"


def raw(x):
    return x if isinstance(x, bytes) else x.encode("utf-8", "surrogateescape")


def part(name, file_name, data, boundary=BOUNDARY, headers=()):
    """One part of a form; file_name None: without one. What stands between the quotes is given as it goes out."""
    head = b'form-data; name="%s"' % raw(name)
    if file_name is not None:
        head += b'; filename="%s"' % raw(file_name)
    lines = [b"Content-Disposition: " + head, *[raw(h) for h in headers]]
    return b"--" + raw(boundary) + b"\r\n" + b"\r\n".join(lines) + b"\r\n\r\n" + raw(data) + b"\r\n"


def end(boundary=BOUNDARY):
    return b"--" + raw(boundary) + b"--\r\n"


def form(*files):
    """The body of an upload of these (name, content)."""
    return b"".join(part("files", name, data) for name, data in files) + end()


def form_type(boundary=BOUNDARY):
    return "multipart/form-data; boundary=" + boundary


def tar(*members, mode="w:gz"):
    """members: (name, bytes), or a TarInfo."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as t:
        for m in members:
            if isinstance(m, tarfile.TarInfo):
                t.addfile(m)
                continue
            info = tarfile.TarInfo(m[0])
            info.size = len(m[1])
            t.addfile(info, io.BytesIO(m[1]))
    return out.getvalue()


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def zipped(*members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
        for name, data in members:
            z.writestr(name, data)
    return out.getvalue()


class Session:
    def __init__(self, a, id, login=None):
        self.api, self.id, self.login = a, id, login

    @classmethod
    def make(cls, a, spec=None, login=None, **more):
        """One whose runs have an image unless the document says otherwise."""
        got = a.post("/sessions", {"spec_version": "1.0", "base_image": "host", **(spec or {}), **more}, login=login)
        assert got.status == 200, got
        return cls(a, got.json["id"], login)

    def through(self, a):
        return Session(a, self.id, self.login)

    def path(self, rest=""):
        return "/sessions/" + self.id + rest

    # ---- what it may be asked ----

    def ask(self, method, rest="", body=None, login=None, **kw):
        return self.api.request(method, self.path(rest), body, login=login or self.login, **kw)

    def get(self, **kw):
        return self.ask("GET", **kw)

    def delete(self, **kw):
        return self.ask("DELETE", **kw)

    def send(self, body, content_type=None, **kw):
        return self.ask("POST", "/files", body, headers={"Content-Type": content_type or form_type()}, **kw)

    def upload(self, *files, **kw):
        """(name, content) each."""
        return self.send(form(*files), **kw)

    def put(self, *files):
        """The same, and it is known to succeed."""
        got = self.upload(*files)
        assert got.status == 200 and got.json["file_count"] == len(files), got
        return got.json

    def snapshot(self, **doc):
        return self.ask("POST", "/snapshot", doc or None)

    def snapshots(self, **kw):
        got = self.ask("GET", "/snapshots", **kw)
        assert got.status == 200, got
        return got.json["items"]

    def restore(self, snapshot_id):
        return self.ask("POST", "/restore", {"snapshot_id": snapshot_id})

    def clone(self, **doc):
        return self.ask("POST", "/clone", doc or None)

    # ---- its runs ----

    def try_run(self, *command, **spec):
        return self.api.post("/runs", {"spec_version": "1.0", "session_id": self.id, "command": list(command), **spec},
                             login=self.login)

    def run(self, *command, **spec):
        got = self.try_run(*command, **spec)
        assert got.status == 200, got
        return api.Run(self.api, got.json, self.login)

    def sh(self, script, **spec):
        """Runs it in the workspace; its output."""
        run = self.run("sh", "-c", script, **spec)
        doc = run.wait()
        assert doc["phase"] == "completed", doc
        return output(run)

    # ---- where the service keeps it ----

    def files(self, *names):
        return os.path.join(self.api.state, "sessions", self.id, *names)

    def workspace(self, *names):
        return self.files("workspace", *names)

    def read(self, *names):
        with open(self.workspace(*names), "rb") as f:
            return f.read()

    def write(self, data, *names):
        with open(self.workspace(*names), "wb") as f:
            f.write(raw(data))

    def tree(self):
        """Every path in the workspace."""
        top = self.workspace()
        return sorted(os.path.relpath(os.path.join(where, name), top)
                      for where, folders, files in os.walk(top) for name in folders + files)


def output(run):
    """What it wrote to stdout, as a follower of its stream has it."""
    import wsclient
    with run.api.stream(run) as ws:
        frames, _ = ws.frames()
    return wsclient.output([f for f in frames if f["type"] == "stdout"])


# ---- things that take as long as a test wants --------------------------------------------------------

@contextlib.contextmanager
def held(path, how=fcntl.LOCK_EX):
    """flock on a file that the service locks as well."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, how)
        yield
    finally:
        os.close(fd)


def objects(a):
    """No snapshot can be written until this is left; one that is being taken has the workspace meanwhile."""
    return held(os.path.join(a.state, "objects.lock"))


def again(look, what, timeout=20):
    """The first true value of look(), of which no event tells."""
    limit = time.monotonic() + timeout * sbx.SLOW
    while not (value := look()):
        assert time.monotonic() < limit, what
        os.sched_yield()
    return value


def waits_for_objects(a):
    """Until a snapshot is being taken that cannot be written."""
    inode = os.stat(os.path.join(a.state, "objects.lock")).st_ino

    def look():
        with open("/proc/locks") as f:
            return any(line.split()[1] == "->" and line.split()[-3].endswith(":%d" % inode) for line in f)

    again(look, "nobody waits for the objects")


class Arrivals:
    """Tells when requests have arrived that are not answered yet."""

    def __init__(self, a):
        self.api, self.seen = a, a.metric("sandbox_http_requests_total")

    def wait(self, n=1):
        """For n more, sent by others; each look is a request as well."""
        def look():
            self.seen += 1
            return self.api.metric("sandbox_http_requests_total") - self.seen >= n
        again(look, "the requests do not arrive")
        self.seen += n


class Asked:
    """A request that is on its way in a thread of its own."""

    def __init__(self, ask, *args, **kw):
        self.answer, self.error = None, None

        def work():
            try:
                self.answer = ask(*args, **kw)
            except Exception as e:  # told to whoever waits for it
                self.error = e

        self.thread = threading.Thread(target=work)
        self.thread.start()

    def wait(self, timeout=60):
        self.thread.join(timeout * sbx.SLOW)
        assert not self.thread.is_alive(), "no answer"
        if self.error:
            raise self.error
        return self.answer

    def is_open(self):
        return self.thread.is_alive()


class Slow:
    """An upload whose body comes as the test sends it. The workspace is its own when this has been made."""

    def __init__(self, session, length, login=None):
        a = session.api
        login = login or session.login or a.login
        self.raw = rawhttp.Raw(("127.0.0.1", a.port))
        self.raw.send(rawhttp.head("POST", api.BASE + session.path("/files"),
                                   [*login.headers.items(), ("Content-Type", form_type()), ("Content-Length", str(length)),
                                    ("Expect", "100-continue")]))
        self.go = self.raw.answer()

    def send(self, data):
        self.raw.send(data)
        return self

    def answer(self):
        return self.raw.answer()

    def close(self):
        self.raw.close()

    def __enter__(self):
        assert self.go.status == 100, self.go
        return self

    def __exit__(self, *_):
        self.close()
