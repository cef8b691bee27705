# SPDX-License-Identifier: Apache-2.0
# run: limit=300
"""The table of both doors once more with the runtime `worktree`, and what only it refuses."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import test_two_doors as two  # noqa: E402

SETTINGS = {"default_runtime": "worktree", "worktree_deny_all": "true", "worktree_allowed_dirs": "/nonexistent",
            "images": "usr=/usr"}


class Runs(two.Runs):
    settings = {**two.House.settings, **SETTINGS}
    test_clamped = None  # of an untrusted run
    test_artifacts_that_are_left_out = None  # "*" takes the repository of the worktree too, with its times


class Refusals(two.Refusals):
    settings = Runs.settings
    test_check_says_the_same_of_everything = None  # it has the row that is left out above


two.fill(Refusals, (
    two.Refusal("somebody whom nobody trusts", two.spec("true", trust_level="untrusted"), "policy_unsupported"),
    two.Refusal("the network of the trusted", two.spec("true", trust_level="trusted"), "policy_unsupported"),
    two.Refusal("a directory that is not allowed", two.spec("true", base_image="usr"), "policy_unsupported"),
))

if __name__ == "__main__":
    two.sbx.main()
