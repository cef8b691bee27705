# SPDX-License-Identifier: Apache-2.0
"""Why a runtime does not work, for operators."""
import conf

READY = {"available": True, "reasons": [], "deny_all_ready": True}


class Diagnostics(conf.Case):
    # The single user with the key is an administrator.
    preflight = {"docker": READY, "firecracker": {"available": False, "reasons": ["firecracker_unavailable"]},
                 "vz_linux": {"available": False, "reasons": ["macos_virtualization_helper_unavailable"]},
                 "vz_macos": READY,
                 "worktree": {"available": False, "reasons": ["unshare_required_on_linux"]}}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        a = cls.a.get("/admin/runtime-diagnostics")
        assert a.status == 200, a
        cls.doc = a.json
        cls.rows = {r["name"]: r for r in cls.doc["runtimes"]}

    def members(self, name, **expected):
        self.assertEqual({k: self.rows[name].get(k) for k in expected}, expected)

    def test_T329_a_row_for_each_runtime(self):
        self.assertEqual(self.doc["source"], "feature_discovery")
        self.assertEqual([r["name"] for r in self.doc["runtimes"]],
                         [r["name"] for r in self.a.get("/runtimes").json["runtimes"]])
        for row in self.rows.values():
            self.assertIn("session_reuse_model", row)
        self.assertIn("startup_warning_summary", self.doc)

    def test_T330_the_summary_counts(self):
        states = {r["name"]: r["implementation_state"] for r in self.rows.values()}
        for row in self.rows.values():
            expected = ("ready" if row["available"] else
                        states[row["name"]] if states[row["name"]] in ("host_gated", "scaffold") else "unavailable")
            self.assertEqual(row["readiness"], expected, row["name"])
        s = self.doc["summary"]
        count = [r["readiness"] for r in self.rows.values()].count
        self.assertEqual({k: s[k] for k in ("total", "ready", "unavailable", "host_gated", "scaffold")},
                         {"total": len(self.rows), "ready": count("ready"), "unavailable": count("unavailable"),
                          "host_gated": count("host_gated"), "scaffold": count("scaffold")})
        self.assertGreaterEqual(s["ready"], 2)
        # Every host-local runtime, and every one whose contract says that it can be repaired.
        self.assertEqual(s["host_local_warning_runtimes"], ["seatbelt", "worktree"])
        repair = [r["name"] for r in self.a.get("/runtimes").json["runtimes"]
                  if r["session_contract"]["repair_state"] in ("supported", "host_gated")]
        self.assertEqual(s["repair_supported_runtimes"], repair)

    def test_T331_a_runtime_that_works(self):
        self.members("docker", readiness="ready", recommended_action="none")

    def test_T333_a_helper_that_is_missing(self):
        self.members("vz_linux", readiness="host_gated", recommended_action="check_helper", repair_supported=True,
                     requires_live_health_check=True)
        self.assertIn({"code": "helper_unavailable", "category": "helper", "severity": "error",
                       "availability_blocking": True, "operator_action": "check_helper",
                       "user_message_key": "sandbox.runtime.reason.helper_unavailable"},
                      self.rows["vz_linux"]["normalized_reason_details"])

    def test_T334_a_host_that_lacks_something(self):
        self.members("worktree", readiness="unavailable", recommended_action="prepare_host",
                     vm_grade_isolation=False, untrusted_eligible=False, session_reuse_model="workspace_only",
                     requires_live_health_check=False, repair_supported=False)

    def test_T336_no_startup_warnings(self):
        # A problem at start stops this service, so there is never one to warn of.
        self.assertEqual(self.doc["startup_warning_summary"], {"present": False, "blocking": False, "codes": []})


if __name__ == "__main__":
    conf.main()
