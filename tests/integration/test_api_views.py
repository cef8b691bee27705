# SPDX-License-Identifier: Apache-2.0
"""What the HTTP door shows: lists, diagnostics, metrics; and that the mount shows the same."""
import contextlib
import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import unittest
import urllib.parse

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import sbx  # noqa: E402

APID = os.path.join(os.path.abspath(sbx.BUILD), "apid", "sandbox-apid")
BASE = "/api/v1/sandbox"


@contextlib.contextmanager
def inotify(path):
    """A function that waits until the file has changed; True when it did in time."""
    fd = sbx.libc.inotify_init1(os.O_CLOEXEC)
    try:
        assert sbx.libc.inotify_add_watch(fd, path.encode(), 2) >= 0  # IN_MODIFY
        yield lambda timeout: bool(select.select([fd], [], [], timeout)[0] and os.read(fd, 4096))
    finally:
        os.close(fd)


class Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=20 * sbx.SLOW)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Door:
    """A sandbox-apid on the state of a mount, on a Unix socket, where the caller's uid is the login."""

    def __init__(self, mount, *args):
        self.socket = os.path.join(mount.base, "a.sock")
        self.log = os.path.join(mount.base, "apid.err")
        self.argv = [APID, "--state", mount.state, "--config", mount.conf, "--listen", "none", "--unix", self.socket,
                     "--workers", "0", *args]

    def __enter__(self):
        with open(self.log, "wb") as log:
            self.proc = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        with open(self.log, "rb") as log, inotify(self.log) as news:
            while b"listening path=" not in log.read():
                assert news(20 * sbx.SLOW) and self.proc.poll() is None, self.errors()
                log.seek(0)
        return self

    def __exit__(self, *exc):
        self.proc.send_signal(signal.SIGTERM)
        status = self.proc.wait(20 * sbx.SLOW)
        if not exc[0]:
            assert status == 0 and "Sanitizer" not in self.errors(), self.errors()

    def errors(self):
        with open(self.log, errors="replace") as f:
            return f.read()

    def ask(self, path, method="GET", body=None, headers=None):
        """(status, headers, bytes)"""
        with contextlib.closing(Connection(self.socket)) as c:
            c.request(method, path, body, headers or {})
            r = c.getresponse()
            return r.status, r.headers, r.read()

    def get(self, path, **query):
        at = BASE + path + ("?" + urllib.parse.urlencode(query) if query else "")
        status, _, body = self.ask(at)
        assert status == 200, (at, status, body)
        return json.loads(body)

    def refused(self, path, status, **query):
        got, _, body = self.ask(BASE + path + "?" + urllib.parse.urlencode(query))
        assert got == status, (path, query, got, body)
        return json.loads(body)


