# SPDX-License-Identifier: Apache-2.0
"""A Docker Engine of the tests' own: private data, private socket, no network and no firewall, images made on
the spot. Besides that a registry on loopback, and a door that can hold up single requests to an engine."""
import contextlib
import hashlib
import http.client
import http.server
import io
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import threading
import time
import urllib.parse

import sbx

SECONDS = 30


def why_not():
    """Why there can be no engine here; None when there can."""
    if not sbx.ROOT:
        return "an engine needs root"
    for program in ("dockerd", "containerd", "runc"):
        if not shutil.which(program):
            return "%s is not installed" % program
    if not static_busybox():
        return "there is no static busybox to make images of"
    return None


def static_busybox():
    path = shutil.which("busybox")
    if not path:
        return None
    with open(path, "rb") as f:
        return None if b"/ld-linux" in f.read(4096) else path


# ---- images ----------------------------------------------------------------------------------------

def archive(*members):
    """A tar of (name, bytes or link target or None for a directory, mode)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as t:
        for name, content, mode in members:
            info = tarfile.TarInfo(name)
            info.mode = mode
            if content is None:
                info.type = tarfile.DIRTYPE
                t.addfile(info)
            elif isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                t.addfile(info)
            else:
                info.size = len(content)
                t.addfile(info, io.BytesIO(content))
    return out.getvalue()


def root_with_shell():
    """A small root file system: busybox under all its names."""
    path = static_busybox()
    with open(path, "rb") as f:
        program = f.read()
    names = subprocess.run([path, "--list"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    return archive(("bin", None, 0o755), ("bin/busybox", program, 0o755), ("etc", None, 0o755),
                   ("etc/passwd", b"root:x:0:0::/:/bin/sh\n", 0o644), ("data", None, 0o755),
                   *(("bin/" + n, "busybox", 0o777) for n in names if n != "busybox"))


def root_without_shell():
    """One program, and no shell."""
    with open(static_busybox(), "rb") as f:
        return archive(("echo", f.read(), 0o755))


def root_with_python():
    """The host's Python and bash, and its ping where it has one, with what they need, beside busybox."""
    python = os.path.realpath("/usr/bin/python3")
    library = "/usr/lib/" + os.path.basename(python)
    wanted = {python, "/usr/bin/bash", *filter(os.path.exists, ["/usr/bin/ping"])}
    for where, folders, files in os.walk(library):
        folders[:] = [d for d in folders if d not in ("test", "dist-packages", "idlelib", "lib2to3", "__pycache__")]
        wanted |= {os.path.join(where, f) for f in files if f.endswith((".py", ".so"))}
    ldd = subprocess.run(["ldd"] + [f for f in wanted if f.endswith(".so") or "/bin/" in f], stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, text=True, check=False).stdout
    libraries = {word for word in ldd.split() if word.startswith("/") and not word.endswith(":")}
    # What only ctypes looks for.
    libraries |= {p for p in (os.path.join(os.path.dirname(lib), "librt.so.1") for lib in libraries
                              if os.path.basename(lib) == "libc.so.6") if os.path.exists(p)}
    out = io.BytesIO(root_with_shell())
    with tarfile.open(fileobj=out, mode="a") as t:
        for path in sorted(wanted):
            t.add(path, arcname=path.lstrip("/"), filter=as_root)
        for path in sorted(libraries):  # under the names by which they are looked for
            t.add(os.path.realpath(path), arcname=path.lstrip("/"), filter=as_root)
        for name in ("python", "python3"):
            info = tarfile.TarInfo("usr/bin/" + name)
            info.type, info.linkname = tarfile.SYMTYPE, os.path.basename(python)
            t.addfile(info)
    return out.getvalue()


def as_root(info):
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


# ---- the engine ------------------------------------------------------------------------------------

