# SPDX-License-Identifier: Apache-2.0
"""What a program in a sandbox tries of the network; each function tells how it ended, as a text. It is put in front
of scripts that run inside, and knows nothing of the rest of the tests."""
import errno
import os
import socket
import struct
import sys


def told(f, *args):
    try:
        return f(*args)
    except OSError as e:
        return errno.errorcode.get(e.errno, str(e)) if e.errno and e.errno > 0 else str(e) or type(e).__name__


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def whole(s):
    parts = []
    while more := s.recv(65536):
        parts.append(more)
    return b"".join(parts)


def connect(address, port, timeout=20):
    s = socket.socket(family(address))
    s.settimeout(timeout)
    s.connect((address, port))
    return s


def _get(address, port, path):
    with connect(address, port) as s:
        s.sendall(b"GET %s HTTP/1.0\r\n\r\n" % path.encode())
        return whole(s).partition(b"\r\n\r\n")[2].decode().strip()


def _post(address, port, body):
    """The end of file of our side ends the request."""
    with connect(address, port) as s:
        s.sendall(b"POST / HTTP/1.0\r\n\r\n")
        s.sendall(body)
        s.shutdown(socket.SHUT_WR)
        return whole(s).partition(b"\r\n\r\n")[2]


def _udp(address, port):
    with socket.socket(family(address), socket.SOCK_DGRAM) as s:
        s.settimeout(20)
        s.connect((address, port))
        answers = []
        for text in (b"one", b"two"):
            s.send(text)
            answers.append(s.recv(100).decode())
        return " ".join(answers)


def _name(name):
    return " ".join(sorted({a[4][0] for a in socket.getaddrinfo(name, 80, type=socket.SOCK_STREAM)}))


def question(name, kind=1):
    return struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + \
        b"".join(bytes([len(p)]) + p.encode() for p in name.split(".")) + b"\0" + struct.pack(">HH", kind, 1)


def verdict(reply):
    """The code and the number of records."""
    return "%d %d" % (reply[3] & 15, struct.unpack_from(">H", reply, 6)[0])


def _ask(server, name, kind=1):
    with socket.socket(family(server), socket.SOCK_DGRAM) as s:
        s.settimeout(20)
        s.connect((server, 53))
        s.send(question(name, kind))
        return verdict(s.recv(4096))


def _ask_tcp(server, name, kind=1):
    with connect(server, 53) as s:
        q = question(name, kind)
        s.sendall(struct.pack(">H", len(q)) + q)
        size, = struct.unpack(">H", s.recv(2, socket.MSG_WAITALL))
        return verdict(s.recv(size, socket.MSG_WAITALL))


def echo_socket(address):
    s = socket.socket(family(address), socket.SOCK_DGRAM, 58 if ":" in address else 1)
    s.settimeout(20)
    return s


def request(address, seq=1, data=b"ping", kind=None):
    return struct.pack(">BBHHH", kind or (128 if ":" in address else 8), 0, 0, 0, seq) + data


def _ping(address, data):
    with echo_socket(address) as s:
        s.sendto(request(address, 7, data), (address, 0))
        reply, peer = s.recvfrom(70000)
        kind, code, _, _, seq = struct.unpack_from(">BBHHH", reply)
        right = (kind, code, seq, reply[8:], peer[0]) == (129 if ":" in address else 0, 0, 7, data, address)
        return "answered" if right else repr((reply, peer))


def _unheard(address, fence, *how):
    """How sending an echo there ends, and who replies first when one to the fence follows."""
    with echo_socket(address) as s:
        sent = told(s.sendto, request(address, 1, *how), (address, 0))
        s.sendto(request(fence, 2), (fence, 0))
        reply, peer = s.recvfrom(70000)
        return "%s, %s %d" % (sent if isinstance(sent, str) else "sent", peer[0], struct.unpack_from(">H", reply, 6)[0])


def get(address, port=80, path="/"):
    return told(_get, address, port, path)


def post(address, port, body):
    return told(_post, address, port, body)


def udp(address, port=7007):
    return told(_udp, address, port)


def name(text):
    return told(_name, text)


def ask(server, text, kind=1):
    return told(_ask, server, text, kind)


def ask_tcp(server, text, kind=1):
    return told(_ask_tcp, server, text, kind)


def ping(address, data=b"ping"):
    return told(_ping, address, data)


def unheard(address, fence, *how):
    return told(_unheard, address, fence, *how)


def cut_off(address, port=80):
    """Does the connection end before anything is said? Whether it had begun is a question of luck."""
    return told(_cut_off, address, port) in ("ECONNRESET", "ECONNREFUSED", b"")


def _cut_off(address, port):
    with connect(address, port) as s:
        return s.recv(1)


def say(*words):
    print(*words, flush=True)


def wait():
    """For a line of input."""
    return sys.stdin.readline().strip()
