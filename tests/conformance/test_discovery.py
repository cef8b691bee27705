# SPDX-License-Identifier: Apache-2.0
"""GET /runtimes: what each runtime is, whatever this host has of it."""
import conf

# The design adds two to the seven of the rows.
SEVEN = ["docker", "firecracker", "lima", "vz_linux", "vz_macos", "seatbelt", "worktree"]
NINE = ["namespace", "docker", "firecracker", "lima", "qemu", "vz_linux", "vz_macos", "seatbelt", "worktree"]
HOST_LOCAL = ("seatbelt", "worktree")
MEMBERS = ("name available default_images max_cpu max_mem_mb max_upload_mb max_log_bytes max_artifact_file_bytes "
           "max_artifact_total_bytes workspace_cap_mb artifact_ttl_hours supported_spec_versions "
           "isolation_warnings").split()


def runtimes(a):
    answer = a.get("/runtimes")
    assert answer.status == 200, answer
    return {r["name"]: r for r in answer.json["runtimes"]}


class AnyHost(conf.Case):
    # Helpers of another platform that somebody configured must not show; nothing here knows these.
    env = {"TLDW_SANDBOX_MACOS_HELPER_PATH": "/opt/macos-helper", "TLDW_SANDBOX_VZ_LINUX_TEMPLATE_SOURCE": "/opt/vz.img"}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.r = runtimes(cls.a)

    def test_T013_every_entry_has_its_members(self):
        answer = self.a.get("/runtimes")
        self.assertEqual(answer.status, 200)
        self.assertGreater(len(answer.json["runtimes"]), 0)
        for entry in answer.json["runtimes"]:
            self.assertLessEqual(set(MEMBERS), set(entry), entry["name"])
            self.assertIsInstance(entry["isolation_warnings"], list)

    def test_T014_every_entry_has_the_flags_and_the_store(self):
        # Design: there is one store, SQLite; the row's `memory` is none of its modes.
        for entry in self.r.values():
            self.assertIsInstance(entry["interactive_supported"], bool)
            self.assertIsInstance(entry["egress_allowlist_supported"], bool)
            self.assertEqual(entry["store_mode"], "sqlite")

    def test_T015_unavailable_runtimes_are_listed_too(self):
        names = [r["name"] for r in self.a.get("/runtimes").json["runtimes"]]
        self.assertEqual(names, NINE)
        self.assertEqual([n for n in names if n in SEVEN], SEVEN)

    def test_T016_implementation_states(self):
        self.assertEqual({n: r["implementation_state"] for n, r in self.r.items()}, {
            "docker": "supported", "firecracker": "host_gated", "lima": "host_gated", "vz_linux": "host_gated",
            "vz_macos": "scaffold", "seatbelt": "host_gated", "worktree": "supported",
            "namespace": "supported", "qemu": "host_gated"})

    def posture(self, name, *expected):
        r = self.r[name]
        self.assertEqual((r["boundary_class"], r["vm_grade_isolation"], r["untrusted_eligible"]), expected)

    def test_T017_docker_is_a_container(self):
        self.posture("docker", "container", False, True)
        self.posture("namespace", "container", False, True)

    def test_T019_vz_macos_is_a_scaffold(self):
        self.posture("vz_macos", "vm_grade_scaffold", False, False)

    def test_T020_host_local_runtimes_warn(self):
        for name in HOST_LOCAL:
            self.posture(name, "host_local", False, False)
            self.assertEqual(self.r[name]["isolation_warnings"],
                             ["host_local_boundary", "not_vm_grade_isolation", "not_untrusted_eligible"])

    def test_T022_network_contracts_have_their_members(self):
        for r in self.r.values():
            self.assertEqual(set(r["network_policy_contract"]), {"deny_all", "allowlist"})
            for mode in r["network_policy_contract"].values():
                self.assertEqual(set(mode), {"support_state", "strict_enforcement", "readiness_source"})

    NOT_AT_ALL = {"support_state": "unsupported", "strict_enforcement": False, "readiness_source": "not_applicable"}

    def test_T023_host_local_runtimes_have_no_network_policy(self):
        for name in HOST_LOCAL:
            self.assertEqual(self.r[name]["network_policy_contract"],
                             {"deny_all": self.NOT_AT_ALL, "allowlist": self.NOT_AT_ALL})

    def test_T024_network_of_vz_linux(self):
        self.assertEqual(self.r["vz_linux"]["network_policy_contract"], {
            "deny_all": {"support_state": "host_gated", "strict_enforcement": True,
                         "readiness_source": "runtime_preflight"},
            "allowlist": self.NOT_AT_ALL})

    def test_T025_session_contracts_have_their_members(self):
        for r in self.r.values():
            self.assertEqual(set(r["session_contract"]), {"support_state", "reuse_model", "requires_live_health_check",
                                                          "recovery_state", "repair_state"})

    def session(self, name, *expected):
        c = self.r[name]["session_contract"]
        self.assertEqual((c["support_state"], c["reuse_model"], c["requires_live_health_check"], c["recovery_state"],
                          c["repair_state"]), expected)

    def test_T026_sessions_of_docker(self):
        self.session("docker", "supported", "workspace_only", False, "unsupported", "unsupported")
        self.session("namespace", "supported", "workspace_only", False, "unsupported", "unsupported")

    def test_T027_sessions_of_vz_linux(self):
        self.session("vz_linux", "host_gated", "warm_vm", True, "host_gated", "host_gated")

    def test_T029_sessions_of_host_local_runtimes(self):
        for name in HOST_LOCAL:
            self.session(name, "scaffold", "workspace_only", False, "unsupported", "unsupported")

    def test_T036_trust_levels_and_host_facts(self):
        # The row forces these available; their trust levels do not depend on that.
        self.assertIn("standard", self.r["vz_linux"]["supported_trust_levels"])
        self.assertEqual(self.r["seatbelt"]["supported_trust_levels"], ["trusted"])
        self.assertIsInstance(self.r["vz_macos"]["host"], dict)

    def test_T038_details_for_operators_are_not_public(self):
        r = self.r["vz_linux"]
        self.assertEqual({"helper", "templates", "remediation", "reconciliation"} & set(r), set())
        self.assertIsInstance(r["supported_trust_levels"], list)
        self.assertIsInstance(r["host"], dict)
        self.assertNotIn(b"/opt/", self.a.get("/runtimes").body)


