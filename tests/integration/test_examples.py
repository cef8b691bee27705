# SPDX-License-Identifier: Apache-2.0
"""Every script in examples/ does what it says, on a mount or a server of its own."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import api  # noqa: E402
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
    "session.sh": r"run number 1\nrun number 2\nseen from here: 2\nthis is run 3\ncount\.py\nn\n",
    "snapshot.sh": r'exit code: 0\n(\{"path":"(fruit","change":"removed"|sorted","change":"added").*\}\n){2}'
                   r"as it was: pear apple\nfruit\n",
    "parallel.sh": r"sum of the first ten squares: 385\n",
}

# The same for those of the HTTP API.
API_WANTED = {
    "api-hello.sh": r"failed, exit code 3\nhello\.txt: 19 bytes\nnumbers\.txt: 3893 bytes\nhello from sandbox\n"
                    r"the last two numbers:\n999\n1000\na wrong document: refused\nthe same key: the same run\n",
    "api-session.sh": r"files: 2\nhello\n1\n2\n3\ncontent: sorted\.txt\nremoved: numbers\.txt\nnumbers\.txt\nout\.txt\n"
                      r"sorted\.txt\ntools\ngone\nthe run: completed\n",
    "api-follow.py": r"start: \nstdout: 3 squared is 9\nstdout: 12 squared is 144\nstderr: bye\nend: 0\n",
    "agent-loop.py": r"attempt 1: nonzero_exit\n  NameError: .*Counter.*\nattempt 2: nonzero_exit\n"
                     r"  AttributeError: .*value.*\nattempt 3: completed\nand 2\nthe 3\n",
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
        found = sorted(n for n in os.listdir(EXAMPLES) if n.endswith((".sh", ".py")))
        self.assertEqual(found, sorted([*WANTED, *API_WANTED]))
        for name in found:
            self.assertTrue(os.access(os.path.join(EXAMPLES, name), os.X_OK), name)

    def test_each_takes_the_mount_point_and_has_a_default(self):
        for name in WANTED:
            with open(os.path.join(EXAMPLES, name)) as f:
                self.assertIn("mnt=${1:-$HOME/sandbox}\n", f.read(), name)


class ApiExamples(unittest.TestCase):
    def environment(self, home):
        env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        return dict(env, HOME=home, XDG_STATE_HOME=os.path.join(home, "none"))

    def said(self, argv, **env):
        done = subprocess.run(argv, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env=dict(self.environment("/nonexistent"), **env), timeout=60 * sbx.SLOW, check=False)
        self.assertEqual(done.returncode, 0, (done.stdout, done.stderr))
        return done.stdout

    def test_each_has_a_default_address_and_takes_the_key(self):
        for name in API_WANTED:
            with open(os.path.join(EXAMPLES, name)) as f:
                text = f.read()
            self.assertIn("http://127.0.0.1:8420", text, name)
            self.assertIn("SANDBOX_KEY", text, name)

    def test_the_key_is_found_where_the_service_puts_it(self):
        """As the head of each tells a new user, who is not root and has set nothing."""
        if sbx.ROOT:
            self.skipTest("root's state directory is the host's")
        home = tempfile.mkdtemp(prefix="sbx-home-")
        self.addCleanup(shutil.rmtree, home)
        a = api.Apid(state=os.path.join(home, "sandboxfs"))
        del a.env["SINGLE_USER_API_KEY"]
        with a:
            out = self.said([os.path.join(EXAMPLES, "api-hello.sh"), "http://127.0.0.1:%d" % a.port],
                            HOME=home, XDG_STATE_HOME=home)
            self.assertRegex(out, r"\A" + API_WANTED["api-hello.sh"] + r"\Z")

    def test_follow_of_a_run_that_is_over(self):
        with api.Apid() as a:
            run = a.sh("echo one; echo two >&2; exit 4")
            run.wait()
            out = self.said([sys.executable, os.path.join(EXAMPLES, "api-follow.py"), "http://127.0.0.1:%d" % a.port, run.id],
                            SANDBOX_KEY=api.API_KEY)
            self.assertEqual(sorted(out.splitlines()), ["end: 4", "start: ", "stderr: two", "stdout: one"])


def api_example(name):
    def test(self):
        with api.Apid() as a:
            out = self.said([os.path.join(EXAMPLES, name), "http://127.0.0.1:%d" % a.port], SANDBOX_KEY=api.API_KEY)
        self.assertRegex(out, r"\A" + API_WANTED[name] + r"\Z")
    return test


for example_name in API_WANTED:
    setattr(ApiExamples, "test_" + re.sub(r"\W", "_", os.path.splitext(example_name)[0]), api_example(example_name))

for example_name in WANTED:
    method = "test_" + re.sub(r"\W", "_", example_name[:-len(".sh")])
    setattr(Examples, method, example(example_name))


if __name__ == "__main__":
    sbx.main()
