# SPDX-License-Identifier: Apache-2.0
"""What is refused, and why: no other runtime in place of the one that was asked for, no weaker rule."""
import conf

READY = {"available": True, "reasons": [], "deny_all_ready": True, "allowlist_ready": False}
ALL_READY = {**READY, "allowlist_ready": True}
ECHO = ["echo", "ok"]
FIRECRACKER = {"runtime": "firecracker", "command": ["sh", "-c", "echo"], "timeout_sec": 5}


class Refused(conf.Case):
    def unavailable(self, spec, runtime, **details):
        return self.refused(self.a.try_run(spec), 503, "runtime_unavailable", runtime=runtime, available=False,
                            **details)

    def unsupported(self, spec, runtime, requirement, reasons=None):
        details = self.refused(self.a.try_run(spec), 422, "policy_unsupported", runtime=runtime,
                               requirement=requirement)
        if reasons is not None:
            self.assertEqual(details["reasons"], reasons)
        return details["reasons"]

    def accepted(self, spec):
        a = self.a.try_run(spec)
        self.assertEqual(a.status, 200, a)
        return a.json


class NothingThere(Refused):
    settings = conf.QUEUED
    path = conf.NO_PROGRAMS

    def test_T251_no_docker_to_suggest(self):
        self.unavailable(FIRECRACKER, "firecracker", suggested=[])

    def test_T252_nothing_in_place_of_vz_linux(self):
        self.unavailable({"runtime": "vz_linux", "base_image": "ubuntu-24.04", "command": ECHO}, "vz_linux",
                         suggested=[])

    def test_T254_nothing_in_place_of_seatbelt(self):
        self.unavailable({"runtime": "seatbelt", "base_image": "host-local", "command": ECHO}, "seatbelt",
                         suggested=[])

    def test_T275_untrusted_needs_more_than_the_host(self):
        reasons = self.unsupported({"runtime": "worktree", "base_image": "host-local", "command": ECHO,
                                    "trust_level": "untrusted"}, "worktree", "untrusted_requires_vm_runtime")
        self.assertIn("trust_level_requires_vm_runtime", reasons)

    def test_T268_the_defaults(self):
        doc = self.accepted({"command": ECHO})
        self.assertEqual((doc["runtime"], doc["network_policy"]), ("namespace", "deny_all"))

    def test_T266_a_policy_is_trimmed_and_lowered(self):
        doc = self.accepted({"command": ECHO, "timeout_sec": 5, "network_policy": " DeNy_AlL "})
        self.assertEqual(doc["network_policy"], "deny_all")


