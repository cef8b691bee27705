# SPDX-License-Identifier: Apache-2.0
"""HTTP by hand, for what no library would send: bytes go out as they are given, and one answer after the
other is read back. Everything that waits has a limit of time."""
import json
import os
import select
import socket
import time

SLOW = float(os.environ.get("SBX_TEST_SLOW", "4"))


class Closed(ConnectionError):
    """The server ended the connection before the answer was whole."""


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def header(self, name):
        """The value, None when there is none; more than one is a fault."""
        found = [v for k, v in self.headers if k.lower() == name.lower()]
        assert len(found) < 2, "%s came %d times: %r" % (name, len(found), self.headers)
        return found[0] if found else None

    def json(self):
        return json.loads(self.body)

    @property
    def code(self):
        """Of the error document, None when there is none."""
        try:
            return self.json()["error"]["code"]
        except (ValueError, KeyError, TypeError):
            return None

    def __repr__(self):
        return "%s %r %r" % (self.status, self.headers, self.body[:300])


def head(method, target, headers=(), version="1.1", host="h"):
    """A request without its body; everything may be bytes or text."""
    def raw(x):
        return x if isinstance(x, bytes) else x.encode()
    lines = [raw(method) + b" " + raw(target) + b" HTTP/" + raw(version)]
    if host is not None:
        lines.append(b"Host: " + raw(host))
    lines += [raw(k) + b": " + raw(v) for k, v in headers]
    return b"\r\n".join(lines) + b"\r\n\r\n"


class Raw:
    """One connection to (host, port) or to the path of a Unix socket."""

    def __init__(self, address, timeout=20):
        unix = isinstance(address, str)
        self.timeout = timeout * SLOW
        self.sock = socket.socket(socket.AF_UNIX if unix else socket.AF_INET, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.pending = b""
        try:
            self.sock.connect(address)
            if not unix:
                self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            self.sock.close()
            raise

    def send(self, *parts):
        self.sock.sendall(b"".join(p if isinstance(p, bytes) else p.encode() for p in parts))
        return self

    def more(self):
        data = self.sock.recv(1 << 16)
        if not data:
            raise Closed("closed after %r" % self.pending[-300:])
        self.pending += data

    def take(self, n):
        while len(self.pending) < n:
            self.more()
        data, self.pending = self.pending[:n], self.pending[n:]
        return data

    def line(self):
        while b"\r\n" not in self.pending:
            self.more()
        line, self.pending = self.pending.split(b"\r\n", 1)
        return line.decode("latin-1")

    def chunks(self):
        body = b""
        while True:
            n = int(self.line().split(";")[0], 16)
            body += self.take(n)
            assert self.line() == "", "a chunk is longer than it says"
            if n == 0:
                return body

    def answer(self, no_body=False):
        """The next answer; no_body when it is to a HEAD."""
        first = self.line()
        assert first.startswith("HTTP/1.1 "), first
        status, headers = int(first.split()[1]), []
        while (line := self.line()):
            k, v = line.split(":", 1)
            headers.append((k, v.strip()))
        got = Answer(status, headers, b"")
        length, coding = got.header("Content-Length"), got.header("Transfer-Encoding")
        if no_body or status < 200 or status in (204, 304):
            return got
        if coding:
            got.body = self.chunks()
        elif length is not None:
            got.body = self.take(int(length))
        else:
            got.body = self.rest()
        return got

    def ask(self, *args, body=b"", **kw):
        """Sends a request of head(*args) and reads its answer."""
        self.send(head(*args, **kw), body)
        return self.answer(args[0] in ("HEAD", b"HEAD"))

    def rest(self):
        """Everything until the server ends the connection, in whatever way."""
        try:
            while True:
                self.more()
        except ConnectionError:
            pass
        data, self.pending = self.pending, b""
        return data

    def is_closed(self, timeout=10):
        """Waits for the end of the connection; False when it did not come. What is read is kept."""
        end = time.monotonic() + timeout * SLOW
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        while poll.poll(max(0, end - time.monotonic()) * 1000):
            try:
                self.more()
            except ConnectionError:
                return True
        return False

    def is_open(self):
        """Nothing has come, not even an end."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return not self.pending and not poll.poll(0)

    def reset(self):
        """Ends it as a crashed client's kernel would: with a reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.sock.close()

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


def ask(address, *args, **kw):
    """One request on a connection of its own."""
    with Raw(address) as c:
        return c.ask(*args, **kw)
