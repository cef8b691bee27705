# SPDX-License-Identifier: Apache-2.0
"""Whether a workspace can start runs, and which it has."""
import conf
from conf import api

ONE, TWO = api.user("1"), api.user("2")
NAMES = ("namespace docker firecracker lima qemu vz_linux vz_macos seatbelt worktree").split()
NONE_READY = {name: {"available": False, "reasons": ["preflight_missing"]} for name in NAMES}


class Workspace(conf.Alone):
    def diagnostics(self, a, workspace, query="", login=None):
        answer = a.get("/workspaces/%s/diagnostics%s" % (workspace, query), login=login)
        self.assertEqual(answer.status, 200, answer)
        self.assertEqual(answer.json["workspace_id"], workspace)
        return answer.json

    def state(self, part, *expected):
        self.assertEqual((part["state"], part["reason_code"]), expected)

    def test_T368_ones_own_runs_only(self):
        # The row's server knows no runtime at all; here the list is never empty.
        with self.server({**api.USERS, **conf.QUEUED}) as a:
            mine = a.sh("true", ONE, workspace_id="workspace-alpha")
            a.sh("true", TWO, workspace_id="workspace-alpha")
            a.sh("true", ONE, workspace_id="workspace-beta")
            doc = self.diagnostics(a, "workspace-alpha", "?source_label=research_workspace&limit=10", ONE)
            self.assertEqual(doc["source_label"], "research_workspace")
            self.assertEqual(doc["runs"]["total"], 1)
            self.assertEqual([(i["id"], i["workspace_id"]) for i in doc["runs"]["items"]],
                             [(mine.id, "workspace-alpha")])
            self.assertEqual(doc["admission"]["state"], "blocked")
            # Also for an administrator these are the caller's own.
            doc = self.diagnostics(a, "workspace-alpha", login=api.user("boss", role="admin"))
            self.assertEqual(doc["runs"]["total"], 0)

    def test_T370_no_runtime_is_ready(self):
        with self.server(preflight=NONE_READY) as a:
            doc = self.diagnostics(a, "workspace-empty")
            self.state(doc["runtime"], "unavailable", "sandbox_runtime_unavailable")
            self.state(doc["admission"], "blocked", "sandbox_runtime_unavailable")
            self.assertEqual((doc["runs"]["total"], doc["runs"]["items"]), (0, []))

    def test_T372_execution_is_off(self):
        with self.server(conf.QUEUED) as a:
            doc = self.diagnostics(a, "any")
            self.assertEqual(doc["runtime"]["state"], "available")
            self.state(doc["admission"], "blocked", "sandbox_execution_disabled")
            self.assertRegex(doc["admission"]["message"], r"(?i)execution is disabled")
        with self.server() as a:  # and on
            doc = self.diagnostics(a, "any")
            self.state(doc["runtime"], "available", None)
            self.state(doc["admission"], "available", None)


if __name__ == "__main__":
    conf.main()
