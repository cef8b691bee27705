# SPDX-License-Identifier: Apache-2.0
import conf


class Ready(conf.Case):
    def test_T338_a_host_in_order(self):
        a = self.a.get("/admin/operator-status")
        self.assertEqual(a.status, 200, a)
        doc = a.json
        self.assertEqual((doc["source"], doc["overall_status"], doc["overall_severity"]),
                         ("sandbox_operator_status", "ready", "info"))
        self.assertEqual(doc["sections"]["evidence"]["status"], "not_configured")
        self.assertEqual(doc["recommended_actions"], [])
        self.assertNotIn("generated_at", doc)
        self.assertLessEqual({"runtime_readiness", "macos_vz", "image_store", "reconciliation", "evidence",
                              "startup_warnings"}, set(doc["sections"]))
        self.assertEqual(doc["sections"]["runtime_readiness"]["status"], "ready")
        self.assertGreaterEqual(doc["summary"]["runtime_ready"], 1)


if __name__ == "__main__":
    conf.main()
