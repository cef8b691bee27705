# SPDX-License-Identifier: Apache-2.0
# run: limit=300
"""The abuse of test_abuse.py once more, in containers of a real engine: it ends the same way, and the engine and the
service are well afterwards."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import test_abuse as abuse  # noqa: E402
from escape import sbx  # noqa: E402
import dockerkit  # noqa: E402
from dockerkit import PYTHON  # noqa: E402

E = None


def setUpModule():
    global E
    E = dockerkit.start(PYTHON)


class Abuse(sbx.Case):
    cases = abuse.forks + abuse.memory + abuse.output + abuse.disk + abuse.exhaustion + abuse.stuck

    @classmethod
    def setUpClass(cls):
        cls.settings = dockerkit.settings(E, docker_default_image=PYTHON, default_runtime="docker", max_concurrent_runs=2,
                                          queue_ttl_sec=600, max_log_bytes=1 << 20)
        super().setUpClass()
        cls.runs = {}
        for case in cls.cases:
            marker = "abuse-%s-%s" % (case.name, os.urandom(6).hex())
            cls.runs[case.name] = (case.submit(cls.m, marker), marker)

    def judge(self, case):
        run, marker = self.runs[case.name]
        run.wait(120)
        self.assertEqual(abuse.named(marker), [])
        doc = run.json()
        phase, reason, sentence = case.expect
        self.assertEqual((doc["phase"], doc["status_reason_code"]), (phase, reason), (doc["message"], run.stderr[-300:]))
        self.assertIn(sentence, doc["message"] or "")

    def test_zz_nothing_left(self):
        E.wait_no_container()
        after = self.m.run({"command": ["echo", "ok"]})
        self.assertEqual((after.exit, after.stdout), ("0", b"ok\n"))


for case in Abuse.cases:
    setattr(Abuse, "test_" + case.name, lambda self, case=case: self.judge(case))

if __name__ == "__main__":
    sbx.main()
