# SPDX-License-Identifier: Apache-2.0
"""Sandboxes that runs of a burst have used, which a runner takes down afterwards: also when the last run takes long."""
import os
import select
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../lib"))
import sbx  # noqa: E402


def children(pid):
    with open("/proc/%d/task/%d/children" % (pid, pid)) as f:
        return [int(child) for child in f.read().split()]


class Spares(sbx.Case):
    settings = {"max_concurrent_runs": 1, "warm_runners": 1}

    def sandboxes(self):
        """The first processes of those that the runner has, as pidfds."""
        below = {p: children(p) for p in self.m.processes() if p != self.m.proc.pid}
        inner = {child for pids in below.values() for child in pids}
        (found,) = [pids for p, pids in below.items() if pids and p not in inner]
        fds = [os.pidfd_open(pid) for pid in found]
        for fd in fds:
            self.addCleanup(os.close, fd)
        return fds

    def test_a_long_run_after_a_burst(self):
        """What the burst has used up goes beside it."""
        burst = [self.m.submit({"command": ["true"]}) for _ in range(8)]
        last = self.m.submit({"command": ["sh", "-c", "echo up; read line"], "interactive": True, "spec_version": "1.1"})
        self.addCleanup(last.wait)
        self.addCleanup(last.ctl, "cancel")
        self.assertEqual([r.wait() for r in burst], ["0"] * 8)
        last.stream_until(b"up")
        fds = self.sandboxes()
        poll = select.poll()
        for fd in fds:
            poll.register(fd, select.POLLIN)
        left, end = len(fds), time.monotonic() + 20 * sbx.SLOW
        while left > 1:
            over = poll.poll(max(0, end - time.monotonic()) * 1000)
            self.assertTrue(over, "%d sandboxes wait beside a run" % (left - 1))
            for fd, _ in over:
                poll.unregister(fd)
            left -= len(over)
        self.assertEqual(last.status(), "running")


if __name__ == "__main__":
    sbx.main()
