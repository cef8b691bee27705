# SPDX-License-Identifier: Apache-2.0
"""The two doors behind one interface: what a test does through one it can do through the other, and what
each shows of a run comes back in one shape. Both have one state directory."""
import base64
import contextlib
import errno
import json
import os
import re
import tempfile
import time

import api
import sbx

# The one list of what may differ. Between two runs of one document, in their status:
OWN_TO_A_RUN = ("id", "created_at", "started_at", "finished_at", "estimated_start_time")
# ... and in resource_usage:
MEASURED = ("cpu_time_sec", "cpu_time_us", "wall_time_sec", "wall_time_us", "peak_rss_mb", "peak_memory_bytes")
# ... and in a frame (how output is cut into frames is a matter of time, too; see View.joined):
OWN_TO_A_FRAME = ("ts",)
# Between what two processes say of one state: of the look itself, and of what each does by itself.
OWN_TO_A_LOOK = ("time", "timings", "uptime_sec")
OWN_TO_A_PROCESS = ("sandbox_queue_wait_seconds", "process_", "sandbox_process_", "sandbox_warm_")
HTTP_ALONE = ("sandbox_http_", "sandbox_ws_")


def errors_table():
    """{wire name: (HTTP status, errno)} of base/errors.def."""
    with open(os.path.join(sbx.SOURCE, "base/errors.def")) as f:
        rows = re.findall(r'^X\(\w+,\s*"(\w+)",\s*(\d+),\s*(\w+),', f.read(), re.M)
    assert len(rows) > 20
    return {name: (int(status), getattr(errno, number)) for name, status, number in rows}


class Refused(Exception):
    """By either door: `number` is the errno, or the HTTP status."""

    def __init__(self, number, error):
        super().__init__("%s %s" % (number, error))
        self.number, self.error = number, error
        self.code, self.details = error["code"], error["details"]


class View:
    """A run that has ended, as one door shows it."""

    def __init__(self, status, frames, files):
        self.status, self.frames, self.files = status, frames, files

    def bytes_of(self, *streams):
        return b"".join(f["data"].encode() if f["encoding"] == "utf8" else base64.b64decode(f["data"])
                        for f in self.frames if f["type"] in streams)

    def document(self):
        """The status without what is a run's own."""
        doc = {k: v for k, v in self.status.items() if k not in OWN_TO_A_RUN}
        doc["resource_usage"] = {k: v for k, v in doc["resource_usage"].items() if k not in MEASURED}
        return doc

    def joined(self):
        """The frames without what is a run's own: output is joined, each stream in itself."""
        rest = []
        for f in self.frames:
            if f["type"] not in ("stdout", "stderr"):
                f = {k: v for k, v in f.items() if k not in (*OWN_TO_A_FRAME, "seq")}
                if isinstance(f.get("data"), dict):
                    f["data"] = {k: v for k, v in f["data"].items() if k not in OWN_TO_A_FRAME}
                rest.append(f)
        return {"stdout": self.bytes_of("stdout"), "stderr": self.bytes_of("stderr"), "rest": rest}


def text_of(document):
    return document if isinstance(document, bytes) else (
        document if isinstance(document, str) else json.dumps(document)).encode()


