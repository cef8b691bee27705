# SPDX-License-Identifier: Apache-2.0
"""Too slow to start, and too long at it."""
import os
import signal
import time

import conf
from conf import sbx


def children(pid):
    try:
        with open("/proc/%d/task/%d/children" % (pid, pid)) as f:
            return [int(p) for p in f.read().split()]
    except OSError:
        return []


def wait_warm(a):
    """The processes of the sandbox that waits for a run: its runner has it ready and sleeps in recvfrom."""
    end = time.monotonic() + 20 * sbx.SLOW
    while time.monotonic() < end:
        for pid in a.processes():
            try:
                with open("/proc/%d/syscall" % pid) as f:
                    idle = f.read().split()[:2] == ["45", "0x3"]
            except OSError:
                continue
            if idle and children(pid):
                return children(pid)
        os.sched_yield()
    raise AssertionError("no sandbox waits")


class Timeouts(conf.Alone):
    def end_frame(self, a, run):
        with a.stream(run) as ws:
            frames, code = ws.frames()
        self.assertEqual(code, 1000)
        ends = [f for f in frames if f["type"] == "event" and f["event"] == "end"]
        self.assertEqual(len(ends), 1)
        return ends[0]["data"]

    def test_T184_a_start_that_takes_too_long(self):
        # The process in which the sandbox is made is stopped for longer than that.
        with self.server({"warm_runners": 1, "max_concurrent_runs": 1}) as a:
            frozen = wait_warm(a)
            for pid in frozen:
                os.kill(pid, signal.SIGSTOP)
            try:
                run = a.sh("echo hello", timeout_sec=5, startup_timeout_sec=1)
                began = conf.boot_us()
                run.wait_phase("starting")
                conf.wait_boot(began + 1500000)
            finally:
                for pid in frozen:
                    os.kill(pid, signal.SIGCONT)
            doc = self.ended(run, "timed_out", "startup_timeout")
            self.assertRegex(doc["message"], r"^startup_timeout")
            self.assertIsNone(doc["exit_code"])
            self.assertEqual(self.end_frame(a, run)["reason"], "startup_timeout")

    def test_T185_a_command_that_takes_too_long(self):
        with self.server() as a:
            run = a.sh("sleep 60", timeout_sec=1)
            doc = self.ended(run, "timed_out", "execution_timeout")
            self.assertEqual(doc["message"], "execution_timeout")
            self.assertEqual(self.end_frame(a, run)["reason"], "execution_timeout")


class Container(conf.Docker):
    def in_foreground(self, *command, **more):
        with self.docker(**conf.FOREGROUND) as a:
            answer = a.try_run({"spec_version": "1.0", "runtime": "docker", "base_image": self.IMAGE,
                                "command": list(command), **more})
            self.assertEqual(answer.status, 200, answer)
            self.nothing_left()
            return answer.json, a.post("/runs/%s/cancel" % answer.json["id"]).json

    def test_T187_a_container_that_takes_too_long_goes(self):
        doc, cancel = self.in_foreground("sleep", "60", timeout_sec=1)
        self.assertEqual((doc["phase"], doc["message"]), ("timed_out", "execution_timeout"))
        self.assertFalse(cancel["cancelled"])

    def test_T188_a_container_with_a_network_that_takes_too_long_goes(self):
        import engine
        gate = engine.Gate(self.engine)
        self.addCleanup(gate.close)
        before = self.engine.networks()
        with self.docker(docker_host=gate.socket, egress_enforcement="true", egress_granular_enforcement="true",
                         egress_allowlist="192.0.2.1", **conf.FOREGROUND) as a:
            gate.held = b"/containers/create"
            answer = a.try_run({"spec_version": "1.0", "runtime": "docker", "base_image": self.IMAGE,
                                "command": ["echo", "executed"], "network_policy": "allowlist",
                                "startup_timeout_sec": 1, "timeout_sec": 30})
            self.assertEqual(answer.status, 200, answer)
            self.assertEqual((answer.json["phase"], answer.json["message"]), ("timed_out", "startup_timeout"))
            gate.release()
            self.nothing_left()
            self.assertEqual(self.engine.networks(), before)

    def test_T190_a_container_goes_after_its_command(self):
        doc, cancel = self.in_foreground("python", "-c", "print(1)", timeout_sec=5)
        self.assertEqual((doc["phase"], doc["exit_code"]), ("completed", 0))
        self.assertFalse(cancel["cancelled"])


if __name__ == "__main__":
    conf.main()
