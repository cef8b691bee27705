# SPDX-License-Identifier: Apache-2.0
"""A real sandbox-apid with streams: how tests start one, log in, and start runs."""
import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time

import sbx
import tokens
import wsclient

APID = os.environ.get("SBX_APID", os.path.join(os.path.abspath(sbx.BUILD), "apid", "sandbox-apid"))
SECRET = tokens.SECRET
BASE = "/api/v1/sandbox"
PEER = object()  # as a user: whoever the Unix socket says that we are


def token(user, **claims):
    return tokens.token(SECRET, user, **claims)


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Apid:
    """A server of its own on a state directory of its own. Use as a context manager."""

    def __init__(self, tls=False, **settings):
        self.base = tempfile.mkdtemp(prefix="sbx-ws-")
        os.chmod(self.base, 0o755)
        self.state = os.path.join(self.base, "state")
        self.unix = os.path.join(self.base, "api.sock")
        self.conf = os.path.join(self.base, "conf")
        self.tls = self.certificate() if tls else None
        if tls:
            settings.update(api_tls_cert=self.cert, api_tls_key=self.cert_key)
        values = dict({"auth_mode": "multi_user", "jwt_secret": SECRET, "max_concurrent_runs": 4}, **settings)
        with open(self.conf, "w") as f:
            f.write("[sandbox]\n" + "".join("%s = %s\n" % kv for kv in values.items()))
        os.chmod(self.conf, 0o600)
        self.user = "alice"
        self.address = None

    def certificate(self):
        """A context of clients that trust the certificate which is made here."""
        self.cert, self.cert_key = os.path.join(self.base, "cert.pem"), os.path.join(self.base, "key.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
                        "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", self.cert_key,
                        "-out", self.cert], check=True, stderr=subprocess.DEVNULL)
        return ssl.create_default_context(cafile=self.cert)

    def start(self):
        argv = [APID, "--state", self.state, "--config", self.conf, "--listen", "127.0.0.1:0", "--unix",
                self.unix]
        self.proc = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                     env=dict(os.environ, SANDBOXFS_RUNNER=sbx.RUNNER))
        self.lines, self.listening = [], threading.Event()
        self.reader = threading.Thread(target=self.read_log)
        self.reader.start()
        if not self.listening.wait(20 * sbx.SLOW) or not self.address:
            raise AssertionError("sandbox-apid does not start: " + self.errors())
        return self

    def read_log(self):
        """The server says where it listens."""
        for line in self.proc.stderr:
            self.lines.append(line)
            m = re.search(r"listening address=127.0.0.1 port=(\d+)", line)
            if m:
                self.address = ("127.0.0.1", int(m.group(1)))
                self.listening.set()
        self.listening.set()

    def errors(self):
        return "".join(self.lines)

    def stop(self):
        if self.proc.poll() is None:
            self.proc.send_signal(signal.SIGTERM)
            try:
                self.proc.wait(20 * sbx.SLOW)
            except subprocess.TimeoutExpired:
                self.proc.kill()
                self.proc.wait()
                raise AssertionError("sandbox-apid does not stop: " + self.errors()) from None
        return self.proc.returncode

    def close(self):
        try:
            status = self.stop()
        finally:
            self.reader.join()
            self.proc.stderr.close()
        left = sbx.Mount.wait_processes_gone(self)
        errors = self.errors()
        shutil.rmtree(self.base, ignore_errors=True)
        assert not left, "processes left: %s" % left
        assert status == 0, "exit status %s: %s" % (status, errors)
        assert "Sanitizer" not in errors and "runtime error" not in errors, errors

    def processes(self):
        return sbx.Mount.processes(self)

    def __enter__(self):
        return self.start()

    def __exit__(self, kind, *_):
        if kind:
            sys.stderr.write(self.errors())
        self.close()

    # ---- requests ----

    def connect(self, user):
        if user is PEER:
            return UnixConnection(self.unix, 20 * sbx.SLOW)
        if self.tls:
            return http.client.HTTPSConnection(*self.address, timeout=20 * sbx.SLOW, context=self.tls)
        return http.client.HTTPConnection(*self.address, timeout=20 * sbx.SLOW)

    def request(self, method, path, body=None, user=None):
        """(status, document or text)."""
        c = self.connect(user)
        try:
            h = {} if user is PEER else {"Authorization": "Bearer " + token(user or self.user)}
            c.request(method, path, json.dumps(body) if body is not None else None, h)
            r = c.getresponse()
            text = r.read().decode()
            is_json = (r.getheader("Content-Type") or "").startswith("application/json")
            return r.status, json.loads(text) if is_json else text
        finally:
            c.close()

    def submit(self, command, user=None, **spec):
        """The answer to a POST of a run, without waiting."""
        if isinstance(command, str):
            command = ["sh", "-c", command]
        spec = dict({"spec_version": "1.1", "base_image": "host", "command": command, "timeout_sec": 120}, **spec)
        status, doc = self.request("POST", BASE + "/runs", spec, user)
        assert status == 200, (status, doc)
        return doc

    def run(self, command, **spec):
        return self.submit(command, **spec)["id"]

    def wait(self, run):
        status, doc = self.request("GET", "%s/runs/%s?wait=60" % (BASE, run))
        assert status == 200 and doc["phase"] in sbx.TERMINAL, (status, doc)
        return doc

    def cancel(self, run):
        return self.request("POST", "%s/runs/%s/cancel" % (BASE, run))

    def metric(self, name):
        """The sum of all its samples."""
        text = self.request("GET", "/metrics")[1]
        lines = re.findall(r"^%s(?:\{[^}]*\})? (\S+)$" % re.escape(name), text, re.M)
        assert lines, "%s is not among the metrics" % name
        return sum(map(float, lines))

    def path(self, run, query=""):
        return "%s/runs/%s/stream%s" % (BASE, run, query)

    def ws(self, run, query="", user=None, headers=None, **how):
        """An open stream of the run; how: of wsclient.WS."""
        if headers is None:
            headers = (("Authorization", "Bearer " + token(user or self.user)),)
        how.setdefault("timeout", 20 * sbx.SLOW)
        if "address" not in how:
            how["tls"] = self.tls
        return wsclient.WS(how.pop("address", self.address), self.path(run, query), headers, **how)

    def sockets(self):
        """How many the server has open."""
        found = 0
        for fd in os.listdir("/proc/%d/fd" % self.proc.pid):
            with contextlib.suppress(FileNotFoundError):
                found += os.readlink("/proc/%d/fd/%s" % (self.proc.pid, fd)).startswith("socket:")
        return found

    def rss(self):
        with open("/proc/%d/status" % self.proc.pid) as f:
            return int(re.search(r"VmRSS:\s+(\d+) kB", f.read()).group(1)) * 1024
