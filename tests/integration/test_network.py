# SPDX-License-Identifier: Apache-2.0
# run: limit=240
"""Network policy allowlist on real machines: what is on the list is reached, by name and by address, and nothing
else, whatever is tried. The machines are those of tests/lib/nethosts.py."""
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import sqlite3
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import nethosts  # noqa: E402
import sbx  # noqa: E402

NOT_HERE = nethosts.reason_not_here()
with open(os.path.join(os.path.dirname(nethosts.__file__), "netclient.py"), encoding="utf-8") as f:
    CLIENT = f.read()
ON = {"egress_enforcement": "true", "egress_granular_enforcement": "true"}


def script(text, **more):
    return dict({"command": ["python3", "-c", CLIENT + text], "network_policy": "allowlist"}, **more)


def children(pid):
    """Names and numbers of the processes that it has started."""
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open("/proc/%s/stat" % entry) as f:
                head, _, tail = f.read().rpartition(")")
            if int(tail.split()[1]) == pid:
                found[head.partition("(")[2]] = int(entry)
    return found


def counters(usage):
    """Of a run's network, as the audit calls them."""
    start = "egress_"
    return {k[len(start):]: n for k, n in usage.items() if k.startswith(start)}


def helpers(mount):
    """The runner that has a gate and a relay, and these two."""
    for pid in mount.processes():
        found = children(pid)
        if "egress-gate" in found:
            return pid, found["egress-gate"], found["egress-relay"]
    raise AssertionError("no runner has a gate")


def is_over(pidfd, timeout=20):
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(timeout * 1000))


@unittest.skipIf(NOT_HERE, NOT_HERE)
class Machines(unittest.TestCase):
    """Two machines for all tests, and a mount for each list."""
    RUNTIME = "namespace"
    SNIFFS = False  # the allowed one, too

    @classmethod
    def setUpClass(cls):
        cls.a = nethosts.Host("allowed", cls.SNIFFS)
        cls.addClassCleanup(cls.a.close)
        cls.f = nethosts.Host("forbidden", sniffs=True)
        cls.addClassCleanup(cls.f.close)

    def setUp(self):
        self.a.forget()
        self.f.forget()
        self.a.zone({
            "good.test": {"A": [self.a.v4], "AAAA": [self.a.v6]},
            "four.test": {"A": [self.a.v4]},
            "bad.test": {"A": [self.f.v4], "AAAA": [self.f.v6]},
            "wild.test": {"A": [self.a.v4]},
            "x.y.wild.test": {"A": [self.a.v4], "AAAA": [self.a.v6]},
            "loop.wild.test": {"A": ["127.0.0.1"], "AAAA": ["::1"]},
            "mapped.wild.test": {"AAAA": ["::ffff:" + self.a.v4]},
            "loop.test": {"A": ["127.0.0.1"]}, "meta.test": {"A": ["169.254.169.254"]},
            "self.test": {"A": [self.a.near4]}, "silent.test": "silence",
        })

    def more(self):
        """Settings of the runtime."""
        return {}

    def mount(self, *targets, **settings):
        m = sbx.Mount(settings=dict(ON, egress_allowlist=",".join(targets), egress_dns=self.a.v4,
                                    **{**self.more(), **settings}))
        m.__enter__()
        self.addCleanup(self.close, m)
        return m

    def close(self, m):
        """And first its runs, if there are any: a test that has failed may have left one that waits for input."""
        runs = os.path.join(m.mnt, "runs")
        with contextlib.suppress(OSError):
            for run in (sbx.Run(m, name) for name in os.listdir(runs) if os.path.exists(os.path.join(runs, name, "ctl"))):
                if run.json()["finished_at"] is None:
                    run.ctl("cancel")
        m.close()

    def lines(self, m, text, **more):
        r = m.run(script(text, **more), timeout=60)
        self.assertEqual(r.exit, "0", (r.json()["message"], r.stderr))
        self.last = r
        return r.stdout.decode().splitlines()

    def usage(self):
        return self.last.json()["resource_usage"]

    def audited(self, m, run):
        """What the audit says of a run's network: a word, and its counters."""
        with contextlib.closing(sqlite3.connect("file:%s/state.db?mode=ro" % m.state, uri=True, timeout=20)) as db:
            (row,) = db.execute("SELECT result, details FROM audit WHERE action='network' AND resource=?", (run.id,))
        return row[0], {k: n for k, n in json.loads(row[1]).items() if k != "allowed"}

    def nothing_arrived(self, host):
        self.assertEqual(host.seen(), {"tcp": [], "udp": [], "dns": [], "packets": []})

    def fails(self, m, message, **more):
        r = m.run(script("say('executed')", **more), timeout=60)
        status = r.json()
        self.assertEqual((status["phase"], status["status_reason_code"]), ("failed", "policy_failed"), status["message"])
        self.assertIn(message, status["message"])
        self.assertEqual(r.stdout, b"")

    def runner_without(self, right, also_to_try):
        """A runner that lacks a right, with which it could enter the network of another process."""
        base = tempfile.mkdtemp(prefix="sbx-test-")
        self.addCleanup(shutil.rmtree, base)
        path = os.path.join(base, "runner")
        with open(path, "w") as f:
            f.write("#!/bin/sh\n%s\nexec setpriv --bounding-set=-%s %s \"$@\"\n" % (
                "" if also_to_try else 'case "$*" in *--preflight*) exec %s "$@";; esac' % sbx.RUNNER, right, sbx.RUNNER))
        os.chmod(path, 0o755)
        m = sbx.Mount(settings=dict(ON, egress_allowlist=self.a.v4, **self.more()),
                      env={"SANDBOXFS_RUNNER": path})
        self.addCleanup(self.close, m)
        return m.start()

    HOLD = ("s = connect(%r, 80); s.sendall(b'GET /hold HTTP/1.0\\r\\n\\r\\n'); say('held')\n"
            "say(told(s.recv, 1) in ('ECONNRESET', b'')); say(get(%r), ask('127.0.0.1', 'good.test'))")

    def begin_to_hold(self):
        m = self.mount(self.a.v4, "good.test")
        r = m.submit(script(self.HOLD % (self.a.v4, self.a.v4)))
        r.stream_until(b"held")
        pids = helpers(m)
        fds = [os.pidfd_open(p) for p in pids]
        for fd in fds:
            self.addCleanup(os.close, fd)
        return m, r, pids, fds