class Answer:
    def __init__(self, status, body):
        self.status, self.body = status, body

    def json(self):
        return json.loads(self.body)


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("engine", timeout=SECONDS * sbx.SLOW)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class At:
    """An engine that somebody else has started, by its socket."""

    def __init__(self, path):
        self.socket = path

    def call(self, method, path, body=None, kind="application/json"):
        c = UnixConnection(self.socket)
        try:
            c.request(method, path, body=body, headers={"Content-Type": kind} if body is not None else {})
            r = c.getresponse()
            return Answer(r.status, r.read())
        finally:
            c.close()

    def make_image(self, name, root, *changes):
        """Imports an archive as an image; changes are lines of a Dockerfile."""
        repo, tag = name.rsplit(":", 1)
        query = [("fromSrc", "-"), ("repo", repo), ("tag", tag)] + [("changes", c) for c in changes]
        r = self.call("POST", "/images/create?" + urllib.parse.urlencode(query), root, "application/x-tar")
        assert r.status == 200 and b'"error"' not in r.body, r.body
        return r

    def image_id(self, name):
        return self.call("GET", "/images/%s/json" % urllib.parse.quote(name, safe="")).json()["Id"]

    def containers(self):
        """What we have made, running or not."""
        filters = urllib.parse.quote(json.dumps({"label": ["sandboxfs.state"]}))
        return self.call("GET", "/containers/json?all=1&filters=" + filters).json()

    def container_of(self, run):
        found = [c for c in self.containers() if c["Labels"].get("sandboxfs.run") == run.id]
        assert len(found) == 1, found
        return self.call("GET", "/containers/%s/json" % found[0]["Id"]).json()

    def networks(self):
        """The ids of all; the engine lists them in no order."""
        return sorted(n["Id"] for n in self.call("GET", "/networks").json())

    def wait_no_container(self, others=0):
        """Until none of ours is left; the end of a run is told before its container is removed. One that stays is
        removed here, so that tests that follow do not wait for it as well."""
        try:
            while True:
                since = time.time()  # before the list: what goes after it is told
                if len(self.containers()) <= others:
                    return
                self.wait_event(lambda e: e.get("Action") == "destroy", lambda: None, since=since)
        except TimeoutError:
            for c in self.containers() if not others else ():
                self.call("DELETE", "/containers/%s?force=1&v=1" % c["Id"])
            raise

    def wait_event(self, wanted, act, timeout=20, since=None):
        """Does act() and waits for an event of the engine that wanted(event) takes."""
        c = UnixConnection(self.socket)
        try:
            c.request("GET", "/events?since=%.6f" % (since or time.time() - 1))
            r = c.getresponse()
            c.sock.settimeout(timeout * sbx.SLOW)
            act()
            for line in iter(r.readline, b""):
                if line.strip() and wanted(json.loads(line)):
                    return
            raise AssertionError("the engine ended its events before the one that is waited for")
        finally:
            c.close()