class Claimed(Refused):
    """Runtimes that say they can be used, and how far."""
    settings = conf.QUEUED
    preflight = {"docker": READY, "lima": READY, "vz_linux": {**READY, "trust_levels": ["trusted", "standard"]},
                 "firecracker": {"available": False, "reasons": ["firecracker_unavailable"]},
                 "seatbelt": {"available": True, "reasons": [], "trust_levels": ["trusted"]},
                 "worktree": {"available": True, "reasons": [], "allowlist_ready": True}}

    def test_T249_docker_is_suggested_for_firecracker(self):
        self.assertIn("docker", self.unavailable(FIRECRACKER, "firecracker")["suggested"])

    def test_docker_is_not_suggested_for_others(self):
        self.unavailable({"runtime": "vz_macos", "command": ECHO}, "vz_macos", suggested=[])

    def test_T258_lima_has_no_allowlist(self):
        reasons = self.unsupported({"runtime": "lima", "base_image": "ubuntu:24.04", "command": ECHO,
                                    "network_policy": "allowlist"}, "lima", "allowlist")
        self.assertIn("strict_allowlist_not_supported", reasons)

    def test_T260_lima_knows_no_other_policy(self):
        reasons = self.unsupported({"runtime": "lima", "base_image": "ubuntu:24.04", "command": ECHO,
                                    "network_policy": "allow_all"}, "lima", "allow_all")
        self.assertIn("unsupported_network_policy", reasons)

    def test_T262_worktree_cannot_deny(self):
        self.unsupported({"runtime": "worktree", "base_image": "host-local", "command": ECHO}, "worktree", "deny_all",
                         ["strict_deny_all_not_supported"])

    def test_T264_host_local_runtimes_have_no_allowlist(self):
        for runtime, trust in (("seatbelt", "trusted"), ("worktree", "standard")):
            # Seatbelt admits no standard runs at all, which is told first.
            self.unsupported({"runtime": runtime, "base_image": "host-local", "command": ECHO, "trust_level": trust,
                              "network_policy": "allowlist"}, runtime, "allowlist",
                             ["strict_allowlist_not_supported"])

    def test_T265_docker_knows_no_other_policy(self):
        for runtime in ("docker", "namespace"):
            self.unsupported({"runtime": runtime, "command": ECHO, "timeout_sec": 5, "network_policy": "allow_all"},
                             runtime, "allow_all", ["unsupported_network_policy"])

    def test_T269_docker_without_enforcement_has_no_allowlist(self):
        self.unsupported({"runtime": "docker", "command": ECHO, "timeout_sec": 5, "network_policy": "allowlist"},
                         "docker", "allowlist", ["strict_allowlist_not_supported"])

    def test_T271_vz_linux_denies_and_has_no_allowlist(self):
        spec = {"runtime": "vz_linux", "base_image": "host", "command": ECHO}
        doc = self.accepted({**spec, "network_policy": "deny_all"})
        self.assertEqual((doc["runtime"], doc["network_policy"]), ("vz_linux", "deny_all"))
        self.unsupported({**spec, "network_policy": "allowlist"}, "vz_linux", "allowlist",
                         ["strict_allowlist_not_supported"])

    def test_T277_a_trust_level_that_the_host_does_not_serve(self):
        reasons = self.unsupported({"runtime": "vz_linux", "base_image": "ubuntu-24.04", "command": ECHO,
                                    "trust_level": "untrusted"}, "vz_linux", "trust_level:untrusted")
        self.assertIn("trust_level_not_supported", reasons)

    def test_T278_seatbelt_for_standard_is_off(self):
        reasons = self.unsupported({"runtime": "seatbelt", "base_image": "host-local", "command": ECHO,
                                    "trust_level": "standard"}, "seatbelt", "standard_not_enabled")
        self.assertIn("seatbelt_standard_disabled", reasons)


class Others(Refused):
    """What the preflight finds decides."""
    settings = {**conf.QUEUED, "default_runtime": "lima"}
    env = {"TLDW_SANDBOX_DOCKER_AVAILABLE": "1"}
    preflight = {"docker": {"available": False, "reasons": ["docker_unavailable"]},
                 "firecracker": ALL_READY, "lima": {"available": False,
                                                    "reasons": ["permission_denied_host_enforcement"]}}

    def test_T255_the_preflight_outranks_a_flag(self):
        self.unavailable({"runtime": "docker", "command": ECHO}, "docker", reasons=["docker_unavailable"])

    def test_T261_lima_without_permission(self):
        details = self.unavailable({"runtime": "lima", "base_image": "ubuntu:24.04", "command": ECHO,
                                    "network_policy": "deny_all"}, "lima", suggested=[])
        self.assertIn("permission_denied_host_enforcement", details["reasons"])

    def test_T272_a_scaffold_mode_is_never_admitted(self):
        self.unsupported({"runtime": "firecracker", "command": ECHO, "network_policy": "allowlist"}, "firecracker",
                         "allowlist", ["strict_allowlist_not_supported"])

    def test_T274_the_default_runtime_is_what_counts(self):
        self.unavailable({"base_image": "ubuntu:24.04", "command": ECHO}, "lima")


# The other classes only lend their methods.
del Refused


if __name__ == "__main__":
    conf.main()
