# SPDX-License-Identifier: Apache-2.0
# run: limit=240
"""Network policy allowlist and ICMP: an echo to what is on the list is answered, over IPv4 and IPv6, and nothing else
of ICMP gets out of a sandbox or into it. A negative is told by an echo that is sent after it and answered."""
import os
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import test_network as network  # noqa: E402
from test_network import nethosts, sbx, script  # noqa: E402

SELF4, SELF6 = "198.18.0.1", "fd5b:5346:5321::1"
# Raw sockets, which no sandbox has, in a sandbox's network.
RAW = r"""
def checked(m):
    total = sum(struct.unpack(">%dH" % ((len(m) + 1) // 2), m + b"\0" * (len(m) % 2)))
    while total >> 16: total = (total & 0xffff) + (total >> 16)
    return m[:2] + struct.pack(">H", ~total & 0xffff) + m[4:]

def echo(kind=8, code=0, data=b"ping", seq=1):
    return checked(struct.pack(">BBHHH", kind, code, 0, 99, seq) + data)

raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); raw.settimeout(20)
whole4 = socket.socket(socket.AF_INET, socket.SOCK_RAW, 255)
raw6 = socket.socket(socket.AF_INET6, socket.SOCK_RAW, 58); raw6.settimeout(20)

def packet(to, m, source=SELF4, options=b""):
    head = struct.pack(">BBHHHBBH", 0x45 + len(options) // 4, 0, 20 + len(options) + len(m), 5, 0, 64, 1, 0)
    told(whole4.sendto, head + socket.inet_aton(source) + socket.inet_aton(to) + options + m, (to, 0))

def reply(s, kind, skip):
    "Of the last echo, which is answered; what else came is shown."
    others = []
    while True:
        m = s.recv(70000)[skip:]
        if m[0] == kind and m[6:8] == b"\0\7": return others
        if m[0] not in (8, 128, 3, 1): others.append(m[0])
"""


def sockets_of(pid):
    """By their inodes."""
    where = "/proc/%d/fd/" % pid
    targets = [os.readlink(where + fd) for fd in os.listdir(where)]
    return {t[len("socket:["):-1] for t in targets if t.startswith("socket:[")}


