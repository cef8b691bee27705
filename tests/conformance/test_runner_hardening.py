# SPDX-License-Identifier: Apache-2.0
"""What a runtime keeps from its commands, of its host and of the service."""
import os

import conf

import gitkit

WORKTREE = {"worktree_deny_all": "true"}
SPEC = {"runtime": "worktree", "base_image": "host-local", "timeout_sec": 30}


class Worktree(conf.Alone):
    def test_T397_without_namespaces_or_git_nothing_runs(self):
        for reason in ("unshare_required_on_linux", "git_too_old_or_missing"):
            with self.server(WORKTREE, preflight={"worktree": {"available": False, "reasons": [reason]}}) as a:
                row = a.runtime("worktree")
                self.assertEqual((row["available"], row["reasons"]), (False, [reason]))
                details = self.refused(a.try_run({**SPEC, "command": ["echo", "ok"]}), 503, "runtime_unavailable",
                                       runtime="worktree", available=False)
                self.assertIn(reason, details["reasons"])

    def test_T399_no_login_of_the_service_is_handed_on(self):
        env = {"HOME": "/home/of-the-service", "ANTHROPIC_API_KEY": "sk-ant", "AWS_ACCESS_KEY_ID": "AKIA",
               "HARMLESS_VAR": "harmless", "NOT_LISTED": "x"}
        # Design: a list of what is handed on, and not one of what is not.
        with self.server({**WORKTREE, "worktree_env": "HARMLESS_VAR,HOME,ANTHROPIC_API_KEY"}, env=env) as a:
            run = a.run({**SPEC, "command": ["env"], "env": {"OPENAI_API_KEY": "sk-open", "MY_VAR": "ok"}})
            self.ended(run)
            seen = dict(line.split("=", 1) for line in run.log().decode().splitlines())
        self.assertEqual((seen["HARMLESS_VAR"], seen["MY_VAR"]), ("harmless", "ok"))
        self.assertIn("PATH", seen)
        self.assertEqual({"HOME", "ANTHROPIC_API_KEY", "AWS_ACCESS_KEY_ID", "OPENAI_API_KEY", "NOT_LISTED"} & set(seen), set())

    def test_T401_only_repositories_below_an_allowed_directory(self):
        with gitkit.Ground() as g:
            for name in ("allowed", "allowed/inside", "outside"):
                g.repo(name).commit([(".gitignore", b"inside\n"), ("f", name.encode())])
            images = ",".join("%s=%s" % (n.replace("/", "-"), os.path.join(g.base, n))
                              for n in ("allowed", "allowed/inside", "outside"))
            with self.server({**WORKTREE, "images": images,
                              "worktree_allowed_dirs": os.path.join(g.base, "allowed")}) as a:
                spec = {**SPEC, "command": ["cat", "f"]}
                self.refused(a.try_run({**spec, "base_image": "outside"}), 422, "policy_unsupported", runtime="worktree")
                for image in ("allowed-inside", "allowed"):
                    run = a.run({**spec, "base_image": image})
                    self.ended(run)
                    self.assertEqual(run.log().decode(), image.replace("-", "/"))


if __name__ == "__main__":
    conf.main()