@unittest.skipUnless(os.path.exists(APID), "sandbox-apid is not built")
@unittest.skipUnless(sbx.ROOT, "the administrator here is root")
class Views(unittest.TestCase):
    def setUp(self):
        self.m = sbx.Mount().start()
        self.addCleanup(self.m.close)
        self.door = Door(self.m).__enter__()
        self.addCleanup(self.door.__exit__, None, None, None)

    def run_one(self, command=("true",), **spec):
        return self.m.run(dict(spec, command=list(command)))

    def on_mount(self, *names):
        with open(os.path.join(self.m.mnt, *names), encoding="utf-8") as f:
            return f.read()

    def test_own_runs_in_pages(self):
        ids = [self.run_one(labels={"n": str(i % 2)}).id for i in range(5)][::-1]
        seen, cursor = [], None
        while True:
            page = self.door.get("/runs", limit=2, **({"cursor": cursor} if cursor else {}))
            self.assertEqual(set(page), {"items", "next_cursor"})
            seen += [r["id"] for r in page["items"]]
            cursor = page["next_cursor"]
            if not cursor:
                break
            self.assertEqual(len(page["items"]), 2)
        self.assertEqual(seen, ids)
        self.assertEqual([r["id"] for r in self.door.get("/runs", label="n=1")["items"]], [ids[1], ids[3]])
        self.assertEqual(self.door.get("/runs", phase="failed")["items"], [])
        self.assertEqual(len(self.door.get("/runs", phase="completed")["items"]), 5)
        one = json.loads(self.on_mount("runs", ids[0], "status.json"))
        self.assertEqual(self.door.get("/runs", limit=1)["items"], [one])
        for query in ({"limit": 0}, {"limit": 1001}, {"limit": "x"}, {"phase": "done"}, {"label": "n"},
                      {"cursor": "x"}):
            got = self.door.refused("/runs", 422, **query)
            self.assertEqual(got["error"]["code"], "invalid_argument")
            self.assertEqual(got["detail"][0]["loc"], ["query", *query])

    def test_administrators_see_everything_as_the_mount_shows_it(self):
        a, b = self.run_one(workspace_id="w", idempotency_key="k1"), self.run_one(("sh", "-c", "exit 3"))
        runs = self.door.get("/admin/runs", limit=1000)
        self.assertEqual(runs, json.loads(self.on_mount("admin", "runs.json")))
        self.assertEqual([r["id"] for r in runs["items"]], [b.id, a.id])
        page = self.door.get("/admin/runs", limit=1, sort="asc")
        self.assertEqual((page["total"], page["has_more"], page["next_offset"]), (2, True, 1))
        self.assertEqual(page["items"][0]["id"], a.id)
        self.assertEqual(self.door.get("/admin/runs", limit=1, offset=1)["items"][0]["id"], a.id)
        self.assertEqual(self.door.get("/admin/runs", phase="failed")["total"], 1)
        self.assertEqual(self.door.get("/admin/runs", phase="nonsense")["items"], [])
        self.assertEqual(self.door.get("/admin/runs", workspace_id="w", user_id="root")["total"], 1)
        started = runs["items"][0]["started_at"]
        self.assertEqual(self.door.get("/admin/runs", started_at_from=started)["total"], 1)
        self.assertEqual(self.door.get("/admin/runs", started_at_to=started)["total"], 2)
        self.door.refused("/admin/runs", 422, started_at_from="yesterday")
        self.door.refused("/admin/runs", 422, sort="up")
        one = self.door.get("/admin/runs/" + b.id)
        self.assertEqual((one["id"], one["user_id"], one["exit_code"]), (b.id, "root", 3))
        self.assertIn("cpu_time_sec", one["resource_usage"])
        self.assertEqual(self.door.refused("/admin/runs/" + a.id[:-1] + "z", 404)["detail"], "run_not_found")

        usage = self.door.get("/admin/usage")
        self.assertEqual(set(usage), {"total", "limit", "offset", "has_more", "items", "pagination"})
        self.assertEqual([(u["user_id"], u["runs_count"]) for u in usage["items"]], [("root", 2)])
        self.assertEqual(usage["items"], json.loads(self.on_mount("admin", "usage.json"))["items"])
        keys = self.door.get("/admin/idempotency", endpoint="runs", key="k1")
        self.assertEqual([(k["key"], k["object_id"]) for k in keys["items"]], [("k1", a.id)])

    def test_diagnostics_are_the_same_bytes(self):
        for path, names in (("/admin/operator-status", ("admin", "operator-status.json")),
                            ("/admin/runtime-diagnostics", ("admin", "diagnostics.json"))):
            status, headers, body = self.door.ask(BASE + path)
            self.assertEqual((status, headers["Content-Type"]), (200, "application/json"))
            self.assertEqual(body.decode(), self.on_mount(*names))
        rows = self.door.get("/runtimes")["runtimes"]
        self.assertEqual(len(rows), 9)
        for row in rows:
            self.assertEqual(row, json.loads(self.on_mount("runtimes", row["name"] + ".json")))
        health, public = self.door.get("/health"), self.door.get("/health/public")
        self.assertLess(set(public), set(health))
        self.assertEqual(set(health), set(json.loads(self.on_mount("health"))))
        self.assertEqual((public["ok"], public["redis"]["enabled"]), (True, False))

    def test_workspace(self):
        r = self.run_one(workspace_id="a b")
        got = self.door.get("/workspaces/a%20b/diagnostics", source_label="whatever")
        self.assertEqual((got["workspace_id"], got["runtime"]["state"], got["admission"]["state"]),
                         ("a b", "available", "available"))
        self.assertEqual([i["id"] for i in got["runs"]["items"]], [r.id])
        self.assertEqual(self.door.get("/workspaces/none/diagnostics")["runs"]["total"], 0)
        self.door.refused("/workspaces/none/diagnostics", 422, limit=101)

    def metrics(self):
        status, headers, body = self.door.ask("/metrics")
        self.assertEqual(status, 200)
        self.assertTrue(headers["Content-Type"].startswith("text/plain"))
        return {k: float(v) for k, v in re.findall(r"^(\w[^ ]*(?:\{.*\})?) ([-+.\w]+)$", body.decode(), re.M)}

    def test_metrics_move(self):
        started = 'sandbox_runs_started_total{runtime="namespace"}'
        before = self.metrics()
        self.run_one()
        self.run_one(("sh", "-c", "exit 3"))
        with self.assertRaises(sbx.Refused):
            self.m.submit({"command": ["true"], "runtime": "firecracker"})
        after = self.metrics()
        self.assertEqual(after[started] - before[started], 2)
        self.assertEqual(after['sandbox_runs_started_total{runtime="firecracker"}'], 0)
        for outcome, reason in (("success", "completed"), ("failed", "nonzero_exit")):
            labels = 'runtime="namespace",outcome="%s",reason="%s"' % (outcome, reason)
            self.assertEqual(after["sandbox_runs_completed_total{%s}" % labels], 1)
            self.assertEqual(after['sandbox_run_duration_seconds_bucket{%s,le="+Inf"}' % labels], 1)
        self.assertGreater(after["sandbox_http_requests_total"], before["sandbox_http_requests_total"])
        # The mount hands out, so it is the one that knows how long they waited.
        self.assertIn('sandbox_queue_wait_seconds_count{runtime="namespace"} 2\n', self.on_mount("metrics"))

    def test_description_has_an_etag(self):
        status, headers, body = self.door.ask("/openapi.json")
        self.assertEqual((status, json.loads(body)["openapi"]), (200, "3.1.0"))
        again = self.door.ask("/openapi.json", headers={"If-None-Match": headers["ETag"]})
        self.assertEqual((again[0], again[2]), (304, b""))
        head = self.door.ask("/openapi.json", "HEAD")
        self.assertEqual((head[0], head[2], int(head[1]["Content-Length"])), (200, b"", len(body)))


if __name__ == "__main__":
    sbx.main()
