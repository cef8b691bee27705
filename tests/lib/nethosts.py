# SPDX-License-Identifier: Apache-2.0
"""Other machines for tests of the network: each is a process in a network namespace of its own, joined to this
host by a pair of veth devices, and is gone with its process. Nothing leaves the machine. A host has a web server
(any port of HTTP), an echo of UDP (ECHO), and a name server over UDP and TCP whose zone the test can change; it
remembers all that reached it. Run as a program this file is such a host."""
import contextlib
import ctypes
import ipaddress
import json
import os
import random
import socket
import struct
import subprocess
import sys
import threading

HTTP = (80, 8080)
ECHO = 7007
DNS = 53
FENCE_SECONDS = 60


# ---- the host's own process ------------------------------------------------------------------------

class Server:
    def __init__(self, name):
        self.name, self.zone = name, {}
        self.news = threading.Condition()
        self.seen = {"tcp": [], "udp": [], "dns": [], "packets": []}
        self.sniffs, self.passed = False, None

    def note(self, kind, what):
        with self.news:
            self.seen[kind].append(what)
            self.news.notify_all()

    def thread(self, f, *args):
        threading.Thread(target=f, args=args, daemon=True).start()

    # Listening on the one socket of IPv6 that takes both families would hide which was used.
    def socket(self, family, kind, port):
        s = socket.socket(family, kind)
        if family == socket.AF_INET6:
            s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(("", port))
        if kind == socket.SOCK_STREAM:
            s.listen(64)
        return s

    def begin(self, sniffs):
        self.sniffs = sniffs
        if sniffs:
            self.thread(self.sniff, socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)))
        for family in (socket.AF_INET, socket.AF_INET6):
            for port in HTTP:
                self.thread(self.accept, self.socket(family, socket.SOCK_STREAM, port), self.http)
            self.thread(self.accept, self.socket(family, socket.SOCK_STREAM, DNS), self.dns_stream)
            self.thread(self.echo, self.socket(family, socket.SOCK_DGRAM, ECHO))
            self.thread(self.dns, self.socket(family, socket.SOCK_DGRAM, DNS))

    def sniff(self, s):
        """Whatever of IP comes in but what the devices say to each other: where it goes, its protocol, and of ICMP
        the type."""
        while True:
            data, about = s.recvfrom(65535)
            if about[2] == 4:  # PACKET_OUTGOING
                continue
            if about[0] == "lo":  # a fence, or what the kernel says to it
                if data[23] == 17:
                    with self.news:
                        self.passed = data[42:]
                        self.news.notify_all()
            elif about[1] == 0x800:
                self.note("packets", [socket.inet_ntoa(data[30:34]), data[23],
                                      *([data[14 + 4 * (data[14] & 15)]] if data[23] == 1 else [])])
            elif about[1] == 0x86dd and not (data[20] in (0, 58) and data[38] in (0xfe, 0xff)):
                if data[20] != 58 or data[54] not in range(130, 144):
                    self.note("packets", [socket.inet_ntop(socket.AF_INET6, data[38:54]), data[20],
                                          *([data[54]] if data[20] == 58 else [])])

    def fence(self):
        """Until all that has arrived is noted: behind it, in the one queue that all devices have, comes a datagram."""
        token = random.randbytes(16)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.sendto(token, ("127.0.0.1", 9))
        if not self.news.wait_for(lambda: self.passed == token, FENCE_SECONDS):
            raise RuntimeError("what has arrived at %s is not known" % self.name)

    def accept(self, listener, handler):
        while True:
            c, _ = listener.accept()
            self.note("tcp", [c.getpeername()[0], c.getsockname()[1]])
            self.thread(self.guarded, handler, c)

    def guarded(self, handler, c):
        with c, contextlib.suppress(OSError):
            handler(c)

    def http(self, c):
        """GET /echo?N sends N bytes; POST sends back what came up to the end of file; else a greeting."""
        head = b""
        while b"\r\n\r\n" not in head:
            more = c.recv(65536)
            if not more:
                return
            head += more
        head, body = head.split(b"\r\n\r\n", 1)
        path = head.split()[1].decode()
        if path.startswith("/hold"):
            c.recv(1)
            return
        if head.startswith(b"POST"):
            parts = [body]
            while more := c.recv(65536):
                parts.append(more)
            body = b"".join(parts)
        elif "?" in path:
            body = b"x" * int(path.split("?")[1])
        else:
            body = ("%s %d\n" % (self.name, c.getsockname()[1])).encode()
        c.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        c.shutdown(socket.SHUT_WR)
        while c.recv(65536):
            pass

    def echo(self, s):
        while True:
            data, peer = s.recvfrom(65535)
            self.note("udp", [peer[0], data[:64].decode("latin1")])
            s.sendto(self.name.encode() + b" " + data, peer)

    # ---- echoes ----

    def lie(self):
        """From now on the answer to "lie N" is the Nth of the replies that are none, while there are so many, and the
        answer to anything else is the right one, twice."""
        for path, family, proto in (("ipv4/icmp_echo_ignore_all", socket.AF_INET, 1),
                                    ("ipv6/icmp/echo_ignore_all", socket.AF_INET6, 58)):
            with open("/proc/sys/net/" + path, "w") as f:
                f.write("1")
            self.thread(self.lies, socket.socket(family, socket.SOCK_RAW, proto))

    def lies(self, s):
        six = s.family == socket.AF_INET6
        wanted, kind = (128, 129) if six else (8, 0)
        while True:
            data, peer = s.recvfrom(65535)
            whole = data if six else data[20:]
            if whole[0] != wanted:
                continue
            number, seq = struct.unpack_from(">HH", whole, 4)
            body = whole[8:]
            right = message(kind, number, seq, body)
            lies = [message(kind, number, seq, body[:-1] + b"!"), message(kind, number, seq, body + b"!"),
                    message(kind, number, seq, body[:-1]), message(kind, number, seq ^ 0x40, body),
                    message(kind, number, seq ^ 1, body), message(kind, number ^ 1, seq, body),
                    message(kind, number, seq, body, 1), message(4 if six else 14, number, seq, body), right[:7]]
            if not body.startswith(b"lie "):
                lies = [right, right]
            elif int(body[4:]) < len(lies):
                lies = [lies[int(body[4:])]]
            else:
                lies = self.from_another(data, right)
            for reply in lies:
                s.sendto(reply, peer)

    def from_another(self, request, reply):
        """The right reply from the address beside this one's; only of IPv4 can a head be written."""
        if request[0] >> 4 != 4:
            return []
        head = bytearray(request[:20])
        head[12:16], head[16:20] = (int.from_bytes(head[16:20], "big") + 1).to_bytes(4, "big"), head[12:16]
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, 255) as s:
            s.sendto(bytes(head) + reply, (socket.inet_ntoa(bytes(head[16:20])), 0))
        return []

    # ---- names ----

    def answer(self, msg):
        name, at = [], 12
        while msg[at]:
            name.append(msg[at + 1:at + 1 + msg[at]].decode().lower())
            at += 1 + msg[at]
        name = ".".join(name)
        kind, = struct.unpack_from(">H", msg, at + 1)
        question = msg[12:at + 5]
        self.note("dns", [name, kind])
        entry = self.zone.get(name)
        if entry == "silence":
            return None
        records = (entry or {}).get({1: "A", 28: "AAAA"}.get(kind), [])
        body = b"".join(b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, (entry or {}).get("ttl", 60), len(a)) + a
                        for a in (socket.inet_pton(socket.AF_INET if kind == 1 else socket.AF_INET6, r)
                                  for r in records))
        return msg[:2] + struct.pack(">BBHHHH", 0x85, 0x80 | (0 if entry else 3), 1, len(records), 0, 0) + \
            question + body

    def dns(self, s):
        while True:
            msg, peer = s.recvfrom(4096)
            with contextlib.suppress(IndexError, struct.error, OSError):
                reply = self.answer(msg)
                if reply:
                    s.sendto(reply, peer)

    def dns_stream(self, c):
        size, = struct.unpack(">H", c.recv(2, socket.MSG_WAITALL))
        reply = self.answer(c.recv(size, socket.MSG_WAITALL))
        c.sendall(struct.pack(">H", len(reply)) + reply)

    # ---- orders, one line of JSON each ----

    def obey(self, order):
        with self.news:
            if "zone" in order:
                self.zone = order["zone"]
            if "wait_dns" in order:
                name, count = order["wait_dns"]
                good = self.news.wait_for(lambda: sum(q[0] == name for q in self.seen["dns"]) >= count,
                                          order["timeout"])
                return {"good": good}
            if self.sniffs:
                self.fence()
            if "lie" in order:
                self.lie()
            if "forget" in order:
                for kind in self.seen.values():
                    kind.clear()
            return self.seen


