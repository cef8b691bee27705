# SPDX-License-Identifier: Apache-2.0
"""Egress by allowlist. The rows are about docker networks and rules of the host; what they promise is tested on the
default runtime, which needs neither."""
import json
import os
import platform
import sys
import unittest

import conf

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import nethosts  # noqa: E402

NOT_HERE = nethosts.reason_not_here()
ON = {"egress_enforcement": "true", "egress_granular_enforcement": "true", "background_execution": "false"}
READY = {"namespace": {"allowlist_ready": True}}
# Puts a filter in front of the program: no socket to the packet filter can be made any more.
NO_RULES = r"""
import ctypes, os, struct, sys
nr = {"x86_64": 41}.get(os.uname().machine, 198)
ops = [(0x20, 0, 0, 0), (0x15, 0, 5, nr), (0x20, 0, 0, 16), (0x15, 0, 3, 16), (0x20, 0, 0, 32), (0x15, 0, 1, 12),
       (0x06, 0, 0, 0x50000 | 1), (0x06, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *op) for op in ops))
prog = struct.pack("@HP", len(ops), ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, prog, 0, 0) == 0, ctypes.get_errno()
os.execv(sys.argv[1], sys.argv[1:])
"""


def allowed(command, **more):
    return dict({"command": command, "network_policy": "allowlist", "timeout_sec": 30}, **more)


class Switches(conf.Case):
    settings = dict(ON, egress_granular_enforcement="false", egress_allowlist="192.0.2.1")

    def test_T279_one_switch_alone_is_no_network(self):
        """There it is a run without a network; here a policy that is not carried out is refused."""
        details = self.refused(self.a.try_run(allowed(["echo", "ok"])), 422, "policy_unsupported")
        self.assertEqual(details["reasons"], ["strict_allowlist_not_supported"])


class Networks(conf.Case):
    settings = dict(ON, egress_allowlist="192.0.2.1")

    def test_T280_a_network_of_its_own(self):
        seen = set()
        for policy in ("allowlist", "allowlist", "deny_all"):
            run = self.a.run({"command": ["readlink", "/proc/self/ns/net"], "network_policy": policy})
            self.ended(run)
            seen.add(run.log())
        self.assertEqual(len(seen), 3)
        self.assertNotIn(os.readlink("/proc/self/ns/net").encode() + b"\n", seen)


class Faults(conf.Alone):
    def test_T281_rules_that_cannot_be_set(self):
        if platform.machine() not in ("x86_64", "aarch64"):
            self.skipTest("the filter of this test knows two architectures")
        a = self.server(dict(ON, egress_allowlist="192.0.2.1"), preflight=READY)
        plain = a.argv
        a.argv = lambda: [sys.executable, "-c", NO_RULES] + plain()
        with a:
            run = a.run(allowed(["echo", "executed"]))
            doc = self.ended(run)
            self.assertIn("the packet filter cannot be used", doc["message"])
            self.assertFalse(os.path.exists(run.files("log")))

    def ended(self, run):
        doc = run.wait(30)
        self.assertEqual((doc["phase"], doc["status_reason_code"]), ("failed", "policy_failed"), doc)
        return doc


@unittest.skipIf(NOT_HERE, NOT_HERE)
class Hosts(conf.Alone):
    GET = ("import sys, urllib.request as u; "
           "u.build_opener(u.ProxyHandler({})).open('http://' + sys.argv[1], timeout=20).read()")

    def test_T283_the_listed_and_another(self):
        with nethosts.Host("listed") as listed, nethosts.Host("other", sniffs=True) as other:
            with self.server(dict(ON, egress_allowlist=listed.v4 + "/32")) as a:
                good, bad = [a.run(allowed(["python3", "-c", self.GET, h.v4])).wait(30) for h in (listed, other)]
            self.assertEqual((good["phase"], good["exit_code"]), ("completed", 0))
            self.assertEqual((bad["phase"], bad["exit_code"]), ("failed", 1))
            self.assertEqual(other.seen()["packets"], [])

    def test_T284_a_list_expanded(self):
        """With addresses of the test's own network; the row's very own are in tests/unit/test_pins.c."""
        with nethosts.Host("names") as h:
            net = h.v4.rpartition(".")[0]
            one, two, three, four, five = ["%s.%d" % (net, n) for n in (11, 12, 13, 14, 15)]
            h.zone({"example.test": {"A": [one, two]}, "www.example.test": {"A": [three]},
                    "api.example.test": {"A": [four]}, "other.test": {"A": [five]}})
            settings = dict(ON, egress_dns=h.v4,
                            egress_allowlist="10.0.0.0/8,192.0.2.8,example.test,*.example.test,other.test")
            with self.server(settings) as a:
                run = a.run(allowed(["true"]))
                self.assertEqual(run.wait(30)["phase"], "completed")
                row, = a.sql("SELECT result, details FROM audit WHERE action='network' AND resource=?", run.id)
            details = json.loads(row[1])
            self.assertEqual((row[0], details["connections"]), ("allowed", 0))
            self.assertEqual(details["allowed"]["pins"]["example.test"], [one, two, three, four])
            self.assertEqual(details["allowed"]["targets"], sorted(["10.0.0.0/8", "192.0.2.8/32"] + [x + "/32" for x in (one, two, three, four, five)]))


if __name__ == "__main__":
    conf.main()
