# SPDX-License-Identifier: Apache-2.0
"""A WebSocket client that can also do everything wrong. Independent of the server's library: raw sockets
and RFC 6455, so that a test sees every bit that goes over the wire."""
import base64
import hashlib
import json
import os
import select
import socket
import struct
import time

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


class Closed(Exception):
    """The server ended the connection: code of its close frame (None: there was none) and its text."""

    def __init__(self, code, text=""):
        super().__init__("closed %s %s" % (code, text))
        self.code, self.text = code, text


def frame(op, data=b"", fin=1, mask=True, rsv=0, length=None):
    """One frame as a client sends it; `length` claims another length than there is."""
    n = len(data) if length is None else length
    bit = 0x80 if mask else 0
    head = bytes([fin << 7 | rsv << 4 | op])
    if n < 126:
        head += bytes([bit | n])
    elif n < 65536:
        head += bytes([bit | 126]) + struct.pack(">H", n)
    else:
        head += bytes([bit | 127]) + struct.pack(">Q", n)
    if not mask:
        return head + data
    key = os.urandom(4)
    return head + key + bytes(c ^ key[i & 3] for i, c in enumerate(data))


class WS:
    """Connects and shakes hands. `status` is of the answer; 101 or not."""

    def __init__(self, address, path, headers=(), early=b"", key=True, version="13", timeout=20, drop=(),
                 rcvbuf=None, tls=None):
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.sock = socket.socket(family, socket.SOCK_STREAM)
        if rcvbuf:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        self.sock.settimeout(timeout)
        self.sock.connect(address)
        if tls:
            self.sock = tls.wrap_socket(self.sock, server_hostname="127.0.0.1")
        self.timeout, self.buf, self.masked = timeout, b"", False
        self.key = base64.b64encode(os.urandom(16)).decode()
        lines = {"Host": "localhost", "Upgrade": "websocket", "Connection": "keep-alive, Upgrade",
                 "Sec-WebSocket-Version": version, "Sec-WebSocket-Key": self.key if key is True else key}
        text = ["GET %s HTTP/1.1" % path]
        text += ["%s: %s" % (k, v) for k, v in lines.items() if v and k not in drop]
        text += ["%s: %s" % h for h in headers]
        self.sock.sendall(("\r\n".join(text) + "\r\n\r\n").encode() + early)
        self.read_head()

    def read_head(self):
        while b"\r\n\r\n" not in self.buf:
            data = self.sock.recv(65536)
            if not data:
                raise Closed(None, "before an answer")
            self.buf += data
        head, _, self.buf = self.buf.partition(b"\r\n\r\n")
        first, *rest = head.decode("latin-1").split("\r\n")
        self.status = int(first.split()[1])
        self.headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in rest)}
        if self.status == 101:
            right = base64.b64encode(hashlib.sha1((self.key + GUID).encode()).digest()).decode()
            assert self.headers["sec-websocket-accept"] == right, self.headers
            assert self.headers["upgrade"].lower() == "websocket", self.headers

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # ---- sending ----

    def send(self, *args, **how):
        self.sock.sendall(frame(*args, **how))

    def send_json(self, what):
        self.send(TEXT, json.dumps(what).encode())

    def stdin(self, text, **more):
        self.send_json(dict({"type": "stdin", "encoding": "utf8", "data": text}, **more))

    def eof(self):
        self.send_json({"type": "stdin", "eof": True})

    # ---- receiving ----

    def need(self, n):
        while len(self.buf) < n:
            data = self.sock.recv(max(65536, n))
            if not data:
                raise Closed(None, "end of file")
            self.buf += data
        got, self.buf = self.buf[:n], self.buf[n:]
        return got

    def recv_frame(self):
        """(fin, rsv, opcode, payload); a server must not mask."""
        a, b = self.need(2)
        n = b & 127
        if n == 126:
            n, = struct.unpack(">H", self.need(2))
            assert n > 125, "not the shortest length"
        elif n == 127:
            n, = struct.unpack(">Q", self.need(8))
            assert n > 65535, "not the shortest length"
        assert not b & 128, "the server masks"
        return a >> 7, a >> 4 & 7, a & 15, self.need(n)

    def recv(self):
        """The next JSON frame; answers no pings. Raises Closed."""
        while True:
            fin, rsv, op, data = self.recv_frame()
            assert fin == 1 and rsv == 0, (fin, rsv, op)
            if op == CLOSE:
                code = struct.unpack(">H", data[:2])[0] if data else 1005
                raise Closed(code, data[2:].decode())
            if op == TEXT:
                return json.loads(data.decode())

    def until(self, wanted):
        """Frames up to the first that `wanted` is true of; it is the last."""
        got = []
        while not got or not wanted(got[-1]):
            got.append(self.recv())
        return got

    def frames(self):
        """(every frame but heartbeats, close code)."""
        got = []
        while True:
            try:
                f = self.recv()
            except Closed as c:
                return got, c.code
            if f["type"] != "heartbeat":
                got.append(f)

    def close_code(self):
        """Reads up to the close frame, and that nothing but the end comes behind it."""
        code = self.frames()[1]
        self.expect_end()
        return code

    def expect_end(self):
        try:
            rest = self.buf + self.sock.recv(4096)
        except ConnectionResetError:
            rest = b""
        assert rest == b"", rest

    def wait_there(self):
        """Until the server counts it among its streams, which it does after its 101. No frames of the run may come."""
        self.send(PING, b"there?")
        while True:
            _, _, op, data = self.recv_frame()
            if op == PONG:
                return
            assert op == TEXT and json.loads(data.decode())["type"] == "heartbeat", (op, data)

    def silent(self, seconds):
        """Whether nothing comes within this time."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return not self.buf and not poll.poll(seconds * 1000)


def output(frames, stream="stdout"):
    """The bytes of one stream."""
    return b"".join(f["data"].encode() if f["encoding"] == "utf8" else base64.b64decode(f["data"])
                    for f in frames if f["type"] == stream)


def is_event(name):
    return lambda f: f["type"] == "event" and f["event"] == name


def says(text):
    return lambda f: f["type"] == "stdout" and text in f["data"]


def remaining(end):
    return max(0.0, end - time.monotonic())