class Network(Machines):
    # ---- what is on the list ----

    def test_allowed_by_address_and_by_name(self):
        m = self.mount(self.a.v4, self.a.v6, "good.test")
        out = self.lines(m, "for a in %r: say(get(a)); say(udp(a))\nsay(name('good.test'))\nsay(get('good.test'))"
                         % ((self.a.v4, self.a.v6),))
        self.assertEqual(out, ["allowed 80", "allowed one allowed two"] * 2 +
                         ["%s %s" % (self.a.v4, self.a.v6), "allowed 80"])
        seen = self.a.seen()
        # Outside it is this host who speaks.
        self.assertEqual(seen["tcp"], [[self.a.near4, 80], [self.a.near6, 80], [self.a.near4, 80]])
        self.assertEqual({peer for peer, _ in seen["udp"]}, {self.a.near4, self.a.near6})
        usage = self.usage()
        self.assertEqual((usage["egress_connections"], usage["egress_flows"]), (3, 2))
        self.assertEqual([usage["egress_refused_" + k] for k in ("tcp_packets", "addresses", "names", "busy")], [0] * 4)
        self.assertGreater(usage["egress_bytes_sent"], 3 * 18)
        self.assertGreater(usage["egress_bytes_received"], usage["egress_bytes_sent"])
        self.assertNotIn("egress_lost", usage)
        self.assertEqual(self.audited(m, self.last), ("allowed", dict(counters(usage), lost=0)))

    def test_a_name_alone_lets_its_addresses_through(self):
        m = self.mount("good.test")
        self.assertEqual(self.lines(m, "say(get(%r)); say(get(%r))" % (self.a.v4, self.a.v6)), ["allowed 80"] * 2)

    def test_ports(self):
        m = self.mount(self.a.v4 + ":8080", "[%s]:7007" % self.a.v6, "four.test:53")
        out = self.lines(m, "say(get({0!r}, 8080)); say(get({0!r}, 80)); say(udp({0!r})); say(udp({1!r}))\n"
                         "say(get({1!r}, 8080)); say(ask({0!r}, 'bad.test'))".format(self.a.v4, self.a.v6))
        self.assertEqual(out, ["allowed 8080", "ECONNREFUSED", "EPERM", "allowed one allowed two", "ECONNREFUSED", "0 1"])

    def test_a_network(self):
        m = self.mount(self.a.net4)
        out = self.lines(m, "say(get(%r)); say(get(%r)); say(get(%r))" % (self.a.v4, self.f.v4, self.a.v6))
        self.assertEqual(out, ["allowed 80", "ECONNREFUSED", "ECONNREFUSED"])

    def test_much_and_both_ends_of_file(self):
        m = self.mount(self.a.v4)
        out = self.lines(m, "body = os.urandom(5 << 20)\nsay(post({0!r}, 80, body) == body)\n"
                         "say(len(get({0!r}, 80, '/echo?20000000')))".format(self.a.v4))
        self.assertEqual(out, ["True", "20000000"])
        self.assertGreater(self.usage()["egress_bytes_received"], 25000000)

    def test_who_does_not_read_is_waited_for(self):
        m = self.mount(self.a.v4)
        r = m.submit(script("s = connect({0!r}, 80)\ns.sendall(b'GET /echo?150000000 HTTP/1.0\\r\\n\\r\\n')\n"
                            "n = len(s.recv(10)); say('begun'); wait()\n"
                            "n += len(whole(s)); say(n > 150000000)".format(self.a.v4), interactive=True,
                            spec_version="1.1"))
        r.stream_until(b"begun")
        _, _, relay = helpers(m)
        with open("/proc/%d/status" % relay) as f:
            resident = next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))
        self.assertLess(resident, 100000)
        with open(r.path("stdin"), "wb") as f:
            f.write(b"go\n")
        self.assertEqual(r.wait(60), "0")
        self.assertIn(b"True", r.stdout)

    def test_a_port_where_nobody_listens(self):
        m = self.mount(self.a.v4)
        self.assertEqual(self.lines(m, "say(get(%r, 81))" % self.a.v4), ["ECONNRESET"])
        self.assertEqual(self.usage()["egress_failed_connections"], 1)

    def test_more_connections_than_there_may_be(self):
        m = self.mount(self.a.v4)
        out = self.lines(m, "all = []\nfor i in range(256):\n"
                         "  s = connect({0!r}, 80); s.sendall(b'GET /hold HTTP/1.0\\r\\n\\r\\n'); all.append(s)\n"
                         "say(sum(cut_off({0!r}) for i in range(44)))\n"
                         "all.pop().close()\nwhile get({0!r}) != 'allowed 80': pass\nsay('again')".format(self.a.v4))
        self.assertEqual(out, ["44", "again"])
        self.assertGreaterEqual(self.usage()["egress_refused_busy"], 44)

    def test_its_own_loopback(self):
        m = self.mount(self.a.v4)
        out = self.lines(m, "srv = socket.create_server(('127.0.0.1', 0))\nc = socket.create_connection(srv.getsockname())\n"
                         "a, _ = srv.accept(); a.send(b'pong'); say(c.recv(9).decode())\n"
                         "srv = socket.create_server(('::1', 0), family=10)\nc = socket.create_connection(srv.getsockname()[:2])\n"
                         "a, _ = srv.accept(); a.send(b'pong'); say(c.recv(9).decode())")
        self.assertEqual(out, ["pong", "pong"])

    # ---- what is not ----

    def test_the_other_machine_hears_nothing(self):
        m = self.mount(self.a.v4, self.a.v6, "good.test")
        out = self.lines(m, """
for a in %r:
    say(get(a)); say(get(a, 8080)); say(udp(a)); say(ask(a, "good.test")); say(ask_tcp(a, "good.test"))
say(get("::ffff:%s")); say(get("64:ff9b::%s"))
for f in (socket.SOCK_RAW, 10): say(told(socket.socket, socket.AF_INET, f, 1))
s = socket.socket(); say(told(s.sendto, b"x", 0x20000000, (%r, 80)))
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind((%r, 0)); say(told(s.sendto, b"x", (%r, 53)))
""" % ((self.f.v4, self.f.v6), self.f.v4, self.f.v4, self.f.v4, self.a.v4, self.f.v4))
        refused = ["ECONNREFUSED", "ECONNREFUSED", "EPERM", "EPERM", "ECONNREFUSED"]
        self.assertEqual(out, [*refused, *refused, "ECONNREFUSED", "ECONNREFUSED", "EPERM", "EPERM", "ECONNREFUSED", "EPERM"])
        self.nothing_arrived(self.f)
        usage = self.usage()
        self.assertEqual(usage["egress_refused_tcp_packets"], 9)
        self.assertEqual(usage["egress_refused_udp_packets"], 5)
        self.assertEqual(usage["egress_connections"], 0)

    def test_services_of_the_host(self):
        """Those of the networks of the list, too, unless the list names their address."""
        listeners = []
        for address in ("127.0.0.1", self.a.near4, "::1", self.a.near6):
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind)
                self.addCleanup(s.close)
                s.bind((address, listeners[0].getsockname()[1] if listeners else 0))
                if kind == socket.SOCK_STREAM:
                    s.listen()
                s.setblocking(False)
                listeners.append(s)
        port = listeners[0].getsockname()[1]
        text = """
for a in %r:
    say(cut_off(a, %d))
    with socket.socket(family(a), socket.SOCK_DGRAM) as u: say(told(u.sendto, b"x", (a, %d)))
say(get("127.0.0.1", %d)); say(get("::1", %d)); say(get("0.0.0.0", %d)); say(get(%r))
""" % ((self.a.near4, self.a.near6), port, port, port, port, port, self.a.v4)
        m = self.mount(self.a.net4, self.a.near6[:-1] + "/64")
        out = self.lines(m, text)
        self.assertEqual(out, ["True", "1"] * 2 + ["ECONNREFUSED"] * 3 + ["allowed 80"])
        self.assertEqual(self.usage()["egress_refused_addresses"], 4)
        for s in listeners:
            self.assertRaises(BlockingIOError, s.accept if s.type == socket.SOCK_STREAM else lambda s=s: s.recv(1))
        m = self.mount(self.a.near4)
        self.lines(m, "connect(%r, %d).sendall(b'x')" % (self.a.near4, port))
        listeners[2].accept()[0].close()

    def test_a_port_of_the_host_opens_no_other(self):
        """Not through a network or a name of the list, either, that have the address as well."""
        one, other = (socket.create_server((self.a.near4, 0)) for _ in range(2))
        u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for s in (one, other, u):
            self.addCleanup(s.close)
            s.setblocking(False)
        port, shut = one.getsockname()[1], other.getsockname()[1]
        u.bind((self.a.near4, shut))
        m = self.mount("0.0.0.0/0", "self.test", "%s:%d" % (self.a.near4, port))
        out = self.lines(m, """
connect({0!r}, {1}).sendall(b'x'); say(cut_off({0!r}, {2})); say(name("self.test") == {0!r})
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as u: say(told(u.sendto, b"x", ({0!r}, {2})))
say(unheard({0!r}, {3!r}))
""".format(self.a.near4, port, shut, self.a.v4))
        self.assertEqual(out, ["True", "True", "1", "sent, %s 2" % self.a.v4])
        one.accept()[0].close()
        self.assertRaises(BlockingIOError, other.accept)
        self.assertRaises(BlockingIOError, u.recv, 1)
        self.assertEqual(self.usage()["egress_refused_addresses"], 3)

    def test_metadata_and_the_like_although_a_network_has_them(self):
        m = self.mount("0.0.0.0/0", "::/0")
        out = self.lines(m, """
for a in ("169.254.169.254", "100.100.100.200", "fd00:ec2::254", "64:ff9b::7f00:1", "2002:7f00:1::1", "0.1.2.3", "240.0.0.1"):
    say(cut_off(a))
say(get("::ffff:127.0.0.1"))
for a in ("224.0.0.251", "255.255.255.255"):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    say(told(s.sendto, b"x", (a, 5353)))
say(get(%r))
""" % self.f.v4)
        # 1 is what the sandbox has got rid of, and nobody has got.
        self.assertEqual(out, ["True"] * 7 + ["ECONNREFUSED", "1", "1", "forbidden 80"])
        self.assertGreaterEqual(self.usage()["egress_refused_addresses"], 5)
        self.assertEqual(self.usage()["egress_connections"], 1)

    def test_another_run(self):
        m = self.mount(self.a.v4, self.a.v6)
        first = m.submit(script("a = socket.create_server(('0.0.0.0', 5000)); b = socket.create_server(('::', 5000), family=10)\n"
                                "s = socket.socket(socket.AF_INET, 2); s.connect((%r, 1)); say('up', s.getsockname()[0]); wait()"
                                % self.a.v4, interactive=True, spec_version="1.1"))
        address = first.stream_until(b"\n").split()[1].decode()
        out = self.lines(m, "say(get(%r, 5000)); say(get('fd5b:5346:5321::1', 5000))" % address)
        self.assertEqual(out, ["ECONNREFUSED", "ECONNREFUSED"])
        first.ctl("cancel")
        first.wait()

    # ---- names ----

    def test_only_names_of_the_list_are_asked_for(self):
        m = self.mount("good.test", "*.wild.test")
        out = self.lines(m, """
for n in ("good.test", "GOOD.test", "wild.test", "x.y.wild.test", "none.wild.test", "bad.test", "xwild.test", "secret.good.test"): say(name(n))
for n, k in (("good.test", 1), ("good.test", 28), ("good.test", 16), ("four.test", 1), ("x.y.wild.test", 28)):
    say(ask("127.0.0.1", n, k), ask_tcp("127.0.0.1", n, k))
say(get("x.y.wild.test"))
""")
        both = "%s %s" % (self.a.v4, self.a.v6)
        unknown = "[Errno -2] Name or service not known"
        self.assertEqual(out, [both, both, self.a.v4, both, unknown, unknown, unknown, unknown] +
                         ["0 1 0 1", "0 1 0 1", "0 0 0 0", "3 0 3 0", "0 1 0 1", "allowed 80"])
        asked = {q[0] for q in self.a.seen()["dns"]}
        self.assertEqual(asked, {"good.test", "wild.test", "www.wild.test", "api.wild.test", "x.y.wild.test", "none.wild.test"})
        # Two families each, but for the last.
        self.assertEqual(self.usage()["egress_refused_names"], 3 * 2 + 2)

    def test_a_wildcard_does_not_lead_inside(self):
        m = self.mount("*.wild.test")
        out = self.lines(m, "for n in ('loop.wild.test', 'mapped.wild.test'): say(name(n))\nsay(get('127.0.0.1'))")
        self.assertEqual(out, ["[Errno -2] Name or service not known"] * 2 + ["ECONNREFUSED"])

    def test_messages_that_are_no_questions(self):
        m = self.mount("good.test")
        out = self.lines(m, """
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(("127.0.0.1", 53)); s.settimeout(20)
for junk in (b"", b"x", os.urandom(11), question("good.test")[:-2], b"\\0\\0\\x81" + os.urandom(60), os.urandom(3000)): s.send(junk)
s.send(question("good.test", 1)[:2] + b"\\x28" + question("good.test")[3:]); n = []
s.send(question("good.test"))
while True:
    n.append(verdict(s.recv(4096)))
    if n[-1] == "0 1": break
say(n[-2:])
t = connect("127.0.0.1", 53); t.sendall(b"\\xff\\xff" + bytes(100)); say(told(t.recv, 1))
t = connect("127.0.0.1", 53); q = question("good.test"); t.sendall(struct.pack(">H", len(q)) + q[:5]); t.sendall(q[5:]); say(len(t.recv(2)))
""")
        self.assertEqual(out[0], "['4 0', '0 1']")
        self.assertIn(out[1], ("b''", "ECONNRESET"))
        self.assertEqual(out[2], "2")

    def test_a_name_that_changes(self):
        """No connection to what stays on the list fails meanwhile, and one that is open goes on."""
        self.a.zone({"move.test": {"A": [self.a.v4], "ttl": 1}})
        m = self.mount("move.test:80", self.a.v4 + ":8080")
        r = m.submit(script("""
say(name("move.test")); held = connect("move.test", 80); held.sendall(b"POST / HTTP/1.0\\r\\n\\r\\nbefore")
say("first", get("move.test"))
wait(); good = 0
while name("move.test") != %r: good += get(%r, 8080) == "allowed 8080" or exit("broken")
say("second", get("move.test"), get(%r, 80), get(%r, 8080))
held.sendall(b" after"); held.shutdown(1); say(whole(held).split(b"\\r\\n\\r\\n")[1].decode())
""" % (self.f.v4, self.a.v4, self.a.v4, self.a.v4), interactive=True, spec_version="1.1", timeout_sec=60))
        r.stream_until(b"first allowed 80")
        self.a.zone({"move.test": {"A": [self.f.v4], "ttl": 1}})
        with open(r.path("stdin"), "wb") as f:
            f.write(b"go\n")
        self.assertEqual(r.wait(60), "0", r.stderr)
        out = r.stdout.decode().splitlines()
        self.assertEqual(out[0], self.a.v4)
        # The old address is in the rules for the open connection alone, and a new one is refused.
        self.assertIn(out[2], ("second forbidden 80 ECONNRESET allowed 8080", "second forbidden 80  allowed 8080"))
        self.assertEqual(out[3], "before after")

    def test_a_name_that_changes_to_loopback_or_goes(self):
        self.a.zone({"move.test": {"A": [self.a.v4], "ttl": 1}, "go.test": {"A": [self.a.v4], "ttl": 1}})
        m = self.mount("move.test", "go.test:8080")
        r = m.submit(script("""
say("first", get("move.test"), get("go.test", 8080)); wait()
while name("move.test") == %r or name("go.test") == %r: pass
say(name("move.test"), name("go.test"), cut_off(%r), get("127.0.0.1"))
""" % (self.a.v4, self.a.v4, self.a.v4), interactive=True, spec_version="1.1", timeout_sec=60))
        r.stream_until(b"first allowed 80 allowed 8080")
        self.a.zone({"move.test": {"A": ["127.0.0.1"], "ttl": 1}})
        with open(r.path("stdin"), "wb") as f:
            f.write(b"go\n")
        self.assertEqual(r.wait(60), "0", r.stderr)
        self.assertEqual(r.stdout.decode().splitlines()[1],
                         "[Errno -2] Name or service not known [Errno -2] Name or service not known "
                         "True ECONNREFUSED")

    # ---- runs that do not begin ----

    def test_names_that_lead_nowhere(self):
        for name, message in (("none.test", "\"none.test\" of the allowlist does not resolve"),
                              ("loop.test", "is a loopback address"), ("meta.test", "is a metadata service"),
                              ("self.test", "is an address of the host"),
                              ("silent.test", "no name server has answered")):
            with self.subTest(name):
                self.fails(self.mount(name, self.a.v4), message)

    def test_a_run_that_waits_for_names_can_be_ended(self):
        m = self.mount("silent.test")
        r = m.submit(script("say('executed')"))
        self.assertTrue(self.a.wait_dns("silent.test", 1))
        r.ctl("cancel")
        self.assertEqual(r.wait(), "killed")
        r = m.run(script("say('executed')", startup_timeout_sec=1))
        self.assertEqual(r.json()["status_reason_code"], "startup_timeout")
        self.assertEqual(r.stdout, b"")

    def test_the_runs_list_is_within_the_operators(self):
        m = self.mount(self.a.v4, self.a.v6, "*.wild.test", "loop.test")
        out = self.lines(m, "say(get(%r)); say(get(%r, 8080)); say(get(%r)); say(name('x.y.wild.test')); say(name('wild.test'))"
                         % (self.a.v4, self.a.v4, self.a.v6), network_allowlist=[self.a.v4 + ":80", "x.y.wild.test:443"])
        self.assertEqual(out, ["allowed 80", "ECONNREFUSED", "ECONNREFUSED", "%s %s" % (self.a.v4, self.a.v6),
                               "[Errno -2] Name or service not known"])
        for target, code in ((self.f.v4, "policy_unsupported"), ("good.test", "policy_unsupported"),
                             ("10.0.0.0/8", "policy_unsupported"), ("10.0.0.1/8", "invalid_spec"), ("a b", "invalid_spec")):
            with self.subTest(target):
                spec = script("", network_allowlist=[self.a.v4, target])
                with self.assertRaises(sbx.Refused) as caught:
                    m.submit(spec)
                self.assertEqual(caught.exception.code, code)
                self.assertIn('"%s"' % target, caught.exception.message)
                self.assertFalse(m.check(spec)["accepted"])

    def test_without_a_switch_or_a_list_there_is_no_allowlist(self):
        for settings in ({"egress_enforcement": "true", "egress_allowlist": "a.test"},
                         {"egress_granular_enforcement": "true", "egress_allowlist": "a.test"}, ON):
            with self.subTest(settings), sbx.Mount(settings={**self.more(), **settings}) as m:
                with self.assertRaises(sbx.Refused) as caught:
                    m.submit(script(""))
                self.assertEqual(caught.exception.details["reasons"], ["strict_allowlist_not_supported"])
                with open(os.path.join(m.mnt, "runtimes/%s.json" % self.RUNTIME)) as f:
                    row = json.load(f)
                self.assertEqual(row["enforcement_ready"], {"deny_all": True, "allowlist": False})
                self.assertFalse(row["strict_allowlist_supported"] or row["egress_allowlist_supported"])

    # ---- ends ----

    def test_a_dead_runner_takes_its_helpers_along(self):
        links = nethosts.links()
        m, r, pids, fds = self.begin_to_hold()
        os.kill(pids[0], signal.SIGKILL)
        self.assertTrue(all(is_over(fd) for fd in fds))
        self.assertEqual(r.wait(60), "failed")
        self.assertEqual(r.json()["status_reason_code"], "runner_lost")
        self.assertEqual(nethosts.links(), links)
        self.assertEqual(self.lines(m, "say(get(%r))" % self.a.v4), ["allowed 80"])

    def test_without_its_relay_a_sandbox_has_no_network(self):
        for victim in (1, 2):
            with self.subTest("gate" if victim == 1 else "relay"):
                self.a.forget()
                m, r, pids, fds = self.begin_to_hold()
                os.kill(pids[victim], signal.SIGKILL)
                self.assertEqual(r.wait(60), "0", r.stderr)
                self.assertEqual(r.stdout.decode().splitlines()[1], "True")
                self.assertNotIn("allowed", r.stdout.decode().splitlines()[2])
                usage = r.json()["resource_usage"]
                self.assertEqual(usage["egress_lost"], 1)
                self.assertEqual(self.audited(m, r), ("limited", counters(usage)))
                self.assertTrue(is_over(fds[1]) and is_over(fds[2]))
                self.assertEqual(len(self.a.seen()["tcp"]), 1)

    def test_cancel_while_it_talks(self):
        m, r, _, fds = self.begin_to_hold()
        r.ctl("kill")
        self.assertEqual(r.wait(60), "killed")
        self.assertTrue(is_over(fds[1]) and is_over(fds[2]))
        self.assertEqual(self.lines(m, "say(get(%r))" % self.a.v4), ["allowed 80"])

    def test_a_run_without_network_after_one_with(self):
        """The network namespace is not handed on."""
        m = self.mount(self.a.v4, warm_runners=1)
        for _ in range(3):
            self.lines(m, "")  # no packet tells that it was one with a network
            r = m.run({"command": ["python3", "-c", CLIENT + "say(get(%r)); say(open('/proc/net/fib_trie').read().count('198.18.'))"
                                   % self.a.v4]})
            self.assertEqual(r.stdout.decode().splitlines(), ["ENETUNREACH", "0"])


if __name__ == "__main__":
    sbx.main()
