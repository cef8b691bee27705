# SPDX-License-Identifier: Apache-2.0
# run: limit=400
"""Network policy allowlist in containers of a real engine: all that holds for the runtime namespace, and besides what
an engine, its rules and its images could have to do with it."""
import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import test_network as network  # noqa: E402
import test_network_icmp as icmp  # noqa: E402
from test_network import nethosts, sbx  # noqa: E402
import dockerkit  # noqa: E402
from dockerkit import BARE, PYTHON  # noqa: E402

E = None


def setUpModule():
    global E
    E = dockerkit.start(PYTHON, BARE, why_not=network.NOT_HERE)


def settings(of):
    return dockerkit.settings(of, default_runtime="docker", docker_default_image=PYTHON)


def of_the_host():
    """What a network could leave behind on it, but for what tests beside this one make; rules where there is a program
    that shows them."""
    words = [["ip", "-o", "link"], ["ip", "rule"], ["ip", "route"], ["nft", "-s", "list", "ruleset"]]
    shown = [subprocess.run(w, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
             for w in words if shutil.which(w[0])]
    return [[line for line in text.splitlines() if nethosts.DEVICES not in line] for text in shown]


class Containers(network.Machines):
    RUNTIME = "docker"

    def more(self):
        return settings(E)

    def setUp(self):
        super().setUp()
        self.networks = E.networks()
        self.addCleanup(self.nothing_left)  # after the mounts are gone

    def nothing_left(self):
        E.wait_no_container()
        self.assertEqual(E.networks(), self.networks)


class Network(Containers, network.Network):
    pass


class Icmp(Containers, icmp.Icmp):
    NO_SOCKET = "EPERM"  # the engine allows these sockets to everybody, and the rules nobody


class Container(Containers):
    """What is not in the other tables."""

    def test_nothing_of_it_is_on_the_host(self):
        before = of_the_host()
        m, r, pids, _ = self.begin_to_hold()
        self.assertEqual(of_the_host(), before)
        (own,) = [c for c in E.containers() if c["Labels"].get("sandboxfs.run") == r.id]
        self.assertEqual(list(own["NetworkSettings"]["Networks"]), ["none"])
        os.kill(pids[0], 9)
        self.assertEqual(r.wait(60), "failed")
        self.assertEqual(of_the_host(), before)
        self.assertEqual(m.run({"command": ["true"]}).exit, "0")

    def test_files_about_the_network(self):
        """The name server is the relay, also where the image has no such file; the others are as without a network."""
        m = self.mount("good.test")
        seen = [m.run({"command": ["python3", "-c", "print([open('/etc/' + n).read() for n in ('resolv.conf', 'hosts')])"],
                       "network_policy": policy}) for policy in ("allowlist", "deny_all")]
        self.assertEqual([r.exit for r in seen], ["0", "0"])
        names = ast.literal_eval(seen[0].stdout.decode())[0].splitlines()
        # A newer engine explains itself in comments.
        self.assertEqual([line for line in names if line and not line.startswith("#")], ["nameserver 127.0.0.1"])
        self.assertNotIn("good.test", seen[0].stdout.decode())
        self.assertEqual(seen[0].stdout, seen[1].stdout)
        r = m.run({"command": ["/echo", "cat", "/etc/resolv.conf"], "base_image": BARE, "network_policy": "allowlist"})
        self.assertEqual((r.exit, r.stdout), ("0", b"cat /etc/resolv.conf\n"))

    def test_made_ahead(self):
        """A container that waited has a network as new as any, and is used once."""
        m = self.mount(self.a.v4, docker_warm="true", warm_runners=1)
        text = "say(get(%r)); print(open('/proc/self/mountinfo').read(), 'end', flush=True); wait()" % self.a.v4
        seen = set()
        for policy in ("allowlist", "deny_all", "allowlist"):
            r = m.submit(network.script(text, interactive=True, spec_version="1.1", network_policy=policy))
            answer, _, mounts = r.stream_until(b" end").decode().partition("\n")
            self.assertEqual(answer, "allowed 80" if policy == "allowlist" else "ENETUNREACH")
            (own,) = [c for c in E.containers() for d in c["Mounts"]
                      if d["Destination"] == "/.sandbox/door" and d["Source"] in mounts]
            self.assertNotIn("sandboxfs.run", own["Labels"])  # it was made before the run
            seen.add(own["Id"])
            r.ctl("cancel")
            r.wait()
        self.assertEqual(len(seen), 3)

    def test_a_network_that_cannot_be_entered_is_refused(self):
        m = self.runner_without("sys_ptrace", also_to_try=True)
        with open(os.path.join(m.mnt, "runtimes/docker.json")) as f:
            row = json.load(f)
        self.assertEqual((row["available"], row["enforcement_ready"]), (True, {"deny_all": True, "allowlist": False}))
        with self.assertRaises(sbx.Refused) as caught:
            m.submit(network.script("say('executed')"))
        self.assertEqual((caught.exception.code, caught.exception.details["reasons"]),
                         ("policy_unsupported", ["strict_allowlist_not_supported"]))
        self.assertEqual(m.run({"command": ["true"]}).exit, "0")

    def test_a_network_that_cannot_be_entered_any_more(self):
        self.fails(self.runner_without("sys_ptrace", also_to_try=False), "cannot open the container's network namespace")


class Rules(unittest.TestCase):
    """An engine that has rules of its own, in a network namespace that is this test's host: no rule of that host has
    a part in what a sandbox reaches, whatever it says."""

    @classmethod
    def setUpClass(cls):
        if not shutil.which("iptables") or not shutil.which("ip6tables"):
            raise unittest.SkipTest("iptables is not installed")
        nethosts.own_host(cls.addClassCleanup)
        cls.engine = dockerkit.start(PYTHON, closing=cls.addClassCleanup, network=True)
        cls.a = nethosts.Host("allowed")
        cls.addClassCleanup(cls.a.close)
        cls.f = nethosts.Host("forbidden", sniffs=True)
        cls.addClassCleanup(cls.f.close)

    def test_whatever_they_let_through(self):
        shown = subprocess.run(["iptables", "-S"], stdout=subprocess.PIPE, text=True, check=True).stdout
        self.assertIn("-A DOCKER-USER -j RETURN", shown)
        text = network.CLIENT + "for a in %r: say(get(a)); say(udp(a))" % ((self.a.v4, self.a.v6, self.f.v4, self.f.v6),)
        wanted = ["allowed 80", "allowed one allowed two"] * 2 + ["ECONNREFUSED", "EPERM"] * 2
        with sbx.Mount(settings=dict(network.ON, egress_allowlist="%s,%s" % (self.a.v4, self.a.v6),
                                     **settings(self.engine))) as m:
            for rules in ((), (["iptables", "-I", "DOCKER-USER", "-j", "ACCEPT"], ["iptables", "-I", "FORWARD", "-j", "ACCEPT"],
                               ["ip6tables", "-I", "FORWARD", "-j", "ACCEPT"]), (["iptables", "-F", "FORWARD"],)):
                with self.subTest(rules):
                    for words in rules:
                        subprocess.run(words, check=True)
                    before = of_the_host()
                    r = m.run({"command": ["python3", "-c", text], "network_policy": "allowlist"}, timeout=60)
                    self.assertEqual((r.exit, r.stdout.decode().splitlines()), ("0", wanted), r.json()["message"])
                    self.assertEqual(self.f.seen(), {"tcp": [], "udp": [], "dns": [], "packets": []})
                    self.assertEqual(of_the_host(), before)


if __name__ == "__main__":
    sbx.main()