class Engine(At):
    """Use as a context manager, or start() and close()."""

    def __init__(self, options=(), network=False):
        self.base = tempfile.mkdtemp(prefix="sbx-eng-")
        super().__init__(os.path.join(self.base, "d.sock"))
        self.options = list(options)
        self.network = network
        self.group = "sbxt-%d-%s" % (os.getpid(), os.path.basename(self.base))
        self.proc = None

    def args(self):
        def at(name):
            return os.path.join(self.base, name)
        none = [] if self.network else ["--iptables=false", "--ip6tables=false", "--ip-forward=false",
                                        "--ip-masq=false", "--bridge=none"]
        return ["dockerd", "--config-file", at("conf.json"), "--data-root", at("data"), "--exec-root", at("exec"),
                "--pidfile", at("pid"), "--host", "unix://" + self.socket, "--cgroup-parent", "/" + self.group,
                *none, *self.options]

    def start(self):
        with open(os.path.join(self.base, "conf.json"), "w") as f:
            f.write("{}")
        with open(os.path.join(self.base, "log"), "ab") as log:
            # conmon leaves a file where it is started.
            self.proc = subprocess.Popen(self.args(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                         start_new_session=True, cwd=self.base)
        self.wait_ready()
        return self

    def wait_ready(self):
        """Its socket is there before it answers, and it answers when it is ready: a connection waits for that."""
        end = time.monotonic() + SECONDS * sbx.SLOW
        died = os.pidfd_open(self.proc.pid)
        try:
            while True:
                try:
                    if self.call("GET", "/_ping").status == 200:
                        return
                except OSError:
                    pass
                if time.monotonic() > end or select.select([died], [], [], 0.05)[0]:
                    raise AssertionError("dockerd does not start: " + self.log()[-3000:])
        finally:
            os.close(died)

    def log(self):
        with open(os.path.join(self.base, "log"), errors="replace") as f:
            return f.read()

    # ---- its end ----

    def processes(self):
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                with open("/proc/%s/cmdline" % pid, "rb") as f:
                    text = f.read()
                if self.base.encode() in text and int(pid) != os.getpid():
                    found.append(int(pid))
        return found

    def kill(self):
        """All of the engine at once; the containers and what watches them live on."""
        note = os.path.join(self.base, "exec/containerd/containerd.pid")
        with open(note) as f:
            containerd = os.pidfd_open(int(f.read()))
        self.proc.kill()
        self.proc.wait()
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(containerd, signal.SIGKILL)
        select.select([containerd], [], [], SECONDS)
        os.close(containerd)
        os.unlink(note)  # a zombie, which somebody else has to reap, would pass for a living one

    def stop(self):
        if self.proc and self.proc.poll() is None:
            self.proc.send_signal(signal.SIGTERM)
            self.proc.wait(SECONDS * sbx.SLOW)

    def close(self):
        with contextlib.suppress(Exception):
            for c in self.call("GET", "/containers/json?all=1").json():
                self.call("DELETE", "/containers/%s?force=1&v=1" % c["Id"])
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.stop()
        for pid in self.processes():  # of an engine that was killed, or does not end
            with contextlib.suppress(ProcessLookupError):
                fd = os.pidfd_open(pid)
                os.kill(pid, signal.SIGKILL)
                select.select([fd], [], [], 5)
                os.close(fd)
        with open("/proc/self/mountinfo") as f:
            mounts = [line.split()[4] for line in f if line.split()[4].startswith(self.base + "/")]
        for mount in reversed(mounts):
            sbx.libc.umount2(mount.encode(), 2)
        shutil.rmtree(self.base, ignore_errors=True)
        self.remove_groups()

    def remove_groups(self):
        with open("/proc/self/mountinfo") as f:
            roots = [line.split()[4] for line in f if " - cgroup" in line]
        for root in roots:
            for where, folders, _ in os.walk(os.path.join(root, self.group), topdown=False):
                for folder in folders:
                    with contextlib.suppress(OSError):
                        os.rmdir(os.path.join(where, folder))
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(root, self.group))

    def __enter__(self):
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exc):
        self.close()


# ---- a registry --------------------------------------------------------------------------------------

class Registry:
    """Serves one image by the protocol of registries, version 2. `hold`, when not None, is an event that its
    layer waits for; with `broken` the layer is not what the manifest says."""

    def __init__(self, root, broken=False, hold=None):
        config = json.dumps({"architecture": "amd64", "os": "linux", "config": {},
                             "rootfs": {"type": "layers", "diff_ids": [self.digest(root)]},
                             "history": [{"created_by": "a test"}]}).encode()
        self.blobs = {self.digest(config): config, self.digest(root): root}
        self.manifest = json.dumps({
            "schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "config": {"mediaType": "application/vnd.docker.container.image.v1+json", "size": len(config),
                       "digest": self.digest(config)},
            "layers": [{"mediaType": "application/vnd.docker.image.rootfs.diff.tar", "size": len(root),
                        "digest": self.digest(root)}]}).encode()
        if broken:
            self.blobs[self.digest(root)] = b"\0" * len(root)
        self.layer, self.hold, self.asked = self.digest(root), hold, threading.Event()
        registry = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def reply(self, status, body=b"", kind="application/json"):
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Docker-Content-Digest", registry.digest(body))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def do_GET(self):
                parts = self.path.split("/")
                if self.path == "/v2/":
                    self.reply(200, b"{}")
                elif "manifests" in parts and parts[-1] in ("1", "latest", registry.digest(registry.manifest)):
                    self.reply(200, registry.manifest, "application/vnd.docker.distribution.manifest.v2+json")
                elif "blobs" in parts and parts[-1] in registry.blobs:
                    if parts[-1] == registry.layer and self.command == "GET":
                        registry.asked.set()
                        if registry.hold:
                            registry.hold.wait(SECONDS * sbx.SLOW)
                    with contextlib.suppress(OSError):
                        self.reply(200, registry.blobs[parts[-1]], "application/octet-stream")
                else:
                    self.reply(404, b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}')

            do_HEAD = do_GET

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @staticmethod
    def digest(data):
        return "sha256:" + hashlib.sha256(data).hexdigest()

    def name(self, repo="image", tag="1"):
        return "127.0.0.1:%d/%s:%s" % (self.server.server_port, repo, tag)

    def close(self):
        if self.hold:
            self.hold.set()
        self.server.shutdown()
        self.server.server_close()


