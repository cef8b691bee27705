# SPDX-License-Identifier: Apache-2.0
"""Requests that no honest client sends, as tables, and what the tests that send them share."""
import contextlib
import os
import socket
import time
import unittest

import api
import rawhttp
import sbx

BASE = api.BASE
HEALTH = BASE + "/health/public"
MIB = 1 << 20

# Lines of a head, in which a request ends at two places: name, lines. %N: a length that reaches over the
# next request.
TWO_ENDS = {
    "two lengths, the short one first": ("Content-Length: 5", "Content-Length: %N"),
    "two lengths, the long one first": ("Content-Length: %N", "Content-Length: 5"),
    "no length and one": ("Content-Length: 0", "Content-Length: 5"),
    "two lengths in one line": ("Content-Length: 5, %N",),
    "the same length twice": ("Content-Length: 5", "Content-Length: 5"),
    "a length and chunked": ("Content-Length: %N", "Transfer-Encoding: chunked"),
    "chunked and a length": ("Transfer-Encoding: chunked", "Content-Length: %N"),
    "chunked twice": ("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
    "chunked and identity": ("Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
    "identity": ("Transfer-Encoding: identity", "Content-Length: 5"),
    "chunked in front of gzip": ("Transfer-Encoding: chunked, gzip",),
    "gzip, chunked": ("Transfer-Encoding: gzip, chunked",),
    "an unknown coding": ("Transfer-Encoding: xchunked", "Content-Length: 5"),
    "a quoted coding": ('Transfer-Encoding: "chunked"', "Content-Length: 5"),
    "a coding with a control byte": ("Transfer-Encoding: \x0bchunked", "Content-Length: 5"),
    "a space in front of the colon": ("Transfer-Encoding : chunked", "Content-Length: 5"),
    "a length with a space in front of the colon": ("Content-Length : 5",),
    "a tab in front of the colon": ("Content-Length\t: 5",),
    "a folded coding": ("Transfer-Encoding:", " chunked", "Content-Length: 5"),
    "a folded line": ("X: y", " Content-Length: 5"),
    "a name with a byte beyond ASCII": ("Content-Length\xa0: 5",),
    "a folded length": ("Content-Length:", " 5"),
    "a length with a sign": ("Content-Length: +5",),
    "a negative length": ("Content-Length: -5",),
    "a hexadecimal length": ("Content-Length: 0x5",),
    "a length with a point": ("Content-Length: 5.0",),
    "two hosts": ("Host: other", "Content-Length: 5"),
}

# Bytes that begin like no request, or like one and go wrong.
GARBAGE = {
    "zeros": b"\0" * 100,
    "bytes": bytes(range(256)),
    "a word": b"HELLO",
    "a sentence": b"how do you do",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x5a" * 200,
    "SSH": b"SSH-2.0-OpenSSH_9.2",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    "SMTP": b"EHLO example.org",
    "Redis": b"*1\r\n$4\r\nPING",
    "an answer": b"HTTP/1.1 200 OK\r\nContent-Length: 0",
    "only a method": b"GET",
    "no version": b"GET /",
    "HTTP/0.9": b"GET /api/v1/sandbox/health/public",
    "a header without a colon": b"GET / HTTP/1.1\r\nHost: h\r\nNoColon",
    "spaces": b" " * 1000,
    "a space in front": b" GET / HTTP/1.1\r\nHost: h",
    "a tab in front": b"\tGET / HTTP/1.1\r\nHost: h",
    "JSON": b'{"command":["true"]}',
    "percent signs": b"%n%n%s%s%s%p HTTP/1.1",
    "a long word": b"A" * 30000,
    "line feeds of one kind": b"GET / HTTP/1.1\rHost: h\r\r",
}

CHUNKS = {
    "no size": b"\r\nabc\r\n0\r\n\r\n",
    "no hexadecimal size": b"zz\r\nabc\r\n0\r\n\r\n",
    "a negative size": b"-1\r\nabc\r\n0\r\n\r\n",
    "a sign": b"+3\r\nabc\r\n0\r\n\r\n",
    "0x": b"0x3\r\nabc\r\n0\r\n\r\n",
    "a size beyond all numbers": b"ffffffffffffffffff\r\nabc\r\n0\r\n\r\n",
    "2 to the 63": b"8000000000000000\r\nabc\r\n0\r\n\r\n",
    "2 to the 64 less 1": b"ffffffffffffffff\r\nabc\r\n0\r\n\r\n",
    "longer than it says": b"2\r\nabcdef\r\n0\r\n\r\n",
    "shorter than it says": b"9\r\nabc\r\n0\r\n\r\n",
    "cut in a size": b"3",
    "cut in the data": b"3\r\na",
    "cut behind the data": b"3\r\nabc",
    "no last chunk": b"3\r\nabc\r\n",
    "a size of a thousand zeros": b"0" * 1000 + b"3\r\nabc\r\n0\r\n\r\n",
    "an extension without end": b"3;" + b"x" * 100000,
    "NUL": b"3\0\r\nabc\r\n0\r\n\r\n",
}


def connections(port):
    """That the server of this port holds over TCP, whoever has ended them. (Descriptors would count
    what it opens for its own ends, too.)"""
    with open("/proc/net/tcp") as f:
        rows = [line.split() for line in f][1:]
    return sum(int(r[1].split(":")[1], 16) == port and r[3] != "0A" and r[9] != "0" for r in rows)


def until(done, what, timeout=20):
    """Waits for a state that has no event, in the manner of fskit: it yields the processor between looks."""
    end = time.monotonic() + timeout * sbx.SLOW
    while not done():
        if time.monotonic() > end:
            raise AssertionError("not within %s s: %s" % (timeout * sbx.SLOW, what))
        os.sched_yield()


class Case(unittest.TestCase):
    """One server for a class; override `settings` and `env`."""
    settings = {}
    env = {}

    @classmethod
    def setUpClass(cls):
        cls.a = api.Apid(settings=cls.settings, env=cls.env)
        cls.addClassCleanup(cls.a.close)
        cls.a.start()
        cls.address = ("127.0.0.1", cls.a.port)
        cls.login = list(cls.a.login.headers.items())

    def tearDown(self):
        self.assertIsNone(self.a.proc.poll(), "the server has ended")

    def ask(self, *args, **kw):
        return rawhttp.ask(self.address, *args, **kw)

    def alive(self):
        self.assertEqual(self.ask("GET", HEALTH).status, 200)

    def rows(self):
        """Runs that were ever accepted."""
        return self.a.sql("SELECT count(*) FROM runs")[0][0]

    def descriptors(self):
        return len(os.listdir("/proc/%d/fd" % self.a.proc.pid))

    def all_gone(self, timeout=20):
        until(lambda: connections(self.a.port) == 0, "no connection is left", timeout)

    def resident_kib(self):
        with open("/proc/%d/status" % self.a.proc.pid) as f:
            return int(next(line for line in f if line.startswith("VmRSS:")).split()[1])

    def volley(self, cases):
        """Sends each on a connection of its own and ends our side of it: (name, all that was said). What the
        server waits for in vain, it waits for at the same time."""
        with contextlib.ExitStack() as stack:
            sent = []
            for name, data in cases:
                c = stack.enter_context(rawhttp.Raw(self.address))
                # The server may end the connection while we still send.
                with contextlib.suppress(OSError):
                    c.send(data)
                    c.sock.shutdown(socket.SHUT_WR)
                sent.append((name, c))
            return [(name, c.rest()) for name, c in sent]


def bad_requests(login):
    """Requests of every kind, none of which starts a run: (bytes, does the connection end with it)."""
    def request(method, target, headers=(), body=b""):
        return rawhttp.head(method, target, headers) + body
    post = [*login, ("Content-Length", "9")]
    return [
        (request("GET", BASE + "/nothing"), False),
        (request("GET", "/"), False),
        (request("GET", BASE + "/runs/x/artifacts/../../y", login), False),
        (request("GET", BASE + "/runs/x/artifacts/%2e%2e/y%00", login), False),
        (request("GET", BASE + "/runs/" + "x" * 300, login), False),
        (request("GET", BASE + "/runs/01234567-89ab-7def-8123-456789abcdef", login), False),
        (request("GET", BASE + "/runs/01234567-89ab-7def-8123-456789abcdef?wait=x", login), False),
        (request("PUT", BASE + "/runs", post, b"123456789"), False),
        (request("POST", BASE + "/runs", [("Content-Length", "9")], b"123456789"), False),
        (request("POST", BASE + "/runs", [("X-API-KEY", "wrong"), ("Content-Length", "9")], b"123456789"), False),
        (request("POST", BASE + "/runs", [("Authorization", "Bearer a.b.c"), ("Content-Length", "9")], b"123456789"), False),
        (request("POST", BASE + "/runs", post, b"[[[[[[[[["), False),
        (request("POST", BASE + "/runs", post, b'{"a":"\xff"}'[:9]), False),
        (request("POST", BASE + "/runs", [*login, ("Content-Length", "30000")], b'{"command":' + b"[" * 29989), False),
        (request("POST", BASE + "/runs/check", post, b'{"a":"b"}'), False),
        (request("POST", BASE + "/runs", [*login, ("Transfer-Encoding", "chunked")], b"3\r\nabc\r\n0\r\n\r\n"), False),
        (request("POST", BASE + "/runs", [*login, ("Transfer-Encoding", "chunked")], b"zz\r\n"), True),
        (request("GET", BASE + "/nothing?" + "x" * 9000), False),
        (request("GET", "/" + "x" * 40000), True),
        (request("GET", HEALTH, [("X", "y" * 40000)]), True),
        (b"GET / HTTP/1.1\r\n\r\n", True),
        (b"GET / HTTP/9.9\r\n\r\n", True),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", True),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", True),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n", True),
    ]


# More arguments than there is memory for: libmicrohttpd 1.0 says so with a 431; older ones say nothing and
# wait, so that the limit of time for a head is what ends it.
MANY_ARGUMENTS = rawhttp.head("GET", HEALTH + "?" + "&" * 4000)


def rain(address, login, n):
    """Sends n bad requests, as many on one connection as it survives. Each gets an answer, or the end."""
    kinds = bad_requests(login)
    c, said = None, 0
    for i in range(n):
        data, ends = kinds[i % len(kinds)]
        c = c or rawhttp.Raw(address)
        try:
            c.send(data)
            status = c.answer().status
            assert 400 <= status < 500 or status in (200, 505) and (ends or b"/check" in data), (data[:80], status)
            said += 1
        except ConnectionError:
            assert ends, data[:80]
        if ends:
            c.close()
            c = None
    if c:
        c.close()
    assert said > n // 2, "only %d of %d had an answer" % (said, n)