class Icmp(network.Machines):
    SNIFFS = True
    NO_SOCKET = "EACCES"  # where a list has no use for sockets for ping

    def icmp_at(self, host):
        """What of ICMP has arrived there, each as its type."""
        seen = [p for p in host.seen()["packets"] if p[1] in (1, 58)]
        return [[p[2] for p in seen if p[1] == proto] for proto in (1, 58)]

    def counts(self, *keys):
        usage = self.usage()
        return [usage["egress_" + k] for k in keys]

    # ---- what is on the list ----

    def test_allowed_by_address_and_by_name(self):
        m = self.mount("good.test")
        out = self.lines(m, """
for a in (%r, %r, *name("good.test").split()): say(ping(a))
for size in (0, 1, 56, 1471, 1472): say(ping(%r, os.urandom(size)), ping(%r, os.urandom(size)))
""" % (self.a.v4, self.a.v6, self.a.v4, self.a.v6))
        self.assertEqual(out, ["answered"] * 4 + ["answered answered"] * 5)
        # On an Ethernet the two longest of IPv6 are in fragments.
        self.assertEqual(self.icmp_at(self.a), [[8] * 7, [128] * 5])
        sizes = 2 * (2 * 4 + 3000)
        self.assertEqual(self.counts("echoes", "echo_replies", "bytes_sent", "bytes_received", "connections", "flows"),
                         [14, 14, sizes, sizes, 0, 0])
        self.assertEqual(self.counts("refused_icmp_packets", "refused_addresses", "refused_busy"), [0, 0, 0])

    @unittest.skipUnless(os.path.exists("/usr/bin/ping"), "ping is not installed")
    def test_the_program(self):
        m = self.mount("good.test", self.a.v4, self.a.v6)
        out = self.lines(m, """
import subprocess
for words in (%r, "-4 good.test", "-6 good.test", %r, "-s 1472 good.test", "127.0.0.1", "-6 ::1"):
    p = subprocess.run(["ping", "-n", "-c1", *words.split()], stdout=-1, stderr=-2, text=True)
    say(p.returncode if p.returncode == 0 else p.stdout)
""" % (self.a.v4, self.a.v6))
        self.assertEqual(out, ["0"] * 7)
        self.assertEqual(self.counts("echoes", "echo_replies"), [5, 5])

    def test_many_at_a_time_know_their_own(self):
        m = self.mount(self.a.v4)
        out = self.lines(m, """
all = [echo_socket(%r) for i in range(8)]
for seq in range(4):
    for i, s in enumerate(all): s.sendto(request(%r, seq, b"%%d %%d" %% (i, seq)), (%r, 0))
say([[s.recv(100)[6:] for seq in range(4)] for s in all] ==
    [[struct.pack(">H", seq) + b"%%d %%d" %% (i, seq) for seq in range(4)] for i in range(8)])
""" % ((self.a.v4,) * 3))
        self.assertEqual(out, ["True"])

    def test_its_own_addresses(self):
        m = self.mount(self.a.v4)
        out = self.lines(m, "for a in ('127.0.0.1', %r, '::1', %r): say(ping(a, bytes(5000)))" % (SELF4, SELF6))
        self.assertEqual(out, ["answered"] * 4)
        self.assertEqual(self.counts("echoes", "refused_icmp_packets", "refused_addresses", "refused_busy"), [0] * 4)

    def test_a_target_with_a_port_is_that_port_alone(self):
        m = self.mount(self.a.v4 + ":80", "[%s]:80" % self.a.v6, "good.test:80")
        out = self.lines(m, "say(ping(%r)); say(get(%r))" % (self.a.v4, self.a.v4))
        self.assertEqual(out, [self.NO_SOCKET, "allowed 80"])
        m = self.mount(self.a.v4 + ":80", "[%s]:80" % self.a.v6, self.f.v4, self.f.v6)
        out = self.lines(m, "say(unheard(%r, %r)); say(unheard(%r, %r))" % (self.a.v4, self.f.v4, self.a.v6, self.f.v6))
        self.assertEqual(out, ["EPERM, %s 2" % self.f.v4, "sent, %s 2" % self.f.v6])
        self.assertEqual(self.icmp_at(self.a), [[], []])
        self.assertEqual(self.counts("echoes", "refused_icmp_packets"), [2, 2])

    def test_a_name_that_changes(self):
        self.a.zone({"move.test": {"A": [self.a.v4], "ttl": 1}})
        m = self.mount("move.test", self.a.v6)
        r = m.submit(script("""
say("first", ping(%r)); wait()
while name("move.test") != %r: pass
say(unheard(%r, %r))
""" % (self.a.v4, self.f.v4, self.a.v4, self.f.v4), interactive=True, spec_version="1.1", timeout_sec=60))
        r.stream_until(b"first answered")
        self.a.zone({"move.test": {"A": [self.f.v4], "ttl": 1}})
        with open(r.path("stdin"), "wb") as f:
            f.write(b"go\n")
        self.assertEqual(r.wait(60), "0", r.stderr)
        self.assertEqual(r.stdout.decode().splitlines()[1], "EPERM, %s 2" % self.f.v4)

    # ---- what is not ----

    def test_the_other_machine_hears_nothing(self):
        m = self.mount(self.a.v4, self.a.v6)
        out = self.lines(m, "for pair in %r: say(unheard(*pair))" % (((self.f.v4, self.a.v4), (self.f.v6, self.a.v6)),))
        self.assertEqual(out, ["EPERM, %s 2" % self.a.v4, "sent, %s 2" % self.a.v6])
        self.nothing_arrived(self.f)
        self.assertEqual(self.counts("echoes", "refused_icmp_packets"), [2, 2])

    def test_the_host_and_metadata_although_a_network_has_them(self):
        m = self.mount("0.0.0.0/0", "::/0")
        there = (self.a.near4, "169.254.169.254", "100.100.100.200", "240.0.0.1", "0.1.2.3")
        there6 = (self.a.near6, "fd00:ec2::254", "64:ff9b::7f00:1", "2002:7f00:1::1")
        out = self.lines(m, "for a in %r: say(unheard(a, %r))\nfor a in %r: say(unheard(a, %r))"
                         % (there, self.a.v4, there6, self.a.v6))
        self.assertEqual(out, ["sent, %s 2" % self.a.v4] * 5 + ["sent, %s 2" % self.a.v6] * 4)
        self.assertEqual(self.counts("echoes", "refused_addresses"), [9, 9])
        out = self.lines(m, "for a in ('224.0.0.1', '255.255.255.255'): say(unheard(a, %r))\nsay(unheard('ff02::1', %r))"
                         % (self.a.v4, self.a.v6))
        self.assertEqual([line.split(", ")[1] for line in out], [self.a.v4 + " 2"] * 2 + [self.a.v6 + " 2"])
        self.assertEqual(self.counts("echoes"), [3])

    def test_the_host_by_its_address_when_that_is_listed(self):
        m = self.mount(self.a.near4, self.a.near6)
        out = self.lines(m, "say(ping(%r)); say(ping(%r))" % (self.a.near4, self.a.near6))
        self.assertEqual(out, ["answered"] * 2)

    def test_another_run(self):
        """What has the same address is the sandbox itself."""
        m = self.mount(self.a.v4, self.a.v6)
        text = "say('up'); wait(); say(open('/proc/net/snmp').read()); say(open('/proc/net/snmp6').read())"
        first = m.submit(script(text, interactive=True, spec_version="1.1"))
        first.stream_until(b"up")
        self.lines(m, "for a in %r: say(ping(a))" % ((SELF4, SELF6),))
        with open(first.path("stdin"), "wb") as f:
            f.write(b"go\n")
        self.assertEqual(first.wait(60), "0")
        text = first.stdout.decode()
        names, values = (line.split() for line in text.splitlines() if line.startswith("Icmp: "))
        self.assertEqual(dict(zip(names, values))["InEchos"], "0")
        self.assertIn(["Icmp6InEchos", "0"], [line.split() for line in text.splitlines()])

    def test_other_messages(self):
        """The kernel does not send them from such a socket; by one with rights they end at the rules."""
        m = self.mount(self.a.v4, self.a.v6)
        r = m.submit(script("""
for kind in (0, 3, 5, 13, 15, 17):
    with echo_socket(%r) as s: say(told(s.sendto, request(%r, kind=kind) if kind else bytes(8), (%r, 0)))
for kind in (1, 129, 133, 135, 137, 139):
    with echo_socket(%r) as s: say(told(s.sendto, request(%r, kind=kind), (%r, 0)))
say("done"); wait()
""" % ((self.a.v4,) * 3 + (self.a.v6,) * 3), interactive=True, spec_version="1.1"))
        self.assertEqual(r.stream_until(b"done").split(), [b"EINVAL"] * 12 + [b"done"])
        _, gate, _ = network.helpers(m)
        text = network.CLIENT + "SELF4 = %r\n" % SELF4 + RAW + """
A, A6 = %r, %r
for kind in (0, 3, 5, 13, 15, 17): packet(A, echo(kind))
packet(A, echo(8, 1)); packet(A, echo(), options=b"\\1" * 4); packet(A, echo(), source="10.9.9.9"); packet(A, echo(), source=A)
packet(%r, echo())
m = bytearray(echo()); m[2] ^= 1; packet(A, bytes(m)); packet(A, echo(data=bytes(1473))); packet(A, echo(data=bytes(60000)))
raw.sendto(echo(seq=7), (A, 0)); say(reply(raw, 0, 20))
for kind in (1, 129, 133, 135, 137, 139, 255): told(raw6.sendto, echo(kind), (A6, 0))
told(raw6.sendto, echo(128, 1), (A6, 0))
told(raw6.sendmsg, [echo(128)], [(41, 54, b"\\x3a\\0\\1\\4\\0\\0\\0\\0")], 0, (A6, 0))
told(raw6.sendto, echo(128, data=bytes(1473)), (A6, 0)); told(raw6.sendto, echo(128), (%r, 0))
raw6.sendto(echo(128, seq=7), (A6, 0)); say(reply(raw6, 129, 0))
""" % (self.a.v4, self.a.v6, self.f.v4, self.f.v6)
        p = subprocess.run(["nsenter", "-n", "-t", str(gate), sys.executable, "-c", text], stdout=subprocess.PIPE, check=True)
        self.assertEqual(p.stdout.decode().splitlines(), ["[]", "[]"])
        self.assertEqual(self.icmp_at(self.a), [[8], [128]])
        self.nothing_arrived(self.f)
        with open(r.path("stdin"), "wb") as f:
            f.write(b"go\n")
        self.assertEqual(r.wait(60), "0")
        self.last = r
        # A wrong checksum, and three that are too long. The hop-by-hop option is one of the others.
        self.assertEqual(self.counts("echoes", "echo_replies", "refused_icmp_packets", "refused_busy"), [2, 2, 11 + 10, 4])

    def test_replies_that_are_none(self):
        """Each alone: what comes is the reply to the echo after it."""
        with nethosts.Host("liar") as h:
            h.order(lie=True)
            m = self.mount(h.v4, h.v6)
            out = self.lines(m, """
for a in %r:
    for n in range(10):
        with echo_socket(a) as s:
            s.sendto(request(a, 1, b"lie %%d" %% n), (a, 0)); s.sendto(request(a, 2, b"truth"), (a, 0))
            m, peer = s.recvfrom(100); say(n, peer[0] == a, m[0], m[6:])
""" % ((h.v4, h.v6),))
            self.assertEqual(out, ["%d True %d %r" % (n, kind, b"\0\2truth") for kind in (0, 129) for n in range(10)])
            self.assertEqual(self.counts("echoes", "echo_replies", "refused_busy"), [40, 20, 0])

    # ---- bounds ----

    def test_more_than_there_may_be(self):
        m = self.mount(self.a.v4)
        out = self.lines(m, """
s = echo_socket(%r)
for seq in range(1, 201): s.sendto(request(%r, seq), (%r, 0))
say([s.recv(100)[6:8] for i in range(64)] == [struct.pack(">H", i + 1) for i in range(64)])
s.settimeout(0.1); seq = 300
while True:
    s.sendto(request(%r, seq), (%r, 0)); seq += 1
    try:
        if struct.unpack_from(">H", s.recv(100), 6)[0] >= 300: break
    except TimeoutError: pass
say("again")
""" % ((self.a.v4,) * 5))
        self.assertEqual(out, ["True", "again"])
        echoes, busy = self.counts("echoes", "refused_busy")
        self.assertGreaterEqual(echoes, 65)
        self.assertGreater(busy, 0)
        self.assertEqual(len(self.icmp_at(self.a)[0]), echoes)

    def test_who_does_not_reply_holds_up_nobody(self):
        """For more than a second. Each echo to the one that is there finds a place that is too young, or takes that of
        one that waits: either is counted."""
        m = self.mount(self.a.net4)
        silent = self.a.v4[:-1] + "77"
        out = self.lines(m, """
s = echo_socket(%r); s.settimeout(0.1); n = 0
for seq in range(64): s.sendto(request(%r, seq), (%r, 0))
while True:
    s.sendto(request(%r, 100), (%r, 0)); n += 1
    try: say(s.recvfrom(100)[1][0], n); break
    except TimeoutError: pass
""" % (silent, silent, silent, self.a.v4, self.a.v4))
        peer, n = out[0].split()
        echoes, replies, busy = self.counts("echoes", "echo_replies", "refused_busy")
        self.assertEqual((peer, busy), (self.a.v4, int(n)))
        self.assertGreaterEqual(echoes, 65)
        self.assertLess(echoes, 64 + 10)

    # ---- when it is not there ----

    def test_without_its_relay_nobody_answers(self):
        """Least of all the sandbox's own kernel, for which every address is its own."""
        m = self.mount(self.a.v4, self.a.v6)
        r = m.submit(script("say('up', ping(%r)); wait(); say(unheard(%r, '127.0.0.1')); say(unheard(%r, '::1'))"
                            % (self.a.v4, self.a.v4, self.a.v6), interactive=True, spec_version="1.1"))
        r.stream_until(b"up answered")
        _, _, relay = network.helpers(m)
        fd = os.pidfd_open(relay)
        self.addCleanup(os.close, fd)
        os.kill(relay, signal.SIGKILL)
        self.assertTrue(network.is_over(fd))
        with open(r.path("stdin"), "wb") as f:
            f.write(b"go\n")
        self.assertEqual(r.wait(60), "0", r.stderr)
        self.assertEqual(r.stdout.decode().splitlines()[1:], ["sent, 127.0.0.1 2", "sent, ::1 2"])

    def test_a_service_that_may_have_no_socket_for_it(self):
        m = self.runner_without("net_raw", also_to_try=True)
        out = self.lines(m, "say(ping(%r)); say(get(%r))" % (self.a.v4, self.a.v4))
        self.assertEqual(out, [self.NO_SOCKET, "allowed 80"])
        self.assertEqual(self.icmp_at(self.a), [[], []])

    def test_what_is_left_after_it(self):
        m = self.mount(self.a.v4, self.a.v6)
        links = nethosts.links()
        r = m.submit(script("say(ping(%r), ping(%r)); wait()" % (self.a.v4, self.a.v6), interactive=True,
                            spec_version="1.1"))
        r.stream_until(b"answered answered")
        runner, gate, relay = network.helpers(m)
        own = self.echo_sockets() & sockets_of(relay)
        self.assertEqual(len(own), 2)
        fds = [os.pidfd_open(pid) for pid in (gate, relay)]
        for fd in fds:
            self.addCleanup(os.close, fd)
        os.kill(runner, signal.SIGKILL)
        self.assertTrue(all(network.is_over(fd) for fd in fds))
        self.assertEqual(r.wait(60), "failed")
        self.assertEqual(self.echo_sockets() & own, set())
        self.assertEqual(nethosts.links(), links)
        self.assertEqual(self.lines(m, "say(ping(%r))" % self.a.v4), ["answered"])

    def echo_sockets(self):
        """Of this network namespace, by their inodes, raw ones and those for ping."""
        found = set()
        for name in ("raw", "raw6", "icmp", "icmp6"):
            with open("/proc/thread-self/net/" + name) as f:
                found |= {line.split()[9] for line in f.readlines()[1:]}
        return found