# ---- a door in front of an engine ---------------------------------------------------------------------

class Gate:
    """A socket that leads to the engine's, and holds up requests that contain `held` until release(). To those that
    contain a key of `answers` it says that value itself, an Answer or bytes as they are, and the engine hears nothing."""

    def __init__(self, engine, held=None, answers=()):
        self.engine, self.held, self.answers = engine, held, dict(answers)
        self.base = tempfile.mkdtemp(prefix="sbx-gate-")
        self.socket = os.path.join(self.base, "g.sock")
        self.reached, self.free = threading.Event(), threading.Event()
        self.seen = []  # the first lines of all requests
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.socket)
        self.listener.listen(64)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(self.engine.socket)
            except OSError:
                client.close()
                continue
            for pair in ((client, server, True), (server, client, False)):
                threading.Thread(target=self.copy, args=pair, daemon=True).start()

    def copy(self, source, to, requests):
        with contextlib.suppress(OSError):
            while True:
                data = source.recv(65536)
                if not data:
                    break
                if requests:
                    self.seen.append(data.split(b"\r\n", 1)[0])
                said = self.answer(data) if requests else None
                if said is not None:
                    source.sendall(said)
                    break
                if requests and self.held and self.held in data.split(b"\r\n", 1)[0] and not self.free.is_set():
                    self.reached.set()
                    self.free.wait(SECONDS * sbx.SLOW)
                to.sendall(data)
        for s in (source, to):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)

    def answer(self, data):
        for wanted, a in self.answers.items():
            if wanted in data.split(b"\r\n", 1)[0]:
                return a if isinstance(a, bytes) else b"HTTP/1.1 %d Said\r\nContent-Length: %d\r\n\r\n%s" % (
                    a.status, len(a.body), a.body)
        return None

    def wait_reached(self):
        assert self.reached.wait(SECONDS * sbx.SLOW), "no request of this kind has come"

    def release(self):
        self.free.set()

    def close(self):
        self.free.set()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        shutil.rmtree(self.base, ignore_errors=True)


# ---- podman ------------------------------------------------------------------------------------------

def why_no_podman():
    if not sbx.ROOT:
        return "an engine needs root"
    for program in ("podman", "conmon"):
        if not shutil.which(program):
            return "%s is not installed" % program
    return None if static_busybox() else "there is no static busybox to make images of"


class Podman(Engine):
    """Podman's service, which speaks the same protocol."""

    def args(self):
        def at(name):
            return os.path.join(self.base, name)
        return ["podman", "--root", at("root"), "--runroot", at("run"), "--tmpdir", at("tmp"), "--cgroup-manager",
                "cgroupfs", "--events-backend", "none", "system", "service", "--time", "0", "unix://" + self.socket]

    def remove_groups(self):
        """Those that it makes for everybody, when nobody else has a container in them."""
        self.group = "libpod_parent"
        super().remove_groups()

    def make_image(self, name, root, *changes):
        """It calls every import latest."""
        assert name.endswith(":latest") and not changes
        return super().make_image(name, root)