class Claimed(conf.Case):
    """What is shown of runtimes that say they can be used."""
    READY = {"available": True, "reasons": [], "deny_all_ready": True, "allowlist_ready": False}
    preflight = {"docker": READY, "firecracker": READY, "lima": READY,
                 "worktree": {"available": True, "reasons": []}}
    settings = {"egress_enforcement": "true"}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.r = runtimes(cls.a)

    def no_allowlist(self, name):
        r = self.r[name]
        self.assertIs(r["available"], True)
        self.assertEqual(r["enforcement_ready"], {"deny_all": True, "allowlist": False})
        self.assertEqual((r["strict_allowlist_supported"], r["egress_allowlist_supported"]), (False, False))
        return r

    def test_T031_docker_without_granular_enforcement(self):
        r = self.no_allowlist("docker")
        # Design: nothing ever falls back to a weaker or another rule, so the notes do not say so.
        self.assertIsInstance(r["notes"], str)
        self.assertNotIn("fall back", r["notes"])

    def test_T033_firecracker_has_no_allowlist(self):
        # What the notes say is free text.
        self.assertIsInstance(self.no_allowlist("firecracker")["notes"], str)

    def test_T035_lima_denies_all(self):
        r = self.no_allowlist("lima")
        self.assertIs(r["strict_deny_all_supported"], True)
        self.assertIn("os", r["host"])

    def test_T039_worktree(self):
        r = self.r["worktree"]
        self.assertEqual(r["supported_trust_levels"], ["trusted", "standard"])
        for flag in ("strict_deny_all_supported", "strict_allowlist_supported", "egress_allowlist_supported",
                     "interactive_supported"):
            self.assertIs(r[flag], False, flag)
        self.assertIn("not VM-grade", r["notes"])


class Settings(conf.Alone):
    def test_T032_docker_with_granular_enforcement(self):
        ready = {"available": True, "reasons": [], "deny_all_ready": True, "allowlist_ready": True}
        with self.server({"egress_enforcement": "true", "egress_granular_enforcement": "true"},
                         preflight={"docker": ready}) as a:
            r = a.runtime("docker")
            self.assertIn("Granular egress allowlist", r["notes"])
            self.assertIs(r["egress_allowlist_supported"], True)
            self.assertIs(r["strict_allowlist_supported"], True)

    def test_T034_firecracker_is_not_there(self):
        with self.server(path=conf.NO_PROGRAMS) as a:
            self.assertIs(a.runtime("firecracker")["available"], False)

    def test_T042_artifact_limits_are_shown(self):
        with self.server(env={"SANDBOX_MAX_ARTIFACT_FILE_BYTES": "6710886",
                              "SANDBOX_MAX_ARTIFACT_TOTAL_BYTES": "26843545"}) as a:
            for entry in a.get("/runtimes").json["runtimes"]:
                self.assertEqual((entry["max_artifact_file_bytes"], entry["max_artifact_total_bytes"]),
                                 (6710886, 26843545))


if __name__ == "__main__":
    conf.main()
