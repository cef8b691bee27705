#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Follow a run over a WebSocket, with nothing but Python's standard library.

  sandbox-apid &       # listens on 127.0.0.1:8420; its key is in api.key in the state directory
  ./api-follow.py

usage: api-follow.py [URL [RUN]]     the key in $SANDBOX_KEY, or else it is read from the state directory
Without RUN it starts one that takes input, answers it, and is told when there is no more.
"""
import base64
import json
import os
import socket
import struct
import sys
import urllib.parse
import urllib.request

URL = urllib.parse.urlsplit(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8420")
API = "/api/v1/sandbox"


def read_key():
    state = ("/var/lib" if os.geteuid() == 0 else
             os.environ.get("XDG_STATE_HOME", os.path.expanduser("~/.local/state")))
    with open(state + "/sandboxfs/api.key") as f:
        return f.read().strip()


KEY = os.environ.get("SANDBOX_KEY") or read_key()


def start(document):
    """The status of a new run; log_stream_url in it is where to follow it."""
    request = urllib.request.Request(URL.geturl() + API + "/runs", json.dumps(document).encode(), {"X-API-KEY": KEY})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


class Stream:
    """As much of RFC 6455 as a client needs."""

    def __init__(self, path):
        self.sock = socket.create_connection((URL.hostname, URL.port or 80))
        self.file = self.sock.makefile("rb")
        self.sock.sendall(("GET %s HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                           "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\nX-API-KEY: %s\r\n\r\n" %
                           (path, URL.netloc, base64.b64encode(os.urandom(16)).decode(), KEY)).encode())
        first = self.file.readline()
        if b" 101 " not in first:
            sys.exit("no stream: %s" % first.decode().strip())
        while self.file.readline() not in (b"\r\n", b""):
            pass

    def send(self, opcode, data):
        """What a client sends is masked; no message of ours is longer than 65,535 bytes."""
        n, mask = len(data), os.urandom(4)
        head = bytes([0x80 | opcode, 0x80 | n]) if n < 126 else bytes([0x80 | opcode, 0xfe]) + struct.pack(">H", n)
        self.sock.sendall(head + mask + bytes(c ^ mask[i & 3] for i, c in enumerate(data)))

    def stdin(self, text):
        self.send(1, json.dumps({"type": "stdin", "encoding": "utf8", "data": text}).encode())

    def end_of_input(self):
        self.send(1, b'{"type":"stdin","eof":true}')

    def frames(self):
        """Every frame as a dictionary, until the server closes: 1000 after the end of the run."""
        while True:
            a, n = self.file.read(2)
            if n >= 126:
                n = int.from_bytes(self.file.read(2 if n == 126 else 8), "big")
            data = self.file.read(n)
            if a & 15 == 8:
                code = struct.unpack(">H", data[:2])[0]
                self.send(8, data[:2])
                if code != 1000:
                    sys.exit("closed with %d %s" % (code, data[2:].decode()))
                return
            if a & 15 == 9:
                self.send(10, data)
            elif a & 15 == 1:
                yield json.loads(data)


def text_of(frame):
    return frame["data"] if frame["encoding"] == "utf8" else base64.b64decode(frame["data"]).decode(errors="replace")


def main():
    if len(sys.argv) > 2:
        numbers, stream = iter(()), Stream("%s/runs/%s/stream" % (API, sys.argv[2]))
    else:
        numbers = iter((3, 12))
        run = start({"base_image": "host", "interactive": True,
                     "command": ["sh", "-c", 'while read -r n; do echo "$n squared is $((n * n))"; done; echo bye >&2']})
        stream = Stream(run["log_stream_url"])

    def next_number():
        n = next(numbers, None)
        stream.end_of_input() if n is None else stream.stdin("%d\n" % n)

    # Nothing is missed: a stream begins with frame 1, or with ?from_seq=N, also after a restart of the service.
    for frame in stream.frames():
        if frame["type"] in ("stdout", "stderr"):
            print("%s: %s" % (frame["type"], text_of(frame)), end="", flush=True)
        elif frame["type"] == "event":
            print("%s: %s" % (frame["event"], frame["data"].get("exit_code", "")), flush=True)
        if len(sys.argv) < 3 and (frame["type"] == "stdout" or frame.get("event") == "start"):
            next_number()


if __name__ == "__main__":
    main()