class MountDoor:
    name = "mount"

    def __init__(self, mount):
        self.m = mount

    def run(self, run_id):
        return sbx.Run(self.m, run_id)

    def submit(self, document):
        """The id; raises Refused."""
        try:
            return self.m.submit(text_of(document)).id
        except sbx.Refused as e:
            raise Refused(e.errno, e.reply["error"]) from None

    def check(self, document):
        """The verdict as bytes."""
        with open(os.path.join(self.m.mnt, "runs", "check"), "r+b", buffering=0) as f:
            f.write(text_of(document))
            return f.read(1 << 20)

    def status_bytes(self, run_id):
        return self.run(run_id).read("status.json")

    def status(self, run_id):
        return json.loads(self.status_bytes(run_id))

    def wait(self, run_id, timeout=30):
        self.run(run_id).wait(timeout)
        return self.status(run_id)

    def wait_phase(self, run_id, phase):
        self.run(run_id).wait_phase(phase)

    def wait_output(self, run_id, data):
        self.run(run_id).stream_until(data)

    def frames(self, run_id):
        return self.run(run_id).frames()

    def files(self, run_id):
        top, found = self.run(run_id).path("artifacts"), {}
        for where, _, names in os.walk(os.fsencode(top)):
            for name in names:
                path = os.path.join(where, name)
                with open(path, "rb") as f:
                    data = f.read()
                assert os.stat(path).st_size == len(data), path
                found[os.path.relpath(path, os.fsencode(top))] = data
        return found

    def part(self, run_id, path, first, n):
        with open(os.path.join(os.fsencode(self.run(run_id).path("artifacts")), path), "rb") as f:
            return os.pread(f.fileno(), n, first)

    def view(self, run_id):
        return View(self.status(run_id), self.frames(run_id), self.files(run_id))

    def cancel(self, run_id):
        """Whether there was something to end."""
        phase = self.run(run_id).status()
        self.run(run_id).ctl("cancel\n")
        return phase not in sbx.TERMINAL

    def stdin(self, run_id, data):
        with open(self.run(run_id).path("stdin"), "wb", buffering=0) as f:
            f.write(data)

    def eof(self, run_id):
        self.run(run_id).ctl("eof\n")

    def ids(self):
        """Oldest first."""
        return [n for n in os.listdir(os.path.join(self.m.mnt, "runs")) if n not in ("new", "latest", "check")]

    def found_by(self, what, word):
        """The runs with this phase, label, or session (its name), oldest first."""
        return sorted(os.listdir(os.path.join(self.m.mnt, "by", what, word.replace("%", "%25").replace("/", "%2F"))))

    def document(self, name):
        with open(os.path.join(self.m.mnt, name), "rb") as f:
            return f.read()


