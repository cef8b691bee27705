# SPDX-License-Identifier: Apache-2.0
"""From raw reasons to codes that programs can rely on."""
import conf


def away(*reasons):
    return {"available": False, "reasons": list(reasons)}


class Reasons(conf.Alone):
    def shown(self, **claims):
        """The entries of GET /runtimes when the runtimes give these reasons."""
        with self.server(preflight={k: away(*v) for k, v in claims.items()}) as a:
            found = {r["name"]: r for r in a.get("/runtimes").json["runtimes"]}
            for r in found.values():
                self.assertEqual([d["code"] for d in r["normalized_reason_details"]], r["normalized_reasons"])
            return found

    def test_T043_docker_is_not_there(self):
        with self.server(path=conf.NO_PROGRAMS) as a:
            r = a.runtime("docker")
            self.assertIs(r["available"], False)
            self.assertEqual(r["reasons"], ["docker_unavailable"])
            self.assertEqual(r["normalized_reasons"], ["runtime_unavailable"])

    def test_T044_firecracker_keeps_the_order(self):
        r = self.shown(firecracker=["firecracker_unavailable", "/dev/kvm_missing"])["firecracker"]
        self.assertEqual(r["reasons"], ["firecracker_unavailable", "/dev/kvm_missing"])
        self.assertEqual(r["normalized_reasons"], ["runtime_unavailable", "host_prerequisite_missing"])

    def test_T046_vz_linux_has_the_details(self):
        raw = ["macos_virtualization_helper_unavailable", "vz_linux_template_missing"]
        r = self.shown(vz_linux=raw)["vz_linux"]
        self.assertEqual(r["reasons"], raw)
        self.assertEqual(r["normalized_reasons"], ["helper_unavailable", "template_missing"])
        self.assertEqual(r["normalized_reason_details"], [
            {"code": "helper_unavailable", "category": "helper", "severity": "error", "availability_blocking": True,
             "operator_action": "check_helper", "user_message_key": "sandbox.runtime.reason.helper_unavailable"},
            {"code": "template_missing", "category": "template", "severity": "error", "availability_blocking": True,
             "operator_action": "configure_template", "user_message_key": "sandbox.runtime.reason.template_missing"}])

    def test_T047_seatbelt_on_linux(self):
        r = self.shown(seatbelt=["macos_required", "sandbox_exec_missing"])["seatbelt"]
        self.assertEqual(r["normalized_reasons"], ["unsupported_os", "host_prerequisite_missing"])
        with self.server(path=conf.NO_PROGRAMS) as a:  # and as this host really says it
            r = a.runtime("seatbelt")
            self.assertLessEqual({"macos_required", "sandbox_exec_missing"}, set(r["reasons"]))
            self.assertLessEqual({"unsupported_os", "host_prerequisite_missing"}, set(r["normalized_reasons"]))

    def test_T048_worktree_on_another_platform(self):
        r = self.shown(worktree=["unsupported_platform"])["worktree"]
        self.assertEqual(r["normalized_reasons"], ["unsupported_os"])

    def test_T049_every_raw_reason_has_its_code(self):
        pairs = [("docker_unavailable", "runtime_unavailable"), ("macos_required", "unsupported_os"),
                 ("apple_silicon_required", "unsupported_arch"),
                 ("macos_virtualization_helper_unavailable", "helper_unavailable"),
                 ("macos_virtualization_helper_protocol_mismatch", "helper_protocol_mismatch"),
                 ("macos_helper_missing", "helper_missing"), ("vz_linux_template_missing", "template_missing"),
                 ("template_unconfigured", "template_unconfigured"),
                 ("strict_allowlist_not_supported", "network_policy_unsupported"),
                 ("seatbelt_standard_disabled", "trust_policy_denied"), ("limactl_missing", "host_prerequisite_missing"),
                 ("permission_denied_host_enforcement", "host_permission_denied"),
                 ("real_execution_not_implemented", "feature_not_implemented"),
                 # A reason with a text behind it never gets this far (the unit tests of the normaliser have
                 # it): the server believes only reasons that it knows.
                 ("image_store_root_missing", "image_store_unavailable"), ("unexpected_future_reason", "unknown")]
        # A record holds eight reasons at most.
        parts = {"lima": pairs[:8], "qemu": pairs[8:]}
        found = self.shown(**{name: [raw for raw, _ in part] for name, part in parts.items()})
        for name, part in parts.items():
            self.assertEqual(found[name]["normalized_reasons"], [code for _, code in part])

    def test_T050_duplicates_collapse(self):
        raw = ["macos_virtualization_helper_" + x for x in ("protocol_mismatch", "empty_response", "invalid_json")]
        r = self.shown(vz_linux=raw)["vz_linux"]
        self.assertEqual(r["reasons"], raw)
        self.assertEqual(r["normalized_reasons"], ["helper_protocol_mismatch"])

    def test_T052_no_usual_reason_is_unknown(self):
        usual = {"namespace": "namespace_unavailable", "docker": "docker_unavailable",
                 "firecracker": "firecracker_unavailable", "lima": "limactl_missing", "qemu": "qemu_missing",
                 "vz_linux": "vz_linux_unavailable", "vz_macos": "vz_macos_unavailable",
                 "seatbelt": "seatbelt_unavailable", "worktree": "worktree_unavailable"}
        found = self.shown(**{name: [reason] for name, reason in usual.items()})
        self.assertEqual(set(found), set(usual))
        for r in found.values():
            self.assertIs(r["available"], False)
            self.assertEqual(len(r["normalized_reason_details"]), 1)
            self.assertNotIn("unknown", r["normalized_reasons"])
        with self.server(path=conf.NO_PROGRAMS) as a:  # as this host really says it
            for r in a.get("/runtimes").json["runtimes"]:
                self.assertEqual(r["available"], not r["reasons"])
                self.assertNotIn("unknown", r["normalized_reasons"], r)


if __name__ == "__main__":
    conf.main()