CLONE_NEWNET = 0x40000000
DEVICES = "sbxt"  # how the names of those that tests make here begin


def links():
    """The network devices of this machine but for those of tests, which run side by side."""
    return sorted(n for n in os.listdir("/sys/class/net") if not n.startswith(DEVICES))


def own_host(closing):
    """From here on this process and what it starts have a network namespace of their own for a host, with loopback
    alone; closing(f) takes what undoes it."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    closing(os.close, own)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")
    closing(libc.setns, own, CLONE_NEWNET)
    ip("link", "set", "lo", "up")


def message(kind, number, seq, body, code=0):
    """Of ICMP; the kernel does the checksums of IPv6."""
    m = struct.pack(">BBHHH", kind, code, 0, number, seq) + body
    total = sum(struct.unpack(">%dH" % ((len(m) + 1) // 2), m + b"\0" * (len(m) % 2)))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return m[:2] + struct.pack(">H", ~total & 0xffff) + m[4:]


def serve():
    server = Server(sys.argv[1])
    server.begin(len(sys.argv) > 2)
    print("{}", flush=True)
    for line in sys.stdin:
        print(json.dumps(server.obey(json.loads(line))), flush=True)


# ---- what tests use --------------------------------------------------------------------------------

def ip(*args):
    subprocess.run(["ip", *args], check=True, stdin=subprocess.DEVNULL)


class Host:
    """Attributes: v4 and v6 are its addresses, near4 and near6 those of this host towards it."""

    def __init__(self, name, sniffs=False):
        """sniffs: every packet is remembered, which is slow."""
        self.name = name
        a, b = random.randrange(1, 255), random.randrange(1, 255)
        self.near4, self.v4 = "10.%d.%d.1" % (a, b), "10.%d.%d.2" % (a, b)
        self.net4 = "10.%d.%d.0/24" % (a, b)
        prefix = "fd%02x:%02x%02x:%04x" % (a, b, random.randrange(256), random.randrange(65536))
        self.near6, self.v6 = (str(ipaddress.ip_address(prefix + end)) for end in ("::1", "::2"))
        self.device = DEVICES + "%06x" % random.randrange(1 << 24)
        self.proc = subprocess.Popen(["unshare", "--net", "sh", "-c", 'read go && exec "$@"', "host", sys.executable,
                                      os.path.abspath(__file__), name, *(["sniffs"] if sniffs else [])],
                                     stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, text=True)
        try:
            self.join()
        except BaseException:
            self.close()
            raise

    def join(self):
        pid = str(self.proc.pid)
        # unshare(1) has executed sh in the namespace when sh reads; until then it is this one's.
        own = os.readlink("/proc/self/ns/net")
        while os.readlink("/proc/%s/ns/net" % pid) == own:
            if self.proc.poll() is not None:
                raise AssertionError("no network namespace")
            os.sched_yield()
        ip("link", "add", self.device, "type", "veth", "peer", "name", "eth0", "netns", pid)
        for address in (self.near4 + "/24", self.near6 + "/64"):
            ip("addr", "add", address, "dev", self.device, *(["nodad"] if ":" in address else []))
        ip("link", "set", self.device, "up")
        inside = ["nsenter", "-n", "-t", pid, "ip"]
        for args in (["link", "set", "lo", "up"], ["addr", "add", self.v4 + "/24", "dev", "eth0"],
                     ["addr", "add", self.v6 + "/64", "dev", "eth0", "nodad"], ["link", "set", "eth0", "up"],
                     ["route", "add", "default", "via", self.near4]):
            subprocess.run(inside + args, check=True)
        self.proc.stdin.write("go\n")
        self.proc.stdin.flush()
        self.proc.stdout.readline()

    def order(self, **order):
        self.proc.stdin.write(json.dumps(order) + "\n")
        self.proc.stdin.flush()
        return json.loads(self.proc.stdout.readline())

    def seen(self):
        return self.order()

    def forget(self):
        self.order(forget=True)

    def zone(self, names):
        """name: {"A": [...], "AAAA": [...], "ttl": 60}, or "silence"."""
        self.order(zone=names)

    def wait_dns(self, name, count, timeout=20):
        """Until the name has been asked for so often, both families counted."""
        return self.order(wait_dns=[name, count], timeout=timeout)["good"]

    def close(self):
        self.proc.kill()
        self.proc.communicate()
        # With its namespace the pair is gone, only a little later; this is at once.
        subprocess.run(["ip", "link", "del", self.device], stderr=subprocess.DEVNULL, check=False)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def reason_not_here():
    """Why there can be no hosts, or None."""
    if os.geteuid() != 0:
        return "only root makes devices"
    pair = ["unshare", "--net", "ip", "link", "add", "va", "type", "veth", "peer", "name", "vb"]
    if subprocess.run(pair, stderr=subprocess.DEVNULL, check=False).returncode:
        return "no network namespaces with devices here"
    return None


if __name__ == "__main__":
    serve()
