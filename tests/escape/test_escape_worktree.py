# SPDX-License-Identifier: Apache-2.0
# run: limit=600
"""The attempts to escape once more, in the runtime `worktree`. Not those of artifacts and images, which have nothing
to do with the runtime, and not the abuses, which are those of runs that nobody trusts: it takes none."""
import os
import sys

os.environ["SBX_ESCAPE_RUNTIME"] = "worktree"
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import escape  # noqa: E402
import test_escape_files  # noqa: E402
import test_escape_kernel  # noqa: E402
import test_escape_network  # noqa: E402
import test_escape_process  # noqa: E402

for module in (test_escape_files, test_escape_kernel, test_escape_network, test_escape_process):
    for name, value in vars(module).items():
        if isinstance(value, type) and issubclass(value, escape.Attempts):
            globals()[name] = value

if __name__ == "__main__":
    escape.sbx.main()
