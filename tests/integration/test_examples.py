# SPDX-License-Identifier: Apache-2.0
"""Every script in examples/ does what it says, on a mount of its own."""
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import sbx  # noqa: E402

EXAMPLES = os.path.join(os.path.abspath(sbx.SOURCE), "examples")

# The whole output of each, as a pattern.
WANTED = {
    "hello.sh": r"hello from sandbox, user sandbox\ncompleted: The command ended with exit code 0\.\n",
    "script.sh": r"python 3 runs script in /workspace\n6 \* 7 = 42\n",
    "files-and-artifacts.sh": r"exit code: 0\nlines: 3\napple\nfig\npear\n",
    "follow-log.sh": r'(out: \{"type":"stdout".*"data":"step [123]\\n","seq":\d+,.*\}\n){3}'
                     r'err: \{"type":"stderr".*"data":"done\\n".*\}\n'
                     r'end: \{"type":"event","event":"end","data":\{"exit_code":0\}.*\}\n',
    "wait-exit-code.sh": r"exit code 0, phase completed\nexit code 7, phase failed\n",
    "cancel.sh": r"before: running\nended: killed\nkilled: The run was cancelled\.\n",
    "idempotent.sh": r"same document: the same run\nother document: refused\nonce\n",
    "watch.sh": r"in runs/: CREATE,ISDIR\non status: CLOSE_WRITE,CLOSE\nexit code: 0\n",
    "bound-to-shell.sh": r"ended: killed\nkilled: The run was cancelled\.\n",
    "check-first.sh": r'accepted.*\n\{"accepted":true,.*"memory_mb":\d+,.*'
                      r'"clamped":\["timeout_sec","resources.memory_mb"\].*\}\n'
                      r'refused.*\n\{"accepted":false,.*"did_you_mean":"command".*\}\n'
                      r'refused.*\n\{"accepted":false,.*"policy_unsupported".*\}\n',
    "interactive.sh": r"exit code: 0\n3 squared is 9\n12 squared is 144\n",
    "parallel.sh": r"sum of the first ten squares: 385\n",
}


def example(name):
    def test(self):
        if name == "check-first.sh" and "untrusted" not in self.levels():
            self.skipTest("this host cannot serve the trust level untrusted")
        done = subprocess.run(["sh", os.path.join(EXAMPLES, name), self.m.mnt], text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=30 * sbx.SLOW)
        said = "status %d\n%s%s" % (done.returncode, done.stdout, done.stderr)
        self.assertEqual(done.returncode, 0, said)
        self.assertRegex(done.stdout, r"\A" + WANTED[name] + r"\Z", said)
    return test


class Examples(sbx.Case):
    def levels(self):
        with open(os.path.join(self.m.mnt, "runtimes", "namespace.json")) as f:
            return f.read().split('"supported_trust_levels":')[1].split("]")[0]

    def test_each_has_an_expectation_and_is_executable(self):
        found = sorted(n for n in os.listdir(EXAMPLES) if n.endswith(".sh"))
        self.assertEqual(found, sorted(WANTED))
        for name in found:
            self.assertTrue(os.access(os.path.join(EXAMPLES, name), os.X_OK), name)

    def test_each_takes_the_mount_point_and_has_a_default(self):
        for name in WANTED:
            with open(os.path.join(EXAMPLES, name)) as f:
                self.assertIn("mnt=${1:-$HOME/sandbox}\n", f.read(), name)


for example_name in WANTED:
    method = "test_" + re.sub(r"\W", "_", example_name[:-len(".sh")])
    setattr(Examples, method, example(example_name))


if __name__ == "__main__":
    sbx.main()