class PingSockets(network.Machines):
    """On a host whose kernel gives everybody sockets for ping, no other is used. The host is a network namespace."""

    @classmethod
    def setUpClass(cls):
        nethosts.own_host(cls.addClassCleanup)
        with open("/proc/sys/net/ipv4/ping_group_range", "w") as f:
            f.write("0 2147483647")
        super().setUpClass()

    def sockets(self):
        found = {}
        for name in ("raw", "raw6", "icmp", "icmp6"):
            with open("/proc/thread-self/net/" + name) as f:
                found[name] = len(f.readlines()) - 1
        return found

    def test_they_are_used(self):
        m = self.mount(self.a.v4, self.a.v6)
        self.assertEqual(self.sockets(), {"raw": 0, "raw6": 0, "icmp": 0, "icmp6": 0})
        r = m.submit(script("for a in %r: say(ping(a), ping(a, bytes(1472)))\nsay('up'); wait()"
                            % ((self.a.v4, self.a.v6),), interactive=True, spec_version="1.1"))
        self.assertEqual(r.stream_until(b"up").split(), [b"answered"] * 4 + [b"up"])
        # A socket that has sent is in these lists, of both families in the first.
        self.assertEqual(self.sockets()["raw"] + self.sockets()["raw6"], 0)
        self.assertGreater(self.sockets()["icmp"], 0)
        r.ctl("cancel")
        r.wait()

    def test_a_service_without_the_right_to_raw_sockets(self):
        """Then there are none inside, either, and what is sent there ends at the rules."""
        m = self.runner_without("net_raw", also_to_try=True)
        self.assertEqual(self.lines(m, "say(ping(%r)); say(get(%r))" % (self.a.v4, self.a.v4)), ["EPERM", "allowed 80"])
        self.assertEqual([self.usage()["egress_" + k] for k in ("echoes", "refused_icmp_packets")], [0, 1])


if __name__ == "__main__":
    sbx.main()