class HttpDoor:
    name = "http"

    def __init__(self, apid, login=None, unix=False):
        self.a, self.login, self.unix = apid, login, unix

    def ask(self, method, path, body=None, **kw):
        return self.a.request(method, path, body, login=self.login, unix=self.unix, **kw)

    def good(self, *args, **kw):
        got = self.ask(*args, **kw)
        if got.status != 200:
            raise Refused(got.status, got.json["error"])
        return got

    def submit(self, document, **headers):
        return self.post(document, **headers)["id"]

    def post(self, document, **headers):
        return self.good("POST", "/runs", text_of(document), headers=headers).json

    def check(self, document):
        return self.good("POST", "/runs/check", text_of(document)).body

    def status_bytes(self, run_id):
        return self.good("GET", "/runs/" + run_id).body

    def status(self, run_id):
        return json.loads(self.status_bytes(run_id))

    def wait(self, run_id, timeout=30):
        limit = timeout * sbx.SLOW
        doc = self.good("GET", "/runs/%s?wait=%d" % (run_id, min(600, limit)), timeout=limit + 10).json
        assert doc["phase"] in sbx.TERMINAL, doc
        return doc

    def wait_phase(self, run_id, phase):
        def look():
            now = self.status(run_id)["phase"]
            assert now == phase or now not in sbx.TERMINAL, now
            return now == phase
        self.a.until(look)

    @contextlib.contextmanager
    def stream(self, run_id, **query):
        import wsclient
        if self.unix:
            path = "%s/runs/%s/stream" % (api.BASE, run_id)
            path += "?" + "&".join("%s=%s" % kv for kv in query.items()) if query else ""
            ws = wsclient.WS(self.a.socket, path, timeout=20 * sbx.SLOW)
        else:
            ws = self.a.stream(run_id, login=self.login, **query)
        with ws:
            assert ws.status == 101, ws.status
            yield ws

    def wait_output(self, run_id, data):
        import wsclient
        with self.stream(run_id) as ws:
            seen = []
            ws.until(lambda f: seen.append(f) or data in wsclient.output(seen) + wsclient.output(seen, "stderr"))

    def frames(self, run_id):
        with self.stream(run_id) as ws:
            frames, code = ws.frames()
        assert code == 1000, code
        return frames

    def files(self, run_id):
        found = {}
        for item in self.good("GET", "/runs/%s/artifacts" % run_id).json["items"]:
            # The link works as it stands.
            got = self.good("GET", item["download_url"][len(api.BASE):])
            assert len(got.body) == item["size"] == int(got.headers["Content-Length"]), item
            found[item["path"].encode()] = got.body
        return found

    def part(self, run_id, path, first, n):
        from urllib.parse import quote
        got = self.ask("GET", "/runs/%s/artifacts/%s" % (run_id, quote(path)),
                       headers={"Range": "bytes=%d-%d" % (first, first + n - 1)})
        assert got.status == 206, got
        return got.body

    view = MountDoor.view

    def cancel(self, run_id):
        return self.good("POST", "/runs/%s/cancel" % run_id).json["cancelled"]

    def stdin(self, run_id, data):
        with self.stream(run_id) as ws:
            ws.send_json({"type": "stdin", "encoding": "base64", "data": base64.b64encode(data).decode()})
            self.settle(ws)

    def eof(self, run_id):
        with self.stream(run_id) as ws:
            ws.eof()
            self.settle(ws)

    @staticmethod
    def settle(ws):
        """A pong comes behind everything that was sent before the ping; so does the end of the run that was
        brought about by it."""
        import wsclient
        ws.send(wsclient.PING, b"settle")
        while ws.recv_frame()[2] not in (wsclient.PONG, wsclient.CLOSE):
            pass

    def ids(self, **filters):
        """Oldest first."""
        from urllib.parse import urlencode
        found, query = [], {**filters, "limit": 3}
        while query:
            page = self.good("GET", "/runs?" + urlencode(query)).json
            found += [r["id"] for r in page["items"]]
            query = {**query, "cursor": page["next_cursor"]} if page["next_cursor"] else None
        return found[::-1]

    def found_by(self, what, word):
        if what == "session":
            what, word = "session_id", next(s["id"] for s in self.good("GET", "/sessions").json["items"]
                                            if s["name"] == word)
        return self.ids(**{what: word})

    def document(self, path):
        return self.good("GET", path).body


class Pair:
    """A sandboxfs and a sandbox-apid on one state directory. Use as a context manager.

    settings are of both; mount and http are each one's own."""

    def __init__(self, settings=None, mount=None, http=None):
        self.base = tempfile.mkdtemp(prefix="sbx-pair-")
        os.chmod(self.base, 0o755)
        state = os.path.join(self.base, "state")
        both = settings or {}
        self.m = sbx.Mount(state=state, settings={**both, **(mount or {})})
        self.a = api.Apid(state=state, settings={**both, **(http or {})})
        self.mount, self.http = MountDoor(self.m), HttpDoor(self.a)
        self.both = (self.mount, self.http)
        self.stack = contextlib.ExitStack()

    def other(self, door):
        return self.http if door is self.mount else self.mount

    def start(self):
        """The one that ends last waits for the runs of both."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.clean)
            stack.enter_context(self.a)
            stack.enter_context(self.m)
            self.stack = stack.pop_all()
        return self

    def clean(self):
        import shutil
        shutil.rmtree(self.base, ignore_errors=True)

    def close(self):
        self.stack.close()

    def __enter__(self):
        return self.start()

    def __exit__(self, *exc):
        return self.stack.__exit__(*exc)


def later(fn, timeout=20):
    """fn() until it does not raise AssertionError, for what follows an event that was seen already."""
    end = time.monotonic() + timeout * sbx.SLOW
    while True:
        try:
            return fn()
        except AssertionError:
            if time.monotonic() > end:
                raise
            os.sched_yield()
